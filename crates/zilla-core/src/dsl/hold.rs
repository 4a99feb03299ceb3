//! User holds: named references that keep a snapshot from being destroyed.

use super::DslPool;
use super::dataset::DslDataset;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zap::{CreateOpts, Zap};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::enums::SPA_VERSION_USERREFS;
use zilla_ondisk::object_type::DMU_OT_USERREFS;

/// Bytes of a tag, as OpenZFS allows them: a name in a ZAP, terminator included.
const MAX_TAG: usize = 256;

impl DslPool {
    /// Why a snapshot cannot be held under a tag, if it cannot.
    #[crate::boxed]
    pub async fn hold_check(&self, name: &str, tag: &str) -> Result<()> {
        self.needs_version(SPA_VERSION_USERREFS)?;
        let snap = self.by_name(name).await?;
        if !snap.is_snapshot() {
            return Err(Error::inval(format!("{name} is not a snapshot")));
        }
        if tag.len() >= MAX_TAG {
            return Err(Error::os(Errno::NameTooLong, "tag too long"));
        }
        // OpenZFS takes them, and such a tag has lines of its own in `zfs holds`.
        if tag.contains(char::is_control) {
            return Err(Error::inval("a tag must not have control characters in it"));
        }
        if self.has_hold(&snap, tag).await? {
            return Err(Error::os(Errno::Exist, "tag already exists on this dataset"));
        }
        Ok(())
    }

    #[crate::boxed]
    pub async fn has_hold(&self, snap: &DslDataset, tag: &str) -> Result<bool> {
        match snap.phys().userrefs_obj {
            0 => Ok(false),
            id => Ok(Zap::open(self.mos(), id).await?.try_get(tag).await?.is_some()),
        }
    }

    /// The holds of a snapshot: tag and when it was made.
    #[crate::boxed]
    pub async fn holds(&self, snap: &DslDataset) -> Result<Vec<(String, u64)>> {
        let id = snap.phys().userrefs_obj;
        if id == 0 {
            return Ok(Vec::new());
        }
        let all = Zap::open(self.mos(), id).await?.entries().await?;
        Ok(all.iter().map(|e| (e.name_str().into_owned(), e.value.as_u64().unwrap_or(0))).collect())
    }

    /// Holds a snapshot under a tag that is not in use there.
    #[crate::boxed]
    pub async fn hold_snapshot(&self, tx: &Tx, name: &str, tag: &str) -> Result<()> {
        self.hold_check(name, tag).await?;
        let snap = self.by_name(name).await?;
        let zap = match snap.phys().userrefs_obj {
            0 => {
                let zap = Zap::make(self.mos(), tx, DMU_OT_USERREFS, &CreateOpts::default()).await?;
                snap.change(tx, |p| p.userrefs_obj = zap.id());
                zap
            }
            id => Zap::open(self.mos(), id).await?,
        };
        zap.insert_u64(tx, tag, self.ctx.env.wall().as_secs()).await?;
        let refs = snap.userrefs.fetch_add(1, Ordering::Relaxed) + 1;
        self.note(tx, &snap, "hold", &format!("tag={tag} temp=0 refs={refs}"));
        Ok(())
    }

    /// Releases holds of one tag, all or none. A snapshot that only waited for this to be destroyed
    /// goes; `EBUSY` if somebody uses it, as a sender does.
    #[crate::boxed]
    pub async fn release_snapshots(&self, tx: &Tx, names: &[String], tag: &str) -> Result<()> {
        let (mut all, mut alone, mut known) = (Vec::new(), Vec::new(), BTreeSet::new());
        for name in names {
            let snap = self.by_name(name).await?;
            if !known.insert(snap.id) {
                continue;
            }
            if !self.has_hold(&snap, tag).await? {
                return Err(Error::no_ent("no such tag on this dataset"));
            }
            let goes = snap.userrefs() == 1 && snap.is_defer_destroy() && snap.phys().num_children <= 1;
            if goes {
                // Nobody opens it from now on.
                alone.push(snap.hold_alone().ok_or_else(|| super::busy(name))?);
                self.read_for_destroyed(&snap).await?;
            }
            all.push((snap, goes));
        }
        for (snap, goes) in all {
            Zap::open(self.mos(), snap.phys().userrefs_obj).await?.delete(tx, tag).await?;
            let left = snap.userrefs.fetch_sub(1, Ordering::Relaxed) - 1;
            self.note(tx, &snap, "release", &format!("tag={tag} refs={left}"));
            if goes {
                self.destroy_snapshot_sync(tx, &snap, false).await?;
            }
        }
        Ok(())
    }

    /// The holds that were to last no longer than the pool stayed imported, as OpenZFS's senders
    /// make them: each names a snapshot's object and a tag.
    pub(super) async fn temporary_holds(&self) -> Result<Vec<String>> {
        let id = self.tmp_userrefs.load(Ordering::Relaxed);
        if id == 0 {
            return Ok(Vec::new());
        }
        let all = Zap::open(self.mos(), id).await?.entries().await?;
        Ok(all.iter().map(|e| e.name_str().into_owned()).collect())
    }

    pub(super) async fn release_temporary_hold(&self, tx: &Tx, hold: &str) -> Result<()> {
        let zap = Zap::open(self.mos(), self.tmp_userrefs.load(Ordering::Relaxed)).await?;
        zap.try_get(hold).await?;
        let of = hold.split_once('-').and_then(|(id, tag)| Some((u64::from_str_radix(id, 16).ok()?, tag)));
        if let Some((id, tag)) = of {
            let released = match self.dataset(id).await {
                Ok(snap) => self.release_snapshots(tx, &[snap.name()], tag).await,
                Err(e) => Err(e),
            };
            if let Err(e) = released
                && !e.is(Errno::NoEnt)
            {
                return Err(e);
            }
        }
        zap.delete_if_there(tx, hold).await.map(drop)
    }

    /// Releases them, when the pool was imported for writing.
    #[crate::boxed]
    pub async fn release_temporary_holds(self: &Arc<Self>) -> Result<()> {
        for hold in self.temporary_holds().await? {
            let (dsl, one) = (self.clone(), hold.clone());
            let task = self
                .ctx
                .sync_task(move |tx| Box::pin(async move { dsl.release_temporary_hold(&tx, &one).await }));
            if let Err(e) = task.await {
                tracing::warn!(pool = %self.name(), %hold, error = %e, "a temporary hold is not released");
            }
        }
        Ok(())
    }
}
