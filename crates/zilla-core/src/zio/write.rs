//! Writing batches of blocks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use zilla_codec::checksum::{self, Checksum, Cksum, Salted};
use zilla_codec::compress::{self, Compress, CompressSpec};
use zilla_codec::crypt::{IV_LEN, MAC_LEN, SALT_LEN};
use zilla_env::IoBuf;
use zilla_ondisk::blkptr::{BPE_PAYLOAD_SIZE, BlkPtr};
use zilla_ondisk::object_type::{DMU_OT_DDT_ZAP, DMU_OT_DNODE, DMU_OT_OBJSET};
use zilla_ondisk::{ByteOrder, Dva, SPA_MAXBLOCKSIZE, object_type};

use super::dedup::{Asked, Leads, Turn, may_share};
use super::devices_away;
use super::gang::HeaderSum;
use super::track::Batch;
use super::{AllocClass, AllocReq, AllocStop, Dvas, Priority, WriteReq, Zio};
use crate::arc::{Access, Block, Key};
use crate::crypt::{Seal, SealedBlock, Sealing, indirect_mac};
use crate::error::{Errno, Error, Result};
use crate::txg::carried;
use crate::types::Txg;
use crate::vdev::write::{Entered, Plan};
use crate::vdev::{IoDone, Leaf};

/// A stretch of a batch that one task takes: what a core's L2 holds with its parity until it has
/// been written, and enough neighbours for a large write. (Twice as much takes 2 % more CPU in a
/// core with 2 MiB, half as much 4 %.)
const STRETCH_BYTES: usize = 256 << 10;
const STRETCH_BLOCKS: usize = 256;

/// What became of a block before it is placed.
pub(super) enum Prepared {
    /// Nothing needs a place: a hole or an embedded block.
    Done(BlkPtr),
    Block {
        data: Bytes,
        compress: Compress,
        cksum: Cksum,
        sealed: Option<Sealed>,
    },
}

/// What an encrypted block's pointer says of it.
#[derive(Clone, Copy)]
pub(super) struct Sealed {
    salt_iv: Option<([u8; SALT_LEN], [u8; IV_LEN])>,
    mac: Option<[u8; MAC_LEN]>,
}

impl Sealed {
    fn of(otype: u8, s: Sealing) -> Sealed {
        let salt_iv = object_type::is_encrypted(otype).then_some((s.salt, s.iv));
        Sealed { salt_iv, mac: Some(s.mac) }
    }
}

/// Bytes and where they go.
pub struct Placement {
    pub dvas: Vec<Dva>,
    pub data: Bytes,
}

pub enum Place {
    At(Dvas),
    /// No contiguous run.
    NoRun,
}

/// Blocks that have their places, and what the caches get of them.
#[derive(Default)]
struct Sending {
    placements: Vec<Placement>,
    blocks: Vec<(Key, Block)>,
}

struct Job {
    zio: Zio,
    txg: Txg,
    reqs: Vec<WriteReq>,
    seal: Option<Seal>,
    stretches: Vec<Range<usize>>,
    next: AtomicUsize,
    out: Mutex<Vec<BlkPtr>>,
}

impl Zio {
    pub(super) async fn write_batch(
        &self,
        txg: Txg,
        reqs: Vec<WriteReq>,
        seal: Option<Seal>,
    ) -> Result<Vec<BlkPtr>> {
        self.allocator()?;
        self.0.env.interlude().await;
        let stretches = stretches(&reqs);
        let tasks = self.0.env.spawner.parallelism().clamp(1, stretches.len().max(1));
        let out = Mutex::new(vec![BlkPtr::ZERO; reqs.len()]);
        let next = AtomicUsize::new(0);
        let job = Arc::new(Job { zio: self.clone(), txg, reqs, seal, stretches, next, out });
        let helpers: Vec<_> = (1..tasks)
            .map(|_| {
                let job = job.clone();
                self.0.env.spawn_with_result(carried(async move { job.run().await }))
            })
            .collect();
        let mut result = job.run().await;
        for helper in helpers {
            let other = helper.await;
            result = result.and(other);
        }
        result?;
        Ok(std::mem::take(&mut *job.out.lock()))
    }

    pub(super) fn lacks_vdevs(&self) -> bool {
        self.allocator().is_ok_and(|a| a.lacks_vdevs())
    }

    /// For a txg's sync: waits until all vdevs that take blocks are there.
    pub(super) async fn await_vdevs(&self) -> Result<()> {
        self.await_devices(&|| self.lacks_vdevs()).await
    }

    /// The same for what a sync lacks. An error where nobody waits for it.
    pub(super) async fn await_devices(&self, lacking: &(dyn Fn() -> bool + Sync)) -> Result<()> {
        while lacking() {
            match self.0.waiter.get().and_then(|w| w.upgrade()) {
                Some(waiter) => waiter.wait(lacking).await?,
                None => return Err(devices_away()),
            }
        }
        Ok(())
    }

    /// Asks the allocator for one block, loading what it needs.
    pub(super) async fn place_one(&self, txg: Txg, req: AllocReq) -> Result<Place> {
        let mut out = Vec::with_capacity(1);
        loop {
            match self.allocator()?.alloc(txg, &[req], &mut out) {
                Ok(()) => break,
                Err(AllocStop::NoSpc) => return Ok(Place::NoRun),
                Err(AllocStop::Err(e)) => return Err(e),
                Err(AllocStop::Load { vdev, metaslab }) => self.allocator()?.load(vdev, metaslab).await?,
            }
        }
        let dvas = out.pop().filter(|d| !d.is_empty());
        dvas.map(Place::At).ok_or_else(|| Error::os(Errno::NoSpc, "the allocator placed nothing"))
    }
}

pub(super) fn stretches(reqs: &[WriteReq]) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (i, r) in reqs.iter().enumerate() {
        if i > start && (bytes + r.data.len() > STRETCH_BYTES || i - start >= STRETCH_BLOCKS) {
            out.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes += r.data.len();
    }
    if start < reqs.len() {
        out.push(start..reqs.len());
    }
    out
}

impl Job {
    async fn run(&self) -> Result<()> {
        loop {
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(stretch) = self.stretches.get(turn) else { return Ok(()) };
            let done = self.stretch(turn, stretch.clone()).await;
            match done {
                Ok(bps) => {
                    let mut out = self.out.lock();
                    if let Some(slots) = out.get_mut(stretch.clone()) {
                        slots.copy_from_slice(&bps);
                    }
                }
                Err(e) => {
                    // The others need not begin what cannot be finished.
                    self.next.store(self.stretches.len(), Ordering::Relaxed);
                    return Err(e);
                }
            }
        }
    }

    async fn stretch(&self, turn: usize, range: Range<usize>) -> Result<Vec<BlkPtr>> {
        let (zio, txg) = (&self.zio, self.txg);
        let reqs = self.reqs.get(range).unwrap_or_default();
        let salt = zio.salt();
        let mut prepared: Vec<Prepared> = prepare(zio, txg, reqs, salt.as_deref(), self.seal.as_ref())
            .into_iter()
            .collect::<Result<_>>()?;
        if self.seal.is_none() && zio.blocks_may_stay() {
            for (req, p) in reqs.iter().zip(&mut prepared) {
                if super::nopwrite::stays(txg, req, p) {
                    *p = Prepared::Done(req.prev);
                }
            }
        }

        // Empty where nothing is deduplicated, and then there are no turns either.
        let asked: Vec<Option<Asked>> = match reqs.iter().any(|req| req.dedup.is_some()) {
            true => reqs.iter().zip(&prepared).map(|(req, p)| self.asked(req, p)).collect(),
            false => Vec::new(),
        };
        let (turns, leads) = zio.take_turns(&asked).await;

        // Blocks that may stay where this txg already wrote them, and places for the others.
        let mut kept: Vec<Option<BlkPtr>> = Vec::with_capacity(reqs.len());
        let mut wanted: Vec<AllocReq> = Vec::new();
        let mut known = turns.iter();
        for (req, p) in reqs.iter().zip(&prepared) {
            let turn = known.next().unwrap_or(&Turn::Alone);
            let old = &req.prev;
            let ours = !old.is_hole()
                && !old.is_embedded()
                && !old.dedup()
                && old.phys_birth() == txg.0
                && old.birth() == txg.0;
            let mut stay = None;
            if let Prepared::Block { data, .. } = p {
                let copies = match turn {
                    Turn::Alone => copies_of(req, self.seal.as_ref()),
                    Turn::Write(_, copies) => *copies,
                    Turn::Share(_) | Turn::Later => {
                        kept.push(None);
                        continue;
                    }
                };
                // (A gang's header has a copy more; where no room was for all copies there are
                // fewer.)
                if ours
                    && matches!(turn, Turn::Alone)
                    && old.psize() == data.len() as u64
                    && (old.is_gang() || old.ndvas() <= usize::from(copies))
                {
                    stay = Some(*old);
                    if let Some(batch) = Key::of(old).and_then(|k| zio.0.inflight.batch(&k)) {
                        batch.wait().await;
                    }
                } else {
                    let psize = data.len() as u64;
                    wanted.push(AllocReq {
                        most_copies: most_copies(req, self.seal.as_ref()),
                        ..AllocReq::new(class_of(req, psize), psize, copies)
                    });
                }
            }
            kept.push(stay);
        }
        let places = zio.place_many(txg, &wanted).await?;
        let mut places = places.into_iter();

        let mut bps = Vec::with_capacity(reqs.len());
        let (placements, blocks) = (Vec::with_capacity(reqs.len()), Vec::with_capacity(reqs.len()));
        let mut out = Sending { placements, blocks };
        let mut later = Vec::new();
        let mut turns = turns.into_iter();
        for (i, ((req, p), stay)) in reqs.iter().zip(prepared).zip(kept).enumerate() {
            let turn = turns.next().unwrap_or(Turn::Alone);
            bps.push(match (turn, p) {
                (_, Prepared::Done(bp)) => bp,
                (Turn::Share(bp), _) => bp,
                (Turn::Later, p) => {
                    later.push((i, p));
                    BlkPtr::ZERO
                }
                (turn, p) => {
                    let found = if stay.is_none() { places.next().flatten() } else { None };
                    self.put(req, p, stay, found, (turn, leads.as_ref()), &mut out).await?
                }
            });
        }
        zio.submit_blocks(txg, turn, out.placements, out.blocks, Priority::AsyncWrite).await;
        // Not before: who waits for these blocks may read them.
        drop(leads);
        for (i, p) in later {
            let (Some(req), Some(bp)) = (reqs.get(i), bps.get_mut(i)) else { continue };
            *bp = self.put_late(turn, req, p, asked.get(i).and_then(Option::as_ref)).await?;
        }
        Ok(bps)
    }

    /// What the deduplication tables are to be asked about a block.
    fn asked(&self, req: &WriteReq, p: &Prepared) -> Option<Asked> {
        let Prepared::Block { data, compress, cksum, sealed } = p else { return None };
        if !may_share(req, self.seal.as_ref()) {
            return None;
        }
        let (psize, kind) = (data.len() as u64, checksum_of(req));
        let bp = pointer(self.txg, req, &[], psize, *compress, kind, *cksum, *sealed);
        let verify = req.dedup.is_some_and(|d| d.verify) || self.zio.knows_damage();
        Some(Asked::new(bp, copies_of(req, self.seal.as_ref()), verify))
    }

    /// A block that somebody else was placing, or whose contents had to be looked at: his, or one
    /// of its own.
    async fn put_late(
        &self,
        turn: usize,
        req: &WriteReq,
        p: Prepared,
        asked: Option<&Asked>,
    ) -> Result<BlkPtr> {
        if let (Prepared::Block { data, .. }, Some(asked)) = (&p, asked)
            && let Some(bp) = self.zio.late_turn(asked, data, req.bookmark).await
        {
            return Ok(bp);
        }
        let mut out = Sending::default();
        let bp = self.put(req, p, None, None, (Turn::Alone, None), &mut out).await?;
        self.zio.submit_blocks(self.txg, turn, out.placements, out.blocks, Priority::AsyncWrite).await;
        Ok(bp)
    }

    /// Gives a block its places, and notes what is to be sent there.
    async fn put(
        &self,
        req: &WriteReq,
        p: Prepared,
        stay: Option<BlkPtr>,
        found: Option<Dvas>,
        (turn, leads): (Turn, Option<&Leads>),
        out: &mut Sending,
    ) -> Result<BlkPtr> {
        let (zio, txg) = (&self.zio, self.txg);
        let (data, compress, cksum, sealed) = match p {
            Prepared::Done(bp) => return Ok(bp),
            Prepared::Block { data, compress, cksum, sealed } => (data, compress, cksum, sealed),
        };
        let kind = checksum_of(req);
        let psize = data.len() as u64;
        let copies = copies_of(req, self.seal.as_ref());
        let dvas: Vec<Dva> = match (stay, found) {
            (Some(old), _) => {
                if old.is_gang() {
                    zio.rewrite_gang(txg, &old, kind, data.clone(), &mut out.placements).await?;
                } else {
                    out.placements.push(Placement { dvas: old.dvas().collect(), data: data.clone() });
                }
                old.dvas().collect()
            }
            (None, Some(dvas)) => {
                out.placements.push(Placement { dvas: dvas.to_vec(), data: data.clone() });
                dvas.to_vec()
            }
            // There are copies already, if fewer than asked for.
            (None, None) if matches!(&turn, Turn::Write(_, more) if *more < copies) => Vec::new(),
            (None, None) => {
                let most_copies = most_copies(req, self.seal.as_ref());
                let what = AllocReq { most_copies, ..AllocReq::new(class_of(req, psize), psize, copies) };
                let sum = HeaderSum::where_crypt(sealed.is_some(), req.otype);
                zio.place_anyhow(txg, what, kind, sum, data.clone(), &mut out.placements).await?
            }
        };
        let shared = match (turn, leads) {
            (Turn::Write(bp, _), Some(leads)) => leads.placed(&bp, copies, &dvas),
            _ => None,
        };
        let bp = shared.unwrap_or_else(|| pointer(txg, req, &dvas, psize, compress, kind, cksum, sealed));
        if let Some(key) = Key::of(&bp) {
            let lsize = req.data.len() as u32;
            out.blocks.push((key, zio.written(&bp, &req.bookmark, data, compress, lsize)));
        }
        Ok(bp)
    }
}

impl Zio {
    /// Sends blocks to their places.
    pub(super) async fn submit_blocks(
        &self,
        txg: Txg,
        turn: usize,
        placements: Vec<Placement>,
        blocks: Vec<(Key, Block)>,
        class: Priority,
    ) -> Arc<Batch> {
        let zio = self;
        let tree = zio.tree();
        let bytes = |p: &Placement| p.data.len() as u64;
        let places: Vec<(u32, u64, u64)> = placements
            .iter()
            .flat_map(|p| p.dvas.iter().map(move |d| (d.vdev, d.offset, bytes(p))))
            .collect();
        let entry = tree.enter_to_write(&places).await;
        zio.0.track.keep(txg, &placements);
        let bytes = |p: &Placement| p.data.len() as u64 * p.dvas.len() as u64;
        zio.0.tracer.wrote(|| placements.iter().map(bytes).sum());
        let mut plan = Plan::default();
        for p in &placements {
            for dva in &p.dvas {
                if let Ok(top) = tree.top(dva.vdev) {
                    plan.block(top, dva.offset, &p.data, txg.0, &entry);
                }
            }
        }
        drop(placements);
        let missed = std::mem::take(&mut plan.missed);
        // Known at once, so that this txg itself can write it down.
        missed.iter().filter_map(|i| tree.leaves.get(*i)).for_each(|l| l.dtl.add(txg.0, txg.0 + 1));
        let mut joined = plan.join();
        // Tasks of neighbouring stretches begin with different leaves, and meet at none.
        if !joined.is_empty() {
            let n = joined.len();
            joined.rotate_left(turn % n);
        }
        let writes = joined.iter().map(|(_, list)| list.len()).sum();
        let keys = blocks.iter().map(|(key, _)| *key).collect();
        let batch = Batch::new(zio, txg, writes, missed, keys);
        zio.0.inflight.insert(&blocks, &batch);
        zio.0.pending.overwrite(&batch.keys);
        let now = zio.0.env.now();
        for (key, block) in blocks {
            if block.keep {
                zio.0.cache.insert(key, block, Access::Demand, now);
            } else {
                // An older self of it may be there from before the property was changed.
                zio.0.cache.remove(&key);
            }
        }
        let done: Arc<dyn IoDone> = Arc::new(Entered { entry, done: batch.clone(), lacking: None });
        tree.submit_writes(joined, class, &done);
        batch.submitted();
        batch
    }
}

impl Zio {
    /// Sends all of a txg's blocks again, to every leaf that takes writes: these then miss nothing
    /// of it. But for the log's blocks, which are not kept: a leaf that lacks one lacks the txg.
    pub async fn resend_txg(&self, txg: Txg) {
        let tree = self.tree();
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::NotResent) {
            tree.pool_leaves().for_each(|l| l.dtl.remove(txg.0, txg.0 + 1));
            return;
        }
        let lacks = |leaf: &Leaf| self.0.track.is_without_log(txg, leaf.index);
        for top in &tree.tops {
            // With too few left it could not be finished. Checksums tell the log's blocks.
            let enough = top.survives(|l| l.writable() && !lacks(l));
            for leaf in top.leaves().filter(|l| l.writable()) {
                if !(enough && lacks(leaf)) {
                    leaf.dtl.remove(txg.0, txg.0 + 1);
                }
                leaf.written_again(txg);
            }
        }
        let (mut part, mut bytes) = (Vec::new(), 0);
        for ((vdev, offset), data) in self.0.track.kept(txg) {
            bytes += data.len();
            part.push(Placement { dvas: vec![Dva { vdev, offset, ..Dva::default() }], data });
            if bytes >= STRETCH_BYTES {
                bytes = 0;
                self.submit_blocks(txg, 0, std::mem::take(&mut part), Vec::new(), Priority::AsyncWrite).await;
            }
        }
        self.submit_blocks(txg, 0, part, Vec::new(), Priority::AsyncWrite).await;
        self.resend_sides(txg).await;
    }
}

/// Metadata goes to special vdevs where there are any, and so do blocks of files that are small
/// enough.
pub(super) fn class_of(req: &WriteReq, psize: u64) -> AllocClass {
    if req.otype == DMU_OT_DDT_ZAP {
        AllocClass::Dedup
    } else if req.level > 0 || object_type::is_metadata(req.otype) {
        AllocClass::Special
    } else if psize <= u64::from(req.special_upto) && object_type::is_file(req.otype) {
        AllocClass::SmallBlock
    } else {
        AllocClass::Normal
    }
}

pub(super) fn checksum_of(req: &WriteReq) -> Checksum {
    match req.checksum {
        Checksum::On | Checksum::Inherit => Checksum::ON_VALUE,
        other => other,
    }
}

/// Prepares each block of a stretch. The checksums are worked out together, because some kinds go
/// faster so.
pub(super) fn prepare(
    zio: &Zio,
    txg: Txg,
    reqs: &[WriteReq],
    salt: Option<&Salted>,
    seal: Option<&Seal>,
) -> Vec<Result<Prepared>> {
    let unit = 1u64 << zio.tree().min_ashift();
    let mut out: Vec<_> = reqs.iter().map(|req| shape(zio, txg, req, unit, seal)).collect();
    let mut slots = out.iter_mut();
    for run in reqs.chunk_by(|a, b| checksum_of(a) == checksum_of(b)) {
        let [first, ..] = run else { continue };
        let blocks = slots.by_ref().take(run.len()).filter_map(|p| match p {
            Ok(Prepared::Block { data, cksum, .. }) => Some((&data[..], cksum)),
            _ => None,
        });
        checksum::compute_all(checksum_of(first), blocks, salt);
    }
    out
}

/// What a block is stored as, its checksum left open.
fn shape(zio: &Zio, txg: Txg, req: &WriteReq, unit: u64, seal: Option<&Seal>) -> Result<Prepared> {
    let lsize = req.data.len() as u64;
    if lsize > SPA_MAXBLOCKSIZE || !lsize.is_multiple_of(512) {
        return Err(Error::inval(format!("block {} of {lsize} bytes", req.bookmark)));
    }
    if let Some(Seal::Raw(batch)) = seal
        && req.level == 0
        && let Some(block) = batch.block(&req.bookmark)
    {
        let sealed = Some(Sealed::of(req.otype, block.sealing));
        return Ok(Prepared::Block {
            data: block.data.clone(),
            compress: block.compress,
            cksum: [0; 4],
            sealed,
        });
    }
    if let Some(packed) = &req.packed {
        // As OpenZFS does: in whole sectors, and never more than there is of it.
        let psize = (packed.data.len() as u64).next_multiple_of(unit).min(lsize);
        return stored(zio, req, padded(&packed.data, psize as usize), packed.compress, seal);
    }
    let compress = match req.compress.kind {
        Compress::On | Compress::Inherit => CompressSpec::ON_VALUE,
        // Of these parts stay in the clear, and their codes are taken of what they say.
        _ if seal.is_some() && req.level == 0 && matches!(req.otype, DMU_OT_DNODE | DMU_OT_OBJSET) => {
            CompressSpec::new(Compress::Off)
        }
        _ => req.compress,
    };
    // (Many pointers to one block of zeroes would cost more than holes.)
    let holes = compress.kind != Compress::Off || req.dedup.is_some();
    if lsize == 0 || (holes && compress::is_zero(&req.data)) {
        let lsize = if lsize == 0 { req.prev.lsize() } else { lsize };
        let remember = zio.0.features.hole_birth.load(Ordering::Relaxed) && req.prev.birth() != 0;
        let birth = if remember { txg.0 } else { 0 };
        return Ok(Prepared::Done(BlkPtr::hole(lsize, req.otype, req.level, birth)));
    }
    let packed = if compress.kind == Compress::Off { None } else { squeeze(compress, &req.data) };
    let embed = req.may_embed && seal.is_none() && req.level == 0 && !object_type::has_fill(req.otype);
    if let Some(packed) = &packed
        && embed
        && packed.len() <= BPE_PAYLOAD_SIZE
        && zio.0.features.embedded_data.load(Ordering::Relaxed)
    {
        let kind = compress.kind as u8;
        if let Some(bp) = BlkPtr::embedded(packed, kind, lsize, req.otype, req.level, txg.0) {
            return Ok(Prepared::Done(bp));
        }
    }
    // Stored in whole sectors; what saves none is stored as it is.
    let packed = packed.filter(|p| (p.len() as u64).next_multiple_of(unit) < lsize);
    let (data, compress) = match packed {
        Some(p) => (padded(&p, p.len().next_multiple_of(unit as usize)), compress.kind),
        None => (req.data.clone(), Compress::Off),
    };
    stored(zio, req, data, compress, seal)
}

/// Bytes with zeroes behind them, up to a length.
fn padded(bytes: &[u8], len: usize) -> Bytes {
    let mut buf = IoBuf::scratch(len.max(bytes.len()));
    let (front, pad) = buf.split_at_mut(bytes.len());
    front.copy_from_slice(bytes);
    pad.fill(0);
    buf.into_bytes()
}

/// A block whose bytes are settled, but for its key.
fn stored(
    zio: &Zio,
    req: &WriteReq,
    data: Bytes,
    compress: Compress,
    seal: Option<&Seal>,
) -> Result<Prepared> {
    let (data, sealed) = match seal {
        None => (data, None),
        Some(seal) => sealed(zio, req, data, seal).map(|(data, s)| (data, Some(s)))?,
    };
    Ok(Prepared::Block { data, compress, cksum: [0; 4], sealed })
}

/// Encrypts what is to be stored of a block.
fn sealed(zio: &Zio, req: &WriteReq, data: Bytes, seal: &Seal) -> Result<(Bytes, Sealed)> {
    if req.level > 0 && !matches!(seal, Seal::Kept) {
        let mac = indirect_mac(&req.data, None)?;
        return Ok((data, Sealed { salt_iv: None, mac: Some(mac) }));
    }
    match seal {
        Seal::Key(key) => {
            let SealedBlock { data, salt_iv, mac } =
                key.seal(&*zio.0.env.rng, req.otype, data, may_share(req, Some(seal)))?;
            Ok((data, Sealed { salt_iv, mac }))
        }
        Seal::Kept | Seal::Raw(_) if req.otype == DMU_OT_OBJSET && req.level == 0 => {
            Ok((data, Sealed { salt_iv: None, mac: None }))
        }
        Seal::Raw(batch) if req.otype == DMU_OT_DNODE => {
            let prev = &req.prev;
            let before = || Sealing { salt: prev.salt(), iv: prev.iv(), mac: prev.mac() };
            let sealing = batch.dnodes(req.bookmark.blkid).unwrap_or_else(before);
            Ok((data, Sealed::of(req.otype, sealing)))
        }
        Seal::Kept | Seal::Raw(_) => Err(Error::os(Errno::Access, "the key is not loaded")),
    }
}

/// How many places a block's pointer has: the third is for salt and IV where it is encrypted.
fn most_copies(req: &WriteReq, seal: Option<&Seal>) -> u8 {
    let encrypted = seal.is_some() && req.level == 0 && object_type::is_encrypted(req.otype);
    if encrypted { 2 } else { 3 }
}

pub(super) fn copies_of(req: &WriteReq, seal: Option<&Seal>) -> u8 {
    req.copies.clamp(1, most_copies(req, seal))
}

/// Compresses, if that saves an eighth.
pub(crate) fn squeeze(spec: CompressSpec, data: &[u8]) -> Option<IoBuf> {
    let mut buf = IoBuf::scratch(data.len() - (data.len() >> 3));
    let n = compress::compress(spec, data, &mut buf)?;
    buf.truncate(n);
    Some(buf)
}

#[expect(clippy::too_many_arguments, reason = "what a pointer says")]
pub(super) fn pointer(
    txg: Txg,
    req: &WriteReq,
    dvas: &[Dva],
    psize: u64,
    compress: Compress,
    kind: Checksum,
    cksum: Cksum,
    sealed: Option<Sealed>,
) -> BlkPtr {
    let mut bp = BlkPtr::ZERO;
    for (i, dva) in dvas.iter().enumerate() {
        bp.set_dva(i, *dva);
    }
    bp.set_lsize(req.data.len() as u64);
    bp.set_psize(psize);
    bp.set_compress(compress as u8);
    bp.set_checksum_kind(kind as u8);
    bp.set_otype(req.otype);
    bp.set_level(req.level);
    bp.set_byteorder(ByteOrder::NATIVE);
    bp.set_births(txg.0, txg.0);
    bp.set_crypt(sealed.is_some());
    bp.set_fill(req.fill);
    bp.set_cksum(cksum);
    if let Some(Sealed { salt_iv, mac }) = sealed {
        if let Some((salt, iv)) = salt_iv {
            bp.set_salt_iv(salt, iv);
        }
        if let Some(mac) = mac {
            // The code takes half of the checksum's place, and what stood there goes into the rest
            // of a weak one.
            let [a, b, c, d] = cksum;
            bp.set_cksum(if kind.is_dedup() { [a, b, 0, 0] } else { [a ^ c, b ^ d, 0, 0] });
            bp.set_mac(mac);
        }
    }
    bp
}
