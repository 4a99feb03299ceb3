//! A device in memory for data that repeat themselves: a page of one word over and over takes a
//! word.
//!
//! So a pool of 20 GB, mirrored, fits into a machine's memory. What does not repeat itself, as
//! metadata do not, is kept as it is.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use zilla_env::{Device, DeviceInfo, Io, IoOp, IoResult, MemDevice, check_bounds};

const PAGE: usize = 4096;
const WORD: usize = 8;

#[derive(Default)]
struct Pages {
    /// The word that each page repeats, where it does; 0 where nothing was written.
    words: Vec<u64>,
    others: HashMap<usize, Box<[u8; PAGE]>>,
}

pub struct Patterned {
    pages: Mutex<Pages>,
    /// Where it was read since [`Patterned::reads`] was asked, from and to.
    reads: Mutex<Vec<(u64, u64)>>,
    /// Bytes that were written.
    written: AtomicU64,
    size: u64,
    info: DeviceInfo,
}

impl Patterned {
    pub fn new(size: u64, path: PathBuf) -> Patterned {
        let info = MemDevice::new(size).named(path).info();
        let words = vec![0; size.div_ceil(PAGE as u64) as usize];
        let pages = Mutex::new(Pages { words, ..Pages::default() });
        Patterned { pages, reads: Mutex::default(), written: AtomicU64::new(0), size, info }
    }

    /// How many bytes were written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Where it was read since the last time this or [`Patterned::reads`] was asked, as it was.
    pub fn reads_as_made(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut *self.reads.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Where it was read since the last time this was asked, in order, each place once.
    pub fn reads(&self) -> Vec<(u64, u64)> {
        let mut all = self.reads_as_made();
        all.sort_unstable();
        all.dedup_by(|next, before| {
            let joins = next.0 <= before.1;
            before.1 = if joins { before.1.max(next.1) } else { before.1 };
            joins
        });
        all
    }

    fn run(&self, op: IoOp) -> IoResult {
        check_bounds(&op, self.size)?;
        let mut pages = self.pages.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match op {
            IoOp::Read { offset, mut buf } => {
                pages.read(offset, &mut buf);
                let mut reads = self.reads.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                reads.push((offset, offset + buf.len() as u64));
                return Ok(Some(buf));
            }
            IoOp::Write { mut offset, data } => {
                let from = offset;
                for piece in data {
                    pages.write(offset, &piece);
                    offset += piece.len() as u64;
                }
                self.written.fetch_add(offset - from, Ordering::Relaxed);
            }
            IoOp::Flush => {}
            IoOp::Discard { offset, len } | IoOp::WriteZeroes { offset, len } => {
                let zeroes = [0; PAGE];
                let mut at = offset;
                while at < offset + len {
                    let part = (PAGE as u64 - at % PAGE as u64).min(offset + len - at);
                    pages.write(at, &zeroes[..part as usize]);
                    at += part;
                }
            }
        }
        Ok(None)
    }
}

impl Pages {
    fn read(&self, offset: u64, buf: &mut [u8]) {
        let (mut at, mut buf) = (offset as usize, buf);
        while !buf.is_empty() {
            let (page, from) = (at / PAGE, at % PAGE);
            let (part, rest) = buf.split_at_mut((PAGE - from).min(buf.len()));
            match self.others.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[from..from + part.len()]),
                None => fill(part, self.words.get(page).copied().unwrap_or(0), from),
            }
            at += part.len();
            buf = rest;
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let (mut at, mut data) = (offset as usize, data);
        while !data.is_empty() {
            let (page, from) = (at / PAGE, at % PAGE);
            let (part, rest) = data.split_at((PAGE - from).min(data.len()));
            if part.len() == PAGE
                && let Some(word) = repeated(part)
            {
                self.words[page] = word;
                self.others.remove(&page);
            } else {
                let word = self.words[page];
                let bytes = self.others.entry(page).or_insert_with(|| {
                    let mut bytes = Box::new([0; PAGE]);
                    fill(&mut bytes[..], word, 0);
                    bytes
                });
                bytes[from..from + part.len()].copy_from_slice(part);
            }
            at += part.len();
            data = rest;
        }
    }
}

/// The word that a page repeats.
fn repeated(page: &[u8]) -> Option<u64> {
    let first = page.first_chunk::<WORD>()?;
    page.chunks_exact(WORD).all(|w| w == first).then(|| u64::from_le_bytes(*first))
}

/// A part of a page that repeats a word.
fn fill(part: &mut [u8], word: u64, from: usize) {
    let bytes = word.to_le_bytes();
    if from.is_multiple_of(WORD) && part.len().is_multiple_of(WORD) {
        part.chunks_exact_mut(WORD).for_each(|w| w.copy_from_slice(&bytes));
    } else {
        part.iter_mut().enumerate().for_each(|(i, b)| *b = bytes[(from + i) % WORD]);
    }
}

impl Device for Patterned {
    fn submit(&self, batch: Vec<Io>) {
        for io in batch {
            io.done.complete(self.run(io.op));
        }
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn refresh_size(&self) -> io::Result<u64> {
        Ok(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_whatever_it_was() {
        let mut pages = Pages { words: vec![0; 4], ..Pages::default() };
        let mut plain = vec![0u8; 4 * PAGE];
        let word = 0x0102_0304_0506_0708u64.to_le_bytes();
        let even: Vec<u8> = word.iter().copied().cycle().take(2 * PAGE).collect();
        let odd: Vec<u8> = (0..700u32).map(|i| (i * 7) as u8).collect();
        for (at, data) in [(0, &even), (PAGE + 100, &odd), (3 * PAGE - 300, &odd), (PAGE, &even)] {
            pages.write(at as u64, data);
            plain[at..at + data.len()].copy_from_slice(data);
            for (from, len) in [(0, 4 * PAGE), (3, PAGE + 5), (2 * PAGE - 1, 2)] {
                let mut found = vec![9; len];
                pages.read(from as u64, &mut found);
                assert_eq!(found, plain[from..from + len]);
            }
        }
        // The last page alone repeats no word: what the second had was written over.
        assert_eq!(pages.others.keys().copied().collect::<Vec<_>>(), [3]);
    }
}
