//! The directory `zvol/` of the state folder, in which volumes are files.
//!
//! It is mounted when it is first asked for, and unmounted with the daemon.

use super::errors::Answer;
use super::volumes::Offered;
use super::{Engine, Serves};
use futures_util::future::BoxFuture;
use std::path::PathBuf;
use std::sync::Arc;
use zilla_control::types::VolumeFiles;
use zilla_control::{ApiError, Caller, ErrorCode};
use zilla_fuse::{OpenVolume, Shelf, VolumeMount};
use zilla_nbd::Exports;

impl Shelf for Offered {
    fn list(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(Exports::list(self))
    }

    fn open<'a>(&'a self, name: &'a str) -> BoxFuture<'a, zilla::Result<OpenVolume>> {
        Box::pin(async move {
            let opened = self.open_volume(name).await?;
            let gone = || zilla::Error::no_ent("there is no such volume here");
            let (used, _) = opened.ok_or_else(gone)?;
            Ok(OpenVolume { volume: used.volume.clone(), hold: Box::new(used) })
        })
    }
}

fn failed(what: impl std::fmt::Display) -> ApiError {
    ApiError::with(ErrorCode::MountFailed, what.to_string())
}

impl Engine {
    pub(super) async fn volume_directory(&self, _: VolumeFiles) -> Answer<String> {
        let mut mounted = self.zvol_files.lock().await;
        let dir = self.handle.state_dir().zvol_dir();
        if mounted.as_ref().is_none_or(VolumeMount::is_gone) {
            let shelf = Arc::new(Offered { pools: self.pools.clone() });
            let (env, at) = (self.env.clone(), dir.clone());
            let mount = tokio::task::spawn_blocking(move || attach(shelf, env, at)).await.map_err(failed)?;
            *mounted = Some(mount.map_err(failed)?);
        }
        Ok(dir.to_string_lossy().into_owned())
    }

    /// Takes the directory away; files that are open are closed for their users.
    pub(super) async fn close_volume_directory(&self) {
        let Some(mount) = self.zvol_files.lock().await.take() else { return };
        let mount = Arc::new(mount);
        let detached = mount.clone();
        match tokio::task::spawn_blocking(move || detached.unmount(true)).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::warn!("'{}': {e}", mount.mountpoint().display()),
            Err(e) => tracing::error!("unmounting the directory of volumes: {e}"),
        }
    }
}

impl Serves<VolumeFiles> for Engine {
    async fn serve(&self, _: &Caller, r: VolumeFiles) -> Answer<String> {
        self.volume_directory(r).await
    }
}

fn attach(shelf: Arc<Offered>, env: zilla_env::Env, dir: PathBuf) -> std::io::Result<VolumeMount> {
    zilla_fuse::clear_stale(&dir)?;
    match std::fs::create_dir(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    zilla_fuse::mount_volumes(shelf, env, &dir)
}
