//! Destroying snapshots and datasets.
//!
//! What a snapshot alone held are the blocks on its successor's deadlist that were born after its
//! predecessor. They go, as whole lists, to the pool's list of blocks to be freed; the rest of both
//! deadlists is joined. A head without snapshots is queued as a tree, or a clone by its livelist,
//! and freed bit by bit in later txgs.

use super::DslPool;
use super::bpobj::Delta;
use super::dataset::{DslDataset, LongHold};
use super::dir::DslDir;
use super::name;
use super::traverse::{Lenience, collect_with};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::zap::Zap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::dsl::{
    DD_FIELD_FILESYSTEM_COUNT, DD_USED_HEAD, DD_USED_REFRSRV, DD_USED_SNAP, DMU_POOL_BPTREE_OBJ,
    DS_FLAG_DEFER_DESTROY,
};
use zilla_ondisk::enums::SPA_VERSION_USERREFS;

/// Pointers of a destroyed tree that are in memory beside the list that takes them.
const AT_ONCE: usize = 1 << 16;

impl DslPool {
    /// Why a snapshot cannot be destroyed, if it cannot.
    #[crate::boxed]
    pub async fn destroy_snapshot_check(&self, snap: &DslDataset, defer: bool) -> Result<()> {
        if !snap.is_snapshot() {
            return Err(Error::inval(format!("{} is not a snapshot", snap.name())));
        }
        if snap.is_long_held() {
            return Err(super::busy(&snap.name()));
        }
        if defer {
            return self.needs_version(SPA_VERSION_USERREFS);
        }
        if snap.userrefs() > 0 {
            return Err(super::busy(&snap.name()));
        }
        if snap.phys().num_children > 1 {
            return Err(Error::os(Errno::Exist, format!("{}: snapshot has dependent clones", snap.name())));
        }
        Ok(())
    }

    /// The bytes that destroying a dataset's snapshots from `first` to `last` would give back. One
    /// by one they may have nothing of their own, and together much: what was born after the
    /// snapshot before and died before the next.
    #[crate::boxed]
    pub async fn space_freed_by(&self, first: &DslDataset, last: &DslDataset) -> Result<u64> {
        let since = first.phys().prev_snap_txg;
        let (mut at, mut used) = (None, 0u64);
        if last.phys().next_snap_obj != 0 {
            at = Some(self.dataset(last.phys().next_snap_obj).await?);
        }
        while at.as_ref().is_none_or(|ds| ds.id != first.id) {
            let Some(ds) = at else {
                return Err(Error::inval(format!("{} is not before {}", first.name(), last.name())));
            };
            let dead = self.deadlist_open(ds.phys().deadlist_obj).await?;
            used = used.saturating_add(self.deadlist_space_range(&dead, since, u64::MAX).await?.used);
            at = self.prev(&ds).await?;
        }
        Ok(used)
    }

    /// Destroys snapshots, all or none. Those that do not exist are passed over; with `defer`,
    /// those in use go when they no longer are.
    #[crate::boxed]
    pub async fn destroy_snapshots(&self, tx: &Tx, names: &[String], defer: bool) -> Result<()> {
        let (mut all, mut alone, mut known) = (Vec::new(), Vec::new(), BTreeSet::new());
        for n in names {
            match self.by_name(n).await {
                // (A name given twice is one snapshot.)
                Ok(s) if !known.insert(s.id) => {}
                Ok(s) => {
                    self.destroy_snapshot_check(&s, defer).await?;
                    // Nobody opens it from now on.
                    alone.push(s.hold_alone().ok_or_else(|| super::busy(n))?);
                    all.push(s);
                }
                Err(e) if e.is(Errno::NoEnt) => {}
                Err(e) => return Err(e),
            }
        }
        for s in &all {
            self.read_for_destroyed(s).await?;
        }
        for s in all {
            self.destroy_snapshot_sync(tx, &s, defer).await?;
        }
        Ok(())
    }

    pub(super) async fn destroy_snapshot_sync(
        &self,
        tx: &Tx,
        ds: &Arc<DslDataset>,
        defer: bool,
    ) -> Result<()> {
        let p = ds.phys();
        if defer && (ds.userrefs() > 0 || p.num_children > 1) {
            ds.change(tx, |p| p.flags |= DS_FLAG_DEFER_DESTROY);
            self.note(tx, ds, "defer_destroy", " ");
            return Ok(());
        }
        self.note(tx, ds, "destroy", " ");
        let dir = ds.dir();
        let head = self.head(&dir).await?;
        let active: Vec<_> = ds.features.lock().iter().copied().collect();
        for f in active {
            self.deactivate_feature(tx, ds, f).await?;
        }

        if let Some(scan) = self.ctx.scan() {
            scan.destroyed(tx, ds.id, Some(p.next_snap_obj)).await?;
        }

        // A bookmark of this txg needs the key in later deadlists.
        let keep_key = self.bookmarks_destroyed(tx, &head, ds).await?;

        // Out of the chain.
        let prev = self.prev(ds).await?;
        let mut branch = false;
        if let Some(prev) = &prev {
            let pp = prev.phys();
            branch = pp.next_snap_obj != ds.id;
            // Pools of long ago do not list all that go on from a snapshot.
            if branch && pp.next_clones_obj != 0 {
                let clones = Zap::open(self.mos(), pp.next_clones_obj).await?;
                clones.remove_int_if_there(tx, ds.id).await?;
                if p.next_snap_obj != 0 {
                    clones.add_int(tx, p.next_snap_obj).await?;
                }
            }
            if !branch {
                prev.change(tx, |pp| pp.next_snap_obj = p.next_snap_obj);
            }
        }
        let next = self.dataset(p.next_snap_obj).await?;
        let old_unique = next.phys().unique_bytes;
        next.change(tx, |np| {
            np.prev_snap_obj = p.prev_snap_obj;
            np.prev_snap_txg = p.prev_snap_txg;
        });

        // Blocks: to the predecessor's unique space, to the free list, or into the joined deadlist.
        let mut dl = self.deadlist_open(next.phys().deadlist_obj).await?;
        if let (Some(prev), false) = (&prev, branch) {
            let s = self.deadlist_space_range(&dl, prev.phys().prev_snap_txg, p.prev_snap_txg).await?;
            prev.change(tx, |pp| pp.unique_bytes += s.used);
        }
        let freed = self.deadlist_space_range(&dl, p.prev_snap_txg, u64::MAX).await?;
        dir.diduse(tx, DD_USED_SNAP, -Delta::from(freed));
        let special = self.special();
        let freeing = special.freeing.as_ref();
        self.deadlist_move_bpobj(tx, &mut dl, freeing.map(|f| &f.bpobj), p.prev_snap_txg).await?;
        if let Some(freeing) = freeing {
            freeing.dir.diduse(tx, DD_USED_HEAD, freed);
        }
        self.deadlist_merge(tx, &mut dl, p.deadlist_obj).await?;
        self.free_object(tx, p.deadlist_obj).await?;
        ds.change(tx, |p| p.deadlist_obj = 0);
        self.remaps_destroyed(tx, ds, &next, p.prev_snap_txg).await?;

        if !keep_key {
            self.remove_clones_key(tx, &dir, p.creation_txg).await?;
        }
        if next.is_snapshot() {
            // What only this one and its successor shared is the successor's alone now.
            let after = self.dataset(next.phys().next_snap_obj).await?;
            let adl = self.deadlist_open(after.phys().deadlist_obj).await?;
            let s = self.deadlist_space_range(&adl, p.prev_snap_txg, p.creation_txg).await?;
            next.change(tx, |np| np.unique_bytes += s.used);
            if !keep_key {
                let mut hdl = self.deadlist_open(head.phys().deadlist_obj).await?;
                self.deadlist_remove_key(tx, &mut hdl, p.creation_txg).await?;
            }
        } else {
            self.recalc_head_unique(tx, &next).await?;
            let reserved = next.reserved.load(Ordering::Relaxed);
            if old_unique < reserved {
                let new = next.phys().unique_bytes;
                let less = new.saturating_sub(old_unique).min(reserved - old_unique) as i64;
                dir.diduse(tx, DD_USED_REFRSRV, Delta { used: -less, ..Delta::default() });
            }
        }
        let snapname = ds.snapshot_name();
        self.snap_remove(tx, &head, &snapname, true).await?;
        for id in [p.next_clones_obj, p.props_obj, p.userrefs_obj] {
            if id != 0 {
                self.free_object(tx, id).await?;
            }
        }
        self.forget_dataset(ds);
        self.free_zapified(tx, &ds.dn).await?;
        if let Some(scan) = self.ctx.scan() {
            scan.rearranged();
        }
        Ok(())
    }

    /// A head's unique space, from what it refers to and what its snapshot still holds.
    pub(super) async fn recalc_head_unique(&self, tx: &Tx, head: &DslDataset) -> Result<()> {
        let p = head.phys();
        let shared = match self.prev(head).await? {
            Some(prev) => {
                let dead = self.deadlist_open(p.deadlist_obj).await?.space()?.used;
                prev.phys().referenced_bytes.saturating_sub(dead)
            }
            None => 0,
        };
        head.change(tx, |p| {
            p.unique_bytes = p.referenced_bytes.saturating_sub(shared);
            p.flags |= self.unique_accurate();
        });
        Ok(())
    }

    /// Joins the range of a destroyed snapshot in the deadlists of all clones that were made after
    /// it.
    pub(super) async fn remove_clones_key(&self, tx: &Tx, dir: &Arc<DslDir>, min_txg: u64) -> Result<()> {
        for clone in self.clones_since(dir, min_txg).await? {
            let mut dl = self.deadlist_open(clone.phys().deadlist_obj).await?;
            self.deadlist_remove_key(tx, &mut dl, min_txg).await?;
            self.remaps_lose_key(tx, &clone, min_txg).await?;
        }
        Ok(())
    }

    /// A dir's clones, and theirs, that were made after `min_txg`.
    pub(super) async fn clones_since(&self, dir: &Arc<DslDir>, min_txg: u64) -> Result<Vec<Arc<DslDataset>>> {
        let (mut todo, mut seen, mut found) = (vec![dir.clone()], BTreeSet::new(), Vec::new());
        while let Some(d) = todo.pop() {
            let id = d.phys().clones;
            // A clone's clones are others; where they lead back is damage.
            if id == 0 || !seen.insert(d.id) {
                continue;
            }
            for clone in Zap::open(self.mos(), id).await?.ints().await? {
                let clone = self.dataset(clone).await?;
                let cd = clone.dir();
                if cd.origin_txg.load(Ordering::Relaxed) > min_txg {
                    found.push(clone);
                    todo.push(cd);
                }
            }
        }
        Ok(found)
    }

    /// Why a file system, volume or clone cannot be destroyed, if it cannot.
    #[crate::boxed]
    pub async fn destroy_head_check(&self, ds: &Arc<DslDataset>) -> Result<()> {
        let name = ds.name();
        if ds.is_snapshot() {
            return Err(Error::inval(format!("{name} is a snapshot")));
        }
        if ds.is_long_held() {
            return Err(super::busy(&name));
        }
        let prev = self.prev(ds).await?;
        if prev.as_ref().is_some_and(|p| p.phys().next_snap_obj == ds.id) {
            return Err(Error::os(Errno::Busy, format!("{name}: filesystem has snapshots")));
        }
        let children = Zap::open(self.mos(), ds.dir().phys().child_dir_zapobj).await?;
        if !children.is_empty().await? {
            return Err(Error::os(Errno::Exist, format!("{name}: filesystem has children")));
        }
        if self.dies_with(ds).await?.is_some_and(|o| o.is_long_held()) {
            return Err(super::busy(&name));
        }
        Ok(())
    }

    /// The origin snapshot that only waits for this clone to go.
    async fn dies_with(&self, ds: &Arc<DslDataset>) -> Result<Option<Arc<DslDataset>>> {
        if !self.is_clone(&ds.dir()) {
            return Ok(None);
        }
        let prev = self.prev(ds).await?;
        Ok(prev.filter(|o| o.is_defer_destroy() && o.phys().num_children == 2 && o.userrefs() == 0))
    }

    /// Destroys a file system, volume or clone that has no snapshots and no children.
    #[crate::boxed]
    pub async fn destroy_head(&self, tx: &Tx, name: &str) -> Result<()> {
        if name::parent(name).is_none() {
            return Err(Error::inval(format!("{name}: the root dataset cannot be destroyed")));
        }
        let ds = self.by_name(name).await?;
        self.destroy_head_check(&ds).await?;
        // Nobody opens it from now on.
        let _alone = ds.hold_alone().ok_or_else(|| super::busy(name))?;
        let _origin_alone = self.hold_origin(&ds).await?;
        self.read_for_destroyed(&ds).await?;
        self.destroy_head_sync(tx, &ds).await
    }

    /// Before a head is destroyed, what [`DslPool::destroy_head_sync`] takes along: nobody opens it
    /// from now on, and what its destruction needs is read.
    pub(super) async fn hold_origin(&self, ds: &Arc<DslDataset>) -> Result<Option<LongHold>> {
        let Some(origin) = self.dies_with(ds).await? else { return Ok(None) };
        let alone = origin.hold_alone().ok_or_else(|| super::busy(&origin.name()))?;
        self.read_for_destroyed(&origin).await?;
        Ok(Some(alone))
    }

    pub(super) async fn destroy_head_sync(&self, tx: &Tx, ds: &Arc<DslDataset>) -> Result<()> {
        self.note(tx, ds, "destroy", " ");
        let dir = ds.dir();
        if let Some(scan) = self.ctx.scan() {
            scan.destroyed(tx, ds.id, None).await?;
            scan.errors.forget_dataset(tx, ds.id).await;
        }
        let origin = self.dies_with(ds).await?;
        let prev = self.prev(ds).await?;
        if ds.reserved.load(Ordering::Relaxed) != 0 {
            self.set_refreservation(tx, ds, 0);
        }
        let active: Vec<_> = ds.features.lock().iter().copied().collect();
        for f in active {
            self.deactivate_feature(tx, ds, f).await?;
        }
        if let Some(prev) = &prev {
            let clones = prev.phys().next_clones_obj;
            if clones != 0 {
                Zap::open(self.mos(), clones).await?.remove_int_if_there(tx, ds.id).await?;
            }
            prev.change(tx, |p| p.num_children = p.num_children.saturating_sub(1));
        }
        let p = ds.phys();
        self.deadlist_free(tx, p.deadlist_obj).await?;
        self.remaps_forgotten(tx, ds).await?;
        self.free_intent_log(ds).await?;
        if !self.livelist_queue(tx, &dir).await? {
            self.remove_livelist(tx, &dir).await?;
            self.queue_tree(tx, ds, &dir).await?;
        }
        if let Some(prev) = &prev {
            let clones = prev.dir().phys().clones;
            if clones != 0 {
                Zap::open(self.mos(), clones).await?.remove_int_if_there(tx, ds.id).await?;
            }
        }
        self.free_object(tx, p.snapnames_zapobj).await?;
        self.free_bookmarks(tx, ds).await?;
        dir.change(tx, |d| d.head_dataset_obj = 0);
        self.forget_dataset(ds);
        self.free_zapified(tx, &ds.dn).await?;
        self.destroy_dir_sync(tx, &dir).await?;
        match origin {
            Some(o) => self.destroy_snapshot_sync(tx, &o, false).await,
            None => Ok(()),
        }
    }

    /// Queues a head's blocks to be freed, and moves their account to `$FREE`.
    async fn queue_tree(&self, tx: &Tx, ds: &DslDataset, dir: &Arc<DslDir>) -> Result<()> {
        let (p, space, special) = (ds.phys(), dir.space(), self.special());
        let freeing = special.freeing.as_ref();
        if self.feature_enabled("async_destroy") {
            let mut id = self.bptree_obj.load(Ordering::Relaxed);
            if id == 0 {
                id = self.bptree_alloc(tx).await?;
                self.directory().await?.insert_u64(tx, DMU_POOL_BPTREE_OBJ, id).await?;
                self.bptree_obj.store(id, Ordering::Relaxed);
                self.feature_incr(tx, "async_destroy").await?;
            }
            self.bptree_add(tx, id, p.bp, p.prev_snap_txg, space).await?;
        } else {
            // An old pool has no queue for trees; its list of blocks takes them, if it has one.
            // What is damaged stays allocated.
            let mut lenience = Lenience { leave_out: true, ..Lenience::default() };
            let (store, since) = (&self.ctx.store, p.prev_snap_txg);
            let mut from = None;
            loop {
                let (bps, next) = collect_with(store, p.bp, since, from, AT_ONCE, &mut lenience).await?;
                self.bury(tx, freeing.map(|f| &f.bpobj), &bps).await?;
                if next.is_none() {
                    break;
                }
                from = next;
            }
        }
        dir.diduse(tx, DD_USED_HEAD, -Delta::from(space));
        if let Some(freeing) = freeing {
            freeing.dir.diduse(tx, DD_USED_HEAD, space);
        }
        Ok(())
    }

    async fn destroy_dir_sync(&self, tx: &Tx, dir: &Arc<DslDir>) -> Result<()> {
        let Some(parent) = dir.parent() else { return Err(Error::inval("the root dir cannot be destroyed")) };
        self.count_adjust(tx, &parent, -1, DD_FIELD_FILESYSTEM_COUNT).await?;
        dir.set_reservation(tx, 0);
        self.destroy_key(tx, dir).await?;
        let p = dir.phys();
        for id in [p.child_dir_zapobj, p.props_zapobj, p.clones] {
            if id != 0 {
                self.free_object(tx, id).await?;
            }
        }
        if p.deleg_zapobj != 0 {
            // Each entry of a delegation is a ZAP of its own.
            for e in Zap::open(self.mos(), p.deleg_zapobj).await?.entries().await? {
                if let Some(id) = e.value.as_u64() {
                    self.free_object(tx, id).await?;
                }
            }
            self.free_object(tx, p.deleg_zapobj).await?;
        }
        let children = Zap::open(self.mos(), parent.phys().child_dir_zapobj).await?;
        children.delete(tx, &dir.short_name()).await?;
        self.forget_dir(dir);
        let dn = self.mos().hold_wait(ObjectId(dir.id)).await?;
        self.free_zapified(tx, &dn).await
    }
}
