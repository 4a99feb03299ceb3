//! Blocks that cannot be read under a sync: the object's bytes are held, everything else goes on.

use super::super::testing::Harness;
use super::super::{Dnode, NewObject, resident};
use super::*;
use crate::types::ObjectId;
use zilla_env::block_on;
use zilla_ondisk::object_type::DMU_OT_PLAIN_FILE_CONTENTS;

const BLK: usize = 512;
/// Indirect blocks of 32 pointers.
const IBS: u8 = 12;

struct World {
    h: Harness,
    id: ObjectId,
    dn: Arc<Dnode>,
}

impl World {
    /// An object of so many blocks, each full of its number, of which nothing is in memory.
    fn new(blocks: u64) -> World {
        let mut h = Harness::new(2);
        let spec = NewObject { indblkshift: IBS, ..NewObject::new(DMU_OT_PLAIN_FILE_CONTENTS, BLK as u32) };
        let dn = block_on(resident(|| h.objset.alloc(&h.tx(), spec))).unwrap();
        for b in 0..blocks {
            dn.write(&h.tx(), b * BLK as u64, &[b as u8 + 1; BLK]);
        }
        block_on(h.sync_open());
        let mut w = World { id: dn.id(), dn, h };
        w.reopen();
        w
    }

    fn reopen(&mut self) {
        block_on(self.h.reopen());
        self.dn = block_on(self.h.objset.hold_wait(self.id)).unwrap();
    }

    fn write(&self, off: u64, data: &[u8]) {
        self.dn.write(&self.h.tx(), off, data);
    }

    fn read(&self, off: u64, len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0xee; len];
        block_on(self.dn.read_wait(off, &mut out)).map(|()| out)
    }

    fn sync(&mut self) {
        block_on(self.h.sync_open());
    }

    /// Makes a level-0 block unreadable, having looked where it is; the lookup is forgotten again.
    fn damage_block(&mut self, blkid: u64) -> u64 {
        block_on(self.dn.load(0, blkid)).unwrap();
        let bp = self.dn.block_pointer(blkid).unwrap().unwrap();
        self.h.store.set_unreadable(bp.dva(0).offset, true);
        self.reopen();
        bp.dva(0).offset
    }

    fn damage_indirect(&mut self, blkid: usize) -> u64 {
        let phys = self.dn.phys();
        assert_eq!(phys.nlevels, 2);
        let at = phys.blkptr[blkid].dva(0).offset;
        self.h.store.set_unreadable(at, true);
        self.reopen();
        at
    }

    /// The damage is over, and what is held gets its chance.
    fn repair(&mut self, at: u64) {
        self.h.store.set_unreadable(at, false);
        let now = RETRY * 2;
        assert!(self.h.objset.held_is_due(now));
        self.h.objset.retry_held(&self.h.tx(), now);
        self.sync();
    }
}

#[test]
fn a_write_into_an_unreadable_record_is_held_until_the_record_can_be_read() {
    let mut w = World::new(8);
    let at = w.damage_block(3);
    w.write(3 * BLK as u64 + 10, &[0xaa; 100]);
    w.write(5 * BLK as u64, &[0xbb; 10]);
    w.sync();
    assert!(w.dn.check_held().is_err());
    assert!(w.read(3 * BLK as u64, BLK).is_err());
    assert_eq!(w.read(3 * BLK as u64 + 10, 100).unwrap(), [0xaa; 100]);
    // What came later lies over it.
    w.write(3 * BLK as u64 + 60, &[0xcc; 100]);
    w.sync();
    assert_eq!(w.read(3 * BLK as u64 + 10, 150).unwrap(), [vec![0xaa; 50], vec![0xcc; 100]].concat());
    w.repair(at);
    w.dn.check_held().unwrap();
    w.reopen();
    let want = [vec![4; 10], vec![0xaa; 50], vec![0xcc; 100], vec![4; BLK - 160]].concat();
    assert_eq!(w.read(3 * BLK as u64, BLK).unwrap(), want);
    assert_eq!(w.read(5 * BLK as u64, 12).unwrap(), [vec![0xbb; 10], vec![6; 2]].concat());
    assert_eq!(w.h.objset.shared.held.bytes.load(Ordering::Relaxed), 0);
    assert!(!w.h.objset.held_is_due(RETRY * 9));
}

#[test]
fn what_overwrites_or_frees_a_held_record_ends_it() {
    let mut w = World::new(8);
    w.damage_block(3);
    w.write(3 * BLK as u64 + 10, &[0xaa; 100]);
    w.sync();
    w.write(3 * BLK as u64, &[0xbb; 300]);
    w.write(3 * BLK as u64 + 300, &[0xbb; 212]);
    w.sync();
    w.dn.check_held().unwrap();
    w.damage_block(4);
    w.write(4 * BLK as u64 + 1, &[0xcc; 1]);
    w.sync();
    w.dn.check_held().unwrap_err();
    w.dn.free_range(&w.h.tx(), 4 * BLK as u64, BLK as u64);
    w.sync();
    w.dn.check_held().unwrap();
    w.reopen();
    assert_eq!(w.read(3 * BLK as u64, 2 * BLK).unwrap(), [vec![0xbb; BLK], vec![0; BLK]].concat());
}

#[test]
fn below_an_unreadable_indirect_block_whole_records_and_frees_are_held() {
    let mut w = World::new(64);
    let at = w.damage_indirect(0);
    w.write(3 * BLK as u64, &[0xaa; BLK]);
    w.write(40 * BLK as u64, &[0xbb; BLK]);
    // A truncation in the middle of what cannot be read.
    w.dn.free_range(&w.h.tx(), 20 * BLK as u64, 5 * BLK as u64);
    w.sync();
    w.dn.check_held().unwrap_err();
    assert_eq!(w.read(3 * BLK as u64, BLK).unwrap(), [0xaa; BLK]);
    assert_eq!(w.read(20 * BLK as u64, 5 * BLK).unwrap(), [0; 5 * BLK]);
    assert!(w.read(25 * BLK as u64, 1).is_err());
    w.write(21 * BLK as u64 + 1, &[0xcc; 1]);
    w.sync();
    w.repair(at);
    w.dn.check_held().unwrap();
    w.reopen();
    assert_eq!(w.read(3 * BLK as u64, 2 * BLK).unwrap(), [vec![0xaa; BLK], vec![5; BLK]].concat());
    assert_eq!(w.read(40 * BLK as u64, BLK).unwrap(), [0xbb; BLK]);
    let want =
        [vec![20; BLK], vec![0; BLK + 1], vec![0xcc], vec![0; 4 * BLK - 2 - BLK], vec![0; BLK]].concat();
    assert_eq!(w.read(19 * BLK as u64, 6 * BLK).unwrap(), want);
    assert_eq!(w.read(25 * BLK as u64, 1).unwrap(), [26]);
}

#[test]
fn what_was_cut_off_below_an_unreadable_indirect_block_does_not_come_back() {
    let kept = |w: &World, end: u64| -> Vec<_> {
        let kept = w.h.objset.kept(|_, _| Some(end * BLK as u64)).into_iter();
        kept.map(|k| match k.what {
            KeptPart::Data(data) => (k.offset / BLK as u64, "data", data.len() as u64 / BLK as u64),
            KeptPart::Free(n) => (k.offset / BLK as u64, "free", n / BLK as u64),
            KeptPart::Behind(n) => (k.offset / BLK as u64, "behind", n / BLK as u64),
        })
        .collect()
    };
    let mut w = World::new(64);
    let at = w.damage_indirect(0);
    w.dn.free_range(&w.h.tx(), 20 * BLK as u64, u64::MAX);
    w.sync();
    w.dn.check_held().unwrap_err();
    assert_eq!(kept(&w, 20), [(20, "behind", 12)]);
    // A replay finds all of it, though the object was shorter.
    w.reopen();
    assert_eq!(w.dn.maxblkid(), 31);
    w.dn.free_range(&w.h.tx(), 20 * BLK as u64, u64::MAX);
    w.sync();
    assert_eq!(w.dn.maxblkid(), 19);
    // The object grows beyond it.
    w.write(28 * BLK as u64, &[0xbb; BLK]);
    w.sync();
    assert_eq!(kept(&w, 29), [(20, "free", 9), (29, "behind", 3), (28, "data", 1)]);
    w.write(40 * BLK as u64, &[0xcc; BLK]);
    w.sync();
    assert_eq!(w.read(20 * BLK as u64, 8 * BLK).unwrap(), [0; 8 * BLK]);
    w.repair(at);
    w.dn.check_held().unwrap();
    w.reopen();
    assert_eq!(w.read(19 * BLK as u64, BLK).unwrap(), [20; BLK]);
    assert_eq!(w.read(20 * BLK as u64, 8 * BLK).unwrap(), [0; 8 * BLK]);
    assert_eq!(w.read(28 * BLK as u64, BLK).unwrap(), [0xbb; BLK]);
    assert_eq!(w.read(29 * BLK as u64, 11 * BLK).unwrap(), [0; 11 * BLK]);
    assert_eq!(w.read(40 * BLK as u64, BLK).unwrap(), [0xcc; BLK]);
}

#[test]
fn what_lies_below_an_unreadable_indirect_block_is_left_when_the_object_goes() {
    let left = |damaged: bool| {
        let mut w = World::new(64);
        if damaged {
            w.damage_indirect(0);
        }
        w.h.objset.free(&w.h.tx(), &w.dn);
        w.sync();
        assert!(block_on(w.h.objset.hold_wait(w.id)).is_err(), "the object is gone");
        w.h.store.count()
    };
    // The block that cannot be read and 32 below it. (The harness sees that nothing is freed
    // twice.)
    assert_eq!(left(true) - left(false), 33);
    // Truncated to nothing, an object is as new.
    let mut w = World::new(64);
    w.damage_indirect(0);
    w.dn.free_range(&w.h.tx(), 0, u64::MAX);
    w.sync();
    w.dn.check_held().unwrap();
    w.write(0, &[0xaa; 10]);
    w.sync();
    w.reopen();
    assert_eq!(w.read(0, BLK).unwrap(), [vec![0xaa; 10], vec![0; BLK - 10]].concat());
}

/// An object in a block of dnodes of its own, each block of which is full of its number, and where
/// these lie.
fn source(w: &mut World, blocks: u64) -> Vec<zilla_ondisk::BlkPtr> {
    let spec = NewObject { indblkshift: IBS, ..NewObject::new(DMU_OT_PLAIN_FILE_CONTENTS, BLK as u32) };
    let src = block_on(resident(|| w.h.objset.claim(&w.h.tx(), SOURCE, spec))).unwrap();
    for b in 0..blocks {
        src.write(&w.h.tx(), b * BLK as u64, &[0xd0 | b as u8; BLK]);
    }
    w.sync();
    (0..blocks).map(|b| block_on(resident(|| src.block_pointer(b))).unwrap().unwrap()).collect()
}

const SOURCE: ObjectId = ObjectId(40);

impl World {
    /// Frees the source, and lets so many txgs come that its blocks are others' then. Nothing of it
    /// may come to be the object's.
    fn free_source(&mut self, bps: &[zilla_ondisk::BlkPtr]) {
        let src = block_on(self.h.objset.hold_wait(SOURCE)).unwrap();
        self.h.objset.free(&self.h.tx(), &src);
        for _ in 0..4 {
            self.sync_without(bps);
        }
        let there = self.h.store.offsets();
        assert!(bps.iter().all(|bp| !there.contains(&bp.dva(0).offset)), "the source is freed");
    }

    fn sync_without(&mut self, bps: &[zilla_ondisk::BlkPtr]) {
        let out = block_on(self.h.sync_open());
        let clones = out.cloned.iter().filter(|c| bps.iter().any(|bp| bp.dva(0) == c.dva(0)));
        assert_eq!(clones.count(), 0, "a block is shared that its owner has freed");
    }
}

#[test]
fn a_clone_below_an_unreadable_indirect_block_outlives_its_source() {
    let mut w = World::new(64);
    let bps = source(&mut w, 3);
    let at = w.damage_indirect(0);
    // One as it is, one that is written into.
    w.dn.clone_block(&w.h.tx(), 3, bps[0]);
    w.dn.clone_block(&w.h.tx(), 5, bps[1]);
    w.write(5 * BLK as u64 + 10, &[0xaa; 20]);
    w.sync_without(&bps);
    w.dn.check_held().unwrap_err();
    let second = [vec![0xd1; 10], vec![0xaa; 20], vec![0xd1; BLK - 30]].concat();
    // The log knows it without its source.
    let kept = w.h.objset.kept(|_, _| Some(u64::MAX)).into_iter();
    let kept: Vec<_> = kept
        .map(|k| match k.what {
            KeptPart::Data(data) => (k.offset, data.to_vec()),
            KeptPart::Free(_) | KeptPart::Behind(_) => panic!("nothing is freed"),
        })
        .collect();
    assert_eq!(kept, [(3 * BLK as u64, vec![0xd0; BLK]), (5 * BLK as u64, second.clone())]);
    w.free_source(&bps);
    assert_eq!(w.read(3 * BLK as u64, BLK).unwrap(), [0xd0; BLK]);
    w.repair(at);
    w.dn.check_held().unwrap();
    w.reopen();
    assert_eq!(w.read(3 * BLK as u64, 2 * BLK).unwrap(), [vec![0xd0; BLK], vec![5; BLK]].concat());
    assert_eq!(w.read(5 * BLK as u64, BLK).unwrap(), second);
    assert_eq!(w.h.objset.shared.held.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_clone_whose_source_cannot_be_read_either_is_lost() {
    let mut w = World::new(64);
    let bps = source(&mut w, 1);
    let at = w.damage_indirect(0);
    w.h.store.set_unreadable(bps[0].dva(0).offset, true);
    w.dn.clone_block(&w.h.tx(), 3, bps[0]);
    w.sync_without(&bps);
    assert!(w.dn.inner.lock().held.lost.contains(&3));
    w.dn.check_held().unwrap_err();
    w.free_source(&bps);
    w.h.store.set_unreadable(at, false);
    w.sync_without(&bps);
    w.reopen();
    assert_eq!(w.read(3 * BLK as u64, BLK).unwrap(), [4; BLK], "as it was");
}

/// A table of references may be damaged where one would be added.
#[test]
fn a_clone_that_cannot_be_counted_becomes_a_copy() {
    let mut w = World::new(64);
    let bps = source(&mut w, 3);
    for n in [0, 2] {
        w.h.store.set_uncountable(bps[n].dva(0).offset);
    }
    w.h.store.set_unreadable(bps[2].dva(0).offset, true);
    for (blkid, n) in [(3, 0), (5, 1), (7, 2)] {
        w.dn.clone_block(&w.h.tx(), blkid, bps[n]);
    }
    let out = block_on(w.h.sync_open());
    let cloned: Vec<_> = out.cloned.iter().map(|bp| bp.dva(0)).collect();
    assert_eq!(cloned, [bps[1].dva(0)]);
    assert_eq!(w.dn.inner.lock().held.lost, BTreeSet::from([7]), "what cannot be read cannot be copied");
    assert_eq!(w.dn.shared.held.copied.load(Ordering::Relaxed), 0);
    assert_eq!(w.read(3 * BLK as u64, BLK).unwrap(), [0xd0; BLK]);
    w.reopen();
    assert_eq!(w.read(3 * BLK as u64, BLK).unwrap(), [0xd0; BLK]);
    assert_eq!(w.read(5 * BLK as u64, BLK).unwrap(), [0xd1; BLK]);
    assert_eq!(w.read(7 * BLK as u64, BLK).unwrap(), [8; BLK], "as it was");
    let copy = block_on(resident(|| w.dn.block_pointer(3))).unwrap().unwrap();
    assert_ne!(copy.dva(0), bps[0].dva(0));
}

#[test]
fn clones_of_an_object_that_is_postponed_outlive_their_source() {
    let mut w = World::new(3);
    let bps = source(&mut w, 2);
    w.reopen();
    let meta = w.h.objset.meta.clone();
    let blkid = w.id.0 / 32;
    let at = block_on(resident(|| meta.block_pointer(blkid))).unwrap().unwrap().dva(0).offset;
    meta.evict(0, blkid);
    meta.evict(0, blkid);
    w.h.store.set_unreadable(at, true);
    w.dn.clone_block(&w.h.tx(), 0, bps[0]);
    w.dn.clone_block(&w.h.tx(), 2, bps[1]);
    w.sync_without(&bps);
    // What is written over it in the next txg lies on its bytes.
    w.write(2 * BLK as u64 + 7, &[0xaa; 5]);
    w.free_source(&bps);
    w.dn.check_held().unwrap_err();
    w.h.store.set_unreadable(at, false);
    w.sync_without(&bps);
    w.dn.check_held().unwrap();
    assert_eq!(w.h.objset.shared.held.bytes.load(Ordering::Relaxed), 0);
    w.reopen();
    let third = [vec![0xd1; 7], vec![0xaa; 5], vec![0xd1; BLK - 12]].concat();
    assert_eq!(w.read(0, 3 * BLK).unwrap(), [vec![0xd0; BLK], vec![2; BLK], third].concat());
}

/// Whether its clones are held or wait with their object.
#[test]
fn more_clones_than_the_bound_are_lost() {
    for postponed in [false, true] {
        let size = 1 << 20;
        let blocks = (MAX_HELD / size + 2) as u64;
        let mut h = Harness::new(2);
        let spec = NewObject { indblkshift: IBS, ..NewObject::new(DMU_OT_PLAIN_FILE_CONTENTS, size as u32) };
        let src = block_on(resident(|| h.objset.claim(&h.tx(), SOURCE, spec))).unwrap();
        let dn = block_on(resident(|| h.objset.alloc(&h.tx(), spec))).unwrap();
        for b in 0..blocks {
            src.write(&h.tx(), b * size as u64, &vec![b as u8 + 1; size]);
            dn.write(&h.tx(), b * size as u64, &[1]);
        }
        block_on(h.sync_open());
        let bps: Vec<_> = (0..blocks).map(|b| src.block_pointer(b).unwrap().unwrap()).collect();
        let id = dn.id();
        block_on(h.reopen());
        let dn = block_on(h.objset.hold_wait(id)).unwrap();
        let at = if postponed {
            let (meta, blkid) = (h.objset.meta.clone(), id.0 / 32);
            let bp = block_on(resident(|| meta.block_pointer(blkid))).unwrap().unwrap();
            meta.evict(0, blkid);
            meta.evict(0, blkid);
            bp.dva(0).offset
        } else {
            dn.phys().blkptr[0].dva(0).offset
        };
        h.store.set_unreadable(at, true);
        for (b, bp) in (0..).zip(&bps) {
            dn.clone_block(&h.tx(), b, *bp);
        }
        for _ in 0..3 {
            assert!(block_on(h.sync_open()).cloned.is_empty());
            assert_eq!(h.objset.shared.held.bytes.load(Ordering::Relaxed), MAX_HELD);
        }
        assert_eq!(dn.inner.lock().held.lost.len(), 2);
        h.store.set_unreadable(at, false);
        h.objset.retry_held(&h.tx(), RETRY * 2);
        assert!(block_on(h.sync_open()).cloned.is_empty());
        assert_eq!(h.objset.shared.held.bytes.load(Ordering::Relaxed), 0);
        dn.check_held().unwrap_err();
        block_on(h.reopen());
        let dn = block_on(h.objset.hold_wait(id)).unwrap();
        for b in 0..blocks {
            let mut byte = [0];
            block_on(dn.read_wait(b * size as u64, &mut byte)).unwrap();
            assert_eq!(byte[0], if b < blocks - 2 { b as u8 + 1 } else { 1 }, "postponed: {postponed}");
        }
    }
}

#[test]
fn objects_whose_dnodes_cannot_be_read_wait_and_others_do_not() {
    let mut w = World::new(3);
    // Another object, in the next block of dnodes.
    let spec = NewObject::new(DMU_OT_PLAIN_FILE_CONTENTS, BLK as u32);
    let other = block_on(resident(|| w.h.objset.claim(&w.h.tx(), ObjectId(40), spec))).unwrap();
    other.write(&w.h.tx(), 0, &[7; BLK]);
    w.sync();
    w.reopen();
    let other = block_on(w.h.objset.hold_wait(ObjectId(40))).unwrap();
    let meta = w.h.objset.meta.clone();
    let at = meta.block_pointer(w.id.0 / 32).unwrap().unwrap().dva(0).offset;
    meta.evict(0, w.id.0 / 32);
    meta.evict(0, w.id.0 / 32);
    w.h.store.set_unreadable(at, true);
    w.write(10, &[0xaa; 10]);
    w.write(BLK as u64, &[0xaa; BLK]);
    w.dn.free_range(&w.h.tx(), 2 * BLK as u64, BLK as u64);
    other.write(&w.h.tx(), 0, &[8; 100]);
    w.sync();
    other.check_held().unwrap();
    w.dn.check_held().unwrap_err();
    // The log keeps what was acknowledged.
    assert!(w.h.objset.holds() && !w.h.objset.held_is_due(RETRY * 2));
    let kept = w.h.objset.kept(|_, _| Some(3 * BLK as u64)).into_iter();
    let kept: Vec<_> = kept
        .map(|k| match k.what {
            KeptPart::Data(data) => (k.offset, data.to_vec()),
            KeptPart::Free(n) | KeptPart::Behind(n) => (k.offset, vec![0; n as usize]),
        })
        .collect();
    let want = [(2 * BLK as u64, vec![0; BLK]), (10, vec![0xaa; 10]), (BLK as u64, vec![0xaa; BLK])];
    assert_eq!(kept, want);
    w.write(15, &[0xbb; 10]);
    w.write(2 * BLK as u64, &[0xcc; 1]);
    w.sync();
    w.h.store.set_unreadable(at, false);
    w.sync();
    w.dn.check_held().unwrap();
    w.reopen();
    let other = block_on(w.h.objset.hold_wait(ObjectId(40))).unwrap();
    let mut out = [0; BLK];
    block_on(other.read_wait(0, &mut out)).unwrap();
    assert_eq!(out[..], [vec![8; 100], vec![7; BLK - 100]].concat());
    let first = [vec![1; 10], vec![0xaa; 5], vec![0xbb; 10], vec![1; BLK - 25]].concat();
    let want = [first, vec![0xaa; BLK], vec![0xcc], vec![0; BLK - 1]].concat();
    assert_eq!(w.read(0, 3 * BLK).unwrap(), want);
}

#[test]
fn no_more_than_the_bound_waits_with_an_object() {
    let mut w = World::new(3);
    let meta = w.h.objset.meta.clone();
    let blkid = w.id.0 / 32;
    let at = block_on(resident(|| meta.block_pointer(blkid))).unwrap().unwrap().dva(0).offset;
    meta.evict(0, blkid);
    meta.evict(0, blkid);
    w.h.store.set_unreadable(at, true);
    w.dn.check_waiting().unwrap();
    let data = vec![0xaa; 1 << 20];
    for n in 0..20 {
        w.write(n << 20, &data);
        w.sync();
        assert_eq!(w.dn.check_waiting().is_err(), n >= (MAX_HELD >> 20) as u64, "{n} MiB");
    }
    let kept = w.h.objset.kept(|_, _| Some(u64::MAX)).into_iter();
    let bytes = |k: Kept| if let KeptPart::Data(data) = k.what { data.len() } else { 0 };
    let kept: usize = kept.map(bytes).sum();
    assert!(kept > MAX_HELD && kept <= MAX_KEPT, "{kept}");
    w.h.store.set_unreadable(at, false);
    w.sync();
    w.dn.check_waiting().unwrap();
    w.reopen();
    assert_eq!(w.read(19 << 20, BLK).unwrap(), data[..BLK]);
}

#[test]
fn more_than_the_bound_is_lost_by_name() {
    let mut h = Harness::new(2);
    let size = 1 << 20;
    let dn = {
        let spec = NewObject::new(DMU_OT_PLAIN_FILE_CONTENTS, size as u32);
        block_on(resident(|| h.objset.alloc(&h.tx(), spec))).unwrap()
    };
    let blocks = MAX_HELD / size + 2;
    dn.write(&h.tx(), 0, &vec![1; blocks * size]);
    block_on(h.sync_open());
    for b in 0..blocks as u64 {
        h.store.set_unreadable(dn.block_pointer(b).unwrap().unwrap().dva(0).offset, true);
    }
    let id = dn.id();
    block_on(h.reopen());
    let dn = block_on(h.objset.hold_wait(id)).unwrap();
    for b in 0..blocks {
        // More than a small write takes the whole block's buffer.
        dn.write(&h.tx(), (b * size) as u64, &vec![2; size / 2]);
    }
    block_on(h.sync_open());
    assert_eq!(h.objset.shared.held.bytes.load(Ordering::Relaxed), MAX_HELD);
    assert_eq!(dn.inner.lock().held.lost.len(), 2);
    for b in 0..blocks {
        dn.write(&h.tx(), (b * size) as u64, &vec![3; size]);
    }
    block_on(h.sync_open());
    dn.check_held().unwrap();
    assert_eq!(h.objset.shared.held.bytes.load(Ordering::Relaxed), 0);
}

/// An attacker's tree: every pointer of each level leads to the same block. It is as long as its
/// blocks, not as its paths.
#[test]
fn a_block_that_many_pointers_lead_to_is_freed_once() {
    let mut w = World::new(64);
    let whole = w.h.store.count();
    {
        let mut inner = w.dn.inner.lock();
        let first = inner.phys.blkptr[0];
        inner.phys.blkptr[1] = first;
    }
    w.h.objset.free(&w.h.tx(), &w.dn);
    w.sync();
    // The second indirect block and its 32 were left behind when the pointer to it went.
    assert!(whole - w.h.store.count() < 40, "what no pointer leads to is not freed");

    let mut w = World::new(3);
    const LEVELS: u8 = 10;
    let mut bp = w.dn.phys().blkptr[0];
    for level in 1..=LEVELS {
        let req = crate::zio::WriteReq {
            data: bp.encode().repeat(32).into(),
            bookmark: crate::types::Bookmark::new(1, w.id, level, 0),
            otype: DMU_OT_PLAIN_FILE_CONTENTS,
            level,
            checksum: zilla_codec::checksum::Checksum::Fletcher4,
            compress: zilla_codec::compress::CompressSpec::OFF,
            copies: 1,
            fill: 1,
            prev: zilla_ondisk::BlkPtr::ZERO,
            may_embed: false,
            special_upto: 0,
            dedup: None,
            may_stay: false,
            packed: None,
        };
        let store: &dyn crate::zio::BlockStore = &*w.h.store;
        bp = block_on(store.write(w.h.txg.prev(), vec![req])).unwrap()[0];
    }
    let before = w.h.store.count();
    {
        let mut inner = w.dn.inner.lock();
        inner.phys.nlevels = LEVELS + 1;
        inner.phys.maxblkid = 1 << (5 * LEVELS - 1);
        inner.head.maxblkid = inner.phys.maxblkid;
        inner.phys.blkptr.iter_mut().for_each(|b| *b = zilla_ondisk::BlkPtr::ZERO);
        inner.phys.blkptr[0] = bp;
    }
    // Level 1 has the one block of contents 32 times, as a file may that was deduplicated; here it
    // has it once.
    let bottom = {
        let mut at = bp;
        for _ in 1..LEVELS {
            let data = block_on(crate::zio::BlockStore::read(
                &*w.h.store,
                at,
                crate::types::Bookmark::root(1),
                crate::zio::Priority::SyncRead,
            ));
            at = super::super::tree::bp_at(&data.unwrap(), 0);
        }
        at.dva(0).offset
    };
    w.h.store.forge(bottom, |data| data[128..].fill(0));
    w.h.objset.free(&w.h.tx(), &w.dn);
    w.sync();
    assert!(block_on(w.h.objset.hold_wait(w.id)).is_err(), "the object is gone");
    assert!(w.h.store.count() < before, "what it had once is freed");
}

/// What lay below a damaged block is lost as a whole, also where a part of it is still known.
#[test]
fn a_file_that_was_emptied_below_a_damaged_block_has_nothing_of_what_was_there() {
    let mut w = World::new(200);
    assert_eq!(w.dn.phys().nlevels, 3);
    assert_eq!(w.read(0, 1).unwrap(), [1]);
    // The lowest indirect block stays in memory; what leads to it, and the record, do not.
    for (level, blkid) in [(2, 0), (0, 0), (0, 0)] {
        w.dn.evict(level, blkid);
    }
    w.h.store.set_unreadable(w.dn.phys().blkptr[0].dva(0).offset, true);
    w.dn.free_range(&w.h.tx(), 0, u64::MAX);
    w.sync();
    w.write(199 * BLK as u64, &[9; BLK]);
    w.sync();
    assert_eq!(w.read(0, BLK).unwrap(), [0; BLK]);
    assert_eq!(w.read(199 * BLK as u64, BLK).unwrap(), [9; BLK]);
}

/// The next txg points the record to a block that cannot be read: this one's sync does not ask for
/// that.
#[test]
fn a_record_is_written_though_its_next_contents_are_damaged() {
    let mut w = World::new(64);
    let bps = source(&mut w, 1);
    w.reopen();
    w.write(3 * BLK as u64 + 10, &[0xaa; 20]);
    let txg = w.h.next_txg();
    w.h.store.set_unreadable(bps[0].dva(0).offset, true);
    w.dn.clone_block(&w.h.tx(), 3, bps[0]);
    block_on(w.h.sync(txg));
    w.dn.check_held().unwrap();
    w.reopen();
    let want = [vec![4; 10], vec![0xaa; 20], vec![4; BLK - 30]].concat();
    assert_eq!(w.read(3 * BLK as u64, BLK).unwrap(), want);
}
