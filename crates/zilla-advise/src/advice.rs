//! The advice: what each kind of device would bring, in the sizes that make sense, and how sure
//! that is.

use crate::device;
use crate::gather::Facts;
use crate::queue::{Station, alone, solve};
use crate::second::{Replayed, Ring, replay};
use crate::stack::{Curve, distances};
use std::time::Duration;
use zilla_env::model::Profile;
use zilla_ondisk::trace::Found;

/// Bytes of memory that a block on a cache device takes.
pub const HEADER_BYTES: u64 = 64;
/// The part of the ARC that these may take (`l2arc_meta_percent`).
const HEADERS_PART: f64 = 0.33;
/// How far along memory's lists the feeder looks, in times of what it may write (`l2arc_headroom`).
const HEADROOM: u64 = 8;
/// What a pool's disks are taken for where nobody says: disks that turn, and others.
const TURNING: &str = "7200rpm-sata";
const FLASH: &str = "sata-ssd";
/// The smallest size that a cache device is thought of.
const SMALLEST: u64 = 16 << 20;
const DAY: f64 = 86_400.0;

/// What is asked for beyond what follows from the trace.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Sizes of cache devices in bytes; none: some that fit what is read.
    pub sizes: Vec<u64>,
    /// The kind of the pool's disks.
    pub disks: Option<Profile>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    Low,
    Medium,
    High,
}

/// How demand reads go.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reads {
    pub per_second: f64,
    pub bytes_per_second: f64,
    /// Seconds that one takes on the average, those from memory among them.
    pub seconds: f64,
    /// Found in memory or on a cache device, and the part on a cache device.
    pub hits: f64,
    pub second_level: f64,
}

/// A size and the hit rate of it.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub size: u64,
    pub hits: f64,
}

#[derive(Clone, Debug)]
pub struct CacheAdvice {
    pub profile: String,
    pub size: u64,
    pub reads: Reads,
    /// Memory for its headers.
    pub headers: u64,
    /// Bytes written in a day, and how often that is the whole device.
    pub wear: f64,
    pub writes_a_day: f64,
    /// Seconds until it holds what it will; None: it is not fed at all.
    pub warm: Option<f64>,
    /// The set that is used, in times of memory and device together.
    pub set_ratio: f64,
    /// What the pool's disks read in a second, in times of what the device does.
    pub bandwidth_ratio: f64,
}

#[derive(Clone, Debug)]
pub struct LogAdvice {
    pub profile: String,
    /// Seconds that a commit would take.
    pub commit: f64,
    /// Commits a second, if those who wait for them do nothing else.
    pub most: f64,
}

#[derive(Clone, Debug)]
pub struct Advice {
    pub pool: String,
    pub seconds: f64,
    pub counted_seconds: f64,
    pub records: u64,
    pub lost: u64,
    /// Accesses looked at, and the part of the blocks that they are of.
    pub sampled: u64,
    pub part: f64,
    pub arc_limit: u64,
    pub arc_max: u64,
    /// Bytes of all blocks that were read.
    pub set: u64,
    pub readers: u64,
    pub disks: u64,
    pub disk_kind: String,
    pub now: Reads,
    /// Hit rate over the size of memory, by LRU.
    pub memory: Vec<Point>,
    /// The same over the size of a cache device behind memory as it is.
    pub both: Vec<Point>,
    pub caches: Vec<CacheAdvice>,
    /// Commits a second, and the seconds that one takes now.
    pub commits: f64,
    pub commit: f64,
    /// Bytes of a block of the log.
    pub log_block: u64,
    /// Bytes a second that txgs write.
    pub written: f64,
    pub logs: Vec<LogAdvice>,
    pub confidence: Confidence,
    /// What could not be known, and what to do about it.
    pub notes: Vec<String>,
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// Powers of two around what is read.
fn sizes(set: u64) -> Vec<u64> {
    let top = set.clamp(SMALLEST, 1 << 60).next_power_of_two();
    let mut all: Vec<u64> = [top / 8, top / 4, top / 2, top].into_iter().filter(|s| *s >= SMALLEST).collect();
    if all.is_empty() {
        all.push(SMALLEST);
    }
    all
}

/// Where curves have their points: eight to a doubling's eight.
fn steps(set: u64) -> Vec<u64> {
    let top = (set.max(SMALLEST) as f64) * 2.0;
    (0..48).map(|i| (top * (-f64::from(47 - i) / 6.0).exp2()) as u64).filter(|s| *s > 0).collect()
}

/// What was seen of the pool, as the model wants it.
struct Pool<'a> {
    f: &'a Facts,
    reads: f64,
    /// Reads that wait, as a part of all; those that a cache device there is already has.
    waiting: f64,
    /// Seconds that a reader does something else between two reads.
    elsewhere: f64,
    /// Seconds that a read takes of a disk that has nothing else to do.
    disk: f64,
    bytes: f64,
    stored: u64,
}

impl Pool<'_> {
    fn new(f: &Facts) -> Pool<'_> {
        let c = &f.counted;
        let reads = c.all_reads() as f64;
        let ((from_pool, pool_micros), (joined, joined_micros)) = (c.of(Found::Pool), c.of(Found::OnItsWay));
        let waits = (from_pool + joined) as f64;
        let waited = (pool_micros.saturating_add(joined_micros)) as f64 / 1e6;
        let others = c.of(Found::CacheDevice).1 as f64 / 1e6;
        let per_second = reads / f.counted_seconds;
        // So many turns a second by so many readers leave so much for everything else.
        let elsewhere = (f.readers as f64 / per_second.max(1e-9) - ratio(waited, reads)).max(0.0);
        let seen = ratio(waited, waits);
        let between = (ratio(f.readers as f64 * f.counted_seconds, waits) - seen).max(0.0);
        let disk = alone(f.readers, between, f.header.disks.max(1), seen);
        Pool {
            f,
            reads,
            waiting: ratio(waits, reads),
            elsewhere: elsewhere.max(ratio(others, reads)),
            disk,
            bytes: ratio(c.bytes as f64, reads),
            stored: ratio(c.stored as f64, reads) as u64,
        }
    }

    /// Reads, if a device has this part of those that wait.
    fn with(&self, had: f64, cost: device::Cost) -> Reads {
        let c = &self.f.counted;
        let before = ratio(c.of(Found::CacheDevice).0 as f64, self.reads);
        let memory = ratio(c.of(Found::Memory).0 as f64, self.reads);
        let (quick, slow) = (self.waiting * had, self.waiting * (1.0 - had));
        let stations = [
            Station { visits: slow, seconds: self.disk, servers: self.f.header.disks.max(1) },
            Station { visits: quick, seconds: cost.busy, servers: 1 },
        ];
        // What a read takes beyond the time that it keeps others from theirs delays only itself.
        let apart = quick * (cost.alone - cost.busy).max(0.0);
        let (rate, waits) = solve(self.f.readers, self.elsewhere + apart, &stations);
        let waited: f64 = waits.iter().zip(&stations).map(|(w, s)| w * s.visits).sum();
        Reads {
            per_second: rate,
            bytes_per_second: rate * self.bytes,
            seconds: waited + apart,
            hits: memory + before + quick,
            second_level: before + quick,
        }
    }

    fn now(&self) -> Reads {
        let c = &self.f.counted;
        let before = ratio(c.of(Found::CacheDevice).0 as f64, self.reads);
        let micros: u64 = c.micros.iter().fold(0, |sum, n| sum.saturating_add(*n));
        Reads {
            per_second: self.reads / self.f.counted_seconds,
            bytes_per_second: self.reads * self.bytes / self.f.counted_seconds,
            seconds: ratio(micros as f64 / 1e6, self.reads),
            hits: ratio(c.of(Found::Memory).0 as f64, self.reads) + before,
            second_level: before,
        }
    }

    fn ring(&self, size: u64) -> Ring {
        let (part, h) = (self.f.part, &self.f.header);
        let feed = h.feed_rate as f64 * part;
        let whole = h.arc_limit <= h.feed_rate.saturating_mul(HEADROOM);
        Ring { bytes: size as f64 * part, feed, tail: h.arc_limit.max(1) as f64 * part, whole }
    }
}

/// A device of a size that held what was `replayed`, and that reads at such a `cost`.
fn cache(
    pool: &Pool<'_>,
    profile: &Profile,
    cost: device::Cost,
    (size, replayed): &(u64, Replayed),
    disks: &Profile,
    set: u64,
) -> CacheAdvice {
    let (f, size) = (pool.f, *size);
    let had = ratio(replayed.hits as f64, replayed.waited as f64);
    let blocks = replayed.blocks as f64 / f.part;
    let wear = replayed.written as f64 / f.part / f.counted_seconds * DAY;
    // As fast as it was fed while there was most to be fed.
    let rate = [(replayed.filled, f64::from(f.from) / 1e3), (replayed.written, f.counted_seconds)];
    let rate = rate.into_iter().map(|(bytes, time)| ratio(bytes as f64 / f.part, time)).fold(0.0, f64::max);
    let held = replayed.held as f64 / f.part;
    CacheAdvice {
        profile: profile.name.clone(),
        size,
        reads: pool.with(had, cost),
        headers: (blocks * HEADER_BYTES as f64) as u64,
        wear,
        writes_a_day: ratio(wear, size as f64),
        warm: (rate > 0.0).then(|| held / rate),
        set_ratio: ratio(set as f64, (f.header.arc_limit + size) as f64),
        bandwidth_ratio: ratio(
            device::bandwidth(disks) * f.header.disks.max(1) as f64,
            device::bandwidth(profile),
        ),
    }
}

/// What a device of a size holds, as far as its headers have room.
fn room(pool: &Pool<'_>, size: u64) -> Replayed {
    let most = pool.f.header.arc_max.max(1) as f64 * HEADERS_PART / HEADER_BYTES as f64;
    let bytes = most * pool.stored.max(512) as f64;
    replay(&pool.f.accesses, pool.ring((size as f64).min(bytes) as u64), pool.f.from)
}

pub(crate) fn advise(f: &Facts, options: &Options) -> Advice {
    let pool = Pool::new(f);
    let accesses: Vec<(u64, u32)> = f.accesses.iter().map(|a| (a.key, a.size)).collect();
    let stacked = distances(&accesses);
    let unlike = |size: u32| u64::from(size) as f64 / f.part;
    let firsts = stacked.iter().zip(&accesses).filter(|(d, _)| d.is_none());
    let set = firsts.map(|(_, (_, size))| unlike(*size)).sum::<f64>() as u64;
    let limit = f.header.arc_limit;
    // A block that was in memory when it was first seen would be in any memory of that size, and is
    // not known of smaller ones.
    let counted = f.accesses.iter().zip(&stacked).filter(|(a, _)| !a.prefetch && a.at >= f.from);
    let distance = |a: &crate::sample::Access, d: Option<u64>| match (d, a.found) {
        (None, Found::Memory) => Some((limit as f64 * f.part) as u64),
        (d, _) => d,
    };
    let curve = Curve::new(counted.map(|(a, d)| distance(a, *d)), f.part, f.counted.all_reads());
    let steps = steps(set.max(limit));
    let memory = steps.iter().map(|&size| Point { size, hits: curve.hits(size) }).collect();
    let now = pool.now();
    let both = steps.iter().step_by(3).map(|&size| {
        let r = room(&pool, size);
        let had = ratio(r.hits as f64, r.waited as f64);
        Point { size, hits: now.hits + pool.waiting * had }
    });
    let both = both.collect();
    let kind = if f.header.rotational { TURNING } else { FLASH };
    let disks = options.disks.clone().or_else(|| Profile::named(kind));
    let sizes = if options.sizes.is_empty() { sizes(set) } else { options.sizes.clone() };
    let profiles: Vec<Profile> = Profile::names().filter_map(Profile::named).collect();
    let mut caches = Vec::new();
    let replayed: Vec<(u64, Replayed)> = sizes.iter().map(|&size| (size, room(&pool, size))).collect();
    for profile in profiles.iter().filter(|p| !p.rotational) {
        let cost = device::reads(profile, pool.stored.clamp(4096, 1 << 20));
        if let Some(disks) = &disks {
            caches.extend(replayed.iter().map(|of| cache(&pool, profile, cost, of, disks, set)));
        }
    }
    let c = &f.counted;
    let commit = ratio(c.commit_micros as f64 / 1e6, c.commits as f64);
    let commits = c.commits as f64 / f.counted_seconds;
    let block = ratio(c.log_bytes as f64, c.log_blocks as f64) as u64;
    let block_seconds = ratio(c.log_micros as f64 / 1e6, c.log_blocks as f64);
    let pause = ratio(f.counted_seconds, c.log_blocks as f64) - block_seconds;
    let pause = Duration::try_from_secs_f64(pause.clamp(0.0, 1.0)).unwrap_or_default();
    let log = |p: &Profile| {
        let new = (commit - block_seconds).max(0.0) + device::log_block(p, block.clamp(4096, 1 << 20), pause);
        LogAdvice { profile: p.name.clone(), commit: new, most: ratio(commits * commit, new).max(commits) }
    };
    let logs = if c.log_blocks == 0 { Vec::new() } else { profiles.iter().map(log).collect() };
    let widest = replay(&f.accesses, pool.ring(1 << 60), f.from);
    let (confidence, notes) = judge(f, &widest, disks.as_ref(), options);
    Advice {
        pool: f.header.pool.clone(),
        seconds: f.seconds,
        counted_seconds: f.counted_seconds,
        records: f.records,
        lost: f.lost,
        sampled: f.accesses.len() as u64,
        part: f.part,
        arc_limit: limit,
        arc_max: f.header.arc_max,
        set,
        readers: f.readers,
        disks: f.header.disks,
        disk_kind: disks.map(|d| d.name).unwrap_or_default(),
        now,
        memory,
        both,
        caches,
        commits,
        commit,
        log_block: block,
        written: c.txg_bytes as f64 / f.counted_seconds,
        logs,
        confidence,
        notes,
    }
}

/// How far all of this is to be believed.
fn judge(
    f: &Facts,
    widest: &Replayed,
    disks: Option<&Profile>,
    options: &Options,
) -> (Confidence, Vec<String>) {
    let mut notes = Vec::new();
    let mut confidence = Confidence::High;
    let mut doubt = |at_most: Confidence, note: String| {
        if (at_most as u8) < confidence as u8 {
            confidence = at_most;
        }
        notes.push(note);
    };
    let reads = f.counted.all_reads();
    if f.seconds < 60.0 {
        doubt(
            Confidence::Low,
            format!("the trace is short ({:.1} s): what is used now and then is not in it", f.seconds),
        );
    } else if f.seconds < 600.0 {
        doubt(
            Confidence::Medium,
            format!("the trace is of {:.0} s: other hours may be unlike these", f.seconds),
        );
    }
    if reads == 0 {
        doubt(
            Confidence::Low,
            "nothing was read in the part that is counted: of caches nothing can be said".into(),
        );
    } else if widest.waited < 200 {
        let note = format!(
            "only {} reads of the sample had to wait: hit rates behind memory are a guess",
            widest.waited
        );
        doubt(Confidence::Low, note);
    }
    let first = ratio(widest.first as f64, widest.waited as f64);
    if widest.waited > 0 && first > 0.2 {
        let at_most = if first > 0.5 { Confidence::Low } else { Confidence::Medium };
        let part = 100.0 * first;
        let note = format!(
            "{part:.0} % of what was waited for had not been read before in this trace: a device that is warm may have \
             some of it, a longer trace would tell"
        );
        doubt(at_most, note);
    }
    let all = f.records.saturating_add(f.lost);
    if f.lost > 0 {
        let part = 100.0 * ratio(f.lost as f64, all as f64);
        let at_most = if part > 1.0 { Confidence::Low } else { Confidence::High };
        doubt(at_most, format!("{part:.2} % of the records are missing: there was no room for them"));
    }
    if widest.missed > 0 {
        let note = "more falls out of memory than a cache device may be fed with (l2arc_write_max)";
        doubt(Confidence::High, note.into());
    }
    if f.counted.log_blocks == 0 {
        doubt(
            Confidence::High,
            "nobody waited for a commit that wrote a log: a log device would bring nothing".into(),
        );
    }
    if f.header.cache_devices > 0 {
        let note =
            "the pool has cache devices: what they hold counts as theirs, and a new one as one beside them";
        doubt(Confidence::Medium, note.into());
    }
    if let Some(disks) = disks.filter(|_| options.disks.is_none()) {
        let note = format!(
            "the pool's disks are taken for {} in the ratio of bandwidths (-d names others)",
            disks.name
        );
        doubt(Confidence::High, note);
    }
    (confidence, notes)
}
