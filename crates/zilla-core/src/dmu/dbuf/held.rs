//! Layers that a sync could not put on disk: they wait for another txg, or are held below all
//! others until the block can be written ([`super::super::held`]).

use super::{Dbuf, HELD, Layer, LayerData, joined};
use crate::dmu::range::RangeSet;
use crate::types::Txg;
use smallvec::SmallVec;

impl Dbuf {
    /// Whether there is a layer that a sync could not put on disk.
    pub(crate) fn is_held(&self) -> bool {
        self.layers.first().is_some_and(|l| l.txg == HELD)
    }

    /// The memory of the held layer.
    pub(crate) fn held_bytes(&self) -> usize {
        self.layers.first().filter(|l| l.txg == HELD).map_or(0, |l| l.data.bytes())
    }

    /// The memory of all layers.
    pub(crate) fn changed_bytes(&self) -> usize {
        self.layers.iter().map(|l| l.data.bytes()).sum()
    }

    /// Which bytes of the block the held layer knows.
    pub(crate) fn held_ranges(&self) -> SmallVec<[(u64, u64); 2]> {
        match self.layers.first().filter(|l| l.txg == HELD) {
            Some(layer) => layer.data.known(),
            None => SmallVec::new(),
        }
    }

    /// Which bytes of the block no txg has put on disk. Of a hole they are all.
    pub(crate) fn changed_ranges(&self) -> SmallVec<[(u64, u64); 2]> {
        let mut all = RangeSet::default();
        for layer in &self.layers {
            if matches!(layer.data, LayerData::Hole) {
                return smallvec::smallvec![(0, u64::MAX)];
            }
            layer.data.known().into_iter().for_each(|(from, to)| all.insert(from, to));
        }
        all.iter().collect()
    }

    /// The layer of `txg` cannot be put on disk: it is held, over what was held before. It was
    /// [detached](Dbuf::detach), or is given up.
    pub(crate) fn hold(&mut self, txg: Txg) {
        let Some(at) = self.layers.iter().position(|l| l.txg == txg) else { return };
        let upper = self.layers.remove(at);
        let lower = if self.is_held() { Some(self.layers.remove(0)) } else { None };
        let layer = match lower {
            Some(lower) => joined(lower, upper),
            None => upper,
        };
        self.layers.insert(0, Layer { txg: HELD, ahead: None, ..layer });
    }

    /// Forgets what is held: the object's user was told that it is lost.
    pub(crate) fn give_up(&mut self) {
        self.layers.retain(|l| l.txg != HELD);
    }

    /// Forgets what `txg` made of the block: the object's user is told that it is lost.
    pub(crate) fn lose(&mut self, txg: Txg) {
        self.layers.retain(|l| l.txg != txg);
    }

    /// The layer of `txg`, which was [detached](Dbuf::detach), is to be synced with the next txg's:
    /// its object cannot be written in this one.
    pub(crate) fn postpone(&mut self, txg: Txg) {
        let Some(at) = self.layers.iter().position(|l| l.txg == txg) else { return };
        let next = txg.next();
        if self.layers.get(at + 1).is_none_or(|l| l.txg != next) {
            self.layers[at].txg = next;
            self.layers[at].ahead = None;
            return;
        }
        let lower = self.layers.remove(at);
        let upper = self.layers.remove(at);
        self.layers.insert(at, joined(lower, upper));
    }
}
