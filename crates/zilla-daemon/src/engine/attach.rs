//! From a file system that is open to a mount: its directory is found and made, and mounted on.
//!
//! The way to the directory may lead through file systems that do not answer: those of a server
//! that is away, of a program of some user's, or of this very process. It is walked where waiting
//! is harmless ([`zilla_env::apart`]), and for no longer than [`PATIENCE`]: who mounts keeps others
//! from mounting, and a daemon that starts from serving.

use super::place::{Place, is_empty};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use zilla::Filesystem;
use zilla_env::{Env, apart_with, strerror};
use zilla_fuse::{Mount, Options};

/// A way that takes longer leads nowhere.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why nothing is mounted, in words.
type Refused = String;

/// Mounts at a place, whose directory is made if it is missing.
pub(super) async fn attach(
    fs: Arc<Filesystem>,
    env: Env,
    place: Place,
    options: Options,
    overlay: bool,
) -> Result<Mount, Refused> {
    let path = place.path.clone();
    let find = move |_: &[BorrowedFd<'_>]| {
        let stale = zilla_fuse::clear_stale(&place.path).err();
        Ok(match directory(&place, overlay) {
            Ok(dir) => ((stale, None), vec![dir]),
            Err(why) => ((stale, Some(why)), Vec::new()),
        })
    };
    let ((stale, why), found) = answered(apart_with(Vec::new(), find)).await?;
    if let Some(e) = stale {
        tracing::warn!("'{}': {e}", path.display());
    }
    let dir = found.into_iter().next().ok_or_else(|| why.unwrap_or_default())?;
    // It takes some calls, each of which waits for the kernel.
    let mounted = tokio::task::spawn_blocking(move || zilla_fuse::mount_on(fs, env, dir, &options));
    mounted.await.map_err(|e| e.to_string())?.map_err(|e| strerror(&e))
}

/// What was found on the way, if that does not take too long.
async fn answered<T>(found: impl Future<Output = io::Result<T>>) -> Result<T, Refused> {
    match tokio::time::timeout(PATIENCE, found).await {
        Ok(found) => found.map_err(|e| strerror(&e)),
        Err(_) => {
            let seconds = PATIENCE.as_secs();
            Err(format!("what its mountpoint lies in has not answered for {seconds} seconds"))
        }
    }
}

/// The directory to mount on, or why there is none. Runs apart.
fn directory(place: &Place, overlay: bool) -> Result<OwnedFd, Refused> {
    let dir = place.open(true).map_err(|e| format!("failed to create mountpoint: {}", strerror(&e)))?;
    if !overlay && !is_empty(dir.as_fd()).map_err(|e| strerror(&e))? {
        return Err("directory is not empty".to_owned());
    }
    Ok(dir)
}
