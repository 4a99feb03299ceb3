//! Datasets of a real pool on files: made, written, snapshotted, cloned, promoted, rolled back and
//! destroyed; OpenZFS's zdb (where it is installed) then accounts for every block.

use futures_util::future::BoxFuture;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use zilla_core::dsl::{DslPool, LongHold, Setting};
use zilla_core::error::{Errno, Result};
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::txg::Tx;
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zap::Value;
use zilla_core::zio::Leave;
use zilla_core::zpl::{self, Cred, FsProps, NewFile, Space, Time, Unlimited, Zfs, ZplProps};
use zilla_env::Env;
use zilla_ondisk::enums::{ObjsetType, PoolState};
use zilla_testkit::{zdb_clean, zdb_of};

struct Pool {
    env: Env,
    spa: Arc<Spa>,
}

type Op<T> = Box<dyn FnOnce(Arc<DslPool>, Tx) -> BoxFuture<'static, Result<T>> + Send>;

impl Pool {
    async fn create(env: &Env, dir: &Path) -> Pool {
        let leaves = (0..2).map(|i| {
            let path = dir.join(format!("d{i}.img"));
            std::fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
            LeafSpec { path, disk: false }
        });
        let top = TopSpec {
            kind: VdevKind::Mirror,
            leaves: leaves.collect(),
            is_log: false,
            bias: None,
            ashift: None,
        };
        let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
        let opts = CreateOpts {
            name: "tank".into(),
            host: Host { id: 0x1234, name: "host".into() },
            comment: None,
            owner: (0, 0),
            features: None,
            dbuf_cache: 32 << 20,
            arc_max: 64 << 20,
        };
        Pool { env: env.clone(), spa: Spa::create(env, &spec, opts).await.unwrap() }
    }

    async fn open(env: &Env, dir: &Path) -> Pool {
        let found = discover(env, &[dir.to_owned()]).await.unwrap();
        let opts = OpenOpts { force: true, dbuf_cache: 32 << 20, arc_max: 64 << 20, ..OpenOpts::default() };
        Pool { env: env.clone(), spa: Spa::open(env, &found[0], opts).await.unwrap() }
    }

    async fn export(self) {
        self.spa.close(Some(PoolState::Exported)).await.unwrap();
    }

    async fn task<T: Send + 'static>(&self, op: Op<T>) -> Result<T> {
        let dsl = self.spa.dsl.clone();
        self.spa.ctx.sync_task(move |tx| op(dsl, tx)).await
    }

    async fn create_fs(&self, name: &'static str) {
        let wall = self.env.wall();
        let op: Op<()> = Box::new(move |dsl, tx| {
            Box::pin(async move {
                let ds = dsl.create_fs(&tx, name, ObjsetType::Zfs, 0).await?;
                let os = dsl.objset(&ds).await?;
                zpl::create_fs(
                    &os,
                    &tx,
                    &ZplProps::new(0, 0, Time { sec: wall.as_secs() as i64, nsec: wall.subsec_nanos() }),
                )
                .await
            })
        });
        self.task(op).await.unwrap();
    }

    async fn snapshot(&self, name: &'static str) {
        let op: Op<()> = Box::new(move |dsl, tx| {
            Box::pin(async move { dsl.snapshot(&tx, &[name.to_owned()]).await.map(drop) })
        });
        self.task(op).await.unwrap();
    }

    async fn mount(&self, name: &str) -> Arc<Zfs> {
        let ds = self.spa.dsl.by_name(name).await.unwrap();
        let os = self.spa.dsl.objset(&ds).await.unwrap();
        let txgs = (!ds.is_snapshot()).then(|| self.spa.ctx.txgs.clone());
        Zfs::open(self.env.clone(), os, txgs, Arc::new(Unlimited), FsProps::default()).await.unwrap()
    }

    /// Files `first..first + n`, each with its own contents of `version`.
    async fn fill(&self, fs: &str, first: usize, n: usize, version: u8) {
        let zfs = self.mount(fs).await;
        for i in first..first + n {
            let name = format!("file{i}").into_bytes();
            let h = match zfs.lookup(zfs.root(), &name).await {
                Ok((h, _)) => h,
                Err(_) => {
                    let cred = Cred { uid: 100 + i as u32 % 3, gid: 8 };
                    zfs.create(zfs.root(), &name, NewFile::new(0o100644, cred)).await.unwrap().0
                }
            };
            zfs.write(h.id(), 0, &contents(i, version).into(), false).await.unwrap();
        }
        self.spa.sync().await.unwrap();
    }

    async fn expect(&self, fs: &str, i: usize, version: u8) {
        let zfs = self.mount(fs).await;
        let (h, a) = zfs.lookup(zfs.root(), format!("file{i}").as_bytes()).await.unwrap();
        let want = contents(i, version);
        assert_eq!(a.size, want.len() as u64);
        let got = zfs.read(h.id(), 0, want.len()).await.unwrap().concat();
        assert!(got == want, "{fs}: file{i} is not of version {version}");
    }
}

fn contents(i: usize, version: u8) -> Vec<u8> {
    (0..2000 + i * 900).map(|x| ((x * 7 + i) % 251) as u8 ^ (x / 300) as u8 ^ version).collect()
}

/// OpenZFS counts features' uses, too.
fn counted(dir: &Path, pool: &str) {
    let Some(text) = zdb_of(dir, pool, &["-d"]) else { return };
    assert!(!text.contains("mismatch"), "{text}");
}

#[test]
fn a_life_of_datasets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let env = zilla_env::real_env(2);
    let run = |f: BoxFuture<'_, ()>| {
        env.block_on(f);
        zdb_clean(&path, "tank");
        counted(&path, "tank");
    };
    run(Box::pin(async {
        let p = Pool::create(&env, &path).await;
        p.create_fs("tank/a").await;
        p.create_fs("tank/a/b").await;
        p.fill("tank/a", 0, 60, 1).await;
        p.snapshot("tank/a@one").await;
        p.fill("tank/a", 10, 20, 2).await;
        p.snapshot("tank/a@two").await;
        p.fill("tank/a", 20, 60, 3).await;
        p.export().await;
    }));
    run(Box::pin(async {
        let p = Pool::open(&env, &path).await;
        p.expect("tank/a@one", 15, 1).await;
        p.expect("tank/a@two", 25, 2).await;
        p.expect("tank/a", 25, 3).await;
        let op: Op<()> = Box::new(|dsl, tx| {
            Box::pin(async move { dsl.clone_ds(&tx, "tank/clone", "tank/a@two").await.map(drop) })
        });
        p.task(op).await.unwrap();
        p.fill("tank/clone", 0, 30, 7).await;
        p.snapshot("tank/clone@x").await;
        p.fill("tank/clone", 5, 10, 8).await;
        let op: Op<()> = Box::new(|dsl, tx| {
            Box::pin(async move {
                let ds = dsl.by_name("tank/a/b").await?;
                let set = [("compression".to_owned(), Setting::Local(Value::u64(2)))];
                dsl.set_props(&tx, &ds, &set).await
            })
        });
        p.task(op).await.unwrap();
        p.fill("tank/a/b", 0, 40, 1).await;
        p.export().await;
    }));
    run(Box::pin(async {
        let p = Pool::open(&env, &path).await;
        p.expect("tank/clone", 6, 8).await;
        p.expect("tank/clone@x", 6, 7).await;
        p.expect("tank/a", 25, 3).await;
        let op: Op<()> = Box::new(|dsl, tx| Box::pin(async move { dsl.promote(&tx, "tank/clone").await }));
        p.task(op).await.unwrap();
        let op: Op<()> = Box::new(|dsl, tx| {
            Box::pin(async move { dsl.destroy_snapshots(&tx, &["tank/clone@one".into()], false).await })
        });
        p.task(op).await.unwrap();
        p.export().await;
    }));
    run(Box::pin(async {
        let p = Pool::open(&env, &path).await;
        p.expect("tank/clone@two", 25, 2).await;
        let op: Op<()> =
            Box::new(|dsl, tx| Box::pin(async move { dsl.rollback(&tx, "tank/clone", None).await }));
        p.task(op).await.unwrap();
        p.expect("tank/clone", 6, 7).await;
        let op: Op<()> =
            Box::new(|dsl, tx| Box::pin(async move { dsl.rename(&tx, "tank/a/b", "tank/b").await }));
        p.task(op).await.unwrap();
        let op: Op<()> = Box::new(|dsl, tx| Box::pin(async move { dsl.destroy_head(&tx, "tank/a").await }));
        p.task(op).await.unwrap();
        p.export().await;
    }));
    run(Box::pin(async {
        let p = Pool::open(&env, &path).await;
        for _ in 0..3 {
            p.spa.sync().await.unwrap();
        }
        p.expect("tank/b", 6, 1).await;
        assert_eq!(p.spa.dsl.freeing().await.unwrap().used, 0);
        p.export().await;
    }));
}

/// A dataset's limits, as whoever mounts it passes them on.
struct Limits(Arc<DslPool>, LongHold);

impl Space for Limits {
    fn usage(&self) -> (u64, u64) {
        let (used, free, _) = self.0.dataset_space(self.1.dataset());
        (used, free)
    }
    fn admit(&self, tx: &Tx, bytes: u64, frees: bool) -> Result<()> {
        self.0.reserve(self.1.dataset(), tx, bytes, frees)
    }
    fn hold_room(&self, tx: &Tx, space: u64, leave: Leave) -> Result<()> {
        self.0.hold_room(tx, space, leave)
    }
    fn need_feature(&self, name: &'static str) {
        self.1.dataset().will_need_feature(name);
    }
}

/// Writes files of random bytes until there is an error; how many MiB went, and which error.
async fn fill_up(zfs: &Arc<Zfs>, env: &Env, tag: &str) -> (usize, Errno) {
    let mut data = vec![0u8; 1 << 20];
    for i in 0.. {
        env.rng.fill(&mut data);
        let cred = Cred { uid: 1, gid: 1 };
        let name = format!("{tag}{i}");
        let made = zfs.create(zfs.root(), name.as_bytes(), NewFile::new(0o100644, cred)).await;
        let wrote = match made {
            Ok((h, _)) => zfs.write(h.id(), 0, &data.clone().into(), false).await.map(drop),
            Err(e) => Err(e),
        };
        if let Err(e) = wrote {
            return (i, e.errno());
        }
    }
    unreachable!("no limit")
}

#[test]
fn limits_hold_and_deleting_works() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(Box::pin(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        let op: Op<()> = Box::new(|dsl, tx| {
            Box::pin(async move {
                let ds = dsl.by_name("tank/a").await?;
                dsl.set_props(&tx, &ds, &[("quota".to_owned(), Setting::Local(Value::u64(10 << 20)))]).await
            })
        });
        p.task(op).await.unwrap();
        let dsl = p.spa.dsl.clone();
        let mount = async |name: &str| {
            let ds = dsl.by_name(name).await.unwrap();
            let os = dsl.objset(&ds).await.unwrap();
            let limits = Arc::new(Limits(dsl.clone(), ds.hold()));
            Zfs::open(env.clone(), os, Some(p.spa.ctx.txgs.clone()), limits, FsProps::default())
                .await
                .unwrap()
        };
        let a = mount("tank/a").await;
        let (n, why) = fill_up(&a, &env, "x").await;
        assert!(why == Errno::DQuot && (9..13).contains(&n), "{n} {why:?}");
        a.unlink(a.root(), b"x0").await.unwrap();
        a.unlink(a.root(), b"x1").await.unwrap();
        a.unlink(a.root(), b"x2").await.unwrap();
        for _ in 0..2 {
            p.spa.sync().await.unwrap();
        }
        assert!(fill_up(&a, &env, "y").await.0 >= 1);
        // Now the pool itself.
        let root = mount("tank").await;
        let (n, why) = fill_up(&root, &env, "z").await;
        assert!(why == Errno::NoSpc && n > 30, "{n} {why:?}");
        for i in 0..n {
            root.unlink(root.root(), format!("z{i}").as_bytes()).await.unwrap();
        }
        for _ in 0..4 {
            p.spa.sync().await.unwrap();
        }
        assert!(fill_up(&root, &env, "w").await.0 + 2 > n);
        drop((a, root));
        p.export().await;
    }));
    zdb_clean(dir.path(), "tank");
}

#[test]
fn limits_that_are_set_together_are_held_against_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(Box::pin(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        let set = async |all: [(&str, u64); 2]| {
            let all = all.map(|(n, mib)| (n.to_owned(), Setting::Local(Value::u64(mib << 20))));
            let op: Op<()> = Box::new(move |dsl, tx| {
                Box::pin(async move { dsl.set_props(&tx, &dsl.by_name("tank/a").await?, &all).await })
            });
            p.task(op).await
        };
        for (limit, reserved) in [("quota", "reservation"), ("refquota", "refreservation")] {
            set([(limit, 40), (reserved, 30)]).await.unwrap();
            set([(reserved, 35), (limit, 38)]).await.unwrap();
            set([(limit, 20), (reserved, 10)]).await.unwrap();
            assert!(set([(limit, 15), (reserved, 18)]).await.is_err(), "{limit} below {reserved}");
            set([(limit, 0), (reserved, 0)]).await.unwrap();
        }
        p.export().await;
    }));
    zdb_clean(dir.path(), "tank");
}

/// Pools that OpenZFS made, from the folder `ZILLA_CORPUS` names: everything is looked at, changed,
/// and left in order.
#[test]
fn datasets_of_openzfs() {
    let Ok(corpus) = std::env::var("ZILLA_CORPUS") else { return };
    let env = zilla_env::real_env(2);
    let mut sets: Vec<_> = std::fs::read_dir(corpus).unwrap().flatten().map(|e| e.path()).collect();
    sets.sort();
    for set in sets {
        if std::env::var("ZILLA_SET").is_ok_and(|s| !set.ends_with(s)) {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        for e in std::fs::read_dir(&set)
            .unwrap()
            .flatten()
            .filter(|e| e.path().extension().is_some_and(|x| x == "img"))
        {
            Command::new("cp").arg("--sparse=always").arg(e.path()).arg(dir.path()).status().unwrap();
        }
        println!("{}", set.display());
        let name = env.block_on(change_everything(&env, dir.path()));
        zdb_clean(dir.path(), &name);
        counted(dir.path(), &name);
    }
}

async fn change_everything(env: &Env, dir: &Path) -> String {
    let p = Pool::open(env, dir).await;
    let dsl = p.spa.dsl.clone();
    let (mut heads, mut todo) = (Vec::new(), vec![dsl.root_dir()]);
    while let Some(d) = todo.pop() {
        todo.extend(dsl.child_dirs(&d).await.unwrap());
        heads.push(dsl.head(&d).await.unwrap());
    }
    heads.sort_by_key(|h| h.name());
    for h in &heads {
        for ds in dsl.snapshots(h).await.unwrap().iter().chain([h]) {
            let i = dsl.info(ds).await.unwrap();
            println!(
                "  {} used {} refer {} avail {} origin {:?}",
                i.name, i.used, i.referenced, i.available, i.origin
            );
            for (name, v) in dsl.all_props(ds).await.unwrap() {
                println!("    {name} {:?} {:?}", v.value, v.source);
            }
        }
    }
    for h in &heads {
        let os = dsl.objset(h).await.unwrap();
        if os.os_type() != ObjsetType::Zfs.number()
            || os.is_encrypted()
            || zilla_core::zil::needs_replay(&os.phys().zil_header)
        {
            continue;
        }
        let name = h.name();
        let snap: Vec<String> = vec![format!("{name}@zilla1")];
        let (s1, s2, s3) = (snap.clone(), vec![format!("{name}@zilla2")], snap);
        p.task::<()>(Box::new(move |d, tx| Box::pin(async move { d.snapshot(&tx, &s1).await.map(drop) })))
            .await
            .unwrap();
        p.fill(&name, 0, 20, 1).await;
        p.task::<()>(Box::new(move |d, tx| Box::pin(async move { d.snapshot(&tx, &s2).await.map(drop) })))
            .await
            .unwrap();
        p.fill(&name, 10, 20, 2).await;
        let op: Op<()> =
            Box::new(move |d, tx| Box::pin(async move { d.destroy_snapshots(&tx, &s3, false).await }));
        p.task(op).await.unwrap();
        p.expect(&name, 12, 2).await;
        p.expect(&format!("{name}@zilla2"), 12, 1).await;
    }
    // Clones first, as they hold their origins; what has children or snapshots stays.
    for h in heads.iter().rev() {
        for s in dsl.snapshots(h).await.unwrap().iter().rev() {
            let name = s.name();
            let op: Op<()> = Box::new(move |d, tx| {
                Box::pin(async move { d.destroy_snapshots(&tx, &[name], false).await })
            });
            if let Err(e) = p.task(op).await {
                println!("  {}: {e}", s.name());
            }
        }
        let name = h.name();
        let op: Op<()> = Box::new(move |d, tx| Box::pin(async move { d.destroy_head(&tx, &name).await }));
        if let Err(e) = p.task(op).await {
            println!("  {}: {e}", h.name());
        }
    }
    for _ in 0..3 {
        p.spa.sync().await.unwrap();
    }
    let name = p.spa.name();
    p.export().await;
    name
}
