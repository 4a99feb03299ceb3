//! The blocks of a dataset's intent log, when the dataset goes.
//!
//! Log blocks are counted by no dataset, so a destroyed dataset's tree does not lead to them: a log
//! that was in use knows its own; another is found by following the chain from the objset's header.
//! It ends at a pointer whose block does not verify (it was reserved for what was to come), which
//! is still the log's.

use super::DslPool;
use super::dataset::DslDataset;
use crate::error::Result;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl DslPool {
    /// Gives back the block that an empty log of a dataset without its key begins with.
    pub(crate) async fn drop_empty_log(&self, ds: &Arc<DslDataset>) -> Result<()> {
        let os = self.objset(ds).await?;
        let (ctx, ds) = (self.ctx.clone(), ds.clone());
        let task = self.ctx.sync_task(move |_| {
            Box::pin(async move {
                let first = os.with_phys(|p| std::mem::take(&mut p.zil_header)).log;
                ds.rewrite_root.store(true, Ordering::Relaxed);
                ctx.free(&first);
                Ok(())
            })
        });
        task.await
    }

    /// Frees a dataset's intent log: the chain's blocks, and data that records refer to and the
    /// objset does not.
    pub(super) async fn free_intent_log(&self, ds: &Arc<DslDataset>) -> Result<()> {
        let nothing = ds.phys().bp.is_hole() && ds.open_objset().is_none();
        if nothing || ds.log_freed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let os = self.objset(ds).await?;
        self.ctx.log.kept.forget(ds.id);
        if let Some(log) = os.log().filter(|l| l.is_started()) {
            log.abandon(&os).await;
            return Ok(());
        }
        let header = os.phys().zil_header;
        let all = crate::zil::chain(&*self.ctx.store, &header, ds.id).await;
        // What was written by txgs that a crash forgot was never allocated, unless it was claimed.
        let allocated = |birth: u64| header.claim_txg != 0 || birth <= self.opened_txg;
        all.iter().take_while(|bp| allocated(bp.birth())).for_each(|bp| self.ctx.free(bp));
        Ok(())
    }
}
