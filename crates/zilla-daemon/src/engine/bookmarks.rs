//! `zfs bookmark`, the bookmarks in `zfs list`, and destroying one.

use super::errors::{Answer, of, of_dataset};
use super::pool::Pool;
use super::{Engine, Serves};
use std::collections::BTreeMap;
use zilla::bookmarks::Bookmark;
use zilla::error::DatasetRefusal as Refusal;
use zilla::error::{Error, Result};
use zilla::tree::DatasetRef;
use zilla_control::props::naming::{check_dataset_name, pool_of};
use zilla_control::props::{BOOK, SNAP};
use zilla_control::types::{DatasetBookmark, DatasetDestroy, DatasetInfo, DatasetKind, DestroyReply};
use zilla_control::types::{PropValue, Source};
use zilla_control::{ApiError, Caller, ErrorCode};

/// What `zfs bookmark` says of a refusal; other errors are as everywhere.
fn refused(e: Error) -> ApiError {
    let Error::Refused(why) = &e else { return of_dataset(e) };
    let (code, words) = match **why {
        Refusal::BookmarkExists(_) => (ErrorCode::Exists, "bookmark exists"),
        Refusal::NotAncestor => {
            (ErrorCode::CrossTarget, "source is not an ancestor of the new bookmark's dataset")
        }
        Refusal::FeatureDisabled(_) => (ErrorCode::BadVersion, "bookmark feature not enabled"),
        Refusal::NotBookmark(_) | Refusal::NotSnapshot(_) | Refusal::NameTooLong(_) => {
            (ErrorCode::InvalidName, "invalid argument")
        }
        _ => return of_dataset(e),
    };
    ApiError::with(code, words)
}

impl Engine {
    pub(super) async fn bookmark(&self, r: DatasetBookmark) -> Answer<()> {
        check_dataset_name(&r.source, BOOK | SNAP, true)?;
        check_dataset_name(&r.target, BOOK, true)
            .map_err(|_| ApiError::with(ErrorCode::InvalidName, "invalid argument"))?;
        if pool_of(&r.source) != pool_of(&r.target) {
            return Err(ApiError::with(ErrorCode::InvalidName, "invalid argument"));
        }
        let pool = self.pool_of(&r.target)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        pool.zilla.bookmark(vec![(r.source, r.target)]).await.map_err(refused)
    }

    pub(super) async fn destroy_bookmark(&self, r: &DatasetDestroy) -> Answer<DestroyReply> {
        let pool = self.pool_of(&r.target)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        pool.zilla.bookmark_by_name(&r.target).await.map_err(of(&r.target))?;
        pool.zilla.destroy_bookmarks(vec![r.target.clone()]).await.map_err(of(&r.target))?;
        Ok(DestroyReply { destroyed: vec![r.target.clone()], ..DestroyReply::default() })
    }
}

impl Serves<DatasetBookmark> for Engine {
    async fn serve(&self, _: &Caller, r: DatasetBookmark) -> Answer<()> {
        self.bookmark(r).await
    }
}

/// A bookmark as `zfs list` and `zfs get` show it.
pub fn describe(head: &str, mark: &Bookmark) -> DatasetInfo {
    let p = &mark.phys;
    let stat = |text: String| PropValue::new(text, Source::None);
    let mut properties = BTreeMap::from([
        ("type".to_owned(), stat("bookmark".to_owned())),
        ("creation".to_owned(), stat(p.creation_time.to_string())),
        ("createtxg".to_owned(), stat(p.creation_txg.to_string())),
        ("guid".to_owned(), stat(p.guid.to_string())),
    ]);
    if p.ivset_guid != 0 {
        properties.insert("ivsetguid".to_owned(), stat(p.ivset_guid.to_string()));
    }
    if mark.has_fbn() {
        properties.insert("referenced".to_owned(), stat(p.referenced_bytes_refd.to_string()));
        properties.insert("logicalreferenced".to_owned(), stat(p.uncompressed_bytes_refd.to_string()));
    }
    DatasetInfo {
        name: format!("{head}#{}", mark.name),
        kind: DatasetKind::Bookmark,
        guid: p.guid,
        createtxg: p.creation_txg,
        creation: p.creation_time,
        properties,
    }
}

/// A head's bookmarks, by name.
pub fn of_head(head: &DatasetRef) -> Vec<DatasetInfo> {
    let name = head.name();
    let mut all: Vec<_> = head.bookmarks().iter().map(|b| describe(&name, b)).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

impl Pool {
    /// A head's bookmarks, by name, with what they have beside.
    pub async fn bookmarks_shown(&self, head: &DatasetRef) -> Vec<DatasetInfo> {
        let mut out = of_head(head);
        for mark in head.bookmarks().iter().filter(|m| m.phys.redaction_obj != 0) {
            let name = format!("{}#{}", head.name(), mark.name);
            // One whose list is damaged is shown without it.
            let snaps = self.zilla.redaction_snaps(&mark.phys).await.ok().flatten();
            if let (Some(info), Some(snaps)) = (out.iter_mut().find(|i| i.name == name), snaps) {
                let text = super::redact::guids(&snaps);
                info.properties.insert("redact_snaps".to_owned(), PropValue::new(text, Source::None));
            }
        }
        out
    }

    /// `written#mark`, `written@snap`: space written to a dataset since an earlier state of it.
    pub async fn written_since_name(&self, ds: &DatasetRef, property: &str) -> Result<Option<u64>> {
        let full = ds.name();
        let base = full.split('@').next().unwrap_or_default();
        if let Some(mark) = property.strip_prefix("written#") {
            let name = if mark.contains('#') { mark.to_owned() } else { format!("{base}#{mark}") };
            let Ok((head, mark)) = self.zilla.bookmark_by_name(&name).await else { return Ok(None) };
            if !ds.is_after(&head, mark.phys.creation_txg).await? {
                return Ok(None);
            }
            return ds.written_since_bookmark(&mark.phys).await;
        }
        let snap = property.trim_start_matches("written@");
        let snap = snap.rsplit_once('@').map_or(snap, |(_, s)| s);
        match self.zilla.by_name(&format!("{base}@{snap}")).await {
            Ok(prev) => ds.written_since(&prev).await,
            Err(_) => Ok(None),
        }
    }
}
