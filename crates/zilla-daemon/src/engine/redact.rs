//! `zfs redact`, and the lists it makes: which bookmark is meant, and what of it a stream needs.

use super::errors::{Answer, no_dataset, of_dataset};
use super::pool::Pool;
use super::send::failed;
use super::{Engine, Serves};
use std::sync::Arc;
use zilla::bookmarks::{RedactionList, same_snaps};
use zilla::error::DatasetRefusal as Refusal;
use zilla::error::{Errno, Error};
use zilla::tree::DatasetRef;
use zilla_control::props::naming;
use zilla_control::types::DatasetRedact;
use zilla_control::{ApiError, Caller, ErrorCode};

fn refused(code: ErrorCode, what: impl Into<String>) -> ApiError {
    ApiError::with(code, what)
}

/// In OpenZFS's words, with a code for each.
fn of_redact(e: Error, mark: &str) -> ApiError {
    let bad_mark = || refused(ErrorCode::BadType, "redaction bookmark name must not contain '#'");
    if let Error::Refused(why) = &e {
        let what = why.to_string();
        return match &**why {
            Refusal::AlreadyRedacted => refused(ErrorCode::Busy, what),
            Refusal::OtherRedaction => refused(ErrorCode::NoSource, what),
            Refusal::BookmarkExists(_) => {
                let what = format!("specified redaction bookmark ({mark}) provided already exists");
                refused(ErrorCode::Exists, what)
            }
            Refusal::FeatureDisabled(_) => {
                refused(ErrorCode::BadVersion, "redaction bookmarks feature not enabled")
            }
            Refusal::NameTooLong(_) => {
                let what = "provided bookmark name cannot be used, final name would be too long";
                refused(ErrorCode::NameTooLong, what)
            }
            _ if mark.contains('#') => bad_mark(),
            _ => refused(ErrorCode::BadType, Refusal::NotDescendant.to_string()),
        };
    }
    match e.errno() {
        Errno::Inval if mark.contains('#') => bad_mark(),
        Errno::Inval => refused(ErrorCode::BadType, Refusal::NotDescendant.to_string()),
        Errno::TooBig => refused(ErrorCode::PoolInvalArg, e.to_string()),
        _ => of_dataset(e),
    }
}

/// As a property shows them.
pub(super) fn guids(snaps: &[u64]) -> String {
    snaps.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

impl Serves<DatasetRedact> for Engine {
    async fn serve(&self, _: &Caller, r: DatasetRedact) -> Answer<()> {
        let missing =
            |name: &str| refused(ErrorCode::NoEnt, format!("provided snapshot {name} does not exist"));
        let pool = self.pool_of(&r.snapshot).map_err(|_| missing(&r.snapshot))?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        let find = async |name: &str| match pool.zilla.by_name(name).await {
            Ok(ds) => Ok(ds),
            Err(e) if e.is(Errno::NoEnt) => Err(missing(name)),
            Err(e) => Err(of_redact(e, &r.bookmark)),
        };
        let snap = find(&r.snapshot).await?;
        let mut others: Vec<DatasetRef> = Vec::with_capacity(r.snapshots.len());
        for name in &r.snapshots {
            if naming::pool_of(name) != pool.name() {
                let what = "potentially invalid redaction snapshot; full dataset names required";
                return Err(refused(ErrorCode::CrossTarget, what));
            }
            let other = find(name).await?;
            if !others.iter().any(|o| o.id() == other.id()) {
                others.push(other);
            }
        }
        pool.zilla.redact(&snap, &others, &r.bookmark).await.map_err(|e| of_redact(e, &r.bookmark))
    }
}

impl Pool {
    /// The property `redact_snaps` of a dataset or snapshot.
    pub(super) async fn redact_snaps(&self, name: &str) -> Option<String> {
        Some(guids(&self.zilla.by_name(name).await.ok()?.redact_snaps()?))
    }

    /// The list of a redaction bookmark, which must be of the snapshot that is sent.
    pub(super) async fn redaction_of(
        &self,
        head: &DatasetRef,
        snap: &DatasetRef,
        mark: &str,
    ) -> Answer<Arc<RedactionList>> {
        let short = mark.rsplit('#').next().unwrap_or_default();
        let name = format!("{}#{short}", head.name());
        let (_, found) = self.zilla.bookmark_by_name(&name).await.map_err(|e| match e.is(Errno::NoEnt) {
            true => no_dataset(&name),
            false => of_dataset(e),
        })?;
        if found.phys.redaction_obj == 0 {
            return Err(refused(ErrorCode::BadType, "not a redaction bookmark"));
        }
        // Another snapshot's list leaves out what nobody would send afterwards.
        if found.phys.guid != snap.guid() {
            return Err(failed(format!("'{name}' is not a redaction bookmark of {}", snap.name())));
        }
        let list = self.zilla.redaction_list(&found.phys).await.map_err(|e| failed(e.to_string()))?;
        Ok(Arc::new(list))
    }

    /// The list of the redaction bookmark of a snapshot that is for these snapshots.
    pub(super) async fn redaction_by(
        &self,
        head: &DatasetRef,
        snap: &DatasetRef,
        snaps: &[u64],
    ) -> Answer<Arc<RedactionList>> {
        for (_, mark) in head.bookmarks_on_disk().await.map_err(of_dataset)? {
            if mark.guid != snap.guid() {
                continue;
            }
            let by = self.zilla.redaction_snaps(&mark).await.map_err(of_dataset)?;
            if by.is_some_and(|by| same_snaps(&by, snaps)) {
                let list = self.zilla.redaction_list(&mark).await.map_err(|e| failed(e.to_string()))?;
                return Ok(Arc::new(list));
            }
        }
        Err(failed("no appropriate redaction bookmark exists"))
    }
}
