//! The last txgs: how long each was open, waited and was synced, and what its sync read and wrote.
//!
//! A record begins with its txg and is at most [`MOST`] txgs old; `zfs_txg_history` says how many
//! are kept, and with 0 nothing is noted. It is told to people, and nothing is decided by it, so a
//! crash loses nothing that matters.

use crate::tunables::TXG_HISTORY;
use crate::types::Txg;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;

/// Records that are kept at most, whatever is set.
const MOST: u64 = 10_000;

/// What devices did so far: reads and writes, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
}

/// What is known of a txg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxgRecord {
    pub txg: u64,
    /// When it was opened, when it was closed, when its last holder left, when its sync began, and
    /// when that ended; by the pool's clock, as far as it has come.
    pub times: Vec<Duration>,
    /// Bytes that were dirty when its sync began.
    pub dirty: u64,
    /// What the devices did during its sync.
    pub io: DeviceIo,
}

/// Steps of a txg, in the order of [`TxgRecord::times`].
pub(super) const STEPS: usize = 5;

#[derive(Default)]
pub(super) struct TxgHistory(Mutex<VecDeque<TxgRecord>>);

impl TxgHistory {
    /// A txg is open from now on.
    pub(super) fn opened(&self, txg: Txg, now: Duration) {
        let kept = TXG_HISTORY.get().min(MOST) as usize;
        let mut all = self.0.lock();
        if kept > 0 {
            let mut times = Vec::with_capacity(STEPS);
            times.push(now);
            all.push_back(TxgRecord { txg: txg.0, times, dirty: 0, io: DeviceIo::default() });
        }
        let over = all.len().saturating_sub(kept);
        drop(all.drain(..over));
    }

    /// A txg has taken its next step.
    pub(super) fn step(&self, txg: Txg, now: Duration) {
        self.change(txg, |r| {
            if r.times.len() < STEPS {
                r.times.push(now);
            }
        });
    }

    /// Its sync begins, with so many bytes dirty and the devices having done this so far.
    pub(super) fn sync_begins(&self, txg: Txg, now: Duration, dirty: u64, before: DeviceIo) {
        self.step(txg, now);
        self.change(txg, |r| (r.dirty, r.io) = (dirty, before));
    }

    /// Its sync has ended.
    pub(super) fn sync_ends(&self, txg: Txg, now: Duration, after: DeviceIo) {
        self.step(txg, now);
        self.change(txg, |r| {
            // A device that left took its counters along.
            r.io = DeviceIo {
                reads: after.reads.saturating_sub(r.io.reads),
                read_bytes: after.read_bytes.saturating_sub(r.io.read_bytes),
                writes: after.writes.saturating_sub(r.io.writes),
                written_bytes: after.written_bytes.saturating_sub(r.io.written_bytes),
            };
        });
    }

    pub(super) fn get(&self) -> Vec<TxgRecord> {
        self.0.lock().iter().cloned().collect()
    }

    fn change(&self, txg: Txg, change: impl FnOnce(&mut TxgRecord)) {
        if let Some(record) = self.0.lock().iter_mut().rev().find(|r| r.txg == txg.0) {
            change(record);
        }
    }
}

/// Whether anything is to be noted.
pub(crate) fn is_kept() -> bool {
    TXG_HISTORY.get() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_grows_with_its_txg_and_old_ones_go() {
        let history = TxgHistory::default();
        let at = Duration::from_nanos;
        history.opened(Txg(7), at(10));
        history.step(Txg(7), at(15));
        history.opened(Txg(8), at(15));
        history.step(Txg(7), at(16));
        history.sync_begins(Txg(7), at(18), 4096, DeviceIo { writes: 3, ..DeviceIo::default() });
        history.sync_ends(Txg(7), at(30), DeviceIo { writes: 8, written_bytes: 512, ..DeviceIo::default() });
        // It is over: nothing more becomes of it.
        history.step(Txg(7), at(99));
        let all = history.get();
        assert_eq!(all[0].times, [10, 15, 16, 18, 30].map(at));
        assert_eq!((all[0].dirty, all[0].io.writes, all[0].io.written_bytes), (4096, 5, 512));
        assert_eq!((all[1].txg, all[1].times.len()), (8, 1));
        (9..1000).for_each(|txg| history.opened(Txg(txg), at(txg)));
        let all = history.get();
        assert_eq!(all.len() as u64, TXG_HISTORY.get());
        assert_eq!(all.last().map(|r| r.txg), Some(999));
    }
}
