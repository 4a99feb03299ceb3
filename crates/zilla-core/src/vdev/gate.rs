//! Who writes where a sequential rebuild copies.
//!
//! A rebuild copies what is in use, whatever it is, and a block may be given a place long before it
//! is written: a txg's when it is synced, the intent log's when somebody waits for it. Were it
//! written while what was there before is being copied, the copy would hide it. So a top-level that
//! is being rebuilt has a *gate*. Who writes a block enters the stretch it takes and leaves when
//! all devices have it; who copies a stretch shuts it, which waits for those inside and keeps
//! others out. What is written before a stretch is shut is copied with it. What is written
//! afterwards goes to the new device too.
//!
//! Who began to write while there was no gate is a *stranger*. A rebuild waits until there are
//! none. A batch of blocks enters a gate at once, and several gates in the order of their vdevs, so
//! that nobody who is inside waits for one who waits for him.
//!
//! Lock order: `inner` and `State` are leaves. **Crash:** nothing of this is on disk.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use event_listener::Event;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use super::reflow::{Ranges, overlap};
use super::tree::VdevTree;

#[derive(Debug, Default)]
struct Inner {
    /// Held by who writes without having entered a gate.
    strangers: Arc<()>,
    /// The same of those who began before some gate was put up: they know nothing of later ones
    /// either.
    older: Vec<Weak<()>>,
    /// By the number of the top-level.
    gates: BTreeMap<u32, Arc<Gate>>,
}

/// A pool's gates. All its trees share them.
#[derive(Debug, Default)]
pub struct Gates {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    inside: BTreeMap<u64, Ranges>,
    shut: BTreeMap<u64, (u64, u64)>,
}

#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Event,
}

/// There is a gate until this is dropped.
#[derive(Debug)]
pub struct Kept {
    gates: Arc<Gates>,
    top: u32,
    gate: Arc<Gate>,
    strangers: Vec<Weak<()>>,
}

/// Somebody writes to some stretches.
#[derive(Debug)]
pub struct Within {
    gate: Arc<Gate>,
    id: u64,
}

/// Nobody writes to a stretch.
#[derive(Debug)]
pub struct Shut {
    gate: Arc<Gate>,
    id: u64,
}

/// What is to be held by who writes.
#[derive(Debug, Default)]
pub struct Writer {
    #[expect(dead_code, reason = "held")]
    stranger: Option<Arc<()>>,
    #[expect(dead_code, reason = "held")]
    within: SmallVec<[Within; 1]>,
}

impl Gates {
    /// Puts up a top-level's gate.
    pub fn keep(self: &Arc<Self>, top: u32) -> Kept {
        let mut inner = self.inner.write();
        let gate = Arc::new(Gate::default());
        inner.gates.insert(top, gate.clone());
        let taken = std::mem::take(&mut inner.strangers);
        inner.older.retain(|s| s.strong_count() > 0);
        inner.older.push(Arc::downgrade(&taken));
        Kept { gates: self.clone(), top, gate, strangers: inner.older.clone() }
    }
}

impl Kept {
    /// Whether somebody writes who did not enter.
    pub fn has_strangers(&self) -> bool {
        self.strangers.iter().any(|s| s.strong_count() > 0)
    }

    pub async fn shut(&self, start: u64, end: u64) -> Shut {
        self.gate.shut(start, end).await
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut inner = self.gates.inner.write();
        if inner.gates.get(&self.top).is_some_and(|g| Arc::ptr_eq(g, &self.gate)) {
            inner.gates.remove(&self.top);
        }
    }
}

impl Gate {
    /// Waits until no stretch of these is shut, and enters them.
    async fn enter(self: &Arc<Self>, ranges: Ranges) -> Within {
        loop {
            let listener = self.changed.listen();
            {
                let mut state = self.state.lock();
                let shut = state.shut.values().any(|s| ranges.iter().any(|r| overlap(*r, *s)));
                if !shut {
                    state.last += 1;
                    let id = state.last;
                    state.inside.insert(id, ranges);
                    return Within { gate: self.clone(), id };
                }
            }
            listener.await;
        }
    }

    async fn shut(self: &Arc<Self>, start: u64, end: u64) -> Shut {
        let own = {
            let mut state = self.state.lock();
            state.last += 1;
            let id = state.last;
            state.shut.insert(id, (start, end));
            Shut { gate: self.clone(), id }
        };
        loop {
            let listener = self.changed.listen();
            let there = self.state.lock().inside.values().flatten().any(|r| overlap(*r, (start, end)));
            if !there {
                return own;
            }
            listener.await;
        }
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        self.gate.state.lock().inside.remove(&self.id);
        self.gate.changed.notify(usize::MAX);
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        self.gate.state.lock().shut.remove(&self.id);
        self.gate.changed.notify(usize::MAX);
    }
}

impl VdevTree {
    /// Begins to write at places (vdev, offset and bytes of a block).
    pub(super) async fn enter_gates(&self, places: &[(u32, u64, u64)]) -> Writer {
        let mut known: SmallVec<[(u32, Arc<Gate>, Ranges); 1]> = SmallVec::new();
        let stranger = {
            let inner = self.gates.inner.read();
            for (id, gate) in &inner.gates {
                let mut ranges = Ranges::new();
                for &(_, offset, size) in places.iter().filter(|p| p.0 == *id) {
                    let asize =
                        self.tops.get(*id as usize).map_or(size, |t| t.psize_to_asize(size, u64::MAX));
                    ranges.push((offset, offset.saturating_add(asize)));
                }
                if !ranges.is_empty() {
                    known.push((*id, gate.clone(), ranges));
                }
            }
            inner.strangers.clone()
        };
        let mut within = SmallVec::new();
        for (_, gate, ranges) in known {
            within.push(gate.enter(ranges).await);
        }
        Writer { stranger: Some(stranger), within }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use zilla_env::block_on;

    #[test]
    fn a_stretch_is_either_written_or_copied() {
        let gates = Arc::new(Gates::default());
        let stranger = gates.inner.read().strangers.clone();
        let kept = gates.keep(0);
        let between = gates.inner.read().strangers.clone();
        let later = gates.keep(1);
        assert!(kept.has_strangers() && later.has_strangers());
        drop(between);
        assert!(later.has_strangers(), "one from before the first gate knows nothing of the second");
        drop(stranger);
        assert!(!kept.has_strangers() && !later.has_strangers(), "who comes now finds the gates");
        let between = gates.inner.read().strangers.clone();
        assert!(!kept.has_strangers() && !later.has_strangers());
        drop((between, later));
        let gate = gates.inner.read().gates.get(&0).unwrap().clone();
        let ranges = |start, end| Ranges::from_slice(&[(start, end)]);
        let inside = block_on(gate.enter(ranges(0, 8)));
        let mut shut = Box::pin(kept.shut(4, 12));
        assert!(shut.as_mut().now_or_never().is_none(), "somebody writes there");
        let mut late = Box::pin(gate.enter(ranges(8, 16)));
        assert!(late.as_mut().now_or_never().is_none(), "it is to be copied");
        let elsewhere = block_on(gate.enter(ranges(12, 16)));
        drop(inside);
        let shut = block_on(shut);
        assert!(late.as_mut().now_or_never().is_none(), "it is being copied");
        drop(shut);
        drop((block_on(late), elsewhere));
        drop(kept);
        assert!(gates.inner.read().gates.is_empty());
    }
}
