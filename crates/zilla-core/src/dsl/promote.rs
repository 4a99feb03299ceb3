//! Promoting a clone: it takes over the snapshots it shares with its origin, which becomes its
//! clone.

use super::DslPool;
use super::bpobj::{Delta, Space};
use super::dataset::DslDataset;
use super::space::SpaceCheck;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::Txg;
use crate::zap::Zap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::dsl::{DD_FIELD_SNAPSHOT_COUNT, DD_USED_HEAD, DD_USED_SNAP, DS_FLAG_NOPROMOTE};
use zilla_ondisk::enums::SPA_VERSION_DEADLISTS;

/// Everything that a promotion touches, newest first.
struct Family {
    clone: Arc<DslDataset>,
    /// The origin and the snapshots before it, as far as the origin's dir goes.
    shared: Vec<Arc<DslDataset>>,
    /// The clone and its snapshots.
    clone_snaps: Vec<Arc<DslDataset>>,
    /// The origin's head and its snapshots after (and before) the origin.
    origin_snaps: Vec<Arc<DslDataset>>,
    origin_origin: Option<Arc<DslDataset>>,
}

impl DslPool {
    /// From `last` back to `first`, which is left out; 0 stands for the origin of the dir.
    async fn snaplist(&self, first: u64, last: u64) -> Result<Vec<Arc<DslDataset>>> {
        let (mut first, mut at) = (first, last);
        let mut out: Vec<Arc<DslDataset>> = Vec::new();
        let mut seen = BTreeSet::new();
        while at != first {
            if at == 0 || !seen.insert(at) {
                return Err(Error::corrupt(
                    None,
                    "",
                    format!("dataset {last} does not descend from {first}"),
                ));
            }
            let ds = self.dataset(at).await?;
            if first == 0 {
                first = ds.dir().phys().origin_obj;
            }
            at = ds.phys().prev_snap_obj;
            out.push(ds);
        }
        Ok(out)
    }

    async fn family(&self, name: &str) -> Result<Family> {
        let clone = self.by_name(name).await?;
        let dir = clone.dir();
        if clone.is_snapshot() || !self.is_clone(&dir) {
            return Err(Error::inval("not a cloned filesystem"));
        }
        // What is received on its origin must find it there to the end.
        if clone.is_inconsistent() {
            return Err(super::busy(name));
        }
        if clone.phys().flags & DS_FLAG_NOPROMOTE != 0 {
            return Err(Error::os(Errno::XDev, "the clone cannot be promoted"));
        }
        let origin_id = dir.phys().origin_obj;
        let shared = self.snaplist(0, origin_id).await?;
        let Some(origin) = shared.first() else { return Err(Error::no_ent("the origin is gone")) };
        let odir = origin.dir().phys();
        let clone_snaps = self.snaplist(origin_id, clone.id).await?;
        let origin_snaps = self.snaplist(origin_id, odir.head_dataset_obj).await?;
        let origin_origin = match odir.origin_obj {
            0 => None,
            id => Some(self.dataset(id).await?),
        };
        Ok(Family { clone, shared, clone_snaps, origin_snaps, origin_origin })
    }

    async fn snaplist_space(&self, list: &[Arc<DslDataset>], min_txg: u64) -> Result<Space> {
        let mut sum = Space::default();
        for ds in list {
            let dl = self.deadlist_open(ds.phys().deadlist_obj).await?;
            sum.add(self.deadlist_space_range(&dl, min_txg, u64::MAX).await?);
        }
        Ok(sum)
    }

    /// Names of snapshots that the clone has already, which forbids to promote it.
    #[crate::boxed]
    pub async fn promote_conflicts(&self, name: &str) -> Result<Vec<String>> {
        let f = self.family(name).await?;
        let mut out = Vec::new();
        if let (Some(origin), Some(head)) = (f.shared.first(), f.origin_snaps.first()) {
            let txg = origin.phys().creation_txg;
            out.extend(self.bookmark_conflicts(head, &f.clone, txg).await?);
        }
        for s in &f.shared {
            if self.snap_lookup(&f.clone, &s.snapshot_name()).await?.is_some() {
                out.push(s.snapshot_name());
            }
        }
        Ok(out)
    }

    #[crate::boxed]
    pub async fn promote(&self, tx: &Tx, name: &str) -> Result<()> {
        let f = self.family(name).await?;
        if let Some(s) = self.promote_conflicts(name).await?.first() {
            return Err(Error::os(
                Errno::Exist,
                format!("snapshot name '{s}' from origin conflicts with '{s}' from target"),
            ));
        }
        let (Some(origin), Some(oldest), Some(origin_head)) =
            (f.shared.first(), f.clone_snaps.last(), f.origin_snaps.first())
        else {
            return Err(Error::no_ent("the origin is gone"));
        };
        self.check_space(SpaceCheck::Reserved)?;
        for ds in f.shared.iter().chain(&f.clone_snaps).chain(&f.origin_snaps).chain(&f.origin_origin) {
            self.read_dataset(ds).await?;
        }
        for s in &f.shared {
            let clones = s.phys().next_clones_obj;
            if clones != 0 {
                for id in Zap::open(self.mos(), clones).await?.ints().await? {
                    self.dataset(id).await?;
                }
            }
        }
        self.read_livelist(&f.clone.dir()).await?;
        self.read_livelist(&origin.dir()).await?;
        self.read_pool().await?;
        let (dd, odd) = (f.clone.dir(), origin.dir());
        let op = origin.phys();
        self.promote_key_check(&dd, &odd).await?;

        // The space that goes over: what the shared snapshots refer to and have dropped.
        let odl = self.deadlist_open(oldest.phys().deadlist_obj).await?;
        let unique = self.deadlist_space_range(&odl, op.prev_snap_txg, u64::MAX).await?.used;
        let mut moved =
            Space { used: op.referenced_bytes, comp: op.compressed_bytes, uncomp: op.uncompressed_bytes };
        for s in &f.shared {
            let p = s.phys();
            if p.prev_snap_obj != 0 {
                moved.add(self.deadlist_open(p.deadlist_obj).await?.space()?);
            }
        }
        if let Some(o) = &f.origin_origin {
            let p = o.phys();
            moved.sub(Space {
                used: p.referenced_bytes,
                comp: p.compressed_bytes,
                uncomp: p.uncompressed_bytes,
            });
        }
        let origin_txg = odd.origin_txg.load(Ordering::Relaxed);
        let mut clone_snap = self.snaplist_space(&f.shared, origin_txg).await?;
        clone_snap.add(self.snaplist_space(&f.clone_snaps, origin_txg).await?);
        let origin_snap = self.snaplist_space(&f.origin_snaps, op.creation_txg).await?;
        self.transfer_check(&odd, &dd, moved.used)?;

        self.promote_key(tx, &dd, &odd).await?;
        // The origin continues in the clone now, and branches off to what was its own head.
        let old_next = op.next_snap_obj;
        origin.change(tx, |p| p.next_snap_obj = oldest.id);
        if op.next_clones_obj != 0 {
            let clones = Zap::open(self.mos(), op.next_clones_obj).await?;
            clones.remove_int_if_there(tx, oldest.id).await?;
            clones.add_int(tx, old_next).await?;
        }
        let grand = odd.phys().origin_obj;
        dd.change(tx, |d| d.origin_obj = grand);
        dd.origin_txg.store(origin_txg, Ordering::Relaxed);
        odd.change(tx, |d| d.origin_obj = origin.id);
        odd.origin_txg.store(op.creation_txg, Ordering::Relaxed);
        self.move_clone_entries(tx, &f, origin_head.id, &dd, &odd).await?;
        if let Some(scan) = self.ctx.scan() {
            scan.errors.promoted(tx, f.clone.id, origin_head.id, Txg(op.creation_txg)).await;
        }
        self.bookmarks_move(tx, origin_head, &f.clone, op.creation_txg).await?;
        self.bookmarks_next_changed(tx, &f.clone, origin).await?;
        self.move_snapshots(tx, &f, origin_head, old_next, &dd, &odd).await?;
        if let Some(scan) = self.ctx.scan() {
            scan.rearranged();
        }

        let delta = clone_snap.used as i64 - dd.phys().used_breakdown[DD_USED_SNAP] as i64;
        dd.diduse(tx, DD_USED_SNAP, Delta { used: delta, ..Delta::default() });
        let m = Delta::from(moved);
        dd.diduse(tx, DD_USED_HEAD, Delta { used: m.used - delta, ..m });
        let delta = origin_snap.used as i64 - odd.phys().used_breakdown[DD_USED_SNAP] as i64;
        odd.diduse(tx, DD_USED_SNAP, Delta { used: delta, ..Delta::default() });
        odd.diduse(tx, DD_USED_HEAD, Delta { used: -m.used - delta, comp: -m.comp, uncomp: -m.uncomp });
        origin.change(tx, |p| p.unique_bytes = unique);
        self.remove_livelist(tx, &dd).await?;
        self.remove_livelist(tx, &odd).await?;
        self.note(tx, &f.clone, "promote", " ");
        self.props_changed(&dd).await
    }

    /// The lists of clones that the dirs keep.
    async fn move_clone_entries(
        &self,
        tx: &Tx,
        f: &Family,
        origin_head: u64,
        dd: &Arc<super::DslDir>,
        odd: &Arc<super::DslDir>,
    ) -> Result<()> {
        if self.ctx.version() < SPA_VERSION_DEADLISTS {
            return Ok(());
        }
        Zap::open(self.mos(), odd.phys().clones).await?.remove_int(tx, f.clone.id).await?;
        if let Some(o) = &f.origin_origin {
            let zap = Zap::open(self.mos(), o.dir().phys().clones).await?;
            zap.add_int(tx, f.clone.id).await?;
            zap.remove_int(tx, origin_head).await?;
        }
        self.add_dir_clone(tx, dd, origin_head).await
    }

    async fn move_snapshots(
        &self,
        tx: &Tx,
        f: &Family,
        origin_head: &Arc<DslDataset>,
        old_next: u64,
        dd: &Arc<super::DslDir>,
        odd: &Arc<super::DslDir>,
    ) -> Result<()> {
        for s in &f.shared {
            let name = s.snapshot_name();
            self.snap_remove(tx, origin_head, &name, true).await?;
            Zap::open(self.mos(), f.clone.phys().snapnames_zapobj).await?.insert_u64(tx, &name, s.id).await?;
            self.count_adjust(tx, dd, 1, DD_FIELD_SNAPSHOT_COUNT).await?;
            s.change(tx, |p| p.dir_obj = dd.id);
            s.set_dir(dd.clone());
            self.note_renamed();
            let clones = s.phys().next_clones_obj;
            if clones == 0 || self.ctx.version() < SPA_VERSION_DEADLISTS {
                continue;
            }
            for id in Zap::open(self.mos(), clones).await?.ints().await? {
                if id == old_next {
                    continue;
                }
                let head = self.dataset(id).await?.dir().phys().head_dataset_obj;
                Zap::open(self.mos(), odd.phys().clones).await?.remove_int(tx, head).await?;
                Zap::open(self.mos(), dd.phys().clones).await?.add_int(tx, head).await?;
            }
        }
        Ok(())
    }
}
