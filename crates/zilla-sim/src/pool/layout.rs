//! The pools that are put to the test.

use crate::Sim;
use std::path::PathBuf;
use std::sync::Arc;
use zilla_core::error::Result;
use zilla_core::spa::{CreateOpts, FoundPool, Host, OpenOpts, Spa, discover};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_env::Env;

/// Where the simulated disks are.
const DIR: &str = "/disks";
pub const POOL: &str = "tank";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Single,
    Mirror,
    Raidz1,
    Raidz2,
    Draid1,
    /// Two.
    Mirrors,
}

impl Layout {
    pub const ALL: [Layout; 4] = [Layout::Single, Layout::Mirror, Layout::Raidz2, Layout::Draid1];

    pub fn parse(name: &str) -> Option<Layout> {
        Some(match name {
            "single" => Layout::Single,
            "mirror" => Layout::Mirror,
            "raidz1" => Layout::Raidz1,
            "raidz2" => Layout::Raidz2,
            "draid1" => Layout::Draid1,
            "mirrors" => Layout::Mirrors,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Layout::Single => "single",
            Layout::Mirror => "mirror",
            Layout::Raidz1 => "raidz1",
            Layout::Raidz2 => "raidz2",
            Layout::Draid1 => "draid1",
            Layout::Mirrors => "mirrors",
        }
    }

    pub fn disks(self) -> usize {
        match self {
            Layout::Single => 1,
            Layout::Mirror => 2,
            Layout::Raidz1 => 3,
            Layout::Raidz2 | Layout::Mirrors => 4,
            Layout::Draid1 => 5,
        }
    }

    /// How many disks it can do without.
    pub fn redundancy(self) -> usize {
        match self {
            Layout::Single => 0,
            Layout::Mirror | Layout::Raidz1 | Layout::Draid1 | Layout::Mirrors => 1,
            Layout::Raidz2 => 2,
        }
    }

    fn disk_size(self) -> u64 {
        if self == Layout::Single { 128 << 20 } else { 80 << 20 }
    }

    pub fn path(i: usize) -> PathBuf {
        PathBuf::from(format!("{DIR}/d{i}"))
    }

    pub fn add_disks(self, sim: &Sim) {
        for i in 0..self.disks() {
            sim.add_disk(Layout::path(i), self.disk_size());
        }
    }

    /// Sectors of 512 bytes make odd sizes, of 4K the common ones; both are used.
    fn spec(self) -> PoolSpec {
        let kind = match self {
            Layout::Single => VdevKind::Disk,
            Layout::Mirror | Layout::Mirrors => VdevKind::Mirror,
            Layout::Raidz1 => VdevKind::Raidz { nparity: 1 },
            Layout::Raidz2 => VdevKind::Raidz { nparity: 2 },
            Layout::Draid1 => VdevKind::Draid { nparity: 1, ndata: 2, nspares: 0 },
        };
        let ashift = Some(if self == Layout::Mirror { 12 } else { 9 });
        let leaf = |i: &usize| LeafSpec { path: Layout::path(*i), disk: true };
        let top = |leaves: &[usize]| {
            let leaves = leaves.iter().map(leaf).collect();
            TopSpec { kind, leaves, is_log: false, bias: None, ashift }
        };
        let disks: Vec<usize> = (0..self.disks()).collect();
        let each = if self == Layout::Mirrors { 2 } else { disks.len() };
        PoolSpec { tops: disks.chunks(each).map(top).collect(), ..PoolSpec::default() }
    }

    pub async fn create(self, env: &Env) -> Result<Arc<Spa>> {
        let opts = CreateOpts {
            name: POOL.into(),
            host: host(),
            comment: None,
            owner: (0, 0),
            features: None,
            // So small that the work keeps meeting blocks that are not in memory.
            dbuf_cache: 128 << 10,
            arc_max: 512 << 10,
        };
        Spa::create(env, &self.spec(), opts).await
    }
}

pub(super) fn host() -> Host {
    Host { id: 0x51e, name: "simulated".into() }
}

/// The pool on whatever disks are there.
pub async fn find(env: &Env) -> Result<Option<FoundPool>> {
    Ok(discover(env, &[DIR.into()]).await?.into_iter().next())
}

fn opts(readonly: bool) -> OpenOpts {
    OpenOpts { readonly, host: host(), dbuf_cache: 2 << 20, arc_max: 16 << 20, ..OpenOpts::default() }
}

pub async fn import(env: &Env, found: &FoundPool, readonly: bool) -> Result<Arc<Spa>> {
    Spa::open(env, found, opts(readonly)).await
}

/// The same as of the pool's checkpoint.
pub async fn go_back(env: &Env, found: &FoundPool, readonly: bool) -> Result<Arc<Spa>> {
    let opts = OpenOpts { rewind_to_checkpoint: true, ..opts(readonly) };
    Spa::open(env, found, opts).await
}
