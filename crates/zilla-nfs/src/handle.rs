//! File handles: what a client keeps of a file, for days and across restarts of both sides.
//!
//! ```text
//!   4  magic and version      8  pool's guid      8  dataset's guid
//!   8  snapshot's guid, 0: the live files         8  object         8  generation
//! ```
//!
//! The generation is the txg in which the file was made, so that a handle does not come to mean the
//! next file of the same number. A handle is not secret and proves nothing: who may use it is
//! judged anew at each call.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use crate::export::ExportId;
use crate::xdr::{In, Out, Read};
use bytes::Bytes;

/// "zfh" and the version of this form.
const MAGIC: u32 = 0x7a66_6801;
/// A handle's length in bytes.
pub(crate) const LEN: usize = 4 + 5 * 8;
/// Source: NFS3_FHSIZE in RFC 1813.
pub(crate) const MOST: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) export: ExportId,
    pub(crate) snapshot: u64,
    pub(crate) object: u64,
    pub(crate) generation: u64,
}

impl Handle {
    pub(crate) fn put(&self, out: &mut Out) {
        out.u32(LEN as u32).u32(MAGIC).u64(self.export.pool).u64(self.export.dataset);
        out.u64(self.snapshot).u64(self.object).u64(self.generation);
    }

    /// None: it is none of ours.
    pub(crate) fn parse(bytes: Bytes) -> Option<Handle> {
        let read = |mut input: In| -> Read<_> {
            let magic = input.u32()?;
            let export = ExportId { pool: input.u64()?, dataset: input.u64()? };
            let handle =
                Handle { export, snapshot: input.u64()?, object: input.u64()?, generation: input.u64()? };
            Ok((magic, handle))
        };
        let fits = bytes.len() == LEN;
        read(In(bytes)).ok().filter(|(magic, _)| fits && *magic == MAGIC).map(|(_, handle)| handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_comes_back_as_it_went() {
        let handle =
            Handle { export: ExportId { pool: 1 << 63, dataset: 2 }, snapshot: 3, object: 4, generation: 5 };
        let mut out = Out::default();
        handle.put(&mut out);
        let bytes = In(out.0.into()).opaque(MOST).unwrap();
        assert_eq!(Handle::parse(bytes.clone()), Some(handle));
        assert_eq!(Handle::parse(bytes.slice(..LEN - 1)), None);
        let mut other = bytes.to_vec();
        other[0] ^= 1;
        assert_eq!(Handle::parse(other.into()), None);
    }
}
