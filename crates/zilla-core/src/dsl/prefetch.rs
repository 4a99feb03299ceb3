//! Reading what an operation on datasets will need, before it changes anything.
//!
//! A sync task changes the MOS step by step, and reads in between. If one of those reads failed
//! half of the operation would be on disk with its txg. So what it reads is read first, into the
//! caches: an object that cannot be read then is an error to the caller alone. What fails all the
//! same after the first change stops the pool before the txg is there ([`crate::spa`]'s sync task),
//! so that no half of it ever is.
//!
//! Objects of any length are read as far as they are changed: ZAPs whole, lists at their end.

use super::DslPool;
use super::dataset::DslDataset;
use super::deadlist::Deadlist;
use super::dir::DslDir;
use crate::dmu::Dnode;
use crate::error::Result;
use crate::types::ObjectId;
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::dsl::ZfsBookmarkPhys;
use zilla_ondisk::object_type::{DMU_OT_BPOBJ, DMU_OT_BPOBJ_SUBOBJ};

/// Blocks that are asked for at once.
const AT_ONCE: u64 = 64;
/// Of larger objects only so many blocks are read first: no operation goes through all of one.
const MOST: u64 = 4096;

impl DslPool {
    async fn read_blocks(&self, dn: &Arc<Dnode>, from: u64) -> Result<()> {
        let end = (dn.maxblkid() + 1).min(from.saturating_add(MOST));
        let mut at = from;
        while at < end {
            let next = (at + AT_ONCE).min(end);
            let loads = (at..next).map(|b| dn.load(0, b));
            join_all(loads).await.into_iter().collect::<Result<()>>()?;
            at = next;
        }
        Ok(())
    }

    /// An object; 0 is none.
    async fn read_object(&self, id: u64) -> Result<()> {
        if id == 0 {
            return Ok(());
        }
        let dn = self.mos().hold_wait(ObjectId(id)).await?;
        let is_list = matches!(dn.otype(), DMU_OT_BPOBJ | DMU_OT_BPOBJ_SUBOBJ);
        self.read_blocks(&dn, if is_list { dn.maxblkid() } else { 0 }).await
    }

    /// A deadlist: its keys, and the end of each of its lists.
    async fn read_deadlist(&self, id: u64) -> Result<()> {
        if id == 0 {
            return Ok(());
        }
        match self.deadlist_open(id).await? {
            // What goes of it is known from its blocks only.
            Deadlist::Plain(_) => self.read_blocks(&self.mos().hold_wait(ObjectId(id)).await?, 0).await,
            Deadlist::Keyed(dl) => {
                for list in dl.entries.into_values() {
                    self.read_list(list).await?;
                }
                Ok(())
            }
        }
    }

    /// The list of a deadlist's key, and the one that this is joined to.
    async fn read_key(&self, id: u64, key: u64) -> Result<()> {
        if let Deadlist::Keyed(dl) = self.deadlist_open(id).await? {
            for list in dl.entries.range(..=key).rev().take(2) {
                self.read_list(*list.1).await?;
            }
        }
        Ok(())
    }

    async fn read_list(&self, id: u64) -> Result<()> {
        if self.is_empty_bpobj(id) {
            return Ok(());
        }
        let list = self.bpobj_open(id).await?;
        self.read_object(id).await?;
        self.read_object(list.phys()?.subobjs).await
    }

    /// The list of a key of a dataset's deadlists, which is to go.
    async fn read_for_key(&self, ds: &DslDataset, key: u64) -> Result<()> {
        self.read_key(ds.phys().deadlist_obj, key).await?;
        match self.remap_deadlist(ds).await? {
            Some(id) => self.read_key(id, key).await,
            None => Ok(()),
        }
    }

    /// Those of the clones that have the key, too.
    async fn read_for_clones_key(&self, dir: &Arc<DslDir>, key: u64) -> Result<()> {
        for clone in self.clones_since(dir, key).await? {
            self.read_for_key(&clone, key).await?;
        }
        Ok(())
    }

    /// A dir's share of its key.
    async fn read_dir_key(&self, dir: &DslDir) -> Result<()> {
        match self.key_object(dir).await? {
            Some(key) => self.read_object(key).await,
            None => Ok(()),
        }
    }

    /// For a bookmark that is to be destroyed.
    pub(super) async fn read_for_bookmark(&self, head: &DslDataset, mark: &ZfsBookmarkPhys) -> Result<()> {
        if mark.redaction_obj != 0 {
            // It is freed, whatever it says.
            self.mos().hold_wait(ObjectId(mark.redaction_obj)).await?;
        }
        self.read_for_clones_key(&head.dir(), mark.creation_txg).await
    }

    /// What is the pool's: counts of features, the directory, the list of blocks to be freed, room
    /// for new objects.
    pub(super) async fn read_pool(&self) -> Result<()> {
        self.read_blocks(self.directory().await?.dnode(), 0).await?;
        for id in self.ctx.features.objects() {
            self.read_object(id).await?;
        }
        if let Some(scan) = self.ctx.scan() {
            self.read_object(scan.queue_object()).await?;
        }
        if let Some(freeing) = &self.special().freeing {
            self.read_list(freeing.bpobj.id()).await?;
        }
        self.mos().read_free_slots().await
    }

    pub(super) async fn read_dir(&self, dir: &Arc<DslDir>) -> Result<()> {
        for d in dir.ancestry() {
            let p = d.phys();
            for id in [p.props_zapobj, p.child_dir_zapobj, p.clones, d.id()] {
                self.read_object(id).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn read_dataset(&self, ds: &Arc<DslDataset>) -> Result<()> {
        let p = ds.phys();
        let bookmarks = ds.bookmarks_obj.load(Ordering::Relaxed);
        let all = [ds.id, p.snapnames_zapobj, p.next_clones_obj, p.props_obj, p.userrefs_obj, bookmarks];
        for id in all {
            self.read_object(id).await?;
        }
        self.read_deadlist(p.deadlist_obj).await?;
        self.read_dir(&ds.dir()).await
    }

    /// For a snapshot of a head that is to get another name.
    pub(super) async fn read_for_renamed(&self, head: &Arc<DslDataset>) -> Result<()> {
        self.read_object(head.phys().snapnames_zapobj).await?;
        self.read_dir(&head.dir()).await
    }

    /// A clone's livelist, which goes, or joins those of destroyed clones. One that cannot be read
    /// is given up then, and refuses nothing.
    pub(super) async fn read_livelist(&self, dir: &DslDir) -> Result<()> {
        let Some(id) = self.livelist(dir).await? else { return Ok(()) };
        let set = self.deleted_clones.load(Ordering::Relaxed);
        for read in [self.read_deadlist(id).await, self.read_object(set).await] {
            if let Err(e) = read {
                tracing::warn!(pool = %self.name(), livelist = id, error = %e, "a livelist is damaged");
            }
        }
        Ok(())
    }

    /// For a dataset that is to be made below a dir, from a snapshot if one is given.
    pub(super) async fn read_for_new(
        &self,
        parent: &Arc<DslDir>,
        origin: Option<&Arc<DslDataset>>,
    ) -> Result<()> {
        self.read_dir(parent).await?;
        let origin = match origin {
            Some(o) => o.clone(),
            None if self.origin_snap() == 0 => return self.read_pool().await,
            None => self.dataset(self.origin_snap()).await?,
        };
        self.read_dataset(&origin).await?;
        self.read_dir_key(&origin.dir()).await?;
        self.read_dataset(&self.head(&origin.dir()).await?).await?;
        self.read_pool().await
    }

    /// For a dataset that is to be destroyed: it and its neighbours.
    pub(super) async fn read_for_destroyed(&self, ds: &Arc<DslDataset>) -> Result<()> {
        self.read_dataset(ds).await?;
        self.read_livelist(&ds.dir()).await?;
        if let Some(id) = self.remap_deadlist(ds).await? {
            self.read_deadlist(id).await?;
        }
        if !ds.is_snapshot() {
            self.read_dir_key(&ds.dir()).await?;
            self.read_grants(&ds.dir()).await?;
            for mark in ds.bookmarks() {
                self.read_for_bookmark(ds, &mark.phys).await?;
            }
        }
        if let Some(prev) = self.prev(ds).await? {
            self.read_dataset(&prev).await?;
        }
        let next = ds.phys().next_snap_obj;
        if next != 0 {
            let next = self.dataset(next).await?;
            self.read_dataset(&next).await?;
            if let Some(id) = self.remap_deadlist(&next).await? {
                self.read_deadlist(id).await?;
            }
            let after = next.phys().next_snap_obj;
            if after != 0 {
                self.read_dataset(&self.dataset(after).await?).await?;
            }
            self.read_dataset(&self.head(&ds.dir()).await?).await?;
            // Their deadlists lose its key.
            self.read_for_clones_key(&ds.dir(), ds.phys().creation_txg).await?;
        }
        self.read_pool().await
    }
}
