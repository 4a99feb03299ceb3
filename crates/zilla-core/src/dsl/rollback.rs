//! Rolling a head back to its latest snapshot.
//!
//! A clone of the snapshot is made beside the head, the two change places, and the clone, which now
//! has the discarded contents, is destroyed.

use super::DslPool;
use super::Refusal;
use super::bpobj::Delta;
use super::dataset::DslDataset;
use super::redact::REDACTED;
use super::space::SpaceCheck;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::TXG_INITIAL;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::dsl::{DD_USED_HEAD, DD_USED_REFRSRV, DD_USED_SNAP};

impl DslPool {
    /// Why a head cannot be rolled back to `to` (a whole name), if it cannot.
    #[crate::boxed]
    pub async fn rollback_check(&self, fs: &str, to: Option<&str>) -> Result<Arc<DslDataset>> {
        let ds = self.by_name(fs).await?;
        let p = ds.phys();
        if ds.is_snapshot() {
            return Err(Error::inval(format!("{fs} is a snapshot")));
        }
        if ds.is_held_alone() {
            return Err(super::busy(fs));
        }
        if !self.key_loaded(&ds.dir()).await? {
            return Err(Error::os(Errno::Access, format!("{fs}: its key is not loaded")));
        }
        self.writable_key_check(&ds.dir()).await?;
        if p.prev_snap_txg < TXG_INITIAL.0 {
            return Err(Error::no_ent(format!("{fs}: no snapshot to roll back to")));
        }
        let Some(prev) = self.prev(&ds).await? else {
            return Err(Error::no_ent(format!("{fs}: no snapshot")));
        };
        if let Some(to) = to {
            let target = self.by_name(to).await?;
            if target.id != prev.id {
                return Err(Error::os(Errno::Exist, format!("{to} is not the latest snapshot of {fs}")));
            }
        }
        if ds.bookmarks.lock().last().is_some_and(|b| b.phys.creation_txg > p.prev_snap_txg) {
            return Err(Refusal::LaterBookmarks(fs.to_owned()).into());
        }
        let refquota = ds.refquota.load(Ordering::Relaxed);
        if refquota != 0 && prev.phys().referenced_bytes > refquota {
            return Err(Error::os(Errno::DQuot, format!("{fs}: the snapshot is over the refquota")));
        }
        let unused = ds.reserved.load(Ordering::Relaxed).min(p.unique_bytes);
        if unused > self.available(&ds.dir(), true) {
            return Err(Error::os(Errno::NoSpc, format!("{fs}: out of space")));
        }
        Ok(ds)
    }

    /// Rolls a head back. EBUSY: somebody uses it. Who would open it meanwhile is refused: he would
    /// have what is discarded, and what he writes to it would reach no disk.
    #[crate::boxed]
    pub async fn rollback(&self, tx: &Tx, fs: &str, to: Option<&str>) -> Result<()> {
        let ds = self.rollback_check(fs, to).await?;
        let _alone = ds.hold_alone().ok_or_else(|| super::busy(fs))?;
        let Some(prev) = self.prev(&ds).await? else { return Err(Error::no_ent("no snapshot")) };
        if prev.phys().creation_txg >= tx.txg().0 {
            return Err(Error::os(Errno::Again, format!("{fs}: the snapshot is of this txg")));
        }
        self.check_space(SpaceCheck::ExtraReserved)?;
        self.read_dataset(&ds).await?;
        self.read_livelist(&ds.dir()).await?;
        self.read_for_new(&ds.dir(), Some(&prev)).await?;
        // The clone's contents are the snapshot's; its root is read for its log's header.
        self.objset(&prev).await?;
        let clone = self.create_dataset_sync(tx, &ds.dir(), "%rollback", Some(&prev), 0).await?;
        self.discard_log(&ds, &clone).await;
        self.clone_swap(tx, &clone, &ds, &prev).await?;
        self.zero_zil(&ds).await?;
        self.destroy_head_sync(tx, &clone).await
    }

    /// Exchanges the contents of a head and a clone of its latest snapshot.
    pub(super) async fn clone_swap(
        &self,
        tx: &Tx,
        clone: &Arc<DslDataset>,
        head: &Arc<DslDataset>,
        origin: &Arc<DslDataset>,
    ) -> Result<()> {
        let (cr, hr) = (clone.redact_snaps(), head.redact_snaps());
        self.set_redacted(tx, clone, hr).await?;
        self.set_redacted(tx, head, cr).await?;
        let of_others = |ds: &DslDataset| {
            let all = ds.features.lock().clone();
            all.into_iter().filter(|f| *f != REDACTED).collect::<BTreeSet<_>>()
        };
        let (cf, hf) = (of_others(clone), of_others(head));
        for &f in cf.difference(&hf) {
            self.deactivate_feature(tx, clone, f).await?;
            self.activate_feature(tx, head, f).await?;
        }
        for &f in hf.difference(&cf) {
            self.deactivate_feature(tx, head, f).await?;
            self.activate_feature(tx, clone, f).await?;
        }
        if let Some(scan) = self.ctx.scan() {
            scan.swapped(tx, clone.id, head.id).await?;
        }
        let (cp, hp) = (clone.phys(), head.phys());
        let reserved = head.reserved.load(Ordering::Relaxed);
        let unused = reserved.min(hp.unique_bytes) as i64 - reserved.min(cp.unique_bytes) as i64;

        let cdl = self.deadlist_open(cp.deadlist_obj).await?;
        let hdl = self.deadlist_open(hp.deadlist_obj).await?;
        // A snapshot that the head is a clone of goes on elsewhere, and keeps what is its own
        // there.
        let op = origin.phys();
        if op.next_snap_obj == head.id {
            let unique = self.deadlist_space_range(&cdl, op.prev_snap_txg, u64::MAX).await?.used;
            origin.change(tx, |o| o.unique_bytes = unique);
        }

        let (cs, hs) = (cdl.space()?, hdl.space()?);
        let d = Delta {
            used: (cp.referenced_bytes + cs.used) as i64 - (hp.referenced_bytes + hs.used) as i64,
            comp: (cp.compressed_bytes + cs.comp) as i64 - (hp.compressed_bytes + hs.comp) as i64,
            uncomp: (cp.uncompressed_bytes + cs.uncomp) as i64 - (hp.uncompressed_bytes + hs.uncomp) as i64,
        };
        let dir = head.dir();
        dir.diduse(tx, DD_USED_HEAD, d);
        clone.dir().diduse(tx, DD_USED_HEAD, -d);
        // Snapshots use more or less by what the head's deadlist changes.
        let origin_txg = dir.origin_txg.load(Ordering::Relaxed);
        let c = self.deadlist_space_range(&cdl, origin_txg, u64::MAX).await?.used;
        let h = self.deadlist_space_range(&hdl, origin_txg, u64::MAX).await?.used;
        dir.transfer(tx, c as i64 - h as i64, DD_USED_HEAD, DD_USED_SNAP);

        let exchange = |to: &DslDataset, from: &zilla_ondisk::dsl::DslDatasetPhys| {
            to.change(tx, |p| {
                p.bp = from.bp;
                p.referenced_bytes = from.referenced_bytes;
                p.compressed_bytes = from.compressed_bytes;
                p.uncompressed_bytes = from.uncompressed_bytes;
                p.unique_bytes = from.unique_bytes;
                p.deadlist_obj = from.deadlist_obj;
            });
        };
        exchange(head, &cp);
        exchange(clone, &hp);
        clone.drop_objset();
        head.drop_objset();
        // A log that was kept goes with what is discarded.
        self.ctx.log.kept.forget(head.id);
        if let Some(scan) = self.ctx.scan() {
            scan.rearranged();
        }
        self.remaps_swapped(tx, clone, head).await?;
        dir.diduse(tx, DD_USED_REFRSRV, Delta { used: unused, ..Delta::default() });
        self.bookmarks_next_changed(tx, head, origin).await?;
        self.remove_livelist(tx, &clone.dir()).await?;
        self.remove_livelist(tx, &dir).await?;
        self.note(tx, clone, "clone swap", &format!("parent={}", dir.short_name()));
        Ok(())
    }
}
