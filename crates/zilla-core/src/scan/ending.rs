//! The end of a scan: what is left to do when a walk has come through all datasets.
//!
//! **What waits to be freed.** What is left of destroyed datasets the walk does not come to, and
//! their trees are read to free what is below them. A device that is said to have everything must
//! have these, or the loss of another one would leave their space lost. So a resilver waits until
//! what was queued when its walk ended is freed: trees are freed in the order in which they were
//! queued, and what was queued later the walk has come to. (In OpenZFS scans stand still while
//! anything waits to be freed; where datasets are destroyed all the time they get nowhere.)
//! Freeing waits for no scan. What it cannot read it gives up after a while; where it does not get
//! on even so, its queue itself cannot be read, and nobody waits for what nothing leads to.
//!
//! **Listed blocks** too wait to be freed, and who frees them may have to read them: the headers of
//! gangs. They are freed from the lists' ends, so those that were there first are gone when the
//! lists have once been empty. Where as much is listed as is freed, for a day, nobody waits any
//! longer, and devices keep what they lack.
//!
//! A scrub waits too where blocks are shared: what loses a reference may have another that was not
//! read ([`super::outlived`]).
//!
//! **Blocks that changed places** are read, or walked for once more if some are not known.
//!
//! What is on disk meanwhile is the place behind all datasets. OpenZFS, which frees first, ends the
//! scan from there.

use super::Scan;
use super::gather::Trouble;
use super::round::Entry;
use super::work::Step;
use crate::dsl::Waiting;
use crate::error::Result;
use crate::types::Bookmark;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at what waits to be freed.
const PAUSE: Duration = Duration::from_secs(1);
/// So long freeing may stand still. (What it cannot read it gives up after ten minutes.)
pub(super) const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 1200 });
/// So long lists may be freed that do not get shorter by it.
const LONGEST: Duration = Duration::from_secs(if cfg!(test) { 16 } else { 24 * 3600 });

/// How long something has not got on.
#[derive(Default)]
struct Still(Duration);

impl Still {
    fn look(&mut self, gets_on: bool) -> Duration {
        self.0 = if gets_on { Duration::ZERO } else { self.0 + PAUSE };
        self.0
    }
}

impl Scan {
    /// All datasets are walked through.
    pub(super) async fn end(self: &Arc<Self>) -> Result<()> {
        let since = {
            let mut st = self.shared.lock();
            // Nothing is gathered, so it need not be known what is freed.
            st.note_nothing();
            st.next = Some(st.stable.clone());
            st.stable.until
        };
        self.wait_for_frees().await;
        // What was freed in the last txg that the walk has seen is told of in the next.
        self.synced().await?;
        let (blocks, resilver) = {
            let mut st = self.shared.lock();
            if st.next.is_none() || st.stopping || st.is_paused() {
                return Ok(());
            }
            st.noting = true;
            (st.outlived.all(), st.stable.is_resilver())
        };
        let Some(blocks) = blocks else {
            let mut trouble = Trouble::default();
            let first = self.first_datasets(since, &mut trouble).await?;
            self.take_note(trouble);
            return self.step(|| Step::WalkAgain(first.clone())).await;
        };
        let wanted = blocks.into_iter().filter(|bp| !resilver || self.pool.lacks(bp));
        let entries = wanted.map(|bp| Entry { bp, at: Bookmark::NOWHERE, counted: false }).collect();
        if self.read_round(entries).await.0 {
            self.step(|| Step::End).await?;
            self.pool.resilvered();
        }
        Ok(())
    }

    /// Waits until what waits to be freed now is freed, as far as that matters.
    async fn wait_for_frees(&self) {
        if !self.is_resilvering() && !self.pool.shares_blocks() {
            return;
        }
        // What waited at first, and the best that was seen since.
        let mut seen = None::<(Waiting, Waiting)>;
        let (mut trees, mut lists, mut shorter) = (Still::default(), Still::default(), Still::default());
        // Another scan may have begun, which is not to wait.
        while !self.must_leave() && self.shared.lock().next.is_some() {
            let suspended = self.pool.is_suspended();
            // What cannot be told does not get on.
            let now = self.pool.waiting().await.ok();
            let (mut of_trees, mut of_lists) = (true, true);
            let (mut tree_freed, mut list_freed, mut less) = (suspended, suspended, suspended);
            if let Some(now) = now {
                let (first, best) = seen.get_or_insert((now, now));
                (of_trees, of_lists) = (now.has_trees_of(first), now.has_lists_of(first));
                if !of_lists {
                    // None of them comes back.
                    first.emptied = u64::MAX;
                }
                tree_freed |= now.trees_get_on_since(best);
                list_freed |= now.freed != best.freed;
                less |= now.used < best.used;
                (best.freed, best.used) = (now.freed, now.used.min(best.used));
            }
            if !of_trees && !of_lists {
                return;
            }
            let tree_stuck = trees.look(tree_freed || !of_trees) > PATIENCE;
            let list_stuck = lists.look(list_freed || less || !of_lists) > PATIENCE;
            let endless = shorter.look(less || !of_lists) > LONGEST;
            if (tree_stuck || !of_trees) && (list_stuck || endless || !of_lists) {
                tracing::warn!("scan: what was destroyed is not freed, and not read");
                // Some of it may have another place that the walk had passed.
                if self.pool.shares_blocks() || (endless && !list_stuck) {
                    self.passed_by();
                }
                return;
            }
            self.ctx.env.sleep(PAUSE).await;
        }
    }
}
