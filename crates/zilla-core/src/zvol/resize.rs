//! A volume's size, and how much space it takes at most.

use super::volume::Zvol;
use super::{SIZE, check_size};
use crate::dmu::{PART, in_tx};
use crate::error::Result;
use crate::txg::{Tx, TxgState};
use crate::zio::Leave;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::SPA_OLD_MAXBLOCKSIZE;
use zilla_ondisk::dnode::DN_MAX_INDBLKSHIFT;

impl Zvol {
    /// Changes the size. What lies beyond a smaller one is freed, a part a txg. The size is on disk
    /// when this returns. What a crash in between leaves beyond the end is freed before the size is
    /// changed again, so a volume that grows reads zeroes there.
    #[crate::boxed]
    pub async fn set_size(&self, size: u64) -> Result<()> {
        let txgs = self.txgs()?;
        check_size(size, self.block_size)?;
        // One that grows the volume knows its size before that is in memory: another must not come
        // between.
        let _resize = self.resize.lock().await;
        if self.data.maxblkid().saturating_mul(self.block_size) >= self.size() {
            self.free_beyond(txgs).await?;
        }
        let in_parts = self.data.last_part(size, u64::MAX, self.part()).await?.is_some();
        let (old, txg) = in_tx(txgs, |tx| {
            let _order = self.order.lock();
            self.data.in_order(tx)?;
            self.zap.dnode().in_order(tx)?;
            self.space.admit(tx, 0, true)?;
            let old = self.size();
            self.zap.update_u64(tx, SIZE.as_bytes(), size)?;
            if size < old {
                // From here on nobody writes there.
                self.size.store(size, Ordering::Release);
                if !in_parts {
                    self.data.free_some(tx, size, u64::MAX, PART);
                }
            }
            Ok((old, tx.txg()))
        })
        .await?;
        txgs.wait_synced(txg).await?;
        if size > old {
            // No log record tells of the size: who writes beyond the old end must find it there
            // after a crash.
            self.size.store(size, Ordering::Release);
        } else if in_parts {
            self.free_beyond(txgs).await?;
        }
        Ok(())
    }

    /// Of how many blocks a part may be now.
    pub(super) fn part(&self) -> u64 {
        self.space.frees_at_once(PART)
    }

    /// Frees what lies beyond the volume's end.
    async fn free_beyond(&self, txgs: &Arc<TxgState>) -> Result<()> {
        let size = self.size();
        let free = |tx: &Tx, at: u64, end: u64| {
            let _order = self.order.lock();
            self.data.in_order(tx)?;
            self.space.admit(tx, 0, true)?;
            if at < end {
                self.space.hold_room(tx, self.data.free_cost(tx, at, end), Leave::Quarter)?;
                self.data.free_some(tx, at, end - at, PART);
            }
            Ok(())
        };
        let end = self.data.all_but_a_part(txgs, (size, i64::MAX as u64), || self.part(), free).await?;
        in_tx(txgs, |tx| free(tx, size, end)).await
    }
}

/// What decides how much space a volume can take.
#[derive(Clone, Debug)]
pub struct Resv {
    /// Bytes.
    pub size: u64,
    pub block_size: u64,
    /// The property `copies`.
    pub copies: u64,
    /// Of each vdev of the pool with parity: the space that such a block takes, and one of 128K.
    pub asizes: Vec<(u64, u64)>,
}

/// Pointers in an indirect block, which are 128K and 128 bytes.
const POINTERS: u64 = 1 << (DN_MAX_INDBLKSHIFT - 7);
/// An objset's meta-dnode is counted with one block a level.
const META_LEVELS: u64 = 7;
/// Copies of a block at most.
const DVAS_MAX: u64 = 3;

/// The space that a volume can take when all of it is written, as OpenZFS reserves it
/// (`zvol_volsize_to_reservation`): its blocks, scaled by what parity and padding add to blocks
/// smaller than the 128K that the pool's size is reckoned with, and metadata at its largest.
pub fn volsize_to_reservation(of: &Resv) -> u64 {
    let mut blocks = of.size / of.block_size.max(1);
    let scaled = |&(of_block, of_usual): &(u64, u64)| {
        let of_block = u128::from(of_block) * u128::from(SPA_OLD_MAXBLOCKSIZE);
        let bytes = u128::from(blocks) * of_block / u128::from(of_usual.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    };
    let data = of.asizes.iter().map(scaled).max().unwrap_or(0).max(blocks.saturating_mul(of.block_size));
    let mut metadata = META_LEVELS;
    while blocks > 1 {
        blocks = blocks.div_ceil(POINTERS);
        metadata += blocks;
    }
    let copies = DVAS_MAX.min(of.copies.saturating_add(1));
    let metadata = metadata.saturating_mul(copies << DN_MAX_INDBLKSHIFT);
    data.saturating_mul(of.copies).saturating_add(metadata)
}
