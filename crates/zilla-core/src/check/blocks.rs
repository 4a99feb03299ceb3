//! All block pointers of a pool, with who has them.

use super::Report;
use crate::dsl::DslDataset;
use crate::error::{Error, Result};
use crate::scan::traverse::{Visitor, Walk};
use crate::spa::Spa;
use crate::types::Bookmark;
use crate::zio::BlockStore;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::object_type::DMU_OT_INTENT_LOG;
use zilla_ondisk::zil::ZilHeader;

/// Who has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    Mos,
    Dataset(u64),
    /// A list of blocks that are to be freed.
    Waiting,
    /// A dataset's intent log, which may end in a block that was never written.
    Log(u64),
}

/// Every block of the pool that takes space.
#[derive(Default)]
pub(super) struct Blocks {
    pub owned: Vec<(BlkPtr, Owner, Bookmark)>,
    /// The blocks of each dataset, by number.
    pub datasets: BTreeMap<u64, Vec<BlkPtr>>,
}

struct Collect<'a> {
    store: &'a Arc<dyn BlockStore>,
    /// Nothing can be younger.
    youngest: u64,
    found: Vec<(BlkPtr, Bookmark)>,
    /// What each object's blocks take, and the end of its contents as its block pointers tell.
    used: BTreeMap<u64, u64>,
    report: &'a mut Report,
}

impl Visitor for Collect<'_> {
    fn visit(&mut self, bp: &BlkPtr, at: Bookmark) {
        if bp.is_embedded() {
            return;
        }
        if bp.birth() > self.youngest {
            self.report.add(format!("block {at}: born in txg {}, after {}", bp.birth(), self.youngest));
        }
        *self.used.entry(at.object).or_default() += self.store.dsize(bp);
        self.found.push((*bp, at));
    }

    fn unreadable(&mut self, _: &BlkPtr, at: Bookmark, error: Error) -> Result<()> {
        self.report.add(format!("block {at} cannot be read: {error}"));
        Ok(())
    }

    fn stop(&mut self) -> bool {
        false
    }
}

async fn walk(
    spa: &Arc<Spa>,
    root: BlkPtr,
    objset: u64,
    youngest: u64,
    report: &mut Report,
) -> (Vec<(BlkPtr, Bookmark)>, BTreeMap<u64, u64>) {
    let store: &Arc<dyn BlockStore> = &spa.ctx.store;
    let (found, used) = (Vec::new(), BTreeMap::new());
    let mut collect = Collect { store, youngest, found, used, report };
    // The visitor never gives an error back, so there is none.
    let _ = Walk::new(store, &mut collect, objset).objset(root).await;
    (collect.found, collect.used)
}

/// Compares what objects' dnodes say they use with what their blocks take.
async fn check_used(
    os: &Arc<crate::dmu::Objset>,
    name: &str,
    used: &BTreeMap<u64, u64>,
    fill: u64,
    report: &mut Report,
) {
    let (mut at, mut seen, mut count) = (crate::types::ObjectId(0), BTreeSet::new(), 0);
    loop {
        let next = match crate::dmu::resident(|| os.next_object(at)).await {
            Ok(Some(id)) => id,
            Ok(None) => break,
            Err(e) => return report.add(format!("{name}: objects behind {at} cannot be listed: {e}")),
        };
        at = next;
        count += 1;
        seen.insert(at.0);
        match os.hold_wait(at).await {
            Ok(dn) => report.same(
                || format!("{name}: bytes used by object {at}"),
                dn.phys().used_bytes(),
                used.get(&at.0).copied().unwrap_or(0),
            ),
            Err(e) => report.add(format!("{name}: object {at}: {e}")),
        }
    }
    report.same(|| format!("{name}: objects in the root pointer's fill count"), fill, count);
    for object in used.keys().filter(|o| (**o as i64) > 0 && !seen.contains(o)) {
        report.add(format!("{name}: object {object} has blocks but is free"));
    }
}

pub(super) async fn walk_mos(spa: &Arc<Spa>, all: &mut Blocks, report: &mut Report) {
    let ub = spa.uberblock();
    let (found, used) = walk(spa, ub.rootbp, 0, ub.txg, report).await;
    check_used(spa.ctx.mos(), "MOS", &used, ub.rootbp.fill(), report).await;
    all.owned.extend(found.into_iter().map(|(bp, at)| (bp, Owner::Mos, at)));
}

/// What an intent log has in the space maps.
pub(super) async fn log(spa: &Spa, header: &ZilHeader, objset: u64) -> Vec<(BlkPtr, Bookmark)> {
    let synced = spa.uberblock().txg;
    let ours = |bp: &BlkPtr| match header.claim_txg {
        // What was written after the last txg is in no space map.
        0 => bp.otype() == DMU_OT_INTENT_LOG && bp.birth() <= synced,
        // So is what its records clone: each has a reference.
        _ => true,
    };
    let chain = crate::zil::chain(&*spa.ctx.store, header, objset).await;
    let at = |bp: &BlkPtr| Bookmark { objset, object: 0, level: -2, blkid: bp.cksum()[3] };
    chain.into_iter().filter(ours).map(|bp| (bp, at(&bp))).collect()
}

pub(super) async fn walk_dataset(
    spa: &Arc<Spa>,
    ds: &Arc<DslDataset>,
    all: &mut Blocks,
    report: &mut Report,
) {
    let p = ds.phys();
    if p.bp.is_hole() {
        all.datasets.insert(ds.id(), Vec::new());
        return;
    }
    let youngest = if ds.is_snapshot() { p.creation_txg } else { spa.uberblock().txg };
    let (found, used) = walk(spa, p.bp, ds.id(), youngest.max(crate::types::TXG_INITIAL.0), report).await;
    match spa.dsl.objset(ds).await {
        Ok(os) => {
            check_used(&os, &ds.name(), &used, p.bp.fill(), report).await;
            if !ds.is_snapshot() {
                let log = log(spa, &os.phys().zil_header, ds.id()).await;
                all.owned.extend(log.into_iter().map(|(bp, at)| (bp, Owner::Log(ds.id()), at)));
            }
        }
        Err(e) => report.add(format!("{}: cannot be opened: {e}", ds.name())),
    }
    all.datasets.insert(ds.id(), found.iter().map(|(bp, _)| *bp).collect());
    all.owned.extend(found.into_iter().map(|(bp, at)| (bp, Owner::Dataset(ds.id()), at)));
}

/// What is allocated only until it is freed: deferred frees, and what destroyed datasets and
/// snapshots left.
pub(super) async fn waiting(spa: &Arc<Spa>, all: &mut Blocks, report: &mut Report) -> Result<()> {
    let mut bps = spa.dsl.waiting_blocks().await?;
    let mut space = 0;
    for bp in &bps {
        space += spa.ctx.store.dsize(bp);
    }
    report.same(|| "space waiting to be freed".into(), spa.dsl.freeing().await?.used, space);
    if let Some(list) = spa.deferred_list() {
        bps.extend(spa.dsl.bpobj_all(list).await?);
    }
    let at = Bookmark::default();
    all.owned.extend(
        bps.into_iter().filter(|b| !b.is_hole() && !b.is_embedded()).map(|b| (b, Owner::Waiting, at)),
    );
    Ok(())
}

/// Reads every copy of everything.
pub(super) async fn read_all(spa: &Arc<Spa>, all: &Blocks, report: &mut Report) {
    let mut seen = BTreeSet::new();
    let written = |o: &Owner| !matches!(o, Owner::Waiting | Owner::Log(_));
    for (bp, owner, at) in all.owned.iter().filter(|(_, o, _)| written(o)) {
        let dva = bp.dva(0);
        if !seen.insert((dva.vdev, dva.offset)) {
            continue;
        }
        match spa.zio.scrub(*bp, *at).await {
            Ok(s) if s.bad == 0 => {}
            Ok(s) if s.repaired >= s.bad => report.repaired += 1,
            Ok(s) => {
                report.add(format!("block {at} of {owner:?}: {} bad copies, {} repaired", s.bad, s.repaired))
            }
            Err(e) => report.add(format!("block {at} of {owner:?}: {e}")),
        }
    }
}
