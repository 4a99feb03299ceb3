//! Files and volumes on the engine's own structures, for those who test and measure the engine
//! itself (feature `engine`).
//!
//! It changes with the engine and promises nothing. No crate of the product asks for it, which
//! `cargo xtask tidy` sees to.

use crate::dataset::filesystem_on;
use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::volume::Volume;
use std::sync::Arc;
use zilla_core::dsl::{DslDataset, DslPool};
use zilla_core::zpl::Zfs;
use zilla_env::Env;

/// The files of a file system or snapshot, by their numbers alone.
pub async fn open_zfs(
    env: &Env,
    dsl: &Arc<DslPool>,
    ds: &Arc<DslDataset>,
    readonly: bool,
) -> Result<Arc<Zfs>> {
    crate::dataset::open_zfs(env, dsl, ds, readonly).await
}

/// A file system or snapshot by its full name.
pub async fn open_filesystem(
    env: &Env,
    dsl: &Arc<DslPool>,
    name: &str,
    readonly: bool,
) -> Result<Arc<Filesystem>> {
    let ds = dsl.by_name(name).await?;
    let zfs = open_zfs(env, dsl, &ds, readonly).await?;
    filesystem_on(env, dsl, &ds, zfs).await
}

/// A volume, or a snapshot of one, by its full name.
pub async fn open_volume(env: &Env, dsl: &Arc<DslPool>, name: &str, readonly: bool) -> Result<Arc<Volume>> {
    crate::volume::open_volume(env, dsl, dsl.by_name(name).await?, readonly).await
}

/// What cannot be replayed of a file system's intent log goes.
pub async fn give_up_log(dsl: &Arc<DslPool>, name: &str) -> Result<()> {
    dsl.open_log(&dsl.by_name(name).await?).await?.give_up_the_rest();
    Ok(())
}
