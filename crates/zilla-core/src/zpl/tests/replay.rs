//! No record of a change that was once made is refused when it is replayed: not for a file's flags,
//! nor for a quota.

use super::super::*;
use super::world::{CRED, World};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zio::Leave;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zilla_env::block_on;
use zilla_ondisk::BlkPtr;
use zilla_ondisk::zil::{CreateBody, Foid, LogRecord, LrAcl, LrHeader, RecordBody, Xvattr};

/// A dataset over its quotas, once `full` is set: only what frees space gets through.
#[derive(Default)]
struct Quota {
    full: AtomicBool,
}

impl Space for Quota {
    fn usage(&self) -> (u64, u64) {
        (1 << 30, 0)
    }
    fn admit(&self, _: &Tx, _: u64, frees: bool) -> Result<()> {
        match self.full.load(Ordering::Relaxed) && !frees {
            true => Err(Error::os(Errno::DQuot, "over quota")),
            false => Ok(()),
        }
    }
    fn hold_room(&self, _: &Tx, _: u64, _: Leave) -> Result<()> {
        Ok(())
    }
    fn need_feature(&self, _: &'static str) {}
}

/// What records are about, each thing with the flag under test.
struct Ids {
    /// Two directories, of which the first has all that follows but the last.
    dir: u64,
    other: u64,
    file: u64,
    /// `other/target`.
    target: u64,
    /// The directory of the file's extended attributes is to be.
    new: u64,
}

const NEW: u64 = 100;

fn world(flag: u64, props: FsProps) -> (World, Ids, Arc<Quota>) {
    let space = Arc::new(Quota::default());
    let w = World::within(5, props, space.clone());
    let root = w.zfs.root();
    let make = |dir: u64, name: &[u8], mode: u32| {
        block_on(w.zfs.create(dir, name, NewFile::new(mode, CRED))).unwrap().0.id()
    };
    let dir = make(root, b"d", S_IFDIR | 0o755);
    let other = make(root, b"e", S_IFDIR | 0o755);
    let file = make(dir, b"f", S_IFREG | 0o644);
    let sub = make(dir, b"sub", S_IFDIR | 0o755);
    let target = make(other, b"target", S_IFREG | 0o644);
    block_on(w.zfs.write(file, 0, &vec![7; 3000].into(), false)).unwrap();
    for id in [dir, other, file, sub, target] {
        let set = SetAttr { flags: Some((flag, 0)), ..SetAttr::default() };
        block_on(w.zfs.setattr(id, set)).unwrap();
    }
    let mut w = w;
    w.sync();
    (w, Ids { dir, other, file, target, new: NEW }, space)
}

fn new_file(i: &Ids, mode: u32, name: &'static [u8], link: Option<&'static [u8]>) -> CreateBody<'static> {
    CreateBody {
        dir: i.dir,
        file: Foid { object: i.new, slots: 1 },
        mode: mode.into(),
        uid: 1,
        gid: 2,
        generation: 7,
        crtime: [1, 2],
        rdev: 0,
        name,
        link,
        xvattr: None,
        acl: None,
    }
}

fn set(i: &Ids, mask: u64, size: u64, xvattr: Option<Xvattr>) -> RecordBody<'static> {
    let (uid, gid, time) = (5, 6, [1, 2]);
    RecordBody::Setattr {
        object: i.file,
        mask,
        mode: 0o100600,
        uid,
        gid,
        size,
        atime: time,
        mtime: time,
        xvattr,
    }
}

fn gone(w: &World, dir: u64, name: &[u8]) -> bool {
    block_on(w.zfs.lookup(dir, name)).err().is_some_and(|e| e.is(Errno::NoEnt))
}

fn there(w: &World, dir: u64, name: &[u8], id: u64) -> bool {
    block_on(w.zfs.lookup(dir, name)).unwrap().0.id() == id
}

fn attr(w: &World, id: u64) -> Attr {
    block_on(w.zfs.getattr(id)).unwrap()
}

type Record = fn(&Ids) -> RecordBody<'static>;
type Check = fn(&World, &Ids) -> bool;

/// Every kind of record, and what is so when it is done.
const RECORDS: &[(&str, Record, Check)] = &[
    (
        "create",
        |i| RecordBody::Create(new_file(i, S_IFREG | 0o644, b"n", None)),
        |w, i| there(w, i.dir, b"n", NEW),
    ),
    (
        "mkdir",
        |i| RecordBody::Mkdir(new_file(i, S_IFDIR | 0o755, b"n", None)),
        |w, i| there(w, i.dir, b"n", NEW),
    ),
    (
        "symlink",
        |i| RecordBody::Symlink(new_file(i, S_IFLNK | 0o777, b"n", Some(b"to"))),
        |w, i| there(w, i.dir, b"n", NEW),
    ),
    (
        "mkxattr",
        |i| RecordBody::Mkxattr(CreateBody { dir: i.file, ..new_file(i, S_IFDIR | 0o1777, b"", None) }),
        |w, _| attr(w, NEW).is_dir(),
    ),
    ("remove", |i| RecordBody::Remove { dir: i.dir, name: b"f" }, |w, i| gone(w, i.dir, b"f")),
    ("rmdir", |i| RecordBody::Rmdir { dir: i.dir, name: b"sub" }, |w, i| gone(w, i.dir, b"sub")),
    (
        "link",
        |i| RecordBody::Link { dir: i.other, object: i.file, name: b"l" },
        |w, i| there(w, i.other, b"l", i.file),
    ),
    (
        "rename",
        |i| RecordBody::Rename { source_dir: i.dir, target_dir: i.other, source: b"f", target: b"r" },
        |w, i| gone(w, i.dir, b"f") && there(w, i.other, b"r", i.file),
    ),
    (
        "rename over another",
        |i| RecordBody::Rename { source_dir: i.dir, target_dir: i.other, source: b"f", target: b"target" },
        |w, i| gone(w, i.dir, b"f") && there(w, i.other, b"target", i.file),
    ),
    (
        "exchange",
        |i| RecordBody::RenameExchange {
            source_dir: i.dir,
            target_dir: i.other,
            source: b"f",
            target: b"target",
        },
        |w, i| there(w, i.dir, b"f", i.target) && there(w, i.other, b"target", i.file),
    ),
    (
        "whiteout",
        |i| RecordBody::RenameWhiteout {
            source_dir: i.dir,
            target_dir: i.other,
            source: b"f",
            target: b"r",
            whiteout: Foid { object: i.new, slots: 1 },
            mode: u64::from(S_IFCHR),
            uid: 0,
            gid: 0,
            generation: 7,
            crtime: [1, 2],
            rdev: 0,
        },
        |w, i| there(w, i.dir, b"f", NEW) && there(w, i.other, b"r", i.file),
    ),
    (
        "write",
        |i| RecordBody::Write { object: i.file, offset: 10, length: 5, blkptr: BlkPtr::ZERO, data: b"hello" },
        |w, i| w.read(i.file)[9..16] == *b"\x07hello\x07",
    ),
    (
        "a write's size",
        |i| RecordBody::Write2 { object: i.file, offset: 4000, length: 5, blkptr: BlkPtr::ZERO },
        |w, i| attr(w, i.file).size == 4005,
    ),
    (
        "truncate",
        |i| RecordBody::Truncate { object: i.file, offset: 100, length: 0 },
        |w, i| attr(w, i.file).size == 100,
    ),
    (
        "punch",
        |i| RecordBody::Truncate { object: i.file, offset: 0, length: 10 },
        |w, i| w.read(i.file)[..11] == *b"\0\0\0\0\0\0\0\0\0\0\x07",
    ),
    ("chmod", |i| set(i, 1, 0, None), |w, i| attr(w, i.file).mode == S_IFREG | 0o600),
    ("chown", |i| set(i, 2 | 4, 0, None), |w, i| (attr(w, i.file).uid, attr(w, i.file).gid) == (5, 6)),
    ("setattr of a smaller size", |i| set(i, 8, 50, None), |w, i| attr(w, i.file).size == 50),
    ("setattr of a larger size", |i| set(i, 8, 5000, None), |w, i| attr(w, i.file).size == 5000),
    ("times", |i| set(i, 16 | 32, 0, None), |w, i| attr(w, i.file).mtime.sec == 1),
    (
        "flags and project",
        |i| {
            let mut scanstamp = [0; 32];
            scanstamp[0] = 9;
            // Archive, hidden and a project.
            let bitmap = vec![0x2 | 0x10 | 0x4_0000];
            set(i, 1 << 63, 0, Some(Xvattr { bitmap, attrs: 0x10, crtime: [0; 2], scanstamp }))
        },
        |w, i| attr(w, i.file).projid == 9,
    ),
    (
        "acl",
        |i| RecordBody::Acl { object: i.file, acl: LrAcl::default() },
        |w, i| attr(w, i.file).mode & 0o777 == 0,
    ),
    (
        "an extended attribute",
        |i| RecordBody::Setsaxattr { object: i.file, name: b"user.a", value: b"v" },
        |w, i| block_on(w.zfs.getxattr(i.file, b"user.a")).unwrap() == b"v",
    ),
    (
        "clone",
        |i| RecordBody::CloneRange {
            object: i.file,
            offset: 0,
            length: 3072,
            blksz: 3072,
            bps: vec![BlkPtr::ZERO],
        },
        |w, i| w.read(i.file) == vec![0; 3072],
    ),
];

fn replay(w: &World, body: RecordBody<'static>) -> Result<()> {
    let header = LrHeader { seq: 1, ..LrHeader::default() };
    w.zfs.replaying.store(true, Ordering::Release);
    let result = block_on(w.zfs.replay_record(&LogRecord { header, ignore_case: false, body }));
    w.zfs.replaying.store(false, Ordering::Release);
    result
}

#[test]
fn every_record_is_replayed_whatever_flags_files_have() {
    let flags = [0, ZFS_IMMUTABLE, ZFS_APPENDONLY, ZFS_NOUNLINK, ZFS_PROJINHERIT];
    for flag in flags {
        for (name, record, check) in RECORDS {
            let (w, ids, _) = world(flag, FsProps::default());
            replay(&w, record(&ids)).unwrap_or_else(|e| panic!("{name} with flags {flag:x}: {e}"));
            assert!(check(&w, &ids), "{name} with flags {flag:x} was not done");
        }
    }
}

#[test]
fn every_record_is_replayed_whatever_the_quotas_are() {
    for (name, record, check) in RECORDS {
        let (w, ids, space) = world(0, FsProps::default());
        space.full.store(true, Ordering::Relaxed);
        w.zfs.set_props(FsProps { default_quotas: [1; 3], ..w.props });
        let new = NewFile::new(S_IFREG | 0o644, CRED);
        let refused = block_on(w.zfs.create(ids.dir, b"x", new)).err().expect("refused");
        assert!(refused.is(Errno::DQuot), "{refused}");
        replay(&w, record(&ids)).unwrap_or_else(|e| panic!("{name} over quota: {e}"));
        assert!(check(&w, &ids), "{name} was not done over quota");
    }
}

/// A link or rename into the tree of another project is refused, but not if it was made before the
/// tree became another's.
#[test]
fn every_record_is_replayed_whatever_the_projects_are_and_read_only_or_not() {
    for (name, record, check) in RECORDS {
        let (w, ids, _) = world(ZFS_PROJINHERIT, FsProps::default());
        for (id, projid) in [(ids.dir, 3), (ids.other, 4)] {
            let set = SetAttr { projid: Some(projid), ..SetAttr::default() };
            block_on(w.zfs.setattr(id, set)).unwrap();
        }
        w.zfs.set_props(FsProps { readonly: true, ..w.props });
        replay(&w, record(&ids)).unwrap_or_else(|e| panic!("{name} across projects: {e}"));
        assert!(check(&w, &ids), "{name} was not done across projects");
    }
}

/// Files have all names of attributes: `/` is as good as any letter.
#[test]
fn an_attribute_with_a_slash_is_replayed() {
    let (w, i, _) = world(0, FsProps::default());
    let dir = CreateBody { dir: i.file, ..new_file(&i, S_IFDIR | 0o1777, b"", None) };
    let file = Foid { object: NEW + 1, slots: 1 };
    let made = CreateBody { dir: NEW, file, ..new_file(&i, S_IFREG | 0o644, b"user.a/b", None) };
    replay(&w, RecordBody::Mkxattr(dir)).unwrap();
    replay(&w, RecordBody::Create(made)).unwrap();
    let value = RecordBody::Write { object: NEW + 1, offset: 0, length: 1, blkptr: BlkPtr::ZERO, data: b"v" };
    replay(&w, value).unwrap();
    assert_eq!(block_on(w.zfs.getxattr(i.file, b"user.a/b")).unwrap(), b"v");
    replay(&w, RecordBody::Remove { dir: NEW, name: b"user.a/b" }).unwrap();
    let none = block_on(w.zfs.getxattr(i.file, b"user.a/b")).unwrap_err();
    assert!(none.is(Errno::NoData), "{none}");
}

/// Where files' names are compared without their case attributes' are not; but OpenZFS's logs may
/// spell one otherwise than it is.
#[test]
fn attributes_whose_names_differ_in_case_are_two() {
    let w = World::insensitive();
    let new = NewFile::new(S_IFREG | 0o644, CRED);
    let file = block_on(w.zfs.create(w.zfs.root(), b"f", new)).unwrap().0.id();
    let i = Ids { dir: NEW, other: 0, file, target: 0, new: NEW };
    let dir = CreateBody { dir: file, ..new_file(&i, S_IFDIR | 0o1777, b"", None) };
    replay(&w, RecordBody::Mkxattr(dir)).unwrap();
    for (object, name) in [(NEW + 1, &b"user.A"[..]), (NEW + 2, b"user.a"), (NEW + 3, b"user.B")] {
        let file = Foid { object, slots: 1 };
        let made = CreateBody { file, name, ..new_file(&i, S_IFREG | 0o644, b"", None) };
        replay(&w, RecordBody::Create(made)).unwrap_or_else(|e| panic!("{object}: {e}"));
    }
    for name in [b"user.a", b"user.b"] {
        replay(&w, RecordBody::Remove { dir: NEW, name }).unwrap();
    }
    assert_eq!(block_on(w.zfs.listxattr(file)).unwrap(), [b"user.A".to_vec()]);
}

/// Found by reading: the dnode could not be encoded, which ended the sync of the whole pool.
#[test]
fn a_logged_block_that_goes_on_behind_the_largest_file_is_cut() {
    let (mut w, ids, _) = world(0, FsProps::default());
    let (offset, length) = (i64::MAX as u64 - 100, 50);
    let blkptr = BlkPtr::hole(1536, 19, 0, 1);
    replay(&w, RecordBody::Write { object: ids.file, offset, length, blkptr, data: b"" }).unwrap();
    w.sync();
    assert_eq!(attr(&w, ids.file).size, offset + length);
}
