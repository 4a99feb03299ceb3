//! Memory: whatever clients do, a pool makes do with what it was given.
//!
//! `ulimit -m` says how much that is, and the process's resident set is looked at all the while: it
//! stays within a fifth above. (The tests' own buffers, code and the allocator's gaps are part of
//! it.) `ZILLA_MEMORY_SECONDS` says how long each pattern lasts; then all of them are run, else the
//! first few, shortly.

use bytes::Bytes;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::collections::VecDeque;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zilla::{Cred, Errno, Filesystem, NewFile, NodeId, RenameFlags, SetAttr, XattrMode};
use zilla_core::error::{Error, Result};
use zilla_core::send::frame::Sink;
use zilla_core::send::{SendOpts, send};
use zilla_core::spa::{CreateOpts, Host, Spa};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zpl::{S_IFDIR, S_IFREG, Time, ZplProps, create_fs};
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};
use zilla_env::{BoxFuture, Env, real_env};
use zilla_ondisk::enums::ObjsetType;

const POOL: &str = "tank";
const CLIENTS: u64 = 4;
/// In a short run less is given, so that less time shows what is not bounded.
const SHORT_LIMIT: u64 = 320 << 20;
/// Names the pattern that a child process runs.
const PATTERN: &str = "ZILLA_MEMORY_PATTERN";
const LONG_LIMIT: u64 = 512 << 20;
/// Two pools have together, however long.
const TWO_POOLS: &str = "two pools";
const TWO_LIMIT: u64 = 256 << 20;
const SHORT: Duration = Duration::from_secs(2);
/// How many patterns a short run has.
const FEW: usize = 5;

/// The resident set, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
    line.split_whitespace().next().expect("a number").parse::<u64>().expect("a number") << 10
}

/// Looks at the resident set all the while.
struct Watch {
    stop: Arc<AtomicBool>,
    peak: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl Watch {
    fn begin() -> Watch {
        let (stop, peak) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (done, most) = (stop.clone(), peak.clone());
        let thread = std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(resident(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Watch { stop, peak, thread }
    }

    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the watch");
        self.peak.load(Ordering::Relaxed)
    }
}

/// What a pattern has: a pool with a file system, and one of several clients' numbers.
#[derive(Clone)]
struct Client {
    env: Env,
    spa: Arc<Spa>,
    fs: Arc<Filesystem>,
    number: u64,
    until: Instant,
}

impl Client {
    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    async fn make(&self, dir: NodeId, name: &str, mode: u32) -> NodeId {
        self.fs.create(dir, name.as_bytes(), NewFile::new(mode, Cred::default())).await.unwrap().leak()
    }

    /// A directory of this client's own.
    async fn home(&self, name: &str) -> NodeId {
        self.make(self.fs.root(), &format!("{name}{}", self.number), S_IFDIR | 0o755).await
    }

    async fn write(&self, file: NodeId, at: u64, len: usize) {
        self.fs.write(file, at, &contents(at ^ self.number, len), false).await.unwrap();
    }
}

/// A buffer of its own, as a client's request has, that cannot be compressed.
fn contents(seed: u64, len: usize) -> Bytes {
    let mut x = seed | 1;
    let mut out = vec![0u8; len];
    for word in out.chunks_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word.copy_from_slice(&x.to_ne_bytes()[..word.len()]);
    }
    out.into()
}

/// One range again and again: each write leaves a record for the intent log.
async fn overwrite(c: Client) {
    let dir = c.home("overwrite").await;
    let file = c.make(dir, "f", S_IFREG | 0o644).await;
    while c.goes_on() {
        c.write(file, 0, 64 << 10).await;
    }
}

/// Holes of which each takes a record in part.
async fn punch(c: Client) {
    const RECORDS: u64 = 256;
    const RECORD: u64 = 128 << 10;
    let dir = c.home("punch").await;
    let file = c.make(dir, "f", S_IFREG | 0o644).await;
    for record in 0..RECORDS {
        c.write(file, record * RECORD, RECORD as usize).await;
    }
    for at in (0..).map(|i: u64| i * RECORD % (RECORDS * RECORD)) {
        if !c.goes_on() {
            return;
        }
        c.fs.punch(file, at + 5000, RECORD - 9000, false, false).await.unwrap();
        c.fs.punch(file, at + 100, 4000, false, false).await.unwrap();
    }
}

/// Files are written, made stable, read again and removed: more of them than there is memory for.
async fn mixed(c: Client) {
    const FILES: u64 = 100;
    const LEN: usize = 1 << 20;
    let dir = c.home("mixed").await;
    let mut files = VecDeque::new();
    for i in 0u64.. {
        if !c.goes_on() {
            return;
        }
        let name = format!("f{i}");
        let file = c.make(dir, &name, S_IFREG | 0o644).await;
        for at in (0..LEN).step_by(128 << 10) {
            c.write(file, at as u64, 128 << 10).await;
        }
        if i.is_multiple_of(4) {
            c.fs.fsync(file).await.unwrap();
        }
        files.push_back((name, file));
        let (_, again) = &files[(i * 7 % files.len() as u64) as usize];
        c.fs.read(*again, 0, LEN).await.unwrap();
        if files.len() as u64 > FILES
            && let Some((name, file)) = files.pop_front()
        {
            c.fs.unlink(dir, name.as_bytes()).await.unwrap();
            c.fs.forget(file, 1);
        }
    }
}

async fn small_files(c: Client) {
    let mut dir = 0;
    for i in 0u64.. {
        if !c.goes_on() {
            return;
        }
        if i.is_multiple_of(1000) {
            dir = c.home(&format!("small{i}-")).await;
        }
        let file = c.make(dir, &format!("f{i}"), S_IFREG | 0o644).await;
        c.write(file, 0, 1000).await;
        c.fs.forget(file, 1);
    }
}

/// Blocks are freed while a scrub waits to go on.
async fn paused_scrub(c: Client) {
    if c.number == 0 {
        let scan = c.spa.scan().unwrap();
        scan.start().await.unwrap();
        // A scrub that is over already is none to pause.
        let _ = scan.pause().await;
    }
    let dir = c.home("scrub").await;
    let file = c.make(dir, "f", S_IFREG | 0o644).await;
    c.fs.setattr(file, SetAttr { size: Some(1), ..SetAttr::default() }).await.unwrap();
    for i in 0u64.. {
        if !c.goes_on() {
            return;
        }
        c.write(file, i * 7919 % 2048 * (16 << 10), 16 << 10).await;
    }
}

async fn huge_directory(c: Client) {
    let dir = match c.fs.lookup(c.fs.root(), b"huge").await {
        Ok(found) => found.leak(),
        Err(_) if c.number == 0 => c.make(c.fs.root(), "huge", S_IFDIR | 0o755).await,
        Err(_) => c.home("large").await,
    };
    for i in 0u64.. {
        if !c.goes_on() {
            return;
        }
        let name = format!("{}-{i}-{}", c.number, "x".repeat(200));
        let file = c.make(dir, &name, S_IFREG | 0o644).await;
        c.fs.forget(file, 1);
        if i % 20_000 == 19_999 {
            let mut at = 0;
            while let Some(last) = c.fs.readdir(dir, at).await.unwrap().last() {
                at = last.cookie;
            }
        }
    }
}

/// Snapshots are made and looked into, while what they hold changes.
async fn snapshots(c: Client) {
    let dir = c.home("snapshots").await;
    let file = c.make(dir, "f", S_IFREG | 0o644).await;
    for i in 0u64.. {
        if !c.goes_on() {
            return;
        }
        c.write(file, i % 64 * (128 << 10), 128 << 10).await;
        let name = format!("s{}-{i}", c.number);
        let (dsl, full) = (c.spa.dsl.clone(), vec![format!("{POOL}@{name}")]);
        let made = c.spa.ctx.sync_task(move |tx| Box::pin(async move { dsl.snapshot(&tx, &full).await }));
        match made.await {
            Ok(_) => {}
            // A txg has one snapshot of a file system; this was another client's.
            Err(e) if e.is(Errno::Again) => continue,
            Err(e) => panic!("{e}"),
        }
        let control = c.fs.lookup(c.fs.root(), b".zfs").await.unwrap().leak();
        let all = c.fs.lookup(control, b"snapshot").await.unwrap().leak();
        let root = c.fs.lookup(all, name.as_bytes()).await.unwrap().leak();
        assert!(!c.fs.readdir(root, 0).await.unwrap().is_empty());
        c.fs.forget(root, 1);
    }
}

async fn xattrs(c: Client) {
    /// So many files of these have room, however long it lasts.
    const FILES: u64 = 2000;
    let dir = c.home("xattrs").await;
    for i in 0u64.. {
        let name = format!("f{}", i % FILES);
        if i >= FILES {
            c.fs.unlink(dir, name.as_bytes()).await.unwrap();
        }
        let file = c.make(dir, &name, S_IFREG | 0o644).await;
        for (n, len) in [3_000, 20_000, 60_000, 100].into_iter().enumerate() {
            if !c.goes_on() {
                return;
            }
            let name = format!("user.a{n}");
            c.fs.setxattr(file, name.as_bytes(), &contents(i, len), XattrMode::Any).await.unwrap();
        }
        c.fs.forget(file, 1);
    }
}

async fn renames(c: Client) {
    let (one, two) = (c.home("one").await, c.home("two").await);
    let name = |i: u64| format!("{i}-{}", "y".repeat(150)).into_bytes();
    let file = c.fs.create(one, &name(0), NewFile::new(S_IFREG | 0o644, Cred::default())).await.unwrap();
    for i in 0u64.. {
        if !c.goes_on() {
            return drop(file);
        }
        let (from, to) = if i % 2 == 0 { (one, two) } else { (two, one) };
        let flags = RenameFlags::default();
        c.fs.rename(from, &name(i), to, &name(i + 1), flags, Cred::default()).await.unwrap();
    }
}

/// Files and their removal, faster than a disk with a slow write can follow.
async fn slow_disk(c: Client) {
    let dir = c.home("slow").await;
    for i in 0u64.. {
        if !c.goes_on() {
            return;
        }
        let file = c.make(dir, &format!("f{i}"), S_IFREG | 0o644).await;
        c.write(file, 0, 1 << 20).await;
        c.fs.forget(file, 1);
        if i > 64 {
            c.fs.unlink(dir, format!("f{}", i - 64).as_bytes()).await.unwrap();
        }
    }
}

/// As many file systems as a large machine has, all open and in use.
async fn file_systems(c: Client) {
    const MOST: u64 = 1000;
    const BATCH: u64 = 50;
    if c.number > 0 {
        return;
    }
    let mut open = Vec::new();
    for batch in 0..MOST / BATCH {
        let names = move || (batch * BATCH..(batch + 1) * BATCH).map(|i| format!("{POOL}/fs{i}"));
        let dsl = c.spa.dsl.clone();
        let made = c.spa.ctx.sync_task(move |tx| {
            Box::pin(async move {
                for name in names() {
                    let ds = dsl.create_fs(&tx, &name, ObjsetType::Zfs, 0).await?;
                    let props = ZplProps::new(0, 0, Time { sec: 1, nsec: 0 });
                    create_fs(&dsl.objset(&ds).await?, &tx, &props).await?;
                }
                Ok(())
            })
        });
        made.await.unwrap();
        for name in names() {
            let fs = zilla::engine::open_filesystem(&c.env, &c.spa.dsl, &name, false).await.unwrap();
            let c = Client { fs: fs.clone(), ..c.clone() };
            let file = c.make(fs.root(), "f", S_IFREG | 0o644).await;
            c.write(file, 0, 10_000).await;
            c.fs.forget(file, 1);
            open.push(fs);
        }
        if !c.goes_on() {
            break;
        }
    }
    eprintln!("{} file systems are open", open.len());
}

/// Pages of a mapped file as the kernel writes them back: here and there in large records.
async fn mapped_pages(c: Client) {
    const PAGES: u64 = 1 << 18;
    let dir = c.home("mapped").await;
    let file = c.make(dir, "f", S_IFREG | 0o644).await;
    for i in 0u64.. {
        if !c.goes_on() {
            return;
        }
        c.write(file, i * 100_003 % PAGES * 4096, 4096).await;
        if i % 8 == 7 {
            c.fs.read(file, i * 7919 % PAGES * 4096, 128 << 10).await.unwrap();
        }
    }
}

/// Takes a little of a stream, and then no more for as long as it is waited for.
struct Stalled {
    env: Env,
    left: usize,
    until: Instant,
}

impl Sink for Stalled {
    fn write(&mut self, data: Vec<Bytes>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.left = self.left.saturating_sub(data.iter().map(Bytes::len).sum());
            while self.left == 0 && Instant::now() < self.until {
                self.env.sleep(Duration::from_millis(20)).await;
            }
            match self.left {
                0 => Err(Error::os(Errno::Io, "the reader went away")),
                _ => Ok(()),
            }
        })
    }
}

/// Many clients that ask for a stream and do not read it.
async fn stalled_clients(c: Client) {
    const STREAMS: usize = 100;
    let dir = c.home("stalled").await;
    let file = c.make(dir, "f", S_IFREG | 0o644).await;
    for i in 0..64u64 {
        c.write(file, i << 20, 1 << 20).await;
    }
    let full = format!("{POOL}@s{}", c.number);
    let (dsl, name) = (c.spa.dsl.clone(), vec![full.clone()]);
    let take = || {
        let (dsl, name) = (dsl.clone(), name.clone());
        c.spa.ctx.sync_task(move |tx| Box::pin(async move { dsl.snapshot(&tx, &name).await }))
    };
    while let Err(e) = take().await {
        // A txg has one snapshot of a file system; this was another client's.
        assert!(e.is(Errno::Again), "{e}");
    }
    let snap = c.spa.dsl.by_name(&full).await.unwrap();
    let streams = (0..STREAMS).map(|i| {
        let (dsl, snap, env, until) = (dsl.clone(), snap.clone(), c.env.clone(), c.until);
        c.env.spawn_with_result(async move {
            let mut sink = Stalled { env, left: 64 + (i << 16), until };
            let _ = send(&dsl, &snap, &SendOpts::default(), &mut sink).await;
        })
    });
    for stream in streams.collect::<Vec<_>>() {
        stream.await;
    }
}

type Pattern = fn(Client) -> Pin<Box<dyn Future<Output = ()> + Send>>;

const PATTERNS: [(&str, Pattern); 13] = [
    (TWO_POOLS, |c| Box::pin(mixed(c))),
    ("overwrite", |c| Box::pin(overwrite(c))),
    ("punch", |c| Box::pin(punch(c))),
    ("small files", |c| Box::pin(small_files(c))),
    ("paused scrub", |c| Box::pin(paused_scrub(c))),
    ("huge directory", |c| Box::pin(huge_directory(c))),
    ("snapshots", |c| Box::pin(snapshots(c))),
    ("xattrs", |c| Box::pin(xattrs(c))),
    ("renames", |c| Box::pin(renames(c))),
    ("slow disk", |c| Box::pin(slow_disk(c))),
    ("file systems", |c| Box::pin(file_systems(c))),
    ("mapped pages", |c| Box::pin(mapped_pages(c))),
    ("stalled clients", |c| Box::pin(stalled_clients(c))),
];

async fn create(env: &Env, dir: &Path, limit: u64) -> Arc<Spa> {
    let path = dir.join("d1.img");
    std::fs::File::create(&path).unwrap().set_len(4 << 30).unwrap();
    let leaves = vec![LeafSpec { path, disk: false }];
    let top = TopSpec { kind: VdevKind::File, leaves, is_log: false, bias: None, ashift: None };
    let opts = CreateOpts {
        name: POOL.into(),
        host: Host { id: 0x1234, name: "host".into() },
        comment: None,
        owner: (0, 0),
        features: None,
        // What a daemon gives a pool.
        dbuf_cache: 64 << 20,
        arc_max: limit / 4,
    };
    Spa::create(env, &PoolSpec { tops: vec![top], ..PoolSpec::default() }, opts).await.unwrap()
}

/// One pattern on a pool of its own, or on two; the most memory there was, and the most that the
/// write throttle knew of.
fn run(name: &str, pattern: Pattern, limit: u64, lasts: Duration) -> (u64, u64) {
    let mut env = real_env(2);
    if name == "slow disk" {
        let inner = env.clone();
        env = env.wrap_devices(move |_, device| {
            let device = FaultyDevice::new(device, &inner);
            device.add(Rule::new(Ops::Writes, Fault::Delay(Duration::from_millis(40))));
            Arc::new(device)
        });
    }
    let count = if name == TWO_POOLS { 2 } else { 1 };
    let dirs: Vec<_> = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
    let task_env = env.clone();
    let watch = Watch::begin();
    let most = env.block_on(async {
        let mut pools = Vec::new();
        for dir in &dirs {
            let spa = create(&task_env, dir.path(), limit).await;
            let fs = zilla::engine::open_filesystem(&task_env, &spa.dsl, POOL, false).await.unwrap();
            pools.push((spa, fs));
        }
        let until = Instant::now() + lasts;
        let client = |(spa, fs): &(Arc<Spa>, Arc<Filesystem>), number| {
            let c = Client { env: task_env.clone(), spa: spa.clone(), fs: fs.clone(), number, until };
            task_env.spawn_with_result(pattern(c))
        };
        let clients: Vec<_> =
            pools.iter().flat_map(|pool| (0..CLIENTS).map(move |number| (pool, number))).collect();
        let clients: Vec<_> = clients.into_iter().map(|(pool, number)| client(pool, number)).collect();
        let mut most = 0;
        while Instant::now() < until {
            most = most.max(pools.iter().map(|(spa, _)| spa.ctx.txgs.waiting_bytes()).sum());
            task_env.sleep(Duration::from_millis(20)).await;
        }
        for client in clients {
            client.await;
        }
        for (spa, fs) in pools {
            drop(fs);
            spa.close(None).await.unwrap();
        }
        most
    });
    (watch.end(), most)
}

#[test]
fn memory_stays_within_what_it_is_given() {
    let long = std::env::var("ZILLA_MEMORY_SECONDS").ok().and_then(|s| s.parse().ok());
    let (limit, lasts) = match long {
        Some(seconds) => (LONG_LIMIT, Duration::from_secs(seconds)),
        None => (SHORT_LIMIT, SHORT),
    };
    if let Ok(wanted) = std::env::var(PATTERN) {
        let (name, pattern) = PATTERNS.iter().find(|(name, _)| *name == wanted).unwrap();
        let limit = if *name == TWO_POOLS { TWO_LIMIT } else { limit };
        setrlimit(Resource::Rss, Rlimit { current: Some(limit), maximum: Some(limit) }).expect("ulimit -m");
        let (peak, waiting) = run(name, *pattern, limit, lasts);
        let (peak_mib, after) = (peak >> 20, resident() >> 20);
        eprintln!("{name}: {peak_mib} MiB at most, {after} after; {} waited", waiting >> 20);
        assert!(peak <= limit / 5 * 6, "more than {} MiB and a fifth", limit >> 20);
        return;
    }
    let count = if long.is_some() { PATTERNS.len() } else { FEW };
    let mut over = Vec::new();
    for (name, _) in &PATTERNS[..count] {
        // A process for each: buffers that are kept for reuse after one pattern are not the next
        // one's.
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["memory_stays_within_what_it_is_given", "--exact", "--nocapture"]).env(PATTERN, name);
        if !child.status().unwrap().success() {
            over.push(*name);
        }
    }
    assert!(over.is_empty(), "more than they were given and a fifth: {over:?}");
}
