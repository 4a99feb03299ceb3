//! What a live file system may hold after a crash, when fsyncs were answered between its txgs.
//!
//! The last txg holds a prefix of what was done. On top of it come records of the intent log:
//! changes of names in the order in which they were made, so these again are a prefix; and changes
//! of files themselves, of each file in order, as far as someone has asked for them. So the names
//! must be those after some operation, and each file must be as it was after some operation on it;
//! both no earlier than promised, and a file no earlier than the latest of its names. A write of
//! several blocks is several records, and may be there in part.

use super::model::{Body, Id, Model, Node, ROOT, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, Seen, View};
use super::op::Op;
use super::run::ActorLog;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// No block is shorter.
const SECTOR: usize = 512;

/// What names tell of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    kind: u32,
    nlink: u32,
    first: String,
    /// Entries of a directory, target of a link.
    size: u64,
    target: Vec<u8>,
}

/// What a file has besides.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Own {
    mode: u32,
    uid: u32,
    gid: u32,
    len: usize,
    data: u64,
    xattrs: BTreeMap<String, u64>,
    flags: u64,
    mtime: Option<i64>,
}

fn hash(data: &[u8]) -> u64 {
    let mut h = DefaultHasher::new();
    data.hash(&mut h);
    h.finish()
}

fn own_of(n: &Node) -> Own {
    let data: &[u8] = if let Body::File(d) = &n.body { d } else { &[] };
    Own {
        mode: n.mode,
        uid: n.uid,
        gid: n.gid,
        len: data.len(),
        data: hash(data),
        xattrs: n.xattrs.iter().map(|(k, v)| (k.clone(), hash(v))).collect(),
        flags: n.flags,
        mtime: n.mtime,
    }
}

fn own_seen(s: &Seen) -> Own {
    let data: &[u8] = if s.kind == S_IFREG { &s.data } else { &[] };
    Own {
        mode: s.mode,
        uid: s.uid,
        gid: s.gid,
        len: data.len(),
        data: hash(data),
        xattrs: s.xattrs.iter().map(|(k, v)| (k.clone(), hash(v))).collect(),
        flags: s.flags,
        mtime: s.mtime,
    }
}

fn named_seen(s: &Seen) -> Named {
    let (size, target) = match s.kind {
        S_IFREG => (0, Vec::new()),
        S_IFLNK => (s.size, s.data.clone()),
        _ => (s.size, Vec::new()),
    };
    Named { kind: s.kind, nlink: s.nlink, first: s.first.clone(), size, target }
}

fn names(m: &Model) -> BTreeMap<String, (Id, Named)> {
    let (mut out, mut first) = (BTreeMap::new(), BTreeMap::new());
    visit(m, ROOT, String::new(), &mut first, &mut out);
    out
}

fn visit(
    m: &Model,
    id: Id,
    path: String,
    first: &mut BTreeMap<Id, String>,
    out: &mut BTreeMap<String, (Id, Named)>,
) {
    let n = &m.nodes[&id];
    let first_path = first.entry(id).or_insert_with(|| path.clone()).clone();
    let (kind, size, target) = match &n.body {
        Body::File(_) => (S_IFREG, 0, Vec::new()),
        Body::Dir(d) => (S_IFDIR, d.len() as u64 + 2, Vec::new()),
        Body::Link(t) => (S_IFLNK, t.len() as u64, t.clone().into_bytes()),
        Body::Fifo => (S_IFIFO, 0, Vec::new()),
    };
    out.insert(path.clone(), (id, Named { kind, nlink: n.nlink, first: first_path, size, target }));
    if let Body::Dir(d) = &n.body {
        for (name, child) in d {
            visit(m, *child, format!("{path}/{name}"), first, out);
        }
    }
}

/// States of a file, each with the number of operations from which on it holds.
type History = Vec<(usize, Own)>;

/// Whether what is there can be. `least` operations are there for certain.
pub fn fits(log: &ActorLog, least: usize, view: &View) -> Result<(), String> {
    let most = (log.done.len() + usize::from(log.started.is_some())).min(log.ops.len());
    let least = least.min(most);
    let have: BTreeMap<&String, Named> = view.iter().map(|(p, s)| (p, named_seen(s))).collect();
    let from = least.max(log.names_promised).min(most);
    let mut m = log.model(least);
    let mut histories: BTreeMap<Id, History> =
        m.nodes.iter().map(|(id, n)| (*id, vec![(least, own_of(n))])).collect();
    let mut matching = Vec::new();
    let mut first_difference = None;
    for n in least..=most {
        if n > least {
            let op = &log.ops[n - 1];
            op.apply(&mut m);
            for id in op.directories().into_iter().flatten().chain(op.touches()) {
                if let Some(node) = m.nodes.get(&id) {
                    histories.entry(id).or_default().push((n, own_of(node)));
                }
            }
        }
        let changed =
            n == from || log.ops.get(n.wrapping_sub(1)).is_some_and(|o| o.directories()[0].is_some());
        if n >= from && changed {
            let want = names(&m);
            let differs = want
                .iter()
                .find(|(p, (_, w))| have.get(p) != Some(w))
                .map(|(p, (_, w))| format!("{p:?} is {:?}, should be {w:?}", have.get(p)))
                .or_else(|| {
                    have.keys()
                        .find(|p| !want.contains_key(**p))
                        .map(|p| format!("{p:?} should not be there"))
                });
            match differs {
                None => matching.push((n, want)),
                Some(d) => drop(first_difference.get_or_insert((n, d))),
            }
        }
    }
    let mut why = String::new();
    for (n, want) in &matching {
        match files_fit(log, least, *n, want, &histories, view) {
            Ok(()) => return Ok(()),
            Err(e) => why = format!("with the names after {n}: {e}"),
        }
    }
    if matching.is_empty() {
        why = format!("no names of {from} to {most} operations fit; {first_difference:?}");
    }
    let around: String = (from.saturating_sub(3)..most)
        .map(|i| {
            let op: String = format!("{:?}", log.ops[i]).chars().take(100).collect();
            format!("\n    {i}: txgs {:?}: {op}", log.done.get(i))
        })
        .take(40)
        .collect();
    Err(format!("{why}; {least} are certain, {} promised, {} done{around}", log.promised, log.done.len()))
}

/// Whether a file is as a long write left it of which only the first blocks are there: the log has
/// a record for each block that is in place, and ends before the first that is not, where nobody
/// waited for it.
fn in_part(log: &ActorLog, id: Id, least: usize, seen: &Seen) -> bool {
    let mut m = log.model(least);
    let rest = |o: Own| Own { len: 0, data: 0, mtime: None, ..o };
    log.ops.iter().skip(least).take(log.done.len() + 1 - least).any(|op| {
        let before = m.nodes.get(&id).cloned();
        op.apply(&mut m);
        let (Some(Node { body: Body::File(old), .. }), Some(after)) = (&before, m.nodes.get(&id)) else {
            return false;
        };
        let (off, new) = match op {
            Op::Write { id: i, off, fill } if *i == id => (*off as usize, fill.bytes()),
            Op::Append { id: i, fill } if *i == id => (old.len(), fill.bytes()),
            Op::Copy { id: i, off, source, from, len } if *i == id => match m.nodes.get(source) {
                // What it read, which it has not changed itself: both are never the same file.
                Some(Node { body: Body::File(data), .. }) => {
                    (*off as usize, data[*from as usize..(*from + *len) as usize].to_vec())
                }
                _ => return false,
            },
            _ => return false,
        };
        let end = off + new.len();
        rest(own_of(after)) == rest(own_seen(seen))
            && (off + 1..end).filter(|at| at % SECTOR == 0).any(|at| {
                let mut part = old.clone();
                part.resize(old.len().max(at), 0);
                part[off..at].copy_from_slice(&new[..at - off]);
                part == seen.data
            })
    })
}

fn files_fit(
    log: &ActorLog,
    least: usize,
    n: usize,
    want: &BTreeMap<String, (Id, Named)>,
    histories: &BTreeMap<Id, History>,
    view: &View,
) -> Result<(), String> {
    for (path, (id, _)) in want {
        // Before a file's name changes, what was done to it is written.
        let renamed = log.ops[..n].iter().rposition(|o| match o {
            Op::Rename { id: i, .. } | Op::Link { id: i, .. } => i == id,
            Op::Exchange { id: i, other, .. } => i == id || other == id,
            _ => false,
        });
        let least = least.max(log.files_promised.get(id).copied().unwrap_or(0)).max(renamed.unwrap_or(0));
        let have = own_seen(&view[path]);
        let history = histories.get(id).ok_or_else(|| format!("{path:?} has no history"))?;
        // A directory's time is that of its last entry, if that came after the time was set.
        let entered = log.ops[..n].iter().rposition(|o| o.directories().contains(&Some(*id)));
        let fits = history.iter().enumerate().any(|(i, (at, state))| {
            let until = history.get(i + 1).map_or(usize::MAX, |(at, _)| *at);
            let (mut have, mut state) = (have.clone(), state.clone());
            if state.mtime.is_none() || entered.is_some_and(|e| e >= *at) {
                (have.mtime, state.mtime) = (None, None);
            }
            until > least && have == state
        });
        if !fits && !in_part(log, *id, least, &view[path]) {
            let states: Vec<_> =
                history.iter().rev().take(4).map(|(at, s)| format!("from {at}: {s:?}")).collect();
            return Err(format!("{path:?} is {have:?}, of no operation from {least} on: {states:?}"));
        }
    }
    Ok(())
}
