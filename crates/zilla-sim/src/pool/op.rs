//! The operations of workloads, and what each does to the model.

use super::acl::Acl;
use super::model::{Body, Dataset, Id, Model};
use crate::SimRng;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Dir,
    Link(String),
    Fifo,
}

/// Contents that can be made again: compressible, random, or zeroes in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    pub seed: u64,
    pub len: u32,
}

impl Fill {
    /// Which file of a dataset it goes to, and where.
    pub fn place(self) -> (String, u64) {
        (format!("f{}", self.seed % 5), self.seed % 50_000)
    }

    pub fn bytes(self) -> Vec<u8> {
        let mut rng = SimRng::new(self.seed, "fill");
        let mut out = vec![0; self.len as usize];
        match self.seed % 4 {
            0 => rng.fill(&mut out),
            1 => {
                let word = rng.u64().to_le_bytes();
                out.iter_mut().enumerate().for_each(|(i, b)| *b = word[i % 8] ^ (i / 512) as u8);
            }
            2 => out.chunks_mut(3000).step_by(2).for_each(|c| rng.fill(c)),
            _ => out.iter_mut().enumerate().for_each(|(i, b)| *b = (self.seed >> 8) as u8 | (i % 7) as u8),
        }
        out
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create {
        dir: Id,
        name: String,
        id: Id,
        kind: Kind,
        mode: u32,
    },
    Write {
        id: Id,
        off: u64,
        fill: Fill,
    },
    Append {
        id: Id,
        fill: Fill,
    },
    Truncate {
        id: Id,
        size: u64,
    },
    /// With `extend` the file reaches to the range's end afterwards (`FALLOC_FL_ZERO_RANGE`), else
    /// it keeps its size.
    Punch {
        id: Id,
        off: u64,
        len: u64,
        extend: bool,
    },
    /// `fallocate` without flags.
    Extend {
        id: Id,
        end: u64,
    },
    /// `copy_file_range` from another file.
    Copy {
        id: Id,
        off: u64,
        source: Id,
        from: u64,
        len: u64,
    },
    Link {
        id: Id,
        dir: Id,
        name: String,
    },
    /// Of a file (`dir_too` false) or an empty directory.
    Remove {
        dir: Id,
        name: String,
        is_dir: bool,
    },
    Rename {
        id: Id,
        from: Id,
        old: String,
        to: Id,
        new: String,
    },
    /// Two names change places (`RENAME_EXCHANGE`).
    Exchange {
        id: Id,
        from: Id,
        old: String,
        other: Id,
        to: Id,
        new: String,
    },
    Chmod {
        id: Id,
        mode: u32,
    },
    /// `chattr`: just these of the flags that users set.
    Flags {
        id: Id,
        flags: u64,
    },
    SetAcl {
        id: Id,
        default: bool,
        acl: Acl,
    },
    Chown {
        id: Id,
        uid: u32,
        gid: u32,
    },
    SetMtime {
        id: Id,
        sec: i64,
    },
    SetXattr {
        id: Id,
        name: String,
        fill: Fill,
    },
    RemoveXattr {
        id: Id,
        name: String,
    },
    Read {
        id: Id,
    },
    Fsync {
        id: Id,
    },
    Sync,
    Sleep {
        ms: u64,
    },
    Snapshot {
        name: String,
    },
    DestroySnapshot {
        name: String,
    },
    CreateFs {
        name: String,
    },
    /// Makes a file in another dataset.
    FillFs {
        name: String,
        fill: Fill,
    },
    Clone {
        snapshot: String,
        name: String,
    },
    DestroyFs {
        name: String,
    },
    /// A snapshot of another dataset.
    SnapshotFs {
        name: String,
        snapshot: String,
    },
    DestroyFsSnapshot {
        name: String,
        snapshot: String,
    },
    /// To its latest snapshot.
    RollbackFs {
        name: String,
    },
    /// Properties of the mounted file system, which all actors work in.
    Props {
        props: Props,
    },
}

/// What `zfs set` changes of a file system in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Props {
    pub recordsize: u32,
    pub xattr_sa: bool,
    pub sync_always: bool,
    pub throughput: bool,
    /// A default quota of so many bytes for users, or 0.
    pub quota: u64,
    pub sha256: bool,
    pub compress: bool,
    pub copies: u8,
}

impl Op {
    /// The file whose fsync promises this operation.
    pub fn touches(&self) -> Option<Id> {
        match self {
            Op::Create { id, .. }
            | Op::Write { id, .. }
            | Op::Append { id, .. }
            | Op::Truncate { id, .. }
            | Op::Punch { id, .. }
            | Op::Extend { id, .. }
            | Op::Copy { id, .. }
            | Op::Exchange { id, .. }
            | Op::Flags { id, .. }
            | Op::SetAcl { id, .. }
            | Op::Link { id, .. }
            | Op::Rename { id, .. }
            | Op::Chmod { id, .. }
            | Op::Chown { id, .. }
            | Op::SetMtime { id, .. }
            | Op::SetXattr { id, .. }
            | Op::RemoveXattr { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// The directories whose entries it changes.
    pub fn directories(&self) -> [Option<Id>; 2] {
        match self {
            Op::Create { dir, .. } | Op::Link { dir, .. } | Op::Remove { dir, .. } => [Some(*dir), None],
            Op::Rename { from, to, .. } | Op::Exchange { from, to, .. } => [Some(*from), Some(*to)],
            _ => [None, None],
        }
    }

    /// Does it to the model.
    pub fn apply(&self, m: &mut Model) {
        match self {
            Op::Create { dir, name, id, kind, mode } => {
                let body = match kind {
                    Kind::File => Body::File(Vec::new()),
                    Kind::Dir => Body::Dir(Default::default()),
                    Kind::Link(t) => Body::Link(t.clone()),
                    Kind::Fifo => Body::Fifo,
                };
                m.create(*dir, name, *id, body, *mode);
            }
            Op::Write { id, off, fill } => {
                let (data, end) = (m.data(*id), *off as usize + fill.len as usize);
                data.resize(data.len().max(end), 0);
                data[*off as usize..end].copy_from_slice(&fill.bytes());
            }
            Op::Append { id, fill } => m.data(*id).extend(fill.bytes()),
            Op::Truncate { id, size } => m.data(*id).resize(*size as usize, 0),
            Op::Punch { id, off, len, extend } => {
                let data = m.data(*id);
                if *extend {
                    data.resize(data.len().max((off + len) as usize), 0);
                }
                let end = ((off + len) as usize).min(data.len());
                if let Some(part) = data.get_mut(*off as usize..end) {
                    part.fill(0);
                }
            }
            Op::Extend { id, end } => {
                let data = m.data(*id);
                data.resize(data.len().max(*end as usize), 0);
            }
            Op::Copy { id, off, source, from, len } => {
                let Some(Body::File(all)) = m.nodes.get(source).map(|n| &n.body) else { return };
                let part = all[*from as usize..(*from + *len) as usize].to_vec();
                let (data, at) = (m.data(*id), *off as usize);
                data.resize(data.len().max(at + part.len()), 0);
                data[at..at + part.len()].copy_from_slice(&part);
            }
            Op::Link { id, dir, name } => m.link(*id, *dir, name),
            Op::Remove { dir, name, .. } => m.remove(*dir, name),
            Op::Rename { from, old, to, new, .. } => m.rename(*from, old, *to, new),
            Op::Exchange { from, old, to, new, .. } => m.exchange(*from, old, *to, new),
            Op::Chmod { id, mode } => m.chmod(*id, *mode),
            Op::Flags { id, flags } => m.set(*id, |n| n.flags = *flags),
            Op::SetAcl { id, default, acl } => m.set_acl(*id, *default, *acl),
            Op::Chown { id, uid, gid } => m.set(*id, |n| (n.uid, n.gid) = (*uid, *gid)),
            Op::SetMtime { id, sec } => m.set(*id, |n| n.mtime = Some(*sec)),
            Op::SetXattr { id, name, fill } => {
                m.set(*id, |n| drop(n.xattrs.insert(name.clone(), fill.bytes())))
            }
            Op::RemoveXattr { id, name } => m.set(*id, |n| drop(n.xattrs.remove(name))),
            Op::Snapshot { name } => drop(m.snapshots.insert(name.clone(), 0)),
            Op::DestroySnapshot { name } => drop(m.snapshots.remove(name)),
            Op::CreateFs { name } => drop(m.datasets.insert(name.clone(), Dataset::default())),
            Op::Clone { snapshot, name } => {
                let new = Dataset { origin: Some(snapshot.clone()), ..Dataset::default() };
                m.datasets.insert(name.clone(), new);
            }
            Op::DestroyFs { name } => drop(m.datasets.remove(name)),
            Op::FillFs { name, fill } => {
                let Some(ds) = m.datasets.get_mut(name) else { return };
                let (file, off) = fill.place();
                let data = ds.files.entry(file).or_default();
                let end = off as usize + fill.len as usize;
                data.resize(data.len().max(end), 0);
                data[off as usize..end].copy_from_slice(&fill.bytes());
            }
            Op::SnapshotFs { name, snapshot } => {
                let Some(ds) = m.datasets.get_mut(name) else { return };
                ds.snapshots.push((snapshot.clone(), ds.files.clone()));
            }
            Op::DestroyFsSnapshot { name, snapshot } => {
                let Some(ds) = m.datasets.get_mut(name) else { return };
                ds.snapshots.retain(|(s, _)| s != snapshot);
            }
            Op::RollbackFs { name } => {
                let Some(ds) = m.datasets.get_mut(name) else { return };
                let latest = ds.snapshots.last().map(|(_, files)| files.clone());
                ds.files = latest.unwrap_or_default();
            }
            Op::Read { .. } | Op::Fsync { .. } | Op::Sync | Op::Sleep { .. } | Op::Props { .. } => {}
        }
    }
}
