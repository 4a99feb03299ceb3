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
//! A pool in an image, a file in its root file system, a snapshot of it, and the file as the snapshot has it:
//!
//! ```
//! use zilla::{Cred, Files, open_filesystem};
//! use zilla_core::spa::{CreateOpts, Host, Spa};
//! use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
//! use zilla_ondisk::enums::PoolState;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("tank.img");
//! std::fs::File::create(&path)?.set_len(256 << 20)?;
//! let leaves = vec![LeafSpec { path, disk: false }];
//! let top = TopSpec { kind: VdevKind::File, leaves, is_log: false, bias: None, ashift: None };
//! let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
//! let opts = CreateOpts {
//!     name: "tank".into(),
//!     host: Host { id: 1, name: "host".into() },
//!     comment: None,
//!     owner: (0, 0),
//!     features: None,
//!     dbuf_cache: 16 << 20,
//!     arc_max: 64 << 20,
//! };
//! let env = zilla_env::real_env(2);
//! let run = env.clone();
//! env.block_on(async move {
//!     let spa = Spa::create(&run, &spec, opts).await?;
//!
//!     let fs = open_filesystem(&run, &spa.dsl, "tank", false).await?;
//!     let files = Files::new(fs, Cred { uid: 0, gid: 0 });
//!     files.write("/greeting", "hello").await?;
//!
//!     let dsl = spa.dsl.clone();
//!     let names = vec!["tank@first".to_owned()];
//!     let snapshot = move |tx| -> futures_util::future::BoxFuture<'static, zilla::Result<()>> {
//!         Box::pin(async move { dsl.snapshot(&tx, &names).await.map(drop) })
//!     };
//!     spa.ctx.sync_task(snapshot).await?;
//!     files.write("/greeting", "goodbye").await?;
//!     assert_eq!(files.read("/greeting").await?, b"goodbye");
//!
//!     let snapshot = open_filesystem(&run, &spa.dsl, "tank@first", true).await?;
//!     let then = Files::new(snapshot, Cred { uid: 0, gid: 0 });
//!     assert_eq!(then.read("/greeting").await?, b"hello");
//!
//!     drop((files, then));
//!     spa.close(Some(PoolState::Exported)).await?;
//!     Ok(())
//! })
//! # }
//! ```

#![deny(missing_docs)]

mod ctldir;
mod dataset;
mod faults;
mod files;
mod filesystem;
mod snapshots;
mod volume;

pub use ctldir::{NoSnapshots, Snapdir, Snapshots};
pub use dataset::{fs_props, give_up_log, open_filesystem, open_zfs};
pub use faults::fault_counts;
pub use files::{File, Files};
pub use filesystem::{CONTROL_NAME, Entry, Filesystem, NodeId};
pub use volume::{Extent, Suspended, Volume, open_volume};
pub use zilla_core::dmu::{FaultCounts, Now, Stop};
pub use zilla_core::error::{Errno, Error, Result};
pub use zilla_core::zpl;
pub use zilla_core::zpl::{
    Attr, Cred, DirEntry, FsProps, NewFile, ReadData, RenameFlags, SETTABLE_FLAGS, SetAttr, SetTime, StatFs,
    Time, Whence, XattrMode, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_NODUMP, ZFS_PROJINHERIT, Zfs,
};
