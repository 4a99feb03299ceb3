//! What a directory tree must look like: the reference that file systems are compared with.
//!
//! Files are known by numbers of their own, so that an operation means the same in the model and in
//! the pool. [`Model::view`] is what both are turned into to be compared: paths, with all that a
//! user can see of each.

use super::acl::{ACCESS, Acl, DEFAULT};
use std::collections::BTreeMap;
use zilla_core::zpl::{ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_NODUMP, ZFS_NOUNLINK};

/// The file flags that users set (`chattr +iad`, and the one that keeps a name).
pub const FLAGS: [u64; 4] = [ZFS_IMMUTABLE, ZFS_APPENDONLY, ZFS_NOUNLINK, ZFS_NODUMP];

/// A file of the model.
pub type Id = u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<String, Id>),
    Link(String),
    Fifo,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub body: Body,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Of [`FLAGS`].
    pub flags: u64,
    /// The modification time, where it was set and nothing has changed it since.
    pub mtime: Option<i64>,
}

impl Node {
    fn new(body: Body, mode: u32) -> Node {
        let nlink = if matches!(body, Body::Dir(_)) { 2 } else { 1 };
        Node { body, mode, uid: 0, gid: 0, nlink, xattrs: BTreeMap::new(), flags: 0, mtime: None }
    }

    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }

    /// Flags let nothing of it be changed but what is appended, if that.
    pub fn is_fixed(&self) -> bool {
        self.flags & (ZFS_IMMUTABLE | ZFS_APPENDONLY) != 0
    }

    pub fn takes_names(&self) -> bool {
        self.flags & ZFS_IMMUTABLE == 0
    }

    /// Its flags let it lose a name.
    pub fn may_go(&self) -> bool {
        self.flags & (ZFS_IMMUTABLE | ZFS_APPENDONLY | ZFS_NOUNLINK) == 0
    }
}

/// What a user sees of one name.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    pub kind: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub size: u64,
    pub data: Vec<u8>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    pub flags: u64,
    pub mtime: Option<i64>,
    /// The first path that leads to the same file.
    pub first: String,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = self.data.iter().fold(0u64, |s, b| s.wrapping_mul(31).wrapping_add(u64::from(*b)));
        let xattrs: Vec<_> = self.xattrs.iter().map(|(k, v)| (k, v.len())).collect();
        write!(
            f,
            "kind {:o} mode {:o} owner {}:{} links {} size {} data {sum:x} xattrs {xattrs:?} flags {:x} mtime {:?} = {}",
            self.kind,
            self.mode,
            self.uid,
            self.gid,
            self.nlink,
            self.size,
            self.flags,
            self.mtime,
            self.first
        )
    }
}

/// A tree as its users see it, by path; the root's path is empty.
pub type View = BTreeMap<String, Seen>;

/// The first difference between what is there and what should be.
pub fn difference(is: &View, should: &View) -> Option<String> {
    for (path, want) in should {
        match is.get(path) {
            None => return Some(format!("{path:?} is missing")),
            Some(have) => {
                let mut have = have.clone();
                if want.mtime.is_none() {
                    have.mtime = None;
                }
                if have != *want {
                    let at = have.data.iter().zip(&want.data).position(|(a, b)| a != b);
                    return Some(format!("{path:?} is {have:?}, should be {want:?}; data differ at {at:?}"));
                }
            }
        }
    }
    is.keys().find(|p| !should.contains_key(*p)).map(|p| format!("{p:?} should not be there"))
}

/// A directory and all below it, with the datasets that its actor made beside.
#[derive(Clone, Debug)]
pub struct Model {
    pub nodes: BTreeMap<Id, Node>,
    pub snapshots: BTreeMap<String, u64>,
    /// Datasets besides the main one.
    pub datasets: BTreeMap<String, Dataset>,
}

pub type Contents = BTreeMap<String, Vec<u8>>;

/// A dataset with a few files in its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dataset {
    /// The snapshot it is a clone of.
    pub origin: Option<String>,
    pub files: Contents,
    /// Its snapshots, older first.
    pub snapshots: Vec<(String, Contents)>,
}

pub const ROOT: Id = 0;
pub const S_IFDIR: u32 = 0o040000;
pub const S_IFREG: u32 = 0o100000;
pub const S_IFLNK: u32 = 0o120000;
pub const S_IFIFO: u32 = 0o010000;

impl Default for Model {
    fn default() -> Model {
        let root = Node::new(Body::Dir(BTreeMap::new()), 0o755);
        Model { nodes: [(ROOT, root)].into(), snapshots: BTreeMap::new(), datasets: BTreeMap::new() }
    }
}

impl Model {
    fn node(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("operations name files that are there")
    }

    pub fn entries(&self, dir: Id) -> &BTreeMap<String, Id> {
        match &self.nodes[&dir].body {
            Body::Dir(d) => d,
            _ => unreachable!("operations name directories that are there"),
        }
    }

    fn entries_mut(&mut self, dir: Id) -> &mut BTreeMap<String, Id> {
        let node = self.node(dir);
        node.mtime = None;
        match &mut node.body {
            Body::Dir(d) => d,
            _ => unreachable!("operations name directories that are there"),
        }
    }

    pub fn create(&mut self, dir: Id, name: &str, id: Id, body: Body, mode: u32) {
        let (is_dir, is_link) = (matches!(body, Body::Dir(_)), matches!(body, Body::Link(_)));
        self.entries_mut(dir).insert(name.into(), id);
        self.node(dir).nlink += u32::from(is_dir);
        let mut node = Node::new(body, mode);
        let default = self.nodes[&dir].xattrs.get(DEFAULT).filter(|_| !is_link).cloned();
        if let Some(acl) = default.as_deref().and_then(Acl::decode) {
            let access = acl.inherited(mode);
            node.mode = mode & !0o777 | access.mode();
            node.xattrs.insert(ACCESS.into(), access.encode());
            if is_dir {
                node.xattrs.insert(DEFAULT.into(), acl.encode());
            }
        }
        self.nodes.insert(id, node);
    }

    pub fn chmod(&mut self, id: Id, mode: u32) {
        let node = self.node(id);
        node.mode = mode;
        if let Some(value) = node.xattrs.get_mut(ACCESS)
            && let Some(mut acl) = Acl::decode(value)
        {
            acl.chmod(mode);
            *value = acl.encode();
        }
    }

    pub fn set_acl(&mut self, id: Id, default: bool, acl: Acl) {
        let node = self.node(id);
        if !default {
            node.mode = node.mode & !0o777 | acl.mode();
        }
        node.xattrs.insert(if default { DEFAULT } else { ACCESS }.into(), acl.encode());
    }

    /// Two names change places.
    pub fn exchange(&mut self, from: Id, old: &str, to: Id, new: &str) {
        let (Some(&a), Some(&b)) = (self.entries(from).get(old), self.entries(to).get(new)) else { return };
        self.entries_mut(from).insert(old.into(), b);
        self.entries_mut(to).insert(new.into(), a);
        for (id, loses, gains) in [(a, from, to), (b, to, from)] {
            if self.nodes[&id].is_dir() {
                self.node(loses).nlink -= 1;
                self.node(gains).nlink += 1;
            }
        }
    }

    pub fn data(&mut self, id: Id) -> &mut Vec<u8> {
        let node = self.node(id);
        node.mtime = None;
        match &mut node.body {
            Body::File(data) => data,
            _ => unreachable!("operations write files"),
        }
    }

    pub fn link(&mut self, id: Id, dir: Id, name: &str) {
        self.entries_mut(dir).insert(name.into(), id);
        self.node(id).nlink += 1;
    }

    /// Takes a name away, of whatever kind.
    pub fn remove(&mut self, dir: Id, name: &str) {
        let Some(id) = self.entries_mut(dir).remove(name) else { return };
        let node = self.node(id);
        let is_dir = node.is_dir();
        node.nlink -= 1;
        if is_dir || node.nlink == 0 {
            self.nodes.remove(&id);
            self.node(dir).nlink -= u32::from(is_dir);
        }
    }

    pub fn rename(&mut self, from: Id, old: &str, to: Id, new: &str) {
        let Some(&id) = self.entries(from).get(old) else { return };
        if self.entries(to).get(new) == Some(&id) {
            return;
        }
        self.remove(to, new);
        self.entries_mut(from).remove(old);
        self.entries_mut(to).insert(new.into(), id);
        if self.nodes[&id].is_dir() {
            self.node(from).nlink -= 1;
            self.node(to).nlink += 1;
        }
    }

    pub fn set(&mut self, id: Id, f: impl FnOnce(&mut Node)) {
        f(self.node(id));
    }

    /// Whether `dir` is `top` or below it.
    pub fn is_below(&self, dir: Id, top: Id) -> bool {
        let mut todo = vec![top];
        while let Some(at) = todo.pop() {
            if at == dir {
                return true;
            }
            if let Some(Node { body: Body::Dir(d), .. }) = self.nodes.get(&at) {
                todo.extend(d.values());
            }
        }
        false
    }

    pub fn view(&self) -> View {
        let mut out = View::new();
        let mut first: BTreeMap<Id, String> = BTreeMap::new();
        self.visit(ROOT, String::new(), &mut first, &mut out);
        out
    }

    fn visit(&self, id: Id, path: String, first: &mut BTreeMap<Id, String>, out: &mut View) {
        let n = &self.nodes[&id];
        let first_path = first.entry(id).or_insert_with(|| path.clone()).clone();
        let (kind, size, data) = match &n.body {
            Body::File(d) => (S_IFREG, d.len() as u64, d.clone()),
            Body::Dir(d) => (S_IFDIR, d.len() as u64 + 2, Vec::new()),
            Body::Link(t) => (S_IFLNK, t.len() as u64, t.clone().into_bytes()),
            Body::Fifo => (S_IFIFO, 0, Vec::new()),
        };
        let seen = Seen {
            kind,
            mode: n.mode,
            uid: n.uid,
            gid: n.gid,
            nlink: n.nlink,
            size,
            data,
            xattrs: n.xattrs.clone(),
            flags: n.flags,
            mtime: n.mtime,
            first: first_path,
        };
        out.insert(path.clone(), seen);
        if let Body::Dir(d) = &n.body {
            for (name, child) in d {
                self.visit(*child, format!("{path}/{name}"), first, out);
            }
        }
    }
}
