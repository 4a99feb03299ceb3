//! The seam between block writes and the deduplication tables: who says that a block is there
//! already.
//!
//! A block that may be shared is compressed, encrypted and checksummed as any other, so that all of
//! its pointer is known but the places. Then the tables are asked, for a stretch of blocks at a
//! time: what they have is pointed to and not written; what they lack is placed and written, and
//! told to them. Of writers who come with the same block at once the first one writes.
//!
//! **Deadlock.** Who waits for another's block has placed all of his own before, so no two wait for
//! each other.
//!
//! **Damage.** A checksum says what a block was, not what can be read of it. While the pool knows
//! of any damage, what is to be shared is read from its disks first; what cannot be is written
//! anew.
//!
//! **Crash.** The tables change in memory here; they are on disk with the txg that the pointers
//! belong to.

use super::{Priority, WriteReq, Zio};
use crate::arc::{Access, Key};
use crate::crypt::Seal;
use crate::types::Bookmark;
use event_listener::EventListener;
use futures_util::future::BoxFuture;
use std::sync::{Arc, Weak};
use zilla_ondisk::blkptr::{BlkPtr, Dva};
use zilla_ondisk::object_type;

/// What is to be done with a block.
pub enum Claim {
    /// It is there: this points to it, and is counted.
    Share(BlkPtr),
    /// It is to be written in so many (more) copies; other writers wait until
    /// [`DedupTables::abandon`].
    Write(u8),
    /// Somebody else is placing it.
    Wait(EventListener),
    /// It is not to be shared.
    Alone,
}

/// What the writer needs of the pool's deduplication tables. A block is named by a pointer that has
/// all but its places.
pub trait DedupTables: Send + Sync {
    /// Brings what the tables say of some blocks into memory. What cannot be read will not be
    /// shared.
    fn load<'a>(&'a self, bps: &'a [BlkPtr]) -> BoxFuture<'a, ()>;

    fn claim(&self, bp: &BlkPtr, copies: u8) -> Claim;

    /// Who was told to write it has found these places. The whole pointer, counted; or None, if it
    /// cannot be shared so.
    fn placed(&self, bp: &BlkPtr, copies: u8, dvas: &[Dva]) -> Option<BlkPtr>;

    /// The writer who was told to write the block has sent it off, or does not write it.
    fn abandon(&self, bp: &BlkPtr);

    /// The contents of a block that was to be shared are others: it is not pointed to after all.
    fn differs(&self, shared: &BlkPtr);
}

/// What has become of a block before those that are written find their places.
pub(super) enum Turn {
    /// As without tables.
    Alone,
    Share(BlkPtr),
    /// In so many copies. The pointer lacks its places.
    Write(BlkPtr, u8),
    /// After the others: somebody is placing it, or its contents must be looked at.
    Later,
}

/// Blocks that this writer is to place. Other writers wait for them until this is dropped: when the
/// blocks are on their way, where a reader finds them, or when the writer failed.
pub(super) struct Leads {
    tables: Arc<dyn DedupTables>,
    open: Vec<BlkPtr>,
}

impl Drop for Leads {
    fn drop(&mut self) {
        self.open.iter().for_each(|bp| self.tables.abandon(bp));
    }
}

impl Leads {
    pub(super) fn placed(&self, bp: &BlkPtr, copies: u8, dvas: &[Dva]) -> Option<BlkPtr> {
        self.tables.placed(bp, copies, dvas)
    }
}

/// Whether a request is for a block that may be shared.
pub(super) fn may_share(req: &WriteReq, seal: Option<&Seal>) -> bool {
    // Tables say nothing of types: where a dataset is encrypted only what really is so is shared.
    let kind = seal.is_none() || object_type::is_encrypted(req.otype);
    req.dedup.is_some() && kind && req.level == 0 && !object_type::is_metadata(req.otype)
}

impl Zio {
    /// The pool owns them.
    pub fn set_dedup(&self, tables: Weak<dyn DedupTables>) {
        if self.0.dedup.set(tables).is_err() {
            tracing::error!("a pool's deduplication tables were set twice");
        }
    }

    fn dedup(&self) -> Option<Arc<dyn DedupTables>> {
        self.0.dedup.get().and_then(Weak::upgrade)
    }

    /// Asks the tables about those of a stretch's blocks that have a pointer here.
    pub(super) async fn take_turns(&self, asked: &[Option<Asked>]) -> (Vec<Turn>, Option<Leads>) {
        let alone = || (asked.iter().map(|_| Turn::Alone).collect(), None);
        let bps: Vec<BlkPtr> = asked.iter().flatten().map(|a| a.bp).collect();
        let Some(tables) = self.dedup().filter(|_| !bps.is_empty()) else { return alone() };
        tables.load(&bps).await;
        let mut open = Vec::new();
        let mut turns = Vec::with_capacity(asked.len());
        for a in asked {
            let Some(a) = a else {
                turns.push(Turn::Alone);
                continue;
            };
            turns.push(match tables.claim(&a.bp, a.copies) {
                Claim::Share(bp) if a.verify => {
                    // It is counted when its contents were compared.
                    tables.differs(&bp);
                    Turn::Later
                }
                Claim::Share(bp) => Turn::Share(bp),
                // More copies of what nobody has compared: it is written alone.
                Claim::Write(more) if a.verify && more < a.copies => {
                    tables.abandon(&a.bp);
                    Turn::Alone
                }
                Claim::Write(copies) => {
                    open.push(a.bp);
                    Turn::Write(a.bp, copies)
                }
                Claim::Wait(_) => Turn::Later,
                Claim::Alone => Turn::Alone,
            });
        }
        (turns, Some(Leads { tables, open }))
    }

    /// For a block whose turn is later, when all others of its stretch are placed. None: it is to
    /// be written alone.
    pub(super) async fn late_turn(&self, a: &Asked, stored: &[u8], at: Bookmark) -> Option<BlkPtr> {
        let tables = self.dedup()?;
        loop {
            // (The entry is in memory until the txg's end, so what is asked here was loaded
            // before.)
            match tables.claim(&a.bp, a.copies) {
                Claim::Wait(placed) => placed.await,
                Claim::Share(bp) if a.verify && !self.is_stored(&bp, stored, at).await => {
                    tables.differs(&bp);
                    return None;
                }
                Claim::Share(bp) => return Some(bp),
                Claim::Write(_) => {
                    tables.abandon(&a.bp);
                    return None;
                }
                Claim::Alone => return None,
            }
        }
    }

    /// Whether these bytes, as stored, are what is there. What cannot be read is not.
    async fn is_stored(&self, bp: &BlkPtr, stored: &[u8], at: Bookmark) -> bool {
        let read = match self.knows_damage() {
            // Memory may still have what a disk has not any more.
            true => {
                if let Some(batch) = Key::of(bp).and_then(|k| self.0.inflight.batch(&k)) {
                    batch.wait().await;
                }
                self.read_copies(bp, Bookmark::NOWHERE, Priority::SyncRead, None).await
            }
            false => self.read_block(*bp, at, Priority::SyncRead, Access::Demand).await.map(|b| b.data),
        };
        let data = match read {
            Ok(data) => data,
            Err(e) => {
                tracing::warn!(block = %at, error = %e, "a block that cannot be read is not shared");
                return false;
            }
        };
        // What is in memory may lack the padding to sectors.
        let n = data.len().min(stored.len());
        let (front, rest) = stored.split_at(n);
        let same = data.get(..n) == Some(front) && rest.iter().all(|b| *b == 0);
        if !same {
            tracing::warn!(block = %at, "two blocks have one checksum");
        }
        same
    }
}

/// A block that may be shared.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub bp: BlkPtr,
    pub copies: u8,
    pub verify: bool,
}

impl Asked {
    pub(super) fn new(mut bp: BlkPtr, copies: u8, verify: bool) -> Asked {
        bp.set_dedup(true);
        Asked { bp, copies, verify }
    }
}
