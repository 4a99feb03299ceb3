//! `zfs rename` and `zfs promote`.
//!
//! What is mounted in a tree that gets another name is unmounted before and mounted where it then
//! belongs, with the options it had; `-u` leaves it where it is. If the renaming fails everything
//! is mounted again as it was.

use super::access::who;
use super::errors::{Answer, of, of_dataset};
use super::pool::Pool;
use super::{Engine, Serves};
use std::sync::Arc;
use zilla::error::{Errno, Error};
use zilla_control::props::{self, naming};
use zilla_control::types::{DatasetPromote, DatasetRename, MountedReply};
use zilla_control::{ApiError, Caller, ErrorCode};

impl Engine {
    pub(super) async fn rename(&self, caller: &Caller, r: DatasetRename) -> Answer<MountedReply> {
        let pool = self.pool_of(&r.name)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        if r.name.contains('@') {
            rename_snapshot(&pool, &r).await?;
            let fs = r.name.split('@').next().unwrap_or_default();
            if !self.devices_shown(fs).await.is_empty() {
                self.show_devices(fs).await;
            }
            return Ok(MountedReply::default());
        }
        // What a receive has come to so far has a name that nobody can give or take.
        naming::check_dataset_name(&r.name, props::HEADS, true)?;
        naming::check_dataset_name(&r.target, props::HEADS, true)?;
        naming::check_nesting(&r.target, zilla::tunables::MAX_DATASET_NESTING.get())?;
        if naming::pool_of(&r.target) != pool.name() {
            return Err(ApiError::with(ErrorCode::CrossTarget, "datasets must be within same pool"));
        }
        pool.zilla.by_name(&r.name).await.map_err(of(&r.name))?;
        let below = r.target.strip_prefix(r.name.as_str()).is_some_and(|rest| rest.starts_with('/'));
        if below {
            let what = "New dataset name cannot be a descendant of current dataset name";
            return Err(ApiError::with(ErrorCode::InvalidName, what));
        }
        if r.parents {
            self.create_parents(caller, &pool, &r.target, !caller.owner).await?;
        }
        if r.no_unmount {
            rename_head(&pool, caller, &r).await?;
            self.move_devices(&pool, &r.name, &r.target).await;
            return Ok(MountedReply { mount_error: pool.share_renamed(self, &r.target).await });
        }
        let (mounted, mut failed) = pool.unmount_tree(&r.name, r.force).await;
        if failed.is_none() {
            for (name, _) in &mounted {
                pool.remove_mountpoint(name).await;
            }
            failed = rename_head(&pool, caller, &r).await.err();
        }
        if let Some(e) = failed {
            pool.mount_back(self, &mounted).await;
            return Err(e);
        }
        let renamed = mounted.into_iter().map(|(name, temporary)| {
            let rest = name.strip_prefix(r.name.as_str()).unwrap_or_default();
            (format!("{}{rest}", r.target), temporary)
        });
        let renamed: Vec<_> = renamed.collect();
        self.move_devices(&pool, &r.name, &r.target).await;
        Ok(MountedReply { mount_error: pool.mount_back(self, &renamed).await })
    }

    pub(super) async fn promote(&self, caller: &Caller, r: DatasetPromote) -> Answer<()> {
        let pool = self.pool_of(&r.name)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        if !r.name.contains('@') {
            naming::check_dataset_name(&r.name, props::HEADS, true)?;
        }
        let ds = pool.zilla.by_name(&r.name).await.map_err(of(&r.name))?;
        if ds.is_snapshot() {
            return Err(ApiError::with(ErrorCode::BadType, "snapshots can not be promoted"));
        }
        if !ds.dir().is_clone() {
            return Err(ApiError::with(ErrorCode::BadType, "not a cloned filesystem"));
        }
        let origin = ds.info().await.map_err(of_dataset)?.origin.unwrap_or_default();
        if let Some(snap) = pool.zilla.promote_conflicts(&r.name).await.map_err(of_dataset)?.first() {
            let what = format!("conflicting snapshot '{snap}' from parent '{origin}'");
            return Err(ApiError::with(ErrorCode::Exists, what));
        }
        let moved = up_to(&pool, &origin).await?;
        let promoted = pool.zilla.promote(&r.name, moved.len() as u64, who(caller));
        promoted.await.map_err(of_dataset)?;
        // They are the clone's now: who looked into them through the other's `.zfs` must not keep
        // them in use.
        for name in &moved {
            pool.forget_snapshot(name);
        }
        let fs = origin.split('@').next().unwrap_or_default();
        if !self.devices_shown(fs).await.is_empty() || !self.devices_shown(&r.name).await.is_empty() {
            self.show_devices(fs).await;
            self.show_devices(&r.name).await;
        }
        Ok(())
    }
}

impl Serves<DatasetPromote> for Engine {
    async fn serve(&self, caller: &Caller, r: DatasetPromote) -> Answer<()> {
        self.check_running(&r.name)?;
        self.promote(caller, r).await
    }
}

impl Serves<DatasetRename> for Engine {
    async fn serve(&self, caller: &Caller, mut r: DatasetRename) -> Answer<MountedReply> {
        r.force &= caller.owner;
        self.check_running(&r.name)?;
        self.rename(caller, r).await
    }
}

/// The names of a dataset's snapshots up to one of them, which a promoted clone takes over.
async fn up_to(pool: &Pool, origin: &str) -> Answer<Vec<String>> {
    let fs = origin.split('@').next().unwrap_or_default();
    let head = pool.zilla.by_name(fs).await.map_err(of(fs))?;
    let last = pool.zilla.by_name(origin).await.map_err(of(origin))?.created_txg();
    let all = head.snapshots().await.map_err(of_dataset)?;
    Ok(all.iter().filter(|s| s.created_txg() <= last).map(|s| s.name()).collect())
}

async fn rename_head(pool: &Arc<Pool>, caller: &Caller, r: &DatasetRename) -> Answer<()> {
    pool.zilla.rename_dataset(&r.name, &r.target, who(caller)).await.map_err(refused)?;
    // They inherit from elsewhere now.
    pool.refresh_volumes_of_others().await;
    Ok(())
}

fn refused(e: Error) -> ApiError {
    let what = e.to_string();
    match e.errno() {
        Errno::XDev => ApiError::with(ErrorCode::CrossTarget, what),
        // (A refusal has a class of its own.)
        Errno::Inval if !matches!(e, Error::Refused(_)) => ApiError::with(ErrorCode::InvalidName, what),
        _ => of_dataset(e),
    }
}

async fn rename_snapshot(pool: &Arc<Pool>, r: &DatasetRename) -> Answer<()> {
    naming::check_dataset_name(&r.target, props::SNAP, true)?;
    let (fs, old) = r.name.split_once('@').unwrap_or((&r.name, ""));
    let (to, new) = r.target.split_once('@').unwrap_or((&r.target, ""));
    if fs != to {
        return Err(ApiError::with(ErrorCode::CrossTarget, "snapshots must be part of same dataset"));
    }
    pool.zilla.by_name(&r.name).await.map_err(of(&r.name))?;
    let names = match r.recursive {
        true => pool.zilla.recursive_names(&r.name).await.map_err(of(&r.name))?,
        false => vec![r.name.clone()],
    };
    let renamed = pool.zilla.rename_snapshot(fs, old, new, r.recursive).await;
    renamed.map_err(|e| match e.is(Errno::Exist) {
        true if r.recursive => {
            let what = "a child dataset already has a snapshot with the new name";
            ApiError::with(ErrorCode::Exists, what)
        }
        _ => of_dataset(e),
    })?;
    for name in &names {
        pool.forget_snapshot(name);
    }
    Ok(())
}
