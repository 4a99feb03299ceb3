//! A sparse array of bytes with cheap snapshots: what memory devices and simulated disks are made
//! of.
//!
//! Chunks are shared between clones and copied when one of them writes, so the power can be cut at
//! every write of a run and each cut kept as an image of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

const CHUNK: usize = 16 << 10;

/// Bytes that read as zero until written. Bounds are the caller's matter: the image itself has no
/// end.
#[derive(Clone, Default)]
pub struct SparseImage {
    chunks: BTreeMap<u64, Arc<[u8; CHUNK]>>,
}

impl SparseImage {
    pub fn new() -> SparseImage {
        SparseImage::default()
    }

    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for (index, at, range) in pieces(offset, out.len()) {
            match self.chunks.get(&index) {
                Some(chunk) => {
                    let n = range.len();
                    out[range].copy_from_slice(&chunk[at..at + n]);
                }
                None => out[range].fill(0),
            }
        }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (index, at, range) in pieces(offset, data.len()) {
            let chunk = self.chunks.entry(index).or_insert_with(|| Arc::new([0; CHUNK]));
            Arc::make_mut(chunk)[at..at + range.len()].copy_from_slice(&data[range]);
        }
    }

    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let mut first = offset / CHUNK as u64;
        if !offset.is_multiple_of(CHUNK as u64) {
            let stop = end.min((first + 1) * CHUNK as u64);
            self.zero_in_chunk(first, offset, stop);
            first += 1;
        }
        let last = end / CHUNK as u64;
        if first > last {
            return;
        }
        // Whole chunks in between are dropped, found by key so that the cost is what exists, not
        // what is asked.
        let gone: Vec<u64> = self.chunks.range(first..last).map(|(k, _)| *k).collect();
        for key in gone {
            self.chunks.remove(&key);
        }
        self.zero_in_chunk(last, last * CHUNK as u64, end);
    }

    fn zero_in_chunk(&mut self, index: u64, from: u64, to: u64) {
        if from < to
            && let Some(chunk) = self.chunks.get_mut(&index)
        {
            let base = index * CHUNK as u64;
            Arc::make_mut(chunk)[(from - base) as usize..(to - base) as usize].fill(0);
        }
    }

    /// Whether neither was written to since one was cloned from the other. Equal images that came
    /// about otherwise are not the same.
    pub fn is_same(&self, other: &SparseImage) -> bool {
        let (a, b) = (&self.chunks, &other.chunks);
        a.len() == b.len() && a.iter().zip(b).all(|((i, x), (j, y))| i == j && Arc::ptr_eq(x, y))
    }

    /// Bytes of memory behind the image (shared chunks count in full).
    pub fn allocated(&self) -> u64 {
        (self.chunks.len() * CHUNK) as u64
    }

    /// Forgets everything from `size` on.
    pub fn truncate(&mut self, size: u64) {
        self.zero(size, u64::MAX - size);
    }

    /// The allocated pieces in order: offset and contents.
    pub fn extents(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.chunks.iter().map(|(k, v)| (k * CHUNK as u64, &v[..]))
    }
}

/// Cuts a range at chunk borders: chunk index, position in the chunk, range in the caller's slice.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let pos = offset + done as u64;
            let at = (pos % CHUNK as u64) as usize;
            let n = (CHUNK - at).min(len - done);
            let piece = (pos / CHUNK as u64, at, done..done + n);
            done += n;
            piece
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_an_array_and_snapshots_stand_still() {
        let mut image = SparseImage::new();
        let mut plain = vec![0u8; 200_000];
        let mut x = 1u64;
        let mut rand = move |n: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        let mut kept = None;
        for step in 0..400 {
            let off = rand(190_000) as usize;
            let len = (rand(60_000) as usize).min(plain.len() - off);
            if rand(3) == 0 {
                image.zero(off as u64, len as u64);
                plain[off..off + len].fill(0);
            } else {
                let fill = vec![rand(255) as u8 + 1; len];
                image.write(off as u64, &fill);
                plain[off..off + len].copy_from_slice(&fill);
            }
            if step == 200 {
                kept = Some((image.clone(), plain.clone()));
                assert!(image.is_same(&image.clone()));
            }
        }
        assert!(!kept.as_ref().unwrap().0.is_same(&image));
        for (image, plain) in [(image, plain), kept.unwrap()] {
            let mut out = vec![1; plain.len()];
            image.read(0, &mut out);
            assert!(out == plain);
        }
    }
}
