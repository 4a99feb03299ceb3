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
//! So before such an import writes anything else, the labels of all devices that it will write to
//! say from which txg it goes on, and what its first one is ([`WENT_ON`]); if one does not take
//! that, though it takes other writes, the import fails. In between is at least one number, the one
//! that the unknown uberblock may have: only one more txg than is known can have got anywhere. The
//! pool never has txgs of these numbers then, also if the next import, which may see other devices,
//! goes on in the same way: it begins behind what labels and uberblocks say. An uberblock of one of
//! them, wherever it is found, counts only if those who do not say this could do without those who
//! do, which then lack it; a side of a mirror that went on alone for less than a txg takes nothing
//! from the other.
//!
//! The labels that the first txg writes say it no longer. On a device that does not get them it
//! stays true, for nothing is of these numbers.
//!
//! **OpenZFS** passes it by, as it does every word in a label that it does not know, and so may
//! have a txg of the first of these numbers that no uberblock it saw has: one, for the next is
//! behind them. This counts. The labels that it writes with that txg, as it does with the first one
//! after each import, do not say it, and they count from the uberblock on, though half of a
//! device's are written after it. What still says it was away then, and the others could do without
//! it. Only if of these too many are away at the next import, so that nothing of that txg can be
//! read, is it passed by for the one before, which is whole. (Where `multihost` is on, what it sees
//! of a pool with a newer uberblock that does not count is that one, and not our heartbeats, until
//! our first txg: less time than it watches for.)
//!
//! **What labels say is believed** as far as uberblocks are, which whoever writes a label can write
//! as well: nobody's uberblock is void unless there is the one that the pool is said to have gone
//! on from. Where that one is away, and nothing as new is there, devices were written to with what
//! only those have that are away, so that what is older need not be whole: the pool is not imported
//! to be written, unless it is to go back.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::HashMap;
use std::sync::Arc;

use zilla_ondisk::NvList;

use super::label::{self, Label, PoolLabels};
use super::leaf::Leaf;
use super::resilver::newest_uberblock;
use super::tree::VdevTree;
use crate::error::{Errno, Error, Result};
use crate::types::Txg;

/// In a label's configuration: the two txgs.
const WENT_ON: &str = "zilla:went_on";
/// No pool gets there. (The next numbers are to be numbers still.)
const LAST_TXG: u64 = 1 << 62;

/// How a pool went on with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WentOn {
    /// The first txg of its own.
    pub first: u64,
    /// Where it went on from.
    pub from: u64,
}

impl WentOn {
    fn of(config: &NvList) -> Option<WentOn> {
        let [from, first] = <[u64; 2]>::try_from(config.u64s(WENT_ON)?).ok()?;
        (from < first && first <= LAST_TXG).then_some(WentOn { first, from })
    }

    fn without(&self, txg: u64) -> bool {
        self.from < txg && txg < self.first
    }
}

/// How the pool went on with a device when it was last written to, if its labels say. Some may have
/// been written again by a txg that did not come to its end, which changes nothing; or, by OpenZFS,
/// with one of which the device has the uberblock, which does.
pub(super) fn went_on(labels: &[Label], ashift: u32) -> Option<WentOn> {
    let configs = || labels.iter().filter_map(|l| l.config.as_ref());
    let said = configs().filter_map(WentOn::of).max()?;
    let newest = newest_uberblock(labels, ashift, u64::MAX);
    let own =
        |c: &NvList| c.u64("txg").is_some_and(|txg| txg.saturating_add(1) >= said.first && txg <= newest);
    (!configs().any(|c| WentOn::of(c).is_none() && own(c))).then_some(said)
}

impl VdevTree {
    /// Whether no device can have a newer uberblock than these.
    pub fn knows_all_uberblocks(&self, labels: &PoolLabels) -> bool {
        let known = |leaf: &Leaf, ashift| {
            labels.of_leaf(leaf.index).is_some_and(|labels| !label::uberblocks(labels, ashift).is_empty())
        };
        let tops = self.tops.iter().filter(|t| t.vdev.is_concrete());
        tops.flat_map(|t| t.devices().map(|l| (l, t.ashift()))).all(|(leaf, ashift)| known(leaf, ashift))
    }

    /// Has the labels say that the pool goes on from a txg and that its next one is `first`. `pool`
    /// is its part of them, as of that txg.
    pub async fn go_on_from(self: &Arc<Self>, from: Txg, first: Txg, pool: &NvList) -> Result<()> {
        let told = self.write_all_labels(&pool.clone().with(WENT_ON, vec![from.0, first.0])).await?;
        // One that takes no writes at all is not used, and gets none.
        self.settle_suspects().await;
        let devices = self.tops_for(false).flat_map(|t| t.devices());
        let untold: Vec<String> =
            devices.filter(|l| l.writable() && !told.contains(&l.index)).map(|l| l.path()).collect();
        if untold.is_empty() {
            return Ok(());
        }
        let what = format!(
            "devices that are away may have a newer state of the pool, and the labels of {} cannot be written, \
             to say so: try again, or without them",
            untold.join(", ")
        );
        Err(Error::os(Errno::Io, what))
    }

    /// Leaves out uberblocks that do not count any more.
    pub(super) fn without_void(&self, mut labels: PoolLabels) -> PoolLabels {
        let devices = self.tops.iter().flat_map(|t| t.devices().map(|l| (l.index, t.ashift())));
        let said: HashMap<usize, WentOn> = devices
            .filter_map(|(index, ashift)| Some((index, went_on(labels.of_leaf(index)?, ashift)?)))
            .collect();
        let Some(first) = said.values().map(|s| s.first).max() else { return labels };
        labels.newest = labels.newest.max(first - 1);
        let is_there = |said: &WentOn| labels.uberblocks.iter().any(|f| f.ub.txg == said.from);
        let away = said.values().filter(|s| !is_there(s)).map(|s| s.from).max();
        let without = |said: &WentOn, txg| said.without(txg) && is_there(said);
        // What is in a distributed spare lies on all devices.
        let there = |l: &Leaf| l.is_room() || labels.of_leaf(l.index).is_some();
        let lacks = |l: &Leaf, txg| match l.is_room() {
            true => said.values().any(|s| without(s, txg)),
            false => said.get(&l.index).is_some_and(|s| without(s, txg)),
        };
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
        labels.away = away;
        labels
    }
}
