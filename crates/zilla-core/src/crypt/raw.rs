//! Blocks as they were encrypted elsewhere, with what their pointers say of that: what a raw stream
//! is received as, and what a batch of such blocks is written with ([`super::Seal::Raw`]).
//! `zio/raw.rs` is the store that keeps them until they are written.

use crate::types::Bookmark;
use bytes::Bytes;
use std::collections::HashMap;
use zilla_codec::compress::Compress;
use zilla_codec::crypt::{IV_LEN, MAC_LEN, SALT_LEN};

/// What a pointer says of how its block is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sealing {
    pub salt: [u8; SALT_LEN],
    pub iv: [u8; IV_LEN],
    pub mac: [u8; MAC_LEN],
}

/// A block as its sender has it on disk.
#[derive(Clone, Debug)]
pub struct RawBlock {
    pub data: Bytes,
    pub compress: Compress,
    pub sealing: Sealing,
}

/// What a batch of blocks is written with.
#[derive(Debug, Default)]
pub struct RawBatch {
    blocks: HashMap<(u64, u64), RawBlock>,
    dnodes: HashMap<u64, Sealing>,
}

impl RawBatch {
    pub(crate) fn add(&mut self, at: &Bookmark, block: RawBlock) {
        self.blocks.insert((at.object, at.blkid), block);
    }

    pub(crate) fn add_dnodes(&mut self, blkid: u64, sealing: Sealing) {
        self.dnodes.insert(blkid, sealing);
    }

    pub(crate) fn block(&self, at: &Bookmark) -> Option<&RawBlock> {
        self.blocks.get(&(at.object, at.blkid))
    }

    pub(crate) fn dnodes(&self, blkid: u64) -> Option<Sealing> {
        self.dnodes.get(&blkid).copied()
    }
}
