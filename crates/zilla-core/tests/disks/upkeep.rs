//! Free space is overwritten, and discarded; what is in use, or in the checkpoint, stays as it is.

use super::*;
use std::os::unix::fs::{FileExt, MetadataExt};
use zilla_core::spa::Refusal;
use zilla_core::vdev::{Leaf, UpkeepKind, UpkeepState};

const PATTERN: u64 = 0xdead_beef_dead_beee;

impl World {
    /// Bytes of a file that the file system has.
    fn holds(&self, name: &str) -> u64 {
        std::fs::metadata(self.path(name)).unwrap().blocks() * 512
    }

    /// Bytes of a file that hold the pattern.
    fn pattern(&self, name: &str) -> u64 {
        let file = std::fs::File::open(self.path(name)).unwrap();
        let mut buf = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut buf, 0).unwrap();
        buf.as_chunks::<8>().0.iter().filter(|w| u64::from_ne_bytes(**w) == PATTERN).count() as u64 * 8
    }

    async fn until(&self, spa: &Arc<Spa>, kind: UpkeepKind, state: UpkeepState) {
        for _ in 0..3000 {
            if leaves(spa).iter().all(|l| l.upkeep(kind).stat().state == state) {
                return;
            }
            self.env.sleep(Duration::from_millis(10)).await;
        }
        panic!("it does not end: {:?}", leaves(spa)[0].upkeep(kind).stat());
    }

    async fn all(&self, spa: &Arc<Spa>, kind: UpkeepKind) {
        for l in leaves(spa) {
            spa.start_upkeep(l.guid(), kind, None).await.unwrap();
        }
        self.until(spa, kind, UpkeepState::Complete).await;
    }
}

/// A dRAID's space lies on its disks in pieces. What a lost disk had is not touched where a
/// distributed spare has it.
#[test]
fn a_draid_s_free_space_is_initialized_and_trimmed_and_files_stay() {
    use super::draid::{ONE_SPARE, SIX, create, lose, spare};
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = create(&w, ONE_SPARE, &SIX).await;
        w.put(&spa, 20..40).await;
        w.all(&spa, UpkeepKind::Initialize).await;
        let stat = leaves(&spa)[0].upkeep(UpkeepKind::Initialize).stat();
        assert!(stat.errors == 0 && stat.done == stat.estimate && stat.done > 64 << 20, "{stat:?}");
        spa.drop_caches();
        w.check(&spa, 0..40).await;
        let spa = w.turn(spa).await;
        // In each row one of the six has room for the spare.
        let pattern: u64 = SIX.iter().map(|name| w.pattern(name)).sum();
        assert!(pattern > stat.estimate * 5 * 9 / 10, "{pattern} of {stat:?}");
        lose(&w, &spa, "c").await;
        let (spec, how) = spare(&spa, "draid1-0-0");
        spa.attach(guid(&spa, &w.path("c")), &spec, how).await.unwrap();
        super::spares::whole(&w, &spa).await;
        let there = |l: &Arc<Leaf>| !l.is_room() && l.writable();
        for l in leaves(&spa).into_iter().filter(there) {
            spa.start_upkeep(l.guid(), UpkeepKind::Trim, None).await.unwrap();
        }
        let busy = |l: &Arc<Leaf>| l.upkeep(UpkeepKind::Trim).stat().state == UpkeepState::Active;
        while leaves(&spa).iter().any(busy) {
            w.env.sleep(Duration::from_millis(10)).await;
        }
        let room = leaves(&spa).into_iter().find(|l| l.is_room()).unwrap();
        refused(spa.start_upkeep(room.guid(), UpkeepKind::Trim, None).await, Refusal::NoUpkeep);
        spa.drop_caches();
        w.check(&spa, 0..40).await;
        w.put(&spa, 40..60).await;
        w.export(spa).await;
        w.take("c");
        w.without_each(&["a", "b", "d", "e", "f"], 60).await;
        for name in ["a", "b", "d", "e", "f"] {
            assert!(w.pattern(name) < 8 << 20, "{name}: {}", w.pattern(name));
        }
    });
}

fn leaves(spa: &Arc<Spa>) -> Vec<Arc<Leaf>> {
    spa.tree().pool_leaves().cloned().collect()
}

/// Numbers that do not compress.
fn noise(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
}

fn refused(result: Result<(), Error>, why: Refusal) {
    match result {
        Err(Error::Pool(found)) => assert_eq!(*found, why),
        other => panic!("wanted {why:?}, got {other:?}"),
    }
}

#[test]
fn free_space_is_initialized_and_trimmed_and_files_stay() {
    for (kind, names) in [(VdevKind::Mirror, &["a", "b"][..]), (RAIDZ1, &["a", "b", "c"][..])] {
        let w = World::new();
        w.env.clone().block_on(async move {
            let spa = w.create(kind, names).await;
            w.put(&spa, 0..30).await;
            w.all(&spa, UpkeepKind::Initialize).await;
            let stats: Vec<_> =
                leaves(&spa).iter().map(|l| l.upkeep(UpkeepKind::Initialize).stat()).collect();
            let stat = &stats[0];
            assert!(stat.done == stat.estimate && stat.done > SIZE / 2, "{stat:?}");
            assert_eq!(stat.errors, 0);
            spa.drop_caches();
            w.check(&spa, 0..30).await;
            let spa = w.turn(spa).await;
            for name in names {
                let pattern = w.pattern(name);
                assert!(pattern > stat.estimate * 9 / 10, "{kind:?}, {name}: {pattern} of {stat:?}");
            }
            // Each ends in a second of its own.
            for (l, stat) in leaves(&spa).iter().zip(&stats) {
                let again = l.upkeep(UpkeepKind::Initialize).stat();
                assert_eq!((again.state, again.action_time), (UpkeepState::Complete, stat.action_time));
            }
            w.all(&spa, UpkeepKind::Trim).await;
            spa.drop_caches();
            w.check(&spa, 0..30).await;
            w.put(&spa, 30..60).await;
            let spa = w.turn(spa).await;
            w.check(&spa, 0..60).await;
            for name in names {
                let (pattern, held) = (w.pattern(name), w.holds(name));
                assert!(pattern < 8 << 20 && held < 40 << 20, "{kind:?}, {name}: {pattern}, {held}");
            }
            let guid = leaves(&spa)[0].guid();
            spa.uninitialize(guid).await.unwrap();
            let spa = w.turn(spa).await;
            let states = leaves(&spa)
                .iter()
                .map(|l| l.upkeep(UpkeepKind::Initialize).stat().state)
                .collect::<Vec<_>>();
            assert_eq!(states[..2], [UpkeepState::None, UpkeepState::Complete]);
            w.export(spa).await;
        });
    }
}

#[test]
fn a_trim_is_suspended_goes_on_after_an_import_and_is_canceled() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..30).await;
        let guid = leaves(&spa)[0].guid();
        refused(spa.stop_upkeep(guid, UpkeepKind::Trim, UpkeepState::Suspended).await, Refusal::NoActiveTrim);
        // Two megabytes at once, and then a long pause.
        spa.start_upkeep(guid, UpkeepKind::Trim, Some(100 << 10)).await.unwrap();
        refused(spa.start_upkeep(guid, UpkeepKind::Trim, None).await, Refusal::Trimming);
        assert!(spa.upkeep_left(UpkeepKind::Trim, &[guid]).is_some());
        assert!(spa.upkeep_left(UpkeepKind::Trim, &[guid + 1]).is_none());
        while leaves(&spa)[0].upkeep(UpkeepKind::Trim).stat().reached == 0 {
            w.env.sleep(Duration::from_millis(10)).await;
        }
        spa.stop_upkeep(guid, UpkeepKind::Trim, UpkeepState::Suspended).await.unwrap();
        let stat = leaves(&spa)[0].upkeep(UpkeepKind::Trim).stat();
        assert!(stat.reached > 0 && stat.reached < SIZE / 2, "{stat:?}");
        let spa = w.turn(spa).await;
        let again = leaves(&spa)[0].upkeep(UpkeepKind::Trim).stat();
        assert_eq!(
            (again.state, again.reached, again.rate),
            (UpkeepState::Suspended, stat.reached, 100 << 10)
        );
        assert!(again.done > 0 && again.done < again.estimate, "{again:?}");
        // It is active when the pool is closed, and goes on with the next import.
        spa.start_upkeep(guid, UpkeepKind::Trim, None).await.unwrap();
        let spa = w.turn(spa).await;
        let again = leaves(&spa)[0].upkeep(UpkeepKind::Trim).stat();
        assert_eq!(again.state, UpkeepState::Active);
        spa.stop_upkeep(guid, UpkeepKind::Trim, UpkeepState::Canceled).await.unwrap();
        let spa = w.turn(spa).await;
        assert_eq!(leaves(&spa)[0].upkeep(UpkeepKind::Trim).stat().state, UpkeepState::Canceled);
        w.check(&spa, 0..30).await;
        spa.start_upkeep(guid, UpkeepKind::Trim, Some(0)).await.unwrap();
        w.until(&spa, UpkeepKind::Trim, UpkeepState::Complete).await;
        w.export(spa).await;
    });
}

#[test]
fn what_the_checkpoint_has_is_not_overwritten() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::Mirror, &["a", "b"]).await;
        w.put(&spa, 0..30).await;
        spa.take_checkpoint().await.unwrap();
        let zfs = w.zfs(&spa).await;
        for i in 0..30 {
            zfs.unlink(zfs.root(), format!("f{i}").as_bytes()).await.unwrap();
        }
        drop(zfs);
        for i in 30..34 {
            w.put(&spa, i..i + 1).await;
        }
        w.all(&spa, UpkeepKind::Initialize).await;
        w.all(&spa, UpkeepKind::Trim).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let found = discover(&w.env, &[w.dir.path().to_owned()]).await.unwrap();
        let opts = OpenOpts { rewind_to_checkpoint: true, force: true, ..OpenOpts::default() };
        let spa = Spa::open(&w.env, &found[0], opts).await.unwrap();
        w.check(&spa, 0..30).await;
        assert_eq!(leaves(&spa)[0].upkeep(UpkeepKind::Initialize).stat().state, UpkeepState::None);
        w.export(spa).await;
    });
}

#[test]
fn what_is_freed_is_trimmed_by_itself() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::Mirror, &["a", "b"]).await;
        w.put(&spa, 0..10).await;
        w.all(&spa, UpkeepKind::Initialize).await;
        let before = w.holds("a");
        spa.set_autotrim(true);
        let zfs = w.zfs(&spa).await;
        let new = NewFile::new(0o100644, Cred::default());
        let (h, _) = zfs.create(zfs.root(), b"large", new).await.unwrap();
        for n in 0..12u64 {
            let piece: Vec<u8> = (0..1u64 << 17).flat_map(|x| noise(n << 17 | x).to_ne_bytes()).collect();
            zfs.write(h.id(), n << 20, &piece.into(), false).await.unwrap();
        }
        drop(h);
        spa.sync().await.unwrap();
        zfs.unlink(zfs.root(), b"large").await.unwrap();
        drop(zfs);
        for _ in 0..600 {
            spa.sync().await.unwrap();
            if w.holds("a") + (8 << 20) < before && w.holds("b") + (8 << 20) < before {
                break;
            }
            w.env.sleep(Duration::from_millis(20)).await;
        }
        assert!(w.holds("a") + (8 << 20) < before, "{} of {before}", w.holds("a"));
        spa.set_autotrim(false);
        let spa = w.turn(spa).await;
        w.check(&spa, 0..10).await;
        w.export(spa).await;
    });
}
