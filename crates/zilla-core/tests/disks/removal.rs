//! A vdev is removed: all that was on it reads, from elsewhere; frees reach it; and OpenZFS agrees,
//! also half way.

use super::*;
use zilla_core::inject::{Copies, DataPlace, Failure, Fault, Frequency, injections};
use zilla_core::metaslab::SpaceClass;
use zilla_core::spa::Refusal;
use zilla_core::tunables;
use zilla_ondisk::enums::VdevState;

/// Room for what is removed, beside what a pool keeps for itself.
const LARGE: u64 = 400 << 20;

impl World {
    /// Adds a top-level to the pool.
    async fn add(&self, spa: &Arc<Spa>, kind: VdevKind, names: &[&str]) {
        let leaves = names.iter().map(|n| self.sized(n, LARGE)).collect();
        let top = TopSpec { kind, leaves, is_log: false, bias: None, ashift: Some(9) };
        spa.add_vdevs(&PoolSpec { tops: vec![top], ..PoolSpec::default() }).await.unwrap();
    }

    async fn remove(&self, spa: &Arc<Spa>, top: usize) {
        spa.remove_vdev(spa.tree().tops[top].vdev.guid).await.unwrap();
    }

    async fn removed(&self, spa: &Arc<Spa>) {
        for _ in 0..3000 {
            if !spa.is_removing() {
                return;
            }
            self.env.sleep(Duration::from_millis(10)).await;
        }
        panic!("it does not end: {:?}", spa.removing());
    }

    /// Lets some of it be moved, and holds it there.
    async fn part_of_it(&self, spa: &Arc<Spa>) {
        while spa.removing().copied < 300 << 10 {
            spa.sync().await.unwrap();
        }
        spa.set_removal_pace(0);
    }

    /// The objects of a vdev's space maps, when another file is written.
    async fn maps(&self, spa: &Arc<Spa>, vdev: u32, file: u32) -> Vec<u64> {
        spa.metaslabs.request_flush_all();
        self.put(spa, file..file + 1).await;
        let all = spa.metaslabs.report(vdev).unwrap().metaslabs.into_iter().map(|m| m.object);
        let maps: Vec<u64> = all.filter(|object| *object != 0).collect();
        assert!(!maps.is_empty());
        maps
    }

    async fn delete(&self, spa: &Arc<Spa>, all: impl IntoIterator<Item = u32>) {
        let zfs = self.zfs(spa).await;
        for i in all {
            zfs.unlink(zfs.root(), format!("f{i}").as_bytes()).await.unwrap();
        }
        spa.sync().await.unwrap();
    }
}

/// From now on, until the pool is exported, these objects cannot be read.
fn lose(pool: u64, objects: &[u64]) {
    for &object in objects {
        let at = DataPlace::Blocks { objset: 0, object, level: 0, first: 0, last: u64::MAX };
        let fault = Fault::Data { at, failure: Failure::Checksum, copies: Copies::default() };
        injections().add("tank", pool, fault, Frequency::Always).unwrap();
    }
}

fn state(spa: &Arc<Spa>) -> u64 {
    spa.removing().state
}

#[test]
fn a_disk_of_a_small_pool_gives_out_nothing_more_if_the_others_have_room() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::File, &["a"]).await;
        let more = TopSpec {
            kind: VdevKind::File,
            leaves: vec![w.leaf("b")],
            is_log: false,
            bias: None,
            ashift: Some(9),
        };
        spa.add_vdevs(&PoolSpec { tops: vec![more], ..PoolSpec::default() }).await.unwrap();
        let a = guid(&spa, &w.path("a"));
        w.put(&spa, 0..10).await;
        spa.set_allocating(a, false).await.unwrap();
        let on_a = spa.metaslabs.vdev_stat(0).unwrap().alloc;
        w.put(&spa, 10..60).await;
        assert!(spa.metaslabs.vdev_stat(0).unwrap().alloc <= on_a);
        assert!(spa.set_allocating(guid(&spa, &w.path("b")), false).await.is_err(), "the last one");
        w.check(&spa, 0..60).await;
        // What lies on it could not be copied by a pool that has no room.
        spa.set_allocating(a, true).await.unwrap();
        let mut n = 60;
        while spa.dsl.available(&spa.dsl.root_dir(), false) > 12 << 20 {
            w.put(&spa, n..n + 10).await;
            n += 10;
        }
        let full = spa.set_allocating(a, false).await.unwrap_err();
        assert!(full.is(Errno::NoSpc), "{full}");
        w.check(&spa, 0..n).await;
        w.export(spa).await;
    });
}

#[test]
fn a_disk_leaves_and_everything_reads_without_it() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..30).await;
        w.add(&spa, VdevKind::File, &["b"]).await;
        w.put(&spa, 30..60).await;
        w.remove(&spa, 0).await;
        w.removed(&spa).await;
        assert_eq!(state(&spa), ScanState::Finished as u64);
        assert_eq!(spa.removing().copied, spa.removing().to_copy);
        assert_eq!(spa.tree().tops[0].vdev.kind, VdevKind::Indirect);
        w.check(&spa, 0..60).await;
        spa.drop_caches();
        w.check(&spa, 0..60).await;
        // What comes and goes afterwards.
        w.delete(&spa, 0..10).await;
        w.put(&spa, 60..70).await;
        std::fs::remove_file(w.path("a")).unwrap();
        let spa = w.turn(spa).await;
        w.check(&spa, 10..70).await;
        w.delete(&spa, 10..40).await;
        let spa = w.turn(spa).await;
        w.check(&spa, 40..70).await;
        // And the next, whose mapping leads on.
        w.add(&spa, VdevKind::File, &["c"]).await;
        w.remove(&spa, 1).await;
        w.removed(&spa).await;
        let spa = w.turn(spa).await;
        assert_eq!(spa.tree().tops[1].vdev.kind, VdevKind::Indirect);
        w.check(&spa, 40..70).await;
        w.delete(&spa, 40..70).await;
        w.export(spa).await;
    });
}

#[test]
fn a_removal_is_canceled_and_the_vdev_takes_blocks_again() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::Mirror, &["a1", "a2"]).await;
        w.put(&spa, 0..60).await;
        w.add(&spa, VdevKind::Mirror, &["b1", "b2"]).await;
        let before = spa.metaslabs.class_stat(SpaceClass::Normal).space;
        spa.set_removal_pace(100 << 10);
        w.remove(&spa, 0).await;
        w.part_of_it(&spa).await;
        w.delete(&spa, 40..50).await;
        spa.cancel_removal().await.unwrap();
        assert_eq!(state(&spa), ScanState::Canceled as u64);
        assert_eq!(spa.tree().tops[0].vdev.kind, VdevKind::Mirror);
        assert_eq!(spa.metaslabs.class_stat(SpaceClass::Normal).space, before);
        let spa = w.turn(spa).await;
        w.check(&spa, 0..40).await;
        w.check(&spa, 50..60).await;
        w.put(&spa, 60..80).await;
        w.delete(&spa, 0..20).await;
        w.export(spa).await;
    });
}

#[test]
fn a_removal_goes_on_after_an_export_with_frees_in_between() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::Mirror, &["a1", "a2"]).await;
        w.put(&spa, 0..60).await;
        w.add(&spa, VdevKind::Mirror, &["b1", "b2"]).await;
        spa.set_removal_pace(100 << 10);
        w.remove(&spa, 0).await;
        w.part_of_it(&spa).await;
        // Of what was copied, and of what was not.
        w.delete(&spa, 0..10).await;
        assert!(spa.is_removing());
        let mut spa = w.turn(spa).await;
        w.delete(&spa, 10..20).await;
        w.removed(&spa).await;
        assert_eq!(state(&spa), ScanState::Finished as u64);
        assert_eq!(spa.removing().copied, spa.removing().to_copy);
        for name in ["a1", "a2"] {
            std::fs::remove_file(w.path(name)).unwrap();
        }
        spa = w.turn(spa).await;
        w.check(&spa, 20..60).await;
        assert_eq!(spa.tree().root.state().0, VdevState::Healthy);
        w.export(spa).await;
        w.without_each(&["b1", "b2"], 0).await;
    });
}

#[test]
fn a_side_may_leave_a_mirror_that_is_being_emptied() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::Mirror, &["a1", "a2"]).await;
        w.put(&spa, 0..60).await;
        w.add(&spa, VdevKind::Mirror, &["b1", "b2"]).await;
        spa.set_removal_pace(100 << 10);
        w.remove(&spa, 0).await;
        w.part_of_it(&spa).await;
        let side = spa.tree().tops[0].vdev.children[1].guid;
        spa.detach(side).await.unwrap();
        let spec = |kind, ashift| {
            let leaves = ["c1", "c2", "c3"].map(|n| w.sized(n, LARGE)).to_vec();
            let leaves = if kind == VdevKind::File { leaves[..1].to_vec() } else { leaves };
            let top = TopSpec { kind, leaves, is_log: false, bias: None, ashift: Some(ashift) };
            PoolSpec { tops: vec![top], ..PoolSpec::default() }
        };
        let why = spa.add_vdevs(&spec(VdevKind::File, 12)).await.unwrap_err();
        assert!(matches!(&why, Error::Pool(why) if **why == Refusal::CannotEvacuate), "{why}");
        let why = spa.add_vdevs(&spec(RAIDZ1, 9)).await.unwrap_err();
        assert!(matches!(&why, Error::Pool(why) if **why == Refusal::RaidzBesideRemoved), "{why}");
        // The mapping is found again, and goes where the vdev went.
        let spa = w.turn(spa).await;
        w.check(&spa, 0..60).await;
        w.removed(&spa).await;
        assert_eq!(spa.tree().tops[0].vdev.kind, VdevKind::Indirect);
        let spa = w.turn(spa).await;
        w.check(&spa, 0..60).await;
        w.delete(&spa, 0..60).await;
        w.export(spa).await;
    });
}

/// Copies are made while one side of the mirror that they go to is away, and a resilver that cannot
/// give it to that side ends before the removal does.
#[test]
fn a_side_that_was_away_gets_what_was_moved_meanwhile() {
    for canceled in [false, true] {
        let w = World::new();
        w.env.clone().block_on(async move {
            let spa = w.create(VdevKind::Mirror, &["a1", "a2"]).await;
            w.put(&spa, 0..60).await;
            w.add(&spa, VdevKind::Mirror, &["b1", "b2"]).await;
            spa.set_removal_pace(100 << 10);
            let b2 = guid(&spa, &w.path("b2"));
            spa.offline(b2, true, false).await.unwrap();
            w.remove(&spa, 0).await;
            w.part_of_it(&spa).await;
            spa.online(b2, false).await.unwrap();
            while !is_resilver(&spa, ScanState::Finished) {
                w.env.sleep(Duration::from_millis(10)).await;
            }
            assert!(spa.is_removing());
            if canceled {
                spa.cancel_removal().await.unwrap();
            } else {
                spa.set_removal_pace(32 << 20);
                w.removed(&spa).await;
            }
            w.whole(&spa).await;
            w.check(&spa, 0..60).await;
            w.export(spa).await;
            w.without_each(&["b1", "b2"], 60).await;
        });
    }
}

/// Runs of the first vdev's mapping.
fn runs(spa: &Arc<Spa>) -> usize {
    spa.tree().tops[0].vdev.indirect().map_or(0, |m| m.runs().len())
}

#[test]
fn a_mapping_is_shortened_when_what_it_maps_has_gone() {
    let w = World::new();
    tunables::CONDENSE_MIN_MAPPING_BYTES.set(1);
    tunables::CONDENSE_INDIRECT_OBSOLETE_PCT.set(5);
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..120).await;
        // Of what stays each file is a run of its own.
        w.delete(&spa, (0..120).filter(|i| i % 2 == 1)).await;
        w.add(&spa, VdevKind::File, &["b"]).await;
        w.remove(&spa, 0).await;
        w.removed(&spa).await;
        let mut spa = w.turn(spa).await;
        let mut before = runs(&spa);
        assert!(before > 60, "{before}");
        // To its end, and held in the middle by an export.
        for (held, left) in [(false, 1), (true, 2)] {
            spa.hold_condensing(held);
            w.delete(&spa, (0..120).filter(|i| i % 8 == 2 * left)).await;
            let mut begun = false;
            for _ in 0..600 {
                spa.sync().await.unwrap();
                begun = spa.is_condensing();
                if held && begun || !held && !begun && runs(&spa) < before - 10 {
                    break;
                }
                w.env.sleep(Duration::from_millis(100)).await;
            }
            assert_eq!((begun, runs(&spa) < before), (held, !held), "{before}");
            spa = w.turn(spa).await;
            while spa.is_condensing() {
                w.env.sleep(Duration::from_millis(10)).await;
            }
            assert!(runs(&spa) < before - 10, "{before} {}", runs(&spa));
            before = runs(&spa);
            spa.drop_caches();
            for i in (0..120).filter(|i| i % 2 == 0 && (i % 8 > 2 * left || i % 8 == 0)) {
                w.check(&spa, i..i + 1).await;
            }
        }
        spa = w.turn(spa).await;
        w.delete(&spa, (0..120).filter(|i| i % 8 == 0 || i % 8 == 6)).await;
        w.export(spa).await;
    });
}

#[test]
fn what_cannot_be_removed_is_refused_as_openzfs_refuses_it() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::File, &["a"]).await;
        let why = |r: Result<(), Error>| r.unwrap_err();
        let only = why(spa.remove_vdev(spa.tree().tops[0].vdev.guid).await);
        assert!(only.is(Errno::NoSpc), "{only}");
        w.add(&spa, RAIDZ1, &["b", "c"]).await;
        let raidz = why(spa.remove_vdev(spa.tree().tops[0].vdev.guid).await);
        assert!(matches!(&raidz, Error::Pool(why) if **why == Refusal::CannotEvacuate), "{raidz}");
        let side = why(spa.remove_vdev(spa.tree().tops[1].vdev.children[0].guid).await);
        assert!(matches!(&side, Error::Pool(why) if **why == Refusal::CannotRemove), "{side}");
        let none = why(spa.cancel_removal().await);
        assert!(matches!(&none, Error::Pool(why) if **why == Refusal::NoRemoval), "{none}");
        w.export(spa).await;
    });
}

#[test]
fn a_disk_of_which_a_space_map_is_damaged_is_not_removed() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..60).await;
        w.add(&spa, VdevKind::File, &["b"]).await;
        let (pool, maps) = (spa.ctx.guid(), w.maps(&spa, 0, 60).await);
        w.export(spa).await;
        lose(pool, &maps);
        let spa = w.import().await.unwrap();
        let refused = spa.remove_vdev(spa.tree().tops[0].vdev.guid).await.unwrap_err();
        assert!(matches!(&refused, Error::Pool(why) if **why == Refusal::UnknownSpace), "{refused}");
        assert!(!spa.is_removing() && spa.suspended().is_none());
        w.put(&spa, 61..70).await;
        let spa = w.turn(spa).await;
        w.remove(&spa, 0).await;
        w.removed(&spa).await;
        let spa = w.turn(spa).await;
        w.check(&spa, 0..70).await;
        w.export(spa).await;
    });
}

#[test]
fn a_removal_that_meets_a_damaged_space_map_is_canceled() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..60).await;
        w.add(&spa, VdevKind::File, &["b"]).await;
        spa.set_removal_pace(100 << 10);
        w.remove(&spa, 0).await;
        w.part_of_it(&spa).await;
        let (pool, maps) = (spa.ctx.guid(), w.maps(&spa, 0, 60).await);
        w.export(spa).await;
        lose(pool, &maps);
        let spa = w.import().await.unwrap();
        w.removed(&spa).await;
        assert_eq!(state(&spa), ScanState::Canceled as u64);
        assert!(spa.suspended().is_none());
        // What was copied stays where it is.
        assert!(spa.dsl.leaked().await.unwrap() > 0);
        w.check(&spa, 0..61).await;
        w.put(&spa, 61..70).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let spa = w.import().await.unwrap();
        w.check(&spa, 0..70).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}
