//! A pool on modelled devices, in virtual or in real time.
//!
//! The engine is the real one; the devices hold their data in memory and take as long as their
//! profile says, by the clock of the world in which they stand. In the simulator's a figure is what
//! the devices allow, the same in every run and on every machine, and says nothing about what the
//! engine costs in CPU. In the real one that comes on top, and what the kernel costs, if the way
//! leads through it.

use crate::engine::Result;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use zilla::Filesystem;
use zilla_core::spa::{CreateOpts, Host, Spa};
use zilla_core::txg::DirtyLimits;
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_env::model::{ModelDevice, Profile};
use zilla_env::{BoxFuture, Device, DirEntry, Env, MemDevice, OpenMode, Opener};
use zilla_ondisk::enums::PoolState;
use zilla_sim::{Sim, SimConfig};

pub const POOL: &str = "bench";
/// Whether the logs' policy is the plain one rather than the measured one.
pub static PLAIN: OnceLock<bool> = OnceLock::new();
/// Free buffers kept.
const KEPT: usize = 2 << 30;
const CACHES: Caches = Caches { dbufs: 512 << 20, arc: 1 << 30 };
/// Dirty data: a tenth of a memory of 16 GiB, which is what OpenZFS allows.
const DIRTY: u64 = 16 * (1 << 30) / 10;

/// Bytes of memory for blocks.
#[derive(Clone, Copy, Debug)]
pub struct Caches {
    pub dbufs: usize,
    pub arc: u64,
}

/// Some devices of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Devices {
    pub count: usize,
    pub profile: &'static str,
    pub size: u64,
    pub shape: Shape,
}

/// How the devices of a role stand together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Side by side.
    Single,
    /// In mirrors of two.
    Pairs,
    /// All in one RAID-Z with one parity.
    Raidz,
    /// The same with two.
    Raidz2,
    /// In no use yet.
    Spare,
}

impl Devices {
    fn tops(&self, role: &str, is_log: bool) -> Vec<TopSpec> {
        let leaves: Vec<LeafSpec> =
            (0..self.count).map(|i| LeafSpec { path: path(role, i), disk: true }).collect();
        let (kind, width) = match self.shape {
            Shape::Single => (VdevKind::Disk, 1),
            Shape::Pairs => (VdevKind::Mirror, 2),
            Shape::Raidz => (VdevKind::Raidz { nparity: 1 }, self.count),
            Shape::Raidz2 => (VdevKind::Raidz { nparity: 2 }, self.count),
            Shape::Spare => return Vec::new(),
        };
        let top = |leaves: &[LeafSpec]| TopSpec {
            kind,
            leaves: leaves.to_vec(),
            is_log,
            bias: None,
            ashift: Some(12),
        };
        leaves.chunks(width).map(top).collect()
    }
}

/// Where a device of a role is found: `main`, `log`, `cache` or `spare`, counted from 0.
pub fn path(role: &str, i: usize) -> PathBuf {
    PathBuf::from(format!("/modelled/{role}{i}"))
}

/// Opens memory as a device of the kind that its path has.
struct Modelled {
    disks: BTreeMap<PathBuf, (Arc<dyn Device>, Profile)>,
    /// For all else, of which there should be nothing.
    other: Arc<dyn Opener>,
    /// Clock and spawner.
    env: Env,
}

impl Opener for Modelled {
    fn open(&self, path: &Path, mode: OpenMode) -> BoxFuture<'static, io::Result<Arc<dyn Device>>> {
        let Some((disk, profile)) = self.disks.get(path) else { return self.other.open(path, mode) };
        let disk: Arc<dyn Device> = Arc::new(ModelDevice::new(disk.clone(), profile.clone(), &self.env));
        Box::pin(async move { Ok(disk) })
    }
    fn list(&self, dir: &Path) -> BoxFuture<'static, io::Result<Vec<DirEntry>>> {
        if self.disks.contains_key(dir) {
            return Box::pin(async { Err(io::ErrorKind::NotADirectory.into()) });
        }
        self.other.list(dir)
    }
    fn read_file(&self, path: &Path) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        self.other.read_file(path)
    }
    fn write_file(&self, path: &Path, data: Vec<u8>) -> BoxFuture<'static, io::Result<()>> {
        self.other.write_file(path, data)
    }
    fn remove_file(&self, path: &Path) -> BoxFuture<'static, io::Result<()>> {
        self.other.remove_file(path)
    }
    fn create_file(&self, path: &Path, size: u64) -> BoxFuture<'static, io::Result<()>> {
        self.other.create_file(path, size)
    }
    fn canonical(&self, path: &Path) -> BoxFuture<'static, io::Result<PathBuf>> {
        self.other.canonical(path)
    }
}

/// A world in which computing takes no time. It ends with the [`Sim`]: keep that as long as a rig
/// stands in it.
pub fn virtual_world() -> Sim {
    seeded_world(1)
}

/// The same with other chances.
pub fn seeded_world(seed: u64) -> Sim {
    Sim::with_config(seed, SimConfig { max_polls: u64::MAX, punctual: true, ..SimConfig::default() })
}

/// A pool in a world.
pub struct Rig {
    pub env: Env,
    pub spa: Arc<Spa>,
    pub fs: Arc<Filesystem>,
}

impl Rig {
    pub fn new(world: &Env, main: Devices, logs: Option<Devices>) -> Result<Rig> {
        let memory = |role: &str, i: usize, size: u64| -> Arc<dyn Device> {
            Arc::new(MemDevice::new(size).named(path(role, i)))
        };
        Rig::made_of(world, &[("main", main)], logs, CACHES, memory)
    }

    /// A pool of `main`, beside whatever other devices there are, each of which `memory` makes.
    pub fn made_of(
        world: &Env,
        roles: &[(&str, Devices)],
        logs: Option<Devices>,
        caches: Caches,
        memory: impl Fn(&str, usize, u64) -> Arc<dyn Device>,
    ) -> Result<Rig> {
        // Fresh memory costs more than anything else here.
        zilla_env::set_pool_limit(KEPT);
        let mut disks: BTreeMap<PathBuf, (Arc<dyn Device>, Profile)> = BTreeMap::new();
        let logs = logs.map(|l| ("log", l));
        for &(role, devices) in roles.iter().chain(&logs) {
            let profile = Profile::named(devices.profile).ok_or("there is no such profile")?;
            for i in 0..devices.count {
                disks.insert(path(role, i), (memory(role, i, devices.size), profile.clone()));
            }
        }
        let opener = Modelled { disks, other: world.opener.clone(), env: world.clone() };
        let env = Env { opener: Arc::new(opener), ..world.clone() };
        let mut tops: Vec<TopSpec> = roles.iter().flat_map(|(role, d)| d.tops(role, false)).collect();
        tops.extend(logs.iter().flat_map(|(role, d)| d.tops(role, true)));
        let spec = PoolSpec { tops, ..PoolSpec::default() };
        let opts = CreateOpts {
            name: POOL.into(),
            host: Host { id: 1, name: "modelled".into() },
            comment: None,
            owner: (0, 0),
            features: None,
            dbuf_cache: caches.dbufs,
            arc_max: caches.arc,
        };
        let (spa, fs) = env.block_on(async {
            let spa = Spa::create(&env, &spec, opts).await?;
            let fs = zilla::engine::open_filesystem(&env, &spa.dsl, POOL, false).await?;
            Ok::<_, zilla::Error>((spa, fs))
        })?;
        PLAIN.get().into_iter().for_each(|plain| spa.ctx.log.fix_policy(*plain));
        spa.ctx.txgs.set_limits(DirtyLimits { max: DIRTY, ..DirtyLimits::default() });
        Ok(Rig { env, spa, fs })
    }

    /// Ends the pool. A virtual world's end does that too; in the real one the pool would go on
    /// beside the next.
    pub fn close(self) -> Result<()> {
        drop(self.fs);
        Ok(self.env.block_on(self.spa.close(Some(PoolState::Destroyed)))?)
    }
}
