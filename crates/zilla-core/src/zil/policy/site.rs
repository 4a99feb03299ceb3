//! The vdevs that a train's blocks may go to, as they are when it sets out, and what is known of
//! them.

use super::gap::Gap;
use super::{Measured, Plain, Policy, Step};
use crate::zil::PoolLog;
use crate::zil::throttle::HURRY;
use crate::zio::{At, LogStore, LogVdev, Spot, Spots};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::time::Duration;
use zilla_ondisk::Dva;

/// Every block counts for so many bytes more: a device is not busy with the bytes alone.
const WRITE: u64 = 16 << 10;

/// A vdev.
#[derive(Clone, Copy)]
pub(in crate::zil) struct On {
    pub vdev: LogVdev,
    /// It is for the log alone.
    pub separate: bool,
}

impl On {
    /// A place there, so far behind the last block if it is rotational. A log that stays in as
    /// little space as it can be in is for the best of simple flash, which keeps few erase units
    /// open and takes long to change to another, of SSDs, which have the rest to themselves, and of
    /// image files, which grow no further.
    pub(super) fn spot(&self, gap: u64) -> Spot {
        let lowest = self.separate && !self.vdev.rotational;
        (self.vdev.id, if lowest { At::Lowest } else { At::After(gap) })
    }
}

/// What the logs of a pool have learned of its vdevs.
#[derive(Default)]
pub(in crate::zil) struct Devices {
    /// What each was given.
    given: BTreeMap<u32, u64>,
    /// Which got the last block, of the pool's and of those that are for the log alone.
    last: [Option<u32>; 2],
    pub(super) gap: Gap,
    plain: bool,
}

impl Devices {
    /// The vdev that was given least, for a block of so many bytes; or the one that got the last
    /// block, up to `stay` bytes more than that. All come forward equally, so that devices which
    /// stop now and then to prepare what comes next, as simple flash does, stop together and not
    /// one after the other.
    pub(super) fn next<'a>(&mut self, on: &'a [On], bytes: u64, stay: u64) -> Option<&'a On> {
        // One that is new has nothing to make up for.
        let least = on.iter().filter_map(|o| self.given.get(&o.vdev.id)).min().copied().unwrap_or(0);
        for o in on {
            self.given.entry(o.vdev.id).or_insert(least);
        }
        let given = |o: &On| self.given.get(&o.vdev.id).copied().unwrap_or(least);
        let last = &mut self.last[usize::from(on.first()?.separate)];
        let stays = |o: &&On| *last == Some(o.vdev.id) && given(o) < least + stay;
        let next = on.iter().find(stays).or_else(|| on.iter().min_by_key(|o| given(o)))?;
        *last = Some(next.vdev.id);
        *self.given.entry(next.vdev.id).or_default() += bytes + WRITE;
        Some(next)
    }
}

/// Where a train goes.
pub(in crate::zil) struct Site {
    pub policy: &'static dyn Policy,
    /// Those that are for the log alone, and the pool's, where that may be asked.
    on: [SmallVec<[On; 4]>; 2],
}

impl Site {
    /// Log devices.
    pub(in crate::zil) fn devices(&self) -> usize {
        self.on[0].len()
    }

    pub(super) fn ids(&self) -> Vec<u32> {
        self.on[0].iter().map(|o| o.vdev.id).collect()
    }

    /// The vdev of this number, if it is among them.
    pub(in crate::zil) fn at(&self, vdev: u32) -> Option<On> {
        self.on.iter().flatten().find(|o| o.vdev.id == vdev).copied()
    }

    /// Whether there are disks that turn among those that the log is on.
    pub(super) fn turns(&self) -> bool {
        self.on.iter().find(|on| !on.is_empty()).is_some_and(|on| on.iter().any(|o| o.vdev.turns))
    }
}

impl PoolLog {
    /// From now on the policy is the plain one, or the measured one, which it is to begin with.
    pub fn fix_policy(&self, plain: bool) {
        self.devices.lock().plain = plain;
    }

    /// Where the next train goes.
    pub(in crate::zil) fn site(&self, store: &dyn LogStore) -> Site {
        let on = |separate| store.vdevs(separate).into_iter().map(move |vdev| On { vdev, separate });
        let logs: SmallVec<[On; 4]> = on(true).collect();
        // If the log has no place for a block it goes to the pool's vdevs.
        let ours = logs.is_empty() || store.fullness().is_none_or(|full| full > HURRY);
        let on = [logs, if ours { on(false).collect() } else { SmallVec::new() }];
        let known = &mut *self.devices.lock();
        known.given.retain(|id, _| on.iter().flatten().any(|o| o.vdev.id == *id));
        let policy: &dyn Policy = if known.plain { &Plain } else { &Measured };
        Site { policy, on }
    }

    /// Where its next block of `size` bytes is best.
    pub(in crate::zil) fn spots(&self, site: &Site, step: Step, size: u64, now: Duration) -> Spots {
        let known = &mut *self.devices.lock();
        site.on.each_ref().map(|on| site.policy.spot(known, on, step, size, now))
    }

    /// A block is about to be written there.
    pub(in crate::zil) fn issued(&self, on: Option<On>, at: &Dva, now: Duration) {
        if on.is_some_and(|o| o.vdev.turns) {
            self.devices.lock().gap.block(at.vdev, (at.offset, at.asize), now);
        }
    }

    /// It is stable.
    pub(in crate::zil) fn stable(&self, on: Option<On>, now: Duration) {
        if let Some(o) = on.filter(|o| o.vdev.turns) {
            self.devices.lock().gap.stable(o.vdev.id, now, o.separate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(ids: &[u32], separate: bool, rotational: bool) -> SmallVec<[On; 4]> {
        ids.iter().map(|&id| On { vdev: LogVdev { id, rotational, turns: rotational }, separate }).collect()
    }

    #[test]
    fn all_devices_are_given_as_much_also_one_that_is_new() {
        let mut known = Devices::default();
        // In turns one of three would get all the large ones.
        let mut give = |ids: &[u32]| {
            let mut got = BTreeMap::new();
            for size in [128 << 10, 4096, 4096].into_iter().cycle().take(600) {
                *got.entry(known.next(&on(ids, true, false), size, 0).unwrap().vdev.id).or_default() += size;
            }
            got.values().map(|bytes: &u64| bytes >> 20).collect::<Vec<_>>()
        };
        assert!(give(&[1, 2, 3]).iter().all(|mib| (8..=9).contains(mib)));
        assert!(give(&[1, 2, 3, 4]).iter().all(|mib| (6..=7).contains(mib)));
        assert!(known.next(&[], 4096, 0).is_none());
    }

    #[test]
    fn a_log_stays_where_it_is_told_to() {
        let mut known = Devices::default();
        let mut next = || known.next(&on(&[1, 2], true, true), 112 << 10, 32 << 20).unwrap().vdev.id;
        let got: Vec<u32> = (0..3000).map(|_| next()).collect();
        let stays: Vec<usize> = got.chunk_by(|a, b| a == b).map(<[u32]>::len).collect();
        assert!(stays.len() > 3 && stays[..stays.len() - 1].iter().all(|n| *n >= 256), "{stays:?}");
    }
}
