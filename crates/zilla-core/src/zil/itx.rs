//! What was done and is not on disk yet: records that wait to be written, or to be forgotten
//! because their txg was synced.
//!
//! As in OpenZFS there are two kinds of waiting. What changes names goes into one list, in the
//! order in which it was done, and every commit writes all of it: so whatever leads to a file is
//! stable with the file. What changes only a file itself (writes, truncations, attributes) waits
//! with that file, and is written when someone commits the file.
//!
//! Records of three txgs wait at a time, and those of a later one may depend on those of an earlier
//! one that were pushed before. So one lock is over all: who looks at the groups or takes what they
//! have sees them at one moment, and never takes a record without those that it depends on.

use crate::txg::{Kept, Tx};
use crate::types::{TXG_SIZE, Txg};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// One record.
pub(super) struct Itx {
    pub txg: u64,
    /// Without its number, and without the data of a write. Empty: a change for which there is no
    /// record, so that its commit must wait for its txg.
    pub record: Vec<u8>,
    pub data: Bytes,
    /// Of a write: where.
    pub offset: u64,
    /// Of a write to a file that may be made in place: which.
    pub file: Option<u64>,
    /// How many bytes its record's pointer stands for.
    pub placed: u64,
    /// It changes a file's flags. These may have stood in the way of what comes next, even of the
    /// file's removal.
    pub flags: bool,
    /// The memory it takes, which is counted.
    pub kept: Option<Kept>,
}

impl Itx {
    /// A record of a change that is made in `tx`; `shared` bytes of its data are counted elsewhere.
    pub(super) fn new(tx: &Tx, record: Vec<u8>, data: Bytes, shared: u64) -> Itx {
        let own = (data.len() as u64).saturating_sub(shared);
        let kept = tx.keep((size_of::<Itx>() + record.capacity()) as u64 + own);
        Itx { txg: tx.txg().0, record, data, offset: 0, file: None, placed: 0, flags: false, kept }
    }
    pub(super) fn len(&self) -> usize {
        self.record.len() + self.data.len().next_multiple_of(8)
    }
    pub(super) fn is_barrier(&self) -> bool {
        self.record.is_empty()
    }
}

#[derive(Default)]
struct Group {
    txg: u64,
    ready: Vec<Itx>,
    with_objects: BTreeMap<u64, Vec<Itx>>,
}

/// Which commit writes a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Any.
    Next,
    /// One of this object (or of all).
    With(u64),
}

#[derive(Default)]
pub(super) struct Itxs {
    /// By txg slot.
    groups: Mutex<[Group; TXG_SIZE]>,
}

impl Itxs {
    pub(super) fn assign(&self, tx: &Tx, when: When, itx: Itx) {
        let mut groups = self.groups.lock();
        let group = &mut groups[tx.txg().slot()];
        if group.txg != tx.txg().0 {
            *group = Group { txg: tx.txg().0, ..Group::default() };
        }
        match when {
            When::Next => group.ready.push(itx),
            When::With(object) => group.with_objects.entry(object).or_default().push(itx),
        }
    }

    fn each(&self, synced: Txg, mut f: impl FnMut(&mut Group)) {
        let mut groups = self.groups.lock();
        // Older first: what depends on something is in the same txg or a later one.
        for txg in synced.0 + 1..synced.0 + TXG_SIZE as u64 {
            let group = &mut groups[Txg(txg).slot()];
            if group.txg == txg {
                f(group);
            }
        }
    }

    /// Whether a commit of `object` (of all) has anything to write.
    pub(super) fn pending(&self, synced: Txg, object: Option<u64>) -> bool {
        let mut any = false;
        self.each(synced, |g| {
            any |= !g.ready.is_empty()
                || match object {
                    Some(o) => g.with_objects.contains_key(&o),
                    None => !g.with_objects.is_empty(),
                };
        });
        any
    }

    /// Makes what waits with an object (with all) part of the next commit, whoever's that is.
    pub(super) fn make_ready(&self, synced: Txg, object: Option<u64>) {
        self.each(synced, |g| match object {
            Some(o) => {
                if let Some(list) = g.with_objects.remove(&o) {
                    g.ready.extend(list);
                }
            }
            None => {
                let all = std::mem::take(&mut g.with_objects);
                g.ready.extend(all.into_values().flatten());
            }
        });
    }

    /// Drops what waits with an object that has lost its last name, for its number may come to mean
    /// another; but its flags were changed before it could lose it, and so they are in the log.
    pub(super) fn forget(&self, synced: Txg, object: u64) {
        self.each(synced, |g| {
            if let Some(list) = g.with_objects.remove(&object) {
                g.ready.extend(list.into_iter().filter(|i| i.flags));
            }
        });
    }

    /// Whether changes of its flags wait with an object.
    pub(super) fn has_flags(&self, synced: Txg, object: u64) -> bool {
        let mut any = false;
        self.each(synced, |g| any |= g.with_objects.get(&object).is_some_and(|l| l.iter().any(|i| i.flags)));
        any
    }

    /// The highest txg of changes in the next commit for which there are no records; 0: none.
    pub(super) fn barrier(&self, synced: Txg) -> Txg {
        let mut txg = Txg(0);
        self.each(synced, |g| {
            if g.ready.iter().any(Itx::is_barrier) {
                txg = Txg(g.txg);
            }
        });
        txg
    }

    /// The last txg up to `last` with data for the next commit, and how many bytes there are up to
    /// there.
    pub(super) fn ready_bytes(&self, synced: Txg, last: Txg) -> (Txg, u64) {
        let (mut txg, mut bytes) = (synced, 0);
        self.each(synced, |g| {
            let here: u64 = g.ready.iter().map(|i| i.data.len() as u64).sum();
            if g.txg <= last.0 && here > 0 {
                (txg, bytes) = (Txg(g.txg), bytes + here);
            }
        });
        (txg, bytes)
    }

    pub(super) fn take_ready(&self, synced: Txg) -> Vec<Itx> {
        let mut out = Vec::new();
        self.each(synced, |g| out.append(&mut g.ready));
        out
    }

    /// `txg` is on disk.
    pub(super) fn clean(&self, txg: Txg) {
        let mut groups = self.groups.lock();
        let group = &mut groups[txg.slot()];
        let gone = (group.txg == txg.0).then(|| std::mem::take(group));
        drop(groups);
        // Freeing them takes a while, and nobody waits for it.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    const SYNCED: Txg = Txg(6);

    /// A record of `txg` with a number.
    fn numbered(txg: Txg, number: u64) -> (Tx, Itx) {
        let tx = Tx::syncing(txg);
        let itx = Itx { offset: number, ..Itx::new(&tx, vec![1], Bytes::new(), 0) };
        (tx, itx)
    }

    /// Record `n` of the second txg depends on record `n` of the first, so no commit may write it
    /// before.
    #[test]
    fn what_is_taken_is_never_without_what_was_pushed_before_it() {
        for when in [When::Next, When::With(3)] {
            let (itxs, over) = (Itxs::default(), AtomicBool::new(false));
            let first = Txg(SYNCED.0 + 1);
            std::thread::scope(|s| {
                s.spawn(|| {
                    for n in 1..=200_000 {
                        for txg in [first, first.next()] {
                            let (tx, itx) = numbered(txg, n);
                            itxs.assign(&tx, when, itx);
                        }
                    }
                    over.store(true, Ordering::Release);
                });
                let mut last = [0; 2];
                loop {
                    let ended = over.load(Ordering::Acquire);
                    itxs.make_ready(SYNCED, Some(3));
                    for itx in itxs.take_ready(SYNCED) {
                        last[usize::from(itx.txg != first.0)] = itx.offset;
                    }
                    assert!(last[1] <= last[0], "{when:?}: {} came without what is before it", last[1]);
                    if ended {
                        break;
                    }
                }
                assert_eq!(last, [200_000; 2]);
            });
        }
    }
}
