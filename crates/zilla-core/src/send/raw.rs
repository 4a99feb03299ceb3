//! What the records of a raw stream do that others' do not: blocks come as they are encrypted, and
//! objects with the shape of their tree.
//!
//! A sender vouches for all that its codes cover, with a key that is not here. So nothing of that
//! may come out otherwise: depth and end of every tree, the room of every bonus, sizes and
//! compression of every block. What cannot be kept so is refused when it is told; what a sender
//! tells wrongly, whoever loads the key will see.
//!
//! **Deliberately absent.** Streams of a machine of the other byte order: their blocks of dnodes
//! would have to be put together in it.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::apply::{Apply, MAX_BYTES, has_spill_room};
use super::frame::bad_stream;
use crate::crypt::{RawBlock, Sealing};
use crate::dmu::{Dnode, MetaShape, PART, in_tx};
use crate::dsl::{RawKey, compress_feature};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::Bookmark;
use crate::zio::RawStore;
use bytes::Bytes;
use std::sync::Arc;
use zilla_codec::compress::Compress;
use zilla_ondisk::SPA_OLD_MAXBLOCKSIZE;
use zilla_ondisk::blkptr::BLKPTR_SIZE;
use zilla_ondisk::dnode::{
    DN_MAX_INDBLKSHIFT, DN_MAX_LEVELS, DN_MAX_NBLKPTR, DNODES_PER_BLOCK, slots_to_bonuslen,
};
use zilla_ondisk::stream::{
    CryptParams, DMU_OBJECT_END, DRR_OBJECT_SPILL, DRR_RAW_BYTESWAP, DRR_SPILL_UNMODIFIED, Free, Object,
    ObjectRange, Spill, Write,
};

/// The least that an indirect block of OpenZFS has. Source: DN_MIN_INDBLKSHIFT in sys/dnode.h.
const DN_MIN_INDBLKSHIFT: u8 = 12;
/// A dnode has room for one pointer beside its bonus at least.
const ONE_POINTER: usize = BLKPTR_SIZE;

/// What is known of a raw stream so far.
pub(super) struct Raw {
    meta: MetaShape,
    /// The object that is being told, the depth of its tree and its last block.
    told: Option<(u64, u8, u64)>,
}

impl Raw {
    pub(super) fn new(key: &RawKey) -> Raw {
        Raw { meta: key.meta, told: None }
    }
}

fn sealing(c: &CryptParams) -> Sealing {
    Sealing { salt: c.salt, iv: c.iv, mac: c.mac }
}

impl Apply {
    fn raw_store(&self) -> Result<&RawStore> {
        self.target.os.store().raw().ok_or_else(|| Error::inval("the dataset is not received raw"))
    }

    fn native(&self, flags: u8) -> Result<()> {
        match self.order.is_native() && flags & DRR_RAW_BYTESWAP == 0 {
            true => Ok(()),
            false => Err(Error::os(
                Errno::NotSup,
                "a raw stream of a machine of the other byte order cannot be received: send it without -w",
            )),
        }
    }

    /// Checks what a raw OBJECT says, and notes it.
    pub(super) fn raw_object(&mut self, o: &Object) -> Result<()> {
        if self.raw.is_some() {
            self.native(o.flags)?;
        }
        let Some(raw) = &mut self.raw else { return Ok(()) };
        let bad = |what: &str| bad_stream(format!("object {}: {what}", o.object));
        let tree = MetaShape {
            nlevels: o.nlevels,
            indblkshift: o.indblkshift,
            nblkptr: o.nblkptr,
            maxblkid: o.maxblkid,
            ..raw.meta
        };
        let blksz = u64::from(o.blksz.max(512));
        if !(1..=DN_MAX_LEVELS).contains(&o.nlevels)
            || !(DN_MIN_INDBLKSHIFT..=DN_MAX_INDBLKSHIFT).contains(&o.indblkshift)
            || !(1..=DN_MAX_NBLKPTR).contains(&o.nblkptr)
            || o.maxblkid >= MAX_BYTES / blksz
            || !tree.reaches(o.maxblkid)
        {
            return Err(bad("impossible tree"));
        }
        let spill = usize::from(o.flags & DRR_OBJECT_SPILL != 0);
        let most = slots_to_bonuslen(o.dn_slots.max(1).into()) + ONE_POINTER;
        let room = most.checked_sub((usize::from(o.nblkptr) + spill) * BLKPTR_SIZE);
        let room = room.ok_or_else(|| bad("no room for its pointers"))?;
        let whole = if o.bonuslen == 0 { 0 } else { room };
        if o.raw_bonuslen as usize != whole || o.bonuslen as usize > whole {
            return Err(bad("its bonus is not all that was encrypted"));
        }
        if o.object / DNODES_PER_BLOCK > raw.meta.maxblkid {
            return Err(bad("no such number"));
        }
        raw.told = Some((o.object, o.nlevels, o.maxblkid));
        Ok(())
    }

    /// Whether an object that is there can be made what a raw OBJECT says without being made anew.
    pub(super) fn raw_fits(&self, dn: &Dnode, o: &Object) -> bool {
        self.raw.is_none()
            || (dn.indblkshift() == o.indblkshift && dn.phys().nlevels <= o.nlevels && dn.blksz() == o.blksz)
    }

    /// Depth and last block of the object that is being told.
    fn told(&self, object: u64) -> Result<(u8, u64)> {
        let told = self.raw.as_ref().and_then(|r| r.told).filter(|(id, ..)| *id == object);
        told.map(|(_, levels, last)| (levels, last))
            .ok_or_else(|| bad_stream(format!("object {object} was not told before")))
    }

    fn raw_block(&self, kind: u8, lsize: u64, payload: Bytes, crypt: &CryptParams) -> Result<RawBlock> {
        let psize = payload.len() as u64;
        let compress = Compress::from_u8(kind).filter(|c| *c == Compress::Off || c.is_function());
        let fits = match compress {
            Some(Compress::Off) => psize == lsize,
            Some(_) => psize <= lsize,
            None => false,
        };
        if !fits || psize == 0 || !psize.is_multiple_of(512) {
            return Err(bad_stream("a raw block of impossible size or compression"));
        }
        self.may(compress_feature(kind))?;
        Ok(RawBlock { data: payload, compress: compress.unwrap_or(Compress::Off), sealing: sealing(crypt) })
    }

    pub(super) async fn raw_write(&mut self, w: &Write, payload: Bytes, bytes: u64) -> Result<()> {
        let bad = |what: &str| bad_stream(format!("object {} at {}: {what}", w.object, w.offset));
        self.native(w.flags)?;
        let (_, last) = self.told(w.object)?;
        let dn = self.hold(w.object).await?;
        let blksz = u64::from(dn.blksz());
        let blkid = w.offset / blksz;
        if w.logical_size != blksz || !w.offset.is_multiple_of(blksz) || blkid > last {
            return Err(bad("it is no block of its object"));
        }
        if w.otype != u32::from(dn.otype()) {
            return Err(bad("no such type"));
        }
        let block = self.raw_block(w.compressiontype, w.logical_size, payload, &w.crypt)?;
        let data = self.raw_store()?.placeholder(dn.blksz() as usize);
        in_tx(&self.dsl.ctx().txgs, |tx| {
            dn.in_order(tx)?;
            self.room(tx, blksz, dn.cost(tx, w.offset, w.offset + blksz, blksz))?;
            self.raw_store()?.put(w.object, blkid, tx.txg(), block.clone());
            dn.write_block(tx, blkid, data.clone());
            self.reached(tx, w.object, w.offset, bytes);
            Ok(())
        })
        .await
    }

    pub(super) async fn raw_free(&mut self, f: &Free) -> Result<()> {
        let (levels, last) = self.told(f.object)?;
        let dn = self.hold(f.object).await?;
        let blksz = u64::from(dn.blksz());
        let to_end = f.length == DMU_OBJECT_END;
        if !f.offset.is_multiple_of(blksz) || !(to_end || f.length.is_multiple_of(blksz)) {
            return Err(bad_stream(format!("object {}: FREE of parts of blocks", f.object)));
        }
        let end = f.offset.saturating_add(f.length).min(MAX_BYTES);
        let free = |tx: &Tx, at: u64, end: u64| self.free_now(tx, &dn, at, end);
        let part = || self.dsl.frees_at_once(PART);
        let end = dn.all_but_a_part(&self.dsl.ctx().txgs, (f.offset, end), part, free).await?;
        in_tx(&self.dsl.ctx().txgs, |tx| {
            free(tx, f.offset, end)?;
            // An object may end in a hole.
            dn.set_tree(tx, levels, last);
            Ok(())
        })
        .await
    }

    /// Blocks of the open txg that were freed after all are not written: they would stay in memory
    /// to the stream's end.
    pub(super) fn forget_raw(&self, tx: &Tx, dn: &Dnode, at: u64, end: u64) {
        let blksz = u64::from(dn.blksz());
        if let (Some(store), true) = (self.target.os.store().raw(), at < end) {
            store.forget(dn.id().0, at / blksz..=end.div_ceil(blksz) - 1, tx.txg());
        }
    }

    pub(super) fn forget_raw_spill(&self, tx: &Tx, dn: &Dnode) {
        if let Some(store) = self.target.os.store().raw() {
            store.forget(dn.id().0, Bookmark::SPILL_BLKID..=Bookmark::SPILL_BLKID, tx.txg());
        }
    }

    pub(super) async fn raw_spill(&mut self, s: &Spill, payload: Bytes) -> Result<()> {
        self.native(s.flags)?;
        self.told(s.object)?;
        let impossible = || bad_stream(format!("object {}: impossible spill block", s.object));
        if !(512..=SPA_OLD_MAXBLOCKSIZE).contains(&s.length) || !s.length.is_multiple_of(512) {
            return Err(impossible());
        }
        let dn = self.hold(s.object).await?;
        // One that was not changed is here, unless its object had to be made anew.
        if s.flags & DRR_SPILL_UNMODIFIED != 0 && dn.phys().spill.is_some() {
            return Ok(());
        }
        if !has_spill_room(&dn) {
            return Err(impossible());
        }
        let block = self.raw_block(s.compressiontype, s.length, payload, &s.crypt)?;
        let data = self.raw_store()?.placeholder(usize::try_from(s.length).unwrap_or(0));
        in_tx(&self.dsl.ctx().txgs, |tx| {
            dn.in_order(tx)?;
            self.room(tx, s.length, tx.worst(s.length, 3))?;
            self.raw_store()?.put(s.object, Bookmark::SPILL_BLKID, tx.txg(), block.clone());
            dn.set_spill(tx, Some(data.clone()));
            Ok(())
        })
        .await
    }

    pub(super) fn raw_range(&mut self, r: &ObjectRange) -> Result<()> {
        self.native(r.flags)?;
        let Some(raw) = &self.raw else { return Err(bad_stream("OBJECT_RANGE in a stream that is not raw")) };
        let blkid = r.firstobj / DNODES_PER_BLOCK;
        if r.numslots != DNODES_PER_BLOCK
            || !r.firstobj.is_multiple_of(DNODES_PER_BLOCK)
            || blkid > raw.meta.maxblkid
        {
            return Err(bad_stream("OBJECT_RANGE of no block of dnodes"));
        }
        match self.raw_store()?.put_dnodes(blkid, sealing(&r.crypt)) {
            true => Ok(()),
            false => Err(bad_stream("more OBJECT_RANGEs without objects than a sender tells")),
        }
    }

    /// Gives an object what OBJECT says of its bonus and tree.
    pub(super) fn put_head(&self, tx: &crate::txg::Tx, dn: &Arc<Dnode>, o: &Object, bonus: &[u8]) {
        dn.set_codecs(tx, o.checksumtype, o.compress);
        match &self.raw {
            None => dn.set_bonus(tx, bonus),
            Some(_) => {
                dn.set_sealed_bonus(tx, u16::try_from(o.bonuslen).unwrap_or(0), bonus);
                dn.set_tree(tx, o.nlevels, o.maxblkid);
            }
        }
    }
}
