//! Packing: the records of a train into log blocks, and these on their way.
//!
//! A block holds the pointer to its successor, so that has its place before this one can be
//! written: a train's last block leads to the first of the next, whose size is guessed. Of one
//! train several blocks may be on their way at once. What no block could hold is cut.
//!
//! What is kept true: blocks leave in the order of the chain, and none before its successor is
//! allocated and both are in the chain that the header leads to ([`super::states::Chain`]); so a
//! sync that frees what is over, or gives all of it back, knows of each. What is allocated after
//! that is in no queue: its own txg frees it again.

use super::itx::Itx;
use super::log::{SIZES, Zilog};
use super::route::Sample;
use super::states::{Cargo, Waiter};
use super::stripes::Stripes;
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::Txg;
use crate::zio::{EarlyWrites, LOG_BLOCK_UNIT, LogStep};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use zilla_codec::checksum::{ByteOrder, Checksum, embedded};
use zilla_env::{IoBuf, own_thread};
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::zil::{
    LR_WRITE_SIZE, ZIL_ZC_SEQ, ZilChainPhys, put_chain, set_reclen, set_seq, set_write_range,
};
use zilla_ondisk::{Field, SPA_OLD_MAXBLOCKSIZE};

/// How long a log block can be.
const MAX_BLOCK: u64 = SPA_OLD_MAXBLOCKSIZE;
const CHAIN: usize = ZilChainPhys::SIZE;
/// Bytes of records in the largest block.
const MAX_RECORDS: usize = MAX_BLOCK as usize - CHAIN;
/// A write too long for one block is cut into pieces no smaller than this.
const MIN_PIECE: usize = 16 << 10;
/// And at the end of a sector, as long as those of any device: where the power goes between two
/// pieces, no sector is half of a write's.
const SECTOR: u64 = 4096;
/// Blocks that may be under way at once.
pub(super) const MAX_BLOCKS: usize = 16;

/// A block that is being filled.
struct Filling {
    bp: BlkPtr,
    buf: IoBuf,
    used: usize,
    /// Where its records end at the latest.
    end: usize,
    max_txg: u64,
    /// What must be stable with it.
    ahead: EarlyWrites,
    /// See [`Train::syncing`].
    syncing: Option<Txg>,
}

impl Filling {
    fn new(bp: BlkPtr, most: usize, syncing: Option<Txg>) -> Filling {
        let size = bp.psize() as usize;
        Filling {
            bp,
            buf: IoBuf::zeroed(size),
            used: CHAIN,
            end: size.min(CHAIN + most),
            max_txg: 0,
            ahead: EarlyWrites::default(),
            syncing,
        }
    }
    fn room(&self) -> usize {
        self.end.saturating_sub(self.used)
    }
    fn put(&mut self, bytes: &[u8]) {
        self.buf[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}

fn block_size(records: u64) -> u64 {
    (records + CHAIN as u64).next_multiple_of(LOG_BLOCK_UNIT).clamp(LOG_BLOCK_UNIT, MAX_BLOCK)
}

/// How much room the next train gets in its first block, from the sizes of the last (0: there were
/// not so many yet). Who commits `alone` waits for one write, and on a rotational disk a second
/// block costs more than room that is not used. Else it is written beside the first, and the room
/// is missed: the log is the sooner full, and wider.
fn guess(mut sizes: [u64; SIZES], alone: bool) -> u64 {
    sizes.sort_unstable();
    let known = &sizes[sizes.partition_point(|s| *s == 0)..];
    let size = if alone { known.last() } else { known.get(known.len() / 2) };
    size.copied().unwrap_or(0)
}

/// What goes with a train's last block.
struct End {
    waiters: Vec<Arc<Waiter>>,
    sample: Option<Sample>,
    counted: bool,
}

/// Of a block whose write is over, for those who count.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    pub ends_train: bool,
    /// The train is one of those that keep the log's device busy.
    pub counted: bool,
    pub separate: bool,
}

/// Writes a block, makes it stable and tells those who wait. It must be run to its end.
pub(super) type BlockOnItsWay = BoxFuture<'static, ()>;

/// What a train carries.
pub(super) struct Train {
    pub waiters: Vec<Arc<Waiter>>,
    pub itxs: Vec<Itx>,
    /// Among these vdevs it may be divided.
    pub vdevs: Vec<u32>,
    /// No other is under way meanwhile: the log is on a rotational disk.
    pub one_at_a_time: bool,
    /// The sync of this txg sends it, for what it could not put on disk.
    pub syncing: Option<Txg>,
}

impl Zilog {
    /// Puts records into blocks and sends these, the last one excepted. An error: from some record
    /// on nothing was sent.
    pub(super) async fn pack(self: &Arc<Self>, train: &mut Train) -> Result<BlockOnItsWay> {
        let first = self.state.lock().chain.end();
        let first = first.ok_or_else(|| Error::os(crate::error::Errno::Io, "the log was given back"))?;
        let whole_itxs = std::mem::take(&mut train.itxs);
        let (placed, ahead, sample) = self.place(&whole_itxs).await;
        // What waits for the pool's own disks leaves a log device to others, if it can have several
        // at once.
        let counted = ahead.is_empty() || train.one_at_a_time || !self.store.log().has_device();
        let mut itxs = Vec::with_capacity(whole_itxs.len());
        whole_itxs.into_iter().for_each(|i| placed.divide(i, &mut itxs));
        let mut left: u64 = itxs.iter().map(|i| i.len() as u64).sum();
        let whole = left;
        let mut vdevs = std::mem::take(&mut train.vdevs);
        let mut usual = 0;
        if !vdevs.is_empty() {
            let mut st = self.state.lock();
            usual = st.sizes.iter().copied().min().unwrap_or(0);
            if !st.worth.leaves(self.ctx.env.now(), whole) {
                vdevs.clear();
            }
        }
        let lens: Vec<usize> =
            if vdevs.is_empty() { Vec::new() } else { itxs.iter().map(Itx::len).collect() };
        let stripes = Stripes::new(vdevs, first.dva(0).vdev, &lens, usual, MAX_RECORDS);
        let mut filling = Filling::new(first, stripes.most, train.syncing);
        filling.ahead = ahead;
        let mut blocks = 0;
        for (n, mut itx) in itxs.into_iter().enumerate() {
            let len = itx.len();
            if itx.record.len() > MAX_RECORDS {
                return Err(Error::os(crate::error::Errno::TooBig, "a record longer than a log block"));
            }
            if len > filling.room() && len <= MAX_RECORDS {
                blocks += 1;
                let size = stripes.next(lens.get(n..).unwrap_or_default()).unwrap_or(left);
                let next = (block_size(size), stripes.step(blocks));
                filling = self.next_block(filling, next, stripes.most).await?;
            }
            let mut data = std::mem::take(&mut itx.data);
            let mut offset = itx.offset;
            loop {
                let mut now = data.len();
                if itx.record.len() + now.next_multiple_of(8) > filling.room() {
                    // Only what no block could hold is cut.
                    let room = filling.room().saturating_sub(itx.record.len()) / 8 * 8;
                    if room < MIN_PIECE.min(now) {
                        let need = (data.len() + LR_WRITE_SIZE) as u64;
                        let next = (block_size(left.max(need)), LogStep::default());
                        filling = self.next_block(filling, next, MAX_RECORDS).await?;
                        continue;
                    }
                    now = room - ((offset + room as u64) % SECTOR) as usize;
                }
                let part = data.split_to(now);
                let padded = part.len().next_multiple_of(8);
                let reclen = itx.record.len() + padded;
                set_reclen(&mut itx.record, reclen as u64);
                if !part.is_empty() {
                    set_write_range(&mut itx.record, offset, part.len() as u64);
                    self.count().add(|s| &s.copied, 1);
                    self.count().add(|s| &s.copied_bytes, part.len() as u64);
                }
                if itx.placed > 0 {
                    self.count().add(|s| &s.indirect, 1);
                    self.count().add(|s| &s.indirect_bytes, itx.placed);
                }
                let seq = {
                    let mut st = self.state.lock();
                    st.lr_seq += 1;
                    st.lr_seq
                };
                set_seq(&mut itx.record, seq);
                filling.put(&itx.record);
                filling.put(&part);
                filling.used += padded - part.len();
                filling.max_txg = filling.max_txg.max(itx.txg);
                self.count().add(|s| &s.records, 1);
                offset += part.len() as u64;
                left = left.saturating_sub((padded + itx.record.len()) as u64);
                if data.is_empty() {
                    break;
                }
                left += LR_WRITE_SIZE as u64;
            }
        }
        let size = {
            let mut st = self.state.lock();
            let at = st.size_at;
            if train.syncing.is_none() {
                st.sizes[at] = whole;
                st.size_at = (at + 1) % SIZES;
            }
            let alone =
                train.waiters.len() == 1 && st.trains.under_way() == 0 && st.trains.waiting().is_empty();
            if counted {
                st.trains.leave();
            }
            guess(st.sizes, alone || train.one_at_a_time)
        };
        // The last block's waiters are the train's.
        let end = End { waiters: train.waiters.clone(), sample, counted };
        let next = (block_size(stripes.next(&lens).unwrap_or(size)), stripes.after());
        match self.send_block(filling, next, Some(end)).await {
            Ok((_, last)) => Ok(last),
            Err(e) => {
                if counted {
                    self.state.lock().trains.arrive();
                }
                Err(e)
            }
        }
    }

    async fn next_block(
        self: &Arc<Self>,
        filling: Filling,
        next: (u64, LogStep),
        most: usize,
    ) -> Result<Filling> {
        loop {
            let listener = self.changed.listen();
            if self.state.lock().chain.on_their_way() < MAX_BLOCKS {
                break;
            }
            listener.await;
        }
        let syncing = filling.syncing;
        let (bp, mut block) = self.send_block(filling, next, None).await?;
        // Its write is under way before the next one's: a disk that gets them in another order
        // takes one more rotation for each. But this thread does not wait for it.
        if own_thread(Duration::ZERO, || (&mut block).now_or_never()).is_none() {
            self.ctx.env.spawn(block);
        }
        Ok(Filling::new(bp, most, syncing))
    }

    /// The txg in which the block behind `bp` is allocated. The births of a chain's blocks never
    /// descend, but where a pool that is closed has no open txg any more.
    fn txg_of_next(&self, bp: &BlkPtr, syncing: Option<Txg>) -> Result<(Txg, Option<Tx>)> {
        if let Some(txg) = syncing.filter(|txg| bp.birth() <= txg.0) {
            return Ok((txg, None));
        }
        match (self.ctx.txgs.assign_now(), syncing) {
            (Ok(tx), _) => Ok((tx.txg(), Some(tx))),
            (Err(_), Some(txg)) => Ok((txg, None)),
            (Err(e), None) => Err(e),
        }
    }

    /// Allocates the block that comes next, of some size, and completes this one, which may be the
    /// last of a train. Returns the next, and this one's way to the disk.
    async fn send_block(
        self: &Arc<Self>,
        filling: Filling,
        (next_size, step): (u64, LogStep),
        end: Option<End>,
    ) -> Result<(BlkPtr, BlockOnItsWay)> {
        let Filling { bp, mut buf, used, max_txg, ahead, syncing, .. } = filling;
        let (ends_train, counted) = (end.is_some(), end.as_ref().is_some_and(|e| e.counted));
        let (txg, tx) = self.txg_of_next(&bp, syncing)?;
        let next = match self.store.log().alloc(txg, next_size, step).await {
            // What comes next was only guessed.
            Err(e) if e.is(crate::error::Errno::NoSpc) && ends_train && next_size > LOG_BLOCK_UNIT => {
                self.store.log().alloc(txg, LOG_BLOCK_UNIT, step).await
            }
            other => other,
        };
        let mut next = match next {
            Ok(bp) => bp,
            Err(e) => {
                // Without a successor this block cannot be written, and the chain ends before it.
                self.count().add(|s| &s.block_errors, 1);
                self.state.lock().chain.break_off();
                return Err(e);
            }
        };
        let mut cksum = bp.cksum();
        cksum[ZIL_ZC_SEQ] += 1;
        next.set_cksum(cksum);
        let chain = ZilChainPhys { next_blk: next, nused: used as u64, ..ZilChainPhys::default() };
        put_chain(&mut buf, &chain);
        let written = used.next_multiple_of(LOG_BLOCK_UNIT as usize).min(buf.len());
        buf.truncate(written);
        let sealed = embedded::seal(Checksum::Zilog2, &mut buf, &bp.cksum(), ByteOrder::NATIVE);
        debug_assert!(sealed.is_ok(), "the chain structure is in the block");
        let number = {
            let mut st = self.state.lock();
            let cargo = end.map(|e| Cargo { waiters: e.waiters, sample: e.sample.map(Box::new) });
            let issued = st.chain.issue(&bp, (next, txg), Txg(max_txg), cargo.unwrap_or_default());
            let Some(number) = issued else {
                self.ctx.free_in(txg, &next);
                return Err(Error::os(crate::error::Errno::Io, "the log was given back, or is broken"));
            };
            st.dirty(txg);
            number
        };
        let separate = self.store.log().is_separate(&bp);
        let counts = self.count();
        if separate {
            counts.add(|s| &s.slog_blocks, 1);
            counts.add(|s| &s.slog_bytes, used as u64);
            counts.add(|s| &s.slog_written, written as u64);
            counts.add(|s| &s.slog_allocated, bp.psize());
        } else {
            counts.add(|s| &s.normal_blocks, 1);
            counts.add(|s| &s.normal_bytes, used as u64);
            counts.add(|s| &s.normal_written, written as u64);
            counts.add(|s| &s.normal_allocated, bp.psize());
        }
        let write = self.store.log().write_log(&bp, buf.into_bytes(), ahead);
        drop(tx);
        let log = self.clone();
        let written = async move {
            let result = write.await;
            log.block_done(number, result, Sent { ends_train, counted, separate });
        };
        Ok((next, written.boxed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_block_has_room_for_most_trains_or_for_all() {
        let sizes = [8, 8, 100, 8, 12, 8, 16, 8];
        assert_eq!((guess(sizes, true), guess(sizes, false)), (100, 8));
        assert_eq!(guess([8, 16, 8, 16, 8, 16, 8, 16], false), 16);
        assert_eq!((guess([0, 12, 0, 0, 0, 0, 0, 0], false), guess([0; SIZES], false)), (12, 0));
    }
}
