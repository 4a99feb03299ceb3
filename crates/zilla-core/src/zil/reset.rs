//! Emptying the logs, so that a log device can leave.

use crate::dsl::DslPool;
use crate::error::{Errno, Error, Result};
use std::sync::Arc;

/// Makes every dataset's log let go of the blocks it has, so that their space is free some txgs later. Refused while one holds
/// records that were not replayed: `EEXIST`.
pub async fn reset_all(dsl: &Arc<DslPool>) -> Result<()> {
    let mut todo = vec![dsl.root_dir()];
    while let Some(dir) = todo.pop() {
        todo.extend(dsl.child_dirs(&dir).await?);
        let head = dsl.head(&dir).await?;
        if head.phys().bp.is_hole() {
            continue;
        }
        let objset = dsl.objset(&head).await?;
        if super::needs_replay(&objset.phys().zil_header) {
            let what = format!("the intent log of {} was not replayed yet; mount it first", head.name());
            return Err(Error::os(Errno::Exist, what));
        }
    }
    Ok(())
}
