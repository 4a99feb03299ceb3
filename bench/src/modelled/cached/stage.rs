//! A pool of disks with cache devices in front, what it is asked, and what that took.

use crate::engine::Result;
use crate::meter::Mark;
use crate::modelled::patterned::Patterned;
use crate::modelled::rig::{Caches, Devices, POOL, Rig, Shape, path, seeded_world};
use bytes::Bytes;
use serde_json::{Value, json};
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zilla::Volume;
use zilla::engine::open_volume;
use zilla_core::dsl::Setting;
use zilla_core::spa::{OpenOpts, Spa, discover};
use zilla_core::txg::DirtyLimits;
use zilla_core::vdev::LeafSpec;
use zilla_core::zap::Value as ZapValue;
use zilla_core::zvol::{NewVolume, create_volume};
use zilla_env::{BoxFuture, Device, Env};
use zilla_ondisk::enums::PoolState;

pub const DISKS: usize = 8;
pub const DISK: &str = "7200rpm-sata";
pub const CACHE: &str = "nvme";
/// Of one size, which is scaled: memory for blocks, the set that is used, and all cache devices
/// together.
pub const MEMORY: f64 = 0.5;
pub const SET: f64 = 1.2;
pub const FLASH: f64 = 1.6;
/// What a cache device has beside the blocks: labels, the header, and the log.
const BESIDE: u64 = 16 << 20;
/// Of the ARC's size, as OpenZFS has it.
const DBUFS: u64 = 32;
/// Bytes of one write while a volume is made.
const PIECE: u64 = 1 << 20;
/// Rate at which a set is read so that feeding keeps up, and how often it is read at most.
const WARMING: u64 = 24;
const ROUNDS: usize = 6;
/// What a step takes that is served from memory: computing takes no time here, and a thread that
/// found all it asks for there would never let any go by.
const FROM_MEMORY: Duration = Duration::from_micros(10);
/// Of a set that is said to be cached.
const ALL: f64 = 0.98;
/// `compression=off`.
const OFF: u64 = 2;

/// The size to which the others have their ratios.
#[derive(Clone, Copy)]
pub struct Size(pub u64);

/// By how much all sizes are divided, for a quick look.
static SHRINK: AtomicU64 = AtomicU64::new(1);

impl Size {
    pub fn shrink(by: u64) {
        SHRINK.store(by.max(1), Ordering::Relaxed);
    }

    pub fn of(self, ratio: f64) -> u64 {
        let size = self.0 / SHRINK.load(Ordering::Relaxed);
        (size as f64 * ratio) as u64 >> 20 << 20
    }
}

pub struct Stage {
    pub env: Env,
    pub spa: Arc<Spa>,
    caches: Caches,
    devices: usize,
    is_cached: bool,
}

/// A world with a pool, and in it `act`. Each disk has `disk` bytes; there are so many cache
/// `devices`, of which the pool has none yet.
pub fn on_stage<T: Send, F: Future<Output = Result<T>> + Send>(
    seed: u64,
    size: Size,
    disk: u64,
    devices: usize,
    act: impl FnOnce(Stage) -> F,
) -> Result<T> {
    let sim = seeded_world(seed);
    let main = Devices { count: DISKS, profile: DISK, size: disk, shape: Shape::Single };
    let each = size.of(FLASH) / devices.max(1) as u64 + BESIDE;
    let cache = Devices { count: devices, profile: CACHE, size: each, shape: Shape::Spare };
    let others = Arc::default();
    let memory = |role: &str, i: usize, size: u64| -> Arc<dyn Device> {
        Arc::new(Patterned::new(size, path(role, i), &others))
    };
    let arc = size.of(MEMORY);
    let caches = Caches { dbufs: (arc / DBUFS) as usize, arc };
    let Rig { env, spa, fs } =
        Rig::made_of(&sim.env(), &[("main", main), ("cache", cache)], None, caches, memory)?;
    drop(fs);
    let stage = Stage { env: env.clone(), spa, caches, devices, is_cached: false };
    stage.set_dirty();
    env.block_on(act(stage))
}

/// One thing that a reader or writer does: a block of a volume.
pub struct Step {
    pub volume: Arc<Volume>,
    pub block: u64,
    pub write: bool,
}

/// What each thread does next.
pub type Next = Arc<dyn Fn(usize) -> Step + Send + Sync>;

#[derive(Clone, Copy)]
pub struct Load {
    pub threads: usize,
    /// Bytes of a step, which is a block of its volume.
    pub block: u64,
    pub warm: Duration,
    pub time: Duration,
}

/// What a load saw.
#[derive(Clone, Default)]
pub struct Seen {
    pub per_second: f64,
    pub mbps: f64,
    /// Microseconds.
    pub mean: f64,
    pub p99: f64,
    /// Shares of the steps for which something was read from there; the rest came from memory.
    pub flash: f64,
    pub disks: f64,
    /// Written to cache devices meanwhile.
    pub fed_mbps: f64,
    /// CPU of this machine, in microseconds a step.
    pub cpu: f64,
    times: Vec<u32>,
}

impl Seen {
    pub fn memory_share(&self) -> f64 {
        1.0 - self.flash - self.disks
    }

    /// Share that no disk was asked for.
    pub fn hits(&self) -> f64 {
        1.0 - self.disks
    }

    pub fn show(&self, what: &str) -> Value {
        println!(
            "  {what:26} {:9.0} a second, {:8.1} MB/s, mean {:8.0} us, p99 {:8.0} us; memory {:.3}, flash {:.3}, disks {:.3}; fed {:.1} MB/s; {:.1} us CPU each",
            self.per_second,
            self.mbps,
            self.mean,
            self.p99,
            self.memory_share(),
            self.flash,
            self.disks,
            self.fed_mbps,
            self.cpu
        );
        json!({ "what": what, "per_second": self.per_second, "MBps": self.mbps, "mean_us": self.mean, "p99_us": self.p99,
            "memory": self.memory_share(), "flash": self.flash, "disks": self.disks, "fed_MBps": self.fed_mbps,
            "cpu_us": self.cpu })
    }

    /// Several runs as one.
    pub fn joined(runs: &[Seen]) -> Seen {
        let n = runs.len().max(1) as f64;
        let mean = |f: fn(&Seen) -> f64| runs.iter().map(f).sum::<f64>() / n;
        let mut all = Seen {
            per_second: mean(|s| s.per_second),
            mbps: mean(|s| s.mbps),
            flash: mean(|s| s.flash),
            disks: mean(|s| s.disks),
            fed_mbps: mean(|s| s.fed_mbps),
            cpu: mean(|s| s.cpu),
            times: runs.iter().flat_map(|s| s.times.iter().copied()).collect(),
            ..Seen::default()
        };
        all.judge();
        all
    }

    /// Mean and tail of the times.
    fn judge(&mut self) {
        self.times.sort_unstable();
        let n = self.times.len().max(1);
        self.mean = self.times.iter().map(|t| f64::from(*t)).sum::<f64>() / n as f64;
        self.p99 = self.times.get(n * 99 / 100).map_or(0.0, |t| f64::from(*t));
    }
}

/// Counters of both levels.
#[derive(Clone, Copy)]
pub struct Counts {
    misses: u64,
    l2_hits: u64,
    l2_misses: u64,
    l2_written: u64,
}

#[derive(Default)]
struct Gauge {
    counts: AtomicBool,
    stop: AtomicBool,
    times: Mutex<Vec<u32>>,
}

impl Stage {
    fn set_dirty(&self) {
        // As OpenZFS, a tenth of the memory, of which the ARC has half.
        let dirty = DirtyLimits::of_memory(2 * self.caches.arc);
        self.spa.ctx.txgs.set_limits(dirty);
    }

    /// The cache devices come into use.
    pub async fn plug(&mut self) -> Result<()> {
        let leaf = |i| LeafSpec { path: path("cache", i), disk: true };
        let specs: Vec<LeafSpec> = (0..self.devices).map(leaf).collect();
        if !specs.is_empty() {
            self.spa.add_cache(&specs).await?;
            self.is_cached = true;
        }
        Ok(())
    }

    pub fn statistic(&self, name: &str) -> u64 {
        let all = self.spa.zio.l2().arcstats().into_iter().chain(self.spa.zio.cache().arcstats());
        all.filter(|(n, _)| *n == name).map(|(_, v)| v).sum()
    }

    pub fn counts(&self) -> Counts {
        let n = |name| self.statistic(name);
        Counts {
            misses: n("misses"),
            l2_hits: n("l2_hits"),
            l2_misses: n("l2_misses"),
            l2_written: n("l2_write_bytes"),
        }
    }

    /// A volume of blocks that no other is like.
    pub async fn volume(&self, name: &str, bytes: u64, block: u64) -> Result<Arc<Volume>> {
        let name = format!("{POOL}/{name}");
        let (dsl, full) = (self.spa.dsl.clone(), name.clone());
        let new = NewVolume { size: bytes, block_size: block };
        let make = move |tx| -> BoxFuture<'static, _> {
            Box::pin(async move {
                let off = [("compression".to_owned(), Setting::Local(ZapValue::u64(OFF)))];
                create_volume(&dsl, &tx, &full, new, &off).await.map(|_| ())
            })
        };
        self.spa.ctx.sync_task(make).await?;
        let volume = self.open(&name).await?;
        let per_piece = PIECE.max(block) / block;
        for first in (0..bytes / block).step_by(per_piece as usize) {
            let blocks = per_piece.min(bytes / block - first);
            let data: Vec<Bytes> = (0..blocks).map(|_| self.contents(block)).collect();
            volume.write(first * block, &data, false).await?;
        }
        self.spa.sync().await?;
        Ok(volume)
    }

    pub async fn open(&self, name: &str) -> Result<Arc<Volume>> {
        Ok(open_volume(&self.env, &self.spa.dsl, name, false).await?)
    }

    /// Of a block, as no other has them.
    fn contents(&self, block: u64) -> Bytes {
        contents(&self.env, block)
    }

    /// Reads volumes in order, so slowly that feeding keeps up, until the cache devices have them.
    /// The share that they have then.
    pub async fn warm(&self, volumes: &[Arc<Volume>]) -> Result<f64> {
        let mut bytes = 0;
        for volume in volumes {
            bytes += volume.size()?;
        }
        let share = || self.statistic("l2_bufc_data_asize") as f64 / bytes as f64;
        for _ in 0..ROUNDS {
            for volume in volumes {
                for at in (0..volume.size()?).step_by(PIECE as usize) {
                    volume.read(at, PIECE.min(volume.size()? - at) as usize).await?;
                    self.env.sleep(Duration::from_secs(1) / WARMING as u32).await;
                }
            }
            if !self.is_cached || share() >= ALL {
                break;
            }
        }
        Ok(share())
    }

    /// Threads do what is `next` until the time is over.
    pub async fn run(&self, load: Load, next: Next) -> Result<Seen> {
        let gauge = Arc::new(Gauge::default());
        let threads: Vec<_> = (0..load.threads)
            .map(|thread| {
                let (env, gauge, next) = (self.env.clone(), gauge.clone(), next.clone());
                let again = env.clone();
                again.spawn_with_result(
                    async move { work(&env, &gauge, load, u64::MAX, || next(thread)).await },
                )
            })
            .collect();
        self.env.sleep(load.warm).await;
        let (before, mark) = (self.counts(), Mark::now());
        gauge.counts.store(true, Ordering::Relaxed);
        self.env.sleep(load.time).await;
        gauge.counts.store(false, Ordering::Relaxed);
        let seen = self.seen(load, &before, &mark, load.time.as_secs_f64(), &gauge);
        gauge.stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.await?;
        }
        Ok(seen)
    }

    /// Threads do so many steps each, and the rate is that of all of them together until the last
    /// is done: one that finds all in memory is not counted for the others.
    pub async fn finish(&self, load: Load, steps: u64, next: Next) -> Result<Seen> {
        let gauge = Arc::new(Gauge::default());
        gauge.counts.store(true, Ordering::Relaxed);
        let (before, mark, begin) = (self.counts(), Mark::now(), self.env.now());
        let threads: Vec<_> = (0..load.threads)
            .map(|thread| {
                let (env, gauge, next) = (self.env.clone(), gauge.clone(), next.clone());
                let again = env.clone();
                again.spawn_with_result(async move { work(&env, &gauge, load, steps, || next(thread)).await })
            })
            .collect();
        for thread in threads {
            thread.await?;
        }
        let seconds = self.env.now().saturating_sub(begin).as_secs_f64();
        Ok(self.seen(load, &before, &mark, seconds, &gauge))
    }

    fn seen(&self, load: Load, before: &Counts, mark: &Mark, seconds: f64, gauge: &Gauge) -> Seen {
        let (after, disks, cpu) = (self.counts(), self.disk_reads(before), mark.spent().cpu);
        let times = std::mem::take(&mut *gauge.times.lock().unwrap_or_else(PoisonError::into_inner));
        let n = times.len() as f64;
        let (flash, disks) = (after.l2_hits - before.l2_hits, disks);
        let share = |n_of: u64| n_of as f64 / n.max(1.0);
        let mut seen = Seen {
            per_second: n / seconds,
            mbps: n * load.block as f64 / seconds / 1e6,
            flash: share(flash),
            disks: share(disks),
            fed_mbps: (after.l2_written - before.l2_written) as f64 / seconds / 1e6,
            cpu: cpu * 1e6 / n.max(1.0),
            times,
            ..Seen::default()
        };
        seen.judge();
        seen
    }

    /// The share of so many steps for which no disk is read, however long they take.
    pub async fn probe(&self, threads: usize, steps: u64, block: u64, next: &Next) -> Result<f64> {
        let before = self.counts();
        let probes: Vec<_> = (0..threads)
            .map(|thread| {
                let next = next.clone();
                self.env.spawn_with_result(async move {
                    for _ in 0..steps / threads as u64 {
                        let step = next(thread);
                        step.volume.read(step.block * block, block as usize).await?;
                    }
                    Ok::<_, zilla::Error>(())
                })
            })
            .collect();
        for probe in probes {
            probe.await?;
        }
        let read = self.disk_reads(&before) as f64 / steps as f64;
        Ok((1.0 - read).max(0.0))
    }

    /// Blocks that were read from disks since.
    fn disk_reads(&self, before: &Counts) -> u64 {
        let after = self.counts();
        if self.is_cached { after.l2_misses - before.l2_misses } else { after.misses - before.misses }
    }

    /// Exports the pool and imports it again.
    pub async fn restart(&mut self) -> Result<()> {
        self.spa.close(Some(PoolState::Exported)).await?;
        let places: Vec<PathBuf> = (0..DISKS).map(|i| path("main", i)).collect();
        let found = discover(&self.env, &places).await?;
        let pool = found.first().ok_or("the pool is gone")?;
        let opts =
            OpenOpts { dbuf_cache: self.caches.dbufs, arc_max: self.caches.arc, ..OpenOpts::default() };
        self.spa = Spa::open(&self.env, pool, opts).await?;
        self.set_dirty();
        Ok(())
    }
}

pub fn contents(env: &Env, block: u64) -> Bytes {
    let word = (env.rng.u64() | 1).to_le_bytes();
    Bytes::from(word.repeat(block as usize / word.len()))
}

async fn work(
    env: &Env,
    gauge: &Gauge,
    load: Load,
    steps: u64,
    next: impl Fn() -> Step,
) -> zilla::Result<()> {
    for _ in 0..steps {
        if gauge.stop.load(Ordering::Relaxed) {
            break;
        }
        let (step, begin) = (next(), env.now());
        let at = step.block * load.block;
        if step.write {
            step.volume.write(at, &[contents(env, load.block)], false).await?;
        } else {
            step.volume.read(at, load.block as usize).await?;
        }
        if env.now() == begin {
            env.sleep(FROM_MEMORY).await;
        }
        if gauge.counts.load(Ordering::Relaxed) {
            let micros = env.now().saturating_sub(begin).as_micros() as u32;
            gauge.times.lock().unwrap_or_else(PoisonError::into_inner).push(micros);
        }
    }
    Ok(())
}

/// Blocks at random.
pub fn at_random(env: &Env, volume: &Arc<Volume>, blocks: u64, writes_percent: u64) -> Next {
    let (env, volume) = (env.clone(), volume.clone());
    Arc::new(move |_| Step {
        volume: volume.clone(),
        block: env.random_below(blocks),
        write: env.random_below(100) < writes_percent,
    })
}
