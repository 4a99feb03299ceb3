//! zle: runs of zeroes are counted, everything else is copied.
//!
//! A control byte below 64 says that so many bytes and one more follow as they are; one of 64 or
//! above stands for the difference plus one zeroes, at most 192. A literal run ends before two
//! zeroes in a row: a single zero is cheaper copied than counted.

use super::{Compress, DecompressError};

/// Longest literal run, and first control byte that counts zeroes (the format's parameter n).
const LITERALS: usize = 64;
const ZEROES: usize = 256 - LITERALS;

pub(super) fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (mut rest, mut at) = (src, 0);
    while let Some(first) = rest.first() {
        // As OpenZFS: the last byte of the destination is not worth starting on, and a literal run
        // is begun only where the longest one would fit. Both ends then give up on the same blocks.
        let room = dst.get_mut(at..)?;
        let (control, room) = room.split_first_mut()?;
        if room.is_empty() {
            return None;
        }
        let run;
        if *first == 0 {
            run = rest.iter().take(ZEROES).take_while(|byte| **byte == 0).count();
            *control = u8::try_from(run - 1 + LITERALS).ok()?;
            at += 1;
        } else {
            run = literals(rest);
            if room.len() < LITERALS {
                return None;
            }
            room.get_mut(..run)?.copy_from_slice(rest.get(..run)?);
            *control = u8::try_from(run - 1).ok()?;
            at += 1 + run;
        }
        rest = rest.get(run..)?;
    }
    Some(at)
}

/// How many bytes to copy from the front of `rest`, whose first byte is not zero.
fn literals(rest: &[u8]) -> usize {
    let window = rest.get(..LITERALS.min(rest.len())).unwrap_or(rest);
    match window.windows(2).position(|pair| pair == [0, 0]) {
        Some(run) => run,
        // A zero at the end of the window may begin a run of zeroes: leave it for the next control
        // byte.
        None if window.last() == Some(&0) => window.len() - 1,
        None => window.len(),
    }
}

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    let corrupt = DecompressError::Corrupt(Compress::Zle);
    let expected = dst.len();
    let (mut src, mut dst) = (src, dst);
    while !dst.is_empty() {
        let produced = expected - dst.len();
        let short = DecompressError::WrongSize { kind: Compress::Zle, produced, expected };
        let (control, rest) = src.split_first().ok_or(short)?;
        let control = usize::from(*control);
        src = if control < LITERALS {
            let (run, rest) = rest.split_at_checked(control + 1).ok_or(corrupt)?;
            dst.split_off_mut(..run.len()).ok_or(corrupt)?.copy_from_slice(run);
            rest
        } else {
            dst.split_off_mut(..control + 1 - LITERALS).ok_or(corrupt)?.fill(0);
            rest
        };
    }
    Ok(())
}
