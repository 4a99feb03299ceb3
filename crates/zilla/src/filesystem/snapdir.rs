//! `.zfs/snapshot` as a directory that can be changed: mkdir takes a snapshot, rmdir destroys one,
//! rename gives one another name.
//!
//! Who may is judged here, by who asks: the manager (who runs the server) and root as they like,
//! others as `zfs allow` permits them, which the dataset's side knows ([`crate::Snapshots`]).

use super::{Entry, Filesystem, NodeId};
use crate::ctldir::{self, CTL_SNAPSHOT};
use zilla_core::dsl::Who;
use zilla_core::error::{Errno, Error, Result};
use zilla_core::tunables;

/// The name of a snapshot that is to be made, removed or renamed.
fn snapshot_name(name: &[u8]) -> Result<&str> {
    std::str::from_utf8(name).map_err(|_| Error::inval("not a snapshot's name"))
}

impl Filesystem {
    /// From now on snapshots are taken, destroyed and renamed through `.zfs/snapshot` by this user,
    /// root, and whom `zfs allow` lets (as long as the tunable `zfs_admin_snapshot` allows it).
    pub fn set_snapshot_manager(&self, uid: u32) {
        self.control.lock().manager = Some(uid);
    }

    pub(super) fn manager(&self) -> Option<u32> {
        self.control.lock().manager.filter(|_| tunables::ADMIN_SNAPSHOT.get() != 0)
    }

    /// Somebody who wants to change what snapshots there are, as permissions know him.
    fn manages(&self, uid: u32, gids: Vec<u32>) -> Result<Who> {
        self.zfs().check_lives()?;
        match self.manager() {
            None => Err(Error::os(Errno::Access, "snapshots are not managed here")),
            Some(manager) if uid == manager || uid == 0 => Ok(Who::Admin),
            Some(_) => Ok(Who::User { uid, gids }),
        }
    }

    /// Takes a snapshot: mkdir in `.zfs/snapshot`. `gids`: the user's groups, his own first.
    pub async fn take_snapshot(&self, name: &[u8], uid: u32, gids: Vec<u32>) -> Result<Entry> {
        let who = self.manages(uid, gids)?;
        self.snapshots.create(snapshot_name(name)?, &who).await?;
        self.lookup_control(CTL_SNAPSHOT, name).await
    }

    /// Destroys one: rmdir there.
    pub async fn destroy_snapshot(&self, name: &[u8], uid: u32, gids: Vec<u32>) -> Result<()> {
        let (who, name) = (self.manages(uid, gids)?, snapshot_name(name)?);
        self.snapshots.judge_destroy(name, &who).await?;
        // Open, it would be in use.
        self.opened.remove(name);
        self.snapshots.destroy(name).await
    }

    /// Gives one another name: rename there.
    pub async fn rename_snapshot(&self, old: &[u8], new: &[u8], uid: u32, gids: Vec<u32>) -> Result<()> {
        let (who, old) = (self.manages(uid, gids)?, snapshot_name(old)?);
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
