//! The heartbeat of a pool that several hosts can reach (the property `multihost`), and the lease
//! that it renews.
//!
//! A heartbeat is the last txg's uberblock again, of a later second or with a higher sequence
//! number, so that it is the newest there is. It goes to the one slot of a label's ring that txgs
//! leave alone meanwhile, on one device after another and labels at random, each device in turn
//! once an interval. It says also how often heartbeats come and after how many that failed this
//! host stops ([`super::activity`] is who reads that).
//!
//! ```text
//!   ub_mmp_delay  nanoseconds between heartbeats of late; 0: multihost is off
//!   ub_mmp_config valid bits, interval in ms, sequence, failures
//! ```
//!
//! **The lease.** The devices take writes only while it lasts ([`Lease`]). What renews it is a
//! heartbeat that an importer would see: written to a device of an ordinary vdev, made stable, the
//! device still in use afterwards. It counts from when it was *sent*, for from then on it may have
//! been seen; it lasts as many intervals as the heartbeat says. What is on disk never says less
//! than what is being kept to: a shorter time counts for us before it is written, a longer one
//! after. Log, cache and spare devices have no part in it: another host may do without them. When
//! the lease is lost the pool is suspended, and nothing resumes it but `zpool clear`, which watches
//! the pool as an import does ([`super::claim`]).
//!
//! A crash leaves heartbeats in the ring, which lead to the same txg as its own uberblock.
//!
//! Not here: what becomes of writes that the kernel or a device holds back for longer than the test
//! takes.

use super::Spa;
use super::activity::{self, MIN_FAIL_INTERVALS, MIN_INTERVAL};
use super::config::Host;
use crate::tunables::{MULTIHOST_FAIL_INTERVALS, MULTIHOST_HISTORY, MULTIHOST_INTERVAL};
use crate::vdev::{Beat, Guarded, Leaf, Lease, Top, VdevTree};
use crate::zio::Zio;
use event_listener::Event;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use zilla_env::Env;
use zilla_ondisk::Uberblock;
use zilla_ondisk::uberblock::MMP_MAGIC;

/// Of 128 parts how many of the delay come from the last heartbeat. Source: mmp_delay_update() in
/// OpenZFS's mmp.c.
const DELAY_PARTS: u64 = 128;
/// Of an error that has no number.
const EIO: i32 = 5;
/// How often settings, and the lease, are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The loop gives way to others each time.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// How often heartbeats come, and after how many failures writing stops (0: never).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    interval_ms: u32,
    fails: u16,
}

impl Pace {
    /// As it is set.
    fn set() -> Pace {
        // What the uberblock has room for.
        let interval = MULTIHOST_INTERVAL.get().clamp(MIN_INTERVAL, 0xff_ffff);
        let fails = match MULTIHOST_FAIL_INTERVALS.get() {
            0 => 0,
            n => n.clamp(MIN_FAIL_INTERVALS, u64::from(u16::MAX)),
        };
        Pace { interval_ms: interval as u32, fails: fails as u16 }
    }

    /// As an uberblock has it.
    pub(super) fn of(ub: &Uberblock) -> Option<Pace> {
        // It may be damaged, or made by somebody: as if it had been set here.
        let fails = match ub.mmp_fail_intervals()? {
            0 => 0,
            n => u64::from(n).max(MIN_FAIL_INTERVALS) as u16,
        };
        Some(Pace { interval_ms: ub.mmp_interval()?.max(MIN_INTERVAL as u32), fails })
    }

    pub(super) fn interval(self) -> Duration {
        Duration::from_millis(u64::from(self.interval_ms))
    }

    /// For how long writing goes on without a heartbeat.
    fn lease(self) -> Option<Duration> {
        (self.fails > 0).then(|| self.interval() * u32::from(self.fails))
    }
}

/// Second and sequence number of the heartbeat after this uberblock.
pub(super) fn next(ub: &Uberblock, wall: u64) -> (u64, u16) {
    match ub.mmp_seq().unwrap_or(0).checked_add(1) {
        // A clock that was set back must not make heartbeats that nobody sees.
        _ if wall > ub.timestamp => (wall, 1),
        Some(seq) => (ub.timestamp, seq),
        // No clock is so late; an uberblock may say so.
        None => (ub.timestamp.saturating_add(1), 1),
    }
}

/// The delay after one more heartbeat, or none since: rises at once and falls slowly.
fn delay_after(old: u64, since: u64, least: u64, beaten: bool) -> u64 {
    if since >= old || !beaten {
        return old.max(since);
    }
    (old.saturating_mul(DELAY_PARTS - 1).saturating_add(since) / DELAY_PARTS).max(least)
}

/// One heartbeat, or several in a row that there was no device for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BeatRecord {
    pub id: u64,
    pub txg: u64,
    pub timestamp: u64,
    pub error: i32,
    pub duration: Option<Duration>,
    pub delay: u64,
    /// The device; how many were skipped, where there was none.
    pub guid: u64,
    pub label: usize,
    pub path: Option<String>,
}

pub(super) struct State {
    on: bool,
    /// The next txg says that it is off.
    ending: bool,
    /// The loop runs.
    beating: bool,
    pub(super) pace: Pace,
    /// Labels do not say yet that the pool is ours.
    pub(super) taking: Option<Duration>,
    pub(super) host: u64,
    /// The newest uberblock that was sent, and what was tried of the txg after it.
    pub(super) newest: Uberblock,
    pub(super) tried: Uberblock,
    /// When the last heartbeat that counts was sent.
    last: Duration,
    pub(super) delay: u64,
    turn: usize,
    /// Devices that have not answered yet.
    busy: Vec<u64>,
    ids: u64,
    history: VecDeque<BeatRecord>,
}

impl State {
    /// What an uberblock says of all this.
    pub(super) fn mark(&self, ub: &mut Uberblock, seq: u16) {
        ub.mmp_magic = MMP_MAGIC;
        let least = activity::tag(self.host) | 0x1_0000;
        ub.mmp_delay = (self.delay & !0xffff | activity::tag(self.host)).max(least);
        ub.set_mmp_config(self.pace.interval_ms, seq, self.pace.fails);
    }

    fn next(&mut self, wall: u64) -> Uberblock {
        let mut ub = self.newest;
        let (timestamp, seq) = next(&ub, wall);
        ub.timestamp = timestamp;
        self.mark(&mut ub, seq);
        self.newest = ub;
        ub
    }

    fn record(&mut self, record: BeatRecord) {
        self.history.push_back(record);
        let most = usize::try_from(MULTIHOST_HISTORY.get()).unwrap_or(usize::MAX);
        while self.history.len() > most {
            self.history.pop_front();
        }
    }

    /// There was no device.
    fn skipped(&mut self, wall: u64, now: Duration) {
        let since = nanos(now.saturating_sub(self.last));
        self.delay = delay_after(self.delay, since, 0, false);
        match self.history.back_mut() {
            Some(last) if last.path.is_none() => last.guid += 1,
            _ => {
                self.ids += 1;
                let (id, txg, delay) = (self.ids, self.newest.txg, self.delay);
                // Source: MMP_FAIL_NOT_WRITABLE in OpenZFS's mmp.c.
                let record = BeatRecord {
                    id,
                    txg,
                    timestamp: wall,
                    error: 1,
                    delay,
                    guid: 1,
                    ..BeatRecord::default()
                };
                self.record(record);
            }
        }
    }
}

pub(super) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) struct Heart {
    /// The world without the fence.
    pub world: Env,
    pub lease: Arc<Lease>,
    pub(super) zio: Zio,
    pub(super) state: Mutex<State>,
    spa: Mutex<Weak<Spa>>,
    changed: Event,
    told: AtomicBool,
}

/// What a heartbeat goes to: a device, the label, and the sector size of its vdev.
pub(super) type Place = (Arc<Leaf>, u32);

/// The devices that every importer looks at.
pub(super) fn places(tree: &VdevTree) -> Vec<Place> {
    let tops = tree.tops.iter().filter(|t| t.vdev.is_concrete() && !t.vdev.is_log);
    let usable = |t: &Top| {
        let shift = t.ashift();
        t.devices().filter(|l| is_seen(l)).map(move |l| (l.clone(), shift)).collect::<Vec<_>>()
    };
    tops.flat_map(usable).collect()
}

fn is_seen(leaf: &Leaf) -> bool {
    leaf.readable() && leaf.writable() && leaf.device().is_some()
}

impl Heart {
    /// Of a pool whose newest uberblock this is. It does not beat yet.
    pub fn new(guarded: &Guarded, zio: &Zio, ub: &Uberblock, host: u64) -> Arc<Heart> {
        let world = &guarded.world;
        // What was kept to so far counts until a heartbeat says otherwise.
        let before = Pace::of(ub).filter(|_| activity::beats(ub));
        let state = State {
            on: false,
            ending: false,
            beating: false,
            pace: before.unwrap_or_else(Pace::set),
            taking: None,
            host,
            newest: *ub,
            tried: *ub,
            last: world.boottime(),
            delay: 0,
            turn: 0,
            busy: Vec::new(),
            ids: 0,
            history: VecDeque::new(),
        };
        Arc::new(Heart {
            world: world.clone(),
            lease: guarded.lease.clone(),
            zio: zio.clone(),
            state: Mutex::new(state),
            spa: Mutex::default(),
            changed: Event::new(),
            told: AtomicBool::new(false),
        })
    }

    /// Who is to be told that the lease is lost.
    pub fn belong(&self, spa: &Arc<Spa>) {
        *self.spa.lock() = Arc::downgrade(spa);
    }

    pub fn is_on(&self) -> bool {
        self.state.lock().on
    }

    /// Begins to beat; the lease lasts from then on as long as heartbeats arrive. `from`: when it
    /// was seen last that nobody else has the pool.
    pub fn start(self: &Arc<Self>, host: u64, from: Duration) {
        let begun = {
            let mut st = self.state.lock();
            (st.on, st.ending, st.host) = (true, false, host);
            st.last = from;
            st.turn = self.world.random_below(1 << 16) as usize;
            st.delay = nanos(st.pace.interval());
            self.begin(&st, st.last);
            !std::mem::replace(&mut st.beating, true)
        };
        self.told.store(false, Ordering::Release);
        self.changed.notify(usize::MAX);
        if begun {
            self.world.spawn(beat(Arc::downgrade(self)));
        }
    }

    /// The property is off: the next txg says so, and is the end of the lease and of heartbeats.
    /// Until it is on disk others go by what they see, so both go on.
    pub fn stop(&self) {
        let mut st = self.state.lock();
        st.ending = st.on;
    }

    /// The pool is being closed: no heartbeat comes after this, and the lease is not extended.
    pub async fn end(&self) {
        {
            let mut st = self.state.lock();
            (st.on, st.ending) = (false, false);
        }
        self.changed.notify(usize::MAX);
        loop {
            let listener = self.changed.listen();
            if self.state.lock().busy.is_empty() {
                return;
            }
            // A device that does not answer is given up by whoever closes it.
            if let Either::Right(_) = select(listener, self.world.sleep(LOOK)).await {
                return;
            }
        }
    }

    /// Returns when no heartbeat is on its way to these devices, which have been closed.
    pub async fn settled(&self, guids: &[u64]) {
        loop {
            let listener = self.changed.listen();
            if !self.state.lock().busy.iter().any(|guid| guids.contains(guid)) {
                return;
            }
            listener.await;
        }
    }

    fn begin(&self, st: &State, from: Duration) {
        match st.taking.or(st.pace.lease()) {
            Some(lease) => self.lease.begin(from + lease),
            None => self.lease.endless(),
        }
    }

    /// Puts into a txg's uberblock what importers are to know. It is about to be written.
    pub fn mark(&self, ub: &mut Uberblock) {
        let mut st = self.state.lock();
        if st.on && !st.ending {
            self.follow(&mut st, self.world.boottime());
            st.mark(ub, 0);
        }
    }

    /// It is on its way: from now on it may be what others see, and heartbeats of the txg before it
    /// are not.
    pub fn trying(&self, ub: &Uberblock) {
        self.state.lock().tried = *ub;
    }

    /// A txg is on disk; `said` if the labels are, too.
    pub fn synced(&self, ub: &Uberblock, said: bool) {
        let mut st = self.state.lock();
        (st.newest, st.tried) = (*ub, *ub);
        if said {
            st.taking = None;
        }
        if st.ending && !activity::beats(ub) {
            // Others have been told: nobody watches this pool before he takes it.
            (st.on, st.ending, st.delay) = (false, false, 0);
            self.lease.end_it_never();
        }
    }

    pub fn history(&self) -> Vec<BeatRecord> {
        self.state.lock().history.iter().cloned().collect()
    }

    /// One look of the loop, with a heartbeat if one is due. How long after it the next is. None:
    /// it is over.
    fn turn(self: &Arc<Self>, due: bool) -> Option<Duration> {
        let (now, wall) = (self.world.boottime(), self.world.wall().as_secs());
        let places = places(&self.zio.tree());
        let mut st = self.state.lock();
        if !st.on {
            st.beating = false;
            return None;
        }
        self.follow(&mut st, now);
        let interval = st.pace.interval();
        if self.lease.is_lost() {
            drop(st);
            self.lose();
            return Some(interval);
        }
        let every = interval / u32::try_from(places.len().max(1)).unwrap_or(u32::MAX);
        // Until the pool is ours for all to see the lease is short, however seldom heartbeats are
        // to come.
        let every = st.taking.map_or(every, |lease| every.min(lease / 4));
        if !due {
            return Some(every);
        }
        let txg = st.newest.txg;
        // One that lacks something of the txg must not look as if it did not.
        let free = |(leaf, _): &&Place| leaf.holds(txg) && !st.busy.contains(&leaf.guid());
        let rest = places.iter().cycle().skip(st.turn % places.len().max(1)).take(places.len());
        let Some((leaf, ashift)) = rest.clone().find(free).cloned() else {
            st.skipped(wall, now);
            return Some(every);
        };
        st.turn = st.turn.wrapping_add(1);
        let ub = st.next(wall);
        st.busy.push(leaf.guid());
        st.ids += 1;
        let label = self.world.random_below(zilla_ondisk::label::VDEV_LABELS as u64) as usize;
        let record = BeatRecord {
            id: st.ids,
            txg,
            timestamp: ub.timestamp,
            delay: ub.mmp_delay,
            guid: leaf.guid(),
            label,
            path: Some(leaf.path()),
            ..BeatRecord::default()
        };
        st.record(record);
        let (id, heart) = (st.ids, self.clone());
        drop(st);
        self.world.spawn(async move {
            let result = Beat { ub, ashift }.write(&leaf, label).await;
            let error = result.err().map(|e| e.raw_os_error().unwrap_or(EIO));
            heart.beaten(&leaf, &ub, id, now, error);
        });
        Some(every)
    }

    /// Takes over how often is set. What is kept to is never longer than what the disk says.
    fn follow(&self, st: &mut State, now: Duration) {
        let pace = Pace::set();
        // Until the labels say whose it is, who claims it too goes by the uberblock that both have
        // read.
        if pace == st.pace || st.taking.is_some() {
            return;
        }
        match (st.pace.lease(), pace.lease()) {
            (None, Some(new)) if !self.lease.is_lost() => self.lease.begin(now + new),
            (Some(old), Some(new)) if new < old => drop(self.lease.shorten(now + new)),
            // The next heartbeat says so first.
            _ => {}
        }
        st.pace = pace;
    }

    /// How a heartbeat went that was sent at a time.
    fn beaten(&self, leaf: &Arc<Leaf>, ub: &Uberblock, id: u64, sent: Duration, failed: Option<i32>) {
        let tree = self.zio.tree();
        // It may have been given up, or have left, meanwhile.
        let seen = places(&tree).iter().any(|(l, _)| Arc::ptr_eq(l, leaf));
        let leaves = places(&tree).len().max(1) as u64;
        let now = self.world.boottime();
        {
            let mut st = self.state.lock();
            st.busy.retain(|guid| *guid != leaf.guid());
            // What is older than the txg's uberblock that is on its way no importer looks at.
            let newest = st.tried.txg <= st.newest.txg || ub.rank() > st.tried.rank();
            if failed.is_none() && seen && newest && st.on {
                let since = nanos(sent.saturating_sub(st.last));
                let least = nanos(st.pace.interval()) / leaves;
                st.delay = delay_after(st.delay, since, least, true);
                st.last = st.last.max(sent);
                // A slow one may say more than what the disk has been told since.
                let said = Pace::of(ub).and_then(Pace::lease);
                let kept = st.pace.lease();
                let lease = st.taking.or(match (said, kept) {
                    (Some(said), Some(kept)) => Some(said.min(kept)),
                    (said, kept) => said.or(kept),
                });
                match lease {
                    Some(lease) => drop(self.lease.renew(sent + lease)),
                    None => self.lease.end_it_never(),
                }
            }
            if let Some(record) = st.history.iter_mut().find(|r| r.id == id) {
                (record.duration, record.error) = (Some(now.saturating_sub(sent)), failed.unwrap_or(0));
            }
        }
        self.changed.notify(usize::MAX);
    }

    /// Tells the pool, once.
    fn lose(&self) {
        if self.told.load(Ordering::Acquire) {
            return;
        }
        let spa = self.spa.lock().upgrade();
        // During an import there is nobody yet who could be suspended.
        if spa.is_some_and(|spa| spa.lost_lease()) {
            self.told.store(true, Ordering::Release);
        }
    }
}

/// Beats as long as it is on.
async fn beat(heart: Weak<Heart>) {
    let mut due = Duration::ZERO;
    loop {
        let Some(own) = heart.upgrade() else { return };
        let now = own.world.boottime();
        let Some(every) = own.turn(now >= due) else { return };
        if now >= due {
            due = now + every;
        }
        // It may have become more often.
        due = due.min(now + every);
        let pause = due.saturating_sub(own.world.boottime()).clamp(LEAST_PAUSE, LOOK);
        let sleep = own.world.sleep(pause);
        drop(own);
        sleep.await;
    }
}

impl Spa {
    /// Whether it is suspended because another host may have it.
    pub fn lost_to_others(&self) -> bool {
        self.heart.lease.is_lost()
    }

    pub fn multihost(&self) -> bool {
        let st = self.heart.state.lock();
        st.on && !st.ending
    }

    /// The last heartbeats (`zfs_multihost_history`).
    pub fn heartbeats(&self) -> Vec<BeatRecord> {
        self.heart.history()
    }

    /// Switches heartbeats on, or off. The txg that is open says so, and whose the pool is.
    pub fn set_multihost(&self, on: bool, host: Option<Host>) {
        if self.ctx.readonly || !on && !self.heart.is_on() || on && self.multihost() {
            return;
        }
        let id = {
            let mut st = self.state.lock();
            st.host = host.unwrap_or_else(|| st.host.clone());
            st.host.id
        };
        match on {
            true => self.heart.start(id, self.heart.world.boottime()),
            false => self.heart.stop(),
        }
        self.config_dirty.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_heartbeat_is_newer_whatever_the_clock_does() {
        let mut ub = Uberblock { txg: 9, timestamp: 100, ..Uberblock::default() };
        ub.magic = zilla_ondisk::uberblock::UBERBLOCK_MAGIC;
        ub.mmp_magic = MMP_MAGIC;
        for wall in [100, 101, 101, 7, 101, 102, 0, 102, 103].into_iter().chain([103; 70_000]) {
            let before = ub.rank();
            let (timestamp, seq) = next(&ub, wall);
            ub.timestamp = timestamp;
            ub.set_mmp_config(1000, seq, 10);
            assert!(ub.rank() > before && seq > 0, "{before:?} {:?}", ub.rank());
        }
        assert_eq!(ub.timestamp, 104, "more heartbeats than a second has numbers");
    }

    #[test]
    fn the_delay_rises_at_once_and_falls_slowly() {
        assert_eq!(delay_after(1000, 5000, 10, true), 5000);
        assert_eq!(delay_after(1000, 5000, 10, false), 5000);
        assert_eq!(delay_after(1000, 10, 10, false), 1000);
        assert_eq!(delay_after(128_000, 0, 10, true), 127_000);
        let mut delay = 128_000;
        for _ in 0..2000 {
            delay = delay_after(delay, 500, 700, true);
        }
        assert_eq!(delay, 700);
        assert_eq!(delay_after(u64::MAX, 0, 0, true), u64::MAX / 128);
    }
}
