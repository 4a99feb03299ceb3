//! Space maps that cannot be read, for a moment or for good, when there is something to be written
//! behind what they have.

use super::super::sync::End;
use super::*;

const OFF_AND_ON: [SpaceFeatures; 2] = [MODERN, OLD];

impl World {
    /// Two metaslabs, and an import after which the map of the first cannot be read. What is in use
    /// there, and where its map is.
    async fn with_unread_map(features: SpaceFeatures) -> (World, Vec<Dva>, u64) {
        let mut w = World::new(features, vec![spec(0, 2, SpaceClass::Normal)]).await;
        let mut live: Vec<Dva> = w.alloc(&[req(4096, 1); 20]).await.iter().map(|d| d[0]).collect();
        // What the first has logged goes into the map with the second.
        for _ in 0..2 {
            live.extend(w.flush_all().await);
        }
        w.reopen().await;
        let (_, slab) = w.ms.metaslab(0, 0).unwrap();
        let map = slab.state().sm.as_ref().unwrap().dnode().clone();
        let bp = resident(|| map.block_pointer(0)).await.unwrap().unwrap();
        let place = bp.dva(0).offset;
        w.h.store.set_unreadable(place, true);
        w.ms.load(0, 0).await.unwrap();
        let st = slab.state();
        assert!(st.broken && st.unread.is_some() && !st.sm.as_ref().unwrap().length().is_multiple_of(4096));
        drop(st);
        (w, live, place)
    }

    /// A txg in which something is allocated and all metaslabs are to be flushed.
    async fn flush_all(&mut self) -> Vec<Dva> {
        let new = self.alloc(&[req(4096, 1)]).await.iter().map(|d| d[0]).collect();
        self.ms.request_flush_all();
        self.sync().await;
        new
    }

    fn map(&self) -> ObjectId {
        let (_, slab) = self.ms.metaslab(0, 0).unwrap();
        slab.state().sm.as_ref().unwrap().dnode().id()
    }

    /// Reads again what could not be read, if it is time.
    async fn read_again(&mut self) {
        for _ in 0..20 {
            let txg = self.sync().await;
            if let Some(task) = self.ms.read_again(txg) {
                return task.await;
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
}

#[test]
fn a_map_that_cannot_be_read_for_a_moment_loses_no_space() {
    for features in OFF_AND_ON {
        block_on(async {
            let (mut w, mut live, place) = World::with_unread_map(features).await;
            let map = w.map();
            for dva in live.drain(..5) {
                w.ms.free_dva(w.h.txg, &dva).unwrap();
            }
            let before = live.len();
            for _ in 0..3 {
                live.extend(w.flush_all().await);
                assert_eq!(w.map(), map, "nobody else knows what is free there");
            }
            assert!(live.iter().skip(before).all(|d| d.offset >= 1 << 24), "it is not used");
            w.h.store.set_unreadable(place, false);
            w.read_again().await;
            live.extend(w.flush_all().await);
            let more = w.alloc(&[req(1 << 20, 1); 16]).await;
            assert!(more.iter().any(|d| d[0].offset < 1 << 24), "it is used again");
            live.extend(more.iter().map(|d| d[0]));
            live.extend(w.flush_all().await);
            assert_eq!(w.map(), map);
            w.is_in_use(&live).await;
        });
    }
}

/// What it had free is nobody's then, and what is freed afterwards is given out again.
#[test]
fn a_map_that_cannot_be_read_for_good_is_written_anew() {
    for features in OFF_AND_ON {
        block_on(async {
            let (mut w, mut live, _) = World::with_unread_map(features).await;
            let (_, slab) = w.ms.metaslab(0, 0).unwrap();
            slab.state().unread = None;
            let map = w.map();
            let freed: Vec<Dva> = live.drain(..5).collect();
            for dva in &freed {
                w.ms.free_dva(w.h.txg, dva).unwrap();
            }
            w.flush_all().await;
            w.flush_all().await;
            assert_ne!(w.map(), map);
            w.read_again().await;
            assert!(slab.state().loaded && !slab.state().broken);
            let mut want = RangeTree::new();
            want.add(0, 1 << 24).unwrap();
            let free = tree_of(freed.iter(), 0);
            want.remove_all(&free).unwrap();
            let used = async |w: &World| {
                let mut used = w.ms.allocated_ranges(0).await.unwrap();
                let _ = used.subtract(1 << 24, 2 << 24);
                ranges(&used)
            };
            assert_eq!(used(&w).await, ranges(&want));
            w.reopen().await;
            assert_eq!(used(&w).await, ranges(&want), "map and logs are one");
            w.ms.load(0, 0).await.unwrap();
            let (_, slab) = w.ms.metaslab(0, 0).unwrap();
            assert!(!slab.state().broken, "they fit each other");
            assert_eq!(slab.state().free.space(), free.space());
        });
    }
}

/// Else what it finds free would be given out though the map that takes its place calls it used.
#[test]
fn nobody_reads_a_map_whose_place_another_is_about_to_take() {
    block_on(async {
        let (mut w, _, place) = World::with_unread_map(MODERN).await;
        let (v, slab) = w.ms.metaslab(0, 0).unwrap();
        let kept = slab.keep_unread().await.unwrap();
        w.h.store.set_unreadable(place, false);
        slab.load_again().await;
        assert!(!slab.state().loaded);
        let tx = w.h.tx();
        assert_eq!(
            w.ms.settle_map(w.mos(), &tx, 1, &v, &slab).await.unwrap(),
            End::Later,
            "it is being read"
        );
        drop(kept);
        assert_eq!(w.ms.settle_map(w.mos(), &tx, 1, &v, &slab).await.unwrap(), End::Sound);
        w.read_again().await;
        assert!(slab.state().loaded && slab.keep_unread().await.is_none());
    });
}
