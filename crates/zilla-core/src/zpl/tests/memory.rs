//! What of files stays in memory, and what comes back of those that did not.

use super::super::attrs::Attrs;
use super::super::znode::Znode;
use super::super::*;
use super::world::{CRED, World};
use crate::dmu::objects::Table;
use crate::dmu::resident;
use crate::dsl::Quota;
use crate::error::Errno;
use crate::types::ObjectId;
use std::time::{Duration, Instant};
use zilla_env::block_on;

fn make(w: &World, name: &str) -> u64 {
    let new = NewFile::new(S_IFREG | 0o644, CRED);
    block_on(w.zfs.create(w.zfs.root(), name.as_bytes(), new)).unwrap().0.id()
}

/// Who reads a million files does not keep them all in memory for their times.
#[test]
fn access_times_of_many_files_are_written_without_a_sync() {
    let w = World::new(5, FsProps::default());
    let ids: Vec<u64> = (0..4100).map(|n| make(&w, &format!("f{n}"))).collect();
    for id in &ids {
        block_on(w.zfs.read(*id, 0, 1)).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while w.zfs.atimes_waiting() > 100 {
        assert!(Instant::now() < deadline, "{} wait", w.zfs.atimes_waiting());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What could not be written is not forgotten.
#[test]
fn access_times_wait_until_they_can_be_written() {
    let mut w = World::new(5, FsProps::default());
    let id = make(&w, "f");
    w.sync();
    let before = block_on(w.zfs.getattr(id)).unwrap().atime;
    block_on(w.zfs.read(id, 0, 1)).unwrap();
    w.zfs.set_props(FsProps { readonly: true, ..w.props });
    block_on(w.zfs.flush_atimes()).unwrap();
    w.zfs.set_props(w.props);
    block_on(w.zfs.flush_atimes()).unwrap();
    assert_eq!(w.zfs.atimes_waiting(), 0);
    w.sync();
    w.crash();
    assert!(block_on(w.zfs.getattr(id)).unwrap().atime > before);
}

/// Lets go of all files and objects that nobody uses, as where there are too many.
fn trim(w: &World) {
    for _ in 0..20 {
        w.zfs.znodes.trim();
    }
    w.objset.trim();
    w.drop_caches();
}

/// A client that has a file without a name only by its number gives it back: then it is freed, and
/// not at the next mount.
#[test]
fn an_unlinked_file_that_nobody_touched_for_long_is_freed() {
    let mut w = World::new(5, FsProps::default());
    let root = w.zfs.root();
    make(&w, "other");
    let (held, _) = block_on(w.zfs.create(root, b"f", NewFile::new(S_IFREG | 0o644, CRED))).unwrap();
    let id = held.leak();
    block_on(w.zfs.unlink(root, b"f")).unwrap();
    w.sync();
    trim(&w);
    w.zfs.forget(id, 1);
    w.sync();
    assert!(block_on(w.zfs.getattr(id)).unwrap_err().is(Errno::NoEnt));
    assert_eq!(block_on(w.zfs.files_to_free()).unwrap(), 0);
}

/// One thread reads a file's attributes; before it comes to put them into the table another has
/// changed the file, and it was let go of again.
#[test]
fn attributes_that_were_read_before_a_change_are_read_again() {
    let w = World::new(5, FsProps::default());
    let id = make(&w, "f");
    w.zfs.forget_all();
    let left = w.zfs.znodes.find(id).unwrap_err();
    let dnode = block_on(w.objset.hold_wait(ObjectId(id))).unwrap();
    let attrs = block_on(resident(|| Attrs::load(&w.zfs.sa, &dnode))).unwrap();
    let set = SetAttr { size: Some(5000), ..SetAttr::default() };
    block_on(w.zfs.setattr(id, set)).unwrap();
    trim(&w);
    assert!(w.zfs.znodes.find(id).is_err(), "it is not in the table");
    assert!(w.zfs.znodes.insert(Znode::new(dnode, attrs), Some(left)).is_none());
    assert_eq!(block_on(w.zfs.getattr(id)).unwrap().size, 5000);
}

/// Any writer may give files extended attributes of 64 KiB each.
#[test]
fn files_with_large_attributes_count_for_what_they_take() {
    /// Larger ones do not go beside the other attributes.
    const VALUE: usize = 30 << 10;
    let mut w = World::new(5, FsProps { xattr_sa: true, ..FsProps::default() });
    let cache = w.cache.clone();
    let objects = &cache.objects;
    objects.set_limit(1 << 10);
    let [_, limit] = objects.bytes();
    let ids: Vec<u64> = (0..200).map(|n| make(&w, &format!("f{n}"))).collect();
    w.sync();
    let [before, _] = objects.bytes();
    let set = |w: &World, id: u64, value: &[u8]| {
        for name in [b"user.x", b"user.y"] {
            block_on(w.zfs.setxattr(id, name, value, XattrMode::Any)).unwrap();
        }
    };
    set(&w, ids[0], &[1; VALUE]);
    let [after, _] = objects.bytes();
    assert!(after - before >= 4 * VALUE as u64, "the spill block and what the file knows of it");
    for (n, id) in ids.iter().enumerate() {
        set(&w, *id, &[n as u8; VALUE]);
        if n % 5 == 4 {
            w.sync();
        }
        let [used, _] = objects.bytes();
        assert!(used < 2 * limit, "{used} of {limit} bytes after {n} files");
    }
    w.sync();
    for _ in 0..2 {
        for (n, id) in ids.iter().enumerate() {
            let value = block_on(w.zfs.getxattr(*id, b"user.y")).unwrap();
            assert_eq!(value, vec![n as u8; VALUE]);
            let [used, _] = objects.bytes();
            assert!(used < 3 * limit / 2, "{used} of {limit} bytes after {n} files");
        }
        w.crash();
    }
    // What is not there is not counted.
    trim(&w);
    let ([used, _], live) = (objects.bytes(), objects.live());
    assert!(used < (live as u64 + 1) * (4 << 10), "{used} bytes of {live} objects");
}

/// A writer has looked the quotas up when one is set.
#[test]
fn a_quota_that_is_set_during_a_lookup_counts() {
    let w = World::new(5, FsProps::default());
    let changes = w.zfs.quotas.lock().changes;
    let old = block_on(resident(|| w.zfs.look_up_quota_objs())).unwrap();
    block_on(w.zfs.set_quota(Quota::User, false, 1000, 1 << 20)).unwrap();
    w.zfs.remember_quota_objs(&old, changes);
    let found = block_on(resident(|| w.zfs.quota_objs())).unwrap();
    assert!(found.0[0][0].is_some(), "the quota is not found");
}
