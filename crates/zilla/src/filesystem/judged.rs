//! Changes of names by servers that judge who may make them.
//!
//! They judge by the files that the names lead to, which may be others by the time of the change:
//! then it is refused with `Stale`, and is to be judged again.

use super::{Filesystem, NodeId};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::zpl::{Cred, Zfs};

/// Refuses the name of the control directory, under which nobody would find a file.
pub(super) fn is_free(zfs: &Zfs, dir: u64, name: &[u8]) -> Result<()> {
    match dir == zfs.root() && name == b".zfs" {
        true => Err(Error::os(Errno::Exist, "the file exists")),
        false => Ok(()),
    }
}

impl Filesystem {
    /// [`Filesystem::unlink`], or [`Filesystem::rmdir`] of a directory, if the name leads to
    /// `file`.
    pub async fn remove_judged(&self, dir: NodeId, name: &[u8], is_dir: bool, file: NodeId) -> Result<()> {
        let (zfs, id) = self.live(dir)?;
        zfs.remove_judged(id, name, is_dir, file).await
    }

    /// [`Filesystem::rename`], if the names lead to these files: the one that is renamed, and the
    /// one that is replaced.
    pub async fn rename_judged(
        &self,
        (from, old): (NodeId, &[u8]),
        (to, new): (NodeId, &[u8]),
        cred: Cred,
        judged: (NodeId, Option<NodeId>),
    ) -> Result<()> {
        let ((zfs, from), (_, to)) = (self.live(from)?, self.live(to)?);
        is_free(&zfs, to, new)?;
        zfs.rename_judged(from, old, to, new, cred, judged).await
    }
}
