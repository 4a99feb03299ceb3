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
use super::log::Zilog;
use super::policy::{Sample, Site, Step, Stripes};
use super::states::{Cargo, Waiter};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::Txg;
use crate::zio::{EarlyWrites, LOG_BLOCK_UNIT, Spots};
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

/// A block that is being filled, of a train that goes there.
struct Filling<'a> {
    site: &'a Site,
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

impl<'a> Filling<'a> {
    fn new(site: &'a Site, bp: BlkPtr, most: usize, syncing: Option<Txg>) -> Filling<'a> {
        let size = bp.psize() as usize;
        Filling {
            site,
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

/// What goes with a train's last block.
struct End {
    waiters: Vec<Arc<Waiter>>,
    sample: Option<Sample>,
    counted: bool,
}

/// Writes a block, makes it stable and tells those who wait. It must be run to its end.
pub(super) type BlockOnItsWay = BoxFuture<'static, ()>;

/// What a train carries.
pub(super) struct Train {
    pub waiters: Vec<Arc<Waiter>>,
    pub itxs: Vec<Itx>,
    pub site: Site,
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
        let site = &train.site;
        let (placed, ahead, sample) = self.place(&whole_itxs, site).await;
        // What waits for the pool's own disks leaves a log device to others, if it can have several
        // at once.
        let one_at_a_time = site.policy.at_once(site) == 1;
        let counted = ahead.is_empty() || one_at_a_time || site.devices() == 0;
        let mut itxs = Vec::with_capacity(whole_itxs.len());
        whole_itxs.into_iter().for_each(|i| placed.divide(i, &mut itxs));
        let mut left: u64 = itxs.iter().map(|i| i.len() as u64).sum();
        let whole = left;
        let stripes = match train.syncing {
            Some(_) => Stripes::whole(MAX_RECORDS),
            None => {
                let (mut st, now) = (self.state.lock(), self.ctx.env.now());
                site.policy.divide(site, &mut st.pace, now, (first.dva(0).vdev, &itxs, MAX_RECORDS))
            }
        };
        let mut filling = Filling::new(site, first, stripes.most, train.syncing);
        filling.ahead = ahead;
        let mut blocks = 0;
        for (n, mut itx) in itxs.into_iter().enumerate() {
            let len = itx.len();
            if itx.record.len() > MAX_RECORDS {
                return Err(Error::os(crate::error::Errno::TooBig, "a record longer than a log block"));
            }
            if len > filling.room() && len <= MAX_RECORDS {
                blocks += 1;
                let next = (block_size(stripes.next(n).unwrap_or(left)), stripes.step(blocks));
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
                        let next = (block_size(left.max(need)), Step::default());
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
            if train.syncing.is_none() {
                st.pace.packed(whole);
            }
            let alone =
                train.waiters.len() == 1 && st.trains.under_way() == 0 && st.trains.waiting().is_empty();
            if counted {
                st.trains.leave();
            }
            site.policy.size(&st.pace, alone || one_at_a_time)
        };
        // The last block's waiters are the train's.
        let end = End { waiters: train.waiters.clone(), sample, counted };
        let next = (block_size(stripes.next(0).unwrap_or(size)), stripes.after());
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

    async fn next_block<'a>(
        self: &Arc<Self>,
        filling: Filling<'a>,
        next: (u64, Step),
        most: usize,
    ) -> Result<Filling<'a>> {
        loop {
            let listener = self.changed.listen();
            if self.state.lock().chain.on_their_way() < MAX_BLOCKS {
                break;
            }
            listener.await;
        }
        let (site, syncing) = (filling.site, filling.syncing);
        let (bp, mut block) = self.send_block(filling, next, None).await?;
        // Its write is under way before the next one's: a disk that gets them in another order
        // takes one more rotation for each. But this thread does not wait for it.
        if own_thread(Duration::ZERO, || (&mut block).now_or_never()).is_none() {
            self.ctx.env.spawn(block);
        }
        Ok(Filling::new(site, bp, most, syncing))
    }

    /// Where the next train goes.
    pub(super) fn site(&self) -> Site {
        self.ctx.log.site(self.ctx.store.log())
    }

    pub(super) fn spots(&self, site: &Site, step: Step, size: u64) -> Spots {
        self.ctx.log.spots(site, step, size, self.ctx.env.now())
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
        filling: Filling<'_>,
        (next_size, step): (u64, Step),
        end: Option<End>,
    ) -> Result<(BlkPtr, BlockOnItsWay)> {
        let Filling { site, bp, mut buf, used, max_txg, ahead, syncing, .. } = filling;
        let (ends_train, counted) = (end.is_some(), end.as_ref().is_some_and(|e| e.counted));
        let (txg, tx) = self.txg_of_next(&bp, syncing)?;
        let spots = self.spots(site, step, next_size);
        let next = match self.store.log().alloc(txg, next_size, spots).await {
            // What comes next was only guessed.
            Err(e) if e.is(crate::error::Errno::NoSpc) && ends_train && next_size > LOG_BLOCK_UNIT => {
                self.store.log().alloc(txg, LOG_BLOCK_UNIT, spots).await
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
        let (log, at) = (self.clone(), bp.dva(0));
        let on = site.at(at.vdev);
        let separate = on.is_some_and(|o| o.separate);
        self.count().block(separate, [1, used as u64, written as u64, bp.psize()]);
        let write = self.store.log().write_log(&bp, buf.into_bytes(), ahead);
        drop(tx);
        let spilled = ends_train && !separate && site.devices() > 0;
        let written = async move {
            let (pool, env) = (&log.ctx.log, &log.ctx.env);
            pool.issued(on, &at, env.now());
            let result = write.await;
            if result.is_ok() {
                pool.stable(on, env.now());
            }
            log.block_done(number, result, (counted, spilled));
        };
        Ok((next, written.boxed()))
    }
}
