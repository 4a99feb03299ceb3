//! The pool: what is imported, its transaction groups, its configuration.
//!
//! **Floor 14.** It puts a pool together of all that is below.
//!
//! On disk a pool is found through labels ([`discover`]); the newest uberblock leads to the MOS,
//! whose directory (object 1) names everything else: the configuration ([`config`]), features
//! ([`features`]), space, datasets, history ([`history`]).
//!
//! ```text
//!   label -> uberblock -> MOS: 1 directory -> config, features_for_*, root_dataset, sync_bplist, history, ...
//! ```
//!
//! **Invariants.** The MOS changes only in the sync task ([`sync`]). Nothing is written before the
//! pool is known to be ours (host check, exclusive open of every device) and servable (features).
//! The configuration in the MOS is the one to be trusted; labels are only believed as far as
//! finding it goes.
//!
//! Which devices there are, and how large vdevs are, changes in one txg each time ([`vdevs`],
//! [`devices`], [`spares`], [`grow`]); a split makes two pools of one ([`split`]).
//!
//! That no other host has the pool is seen to in [`activity`] and [`multihost`].
//!
//! What goes wrong at devices is judged in [`diagnosis`] (those that do not answer in [`deadman`]),
//! and told to who watches ([`crate::events`]).
//!
//! **Crash.** A txg takes effect with its uberblock, written when everything else of it is stable
//! ([`sync`]); until then the uberblock before leads to a whole older state. If the devices do not
//! take it, it waits for them ([`suspend`]).
//!
//! **Lock order.** The locks here are leaves; none is held across a wait. `changing` is no lock in
//! this sense but a queue: whoever changes which devices there are waits in it, holding nothing,
//! until the change before is done.
//!
//! **Deliberately absent.** Nothing here knows of files or datasets' insides; `dsl` and `zpl` stand
//! on [`PoolCtx`].

mod activity;
pub(crate) mod brt;
mod cache;
mod checkpoint;
mod claim;
mod condense;
pub mod config;
mod create;
mod deadman;
mod devices;
mod diagnosis;
mod discover;
mod dtl;
mod expansion;
mod grow;
mod history;
mod identity;
mod indirect;
mod multihost;
mod open;
mod properties;
mod rebuild;
mod remove;
mod scrub;
mod spares;
mod split;
mod suspend;
mod sync;
mod traced;
mod upkeep;
mod vdev_objects;
mod vdev_props;
mod vdevs;

pub use crate::ddt::DedupStats;
use crate::ddt::Prune;
pub use activity::Rank;
pub use checkpoint::CheckpointStat;
pub use config::Host;
pub use create::{CreateOpts, Outward, RootFs};
pub use discover::{FoundPool, discover, set_paths};
pub use multihost::BeatRecord;
pub use open::{OpenOpts, Rewind};
pub use properties::store_property;
pub use rebuild::{RebuildState, RebuildStatus};
pub use spares::SpareSpec;
pub use split::Split;
pub use suspend::FailMode;
pub use upkeep::TrimCounts;
pub use vdevs::Attach;

pub use crate::error::PoolRefusal as Refusal;
pub use crate::pool::{PoolCtx, features};

use crate::ddt::Ddt;
use crate::dsl::DslPool;
use crate::dsl::bpobj::Bpobj;
use crate::error::{Error, Result};
use crate::metaslab::{Metaslabs, SpaceClass};
use crate::scan::Scan;
use crate::txg::Tx;
use crate::vdev::VdevTree;
use crate::zap::Zap;
use crate::zio::Zio;
use brt::Brt;
use event_listener::Event;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use zilla_ondisk::enums::PoolState;
use zilla_ondisk::{BlkPtr, NvList, Uberblock};

/// What can change of a pool's identity.
struct State {
    name: String,
    /// What labels and configuration call it, where it has another name while it is open here.
    disk_name: Option<String>,
    state: PoolState,
    host: Host,
    comment: Option<String>,
    /// Which sets of features it is kept to (`compatibility`).
    compatibility: Option<String>,
    /// Devices that are being split off, by guid ([`split`]).
    splitting: Vec<u64>,
    /// The guid of the pool that it was split off from, while it has been open since.
    split_from: Option<u64>,
}

/// An imported pool.
pub struct Spa {
    pub ctx: Arc<PoolCtx>,
    pub zio: Zio,
    pub metaslabs: Arc<Metaslabs>,
    pub dsl: Arc<DslPool>,
    state: Mutex<State>,
    mos_root: Mutex<BlkPtr>,
    uberblock: Mutex<Uberblock>,
    opened_at: Uberblock,
    config_object: u64,
    /// 0: a pool older than its history.
    history_object: AtomicU64,
    /// The list of cache devices, if there is one.
    cache_object: AtomicU64,
    /// The list of hot spares, if there is one.
    spare_object: AtomicU64,
    has_vdev_zaps: AtomicBool,
    deferred: Option<Bpobj>,
    removal_pace: AtomicU64,
    evacuation: Mutex<Option<Arc<remove::Evacuation>>>,
    condenser: condense::Condenser,
    expansion_pace: AtomicU64,
    mover: Arc<expansion::Mover>,
    rebuilds: rebuild::Rebuilds,
    /// What the directory says of removals.
    removing: Mutex<zilla_ondisk::removal::SpaRemovingPhys>,
    pub(crate) brt: Arc<Brt>,
    pub ddt: Arc<Ddt>,
    config_dirty: AtomicBool,
    autoexpand: AtomicBool,
    /// Somebody sees to what is freed being trimmed.
    autotrimming: AtomicBool,
    /// What was trimmed because someone asked, and by itself.
    pub(crate) trims: [upkeep::TrimStats; 2],
    checkpoint: Mutex<checkpoint::Checkpoint>,
    suspension: suspend::Suspension,
    sync_over: AtomicBool,
    /// It is being closed, and nothing is begun any more.
    leaving: AtomicBool,
    closed: AtomicBool,
    sync_ended: Event,
    diagnosis: Mutex<diagnosis::Diagnosis>,
    /// When it was last looked whether devices answer.
    deadman: Mutex<Option<std::time::Duration>>,
    heart: Arc<multihost::Heart>,
    /// Held while the set of devices, or the state of one, changes.
    changing: futures_util::lock::Mutex<()>,
    /// Who has devices tried again, one at a time; taken before `changing`.
    clearing: futures_util::lock::Mutex<()>,
    scan: OnceLock<Arc<Scan>>,
}

impl Drop for Spa {
    fn drop(&mut self) {
        // A pool that was closed may be open again by now, with handlers of its own.
        if !self.closed.load(Ordering::Acquire) {
            crate::inject::injections().forget_pool(self.tree().root.guid);
        }
        self.ctx.forget_tasks();
    }
}

impl Spa {
    pub fn name(&self) -> String {
        self.state.lock().name.clone()
    }
    pub fn guid(&self) -> u64 {
        self.ctx.guid()
    }
    pub fn version(&self) -> u64 {
        self.ctx.version()
    }
    pub fn tree(&self) -> Arc<VdevTree> {
        self.zio.tree()
    }
    pub fn uberblock(&self) -> Uberblock {
        *self.uberblock.lock()
    }
    /// As of which uberblock it was opened.
    pub fn opened_at(&self) -> Uberblock {
        self.opened_at
    }
    pub fn comment(&self) -> Option<String> {
        self.state.lock().comment.clone()
    }
    /// Changes what the configuration says of the pool. On disk with the txg that is open.
    pub fn set_comment(&self, comment: &str) {
        self.ctx.note_internal(self.ctx.txgs.open(), "set", format!("comment={comment}"));
        self.state.lock().comment = Some(comment.to_owned());
        self.config_dirty.store(true, Ordering::Release);
    }
    /// The list of frees that the next txg does, for checks.
    pub(crate) fn deferred_list(&self) -> Option<u64> {
        self.deferred.as_ref().map(Bpobj::id)
    }
    /// Space of blocks that have clones, and what the clones would take beside it (`bcloneused`,
    /// `bclonesaved`).
    pub fn cloned_space(&self) -> (u64, u64) {
        self.brt.used_and_saved()
    }
    /// What deduplication saves.
    pub fn dedup(&self) -> DedupStats {
        self.ddt.stats()
    }
    /// Takes entries of blocks that have one pointer out of the deduplication tables; gives how
    /// many.
    #[crate::boxed]
    pub async fn prune_dedup(&self, what: Prune) -> Result<u64> {
        self.ddt.prune(what).await
    }
    /// Reads the deduplication tables ahead.
    #[crate::boxed]
    pub async fn prefetch_dedup(&self) -> Result<()> {
        self.ddt.prefetch().await
    }
    /// Waits until everything done so far is stable.
    #[crate::boxed]
    pub async fn sync(&self) -> Result<()> {
        if self.ctx.readonly {
            return Ok(());
        }
        let txg = self.ctx.txgs.open();
        self.ctx.txgs.wait_synced(txg).await
    }

    /// The same also where nothing was changed: the configuration is written anew.
    pub async fn sync_anyway(&self) -> Result<()> {
        self.config_dirty.store(true, Ordering::Release);
        self.sync().await
    }

    /// Forgets the blocks that are in memory and on disk, so that they are read from the disks
    /// again. (Linux: `drop_caches`.)
    pub fn drop_caches(&self) {
        self.ctx.cache.clear();
        self.zio.cache().clear();
    }

    /// Stops the pool's state on disk, as if the machine were about to crash: later txgs write
    /// blocks to new places, but free nothing and leave labels and uberblock alone. The intent log
    /// goes on. Ends with the next import.
    #[crate::boxed]
    pub async fn freeze(&self) -> Result<()> {
        if self.ctx.readonly {
            return Err(Error::os(crate::error::Errno::ROFs, "the pool is imported read-only"));
        }
        let txg = crate::types::Txg(self.ctx.txgs.open().0 + 1);
        self.ctx.freeze_after(txg);
        self.ctx.txgs.wait_synced(txg).await
    }

    /// Adds a record to the pool's history. Who tells what was done does not wait for devices that
    /// fail meanwhile.
    #[crate::boxed]
    pub async fn log_history(self: &Arc<Self>, record: NvList) -> Result<()> {
        let spa = self.clone();
        let logged =
            self.ctx.sync_task(move |tx| Box::pin(async move { spa.append_history(&tx, record).await }));
        match select(std::pin::pin!(logged), std::pin::pin!(self.until_suspended())).await {
            Either::Left((done, _)) => done,
            Either::Right((why, _)) => Err(why),
        }
    }

    pub(super) async fn append_history(&self, tx: &Tx, record: NvList) -> Result<()> {
        let object = self.history_object.load(Ordering::Acquire);
        if object == 0 {
            return Ok(());
        }
        // As in OpenZFS what has happened is told, not the command that was given.
        if record.contains("internal_name") {
            self.post("sysevent.fs.zfs.history_event", None, &history::as_event(&record));
        }
        history::append(self.ctx.mos(), tx, object, &record).await
    }

    #[crate::boxed]
    pub async fn history(&self) -> Result<Vec<NvList>> {
        match self.history_object.load(Ordering::Acquire) {
            0 => Ok(Vec::new()),
            object => history::read(self.ctx.mos(), object).await,
        }
    }

    /// Notes by what, and where, the pool is made or opened.
    fn note_version(&self, txg: crate::types::Txg, what: &str) {
        let text = format!(
            "pool version {}; software version zilla-{}; uts {}",
            self.version(),
            env!("CARGO_PKG_VERSION"),
            self.state.lock().host.name
        );
        self.ctx.note_internal(txg, what, text);
    }

    /// Makes the history of a pool that has none. In the syncing context.
    async fn begin_history(&self, tx: &Tx) -> Result<()> {
        if self.history_object.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        let space = self.metaslabs.class_stat(SpaceClass::Normal).dspace;
        let object = history::create(self.ctx.mos(), tx, space).await?.0;
        Zap::open(self.ctx.mos(), open::DIRECTORY).await?.insert_u64(tx, "history", object).await?;
        self.history_object.store(object, Ordering::Release);
        Ok(())
    }

    /// From now on blocks are repaired only while they are in use.
    fn know_pointers(&self) {
        let dsl: std::sync::Weak<DslPool> = Arc::downgrade(&self.dsl);
        self.zio.set_pointers(dsl);
    }

    /// Work of other subsystems (scrub) that belongs into every txg.
    async fn sync_hooks(&self, tx: &Tx) -> Result<()> {
        self.sync_scan(tx).await
    }
}
