//! Tags that keep snapshots from being destroyed (`zfs hold`).

use crate::error::Result;
use crate::pool::Pool;
use crate::tree::DatasetRef;

impl Pool {
    /// Why a snapshot cannot be held under a tag. EEXIST: it is already.
    pub async fn hold_check(&self, name: &str, tag: &str) -> Result<()> {
        self.dsl().hold_check(name, tag).await
    }

    /// Holds snapshots under a tag, all or none.
    pub async fn hold_snapshots(&self, names: Vec<String>, tag: String) -> Result<()> {
        self.task(move |dsl, tx| {
            Box::pin(async move {
                // Whoever came first may have taken a tag or a snapshot meanwhile: nothing is held
                // before all can be.
                for name in &names {
                    dsl.hold_check(name, &tag).await?;
                }
                for name in &names {
                    dsl.hold_snapshot(&tx, name, &tag).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Takes a tag from snapshots, from all or none. One that only waited for this goes, and is
    /// busy if somebody uses it.
    pub async fn release_snapshots(&self, names: Vec<String>, tag: String) -> Result<()> {
        self.task(move |dsl, tx| Box::pin(async move { dsl.release_snapshots(&tx, &names, &tag).await }))
            .await
    }
}

impl DatasetRef {
    /// The tags that hold it, and since when, seconds since 1970.
    pub async fn holds(&self) -> Result<Vec<(String, u64)>> {
        self.dsl.holds(&self.ds).await
    }

    /// Whether a tag holds it.
    pub async fn has_hold(&self, tag: &str) -> Result<bool> {
        self.dsl.has_hold(&self.ds, tag).await
    }
}
