//! Walking all block pointers of an objset in object order, from any place on.
//!
//! The walk reads only what has pointers in it: indirect blocks and blocks of dnodes; these it
//! reads ahead, in order. It can be stopped at any level-0 block and goes on from that bookmark in
//! a later version of the same tree, because blocks that the walk cares about do not change places
//! while they live. A block with pointers is visited behind all that is below it, by the walk that
//! comes to its end: so each comes up once, however often the walk stops within it.
//!
//! Subtrees that are too old are not entered: a pointer's birth is at least that of everything
//! below it. A block with pointers that comes up at a second place is damage ([`Met`]), so that no
//! tree is longer than its blocks.

use crate::error::{Error, Result};
use crate::types::{Bookmark, Txg};
use crate::zio::{BlockStore, Met, Priority};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use std::collections::HashMap;
use std::sync::Arc;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::blkptr::{BLKPTR_SIZE, BlkPtr};
use zilla_ondisk::dnode::{self, DNODES_PER_BLOCK, DnodePhys};
use zilla_ondisk::object_type::DMU_OT_DNODE;
use zilla_ondisk::objset::ObjsetPhys;

/// Blocks read ahead of the walk.
const READ_AHEAD: usize = 32;

/// Who wants the pointers.
pub(crate) trait Visitor: Send {
    /// A block that is neither hole nor redacted, embedded ones included.
    fn visit(&mut self, bp: &BlkPtr, at: Bookmark);
    /// A block with pointers cannot be read, or is none: its subtree is skipped, or the walk ends
    /// with the error given back.
    fn unreadable(&mut self, bp: &BlkPtr, at: Bookmark, error: Error) -> Result<()>;
    /// Asked at every level-0 block: whether the walk is to stop there.
    fn stop(&mut self) -> bool;
}

pub(crate) struct Walk<'a, V> {
    pub store: &'a Arc<dyn BlockStore>,
    pub visitor: &'a mut V,
    pub objset: u64,
    /// Only blocks born later count.
    pub min_birth: u64,
    /// Where an earlier walk stopped.
    pub resume: Option<Bookmark>,
    /// Blocks that were come to; a walk that goes on takes it from the one before.
    pub met: Met,
    stopped: Option<Bookmark>,
}

/// What a dnode says of its tree's shape.
#[derive(Clone, Copy)]
struct Shape {
    object: u64,
    /// log2 of pointers in an indirect block.
    epbs: u32,
    /// Level-0 blocks hold dnodes.
    dnodes: bool,
}

impl Shape {
    fn of(object: u64, dn: &DnodePhys) -> Shape {
        // Only the first object has dnodes: another that says so could lead to itself.
        let dnodes = object == 0 && dn.otype == DMU_OT_DNODE;
        Shape { object, epbs: u32::from(dn.indblkshift).saturating_sub(7), dnodes }
    }

    /// First level-0 block behind a block.
    fn end(&self, level: u8, blkid: u64) -> u64 {
        let shift = self.epbs.saturating_mul(u32::from(level));
        let next = blkid.saturating_add(1);
        if shift >= next.leading_zeros() { u64::MAX } else { next << shift }
    }

    /// Whether all of a subtree comes before the place of an earlier stop.
    fn completed(&self, level: u8, blkid: u64, stop: &Bookmark) -> bool {
        if (self.object as i64) < 0 {
            return false;
        }
        // The place as an object and a block of it; a block of dnodes stands for its first object.
        let (object, block) = match stop.object {
            0 => (stop.blkid.saturating_mul(DNODES_PER_BLOCK), 0),
            o => (o, stop.blkid),
        };
        let end = self.end(level, blkid);
        match self.object {
            0 => end.saturating_mul(DNODES_PER_BLOCK) <= object,
            o => o < object || (o == object && stop.object != 0 && end <= block),
        }
    }
}

impl<'a, V: Visitor> Walk<'a, V> {
    pub fn new(store: &'a Arc<dyn BlockStore>, visitor: &'a mut V, objset: u64) -> Walk<'a, V> {
        Walk { store, visitor, objset, min_birth: 0, resume: None, met: Met::default(), stopped: None }
    }

    /// Walks the objset under `root`. Returns where the visitor stopped it, if it did.
    pub async fn objset(&mut self, root: BlkPtr) -> Result<Option<Bookmark>> {
        if !self.wanted(&root) {
            return Ok(None);
        }
        let at = Bookmark::root(self.objset);
        self.met.root(self.objset, Txg(root.birth()));
        let os = self.read(&root, at).await.and_then(|data| {
            ObjsetPhys::decode(&data, ByteOrder::NATIVE)
                .map_err(|e| Error::corrupt(Some(at), "", e.to_string()))
        });
        match os {
            Ok(os) => {
                self.dnode(0, &os.meta_dnode, &mut HashMap::new()).await?;
                for (id, dn) in
                    [(-3i64, &os.projectused_dnode), (-2, &os.groupused_dnode), (-1, &os.userused_dnode)]
                {
                    if !dn.is_free() && self.stopped.is_none() {
                        self.dnode(id as u64, dn, &mut HashMap::new()).await?;
                    }
                }
            }
            Err(e) => self.visitor.unreadable(&root, at, e)?,
        }
        if self.stopped.is_none() {
            self.visitor.visit(&root, at);
        }
        Ok(self.stopped)
    }

    fn wanted(&self, bp: &BlkPtr) -> bool {
        !bp.is_hole() && !bp.is_redacted() && bp.birth() > self.min_birth
    }

    fn skip(&self, shape: Shape, level: u8, blkid: u64) -> bool {
        self.resume.is_some_and(|r| shape.completed(level, blkid, &r))
    }

    fn read(&self, bp: &BlkPtr, at: Bookmark) -> BoxFuture<'static, Result<Bytes>> {
        let (store, bp) = (self.store.clone(), *bp);
        Box::pin(async move {
            at.check_level(&bp)?;
            match store.cached(&bp, at.objset) {
                Some(data) => Ok(data),
                None => match store.read_tree(bp, at, Priority::AsyncRead).await {
                    // What is read ahead of others is not looked after: that devices are away.
                    Err(Error::Corrupt(_)) => store.read_tree(bp, at, Priority::SyncRead).await,
                    done => done,
                },
            }
        })
    }

    fn at(&self, shape: Shape, level: u8, blkid: u64) -> Bookmark {
        Bookmark { objset: self.objset, object: shape.object, level: i64::from(level), blkid }
    }

    /// Whether to stop at this level-0 block. Behind the place of the last stop a new one is
    /// possible.
    fn stops(&mut self, shape: Shape, blkid: u64) -> bool {
        if self.stopped.is_none() && (shape.object as i64) >= 0 && self.visitor.stop() {
            self.stopped = Some(self.at(shape, 0, blkid));
        }
        self.stopped.is_some()
    }

    /// An object's blocks; those at the top of its tree may have been read already.
    async fn dnode(
        &mut self,
        object: u64,
        dn: &DnodePhys,
        read: &mut HashMap<(u64, u64), Result<Bytes>>,
    ) -> Result<()> {
        let shape = Shape::of(object, dn);
        let level = dn.nlevels.saturating_sub(1);
        for (i, bp) in dn.blkptr.iter().enumerate() {
            let blkid = i as u64;
            if self.stopped.is_some() {
                return Ok(());
            }
            if !self.wanted(bp) || self.skip(shape, level, blkid) {
                continue;
            }
            if level == 0 && !shape.dnodes {
                self.leaf(shape, bp, blkid);
            } else if let Err(e) = self.met.enter(bp, self.at(shape, level, blkid)) {
                self.visitor.unreadable(bp, self.at(shape, level, blkid), e)?;
            } else {
                let data = match read.remove(&(object, blkid)) {
                    Some(data) => data,
                    None => self.read(bp, self.at(shape, level, blkid)).await,
                };
                self.subtree(shape, level, blkid, *bp, data).await?;
            }
        }
        if let Some(bp) = dn.spill.filter(|bp| self.stopped.is_none() && self.wanted(bp)) {
            let at = Bookmark { blkid: Bookmark::SPILL_BLKID, ..self.at(shape, 0, 0) };
            self.visitor.visit(&bp, at);
        }
        Ok(())
    }

    fn leaf(&mut self, shape: Shape, bp: &BlkPtr, blkid: u64) {
        if !self.stops(shape, blkid) {
            let at = self.at(shape, 0, blkid);
            self.visitor.visit(bp, at);
        }
    }

    /// A block with pointers, which was read, and all below it.
    fn subtree(
        &mut self,
        shape: Shape,
        level: u8,
        blkid: u64,
        bp: BlkPtr,
        data: Result<Bytes>,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let at = self.at(shape, level, blkid);
            match data {
                Err(e) => self.visitor.unreadable(&bp, at, e)?,
                Ok(data) if level > 0 => {
                    self.children(shape, level - 1, blkid << shape.epbs.min(63), &data).await?
                }
                Ok(data) => {
                    if self.stops(shape, blkid) {
                        return Ok(());
                    }
                    self.objects(at, &bp, &data).await?;
                }
            }
            if self.stopped.is_none() {
                self.visitor.visit(&bp, at);
            }
            Ok(())
        })
    }

    async fn children(&mut self, shape: Shape, level: u8, first: u64, data: &[u8]) -> Result<()> {
        let below = data
            .chunks_exact(BLKPTR_SIZE)
            .zip(first..)
            .filter_map(|(raw, id)| Some((id, BlkPtr::decode(raw, ByteOrder::NATIVE).ok()?)));
        if level == 0 && !shape.dnodes {
            for (id, bp) in below {
                if self.wanted(&bp) && !self.skip(shape, 0, id) {
                    self.leaf(shape, &bp, id);
                }
                if self.stopped.is_some() {
                    break;
                }
            }
            return Ok(());
        }
        let mut wanted: Vec<_> =
            below.filter(|(id, bp)| self.wanted(bp) && !self.skip(shape, level, *id)).collect();
        let mut wrong = None;
        wanted.retain(|(id, bp)| match self.met.enter(bp, self.at(shape, level, *id)) {
            Ok(()) => true,
            Err(e) => {
                wrong.get_or_insert((*bp, *id, e));
                false
            }
        });
        if let Some((bp, id, e)) = wrong {
            // One of a block's pointers stands for all of them that are wrong.
            self.visitor.unreadable(&bp, self.at(shape, level, id), e)?;
        }
        let reads: Vec<_> = wanted
            .into_iter()
            .map(|(id, bp)| {
                let read = self.read(&bp, self.at(shape, level, id));
                async move { (id, bp, read.await) }
            })
            .collect();
        let mut reads = futures_util::stream::iter(reads).buffered(READ_AHEAD);
        while let Some((id, bp, data)) = reads.next().await {
            self.subtree(shape, level, id, bp, data).await?;
            if self.stopped.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// The objects of a block of dnodes, their topmost indirect blocks read together.
    async fn objects(&mut self, at: Bookmark, bp: &BlkPtr, data: &[u8]) -> Result<()> {
        let first = at.blkid.saturating_mul(DNODES_PER_BLOCK);
        let mut found = Vec::new();
        for (slot, dn) in dnode::dnodes(data, ByteOrder::NATIVE) {
            let id = first.saturating_add(slot as u64);
            match dn {
                Ok(dn) => found.push((id, dn)),
                Err(e) => {
                    let e = Error::corrupt(Some(at), "", format!("object {id}: {e}"));
                    self.visitor.unreadable(bp, at, e)?;
                }
            }
        }
        let mut tops = Vec::new();
        // The first object is the one whose blocks these are, and stands nowhere in them.
        found.retain(|(id, _)| *id != 0);
        for (id, dn) in &found {
            let shape = Shape::of(*id, dn);
            let level = dn.nlevels.saturating_sub(1);
            for (i, bp) in dn.blkptr.iter().enumerate().filter(|_| level > 0) {
                if self.wanted(bp) && !self.skip(shape, level, i as u64) {
                    let read = self.read(bp, self.at(shape, level, i as u64));
                    let key = (*id, i as u64);
                    tops.push(async move { (key, read.await) });
                }
            }
        }
        let mut read: HashMap<_, _> =
            futures_util::stream::iter(tops).buffer_unordered(READ_AHEAD).collect().await;
        for (id, dn) in &found {
            let shape = Shape::of(*id, dn);
            // Nothing of an object that was done before the last stop is looked at, its spill block
            // neither.
            if self.resume.is_some_and(|r| shape.object < object_of(&r)) {
                continue;
            }
            self.dnode(*id, dn, &mut read).await?;
            if self.stopped.is_some() {
                break;
            }
        }
        Ok(())
    }
}

/// The object that a stop was in, or the first of the block of dnodes that it was at.
fn object_of(stop: &Bookmark) -> u64 {
    if stop.object == 0 { stop.blkid.saturating_mul(DNODES_PER_BLOCK) } else { stop.object }
}

/// The pointer of one block, found from its objset's root; None if there is no such block.
pub(crate) async fn find(store: &Arc<dyn BlockStore>, root: BlkPtr, at: Bookmark) -> Result<Option<BlkPtr>> {
    let read = |bp: BlkPtr, b: Bookmark| async move {
        match store.cached(&bp, b.objset) {
            Some(data) => Ok(data),
            None => store.read(bp, b, Priority::SyncRead).await,
        }
    };
    if root.is_hole() || at.level == Bookmark::ROOT_LEVEL {
        return Ok(Some(root).filter(|r| !r.is_hole()));
    }
    let data = read(root, Bookmark::root(at.objset)).await?;
    let os = ObjsetPhys::decode(&data, ByteOrder::NATIVE)
        .map_err(|e| Error::corrupt(Some(Bookmark::root(at.objset)), "", e.to_string()))?;
    let special = [(-3i64, &os.projectused_dnode), (-2, &os.groupused_dnode), (-1, &os.userused_dnode)];
    let dn = match special.into_iter().find(|(id, _)| *id as u64 == at.object) {
        Some((_, dn)) => dn.clone(),
        None if at.object == 0 => os.meta_dnode,
        None => {
            let blkid = at.object / DNODES_PER_BLOCK;
            let Some(bp) =
                find_in(&read, &os.meta_dnode, Bookmark { object: 0, level: 0, blkid, ..at }).await?
            else {
                return Ok(None);
            };
            let block = read(bp, Bookmark { object: 0, level: 0, blkid, ..at }).await?;
            let slot = (at.object % DNODES_PER_BLOCK) as usize;
            let found = dnode::dnodes(&block, ByteOrder::NATIVE).find(|(s, _)| *s == slot);
            match found {
                Some((_, Ok(dn))) => dn,
                _ => return Ok(None),
            }
        }
    };
    if at.blkid == Bookmark::SPILL_BLKID {
        return Ok(dn.spill);
    }
    find_in(&read, &dn, at).await
}

async fn find_in<F, R>(read: &F, dn: &DnodePhys, at: Bookmark) -> Result<Option<BlkPtr>>
where
    F: Fn(BlkPtr, Bookmark) -> R,
    R: Future<Output = Result<Bytes>>,
{
    let epbs = u32::from(dn.indblkshift).saturating_sub(7);
    let up = |level: i64| {
        let shift = (level - at.level).max(0) as u32 * epbs;
        at.blkid.checked_shr(shift).unwrap_or(0)
    };
    let mut level = i64::from(dn.nlevels) - 1;
    if at.level > level {
        return Ok(None);
    }
    let mut bp = usize::try_from(up(level)).ok().and_then(|i| dn.blkptr.get(i)).copied();
    while let Some(b) = bp.filter(|b| !b.is_hole()) {
        if level == at.level {
            return Ok(Some(b));
        }
        let block = read(b, Bookmark { level, blkid: up(level), ..at }).await?;
        level -= 1;
        let i = up(level) & ((1 << epbs.min(63)) - 1);
        bp = BlkPtr::at(&block, i as usize, ByteOrder::NATIVE).ok();
    }
    Ok(None)
}
