//! `.zfs/snapshot`: the directory that is not there, and the snapshots in it.
//!
//! A file's node number is its object number; in a snapshot, the upper 16 bits say in which. The
//! control directory's own nodes have all 16 set. The numbers of snapshots are given out as they
//! are looked into ([`crate::opened`]).

use crate::filesystem::NodeId;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use zilla_core::dsl::Who;
use zilla_core::error::{Errno, Error, Result};
use zilla_core::zpl::{Attr, S_IFDIR, Time, Zfs};

const SHIFT: u32 = 48;
const OBJECT: u64 = (1 << SHIFT) - 1;
pub(crate) const CONTROL: u64 = 0xffff;
/// `.zfs`
pub(crate) const CTL_ROOT: NodeId = CONTROL << SHIFT | 1;
/// `.zfs/snapshot`
pub(crate) const CTL_SNAPSHOT: NodeId = CONTROL << SHIFT | 2;

// What `stat` calls the control directory's parts, as in OpenZFS: numbers at the end of those an
// object can have.
pub(crate) const INO_ROOT: u64 = OBJECT;
pub(crate) const INO_SNAPSHOT: u64 = OBJECT - 2;
const INO_SNAPSHOTS: u64 = OBJECT - 3;

/// The number of a snapshot's root directory, which stands in for the directory it is found in.
pub(crate) fn snapshot_ino(objset: u64) -> u64 {
    INO_SNAPSHOTS.saturating_sub(objset)
}

/// What `stat` calls a file of a snapshot: it has the device number of the live files, and is to be
/// taken for none of those.
pub(crate) fn file_ino(objset: u64, object: u64) -> u64 {
    1 << 63 | (objset & 0x7fff) << SHIFT | object & OBJECT
}

/// The number that a file is shown by, of the file system itself (0) or of a snapshot that is
/// looked into.
pub(crate) fn shown_ino(zfs: &Zfs, snapshot: u64, object: u64) -> u64 {
    let objset = zfs.objset().id();
    match snapshot {
        0 => object,
        _ if object == zfs.root() => snapshot_ino(objset),
        _ => file_ino(objset, object),
    }
}

/// Attributes as they are shown.
pub(crate) fn shown(zfs: &Zfs, snapshot: u64, attr: Attr) -> Attr {
    Attr { ino: shown_ino(zfs, snapshot, attr.ino), ..attr }
}

pub(crate) fn ino(node: NodeId) -> u64 {
    if node == CTL_ROOT { INO_ROOT } else { INO_SNAPSHOT }
}

/// Where a file system finds its snapshots.
pub trait Snapshots: Send + Sync {
    /// Their names, and the numbers of their objsets.
    fn list(&self) -> BoxFuture<'_, Result<Vec<(String, u64)>>>;
    /// When the directory of them was made, and when it last changed; None: it is as old as the
    /// question.
    fn times(&self) -> Option<(Time, Time)> {
        None
    }
    /// Opens one read-only; with its guid, and its name as it is spelled.
    fn open(&self, name: &str) -> BoxFuture<'_, Result<(u64, String, Arc<Zfs>)>>;
    /// The name of the one with this guid.
    fn named(&self, guid: u64) -> BoxFuture<'_, Result<String>>;
    /// Takes one, if this user may.
    fn create<'a>(&'a self, _: &str, _: &'a Who) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { fixed() })
    }
    /// Refuses who may not destroy one.
    fn judge_destroy<'a>(&'a self, _: &str, _: &'a Who) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { fixed() })
    }
    /// Destroys one.
    fn destroy(&self, _: &str) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { fixed() })
    }
    /// Gives one another name, if this user may.
    fn rename<'a>(&'a self, _: &str, _: &str, _: &'a Who) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { fixed() })
    }
}

fn fixed() -> Result<()> {
    Err(Error::os(Errno::ROFs, "there are no snapshots to be changed"))
}

/// What of `.zfs` a file system shows: the property `snapdir`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Snapdir {
    /// It can be entered, and is not listed.
    #[default]
    Hidden,
    /// It is listed in the root.
    Visible,
    /// There is none.
    Disabled,
}

impl Snapdir {
    /// By the property's number.
    pub fn of(property: u64) -> Snapdir {
        match property {
            1 => Snapdir::Visible,
            2 => Snapdir::Disabled,
            _ => Snapdir::Hidden,
        }
    }
}

/// A file system that has none: a snapshot itself.
pub struct NoSnapshots;

impl Snapshots for NoSnapshots {
    fn list(&self) -> BoxFuture<'_, Result<Vec<(String, u64)>>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    fn open(&self, _: &str) -> BoxFuture<'_, Result<(u64, String, Arc<Zfs>)>> {
        Box::pin(async { Err(Error::no_ent("no such snapshot")) })
    }
    fn named(&self, _: u64) -> BoxFuture<'_, Result<String>> {
        Box::pin(async { Err(Error::no_ent("no such snapshot")) })
    }
}

pub(crate) fn is_control(node: NodeId) -> bool {
    node >> SHIFT == CONTROL
}

/// Snapshot number and object number.
pub(crate) fn split(node: NodeId) -> (u64, u64) {
    (node >> SHIFT, node & OBJECT)
}

pub(crate) fn join(snapshot: u64, object: u64) -> NodeId {
    snapshot << SHIFT | object & OBJECT
}

/// Times of the control directory, as OpenZFS tells them: programs that follow what snapshots there
/// are look at it again when `changed` does.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub now: Time,
    pub made: Time,
    pub changed: Time,
}

/// The control directory's attributes: everyone may look, and where there is a `manager` everyone
/// may try to change what snapshots there are, for the mode does not know who was given what.
pub(crate) fn attr(node: NodeId, entries: u64, times: Times, manager: Option<u32>) -> Attr {
    let manager = manager.filter(|_| node == CTL_SNAPSHOT);
    Attr {
        ino: ino(node),
        generation: 0,
        mode: S_IFDIR | if manager.is_some() { 0o777 } else { 0o555 },
        nlink: 2,
        uid: manager.unwrap_or(0),
        gid: 0,
        rdev: 0,
        projid: 0,
        size: entries,
        blocks: 0,
        blksize: 512,
        atime: times.now,
        mtime: times.changed,
        ctime: times.changed,
        crtime: times.made,
        flags: 0,
        settled: false,
    }
}
