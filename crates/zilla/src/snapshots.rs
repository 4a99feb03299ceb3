//! A dataset's snapshots as the directory `.zfs/snapshot` shows them: found, opened, and made,
//! destroyed and renamed by mkdir, rmdir and mv.
//!
//! Each change is one sync task of the pool, so it is there whole or not at all, and stable when
//! the call returns. Who asks for one is judged here, by the permissions that OpenZFS wants for it
//! (zfs-allow.8): `snapshot`; `destroy` and `mount`; `rename` and `mount` of the snapshot, `create`
//! and `mount` of its file system.

use crate::ctldir::Snapshots;
use crate::dataset::open_zfs;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use zilla_core::dsl::{DslDataset, DslPool, Who};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::txg::Tx;
use zilla_core::zpl::{Time, Zfs};
use zilla_env::Env;

/// A snapshot of this very txg may be in the way, or a file that is being closed.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct DatasetSnapshots {
    env: Env,
    dsl: Arc<DslPool>,
    ds: Arc<DslDataset>,
}

/// What stands on the disk may be any number.
fn seconds(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl DatasetSnapshots {
    pub(crate) fn new(env: &Env, dsl: &Arc<DslPool>, ds: &Arc<DslDataset>) -> DatasetSnapshots {
        DatasetSnapshots { env: env.clone(), dsl: dsl.clone(), ds: ds.clone() }
    }

    fn full(&self, name: &str) -> Result<String> {
        if name.contains(['@', '/', '#']) {
            return Err(Error::inval("not a snapshot's name"));
        }
        Ok(format!("{}@{name}", self.ds.name()))
    }

    /// Refuses who lacks a permission: on a snapshot of this dataset, or on the dataset itself.
    async fn judge(&self, snapshot: Option<&str>, permissions: &[&str], who: &Who) -> Result<()> {
        if *who == Who::Admin {
            return Ok(());
        }
        if !self.dsl.delegates().await? {
            return Err(Error::os(Errno::Perm, "permissions cannot be delegated in this pool"));
        }
        let ds = match snapshot {
            Some(name) => self.dsl.by_name(&self.full(name)?).await?,
            None => self.ds.clone(),
        };
        for permission in permissions {
            if !self.dsl.may(&ds, permission, who).await? {
                let what = format!("the user lacks the permission '{permission}' on {}", ds.name());
                return Err(Error::os(Errno::Perm, what));
            }
        }
        Ok(())
    }

    /// Runs a change in the syncing context, again if what stands in its way is about to go.
    async fn change<F>(&self, passing: Errno, op: F) -> Result<()>
    where
        F: Fn(Arc<DslPool>, Tx) -> BoxFuture<'static, Result<()>> + Clone + Send + Sync + 'static,
    {
        let mut tries = TRIES;
        loop {
            let (dsl, op) = (self.dsl.clone(), op.clone());
            match self.dsl.ctx().sync_task(move |tx| op(dsl, tx)).await {
                Err(e) if e.is(passing) && tries > 0 => tries -= 1,
                done => return done,
            }
            self.env.sleep(PAUSE).await;
        }
    }
}

impl Snapshots for DatasetSnapshots {
    fn list(&self) -> BoxFuture<'_, Result<Vec<(String, u64)>>> {
        Box::pin(async {
            let snaps = self.dsl.snapshots(&self.ds).await?;
            Ok(snaps.iter().map(|s| (s.snapshot_name(), s.id())).collect())
        })
    }

    fn times(&self) -> Option<(Time, Time)> {
        let made = Time { sec: seconds(self.ds.phys().creation_time), nsec: 0 };
        let [changed, part] = self.ds.dir().snaps_changed()?;
        let nsec = u32::try_from(part).unwrap_or(0).min(999_999_999);
        Some((made, Time { sec: seconds(changed), nsec }))
    }

    fn open(&self, name: &str) -> BoxFuture<'_, Result<(u64, String, Arc<Zfs>)>> {
        let name = name.to_owned();
        Box::pin(async move {
            let id = self.dsl.snap_lookup(&self.ds, &name).await?;
            let id = id.ok_or_else(|| Error::no_ent("no such snapshot"))?;
            let snap = self.dsl.dataset(id).await?;
            let zfs = open_zfs(&self.env, &self.dsl, &snap, true).await?;
            Ok((snap.guid(), snap.snapshot_name(), zfs))
        })
    }

    fn named(&self, guid: u64) -> BoxFuture<'_, Result<String>> {
        Box::pin(async move {
            let snaps = self.dsl.snapshots(&self.ds).await?;
            let found = snaps.iter().find(|s| s.guid() == guid).map(|s| s.snapshot_name());
            found.ok_or_else(|| Error::no_ent("no such snapshot"))
        })
    }

    fn create<'a>(&'a self, name: &str, who: &'a Who) -> BoxFuture<'a, Result<()>> {
        let full = self.full(name);
        Box::pin(async move {
            let names = vec![full?];
            self.judge(None, &["snapshot"], who).await?;
            self.dsl.snapshot_check(&names[0], None).await?;
            let who = who.clone();
            self.change(Errno::Again, move |dsl, tx| {
                let (names, who) = (names.clone(), who.clone());
                Box::pin(async move {
                    dsl.snapshot_limit_check(&names, &who).await?;
                    dsl.snapshot(&tx, &names).await.map(drop)
                })
            })
            .await
        })
    }

    fn judge_destroy<'a>(&'a self, name: &str, who: &'a Who) -> BoxFuture<'a, Result<()>> {
        let name = name.to_owned();
        Box::pin(async move { self.judge(Some(&name), &["destroy", "mount"], who).await })
    }

    fn destroy(&self, name: &str) -> BoxFuture<'_, Result<()>> {
        let full = self.full(name);
        Box::pin(async move {
            let names = vec![full?];
            self.dsl.by_name(&names[0]).await?;
            self.change(Errno::Busy, move |dsl, tx| {
                let names = names.clone();
                Box::pin(async move { dsl.destroy_snapshots(&tx, &names, false).await })
            })
            .await
            // A directory that something lives from is not gone for rmdir.
            .map_err(|e| {
                if e.is(Errno::Exist) { Error::os(Errno::Busy, "the snapshot has clones") } else { e }
            })
        })
    }

    fn rename<'a>(&'a self, old: &str, new: &str, who: &'a Who) -> BoxFuture<'a, Result<()>> {
        let (fs, old, new) = (self.ds.name(), old.to_owned(), new.to_owned());
        Box::pin(async move {
            self.judge(Some(&old), &["rename", "mount"], who).await?;
            self.judge(None, &["create", "mount"], who).await?;
            self.change(Errno::Again, move |dsl, tx| {
                let (fs, old, new) = (fs.clone(), old.clone(), new.clone());
                Box::pin(async move { dsl.rename_snapshot(&tx, &fs, &old, &new, false).await })
            })
            .await
        })
    }
}
