//! How long a stream will be, before it is sent.
//!
//! As OpenZFS does it, from what the datasets have counted: fast, and off by what dnodes and holes
//! take. Where nothing is counted (from a bookmark on, or the rest of an interrupted stream) the
//! tree is walked.

use super::objects::{Item, Objects, Resume};
use super::restore::Told;
use super::sender::{SendOpts, Special};
use crate::dsl::{DslDataset, DslPool};
use crate::error::Result;
use crate::tunables;
use std::sync::Arc;
use zilla_ondisk::blkptr::BLKPTR_SIZE;
use zilla_ondisk::enums::ObjsetType;
use zilla_ondisk::stream::RECORD_SIZE;

/// What recordsize and volblocksize are where nobody set them.
const DEFAULT_RECORDSIZE: u64 = 128 << 10;
const DEFAULT_VOLBLOCKSIZE: u64 = 16 << 10;

/// Bytes of a stream, about.
#[crate::boxed]
pub async fn estimate(
    dsl: &Arc<DslPool>,
    snap: &Arc<DslDataset>,
    from: Option<&Arc<DslDataset>>,
    opts: &SendOpts,
    special: &Special,
) -> Result<u64> {
    let r = &special.redaction;
    let counted = special.saved.is_none() && r.list.is_none() && r.from.is_none();
    if !counted || opts.resume.is_some() || (opts.from.is_some() && from.is_none()) {
        return walked(dsl, snap, opts, special).await;
    }
    let space = match from {
        None => {
            let p = snap.phys();
            (p.compressed_bytes, p.uncompressed_bytes)
        }
        Some(from) => match dsl.written_between(from, snap).await? {
            Some(s) => (s.comp, s.uncomp),
            None => return walked(dsl, snap, opts, special).await,
        },
    };
    let volume = dsl.os_type(snap).await? == ObjsetType::Zvol.number();
    let (name, default) =
        if volume { ("volblocksize", DEFAULT_VOLBLOCKSIZE) } else { ("recordsize", DEFAULT_RECORDSIZE) };
    let recordsize = match tunables::OVERRIDE_ESTIMATE_RECORDSIZE.get() {
        0 => dsl.prop_u64(&*dsl.head(&snap.dir()).await?, name, default).await?,
        bytes => bytes,
    };
    let recordsize = recordsize.max(512);
    let records = space.1 / recordsize;
    let bytes = if opts.compressed || opts.raw { space.0 } else { space.1 };
    let bytes = bytes.saturating_sub(records * BLKPTR_SIZE as u64) + records * RECORD_SIZE as u64;
    Ok(bytes + 2 * RECORD_SIZE as u64)
}

async fn walked(
    dsl: &Arc<DslPool>,
    snap: &Arc<DslDataset>,
    opts: &SendOpts,
    special: &Special,
) -> Result<u64> {
    let saved = special.saved.as_ref();
    let os = match saved.is_some_and(|s| s.raw) {
        true => dsl.sealed_objset(snap).await?,
        false => dsl.objset(snap).await?,
    };
    let phys = os.phys();
    let since = opts.from.map_or(0, |f| f.txg);
    let (src, meta) = (opts.source(dsl, &os), &phys.meta_dnode);
    let objects = Objects::new(src.clone(), snap.id(), meta, since, opts.resume);
    let objects = objects.until(saved.map(Resume::of));
    let mut objects = Told::new(objects, src, (snap.id(), meta), opts.resume, &special.redaction);
    let mut sum = 2 * RECORD_SIZE as u64;
    while let Some(item) = objects.next().await? {
        if matches!(item, Item::Range { .. }) && !(opts.raw && os.is_encrypted()) {
            continue;
        }
        sum += RECORD_SIZE as u64;
        sum += match item {
            Item::Block { bp, .. } if bp.is_embedded() => u64::from(bp.embedded_lsize()),
            Item::Block { bp, .. } if opts.compressed || opts.raw => bp.psize(),
            Item::Block { bp, .. } | Item::Spill { bp, .. } => bp.lsize(),
            Item::Object { dn, .. } => dn.bonus.len() as u64,
            _ => 0,
        };
    }
    Ok(sum)
}
