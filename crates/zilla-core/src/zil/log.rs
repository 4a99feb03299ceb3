//! A dataset's log: what of it is on disk, and how the header follows.
//!
//! The blocks that are on disk or on their way are a chain ([`Chain`]), of which each sync frees
//! from the front what is over.

use super::itx::{Itx, Itxs, When};
use super::policy::Pace;
use super::states::{Chain, GivenBack, Trains};
use super::stats::{Both, LogStats};
use crate::dmu::Objset;
use crate::dsl::DslDataset;
use crate::error::Result;
use crate::pool::PoolCtx;
use crate::txg::Tx;
use crate::types::{TXG_SIZE, Txg};
use crate::zio::BlockStore;
use bytes::Bytes;
use event_listener::Event;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::zil::{LogRecord, LrHeader, RecordBody, ZIL_ZC_SEQ, ZilHeader};

/// The feature that a log with records of extended attributes needs.
pub(super) const SAXATTR: &str = "zilsaxattr";

#[derive(Default)]
pub(super) struct State {
    pub chain: Chain,
    pub trains: Trains,
    /// Number of the last record.
    pub lr_seq: u64,
    pub pace: Pace,
    /// Someone has the block at the end of the chain in hand, or begins a chain.
    pub filling: bool,
    /// Records up to this txg were taken and are in no block: only the txg makes them stable.
    pub lost_txg: Txg,
    /// Commits wait for txgs instead of writing.
    pub suspended: usize,
    pub(super) replayed_seq: [u64; TXG_SIZE],
    /// Txgs whose sync changes the header.
    dirty: [u64; TXG_SIZE],
    synced_in: Txg,
}

impl State {
    pub(super) fn dirty(&mut self, txg: Txg) {
        self.dirty[txg.slot()] = txg.0;
    }

    /// What was done up to `txg` is in no block.
    pub(super) fn lose(&mut self, txg: Txg) {
        self.lost_txg = self.lost_txg.max(txg);
    }

    /// Frees from the front what is over, and points the header to what is then the front.
    pub(super) fn advance(&mut self, header: &mut ZilHeader, txg: Txg, frees: &mut Vec<BlkPtr>) {
        let packing = self.trains.is_packing();
        if let Some(front) = self.chain.advance(txg, packing, frees) {
            header.log = front;
        }
    }
}

/// What the sync of a log leaves its dataset to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogSync {
    /// What the chain held is gone, and so all that needs the feature of logged attributes.
    pub chain_gone: bool,
}

/// The intent log of a dataset that is open for writing.
pub struct Zilog {
    pub(super) ctx: Arc<PoolCtx>,
    /// The dataset's own, which encrypts where the dataset is encrypted.
    pub(super) store: Arc<dyn BlockStore>,
    pub(super) ds: Weak<DslDataset>,
    pub(super) objset: u64,
    pub(super) itxs: Itxs,
    pub(super) state: Mutex<State>,
    /// A block was written, or the chain changed.
    pub(super) changed: Event,
    pub(super) stats: LogStats,
    pub(super) started: AtomicBool,
    /// What cannot be replayed may go.
    pub(super) give_up: AtomicBool,
    /// `sync=disabled`: commits return at once.
    disabled: AtomicBool,
    /// `logbias=throughput`.
    throughput: AtomicBool,
    /// From this txg on records of extended attributes may be written; 0: not.
    pub(super) saxattr_txg: AtomicU64,
}

impl Zilog {
    pub(crate) fn new(ctx: &Arc<PoolCtx>, ds: &Arc<DslDataset>, store: Arc<dyn BlockStore>) -> Arc<Zilog> {
        Arc::new(Zilog {
            ctx: ctx.clone(),
            store,
            ds: Arc::downgrade(ds),
            objset: ds.id(),
            itxs: Itxs::default(),
            state: Mutex::default(),
            changed: Event::new(),
            stats: LogStats::default(),
            started: AtomicBool::new(false),
            give_up: AtomicBool::new(false),
            disabled: AtomicBool::new(false),
            throughput: AtomicBool::new(false),
            saxattr_txg: AtomicU64::new(0),
        })
    }

    pub(super) fn count(&self) -> Both<'_> {
        Both(&self.stats, &self.ctx.log.stats)
    }

    pub fn stats(&self) -> &LogStats {
        &self.stats
    }

    pub(super) fn synced(&self) -> Txg {
        self.ctx.txgs.synced()
    }

    /// Whether commits do nothing (`sync=disabled`).
    pub fn set_disabled(&self, disabled: bool) {
        self.disabled.store(disabled, Ordering::Relaxed);
    }

    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
    }

    /// Whether large data go in place though log devices are faster (`logbias=throughput`).
    pub fn set_throughput(&self, throughput: bool) {
        self.throughput.store(throughput, Ordering::Relaxed);
    }

    pub(super) fn wants_throughput(&self) -> bool {
        self.throughput.load(Ordering::Relaxed)
    }

    /// Whether a record of an extended attribute would be understood by whoever replays it.
    pub fn logs_xattrs(&self) -> bool {
        let txg = self.saxattr_txg.load(Ordering::Acquire);
        let wanted = crate::tunables::ZIL_SAXATTR.get() != 0;
        wanted
            && txg != 0
            && self.synced().0 >= txg
            && self.ds.upgrade().is_some_and(|d| d.feature_is_active(SAXATTR))
    }

    /// Notes a change that is made in `tx`, under the locks that it is made under.
    pub fn push(&self, tx: &Tx, when: When, body: RecordBody<'_>) {
        let header = LrHeader { txg: tx.txg().0, ..LrHeader::default() };
        let flags = matches!(body, RecordBody::Setattr { xvattr: Some(_), .. });
        if matches!(body, RecordBody::CloneRange { .. }) {
            self.ctx.note_clones_logged(tx.txg());
        }
        let record = LogRecord { header, ignore_case: false, body }.encode();
        self.itxs.assign(tx, when, Itx { flags, ..Itx::new(tx, record, Bytes::new(), 0) });
    }

    /// Notes a write. The bytes are kept until they are in the log or their txg is synced; `shared`
    /// of them are dirty data's, and counted there.
    pub fn push_write(&self, tx: &Tx, when: When, object: u64, offset: u64, data: Bytes, shared: u64) {
        #[cfg(feature = "planted")]
        if offset % 2 == 1 && crate::planted::is(crate::planted::Bug::WriteRecordLost) {
            return;
        }
        let blkptr = BlkPtr::ZERO;
        let length = data.len() as u64;
        let body = RecordBody::Write { object, offset, length, blkptr, data: &[] };
        let header = LrHeader { txg: tx.txg().0, ..LrHeader::default() };
        let record = LogRecord { header, ignore_case: false, body }.encode();
        let file = matches!(when, When::With(_)).then_some(object);
        self.itxs.assign(tx, when, Itx { offset, file, ..Itx::new(tx, record, data, shared) });
    }

    /// Notes a change for which there is no record: whoever commits it waits for its txg.
    pub fn push_barrier(&self, tx: &Tx, when: When) {
        self.itxs.assign(tx, when, Itx::new(tx, Vec::new(), Bytes::new(), 0));
    }

    /// What was done to a file itself is to be stable no later than what comes next: its name
    /// changes.
    pub fn bring_forward(&self, object: u64) {
        self.itxs.make_ready(self.synced(), Some(object));
    }

    /// A file loses a name, its `last` one or not. After its last nobody can ask for its contents
    /// after a crash. What changed its flags comes before the loss, with all that was done to the
    /// file before.
    pub fn unlinked(&self, object: u64, last: bool) {
        let synced = self.synced();
        if last {
            self.itxs.forget(synced, object);
        } else if self.itxs.has_flags(synced, object) {
            self.itxs.make_ready(synced, Some(object));
        }
    }

    /// Notes that the record of this number has been done again in `tx`.
    pub fn replayed(&self, tx: &Tx, seq: u64) {
        let mut st = self.state.lock();
        let slot = &mut st.replayed_seq[tx.txg().slot()];
        *slot = seq.max(*slot);
        st.dirty(tx.txg());
    }

    /// Whether the sync of `txg` has to see to the log.
    pub(crate) fn is_dirty(&self, txg: Txg) -> bool {
        let st = self.state.lock();
        (st.dirty[txg.slot()] == txg.0 || st.chain.is_broken()) && st.synced_in < txg
    }

    /// Whether the sync of any txg still has to see to the log, or will have to: a train goes on
    /// also where nobody waits for it any more, and its blocks are in memory alone until then.
    pub(crate) fn has_to_sync(&self) -> bool {
        let st = self.state.lock();
        let under_way = st.trains.is_driven() || st.chain.on_their_way() > 0;
        under_way || st.dirty.iter().any(|txg| *txg > st.synced_in.0) || st.chain.is_broken()
    }

    /// Gives the whole log back in the txg of `tx`: the chain, and `frees` that it refers to. With
    /// `keep_first` the first block stays, as the beginning of a new chain.
    pub(super) fn destroy(&self, tx: &Tx, frees: Vec<BlkPtr>, keep_first: bool) {
        let mut st = self.state.lock();
        st.chain.give_back(GivenBack { txg: tx.txg(), frees, keep_first });
        st.dirty(tx.txg());
    }

    /// In syncing context, before the objset is written: frees blocks that are not needed any more
    /// and brings the header up to date.
    pub(crate) async fn sync(&self, os: &Objset, txg: Txg) -> LogSync {
        // What is given back whole may be given out again as soon as this txg is on disk: nothing
        // may be written there later.
        let whole = self.state.lock().chain.given_back_in() == txg;
        self.wait_issued(if whole { Txg(u64::MAX) } else { txg }).await;
        let mut out = LogSync::default();
        let mut frees = Vec::new();
        {
            let mut st = self.state.lock();
            if st.synced_in >= txg || st.chain.is_abandoned() {
                return out;
            }
            st.synced_in = txg;
            let mut header = os.phys().zil_header;
            let before = header;
            let seq = std::mem::take(&mut st.replayed_seq[txg.slot()]);
            header.replay_seq = header.replay_seq.max(seq);
            if st.chain.given_back_in() == txg {
                // Blocks that once followed the first, and could not be read, must not fit any more
                // if it stays.
                let mut first = header.log;
                first.set_cksum(self.new_chain());
                header = ZilHeader::default();
                st.replayed_seq = [0; TXG_SIZE];
                frees.append(&mut st.chain.take_back(txg, first));
                out.chain_gone = true;
            }
            st.advance(&mut header, txg, &mut frees);
            if header != before {
                os.with_phys(|p| p.zil_header = header);
            }
        }
        frees.iter().for_each(|bp| self.ctx.free(bp));
        self.changed.notify(usize::MAX);
        out
    }

    /// Waits until no block that was issued in `txg` or before is on its way. What such a block
    /// points to was allocated by then; if the txg became stable without the block, nothing on disk
    /// would lead there.
    async fn wait_issued(&self, txg: Txg) {
        let mut hurried = None;
        loop {
            let listener = self.changed.listen();
            if !self.state.lock().chain.is_on_its_way(txg) {
                return;
            }
            hurried.get_or_insert_with(|| self.ctx.log.take_over(&self.ctx.env));
            listener.await;
        }
    }

    /// `txg` is stable: its records are not needed any more.
    pub(crate) fn clean(&self, txg: Txg) {
        self.itxs.clean(txg);
    }

    /// In syncing context: the dataset's contents go, and its log with them. From now on a commit
    /// waits for txgs.
    ///
    /// A train that is being packed may wait for this very txg, so it is not waited for: who
    /// allocates for it finds the log abandoned, and gives the block back. What the txgs after this
    /// one have allocated they free themselves.
    pub(crate) async fn abandon(&self, os: &Objset) {
        loop {
            self.wait_issued(Txg(u64::MAX)).await;
            let mut st = self.state.lock();
            if st.chain.is_on_its_way(Txg(u64::MAX)) {
                // One has left since.
                continue;
            }
            if st.chain.is_abandoned() || !self.started.load(Ordering::Acquire) {
                return;
            }
            let synced_in = st.synced_in;
            let (blocks, later) = st.chain.abandon(synced_in);
            // What was to be given back in a later txg.
            if let Some(GivenBack { frees, keep_first, .. }) = later {
                frees.iter().for_each(|bp| self.ctx.free(bp));
                if keep_first {
                    self.ctx.free(&os.phys().zil_header.log);
                }
            }
            blocks.iter().for_each(|l| self.ctx.free_in(l.alloc_txg, &l.bp));
            break;
        }
        self.forsake(os);
    }

    /// Whether this session has seen to the log: what it consists of is known here and not to be
    /// read from the disk.
    pub(crate) fn is_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// The checksum words of a new chain's first block.
    pub(super) fn new_chain(&self) -> [u64; 4] {
        let rng = &self.ctx.env.rng;
        let mut words = [rng.u64(), rng.u64(), self.objset, 0];
        words[ZIL_ZC_SEQ] = 1;
        words
    }

    /// Empties the log: everything waits for txgs meanwhile. For whoever takes a log device away.
    pub(super) async fn reset(self: &Arc<Self>) -> Result<()> {
        let _suspended = Suspended::new(self);
        self.empty().await
    }

    async fn empty(self: &Arc<Self>) -> Result<()> {
        if !self.is_started() {
            return Ok(());
        }
        loop {
            let listener = self.changed.listen();
            {
                let st = self.state.lock();
                let idle = !st.trains.is_driven() && st.trains.waiting().is_empty();
                if idle && st.chain.on_their_way() == 0 {
                    break;
                }
            }
            listener.await;
        }
        let txgs = &self.ctx.txgs;
        txgs.wait_synced(txgs.open()).await?;
        let tx = txgs.assign_now()?;
        self.destroy(&tx, Vec::new(), false);
        let txg = tx.txg();
        drop(tx);
        txgs.wait_synced(txg).await
    }
}

/// Commits wait for txgs as long as one of these is there. Who empties a log may be dropped while
/// he waits.
struct Suspended<'a>(&'a Zilog);

impl Suspended<'_> {
    fn new(log: &Zilog) -> Suspended<'_> {
        log.state.lock().suspended += 1;
        Suspended(log)
    }
}

impl Drop for Suspended<'_> {
    fn drop(&mut self) {
        self.0.state.lock().suspended -= 1;
    }
}
