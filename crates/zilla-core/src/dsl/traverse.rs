//! Walking the tree of blocks under an objset's root, children before parents, from any place on.
//!
//! The order is OpenZFS's when it frees a destroyed dataset: the objects of each dnode block, then
//! the block, up to the meta-dnode's top; then the accounting objects; then the root. A place in it
//! is a bookmark, so that either program can go on where the other one stopped.
//!
//! Who frees what was destroyed cannot wait for ever for blocks that are damaged: below these the
//! walk leaves out what nobody knows ([`Lenience`]). A block with pointers that comes up at a
//! second place is left out there at once ([`Met`]).

use crate::error::{Error, Result};
use crate::types::{Bookmark, Txg};
use crate::zio::{BlockStore, Met, Priority};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::blkptr::{BLKPTR_SIZE, BlkPtr};
use zilla_ondisk::dnode::{self, DNODES_PER_BLOCK, DnodePhys};
use zilla_ondisk::object_type::DMU_OT_DNODE;
use zilla_ondisk::objset::ObjsetPhys;
use zilla_ondisk::zbookmark::ZbookmarkPhys;

/// Blocks read ahead of the walk.
const READ_AHEAD: usize = 16;

/// The next block to be visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    object: u64,
    level: i64,
    blkid: u64,
}

impl Position {
    pub fn from_phys(zb: &ZbookmarkPhys) -> Option<Position> {
        (!zb.is_zero()).then(|| Position { object: zb.object, level: zb.level(), blkid: zb.blkid })
    }

    pub fn to_phys(self) -> ZbookmarkPhys {
        ZbookmarkPhys::new(u64::MAX, self.object, self.level, self.blkid)
    }

    /// First level-0 block behind the block, `epbs` being log2 of pointers a block.
    fn end(&self, epbs: u32) -> u64 {
        if self.blkid == Bookmark::SPILL_BLKID || self.level < 0 {
            return u64::MAX;
        }
        let shift = epbs.saturating_mul(u32::try_from(self.level).unwrap_or(u32::MAX));
        let next = self.blkid.saturating_add(1);
        if shift > next.leading_zeros() { u64::MAX } else { next << shift }
    }

    /// Whether this block's turn is before that of `other`.
    fn before(&self, other: &Position, epbs: u32) -> bool {
        // Accounting objects have negative numbers and come after all others, the root after them.
        let rank = |p: &Position| {
            if p.level == Bookmark::ROOT_LEVEL { (2, 0) } else { (u8::from((p.object as i64) < 0), p.object) }
        };
        match (rank(self), rank(other)) {
            (a, b) if a.0 != b.0 => a.0 < b.0,
            ((1 | 2, a), (_, b)) if a != b => a < b,
            _ if self.object == other.object => (self.end(epbs), self.level) < (other.end(epbs), other.level),
            _ if self.object == 0 => self.end(epbs).saturating_mul(DNODES_PER_BLOCK) <= other.object,
            _ if other.object == 0 => self.object < other.end(epbs).saturating_mul(DNODES_PER_BLOCK),
            _ => self.object < other.object,
        }
    }
}

/// What a walk does about damage.
#[derive(Default)]
pub(crate) struct Lenience {
    /// Blocks that were come to in this tree, in this walk and in those that it goes on from.
    pub met: Met,
    /// Whether what lies below a block that cannot be read is left out; else the walk ends there.
    pub leave_out: bool,
    /// Why something was left out, if it was.
    pub left_out: Option<Error>,
}

struct Walk<'a> {
    store: &'a Arc<dyn BlockStore>,
    lenience: &'a mut Lenience,
    min_birth: u64,
    from: Option<Position>,
    max: usize,
    out: Vec<BlkPtr>,
    stopped: Option<Position>,
}

/// The pointers of up to `max` blocks born after `min_birth` under `root`, the root's included, and
/// where to go on.
pub(crate) async fn collect(
    store: &Arc<dyn BlockStore>,
    root: BlkPtr,
    min_birth: u64,
    from: Option<Position>,
    max: usize,
) -> Result<(Vec<BlkPtr>, Option<Position>)> {
    let mut lenience = Lenience::default();
    let found = collect_with(store, root, min_birth, from, max, &mut lenience).await?;
    lenience.left_out.map_or(Ok(found), Err)
}

/// The same, where damage may be left out.
pub(crate) async fn collect_with(
    store: &Arc<dyn BlockStore>,
    root: BlkPtr,
    min_birth: u64,
    from: Option<Position>,
    max: usize,
    lenience: &mut Lenience,
) -> Result<(Vec<BlkPtr>, Option<Position>)> {
    lenience.met.root(0, Txg(root.birth()));
    let mut w = Walk { store, lenience, min_birth, from, max, out: Vec::new(), stopped: None };
    if !w.wanted(&root) {
        return Ok((Vec::new(), None));
    }
    let at = Position { object: 0, level: Bookmark::ROOT_LEVEL, blkid: 0 };
    let os = w.read(&root, at).await.and_then(|data| {
        ObjsetPhys::decode(&data, ByteOrder::NATIVE)
            .map_err(|e| Error::corrupt(Some(Bookmark::root(0)), "", e.to_string()))
    });
    if let Some(os) = w.or_left_out(os)? {
        w.dnode(0, &os.meta_dnode, os.meta_dnode.otype == DMU_OT_DNODE).await?;
        for (id, dn) in [(-3i64, &os.projectused_dnode), (-2, &os.groupused_dnode), (-1, &os.userused_dnode)]
        {
            if !dn.is_free() {
                w.dnode(id as u64, dn, false).await?;
            }
        }
    }
    w.visit(root, at, 0);
    Ok((w.out, w.stopped))
}

impl Walk<'_> {
    fn wanted(&self, bp: &BlkPtr) -> bool {
        !bp.is_hole() && !bp.is_redacted() && bp.birth() > self.min_birth
    }

    async fn read(&self, bp: &BlkPtr, at: Position) -> Result<Bytes> {
        let b = Bookmark { objset: 0, object: at.object, level: at.level, blkid: at.blkid };
        b.check_level(bp)?;
        match self.store.cached(bp, b.objset) {
            Some(data) => Ok(data),
            None => self.store.read_tree(*bp, b, Priority::AsyncRead).await,
        }
    }

    /// What was read; None where it is damaged and may be left out.
    fn or_left_out<T>(&mut self, read: Result<T>) -> Result<Option<T>> {
        match read {
            Ok(v) => Ok(Some(v)),
            Err(e) if self.lenience.leave_out => {
                self.lenience.left_out.get_or_insert(e);
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// A block's turn, after all below it.
    fn visit(&mut self, bp: BlkPtr, at: Position, epbs: u32) {
        if self.stopped.is_some() || self.from.is_some_and(|f| at.before(&f, epbs)) {
            return;
        }
        if self.out.len() >= self.max {
            self.stopped = Some(at);
            return;
        }
        self.out.push(bp);
    }

    /// Only the meta-dnode's blocks hold dnodes (`of_dnodes`), whatever type an object in them
    /// claims to have: no walk is deeper than one of these and one object.
    fn dnode<'b>(&'b mut self, object: u64, dn: &'b DnodePhys, of_dnodes: bool) -> BoxFuture<'b, Result<()>> {
        Box::pin(async move {
            let epbs = u32::from(dn.indblkshift).saturating_sub(7);
            let level = i64::from(dn.nlevels) - 1;
            for (i, bp) in dn.blkptr.iter().enumerate() {
                self.block(*bp, Position { object, level, blkid: i as u64 }, epbs, of_dnodes).await?;
            }
            if let Some(bp) = dn.spill.filter(|bp| self.wanted(bp)) {
                self.visit(bp, Position { object, level: 0, blkid: Bookmark::SPILL_BLKID }, epbs);
            }
            Ok(())
        })
    }

    fn block<'b>(
        &'b mut self,
        bp: BlkPtr,
        at: Position,
        epbs: u32,
        of_dnodes: bool,
    ) -> BoxFuture<'b, Result<()>> {
        Box::pin(async move {
            if self.stopped.is_some() || !self.wanted(&bp) || self.from.is_some_and(|f| at.before(&f, epbs)) {
                return Ok(());
            }
            if at.level > 0 || of_dnodes {
                let place = Bookmark { objset: 0, object: at.object, level: at.level, blkid: at.blkid };
                if let Err(e) = self.lenience.met.enter(&bp, place) {
                    // It is freed where it was met first.
                    self.lenience.left_out.get_or_insert(e);
                    return Ok(());
                }
            }
            if at.level > 0 {
                let data = self.read(&bp, at).await;
                let data = self.or_left_out(data)?.unwrap_or_default();
                let first = at.blkid << epbs;
                let below: Vec<(u64, BlkPtr)> = data
                    .chunks_exact(BLKPTR_SIZE)
                    .zip(first..)
                    .filter_map(|(raw, id)| Some((id, BlkPtr::decode(raw, ByteOrder::NATIVE).ok()?)))
                    .filter(|(_, bp)| self.wanted(bp))
                    .collect();
                let child = |id| Position { level: at.level - 1, blkid: id, ..at };
                if at.level > 1 || of_dnodes {
                    self.read_ahead(&below, at.object, at.level - 1).await;
                }
                for (id, bp) in below {
                    self.block(bp, child(id), epbs, of_dnodes).await?;
                }
            } else if of_dnodes {
                let data = self.read(&bp, at).await;
                let data = self.or_left_out(data)?.unwrap_or_default();
                for (slot, dn) in dnode::dnodes(&data, ByteOrder::NATIVE) {
                    let id = at.blkid.saturating_mul(DNODES_PER_BLOCK).saturating_add(slot as u64);
                    let b = Bookmark { objset: 0, object: 0, level: 0, blkid: at.blkid };
                    let dn = dn.map_err(|e| Error::corrupt(Some(b), "", format!("object {id}: {e}")));
                    let Some(dn) = self.or_left_out(dn)? else { continue };
                    let whole = Position { object: id, level: 0, blkid: Bookmark::SPILL_BLKID };
                    if self.from.is_none_or(|f| f.object == id || !whole.before(&f, epbs)) {
                        self.dnode(id, &dn, false).await?;
                    }
                }
            }
            self.visit(bp, at, epbs);
            Ok(())
        })
    }

    /// Brings some blocks into the cache together; errors show when the walk gets there.
    async fn read_ahead(&self, below: &[(u64, BlkPtr)], object: u64, level: i64) {
        for some in below.chunks(READ_AHEAD).take(4) {
            let mut reads: Vec<BoxFuture<'_, Result<Bytes>>> = Vec::new();
            for (blkid, bp) in some {
                reads.push(Box::pin(self.read(bp, Position { object, level, blkid: *blkid })));
            }
            futures_util::future::join_all(reads).await;
        }
    }
}
