//! Reading blocks.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use zilla_codec::compress::{self, Compress};
use zilla_env::IoBuf;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::object_type::DMU_OT_OBJSET;
use zilla_ondisk::{Dva, SPA_MAXBLOCKSIZE, SPA_MINBLOCKSHIFT};

use super::pending::{Join, Lead};
use super::{Priority, Zio, byteswap, verify};
use super::{devices_away, is_away};
use crate::arc::{Access, Block, Key, L2Facts};
use crate::crypt::indirect_mac;
use crate::error::{Errno, Error, Result};
use crate::inject::{self, Failure, injections};
use crate::l2arc::Place;
use crate::trace::Found;
use crate::txg::in_sync;
use crate::types::Bookmark;
use crate::vdev::{DvaFailure, Guard, Reader, Tickets, VdevTree, unfenced};

/// What a scrub found of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes read, all copies and parity together as allocated.
    pub bytes: u64,
    /// Copies (or columns) that were bad, and how many of them were written again.
    pub bad: usize,
    pub repaired: usize,
    /// Bytes written again.
    pub repaired_bytes: u64,
}

/// Whether a copy can be written again: bytes came from its place, but not the right ones.
fn is_damaged((dva, failure): &(Dva, DvaFailure)) -> bool {
    !dva.gang && failure.checksum
}

fn is_prefetch(class: Priority) -> bool {
    class > Priority::SyncWrite
}

impl Access {
    /// Of whoever reads so and says no more of it: who does not wait as a user does is a walk.
    pub(super) fn of(class: Priority) -> Access {
        if is_prefetch(class) { Access::Prescient } else { Access::Demand }
    }
}

/// Whether the trace has it as read ahead. What is read ahead of a stream it has as read: the
/// stream finds it in a dbuf, where no trace looks, and waits the less for it the faster it comes.
fn is_traced_ahead(access: Access) -> bool {
    access == Access::Prescient
}

impl Zio {
    /// The block as on disk, from the cache, a write on its way, or the pointer itself.
    pub(super) fn cached_block(&self, bp: &BlkPtr, objset: u64, access: Access) -> Option<Block> {
        let key = Key::of(bp)?;
        let kept = || self.0.cache.get(&key, access, self.0.env.now());
        let block = self.0.inflight.get(&key).or_else(kept)?;
        // In a damaged pool pointers may agree in the place only.
        if !is_of(&block, bp) {
            return None;
        }
        if self.0.tracer.is_on() {
            self.0.tracer.block(bp, objset, is_traced_ahead(access), Found::Memory, None);
        }
        Some(block)
    }

    /// See [`BlockStore::demanded`](super::BlockStore::demanded).
    pub(super) fn demanded(&self, bp: &BlkPtr, waited: bool) {
        let (Some(key), now) = (Key::of(bp), self.0.env.now()) else { return };
        match waited {
            true => self.0.cache.joined(&key, bp.is_metadata(), Access::Demand, Access::Predictive, now),
            false => drop(self.0.cache.get(&key, Access::Demand, now)),
        }
    }

    /// A block's contents, if they are in memory or in the pointer.
    pub(super) fn contents_cached(&self, bp: &BlkPtr, objset: u64, access: Access) -> Option<Bytes> {
        if bp.is_embedded() {
            return self.embedded(bp, None).ok();
        }
        if bp.is_encrypted() || inject::any() && injections().spoils_what_is_in_memory() {
            return None;
        }
        let block = self.cached_block(bp, objset, access)?;
        self.expand(bp, &block, None).ok()
    }

    /// A block's contents, checked.
    pub(super) async fn read_contents(
        &self,
        bp: BlkPtr,
        bookmark: Bookmark,
        class: Priority,
        access: Access,
    ) -> Result<Bytes> {
        if bp.is_embedded() {
            return self.embedded(&bp, Some(bookmark));
        }
        if bp.is_encrypted() {
            return Err(Error::os(Errno::Access, "the block is encrypted"));
        }
        let block = self.read_block(bp, bookmark, class, access).await?;
        self.expand(&bp, &block, Some(bookmark))
    }

    /// A block, checked, as it is kept in memory. What is damaged is noted by who read it.
    pub(super) async fn read_block(
        &self,
        bp: BlkPtr,
        bookmark: Bookmark,
        class: Priority,
        access: Access,
    ) -> Result<Block> {
        let led = AtomicBool::new(false);
        let read = || self.read_block_once(bp, bookmark, class, access, &led);
        let out = match is_prefetch(class) && !in_sync() {
            true => read().await,
            false => self.persist(&bp, bookmark.objset, read).await,
        };
        if matches!(out, Err(Error::Corrupt(_))) && led.into_inner() {
            // What is read ahead is not tried again, and its devices may have gone this moment.
            self.tree().settle_suspects().await;
            if !self.lacks_devices(&bp) {
                self.damaged(bookmark, &bp);
            }
        }
        out
    }

    /// Reads what belongs to a block. What cannot be read because devices are away is not damaged:
    /// a sync waits for them, others are told. What a sync cannot read in spite of its devices, and
    /// what describes the pool, is tried once more, since a device may have come back meanwhile.
    pub(super) async fn persist<T, F>(&self, bp: &BlkPtr, objset: u64, read: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut again = false;
        loop {
            let failed = match read().await {
                Err(e @ Error::Corrupt(_)) => e,
                out => return out,
            };
            let tree = self.tree();
            tree.settle_suspects().await;
            if tree.is_writable() && self.lacks_devices(bp) {
                if !in_sync() {
                    return Err(devices_away());
                }
                // Where nobody waits, as in an import, it is said what is missing.
                self.await_devices(&|| self.lacks_devices(bp)).await.map_err(|_| failed)?;
            } else if again || !(in_sync() || objset == Bookmark::MOS) {
                return Err(failed);
            } else {
                again = true;
            }
        }
    }

    /// Whether devices are away without which a block cannot be read.
    fn lacks_devices(&self, bp: &BlkPtr) -> bool {
        let (tree, birth) = (self.tree(), bp.phys_birth());
        let any = || tree.tops.iter().any(|t| !t.vdev.is_log && t.lacks(birth));
        bp.dvas().any(|dva| match tree.tops.get(dva.vdev as usize) {
            Some(top) if top.vdev.is_concrete() && !dva.gang => top.lacks(birth),
            // A gang's pieces, and what was moved from a removed vdev, may be anywhere.
            _ => any(),
        })
    }

    async fn read_block_once(
        &self,
        bp: BlkPtr,
        bookmark: Bookmark,
        class: Priority,
        access: Access,
        led: &AtomicBool,
    ) -> Result<Block> {
        bp.validate().map_err(|e| Error::corrupt(Some(bookmark), "block pointer", e.to_string()))?;
        let Some(key) = Key::of(&bp) else {
            return Err(Error::corrupt(Some(bookmark), "block pointer", "the block has no copies"));
        };
        let (tracer, objset) = (&self.0.tracer, bookmark.objset);
        let begun = tracer.begin();
        let found = |found: Found| {
            if begun.is_some() {
                tracer.block(&bp, objset, is_traced_ahead(access), found, begun);
            }
        };
        loop {
            if let Some(block) = self.cached_block(&bp, objset, access) {
                return Ok(block);
            }
            match self.0.pending.join(key, class, access) {
                Join::Wait(pending) => {
                    let other = pending.access;
                    match pending.wait().await {
                        // Somebody else's, with another pointer to the same place.
                        Some(Ok(block)) if !is_of(&block, &bp) => {}
                        Some(outcome) => {
                            found(Found::OnItsWay);
                            let now = self.0.env.now();
                            self.0.cache.joined(&key, bp.is_metadata(), access, other, now);
                            return outcome;
                        }
                        None => {}
                    }
                }
                Join::Lead(lead) => {
                    // Written to the same place since the first look: that is not to be missed.
                    if let Some(block) = self.0.inflight.get(&key).filter(|b| is_of(b, &bp)) {
                        let outcome = Ok(block);
                        lead.finish(&outcome);
                        return outcome;
                    }
                    led.store(true, Ordering::Relaxed);
                    self.0.cache.missed(&key, bp.is_metadata(), access);
                    let (place, raw) = match self.find_second_level(&bp, &key) {
                        None => {
                            let tickets = Some(&lead.pending.tickets);
                            (Found::Pool, self.read_copies(&bp, bookmark, class, tickets).await)
                        }
                        Some(place) => {
                            Box::pin(self.read_second_level(&bp, bookmark, class, place, &lead)).await
                        }
                    };
                    // A second use, of which the cache in memory does not know any more.
                    let again = self.0.l2.used_before(&key, place == Found::CacheDevice);
                    found(place);
                    let mut outcome = raw.and_then(|raw| self.to_block(&bp, raw, bookmark));
                    if let Ok(block) = &mut outcome {
                        block.l2.had = place == Found::CacheDevice;
                    }
                    if let Ok(block) = &outcome {
                        // (What is not kept may have been read ahead for somebody who has not asked
                        // yet.)
                        if block.keep || access.is_prefetch() {
                            let still = || !lead.pending.is_overwritten();
                            let now = self.0.env.now();
                            self.0.cache.insert_read(key, block.clone(), access, now, still);
                            if again && block.keep {
                                self.0.cache.used_before(&key);
                            }
                        }
                    }
                    lead.finish(&outcome);
                    return outcome;
                }
            }
        }
    }

    /// Where a block is to be read, if not from the pool's disks.
    fn find_second_level(&self, bp: &BlkPtr, key: &Key) -> Option<Place> {
        // Without a checksum nobody could tell what came from there.
        if !self.0.l2.has_devices() || !verify::tells_apart(bp) {
            return None;
        }
        self.0.l2.find(bp, key, || {
            let tree = self.tree();
            let top = bp.dvas().next().and_then(|dva| tree.tops.get(dva.vdev as usize));
            top.and_then(|t| t.devices().map(|l| l.stats.expected(l.load())).min()).unwrap_or_default()
        })
    }

    /// The bytes of a block as stored, from a cache device that has them, or from the pool if that
    /// is the faster one.
    async fn read_second_level(
        &self,
        bp: &BlkPtr,
        bookmark: Bookmark,
        class: Priority,
        place: Place,
        lead: &Lead<'_>,
    ) -> (Found, Result<Bytes>) {
        let salt = self.salt();
        let check = |data: &[u8]| verify::block(bp, data, salt.as_deref());
        let pool = self.read_copies(bp, bookmark, class, Some(&lead.pending.tickets));
        let (own, raw) = self.0.l2.read(place, class, &check, pool).await;
        (if own { Found::CacheDevice } else { Found::Pool }, raw)
    }

    /// What the cache keeps of a block that is written.
    pub(super) fn written(
        &self,
        bp: &BlkPtr,
        bookmark: &Bookmark,
        data: Bytes,
        compress: Compress,
        lsize: u32,
    ) -> Block {
        let (metadata, objset) = (bp.is_metadata(), bookmark.objset);
        let keep = self.caching(objset).primary.takes(metadata);
        let past = !metadata && self.goes_past(bp, bookmark);
        let keep = keep && !past;
        Block { data, compress, lsize, metadata, keep, l2: self.l2_facts(bp, objset, true) }
    }

    /// What the second level must know of a block of which `as_stored` is in memory.
    fn l2_facts(&self, bp: &BlkPtr, objset: u64, as_stored: bool) -> L2Facts {
        let wanted = as_stored && !bp.uses_crypt() && verify::tells_apart(bp);
        let wanted = wanted && self.caching(objset).secondary.takes(bp.is_metadata());
        let Some(dva) = bp.dvas().next() else { return L2Facts::default() };
        L2Facts { wanted, gang: dva.gang, asectors: (dva.asize >> SPA_MINBLOCKSHIFT) as u32, had: false }
    }

    /// What the cache keeps of a block that was read.
    fn to_block(&self, bp: &BlkPtr, raw: Bytes, bookmark: Bookmark) -> Result<Block> {
        let compress = Compress::from_u8(bp.compress()).filter(|c| *c == Compress::Off || c.is_function());
        let compress = compress.ok_or_else(|| {
            let what = format!("compression {} does not exist", bp.compress());
            Error::corrupt(Some(bookmark), "block pointer", what)
        })?;
        if compress == Compress::Off && bp.lsize() != bp.psize() {
            let what = format!("uncompressed, but of {} bytes stored as {}", bp.lsize(), bp.psize());
            return Err(Error::corrupt(Some(bookmark), "block pointer", what));
        }
        let as_stored = compress != Compress::Off || is_sealed(bp) || bp.byteorder().is_native();
        let data = match compress {
            // Its code is taken of the bytes as they are.
            Compress::Off if !is_sealed(bp) => byteswap::block(bp, raw),
            _ => raw,
        };
        let l2 = self.l2_facts(bp, bookmark.objset, as_stored);
        let metadata = bp.is_metadata();
        let keep = self.caching(bookmark.objset).primary.takes(metadata);
        Ok(Block { data, compress, lsize: bp.lsize() as u32, metadata, keep, l2 })
    }

    /// The logical contents of a cached block.
    pub(super) fn expand(&self, bp: &BlkPtr, block: &Block, bookmark: Option<Bookmark>) -> Result<Bytes> {
        if block.compress == Compress::Off && block.data.len() as u64 != bp.lsize() {
            let what = format!("{} bytes are stored, and {} said", block.data.len(), bp.lsize());
            return Err(Error::corrupt(bookmark, bp.to_string(), what));
        }
        let data = match block.compress {
            Compress::Off if is_sealed(bp) => byteswap::block(bp, block.data.clone()),
            Compress::Off => block.data.clone(),
            kind => {
                let opened = match bookmark {
                    Some(at) => self.open_block(Failure::Decompress, bp, at),
                    None => Ok(()),
                };
                opened.and_then(|()| expand(bp, kind, &block.data, bookmark))?
            }
        };
        if bp.has_indirect_mac_cksum() {
            indirect_mac(&data, Some(&bp.mac()))?;
        }
        Ok(data)
    }

    pub(super) fn embedded(&self, bp: &BlkPtr, bookmark: Option<Bookmark>) -> Result<Bytes> {
        let bad = |what: String| Error::corrupt(bookmark, "embedded block pointer", what);
        bp.validate().map_err(|e| bad(e.to_string()))?;
        if bp.is_redacted() {
            return Err(Error::os(Errno::Io, "the block was redacted"));
        }
        let payload = bp.embedded_data();
        let stored = payload.get(..bp.embedded_psize()).unwrap_or_default();
        let lsize = u64::from(bp.embedded_lsize());
        let raw = match Compress::from_u8(bp.compress()) {
            Some(Compress::Off) if stored.len() as u64 == lsize => Bytes::copy_from_slice(stored),
            Some(c) if c.is_function() => decompress(c, stored, lsize).map_err(bad)?,
            _ => return Err(bad(format!("compression {}", bp.compress()))),
        };
        Ok(byteswap::block(bp, raw))
    }

    /// The bytes of a block as stored, from the first copy that can be read. Copies that could not
    /// are written again.
    pub(super) async fn read_copies(
        &self,
        bp: &BlkPtr,
        bookmark: Bookmark,
        class: Priority,
        tickets: Option<&Tickets>,
    ) -> Result<Bytes> {
        let tree = self.tree();
        let salt = self.salt();
        let check = |data: &[u8]| verify::block(bp, data, salt.as_deref());
        let mut dvas: smallvec::SmallVec<[Dva; 3]> = bp.dvas().collect();
        // A copy on a vdev that lacks a device is slower to get; those that are whole first.
        dvas.sort_by_key(|d| {
            tree.tops.get(d.vdev as usize).is_none_or(|t| t.vdev.state().0 < crate::vdev::VdevState::Healthy)
        });
        let mut failures: Vec<(Dva, DvaFailure)> = Vec::new();
        for dva in dvas {
            match self.read_dva(&tree, bp, &dva, bookmark, class, tickets, &check).await {
                Ok(data) => {
                    if failures.iter().any(is_damaged)
                        && let Some(guard) = self.repairing(bp, bookmark)
                    {
                        self.rewrite_copies(failures, &data, bp.phys_birth(), guard).await;
                    }
                    return Ok(data);
                }
                Err(f) => failures.push((dva, f)),
            }
        }
        // A vdev that was removed meanwhile has it no more, and its mapping says where it is.
        if !Arc::ptr_eq(&tree, &self.tree()) {
            return Box::pin(self.read_copies(bp, bookmark, class, tickets)).await;
        }
        let Some((_, last)) = failures.pop() else {
            return Err(Error::corrupt(Some(bookmark), "block pointer", "the block has no copies"));
        };
        tracing::warn!(%bookmark, place = %last.place, what = %last.what, "block cannot be read");
        Err(Error::corrupt(Some(bookmark), last.place, last.what))
    }

    #[expect(clippy::too_many_arguments, reason = "what a read is asked for, passed on")]
    async fn read_dva(
        &self,
        tree: &VdevTree,
        bp: &BlkPtr,
        dva: &Dva,
        bookmark: Bookmark,
        class: Priority,
        tickets: Option<&Tickets>,
        check: &(dyn Fn(&[u8]) -> Result<(), String> + Sync),
    ) -> Result<Bytes, DvaFailure> {
        let failure = |e: Error| DvaFailure {
            place: format!("vdev {} at {}", dva.vdev, dva.offset),
            what: e.to_string(),
            checksum: false,
            device: false,
        };
        let top = tree.check_dva(dva, bp.psize(), bp.phys_birth()).map_err(failure)?;
        let copy = self.copy_of(bp, dva);
        if let Some(failed) = self.tampered_copy(top, bp, dva, bookmark, copy) {
            return Err(failed);
        }
        let check = |data: &[u8]| {
            self.tampered(Failure::Checksum, bp, bookmark, copy)?;
            check(data)
        };
        if dva.gang {
            return self.read_gang(tree, bp, dva, bookmark, class, 0).await.map_err(failure);
        }
        let (offset, psize, birth) = (dva.offset, bp.psize(), bp.phys_birth());
        let fence = || self.repairing(bp, bookmark);
        let reader = Reader {
            tree,
            top,
            offset,
            psize,
            birth,
            class,
            tickets,
            check: &check,
            every_copy: false,
            speculative: false,
            fence: &fence,
        };
        reader.read().await.map(|(data, _)| data)
    }

    /// Writes copies that could not be read again, from one that could: how many were taken, and
    /// how many bytes they are.
    async fn rewrite_copies(
        &self,
        failures: Vec<(Dva, DvaFailure)>,
        data: &Bytes,
        birth: u64,
        guard: Guard,
    ) -> (usize, u64) {
        let (tree, data) = (self.tree(), data.clone());
        let task = async move {
            let (mut taken, mut bytes) = (0, 0);
            for (dva, failure) in failures.iter().filter(|f| is_damaged(f)) {
                if let Ok(top) = tree.check_dva(dva, data.len() as u64, birth)
                    && tree.is_writable()
                {
                    tracing::info!(place = %failure.place, "rewriting a damaged copy from another one");
                    if tree.rewrite(top, dva.offset, &data, birth).await {
                        (taken, bytes) = (taken + 1, bytes + dva.asize);
                    }
                }
            }
            drop(guard);
            (taken, bytes)
        };
        self.0.env.spawn_with_result(task).await
    }

    /// Reads every copy of a block with all its redundancy, checks all and repairs what is bad.
    pub async fn scrub(&self, bp: BlkPtr, bookmark: Bookmark) -> Result<Scrubbed> {
        self.scrub_for(bp, bookmark, &Tickets::default()).await
    }

    /// The same for one who may have to hurry: by the tickets, what of it still queues gets before
    /// other reads.
    pub async fn scrub_for(&self, bp: BlkPtr, bookmark: Bookmark, tickets: &Tickets) -> Result<Scrubbed> {
        let mut out = Scrubbed::default();
        if bp.is_hole() || bp.is_embedded() {
            return Ok(out);
        }
        bp.validate().map_err(|e| Error::corrupt(Some(bookmark), "block pointer", e.to_string()))?;
        let tree = self.tree();
        let salt = self.salt();
        let (mut good, mut lost) = (None, None);
        let mut failures = Vec::new();
        for dva in bp.dvas() {
            let copy = self.copy_of(&bp, &dva);
            let check = |data: &[u8]| {
                self.tampered(Failure::Checksum, &bp, bookmark, copy)?;
                verify::block(&bp, data, salt.as_deref())
            };
            out.bytes += dva.asize;
            if dva.gang {
                // The header's copies, then each child as a block of its own.
                let children = self.gang_children(&tree, &bp, &dva, bookmark, Priority::Scrub, true).await;
                match children {
                    // Each copy of the header names the same pieces.
                    Ok(_) if good.is_some() => {}
                    Ok(children) => {
                        for child in children {
                            match Box::pin(self.scrub_for(child, bookmark, tickets)).await {
                                Ok(s) => {
                                    out.bad += s.bad;
                                    out.repaired += s.repaired;
                                    out.repaired_bytes += s.repaired_bytes;
                                }
                                Err(e) if is_away(&e) => return Err(e),
                                // The others are looked at all the same.
                                Err(e) => {
                                    out.bad += 1;
                                    tree.not_resilvered(Some(&child));
                                    lost.get_or_insert(e);
                                }
                            }
                        }
                        good.get_or_insert(Bytes::new());
                    }
                    Err(e) => {
                        let what = e.to_string();
                        failures.push((
                            dva,
                            DvaFailure { place: String::new(), what, checksum: true, device: false },
                        ));
                    }
                }
                continue;
            }
            let read = match tree.check_dva(&dva, bp.psize(), bp.phys_birth()) {
                Ok(top) => {
                    let (offset, psize, birth) = (dva.offset, bp.psize(), bp.phys_birth());
                    let (tree, class, tickets) = (&*tree, Priority::Scrub, Some(tickets));
                    let reader = Reader {
                        tree,
                        top,
                        offset,
                        psize,
                        birth,
                        class,
                        tickets,
                        check: &check,
                        every_copy: true,
                        speculative: false,
                        fence: &unfenced,
                    };
                    match self.tampered_copy(top, &bp, &dva, bookmark, copy) {
                        Some(failed) => Err(failed),
                        None => reader.read().await,
                    }
                }
                Err(e) => Err(DvaFailure {
                    place: String::new(),
                    what: e.to_string(),
                    checksum: false,
                    device: false,
                }),
            };
            match read {
                Ok((data, healing)) => {
                    out.bad += healing.bad.len();
                    out.repaired += healing.repaired;
                    out.repaired_bytes += healing.bytes;
                    good = Some(data);
                }
                Err(f) => failures.push((dva, f)),
            }
        }
        out.bad += failures.len();
        match good {
            Some(data) => {
                // Those copies are not written again.
                if failures.iter().any(|(d, f)| d.gang || !f.checksum || data.is_empty()) {
                    tree.not_resilvered(Some(&bp));
                }
                if !data.is_empty() {
                    let birth = bp.phys_birth();
                    let (taken, bytes) = self.rewrite_copies(failures, &data, birth, Box::new(())).await;
                    out.repaired += taken;
                    out.repaired_bytes += bytes;
                }
                lost.map_or(Ok(out), Err)
            }
            None if !Arc::ptr_eq(&tree, &self.tree()) => {
                Box::pin(self.scrub_for(bp, bookmark, tickets)).await
            }
            None => {
                tree.settle_suspects().await;
                if tree.is_writable() && self.lacks_devices(&bp) {
                    return Err(devices_away());
                }
                self.damaged(bookmark, &bp);
                let (place, what) = failures.pop().map(|(_, f)| (f.place, f.what)).unwrap_or_default();
                Err(Error::corrupt(Some(bookmark), place, what))
            }
        }
    }
}

/// Whether a block from memory is kept as its pointer says.
fn is_of(block: &Block, bp: &BlkPtr) -> bool {
    u64::from(block.lsize) == bp.lsize() && block.compress as u8 == bp.compress()
}

/// Whether a block's bytes, as they are on disk, are what its code is taken of.
pub(super) fn is_sealed(bp: &BlkPtr) -> bool {
    bp.uses_crypt() && bp.level() == 0 && bp.otype() != DMU_OT_OBJSET
}

/// Decompresses a block and brings it into this machine's order.
pub(super) fn expand(
    bp: &BlkPtr,
    kind: Compress,
    stored: &Bytes,
    bookmark: Option<Bookmark>,
) -> Result<Bytes> {
    let raw = match kind {
        Compress::Off if stored.len() as u64 == bp.lsize() => stored.clone(),
        kind => {
            decompress(kind, stored, bp.lsize()).map_err(|e| Error::corrupt(bookmark, bp.to_string(), e))?
        }
    };
    Ok(byteswap::block(bp, raw))
}

fn decompress(kind: Compress, stored: &[u8], lsize: u64) -> Result<Bytes, String> {
    if lsize > SPA_MAXBLOCKSIZE {
        return Err(format!("the block would be {lsize} bytes"));
    }
    let mut out = IoBuf::scratch(lsize as usize);
    compress::decompress(kind, stored, &mut out).map_err(|e| e.to_string())?;
    Ok(out.into_bytes())
}
