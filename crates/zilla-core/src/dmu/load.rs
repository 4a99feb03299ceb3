//! Brings an object's blocks into memory: data, indirect blocks, what is cloned and not synced, the spill block.
//!
//! A read waits with no lock held, so a sync may publish a newer state meanwhile. What was read is taken only if the dnode's
//! generation is still that of the lookup; otherwise the lookup is done again. Nothing here changes what is on disk.

use super::dbuf::Base;
use super::dnode::{Dnode, Spill};
use super::fault::Stop;
use super::tree::{self, Lookup};
use crate::error::Result;
use crate::types::{Bookmark, Txg};
use crate::zio::Priority;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;

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
        self.load_as(level, blkid, prio, true, None)
    }

    /// Brings into memory what the sync of `txg` needs of a block. What a later txg clones there is
    /// none of its business: that may be damaged.
    pub(super) fn load_for(
        self: &Arc<Self>,
        txg: Txg,
        blkid: u64,
        prio: Priority,
    ) -> BoxFuture<'_, Result<()>> {
        self.load_as(0, blkid, prio, true, Some(txg))
    }

    /// Brings a block into memory that nobody will want again: the cache does not keep it.
    pub(crate) fn load_once(self: &Arc<Self>, blkid: u64) -> BoxFuture<'_, Result<()>> {
        self.load_as(0, blkid, Priority::SyncRead, false, None)
    }

    fn load_as(
        self: &Arc<Self>,
        level: u8,
        blkid: u64,
        prio: Priority,
        keep: bool,
        of: Option<Txg>,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            // What was read, and from where. It is still good if a sync has published the object
            // meanwhile, but not this block.
            let mut had: Option<(BlkPtr, Bytes)> = None;
            loop {
                let found = {
                    let mut inner = self.inner.lock();
                    let clone = match of {
                        _ if level > 0 => None,
                        Some(txg) => inner.dbuf(blkid).unread_clone_of(txg),
                        None => inner.dbuf(blkid).unread_clone(),
                    };
                    match clone {
                        Some(bp) => Err(bp),
                        None => {
                            let there = if level == 0 {
                                let db = inner.dbuf(blkid);
                                db.base_known() || db.hides_base()
                            } else {
                                inner.indirects.get(level, blkid).is_some()
                            };
                            if there {
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
                        self.load_with(level, blkid, prio).await?;
                        continue;
                    }
                    Lookup::Bp(bp) if !bp.is_hole() => bp,
                    Lookup::Bp(_) | Lookup::Hole => {
                        if self.install(level, blkid, None, generation) {
                            return Ok(());
                        }
                        continue;
                    }
                };
                let bookmark = Bookmark::new(self.shared.objset, self.id(), level, blkid);
                bookmark.check_level(&bp)?;
                let data = match had.take().filter(|(of, _)| *of == bp) {
                    Some((_, data)) => data,
                    None => match self.shared.store.cached(&bp, self.shared.objset) {
                        Some(data) => data,
                        None => {
                            let data = self.shared.store.read(bp, bookmark, prio).await?;
                            if !keep {
                                self.shared.store.forget_read(&bp);
                            }
                            data
                        }
                    },
                };
                if self.install(level, blkid, Some(data.clone()), generation) {
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
        self.inner.lock().dbuf(blkid).clone_read(&bp, &data);
        Ok(())
    }

    /// Brings the cloned block into memory that `txg` has put there, if it has.
    pub(super) async fn load_clone_of(self: &Arc<Self>, blkid: u64, txg: Txg) -> Result<()> {
        let bp = self.inner.lock().dbuf(blkid).unread_clone_of(txg);
        match bp {
            Some(bp) => self.load_clone(blkid, bp, Priority::SyncRead).await,
            None => Ok(()),
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
        let len = data.as_ref().map_or(0, Bytes::len);
        let fresh = {
            let mut inner = self.inner.lock();
            if inner.generation != generation {
                return false;
            }
            if level == 0 {
                let db = inner.dbuf(blkid);
                if !db.base_known() {
                    db.set_base(data.map_or(Base::Hole, Base::Data));
                }
                db.touched = true;
                !std::mem::replace(&mut db.on_clock, true)
            } else {
                // An indirect block that is a hole: an empty buffer reads as holes only.
                inner.indirects.insert(level, blkid, data.unwrap_or_default())
            }
        };
        if fresh {
            self.shared.cache.added(self, level, blkid, len);
        }
        true
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
                inner.spill = Spill::Data(data);
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
