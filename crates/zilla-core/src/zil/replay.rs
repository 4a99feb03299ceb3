//! Doing again what a log says, when its dataset is mounted after a crash.
//!
//! A replay goes to the end of what was claimed, or it *stops*: at a record that cannot be done, or
//! where the chain ends too early. What comes behind was acknowledged and may depend on what is
//! missing, so it is not done either. (A record of an object that is damaged is given up alone.)
//! Then the log stays as it is, with a note in its header of how far it was done, for the next try;
//! [`KeptLogs`] says why, and nobody writes to the dataset meanwhile, since what the log says is
//! about the state that the replay left. Only who says so gives up the rest
//! ([`Zilog::give_up_the_rest`]).
//!
//! What a replay writes over a damaged record is held in memory, and logged again by the sync that
//! gives the log back ([`super::keep`]). If a crash comes before, the next replay finds the records
//! done and the blocks below still damaged, and does those again ([`Replay::again`]).

use super::chain::Walk;
use super::claim::{own_blocks, read_logged, seq_of};
use super::log::Zilog;
use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::types::{Bookmark, ObjectId};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_codec::checksum::Checksum;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::zil::{LogRecord, ZIL_REPLAY_NEEDED, ZilHeader, is_native};

/// Who does what records say.
pub trait Replay: Send + Sync {
    /// Does one record again, in one transaction that also calls [`Zilog::replayed`].
    fn replay<'a>(&'a self, record: &'a LogRecord<'_>) -> BoxFuture<'a, Result<()>>;

    /// Does again of a write or a freed range, which an earlier replay has done, what lies in
    /// blocks that cannot be read: there it cannot have come to disk.
    fn again<'a>(&'a self, record: &'a LogRecord<'_>) -> BoxFuture<'a, Result<()>>;
}

/// What a replay did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    pub records: u64,
    /// Records of txgs that were synced, or that an earlier replay did.
    pub skipped: u64,
    /// Records of objects that cannot be read.
    pub given_up: u64,
    /// Why the rest was left, and the log kept with it, if it was.
    pub stopped: Option<String>,
}

/// Logs of which something was acknowledged and could not be done again: why, by their objsets.
#[derive(Default)]
pub struct KeptLogs(Mutex<BTreeMap<u64, String>>);

impl KeptLogs {
    fn keep(&self, objset: u64, why: String) {
        self.0.lock().insert(objset, why);
    }

    /// The log is gone, replayed to its end or with its dataset's contents.
    pub(crate) fn forget(&self, objset: u64) {
        self.0.lock().remove(&objset);
    }

    pub fn list(&self) -> Vec<(u64, String)> {
        self.0.lock().iter().map(|(objset, why)| (*objset, why.clone())).collect()
    }
}

/// How often a record is tried. What an earlier one freed, numbers and space, can be given out
/// again only when that is on disk: space two txgs later.
const TRIES: usize = 4;

impl Zilog {
    /// Begins to use a dataset's log: replays what is in it, or takes over the empty beginning that
    /// whoever closed it left.
    #[crate::boxed]
    pub async fn start(self: &Arc<Self>, os: &Arc<Objset>, target: &dyn Replay) -> Result<Replayed> {
        if self.started.load(Ordering::Acquire) {
            return Ok(Replayed::default());
        }
        // One whose caller went away may have come further than the header says.
        let given_back = self.state.lock().chain.given_back_in();
        if given_back > self.ctx.txgs.synced() {
            self.ctx.txgs.wait_synced(given_back).await?;
        }
        let header = {
            let st = self.state.lock();
            let mut header = os.phys().zil_header;
            let redone = st.replayed_seq.iter().copied().max().unwrap_or(0);
            header.replay_seq = header.replay_seq.max(redone);
            header
        };
        let mut done = Replayed::default();
        if header.flags & ZIL_REPLAY_NEEDED != 0 && !header.log.is_hole() {
            done = self.replay_all(os, &header, target).await?;
            if let Some(why) = &done.stopped {
                self.ctx.log.kept.keep(self.objset, why.clone());
                return Ok(done);
            }
            self.ctx.log.kept.forget(self.objset);
        } else if !header.log.is_hole() || header != ZilHeader::default() {
            let tx = self.ctx.txgs.assign_now()?;
            let keep = reusable(&header.log);
            let frees = if keep || header.log.is_hole() { Vec::new() } else { vec![header.log] };
            if keep {
                self.need_saxattr(tx.txg());
            }
            self.destroy(&tx, frees, keep);
        }
        self.started.store(true, Ordering::Release);
        Ok(done)
    }

    /// The next replay that stops gives up the rest, so that a new log can begin.
    pub fn give_up_the_rest(&self) {
        self.give_up.store(true, Ordering::Release);
    }

    /// A replay that stops leaves the log as it is, but for how far it came.
    async fn replay_all(
        self: &Arc<Self>,
        os: &Arc<Objset>,
        header: &ZilHeader,
        target: &dyn Replay,
    ) -> Result<Replayed> {
        let store = os.store().clone();
        let mut walk = Walk::new(&*store, header, self.objset);
        let mut out = Replayed::default();
        let (mut frees, mut seen) = (Vec::new(), BTreeSet::new());
        let give_up = self.give_up.swap(false, Ordering::AcqRel);
        #[cfg(feature = "planted")]
        let give_up = give_up || crate::planted::is(crate::planted::Bug::ReplayStops);
        let mut stopped = None;
        while let Some(block) = walk.next().await {
            if seen.insert(block.bp.dva(0).to_words()) {
                frees.push(block.bp);
            }
            let Some(data) = &block.data else { continue };
            for record in walk.records(&block.bp, data) {
                own_blocks(header, &record, &mut seen, &mut frees);
                let synced = record.header.txg < header.claim_txg;
                let done = record.header.seq <= header.replay_seq;
                if synced || done || stopped.is_some() {
                    if done
                        && !synced
                        && let Err(e) = target.again(&record).await
                    {
                        let (objset, seq) = (self.objset, record.header.seq);
                        tracing::error!(objset, seq, error = %e, "a log record cannot be done again");
                    }
                    out.skipped += 1;
                    continue;
                }
                match self.replay_one(target, &record).await {
                    Ok(()) => out.records += 1,
                    Err(e) if self.ctx.txgs.is_stopped() => return Err(e),
                    Err(Error::Corrupt(why)) => {
                        // What it changes cannot be read. That is no reason to lose what others
                        // were told is stable.
                        let (objset, seq, txtype) = (self.objset, record.header.seq, record.header.txtype);
                        tracing::error!(objset, seq, txtype, %why, "a log record is given up");
                        out.given_up += 1;
                    }
                    Err(e) => {
                        let (seq, block) = (record.header.seq, seq_of(&block.bp));
                        let txtype = record.header.txtype;
                        stopped = Some(format!("record {seq} (type {txtype}) in block {block}: {e}"));
                    }
                }
            }
            if stopped.is_some() && !give_up {
                break;
            }
        }
        if stopped.is_none() && !walk.is_complete() {
            let why = walk.ended.take().unwrap_or_else(|| "it ends before what was claimed".into());
            stopped = Some(why);
        }
        if let Some(why) = stopped.filter(|_| !give_up) {
            out.stopped = Some(why);
            return Ok(out);
        }
        let tx = self.ctx.txgs.assign_now()?;
        self.destroy(&tx, frees, false);
        let txg = tx.txg();
        drop(tx);
        self.ctx.txgs.wait_synced(txg).await?;
        Ok(out)
    }

    async fn replay_one(&self, target: &dyn Replay, record: &LogRecord<'_>) -> Result<()> {
        #[cfg(feature = "planted")]
        if matches!(record.body, zilla_ondisk::zil::RecordBody::Truncate { .. })
            && crate::planted::is(crate::planted::Bug::ReplayStops)
        {
            return Err(Error::inval("planted"));
        }
        let mut result = target.replay(record).await;
        for _ in 1..TRIES {
            let Err(e) = &result else { break };
            if matches!(e, Error::Corrupt(_)) {
                // All copies were tried.
                break;
            }
            tracing::debug!(error = %e, seq = record.header.seq, "a record is tried again");
            self.ctx.txgs.wait_synced(self.ctx.txgs.open()).await?;
            result = target.replay(record).await;
        }
        result
    }
}

/// What the pointer of a write's record leads to, and where in the object it belongs: all of the
/// block, since later records may only tell a file's size.
pub(crate) async fn logged_block(
    os: &Objset,
    object: u64,
    offset: u64,
    length: u64,
    bp: &BlkPtr,
) -> Result<(u64, Bytes)> {
    let lsize = bp.lsize();
    let too_long = || Error::inval(format!("a write of {length} bytes in a block of {lsize}"));
    if length > lsize.max(512) && !bp.is_hole() {
        return Err(too_long());
    }
    let at = if length < lsize { offset - offset % lsize } else { offset };
    if bp.is_hole() {
        if length > zilla_ondisk::SPA_MAXBLOCKSIZE {
            return Err(too_long());
        }
        return Ok((at, vec![0; lsize.max(length) as usize].into()));
    }
    let blkid = offset.checked_div(lsize).unwrap_or(0);
    let bookmark = Bookmark::new(os.id(), ObjectId(object), 0, blkid);
    Ok((at, read_logged(&**os.store(), bp, bookmark).await?))
}

/// Whether the empty first block of a log can be the first of ours.
fn reusable(bp: &BlkPtr) -> bool {
    !bp.is_hole()
        && is_native(bp)
        && !bp.is_gang()
        && !bp.uses_crypt()
        && bp.checksum_kind() == Checksum::Zilog2 as u8
        && bp.lsize() == bp.psize()
        && (zilla_ondisk::zil::ZIL_MIN_BLKSZ..=zilla_ondisk::SPA_OLD_MAXBLOCKSIZE).contains(&bp.psize())
        && bp.psize().is_multiple_of(zilla_ondisk::zil::ZIL_MIN_BLKSZ)
}
