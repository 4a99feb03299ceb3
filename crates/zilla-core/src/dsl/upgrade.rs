//! What datasets get when their pool is raised to a later version.
//!
//! All in the sync task that raises it, while the pool still has the old version: what is made here
//! is as the old version has it, but for what the new one is about. Deadlists stay as they are
//! ([`super::deadlist`]).

use super::DslPool;
use super::dataset::DslDataset;
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId};
use crate::zap::Zap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::enums::{SPA_VERSION_DEADLISTS, SPA_VERSION_ORIGIN};

impl DslPool {
    /// In the syncing context.
    #[crate::boxed]
    pub async fn upgrade(&self, tx: &Tx, to: u64) -> Result<()> {
        let crossed = |version: u64| self.ctx.version() < version && version <= to;
        if !crossed(SPA_VERSION_ORIGIN) && !crossed(SPA_VERSION_DEADLISTS) {
            return Ok(());
        }
        // Whatever may fail is read before anything is changed.
        let heads = self.all_heads().await?;
        let mut begins = Vec::with_capacity(heads.len());
        for head in &heads {
            self.read_dataset(head).await?;
            begins.push(self.beginning(head).await?);
        }
        self.read_pool().await?;
        if crossed(SPA_VERSION_ORIGIN) {
            self.make_origin(tx).await?;
            let common = self.dataset(self.origin_snap()).await?;
            for (first, origin) in begins {
                match origin {
                    Some(origin) => self.add_next_clone(tx, &origin, first.id).await?,
                    None => self.give_origin(tx, &first, &common).await?,
                }
            }
        }
        if crossed(SPA_VERSION_DEADLISTS) {
            self.make_freeing(tx).await?;
            for head in heads {
                let origin = head.dir().phys().origin_obj;
                if origin != 0 {
                    let dir = self.dataset(origin).await?.dir();
                    self.add_dir_clone(tx, &dir, head.id).await?;
                }
            }
        }
        Ok(())
    }

    /// The heads of all dirs that people know.
    async fn all_heads(&self) -> Result<Vec<Arc<DslDataset>>> {
        let (mut out, mut todo) = (Vec::new(), vec![self.root_dir()]);
        while let Some(dir) = todo.pop() {
            out.push(self.head(&dir).await?);
            todo.extend(self.child_dirs(&dir).await?);
            // What is being received is a clone like all others.
            for e in Zap::open(self.mos(), dir.phys().child_dir_zapobj).await?.entries().await? {
                if let Some(id) = e.value.as_u64().filter(|_| e.name_str().starts_with('%')) {
                    out.push(self.head(&*self.dir(id).await?).await?);
                }
            }
        }
        Ok(out)
    }

    /// The oldest of a head's own snapshots, or the head; and the snapshot that it is a clone of.
    async fn beginning(&self, head: &Arc<DslDataset>) -> Result<(Arc<DslDataset>, Option<Arc<DslDataset>>)> {
        let (mut first, mut seen) = (head.clone(), BTreeSet::new());
        while let Some(prev) = self.prev(&first).await? {
            if prev.phys().next_snap_obj != first.id {
                return Ok((first, Some(prev)));
            }
            if !seen.insert(prev.id) {
                let b = Bookmark::new(0, ObjectId(head.id), 0, 0);
                return Err(Error::corrupt(Some(b), "", "the chain of snapshots leads back"));
            }
            first = prev;
        }
        Ok((first, None))
    }

    /// Makes a dataset without an origin a clone of the empty snapshot.
    async fn give_origin(&self, tx: &Tx, first: &DslDataset, common: &DslDataset) -> Result<()> {
        let txg = common.phys().creation_txg;
        first.change(tx, |p| {
            p.prev_snap_obj = common.id;
            p.prev_snap_txg = txg;
        });
        let dir = first.dir();
        dir.change(tx, |d| d.origin_obj = common.id);
        dir.origin_txg.store(txg, Ordering::Relaxed);
        common.change(tx, |p| p.num_children = p.num_children.saturating_add(1));
        self.add_next_clone(tx, common, first.id).await
    }
}
