//! lzjb: the first compressor of ZFS, a byte-oriented Lempel-Ziv with a 1 KiB window.
//!
//! A map byte announces the next eight items, lowest bit first. A clear bit is one literal byte. A
//! set bit is a match of two bytes: six bits of length less 3 and ten bits of distance, big-endian.
//! Nothing marks the end: the decoder stops when the output is full.

use std::cell::RefCell;

use super::{Compress, DecompressError};

const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 66;
const WINDOW: usize = 1024;
/// One map byte and eight matches of two bytes.
const GROUP: usize = 17;
const SLOTS: usize = 1024;

thread_local! {
    /// Where each hash was seen last, modulo 2^16; older blocks' entries only cost a comparison.
    static SEEN: RefCell<[u16; SLOTS]> = const { RefCell::new([0; SLOTS]) };
}

pub(super) fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    SEEN.with_borrow_mut(|seen| {
        // The same block must give the same bytes whatever came before it.
        seen.fill(0);
        compress_with(seen, src, dst)
    })
}

fn compress_with(seen: &mut [u16; SLOTS], src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (mut from, mut to) = (0, 0);
    while from < src.len() {
        // A whole group must fit before it is begun, so nothing inside needs to ask.
        // As OpenZFS, one byte more is asked for than that.
        let group = dst.get_mut(to..).filter(|room| room.len() > GROUP)?;
        let (map, mut items) = group.split_first_mut()?;
        *map = 0;
        let mut used = 1;
        for bit in 0..8 {
            let Some(byte) = src.get(from) else { break };
            match find(seen, src, from) {
                Some((distance, length)) => {
                    *map |= 1 << bit;
                    let code = ((length - MATCH_MIN) << 10 | distance) as u16;
                    items.split_off_mut(..2)?.copy_from_slice(&code.to_be_bytes());
                    from += length;
                    used += 2;
                }
                None => {
                    *items.split_off_first_mut()? = *byte;
                    from += 1;
                    used += 1;
                }
            }
        }
        to += used;
    }
    Some(to)
}

/// A match for the bytes at `from`, as distance and length, and notes the place.
#[inline]
fn find(seen: &mut [u16; SLOTS], src: &[u8], from: usize) -> Option<(usize, usize)> {
    // Too near the end for the longest match: the tail goes out as literals.
    let ahead = src.get(from..from + MATCH_MAX)?;
    let [a, b, c] = *ahead.first_chunk::<3>()?;
    let mut hash = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
    hash += hash >> 9;
    hash += hash >> 5;
    let slot = seen.get_mut(hash % SLOTS)?;
    let distance = from.wrapping_sub(usize::from(*slot)) % WINDOW;
    *slot = from as u16;
    let back = src.get(from.checked_sub(distance)?..)?;
    if distance == 0 || back.first_chunk() != Some(&[a, b, c]) {
        return None;
    }
    let length = ahead.iter().zip(back).take_while(|(x, y)| x == y).count();
    Some((distance, length))
}

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    let corrupt = DecompressError::Corrupt(Compress::Lzjb);
    let mut src = src;
    let mut to = 0;
    while to < dst.len() {
        let map = *src.split_off_first().ok_or(corrupt)?;
        for bit in 0..8 {
            if to == dst.len() {
                break;
            }
            if map & 1 << bit == 0 {
                let byte = *src.split_off_first().ok_or(corrupt)?;
                *dst.get_mut(to).ok_or(corrupt)? = byte;
                to += 1;
                continue;
            }
            let code = u16::from_be_bytes(*src.first_chunk().ok_or(corrupt)?);
            src = src.get(2..).ok_or(corrupt)?;
            let distance = usize::from(code) % WINDOW;
            let length = (usize::from(code >> 10) + MATCH_MIN).min(dst.len() - to);
            if distance == 0 || distance > to {
                return Err(corrupt);
            }
            copy_match(dst, to, distance, length).ok_or(corrupt)?;
            to += length;
        }
    }
    Ok(())
}

/// Copies `length` bytes from `distance` back; the source may run into the copy and then repeats.
#[inline]
fn copy_match(dst: &mut [u8], to: usize, distance: usize, length: usize) -> Option<()> {
    let from = to.checked_sub(distance)?;
    let mut done = 0;
    while done < length {
        // What is copied already can be copied from, too: the stretch doubles.
        let step = (distance + done).min(length - done);
        dst.get(from..to + done + step)?;
        dst.copy_within(from..from + step, to + done);
        done += step;
    }
    Some(())
}
