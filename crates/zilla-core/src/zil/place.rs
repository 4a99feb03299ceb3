//! Large data: into the log, or to where they will stay, with only a pointer in the log.
//!
//! What goes into the log is written twice, there and by the sync of its txg. A block that is
//! written in place ([`crate::dmu`]'s `ahead`) is written once. Only whole blocks are, each as one
//! write made it:
//!
//! | | no log device | log device |
//! |---|---|---|
//! | `logbias=latency` | whole blocks of `zfs_immediate_write_sz` (32 KiB) and more: in place | the quicker way ([`super::policy`]): copied, or in place |
//! | `logbias=throughput` | whole blocks: in place | the same: the devices' bandwidth is for others |
//!
//! A txg that is being synced takes no more blocks: unless a log device is the quicker way, where
//! its sync is to write little more than the log would, it is what a commit waits for
//! ([`Zilog::near_sync`]), and its data are written once.
//!
//! The rest is copied. Below 32 KiB a seek to another place costs more than the bytes. A log device
//! that is full or has failed is none. The size of a write beyond 32 KiB changes nothing: no size
//! from which on it goes another way or waits in another queue (as in OpenZFS with 1 MiB on a log
//! device, pull request 14378).
//!
//! OpenZFS writes a block in place also for a part of it. Such a block has what others wrote to it
//! as well, perhaps after the write that is logged; replayed, it gives their data too early. Here
//! what a record leads to is what it says, so a replay that ends anywhere ends with a state that a
//! file had.

use super::itx::Itx;
use super::log::Zilog;
use super::policy::{Route, Sample, Site};
use crate::dmu::{Dnode, Objset};
use crate::tunables::IMMEDIATE_WRITE_SZ;
use crate::txg::Tx;
use crate::types::{ObjectId, Txg};
use crate::zio::EarlyWrites;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::zil::{LogRecord, LrHeader, RecordBody};

/// A block of a file in a txg.
type Block = (u64, u64, u64);

/// What a sync adds to its data: its metadata, two flushes and the seeks between them. An estimate.
const SYNC: Duration = Duration::from_millis(100);
/// So much in the log takes longer on a rotational disk.
const LARGE: u64 = 16 << 20;

/// Blocks of a train that are in place, and the block sizes of its files.
#[derive(Default)]
pub(super) struct Placed {
    bps: BTreeMap<Block, BlkPtr>,
    sizes: BTreeMap<u64, u64>,
}

/// Whether a block can be written in place that one write covers to so many `bytes`, and is not
/// worth less than the way there.
pub(super) fn can_be_placed(throughput: bool, bytes: u64, blksz: u64) -> bool {
    bytes == blksz && (throughput || bytes >= IMMEDIATE_WRITE_SZ.get())
}

impl Zilog {
    /// Writes in place what is better there. Where there was a choice, how the train's large data
    /// go: a sample, for when they are stable.
    pub(super) async fn place(&self, itxs: &[Itx], site: &Site) -> (Placed, EarlyWrites, Option<Sample>) {
        let (mut placed, mut writes) = (Placed::default(), EarlyWrites::default());
        let is_ours = |os: &Arc<Objset>| os.log().is_some_and(|l| std::ptr::eq(&**l, self));
        let objset = self.ds.upgrade().and_then(|ds| ds.open_objset()).filter(is_ours);
        let Some(objset) = objset else { return (placed, writes, None) };
        let throughput = self.wants_throughput();
        let whole = whole_blocks(&objset, itxs, throughput, &mut placed.sizes);
        let mut sample = None;
        if !throughput && site.devices() > 0 {
            let large = whole.values().map(|(_, d)| d.len() as u64).sum();
            let all = itxs.iter().map(|i| i.len() as u64).sum();
            sample = site.policy.route(&self.ctx, all, large);
            if sample.as_ref().is_none_or(|s| s.route() == Route::Log) {
                return (Placed::default(), writes, sample);
            }
        }
        let mut txgs: Vec<u64> = whole.keys().map(|b| b.0).collect();
        txgs.dedup();
        for txg in txgs {
            // A txg that is closed already will be synced soon, and cannot get more blocks.
            let Some(tx) = self.joined(Txg(txg)) else { continue };
            let of_txg = whole.range((txg, 0, 0)..=(txg, u64::MAX, u64::MAX));
            let (some, blocks): (Vec<_>, Vec<_>) =
                of_txg.map(|(b, (dn, data))| (*b, (dn.clone(), b.2, data.clone()))).unzip();
            let (bps, early) = objset.write_ahead(&tx, &blocks).await;
            writes.join(early);
            if self.state.lock().chain.is_abandoned() {
                // What leads to them will not be written.
                self.forsake(&objset);
                continue;
            }
            placed.bps.extend(some.into_iter().zip(bps).filter_map(|(b, bp)| Some((b, bp?))));
        }
        (placed, writes, sample)
    }

    /// The txg under sync that a commit of what was done up to `until` does best to wait for: its
    /// data are too much for a second writing to the pool's own disks, or to a log device that is
    /// slower than these, and most of what its sync has to write.
    pub(super) fn near_sync(&self, site: &Site, until: Txg, synced: Txg) -> Option<Txg> {
        let txgs = &self.ctx.txgs;
        let last = until.min(txgs.closed());
        if last <= synced {
            return None;
        }
        let large = match site.devices() > 0 && !self.wants_throughput() {
            true => (self.ctx.log.routes.slow_log()? * SYNC.as_secs_f64()) as u64,
            false => LARGE,
        };
        let (txg, bytes) = self.itxs.ready_bytes(synced, last);
        // Without any there is no txg to wait for: the driver would come back at once, for ever.
        (bytes >= large.max(1) && bytes * 2 >= txgs.unwritten_in(Txg(synced.0 + 1), txg)).then_some(txg)
    }

    /// Gives back what was written in place and belongs to nobody any more: the objset's contents
    /// are given up.
    pub(super) fn forsake(&self, objset: &Objset) {
        objset.forsake_ahead().iter().for_each(|bp| self.ctx.free_in(Txg(bp.birth()), bp));
    }

    fn joined(&self, txg: Txg) -> Option<Tx> {
        // What a frozen pool does is never on disk, so nothing could be taken over.
        if self.ctx.is_frozen(txg) { None } else { self.ctx.txgs.join(txg) }
    }
}

/// The blocks that can be placed, and in `sizes` the block sizes of the files that they and others
/// are of.
fn whole_blocks(
    objset: &Arc<Objset>,
    itxs: &[Itx],
    throughput: bool,
    sizes: &mut BTreeMap<u64, u64>,
) -> BTreeMap<Block, (Arc<Dnode>, Bytes)> {
    // None: more than one write, of which none is the whole block.
    let mut whole: BTreeMap<Block, Option<(Arc<Dnode>, Bytes)>> = BTreeMap::new();
    // Most commits have small writes only.
    let least = if throughput { 1 } else { IMMEDIATE_WRITE_SZ.get() };
    if itxs.iter().all(|i| (i.data.len() as u64) < least) {
        return BTreeMap::new();
    }
    for itx in itxs.iter().filter(|i| !i.data.is_empty()) {
        let Some(object) = itx.file else { continue };
        let Ok(dn) = objset.hold(ObjectId(object)) else { continue };
        let blksz = u64::from(dn.blksz()).max(1);
        sizes.insert(object, blksz);
        for (blkid, at, len) in pieces(itx.offset, itx.data.len(), blksz) {
            let fits = can_be_placed(throughput, len as u64, blksz);
            let block = fits.then(|| (dn.clone(), itx.data.slice(at..at + len)));
            whole.entry((itx.txg, object, blkid)).and_modify(|b| *b = None).or_insert(block);
        }
    }
    whole.into_iter().filter_map(|(at, block)| Some((at, block?))).collect()
}

/// A range cut where blocks begin: block, offset in the data, length.
fn pieces(offset: u64, len: usize, blksz: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let here = offset + at as u64;
        let n = (len - at).min((blksz - here % blksz) as usize);
        (n > 0).then(|| {
            at += n;
            (here / blksz, at - n, n)
        })
    })
}

impl Placed {
    /// A write as records: pointers for what is in place, the rest as it was.
    pub(super) fn divide(&self, mut itx: Itx, out: &mut Vec<Itx>) {
        let file = itx.file.filter(|_| !itx.data.is_empty() && !self.bps.is_empty());
        let Some((object, blksz)) = file.and_then(|f| Some((f, *self.sizes.get(&f)?))) else {
            return out.push(itx);
        };
        let mut copied: Option<Itx> = None;
        // All parts leave memory about together.
        let mut kept = itx.kept.take();
        let whole = &itx;
        let mut piece = |record, data, offset, placed| Itx {
            record,
            data,
            offset,
            placed,
            txg: whole.txg,
            file: whole.file,
            flags: whole.flags,
            kept: kept.take(),
        };
        for (blkid, at, len) in pieces(itx.offset, itx.data.len(), blksz) {
            let (offset, part) = (itx.offset + at as u64, itx.data.slice(at..at + len));
            match self.bps.get(&(itx.txg, object, blkid)) {
                Some(bp) => {
                    out.extend(copied.take());
                    let body =
                        RecordBody::Write { object, offset, length: len as u64, blkptr: *bp, data: &[] };
                    let header = LrHeader { txg: itx.txg, ..LrHeader::default() };
                    let record = LogRecord { header, ignore_case: false, body }.encode();
                    out.push(piece(record, Bytes::new(), offset, len as u64));
                }
                None => match &mut copied {
                    Some(c) => {
                        let from = (c.offset - itx.offset) as usize;
                        c.data = itx.data.slice(from..at + len);
                    }
                    None => {
                        let record = itx.record.clone();
                        copied = Some(piece(record, part, offset, 0));
                    }
                },
            }
        }
        out.extend(copied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_are_placed() {
        const K: u64 = 1 << 10;
        for blksz in [16 * K, 128 * K, 1024 * K, 16384 * K] {
            let sizes = (1..=4096).map(|n| n * 4 * K).filter(|b| *b <= blksz);
            let whole = |t| sizes.clone().filter(|b| can_be_placed(t, *b, blksz)).collect::<Vec<_>>();
            assert_eq!(whole(true), [blksz]);
            assert_eq!(whole(false), if blksz >= 32 * K { vec![blksz] } else { vec![] });
        }
    }

    #[test]
    fn a_write_is_divided_at_blocks() {
        let data: Bytes = (0..40_000u32).map(|i| i as u8).collect();
        let header = LrHeader { txg: 7, ..LrHeader::default() };
        let body =
            RecordBody::Write { object: 5, offset: 3000, length: 40_000, blkptr: BlkPtr::ZERO, data: &[] };
        let record = LogRecord { header, ignore_case: false, body }.encode();
        let (data_of, file, flags, kept) = (data.clone(), Some(5), false, None);
        let itx = Itx { txg: 7, record, data: data_of, offset: 3000, file, placed: 0, flags, kept };
        let mut bp = BlkPtr::ZERO;
        bp.set_lsize(8192);
        let mut placed = Placed { sizes: [(5, 8192)].into(), ..Placed::default() };
        for blkid in [1, 4] {
            placed.bps.insert((7, 5, blkid), bp);
        }
        let mut out = Vec::new();
        placed.divide(itx, &mut out);
        let shape: Vec<(u64, usize)> = out.iter().map(|i| (i.offset, i.data.len())).collect();
        assert_eq!(shape, [(3000, 5192), (8192, 0), (16384, 16384), (32768, 0), (40960, 2040)]);
        for i in out.iter().filter(|i| !i.data.is_empty()) {
            let from = (i.offset - 3000) as usize;
            assert_eq!(i.data, data[from..from + i.data.len()]);
        }
    }
}
