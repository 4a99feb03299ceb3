//! Checking a whole pool's space: every byte that something refers to is allocated, once, and
//! nothing else is.
//!
//! This is what `zdb -b` does. It looks at the pool as an import would find it, from an uberblock's
//! root, with nothing from memory: references from the MOS, from every dataset (each block in the
//! first one that has it), from the lists of what is still to be freed; against the space maps and
//! their logs. Blocks of intent logs may be allocated or not.

use super::datasets::{all_dirs, dataset};
use super::traverse::{Visitor, Walk};
use crate::dmu::Objset;
use crate::dsl::DslPool;
use crate::dsl::bpobj::Bpobj;
use crate::error::{Error, Result};
use crate::metaslab::{Metaslabs, RangeTree};
use crate::pool::PoolCtx;
use crate::types::{Bookmark, ObjectId};
use crate::vdev::VdevTree;
use crate::zap::Zap;
use crate::zio::Zio;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zilla_ondisk::blkptr::{BlkPtr, Dva};
use zilla_ondisk::bptree::{BptreeEntryPhys, BptreePhys};
use zilla_ondisk::dsl::{
    DMU_POOL_BPTREE_OBJ, DMU_POOL_DIRECTORY_OBJECT, DMU_POOL_FREE_BPOBJ, DMU_POOL_SYNC_BPOBJ,
};
use zilla_ondisk::{ByteOrder, Field, Phys};

/// More problems than this are only counted.
const MAX_PROBLEMS: usize = 1000;

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct SpaceReport {
    pub blocks: u64,
    /// Bytes that are referred to, on all vdevs.
    pub referenced: u64,
    /// Bytes that are allocated.
    pub allocated: u64,
    /// What is wrong, in words.
    pub problems: Vec<String>,
    pub problem_count: u64,
}

impl SpaceReport {
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    fn problem(&mut self, what: String) {
        self.problem_count += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(what);
        }
    }
}

struct References {
    tree: Arc<VdevTree>,
    found: SpaceReport,
    used: BTreeMap<u32, RangeTree>,
    gangs: Vec<(BlkPtr, Bookmark)>,
    /// Blocks of deduplicated data may have several owners, and cloned ones.
    shared: BTreeSet<[u64; 2]>,
    cloning: bool,
}

impl References {
    fn of(tree: Arc<VdevTree>) -> References {
        References {
            tree,
            found: SpaceReport::default(),
            used: BTreeMap::new(),
            gangs: Vec::new(),
            shared: BTreeSet::new(),
            cloning: false,
        }
    }

    fn add(&mut self, dva: &Dva, bp: &BlkPtr, at: Bookmark) {
        let several = bp.dedup() || self.cloning && !bp.is_metadata();
        if several && !self.shared.insert(dva.to_words()) {
            return;
        }
        let places = match self.tree.now_at(dva) {
            Ok(places) => places,
            Err(e) => return self.found.problem(format!("block {at}: {e}")),
        };
        for dva in places {
            let tree = self.used.entry(dva.vdev).or_default();
            match tree.add(dva.offset, dva.asize) {
                Ok(()) => self.found.referenced += dva.asize,
                Err(e) => {
                    self.found.problem(format!("block {at}, vdev {}: {e}: it has another owner", dva.vdev))
                }
            }
        }
    }

    fn refer(&mut self, bp: &BlkPtr, at: Bookmark) {
        if bp.is_hole() || bp.is_embedded() {
            return;
        }
        self.found.blocks += 1;
        if bp.is_gang() {
            self.gangs.push((*bp, at));
            return;
        }
        for dva in bp.dvas() {
            self.add(&dva, bp, at);
        }
    }
}

impl Visitor for References {
    fn visit(&mut self, bp: &BlkPtr, at: Bookmark) {
        self.refer(bp, at);
    }
    fn unreadable(&mut self, _: &BlkPtr, at: Bookmark, error: Error) -> Result<()> {
        self.found.problem(format!("block {at}: {error}"));
        Ok(())
    }
    fn stop(&mut self) -> bool {
        false
    }
}

/// Checks the pool under `root`. `ctx` and `metaslabs` were opened for this from that root,
/// read-only; `ctx`'s MOS is the root's.
pub(crate) async fn check_space(
    ctx: &Arc<PoolCtx>,
    zio: &Zio,
    metaslabs: &Metaslabs,
    vdevs: &[u32],
    root: BlkPtr,
) -> Result<SpaceReport> {
    let mos = ctx.mos();
    let cloning = ctx.features.is_active("block_cloning");
    let mut refs = References { cloning, ..References::of(zio.tree()) };
    Walk::new(&ctx.store, &mut refs, 0).objset(root).await?;
    let mut optional = References::of(zio.tree());
    for d in all_dirs(mos).await? {
        let mut id = d.head_dataset_obj;
        let first = id;
        let mut seen = BTreeSet::new();
        while id != 0 && seen.insert(id) {
            let ds = dataset(mos, id).await?;
            // The chain goes on in the origin's dir, which has it already.
            if id != first && ds.dir_obj != dataset(mos, first).await?.dir_obj {
                break;
            }
            let mut walk = Walk::new(&ctx.store, &mut refs, id);
            walk.min_birth = ds.prev_snap_txg;
            walk.objset(ds.bp).await?;
            if id == first && !ds.bp.is_hole() {
                log_blocks(ctx, id, &ds.bp, &mut optional).await?;
            }
            id = ds.prev_snap_obj;
        }
    }
    pending_frees(ctx, &mut refs).await?;
    for (bp, at) in std::mem::take(&mut refs.gangs) {
        match zio.places(&bp).await {
            Ok(places) => places.iter().for_each(|d| refs.add(d, &bp, at)),
            Err(e) => refs.found.problem(format!("block {at}: {e}")),
        }
    }
    let mut found = refs.found;
    for &v in vdevs {
        let allocated = metaslabs.allocated_ranges(v).await?;
        found.allocated += allocated.space();
        let mut used = refs.used.remove(&v).unwrap_or_default();
        for (s, e) in metaslabs.checkpointed_ranges(v).await?.iter() {
            if let Err(e) = used.add(s, e - s) {
                found.problem(format!("vdev {v}: {e}: the checkpoint has it, and somebody else"));
            }
        }
        let mut maybe = optional.used.remove(&v).unwrap_or_default();
        for (s, e) in allocated.iter() {
            for (s, e) in used.subtract(s, e) {
                for (s, e) in maybe.subtract(s, e) {
                    found.problem(format!("vdev {v}: {s:#x}..{e:#x} is allocated, but nothing refers to it"));
                }
            }
        }
        for (s, e) in used.iter() {
            found.problem(format!("vdev {v}: {s:#x}..{e:#x} is in use, but not allocated"));
        }
    }
    for v in refs.used.keys() {
        found.problem(format!("blocks are on vdev {v}, which there is not"));
    }
    Ok(found)
}

async fn log_blocks(ctx: &Arc<PoolCtx>, id: u64, root: &BlkPtr, out: &mut References) -> Result<()> {
    let os = Objset::open(id, root, ctx.store.clone(), ctx.cache.clone(), ctx.mos().props()).await?;
    for bp in crate::zil::chain(&*ctx.store, &os.phys().zil_header, id).await {
        out.refer(&bp, Bookmark { objset: id, object: 0, level: -2, blkid: 0 });
    }
    Ok(())
}

/// What nobody refers to any more, and will be freed in later txgs.
async fn pending_frees(ctx: &Arc<PoolCtx>, refs: &mut References) -> Result<()> {
    let mos = ctx.mos();
    let dsl = DslPool::open(ctx).await?;
    let directory = Zap::open(mos, DMU_POOL_DIRECTORY_OBJECT).await?;
    for name in [DMU_POOL_SYNC_BPOBJ, DMU_POOL_FREE_BPOBJ] {
        let Some(id) = directory.try_get_u64(name).await? else { continue };
        let at = Bookmark { objset: 0, object: Bpobj::open(mos, id).await?.id(), level: 0, blkid: 0 };
        for bp in dsl.bpobj_all(id).await? {
            refs.refer(&bp, at);
        }
    }
    let Some(id) = directory.try_get_u64(DMU_POOL_BPTREE_OBJ).await? else { return Ok(()) };
    let at = Bookmark::new(0, ObjectId(id), 0, 0);
    let bad = |e: zilla_ondisk::FormatError| Error::corrupt(Some(at), "", e.to_string());
    let dn = mos.hold_wait(ObjectId(id)).await?;
    let phys = BptreePhys::decode(&dn.bonus(), ByteOrder::NATIVE).map_err(bad)?;
    for i in phys.begin..phys.end {
        let mut raw = vec![0; BptreeEntryPhys::SIZE];
        dn.read_wait(i * BptreeEntryPhys::SIZE as u64, &mut raw).await?;
        let entry = BptreeEntryPhys::decode(&raw, ByteOrder::NATIVE).map_err(bad)?;
        let mut from = crate::dsl::traverse::Position::from_phys(&entry.zb);
        loop {
            let (some, next) =
                crate::dsl::traverse::collect(&ctx.store, entry.bp, entry.birth_txg, from, 1 << 16).await?;
            some.iter().for_each(|bp| refs.refer(bp, at));
            match next {
                Some(n) => from = Some(n),
                None => break,
            }
        }
    }
    Ok(())
}
