//! Two hosts on one set of disks: however they are stopped, delayed or started together, never do
//! both write.
//!
//! A host is a world of its own on the same disks. It can be stopped, as a process is by SIGSTOP:
//! its tasks get no turn, and what its disks complete meanwhile it learns of later. Below the
//! engine's fence each host's writes are noted.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use zilla_core::error::{Error, Result};
use zilla_core::spa::{CreateOpts, Host as Name, OpenOpts, Refusal, Spa, Split};
use zilla_core::txg::Tx;
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zap::{CreateOpts as ZapOpts, Value, Zap};
use zilla_core::zpl::{Cred, NewFile};
use zilla_env::{
    BoxFuture, Completion, Device, DeviceInfo, DirEntry, Env, Io, IoOp, OpenMode, Opener, Spawner,
};
use zilla_ondisk::enums::PoolState;
use zilla_ondisk::object_type::DMU_OT_POOL_PROPS;
use zilla_sim::pool::layout::{Layout, find};
use zilla_sim::pool::run::open_fs;
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim};

const S: Duration = Duration::from_secs(1);
/// Object 1 of every MOS.
const DIRECTORY: u64 = 1;
const POLICIES: [CrashPolicy; 4] =
    [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Prefix, CrashPolicy::Shuffle];

/// A host's process.
#[derive(Default)]
struct Process {
    stopped: AtomicBool,
    turns: Mutex<Vec<Waker>>,
    answers: Mutex<VecDeque<Box<dyn FnOnce() + Send>>>,
    /// A disk whose reads get no answer, and those reads.
    mute: Mutex<Option<PathBuf>>,
    held: Mutex<Vec<(Arc<dyn Device>, Io)>>,
    /// When it wrote first and last, in nanoseconds; 0: never.
    first: AtomicU64,
    last: AtomicU64,
}

impl Process {
    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    fn go_on(&self) {
        self.stopped.store(false, Ordering::SeqCst);
        while let Some(answer) = { self.answers.lock().pop_front() } {
            answer();
        }
        self.turns.lock().drain(..).for_each(Waker::wake);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn mute(&self, disk: usize) {
        *self.mute.lock() = Some(Layout::path(disk));
    }

    fn unmute(&self) {
        *self.mute.lock() = None;
        self.held.lock().drain(..).for_each(|(disk, io)| disk.submit(vec![io]));
    }

    fn forget(&self) {
        self.first.store(0, Ordering::SeqCst);
    }
}

struct Task {
    inner: BoxFuture<'static, ()>,
    process: Arc<Process>,
}

impl Future for Task {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.process.is_stopped() {
            self.process.turns.lock().push(cx.waker().clone());
            return Poll::Pending;
        }
        self.inner.as_mut().poll(cx)
    }
}

struct Tasks {
    inner: Arc<dyn Spawner>,
    process: Arc<Process>,
}

impl Spawner for Tasks {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.inner.spawn(Box::pin(Task { inner: task, process: self.process.clone() }));
    }
    fn parallelism(&self) -> usize {
        self.inner.parallelism()
    }
    fn drive(&self, main: BoxFuture<'_, ()>) {
        self.inner.drive(main);
    }
    fn interlude(&self) -> Option<BoxFuture<'static, ()>> {
        self.inner.interlude()
    }
}

/// A disk as a host sees it.
struct Seen {
    path: PathBuf,
    inner: Arc<dyn Device>,
    process: Arc<Process>,
    env: Env,
}

impl Device for Seen {
    fn submit(&self, batch: Vec<Io>) {
        let mute = self.process.mute.lock().as_ref() == Some(&self.path);
        let is_held = |io: &Io| mute && matches!(io.op, IoOp::Read { .. });
        let (held, batch): (Vec<Io>, Vec<Io>) = batch.into_iter().partition(is_held);
        self.process.held.lock().extend(held.into_iter().map(|io| (self.inner.clone(), io)));
        let noted = batch.into_iter().map(|io| {
            if io.op.modifies() {
                let now = self.env.now().as_nanos() as u64;
                let _ = self.process.first.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
                self.process.last.store(now, Ordering::SeqCst);
            }
            let (done, process) = (io.done, self.process.clone());
            let later = move |result| match process.is_stopped() {
                true => process.answers.lock().push_back(Box::new(move || done.complete(result))),
                false => done.complete(result),
            };
            Io { op: io.op, done: Completion::call(later) }
        });
        self.inner.submit(noted.collect());
    }
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }
    fn refresh_size(&self) -> io::Result<u64> {
        self.inner.refresh_size()
    }
}

/// Paths of another machine: what this one has locked does not concern it.
struct Shared(Arc<dyn Opener>);

impl Opener for Shared {
    fn open(&self, path: &Path, mode: OpenMode) -> BoxFuture<'static, io::Result<Arc<dyn Device>>> {
        self.0.open(path, OpenMode { exclusive: false, ..mode })
    }
    fn list(&self, dir: &Path) -> BoxFuture<'static, io::Result<Vec<DirEntry>>> {
        self.0.list(dir)
    }
    fn read_file(&self, path: &Path) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        self.0.read_file(path)
    }
    fn write_file(&self, path: &Path, data: Vec<u8>) -> BoxFuture<'static, io::Result<()>> {
        self.0.write_file(path, data)
    }
    fn remove_file(&self, path: &Path) -> BoxFuture<'static, io::Result<()>> {
        self.0.remove_file(path)
    }
    fn create_file(&self, path: &Path, size: u64) -> BoxFuture<'static, io::Result<()>> {
        self.0.create_file(path, size)
    }
    fn canonical(&self, path: &Path) -> BoxFuture<'static, io::Result<PathBuf>> {
        self.0.canonical(path)
    }
}

struct Host {
    env: Env,
    process: Arc<Process>,
    name: Name,
}

impl Host {
    fn new(sim: &Sim, id: u64) -> Host {
        let (outer, process) = (sim.env(), Arc::new(Process::default()));
        let shared = Env { opener: Arc::new(Shared(outer.opener.clone())), ..outer.clone() };
        let (seen, clock) = (process.clone(), outer.clone());
        let wrapped = shared.wrap_devices(move |path, inner| {
            let (path, process, env) = (path.to_owned(), seen.clone(), clock.clone());
            Arc::new(Seen { path, inner, process, env })
        });
        let spawner = Arc::new(Tasks { inner: outer.spawner, process: process.clone() });
        Host { env: Env { spawner, ..wrapped }, process, name: Name { id, name: format!("host{id}") } }
    }

    fn opts(&self, force: bool) -> OpenOpts {
        let host = self.name.clone();
        OpenOpts { host, force, dbuf_cache: 2 << 20, arc_max: 16 << 20, ..OpenOpts::default() }
    }

    /// In a task of the host, so that it stops with it.
    fn import(&self, force: bool) -> impl Future<Output = Result<Arc<Spa>>> + use<> {
        let (env, opts) = (self.env.clone(), self.opts(force));
        self.env.spawn_with_result(async move {
            let found = find(&env).await?.expect("a pool");
            Spa::open(&env, &found, opts).await
        })
    }

    async fn create(&self, log: Option<usize>) -> Arc<Spa> {
        let leaf = |i| LeafSpec { path: Layout::path(i), disk: true };
        let top = |kind, leaves, is_log| TopSpec { kind, leaves, is_log, bias: None, ashift: Some(12) };
        let mut tops = vec![top(VdevKind::Mirror, vec![leaf(0), leaf(1)], false)];
        tops.extend(log.map(|i| top(VdevKind::Disk, vec![leaf(i)], true)));
        let opts = CreateOpts {
            name: "tank".into(),
            host: self.name.clone(),
            comment: None,
            owner: (0, 0),
            features: None,
            dbuf_cache: 2 << 20,
            arc_max: 16 << 20,
        };
        let spec = PoolSpec { tops, ..PoolSpec::default() };
        let spa = Spa::create(&self.env, &spec, opts).await.unwrap();
        spa.set_multihost(true, None);
        let ctx = spa.ctx.clone();
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let zap = Zap::make(ctx.mos(), &tx, DMU_OT_POOL_PROPS, &ZapOpts::default()).await?;
                zap.set(&tx, "multihost", &Value::u64(1)).await?;
                Zap::open(ctx.mos(), DIRECTORY).await?.insert_u64(&tx, "pool_props", zap.id()).await
            })
        };
        spa.ctx.sync_task(task).await.unwrap();
        spa
    }

    /// Writes files until the pool takes no more.
    fn busy(&self, spa: &Arc<Spa>, prefix: &'static str) -> Arc<AtomicBool> {
        let (env, spa, enough) = (self.env.clone(), spa.clone(), Arc::new(AtomicBool::new(false)));
        let stop = enough.clone();
        self.env.spawn(async move {
            for i in 0.. {
                if stop.load(Ordering::SeqCst) || put(&env, &spa, &format!("{prefix}{i}")).await.is_err() {
                    return;
                }
                env.sleep(Duration::from_millis(300)).await;
            }
        });
        enough
    }
}

fn contents(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(20_000).collect()
}

async fn put(env: &Env, spa: &Arc<Spa>, name: &str) -> Result<()> {
    let zfs = open_fs(env, spa, "tank").await?;
    let (h, _) = zfs.create(zfs.root(), name.as_bytes(), NewFile::new(0o100644, Cred::default())).await?;
    zfs.write(h.id(), 0, &contents(name).into(), false).await?;
    spa.sync().await
}

async fn has(env: &Env, spa: &Arc<Spa>, name: &str) {
    let zfs = open_fs(env, spa, "tank").await.unwrap();
    let (h, a) = zfs.lookup(zfs.root(), name.as_bytes()).await.unwrap();
    assert!(zfs.read(h.id(), 0, a.size as usize).await.unwrap().concat() == contents(name), "{name}");
}

fn elsewhere<T>(result: Result<T>) -> u64 {
    match result.map(drop) {
        Err(Error::Pool(why)) => match &*why {
            Refusal::ActiveElsewhere { id, .. } => *id,
            why => panic!("refused otherwise: {why}"),
        },
        Err(e) => panic!("failed otherwise: {e}"),
        Ok(()) => panic!("both have it"),
    }
}

fn two(sim: &Sim) -> (Host, Host) {
    (0..3).for_each(|i| drop(sim.add_disk(Layout::path(i), 80 << 20)));
    (Host::new(sim, 0xa), Host::new(sim, 0xb))
}

#[test]
fn a_pool_in_use_is_not_imported_and_an_exported_one_quickly() {
    let sim = Sim::new(3);
    let (a, b) = two(&sim);
    sim.block_on(async {
        let spa = a.create(None).await;
        put(&a.env, &spa, "one").await.unwrap();
        // Nobody does anything with it.
        sim.env().sleep(S * 60).await;
        let begun = sim.now();
        assert_eq!(elsewhere(b.import(true).await), 0xa);
        assert!(sim.now() - begun < S * 5, "the first heartbeat tells");
        assert_eq!(b.process.first.load(Ordering::SeqCst), 0, "nothing was written");
        put(&a.env, &spa, "two").await.unwrap();
        assert!(spa.suspended().is_none());
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let begun = sim.now();
        let spa = b.import(false).await.unwrap();
        assert!(sim.now() - begun < S * 8, "{:?}", sim.now() - begun);
        has(&b.env, &spa, "two").await;
        assert!(spa.multihost());
        assert_eq!(elsewhere(a.import(true).await), 0xb);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

#[test]
fn a_host_that_was_stopped_for_too_long_writes_nothing_more() {
    for seed in 0..12 {
        let sim = Sim::new(seed);
        let (a, b) = two(&sim);
        sim.block_on(async {
            let spa = a.create(None).await;
            let enough = a.busy(&spa, "a");
            sim.env().sleep(S * 20 + Duration::from_millis(37 * seed)).await;
            assert!(spa.suspended().is_none(), "seed {seed}: {:?}", spa.suspended());
            a.process.stop();
            let begun = sim.now();
            let theirs = b.import(true).await.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert!(sim.now() - begun >= S * 20, "seed {seed}");
            put(&b.env, &theirs, "b").await.unwrap();
            let taken = b.process.first.load(Ordering::SeqCst);
            a.process.go_on();
            sim.env().sleep(S * 60).await;
            let last = a.process.last.load(Ordering::SeqCst);
            assert!(last < taken, "seed {seed}: wrote at {last}, but the pool was another's at {taken}");
            assert!(spa.suspended().is_some() && spa.lost_to_others(), "seed {seed}");
            assert_eq!(elsewhere(spa.clear(None).await), 0xb, "seed {seed}");
            assert!(a.process.last.load(Ordering::SeqCst) < taken, "seed {seed}");
            enough.store(true, Ordering::SeqCst);
            spa.abandon();
            let _ = spa.close(None).await;
            put(&b.env, &theirs, "b2").await.unwrap();
            audit(&theirs, true, false).await.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            theirs.close(Some(PoolState::Exported)).await.unwrap();
            assert!(a.process.last.load(Ordering::SeqCst) < taken, "seed {seed}: while it was closed");
        });
    }
}

#[test]
fn a_host_that_was_stopped_for_a_moment_keeps_its_pool() {
    let sim = Sim::new(5);
    let (a, b) = two(&sim);
    sim.block_on(async {
        let spa = a.create(None).await;
        let enough = a.busy(&spa, "a");
        for ms in [500, 3000, 8000] {
            sim.env().sleep(S * 5).await;
            a.process.stop();
            let import = sim.env().spawn_with_result(b.import(true));
            sim.env().sleep(Duration::from_millis(ms)).await;
            a.process.go_on();
            assert_eq!(elsewhere(import.await), 0xa, "{ms}");
            assert!(spa.suspended().is_none(), "{ms}: {:?}", spa.suspended());
        }
        enough.store(true, Ordering::SeqCst);
        sim.env().sleep(S).await;
        put(&a.env, &spa, "last").await.unwrap();
        spa.close(Some(PoolState::Exported)).await.unwrap();
        assert_eq!(b.process.first.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn of_two_that_import_at_once_one_has_the_pool_at_most() {
    let mut had = 0;
    for seed in 0..24_u64 {
        let sim = Sim::new(seed);
        let (a, _) = two(&sim);
        sim.block_on(async {
            let spa = a.create(None).await;
            put(&a.env, &spa, "one").await.unwrap();
            // Some were exported, of some the owner is gone.
            match seed % 2 {
                0 => spa.close(Some(PoolState::Exported)).await.unwrap(),
                _ => a.process.stop(),
            }
            let (x, y) = (Host::new(&sim, 0xc), Host::new(&sim, 0xd));
            let first = sim.env().spawn_with_result(x.import(true));
            sim.env().sleep(Duration::from_millis(seed * 97 % 1500)).await;
            // One of them is held up on its way.
            let second = sim.env().spawn_with_result(y.import(true));
            sim.env().sleep(Duration::from_millis(seed * 331 % 7000)).await;
            x.process.stop();
            sim.env().sleep(S * (seed as u32 * 5 % 13)).await;
            x.process.go_on();
            let (first, second) = (first.await, second.await);
            let opened: Vec<(&Host, Arc<Spa>)> = [(&x, first.ok()), (&y, second.ok())]
                .into_iter()
                .filter_map(|(h, s)| Some((h, s?)))
                .collect();
            let mut alive = 0;
            for (host, spa) in &opened {
                alive += u32::from(put(&host.env, spa, "mine").await.is_ok() && spa.suspended().is_none());
            }
            assert!(alive <= 1, "seed {seed}: both have it");
            had += alive;
            for (_, spa) in opened {
                let state = spa.suspended().is_none().then_some(PoolState::Exported);
                spa.abandon();
                let _ = spa.close(state).await;
            }
        });
    }
    assert!(had > 12, "{had} of 24 imports that met another came to their end");
}

#[test]
fn heartbeats_that_no_importer_sees_do_not_count() {
    let sim = Sim::new(9);
    let (a, b) = two(&sim);
    sim.block_on(async {
        let spa = a.create(Some(2)).await;
        put(&a.env, &spa, "one").await.unwrap();
        sim.env().sleep(S * 30).await;
        assert!(spa.suspended().is_none());
        let disk = |i| sim.disk(Layout::path(i)).unwrap();
        // The log is there still, and takes whatever it is given; but it is only this host's.
        (0..2).for_each(|i| disk(i).set_offline(true));
        sim.env().sleep(S * 15).await;
        assert!(spa.suspended().is_some() && spa.lost_to_others());
        // Nobody has taken it meanwhile: it goes on, when told so, and not before.
        (0..2).for_each(|i| disk(i).set_offline(false));
        sim.env().sleep(S * 60).await;
        assert!(spa.lost_to_others());
        spa.clear(None).await.unwrap();
        assert!(spa.suspended().is_none());
        put(&a.env, &spa, "two").await.unwrap();
        sim.env().sleep(S * 30).await;
        has(&a.env, &spa, "one").await;
        assert_eq!(elsewhere(b.import(true).await), 0xa);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

#[test]
fn after_a_cut_the_owner_is_back_at_once_and_others_wait() {
    for seed in 0..8 {
        let sim = Sim::new(seed);
        let (a, _) = two(&sim);
        sim.cut_power_at(400 + 61 * seed);
        let _ = sim.try_block_on(async {
            let spa = a.create(None).await;
            let _enough = a.busy(&spa, "a");
            sim.env().sleep(S * 10_000).await;
        });
        let left = sim.power_off(POLICIES[seed as usize % POLICIES.len()], seed);
        for id in [0xa, 0xb] {
            let sim = left.boot(seed);
            let host = Host::new(&sim, id);
            sim.block_on(async {
                if find(&host.env).await.unwrap().is_none() {
                    return;
                }
                let begun = sim.now();
                let spa = host.import(true).await.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                let took = sim.now() - begun;
                match (id, spa.multihost()) {
                    (0xa, _) => assert!(took < S * 2, "seed {seed}: {took:?}"),
                    (_, true) => assert!((S * 20..S * 35).contains(&took), "seed {seed}: {took:?}"),
                    _ => {}
                }
                sim.env().sleep(S * 15).await;
                assert!(spa.suspended().is_none(), "seed {seed}");
                audit(&spa, true, false).await.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                spa.close(Some(PoolState::Exported)).await.unwrap();
            });
        }
    }
}

#[test]
fn a_pool_without_a_number_for_its_host_is_not_imported() {
    let sim = Sim::new(4);
    let (a, b) = two(&sim);
    sim.block_on(async {
        let spa = a.create(None).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let found = find(&b.env).await.unwrap().unwrap();
        let nameless = Name { id: 0, name: String::new() };
        for opts in
            [OpenOpts { host: nameless, ..b.opts(true) }, OpenOpts { unset_hostid: true, ..b.opts(true) }]
        {
            let refused = Spa::open(&b.env, &found, opts).await.map(drop).unwrap_err();
            assert!(refused.to_string().contains("zgenhostid"), "{refused}");
        }
        // Who only looks may.
        let opts = OpenOpts { readonly: true, observe: true, ..b.opts(true) };
        let spa = Spa::open(&b.env, &found, opts).await.unwrap();
        spa.close(None).await.unwrap();
        b.process.forget();
        assert_eq!(b.process.first.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_device_that_does_not_answer_is_named_and_holds_nobody_for_good() {
    let sim = Sim::new(11);
    let (a, b) = two(&sim);
    sim.block_on(async {
        let spa = a.create(None).await;
        put(&a.env, &spa, "one").await.unwrap();
        a.process.stop();
        // While the pool is watched, and while it is claimed.
        for is_claimed in [false, true] {
            let begun = sim.now();
            b.process.forget();
            let import = sim.env().spawn_with_result(b.import(true));
            sim.env().sleep(S * 5).await;
            while is_claimed && b.process.first.load(Ordering::SeqCst) == 0 {
                sim.env().sleep(S / 10).await;
            }
            b.process.mute(1);
            let said = import.await.map(drop).unwrap_err().to_string();
            assert!(said.contains("no answer within 60 s from /disks/d1"), "{said}");
            assert!(sim.now() - begun < S * 120, "{:?}", sim.now() - begun);
            b.process.unmute();
        }
        let spa = b.import(true).await.unwrap();
        let offline = |is| (0..2).for_each(|i| sim.disk(Layout::path(i)).unwrap().set_offline(is));
        offline(true);
        sim.env().sleep(S * 15).await;
        assert!(spa.lost_to_others());
        offline(false);
        let clear = {
            let spa = spa.clone();
            b.env.spawn_with_result(async move { spa.clear(None).await })
        };
        sim.env().sleep(S * 5).await;
        b.process.mute(1);
        let said = clear.await.unwrap_err().to_string();
        assert!(said.contains("no answer within 60 s from /disks/d1"), "{said}");
        assert!(spa.lost_to_others());
        b.process.unmute();
        spa.clear(None).await.unwrap();
        has(&b.env, &spa, "one").await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// A host's task splits its pool, and is stopped in the middle for so long that another takes what
/// it finds.
#[test]
fn a_split_that_takes_too_long_writes_nothing_more() {
    let split = |a: &Host, spa: &Arc<Spa>| {
        let sides = spa.tree().tops_for(false).map(|t| t.vdev.children[1].guid).collect();
        let opts = OpenOpts { name: Some("half".into()), ..a.opts(true) };
        let spa = spa.clone();
        a.env.spawn_with_result(async move { spa.split(Split { sides, opts }).await })
    };
    // How long it takes.
    let took = {
        let sim = Sim::new(0);
        let (a, _) = two(&sim);
        sim.block_on(async {
            let spa = a.create(None).await;
            put(&a.env, &spa, "one").await.unwrap();
            let begun = sim.now();
            let half = split(&a, &spa).await.unwrap();
            let took = sim.now() - begun;
            sim.env().sleep(S * 30).await;
            assert!(half.multihost() && half.suspended().is_none() && spa.suspended().is_none());
            half.close(Some(PoolState::Exported)).await.unwrap();
            spa.close(Some(PoolState::Exported)).await.unwrap();
            took
        })
    };
    let mut stopped = 0;
    for step in 0..40 {
        let sim = Sim::new(step);
        let (a, b) = two(&sim);
        sim.block_on(async {
            let spa = a.create(None).await;
            put(&a.env, &spa, "one").await.unwrap();
            let half = sim.env().spawn_with_result(split(&a, &spa));
            sim.env().sleep(took * step as u32 / 40).await;
            a.process.stop();
            // What the other sees is the disk that was to go; the one that stays is not there.
            let stays = sim.disk(Layout::path(0)).unwrap();
            stays.set_offline(true);
            let Ok(theirs) = b.import(true).await else {
                panic!("step {step}");
            };
            let taken = b.process.first.load(Ordering::SeqCst);
            stays.set_offline(false);
            a.process.go_on();
            sim.env().sleep(S * 40).await;
            let last = a.process.last.load(Ordering::SeqCst);
            assert!(last < taken, "step {step}: wrote at {last}, but it was another's at {taken}");
            // It waits for its pool, which another has.
            spa.abandon();
            let half = half.await;
            stopped += u32::from(half.is_err());
            for spa in half.ok().into_iter().chain([spa]) {
                spa.abandon();
                let _ = spa.close(None).await;
            }
            theirs.sync().await.unwrap();
            theirs.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
    assert!(stopped > 10, "{stopped}");
}

/// One file, each write of which is made stable, as a data base does.
fn fsyncing(host: &Host, spa: &Arc<Spa>, name: &'static str) {
    let (env, spa) = (host.env.clone(), spa.clone());
    host.env.spawn(async move {
        let Ok(zfs) = open_fs(&env, &spa, "tank").await else { return };
        let new = NewFile::new(0o100644, Cred::default());
        let Ok((h, _)) = zfs.create(zfs.root(), name.as_bytes(), new).await else { return };
        for i in 0.. {
            // Some of it goes to its place, some into the log.
            let data = contents(name).repeat(1 + i % 3);
            let written = zfs.write(h.id(), (i % 4) as u64 * 131_072, &data.into(), false).await;
            if written.is_err() || zfs.fsync(h.id()).await.is_err() {
                return;
            }
            env.sleep(Duration::from_millis(200)).await;
        }
    });
}

#[test]
fn a_pool_of_which_fsyncs_wait_is_taken_back_at_the_first_try() {
    for seed in 0..8 {
        let sim = Sim::new(seed);
        let (a, _) = two(&sim);
        sim.block_on(async {
            let spa = a.create((seed % 2 == 1).then_some(2)).await;
            for name in ["w", "x", "y", "z"] {
                fsyncing(&a, &spa, name);
            }
            sim.env().sleep(S * 6 + Duration::from_millis(seed * 411)).await;
            let offline = |is| (0..2).for_each(|i| sim.disk(Layout::path(i)).unwrap().set_offline(is));
            offline(true);
            sim.env().sleep(S * 15).await;
            assert!(spa.lost_to_others(), "seed {seed}");
            offline(false);
            spa.clear(None).await.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            put(&a.env, &spa, "after").await.unwrap();
            sim.env().sleep(S * 30).await;
            assert!(spa.suspended().is_none(), "seed {seed}: {:?}", spa.suspended());
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
}
