//! How long a stream will be, before it is sent.
//!
//! As OpenZFS does it, from what the datasets have counted: fast, and off by what dnodes and holes
//! take. Where nothing is counted (from a bookmark on, what is redacted, or the rest of an
//! interrupted stream) all is done but reading the blocks, and the length is the stream's own.

use super::sender::{SendOpts, Special, length};
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
        return length(dsl, snap, opts, special).await;
    }
    let space = match from {
        None => {
            let p = snap.phys();
            (p.compressed_bytes, p.uncompressed_bytes)
        }
        Some(from) => match dsl.written_between(from, snap).await? {
            Some(s) => (s.comp, s.uncomp),
            None => return length(dsl, snap, opts, special).await,
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
