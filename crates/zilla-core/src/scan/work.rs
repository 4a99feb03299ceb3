//! The task that does a scan's work: gather, read, write down, again.

use super::round::{Cost, Entry};
use super::state::Position;
use super::traverse::{Visitor, Walk};
use super::{Scan, datasets, key};
use crate::dmu::Objset;
use crate::error::{Errno, Error, Result};
use crate::tunables;
use crate::types::{Bookmark, ObjectId};
use crate::zap::Zap;
use crate::zil;
use crate::zio::{Met, is_away};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dsl::{DSF_VISIT_DS_AGAIN, DslDatasetPhys};
use zilla_ondisk::enums::ScanState;
use zilla_ondisk::zbookmark::{ZB_DESTROYED_OBJSET, ZB_ZIL_LEVEL};

/// How long a round may take as long as little has been done: what a crash or an export may cost.
const FIRST_ROUND: Duration = Duration::from_secs(300);
/// Blocks that are gathered between two looks at what has become of the datasets; fewer, where they
/// change faster.
const SLICE: usize = 4096;
const LEAST_SLICE: usize = 64;
/// A slice ends also when this many times as many blocks as it may have were passed by.
const PASS_FACTOR: usize = 16;
/// Keys of freed blocks that are kept while a round is gathered (64 MiB of them).
const MOST_FREED: usize = 1 << 20;

/// How often one that is to stand still looks whether it may go on.
pub(super) const HELD: Duration = Duration::from_millis(50);
/// Before what was disturbed is tried again.
const DISTURBED: Duration = Duration::from_millis(20);
/// Before what failed is tried again.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

pub(super) fn stands_still() -> bool {
    tunables::SCAN_SUSPEND_PROGRESS.get() != 0
}

/// How a slice of gathering ended.
enum Gathered {
    /// There is more to come behind this position.
    Part(Position),
    All(Position),
    /// Datasets changed, or the scan is to stop: what this slice gathered means nothing.
    Disturbed,
}

/// What a slice has come to.
#[derive(Default)]
struct Slice {
    entries: Vec<Entry>,
    examined: u64,
    skipped: u64,
}

struct Collector<'a> {
    scan: &'a Scan,
    generation: u64,
    max_birth: u64,
    /// Only what devices lack is wanted.
    resilver: bool,
    /// Blocks born later may still be written over by the txg being synced.
    stable: u64,
    limit: usize,
    /// Blocks that came up and are not wanted.
    passed: usize,
    /// What cannot be read, or holds what is damaged: it is visited next, or when its end is
    /// reached.
    counted: Option<Bookmark>,
    out: &'a mut Slice,
}

impl Visitor for Collector<'_> {
    fn visit(&mut self, bp: &BlkPtr, at: Bookmark) {
        if !bp.is_embedded() && bp.phys_birth() <= self.max_birth {
            if self.resilver && !self.scan.pool.lacks(bp) {
                self.out.skipped += bp.asize();
                self.passed += 1;
                return;
            }
            self.out.examined += bp.asize();
            self.out.entries.push(Entry { bp: *bp, at, counted: self.counted == Some(at) });
        }
    }

    fn unreadable(&mut self, bp: &BlkPtr, at: Bookmark, error: Error) -> Result<()> {
        // A birth that no txg has reached yet is damage.
        let written_since = bp.birth() > self.stable && bp.birth() <= self.scan.ctx.txgs.open().0;
        if written_since || self.scan.shared.lock().is_freed(&key(bp)) {
            // The tree that is walked is no more.
            return Err(Error::os(Errno::Stale, "the block was freed meanwhile"));
        }
        if is_away(&error) && self.scan.waits_for_devices() {
            return Err(error);
        }
        tracing::warn!("scan: what is below block {at} is not checked: {error}");
        self.scan.passed_by();
        match is_away(&error) {
            true => drop(self.scan.error_count.fetch_add(1, Ordering::Relaxed)),
            false => self.scan.bad_block(bp, at),
        }
        self.counted = Some(at);
        Ok(())
    }

    fn stop(&mut self) -> bool {
        self.out.entries.len() + self.passed / PASS_FACTOR >= self.limit
            || self.scan.disturbed(self.generation)
    }
}

impl Scan {
    /// Starts the task unless it is there.
    pub(super) fn launch(self: &Arc<Self>) {
        {
            let mut st = self.shared.lock();
            if st.running || st.stopping || !st.is_active() {
                return;
            }
            st.running = true;
        }
        let me = self.clone();
        self.ctx.env.spawn(async move {
            let guard = Running(me.clone());
            match me.work().await {
                // Another may have begun before this task was known to be over.
                Ok(()) => {
                    drop(guard);
                    me.launch();
                }
                Err(e) => {
                    tracing::error!("scan: stopped: {e}");
                    me.give_up();
                }
            }
        });
    }

    /// A scan that can neither go on nor be ended on disk is over in memory, and nobody waits for
    /// it. On disk it goes on with the next import, as it does here where the pool was only
    /// suspended.
    fn give_up(&self) {
        if self.ctx.txgs.is_stopped() {
            return;
        }
        let mut st = self.shared.lock();
        if st.stable.is_scanning() {
            st.stable.phys.state = ScanState::Canceled as u64;
        }
        if st.errors_only.is_active() {
            st.errors_only.phys.state = ScanState::Canceled as u64;
        }
        st.next = None;
        st.generation += 1;
        st.note_nothing();
        drop(st);
        self.changed.notify(usize::MAX);
    }

    /// Whether the task must leave what it is doing.
    pub(super) fn disturbed(&self, generation: u64) -> bool {
        let st = self.shared.lock();
        st.stopping || st.generation != generation || !st.stable.is_scanning() || st.stable.is_paused()
    }

    /// Something that says where to go on is damaged: an error like others, and what it leads to is
    /// passed by. What failed for another reason is tried again.
    fn damaged(&self, e: Error) -> Result<()> {
        let given_up = is_away(&e) && !self.waits_for_devices();
        if !matches!(e, Error::Corrupt(_)) && !given_up {
            return Err(e);
        }
        tracing::warn!("scan: {e}");
        self.passed_by();
        self.error_count.fetch_add(1, Ordering::Relaxed);
        if let Error::Corrupt(c) = &e
            && let Some(at) = c.bookmark
        {
            self.errors.log(at, None);
        }
        Ok(())
    }

    /// What is below something is not read: devices do not get it, and the scan is none of
    /// everything.
    fn passed_by(&self) {
        self.pool.unreadable(None);
        self.shared.lock().passed_by = true;
    }

    pub(super) fn bad_block(&self, bp: &BlkPtr, at: Bookmark) {
        self.error_count.fetch_add(1, Ordering::Relaxed);
        self.errors.log(at, Some(bp.birth()));
    }

    async fn work(self: &Arc<Self>) -> Result<()> {
        // What this task has spent on rounds that are on disk, and how long reading takes beside
        // its estimate.
        let (mut worked, mut factor) = (Duration::ZERO, 1.0);
        loop {
            self.stand_still().await;
            loop {
                let listener = self.changed.listen();
                {
                    let mut st = self.shared.lock();
                    if st.stopping || !st.is_active() {
                        return Ok(());
                    }
                    // With the memory it took.
                    st.note_nothing();
                    st.next = None;
                    st.noting = !st.is_paused();
                    if st.noting {
                        break;
                    }
                }
                listener.await;
            }
            // The txg that is being synced may have freed blocks before that was noted, and the
            // trees of the last one still have them. Behind it, all that the trees have is noted
            // when it is freed.
            self.synced().await?;
            if self.shared.lock().errors_only.is_active() {
                match self.scrub_errors().await {
                    Err(e) if is_away(&e) && !self.ctx.txgs.is_stopped() => self.ctx.env.sleep(AGAIN).await,
                    done => done?,
                }
                continue;
            }
            self.reset_counters();
            let began = self.ctx.env.now();
            let longest = Duration::from_secs(tunables::SCAN_CHECKPOINT_INTVAL.get());
            // An interruption costs no more than was done before it, or than the first round.
            let mut cost = Cost::new(factor);
            let gathered = self.gather_round(worked.max(FIRST_ROUND).min(longest), &mut cost).await?;
            let Some((mut entries, all)) = gathered else {
                self.ctx.env.sleep(DISTURBED).await;
                continue;
            };
            if all {
                entries.append(&mut self.outlived().await?);
            }
            let reading = self.ctx.env.now();
            let (done, waited) = self.read_round(entries).await;
            if !done {
                continue;
            }
            let ended = self.ctx.env.now();
            factor = cost.correct(ended.saturating_sub(reading).saturating_sub(waited));
            worked += ended.saturating_sub(began).saturating_sub(waited);
            while let Err(e) = self.write_down(all).await {
                // A suspended pool that refuses changes (`failmode=continue`) takes them again when
                // it is cleared.
                if !is_away(&e) || self.ctx.txgs.is_stopped() || self.shared.lock().stopping {
                    return Err(e);
                }
                self.ctx.env.sleep(AGAIN).await;
            }
            if all {
                self.pool.resilvered();
            }
        }
    }

    /// Gathers blocks until they take the time or the memory that a round may have, slice by slice:
    /// what changes datasets disturbs one slice at most. Returns them, and whether there are no
    /// more behind them; None if the scan is left, or begins anew.
    async fn gather_round(
        self: &Arc<Self>,
        time: Duration,
        cost: &mut Cost,
    ) -> Result<Option<(Vec<Entry>, bool)>> {
        let began = self.ctx.env.now();
        let most = (self.pool.memory().await / size_of::<Entry>() as u64).max(1) as usize;
        let (mut entries, mut slice, mut failures) = (Vec::new(), SLICE, 0u32);
        loop {
            if self.must_leave() || stands_still() {
                return Ok(None);
            }
            let (generation, from) = {
                let st = self.shared.lock();
                match &st.next {
                    Some(next) => (st.generation, next.clone()),
                    None if entries.is_empty() => (st.generation, st.stable.clone()),
                    // What was gathered is of another scan.
                    None => return Ok(None),
                }
            };
            let errors = self.error_count.load(Ordering::Relaxed);
            let mut out = Slice::default();
            let limit = slice.min(most.saturating_sub(entries.len()));
            let gathered = match self.gather(from, generation, limit, &mut out).await {
                Ok(g) => g,
                // A tree that changed under the walk; the next one begins at the newest root.
                Err(e) if e.is(Errno::Stale) => Gathered::Disturbed,
                // Nobody knows what is there until they are back.
                Err(e) if is_away(&e) => {
                    self.ctx.env.sleep(AGAIN).await;
                    Gathered::Disturbed
                }
                Err(e) => {
                    failures += 1;
                    if failures > 3 {
                        // What cannot go on is over, and not waited for.
                        let me = self.clone();
                        let end = move |tx| -> futures_util::future::BoxFuture<'static, Result<()>> {
                            Box::pin(async move { me.finish_sync(&tx, false).await })
                        };
                        self.ctx.sync_task(end).await?;
                        return Err(e);
                    }
                    tracing::warn!("scan: {e}");
                    self.ctx.env.sleep(AGAIN).await;
                    Gathered::Disturbed
                }
            };
            let next = match gathered {
                Gathered::Part(p) => Some((p, false)),
                Gathered::All(p) => Some((p, true)),
                Gathered::Disturbed => None,
            };
            let (kept, freed) = {
                let mut st = self.shared.lock();
                let kept = next.filter(|_| st.generation == generation).map(|(p, all)| {
                    (st.next, st.away_since) = (Some(p), None);
                    all
                });
                (kept, st.freed.len())
            };
            let Some(all) = kept else {
                // It is done again, and counts then.
                self.error_count.store(errors, Ordering::Relaxed);
                slice = (slice / 2).max(LEAST_SLICE);
                self.ctx.env.sleep(DISTURBED).await;
                continue;
            };
            failures = 0;
            slice = (slice * 2).min(SLICE);
            self.examined.fetch_add(out.examined, Ordering::Relaxed);
            self.skipped.fetch_add(out.skipped, Ordering::Relaxed);
            out.entries.iter().for_each(|e| cost.add(&e.bp));
            // Doubled, as vectors grow, but not beyond what a round may have.
            if entries.capacity() - entries.len() < out.entries.len() {
                entries.reserve_exact(
                    entries.len().min(most.saturating_sub(entries.len())).max(out.entries.len()),
                );
            }
            entries.append(&mut out.entries);
            let spent = self.ctx.env.now().saturating_sub(began);
            if all || entries.len() >= most || freed >= MOST_FREED || spent.max(cost.time()) >= time {
                return Ok(Some((entries, all)));
            }
        }
    }

    /// Waits until all that has happened so far is on disk.
    pub(super) async fn synced(&self) -> Result<()> {
        self.ctx.txgs.wait_synced(self.ctx.txgs.open()).await
    }

    /// Makes the end of the round the place that is on disk; ends the scan if that was all.
    async fn write_down(self: &Arc<Self>, all: bool) -> Result<()> {
        let me = self.clone();
        let task = move |tx| -> futures_util::future::BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let position = {
                    let mut st = me.shared.lock();
                    // Stopped meanwhile.
                    let Some(mut p) = st.next.take() else { return Ok(()) };
                    p.phys.flags |= st.stable.phys.flags;
                    p.phys.examined = me.examined.load(Ordering::Relaxed);
                    p.phys.skipped = me.skipped.load(Ordering::Relaxed);
                    p.phys.processed = me.processed.load(Ordering::Relaxed);
                    p.phys.errors = me.error_count.load(Ordering::Relaxed);
                    st.stable = p.clone();
                    p
                };
                me.errors.sync(&tx).await?;
                if all { me.finish_sync(&tx, true).await } else { position.save(me.ctx.mos(), &tx).await }
            })
        };
        self.ctx.sync_task(task).await
    }

    /// As long as the tunable says so and the scan is to go on at all. What is freed meanwhile need
    /// not be known.
    async fn stand_still(&self) {
        while stands_still() && !self.must_leave() {
            self.shared.lock().note_nothing();
            self.ctx.env.sleep(HELD).await;
        }
    }

    pub(super) fn must_leave(&self) -> bool {
        let st = self.shared.lock();
        st.stopping || !st.is_active() || st.is_paused()
    }

    // ---- the order of datasets

    async fn gather(
        &self,
        mut p: Position,
        generation: u64,
        limit: usize,
        out: &mut Slice,
    ) -> Result<Gathered> {
        let mut stopped = false;
        match p.phys.bookmark.objset {
            0 => {
                (p.phys.cur_min_txg, p.phys.cur_max_txg) = (p.phys.min_txg, p.phys.max_txg);
                stopped = self.walk(&mut p, 0, self.pool.mos_root(), generation, limit, out).await?;
                if !stopped {
                    p.set_bookmark(None);
                    let origin = datasets::origin_snapshot(self.ctx.mos()).await?;
                    if origin == 0 {
                        // An old pool: what is no clone begins by itself.
                        p.queue.extend(self.clones(0, &DslDatasetPhys::default()).await?);
                    }
                    stopped = self.visit_dataset(&mut p, origin, generation, limit, out).await?;
                }
            }
            ZB_DESTROYED_OBJSET => {}
            ds => stopped = self.visit_dataset(&mut p, ds, generation, limit, out).await?,
        }
        let mut visits: BTreeMap<u64, u32> = BTreeMap::new();
        while !stopped {
            p.set_bookmark(None);
            let Some((ds, min)) = p.queue.pop_first() else { break };
            // Once, and once more if it changed meanwhile: a chain of snapshots that leads back is
            // damage.
            let times = visits.entry(ds).or_default();
            *times += 1;
            if *times > 2 {
                let at = Bookmark::new(0, ObjectId(ds), 0, 0);
                self.damaged(Error::corrupt(Some(at), "", "the chain of snapshots leads back"))?;
                continue;
            }
            p.phys.cur_min_txg = p.phys.min_txg.max(min);
            p.phys.cur_max_txg = match self.dataset(ds).await {
                Ok(d) if d.num_children != 0 => p.phys.max_txg.min(d.creation_txg),
                Ok(_) => p.phys.max_txg,
                Err(e) if e.is(Errno::NoEnt) => continue,
                Err(e) => {
                    self.damaged(e)?;
                    continue;
                }
            };
            stopped = self.visit_dataset(&mut p, ds, generation, limit, out).await?;
        }
        if self.disturbed(generation) {
            return Ok(Gathered::Disturbed);
        }
        Ok(if stopped { Gathered::Part(p) } else { Gathered::All(p) })
    }

    async fn walk(
        &self,
        p: &mut Position,
        objset: u64,
        root: BlkPtr,
        generation: u64,
        limit: usize,
        out: &mut Slice,
    ) -> Result<bool> {
        // Each step gets on, however full the round is already.
        let limit = if out.entries.is_empty() { limit.max(1) } else { limit };
        let max_birth = p.phys.cur_max_txg;
        let stable = self.pool.mos_root().birth();
        let mut collector = Collector {
            scan: self,
            generation,
            max_birth,
            resilver: p.is_resilver(),
            stable,
            limit,
            passed: 0,
            counted: None,
            out,
        };
        let mut walk = Walk::new(&self.ctx.store, &mut collector, objset);
        walk.min_birth = p.phys.cur_min_txg;
        walk.resume = p.resume();
        walk.met = std::mem::take(&mut *self.met.lock());
        let stopped = walk.objset(root).await?;
        *self.met.lock() = if stopped.is_some() { walk.met } else { Met::default() };
        if let Some(at) = stopped {
            p.set_bookmark(Some(at));
        }
        Ok(stopped.is_some())
    }

    async fn visit_dataset(
        &self,
        p: &mut Position,
        ds: u64,
        generation: u64,
        limit: usize,
        out: &mut Slice,
    ) -> Result<bool> {
        if ds == 0 {
            return Ok(false);
        }
        let phys = match self.dataset(ds).await {
            Ok(d) => d,
            Err(e) if e.is(Errno::NoEnt) => return Ok(false),
            Err(e) => {
                self.damaged(e)?;
                return Ok(false);
            }
        };
        // A snapshot from after the scan's beginning, whose blocks were seen in an earlier one.
        let is_head = phys.num_children == 0 && !phys.bp.is_hole();
        if p.phys.cur_min_txg >= p.phys.max_txg {
            if is_head {
                self.log_of(p, ds, &phys.bp, out).await?;
            }
            return Ok(false);
        }
        if self.walk(p, ds, phys.bp, generation, limit, out).await? {
            return Ok(true);
        }
        if is_head {
            self.log_of(p, ds, &phys.bp, out).await?;
        }
        if p.phys.flags & DSF_VISIT_DS_AGAIN != 0 {
            p.phys.flags &= !DSF_VISIT_DS_AGAIN;
            p.queue.insert(ds, p.phys.cur_max_txg);
            return Ok(false);
        }
        if phys.next_snap_obj != 0 {
            p.queue.insert(phys.next_snap_obj, phys.creation_txg);
        }
        if phys.num_children > 1 {
            for clone in self.clones(ds, &phys).await? {
                p.queue.insert(clone.0, clone.1);
            }
        }
        Ok(false)
    }

    /// The intent log of a head that was claimed and waits to be replayed, as one of a file system
    /// does whose key is not loaded. (One in use is given to all devices as it is written, and what
    /// was written before a device came is in the txgs.)
    async fn log_of(&self, p: &Position, ds: u64, root: &BlkPtr, out: &mut Slice) -> Result<()> {
        let ctx = &self.ctx;
        let props = ctx.mos().props();
        let os = match Objset::open(ds, root, ctx.store.clone(), ctx.cache.clone(), props).await {
            Ok(os) => os,
            // The walk has met that, and it is gone by what it could not read for long.
            Err(Error::Corrupt(_)) => return Ok(()),
            Err(e) if is_away(&e) && !self.waits_for_devices() => {
                self.passed_by();
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let header = os.phys().zil_header;
        if header.claim_txg == 0 || header.log.is_hole() {
            return Ok(());
        }
        let (blocks, whole) = zil::claimed(&*ctx.store, &header, ds).await;
        if !whole {
            self.passed_by();
        }
        let at = Bookmark { objset: ds, object: 0, level: ZB_ZIL_LEVEL, blkid: 0 };
        let wanted =
            |bp: &BlkPtr| bp.phys_birth() <= p.phys.max_txg && (!p.is_resilver() || self.pool.lacks(bp));
        for bp in blocks.into_iter().filter(wanted) {
            out.examined += bp.asize();
            out.entries.push(Entry { bp, at, counted: false });
        }
        Ok(())
    }

    async fn dataset(&self, ds: u64) -> Result<DslDatasetPhys> {
        datasets::dataset(self.ctx.mos(), ds).await
    }

    /// The datasets whose history begins with a snapshot, and since when their blocks are their
    /// own.
    async fn clones(&self, ds: u64, phys: &DslDatasetPhys) -> Result<Vec<(u64, u64)>> {
        let mos = self.ctx.mos();
        if phys.next_clones_obj != 0 {
            let known = async { Zap::open(mos, phys.next_clones_obj).await?.ints().await };
            match known.await {
                Ok(known) if (known.len() as u64).checked_add(1) == Some(phys.num_children) => {
                    return Ok(known.into_iter().map(|c| (c, phys.creation_txg)).collect());
                }
                Ok(_) => {}
                Err(e) if e.is(Errno::Stale) => return Err(e),
                Err(e) if e.is(Errno::NoEnt) => {
                    self.damaged(Error::corrupt(None, "the clones of a snapshot", e.to_string()))?;
                }
                Err(e) => self.damaged(e)?,
            }
        }
        // Old pools do not list them all: every dir is asked where it comes from.
        let mut out = Vec::new();
        for dir in datasets::all_dirs(mos).await? {
            if dir.origin_obj != ds || dir.head_dataset_obj == 0 {
                continue;
            }
            let (oldest, d) = datasets::first_after(mos, dir.head_dataset_obj, ds).await?;
            out.push((oldest, d.prev_snap_txg));
        }
        Ok(out)
    }
}

/// Says that the task is over, however it ends.
struct Running(Arc<Scan>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut st = self.0.shared.lock();
        st.running = false;
        st.note_nothing();
        drop(st);
        self.0.changed.notify(usize::MAX);
    }
}
