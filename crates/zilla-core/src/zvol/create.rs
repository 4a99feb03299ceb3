//! A new volume.
//!
//! Dataset, objset, both objects, the size and the properties are made in one txg.

use super::{SIZE, ZVOL_OBJ, ZVOL_ZAP_OBJ};
use crate::dmu::{NewObject, Objset, resident};
use crate::dsl::{DslDataset, DslPool, NewCrypt, Setting};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::zap::{CreateOpts, Zap};
use std::sync::Arc;
use zilla_ondisk::enums::ObjsetType;
use zilla_ondisk::object_type::{DMU_OT_ZVOL, DMU_OT_ZVOL_PROP};
use zilla_ondisk::{SPA_MAXBLOCKSIZE, SPA_OLD_MAXBLOCKSIZE};

/// What a new volume is to be.
#[derive(Clone, Copy, Debug)]
pub struct NewVolume {
    /// Bytes, a multiple of the block size.
    pub size: u64,
    /// A power of two from 512 to 16M (128K without the feature `large_blocks`).
    pub block_size: u64,
}

/// Why a volume of blocks of `block_size` cannot have so many bytes, if it cannot.
pub fn check_size(size: u64, block_size: u64) -> Result<()> {
    if size == 0 {
        return Err(Error::inval("volume size cannot be zero"));
    }
    if !size.is_multiple_of(block_size) {
        return Err(Error::inval("volume size must be a multiple of volume block size"));
    }
    if size > i64::MAX as u64 {
        return Err(Error::os(Errno::Overflow, "volume size exceeds limit for this system"));
    }
    Ok(())
}

/// Makes a volume with properties. In syncing context.
#[crate::boxed]
pub async fn create_volume(
    dsl: &DslPool,
    tx: &Tx,
    name: &str,
    new: NewVolume,
    settings: &[(String, Setting)],
) -> Result<Arc<DslDataset>> {
    create_volume_with(dsl, tx, name, new, settings, &NewCrypt::default()).await
}

/// The same, encrypted as is said; by default as the parent is.
#[crate::boxed]
pub async fn create_volume_with(
    dsl: &DslPool,
    tx: &Tx,
    name: &str,
    new: NewVolume,
    settings: &[(String, Setting)],
    crypt: &NewCrypt,
) -> Result<Arc<DslDataset>> {
    let limit = if dsl.feature_enabled("large_blocks") { SPA_MAXBLOCKSIZE } else { SPA_OLD_MAXBLOCKSIZE };
    let blksz = u32::try_from(new.block_size).unwrap_or(0);
    if !blksz.is_power_of_two() || blksz < 512 || new.block_size > limit {
        return Err(Error::os(Errno::Dom, format!("volume blocks of {} bytes", new.block_size)));
    }
    check_size(new.size, new.block_size)?;
    let ds = dsl.create_fs_with(tx, name, ObjsetType::Zvol, 0, crypt).await?;
    fill(&dsl.objset(&ds).await?, tx, new.size, blksz).await?;
    dsl.set_props(tx, &ds, settings).await?;
    Ok(ds)
}

/// The objects of a volume, in an empty objset.
pub(super) async fn fill(os: &Arc<Objset>, tx: &Tx, size: u64, blksz: u32) -> Result<()> {
    let data = NewObject::new(DMU_OT_ZVOL, blksz);
    resident(|| os.claim(tx, ObjectId(ZVOL_OBJ), data)).await?;
    let plain = CreateOpts::default();
    resident(|| {
        let zap = Zap::create_claim(os, tx, ObjectId(ZVOL_ZAP_OBJ), DMU_OT_ZVOL_PROP, &plain)?;
        Zap::new(&zap).update_u64(tx, SIZE.as_bytes(), size)
    })
    .await
}
