//! Block pointers against space maps: what is in use is allocated once, and nothing else is.

use super::Report;
use super::blocks::{Blocks, Owner};
use crate::error::Result;
use crate::metaslab::RangeTree;
use crate::spa::Spa;
use crate::types::Bookmark;
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;

/// A stretch of a vdev and who has it.
struct Use<'a> {
    start: u64,
    end: u64,
    birth: u64,
    bp: &'a BlkPtr,
    owner: Owner,
    at: Bookmark,
    /// References to it that the BRT has.
    more: u64,
}

impl std::fmt::Display for Use<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:#x}..{:#x} (block {} of {:?}, txg {}, written in {}, {} more references)",
            self.start,
            self.end,
            self.at,
            self.owner,
            self.birth,
            self.bp.phys_birth(),
            self.more
        )
    }
}

/// Whether two users of the same stretch may share it: the same block, in a dataset and its
/// snapshots and clones, or deduplicated, or cloned by reference. (How many references to clones
/// there are is the census's to count.)
fn may_share(a: &Use<'_>, b: &Use<'_>) -> bool {
    if (a.start, a.end) != (b.start, b.end) || a.bp.cksum() != b.bp.cksum() {
        return false;
    }
    if (a.more > 0 && b.more > 0) || (a.bp.dedup() && b.bp.dedup()) {
        return a.bp.phys_birth() == b.bp.phys_birth();
    }
    let both = matches!((a.owner, b.owner), (Owner::Dataset(x), Owner::Dataset(y)) if x != y);
    both && a.birth == b.birth
}

pub(super) async fn check(spa: &Arc<Spa>, all: &Blocks, report: &mut Report) -> Result<()> {
    let mut uses: BTreeMap<u32, Vec<Use<'_>>> = BTreeMap::new();
    for (bp, owner, at) in &all.owned {
        match spa.zio.extents(bp, *at).await {
            Ok(extents) => {
                let more = spa.brt.more_references(bp).await?;
                for d in extents {
                    let (start, end) = (d.offset, d.offset.saturating_add(d.asize));
                    let one = Use { start, end, birth: bp.birth(), bp, owner: *owner, at: *at, more };
                    uses.entry(d.vdev).or_default().push(one);
                }
            }
            Err(e) => report.add(format!("block {at} of {owner:?}: {e}")),
        }
    }
    let tree = spa.tree();
    for top in tree.tops.iter().filter(|t| t.vdev.is_concrete()) {
        let mut used = uses.remove(&top.id).unwrap_or_default();
        used.sort_by_key(|u| (u.start, u.end, u.owner));
        check_vdev(spa, top.id, &used, report).await?;
    }
    for (vdev, used) in uses {
        report.add(format!("{} blocks lie on vdev {vdev}, which is not there", used.len()));
    }
    Ok(())
}

async fn check_vdev(spa: &Arc<Spa>, vdev: u32, used: &[Use<'_>], report: &mut Report) -> Result<()> {
    let mut in_use = RangeTree::new();
    let mut last: Option<&Use<'_>> = None;
    for u in used {
        match last {
            Some(l) if u.start < l.end => {
                if !may_share(l, u) {
                    report.add(format!("vdev {vdev}: two have the same place: {l} and {u}"));
                }
                // What goes beyond the first one's end is in use all the same.
                if u.end > l.end {
                    let _ = in_use.add(l.end, u.end - l.end);
                    last = Some(u);
                }
            }
            _ => {
                let _ = in_use.add(u.start, u.end - u.start);
                last = Some(u);
            }
        }
    }
    for (start, end) in spa.metaslabs.checkpointed_ranges(vdev).await?.iter() {
        if in_use.add(start, end - start).is_err() {
            report.add(format!("vdev {vdev}: {start:#x}..{end:#x} is the checkpoint's, and in use"));
        }
    }
    let allocated = spa.metaslabs.allocated_ranges(vdev).await?;
    report.allocated += allocated.space();
    for (start, end) in difference(&allocated, &in_use) {
        report.add(format!("vdev {vdev}: {start:#x}..{end:#x} is allocated, and nobody has it"));
    }
    for (start, end) in difference(&in_use, &allocated) {
        let who = used.iter().find(|u| u.start < end && start < u.end);
        let who = who.map(ToString::to_string).unwrap_or_default();
        report.add(format!("vdev {vdev}: {start:#x}..{end:#x} is in use, and free: {who}"));
    }
    let stat = spa.metaslabs.vdev_stat(vdev)?;
    let counted = stat.alloc.saturating_sub(stat.deferred);
    report.same(|| format!("vdev {vdev}: bytes allocated"), counted, allocated.space());
    Ok(())
}

/// What is in `a` and not in `b`.
fn difference(a: &RangeTree, b: &RangeTree) -> Vec<(u64, u64)> {
    let mut rest = a.clone();
    for (start, end) in b.iter() {
        rest.subtract(start, end);
    }
    rest.iter().collect()
}
