//! Log devices that die, come back, are taken away and added while files are made stable: no fsync
//! fails, nothing acknowledged is lost, and the pool goes on.

use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use zilla_core::error::{Errno, Result};
use zilla_core::spa::{Attach, CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind, VdevState};
use zilla_core::zpl::{Cred, NewFile, Zfs};
use zilla_env::model::{ModelDevice, Profile};
use zilla_env::{BoxFuture, Device, DirEntry, Env, OpenMode, Opener};
use zilla_sim::pool::run::open_fs;
use zilla_sim::{CrashPolicy, DiskConfig, Sim, SimConfig, Survivors};

const WORKERS: usize = 3;
const BLOCK: usize = 4096;

fn host() -> Host {
    Host { id: 0x51e, name: "simulated".into() }
}

fn leaf(name: &str) -> LeafSpec {
    LeafSpec { path: Path::new("/disks").join(name), disk: true }
}

fn top(names: &[&str], is_log: bool) -> TopSpec {
    let kind = if names.len() > 1 { VdevKind::Mirror } else { VdevKind::Disk };
    TopSpec { kind, leaves: names.iter().map(|n| leaf(n)).collect(), is_log, bias: None, ashift: Some(12) }
}

async fn create(env: &Env, log: &[&str]) -> Result<Arc<Spa>> {
    create_with(env, vec![top(log, true)]).await
}

async fn create_with(env: &Env, mut tops: Vec<TopSpec>) -> Result<Arc<Spa>> {
    tops.insert(0, top(&["d0"], false));
    let spec = PoolSpec { tops, ..PoolSpec::default() };
    let opts = CreateOpts {
        name: "tank".into(),
        host: host(),
        comment: None,
        owner: (0, 0),
        features: None,
        dbuf_cache: 2 << 20,
        arc_max: 16 << 20,
    };
    Spa::create(env, &spec, opts).await
}

async fn import(env: &Env, missing_log: bool) -> Result<Arc<Spa>> {
    let found = discover(env, &["/disks".into()]).await?;
    let opts =
        OpenOpts { missing_log, host: host(), dbuf_cache: 2 << 20, arc_max: 16 << 20, ..OpenOpts::default() };
    Spa::open(env, &found[0], opts).await
}

fn world(seed: u64) -> Sim {
    let sim = Sim::new(seed);
    sim.add_disk("/disks/d0", 128 << 20);
    for log in ["l0", "l1", "l2"] {
        sim.add_disk(Path::new("/disks").join(log), 80 << 20);
    }
    sim
}

fn block(worker: usize, n: u64) -> Bytes {
    Bytes::from(vec![(worker as u8 + 1).wrapping_mul(31) ^ n as u8; BLOCK])
}

/// Files that grow by a block and an fsync at a time.
struct Work {
    acked: [AtomicU64; WORKERS],
    stop: AtomicBool,
}

impl Work {
    /// Starts the workers; each ends when it is told to, with an error if an fsync had one.
    async fn start(
        env: &Env,
        zfs: &Arc<Zfs>,
    ) -> Result<(Arc<Work>, Vec<zilla_env::BoxFuture<'static, Result<()>>>)> {
        let work = Arc::new(Work { acked: Default::default(), stop: AtomicBool::new(false) });
        let mut tasks: Vec<zilla_env::BoxFuture<'static, Result<()>>> = Vec::new();
        for w in 0..WORKERS {
            let new = NewFile::new(0o100644, Cred::default());
            let (file, _) = zfs.create(zfs.root(), format!("w{w}").as_bytes(), new).await?;
            let (zfs, work, env2) = (zfs.clone(), work.clone(), env.clone());
            let task = env.spawn_with_result(async move {
                let mut n = 0;
                while !work.stop.load(Ordering::Relaxed) {
                    zfs.write(file.id(), n * BLOCK as u64, &block(w, n), false).await?;
                    zfs.fsync(file.id()).await?;
                    n += 1;
                    work.acked[w].store(n, Ordering::Relaxed);
                    env2.sleep(Duration::from_micros(env2.random_below(800))).await;
                }
                Ok(())
            });
            tasks.push(Box::pin(task));
        }
        Ok((work, tasks))
    }

    async fn end(&self, tasks: Vec<zilla_env::BoxFuture<'static, Result<()>>>) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await?;
        }
        Ok(())
    }

    fn acked(&self) -> Vec<u64> {
        self.acked.iter().map(|a| a.load(Ordering::Relaxed)).collect()
    }
}

/// The pool comes back in a world of its own, with everything that was acknowledged.
fn comes_back(left: &Survivors, seed: u64, acked: &[u64]) {
    let sim = left.boot(seed);
    let env = sim.env();
    sim.block_on(async {
        let spa = import(&env, false).await.unwrap();
        check(&env, &spa, acked).await;
    });
}

/// Every acknowledged block is there.
async fn check(env: &Env, spa: &Arc<Spa>, acked: &[u64]) {
    let zfs = open_fs(env, spa, "tank").await.unwrap();
    for (w, n) in acked.iter().enumerate() {
        let (file, attr) = zfs.lookup(zfs.root(), format!("w{w}").as_bytes()).await.unwrap();
        assert!(attr.size >= n * BLOCK as u64, "worker {w}: {} bytes of {n} blocks", attr.size);
        for i in 0..*n {
            let data = zfs.read(file.id(), i * BLOCK as u64, BLOCK).await.unwrap().concat();
            assert!(data == block(w, i), "worker {w}: block {i} of {n}");
        }
    }
    drop(zfs);
    spa.sync().await.unwrap();
    let report = spa.check_space().await.unwrap();
    assert!(report.is_clean(), "{report:?}");
}

fn guid(spa: &Spa, name: &str) -> u64 {
    let path = leaf(name).path;
    let walk = spa.tree().root.walk();
    walk.iter().find(|v| v.leaf.as_ref().is_some_and(|l| Path::new(&l.path()) == path)).unwrap().guid
}

/// A log dies without a second side; it comes back later, and is used again.
#[test]
fn a_log_dies_and_comes_back() {
    for seed in 0..8 {
        let sim = world(seed);
        let env = sim.env();
        let disk = sim.disk("/disks/l0").unwrap();
        let acked = sim.block_on(async {
            let spa = create(&env, &["l0"]).await.unwrap();
            let zfs = open_fs(&env, &spa, "tank").await.unwrap();
            let (work, tasks) = Work::start(&env, &zfs).await.unwrap();
            env.sleep(Duration::from_micros(20_000 + env.random_below(6_000_000))).await;
            disk.set_offline(true);
            let before = work.acked();
            env.sleep(Duration::from_secs(7)).await;
            assert!(work.acked().iter().zip(&before).all(|(a, b)| a > b), "seed {seed}: the pool goes on");
            assert!(spa.suspended().is_none());
            assert_eq!(spa.tree().tops[1].vdev.state().0, VdevState::Faulted, "seed {seed}");
            assert_eq!(spa.tree().root.state().0, VdevState::Degraded);
            disk.set_offline(false);
            spa.clear(None).await.unwrap();
            assert_eq!(spa.tree().root.state().0, VdevState::Healthy, "seed {seed}");
            let blocks = || spa.ctx.log.stats.slog_blocks.load(Ordering::Relaxed);
            let then = blocks();
            env.sleep(Duration::from_secs(3)).await;
            assert!(blocks() > then, "seed {seed}: it is used again");
            work.end(tasks).await.unwrap();
            work.acked()
        });
        let left = sim.power_off(CrashPolicy::LoseAll, seed);
        comes_back(&left, seed + 1000, &acked);
    }
}

/// More is made stable in a few seconds than the log device holds: txgs are synced in time, and
/// nothing goes to the pool's own disk.
#[test]
fn a_log_that_fills_is_emptied_in_time() {
    let sim = world(21);
    let env = sim.env();
    let acked = sim.block_on(async {
        let spa = create(&env, &["l0"]).await.unwrap();
        let zfs = open_fs(&env, &spa, "tank").await.unwrap();
        let size = spa.tree().leaves[1].psize();
        let begin = env.now();
        let (work, tasks) = Work::start(&env, &zfs).await.unwrap();
        let stats = &spa.ctx.log.stats;
        while stats.slog_allocated.load(Ordering::Relaxed) < 2 * size {
            env.sleep(Duration::from_millis(50)).await;
        }
        work.end(tasks).await.unwrap();
        assert!(env.now() - begin < Duration::from_secs(60), "{:?}", env.now() - begin);
        assert_eq!(stats.normal_blocks.load(Ordering::Relaxed), 0);
        work.acked()
    });
    let left = sim.power_off(CrashPolicy::LoseAll, 21);
    comes_back(&left, 1021, &acked);
}

/// Who asks for a commit does its work; if he goes away half-way it goes on without him, for all
/// who wait with him.
#[test]
fn a_commit_whose_asker_goes_away_is_carried_on() {
    let sim = world(3);
    let env = sim.env();
    let acked = sim.block_on(async {
        let spa = create(&env, &["l0"]).await.unwrap();
        let zfs = open_fs(&env, &spa, "tank").await.unwrap();
        let (work, tasks) = Work::start(&env, &zfs).await.unwrap();
        let (file, _) = zfs.create(zfs.root(), b"x", NewFile::new(0o100644, Cred::default())).await.unwrap();
        let mut left = 0;
        for n in 0..400 {
            zfs.write(file.id(), n * BLOCK as u64, &block(9, n), false).await.unwrap();
            let mut commit = Box::pin(zfs.fsync(file.id()));
            // Now before it has begun, now in the middle of it.
            let mut pending = true;
            for _ in 0..n % 4 {
                pending = pending && futures_util::poll!(&mut commit).is_pending();
                env.sleep(Duration::from_micros(env.random_below(120))).await;
            }
            left += u32::from(pending);
            drop(commit);
            env.sleep(Duration::from_micros(env.random_below(400))).await;
        }
        assert!(left > 100, "{left}");
        work.end(tasks).await.unwrap();
        work.acked()
    });
    assert!(acked.iter().all(|n| *n > 20), "{acked:?}");
    comes_back(&sim.power_off(CrashPolicy::LoseAll, 3), 1003, &acked);
}

/// A log device with records that were not replayed is not given up; once they are, it is.
#[test]
fn a_log_that_is_to_be_replayed_is_not_removed() {
    let sim = world(1);
    let env = sim.env();
    let acked = sim.block_on(async {
        let spa = create(&env, &["l0"]).await.unwrap();
        let zfs = open_fs(&env, &spa, "tank").await.unwrap();
        let (work, _tasks) = Work::start(&env, &zfs).await.unwrap();
        env.sleep(Duration::from_millis(500)).await;
        work.acked()
    });
    let sim = sim.power_off(CrashPolicy::LoseAll, 1).boot(1001);
    let env = sim.env();
    sim.block_on(async {
        let spa = import(&env, false).await.unwrap();
        let refused = spa.remove_vdev(guid(&spa, "l0")).await.unwrap_err();
        assert!(refused.is(Errno::Exist), "{refused}");
        assert!(refused.to_string().contains("intent log of tank was not replayed yet"), "{refused}");
        // It is as it was, and the records are still there.
        assert_eq!(spa.tree().root.state().0, VdevState::Healthy);
        check(&env, &spa, &acked).await;
        spa.remove_vdev(guid(&spa, "l0")).await.unwrap();
        assert!(spa.tree().tops.iter().all(|t| !t.vdev.is_log || !t.vdev.is_concrete()));
        check(&env, &spa, &acked).await;
    });
}

/// One side of a mirrored log dies, and soon after the power goes: the other has everything.
#[test]
fn a_side_of_a_log_dies_and_then_the_power() {
    for seed in 100..112 {
        let sim = world(seed);
        let env = sim.env();
        let victim = if seed % 2 == 0 { "l0" } else { "l1" };
        let disk = sim.disk(Path::new("/disks").join(victim)).unwrap();
        let acked = sim.block_on(async {
            let spa = create(&env, &["l0", "l1"]).await.unwrap();
            let zfs = open_fs(&env, &spa, "tank").await.unwrap();
            let (work, _tasks) = Work::start(&env, &zfs).await.unwrap();
            env.sleep(Duration::from_micros(20_000 + env.random_below(4_000_000))).await;
            disk.set_offline(true);
            env.sleep(Duration::from_micros(env.random_below(3_000_000))).await;
            work.acked()
        });
        let mut left = sim.power_off(CrashPolicy::Shuffle, seed);
        if seed % 3 == 0 {
            left.disks.remove(&Path::new("/disks").join(victim));
        }
        comes_back(&left, seed + 1000, &acked);
    }
}

/// Devices come and go under load, and at some moment the power goes.
#[test]
fn logs_change_under_load() {
    for seed in 200..208 {
        let sim = world(seed);
        let env = sim.env();
        let acked = sim.block_on(async {
            let spa = create(&env, &["l0"]).await.unwrap();
            let zfs = open_fs(&env, &spa, "tank").await.unwrap();
            let (work, _tasks) = Work::start(&env, &zfs).await.unwrap();
            let changes = env.spawn_with_result({
                let spa = spa.clone();
                async move {
                    spa.attach(guid(&spa, "l0"), &leaf("l1"), Attach::default()).await?;
                    spa.offline(guid(&spa, "l0"), false, false).await?;
                    spa.online(guid(&spa, "l0"), false).await?;
                    spa.detach(guid(&spa, "l0")).await?;
                    let more = PoolSpec { tops: vec![top(&["l2"], true)], ..PoolSpec::default() };
                    spa.add_vdevs(&more).await?;
                    spa.offline(guid(&spa, "l1"), false, false).await?;
                    spa.online(guid(&spa, "l1"), false).await?;
                    spa.remove_vdev(guid(&spa, "l1")).await?;
                    spa.attach(guid(&spa, "l2"), &leaf("l0"), Attach { replace: true, ..Attach::default() })
                        .await
                }
            });
            let cut = env.sleep(Duration::from_micros(env.random_below(12_000_000)));
            // In some runs the changes are over before the cut; they must all have gone well.
            let done = futures_util::future::select(Box::pin(changes), Box::pin(cut)).await;
            if let futures_util::future::Either::Left((result, _)) = done {
                result.unwrap();
            }
            assert!(spa.suspended().is_none());
            work.acked()
        });
        let left = sim.power_off(CrashPolicy::LoseAll, seed);
        comes_back(&left, seed + 1000, &acked);
    }
}

/// Opens log devices as devices of a kind.
struct Modelled(Env, &'static str);

/// One that turns.
const DISK: &str = "7200rpm-sata";

impl Opener for Modelled {
    fn open(&self, path: &Path, mode: OpenMode) -> BoxFuture<'static, io::Result<Arc<dyn Device>>> {
        let (opened, env, kind) = (self.0.opener.open(path, mode), self.0.clone(), self.1);
        let is_log = path.starts_with("/disks") && !path.starts_with("/disks/d0");
        Box::pin(async move {
            let disk = opened.await?;
            if !is_log {
                return Ok(disk);
            }
            let profile = Profile::named(kind).ok_or(io::ErrorKind::NotFound)?;
            Ok(Arc::new(ModelDevice::new(disk, profile, &env)) as Arc<dyn Device>)
        })
    }
    fn list(&self, dir: &Path) -> BoxFuture<'static, io::Result<Vec<DirEntry>>> {
        self.0.opener.list(dir)
    }
    fn read_file(&self, path: &Path) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        self.0.opener.read_file(path)
    }
    fn write_file(&self, path: &Path, data: Vec<u8>) -> BoxFuture<'static, io::Result<()>> {
        self.0.opener.write_file(path, data)
    }
    fn remove_file(&self, path: &Path) -> BoxFuture<'static, io::Result<()>> {
        self.0.opener.remove_file(path)
    }
    fn create_file(&self, path: &Path, size: u64) -> BoxFuture<'static, io::Result<()>> {
        self.0.opener.create_file(path, size)
    }
    fn canonical(&self, path: &Path) -> BoxFuture<'static, io::Result<PathBuf>> {
        self.0.opener.canonical(path)
    }
}

#[test]
fn those_who_come_again_share_a_train_where_the_log_turns() {
    const WRITERS: u64 = 8;
    const EACH: u64 = 300;
    // Computing takes no time: what is left is what the disk takes.
    let sim = Sim::with_config(7, SimConfig { punctual: true, ..SimConfig::default() });
    for disk in ["d0", "l0"] {
        sim.add_disk(Path::new("/disks").join(disk), 128 << 20);
    }
    let real = sim.env();
    let env = Env { opener: Arc::new(Modelled(real.clone(), DISK)), ..real };
    sim.block_on(async {
        let spa = create(&env, &["l0"]).await.unwrap();
        let zfs = open_fs(&env, &spa, "tank").await.unwrap();
        let mut tasks = Vec::new();
        for w in 0..WRITERS {
            let new = NewFile::new(0o100644, Cred::default());
            let (file, _) = zfs.create(zfs.root(), format!("w{w}").as_bytes(), new).await.unwrap();
            let zfs = zfs.clone();
            tasks.push(env.spawn_with_result(async move {
                for n in 0..EACH {
                    zfs.write(file.id(), n * BLOCK as u64, &block(w as usize, n), false).await?;
                    zfs.fsync(file.id()).await?;
                }
                Ok::<_, zilla_core::error::Error>(())
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let counts = spa.ctx.log.stats.get();
        assert_eq!(counts.commits, WRITERS * EACH);
        // Nearly two for each round if the first who is back leaves without the others, as they do
        // before the disk is known to turn.
        assert!(counts.trains < EACH * 5 / 4, "{} trains for {EACH} rounds", counts.trains);
    });
}

/// Sixteen writers on log devices of a kind, until the power goes; with the plain policy or the
/// measured one, if it is said which. Rounds a second of virtual time.
fn until_the_power_goes(kind: &'static str, plain: Option<bool>, logs: &[&str], seed: u64) -> f64 {
    const WRITERS: usize = 16;
    const BLOCKS: u64 = 4;
    // Below the modelled disks: these only say what a cut loses.
    let at_once = Duration::ZERO..Duration::from_micros(20);
    let disk = DiskConfig { read: at_once.clone(), write: at_once.clone(), flush: at_once };
    let sim = Sim::with_config(seed, SimConfig { punctual: true, disk, ..SimConfig::default() });
    for disk in ["d0"].iter().chain(logs) {
        sim.add_disk(Path::new("/disks").join(disk), 1 << 30);
    }
    let real = sim.env();
    let env = Env { opener: Arc::new(Modelled(real.clone(), kind)), ..real };
    let (acked, rate) = sim.block_on(async {
        let tops = logs.iter().map(|l| top(&[l], true)).collect();
        let spa = create_with(&env, tops).await.unwrap();
        plain.into_iter().for_each(|plain| spa.ctx.log.fix_policy(plain));
        let zfs = open_fs(&env, &spa, "tank").await.unwrap();
        let acked: Arc<[AtomicU64; WRITERS]> = Arc::default();
        for w in 0..WRITERS {
            let new = NewFile::new(0o100644, Cred::default());
            let (file, _) = zfs.create(zfs.root(), format!("w{w}").as_bytes(), new).await.unwrap();
            let (zfs, acked) = (zfs.clone(), acked.clone());
            env.spawn(Box::pin(async move {
                loop {
                    let n = acked[w].load(Ordering::Relaxed);
                    let data: Vec<u8> = (n..n + BLOCKS).flat_map(|n| block(w, n)).collect();
                    zfs.write(file.id(), n * BLOCK as u64, &Bytes::from(data), false).await.unwrap();
                    zfs.fsync(file.id()).await.unwrap();
                    acked[w].store(n + BLOCKS, Ordering::Relaxed);
                }
            }));
        }
        let begin = env.now();
        env.sleep(Duration::from_millis(2500 + seed * 37)).await;
        let acked: Vec<u64> = acked.iter().map(|a| a.load(Ordering::Relaxed)).collect();
        let rounds = acked.iter().sum::<u64>() / BLOCKS / WRITERS as u64;
        assert_eq!(spa.ctx.log.stats.get().normal_blocks, 0, "all are on the log devices");
        (acked, rounds as f64 / (env.now() - begin).as_secs_f64())
    });
    let left = sim.power_off(CrashPolicy::LoseAll, seed);
    comes_back(&left, seed + 1000, &acked);
    rate
}

/// Each has a part of a train, which is there when all parts are. A tenth of the time goes into
/// finding out that this is faster.
#[test]
fn log_disks_that_turn_share_each_train() {
    let one = until_the_power_goes(DISK, None, &["l0"], 1);
    for (logs, least) in [(&["l0", "l1"][..], 1.15), (&["l0", "l1", "l2", "l3"], 1.4)] {
        for seed in 1..5 {
            let rate = until_the_power_goes(DISK, None, logs, seed);
            assert!(
                rate > one * least,
                "{} logs, seed {seed}: {rate:.0} rounds a second, one: {one:.0}",
                logs.len()
            );
        }
    }
}

/// Whatever the devices are; and to measure is of use where disks turn.
#[test]
fn either_policy_keeps_what_was_acknowledged() {
    for kind in [DISK, "usb-flash-stick", "sata-ssd"] {
        for (logs, seed) in [(&["l0"][..], 1), (&["l0", "l1"], 2)] {
            let [plain, measured] =
                [true, false].map(|plain| until_the_power_goes(kind, Some(plain), logs, seed));
            let least = if kind == DISK { plain * 1.2 } else { plain * 0.9 };
            assert!(measured > least, "{kind}, {} logs: {plain:.0} and {measured:.0} a second", logs.len());
        }
    }
}
