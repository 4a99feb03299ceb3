//! What receives left that did not end: taken away when they are given up, or when the pool is
//! opened after a crash and they cannot be resumed.

use super::DslPool;
use super::dataset::DslDataset;
use crate::error::{Error, Result};
use crate::txg::Tx;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl DslPool {
    /// Takes away what an unfinished receive left. In syncing context.
    #[crate::boxed]
    pub async fn recv_abort(&self, tx: &Tx, ds: &Arc<DslDataset>) -> Result<()> {
        if ds.is_gone() {
            return Ok(());
        }
        if !ds.is_inconsistent() {
            return Err(Error::inval(format!("{} was received whole", ds.name())));
        }
        self.destroy_head_check(ds).await?;
        // Nobody goes on with it from now on.
        let _alone = ds.hold_alone().ok_or_else(|| super::busy(&ds.name()))?;
        let _origin_alone = self.hold_origin(ds).await?;
        self.read_for_destroyed(ds).await?;
        self.destroy_head_sync(tx, ds).await
    }

    /// Destroys what receives left that a crash ended and that cannot be resumed.
    #[crate::boxed]
    pub async fn destroy_inconsistent(self: &Arc<Self>) -> Result<Vec<String>> {
        let mut out = Vec::new();
        let mut todo = vec![self.root_dir()];
        while let Some(dir) = todo.pop() {
            let head = self.head(&dir).await;
            let partial = match &head {
                Ok(_) => self.recv_child(&dir).await?,
                Err(_) => None,
            };
            for ds in partial.into_iter().chain(head.ok()) {
                if !ds.is_inconsistent() || ds.is_long_held() || self.resume_state(&ds).await?.is_some() {
                    continue;
                }
                let name = ds.name();
                let dsl = self.clone();
                let task =
                    self.ctx.sync_task(move |tx| Box::pin(async move { dsl.recv_abort(&tx, &ds).await }));
                match task.await {
                    Ok(()) => out.push(name),
                    Err(e) => {
                        tracing::warn!(%name, error = %e, "what an interrupted receive left cannot be destroyed")
                    }
                }
            }
            if !dir.gone.load(Ordering::Acquire) {
                todo.extend(self.child_dirs(&dir).await?);
            }
        }
        Ok(out)
    }
}
