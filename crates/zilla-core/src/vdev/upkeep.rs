//! Initializing and trimming of a leaf: how far it is, and which of its bytes a stretch of its
//! top-level's space is.
//!
//! Here is only what is known of it; `spa/upkeep.rs` does it, and keeps it in the leaf's ZAP.

use super::leaf::Leaf;
use super::tree::{Layout, Top, Unit};
use event_listener::Event;
use parking_lot::Mutex;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpkeepKind {
    /// Free space is overwritten once, so that the device has it.
    Initialize,
    /// The device is told what is free.
    Trim,
}

/// As OpenZFS numbers them on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpkeepState {
    #[default]
    None,
    Active,
    Canceled,
    Suspended,
    Complete,
}

impl UpkeepState {
    /// What another number would mean is not known: as if nothing had been done.
    pub fn of(number: u64) -> UpkeepState {
        match number {
            1 => UpkeepState::Active,
            2 => UpkeepState::Canceled,
            3 => UpkeepState::Suspended,
            4 => UpkeepState::Complete,
            _ => UpkeepState::None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpkeepStat {
    pub state: UpkeepState,
    /// When the state changed last; of one that was resumed, when it began.
    pub action_time: u64,
    /// Up to where it has come, in the leaf's data.
    pub reached: u64,
    /// Bytes that were done, and those and what is still to be done.
    pub done: u64,
    pub estimate: u64,
    pub errors: u64,
    /// Bytes a second; 0: as fast as it goes.
    pub rate: u64,
}

#[derive(Default)]
struct Inner {
    stat: UpkeepStat,
    running: bool,
    halt: bool,
}

/// One of the two of a leaf.
#[derive(Default)]
pub struct Upkeep {
    inner: Mutex<Inner>,
    changed: Event,
}

impl Upkeep {
    pub fn stat(&self) -> UpkeepStat {
        self.inner.lock().stat
    }

    pub fn update(&self, change: impl FnOnce(&mut UpkeepStat)) {
        change(&mut self.inner.lock().stat);
    }

    /// Whether it may begin to run: it is to, and does not. The caller runs it then.
    pub(crate) fn take_up(&self) -> bool {
        let mut inner = self.inner.lock();
        let take = inner.stat.state == UpkeepState::Active && !inner.running;
        if take {
            (inner.running, inner.halt) = (true, false);
        }
        take
    }

    pub(crate) fn put_down(&self) {
        self.inner.lock().running = false;
        self.changed.notify(usize::MAX);
    }

    /// Whether who runs it must end.
    pub(crate) fn must_end(&self) -> bool {
        let inner = self.inner.lock();
        inner.halt || inner.stat.state != UpkeepState::Active
    }

    /// Ends what runs, and waits for that.
    pub(crate) async fn halt(&self) {
        self.inner.lock().halt = true;
        loop {
            let listener = self.changed.listen();
            if !self.inner.lock().running {
                return;
            }
            listener.await;
        }
    }
}

impl Top {
    /// Whether it is known which bytes of a leaf a stretch of space is.
    pub fn has_places(&self) -> bool {
        let known = matches!(self.layout, Layout::Plain(_) | Layout::Raidz { .. } | Layout::Draid { .. });
        known && !self.vdev.is_expanding()
    }

    /// The bytes of a leaf's data (starts and ends, ascending) in which a stretch of the
    /// top-level's space lies. What it has for a distributed spare is not among them.
    pub fn places_on(&self, leaf: &Leaf, start: u64, end: u64) -> Vec<(u64, u64)> {
        let column = |units: &[Unit]| {
            let has = |l: &Arc<Leaf>| l.index == leaf.index;
            units.iter().position(|u| u.leaves.iter().any(has))
        };
        let place = match &self.layout {
            Layout::Plain(_) => (start, end),
            Layout::Raidz { units, .. } => {
                let Some(column) = column(units) else { return Vec::new() };
                let (column, width, ashift) = (column as u64, units.len() as u64, self.ashift());
                // Sector number n lies in row n / width of column n % width.
                let row = |sector: u64| sector.saturating_sub(column).div_ceil(width);
                (row(start >> ashift) << ashift, row(end >> ashift) << ashift)
            }
            Layout::Draid { draid, units } => {
                let places = column(units).map(|child| draid.places_on(child, start, end, self.ashift()));
                return places.unwrap_or_default();
            }
            _ => return Vec::new(),
        };
        if place.0 < place.1 { vec![place] } else { Vec::new() }
    }

    /// The part of free space that lies on one leaf.
    pub fn share_of(&self, free: u64) -> u64 {
        match &self.layout {
            Layout::Raidz { units, .. } => free / (units.len() as u64).max(1),
            Layout::Draid { draid, .. } => free / draid.shape.ndisks().max(1),
            _ => free,
        }
    }
}
