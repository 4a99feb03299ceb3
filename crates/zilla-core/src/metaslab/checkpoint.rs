//! What the pool's checkpoint keeps from being used again.
//!
//! A checkpoint is an uberblock that an import may go back to, however many txgs later. So a block
//! that was there then (born in its txg or before) is not freed when nobody else has it any more:
//! it stays allocated in its metaslab, and is written down in its vdev's *checkpoint space map*, a
//! list of such ranges. When the checkpoint is discarded the list is read from its end, some of it
//! in each txg, and what stands there is freed.
//!
//! ```text
//!   free(block born before) -> checkpointing -> (checkpoint space map: FREE)      [the metaslab's own map does not change]
//!   discard: (checkpoint space map, its last blocks) -> freeing -> as any other free; the map is that much shorter
//! ```
//!
//! A list of which a block cannot be read stays as it is, and so does what it names, until it is
//! given up: then what can be read is freed, and the rest stays allocated for good.
//!
//! A crash is safe: a range enters the list in the txg that lets go of its block, and leaves it in
//! the one that frees it.

use super::Metaslabs;
use super::range_tree::RangeTree;
use super::slab::Metaslab;
use super::space_map::{MapType, Reader, SpaceMap};
use super::sync::BLKSZ_WITH_LOG;
use super::vdev::VdevSpace;
use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::tunables;
use crate::txg::Tx;
use crate::types::{ObjectId, Txg};
use crate::zap::Zap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::Dva;

/// In a top-level vdev's ZAP (OpenZFS's VDEV_TOP_ZAP_POOL_CHECKPOINT_SM).
const CHECKPOINT_SM: &str = "com.delphix:pool_checkpoint_sm";

/// Bytes of memory that the ranges of a byte of a checkpoint space map take at most while they are
/// freed.
const DISCARD_FACTOR: u64 = 16;

/// What a step of discarding came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discarded {
    /// There is more to do.
    pub more: bool,
    /// Bytes, as users see them, that a list named which is done with, and that nobody can free.
    pub lost: u64,
}

impl Metaslabs {
    /// From the txg being synced on, what was born up to `txg` is kept; 0: nothing is.
    pub fn set_checkpoint(&self, txg: Txg) {
        self.checkpoint_txg.store(txg.0, Ordering::Release);
    }

    /// Whether the checkpoint has a block that was `born` so early and is freed in `txg`.
    pub(super) fn in_checkpoint(&self, txg: Txg, born: Txg) -> bool {
        let kept = self.checkpoint_txg.load(Ordering::Acquire);
        born.0 <= kept && kept < txg.0
    }

    /// Bytes that only the checkpoint has.
    pub fn checkpoint_space(&self) -> u64 {
        self.vdevs().iter().fold(0, |sum, v| sum.saturating_add(v.checkpoint_space()))
    }

    /// The same as users see it: without parity.
    pub fn checkpoint_dspace(&self) -> u64 {
        self.vdevs().iter().fold(0, |sum, v| sum.saturating_add(v.deflated(v.checkpoint_space())))
    }

    /// Bytes of one vdev that only the checkpoint has.
    pub fn vdev_checkpoint_space(&self, vdev: u32) -> Result<u64> {
        Ok(self.vdev(vdev)?.checkpoint_space())
    }

    /// At import: opens the lists that there are.
    pub async fn load_checkpoints(&self, mos: &Arc<Objset>) -> Result<()> {
        for v in self.vdevs().iter().filter(|v| v.top_zap() != ObjectId(0)) {
            let top = Zap::open(mos, v.top_zap().0).await?;
            if let Some(id) = top.try_get_u64(CHECKPOINT_SM).await? {
                let dn = mos.hold_wait(ObjectId(id)).await?;
                *v.checkpoint.lock() = Some(SpaceMap::open(dn, 0, u64::MAX, v.spec.ashift)?);
            }
        }
        Ok(())
    }

    /// A block leaves everything but the checkpoint. What lay on a vdev that was removed is kept
    /// where it went.
    pub(super) fn keep_dva(&self, txg: Txg, dva: &Dva) -> Result<()> {
        self.let_go(txg, dva, Metaslab::keep)
    }

    /// Writes down what a pass let go of.
    pub(super) async fn sync_checkpoint(
        &self,
        mos: &Arc<Objset>,
        tx: &Tx,
        pass: u64,
        v: &Arc<VdevSpace>,
        ms: &Arc<Metaslab>,
    ) -> Result<()> {
        let open = v.checkpoint.lock().as_ref().map(|sm| sm.dnode().clone());
        let open = open.map(|dn| SpaceMap::open(dn, 0, u64::MAX, v.spec.ashift)).transpose()?;
        let next = match open {
            Some(sm) => self.renewed(mos, tx, pass, &sm, MapType::Free).await?,
            None if v.top_zap() == ObjectId(0) => {
                let what = format!("vdev {} has no ZAP, which checkpoints need", v.spec.id);
                return Err(Error::inval(what));
            }
            None => {
                let dn = self.new_map(mos, tx, BLKSZ_WITH_LOG).await?;
                Some(SpaceMap::open(dn, 0, u64::MAX, v.spec.ashift)?)
            }
        };
        if let Some(sm) = next {
            let zap = Zap::open(mos, v.top_zap().0).await?;
            zap.set_u64(tx, CHECKPOINT_SM, sm.dnode().id().0).await?;
            *v.checkpoint.lock() = Some(sm);
        }
        let ranges = std::mem::take(&mut ms.state().checkpointing);
        match &mut *v.checkpoint.lock() {
            Some(sm) => sm.append(self.append_how(tx, pass), &ranges, MapType::Free, None),
            None => Ok(()),
        }
    }

    /// In the syncing context: frees a part of what a checkpoint kept that is no more. With
    /// `give_up`, what stands in blocks of the list that cannot be read stays allocated.
    pub async fn discard_checkpoint(&self, mos: &Arc<Objset>, tx: &Tx, give_up: bool) -> Result<Discarded> {
        let kept = self.vdevs().into_iter().find(|v| v.checkpoint.lock().is_some());
        let Some(v) = kept else { return Ok(Discarded::default()) };
        let (reader, map, length) = match &*v.checkpoint.lock() {
            Some(sm) => (sm.reader(), sm.dnode().clone(), sm.length()),
            None => return Ok(Discarded::default()),
        };
        // Whole blocks: no entry lies in two.
        let block = u64::from(map.blksz()).max(1);
        let limit = tunables::SPA_DISCARD_MEMORY_LIMIT.get() / DISCARD_FACTOR;
        let step = (limit / block).max(1) * block;
        let from = length.saturating_sub(1) / step * step;
        // All that can fail for want of reading comes first: what was freed would be freed again
        // when the step is tried again.
        let ranges = listed(&v, &reader, (from, length), block, give_up).await?;
        let last = match from {
            0 => {
                let zap = Zap::open(mos, v.top_zap().0).await?;
                zap.try_get_u64(CHECKPOINT_SM).await?;
                Some(zap)
            }
            _ => None,
        };
        let mut space = 0u64;
        for (start, size) in ranges {
            let freed = v.metaslab_of(start, size).and_then(|ms| {
                let mut st = ms.state();
                ms.free(&mut st, start, size)?;
                self.list(tx.txg(), v.spec.id, ms, &mut st);
                Ok(())
            });
            match freed {
                Ok(()) => space = space.wrapping_add(size),
                // A list that lies must not take space from others. At worst the space is lost.
                Err(e) => tracing::error!(vdev = v.spec.id, "not freed with the checkpoint: {e}"),
            }
        }
        let Some(zap) = last else {
            if let Some(sm) = &mut *v.checkpoint.lock() {
                sm.shorten(tx, from, space);
            }
            return Ok(Discarded { more: true, lost: 0 });
        };
        zap.delete(tx, CHECKPOINT_SM).await?;
        // The list says how much it named. What is left of that was not freed.
        let named = v.checkpoint_space();
        *v.checkpoint.lock() = None;
        self.free_if_readable(mos, tx, &map).await;
        let more = self.vdevs().iter().any(|v| v.checkpoint.lock().is_some());
        Ok(Discarded { more, lost: v.deflated(named.saturating_sub(space)) })
    }

    /// What of a vdev only the checkpoint has; for checks. Nothing may be being synced.
    pub async fn checkpointed_ranges(&self, vdev: u32) -> Result<RangeTree> {
        let v = self.vdev(vdev)?;
        let mut out = RangeTree::new();
        let (reader, length) = match &*v.checkpoint.lock() {
            Some(sm) => (sm.reader(), sm.length()),
            None => return Ok(out),
        };
        let bad = |e| Error::corrupt(None, format!("checkpoint of vdev {vdev}"), format!("{e}"));
        reader.for_each(length, |_, _, start, size| out.add(start, size).map_err(bad)).await?;
        Ok(out)
    }
}

/// What stands in a part of a vdev's list: start and size. With `give_up`, in those blocks of it
/// that can be read.
async fn listed(
    v: &VdevSpace,
    reader: &Reader,
    (from, to): (u64, u64),
    block: u64,
    give_up: bool,
) -> Result<Vec<(u64, u64)>> {
    let read = async |from: u64, to: u64| {
        let mut out = Vec::new();
        let note = |kind, _, start, size| match kind {
            MapType::Free => {
                out.push((start, size));
                Ok(())
            }
            MapType::Alloc => {
                let what = format!("{size:#x} bytes at {start:#x} are allocated there");
                Err(Error::corrupt(None, format!("checkpoint of vdev {}", v.spec.id), what))
            }
        };
        reader.for_each_from(from, to, note).await.map(|()| out)
    };
    match read(from, to).await {
        Err(Error::Corrupt(_)) if give_up => {}
        all => return all,
    }
    let (mut out, mut at) = (Vec::new(), from);
    while at < to {
        let end = to.min(at.saturating_add(block));
        match read(at, end).await {
            Ok(some) => out.extend(some),
            Err(e @ Error::Corrupt(_)) => {
                tracing::error!(
                    vdev = v.spec.id,
                    at,
                    "what a part of the checkpoint's list names is lost: {e}"
                );
            }
            Err(e) => return Err(e),
        }
        at = end;
    }
    Ok(out)
}

impl VdevSpace {
    fn checkpoint_space(&self) -> u64 {
        let map = self.checkpoint.lock();
        map.as_ref().map_or(0, |sm| sm.allocated().min(0).unsigned_abs())
    }
}
