//! Whether devices that are to become a pool's are somebody's already.
//!
//! Each is opened as the pool will open it, for writing and for itself alone; then the ZFS labels
//! and the marks of others are looked for on what was opened, and just that is handed to the engine
//! (`handed.rs`). What is in use (mounted, in a pool that is open or its hot spare, locked by a
//! process) is refused whatever is asked for; what only may be of use to somebody is refused unless
//! `-f` says otherwise. Every device is named, not only the first.

use super::Engine;
use super::errors::Answer;
use super::handed::Checked;
use super::pool::Pool;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zilla::devices::{LabelInfo, pool_device, probe};
use zilla::foreign::{self, Foreign};
use zilla_control::props;
use zilla_control::types::VdevSpec;
use zilla_control::{ApiError, ErrorCode};
use zilla_env::{Device, OpenMode};
use zilla_ondisk::enums::PoolState;

/// No pool fits into less.
const MIN_DEVICE: u64 = 64 << 20;

/// What devices are to become part of.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    NewPool,
    NewVdev,
    /// Of a vdev that is there.
    Side,
}

impl Purpose {
    fn too_small(self) -> String {
        let minimum = props::nicenum::nicebytes(MIN_DEVICE);
        match self {
            Purpose::NewPool => format!("one or more devices is less than the minimum size ({minimum})"),
            Purpose::NewVdev => format!("device is less than the minimum size ({minimum})"),
            Purpose::Side => "device is too small".to_owned(),
        }
    }
}

/// What speaks against devices.
#[derive(Default)]
struct Objections {
    fatal: Vec<String>,
    /// `-f` does it anyway.
    doubtful: Vec<String>,
    too_small: bool,
}

impl Objections {
    /// Without `-f` all are told as if `-f` helped against each, as OpenZFS tells them; with it
    /// those that are left.
    fn judge(&mut self, force: bool) -> Answer<()> {
        let mut lines = std::mem::take(&mut self.fatal);
        let code = if force { ErrorCode::VdevInvalid } else { ErrorCode::VdevOverridable };
        if !force {
            lines.append(&mut self.doubtful);
        }
        if lines.is_empty() { Ok(()) } else { Err(ApiError::new(code).details(lines)) }
    }
}

fn not_opened(path: &str, e: &io::Error) -> ApiError {
    ApiError::with(ErrorCode::OpenFailed, format!("cannot open '{path}': {}", zilla_env::strerror(e)))
}

impl Engine {
    /// Refuses devices that are somebody's, or named twice. The others stay open until the result
    /// is dropped.
    pub(super) async fn check_devices(
        &self,
        spec: &VdevSpec,
        force: bool,
        purpose: Purpose,
    ) -> Answer<Checked> {
        let mut seen: BTreeMap<PathBuf, String> = BTreeMap::new();
        let mut found = Objections::default();
        let mut checked = self.desk.none();
        let leaves = spec.tops.iter().flat_map(|t| &t.leaves).chain(&spec.l2cache).map(|l| (l, false));
        for (leaf, as_spare) in leaves.chain(spec.spares.iter().map(|l| (l, true))) {
            let path = Path::new(&leaf.path);
            let real = self.env.opener.canonical(path).await.map_err(|e| not_opened(&leaf.path, &e))?;
            if let Some(other) = seen.insert(real, leaf.path.clone()) {
                return Err(ApiError::with(
                    ErrorCode::BadDev,
                    format!("one or more vdevs refer to the same device: '{other}' and '{}'", leaf.path),
                ));
            }
            match self.env.open(path, OpenMode { write: true, exclusive: true }).await {
                Ok(device) => {
                    self.look(&leaf.path, &device, as_spare, &mut found).await?;
                    checked.add(path, device);
                }
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                    self.explain(&leaf.path, &e, &mut found).await?;
                }
                Err(e) => return Err(not_opened(&leaf.path, &e)),
            }
        }
        found.judge(force)?;
        if found.too_small {
            return Err(ApiError::with(ErrorCode::BadDev, purpose.too_small()));
        }
        Ok(checked)
    }

    /// A device that nobody uses at the moment.
    async fn look(
        &self,
        path: &str,
        device: &Arc<dyn Device>,
        as_spare: bool,
        found: &mut Objections,
    ) -> Answer<()> {
        found.too_small |= device.size() < MIN_DEVICE;
        let on_pool = pool_device(device.clone()).await;
        if let Some(label) = probe(&on_pool).await {
            // A spare may be that of several pools.
            if !as_spare || label.state() != Some(PoolState::Spare) {
                self.judge_label(path, &label, found);
            }
        }
        let foreign = foreign::look(device).await.map_err(|e| not_opened(path, &e))?;
        found.doubtful.extend(foreign.map(|what| format!("{path} {what}")));
        Ok(())
    }

    /// Whose a device is that cannot be had.
    async fn explain(&self, path: &str, busy: &io::Error, found: &mut Objections) -> Answer<()> {
        let device = self.env.open(Path::new(path), OpenMode::default()).await;
        let device = device.map_err(|e| not_opened(path, &e))?;
        let told = found.fatal.len() + found.doubtful.len();
        let on_pool = pool_device(device.clone()).await;
        if let Some(label) = probe(&on_pool).await {
            let mut of_label = Objections::default();
            self.judge_label(path, &label, &mut of_label);
            found.fatal.append(&mut of_label.fatal);
        }
        if told == found.fatal.len() + found.doubtful.len() {
            let what = foreign::look(&device).await.map_err(|e| not_opened(path, &e))?;
            let what = match what {
                Some(Foreign::FileSystem(name)) => format!(" and contains a {name} filesystem"),
                _ => String::new(),
            };
            let holder = busy.to_string();
            let holder = holder.rsplit_once(" is in use by ").map_or("", |(_, by)| by);
            found.fatal.push(format!("{path} is in use{what} ({holder})"));
        }
        Ok(())
    }

    /// Which pool the ZFS labels name.
    fn judge_label(&self, path: &str, label: &LabelInfo, found: &mut Objections) {
        // It has left its pool, or never became part of one.
        if label.pool_guid().is_some() && label.txg() == 0 {
            return;
        }
        let owner = label.config.str("name").unwrap_or("unknown");
        let guid = label.pool_guid().unwrap_or(0);
        let open_here = self.all_pools().iter().any(|p| p.zilla.guid() == guid);
        match label.config.u64("state").and_then(PoolState::from_number) {
            Some(PoolState::Exported) => {
                found.doubtful.push(format!("{path} is part of exported pool '{owner}'"));
            }
            Some(PoolState::Active) if open_here => {
                found.fatal.push(format!("{path} is part of active pool '{owner}'"));
            }
            Some(PoolState::Active) => {
                found.doubtful.push(format!("{path} is part of potentially active pool '{owner}'"));
            }
            // Its label names no pool: it is reserved as long as an open pool says so.
            Some(PoolState::Spare) => {
                if let Some(owner) = self.spare_of(label.guid()) {
                    found.fatal.push(format!("{path} is reserved as a hot spare for pool {owner}"));
                }
            }
            Some(PoolState::L2cache) => {
                if let Some(owner) = self.cache_of(label.guid()) {
                    found.fatal.push(format!("{path} is in use as a cache device of active pool '{owner}'"));
                }
            }
            _ => {}
        }
    }

    /// The open pool that has this cache device.
    fn cache_of(&self, guid: Option<u64>) -> Option<String> {
        let has = |p: &&Arc<Pool>| p.zilla.vdevs().caches().iter().any(|c| Some(c.guid) == guid);
        self.all_pools().iter().find(has).map(|p| p.name())
    }

    /// Whether a spare that other pools have too stands in for a device of this one.
    pub(super) fn has_active_shared_spare(&self, pool: &Pool) -> bool {
        let own = pool.zilla.vdevs();
        let others: Vec<_> = self.all_pools().into_iter().filter(|p| p.name() != pool.name()).collect();
        let shared = |guid| others.iter().any(|p| p.zilla.vdevs().spares().iter().any(|s| s.guid == guid));
        own.spares().iter().any(|s| own.is_active_spare(s.guid) && shared(s.guid))
    }

    /// The open pool in which this spare is in use.
    pub(super) fn user_of_spare(&self, guid: u64) -> Option<String> {
        self.all_pools().iter().find(|p| p.zilla.vdevs().is_active_spare(guid)).map(|p| p.name())
    }

    /// The open pool that has this spare.
    pub(super) fn spare_of(&self, guid: Option<u64>) -> Option<String> {
        let has = |p: &&Arc<Pool>| p.zilla.vdevs().spares().iter().any(|s| Some(s.guid) == guid);
        self.all_pools().iter().find(has).map(|p| p.name())
    }
}
