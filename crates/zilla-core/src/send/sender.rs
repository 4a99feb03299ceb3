//! Sending one snapshot: whole, or what changed since an earlier one.
//!
//! [`Objects`] walks ahead and says what is to be told; the blocks are read as tasks of their own,
//! as many at once as fit a bound in bytes, and told in order. So the disks are busy while the pipe
//! is, and the slower of the two sets the pace. Nothing is read that is not sent, but for the tree
//! itself.
//!
//! Neighbouring holes become one FREE, neighbouring free objects one FREEOBJECTS, as OpenZFS's
//! receivers expect; an object is followed by a FREE of all behind its end.
//!
//! A send changes nothing. The snapshot must be held by the caller; a head, which is sent as the
//! last txg left it, must not change meanwhile ([`DslDataset::hold_alone`]).

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::frame::{Nowhere, RecordWriter, Sink};
use super::objects::{Item, Objects, Resume};
use super::restore::{Redaction, Told};
use super::walk::Source;
use crate::arc::Access;
use crate::dmu::Objset;
use crate::dsl::{DslDataset, DslPool, ResumeState};
use crate::error::{Errno, Error, Result};
use crate::types::{Bookmark, ObjectId};
use crate::zio::Priority;
use bytes::Bytes;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use zilla_codec::compress::Compress;
use zilla_ondisk::blkptr::{BP_EMBEDDED_TYPE_DATA, BlkPtr};
use zilla_ondisk::dnode::{DNODES_PER_BLOCK, DnodePhys};
use zilla_ondisk::enums::ObjsetType;
use zilla_ondisk::stream::{
    Begin, CryptParams, DMU_OBJECT_END, DMU_SUBSTREAM, DRR_FLAG_CI_DATA, DRR_FLAG_CLONE,
    DRR_FLAG_FREERECORDS, DRR_FLAG_SPILL_BLOCK, DRR_OBJECT_SPILL, DRR_RAW_BYTESWAP, DRR_SPILL_UNMODIFIED,
    DedupKey, Free, FreeObjects, Object, ObjectRange, Record, Redact, Spill, Write, WriteEmbedded, feature,
};
use zilla_ondisk::{NvList, SPA_OLD_MAXBLOCKSIZE, object_type};

/// Bytes of blocks that may be read ahead of the pipe, and how many blocks.
const AHEAD_BYTES: u64 = 16 << 20;
const AHEAD_ITEMS: usize = 256;
/// Padded, a bonus and an embedded block are multiples of this.
const PAD: usize = 8;
/// What a compressed block's checksum can also find duplicates by (`ZCHECKSUM_FLAG_DEDUP`): those
/// of 256 bits and more.
const DEDUP_CHECKSUMS: &[u8] = &[8, 11, 12, 13, 14];

/// What stands for the snapshot in the name of a stream that was made of a head. Source:
/// create_begin_record of OpenZFS, zfs-send(8).
pub const HEAD_NAME: &str = "@--head--";

/// What an incremental stream starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct From {
    pub guid: u64,
    pub txg: u64,
    /// It is of another dataset: the sent one's origin.
    pub is_clone: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SendOpts {
    pub from: Option<From>,
    /// `-L`: blocks of more than 128K stay whole.
    pub large_blocks: bool,
    /// `-e`: blocks that live in their pointer stay there.
    pub embed: bool,
    /// `-c`: blocks stay compressed as they are.
    pub compressed: bool,
    /// `-w`: blocks are sent as they lie on disk; those of an encrypted dataset stay encrypted.
    pub raw: bool,
    pub resume: Option<Resume>,
}

impl SendOpts {
    /// What an objset's blocks are read from.
    pub(super) fn source(&self, dsl: &DslPool, os: &Objset) -> Source {
        let ctx = dsl.ctx().clone();
        let store = if self.raw { ctx.store.clone() } else { os.store().clone() };
        Source { ctx, store }
    }
}

type Read = Pin<Box<dyn Future<Output = Result<Bytes>> + Send>>;

struct Sender<'a> {
    out: RecordWriter<'a>,
    src: Source,
    /// Blocks go out encrypted.
    raw: bool,
    toguid: u64,
    since: u64,
    features: u64,
    /// A FREE, FREEOBJECTS or REDACT that may still grow.
    pending: Option<Record>,
}

/// The feature flags of a stream of a dataset.
async fn features(dsl: &DslPool, ds: &Arc<DslDataset>, os: &Arc<Objset>, opts: &SendOpts) -> Result<u64> {
    let (mut f, encrypted) = (0, os.is_encrypted());
    if os.os_type() == ObjsetType::Zfs.number() && os.is_locked() {
        // What cannot be read: there are none without system attributes that are encrypted.
        f |= feature::SA_SPILL;
    } else if os.os_type() == ObjsetType::Zfs.number() {
        let version = match os.hold_wait(ObjectId(crate::zpl::MASTER_NODE_OBJ)).await {
            Ok(master) => crate::zap::Zap::new(&master).try_get_u64("VERSION").await?.unwrap_or(0),
            // What was received so far may not have it yet.
            Err(e) if e.is(Errno::NoEnt) && ds.is_inconsistent() => crate::zpl::ZPL_VERSION_SA,
            Err(e) => return Err(e),
        };
        if version >= crate::zpl::ZPL_VERSION_SA {
            f |= feature::SA_SPILL;
        }
    }
    if (opts.large_blocks || opts.raw) && ds.feature_is_active("large_blocks") {
        f |= feature::LARGE_BLOCKS;
    }
    // Encrypted datasets have no embedded blocks.
    if (opts.embed || opts.raw) && !encrypted && dsl.feature_active("embedded_data") {
        f |= feature::EMBED_DATA;
    }
    if opts.raw && encrypted {
        f |= feature::RAW;
    }
    if opts.compressed || opts.raw {
        f |= feature::COMPRESSED;
        if ds.feature_is_active("zstd_compress") {
            f |= feature::ZSTD;
        }
    }
    if f & (feature::EMBED_DATA | feature::COMPRESSED) != 0 && dsl.feature_active("lz4_compress") {
        f |= feature::LZ4;
    }
    if opts.resume.is_some() {
        f |= feature::RESUMING;
    }
    if ds.feature_is_active("large_dnode") {
        f |= feature::LARGE_DNODE;
    }
    if ds.feature_is_active("longname") {
        f |= feature::LONGNAME;
    }
    if ds.feature_is_active("large_microzap") {
        if f & feature::LARGE_BLOCKS == 0 {
            let what = "source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to generate stream";
            return Err(Error::os(Errno::NotSup, what));
        }
        f |= feature::LARGE_MICROZAP;
    }
    Ok(f)
}

/// Writes the stream of a snapshot.
#[crate::boxed]
pub async fn send(
    dsl: &Arc<DslPool>,
    snap: &Arc<DslDataset>,
    opts: &SendOpts,
    sink: &mut dyn Sink,
) -> Result<u64> {
    send_special(dsl, snap, opts, &Special::default(), sink).await
}

/// What some streams are beside those of a snapshot or of what has changed since.
#[derive(Clone, Debug, Default)]
pub struct Special {
    /// Of what an interrupted receive has so far of a stream, up to the place from which a sender
    /// goes on (`-S`). Such a stream has no END, by which its receiver knows that it is not whole,
    /// and keeps what came (`receive -s`).
    pub saved: Option<ResumeState>,
    pub redaction: Redaction,
}

/// As [`send`].
#[crate::boxed]
pub async fn send_special(
    dsl: &Arc<DslPool>,
    snap: &Arc<DslDataset>,
    opts: &SendOpts,
    special: &Special,
    sink: &mut dyn Sink,
) -> Result<u64> {
    write(dsl, snap, opts, special, RecordWriter::new(sink)).await
}

/// The length of a stream, to the byte: all is done but reading the blocks.
#[crate::boxed]
pub(super) async fn length(
    dsl: &Arc<DslPool>,
    snap: &Arc<DslDataset>,
    opts: &SendOpts,
    special: &Special,
) -> Result<u64> {
    let mut nowhere = Nowhere;
    write(dsl, snap, opts, special, RecordWriter::counting(&mut nowhere)).await
}

async fn write(
    dsl: &Arc<DslPool>,
    snap: &Arc<DslDataset>,
    opts: &SendOpts,
    special: &Special,
    out: RecordWriter<'_>,
) -> Result<u64> {
    let (saved, redaction) = (special.saved.as_ref(), &special.redaction);
    // The caller's hold may have come too late. (A head is held alone by who sends it.)
    if snap.is_gone() {
        return Err(Error::no_ent(format!("{}: dataset does not exist", snap.name())));
    }
    if snap.is_snapshot() && snap.is_held_alone() {
        return Err(Error::os(Errno::Busy, format!("{}: dataset is busy", snap.name())));
    }
    if redaction.list.is_some() && opts.raw {
        return Err(Error::inval("raw sends may not be redacted"));
    }
    // Codes of what is received raw come right with its last object.
    let os = match saved.is_some_and(|s| s.raw) {
        true => dsl.sealed_objset(snap).await?,
        false => dsl.objset(snap).await?,
    };
    if os.is_locked() && !opts.raw {
        return Err(Error::os(Errno::Access, "source key must be loaded"));
    }
    let (p, phys) = (snap.phys(), os.phys());
    let mut features = features(dsl, snap, &os, opts).await?;
    // Whoever receives what is redacted here has it redacted too.
    let redacted = match &redaction.list {
        Some(list) => Some(list.snaps.clone()),
        None => snap.redact_snaps().map(|s| s.to_vec()),
    };
    if redacted.is_some() {
        features |= feature::REDACTED;
    }
    let raw = features & feature::RAW != 0;
    let mut flags = DRR_FLAG_FREERECORDS | DRR_FLAG_SPILL_BLOCK;
    if opts.from.is_some_and(|f| f.is_clone) {
        flags |= DRR_FLAG_CLONE;
    }
    if p.flags & zilla_ondisk::dsl::DS_FLAG_CI_DATASET != 0 {
        flags |= DRR_FLAG_CI_DATA;
    }
    let mut list = NvList::new();
    if let Some(snaps) = redacted {
        list.add("redact_snaps", snaps);
    }
    let from_snaps = redaction.from.as_ref().map(|l| l.snaps.clone());
    if let Some(snaps) = from_snaps.or(redaction.from_snaps.as_ref().map(|s| s.to_vec())) {
        list.add("redact_from_snaps", snaps);
    }
    if let Some(r) = opts.resume {
        list.add("resume_object", r.object).add("resume_offset", r.offset);
    }
    if raw {
        let key = dsl.raw_key(snap, &os, opts.from.map(|f| f.guid)).await?;
        list.add("crypt_keydata", key.list());
    }
    let payload: Bytes = if list.is_empty() { Bytes::new() } else { list.pack_native().into() };
    let (toguid, toname) = match saved {
        Some(s) => (s.toguid, s.toname.clone()),
        None if snap.is_snapshot() => (p.guid, snap.name()),
        None => (p.guid, format!("{}{HEAD_NAME}", snap.name())),
    };
    let begin = Begin {
        versioninfo: Begin::version(DMU_SUBSTREAM, features),
        creation_time: p.creation_time,
        objset_type: u32::try_from(phys.os_type).unwrap_or(0),
        flags,
        toguid,
        fromguid: opts.from.map_or(0, |f| f.guid),
        toname,
        payloadlen: u32::try_from(payload.len()).unwrap_or(0),
    };
    let since = opts.from.map_or(0, |f| f.txg);
    let src = opts.source(dsl, &os);
    let mut s = Sender { out, src: src.clone(), raw, toguid, since, features, pending: None };
    s.out.record(&Record::Begin(begin), payload).await?;
    let meta = &phys.meta_dnode;
    let objects = Objects::new(src.clone(), snap.id(), meta, since, opts.resume);
    let objects = objects.until(saved.map(Resume::of));
    let mut objects = Told::new(objects, src, (snap.id(), meta), opts.resume, redaction);
    let mut queue: VecDeque<(Item, Option<Read>, u64)> = VecDeque::new();
    let (mut ahead, mut more) = (0u64, true);
    loop {
        while more && ahead < AHEAD_BYTES && queue.len() < AHEAD_ITEMS {
            match objects.next().await? {
                None => more = false,
                Some(item) => {
                    let (read, bytes) = s.begin_read(snap.id(), &item);
                    ahead += bytes;
                    queue.push_back((item, read, bytes));
                }
            }
        }
        let Some((item, read, bytes)) = queue.pop_front() else { break };
        ahead -= bytes;
        let data = match read {
            Some(read) => Some(read.await?),
            None => None,
        };
        s.tell(snap.id(), item, data).await?;
    }
    s.settle().await?;
    match saved {
        Some(_) => s.out.flush().await?,
        None => s.out.end(toguid).await?,
    }
    Ok(s.out.sent())
}

impl Sender<'_> {
    fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Whether the block can be sent as it stands in its pointer. One that is split cannot: its
    /// receiver's object has smaller blocks, and OpenZFS would put the pointer there all the same.
    fn sends_embedded(&self, dn: &DnodePhys, bp: &BlkPtr) -> bool {
        let kind = Compress::from_u8(bp.compress());
        bp.is_embedded()
            && !self.splits(dn)
            && bp.embedded_type() == BP_EMBEDDED_TYPE_DATA
            && self.has(feature::EMBED_DATA)
            && (kind != Some(Compress::Lz4) || self.has(feature::LZ4))
            && (kind != Some(Compress::Zstd) || self.has(feature::ZSTD))
    }

    fn splits(&self, dn: &DnodePhys) -> bool {
        (u64::from(dn.datablkszsec) << 9) > SPA_OLD_MAXBLOCKSIZE && !self.has(feature::LARGE_BLOCKS)
    }

    /// Whether the block can be sent compressed as it lies on disk.
    fn sends_compressed(&self, dn: &DnodePhys, bp: &BlkPtr) -> bool {
        self.has(feature::COMPRESSED)
            && !bp.is_encrypted()
            && !self.splits(dn)
            && !bp.is_embedded()
            && bp.byteorder().is_native()
            && !object_type::is_metadata(bp.otype())
            && bp.compress() != Compress::Off as u8
            && bp.lsize() != bp.psize()
    }

    /// Begins to read what an item needs, and how many bytes that is.
    fn begin_read(&self, objset: u64, item: &Item) -> (Option<Read>, u64) {
        let (id, blkid, bp, stored) = match item {
            Item::Block { bp, dn, .. } if bp.is_redacted() || self.sends_embedded(dn, bp) => {
                return (None, 0);
            }
            Item::Block { id, blkid, bp, dn } => (*id, *blkid, *bp, self.sends_compressed(dn, bp)),
            Item::Spill { id, bp } => (*id, Bookmark::SPILL_BLKID, *bp, false),
            _ => return (None, 0),
        };
        let at = Bookmark { objset, object: id, level: 0, blkid };
        let bytes = if stored || self.raw { bp.psize() } else { bp.lsize() };
        if let Some(zeros) = self.out.stand_in(bytes) {
            return (Some(Box::pin(std::future::ready(Ok(zeros)))), 0);
        }
        let (src, raw) = (self.src.clone(), self.raw);
        let task = self.src.ctx.env.spawn_with_result(async move {
            at.check_level(&bp)?;
            match (raw, stored) {
                (true, _) => src.store.read_sealed(bp, at, Priority::SyncRead, Access::Demand).await,
                (_, true) => src.store.read_stored(bp, at, Priority::SyncRead).await,
                _ => src.store.read(bp, at, Priority::SyncRead).await,
            }
        });
        (Some(Box::pin(task)), bytes)
    }

    async fn tell(&mut self, objset: u64, item: Item, data: Option<Bytes>) -> Result<()> {
        match (item, data) {
            (Item::FreeObjects { first, count }, _) => self.free_objects(first, count).await,
            (Item::Range { first, bp }, _) if self.raw => self.range(first, &bp).await,
            (Item::Range { .. }, _) => Ok(()),
            (Item::Object { id, dn, room }, _) => self.object(objset, id, &dn, room).await,
            (Item::Hole { id, dn, first, count }, _) => {
                let blksz = u64::from(dn.datablkszsec) << 9;
                // What begins beyond any offset cannot be there.
                let Some(offset) = first.checked_mul(blksz) else { return Ok(()) };
                let end = first.saturating_add(count).saturating_mul(blksz);
                self.free(id, offset, end - offset).await
            }
            (Item::Block { id, dn, blkid, bp }, None) if self.sends_embedded(&dn, &bp) => {
                self.embedded(id, &dn, blkid, &bp).await
            }
            (Item::Block { id, dn, blkid, bp }, Some(data)) => self.block(id, &dn, blkid, &bp, data).await,
            (Item::Block { id, blkid, .. }, None) => {
                let at = Bookmark { objset, object: id, level: 0, blkid };
                Err(Error::os(Errno::NotSup, format!("block {at} was redacted, which zilla cannot send")))
            }
            (Item::Redacted { id, dn, blkid }, _) => self.redact(id, &dn, blkid).await,
            (Item::Spill { id, bp }, Some(data)) => self.spill(id, &bp, data).await,
            (Item::Spill { .. }, None) => Ok(()),
        }
    }

    /// Tells what was held back.
    async fn settle(&mut self) -> Result<()> {
        match self.pending.take() {
            Some(r) => self.out.record(&r, Bytes::new()).await,
            None => Ok(()),
        }
    }

    async fn free(&mut self, object: u64, offset: u64, length: u64) -> Result<()> {
        if let Some(Record::Free(f)) = &mut self.pending
            && f.object == object
            && f.offset.saturating_add(f.length) == offset
        {
            f.length = f.length.saturating_add(length);
            return Ok(());
        }
        self.settle().await?;
        let record = Record::Free(Free { object, offset, length, toguid: self.toguid });
        match length {
            DMU_OBJECT_END => self.out.record(&record, Bytes::new()).await,
            _ => {
                self.pending = Some(record);
                Ok(())
            }
        }
    }

    /// Blocks that are left out, one behind the other.
    async fn redact(&mut self, object: u64, dn: &DnodePhys, blkid: u64) -> Result<()> {
        let length = u64::from(dn.datablkszsec) << 9;
        let offset = blkid.saturating_mul(length);
        if let Some(Record::Redact(r)) = &mut self.pending
            && r.object == object
            && r.offset.saturating_add(r.length) == offset
        {
            r.length = r.length.saturating_add(length);
            return Ok(());
        }
        self.settle().await?;
        self.pending = Some(Record::Redact(Redact { object, offset, length, toguid: self.toguid }));
        Ok(())
    }

    async fn free_objects(&mut self, firstobj: u64, numobjs: u64) -> Result<()> {
        if let Some(Record::FreeObjects(f)) = &mut self.pending
            && f.firstobj.saturating_add(f.numobjs) == firstobj
        {
            f.numobjs = f.numobjs.saturating_add(numobjs);
            return Ok(());
        }
        self.settle().await?;
        self.pending = Some(Record::FreeObjects(FreeObjects { firstobj, numobjs, toguid: self.toguid }));
        Ok(())
    }

    /// How a block of dnodes is encrypted, of which the bonuses follow.
    async fn range(&mut self, firstobj: u64, bp: &BlkPtr) -> Result<()> {
        self.settle().await?;
        let range = ObjectRange {
            firstobj,
            numslots: DNODES_PER_BLOCK,
            toguid: self.toguid,
            crypt: crypt_params(bp),
            flags: byteswap_flag(bp),
            ..ObjectRange::default()
        };
        self.out.record(&Record::ObjectRange(range), Bytes::new()).await
    }

    async fn object(&mut self, objset: u64, id: u64, dn: &DnodePhys, room: Bytes) -> Result<()> {
        self.settle().await?;
        let blksz = u64::from(dn.datablkszsec) << 9;
        let told = if self.splits(dn) { SPA_OLD_MAXBLOCKSIZE } else { blksz };
        let mut object = Object {
            object: id,
            otype: dn.otype.into(),
            bonustype: dn.bonustype.into(),
            blksz: u32::try_from(told).unwrap_or(0),
            bonuslen: u32::try_from(dn.bonus.len()).unwrap_or(0),
            checksumtype: dn.checksum,
            compress: dn.compress,
            dn_slots: dn.extra_slots.saturating_add(1),
            flags: if dn.spill.is_some() { DRR_OBJECT_SPILL } else { 0 },
            toguid: self.toguid,
            ..Object::default()
        };
        let mut bonus = padded(&dn.bonus);
        if self.raw {
            object.indblkshift = dn.indblkshift;
            object.nlevels = dn.nlevels;
            object.nblkptr = dn.nblkptr;
            object.maxblkid = dn.maxblkid;
            // All the room of a bonus was encrypted, so all of it has to be sent.
            if !dn.bonus.is_empty() {
                object.raw_bonuslen = u32::try_from(room.len()).unwrap_or(0);
                bonus = room;
            }
        }
        self.out.record(&Record::Object(object), bonus).await?;
        let end = dn.maxblkid.saturating_add(1).saturating_mul(blksz);
        self.free(id, end, DMU_OBJECT_END).await?;
        // Older receivers drop a spill block that does not follow its object.
        if let Some(bp) = dn.spill.filter(|bp| bp.birth() <= self.since) {
            let at = Bookmark { objset, object: id, level: 0, blkid: Bookmark::SPILL_BLKID };
            let data = match (self.out.stand_in(if self.raw { bp.psize() } else { bp.lsize() }), self.raw) {
                (Some(zeros), _) => zeros,
                (None, true) => {
                    self.src.store.read_sealed(bp, at, Priority::SyncRead, Access::Demand).await?
                }
                (None, false) => self.src.store.read(bp, at, Priority::SyncRead).await?,
            };
            self.spill(id, &bp, data).await?;
        }
        Ok(())
    }

    async fn block(
        &mut self,
        object: u64,
        dn: &DnodePhys,
        blkid: u64,
        bp: &BlkPtr,
        data: Bytes,
    ) -> Result<()> {
        self.settle().await?;
        let blksz = u64::from(dn.datablkszsec) << 9;
        let offset = blkid.saturating_mul(blksz);
        let mut w = Write {
            object,
            otype: dn.otype.into(),
            offset,
            toguid: self.toguid,
            // OFF: what the block's checksum was is not known.
            checksumtype: zilla_codec::checksum::Checksum::Off as u8,
            ..Write::default()
        };
        if self.splits(dn) {
            let mut rest = data;
            while !rest.is_empty() {
                let part = rest.split_to(rest.len().min(SPA_OLD_MAXBLOCKSIZE as usize));
                w.logical_size = part.len() as u64;
                self.out.record(&Record::Write(w), part.clone()).await?;
                w.offset += part.len() as u64;
            }
            return Ok(());
        }
        w.logical_size = blksz;
        if !bp.is_embedded() && (self.raw || !bp.uses_crypt()) {
            w.checksumtype = bp.checksum_kind();
            w.flags = if DEDUP_CHECKSUMS.contains(&w.checksumtype) {
                zilla_ondisk::stream::DRR_CHECKSUM_DEDUP
            } else {
                0
            };
            w.key = DedupKey { cksum: bp.cksum(), prop: dedup_prop(bp) };
        }
        if self.raw {
            w.flags |= byteswap_flag(bp);
            w.crypt = crypt_params(bp);
        }
        if self.raw || self.sends_compressed(dn, bp) {
            w.compressiontype = bp.compress();
            w.compressed_size = bp.psize();
        }
        self.out.record(&Record::Write(w), data).await
    }

    async fn embedded(&mut self, object: u64, dn: &DnodePhys, blkid: u64, bp: &BlkPtr) -> Result<()> {
        self.settle().await?;
        let blksz = u64::from(dn.datablkszsec) << 9;
        let psize = bp.embedded_psize();
        let payload = bp.embedded_data();
        let w = WriteEmbedded {
            object,
            offset: blkid.saturating_mul(blksz),
            length: blksz,
            toguid: self.toguid,
            compression: bp.compress(),
            etype: bp.embedded_type(),
            lsize: bp.embedded_lsize(),
            psize: u32::try_from(psize).unwrap_or(0),
            ..WriteEmbedded::default()
        };
        let payload = padded(payload.get(..psize).unwrap_or_default());
        self.out.record(&Record::WriteEmbedded(w), payload).await
    }

    async fn spill(&mut self, object: u64, bp: &BlkPtr, data: Bytes) -> Result<()> {
        self.settle().await?;
        let mut s = Spill {
            object,
            length: bp.lsize(),
            toguid: self.toguid,
            flags: if bp.birth() <= self.since { DRR_SPILL_UNMODIFIED } else { 0 },
            ..Spill::default()
        };
        if self.raw {
            s.flags |= byteswap_flag(bp);
            s.crypt = crypt_params(bp);
            s.compressiontype = bp.compress();
            s.compressed_size = bp.psize();
        }
        self.out.record(&Record::Spill(s), data).await
    }
}

/// What a pointer says of how its block is encrypted; salt and IV are zero where it is only
/// authenticated.
fn crypt_params(bp: &BlkPtr) -> CryptParams {
    match bp.is_encrypted() {
        true => CryptParams { salt: bp.salt(), iv: bp.iv(), mac: bp.mac() },
        false => CryptParams { mac: bp.mac(), ..CryptParams::default() },
    }
}

fn byteswap_flag(bp: &BlkPtr) -> u8 {
    if bp.byteorder().is_native() { 0 } else { DRR_RAW_BYTESWAP }
}

fn padded(data: &[u8]) -> Bytes {
    let mut out = data.to_vec();
    out.resize(data.len().next_multiple_of(PAD), 0);
    out.into()
}

/// `ddk_prop`: logical and physical size in sectors, less one, the compression, and whether it is
/// encrypted.
fn dedup_prop(bp: &BlkPtr) -> u64 {
    let sectors = |n: u64| (n >> 9).saturating_sub(1) & 0xffff;
    sectors(bp.lsize())
        | sectors(bp.psize()) << 16
        | u64::from(bp.compress() & 0x7f) << 32
        | u64::from(bp.uses_crypt()) << 39
}
