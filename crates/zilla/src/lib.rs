//! What embedders and servers stand on.
//!
//! The engine's crate knows objects and transactions; the servers know protocols. In between stands this: a dataset's files as one
//! [`Filesystem`], with its snapshots below `.zfs/snapshot`, its properties and its share of the pool's space. Two ways in: by node
//! number, asynchronous, as FUSE and NFS ask (each `try_` method answers at once when all it takes is in memory); and by path, for
//! programs that embed zilla ([`Files`]). A volume's bytes are a [`Volume`].
//!
//! **Invariants.** A file system that is open holds its dataset, so that it cannot be destroyed under its users. A file an [`Entry`]
//! or a leaked use of one refers to is not freed. Node numbers never change their meaning while the file system is open.
//!
//! **Where to begin.** [`Pool`] makes, finds and imports pools; [`Dataset`] and [`Snapshot`] are what is in them; each has an
//! example. [`blocking`] is the same for programs without async code. Who knows the engine may use
//! it beside all this ([`Pool::engine`]).

#![deny(missing_docs)]

pub mod access;
pub mod blocking;
mod ctldir;
mod dataset;
mod datasets;
pub mod error;
pub mod events;
mod faults;
pub mod features;
mod files;
mod filesystem;
pub mod foreign;
mod host;
mod in_use;
pub mod inject;
mod make;
mod new_pool;
mod pool;
mod props;
mod snapshots;
pub mod tunables;
mod upgrade;
mod volume;
pub mod zpl;

pub use ctldir::{NoSnapshots, Snapdir, Snapshots};
pub use dataset::{fs_props, give_up_log, open_filesystem, open_zfs};
pub use datasets::{Dataset, DatasetKind, Snapshot};
pub use error::{Errno, Error, Result};
pub use faults::fault_counts;
pub use files::{File, Files};
pub use filesystem::{CONTROL_NAME, Entry, Filesystem, NodeId};
pub use host::{HOSTID_MASK, hostid, made_up_hostid};
pub use make::{
    FIXED, Maker, Settings, VolumeShape, auto, make_filesystem, make_volume, number, volume_reservation,
};
pub use new_pool::{NewPool, NewVdev};
pub use pool::{Import, Pool, ScrubResult};
pub use props::{Property, Source, settings};
pub use upgrade::upgrade_filesystem;
pub use volume::{Extent, Suspended, Volume, open_volume};
pub use zilla_core::dmu::{FaultCounts, Now, Stop};
pub use zilla_core::dsl::DatasetInfo;
pub use zilla_core::spa::FoundPool;
pub use zilla_core::zpl::{
    Attr, Cred, DirEntry, FsProps, NewFile, ReadData, RenameFlags, SETTABLE_FLAGS, SetAttr, SetTime, StatFs,
    Time, Whence, XattrMode, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_NODUMP, ZFS_PROJINHERIT, Zfs,
};
pub use zilla_ondisk::zap::ZapValue as Value;
