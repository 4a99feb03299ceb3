//! Everything of a snapshot that a stream has to tell, in the order in which it is told.
//!
//! The blocks of dnodes that changed, in order; in each the objects by number, free ones too; of
//! each object first itself, then its blocks and holes ascending, then its spill block. A receiver
//! relies on that order: it is what lets it resume at an object and an offset.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::walk::{Source, TreeWalk, Visit, damaged};
use crate::dsl::ResumeState;
use crate::error::Result;
use crate::types::Bookmark;
use bytes::Bytes;
use std::sync::Arc;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::blkptr::{BLKPTR_SIZE, BlkPtr};
use zilla_ondisk::dnode::{DNODE_CORE_SIZE, DNODE_SHIFT, DNODES_PER_BLOCK, DnodePhys};

/// One thing to be told.
#[derive(Clone, Debug)]
pub(super) enum Item {
    FreeObjects {
        first: u64,
        count: u64,
    },
    /// A block of dnodes, before those in it.
    Range {
        first: u64,
        bp: BlkPtr,
    },
    /// `room`: the place of its bonus, all of it.
    Object {
        id: u64,
        dn: Arc<DnodePhys>,
        room: Bytes,
    },
    Hole {
        id: u64,
        dn: Arc<DnodePhys>,
        first: u64,
        count: u64,
    },
    Block {
        id: u64,
        dn: Arc<DnodePhys>,
        blkid: u64,
        bp: BlkPtr,
    },
    Spill {
        id: u64,
        bp: BlkPtr,
    },
    /// A block that is left out.
    Redacted {
        id: u64,
        dn: Arc<DnodePhys>,
        blkid: u64,
    },
}

impl Item {
    /// The part of it that lies before a place, or at it; None if none does. Blocks that are not
    /// there may have come to be behind the place, or not be there yet, so at the place itself
    /// nothing is freed.
    fn until(self, at: Resume) -> Option<Item> {
        let here = |id: u64, dn: &DnodePhys, blkid: u64| {
            let offset = blkid.checked_mul(u64::from(dn.datablkszsec) << 9);
            id < at.object || (id == at.object && offset.is_some_and(|o| o <= at.offset))
        };
        match self {
            Item::FreeObjects { first, count } => {
                let count = at.object.saturating_sub(first).min(count);
                (count > 0).then_some(Item::FreeObjects { first, count })
            }
            Item::Range { first: id, .. } | Item::Object { id, .. } | Item::Spill { id, .. } => {
                (id <= at.object).then_some(self)
            }
            Item::Block { id, ref dn, blkid, .. } | Item::Redacted { id, ref dn, blkid } => {
                here(id, dn, blkid).then_some(self)
            }
            Item::Hole { id, dn, first, count } if id == at.object => {
                let end = at.offset / (u64::from(dn.datablkszsec.max(1)) << 9);
                let count = end.saturating_sub(first).min(count);
                (count > 0).then_some(Item::Hole { id, dn, first, count })
            }
            Item::Hole { id, .. } => (id < at.object).then_some(self),
        }
    }
}

/// Where a stream that was interrupted goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    pub object: u64,
    pub offset: u64,
}

impl Resume {
    /// Where an interrupted receive goes on.
    pub fn of(state: &ResumeState) -> Resume {
        Resume { object: state.object, offset: state.offset }
    }
}

/// Up to where a stream is told whose rest is not here: the place that an interrupted receive has
/// noted.
#[derive(Clone, Copy)]
struct Stop {
    at: Resume,
    reached: bool,
}

struct Open {
    id: u64,
    dn: Arc<DnodePhys>,
    walk: TreeWalk,
    /// Still to be told.
    spill: Option<BlkPtr>,
}

pub(super) struct Objects {
    src: Source,
    objset: u64,
    since: u64,
    resume: Resume,
    stop: Option<Stop>,
    meta: TreeWalk,
    /// Objects that there can be.
    limit: u64,
    /// The block of dnodes that is being told, its number and the next slot.
    block: Option<(Bytes, u64, u64)>,
    open: Option<Open>,
}

impl Objects {
    pub(super) fn new(
        src: Source,
        objset: u64,
        meta: &DnodePhys,
        since: u64,
        resume: Option<Resume>,
    ) -> Objects {
        let resume = resume.unwrap_or(Resume { object: 0, offset: 0 });
        let walk = TreeWalk::new(&src, objset, 0, meta, since, resume.object / DNODES_PER_BLOCK, true);
        let limit = meta.maxblkid.saturating_add(1).saturating_mul(DNODES_PER_BLOCK);
        Objects { src, objset, since, resume, stop: None, meta: walk, limit, block: None, open: None }
    }

    /// Objects that there can be.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Tells nothing behind this place. What lies there is of before the receive, or told again by
    /// whoever goes on from it.
    pub(super) fn until(self, at: Option<Resume>) -> Objects {
        Objects { stop: at.map(|at| Stop { at, reached: false }), ..self }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Item>> {
        match self.stop {
            None => self.any().await,
            Some(Stop { reached: true, .. }) => Ok(None),
            Some(Stop { at, .. }) => {
                let item = self.any().await?.and_then(|item| item.until(at));
                self.stop = Some(Stop { at, reached: item.is_none() });
                Ok(item)
            }
        }
    }

    async fn any(&mut self) -> Result<Option<Item>> {
        loop {
            if let Some(item) = self.of_object().await? {
                return Ok(Some(item));
            }
            if let Some(item) = self.of_block()? {
                return Ok(Some(item));
            }
            match self.meta.next().await? {
                None => return Ok(None),
                Some(Visit::Hole { first, count }) => {
                    let first = first.saturating_mul(DNODES_PER_BLOCK).max(self.resume.object);
                    let end = first.saturating_add(count.saturating_mul(DNODES_PER_BLOCK)).min(self.limit);
                    if first < end {
                        return Ok(Some(Item::FreeObjects { first, count: end - first }));
                    }
                }
                Some(Visit::Block { blkid, bp }) => {
                    let at = Bookmark { objset: self.objset, object: 0, level: 0, blkid };
                    self.block = Some((self.src.read_tree(bp, at).await?, blkid, 0));
                    let first = blkid.saturating_mul(DNODES_PER_BLOCK);
                    return Ok(Some(Item::Range { first, bp }));
                }
            }
        }
    }

    /// What is left of the object that is open.
    async fn of_object(&mut self) -> Result<Option<Item>> {
        let Some(open) = &mut self.open else { return Ok(None) };
        let (id, dn) = (open.id, open.dn.clone());
        while let Some(visit) = open.walk.next().await? {
            match visit {
                Visit::Block { blkid, bp } => return Ok(Some(Item::Block { id, dn, blkid, bp })),
                // There is never anything behind the last block; of metadata OpenZFS tells it all
                // the same.
                Visit::Hole { first, .. } if first > dn.maxblkid => {}
                Visit::Hole { first, count } => return Ok(Some(Item::Hole { id, dn, first, count })),
            }
        }
        let spill = open.spill.take();
        self.open = None;
        Ok(spill.map(|bp| Item::Spill { id, bp }))
    }

    /// The next object of the block of dnodes.
    fn of_block(&mut self) -> Result<Option<Item>> {
        while let Some((data, blkid, slot)) = &mut self.block {
            let at = usize::try_from(*slot << DNODE_SHIFT).unwrap_or(usize::MAX);
            let Some(raw) = data.get(at..).filter(|r| !r.is_empty()) else {
                self.block = None;
                break;
            };
            let id = blkid.saturating_mul(DNODES_PER_BLOCK).saturating_add(*slot);
            let dn = DnodePhys::decode(raw, ByteOrder::NATIVE)
                .map_err(|e| damaged(self.objset, id, e.to_string()))?;
            *slot += 1 + u64::from(dn.extra_slots);
            // Those before it in its block were received.
            if id < self.resume.object || id == 0 {
                continue;
            }
            if dn.is_free() {
                return Ok(Some(Item::FreeObjects { first: id, count: 1 }));
            }
            let from = match self.resume {
                Resume { object, offset } if object == id => {
                    offset / (u64::from(dn.datablkszsec.max(1)) << 9)
                }
                _ => 0,
            };
            let walk = TreeWalk::new(&self.src, self.objset, id, &dn, self.since, from, false);
            let from = at + DNODE_CORE_SIZE + usize::from(dn.nblkptr) * BLKPTR_SIZE;
            let end = from.saturating_add(dn.max_bonuslen()).min(data.len());
            let room = data.slice(from.min(end)..end);
            let dn = Arc::new(dn);
            let spill = dn.spill.filter(|bp| bp.birth() > self.since);
            self.open = Some(Open { id, dn: dn.clone(), walk, spill });
            return Ok(Some(Item::Object { id, dn, room }));
        }
        Ok(None)
    }
}
