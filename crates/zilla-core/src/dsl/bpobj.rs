//! Lists of block pointers in the MOS (bpobj): deadlists, the list of blocks to be freed, deferred
//! frees.
//!
//! An object whose data is an array of block pointers and whose bonus counts them and their space.
//! Lists are joined without copying: a second object holds the numbers of *sub-lists*. Most lists
//! are empty, so all empty ones share one object, which is counted by the feature empty_bpobj.

use super::DslPool;

use crate::dmu::{Dnode, NewObject, Objset, resident};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId};
use std::collections::BTreeSet;
use std::sync::Arc;
use zilla_ondisk::blkptr::{BLKPTR_SIZE, BlkPtr};
use zilla_ondisk::bpobj::{self, BPOBJ_SIZE_V0, BPOBJ_SIZE_V1, BPOBJ_SIZE_V2, BPOBJ_SIZE_V3, BpobjPhys};
use zilla_ondisk::dsl::DMU_POOL_EMPTY_BPOBJ;
use zilla_ondisk::enums::{SPA_VERSION_BPOBJ_ACCOUNT, SPA_VERSION_DEADLISTS};
use zilla_ondisk::object_type::{DMU_OT_BPOBJ, DMU_OT_BPOBJ_HDR, DMU_OT_BPOBJ_SUBOBJ};
use zilla_ondisk::{ByteOrder, SPA_OLD_MAXBLOCKSIZE};

const BLOCK: u32 = SPA_OLD_MAXBLOCKSIZE as u32;
/// Sub-lists in sub-lists; OpenZFS nests a few deep at most.
const MAX_DEPTH: usize = 64;
/// More objects than a pool can have: so many sub-lists no list has.
const MOST_SUBOBJS: u64 = 1 << 48;

/// Space as a list, a dataset or a dir counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub used: u64,
    pub comp: u64,
    pub uncomp: u64,
}

impl Space {
    pub fn add(&mut self, o: Space) {
        self.used = self.used.wrapping_add(o.used);
        self.comp = self.comp.wrapping_add(o.comp);
        self.uncomp = self.uncomp.wrapping_add(o.uncomp);
    }

    pub fn sub(&mut self, o: Space) {
        self.used = self.used.saturating_sub(o.used);
        self.comp = self.comp.saturating_sub(o.comp);
        self.uncomp = self.uncomp.saturating_sub(o.uncomp);
    }
}

/// A change of [`Space`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    pub used: i64,
    pub comp: i64,
    pub uncomp: i64,
}

impl From<Space> for Delta {
    fn from(s: Space) -> Delta {
        Delta { used: s.used as i64, comp: s.comp as i64, uncomp: s.uncomp as i64 }
    }
}

impl std::ops::Neg for Delta {
    type Output = Delta;
    fn neg(self) -> Delta {
        Delta {
            used: self.used.wrapping_neg(),
            comp: self.comp.wrapping_neg(),
            uncomp: self.uncomp.wrapping_neg(),
        }
    }
}

impl std::ops::AddAssign for Delta {
    fn add_assign(&mut self, o: Delta) {
        self.used = self.used.wrapping_add(o.used);
        self.comp = self.comp.wrapping_add(o.comp);
        self.uncomp = self.uncomp.wrapping_add(o.uncomp);
    }
}

/// A list that is held open.
#[derive(Clone)]
pub struct Bpobj {
    dn: Arc<Dnode>,
}

impl Bpobj {
    #[crate::boxed]
    pub async fn open(mos: &Arc<Objset>, id: u64) -> Result<Bpobj> {
        let dn = mos.hold_wait(ObjectId(id)).await?;
        if dn.otype() != DMU_OT_BPOBJ {
            let b = Bookmark::new(0, ObjectId(id), 0, 0);
            return Err(Error::corrupt(Some(b), "", format!("object {id} is not a list of block pointers")));
        }
        Ok(Bpobj { dn })
    }

    /// A list that is never part of another one, in blocks of `blksz`.
    #[crate::boxed]
    pub async fn create_plain(mos: &Arc<Objset>, tx: &Tx, blksz: u32, version: u64) -> Result<Bpobj> {
        let spec = NewObject::new(DMU_OT_BPOBJ, blksz).bonus(DMU_OT_BPOBJ_HDR, header(version, false));
        Ok(Bpobj { dn: resident(|| mos.alloc(tx, spec)).await? })
    }

    pub fn id(&self) -> u64 {
        self.dn.id().0
    }

    pub fn phys(&self) -> Result<BpobjPhys> {
        let p = BpobjPhys::from_bonus(&self.dn.bonus(), ByteOrder::NATIVE)
            .map_err(|e| self.corrupt(e.to_string()))?;
        let room = room(&self.dn) / BLKPTR_SIZE as u64;
        if p.num_blkptrs > room {
            return Err(self.corrupt(format!("{} block pointers, room for {room}", p.num_blkptrs)));
        }
        if p.num_subobjs > MOST_SUBOBJS {
            return Err(self.corrupt(format!("{} sub-lists", p.num_subobjs)));
        }
        Ok(p)
    }

    pub(super) fn corrupt(&self, what: String) -> Error {
        Error::corrupt(Some(Bookmark::new(self.dn.objset_id(), self.dn.id(), 0, 0)), "", what)
    }

    fn set_phys(&self, tx: &Tx, phys: &BpobjPhys) {
        self.dn.set_bonus(tx, &phys.to_bonus(self.dn.bonus().len()));
    }

    pub fn space(&self) -> Result<Space> {
        let p = self.phys()?;
        Ok(Space { used: p.bytes, comp: p.comp, uncomp: p.uncomp })
    }

    pub fn is_empty(&self) -> Result<bool> {
        let p = self.phys()?;
        Ok(p.num_blkptrs == 0 && p.num_subobjs == 0)
    }

    /// The pointers from number `at` on, at most `max` of them.
    #[crate::boxed]
    pub async fn read(&self, at: u64, max: usize) -> Result<Vec<BlkPtr>> {
        let left = self.phys()?.num_blkptrs.saturating_sub(at);
        let n = usize::try_from(left).unwrap_or(max).min(max);
        let mut buf = vec![0; n * BLKPTR_SIZE];
        if n > 0 {
            self.dn.read_wait(at * BLKPTR_SIZE as u64, &mut buf).await?;
        }
        let all: Vec<BlkPtr> = BlkPtr::iter(&buf, ByteOrder::NATIVE).collect();
        // A list of nothing would be as long as its header says.
        if all.contains(&BlkPtr::ZERO) {
            return Err(self.corrupt(format!("there is a hole in the list, from pointer {at} on")));
        }
        Ok(all)
    }
}

/// The length of the header that lists have in pools of a version.
fn header(version: u64, livelists: bool) -> usize {
    match version {
        ..SPA_VERSION_BPOBJ_ACCOUNT => BPOBJ_SIZE_V0,
        SPA_VERSION_BPOBJ_ACCOUNT..SPA_VERSION_DEADLISTS => BPOBJ_SIZE_V1,
        _ if livelists => BPOBJ_SIZE_V3,
        _ => BPOBJ_SIZE_V2,
    }
}

/// Bytes up to the end of an object's last block.
fn room(dn: &Dnode) -> u64 {
    (dn.maxblkid() + 1) * u64::from(dn.blksz())
}

impl DslPool {
    pub(crate) async fn bpobj_open(&self, id: u64) -> Result<Bpobj> {
        Bpobj::open(self.mos(), id).await
    }

    #[crate::boxed]
    pub async fn bpobj_alloc(&self, tx: &Tx) -> Result<u64> {
        self.bpobj_make(tx, self.ctx.version()).await
    }

    /// A list as pools of a version have them.
    pub(super) async fn bpobj_make(&self, tx: &Tx, version: u64) -> Result<u64> {
        let len = header(version, self.feature_active("livelist"));
        let spec = NewObject::new(DMU_OT_BPOBJ, BLOCK).bonus(DMU_OT_BPOBJ_HDR, len);
        Ok(resident(|| self.mos().alloc(tx, spec)).await?.id().0)
    }

    /// An empty list: the shared one where the pool has it.
    pub(crate) async fn bpobj_alloc_empty(&self, tx: &Tx) -> Result<u64> {
        if !self.feature_enabled("empty_bpobj") {
            return self.bpobj_alloc(tx).await;
        }
        if !self.feature_active("empty_bpobj") {
            let id = self.bpobj_alloc(tx).await?;
            self.directory().await?.insert_u64(tx, DMU_POOL_EMPTY_BPOBJ, id).await?;
            *self.empty_bpobj.lock() = id;
        }
        self.feature_incr(tx, "empty_bpobj").await?;
        Ok(*self.empty_bpobj.lock())
    }

    pub(crate) fn is_empty_bpobj(&self, id: u64) -> bool {
        let empty = *self.empty_bpobj.lock();
        empty != 0 && empty == id
    }

    /// One user of the shared empty list less.
    pub(crate) async fn bpobj_decr_empty(&self, tx: &Tx) -> Result<()> {
        self.feature_decr(tx, "empty_bpobj").await?;
        if !self.feature_active("empty_bpobj") {
            let id = std::mem::take(&mut *self.empty_bpobj.lock());
            self.directory().await?.delete(tx, DMU_POOL_EMPTY_BPOBJ).await?;
            self.free_object(tx, id).await?;
        }
        Ok(())
    }

    pub(crate) async fn free_object(&self, tx: &Tx, id: u64) -> Result<()> {
        let dn = self.mos().hold_wait(ObjectId(id)).await?;
        self.mos().free(tx, &dn);
        Ok(())
    }

    fn bp_space(&self, bp: &BlkPtr) -> Space {
        super::bp_space(&*self.ctx.store, bp)
    }

    /// Appends pointers.
    #[crate::boxed]
    pub async fn push_bpobj(&self, obj: &Bpobj, tx: &Tx, bps: &[BlkPtr]) -> Result<()> {
        self.append_bpobj(obj, tx, bps, false).await
    }

    /// The same; `freed`: as frees of what a livelist has.
    pub(super) async fn append_bpobj(&self, obj: &Bpobj, tx: &Tx, bps: &[BlkPtr], freed: bool) -> Result<()> {
        if bps.is_empty() {
            return Ok(());
        }
        let mut p = obj.phys()?;
        let mut sum = Space { used: p.bytes, comp: p.comp, uncomp: p.uncomp };
        let mut buf = Vec::with_capacity(bps.len() * BLKPTR_SIZE);
        for bp in bps {
            buf.extend_from_slice(&bpobj::stored(bp, freed).encode());
            let s = self.bp_space(bp);
            if freed { sum.sub(s) } else { sum.add(s) }
        }
        (p.bytes, p.comp, p.uncomp) = (sum.used, sum.comp, sum.uncomp);
        p.num_freed += if freed { bps.len() as u64 } else { 0 };
        obj.dn.write(tx, p.num_blkptrs * BLKPTR_SIZE as u64, &buf);
        p.num_blkptrs += bps.len() as u64;
        obj.set_phys(tx, &p);
        Ok(())
    }

    /// Gives a list without sub-lists other contents.
    pub(super) async fn refill_bpobj(&self, obj: &Bpobj, tx: &Tx, bps: &[BlkPtr]) -> Result<()> {
        obj.dn.free_range(tx, 0, u64::MAX);
        obj.set_phys(tx, &BpobjPhys::default());
        self.push_bpobj(obj, tx, bps).await
    }

    async fn new_subobjs(&self, tx: &Tx) -> Result<u64> {
        let spec = NewObject::new(DMU_OT_BPOBJ_SUBOBJ, BLOCK);
        Ok(resident(|| self.mos().alloc(tx, spec)).await?.id().0)
    }

    /// Makes list `sub` a part of `obj`; the number `sub` is used up.
    pub(crate) async fn bpobj_enqueue_subobj(&self, tx: &Tx, obj: &Bpobj, sub: u64) -> Result<()> {
        if self.is_empty_bpobj(sub) {
            return self.bpobj_decr_empty(tx).await;
        }
        let s = self.bpobj_open(sub).await?;
        if s.is_empty()? {
            return self.bpobj_free(tx, sub).await;
        }
        let (mut p, sp) = (obj.phys()?, s.phys()?);
        // A small list is copied, its own sub-lists become ours: that keeps the nesting flat.
        let per_block = u64::from(BLOCK) / 8;
        let flat = sp.num_subobjs <= per_block;
        let small = flat && sp.num_blkptrs <= u64::from(BLOCK) / BLKPTR_SIZE as u64;
        let mut subs = Vec::new();
        if flat && sp.subobjs != 0 {
            subs = self.subobj_ids(&s, &sp).await?;
            self.free_subobjs(tx, &s, sp.subobjs).await?;
            s.set_phys(tx, &BpobjPhys { subobjs: 0, num_subobjs: 0, ..sp });
        }
        if small {
            let mut buf = vec![0; sp.num_blkptrs as usize * BLKPTR_SIZE];
            if !buf.is_empty() {
                s.dn.read_wait(0, &mut buf).await?;
                obj.dn.write(tx, p.num_blkptrs * BLKPTR_SIZE as u64, &buf);
            }
            p.num_blkptrs += sp.num_blkptrs;
            self.mos().free(tx, &s.dn);
        } else {
            subs.push(sub);
        }
        if !subs.is_empty() {
            if p.subobjs == 0 {
                p.subobjs = self.new_subobjs(tx).await?;
            }
            let raw: Vec<u8> = subs.iter().flat_map(|n| n.to_ne_bytes()).collect();
            let dn = self.subobjs(obj, p.subobjs).await?;
            dn.write(tx, p.num_subobjs * 8, &raw);
            p.num_subobjs += subs.len() as u64;
        }
        p.bytes = p.bytes.saturating_add(sp.bytes);
        p.comp = p.comp.saturating_add(sp.comp);
        p.uncomp = p.uncomp.saturating_add(sp.uncomp);
        obj.set_phys(tx, &p);
        Ok(())
    }

    /// The object with the numbers of a list's sub-lists. What a header names may be any object,
    /// and no other may be read as one, or freed as one.
    async fn subobjs(&self, of: &Bpobj, id: u64) -> Result<Arc<Dnode>> {
        let dn = self.mos().hold_wait(ObjectId(id)).await?;
        match dn.otype() {
            DMU_OT_BPOBJ_SUBOBJ => Ok(dn),
            _ => Err(of.corrupt(format!("object {id} is not a list of sub-lists"))),
        }
    }

    async fn free_subobjs(&self, tx: &Tx, of: &Bpobj, id: u64) -> Result<()> {
        let dn = self.subobjs(of, id).await?;
        self.mos().free(tx, &dn);
        Ok(())
    }

    async fn subobj_ids(&self, obj: &Bpobj, p: &BpobjPhys) -> Result<Vec<u64>> {
        if p.num_subobjs == 0 {
            return Ok(Vec::new());
        }
        let dn = self.subobjs(obj, p.subobjs).await?;
        let most = room(&dn) / 8;
        if p.num_subobjs > most {
            return Err(obj.corrupt(format!("{} sub-lists, room for {most}", p.num_subobjs)));
        }
        let (mut out, mut seen) = (Vec::new(), BTreeSet::new());
        let mut raw = vec![0; BLOCK as usize];
        while (out.len() as u64) < p.num_subobjs {
            let at = out.len() as u64 * 8;
            let n = (p.num_subobjs * 8 - at).min(raw.len() as u64) as usize;
            let part = raw.split_at_mut(n).0;
            dn.read_wait(at, part).await?;
            for id in part.as_chunks::<8>().0.iter().map(|c| u64::from_ne_bytes(*c)) {
                // No list is a part of another one twice, so there are no more of them than
                // objects.
                if id == 0 || !seen.insert(id) {
                    return Err(obj.corrupt(format!("sub-list {id} cannot be, or is there twice")));
                }
                out.push(id);
            }
        }
        Ok(out)
    }

    /// Frees a list with all its sub-lists (not the blocks they list).
    pub(crate) async fn bpobj_free(&self, tx: &Tx, id: u64) -> Result<()> {
        let mut todo = vec![id];
        let mut seen = BTreeSet::new();
        while let Some(id) = todo.pop() {
            if self.is_empty_bpobj(id) {
                self.bpobj_decr_empty(tx).await?;
                continue;
            }
            if !seen.insert(id) {
                let b = Bookmark::new(0, ObjectId(id), 0, 0);
                return Err(Error::corrupt(Some(b), "", format!("list {id} is a part of itself")));
            }
            let obj = self.bpobj_open(id).await?;
            let p = obj.phys()?;
            todo.extend(self.subobj_ids(&obj, &p).await?);
            if p.subobjs != 0 {
                self.free_subobjs(tx, &obj, p.subobjs).await?;
            }
            self.mos().free(tx, &obj.dn);
        }
        Ok(())
    }

    /// Takes up to `max` pointers off a list, last first, sub-lists before the list's own.
    #[crate::boxed]
    pub async fn pop_bpobj(&self, obj: &Bpobj, tx: &Tx, max: usize) -> Result<Vec<BlkPtr>> {
        let mut path = vec![obj.clone()];
        let mut out = Vec::new();
        while let Some(top) = path.last().cloned() {
            if out.len() >= max {
                break;
            }
            if path.len() > MAX_DEPTH {
                return Err(obj.corrupt("sub-lists are nested too deep".into()));
            }
            let mut p = top.phys()?;
            if let Some(&sub) = self.subobj_ids(&top, &p).await?.last() {
                let s = self.bpobj_open(sub).await?;
                if !s.is_empty()? {
                    path.push(s);
                    continue;
                }
                self.bpobj_free(tx, sub).await?;
                p.num_subobjs -= 1;
                if p.num_subobjs == 0 {
                    self.free_subobjs(tx, &top, std::mem::take(&mut p.subobjs)).await?;
                }
                top.set_phys(tx, &p);
                continue;
            }
            let n = p.num_blkptrs.min((max - out.len()) as u64);
            if n == 0 {
                path.pop();
                if path.is_empty() {
                    break;
                }
                continue;
            }
            let first = p.num_blkptrs - n;
            let bps = top.read(first, n as usize).await?;
            let mut gone = Space::default();
            for bp in &bps {
                gone.add(self.bp_space(bp));
            }
            p.num_blkptrs = first;
            top.dn.free_range(tx, first * BLKPTR_SIZE as u64, u64::MAX);
            top.set_phys(tx, &p);
            // The lists above count this one's space too.
            for o in &path {
                let mut p = o.phys()?;
                p.bytes = p.bytes.saturating_sub(gone.used);
                p.comp = p.comp.saturating_sub(gone.comp);
                p.uncomp = p.uncomp.saturating_sub(gone.uncomp);
                o.set_phys(tx, &p);
            }
            out.extend(bps);
        }
        Ok(out)
    }

    /// Every pointer in a list and its sub-lists, without changing it; for checks.
    #[crate::boxed]
    pub async fn bpobj_all(&self, id: u64) -> Result<Vec<BlkPtr>> {
        let mut out = Vec::new();
        let mut todo = vec![id];
        let mut seen = BTreeSet::new();
        while let Some(id) = todo.pop() {
            if !seen.insert(id) {
                continue;
            }
            let obj = self.bpobj_open(id).await?;
            let p = obj.phys()?;
            todo.extend(self.subobj_ids(&obj, &p).await?);
            let mut at = 0;
            while at < p.num_blkptrs {
                let some = obj.read(at, 1024).await?;
                at += some.len() as u64;
                out.extend(some);
            }
        }
        Ok(out)
    }
}
