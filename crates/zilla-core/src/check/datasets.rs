//! Datasets and dirs: what their counters and deadlists say against the blocks they are about.

use super::Report;
use super::blocks::Blocks;
use crate::dsl::{DslDataset, DslDir};
use crate::error::{Error, Result};
use crate::spa::Spa;
use crate::types::{Bookmark, ObjectId};
use crate::zap::Zap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dsl::{DD_USED_CHILD, DD_USED_CHILD_RSRV, DD_USED_HEAD, DD_USED_SNAP};

/// A dir with all its datasets, the head last.
pub(super) type DirSets = (Arc<DslDir>, Vec<Arc<DslDataset>>);

/// All dirs of the pool, its own among them, parents before children.
pub(super) async fn list(spa: &Arc<Spa>) -> Result<Vec<DirSets>> {
    let dsl = &spa.dsl;
    let (mut out, mut seen) = (Vec::new(), BTreeSet::new());
    let mut todo = vec![dsl.root_dir()];
    while let Some(dir) = todo.pop() {
        if !seen.insert(dir.id()) {
            let at = Bookmark::new(0, ObjectId(dir.id()), 0, 0);
            return Err(Error::corrupt(Some(at), "", format!("dir {} is a child twice", dir.id())));
        }
        let children = Zap::open(dsl.mos(), dir.phys().child_dir_zapobj).await?.entries().await?;
        for id in children.iter().filter_map(|e| e.value.as_u64()) {
            todo.push(dsl.dir(id).await?);
        }
        let mut all = Vec::new();
        if dir.phys().head_dataset_obj != 0 {
            let head = dsl.head(&dir).await?;
            all = dsl.snapshots(&head).await?;
            all.push(head);
        }
        out.push((dir, all));
    }
    Ok(out)
}

/// What a dataset counts: how often it has each block, by place and birth, and a block's bytes.
/// What was cloned by reference or deduplicated lies in the place of another, and counts like it.
#[derive(Default)]
struct Places(BTreeMap<(u32, u64, u64), (u64, u64)>);

fn place(bp: &BlkPtr) -> (u32, u64, u64) {
    (bp.dva(0).vdev, bp.dva(0).offset, bp.birth())
}

impl Places {
    fn new(spa: &Spa, bps: &[BlkPtr]) -> Places {
        let mut out = Places::default();
        for bp in bps {
            out.0.entry(place(bp)).or_insert((0, spa.ctx.store.dsize(bp))).0 += 1;
        }
        out
    }

    fn bytes(&self) -> u64 {
        self.0.values().map(|(n, size)| n * size).sum()
    }

    /// Takes one away; false: there is none.
    fn take(&mut self, bp: &BlkPtr) -> bool {
        let Some((n, _)) = self.0.get_mut(&place(bp)).filter(|(n, _)| *n > 0) else { return false };
        *n -= 1;
        true
    }

    /// Leaves what it has more often than another.
    fn subtract(&mut self, other: &Places) {
        for (k, (n, _)) in &mut self.0 {
            *n -= (*n).min(other.0.get(k).map_or(0, |(n, _)| *n));
        }
    }

    /// Has each as often as the one of both that has it more often.
    fn unite(&mut self, other: Places) {
        for (k, (n, size)) in other.0 {
            let mine = self.0.entry(k).or_insert((0, size));
            mine.0 = mine.0.max(n);
        }
    }
}

pub(super) async fn check(spa: &Arc<Spa>, sets: &[DirSets], all: &Blocks, report: &mut Report) -> Result<()> {
    for (dir, dss) in sets {
        check_dir(spa, dir, dss, sets, all, report);
        for ds in dss {
            check_counts(spa, ds, all, report).await?;
            check_deadlist(spa, ds, all, report).await?;
        }
    }
    Ok(())
}

fn of(all: &Blocks, id: u64) -> &[BlkPtr] {
    all.datasets.get(&id).map_or(&[], Vec::as_slice)
}

async fn check_counts(spa: &Arc<Spa>, ds: &Arc<DslDataset>, all: &Blocks, report: &mut Report) -> Result<()> {
    let p = ds.phys();
    let mut own = Places::new(spa, of(all, ds.id()));
    let name = ds.name();
    report.same(|| format!("{name}: bytes referenced"), p.referenced_bytes, own.bytes());
    if p.num_children > 1 && ds.is_snapshot() {
        return Ok(());
    }
    // The blocks only this one has: not in the snapshot before, not in the one after, not in
    // clones.
    let mut others = vec![p.prev_snap_obj, p.next_snap_obj];
    if p.next_clones_obj != 0 {
        others.extend(Zap::open(spa.dsl.mos(), p.next_clones_obj).await?.ints().await?);
    }
    for o in others.into_iter().filter(|o| *o != 0) {
        own.subtract(&Places::new(spa, of(all, o)));
    }
    report.same(|| format!("{name}: bytes of its own"), p.unique_bytes, own.bytes());
    Ok(())
}

/// The deadlist: what the snapshot before has and this one has not, each block in the list of its
/// birth.
async fn check_deadlist(
    spa: &Arc<Spa>,
    ds: &Arc<DslDataset>,
    all: &Blocks,
    report: &mut Report,
) -> Result<()> {
    let p = ds.phys();
    if p.deadlist_obj == 0 {
        return Ok(());
    }
    let name = ds.name();
    let dl = spa.dsl.deadlist_open(p.deadlist_obj).await?;
    let mut dead = Places::new(spa, of(all, p.prev_snap_obj));
    dead.subtract(&Places::new(spa, of(all, ds.id())));
    report.same(|| format!("{name}: bytes in its deadlist"), dl.space()?.used, dead.bytes());
    let lists = dl.lists();
    for (&key, &id) in &lists {
        let next = lists.range(key + 1..).next().map_or(u64::MAX, |(k, _)| *k);
        for bp in spa.dsl.bpobj_all(id).await?.iter().filter(|b| !b.is_embedded()) {
            let d = bp.dva(0);
            if bp.birth() <= key || bp.birth() > next {
                report.add(format!("{name}: {d:?} of txg {} is in the deadlist of txg {key}", bp.birth()));
            }
            if !dead.take(bp) {
                report.add(format!("{name}: {d:?} is in its deadlist, but not dead, or there twice"));
            }
        }
    }
    for ((vdev, offset, _), _) in dead.0.iter().filter(|(_, (n, _))| *n > 0) {
        report.add(format!("{name}: vdev {vdev} {offset:#x} is dead and not in its deadlist"));
    }
    Ok(())
}

/// A dir uses what its head and snapshots have that its origin had not, and what its children use.
fn check_dir(
    spa: &Arc<Spa>,
    dir: &Arc<DslDir>,
    dss: &[Arc<DslDataset>],
    sets: &[DirSets],
    all: &Blocks,
    report: &mut Report,
) {
    let (d, name) = (dir.phys(), dir.name());
    let kinds = d.used_breakdown;
    report.same(|| format!("{name}: the sum of its parts"), d.used_bytes, kinds.iter().sum());
    let children = sets.iter().filter(|(c, _)| c.parent().is_some_and(|p| p.id() == dir.id()));
    let below: u64 = children
        .map(|(c, _)| {
            let c = c.phys();
            c.used_bytes.max(c.reserved)
        })
        .sum();
    let counted = kinds[DD_USED_CHILD] + kinds[DD_USED_CHILD_RSRV];
    report.same(|| format!("{name}: used by its children"), counted, below);
    if dss.is_empty() {
        return;
    }
    let origin = dir.origin_txg.load(Ordering::Relaxed);
    let mut blocks = Places::default();
    for ds in dss {
        let newer: Vec<BlkPtr> = of(all, ds.id()).iter().filter(|b| b.birth() > origin).copied().collect();
        blocks.unite(Places::new(spa, &newer));
    }
    let own = kinds[DD_USED_HEAD] + kinds[DD_USED_SNAP];
    report.same(|| format!("{name}: used by its head and snapshots"), own, blocks.bytes());
}
