//! Walking the tree of one object, in the order of its blocks, through what was born after a txg.
//!
//! What an incremental stream has to say of an object is: blocks born after the txg it starts from,
//! and holes that may have come to be after it. A subtree that was not changed since is one old
//! pointer, and is neither read nor told. A hole remembers its birth only since the feature
//! hole_birth; one that does not is told in any case.
//!
//! Indirect blocks that the walk will come to are asked for some ahead, so that it seldom waits for
//! one disk access after another.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::error::{Error, Result};
use crate::pool::PoolCtx;
use crate::tunables::SEND_HOLES_WITHOUT_BIRTH_TIME;
use crate::types::{Bookmark, Txg};
use crate::zio::{BlockStore, Met, Priority};
use bytes::Bytes;
use std::sync::Arc;
use zilla_ondisk::blkptr::{BLKPTR_SIZE, BlkPtr};
use zilla_ondisk::dnode::{DNODE_SHIFT, DnodePhys};
use zilla_ondisk::{ByteOrder, FormatError};

/// Indirect blocks, or blocks of dnodes, that are read ahead.
const AHEAD: usize = 16;

/// What a walk comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit {
    Block {
        blkid: u64,
        bp: BlkPtr,
    },
    /// Blocks that are not there.
    Hole {
        first: u64,
        count: u64,
    },
}

struct Frame {
    /// Pointers to blocks of `level`.
    bps: Vec<BlkPtr>,
    level: u8,
    /// Number of the first of them, in its level.
    first: u64,
    next: usize,
    /// Up to where they have been asked for.
    asked: usize,
}

pub(super) struct TreeWalk {
    src: Source,
    objset: u64,
    object: u64,
    epbs: u32,
    /// Blocks born in it and before are not wanted.
    since: u64,
    /// Level-0 blocks before this one are passed over.
    from: u64,
    /// The blocks themselves will be read by the walk's user at once: they too are asked for ahead.
    leaves_ahead: bool,
    /// An object has each of its indirect blocks once; the stream ends where it does not.
    met: Met,
    stack: Vec<Frame>,
}

impl TreeWalk {
    pub(super) fn new(
        src: &Source,
        objset: u64,
        object: u64,
        dn: &DnodePhys,
        since: u64,
        from: u64,
        leaves_ahead: bool,
    ) -> TreeWalk {
        let mut stack = Vec::new();
        if dn.nlevels > 0 {
            let bps = dn.blkptr.to_vec();
            stack.push(Frame { bps, level: dn.nlevels - 1, first: 0, next: 0, asked: 0 });
        }
        let epbs = u32::from(dn.indblkshift.saturating_sub(7));
        let src = src.clone();
        let mut met = Met::default();
        met.root(objset, Txg(u64::MAX));
        TreeWalk { src, objset, object, epbs, since, from, leaves_ahead, met, stack }
    }

    /// Level-0 blocks under one block of a level; None where there are more than can be numbered.
    fn span(&self, level: u8) -> Option<u64> {
        1u64.checked_shl(self.epbs.checked_mul(level.into())?)
    }

    fn is_wanted(&self, bp: &BlkPtr) -> bool {
        // In an increment such a hole may be of an object whose number was another's.
        let told = self.since != 0 || SEND_HOLES_WITHOUT_BIRTH_TIME.get() != 0;
        bp.birth() > self.since || (bp.is_hole() && bp.birth() == 0 && told)
    }

    pub(super) async fn next(&mut self) -> Result<Option<Visit>> {
        loop {
            let Some(top) = self.stack.last_mut() else { return Ok(None) };
            let Some(bp) = top.bps.get(top.next).copied() else {
                self.stack.pop();
                continue;
            };
            let (level, blkid) = (top.level, top.first.saturating_add(top.next as u64));
            top.next += 1;
            if !self.is_wanted(&bp) {
                continue;
            }
            // Where this many blocks cannot be numbered there can be none.
            let Some(span) = self.span(level) else { continue };
            let Some(first) = blkid.checked_mul(span) else { continue };
            if first.saturating_add(span) <= self.from {
                continue;
            }
            if bp.is_hole() {
                let from = first.max(self.from);
                return Ok(Some(Visit::Hole { first: from, count: first.saturating_add(span) - from }));
            }
            self.ask_ahead(level);
            let at = Bookmark { objset: self.objset, object: self.object, level: i64::from(level), blkid };
            // Blocks of dnodes lead on as well.
            if level > 0 || self.object == 0 {
                self.met.enter(&bp, at)?;
            }
            if level == 0 {
                return Ok(Some(Visit::Block { blkid, bp }));
            }
            let data = self.src.read_tree(bp, at).await?;
            let bps = pointers(&data, 1 << self.epbs);
            self.stack.push(Frame { bps, level: level - 1, first: blkid << self.epbs, next: 0, asked: 0 });
        }
    }

    /// Begins to read the next pointers of the frame on top.
    fn ask_ahead(&mut self, level: u8) {
        if level == 0 && !self.leaves_ahead {
            return;
        }
        let (objset, object, since) = (self.objset, self.object, self.since);
        let Some(top) = self.stack.last_mut() else { return };
        // In batches: what is asked for together lies together.
        if top.next + AHEAD / 2 < top.asked {
            return;
        }
        let (from, to) = (top.asked.max(top.next), (top.next + AHEAD).min(top.bps.len()));
        top.asked = to;
        for (i, bp) in top.bps.iter().enumerate().take(to).skip(from) {
            if bp.is_hole() || bp.is_embedded() || bp.birth() <= since {
                continue;
            }
            let at = Bookmark {
                objset,
                object,
                level: i64::from(level),
                blkid: top.first.saturating_add(i as u64),
            };
            let (src, bp) = (self.src.clone(), *bp);
            self.src.ctx.env.spawn(async move {
                // Who needs it reports what is wrong with it.
                drop(src.read_tree(bp, at).await);
            });
        }
    }
}

/// The way to single blocks of one object, which are asked for in about their order.
pub(super) struct TreePath {
    objset: u64,
    object: u64,
    top: Vec<BlkPtr>,
    nlevels: u8,
    epbs: u32,
    blksz: u64,
    /// The indirect block of each level that was met last, by its number.
    kept: Vec<Option<(u64, Bytes)>>,
}

impl TreePath {
    pub(super) fn new(objset: u64, object: u64, dn: &DnodePhys) -> TreePath {
        let top = dn.blkptr.to_vec();
        let epbs = u32::from(dn.indblkshift.saturating_sub(7));
        let blksz = u64::from(dn.datablkszsec) << 9;
        let kept = vec![None; usize::from(dn.nlevels)];
        TreePath { objset, object, top, nlevels: dn.nlevels, epbs, blksz, kept }
    }

    /// Bytes of its blocks; None where there can be none.
    pub(super) fn blksz(&self) -> Option<u64> {
        Some(self.blksz).filter(|n| *n > 0)
    }

    /// The pointer to a block; None: there is none.
    pub(super) async fn pointer(&mut self, src: &Source, blkid: u64) -> Result<Option<BlkPtr>> {
        Ok(self.find(src, blkid).await?.ok())
    }

    /// The pointer to a block, or where the next block behind it may be that there is.
    pub(super) async fn find(&mut self, src: &Source, blkid: u64) -> Result<Result<BlkPtr, u64>> {
        let Some(mut level) = self.nlevels.checked_sub(1) else { return Ok(Err(u64::MAX)) };
        let up = |level: u8| blkid.checked_shr(self.epbs * u32::from(level)).unwrap_or(0);
        let first = usize::try_from(up(level)).ok().and_then(|i| self.top.get(i));
        let Some(mut bp) = first.copied() else { return Ok(Err(u64::MAX)) };
        while level > 0 && !bp.is_hole() {
            let id = up(level);
            let kept = self.kept.get(usize::from(level)).and_then(|k| k.as_ref());
            let data = match kept.filter(|(of, _)| *of == id) {
                Some((_, data)) => data.clone(),
                None => {
                    let at =
                        Bookmark { objset: self.objset, object: self.object, level: level.into(), blkid: id };
                    src.read_tree(bp, at).await?
                }
            };
            level -= 1;
            let slot = usize::try_from(up(level) & ((1 << self.epbs) - 1)).unwrap_or(usize::MAX);
            bp = BlkPtr::at(&data, slot, ByteOrder::NATIVE).unwrap_or_default();
            if let Some(k) = self.kept.get_mut(usize::from(level) + 1) {
                *k = Some((id, data));
            }
        }
        if !bp.is_hole() {
            return Ok(Ok(bp));
        }
        let span = 1u64.checked_shl(self.epbs * u32::from(level)).unwrap_or(u64::MAX);
        Ok(Err(up(level).saturating_add(1).saturating_mul(span)))
    }
}

/// What the blocks of a snapshot are read from.
#[derive(Clone)]
pub(super) struct Source {
    pub ctx: Arc<PoolCtx>,
    /// The pool's own where blocks are sent as they lie on disk; else the snapshot's, which may
    /// know its key.
    pub store: Arc<dyn BlockStore>,
}

impl Source {
    /// Reads a block of the tree's own.
    pub(super) async fn read_tree(&self, bp: BlkPtr, at: Bookmark) -> Result<Bytes> {
        at.check_level(&bp)?;
        match self.store.cached(&bp, at.objset) {
            Some(data) => Ok(data),
            None => self.store.read_tree(bp, at, Priority::SyncRead).await,
        }
    }
}

/// The pointers of an indirect block.
fn pointers(data: &[u8], most: usize) -> Vec<BlkPtr> {
    let all = data.chunks_exact(BLKPTR_SIZE).take(most);
    all.map(|raw| BlkPtr::decode(raw, ByteOrder::NATIVE).unwrap_or_default()).collect()
}

/// The dnode that begins at a slot of a block of dnodes. None: the slot is within another's, whose
/// bonus may look like one, or behind the block.
pub(super) fn dnode_at(block: &[u8], slot: u64) -> std::result::Result<Option<DnodePhys>, FormatError> {
    let mut at = 0;
    loop {
        let from = usize::try_from(at << DNODE_SHIFT).unwrap_or(usize::MAX);
        let Some(raw) = block.get(from..).filter(|raw| !raw.is_empty()) else { return Ok(None) };
        let dn = DnodePhys::decode(raw, ByteOrder::NATIVE)?;
        if at >= slot {
            return Ok(Some(dn).filter(|_| at == slot));
        }
        at += 1 + u64::from(dn.extra_slots);
    }
}

/// Damage of an object's own structure.
pub(super) fn damaged(objset: u64, object: u64, what: impl Into<String>) -> Error {
    let at = Bookmark { objset, object, level: 0, blkid: 0 };
    Error::corrupt(Some(at), "", what)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]
mod tests {
    use super::*;
    use zilla_ondisk::object_type::DMU_OT_PLAIN_FILE_CONTENTS;

    #[test]
    fn what_lies_within_a_large_dnode_is_none() {
        let mut block = vec![0; 16 << 10];
        let large = DnodePhys {
            otype: DMU_OT_PLAIN_FILE_CONTENTS,
            nlevels: 1,
            nblkptr: 1,
            blkptr: smallvec::smallvec![BlkPtr::ZERO],
            indblkshift: 17,
            datablkszsec: 1,
            extra_slots: 1,
            ..DnodePhys::default()
        };
        let small = DnodePhys { extra_slots: 0, ..large.clone() };
        large.encode_into(&mut block[512..1536]).unwrap();
        // The bonus of a large dnode may have anything in it.
        small.encode_into(&mut block[1024..1536]).unwrap();
        small.encode_into(&mut block[1536..2048]).unwrap();
        assert_eq!(dnode_at(&block, 1).unwrap().map(|dn| dn.extra_slots), Some(1));
        assert!(dnode_at(&block, 2).unwrap().is_none(), "it is a part of the one before");
        assert_eq!(dnode_at(&block, 3).unwrap().map(|dn| dn.extra_slots), Some(0));
        assert!(dnode_at(&block, 32).unwrap().is_none());
    }
}
