//! A clone's livelist is what the clone has written and still has, whatever it went through; a
//! destroyed clone is freed by it.

use super::*;
use crate::tunables::{LIVELIST_MAX_ENTRIES, LIVELIST_MIN_PERCENT_SHARED};
use parking_lot::{Mutex, MutexGuard};
use zilla_ondisk::deadlist::int_key;
use zilla_ondisk::dsl::DD_FIELD_LIVELIST;

/// No object has this number.
const NOBODY: u64 = 1 << 30;

/// The tunables are the process's.
static TUNED: Mutex<()> = Mutex::new(());

struct Tuned(#[expect(dead_code)] MutexGuard<'static, ()>);

impl Drop for Tuned {
    fn drop(&mut self) {
        LIVELIST_MAX_ENTRIES.set(LIVELIST_MAX_ENTRIES.default);
        LIVELIST_MIN_PERCENT_SHARED.set(LIVELIST_MIN_PERCENT_SHARED.default);
    }
}

fn tuned(max: u64, percent: u64) -> Tuned {
    let tuned = Tuned(TUNED.lock());
    LIVELIST_MAX_ENTRIES.set(max);
    LIVELIST_MIN_PERCENT_SHARED.set(percent);
    tuned
}

fn cloned() -> Pool {
    let features: Vec<_> = FEATURES.iter().copied().chain(["livelist"]).collect();
    let mut p = Pool::with(&features);
    p.create("tank/fs");
    p.write("tank/fs", 1, 0, 200, 1);
    p.snapshot("tank/fs@a");
    p.task(async |p, tx| p.clone_ds(tx, "tank/c", "tank/fs@a").await).unwrap();
    p
}

impl Pool {
    /// How many parts the livelist has.
    fn parts(&self, name: &str) -> Option<usize> {
        let dir = self.ds(name).dir();
        let id = block_on(self.dsl.livelist(&dir)).unwrap()?;
        Some(block_on(self.dsl.deadlist_open(id)).unwrap().lists().len())
    }

    /// The clone's livelist cannot be read any more.
    fn damage(&mut self, name: &str) {
        let damaged = self.task(async |p, tx| {
            let dir = p.by_name(name).await?.dir();
            let zap = dir.zap().expect("a livelist");
            zap.set_u64(tx, DD_FIELD_LIVELIST, NOBODY).await
        });
        damaged.unwrap();
    }

    /// The livelist keeps what the head has that its origin had not.
    #[track_caller]
    fn check_livelist(&mut self, name: &str) {
        self.check();
        let ds = self.ds(name);
        let dir = ds.dir();
        let since = dir.origin_txg.load(std::sync::atomic::Ordering::Relaxed);
        let store: Arc<dyn BlockStore> = self.store.clone();
        let (all, _) = block_on(collect(&store, ds.phys().bp, since, None, usize::MAX)).unwrap();
        let own = |bps: &[BlkPtr]| {
            let own = bps.iter().filter(|b| !b.is_embedded() && b.birth() > since);
            own.map(|b| b.dva(0).offset).collect::<BTreeSet<_>>()
        };
        let id = block_on(self.dsl.livelist(&dir)).unwrap().expect("a livelist");
        let list = block_on(self.dsl.deadlist_open(id)).unwrap();
        let mut kept = Vec::new();
        for part in list.lists().into_values() {
            kept.extend(block_on(self.dsl.kept(part)).unwrap());
        }
        assert_eq!(own(&kept).len(), kept.len(), "a block is in it twice");
        assert_eq!(own(&kept), own(&all));
        let space = list.space().unwrap();
        assert_eq!(space.used, kept.iter().map(|b| store.dsize(b)).sum::<u64>());
    }
}

#[test]
fn a_livelist_tells_what_its_clone_has_written() {
    let _tuned = tuned(20, 10);
    let mut p = cloned();
    assert_eq!(p.parts("tank/c"), Some(0));
    p.check_livelist("tank/c");
    for i in 0..6 {
        // (Blocks of zeros are holes, and no blocks.)
        p.write("tank/c", 2 + i, 0, 30, 1 + i as u8);
        p.check_livelist("tank/c");
    }
    let parts = p.parts("tank/c").unwrap();
    assert!(parts >= 6, "a part of more than 20 blocks is closed: {parts}");
    // What is dropped cancels what an older part has.
    for i in 0..6 {
        p.write("tank/c", 2 + i, 0, 30, 77);
        p.check_livelist("tank/c");
    }
    p.snapshot("tank/c@x");
    p.write("tank/c", 3, 0, 10, 5);
    p.check_livelist("tank/c");
    p.destroy_snapshot("tank/c@x");
    p.check_livelist("tank/c");
    let before = p.store.count();
    p.destroy("tank/c");
    assert_eq!(p.dsl.bptree_obj.load(std::sync::atomic::Ordering::Relaxed), 0, "no tree is queued");
    p.check();
    assert!(p.store.count() + 180 < before);
    assert_eq!(p.dsl.ctx().features.count("livelist"), 0);
}

#[test]
fn small_neighbours_become_one_part() {
    let _tuned = tuned(20, 10);
    let mut p = cloned();
    for i in 0..5 {
        p.write("tank/c", 2 + i, 0, 30, 1);
        p.check_livelist("tank/c");
    }
    let full = p.parts("tank/c").unwrap();
    for i in 0..5 {
        p.write("tank/c", 2 + i, 0, 30, 2);
        p.check_livelist("tank/c");
    }
    let after = p.parts("tank/c").unwrap();
    assert!(after < full + 5, "{full} parts, then {after}: those that kept nothing are still there");
}

#[test]
fn destroyed_clones_are_freed_a_part_at_a_time_and_by_the_next_import_too() {
    let _tuned = tuned(20, 10);
    let mut p = cloned();
    p.task(async |p, tx| p.clone_ds(tx, "tank/d", "tank/fs@a").await).unwrap();
    for i in 0..6 {
        p.write("tank/c", 2 + i, 0, 40, i as u8);
        p.write("tank/d", 2 + i, 0, 40, i as u8);
        p.sync();
    }
    p.destroy("tank/c");
    p.destroy("tank/d");
    assert_eq!(p.dsl.ctx().features.count("livelist"), 2, "they count until they are freed");
    let waiting = block_on(p.dsl.freeing()).unwrap();
    assert!(waiting.used >= 480 * 4096, "{waiting:?}");
    p.dsl.destroying.lock().batch = 10;
    p.sync();
    let less = block_on(p.dsl.freeing()).unwrap();
    assert!(less.used < waiting.used && less.used > 0, "{less:?}");
    let held: u64 = block_on(p.dsl.waiting_blocks()).unwrap().iter().map(|b| p.store.dsize(b)).sum();
    assert_eq!(held, less.used);
    p.reopen();
    assert_eq!(block_on(p.dsl.freeing()).unwrap(), less);
    p.check();
    assert_eq!(p.dsl.ctx().features.count("livelist"), 0);
}

#[test]
fn who_shares_too_little_and_who_is_promoted_has_no_livelist() {
    // In so small a clone half of what is its own is metadata.
    let _tuned = tuned(20, 40);
    let mut p = cloned();
    p.write("tank/c", 2, 0, 50, 2);
    p.check_livelist("tank/c");
    p.write("tank/c", 3, 0, 300, 2);
    p.check();
    assert_eq!(p.parts("tank/c"), None);
    p.destroy("tank/c");
    p.check();
    p.task(async |p, tx| p.clone_ds(tx, "tank/e", "tank/fs@a").await).unwrap();
    p.write("tank/e", 2, 0, 10, 2);
    p.check_livelist("tank/e");
    p.task(async |p, tx| p.promote(tx, "tank/e").await).unwrap();
    p.check();
    assert_eq!((p.parts("tank/e"), p.parts("tank/fs")), (None, None));
    assert_eq!(p.dsl.ctx().features.count("livelist"), 0);
}

#[test]
fn a_livelist_that_cannot_be_read_is_given_up_and_its_clone_freed_by_the_tree() {
    let _tuned = tuned(20, 10);
    let mut p = cloned();
    p.task(async |p, tx| p.clone_ds(tx, "tank/d", "tank/fs@a").await).unwrap();
    p.write("tank/c", 2, 0, 30, 1);
    p.write("tank/d", 2, 0, 30, 1);
    p.check_livelist("tank/c");
    // Met by a write.
    p.damage("tank/c");
    p.write("tank/c", 3, 0, 30, 2);
    p.sync();
    assert_eq!(p.parts("tank/c"), None);
    assert_eq!(p.dsl.ctx().features.count("livelist"), 1);
    p.destroy("tank/c");
    p.check();
    // Met by the destroying.
    p.damage("tank/d");
    p.destroy("tank/d");
    p.check();
    assert_eq!(p.dsl.ctx().features.count("livelist"), 0);
}

#[test]
fn a_damaged_part_keeps_no_other_waiting_and_is_given_up_in_the_end() {
    let _tuned = tuned(20, 10);
    let mut p = cloned();
    for i in 0..3 {
        p.write("tank/c", 2 + i, 0, 40, i as u8);
        p.sync();
    }
    let dir = p.ds("tank/c").dir();
    let id = block_on(p.dsl.livelist(&dir)).unwrap().expect("a livelist");
    p.destroy("tank/c");
    let parts = block_on(p.dsl.deadlist_open(id)).unwrap().lists();
    let (key, part) = parts.into_iter().next().expect("a part");
    let lost = block_on(p.dsl.bpobj_open(part)).unwrap().space().unwrap();
    assert!(lost.used > 0);
    p.task(async |p, tx| Zap::open(p.mos(), id).await?.set_u64(tx, &int_key(key), NOBODY).await).unwrap();
    p.sync();
    assert_eq!(block_on(p.dsl.freeing()).unwrap(), lost);
    assert_eq!(block_on(p.dsl.leaked()).unwrap(), 0, "a copy may come back");
    p.dsl.destroying.lock().patience = std::time::Duration::ZERO;
    p.sync();
    assert_eq!(block_on(p.dsl.freeing()).unwrap(), Space::default());
    assert_eq!(block_on(p.dsl.leaked()).unwrap(), lost.used);
    assert_eq!(p.dsl.ctx().features.count("livelist"), 0);
    p.reopen();
    assert_eq!(block_on(p.dsl.leaked()).unwrap(), lost.used);
}
