//! The state of a vdev, and how the states of children make their parent's.

use std::sync::atomic::{AtomicU16, Ordering};

use zilla_ondisk::enums::{VdevAux, VdevState};

/// State and reason, read on every I/O and so kept in one atomic.
pub struct StateCell(AtomicU16);

impl StateCell {
    pub fn new(state: VdevState, aux: VdevAux) -> StateCell {
        StateCell(AtomicU16::new(pack(state, aux)))
    }

    pub fn get(&self) -> (VdevState, VdevAux) {
        let v = self.0.load(Ordering::Acquire);
        let state = VdevState::from_number(u64::from(v >> 8)).unwrap_or(VdevState::Unknown);
        (state, VdevAux::from_number(u64::from(v & 0xff)).unwrap_or(VdevAux::None))
    }

    pub fn set(&self, state: VdevState, aux: VdevAux) {
        self.0.store(pack(state, aux), Ordering::Release);
    }
}

fn pack(state: VdevState, aux: VdevAux) -> u16 {
    (state.number() as u16) << 8 | aux.number() as u16
}

/// What a parent needs to know of one child.
#[derive(Clone, Copy, Debug)]
pub struct ChildState {
    pub state: VdevState,
    pub aux: VdevAux,
    /// Reads work, and writes where the pool is writable.
    pub usable: bool,
    pub is_log: bool,
}

/// The state of a vdev that survives `tolerated` unusable children (`None`: all but one).
pub fn parent(children: &[ChildState], tolerated: Option<usize>) -> (VdevState, VdevAux) {
    let faulted = children.iter().filter(|c| !c.usable).count();
    let degraded = children.iter().filter(|c| c.usable && c.state <= VdevState::Degraded).count();
    let tolerated = tolerated.unwrap_or(children.len().saturating_sub(1));
    if faulted > tolerated || children.is_empty() {
        let all_off = !children.is_empty() && children.iter().all(|c| c.state == VdevState::Offline);
        if all_off {
            (VdevState::Offline, VdevAux::ChildrenOffline)
        } else {
            (VdevState::CantOpen, VdevAux::NoReplicas)
        }
    } else if faulted + degraded > 0 {
        (VdevState::Degraded, VdevAux::None)
    } else {
        (VdevState::Healthy, VdevAux::None)
    }
}

/// The pool's: of the top-levels that hold its blocks, `needed` many, no more than `spared` may be
/// lost, and never all. A log device only degrades it.
pub fn root(children: &[ChildState], needed: usize, spared: usize) -> (VdevState, VdevAux) {
    let lost = children.iter().filter(|c| !c.usable && !c.is_log).count();
    if lost > spared || lost > 0 && lost >= needed {
        let corrupt = children.iter().any(|c| c.aux == VdevAux::CorruptData);
        (VdevState::CantOpen, if corrupt { VdevAux::CorruptData } else { VdevAux::NoReplicas })
    } else if children.iter().any(|c| !c.usable || c.state <= VdevState::Degraded) {
        (VdevState::Degraded, VdevAux::None)
    } else {
        (VdevState::Healthy, VdevAux::None)
    }
}
