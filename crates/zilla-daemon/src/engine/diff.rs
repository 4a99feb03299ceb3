//! `zfs diff` and `zfs wait`: what goes on in a file system's files.

use super::errors::{Answer, of};
use super::pool::Pool;
use super::{Engine, Serves};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zilla::Zfs;
use zilla::zpl::{Change, differences};
use zilla_control::props::{self, naming};
use zilla_control::types::{DatasetDiff, DatasetDiffReply, DatasetWait, DiffChange, DiffEntry};
use zilla_control::{ApiError, Caller, ErrorCode};

/// Lines of one reply; a block of dnodes may add some.
const MOST: usize = 8192;
/// How long one request waits, and how often it looks.
const WAIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

impl Serves<DatasetDiff> for Engine {
    async fn serve(&self, _: &Caller, r: DatasetDiff) -> Answer<DatasetDiffReply> {
        naming::check_dataset_name(&r.from, props::SNAP, false)?;
        naming::check_dataset_name(&r.to, props::FS | props::SNAP, false)?;
        let pool = self.pool_of(&r.to)?;
        let from = pool.zilla.by_name(&r.from).await.map_err(of(&r.from))?;
        let to = pool.zilla.by_name(&r.to).await.map_err(of(&r.to))?;
        let fs = r.to.split('@').next().unwrap_or(&r.to);
        for (name, ds) in [(&r.from, &from), (&r.to, &to)] {
            if !ds.is_filesystem().await.map_err(of(name))? {
                return Err(ApiError::new(ErrorCode::BadType).subject(name.as_str()));
            }
        }
        if !to.is_after(&from, 0).await.map_err(of(&r.to))? {
            let what = "Not an earlier snapshot from the same fs";
            return Err(ApiError::with(ErrorCode::CrossTarget, what));
        }
        let Some(mountpoint) = pool.mounted_at(fs) else {
            return Err(ApiError::with(ErrorCode::MountFailed, "Cannot diff an unmounted snapshot"));
        };
        if !to.is_snapshot() && r.at == 0 && !pool.readonly() {
            // What is told is what is on disk.
            pool.zilla.sync().await.map_err(of(&r.to))?;
        }
        let since = from.created_txg();
        let from = from.open_zfs(true).await.map_err(of(&r.from))?;
        let later = match to.is_snapshot() {
            true => to.open_zfs(true).await.map_err(of(&r.to))?,
            false => live(&pool, fs)?,
        };
        let (found, next) = differences(&from, since, &later, r.at, MOST).await.map_err(of(&r.to))?;
        let entries = found.into_iter().map(|d| DiffEntry {
            change: match d.change {
                Change::Added => DiffChange::Added,
                Change::Removed => DiffChange::Removed,
                Change::Modified => DiffChange::Modified,
                Change::Renamed(path) => DiffChange::Renamed(path),
                Change::Links(n) => DiffChange::Links(n),
            },
            path: d.path,
            mode: d.mode,
            ctime: (d.ctime.sec, d.ctime.nsec),
        });
        Ok(DatasetDiffReply { entries: entries.collect(), next, mountpoint: shown(&mountpoint) })
    }
}

impl Serves<DatasetWait> for Engine {
    async fn serve(&self, _: &Caller, r: DatasetWait) -> Answer<bool> {
        naming::check_dataset_name(&r.name, props::FS, false)?;
        let pool = self.pool_of(&r.name)?;
        let ds = pool.zilla.by_name(&r.name).await.map_err(of(&r.name))?;
        if !ds.is_filesystem().await.map_err(of(&r.name))? {
            return Err(ApiError::new(ErrorCode::BadType).subject(r.name));
        }
        let until = Instant::now() + WAIT;
        loop {
            // Nobody empties the queue of one that is not mounted, so nothing is in progress.
            let Ok(zfs) = live(&pool, &r.name) else { return Ok(true) };
            if zfs.files_to_free().await.map_err(of(&r.name))? == 0 {
                return Ok(true);
            }
            drop(zfs);
            if Instant::now() >= until {
                return Ok(false);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// The files of a mounted file system.
fn live(pool: &Pool, name: &str) -> Answer<Arc<Zfs>> {
    let mounted = pool.mounts().get(name).filter(|m| !m.mount.is_going()).map(|m| m.fs.zfs());
    mounted.ok_or_else(|| ApiError::with(ErrorCode::MountFailed, "Cannot diff an unmounted snapshot"))
}

fn shown(path: &Path) -> String {
    match path.to_string_lossy().as_ref() {
        "/" => String::new(),
        path => path.to_owned(),
    }
}
