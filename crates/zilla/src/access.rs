//! Who may do what: permissions that were given away (`zfs allow`), and whom limits bind.

use crate::error::Result;
use crate::pool::Pool;
use crate::tree::{DatasetDir, DatasetRef};

pub use zilla_core::dsl::{Grantee, Grants, Who};

impl Pool {
    /// Whether permissions that were given away count in this pool (`delegation`).
    pub async fn delegates(&self) -> Result<bool> {
        self.dsl().delegates().await
    }

    /// Gives permissions on datasets, or takes them back, in one txg. Where one is refused, those
    /// before it are changed.
    pub async fn change_grants(
        &self,
        names: Vec<String>,
        grants: Vec<(Grantee, Vec<String>)>,
        take: bool,
    ) -> Result<()> {
        self.task(move |dsl, tx| {
            Box::pin(async move {
                for name in &names {
                    match take {
                        true => dsl.unallow(&tx, name, &grants).await?,
                        false => dsl.allow(&tx, name, &grants).await?,
                    }
                }
                Ok(())
            })
        })
        .await
    }
}

impl DatasetRef {
    /// Whether somebody has a permission on it.
    pub async fn may(&self, permission: &str, who: &Who) -> Result<bool> {
        self.dsl.may(&self.ds, permission, who).await
    }
}

impl DatasetDir {
    /// Whether somebody would have a permission on what is below; `new`: on what he makes there.
    pub async fn may_below(&self, permission: &str, who: &Who, new: bool) -> Result<bool> {
        self.dsl.may_below(&self.dir, permission, who, new).await
    }

    /// What was given here, without what was given above.
    pub async fn grants(&self) -> Result<Grants> {
        self.dsl.grants(&self.dir).await
    }
}
