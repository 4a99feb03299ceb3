//! Pools that are full: worked on by all that takes and gives space, cut off there, and made to
//! live on.
//!
//! A pool is filled until a write is refused, with records of one size; then several actors write
//! into records, cut them, remove, rename and make stable what they can, while snapshots come and
//! go. No operation may fail but for want of space or by a quota, removing may not fail at all, and
//! the pool is never suspended. At a random moment the power goes. The pool must then import and
//! replay its logs; what an fsync promised is whole; everything else can be removed, and its space
//! comes back.
//!
//! What is kept true: a run depends on nothing but its seed, from which its record size, devices
//! and quota follow.

use super::layout::{self, POOL};
use super::run::task;
use crate::{CrashPolicy, Sim, SimRng, Survivors};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zilla_core::dsl::{DslPool, LongHold, Setting};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::spa::{CreateOpts, Spa};
use zilla_core::txg::Tx;
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zap::Value;
use zilla_core::zio::Leave;
use zilla_core::zpl::{Cred, FsProps, NewFile, RenameFlags, S_IFREG, SetAttr, Space, XattrMode, Zfs};
use zilla_env::Env;

const RECORDS: [u32; 7] = [512, 4 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20];
const ACTORS: u64 = 3;
/// Files that an actor uses in turn.
const FILES: u64 = 12;
/// No space comes back later than so many txgs after all was removed.
const SETTLE: usize = 6;

/// What a seed means.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub record: u32,
    kind: VdevKind,
    disks: u64,
    disk_size: u64,
    ashift: u32,
    log: bool,
    quota: bool,
    throughput: bool,
    ops: u64,
}

impl Plan {
    pub fn of(seed: u64, ops: u64) -> Plan {
        let record = RECORDS[seed as usize % RECORDS.len()];
        let (kind, disks, ashift) = match seed / RECORDS.len() as u64 % 4 {
            0 | 1 => (VdevKind::Disk, 1, 9),
            2 => (VdevKind::Raidz { nparity: 1 }, 3, 12),
            _ => (VdevKind::Mirror, 2, 12),
        };
        // Half of a small pool is slop; large records need more than that leaves of the smallest.
        let disk_size = if record > 1 << 20 { 256 << 20 } else { 80 << 20 };
        let (log, quota) = (seed.is_multiple_of(2), seed.is_multiple_of(5));
        Plan { seed, record, kind, disks, disk_size, ashift, log, quota, throughput: seed % 4 > 1, ops }
    }

    fn world(&self) -> Sim {
        let sim = Sim::new(self.seed);
        for i in 0..self.disks {
            sim.add_disk(format!("/disks/d{i}"), self.disk_size);
        }
        if self.log {
            sim.add_disk("/disks/log", 80 << 20);
        }
        sim
    }

    fn spec(&self) -> PoolSpec {
        let leaf = |name: String| LeafSpec { path: Path::new("/disks").join(name), disk: true };
        let top =
            |kind, leaves, is_log| TopSpec { kind, leaves, is_log, bias: None, ashift: Some(self.ashift) };
        let mut tops = vec![top(self.kind, (0..self.disks).map(|i| leaf(format!("d{i}"))).collect(), false)];
        if self.log {
            tops.push(top(VdevKind::Disk, vec![leaf("log".into())], true));
        }
        PoolSpec { tops, ..PoolSpec::default() }
    }

    async fn open(&self, env: &Env, spa: &Arc<Spa>) -> Result<Arc<Zfs>> {
        let ds = spa.dsl.by_name(POOL).await?;
        let os = spa.dsl.objset(&ds).await?;
        spa.dsl.open_log(&ds).await?;
        let props = FsProps { recordsize: self.record, throughput: self.throughput, ..FsProps::default() };
        let space = Arc::new(Limits(spa.dsl.clone(), ds.hold()));
        Zfs::open(env.clone(), os, Some(spa.ctx.txgs.clone()), space, props).await
    }
}

/// The pool's limits, as those who mount it have them.
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
    fn frees_at_once(&self, most: u64) -> u64 {
        self.0.frees_at_once(most)
    }
    fn need_feature(&self, name: &'static str) {
        self.1.dataset().will_need_feature(name);
    }
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub ops: u64,
    /// How many were refused for want of space.
    pub refused: u64,
    pub promised: usize,
}

/// Files that an fsync promised: of each its seed and length.
type Promised = Arc<Mutex<BTreeMap<String, (u64, usize)>>>;

/// Does a run; what was wrong, if something was.
pub fn full_run(seed: u64, ops: u64) -> Result<Done, String> {
    let plan = Plan::of(seed, ops);
    let tell = |what: String| {
        format!("{plan:?}: {what}\n  again: cargo xtask sim --seed {seed} --full 1 --ops {ops}")
    };
    let sim = plan.world();
    let promised = Promised::default();
    let env = sim.env();
    let worked = sim.try_block_on(work(&plan, &env, &promised));
    let mut done = worked.map_err(|e| tell(format!("{e:?}")))?.map_err(|e| tell(e.to_string()))?;
    let promised = promised.lock().clone();
    done.promised = promised.len();
    let left = sim.power_off(CrashPolicy::Random, seed);
    live_on(&plan, &left, &promised).map_err(tell)?;
    Ok(done)
}

/// Bytes that do not compress, which only these two numbers tell.
fn contents(seed: u64, len: usize) -> Bytes {
    let mut rng = SimRng::new(seed, "contents");
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.u64().to_le_bytes());
    }
    out.truncate(len);
    out.into()
}

fn out_of_space(e: &Error) -> bool {
    matches!(e.errno(), Errno::NoSpc | Errno::DQuot)
}

/// For want of space, or because another was there before; all else is wrong.
fn tolerable(e: Error) -> Result<bool> {
    match e.errno() {
        _ if out_of_space(&e) => Ok(false),
        Errno::NoEnt | Errno::Exist => Ok(true),
        _ => Err(e),
    }
}

async fn work(plan: &Plan, env: &Env, promised: &Promised) -> Result<Done> {
    let opts = CreateOpts {
        name: POOL.into(),
        host: layout::host(),
        comment: None,
        owner: (0, 0),
        features: None,
        dbuf_cache: 4 << 20,
        arc_max: 32 << 20,
    };
    let spa = Spa::create(env, &plan.spec(), opts).await?;
    if plan.quota {
        let quota = spa.dsl.pool_space().dspace / 4;
        task(&spa, move |dsl, tx| {
            Box::pin(async move {
                let ds = dsl.by_name(POOL).await?;
                dsl.set_props(&tx, &ds, &[("quota".to_owned(), Setting::Local(Value::u64(quota)))]).await
            })
        })
        .await?;
    }
    let zfs = plan.open(env, &spa).await?;
    fill(plan, &zfs).await?;
    let actors: Vec<_> = (0..ACTORS)
        .map(|number| {
            let actor = Actor {
                number,
                plan: *plan,
                env: env.clone(),
                spa: spa.clone(),
                zfs: zfs.clone(),
                promised: promised.clone(),
            };
            env.spawn_with_result(actor.run())
        })
        .collect();
    let mut done = Done::default();
    for actor in actors {
        let (ops, refused) = actor.await?;
        done.ops += ops;
        done.refused += refused;
    }
    match spa.suspended() {
        Some(e) => Err(e),
        None => Ok(done),
    }
}

/// Writes until nothing more is taken. Small records are written many at a time.
async fn fill(plan: &Plan, zfs: &Arc<Zfs>) -> Result<()> {
    let chunk = (plan.record as usize).clamp(256 << 10, 4 << 20);
    for n in 0.. {
        let name = format!("fill{n}");
        let made = zfs.create(zfs.root(), name.as_bytes(), NewFile::new(S_IFREG | 0o644, Cred::default()));
        let wrote = match made.await {
            Ok((file, _)) => {
                zfs.write(file.id(), 0, &contents(plan.seed ^ n, chunk * 2), false).await.map(drop)
            }
            Err(e) => Err(e),
        };
        match wrote {
            Ok(()) => {}
            Err(e) if out_of_space(&e) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

struct Actor {
    number: u64,
    plan: Plan,
    env: Env,
    spa: Arc<Spa>,
    zfs: Arc<Zfs>,
    promised: Promised,
}

impl Actor {
    async fn run(self) -> Result<(u64, u64)> {
        let mut rng = SimRng::new(self.plan.seed, &format!("actor {}", self.number));
        let mut refused = 0;
        for n in 0..self.plan.ops {
            let kind = rng.below(20);
            let did = match kind {
                0..=4 => self.write(&mut rng).await,
                5..=7 => self.cut(&mut rng).await,
                8..=11 => self.remove(&mut rng).await.map(|()| true),
                12 | 13 => self.promise(&mut rng, n).await,
                14 => self.rename(&mut rng).await,
                15 => self.set_xattr(&mut rng).await,
                16 | 17 => self.snapshot(&mut rng).await,
                18 => self.destroy_snapshot(&mut rng).await.map(|()| true),
                _ => self.pause(&mut rng).await,
            };
            match did {
                Ok(true) => {}
                Ok(false) => refused += 1,
                Err(e) => {
                    return Err(Error::os(
                        e.errno(),
                        format!("actor {} op {n} kind {kind}: {e}", self.number),
                    ));
                }
            }
        }
        Ok((self.plan.ops, refused))
    }

    fn name(&self, rng: &mut SimRng) -> Vec<u8> {
        match rng.below(3) {
            0 => format!("fill{}", rng.below(40)),
            _ => format!("a{}f{}", rng.below(ACTORS), rng.below(FILES)),
        }
        .into_bytes()
    }

    async fn file(&self, name: &[u8], make: bool) -> Result<Option<u64>> {
        match self.zfs.lookup(self.zfs.root(), name).await {
            Ok((file, _)) => Ok(Some(file.id())),
            Err(e) if e.is(Errno::NoEnt) && !make => Ok(None),
            Err(e) if e.is(Errno::NoEnt) => {
                let new = NewFile::new(S_IFREG | 0o644, Cred::default());
                let (file, _) = self.zfs.create(self.zfs.root(), name, new).await?;
                Ok(Some(file.id()))
            }
            Err(e) => Err(e),
        }
    }

    /// Into one or a few records, which are rewritten whole.
    async fn write(&self, rng: &mut SimRng) -> Result<bool> {
        let (name, record) = (self.name(rng), u64::from(self.plan.record));
        let off = rng.below(record * 8);
        let len = 1 + rng.below((record * 2).clamp(1, 300 << 10));
        let data = contents(rng.u64(), len as usize);
        let wrote = match self.file(&name, true).await {
            Ok(Some(file)) => self.zfs.write(file, off, &data, false).await.map(|_| true),
            Ok(None) => Ok(true),
            Err(e) => Err(e),
        };
        wrote.or_else(tolerable_stale)
    }

    async fn cut(&self, rng: &mut SimRng) -> Result<bool> {
        let (name, record) = (self.name(rng), u64::from(self.plan.record));
        let Some(file) = self.file(&name, false).await? else { return Ok(true) };
        let (off, len) = (rng.below(record * 8), 1 + rng.below(record * 2));
        let done = match rng.below(3) {
            0 => {
                let set = SetAttr { size: Some(off), ..SetAttr::default() };
                self.zfs.setattr(file, set).await.map(drop)
            }
            _ => self.zfs.punch(file, off, len, false, false).await,
        };
        let fsynced = match done {
            Ok(()) if rng.below(2) == 0 => self.zfs.fsync(file).await,
            done => done,
        };
        fsynced.map(|()| true).or_else(tolerable_stale)
    }

    async fn remove(&self, rng: &mut SimRng) -> Result<()> {
        match self.zfs.unlink(self.zfs.root(), &self.name(rng)).await {
            Err(e) if !e.is(Errno::NoEnt) => Err(e),
            _ => Ok(()),
        }
    }

    /// A file that nobody changes any more, made stable.
    async fn promise(&self, rng: &mut SimRng, n: u64) -> Result<bool> {
        let name = format!("ack{}-{n}", self.number);
        let (seed, len) = (rng.u64(), 1 + rng.below(40 << 10) as usize);
        let written = async {
            let new = NewFile::new(S_IFREG | 0o644, Cred::default());
            let (file, _) = self.zfs.create(self.zfs.root(), name.as_bytes(), new).await?;
            self.zfs.write(file.id(), 0, &contents(seed, len), false).await?;
            self.zfs.fsync(file.id()).await
        };
        match written.await {
            Ok(()) => {
                self.promised.lock().insert(name, (seed, len));
                Ok(true)
            }
            Err(e) => tolerable(e),
        }
    }

    async fn rename(&self, rng: &mut SimRng) -> Result<bool> {
        let (from, to, root) = (self.name(rng), self.name(rng), self.zfs.root());
        let renamed = self.zfs.rename(root, &from, root, &to, RenameFlags::default(), Cred::default()).await;
        renamed.map(|()| true).or_else(tolerable_stale)
    }

    async fn set_xattr(&self, rng: &mut SimRng) -> Result<bool> {
        let Some(file) = self.file(&self.name(rng), false).await? else { return Ok(true) };
        let value = contents(rng.u64(), 1 + rng.below(9000) as usize);
        let set = self.zfs.setxattr(file, b"user.x", &value, XattrMode::Any).await;
        set.map(|()| true).or_else(tolerable_stale)
    }

    async fn snapshot(&self, rng: &mut SimRng) -> Result<bool> {
        let names = [format!("{POOL}@s{}", rng.below(4))];
        let taken = task(&self.spa, move |dsl, tx| {
            Box::pin(async move { dsl.snapshot(&tx, &names).await.map(drop) })
        });
        match taken.await {
            Err(e) if e.is(Errno::Again) => Ok(true),
            taken => taken.map(|()| true).or_else(tolerable),
        }
    }

    async fn destroy_snapshot(&self, rng: &mut SimRng) -> Result<()> {
        let names = [format!("{POOL}@s{}", rng.below(4))];
        task(&self.spa, move |dsl, tx| {
            Box::pin(async move { dsl.destroy_snapshots(&tx, &names, false).await })
        })
        .await
    }

    async fn pause(&self, rng: &mut SimRng) -> Result<bool> {
        match rng.below(3) {
            0 => self.spa.sync().await?,
            _ => self.env.sleep(Duration::from_millis(rng.below(400))).await,
        }
        Ok(true)
    }
}

/// As [`tolerable`], for what happens to a file that another actor may have removed.
fn tolerable_stale(e: Error) -> Result<bool> {
    if e.is(Errno::Stale) { Ok(true) } else { tolerable(e) }
}

fn live_on(plan: &Plan, left: &Survivors, promised: &BTreeMap<String, (u64, usize)>) -> Result<(), String> {
    let sim = left.boot(plan.seed ^ 0xf011);
    let env = sim.env();
    let lived = sim.try_block_on(async {
        let found = layout::find(&env).await?.ok_or_else(|| Error::no_ent("no pool is left"))?;
        let spa = layout::import(&env, &found, false).await?;
        let zfs = plan.open(&env, &spa).await?;
        whole(&zfs, promised).await?;
        clear(&spa, &zfs, promised).await?;
        whole(&zfs, promised).await?;
        drop(zfs);
        let report = spa.check_space().await?;
        if !report.is_clean() {
            return Err(Error::inval(format!("space: {report:?}")));
        }
        spa.close(None).await
    });
    lived.map_err(|e| format!("{e:?}"))?.map_err(|e| format!("after the cut: {e}"))
}

async fn whole(zfs: &Arc<Zfs>, promised: &BTreeMap<String, (u64, usize)>) -> Result<()> {
    for (name, (seed, len)) in promised {
        let (file, attr) = zfs.lookup(zfs.root(), name.as_bytes()).await?;
        let data = zfs.read(file.id(), 0, *len + 1).await?.concat();
        if attr.size != *len as u64 || data != contents(*seed, *len) {
            return Err(Error::inval(format!("{name} is not as it was promised")));
        }
    }
    Ok(())
}

/// Everything but what was promised is removed, and most of the space is there again.
async fn clear(spa: &Arc<Spa>, zfs: &Arc<Zfs>, promised: &BTreeMap<String, (u64, usize)>) -> Result<()> {
    let ds = spa.dsl.by_name(POOL).await?;
    let names: Vec<String> = spa.dsl.snapshots(&ds).await?.iter().map(|s| s.name()).collect();
    let mut at = 0;
    loop {
        let batch = zfs.readdir(zfs.root(), at).await?;
        let Some(last) = batch.last() else { break };
        at = last.cookie;
        for e in &batch {
            let name = String::from_utf8_lossy(&e.name).into_owned();
            if !promised.contains_key(&name) && name != "." && name != ".." {
                let gone = zfs.unlink(zfs.root(), &e.name).await;
                gone.map_err(|e| Error::os(e.errno(), format!("removing {name}: {e}")))?;
            }
        }
    }
    let all = names.clone();
    task(spa, move |dsl, tx| Box::pin(async move { dsl.destroy_snapshots(&tx, &all, false).await })).await?;
    for _ in 0..SETTLE {
        spa.sync().await?;
    }
    let (used, dspace) = (spa.dsl.root_dir().phys().used_bytes, spa.dsl.pool_space().dspace);
    if used > dspace / 4 {
        return Err(Error::inval(format!("{used} of {dspace} bytes are in use after all was removed")));
    }
    let new = NewFile::new(S_IFREG | 0o644, Cred::default());
    let (file, _) = zfs.create(zfs.root(), b"after", new).await?;
    zfs.write(file.id(), 0, &contents(1, 100_000), false).await?;
    zfs.fsync(file.id()).await?;
    match spa.suspended() {
        Some(e) => Err(e),
        None => Ok(()),
    }
}
