//! Deadlists: the blocks of the snapshot before that a dataset no longer refers to, by when they
//! were born.
//!
//! A ZAP from the txg of each older snapshot to a list of the blocks born after it (and before the
//! next one). That is what makes deleting a snapshot cheap: the blocks that only it held are whole
//! lists, moved without being read.
//!
//! Before version 26 of pools a deadlist was one list, and a dataset keeps it when its pool is
//! upgraded, until the next snapshot. What needs the births of its blocks reads it whole.

use super::DslPool;
use super::bpobj::{Bpobj, Space};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId};
use crate::zap::{CreateOpts, Zap};
use std::collections::{BTreeMap, BTreeSet};
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::deadlist::{DeadlistPhys, int_key, parse_int_key};
use zilla_ondisk::enums::SPA_VERSION_DEADLISTS;
use zilla_ondisk::object_type::{DMU_OT_BPOBJ, DMU_OT_DEADLIST, DMU_OT_DEADLIST_HDR};
use zilla_ondisk::{ByteOrder, Field, Phys};

/// Block pointers of a list that are read at a time.
const PART: usize = 1024;

/// A deadlist that is looked at; made anew for every use, as what is on disk is the truth.
pub enum Deadlist {
    Keyed(Keyed),
    /// One list, of a pool version below 26.
    Plain(Bpobj),
}

/// A deadlist by births.
pub struct Keyed {
    zap: Zap,
    /// Least birth txg (exclusive) to list.
    pub entries: BTreeMap<u64, u64>,
}

impl Deadlist {
    pub fn space(&self) -> Result<Space> {
        match self {
            Deadlist::Keyed(dl) => dl.space(),
            Deadlist::Plain(list) => list.space(),
        }
    }

    /// The lists that it consists of, each with the least birth (exclusive) of its blocks.
    pub fn lists(&self) -> BTreeMap<u64, u64> {
        match self {
            Deadlist::Keyed(dl) => dl.entries.clone(),
            Deadlist::Plain(list) => BTreeMap::from([(0, list.id())]),
        }
    }
}

impl Keyed {
    pub fn phys(&self) -> Result<DeadlistPhys> {
        let dn = self.zap.dnode();
        DeadlistPhys::from_bonus(&dn.bonus(), ByteOrder::NATIVE)
            .map_err(|e| Error::corrupt(Some(Bookmark::new(0, dn.id(), 0, 0)), "", e.to_string()))
    }

    pub fn space(&self) -> Result<Space> {
        let p = self.phys()?;
        Ok(Space { used: p.used, comp: p.comp, uncomp: p.uncomp })
    }

    fn change(&self, tx: &Tx, f: impl FnOnce(&mut Space)) -> Result<()> {
        let mut p = self.phys()?;
        let mut s = Space { used: p.used, comp: p.comp, uncomp: p.uncomp };
        f(&mut s);
        (p.used, p.comp, p.uncomp) = (s.used, s.comp, s.uncomp);
        self.zap.dnode().set_bonus(tx, &p.encode());
        Ok(())
    }

    /// Gives a key a list.
    pub(super) async fn assign(&mut self, tx: &Tx, key: u64, list: u64) -> Result<()> {
        self.zap.insert_u64(tx, &int_key(key), list).await?;
        self.entries.insert(key, list);
        Ok(())
    }

    /// Drops a key; its list is the caller's.
    pub(super) async fn forget(&mut self, tx: &Tx, key: u64) -> Result<()> {
        self.entries.remove(&key);
        self.zap.delete(tx, &int_key(key)).await
    }

    /// So much is no longer in its lists.
    pub(super) fn count_off(&self, tx: &Tx, space: Space) -> Result<()> {
        self.change(tx, |s| s.sub(space))
    }

    /// The key of the list that a block of this birth belongs to.
    fn key_for(&self, birth: u64) -> Result<u64> {
        let below = self.entries.range(..birth).next_back();
        let any = below.or_else(|| self.entries.first_key_value());
        any.map(|(k, _)| *k).ok_or_else(|| self.corrupt("the deadlist has no entry"))
    }

    fn corrupt(&self, what: &'static str) -> Error {
        Error::corrupt(Some(Bookmark::new(0, self.zap.dnode().id(), 0, 0)), "", what)
    }
}

impl DslPool {
    pub(crate) async fn deadlist_alloc(&self, tx: &Tx) -> Result<u64> {
        if self.ctx.version() < SPA_VERSION_DEADLISTS {
            return self.bpobj_alloc(tx).await;
        }
        let opts = CreateOpts::bonus(DMU_OT_DEADLIST_HDR, DeadlistPhys::SIZE);
        Ok(Zap::make(self.mos(), tx, DMU_OT_DEADLIST, &opts).await?.id())
    }

    #[crate::boxed]
    pub async fn deadlist_open(&self, id: u64) -> Result<Deadlist> {
        let dn = self.mos().hold_wait(ObjectId(id)).await?;
        if dn.otype() == DMU_OT_BPOBJ {
            let list = self.bpobj_open(id).await?;
            let (p, b) = (list.phys()?, Bookmark::new(0, ObjectId(id), 0, 0));
            if p.num_subobjs != 0 {
                return Err(Error::corrupt(Some(b), "", "a deadlist without births has sub-lists"));
            }
            // Each has a sector of its own, if not all of it counts as space; what says it has more
            // would be read for ever.
            let most = self.pool_space().dspace >> 8;
            if most != 0 && p.num_blkptrs > most {
                let what = format!("a deadlist of {} blocks in a pool with room for {most}", p.num_blkptrs);
                return Err(Error::corrupt(Some(b), "", what));
            }
            return Ok(Deadlist::Plain(list));
        }
        let zap = Zap::new(&dn);
        let mut entries = BTreeMap::new();
        for e in zap.entries().await? {
            let key = parse_int_key(&e.name)
                .map_err(|x| Error::corrupt(Some(Bookmark::new(0, dn.id(), 0, 0)), "", x.to_string()))?;
            entries.insert(key, e.value.as_u64().unwrap_or(0));
        }
        Ok(Deadlist::Keyed(Keyed { zap, entries }))
    }

    /// Gives an entry a list of its own where it has the shared empty one.
    async fn own_list(&self, tx: &Tx, dl: &mut Keyed, key: u64) -> Result<Bpobj> {
        let id = dl.entries.get(&key).copied().ok_or_else(|| dl.corrupt("no such entry"))?;
        if !self.is_empty_bpobj(id) {
            return self.bpobj_open(id).await;
        }
        let new = self.bpobj_alloc(tx).await?;
        self.bpobj_decr_empty(tx).await?;
        dl.zap.set_u64(tx, &int_key(key), new).await?;
        dl.entries.insert(key, new);
        self.bpobj_open(new).await
    }

    pub(crate) async fn deadlist_insert(&self, tx: &Tx, dl: &mut Deadlist, bps: &[BlkPtr]) -> Result<()> {
        #[cfg(feature = "planted")]
        let bps = match bps {
            [_, rest @ ..] if crate::planted::is(crate::planted::Bug::DeadlistEntryLost) => rest,
            all => all,
        };
        let dl = match dl {
            Deadlist::Plain(list) => return self.push_bpobj(list, tx, bps).await,
            Deadlist::Keyed(dl) => dl,
        };
        self.deadlist_enter(tx, dl, bps, false).await
    }

    /// Enters blocks by their births; `freed`: as frees of what a livelist has.
    pub(super) async fn deadlist_enter(
        &self,
        tx: &Tx,
        dl: &mut Keyed,
        bps: &[BlkPtr],
        freed: bool,
    ) -> Result<()> {
        if bps.is_empty() {
            return Ok(());
        }
        let mut by_key: BTreeMap<u64, Vec<BlkPtr>> = BTreeMap::new();
        let mut sum = Space::default();
        for bp in bps {
            by_key.entry(dl.key_for(bp.birth())?).or_default().push(*bp);
            sum.add(super::bp_space(&*self.ctx.store, bp));
        }
        for (key, bps) in by_key {
            let list = self.own_list(tx, dl, key).await?;
            self.append_bpobj(&list, tx, &bps, freed).await?;
        }
        dl.change(tx, |s| if freed { s.sub(sum) } else { s.add(sum) })
    }

    pub(crate) async fn deadlist_add_key(&self, tx: &Tx, dl: &mut Deadlist, min_txg: u64) -> Result<()> {
        let Deadlist::Keyed(dl) = dl else { return Ok(()) };
        self.deadlist_add_part(tx, dl, min_txg).await
    }

    pub(super) async fn deadlist_add_part(&self, tx: &Tx, dl: &mut Keyed, min_txg: u64) -> Result<()> {
        let id = self.bpobj_alloc_empty(tx).await?;
        dl.assign(tx, min_txg, id).await
    }

    /// Joins the list of a key to the one before it.
    pub(crate) async fn deadlist_remove_key(&self, tx: &Tx, dl: &mut Deadlist, min_txg: u64) -> Result<()> {
        let Deadlist::Keyed(dl) = dl else { return Ok(()) };
        let Some(id) = dl.entries.remove(&min_txg) else { return Ok(()) };
        let Some((&before, _)) = dl.entries.range(..min_txg).next_back() else {
            return Err(dl.corrupt("the first entry of a deadlist cannot go"));
        };
        self.enqueue_list(tx, dl, before, id).await?;
        dl.zap.delete(tx, &int_key(min_txg)).await
    }

    async fn enqueue_list(&self, tx: &Tx, dl: &mut Keyed, key: u64, id: u64) -> Result<()> {
        if self.is_empty_bpobj(id) {
            return self.bpobj_decr_empty(tx).await;
        }
        let list = self.own_list(tx, dl, key).await?;
        self.bpobj_enqueue_subobj(tx, &list, id).await
    }

    /// A new deadlist with the keys of `dl` below `max_txg`, all lists empty. One that has no keys
    /// is followed by one with those of the snapshots from `newest` back.
    pub(crate) async fn deadlist_clone(
        &self,
        tx: &Tx,
        dl: &Deadlist,
        max_txg: u64,
        newest: u64,
    ) -> Result<u64> {
        let id = self.deadlist_alloc(tx).await?;
        let keys: BTreeSet<u64> = match dl {
            Deadlist::Keyed(dl) => dl.entries.keys().copied().filter(|k| *k < max_txg).collect(),
            Deadlist::Plain(_) if self.ctx.version() < SPA_VERSION_DEADLISTS => BTreeSet::new(),
            Deadlist::Plain(_) => self.snapshot_keys(newest).await?,
        };
        let mut new = self.deadlist_open(id).await?;
        for key in keys {
            self.deadlist_add_key(tx, &mut new, key).await?;
        }
        Ok(id)
    }

    /// The keys that the deadlist of whatever follows snapshot `newest` has, but for `newest`'s
    /// own.
    async fn snapshot_keys(&self, newest: u64) -> Result<BTreeSet<u64>> {
        let (mut keys, mut at) = (BTreeSet::new(), newest);
        while at != 0 {
            let p = self.dataset(at).await?.phys();
            if !keys.insert(p.prev_snap_txg) {
                let b = Bookmark::new(0, ObjectId(at), 0, 0);
                return Err(Error::corrupt(Some(b), "", "the chain of snapshots leads back"));
            }
            at = p.prev_snap_obj;
        }
        Ok(keys)
    }

    /// Space of the blocks born after `min_txg` and up to `max_txg`, both of which are keys (or
    /// beyond all).
    pub(crate) async fn deadlist_space_range(
        &self,
        dl: &Deadlist,
        min_txg: u64,
        max_txg: u64,
    ) -> Result<Space> {
        let mut sum = Space::default();
        let dl = match dl {
            Deadlist::Keyed(dl) => dl,
            Deadlist::Plain(list) => {
                let (mut at, len) = (0, list.phys()?.num_blkptrs);
                while at < len {
                    let some = list.read(at, PART).await?;
                    at += some.len() as u64;
                    for bp in some.iter().filter(|bp| bp.birth() > min_txg && bp.birth() <= max_txg) {
                        sum.add(super::bp_space(&*self.ctx.store, bp));
                    }
                }
                return Ok(sum);
            }
        };
        if min_txg < max_txg {
            for (_, &id) in dl.entries.range(min_txg..max_txg) {
                if !self.is_empty_bpobj(id) {
                    sum.add(self.bpobj_open(id).await?.space()?);
                }
            }
        }
        Ok(sum)
    }

    /// Moves all blocks of deadlist `from` to `dl`, and `from`'s lists with them. The caller frees
    /// the object that is left of it.
    pub(crate) async fn deadlist_merge(&self, tx: &Tx, dl: &mut Deadlist, from: u64) -> Result<()> {
        match (dl, self.deadlist_open(from).await?) {
            (Deadlist::Keyed(dl), Deadlist::Keyed(other)) => self.merge_keyed(tx, dl, other).await,
            (dl, Deadlist::Plain(list)) => {
                let (mut at, len) = (0, list.phys()?.num_blkptrs);
                while at < len {
                    let some = list.read(at, PART).await?;
                    at += some.len() as u64;
                    self.deadlist_insert(tx, dl, &some).await?;
                }
                Ok(())
            }
            (dl, Deadlist::Keyed(other)) => {
                let mut all = Vec::new();
                for id in other.entries.values() {
                    all.extend(self.bpobj_all(*id).await?);
                }
                for id in other.entries.into_values() {
                    self.bpobj_free(tx, id).await?;
                }
                self.deadlist_insert(tx, dl, &all).await
            }
        }
    }

    async fn merge_keyed(&self, tx: &Tx, dl: &mut Keyed, other: Keyed) -> Result<()> {
        for (&key, &id) in &other.entries {
            if !self.is_empty_bpobj(id) {
                let s = self.bpobj_open(id).await?.space()?;
                dl.change(tx, |d| d.add(s))?;
            }
            let at = dl.entries.range(..=key).next_back().or_else(|| dl.entries.first_key_value());
            let at = at.map(|(k, _)| *k).ok_or_else(|| dl.corrupt("the deadlist has no entry"))?;
            self.enqueue_list(tx, dl, at, id).await?;
            other.zap.delete(tx, &int_key(key)).await?;
        }
        other.change(tx, |s| *s = Space::default())
    }

    /// Moves the blocks born after `min_txg` to a list; where there is none they are freed now.
    pub(crate) async fn deadlist_move_bpobj(
        &self,
        tx: &Tx,
        dl: &mut Deadlist,
        to: Option<&Bpobj>,
        min_txg: u64,
    ) -> Result<()> {
        let dl = match dl {
            Deadlist::Keyed(dl) => dl,
            Deadlist::Plain(list) => {
                let all = self.bpobj_all(list.id()).await?;
                let (gone, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(|bp| bp.birth() > min_txg);
                self.refill_bpobj(list, tx, &kept).await?;
                return self.bury(tx, to, &gone).await;
            }
        };
        for (key, id) in dl.entries.split_off(&min_txg) {
            if !self.is_empty_bpobj(id) {
                let s = self.bpobj_open(id).await?.space()?;
                dl.change(tx, |d| d.sub(s))?;
            }
            match to {
                Some(to) => self.bpobj_enqueue_subobj(tx, to, id).await?,
                None => {
                    let all = self.bpobj_all(id).await?;
                    self.bpobj_free(tx, id).await?;
                    self.bury(tx, None, &all).await?;
                }
            }
            dl.zap.delete(tx, &int_key(key)).await?;
        }
        Ok(())
    }

    /// Blocks that nothing refers to any more go to a list, or are freed now.
    pub(super) async fn bury(&self, tx: &Tx, to: Option<&Bpobj>, bps: &[BlkPtr]) -> Result<()> {
        match to {
            Some(list) => self.push_bpobj(list, tx, bps).await,
            None => {
                bps.iter().for_each(|bp| self.ctx.free(bp));
                Ok(())
            }
        }
    }

    pub(crate) async fn deadlist_free(&self, tx: &Tx, id: u64) -> Result<()> {
        match self.deadlist_open(id).await? {
            Deadlist::Plain(list) => self.bpobj_free(tx, list.id()).await,
            Deadlist::Keyed(dl) => {
                for &list in dl.entries.values() {
                    self.bpobj_free(tx, list).await?;
                }
                self.free_object(tx, id).await
            }
        }
    }
}
