//! A volume's size, and how much space it takes at most.

use super::volume::Zvol;
use super::{SIZE, check_size};
use crate::dmu::in_tx;
use crate::error::Result;
use std::sync::atomic::Ordering;
use zilla_ondisk::SPA_OLD_MAXBLOCKSIZE;
use zilla_ondisk::dnode::DN_MAX_INDBLKSHIFT;

impl Zvol {
    /// Changes the size. What lies beyond a smaller one is freed. It is on disk when this returns.
    #[crate::boxed]
    pub async fn set_size(&self, size: u64) -> Result<()> {
        let txgs = self.txgs()?;
        check_size(size, self.block_size)?;
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
                self.data.free_range(tx, size, u64::MAX);
            }
            Ok((old, tx.txg()))
        })
        .await?;
        txgs.wait_synced(txg).await?;
        if size > old {
            // No log record tells of the size: who writes beyond the old end must find it there after a crash.
            self.size.store(size, Ordering::Release);
        }
        Ok(())
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
    let metadata = metadata * DVAS_MAX.min(of.copies + 1) * (1 << DN_MAX_INDBLKSHIFT);
    data.saturating_mul(of.copies).saturating_add(metadata)
}
