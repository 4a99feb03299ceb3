//! `zpool labelclear`: a device forgets that it was a pool's.
//!
//! It is opened for itself alone, so that no pool that is open here, and no other process, can lose
//! a device that way. Only labels that are one are wiped; a device without any is left alone.

use super::errors::Answer;
use super::{Engine, Serves};
use std::path::Path;
use zilla::devices;
use zilla_control::types::LabelClear;
use zilla_control::{ApiError, Caller, ErrorCode};
use zilla_env::OpenMode;
use zilla_ondisk::enums::PoolState;

fn refused(line: String) -> ApiError {
    ApiError::new(ErrorCode::VdevInvalid).details(vec![line])
}

impl Serves<LabelClear> for Engine {
    async fn serve(&self, _: &Caller, r: LabelClear) -> Answer<()> {
        let _changes = self.changes.lock().await;
        let path = &r.path;
        let mode = OpenMode { write: true, exclusive: true };
        let device = match self.env.open(Path::new(path), mode).await {
            Ok(device) => devices::pool_device(device).await,
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
        let Some(info) = devices::probe(&device).await else {
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
        let cleared = devices::clear_labels(&device).await;
        cleared.map_err(|_| refused(format!("failed to clear label for {path}")))
    }
}

impl Engine {
    /// The open pool that holds a device.
    async fn member_of(&self, path: &str) -> Option<String> {
        let (_, label) = devices::probe_path(&self.env, Path::new(path)).await.ok()??;
        let guid = label.pool_guid()?;
        let pool = self.all_pools().into_iter().find(|p| p.zilla.guid() == guid)?;
        Some(format!("{path} is a member (ACTIVE) of pool \"{}\"", pool.name()))
    }
}
