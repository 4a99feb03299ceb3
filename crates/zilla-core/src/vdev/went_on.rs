//! Imports that do not go on from the newest state of a pool.
//!
//! A cut can come when a txg's uberblock has reached one device only. If that device is away at the
//! next import the pool goes on from the txg before, and writes where blocks of that txg lie, for
//! all it knows is that nobody has these places. Should the power go again before the first txg of
//! its own is whole, and that device be back, then the device's uberblock would be the newest, and
//! what it leads to would be gone: blocks of files, or of the MOS, without which there is no pool.
//! It is the same after an import that went back to an older txg on purpose. (OpenZFS takes the
//! newest uberblock there is.)
//!
//! So before such an import writes anything else, the labels of the devices that it has say from
//! which txg it goes on, and what its first one is ([`WENT_ON`]). In between is at least one
//! number, the one that the unknown uberblock may have: only one more txg than is known can have
//! got anywhere. The pool never has txgs of these numbers then. An uberblock of one of them,
//! wherever it is found, counts only if those who do not say this could do without those who do,
//! which then lack it; a side of a mirror that went on alone for less than a txg takes nothing from
//! the other.
//!
//! The labels that the first txg writes say it no longer. On a device that does not get them it
//! stays true, for nothing is of these numbers. OpenZFS passes it by, as it does every word in a
//! label that it does not know.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::HashMap;

use zilla_ondisk::NvList;

use super::label::{self, Label, PoolLabels};
use super::leaf::Leaf;
use super::tree::VdevTree;
use crate::error::Result;
use crate::types::Txg;

/// In a label's configuration: the two txgs.
const WENT_ON: &str = "zilla:went_on";

/// From which txg the pool went on with a device, and its first one after that, if its labels say.
/// (Some may have been written again by a txg that did not come to its end.)
pub(super) fn went_on(labels: &[Label]) -> Option<(u64, u64)> {
    let configs = labels.iter().filter_map(|l| l.config.as_ref());
    configs
        .filter_map(|c| <[u64; 2]>::try_from(c.u64s(WENT_ON)?).ok())
        .map(|[from, first]| (from, first))
        .max()
}

impl VdevTree {
    /// Whether no device can have a newer uberblock than these.
    pub fn knows_all_uberblocks(&self, labels: &PoolLabels) -> bool {
        let known = |leaf: &Leaf, ashift| {
            let of = labels.labels.iter().find(|(index, _)| *index == leaf.index);
            of.is_some_and(|(_, labels)| !label::uberblocks(labels, ashift).is_empty())
        };
        let tops = self.tops.iter().filter(|t| t.vdev.is_concrete());
        tops.flat_map(|t| t.devices().map(|l| (l, t.ashift()))).all(|(leaf, ashift)| known(leaf, ashift))
    }

    /// Has the labels say that the pool goes on from a txg and that its next one is `first`. `pool`
    /// is its part of them, as of that txg.
    pub async fn go_on_from(&self, from: Txg, first: Txg, pool: &NvList) -> Result<()> {
        self.write_all_labels(&pool.clone().with(WENT_ON, vec![from.0, first.0])).await
    }

    /// Leaves out uberblocks that do not count any more.
    pub(super) fn without_void(&self, mut labels: PoolLabels) -> PoolLabels {
        let said: HashMap<usize, (u64, u64)> =
            labels.labels.iter().filter_map(|(index, labels)| Some((*index, went_on(labels)?))).collect();
        if said.is_empty() {
            return labels;
        }
        let there = |l: &Leaf| labels.labels.iter().any(|(index, _)| *index == l.index);
        let lacks =
            |l: &Leaf, txg| said.get(&l.index).is_some_and(|(from, first)| *from < txg && txg < *first);
        let is_void = |txg| {
            let mut tops = self.tops_for(false);
            tops.any(|t| t.survives(|l| there(l)) && !t.survives(|l| there(l) && !lacks(l, txg)))
        };
        let void: Vec<u64> = labels.uberblocks.iter().map(|f| f.ub.txg).filter(|txg| is_void(*txg)).collect();
        for txg in &void {
            tracing::warn!(txg, "the pool went on without this txg: it does not count");
        }
        labels.uberblocks.retain(|f| !void.contains(&f.ub.txg));
        labels.void = void;
        labels
    }
}
