use super::super::objset::NewObject;
use super::super::resident;
use super::super::testing::Harness;
use super::*;
use crate::types::ObjectId;
use std::sync::atomic::Ordering;
use zilla_env::block_on;
use zilla_ondisk::object_type::DMU_OT_PLAIN_FILE_CONTENTS;

const BLOCK: usize = 4096;

fn bytes(n: u8) -> Bytes {
    Bytes::from(vec![n; BLOCK])
}

/// What a block holds now, as far as that is in memory.
fn contents(dn: &Arc<Dnode>, blkid: u64, len: usize) -> Bytes {
    let mut now = vec![0; len];
    let _ = dn.read(blkid * len as u64, &mut now);
    now.into()
}

struct World {
    h: Harness,
    dn: Arc<Dnode>,
    id: ObjectId,
}

impl World {
    /// An object of three blocks that is on disk.
    async fn new() -> World {
        let mut h = Harness::new(2);
        let new = NewObject::new(DMU_OT_PLAIN_FILE_CONTENTS, BLOCK as u32);
        let dn = resident(|| h.objset.alloc(&h.tx(), new)).await.unwrap();
        for b in 0..3 {
            dn.write_block(&h.tx(), b, bytes(b as u8 + 1));
        }
        h.sync_open().await;
        let id = dn.id();
        World { h, dn, id }
    }

    /// Writes a block ahead; the pointer and how many blocks that wrote.
    async fn ahead(&self, blkid: u64) -> (Option<BlkPtr>, u64) {
        let before = self.h.store.writes.load(Ordering::Relaxed);
        let now = contents(&self.dn, blkid, BLOCK);
        let (bps, _) = self.h.objset.write_ahead(&self.h.tx(), &[(self.dn.clone(), blkid, now)]).await;
        (bps[0], self.h.store.writes.load(Ordering::Relaxed) - before)
    }

    /// Syncs; what was unused, after giving it back. The block on disk is as it should be.
    async fn sync(&mut self, blkid: u64, holds: &[u8]) -> Vec<BlkPtr> {
        let out = self.h.sync_open().await;
        self.h.store.free(&out.unused);
        self.h.reopen().await;
        self.dn = self.h.objset.hold_wait(self.id).await.unwrap();
        let mut found = vec![0; holds.len()];
        self.dn.read_wait(blkid * BLOCK as u64, &mut found).await.unwrap();
        assert!(found == holds);
        out.unused
    }

    /// Nothing is left that the tree does not lead to: without its only object there is but the
    /// root.
    async fn end(mut self) {
        self.h.objset.free(&self.h.tx(), &self.dn);
        self.h.sync_open().await;
        assert_eq!(self.h.store.count(), 1);
    }
}

#[test]
fn what_was_written_ahead_is_not_written_again() {
    block_on(async {
        let mut w = World::new().await;
        w.dn.write_block(&w.h.tx(), 1, bytes(9));
        let (bp, wrote) = w.ahead(1).await;
        assert_eq!(wrote, 1);
        // Whoever asks again gets the same.
        assert_eq!(w.ahead(1).await, (bp, 0));
        assert_eq!(bp.unwrap().birth(), w.h.txg.0);
        // A block that this txg did not change is none of its business.
        assert_eq!(w.ahead(0).await, (None, 0));
        let before = w.h.store.writes.load(Ordering::Relaxed);
        assert!(w.sync(1, &bytes(9)).await.is_empty());
        // The indirect block, the block of dnodes and its ancestors, the root; no data.
        let plain = {
            let mut w = World::new().await;
            w.dn.write_block(&w.h.tx(), 1, bytes(9));
            let before = w.h.store.writes.load(Ordering::Relaxed);
            w.sync(1, &bytes(9)).await;
            w.h.store.writes.load(Ordering::Relaxed) - before
        };
        assert_eq!(w.h.store.writes.load(Ordering::Relaxed) - before, plain - 1);
        assert_eq!(resident(|| w.dn.block_pointer(1)).await.unwrap(), bp);
    });
}

#[test]
fn what_changes_again_is_written_again_and_the_first_is_freed() {
    block_on(async {
        let mut w = World::new().await;
        w.dn.write_block(&w.h.tx(), 1, bytes(9));
        let (first, _) = w.ahead(1).await;
        w.dn.write(&w.h.tx(), BLOCK as u64 + 100, b"changed");
        let (second, wrote) = w.ahead(1).await;
        assert_eq!(wrote, 1);
        assert_ne!(first, second);
        w.dn.write(&w.h.tx(), BLOCK as u64, b"and again");
        let mut holds = bytes(9).to_vec();
        holds[100..107].copy_from_slice(b"changed");
        holds[..9].copy_from_slice(b"and again");
        let mut unused = w.sync(1, &holds).await;
        unused.sort_by_key(key);
        assert_eq!(unused, [first.unwrap(), second.unwrap()]);
        w.end().await;
    });
}

#[test]
fn a_change_in_the_next_txg_keeps_the_pointer() {
    block_on(async {
        let mut w = World::new().await;
        w.dn.write_block(&w.h.tx(), 1, bytes(9));
        let (bp, _) = w.ahead(1).await;
        let old = w.h.next_txg();
        w.dn.write(&w.h.tx(), BLOCK as u64, b"next");
        let mut both = bytes(9).to_vec();
        both[..4].copy_from_slice(b"next");
        // The older layer has not changed; the newer one is that one with the change.
        let (next, wrote) = w.ahead(1).await;
        assert_eq!(wrote, 1);
        let out = w.h.sync(old).await;
        assert!(out.unused.is_empty());
        assert!(out.born.contains(&bp.unwrap()));
        assert!(w.sync(1, &both).await.is_empty());
        assert_eq!(resident(|| w.dn.block_pointer(1)).await.unwrap(), next);
        w.end().await;
    });
}

#[test]
fn a_block_or_an_object_that_goes_takes_it_along() {
    block_on(async {
        let mut w = World::new().await;
        w.dn.write_block(&w.h.tx(), 1, bytes(9));
        let (bp, _) = w.ahead(1).await;
        w.dn.free_range(&w.h.tx(), BLOCK as u64, BLOCK as u64);
        assert_eq!(w.ahead(1).await, (None, 0));
        assert_eq!(w.sync(1, &[0; BLOCK]).await, [bp.unwrap()]);

        w.dn.write_block(&w.h.tx(), 2, bytes(8));
        let (bp, _) = w.ahead(2).await;
        w.h.objset.free(&w.h.tx(), &w.dn);
        assert_eq!(w.ahead(2).await, (None, 0));
        let out = w.h.sync_open().await;
        assert_eq!(out.unused, [bp.unwrap()]);
    });
}

#[test]
fn what_would_have_to_be_read_or_is_nothing_is_left_alone() {
    block_on(async {
        let mut w = World::new().await;
        w.h.reopen().await;
        w.dn = w.h.objset.hold_wait(w.id).await.unwrap();
        w.dn.write(&w.h.tx(), 10, b"a part");
        assert_eq!(w.ahead(0).await, (None, 0));
        // Once it was read it can be.
        w.dn.load(0, 0).await.unwrap();
        let (bp, wrote) = w.ahead(0).await;
        assert!(bp.is_some() && wrote == 1);
        let mut holds = bytes(1).to_vec();
        holds[10..16].copy_from_slice(b"a part");
        assert!(w.sync(0, &holds).await.is_empty());
        w.end().await;
    });
}

#[test]
fn an_object_that_grows_is_written_at_its_new_size() {
    block_on(async {
        let mut h = Harness::new(2);
        let new = NewObject::new(DMU_OT_PLAIN_FILE_CONTENTS, BLOCK as u32);
        let dn = resident(|| h.objset.alloc(&h.tx(), new)).await.unwrap();
        dn.write_block(&h.tx(), 0, bytes(3));
        let (small, _) = h.objset.write_ahead(&h.tx(), &[(dn.clone(), 0, contents(&dn, 0, BLOCK))]).await;
        dn.set_blksz(&h.tx(), 2 * BLOCK as u32, 0).unwrap();
        let (large, _) = h.objset.write_ahead(&h.tx(), &[(dn.clone(), 0, contents(&dn, 0, 2 * BLOCK))]).await;
        assert_eq!(large[0].unwrap().lsize(), 2 * BLOCK as u64);
        let out = h.sync_open().await;
        assert_eq!(out.unused, [small[0].unwrap()]);
        assert!(out.born.contains(&large[0].unwrap()));
    });
}

/// Somebody has written to it since the operation that is to be logged.
#[test]
fn what_is_not_what_was_meant_is_left_alone() {
    block_on(async {
        let w = World::new().await;
        w.dn.write_block(&w.h.tx(), 1, bytes(9));
        w.dn.write(&w.h.tx(), BLOCK as u64 + 100, b"later");
        let meant = [(w.dn.clone(), 1, bytes(9))];
        let (bps, _) = w.h.objset.write_ahead(&w.h.tx(), &meant).await;
        assert_eq!(bps, [None]);
        assert!(w.ahead(1).await.0.is_some());
        // Nor is what was written ahead for another.
        let (bps, _) = w.h.objset.write_ahead(&w.h.tx(), &meant).await;
        assert_eq!(bps, [None]);
    });
}
