//! What is written: every 4 KiB begins with so many per cent of random bytes, the rest is zero but
//! for a counter at its end, so that no block is all zero. At 50 per cent it compresses about 2:1
//! in any codec. The same bytes as `dmubench` makes of the same seed.

pub const SIZE: usize = 64 << 20;
const PAGE: usize = 4096;

/// Marsaglia's xorshift, as fast as what it is to stand beside.
pub fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// The buffer that requests take their bytes from.
pub fn pool(entropy: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; SIZE];
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    for (n, page) in out.chunks_exact_mut(PAGE).enumerate() {
        let random = (PAGE * entropy.min(100) / 100) & !7;
        for word in page[..random].chunks_exact_mut(8) {
            word.copy_from_slice(&next(&mut state).to_le_bytes());
        }
        page[PAGE - 8..].copy_from_slice(&(n as u64 + 1).to_le_bytes());
    }
    out
}
