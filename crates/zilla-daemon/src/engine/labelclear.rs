//! `zpool labelclear`: a device forgets that it was a pool's.
//!
//! It is opened for itself alone, so that no pool that is open here, and no other process, can lose a device that way. Only
//! labels that are one are wiped; a device without any is left alone.

use super::Engine;
use super::errors::Answer;
use std::path::Path;
use zilla_control::types::LabelClear;
use zilla_control::{ApiError, ErrorCode};
use zilla_core::vdev::{self, label};
use zilla_env::{IoBuf, OpenMode};
use zilla_ondisk::enums::PoolState;
use zilla_ondisk::label::VDEV_LABEL_SIZE;

fn refused(line: String) -> ApiError {
    ApiError::new(ErrorCode::VdevInvalid).details(vec![line])
}

impl Engine {
    pub(super) async fn clear_labels(&self, r: LabelClear) -> Answer<()> {
        let _changes = self.changes.lock().await;
        let path = &r.path;
        let mode = OpenMode { write: true, exclusive: true };
        let device = match self.env.open(Path::new(path), mode).await {
            Ok(device) => vdev::pool_device(device).await,
            Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
                return Err(refused(
                    self.member_of(path)
                        .await
                        .unwrap_or_else(|| format!("failed to open {path}: Device or resource busy")),
                ));
            }
            Err(e) => {
                return Err(refused(format!("failed to open {path}: {}", zilla_env::strerror(&e))));
            }
        };
        let Some(info) = vdev::probe(&device).await else {
            return Err(refused(format!("failed to read label from {path}")));
        };
        let pool = info.pool_name().unwrap_or("unknown");
        // What was never made part of a pool, or has left it, says txg 0.
        let in_pool = info.pool_guid().is_some() && info.txg() != 0;
        let spare_of = self.spare_of(info.guid());
        let doubt = match info.state() {
            Some(PoolState::Spare) if spare_of.is_some() => {
                let owner = spare_of.unwrap_or_default();
                return Err(refused(format!("{path} is a member (SPARE) of pool \"{owner}\"")));
            }
            Some(PoolState::Exported) if in_pool => Some("exported"),
            Some(PoolState::Active) if in_pool => Some("potentially active"),
            _ => None,
        };
        if let Some(kind) = doubt.filter(|_| !r.force) {
            let lines = vec![
                "use '-f' to override the following error:".to_owned(),
                format!("{path} is a member of {kind} pool \"{pool}\""),
            ];
            return Err(ApiError::new(ErrorCode::VdevInvalid).details(lines));
        }
        let labels = label::read_labels(&device).await;
        let failed = |_| refused(format!("failed to clear label for {path}"));
        for found in labels.iter().filter(|l| l.config.is_some()) {
            let zeroes = IoBuf::zeroed(VDEV_LABEL_SIZE as usize).into_bytes();
            device.write(found.offset, zeroes).await.map_err(failed)?;
        }
        device.flush().await.map_err(failed)
    }

    /// The open pool that holds a device.
    async fn member_of(&self, path: &str) -> Option<String> {
        let (_, label) = vdev::probe_path(&self.env, Path::new(path)).await.ok()??;
        let guid = label.pool_guid()?;
        let pool = self.all_pools().into_iter().find(|p| p.spa.guid() == guid)?;
        Some(format!("{path} is a member (ACTIVE) of pool \"{}\"", pool.name()))
    }
}
