//! `zfs hold`, `holds` and `release`: tags that keep snapshots from being destroyed.

use super::Engine;
use super::errors::{Answer, no_dataset, of, of_dataset};
use super::pool::Pool;
use std::sync::Arc;
use zilla::error::Errno;
use zilla_control::props::{self, naming};
use zilla_control::types::{HoldInfo, SnapshotHold, SnapshotHolds, SnapshotRelease};
use zilla_control::{ApiError, ErrorCode};
use zilla_core::dsl::DslDataset;

impl Pool {
    /// A snapshot, and those of its name below if `recursive`. None need be there.
    async fn snapshots_named(&self, name: &str, recursive: bool) -> Answer<Vec<Arc<DslDataset>>> {
        naming::check_dataset_name(name, props::SNAP, false)?;
        let (fs, snap) = name.split_once('@').unwrap_or((name, ""));
        let dsl = self.dsl();
        let mut found = Vec::new();
        let mut dirs = vec![dsl.dir_by_name(fs).await.map_err(of(fs))?];
        while let Some(dir) = dirs.pop() {
            if dir.phys().head_dataset_obj != 0 {
                let head = dsl.head(&dir).await.map_err(of_dataset)?;
                if let Some(id) = dsl.snap_lookup(&head, snap).await.map_err(of_dataset)? {
                    found.push(dsl.dataset(id).await.map_err(of_dataset)?);
                }
            }
            if recursive {
                let mut below = dsl.child_dirs(&dir).await.map_err(of_dataset)?;
                below.reverse();
                dirs.extend(below);
            }
        }
        Ok(found)
    }

    fn writable(&self) -> Answer<()> {
        if self.readonly() { Err(ErrorCode::PoolReadonly.into()) } else { Ok(()) }
    }
}

impl Engine {
    pub(super) async fn hold(&self, r: SnapshotHold) -> Answer<()> {
        let pool = self.pool_of_head(&r.snapshot)?;
        pool.writable()?;
        let found = pool.snapshots_named(&r.snapshot, r.recursive).await?;
        if found.is_empty() {
            return Err(no_dataset(&r.snapshot));
        }
        let mut names = Vec::new();
        for snap in found {
            let name = snap.name();
            pool.dsl().hold_check(&name, &r.tag).await.map_err(|e| match e.errno() {
                Errno::Exist => ApiError::new(ErrorCode::RefTagHold).subject(name.as_str()),
                Errno::NameTooLong => ApiError::new(ErrorCode::TagTooLong).subject(name.as_str()),
                _ => of_dataset(e).subject(name.as_str()),
            })?;
            names.push(name);
        }
        let dsl = pool.dsl().clone();
        let task = pool.spa.ctx.sync_task(move |tx| {
            Box::pin(async move {
                // Whoever came first may have taken a tag or a snapshot meanwhile: nothing is held
                // before all can be.
                for name in &names {
                    dsl.hold_check(name, &r.tag).await?;
                }
                for name in &names {
                    dsl.hold_snapshot(&tx, name, &r.tag).await?;
                }
                Ok(())
            })
        });
        task.await.map_err(|e| match e.is(Errno::Exist) {
            true => ErrorCode::RefTagHold.into(),
            false => of_dataset(e),
        })
    }

    pub(super) async fn release(&self, r: SnapshotRelease) -> Answer<()> {
        let pool = self.pool_of_head(&r.snapshot)?;
        pool.writable()?;
        let found = pool.snapshots_named(&r.snapshot, r.recursive).await?;
        if found.is_empty() {
            return Err(no_dataset(&r.snapshot));
        }
        let mut names = Vec::new();
        for snap in found {
            if pool.dsl().has_hold(&snap, &r.tag).await.map_err(of_dataset)? {
                names.push(snap.name());
            }
        }
        if names.is_empty() {
            return Err(ApiError::new(ErrorCode::RefTagRelease).subject(r.snapshot));
        }
        // One that only waited for this goes.
        for name in &names {
            let snap = pool.dsl().by_name(name).await.map_err(of(name))?;
            if snap.is_defer_destroy() && snap.userrefs() == 1 && snap.phys().num_children <= 1 {
                pool.forget_snapshot(name);
            }
        }
        let dsl = pool.dsl().clone();
        let task = pool.spa.ctx.sync_task(move |tx| {
            Box::pin(async move {
                for name in &names {
                    dsl.release_snapshot(&tx, name, &r.tag).await?;
                }
                Ok(())
            })
        });
        task.await.map_err(of_dataset)
    }

    pub(super) async fn list_holds(&self, r: SnapshotHolds) -> Answer<Vec<HoldInfo>> {
        let pool = self.pool_of(&r.snapshot)?;
        let found = pool.snapshots_named(&r.snapshot, r.recursive).await?;
        if found.is_empty() && !r.recursive {
            return Err(no_dataset(&r.snapshot));
        }
        let mut all = Vec::new();
        for snap in found {
            let name = snap.name();
            for (tag, time) in pool.dsl().holds(&snap).await.map_err(of(&name))? {
                all.push(HoldInfo { snapshot: name.clone(), tag, time });
            }
        }
        Ok(all)
    }
}
