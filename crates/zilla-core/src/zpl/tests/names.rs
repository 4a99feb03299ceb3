//! Names that are compared without their case: what is one entry, and what are two.

use super::super::*;
use super::world::{CRED, World};
use crate::error::{Errno, Result};
use crate::txg::Tx;
use crate::zio::Leave;
use std::sync::Arc;
use zilla_env::block_on;

fn make(w: &World, name: &[u8]) -> u64 {
    block_on(w.zfs.create(w.zfs.root(), name, NewFile::new(S_IFREG | 0o644, CRED))).unwrap().0.id()
}

fn rename(w: &World, old: &[u8], new: &[u8]) -> Result<()> {
    let root = w.zfs.root();
    block_on(w.zfs.rename(root, old, root, new, RenameFlags::default(), CRED))
}

fn names(w: &World) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = w.names(w.zfs.root()).into_iter().map(|e| e.name).collect();
    names.sort();
    names
}

/// As POSIX has it, a rename of one name of a file to another of its names does nothing.
#[test]
fn a_rename_to_another_link_does_nothing() {
    let w = World::insensitive();
    let root = w.zfs.root();
    let id = make(&w, b"a");
    block_on(w.zfs.link(id, root, b"b")).unwrap();
    rename(&w, b"A", b"B").unwrap();
    assert_eq!(names(&w), [b"a", b"b"]);
    assert_eq!(block_on(w.zfs.getattr(id)).unwrap().nlink, 2);
}

#[test]
fn a_name_is_moved_and_spelled_anew() {
    let w = World::insensitive();
    let id = make(&w, b"a");
    make(&w, b"c");
    rename(&w, b"A", b"b").unwrap();
    assert_eq!(names(&w), [b"b", b"c"]);
    rename(&w, b"b", b"B").unwrap();
    assert_eq!(names(&w), [b"B", b"c"]);
    rename(&w, b"b", b"C").unwrap();
    assert_eq!(names(&w), [b"c"], "an entry that is there keeps its spelling");
    assert_eq!(block_on(w.zfs.lookup(w.zfs.root(), b"c")).unwrap().0.id(), id);
}

/// A pool that has no long names.
struct Short;

impl Space for Short {
    fn usage(&self) -> (u64, u64) {
        (0, u64::MAX >> 2)
    }
    fn admit(&self, _: &Tx, _: u64, _: bool) -> Result<()> {
        Ok(())
    }
    fn hold_room(&self, _: &Tx, _: u64, _: Leave) -> Result<()> {
        Ok(())
    }
    fn need_feature(&self, _: &'static str) {}
    fn has_feature(&self, name: &'static str) -> bool {
        name != "longname"
    }
}

/// The old spelling goes before the new one comes; if that fails the old one is there again.
#[test]
fn what_cannot_be_spelled_anew_stays_as_it_is() {
    let props = FsProps { long_names: true, ..FsProps::default() };
    let mut w = World::insensitive_within(props, Arc::new(Short));
    let old = vec![b'S'; 200];
    let id = make(&w, &old);
    // The long s is a capital S without its case, and longer than that.
    let new = "\u{17f}".repeat(200);
    let refused = rename(&w, &old, new.as_bytes()).unwrap_err();
    assert!(refused.is(Errno::NameTooLong), "{refused}");
    assert_eq!(names(&w), std::slice::from_ref(&old));
    w.sync();
    w.crash();
    assert_eq!(block_on(w.zfs.lookup(w.zfs.root(), &old)).unwrap().0.id(), id);
}

/// Who has judged by one file does not take the name of another.
#[test]
fn a_name_that_leads_to_another_file_than_was_judged_stays() {
    let w = World::new(5, FsProps::default());
    let root = w.zfs.root();
    let (a, b) = (make(&w, b"a"), make(&w, b"b"));
    let stale = |r: Result<()>| assert!(r.unwrap_err().is(Errno::Stale));
    stale(block_on(w.zfs.remove_judged(root, b"a", false, b)));
    let rename = |new: &[u8], judged| block_on(w.zfs.rename_judged(root, b"a", root, new, CRED, judged));
    stale(rename(b"b", (b, Some(b))));
    stale(rename(b"b", (a, None)));
    stale(rename(b"b", (a, Some(a))));
    stale(rename(b"c", (a, Some(b))));
    assert_eq!(names(&w), [b"a", b"b"]);
    rename(b"b", (a, Some(b))).unwrap();
    assert_eq!(names(&w), [b"b"]);
    block_on(w.zfs.remove_judged(root, b"b", false, a)).unwrap();
    assert!(names(&w).is_empty());
}
