//! What is to be left out of a snapshot's stream (`zfs redact`): the blocks that all of some later
//! snapshots have changed.
//!
//! Each of those, of clones of the snapshot as a rule, is walked as for an incremental stream. A
//! block counts as changed where that would tell a block or a hole, where it would free its object,
//! where its object has become shorter, and where its object has no name any more. Places that all
//! have are looked up in the snapshot itself, for the blocks of files and volumes there are.
//! Contents of directories and other metadata are never left out: what is redacted is data.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::objects::{Item, Objects};
use super::sender::SendOpts;
use crate::dmu::{Objset, resident};
use crate::dsl::{DslDataset, DslPool, RedactedRun, RedactionList, Refusal, runs_of};
use crate::error::{Errno, Error, Result};
use crate::types::ObjectId;
use crate::zap::Zap;
use std::collections::HashSet;
use std::sync::Arc;
use zilla_ondisk::enums::ObjsetType;
use zilla_ondisk::object_type;

/// A place: an object and one of its blocks.
type Pos = (u64, u64);
/// From a place to another that is not in it.
type Span = (Pos, Pos);

const END: Pos = (u64::MAX, 0);

/// Refuses what cannot be redacted by these.
#[crate::boxed]
pub async fn check_redaction(
    dsl: &DslPool,
    snap: &Arc<DslDataset>,
    others: &[Arc<DslDataset>],
) -> Result<()> {
    if !snap.is_snapshot() {
        return Err(Refusal::NotSnapshot(snap.name()).into());
    }
    if snap.redact_snaps().is_some() {
        return Err(Refusal::AlreadyRedacted.into());
    }
    for other in others {
        if !other.is_snapshot() || !dsl.is_before(other, snap, 0).await? {
            return Err(Refusal::NotDescendant.into());
        }
        if other.redact_snaps().is_some() {
            return Err(Refusal::AlreadyRedacted.into());
        }
    }
    dsl.redact_check(others.len())
}

/// Finds the blocks of a snapshot that all of others have changed.
#[crate::boxed]
pub async fn redaction(
    dsl: &Arc<DslPool>,
    snap: &Arc<DslDataset>,
    others: &[Arc<DslDataset>],
) -> Result<RedactionList> {
    check_redaction(dsl, snap, others).await?;
    let mut spans: Vec<Span> = vec![((0, 0), END)];
    for other in others {
        spans = both(&spans, &changed(dsl, other, snap.phys().creation_txg).await?);
    }
    let os = open(dsl, snap).await?;
    let mut runs = Vec::new();
    for span in spans {
        blocks_in(&os, span, &mut runs).await?;
    }
    Ok(RedactionList { snaps: others.iter().map(|o| o.guid()).collect(), runs })
}

async fn open(dsl: &DslPool, ds: &Arc<DslDataset>) -> Result<Arc<Objset>> {
    let os = dsl.objset(ds).await?;
    match os.is_locked() {
        true => Err(Error::os(Errno::Access, format!("the key of {} must be loaded", ds.name()))),
        false => Ok(os),
    }
}

/// Adds a span behind all others; what touches the last becomes a part of it.
fn push(out: &mut Vec<Span>, span: Span) {
    match out.last_mut() {
        Some(last) if last.1 >= span.0 => last.1 = last.1.max(span.1),
        _ => out.push(span),
    }
}

/// The places that are in both.
fn both(a: &[Span], b: &[Span]) -> Vec<Span> {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut out = Vec::new();
    while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
        let (from, to) = (x.0.max(y.0), x.1.min(y.1));
        if from < to {
            push(&mut out, (from, to));
        }
        if x.1 <= y.1 {
            a.next()
        } else {
            b.next()
        };
    }
    out
}

/// Files of a snapshot that have no name any more.
async fn nameless(os: &Arc<Objset>) -> Result<HashSet<u64>> {
    let mut out = HashSet::new();
    if os.os_type() != ObjsetType::Zfs.number() {
        return Ok(out);
    }
    let master = os.hold_wait(ObjectId(crate::zpl::MASTER_NODE_OBJ)).await?;
    if let Some(queue) = Zap::new(&master).try_get_u64("DELETE_QUEUE").await? {
        let queue = os.hold_wait(ObjectId(queue)).await?;
        out.extend(Zap::new(&queue).entries().await?.iter().filter_map(|e| e.value.as_u64()));
    }
    Ok(out)
}

/// The places that a snapshot has changed since a txg, in order.
async fn changed(dsl: &Arc<DslPool>, ds: &Arc<DslDataset>, since: u64) -> Result<Vec<Span>> {
    let os = open(dsl, ds).await?;
    let nameless = nameless(&os).await?;
    let meta = os.phys().meta_dnode;
    let src = SendOpts::default().source(dsl, &os);
    let mut objects = Objects::new(src, ds.id(), &meta, since, None);
    let mut out = Vec::new();
    // What an object that is told had behind its end, once.
    let mut behind: Option<Span> = None;
    while let Some(item) = objects.next().await? {
        if matches!(item, Item::FreeObjects { .. } | Item::Object { .. })
            && let Some(span) = behind.take()
        {
            push(&mut out, span);
        }
        match item {
            Item::FreeObjects { first, count } => {
                push(&mut out, ((first, 0), (first.saturating_add(count), 0)))
            }
            Item::Object { id, .. } if nameless.contains(&id) => push(&mut out, ((id, 0), (id + 1, 0))),
            Item::Object { id, dn, .. } => {
                behind = Some(((id, dn.maxblkid.saturating_add(1)), (id + 1, 0)));
            }
            Item::Hole { id, first, count, .. } => {
                push(&mut out, ((id, first), (id, first.saturating_add(count))));
            }
            Item::Block { id, blkid, .. } => push(&mut out, ((id, blkid), (id, blkid.saturating_add(1)))),
            Item::Range { .. } | Item::Spill { .. } | Item::Redacted { .. } => {}
        }
    }
    if let Some(span) = behind {
        push(&mut out, span);
    }
    push(&mut out, ((objects.limit(), 0), END));
    Ok(out)
}

/// The blocks of data that an objset has in a span.
async fn blocks_in(os: &Arc<Objset>, (from, to): Span, out: &mut Vec<RedactedRun>) -> Result<()> {
    let mut at = ObjectId(from.0.saturating_sub(1));
    while let Some(id) = resident(|| os.next_object(at)).await? {
        at = id;
        if id.0 < from.0 {
            continue;
        }
        if (id.0, 0) >= to {
            break;
        }
        let dn = os.hold_wait(id).await?;
        let first = if id.0 == from.0 { from.1 } else { 0 };
        let end = if id.0 == to.0 { to.1 } else { u64::MAX }.min(dn.maxblkid().saturating_add(1));
        if object_type::is_metadata(dn.otype()) || first >= end {
            continue;
        }
        out.extend(runs_of(id.0, first, end - first, dn.blksz().into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_cut_with_each_other() {
        let a = [((1, 0), (1, 5)), ((2, 0), (4, 0)), ((9, 1), END)];
        let b = [((1, 2), (1, 3)), ((1, 4), (2, 7)), ((3, 0), (3, 1)), ((7, 0), (9, 4))];
        let want = [((1, 2), (1, 3)), ((1, 4), (1, 5)), ((2, 0), (2, 7)), ((3, 0), (3, 1)), ((9, 1), (9, 4))];
        assert_eq!(both(&a, &b), want);
        assert_eq!(both(&b, &a), want);
        assert_eq!(both(&a, &[((0, 0), END)]), a);
        assert!(both(&a, &[]).is_empty());
        let mut out = vec![];
        for span in [((1, 0), (1, 2)), ((1, 2), (1, 3)), ((2, 0), (3, 0)), ((3, 0), (3, 1))] {
            push(&mut out, span);
        }
        assert_eq!(out, [((1, 0), (1, 3)), ((2, 0), (3, 1))]);
    }
}
