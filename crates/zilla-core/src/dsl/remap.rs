//! Blocks of removed vdevs that a dataset points to by their new place while a snapshot of it still
//! points to the old one.
//!
//! OpenZFS changes pointers in blocks that it writes anyway, so that a removed vdev's mapping is
//! needed less and less. zilla leaves pointers as they are, but it keeps what OpenZFS wrote: a
//! *remap deadlist* of a dataset has the old places, which become obsolete when the last snapshot
//! that points to them goes. They then pass through a list of the pool
//! (`com.delphix:obsolete_bpobj`) to the map of the removed vdev.
//!
//! All of it is in the MOS and changes with the snapshots in their txg.

use super::DslPool;
use super::bpobj::Bpobj;
use super::dataset::DslDataset;
use crate::error::Result;
use crate::txg::Tx;
use std::sync::Arc;
use zilla_ondisk::dsl::{DMU_POOL_OBSOLETE_BPOBJ, DS_FIELD_REMAP_DEADLIST};

/// Source: SPA_OLD_MAXBLOCKSIZE in sys/fs/zfs.h.
const OBSOLETE_BLKSZ: u32 = 128 << 10;
/// So many places pass through the list in a txg.
const BATCH: usize = 1 << 16;

impl DslPool {
    /// The object of a dataset's remap deadlist, if it has one.
    pub(super) async fn remap_deadlist(&self, ds: &DslDataset) -> Result<Option<u64>> {
        match ds.zap().filter(|_| self.feature_active("device_removal")) {
            Some(zap) => zap.try_get_u64(DS_FIELD_REMAP_DEADLIST).await,
            None => Ok(None),
        }
    }

    async fn set_remap_deadlist(&self, tx: &Tx, ds: &DslDataset, id: Option<u64>) -> Result<()> {
        match id {
            Some(id) => {
                let zap = self.zapify(tx, &ds.dn).await?;
                zap.set_u64(tx, DS_FIELD_REMAP_DEADLIST, id).await
            }
            None => match ds.zap() {
                Some(zap) => zap.delete_if_there(tx, DS_FIELD_REMAP_DEADLIST).await.map(drop),
                None => Ok(()),
            },
        }
    }

    /// What a head's latest snapshot, which is new, points to by old places is the snapshot's
    /// business.
    pub(super) async fn remaps_snapshotted(
        &self,
        tx: &Tx,
        head: &DslDataset,
        snapshot: &DslDataset,
    ) -> Result<()> {
        if let Some(id) = self.remap_deadlist(head).await? {
            self.set_remap_deadlist(tx, head, None).await?;
            self.set_remap_deadlist(tx, snapshot, Some(id)).await?;
        }
        Ok(())
    }

    /// A snapshot goes whose predecessor was of `prev_txg`: what only it pointed to by old places
    /// is obsolete, the rest is its successor's.
    pub(super) async fn remaps_destroyed(
        &self,
        tx: &Tx,
        ds: &DslDataset,
        next: &DslDataset,
        prev_txg: u64,
    ) -> Result<()> {
        if let Some(id) = self.remap_deadlist(next).await? {
            let list = self.obsolete_list(tx).await?;
            let mut dl = self.deadlist_open(id).await?;
            self.deadlist_move_bpobj(tx, &mut dl, Some(&list), prev_txg).await?;
        }
        let Some(id) = self.remap_deadlist(ds).await? else { return Ok(()) };
        let into = match self.remap_deadlist(next).await? {
            Some(into) => into,
            None => {
                let p = next.phys();
                let dl = self.deadlist_open(p.deadlist_obj).await?;
                let into = self.deadlist_clone(tx, &dl, p.prev_snap_txg, p.prev_snap_obj).await?;
                self.set_remap_deadlist(tx, next, Some(into)).await?;
                self.feature_incr(tx, "obsolete_counts").await?;
                into
            }
        };
        let mut dl = self.deadlist_open(into).await?;
        self.deadlist_merge(tx, &mut dl, id).await?;
        self.deadlist_free(tx, id).await?;
        self.set_remap_deadlist(tx, ds, None).await?;
        self.feature_decr(tx, "obsolete_counts").await
    }

    /// The range of a destroyed snapshot is joined in a clone's list too.
    pub(super) async fn remaps_lose_key(&self, tx: &Tx, clone: &DslDataset, min_txg: u64) -> Result<()> {
        if let Some(id) = self.remap_deadlist(clone).await? {
            let mut dl = self.deadlist_open(id).await?;
            self.deadlist_remove_key(tx, &mut dl, min_txg).await?;
        }
        Ok(())
    }

    /// A head without snapshots goes.
    pub(super) async fn remaps_forgotten(&self, tx: &Tx, ds: &DslDataset) -> Result<()> {
        if let Some(id) = self.remap_deadlist(ds).await? {
            self.deadlist_free(tx, id).await?;
            self.set_remap_deadlist(tx, ds, None).await?;
            self.feature_decr(tx, "obsolete_counts").await?;
        }
        Ok(())
    }

    /// Two heads exchange their contents.
    pub(super) async fn remaps_swapped(
        &self,
        tx: &Tx,
        a: &Arc<DslDataset>,
        b: &Arc<DslDataset>,
    ) -> Result<()> {
        let (of_a, of_b) = (self.remap_deadlist(a).await?, self.remap_deadlist(b).await?);
        if of_a.is_some() || of_b.is_some() {
            self.set_remap_deadlist(tx, a, of_b).await?;
            self.set_remap_deadlist(tx, b, of_a).await?;
        }
        Ok(())
    }

    /// The pool's list of places that are to become obsolete.
    async fn obsolete_list(&self, tx: &Tx) -> Result<Bpobj> {
        let directory = self.directory().await?;
        if let Some(id) = directory.try_get_u64(DMU_POOL_OBSOLETE_BPOBJ).await? {
            return Bpobj::open(self.mos(), id).await;
        }
        let list = Bpobj::create_plain(self.mos(), tx, OBSOLETE_BLKSZ, self.ctx.version()).await?;
        directory.insert_u64(tx, DMU_POOL_OBSOLETE_BPOBJ, list.id()).await?;
        self.feature_incr(tx, "obsolete_counts").await?;
        Ok(list)
    }

    /// Hands some of that list on.
    pub(super) async fn process_obsolete(&self, tx: &Tx) -> Result<()> {
        if !self.feature_active("obsolete_counts") {
            return Ok(());
        }
        let directory = self.directory().await?;
        let Some(id) = directory.try_get_u64(DMU_POOL_OBSOLETE_BPOBJ).await? else { return Ok(()) };
        let list = Bpobj::open(self.mos(), id).await?;
        for bp in self.pop_bpobj(&list, tx, BATCH).await? {
            self.ctx.note_obsolete(bp.dva(0));
        }
        if list.is_empty()? {
            directory.delete(tx, DMU_POOL_OBSOLETE_BPOBJ).await?;
            self.bpobj_free(tx, id).await?;
            self.feature_decr(tx, "obsolete_counts").await?;
        }
        Ok(())
    }
}
