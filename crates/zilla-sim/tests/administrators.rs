//! Several administrators at once, who change their minds: each does what comes to it to the same
//! few datasets and devices through the facade, and drops a change in its midst now and then. None
//! of them hangs, the pool is not suspended, and what is on disk then is whole, also after a power
//! cut. Pools of single disks, with a mirror, a log and a spare, and with a RAID-Z, a cache device
//! and a spare take turns. Reads fail now and then, and succeed when they are tried again.
//! `ZILLA_ADMINISTRATORS` says how many seeds.

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use zilla::access::Who;
use zilla::devices::{Attach, LeafSpec, PoolSpec, SpareSpec, TopSpec, UpkeepKind, VdevKind};
use zilla::error::{Errno, Error, Result};
use zilla::keys::{KeyFormat, NewCrypt, NewSuite, Rekey, Suite, WrappingKey};
use zilla::streams::{ReceiveOpts, RecordReader, SendOpts, Special};
use zilla::{Import, Maker, NewPool, NewVdev, Pool};
use zilla_core::spa::{FoundPool, discover};
use zilla_env::Env;
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule, When};
use zilla_ondisk::enums::PoolState;
use zilla_ondisk::stream::Record;
use zilla_sim::pool::layout::import;
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim, SimRng};

const POOL: &str = "tank";
const DISKS: usize = 7;
/// Room for what is removed, beside what a pool keeps for itself.
const DISK: u64 = 300 << 20;
const ADMINISTRATORS: u64 = 6;
const CHANGES: u64 = 60;
/// How a run ends; otherwise the power goes when all is done.
const EXPORTED: u64 = 0;
const POWER_CUT: u64 = 1;
/// Writes and flushes after which the power may go.
const IN_MIDST: u64 = 6000;
const SLOW: Duration = Duration::from_millis(2);
/// A change that takes longer hangs.
const LONG: Duration = Duration::from_secs(3600);
const FILESYSTEMS: [&str; 6] = ["tank/a", "tank/b", "tank/a/c", "tank/e", "tank/e/f", "tank/r"];
const VOLUMES: [&str; 2] = ["tank/v", "tank/b/v"];
const SNAPSHOTS: [&str; 3] = ["x", "y", "z"];
const FILES: [&str; 3] = ["/one", "/two", "/three"];
const DETACH: u64 = 26;
const EIO: i32 = 5;
const ENCRYPTED: &str = "tank/e";

fn path(i: usize) -> PathBuf {
    PathBuf::from(format!("/disks/d{i}"))
}

fn key(n: u64) -> WrappingKey {
    WrappingKey::raw(KeyFormat::Raw, &[n as u8; 32]).unwrap()
}

/// One of them.
struct Administrator {
    pool: Pool,
    env: Env,
    rng: SimRng,
}

impl Administrator {
    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.rng.below(of.len() as u64) as usize]
    }

    fn filesystem(&mut self) -> String {
        self.one(&FILESYSTEMS).to_owned()
    }

    fn snapshot(&mut self) -> String {
        format!("{}@{}", self.one(&FILESYSTEMS), self.one(&SNAPSHOTS))
    }

    fn bookmark(&mut self) -> String {
        self.snapshot().replace('@', "#")
    }

    fn leaf(&mut self) -> LeafSpec {
        LeafSpec { path: path(self.rng.below(DISKS as u64) as usize), disk: true }
    }

    /// A vdev of the pool's; rather one of two that are each other's copy, where it is so wanted.
    fn guid(&mut self, copy: bool) -> u64 {
        let (mut all, mut todo) = (Vec::new(), vec![self.pool.cache_entry()]);
        while let Some(vdev) = todo.pop() {
            let within = vdev.lists("children").into_iter().flatten();
            match copy && matches!(vdev.str("type"), Some("mirror" | "replacing")) {
                true => return within.last().and_then(|v| v.u64("guid")).unwrap_or(0),
                false => all.extend(vdev.u64("guid")),
            }
            todo.extend(vdev.list("vdev_tree").cloned());
            todo.extend(vdev.lists("children").into_iter().flatten().cloned());
        }
        all.get(self.rng.below(all.len() as u64) as usize).copied().unwrap_or(0)
    }

    /// What is done next, and its name.
    fn next(&mut self) -> (String, BoxFuture<'static, Result<()>>) {
        let pool = self.pool.clone();
        let (fs, other, snap) = (self.filesystem(), self.filesystem(), self.snapshot());
        let (mark, file, n) = (self.bookmark(), self.one(&FILES).to_owned(), self.rng.below(3));
        let what = self.rng.below(39);
        let (leaf, guid) = (self.leaf(), self.guid(what == DETACH));
        let volume = self.one(&VOLUMES).to_owned();
        let said = format!("{what}: {fs} {other} {snap} {mark} {file} {n} {} {guid}", leaf.path.display());
        let change: BoxFuture<'static, Result<()>> = match what {
            0..5 => Box::pin(async move {
                let files = pool.dataset(&fs).await?.files().await?;
                let len = 1 << (10 + 3 * n);
                files.write(&file, vec![n as u8 ^ 0x5a; len]).await?;
                let open = files.open(&file).await?;
                open.write_at(len as u64 / 2, vec![7; 5000]).await?;
                open.sync().await
            }),
            5 => Box::pin(async move { pool.dataset(&fs).await?.files().await?.remove_file(&file).await }),
            6 | 7 => Box::pin(async move { pool.snapshot(&[snap.as_str()]).await }),
            8 => Box::pin(async move { pool.destroy_named(vec![snap], n == 0).await }),
            9 => Box::pin(async move { pool.dataset(&fs).await?.destroy().await }),
            10 => Box::pin(async move { pool.make_clone(&snap, &fs, &Maker::owner(0, 0), Vec::new()).await }),
            11 => Box::pin(async move { pool.promote(&fs, 0, Who::Admin).await }),
            12 => Box::pin(async move { pool.rename_dataset(&fs, &other, Who::Admin).await }),
            13 => Box::pin(async move {
                let last = pool.by_name(&fs).await?.prev().await?.map(|s| s.name());
                pool.roll_back(&fs, &last.unwrap_or(snap)).await
            }),
            14 => Box::pin(async move { pool.bookmark(vec![(snap, mark)]).await }),
            15 => Box::pin(async move { pool.destroy_bookmarks(vec![mark]).await }),
            16 => Box::pin(async move { pool.hold_snapshots(vec![snap], "mine".into()).await }),
            17 => Box::pin(async move { pool.release_snapshots(vec![snap], "mine".into()).await }),
            18 | 19 => Box::pin(copied(pool, snap, other, n)),
            20 => Box::pin(async move {
                let suite = match fs == ENCRYPTED {
                    true => NewSuite::Of(Suite::ON_VALUE),
                    false => NewSuite::Inherit,
                };
                let own = (fs == ENCRYPTED).then(|| Arc::new(key(0)));
                let crypt = NewCrypt { suite, key: own, location: None };
                pool.make_filesystem(&fs, &Maker::owner(0, 0), Vec::new(), crypt).await
            }),
            21 => Box::pin(async move { pool.load_key(ENCRYPTED, key(n), false).await }),
            22 => Box::pin(async move { pool.unload_key(ENCRYPTED).await }),
            23 => Box::pin(async move {
                pool.change_key(ENCRYPTED, Rekey::New { key: Arc::new(key(n)), location: None }).await
            }),
            24 => Box::pin(async move {
                let scrub = pool.scrubber()?;
                match n {
                    0 => scrub.start().await,
                    1 => scrub.pause().await,
                    _ => scrub.cancel().await,
                }
            }),
            25 => Box::pin(async move {
                pool.attach(guid, &leaf, Attach { replace: n == 0, ..Attach::default() }).await
            }),
            DETACH => Box::pin(async move { pool.detach(guid).await.map(drop) }),
            27 => Box::pin(async move {
                match n {
                    0 => pool.discard_checkpoint().await,
                    _ => pool.take_checkpoint().await,
                }
            }),
            28 => Box::pin(async move {
                let kind = VdevKind::Disk;
                let top = TopSpec { kind, leaves: vec![leaf], is_log: n == 0, bias: None, ashift: Some(9) };
                pool.add_vdevs(&PoolSpec { tops: vec![top], ..PoolSpec::default() }, true).await
            }),
            29 => Box::pin(async move {
                match n {
                    0 => pool.cancel_removal().await,
                    _ => pool.remove_vdev(guid).await,
                }
            }),
            30 => Box::pin(async move {
                match n {
                    0 => pool.offline(guid, false, false).await,
                    _ => pool.online(guid, false).await.map(drop),
                }
            }),
            31 => Box::pin(async move {
                let kind = if n == 0 { UpkeepKind::Trim } else { UpkeepKind::Initialize };
                pool.start_upkeep(guid, kind, None).await
            }),
            32 => Box::pin(async move { pool.dataset(&fs).await?.set(&[("quota", "none")]).await }),
            33 | 34 => Box::pin(async move {
                let volume = pool.dataset(&volume).await?.volume().await?;
                let (at, data) = (n << 16, Bytes::from(vec![n as u8 + 1; 20_000]));
                volume.write(at, &[data], n == 0).await?;
                volume.trim(at + 8192, 8192).await?;
                volume.flush().await
            }),
            35 => Box::pin(async move {
                match n {
                    0 => pool.dataset(&volume).await?.destroy().await,
                    1 => pool.dataset(&volume).await?.volume().await?.set_size(2 << 20).await,
                    _ => pool.create_volume(&volume, 4 << 20, &[]).await.map(drop),
                }
            }),
            36 => Box::pin(async move {
                match n {
                    0 => pool.remove_vdev(guid).await,
                    1 => pool.add_spares(&[SpareSpec { leaf, shared: None }]).await,
                    _ => {
                        let spec = PoolSpec { tops: Vec::new(), cache: vec![leaf] };
                        pool.add_vdevs(&spec, true).await
                    }
                }
            }),
            37 => Box::pin(async move {
                match n {
                    0 => pool.offline(guid, false, true).await,
                    1 => pool.reopen().await,
                    _ => {
                        pool.diagnose();
                        pool.call_spares().await;
                        Ok(())
                    }
                }
            }),
            _ => Box::pin(async move {
                match n {
                    0 => pool.reguid(None).await.map(drop),
                    1 => pool.clear(None).await,
                    _ => pool.sync().await,
                }
            }),
        };
        (said, change)
    }

    /// So many changes, one after the other.
    async fn work(mut self, what: &str, done: &mut BTreeMap<u64, u64>) {
        for _ in 0..CHANGES {
            let (said, change) = self.next();
            let patience = self.rng.one_in(4).then(|| Duration::from_micros(self.rng.below(60_000)));
            let ended = self.env.timeout(patience.unwrap_or(LONG), change).await;
            assert!(ended.is_ok() || patience.is_some(), "{what}: {said} hangs");
            if std::env::var_os("ZILLA_SAY").is_some() {
                let now = self.env.now().as_micros();
                println!("{now} {what} {:?} {said}: {ended:?}", patience);
            }
            if let Ok(Ok(())) = ended {
                let kind = said.split(':').next().and_then(|n| n.parse().ok()).unwrap_or(0);
                *done.entry(kind).or_default() += 1;
            }
            assert!(self.pool.suspended().is_none(), "{what}: {said}: {:?}", self.pool.suspended());
            self.env.sleep(Duration::from_micros(self.rng.below(20_000))).await;
        }
    }
}

/// Sends a snapshot and receives it as another file system.
async fn copied(pool: Pool, snap: String, to: String, n: u64) -> Result<()> {
    let sent = pool.by_name(&snap).await?;
    let opts = SendOpts { raw: n == 0, ..SendOpts::default() };
    let mut stream = Vec::new();
    sent.send(&opts, &Special::default(), &mut stream).await?;
    let mut source = Bytes::from(stream);
    let mut reader = RecordReader::new(&mut source);
    let Some((Record::Begin(begin), payload)) = reader.begin().await? else {
        return Err(Error::os(Errno::Inval, "no stream"));
    };
    let snap = SNAPSHOTS[n as usize].to_owned();
    let to = ReceiveOpts { fs: to, snap, force: n == 1, resumable: n == 2, ..ReceiveOpts::default() };
    let mut receiving = pool.receive(begin, &payload, to).await?;
    let received = match receiving.records(&mut reader).await {
        Ok(()) => receiving.end().await,
        Err(e) => Err(e),
    };
    if received.is_err() {
        receiving.abort().await?;
    }
    received
}

async fn prepared(env: &Env, seed: u64) -> Pool {
    let new = NewPool::new(POOL).memory(1 << 20);
    let new = match seed % 3 {
        0 => new.vdev(NewVdev::single(path(0))).vdev(NewVdev::single(path(1))),
        1 => new.vdev(NewVdev::mirror([path(0), path(1)])).vdev(NewVdev::single(path(2)).for_log()),
        _ => new.vdev(NewVdev::raidz(1, [path(0), path(1), path(2)])).cache(path(3)),
    };
    let pool = Pool::create(env, new).await.unwrap();
    if !seed.is_multiple_of(3) {
        let spare = SpareSpec { leaf: LeafSpec { path: path(4), disk: true }, shared: None };
        pool.add_spares(&[spare]).await.unwrap();
    }
    let volume = pool.create_volume(VOLUMES[0], 4 << 20, &[]).await.unwrap();
    volume.volume().await.unwrap().write(0, &[Bytes::from(vec![9; 1 << 16])], true).await.unwrap();
    drop(volume);
    for fs in &FILESYSTEMS[..3] {
        let fs = pool.create_filesystem(fs, &[("recordsize", "8K")]).await.unwrap();
        fs.files().await.unwrap().write("/one", vec![1; 100_000]).await.unwrap();
    }
    pool
}

/// The pool. A device that was away when it left the pool still says that it is one.
async fn newest(env: &Env) -> FoundPool {
    let found = discover(env, &["/disks".into()]).await.unwrap();
    found.into_iter().max_by_key(|f| f.txg).unwrap()
}

/// Looks at what is there, and whether it can be lived in.
async fn check(env: &Env, what: &str) {
    // Receives that were dropped, and cannot be gone on with, go first.
    let (guid, force) = (newest(env).await.guid.to_string(), Import { force: true, ..Import::default() });
    let pool = Pool::import(env, &["/disks"], &guid, force).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    pool.destroy_inconsistent().await.unwrap_or_else(|e| panic!("{what}: {e}"));
    pool.export().await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let spa = import(env, &newest(env).await, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    for _ in 0..3000 {
        let upkeep = [UpkeepKind::Initialize, UpkeepKind::Trim].map(|kind| spa.upkeep_left(kind, &[]));
        let scanning = spa.scan().unwrap().is_scanning() || spa.tree().wants_resilver();
        if !spa.is_removing() && !scanning && upkeep == [None, None] {
            break;
        }
        env.sleep(Duration::from_millis(200)).await;
    }
    let mut dirs = vec![spa.dsl.root_dir()];
    while let Some(dir) = dirs.pop() {
        for n in 0..3 {
            let _ = spa.dsl.load_key(&dir.name(), key(n), false).await;
        }
        dirs.extend(spa.dsl.child_dirs(&dir).await.unwrap_or_default());
    }
    audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    spa.close(Some(PoolState::Exported)).await.unwrap();
}

fn run(seed: u64, done: &mut BTreeMap<u64, u64>) {
    let what = format!("seed {seed}");
    let mut rng = SimRng::new(seed, "administrators");
    let sim = Sim::new(seed);
    (0..DISKS).for_each(|i| drop(sim.add_disk(path(i), DISK)));
    let slow = sim.env();
    // What is open while the pool is being prepared, and None after that.
    let failing = Arc::new(Mutex::new(Some(Vec::new())));
    let fail = |d: &FaultyDevice| {
        d.add(Rule::new(Ops::Reads, Fault::Error(EIO)).when(When::Chance(0.001)));
    };
    let prepared_on = failing.clone();
    let env = sim.env().wrap_devices(move |_, device| {
        let device = Arc::new(FaultyDevice::new(device, &slow));
        device.add(Rule::new(Ops::All, Fault::Delay(SLOW)).when(When::Chance(0.3)));
        match &mut *prepared_on.lock() {
            Some(devices) => devices.push(Arc::downgrade(&device)),
            None => fail(&device),
        }
        device
    });
    let end = rng.below(3);
    let work = async {
        let pool = prepared(&env, seed).await;
        let devices: Vec<Weak<FaultyDevice>> = failing.lock().take().unwrap_or_default();
        devices.iter().filter_map(Weak::upgrade).for_each(|d| fail(&d));
        if end == POWER_CUT {
            sim.cut_power_at(sim.counters().ops + 1 + rng.below(IN_MIDST));
        }
        let mut counts = vec![BTreeMap::new(); ADMINISTRATORS as usize];
        let all = counts.iter_mut().enumerate().map(|(i, done)| {
            let rng = SimRng::new(seed, &format!("administrator {i}"));
            Administrator { pool: pool.clone(), env: env.clone(), rng }.work(&what, done)
        });
        join_all(all).await;
        for (kind, n) in counts.into_iter().flatten() {
            *done.entry(kind).or_default() += n;
        }
        if end == EXPORTED {
            let closed = env.timeout(LONG, pool.export()).await;
            let closed = closed.unwrap_or_else(|_| panic!("{what}: the export hangs"));
            closed.unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    };
    let ended = sim.try_block_on(work);
    assert!(ended.is_ok() || end == POWER_CUT, "{what}: {ended:?}");
    let policy = if end == EXPORTED { CrashPolicy::KeepAll } else { CrashPolicy::Random };
    let sim = sim.power_off(policy, seed).boot(seed + 1000);
    let env = sim.env();
    sim.block_on(check(&env, &what));
}

#[test]
fn administrators_beside_each_other_leave_a_whole_pool() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let (first, seeds) = (number("ZILLA_FIRST").unwrap_or(0), number("ZILLA_ADMINISTRATORS").unwrap_or(12));
    let mut done = BTreeMap::new();
    for seed in first..first + seeds {
        run(seed, &mut done);
    }
    println!("{done:?}");
    assert!(done.len() > 25, "{done:?}");
}
