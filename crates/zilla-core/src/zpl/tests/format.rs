//! What lies on disk, byte for byte, where OpenZFS's own tools look without asking the tables.

use super::super::xattr::stored_names;
use super::super::*;
use super::world::{CRED, World};
use crate::dmu::{NewObject, Owner, resident};
use crate::types::ObjectId;
use bytes::Bytes;
use zilla_env::block_on;
use zilla_ondisk::object_type::{DMU_OT_ACL, DMU_OT_SA, DMU_OT_ZNODE};

fn file(w: &World, name: &[u8], mode: u32) -> u64 {
    block_on(w.zfs.create(w.zfs.root(), name, NewFile::new(mode, CRED))).unwrap().0.id()
}

#[test]
fn a_new_file_has_openzfs_attributes_in_openzfs_order() {
    let w = World::new(5, FsProps::default());
    let id = file(&w, b"f", S_IFREG | 0o644);
    let dn = block_on(w.objset.hold_wait(ObjectId(id))).unwrap();
    let bonus = dn.bonus();
    assert_eq!(dn.bonus_type(), DMU_OT_SA);
    let word = |at: usize| u64::from_ne_bytes(bonus[at..at + 8].try_into().unwrap());
    assert_eq!(&bonus[..4], &0x2f505au32.to_ne_bytes());
    // The root directory's layout is the first, 2; a plain file has the same attributes.
    assert_eq!(&bonus[4..6], &(1u16 << 10 | 2).to_ne_bytes());
    assert_eq!(word(8), 0o100644);
    assert_eq!(word(8 + 24), 1000);
    assert_eq!(word(8 + 40), w.zfs.root());
    assert_eq!(word(8 + 48), 0x8408_0000_0004, "flags: archive, av-modified, project, trivial ACL");
    assert_eq!(word(8 + 136), 3, "access control entries");
    assert_eq!(bonus.len(), 8 + 144 + 24);
    assert_eq!(owner_of(DMU_OT_SA, &bonus), Some(Owner { uid: 1000, gid: 100, projid: Some(0) }));
}

#[test]
fn files_that_nobody_uses_have_a_limit() {
    let mut w = World::new(5, FsProps::default());
    let cache = w.cache.clone();
    cache.objects.set_limit(40);
    for i in 0..300 {
        file(&w, format!("f{i}").as_bytes(), S_IFREG | 0o644);
        if i % 10 == 9 {
            w.sync();
        }
        let live = cache.objects.live();
        assert!(live < 80, "{live} objects in memory after {i} files");
    }
    assert_eq!(w.names(w.zfs.root()).len(), 300);
}

#[test]
fn an_old_file_has_a_znode_of_264_bytes() {
    let w = World::new(4, FsProps::default());
    let id = file(&w, b"f", S_IFREG | 0o600);
    let dn = block_on(w.objset.hold_wait(ObjectId(id))).unwrap();
    let bonus = dn.bonus();
    assert_eq!((dn.bonus_type(), bonus.len()), (DMU_OT_ZNODE, 264));
    assert_eq!(owner_of(DMU_OT_ZNODE, &bonus), Some(Owner { uid: 1000, gid: 100, projid: Some(0) }));
}

/// A long ACL of an old file lies in an object of its own, which goes when a chmod replaces the
/// ACL.
#[test]
fn an_old_file_that_gets_another_acl_leaves_none_behind() {
    let mut w = World::new(4, FsProps::default());
    let id = file(&w, b"f", S_IFREG | 0o600);
    let outside = block_on(w.zfs.change(|tx| {
        let zn = w.zfs.znode(id)?;
        let mut state = zn.state.lock();
        let acl = w.objset.alloc(tx, NewObject::new(DMU_OT_ACL, 512))?;
        let plan = w.zfs.plan(tx, &zn, &state, |a| {
            let mut phys = a.legacy_acl().unwrap().to_vec();
            phys[..8].copy_from_slice(&acl.id().0.to_ne_bytes());
            a.set_legacy_acl(phys);
        })?;
        plan.apply(tx, &zn, &mut state);
        Ok(acl.id())
    }))
    .unwrap();
    w.sync();
    w.crash();
    assert!(w.objects().contains(&outside.0));
    block_on(w.zfs.setattr(id, SetAttr { mode: Some(0o640), ..SetAttr::default() })).unwrap();
    w.sync();
    assert!(!w.objects().contains(&outside.0), "nothing leads to it any more");
    w.crash();
    assert_eq!(block_on(w.zfs.getattr(id)).unwrap().mode & 0o777, 0o640);
    block_on(w.zfs.unlink(w.zfs.root(), b"f")).unwrap();
    w.sync();
}

#[test]
fn the_registry_holds_every_attribute() {
    let w = World::new(5, FsProps::default());
    let master = crate::zap::Zap::new(&block_on(w.objset.hold_wait(ObjectId(1))).unwrap());
    let hold = |o: u64| crate::zap::Zap::new(&block_on(w.objset.hold_wait(ObjectId(o))).unwrap());
    let sa = hold(block_on(resident(|| master.lookup_u64(b"SA_ATTRS"))).unwrap().unwrap());
    let registry = hold(block_on(resident(|| sa.lookup_u64(b"REGISTRY"))).unwrap().unwrap());
    let get = |n: &str| block_on(resident(|| registry.lookup_u64(n.as_bytes()))).unwrap();
    assert_eq!(block_on(resident(|| registry.count())).unwrap(), 22);
    assert_eq!(get("ZPL_ATIME"), Some(16 << 24));
    assert_eq!(get("ZPL_DACL_COUNT"), Some(8 << 24 | 16));
    assert_eq!(get("ZPL_DACL_ACES"), Some(4 << 16 | 19));
    assert_eq!(get("ZPL_DXATTR"), Some(3 << 16 | 20));
    assert_eq!(get("ZPL_PROJID"), Some(8 << 24 | 21));
}

#[test]
fn blocks_grow_with_the_file_up_to_the_recordsize() {
    let w = World::new(5, FsProps { recordsize: 4096, ..FsProps::default() });
    let id = file(&w, b"f", S_IFREG | 0o644);
    let blksz = || block_on(w.objset.hold_wait(ObjectId(id))).unwrap().blksz();
    for (end, want) in [(100u64, 512), (600, 1024), (3000, 3072), (5000, 4096), (100_000, 4096)] {
        block_on(w.zfs.write(id, end - 10, &Bytes::from(vec![1; 10]), false)).unwrap();
        assert_eq!(blksz(), want, "at {end}");
    }
    assert_eq!(block_on(w.zfs.getattr(id)).unwrap().size, 100_000);
}

#[test]
fn holes_are_found() {
    let mut w = World::new(5, FsProps { recordsize: 4096, ..FsProps::default() });
    let id = file(&w, b"f", S_IFREG | 0o644);
    let write = |w: &World, off| block_on(w.zfs.write(id, off, &Bytes::from(vec![1; 4096]), false)).unwrap();
    write(&w, 0);
    write(&w, 1 << 40);
    for _ in 0..2 {
        let seek = |off, whence| block_on(w.zfs.seek(id, off, whence)).map_err(|e| e.errno());
        assert_eq!(seek(0, Whence::Data), Ok(0));
        assert_eq!(seek(5, Whence::Data), Ok(5));
        assert_eq!(seek(0, Whence::Hole), Ok(4096));
        assert_eq!(seek(4096, Whence::Data), Ok(1 << 40));
        assert_eq!(seek((1 << 40) + 1, Whence::Hole), Ok((1 << 40) + 4096));
        assert_eq!(seek((1 << 40) + 4096, Whence::Data), Err(Errno::NxIo));
        w.sync();
        w.crash();
    }
}

#[test]
fn an_unlinked_file_lives_until_its_last_user_goes() {
    let mut w = World::new(5, FsProps::default());
    let (held, _) = block_on(w.zfs.create(w.zfs.root(), b"f", NewFile::new(S_IFREG | 0o644, CRED))).unwrap();
    let id = held.id();
    block_on(w.zfs.write(id, 0, &Bytes::from_static(b"hello"), false)).unwrap();
    block_on(w.zfs.unlink(w.zfs.root(), b"f")).unwrap();
    assert_eq!(w.read(id), b"hello");
    assert_eq!(block_on(w.zfs.getattr(id)).unwrap().nlink, 0);
    drop(held);
    assert!(block_on(w.zfs.getattr(id)).is_err());
    // And across a crash.
    let (held, _) = block_on(w.zfs.create(w.zfs.root(), b"g", NewFile::new(S_IFREG | 0o644, CRED))).unwrap();
    let id = held.leak();
    block_on(w.zfs.unlink(w.zfs.root(), b"g")).unwrap();
    w.sync();
    w.crash();
    assert!(block_on(w.zfs.getattr(id)).is_ok());
    assert_eq!(block_on(w.zfs.drain_unlinked()).unwrap(), 1);
    assert!(block_on(w.zfs.getattr(id)).is_err());
}

#[test]
fn acls_are_inherited_and_follow_chmod() {
    let w = World::new(5, FsProps { posix_acl: true, ..FsProps::default() });
    let (dir, _) = block_on(w.zfs.create(w.zfs.root(), b"d", NewFile::new(S_IFDIR | 0o755, CRED))).unwrap();
    let entry = |tag: u16, perm: u16, id: u32| {
        [tag.to_le_bytes(), perm.to_le_bytes()]
            .concat()
            .into_iter()
            .chain(id.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let acl: Vec<u8> = 2u32
        .to_le_bytes()
        .into_iter()
        .chain(
            [entry(1, 7, !0), entry(2, 7, 42), entry(4, 5, !0), entry(16, 7, !0), entry(32, 0, !0)].concat(),
        )
        .collect();
    let (default, access) = (b"system.posix_acl_default", b"system.posix_acl_access");
    block_on(w.zfs.setxattr(dir.id(), default, &acl, XattrMode::Any)).unwrap();
    let new = NewFile { umask: 0o077, ..NewFile::new(S_IFREG | 0o666, CRED) };
    let (f, attr) = block_on(w.zfs.create(dir.id(), b"f", new)).unwrap();
    assert_eq!(attr.mode & 0o777, 0o660, "the default ACL, not the umask");
    let got = block_on(w.zfs.getxattr(f.id(), access)).unwrap();
    assert_eq!(
        &got[4..],
        &[entry(1, 6, !0), entry(2, 7, 42), entry(4, 5, !0), entry(16, 6, !0), entry(32, 0, !0)].concat()
    );
    block_on(w.zfs.setattr(f.id(), SetAttr { mode: Some(0o600), ..SetAttr::default() })).unwrap();
    let got = block_on(w.zfs.getxattr(f.id(), access)).unwrap();
    assert_eq!(&got[28..36], &entry(16, 0, !0)[..]);
    assert_eq!(block_on(w.zfs.getattr(f.id())).unwrap().mode & 0o777, 0o600);
    // Without attributes of users ACLs are what they were: who judges by them still has them.
    block_on(w.zfs.setxattr(f.id(), b"user.x", b"1", XattrMode::Any)).unwrap();
    w.zfs.set_props(FsProps { xattr: false, ..w.zfs.props() });
    assert_eq!(block_on(w.zfs.getxattr(f.id(), access)).unwrap(), got);
    assert_eq!(block_on(w.zfs.listxattr(f.id())).unwrap(), [access.to_vec()]);
    assert!(block_on(w.zfs.getxattr(f.id(), b"user.x")).unwrap_err().is(Errno::NotSup));
}

#[test]
fn device_numbers_are_stored_as_the_kernel_keeps_them() {
    use super::super::attrs::{decode_rdev, encode_rdev};
    assert_eq!(encode_rdev(0x103), 0x10_0003);
    for rdev in [0, 0x103, 0x801, 0xffff_ffff, 0x0010_0100] {
        assert_eq!(decode_rdev(encode_rdev(rdev)), rdev);
    }
}

#[test]
fn a_user_s_attribute_is_no_way_to_those_of_other_name_spaces() {
    for xattr_sa in [true, false] {
        let props = FsProps { xattr_sa, posix_acl: true, ..FsProps::default() };
        let w = World::new(5, props);
        let new = NewFile::new(S_IFREG | 0o644, CRED);
        let id = block_on(w.zfs.create(w.zfs.root(), b"f", new)).unwrap().0.id();
        // Entries of the owner, user 42, the group, the mask, others: tag, rights, id.
        let entries = [(1u16, 6u16, !0u32), (2, 4, 42), (4, 4, !0), (16, 4, !0), (32, 0, !0)];
        let mut acl = 2u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            acl.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
            acl.extend(id.to_le_bytes());
        }
        let all: [(&[u8], &[u8]); 4] = [
            (b"trusted.a", b"secret"),
            (b"security.capability", b"may"),
            (b"security.a", b"label"),
            (b"system.posix_acl_access", &acl),
        ];
        for (name, value) in all {
            block_on(w.zfs.setxattr(id, name, value, XattrMode::Any)).unwrap();
        }
        let values = || all.map(|(name, _)| block_on(w.zfs.getxattr(id, name)).unwrap());
        let was = values();
        for (name, _) in all {
            let mine = [b"user.", name].concat();
            assert!(block_on(w.zfs.getxattr(id, &mine)).unwrap_err().is(Errno::Inval));
            assert!(block_on(w.zfs.setxattr(id, &mine, b"x", XattrMode::Any)).unwrap_err().is(Errno::Inval));
            assert!(block_on(w.zfs.removexattr(id, &mine)).unwrap_err().is(Errno::Inval));
        }
        assert_eq!(values(), was);
    }
}

#[test]
fn a_user_s_attribute_is_one_whatever_it_is_stored_as() {
    assert_eq!(stored_names("user.a", false), ("user.a", Some("a")));
    assert_eq!(stored_names("user.a", true), ("a", Some("user.a")));
    for space in ["trusted.a", "security.a", "user.trusted.a"] {
        assert_eq!(stored_names(space, true), (space, None));
    }
    for xattr_sa in [true, false] {
        let w = World::new(5, FsProps { xattr_sa, ..FsProps::default() });
        let new = NewFile::new(S_IFREG | 0o644, CRED);
        let id = block_on(w.zfs.create(w.zfs.root(), b"f", new)).unwrap().0.id();
        let zn = block_on(resident(|| w.zfs.znode(id))).unwrap();
        // As FreeBSD does, without the name space.
        if xattr_sa {
            block_on(w.zfs.change(|tx| w.zfs.sa_xattr_set(tx, &zn, "a", Some(b"theirs"), |_| Ok(()))))
                .unwrap();
        } else {
            block_on(w.zfs.dir_xattr_set(&zn, "a", b"theirs")).unwrap();
        }
        let set = |value: &[u8], mode| block_on(w.zfs.setxattr(id, b"user.a", value, mode));
        assert!(set(b"new", XattrMode::Create).unwrap_err().is(Errno::Exist));
        assert_eq!(block_on(w.zfs.getxattr(id, b"user.a")).unwrap(), b"theirs");
        set(b"ours", XattrMode::Replace).unwrap();
        assert_eq!(block_on(w.zfs.getxattr(id, b"user.a")).unwrap(), b"ours");
        assert!(w.zfs.sa_xattrs(&zn).unwrap().bytes("a").is_none());
        assert!(block_on(resident(|| w.zfs.dir_xattr_find(&zn, "a"))).unwrap().is_none());
        assert_eq!(block_on(w.zfs.listxattr(id)).unwrap(), [b"user.a"]);
        block_on(w.zfs.removexattr(id, b"user.a")).unwrap();
        assert!(set(b"new", XattrMode::Replace).unwrap_err().is(Errno::NoData));
    }
}
