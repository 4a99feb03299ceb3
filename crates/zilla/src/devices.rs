//! The devices of a pool: added, attached, replaced, removed, taken offline and back; and what is
//! known of them.
//!
//! A vdev is named by its guid. What lies on a device before it becomes a pool's is for the caller
//! to look at ([`probe`], [`crate::foreign`]): the operations here take what they are given. Policy
//! is the caller's too: [`Pool::diagnose`] judges devices that fail too often,
//! [`Pool::call_spares`] has spares step in, and neither happens unasked.

use crate::error::Result;
use crate::pool::Pool;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use zilla_core::vdev::{IoKind, Vdev, VdevTree, label};
use zilla_env::{Device, IoBuf};
use zilla_ondisk::enums::VdevState;
use zilla_ondisk::label::VDEV_LABEL_SIZE;

pub use zilla_core::spa::{Attach, SpareSpec};
pub use zilla_core::vdev::{
    LabelInfo, LeafSpec, PoolSpec, TopSpec, UpkeepKind, UpkeepState, VdevKind, pool_device, probe, probe_path,
};

/// Makes a device forget that it was a pool's: only labels that are one are wiped.
pub async fn clear_labels(device: &Arc<dyn Device>) -> io::Result<()> {
    let labels = label::read_labels(device).await;
    for found in labels.iter().filter(|l| l.config.is_some()) {
        let zeroes = IoBuf::zeroed(VDEV_LABEL_SIZE as usize).into_bytes();
        device.write(found.offset, zeroes).await?;
    }
    device.flush().await
}

/// The vdevs of a pool as they are at one moment.
pub struct Vdevs(pub(crate) Arc<VdevTree>);

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VdevView {
    /// Its guid.
    pub guid: u64,
    /// What it is.
    pub kind: VdevKind,
    /// It does I/O itself.
    pub is_leaf: bool,
    /// It holds the intent log.
    pub is_log: bool,
    /// Of a leaf.
    pub path: Option<String>,
    /// A leaf that is open and can be read.
    pub is_readable: bool,
    /// Trims that a leaf was given: how many, and their bytes.
    pub trims: Option<(u64, u64)>,
    /// Whether a leaf can be trimmed.
    pub can_trim: Option<bool>,
    /// How many devices may be lost, where it has parity.
    pub parity: Option<u64>,
    /// A RAID-Z that gets one more device.
    pub is_expanding: bool,
}

impl VdevView {
    fn of(vdev: &Vdev) -> VdevView {
        let leaf = vdev.leaf.as_ref();
        let trims = leaf.map(|l| {
            let counted = l.stats.snapshot();
            let of = |all: &[u64]| all.get(IoKind::Trim as usize).copied().unwrap_or(0);
            (of(&counted.ops), of(&counted.bytes))
        });
        VdevView {
            guid: vdev.guid,
            kind: vdev.kind,
            is_leaf: vdev.is_leaf(),
            is_log: vdev.is_log,
            path: leaf.map(|l| l.path()),
            is_readable: leaf.is_some_and(|l| l.readable()),
            trims,
            can_trim: leaf.map(|l| l.can_trim()),
            parity: vdev.kind.nparity().map(|n| n as u64),
            is_expanding: vdev.config_u64("raidz_expanding").is_some(),
        }
    }
}

impl Vdevs {
    /// The guid of the root, above all others.
    pub fn root_guid(&self) -> u64 {
        self.0.root.guid
    }

    /// The root's state: how the pool as a whole is.
    pub fn state(&self) -> VdevState {
        self.0.root.state().0
    }

    /// One by its guid, also a spare or a cache device.
    pub fn find(&self, guid: u64) -> Option<VdevView> {
        self.0.find(guid).map(|v| VdevView::of(&v))
    }

    /// The top-level vdevs.
    pub fn tops(&self) -> Vec<VdevView> {
        self.0.tops.iter().map(|t| VdevView::of(&t.vdev)).collect()
    }

    /// The top-level vdev that one is or is in.
    pub fn top_of(&self, guid: u64) -> Option<VdevView> {
        self.0.top_of(guid).map(|t| VdevView::of(&t.vdev))
    }

    /// The hot spares.
    pub fn spares(&self) -> Vec<VdevView> {
        self.0.spares.iter().map(|v| VdevView::of(v)).collect()
    }

    /// The cache devices.
    pub fn caches(&self) -> Vec<VdevView> {
        self.0.cache.iter().map(|v| VdevView::of(v)).collect()
    }

    /// Whether a spare stands in for a device.
    pub fn is_active_spare(&self, guid: u64) -> bool {
        self.0.is_active_spare(guid)
    }

    /// The devices that have failed and that nothing stands in for: guid and path.
    pub fn failed(&self) -> Vec<(u64, String)> {
        self.0.failed_leaves()
    }

    /// A device lacks something that a resilver would give it.
    pub fn wants_resilver(&self) -> bool {
        self.0.wants_resilver()
    }

    /// A device is being replaced.
    pub fn is_replacing(&self) -> bool {
        self.0.root.walk().iter().any(|v| v.kind == VdevKind::Replacing)
    }

    /// The numbers of the FUSE file systems on which the devices lie, in the kernel's count.
    pub fn fuse_devices(&self) -> BTreeSet<u64> {
        let tops = self.0.tops.iter().map(|top| &top.vdev);
        let leaves = tops.chain(&self.0.spares).chain(&self.0.cache).flat_map(|vdev| vdev.walk());
        let devices = leaves.filter_map(|vdev| vdev.leaf.as_ref()?.device());
        devices.filter_map(|device| device.info().fuse).collect()
    }
}

impl Pool {
    /// The vdevs at this moment.
    pub fn vdevs(&self) -> Vdevs {
        Vdevs(self.spa().tree())
    }

    /// Refuses what [`Pool::add_vdevs`] and [`Pool::add_spares`] would refuse of these, and changes
    /// nothing.
    pub async fn check_added(&self, spec: &PoolSpec, any_ashift: bool, spares: &[SpareSpec]) -> Result<()> {
        self.spa().check_added(spec, any_ashift, spares).await
    }

    /// A change of the devices, which once begun goes on to its end, also if the caller does not:
    /// one that was left in its middle would still be carried out, and the next would not know of
    /// it.
    pub(crate) async fn changed<T: Send + 'static>(
        &self,
        change: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.env().spawn_with_result(change).await
    }

    /// Adds cache devices and top-level vdevs; unless `any_ashift` is said, none whose sectors are
    /// others than those of the pool's vdevs. What is refused leaves nothing of it.
    pub async fn add_vdevs(&self, spec: &PoolSpec, any_ashift: bool) -> Result<()> {
        let (spa, spec) = (self.spa().clone(), spec.clone());
        self.changed(async move {
            let before = spa.tree();
            if !spec.cache.is_empty() {
                spa.add_cache(&spec.cache).await?;
            }
            let added = match (spec.tops.is_empty(), any_ashift) {
                (true, _) => return Ok(()),
                (false, true) => spa.add_vdevs(&spec).await,
                (false, false) => spa.add_like_vdevs(&spec).await,
            };
            if added.is_err() {
                // The cache devices that came leave again.
                for new in &spa.tree().cache {
                    if before.cache.iter().any(|v| v.guid == new.guid) {
                        continue;
                    }
                    if let Err(e) = spa.remove_vdev(new.guid).await {
                        let pool = spa.name();
                        tracing::warn!(%pool, "a cache device that came with refused vdevs stays: {e}");
                    }
                }
            }
            added
        })
        .await
    }

    /// Adds hot spares.
    pub async fn add_spares(&self, spares: &[SpareSpec]) -> Result<()> {
        let (spa, spares) = (self.spa().clone(), spares.to_vec());
        self.changed(async move { spa.add_spares(&spares).await }).await
    }

    /// Takes a spare out of the pool's list, if it has it and it waits.
    pub async fn forget_spare(&self, guid: u64) -> Result<()> {
        let spa = self.spa().clone();
        self.changed(async move { spa.forget_spare(guid).await }).await
    }

    /// Attaches a device to another, makes it take the other's place, or widens a RAID-Z.
    pub async fn attach(&self, guid: u64, leaf: &LeafSpec, how: Attach) -> Result<()> {
        let (spa, leaf) = (self.spa().clone(), leaf.clone());
        self.changed(async move { spa.attach(guid, &leaf, how).await }).await
    }

    /// Detaches a side of a mirror. Returns the guid of a spare that has become a device of the
    /// pool thereby.
    pub async fn detach(&self, guid: u64) -> Result<Option<u64>> {
        let spa = self.spa().clone();
        self.changed(async move { spa.detach(guid).await }).await
    }

    /// Removes a spare, cache or log device at once; begins to remove one with data.
    pub async fn remove_vdev(&self, guid: u64) -> Result<()> {
        let spa = self.spa().clone();
        self.changed(async move { spa.remove_vdev(guid).await }).await
    }

    /// Gives up a removal under way.
    pub async fn cancel_removal(&self) -> Result<()> {
        let spa = self.spa().clone();
        self.changed(async move { spa.cancel_removal().await }).await
    }

    /// Bytes of memory that the removal of a vdev would take for good.
    pub async fn removal_memory(&self, guid: u64) -> Result<u64> {
        self.spa().indirect_size(guid).await
    }

    /// Takes a device offline; `temporary`: until the next import; `fault`: as one that has failed.
    pub async fn offline(&self, guid: u64, temporary: bool, fault: bool) -> Result<()> {
        let spa = self.spa().clone();
        self.changed(async move { spa.offline(guid, temporary, fault).await }).await
    }

    /// Brings a device back, and makes use of all of it where it has grown (`expand`).
    pub async fn online(&self, guid: u64, expand: bool) -> Result<VdevState> {
        let spa = self.spa().clone();
        self.changed(async move { spa.online(guid, expand).await.map(|(state, _)| state) }).await
    }

    /// Forgets errors, and has a suspended pool go on.
    pub async fn clear(&self, guid: Option<u64>) -> Result<()> {
        let spa = self.spa().clone();
        self.changed(async move { spa.clear(guid).await }).await
    }

    /// Looks at all devices anew.
    pub async fn reopen(&self) -> Result<()> {
        let spa = self.spa().clone();
        self.changed(async move { spa.reopen().await }).await
    }

    /// Begins to initialize or trim a device.
    pub async fn start_upkeep(&self, guid: u64, kind: UpkeepKind, rate: Option<u64>) -> Result<()> {
        self.spa().start_upkeep(guid, kind, rate).await
    }

    /// Suspends that, or gives it up.
    pub async fn stop_upkeep(&self, guid: u64, kind: UpkeepKind, state: UpkeepState) -> Result<()> {
        self.spa().stop_upkeep(guid, kind, state).await
    }

    /// Forgets that a device was initialized.
    pub async fn uninitialize(&self, guid: u64) -> Result<()> {
        self.spa().uninitialize(guid).await
    }

    /// Bytes left to initialize or trim, of some devices or of all (none named); None: nothing is
    /// under way.
    pub fn upkeep_left(&self, kind: UpkeepKind, only: &[u64]) -> Option<u64> {
        self.spa().upkeep_left(kind, only)
    }

    /// Judges devices by the errors since the last time: whether one was found to have failed.
    pub fn diagnose(&self) -> bool {
        self.spa().diagnose()
    }

    /// Gives up on devices that do not answer: whether there was one.
    pub fn check_deadman(&self) -> bool {
        self.spa().check_deadman()
    }

    /// Has hot spares step in for devices that have failed.
    pub async fn call_spares(&self) {
        self.spa().call_spares().await;
    }

    /// Declares a device to have failed, or to fail too often.
    pub fn declare(&self, guid: u64, verdict: VdevState) -> Result<()> {
        self.spa().declare(guid, verdict)
    }

    /// Posts an event of the pool, or of a vdev of it.
    pub fn notify(&self, name: &str, vdev: Option<u64>) {
        self.spa().notify(name, vdev);
    }
}
