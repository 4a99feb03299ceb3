//! Space maps that cannot be read, for a moment or for good, when there is something to be written
//! behind what they have.

use super::super::slab::Metaslab;
use super::super::space_map::SpaceMap;
use super::*;
use std::sync::atomic::Ordering;
use zilla_ondisk::removal::VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM;

const OFF_AND_ON: [SpaceFeatures; 2] = [MODERN, OLD];

impl World {
    /// Two metaslabs, both with something in their maps, after an import; and what is in use.
    async fn imported(features: SpaceFeatures) -> (World, Vec<Dva>) {
        let mut w = World::new(features, vec![spec(0, 2, SpaceClass::Normal)]).await;
        let mut live: Vec<Dva> = w.alloc(&[req(4096, 1); 20]).await.iter().map(|d| d[0]).collect();
        // What the first has logged goes into the map with the second.
        for _ in 0..2 {
            live.extend(w.flush_all().await);
        }
        w.reopen().await;
        assert!(live.iter().all(|d| d.offset < 1 << 24));
        (w, live)
    }

    /// A txg in which something is allocated and all metaslabs are to be flushed.
    async fn flush_all(&mut self) -> Vec<Dva> {
        let new = self.alloc(&[req(4096, 1)]).await.iter().map(|d| d[0]).collect();
        self.ms.request_flush_all();
        self.sync().await;
        new
    }

    fn first(&self) -> Arc<Metaslab> {
        self.ms.metaslab(0, 0).unwrap().1
    }

    fn map(&self) -> ObjectId {
        self.first().state().sm.as_ref().unwrap().dnode().id()
    }

    /// From now on the first metaslab's map cannot be read. Where it is.
    async fn lose_map(&mut self) -> u64 {
        let map = self.first().state().sm.as_ref().unwrap().dnode().clone();
        let place = resident(|| map.block_pointer(0)).await.unwrap().unwrap().dva(0).offset;
        self.h.store.set_unreadable(place, true);
        self.h.cache.clear();
        assert!(self.first().state().sm.as_ref().unwrap().end().is_some());
        place
    }

    fn free_some(&self, live: &mut Vec<Dva>, n: usize) -> Vec<Dva> {
        let freed: Vec<Dva> = live.drain(..n).collect();
        freed.iter().for_each(|dva| self.ms.free_dva(self.h.txg, dva).unwrap());
        freed
    }

    /// Whether it is time to read again what could not be read; then that is done.
    async fn tries_again(&mut self) -> bool {
        let txg = self.sync().await;
        let Some(task) = self.ms.read_again(txg) else { return false };
        task.await;
        true
    }

    async fn read_again(&mut self) {
        for _ in 0..20 {
            if self.tries_again().await {
                return;
            }
        }
        panic!("it is not tried again");
    }

    async fn is_in_use(&mut self, live: &[Dva]) {
        let want = ranges(&tree_of(live.iter(), 0));
        assert_eq!(ranges(&self.ms.allocated_ranges(0).await.unwrap()), want);
        self.reopen().await;
        assert_eq!(ranges(&self.ms.allocated_ranges(0).await.unwrap()), want, "after a crash");
    }

    /// What is in use in the first metaslab.
    async fn used(&self) -> Vec<(u64, u64)> {
        let mut used = self.ms.allocated_ranges(0).await.unwrap();
        let _ = used.subtract(1 << 24, 2 << 24);
        ranges(&used)
    }
}

#[test]
fn what_a_map_that_cannot_be_read_is_to_get_waits_in_the_logs() {
    for crash in [false, true] {
        block_on(async {
            let (mut w, mut live) = World::imported(MODERN).await;
            let (map, place) = (w.map(), w.lose_map().await);
            w.free_some(&mut live, 5);
            w.sync().await;
            w.ms.request_flush_all();
            w.sync().await;
            assert!(w.first().state().broken && w.first().state().unread.is_some());
            let refused = w.h.store.refused.load(Ordering::Relaxed);
            for _ in 0..3 {
                let new = w.flush_all().await;
                assert!(new.iter().all(|d| d.offset >= 1 << 24), "it is not used");
                live.extend(new);
                assert!(!w.ms.is_dirty(w.h.txg) && w.map() == map);
            }
            assert_eq!(w.h.store.refused.load(Ordering::Relaxed), refused, "it is left alone");
            // It is tried ever more seldom, but for when a device comes back.
            for _ in 0..40 {
                if w.tries_again().await {
                    assert!(w.first().state().unread.is_some());
                }
            }
            assert!(!w.tries_again().await);
            w.h.store.set_unreadable(place, false);
            if !crash {
                w.ms.read_soon();
                assert!(w.tries_again().await);
                live.extend(w.flush_all().await);
                let more = w.alloc(&[req(1 << 20, 1); 16]).await;
                assert!(more.iter().any(|d| d[0].offset < 1 << 24), "it is used again");
                live.extend(more.iter().map(|d| d[0]));
                live.extend(w.flush_all().await);
                assert_eq!(w.map(), map);
            }
            w.is_in_use(&live).await;
        });
    }
}

#[test]
fn memory_knows_what_the_map_of_a_metaslab_in_use_says() {
    for features in OFF_AND_ON {
        block_on(async {
            let (mut w, mut live) = World::imported(features).await;
            w.ms.load(0, 0).await.unwrap();
            w.free_some(&mut live, 3);
            live.extend(w.flush_all().await);
            let map = w.map();
            for last in [false, true] {
                if last {
                    w.lose_map().await;
                }
                w.free_some(&mut live, 3);
                live.extend(w.flush_all().await);
                // (Without logs, what the txg before has freed waits.)
                assert_eq!(w.map() != map, last);
            }
            assert!(w.first().state().loaded && !w.first().state().broken);
            for _ in 0..3 {
                live.extend(w.flush_all().await);
            }
            w.is_in_use(&live).await;
            w.ms.load(0, 0).await.unwrap();
            assert!(w.first().state().loaded, "map and logs are one");
        });
    }
}

/// What it had free is nobody's then, and what is freed is given out again, though the map was
/// written anew before its time.
#[test]
fn of_a_map_that_cannot_be_read_for_good_what_is_known_is_written_anew() {
    for features in OFF_AND_ON {
        block_on(async {
            let (mut w, mut live) = World::imported(features).await;
            let map = w.map();
            let mut freed = w.free_some(&mut live, 5);
            w.sync().await;
            w.lose_map().await;
            if features.log_spacemap {
                w.ms.load(0, 0).await.unwrap();
                w.first().state().unread = None;
            }
            freed.extend(w.free_some(&mut live, 5));
            for _ in 0..2 {
                w.ms.request_flush_all();
                w.sync().await;
            }
            assert_ne!(w.map(), map);
            let mut want = RangeTree::new();
            want.add(0, 1 << 24).unwrap();
            let free = tree_of(freed.iter(), 0);
            free.iter().for_each(|(s, e)| want.remove(s, e - s).unwrap());
            assert_eq!(w.used().await, ranges(&want));
            assert_eq!(w.first().state().allocated, want.space());
            if features.log_spacemap {
                w.read_again().await;
            }
            w.ms.load(0, 0).await.unwrap();
            for _ in 0..4 {
                w.sync().await;
            }
            assert!(w.first().state().loaded && !w.first().state().broken);
            assert_eq!(w.first().state().free.space(), free.space());
            w.reopen().await;
            assert_eq!(w.used().await, ranges(&want), "map and logs are one");
            w.ms.load(0, 0).await.unwrap();
            assert!(!w.first().state().broken, "they fit each other");
            assert_eq!(w.first().state().free.space(), free.space());
        });
    }
}

impl World {
    async fn lose_end(&mut self, list: ObjectId) {
        let list = self.mos().hold_wait(list).await.unwrap();
        let sm = SpaceMap::open(list.clone(), 0, u64::MAX, 0).unwrap();
        let (_, at) = sm.end().unwrap();
        let end = at / u64::from(sm.blksz());
        let place = resident(|| list.block_pointer(end)).await.unwrap().unwrap().dva(0).offset;
        self.h.store.set_unreadable(place, true);
        self.h.cache.clear();
    }

    fn checkpoint_list(&self) -> Option<ObjectId> {
        self.ms.vdev(0).unwrap().checkpoint.lock().as_ref().map(|sm| sm.dnode().id())
    }
}

/// The rest of the list is kept, and of what stood at its end only the space is lost.
#[test]
fn a_checkpoints_list_goes_on_without_the_end_that_cannot_be_read() {
    block_on(async {
        for (first, kept) in [(100, 0..=0), (20_000, 16_000..=16_384)] {
            let mut w = World::new(MODERN, vec![spec(0, 16, SpaceClass::Normal)]).await;
            let all = w.alloc(&vec![req(4096, 1); 2 * first + 40]).await;
            // No two of those that go adjoin, so each takes an entry of a word.
            let mut all = all.into_iter().map(|d| d[0]).step_by(2);
            let born = w.sync().await;
            w.ms.set_checkpoint(Txg(w.h.txg.0 - 1));
            let mut lists = Vec::new();
            for (some, lost) in [(first, false), (10, false), (10, true)] {
                if lost {
                    w.lose_end(w.checkpoint_list().unwrap()).await;
                }
                let gone: Vec<Dva> = all.by_ref().take(some).collect();
                gone.iter().for_each(|dva| w.ms.free(w.h.txg, dva, born));
                w.sync().await;
                lists.push(w.checkpoint_list().unwrap());
                let listed = w.ms.checkpointed_ranges(0).await.unwrap();
                assert!(gone.iter().all(|d| listed.contains(d.offset, d.asize)));
            }
            assert!(lists[0] == lists[1] && lists[1] != lists[2]);
            w.reopen().await;
            w.ms.load_checkpoints(w.mos()).await.unwrap();
            assert_eq!(w.checkpoint_list(), Some(lists[2]));
            let listed = w.ms.checkpointed_ranges(0).await.unwrap().space();
            assert!(kept.contains(&(listed / 4096 - 10)), "{listed:#x} bytes are listed");
            assert_eq!(w.ms.checkpoint_space(), listed);
            let alloc = w.ms.vdev_stat(0).unwrap().alloc;
            while w.ms.discard_checkpoint(w.mos(), &Tx::syncing(w.h.txg), false).await.unwrap().more {
                w.sync().await;
            }
            for _ in 0..4 {
                w.sync().await;
            }
            assert_eq!(w.ms.vdev_stat(0).unwrap().alloc, alloc - listed);
        }
    });
}

/// Who tries again frees nothing twice; and what cannot be read is given up in the end.
#[test]
fn of_a_checkpoints_list_what_can_be_read_is_freed_once() {
    block_on(async {
        let mut w = World::new(MODERN, vec![spec(0, 16, SpaceClass::Normal)]).await;
        let all = w.alloc(&vec![req(4096, 1); 40_000]).await;
        let gone: Vec<Dva> = all.into_iter().map(|d| d[0]).step_by(2).collect();
        let born = w.sync().await;
        w.ms.set_checkpoint(Txg(w.h.txg.0 - 1));
        gone.iter().for_each(|dva| w.ms.free(w.h.txg, dva, born));
        w.sync().await;
        w.lose_end(w.checkpoint_list().unwrap()).await;
        w.reopen().await;
        w.ms.load_checkpoints(w.mos()).await.unwrap();
        let (alloc, listed) = (w.ms.vdev_stat(0).unwrap().alloc, w.ms.checkpoint_space());
        assert_eq!(listed, 20_000 * 4096);
        for _ in 0..6 {
            let no = w.ms.discard_checkpoint(w.mos(), &Tx::syncing(w.h.txg), false).await;
            assert!(matches!(no, Err(crate::error::Error::Corrupt(_))), "{no:?}");
            w.sync().await;
        }
        assert_eq!((w.ms.vdev_stat(0).unwrap().alloc, w.ms.checkpoint_space()), (alloc, listed));
        let mut lost = 0;
        loop {
            let step = w.ms.discard_checkpoint(w.mos(), &Tx::syncing(w.h.txg), true).await.unwrap();
            lost += step.lost;
            w.sync().await;
            if !step.more {
                break;
            }
        }
        for _ in 0..4 {
            w.sync().await;
        }
        assert!(lost > 0 && lost < listed / 2, "{lost:#x} bytes are lost");
        assert_eq!(w.ms.vdev_stat(0).unwrap().alloc, alloc - (listed - lost));
        assert!(w.checkpoint_list().is_none() && w.ms.checkpoint_space() == 0);
    });
}

/// The same of what became obsolete on a vdev that was removed.
#[test]
fn a_list_of_what_is_obsolete_goes_on_without_the_end_that_cannot_be_read() {
    block_on(async {
        let mut w = World::new(MODERN, vec![spec(0, 4, SpaceClass::Normal)]).await;
        let zap = w.specs[0].top_zap;
        w.ms.set_removed(7, Default::default(), zap, 1 << 30);
        let mut lists = Vec::new();
        for i in 0..3 {
            let dva = Dva { vdev: 7, offset: i << 20, asize: 4096, gang: false };
            if i == 2 {
                w.lose_end(lists[1]).await;
            }
            w.ms.now_obsolete(&dva);
            let (mos, tx) = (w.mos().clone(), Tx::syncing(w.h.txg));
            assert!(w.ms.sync_obsolete(&mos, &tx, 1).await.unwrap());
            w.sync().await;
            let zap = Zap::open(w.mos(), zap.0).await.unwrap();
            lists.push(ObjectId(zap.try_get_u64(VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM).await.unwrap().unwrap()));
        }
        assert!(lists[0] == lists[1] && lists[1] != lists[2]);
        let list = w.mos().hold_wait(lists[2]).await.unwrap();
        assert_eq!(SpaceMap::open(list, 0, 1 << 30, 0).unwrap().allocated(), 4096);
    });
}
