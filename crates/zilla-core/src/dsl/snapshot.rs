//! Taking snapshots.

use super::DslPool;
use super::bpobj::Delta;
use super::dataset::DslDataset;
use super::name;
use super::pool::ORIGIN_DIR_NAME;
use super::space::SpaceCheck;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zap::Zap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::Phys;
use zilla_ondisk::dsl::{DD_FIELD_SNAPSHOT_COUNT, DD_USED_REFRSRV, DS_FIELD_IVSET_GUID};

impl DslPool {
    /// Why a snapshot of this name cannot be taken, if it cannot; in the syncing context the answer
    /// is final.
    #[crate::boxed]
    pub async fn snapshot_check(&self, name: &str, syncing: Option<&Tx>) -> Result<Arc<DslDataset>> {
        name::check(name)?;
        let parts = name::split(name);
        let Some(snap) = parts.snap else {
            return Err(Error::inval("missing '@' delimiter in snapshot name"));
        };
        let head = self.by_name(parts.fs).await?;
        if self.snap_lookup(&head, snap).await?.is_some() {
            return Err(Error::os(Errno::Exist, format!("{name}: dataset already exists")));
        }
        if head.is_inconsistent() {
            return Err(super::busy(name));
        }
        if syncing.is_some_and(|tx| head.phys().prev_snap_txg >= tx.txg().0) {
            return Err(Error::os(Errno::Again, format!("{name}: a snapshot of this txg exists")));
        }
        self.refreservation_check(&head)?;
        Ok(head)
    }

    /// A snapshot takes over what its head alone has: what is reserved for the head is then charged
    /// once more. Refuses that where there is no room for it.
    pub(super) fn refreservation_check(&self, head: &DslDataset) -> Result<()> {
        let need = head.phys().unique_bytes.min(head.reserved.load(Ordering::Relaxed));
        if need > self.available(&head.dir(), true) {
            return Err(Error::os(Errno::NoSpc, format!("{}: out of space", head.name())));
        }
        Ok(())
    }

    /// The same of several that are taken together: each is charged beside the others.
    fn refreservations_check<'a>(&self, heads: impl Iterator<Item = &'a Arc<DslDataset>>) -> Result<()> {
        let mut charged: BTreeMap<u64, u64> = BTreeMap::new();
        for head in heads {
            let mut need = head.phys().unique_bytes.min(head.reserved.load(Ordering::Relaxed));
            for d in head.dir().ancestry() {
                if need == 0 {
                    break;
                }
                let (p, known) = (d.phys(), charged.entry(d.id).or_default());
                let before = p.used_bytes.saturating_add(*known);
                let after = before.saturating_add(need);
                let mut quota = if p.quota == 0 { u64::MAX } else { p.quota };
                if d.parent().is_none() {
                    quota = quota.min(self.adjusted_size(SpaceCheck::Normal));
                }
                if after > quota {
                    return Err(Error::os(Errno::NoSpc, format!("{}: out of space", head.name())));
                }
                *known += need;
                need = after.max(p.reserved) - before.max(p.reserved);
            }
        }
        Ok(())
    }

    /// Takes snapshots, all in this txg or none. `fs@snap` each, of different file systems.
    #[crate::boxed]
    pub async fn snapshot(&self, tx: &Tx, names: &[String]) -> Result<Vec<Arc<DslDataset>>> {
        let mut heads = Vec::with_capacity(names.len());
        for n in names {
            let head = self.snapshot_check(n, Some(tx)).await?;
            if heads.iter().any(|(h, _): &(Arc<DslDataset>, &str)| h.id == head.id) {
                return Err(Error::os(Errno::XDev, "multiple snapshots of the same dataset not allowed"));
            }
            heads.push((head, name::split(n).snap.unwrap_or_default()));
        }
        if heads.len() > 1 {
            self.refreservations_check(heads.iter().map(|(head, _)| head))?;
        }
        self.check_space_for(SpaceCheck::Normal, heads.len())?;
        for (head, _) in &heads {
            self.read_dataset(head).await?;
            if let Some(prev) = self.prev(head).await? {
                self.read_dataset(&prev).await?;
            }
        }
        self.read_pool().await?;
        let now = self.ctx.env.wall().as_secs();
        let mut out = Vec::with_capacity(heads.len());
        for (head, snap) in heads {
            out.push(self.snapshot_sync(tx, &head, snap, now).await?);
        }
        Ok(out)
    }

    /// The names of the snapshots that `zfs snapshot -r fs@snap` takes: of the file system and all
    /// below it, but for what a receive that has not ended makes, of which there can be none.
    #[crate::boxed]
    pub async fn recursive_names(&self, name: &str) -> Result<Vec<String>> {
        let parts = name::split(name);
        let Some(snap) = parts.snap else {
            return Err(Error::inval("missing '@' delimiter in snapshot name"));
        };
        let mut out = Vec::new();
        let top = self.dir_by_name(parts.fs).await?;
        let mut todo = vec![top.clone()];
        while let Some(dir) = todo.pop() {
            if dir.id != top.id && self.head(&dir).await?.is_inconsistent() {
                continue;
            }
            out.push(format!("{}@{snap}", dir.name()));
            todo.extend(self.child_dirs(&dir).await?);
        }
        out.sort();
        Ok(out)
    }

    pub(super) async fn snapshot_sync(
        &self,
        tx: &Tx,
        ds: &Arc<DslDataset>,
        snap: &str,
        now: u64,
    ) -> Result<Arc<DslDataset>> {
        let dir = ds.dir();
        self.count_adjust(tx, &dir, 1, DD_FIELD_SNAPSHOT_COUNT).await?;
        // The origin's creation must be before that of everything else.
        let txg = if snap == ORIGIN_DIR_NAME { 1 } else { tx.txg().0 };
        let (dn, mut p) = self.new_dataset(tx, &dir).await?;
        let id = dn.id().0;
        let hp = ds.phys();
        p.prev_snap_obj = hp.prev_snap_obj;
        p.prev_snap_txg = hp.prev_snap_txg;
        p.next_snap_obj = ds.id;
        p.num_children = 1;
        p.creation_time = now;
        p.creation_txg = txg;
        p.deadlist_obj = hp.deadlist_obj;
        p.referenced_bytes = hp.referenced_bytes;
        p.compressed_bytes = hp.compressed_bytes;
        p.uncompressed_bytes = hp.uncompressed_bytes;
        p.unique_bytes = 0;
        p.flags = hp.flags;
        p.bp = hp.bp;
        dn.set_bonus(tx, &p.encode());
        let s = self.insert_dataset(dn, p, dir.clone());
        *s.snapname.lock() = snap.to_owned();
        self.copy_features(tx, ds, &s).await?;

        if self.feature_enabled("bookmark_v2") && self.is_encrypted(&dir).await? {
            // Tells apart sets of initialisation vectors, for raw streams.
            let guid = self.random();
            self.zapify(tx, &s.dn).await?.insert_u64(tx, DS_FIELD_IVSET_GUID, guid).await?;
        }
        if let Some(prev) = self.prev(ds).await? {
            let pp = prev.phys();
            if pp.next_snap_obj == ds.id {
                prev.change(tx, |p| p.next_snap_obj = id);
            } else if pp.next_clones_obj != 0 {
                let clones = Zap::open(self.mos(), pp.next_clones_obj).await?;
                clones.remove_int_if_there(tx, ds.id).await?;
                clones.add_int(tx, id).await?;
            }
        }
        // The head's unique space goes to zero, so all of a refreservation has to be charged again.
        let reserved = ds.reserved.load(Ordering::Relaxed);
        if reserved > 0 {
            let used = hp.unique_bytes.min(reserved) as i64;
            dir.diduse(tx, DD_USED_REFRSRV, Delta { used, ..Delta::default() });
        }
        let old = self.deadlist_open(hp.deadlist_obj).await?;
        let new = self.deadlist_clone(tx, &old, u64::MAX, hp.prev_snap_obj).await?;
        let mut dl = self.deadlist_open(new).await?;
        self.deadlist_add_key(tx, &mut dl, hp.prev_snap_txg).await?;
        self.bookmarks_snapshotted(tx, ds, &mut dl, hp.prev_snap_txg).await?;
        ds.change(tx, |p| {
            p.deadlist_obj = new;
            p.prev_snap_obj = id;
            p.prev_snap_txg = txg;
            p.unique_bytes = 0;
            p.flags |= self.unique_accurate();
        });
        Zap::open(self.mos(), hp.snapnames_zapobj).await?.insert_u64(tx, snap, id).await?;
        self.snap_cmtime_update(tx, &dir).await?;
        self.remaps_snapshotted(tx, ds, &s).await?;
        if let Some(scan) = self.ctx.scan() {
            scan.snapshotted(tx, ds.id, id).await?;
        }
        if snap != ORIGIN_DIR_NAME {
            self.note(tx, &s, "snapshot", " ");
        }
        Ok(s)
    }
}
