//! What the kernel that has a share mounted is told of changes.

use super::*;
use crate::export::{Changed, Remembers};
use futures_util::future::BoxFuture;
use std::sync::Mutex;
use zilla::NodeId;

const LOOKUP: u32 = 3;
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

struct World {
    exports: One,
    told: Arc<Told>,
    /// The root's handle and number.
    root: (Bytes, NodeId),
}

impl World {
    fn new() -> World {
        let told = Arc::new(Told::default());
        let One(export) = shared("rw,no_root_squash");
        let Export { id, path, fs, options, verifier, .. } = Arc::into_inner(export).unwrap();
        let node = fs.root();
        let kernel: Option<Arc<dyn Remembers>> = Some(told.clone());
        let exports = One(Arc::new(Export { id, path, fs, options, verifier, kernel }));
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
