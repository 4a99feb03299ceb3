//! What devices missed, where it cannot be read.

use super::*;
use std::os::unix::fs::FileExt;
use zilla_core::types::ObjectId;
use zilla_core::vdev::Vdev;

fn node(w: &World, spa: &Arc<Spa>, name: &str) -> Arc<Vdev> {
    spa.tree().find(guid(spa, &w.path(name))).unwrap()
}

/// Says that the DTL of some devices is the pool's directory.
async fn with_another_object(w: &World, spa: Arc<Spa>, names: &[&str]) -> Arc<Spa> {
    names.iter().for_each(|name| node(w, &spa, name).set_config_u64("DTL", 1));
    spa.close(Some(PoolState::Exported)).await.unwrap();
    w.import().await.expect("no pool is lost with what one of its devices missed")
}

#[test]
fn a_device_of_which_nobody_knows_what_it_missed_is_given_everything() {
    // If it is not known of both, one is believed.
    for unknown in [&["b"][..], &["a", "b"]] {
        let w = World::new();
        w.env.clone().block_on(async {
            let spa = w.create(VdevKind::Mirror, &["a", "b"]).await;
            w.put(&spa, 0..30).await;
            let spa = with_another_object(&w, spa, unknown).await;
            w.whole(&spa).await;
            assert!(is_resilver(&spa, ScanState::Finished));
            let s = spa.scan().unwrap().status();
            assert!(s.processed > s.to_examine / 2 && s.errors == 0, "{s:?}");
            w.check(&spa, 0..30).await;
            w.export(spa).await;
            w.without_each(&["a", "b"], 30).await;
        });
    }
}

#[test]
fn a_device_that_alone_has_something_is_taken_as_it_is() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..20).await;
        let spa = with_another_object(&w, spa, &["a"]).await;
        assert!(spa.tree().leaves[0].dtl.is_empty());
        w.check(&spa, 0..20).await;
        w.put(&spa, 20..30).await;
        assert_eq!(spa.scan().unwrap().status().start_time, 0, "nobody could give it anything");
        w.export(spa).await;

        // Of a mirror of which the other side is away.
        let w = World::new();
        let spa = w.create(VdevKind::Mirror, &["a", "b"]).await;
        w.put(&spa, 0..20).await;
        node(&w, &spa, "a").set_config_u64("DTL", 1);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        w.take("b");
        let spa = w.import().await.unwrap();
        assert!(spa.tree().leaves[0].dtl.is_empty());
        w.check(&spa, 0..20).await;
        w.put(&spa, 20..30).await;
        w.export(spa).await;
    });
}

/// What is wrong with the bytes alone is written anew.
#[test]
fn a_damaged_log_of_what_was_missed_is_written_anew() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::Mirror, &["a", "b"]).await;
        w.put(&spa, 0..20).await;
        let b = node(&w, &spa, "b");
        // Far beyond what is there, and so many and uneven that they are not kept in the pointer.
        (1..90u64).for_each(|i| {
            let at = (1 << 40) + i * (i.wrapping_mul(0x9e37_79b9) % 100_003);
            b.leaf.as_ref().unwrap().dtl.add(at, at + 1 + i % 7);
        });
        w.put(&spa, 20..21).await;
        let object = b.config_u64("DTL").unwrap();
        let dn = spa.ctx.mos().hold_wait(ObjectId(object)).await.unwrap();
        assert_eq!(dn.phys().nlevels, 1);
        let bp = zilla_core::dmu::resident(|| dn.block_pointer(0)).await.unwrap().unwrap();
        assert!(!bp.is_embedded() && !bp.is_hole());
        spa.close(None).await.unwrap();
        for name in ["a", "b"] {
            let file = std::fs::File::options().read(true).write(true).open(w.path(name)).unwrap();
            for dva in bp.dvas() {
                file.write_all_at(&[0x5a; 64], dva.offset + (4 << 20) + 100).unwrap();
            }
        }
        let found = discover(&w.env, &[w.dir.path().to_owned()]).await.unwrap();
        let opts = OpenOpts { force: true, dbuf_cache: 8 << 20, arc_max: 16 << 20, ..OpenOpts::default() };
        let spa = Spa::open(&w.env, &found[0], opts).await.unwrap();
        assert_eq!(node(&w, &spa, "b").config_u64("DTL"), Some(object));
        w.whole(&spa).await;
        assert!(is_resilver(&spa, ScanState::Finished));
        let spa = w.turn(spa).await;
        assert!(spa.tree().leaves.iter().all(|l| l.dtl.is_empty()));
        w.export(spa).await;
        w.without_each(&["a", "b"], 20).await;
    });
}
