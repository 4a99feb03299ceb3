//! A cache device as a ring: where the next bytes go, what they overwrite, and the log that says
//! what lies there.
//!
//! ```text
//! | labels | header |  newest ... hand |  about to be overwritten  evict | oldest ... | labels |
//!                    ^ start                                                          ^ end
//! ```
//!
//! The hand moves on by what is written; before that the evict hand moves ahead of it, and what
//! lies between is forgotten. In the first round nothing is overwritten. Where what comes does not
//! fit before the end both begin anew at the start. Every [`Layout::log_entries`] blocks a log
//! block is written behind them; the header leads to the newest two, each of them to the one two
//! before it (`zilla_ondisk::l2arc`).
//!
//! What is kept true: the header that is on the device names an evict hand at or before which
//! nothing of the old round is believed, before anything is written there; a log block is named
//! only when it is written. A crash leaves the header of before: blocks written since then are not
//! found again, and what was overwritten does not have the checksum that its pointer asks for.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;
use zilla_codec::checksum::{ByteOrder, Checksum, embedded, fletcher4};
use zilla_codec::compress::{self, Compress, CompressSpec};
use zilla_env::IoBuf;
use zilla_ondisk::l2arc::{
    L2ARC_DEV_HDR_EVICT_FIRST, L2ARC_DEV_HDR_MAGIC, L2ARC_LOG_BLK_MAX_ENTRIES, L2ARC_LOG_BLK_SIZE,
    L2ARC_PERSISTENT_VERSION, L2DevHdrPhys, L2LogBlk, L2LogBlkptr, L2LogEntPhys, L2Prop,
};
use zilla_ondisk::label::{VDEV_LABEL_END_SIZE, VDEV_LABEL_START_SIZE};
use zilla_ondisk::{Field, Writer};

use crate::error::{Error, Result};
use crate::tunables;

/// log2 of the largest block.
const SPA_MAXBLOCKSHIFT: u32 = 24;

/// What is fixed about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub start: u64,
    pub end: u64,
    pub ashift: u32,
    /// Entries of a log block; 0: there is no log.
    pub log_entries: u64,
}

impl Layout {
    /// Of a device with so many usable bytes; None where nothing would fit.
    pub fn new(psize: u64, ashift: u32) -> Option<Layout> {
        let start = VDEV_LABEL_START_SIZE + Self::header_bytes(ashift);
        let end = psize.checked_sub(VDEV_LABEL_END_SIZE)?;
        if end <= start {
            return None;
        }
        let most = (end - start) >> SPA_MAXBLOCKSHIFT;
        let log_entries = if end < tunables::L2ARC_REBUILD_MIN_L2SIZE.get() {
            0
        } else {
            most.min(L2ARC_LOG_BLK_MAX_ENTRIES as u64)
        };
        Some(Layout { start, end, ashift, log_entries })
    }

    fn header_bytes(ashift: u32) -> u64 {
        (1u64 << ashift).max(L2DevHdrPhys::SIZE as u64)
    }

    pub fn header_size(&self) -> u64 {
        Self::header_bytes(self.ashift)
    }

    pub fn size(&self) -> u64 {
        self.end - self.start
    }

    pub fn asize(&self, psize: u64) -> u64 {
        psize.next_multiple_of(1 << self.ashift)
    }

    /// Whether something lies whole on the device, where sectors begin.
    pub fn holds(&self, daddr: u64, asize: u64) -> bool {
        let end = daddr.checked_add(asize);
        daddr >= self.start
            && asize > 0
            && end.is_some_and(|end| end <= self.end)
            && daddr.is_multiple_of(1 << self.ashift.min(63))
    }

    /// How far something lies behind `hand`, which is where the newest ends.
    pub fn behind(&self, hand: u64, daddr: u64) -> u64 {
        if daddr < hand { hand - daddr } else { self.size().saturating_sub(daddr - hand) }
    }
}

/// Whether `at` lies in a stretch of the ring, which may go over its end
/// (`l2arc_range_check_overlap`).
pub fn overlaps(bottom: u64, top: u64, at: u64) -> bool {
    match bottom.cmp(&top) {
        std::cmp::Ordering::Less => bottom <= at && at <= top,
        std::cmp::Ordering::Greater => at <= top || bottom <= at,
        std::cmp::Ordering::Equal => at == top,
    }
}

/// The ring's state.
#[derive(Clone, Debug)]
pub struct Rotor {
    pub layout: Layout,
    pub hand: u64,
    pub evict: u64,
    /// The first round: nothing is overwritten.
    pub first: bool,
    /// The newest two log blocks.
    pub start_lbps: [L2LogBlkptr; 2],
    /// All that are still whole, the newest first.
    pub log_blocks: VecDeque<L2LogBlkptr>,
    pub log_bytes: u64,
    entries: Vec<L2LogEntPhys>,
    payload_start: u64,
    payload_asize: u64,
}

/// A log block that is to be written.
#[derive(Clone, Debug)]
pub struct LogWrite {
    pub ptr: L2LogBlkptr,
    /// Whole sectors.
    pub data: Bytes,
    /// Bytes of the blocks that it lists.
    pub payload: u64,
}

impl Rotor {
    pub fn new(layout: Layout) -> Rotor {
        Rotor {
            layout,
            hand: layout.start,
            evict: layout.start,
            first: true,
            start_lbps: [L2LogBlkptr::default(); 2],
            log_blocks: VecDeque::new(),
            log_bytes: 0,
            entries: Vec::new(),
            payload_start: 0,
            payload_asize: 0,
        }
    }

    /// Whether a log block and all that it lists are whole (`l2arc_log_blkptr_valid`).
    pub fn is_valid(&self, ptr: &L2LogBlkptr) -> bool {
        let (asize, start) = (ptr.prop.psize(), ptr.payload_start);
        if !self.layout.holds(ptr.daddr, asize) || asize > L2ARC_LOG_BLK_SIZE as u64 {
            return false;
        }
        let end = ptr.daddr + asize - 1;
        let evicted = overlaps(start, end, self.hand)
            || overlaps(start, end, self.evict)
            || overlaps(self.hand, self.evict, start)
            || overlaps(self.hand, self.evict, end);
        start >= self.layout.start && start < self.layout.end && (!evicted || self.first)
    }

    /// The most bytes that blocks of `bytes` bytes in `blocks` pieces take with their log.
    pub fn with_log(&self, bytes: u64, blocks: u64) -> u64 {
        let logs = match self.layout.log_entries {
            0 => 0,
            n => (self.entries.len() as u64 + blocks) / n,
        };
        bytes + logs * L2ARC_LOG_BLK_SIZE as u64
    }

    /// Moves the evict hand ahead of the next `bytes`, which will then lie in one piece from the
    /// hand on. The stretches that are given up, in order.
    pub fn make_room(&mut self, bytes: u64) -> SmallVec<[Range<u64>; 2]> {
        let mut gone = SmallVec::new();
        if self.hand.saturating_add(bytes) > self.layout.end {
            gone.push(self.hand..self.layout.end);
            (self.hand, self.evict, self.first) = (self.layout.start, self.layout.start, false);
        }
        let mut to = self.hand.saturating_add(bytes).min(self.layout.end);
        if !self.first {
            self.evict = self.evict.max(to);
            to = self.evict;
        }
        // In the first round nothing should lie there, but a header that was read may have said
        // that it is the first.
        gone.push(self.hand..to);
        while self.log_blocks.back().is_some_and(|oldest| !self.is_valid(oldest)) {
            if let Some(oldest) = self.log_blocks.pop_back() {
                self.log_bytes = self.log_bytes.saturating_sub(oldest.prop.psize());
            }
        }
        gone
    }

    /// The next place of so many bytes, for which room was made.
    pub fn place(&mut self, asize: u64) -> u64 {
        let at = self.hand;
        self.hand += asize;
        at
    }

    /// Takes a block down that was placed; whether a log block is due.
    pub fn note(&mut self, entry: L2LogEntPhys, asize: u64) -> bool {
        if self.layout.log_entries == 0 {
            return false;
        }
        if self.entries.is_empty() {
            self.payload_start = entry.daddr;
        }
        self.entries.push(entry);
        self.payload_asize += asize;
        self.entries.len() as u64 >= self.layout.log_entries
    }

    /// Makes the log block of what was noted, and places it. `unwritten`: those of before that are
    /// not [`Rotor::logged`] yet, the oldest first.
    pub fn log_block(&mut self, unwritten: &[LogWrite]) -> Result<LogWrite> {
        // The one two before it, or one chain of the two would end here.
        let prev_lbp = match unwritten {
            [] => self.start_lbps[1],
            [_] => self.start_lbps[0],
            [.., two_before, _] => two_before.ptr,
        };
        let body = L2LogBlk { prev_lbp, entries: std::mem::take(&mut self.entries) };
        let raw = body.encode().map_err(|e| Error::inval(e.to_string()))?;
        let sector = 1usize << self.layout.ashift;
        let mut packed = vec![0; raw.len().saturating_sub(sector)];
        let lz4 = CompressSpec::new(Compress::Lz4);
        let (bytes, kind) = match compress::compress(lz4, &raw, &mut packed) {
            Some(n) => (packed.get(..n).unwrap_or_default(), Compress::Lz4),
            None => (&raw[..], Compress::Off),
        };
        let asize = (bytes.len() as u64).next_multiple_of(sector as u64);
        let mut buf = IoBuf::zeroed(asize as usize);
        buf.get_mut(..bytes.len()).unwrap_or_default().copy_from_slice(bytes);
        let prop = L2Prop::default()
            .with_sizes(raw.len() as u64, asize)
            .with_compress(kind as u8)
            .with_checksum(Checksum::Fletcher4 as u8);
        let ptr = L2LogBlkptr {
            daddr: self.place(asize),
            payload_asize: self.payload_asize,
            payload_start: self.payload_start,
            prop,
            cksum: fletcher4(&buf, false),
        };
        let payload = std::mem::take(&mut self.payload_asize);
        self.payload_start = 0;
        Ok(LogWrite { ptr, data: buf.into_bytes(), payload })
    }

    /// A log block is on the device: the header may lead to it.
    pub fn logged(&mut self, ptr: L2LogBlkptr) {
        self.start_lbps = [ptr, self.start_lbps[0]];
        self.log_blocks.push_front(ptr);
        self.log_bytes += ptr.prop.psize();
    }

    /// The header as it is to be written, behind the front labels.
    pub fn header(&self, pool_guid: u64, vdev_guid: u64) -> Result<Bytes> {
        let header = L2DevHdrPhys {
            magic: L2ARC_DEV_HDR_MAGIC,
            version: L2ARC_PERSISTENT_VERSION,
            spa_guid: pool_guid,
            vdev_guid,
            log_entries: self.layout.log_entries,
            evict: self.evict,
            flags: if self.first { L2ARC_DEV_HDR_EVICT_FIRST } else { 0 },
            start: self.layout.start,
            end: self.layout.end,
            start_lbps: self.start_lbps,
            lb_asize: self.log_bytes,
            lb_count: self.log_blocks.len() as u64,
            ..L2DevHdrPhys::default()
        };
        let mut raw = Writer::native(L2DevHdrPhys::SIZE);
        header.write(&mut raw);
        let raw = raw.finish();
        let mut buf = IoBuf::zeroed(self.layout.header_size() as usize);
        buf.get_mut(..raw.len()).unwrap_or_default().copy_from_slice(&raw);
        let verifier = embedded::label_verifier(VDEV_LABEL_START_SIZE);
        embedded::seal(Checksum::Label, &mut buf, &verifier, ByteOrder::NATIVE)
            .map_err(|e| Error::inval(e.to_string()))?;
        Ok(buf.into_bytes())
    }

    /// Takes over a header that was read; what is wrong with it otherwise.
    pub fn restore(&mut self, raw: &[u8], pool_guid: u64, vdev_guid: u64) -> Result<(), BadHeader> {
        let verifier = embedded::label_verifier(VDEV_LABEL_START_SIZE);
        embedded::verify(Checksum::Label, raw, &verifier).map_err(|_| BadHeader::Damaged)?;
        let (h, _) = L2DevHdrPhys::parse(raw).map_err(|_| BadHeader::Damaged)?;
        let ours = h.version == L2ARC_PERSISTENT_VERSION
            && h.spa_guid == pool_guid
            && h.vdev_guid == vdev_guid
            && h.log_entries == self.layout.log_entries
            && h.start == self.layout.start
            && h.end == self.layout.end;
        if !ours || h.evict > self.layout.end {
            return Err(BadHeader::Unsupported);
        }
        let newest = h.start_lbps[0];
        self.start_lbps = h.start_lbps;
        self.evict = h.evict.max(self.layout.start);
        self.first = h.flags & L2ARC_DEV_HDR_EVICT_FIRST != 0;
        self.hand = self.layout.start;
        if newest.daddr != 0 {
            let asize = newest.prop.psize();
            if !self.layout.holds(newest.daddr, asize) {
                return Err(BadHeader::Damaged);
            }
            self.hand = newest.daddr + asize;
        }
        // Past the hand nothing is known to be whole: a hand at the device's end begins anew.
        Ok(())
    }
}

/// Why a device's header is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHeader {
    Damaged,
    /// Whole, but of another pool, device, size or version.
    Unsupported,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn the_layout_is_openzfs_s() {
        // What OpenZFS 2.3.9 wrote on a device of 64 MiB.
        let l = Layout::new(64 << 20, 9).unwrap();
        assert_eq!((l.start, l.end, l.log_entries), (4_194_816, 66_584_576, 0));
        let l = Layout::new(100 << 30, 12).unwrap();
        assert_eq!((l.start, l.log_entries), ((4 << 20) + 4096, 1022));
        assert_eq!(Layout::new(2 << 30, 12).unwrap().log_entries, 127);
        assert!(Layout::new(4 << 20, 9).is_none());
    }

    fn entry(daddr: u64) -> L2LogEntPhys {
        L2LogEntPhys { birth: 5, daddr, prop: L2Prop::default().with_sizes(4096, 4096), ..Default::default() }
    }

    /// Writes `n` blocks of 1 MiB, and gives what was given up.
    fn fill(r: &mut Rotor, n: u64) -> Vec<Range<u64>> {
        let mut gone = Vec::new();
        for _ in 0..n {
            gone.extend(r.make_room(r.with_log(1 << 20, 1)));
            let daddr = r.place(1 << 20);
            assert!(daddr >= r.layout.start && daddr + (1 << 20) <= r.layout.end);
            if r.note(entry(daddr), 1 << 20) {
                let w = r.log_block(&[]).unwrap();
                assert_eq!(w.data.len() as u64, w.ptr.prop.psize());
                r.logged(w.ptr);
            }
        }
        gone
    }

    #[test]
    fn the_ring_goes_round_and_its_log_is_always_whole() {
        let layout = Layout::new(2 << 30, 12).unwrap();
        let mut r = Rotor::new(layout);
        let mut at = layout.start;
        for gone in fill(&mut r, 1900) {
            assert!(gone.start >= at, "the first round overwrites nothing");
            at = gone.start + (1 << 20);
        }
        assert_eq!(r.log_blocks.len(), 1900 / 127);
        let gone = fill(&mut r, 400);
        assert!(!r.first && !gone.is_empty() && gone.iter().all(|g| g.end <= layout.end));
        assert!(r.log_blocks.iter().all(|p| r.is_valid(p)));
        assert!(r.log_blocks.len() < 2300 / 127 && r.log_blocks.len() > 10);
        // A header that was read again says the same.
        let raw = r.header(7, 9).unwrap();
        let mut again = Rotor::new(layout);
        again.restore(&raw, 7, 9).unwrap();
        assert_eq!((again.evict, again.first, again.start_lbps), (r.evict, r.first, r.start_lbps));
        assert_eq!(Rotor::new(layout).restore(&raw, 8, 9), Err(BadHeader::Unsupported));
        assert_eq!(Rotor::new(layout).restore(&raw, 7, 8), Err(BadHeader::Unsupported));
        let mut torn = raw.to_vec();
        torn[100] ^= 1;
        assert_eq!(Rotor::new(layout).restore(&torn, 7, 9), Err(BadHeader::Damaged));
        let other = Layout::new(3 << 30, 12).unwrap();
        assert_eq!(Rotor::new(other).restore(&raw, 7, 9), Err(BadHeader::Unsupported));
    }

    /// However many log blocks a round makes before they are written, each leads to the one two
    /// before it.
    #[test]
    fn both_chains_go_through_all_log_blocks() {
        let mut r = Rotor::new(Layout::new(2 << 30, 12).unwrap());
        let mut all: Vec<LogWrite> = Vec::new();
        for of_round in [1, 2, 0, 3, 1, 5, 2] {
            let mut round = Vec::new();
            while round.len() < of_round {
                let daddr = r.place(4096);
                if r.note(entry(daddr), 4096) {
                    round.push(r.log_block(&round).unwrap());
                }
            }
            round.iter().for_each(|w| r.logged(w.ptr));
            all.extend(round);
        }
        let prev = |w: &LogWrite| {
            let mut whole = vec![0; L2ARC_LOG_BLK_SIZE];
            compress::decompress(Compress::Lz4, &w.data, &mut whole).unwrap();
            L2LogBlk::parse(&whole, 127).unwrap().prev_lbp.daddr
        };
        let found: Vec<u64> = all.iter().map(prev).collect();
        let wanted = [0, 0].into_iter().chain(all.iter().map(|w| w.ptr.daddr)).take(all.len());
        assert_eq!(found, wanted.collect::<Vec<_>>());
    }
}
