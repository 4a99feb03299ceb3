//! BLAKE3, keyed with the pool's salt.
//!
//! The crate's one-call form is used, not its incremental hasher: it hashes from the slice with no
//! state to copy, and picks its own SIMD.

pub(super) fn keyed(key: &[u8; 32], data: &[u8]) -> [u8; 32] {
    *::blake3::keyed_hash(key, data).as_bytes()
}
