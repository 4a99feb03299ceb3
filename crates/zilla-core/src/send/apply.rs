//! What each record of a stream does to the objects of the dataset that is received.
//!
//! Each record is one transaction, so a txg has whole records and a receive goes on in the next
//! where the last ended. A record that must wait for something has changed nothing yet. What waits
//! to be synced is bounded by the write throttle, as for any writer.
//!
//! A number that is used again for another object is changed in place where the dnode's shape
//! allows it. Else the old object is freed, its txg waited for, and the new one made.
//!
//! A block that comes compressed (`send -c`) is decompressed, which tells whether it can be, and
//! stored as it came; one that comes in its pointer (`-e`) stays there. Both only where it is one
//! block here as well, in this machine's order.
//!
//! **Bad input.** Every number of a record is checked before it is used: sizes against the block
//! sizes the pool has, offsets against the longest object, types against those there are.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::frame::bad_stream;
use crate::dmu::{Dnode, NewObject, Now, PART, in_tx, max_bonus, nblkptr_for, resident};
use crate::dsl::{
    DslPool, Reached, RecvTarget, are_codecs, checksum_feature, compress_feature, size_features,
};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId};
use crate::zio::{Leave, Packed, class_swap};
use bytes::Bytes;
use std::sync::Arc;
use zilla_codec::compress::{self, Compress};
use zilla_env::IoBuf;
use zilla_ondisk::blkptr::{BLKPTR_SIZE, BP_EMBEDDED_TYPE_DATA, BPE_PAYLOAD_SIZE, BlkPtr};
use zilla_ondisk::dnode::{DN_MAX_OBJECT, DNODE_SHIFT, DNODES_PER_BLOCK, slots_to_bonuslen};
use zilla_ondisk::object_type::{self, DMU_OT_DNODE, DMU_OT_NONE, DMU_OT_OBJSET};
use zilla_ondisk::stream::{
    DMU_OBJECT_END, DRR_OBJECT_SPILL, DRR_SPILL_UNMODIFIED, Free, FreeObjects, Object, Record, Spill, Write,
    WriteEmbedded,
};
use zilla_ondisk::{ByteOrder, SPA_MAXBLOCKSIZE, SPA_OLD_MAXBLOCKSIZE};

/// No object is longer.
pub(super) const MAX_BYTES: u64 = i64::MAX as u64;
/// A number comes free when its object's txg is synced: more often than this it is not waited for.
const TRIES: usize = 3;

pub(super) struct Apply {
    pub dsl: Arc<DslPool>,
    pub target: RecvTarget,
    pub order: ByteOrder,
    /// The sender tells spill blocks whenever it tells their objects.
    pub tells_spills: bool,
    pub resumable: bool,
    /// Blocks that came in their pointers stay there: not where they have to be encrypted.
    pub embeds: bool,
    /// What a raw stream has told.
    pub raw: Option<super::raw::Raw>,
    /// The object of the last record; most records are of the same.
    pub last: Option<Arc<Dnode>>,
    /// The highest object so far.
    pub highest: u64,
}

impl Apply {
    fn max_blksz(&self) -> u64 {
        if self.dsl.feature_enabled("large_blocks") { SPA_MAXBLOCKSIZE } else { SPA_OLD_MAXBLOCKSIZE }
    }

    /// Does what a record says; `bytes` is where the stream is after it.
    pub(super) async fn record(&mut self, record: &Record, payload: Bytes, bytes: u64) -> Result<()> {
        match record {
            Record::Object(o) => self.object(o, &payload, bytes).await,
            Record::FreeObjects(f) => self.free_objects(f).await,
            Record::Write(w) if self.raw.is_some() => self.raw_write(w, payload, bytes).await,
            Record::Free(f) if self.raw.is_some() => self.raw_free(f).await,
            Record::Spill(s) if self.raw.is_some() => self.raw_spill(s, payload).await,
            Record::WriteEmbedded(_) if self.raw.is_some() => Err(bad_stream("a raw block in a pointer")),
            Record::Write(w) => self.write(w, payload, bytes).await,
            Record::WriteEmbedded(w) => self.embedded(w, &payload, bytes).await,
            Record::Free(f) => self.free(f).await,
            Record::Spill(s) => self.spill(s, payload).await,
            Record::WriteByref(_) => Err(Error::os(
                Errno::NotSup,
                "\"zfs receive\" does not support deduplicated send streams. Use the \"zstream redup\" command to \
                 convert this stream to a regular, non-deduplicated stream.",
            )),
            Record::ObjectRange(r) => self.raw_range(r),
            // What was left out is a hole here, as with OpenZFS.
            Record::Redact(r) if self.raw.is_none() => {
                let (object, offset, length) = (r.object, r.offset, r.length);
                self.free(&Free { object, offset, length, toguid: r.toguid }).await
            }
            Record::Redact(_) => Err(bad_stream("REDACT in a raw stream")),
            Record::Begin(_) | Record::End(_) => Err(bad_stream(format!("{} within it", record.name()))),
        }
    }

    pub(super) fn reached(&self, tx: &Tx, object: u64, offset: u64, bytes: u64) {
        if self.resumable {
            self.target.ds.reached(Reached { txg: tx.txg(), object, offset, bytes });
        }
    }

    pub(super) async fn hold(&mut self, object: u64) -> Result<Arc<Dnode>> {
        if let Some(dn) = self.last.as_ref().filter(|d| d.id().0 == object && !d.is_freed()) {
            return Ok(dn.clone());
        }
        // Beyond are the objects that count what users have, by numbers of their own.
        if object == 0 || object >= DN_MAX_OBJECT {
            return Err(bad_stream(format!("object {object} does not exist")));
        }
        let os = &self.target.os;
        let dn = os.hold_wait(ObjectId(object)).await.map_err(|e| match e.is(Errno::NoEnt) {
            true => bad_stream(format!("object {object} does not exist")),
            false => e,
        })?;
        self.last = Some(dn.clone());
        Ok(dn)
    }

    /// Room for `bytes` more in the datasets' quotas and on the devices.
    pub(super) fn room(&self, tx: &Tx, bytes: u64, cost: u64) -> Result<()> {
        self.dsl.reserve(&self.target.ds, tx, bytes, false)?;
        self.dsl.hold_room(tx, cost, Leave::Half)
    }

    async fn object(&mut self, o: &Object, payload: &Bytes, bytes: u64) -> Result<()> {
        let bad = |what: &str| bad_stream(format!("object {}: {what}", o.object));
        let types = [o.otype, o.bonustype].map(|t| u8::try_from(t).ok());
        let [Some(otype), Some(bonustype)] = types else { return Err(bad("no such type")) };
        // What looks like the objset's own blocks would be taken apart as they are.
        let is_own = |t: u8| matches!(t, DMU_OT_DNODE | DMU_OT_OBJSET) || !object_type::is_valid(t);
        if otype == DMU_OT_NONE || is_own(otype) || is_own(bonustype) {
            return Err(bad("no such type"));
        }
        if !are_codecs(o.checksumtype, o.compress) {
            return Err(bad("no such checksum or compression"));
        }
        let codecs = checksum_feature(o.checksumtype).into_iter().chain(compress_feature(o.compress));
        self.may(codecs.chain(size_features(o.blksz.into(), otype)))?;
        let slots = o.dn_slots.max(1);
        let fits = o.object % DNODES_PER_BLOCK + u64::from(slots) <= DNODES_PER_BLOCK;
        if o.object == 0 || o.object >= DN_MAX_OBJECT || !fits {
            return Err(bad("no such number"));
        }
        if o.blksz < 512 || !o.blksz.is_multiple_of(512) || u64::from(o.blksz) > self.max_blksz() {
            return Err(bad("impossible block size"));
        }
        self.raw_object(o)?;
        let bonuslen = if self.raw.is_some() { o.raw_bonuslen } else { o.bonuslen } as usize;
        if bonuslen > slots_to_bonuslen(slots.into()) {
            return Err(bad("bonus too long"));
        }
        let Some(bonus) = payload.get(..bonuslen) else { return Err(bad("bonus cut off")) };
        let mut bonus = bonus.to_vec();
        if !self.order.is_native() && bonustype != DMU_OT_NONE {
            class_swap(object_type::byteswap_class(bonustype), &mut bonus);
        }
        if slots > 1 {
            self.may(["large_dnode"])?;
            self.target.ds.will_need_feature("large_dnode");
        }
        let spec = NewObject::new(otype, o.blksz).bonus(bonustype, bonuslen);
        let mut spec = NewObject { dnodesize: usize::from(slots) << DNODE_SHIFT, ..spec };
        if self.raw.is_some() {
            spec = NewObject { nblkptr: o.nblkptr, indblkshift: o.indblkshift, ..spec };
        }
        let shape = if spec.nblkptr == 0 { nblkptr_for(slots, bonustype, bonuslen) } else { spec.nblkptr };
        if self.keeps_spill(o) && bonuslen + BLKPTR_SIZE > max_bonus(slots, shape) {
            return Err(bad("no room for a spill block's pointer"));
        }
        self.last = None;
        self.highest = self.highest.max(o.object);
        for _ in 0..TRIES {
            let os = self.target.os.clone();
            let old = match resident(|| os.hold(ObjectId(o.object))).await {
                Ok(dn) => Some(dn),
                Err(e) if e.is(Errno::NoEnt) => None,
                Err(e) => return Err(e),
            };
            match old {
                Some(dn) if dn.slots() == slots && dn.nblkptr() == shape && self.raw_fits(&dn, o) => {
                    if let Some(at) = self.goes_from(&dn, o, otype) {
                        self.free_parts(&dn, at, MAX_BYTES).await?;
                    }
                    in_tx(&self.dsl.ctx().txgs, |tx| {
                        self.change(tx, &dn, o, otype, bonustype, &bonus)?;
                        self.reached(tx, o.object, 0, bytes);
                        Ok(())
                    })
                    .await?;
                    self.last = Some(dn);
                    return Ok(());
                }
                Some(dn) => self.free_one(&dn).await?,
                None => {}
            }
            let made = in_tx(&self.dsl.ctx().txgs, |tx| {
                self.room(tx, 0, 0)?;
                let dn = self.target.os.claim(tx, ObjectId(o.object), spec)?;
                self.put_head(tx, &dn, o, &bonus);
                self.reached(tx, o.object, 0, bytes);
                Ok(dn)
            })
            .await;
            match made {
                Ok(dn) => {
                    self.last = Some(dn);
                    return Ok(());
                }
                // What was there before is gone from the disk only with its txg.
                Err(e) if e.is(Errno::Busy) => {
                    for id in o.object + 1..o.object + u64::from(slots) {
                        if let Ok(dn) = resident(|| os.hold(ObjectId(id))).await {
                            self.free_one(&dn).await?;
                        }
                    }
                    let txgs = &self.dsl.ctx().txgs;
                    txgs.wait_synced(txgs.open()).await?;
                }
                Err(e) => return Err(e),
            }
        }
        Err(bad("it lies over another"))
    }

    /// From where on an object's blocks go when it becomes what the record says; None if they stay.
    fn goes_from(&self, dn: &Dnode, o: &Object, otype: u8) -> Option<u64> {
        let old = dn.blksz();
        // A sender that splits large blocks for one stream and not for the next: all of the file is
        // there, in smaller blocks.
        let was_split = dn.maxblkid() > 0 && u64::from(old) == SPA_OLD_MAXBLOCKSIZE && o.blksz > old;
        if o.blksz != old && !(was_split && dn.otype() == otype) {
            return Some(0);
        }
        // A raw stream's object ends where it says, and what is behind goes at once.
        let end = (o.maxblkid.saturating_add(1)).saturating_mul(u64::from(old)).min(MAX_BYTES);
        (self.raw.is_some() && o.maxblkid < dn.maxblkid()).then_some(end)
    }

    /// Whether an object may have the spill block that it has: the sender would tell it otherwise.
    fn keeps_spill(&self, o: &Object) -> bool {
        self.tells_spills && o.flags & DRR_OBJECT_SPILL != 0
    }

    /// Refuses what would need a feature that the pool does not have.
    pub(super) fn may(&self, features: impl IntoIterator<Item = &'static str>) -> Result<()> {
        self.dsl.recv_needs(features)
    }

    /// Makes an object that exists what the record says, its blocks but for those that a record
    /// will follow for.
    fn change(
        &self,
        tx: &Tx,
        dn: &Arc<Dnode>,
        o: &Object,
        otype: u8,
        bonustype: u8,
        bonus: &[u8],
    ) -> Now<()> {
        dn.in_order(tx)?;
        let from = self.goes_from(dn, o, otype);
        self.room(tx, 0, from.map_or(0, |at| dn.free_cost(tx, at, MAX_BYTES)))?;
        if let Some(at) = from {
            dn.free_some(tx, at, DMU_OBJECT_END, PART);
            self.forget_raw(tx, dn, at, MAX_BYTES);
        }
        if from == Some(0) {
            dn.set_blksz(tx, o.blksz, 0)?;
        }
        dn.set_types(tx, otype, bonustype);
        self.put_head(tx, dn, o, bonus);
        if !self.keeps_spill(o) {
            dn.set_spill(tx, None);
            self.forget_raw_spill(tx, dn);
        }
        Ok(())
    }

    /// Frees what lies between two places of an object but for one part; where that ends.
    async fn free_parts(&self, dn: &Arc<Dnode>, off: u64, end: u64) -> Result<u64> {
        let free = |tx: &Tx, at: u64, end: u64| self.free_now(tx, dn, at, end);
        dn.all_but_a_part(&self.dsl.ctx().txgs, (off, end), || self.dsl.frees_at_once(PART), free).await
    }

    pub(super) fn free_now(&self, tx: &Tx, dn: &Arc<Dnode>, at: u64, end: u64) -> Now<()> {
        dn.in_order(tx)?;
        self.dsl.reserve(&self.target.ds, tx, 0, true)?;
        self.dsl.hold_room(tx, dn.free_cost(tx, at, end), Leave::Quarter)?;
        dn.free_some(tx, at, end.saturating_sub(at), PART);
        self.forget_raw(tx, dn, at, end);
        Ok(())
    }

    async fn free_one(&self, dn: &Arc<Dnode>) -> Result<()> {
        self.free_parts(dn, 0, MAX_BYTES).await?;
        in_tx(&self.dsl.ctx().txgs, |tx| {
            dn.in_order(tx)?;
            self.dsl.reserve(&self.target.ds, tx, 0, true)?;
            self.dsl.hold_room(tx, dn.free_cost(tx, 0, MAX_BYTES), Leave::Quarter)?;
            self.target.os.free(tx, dn);
            self.forget_raw(tx, dn, 0, MAX_BYTES);
            self.forget_raw_spill(tx, dn);
            Ok(())
        })
        .await
    }

    async fn free_objects(&mut self, f: &FreeObjects) -> Result<()> {
        let Some(end) = f.firstobj.checked_add(f.numobjs) else {
            return Err(bad_stream("FREEOBJECTS beyond the last object"));
        };
        self.last = None;
        let os = self.target.os.clone();
        let mut at = ObjectId(f.firstobj.saturating_sub(1));
        while let Some(id) = resident(|| os.next_object(at)).await? {
            if id.0 >= end {
                break;
            }
            if id.0 >= f.firstobj {
                let dn = os.hold_wait(id).await?;
                self.free_one(&dn).await?;
            }
            at = id;
        }
        Ok(())
    }

    /// Frees all objects behind the highest.
    pub(super) async fn free_the_rest(&mut self) -> Result<()> {
        let firstobj = self.highest.saturating_add(1);
        let numobjs = DN_MAX_OBJECT.saturating_sub(firstobj);
        self.free_objects(&FreeObjects { firstobj, numobjs, ..FreeObjects::default() }).await
    }

    async fn write(&mut self, w: &Write, payload: Bytes, bytes: u64) -> Result<()> {
        self.may(compress_feature(w.compressiontype))?;
        let data = contents(w, payload.clone(), self.order, self.max_blksz())?;
        let compress =
            Compress::from_u8(w.compressiontype).filter(|c| c.is_function() && *c != Compress::Off);
        // What has to be put into this machine's order is compressed anew.
        let packed =
            compress.filter(|_| self.order.is_native()).map(|c| Packed { data: payload, compress: c });
        self.put(w.object, w.offset, data, packed, bytes).await
    }

    /// Writes bytes of an object. What came compressed stays so where it is one block here as well.
    async fn put(
        &mut self,
        object: u64,
        offset: u64,
        data: Bytes,
        packed: Option<Packed>,
        bytes: u64,
    ) -> Result<()> {
        let len = data.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > MAX_BYTES) {
            return Err(bad_stream(format!("object {object} at {offset}: beyond any object's end")));
        }
        let dn = self.hold(object).await?;
        let blksz = u64::from(dn.blksz());
        let packed = packed.filter(|_| len == blksz && offset.is_multiple_of(blksz));
        in_tx(&self.dsl.ctx().txgs, |tx| {
            dn.in_order(tx)?;
            self.room(tx, len, dn.cost(tx, offset, offset + len, blksz))?;
            match &packed {
                Some(packed) => dn.write_packed(tx, offset / blksz, data.clone(), packed.clone()),
                None => drop(dn.write_records(tx, offset, &data)),
            }
            self.reached(tx, object, offset, bytes);
            Ok(())
        })
        .await
    }

    async fn embedded(&mut self, w: &WriteEmbedded, payload: &Bytes, bytes: u64) -> Result<()> {
        let bad = |what: &str| bad_stream(format!("object {} at {}: {what}", w.object, w.offset));
        let kind = Compress::from_u8(w.compression).filter(|c| *c == Compress::Off || c.is_function());
        let Some(kind) = kind else { return Err(bad("no such compression")) };
        self.may(compress_feature(kind as u8))?;
        if w.etype != BP_EMBEDDED_TYPE_DATA
            || w.psize as usize > BPE_PAYLOAD_SIZE
            || w.length > self.max_blksz()
            || u64::from(w.lsize) > w.length
            || w.length == 0
        {
            return Err(bad("impossible embedded block"));
        }
        let Some(stored) = payload.get(..w.psize as usize) else { return Err(bad("cut off")) };
        // OpenZFS tells a spill block that lies in its pointer so: as the block of that number.
        if w.offset == Bookmark::SPILL_BLKID.wrapping_mul(w.length) {
            let data = match kind {
                Compress::Off => None,
                kind => expand(kind, stored, w.lsize.into()),
            };
            let data = data.ok_or_else(|| bad("it does not decompress"))?;
            let spill =
                Spill { object: w.object, length: w.lsize.into(), toguid: w.toguid, ..Spill::default() };
            return self.spill(&spill, data).await;
        }
        let data = match kind {
            Compress::Off if stored.len() == w.lsize as usize => Bytes::copy_from_slice(stored),
            Compress::Off => return Err(bad("impossible length")),
            kind => expand(kind, stored, w.lsize.into()).ok_or_else(|| bad("it does not decompress"))?,
        };
        if u64::from(w.lsize) == w.length && self.embed(w, kind, stored, bytes).await? {
            return Ok(());
        }
        let mut data = match data.len() as u64 == w.length {
            true => data,
            false => {
                let mut whole = data.to_vec();
                whole.resize(usize::try_from(w.length).unwrap_or(0), 0);
                whole.into()
            }
        };
        if !self.order.is_native() {
            // The record does not say of what type it is; its object does.
            data = in_our_order(self.hold(w.object).await?.otype(), &data);
        }
        self.put(w.object, w.offset, data, None, bytes).await
    }

    /// Puts a block into its pointer as it came, if it is one block here as well and may lie there.
    async fn embed(&mut self, w: &WriteEmbedded, kind: Compress, stored: &[u8], bytes: u64) -> Result<bool> {
        let dn = self.hold(w.object).await?;
        let (blksz, otype) = (u64::from(dn.blksz()), dn.otype());
        let fits = w.length == blksz && w.offset.is_multiple_of(blksz) && w.offset <= MAX_BYTES - blksz;
        if !fits || !self.embeds || !self.order.is_native() || object_type::has_fill(otype) {
            return Ok(false);
        }
        let Some(bp) = BlkPtr::embedded(stored, kind as u8, w.length, otype, 0, 0) else { return Ok(false) };
        let put = in_tx(&self.dsl.ctx().txgs, |tx| {
            dn.in_order(tx)?;
            self.room(tx, blksz, dn.cost(tx, w.offset, w.offset + blksz, blksz))?;
            dn.clone_block(tx, w.offset / blksz, bp);
            self.reached(tx, w.object, w.offset, bytes);
            Ok(())
        });
        put.await.map(|()| true)
    }

    async fn free(&mut self, f: &Free) -> Result<()> {
        if f.length != DMU_OBJECT_END && f.offset.checked_add(f.length).is_none() {
            return Err(bad_stream(format!("object {}: FREE beyond any object's end", f.object)));
        }
        let dn = self.hold(f.object).await?;
        let end = f.offset.saturating_add(f.length).min(MAX_BYTES);
        let end = self.free_parts(&dn, f.offset, end).await?;
        in_tx(&self.dsl.ctx().txgs, |tx| self.free_now(tx, &dn, f.offset, end)).await
    }

    async fn spill(&mut self, s: &Spill, payload: Bytes) -> Result<()> {
        if self.tells_spills && s.flags & DRR_SPILL_UNMODIFIED != 0 {
            return Ok(());
        }
        let len = payload.len() as u64;
        if s.compressiontype != 0 || !(512..=SPA_OLD_MAXBLOCKSIZE).contains(&len) || !len.is_multiple_of(512)
        {
            return Err(bad_stream(format!("object {}: impossible spill block", s.object)));
        }
        let dn = self.hold(s.object).await?;
        if !has_spill_room(&dn) {
            return Err(bad_stream(format!("object {}: no room for a spill block's pointer", s.object)));
        }
        in_tx(&self.dsl.ctx().txgs, |tx| {
            dn.in_order(tx)?;
            self.room(tx, len, tx.worst(len, 3))?;
            dn.set_spill(tx, Some(payload.clone()));
            Ok(())
        })
        .await
    }
}

/// What a WRITE that is not raw says of its block, of `most` bytes, in this machine's order.
pub(super) fn contents(w: &Write, payload: Bytes, order: ByteOrder, most: u64) -> Result<Bytes> {
    let bad = |what: &str| bad_stream(format!("object {} at {}: {what}", w.object, w.offset));
    let otype = u8::try_from(w.otype).ok().filter(|t| object_type::is_valid(*t));
    let Some(otype) = otype else { return Err(bad("no such type")) };
    let len = w.logical_size;
    if len == 0 || !len.is_multiple_of(512) || len > most {
        return Err(bad("impossible length"));
    }
    let data = match w.compressiontype {
        0 => payload,
        kind => {
            let kind = Compress::from_u8(kind).filter(|c| c.is_function() && *c != Compress::Off);
            let Some(kind) = kind.filter(|_| w.compressed_size <= len) else {
                return Err(bad("no such compression"));
            };
            expand(kind, &payload, len).ok_or_else(|| bad("it does not decompress"))?
        }
    };
    Ok(if order.is_native() { data } else { in_our_order(otype, &data) })
}

fn in_our_order(otype: u8, data: &[u8]) -> Bytes {
    let mut buf = IoBuf::from_slice(data);
    class_swap(object_type::byteswap_class(otype), &mut buf);
    buf.into_bytes()
}

/// Whether a dnode has room for the pointer to a spill block beside its bonus.
pub(super) fn has_spill_room(dn: &Dnode) -> bool {
    dn.bonus().len() + BLKPTR_SIZE <= dn.max_bonus_len()
}

fn expand(kind: Compress, stored: &[u8], len: u64) -> Option<Bytes> {
    let mut out = IoBuf::scratch(usize::try_from(len).ok()?);
    compress::decompress(kind, stored, &mut out).ok()?;
    Some(out.into_bytes())
}
