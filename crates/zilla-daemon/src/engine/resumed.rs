//! `zfs send -t` and `-S`: the rest of a stream whose receiver was interrupted, and what such a
//! receiver has kept of one.

use super::Engine;
use super::errors::{Answer, of, of_dataset};
use super::pool::Pool;
use super::send::{Step, failed};
use std::sync::Arc;
use zilla::bookmarks::same_snaps;
use zilla::streams::{From, HEAD_NAME, Redaction, SendOpts, Special, parse_token};
use zilla_control::types::StreamSend;
use zilla_control::{ApiError, ErrorCode};

impl Engine {
    /// The rest of a stream that a receiver asks for.
    pub(super) async fn resumed(&self, text: &str) -> Answer<(Arc<Pool>, Step)> {
        let t = parse_token(text).map_err(|e| failed(e.to_string()))?;
        let gone = || failed(format!("'{}' used in the initial send no longer exists", t.toname));
        let other =
            || failed(format!("'{}' is no longer the same snapshot used in the initial send", t.toname));
        let pool =
            self.pool_of(&t.toname).map_err(|e| if e.code == ErrorCode::NoEnt { gone() } else { e })?;
        let snap = match (pool.zilla.by_name(&t.toname).await, t.toname.strip_suffix(HEAD_NAME)) {
            (Ok(snap), None) => snap,
            (Ok(snap), Some(_)) if snap.guid() == t.toguid => snap,
            (_, Some(fs)) => pool.zilla.by_name(fs).await.map_err(|_| gone())?,
            (Err(_), None) => return Err(gone()),
        };
        if snap.guid() != t.toguid {
            return Err(other());
        }
        let head = snap.dir().head().await.map_err(of_dataset)?;
        let (mut from, mut redaction) = (None, Redaction::default());
        if let Some(guid) = t.fromguid {
            let mut at = Some(snap.clone());
            while let Some(s) = at.filter(|s| from.is_none() || s.guid() != guid) {
                at = s.prev().await.map_err(of_dataset)?;
                if let Some(p) = at.as_ref().filter(|p| p.guid() == guid) {
                    let by = p.redact_snaps();
                    // What was left out of it then is in it now, unless it is redacted itself.
                    if t.book_redact_snaps
                        .as_deref()
                        .is_some_and(|b| !same_snaps(b, by.as_deref().unwrap_or_default()))
                    {
                        break;
                    }
                    let is_clone = p.dir().id() != snap.dir().id();
                    let txg = p.created_txg();
                    redaction.from_snaps = by;
                    from = Some((From { guid, txg, is_clone }, p.name()));
                    break;
                }
            }
            if from.is_none() {
                for (n, b) in head.bookmarks_on_disk().await.map_err(of_dataset)? {
                    let by = pool.zilla.redaction_snaps(&b).await.map_err(of_dataset)?;
                    let fits = match (&t.book_redact_snaps, &by) {
                        (Some(wanted), Some(by)) => same_snaps(wanted, by),
                        (Some(_), None) => false,
                        (None, _) => true,
                    };
                    if b.guid != guid || !fits {
                        continue;
                    }
                    if t.book_redact_snaps.is_some() {
                        let list = pool.zilla.redaction_list(&b).await.map_err(|e| failed(e.to_string()))?;
                        redaction.from = Some(Arc::new(list));
                    }
                    let name = format!("{}#{n}", head.name());
                    from = Some((From { guid, txg: b.creation_txg, is_clone: false }, name));
                    break;
                }
            }
            if from.is_none() {
                return Err(failed(format!("incremental source {guid:#x} no longer exists")));
            }
        }
        if let Some(wanted) = t.redact_snaps.as_ref().filter(|_| snap.redact_snaps().is_none()) {
            redaction.list = Some(pool.redaction_by(&head, &snap, wanted).await?);
        }
        let opts = SendOpts {
            from: from.as_ref().map(|f| f.0),
            large_blocks: t.large_blocks,
            embed: t.embed,
            compressed: t.compressed,
            raw: t.raw,
            resume: Some(t.resume()),
        };
        let held = match snap.is_snapshot() {
            true => snap.hold(),
            false => match self.still(&pool, &snap).await {
                Ok(held) => held,
                Err(e) => {
                    self.show_devices(&snap.name()).await;
                    return Err(e);
                }
            },
        };
        let special = Special { redaction, ..Special::default() };
        Ok((pool.clone(), Step { snap, from, from_snap: None, opts, special, _held: held }))
    }

    /// What an interrupted receive has kept so far.
    pub(super) async fn saved_so_far(&self, r: &StreamSend) -> Answer<(Arc<Pool>, Step)> {
        let name = &r.snapshot;
        let pool = self.pool_of(name)?;
        let none = || failed(format!("cannot send '{name}': it has no partially received state"));
        let ds = pool.zilla.partly_received(name).await.map_err(of(name))?.ok_or_else(none)?;
        // A receive that goes on would change it meanwhile; while it is held none begins.
        let held = ds.hold_alone().ok_or_else(|| ApiError::new(ErrorCode::Busy).subject(name))?;
        if !pool.readonly() {
            // What is noted may be of a txg that is not on disk yet.
            pool.zilla.sync().await.map_err(of_dataset)?;
        }
        let state = ds.resume_state().await.map_err(of_dataset)?.ok_or_else(none)?;
        let from = match state.fromguid {
            Some(guid) => Some(ds.receive_source(guid).await.map_err(|e| failed(e.to_string()))?),
            None => None,
        };
        let from =
            from.map(|(s, is_clone)| (From { guid: s.guid(), txg: s.created_txg(), is_clone }, s.name()));
        let opts = SendOpts {
            from: from.as_ref().map(|f| f.0),
            large_blocks: state.largeblock,
            embed: state.embed,
            compressed: state.compress,
            raw: state.raw,
            resume: None,
        };
        let from_snaps = state.book_redact_snaps.clone().map(Arc::from);
        let redaction = Redaction { from_snaps, ..Redaction::default() };
        let special = Special { saved: Some(state), redaction };
        Ok((pool.clone(), Step { snap: ds, from, from_snap: None, opts, special, _held: held }))
    }
}
