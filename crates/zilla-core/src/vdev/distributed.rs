//! Distributed spares: room on a dRAID in which what one of its children has, or had, can lie.
//!
//! Such a spare is a leaf without a device. What it holds at an offset lies at that offset of
//! another child of its dRAID, which one the dRAID's permutations say ([`Draid::spare_child`]); and
//! where that child has failed too, and has a distributed spare, at a third one.
//!
//! ```text
//!   draid1:2d:5c:1s   a   spare(b draid1-0-0)   c   d   e
//!                              |  at offset x, in whose slice d is what the spare has
//!                              +----------------------------> d at offset x
//! ```
//!
//! So nothing is ever sent to the spare itself: who reads or writes a column asks for its *sides*
//! ([`Top::sides`]), the devices that have these bytes, each with the spares by which it has them.
//! A side has a block if its device holds the txg the block was born in, and each of these spares
//! does. The spare's own DTL tells only of what it was never given; what a device missed, the
//! device's tells, for its own bytes and for those that it has for a spare. A device that fails is
//! one child less, and no more than that: in every slice either its own column is lost or the
//! spare's that lies there.
//!
//! It has no label. That it is there, and whose it is, the pool's list of spares says, and the
//! configuration in the labels of all others.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use zilla_env::Rng;
use zilla_ondisk::NvList;

use super::draid::Draid;
use super::leaf::Leaf;
use super::node::{Vdev, VdevKind};
use super::spec::new_guid;
use super::tree::{Layout, Top, Unit, VdevTree};
use crate::error::{Error, Result};

/// Which dRAID a distributed spare belongs to, and which of its spares it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Room {
    pub top: u64,
    pub spare: u64,
}

impl Room {
    pub(super) fn parse(nv: &NvList) -> Result<Room> {
        match (nv.u64("top_guid"), nv.u64("spareid")) {
            (Some(top), Some(spare)) => Ok(Room { top, spare }),
            _ => {
                let what = "a distributed spare that does not say whose it is";
                Err(Error::corrupt(None, "vdev configuration", what))
            }
        }
    }
}

/// A device that has what a unit holds at an offset.
#[derive(Clone)]
pub struct Side<'a> {
    pub leaf: &'a Arc<Leaf>,
    /// The distributed spares by which it has it.
    pub via: SmallVec<[&'a Arc<Leaf>; 1]>,
}

impl<'a> Side<'a> {
    pub fn own(leaf: &'a Arc<Leaf>) -> Side<'a> {
        Side { leaf, via: SmallVec::new() }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &'a Arc<Leaf>> + '_ {
        self.via.iter().copied().chain([self.leaf])
    }

    pub fn readable(&self) -> bool {
        self.all().all(|l| l.readable())
    }

    pub fn writable(&self) -> bool {
        self.all().all(|l| l.writable())
    }

    /// Whether it should hold a block of this birth.
    pub fn holds(&self, birth: u64) -> bool {
        self.all().all(|l| l.holds(birth))
    }

    /// A device that is away does not get what it should have for a spare: it misses that from now
    /// on.
    pub(super) fn note_absent(&self, birth: u64) {
        if let Some(away) = self.unwritable().filter(|_| !self.via.is_empty() && !self.holds(birth)) {
            away.dtl.add(birth, birth + 1);
        }
    }

    /// Who is to blame that it takes no writes.
    pub(super) fn unwritable(&self) -> Option<&'a Arc<Leaf>> {
        self.all().find(|l| !l.writable())
    }
}

/// The sides of a unit, found by way of the spares in `via`.
fn gather<'a>(
    draid: Option<&Draid>,
    units: &'a [Unit],
    (child, offset): (usize, u64),
    via: &SmallVec<[&'a Arc<Leaf>; 1]>,
    out: &mut SmallVec<[Side<'a>; 2]>,
) {
    for leaf in units.get(child).iter().flat_map(|u| &u.leaves) {
        let Some(room) = leaf.room else {
            out.push(Side { leaf, via: via.clone() });
            continue;
        };
        // Where spares stand in for each other in a ring nobody's data lies.
        if via.iter().any(|v| Arc::ptr_eq(v, leaf)) {
            continue;
        }
        if let Some(next) = draid.and_then(|d| d.spare_child(room.spare, offset)) {
            let mut via = via.clone();
            via.push(leaf);
            gather(draid, units, (next, offset), &via, out);
        }
    }
}

impl Top {
    /// The devices that have what a child holds at an offset of its data area. What is between two
    /// slices' borders has the same ones, and a column of a block is.
    pub fn sides(&self, child: usize, offset: u64) -> SmallVec<[Side<'_>; 2]> {
        let (draid, units) = match &self.layout {
            Layout::Draid { draid, units } => (Some(&**draid), &units[..]),
            Layout::Raidz { units, .. } => (None, &units[..]),
            Layout::Plain(unit) => (None, std::slice::from_ref(unit)),
            Layout::Indirect | Layout::Nothing => (None, &[][..]),
        };
        let mut out = SmallVec::new();
        gather(draid, units, (child, offset), &SmallVec::new(), &mut out);
        out
    }

    /// Its leaves that are devices.
    pub fn devices(&self) -> impl Iterator<Item = &Arc<Leaf>> {
        self.leaves().filter(|l| !l.is_room())
    }

    /// The configurations of its distributed spares, as those of a new dRAID.
    pub fn new_spares(&self, rng: &dyn Rng) -> Vec<NvList> {
        let Some(draid) = self.vdev.draid() else { return Vec::new() };
        let spare = |spare| {
            let path = format!("draid{}-{}-{spare}", draid.shape.nparity, self.id);
            let nv = NvList::new().with("type", "dspare").with("guid", new_guid(rng)).with("path", path);
            let nv = nv.with("whole_disk", 1u64).with("is_spare", 1u64);
            nv.with("top_guid", self.vdev.guid).with("spareid", spare)
        };
        (0..draid.shape.nspares).map(spare).collect()
    }
}

/// Refuses a tree in which a distributed spare is not below its own dRAID, or one is twice.
pub(super) fn check(root: &Arc<Vdev>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for top in &root.children {
        for v in top.walk().iter().filter(|v| v.kind == VdevKind::Dspare) {
            let room = v.leaf.as_ref().and_then(|l| l.room);
            let fits = room.is_some_and(|room| {
                let its = top.draid().filter(|_| top.guid == room.top);
                its.is_some_and(|d| room.spare < d.shape.nspares) && seen.insert(room)
            });
            if !fits {
                let what = "a distributed spare where it cannot be";
                return Err(Error::corrupt(None, "vdev configuration", what));
            }
        }
    }
    Ok(())
}

impl VdevTree {
    /// Has distributed spares that are in use say how large they are: as their dRAID's devices.
    pub(super) fn measure_rooms(&self) {
        for top in &self.tops {
            let size = top.devices().map(|l| l.psize()).filter(|size| *size > 0).min().unwrap_or(0);
            top.leaves().filter(|l| l.is_room()).for_each(|l| l.set_psize(size));
        }
    }

    /// A leaf is about to be said to have everything. If it is a distributed spare, devices that
    /// were not there for all of the resilver, or may have lost some of what they took, lack their
    /// parts of it from now on.
    pub(super) fn pass_on(&self, leaf: &Arc<Leaf>, max_txg: u64) {
        if !leaf.is_room() {
            return;
        }
        let whole = |l: &Arc<Leaf>| {
            let took_part = l.resilvering.load(Ordering::Relaxed) && !l.refused.load(Ordering::Relaxed);
            let reaches = l.dtl.bounds().is_none_or(|(_, last)| took_part && last <= max_txg);
            l.writable() && reaches
        };
        let is_own = |u: &Unit| u.leaves.iter().any(|l| Arc::ptr_eq(l, leaf));
        for top in &self.tops {
            let Layout::Draid { units, .. } = &top.layout else { continue };
            if !units.iter().any(is_own) {
                continue;
            }
            let others = units.iter().filter(|u| !is_own(u)).flat_map(|u| &u.leaves);
            for device in others.filter(|l| !l.is_room() && !whole(l)) {
                for (start, end) in leaf.dtl.ranges() {
                    device.dtl.add(start, end.min(max_txg + 1));
                }
            }
        }
    }

    /// Whether all that a leaf holds is stable: a distributed spare's lies on all devices beside
    /// it.
    pub(super) async fn is_stable(&self, leaf: &Arc<Leaf>) -> bool {
        if !leaf.is_room() {
            return leaf.is_stable().await;
        }
        let Some(top) = self.tops.iter().find(|t| t.leaves().any(|l| Arc::ptr_eq(l, leaf))) else {
            return false;
        };
        for device in top.devices().filter(|l| l.writable()) {
            if !device.is_stable().await {
                return false;
            }
        }
        true
    }
}

impl Leaf {
    /// Whether it is a distributed spare, which has no device.
    pub fn is_room(&self) -> bool {
        self.room.is_some()
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests;
