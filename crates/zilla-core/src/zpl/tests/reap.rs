//! Files that wait to be freed, and who may still want them.

use super::super::*;
use super::world::{CRED, World};
use crate::error::Errno;
use zilla_env::block_on;

fn world() -> (World, u64) {
    let w = World::new(5, FsProps::default());
    let root = w.zfs.root();
    (w, root)
}

fn new() -> NewFile<'static> {
    NewFile::new(S_IFREG | 0o644, CRED)
}

/// What a drain read of the queue a while ago may not be so any more: a file without a name was
/// given one.
#[test]
fn a_file_that_got_a_name_after_the_queue_was_read_is_left_alone() {
    let (w, root) = world();
    let (file, _) = block_on(w.zfs.create_unnamed(root, new())).unwrap();
    let id = file.id();
    block_on(w.zfs.link(id, root, b"f")).unwrap();
    block_on(w.zfs.clone().drain_one(id)).unwrap();
    assert_eq!(block_on(w.zfs.getattr(id)).unwrap().nlink, 1);
    drop(file);
    assert_eq!(block_on(w.zfs.lookup(root, b"f")).unwrap().1.nlink, 1);
}

/// And what was queued may be gone, and its number another file's.
#[test]
fn a_number_that_came_again_after_the_queue_was_read_is_left_alone() {
    let (w, root) = world();
    let id = block_on(w.zfs.create(root, b"f", new())).unwrap().0.id();
    block_on(w.zfs.clone().drain_one(id)).unwrap();
    assert_eq!(block_on(w.zfs.lookup(root, b"f")).unwrap().1.nlink, 1);
}

/// An entry of the queue whose object is gone is taken away; one that another has taken away is no
/// error.
#[test]
fn an_entry_without_an_object_goes_once() {
    let (w, _) = world();
    let none = 1000;
    block_on(w.zfs.change(|tx| w.zfs.enqueue(tx, none).map(drop))).unwrap();
    assert_eq!(block_on(w.zfs.drain_unlinked()).unwrap(), 1);
    assert_eq!(block_on(w.zfs.files_to_free()).unwrap(), 0);
    block_on(w.zfs.clone().drain_one(none)).unwrap();
}

/// An unlinked file that is open is left to its last user, who frees it.
#[test]
fn an_open_file_goes_with_its_last_user() {
    let (mut w, root) = world();
    let (file, _) = block_on(w.zfs.create(root, b"f", new())).unwrap();
    let id = file.id();
    block_on(w.zfs.unlink(root, b"f")).unwrap();
    block_on(w.zfs.drain_unlinked()).unwrap();
    assert_eq!(block_on(w.zfs.getattr(id)).unwrap().nlink, 0);
    drop(file);
    assert!(block_on(w.zfs.getattr(id)).unwrap_err().is(Errno::NoEnt));
    w.sync();
    assert_eq!(block_on(w.zfs.files_to_free()).unwrap(), 0);
}
