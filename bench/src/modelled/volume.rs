//! Writes into parts of a volume's records on modelled disks: what they cost beside whole records.
//!
//! A raidz2 of four, 128K records, of which little fits into memory: the table that Spectra Logic
//! published of deferred copy-on-write faults. Each row has a pool of its own, filled once in
//! order, and ends when all it wrote is synced.
//!
//! **Limits.** Whole records one after the other, and what becomes such before it is written, can
//! go as fast as the disks turn, less parity and padding. A record written in part at random has to
//! be read first. The least that takes is what the modelled disk itself takes for the reads of each
//! txg in the order of the disk, its queue full, and then for all that was written, without a gap.
//! Who waits for each read gives the disks ten at a time, in the order of the requests; reads too.
//! A gap between two places costs the model a wait, so the number of faults of a txg, which
//! follows from how much may be dirty, has a part in it.
//!
//! The disks are as large as the volume asks for, so that an arm goes across all of a disk as it
//! would in a full one; on a larger disk with the same volume all seeks would be shorter.

use super::patterned::Patterned;
use super::rig::{Caches, Devices, POOL, Rig, Shape, path, virtual_world};
use crate::engine::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zilla::Volume;
use zilla::engine::open_volume;
use zilla_core::dmu::FaultCounts;
use zilla_core::dsl::Setting;
use zilla_core::zap::Value as ZapValue;
use zilla_core::zvol::{NewVolume, create_volume};
use zilla_env::model::{Profile, Timing};
use zilla_env::{BoxFuture, Device, Env};

const DISK: &str = "7200rpm-sata";
const DISKS: usize = 4;
const RECORD: u64 = 128 << 10;
const SMALL: u64 = 16 << 10;
/// Off the records' bounds.
const SHIFT: u64 = 8 << 10;
/// What a record takes of each disk: 32 sectors of 4K, as many of parity, and two that pad it.
const SHARE: u64 = (32 + 32 + 2) * 4096 / DISKS as u64;
/// A record's data lie on two of the four.
const DATA_DISKS: usize = 2;
const QUEUE_DEPTH: usize = 10;
/// A disk is given so many reads at a time that somebody waits for, as OpenZFS does, lest a reader
/// waits for all that its queue can hold.
const GIVEN: usize = 10;
/// Of the disk's bytes that are in use.
const FULL: f64 = 0.5;
const CACHES: Caches = Caches { dbufs: 64 << 20, arc: 256 << 20 };
/// `compression=off`.
const OFF: u64 = 2;
/// How often somebody looks whether a txg has been synced.
const LOOK: Duration = Duration::from_millis(5);

/// What is promised: of the limit, of the rate of whole records, and of who waits for each read.
const OF_LIMIT: f64 = 0.9;
const OF_WHOLE: f64 = 0.9;
const FASTER: f64 = 5.0;
/// Whoever fills records reads nothing, but for the record that the end of a txg cuts in two, and
/// what leads to the records: that much of what was written at most.
const NOTHING: f64 = 0.001;

/// GB of the volume, if nothing else is said.
pub const GB: f64 = 4.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Write,
    /// The record is read first: copy-on-write faults that are not deferred.
    ReadThenWrite,
    Read,
}

#[derive(Clone, Copy, Debug)]
struct Load {
    name: &'static str,
    op: Op,
    len: u64,
    shift: u64,
    random: bool,
    depth: usize,
}

const WHOLE: Load = Load {
    name: "aligned 128K sequential overwrite",
    op: Op::Write,
    len: RECORD,
    shift: 0,
    random: false,
    depth: 1,
};
const PARTS: Load = Load { name: "aligned 16K sequential overwrite", len: SMALL, ..WHOLE };
const SHIFTED: Load = Load { name: "unaligned 128K sequential overwrite", shift: SHIFT, ..WHOLE };
const RANDOM: Load =
    Load { name: "16K random overwrite", len: SMALL, random: true, depth: QUEUE_DEPTH, ..WHOLE };
const WAITING: Load = Load { name: "the same, waiting for each read", op: Op::ReadThenWrite, ..RANDOM };
const READS: Load = Load { name: "16K random read", op: Op::Read, ..RANDOM };

/// What came of one.
struct Outcome {
    ops: u64,
    seconds: f64,
    limit_seconds: f64,
    /// The same where the disks are given [`GIVEN`] at a time and not all that they take.
    given_seconds: f64,
    read: u64,
    faults: FaultCounts,
}

impl Outcome {
    fn rate(&self) -> f64 {
        self.ops as f64 / self.seconds
    }

    fn limit(&self) -> f64 {
        self.ops as f64 / self.limit_seconds
    }
}

fn verdict(kept: bool) -> &'static str {
    if kept { "kept" } else { "MISSED" }
}

pub fn run(gb: f64) -> Result<Value> {
    let profile = Profile::named(DISK).ok_or("there is no such profile")?;
    println!(
        "a volume of {gb} GB, 128K records, raidz2 of {DISKS} modelled disks of 7200 rpm and {:.0} MB/s",
        profile.media_write as f64 / 1e6
    );
    let mut rows = Vec::new();
    let mut row = |load: &Load| -> Result<Outcome> {
        let o = one(load, gb, &profile)?;
        let per_second = if load.random { 1.0 } else { load.len as f64 / 1e6 };
        let unit = if load.random { "a second" } else { "MB/s" };
        let share = o.rate() / o.limit();
        println!(
            "{:36} at depth {:2}: {:6.1} {unit}, the limit is {:6.1}, {share:.2} of it (wanted {OF_LIMIT}: {}); read {:.1} MB",
            load.name,
            load.depth,
            o.rate() * per_second,
            o.limit() * per_second,
            verdict(share >= OF_LIMIT),
            o.read as f64 / 1e6,
        );
        if o.given_seconds > o.limit_seconds {
            let given = o.ops as f64 / o.given_seconds;
            println!(
                "{:36} with {GIVEN} reads at a time at a disk, which is the rule, it is {given:.1}, {:.2} of it",
                "",
                o.rate() / given
            );
        }
        if o.faults.deferred > 0 {
            let f = &o.faults;
            println!(
                "{:36} faults: {} deferred, {} avoided, {} read early, {} by the sync",
                "", f.deferred, f.avoided, f.resolved_early, f.resolved_by_sync
            );
        }
        rows.push(json!({ "what": load.name, "depth": load.depth, "rate": o.rate() * per_second,
            "unit": unit, "limit": o.limit() * per_second, "share": share, "bytes_read": o.read,
            "faults_deferred": o.faults.deferred, "faults_avoided": o.faults.avoided }));
        Ok(o)
    };
    let whole = row(&WHOLE)?;
    let parts = [row(&PARTS)?, row(&Load { depth: QUEUE_DEPTH, ..PARTS })?];
    row(&SHIFTED)?;
    let (random, waiting) = (row(&RANDOM)?, row(&WAITING)?);
    row(&READS)?;
    for o in &parts {
        let share = o.rate() * SMALL as f64 / (whole.rate() * RECORD as f64);
        let part = o.read as f64 / (o.ops * SMALL) as f64;
        println!(
            "16K sequential reaches {share:.2} of whole records (wanted {OF_WHOLE}: {}), and reads {part:.5} of what it writes (wanted nothing, {NOTHING} at most: {})",
            verdict(share >= OF_WHOLE),
            verdict(part <= NOTHING)
        );
    }
    let (gain, most) = (random.rate() / waiting.rate(), random.limit() / waiting.limit());
    println!(
        "16K random overwrite is {gain:.1}x one that waits for each read (wanted {FASTER}: {}); the disks allow {most:.1}x{}",
        verdict(gain >= FASTER),
        if most < FASTER { ", so what is wanted cannot be had here" } else { "" }
    );
    Ok(json!({ "GB": gb, "rows": rows, "gain": gain, "gain_limit": most }))
}

/// A pool of its own, filled in order, and the load on it.
fn one(load: &Load, gb: f64, profile: &Profile) -> Result<Outcome> {
    let sim = virtual_world();
    let bytes = (gb * 1e9) as u64 / RECORD * RECORD;
    let size = (bytes as f64 / RECORD as f64 * SHARE as f64 / FULL) as u64 >> 20 << 20;
    let main = Devices { count: DISKS, profile: DISK, size, shape: Shape::Raidz2 };
    let made = Mutex::new(Vec::new());
    let others = Arc::default();
    let memory = |role: &str, i: usize, size: u64| -> Arc<dyn Device> {
        let device = Arc::new(Patterned::watched(size, path(role, i), &others));
        made.lock().unwrap_or_else(PoisonError::into_inner).push(device.clone());
        device
    };
    let rig = Rig::made_of(&sim.env(), &[("main", main)], None, CACHES, memory)?;
    let disks = made.into_inner().unwrap_or_else(PoisonError::into_inner);
    let env = rig.env.clone();
    env.block_on(async {
        let volume = filled(&rig, bytes).await?;
        Bench { rig, volume, bytes, disks, profile }.measure(load).await
    })
}

async fn filled(rig: &Rig, bytes: u64) -> Result<Arc<Volume>> {
    let name = format!("{POOL}/v");
    let (dsl, full) = (rig.spa.dsl.clone(), name.clone());
    let new = NewVolume { size: bytes, block_size: RECORD };
    let make = move |tx| -> BoxFuture<'static, _> {
        Box::pin(async move {
            let off = [("compression".to_owned(), Setting::Local(ZapValue::u64(OFF)))];
            create_volume(&dsl, &tx, &full, new, &off).await.map(|_| ())
        })
    };
    rig.spa.ctx.sync_task(make).await?;
    let volume = open_volume(&rig.env, &rig.spa.dsl, &name, false).await?;
    for i in 0..bytes / RECORD {
        volume.write(i * RECORD, &[data(&rig.env, RECORD)], false).await?;
    }
    rig.spa.sync().await?;
    // What the last txgs let go is free again.
    for _ in 0..3 {
        rig.spa.sync().await?;
    }
    rig.spa.drop_caches();
    Ok(volume)
}

/// Bytes that nothing else has, and that memory holds as one word.
fn data(env: &Env, len: u64) -> Bytes {
    let word = (env.rng.u64() | 1).to_le_bytes();
    Bytes::from(word.repeat(len as usize / word.len()))
}

struct Bench<'p> {
    rig: Rig,
    volume: Arc<Volume>,
    bytes: u64,
    disks: Vec<Arc<Patterned>>,
    profile: &'p Profile,
}

/// Where a disk was read.
type Places = Vec<(u64, u64)>;

impl Bench<'_> {
    async fn measure(&self, load: &Load) -> Result<Outcome> {
        let (env, spa) = (&self.rig.env, &self.rig.spa);
        let slots = (self.bytes - load.shift) / load.len;
        let ops = if load.random { slots / 16 } else { slots };
        let before = spa.ctx.cache.faults.get();
        let written: Vec<u64> = self.disks.iter().map(|d| d.written()).collect();
        self.disks.iter().for_each(|d| drop(d.reads_as_made()));
        let over = Arc::new(AtomicBool::new(false));
        let in_order = load.op == Op::Write && load.random;
        let watch = env.spawn_with_result(by_txg(
            env.clone(),
            spa.ctx.txgs.clone(),
            self.disks.clone(),
            over.clone(),
            in_order,
        ));
        let begin = env.now();
        let next = Arc::new(AtomicU64::new(0));
        let clients: Vec<_> = (0..load.depth)
            .map(|_| {
                let client =
                    Client { env: env.clone(), volume: self.volume.clone(), load: *load, slots, ops };
                env.spawn_with_result(client.run(next.clone()))
            })
            .collect();
        for client in clients {
            client.await?;
        }
        if load.op != Op::Read {
            spa.sync().await?;
        }
        let seconds = env.now().saturating_sub(begin).as_secs_f64();
        over.store(true, Ordering::Relaxed);
        let places = watch.await;
        let read = places.iter().flatten().map(|(from, to)| to - from).sum();
        let after = spa.ctx.cache.faults.get();
        let limit = |queue: usize| {
            let of = |((disk, places), before): ((&Arc<Patterned>, &Places), &u64)| {
                let reads = self.arithmetic(places, queue, disk.size());
                reads + (disk.written() - before) as f64 / self.profile.media_write as f64
            };
            self.disks.iter().zip(&places).zip(&written).map(of).fold(0.0, f64::max)
        };
        let (limit_seconds, given_seconds) = match (load.random, in_order) {
            (true, true) => (limit(self.profile.queue), limit(GIVEN)),
            (true, false) => (limit(load.depth * DATA_DISKS / DISKS), 0.0),
            (false, _) => {
                let records = (ops * load.len) as f64 / RECORD as f64;
                (records * SHARE as f64 / self.profile.media_write as f64, 0.0)
            }
        };
        let faults = FaultCounts {
            deferred: after.deferred - before.deferred,
            avoided: after.avoided - before.avoided,
            resolved_early: after.resolved_early - before.resolved_early,
            resolved_by_sync: after.resolved_by_sync - before.resolved_by_sync,
            failed: after.failed - before.failed,
            bytes_not_read: after.bytes_not_read - before.bytes_not_read,
        };
        Ok(Outcome { ops, seconds, limit_seconds, given_seconds, read, faults })
    }

    /// Seconds that a disk takes for reads one after the other, so many of which it has at a time.
    fn arithmetic(&self, places: &[(u64, u64)], queue: usize, size: u64) -> f64 {
        let mut disk = Timing::new(self.profile.clone(), size);
        let (mut under_way, mut last) = (VecDeque::new(), Duration::ZERO);
        for (from, to) in places {
            let now = if under_way.len() < queue { None } else { under_way.pop_front() };
            last = disk.read(now.unwrap_or_default(), *from, to - from);
            under_way.push_back(last);
        }
        last.as_secs_f64()
    }
}

/// Where each disk was read until it is over; what of it was read for one txg in the order of the
/// disk, if that is how it may be done best.
async fn by_txg(
    env: Env,
    txgs: Arc<zilla_core::txg::TxgState>,
    disks: Vec<Arc<Patterned>>,
    over: Arc<AtomicBool>,
    in_order: bool,
) -> Vec<Places> {
    let mut all: Vec<Places> = vec![Places::new(); disks.len()];
    let mut synced = txgs.synced();
    loop {
        let last = over.load(Ordering::Relaxed);
        if last || txgs.synced() != synced {
            synced = txgs.synced();
            for (disk, places) in disks.iter().zip(&mut all) {
                places.extend(if in_order { disk.reads() } else { disk.reads_as_made() });
            }
        }
        if last {
            return all;
        }
        env.sleep(LOOK).await;
    }
}

struct Client {
    env: Env,
    volume: Arc<Volume>,
    load: Load,
    slots: u64,
    ops: u64,
}

impl Client {
    async fn run(self, next: Arc<AtomicU64>) -> zilla::Result<()> {
        let Client { env, volume, load, slots, ops } = self;
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= ops {
                return Ok(());
            }
            let slot = if load.random { env.random_below(slots) } else { i };
            let at = slot * load.len + load.shift;
            if load.op != Op::Write {
                volume.read(at, load.len as usize).await?;
            }
            if load.op != Op::Read {
                volume.write(at, &[data(&env, load.len)], false).await?;
            }
        }
    }
}
