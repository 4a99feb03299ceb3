//! `zilla clone-file`: a whole file shared with another, also of another file system of the pool.
//!
//! The command has made the new file, and has opened both, so the kernel has judged whether its
//! user may. What changes here goes past the kernel, which is told to forget what it knows of the
//! file.

use super::errors::Answer;
use super::{Engine, Serves};
use std::sync::Arc;
use zilla::Filesystem;
use zilla::error::Errno;
use zilla_control::types::{FileClone, FileId};
use zilla_control::{ApiError, Caller, ErrorCode};
use zilla_fuse::Notifier;

impl Engine {
    fn file_system_of(&self, file: &FileId) -> Answer<(Arc<Filesystem>, Notifier)> {
        for pool in self.all_pools() {
            for mounted in pool.mounts().values() {
                if mounted.mount.device() == file.device {
                    return Ok((mounted.fs.clone(), mounted.mount.notifier()));
                }
            }
        }
        Err(ApiError::with(ErrorCode::NoEnt, "not on a ZFS filesystem").subject(&file.path))
    }
}

impl Serves<FileClone> for Engine {
    async fn serve(&self, _: &Caller, r: FileClone) -> Answer<u64> {
        let (src, _) = self.file_system_of(&r.from)?;
        let (dst, notifier) = self.file_system_of(&r.to)?;
        let done = dst.clone_file(&src, r.from.inode, r.to.inode).await;
        // (Not by a thread that serves the mount: it would wait for itself.)
        let node = r.to.inode;
        let told = tokio::task::spawn_blocking(move || notifier.inode(node)).await;
        if let Ok(Err(e)) = told {
            tracing::error!(file = %r.to.path, "telling the kernel of a file's new contents: {e}");
        }
        done.map_err(|e| {
            let code = if e.is(Errno::NoSpc) { ErrorCode::NoSpc } else { ErrorCode::Unsupported };
            ApiError::with(code, e.to_string()).subject(&r.to.path)
        })
    }
}
