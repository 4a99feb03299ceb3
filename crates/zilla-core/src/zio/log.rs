//! Places and writes for the intent log, outside of any txg's batches.
//!
//! A log block goes to a log device if there is one with room, each to the next of several; else to the metaslabs that normal
//! vdevs keep for it, else to any. It is written once, by itself, and waited for: [`Zio::alloc_log`], [`Zio::write_log`],
//! [`LogWrite::stable`], each step seen by the caller so that he can have many blocks on their way.
//!
//! What is kept true: a [`LogWrite`] that is stable can be read back from its vdev after a crash, if no more devices are lost
//! than the vdev bears. A leaf that did not take a block has its txg in its DTL. A device that fails is looked at before the
//! error is told, so that the next block already goes elsewhere.

use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use zilla_ondisk::Dva;

use super::write::Place;
use super::{AllocClass, AllocReq, Priority, Zio};
use crate::error::{Errno, Error, Result};
use crate::types::Txg;
use crate::vdev::{Leaf, Top};

/// Where a log block goes.
#[derive(Clone, Copy, Debug)]
pub struct LogPlace {
    pub dva: Dva,
    /// A device of its own rather than the pool's.
    pub slog: bool,
}

/// A log block that its vdev has, though perhaps only in a device's cache.
pub struct LogWrite {
    zio: Zio,
    txg: Txg,
    vdev: u32,
    /// The leaves that have it, with the flush failures there had been before.
    leaves: SmallVec<[(Arc<Leaf>, u64); 2]>,
}

impl Zio {
    /// Finds a place for a log block of `size` bytes (a multiple of 4096). The caller holds `txg` open, and frees the block
    /// in a txg's sync as any other. `ENOSPC`: no run of this size is left; what was to be logged must wait for its txg.
    pub async fn alloc_log(&self, txg: Txg, size: u64) -> Result<LogPlace> {
        let req = AllocReq { class: AllocClass::Log, psize: size, copies: 1, gang_header: false };
        let dvas = match self.place_one(txg, req).await? {
            Place::At(dvas) => dvas,
            Place::NoRun => return Err(Error::os(Errno::NoSpc, "there is no place for a log block")),
        };
        let dva = dvas.first().copied().ok_or_else(|| Error::os(Errno::NoSpc, "there is no place"))?;
        let slog = self.tree().top(dva.vdev)?.vdev.is_log;
        Ok(LogPlace { dva, slog })
    }

    /// Writes a block to the place it was given; `txg` is its birth. An error if too few leaves took it.
    pub async fn write_log(&self, txg: Txg, dva: &Dva, data: &Bytes) -> Result<LogWrite> {
        let tree = self.tree();
        let top = tree.top(dva.vdev)?;
        let marks: SmallVec<[(Arc<Leaf>, u64); 2]> = top.leaves().map(|l| (l.clone(), l.mark())).collect();
        let missed = tree.write_now(top, dva.offset, data, Priority::SyncWrite).await;
        let leaves = marks.into_iter().filter(|(l, _)| !missed.contains(&l.index)).collect();
        let write = LogWrite { zio: self.clone(), txg, vdev: dva.vdev, leaves };
        write.missed(&missed).await?;
        Ok(write)
    }
}

impl LogWrite {
    /// Waits until the block is stable. Several that wait at once share the devices' flushes.
    pub async fn stable(mut self) -> Result<()> {
        let flushes = self.leaves.iter().map(|(l, mark)| l.flush(*mark));
        let results = futures_util::future::join_all(flushes).await;
        let mut missed = Vec::new();
        let mut results = results.into_iter();
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
        for leaf in missed.iter().filter_map(|i| tree.leaves.get(*i)) {
            leaf.dtl.add(self.txg.0, self.txg.0 + 1);
        }
        tree.check_suspects().await;
        let top = tree.top(self.vdev)?;
        if self.readable(top) {
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
