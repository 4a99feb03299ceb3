//! What a txg did to each dataset: blocks born and killed, counted and put where they belong.

use super::DslPool;
use super::bpobj::{Delta, Space};
use super::dataset::DslDataset;
use super::pool::{LEAK_DIR_NAME, LEAKING};
use super::props::{checksum_feature, compress_feature, size_features};
use crate::dmu::{ObjsetSync, Resolver};
use crate::error::Result;
use crate::tunables;
use crate::txg::Tx;
use crate::types::Txg;
use crate::zap::Zap;
use crate::zio::Leave;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dsl::{DD_USED_HEAD, DD_USED_REFRSRV, DD_USED_SNAP};
use zilla_ondisk::object_type;

/// So many blocks of what was destroyed are freed in a txg however full the pool is.
const LEAST_BATCH: u64 = 1000;
/// The same in a pool that has deduplicated blocks.
const LEAST_DEDUP_BATCH: u64 = 100;

/// Whether what is held of a dataset may be tried again in a txg. A snapshot of this txg has the
/// blocks that would be written again in their places.
fn may_try_held(ds: &DslDataset, txg: Txg) -> bool {
    ds.phys().prev_snap_txg < txg.0
}

impl DslPool {
    /// Whether some dataset has changes of `txg` that are not written.
    pub fn is_dirty(&self, txg: Txg) -> bool {
        self.open_datasets().iter().any(|ds| self.wants_sync(ds, txg))
    }

    fn wants_sync(&self, ds: &DslDataset, txg: Txg) -> bool {
        let now = self.ctx.env.now();
        let dirty = |os: std::sync::Arc<crate::dmu::Objset>| {
            let of_log = || os.log().is_some_and(|log| log.is_dirty(txg));
            os.is_dirty(txg) || of_log() || may_try_held(ds, txg) && os.held_is_due(now)
        };
        ds.rewrite_root.load(Ordering::Relaxed) || ds.open_objset().is_some_and(dirty)
    }

    /// Begins to read what the syncs of all datasets will need of the old state, at once and in the
    /// order of the disks. `txg` takes no more changes.
    pub(crate) fn resolve_faults(&self, txg: Txg) {
        let mut resolver = Resolver::new(txg);
        for os in self.open_datasets().iter().filter_map(|ds| ds.open_objset()) {
            resolver.gather(&os);
        }
        if !resolver.is_empty() {
            self.ctx.env.spawn(resolver.run());
        }
    }

    /// Writes everything the datasets changed in `txg`, and accounts for it. Called in every pass
    /// of a sync, before the sync tasks: a dataset is written again only if a sync task has just
    /// made it.
    #[crate::boxed]
    pub async fn sync_datasets(self: &Arc<Self>, tx: &Tx) -> Result<()> {
        let txg = tx.txg();
        for ds in self.open_datasets() {
            if !self.wants_sync(&ds, txg) {
                continue;
            }
            ds.rewrite_root.store(false, Ordering::Relaxed);
            let os = self.objset(&ds).await?;
            if let Some(log) = os.log()
                && log.sync(&os, txg).await.chain_gone
                && ds.feature_is_active("zilsaxattr")
            {
                self.deactivate_feature(tx, &ds, "zilsaxattr").await?;
            }
            let now = self.ctx.env.now();
            if may_try_held(&ds, txg) && os.held_is_due(now) {
                os.retry_held(tx, now);
            }
            // The dataset's own account first, then what its users' accounts change; both are in
            // this txg.
            let mut out = os.sync(txg, ds.phys().bp).await?;
            let usage = std::mem::take(&mut out.usage);
            self.account(tx, &ds, out).await?;
            if !usage.is_empty() {
                // An account that cannot be read or written is wrong from now on; the files it
                // counts are not.
                if let Err(e) = super::userspace::update(tx, &os, &usage).await {
                    tracing::error!(dataset = %ds.name(), error = %e, "space is not accounted to its users");
                }
                let out = os.sync(txg, ds.phys().bp).await?;
                self.account(tx, &ds, out).await?;
            }
            self.activate_pending(tx, &ds).await?;
            self.sync_resume(tx, &ds).await?;
        }
        Ok(())
    }

    /// Has the logs keep what this txg could not put on disk ([`crate::zil`]). Called when the txg
    /// is to get an uberblock, and before the MOS is written: what the logs change of their
    /// datasets' roots is written here.
    #[crate::boxed]
    pub async fn keep_held(self: &Arc<Self>, tx: &Tx) -> Result<()> {
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::HeldForgotten) {
            return Ok(());
        }
        let mut changed = false;
        for ds in self.open_datasets() {
            let Some(os) = ds.open_objset().filter(|os| os.holds()) else { continue };
            let Some(log) = os.log() else { continue };
            if ds.phys().prev_snap_txg >= tx.txg().0 {
                // A snapshot of this txg has the root, which would be written again in its place.
                // It was done before.
                continue;
            }
            if log.keep(&os, tx.txg(), crate::zpl::end_of).await {
                ds.rewrite_root.store(true, Ordering::Relaxed);
                changed = true;
            }
        }
        if changed { self.sync_datasets(tx).await } else { Ok(()) }
    }

    async fn account(&self, tx: &Tx, ds: &Arc<DslDataset>, out: ObjsetSync) -> Result<()> {
        self.ctx.cloned(out.cloned);
        ds.change(tx, |p| p.bp = out.root);
        out.unused.iter().for_each(|bp| self.ctx.free(bp));
        self.blocks_born(tx, ds, &out.born);
        self.blocks_killed(tx, ds, &out.killed).await?;
        self.livelist_note(tx, ds, &out.born, &out.killed).await
    }

    fn parent_delta(ds: &DslDataset, unique: u64, delta: i64) -> i64 {
        let reserved = ds.reserved.load(Ordering::Relaxed);
        if reserved == 0 {
            return delta;
        }
        let new = unique.saturating_add_signed(delta).max(reserved);
        new.wrapping_sub(unique.max(reserved)) as i64
    }

    fn blocks_born(&self, tx: &Tx, ds: &Arc<DslDataset>, bps: &[BlkPtr]) {
        let mut sum = Delta::default();
        let mut needs = BTreeSet::new();
        for bp in bps {
            if bp.is_hole() {
                continue;
            }
            sum += super::bp_space(&*self.ctx.store, bp).into();
            needs.extend(feature_of(bp));
        }
        for f in needs {
            ds.will_need_feature(f);
        }
        if sum == Delta::default() {
            return;
        }
        let unique = ds.phys().unique_bytes;
        let up = Self::parent_delta(ds, unique, sum.used);
        ds.change(tx, |p| {
            p.referenced_bytes += sum.used as u64;
            p.compressed_bytes += sum.comp as u64;
            p.uncompressed_bytes += sum.uncomp as u64;
            p.unique_bytes += sum.used as u64;
        });
        ds.dir().diduse_transfer(tx, Delta { used: up, ..sum }, sum.used, DD_USED_REFRSRV, DD_USED_HEAD);
    }

    async fn blocks_killed(&self, tx: &Tx, ds: &Arc<DslDataset>, bps: &[BlkPtr]) -> Result<()> {
        let p = ds.phys();
        let dir = ds.dir();
        let origin_txg = dir.origin_txg.load(Ordering::Relaxed);
        let prev = self.prev(ds).await?;
        let (mut freed, mut all) = (Delta::default(), Delta::default());
        let (mut to_snap, mut prev_unique) = (0u64, 0u64);
        let mut dead = Vec::new();
        for bp in bps.iter().filter(|b| !b.is_hole() && !b.is_redacted()) {
            let s = super::bp_space(&*self.ctx.store, bp);
            all += s.into();
            let of_head = bp.birth() > p.prev_snap_txg;
            #[cfg(feature = "planted")]
            let of_head = of_head || crate::planted::is(crate::planted::Bug::SnapshotNotHeld);
            if of_head {
                self.ctx.free(bp);
                freed += s.into();
                continue;
            }
            dead.push(*bp);
            if let Some(prev) = &prev {
                let pp = prev.phys();
                if pp.next_snap_obj == ds.id && bp.birth() > pp.prev_snap_txg {
                    prev_unique += s.used;
                }
            }
            if bp.birth() > origin_txg {
                to_snap += s.used;
            }
        }
        if all == Delta::default() && dead.is_empty() {
            return Ok(());
        }
        if freed != Delta::default() {
            let up = Self::parent_delta(ds, p.unique_bytes, -freed.used);
            ds.change(tx, |p| p.unique_bytes = p.unique_bytes.saturating_sub(freed.used as u64));
            let d = Delta { used: up, comp: -freed.comp, uncomp: -freed.uncomp };
            dir.diduse_transfer(tx, d, -freed.used, DD_USED_REFRSRV, DD_USED_HEAD);
        }
        if !dead.is_empty() {
            let mut dl = self.deadlist_open(p.deadlist_obj).await?;
            self.deadlist_insert(tx, &mut dl, &dead).await?;
        }
        self.bookmarks_killed(tx, ds, bps).await?;
        if let (Some(prev), 1..) = (&prev, prev_unique) {
            prev.change(tx, |p| p.unique_bytes += prev_unique);
        }
        dir.transfer(tx, to_snap as i64, DD_USED_HEAD, DD_USED_SNAP);
        ds.change(tx, |p| {
            p.referenced_bytes = p.referenced_bytes.saturating_sub(all.used as u64);
            p.compressed_bytes = p.compressed_bytes.saturating_sub(all.comp as u64);
            p.uncompressed_bytes = p.uncompressed_bytes.saturating_sub(all.uncomp as u64);
        });
        Ok(())
    }

    async fn activate_pending(&self, tx: &Tx, ds: &Arc<DslDataset>) -> Result<()> {
        let pending = std::mem::take(&mut *ds.activating.lock());
        for f in pending {
            self.activate_feature(tx, ds, f).await?;
        }
        Ok(())
    }

    /// Notes what writing the MOS did to its own space. It is counted in the next txg, as the MOS
    /// cannot change while it is written.
    pub fn mos_synced(&self, out: &ObjsetSync) {
        let mut sum = Delta::default();
        for bp in out.born.iter().filter(|b| !b.is_hole()) {
            sum += super::bp_space(&*self.ctx.store, bp).into();
        }
        for bp in out.killed.iter().filter(|b| !b.is_hole()) {
            sum += -Delta::from(super::bp_space(&*self.ctx.store, bp));
        }
        *self.mos_delta.lock() += sum;
    }

    /// Counts what the MOS used since the last txg; only where this txg changes something anyway,
    /// so that an idle pool comes to rest. What the last txg before a crash did to the MOS is never
    /// counted, as in OpenZFS, so the count is not exact, and may not be brought below zero by what
    /// that txg wrote and later ones free.
    #[crate::boxed]
    pub async fn sync_dirs(&self, tx: &Tx) -> Result<()> {
        if !self.mos().is_dirty(tx.txg()) {
            return Ok(());
        }
        let sum = std::mem::take(&mut *self.mos_delta.lock());
        if sum != Delta::default() {
            let mos = &self.special().mos;
            let p = mos.phys();
            let least = |counted: u64| -i64::try_from(counted).unwrap_or(i64::MAX);
            let sum = Delta {
                used: sum.used.max(least(p.used_bytes.min(p.used_breakdown[DD_USED_HEAD]))),
                comp: sum.comp.max(least(p.compressed_bytes)),
                uncomp: sum.uncomp.max(least(p.uncompressed_bytes)),
            };
            mos.diduse(tx, DD_USED_HEAD, sum);
        }
        Ok(())
    }

    /// Estimates of what `txg` might use are replaced by what it used.
    pub fn forget_estimates(&self, txg: Txg) {
        for d in self.open_dirs() {
            d.clear_towrite(txg);
        }
    }

    /// `txg` is stable.
    pub fn sync_done(&self, txg: Txg) {
        self.forget_estimates(txg);
        for os in self.open_datasets().iter().filter_map(|ds| ds.open_objset()) {
            if let Some(log) = os.log() {
                log.clean(txg);
            }
        }
    }

    /// Frees some of what destroyed snapshots and datasets left. Says whether there is more, and it
    /// gets on.
    #[crate::boxed]
    pub async fn process_async_frees(&self, tx: &Tx) -> Result<bool> {
        self.process_obsolete(tx).await?;
        let special = self.special();
        let id = self.bptree_obj.load(Ordering::Relaxed);
        let Some(freeing) = &special.freeing else { return Ok(false) };
        let livelists = self.deleted_clones.load(Ordering::Relaxed) != 0;
        if id == 0 && !livelists && freeing.bpobj.is_empty()? {
            self.lists_emptied.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        let before = self.freeing().await?;
        let most = usize::try_from(tunables::ASYNC_BLOCK_MAX_BLOCKS.get()).unwrap_or(usize::MAX).max(1);
        let batch = self.frees_at_once(self.destroying.lock().batch.min(most) as u64) as usize;
        let lacks = (batch as u64).saturating_sub(freeing.bpobj.phys()?.num_blkptrs);
        if livelists
            && lacks > 0
            && let Err(e) = self.livelists_drain(tx, &freeing.bpobj, lacks).await
        {
            tracing::warn!(pool = %self.name(), error = %e, "freeing a destroyed clone is stalled");
        }
        // Trees get on also beside lists that do not end: a resilver waits for them.
        let for_trees = if id != 0 { batch / 4 } else { 0 };
        let mut bps = self.pop_bpobj(&freeing.bpobj, tx, batch - for_trees).await?;
        if id != 0 && bps.len() < batch {
            // A tree that cannot be read is no reason to stop the pool.
            match self.bptree_take(tx, id, batch - bps.len()).await {
                Ok(some) => {
                    bps.extend(some.bps);
                    self.count_leaks(tx, some.gave_up, some.left).await?;
                }
                Err(e) => {
                    tracing::warn!(pool = %self.name(), error = %e, "freeing a destroyed dataset is stalled")
                }
            }
            if self.bptree_state(id).await?.1 {
                self.end_async_destroy(tx, id).await?;
            }
        }
        if bps.len() < batch {
            bps.extend(self.pop_bpobj(&freeing.bpobj, tx, batch - bps.len()).await?);
        }
        for bp in &bps {
            self.ctx.free(bp);
        }
        self.async_freed.fetch_add(bps.len() as u64, Ordering::Relaxed);
        if freeing.bpobj.is_empty()? && self.deleted_clones.load(Ordering::Relaxed) == 0 {
            self.lists_emptied.fetch_add(1, Ordering::Relaxed);
        }
        // What the lists counted of these blocks no longer waits to be freed.
        let after = self.freeing().await?;
        let gone = Delta {
            used: after.used.wrapping_sub(before.used) as i64,
            comp: after.comp.wrapping_sub(before.comp) as i64,
            uncomp: after.uncomp.wrapping_sub(before.uncomp) as i64,
        };
        freeing.dir.diduse(tx, DD_USED_HEAD, gone);
        let more = after != Space::default() || self.deleted_clones.load(Ordering::Relaxed) != 0;
        Ok(more && !bps.is_empty())
    }

    /// How many of so many blocks may be freed in one txg. In a pool that is nearly full there must
    /// be room for what that changes of deadlists and of the tables that count references.
    pub fn frees_at_once(&self, most: u64) -> u64 {
        let (txgs, store) = (&self.ctx.txgs, &self.ctx.store);
        let fits = |n: u64| store.has_room(txgs.worst_of_frees(n), Leave::Eighth);
        // Each of them may change a block of the deduplication tables.
        let least = if txgs.worst_of_dedup(1) > 0 { LEAST_DEDUP_BATCH } else { LEAST_BATCH };
        let mut batch = most;
        while batch > least && !fits(batch) {
            batch = (batch / 2).max(least);
        }
        batch
    }

    /// Notes that something was given up, and counts it in `$LEAK` once all else of the queue is
    /// freed.
    async fn count_leaks(&self, tx: &Tx, gave_up: bool, left: Option<Space>) -> Result<()> {
        if !gave_up && left.is_none() {
            return Ok(());
        }
        let dir = match self.leak_dir().await? {
            Some(dir) => dir,
            None if gave_up => self.create_dir(tx, Some(&self.root_dir()), LEAK_DIR_NAME).await?,
            None => return Ok(()),
        };
        let notes = Zap::open(self.mos(), dir.phys().props_zapobj).await?;
        if gave_up {
            notes.set_u64(tx, LEAKING, 1).await?;
        }
        if let Some(left) = left
            && notes.delete_if_there(tx, LEAKING).await?
        {
            dir.diduse(tx, DD_USED_HEAD, left);
        }
        Ok(())
    }

    /// Counts in `$LEAK` what was given up, where it is known how much that is.
    pub(crate) async fn count_lost(&self, tx: &Tx, space: Space) -> Result<()> {
        let dir = match self.leak_dir().await? {
            Some(dir) => dir,
            None => self.create_dir(tx, Some(&self.root_dir()), LEAK_DIR_NAME).await?,
        };
        dir.diduse(tx, DD_USED_HEAD, space);
        Ok(())
    }

    /// Every block that waits to be freed, for checks.
    pub(crate) async fn waiting_blocks(&self) -> Result<Vec<BlkPtr>> {
        let mut out = match &self.special().freeing {
            Some(freeing) => self.bpobj_all(freeing.bpobj.id()).await?,
            None => Vec::new(),
        };
        let id = self.bptree_obj.load(Ordering::Relaxed);
        if id != 0 {
            out.extend(self.bptree_all(id).await?);
        }
        out.extend(self.livelists_blocks().await?);
        Ok(out)
    }

    async fn end_async_destroy(&self, tx: &Tx, id: u64) -> Result<()> {
        self.directory().await?.delete(tx, zilla_ondisk::dsl::DMU_POOL_BPTREE_OBJ).await?;
        self.free_object(tx, id).await?;
        self.bptree_obj.store(0, Ordering::Relaxed);
        self.feature_decr(tx, "async_destroy").await
    }
}

/// The features that a block's shape needs. (`lz4_compress` is active as soon as it is enabled.)
fn feature_of(bp: &BlkPtr) -> impl Iterator<Item = &'static str> + use<> {
    // What lies in its pointer is as large as it likes.
    let lsize = if bp.is_embedded() { 0 } else { bp.lsize() };
    let otype = if bp.level() == 0 { bp.otype() } else { object_type::DMU_OT_NONE };
    let compress = compress_feature(bp.compress()).filter(|f| *f != "lz4_compress");
    size_features(lsize, otype).chain(checksum_feature(bp.checksum_kind())).chain(compress)
}
