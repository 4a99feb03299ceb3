//! A dRAID's distributed spares stand in for its disks, alone and for each other, and go back; and
//! OpenZFS's zdb agrees at each stage.

use super::spares::whole;
use super::*;

pub(super) const SIX: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
pub(super) const ONE_SPARE: VdevKind = VdevKind::Draid { nparity: 1, ndata: 2, nspares: 1 };

pub(super) async fn create(w: &World, kind: VdevKind, names: &[&str]) -> Arc<Spa> {
    let leaves = names.iter().map(|n| w.sized(n, 160 << 20)).collect();
    let top = TopSpec { kind, leaves, is_log: false, bias: None, ashift: Some(12) };
    let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
    let spa = Spa::create(&w.env, &spec, options()).await.unwrap();
    w.put(&spa, 0..20).await;
    spa
}

/// The guid of a spare that waits, and how it is put in a disk's place.
pub(super) fn spare(spa: &Spa, name: &str) -> (LeafSpec, Attach) {
    let tree = spa.tree();
    let named = |v: &&Arc<zilla_core::vdev::Vdev>| v.leaf.as_ref().is_some_and(|l| l.path() == name);
    let guid = tree.spares.iter().find(named).unwrap().guid;
    let spec = LeafSpec { path: name.into(), disk: false };
    (spec, Attach { replace: true, spare: Some(guid), ..Attach::default() })
}

pub(super) async fn lose(w: &World, spa: &Arc<Spa>, name: &str) {
    spa.offline(guid(spa, &w.path(name)), false, true).await.unwrap();
}

/// The spare takes the place of a disk that is lost, by a healing resilver.
async fn stand_in(w: &World, spa: &Arc<Spa>, lost: &str, by: &str) {
    lose(w, spa, lost).await;
    let (spec, how) = spare(spa, by);
    spa.attach(guid(spa, &w.path(lost)), &spec, how).await.unwrap();
    whole(w, spa).await;
}

fn waiting(spa: &Spa) -> Vec<String> {
    let tree = spa.tree();
    let waits = tree.spares.iter().filter(|v| !tree.is_active_spare(v.guid));
    waits.filter(|v| v.state().0 == VdevState::Healthy).map(|v| v.leaf.as_ref().unwrap().path()).collect()
}

/// Waits for the tree without the spare, and for the spare to be looked at, which comes after the
/// txg.
async fn has_stepped_back(w: &World, spa: &Spa, tree: &str) {
    for _ in 0..6_000 {
        if shape(spa) == tree && waiting(spa).len() == 1 {
            return;
        }
        w.env.sleep(Duration::from_millis(10)).await;
    }
    panic!("{} {:?}", shape(spa), waiting(spa));
}

pub(super) fn errors(spa: &Spa) -> u64 {
    let tree = spa.tree();
    tree.pool_leaves().map(|l| l.checksum_errors.load(std::sync::atomic::Ordering::Relaxed)).sum()
}

#[test]
fn a_distributed_spare_stands_in_and_steps_back() {
    let w = World::new();
    w.env.clone().block_on(async {
        let mut spa = create(&w, ONE_SPARE, &SIX).await;
        assert_eq!(waiting(&spa), ["draid1-0-0"]);
        spa = w.turn(spa).await;
        assert_eq!(waiting(&spa), ["draid1-0-0"]);
        let removed = spa.remove_vdev(spa.tree().spares[0].guid).await.unwrap_err();
        assert!(removed.is(Errno::NotSup), "{removed}");
        stand_in(&w, &spa, "b", "draid1-0-0").await;
        assert_eq!(shape(&spa), "draid(a spare(b draid1-0-0) c d e f)");
        assert_eq!(waiting(&spa), [""; 0]);
        w.put(&spa, 20..40).await;
        spa = w.turn(spa).await;
        assert_eq!(shape(&spa), "draid(a spare(b draid1-0-0) c d e f)");
        w.check(&spa, 0..40).await;
        w.export(spa).await;
        w.without_each(&["a", "c", "d", "e", "f"], 40).await;
        spa = w.import().await.unwrap();
        // A disk that misses something misses what it has for the spare too.
        w.export(spa).await;
        w.take("d");
        spa = w.import().await.unwrap();
        w.put(&spa, 40..60).await;
        w.export(spa).await;
        w.give_back("d");
        spa = w.import().await.unwrap();
        whole(&w, &spa).await;
        assert_eq!(errors(&spa), 0);
        w.export(spa).await;
        w.without_each(&["a", "c", "d", "e", "f"], 60).await;
        spa = w.import().await.unwrap();
        spa.clear(Some(guid(&spa, &w.path("b")))).await.unwrap();
        whole(&w, &spa).await;
        has_stepped_back(&w, &spa, "draid(a b c d e f)").await;
        w.export(spa).await;
        w.without_each(&SIX, 60).await;
    });
}

#[test]
fn it_stays_for_a_disk_that_is_detached_until_another_replaces_it() {
    let w = World::new();
    w.env.clone().block_on(async {
        let mut spa = create(&w, ONE_SPARE, &SIX).await;
        stand_in(&w, &spa, "c", "draid1-0-0").await;
        assert_eq!(spa.detach(guid(&spa, &w.path("c"))).await.unwrap(), None);
        w.put(&spa, 20..40).await;
        spa = w.turn(spa).await;
        assert_eq!(shape(&spa), "draid(a b draid1-0-0 d e f)");
        assert_eq!((spa.tree().spares.len(), waiting(&spa).len()), (1, 0));
        w.export(spa).await;
        w.without_each(&["a", "b", "d", "e", "f"], 40).await;
        spa = w.import().await.unwrap();
        let active = guid(&spa, Path::new("draid1-0-0"));
        spa.attach(active, &w.sized("n", 160 << 20), REPLACE).await.unwrap();
        w.whole(&spa).await;
        has_stepped_back(&w, &spa, "draid(a b n d e f)").await;
        w.export(spa).await;
        w.without_each(&["a", "b", "n", "d", "e", "f"], 40).await;
    });
}

/// Two spares, each of which has a part of what it holds on the disk that the other one stands for.
#[test]
fn spares_stand_in_for_disks_that_have_a_spare_s_data() {
    let w = World::new();
    w.env.clone().block_on(async {
        let kind = VdevKind::Draid { nparity: 2, ndata: 2, nspares: 2 };
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let mut spa = create(&w, kind, &names).await;
        stand_in(&w, &spa, "a", "draid2-0-0").await;
        w.put(&spa, 20..30).await;
        spa.detach(guid(&spa, &w.path("a"))).await.unwrap();
        stand_in(&w, &spa, "b", "draid2-0-1").await;
        w.put(&spa, 30..40).await;
        spa.detach(guid(&spa, &w.path("b"))).await.unwrap();
        assert_eq!(shape(&spa), "draid(draid2-0-0 draid2-0-1 c d e f g)");
        spa.scan().unwrap().start().await.unwrap();
        whole(&w, &spa).await;
        assert_eq!((errors(&spa), spa.scan().unwrap().status().errors), (0, 0));
        spa = w.turn(spa).await;
        // As many again as there is parity.
        lose(&w, &spa, "d").await;
        lose(&w, &spa, "g").await;
        w.put(&spa, 40..50).await;
        w.check(&spa, 0..50).await;
        assert_eq!(errors(&spa), 0);
        w.export(spa).await;
    });
}

/// A disk that is away while a spare is resilvered lacks what it should have for the spare.
#[test]
fn what_a_spare_was_to_have_on_a_disk_that_is_away_is_not_forgotten() {
    let w = World::new();
    w.env.clone().block_on(async {
        let kind = VdevKind::Draid { nparity: 2, ndata: 2, nspares: 1 };
        let spa = create(&w, kind, &SIX).await;
        spa.offline(guid(&spa, &w.path("f")), true, false).await.unwrap();
        stand_in(&w, &spa, "b", "draid2-0-0").await;
        w.put(&spa, 20..30).await;
        spa.online(guid(&spa, &w.path("f")), false).await.unwrap();
        whole(&w, &spa).await;
        spa.scan().unwrap().start().await.unwrap();
        whole(&w, &spa).await;
        let s = spa.scan().unwrap().status();
        assert_eq!((errors(&spa), s.errors, s.processed), (0, 0, 0));
        w.export(spa).await;
        w.take("a");
        w.without_each(&["c", "d", "e", "f"], 30).await;
    });
}

#[test]
fn a_spare_stands_in_for_disks_of_its_own_draid_only() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = create(&w, ONE_SPARE, &SIX).await;
        let more = ["u", "v", "w", "x", "y", "z"].map(|n| w.sized(n, 160 << 20)).into();
        let top = TopSpec { kind: ONE_SPARE, leaves: more, is_log: false, bias: None, ashift: Some(12) };
        spa.add_vdevs(&PoolSpec { tops: vec![top], ..PoolSpec::default() }).await.unwrap();
        assert_eq!(waiting(&spa), ["draid1-0-0", "draid1-1-0"]);
        let spa = w.turn(spa).await;
        assert_eq!(waiting(&spa), ["draid1-0-0", "draid1-1-0"]);
        let (spec, how) = spare(&spa, "draid1-0-0");
        let other = spa.attach(guid(&spa, &w.path("v")), &spec, how).await.unwrap_err();
        assert!(other.is(Errno::NotSup), "{other}");
        lose(&w, &spa, "v").await;
        spa.call_spares().await;
        whole(&w, &spa).await;
        assert_eq!(shape(&spa), "draid(a b c d e f) draid(u spare(v draid1-1-0) w x y z)");
        w.export(spa).await;
    });
}
