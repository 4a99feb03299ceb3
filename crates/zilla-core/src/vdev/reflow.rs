//! How far the sectors of a RAID-Z that is being expanded have been moved, and who may do I/O where
//! they are being moved.
//!
//! Sector n goes from child n % old, row n / old, to child n % new, row n / new (`widths.rs`), in
//! ascending order. Two offsets say where a sector is:
//!
//! ```text
//!   0 .......... synced ............ next ............ end
//!   new place    old place, and      old place
//!                written to both
//! ```
//!
//! What lies below `synced` is at its new place for good: the uberblock on disk says so. What lies
//! between has been copied, but after a crash the pool is found as the last uberblock says, so its
//! old place still counts. A row of a block that ends beyond `synced` is at its old place as a
//! whole. A sector's new place is the old one of a sector far below; it may be written to as soon
//! as no row that ends beyond `synced` reaches down to there ([`limit`]).
//!
//! **The first rows** overlap themselves. They are copied to the *scratch area* first, the 3.5M of
//! every child between its front labels and its data, which the uberblock then calls valid: from
//! there they are written to their new place.
//!
//! **Who does I/O** enters the stretch it concerns ([`Reflow::enter`]), and finds there how things
//! stand until it leaves. Who moves a stretch, or changes how things stand with it, excludes all
//! others from it ([`Reflow::exclude`]). Whom only those concern who came before some moment waits
//! for them alone ([`Reflow::drain`]). A batch of blocks enters at once, so that nobody who is
//! inside waits to get further in.
//!
//! Lock order: `inner` is a leaf. **Crash:** nothing of this is on disk but what the uberblock has.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::sync::Arc;

use event_listener::Event;
use parking_lot::Mutex;
use smallvec::SmallVec;
use zilla_ondisk::Uberblock;
use zilla_ondisk::label::VDEV_BOOT_SIZE;

use super::raidz::place;

/// The states of the scratch area that an uberblock names.
const SCRATCH_VALID: u16 = 1;
const SCRATCH_REFLOWED: u16 = 4;

/// How it stands with the first rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No scratch area counts.
    Plain,
    /// All up to `next` is in the scratch area too; the old places count.
    Copied,
    /// The uberblock says that the scratch area counts, and nothing else does below `synced`.
    Scratch,
    /// The same, but the new places have it all as well.
    Moved,
}

/// Where sectors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// In bytes of the vdev's space.
    pub synced: u64,
    pub next: u64,
    pub stage: Stage,
}

impl Position {
    /// Where a sector is, of a row that is at its old place as a whole or not, and where else it is
    /// to be written.
    pub(super) fn places(
        &self,
        sector: u64,
        ashift: u32,
        children: usize,
        is_old: bool,
    ) -> (Place, SmallVec<[Place; 1]>) {
        let new = place(sector, ashift, children);
        let scratch = (new.0, new.1.wrapping_sub(VDEV_BOOT_SIZE));
        let first = match (is_old, self.stage) {
            (true, _) => place(sector, ashift, children - 1),
            (false, Stage::Scratch) => scratch,
            (false, _) => new,
        };
        let mut extra = SmallVec::new();
        if sector < self.next >> ashift {
            if matches!(self.stage, Stage::Copied | Stage::Scratch | Stage::Moved) && first != scratch {
                extra.push(scratch);
            }
            if is_old && matches!(self.stage, Stage::Plain | Stage::Moved) {
                extra.push(new);
            }
        }
        (first, extra)
    }
}

/// The child, and the offset on it.
type Place = (usize, u64);

/// Up to where sectors may be moved while the uberblock says that all below `synced` have been. All
/// in sectors.
pub fn limit(synced: u64, old: u64) -> u64 {
    (synced + synced / old.max(1)).saturating_sub(old)
}

pub(super) type Ranges = SmallVec<[(u64, u64); 2]>;

#[derive(Debug)]
struct Inner {
    at: Position,
    /// As the last uberblock says it.
    written: Position,
    inside: BTreeMap<u64, Ranges>,
    excluded: Option<(u64, u64)>,
    /// What is moved by who excludes others may be lost.
    spoilt: bool,
    last: u64,
}

#[derive(Debug)]
pub struct Reflow {
    inner: Mutex<Inner>,
    changed: Event,
}

/// Somebody is doing I/O in some stretches.
#[derive(Debug)]
pub struct Inside {
    reflow: Arc<Reflow>,
    id: u64,
    /// How things stand there until this is dropped.
    pub at: Position,
}

/// Nobody is in a stretch.
#[derive(Debug)]
pub struct Excluded<'a> {
    reflow: &'a Reflow,
}

pub(super) fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

impl Reflow {
    /// As an uberblock says it.
    pub fn new(ub: &Uberblock) -> Reflow {
        let synced = ub.reflow_offset();
        let stage = if ub.reflow_scratch_state() == SCRATCH_VALID { Stage::Scratch } else { Stage::Plain };
        let at = Position { synced, next: synced, stage };
        let inner =
            Inner { at, written: at, inside: BTreeMap::new(), excluded: None, spoilt: false, last: 0 };
        Reflow { inner: Mutex::new(inner), changed: Event::new() }
    }

    pub fn now(&self) -> Position {
        self.inner.lock().at
    }

    /// Waits until nobody excludes others from any of these stretches, and enters them.
    pub async fn enter(self: &Arc<Self>, ranges: Ranges) -> Inside {
        loop {
            let listener = self.changed.listen();
            {
                let mut inner = self.inner.lock();
                let shut = inner.excluded.is_some_and(|e| ranges.iter().any(|r| overlap(*r, e)));
                if !shut {
                    inner.last += 1;
                    let (id, at) = (inner.last, inner.at);
                    inner.inside.insert(id, ranges);
                    return Inside { reflow: self.clone(), id, at };
                }
            }
            listener.await;
        }
    }

    /// Lets nobody into a stretch any more, and waits until those inside have left. One at a time.
    pub async fn exclude(&self, start: u64, end: u64) -> Excluded<'_> {
        let mut own = None;
        loop {
            let listener = self.changed.listen();
            {
                let mut inner = self.inner.lock();
                if own.is_none() && inner.excluded.is_none() {
                    (inner.excluded, inner.spoilt) = (Some((start, end)), false);
                    own = Some(Excluded { reflow: self });
                }
                let there = inner.inside.values().flatten().any(|r| overlap(*r, (start, end)));
                if !there && let Some(own) = own.take() {
                    return own;
                }
            }
            listener.await;
        }
    }

    /// Waits until those have left who are inside a stretch now. Others come and go meanwhile.
    pub async fn drain(&self, start: u64, end: u64) {
        let last = self.inner.lock().last;
        loop {
            let listener = self.changed.listen();
            {
                let inner = self.inner.lock();
                let mut before = inner.inside.range(..=last).flat_map(|(_, ranges)| ranges);
                if !before.any(|r| overlap(*r, (start, end))) {
                    return;
                }
            }
            listener.await;
        }
    }

    /// As the last uberblock says it.
    pub fn written(&self) -> Position {
        self.inner.lock().written
    }

    /// Changes how things stand, if they still stand as they did and nothing was taken back since
    /// others were excluded. Where that says something new, they are.
    pub fn change(&self, from: Position, to: Position) -> bool {
        let mut inner = self.inner.lock();
        let same = inner.at == from && !inner.spoilt;
        if same {
            inner.at = to;
        }
        same
    }

    /// What was moved and no uberblock says, does not count any more: some device may lack it.
    pub fn retreat(&self) -> Position {
        let mut inner = self.inner.lock();
        let written = inner.written;
        inner.spoilt = true;
        inner.at = match (inner.at.stage, written.stage) {
            (Stage::Plain, _) => Position { next: inner.at.synced, ..inner.at },
            (Stage::Copied, Stage::Copied) | (Stage::Moved, Stage::Moved) | (Stage::Scratch, _) => inner.at,
            (Stage::Copied, _) => Position { synced: 0, next: 0, stage: Stage::Plain },
            (Stage::Moved, _) => Position { stage: Stage::Scratch, ..inner.at },
        };
        written
    }

    /// An uberblock says it.
    pub fn was_written(&self, at: Position) {
        let mut inner = self.inner.lock();
        inner.written = at;
        if at.stage == Stage::Plain && inner.at.stage == Stage::Plain {
            inner.at.synced = inner.at.synced.max(at.next);
            inner.at.next = inner.at.next.max(inner.at.synced);
            inner.written.synced = at.next;
        }
    }
}

impl Position {
    /// What an uberblock says of it.
    pub fn write_to(&self, ub: &mut Uberblock) {
        let state = match self.stage {
            Stage::Plain if self.next == 0 => 0,
            Stage::Plain | Stage::Moved => SCRATCH_REFLOWED,
            Stage::Copied | Stage::Scratch => SCRATCH_VALID,
        };
        ub.set_reflow(state, self.next);
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.reflow.inner.lock().inside.remove(&self.id);
        self.reflow.changed.notify(usize::MAX);
    }
}

impl Drop for Excluded<'_> {
    fn drop(&mut self) {
        self.reflow.inner.lock().excluded = None;
        self.reflow.changed.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use zilla_env::block_on;

    #[test]
    fn what_was_moved_before_devices_failed_does_not_count() {
        let reflow = Reflow::new(&Uberblock::default());
        let at = Position { synced: 0, next: 0, stage: Stage::Plain };
        let alone = block_on(reflow.exclude(0, 4096));
        // A flush fails while the first stretch is being moved.
        reflow.retreat();
        assert!(!reflow.change(at, Position { next: 4096, ..at }), "a device may lack it");
        drop(alone);
        let alone = block_on(reflow.exclude(0, 4096));
        assert!(reflow.change(at, Position { next: 4096, ..at }));
        drop(alone);
        reflow.retreat();
        assert_eq!(reflow.now(), at);
    }

    #[test]
    fn who_waits_for_those_inside_keeps_nobody_out() {
        let reflow = Arc::new(Reflow::new(&Uberblock::default()));
        let enter = |from: u64| {
            let ranges = Ranges::from_iter([(from, from + 10)]);
            reflow.enter(ranges).now_or_never()
        };
        let (inside, apart) = (enter(5), enter(1000));
        let mut drained = Box::pin(reflow.drain(0, 100));
        assert!((&mut drained).now_or_never().is_none());
        let late = enter(7).expect("he need not wait");
        assert!((&mut drained).now_or_never().is_none());
        drop(inside);
        assert!((&mut drained).now_or_never().is_some(), "those left are elsewhere, or came later");
        drop((late, apart));
    }
}
