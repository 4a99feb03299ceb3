//! From a file's number to its path, for messages about damaged files.

use super::fs::Zfs;
use super::{DirEntry, dirent_obj};
use crate::dmu::{Now, resident};
use crate::error::{Error, Result};
use std::sync::Arc;

/// No path is longer; a loop of parents on a damaged disk is.
const MAX_DEPTH: usize = 1024;

impl Zfs {
    /// One of the paths of a file, from the root, which is `/`.
    pub async fn path_of(self: &Arc<Self>, id: u64) -> Result<String> {
        let mut names: Vec<String> = Vec::new();
        let mut at = id;
        while at != self.root() {
            if names.len() == MAX_DEPTH {
                return Err(Error::no_ent("the directories above the file form a loop"));
            }
            let up = resident(|| self.parent_now(at)).await?;
            names.push(self.name_in(up, at).await?);
            at = up;
        }
        names.reverse();
        Ok(format!("/{}", names.join("/")))
    }

    fn parent_now(&self, id: u64) -> Now<u64> {
        let zn = self.znode(id)?;
        let parent = zn.state.lock().attrs.parent;
        Ok(dirent_obj(parent))
    }

    async fn name_in(&self, dir: u64, id: u64) -> Result<String> {
        let mut cookie = 0;
        loop {
            let batch = self.readdir(dir, cookie).await?;
            let Some(last) = batch.last() else { return Err(Error::no_ent("the file has no name")) };
            cookie = last.cookie;
            let own = |e: &&DirEntry| e.ino == id && e.name != b"." && e.name != b"..";
            if let Some(e) = batch.iter().find(own) {
                return Ok(String::from_utf8_lossy(&e.name).into_owned());
            }
        }
    }
}
