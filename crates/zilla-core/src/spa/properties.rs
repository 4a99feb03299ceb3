//! A pool's properties as they are stored: an object of the MOS, made when the first is set.
//!
//! What a property also changes in the running pool is its caller's to say. Each is set within a
//! txg, so after a crash it is there whole or not at all.

use super::PoolCtx;
use super::open::DIRECTORY;
use crate::error::Result;
use crate::txg::Tx;
use crate::zap::{CreateOpts, Value, Zap};
use zilla_ondisk::dsl::DMU_POOL_PROPS;
use zilla_ondisk::object_type::DMU_OT_POOL_PROPS;

/// Sets a property, or with None takes it away.
pub async fn store_property(ctx: &PoolCtx, tx: &Tx, name: &str, value: Option<&Value>) -> Result<()> {
    let mos = ctx.mos();
    let directory = Zap::open(mos, DIRECTORY).await?;
    let zap = match directory.try_get_u64(DMU_POOL_PROPS).await? {
        Some(id) => Zap::open(mos, id).await?,
        None => {
            let zap = Zap::make(mos, tx, DMU_OT_POOL_PROPS, &CreateOpts::default()).await?;
            directory.insert_u64(tx, DMU_POOL_PROPS, zap.id()).await?;
            zap
        }
    };
    let told = match value {
        None => {
            zap.delete_if_there(tx, name).await?;
            String::new()
        }
        Some(value) => {
            zap.set(tx, name, value).await?;
            value.as_u64().map_or_else(|| value.as_str().unwrap_or_default().to_owned(), |n| n.to_string())
        }
    };
    ctx.note_internal(tx.txg(), "set", format!("{name}={told}"));
    Ok(())
}
