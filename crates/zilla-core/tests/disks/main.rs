//! Disks of a pool come, go, return and are replaced: what they missed is known and given to them,
//! and then any other may go.

mod creating;
mod draid;
mod expansion;
mod missed;
mod rebuild;
mod removal;
mod spares;
mod splitting;
mod upkeep;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use zilla_core::error::{Errno, Error};
use zilla_core::spa::{Attach, CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevAux, VdevKind, VdevState};
use zilla_core::zpl::{Cred, FsProps, NewFile, Unlimited, Zfs};
use zilla_env::{Env, real_env};
use zilla_ondisk::enums::{PoolState, ScanFunc, ScanState};
use zilla_testkit::zdb_clean;

const SIZE: u64 = 80 << 20;
const RAIDZ1: VdevKind = VdevKind::Raidz { nparity: 1 };
const REPLACE: Attach = Attach { replace: true, ashift: None, spare: None, sequential: false };
const ATTACH: Attach = Attach { replace: false, ashift: None, spare: None, sequential: false };

struct World {
    env: Env,
    dir: tempfile::TempDir,
}

fn options() -> CreateOpts {
    CreateOpts {
        name: "tank".into(),
        host: Host { id: 0x1234, name: "here".into() },
        comment: None,
        owner: (0, 0),
        features: None,
        dbuf_cache: 8 << 20,
        arc_max: 16 << 20,
    }
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("away")).unwrap();
        World { env: real_env(2), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn sized(&self, name: &str, size: u64) -> LeafSpec {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        LeafSpec { path, disk: false }
    }

    fn leaf(&self, name: &str) -> LeafSpec {
        self.sized(name, SIZE)
    }

    async fn create(&self, kind: VdevKind, names: &[&str]) -> Arc<Spa> {
        let leaves = names.iter().map(|n| self.leaf(n)).collect();
        let top = TopSpec { kind, leaves, is_log: false, bias: None, ashift: Some(9) };
        let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
        Spa::create(&self.env, &spec, options()).await.unwrap()
    }

    async fn import(&self) -> Result<Arc<Spa>, Error> {
        let found = discover(&self.env, &[self.dir.path().to_owned()]).await?;
        let opts = OpenOpts {
            host: Host { id: 0x1234, name: "here".into() },
            dbuf_cache: 8 << 20,
            arc_max: 16 << 20,
            ..OpenOpts::default()
        };
        Spa::open(&self.env, &found[0], opts).await
    }

    async fn export(&self, spa: Arc<Spa>) {
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(self.dir.path(), "tank");
    }

    async fn turn(&self, spa: Arc<Spa>) -> Arc<Spa> {
        self.export(spa).await;
        self.import().await.unwrap()
    }

    fn take(&self, name: &str) {
        std::fs::rename(self.path(name), self.path("away").join(name)).unwrap();
    }

    fn give_back(&self, name: &str) {
        std::fs::rename(self.path("away").join(name), self.path(name)).unwrap();
    }

    async fn zfs(&self, spa: &Arc<Spa>) -> Arc<Zfs> {
        let ds = spa.dsl.by_name("tank").await.unwrap();
        let os = spa.dsl.objset(&ds).await.unwrap();
        let txgs = (!spa.ctx.readonly).then(|| spa.ctx.txgs.clone());
        Zfs::open(self.env.clone(), os, txgs, Arc::new(Unlimited), FsProps::default()).await.unwrap()
    }

    async fn put(&self, spa: &Arc<Spa>, range: std::ops::Range<u32>) {
        let zfs = self.zfs(spa).await;
        for i in range {
            let new = NewFile::new(0o100644, Cred::default());
            let (h, _) = zfs.create(zfs.root(), format!("f{i}").as_bytes(), new).await.unwrap();
            zfs.write(h.id(), 0, &contents(i).into(), false).await.unwrap();
        }
        spa.sync().await.unwrap();
    }

    async fn check(&self, spa: &Arc<Spa>, range: std::ops::Range<u32>) {
        let zfs = self.zfs(spa).await;
        for i in range {
            let (h, a) = zfs.lookup(zfs.root(), format!("f{i}").as_bytes()).await.unwrap();
            let data = zfs.read(h.id(), 0, a.size as usize).await.unwrap();
            assert!(data.concat() == contents(i), "f{i}");
        }
    }

    /// Waits until nobody lacks anything and nothing is being replaced.
    async fn whole(&self, spa: &Arc<Spa>) {
        for _ in 0..12_000 {
            let tree = spa.tree();
            let behind = tree.pool_leaves().any(|l| !l.dtl.is_empty());
            let replacing = tree.root.walk().iter().any(|v| v.kind == VdevKind::Replacing);
            if !behind && !replacing && !spa.scan().unwrap().is_scanning() {
                spa.sync().await.unwrap();
                return;
            }
            self.env.sleep(Duration::from_millis(10)).await;
        }
        let dtls: Vec<_> = spa.tree().pool_leaves().map(|l| (l.path(), l.state(), l.dtl.ranges())).collect();
        panic!("it does not become whole: {dtls:?} {:?}", spa.scan().unwrap().status());
    }

    /// Everything reads without each of these in turn.
    async fn without_each(&self, names: &[&str], files: u32) {
        for name in names {
            self.take(name);
            let found = discover(&self.env, &[self.dir.path().to_owned()]).await.unwrap();
            let opts =
                OpenOpts { readonly: true, dbuf_cache: 8 << 20, arc_max: 16 << 20, ..OpenOpts::default() };
            let spa = Spa::open(&self.env, &found[0], opts).await.unwrap();
            self.check(&spa, 0..files).await;
            spa.close(None).await.unwrap();
            self.give_back(name);
        }
    }
}

fn contents(i: u32) -> Vec<u8> {
    (0..i * 900 + 1).map(|x| ((x * 7 + i) % 251) as u8 ^ (x / 300) as u8).collect()
}

fn guid(spa: &Spa, path: &Path) -> u64 {
    let walk = spa.tree().root.walk();
    let found = walk.iter().find(|v| v.leaf.as_ref().is_some_and(|l| Path::new(&l.path()) == path));
    found.unwrap_or_else(|| panic!("{} is not in the pool", path.display())).guid
}

/// The tree: kinds, and names of leaves.
fn shape(spa: &Spa) -> String {
    fn of(v: &zilla_core::vdev::Vdev) -> String {
        match &v.leaf {
            Some(l) => Path::new(&l.path()).file_name().unwrap().to_string_lossy().into_owned(),
            None => {
                let below: Vec<String> = v.children.iter().map(|c| of(c)).collect();
                format!("{}({})", v.kind.type_name(), below.join(" "))
            }
        }
    }
    spa.tree().root.children.iter().map(|v| of(v)).collect::<Vec<_>>().join(" ")
}

fn is_resilver(spa: &Spa, state: ScanState) -> bool {
    let s = spa.scan().unwrap().status();
    s.func == ScanFunc::Resilver as u64 && s.state == state as u64
}

/// A disk that was missing at an import gets what it missed at the next, and any other may go
/// afterwards.
fn missing_at_import(kind: VdevKind, names: &[&str], lost: &str) {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(kind, names).await;
        w.put(&spa, 0..20).await;
        w.export(spa).await;
        w.take(lost);
        let spa = w.import().await.unwrap();
        w.put(&spa, 20..60).await;
        w.export(spa).await;
        w.give_back(lost);
        let spa = w.import().await.unwrap();
        w.whole(&spa).await;
        assert!(is_resilver(&spa, ScanState::Finished));
        let s = spa.scan().unwrap().status();
        assert!(s.processed > 0 && s.errors == 0);
        w.export(spa).await;
        w.without_each(names, 60).await;
    });
}

#[test]
fn a_side_that_missed_an_import_is_resilvered() {
    missing_at_import(VdevKind::Mirror, &["a", "b"], "b");
    missing_at_import(VdevKind::Mirror, &["a", "b", "c"], "a");
}

#[test]
fn a_raidz_column_that_missed_an_import_is_resilvered() {
    missing_at_import(RAIDZ1, &["a", "b", "c"], "c");
}

/// What no DTL tells, because whoever had the pool meanwhile could not write one, the labels do.
fn older_copy(kind: VdevKind, names: &[&str], old: &str) {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(kind, names).await;
        w.put(&spa, 0..20).await;
        w.export(spa).await;
        std::fs::copy(w.path(old), w.path("away").join(old)).unwrap();
        let spa = w.import().await.unwrap();
        w.put(&spa, 20..60).await;
        w.export(spa).await;
        w.give_back(old);
        let spa = w.import().await.unwrap();
        w.whole(&spa).await;
        assert!(is_resilver(&spa, ScanState::Finished));
        w.check(&spa, 0..60).await;
        let tree = spa.tree();
        let counts = tree.leaves.iter().map(|l| l.checksum_errors.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(counts.sum::<u64>(), 0, "nothing is asked of a device that is known to lack it");
        w.export(spa).await;
        w.without_each(names, 60).await;
    });
}

#[test]
fn a_disk_with_an_older_state_is_known_by_its_labels() {
    older_copy(VdevKind::Mirror, &["a", "b"], "a");
    older_copy(RAIDZ1, &["a", "b", "c"], "b");
}

#[test]
fn a_disk_that_comes_back_by_itself_is_taken_in() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::Mirror, &["a", "b"]).await;
        w.put(&spa, 0..10).await;
        w.export(spa).await;
        w.take("b");
        let spa = w.import().await.unwrap();
        assert_eq!(spa.tree().root.state().0, VdevState::Degraded);
        w.put(&spa, 10..40).await;
        w.give_back("b");
        w.whole(&spa).await;
        assert_eq!(spa.tree().root.state().0, VdevState::Healthy);
        w.export(spa).await;
        w.without_each(&["a", "b"], 40).await;
    });
}

#[test]
fn online_and_restart_give_a_disk_what_it_missed() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(RAIDZ1, &["a", "b", "c"]).await;
        let b = guid(&spa, &w.path("b"));
        w.put(&spa, 0..10).await;
        spa.offline(b, false, false).await.unwrap();
        w.put(&spa, 10..30).await;
        spa.online(b, false).await.unwrap();
        w.whole(&spa).await;
        // Until the next import only, so that the import brings it back.
        spa.offline(b, true, false).await.unwrap();
        w.put(&spa, 30..50).await;
        let spa = w.turn(spa).await;
        w.whole(&spa).await;
        w.export(spa).await;
        w.without_each(&["a", "b", "c"], 50).await;
    });
}

#[test]
fn a_disk_that_was_called_faulty_is_so_until_it_is_cleared() {
    let w = World::new();
    w.env.clone().block_on(async {
        let mut spa = w.create(RAIDZ1, &["a", "b", "c"]).await;
        let b = guid(&spa, &w.path("b"));
        let state = |spa: &Spa| spa.tree().find(b).unwrap().state();
        for (lasting, files) in [(true, 0..10), (false, 10..20)] {
            spa.offline(b, !lasting, true).await.unwrap();
            w.put(&spa, files).await;
            let faulted = (VdevState::Faulted, VdevAux::External);
            assert_eq!(spa.online(b, false).await.unwrap(), faulted);
            spa.reopen().await.unwrap();
            assert_eq!(state(&spa), faulted);
            // Taken offline besides.
            spa.offline(b, !lasting, false).await.unwrap();
            assert_eq!(state(&spa), faulted);
            spa.clear(Some(b)).await.unwrap();
            assert_eq!(state(&spa).0, VdevState::Offline);
            spa.offline(b, !lasting, true).await.unwrap();
            assert_eq!(spa.online(b, false).await.unwrap(), faulted);
            if lasting {
                spa = w.turn(spa).await;
                assert_eq!(state(&spa), faulted);
            }
            spa.clear(Some(b)).await.unwrap();
            assert_eq!(state(&spa).0, VdevState::Healthy);
            w.whole(&spa).await;
        }
        w.export(spa).await;
        w.without_each(&["a", "b", "c"], 20).await;
    });
}

#[test]
fn a_single_disk_becomes_a_mirror_and_one_again() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..40).await;
        let a = guid(&spa, &w.path("a"));
        spa.attach(a, &w.leaf("b"), ATTACH).await.unwrap();
        let busy = spa.detach(a).await;
        assert!(busy.is_err_and(|e| e.is(Errno::Busy)) || !spa.scan().unwrap().is_scanning());
        w.whole(&spa).await;
        assert_eq!(shape(&spa), "mirror(a b)");
        w.export(spa).await;
        w.without_each(&["a", "b"], 40).await;
        let spa = w.import().await.unwrap();
        spa.attach(a, &w.leaf("c"), ATTACH).await.unwrap();
        w.put(&spa, 40..50).await;
        w.whole(&spa).await;
        assert_eq!(shape(&spa), "mirror(a b c)");
        spa.detach(a).await.unwrap();
        let spa = w.turn(spa).await;
        let top = spa.tree().tops[0].vdev.guid;
        spa.detach(guid(&spa, &w.path("b"))).await.unwrap();
        assert_eq!(shape(&spa), "c");
        assert_eq!(guid(&spa, &w.path("c")), top, "what is left of a mirror has its guid");
        w.put(&spa, 50..60).await;
        let spa = w.turn(spa).await;
        w.check(&spa, 0..60).await;
        assert_eq!(shape(&spa), "c");
        w.export(spa).await;
    });
}

#[test]
fn a_resilver_begins_in_the_txg_behind_the_one_that_attaches() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::File, &["a"]).await;
        w.put(&spa, 0..40).await;
        spa.sync().await.unwrap();
        let before = spa.ctx.txgs.synced().0;
        spa.attach(guid(&spa, &w.path("a")), &w.leaf("b"), ATTACH).await.unwrap();
        // Unless it is over already.
        assert!(spa.scan().unwrap().resilvers_up_to().is_none_or(|txg| txg == before + 2));
        w.whole(&spa).await;
        w.export(spa).await;
        w.without_each(&["a", "b"], 40).await;
    });
}

#[test]
fn disks_are_replaced_and_a_replacement_goes_on_after_an_import() {
    for (kind, names) in [(RAIDZ1, &["a", "b", "c"][..]), (VdevKind::File, &["a"])] {
        let w = World::new();
        w.env.clone().block_on(async {
            let spa = w.create(kind, names).await;
            w.put(&spa, 0..60).await;
            let before = shape(&spa);
            spa.attach(guid(&spa, &w.path("a")), &w.leaf("n"), REPLACE).await.unwrap();
            w.put(&spa, 60..65).await;
            let spa = w.turn(spa).await;
            w.whole(&spa).await;
            assert_eq!(shape(&spa), before.replace('a', "n").replace("rnidz", "raidz"));
            w.put(&spa, 65..70).await;
            w.export(spa).await;
            std::fs::remove_file(w.path("a")).unwrap();
            let now: Vec<&str> = names.iter().map(|n| if *n == "a" { "n" } else { n }).collect();
            if names.len() > 1 {
                w.without_each(&now, 70).await;
            }
            let spa = w.import().await.unwrap();
            w.check(&spa, 0..70).await;
            w.export(spa).await;
        });
    }
}

#[test]
fn what_is_being_replaced_is_not_counted_on_when_others_are_called_faulty() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::Raidz { nparity: 2 }, &["a", "b", "c", "d", "e"]).await;
        w.put(&spa, 0..20).await;
        spa.attach(guid(&spa, &w.path("e")), &w.leaf("n"), REPLACE).await.unwrap();
        spa.offline(guid(&spa, &w.path("n")), false, false).await.unwrap();
        let state = |name: &str| {
            let leaf = spa.tree().find(guid(&spa, &w.path(name))).unwrap();
            leaf.state().0
        };
        for name in ["a", "b"] {
            spa.offline(guid(&spa, &w.path(name)), true, true).await.unwrap();
        }
        assert_eq!([state("a"), state("b")], [VdevState::Faulted, VdevState::Degraded]);
        w.check(&spa, 0..20).await;
        let refused = spa.offline(guid(&spa, &w.path("c")), true, false).await;
        assert!(refused.is_ok(), "who is taken away by its owner is one more: {refused:?}");
        let last = spa.offline(guid(&spa, &w.path("d")), true, false).await.unwrap_err();
        assert!(last.is(Errno::Busy), "{last}");
        for name in ["a", "b", "c", "n"] {
            spa.online(guid(&spa, &w.path(name)), false).await.unwrap();
        }
        assert_eq!([state("a"), state("b")], [VdevState::Faulted, VdevState::Degraded], "until cleared");
        spa.clear(None).await.unwrap();
        assert_eq!([state("a"), state("b")], [VdevState::Healthy; 2]);
        w.whole(&spa).await;
        assert_eq!(shape(&spa), "raidz(a b c d n)");
        w.check(&spa, 0..20).await;
        w.export(spa).await;
    });
}

#[test]
fn a_missing_disk_is_replaced() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(RAIDZ1, &["a", "b", "c"]).await;
        w.put(&spa, 0..40).await;
        w.export(spa).await;
        w.take("b");
        let spa = w.import().await.unwrap();
        w.put(&spa, 40..50).await;
        spa.attach(guid(&spa, &w.path("b")), &w.leaf("n"), REPLACE).await.unwrap();
        w.whole(&spa).await;
        assert_eq!(shape(&spa), "raidz(a n c)");
        w.export(spa).await;
        w.without_each(&["a", "n", "c"], 50).await;
    });
}

#[test]
fn what_cannot_be_is_refused() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(VdevKind::Mirror, &["a", "b"]).await;
        let a = guid(&spa, &w.path("a"));
        let small = spa.attach(a, &w.sized("s", SIZE - (14 << 20)), ATTACH).await.unwrap_err();
        assert!(small.is(Errno::Overflow), "{small}");
        let other = spa.attach(a, &w.leaf("n"), Attach { ashift: Some(12), ..ATTACH }).await.unwrap_err();
        assert!(other.is(Errno::Dom), "{other}");
        spa.detach(a).await.unwrap();
        let last = spa.detach(guid(&spa, &w.path("b"))).await.unwrap_err();
        assert!(last.is(Errno::NotSup), "{last}");
        assert_eq!(shape(&spa), "b");
        w.export(spa).await;
    });
}
