//! What users, groups and projects use of a file system, and what they may.

use crate::error::Result;
use crate::tree::DatasetRef;

pub use zilla_core::dsl::{Quota, UserSpace};

impl DatasetRef {
    /// Whether it counts bytes, objects, and both of projects.
    pub async fn accounts_kept(&self) -> Result<[bool; 3]> {
        self.dsl.accounts_kept(&self.ds).await
    }

    /// What each user, group or project uses.
    pub async fn accounts(&self, whose: Quota) -> Result<Vec<UserSpace>> {
        self.dsl.userspace(&self.ds, whose).await
    }

    /// What they may use, by their numbers: bytes, or with `objects` files.
    pub async fn quotas(&self, whose: Quota, objects: bool) -> Result<Vec<(u64, u64)>> {
        self.dsl.quotas(&self.ds, whose, objects).await
    }
}
