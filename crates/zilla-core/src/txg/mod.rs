//! Transaction groups: which is open, who is in it, which is being synced, how much they hold.
//!
//! **Floor 1.** What changes a pool does so in a txg, so all other folders stand on this one.
//!
//! Three txgs are in flight: the *open* one takes changes; the *quiescing* one waits for its last
//! holders; the *syncing* one is being written. A hold is a counter, taken and dropped without
//! waiting. Throttling happens when a transaction is assigned: as dirty data (and what else of
//! memory waits for a txg: log records above all) nears its limit each new transaction is delayed a
//! little more (Adam Leventhal's write throttle: delay = scale * (dirty - min) / (max - dirty)),
//! and at the limit it waits for a sync. Delays too short to sleep for are added up, and whoever
//! makes them long enough sleeps for all.
//!
//! A txg that finds no room for what it must write ends the pool's service, so what each dirty
//! block may take at worst is summed up here too ([`Tx::needs`]), with what running transactions
//! were promised and have not dirtied yet ([`Tx::promise`]). Who lets changes in holds these sums
//! against what is free (`metaslab/spare.rs`).
//!
//! **Invariants.** A txg is quiesced when no [`Tx`] of it is left, and synced after the one before
//! it; what is counted for a txg is forgotten when it is synced.
//!
//! **Locks.** One, of the state: short, and nothing else is locked under it.
//!
//! A crash forgets the txgs that were not synced, whole: all that a [`Tx`] covers is in one txg.

mod history;
mod syncing;
mod worst;

pub(crate) use history::is_kept as history_is_kept;
pub use history::{DeviceIo, TxgRecord};
pub use syncing::{carried, in_sync, syncing};
pub(crate) use worst::{COUNTED, GANG_FACTOR};

use crate::error::{Errno, Error, Result};
use crate::types::{TXG_SIZE, Txg};
use event_listener::Event;
use history::TxgHistory;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use worst::Worst;
use zilla_env::Env;

struct State {
    open: Txg,
    /// Highest txg that no one holds any more and that may be synced.
    quiesced: Txg,
    synced: Txg,
    holds: [u64; TXG_SIZE],
    /// Someone waits for this txg to be synced, so the sync task does not wait for its timer.
    wanted: Txg,
    stopped: bool,
    gate: Gate,
}

/// Whether transactions may begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// The pool is suspended: they wait, or are refused.
    Shut,
    Refusing,
}

/// Limits on dirty data, in bytes (OpenZFS's zfs_dirty_data_max and zfs_delay_*).
#[derive(Clone, Copy, Debug)]
pub struct DirtyLimits {
    pub max: u64,
    /// Percentage of `max` above which transactions are delayed.
    pub delay_min_percent: u64,
    /// Percentage of `max` above which a txg is pushed out.
    pub sync_percent: u64,
    pub delay_scale_ns: u64,
}

/// Bytes of dirty data that a pool may have in any case: a transaction of the largest records fits.
pub const LEAST_DIRTY: u64 = 16 << 20;

impl DirtyLimits {
    /// A tenth of the memory there is (`zfs_dirty_data_max_percent`), 4 GiB at most.
    pub fn of_memory(total: u64) -> DirtyLimits {
        DirtyLimits { max: (total / 10).clamp(LEAST_DIRTY, 4 << 30), ..DirtyLimits::default() }
    }

    /// The same where the limit was chosen.
    pub fn of_choice(max: u64) -> DirtyLimits {
        DirtyLimits { max: max.max(LEAST_DIRTY), ..DirtyLimits::default() }
    }

    fn enough(&self) -> u64 {
        self.max / 100 * self.sync_percent
    }
}

/// What is used where nothing is known about memory.
impl Default for DirtyLimits {
    fn default() -> Self {
        DirtyLimits { max: 256 << 20, delay_min_percent: 60, sync_percent: 20, delay_scale_ns: 500_000 }
    }
}

pub struct TxgState {
    env: Env,
    state: Mutex<State>,
    changed: Event,
    /// For the sync task alone.
    hurried: Event,
    /// Bytes dirtied and not yet synced, by txg slot, and their sum.
    dirty: [AtomicU64; TXG_SIZE],
    dirty_total: AtomicU64,
    /// What of them is whole records.
    whole: [AtomicU64; TXG_SIZE],
    /// What was written ahead, each time.
    ahead: [AtomicU64; TXG_SIZE],
    /// Memory that goes when a txg is synced and that its sync does not write, by txg slot.
    held: [AtomicU64; TXG_SIZE],
    /// The same of what has an owner who may give it back before ([`Kept`]).
    kept: [AtomicU64; TXG_SIZE],
    /// The sum of both.
    memory: AtomicU64,
    /// What the blocks that wait to be written can take on the devices at most, by txg, and the
    /// sum; all in bytes as users see them.
    needs: [AtomicU64; TXG_SIZE],
    needs_total: AtomicU64,
    /// The same of what transactions that still run may come to dirty.
    promised: AtomicU64,
    worst: Worst,
    limits: Mutex<DirtyLimits>,
    /// Dirty bytes of a txg at which it is pushed out.
    enough: AtomicU64,
    /// Nanoseconds of delay that writers were let off so far.
    owed: AtomicU64,
    history: TxgHistory,
    stats: TxStats,
}

/// What became of transactions, counted since the pool was opened.
#[derive(Debug, Default)]
struct TxStats {
    assigned: AtomicU64,
    refused: AtomicU64,
    suspended: AtomicU64,
    delayed: AtomicU64,
    over_max: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxCounts {
    /// Those that have got a txg.
    pub assigned: u64,
    /// Those that were refused, because the pool is closed or suspended.
    pub refused: u64,
    /// Times that one found the pool suspended.
    pub suspended: u64,
    /// Those that were delayed, because much was dirty, and times that one waited, because it was
    /// too much.
    pub delayed: u64,
    pub over_max: u64,
}

impl TxCounts {
    pub fn add(&mut self, other: &TxCounts) {
        self.assigned += other.assigned;
        self.refused += other.refused;
        self.suspended += other.suspended;
        self.delayed += other.delayed;
        self.over_max += other.over_max;
    }
}

/// A txg with so many bytes of whole records is pushed out. They will hardly be written again, and
/// on disk their memory, which is warm, serves the next. Records written in part wait for more
/// ([`DirtyLimits::sync_percent`]): each sync writes all of a record, however little is new.
const WHOLE_ENOUGH: u64 = 64 << 20;

/// Shorter delays are gathered until they are worth a sleep, which costs two thread switches.
const NAP_NS: u64 = 1_000_000;

/// A place in a txg: what is done under one `Tx` reaches the disk in the same txg, or not at all.
pub struct Tx {
    txg: Txg,
    held: Option<Arc<TxgState>>,
    promised: AtomicU64,
}

impl Tx {
    pub fn txg(&self) -> Txg {
        self.txg
    }
    /// A transaction of the sync task itself, in the txg being synced.
    pub fn syncing(txg: Txg) -> Tx {
        Tx { txg, held: None, promised: AtomicU64::new(0) }
    }
    fn holding(txg: Txg, of: Arc<TxgState>) -> Tx {
        Tx { txg, held: Some(of), promised: AtomicU64::new(0) }
    }
    pub fn is_syncing(&self) -> bool {
        self.held.is_none()
    }
    /// Notes that `bytes` more of memory wait for this txg's sync.
    pub fn dirtied(&self, bytes: u64) {
        if let Some(s) = &self.held {
            s.dirty_total.fetch_add(bytes, Ordering::Relaxed);
            self.count_memory(s, &s.dirty, bytes);
        }
    }
    /// Notes `bytes` of memory that describe changes and stay until this txg is synced. They count
    /// for the write throttle, and not for the space that is needed.
    pub fn holds(&self, bytes: u64) {
        if let Some(s) = &self.held {
            s.memory.fetch_add(bytes, Ordering::Relaxed);
            self.count_memory(s, &s.held, bytes);
        }
    }
    /// The same for what may go earlier: until the result is dropped.
    pub(crate) fn keep(&self, bytes: u64) -> Option<Kept> {
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::LogNotCounted) {
            return None;
        }
        let s = self.held.as_ref()?;
        s.memory.fetch_add(bytes, Ordering::Relaxed);
        self.count_memory(s, &s.kept, bytes);
        Some(Kept { txgs: s.clone(), txg: self.txg, bytes })
    }
    /// Notes that a block of so many bytes will be written in this txg's sync.
    pub(crate) fn needs(&self, bytes: u64, copies: u8) {
        if let Some(s) = &self.held {
            let worst = s.worst(bytes, copies);
            s.needs[self.txg.slot()].fetch_add(worst, Ordering::Relaxed);
            s.needs_total.fetch_add(worst, Ordering::Relaxed);
        }
    }
    /// Notes that so many blocks will be freed in this txg's sync.
    pub(crate) fn frees(&self, blocks: u64) {
        if let Some(s) = &self.held {
            s.note_freed(self.txg, blocks);
        }
    }
    /// Holds room for what this transaction is about to dirty, until it ends; by then it is counted
    /// as needed.
    pub(crate) fn promise(&self, space: u64) {
        if let Some(s) = &self.held {
            self.promised.fetch_add(space, Ordering::Relaxed);
            s.promised.fetch_add(space, Ordering::Relaxed);
        }
    }
    pub(crate) fn unpromise(&self, space: u64) {
        if let Some(s) = &self.held {
            self.promised.fetch_sub(space, Ordering::Relaxed);
            s.promised.fetch_sub(space, Ordering::Relaxed);
        }
    }
    pub(crate) fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }
    /// What a block of so many bytes can take at worst.
    pub(crate) fn worst(&self, bytes: u64, copies: u8) -> u64 {
        self.held.as_ref().map_or(0, |s| s.worst(bytes, copies))
    }
    /// Notes that so many of them are a record written whole: to wait for more gains nothing.
    pub fn completed(&self, bytes: u64) {
        if let Some(s) = &self.held {
            self.count(s, &s.whole, bytes, WHOLE_ENOUGH);
        }
    }
    /// Notes that so many of those are on the disks already: the txg need not end for them, but for
    /// what is written again and again: that takes new space each time, until the txg is there.
    pub(crate) fn written_ahead(&self, bytes: u64) {
        let Some(s) = &self.held else { return };
        let slot = self.txg.slot();
        let ahead = s.ahead[slot].fetch_add(bytes, Ordering::Relaxed) + bytes;
        if ahead <= s.dirty[slot].load(Ordering::Relaxed) {
            // What is written ahead need not have been counted as whole.
            let less = |n: u64| Some(n.saturating_sub(bytes));
            let _ = s.whole[slot].fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
    fn count_memory(&self, s: &TxgState, sums: &[AtomicU64; TXG_SIZE], bytes: u64) {
        sums[self.txg.slot()].fetch_add(bytes, Ordering::Relaxed);
        let (after, enough) = (s.in_memory(self.txg), s.enough.load(Ordering::Relaxed));
        // Of two at once that make it enough both may tell.
        if after >= enough && after.saturating_sub(bytes) < enough {
            s.hurried.notify(usize::MAX);
        }
    }
    fn count(&self, s: &TxgState, sums: &[AtomicU64; TXG_SIZE], bytes: u64, enough: u64) {
        let before = sums[self.txg.slot()].fetch_add(bytes, Ordering::Relaxed);
        if before < enough && before + bytes >= enough {
            s.hurried.notify(usize::MAX);
        }
    }
}

/// Memory that is counted as long as this lives ([`Tx::keep`]).
pub(crate) struct Kept {
    txgs: Arc<TxgState>,
    txg: Txg,
    bytes: u64,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.txgs.kept[self.txg.slot()].fetch_sub(self.bytes, Ordering::Relaxed);
        self.txgs.memory.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if let Some(s) = self.held.take() {
            s.promised.fetch_sub(*self.promised.get_mut(), Ordering::Relaxed);
            let mut st = s.state.lock();
            let slot = &mut st.holds[self.txg.slot()];
            *slot -= 1;
            if *slot == 0 && st.open > self.txg {
                drop(st);
                s.changed.notify(usize::MAX);
            }
        }
    }
}

impl TxgState {
    /// `last` is the txg of the uberblock the pool was opened from.
    pub fn new(env: Env, last: Txg) -> Arc<TxgState> {
        let history = TxgHistory::default();
        history.opened(last.next(), env.clock.now());
        Arc::new(TxgState {
            env,
            history,
            stats: TxStats::default(),
            state: Mutex::new(State {
                open: last.next(),
                quiesced: last,
                synced: last,
                holds: [0; TXG_SIZE],
                wanted: Txg(0),
                stopped: false,
                gate: Gate::Open,
            }),
            changed: Event::new(),
            hurried: Event::new(),
            dirty: Default::default(),
            dirty_total: AtomicU64::new(0),
            whole: Default::default(),
            ahead: Default::default(),
            held: Default::default(),
            kept: Default::default(),
            memory: AtomicU64::new(0),
            needs: Default::default(),
            needs_total: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            worst: Worst::default(),
            limits: Mutex::new(DirtyLimits::default()),
            enough: DirtyLimits::default().enough().into(),
            owed: AtomicU64::new(0),
        })
    }

    pub fn set_limits(&self, limits: DirtyLimits) {
        *self.limits.lock() = limits;
        self.enough.store(limits.enough(), Ordering::Relaxed);
    }

    pub fn open(&self) -> Txg {
        self.state.lock().open
    }

    pub fn synced(&self) -> Txg {
        self.state.lock().synced
    }

    /// Whether so much is dirty that who changes something is delayed.
    pub fn is_throttled(&self) -> bool {
        let limits = *self.limits.lock();
        self.waiting_bytes() > limits.max * limits.delay_min_percent / 100
    }

    /// The last txgs, the oldest first.
    pub fn history(&self) -> Vec<TxgRecord> {
        self.history.get()
    }

    pub fn counts(&self) -> TxCounts {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let s = &self.stats;
        TxCounts {
            assigned: of(&s.assigned),
            refused: of(&s.refused),
            suspended: of(&s.suspended),
            delayed: of(&s.delayed),
            over_max: of(&s.over_max),
        }
    }

    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_total.load(Ordering::Relaxed)
    }

    /// What the write throttle looks at: dirty data, and what else of memory waits for its txg.
    pub fn waiting_bytes(&self) -> u64 {
        self.dirty_bytes() + self.memory.load(Ordering::Relaxed)
    }

    /// The same of one txg.
    fn in_memory(&self, txg: Txg) -> u64 {
        let of = |sums: &[AtomicU64; TXG_SIZE]| sums[txg.slot()].load(Ordering::Relaxed);
        of(&self.dirty) + of(&self.held) + of(&self.kept)
    }

    /// What the syncs of all txgs that are not placed yet may take at most.
    pub(crate) fn needed(&self) -> u64 {
        self.needed_beside_frees().saturating_add(self.needed_by_frees())
    }

    /// The same without what is written down of blocks that are freed.
    pub(crate) fn needed_beside_frees(&self) -> u64 {
        self.needs_total.load(Ordering::Relaxed).saturating_add(self.promised.load(Ordering::Relaxed))
    }

    /// Whether anybody but `tx` changes something, or has changed something that is not on disk.
    pub(crate) fn others_dirty(&self, tx: &Tx) -> bool {
        self.dirty_bytes() > 0
            || self.needs_total.load(Ordering::Relaxed) > 0
            || self.needed_by_frees() > 0
            || self.promised.load(Ordering::Relaxed) > tx.promised()
    }

    /// For the sync task: what the datasets have in `txg` has got its places.
    pub(crate) fn placed(&self, txg: Txg) {
        let needs = self.needs[txg.slot()].swap(0, Ordering::Relaxed);
        self.needs_total.fetch_sub(needs, Ordering::Relaxed);
    }

    /// The last txg that nobody can join any more.
    pub fn closed(&self) -> Txg {
        let st = self.state.lock();
        let last = Txg(st.open.0 - 1);
        if st.holds[last.slot()] == 0 { last } else { st.quiesced }
    }

    /// Dirty bytes of the txgs from one to another that their syncs have still to write.
    pub(crate) fn unwritten_in(&self, first: Txg, last: Txg) -> u64 {
        let of = |txg: u64| {
            let [dirty, ahead] =
                [&self.dirty, &self.ahead].map(|n| n[Txg(txg).slot()].load(Ordering::Relaxed));
            dirty.saturating_sub(ahead)
        };
        (first.0..=last.0).take(TXG_SIZE).map(of).sum()
    }

    /// Takes a place in the open txg at once, if dirty data allows it.
    pub fn try_assign(self: &Arc<Self>) -> Option<Tx> {
        let limits = *self.limits.lock();
        if self.waiting_bytes() * 100 >= limits.max * limits.delay_min_percent {
            return None;
        }
        let mut st = self.state.lock();
        if st.stopped || st.gate != Gate::Open {
            return None;
        }
        Some(self.hold(&mut st))
    }

    fn hold(self: &Arc<Self>, st: &mut State) -> Tx {
        self.stats.assigned.fetch_add(1, Ordering::Relaxed);
        st.holds[st.open.slot()] += 1;
        Tx::holding(st.open, self.clone())
    }

    /// Takes a place in the open txg however much waits to be written: for those who help it on.
    pub(crate) fn assign_now(self: &Arc<Self>) -> Result<Tx> {
        let mut st = self.state.lock();
        if st.stopped {
            return Err(Error::os(Errno::Io, "the pool is closed or suspended"));
        }
        Ok(self.hold(&mut st))
    }

    /// Takes a place in a given txg, if that is still possible: it is open, or closing and not all
    /// have left it.
    pub(crate) fn join(self: &Arc<Self>, txg: Txg) -> Option<Tx> {
        let mut st = self.state.lock();
        let closing = txg < st.open && txg > st.quiesced && st.holds[txg.slot()] > 0;
        if st.stopped || !(txg == st.open || closing) {
            return None;
        }
        st.holds[txg.slot()] += 1;
        Some(Tx::holding(txg, self.clone()))
    }

    /// Takes a place in the open txg, waiting as the write throttle demands.
    pub async fn assign(self: &Arc<Self>) -> Result<Tx> {
        if let Some(tx) = self.try_assign() {
            return Ok(tx);
        }
        loop {
            let listener = self.changed.listen();
            let limits = *self.limits.lock();
            let dirty = self.waiting_bytes();
            let delay = {
                let mut st = self.state.lock();
                if st.gate != Gate::Open {
                    self.stats.suspended.fetch_add(1, Ordering::Relaxed);
                }
                if st.stopped || st.gate == Gate::Refusing {
                    self.stats.refused.fetch_add(1, Ordering::Relaxed);
                    return Err(Error::os(Errno::Io, "the pool is closed or suspended"));
                }
                if st.gate == Gate::Shut {
                    None
                } else if dirty < limits.max {
                    let min = limits.max * limits.delay_min_percent / 100;
                    if dirty <= min {
                        return Ok(self.hold(&mut st));
                    }
                    Some(
                        u128::from(limits.delay_scale_ns) * u128::from(dirty - min)
                            / u128::from(limits.max - dirty),
                    )
                } else {
                    self.stats.over_max.fetch_add(1, Ordering::Relaxed);
                    let open = st.open;
                    self.want(&mut st, open);
                    None
                }
            };
            if let Some(ns) = delay {
                self.stats.delayed.fetch_add(1, Ordering::Relaxed);
                let ns = ns.min(100_000_000) as u64;
                if self.owed.fetch_add(ns, Ordering::Relaxed) + ns >= NAP_NS {
                    let nap = self.owed.swap(0, Ordering::Relaxed);
                    self.env.clock.sleep(Duration::from_nanos(nap)).await;
                }
                let mut st = self.state.lock();
                if st.stopped {
                    return Err(Error::os(Errno::Io, "the pool is closed or suspended"));
                }
                if st.gate != Gate::Open {
                    continue;
                }
                return Ok(self.hold(&mut st));
            }
            // A sync's end wakes it. (Were it to wake others here it would wake itself, and never
            // sleep.)
            listener.await;
        }
    }

    /// Waits until `txg` is synced, hurrying it.
    pub async fn wait_synced(&self, txg: Txg) -> Result<()> {
        loop {
            let listener = self.changed.listen();
            {
                let mut st = self.state.lock();
                if st.synced >= txg {
                    return Ok(());
                }
                if st.stopped {
                    return Err(Error::os(
                        Errno::Io,
                        "the pool was closed or suspended before the txg was synced",
                    ));
                }
                self.want(&mut st, txg);
            }
            listener.await;
        }
    }

    /// Has the open txg synced as soon as may be.
    pub(crate) fn hurry(&self) {
        let mut st = self.state.lock();
        let open = st.open;
        self.want(&mut st, open);
    }

    /// Tells the sync task, once, that someone waits for `txg`. (Telling it at every look would
    /// wake all waiters, and the caller first of all.)
    fn want(&self, st: &mut State, txg: Txg) {
        if st.wanted < txg {
            st.wanted = txg;
            self.hurried.notify(usize::MAX);
        }
    }

    /// Whether the sync task should close the open txg now instead of waiting for its timer.
    fn has_enough(&self, st: &State) -> bool {
        let of_open = |sums: &[AtomicU64; TXG_SIZE]| sums[st.open.slot()].load(Ordering::Relaxed);
        let full = self.in_memory(st.open) >= self.enough.load(Ordering::Relaxed);
        st.stopped || st.wanted >= st.open || full || of_open(&self.whole) >= WHOLE_ENOUGH
    }

    /// For the sync task: waits up to `timeout` or until someone is in a hurry.
    pub async fn wait_for_work(&self, timeout: Duration) {
        let deadline = self.env.clock.now() + timeout;
        loop {
            let listener = self.hurried.listen();
            if self.has_enough(&self.state.lock()) {
                return;
            }
            let now = self.env.clock.now();
            if now >= deadline {
                return;
            }
            let nap = self.env.clock.sleep(deadline - now);
            futures_util::future::select(listener, nap).await;
        }
    }

    /// For the sync task: closes the open txg, opens the next and returns the closed one once
    /// nobody holds it.
    pub async fn quiesce(&self) -> Txg {
        let closing = {
            let mut st = self.state.lock();
            let closing = st.open;
            debug_assert!(closing.0 - st.synced.0 < TXG_SIZE as u64 - 1);
            st.open = closing.next();
            closing
        };
        let now = self.env.clock.now();
        self.history.step(closing, now);
        self.history.opened(closing.next(), now);
        loop {
            let listener = self.changed.listen();
            {
                let mut st = self.state.lock();
                if st.holds[closing.slot()] == 0 {
                    st.quiesced = closing;
                    drop(st);
                    self.history.step(closing, self.env.clock.now());
                    return closing;
                }
            }
            listener.await;
        }
    }

    /// For the sync task: notes that the sync of `txg` begins, and that it has ended.
    pub(crate) fn sync_begins(&self, txg: Txg, before: DeviceIo) {
        let dirty = self.dirty[txg.slot()].load(Ordering::Relaxed);
        self.history.sync_begins(txg, self.env.clock.now(), dirty, before);
    }
    pub(crate) fn sync_ends(&self, txg: Txg, after: DeviceIo) {
        self.history.sync_ends(txg, self.env.clock.now(), after);
    }

    /// For the sync task: `txg` is on stable storage.
    pub fn done(&self, txg: Txg) {
        self.state.lock().synced = txg;
        let freed = self.dirty[txg.slot()].swap(0, Ordering::Relaxed);
        self.whole[txg.slot()].store(0, Ordering::Relaxed);
        self.ahead[txg.slot()].store(0, Ordering::Relaxed);
        self.dirty_total.fetch_sub(freed, Ordering::Relaxed);
        let held = self.held[txg.slot()].swap(0, Ordering::Relaxed);
        self.memory.fetch_sub(held, Ordering::Relaxed);
        self.placed(txg);
        self.forget_freed(txg);
        self.changed.notify(usize::MAX);
    }

    /// The pool is suspended: transactions are refused, or wait until it is not.
    pub fn close_gate(&self, refuse: bool) {
        self.state.lock().gate = if refuse { Gate::Refusing } else { Gate::Shut };
        self.changed.notify(usize::MAX);
    }

    pub(crate) fn open_gate(&self) {
        self.state.lock().gate = Gate::Open;
        self.changed.notify(usize::MAX);
    }

    /// None: the pool is not suspended. Otherwise whether transactions are refused meanwhile.
    pub(crate) fn gate_refuses(&self) -> Option<bool> {
        match self.state.lock().gate {
            Gate::Open => None,
            Gate::Shut => Some(false),
            Gate::Refusing => Some(true),
        }
    }

    /// No more transactions: the pool is closing, or cannot write any more.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.hurried.notify(usize::MAX);
        self.changed.notify(usize::MAX);
    }

    pub fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }
}
