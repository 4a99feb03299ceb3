//! Drawing a workload from a seed, so that each operation is possible when its turn comes.

use super::acl::Acl;
use super::model::{Body, FLAGS, Id, Model, Node, ROOT};
use super::op::{Fill, Kind, Op, Props};
use crate::SimRng;

/// How much one actor's files may hold together, so that no layout fills up.
const MAX_BYTES: usize = 6 << 20;
const MAX_FILE: u64 = 400 << 10;
/// A multiple of every recordsize there is: ranges of this size may be shared instead of copied.
pub(super) const SHARED: u64 = 32 << 10;
/// With more bytes of extended attributes a list of permissions may not fit beside them.
const MAX_XATTRS: usize = 20_000;

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
    /// The file that is worked on most, as a log or a database is: so one block changes in txg
    /// after txg.
    hot: Option<Id>,
}

impl Generator {
    fn pick(&mut self, want: impl Fn(&Node) -> bool) -> Option<Id> {
        let all: Vec<Id> =
            self.m.nodes.iter().filter(|(id, n)| **id != ROOT && want(n)).map(|(id, _)| *id).collect();
        if all.is_empty() { None } else { Some(all[self.rng.below(all.len() as u64) as usize]) }
    }

    fn file(&mut self) -> Option<Id> {
        let hot = self.hot.filter(|id| self.m.nodes.get(id).is_some_and(|n| !n.is_fixed()));
        if hot.is_some() && !self.rng.one_in(3) {
            return hot;
        }
        let file = self.pick(|n| matches!(n.body, Body::File(_)) && !n.is_fixed())?;
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
            if !self.m.nodes[&dir].takes_names() {
                continue;
            }
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

    /// Whether an entry may be taken out of a directory.
    fn may_leave(&self, dir: Id, id: Id) -> bool {
        !self.m.nodes[&dir].is_fixed() && self.m.nodes[&id].may_go()
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
                let (off, len) = (self.rng.below(size + 1), 1 + self.rng.below(60_000));
                match self.rng.below(6) {
                    0 => Some(Op::Punch { id, off, len, extend: off + len < MAX_FILE }),
                    1 => Some(Op::Extend { id, end: (off + len).min(MAX_FILE) }),
                    2 => self.copy(id, off),
                    _ => Some(Op::Punch { id, off, len, extend: false }),
                }
            }
            49..53 => {
                let id = self.pick(|n| !n.is_dir() && !n.is_fixed())?;
                let (dir, name) = self.free_name();
                Some(Op::Link { id, dir, name })
            }
            53..60 => {
                let (dir, name, id) = self.entry()?;
                let is_dir = self.m.nodes[&id].is_dir();
                let goes = self.may_leave(dir, id) && (!is_dir || self.m.entries(id).is_empty());
                goes.then_some(Op::Remove { dir, name, is_dir })
            }
            60..67 => self.rename(),
            67..69 if self.rng.one_in(2) => self.attributes(),
            67..69 => Some(Op::Chmod {
                id: self.pick(|n| !matches!(n.body, Body::Link(_)) && !n.is_fixed())?,
                mode: self.rng.below(0o1000) as u32,
            }),
            69..71 if self.rng.one_in(2) => self.flags(),
            69..71 => Some(Op::Chown {
                id: self.pick(|n| !n.is_fixed())?,
                uid: self.rng.below(5) as u32,
                gid: self.rng.below(3) as u32,
            }),
            71..73 => {
                let id = self.pick(|n| !n.is_fixed())?;
                Some(Op::SetMtime { id, sec: 1 + self.rng.below(1 << 31) as i64 })
            }
            73..78 => {
                let id = self.pick(|n| !matches!(n.body, Body::Link(_) | Body::Fifo) && !n.is_fixed())?;
                let max = [60, 2000, 20_000][self.rng.below(3) as usize];
                Some(Op::SetXattr { id, name: format!("user.x{}", self.rng.below(4)), fill: self.fill(max) })
            }
            78..79 => {
                let id = self.pick(|n| !n.xattrs.is_empty() && !n.is_fixed())?;
                let mut names = self.m.nodes[&id].xattrs.keys();
                let name = names.find(|n| n.starts_with("user."))?.clone();
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

    /// From another file, whose contents may be in memory only.
    fn copy(&mut self, id: Id, off: u64) -> Option<Op> {
        let source = self.pick(|n| matches!(&n.body, Body::File(d) if !d.is_empty()))?;
        let size = self.size(source);
        if source == id || self.total() > MAX_BYTES {
            return None;
        }
        let record = SHARED;
        if size >= record && self.rng.one_in(2) {
            // Whole records, which may be shared.
            let from = self.rng.below(size / record) * record;
            let len = record * (1 + self.rng.below(((size - from) / record).min(8)));
            return Some(Op::Copy { id, off: off.min(MAX_FILE) / record * record, source, from, len });
        }
        let from = self.rng.below(size);
        let len = 1 + self.rng.below((size - from).min(60_000));
        Some(Op::Copy { id, off: off.min(MAX_FILE), source, from, len })
    }

    /// Sets a flag of a file or directory, or takes those of one that has any away.
    fn flags(&mut self) -> Option<Op> {
        if let Some(id) = self.pick(|n| n.flags != 0)
            && !self.rng.one_in(3)
        {
            return Some(Op::Flags { id, flags: 0 });
        }
        // Who is immutable takes nothing but the end of that.
        let id = self.pick(|n| n.takes_names() && matches!(n.body, Body::File(_) | Body::Dir(_)))?;
        Some(Op::Flags { id, flags: FLAGS[self.rng.below(4) as usize] })
    }

    fn attributes(&mut self) -> Option<Op> {
        let small = |n: &Node| n.xattrs.values().map(Vec::len).sum::<usize>() < MAX_XATTRS;
        let id = self.pick(|n| !matches!(n.body, Body::Link(_)) && !n.is_fixed() && small(n))?;
        let default = self.m.nodes[&id].is_dir() && self.rng.one_in(2);
        let mut perms = [0; 5];
        self.rng.fill(&mut perms);
        Some(Op::SetAcl { id, default, acl: Acl(perms.map(|p| p & 7)) })
    }

    fn props(&mut self) -> Op {
        let props = Props {
            recordsize: 4096 << self.rng.below(4),
            xattr_sa: !self.rng.one_in(4),
            sync_always: self.rng.one_in(8),
            throughput: self.rng.one_in(2),
            quota: if self.rng.one_in(4) { 1 + self.rng.below(1 << 20) } else { 0 },
            sha256: self.rng.one_in(3),
            compress: !self.rng.one_in(3),
            copies: if self.rng.one_in(3) { 2 } else { 1 },
        };
        Op::Props { props }
    }

    fn rename(&mut self) -> Option<Op> {
        let (from, old, id) = self.entry()?;
        if self.rng.one_in(6) {
            return self.exchange(from, old, id);
        }
        if !self.may_leave(from, id) {
            return None;
        }
        let (to, new) = if self.rng.one_in(3) {
            let (to, new, over) = self.entry()?;
            let (src, tgt) = (&self.m.nodes[&id], &self.m.nodes[&over]);
            // Over another name: kinds must fit, and a directory must be empty.
            if !self.may_leave(to, over) {
                return None;
            }
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

    fn exchange(&mut self, from: Id, old: String, id: Id) -> Option<Op> {
        let (to, new, other) = self.entry()?;
        let m = &self.m;
        let free = self.may_leave(from, id) && self.may_leave(to, other);
        let apart = !m.is_below(to, id) && !m.is_below(from, other);
        (free && apart && id != other).then_some(Op::Exchange { id, from, old, other, to, new })
    }

    fn dataset(&mut self) -> Option<Op> {
        if self.rng.one_in(6) {
            return Some(self.props());
        }
        let n = self.serial;
        let nth = |g: &mut Generator, len: usize| g.rng.below(len as u64) as usize;
        match self.rng.below(17) {
            12..17 => self.of_dataset(),
            0..4 => Some(Op::Snapshot { name: format!("s{n}") }),
            4..6 => {
                let m = &self.m;
                let free: Vec<String> = m
                    .snapshots
                    .keys()
                    .filter(|s| !m.datasets.values().any(|d| d.origin.as_ref() == Some(s)))
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
                let bare = self.m.datasets.iter().filter(|(_, d)| d.snapshots.is_empty());
                let all: Vec<String> = bare.map(|(name, _)| name.clone()).collect();
                if all.is_empty() {
                    return None;
                }
                let at = nth(self, all.len());
                Some(Op::DestroyFs { name: all[at].clone() })
            }
        }
    }

    /// Snapshots of another dataset, and going back to them.
    fn of_dataset(&mut self) -> Option<Op> {
        let all: Vec<String> = self.m.datasets.keys().cloned().collect();
        let name = all.get(self.rng.below(all.len().max(1) as u64) as usize)?.clone();
        let snapshots = &self.m.datasets[&name].snapshots;
        let (latest, many) = (snapshots.last().map(|(s, _)| s.clone()), snapshots.len() > 2);
        match self.rng.below(5) {
            0 | 1 if !many => Some(Op::SnapshotFs { name, snapshot: format!("t{}", self.serial) }),
            2 | 3 => latest.map(|_| Op::RollbackFs { name }),
            _ => {
                let snapshots = &self.m.datasets[&name].snapshots;
                let at = self.rng.below(snapshots.len().max(1) as u64) as usize;
                let snapshot = snapshots.get(at)?.0.clone();
                Some(Op::DestroyFsSnapshot { name, snapshot })
            }
        }
    }
}
