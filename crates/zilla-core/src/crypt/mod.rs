//! Keys of encrypted datasets, and what they do to a block.
//!
//! **Floor 4.** Keys and blocks of bytes; the stores that use them are in `zio/keyed.rs` and
//! `zio/raw.rs`.
//!
//! A [`DataKey`] is what a dataset's blocks are encrypted and authenticated with. It comes from the
//! dataset's key object, in which it is wrapped under a [`WrappingKey`] of the user's
//! (`dsl/crypt`). A [`KeyedStore`](crate::zio::KeyedStore) is the pool's block store as the owner
//! of a key sees it: plaintext in, plaintext out. Nothing above it knows that a dataset is
//! encrypted; nothing below it sees a key but the writer of blocks, which encrypts between
//! compression and checksum.
//!
//! What is kept true:
//! - Plaintext is in the dbufs of an open dataset only. The ARC, blocks on their way to disk and
//!   log blocks are as on disk.
//! - A key and an IV are used once: the IV is random for each block, also for one that is written
//!   again in its place; and a key (that is, a salt) is used for at most 400 million blocks. Where
//!   blocks are deduplicated both come from a code of the contents (OpenZFS's way): whoever sees
//!   the disk sees which blocks are the same, and no more.
//! - What is read was authenticated: by its own code, or by the chain of codes that ends in the
//!   objset's.
//! - Without the key a dataset's tree can be walked, freed and scrubbed, and its objset's head (the
//!   log's header) written again with the codes it had: see
//!   [`SealedStore`](crate::zio::SealedStore). A raw stream is received without it too: see
//!   [`RawStore`](crate::zio::RawStore).
//!
//! A crash concerns none of this: keys are in memory only, and key objects change in a txg of their
//! own.

mod block;
mod key;
mod raw;

pub use block::{SealedBlock, indirect_mac};
pub use key::{DataKey, Hashing, KeyFormat, PhysKey, WrappingKey};
pub use raw::{RawBatch, RawBlock, Sealing};
pub use zilla_codec::crypt::Suite;

use std::sync::Arc;

/// How a batch of blocks is written.
#[derive(Clone, Debug)]
pub enum Seal {
    /// With this key.
    Key(Arc<DataKey>),
    /// The head of an objset, with the codes that it has.
    Kept,
    /// As they were encrypted elsewhere.
    Raw(Arc<RawBatch>),
}
