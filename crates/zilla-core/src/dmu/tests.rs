//! Objects against plain byte arrays, over three txgs at once, with syncs, loss of caches and
//! reopening.
//!
//! This is the test for the part where asynchronous writes are hard: a write, a truncate and a free
//! of the same blocks in three txgs, one of which is being synced while the others change.

use super::testing::Harness;
use super::*;
use crate::types::Txg;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use zilla_env::block_on;

const BLK: u64 = 512;
/// Small indirect blocks (32 pointers), so that short files have three levels.
const IBS: u8 = 12;
const MAX: u64 = BLK * 32 * 3;

#[derive(Clone, Debug)]
enum Op {
    Write(u64, usize, u8),
    WriteBlock(u64, u8),
    Free(u64, u64),
    Truncate(u64),
    Read(u64, usize),
    NextTxg,
    /// Sync the oldest closed txg, with `n` further operations of the open txg in between its
    /// steps.
    Sync,
    DropCaches,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let pos = 0..MAX;
    prop_oneof![
        6 => (pos.clone(), 1usize..3000, 1u8..255).prop_map(|(o, l, v)| Op::Write(o, l, v)),
        2 => (0..MAX / BLK, 1u8..255).prop_map(|(b, v)| Op::WriteBlock(b, v)),
        3 => (pos.clone(), 1u64..20000).prop_map(|(o, l)| Op::Free(o, l)),
        2 => pos.clone().prop_map(Op::Truncate),
        4 => (pos, 1usize..3000).prop_map(|(o, l)| Op::Read(o, l)),
        4 => Just(Op::NextTxg),
        4 => Just(Op::Sync),
        1 => Just(Op::DropCaches),
        1 => Just(Op::Reopen),
    ]
}

struct World {
    h: Harness,
    dn: Arc<Dnode>,
    /// Contents as of each closed, unsynced txg, oldest first.
    closed: VecDeque<(Txg, Vec<u8>)>,
    now: Vec<u8>,
    disk: Vec<u8>,
}

impl World {
    fn new() -> World {
        let mut h = Harness::new(2);
        let spec = NewObject {
            indblkshift: IBS,
            ..NewObject::new(zilla_ondisk::object_type::DMU_OT_PLAIN_FILE_CONTENTS, BLK as u32)
        };
        let dn = block_on(resident(|| h.objset.alloc(&h.tx(), spec))).unwrap();
        block_on(h.sync_open());
        let blank = vec![0; MAX as usize + 4096];
        World { h, dn, closed: VecDeque::new(), now: blank.clone(), disk: blank }
    }

    fn check(&self, off: u64, len: usize) {
        let mut out = vec![0xaa; len];
        block_on(self.dn.read_wait(off, &mut out)).unwrap();
        let want = &self.now[off as usize..off as usize + len];
        if let Some(i) = (0..len).find(|&i| out[i] != want[i]) {
            panic!("byte {} is {}, should be {}", off + i as u64, out[i], want[i]);
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Write(off, len, v) => {
                let len = len.min((MAX - off) as usize).max(1);
                self.dn.write(&self.h.tx(), off, &vec![v; len]);
                self.now[off as usize..off as usize + len].fill(v);
            }
            Op::WriteBlock(b, v) => {
                self.dn.write_block(&self.h.tx(), b, vec![v; BLK as usize].into());
                self.now[(b * BLK) as usize..((b + 1) * BLK) as usize].fill(v);
            }
            Op::Free(off, len) => {
                self.dn.free_range(&self.h.tx(), off, len);
                let end = (off + len).min(MAX) as usize;
                self.now[off as usize..end.max(off as usize)].fill(0);
            }
            Op::Truncate(off) => {
                self.dn.free_range(&self.h.tx(), off, u64::MAX);
                self.now[off as usize..].fill(0);
            }
            Op::Read(off, len) => self.check(off, len),
            Op::NextTxg => {
                if self.closed.len() < 2 {
                    let txg = self.h.next_txg();
                    self.closed.push_back((txg, self.now.clone()));
                }
            }
            Op::Sync => {
                if let Some((txg, contents)) = self.closed.pop_front() {
                    block_on(self.h.sync(txg));
                    self.disk = contents;
                }
            }
            Op::DropCaches => {
                self.h.cache.set_limit(0);
                // Entering blocks push the others out.
                for b in 0..80 {
                    let _ = block_on(self.dn.load(0, b));
                }
                self.h.cache.set_limit(64 << 20);
            }
            Op::Reopen => {
                // A crash: everything that was not synced is gone.
                let id = self.dn.id();
                block_on(self.h.reopen());
                self.dn = block_on(self.h.objset.hold_wait(id)).unwrap();
                self.closed.clear();
                self.now = self.disk.clone();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 4000, ..ProptestConfig::default() })]
    #[test]
    fn an_object_is_a_byte_array_in_every_txg(ops in prop::collection::vec(op(), 1..80)) {
        let mut w = World::new();
        for op in &ops {
            w.run(op);
        }
        w.check(0, MAX as usize);
        while !w.closed.is_empty() { w.run(&Op::Sync); }
        block_on(w.h.sync_open());
        w.disk = w.now.clone();
        w.run(&Op::Reopen);
        w.check(0, MAX as usize);
        // Everything freed must give every block back but the objset's own.
        w.dn.free_range(&w.h.tx(), 0, u64::MAX);
        block_on(w.h.sync_open());
        prop_assert_eq!(w.dn.used(), 0);
        let mut left = w.h.store.count();
        w.h.objset.free(&w.h.tx(), &w.dn);
        block_on(w.h.sync_open());
        prop_assert!(w.h.store.count() <= left, "freeing the object leaked");
        left = w.h.store.count();
        block_on(w.h.reopen());
        prop_assert_eq!(left, w.h.store.count());
        // Nothing left: one root block.
        prop_assert_eq!(left, 1);
    }
}

#[test]
fn a_write_into_an_uncached_record_reads_nothing_until_its_sync() {
    let mut h = Harness::new(2);
    let spec = NewObject::new(zilla_ondisk::object_type::DMU_OT_PLAIN_FILE_CONTENTS, 131072);
    let dn = block_on(resident(|| h.objset.alloc(&h.tx(), spec))).unwrap();
    dn.write(&h.tx(), 0, &vec![1; 4 * 131072]);
    block_on(h.sync_open());
    let id = dn.id();
    block_on(h.reopen());
    let dn = block_on(h.objset.hold_wait(id)).unwrap();
    let before = h.store.reads.load(std::sync::atomic::Ordering::Relaxed);
    for i in 0..8 {
        dn.write(&h.tx(), 131072 + i * 16384, &[2; 16384]);
    }
    dn.write(&h.tx(), 3 * 131072, &[3; 100]);
    assert_eq!(h.store.reads.load(std::sync::atomic::Ordering::Relaxed), before, "a write has read");
    block_on(h.sync_open());
    // Record 1 was filled by later writes and needs nothing; record 3 needs its indirect block and
    // itself; the dnode block was read before.
    let reads = h.store.reads.load(std::sync::atomic::Ordering::Relaxed) - before;
    assert!(reads <= 2, "{reads} reads where two suffice");
    let mut out = vec![0; 4 * 131072];
    block_on(dn.read_wait(0, &mut out)).unwrap();
    assert_eq!(
        (out[0], out[131072], out[2 * 131072], out[3 * 131072 + 99], out[3 * 131072 + 100]),
        (1, 2, 1, 3, 1)
    );
}

/// Three pointers of small blocks, all written, and nothing else in the objset.
fn three_blocks(h: &mut Harness) -> Arc<Dnode> {
    let file = zilla_ondisk::object_type::DMU_OT_PLAIN_FILE_CONTENTS;
    let spec = NewObject { indblkshift: IBS, ..NewObject::new(file, BLK as u32) };
    let dn = block_on(resident(|| h.objset.alloc(&h.tx(), spec))).unwrap();
    dn.write(&h.tx(), 0, &[7; 3 * BLK as usize]);
    block_on(h.sync_open());
    assert_eq!((dn.phys().nlevels, dn.phys().nblkptr), (1, 3));
    dn
}

/// A raw stream says how many levels a tree has, before what is freed of it.
#[test]
fn a_tree_that_grows_by_several_levels_keeps_what_is_not_freed() {
    let mut h = Harness::new(2);
    let dn = three_blocks(&mut h);
    dn.set_tree(&h.tx(), 4, 2);
    dn.free_range(&h.tx(), BLK, BLK);
    block_on(h.sync_open());
    let id = dn.id();
    block_on(h.reopen());
    let dn = block_on(h.objset.hold_wait(id)).unwrap();
    let mut out = vec![1; 3 * BLK as usize];
    block_on(dn.read_wait(0, &mut out)).unwrap();
    let firsts = [0, 1, 2].map(|b| out[b * BLK as usize]);
    assert_eq!((firsts, dn.phys().nlevels), ([7, 0, 7], 4));
}

/// Found by the pools of an attacker: what lies behind the end that a dnode names was left of a
/// file that was removed.
#[test]
fn of_a_freed_object_nothing_is_left_behind_its_end() {
    let mut h = Harness::new(2);
    let dn = three_blocks(&mut h);
    dn.write(&h.tx(), 10 * BLK, &[8; 30 * BLK as usize]);
    block_on(h.sync_open());
    dn.set_tree(&h.tx(), 2, 4);
    block_on(h.sync_open());
    assert_eq!((dn.phys().nlevels, dn.phys().maxblkid), (2, 4));
    h.objset.free(&h.tx(), &dn);
    block_on(h.sync_open());
    block_on(h.reopen());
    assert_eq!(h.store.count(), 1, "the root block");
}

/// The throttle counts memory, and a record that a few bytes were written to takes all of its own.
#[test]
fn a_dirty_record_counts_whole_and_once_a_txg() {
    let h = Harness::new(2);
    let spec = NewObject::new(zilla_ondisk::object_type::DMU_OT_PLAIN_FILE_CONTENTS, 128 << 10);
    let txgs = crate::txg::TxgState::new(zilla_env::real_env(1), Txg(9));
    let dn = block_on(resident(|| h.objset.alloc(&h.tx(), spec))).unwrap();
    for off in [5, 70_000, 131_000, 131_072 * 7] {
        dn.write(&block_on(txgs.assign()).unwrap(), off, b"a few");
    }
    assert_eq!(txgs.dirty_bytes(), 2 * (128 << 10));
    // The ends of a hole are written in part, too; and what says that the rest is free takes a
    // little.
    let described = txgs.waiting_bytes() - txgs.dirty_bytes();
    dn.free_range(&block_on(txgs.assign()).unwrap(), 100_000, 131_072 * 7 - 100_000 + 50);
    assert_eq!(txgs.dirty_bytes(), 2 * (128 << 10), "both were dirty");
    assert!(txgs.waiting_bytes() - txgs.dirty_bytes() > described);
    dn.write(&block_on(txgs.assign()).unwrap(), 131_072 * 3, b"a few");
    block_on(txgs.quiesce());
    dn.free_range(&block_on(txgs.assign()).unwrap(), 131_072 * 3 + 10, 1000);
    assert_eq!(txgs.dirty_bytes(), 4 * (128 << 10), "a record of the next txg");
    txgs.done(Txg(10));
    assert_eq!(txgs.dirty_bytes(), 128 << 10);
}

#[test]
fn objects_get_numbers_that_are_free_on_disk_and_in_memory() {
    let mut h = Harness::new(2);
    let spec = |size| NewObject {
        dnodesize: size,
        ..NewObject::new(zilla_ondisk::object_type::DMU_OT_PLAIN_FILE_CONTENTS, 512)
    };
    let mut held: std::collections::HashMap<u64, u8> = Default::default();
    for round in 0..60usize {
        for size in [512, 1024, 4096, 512, 16384, 512] {
            let dn = block_on(resident(|| h.objset.alloc(&h.tx(), spec(size)))).unwrap();
            let slots = (size / 512) as u64;
            for (id, n) in &held {
                let apart = dn.id().0 + slots <= *id || id + u64::from(*n) <= dn.id().0;
                assert!(apart, "object {} overlaps {id}", dn.id());
            }
            held.insert(dn.id().0, slots as u8);
        }
        let mut ids: Vec<u64> = held.keys().copied().collect();
        ids.sort_unstable();
        for id in ids.iter().skip(round % 3).step_by(3) {
            let dn = block_on(h.objset.hold_wait(crate::types::ObjectId(*id))).unwrap();
            h.objset.free(&h.tx(), &dn);
            held.remove(id);
        }
        block_on(h.sync_open());
        if round % 7 == 0 {
            block_on(h.reopen());
        }
    }
    let mut found = Vec::new();
    let mut at = crate::types::ObjectId(0);
    while let Some(next) = block_on(resident(|| h.objset.next_object(at))).unwrap() {
        found.push(next.0);
        at = next;
    }
    let mut want: Vec<u64> = held.keys().copied().collect();
    want.sort_unstable();
    assert_eq!(found, want);
}

/// What happens once, as soon as the tables are looked through to make room for one more object.
struct Meanwhile {
    objset: Arc<Objset>,
    todo: Mutex<Option<Todo>>,
}

type Todo = Box<dyn FnOnce(&Arc<Objset>) + Send>;

impl super::objects::Table for Meanwhile {
    fn trim(&self) {
        let todo = self.todo.lock().take();
        todo.into_iter().for_each(|f| f(&self.objset));
    }
}

fn meanwhile(h: &Harness, what: impl FnOnce(&Arc<Objset>) + Send + 'static) -> Arc<Meanwhile> {
    let todo = Mutex::new(Some(Box::new(what) as Box<_>));
    let m = Arc::new(Meanwhile { objset: h.objset.clone(), todo });
    let table: Arc<dyn super::objects::Table> = m.clone();
    h.cache.objects.register(Arc::downgrade(&table));
    h.cache.objects.set_limit(0);
    m
}

/// Another thread unlinks a file while this one looks for it, and a txg is synced.
#[test]
fn an_object_that_is_freed_while_it_is_looked_up_does_not_come_back() {
    let mut h = Harness::new(2);
    let id = three_blocks(&mut h).id();
    block_on(h.reopen());
    block_on(h.objset.load(id)).unwrap();
    let (store, root, txg) = (h.store.clone(), h.root, h.txg);
    let m = meanwhile(&h, move |os| {
        os.free(&crate::txg::Tx::syncing(txg), &os.hold(id).unwrap());
        store.free(&block_on(os.sync(txg, root)).unwrap().killed);
    });
    match h.objset.hold(id) {
        Err(Stop::Err(e)) => assert!(e.is(crate::error::Errno::NoEnt), "{e}"),
        Err(Stop::Need(need)) => panic!("{need:?}"),
        Ok(dn) => panic!("a freed object of {} bytes is back", dn.used()),
    }
    assert!(m.todo.lock().is_none());
}

/// Another thread makes a file at the same time; a txg is synced and the file is forgotten.
#[test]
fn a_number_that_is_taken_while_another_looks_for_one_is_not_given_twice() {
    let file = zilla_ondisk::object_type::DMU_OT_PLAIN_FILE_CONTENTS;
    for claimed in [false, true] {
        let mut h = Harness::new(2);
        let first = three_blocks(&mut h).id();
        let next = crate::types::ObjectId(first.0 + 1);
        let (store, root, txg) = (h.store.clone(), h.root, h.txg);
        let m = meanwhile(&h, move |os| {
            let dn = os.alloc(&crate::txg::Tx::syncing(txg), NewObject::new(file, 512)).unwrap();
            assert_eq!(dn.id(), next);
            store.free(&block_on(os.sync(txg, root)).unwrap().killed);
        });
        h.next_txg();
        let new = NewObject::new(file, 512);
        if claimed {
            let made = h.objset.claim(&h.tx(), next, new);
            assert!(matches!(made, Err(Stop::Err(e)) if e.is(crate::error::Errno::Exist)));
        } else {
            assert_ne!(h.objset.alloc(&h.tx(), new).unwrap().id(), next);
        }
        assert!(m.todo.lock().is_none());
    }
}

#[test]
fn data_that_are_not_to_be_kept_leave_memory_when_they_are_on_disk() {
    for keep in [true, false] {
        block_on(async {
            let mut h = Harness::new(2);
            h.objset.set_props(WriteProps { keep, ..h.objset.props() });
            let tx = h.tx();
            let new = NewObject::new(19, BLK as u32);
            let dn = resident(|| h.objset.alloc(&tx, new)).await.unwrap();
            dn.write(&tx, 0, &[7; BLK as usize]);
            drop(tx);
            h.sync_open().await;
            let here = h.cache.list(100).into_iter().filter(|d| d.object == dn.id().0 && d.level == 0);
            assert_eq!(here.count() > 0, keep);
            // On top of what is not here something is written in part, and all of it is there.
            dn.write(&h.tx(), 1, &[8; 2]);
            h.sync_open().await;
            let block = resident(|| dn.block(0)).await.unwrap();
            assert_eq!(block[..4], [7, 8, 8, 7]);
        });
    }
}

#[test]
fn what_was_a_hole_when_it_was_read_counts_as_what_is_written() {
    const BLOCKS: u64 = 62;
    const LARGE: u64 = 128 << 10;
    block_on(async {
        let mut h = Harness::new(2);
        let tx = h.tx();
        let dn = resident(|| h.objset.alloc(&tx, NewObject::new(19, LARGE as u32))).await.unwrap();
        dn.write(&tx, BLOCKS * LARGE, &[1; 512]);
        drop(tx);
        h.sync_open().await;
        for blkid in 0..BLOCKS {
            let mut some = [1; 512];
            dn.read_wait(blkid * LARGE, &mut some).await.unwrap();
            assert_eq!(some, [0; 512]);
        }
        let before = h.cache.bytes();
        let tx = h.tx();
        (0..BLOCKS).for_each(|blkid| dn.write(&tx, blkid * LARGE, &[7; 512]));
        drop(tx);
        h.sync_open().await;
        assert!(h.cache.bytes() as u64 >= before as u64 + BLOCKS * LARGE, "{} bytes", h.cache.bytes());
        h.cache.clear();
        assert_eq!(h.cache.bytes(), 0);
    });
}

/// Who reads a file that was just cloned does not keep it in memory until its txg is synced.
#[test]
fn what_is_read_of_a_clone_can_leave_memory() {
    const BLOCKS: u64 = 300;
    const SIZE: u64 = 4096;
    let mut h = Harness::new(2);
    let spec = || NewObject::new(19, SIZE as u32);
    let source = block_on(resident(|| h.objset.alloc(&h.tx(), spec()))).unwrap();
    let block = |b: u64| vec![b as u8; SIZE as usize];
    for b in 0..BLOCKS {
        source.write_block(&h.tx(), b, block(b).into());
    }
    block_on(h.sync_open());
    let clone = block_on(resident(|| h.objset.alloc(&h.tx(), spec()))).unwrap();
    for b in 0..BLOCKS {
        let Ok(Some(bp)) = source.block_pointer(b) else { panic!("block {b} is nowhere") };
        clone.clone_block(&h.tx(), b, bp);
    }
    h.cache.set_limit(100 * SIZE as usize);
    let read_all = |dn: &Arc<Dnode>| {
        for b in 0..BLOCKS {
            let mut out = vec![0; SIZE as usize];
            block_on(dn.read_wait(b * SIZE, &mut out)).unwrap();
            assert!(out == block(b), "block {b}");
        }
    };
    let in_memory = || {
        let inner = clone.inner.lock();
        inner.dbufs.values().filter(|db| db.unread_clone().is_none()).count()
    };
    for _ in 0..2 {
        read_all(&clone);
        assert!(in_memory() <= 101, "{} blocks", in_memory());
    }
    let id = clone.id();
    block_on(h.sync_open());
    read_all(&clone);
    block_on(h.reopen());
    read_all(&block_on(h.objset.hold_wait(id)).unwrap());
}
