//! Places and writes for the intent log, outside of any txg's batches.
//!
//! A log block goes to a log device if there is one with room, where the caller says. Else it goes
//! to the metaslabs that normal vdevs keep for it, or to any. It is written once, by itself, and
//! waited for: [`Zio::write_log`], [`LogWrite::stable`], each step seen by the caller so that he
//! can have many blocks on their way.
//!
//! What is kept true: a [`LogWrite`] that is stable can be read back from its vdev after a crash,
//! if no more devices are lost than the vdev bears. A leaf that did not take a block has its txg in
//! its DTL. A device that fails is looked at before the error is told, so that the next block
//! already goes elsewhere.

use bytes::Bytes;
use futures_util::future::{BoxFuture, join, join_all};
use smallvec::SmallVec;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::Compress;
use zilla_env::{IoBuf, WaitingHere};
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::object_type::DMU_OT_INTENT_LOG;
use zilla_ondisk::{ByteOrder, Dva};

use super::early::EarlyWrites;
use super::store::LogWritten;
use super::write::Place;
use super::{AllocClass, AllocReq, Priority, Spots, Zio, verify};
use crate::error::{Errno, Error, Result};
use crate::types::{Bookmark, Txg};
use crate::vdev::{Layout, Leaf, Reader, Top, unfenced};

/// A log block's size is a multiple of this, and so is what is written of it.
pub const LOG_BLOCK_UNIT: u64 = zilla_ondisk::zil::ZIL_MIN_BLKSZ;

/// A flush of which one hears so soon, however it was done, is better done at once than handed to
/// another thread.
const HANDING_OVER: Duration = Duration::from_micros(250);

/// A log block that its vdev has, though perhaps only in a device's cache.
pub struct LogWrite {
    zio: Zio,
    txg: Txg,
    vdev: u32,
    /// The leaves that have it, with the flush failures there had been before.
    leaves: SmallVec<[(Arc<Leaf>, u64); 2]>,
}

impl Zio {
    /// Writes a block to the place it was given; `txg` is its birth. An error if too few leaves
    /// took it.
    pub async fn write_log(&self, txg: Txg, dva: &Dva, data: &Bytes) -> Result<LogWrite> {
        let tree = self.tree();
        let top = tree.top(dva.vdev)?;
        let marks: SmallVec<[(Arc<Leaf>, u64); 2]> = top.leaves().map(|l| (l.clone(), l.mark())).collect();
        let missed = tree.write_now(top, dva.offset, data, txg.0, Priority::SyncWrite).await;
        let leaves = marks.into_iter().filter(|(l, _)| !missed.contains(&l.index)).collect();
        let write = LogWrite { zio: self.clone(), txg, vdev: dva.vdev, leaves };
        write.missed(&missed).await?;
        Ok(write)
    }
}

impl LogWrite {
    /// Waits until the block is stable. Several that wait at once share the devices' flushes.
    pub async fn stable(mut self) -> Result<()> {
        // Those that take long are on their way together when the others' begin, each of which may
        // keep this thread.
        self.leaves.sort_by_key(|(l, _)| std::cmp::Reverse(l.flush_time()));
        let slow = self.leaves.iter().filter(|(l, _)| l.flush_time() > HANDING_OVER).count();
        let away = self.leaves.get(..slow.min(self.leaves.len().saturating_sub(1))).unwrap_or_default();
        let here = self.leaves.get(away.len()..).unwrap_or_default();
        let one_by_one = async {
            let mut results = Vec::with_capacity(here.len());
            for (leaf, mark) in here {
                results.push(WaitingHere(leaf.flush_time(), pin!(leaf.flush(*mark))).await);
            }
            results
        };
        let (first, rest) = join(join_all(away.iter().map(|(l, mark)| l.flush(*mark))), one_by_one).await;
        let mut results = first.into_iter().chain(rest);
        let mut missed = Vec::new();
        self.leaves.retain(|(l, _)| {
            let ok = matches!(results.next(), Some(Ok(())));
            if !ok {
                missed.push(l.index);
            }
            ok
        });
        self.missed(&missed).await
    }

    /// Notes that leaves do not have the block; an error if it then cannot be read back.
    async fn missed(&self, missed: &[usize]) -> Result<()> {
        if missed.is_empty() {
            return Ok(());
        }
        let tree = self.zio.tree();
        let top = tree.top(self.vdev)?;
        let readable = self.readable(top);
        for leaf in missed.iter().filter_map(|i| tree.leaves.get(*i)) {
            leaf.dtl.add(self.txg.0, self.txg.0 + 1);
            // The block may be older than the resilver's or rebuild's last txg, and its place was
            // perhaps done already: the end must not forget that it is missing.
            if leaf.resilvering.load(Ordering::Relaxed) {
                leaf.refused.store(true, Ordering::Relaxed);
            }
            // One that cannot be read is nobody's: what is in it is told to nobody.
            if readable {
                self.zio.0.track.lacks_log(self.txg, leaf.index);
            }
        }
        tree.check_suspects().await;
        if readable {
            return Ok(());
        }
        let what = format!("vdev {}: too few devices took a block of the intent log", self.vdev);
        Err(Error::os(Errno::Io, what))
    }

    /// Whether the leaves that have the block are enough.
    fn readable(&self, top: &Top) -> bool {
        top.survives(|l| self.leaves.iter().any(|(has, _)| has.index == l.index))
    }
}

impl Zio {
    /// The pointer to a log block of `size` bytes (a multiple of 4096) that is yet to be written,
    /// complete but for its checksum words, which are its number in the chain. The caller holds
    /// `txg` open, and frees the block in a txg's sync as any other. `ENOSPC`: no run of this size
    /// is left; what was to be logged must wait for its txg.
    pub(super) async fn alloc_log_block(&self, txg: Txg, size: u64, spots: Spots) -> Result<BlkPtr> {
        let no_place = || Error::os(Errno::NoSpc, "there is no place for a log block");
        let req = AllocReq { spots, ..AllocReq::new(AllocClass::Log, size, 1) };
        let Place::At(dvas) = self.place_one(txg, req).await? else { return Err(no_place()) };
        let mut bp = BlkPtr::ZERO;
        bp.set_dva(0, *dvas.first().ok_or_else(no_place)?);
        bp.set_lsize(size);
        bp.set_psize(size);
        bp.set_compress(Compress::Off as u8);
        bp.set_checksum_kind(Checksum::Zilog2 as u8);
        bp.set_otype(DMU_OT_INTENT_LOG);
        bp.set_byteorder(ByteOrder::NATIVE);
        bp.set_births(txg.0, txg.0);
        Ok(bp)
    }

    /// Writes the used part of a log block and makes it stable.
    /// The data that it points to may be on their way meanwhile: one flush is for both.
    pub(super) fn write_log_block(
        &self,
        bp: &BlkPtr,
        data: Bytes,
        ahead: EarlyWrites,
    ) -> BoxFuture<'static, Result<LogWritten>> {
        let (zio, bp) = (self.clone(), *bp);
        Box::pin(async move {
            let clock = &zio.0.env.clock;
            let started = clock.now();
            let bytes = data.len() as u64;
            let dva = bp.dva(0);
            let whole = {
                let tree = zio.tree();
                let top = tree.check_dva(&dva, bp.psize(), bp.phys_birth())?;
                // What is missing of a parity vdev's columns could not be told from damage: these
                // get the whole block.
                match &top.layout {
                    Layout::Raidz { .. } | Layout::Draid { .. } if bytes < bp.psize() => {
                        let mut buf = IoBuf::zeroed(bp.psize() as usize);
                        buf[..data.len()].copy_from_slice(&data);
                        buf.into_bytes()
                    }
                    _ => data,
                }
            };
            let (write, ()) = join(zio.write_log(Txg(bp.birth()), &dva, &whole), ahead.written()).await;
            let write = write?;
            let wrote = clock.now();
            let (block, data) = join(write.stable(), ahead.stable()).await;
            block.and(data)?;
            let flushed = clock.now();
            Ok(LogWritten {
                bytes,
                write: wrote.saturating_sub(started),
                flush: flushed.saturating_sub(wrote),
            })
        })
    }

    /// Reads what is where a log block should be. Past the cache and without a word about damage:
    /// what lies behind the end of a log is no block, and that is how the end is known
    /// ([`Error::Corrupt`]); any other error is of a device, and says nothing.
    pub(super) async fn read_log_block(&self, bp: &BlkPtr, bookmark: Bookmark) -> Result<Bytes> {
        bp.validate().map_err(|e| Error::corrupt(Some(bookmark), "block pointer", e.to_string()))?;
        let tree = self.tree();
        let salt = self.salt();
        let check = |data: &[u8]| verify::block(bp, data, salt.as_deref());
        let mut last = Error::corrupt(Some(bookmark), "block pointer", "the block has no copies");
        for dva in bp.dvas() {
            if dva.gang {
                last = Error::corrupt(Some(bookmark), "block pointer", "a log block in pieces");
                continue;
            }
            let top = match tree.check_dva(&dva, bp.psize(), bp.phys_birth()) {
                Ok(top) => top,
                Err(e) => {
                    last = e;
                    continue;
                }
            };
            let reader = Reader {
                tree: &tree,
                top,
                offset: dva.offset,
                psize: bp.psize(),
                birth: bp.phys_birth(),
                class: Priority::SyncRead,
                tickets: None,
                check: &check,
                // What a power cut left in some of its places goes to all before anybody relies on
                // it.
                every_copy: true,
                speculative: true,
                fence: &unfenced,
            };
            match reader.read().await {
                Ok((data, _)) => return Ok(data),
                Err(f) if f.device => {
                    last = Error::os(Errno::Io, format!("block {bookmark} ({}): {}", f.place, f.what));
                }
                Err(f) => last = Error::corrupt(Some(bookmark), f.place, f.what),
            }
        }
        Err(last)
    }
}
