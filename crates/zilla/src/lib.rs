//! What embedders and servers stand on.
//!
//! The engine's crate knows objects and transactions; the servers know protocols. In between stands
//! this: a dataset's files as one [`Filesystem`], with its snapshots below `.zfs/snapshot`, its
//! properties and its share of the pool's space. Two ways in: by node number, asynchronous, as FUSE
//! and NFS ask (each `try_` method answers at once when all it takes is in memory); and by path,
//! for programs that embed zilla ([`Files`]). A volume's bytes are a [`Volume`].
//!
//! **Invariants.** A file system that is open holds its dataset, so that it cannot be destroyed
//! under its users. A file an [`Entry`] or a leaked use of one refers to is not freed. Node numbers
//! never change their meaning while the file system is open.
//!
//! **Where to begin.** [`Pool`] makes, finds and imports pools; [`Dataset`] and [`Snapshot`] are
//! what is in them; each has an example. [`blocking`] is the same for programs without async code.
//! What a server does beside that is on [`Pool`] too, and on what [`tree`] finds in it: [`changes`]
//! to datasets, their [`stored`] properties, [`holds`], [`bookmarks`], [`keys`], [`accounts`],
//! [`access`], [`streams`]; [`open`]ing and [`manage`]ing pools, their [`devices`] and their
//! [`status`].

#![deny(missing_docs)]

pub mod access;
pub mod accounts;
pub mod blocking;
pub mod bookmarks;
pub mod changes;
mod ctldir;
mod dataset;
mod datasets;
pub mod devices;
#[cfg(feature = "engine")]
pub mod engine;
pub mod error;
pub mod events;
pub mod features;
mod files;
mod filesystem;
pub mod foreign;
pub mod holds;
mod host;
mod in_use;
pub mod inject;
pub mod keys;
mod make;
pub mod manage;
mod new_pool;
pub mod open;
mod opened;
mod plan;
mod pool;
mod props;
pub mod scrub;
mod snapshots;
pub mod stats;
pub mod status;
pub mod stored;
pub mod streams;
pub mod trace;
pub mod tree;
pub mod tunables;
mod upgrade;
mod volume;
pub mod zpl;

pub use ctldir::{NoSnapshots, Snapdir, Snapshots};
pub use datasets::{Dataset, DatasetKind, Snapshot};
pub use error::{Errno, Error, Result};
pub use files::{File, Files};
pub use filesystem::{Asker, CONTROL_NAME, Entry, Filesystem, NodeId};
pub use host::{HOSTID_MASK, hostid, made_up_hostid};
pub use make::{FIXED, Maker, Settings, VolumeShape, auto, number, volume_size_check};
pub use new_pool::{NewPool, NewVdev};
pub use open::FoundPool;
pub use pool::{Import, Pool, ScrubResult};
pub use props::{Property, Source, settings};
pub use stats::FaultCounts;
pub use tree::DatasetInfo;
pub use volume::{Extent, Suspended, Volume};
pub use zilla_core::dmu::{Now, Stop};
pub use zilla_core::zpl::{
    Attr, Cred, DirEntry, FsProps, NewFile, ReadData, RenameFlags, SETTABLE_FLAGS, SetAttr, SetTime, StatFs,
    Time, Whence, XattrMode, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_NODUMP, ZFS_PROJINHERIT, Zfs,
};
pub use zilla_ondisk::zap::ZapValue as Value;
