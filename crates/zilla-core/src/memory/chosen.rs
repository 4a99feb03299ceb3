//! What an administrator chose for memory: `zfs_arc_max`, `zfs_arc_min` and `zfs_dirty_data_max`.
//!
//! They are the process's, so each is said of all pools together. A value that cannot be is not
//! heeded, as in OpenZFS, and the log says so once: the ranges are those of `arc_tuning_update` in
//! its `arc.c`, and for dirty data, where OpenZFS takes anything, what a pool needs to go on.

use super::Memory;
use crate::tunables::{ARC_MAX, ARC_MIN, DIRTY_DATA_MAX, Tunable};
use crate::txg::LEAST_DIRTY;

/// The least `zfs_arc_max`, in bytes. Source: `MIN_ARC_MAX` of OpenZFS's `arc.c`.
const LEAST_ARC_MAX: u64 = 64 << 20;
/// The least `zfs_arc_min`, in bytes: two of the largest blocks. Source: `arc_tuning_update` there.
const LEAST_ARC_MIN: u64 = 32 << 20;

/// What counts; None: what the memory allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    pub arc_max: Option<u64>,
    pub arc_min: Option<u64>,
    pub dirty_max: Option<u64>,
}

/// The numbers that were set.
pub(super) type Set = [u64; 3];

pub(super) fn set() -> Set {
    [ARC_MAX.get(), ARC_MIN.get(), DIRTY_DATA_MAX.get()]
}

impl Chosen {
    /// What counts of what was set, and what does not, with the range in which it would.
    pub(super) fn of([arc_max, arc_min, dirty]: Set, memory: &Memory) -> (Chosen, Vec<Ignored>) {
        let mut ignored = Vec::new();
        let mut judge = |tunable: &'static Tunable, value: u64, least: u64, most: u64| match value {
            0 => None,
            n if (least..=most).contains(&n) => Some(n),
            value => {
                ignored.push(Ignored { tunable, value, least, most });
                None
            }
        };
        // All of the memory is never the cache's.
        let arc_max = judge(&ARC_MAX, arc_max, LEAST_ARC_MAX, memory.total.saturating_sub(1));
        let most = arc_max.unwrap_or_else(|| memory.arc_max());
        let arc_min = judge(&ARC_MIN, arc_min, LEAST_ARC_MIN, most);
        let dirty_max = judge(&DIRTY_DATA_MAX, dirty, LEAST_DIRTY, memory.total);
        (Chosen { arc_max, arc_min, dirty_max }, ignored)
    }
}

/// A value that is not heeded.
pub(super) struct Ignored {
    tunable: &'static Tunable,
    value: u64,
    least: u64,
    most: u64,
}

impl Ignored {
    pub fn tell(&self) {
        tracing::warn!(
            "{}={} is not heeded: it must be between {} and {}, or 0 for what the memory allows",
            self.tunable.name,
            self.value,
            self.least,
            self.most
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_counts() {
        const GIB: u64 = 1 << 30;
        let memory = Memory { total: 256 * GIB, available: 200 * GIB };
        let of = |set| {
            let (chosen, ignored) = Chosen::of(set, &memory);
            (chosen, ignored.iter().map(|i| i.tunable.name).collect::<Vec<_>>())
        };
        assert_eq!(of([0; 3]), (Chosen::default(), vec![]));
        let all = Chosen { arc_max: Some(200 * GIB), arc_min: Some(GIB), dirty_max: Some(8 * GIB) };
        assert_eq!(of([200 * GIB, GIB, 8 * GIB]), (all, vec![]));
        // Too little, and all there is; more than the most; what no pool could work with.
        let names = ["zfs_arc_max", "zfs_arc_min", "zfs_dirty_data_max"];
        assert_eq!(of([63 << 20, 31 << 20, 1]), (Chosen::default(), names.to_vec()));
        assert_eq!(of([256 * GIB, 129 * GIB, 257 * GIB]), (Chosen::default(), names.to_vec()));
        let (chosen, ignored) = of([GIB, 2 * GIB, 0]);
        assert_eq!((chosen.arc_max, chosen.arc_min, ignored), (Some(GIB), None, vec!["zfs_arc_min"]));
    }
}
