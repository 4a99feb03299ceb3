//! `.zfs/snapshot` as a directory that can be changed: mkdir takes a snapshot, rmdir destroys one,
//! rename gives one another name.
//!
//! Who may is judged here, by who asks: the manager (who runs the server) and root as they like,
//! others as `zfs allow` permits them, which the dataset's side knows ([`crate::Snapshots`]). A
//! user's number alone does not make him root: in a container root may have no power over the
//! machine, and what he sees of `.zfs` is the machine's.

use super::{Entry, Filesystem, NodeId};
use crate::ctldir::{self, CTL_ROOT, CTL_SNAPSHOT};
use zilla_core::dsl::Who;
use zilla_core::error::{Errno, Error, Result};
use zilla_core::tunables;
use zilla_core::zpl::DirEntry;

/// The name of a snapshot that is to be made, removed or renamed.
fn snapshot_name(name: &[u8]) -> Result<&str> {
    std::str::from_utf8(name).map_err(|_| Error::inval("not a snapshot's name"))
}

/// Somebody who wants to change what snapshots there are, as a server knows him.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    /// His number.
    pub uid: u32,
    /// His groups, his own first.
    pub gids: Vec<u32>,
    /// He lacks no power that the server has. Without that root is a user as any other.
    pub is_able: bool,
}

impl Filesystem {
    /// Entries of `.zfs`, or of `.zfs/snapshot`.
    pub(super) async fn readdir_control(&self, dir: NodeId, cookie: u64) -> Result<Vec<DirEntry>> {
        let mut all = vec![(b".".to_vec(), ctldir::ino(dir))];
        if dir == CTL_ROOT {
            all.push((b"..".to_vec(), self.root()));
            all.push((b"snapshot".to_vec(), ctldir::INO_SNAPSHOT));
        } else {
            all.push((b"..".to_vec(), ctldir::INO_ROOT));
            let mut snaps = self.snapshots.list().await?;
            snaps.sort();
            all.extend(snaps.into_iter().map(|(name, id)| (name.into_bytes(), ctldir::snapshot_ino(id))));
        }
        let entry = |(i, (name, ino)): (usize, (Vec<u8>, u64))| DirEntry {
            name,
            ino,
            dtype: 4,
            cookie: i as u64 + 1,
        };
        Ok(all.into_iter().enumerate().map(entry).skip(cookie as usize).collect())
    }

    /// From now on snapshots are taken, destroyed and renamed through `.zfs/snapshot` by this user,
    /// root, and whom `zfs allow` lets (as long as the tunable `zfs_admin_snapshot` allows it).
    pub fn set_snapshot_manager(&self, uid: u32) {
        self.control.lock().manager = Some(uid);
    }

    pub(super) fn manager(&self) -> Option<u32> {
        self.control.lock().manager.filter(|_| tunables::ADMIN_SNAPSHOT.get() != 0)
    }

    /// The same as permissions know him.
    fn manages(&self, Asker { uid, gids, is_able }: Asker) -> Result<Who> {
        self.zfs().check_lives()?;
        match self.manager() {
            None => Err(Error::os(Errno::Access, "snapshots are not managed here")),
            Some(manager) if is_able && (uid == manager || uid == 0) => Ok(Who::Admin),
            Some(_) => Ok(Who::User { uid, gids }),
        }
    }

    /// Takes a snapshot: mkdir in `.zfs/snapshot`.
    pub async fn take_snapshot(&self, name: &[u8], by: Asker) -> Result<Entry> {
        let who = self.manages(by)?;
        self.snapshots.create(snapshot_name(name)?, &who).await?;
        self.lookup_control(CTL_SNAPSHOT, name).await
    }

    /// Destroys one: rmdir there.
    pub async fn destroy_snapshot(&self, name: &[u8], by: Asker) -> Result<()> {
        let (who, name) = (self.manages(by)?, snapshot_name(name)?);
        self.snapshots.judge_destroy(name, &who).await?;
        // Open, it would be in use.
        self.opened.remove(name);
        self.snapshots.destroy(name).await
    }

    /// Gives one another name: rename there.
    pub async fn rename_snapshot(&self, old: &[u8], new: &[u8], by: Asker) -> Result<()> {
        let (who, old) = (self.manages(by)?, snapshot_name(old)?);
        self.snapshots.rename(old, snapshot_name(new)?, &who).await?;
        self.opened.remove(old);
        Ok(())
    }

    /// A snapshot was destroyed or renamed: closes it. Returns the node of its root directory if
    /// anyone had looked into it.
    pub fn snapshot_gone(&self, name: &str) -> Option<NodeId> {
        self.opened.remove(name).map(|n| ctldir::join(n, 0))
    }

    /// The node of `.zfs/snapshot`, for servers that tell their clients to forget a name in it.
    pub fn snapdir_node(&self) -> NodeId {
        CTL_SNAPSHOT
    }
}
