//! Frees of blocks on vdevs that were removed.
//!
//! Such a block is freed where it went. Its old place becomes *obsolete*, which is noted in a map
//! of the vdev (`com.delphix:indirect_obsolete_sm` in its top ZAP), from which `spa/condense.rs`
//! tells when a mapping is worth shortening. The map is an object of the MOS that grows with the
//! txg that frees, so a crash loses neither or both.

use super::alloc::Metaslabs;
use super::range_tree::RangeTree;
use super::space_map::{MapType, SpaceMap};
use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::{GANG_HEADER_SIZE, ObjectId, Txg};
use crate::vdev::{Indirect, Piece, Run};
use crate::zap::Zap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_ondisk::blkptr::Dva;
use zilla_ondisk::removal::VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM;

const OBSOLETE_BLKSZ: u32 = 128 << 10;

/// A removed vdev, or one that is being emptied, as far as frees are concerned.
pub(super) struct Removed {
    mapping: Arc<Indirect>,
    top_zap: ObjectId,
    asize: u64,
    /// What became obsolete and is not written down yet.
    obsolete: RangeTree,
    /// Of one that is being emptied: bytes freed before they were copied, and not counted yet.
    evacuating: Option<u64>,
}

pub(super) type AllRemoved = Mutex<BTreeMap<u32, Removed>>;

/// What is to be freed for a block on such a vdev.
pub(super) struct Left {
    /// Its place itself too: the vdev is there yet.
    pub(super) itself: bool,
    pub(super) moved: Vec<Dva>,
}

impl Metaslabs {
    /// Tells of a removed vdev. Once it is known, its blocks can be freed.
    pub fn set_removed(&self, vdev: u32, mapping: Arc<Indirect>, top_zap: ObjectId, asize: u64) {
        let obsolete = RangeTree::new();
        let removed = Removed { mapping, top_zap, asize, obsolete, evacuating: None };
        self.removed.lock().insert(vdev, removed);
    }

    /// The same of one that is being emptied.
    pub fn set_evacuating(&self, vdev: u32, mapping: Indirect, top_zap: ObjectId, asize: u64) {
        self.set_removed(vdev, Arc::new(mapping), top_zap, asize);
        if let Some(r) = self.removed.lock().get_mut(&vdev) {
            r.evacuating = Some(0);
        }
    }

    /// The mapping of a vdev that is or was being emptied.
    pub fn mapping(&self, vdev: u32) -> Option<Arc<Indirect>> {
        self.removed.lock().get(&vdev).map(|r| r.mapping.clone())
    }

    /// More of it was copied, in the txg being synced.
    pub fn map_more(&self, vdev: u32, runs: &[Run], txg: Txg) {
        if let Some(r) = self.removed.lock().get_mut(&vdev) {
            Arc::make_mut(&mut r.mapping).push(runs, txg.0);
        }
    }

    /// It is shorter from the txg being synced on.
    pub fn set_mapping(&self, vdev: u32, mapping: Arc<Indirect>) {
        if let Some(r) = self.removed.lock().get_mut(&vdev) {
            r.mapping = mapping;
        }
    }

    /// It stays after all.
    pub fn forget_removed(&self, vdev: u32) {
        self.removed.lock().remove(&vdev);
    }

    /// Bytes of the vdev being emptied that were freed before they were copied, since the last
    /// call.
    pub fn take_freed_uncopied(&self) -> u64 {
        self.removed.lock().values_mut().filter_map(|r| r.evacuating.as_mut()).map(std::mem::take).sum()
    }

    /// Whether there is such a place on a removed vdev.
    pub(super) fn maps(&self, dva: &Dva) -> bool {
        let len = if dva.gang { GANG_HEADER_SIZE } else { dva.asize };
        self.removed.lock().get(&dva.vdev).is_some_and(|r| r.mapping.pieces(dva.offset, len).is_some())
    }

    /// What is to be freed for a block, whose place on a removed vdev becomes obsolete. None for
    /// one on a vdev that stays.
    pub(super) fn leave_removed(&self, dva: &Dva) -> Result<Option<Left>> {
        let mut all = self.removed.lock();
        let Some(removed) = all.get_mut(&dva.vdev) else { return Ok(None) };
        let bad = |what: String| Error::corrupt(None, format!("vdev {}", dva.vdev), what);
        let copied = match &mut removed.evacuating {
            None => dva.asize,
            Some(uncopied) => {
                let copied = removed.mapping.end().saturating_sub(dva.offset).min(dva.asize);
                *uncopied += dva.asize - copied;
                copied
            }
        };
        let mut left = Left { itself: removed.evacuating.is_some(), moved: Vec::new() };
        if copied > 0 {
            let pieces = removed.mapping.pieces(dva.offset, copied);
            let pieces = pieces.ok_or_else(|| bad(format!("the mapping lacks {:#x}", dva.offset)))?;
            if self.features.read().obsolete_counts && removed.top_zap != ObjectId(0) {
                // Nothing becomes obsolete twice in one txg: its pointer was freed once.
                removed.obsolete.add(dva.offset, copied).map_err(|e| bad(e.to_string()))?;
            }
            let place = |p: Piece| Dva { vdev: p.vdev, offset: p.offset, asize: p.len, gang: false };
            left.moved.extend(pieces.into_iter().map(|(_, p)| place(p)));
        }
        Ok(Some(left))
    }

    /// Nothing points to a place on a removed vdev any more; what was there has been pointed to by
    /// its new place since.
    pub fn now_obsolete(&self, dva: &Dva) {
        if let Some(removed) = self.removed.lock().get_mut(&dva.vdev)
            && removed.top_zap != ObjectId(0)
            && let Err(e) = removed.obsolete.add(dva.offset, dva.asize)
        {
            tracing::warn!("vdev {}: obsolete twice: {e}", dva.vdev);
        }
    }

    /// Frees the object of a map.
    pub async fn free_map(&self, mos: &Arc<Objset>, tx: &Tx, map: ObjectId) -> Result<()> {
        let dn = mos.hold_wait(map).await?;
        self.count_map(&dn, -1);
        mos.free(tx, &dn);
        Ok(())
    }

    /// Writes down what became obsolete since the last pass, and says whether anything did.
    pub async fn sync_obsolete(&self, mos: &Arc<Objset>, tx: &Tx, pass: u64) -> Result<bool> {
        let some = |(id, r): (&u32, &mut Removed)| {
            let ranges = std::mem::take(&mut r.obsolete);
            (!ranges.is_empty()).then_some((*id, r.top_zap, r.asize, ranges))
        };
        let todo: Vec<_> = self.removed.lock().iter_mut().filter_map(some).collect();
        let some = !todo.is_empty();
        for (vdev, top_zap, asize, ranges) in todo {
            if top_zap == ObjectId(0) {
                return Err(Error::inval(format!("vdev {vdev} has no ZAP, which obsolete counts need")));
            }
            let zap = Zap::open(mos, top_zap.0).await?;
            let dn = match zap.try_get_u64(VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM).await? {
                Some(id) => mos.hold_wait(ObjectId(id)).await?,
                None => {
                    let dn = self.new_map(mos, tx, OBSOLETE_BLKSZ).await?;
                    zap.insert_u64(tx, VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM, dn.id().0).await?;
                    self.counts.lock().obsolete_counts += 1;
                    dn
                }
            };
            let mut map = SpaceMap::open(dn, 0, asize, 0)?;
            if let Some(next) = self.renewed(mos, tx, pass, &map, MapType::Alloc).await? {
                zap.set_u64(tx, VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM, next.dnode().id().0).await?;
                map = next;
            }
            map.append(self.append_how(tx, pass), &ranges, MapType::Alloc, None)?;
        }
        Ok(some)
    }
}
