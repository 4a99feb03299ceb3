//! A scrub of what the error log names, and of nothing else (`zpool scrub -e`): seconds where a
//! whole scrub takes a day.
//!
//! Each logged block is looked up in the datasets that have it, read with all redundancy and
//! repaired. What is still damaged is logged anew; the end of the scrub makes that the log, so that
//! what is good again, or is no more, is no longer told of.
//!
//! The task, the notes of what is freed and the fence against reuse of space are those of a scan,
//! of which there is one at a time: a scrub and this one refuse each other, and a resilver cancels
//! it.
//!
//! **On disk** are OpenZFS's nine words in the pool's directory. Their cursor stays 0: one that was
//! paused, or that a crash or an export cut off, begins again, which costs little and logs nothing
//! twice. One that is canceled forgets no error (in OpenZFS it forgets those it had not come to).

use super::errlog::LoggedError;
use super::told::MOST_FREED;
use super::{Scan, datasets, traverse};
use crate::error::{Errno, Error, PoolRefusal as Refusal, Result};
use crate::txg::Tx;
use crate::types::Bookmark;
use crate::zap::{Value, Zap};
use futures_util::StreamExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dsl::{DMU_POOL_DIRECTORY_OBJECT, DMU_POOL_ERRORSCRUB, DslErrorscrubPhys, WordsPhys};
use zilla_ondisk::enums::{ScanFunc, ScanState};

/// Blocks that are looked up and read at a time.
const AT_ONCE: usize = 32;
/// Entries between two txgs that write down what is still damaged: what waits to be written is
/// bounded, and what is beyond that would be forgotten.
const A_TXG: usize = 1024;
/// Datasets in which a block is looked for; all that have it have the same one.
const MOST_DATASETS: usize = 1000;

/// What there is of it in memory.
#[derive(Default)]
pub(super) struct ErrorsOnly {
    pub(super) phys: DslErrorscrubPhys,
    /// When it was paused, in seconds since 1970; 0 when it is not.
    pub(super) paused_at: u64,
}

impl ErrorsOnly {
    pub(super) async fn load(directory: &Zap, now: u64) -> Result<ErrorsOnly> {
        let Some(value) = directory.try_get(DMU_POOL_ERRORSCRUB).await? else {
            return Ok(ErrorsOnly::default());
        };
        let bad = |what: String| Error::corrupt(None, "the state of the scrub of errors", what);
        let words = value.as_u64s().ok_or_else(|| bad("is not an array of words".into()))?;
        let all = size_of::<DslErrorscrubPhys>() / size_of::<u64>();
        let phys = DslErrorscrubPhys::from_words(&words, all).map_err(|e| bad(e.to_string()))?;
        let mut loaded = ErrorsOnly { phys, paused_at: 0 };
        if loaded.is_paused() {
            loaded.paused_at = now;
        }
        Ok(loaded)
    }

    /// Under way, paused or not.
    pub(super) fn is_active(&self) -> bool {
        self.phys.state == ScanState::ErrorScrubbing as u64
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_active() && self.phys.paused_flags != 0
    }

    /// Why nothing else may begin while it is under way; None while it isn't.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.is_active().then(|| match self.is_paused() {
            false => Refusal::ErrorScrubbing,
            true => Refusal::ErrorScrubPaused,
        })
    }
}

/// How far it is, for `zpool status` (`pool_scan_stat`). Times are seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorScrubStatus {
    /// A number of [`ScanState`]'s.
    pub state: u64,
    pub start_time: u64,
    pub end_time: u64,
    pub to_examine: u64,
    pub examined: u64,
    /// When it was paused; 0 when it is not.
    pub pause_time: u64,
}

impl Scan {
    pub fn is_scrubbing_errors(&self) -> bool {
        let st = self.shared.lock();
        st.errors_only.is_active() && !st.errors_only.is_paused()
    }

    pub fn error_scrub(&self) -> ErrorScrubStatus {
        let st = self.shared.lock();
        let p = &st.errors_only.phys;
        ErrorScrubStatus {
            state: p.state,
            start_time: p.start_time,
            end_time: p.end_time,
            to_examine: p.to_examine,
            examined: p.examined,
            pause_time: st.errors_only.paused_at,
        }
    }

    /// Starts one, or goes on with one that is paused. [`Errno::Canceled`]: there is no error to
    /// look after; [`Errno::NotSup`]: the pool lacks the feature `head_errlog`.
    #[crate::boxed]
    pub async fn start_errors_only(self: &Arc<Self>) -> Result<()> {
        if !self.ctx.features.is_enabled("head_errlog") {
            return Err(Error::os(Errno::NotSup, "the pool lacks the feature 'head_errlog'"));
        }
        let me = self.clone();
        let task = move |tx| -> futures_util::future::BoxFuture<'static, Result<()>> {
            Box::pin(async move { me.start_errors_sync(&tx).await })
        };
        self.ctx.sync_task(task).await?;
        self.launch();
        Ok(())
    }

    async fn start_errors_sync(&self, tx: &Tx) -> Result<()> {
        let (in_the_way, mut phys, paused) = {
            let st = self.shared.lock();
            let scan = st.stable.is_scanning().then(|| match st.stable.refusal() {
                Refusal::ScrubPaused => Refusal::ScrubPausedToCancel,
                why => why,
            });
            (scan.or(st.errors_only.refusal()), st.errors_only.phys, st.errors_only.is_paused())
        };
        if paused {
            phys.paused_flags = 0;
            self.save_errors_only(tx, phys).await?;
            self.changed.notify(usize::MAX);
            self.pool.notify("errorscrub_resume");
            return Ok(());
        }
        if let Some(why) = in_the_way {
            return Err(why.into());
        }
        if self.pool.is_rebuilding() {
            return Err(Refusal::Resilvering.into());
        }
        let to_examine = self.errors.count().await?;
        if to_examine == 0 {
            return Err(Error::os(Errno::Canceled, "the pool knows of no errors"));
        }
        let phys = DslErrorscrubPhys {
            func: ScanFunc::ErrorScrub as u64,
            state: ScanState::ErrorScrubbing as u64,
            start_time: self.wall(),
            to_examine,
            ..DslErrorscrubPhys::default()
        };
        self.save_errors_only(tx, phys).await?;
        self.errors.begin_scrub();
        self.pool.notify("errorscrub_start");
        Ok(())
    }

    /// On disk and in memory.
    async fn save_errors_only(&self, tx: &Tx, phys: DslErrorscrubPhys) -> Result<()> {
        let directory = Zap::open(self.ctx.mos(), DMU_POOL_DIRECTORY_OBJECT).await?;
        directory.set(tx, DMU_POOL_ERRORSCRUB, &Value::u64s(&phys.to_words())).await?;
        let mut st = self.shared.lock();
        st.errors_only.paused_at = if phys.paused_flags != 0 { self.wall() } else { 0 };
        st.errors_only.phys = phys;
        st.generation += 1;
        Ok(())
    }

    /// A scrub of everything begins: the last one of errors is no longer told of.
    pub(super) async fn forget_errors_only(&self, tx: &Tx) -> Result<()> {
        let known = self.shared.lock().errors_only.phys;
        if known == DslErrorscrubPhys::default() {
            return Ok(());
        }
        self.save_errors_only(tx, DslErrorscrubPhys::default()).await
    }

    pub(super) async fn pause_errors_sync(&self, tx: &Tx) -> Result<()> {
        let (mut phys, paused) = {
            let st = self.shared.lock();
            (st.errors_only.phys, st.errors_only.is_paused())
        };
        if paused {
            return Err(Refusal::ErrorScrubPaused.into());
        }
        phys.paused_flags = 1;
        self.save_errors_only(tx, phys).await?;
        self.pool.notify("errorscrub_paused");
        Ok(())
    }

    /// Ends it, complete or not.
    pub(super) async fn end_errors_sync(&self, tx: &Tx, complete: bool) -> Result<()> {
        let mut phys = self.shared.lock().errors_only.phys;
        phys.state = if complete { ScanState::Finished } else { ScanState::Canceled } as u64;
        phys.end_time = self.wall();
        phys.paused_flags = 0;
        match complete {
            true => self.errors.end_scrub(tx).await?,
            false => self.errors.abandon_scrub(tx).await?,
        }
        self.save_errors_only(tx, phys).await?;
        self.pool.notify(if complete { "errorscrub_finish" } else { "errorscrub_abort" });
        self.changed.notify(usize::MAX);
        Ok(())
    }

    /// One pass over the log. It is done again where it was left off.
    pub(super) async fn scrub_errors(self: &Arc<Self>) -> Result<()> {
        let (examined, errors, left) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let logged = self.errors.entries().await?;
        let all = logged.len() as u64;
        let note = || {
            let done = examined.load(Ordering::Relaxed);
            let mut st = self.shared.lock();
            // Something else may have taken its place: these are not its counts.
            if !st.errors_only.is_active() {
                return;
            }
            let p = &mut st.errors_only.phys;
            (p.examined, p.to_examine) = (done, all.saturating_sub(done));
            p.errors = errors.load(Ordering::Relaxed);
        };
        note();
        for some in logged.chunks(A_TXG) {
            let much_is_freed = {
                let mut st = self.shared.lock();
                let much = st.freed.len() >= MOST_FREED / 2;
                if much {
                    st.freed.clear();
                }
                much
            };
            if much_is_freed {
                // Nothing is being looked up now, and what is from then on is not among that.
                self.synced().await?;
            }
            let before = errors.load(Ordering::Relaxed);
            futures_util::stream::iter(some)
                .for_each_concurrent(AT_ONCE, |e| {
                    let (examined, errors, left, note) = (&examined, &errors, &left, &note);
                    async move {
                        if left.load(Ordering::Relaxed) || self.must_leave() || super::work::stands_still() {
                            left.store(true, Ordering::Relaxed);
                            return;
                        }
                        errors.fetch_add(self.scrub_logged(e).await, Ordering::Relaxed);
                        examined.fetch_add(1, Ordering::Relaxed);
                        note();
                    }
                })
                .await;
            if left.load(Ordering::Relaxed) || !self.shared.lock().noting {
                return Ok(());
            }
            if errors.load(Ordering::Relaxed) > before {
                self.synced().await?;
            }
        }
        let me = self.clone();
        let task = move |tx| -> futures_util::future::BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                // Paused or canceled meanwhile.
                let going = {
                    let st = me.shared.lock();
                    st.errors_only.is_active() && !st.errors_only.is_paused()
                };
                if going { me.end_errors_sync(&tx, true).await } else { Ok(()) }
            })
        };
        self.ctx.sync_task(task).await
    }

    /// Reads and mends what one entry stands for; returns how many blocks are damaged.
    async fn scrub_logged(&self, e: &LoggedError) -> u64 {
        let blocks = match self.blocks_of(e).await {
            Ok(blocks) => blocks,
            // What leads to it is damaged as well, or cannot be decrypted now.
            Err(error) => {
                let at = Bookmark { objset: e.objset, object: e.object, level: e.level, blkid: e.blkid };
                tracing::debug!("scrub of errors: block {at} cannot be looked up: {error}");
                self.errors.log(at, Some(e.birth));
                return 1;
            }
        };
        let mut damaged = 0;
        for (bp, at) in blocks {
            if let Some(Err(_)) = self.read_block(&bp, at).await {
                self.errors.log(at, Some(bp.birth()));
                damaged += 1;
            }
        }
        damaged
    }

    /// The blocks of an entry that are still there, each once.
    async fn blocks_of(&self, e: &LoggedError) -> Result<Vec<(BlkPtr, Bookmark)>> {
        let place = |objset| Bookmark { objset, object: e.object, level: e.level, blkid: e.blkid };
        let readable = |bp: &BlkPtr| !bp.is_embedded() && !bp.is_redacted();
        if e.objset == Bookmark::MOS {
            let found = traverse::find(&self.ctx.store, self.pool.mos_root(), place(Bookmark::MOS)).await?;
            return Ok(found.filter(readable).map(|bp| (bp, place(Bookmark::MOS))).into_iter().collect());
        }
        let holders = match e.birth {
            // Nothing tells one version from another: all that are there now are meant.
            0 => self.with_snapshots(e.objset).await?,
            _ => self.errors.affected(e, MOST_DATASETS).await?,
        };
        let (mut blocks, mut seen, mut failed) = (Vec::new(), BTreeSet::new(), None);
        for id in holders {
            let found = match datasets::dataset(self.ctx.mos(), id).await {
                Ok(ds) => traverse::find(&self.ctx.store, ds.bp, place(id)).await,
                Err(e) => Err(e),
            };
            match found {
                Ok(Some(bp)) if readable(&bp) && (e.birth == 0 || bp.birth() == e.birth) => {
                    if seen.insert(super::key(&bp)) {
                        blocks.push((bp, place(id)));
                    }
                    if e.birth != 0 {
                        return Ok(blocks);
                    }
                }
                Ok(_) => {}
                Err(e) => failed = Some(e),
            }
        }
        failed.map_or(Ok(blocks), Err)
    }

    /// A head and its snapshots.
    async fn with_snapshots(&self, head: u64) -> Result<Vec<u64>> {
        let mos = self.ctx.mos();
        let (mut all, mut at) = (Vec::new(), head);
        let dir = datasets::dataset(mos, head).await?.dir_obj;
        while at != 0 && !all.contains(&at) && all.len() < MOST_DATASETS {
            let ds = datasets::dataset(mos, at).await?;
            if ds.dir_obj != dir {
                break;
            }
            all.push(at);
            at = ds.prev_snap_obj;
        }
        Ok(all)
    }
}
