//! The allocator against a model: what is given out never overlaps, what is freed stays untouched
//! for two txgs, and a pool opened from the last synced txg (a crash) has exactly what that txg
//! had.

mod unread;

use super::*;
use crate::dmu::testing::Harness;
use crate::dmu::{Objset, resident};
use crate::txg::Tx;
use crate::types::{ObjectId, Txg};
use crate::zap::{CreateOpts, Zap};
use crate::zio::{AllocClass, AllocReq, AllocStop, Allocator, At, Dvas, Leave};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_env::block_on;
use zilla_ondisk::blkptr::Dva;
use zilla_ondisk::object_type::{DMU_OT_OBJECT_DIRECTORY, DMU_OTN_ZAP_METADATA};

const MODERN: SpaceFeatures =
    SpaceFeatures { spacemap_histogram: true, spacemap_v2: true, log_spacemap: true, obsolete_counts: true };
const OLD: SpaceFeatures = SpaceFeatures {
    spacemap_histogram: false,
    spacemap_v2: false,
    log_spacemap: false,
    obsolete_counts: false,
};

/// A pool's metaslabs on a MOS in memory.
struct World {
    h: Harness,
    ms: Arc<Metaslabs>,
    specs: Vec<VdevSpec>,
    features: SpaceFeatures,
    log_users: i64,
    histogram_users: i64,
}

fn spec(id: u32, metaslabs: u64, class: SpaceClass) -> VdevSpec {
    VdevSpec {
        id,
        class,
        ashift: 12,
        asize: metaslabs << 24,
        create_txg: Txg(0),
        ms_shift: 24,
        ms_array: ObjectId(0),
        top_zap: ObjectId(0),
        data_disks: 1,
        usable: Arc::new(true.into()),
        grain: 4096,
        psize_to_asize: Arc::new(|p, _| p.next_multiple_of(4096)),
    }
}

impl World {
    async fn new(features: SpaceFeatures, mut specs: Vec<VdevSpec>) -> World {
        let mut h = Harness::new(0);
        let tx = h.tx();
        let directory = resident(|| {
            Zap::create_claim(&h.objset, &tx, ObjectId(1), DMU_OT_OBJECT_DIRECTORY, &CreateOpts::default())
        });
        directory.await.unwrap();
        let ms = Metaslabs::new(features);
        for s in &mut specs {
            let zap = Zap::make(&h.objset, &tx, DMU_OTN_ZAP_METADATA, &CreateOpts::default()).await.unwrap();
            s.top_zap = zap.dnode().id();
            ms.add_vdev(s.clone()).unwrap();
            s.ms_array = ms.create_array(&h.objset, &tx, s.id).await.unwrap();
        }
        let txg = h.next_txg();
        h.sync(txg).await;
        World { h, ms, specs, features, log_users: 0, histogram_users: 0 }
    }

    fn mos(&self) -> &Arc<Objset> {
        &self.h.objset
    }

    async fn alloc(&self, reqs: &[AllocReq]) -> Vec<Dvas> {
        let mut out = Vec::new();
        loop {
            match self.ms.alloc(self.h.txg, reqs, &mut out) {
                Ok(()) | Err(AllocStop::NoSpc) => return out,
                Err(AllocStop::Load { vdev, metaslab }) => self.ms.load(vdev, metaslab).await.unwrap(),
                Err(AllocStop::Err(e)) => panic!("{e}"),
            }
        }
    }

    /// Syncs the open txg as the pool does, without the MOS's own blocks coming from here.
    async fn sync(&mut self) -> Txg {
        let txg = self.h.txg;
        for pass in 1..4 {
            self.ms.sync(self.mos(), txg, pass).await.unwrap();
            assert!(!self.ms.is_dirty(txg));
        }
        let counts = self.ms.take_feature_counts();
        self.log_users += counts.log_spacemap;
        self.histogram_users += counts.spacemap_histogram;
        self.h.next_txg();
        self.h.sync(txg).await;
        self.ms.sync_done(txg).unwrap();
        txg
    }

    /// A crash, and what the import after it finds.
    async fn reopen(&mut self) {
        self.h.reopen().await;
        self.ms = Metaslabs::new(self.features);
        for s in &self.specs {
            self.ms.open_vdev(self.mos(), s.clone()).await.unwrap();
        }
        self.ms.load_logs(self.mos()).await.unwrap();
    }
}

fn req(psize: u64, copies: u8) -> AllocReq {
    AllocReq::new(AllocClass::Normal, psize, copies)
}

/// For the log, on vdev 1.
fn log_req(psize: u64, at: At) -> AllocReq {
    AllocReq { spots: [Some((1, at)), None], ..AllocReq::new(AllocClass::Log, psize, 1) }
}

fn tree_of<'a>(dvas: impl Iterator<Item = &'a Dva>, vdev: u32) -> RangeTree {
    let mut t = RangeTree::new();
    dvas.filter(|d| d.vdev == vdev).for_each(|d| t.add(d.offset, d.asize).unwrap());
    t
}

fn ranges(t: &RangeTree) -> Vec<(u64, u64)> {
    t.iter().collect()
}

/// One random step of the model test.
#[derive(Clone, Debug)]
enum Step {
    Alloc { sizes: Vec<u16>, copies: u8 },
    Free(Vec<u16>),
    Sync,
    FlushAll,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (prop::collection::vec(1u16..256, 1..20), 1u8..4).prop_map(|(sizes, copies)| Step::Alloc { sizes, copies }),
        3 => prop::collection::vec(any::<u16>(), 1..20).prop_map(Step::Free),
        3 => Just(Step::Sync),
        1 => Just(Step::FlushAll),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..40)
}

async fn run_model(features: SpaceFeatures, steps: Vec<Step>) {
    let specs = vec![spec(0, 9, SpaceClass::Normal), spec(1, 6, SpaceClass::Normal)];
    let mut w = World::new(features, specs).await;
    let mut live: Vec<Dva> = Vec::new();
    let mut synced = live.clone();
    // Places by the txg up to which they must stay as they are.
    let mut held: BTreeMap<(u32, u64), (u64, Txg)> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Alloc { sizes, copies } => {
                let reqs: Vec<_> = sizes.iter().map(|s| req(u64::from(*s) * 512, copies)).collect();
                for dvas in w.alloc(&reqs).await {
                    assert_eq!(dvas.len(), usize::from(copies));
                    assert!(copies == 1 || dvas[0].vdev != dvas[1].vdev);
                    for d in dvas {
                        let clash = held.range(..(d.vdev, d.offset + d.asize)).next_back();
                        if let Some((&(v, at), &(size, until))) = clash {
                            let overlaps = v == d.vdev && at + size > d.offset;
                            assert!(
                                !overlaps || until < w.h.txg,
                                "{d:?} is held until {until}, now {}",
                                w.h.txg
                            );
                        }
                        live.push(d);
                    }
                }
            }
            Step::Free(which) => {
                for i in which {
                    if !live.is_empty() {
                        let d = live.swap_remove(usize::from(i) % live.len());
                        w.ms.free_dva(w.h.txg, &d).unwrap();
                        assert!(w.ms.free_dva(w.h.txg, &d).is_err(), "freed twice");
                        held.insert((d.vdev, d.offset), (d.asize, Txg(w.h.txg.0 + 2)));
                    }
                }
            }
            Step::FlushAll => w.ms.request_flush_all(),
            Step::Sync => {
                let txg = w.sync().await;
                held.retain(|_, (_, until)| *until >= txg);
                synced = live.clone();
                for v in 0..2 {
                    let want = tree_of(live.iter(), v);
                    assert_eq!(ranges(&w.ms.allocated_ranges(v).await.unwrap()), ranges(&want));
                    let stat = w.ms.vdev_stat(v).unwrap();
                    assert_eq!(stat.alloc - stat.deferred, want.space());
                }
            }
            Step::Crash => {
                w.reopen().await;
                for v in 0..2 {
                    let want = tree_of(synced.iter(), v);
                    assert_eq!(ranges(&w.ms.allocated_ranges(v).await.unwrap()), ranges(&want));
                    assert_eq!(w.ms.vdev_stat(v).unwrap().alloc, want.space());
                }
                // Life goes on from there.
                live = synced.clone();
                held.clear();
            }
        }
    }
    assert!(w.log_users <= 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn like_the_model_with_logs(steps in steps()) {
        block_on(run_model(MODERN, steps));
    }

    #[test]
    fn like_the_model_without_logs(steps in steps()) {
        block_on(run_model(OLD, steps));
    }
}

/// A place that only the logs call free is given out after an import, and comes back before
/// anything is synced.
#[test]
fn a_place_freed_in_the_logs_can_be_given_out_and_freed_again() {
    block_on(async {
        let mut w = World::new(MODERN, vec![spec(0, 1, SpaceClass::Normal)]).await;
        let old = w.alloc(&[req(1 << 20, 1); 15]).await;
        w.sync().await;
        old.iter().for_each(|d| w.ms.free_dva(w.h.txg, &d[0]).unwrap());
        w.sync().await;
        w.reopen().await;
        for d in w.alloc(&[req(1 << 20, 1); 15]).await {
            w.ms.free_dva(w.h.txg, &d[0]).unwrap();
            assert!(w.ms.free_dva(w.h.txg, &d[0]).is_err(), "freed twice");
        }
        w.sync().await;
        assert!(w.ms.allocated_ranges(0).await.unwrap().is_empty());
    });
}

#[test]
fn neighbours_in_time_are_neighbours_on_disk() {
    block_on(async {
        let w = World::new(MODERN, vec![spec(0, 8, SpaceClass::Normal)]).await;
        let got = w.alloc(&[req(128 << 10, 2); 10]).await;
        for copy in 0..2 {
            let at: Vec<u64> = got.iter().map(|d| d[copy].offset).collect();
            assert!(at.windows(2).all(|p| p[1] == p[0] + (128 << 10)), "{at:x?}");
        }
        assert!(got.iter().all(|d| d[0].offset >> 24 != d[1].offset >> 24));
    });
}

#[test]
fn vdevs_take_turns_and_the_emptier_longer_ones() {
    block_on(async {
        let mut w =
            World::new(MODERN, vec![spec(0, 40, SpaceClass::Normal), spec(1, 40, SpaceClass::Normal)]).await;
        w.ms.set_allocatable(1, false).unwrap();
        w.alloc(&[req(1 << 20, 1); 320]).await;
        w.sync().await;
        w.ms.set_allocatable(1, true).unwrap();
        let got = w.alloc(&[req(1 << 20, 1); 120]).await;
        let on = |v| got.iter().filter(|d| d[0].vdev == v).count();
        assert!(on(1) > on(0) + 20 && on(0) > 20, "{} {}", on(0), on(1));
    });
}

#[test]
fn a_retired_vdev_takes_only_what_a_txg_cannot_do_without() {
    block_on(async {
        let w =
            World::new(MODERN, vec![spec(0, 4, SpaceClass::Normal), spec(1, 4, SpaceClass::Normal)]).await;
        let both = w.ms.class_stat(SpaceClass::Normal);
        w.ms.retire(1, true).unwrap();
        assert!(w.ms.is_retired(1).unwrap() && !w.ms.is_retired(0).unwrap());
        let one = w.ms.class_stat(SpaceClass::Normal);
        assert_eq!(one.space * 2, both.space, "what is free there is not the pool's");
        let got = w.alloc(&[req(1 << 20, 1); 40]).await;
        assert!(got.iter().all(|d| d[0].vdev == 0));
        // Until the other is full.
        let must = AllocReq { must: true, ..req(1 << 20, 1) };
        let mut on = [0, 0];
        for _ in 0..40 {
            on[w.alloc(&[must]).await[0][0].vdev as usize] += 1;
        }
        assert!(on[0] > 0 && on[1] > 0, "{on:?}");
        w.ms.retire(1, false).unwrap();
        assert_eq!(w.ms.class_stat(SpaceClass::Normal).space, both.space);
    });
}

#[test]
fn log_blocks_go_to_log_devices_then_to_the_embedded_log() {
    block_on(async {
        let specs = vec![spec(0, 70, SpaceClass::Normal), spec(1, 1, SpaceClass::Log)];
        let w = World::new(MODERN, specs).await;
        let r = log_req(1 << 20, At::Lowest);
        let got = w.alloc(&[r; 40]).await;
        assert_eq!(got.iter().filter(|d| d[0].vdev == 1).count(), 16);
        let rest: Vec<u64> = got.iter().filter(|d| d[0].vdev == 0).map(|d| d[0].offset >> 24).collect();
        assert_eq!(rest.iter().filter(|m| **m == rest[0]).count(), 16);
        assert!(w.alloc(&[req(1 << 20, 1)]).await[0][0].offset >> 24 != rest[0]);
        let c = |c| w.ms.class_stat(c).space;
        assert_eq!(
            (c(SpaceClass::Normal), c(SpaceClass::EmbeddedLog), c(SpaceClass::Log)),
            (69 << 24, 1 << 24, 1 << 24)
        );
    });
}

#[test]
fn small_blocks_of_files_leave_a_quarter_of_special_vdevs_to_metadata() {
    block_on(async {
        let specs = vec![spec(0, 8, SpaceClass::Normal), spec(1, 1, SpaceClass::Special)];
        let mut w = World::new(MODERN, specs).await;
        w.sync().await;
        let small = AllocReq::new(AllocClass::SmallBlock, 128 << 10, 1);
        let got = w.alloc(&[small; 128]).await;
        // Of 16 MiB 12, whether or not a txg has ended in between.
        let on_special = |got: &[Dvas]| got.iter().filter(|d| d[0].vdev == 1).count();
        let first = on_special(&got);
        w.sync().await;
        let later = on_special(&w.alloc(&[small; 8]).await);
        assert!((90..=96).contains(&first) && first + later <= 96, "{first} {later}");
        let metadata = AllocReq::new(AllocClass::Special, 128 << 10, 1);
        assert_eq!(on_special(&w.alloc(&[metadata; 16]).await), 16);
    });
}

#[test]
fn a_block_goes_to_the_first_vdev_of_its_class_that_was_named_and_has_room() {
    block_on(async {
        let specs =
            [(0, SpaceClass::Normal), (1, SpaceClass::Log), (2, SpaceClass::Log), (3, SpaceClass::Normal)];
        let w = World::new(MODERN, specs.map(|(id, class)| spec(id, 1, class)).to_vec()).await;
        let spots = [2, 3].map(|vdev| Some((vdev, At::After(0))));
        let req = AllocReq { spots, ..AllocReq::new(AllocClass::Log, 4 << 20, 1) };
        let on: Vec<u32> = w.alloc(&[req; 10]).await.iter().map(|d| d[0].vdev).collect();
        assert_eq!(on, [2, 2, 2, 2, 1, 1, 1, 1, 3, 3]);
    });
}

#[test]
fn a_log_stays_as_low_as_it_can_where_that_is_said() {
    // Also where it was said of another log device, which is full.
    for (lowest, named) in [(true, 1), (false, 1), (true, 2)] {
        block_on(async {
            let at = if lowest { At::Lowest } else { At::After(0) };
            let specs = [(0, 2, SpaceClass::Normal), (1, 8, SpaceClass::Log), (2, 1, SpaceClass::Log)];
            let mut w = World::new(MODERN, specs.map(|(id, n, class)| spec(id, n, class)).to_vec()).await;
            let req = |psize| AllocReq {
                spots: [Some((named, at)), None],
                ..AllocReq::new(AllocClass::Log, psize, 1)
            };
            if named == 2 {
                assert!(w.alloc(&[req(4 << 20); 4]).await.iter().all(|d| d[0].vdev == 2));
            }
            let mut highest = 0;
            // In each txg 6 MiB; those of four are held at most.
            for _ in 0..40 {
                let got = w.alloc(&[req(128 << 10); 48]).await;
                assert!(got.iter().all(|d| d[0].vdev == 1));
                highest = got.iter().map(|d| d[0].offset).max().unwrap().max(highest);
                w.sync().await;
                for d in &got {
                    w.ms.free_dva(w.h.txg, &d[0]).unwrap();
                }
            }
            let within = highest < 32 << 20;
            assert_eq!(within, lowest, "up to {highest:#x}");
        });
    }
}

#[test]
fn a_block_lies_so_far_behind_the_last_as_is_said() {
    const GAP: u64 = 96 << 10;
    block_on(async {
        let specs = vec![spec(0, 2, SpaceClass::Normal), spec(1, 2, SpaceClass::Log)];
        let w = World::new(MODERN, specs).await;
        let [at_once, later] = [0, GAP].map(|gap| log_req(4096, At::After(gap)));
        let got = w.alloc(&[at_once, later, at_once, later]).await;
        let apart: Vec<u64> = got.windows(2).map(|d| d[1][0].offset - d[0][0].offset - 4096).collect();
        assert_eq!(apart, [GAP, 0, GAP]);
        // Where there is no more room behind the last, what was left free is used.
        let rest = w.alloc(&[later; (2 << 24) / 4096]).await;
        assert!(rest.iter().filter(|d| d[0].vdev == 1).count() > 3000);
    });
}

#[test]
fn a_gap_is_of_whole_sectors_whatever_it_should_be() {
    block_on(async {
        let normal = VdevSpec {
            ashift: 14,
            grain: 1 << 14,
            psize_to_asize: Arc::new(|p, _| p.next_multiple_of(1 << 14)),
            ..spec(0, 4, SpaceClass::Normal)
        };
        let log = VdevSpec { id: 1, class: SpaceClass::Log, ..normal.clone() };
        let mut w = World::new(MODERN, vec![normal, log]).await;
        let later = log_req(1 << 14, At::After((64 << 10) + 4096));
        let got = w.alloc(&[later; 20]).await;
        assert_eq!(got.len(), 20);
        assert!(got.iter().all(|d| d[0].vdev == 1 && d[0].offset.is_multiple_of(1 << 14)), "{got:?}");
        w.sync().await;
        for d in &got {
            w.ms.free_dva(w.h.txg, &d[0]).unwrap();
        }
        w.sync().await;
    });
}

#[test]
fn a_log_that_comes_round_goes_where_it_can_go_on() {
    block_on(async {
        let specs = vec![spec(0, 2, SpaceClass::Normal), spec(1, 2, SpaceClass::Log)];
        let w = World::new(MODERN, specs).await;
        let later = log_req(64 << 10, At::After(64 << 10));
        // Each metaslab has room for 128 of them with the gaps between; the gaps come last.
        let got = w.alloc(&[later; 500]).await;
        let on_log: Vec<u64> = got.iter().filter(|d| d[0].vdev == 1).map(|d| d[0].offset).collect();
        let first = on_log[..240].iter().filter(|o| *o >> 24 == on_log[0] >> 24).count();
        assert!((110..=130).contains(&first), "{first} of 240");
        assert!(on_log.len() > 400);
    });
}

#[test]
fn a_log_device_half_of_which_is_in_use_gives_out_again_what_is_freed() {
    for (blocks, at_once) in [(60, false), (200, true)] {
        block_on(async {
            let specs = vec![spec(0, 16, SpaceClass::Normal), spec(1, 2, SpaceClass::Log)];
            let mut w = World::new(MODERN, specs).await;
            let log = log_req(128 << 10, At::Lowest);
            let got = w.alloc(&vec![log; blocks]).await;
            let data = w.alloc(&[req(128 << 10, 1)]).await;
            w.sync().await;
            for d in got.iter().chain(&data) {
                w.ms.free_dva(w.h.txg, &d[0]).unwrap();
            }
            w.sync().await;
            let deferred = |w: &World, vdev| w.ms.vdev_stat(vdev).unwrap().deferred;
            let expected = if at_once { 0 } else { (blocks as u64) << 17 };
            assert_eq!((deferred(&w, 1), deferred(&w, 0)), (expected, 128 << 10));
            if at_once {
                assert_eq!(
                    w.alloc(&vec![log; blocks]).await.iter().filter(|d| d[0].vdev == 1).count(),
                    blocks
                );
            }
        });
    }
}

#[test]
fn a_full_pool_says_so_and_frees_help() {
    block_on(async {
        let mut w = World::new(MODERN, vec![spec(0, 4, SpaceClass::Normal)]).await;
        let got = w.alloc(&[req(16 << 20, 1); 6]).await;
        assert_eq!(got.len(), 4);
        w.sync().await;
        w.ms.free_dva(w.h.txg, &got[2][0]).unwrap();
        assert!(w.alloc(&[req(4096, 1)]).await.is_empty());
        w.sync().await;
        // Nothing is deferred in a pool this full.
        assert_eq!(w.alloc(&[req(16 << 20, 1)]).await, [got[2].clone()]);
    });
}

#[test]
fn what_the_last_txgs_freed_is_there_for_a_txg_that_is_lost_without_it() {
    block_on(async {
        let mut w = World::new(MODERN, vec![spec(0, 32, SpaceClass::Normal)]).await;
        let got = w.alloc(&[req(1 << 20, 1); 31 * 16]).await;
        w.sync().await;
        // At once what is freed of a full pool, two txgs later what is freed of one with so much
        // free.
        for half in 0..2 {
            for dvas in got.iter().skip(half).step_by(2) {
                w.ms.free_dva(w.h.txg, &dvas[0]).unwrap();
            }
            w.sync().await;
        }
        let first = w.alloc(&[req(1 << 20, 1); 400]).await;
        assert_eq!(first.len(), 16 + 31 * 8, "the rest is deferred");
        assert!(w.ms.scrape_together().unwrap());
        assert!(!w.ms.scrape_together().unwrap(), "there is nothing more");
        assert_eq!(w.alloc(&[req(1 << 20, 1); 400]).await.len(), 31 * 8);
        w.sync().await;
        assert_eq!(w.ms.vdev_stat(0).unwrap().deferred, 0);
        w.reopen().await;
        assert_eq!(w.ms.vdev_stat(0).unwrap().alloc, 32 << 24);
    });
}

/// As a claim after a crash takes clones by their places alone, these are not another's so soon.
#[test]
fn what_a_log_s_record_clones_is_not_given_out_at_once() {
    block_on(async {
        let mut w = World::new(MODERN, vec![spec(0, 4, SpaceClass::Normal)]).await;
        let got = w.alloc(&[req(16 << 20, 1); 6]).await;
        w.sync().await;
        let whole = [req(16 << 20, 1)];
        w.ms.free_dva(w.h.txg, &got[2][0]).unwrap();
        w.ms.note_clones_logged(w.h.txg);
        w.sync().await;
        for _ in 0..2 {
            assert!(w.alloc(&whole).await.is_empty(), "the pool is full, and it waits all the same");
            w.sync().await;
        }
        assert_eq!(w.alloc(&whole).await, [got[2].clone()]);
        // For a txg that is lost otherwise it comes last.
        w.ms.note_clones_logged(w.h.txg.next());
        w.ms.free_dva(w.h.txg, &got[0][0]).unwrap();
        w.sync().await;
        w.ms.free_dva(w.h.txg, &got[1][0]).unwrap();
        w.sync().await;
        assert!(w.alloc(&whole).await.is_empty());
        assert!(w.ms.scrape_together().unwrap());
        assert_eq!(w.alloc(&whole).await, [got[0].clone()]);
        assert!(w.alloc(&whole).await.is_empty());
        assert!(w.ms.scrape_together().unwrap());
        assert_eq!(w.alloc(&whole).await, [got[1].clone()]);
        assert!(!w.ms.scrape_together().unwrap());
        // What is freed after that is there at once again.
        w.sync().await;
        w.ms.free_dva(w.h.txg, &got[3][0]).unwrap();
        w.sync().await;
        assert_eq!(w.alloc(&whole).await, [got[3].clone()]);
    });
}

#[test]
fn what_cannot_be_given_out_is_counted_as_users_see_it() {
    block_on(async {
        let twice = VdevSpec {
            psize_to_asize: Arc::new(|p, _| 2 * p.next_multiple_of(4096)),
            ..spec(0, 16, SpaceClass::Normal)
        };
        let mut w = World::new(MODERN, vec![twice]).await;
        let got = w.alloc(&[req(1 << 20, 1); 2]).await;
        let born = w.sync().await;
        w.ms.free_dva(w.h.txg, &got[0][0]).unwrap();
        w.sync().await;
        let stat = w.ms.class_stat(SpaceClass::Normal);
        assert_eq!((stat.deferred, stat.ddeferred), (2 << 20, 1 << 20));
        w.ms.set_checkpoint(Txg(w.h.txg.0 - 1));
        w.ms.free(w.h.txg, &got[1][0], born);
        w.sync().await;
        assert_eq!((w.ms.checkpoint_space(), w.ms.checkpoint_dspace()), (2 << 20, 1 << 20));
    });
}

#[test]
fn room_is_promised_once() {
    block_on(async {
        let mut w = World::new(MODERN, vec![spec(0, 64, SpaceClass::Normal)]).await;
        let txgs = crate::txg::TxgState::new(zilla_env::real_env(1), Txg(w.h.txg.0 - 1));
        w.ms.set_txgs(&txgs);
        w.sync().await;
        // A pool of 1 GiB: 128 MiB are slop.
        let (all, slop) = (1u64 << 30, w.ms.slop());
        assert_eq!(slop, 128 << 20);
        let tx = txgs.assign().await.unwrap();
        tx.promise(all - slop / 2 - (1 << 20));
        assert!(w.ms.has_room(0, Leave::Half));
        assert!(!w.ms.has_room(2 << 20, Leave::Half));
        assert!(w.ms.has_room(2 << 20, Leave::Quarter));
        tx.needs(16 << 20, 1);
        assert!(!w.ms.has_room(0, Leave::Half), "a record takes twice its size at worst");
        assert!(!w.ms.has_room(slop / 4, Leave::Eighth));
        drop(tx);
        assert!(
            w.ms.has_room(all - slop / 2 - (33 << 20), Leave::Half),
            "what was promised is not held any more"
        );
        assert!(!w.ms.has_room(all - slop / 2 - (31 << 20), Leave::Half), "what is dirty is");
        assert!(!w.ms.uncounted());
        assert_eq!(w.alloc(&[log_req(128 << 10, At::Lowest)]).await.len(), 1);
        assert!(w.ms.uncounted(), "the log has taken some");
        w.sync().await;
        assert!(!w.ms.uncounted());
    });
}

#[test]
fn what_is_freed_keeps_room_from_writers_and_not_from_administration() {
    block_on(async {
        let mut w = World::new(MODERN, vec![spec(0, 64, SpaceClass::Normal)]).await;
        let txgs = crate::txg::TxgState::new(zilla_env::real_env(1), Txg(w.h.txg.0 - 1));
        w.ms.set_txgs(&txgs);
        w.sync().await;
        let tx = txgs.assign().await.unwrap();
        // More to be written down at worst than the pool's 1 GiB.
        tx.frees(1 << 21);
        for leave in [Leave::Half, Leave::Quarter, Leave::Eighth, Leave::Sixteenth] {
            assert!(!w.ms.has_room(0, leave), "{leave:?}");
        }
        for leave in [Leave::Task, Leave::FreeingTask] {
            assert!(w.ms.has_room(512 << 10, leave), "{leave:?}");
        }
        // What is dirty stands in everybody's way.
        tx.needs(600 << 20, 1);
        for leave in [Leave::Task, Leave::FreeingTask] {
            assert!(!w.ms.has_room(0, leave), "{leave:?}");
        }
    });
}

#[test]
fn logs_are_bounded_and_an_export_leaves_one_empty_of_news() {
    block_on(async {
        let mut w = World::new(MODERN, vec![spec(0, 16, SpaceClass::Normal)]).await;
        let mut old: Vec<Dvas> = Vec::new();
        for _ in 0..30 {
            let new = w.alloc(&[req(8192, 1); 50]).await;
            for d in old.drain(..) {
                w.ms.free_dva(w.h.txg, &d[0]).unwrap();
            }
            old = new;
            w.sync().await;
        }
        assert_eq!(w.log_users, 1);
        w.ms.request_flush_all();
        w.alloc(&[req(8192, 1)]).await;
        w.sync().await;
        let zap = Zap::open(w.mos(), 1).await.unwrap().get_u64("com.delphix:log_spacemap_zap").await.unwrap();
        assert_eq!(Zap::open(w.mos(), zap).await.unwrap().len().await.unwrap(), 1);
        let maps = w.specs[0].ms_array;
        let array = w.mos().hold_wait(maps).await.unwrap();
        let mut buf = [0; 16 * 8];
        array.read_wait(0, &mut buf).await.unwrap();
        let made = buf.chunks(8).filter(|c| c.iter().any(|b| *b != 0)).count() as i64;
        assert_eq!(w.histogram_users, made + 1);
    });
}

#[test]
fn long_histories_are_condensed() {
    block_on(async {
        let mut w =
            World::new(SpaceFeatures { log_spacemap: false, ..MODERN }, vec![spec(0, 1, SpaceClass::Normal)])
                .await;
        let keep = w.alloc(&[req(4096, 1); 8]).await;
        let (mut longest, mut condensed) = (0, false);
        let mut old: Vec<Dvas> = Vec::new();
        for _ in 0..40 {
            let new = w.alloc(&[req(4096, 1); 2000]).await;
            // Every other one, so that neither entries nor what is free merge into few.
            for d in old.iter().step_by(2).chain(old.iter().skip(1).step_by(2)) {
                w.ms.free_dva(w.h.txg, &d[0]).unwrap();
            }
            old = new;
            let (keep, free): (Vec<_>, Vec<_>) =
                std::mem::take(&mut old).into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
            w.sync().await;
            for (_, d) in free {
                w.ms.free_dva(w.h.txg, &d[0]).unwrap();
            }
            old = keep.into_iter().map(|(_, d)| d).collect();
            w.sync().await;
            let (_, slab) = w.ms.metaslab(0, 0).unwrap();
            let length = slab.state().sm.as_ref().unwrap().length();
            condensed |= length < longest;
            longest = longest.max(length);
        }
        assert!(condensed, "{longest}");
        let want = tree_of(keep.iter().chain(&old).flatten(), 0);
        assert_eq!(ranges(&w.ms.allocated_ranges(0).await.unwrap()), ranges(&want));
    });
}

#[test]
fn space_maps_come_back() {
    block_on(async {
        for (features, vdev) in [(OLD, None), (MODERN, None), (MODERN, Some(5))] {
            let mut h = Harness::new(0);
            let tx = h.tx();
            let dn =
                space_map::create_object(&h.objset, &tx, 512, features.spacemap_histogram).await.unwrap();
            let mut sm = SpaceMap::open(dn.clone(), 1 << 30, 1 << 40, 9).unwrap();
            let (mut allocs, mut frees) = (RangeTree::new(), RangeTree::new());
            for i in 0..200u64 {
                allocs.add((1 << 30) + i * (64 << 20), (i + 1) << 12).unwrap();
                frees.add((1 << 30) + i * (64 << 20), 512 * (1 + i % 4)).unwrap();
            }
            allocs.add((1 << 30) + (1 << 38), 1 << 37).unwrap();
            let how = space_map::Append { tx: &tx, pass: 1, v2: features.spacemap_v2 };
            sm.append(how, &allocs, MapType::Alloc, vdev).unwrap();
            sm.append(how, &frees, MapType::Free, vdev).unwrap();
            sm.add_to_histogram(&tx, &frees);
            assert_eq!(sm.allocated() as u64, allocs.space() - frees.space());
            let txg = h.next_txg();
            h.sync(txg).await;
            h.reopen().await;
            let dn = h.objset.hold_wait(dn.id()).await.unwrap();
            let sm = SpaceMap::open(dn, 1 << 30, 1 << 40, 9).unwrap();
            assert_eq!(
                sm.histogram().map(|h| (h[0], h[1], h[2])),
                features.spacemap_histogram.then_some((50, 100, 50))
            );
            let mut want = RangeTree::new();
            want.add(1 << 30, 1 << 40).unwrap();
            want.remove_all(&allocs).unwrap();
            want.add_all(&frees).unwrap();
            assert_eq!(ranges(&sm.reader().load_free(sm.length()).await.unwrap()), ranges(&want));
        }
    });
}

#[test]
fn a_map_that_lies_is_not_allocated_from() {
    block_on(async {
        let mut w = World::new(MODERN, vec![spec(0, 2, SpaceClass::Normal)]).await;
        w.alloc(&[req(4096, 1)]).await;
        w.sync().await;
        w.ms.request_flush_all();
        w.alloc(&[req(4096, 1)]).await;
        w.sync().await;
        // Says again what the map says already.
        let tx = Tx::syncing(w.h.txg);
        let (_, slab) = w.ms.metaslab(0, 0).unwrap();
        let mut twice = RangeTree::new();
        twice.add(0, 4096).unwrap();
        let how = space_map::Append { tx: &tx, pass: 1, v2: true };
        slab.state().sm.as_mut().unwrap().append(how, &twice, MapType::Alloc, None).unwrap();
        let txg = w.h.next_txg();
        w.h.sync(txg).await;
        w.reopen().await;
        let got = w.alloc(&[req(1 << 20, 1); 40]).await;
        assert_eq!(got.len(), 16);
        assert!(got.iter().all(|d| d[0].offset >= 1 << 24));
    });
}

#[test]
fn a_vdev_is_not_cut_into_millions() {
    let ms = Metaslabs::new(MODERN);
    let whole = spec(0, 4, SpaceClass::Normal);
    for (ms_shift, asize) in [(12, whole.asize), (15, 1 << 40), (24, 1 << 60), (63, u64::MAX), (200, 1 << 30)]
    {
        let bad = VdevSpec { ms_shift, asize, ..whole.clone() };
        assert!(matches!(ms.add_vdev(bad), Err(crate::error::Error::Corrupt(_))), "{ms_shift} of {asize}");
    }
    ms.add_vdev(whole).unwrap();
}

#[test]
fn a_map_that_is_only_said_to_be_long_ends() {
    block_on(async {
        let mut h = Harness::new(0);
        let tx = h.tx();
        let dn = space_map::create_object(&h.objset, &tx, 4096, true).await.unwrap();
        // The last of many blocks is there; what is before it is a hole.
        dn.write(&tx, 1 << 40, &[1; 8]);
        dn.set_bonus(
            &tx,
            &zilla_ondisk::spacemap::SpaceMapPhys { length: 1 << 40, ..Default::default() }.to_bonus(320),
        );
        let txg = h.next_txg();
        h.sync(txg).await;
        h.reopen().await;
        let dn = h.objset.hold_wait(dn.id()).await.unwrap();
        let sm = SpaceMap::open(dn, 0, u64::MAX, 0).unwrap();
        let (reader, mut seen) = (sm.reader(), 0u64);
        let read = reader
            .for_each(sm.length(), |_, _, _, _| {
                seen += 1;
                Ok(())
            })
            .await;
        assert!(matches!(read, Err(crate::error::Error::Corrupt(_))) && seen == 0);
    });
}
