//! Gathering a slice of a round: the order of datasets, and what is wanted of each.
//!
//! What a slice comes to counts when the slice does: one that datasets disturb is gathered again,
//! and nothing of it is told before, neither what it could not read.

use super::round::Entry;
use super::state::Position;
use super::traverse::{Visitor, Walk};
use super::work::LEAST_SLICE;
use super::{Scan, datasets, key};
use crate::dmu::Objset;
use crate::error::{Errno, Error, Result};
use crate::types::{Bookmark, ObjectId};
use crate::zap::Zap;
use crate::zil;
use crate::zio::{Met, is_away};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dsl::{DSF_VISIT_DS_AGAIN, DslDatasetPhys};
use zilla_ondisk::zbookmark::{ZB_DESTROYED_OBJSET, ZB_ZIL_LEVEL};

/// A slice ends also when this many times as many blocks as it may have were passed by.
const PASS_FACTOR: usize = 16;

/// How a slice of gathering ended.
pub(super) enum Gathered {
    /// There is more to come behind this position.
    Part(Position),
    All(Position),
    /// Datasets changed, or the scan is to stop: what this slice gathered means nothing.
    Disturbed,
}

/// How often each dataset was visited.
pub(super) type Visits = BTreeMap<u64, u32>;

/// What a slice has come to. It counts if the slice does.
#[derive(Default)]
pub(super) struct Slice {
    /// Since the order of datasets was last known to have changed, the slices before included.
    pub(super) visits: Visits,
    pub(super) entries: Vec<Entry>,
    pub(super) examined: u64,
    pub(super) skipped: u64,
    pub(super) trouble: Trouble,
}

/// What cannot be gathered.
#[derive(Default)]
pub(super) struct Trouble {
    /// What is below something is not read: devices do not get it, and the scan is none of
    /// everything.
    passed_by: bool,
    errors: u64,
    /// Damaged blocks, with their births, and what else is.
    pub(super) damaged: Vec<(Bookmark, Option<u64>)>,
}

impl Trouble {
    fn pass_by(&mut self, damaged: Option<(Bookmark, Option<u64>)>) {
        self.passed_by = true;
        self.errors += 1;
        self.damaged.extend(damaged);
    }

    pub(super) fn add(&mut self, more: &mut Trouble) {
        self.passed_by |= more.passed_by;
        self.errors += more.errors;
        self.damaged.append(&mut more.damaged);
    }
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
        self.out.trouble.pass_by((!is_away(&error)).then(|| (at, Some(bp.birth()))));
        self.counted = Some(at);
        Ok(())
    }

    fn stop(&mut self) -> bool {
        self.out.entries.len() + self.out.trouble.damaged.len() + self.passed / PASS_FACTOR >= self.limit
            || self.scan.disturbed(self.generation)
    }
}

impl Scan {
    /// Something that says where to go on is damaged: an error like others, and what it leads to is
    /// passed by. What failed for another reason is tried again.
    fn damaged(&self, e: Error, trouble: &mut Trouble) -> Result<()> {
        let given_up = is_away(&e) && !self.waits_for_devices();
        if !matches!(e, Error::Corrupt(_)) && !given_up {
            return Err(e);
        }
        tracing::warn!("scan: {e}");
        let at = match &e {
            Error::Corrupt(c) => c.bookmark,
            _ => None,
        };
        trouble.pass_by(at.map(|at| (at, None)));
        Ok(())
    }

    /// What a round that is to be read could not gather.
    pub(super) fn take_note(&self, trouble: Trouble) {
        if trouble.passed_by {
            self.passed_by();
        }
        self.error_count.fetch_add(trouble.errors, Ordering::Relaxed);
        trouble.damaged.into_iter().for_each(|(at, birth)| self.errors.log(at, birth));
    }

    pub(super) async fn gather(
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
                    p.queue.extend(self.first_datasets(0, &mut out.trouble).await?);
                }
            }
            ZB_DESTROYED_OBJSET => {}
            ds => stopped = self.visit_dataset(&mut p, ds, generation, limit, out).await?,
        }
        // Datasets with nothing that is wanted take their time too: one that changes disturbs no
        // more of them than it does blocks.
        let mut more = limit.max(LEAST_SLICE);
        while !stopped {
            p.set_bookmark(None);
            // That was said of the dataset that the place was in.
            p.phys.flags &= !DSF_VISIT_DS_AGAIN;
            if more == 0 && !p.queue.is_empty() {
                p.set_between();
                stopped = true;
                break;
            }
            more = more.saturating_sub(1);
            let Some((ds, min)) = p.queue.pop_first() else { break };
            // Once, and once more if it changed meanwhile: a chain of snapshots that leads back is
            // damage.
            let times = out.visits.entry(ds).or_default();
            *times += 1;
            if *times > 2 {
                let at = Bookmark::new(0, ObjectId(ds), 0, 0);
                let e = Error::corrupt(Some(at), "", "the chain of snapshots leads back");
                self.damaged(e, &mut out.trouble)?;
                continue;
            }
            p.phys.cur_min_txg = p.phys.min_txg.max(min);
            p.phys.cur_max_txg = match self.dataset(ds).await {
                Ok(d) if d.num_children != 0 => p.until.min(d.creation_txg),
                Ok(_) => p.until,
                Err(e) if e.is(Errno::NoEnt) => continue,
                Err(e) => {
                    self.damaged(e, &mut out.trouble)?;
                    continue;
                }
            };
            stopped = self.visit_dataset(&mut p, ds, generation, limit, out).await?;
        }
        if self.disturbed(generation) {
            return Ok(Gathered::Disturbed);
        }
        if stopped {
            return Ok(Gathered::Part(p));
        }
        p.set_walked();
        Ok(Gathered::All(p))
    }

    /// Where the order of datasets begins, for who knows the blocks of txg `since` and before.
    pub(super) async fn first_datasets(
        &self,
        since: u64,
        trouble: &mut Trouble,
    ) -> Result<BTreeMap<u64, u64>> {
        let first = match datasets::origin_snapshot(self.ctx.mos()).await? {
            // An old pool: what is no clone begins by itself.
            0 => self.clones(0, &DslDatasetPhys::default(), trouble).await?,
            origin => vec![(origin, 0)],
        };
        Ok(first.into_iter().map(|(ds, min)| (ds, min.max(since))).collect())
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
        let max_birth = p.phys.cur_max_txg.min(p.phys.max_txg);
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
                self.damaged(e, &mut out.trouble)?;
                return Ok(false);
            }
        };
        // Logs the first walk has read.
        let is_head = phys.num_children == 0 && !phys.bp.is_hole() && !p.is_later();
        // A snapshot from after the walk's beginning, whose blocks were seen in an earlier one.
        if p.phys.cur_min_txg >= p.until {
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
        let known = p.phys.cur_min_txg;
        if phys.next_snap_obj != 0 {
            p.queue.insert(phys.next_snap_obj, phys.creation_txg.max(known));
        }
        if phys.num_children > 1 {
            for (clone, min) in self.clones(ds, &phys, &mut out.trouble).await? {
                p.queue.insert(clone, min.max(known));
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
                out.trouble.passed_by = true;
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let header = os.phys().zil_header;
        if header.claim_txg == 0 || header.log.is_hole() {
            return Ok(());
        }
        let (blocks, whole) = zil::claimed(&*ctx.store, &header, ds).await;
        out.trouble.passed_by |= !whole;
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
    async fn clones(&self, ds: u64, phys: &DslDatasetPhys, trouble: &mut Trouble) -> Result<Vec<(u64, u64)>> {
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
                    let e = Error::corrupt(None, "the clones of a snapshot", e.to_string());
                    self.damaged(e, trouble)?;
                }
                Err(e) => self.damaged(e, trouble)?,
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
