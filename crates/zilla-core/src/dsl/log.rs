//! The blocks of a dataset's intent log, when the dataset or what it holds goes.
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
    /// Gives back the block that an empty log of a dataset without its key begins with. False: its
    /// key was loaded meanwhile, and others may begin with that block.
    pub(crate) async fn drop_empty_log(self: &Arc<Self>, ds: &Arc<DslDataset>) -> Result<bool> {
        let (dsl, ds) = (self.clone(), ds.clone());
        let task = self.ctx.sync_task(move |_| {
            Box::pin(async move {
                if ds.is_gone() {
                    return Ok(true);
                }
                let os = dsl.objset(&ds).await?;
                if !os.is_locked() {
                    return Ok(false);
                }
                let first = os.with_phys(|p| std::mem::take(&mut p.zil_header)).log;
                ds.rewrite_root.store(true, Ordering::Relaxed);
                dsl.ctx.free(&first);
                Ok(true)
            })
        });
        task.await
    }

    /// In syncing context, before a head and a clone exchange their contents: what is discarded
    /// takes its log along. One that is in use is known here better than on the disk.
    pub(super) async fn discard_log(&self, head: &DslDataset, clone: &DslDataset) {
        let mut freed = head.log_freed.swap(false, Ordering::Relaxed);
        if let Some(os) = head.open_objset()
            && let Some(log) = os.log().filter(|l| l.is_started())
        {
            log.abandon(&os).await;
            freed = true;
        }
        clone.log_freed.store(freed, Ordering::Relaxed);
    }

    /// Frees a dataset's intent log: the chain's blocks, and data that records refer to and the
    /// objset does not.
    pub(super) async fn free_intent_log(&self, ds: &Arc<DslDataset>) -> Result<()> {
        let nothing = ds.phys().bp.is_hole() && ds.open_objset().is_none();
        if nothing || ds.log_freed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.ctx.log.kept.forget(ds.id);
        let opened = match ds.open_objset() {
            Some(os) => Ok(os),
            // The header is there without the key as well, which may be one that opens nothing.
            None => self.sealed_objset(ds).await,
        };
        // A dataset whose beginning is damaged can go all the same. What its log has stays
        // allocated then, as all does that damage hides.
        let os = match opened {
            Ok(os) => os,
            Err(e) => {
                tracing::warn!(dataset = %ds.name(), error = %e, "its intent log stays allocated");
                return Ok(());
            }
        };
        if let Some(log) = os.log().filter(|l| l.is_started()) {
            log.abandon(&os).await;
            return Ok(());
        }
        let header = os.phys().zil_header;
        let all = crate::zil::chain(&*self.ctx.store, &header, ds.id).await;
        // All of it is allocated: what a crash left was claimed when the pool was opened.
        all.iter().for_each(|bp| self.ctx.free(bp));
        Ok(())
    }
}
