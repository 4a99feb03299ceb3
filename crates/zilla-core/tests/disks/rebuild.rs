//! Devices get what they lack by a sequential rebuild: mirrors, dRAIDs, their distributed spares.
//! It goes on after an import, begins anew for one more device, ends when nobody is left, and never
//! says of a device that it has what it was not given.

use super::draid::{ONE_SPARE, SIX, create, errors, lose, spare};
use super::*;
use std::os::unix::fs::FileExt;
use zilla_core::spa::{RebuildState, Refusal};

const REBUILD: Attach = Attach { replace: false, ashift: None, spare: None, sequential: true };
const REPLACE_BY_REBUILD: Attach = Attach { replace: true, ..REBUILD };

fn state(spa: &Spa) -> Option<RebuildState> {
    spa.rebuild_status(&spa.tree().tops[0]).and_then(|s| s.state())
}

fn phys(spa: &Spa) -> zilla_ondisk::vdev_zap::VdevRebuildPhys {
    spa.rebuild_status(&spa.tree().tops[0]).unwrap().phys
}

/// Waits until the rebuild, and the scrub that follows it, are over.
async fn over(w: &World, spa: &Arc<Spa>) {
    while spa.is_rebuilding() {
        w.env.sleep(Duration::from_millis(10)).await;
    }
    while spa.scan().unwrap().is_scanning() {
        w.env.sleep(Duration::from_millis(10)).await;
    }
}

fn is_clean_scrub(spa: &Spa) -> bool {
    let s = spa.scan().unwrap().status();
    let finished = s.func == ScanFunc::Scrub as u64 && s.state == ScanState::Finished as u64;
    finished && s.errors == 0 && s.processed == 0
}

#[test]
fn a_disk_becomes_a_mirror_by_a_rebuild() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..40).await;
        let a = guid(&spa, &w.path("a"));
        spa.attach(a, &w.leaf("b"), REBUILD).await.unwrap();
        assert!(spa.ctx.features.is_active("device_rebuild"));
        // Files are written while it goes on.
        w.put(&spa, 40..60).await;
        over(&w, &spa).await;
        w.whole(&spa).await;
        assert_eq!(state(&spa), Some(RebuildState::Complete));
        let done = phys(&spa);
        assert!(done.bytes_rebuilt > 0 && done.errors == 0 && done.end_time >= done.start_time);
        assert!(is_clean_scrub(&spa), "{:?}", spa.scan().unwrap().status());
        assert!(!spa.ctx.features.is_active("device_rebuild"));
        let spa = w.turn(spa).await;
        assert_eq!(phys(&spa), done, "what was done is still known");
        w.export(spa).await;
        w.without_each(&["a", "b"], 60).await;
    });
}

#[test]
fn it_goes_on_after_an_import() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::Mirror, &["a", "b"]).await;
        w.put(&spa, 0..40).await;
        spa.hold_rebuilds(true);
        spa.attach(guid(&spa, &w.path("a")), &w.leaf("c"), REBUILD).await.unwrap();
        w.put(&spa, 40..50).await;
        let scrub = spa.scan().unwrap().start().await.unwrap_err();
        assert!(scrub.is(Errno::Busy), "{scrub}");
        let healing = spa.attach(guid(&spa, &w.path("a")), &w.leaf("d"), ATTACH).await.unwrap_err();
        assert_eq!(healing.to_string(), "currently sequentially resilvering");
        assert_eq!(state(&spa), Some(RebuildState::Active));
        w.export(spa).await;
        let spa = w.import().await.unwrap();
        w.put(&spa, 50..60).await;
        over(&w, &spa).await;
        w.whole(&spa).await;
        assert_eq!(state(&spa), Some(RebuildState::Complete));
        w.export(spa).await;
        // Two at a time.
        w.take("a");
        w.without_each(&["b"], 60).await;
        w.give_back("a");
        w.take("b");
        w.without_each(&["a"], 60).await;
    });
}

#[test]
fn one_more_disk_makes_it_begin_anew_and_the_last_that_leaves_ends_it() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..30).await;
        spa.hold_rebuilds(true);
        let a = guid(&spa, &w.path("a"));
        spa.attach(a, &w.leaf("b"), REBUILD).await.unwrap();
        spa.attach(a, &w.leaf("c"), REBUILD).await.unwrap();
        spa.hold_rebuilds(false);
        over(&w, &spa).await;
        w.whole(&spa).await;
        spa.hold_rebuilds(true);
        spa.attach(a, &w.leaf("d"), REBUILD).await.unwrap();
        spa.detach(guid(&spa, &w.path("d"))).await.unwrap();
        spa.hold_rebuilds(false);
        over(&w, &spa).await;
        assert_eq!(state(&spa), Some(RebuildState::Canceled));
        assert!(!spa.ctx.features.is_active("device_rebuild"));
        assert_eq!(shape(&spa), "mirror(a b c)");
        w.export(spa).await;
        w.without_each(&["a", "b", "c"], 30).await;
    });
}

#[test]
fn what_cannot_be_read_is_not_said_to_be_there() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..30).await;
        spa.hold_rebuilds(true);
        let a = guid(&spa, &w.path("a"));
        spa.attach(a, &w.leaf("b"), REBUILD).await.unwrap();
        // The source misses a txg, so that nobody can say any more what of it is right.
        let synced = spa.ctx.txgs.synced().0;
        spa.tree().pool_leaves().next().unwrap().dtl.add(synced - 1, synced);
        spa.hold_rebuilds(false);
        while spa.is_rebuilding() {
            w.env.sleep(Duration::from_millis(10)).await;
        }
        let done = phys(&spa);
        assert!(done.errors > 0 && done.bytes_rebuilt == 0, "{done:?}");
        // A resilver, which knows the blocks, does what is left.
        w.whole(&spa).await;
        assert!(is_resilver(&spa, ScanState::Finished));
        w.export(spa).await;
        w.without_each(&["a", "b"], 30).await;
    });
}

#[test]
fn a_side_that_has_rotted_is_found_by_the_scrub() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::Mirror, &["a", "b"]).await;
        w.put(&spa, 0..40).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let rot = std::fs::OpenOptions::new().write(true).open(w.path("a")).unwrap();
        rot.write_all_at(&vec![0x5a; 24 << 20], 8 << 20).unwrap();
        let spa = w.import().await.unwrap();
        let how = REPLACE_BY_REBUILD;
        spa.attach(guid(&spa, &w.path("b")), &w.leaf("c"), how).await.unwrap();
        over(&w, &spa).await;
        w.whole(&spa).await;
        assert_eq!(spa.scan().unwrap().status().errors, 0);
        w.check(&spa, 0..40).await;
        w.export(spa).await;
        w.without_each(&["a", "c"], 40).await;
    });
}

#[test]
fn a_draid_s_disk_is_replaced_by_a_rebuild() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = create(&w, ONE_SPARE, &SIX).await;
        lose(&w, &spa, "b").await;
        w.put(&spa, 20..40).await;
        let new = w.sized("n", 160 << 20);
        spa.attach(guid(&spa, &w.path("b")), &new, REPLACE_BY_REBUILD).await.unwrap();
        w.put(&spa, 40..50).await;
        over(&w, &spa).await;
        w.whole(&spa).await;
        assert_eq!(shape(&spa), "draid(a n c d e f)");
        assert!(is_clean_scrub(&spa), "{:?}", spa.scan().unwrap().status());
        assert_eq!((state(&spa), errors(&spa)), (Some(RebuildState::Complete), 0));
        w.export(spa).await;
        w.take("b");
        w.without_each(&["a", "n", "c", "d", "e", "f"], 50).await;
    });
}

#[test]
fn a_distributed_spare_is_rebuilt_and_the_disk_back_from_it() {
    let w = World::new();
    w.env.clone().block_on(async {
        let mut spa = create(&w, ONE_SPARE, &SIX).await;
        lose(&w, &spa, "c").await;
        w.put(&spa, 20..40).await;
        let (spec, how) = spare(&spa, "draid1-0-0");
        let how = Attach { sequential: true, ..how };
        spa.attach(guid(&spa, &w.path("c")), &spec, how).await.unwrap();
        over(&w, &spa).await;
        assert_eq!((state(&spa), errors(&spa)), (Some(RebuildState::Complete), 0));
        assert!(is_clean_scrub(&spa), "{:?}", spa.scan().unwrap().status());
        spa = w.turn(spa).await;
        w.export(spa).await;
        w.take("c");
        w.without_each(&["a", "b", "d", "e", "f"], 40).await;
        spa = w.import().await.unwrap();
        // Another takes its place, from the spare.
        let old = spa.tree().root.walk().into_iter().find(|v| v.kind == VdevKind::Spare).unwrap();
        let lost = old.children[0].guid;
        spa.attach(lost, &w.sized("n", 160 << 20), REPLACE_BY_REBUILD).await.unwrap();
        over(&w, &spa).await;
        w.whole(&spa).await;
        for _ in 0..6_000 {
            if shape(&spa) == "draid(a b n d e f)" {
                break;
            }
            w.env.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(shape(&spa), "draid(a b n d e f)");
        w.export(spa).await;
        w.without_each(&["a", "b", "n", "d", "e", "f"], 40).await;
    });
}

#[test]
fn no_vdev_is_removed_while_another_is_rebuilt() {
    let w = World::new();
    w.env.clone().block_on(async {
        let large = 400 << 20;
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..10).await;
        let leaves = vec![w.sized("b", large)];
        let top = TopSpec { kind: VdevKind::File, leaves, is_log: false, bias: None, ashift: Some(9) };
        spa.add_vdevs(&PoolSpec { tops: vec![top], ..PoolSpec::default() }).await.unwrap();
        w.put(&spa, 10..20).await;
        spa.hold_rebuilds(true);
        spa.attach(guid(&spa, &w.path("b")), &w.sized("c", large), REBUILD).await.unwrap();
        let a = spa.tree().tops[0].vdev.guid;
        let refused = spa.remove_vdev(a).await.unwrap_err();
        assert!(matches!(&refused, Error::Pool(why) if **why == Refusal::RemovalBusy), "{refused}");
        spa.hold_rebuilds(false);
        over(&w, &spa).await;
        w.whole(&spa).await;
        spa.remove_vdev(a).await.unwrap();
        while spa.is_removing() {
            w.env.sleep(Duration::from_millis(10)).await;
        }
        w.check(&spa, 0..20).await;
        w.export(spa).await;
    });
}

#[test]
fn what_cannot_be_rebuilt_is_refused() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(RAIDZ1, &["a", "b", "c"]).await;
        w.put(&spa, 0..5).await;
        let refused =
            spa.attach(guid(&spa, &w.path("b")), &w.leaf("d"), REPLACE_BY_REBUILD).await.unwrap_err();
        assert_eq!(refused.to_string(), "only mirror and dRAID vdevs support sequential reconstruction");
        let top = spa.tree().tops[0].vdev.guid;
        let refused = spa.attach(top, &w.leaf("d"), REBUILD).await.unwrap_err();
        assert!(refused.is(Errno::NotSup), "{refused}");
        assert!(!spa.is_rebuilding());
        w.export(spa).await;
    });
}

/// What is not whole may yet have what nobody else has.
#[test]
fn nobody_leaves_who_alone_has_something() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..20).await;
        spa.hold_rebuilds(true);
        let a = guid(&spa, &w.path("a"));
        spa.attach(a, &w.leaf("n"), REPLACE_BY_REBUILD).await.unwrap();
        let n = guid(&spa, &w.path("n"));
        let is_needed = |e: Error| matches!(&e, Error::Pool(why) if **why == Refusal::NoReplicas);
        // The old disk misses a txg: it has all the others still, and the new one has none.
        let early = spa.ctx.txgs.synced().0;
        let old = spa.tree().find(a).unwrap().leaf.clone().unwrap();
        old.dtl.add(early - 1, early);
        let refused = spa.detach(a).await.unwrap_err();
        assert!(is_needed(refused), "the old disk is needed");
        // And one that the new one has, which was there then.
        for i in 20..40 {
            w.put(&spa, i..i + 1).await;
        }
        let late = spa.ctx.txgs.synced().0;
        assert!(spa.tree().find(n).unwrap().leaf.as_ref().unwrap().holds(late - 1));
        old.dtl.add(late - 1, late);
        let refused = spa.detach(n).await.unwrap_err();
        assert!(is_needed(refused), "the new disk is needed");
        old.dtl.set([]);
        // Without that it may go.
        spa.detach(n).await.unwrap();
        spa.hold_rebuilds(false);
        over(&w, &spa).await;
        assert_eq!(shape(&spa), "a");
        w.check(&spa, 0..40).await;
        w.export(spa).await;
    });
}
