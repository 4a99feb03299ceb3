//! Livelists: what a clone has written since its origin and still has, so that destroying it reads
//! a list instead of a tree that it shares for the most part.
//!
//! On disk a livelist is a deadlist object that the clone's dir names: a ZAP from a txg to a list of
//! pointers (a *part*). What is born goes into the newest part; what dies is written once more, as a
//! free, into the part that has its birth. So what a part keeps is known from this part alone: read
//! from its end, each free cancels one birth of the same block. A part that has seen more than
//! `zfs_livelist_max_entries` births is closed, and two neighbours that keep no more than that
//! together become one. Where a clone has come to share too little with its origin
//! (`zfs_livelist_min_percent_shared`) its tree is the better list, and the livelist goes for good.
//!
//! **Destroyed** clones leave their livelists in a set that the pool's directory names. From there a
//! part at a time, in one txg, becomes what it keeps on the pool's list of blocks to be freed, which
//! is freed bit by bit; the space that waits is the same before and after.
//!
//! **Crash.** The list changes in the txg of the blocks that it tells of. A txg's births lie in one
//! part, whatever number of passes wrote them: a part is begun only where the txg notes its first.

use super::DslPool;
use super::bpobj::{Bpobj, Delta, Space};
use super::dataset::DslDataset;
use super::deadlist::{Deadlist, Keyed};
use super::dir::DslDir;
use crate::error::Result;
use crate::tunables::{LIVELIST_MAX_ENTRIES, LIVELIST_MIN_PERCENT_SHARED};
use crate::txg::Tx;
use crate::zap::{CreateOpts, Zap};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dsl::{DD_FIELD_LIVELIST, DD_USED_HEAD, DMU_POOL_DELETED_CLONES};
use zilla_ondisk::object_type::DMU_OTN_ZAP_METADATA;

/// Pointers that are read at a time.
const STEP: u64 = 1024;

/// What a part's pointers are told apart by: the place of the first copy, and the birth.
fn identity(bp: &BlkPtr) -> (u64, u64, u64) {
    let dva = bp.dva(0);
    (u64::from(dva.vdev), dva.offset, bp.birth())
}

impl DslPool {
    /// Gives a clone that was just made an empty livelist.
    pub(super) async fn livelist_begin(&self, tx: &Tx, dir: &DslDir) -> Result<()> {
        if !self.feature_enabled("livelist") {
            return Ok(());
        }
        let id = self.deadlist_alloc(tx).await?;
        let zap = self.zapify(tx, &dir.dn).await?;
        zap.insert_u64(tx, DD_FIELD_LIVELIST, id).await?;
        self.feature_incr(tx, "livelist").await
    }

    /// The number of the dir's livelist, if it has one.
    pub(super) async fn livelist(&self, dir: &DslDir) -> Result<Option<u64>> {
        match dir.zap() {
            Some(zap) => zap.try_get_u64(DD_FIELD_LIVELIST).await,
            None => Ok(None),
        }
    }

    /// Drops a clone's livelist.
    pub(super) async fn remove_livelist(&self, tx: &Tx, dir: &DslDir) -> Result<()> {
        let Some(id) = self.livelist(dir).await? else { return Ok(()) };
        if let Some(zap) = dir.zap() {
            zap.delete(tx, DD_FIELD_LIVELIST).await?;
        }
        self.deadlist_free(tx, id).await?;
        self.feature_decr(tx, "livelist").await
    }

    async fn livelist_open(&self, id: u64) -> Result<Keyed> {
        match self.deadlist_open(id).await? {
            Deadlist::Keyed(list) => Ok(list),
            Deadlist::Plain(list) => Err(list.corrupt("a livelist has no parts".to_owned())),
        }
    }

    /// Notes what a clone's head wrote and dropped.
    pub(super) async fn livelist_note(
        &self,
        tx: &Tx,
        ds: &Arc<DslDataset>,
        born: &[BlkPtr],
        killed: &[BlkPtr],
    ) -> Result<()> {
        let dir = ds.dir();
        if !self.is_clone(&dir) {
            return Ok(());
        }
        let Some(id) = self.livelist(&dir).await? else { return Ok(()) };
        if shares_too_little(ds, &dir) {
            return self.remove_livelist(tx, &dir).await;
        }
        let since = dir.origin_txg.load(Ordering::Relaxed);
        let counts =
            |bp: &&BlkPtr| !bp.is_hole() && !bp.is_redacted() && !bp.is_embedded() && bp.birth() > since;
        let born: Vec<BlkPtr> = born.iter().filter(counts).copied().collect();
        let killed: Vec<BlkPtr> = killed.iter().filter(counts).copied().collect();
        if born.is_empty() && killed.is_empty() {
            return Ok(());
        }
        let mut list = self.livelist_open(id).await?;
        let txg = tx.txg().0;
        let first = ds.noted_txg.swap(txg, Ordering::Relaxed) != txg;
        let newest = list.entries.last_key_value().map(|(key, part)| (*key, *part));
        let wanted = match newest {
            None => true,
            Some((key, part)) => first && key + 1 < txg && self.counts(part).await?.0 > max_entries(),
        };
        if wanted {
            self.deadlist_add_part(tx, &mut list, txg - 1).await?;
        }
        self.deadlist_enter(tx, &mut list, &born, false).await?;
        self.deadlist_enter(tx, &mut list, &killed, true).await?;
        if !first {
            return Ok(());
        }
        match self.condensable(&list).await {
            Ok(None) => Ok(()),
            Ok(Some((pair, kept))) => self.condense(tx, &mut list, pair, &kept).await,
            Err(e) => {
                tracing::warn!(clone = %ds.name(), error = %e, "a damaged livelist is given up");
                self.remove_livelist(tx, &dir).await
            }
        }
    }

    /// How many births a part has, and how many of them no free cancels.
    async fn counts(&self, part: u64) -> Result<(u64, u64)> {
        if self.is_empty_bpobj(part) {
            return Ok((0, 0));
        }
        let p = self.bpobj_open(part).await?.phys()?;
        let births = p.num_blkptrs.saturating_sub(p.num_freed);
        Ok((births, births.saturating_sub(p.num_freed)))
    }

    /// Two neighbours that are small enough to be one, and what they keep. The newest part is left
    /// alone.
    async fn condensable(&self, list: &Keyed) -> Result<Option<([(u64, u64); 2], Vec<BlkPtr>)>> {
        let mut parts: Vec<(u64, u64)> = list.entries.iter().map(|(key, part)| (*key, *part)).collect();
        parts.pop();
        for pair in parts.windows(2) {
            let [one @ (_, first), two @ (_, second)] = *pair else { continue };
            if self.counts(first).await?.1 + self.counts(second).await?.1 <= max_entries() {
                let mut kept = self.kept(first).await?;
                kept.extend(self.kept(second).await?);
                return Ok(Some(([one, two], kept)));
            }
        }
        Ok(None)
    }

    /// Makes them one.
    async fn condense(
        &self,
        tx: &Tx,
        list: &mut Keyed,
        pair: [(u64, u64); 2],
        kept: &[BlkPtr],
    ) -> Result<()> {
        let [(oldest, _), _] = pair;
        for (key, part) in pair {
            self.bpobj_free(tx, part).await?;
            list.forget(tx, key).await?;
        }
        let part = self.bpobj_alloc(tx).await?;
        self.push_bpobj(&self.bpobj_open(part).await?, tx, kept).await?;
        list.assign(tx, oldest, part).await
    }

    /// What a part keeps, the oldest first.
    pub(super) async fn kept(&self, part: u64) -> Result<Vec<BlkPtr>> {
        if self.is_empty_bpobj(part) {
            return Ok(Vec::new());
        }
        let part = self.bpobj_open(part).await?;
        let p = part.phys()?;
        if p.num_subobjs != 0 {
            return Err(part.corrupt("a part of a livelist has parts".to_owned()));
        }
        let (mut freed, mut kept) = (HashMap::<_, u64>::new(), Vec::new());
        let mut end = p.num_blkptrs;
        while end > 0 {
            let at = end.saturating_sub(STEP);
            for bp in part.read(at, (end - at) as usize).await?.into_iter().rev() {
                let id = identity(&bp);
                if bp.free_bit() {
                    *freed.entry(id).or_default() += 1;
                } else if let Some(n) = freed.get_mut(&id) {
                    *n -= 1;
                    if *n == 0 {
                        freed.remove(&id);
                    }
                } else {
                    kept.push(bp);
                }
            }
            end = at;
        }
        if !freed.is_empty() {
            return Err(part.corrupt(format!("{} blocks were freed that it never had", freed.len())));
        }
        kept.reverse();
        Ok(kept)
    }

    /// Puts a clone that is being destroyed among those whose livelists are worked off. False if it
    /// has none, or one that does not tell of all that it uses.
    pub(super) async fn livelist_queue(&self, tx: &Tx, dir: &Arc<DslDir>) -> Result<bool> {
        let special = self.special();
        let (Some(freeing), Some(id), Some(zap)) =
            (special.freeing.as_ref(), self.livelist(dir).await?, dir.zap())
        else {
            return Ok(false);
        };
        let (told, used) = (self.livelist_open(id).await?.space()?, dir.space());
        // Pointers with their data in them are in no livelist.
        if told.used != used.used || told.comp != used.comp || told.uncomp > used.uncomp {
            tracing::warn!(?told, ?used, "a livelist does not tell of all that its clone uses");
            return Ok(false);
        }
        let mut set = self.deleted_clones.load(Ordering::Relaxed);
        if set == 0 {
            set = Zap::make(self.mos(), tx, DMU_OTN_ZAP_METADATA, &CreateOpts::default()).await?.id();
            self.directory().await?.insert_u64(tx, DMU_POOL_DELETED_CLONES, set).await?;
            self.deleted_clones.store(set, Ordering::Relaxed);
        }
        Zap::open(self.mos(), set).await?.add_int(tx, id).await?;
        zap.delete(tx, DD_FIELD_LIVELIST).await?;
        dir.diduse(tx, DD_USED_HEAD, -Delta::from(used));
        freeing.dir.diduse(tx, DD_USED_HEAD, told);
        Ok(true)
    }

    /// Moves what parts of destroyed clones' livelists keep to the list of blocks to be freed, until
    /// that are `wanted` or more, or there is no more.
    pub(super) async fn livelists_drain(&self, tx: &Tx, to: &Bpobj, wanted: usize) -> Result<()> {
        let mut moved = 0;
        while moved < wanted {
            let set = self.deleted_clones.load(Ordering::Relaxed);
            if set == 0 {
                return Ok(());
            }
            let zap = Zap::open(self.mos(), set).await?;
            let Some(&id) = zap.ints().await?.first() else {
                self.directory().await?.delete(tx, DMU_POOL_DELETED_CLONES).await?;
                self.free_object(tx, set).await?;
                self.deleted_clones.store(0, Ordering::Relaxed);
                return Ok(());
            };
            let mut list = self.livelist_open(id).await?;
            let Some((key, part)) = list.entries.first_key_value().map(|(key, part)| (*key, *part)) else {
                zap.remove_int(tx, id).await?;
                self.free_object(tx, id).await?;
                self.feature_decr(tx, "livelist").await?;
                continue;
            };
            let kept = self.kept(part).await?;
            list.count_off(tx, self.part_space(part).await?)?;
            list.forget(tx, key).await?;
            self.bpobj_free(tx, part).await?;
            self.push_bpobj(to, tx, &kept).await?;
            moved += kept.len();
        }
        Ok(())
    }

    async fn part_space(&self, part: u64) -> Result<Space> {
        if self.is_empty_bpobj(part) { Ok(Space::default()) } else { self.bpobj_open(part).await?.space() }
    }

    /// The livelists of destroyed clones.
    async fn deleted_livelists(&self) -> Result<Vec<Keyed>> {
        let set = self.deleted_clones.load(Ordering::Relaxed);
        if set == 0 {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for id in Zap::open(self.mos(), set).await?.ints().await? {
            all.push(self.livelist_open(id).await?);
        }
        Ok(all)
    }

    /// What destroyed clones left, by their livelists.
    pub(super) async fn livelists_space(&self) -> Result<Space> {
        let mut sum = Space::default();
        for list in self.deleted_livelists().await? {
            sum.add(list.space()?);
        }
        Ok(sum)
    }

    /// The same, block by block.
    pub(super) async fn livelists_blocks(&self) -> Result<Vec<BlkPtr>> {
        let mut all = Vec::new();
        for list in self.deleted_livelists().await? {
            for part in list.entries.into_values() {
                all.extend(self.kept(part).await?);
            }
        }
        Ok(all)
    }
}

fn max_entries() -> u64 {
    LIVELIST_MAX_ENTRIES.get()
}

/// Whether so little of what a clone refers to is its origin's that a livelist does not pay.
fn shares_too_little(ds: &DslDataset, dir: &DslDir) -> bool {
    let refers = ds.phys().referenced_bytes;
    let own = dir.phys().used_breakdown[DD_USED_HEAD];
    let shared = u128::from(refers.saturating_sub(own)) * 100;
    refers != 0 && shared / u128::from(refers) <= u128::from(LIVELIST_MIN_PERCENT_SHARED.get())
}
