//! Large synchronous writes, which go to their final places, and the power is cut: everything
//! acknowledged is there, nothing is lost of the space, and the log is replayed to what was
//! written.

use bytes::Bytes;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zilla_core::check::{CheckOpts, check_pool};
use zilla_core::dmu::resident;
use zilla_core::error::Result;
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::txg::DirtyLimits;
use zilla_core::types::ObjectId;
use zilla_core::vdev::{IoKind, LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zpl::{Cred, FsProps, NewFile, SetAttr, Unlimited, Zfs};
use zilla_env::Env;
use zilla_sim::{CrashPolicy, Sim};

const WORKERS: usize = 3;
const UNIT: usize = 4096;
const RECORD: u32 = 64 << 10;
/// A file's units.
const UNITS: usize = 256;

#[derive(Clone, Copy, Debug)]
struct Case {
    main: &'static [&'static str],
    kind: VdevKind,
    log: bool,
    throughput: bool,
}

const CASES: [Case; 4] = [
    Case { main: &["d0"], kind: VdevKind::Disk, log: false, throughput: false },
    Case { main: &["d0", "d1"], kind: VdevKind::Mirror, log: false, throughput: true },
    Case { main: &["d0", "d1", "d2"], kind: VdevKind::Raidz { nparity: 1 }, log: false, throughput: false },
    Case { main: &["d0"], kind: VdevKind::Disk, log: true, throughput: true },
];

fn host() -> Host {
    Host { id: 0x51e, name: "simulated".into() }
}

impl Case {
    fn world(&self, seed: u64) -> Sim {
        let sim = Sim::new(seed);
        self.main.iter().chain(&["l0"]).for_each(|d| drop(sim.add_disk(path(d), 128 << 20)));
        sim
    }

    async fn create(&self, env: &Env) -> Result<Arc<Spa>> {
        let leaf = |n: &&str| LeafSpec { path: path(n), disk: true };
        let top = |kind, names: &[&str], is_log| TopSpec {
            kind,
            leaves: names.iter().map(leaf).collect(),
            is_log,
            bias: None,
            ashift: Some(12),
        };
        let mut tops = vec![top(self.kind, self.main, false)];
        if self.log {
            tops.push(top(VdevKind::Disk, &["l0"], true));
        }
        let opts = CreateOpts {
            name: "tank".into(),
            host: host(),
            comment: None,
            owner: (0, 0),
            features: None,
            dbuf_cache: 4 << 20,
            arc_max: 16 << 20,
        };
        Spa::create(env, &PoolSpec { tops, ..PoolSpec::default() }, opts).await
    }

    async fn open_fs(&self, env: &Env, spa: &Arc<Spa>) -> Result<Arc<Zfs>> {
        let ds = spa.dsl.by_name("tank").await?;
        let os = spa.dsl.objset(&ds).await?;
        spa.dsl.open_log(&ds).await?;
        let props = FsProps { recordsize: RECORD, throughput: self.throughput, ..FsProps::default() };
        Zfs::open(env.clone(), os, Some(spa.ctx.txgs.clone()), Arc::new(Unlimited), props).await
    }

    /// A file, and a log whose chain is made: the first commit takes a txg for that.
    async fn with_file(&self, env: &Env, spa: &Arc<Spa>) -> (Arc<Zfs>, u64) {
        let zfs = self.open_fs(env, spa).await.unwrap();
        let new = NewFile::new(0o100644, Cred::default());
        let file = zfs.create(zfs.root(), b"file", new).await.unwrap().0.id();
        zfs.fsync(file).await.unwrap();
        spa.sync().await.unwrap();
        (zfs, file)
    }
}

fn path(disk: &str) -> PathBuf {
    Path::new("/disks").join(disk)
}

async fn import(env: &Env) -> Result<Arc<Spa>> {
    let found = discover(env, &["/disks".into()]).await?;
    let opts = OpenOpts { host: host(), dbuf_cache: 4 << 20, arc_max: 16 << 20, ..OpenOpts::default() };
    Spa::open(env, &found[0], opts).await
}

/// What a unit holds that operation `tag` wrote: some can be compressed.
fn unit(tag: u32) -> Vec<u8> {
    let mut x = u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let noise = if tag.is_multiple_of(3) { UNIT / 8 } else { UNIT };
    let mut out = vec![tag as u8; UNIT];
    for b in &mut out[..noise] {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        *b = x as u8;
    }
    out[..4].copy_from_slice(&tag.to_ne_bytes());
    out
}

/// What a file may hold: for each unit, and for its size, what it has been since the last fsync
/// that returned. Tag 0: zeroes.
#[derive(Clone)]
struct Model {
    units: Vec<Vec<u32>>,
    sizes: Vec<usize>,
}

impl Model {
    fn new() -> Model {
        Model { units: vec![vec![0]; UNITS], sizes: vec![0] }
    }

    fn fill(&mut self, from: usize, to: usize, tag: u32) {
        self.units[from..to].iter_mut().for_each(|u| u.push(tag));
    }

    fn stable(&mut self) {
        let last = |v: &mut Vec<u32>| drop(v.drain(..v.len() - 1));
        self.units.iter_mut().for_each(last);
        self.sizes.drain(..self.sizes.len() - 1);
    }
}

struct Work {
    models: Mutex<Vec<Model>>,
    tags: AtomicU64,
}

async fn worker(env: Env, zfs: Arc<Zfs>, work: Arc<Work>, w: usize) -> Result<()> {
    let new = NewFile::new(0o100644, Cred::default());
    let (file, _) = zfs.create(zfs.root(), format!("w{w}").as_bytes(), new).await?;
    zfs.fsync(file.id()).await?;
    loop {
        let tag = work.tags.fetch_add(1, Ordering::Relaxed) as u32;
        let from = env.random_below(UNITS as u64) as usize;
        let size = *work.models.lock()[w].sizes.last().unwrap();
        match env.random_below(12) {
            0 => {
                {
                    let m = &mut work.models.lock()[w];
                    m.fill(from, UNITS, 0);
                    m.sizes.push(from);
                }
                let set = SetAttr { size: Some((from * UNIT) as u64), ..SetAttr::default() };
                zfs.setattr(file.id(), set).await?;
            }
            1 => {
                let len = (1 + env.random_below(40) as usize).min(UNITS - from);
                work.models.lock()[w].fill(from, from + len, 0);
                zfs.punch(file.id(), (from * UNIT) as u64, (len * UNIT) as u64, false, false).await?;
            }
            kind => {
                // From one unit to several records, whole records often.
                let (from, len) = match kind {
                    2..5 => (from, 1 + env.random_below(4) as usize),
                    5..8 => (from, 8 + env.random_below(56) as usize),
                    _ => (from / 16 * 16, 16 << env.random_below(3)),
                };
                let to = (from + len).min(UNITS);
                {
                    let m = &mut work.models.lock()[w];
                    m.fill(from, to, tag);
                    m.sizes.push(size.max(to));
                }
                let data: Bytes = unit(tag).repeat(to - from).into();
                zfs.write(file.id(), (from * UNIT) as u64, &data, false).await?;
            }
        }
        if env.random_below(3) > 0 {
            zfs.fsync(file.id()).await?;
            work.models.lock()[w].stable();
        }
        env.sleep(Duration::from_micros(env.random_below(20_000))).await;
    }
}

/// What is there is what may be there, and the pool adds up.
async fn check(case: &Case, env: &Env, spa: &Arc<Spa>, models: &[Model]) {
    let zfs = case.open_fs(env, spa).await.unwrap();
    for (w, m) in models.iter().enumerate() {
        let Ok((file, attr)) = zfs.lookup(zfs.root(), format!("w{w}").as_bytes()).await else {
            assert!(m.sizes == [0], "file {w} is not there");
            continue;
        };
        // A long write is several records; of one that was not acknowledged the first of them may
        // be there.
        let size = attr.size as usize / UNIT;
        let partly = m.sizes.windows(2).any(|s| s[0] < size && size < s[1]);
        let may = m.sizes.contains(&size) || partly;
        assert!(may && attr.size.is_multiple_of(UNIT as u64), "file {w}: {size} units and not {:?}", m.sizes);
        for (i, tags) in m.units.iter().enumerate().take(attr.size as usize / UNIT) {
            let is = zfs.read(file.id(), (i * UNIT) as u64, UNIT).await.unwrap().concat();
            let may = |tag: &u32| if *tag == 0 { is == [0; UNIT] } else { is == unit(*tag) };
            let tag = u32::from_ne_bytes(is[..4].try_into().unwrap());
            assert!(tags.iter().any(may), "file {w}: unit {i} is of operation {tag} and not of {tags:?}");
        }
    }
    drop(zfs);
    for _ in 0..2 {
        spa.sync().await.unwrap();
        let report = check_pool(spa, CheckOpts { every_copy: true }).await.unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}

fn run(case: &Case, seed: u64) -> u64 {
    let sim = case.world(seed);
    let env = sim.env();
    let (models, in_place) = sim.block_on(async {
        let spa = case.create(&env).await.unwrap();
        let zfs = case.open_fs(&env, &spa).await.unwrap();
        let work =
            Arc::new(Work { models: Mutex::new(vec![Model::new(); WORKERS]), tags: AtomicU64::new(1) });
        let tasks: Vec<_> = (0..WORKERS)
            .map(|w| env.spawn_with_result(worker(env.clone(), zfs.clone(), work.clone(), w)))
            .collect();
        env.sleep(Duration::from_micros(20_000 + env.random_below(7_000_000))).await;
        for task in tasks {
            let ended = futures_util::FutureExt::now_or_never(task);
            assert!(ended.is_none(), "seed {seed}: a worker ended: {ended:?}, {:?}", spa.suspended());
        }
        assert!(spa.suspended().is_none());
        (work.models.lock().clone(), spa.ctx.log.stats.indirect.load(Ordering::Relaxed))
    });
    let policy = [CrashPolicy::LoseAll, CrashPolicy::Shuffle, CrashPolicy::Random][(seed % 3) as usize];
    let mut left = sim.power_off(policy, seed);
    // In some the power goes again while the log is replayed.
    for again in 0..seed % 4 {
        let sim = left.boot(seed + 1000 * (again + 1));
        let env = sim.env();
        sim.block_on(async {
            let cut = env.sleep(Duration::from_micros(env.random_below(30_000)));
            let replay = async {
                let spa = import(&env).await.unwrap();
                drop(case.open_fs(&env, &spa).await.unwrap());
            };
            futures_util::future::select(Box::pin(replay), Box::pin(cut)).await;
        });
        left = sim.power_off(policy, seed + again);
    }
    let sim = left.boot(seed + 9000);
    let env = sim.env();
    sim.block_on(async {
        let spa = import(&env).await.unwrap();
        check(case, &env, &spa, &models).await;
    });
    in_place
}

fn runs(case: usize) {
    let many = std::env::var("ZILLA_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let mut in_place = 0;
    for seed in 0..many {
        in_place += run(&CASES[case], 100 * case as u64 + seed);
    }
    assert!(in_place > 20 * many, "only {in_place} writes were made in place");
}

#[test]
fn power_cuts_on_a_disk() {
    runs(0);
}

#[test]
fn power_cuts_on_a_mirror_for_throughput() {
    runs(1);
}

#[test]
fn power_cuts_on_a_raidz() {
    runs(2);
}

#[test]
fn power_cuts_with_a_log_device_and_throughput() {
    runs(3);
}

/// A pool that stays up: what was written in place and changed again is given back, and the disk
/// has each large write once.
#[test]
fn large_writes_are_written_once() {
    for (throughput, log) in [(false, false), (true, true)] {
        let case = Case { log, throughput, ..CASES[0] };
        let sim = case.world(7);
        let env = sim.env();
        sim.block_on(async {
            let spa = case.create(&env).await.unwrap();
            let (zfs, file) = case.with_file(&env, &spa).await;
            let kind = IoKind::Write as usize;
            let written = || spa.tree().leaves.iter().map(|l| l.stats.snapshot().bytes[kind]).sum::<u64>();
            let before = written();
            let size = 16 << 20;
            for (n, off) in (0..size).step_by(1 << 20).enumerate() {
                let data: Vec<u8> = (0..256).flat_map(|i| unit(3 * (n as u32 * 256 + i) + 1)).collect();
                let data = Bytes::from(data);
                zfs.write(file, off, &data, false).await.unwrap();
                zfs.fsync(file).await.unwrap();
            }
            spa.sync().await.unwrap();
            let wrote = written() - before;
            assert!(wrote >= size && wrote < size * 5 / 4, "{wrote} bytes written for {size}");
            let stats = spa.ctx.log.stats.get();
            assert_eq!(stats.indirect_bytes, size);
            assert_eq!((stats.copied_bytes, stats.indirect), (0, size / u64::from(RECORD)));
            check(&case, &env, &spa, &[]).await;
        });
    }
}

/// A file's blocks lie in its order, whichever core was done first with its share of them.
#[test]
fn what_one_fsync_writes_lies_in_order() {
    let case = CASES[0];
    for seed in 0..4 {
        let sim = case.world(seed);
        let env = sim.env();
        sim.block_on(async {
            let spa = case.create(&env).await.unwrap();
            let (zfs, file) = case.with_file(&env, &spa).await;
            let data: Vec<u8> = (0..512).flat_map(|i| unit(3 * i + 1)).collect();
            zfs.write(file, 0, &Bytes::from(data), false).await.unwrap();
            zfs.fsync(file).await.unwrap();
            spa.sync().await.unwrap();
            let objset = spa.dsl.objset(&spa.dsl.by_name("tank").await.unwrap()).await.unwrap();
            let dn = objset.hold_wait(ObjectId(file)).await.unwrap();
            let mut places = Vec::new();
            for block in 0..(2 << 20) / u64::from(RECORD) {
                let bp = resident(|| dn.block_pointer(block)).await.unwrap().unwrap();
                places.push(bp.dva(0).offset);
            }
            let next = |p: &[u64]| p[1] == p[0] + u64::from(RECORD);
            assert!(places.windows(2).all(next), "{places:x?}");
        });
    }
}

/// A txg ends early for whole records that wait to be written, not for those that the disks have.
#[test]
fn what_is_in_place_ends_no_txg() {
    let case = CASES[0];
    let sim = Sim::new(9);
    drop(sim.add_disk(path("d0"), 512 << 20));
    let env = sim.env();
    sim.block_on(async {
        let spa = case.create(&env).await.unwrap();
        spa.ctx.txgs.set_limits(DirtyLimits { max: 1 << 30, ..DirtyLimits::default() });
        let (zfs, file) = case.with_file(&env, &spa).await;
        let data = Bytes::from((0..256).flat_map(|i| unit(3 * i + 1)).collect::<Vec<u8>>());
        // But it does for what takes space again and again.
        for (fsync, size, ended) in [(true, 80, false), (false, 80, true), (true, 8, true)] {
            spa.sync().await.unwrap();
            let txg = spa.ctx.txgs.open();
            for off in (0..80u64 << 20).step_by(1 << 20) {
                zfs.write(file, off % (size << 20), &data, false).await.unwrap();
                if fsync {
                    zfs.fsync(file).await.unwrap();
                }
            }
            env.clock.sleep(Duration::from_millis(100)).await;
            assert_eq!(spa.ctx.txgs.open() > txg, ended, "with fsync: {fsync}, {size} MiB");
        }
    });
}

/// A sync that is under way writes the file anyhow: an fsync waits for it instead of writing all
/// into the log first.
#[test]
fn what_a_sync_writes_is_not_logged() {
    what_a_sync_writes(Case { log: false, throughput: false, ..CASES[0] });
    // Nor on a log device that large data do not go to.
    what_a_sync_writes(CASES[3]);
}

fn what_a_sync_writes(case: Case) {
    let sim = case.world(8);
    let env = sim.env();
    sim.block_on(async {
        let spa = case.create(&env).await.unwrap();
        let (zfs, file) = case.with_file(&env, &spa).await;
        let before = spa.ctx.log.stats.get();
        let txgs = &spa.ctx.txgs;
        for (megabytes, logged) in [(20, 0), (4, 4)] {
            let txg = txgs.open();
            for off in (0..megabytes << 20).step_by(1 << 20) {
                let data: Vec<u8> = (0..256).flat_map(|i| unit(3 * (off as u32 / 4096 + i) + 1)).collect();
                zfs.write(file, off, &Bytes::from(data), false).await.unwrap();
            }
            let under_way = txgs.clone();
            let synced = env.spawn_with_result(async move { under_way.wait_synced(txg).await });
            while txgs.closed() < txg {
                env.clock.sleep(Duration::from_micros(1)).await;
            }
            assert!(txgs.synced() < txg);
            zfs.fsync(file).await.unwrap();
            let copied = spa.ctx.log.stats.get().copied_bytes - before.copied_bytes;
            assert_eq!(copied, logged << 20);
            synced.await.unwrap();
        }
        check(&case, &env, &spa, &[]).await;
    });
}
