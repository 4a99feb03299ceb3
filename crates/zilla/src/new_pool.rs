//! What a new pool is to be made of.
//!
//! Each device is opened and looked at before anything is written: where a label of a pool's or a
//! mark of somebody else's lies on it, it is refused unless that is said to go.

use crate::foreign;
use crate::props::refused;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use zilla_control::props::naming;
use zilla_core::error::{Errno, Error, Result};
use zilla_core::vdev::{self, LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_env::{Env, OpenMode};

/// What a program's pool keeps in memory unless it says otherwise, bytes: it is a guest there.
pub(crate) const ARC: u64 = 64 << 20;

/// A top-level vdev of a new pool.
#[derive(Debug, Clone)]
pub struct NewVdev {
    kind: Kind,
    devices: Vec<PathBuf>,
    is_log: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Mirror,
    Raidz(u8),
}

impl NewVdev {
    /// One device, without redundancy.
    pub fn single(device: impl Into<PathBuf>) -> NewVdev {
        NewVdev { kind: Kind::Single, devices: vec![device.into()], is_log: false }
    }

    /// Devices that all hold the same.
    pub fn mirror<P: Into<PathBuf>>(devices: impl IntoIterator<Item = P>) -> NewVdev {
        let devices = devices.into_iter().map(Into::into).collect();
        NewVdev { kind: Kind::Mirror, devices, is_log: false }
    }

    /// Devices of which so many (1 to 3) may be lost.
    pub fn raidz<P: Into<PathBuf>>(parity: u8, devices: impl IntoIterator<Item = P>) -> NewVdev {
        let devices = devices.into_iter().map(Into::into).collect();
        NewVdev { kind: Kind::Raidz(parity), devices, is_log: false }
    }

    /// It holds the intent log, and nothing else.
    pub fn for_log(self) -> NewVdev {
        NewVdev { is_log: true, ..self }
    }
}

/// How a pool is to be made.
#[derive(Debug, Clone)]
pub struct NewPool {
    pub(crate) name: String,
    vdevs: Vec<NewVdev>,
    cache: Vec<PathBuf>,
    pub(crate) owner: (u32, u32),
    overwrite: bool,
    pub(crate) memory: u64,
}

impl NewPool {
    /// A pool of this name, of nothing yet.
    pub fn new(name: impl Into<String>) -> NewPool {
        NewPool {
            name: name.into(),
            vdevs: Vec::new(),
            cache: Vec::new(),
            owner: (0, 0),
            overwrite: false,
            memory: ARC,
        }
    }

    /// One more top-level vdev.
    pub fn vdev(mut self, vdev: NewVdev) -> NewPool {
        self.vdevs.push(vdev);
        self
    }

    /// One more cache device.
    pub fn cache(mut self, device: impl Into<PathBuf>) -> NewPool {
        self.cache.push(device.into());
        self
    }

    /// Whose the root directory is; root's otherwise.
    pub fn owner(mut self, uid: u32, gid: u32) -> NewPool {
        self.owner = (uid, gid);
        self
    }

    /// Whatever lies on the devices is to go.
    pub fn overwrite(mut self) -> NewPool {
        self.overwrite = true;
        self
    }

    /// Bytes of blocks that it may keep in memory; 64 MiB otherwise.
    pub fn memory(mut self, bytes: u64) -> NewPool {
        self.memory = bytes;
        self
    }

    /// Looks at the devices, and says what the engine is to make of them.
    pub(crate) async fn spec(&self, env: &Env) -> Result<PoolSpec> {
        naming::check_pool_name(&self.name, false).map_err(refused)?;
        if self.vdevs.iter().all(|v| v.is_log) {
            return Err(Error::inval(format!("'{}' has no vdev for data", self.name)));
        }
        let mut spec = PoolSpec::default();
        let mut seen = BTreeSet::new();
        let mut look = async |path: &Path| {
            let leaf = look_at(env, path, self.overwrite).await?;
            match seen.insert(env.opener.canonical(path).await?) {
                true => Ok(leaf),
                false => Err(Error::inval(format!("{} is named twice", path.display()))),
            }
        };
        for path in &self.cache {
            spec.cache.push(look(path).await?);
        }
        for vdev in &self.vdevs {
            let mut leaves = Vec::new();
            for path in &vdev.devices {
                leaves.push(look(path).await?);
            }
            let kind = match vdev.kind {
                Kind::Single if leaves.iter().any(|l| l.disk) => VdevKind::Disk,
                Kind::Single => VdevKind::File,
                Kind::Mirror => VdevKind::Mirror,
                Kind::Raidz(parity @ 1..=3) => VdevKind::Raidz { nparity: parity },
                Kind::Raidz(parity) => return Err(Error::inval(format!("there is no raidz{parity}"))),
            };
            spec.tops.push(TopSpec { kind, leaves, is_log: vdev.is_log, bias: None, ashift: None });
        }
        Ok(spec)
    }
}

/// A device that may become part of a new pool.
async fn look_at(env: &Env, path: &Path, overwrite: bool) -> Result<LeafSpec> {
    let device = env.open(path, OpenMode { write: true, exclusive: true }).await?;
    let taken = |what: String| Err(Error::os(Errno::Exist, format!("{} {what}", path.display())));
    if !overwrite {
        let label = vdev::probe(&vdev::pool_device(device.clone()).await).await;
        // One of txg 0 has left its pool, or never became part of one.
        if let Some(label) = label.filter(|l| l.pool_guid().is_none() || l.txg() != 0) {
            return taken(format!("is part of pool '{}'", label.pool_name().unwrap_or("unknown")));
        }
        if let Some(what) = foreign::look(&device).await? {
            return taken(what.to_string());
        }
    }
    Ok(LeafSpec { path: path.to_owned(), disk: device.info().is_block_dev })
}
