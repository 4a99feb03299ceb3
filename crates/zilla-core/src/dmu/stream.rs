//! The bytes of one object as a stream: what files and volumes have in common.
//!
//! A reader that goes on where it stopped ([`Cursor`]) finds what comes next in memory already. A
//! write takes over the caller's buffers where they hold whole records and copies only the ragged
//! ends; it never reads. [`in_tx`](super::in_tx) is the loop such operations run in. Freeing a
//! range, whose ends may be anywhere, is [`Dnode::free_range`].
//!
//! **Crash.** All a call changes lies in the caller's txg.

use super::counts::count;
use super::dnode::Dnode;
use super::fault::Now;
use super::tree::epbs;
use super::write_props::Prefetch;
use crate::error::Result;
use crate::txg::Tx;
use crate::types::Bookmark;
use bytes::Bytes;
use futures_util::future::join_all;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zilla_env::{Env, IoBuf};

/// What was read: pieces of shared buffers, in order.
pub type ReadData = SmallVec<[Bytes; 2]>;

/// How far a sequential reader is read ahead, in bytes.
const READ_AHEAD: u64 = 8 << 20;
/// Of them a task reads so many: what has to be decrypted or decompressed is, on several cores.
const AHEAD_TASK: u64 = 1 << 20;

/// A piece of what was written.
pub(crate) struct Written {
    pub at: u64,
    pub data: Bytes,
    /// How many of its bytes were handed over and count as dirty data from now on. Those of a
    /// record that was dirty before take the place of others, which a log record may still hold.
    pub shared: u64,
}

/// Where the readers of an object are. One that goes on where the last read ended is sequential.
#[derive(Debug, Default)]
pub struct Cursor {
    /// Where the last read ended.
    end: AtomicU64,
    /// Up to where a sequence of reads was read ahead.
    ahead: AtomicU64,
}

impl Cursor {
    /// What to read ahead for a read of `len` bytes at `off`, which was not in memory.
    fn next(&self, off: u64, len: u64, size: u64) -> Option<Range<u64>> {
        let sequential = self.end.load(Ordering::Relaxed) == off && off > 0;
        if !sequential {
            self.ahead.store(0, Ordering::Relaxed);
            return None;
        }
        let from = self.ahead.load(Ordering::Relaxed).max(off + len);
        let to = (off + len).saturating_add(READ_AHEAD).min(size);
        if from >= to {
            return None;
        }
        self.ahead.store(to, Ordering::Relaxed);
        Some(from..to)
    }
}

impl Dnode {
    /// The bytes at `off`, if they are in memory. `past`: who reads goes past the cache.
    pub(crate) fn read_at(
        self: &Arc<Self>,
        cursor: &Cursor,
        off: u64,
        len: usize,
        past: bool,
    ) -> Now<ReadData> {
        let mut out = ReadData::new();
        if len > 0 {
            self.read_shared(off, len, &mut out)?;
            let stats = &self.shared.cache.streams;
            let last = cursor.end.swap(off + len as u64, Ordering::Relaxed);
            count(if last == off && off > 0 { &stats.sequential } else { &stats.elsewhere }, 1);
            let (blocks, bytes) = match past {
                true => (&stats.direct_read_blocks, &stats.direct_read_bytes),
                false => (&stats.read_blocks, &stats.read_bytes),
            };
            count(blocks, self.blocks_of(off, len as u64));
            count(bytes, len as u64);
        }
        Ok(out)
    }

    /// Blocks that a range of bytes touches.
    fn blocks_of(&self, off: u64, len: u64) -> u64 {
        let blksz = u64::from(self.blksz().max(1));
        if len == 0 { 0 } else { (off + (len - 1)) / blksz + 1 - off / blksz }
    }

    /// Begins to load what a sequential reader of `len` bytes at `off` will ask for next; the
    /// object's contents end at `size`.
    pub(crate) fn read_ahead(self: &Arc<Self>, env: &Env, cursor: &Cursor, off: u64, len: u64, size: u64) {
        let wanted = Prefetch::from_prop(self.shared.prefetch.load(Ordering::Relaxed).into());
        if crate::tunables::PREFETCH_DISABLE.get() != 0 || wanted == Prefetch::None {
            return;
        }
        let Some(range) = cursor.next(off, len, size) else { return };
        let (dnode, blksz) = (self.clone(), u64::from(self.blksz().max(1)));
        let (level, shift) = match wanted {
            Prefetch::All | Prefetch::None => (0, 0),
            // The blocks that lead to the data.
            Prefetch::Metadata => {
                let inner = self.inner.lock();
                if inner.phys.nlevels < 2 {
                    return;
                }
                (1, epbs(inner.head.indblkshift))
            }
        };
        let (first, last) = ((range.start / blksz) >> shift, ((range.end - 1) / blksz) >> shift);
        let each = (AHEAD_TASK / blksz).max(1);
        for from in (first..=last).step_by(each as usize) {
            let (dnode, to) = (dnode.clone(), last.min(from + each - 1));
            env.spawn(async move {
                let (stats, blocks) = (&dnode.shared.cache.streams, to + 1 - from);
                count(&stats.ahead_blocks, blocks);
                count(&stats.ahead_active, blocks);
                // A block that cannot be read will be asked for again by whoever needs it, and
                // report why.
                let _ = join_all((from..=to).map(|b| dnode.load_ahead(level, b))).await;
                stats.ahead_active.fetch_sub(blocks, Ordering::Relaxed);
            });
        }
    }

    /// Brings the blocks of a range into memory, all at once.
    pub(crate) async fn load_range(self: &Arc<Self>, off: u64, len: u64) -> Result<()> {
        let loads = self.records_of(off, len).map(|b| self.load(0, b));
        join_all(loads).await.into_iter().collect()
    }

    /// The same past the cache.
    pub(crate) async fn load_range_once(self: &Arc<Self>, off: u64, len: u64) -> Result<()> {
        let loads = self.records_of(off, len).map(|b| self.load_once(b));
        join_all(loads).await.into_iter().collect()
    }

    /// The whole records of a range go past the cache when the open txg writes them. Who writes a
    /// part of a record may well write the rest of it next.
    fn write_past(&self, tx: &Tx, whole: Range<u64>) {
        let blksz = u64::from(self.blksz().max(1));
        for blkid in whole.start / blksz..whole.end / blksz {
            let block = Bookmark::new(self.shared.objset, self.id(), 0, blkid);
            self.shared.store.note_past(tx.txg(), block);
        }
    }

    /// The blocks that a range lies in, as far as there are any.
    fn records_of(&self, off: u64, len: u64) -> std::ops::RangeInclusive<u64> {
        let blksz = u64::from(self.blksz().max(1));
        let last = (off.saturating_add(len).saturating_sub(1) / blksz).min(self.maxblkid());
        off / blksz..=last
    }

    /// Writes buffers, one behind the other. Returns the same bytes in pieces of which none holds a
    /// part only of a record that is written whole. `past`: who writes goes past the cache.
    pub(crate) fn write_pieces(
        self: &Arc<Self>,
        tx: &Tx,
        off: u64,
        data: &[Bytes],
        past: bool,
    ) -> SmallVec<[Written; 2]> {
        let blksz = u64::from(self.blksz());
        let pieces = with_whole_records(off, data, blksz);
        let (stats, len) = (&self.shared.cache.streams, data.iter().map(|d| d.len() as u64).sum());
        let whole = match past {
            true => whole_records(off, len, blksz),
            false => off..off,
        };
        let direct = self.blocks_of(whole.start, whole.end.saturating_sub(whole.start));
        if direct > 0 {
            self.write_past(tx, whole);
            count(&stats.direct_written_blocks, direct);
            count(&stats.direct_written_bytes, direct * blksz);
        }
        count(&stats.written_blocks, self.blocks_of(off, len) - direct);
        count(&stats.written_bytes, len - direct * blksz);
        let write = |(at, d): (u64, &Bytes)| {
            let shared = self.write_records(tx, at, d);
            Written { at, data: d.clone(), shared }
        };
        placed(off, &pieces).map(write).collect()
    }

    /// Writes with whole records handed over and the ragged ends copied. Returns what
    /// [`Written::shared`] is.
    pub(crate) fn write_records(self: &Arc<Self>, tx: &Tx, off: u64, data: &Bytes) -> u64 {
        let blksz = u64::from(self.blksz());
        let (mut done, mut shared) = (0, 0);
        while done < data.len() {
            let at = off + done as u64;
            let within = at % blksz;
            let n = ((blksz - within) as usize).min(data.len() - done);
            if within == 0 && n as u64 == blksz {
                if self.write_block(tx, at / blksz, data.slice(done..done + n)) {
                    shared += n as u64;
                }
            } else {
                self.write(tx, at, &data.slice(done..done + n));
            }
            done += n;
        }
        shared
    }
}

/// Pieces, one behind the other, and where in the object each comes to lie.
fn placed(mut off: u64, pieces: &[Bytes]) -> impl Iterator<Item = (u64, &Bytes)> {
    pieces.iter().map(move |d| {
        let at = off;
        off += d.len() as u64;
        (at, d)
    })
}

/// The records that a range of bytes has all of; it ends before it begins where there are none.
fn whole_records(off: u64, len: u64, blksz: u64) -> Range<u64> {
    off.next_multiple_of(blksz)..(off + len) / blksz * blksz
}

/// The same bytes in pieces of which none holds a part only of a record that is written whole.
fn with_whole_records(off: u64, data: &[Bytes], blksz: u64) -> Cow<'_, [Bytes]> {
    let len: u64 = data.iter().map(|d| d.len() as u64).sum();
    let whole = whole_records(off, len, blksz);
    let is_cut = |at: u64| !at.is_multiple_of(blksz) && whole.contains(&at);
    if !placed(off, data).any(|(at, _)| is_cut(at)) {
        return Cow::Borrowed(data);
    }
    let mut out = Vec::with_capacity(data.len() + 2);
    let mut record = Vec::new();
    for (mut at, d) in placed(off, data) {
        let mut d = d.clone();
        while !d.is_empty() {
            let part = d.split_to(d.len().min((blksz - at % blksz) as usize));
            let (from, len) = (at, part.len() as u64);
            at += len;
            if len == blksz || !whole.contains(&from) {
                out.push(part);
                continue;
            }
            record.push(part);
            if at.is_multiple_of(blksz) {
                out.push(joined(&record, blksz as usize));
                record.clear();
            }
        }
    }
    Cow::Owned(out)
}

fn joined(parts: &[Bytes], len: usize) -> Bytes {
    let mut buf = IoBuf::scratch(len);
    let mut rest = &mut *buf;
    for part in parts {
        let (here, behind) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = behind;
    }
    buf.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_whole_record_is_cut(off in 0..3000u64, cuts in prop::collection::vec(0..1500usize, 1..8)) {
            const BLKSZ: u64 = 512;
            let mut next = 0u32;
            let byte = |n: &mut u32| {
                *n += 1;
                (*n % 251) as u8
            };
            let data: Vec<Bytes> =
                cuts.iter().map(|n| (0..*n).map(|_| byte(&mut next)).collect::<Vec<u8>>().into()).collect();
            let pieces = with_whole_records(off, &data, BLKSZ);
            prop_assert_eq!(pieces.concat(), data.concat());
            let end = off + data.concat().len() as u64;
            for (at, d) in placed(off, &pieces) {
                let record = at / BLKSZ * BLKSZ;
                let whole = off <= record && record + BLKSZ <= end;
                prop_assert!(!whole || at == record || d.is_empty(), "a piece begins within a whole record, at {}", at);
            }
        }
    }

    #[test]
    fn only_who_goes_on_where_the_last_read_ended_is_read_ahead() {
        const SIZE: u64 = 100 << 20;
        let cursor = Cursor::default();
        assert_eq!(cursor.next(0, 4096, SIZE), None, "the first read may be the only one");
        cursor.end.store(4096, Ordering::Relaxed);
        assert_eq!(cursor.next(8192, 4096, SIZE), None, "it went elsewhere");
        assert_eq!(cursor.next(4096, 4096, SIZE), Some(8192..8192 + READ_AHEAD));
        cursor.end.store(8192, Ordering::Relaxed);
        assert_eq!(
            cursor.next(8192, 4096, SIZE),
            Some(8192 + READ_AHEAD..12288 + READ_AHEAD),
            "no block twice"
        );
        cursor.end.store(SIZE - 4096, Ordering::Relaxed);
        assert_eq!(cursor.next(SIZE - 4096, 4096, SIZE), None, "there is nothing behind the end");
    }
}
