//! What changed between two states of a file system.
//!
//! A file that changed has had its dnode written, so only blocks of dnodes that were born after the
//! earlier state are looked into, and those of the earlier state that are holes in the later one.
//! Of each object in them both states are asked; which changes are told, and as what, is as
//! `zfs diff` tells it: a number that was given to another file since is one removed and one added.
//!
//! The later state may be the live file system. Each file is then seen as it is at that moment, and
//! what is not on disk yet is not told.

use super::fs::Zfs;
use super::types::{S_IFMT, Time};
use crate::dmu::resident;
use crate::error::{Errno, Error, Result};
use crate::types::ObjectId;
use std::sync::Arc;
use zilla_ondisk::dnode::DNODES_PER_BLOCK;
use zilla_ondisk::object_type::{DMU_OT_SA, DMU_OT_ZNODE};

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Added,
    Removed,
    Modified,
    /// It has this path now.
    Renamed(Vec<u8>),
    /// So many names more, or fewer.
    Links(i64),
}

/// One line of what is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub change: Change,
    /// From the root on, which is `/`.
    pub path: Vec<u8>,
    pub mode: u32,
    pub ctime: Time,
}

/// Of a file that has no name any more, but is still open, or not freed yet.
const ON_DELETE_QUEUE: &[u8] = b"(on_delete_queue)";

#[derive(Clone)]
struct FileState {
    path: Vec<u8>,
    mode: u32,
    links: u32,
    generation: u64,
    ctime: Time,
}

impl FileState {
    fn tell(&self, change: Change) -> Difference {
        Difference { change, path: self.path.clone(), mode: self.mode, ctime: self.ctime }
    }
}

impl Zfs {
    /// An object as a file; None if it is none.
    async fn file_state(self: &Arc<Self>, id: u64) -> Result<Option<FileState>> {
        let dn = match self.objset.hold_wait(ObjectId(id)).await {
            Ok(dn) => dn,
            Err(e) if e.is(Errno::NoEnt) => return Ok(None),
            Err(e) => return Err(e),
        };
        if !matches!(dn.bonus_type(), DMU_OT_SA | DMU_OT_ZNODE) {
            return Ok(None);
        }
        let a = match self.getattr(id).await {
            Ok(a) => a,
            Err(e) if e.is(Errno::NoEnt) || e.is(Errno::Stale) => return Ok(None),
            Err(e) => return Err(e),
        };
        let path = match a.nlink {
            0 => ON_DELETE_QUEUE.to_vec(),
            _ => self.path_bytes(id).await?,
        };
        let (mode, links, generation, ctime) = (a.mode, a.nlink, a.generation, a.ctime);
        Ok(Some(FileState { path, mode, links, generation, ctime }))
    }

    /// The next block of dnodes from `blkid` on that there is here.
    async fn dnode_block_from(&self, blkid: u64) -> Result<Option<u64>> {
        resident(|| self.objset.next_dnode_block(blkid)).await
    }
}

/// What changed since an earlier state, as of txg `since`, of the objects in the blocks of dnodes
/// from `at` on. Ends after so many blocks that something is told, and says where to go on.
#[crate::boxed]
pub async fn differences(
    from: &Arc<Zfs>,
    since: u64,
    to: &Arc<Zfs>,
    at: u64,
    most: usize,
) -> Result<(Vec<Difference>, Option<u64>)> {
    let shares = to.number("SHARES").await?;
    let mut out = Vec::new();
    let mut at = at;
    loop {
        let (a, b) = (from.dnode_block_from(at).await?, to.dnode_block_from(at).await?);
        let Some(blkid) = a.into_iter().chain(b).min() else { return Ok((out, None)) };
        let born = match b == Some(blkid) {
            true => resident(|| to.objset.dnode_block_birth(blkid)).await?,
            false => None,
        };
        if born.is_none_or(|birth| birth > since) {
            for id in blkid * DNODES_PER_BLOCK..(blkid + 1) * DNODES_PER_BLOCK {
                if id == 0 || Some(id) == shares {
                    continue;
                }
                let told = |e: Error| in_object(id, e);
                let old = from.file_state(id).await.map_err(told)?;
                let new = to.file_state(id).await.map_err(told)?;
                compare(old, new, &mut out);
            }
        }
        at = blkid + 1;
        if out.len() >= most {
            return Ok((out, Some(at)));
        }
    }
}

fn in_object(id: u64, e: Error) -> Error {
    match e {
        Error::Os { errno, what } => {
            Error::os(errno, format!("unable to determine path or stats for object {id}: {what}"))
        }
        other => other,
    }
}

fn compare(old: Option<FileState>, new: Option<FileState>, out: &mut Vec<Difference>) {
    let (old, new) = match (old, new) {
        (None, None) => return,
        // One that has never had a name is nobody's.
        (None, Some(new)) => {
            if new.links > 0 {
                out.push(new.tell(Change::Added));
            }
            return;
        }
        (Some(old), None) => {
            if old.links > 0 {
                out.push(old.tell(Change::Removed));
            }
            return;
        }
        (Some(old), Some(new)) => (old, new),
    };
    let same_kind = old.mode & S_IFMT == new.mode & S_IFMT;
    if old.generation != new.generation || !same_kind {
        out.push(old.tell(Change::Removed));
        out.push(new.tell(Change::Added));
        return;
    }
    if old.ctime == new.ctime {
        return;
    }
    let is_dir = new.mode & S_IFMT == super::types::S_IFDIR;
    let links = match is_dir || old.links == 0 || new.links == 0 {
        true => 0,
        false => i64::from(new.links) - i64::from(old.links),
    };
    let change = match links {
        0 if old.path == new.path => Change::Modified,
        0 => Change::Renamed(new.path.clone()),
        n => Change::Links(n),
    };
    let path = if links < 0 { new.path.clone() } else { old.path };
    out.push(Difference { change, path, mode: new.mode, ctime: new.ctime });
}
