//! Random operations on the file system and on a reference of a few maps; both must say the same.

use super::super::*;
use super::world::{CRED, World};
use crate::dmu::resident;
use crate::error::Result;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use zilla_env::block_on;

#[derive(Clone, Debug, PartialEq)]
enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<Vec<u8>, u64>),
    Link(Vec<u8>),
    Other(u32),
}

#[derive(Clone, Debug)]
struct Node {
    body: Body,
    mode: u32,
    uid: u32,
    nlink: u32,
    parent: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Node {
    fn dir(&self) -> Option<&BTreeMap<Vec<u8>, u64>> {
        if let Body::Dir(d) = &self.body { Some(d) } else { None }
    }
    fn fmt(&self) -> u32 {
        match self.body {
            Body::File(_) => S_IFREG,
            Body::Dir(_) => S_IFDIR,
            Body::Link(_) => S_IFLNK,
            Body::Other(fmt) => fmt,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Model {
    nodes: BTreeMap<u64, Node>,
    root: u64,
}

type R<T> = std::result::Result<T, Errno>;

impl Model {
    fn entries(&mut self, dir: u64) -> R<&mut BTreeMap<Vec<u8>, u64>> {
        match self.nodes.get_mut(&dir) {
            Some(Node { body: Body::Dir(d), nlink: 1.., .. }) => Ok(d),
            Some(Node { body: Body::Dir(_), .. }) => Err(Errno::NoEnt),
            Some(_) => Err(Errno::NotDir),
            None => Err(Errno::NoEnt),
        }
    }
    fn node(&mut self, id: u64) -> &mut Node {
        self.nodes.get_mut(&id).unwrap()
    }
    fn can_create(&mut self, dir: u64, name: &[u8]) -> R<()> {
        if self.entries(dir)?.contains_key(name) { Err(Errno::Exist) } else { Ok(()) }
    }
    fn created(&mut self, dir: u64, name: &[u8], id: u64, mode: u32, body: Body) {
        let is_dir = matches!(body, Body::Dir(_));
        self.entries(dir).unwrap().insert(name.to_vec(), id);
        self.node(dir).nlink += u32::from(is_dir);
        let nlink = if is_dir { 2 } else { 1 };
        let node = Node { body, mode, uid: CRED.uid, nlink, parent: dir, xattrs: BTreeMap::new() };
        self.nodes.insert(id, node);
    }
    fn dropped(&mut self, id: u64) {
        let n = self.node(id);
        n.nlink = if n.dir().is_some() { 0 } else { n.nlink - 1 };
        if n.nlink == 0 {
            self.nodes.remove(&id);
        }
    }
    fn remove(&mut self, dir: u64, name: &[u8], want_dir: bool) -> R<()> {
        let d = match self.nodes.get(&dir) {
            Some(Node { body: Body::Dir(d), .. }) => d,
            Some(_) => return Err(Errno::NotDir),
            None => return Err(Errno::NoEnt),
        };
        let id = *d.get(name).ok_or(Errno::NoEnt)?;
        let victim = &self.nodes[&id];
        match (want_dir, victim.dir()) {
            (true, None) => return Err(Errno::NotDir),
            (false, Some(_)) => return Err(Errno::IsDir),
            (true, Some(d)) if !d.is_empty() => return Err(Errno::NotEmpty),
            _ => {}
        }
        self.entries(dir)?.remove(name);
        self.node(dir).nlink -= u32::from(want_dir);
        self.dropped(id);
        Ok(())
    }
    fn below(&self, mut at: u64, top: u64) -> bool {
        loop {
            if at == top {
                return true;
            }
            if at == self.root {
                return false;
            }
            at = self.nodes[&at].parent;
        }
    }
    fn rename(&mut self, from: u64, old: &[u8], to: u64, new: &[u8], exchange: bool) -> R<()> {
        self.entries(to)?;
        let src = *self.entries(from)?.get(old).ok_or(Errno::NoEnt)?;
        let tgt = self.entries(to)?.get(new).copied();
        let src_dir = self.nodes[&src].dir().is_some();
        let tgt_dir = tgt.is_some_and(|t| self.nodes[&t].dir().is_some());
        if src_dir && self.below(to, src) {
            return Err(Errno::Inval);
        }
        if let Some(t) = tgt.filter(|_| exchange && tgt_dir)
            && self.below(from, t)
        {
            return Err(Errno::Inval);
        }
        match tgt {
            None if exchange => return Err(Errno::NoEnt),
            Some(t) if t == src => return Ok(()),
            Some(t) if exchange => {
                self.entries(to)?.insert(new.to_vec(), src);
                self.entries(from)?.insert(old.to_vec(), t);
                let by = i64::from(src_dir) - i64::from(tgt_dir);
                self.node(to).nlink = (i64::from(self.node(to).nlink) + by) as u32;
                self.node(from).nlink = (i64::from(self.node(from).nlink) - by) as u32;
                self.node(src).parent = to;
                self.node(t).parent = from;
                return Ok(());
            }
            Some(t) => {
                match (src_dir, tgt_dir) {
                    (true, false) => return Err(Errno::NotDir),
                    (false, true) => return Err(Errno::IsDir),
                    (true, true) if !self.nodes[&t].dir().unwrap().is_empty() => return Err(Errno::NotEmpty),
                    _ => {}
                }
                self.dropped(t);
                self.node(to).nlink -= u32::from(tgt_dir);
            }
            None => {}
        }
        self.entries(from)?.remove(old);
        self.entries(to)?.insert(new.to_vec(), src);
        self.node(from).nlink -= u32::from(src_dir);
        self.node(to).nlink += u32::from(src_dir);
        self.node(src).parent = to;
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Op {
    Create(usize, usize, u8, u32),
    Link(usize, usize, usize),
    Unlink(usize, usize),
    Rmdir(usize, usize),
    Rename(usize, usize, usize, usize, bool),
    Write(usize, u64, usize, u8),
    Truncate(usize, u64),
    Punch(usize, u64, u64),
    Check(usize),
    Chmod(usize, u32),
    Chown(usize, u32),
    SetXattr(usize, u8, usize),
    RemoveXattr(usize, u8),
    StartSync,
    Step,
    DropCaches,
    Crash,
    XattrDir(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let (dir, name, file) = (0usize..6, 0usize..9, 0usize..16);
    let off = prop_oneof![0u64..3000, 0u64..200_000];
    prop_oneof![
        8 => (dir.clone(), name.clone(), 0u8..5, 0u32..0o1000).prop_map(|(d, n, k, m)| Op::Create(d, n, k, m)),
        2 => (file.clone(), dir.clone(), name.clone()).prop_map(|(f, d, n)| Op::Link(f, d, n)),
        3 => (dir.clone(), name.clone()).prop_map(|(d, n)| Op::Unlink(d, n)),
        2 => (dir.clone(), name.clone()).prop_map(|(d, n)| Op::Rmdir(d, n)),
        4 => (dir.clone(), name.clone(), dir.clone(), name.clone(), any::<bool>())
            .prop_map(|(a, b, c, d, x)| Op::Rename(a, b, c, d, x)),
        8 => (file.clone(), off.clone(), 1usize..20_000, 1u8..255).prop_map(|(f, o, l, v)| Op::Write(f, o, l, v)),
        3 => (file.clone(), off.clone()).prop_map(|(f, o)| Op::Truncate(f, o)),
        2 => (file.clone(), off, 1u64..100_000).prop_map(|(f, o, l)| Op::Punch(f, o, l)),
        4 => file.clone().prop_map(Op::Check),
        1 => (file.clone(), 0u32..0o2000).prop_map(|(f, m)| Op::Chmod(f, m)),
        1 => (file.clone(), 0u32..9).prop_map(|(f, m)| Op::Chown(f, m)),
        3 => (file.clone(), 0u8..4, prop_oneof![0usize..40, 300usize..3000, 30_000usize..40_000])
            .prop_map(|(f, n, l)| Op::SetXattr(f, n, l)),
        1 => (file, 0u8..4).prop_map(|(f, n)| Op::RemoveXattr(f, n)),
        3 => Just(Op::StartSync),
        10 => Just(Op::Step),
        1 => Just(Op::DropCaches),
        1 => Just(Op::Crash),
        1 => any::<bool>().prop_map(Op::XattrDir),
    ]
}

struct Pair {
    w: World,
    m: Model,
    /// The model as of the last synced txg, and as of the one being synced.
    disk: Model,
    closing: Option<Model>,
}

fn name(i: usize) -> Vec<u8> {
    if i < 7 { vec![b'a' + i as u8] } else { vec![b'x'; 40 + i * 20] }
}

fn errno<T>(r: Result<T>) -> R<T> {
    r.map_err(|e| e.errno())
}

impl Pair {
    fn new(version: u64) -> Pair {
        let w = World::new(version, FsProps { recordsize: 8192, ..FsProps::default() });
        let root = w.zfs.root();
        let body = Body::Dir(BTreeMap::new());
        let node = Node { body, mode: 0o755, uid: CRED.uid, nlink: 2, parent: root, xattrs: BTreeMap::new() };
        let m = Model { nodes: [(root, node)].into(), root };
        Pair { w, disk: m.clone(), m, closing: None }
    }

    fn pick(&self, i: usize, want: impl Fn(&Node) -> bool) -> Option<u64> {
        let all: Vec<u64> = self.m.nodes.iter().filter(|(_, n)| want(n)).map(|(id, _)| *id).collect();
        (!all.is_empty()).then(|| all[i % all.len()])
    }
    fn dir(&self, i: usize) -> u64 {
        self.pick(i, |n| n.dir().is_some()).unwrap()
    }
    fn file(&self, i: usize) -> Option<u64> {
        self.pick(i, |n| matches!(n.body, Body::File(_)))
    }
    fn any(&self, i: usize) -> u64 {
        self.pick(i, |_| true).unwrap()
    }

    fn create(&mut self, dir: u64, name: &[u8], kind: u8, mode: u32) {
        let target = vec![b't'; 1 + mode as usize * 4];
        let (fmt, body) = match kind {
            0 | 1 => (S_IFREG, Body::File(Vec::new())),
            2 => (S_IFDIR, Body::Dir(BTreeMap::new())),
            3 => (S_IFLNK, Body::Link(target.clone())),
            _ => (S_IFCHR, Body::Other(S_IFCHR)),
        };
        let new = NewFile {
            target: if kind == 3 { &target } else { b"" },
            rdev: 0x103,
            ..NewFile::new(fmt | mode, CRED)
        };
        let want = self.m.can_create(dir, name);
        let got = errno(block_on(self.w.zfs.create(dir, name, new)));
        match got {
            Ok((held, attr)) => {
                assert_eq!(want, Ok(()));
                assert_eq!(attr.mode, fmt | mode);
                self.m.created(dir, name, held.id(), mode, body);
            }
            Err(e) => assert_eq!(want, Err(e)),
        }
    }

    fn run(&mut self, op: &Op) {
        let zfs = self.w.zfs.clone();
        match *op {
            Op::Create(d, n, kind, mode) => self.create(self.dir(d), &name(n), kind, mode),
            Op::Link(f, d, n) => {
                let (Some(id), dir, name) = (self.file(f), self.dir(d), name(n)) else { return };
                let want = self.m.can_create(dir, &name);
                let got = errno(block_on(zfs.link(id, dir, &name)).map(|_| ()));
                assert_eq!(got, want);
                if got.is_ok() {
                    self.m.entries(dir).unwrap().insert(name, id);
                    self.m.node(id).nlink += 1;
                }
            }
            Op::Unlink(d, n) => {
                let dir = self.dir(d);
                let want = self.m.remove(dir, &name(n), false);
                assert_eq!(errno(block_on(zfs.unlink(dir, &name(n)))), want);
            }
            Op::Rmdir(d, n) => {
                let dir = self.dir(d);
                let want = self.m.remove(dir, &name(n), true);
                assert_eq!(errno(block_on(zfs.rmdir(dir, &name(n)))), want);
            }
            Op::Rename(a, b, c, d, exchange) => {
                let (from, to) = (self.dir(a), self.dir(c));
                let want = self.m.rename(from, &name(b), to, &name(d), exchange);
                let flags = RenameFlags { exchange, ..RenameFlags::default() };
                assert_eq!(errno(block_on(zfs.rename(from, &name(b), to, &name(d), flags, CRED))), want);
            }
            Op::Write(f, off, len, v) => {
                let Some(id) = self.file(f) else { return };
                let mut head = Bytes::from(vec![v; len]);
                let tail = head.split_off(len * usize::from(v) / 256);
                block_on(zfs.write_vectored(id, off, &[head, tail], false)).unwrap();
                let Body::File(data) = &mut self.m.node(id).body else { return };
                let end = off as usize + len;
                data.resize(data.len().max(end), 0);
                data[off as usize..end].fill(v);
            }
            Op::Truncate(f, size) => {
                let Some(id) = self.file(f) else { return };
                block_on(zfs.setattr(id, SetAttr { size: Some(size), ..SetAttr::default() })).unwrap();
                let Body::File(data) = &mut self.m.node(id).body else { return };
                data.resize(size as usize, 0);
            }
            Op::Punch(f, off, len) => {
                let Some(id) = self.file(f) else { return };
                block_on(zfs.punch(id, off, len, false, false)).unwrap();
                let Body::File(data) = &mut self.m.node(id).body else { return };
                let end = data.len().min((off + len) as usize);
                data.get_mut(off as usize..end).unwrap_or_default().fill(0);
            }
            Op::Check(f) => {
                let id = self.any(f);
                self.check(id);
            }
            Op::Chmod(f, mode) => {
                let id = self.any(f);
                block_on(zfs.setattr(id, SetAttr { mode: Some(mode), ..SetAttr::default() })).unwrap();
                self.m.node(id).mode = mode;
            }
            Op::Chown(f, uid) => {
                let id = self.any(f);
                block_on(zfs.setattr(id, SetAttr { uid: Some(uid), ..SetAttr::default() })).unwrap();
                self.m.node(id).uid = uid;
            }
            Op::SetXattr(f, n, len) => {
                let (id, name) = (self.any(f), format!("user.{n}").into_bytes());
                let value = vec![n; len];
                block_on(zfs.setxattr(id, &name, &value, XattrMode::Any)).unwrap();
                self.m.node(id).xattrs.insert(name, value);
            }
            Op::RemoveXattr(f, n) => {
                let (id, name) = (self.any(f), format!("user.{n}").into_bytes());
                let want = self.m.node(id).xattrs.remove(&name).map(drop).ok_or(Errno::NoData);
                assert_eq!(errno(block_on(zfs.removexattr(id, &name))), want);
            }
            Op::StartSync => {
                let now = self.m.clone();
                if self.w.start_sync() {
                    self.closing = Some(now);
                }
            }
            Op::Step => {
                if self.w.step() {
                    self.disk = self.closing.take().unwrap();
                }
            }
            Op::DropCaches => {
                zfs.forget_all();
                self.w.drop_caches();
            }
            Op::Crash => {
                drop(zfs);
                self.w.crash();
                self.closing = None;
                self.m = self.disk.clone();
                block_on(self.w.zfs.drain_unlinked()).unwrap();
            }
            Op::XattrDir(on) => zfs.set_props(FsProps { xattr_sa: !on, ..zfs.props() }),
        }
    }

    fn check(&self, id: u64) {
        let n = &self.m.nodes[&id];
        let a = block_on(self.w.zfs.getattr(id)).unwrap();
        assert_eq!((a.mode, a.nlink, a.uid), (n.fmt() | n.mode, n.nlink, n.uid), "file {id}");
        match &n.body {
            Body::File(data) => assert!(self.w.read(id) == *data, "contents of {id}"),
            Body::Link(t) => assert_eq!(&block_on(self.w.zfs.readlink(id)).unwrap()[..], &t[..]),
            Body::Dir(d) => {
                assert_eq!(a.size, d.len() as u64 + 2);
                let names = self.w.names(id);
                assert_eq!(names.len(), d.len());
                for e in names {
                    assert_eq!(d.get(&e.name), Some(&e.ino));
                    assert_eq!(u32::from(e.dtype) << 12, self.m.nodes[&e.ino].fmt());
                    let (held, _) = block_on(self.w.zfs.lookup(id, &e.name)).unwrap();
                    assert_eq!(held.id(), e.ino);
                }
                assert_eq!(block_on(self.w.zfs.lookup(id, b"..")).unwrap().0.id(), n.parent);
            }
            Body::Other(_) => assert_eq!(a.rdev, 0x103),
        }
        let names = block_on(self.w.zfs.listxattr(id)).unwrap();
        assert_eq!(names, n.xattrs.keys().cloned().collect::<Vec<_>>(), "attributes of {id}");
        for (name, value) in &n.xattrs {
            assert_eq!(&block_on(self.w.zfs.getxattr(id, name)).unwrap(), value);
        }
    }

    fn check_all(&self) {
        self.m.nodes.keys().for_each(|id| self.check(*id));
    }

    /// Every object on disk is one that something leads to.
    fn check_leaks(&mut self) {
        self.w.sync();
        let mut known: BTreeSet<u64> = self.m.nodes.keys().copied().collect();
        let dir_of =
            |id: u64| block_on(resident(|| self.w.zfs.znode(id))).unwrap().state.lock().attrs.xattr_obj;
        for id in self.m.nodes.keys().filter_map(|id| Some(dir_of(*id)).filter(|x| *x != 0)) {
            known.insert(id);
            known.extend(self.w.names(id).iter().map(|e| e.ino));
        }
        let all = self.w.objects();
        let extra: Vec<u64> = all.difference(&known).copied().collect();
        // Master node, attribute master, registry, layouts, delete queue; old file systems have no
        // attribute tables.
        let system = if self.w.zfs.version() >= 5 { 5 } else { 2 };
        assert_eq!(extra.len(), system, "objects {extra:?} beside the files");
        assert!(known.is_subset(&all), "files without objects");
    }
}

fn run(version: u64, ops: &[Op]) {
    let mut p = Pair::new(version);
    for op in ops {
        p.run(op);
    }
    p.check_all();
    p.w.finish_sync();
    p.w.sync();
    p.w.crash();
    block_on(p.w.zfs.drain_unlinked()).unwrap();
    p.check_all();
    p.check_leaks();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 3000, ..ProptestConfig::default() })]
    #[test]
    fn behaves_as_the_reference(ops in prop::collection::vec(op(), 1..120)) {
        run(5, &ops);
    }

    #[test]
    fn an_old_file_system_behaves_as_the_reference(ops in prop::collection::vec(op(), 1..60)) {
        run(4, &ops);
    }
}
