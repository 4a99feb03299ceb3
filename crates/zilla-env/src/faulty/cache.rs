//! A write cache that can be lost: writes are kept in memory until a flush hands them down.

use std::collections::VecDeque;

use crate::{Device, IoBuf, IoOp, IoVec};

/// Writes no flush has handed down, in order of arrival.
#[derive(Default)]
pub(super) struct Unflushed {
    writes: VecDeque<(u64, Change)>,
    next: u64,
}

#[derive(Clone)]
enum Change {
    Data(u64, IoVec),
    Zeroes(u64, u64),
}

impl Unflushed {
    /// Keeps a write (or a discard, or zeroes); `op` is one of these.
    pub(super) fn keep(&mut self, op: IoOp) {
        let change = match op {
            IoOp::Write { offset, data } => Change::Data(offset, data),
            IoOp::Discard { offset, len } | IoOp::WriteZeroes { offset, len } => Change::Zeroes(offset, len),
            IoOp::Read { .. } | IoOp::Flush => return,
        };
        self.writes.push_back((self.next, change));
        self.next += 1;
    }

    /// Lays what is kept over what was read from below.
    pub(super) fn overlay(&self, offset: u64, buf: &mut IoBuf) {
        for (_, change) in &self.writes {
            match change {
                Change::Data(at, pieces) => {
                    let mut at = *at;
                    for piece in pieces {
                        lay(offset, buf, at, piece.len() as u64, |to, from| {
                            to.copy_from_slice(&piece[from..from + to.len()])
                        });
                        at += piece.len() as u64;
                    }
                }
                Change::Zeroes(at, len) => lay(offset, buf, *at, *len, |to, _| to.fill(0)),
            }
        }
    }

    /// What a flush that starts now has to hand down, and the number to forget up to when that is
    /// done.
    fn snapshot(&self) -> (Vec<IoOp>, u64) {
        let ops = self.writes.iter().map(|(_, change)| match change.clone() {
            Change::Data(offset, data) => IoOp::Write { offset, data },
            Change::Zeroes(offset, len) => IoOp::WriteZeroes { offset, len },
        });
        (ops.collect(), self.next)
    }

    fn forget_before(&mut self, number: u64) {
        while self.writes.front().is_some_and(|(n, _)| *n < number) {
            self.writes.pop_front();
        }
    }

    /// Forgets everything; returns how many writes are lost.
    pub(super) fn lose(&mut self) -> usize {
        std::mem::take(&mut self.writes).len()
    }
}

/// The part of `buf` (which begins at `offset`) that a change at `at` covers, and from where in the
/// change.
fn lay(offset: u64, buf: &mut IoBuf, at: u64, len: u64, put: impl FnOnce(&mut [u8], usize)) {
    let from = offset.max(at);
    let to = (offset + buf.len() as u64).min(at + len);
    if from < to {
        put(&mut buf[(from - offset) as usize..(to - offset) as usize], (from - at) as usize);
    }
}

/// Hands everything down and flushes. One write after the other, because later ones may cover
/// earlier ones; and they stay in the cache, seen by reads, until all are down.
pub(super) async fn flush(cache: &parking_lot::Mutex<Unflushed>, below: &dyn Device) -> crate::IoResult {
    let (ops, number) = cache.lock().snapshot();
    for op in ops {
        below.io(op).await?;
    }
    below.io(IoOp::Flush).await?;
    cache.lock().forget_before(number);
    Ok(None)
}
