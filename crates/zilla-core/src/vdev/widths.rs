//! How wide the stripes of a RAID-Z's blocks are: as wide as the vdev was when they were born.
//!
//! A RAID-Z that was given one more child holds blocks of several widths. An expansion moves
//! sectors and changes none: sector number n of the vdev's space lies on child n % (children), in
//! row n / (children), whatever block it belongs to. So the number of children says where a sector
//! is, and the *logical width*, of the txg a block was born in, which sectors of it are parity and
//! in what order the others come ([`super::raidz::Map::expanded`]).
//!
//! The configuration lists the first txg of each width that came after the original one
//! (`raidz_expand_txgs`, in ascending order), and `raidz_expanding` while sectors are being moved.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use zilla_ondisk::enums::ScanState;
use zilla_ondisk::{NvList, Uberblock};

use super::gate::Writer;
use super::node::Vdev;
use super::reflow::{Inside, Position, Ranges, Reflow};
use super::tree::{Layout, Top, VdevTree};
use crate::error::{Error, Result};

const EXPAND_TXGS: &str = "raidz_expand_txgs";
pub(super) const EXPANDING: &str = "raidz_expanding";

/// The widths of one RAID-Z. Shared by all trees the vdev is in.
#[derive(Debug)]
pub struct Widths {
    original: usize,
    /// First txg and width, in ascending order.
    later: RwLock<Vec<(u64, usize)>>,
    /// While sectors are being moved.
    reflow: RwLock<Option<Arc<Reflow>>>,
    state: Mutex<ExpandState>,
    /// Held by who does I/O and does not know of an expansion.
    strangers: Arc<()>,
}

/// What the vdev's ZAP says of its last expansion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpandState {
    /// As of a scan.
    pub state: u64,
    pub start_time: u64,
    pub end_time: u64,
    pub copied: u64,
    /// It cannot go on for a device that is not there or lacks something.
    pub waiting: bool,
}

/// Somebody does I/O on RAID-Zs, or writes.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    strangers: SmallVec<[Arc<()>; 1]>,
    inside: Option<(u32, Inside)>,
    #[expect(dead_code, reason = "held")]
    writer: Writer,
}

impl Entry {
    /// Where the sectors of a vdev are.
    pub(super) fn at(&self, vdev: u32) -> Option<Position> {
        self.inside.as_ref().filter(|(id, _)| *id == vdev).map(|(_, inside)| inside.at)
    }
}

impl Widths {
    /// As a configuration says it.
    pub(super) fn parse(nv: &NvList, children: usize, nparity: usize) -> Result<Widths> {
        let bad = |what: &str| Err(Error::corrupt(None, "vdev configuration", what));
        if nv.contains(EXPAND_TXGS) && nv.u64s(EXPAND_TXGS).is_none() {
            return bad("a raidz whose expansions are no list of txgs");
        }
        let txgs = nv.u64s(EXPAND_TXGS).unwrap_or_default();
        if !txgs.is_sorted_by(|a, b| a < b) {
            return bad("a raidz whose expansions are out of order");
        }
        let whole = children.saturating_sub(usize::from(nv.contains(EXPANDING)));
        let Some(original) = whole.checked_sub(txgs.len()).filter(|w| *w > nparity) else {
            return bad("a raidz that was expanded more often than it has children");
        };
        let later = txgs.iter().enumerate().map(|(i, txg)| (*txg, original + 1 + i)).collect();
        let expanding = nv.contains(EXPANDING);
        let reflow = expanding.then(|| Arc::new(Reflow::new(&Uberblock::default())));
        let state = if expanding { ScanState::Scanning as u64 } else { 0 };
        Ok(Widths {
            original,
            later: RwLock::new(later),
            reflow: RwLock::new(reflow),
            state: Mutex::new(ExpandState { state, ..ExpandState::default() }),
            strangers: Arc::default(),
        })
    }

    /// The vdev has got one more child.
    pub fn begin(&self, state: ExpandState) {
        *self.state.lock() = state;
        *self.reflow.write() = Some(Arc::new(Reflow::new(&Uberblock::default())));
    }

    /// All has been moved: what is born in this txg and later is as wide as the vdev.
    pub fn finish(&self, txg: u64, width: usize, now: u64) {
        self.later.write().push((txg, width));
        *self.reflow.write() = None;
        let mut state = self.state.lock();
        (state.state, state.end_time) = (ScanState::Finished as u64, now);
    }

    pub fn reflow(&self) -> Option<Arc<Reflow>> {
        self.reflow.read().clone()
    }

    /// Where sectors are, as an uberblock says it.
    pub(super) fn note_reflow(&self, ub: &Uberblock) {
        let mut reflow = self.reflow.write();
        if reflow.is_some() {
            *reflow = Some(Arc::new(Reflow::new(ub)));
        }
    }

    pub fn state(&self) -> ExpandState {
        *self.state.lock()
    }

    pub fn set_state(&self, state: ExpandState) {
        *self.state.lock() = state;
    }

    pub fn set_waiting(&self, waiting: bool) {
        self.state.lock().waiting = waiting;
    }

    pub fn count_copied(&self, bytes: u64) {
        self.state.lock().copied += bytes;
    }

    /// Whether somebody is doing I/O who began before there was an expansion.
    pub fn has_strangers(&self) -> bool {
        Arc::strong_count(&self.strangers) > 1
    }

    pub(super) fn generate(&self, nv: &mut NvList) {
        let txgs: Vec<u64> = self.later.read().iter().map(|(txg, _)| *txg).collect();
        if !txgs.is_empty() {
            nv.add(EXPAND_TXGS, txgs);
        }
    }

    /// The width of blocks born in a txg.
    pub fn at(&self, birth: u64) -> usize {
        let later = self.later.read();
        later.iter().rev().find(|(txg, _)| *txg <= birth).map_or(self.original, |(_, width)| *width)
    }

    /// All widths that blocks have, or had sectors laid out by: up to the number of children.
    pub(super) fn all(&self, children: usize) -> impl Iterator<Item = usize> + use<> {
        self.original..=children
    }
}

impl Vdev {
    pub fn widths(&self) -> Option<&Arc<Widths>> {
        self.widths.as_ref()
    }

    /// It has one more child than sectors are divided among.
    pub fn is_expanding(&self) -> bool {
        self.config.lock().contains(EXPANDING)
    }

    pub fn not_expanding(&self) {
        self.remove_config(EXPANDING);
    }
}

impl VdevTree {
    /// The RAID-Z that is being expanded.
    pub fn expanding(&self) -> Option<&Top> {
        self.tops.iter().find(|t| t.vdev.is_expanding())
    }

    /// Whether blocks born in two txgs are laid out alike, wherever they are.
    pub fn is_as_wide(&self, birth: u64, other: u64) -> bool {
        self.tops.iter().filter_map(|t| t.vdev.widths()).all(|w| w.at(birth) == w.at(other))
    }

    /// Has an expansion be as far as an uberblock says.
    pub fn note_reflow(&self, ub: &Uberblock) {
        self.tops.iter().filter_map(|t| t.vdev.widths()).for_each(|w| w.note_reflow(ub));
    }

    /// Begins to write at places (vdev, offset and bytes of a block).
    pub(crate) async fn enter_to_write(&self, places: &[(u32, u64, u64)]) -> Entry {
        let entry = self.enter(places).await;
        Entry { writer: self.enter_gates(places).await, ..entry }
    }

    /// Begins I/O at places (vdev, offset and bytes of a block): while the entry is there sectors
    /// stay where it says.
    pub(crate) async fn enter(&self, places: &[(u32, u64, u64)]) -> Entry {
        let mut entry = Entry::default();
        let mut known: SmallVec<[(u32, &Widths, Ranges); 1]> = SmallVec::new();
        for &(id, offset, size) in places {
            let Some(top) = self.tops.get(id as usize) else { continue };
            let Layout::Raidz { widths, units, nparity } = &top.layout else { continue };
            if !known.iter().any(|k| k.0 == id) {
                known.push((id, widths, Ranges::new()));
                entry.strangers.push(widths.strangers.clone());
            }
            let Some((.., ranges)) = known.iter_mut().find(|k| k.0 == id) else { continue };
            // No block takes more; and a last row that is not full counts as if it were.
            let most = size.saturating_mul(1 + *nparity as u64) + ((units.len() as u64 + 4) << top.ashift());
            ranges.push((offset, offset.saturating_add(most)));
        }
        for (id, widths, ranges) in known {
            if let Some(reflow) = widths.reflow() {
                entry.strangers.retain(|s| !Arc::ptr_eq(s, &widths.strangers));
                entry.inside = Some((id, reflow.enter(ranges).await));
            }
        }
        entry
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn the_txg_of_birth_says_how_wide() {
        let nv = NvList::new().with("raidz_expand_txgs", vec![100u64, 200]);
        let widths = Widths::parse(&nv, 6, 1).unwrap();
        let at = [0, 99, 100, 199, 200, u64::MAX].map(|txg| widths.at(txg));
        assert_eq!(at, [4, 4, 5, 5, 6, 6]);
        let mut back = NvList::new();
        widths.generate(&mut back);
        assert_eq!(back.u64s("raidz_expand_txgs"), Some(&[100u64, 200][..]));
        let mut going_on = nv;
        going_on.add_flag("raidz_expanding");
        let widths = Widths::parse(&going_on, 7, 1).unwrap();
        assert_eq!((widths.at(5), widths.at(300)), (4, 6), "the last child is not counted yet");
    }

    #[test]
    fn impossible_histories_are_refused() {
        let list = |txgs: Vec<u64>| NvList::new().with("raidz_expand_txgs", txgs);
        assert!(Widths::parse(&list(vec![5, 5]), 6, 1).is_err());
        assert!(Widths::parse(&list(vec![6, 5]), 6, 1).is_err());
        assert!(Widths::parse(&list(vec![1, 2, 3]), 5, 2).is_err());
        assert!(Widths::parse(&list(vec![1, 2]), 5, 2).is_ok());
        assert!(Widths::parse(&NvList::new().with("raidz_expand_txgs", 7u64), 5, 2).is_err());
    }
}
