//! Which bytes of a block are encrypted, and which are only authenticated.
//!
//! Most blocks are encrypted whole. Two kinds are so in part, because trees are walked, freed,
//! scrubbed and claimed without the key: in a block of dnodes the bonuses of encrypted types
//! ([`dnode_block`]), in a block of the intent log the records' bodies but for their pointers
//! ([`log_block`]). What stays in the clear there is the cipher's additional data. An objset is not
//! encrypted; it carries two codes of its own ([`objset_parts`]). An indirect block has a checksum
//! of the codes below it, which needs no key ([`bp_auth`] over each pointer).
//!
//! What goes into a code is what a raw send can carry from pool to pool: so a pointer counts with
//! its code and the portable part of its properties ([`bp_auth`]), a dnode without the space it
//! takes. Keys of version 0, which some early pools have, took other parts; they are only read.
//!
//! What is kept true: the ranges of a [`Parts`] lie inside the block, ascend, and do not overlap; a
//! block that says otherwise is refused by name.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

mod blocks;
mod objset;

#[cfg(test)]
mod tests;

pub use blocks::{dnode_block, indirect_auth, log_block};
pub use objset::{ObjsetParts, objset_parts, put_objset_macs};

use crate::SPA_MINBLOCKSIZE;
use crate::blkptr::BlkPtr;
use crate::order::ByteOrder;
use std::ops::Range;

/// The version of keys that are made now. Source: ZIO_CRYPT_KEY_CURRENT_VERSION in sys/zio_crypt.h.
pub const KEY_VERSION: u64 = 1;

/// A block that is encrypted in part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// What is authenticated but not encrypted.
    pub aad: Vec<u8>,
    /// Where the encrypted bytes are. Together, in this order, they are one message.
    pub secret: Vec<Range<usize>>,
}

impl Parts {
    /// The encrypted bytes as one message.
    pub fn gather(&self, block: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.secret.iter().map(Range::len).sum());
        for r in &self.secret {
            out.extend_from_slice(block.get(r.clone()).unwrap_or_default());
        }
        out
    }

    /// Puts the message back in its places.
    pub fn scatter(&self, message: &[u8], block: &mut [u8]) {
        let mut rest = message;
        for r in &self.secret {
            let (part, after) = rest.split_at_checked(r.len()).unwrap_or((rest, &[]));
            if let Some(place) = block.get_mut(r.start..r.start + part.len()) {
                place.copy_from_slice(part);
            }
            rest = after;
        }
    }
}

/// What a code covers of a block pointer: 32 bytes, 24 for keys of version 0.
pub fn bp_auth(bp: &BlkPtr, version: u64, out: &mut Vec<u8>) {
    let mac = bp.mac();
    let mut portable = *bp;
    if version == 0 {
        portable.set_dedup(false);
        portable.set_checksum_kind(0);
        portable.set_psize(SPA_MINBLOCKSIZE);
    } else if bp.is_hole() {
        // The feature hole_birth gives a hole properties, which a raw stream does not carry.
        portable = BlkPtr::ZERO;
    } else {
        if bp.level() != 0 {
            // How an indirect block is stored is the receiving pool's business.
            portable.set_byteorder(ByteOrder::Big);
            portable.set_compress(0);
            portable.set_psize(SPA_MINBLOCKSIZE);
        }
        portable.set_dedup(false);
        portable.set_checksum_kind(0);
    }
    out.extend_from_slice(&portable.prop_word().to_le_bytes());
    out.extend_from_slice(&mac);
    if version != 0 {
        out.extend_from_slice(&[0; 8]);
    }
}

/// What the code of a wrapped key covers beside the key.
pub fn key_aad(guid: u64, suite: u64, version: u64) -> Vec<u8> {
    let mut out = guid.to_le_bytes().to_vec();
    if version != 0 {
        out.extend_from_slice(&suite.to_le_bytes());
        out.extend_from_slice(&version.to_le_bytes());
    }
    out
}
