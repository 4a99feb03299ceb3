//! Brings an object's blocks into memory: data, indirect blocks, what is cloned and not synced, the
//! spill block.
//!
//! A read waits with no lock held, so a sync may publish a newer state meanwhile. What was read is
//! taken only if the dnode's generation is still that of the lookup; otherwise the lookup is done
//! again. Nothing here changes what is on disk.
//!
//! Who wants a block that is being read ahead waits for that, if more is to be done with it than to
//! read it. I/O is shared by all who ask for the same place in any case, but each would decrypt and
//! decompress what came; and the two go through a file side by side, so all of it would be done
//! twice.

use super::dbuf::Base;
use super::dnode::{Dnode, Spill};
use super::fault::Stop;
use super::tree::{self, Lookup};
use crate::error::Result;
use crate::types::{Bookmark, Txg};
use crate::zio::Priority;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use std::sync::Arc;
use zilla_codec::compress::Compress;
use zilla_ondisk::blkptr::BlkPtr;

/// For whom a block is brought into memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Wanted,
    /// Nobody will want it again: the cache does not keep it.
    WantedOnce,
    /// For the sync of a txg.
    Sync(Txg),
    Ahead,
}

/// Whether more is to be done than to read it.
fn costs_more_than_io(bp: &BlkPtr) -> bool {
    bp.uses_crypt() || Compress::from_u8(bp.compress()) != Some(Compress::Off)
}

/// A block that is being read ahead, and that others wait for.
struct ReadingAhead<'d> {
    dnode: &'d Dnode,
    blkid: u64,
}

impl<'d> ReadingAhead<'d> {
    /// None: it is in memory, or on its way.
    fn begin(dnode: &'d Dnode, blkid: u64) -> Option<ReadingAhead<'d>> {
        let mut inner = dnode.inner.lock();
        let known = inner.dbufs.get(&blkid).is_some_and(|db| db.base_known() || db.hides_base());
        if known || inner.reading_ahead.contains_key(&blkid) {
            return None;
        }
        inner.reading_ahead.insert(blkid, Arc::default());
        Some(ReadingAhead { dnode, blkid })
    }
}

impl Drop for ReadingAhead<'_> {
    fn drop(&mut self) {
        let waiting = self.dnode.inner.lock().reading_ahead.remove(&self.blkid);
        if let Some(event) = waiting {
            event.notify(usize::MAX);
        }
    }
}

impl Dnode {
    /// Brings a block (or an indirect block) into memory.
    pub fn load(self: &Arc<Self>, level: u8, blkid: u64) -> BoxFuture<'_, Result<()>> {
        self.load_with(level, blkid, Priority::SyncRead)
    }

    pub(crate) fn load_with(
        self: &Arc<Self>,
        level: u8,
        blkid: u64,
        prio: Priority,
    ) -> BoxFuture<'_, Result<()>> {
        self.load_as(level, blkid, prio, Why::Wanted)
    }

    /// Brings into memory what the sync of `txg` needs of a block. What a later txg clones there is
    /// none of its business: that may be damaged.
    pub(super) fn load_for(
        self: &Arc<Self>,
        txg: Txg,
        blkid: u64,
        prio: Priority,
    ) -> BoxFuture<'_, Result<()>> {
        self.load_as(0, blkid, prio, Why::Sync(txg))
    }

    /// Brings a block into memory that nobody will want again: the cache does not keep it.
    pub(crate) fn load_once(self: &Arc<Self>, blkid: u64) -> BoxFuture<'_, Result<()>> {
        self.load_as(0, blkid, Priority::SyncRead, Why::WantedOnce)
    }

    /// Brings a block into memory before anybody wants it. To be called in a task of its own:
    /// others may wait for it.
    pub(super) async fn load_ahead(self: &Arc<Self>, level: u8, blkid: u64) -> Result<()> {
        self.load_as(level, blkid, Priority::SyncRead, Why::Ahead).await
    }

    fn load_as(
        self: &Arc<Self>,
        level: u8,
        blkid: u64,
        prio: Priority,
        why: Why,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            // What was read, and from where. It is still good if a sync has published the object
            // meanwhile, but not this block.
            let mut had: Option<(BlkPtr, Bytes)> = None;
            // What could not be read, where it was not known whether it still is the block.
            let mut failed = None;
            let mut mark = None;
            let mut waited = false;
            loop {
                let ahead = match level {
                    0 if why != Why::Ahead => {
                        let inner = self.inner.lock();
                        inner.reading_ahead.get(&blkid).map(|event| event.listen())
                    }
                    _ => None,
                };
                if let Some(ahead) = ahead {
                    ahead.await;
                    waited = true;
                    continue;
                }
                let found = {
                    let mut inner = self.inner.lock();
                    let clone = match why {
                        _ if level > 0 => None,
                        Why::Sync(txg) => inner.dbuf(blkid).unread_clone_of(txg),
                        _ => inner.dbuf(blkid).unread_clone(),
                    };
                    match clone {
                        Some(bp) => Err(bp),
                        None => {
                            let (there, used) = if level == 0 {
                                let db = inner.dbuf(blkid);
                                let used = waited && std::mem::take(&mut db.ahead);
                                (db.base_known() || db.hides_base(), used)
                            } else {
                                (inner.indirects.get(level, blkid).is_some(), false)
                            };
                            if there {
                                drop(inner);
                                if used {
                                    self.demanded(blkid, true);
                                }
                                return Ok(());
                            }
                            Ok((tree::lookup(&inner.phys, &inner.indirects, level, blkid), inner.generation))
                        }
                    }
                };
                let (found, generation) = match found {
                    Ok(found) => found,
                    Err(bp) => {
                        self.load_clone(blkid, bp, prio).await?;
                        continue;
                    }
                };
                let bp = match found {
                    Lookup::NeedIndirect { level, blkid } => {
                        let why = if why == Why::Ahead { why } else { Why::Wanted };
                        self.load_as(level, blkid, prio, why).await?;
                        continue;
                    }
                    Lookup::Bp(bp) if !bp.is_hole() => bp,
                    Lookup::Bp(_) | Lookup::Hole => {
                        if self.install_as(level, blkid, None, generation, why) {
                            return Ok(());
                        }
                        continue;
                    }
                };
                let bookmark = Bookmark::new(self.shared.objset, self.id(), level, blkid);
                bookmark.check_level(&bp)?;
                if level == 0 && why == Why::Ahead && mark.is_none() && costs_more_than_io(&bp) {
                    mark = ReadingAhead::begin(self, blkid);
                    if mark.is_none() {
                        return Ok(());
                    }
                }
                if level == 0 && why != Why::Ahead {
                    self.led_to(blkid);
                }
                let (store, objset) = (&self.shared.store, self.shared.objset);
                let cached = || match why {
                    Why::Ahead => store.cached_ahead(&bp, objset),
                    _ => store.cached(&bp, objset),
                };
                let data = match had.take().filter(|(of, _)| *of == bp) {
                    Some((_, data)) => data,
                    None => match cached() {
                        Some(data) => data,
                        None => {
                            let read = match why {
                                Why::Ahead => store.read_ahead(bp, bookmark, prio).await,
                                _ => store.read(bp, bookmark, prio).await,
                            };
                            let data = match read {
                                Ok(data) => data,
                                // A sync has put another block there since, and its old place may
                                // be another's by now.
                                Err(_) if failed != Some(bp) && !self.points_to(level, blkid, &bp) => {
                                    failed = Some(bp);
                                    continue;
                                }
                                Err(e) => return Err(e),
                            };
                            if why == Why::WantedOnce {
                                store.forget_read(&bp);
                            }
                            data
                        }
                    },
                };
                if self.install_as(level, blkid, Some(data.clone()), generation, why) {
                    return Ok(());
                }
                had = Some((bp, data));
            }
        })
    }

    /// Reads a block that is cloned and not synced.
    async fn load_clone(self: &Arc<Self>, blkid: u64, bp: BlkPtr, prio: Priority) -> Result<()> {
        let bookmark = Bookmark::new(self.shared.objset, self.id(), 0, blkid);
        bookmark.check_level(&bp)?;
        let data = match self.shared.store.cached(&bp, self.shared.objset) {
            Some(data) => data,
            None => self.shared.store.read(bp, bookmark, prio).await?,
        };
        let more = {
            let mut inner = self.inner.lock();
            let db = inner.dbuf(blkid);
            db.clone_read(&bp, &data);
            db.touched = true;
            db.count_as(data.len())
        };
        if let Some(more) = more {
            self.shared.cache.added(self, 0, blkid, more);
        }
        Ok(())
    }

    /// Brings the cloned block into memory that `txg` has put there, if it has, and has it stay.
    pub(super) async fn load_clone_of(self: &Arc<Self>, blkid: u64, txg: Txg) -> Result<()> {
        loop {
            let unread = self.inner.lock().dbuf(blkid).pin_clone(txg);
            match unread {
                Some(bp) => self.load_clone(blkid, bp, Priority::SyncRead).await?,
                None => return Ok(()),
            }
        }
    }

    /// Makes what was read the synced contents, unless a sync has published something newer since.
    pub(crate) fn install(
        self: &Arc<Self>,
        level: u8,
        blkid: u64,
        data: Option<Bytes>,
        generation: u64,
    ) -> bool {
        self.install_as(level, blkid, data, generation, Why::Wanted)
    }

    fn install_as(
        self: &Arc<Self>,
        level: u8,
        blkid: u64,
        data: Option<Bytes>,
        generation: u64,
        why: Why,
    ) -> bool {
        let len = data.as_ref().map_or(0, Bytes::len);
        let more = {
            let mut inner = self.inner.lock();
            if inner.generation != generation {
                return false;
            }
            if level == 0 {
                let db = inner.dbuf(blkid);
                // Who reads it himself, be it the end of what was begun ahead of him, has used it.
                db.ahead &= why == Why::Ahead;
                if !db.base_known() {
                    let is_hole = data.is_none();
                    db.set_base(data.map_or(Base::Hole, Base::Data));
                    db.ahead = why == Why::Ahead && !is_hole;
                }
                db.touched = true;
                db.count_as(len)
            } else {
                // An indirect block that is a hole: an empty buffer reads as holes only.
                let known = inner.indirects.get(level, blkid).is_some();
                let more = inner.indirects.insert(level, blkid, data.unwrap_or_default());
                if why == Why::Ahead && !known {
                    inner.indirects.note_ahead(level, blkid);
                }
                more
            }
        };
        if let Some(more) = more {
            self.shared.cache.added(self, level, blkid, more);
        }
        true
    }

    /// Somebody asks for a block: the indirect blocks above it that were read ahead are used now.
    fn led_to(&self, blkid: u64) {
        let used: SmallVec<[Lookup; 1]> = {
            let mut inner = self.inner.lock();
            let epbs = tree::epbs(inner.phys.indblkshift);
            let used = inner.indirects.take_ahead(blkid, epbs);
            used.iter().map(|at| tree::lookup(&inner.phys, &inner.indirects, at.0, at.1)).collect()
        };
        for found in used {
            if let Lookup::Bp(bp) = found {
                self.shared.store.demanded(&bp, false);
            }
        }
    }

    /// A block that was read ahead is used for the first time; `waited`: it was on its way then.
    #[cold]
    pub(super) fn demanded(&self, blkid: u64, waited: bool) {
        self.led_to(blkid);
        let found = {
            let inner = self.inner.lock();
            tree::lookup(&inner.phys, &inner.indirects, 0, blkid)
        };
        if let Lookup::Bp(bp) = found {
            self.shared.store.demanded(&bp, waited);
        }
    }

    pub(crate) async fn load_spill(self: &Arc<Self>) -> Result<()> {
        loop {
            let (bp, generation) = {
                let inner = self.inner.lock();
                match (&inner.spill, &inner.phys.spill) {
                    (Spill::Unknown, Some(bp)) => (*bp, inner.generation),
                    _ => return Ok(()),
                }
            };
            let bookmark = Bookmark {
                blkid: Bookmark::SPILL_BLKID,
                ..Bookmark::new(self.shared.objset, self.id(), 0, 0)
            };
            let data = self.shared.store.read(bp, bookmark, Priority::SyncRead).await?;
            let mut inner = self.inner.lock();
            if inner.generation == generation && matches!(inner.spill, Spill::Unknown) {
                inner.spill_loaded(data);
            }
        }
    }

    /// Reads, waiting for the disk where need be.
    pub async fn read_wait(self: &Arc<Self>, off: u64, out: &mut [u8]) -> Result<()> {
        loop {
            match self.read(off, out) {
                Ok(()) => return Ok(()),
                Err(Stop::Err(e)) => return Err(e),
                Err(Stop::Need(_)) => {
                    let blksz = u64::from(self.blksz());
                    let blocks = (off / blksz)..=((off + out.len() as u64 - 1) / blksz);
                    let loads = blocks.map(|b| self.load(0, b));
                    for r in futures_util::future::join_all(loads).await {
                        r?;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dmu::testing::Harness;
    use crate::dmu::{NewObject, resident};
    use futures_util::future::{join, join_all};
    use std::sync::atomic::Ordering;
    use zilla_env::block_on;
    use zilla_ondisk::object_type::DMU_OT_PLAIN_FILE_CONTENTS;

    const BLOCKS: u64 = 4;

    #[test]
    fn what_is_read_ahead_is_decompressed_once() {
        let mut h = Harness::new(2);
        h.store.says_compressed.store(true, Ordering::Relaxed);
        let spec = NewObject::new(DMU_OT_PLAIN_FILE_CONTENTS, 512);
        let dn = block_on(resident(|| h.objset.alloc(&h.tx(), spec))).unwrap();
        for b in 0..BLOCKS {
            dn.write_block(&h.tx(), b, vec![1 + b as u8; 512].into());
        }
        block_on(h.sync_open());
        let id = dn.id();
        block_on(h.reopen());
        let dn = block_on(h.objset.hold_wait(id)).unwrap();
        block_on(dn.load(1, 0)).unwrap();
        let before = h.store.reads.load(Ordering::Relaxed);
        let ahead = join_all((0..BLOCKS).map(|b| dn.load_ahead(0, b)));
        let wanted = join_all((0..BLOCKS).map(|b| dn.load(0, b)));
        let (ahead, wanted) = block_on(join(ahead, wanted));
        assert!(ahead.iter().chain(&wanted).all(Result::is_ok));
        assert_eq!(h.store.reads.load(Ordering::Relaxed) - before, BLOCKS);
        let mut out = vec![0; 512 * BLOCKS as usize];
        dn.read(0, &mut out).unwrap();
        assert!(out.chunks(512).zip(1..).all(|(block, n)| block.iter().all(|b| *b == n)));
        // And what could not be read ahead is for whoever wants it to find out.
        block_on(h.reopen());
        let dn = block_on(h.objset.hold_wait(id)).unwrap();
        block_on(dn.load(1, 0)).unwrap();
        h.store.offsets().iter().for_each(|o| h.store.set_unreadable(*o, true));
        let (ahead, wanted) = block_on(join(dn.load_ahead(0, 1), dn.load(0, 1)));
        assert!(ahead.is_err() && wanted.is_err());
    }

    /// The store hears which blocks are read ahead, and of each when it is used for the first time.
    #[test]
    fn the_first_use_of_what_was_read_ahead_is_told() {
        let mut h = Harness::new(2);
        let spec = NewObject::new(DMU_OT_PLAIN_FILE_CONTENTS, 512);
        let dn = block_on(resident(|| h.objset.alloc(&h.tx(), spec))).unwrap();
        for b in 0..BLOCKS {
            dn.write_block(&h.tx(), b, vec![1 + b as u8; 512].into());
        }
        block_on(h.sync_open());
        let id = dn.id();
        let at = |dn: &Arc<Dnode>, b| match dn.block_pointer(b) {
            Ok(Some(bp)) => bp.dva(0).offset,
            _ => panic!("block {b} is nowhere"),
        };
        for compressed in [false, true] {
            h.store.says_compressed.store(compressed, Ordering::Relaxed);
            // Written anew, so that the pointers say so.
            let dn = block_on(h.objset.hold_wait(id)).unwrap();
            for b in 0..BLOCKS {
                dn.write_block(&h.tx(), b, vec![1 + b as u8; 512].into());
            }
            block_on(h.sync_open());
            block_on(h.reopen());
            h.store.ahead.lock().clear();
            h.store.demanded.lock().clear();
            let dn = block_on(h.objset.hold_wait(id)).unwrap();
            block_on(dn.load(0, 0)).unwrap();
            assert_eq!(h.store.ahead.lock().len(), 0, "somebody asked for that");
            block_on(h.reopen());
            let dn = block_on(h.objset.hold_wait(id)).unwrap();
            for b in 0..BLOCKS - 1 {
                block_on(dn.load_ahead(0, b)).unwrap();
            }
            let ahead = h.store.ahead.lock().clone();
            assert_eq!(ahead[0].0, 1, "the indirect block first");
            let blocks: Vec<_> = (0..BLOCKS - 1).map(|b| (0, at(&dn, b))).collect();
            assert_eq!(ahead[1..], blocks);
            assert_eq!(*h.store.demanded.lock(), [], "nobody has asked yet");
            let mut out = [0; 512];
            for _ in 0..2 {
                dn.read(512, &mut out).unwrap();
            }
            assert_eq!(*h.store.demanded.lock(), [(1, ahead[0].1, false), (0, at(&dn, 1), false)]);
            dn.read(0, &mut out).unwrap();
            assert_eq!(h.store.demanded.lock()[2..], [(0, at(&dn, 0), false)]);
            // What is written over is no use of what was there.
            dn.write_block(&h.tx(), 2, vec![9; 512].into());
            block_on(h.sync_open());
            dn.read(2 * 512, &mut out).unwrap();
            assert_eq!(h.store.demanded.lock().len(), 3);
            // One that is on its way: who has it decompressed by another tells that he waited; who
            // reads the block himself has shared its I/O, and the store knows.
            let last = BLOCKS - 1;
            let (ahead, wanted) = block_on(join(dn.load_ahead(0, last), dn.load(0, last)));
            assert!(ahead.is_ok() && wanted.is_ok());
            dn.read(last * 512, &mut out).unwrap();
            let told = if compressed { vec![(0, at(&dn, last), true)] } else { vec![] };
            assert_eq!(h.store.demanded.lock()[3..], told);
        }
    }
}
