//! Hot spares step in for what fails, step back, and stay; and OpenZFS's zdb agrees at each stage.

use super::*;
use zilla_core::spa::{Outward, RootFs, SpareSpec};

const NAMES: [&str; 3] = ["a", "b", "c"];

async fn with_spare(w: &World) -> Arc<Spa> {
    let spa = w.create(RAIDZ1, &NAMES).await;
    spa.add_spares(&[SpareSpec { leaf: w.leaf("s"), shared: None }]).await.unwrap();
    w.put(&spa, 0..20).await;
    spa
}

async fn lose(w: &World, spa: &Arc<Spa>, name: &str) {
    spa.offline(guid(spa, &w.path(name)), false, true).await.unwrap();
    spa.call_spares().await;
    assert_eq!(shape(spa), "raidz(a spare(b s) c)");
    whole(w, spa).await;
}

/// Waits until nobody who is there lacks anything, and nothing is being replaced.
pub(super) async fn whole(w: &World, spa: &Arc<Spa>) {
    for _ in 0..12_000 {
        let tree = spa.tree();
        let behind = tree.pool_leaves().any(|l| l.is_behind());
        let replacing = tree.root.walk().iter().any(|v| v.kind == VdevKind::Replacing);
        if !behind && !replacing && !spa.scan().unwrap().is_scanning() {
            return spa.sync().await.unwrap();
        }
        w.env.sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not become whole: {}", shape(spa));
}

/// States of the spares that wait.
fn waiting(spa: &Spa) -> Vec<VdevState> {
    let tree = spa.tree();
    tree.spares.iter().filter(|v| !tree.is_active_spare(v.guid)).map(|v| v.state().0).collect()
}

#[test]
fn a_spare_steps_in_and_back_when_the_device_is_cleared() {
    let w = World::new();
    w.env.clone().block_on(async {
        let mut spa = with_spare(&w).await;
        assert_eq!(waiting(&spa), [VdevState::Healthy]);
        spa = w.turn(spa).await;
        assert_eq!(waiting(&spa), [VdevState::Healthy]);
        lose(&w, &spa, "b").await;
        assert_eq!(waiting(&spa), []);
        w.put(&spa, 20..40).await;
        // Nobody else fails: nothing more happens.
        spa.call_spares().await;
        spa = w.turn(spa).await;
        assert_eq!(shape(&spa), "raidz(a spare(b s) c)");
        let busy = spa.remove_vdev(guid(&spa, &w.path("s"))).await.unwrap_err();
        assert!(busy.is(Errno::Busy), "{busy}");
        w.check(&spa, 0..40).await;
        spa.clear(Some(guid(&spa, &w.path("b")))).await.unwrap();
        whole(&w, &spa).await;
        back(&w, &spa).await;
        w.export(spa).await;
        w.without_each(&NAMES, 40).await;
    });
}

/// Waits until the spare waits again.
async fn back(w: &World, spa: &Arc<Spa>) {
    for _ in 0..6_000 {
        if shape(spa) == "raidz(a b c)" && waiting(spa) == [VdevState::Healthy] {
            return;
        }
        w.env.sleep(Duration::from_millis(10)).await;
    }
    panic!("{} {:?}", shape(spa), waiting(spa));
}

#[test]
fn a_spare_steps_back_when_the_device_is_replaced() {
    let w = World::new();
    w.env.clone().block_on(async {
        let mut spa = with_spare(&w).await;
        w.export(spa).await;
        w.take("b");
        spa = w.import().await.unwrap();
        spa.call_spares().await;
        assert_eq!(shape(&spa), "raidz(a spare(b s) c)");
        whole(&w, &spa).await;
        w.put(&spa, 20..40).await;
        // Only a spare may stand in for a spare.
        let refused = spa.attach(guid(&spa, &w.path("s")), &w.leaf("n"), REPLACE).await.unwrap_err();
        assert!(refused.is(Errno::NotSup), "{refused}");
        spa.attach(guid(&spa, &w.path("b")), &w.leaf("b"), REPLACE).await.unwrap();
        whole(&w, &spa).await;
        back(&w, &spa).await;
        w.export(spa).await;
        w.without_each(&NAMES, 40).await;
    });
}

/// A spare that waits, and a device that is offline, are nobody's who opens them, and the pool's
/// all the same.
#[test]
fn a_device_is_in_a_pool_once() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = with_spare(&w).await;
        spa.add_cache(&[w.leaf("l")]).await.unwrap();
        for guid in [guid(&spa, &w.path("b")), spa.tree().cache[0].guid] {
            spa.offline(guid, false, false).await.unwrap();
        }
        for name in ["b", "l", "s"] {
            let leaf = || LeafSpec { path: w.path(name), disk: false };
            let (kind, leaves) = (VdevKind::Disk, vec![leaf()]);
            let top = TopSpec { kind, leaves, is_log: true, bias: None, ashift: Some(9) };
            let refused = [
                spa.add_spares(&[SpareSpec { leaf: leaf(), shared: None }]).await,
                spa.add_cache(&[leaf()]).await,
                spa.add_vdevs(&PoolSpec { tops: vec![top], ..PoolSpec::default() }).await,
            ];
            for e in refused {
                let e = e.expect_err(name);
                assert!(e.is(Errno::Busy), "{name}: {e}");
            }
        }
        let twice = [w.leaf("n"), w.leaf("n")].map(|leaf| SpareSpec { leaf, shared: None });
        assert!(spa.add_spares(&twice).await.unwrap_err().is(Errno::Busy));
        let spa = w.turn(spa).await;
        assert_eq!(waiting(&spa), [VdevState::Healthy]);
        w.check(&spa, 0..20).await;
        w.export(spa).await;
    });
}

#[test]
fn a_pool_is_created_with_its_spares_at_once() {
    let w = World::new();
    w.env.clone().block_on(async {
        let leaves = ["a", "b"].map(|n| w.leaf(n)).into();
        let top = TopSpec { kind: VdevKind::Mirror, leaves, is_log: false, bias: None, ashift: Some(9) };
        let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
        let spares = vec![SpareSpec { leaf: w.leaf("s"), shared: None }];
        let outward = Outward { spares, ..Outward::default() };
        let spa = Spa::create_with(&w.env, &spec, options(), RootFs::default(), outward).await.unwrap();
        // There was one txg, and it has them.
        assert_eq!(spa.uberblock().txg, 4);
        assert_eq!(waiting(&spa), [VdevState::Healthy]);
        w.put(&spa, 0..10).await;
        let spa = w.turn(spa).await;
        assert_eq!(waiting(&spa), [VdevState::Healthy]);
        w.export(spa).await;
    });
}

#[test]
fn a_spare_stays_when_the_device_is_detached() {
    let w = World::new();
    w.env.clone().block_on(async {
        let mut spa = with_spare(&w).await;
        lose(&w, &spa, "b").await;
        let spare = guid(&spa, &w.path("s"));
        let permanent = spa.detach(guid(&spa, &w.path("b"))).await.unwrap();
        assert_eq!(permanent, Some(spare));
        assert_eq!(shape(&spa), "raidz(a s c)");
        w.put(&spa, 20..40).await;
        spa = w.turn(spa).await;
        assert_eq!((shape(&spa), spa.tree().spares.len()), ("raidz(a s c)".to_owned(), 0));
        w.export(spa).await;
        w.without_each(&["a", "s", "c"], 40).await;
    });
}

#[test]
fn a_spare_that_fails_is_followed_by_another() {
    let w = World::new();
    w.env.clone().block_on(async {
        let mut spa = with_spare(&w).await;
        lose(&w, &spa, "b").await;
        spa.add_spares(&[SpareSpec { leaf: w.leaf("t"), shared: None }]).await.unwrap();
        spa.offline(guid(&spa, &w.path("s")), false, true).await.unwrap();
        spa.call_spares().await;
        assert_eq!(shape(&spa), "raidz(a spare(b s t) c)");
        whole(&w, &spa).await;
        // The one that failed goes back to those that wait, for one is enough.
        for _ in 0..6_000 {
            if shape(&spa) == "raidz(a spare(b t) c)" {
                break;
            }
            w.env.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(shape(&spa), "raidz(a spare(b t) c)");
        spa = w.turn(spa).await;
        w.check(&spa, 0..20).await;
        spa.remove_vdev(guid_of_spare(&spa, &w.path("s"))).await.unwrap();
        spa = w.turn(spa).await;
        assert_eq!(spa.tree().spares.len(), 1);
        w.export(spa).await;
        w.without_each(&["a", "c"], 20).await;
    });
}

fn guid_of_spare(spa: &Spa, path: &Path) -> u64 {
    let tree = spa.tree();
    let found = tree.spares.iter().find(|v| v.leaf.as_ref().is_some_and(|l| Path::new(&l.path()) == path));
    found.expect("no such spare").guid
}

/// Puts zeroes where the data of a device is.
fn spoil(path: &Path) {
    use std::io::{Seek, SeekFrom, Write};
    let mut file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(5 << 20)).unwrap();
    file.write_all(&vec![0; (SIZE - (7 << 20)) as usize]).unwrap();
}

#[test]
fn a_device_that_lies_too_often_is_degraded_and_a_spare_steps_in() {
    let w = World::new();
    w.env.clone().block_on(async {
        let mut spa = with_spare(&w).await;
        w.put(&spa, 20..40).await;
        w.export(spa).await;
        spoil(&w.path("b"));
        spa = w.import().await.unwrap();
        spa.scan().unwrap().start().await.unwrap();
        spa.scan().unwrap().wait().await;
        let bad = guid(&spa, &w.path("b"));
        spa.diagnose();
        let state = || spa.tree().find(bad).unwrap().state();
        assert_eq!(state(), (VdevState::Degraded, zilla_core::vdev::VdevAux::ErrExceeded));
        let (events, _) = zilla_core::events::events().after(0);
        let told =
            |class: &str| events.iter().any(|e| e.class == class && e.payload.u64("vdev_guid") == Some(bad));
        assert!(told("ereport.fs.zfs.checksum") && told("resource.fs.zfs.statechange"));
        spa.call_spares().await;
        assert_eq!(shape(&spa), "raidz(a spare(b s) c)");
        whole(&w, &spa).await;
        spa.clear(Some(bad)).await.unwrap();
        assert_eq!(state().0, VdevState::Healthy);
        back(&w, &spa).await;
        w.check(&spa, 0..40).await;
        w.export(spa).await;
    });
}
