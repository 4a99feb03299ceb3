//! From a file's number to its path, for messages about damaged files.

use super::fs::Zfs;
use super::{DirEntry, PFLAG_XATTR, dirent_obj};
use crate::dmu::{Now, resident};
use crate::error::{Error, Result};
use std::sync::Arc;

/// No path is longer; a loop of parents on a damaged disk is.
const MAX_DEPTH: usize = 1024;
/// What OpenZFS calls the directory of a file's attributes, which has no name.
const XATTR_DIR: &[u8] = b"<xattrdir>";

impl Zfs {
    /// One of the paths of a file, from the root, which is `/`.
    #[crate::boxed]
    pub async fn path_of(self: &Arc<Self>, id: u64) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.path_bytes(id).await?).into_owned())
    }

    /// The same, whatever bytes names are made of.
    pub(super) async fn path_bytes(self: &Arc<Self>, id: u64) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = id;
        while at != self.root() {
            if names.len() == MAX_DEPTH {
                return Err(Error::no_ent("the directories above the file form a loop"));
            }
            let (up, of_xattrs) = resident(|| self.parent_now(at)).await?;
            names.push(match of_xattrs {
                true => XATTR_DIR.to_vec(),
                false => self.name_in(up, at).await?,
            });
            at = up;
        }
        names.reverse();
        let mut path = b"/".to_vec();
        path.extend(names.join(&b'/'));
        Ok(path)
    }

    /// What a file lies in, and whether it is the directory of that one's attributes.
    fn parent_now(&self, id: u64) -> Now<(u64, bool)> {
        let zn = self.znode(id)?;
        let state = zn.state.lock();
        let of_xattrs = state.attrs.is_dir() && state.attrs.pflags & PFLAG_XATTR != 0;
        Ok((dirent_obj(state.attrs.parent), of_xattrs))
    }

    async fn name_in(&self, dir: u64, id: u64) -> Result<Vec<u8>> {
        let mut cookie = 0;
        loop {
            let batch = self.readdir(dir, cookie).await?;
            let Some(last) = batch.last() else { return Err(Error::no_ent("the file has no name")) };
            cookie = last.cookie;
            let own = |e: &&DirEntry| e.ino == id && e.name != b"." && e.name != b"..";
            if let Some(e) = batch.iter().find(own) {
                return Ok(e.name.clone());
            }
        }
    }
}
