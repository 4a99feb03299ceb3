//! Which leaves lack something, who takes part in the resilver that is under way, and whose DTL its
//! end empties.
//!
//! What a leaf lacks is in its DTL. Three things put it there: a write that does not reach it
//! ([`VdevTree::missed`]) or may have been lost there (`flush.rs`); being attached; and, when it is
//! opened, an uberblock that is older than its siblings', or a label that says that it was written
//! to without all that they know (`went_on.rs`). All leaves of a top-level get the same uberblocks,
//! but for those that missed something of that very txg, so the newest one on a leaf says up to
//! which txg it has everything. That holds also where no DTL says it: where a device was away when
//! the pool was in use, or other software had the pool meanwhile.
//!
//! A leaf **takes part** in a resilver if it lacks something and takes writes when the resilver
//! begins, and until it goes away. Only what these lack is read. Who does not take part gets a txg
//! behind the resilver's last into its DTL, and so does one that goes away, or to which a block
//! could not be given. So the end of a resilver, also one that went on after a restart, knows by
//! the DTL alone whose it may empty: those that reach no further than the resilver does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use zilla_ondisk::blkptr::BlkPtr;

use super::label::{self, PoolLabels};
use super::leaf::Leaf;
use super::node::Vdev;
use super::tree::{Top, VdevTree};
use super::went_on::went_on;
use crate::types::{GANG_HEADER_SIZE, TXG_DEFER_SIZE};

/// What the configuration calls the txg in which a leaf was attached that has not got everything
/// yet.
pub const RESILVER_TXG: &str = "resilver_txg";
/// The same where a sequential rebuild gives it to it.
pub const REBUILD_TXG: &str = "rebuild_txg";

/// What the configuration says of a leaf that waits for the resilver after the one under way.
const DEFERRED: &str = "com.datto:resilver_defer";

impl Leaf {
    /// Whether it lacks something and takes no part in a resilver.
    pub fn is_deferred(&self) -> bool {
        self.is_behind() && !self.resilvering.load(Ordering::Relaxed)
    }
}

impl VdevTree {
    /// Has the configuration say who waits while a resilver is under way (`under_way`): whether
    /// that changed it, and whether anybody does.
    pub fn mark_deferred(&self, under_way: bool) -> (bool, bool) {
        let (mut changed, mut any) = (false, false);
        let data = self.tops.iter().filter(|t| !t.vdev.is_log);
        for v in data.flat_map(|t| t.vdev.walk()) {
            let Some(leaf) = v.leaf.as_ref() else { continue };
            let waits = under_way && leaf.is_deferred();
            changed |= v.set_config_flag(DEFERRED, waits);
            any |= waits;
        }
        (changed, any)
    }

    /// Leaves that hold the pool's data. What log devices lack is not copied to them.
    fn data_leaves(&self) -> impl Iterator<Item = &Arc<Leaf>> {
        self.tops.iter().filter(|t| !t.vdev.is_log).flat_map(Top::leaves)
    }

    /// The first and the last txg that leaves lack to which they could be given.
    pub fn missing(&self) -> Option<(u64, u64)> {
        let bounds = self.data_leaves().filter(|l| l.is_behind()).filter_map(|l| l.dtl.bounds());
        let bounds = bounds.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        // What came from a removed vdev is older than the txg that leaves lack of it.
        let moved = self.indirect().next().is_some();
        bounds.map(|(first, last)| (if moved { 0 } else { first }, last))
    }

    /// Whether there is a leaf that a new resilver would help: it lacks something, and has not just
    /// failed to take it.
    pub fn wants_resilver(&self) -> bool {
        self.data_leaves().any(|l| {
            l.is_behind() && !l.resilvering.load(Ordering::Relaxed) && !l.refused.load(Ordering::Relaxed)
        })
    }

    /// A resilver of everything born up to `max_txg` begins.
    pub fn begin_resilver(&self, max_txg: u64) {
        for leaf in self.data_leaves() {
            leaf.set_resilvers(true);
            let takes_part = leaf.is_behind();
            leaf.resilvering.store(takes_part, Ordering::Relaxed);
            leaf.refused.store(false, Ordering::Relaxed);
            leaf.scan_processed.store(0, Ordering::Relaxed);
            if !takes_part && (!leaf.writable() || !leaf.dtl.is_empty()) {
                leaf.dtl.add(max_txg + 1, max_txg + 2);
            }
        }
    }

    /// A resilver that was under way when the pool was last open goes on.
    pub fn resume_resilver(&self, max_txg: u64) {
        self.data_leaves().for_each(|leaf| leaf.set_resilvers(true));
        for leaf in self.data_leaves().filter(|l| l.is_behind()) {
            let last = leaf.dtl.bounds().map_or(0, |(_, last)| last);
            leaf.resilvering.store(last <= max_txg, Ordering::Relaxed);
        }
    }

    /// Those that lack something and do not take part in the resilver under way have to wait for
    /// the next one. `txg` is behind that resilver's last.
    pub fn defer_resilver(&self, txg: u64) {
        for leaf in self.data_leaves().filter(|l| l.is_behind() && !l.resilvering.load(Ordering::Relaxed)) {
            leaf.dtl.add(txg, txg + 1);
        }
    }

    /// To be called in every txg: who took part in the resilver and went away, or was not given a
    /// block, takes part no longer.
    pub fn note_dropouts(&self, txg: u64) {
        for leaf in self.data_leaves().filter(|l| l.resilvering.load(Ordering::Relaxed)) {
            let refused = leaf.refused.load(Ordering::Relaxed);
            if refused || !leaf.readable() || !leaf.writable() {
                leaf.dtl.add(txg, txg + 1);
            }
        }
    }

    /// To be called in every txg of a resilver of what was born up to `max_txg`: who has come to
    /// lack some of that since it began, by a write that failed, takes no part in it, also if it
    /// goes on after a restart.
    pub fn note_latecomers(&self, max_txg: u64, syncing: u64) {
        // What is being synced nobody lacks.
        if max_txg + 1 >= syncing {
            return;
        }
        for leaf in self.data_leaves().filter(|l| !l.resilvering.load(Ordering::Relaxed)) {
            if leaf.dtl.bounds().is_some_and(|(_, last)| last <= max_txg) {
                leaf.dtl.add(max_txg + 1, max_txg + 2);
            }
        }
    }

    /// Whether somebody who takes part in the resilver lacks a block.
    pub fn lacks(&self, bp: &BlkPtr) -> bool {
        let lacks = |l: &Arc<Leaf>, birth| l.resilvering.load(Ordering::Relaxed) && !l.holds(birth);
        // The pieces of a gang block may be anywhere, and may have been moved since.
        let moved = self.indirect().next().is_some();
        let takes_part = |l: &Arc<Leaf>| l.resilvering.load(Ordering::Relaxed);
        let any_lacks = |l: &Arc<Leaf>| (moved && takes_part(l)) || lacks(l, bp.phys_birth());
        let gang = bp.is_gang() && self.data_leaves().any(any_lacks);
        gang || self.places(bp).any(|(top, birth)| top.leaves().any(|l| lacks(l, birth)))
    }

    /// The vdevs that a block's copies, or the headers of a gang, are on, each with the txg in
    /// which it was written there.
    fn places(&self, bp: &BlkPtr) -> impl Iterator<Item = (&Top, u64)> {
        let (psize, birth) = (bp.psize(), bp.phys_birth());
        let pieces = bp.dvas().flat_map(move |d| {
            let size = if d.gang { GANG_HEADER_SIZE } else { psize };
            let len = self.tops.get(d.vdev as usize).map_or(0, |t| t.psize_to_asize(size, birth));
            self.resolve(d.vdev, d.offset, len, birth).unwrap_or_default()
        });
        pieces.filter_map(|p| Some((self.tops.get(p.vdev as usize)?, p.birth)))
    }

    /// A block (or all below one, if there is no pointer) could not be given to those who lack it.
    pub fn not_resilvered(&self, bp: Option<&BlkPtr>) {
        let moved = self.indirect().next().is_some();
        for leaf in self.data_leaves().filter(|l| l.resilvering.load(Ordering::Relaxed)) {
            let concerned = bp.is_none_or(|bp| {
                let on = |top: &Top| top.leaves().any(|l| Arc::ptr_eq(l, leaf));
                let gang = bp.is_gang() && (moved || !leaf.holds(bp.phys_birth()));
                gang || self.places(bp).any(|(top, birth)| !leaf.holds(birth) && on(top))
            });
            if concerned {
                leaf.refused.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The resilver is over. If it is complete, leaves that took part in all of it have everything
    /// born up to `max_txg`, provided that it is stable there. Whether the configuration changed.
    pub async fn end_resilver(&self, complete: bool, max_txg: u64) -> bool {
        self.data_leaves().for_each(|leaf| leaf.set_resilvers(false));
        self.end_below(&self.root, complete, max_txg).await
    }

    /// The same of a node and what is below it.
    pub(super) async fn end_below(&self, node: &Arc<Vdev>, complete: bool, max_txg: u64) -> bool {
        let mut changed = false;
        for v in node.walk() {
            let Some(leaf) = v.leaf.as_ref() else { continue };
            if !leaf.resilvering.swap(false, Ordering::Relaxed) || !complete {
                continue;
            }
            let reaches = leaf.dtl.bounds().is_some_and(|(_, last)| last <= max_txg);
            let whole = reaches && leaf.is_behind() && !leaf.refused.load(Ordering::Relaxed);
            if whole && self.is_stable(leaf).await {
                self.pass_on(leaf, max_txg);
                leaf.dtl.remove(0, max_txg + 1);
                for name in [RESILVER_TXG, REBUILD_TXG] {
                    changed |= v.config_u64(name).is_some();
                    v.remove_config(name);
                }
            }
        }
        changed
    }

    /// Puts into the DTLs what uberblocks say that leaves missed. `last` is the txg the pool is
    /// opened at.
    pub fn note_outdated(&self, labels: &PoolLabels, last: u64) {
        for top in &self.tops {
            let of = |leaf: &Arc<Leaf>| labels.of_leaf(leaf.index);
            // What a device has of a txg that does not count is as if it were not there.
            let newest =
                |leaf: &Arc<Leaf>| of(leaf).map(|own| newest_of(own, top.ashift(), last, &labels.void));
            let Some(best) = top.leaves().filter_map(newest).max() else { continue };
            let ours = top.leaves().filter(|l| newest(l) == Some(best)).find_map(of);
            for leaf in top.leaves() {
                let (Some(labels), Some(ours)) = (of(leaf), ours) else { continue };
                if was_used_alone(leaf, newest(leaf).unwrap_or(0)) || parted(labels, ours, top.ashift(), last)
                {
                    self.distrust(leaf, last.max(best));
                }
            }
            let behind: Vec<(&Arc<Leaf>, u64)> =
                top.leaves().filter_map(|l| Some((l, newest(l).filter(|own| *own < best)?))).collect();
            // No uberblock goes out before its txg is stable on as many children as it takes. So if
            // more are without it than redundancy covers, a cut came between their uberblocks. Of
            // those that lack only the last one some may have missed something of the txg: that is
            // in their DTLs then, which lie in it. (Sides of a child, as while it is replaced, may
            // be away all together.)
            let is_behind = |l: &Arc<Leaf>| behind.iter().any(|(b, _)| Arc::ptr_eq(b, l));
            let missed = top.units().iter().filter(|u| {
                u.leaves.iter().any(is_behind) && !u.leaves.iter().any(|l| newest(l) == Some(best))
            });
            let cut = match top.vdev.kind.nparity() {
                Some(nparity) if missed.count() > nparity => behind.iter().map(|(_, own)| *own).max(),
                _ => None,
            };
            for (leaf, own) in behind.into_iter().filter(|(_, own)| cut != Some(*own)) {
                #[cfg(feature = "planted")]
                if crate::planted::is(crate::planted::Bug::NotResilvered) {
                    continue;
                }
                tracing::info!(path = %leaf.path(), own, best, "the device missed txgs");
                leaf.dtl.add(own + 1, last.max(best) + 1);
            }
            // What was begun there of a txg that did not come to its end may lie over these.
            for leaf in top.leaves() {
                if let Some(said) = of(leaf).and_then(|labels| went_on(labels, top.ashift())) {
                    leaf.dtl.add(said.from + 1, said.first.min(last.max(best) + 1));
                }
            }
        }
    }

    /// A device has been given txgs of another history than the pool's: both sides of a mirror were
    /// in use, each without the other. What the two have of the same txgs and places differs, also
    /// of blocks from before they parted, whose space the other has used again. So it is given
    /// everything.
    fn distrust(&self, leaf: &Arc<Leaf>, last: u64) {
        let path = leaf.path();
        tracing::warn!(path, "the device was used without the others of its vdev: it is given everything");
        leaf.dtl.add(0, last + 1);
    }

    /// The same for one that comes back to a pool in use, whose open txg is `newest` (0: not known)
    /// and whose labels these are. Not if it has a newer state of the pool than what is in use: it
    /// may be what somebody wants to keep.
    pub(super) async fn note_return(&self, leaf: &Arc<Leaf>, labels: &[label::Label], newest: u64) -> bool {
        let found = self.tops.iter().find(|t| t.leaves().any(|l| Arc::ptr_eq(l, leaf)));
        let Some(top) = found else { return true };
        let own = newest_uberblock(labels, top.ashift(), u64::MAX);
        if newest != 0 && own > newest {
            tracing::error!(
                path = %leaf.path(),
                own,
                newest,
                "the device has a newer state of the pool than what is in use, and is not taken back: \
                 export the pool and import it with this device alone, or clear its label and attach \
                 it anew"
            );
            return false;
        }
        let mut best = own;
        let mut foreign = was_used_alone(leaf, own);
        for other in top.devices().filter(|l| !Arc::ptr_eq(l, leaf) && l.readable()) {
            if let Some(device) = other.device() {
                let ours = label::read_labels(&device).await;
                best = best.max(newest_uberblock(&ours, top.ashift(), u64::MAX));
                foreign |= parted(labels, &ours, top.ashift(), u64::MAX);
            }
        }
        if foreign {
            self.distrust(leaf, best);
        }
        leaf.dtl.add(own + 1, best + 1);
        // It may have missed nothing of any txg and still not have been given something: it takes
        // no part any more, also if what is under way goes on after a restart. That may have begun
        // in the txg that is being synced.
        if leaf.dropped_out.swap(false, Ordering::Relaxed) {
            leaf.dtl.add(best + 1, best + 3);
        }
        true
    }
}

/// Whether a device has uberblocks of txgs that it was not given, so many that space freed in them
/// was used again. (One that lacks everything is given that anyway.)
fn was_used_alone(leaf: &Leaf, own: u64) -> bool {
    let alone = |&(start, end): &(u64, u64)| start > 0 && own < end && own >= start + TXG_DEFER_SIZE as u64;
    leaf.dtl.ranges().iter().any(alone)
}

/// Whether a device's newest txg is another one than that of the same number on the pool's.
fn parted(theirs: &[label::Label], ours: &[label::Label], ashift: u32, max: u64) -> bool {
    let own = newest_uberblock(theirs, ashift, max);
    let roots = |labels| {
        let found = label::uberblocks(labels, ashift).into_iter().filter(|f| f.ub.txg == own);
        found.filter(|f| !f.ub.is_heartbeat()).map(|f| f.ub.rootbp)
    };
    let Some(root) = roots(theirs).next() else { return false };
    roots(ours).next().is_some_and(|other| other != root)
}

/// The txg of a leaf's newest uberblock that is not newer than `max`; 0 without any.
pub(super) fn newest_uberblock(labels: &[label::Label], ashift: u32, max: u64) -> u64 {
    newest_of(labels, ashift, max, &[])
}

/// The same without some.
fn newest_of(labels: &[label::Label], ashift: u32, max: u64, void: &[u64]) -> u64 {
    let mut found = label::uberblocks(labels, ashift);
    // A heartbeat tells of a txg that it is not part of.
    found.retain(|f| !f.ub.is_heartbeat() && !void.contains(&f.ub.txg));
    label::best_uberblock(&found, max).map_or(0, |f| f.ub.txg)
}
