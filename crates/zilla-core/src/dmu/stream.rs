//! The bytes of one object as a stream: what files and volumes have in common.
//!
//! What readers will ask for next is read ahead ([`Zfetch`]). A write takes over the caller's
//! buffers where they hold whole records and copies only the ragged ends; it never reads.
//! [`in_tx`](super::in_tx) is the loop such operations run in. Freeing a range, whose ends may be
//! anywhere, is [`Dnode::free_range`].
//!
//! **Crash.** All a call changes lies in the caller's txg.

use super::counts::count;
use super::dnode::Dnode;
use super::fault::Now;
use super::tree::epbs;
use super::write_props::Prefetch;
use super::zfetch::{Hit, Seen, Streams};
use crate::error::Result;
use crate::txg::Tx;
use crate::types::Bookmark;
use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_env::{Env, IoBuf};

/// What was read: pieces of shared buffers, in order.
pub type ReadData = SmallVec<[Bytes; 2]>;

/// A task reads ahead so many bytes: what has to be decrypted or decompressed is, on several cores.
const AHEAD_TASK: u64 = 1 << 20;
/// What is read ahead may take so many times what these blocks may: they have an eighth of the
/// memory, and those that they have no room for stay in the cache below them.
const AHEAD_TIMES: u64 = 4;

/// A piece of what was written.
pub(crate) struct Written {
    pub at: u64,
    pub data: Bytes,
    /// How many of its bytes were handed over and count as dirty data from now on. Those of a
    /// record that was dirty before take the place of others, which a log record may still hold.
    pub shared: u64,
}

/// Where the readers of an object are, from the first one that does not read all of it at once.
#[derive(Debug, Default)]
pub struct Zfetch {
    streams: Mutex<Option<Box<Streams>>>,
}

impl Zfetch {
    fn read(&self, off: u64, len: u64, size: u64, largest: u64) -> Seen {
        let mut streams = self.streams.lock();
        if streams.is_none() && off == 0 && len >= size {
            return Seen::only(Hit::Miss);
        }
        streams.get_or_insert_default().read(off, len, size, largest)
    }
}

impl Dnode {
    /// The bytes at `off`, if they are in memory. `past`: who reads goes past the cache.
    pub(crate) fn read_at(self: &Arc<Self>, off: u64, len: usize, past: bool) -> Now<ReadData> {
        let mut out = ReadData::new();
        if len > 0 {
            self.read_shared(off, len, &mut out)?;
            let stats = &self.shared.cache.streams;
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

    /// Begins to load what the reader of `len` bytes at `off` will ask for next, if that shows; the
    /// object's contents end at `size`. To be called once for a read: when the bytes were read, or
    /// when they are about to be waited for, so that nothing that is read ahead comes before them.
    pub(crate) fn read_ahead(self: &Arc<Self>, env: &Env, zfetch: &Zfetch, off: u64, len: u64, size: u64) {
        let wanted = Prefetch::from_prop(self.shared.prefetch.load(Ordering::Relaxed).into());
        if len == 0 || crate::tunables::PREFETCH_DISABLE.get() != 0 || wanted == Prefetch::None {
            return;
        }
        let cache = &self.shared.cache;
        let largest = cache.shares.largest(cache.limit() as u64 * AHEAD_TIMES);
        let Seen { hit, wanted: ranges, stream } = zfetch.read(off, len, size, largest);
        if !ranges.is_empty() {
            cache.shares.note(Arc::as_ptr(self).addr(), stream);
        }
        let stats = &cache.streams;
        match hit {
            Hit::Next => count(&stats.hits, 1),
            Hit::Future => count(&stats.future, 1),
            Hit::Stride => count(&stats.stride, 1),
            Hit::Past => count(&stats.past, 1),
            Hit::Miss => count(&stats.misses, 1),
            Hit::Full => count(&stats.max_streams, 1),
            Hit::Again => (),
        }
        ranges.into_iter().for_each(|range| self.load_range_ahead(env, range, wanted));
    }

    fn load_range_ahead(self: &Arc<Self>, env: &Env, range: Range<u64>, wanted: Prefetch) {
        let blksz = u64::from(self.blksz().max(1));
        let blocks = range.start / blksz..=((range.end - 1) / blksz).min(self.maxblkid());
        let (level, blocks) = match wanted {
            Prefetch::All | Prefetch::None => (0, self.not_here(blocks)),
            // The blocks that lead to the data.
            Prefetch::Metadata => {
                let inner = self.inner.lock();
                if inner.phys.nlevels < 2 {
                    return;
                }
                let shift = epbs(inner.head.indblkshift);
                (1, (blocks.start() >> shift..=blocks.end() >> shift).collect())
            }
        };
        let each = (AHEAD_TASK / blksz).max(1) as usize;
        for blocks in blocks.chunks(each) {
            let (dnode, blocks) = (self.clone(), blocks.to_vec());
            env.spawn(async move {
                let (stats, n) = (&dnode.shared.cache.streams, blocks.len() as u64);
                count(&stats.ahead_blocks, n);
                count(&stats.ahead_active, n);
                // A block that cannot be read will be asked for again by whoever needs it, and
                // report why.
                let _ = join_all(blocks.into_iter().map(|b| dnode.load_ahead(level, b))).await;
                stats.ahead_active.fetch_sub(n, Ordering::Relaxed);
            });
        }
    }

    /// Those of some blocks whose contents are not in memory.
    fn not_here(&self, blocks: RangeInclusive<u64>) -> Vec<u64> {
        let inner = self.inner.lock();
        let is_here = |b: &u64| inner.dbufs.get(b).is_some_and(|db| db.base_known() || db.hides_base());
        blocks.filter(|b| !is_here(b)).collect()
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
    fn records_of(&self, off: u64, len: u64) -> RangeInclusive<u64> {
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
}
