//! The dataset and snapshot layer: the tree of datasets of a pool, their properties, and who owes
//! what space to whom.
//!
//! **Floor 11.** It stands on the pool, its ZAPs and its logs.
//!
//! All of it lies in the MOS. A *dir* ([`DslDir`]) is a node of the tree that `zfs list` shows,
//! with children, properties and space accounting; a *dataset* ([`DslDataset`]) is one state of its
//! contents: the head, or a snapshot.
//!
//! ```text
//!   object directory -> root dir -> child dirs ...
//!                          |  \
//!                          |   props, clones
//!                        head -> snapshot -> snapshot ...   each with a deadlist and the root of an objset
//! ```
//!
//! **Blocks and snapshots.** A block that a head drops is free if it was born after the latest
//! snapshot; otherwise it goes to the head's *deadlist*, because that snapshot holds it. When a
//! snapshot is destroyed the blocks only it held are on its successor's deadlist, sorted by birth,
//! and are moved as whole lists to the pool's list of blocks to be freed.
//!
//! **Invariants.** Only the sync task changes anything here, with transactions of the syncing txg;
//! others look. A dir's `used` is the sum of its breakdown; a dataset's `unique` is what destroying
//! it would free; what `$MOS` and `$FREE` use is counted in dirs of theirs. Whatever is freed goes
//! through [`crate::spa::PoolCtx::free`], which the pool drains every pass.
//!
//! **Crash.** All changes of a txg are in the MOS that its uberblock points to, or none.
//!
//! **Lock order.** The tables of dirs and datasets, a dataset, a dir, the MOS's objects. No lock is
//! held while waiting.
//!
//! Pools of all versions are written, as they are ([`upgrade`]); but what a file uses is counted in
//! bytes also in versions 1 and 2, whose software took sectors for it.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

mod bookmark;
pub mod bpobj;
mod bptree;
mod create;
mod dataset;
pub mod deadlist;
mod deleg;
mod destroy;
mod dir;
mod errata;
mod events;
mod hold;
mod keystore;
mod limits;
mod list;
mod livelist;
mod log;
mod name;
mod pool;
mod prefetch;
mod promote;
mod props;
mod rawkey;
mod rawroots;
mod recv;
mod redact;
mod rekey;
mod remap;
mod rename;
mod resume;
mod rollback;
mod snapshot;
mod space;
mod sync;
pub(crate) mod traverse;
mod upgrade;
mod userspace;

pub use crate::error::DatasetRefusal as Refusal;
pub use bookmark::DslBookmark;
pub use bpobj::{Bpobj, Space};
pub use bptree::Waiting;
pub use dataset::{DslDataset, LongHold, Writer};
pub use deleg::{Grantee, Grants, Who};
pub use dir::DslDir;
pub use errata::old_key;
pub use keystore::KeyShape;
pub use limits::{Limit, NO_LIMIT};
pub use list::{Child, DatasetInfo, Encryption};
pub use pool::{DslPool, PoolSpace};
pub use props::{
    PropSource, PropValue, Setting, are_codecs, checksum_feature, compress_feature, size_features,
};
pub use rawkey::RawKey;
pub use rawroots::RawMember;
pub use recv::{RECV_NAME, RecvOpts, RecvTarget};
pub use redact::{RedactedRun, RedactionList, runs_of, same_snaps};
pub use rekey::{Crypting, NewCrypt, NewSuite, Rekey};
pub use resume::{Reached, ResumeState};
pub use space::SpaceCheck;
pub use userspace::{Quota, UserSpace};

#[cfg(test)]
mod tests;
mod unfinished;

use crate::dmu::Objset;
use crate::error::{Errno, Error};
use crate::zio::BlockStore;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::enums::SPA_VERSION_USERSPACE;
use zilla_ondisk::objset::ObjsetSize;

/// Somebody uses the dataset.
fn busy(name: &str) -> Error {
    Error::os(Errno::Busy, format!("{name}: dataset is busy"))
}

/// Gives a new objset the size that it has in pools of a version.
pub(crate) fn size_for(os: &Objset, version: u64) {
    if version < SPA_VERSION_USERSPACE {
        os.with_phys(|p| p.size = ObjsetSize::V1);
    }
}

/// What a block counts in a list, a dataset or a dir. Metadata is counted as it lies on disk.
pub(crate) fn bp_space(store: &dyn BlockStore, bp: &BlkPtr) -> Space {
    let uncomp = if bp.is_metadata() { bp.psize() } else { bp.lsize() };
    Space { used: store.dsize(bp), comp: bp.psize(), uncomp }
}
