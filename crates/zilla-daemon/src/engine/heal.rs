//! `zfs receive -c`: damaged blocks of a snapshot, mended from a stream of it.
//!
//! Nothing of the snapshot changes but what could not be read, so whoever uses it, or mounts it,
//! need not notice.

use super::Engine;
use super::errors::{Answer, of_dataset};
use super::pool::Pool;
use super::receive::{Part, why};
use super::streams::Told;
use std::sync::Arc;
use zilla::error::{Errno, Error};
use zilla::streams::RecordReader;
use zilla_control::types::StreamReceive;
use zilla_control::{ApiError, ErrorCode};

fn refused(why: &str) -> ApiError {
    ApiError::with(ErrorCode::Stream, format!("cannot receive: {why}"))
}

/// What a corrective receive may not be asked for besides: nothing is made, so nothing is named,
/// set or mounted.
pub(super) fn check_options(r: &StreamReceive) -> Answer<()> {
    let props = !r.set.is_empty() || !r.exclude.is_empty() || r.origin.is_some();
    let place = r.keep_path || r.keep_last || r.no_mount || r.skip_holds;
    match props || place || r.force || r.resumable {
        true => Err(refused("corrective recv can not be used when combined with this flag")),
        false => Ok(()),
    }
}

impl Engine {
    pub(super) async fn heal(
        &self,
        pool: &Arc<Pool>,
        part: &Part<'_>,
        reader: &mut RecordReader<'_>,
        told: &Told,
    ) -> Answer<()> {
        let (r, begin) = (part.r, &part.begin);
        match pool.zilla.by_name(&part.target).await {
            Ok(s) if s.is_snapshot() && s.guid() == begin.toguid => {}
            Ok(s) if s.is_snapshot() => {
                return Err(refused("local snapshot doesn't match the snapshot in the provided stream"));
            }
            Err(e) if !e.is(Errno::NoEnt) => return Err(of_dataset(e)),
            _ => return Err(refused("corrective recv must specify an existing snapshot to heal")),
        }
        if r.verbose {
            let how = if r.dry_run { "would receive" } else { "receiving" };
            let kind = if begin.fromguid == 0 { "full" } else { "incremental" };
            told.out(format!("{how} corrective {kind} stream of {} into {}", begin.toname, part.target));
        }
        if r.dry_run {
            return self.pass_over(part, reader).await;
        }
        let began = std::time::Instant::now();
        let failed = |e: Error| refused(&why(&e));
        let healed = pool.zilla.heal(begin.clone(), reader, &part.target).await.map_err(failed)?;
        if let Some(e) = healed.why {
            tracing::warn!("'{}': {} damaged blocks are not mended: {e}", part.target, healed.failed);
            return Err(refused(match e.is(Errno::NotSup) {
                true => "stream is not compatible with the data in the pool.",
                false => "corrective receive was not able to reconstruct the data needed for healing.",
            }));
        }
        if r.verbose {
            told.received(reader.bytes_read(), began.elapsed());
        }
        Ok(())
    }
}
