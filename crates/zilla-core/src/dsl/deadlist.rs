//! Deadlists: the blocks of the snapshot before that a dataset no longer refers to, by when they were born.
//!
//! A ZAP from the txg of each older snapshot to a list of the blocks born after it (and before the next one). That
//! is what makes deleting a snapshot cheap: the blocks that only it held are whole lists, moved without being read.

use super::DslPool;
use super::bpobj::Space;
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId};
use crate::zap::{CreateOpts, Zap};
use std::collections::BTreeMap;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::deadlist::{DeadlistPhys, int_key, parse_int_key};
use zilla_ondisk::object_type::{DMU_OT_BPOBJ, DMU_OT_DEADLIST, DMU_OT_DEADLIST_HDR};
use zilla_ondisk::{ByteOrder, Field, Phys};

/// A deadlist that is looked at; made anew for every use, as the ZAP is the truth.
pub struct Deadlist {
    zap: Zap,
    /// Least birth txg (exclusive) to list.
    pub entries: BTreeMap<u64, u64>,
}

impl Deadlist {
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
        let opts = CreateOpts::bonus(DMU_OT_DEADLIST_HDR, DeadlistPhys::SIZE);
        Ok(Zap::make(self.mos(), tx, DMU_OT_DEADLIST, &opts).await?.id())
    }

    /// What a deadlist holds; of a pool version below 26 too, where it is one list.
    pub(super) async fn deadlist_space(&self, id: u64) -> Result<Space> {
        if self.mos().hold_wait(ObjectId(id)).await?.otype() == DMU_OT_BPOBJ {
            return self.bpobj_open(id).await?.space();
        }
        self.deadlist_open(id).await?.space()
    }

    #[crate::boxed]
    pub async fn deadlist_open(&self, id: u64) -> Result<Deadlist> {
        let dn = self.mos().hold_wait(ObjectId(id)).await?;
        if dn.otype() == DMU_OT_BPOBJ {
            let what = format!("object {id} is a deadlist of a pool version below 26");
            return Err(Error::os(crate::error::Errno::NotSup, what));
        }
        let zap = Zap::new(&dn);
        let mut entries = BTreeMap::new();
        for e in zap.entries().await? {
            let key = parse_int_key(&e.name)
                .map_err(|x| Error::corrupt(Some(Bookmark::new(0, dn.id(), 0, 0)), "", x.to_string()))?;
            entries.insert(key, e.value.as_u64().unwrap_or(0));
        }
        Ok(Deadlist { zap, entries })
    }

    /// Gives an entry a list of its own where it has the shared empty one.
    async fn own_list(&self, tx: &Tx, dl: &mut Deadlist, key: u64) -> Result<super::bpobj::Bpobj> {
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
        let mut by_key: BTreeMap<u64, Vec<BlkPtr>> = BTreeMap::new();
        let mut sum = Space::default();
        for bp in bps {
            by_key.entry(dl.key_for(bp.birth())?).or_default().push(*bp);
            sum.add(super::bp_space(&*self.ctx.store, bp));
        }
        for (key, bps) in by_key {
            let list = self.own_list(tx, dl, key).await?;
            self.push_bpobj(&list, tx, &bps).await?;
        }
        dl.change(tx, |s| s.add(sum))
    }

    pub(crate) async fn deadlist_add_key(&self, tx: &Tx, dl: &mut Deadlist, min_txg: u64) -> Result<()> {
        let id = self.bpobj_alloc_empty(tx).await?;
        dl.zap.insert_u64(tx, &int_key(min_txg), id).await?;
        dl.entries.insert(min_txg, id);
        Ok(())
    }

    /// Joins the list of a key to the one before it.
    pub(crate) async fn deadlist_remove_key(&self, tx: &Tx, dl: &mut Deadlist, min_txg: u64) -> Result<()> {
        let Some(id) = dl.entries.remove(&min_txg) else { return Ok(()) };
        let Some((&before, _)) = dl.entries.range(..min_txg).next_back() else {
            return Err(dl.corrupt("the first entry of a deadlist cannot go"));
        };
        self.enqueue_list(tx, dl, before, id).await?;
        dl.zap.delete(tx, &int_key(min_txg)).await
    }

    async fn enqueue_list(&self, tx: &Tx, dl: &mut Deadlist, key: u64, id: u64) -> Result<()> {
        if self.is_empty_bpobj(id) {
            return self.bpobj_decr_empty(tx).await;
        }
        let list = self.own_list(tx, dl, key).await?;
        self.bpobj_enqueue_subobj(tx, &list, id).await
    }

    /// A new deadlist with the keys of `dl` below `max_txg`, all lists empty.
    pub(crate) async fn deadlist_clone(&self, tx: &Tx, dl: &Deadlist, max_txg: u64) -> Result<u64> {
        let id = self.deadlist_alloc(tx).await?;
        let zap = Zap::open(self.mos(), id).await?;
        for &key in dl.entries.keys().filter(|k| **k < max_txg) {
            let list = self.bpobj_alloc_empty(tx).await?;
            zap.insert_u64(tx, &int_key(key), list).await?;
        }
        Ok(id)
    }

    /// Space of the blocks born after `min_txg` and up to `max_txg`, both of which are keys (or beyond all).
    pub(crate) async fn deadlist_space_range(
        &self,
        dl: &Deadlist,
        min_txg: u64,
        max_txg: u64,
    ) -> Result<Space> {
        let mut sum = Space::default();
        if min_txg < max_txg {
            for (_, &id) in dl.entries.range(min_txg..max_txg) {
                if !self.is_empty_bpobj(id) {
                    sum.add(self.bpobj_open(id).await?.space()?);
                }
            }
        }
        Ok(sum)
    }

    /// Moves all blocks of deadlist `from` to `dl`, leaving `from` without entries.
    pub(crate) async fn deadlist_merge(&self, tx: &Tx, dl: &mut Deadlist, from: u64) -> Result<()> {
        let other = self.deadlist_open(from).await?;
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

    /// Moves the blocks born after `min_txg` to a list.
    pub(crate) async fn deadlist_move_bpobj(
        &self,
        tx: &Tx,
        dl: &mut Deadlist,
        to: &super::bpobj::Bpobj,
        min_txg: u64,
    ) -> Result<()> {
        for (key, id) in dl.entries.split_off(&min_txg) {
            if !self.is_empty_bpobj(id) {
                let s = self.bpobj_open(id).await?.space()?;
                dl.change(tx, |d| d.sub(s))?;
            }
            self.bpobj_enqueue_subobj(tx, to, id).await?;
            dl.zap.delete(tx, &int_key(key)).await?;
        }
        Ok(())
    }

    pub(crate) async fn deadlist_free(&self, tx: &Tx, id: u64) -> Result<()> {
        let dl = self.deadlist_open(id).await?;
        for &list in dl.entries.values() {
            self.bpobj_free(tx, list).await?;
        }
        self.free_object(tx, id).await
    }
}
