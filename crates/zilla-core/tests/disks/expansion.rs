//! A RAID-Z is given one more disk: all that was on the others reads from all of them, at any time
//! and without any of them, and OpenZFS agrees, also half way.

use super::*;
use zilla_core::dsl::Setting;
use zilla_core::spa::Refusal;
use zilla_core::zap::Value;

const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

impl World {
    async fn expand(&self, spa: &Arc<Spa>, name: &str) {
        let guid = spa.tree().tops[0].vdev.guid;
        let attached = spa.attach(guid, &self.leaf(name), ATTACH).await;
        attached.unwrap_or_else(|e| panic!("{e} ({:?})", spa.suspended()));
    }

    async fn expanded(&self, spa: &Arc<Spa>) {
        for _ in 0..3000 {
            let scanning = spa.scan().unwrap().is_scanning();
            if !spa.is_expanding() && !scanning && spa.tree().tops[0].grows_to().is_none() {
                spa.sync().await.unwrap();
                return;
            }
            self.env.sleep(Duration::from_millis(10)).await;
        }
        panic!("it does not end: {:?} {:?}", spa.expansion(), spa.uberblock());
    }

    async fn set(&self, spa: &Arc<Spa>, name: &'static str, value: u64) {
        let dsl = spa.dsl.clone();
        let task = spa.ctx.sync_task(move |tx| {
            Box::pin(async move {
                let ds = dsl.by_name("tank").await?;
                dsl.set_props(&tx, &ds, &[(name.to_string(), Setting::Local(Value::u64(value)))]).await
            })
        });
        task.await.unwrap();
    }

    /// Lets it get beyond an offset, and holds it there.
    async fn up_to(&self, spa: &Arc<Spa>, offset: u64) {
        for _ in 0..10_000 {
            if spa.uberblock().reflow_offset() >= offset {
                break;
            }
            assert!(spa.is_expanding(), "it was over before it could be held at {offset}");
            self.env.sleep(Duration::from_millis(2)).await;
        }
        assert!(spa.uberblock().reflow_offset() >= offset, "{:?}", spa.expansion());
        spa.set_expansion_pace(0);
        spa.sync().await.unwrap();
    }
}

fn expand_and_look(nparity: u8, disks: usize) {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::Raidz { nparity }, &NAMES[..disks]).await;
        w.put(&spa, 0..40).await;
        let before = spa.tree().tops[0].vdev.asize();
        w.expand(&spa, NAMES[disks]).await;
        // Written while sectors are being moved.
        w.put(&spa, 40..60).await;
        w.check(&spa, 0..60).await;
        w.expanded(&spa).await;
        let after = spa.tree().tops[0].vdev.asize();
        assert!(after > before + (60 << 20), "{before} {after}");
        spa.drop_caches();
        w.check(&spa, 0..60).await;
        w.put(&spa, 60..70).await;
        assert!(spa.tree().pool_leaves().all(|l| l.stats.snapshot().checksum_errors == 0));
        let spa = w.turn(spa).await;
        w.check(&spa, 0..70).await;
        spa.scan().unwrap().wait().await;
        assert_eq!(spa.scan().unwrap().status().state, ScanState::Finished as u64);
        w.export(spa).await;
        w.without_each(&NAMES[..=disks], 70).await;
    });
}

#[test]
fn a_raidz1_takes_one_more_disk() {
    expand_and_look(1, 3);
}

#[test]
fn a_raidz2_takes_one_more_disk() {
    expand_and_look(2, 4);
}

#[test]
fn a_raidz3_takes_one_more_disk() {
    expand_and_look(3, 5);
}

#[test]
fn a_second_disk_follows_the_first_and_an_export_comes_between() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let mut spa = w.create(RAIDZ1, &["a", "b", "c"]).await;
        w.put(&spa, 0..30).await;
        let mut files = 30;
        for name in ["d", "e"] {
            w.expand(&spa, name).await;
            let guid = spa.tree().tops[0].vdev.guid;
            let twice = spa.attach(guid, &w.leaf("z"), ATTACH).await.unwrap_err();
            assert!(matches!(&twice, Error::Pool(why) if **why == Refusal::Expanding), "{twice}");
            for offset in [1, 30 << 20, 80 << 20] {
                w.up_to(&spa, offset).await;
                w.put(&spa, files..files + 5).await;
                files += 5;
                // zdb looks at it half way.
                spa = w.turn(spa).await;
                w.check(&spa, 0..files).await;
            }
            w.expanded(&spa).await;
            spa.drop_caches();
            w.check(&spa, 0..files).await;
        }
        w.export(spa).await;
        w.without_each(&["a", "b", "c", "d", "e"], files).await;
    });
}

#[test]
fn it_waits_while_a_disk_is_away() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(RAIDZ1, &["a", "b", "c"]).await;
        w.put(&spa, 0..30).await;
        w.expand(&spa, "d").await;
        w.up_to(&spa, 20 << 20).await;
        let gone = guid(&spa, &w.path("b"));
        spa.offline(gone, false, false).await.unwrap();
        spa.set_expansion_pace(u64::MAX);
        w.put(&spa, 30..50).await;
        let at = spa.uberblock().reflow_offset();
        for _ in 0..5 {
            spa.sync().await.unwrap();
            w.env.sleep(Duration::from_millis(60)).await;
        }
        assert!(spa.expansion().unwrap().1.waiting && spa.is_expanding());
        w.put(&spa, 50..52).await;
        assert_eq!(spa.uberblock().reflow_offset(), at);
        w.check(&spa, 0..52).await;
        spa.online(gone, false).await.unwrap();
        w.expanded(&spa).await;
        w.whole(&spa).await;
        w.check(&spa, 0..52).await;
        w.export(spa).await;
        w.without_each(&["a", "b", "c", "d"], 52).await;
    });
}

/// Its pointer says one txg of all copies, and so one width.
#[test]
fn a_shared_block_is_given_no_copies_of_another_width() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(RAIDZ1, &["a", "b", "c"]).await;
        w.set(&spa, "dedup", 1).await;
        w.put(&spa, 0..40).await;
        w.expand(&spa, "d").await;
        w.expanded(&spa).await;
        w.set(&spa, "copies", 2).await;
        let zfs = w.zfs(&spa).await;
        for i in 20..40 {
            let new = NewFile::new(0o100644, Cred::default());
            let (h, _) = zfs.create(zfs.root(), format!("g{i}").as_bytes(), new).await.unwrap();
            zfs.write(h.id(), 0, &contents(i).into(), false).await.unwrap();
        }
        drop(zfs);
        w.put(&spa, 40..50).await;
        // An expansion is followed by a scrub.
        spa.scan().unwrap().wait().await;
        spa.scan().unwrap().start().await.unwrap();
        spa.scan().unwrap().wait().await;
        let status = spa.scan().unwrap().status();
        assert_eq!((status.state, status.errors, status.processed), (ScanState::Finished as u64, 0, 0));
        spa.drop_caches();
        w.check(&spa, 0..50).await;
        assert!(spa.tree().pool_leaves().all(|l| l.stats.snapshot().checksum_errors == 0));
        w.export(spa).await;
    });
}
