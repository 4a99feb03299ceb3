//! The pool's history: a ring of packed nvlists, the record of `zpool create` kept for ever before
//! it.
//!
//! ```text
//! 0               pool_create_len                 phys_max_off
//! | zpool create | ring: (length:8 LE, nvlist)... |
//! ```
//!
//! `bof` and `eof` are logical: they only grow, and are taken modulo the ring. The bonus changes in
//! the same txg as the records, so a crash leaves the ring as one txg or the next had it.

use crate::bytes::phys;
use crate::error::{FormatError, Problem, Result};
use crate::nvlist::NvList;

phys! {
    /// The bonus of the history object.
    pub struct HistoryPhys("spa_history_phys") {
        pool_create_len: u64,
        phys_max_off: u64,
        bof: u64,
        eof: u64,
        records_lost: u64,
    }
}

/// A part of the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub offset: u64,
    pub len: u64,
}

impl HistoryPhys {
    /// Finds numbers that cannot be, before anything is computed with them.
    pub fn check(&self) -> Result<()> {
        let bad = |field, v, why| Err(FormatError::impossible("spa_history_phys", field, 0, v, why));
        if self.pool_create_len >= self.phys_max_off {
            return bad("sh_pool_create_len", self.pool_create_len, "no ring is left");
        }
        if self.phys_max_off > crate::MAX_COUNTED_BYTES || self.eof > crate::MAX_COUNTED_BYTES {
            return bad("sh_eof", self.eof, "larger than any pool");
        }
        if self.bof > self.eof {
            return bad("sh_bof", self.bof, "behind the end");
        }
        if self.pool_create_len > 0 && self.bof < self.pool_create_len {
            return bad("sh_bof", self.bof, "before the ring");
        }
        if self.eof - self.bof > self.phys_max_off - self.pool_create_len {
            return bad("sh_eof", self.eof, "more than the ring holds");
        }
        Ok(())
    }

    /// Where `len` logical bytes from `offset` lie: one part, or two where the ring ends. Offsets
    /// within the record of `zpool create` are where they are. Of numbers that
    /// [`HistoryPhys::check`] refuses, nothing is given.
    pub fn spans(&self, offset: u64, len: u64) -> [Span; 2] {
        let none = Span { offset: 0, len: 0 };
        let Some(ring) = self.phys_max_off.checked_sub(self.pool_create_len).filter(|r| *r > 0) else {
            return [none; 2];
        };
        let at = match offset.checked_sub(self.pool_create_len) {
            Some(off) => off % ring + self.pool_create_len,
            None => offset,
        };
        let first = len.min(self.phys_max_off - at.min(self.phys_max_off));
        [Span { offset: at, len: first }, Span { offset: self.pool_create_len, len: (len - first).min(ring) }]
    }

    /// Bytes of the ring that are free. Before a record of at least as many is written, `bof` moves
    /// over the oldest, and `records_lost` counts them.
    pub const fn free(&self) -> u64 {
        let ring = self.phys_max_off.saturating_sub(self.pool_create_len);
        ring.saturating_sub(self.eof.saturating_sub(self.bof))
    }
}

/// The longest record that is believed.
pub const MAX_RECORD: usize = 16 << 20;

/// A record as it is written: its length, always little endian, then the nvlist in native encoding.
pub fn frame(record: &NvList) -> Vec<u8> {
    let packed = record.pack_native();
    let mut out = (packed.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(&packed);
    out
}

/// The length of the record that begins here.
pub fn record_len(head: [u8; 8]) -> Result<usize> {
    let n = u64::from_le_bytes(head);
    usize::try_from(n).ok().filter(|n| *n <= MAX_RECORD).ok_or(FormatError::impossible(
        "history record",
        "length",
        0,
        n,
        "over 16M",
    ))
}

/// Reads whole records from the front of logical bytes; gives them and how many bytes they took. A
/// record that is cut off at the end is left for the next call.
pub fn records(bytes: &[u8]) -> Result<(Vec<NvList>, usize)> {
    let (mut out, mut pos) = (Vec::new(), 0);
    while let Some(head) = bytes.get(pos..).and_then(|b| b.first_chunk()) {
        let n = record_len(*head)?;
        if n == 0 {
            return Err(FormatError::new("history record", "length", pos, Problem::Missing));
        }
        let Some(raw) = bytes.get(pos + 8..).and_then(|b| b.get(..n)) else { break };
        out.push(NvList::unpack(raw)?);
        pos += 8 + n;
    }
    Ok((out, pos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_wraps() {
        let h =
            HistoryPhys { pool_create_len: 100, phys_max_off: 1100, bof: 100, eof: 1050, records_lost: 0 };
        h.check().unwrap();
        assert_eq!(h.free(), 50);
        assert_eq!(h.spans(1050, 80), [Span { offset: 1050, len: 50 }, Span { offset: 100, len: 30 }]);
        assert_eq!(h.spans(2150, 10)[0], Span { offset: 150, len: 10 });
        assert_eq!(h.spans(0, 10)[0], Span { offset: 0, len: 10 });
        assert!(HistoryPhys { bof: 2, eof: 1, ..h }.check().is_err());
        assert!(HistoryPhys { eof: u64::MAX, ..h }.check().is_err());
        HistoryPhys { phys_max_off: 0, ..h }.spans(5, u64::MAX);
    }

    #[test]
    fn records_round_trip() {
        let a = NvList::new().with("history command", "zpool create tank").with("history time", 5u64);
        let b = NvList::new().with("history internal event", "x");
        let mut raw = frame(&a);
        raw.extend(frame(&b));
        let whole = raw.len();
        assert_eq!(records(&raw).unwrap(), (vec![a.clone(), b], whole));
        let cut = &raw[..whole - 1];
        assert_eq!(records(cut).unwrap(), (vec![a.clone()], frame(&a).len()));
        raw[..8].fill(0xff);
        assert!(records(&raw).is_err());
    }
}
