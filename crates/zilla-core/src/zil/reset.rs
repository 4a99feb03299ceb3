//! Emptying the logs, so that a log device can leave.

use super::replay::Replay;
use crate::dsl::DslPool;
use crate::error::{Errno, Error, Result};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use zilla_ondisk::zil::{LogRecord, ZIL_REPLAY_NEEDED};

/// For logs without records.
struct Nothing;

impl Replay for Nothing {
    fn replay<'a>(&'a self, _: &'a LogRecord<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(std::future::ready(Err(Error::os(Errno::NotSup, "there should be no record"))))
    }
    fn again<'a>(&'a self, record: &'a LogRecord<'_>) -> BoxFuture<'a, Result<()>> {
        self.replay(record)
    }
}

/// Writes what waits in memory to the logs of all open datasets: see [`super::Zilog::push_out`].
pub(crate) async fn push_out_all(dsl: &Arc<DslPool>) -> Result<()> {
    let mut todo = vec![dsl.root_dir()];
    while let Some(dir) = todo.pop() {
        todo.extend(dsl.child_dirs(&dir).await?);
        if dir.phys().head_dataset_obj == 0 {
            continue;
        }
        let log = dsl.head(&dir).await?.open_objset().and_then(|os| os.log().cloned());
        if let Some(log) = log.filter(|l| l.is_started()) {
            log.push_out().await;
        }
    }
    Ok(())
}

/// Makes every dataset's log let go of the blocks it has, so that their space is free some txgs
/// later. Refused while one holds records that were not replayed: `EEXIST`.
#[crate::boxed]
pub async fn reset_all(dsl: &Arc<DslPool>) -> Result<()> {
    let mut todo = vec![dsl.root_dir()];
    while let Some(dir) = todo.pop() {
        todo.extend(dsl.child_dirs(&dir).await?);
        if dir.phys().head_dataset_obj == 0 {
            continue;
        }
        let head = dsl.head(&dir).await?;
        if head.phys().bp.is_hole() {
            continue;
        }
        let objset = dsl.objset(&head).await?;
        let header = objset.phys().zil_header;
        if objset.log().is_none_or(|l| !l.is_started()) {
            if header.log.is_hole() {
                continue;
            }
            if header.flags & ZIL_REPLAY_NEEDED != 0 {
                let what = format!("the intent log of {} was not replayed yet; mount it first", head.name());
                return Err(Error::os(Errno::Exist, what));
            }
        }
        if objset.is_locked() {
            // An empty beginning, which cannot be begun without the key: it goes.
            if !dsl.drop_empty_log(&head).await? {
                let what = format!("the key of {} was just loaded", head.name());
                return Err(Error::os(Errno::Busy, what));
            }
            continue;
        }
        let log = dsl.open_log(&head).await?;
        log.start(&objset, &Nothing).await?;
        log.reset().await?;
    }
    Ok(())
}
