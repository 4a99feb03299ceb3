//! What embedders and servers stand on: a dataset's files as one [`Filesystem`], with its snapshots below `.zfs/snapshot`.
//!
//! Two ways in: by node number, asynchronous, as FUSE and NFS ask ([`Filesystem`]'s own methods, each `try_` one of which answers at
//! once when all it takes is in memory); and by path, for programs that embed zilla ([`Files`]).

mod ctldir;
mod files;
mod filesystem;

pub use ctldir::{NoSnapshots, Snapshots};
pub use files::{File, Files};
pub use filesystem::{Entry, Filesystem, NodeId};
pub use zilla_core::dmu::{Now, Stop};
pub use zilla_core::error::{Errno, Error, Result};
pub use zilla_core::zpl;
pub use zilla_core::zpl::{
    Attr, Cred, DirEntry, FsProps, NewFile, ReadData, RenameFlags, SETTABLE_FLAGS, SetAttr, SetTime, StatFs,
    Time, Whence, XattrMode, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_NODUMP, ZFS_PROJINHERIT, Zfs,
};
