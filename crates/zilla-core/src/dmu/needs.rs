//! What a change makes the sync write, at worst: so that nobody is let in for whom there is no
//! room.
//!
//! A record that is changed at all is written whole; so are the indirect blocks above it, those
//! that its neighbours share only once, and the block that its dnode is in. All is counted when it
//! is first dirtied in a txg ([`Tx::needs`]), and before that asked for ([`Dnode::cost`]). What
//! compression will save is not known yet and not counted.
//!
//! Frees are not taken off: their space comes back when the txg is on disk, which is too late for
//! its own sync. What they make the pool write down is counted too ([`Tx::frees`]).

use super::dnode::{Dnode, Head, Inner, Pending};
use super::tree;
use crate::txg::{COUNTED, Tx};
use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::dnode::{DNODE_BLOCK_SIZE, DNODES_PER_BLOCK};
use zilla_ondisk::object_type;

/// What the pool writes down about a block that changes: its place and its old one in space maps
/// (16 bytes each, in two maps), and the old one in a deadlist (128 bytes), all three times.
const NOTED: u64 = 1 << 10;
/// So many dnodes before are looked at for one in the same block. New objects lie together, with
/// others between them.
const LOOK_BACK: usize = 4;
/// So many blocks on each side of one are looked at for one that is written too.
const NEAR: usize = 64;

impl Dnode {
    fn copies(&self, head: &Head) -> u8 {
        let metadata = object_type::is_metadata(head.otype);
        let of = if metadata { &self.shared.metadata_copies } else { &self.shared.copies };
        of.load(Ordering::Relaxed)
    }

    fn metadata_copies(&self) -> u8 {
        self.shared.metadata_copies.load(Ordering::Relaxed)
    }

    pub(super) fn needs_data(&self, inner: &Inner, tx: &Tx, bytes: u64) {
        tx.needs(bytes, self.copies(&inner.head));
    }

    pub(super) fn needs_metadata(&self, tx: &Tx, bytes: u64) {
        tx.needs(bytes, self.metadata_copies());
    }

    /// A block, which is on the txg's list already, and what leads to it.
    pub(super) fn needs_block(&self, inner: &Inner, tx: &Tx, blkid: u64, data: u64) {
        if tx.is_syncing() {
            return;
        }
        self.needs_data(inner, tx, data + NOTED);
        let Pending { blocks, emptied, .. } = &inner.pending[tx.txg()];
        // Whether one of the nearest of these is there: where the nearest were all freed, to count
        // what leads to a block twice does no harm.
        let any = |near: &mut dyn Iterator<Item = &u64>| near.take(NEAR).any(|b| !emptied.contains(b));
        let (head, epbs) = (&inner.head, tree::epbs(inner.head.indblkshift));
        for level in 1..levels(inner, blkid) {
            let below = 1u64.checked_shl(epbs * u32::from(level)).map_or(u64::MAX, |n| n - 1);
            let (first, last) = (blkid & !below, blkid | below);
            let (before, after) = (first..blkid, (Excluded(blkid), Included(last)));
            if any(&mut blocks.range(before).rev()) || any(&mut blocks.range(after)) {
                break;
            }
            self.needs_metadata(tx, 1 << head.indblkshift);
        }
    }

    /// A range is freed: the indirect blocks at both its ends are written.
    pub(super) fn needs_edges(&self, head: &Head, tx: &Tx) {
        let levels = tree::levels_for(head.maxblkid, head.nblkptr, head.indblkshift);
        self.needs_metadata(tx, edges(head, levels));
    }

    /// The block of dnodes that it is in, unless one of `list` has just been counted that lies in
    /// the same.
    pub(super) fn needs_dnode(&self, list: &[Arc<Dnode>], tx: &Tx) {
        let block = |d: &Dnode| d.id().0 / DNODES_PER_BLOCK;
        if !list.iter().rev().take(LOOK_BACK).any(|d| block(d) == block(self)) {
            self.needs_metadata(tx, DNODE_BLOCK_SIZE as u64);
        }
    }

    /// What changing the bytes from `off` to `end` may need, if blocks are then of `blksz` bytes.
    pub(crate) fn cost(&self, tx: &Tx, off: u64, end: u64, blksz: u64) -> u64 {
        if end <= off || blksz == 0 {
            return 0;
        }
        let inner = self.inner.lock();
        let (first, last) = (off / blksz, (end - 1) / blksz);
        let there = match blksz == u64::from(inner.head.blksz) {
            true => {
                let pending = &inner.pending[tx.txg()];
                let blocks = |of: &BTreeSet<u64>| of.range(first..=last).count() as u64;
                blocks(&pending.blocks) - blocks(&pending.clones) - blocks(&pending.emptied)
            }
            false => 0,
        };
        let blocks = last - first + 1 - there.min(last - first + 1);
        if blocks == 0 {
            return 0;
        }
        let per_indirect = 1u64 << tree::epbs(inner.head.indblkshift);
        let above = u64::from(levels(&inner, last)).saturating_sub(1);
        let indirects = above * 2 + blocks / per_indirect;
        let data = tx.worst(blksz + NOTED, self.copies(&inner.head)).saturating_mul(blocks);
        let above = tx.worst(1 << inner.head.indblkshift, self.metadata_copies()).saturating_mul(indirects);
        data.saturating_add(above)
    }

    /// What pointing to others' blocks in the bytes from `off` to `end` may need.
    pub(crate) fn clone_cost(&self, tx: &Tx, off: u64, end: u64, blksz: u64) -> u64 {
        let inner = self.inner.lock();
        let (first, last) = (off / blksz.max(1), end / blksz.max(1));
        let blocks = last - first + 1;
        let above = u64::from(levels(&inner, last)).saturating_sub(1);
        let indirects = above * 2 + (blocks >> tree::epbs(inner.head.indblkshift));
        let noted = tx.worst(NOTED + COUNTED, self.metadata_copies()).saturating_mul(blocks);
        let above = tx.worst(1 << inner.head.indblkshift, self.metadata_copies());
        noted.saturating_add(above.saturating_mul(indirects))
    }

    /// What freeing the bytes from `off` to `end` may need: the records that are only cut at its
    /// ends, and what leads there.
    pub(crate) fn free_cost(&self, tx: &Tx, off: u64, end: u64) -> u64 {
        let (head, levels) = {
            let inner = self.inner.lock();
            (inner.head, levels(&inner, inner.head.maxblkid))
        };
        let blksz = u64::from(head.blksz.max(1));
        let cut = |at: u64| !at.is_multiple_of(blksz) && at / blksz <= head.maxblkid;
        let mut cost = tx.worst(edges(&head, levels), self.metadata_copies());
        if cut(off) {
            cost += self.cost(tx, off, off + 1, blksz);
        }
        if cut(end) && end / blksz != off / blksz {
            cost += self.cost(tx, end - 1, end, blksz);
        }
        cost
    }
}

fn levels(inner: &Inner, blkid: u64) -> u8 {
    let (head, last) = (&inner.head, inner.head.maxblkid.max(blkid));
    tree::levels_for(last, head.nblkptr, head.indblkshift).max(inner.phys.nlevels)
}

fn edges(head: &Head, levels: u8) -> u64 {
    (u64::from(levels.saturating_sub(1)) * 2) << head.indblkshift
}

#[cfg(test)]
mod tests {
    use crate::dmu::testing::Harness;
    use crate::dmu::{Dnode, NewObject, resident};
    use crate::txg::TxgState;
    use crate::types::Txg;
    use std::sync::Arc;
    use zilla_env::block_on;

    /// Twice what is written is what gangs may take at worst.
    const GANGS: u64 = 2;

    fn object(h: &Harness, blksz: u32) -> Arc<Dnode> {
        let tx = h.tx();
        block_on(resident(|| h.objset.alloc(&tx, NewObject::new(19, blksz)))).unwrap()
    }

    #[test]
    fn a_record_that_is_touched_needs_room_for_all_of_it() {
        let h = Harness::new(7);
        let txgs = TxgState::new(zilla_env::real_env(1), Txg(h.txg.0 - 1));
        let tx = || block_on(txgs.assign()).unwrap();
        let dn = object(&h, 16 << 20);
        let floor = {
            dn.set_bonus(&tx(), &[]);
            txgs.needed()
        };
        dn.write(&tx(), 5, b"five");
        let one = txgs.needed() - floor;
        assert!(one >= GANGS * (16 << 20), "{one}");
        dn.write(&tx(), 500, b"and more of the same");
        assert_eq!(txgs.needed() - floor, one, "the record is counted once");
        dn.free_range(&tx(), 1 << 20, 1 << 20);
        assert_eq!(txgs.needed() - floor, one);
        txgs.placed(h.txg);
        assert_eq!(txgs.needed(), 0);
    }

    #[test]
    fn a_hole_in_a_record_needs_the_rest_of_it() {
        let mut h = Harness::new(7);
        let dn = object(&h, 1 << 20);
        dn.write(&h.tx(), 0, &vec![7; 3 << 20]);
        let txg = h.next_txg();
        block_on(h.sync(txg));
        let txgs = TxgState::new(zilla_env::real_env(1), Txg(h.txg.0 - 1));
        let tx = block_on(txgs.assign()).unwrap();
        let asked = dn.free_cost(&tx, 100, 200);
        dn.free_range(&tx, 100, 100);
        assert!(txgs.needed() >= GANGS << 20, "{}", txgs.needed());
        assert!(asked >= GANGS << 20, "{asked}");
        // Two records are cut, the one between them is freed whole.
        let both = dn.free_cost(&tx, (1 << 20) + 5, (3 << 20) - 5);
        assert!(both >= (2 * GANGS) << 20, "{both}");
        assert_eq!(dn.cost(&tx, 0, 1 << 20, 1 << 20), 0, "it is dirty already");
    }

    #[test]
    fn what_is_freed_is_written_down_and_its_references_are_counted() {
        let mut h = Harness::new(7);
        let dn = object(&h, 4096);
        dn.write(&h.tx(), 0, &vec![7; 1000 * 4096]);
        let txg = h.next_txg();
        block_on(h.sync(txg));
        let free = |tables: u64| {
            let txgs = TxgState::new(zilla_env::real_env(1), Txg(h.txg.0 - 1));
            txgs.set_tables(tables, 0);
            let tx = block_on(txgs.assign()).unwrap();
            dn.free_range(&tx, 0, 900 * 4096);
            txgs.needed()
        };
        // (The first makes the object dirty.)
        let (_, none, some, many) = (free(0), free(0), free(100), free(1 << 40));
        // Each a pointer, in three copies.
        assert!(none >= GANGS * 900 * 128 * 3, "{none}");
        assert_eq!(some - none, GANGS * 100 * 4096 * 3);
        assert_eq!(many - none, GANGS * 900 * 4096 * 3);
    }

    /// What was freed takes no room, but does when the same txg puts something there again.
    #[test]
    fn a_block_that_was_freed_and_is_written_again_needs_room() {
        let mut h = Harness::new(7);
        let dn = object(&h, 128 << 10);
        dn.write(&h.tx(), 0, &vec![7; 20 * (128 << 10)]);
        let txg = h.next_txg();
        block_on(h.sync(txg));
        let txgs = TxgState::new(zilla_env::real_env(1), Txg(h.txg.0 - 1));
        let tx = block_on(txgs.assign()).unwrap();
        dn.free_range(&tx, 0, 20 * (128 << 10));
        let (freed, dirty) = (txgs.needed(), txgs.dirty_bytes());
        let asked = dn.cost(&tx, 0, 20 * (128 << 10), 128 << 10);
        assert!(asked >= GANGS * 20 * (128 << 10), "{asked}");
        dn.write(&tx, 0, &vec![8; 20 * (128 << 10)]);
        let took = txgs.needed() - freed;
        assert!(took >= GANGS * (20 * (128 << 10) + (128 << 10)), "{took}: what leads there too");
        assert!(took <= asked, "{asked} asked, {took} needed");
        assert!(txgs.dirty_bytes() - dirty >= 20 * (128 << 10));
        // Once in a txg.
        dn.free_range(&tx, 0, 10 * (128 << 10));
        let freed = txgs.needed();
        dn.write(&tx, 0, &vec![9; 10 * (128 << 10)]);
        assert_eq!(txgs.needed(), freed);
    }

    #[test]
    fn scattered_blocks_need_what_leads_to_each() {
        let h = Harness::new(7);
        let txgs = TxgState::new(zilla_env::real_env(1), Txg(h.txg.0 - 1));
        let dn = object(&h, 512);
        let write = |block: u64| {
            let before = txgs.needed();
            let tx = block_on(txgs.assign()).unwrap();
            let asked = dn.cost(&tx, block << 9, (block << 9) + 1, 512);
            dn.write(&tx, block << 9, &[1]);
            drop(tx);
            let took = txgs.needed() - before;
            assert!(took <= asked + (GANGS << 15), "{block}: {asked} asked, {took} needed");
            took
        };
        write(5 << 20);
        let (near, far) = (write((5 << 20) + 1), write(9 << 20));
        assert!(near < 8 << 10, "its neighbour led there already: {near}");
        assert!(far > (2 * GANGS) << 17, "an indirect block of its own at least: {far}");
    }
}
