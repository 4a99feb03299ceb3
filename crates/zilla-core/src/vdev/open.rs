//! Opening a tree's devices, and finding out what state that leaves each vdev in.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use zilla_env::{Device, DeviceInfo, OpenMode};
use zilla_ondisk::enums::{PoolState, VdevAux, VdevState};
use zilla_ondisk::label::{SPA_MINDEVSIZE, VDEV_LABEL_END_SIZE, VDEV_LABEL_START_SIZE, VDEV_PAD_SIZE};

use super::config::{ASHIFT_MAX, ASHIFT_MIN};
use super::label::{self, Label, PoolLabels};
use super::leaf::{Leaf, no_device};
use super::node::{Vdev, VdevKind};
use super::priority::Priority;
use super::probe::open_device;
use super::tree::VdevTree;
use super::within::{OPEN_TIMEOUT, SLOW_TIMEOUT, within};
use crate::error::{Errno, Error, Result};
use crate::inject::{self, injections};
use crate::tunables;

pub(super) const LABELS: u64 = VDEV_LABEL_START_SIZE + VDEV_LABEL_END_SIZE;

/// In the labels of a pool that was split off: the guid of the pool that it was a part of.
pub const SPLIT_GUID: &str = "split_guid";

/// How to open a tree.
#[derive(Clone, Default)]
pub struct OpenArgs {
    pub write: bool,
    /// Devices already open, by leaf guid (an import's scan has them); the others are opened by
    /// their path.
    pub devices: HashMap<u64, Arc<dyn Device>>,
    /// The guid that labels must carry; `None` for a pool that is being created.
    pub pool_guid: Option<u64>,
    /// The open txg of a pool in use: none of its devices has a newer one. 0: not in use yet.
    pub newest: u64,
}

impl VdevTree {
    /// Opens every leaf and works out all states. An error says what the whole pool cannot do
    /// without; a single device that is missing is only a state.
    pub async fn open(&self, args: &OpenArgs) -> Result<()> {
        self.open_labelled(args).await.map(drop)
    }

    /// The same; the labels by which the devices were known to be the pool's, so that nobody reads
    /// them twice: none, if they need not be the pool's.
    pub async fn open_labelled(&self, args: &OpenArgs) -> Result<PoolLabels> {
        self.set_writable(args.write);
        // What is written without some of its devices would be lost once they come back.
        let spared = if args.write { 0 } else { tunables::MAX_MISSING_TVDS.get() };
        self.spared_tops.store(usize::try_from(spared).unwrap_or(usize::MAX), Ordering::Relaxed);
        join_all(self.leaves.iter().map(|l| self.in_time(l, self.open_leaf(l, args)))).await;
        let mut labels = HashMap::new();
        if let Some(pool) = args.pool_guid {
            let validated = self.pool_leaves().map(async |l| {
                let read = self.in_time(l, validate(l, pool, self.top_guid_of(l))).await?;
                Some((l.index, read?))
            });
            labels.extend(join_all(validated).await.into_iter().flatten());
            // What is not the pool's may be anybody's, and a new one for this pool.
            for leaf in self.pool_leaves().filter(|l| l.state().0 == VdevState::CantOpen) {
                let (state, aux) = leaf.state();
                leaf.close().await;
                leaf.state.set(state, aux);
            }
        }
        self.measure_rooms();
        for top in &self.tops {
            self.open_top(&top.vdev)?;
        }
        self.cache.iter().for_each(settle_cache);
        self.propagate();
        Ok(self.labels_of(labels))
    }

    /// Waits for a device that is being opened, but not for ever: without an answer it is missing.
    pub(super) async fn in_time<T>(&self, leaf: &Arc<Leaf>, work: impl Future<Output = T>) -> Option<T> {
        let device = leaf.device();
        let done = within(&self.env, OPEN_TIMEOUT, work).await;
        if done.is_none() && leaf.still_has(device.as_ref()) {
            let what = format!("{}: no answer within {} s", leaf.path(), OPEN_TIMEOUT.as_secs());
            tracing::warn!("{what}: the device is left out");
            leaf.set_open_error(Some(Error::os(Errno::TimedOut, what)));
            leaf.set_unusable(VdevState::CantOpen, VdevAux::OpenFailed);
        }
        done
    }

    /// The paths of devices that are missing because they did not answer.
    pub fn silent(&self) -> Vec<String> {
        let silent = |l: &&Arc<Leaf>| {
            l.state().0 == VdevState::CantOpen && l.open_error().is_some_and(|e| e.is(Errno::TimedOut))
        };
        self.pool_leaves().filter(silent).map(|l| l.path()).collect()
    }

    /// Opens a cache device anew. Whatever comes of it is a state; it is not waited for for ever.
    /// One that is not new must carry its own label.
    pub async fn open_cache(&self, vdev: &Arc<Vdev>, write: bool, new: bool) {
        let Some(leaf) = &vdev.leaf else { return };
        let work = async {
            let args = OpenArgs { write, ..OpenArgs::default() };
            let Some(device) = self.open_device_of(leaf, &args).await else { return };
            if !new && let Some(aux) = cache_verdict(leaf, &label::read_labels(&device).await) {
                leaf.state.set(VdevState::CantOpen, aux);
                return;
            }
            leaf.set_device(Some(device));
            leaf.state.set(VdevState::Healthy, VdevAux::None);
            settle_cache(vdev);
        };
        if within(&self.env, SLOW_TIMEOUT, work).await.is_none() {
            tracing::warn!(path = %leaf.path(), "the cache device does not answer");
            leaf.set_unusable(VdevState::CantOpen, VdevAux::OpenFailed);
        }
    }

    pub(super) async fn open_leaf(&self, leaf: &Arc<Leaf>, args: &OpenArgs) {
        if let Some(device) = self.open_device_of(leaf, args).await {
            leaf.set_device(Some(device));
            leaf.state.set(VdevState::Healthy, VdevAux::None);
        }
    }

    /// A leaf's device; without one the leaf's state says why.
    async fn open_device_of(&self, leaf: &Arc<Leaf>, args: &OpenArgs) -> Option<Arc<dyn Device>> {
        if leaf.offline.load(Ordering::Relaxed) {
            leaf.state.set(VdevState::Offline, VdevAux::None);
            return None;
        }
        if leaf.external_fault.load(Ordering::Relaxed) {
            leaf.set_faulted(VdevAux::External);
            return None;
        }
        // What a distributed spare holds can be had where its dRAID can.
        if leaf.is_room() {
            leaf.set_open_error(None);
            leaf.set_usable(args.write);
            return None;
        }
        let mode = OpenMode { write: args.write, exclusive: args.write };
        let device = match args.devices.get(&leaf.guid()) {
            _ if inject::any() && injections().is_gone(leaf.guid()) => Err(no_device()),
            Some(d) => Ok(d.clone()),
            None => open_device(&self.env, &PathBuf::from(leaf.path()), mode).await,
        };
        match device {
            Ok(d) if d.size() < SPA_MINDEVSIZE => {
                let what =
                    format!("one or more devices is less than the minimum size (64M): {}", leaf.path());
                leaf.set_open_error(Some(Error::os(Errno::NoDev, what)));
                leaf.state.set(VdevState::CantOpen, VdevAux::TooSmall);
                None
            }
            Ok(d) => {
                leaf.set_open_error(None);
                Some(d)
            }
            Err(e) => {
                tracing::warn!(path = %leaf.path(), error = %e, "cannot open");
                // The number is told by the errno; people get the words.
                let what = format!("{}: {}", leaf.path(), zilla_env::strerror(&e));
                leaf.set_open_error(Some(Error::os(Error::from(e).errno(), what)));
                leaf.state.set(VdevState::CantOpen, VdevAux::OpenFailed);
                None
            }
        }
    }

    pub(super) fn top_guid_of(&self, leaf: &Arc<Leaf>) -> u64 {
        let has = |l: &Arc<Leaf>| Arc::ptr_eq(l, leaf);
        self.tops.iter().find(|t| t.leaves().any(has)).map_or(0, |t| t.vdev.guid)
    }

    /// Sizes and sector size of a top-level, from what its leaves turned out to be.
    pub(super) fn open_top(&self, top: &Arc<Vdev>) -> Result<()> {
        if !top.is_concrete() {
            top.set_state(
                if top.kind == VdevKind::Missing { VdevState::CantOpen } else { VdevState::Healthy },
                if top.kind == VdevKind::Missing { VdevAux::OpenFailed } else { VdevAux::None },
            );
            return Ok(());
        }
        let (mut logical, mut physical) = (0, 0);
        for l in
            top.walk().iter().filter_map(|v| v.leaf.clone()).filter(|l| l.state().0 == VdevState::Healthy)
        {
            if let Some(d) = l.device() {
                let info = d.info();
                let (one, other) = sectors(&info);
                (logical, physical) = (logical.max(one), physical.max(other));
            }
        }
        let asize = available(top);
        if top.asize() == 0 {
            let name =
                || top.config_str("path").unwrap_or_else(|| format!("{}-{}", top.kind.type_name(), top.id));
            // A new vdev is made of all its devices or not at all.
            if let Some(e) = top.walk().iter().find_map(|v| v.leaf.as_ref()?.open_error()) {
                return Err(e);
            }
            let asize = asize.ok_or_else(|| Error::os(Errno::NxIo, format!("{}: cannot open", name())))?;
            if asize < SPA_MINDEVSIZE - LABELS {
                return Err(Error::os(Errno::Overflow, format!("{}: its devices are too small", name())));
            }
            let mut ashift = top.ashift();
            if ashift < logical {
                if logical > ASHIFT_MAX {
                    return Err(Error::os(Errno::Inval, format!("{}: sectors of 2^{logical} bytes", name())));
                }
                if ashift != 0 {
                    tracing::warn!(vdev = %name(), ashift, logical, "ashift raised to the device's sector size");
                }
                ashift = by_itself(logical, physical);
            }
            top.ashift.store(u64::from(ashift.max(ASHIFT_MIN)), Ordering::Release);
            top.asize.store(asize, Ordering::Release);
            return Ok(());
        }
        // A device whose sectors have become larger than the pool's blocks are cannot be written
        // correctly, and one that shrank has lost blocks.
        for v in top.walk() {
            let there = |l: &Arc<Leaf>| l.state().0 == VdevState::Healthy && !l.is_room();
            let Some(l) = v.leaf.clone().filter(there) else { continue };
            let sector = l.device().map_or(0, |d| sectors(&d.info()).0);
            let needed = min_asize(top, &v);
            if sector > top.ashift() || l.psize().saturating_sub(LABELS) < needed {
                l.state.set(VdevState::CantOpen, VdevAux::BadLabel);
            }
        }
        Ok(())
    }
}

impl VdevTree {
    /// Opens one leaf anew, whatever state it is in. It takes part in the pool's I/O only when it
    /// is known what it missed.
    pub async fn reopen(&self, leaf: &Arc<Leaf>, args: &OpenArgs) {
        // Another opening of the device in between would fail, or find none of what this one knows.
        let _alone = leaf.opening.lock().await;
        // What it was given before may still come over what it is given then.
        if leaf.is_hung() && !leaf.answers().await {
            tracing::warn!(path = %leaf.path(), "the device has not answered yet, and is not taken back");
            return;
        }
        leaf.state.set(VdevState::Closed, VdevAux::None);
        leaf.close().await;
        if leaf.is_hung() && leaf.load() > 0 {
            tracing::warn!(path = %leaf.path(), "the device does not answer, and is not taken back");
            leaf.state.set(VdevState::CantOpen, VdevAux::OpenFailed);
            return;
        }
        leaf.let_go();
        // It may have missed a part of the resilver under way.
        if leaf.resilvering.swap(false, Ordering::Relaxed) {
            leaf.dropped_out.store(true, Ordering::Relaxed);
        }
        self.in_time(leaf, self.open_again(leaf, args)).await;
    }

    async fn open_again(&self, leaf: &Arc<Leaf>, args: &OpenArgs) {
        let Some(device) = self.open_device_of(leaf, args).await else { return };
        if let Some(pool) = args.pool_guid {
            let labels = label::read_labels(&device).await;
            if let Some(aux) = verdict(leaf, &labels, pool, self.top_guid_of(leaf)) {
                leaf.state.set(VdevState::CantOpen, aux);
                return;
            }
            let usable = zilla_ondisk::label::usable_size(device.size()).saturating_sub(LABELS);
            let sector = sectors(&device.info()).0;
            let fits = self.tops.iter().all(|top| {
                let node = top
                    .vdev
                    .walk()
                    .into_iter()
                    .find(|v| v.leaf.as_ref().is_some_and(|l| Arc::ptr_eq(l, leaf)));
                node.is_none_or(|v| sector <= top.ashift() && usable >= min_asize(&top.vdev, &v))
            });
            if !fits {
                leaf.state.set(VdevState::CantOpen, VdevAux::BadLabel);
                return;
            }
            let taken = self.note_return(leaf, &labels, args.newest).await;
            leaf.is_ahead.store(!taken, Ordering::Relaxed);
            if !taken {
                leaf.state.set(VdevState::CantOpen, VdevAux::BadLabel);
                return;
            }
        }
        leaf.set_device(Some(device));
        leaf.state.set(VdevState::Healthy, VdevAux::None);
    }

    /// Whether what is at the path of a leaf that is away is the leaf. Nothing changes. One that
    /// has not answered the last look is not asked again: each question keeps a descriptor and a
    /// thread.
    pub async fn is_back(&self, leaf: &Arc<Leaf>, pool: u64) -> bool {
        let gone = inject::any() && injections().is_gone(leaf.guid());
        if gone || leaf.is_ahead.load(Ordering::Relaxed) || leaf.is_looked_for.swap(true, Ordering::Relaxed) {
            return false;
        }
        let (env, leaf, top) = (self.env.clone(), leaf.clone(), self.top_guid_of(leaf));
        let look = self.env.spawn_with_result(async move {
            let looked = async {
                let mode = OpenMode::default();
                let device = open_device(&env, &PathBuf::from(leaf.path()), mode).await.ok()?;
                let labels = label::read_labels(&device).await;
                verdict(&leaf, &labels, pool, top).is_none().then_some(())
            };
            let is_it = looked.await.is_some();
            leaf.is_looked_for.store(false, Ordering::Relaxed);
            is_it
        });
        within(&self.env, OPEN_TIMEOUT, look).await.unwrap_or(false)
    }

    /// Looks whether a leaf's device still is the pool's, and closes it if it is not.
    pub async fn check_label(&self, leaf: &Arc<Leaf>, pool: u64) {
        self.in_time(leaf, validate(leaf, pool, self.top_guid_of(leaf))).await;
        let (state, aux) = leaf.state();
        if state < VdevState::Degraded {
            leaf.close().await;
            leaf.state.set(state, aux);
        }
    }

    /// Looks at leaves whose I/O failed: one that cannot even read, write and flush its own front
    /// pad is taken out of use. In a task of its own: whoever asks may be one of several futures of
    /// which others are waited for, and those may wait for this.
    pub async fn check_suspects(self: &Arc<Self>) {
        if self.leaves.iter().any(|l| !self.is_cache(l) && l.is_suspect()) {
            let tree = self.clone();
            self.env.spawn_with_result(async move { tree.look_at_suspects().await }).await;
        }
    }

    async fn look_at_suspects(&self) {
        let mut changed = false;
        for leaf in self.leaves.iter().filter(|l| !self.is_cache(l) && l.take_suspect()) {
            let _one = leaf.probe.lock().await;
            if leaf.writable() {
                changed |= self.probe(leaf).await;
            }
        }
        if changed {
            self.propagate();
        }
    }

    /// The same, and waits for those who look already: then it is known which devices are away.
    /// That too in a task of its own: the lock wakes one of those who wait for it, and if nobody
    /// polled that one the others would wait for ever.
    pub async fn settle_suspects(self: &Arc<Self>) {
        let tree = self.clone();
        let settled = async move {
            tree.look_at_suspects().await;
            for leaf in &tree.leaves {
                drop(leaf.probe.lock().await);
            }
        };
        self.env.spawn_with_result(settled).await;
    }

    /// Whether a leaf was taken out of use.
    async fn probe(&self, leaf: &Arc<Leaf>) -> bool {
        let (mark, device) = (leaf.mark(), leaf.device());
        let pad = leaf.read_at(0, VDEV_PAD_SIZE, Priority::SyncRead).await;
        let ok = match pad {
            Ok(data) => {
                leaf.write_at(0, data, Priority::SyncWrite).await.is_ok() && leaf.flush(mark).await.is_ok()
            }
            Err(_) => false,
        };
        let ok = ok && !(inject::any() && leaf.fails_probe());
        // Its own failures are no new reason for doubt.
        leaf.take_suspect();
        if ok {
            return false;
        }
        tracing::error!(path = %leaf.path(), "the device fails every I/O: it is taken out of use");
        let path = PathBuf::from(leaf.path());
        let there = within(&self.env, OPEN_TIMEOUT, open_device(&self.env, &path, OpenMode::default())).await;
        if !leaf.still_has(device.as_ref()) {
            return false;
        }
        match there {
            Some(Ok(_)) if !(inject::any() && injections().is_gone(leaf.guid())) => {
                leaf.set_faulted(VdevAux::ErrExceeded)
            }
            // It has vanished, and may come back.
            _ => leaf.set_unusable(VdevState::CantOpen, VdevAux::OpenFailed),
        }
        true
    }
}

/// log2 of a device's sectors: of the smallest that it takes, and of those that it likes.
pub(super) fn sectors(info: &DeviceInfo) -> (u32, u32) {
    let log2 = |bytes: u32| bytes.max(1).ilog2();
    let (logical, physical) = (log2(info.logical_block), log2(info.physical_block));
    // A device that says it likes very large sectors does not get them by itself. It is left out
    // here, where each device of a vdev is looked at, so that what the others like still counts.
    let most = tunables::VDEV_MAX_AUTO_ASHIFT.get().min(u64::from(ASHIFT_MAX));
    let liked = |physical: u32| if u64::from(physical) <= most { physical } else { 0 };
    if info.is_block_dev {
        return (logical, liked(physical));
    }
    let least = |t: &tunables::Tunable| u32::try_from(t.get()).unwrap_or(u32::MAX).min(u64::BITS);
    (
        logical.max(least(&tunables::VDEV_FILE_LOGICAL_ASHIFT)),
        liked(physical.max(least(&tunables::VDEV_FILE_PHYSICAL_ASHIFT))),
    )
}

/// What is used where nobody has said anything.
fn by_itself(logical: u32, physical: u32) -> u32 {
    logical.max(physical).max(ASHIFT_MIN)
}

/// Sector and size of a cache device that was opened: the sector that its configuration says, else
/// the device's.
fn settle_cache(vdev: &Arc<Vdev>) {
    let Some(leaf) = vdev.leaf.as_ref().filter(|l| l.state().0 == VdevState::Healthy) else { return };
    let Some(device) = leaf.device() else { return };
    let (logical, physical) = sectors(&device.info());
    let said = vdev.config_u64("ashift").and_then(|s| u32::try_from(s).ok());
    let ashift = match said.filter(|s| (ASHIFT_MIN..=ASHIFT_MAX).contains(s)) {
        Some(said) => said,
        None => by_itself(logical, physical),
    };
    if logical > ashift || ashift > ASHIFT_MAX {
        leaf.set_unusable(VdevState::CantOpen, VdevAux::BadAshift);
        return;
    }
    vdev.ashift.store(u64::from(ashift), Ordering::Release);
    vdev.asize.store(leaf.psize().saturating_sub(LABELS), Ordering::Release);
    vdev.set_config_u64("ashift", u64::from(ashift));
}

/// What is wrong with a device that should be this cache device.
fn cache_verdict(leaf: &Leaf, labels: &[Label]) -> Option<VdevAux> {
    let Some(config) = label::best_config(labels, u64::MAX) else {
        return Some(VdevAux::BadLabel);
    };
    let state = config.u64("state").and_then(PoolState::from_number);
    let ours = state == Some(PoolState::L2cache) && config.u64("guid") == Some(leaf.guid());
    (!ours).then_some(VdevAux::CorruptData)
}

/// Children whose room counts: that of one which is being added counts when all has been moved.
fn divided(v: &Vdev) -> u64 {
    (v.children.len() as u64).saturating_sub(u64::from(v.is_expanding())).max(1)
}

/// Bytes a vdev can give, as far as its children are open.
pub(super) fn available(v: &Vdev) -> Option<u64> {
    if let Some(l) = &v.leaf {
        return (l.psize() > LABELS).then(|| l.psize() - LABELS);
    }
    // A distributed spare has what the others have.
    let own = v.children.iter().filter(|c| c.kind != VdevKind::Dspare);
    let least = own.filter_map(|c| available(c)).min()?;
    match v.kind {
        VdevKind::Raidz { .. } => Some(least * divided(v)),
        VdevKind::Draid { .. } => v.draid().map(|d| d.capacity(least)),
        _ => Some(least),
    }
}

/// What a leaf must give for its top-level to have the size the pool counts on, in whole metaslabs.
pub(super) fn min_asize(top: &Vdev, leaf: &Vdev) -> u64 {
    let shift = top.metaslab_shift();
    let counted = if shift == 0 { top.asize() } else { top.asize() >> shift << shift };
    match top.kind {
        VdevKind::Raidz { .. } if top.guid != leaf.guid => counted.div_ceil(divided(top)),
        VdevKind::Draid { .. } if top.guid != leaf.guid => {
            top.draid().map_or(counted, |d| d.child_size(counted))
        }
        _ => counted,
    }
}

/// Whether the device at a leaf's path really is that leaf; the labels that say so.
pub(super) async fn validate(leaf: &Arc<Leaf>, pool: u64, top_guid: u64) -> Option<Vec<Label>> {
    if !leaf.readable() {
        return None;
    }
    let labels = label::read_labels(&leaf.device()?).await;
    if let Some(aux) = verdict(leaf, &labels, pool, top_guid) {
        leaf.state.set(VdevState::CantOpen, aux);
        return None;
    }
    Some(labels)
}

/// What is wrong with a device that should be a leaf of the pool.
fn verdict(leaf: &Leaf, labels: &[Label], pool: u64, top_guid: u64) -> Option<VdevAux> {
    let Some(config) = label::best_config(labels, u64::MAX) else {
        return Some(VdevAux::BadLabel);
    };
    let before = label::before(labels);
    let config = match config.u64("pool_guid") {
        Some(guid) if guid == pool => config,
        // It was about to become another pool's, which its uberblock does not know.
        _ => match before.as_ref().filter(|c| c.u64("pool_guid") == Some(pool)) {
            Some(before) => before,
            None if config.u64(SPLIT_GUID) == Some(pool) => return Some(VdevAux::SplitPool),
            None => return Some(VdevAux::CorruptData),
        },
    };
    let guid = config.u64("guid").unwrap_or(0);
    let top = config.u64("top_guid").unwrap_or(0);
    // A leaf whose sibling was just detached has taken its parent's guid; its label may still be
    // the old one.
    (guid != leaf.guid() && top != leaf.guid() && guid != top_guid).then_some(VdevAux::CorruptData)
}

#[cfg(test)]
mod tests {
    use super::{by_itself, sectors};
    use zilla_env::DeviceInfo;

    /// As [`super::Top`]s take the largest of their devices.
    fn of_all(physical: &[u32]) -> u32 {
        let all = physical.iter().map(|&physical_block| {
            sectors(&DeviceInfo {
                logical_block: 512,
                physical_block,
                is_block_dev: true,
                ..Default::default()
            })
        });
        let (logical, physical) = all.fold((0, 0), |(l, p), (one, other)| (l.max(one), p.max(other)));
        by_itself(logical, physical)
    }

    #[test]
    fn a_device_that_likes_very_large_sectors_leaves_the_others_what_they_like() {
        assert_eq!(of_all(&[512, 4096]), 12);
        assert_eq!(of_all(&[128 << 10, 4096]), 12);
        assert_eq!(of_all(&[128 << 10]), 9);
    }
}
