//! Every block of a pool counted once, as it is found, against the space maps.
//!
//! A dataset is walked from the snapshot before it on: what is older was counted there. So a block
//! that snapshots and clones share comes up once, and each claims its place in what the space maps
//! call allocated; a place that is not there to be claimed is one that is free, or has two owners,
//! and what is left over at the end nobody has. Blocks of deduplication and block cloning may claim
//! theirs again. The walk stops every so often, so that what it found can be read (at most
//! [`BATCH`] blocks are held at a time); what is kept to the end is the space maps' ranges.

use super::datasets;
use crate::dsl::DslDataset;
use crate::error::{Error, Result};
use crate::metaslab::RangeTree;
use crate::scan::traverse::{Visitor, Walk};
use crate::spa::Spa;
use crate::types::Bookmark;
use crate::zio::{BlockStore, Met};
use futures_util::StreamExt;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use zilla_ondisk::blkptr::{BlkPtr, Dva};

/// Blocks found before they are read and the walk goes on.
const BATCH: usize = 1 << 14;
/// Blocks being read at a time.
const READS: usize = 32;

/// Why a block is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// An object's, or an intent log's.
    Referenced,
    /// Waiting to be freed.
    DeferredFree,
}

/// What may have one place several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    Dedup,
    Clone,
}

/// Which blocks are read, with all copies and redundancy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    #[default]
    Nothing,
    Metadata,
    Everything,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct CensusOpts {
    pub verify: Verify,
    /// Do not look at the space maps.
    pub no_leaks: bool,
}

/// Who counts.
pub trait Observer: Send {
    /// A block that is neither hole nor redacted, embedded ones included.
    fn block(&mut self, bp: &BlkPtr, at: &Bookmark, what: Use);
    /// Its space was counted with another one's.
    fn shared(&mut self, bp: &BlkPtr, how: Sharing);
    /// Its place is not allocated, or somebody else's.
    fn not_claimed(&mut self, bp: &BlkPtr, why: &str);
    /// It cannot be read from any copy.
    fn unreadable(&mut self, bp: &BlkPtr, at: &Bookmark, error: &Error);
    /// Copies or columns of it are bad, but not too many.
    fn damaged(&mut self, bp: &BlkPtr, at: &Bookmark, bad: usize);
    /// More was done.
    fn progress(&mut self);
}

/// A stretch that is allocated, and nobody has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leak {
    pub vdev: u32,
    pub offset: u64,
    pub size: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Census {
    pub leaks: Vec<Leak>,
    /// Bytes allocated as space maps and logs have it.
    pub allocated: u64,
    /// Bytes of what was found there, each counted once.
    pub found: u64,
    /// Something was not claimed or not read.
    pub errors: bool,
}

/// The places not claimed yet.
struct Space {
    left: BTreeMap<u32, RangeTree>,
    deduplicated: HashSet<Place>,
    /// Cloned blocks, and how many references to them are still to be found.
    cloned: HashMap<Place, (BlkPtr, u64)>,
}

/// Where a block's first copy is: vdev, offset, length.
type Place = (u32, u64, u64);

impl Space {
    fn allocated(&self) -> u64 {
        self.left.values().map(RangeTree::space).sum()
    }

    fn claim(&mut self, d: &Dva) -> Result<(), String> {
        let Some(tree) = self.left.get_mut(&d.vdev) else {
            return Err(format!("vdev {} is not there", d.vdev));
        };
        tree.remove(d.offset, d.asize).map_err(|e| e.to_string())
    }
}

struct Collect<'a> {
    observer: &'a mut dyn Observer,
    found: Vec<(BlkPtr, Bookmark)>,
    stopped: bool,
    errors: bool,
}

impl Visitor for Collect<'_> {
    fn visit(&mut self, bp: &BlkPtr, at: Bookmark) {
        self.found.push((*bp, at));
    }

    fn unreadable(&mut self, bp: &BlkPtr, at: Bookmark, error: Error) -> Result<()> {
        self.errors = true;
        self.observer.unreadable(bp, &at, &error);
        Ok(())
    }

    fn stop(&mut self) -> bool {
        self.stopped |= self.found.len() >= BATCH;
        self.stopped
    }
}

struct Counter<'a> {
    spa: &'a Arc<Spa>,
    opts: CensusOpts,
    observer: &'a mut dyn Observer,
    space: Option<Space>,
    census: Census,
}

/// Counts all blocks of a pool that nobody changes.
pub async fn census(spa: &Arc<Spa>, opts: CensusOpts, observer: &mut dyn Observer) -> Result<Census> {
    let space = if opts.no_leaks { None } else { Some(load_space(spa).await?) };
    let allocated = space.as_ref().map_or(0, Space::allocated);
    let census = Census { allocated, ..Census::default() };
    let mut c = Counter { spa, opts, observer, space, census };
    let nowhere = Bookmark::default();
    let mut waiting = spa.dsl.waiting_blocks().await?;
    if let Some(list) = spa.deferred_list() {
        waiting.extend(spa.dsl.bpobj_all(list).await?);
    }
    for bp in waiting.iter().filter(|b| !b.is_hole() && !b.is_embedded()) {
        c.observer.block(bp, &nowhere, Use::DeferredFree);
        c.claim(bp, &nowhere).await;
    }
    c.tree(spa.uberblock().rootbp, 0, 0).await?;
    for (_, sets) in datasets::list(spa).await? {
        for ds in &sets {
            c.dataset(ds).await?;
        }
    }
    for (bp, left) in c.space.iter().flat_map(|s| s.cloned.values()).filter(|(_, left)| *left > 0) {
        c.census.errors = true;
        c.observer.not_claimed(bp, &format!("{left} references of clones to it were not found"));
    }
    let mut census = c.census;
    for (vdev, left) in c.space.iter().flat_map(|s| &s.left) {
        census.leaks.extend(left.iter().map(|(s, e)| Leak { vdev: *vdev, offset: s, size: e - s }));
    }
    let leaked: u64 = census.leaks.iter().map(|l| l.size).sum();
    census.found = census.allocated - leaked;
    Ok(census)
}

async fn load_space(spa: &Arc<Spa>) -> Result<Space> {
    let mut left = BTreeMap::new();
    for top in spa.tree().tops.iter().filter(|t| t.vdev.is_concrete()) {
        left.insert(top.id, spa.metaslabs.allocated_ranges(top.id).await?);
    }
    Ok(Space { left, deduplicated: HashSet::new(), cloned: HashMap::new() })
}

impl Counter<'_> {
    async fn dataset(&mut self, ds: &Arc<DslDataset>) -> Result<()> {
        let p = ds.phys();
        if p.bp.is_hole() {
            return Ok(());
        }
        self.tree(p.bp, ds.id(), p.prev_snap_txg).await?;
        if ds.is_snapshot() {
            return Ok(());
        }
        // Where the objset cannot be opened, the walk has said so already.
        let Ok(os) = self.spa.dsl.objset(ds).await else { return Ok(()) };
        for (bp, at) in super::blocks::log(self.spa, &os.phys().zil_header, ds.id()).await {
            self.observer.block(&bp, &at, Use::Referenced);
            self.claim(&bp, &at).await;
        }
        Ok(())
    }

    async fn tree(&mut self, root: BlkPtr, objset: u64, min_birth: u64) -> Result<()> {
        let store: &Arc<dyn BlockStore> = &self.spa.ctx.store;
        let (mut resume, mut met) = (None, Met::default());
        loop {
            let mut collect =
                Collect { observer: &mut *self.observer, found: Vec::new(), stopped: false, errors: false };
            let mut walk = Walk::new(store, &mut collect, objset);
            (walk.min_birth, walk.resume, walk.met) = (min_birth, resume, met);
            resume = walk.objset(root).await?;
            met = walk.met;
            let (found, errors) = (collect.found, collect.errors);
            self.census.errors |= errors;
            for (bp, at) in &found {
                self.observer.block(bp, at, Use::Referenced);
                self.claim(bp, at).await;
            }
            self.read(&found).await;
            self.observer.progress();
            if resume.is_none() {
                return Ok(());
            }
        }
    }

    async fn claim(&mut self, bp: &BlkPtr, at: &Bookmark) {
        let Some(space) = self.space.as_mut().filter(|_| !bp.is_embedded()) else { return };
        let first = bp.dva(0);
        let key = (first.vdev, first.offset, first.asize);
        if bp.dedup() && !space.deduplicated.insert(key) {
            return self.observer.shared(bp, Sharing::Dedup);
        }
        if let Some((_, left)) = space.cloned.get_mut(&key)
            && let Some(less) = left.checked_sub(1)
        {
            *left = less;
            return self.observer.shared(bp, Sharing::Clone);
        }
        match self.spa.brt.more_references(bp).await {
            Ok(0) => {}
            // One that is found too often is claimed again, in vain.
            Ok(more) => drop(space.cloned.entry(key).or_insert((*bp, more))),
            Err(e) => {
                self.census.errors = true;
                self.observer.not_claimed(bp, &e.to_string());
            }
        }
        let whole = match self.spa.ddt.whole(bp).await {
            Ok(whole) => whole,
            Err(e) => {
                self.census.errors = true;
                self.observer.not_claimed(bp, &e.to_string());
                *bp
            }
        };
        let why = match self.spa.zio.extents(&whole, *at).await {
            Ok(extents) => extents.iter().find_map(|d| space.claim(d).err()),
            Err(e) => Some(e.to_string()),
        };
        if let Some(why) = why {
            self.census.errors = true;
            self.observer.not_claimed(bp, &why);
        }
    }

    /// Reads what is to be read of some blocks.
    async fn read(&mut self, found: &[(BlkPtr, Bookmark)]) {
        let wanted = |bp: &BlkPtr| match self.opts.verify {
            Verify::Nothing => false,
            Verify::Metadata => bp.is_metadata(),
            Verify::Everything => true,
        };
        let todo = found.iter().filter(|(bp, _)| !bp.is_embedded() && wanted(bp)).copied();
        let todo: Vec<_> = todo.collect();
        let zio = &self.spa.zio;
        let reads = todo.into_iter().map(|(bp, at)| async move { (bp, at, zio.scrub(bp, at).await) });
        let mut reads = futures_util::stream::iter(reads).buffer_unordered(READS);
        while let Some((bp, at, outcome)) = reads.next().await {
            match outcome {
                Ok(s) if s.bad > 0 => self.observer.damaged(&bp, &at, s.bad),
                Ok(_) => {}
                Err(e) => {
                    self.census.errors = true;
                    self.observer.unreadable(&bp, &at, &e);
                }
            }
            self.observer.progress();
        }
    }
}
