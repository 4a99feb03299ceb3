//! Mending a block of which no copy is good, with bytes that came from elsewhere.
//!
//! They are believed by the pointer's checksum and by nothing else, so a stream of whoever puts
//! nothing in a block's place that it was not. All copies are written anew, a gang's piece by
//! piece, and read again. The caller sees to it that the block stays in use meanwhile.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::{Priority, Zio, verify};
use crate::error::{Errno, Error, Result};
use crate::types::{Bookmark, Txg};
use bytes::Bytes;
use zilla_ondisk::blkptr::BlkPtr;

/// Gangs of gangs: no block has more.
const MAX_DEPTH: usize = 12;

impl Zio {
    /// Reads all copies, as a scrub does. An error: the block cannot be put together.
    pub(super) async fn look(&self, bp: BlkPtr, at: Bookmark) -> Result<()> {
        self.scrub(bp, at).await?;
        // A scrub looks at a gang's pieces one by one.
        if bp.is_gang() {
            self.read_copies(&bp, at, Priority::Scrub, None).await.inspect_err(|_| self.damaged(at, &bp))?;
        }
        Ok(())
    }

    /// Writes `stored`, the block as it should be on disk, in place of all its copies. `ECKSUM`: it
    /// is not the block.
    pub(super) async fn mend_block(&self, bp: &BlkPtr, at: Bookmark, stored: Bytes) -> Result<()> {
        bp.validate().map_err(|e| Error::corrupt(Some(at), "block pointer", e.to_string()))?;
        let unlike = |what: &str| Error::os(Errno::Cksum, format!("block {at} cannot be mended: {what}"));
        if bp.is_hole() || bp.is_embedded() || stored.len() as u64 != bp.psize() {
            return Err(unlike("it is of another size"));
        }
        // Where no checksum tells, nobody knows what the block was.
        if !verify::tells_apart(bp) {
            return Err(unlike("it has no checksum"));
        }
        verify::block(bp, &stored, self.salt().as_deref()).map_err(|what| unlike(&what))?;
        if !self.tree().is_writable() {
            return Err(Error::os(Errno::ROFs, "the pool's devices cannot be written to"));
        }
        self.overwrite(bp, at, stored).await?;
        self.look(*bp, at).await?;
        self.0.damaged.lock().remove(&(at, Txg(bp.birth())));
        Ok(())
    }

    async fn overwrite(&self, bp: &BlkPtr, at: Bookmark, stored: Bytes) -> Result<()> {
        let tree = self.tree();
        let mut todo = vec![(*bp, stored, 0)];
        while let Some((bp, data, depth)) = todo.pop() {
            if depth > MAX_DEPTH {
                return Err(Error::corrupt(Some(at), "gang block", "nested too deeply"));
            }
            if bp.is_gang() {
                // All copies of the header lead to the same pieces; their sizes were added up.
                let children =
                    self.gang_children(&tree, &bp, &bp.dva(0), at, Priority::SyncRead, false).await?;
                let mut rest = data;
                for child in children {
                    let len = usize::try_from(child.psize()).unwrap_or(usize::MAX).min(rest.len());
                    todo.push((child, rest.split_to(len), depth + 1));
                }
                continue;
            }
            for dva in bp.dvas() {
                let top = tree.check_dva(&dva, bp.psize(), bp.phys_birth())?;
                tracing::info!(%at, vdev = dva.vdev, offset = dva.offset, "rewriting a damaged block from a stream");
                tree.rewrite(top, dva.offset, &data, bp.phys_birth()).await;
            }
        }
        Ok(())
    }
}
