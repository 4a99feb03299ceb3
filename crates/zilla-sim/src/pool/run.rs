//! Doing a workload, and writing down what was done when and what was promised.

use super::acl;
use super::generate::{SHARED, generate};
use super::layout::{self, Layout, POOL};
use super::model::{FLAGS, Id, Model, ROOT, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG};
use super::op::{Fill, Kind, Op, Props};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::{Compress, CompressSpec};
use zilla_core::dmu::WriteProps;
use zilla_core::dsl::DslPool;
use zilla_core::error::{Errno, Error, Result};
use zilla_core::spa::Spa;
use zilla_core::txg::Tx;
use zilla_core::types::Txg;
use zilla_core::zio::{Dedup, Leave};
use zilla_core::zpl::{
    self, Cloned, Cred, FilePlace, FsProps, NewFile, RenameFlags, SetAttr, SetTime, Space, SyncMode, Time,
    Unlimited, XattrMode, Zfs, ZplProps,
};
use zilla_env::{BoxFuture, Env};
use zilla_ondisk::enums::ObjsetType;

/// Small records, so that files have several.
const RECORD: u32 = 16 << 10;

/// One actor's operations and how far it has come.
#[derive(Clone, Debug, Default)]
pub struct ActorLog {
    pub ops: Vec<Op>,
    /// For each operation that returned: the open txg before and after it.
    pub done: Vec<(u64, u64)>,
    /// The open txg before the operation that is under way.
    pub started: Option<u64>,
    /// How many operations must be there after a crash.
    pub promised: usize,
    /// The same for changes of names alone, and for changes of each file alone: what fsyncs
    /// promise.
    pub names_promised: usize,
    pub files_promised: BTreeMap<Id, usize>,
}

impl ActorLog {
    /// How many operations a state of `txg` has: at least and at most.
    pub fn range(&self, txg: u64) -> (usize, usize) {
        let least = self.done.iter().take_while(|(_, hi)| *hi <= txg).count();
        let mut most = self.done.iter().take_while(|(lo, _)| *lo <= txg).count();
        if most == self.done.len() && self.started.is_some_and(|lo| lo <= txg) {
            most += 1;
        }
        (least, most)
    }

    /// How many operations must and can be there in a pool that comes back at `txg`.
    pub fn bounds(&self, txg: u64) -> (usize, usize) {
        let (least, most) = self.range(txg);
        (least.max(self.promised), most)
    }

    /// The model after `n` operations.
    pub fn model(&self, n: usize) -> Model {
        let mut m = Model::default();
        self.ops.iter().take(n).for_each(|op| op.apply(&mut m));
        m
    }
}

/// What is known about a run from outside the world.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    pub actors: Vec<ActorLog>,
    /// An operation failed that should not have.
    pub failed: Option<String>,
}

impl Journal {
    /// Whether a pool that comes back at `txg` is held to the same by both.
    pub fn asks_the_same(&self, other: &Journal, txg: u64) -> bool {
        self.actors.iter().zip(&other.actors).all(|(a, b)| {
            a.bounds(txg) == b.bounds(txg)
                && a.names_promised == b.names_promised
                && a.files_promised == b.files_promised
        })
    }

    fn marks(&self) -> Vec<usize> {
        self.actors.iter().map(|a| a.done.len()).collect()
    }

    fn promise(&mut self, marks: &[usize]) {
        for (a, n) in self.actors.iter_mut().zip(marks) {
            a.promised = a.promised.max(*n);
        }
    }
}

/// A workload in the world that runs it.
pub struct Workload {
    pub journal: Arc<Mutex<Journal>>,
    /// The pool is made and the actors' directories are on disk.
    pub ready: Arc<AtomicBool>,
    pub done: Arc<AtomicBool>,
}

impl Workload {
    /// Starts making a pool and working on it: `ops` operations shared among `actors`.
    pub fn start(env: &Env, layout: Layout, seed: u64, actors: usize, ops: usize) -> Workload {
        let each = |a: usize| ActorLog {
            ops: generate(seed, a as u64, ops / actors + usize::from(a < ops % actors)),
            ..ActorLog::default()
        };
        let journal = Journal { actors: (0..actors).map(each).collect(), failed: None };
        let w =
            Workload { journal: Arc::new(Mutex::new(journal)), ready: Arc::default(), done: Arc::default() };
        let (journal, ready, done, e) = (w.journal.clone(), w.ready.clone(), w.done.clone(), env.clone());
        env.spawn(async move {
            if let Err(error) = work(&e, layout, &journal, &ready).await {
                journal.lock().failed.get_or_insert(error.to_string());
            }
            ready.store(true, Ordering::Release);
            done.store(true, Ordering::Release);
        });
        w
    }
}

pub fn actor_dir(a: usize) -> String {
    format!("actor{a}")
}

async fn work(env: &Env, layout: Layout, journal: &Arc<Mutex<Journal>>, ready: &AtomicBool) -> Result<()> {
    let spa = layout.create(env).await?;
    let zfs = open_fs(env, &spa, POOL).await?;
    let actors = journal.lock().actors.len();
    let mut roots = Vec::new();
    for a in 0..actors {
        let new = NewFile::new(S_IFDIR | 0o755, Cred::default());
        roots.push(zfs.create(zfs.root(), actor_dir(a).as_bytes(), new).await?.0.id());
    }
    spa.sync().await?;
    ready.store(true, Ordering::Release);
    let tasks: Vec<_> = roots
        .into_iter()
        .enumerate()
        .map(|(a, root)| {
            let actor = Actor {
                env: env.clone(),
                spa: spa.clone(),
                zfs: zfs.clone(),
                journal: journal.clone(),
                number: a,
                objects: [(ROOT, root)].into(),
            };
            env.spawn_with_result(actor.run())
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    Ok(())
}

/// Has something done in the sync of a txg, and waits for it.
pub async fn task<F>(spa: &Spa, f: F) -> Result<()>
where
    F: FnOnce(Arc<DslPool>, Tx) -> BoxFuture<'static, Result<()>> + Send + 'static,
{
    let dsl = spa.dsl.clone();
    spa.ctx.sync_task(move |tx| f(dsl, tx)).await
}

pub async fn open_fs(env: &Env, spa: &Arc<Spa>, name: &str) -> Result<Arc<Zfs>> {
    open_with_quotas(env, spa, name, [0; 3]).await
}

/// With quotas that hold for everybody who has none of his own.
pub async fn open_with_quotas(
    env: &Env,
    spa: &Arc<Spa>,
    name: &str,
    default_quotas: [u64; 3],
) -> Result<Arc<Zfs>> {
    let ds = spa.dsl.by_name(name).await?;
    let os = spa.dsl.objset(&ds).await?;
    let writable = !ds.is_snapshot() && !spa.ctx.readonly;
    if writable {
        spa.dsl.open_log(&ds).await?;
    }
    let txgs = writable.then(|| spa.ctx.txgs.clone());
    // Half of all pools write in place what is worth it.
    let throughput = spa.guid().is_multiple_of(2);
    let props =
        FsProps { recordsize: RECORD, throughput, posix_acl: true, default_quotas, ..FsProps::default() };
    Zfs::open(env.clone(), os, txgs, Arc::new(Boundless(spa.dsl.clone())), props).await
}

/// Without bounds, but for what the pool's features are.
struct Boundless(Arc<DslPool>);

impl Space for Boundless {
    fn usage(&self) -> (u64, u64) {
        Unlimited.usage()
    }
    fn admit(&self, tx: &Tx, bytes: u64, frees: bool) -> Result<()> {
        Unlimited.admit(tx, bytes, frees)
    }
    fn hold_room(&self, tx: &Tx, space: u64, leave: Leave) -> Result<()> {
        Unlimited.hold_room(tx, space, leave)
    }
    fn need_feature(&self, name: &'static str) {
        Unlimited.need_feature(name);
    }
    fn clones(&self) -> Option<Txg> {
        self.0.feature_enabled("block_cloning").then(|| self.0.ctx().last_on_disk())
    }
}

struct Actor {
    env: Env,
    spa: Arc<Spa>,
    zfs: Arc<Zfs>,
    journal: Arc<Mutex<Journal>>,
    number: usize,
    /// Objects of the model's files.
    objects: BTreeMap<Id, u64>,
}

impl Actor {
    async fn run(mut self) -> Result<()> {
        let ops = self.journal.lock().actors[self.number].ops.clone();
        for (i, op) in ops.iter().enumerate() {
            let marks = {
                let mut j = self.journal.lock();
                j.actors[self.number].started = Some(self.spa.ctx.txgs.open().0);
                j.marks()
            };
            if let Err(e) = self.perform(op).await {
                return Err(Error::os(e.errno(), format!("actor {} operation {i} {op:?}: {e}", self.number)));
            }
            self.returned(i, &ops, &marks);
            // Actors do not march in step.
            if self.env.random_below(3) == 0 {
                let pause = self.env.random_below(3000);
                self.env.sleep(Duration::from_micros(pause)).await;
            }
        }
        Ok(())
    }

    /// Notes that an operation has returned, and what that promises.
    fn returned(&self, i: usize, ops: &[Op], marks: &[usize]) {
        let open = self.spa.ctx.txgs.open().0;
        let mut j = self.journal.lock();
        let log = &mut j.actors[self.number];
        if let Some(lo) = log.started.take() {
            log.done.push((lo, open));
        }
        match &ops[i] {
            // These return when their txg is stable; what was done before lies in no later one.
            Op::Sync
            | Op::Snapshot { .. }
            | Op::DestroySnapshot { .. }
            | Op::CreateFs { .. }
            | Op::Clone { .. }
            | Op::DestroyFs { .. }
            | Op::SnapshotFs { .. }
            | Op::DestroyFsSnapshot { .. }
            | Op::RollbackFs { .. } => {
                log.promised = i + 1;
                j.promise(marks);
            }
            Op::Fsync { id } => {
                log.files_promised.insert(*id, i);
                for (a, n) in j.actors.iter_mut().zip(marks) {
                    a.names_promised = a.names_promised.max(*n);
                }
            }
            _ => {}
        }
    }

    fn object(&self, id: Id) -> u64 {
        self.objects[&id]
    }

    /// Does it. Where a quota refuses it that is taken away, as an administrator would.
    async fn perform(&mut self, op: &Op) -> Result<()> {
        match self.attempt(op).await {
            Err(e) if e.is(Errno::DQuot) => {
                self.zfs.set_props(FsProps { default_quotas: [0; 3], ..self.zfs.props() });
                self.attempt(op).await
            }
            done => done,
        }
    }

    async fn attempt(&mut self, op: &Op) -> Result<()> {
        let (zfs, any) = (self.zfs.clone(), XattrMode::Any);
        let set = SetAttr::default();
        match op {
            Op::Create { dir, name, id, kind, mode } => {
                let (fmt, target) = match kind {
                    Kind::File => (S_IFREG, &b""[..]),
                    Kind::Dir => (S_IFDIR, &b""[..]),
                    Kind::Link(t) => (S_IFLNK, t.as_bytes()),
                    Kind::Fifo => (S_IFIFO, &b""[..]),
                };
                let new = NewFile { target, ..NewFile::new(fmt | mode, Cred::default()) };
                let (held, _) = zfs.create(self.object(*dir), name.as_bytes(), new).await?;
                self.objects.insert(*id, held.id());
            }
            Op::Write { id, off, fill } => {
                let (off, data) = with_the_rest(&zfs, self.object(*id), *off, fill.bytes()).await;
                zfs.write(self.object(*id), off, &data.into(), false).await?;
            }
            Op::Append { id, fill } => {
                zfs.append(self.object(*id), &fill.bytes().into()).await?;
            }
            Op::Truncate { id, size } => {
                zfs.setattr(self.object(*id), SetAttr { size: Some(*size), ..set }).await?;
            }
            Op::Punch { id, off, len, extend } => {
                zfs.punch(self.object(*id), *off, *len, *extend, false).await?
            }
            Op::Extend { id, end } => zfs.extend(self.object(*id), *end, false).await?,
            Op::Copy { id, off, source, from, len } => {
                if [*off, *from, *len].iter().all(|n| n.is_multiple_of(SHARED)) {
                    let at = |object, offset: u64| FilePlace { object, offset };
                    let (src, dst) = (at(self.object(*source), *from), at(self.object(*id), *off));
                    if zfs.clone_range(&zfs, src, dst, *len, false).await? == Cloned::Bytes(*len) {
                        return Ok(());
                    }
                }
                let data = zfs.read(self.object(*source), *from, *len as usize).await?.concat();
                zfs.write(self.object(*id), *off, &data.into(), false).await?;
            }
            Op::Link { id, dir, name } => {
                drop(zfs.link(self.object(*id), self.object(*dir), name.as_bytes()).await?)
            }
            Op::Remove { dir, name, is_dir: false } => zfs.unlink(self.object(*dir), name.as_bytes()).await?,
            Op::Remove { dir, name, is_dir: true } => zfs.rmdir(self.object(*dir), name.as_bytes()).await?,
            Op::Rename { from, old, to, new, .. } => {
                let (from, to) = (self.object(*from), self.object(*to));
                let flags = RenameFlags::default();
                zfs.rename(from, old.as_bytes(), to, new.as_bytes(), flags, Cred::default()).await?
            }
            Op::Exchange { from, old, to, new, .. } => {
                let (from, to) = (self.object(*from), self.object(*to));
                let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
                zfs.rename(from, old.as_bytes(), to, new.as_bytes(), flags, Cred::default()).await?
            }
            Op::Flags { id, flags } => {
                let all = FLAGS.iter().fold(0, |all, f| all | f);
                let set = SetAttr { flags: Some((*flags, all & !flags)), ..set };
                zfs.setattr(self.object(*id), set).await?;
            }
            Op::SetAcl { id, default, acl } => {
                let name = if *default { acl::DEFAULT } else { acl::ACCESS };
                zfs.setxattr(self.object(*id), name.as_bytes(), &acl.encode(), any).await?
            }
            Op::Props { props } => set_props(&zfs, *props),
            Op::Chmod { id, mode } => {
                zfs.setattr(self.object(*id), SetAttr { mode: Some(*mode), ..set }).await?;
            }
            Op::Chown { id, uid, gid } => {
                let set = SetAttr { uid: Some(*uid), gid: Some(*gid), ..set };
                zfs.setattr(self.object(*id), set).await?;
            }
            Op::SetMtime { id, sec } => {
                let to = SetTime::To(Time { sec: *sec, nsec: 7 });
                zfs.setattr(self.object(*id), SetAttr { mtime: Some(to), ..set }).await?;
            }
            Op::SetXattr { id, name, fill } => {
                zfs.setxattr(self.object(*id), name.as_bytes(), &fill.bytes(), any).await?
            }
            Op::RemoveXattr { id, name } => zfs.removexattr(self.object(*id), name.as_bytes()).await?,
            Op::Read { id } => drop(zfs.read(self.object(*id), 0, 1 << 20).await?),
            Op::Fsync { id } => zfs.fsync(self.object(*id)).await?,
            Op::Sync => self.spa.sync().await?,
            Op::Sleep { ms } => self.env.sleep(Duration::from_millis(*ms)).await,
            other => self.dataset(other).await?,
        }
        Ok(())
    }

    async fn task<F>(&self, f: F) -> Result<()>
    where
        F: FnOnce(Arc<DslPool>, Tx) -> BoxFuture<'static, Result<()>> + Send + 'static,
    {
        let dsl = self.spa.dsl.clone();
        self.spa.ctx.sync_task(move |tx| f(dsl, tx)).await
    }

    async fn dataset(&self, op: &Op) -> Result<()> {
        let full = |name: &str| format!("{POOL}/{name}");
        match op.clone() {
            Op::Snapshot { name } => {
                let names = [format!("{POOL}@{name}")];
                self.task(move |d, tx| Box::pin(async move { d.snapshot(&tx, &names).await.map(drop) })).await
            }
            Op::DestroySnapshot { name } => {
                let names = [format!("{POOL}@{name}")];
                self.task(move |d, tx| Box::pin(async move { d.destroy_snapshots(&tx, &names, false).await }))
                    .await
            }
            Op::CreateFs { name } => {
                let (name, now) = (full(&name), self.env.wall());
                let time = Time { sec: now.as_secs() as i64, nsec: now.subsec_nanos() };
                let make = move |d: Arc<DslPool>, tx: Tx| -> BoxFuture<'static, Result<()>> {
                    Box::pin(async move {
                        let ds = d.create_fs(&tx, &name, ObjsetType::Zfs, 0).await?;
                        zpl::create_fs(&d.objset(&ds).await?, &tx, &ZplProps::new(0, 0, time)).await
                    })
                };
                self.task(make).await
            }
            Op::Clone { snapshot, name } => {
                let (name, origin) = (full(&name), format!("{POOL}@{snapshot}"));
                self.task(move |d, tx| {
                    Box::pin(async move { d.clone_ds(&tx, &name, &origin).await.map(drop) })
                })
                .await
            }
            Op::DestroyFs { name } => {
                let name = full(&name);
                self.task(move |d, tx| Box::pin(async move { d.destroy_head(&tx, &name).await })).await
            }
            Op::SnapshotFs { name, snapshot } => {
                let names = [format!("{}@{snapshot}", full(&name))];
                self.task(move |d, tx| Box::pin(async move { d.snapshot(&tx, &names).await.map(drop) })).await
            }
            Op::DestroyFsSnapshot { name, snapshot } => {
                let names = [format!("{}@{snapshot}", full(&name))];
                self.task(move |d, tx| Box::pin(async move { d.destroy_snapshots(&tx, &names, false).await }))
                    .await
            }
            Op::RollbackFs { name } => {
                let name = full(&name);
                self.task(move |d, tx| Box::pin(async move { d.rollback(&tx, &name, None).await })).await
            }
            Op::FillFs { name, fill } => fill_fs(&self.env, &self.spa, &full(&name), fill).await,
            other => unreachable!("{other:?} is done to files"),
        }
    }
}

/// A write of a small file as one of all its contents, where blocks that are written as they are
/// keep their places. It is small enough to be one record of the log, so that a power cut leaves
/// all of it or nothing.
async fn with_the_rest(zfs: &Arc<Zfs>, id: u64, off: u64, data: Vec<u8>) -> (u64, Vec<u8>) {
    const ONE_RECORD: usize = 32 << 10;
    let (p, end) = (zfs.objset().props(), off as usize + data.len());
    let may_stay = p.checksum == Checksum::Sha256 && p.compress != CompressSpec::OFF && p.dedup.is_none();
    if !may_stay || zfs.props().throughput || end >= ONE_RECORD {
        return (off, data);
    }
    match zfs.read(id, 0, ONE_RECORD).await.map(|parts| parts.concat()) {
        Ok(mut all) if all.len() < ONE_RECORD => {
            all.resize(all.len().max(end), 0);
            all[off as usize..end].copy_from_slice(&data);
            (0, all)
        }
        _ => (off, data),
    }
}

/// Whether a block that is written as it is already keeps its place.
fn may_stay(p: &Props) -> bool {
    p.sha256 && p.compress && p.recordsize.trailing_zeros().is_multiple_of(2)
}

/// What `zfs set` does to a file system in use.
fn set_props(zfs: &Zfs, p: Props) {
    zfs.set_props(FsProps {
        recordsize: p.recordsize,
        xattr_sa: p.xattr_sa,
        sync: if p.sync_always { SyncMode::Always } else { SyncMode::Standard },
        throughput: p.throughput,
        default_quotas: [p.quota, 0, 0],
        ..zfs.props()
    });
    let os = zfs.objset();
    os.set_props(WriteProps {
        checksum: if p.sha256 { Checksum::Sha256 } else { Checksum::Fletcher4 },
        compress: if p.compress { CompressSpec::new(Compress::Lz4) } else { CompressSpec::OFF },
        copies: p.copies,
        metadata_copies: p.copies + 1,
        // (Not drawn for itself: the runs that a seed stands for stay what they were.)
        // What is not deduplicated may keep its place when it is written once more.
        dedup: (p.sha256 && !may_stay(&p))
            .then_some(Dedup { checksum: Checksum::Sha256, verify: p.throughput }),
        ..os.props()
    });
}

/// Makes or overwrites a file of a dataset.
pub async fn fill_fs(env: &Env, spa: &Arc<Spa>, name: &str, fill: Fill) -> Result<()> {
    let zfs = open_fs(env, spa, name).await?;
    let (file, off) = fill.place();
    let id = match zfs.lookup(zfs.root(), file.as_bytes()).await {
        Ok((held, _)) => held.id(),
        Err(_) => {
            let new = NewFile::new(S_IFREG | 0o644, Cred { uid: 3, gid: 4 });
            zfs.create(zfs.root(), file.as_bytes(), new).await?.0.id()
        }
    };
    zfs.write(id, off, &fill.bytes().into(), false).await?;
    Ok(())
}

pub use layout::{find, import};
