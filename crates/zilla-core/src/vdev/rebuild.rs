//! Giving devices what they lack by place alone: what is in use is copied from those that have
//! everything, or computed from parity, without knowing of blocks.
//!
//! That can be done where a stretch of space is the same stretch of every side (mirrors), and where
//! parity covers whole stripes, whosever blocks lie in them (dRAIDs). A RAID-Z's parity covers
//! single blocks, so it cannot be rebuilt this way.
//!
//! No checksum says whether what is read is right. So only devices are read that lack nothing at
//! all, for without knowing when a block was born nobody can say whether one that missed some txgs
//! has it. What none of them gives is not rebuilt, and those who lack it go on lacking it.
//!
//! Who **takes part** is marked as in a resilver (`resilver.rs`), and the end is the same too: of
//! those who took part in all of it the DTL is emptied. Only those take part that were attached for
//! it, as the configuration says. Others that lack something are resilvered afterwards: they hold
//! most of what they should, and copying without checksums would put that at risk.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::future::join_all;
use smallvec::SmallVec;
use zilla_env::IoBuf;
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;

use super::distributed::Side;
use super::draid::Draid;
use super::leaf::Leaf;
use super::node::Vdev;
use super::priority::Priority;
use super::raidz::Map;
use super::resilver::REBUILD_TXG;
use super::tree::{Layout, Top, Unit, VdevTree};

/// Bytes of data in the longest stretch of a dRAID that is rebuilt as one: the longest block.
const LONGEST: u64 = 16 << 20;

/// Devices that were to get something and did not.
pub struct Unrebuilt(pub SmallVec<[Arc<Leaf>; 2]>);

/// Those of a top-level that were attached to be rebuilt, and are not whole yet.
struct Ordered(Vec<Arc<Leaf>>);

impl Ordered {
    fn of(top: &Top) -> Ordered {
        let ordered = |v: &Arc<Vdev>| v.leaf.clone().filter(|_| v.config_u64(REBUILD_TXG).is_some());
        Ordered(top.vdev.walk().iter().filter_map(ordered).collect())
    }

    fn has(&self, leaf: &Arc<Leaf>) -> bool {
        self.0.iter().any(|l| Arc::ptr_eq(l, leaf))
    }
}

fn takes_part(leaf: &Leaf) -> bool {
    leaf.resilvering.load(Ordering::Relaxed)
}

impl<'a> Side<'a> {
    /// Whether it has everything, whenever that was born.
    fn is_whole(&self) -> bool {
        self.all().all(|l| l.dtl.is_empty())
    }

    /// Those by which it lacks something and is to get it.
    fn wants(&self) -> impl Iterator<Item = &'a Arc<Leaf>> + '_ {
        self.all().filter(|l| takes_part(l) && !l.dtl.is_empty())
    }
}

/// Sides that are to get what is read, and sides that cannot be given anything.
#[derive(Default)]
struct Targets<'a> {
    there: SmallVec<[(usize, Side<'a>); 2]>,
    away: SmallVec<[Arc<Leaf>; 2]>,
}

impl<'a> Targets<'a> {
    fn add(&mut self, col: usize, side: Side<'a>) {
        if side.wants().next().is_none() {
            return;
        }
        match side.writable() {
            true => self.there.push((col, side)),
            false => self.away.extend(side.wants().cloned()),
        }
    }

    fn is_empty(&self) -> bool {
        self.there.is_empty() && self.away.is_empty()
    }

    fn all(&self) -> Unrebuilt {
        let there = self.there.iter().flat_map(|(_, s)| s.wants().cloned());
        Unrebuilt(there.chain(self.away.iter().cloned()).collect())
    }
}

impl Top {
    /// Whether devices can be given what they lack by place alone.
    pub fn can_be_rebuilt(&self) -> bool {
        matches!(self.layout, Layout::Plain(_) | Layout::Draid { .. })
    }

    /// Where a stretch that begins at `start` ends if no more than `segment` bytes of a device are
    /// to be read for it.
    pub fn rebuild_end(&self, start: u64, end: u64, segment: u64) -> u64 {
        let rows = (segment >> self.ashift()).max(1);
        match &self.layout {
            Layout::Draid { draid, .. } => {
                let most = (LONGEST >> self.ashift()) / draid.shape.ndata.max(1);
                let most = rows.min(most.max(1)).saturating_mul(self.grain());
                end.min(start.saturating_add(most)).min(draid.group_end(start))
            }
            _ => end.min(start.saturating_add(rows << self.ashift())),
        }
    }

    /// Gives those who take part what lies between two offsets, as [`Top::rebuild_end`] cuts them:
    /// how many bytes were written. To be called while nobody else writes there.
    pub async fn rebuild(&self, start: u64, end: u64) -> Result<u64, Unrebuilt> {
        match &self.layout {
            Layout::Plain(unit) => self.rebuild_unit(unit, start, end - start).await,
            Layout::Draid { draid, .. } => self.rebuild_draid(draid, start, end - start).await,
            _ => Ok(0),
        }
    }

    async fn rebuild_unit(&self, unit: &Unit, offset: u64, len: u64) -> Result<u64, Unrebuilt> {
        let mut targets = Targets::default();
        unit.leaves.iter().for_each(|l| targets.add(0, Side::own(l)));
        if targets.is_empty() {
            return Ok(0);
        }
        let at = offset + VDEV_LABEL_START_SIZE;
        let mut sources: SmallVec<[&Arc<Leaf>; 4]> =
            unit.leaves.iter().filter(|l| l.readable() && l.dtl.is_empty()).collect();
        sources.sort_by_cached_key(|l| l.read_cost(at, Priority::Rebuild));
        for leaf in sources {
            if let Ok(data) = leaf.read_at(at, len, Priority::Rebuild).await {
                return give(targets, |_| (at, data.clone())).await;
            }
        }
        Err(targets.all())
    }

    async fn rebuild_draid(&self, draid: &Draid, offset: u64, len: u64) -> Result<u64, Unrebuilt> {
        let data = len / draid.shape.width().max(1) * draid.shape.ndata;
        let map = draid.map(offset, data, self.ashift());
        let mut targets = Targets::default();
        for (i, col) in map.cols.iter().enumerate() {
            self.sides(col.child, col.offset).into_iter().for_each(|s| targets.add(i, s));
        }
        if targets.is_empty() {
            return Ok(0);
        }
        let Some(block) = self.whole_stripes(&map).await else { return Err(targets.all()) };
        let columns = map.columns(&block);
        give(targets, |i| {
            let at = map.cols.get(i).map_or(0, |c| c.on_device());
            (at, columns.get(i).cloned().unwrap_or_default())
        })
        .await
    }

    /// The data of whole stripes, from as many columns as it takes.
    async fn whole_stripes(&self, map: &Map) -> Option<Bytes> {
        let mut cols: Vec<Option<Bytes>> = map.cols.iter().map(|_| None).collect();
        let data: SmallVec<[usize; 16]> = map.data().collect();
        let mut parity = (0..map.cols.len()).filter(|&i| map.is_parity(i));
        let mut next = data.clone();
        loop {
            let read = join_all(next.iter().map(|&i| self.read_column(map, i))).await;
            for (i, column) in next.drain(..).zip(read) {
                if let Some(place) = cols.get_mut(i) {
                    *place = column;
                }
            }
            let missing = data.iter().filter(|&&i| cols.get(i).is_none_or(Option::is_none)).count();
            let have =
                (0..cols.len()).filter(|&i| map.is_parity(i) && cols.get(i).is_some_and(Option::is_some));
            let lacking = missing.saturating_sub(have.count());
            if lacking == 0 {
                return map.assemble(&cols).map(IoBuf::into_bytes);
            }
            next.extend(parity.by_ref().take(lacking));
            if next.is_empty() {
                return None;
            }
        }
    }

    async fn read_column(&self, map: &Map, i: usize) -> Option<Bytes> {
        let col = map.cols.get(i)?;
        let at = col.on_device();
        let mut sides = self.sides(col.child, col.offset);
        sides.retain(|s| s.readable() && s.is_whole());
        sides.sort_by_cached_key(|s| s.leaf.read_cost(at, Priority::Rebuild));
        for side in sides {
            if let Ok(data) = side.leaf.read_at(at, col.size, Priority::Rebuild).await {
                return Some(data);
            }
        }
        None
    }
}

/// Writes to each what is meant for it: where, and which bytes.
async fn give(targets: Targets<'_>, what: impl Fn(usize) -> (u64, Bytes)) -> Result<u64, Unrebuilt> {
    let writes = targets.there.iter().map(async |(i, side)| {
        let (at, data) = what(*i);
        let len = data.len() as u64;
        side.leaf.write_at(at, data, Priority::Rebuild).await.map(|()| len)
    });
    let (mut bytes, mut failed) = (0, targets.away);
    for ((_, side), written) in targets.there.iter().zip(join_all(writes).await) {
        match written {
            Ok(len) => {
                bytes += len;
                for leaf in side.wants() {
                    leaf.rebuild_processed.fetch_add(len, Ordering::Relaxed);
                }
            }
            Err(_) => failed.extend(side.wants().cloned()),
        }
    }
    if failed.is_empty() { Ok(bytes) } else { Err(Unrebuilt(failed)) }
}

impl Unrebuilt {
    /// They are not whole when the rebuild ends.
    pub fn note(&self) {
        self.0.iter().for_each(|l| l.refused.store(true, Ordering::Relaxed));
    }
}

impl VdevTree {
    /// A rebuild of everything on a top-level begins: what it lacks up to `max_txg` is given to who
    /// was attached for it.
    pub fn begin_rebuild(&self, top: &Top, max_txg: u64) {
        let ordered = Ordered::of(top);
        for leaf in top.leaves() {
            let takes_part = leaf.is_behind() && ordered.has(leaf);
            leaf.resilvering.store(takes_part, Ordering::Relaxed);
            leaf.refused.store(false, Ordering::Relaxed);
            leaf.rebuild_processed.store(0, Ordering::Relaxed);
            if takes_part {
                // What it may have missed of later txgs lies where it will be copied from.
                leaf.dtl.remove(max_txg + 1, u64::MAX);
            }
            if !takes_part && (!leaf.writable() || !leaf.dtl.is_empty()) {
                leaf.dtl.add(max_txg + 1, max_txg + 2);
            }
        }
    }

    /// One that was under way when the pool was last open goes on. If it met with `errors`, nobody
    /// knows any more who did not get something.
    pub fn resume_rebuild(&self, top: &Top, max_txg: u64, errors: bool) {
        let ordered = Ordered::of(top);
        for leaf in top.leaves().filter(|l| l.is_behind() && ordered.has(l)) {
            let last = leaf.dtl.bounds().map_or(0, |(_, last)| last);
            leaf.resilvering.store(last <= max_txg, Ordering::Relaxed);
            leaf.refused.store(errors, Ordering::Relaxed);
        }
    }

    /// It is over. Whether the configuration changed.
    pub async fn end_rebuild(&self, top: &Top, complete: bool, max_txg: u64) -> bool {
        self.end_below(&top.vdev, complete, max_txg).await
    }
}

impl Top {
    /// Whether there still is somebody whom a rebuild gives something.
    pub fn is_rebuilt(&self) -> bool {
        self.leaves().any(|l| takes_part(l) && l.is_behind())
    }

    /// What is in use somewhere is not known: nobody who takes part is whole when it ends.
    pub fn not_rebuilt(&self) {
        self.leaves().filter(|l| takes_part(l)).for_each(|l| l.refused.store(true, Ordering::Relaxed));
    }

    /// Whether somebody who was attached for a rebuild lacks what one up to `max_txg` does not
    /// give.
    pub fn lacks_later(&self, max_txg: u64) -> bool {
        let ordered = Ordered::of(self);
        let mut behind = self.leaves().filter(|l| l.is_behind() && ordered.has(l));
        behind.any(|l| l.dtl.bounds().is_some_and(|(_, last)| last > max_txg))
    }
}
