//! Looking at a device whose place in a pool is not known yet.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::io;
use std::path::Path;
use std::sync::Arc;

use zilla_env::{Device, Env, OpenMode};

use super::gpt;
use super::label::{self, LabelInfo};

/// What a device's labels say, or `None` where there is no label.
#[crate::boxed]
pub async fn probe(device: &Arc<dyn Device>) -> Option<LabelInfo> {
    let labels = label::read_labels(device).await;
    label::info(&labels, device.size())
}

/// Opens what a path names as a pool device: the thing itself, or the first partition of an image
/// with a GPT where only that carries labels.
#[crate::boxed]
pub async fn open_device(env: &Env, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn Device>> {
    Ok(pool_device(env.open(path, mode).await?).await)
}

/// The same for what is open already.
#[crate::boxed]
pub async fn pool_device(device: Arc<dyn Device>) -> Arc<dyn Device> {
    let Some(part) = gpt::first_partition(&device).await else { return device };
    if probe(&device).await.is_some() {
        return device;
    }
    let part: Arc<dyn Device> = Arc::new(part);
    if probe(&part).await.is_some() { part } else { device }
}

/// Opens a path for reading and probes it.
#[crate::boxed]
pub async fn probe_path(env: &Env, path: &Path) -> io::Result<Option<(Arc<dyn Device>, LabelInfo)>> {
    let device = open_device(env, path, OpenMode::default()).await?;
    Ok(probe(&device).await.map(|info| (device, info)))
}
