//! What the kernel that has a share mounted is told of changes.

use super::*;
use crate::export::{Changed, Remembers};
use futures_util::future::BoxFuture;
use std::sync::Mutex;
use zilla::zpl::{S_ISGID, S_ISUID};
use zilla::{Filesystem, NodeId, SetAttr};

const SETATTR: u32 = 2;
const LOOKUP: u32 = 3;
const WRITE: u32 = 7;
const CREATE: u32 = 8;
const MKDIR: u32 = 9;
const REMOVE: u32 = 12;
const RMDIR: u32 = 13;
const RENAME: u32 = 14;
const LINK: u32 = 15;

#[derive(Default)]
struct Told(Mutex<Vec<Changed>>);

impl Remembers for Told {
    fn forget(&self, changed: Vec<Changed>) -> BoxFuture<'_, ()> {
        self.0.lock().unwrap().extend(changed);
        Box::pin(async {})
    }
}

fn told_to(One(export): One, kernel: Arc<dyn Remembers>) -> One {
    let Export { id, path, fs, options, verifier, .. } = Arc::into_inner(export).unwrap();
    One(Arc::new(Export { id, path, fs, options, verifier, kernel: Some(kernel) }))
}

struct World {
    exports: One,
    told: Arc<Told>,
    /// The root's handle and number.
    root: (Bytes, NodeId),
}

impl World {
    fn new() -> World {
        let told = Arc::new(Told::default());
        let exports = told_to(shared("rw,no_root_squash"), told.clone());
        let node = exports.0.fs.root();
        let root = (root_of(&exports), node);
        World { exports, told, root }
    }

    /// A call's status, and what it told.
    fn call(&self, procedure: u32, args: &Out) -> (u32, Vec<Changed>, In) {
        self.told.0.lock().unwrap().clear();
        let mut reply = done(&self.exports, NFS, procedure, args);
        let told = std::mem::take(&mut *self.told.0.lock().unwrap());
        (reply.u32().unwrap(), told, reply)
    }

    /// Makes something in the root; its handle and number.
    fn make(&self, procedure: u32, name: &[u8], more: &[u32]) -> (Bytes, NodeId) {
        let (status, told, mut reply) = self.call(procedure, &place(&self.root.0, name, more));
        assert_eq!((status, reply.bool()), (0, Ok(true)));
        assert_eq!(told, self.named(self.root.1, name));
        let handle = reply.opaque(64).unwrap();
        let node = block_on(self.exports.0.fs.lookup(self.root.1, name)).unwrap().node;
        (handle, node)
    }

    /// What is told of a name: the directory has changed as well, though the kernel may not know
    /// the name.
    fn named(&self, dir: NodeId, name: &[u8]) -> Vec<Changed> {
        vec![Changed::Name(dir, name.to_vec()), Changed::File(dir)]
    }
}

fn place(dir: &[u8], name: &[u8], more: &[u32]) -> Out {
    let mut args = Out::default();
    args.opaque(dir).opaque(name);
    more.iter().for_each(|n| {
        args.u32(*n);
    });
    args
}

/// How a file is made, and with which mode.
const FILE: [u32; 8] = [1, 1, 0o644, 0, 0, 0, 0, 0];
const DIR: [u32; 7] = [1, 0o755, 0, 0, 0, 0, 0];

#[test]
fn a_directory_changes_with_its_names() {
    let w = World::new();
    let (root, top) = (w.root.0.clone(), w.root.1);
    let (file, f) = w.make(CREATE, b"f", &FILE);
    let (dir, d) = w.make(MKDIR, b"d", &DIR);

    let mut link = Out::default();
    link.opaque(&file).opaque(&dir).opaque(b"l");
    let (status, told, _) = w.call(LINK, &link);
    let mut want = w.named(d, b"l");
    want.push(Changed::File(f));
    assert_eq!((status, told), (0, want));

    let mut rename = place(&root, b"f", &[]);
    rename.opaque(&dir).opaque(b"g");
    let (status, told, _) = w.call(RENAME, &rename);
    let mut want = w.named(top, b"f");
    want.extend(w.named(d, b"g"));
    want.push(Changed::File(f));
    assert_eq!((status, told), (0, want));

    for name in [b"g", b"l"] {
        let (status, told, _) = w.call(REMOVE, &place(&dir, name, &[]));
        let mut want = w.named(d, name);
        want.push(Changed::File(f));
        assert_eq!((status, told), (0, want));
    }
    let (status, told, _) = w.call(RMDIR, &place(&root, b"d", &[]));
    let mut want = w.named(top, b"d");
    want.push(Changed::File(d));
    assert_eq!((status, told), (0, want));
}

/// A file that cannot have all that is wanted of it is not there, and nobody goes on believing that
/// it is, or is not.
#[test]
fn what_is_not_made_whole_is_not_there() {
    let w = World::new();
    // A size that no file has.
    let more = [0, 1, 0o644, 0, 0, 1, u32::MAX, u32::MAX, 0, 0];
    let (status, told, _) = w.call(CREATE, &place(&w.root.0, b"f", &more));
    assert_eq!((status, told), (27, w.named(w.root.1, b"f")));
    assert_eq!(w.call(LOOKUP, &place(&w.root.0, b"f", &[])).0, 2);
}

/// An administrator on the server, who changes a file as soon as a change of it is announced, which
/// is after that change was judged.
struct Meanwhile {
    fs: Arc<Filesystem>,
    change: Mutex<Option<(NodeId, SetAttr)>>,
}

impl Remembers for Meanwhile {
    fn forget(&self, _: Vec<Changed>) -> BoxFuture<'_, ()> {
        let change = self.change.lock().unwrap().take();
        Box::pin(async move {
            if let Some((node, set)) = change {
                self.fs.setattr(node, set).await.unwrap();
            }
        })
    }
}

/// User 1000 asks for a change of a file of his, or of somebody else's that all may write to; and
/// meanwhile it changes. The status, and the file's mode then.
fn overtaken(owner: u32, procedure: u32, more: &Out, set: SetAttr) -> (u32, u32) {
    let One(export) = shared("rw,no_root_squash");
    let fs = export.fs.clone();
    let kernel = Arc::new(Meanwhile { fs: fs.clone(), change: Mutex::default() });
    let exports = told_to(One(export), kernel.clone());
    let mut made = done(&exports, NFS, CREATE, &place(&root_of(&exports), b"f", &FILE));
    assert_eq!((made.u32(), made.bool()), (Ok(0), Ok(true)));
    let handle = made.opaque(64).unwrap();
    let node = block_on(fs.lookup(fs.root(), b"f")).unwrap().node;
    let given = SetAttr { uid: Some(owner), mode: Some(0o666), ..SetAttr::default() };
    block_on(fs.setattr(node, given)).unwrap();
    *kernel.change.lock().unwrap() = Some((node, set));
    let mut args = Out::default();
    args.opaque(&handle);
    args.0.extend_from_slice(&more.0);
    let status = done_by(1000, &exports, NFS, procedure, &args).u32().unwrap();
    assert!(kernel.change.lock().unwrap().is_none(), "it changed");
    (status, block_on(fs.getattr(node)).unwrap().mode & 0o7777)
}

/// The mode and size of a file that became root's meanwhile are root's to change.
#[test]
fn who_gave_the_file_away_meanwhile_no_longer_changes_it() {
    let mut args = Out::default();
    args.u32(1).u32(0o777).u32(0).u32(0).u32(1).u64(0).u32(0).u32(0).u32(0);
    let to_root = SetAttr { uid: Some(0), mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(overtaken(1000, SETATTR, &args, to_root), (1, 0o600));
    // Another change of the file is none of its owner.
    let touched = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(overtaken(1000, SETATTR, &args, touched), (0, 0o777));
}

/// What a stranger writes is not in a program that runs as its owner or group, whenever it became
/// one.
#[test]
fn what_is_written_takes_set_id_bits_that_came_meanwhile() {
    let mut args = Out::default();
    args.u64(0).u32(4).u32(0).opaque(b"evil");
    let armed = SetAttr { uid: Some(0), mode: Some(S_ISUID | S_ISGID | 0o755), ..SetAttr::default() };
    assert_eq!(overtaken(1001, WRITE, &args, armed), (0, 0o755));
}
