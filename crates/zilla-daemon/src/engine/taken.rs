//! File systems that are taken from whoever has them: unmounted by force under open files, for a
//! rollback, or never mounted after all.
//!
//! What is kept true: a dataset's files are one mount's. Whoever still has the files of another gets
//! EIO from then on ([`Zfs::revoke`]), and then the dataset is free for the next.

use super::errors::Answer;
use super::mountopts::Temporary;
use super::mounts::LINGERING;
use super::pool::Pool;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use zilla::Zfs;

/// An open file system that is given up when this is dropped.
pub(super) struct Unused(pub(super) Option<Arc<Zfs>>);

impl Drop for Unused {
    fn drop(&mut self) {
        if let Some(zfs) = self.0.take() {
            zfs.revoke_now();
            zfs.let_go();
        }
    }
}

/// Takes a file system from whoever may still have it: files of what was unmounted by force, and what
/// frees files in the background. Then others may open the dataset.
pub(super) async fn take_back(name: &str, zfs: Arc<Zfs>) {
    if let Err(e) = zfs.flush_atimes().await {
        tracing::warn!("'{name}': writing access times: {e}");
    }
    match tokio::time::timeout(LINGERING, zfs.revoke()).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::error!("'{name}': {e}"),
        // Its pool is suspended. Nobody is in a transaction for so long.
        Err(_) => tracing::warn!("'{name}': what was changed last is not synced yet"),
    }
    zfs.let_go();
}

/// Whether anything is mounted below a path, whoever mounted it; also where it cannot be told.
fn is_mounted_below(at: &Path) -> bool {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return true };
    // Blanks and the like are written in octal there.
    let octal = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    let mut below: Vec<u8> = at.as_os_str().as_bytes().iter().flat_map(octal).collect();
    below.push(b'/');
    let place = |line: &[u8]| line.split(|b| *b == b' ').nth(4).is_some_and(|p| p.starts_with(&below));
    table.split(|b| *b == b'\n').any(place)
}

impl Pool {
    /// Unmounts one that is to be rolled back, in which nothing else of the pool is mounted any more.
    /// As OpenZFS goes back under open files, so does this: what they were is gone. Only where
    /// something else is mounted in it, which would go with it, does it have to be free.
    pub(super) async fn unmount_for_rollback(
        &self,
        name: &str,
        force: bool,
        unmounted: &mut Vec<(String, Temporary)>,
    ) -> Answer<()> {
        let Some(at) = self.mounted_at(name) else { return Ok(()) };
        let temporary = self.mounts.lock().get(name).map(|m| m.temporary).unwrap_or_default();
        match self.unmount_one(name, force).await {
            Err(busy) if force || is_mounted_below(&at) => return Err(busy),
            Err(_) => self.unmount_one(name, true).await?,
            Ok(()) => {}
        }
        unmounted.push((name.to_owned(), temporary));
        Ok(())
    }
}
