//! When a device has failed too often: the judgement that OpenZFS leaves to its event daemon.
//!
//! Errors are counted in windows of time, a leaf and a kind each. [`ERRORS`] I/O errors within
//! [`WITHIN`] fault the device, if the others have what is on it, else they degrade it; as many
//! checksum errors degrade it: it is still read where nobody else has the block. So do slow I/Os,
//! where a limit of them is set. Properties of the leaf, else of its top-level, set other limits
//! ([`THRESHOLDS`]). A faulted or degraded device calls a hot spare. `zpool clear` forgets.
//!
//! What is noted at the leaves is reported here too, as events. Nothing is on disk but the states,
//! in the pool's configuration.

use super::Spa;
use crate::error::{Errno, Error, Result};
use crate::events::events;
use crate::inject::{self, injections};
use crate::spa::Refusal;
use crate::vdev::{Leaf, Trouble, TroubleKind, Vdev, VdevAux, VdevKind, VdevState, VdevTree};
use crate::zio::Unreadable;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zilla_ondisk::{NvList, NvValue};

/// OpenZFS's defaults of `io_n` and `checksum_n`, and of `io_t` and `checksum_t`.
const ERRORS: u64 = 10;
const WITHIN: Duration = Duration::from_secs(600);
/// As many errors are remembered; a limit above it is never reached.
const MOST_ERRORS: u64 = 65_536;
/// So much slow I/O of a device is remembered, to be compared with that of others.
const SLOW_KEPT: usize = 1024;

/// The properties of vdevs that are limits: how many errors of a kind, within how many seconds.
pub(super) const THRESHOLDS: [&str; 6] =
    ["io_n", "io_t", "checksum_n", "checksum_t", "slow_io_n", "slow_io_t"];

/// What was set of a vdev, in the order of [`THRESHOLDS`].
type Own = [Option<u64>; THRESHOLDS.len()];

/// So many errors within such a time are too many.
#[derive(Clone, Copy)]
struct Limit {
    errors: u64,
    within: Duration,
}

/// Whether nobody else has what is on the leaf, if some leaves do not count.
pub(super) fn needs(tree: &VdevTree, guid: u64, gone: impl Fn(&Arc<Leaf>) -> bool) -> bool {
    let stays = |l: &Arc<Leaf>| !gone(l) && l.readable() && l.writable() && l.dtl.is_empty();
    let needed = tree.top_of(guid).is_none_or(|t| !t.vdev.is_log && !t.survives(stays));
    needed || inject::any() && injections().is_required(guid)
}

/// The devices of replacements under way in a RAID-Z or dRAID. They are not counted on where one
/// beside them is to be called faulty: what is replaced has often begun to fail, and the new one
/// is not there yet. (OpenZFS does the same since 2.3.)
pub(super) fn in_passing(tree: &VdevTree, guid: u64) -> BTreeSet<usize> {
    let top = tree.top_of(guid).filter(|t| t.vdev.kind.nparity().is_some());
    let all = top.map(|t| t.vdev.walk()).unwrap_or_default();
    let replacing = all.iter().filter(|v| v.kind == VdevKind::Replacing);
    replacing.flat_map(|v| v.walk()).filter_map(|v| v.leaf.as_ref().map(|l| l.index)).collect()
}

/// The last errors of one kind.
#[derive(Default)]
struct Window(VecDeque<Duration>);

impl Window {
    /// Counts an error; whether it was one too many.
    fn too_many(&mut self, at: Duration, limit: Limit) -> bool {
        let most = limit.errors.clamp(1, MOST_ERRORS) as usize;
        self.0.push_back(at);
        while self.0.len() > most {
            self.0.pop_front();
        }
        let first = self.0.front().copied().unwrap_or(at);
        limit.errors <= MOST_ERRORS && self.0.len() == most && at.saturating_sub(first) <= limit.within
    }
}

#[derive(Default)]
struct OfLeaf {
    io: Window,
    checksum: Window,
    slow: Window,
    /// When it was slow, whether that was judged already or not.
    slow_at: VecDeque<Duration>,
    /// When the errors so far were forgotten.
    forgotten: Option<Duration>,
    /// The state that was last reported.
    state: Option<VdevState>,
}

/// What is known of a pool's leaves, by guid.
#[derive(Default)]
pub(super) struct Diagnosis {
    leaves: BTreeMap<u64, OfLeaf>,
    /// Of leaves and top-levels.
    limits: BTreeMap<u64, Own>,
}

impl Diagnosis {
    fn of(&mut self, guid: u64) -> &mut OfLeaf {
        self.leaves.entry(guid).or_default()
    }

    /// A property of a vdev is another now, if it is a limit.
    pub(super) fn limit(&mut self, guid: u64, property: &str, value: Option<u64>) {
        if let Some(i) = THRESHOLDS.iter().position(|name| *name == property) {
            let own = self.limits.entry(guid).or_default();
            // OpenZFS's way to say that there is none.
            own[i] = value.filter(|n| *n != u64::MAX);
        }
    }

    /// What counts for a leaf: its own limit, its top-level's, the usual one. None: nothing is
    /// judged.
    fn limit_of(&self, kind: TroubleKind, leaf: u64, top: Option<u64>) -> Option<Limit> {
        let (at, usual) = match kind {
            TroubleKind::Io { .. } => (0, Some((ERRORS, WITHIN.as_secs()))),
            TroubleKind::Checksum => (2, Some((ERRORS, WITHIN.as_secs()))),
            TroubleKind::Slow(_) => (4, None),
            TroubleKind::Hung(_) => return None,
        };
        let set = |i: usize| {
            let of = |guid| self.limits.get(&guid).and_then(|own| own.get(i).copied().flatten());
            of(leaf).or_else(|| of(top?))
        };
        let errors = set(at).or(usual.map(|u| u.0))?;
        let within = set(at + 1).or(usual.map(|u| u.1))?;
        Some(Limit { errors, within: Duration::from_secs(within) })
    }

    /// The errors so far do not count any more, nor those that nobody has looked at yet.
    pub(super) fn forget(&mut self, guid: u64, now: Duration) {
        let of = self.of(guid);
        (of.io, of.checksum, of.slow, of.slow_at) = Default::default();
        of.forgotten = Some(now);
    }

    /// Notes slow I/O of a leaf, before any is judged.
    fn saw(&mut self, leaf: u64, troubles: &[Trouble]) {
        let of = self.of(leaf);
        of.slow_at.extend(troubles.iter().filter(|t| matches!(t.kind, TroubleKind::Slow(_))).map(|t| t.at));
        let more = of.slow_at.len().saturating_sub(SLOW_KEPT);
        of.slow_at.drain(..more);
    }

    /// Whether another leaf is slow as well, half as often at least: then what they have in common
    /// is slow, and to do without one of them is no cure. (OpenZFS's zed skips these.)
    fn others_are_slow(&self, leaf: u64, at: Duration, limit: Limit) -> bool {
        self.leaves.iter().filter(|(guid, _)| **guid != leaf).any(|(_, of)| {
            let lately = of.slow_at.iter().filter(|t| **t + limit.within >= at).count() as u64;
            lately > 0 && lately.saturating_mul(2) >= limit.errors.min(SLOW_KEPT as u64)
        })
    }

    /// Counts an error; what the leaf is taken for if it was one too many.
    fn count(&mut self, leaf: u64, trouble: &Trouble, limit: Limit) -> Option<VdevState> {
        let of = self.of(leaf);
        if of.forgotten.is_some_and(|at| trouble.at <= at) {
            return None;
        }
        let (window, verdict) = match trouble.kind {
            TroubleKind::Io { .. } => (&mut of.io, VdevState::Faulted),
            TroubleKind::Checksum => (&mut of.checksum, VdevState::Degraded),
            _ => (&mut of.slow, VdevState::Degraded),
        };
        window.too_many(trouble.at, limit).then_some(verdict)
    }
}

impl Spa {
    /// Reports an event about the pool, or one of its devices.
    pub fn post(&self, class: &str, vdev: Option<&Vdev>, more: &NvList) {
        let mut about = NvList::new();
        about.add("pool", self.name()).add("pool_guid", self.guid());
        about.add("pool_state", self.state.lock().state.number());
        // SPA_LOAD_NONE: it is open.
        about.add("pool_context", NvValue::Int32(0));
        if let Some(vdev) = vdev {
            about.add("vdev_guid", vdev.guid).add("vdev_state", vdev.state().0.number());
            if let Some(leaf) = &vdev.leaf {
                about.add("vdev_path", leaf.path());
            }
        }
        for (name, value) in more {
            about.add(name, value.clone());
        }
        events().post(self.ctx.env.clock.wall(), class, &about);
    }

    /// Reports that something was done to the pool.
    pub fn notify(&self, name: &str, vdev: Option<u64>) {
        let vdev = vdev.and_then(|guid| self.tree().find(guid));
        self.post(&format!("sysevent.fs.zfs.{name}"), vdev.as_deref(), &NvList::new());
    }

    /// Looks at what has gone wrong at the leaves since the last time, reports it, and takes out of
    /// use who has failed too often; whether a state is another now. To be called now and then by
    /// who watches the pool.
    pub fn diagnose(&self) -> bool {
        let tree = self.tree();
        let mut changed = false;
        let all = tree.root.walk().into_iter().map(|vdev| {
            let troubles = vdev.leaf.as_ref().map(|l| l.troubles.take()).unwrap_or_default();
            if !troubles.is_empty() {
                self.diagnosis.lock().saw(vdev.guid, &troubles);
            }
            (vdev, troubles)
        });
        let all: Vec<_> = all.collect();
        for (vdev, troubles) in all {
            let Some(leaf) = &vdev.leaf else { continue };
            for trouble in troubles {
                if trouble.told {
                    self.report(&vdev, &trouble);
                }
                changed |= self.judge(&tree, &vdev, leaf, &trouble);
            }
        }
        if changed {
            tree.propagate();
            self.config_dirty.store(true, Ordering::Release);
        }
        for lost in self.zio.take_unreadable() {
            self.report_lost(&lost);
        }
        self.report_states(&tree)
    }

    /// A device is to be taken for one that has failed too often.
    pub fn declare(&self, guid: u64, verdict: VdevState) -> Result<()> {
        let tree = self.tree();
        let vdev = tree.find(guid).ok_or(Refusal::NoDevice(guid))?;
        let leaf = vdev.leaf.as_ref().filter(|_| tree.top_of(guid).is_some());
        let leaf = leaf.ok_or_else(|| Error::os(Errno::NotSup, "only a device of a vdev can fail"))?;
        if self.condemn(&tree, &vdev, leaf, verdict) {
            tree.propagate();
            self.config_dirty.store(true, Ordering::Release);
            self.report_states(&tree);
        }
        Ok(())
    }

    /// A block could not be read from any of its copies, or not be decrypted.
    fn report_lost(&self, lost: &Unreadable) {
        let class = if lost.sealed { "ereport.fs.zfs.authentication" } else { "ereport.fs.zfs.data" };
        let mut more = NvList::new();
        more.add("zio_err", NvValue::Int32(Errno::Io as i32));
        more.add("zio_objset", lost.at.objset).add("zio_object", lost.at.object);
        more.add("zio_level", NvValue::Int64(lost.at.level)).add("zio_blkid", lost.at.blkid);
        self.post(class, None, &more);
    }

    fn judge(&self, tree: &VdevTree, vdev: &Vdev, leaf: &Arc<Leaf>, trouble: &Trouble) -> bool {
        let mut known = self.diagnosis.lock();
        let top = tree.top_of(vdev.guid).map(|t| t.vdev.guid);
        let Some(limit) = known.limit_of(trouble.kind, vdev.guid, top) else { return false };
        let Some(verdict) = known.count(vdev.guid, trouble, limit) else { return false };
        let slow = matches!(trouble.kind, TroubleKind::Slow(_));
        if slow && known.others_are_slow(vdev.guid, trouble.at, limit) {
            known.of(vdev.guid).slow = Window::default();
            tracing::warn!(pool = %self.name(), path = %leaf.path(), "slow I/O, but not on this device alone");
            return false;
        }
        drop(known);
        self.condemn(tree, vdev, leaf, verdict)
    }

    /// Takes a leaf out of use, or degrades it if nobody else has what is on it; whether that
    /// changed anything.
    fn condemn(&self, tree: &VdevTree, vdev: &Vdev, leaf: &Arc<Leaf>, verdict: VdevState) -> bool {
        let passing = in_passing(tree, vdev.guid);
        let gone = |l: &Arc<Leaf>| l.index == leaf.index || passing.contains(&l.index);
        let verdict = if needs(tree, vdev.guid, gone) { VdevState::Degraded } else { verdict };
        if leaf.state().0 <= verdict {
            return false;
        }
        tracing::error!(pool = %self.name(), path = %leaf.path(), ?verdict, "the device has failed too often");
        leaf.judged(verdict);
        true
    }

    fn report(&self, vdev: &Vdev, trouble: &Trouble) {
        let mut more = NvList::new();
        let mut class = "ereport.fs.zfs.io";
        match trouble.kind {
            TroubleKind::Io { errno, .. } => {
                more.add("zio_err", NvValue::Int32(errno));
            }
            // EBADE, which OpenZFS calls ECKSUM.
            TroubleKind::Checksum => {
                class = "ereport.fs.zfs.checksum";
                more.add("zio_err", NvValue::Int32(52));
            }
            TroubleKind::Slow(took) => {
                class = "ereport.fs.zfs.delay";
                more.add("zio_delay", u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
            TroubleKind::Hung(took) => {
                class = "ereport.fs.zfs.deadman";
                more.add("zio_delta", u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
        }
        more.add("zio_offset", trouble.offset).add("zio_size", trouble.len);
        let names = ["vdev_read_errors", "vdev_write_errors", "vdev_cksum_errors"];
        names.iter().zip(trouble.errors).for_each(|(name, n)| {
            more.add(*name, n);
        });
        self.post(class, Some(vdev), &more);
    }

    /// Reports each state that is another than it was.
    pub(super) fn report_states(&self, tree: &VdevTree) -> bool {
        let mut changed = false;
        for vdev in tree.root.walk().iter().chain(&tree.cache).filter(|v| v.is_leaf()) {
            // Looked at under the lock: of two who look at once none notes what the other has seen
            // to be over.
            let mut known = self.diagnosis.lock();
            let (state, aux) = vdev.state();
            // It is just being opened again.
            if state < VdevState::Offline {
                continue;
            }
            let last = known.of(vdev.guid).state.replace(state);
            drop(known);
            // Who looks for the first time expects nothing wrong.
            let last = last.unwrap_or(VdevState::Healthy);
            if last == state {
                continue;
            }
            changed = true;
            let more = NvList::new().with("vdev_laststate", last.number());
            self.post("resource.fs.zfs.statechange", Some(vdev), &more);
            let problem = match (state, aux) {
                (VdevState::CantOpen, VdevAux::OpenFailed) => "open_failed",
                (VdevState::CantOpen, VdevAux::CorruptData) => "corrupt_data",
                (VdevState::CantOpen, VdevAux::BadLabel) => "bad_label",
                (VdevState::CantOpen, VdevAux::TooSmall) => "too_small",
                (VdevState::CantOpen, _) => "unknown",
                _ => continue,
            };
            self.post(&format!("ereport.fs.zfs.vdev.{problem}"), Some(vdev), &NvList::new());
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_errors_in_ten_minutes_are_too_many() {
        let usual = Limit { errors: ERRORS, within: WITHIN };
        let mut w = Window::default();
        let minute = Duration::from_secs(60);
        // One a minute, and then some more: only those of the last ten minutes count.
        assert!((0..9).all(|i| !w.too_many(minute * i, usual)));
        assert!(w.too_many(minute * 10, usual));
        let mut w = Window::default();
        assert!((0..50).all(|i| !w.too_many(minute * 2 * i, usual)));
        assert!((0..3).all(|_| !w.too_many(minute * 98, usual)));
        assert!(w.too_many(minute * 98, usual));
    }

    #[test]
    fn what_others_suffer_as_well_is_no_fault_of_one() {
        let limit = Limit { errors: 4, within: Duration::from_secs(30) };
        let slow = |second| Trouble {
            at: Duration::from_secs(second),
            kind: TroubleKind::Slow(Duration::from_secs(1)),
            offset: 0,
            len: 512,
            told: true,
            errors: [0; 3],
        };
        let mut d = Diagnosis::default();
        d.saw(1, &[slow(100), slow(101), slow(102), slow(103)]);
        d.saw(2, &[slow(101)]);
        let at = Duration::from_secs(103);
        assert!(!d.others_are_slow(1, at, limit), "once is not half as often");
        d.saw(2, &[slow(102), Trouble { kind: TroubleKind::Checksum, ..slow(103) }]);
        assert!(d.others_are_slow(1, at, limit));
        assert!(d.others_are_slow(2, at, limit));
        assert!(!d.others_are_slow(1, Duration::from_secs(140), limit), "that is long past");
        d.forget(2, at);
        assert!(!d.others_are_slow(1, at, limit));
    }

    #[test]
    fn what_is_forgotten_does_not_count_whenever_it_is_looked_at() {
        let limit = Limit { errors: 3, within: WITHIN };
        let at = |second| Trouble {
            at: Duration::from_secs(second),
            kind: TroubleKind::Checksum,
            offset: 0,
            len: 512,
            told: true,
            errors: [0, 0, 1],
        };
        let mut d = Diagnosis::default();
        assert!([1, 2].iter().all(|s| d.count(1, &at(*s), limit).is_none()));
        d.forget(1, Duration::from_secs(5));
        // Two were noted before that and come now.
        assert!([4, 5, 6, 7].iter().all(|s| d.count(1, &at(*s), limit).is_none()));
        assert_eq!(d.count(1, &at(8), limit), Some(VdevState::Degraded));
    }

    #[test]
    fn a_leaf_s_limit_comes_before_its_top_level_s_and_that_before_the_usual_one() {
        let (io, slow) = (TroubleKind::Io { write: false, errno: 5 }, TroubleKind::Slow(WITHIN));
        let mut d = Diagnosis::default();
        let of = |d: &Diagnosis, kind| d.limit_of(kind, 1, Some(2)).map(|l| (l.errors, l.within.as_secs()));
        assert_eq!((of(&d, io), of(&d, slow)), (Some((10, 600)), None));
        d.limit(2, "io_n", Some(3));
        d.limit(2, "io_t", Some(7));
        d.limit(1, "io_n", Some(4));
        assert_eq!(of(&d, io), Some((4, 7)));
        d.limit(1, "io_n", Some(u64::MAX));
        assert_eq!(of(&d, io), Some((3, 7)));
        d.limit(2, "slow_io_n", Some(5));
        assert_eq!(of(&d, slow), None, "both have to be set");
        d.limit(1, "slow_io_t", Some(60));
        assert_eq!(of(&d, slow), Some((5, 60)));
        d.limit(2, "comment", Some(1));
        d.limit(2, "io_n", None);
        assert_eq!(of(&d, io), Some((10, 7)));
        let mut w = Window::default();
        let none = Limit { errors: MOST_ERRORS + 1, within: WITHIN };
        assert!((0..MOST_ERRORS + 10).all(|_| !w.too_many(WITHIN, none)));
        assert!(Window::default().too_many(WITHIN, Limit { errors: 0, within: WITHIN }));
    }
}
