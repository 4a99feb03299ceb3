//! Livelists: what a clone has written since its origin and still has, so that destroying it reads
//! a list instead of a tree that it shares for the most part.
//!
//! On disk a livelist is a deadlist object that the clone's dir names: a ZAP from a txg to a list
//! of pointers (a *part*). What is born goes into the newest part; what dies is written once more,
//! as a free, into the part that has its birth. So what a part keeps is known from this part alone:
//! read from its end, each free cancels one birth of the same block. A part that has seen more than
//! `zfs_livelist_max_entries` births is closed, and two neighbours that keep no more than that
//! together become one. Where a clone has come to share too little with its origin
//! (`zfs_livelist_min_percent_shared`) its tree is the better list, and the livelist goes for good.
//!
//! **Destroyed** clones leave their livelists in a set that the pool's directory names. From there
//! a part at a time, in one txg, becomes what it keeps on the pool's list of blocks to be freed,
//! which is freed bit by bit; the space that waits is the same before and after.
//!
//! **Crash.** The list changes in the txg of the blocks that it tells of. A txg's births lie in one
//! part, whatever number of passes wrote them: a part is begun only where the txg notes its first.
//!
//! **Damage.** A livelist only saves time, so one that cannot be read or makes no sense is given
//! up, and its clone is destroyed by its tree. Those of destroyed clones have no tree any more: a
//! damaged part waits as long as a damaged tree does, while the others go on, and is then counted
//! in `$LEAK`.

use super::DslPool;
use super::bpobj::{Bpobj, Delta, Space};
use super::dataset::DslDataset;
use super::deadlist::{Deadlist, Keyed};
use super::dir::DslDir;
use crate::error::{Error, Result};
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

/// So many blocks a part may have, all of which are in memory at once when it is condensed or freed
/// (512 MiB); eight times OpenZFS's `zfs_livelist_max_entries`.
const MOST: u64 = 4 << 20;

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

    /// Drops a clone's livelist. What cannot be read of it stays allocated in the MOS, where
    /// nothing refers to it: that is no reason to stop.
    pub(super) async fn remove_livelist(&self, tx: &Tx, dir: &DslDir) -> Result<()> {
        let Some(id) = self.livelist(dir).await? else { return Ok(()) };
        if let Some(zap) = dir.zap() {
            zap.delete(tx, DD_FIELD_LIVELIST).await?;
        }
        if let Err(e) = self.deadlist_free(tx, id).await {
            tracing::warn!(pool = %self.name(), livelist = id, error = %e, "a livelist is not freed");
        }
        self.feature_decr(tx, "livelist").await
    }

    async fn livelist_open(&self, id: u64) -> Result<Keyed> {
        match self.deadlist_open(id).await? {
            Deadlist::Keyed(list) => Ok(list),
            Deadlist::Plain(list) => Err(list.corrupt("a livelist has no parts".to_owned())),
        }
    }

    /// Notes what a clone's head wrote and dropped. A list that does not take it tells of too
    /// little or too much from now on, and goes.
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
        let Err(e) = self.livelist_enter(tx, ds, id, born, killed).await else { return Ok(()) };
        tracing::warn!(clone = %ds.name(), error = %e, "a damaged livelist is given up");
        self.remove_livelist(tx, &dir).await
    }

    async fn livelist_enter(
        &self,
        tx: &Tx,
        ds: &Arc<DslDataset>,
        id: u64,
        born: &[BlkPtr],
        killed: &[BlkPtr],
    ) -> Result<()> {
        let dir = ds.dir();
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
        match self.condensable(&list).await? {
            None => Ok(()),
            Some((pair, kept)) => self.condense(tx, &mut list, pair, &kept).await,
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
            // No key may name what is freed.
            list.forget(tx, key).await?;
            self.bpobj_free(tx, part).await?;
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
        if p.num_freed.saturating_mul(2) > p.num_blkptrs {
            let what = format!("{} of {} pointers are frees", p.num_freed, p.num_blkptrs);
            return Err(part.corrupt(what));
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
            if (kept.len() + freed.len()) as u64 > MOST {
                return Err(part.corrupt(format!("more than {MOST} blocks")));
            }
        }
        if !freed.is_empty() {
            return Err(part.corrupt(format!("{} blocks were freed that it never had", freed.len())));
        }
        kept.reverse();
        Ok(kept)
    }

    /// Puts a clone that is being destroyed among those whose livelists are worked off. False if it
    /// has none, or one that cannot be read or does not tell of all that it uses.
    pub(super) async fn livelist_queue(&self, tx: &Tx, dir: &Arc<DslDir>) -> Result<bool> {
        let special = self.special();
        let (Some(freeing), Some(id), Some(zap)) =
            (special.freeing.as_ref(), self.livelist(dir).await?, dir.zap())
        else {
            return Ok(false);
        };
        let told = match self.livelist_open(id).await.and_then(|list| list.space()) {
            Ok(told) => told,
            Err(e) => {
                tracing::warn!(pool = %self.name(), error = %e, "a damaged livelist is given up");
                return Ok(false);
            }
        };
        let used = dir.space();
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
        if let Err(e) = self.enlist(tx, set, id).await {
            tracing::warn!(pool = %self.name(), error = %e, "the set of destroyed clones takes no more");
            return Ok(false);
        }
        zap.delete(tx, DD_FIELD_LIVELIST).await?;
        dir.diduse(tx, DD_USED_HEAD, -Delta::from(used));
        freeing.dir.diduse(tx, DD_USED_HEAD, told);
        Ok(true)
    }

    async fn enlist(&self, tx: &Tx, set: u64, id: u64) -> Result<()> {
        Zap::open(self.mos(), set).await?.add_int(tx, id).await
    }

    /// Moves what parts of destroyed clones' livelists keep to the list of blocks to be freed,
    /// until `wanted` pointers or more were read for that, or there is no more. A damaged part
    /// keeps no other waiting.
    pub(super) async fn livelists_drain(&self, tx: &Tx, to: &Bpobj, mut wanted: u64) -> Result<()> {
        let set = self.deleted_clones.load(Ordering::Relaxed);
        if set == 0 {
            return Ok(());
        }
        let zap = Zap::open(self.mos(), set).await?;
        let mut waiting = false;
        for id in zap.ints().await? {
            if wanted == 0 {
                return Ok(());
            }
            match self.livelist_drain(tx, id, to, &mut wanted).await {
                Ok(false) => {
                    waiting = true;
                    continue;
                }
                Ok(true) => {
                    zap.remove_int(tx, id).await?;
                    self.free_object(tx, id).await?;
                }
                Err(e) if self.is_patient((id, None), &e) => {
                    waiting = true;
                    continue;
                }
                // How much it had nobody knows: that stays counted in `$FREE`.
                Err(e) => {
                    tracing::error!(pool = %self.name(), error = %e, "space of a destroyed clone is lost");
                    zap.remove_int(tx, id).await?;
                }
            }
            self.feature_decr(tx, "livelist").await?;
        }
        if waiting {
            return Ok(());
        }
        self.directory().await?.delete(tx, DMU_POOL_DELETED_CLONES).await?;
        self.free_object(tx, set).await?;
        self.deleted_clones.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// The same of one list. True if it has no part left.
    async fn livelist_drain(&self, tx: &Tx, id: u64, to: &Bpobj, wanted: &mut u64) -> Result<bool> {
        let mut list = self.livelist_open(id).await?;
        self.destroying.lock().damaged.remove(&(id, None));
        let parts: Vec<(u64, u64)> = list.entries.iter().map(|(key, part)| (*key, *part)).collect();
        for (key, part) in parts {
            if *wanted == 0 {
                break;
            }
            // All is read before anything is changed.
            match self.part_contents(part).await {
                Ok((pointers, space, kept)) => {
                    list.forget(tx, key).await?;
                    list.count_off(tx, space)?;
                    self.push_bpobj(to, tx, &kept).await?;
                    if let Err(e) = self.bpobj_free(tx, part).await {
                        tracing::warn!(pool = %self.name(), part, error = %e, "a part is not freed");
                    }
                    *wanted = wanted.saturating_sub(pointers.max(1));
                }
                Err(e) if self.is_patient((id, Some(key)), &e) => {}
                Err(e) => {
                    tracing::error!(pool = %self.name(), error = %e, "space of a destroyed clone is lost");
                    let space = self.lost_with(&list, key, part).await?;
                    list.forget(tx, key).await?;
                    list.count_off(tx, space)?;
                    self.count_lost(tx, space).await?;
                }
            }
        }
        Ok(list.entries.is_empty())
    }

    /// A part's number of pointers, its space, and what it keeps.
    async fn part_contents(&self, part: u64) -> Result<(u64, Space, Vec<BlkPtr>)> {
        if self.is_empty_bpobj(part) {
            return Ok((0, Space::default(), Vec::new()));
        }
        let pointers = self.bpobj_open(part).await?.phys()?.num_blkptrs;
        Ok((pointers, self.part_space(part).await?, self.kept(part).await?))
    }

    /// The space of a part that is given up: what it says, or else what the others leave of the
    /// list's.
    async fn lost_with(&self, list: &Keyed, key: u64, part: u64) -> Result<Space> {
        if let Ok(space) = self.part_space(part).await {
            return Ok(space);
        }
        let mut rest = list.space()?;
        for (other, part) in &list.entries {
            if *other != key {
                rest.sub(self.part_space(*part).await.unwrap_or_default());
            }
        }
        Ok(rest)
    }

    /// Whether a damaged list of a destroyed clone, or a part of it (its key), is to be tried
    /// again: a device that is away may come back with a good copy. It is told of once.
    fn is_patient(&self, what: (u64, Option<u64>), error: &Error) -> bool {
        let now = self.ctx.env.now();
        let mut state = self.destroying.lock();
        let patience = state.patience;
        let mut first = false;
        let since = *state.damaged.entry(what).or_insert_with(|| {
            first = true;
            now
        });
        drop(state);
        if first {
            tracing::warn!(pool = %self.name(), %error, "freeing a destroyed clone is stalled");
        }
        now < since + patience
    }

    async fn part_space(&self, part: u64) -> Result<Space> {
        if self.is_empty_bpobj(part) { Ok(Space::default()) } else { self.bpobj_open(part).await?.space() }
    }

    /// The livelists of destroyed clones, but for those that cannot be read.
    async fn deleted_livelists(&self) -> Vec<Keyed> {
        let set = self.deleted_clones.load(Ordering::Relaxed);
        let mut all = Vec::new();
        if set == 0 {
            return all;
        }
        let ids = match self.enlisted(set).await {
            Ok(ids) => ids,
            Err(e) => {
                self.tell_unreadable(set, &e);
                return all;
            }
        };
        for id in ids {
            match self.livelist_open(id).await {
                Ok(list) => all.push(list),
                Err(e) => self.tell_unreadable(id, &e),
            }
        }
        all
    }

    async fn enlisted(&self, set: u64) -> Result<Vec<u64>> {
        Zap::open(self.mos(), set).await?.ints().await
    }

    /// Each txg asks for it: once is enough.
    fn tell_unreadable(&self, id: u64, error: &Error) {
        let first = self.destroying.lock().unreadable.insert(id);
        if first {
            tracing::warn!(pool = %self.name(), %error, "what a destroyed clone left is not counted");
        }
    }

    /// What destroyed clones left, by their livelists.
    pub(super) async fn livelists_space(&self) -> Space {
        let mut sum = Space::default();
        for list in self.deleted_livelists().await {
            sum.add(list.space().unwrap_or_default());
        }
        sum
    }

    /// The same, block by block.
    pub(super) async fn livelists_blocks(&self) -> Result<Vec<BlkPtr>> {
        let mut all = Vec::new();
        for list in self.deleted_livelists().await {
            for part in list.entries.into_values() {
                all.extend(self.kept(part).await?);
            }
        }
        Ok(all)
    }
}

fn max_entries() -> u64 {
    LIVELIST_MAX_ENTRIES.get().min(MOST)
}

/// Whether so little of what a clone refers to is its origin's that a livelist does not pay.
fn shares_too_little(ds: &DslDataset, dir: &DslDir) -> bool {
    let refers = ds.phys().referenced_bytes;
    let own = dir.phys().used_breakdown[DD_USED_HEAD];
    let shared = u128::from(refers.saturating_sub(own)) * 100;
    refers != 0 && shared / u128::from(refers) <= u128::from(LIVELIST_MIN_PERCENT_SHARED.get())
}
