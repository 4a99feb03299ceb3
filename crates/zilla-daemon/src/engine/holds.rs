//! `zfs hold`, `holds` and `release`: tags that keep snapshots from being destroyed.

use super::destroy::{PAUSE, TRIES};
use super::errors::{Answer, no_dataset, of, of_dataset};
use super::pool::Pool;
use super::{Engine, Serves};
use zilla::error::Errno;
use zilla::tree::DatasetRef;
use zilla_control::props::{self, naming};
use zilla_control::types::{HoldInfo, SnapshotHold, SnapshotHolds, SnapshotRelease};
use zilla_control::{ApiError, Caller, ErrorCode};

impl Pool {
    /// A snapshot, and those of its name below if `recursive`. None need be there.
    async fn snapshots_named(&self, name: &str, recursive: bool) -> Answer<Vec<DatasetRef>> {
        naming::check_dataset_name(name, props::SNAP, false)?;
        let (fs, snap) = name.split_once('@').unwrap_or((name, ""));
        let mut found = Vec::new();
        let mut dirs = vec![self.zilla.dir_by_name(fs).await.map_err(of(fs))?];
        while let Some(dir) = dirs.pop() {
            if dir.has_head() {
                let head = dir.head().await.map_err(of_dataset)?;
                found.extend(head.snapshot(snap).await.map_err(of_dataset)?);
            }
            if recursive {
                let mut below = dir.children().await.map_err(of_dataset)?;
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

impl Serves<SnapshotHold> for Engine {
    async fn serve(&self, _: &Caller, r: SnapshotHold) -> Answer<()> {
        self.check_running(&r.snapshot)?;
        let pool = self.pool_of_head(&r.snapshot)?;
        pool.writable()?;
        let found = pool.snapshots_named(&r.snapshot, r.recursive).await?;
        if found.is_empty() {
            return Err(no_dataset(&r.snapshot));
        }
        let mut names = Vec::new();
        for snap in found {
            let name = snap.name();
            pool.zilla.hold_check(&name, &r.tag).await.map_err(|e| match e.errno() {
                Errno::Exist => ApiError::new(ErrorCode::RefTagHold).subject(name.as_str()),
                Errno::NameTooLong => ApiError::new(ErrorCode::TagTooLong).subject(name.as_str()),
                _ => of_dataset(e).subject(name.as_str()),
            })?;
            names.push(name);
        }
        pool.zilla.hold_snapshots(names, r.tag).await.map_err(|e| match e.is(Errno::Exist) {
            true => ErrorCode::RefTagHold.into(),
            false => of_dataset(e),
        })
    }
}

impl Serves<SnapshotRelease> for Engine {
    async fn serve(&self, _: &Caller, r: SnapshotRelease) -> Answer<()> {
        self.check_running(&r.snapshot)?;
        let pool = self.pool_of_head(&r.snapshot)?;
        pool.writable()?;
        let found = pool.snapshots_named(&r.snapshot, r.recursive).await?;
        if found.is_empty() {
            return Err(no_dataset(&r.snapshot));
        }
        let mut names = Vec::new();
        for snap in found {
            if snap.has_hold(&r.tag).await.map_err(of_dataset)? {
                names.push(snap.name());
            }
        }
        if names.is_empty() {
            return Err(ApiError::new(ErrorCode::RefTagRelease).subject(r.snapshot));
        }
        // One that only waited for this goes.
        let mut going = Vec::new();
        for name in &names {
            let snap = pool.zilla.by_name(name).await.map_err(of(name))?;
            if snap.is_defer_destroy() && snap.userrefs() == 1 && snap.is_without_clones() {
                pool.forget_snapshot(name);
                going.push(name.clone());
            }
        }
        let hidden = self.hide_devices(&pool, &going, false).await;
        let mut tries = TRIES;
        let released = loop {
            match pool.zilla.release_snapshots(names.clone(), r.tag.clone()).await {
                // Who has just looked into it lets go of it a moment later.
                Err(e) if e.is(Errno::Busy) && hidden.is_ok() && tries > 0 => tries -= 1,
                other => break other.map_err(of_dataset),
            }
            tokio::time::sleep(PAUSE).await;
        };
        if released.is_err() {
            for fs in going.iter().filter_map(|name| name.split('@').next()) {
                self.show_devices(fs).await;
            }
        }
        released
    }
}

impl Engine {
    pub(super) async fn list_holds(&self, r: SnapshotHolds) -> Answer<Vec<HoldInfo>> {
        let pool = self.pool_of(&r.snapshot)?;
        let found = pool.snapshots_named(&r.snapshot, r.recursive).await?;
        if found.is_empty() && !r.recursive {
            return Err(no_dataset(&r.snapshot));
        }
        let mut all = Vec::new();
        for snap in found {
            let name = snap.name();
            for (tag, time) in snap.holds().await.map_err(of(&name))? {
                all.push(HoldInfo { snapshot: name.clone(), tag, time });
            }
        }
        Ok(all)
    }
}

impl Serves<SnapshotHolds> for Engine {
    async fn serve(&self, _: &Caller, r: SnapshotHolds) -> Answer<Vec<HoldInfo>> {
        self.list_holds(r).await
    }
}
