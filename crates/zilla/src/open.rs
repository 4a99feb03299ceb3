//! Pools made and opened with all that can be said of it, for servers: [`Pool::create`] and
//! [`Pool::import`] are the simpler way.

use crate::error::Result;
use crate::pool::Pool;
use zilla_core::spa::{Spa, Split};
use zilla_env::Env;

use crate::devices::PoolSpec;
pub use zilla_core::spa::{CreateOpts, FoundPool, OpenOpts, Outward, Rank, Rewind, RootFs, discover};

impl Pool {
    /// Makes a pool of devices that are nobody else's.
    pub async fn create_with(
        env: &Env,
        spec: &PoolSpec,
        opts: CreateOpts,
        root: RootFs,
        outward: Outward,
    ) -> Result<Pool> {
        let owner = opts.owner;
        Ok(Pool::of(env, Spa::create_with(env, spec, opts, root, outward).await?, owner))
    }

    /// Opens a pool that was found.
    pub async fn open(env: &Env, found: &FoundPool, opts: OpenOpts) -> Result<Pool> {
        Ok(Pool::of(env, Spa::open(env, found, opts).await?, (0, 0)))
    }

    /// Sees whether another host has a pool, which may take a while. Some: as of when it has not,
    /// for [`OpenOpts::quiet`]; None: it need not be asked.
    pub async fn look_for_activity(env: &Env, found: &FoundPool, opts: &OpenOpts) -> Result<Option<Rank>> {
        Spa::look_for_activity(env, found, opts).await
    }

    /// Splits a side off each mirror (`sides`, by their guids; none: the last ones), which become a
    /// pool of their own.
    pub async fn split(&self, sides: Vec<u64>, opts: OpenOpts) -> Result<Pool> {
        let (spa, env) = (self.spa().clone(), self.env().clone());
        // The new one is closed again if nobody waits for it any more.
        self.changed(async move { Ok(Pool::of(&env, spa.split(Split { sides, opts }).await?, (0, 0))) }).await
    }
}
