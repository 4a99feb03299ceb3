//! Hot spares as the tree sees them: which stand in for others, which devices need one, and whether
//! those that wait are there.
//!
//! A spare that waits is a node of its own list, and its leaf has no device: it is opened to be
//! labelled and to be looked at only, since other pools may have it too. In use it is a node of the
//! tree as well, of the same guid, with another leaf.

use std::path::PathBuf;
use std::sync::Arc;

use super::leaf::Leaf;
use super::node::{Vdev, VdevKind};
use super::open::OpenArgs;
use super::probe::probe_path;
use super::tree::VdevTree;
use super::within::{OPEN_TIMEOUT, within};
use super::{VdevAux, VdevState};
use crate::error::{Errno, Error, Result};

impl VdevTree {
    /// Whether the spare stands in for a device of this pool.
    pub fn is_active_spare(&self, guid: u64) -> bool {
        self.root.walk().iter().any(|v| v.guid == guid && v.is_spare())
    }

    /// Opens a device that is to become a spare, to be labelled.
    pub async fn open_spare(&self, leaf: &Arc<Leaf>) -> Result<()> {
        self.open_leaf(leaf, &OpenArgs { write: true, ..OpenArgs::default() }).await;
        match leaf.open_error() {
            Some(e) => Err(e),
            None if leaf.writable() => Ok(()),
            None => {
                let what = format!("{}: cannot be opened for writing, or is in use", leaf.path());
                Err(Error::os(Errno::Busy, what))
            }
        }
    }

    /// Finds out whether a spare that waits is there.
    pub async fn look_at_spare(&self, vdev: &Arc<Vdev>) {
        let Some(leaf) = &vdev.leaf else { return };
        if vdev.kind == VdevKind::Dspare {
            let top = vdev.config_u64("top_guid").and_then(|guid| self.find(guid));
            let its = |t: &Arc<Vdev>| t.draid().is_some() && t.state().0 >= VdevState::Degraded;
            let there = top.is_some_and(|t| its(&t));
            let state = if there { VdevState::Healthy } else { VdevState::CantOpen };
            leaf.set_unusable(state, if there { VdevAux::None } else { VdevAux::OpenFailed });
            return;
        }
        let path = PathBuf::from(leaf.path());
        let (state, aux) = match within(&self.env, OPEN_TIMEOUT, probe_path(&self.env, &path)).await {
            None | Some(Err(_)) => (VdevState::CantOpen, VdevAux::OpenFailed),
            Some(Ok(Some((device, label)))) if label.guid() == Some(vdev.guid) => {
                leaf.set_psize(zilla_ondisk::label::usable_size(device.size()));
                (VdevState::Healthy, VdevAux::None)
            }
            Some(Ok(_)) => (VdevState::CantOpen, VdevAux::CorruptData),
        };
        // It takes no I/O, whatever its state.
        leaf.set_unusable(state, aux);
    }

    /// Guids and paths of devices that have failed and are not being replaced. Those that do not
    /// answer are left out: who opened them would wait too.
    pub fn failed_leaves(&self) -> Vec<(u64, String)> {
        let tops = self.tops.iter().filter(|t| t.vdev.is_concrete());
        let replaced = |guid| self.parent_of(guid).is_some_and(|p| p.kind == VdevKind::Replacing);
        tops.flat_map(|t| t.vdev.walk())
            .filter(|v| !v.is_spare() && !replaced(v.guid))
            .filter_map(|v| {
                v.leaf.as_ref().filter(|l| has_failed(l) && !l.is_hung()).map(|l| (v.guid, l.path()))
            })
            .collect()
    }

    /// Guids and paths of devices that have failed, where what they held is still to be had from
    /// others, and no spare that works stands in for them yet.
    pub fn in_need_of_spares(&self) -> Vec<(u64, String)> {
        let tops = self.tops.iter().filter(|t| !t.vdev.is_log && t.vdev.is_concrete());
        let alive = tops.filter(|t| t.vdev.state().0 >= VdevState::Degraded);
        let mut all = Vec::new();
        for v in alive.flat_map(|t| t.vdev.walk()) {
            let Some(leaf) = v.leaf.as_ref().filter(|l| has_failed(l)) else { continue };
            let Some(parent) = self.parent_of(v.guid) else { continue };
            let works = |v: &Arc<Vdev>| v.leaf.as_ref().is_some_and(|l| !has_failed(l));
            let wants = match parent.kind {
                VdevKind::Replacing => false,
                // Beside spares only another one can stand.
                VdevKind::Spare => v.is_spare() && !parent.children.iter().any(works),
                _ => true,
            };
            if wants {
                all.push((v.guid, leaf.path()));
            }
        }
        all
    }
}

fn has_failed(leaf: &Leaf) -> bool {
    match leaf.state() {
        (VdevState::Faulted | VdevState::Removed | VdevState::CantOpen, _) => true,
        (state, aux) => state == VdevState::Degraded && aux == VdevAux::ErrExceeded,
    }
}
