//! `zfs snapshot` and `zfs rollback`.

use super::access::who;
use super::datasets::typed;
use super::errors::{Answer, of, of_dataset};
use super::pool::Pool;
use super::{Engine, Serves};
use std::collections::BTreeMap;
use std::time::Duration;
use zilla::error::Errno;
use zilla_control::props::{self, naming};
use zilla_control::types::{DatasetDestroy, DatasetRollback, DatasetSnapshot};
use zilla_control::{ApiError, Caller, ErrorCode};

/// A snapshot of this very txg is in the way: the next txg's will do.
const TRIES: usize = 8;
/// Between two tries, where it is not a txg that is waited for.
const PAUSE: Duration = Duration::from_millis(50);
/// Snapshots and bookmarks in the way of a rollback that are named, at most.
const MOST_NAMED: usize = 32;
/// Of one file system twice, or of several pools at once.
const NOT_ALL: &str = "multiple snapshots of same fs not allowed";

impl Engine {
    pub(super) async fn snapshot(&self, caller: &Caller, r: DatasetSnapshot) -> Answer<()> {
        let settings = typed(&r.properties, props::SNAP, true)?;
        let mut by_pool: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in &r.names {
            naming::check_dataset_name(name, props::SNAP, true).map_err(|e| e.subject(name.as_str()))?;
            let head = name.split('@').next().unwrap_or(name);
            let pool = self.pool_of(head).map_err(|e| e.subject(head))?;
            // What is not there is the dataset: it is looked for before anything is made.
            pool.zilla.by_name(head).await.map_err(of(head))?;
            let all = by_pool.entry(pool.name()).or_default();
            if r.recursive {
                all.extend(pool.zilla.recursive_names(name).await.map_err(of(name))?);
            } else {
                all.push(name.clone());
            }
        }
        if by_pool.len() > 1 {
            // OpenZFS's words for it.
            return Err(ApiError::with(ErrorCode::Exists, NOT_ALL));
        }
        for (pool, mut names) in by_pool {
            let pool = self.pool(&pool)?;
            names.sort();
            names.dedup();
            if pool.readonly() {
                return Err(ErrorCode::PoolReadonly.into());
            }
            for name in &names {
                if let Err(e) = pool.zilla.snapshot_check(name).await {
                    return Err(refusal(&e).unwrap_or_else(|| of_dataset(e)).subject(name.as_str()));
                }
            }
            let mut tries = TRIES;
            loop {
                let taken = pool.zilla.take_snapshots(names.clone(), settings.clone(), who(caller));
                match taken.await {
                    Err(e) if e.is(Errno::Again) && tries > 0 => tries -= 1,
                    Err(e) => return Err(refusal(&e).unwrap_or_else(|| of_dataset(e))),
                    Ok(()) => break,
                }
            }
            for fs in names.iter().filter_map(|n| n.split('@').next()) {
                if self.devices_shown(fs).await.iter().any(|shown| shown == fs) {
                    self.show_devices(fs).await;
                }
            }
        }
        Ok(())
    }
}

impl Serves<DatasetSnapshot> for Engine {
    async fn serve(&self, caller: &Caller, r: DatasetSnapshot) -> Answer<()> {
        r.names.iter().try_for_each(|name| self.check_running(name))?;
        self.snapshot(caller, r).await
    }
}

fn refusal(e: &zilla::error::Error) -> Option<ApiError> {
    e.is(Errno::XDev).then(|| ApiError::with(ErrorCode::Exists, NOT_ALL))
}

impl Engine {
    /// `zfs rollback`. What is mounted is taken away, also from whoever has a file open, and
    /// mounted again.
    pub(super) async fn roll_back(&self, r: DatasetRollback) -> Answer<()> {
        let pool = self.pool_of(&r.snapshot)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        let fs = r.snapshot.split('@').next().unwrap_or_default().to_owned();
        let head = pool.zilla.by_name(&fs).await.map_err(of(&fs))?;
        let target = pool.zilla.by_name(&r.snapshot).await.map_err(of(&r.snapshot))?;
        let all = head.snapshots().await.map_err(of_dataset)?;
        let later: Vec<_> = all.iter().filter(|s| s.created_txg() > target.created_txg()).cloned().collect();
        let names: Vec<String> = later.iter().map(|s| s.name()).collect();
        let since = target.created_txg();
        let marks: Vec<String> = head
            .bookmarks()
            .iter()
            .filter(|b| b.phys.creation_txg > since)
            .map(|b| format!("{fs}#{}", b.name))
            .collect();
        let newer = !later.is_empty() || !marks.is_empty();
        if newer && !r.destroy_later {
            let mut details =
                vec!["use '-r' to force deletion of the following snapshots and bookmarks:".to_owned()];
            details.extend(names.into_iter().chain(marks).take(MOST_NAMED));
            if details.len() > MOST_NAMED {
                details.push(format!("Output limited to {MOST_NAMED} snapshots/bookmarks"));
            }
            return Err(ApiError::with(ErrorCode::HasDependents, "more recent snapshots or bookmarks exist")
                .details(details));
        }
        // What could not be destroyed is refused before anything is taken from anybody.
        if let Some(held) = later.iter().find(|s| s.userrefs() > 0) {
            return Err(ApiError::with(ErrorCode::Busy, "dataset is busy").subject(held.name()));
        }
        for name in &names {
            pool.check_not_mounted(name).await?;
        }
        let mut clones = Vec::new();
        for snap in &later {
            clones.extend(snap.clones().await.map_err(of_dataset)?);
        }
        if !clones.is_empty() && !r.destroy_clones {
            let mut details =
                vec!["use '-R' to force deletion of the following clones and dependents:".to_owned()];
            details.extend(clones);
            return Err(ApiError::with(ErrorCode::HasDependents, "clones of previous snapshots exist")
                .details(details));
        }
        // It may be that somebody has just unmounted it.
        {
            let _one = pool.mounting.lock().await;
            pool.settle(&fs).await?;
        }
        let below: Vec<String> = match pool.mounted_at(&fs) {
            Some(_) => pool.mounted_below(&fs).into_iter().filter(|name| *name != fs).collect(),
            None => Vec::new(),
        };
        let (mut unmounted, failed) = pool.unmount_each(&below, r.force).await;
        let failed = match failed {
            None => pool.unmount_for_rollback(&fs, r.force, &mut unmounted).await.err(),
            failed => failed,
        };
        let done = match failed {
            Some(busy) => Err(busy),
            None => self.roll_back_unmounted(&pool, &r, &fs, names, marks).await,
        };
        self.show_devices(&fs).await;
        let lost = pool.mount_back(self, &unmounted).await;
        done?;
        // Programs would go on in the directory below.
        lost.map_or(Ok(()), Err)
    }

    async fn roll_back_unmounted(
        &self,
        pool: &Pool,
        r: &DatasetRollback,
        fs: &str,
        later: Vec<String>,
        marks: Vec<String>,
    ) -> Answer<()> {
        if !later.is_empty() {
            let list: Vec<&str> = later.iter().filter_map(|n| n.split_once('@')).map(|(_, s)| s).collect();
            let target = format!("{fs}@{}", list.join(","));
            let (clones, force) = (r.destroy_clones, r.force);
            let request = DatasetDestroy { target, clones, force, ..DatasetDestroy::default() };
            self.destroy_whole(request, false).await?;
        }
        for mark in marks {
            self.destroy_bookmark(&DatasetDestroy { target: mark, ..DatasetDestroy::default() }).await?;
        }
        let head = pool.zilla.by_name(fs).await.map_err(of(fs))?;
        let paused = pool.pause_volume(&head).await?;
        let done = self.roll_back_unused(pool, r, fs).await;
        pool.resume_volume(paused).await;
        done
    }

    async fn roll_back_unused(&self, pool: &Pool, r: &DatasetRollback, fs: &str) -> Answer<()> {
        let mut tries = TRIES;
        loop {
            match pool.zilla.roll_back(fs, &r.snapshot).await {
                Err(e) if e.is(Errno::Again) && tries > 0 => {}
                // What was just unmounted may be let go of a moment later.
                Err(e) if e.is(Errno::Busy) && tries > 0 => tokio::time::sleep(PAUSE).await,
                other => return other.map_err(of_dataset),
            }
            tries -= 1;
        }
    }
}

impl Serves<DatasetRollback> for Engine {
    async fn serve(&self, caller: &Caller, mut r: DatasetRollback) -> Answer<()> {
        r.force &= caller.owner;
        self.check_running(&r.snapshot)?;
        self.roll_back(r).await
    }
}
