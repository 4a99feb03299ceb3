//! Copying what is not looked at again soon.
//!
//! A block that a client writes is copied once and then lies in memory until its transaction group
//! is synced, while hundreds of megabytes of others go by: whoever needs it next finds it in no
//! cache. An ordinary copy reads every line it is about to overwrite, and drives what is useful out
//! of the caches; stores past the cache do neither, which is a third of the copy's memory traffic.

/// Below this the caches have room for it, and may be where it is wanted.
const LARGE: usize = 64 << 10;

/// `dst.copy_from_slice(src)`, past the cache if it is large. `dst` begins on a multiple of 64
/// bytes.
pub(crate) fn copy_away(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len());
    let done = if src.len() >= LARGE { stream(dst, src) } else { 0 };
    dst[done..].copy_from_slice(&src[done..]);
}

/// Copies as many whole lines as there are; how many bytes that is.
#[cfg(target_arch = "x86_64")]
fn stream(dst: &mut [u8], src: &[u8]) -> usize {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    if !(dst.as_ptr() as usize).is_multiple_of(64) {
        return 0;
    }
    let lines = dst.as_chunks_mut::<64>().0.iter_mut().zip(src.as_chunks::<64>().0);
    let mut done = 0;
    for (to, from) in lines {
        let (to, from) = (to.as_mut_ptr().cast::<__m128i>(), from.as_ptr().cast::<__m128i>());
        // SAFETY: both are 64 bytes, four vectors; the loads ask for no alignment, and `to` has
        // what the stores ask for, because the first line has. Streaming stores are part of every
        // x86-64.
        unsafe {
            let line = [
                _mm_loadu_si128(from),
                _mm_loadu_si128(from.add(1)),
                _mm_loadu_si128(from.add(2)),
                _mm_loadu_si128(from.add(3)),
            ];
            _mm_stream_si128(to, line[0]);
            _mm_stream_si128(to.add(1), line[1]);
            _mm_stream_si128(to.add(2), line[2]);
            _mm_stream_si128(to.add(3), line[3]);
        }
        done += 64;
    }
    // Streaming stores may become visible late: whoever is handed the buffer on another core must
    // find them. SAFETY: a part of every x86-64.
    unsafe { _mm_sfence() };
    done
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(_: &mut [u8], _: &[u8]) -> usize {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_byte_whatever_the_length_and_alignment() {
        let src: Vec<u8> = (0..LARGE * 2 + 99).map(|i| (i * 7 + i / 256) as u8).collect();
        for (len, shift) in [(0, 0), (100, 1), (LARGE, 0), (LARGE + 63, 5), (LARGE * 2 + 17, 33)] {
            let mut buf = crate::IoBuf::zeroed(len + 64);
            for at in [0, 1] {
                copy_away(&mut buf[at..at + len], &src[shift..shift + len]);
                assert_eq!(buf[at..at + len], src[shift..shift + len], "{len} bytes from {shift} to {at}");
            }
        }
    }
}
