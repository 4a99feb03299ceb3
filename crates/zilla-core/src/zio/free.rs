//! Giving blocks back.

use zilla_ondisk::Dva;
use zilla_ondisk::blkptr::BlkPtr;

use super::gang::MAX_DEPTH;
use super::{Priority, Zio};
use crate::arc::Key;
use crate::error::{Error, Result};
use crate::types::{Bookmark, Txg};

impl Zio {
    /// Gives back the space of blocks. One that was written in this very txg is waited for first,
    /// so that whoever gets its place next cannot be overtaken by it. Gang blocks are read to find
    /// their pieces; a gang whose header cannot be read, or lies too deep to be true, gives back
    /// only the header (what it led to is lost until the pool is made anew, and counted as a
    /// damaged block).
    pub async fn free(&self, txg: Txg, bps: &[BlkPtr]) -> Result<()> {
        for bp in bps {
            self.free_one(txg, bp, 0).await?;
        }
        Ok(())
    }

    async fn free_one(&self, txg: Txg, bp: &BlkPtr, depth: usize) -> Result<()> {
        let Some(key) = Key::of(bp) else { return Ok(()) };
        if let Some(batch) = self.0.inflight.batch(&key) {
            batch.wait().await;
        }
        self.wait_for_repairs(bp).await;
        self.0.cache.remove(&key);
        self.0.l2.forget(&key);
        let allocator = self.allocator()?;
        let born = Txg(bp.phys_birth());
        if bp.is_gang() && depth > MAX_DEPTH {
            tracing::warn!("a gang block that is freed is too deep to be one");
        } else if bp.is_gang() {
            match self.pieces(bp).await {
                Ok(children) => {
                    for child in children {
                        Box::pin(self.free_one(txg, &child, depth + 1)).await?;
                    }
                }
                Err(e @ Error::Corrupt(_)) => {
                    tracing::warn!(error = %e, "a gang block that is freed cannot be read")
                }
                Err(e) => return Err(e),
            }
        }
        for dva in bp.dvas() {
            if born == txg {
                self.0.track.forget(txg, &dva);
            }
            let dva = if dva.gang { self.header_dva(&dva) } else { dva };
            allocator.free(txg, &dva, born);
        }
        Ok(())
    }

    /// Every place that belongs to a block: its copies or, of a gang, the headers' and all its
    /// pieces'.
    pub async fn places(&self, bp: &BlkPtr) -> Result<Vec<Dva>> {
        let mut out = Vec::new();
        let mut todo = vec![(*bp, 0)];
        let tree = self.tree();
        while let Some((bp, depth)) = todo.pop() {
            let mut led = None;
            if bp.is_gang() && depth > MAX_DEPTH {
                return Err(Error::corrupt(None, "gang block", "too many levels"));
            }
            for dva in bp.dvas() {
                if !dva.gang {
                    out.extend(tree.now_at(&dva)?);
                    continue;
                }
                out.extend(tree.now_at(&self.header_dva(&dva))?);
                if !matches!(led, Some(Ok(_))) {
                    let at = Bookmark::default();
                    led = Some(
                        self.gang_children(&self.tree(), &bp, &dva, at, Priority::SyncRead, false).await,
                    );
                }
            }
            // Every copy of the header leads to the same children.
            let led = led.transpose()?.unwrap_or_default();
            todo.extend(led.into_iter().map(|child| (child, depth + 1)));
        }
        Ok(out)
    }

    /// A gang's DVA as it was allocated: the header alone.
    pub(super) fn header_dva(&self, dva: &Dva) -> Dva {
        let tree = self.tree();
        let asize =
            tree.top(dva.vdev).map_or(dva.asize, |t| t.psize_to_asize(crate::types::GANG_HEADER_SIZE, 0));
        Dva { asize, gang: false, ..*dva }
    }
}
