//! A volume whose power is cut while several users write, zero and trim it: what was flushed, or
//! written to be stable, is there; what was not may have vanished, but each unit is of one
//! operation, never of two.

use bytes::Bytes;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zilla_core::check::{CheckOpts, check_pool};
use zilla_core::error::Result;
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zpl::Unlimited;
use zilla_core::zvol::{NewVolume, VolumeProps, Zvol, create_volume};
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;
use zilla_sim::{CrashPolicy, Sim};

/// Users, each with a part of the volume.
const WORKERS: usize = 3;
const UNIT: usize = 4096;
/// A worker's units.
const UNITS: usize = 192;

#[derive(Clone, Copy, Debug)]
struct Case {
    main: &'static [&'static str],
    kind: VdevKind,
    log: bool,
    throughput: bool,
    block_size: u64,
}

const CASES: [Case; 4] = [
    Case { main: &["d0"], kind: VdevKind::Disk, log: false, throughput: false, block_size: 16 << 10 },
    Case { main: &["d0", "d1"], kind: VdevKind::Mirror, log: false, throughput: true, block_size: 8 << 10 },
    Case {
        main: &["d0", "d1", "d2"],
        kind: VdevKind::Raidz { nparity: 1 },
        log: false,
        throughput: false,
        block_size: 64 << 10,
    },
    Case { main: &["d0"], kind: VdevKind::Disk, log: true, throughput: false, block_size: 16 << 10 },
];

fn host() -> Host {
    Host { id: 0x51e, name: "simulated".into() }
}

fn path(disk: &str) -> PathBuf {
    Path::new("/disks").join(disk)
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
        let spa = Spa::create(env, &PoolSpec { tops, ..PoolSpec::default() }, opts).await?;
        let (dsl, block_size) = (spa.dsl.clone(), self.block_size);
        let task = spa.ctx.sync_task(move |tx| {
            Box::pin(async move {
                let new = NewVolume { size: (WORKERS * UNITS * UNIT) as u64, block_size };
                create_volume(&dsl, &tx, "tank/v", new, &[]).await.map(drop)
            })
        });
        task.await?;
        Ok(spa)
    }

    async fn open(&self, env: &Env, spa: &Arc<Spa>) -> Result<Arc<Zvol>> {
        let ds = spa.dsl.by_name("tank/v").await?;
        let os = spa.dsl.objset(&ds).await?;
        spa.dsl.open_log(&ds).await?;
        let props = VolumeProps { throughput: self.throughput, ..VolumeProps::default() };
        Zvol::open(env.clone(), os, Some(spa.ctx.txgs.clone()), Arc::new(Unlimited), props).await
    }
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

/// For each unit of a worker what it may hold: what it was when it was last made stable, and what
/// was done since. Tag 0: zeroes.
type Model = Vec<Vec<u32>>;

struct Work {
    models: Mutex<Vec<Model>>,
    tags: AtomicU64,
}

async fn worker(env: Env, zvol: Arc<Zvol>, work: Arc<Work>, w: usize) -> Result<()> {
    let at = |unit: usize| ((w * UNITS + unit) * UNIT) as u64;
    let block = zvol.block_size() as usize / UNIT;
    loop {
        let tag = work.tags.fetch_add(1, Ordering::Relaxed) as u32;
        let from = env.random_below(UNITS as u64) as usize;
        let fill = |from: usize, to: usize, tag: u32| {
            work.models.lock()[w][from..to].iter_mut().for_each(|u| u.push(tag));
        };
        match env.random_below(12) {
            0 => {
                let to = (from + 1 + env.random_below(40) as usize).min(UNITS);
                fill(from, to, 0);
                zvol.free(at(from), at(to) - at(from)).await?;
            }
            1 => {
                let to = (from + 1 + env.random_below(80) as usize).min(UNITS);
                let (first, end) = (from.next_multiple_of(block), to / block * block);
                if first < end {
                    fill(first, end, 0);
                }
                zvol.trim(at(from), at(to) - at(from)).await?;
            }
            kind => {
                // From one unit to several blocks, whole blocks often.
                let (from, len) = match kind {
                    2..6 => (from, 1 + env.random_below(3) as usize),
                    6..9 => (from, 1 + env.random_below(60) as usize),
                    _ => (from / block * block, block << env.random_below(3)),
                };
                let to = (from + len).min(UNITS);
                fill(from, to, tag);
                let data: Bytes = unit(tag).repeat(to - from).into();
                zvol.write(at(from), &[data]).await?;
                if env.random_below(3) == 0 {
                    // As a write with FUA.
                    zvol.flush().await?;
                    work.models.lock()[w][from..to].iter_mut().for_each(|u| *u = vec![tag]);
                }
            }
        }
        if env.random_below(4) == 0 {
            zvol.flush().await?;
            let last = |u: &mut Vec<u32>| drop(u.drain(..u.len() - 1));
            work.models.lock()[w].iter_mut().for_each(last);
        }
        env.sleep(Duration::from_micros(env.random_below(20_000))).await;
    }
}

/// What is there is what may be there, and the pool adds up.
async fn check(case: &Case, env: &Env, spa: &Arc<Spa>, models: &[Model]) {
    let zvol = case.open(env, spa).await.unwrap();
    for (w, m) in models.iter().enumerate() {
        for (i, tags) in m.iter().enumerate() {
            let is = zvol.read(((w * UNITS + i) * UNIT) as u64, UNIT).await.unwrap().concat();
            let may = |tag: &u32| if *tag == 0 { is == [0; UNIT] } else { is == unit(*tag) };
            let tag = u32::from_ne_bytes(is[..4].try_into().unwrap());
            assert!(tags.iter().any(may), "user {w}: unit {i} is of operation {tag} and not of {tags:?}");
        }
    }
    drop(zvol);
    for _ in 0..2 {
        spa.sync().await.unwrap();
        let report = check_pool(spa, CheckOpts { every_copy: true }).await.unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}

fn run(case: &Case, seed: u64) -> u64 {
    let sim = case.world(seed);
    let env = sim.env();
    let (models, commits) = sim.block_on(async {
        let spa = case.create(&env).await.unwrap();
        let zvol = case.open(&env, &spa).await.unwrap();
        let models = Mutex::new(vec![vec![vec![0]; UNITS]; WORKERS]);
        let work = Arc::new(Work { models, tags: AtomicU64::new(1) });
        let tasks: Vec<_> = (0..WORKERS)
            .map(|w| env.spawn_with_result(worker(env.clone(), zvol.clone(), work.clone(), w)))
            .collect();
        env.sleep(Duration::from_micros(20_000 + env.random_below(7_000_000))).await;
        for task in tasks {
            let ended = futures_util::FutureExt::now_or_never(task);
            assert!(ended.is_none(), "seed {seed}: a user ended: {ended:?}, {:?}", spa.suspended());
        }
        assert!(spa.suspended().is_none());
        (work.models.lock().clone(), spa.ctx.log.stats.get().commits)
    });
    let policy = [CrashPolicy::LoseAll, CrashPolicy::Shuffle, CrashPolicy::Random][(seed % 3) as usize];
    let mut left = sim.power_off(policy, seed);
    // In some the power goes again while the log is replayed.
    for again in 0..seed % 3 {
        let sim = left.boot(seed + 1000 * (again + 1));
        let env = sim.env();
        sim.block_on(async {
            let cut = env.sleep(Duration::from_micros(env.random_below(30_000)));
            let replay = async {
                let spa = import(&env).await.unwrap();
                drop(case.open(&env, &spa).await.unwrap());
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
    commits
}

fn runs(case: usize) {
    let many = std::env::var("ZILLA_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(9);
    let commits: u64 = (0..many).map(|seed| run(&CASES[case], 100 * case as u64 + seed)).sum();
    assert!(commits > 20 * many, "only {commits} commits");
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
fn power_cuts_on_a_raidz_with_large_blocks() {
    runs(2);
}

#[test]
fn power_cuts_with_a_log_device() {
    runs(3);
}

/// A write that is longer than a block of the log is cut into several records: where the power goes
/// between them, each sector is of it or is not.
fn cut_a_long_write(case: &'static Case, seed: u64) -> bool {
    const FIRST: usize = 3;
    const LONG: usize = 60;
    let sim = case.world(seed);
    let env = sim.env();
    sim.block_on(async {
        let spa = case.create(&env).await.unwrap();
        let zvol = case.open(&env, &spa).await.unwrap();
        zvol.write(0, &[unit(1).repeat(UNITS).into()]).await.unwrap();
        zvol.flush().await.unwrap();
        spa.sync().await.unwrap();
        zvol.write((FIRST * UNIT) as u64, &[unit(2).repeat(LONG).into()]).await.unwrap();
        let flush = Box::pin(async { zvol.flush().await.unwrap() });
        let cut = Box::pin(env.sleep(Duration::from_micros(env.random_below(800))));
        futures_util::future::select(flush, cut).await;
    });
    let policy = [CrashPolicy::LoseAll, CrashPolicy::Shuffle, CrashPolicy::Random][(seed % 3) as usize];
    let sim = sim.power_off(policy, seed).boot(seed + 9000);
    let env = sim.env();
    sim.block_on(async {
        let spa = import(&env).await.unwrap();
        let zvol = case.open(&env, &spa).await.unwrap();
        let mut new = 0;
        for i in 0..UNITS {
            let is = zvol.read((i * UNIT) as u64, UNIT).await.unwrap().concat();
            let written = (FIRST..FIRST + LONG).contains(&i) && is == unit(2);
            assert!(written || is == unit(1), "{case:?}, seed {seed}: unit {i} is half of a write");
            new += usize::from(written);
        }
        new > 0 && new < LONG
    })
}

#[test]
fn a_long_write_is_cut_between_sectors() {
    let cut: usize = (0..60).filter(|seed| cut_a_long_write(&CASES[0], 700 + seed)).count();
    assert!(cut > 0, "the power never went between its records");
}

/// Goes away in the middle of a flush, and rolls the volume back at once: what the flush, which
/// goes on by itself, allocates from then on is given back, and no space map has a block freed
/// before it is allocated.
fn roll_back_under_a_flush(case: &'static Case, seed: u64) {
    let sim = case.world(seed);
    let env = sim.env();
    sim.block_on(async {
        let spa = case.create(&env).await.unwrap();
        let dsl = spa.dsl.clone();
        let taken = spa
            .ctx
            .sync_task(move |tx| Box::pin(async move { dsl.snapshot(&tx, &["tank/v@s".to_owned()]).await }));
        taken.await.unwrap();
        for round in 0..6 {
            let zvol = case.open(&env, &spa).await.unwrap();
            if round % 3 > 0 {
                // There is a chain already.
                zvol.write(0, &[Bytes::from(unit(1))]).await.unwrap();
                zvol.flush().await.unwrap();
                if round % 3 == 1 {
                    spa.sync().await.unwrap();
                }
            }
            let len = env.random_below((UNITS * UNIT) as u64) as usize + 1;
            let data: Vec<u8> = (0..len.div_ceil(UNIT) as u32).flat_map(|tag| unit(3 * tag + 1)).collect();
            let at = env.random_below(2) * case.block_size;
            zvol.write(at, &[Bytes::from(data)]).await.unwrap();
            let mut flush = Box::pin(zvol.flush());
            let at_once = futures_util::FutureExt::now_or_never(&mut flush).is_some();
            drop(flush);
            drop(zvol);
            if !at_once && seed % 2 == 1 {
                env.sleep(Duration::from_micros(env.random_below(3000))).await;
            }
            let dsl = spa.dsl.clone();
            let back =
                spa.ctx.sync_task(move |tx| Box::pin(async move { dsl.rollback(&tx, "tank/v", None).await }));
            back.await.unwrap();
        }
        spa.sync().await.unwrap();
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let spa = import(&env).await.unwrap();
        let report = check_pool(&spa, CheckOpts::default()).await.unwrap();
        assert!(report.is_clean(), "{case:?}, seed {seed}: {:#?}", report.findings);
        spa.close(None).await.unwrap();
    });
}

#[test]
fn a_volume_that_is_rolled_back_under_a_flush_leaks_nothing() {
    let many = std::env::var("ZILLA_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(9);
    for case in &CASES {
        (0..many).for_each(|seed| roll_back_under_a_flush(case, 500 + seed));
    }
}
