//! The workload: operations drawn from a seed so that each is possible when its turn comes.

use super::model::{Body, Id, Model, ROOT};
use crate::SimRng;

/// How much one actor's files may hold together, so that no layout fills up.
const MAX_BYTES: usize = 6 << 20;
const MAX_FILE: u64 = 400 << 10;

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
    Punch {
        id: Id,
        off: u64,
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
    Chmod {
        id: Id,
        mode: u32,
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
            Op::Rename { from, to, .. } => [Some(*from), Some(*to)],
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
            Op::Punch { id, off, len } => {
                let data = m.data(*id);
                let end = ((off + len) as usize).min(data.len());
                if let Some(part) = data.get_mut(*off as usize..end) {
                    part.fill(0);
                }
            }
            Op::Link { id, dir, name } => m.link(*id, *dir, name),
            Op::Remove { dir, name, .. } => m.remove(*dir, name),
            Op::Rename { from, old, to, new, .. } => m.rename(*from, old, *to, new),
            Op::Chmod { id, mode } => m.set(*id, |n| n.mode = *mode),
            Op::Chown { id, uid, gid } => m.set(*id, |n| (n.uid, n.gid) = (*uid, *gid)),
            Op::SetMtime { id, sec } => m.set(*id, |n| n.mtime = Some(*sec)),
            Op::SetXattr { id, name, fill } => {
                m.set(*id, |n| drop(n.xattrs.insert(name.clone(), fill.bytes())))
            }
            Op::RemoveXattr { id, name } => m.set(*id, |n| drop(n.xattrs.remove(name))),
            Op::Snapshot { name } => drop(m.snapshots.insert(name.clone(), 0)),
            Op::DestroySnapshot { name } => drop(m.snapshots.remove(name)),
            Op::CreateFs { name } => drop(m.datasets.insert(name.clone(), None)),
            Op::Clone { snapshot, name } => drop(m.datasets.insert(name.clone(), Some(snapshot.clone()))),
            Op::DestroyFs { name } => drop(m.datasets.remove(name)),
            Op::Read { .. } | Op::Fsync { .. } | Op::Sync | Op::Sleep { .. } | Op::FillFs { .. } => {}
        }
    }
}

/// One actor's operations. The first actor also makes snapshots and datasets.
pub fn generate(seed: u64, actor: u64, n: usize) -> Vec<Op> {
    let mut g = Generator {
        rng: SimRng::new(seed ^ actor << 40, "workload"),
        m: Model::default(),
        serial: 0,
        hot: None,
    };
    let mut ops = Vec::with_capacity(n);
    while ops.len() < n {
        let Some(op) = g.draw(actor == 0) else { continue };
        op.apply(&mut g.m);
        ops.push(op);
    }
    ops
}

struct Generator {
    rng: SimRng,
    m: Model,
    serial: u64,
    /// The file that is worked on most, as a log or a database is: so one block changes in txg after txg.
    hot: Option<Id>,
}

impl Generator {
    fn pick(&mut self, want: impl Fn(&super::model::Node) -> bool) -> Option<Id> {
        let all: Vec<Id> =
            self.m.nodes.iter().filter(|(id, n)| **id != ROOT && want(n)).map(|(id, _)| *id).collect();
        if all.is_empty() { None } else { Some(all[self.rng.below(all.len() as u64) as usize]) }
    }

    fn file(&mut self) -> Option<Id> {
        let hot = self.hot.filter(|id| self.m.nodes.contains_key(id));
        if hot.is_some() && !self.rng.one_in(3) {
            return hot;
        }
        let file = self.pick(|n| matches!(n.body, Body::File(_)))?;
        if hot.is_none() || self.rng.one_in(4) {
            self.hot = Some(file);
        }
        Some(file)
    }

    fn dir(&mut self) -> Id {
        if self.rng.one_in(3) { ROOT } else { self.pick(|n| n.is_dir()).unwrap_or(ROOT) }
    }

    /// A name, which may be taken; some are long, so that directories get large.
    fn name(&mut self) -> String {
        let n = self.rng.below(40);
        if n < 36 { format!("n{n}") } else { format!("{}{n}", "long-name-".repeat(8 + n as usize % 8)) }
    }

    /// A directory and a name that is free in it.
    fn free_name(&mut self) -> (Id, String) {
        loop {
            let (dir, name) = (self.dir(), self.name());
            if !self.m.entries(dir).contains_key(&name) {
                return (dir, name);
            }
            // Where most names are taken, a fresh one.
            if self.rng.one_in(4) {
                self.serial += 1;
                return (dir, format!("fresh{}", self.serial));
            }
        }
    }

    /// A directory entry.
    fn entry(&mut self) -> Option<(Id, String, Id)> {
        let dir = self.dir();
        let d = self.m.entries(dir);
        if d.is_empty() {
            return None;
        }
        let at = self.rng.below(d.len() as u64) as usize;
        self.m.entries(dir).iter().nth(at).map(|(name, id)| (dir, name.clone(), *id))
    }

    fn fill(&mut self, max: u64) -> Fill {
        // Small and large in equal parts.
        let max = if self.rng.one_in(2) { max.min(3000) } else { max };
        Fill { seed: self.rng.u64(), len: 1 + self.rng.below(max) as u32 }
    }

    fn size(&self, id: Id) -> u64 {
        match &self.m.nodes[&id].body {
            Body::File(d) => d.len() as u64,
            _ => 0,
        }
    }

    fn total(&self) -> usize {
        self.m.nodes.values().map(|n| if let Body::File(d) = &n.body { d.len() } else { 0 }).sum()
    }

    fn draw(&mut self, datasets: bool) -> Option<Op> {
        self.serial += 1;
        let id = self.serial + 1000;
        match self.rng.below(100) {
            0..16 => {
                let (dir, name) = self.free_name();
                let kind = match self.rng.below(10) {
                    0..6 => Kind::File,
                    6..8 => Kind::Dir,
                    8 => Kind::Link("target/".repeat(1 + self.rng.below(20) as usize)),
                    _ => Kind::Fifo,
                };
                let mode =
                    if matches!(kind, Kind::Link(_)) { 0o777 } else { 0o600 + self.rng.below(0o100) as u32 };
                Some(Op::Create { dir, name, id, kind, mode })
            }
            16..40 => {
                let id = self.file()?;
                let full = self.total() > MAX_BYTES;
                let fill = self.fill(if full { 1000 } else { 90_000 });
                let size = self.size(id);
                let off = match self.rng.below(4) {
                    0 => 0,
                    1 => self.rng.below(size + 1),
                    2 => self.rng.below(size + 1) / 16384 * 16384,
                    _ => self.rng.below(size + 40_000),
                };
                let off = off.min(MAX_FILE);
                Some(if self.rng.one_in(8) { Op::Append { id, fill } } else { Op::Write { id, off, fill } })
            }
            40..46 => {
                let id = self.file()?;
                let size = self.size(id);
                let to = match self.rng.below(4) {
                    0 => 0,
                    1 => size + self.rng.below(30_000),
                    _ => self.rng.below(size + 1),
                };
                Some(Op::Truncate { id, size: to.min(MAX_FILE) })
            }
            46..49 => {
                let id = self.file()?;
                let size = self.size(id);
                Some(Op::Punch { id, off: self.rng.below(size + 1), len: 1 + self.rng.below(60_000) })
            }
            49..53 => {
                let id = self.pick(|n| !n.is_dir())?;
                let (dir, name) = self.free_name();
                Some(Op::Link { id, dir, name })
            }
            53..60 => {
                let (dir, name, id) = self.entry()?;
                let is_dir = self.m.nodes[&id].is_dir();
                (!is_dir || self.m.entries(id).is_empty()).then_some(Op::Remove { dir, name, is_dir })
            }
            60..67 => self.rename(),
            67..69 => Some(Op::Chmod {
                id: self.pick(|n| !matches!(n.body, Body::Link(_)))?,
                mode: self.rng.below(0o1000) as u32,
            }),
            69..71 => Some(Op::Chown {
                id: self.pick(|_| true)?,
                uid: self.rng.below(5) as u32,
                gid: self.rng.below(3) as u32,
            }),
            71..73 => {
                Some(Op::SetMtime { id: self.pick(|_| true)?, sec: 1 + self.rng.below(1 << 31) as i64 })
            }
            73..78 => {
                let id = self.pick(|n| !matches!(n.body, Body::Link(_) | Body::Fifo))?;
                let max = [60, 2000, 20_000][self.rng.below(3) as usize];
                Some(Op::SetXattr { id, name: format!("user.x{}", self.rng.below(4)), fill: self.fill(max) })
            }
            78..79 => {
                let id = self.pick(|n| !n.xattrs.is_empty())?;
                let name = self.m.nodes[&id].xattrs.keys().next()?.clone();
                Some(Op::RemoveXattr { id, name })
            }
            79..81 => Some(Op::Read { id: self.file()? }),
            81..86 => Some(Op::Fsync { id: self.file()? }),
            86..91 => Some(Op::Sync),
            91..95 => Some(Op::Sleep { ms: if self.rng.one_in(8) { 6000 } else { self.rng.below(20) } }),
            _ if datasets => self.dataset(),
            _ => None,
        }
    }

    fn rename(&mut self) -> Option<Op> {
        let (from, old, id) = self.entry()?;
        let (to, new) = if self.rng.one_in(3) {
            let (to, new, over) = self.entry()?;
            let (src, tgt) = (&self.m.nodes[&id], &self.m.nodes[&over]);
            // Over another name: kinds must fit, and a directory must be empty.
            let fits = src.is_dir() == tgt.is_dir() && (!tgt.is_dir() || self.m.entries(over).is_empty());
            if !fits || over == id {
                return None;
            }
            (to, new)
        } else {
            self.free_name()
        };
        if self.m.nodes[&id].is_dir() && self.m.is_below(to, id) {
            return None;
        }
        Some(Op::Rename { id, from, old, to, new })
    }

    fn dataset(&mut self) -> Option<Op> {
        let n = self.serial;
        let nth = |g: &mut Generator, len: usize| g.rng.below(len as u64) as usize;
        match self.rng.below(12) {
            0..4 => Some(Op::Snapshot { name: format!("s{n}") }),
            4..6 => {
                let m = &self.m;
                let free: Vec<String> = m
                    .snapshots
                    .keys()
                    .filter(|s| !m.datasets.values().flatten().any(|o| o == *s))
                    .cloned()
                    .collect();
                if free.is_empty() {
                    return None;
                }
                let at = nth(self, free.len());
                Some(Op::DestroySnapshot { name: free[at].clone() })
            }
            6 => (self.m.datasets.len() < 3).then(|| Op::CreateFs { name: format!("fs{n}") }),
            7 => {
                let snaps: Vec<String> = self.m.snapshots.keys().cloned().collect();
                if snaps.is_empty() || self.m.datasets.len() > 3 {
                    return None;
                }
                let at = nth(self, snaps.len());
                Some(Op::Clone { snapshot: snaps[at].clone(), name: format!("clone{n}") })
            }
            8..10 => {
                let all: Vec<String> = self.m.datasets.keys().cloned().collect();
                if all.is_empty() {
                    return None;
                }
                let (at, fill) = (nth(self, all.len()), self.fill(300_000));
                Some(Op::FillFs { name: all[at].clone(), fill })
            }
            _ => {
                let all: Vec<String> = self.m.datasets.keys().cloned().collect();
                if all.is_empty() {
                    return None;
                }
                let at = nth(self, all.len());
                Some(Op::DestroyFs { name: all[at].clone() })
            }
        }
    }
}
