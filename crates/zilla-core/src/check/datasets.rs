//! Datasets and dirs: what their counters and deadlists say against the blocks they are about.

use super::Report;
use super::blocks::Blocks;
use crate::dsl::{DslDataset, DslDir};
use crate::error::Result;
use crate::spa::Spa;
use crate::zap::Zap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dsl::{DD_USED_CHILD, DD_USED_CHILD_RSRV, DD_USED_HEAD, DD_USED_SNAP};

/// A dir with all its datasets, the head last.
pub(super) type DirSets = (Arc<DslDir>, Vec<Arc<DslDataset>>);

/// All dirs of the pool, its own among them, parents before children.
pub(super) async fn list(spa: &Arc<Spa>) -> Result<Vec<DirSets>> {
    let dsl = &spa.dsl;
    let mut out = Vec::new();
    let mut todo = vec![dsl.root_dir()];
    while let Some(dir) = todo.pop() {
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

/// Blocks by place, with what each counts.
type Places = BTreeMap<(u32, u64), u64>;

fn places(spa: &Spa, bps: &[BlkPtr]) -> Places {
    bps.iter().map(|b| ((b.dva(0).vdev, b.dva(0).offset), spa.ctx.store.dsize(b))).collect()
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
    let mut own = places(spa, of(all, ds.id()));
    let name = ds.name();
    report.same(|| format!("{name}: bytes referenced"), p.referenced_bytes, own.values().sum());
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
        let theirs = places(spa, of(all, o));
        own.retain(|k, _| !theirs.contains_key(k));
    }
    report.same(|| format!("{name}: bytes of its own"), p.unique_bytes, own.values().sum());
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
    let mine = places(spa, of(all, ds.id()));
    let mut dead = places(spa, of(all, p.prev_snap_obj));
    dead.retain(|k, _| !mine.contains_key(k));
    report.same(|| format!("{name}: bytes in its deadlist"), dl.space()?.used, dead.values().sum());
    let lists = dl.lists();
    for (&key, &id) in &lists {
        let next = lists.range(key + 1..).next().map_or(u64::MAX, |(k, _)| *k);
        for bp in spa.dsl.bpobj_all(id).await?.iter().filter(|b| !b.is_embedded()) {
            let d = bp.dva(0);
            if bp.birth() <= key || bp.birth() > next {
                report.add(format!("{name}: {d:?} of txg {} is in the deadlist of txg {key}", bp.birth()));
            }
            if dead.remove(&(d.vdev, d.offset)).is_none() {
                report.add(format!("{name}: {d:?} is in its deadlist, but not dead, or there twice"));
            }
        }
    }
    for (vdev, offset) in dead.keys() {
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
    let mut blocks = Places::new();
    for ds in dss {
        let newer: Vec<BlkPtr> = of(all, ds.id()).iter().filter(|b| b.birth() > origin).copied().collect();
        blocks.extend(places(spa, &newer));
    }
    let own = kinds[DD_USED_HEAD] + kinds[DD_USED_SNAP];
    report.same(|| format!("{name}: used by its head and snapshots"), own, blocks.values().sum());
}
