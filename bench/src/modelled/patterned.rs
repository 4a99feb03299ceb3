//! A device in memory for data that repeat themselves: a page of one word over and over takes next
//! to nothing where the pages beside it repeat the same word, and a word elsewhere.
//!
//! What does not repeat itself, as metadata do not, is kept as it is, once for all devices that
//! have it at the same place, as the sides of a mirror do. So a mirror of 905 GB in 128K records,
//! with four sides, fits into a machine's memory.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zilla_env::{Device, DeviceInfo, Io, IoOp, IoResult, MemDevice, check_bounds};

const PAGE: usize = 4096;
const WORD: usize = 8;
/// Pages of a stretch.
const STRETCH: usize = 32;
/// In [`Words::turns`]: the stretch is one of [`Words::mixed`].
const MIXED: u8 = u8::MAX;

type Page = [u8; PAGE];

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What does not repeat itself on some devices, by page: each content that one of them has there,
/// with a bit for each device that has it.
#[derive(Default)]
pub struct Others {
    devices: u32,
    pages: HashMap<usize, Vec<(u64, Box<Page>)>>,
}

impl Others {
    fn get(&self, page: usize, device: u64) -> Option<&Page> {
        let at = self.pages.get(&page)?;
        at.iter().find(|(who, _)| who & device != 0).map(|(_, bytes)| &**bytes)
    }

    fn remove(&mut self, page: usize, device: u64) {
        let Some(at) = self.pages.get_mut(&page) else { return };
        at.iter_mut().for_each(|(who, _)| *who &= !device);
        at.retain(|(who, _)| *who != 0);
        if at.is_empty() {
            self.pages.remove(&page);
        }
    }

    fn put(&mut self, page: usize, device: u64, bytes: &Page) {
        self.remove(page, device);
        let at = self.pages.entry(page).or_default();
        match at.iter_mut().find(|(_, there)| **there == *bytes) {
            Some((who, _)) => *who |= device,
            None => {
                at.reserve_exact(1);
                at.push((device, Box::new(*bytes)));
            }
        }
    }
}

/// The word that each page repeats, where it does; 0 where nothing was written. Most stretches have
/// one word, or two where one record ends and the next begins.
struct Words {
    /// From which page of a stretch on it repeats its second word.
    turns: Vec<u8>,
    /// The first word of a stretch, or its index in `mixed`.
    first: Vec<u64>,
    second: Vec<u64>,
    mixed: Vec<[u64; STRETCH]>,
    /// Places in `mixed` that no stretch has.
    free: Vec<usize>,
}

impl Words {
    fn new(pages: usize) -> Words {
        let stretches = pages.div_ceil(STRETCH);
        // Zeroes that nothing touches take no memory.
        let words = || vec![0; stretches];
        Words {
            turns: vec![0; stretches],
            first: words(),
            second: words(),
            mixed: Vec::new(),
            free: Vec::new(),
        }
    }

    fn get(&self, page: usize) -> u64 {
        let (stretch, at) = (page / STRETCH, page % STRETCH);
        match self.turns[stretch] {
            MIXED => self.mixed[self.first[stretch] as usize][at],
            turn if at < turn as usize => self.first[stretch],
            _ => self.second[stretch],
        }
    }

    /// These pages repeat this word from now on.
    fn put(&mut self, pages: Range<usize>, word: u64) {
        let mut from = pages.start;
        while from < pages.end {
            let stretch = from / STRETCH;
            let (begin, until) = (stretch * STRETCH, pages.end.min((stretch + 1) * STRETCH));
            let mut all: [u64; STRETCH] = std::array::from_fn(|at| self.get(begin + at));
            all[from - begin..until - begin].fill(word);
            self.keep(stretch, all);
            from = until;
        }
    }

    fn keep(&mut self, stretch: usize, all: [u64; STRETCH]) {
        let (first, second) = (all[0], all[STRETCH - 1]);
        let turn = all.iter().position(|w| *w != first).unwrap_or(0);
        let slot = (self.turns[stretch] == MIXED).then_some(self.first[stretch] as usize);
        if all[turn..].iter().all(|w| *w == second) {
            self.free.extend(slot);
            (self.turns[stretch], self.first[stretch], self.second[stretch]) = (turn as u8, first, second);
            return;
        }
        let slot = slot.or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.mixed.push(all);
            self.mixed.len() - 1
        });
        self.mixed[slot] = all;
        (self.turns[stretch], self.first[stretch]) = (MIXED, slot as u64);
    }
}

struct Pages {
    words: Words,
    others: Arc<Mutex<Others>>,
    /// Its bit in `others`.
    device: u64,
}

pub struct Patterned {
    pages: Mutex<Pages>,
    /// Where it was read since [`Patterned::reads`] was asked, from and to.
    reads: Option<Mutex<Vec<(u64, u64)>>>,
    /// Bytes that were written.
    written: AtomicU64,
    size: u64,
    info: DeviceInfo,
}

impl Patterned {
    /// A device that shares what does not repeat itself with others.
    pub fn new(size: u64, path: PathBuf, others: &Arc<Mutex<Others>>) -> Patterned {
        let info = MemDevice::new(size).named(path).info();
        let pages = Pages::new(size.div_ceil(PAGE as u64) as usize, others);
        Patterned { pages: Mutex::new(pages), reads: None, written: AtomicU64::new(0), size, info }
    }

    /// The same, of which [`Patterned::reads`] may be asked.
    pub fn watched(size: u64, path: PathBuf, others: &Arc<Mutex<Others>>) -> Patterned {
        Patterned { reads: Some(Mutex::default()), ..Patterned::new(size, path, others) }
    }

    /// How many bytes were written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Where it was read since the last time this or [`Patterned::reads`] was asked, as it was.
    pub fn reads_as_made(&self) -> Vec<(u64, u64)> {
        self.reads.as_ref().map(|reads| std::mem::take(&mut *locked(reads))).unwrap_or_default()
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
        let mut pages = locked(&self.pages);
        match op {
            IoOp::Read { offset, mut buf } => {
                pages.read(offset, &mut buf);
                if let Some(reads) = &self.reads {
                    locked(reads).push((offset, offset + buf.len() as u64));
                }
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
    fn new(pages: usize, others: &Arc<Mutex<Others>>) -> Pages {
        let device = {
            let mut others = locked(others);
            others.devices += 1;
            1 << (others.devices - 1)
        };
        Pages { words: Words::new(pages), others: others.clone(), device }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) {
        let others = locked(&self.others);
        let (mut at, mut buf) = (offset as usize, buf);
        while !buf.is_empty() {
            let (page, from) = (at / PAGE, at % PAGE);
            let (part, rest) = buf.split_at_mut((PAGE - from).min(buf.len()));
            match others.get(page, self.device) {
                Some(bytes) => part.copy_from_slice(&bytes[from..from + part.len()]),
                None => fill(part, self.words.get(page), from),
            }
            at += part.len();
            buf = rest;
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let mut others = locked(&self.others);
        let (mut at, mut data) = (offset as usize, data);
        // Pages before this place that repeat a word, and are not told yet.
        let (mut run, mut repeats) = (0..0, 0);
        while !data.is_empty() {
            let (page, from) = (at / PAGE, at % PAGE);
            let (part, rest) = data.split_at((PAGE - from).min(data.len()));
            let word = if part.len() == PAGE { repeated(part) } else { None };
            if word != Some(repeats) || run.end != page {
                self.words.put(run, repeats);
                run = page..page;
            }
            if let Some(word) = word {
                (run.end, repeats) = (page + 1, word);
                others.remove(page, self.device);
            } else {
                let mut bytes = match others.get(page, self.device) {
                    Some(bytes) => *bytes,
                    None => {
                        let mut bytes = [0; PAGE];
                        fill(&mut bytes, self.words.get(page), 0);
                        bytes
                    }
                };
                bytes[from..from + part.len()].copy_from_slice(part);
                others.put(page, self.device, &bytes);
            }
            at += part.len();
            data = rest;
        }
        self.words.put(run, repeats);
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

    fn others(pages: &Pages) -> Vec<(usize, usize)> {
        let others = locked(&pages.others);
        let mut all: Vec<_> = others.pages.iter().map(|(page, at)| (*page, at.len())).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn what_was_written_is_read_whatever_it_was() {
        let mut pages = Pages::new(4, &Arc::default());
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
        assert_eq!(others(&pages), [(3, 1)]);
    }

    #[test]
    fn each_page_repeats_the_word_that_was_written_last() {
        let mut words = Words::new(3 * STRETCH);
        let mut plain = vec![0; 3 * STRETCH];
        // Records that begin anywhere, in either direction, and then single pages.
        let records = (0..8).chain((0..7).rev()).map(|i| (5 + i * 11, 11));
        let singles = (0..96).map(|i| (i * 37 % 96, 1));
        for (word, (page, len)) in records.chain(singles).enumerate() {
            words.put(page..page + len, word as u64 % 17);
            plain[page..page + len].fill(word as u64 % 17);
            assert_eq!((0..plain.len()).map(|p| words.get(p)).collect::<Vec<_>>(), plain);
        }
        assert_eq!(words.mixed.len() - words.free.len(), words.turns.iter().filter(|t| **t == MIXED).count());
    }

    #[test]
    fn records_that_follow_each_other_take_two_words_a_stretch() {
        let mut words = Words::new(8 * STRETCH);
        for record in 0..7 {
            let page = 7 + record * STRETCH;
            words.put(page..page + STRETCH, 1 + record as u64);
        }
        assert!(words.mixed.is_empty());
    }

    #[test]
    fn what_two_devices_have_at_a_place_is_kept_once() {
        let shared = Arc::default();
        let (mut a, mut b) = (Pages::new(2, &shared), Pages::new(2, &shared));
        let odd: Vec<u8> = (0..PAGE).map(|i| (i * 7 / 3) as u8).collect();
        a.write(0, &odd);
        b.write(0, &odd);
        assert_eq!(others(&a), [(0, 1)]);
        b.write(9, &[1, 2, 3]);
        assert_eq!(others(&a), [(0, 2)]);
        let read = |pages: &Pages| {
            let mut found = vec![0; PAGE];
            pages.read(0, &mut found);
            found
        };
        assert_eq!(read(&a), odd);
        assert_eq!(read(&b)[9..12], [1, 2, 3]);
        a.write(0, &[0; PAGE]);
        b.write(0, &[0; PAGE]);
        assert_eq!(others(&a), []);
    }
}
