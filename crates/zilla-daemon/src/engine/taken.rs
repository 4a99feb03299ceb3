//! File systems that are taken from whoever has them: unmounted by force under open files, for a
//! rollback, or never mounted after all.
//!
//! What is kept true: a dataset's files are one mount's. Whoever still has the files of another
//! gets EIO from then on ([`Filesystem::revoke`]), and then the dataset is free for the next.

use super::errors::Answer;
use super::meanwhile::Earlier;
use super::mounts::{ELSEWHERE, LINGERING, Stays};
use super::pool::Pool;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zilla::Filesystem;
use zilla_control::{ApiError, ErrorCode};
use zilla_fuse::mountinfo;

/// How often copies of a mount are looked for again.
const AGAIN: Duration = Duration::from_millis(200);

/// An open file system that is given up when this is dropped.
pub(super) struct Unused(pub(super) Option<Arc<Filesystem>>);

impl Drop for Unused {
    fn drop(&mut self) {
        if let Some(fs) = self.0.take() {
            fs.revoke_now();
            fs.zfs().let_go();
        }
    }
}

/// Takes a file system from whoever may still have it: files of what was unmounted by force, what
/// was looked into of its snapshots, and what frees files in the background. Then others may open
/// the dataset.
pub(super) async fn take_back(name: &str, fs: &Filesystem) {
    let taken = async {
        if let Err(e) = fs.zfs().flush_atimes().await {
            tracing::warn!("'{name}': writing access times: {e}");
        }
        fs.revoke().await
    };
    match tokio::time::timeout(LINGERING, taken).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::error!("'{name}': {e}"),
        // Its pool is suspended. Nobody is in a transaction for so long.
        Err(_) => {
            tracing::warn!("'{name}': what was changed last is not synced yet");
            fs.revoke_now();
        }
    }
    fs.zfs().let_go();
}

/// Whether anything is mounted below a path, whoever mounted it; also where it cannot be told.
fn is_mounted_below(at: &Path) -> bool {
    mountinfo::mounted().map_or(true, |all| all.iter().any(|m| m.path != at && m.path.starts_with(at)))
}

/// Whether there are copies of a mount that stay. A container that starts has all mounts for a
/// moment.
async fn keeps_copies(device: u64) -> bool {
    let begun = Instant::now();
    while zilla_env::apart(move || mountinfo::has_copies(device)).await.unwrap_or(false) {
        if begun.elapsed() >= LINGERING {
            return true;
        }
        tokio::time::sleep(AGAIN).await;
    }
    false
}

impl Pool {
    /// Unmounts one that is to be rolled back, in which nothing else of the pool is mounted any
    /// more. As OpenZFS goes back under open files, so does this: what they were is gone. Only
    /// where something else is mounted in it, which would go with it, does it have to be free. A
    /// copy of the mount, which a container has or a bind mount is, could not be given back: where
    /// there is one nothing is done.
    pub(super) async fn unmount_for_rollback(
        &self,
        name: &str,
        force: bool,
        unmounted: &mut Vec<(String, Earlier)>,
    ) -> Answer<()> {
        let Some(at) = self.mounted_at(name) else { return Ok(()) };
        let device = self.mounts().get(name).map(|m| m.mount.device()).unwrap_or_default();
        if !force && keeps_copies(device).await {
            let path = at.to_string_lossy().into_owned();
            return Err(ApiError::with(ErrorCode::UmountFailed, ELSEWHERE).subject(path));
        }
        let earlier = self.earlier(name);
        match self.try_unmount(name, force, LINGERING).await {
            Err(Stays::Busy(_)) if !force && !is_mounted_below(&at) => self.unmount_one(name, true).await?,
            done => done.map_err(Stays::why)?,
        }
        unmounted.push((name.to_owned(), earlier));
        Ok(())
    }
}
