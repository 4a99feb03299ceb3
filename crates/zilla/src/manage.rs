//! A pool as a whole: what it is called and can, what was done to it, how it is when its devices
//! fail, and its end.

use crate::error::{Error, Result};
use crate::pool::Pool;
use std::sync::{Arc, Weak};
use zilla_core::spa::Spa;
use zilla_core::vdev::ConfigFor;
use zilla_ondisk::NvList;
use zilla_ondisk::enums::PoolState;

pub use zilla_core::ddt::Prune;
pub use zilla_core::spa::{FailMode, Host};

/// How many txgs what was freed is kept, so that an import may go back.
pub use zilla_core::types::TXG_DEFER_SIZE;

/// Tells whether anything still uses a pool that was closed.
pub struct Remains(Weak<Spa>);

impl Remains {
    /// Its memory is still held.
    pub fn is_in_use(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl Pool {
    /// Whether it is imported read-only.
    pub fn is_readonly(&self) -> bool {
        self.spa().ctx.readonly
    }

    /// The version of its format.
    pub fn version(&self) -> u64 {
        self.spa().version()
    }

    /// Brings it to a newer version.
    pub async fn upgrade(&self, version: u64) -> Result<()> {
        self.spa().upgrade(version).await
    }

    /// Its features: guid, and how much makes use of each.
    pub fn features(&self) -> Vec<(String, u64)> {
        self.spa().ctx.features.list()
    }

    /// Whether a feature is enabled.
    pub fn feature_is_enabled(&self, name: &str) -> bool {
        self.spa().ctx.features.is_enabled(name)
    }

    /// Whether it has its name only for as long as it is open here.
    pub fn has_temporary_name(&self) -> bool {
        self.spa().has_temporary_name()
    }

    /// Enables features by name.
    pub async fn enable_features(&self, names: Vec<String>) -> Result<()> {
        self.spa().enable_features(names).await
    }

    /// Gives it another guid: this one, or one that is drawn.
    pub async fn reguid(&self, guid: Option<u64>) -> Result<u64> {
        let spa = self.spa().clone();
        self.changed(async move { spa.reguid(guid).await }).await
    }

    /// The comment on it.
    pub fn comment(&self) -> Option<String> {
        self.spa().comment()
    }

    /// Sets that, on disk with the next sync.
    pub fn set_comment(&self, text: &str) {
        self.spa().set_comment(text);
    }

    /// Which sets of features it is kept to.
    pub fn compatibility(&self) -> Option<String> {
        self.spa().compatibility()
    }

    /// Sets that, on disk with the next sync.
    pub fn set_compatibility(&self, sets: &str) {
        self.spa().set_compatibility(sets);
    }

    /// The last txg that is on disk.
    pub fn synced_txg(&self) -> u64 {
        self.spa().uberblock().txg
    }

    /// The txg that is open.
    pub fn open_txg(&self) -> u64 {
        self.spa().ctx.txgs.open().0
    }

    /// The txg as of which it was opened, and its time, seconds since 1970.
    pub fn opened_at(&self) -> (u64, u64) {
        let ub = self.spa().opened_at();
        (ub.txg, ub.timestamp)
    }

    /// What a cache file says of it.
    pub fn cache_entry(&self) -> NvList {
        let spa = self.spa();
        let mut nv = NvList::new();
        nv.add("version", spa.version()).add("name", self.name());
        nv.add("state", PoolState::Active.number()).add("txg", spa.uberblock().txg);
        nv.add("pool_guid", spa.guid());
        if let Some(sets) = spa.compatibility() {
            nv.add("compatibility", sets);
        }
        nv.add("vdev_tree", spa.tree().generate_config(ConfigFor::Mos));
        nv
    }

    /// Writes a record into its history.
    pub async fn log_history(&self, record: NvList) -> Result<()> {
        self.spa().log_history(record).await
    }

    /// Its history, as far as it is kept.
    pub async fn history(&self) -> Result<Vec<NvList>> {
        self.spa().history().await
    }

    /// Takes a checkpoint of it, to which it can be imported.
    pub async fn take_checkpoint(&self) -> Result<()> {
        let spa = self.spa().clone();
        self.changed(async move { spa.take_checkpoint().await }).await
    }

    /// Gives back the space that the checkpoint holds.
    pub async fn discard_checkpoint(&self) -> Result<()> {
        self.spa().discard_checkpoint().await
    }

    /// Takes blocks that are there once out of the deduplication tables. Returns how many.
    pub async fn prune_dedup(&self, what: Prune) -> Result<u64> {
        self.spa().prune_dedup(what).await
    }

    /// Brings the deduplication tables into memory.
    pub async fn prefetch_dedup(&self) -> Result<()> {
        self.spa().prefetch_dedup().await
    }

    /// How large the deduplication tables may become, bytes.
    pub fn set_dedup_quota(&self, bytes: u64) {
        self.spa().ddt.set_quota(bytes);
    }

    /// Whether what is freed is trimmed by itself.
    pub fn set_autotrim(&self, on: bool) {
        self.spa().set_autotrim(on);
    }

    /// Whether use is made of devices that have grown by itself.
    pub async fn set_autoexpand(&self, on: bool) -> Result<()> {
        self.spa().set_autoexpand(on).await
    }

    /// Whether it says by heartbeats that this host has it.
    pub fn multihost(&self) -> bool {
        self.spa().multihost()
    }

    /// Begins or ends that; `host`: who has it.
    pub fn set_multihost(&self, on: bool, host: Option<Host>) {
        self.spa().set_multihost(on, host);
    }

    /// Why nothing can be written or read any more, if so.
    pub fn suspended(&self) -> Option<Error> {
        self.spa().suspended()
    }

    /// Waits until the pool is suspended, and tells why.
    pub async fn until_suspended(&self) -> Error {
        self.spa().until_suspended().await
    }

    /// Whether a suspended pool was given up.
    pub fn is_given_up(&self) -> bool {
        self.spa().ctx.txgs.is_stopped()
    }

    /// Gives it up: what is not on disk is lost, and nobody waits for it any more.
    pub fn abandon(&self) {
        self.spa().abandon();
    }

    /// What is done with new changes while it is suspended.
    pub fn set_fail_mode(&self, mode: FailMode) {
        self.spa().set_fail_mode(mode);
    }

    /// From now on no txg is written, and everything goes to the intent logs, for tests of these.
    pub async fn freeze(&self) -> Result<()> {
        self.spa().freeze().await
    }

    /// Forgets what is in memory of blocks.
    pub fn drop_caches(&self) {
        self.spa().drop_caches();
    }

    /// Empties the cache of blocks of a pool that was closed.
    pub fn clear_cache(&self) {
        self.spa().zio.cache().clear();
    }

    /// Closes it, whatever of it is open: who uses that gets errors from now on. `state`: what its
    /// labels shall say; None: that this host has it. ([`Pool::export`] is the careful way.)
    pub async fn close(&self, state: Option<PoolState>) -> Result<()> {
        let closed = self.spa().close(state).await;
        self.note_closed();
        closed
    }

    /// To be asked after [`Pool::close`], when this is dropped.
    pub fn remains(&self) -> Remains {
        Remains(Arc::downgrade(self.spa()))
    }
}
