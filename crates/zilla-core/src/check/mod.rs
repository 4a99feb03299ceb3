//! Checking a whole pool against itself: what `zdb -bcc` asks, and more, of a pool that is imported
//! and at rest.
//!
//! **Floor 15.** It looks at all of a pool.
//!
//! Everything the format says twice is read twice and compared. Block pointers, walked from the
//! uberblock through the MOS and every dataset, against the space maps ([`space`]): no byte in use
//! that is free, none allocated that nobody uses, none with two owners. Datasets' and dirs'
//! counters and deadlists against the blocks they are about ([`datasets`]). Directory entries, link
//! counts, the delete queue and the accounts of users and groups against the files ([`files`]).
//! [`census`] is the part of it that `zdb -b` reports: every block once, for whoever counts them,
//! in memory that does not grow with the files.
//!
//! **Invariants.** Nothing is changed. A finding is a sentence that names its place; an error means
//! that the check itself could not be done. What it finds is bounded, so that a pool that is
//! damaged everywhere does not fill memory.
//!
//! **Crash.** There is nothing to lose.
//!
//! **Lock order.** None of its own; no lock is held across a wait.
//!
//! **Deliberately absent.** Repair. A pool that changes meanwhile: callers see to it that nobody
//! writes.

mod blocks;
mod census;
mod datasets;
mod files;
mod space;

pub use census::{Census, CensusOpts, Leak, Observer, Sharing, Use, Verify, census};

use crate::error::{Error, Result};
use crate::spa::Spa;
use crate::types::Bookmark;
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;

/// More findings than this are counted only.
const MAX_FINDINGS: usize = 100;

/// How thoroughly.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOpts {
    /// Reads every copy of every block with all its redundancy, as a scrub does, and repairs what a
    /// scrub would.
    pub every_copy: bool,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong, up to a bound.
    pub findings: Vec<String>,
    /// How much more is wrong.
    pub more: u64,
    pub blocks: u64,
    /// Blocks with copies that were bad and could be repaired. Not a finding: the redundancy is
    /// there for that.
    pub repaired: u64,
    /// Bytes allocated on the top-level vdevs.
    pub allocated: u64,
    pub datasets: u64,
    pub files: u64,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn add(&mut self, what: String) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(what);
        } else {
            self.more += 1;
        }
    }

    /// Notes that two numbers differ that should not.
    fn same(&mut self, what: impl FnOnce() -> String, says: u64, is: u64) {
        if says != is {
            self.add(format!("{}: {says} on record, {is} in fact", what()));
        }
    }
}

/// Of a census, what is wrong with references. (All else has been looked at.)
struct Claims<'a>(&'a mut Report);

impl Observer for Claims<'_> {
    fn block(&mut self, _: &BlkPtr, _: &Bookmark, _: Use) {}

    fn shared(&mut self, _: &BlkPtr, _: Sharing) {}

    fn not_claimed(&mut self, bp: &BlkPtr, why: &str) {
        self.0.add(format!("block at {:?} of txg {}: {why}", bp.dva(0), bp.birth()));
    }

    fn unreadable(&mut self, _: &BlkPtr, _: &Bookmark, _: &Error) {}

    fn damaged(&mut self, _: &BlkPtr, _: &Bookmark, _: usize) {}

    fn progress(&mut self) {}
}

/// The references that clones are, if there are any.
#[crate::boxed]
async fn count_references(spa: &Arc<Spa>, report: &mut Report) -> Result<()> {
    if spa.brt.used_and_saved().0 > 0 {
        census(spa, CensusOpts::default(), &mut Claims(report)).await?;
    }
    Ok(())
}

/// Checks the pool as its last synced txg left it.
#[crate::boxed]
pub async fn check_pool(spa: &Arc<Spa>, opts: CheckOpts) -> Result<Report> {
    let mut report = Report::default();
    let mut all = blocks::Blocks::default();
    blocks::walk_mos(spa, &mut all, &mut report).await;
    let sets = datasets::list(spa).await?;
    for (_, dss) in &sets {
        for ds in dss {
            blocks::walk_dataset(spa, ds, &mut all, &mut report).await;
        }
    }
    blocks::waiting(spa, &mut all, &mut report).await?;
    report.blocks = all.owned.len() as u64;
    if opts.every_copy {
        blocks::read_all(spa, &all, &mut report).await;
    }
    space::check(spa, &all, &mut report).await?;
    count_references(spa, &mut report).await?;
    datasets::check(spa, &sets, &all, &mut report).await?;
    for (_, dss) in &sets {
        for ds in dss {
            report.datasets += 1;
            if let Err(e) = files::check(spa, ds, &mut report).await {
                report.add(format!("{}: files cannot be checked: {e}", ds.name()));
            }
        }
    }
    Ok(report)
}
