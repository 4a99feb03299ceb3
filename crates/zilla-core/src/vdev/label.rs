//! Reading what stands in a leaf's labels: its configuration and its ring of uberblocks.
//!
//! There are four copies, each part with a checksum of its own that is seeded with its place. A
//! configuration counts if it parses and its checksum is right; of several the newest does, but
//! none that is newer than the uberblock it is to be used with (its txg was never finished).

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use zilla_codec::checksum::{Checksum, embedded};
use zilla_env::{Device, Env};
use zilla_ondisk::enums::{PoolState, is_supported_version};
use zilla_ondisk::label::{
    UBERBLOCK_SHIFT, VDEV_LABEL_SIZE, VDEV_LABELS, VDEV_PHYS_OFFSET, VdevLabel, label_offset,
};
use zilla_ondisk::{ByteOrder, NvList, Uberblock};

use super::Leaf;
use crate::error::{Errno, Error, Result};
use crate::types::Txg;

/// One of the four labels.
#[derive(Clone, Debug)]
pub struct Label {
    /// Where it begins on the device.
    pub offset: u64,
    pub config: Option<NvList>,
    /// Why there is no configuration.
    pub problem: Option<String>,
    /// The 256K, for the uberblocks.
    pub raw: Bytes,
}

/// A valid uberblock, and where it was.
#[derive(Clone, Debug)]
pub struct FoundUberblock {
    pub ub: Uberblock,
    pub order: ByteOrder,
    pub label: usize,
    /// Offset on the device.
    pub offset: u64,
}

impl FoundUberblock {
    pub fn txg(&self) -> Txg {
        Txg(self.ub.txg)
    }
}

/// What a device's labels say of the pool it belongs to.
#[derive(Clone, Debug)]
pub struct LabelInfo {
    /// The newest configuration.
    pub config: NvList,
    /// The one of the newest uberblock here, if that names another pool: its guid was being
    /// changed.
    pub before: Option<NvList>,
    /// How many of the four labels are valid.
    pub valid: usize,
    /// The best uberblock of this device.
    pub uberblock: Option<FoundUberblock>,
    /// The device's size in bytes.
    pub size: u64,
}

impl LabelInfo {
    pub fn pool_guid(&self) -> Option<u64> {
        self.config.u64("pool_guid")
    }
    pub fn pool_name(&self) -> Option<&str> {
        self.config.str("name")
    }
    pub fn guid(&self) -> Option<u64> {
        self.config.u64("guid")
    }
    pub fn top_guid(&self) -> Option<u64> {
        self.config.u64("top_guid")
    }
    pub fn txg(&self) -> u64 {
        self.config.u64("txg").unwrap_or(0)
    }
    pub fn state(&self) -> Option<PoolState> {
        self.config.u64("state").and_then(PoolState::from_number)
    }
    /// The top-level vdev this device is part of.
    pub fn vdev_tree(&self) -> Option<&NvList> {
        self.config.list("vdev_tree")
    }
}

/// Reads all labels that can be read.
#[crate::boxed]
pub async fn read_labels(device: &Arc<dyn Device>) -> Vec<Label> {
    let size = device.size();
    let offsets: Vec<u64> = (0..VDEV_LABELS).filter_map(|l| label_offset(size, l)).collect();
    let reads: Vec<_> = offsets.iter().map(|o| device.read(*o, VDEV_LABEL_SIZE as usize)).collect();
    let mut out = Vec::new();
    for (offset, read) in offsets.into_iter().zip(reads) {
        let label = match read.await {
            Ok(buf) => parse(offset, buf.into_bytes()),
            Err(e) => Label { offset, config: None, problem: Some(e.to_string()), raw: Bytes::new() },
        };
        out.push(label);
    }
    out
}

fn parse(offset: u64, raw: Bytes) -> Label {
    let config = config_of(offset, &raw);
    let (config, problem) = match config {
        Ok(c) => (Some(c), None),
        Err(e) => (None, Some(e)),
    };
    Label { offset, config, problem, raw }
}

fn config_of(offset: u64, raw: &[u8]) -> std::result::Result<NvList, String> {
    let label = VdevLabel::split(raw).ok_or("short label")?;
    let verifier = embedded::label_verifier(offset + VDEV_PHYS_OFFSET);
    embedded::verify(Checksum::Label, label.vdev_phys, &verifier).map_err(|e| e.to_string())?;
    NvList::unpack(label.nvlist()).map_err(|e| e.to_string())
}

/// The newest configuration of txg `max` or before. Labels without a txg (spares, a device being
/// added) count as the oldest.
pub fn best_config(labels: &[Label], max: u64) -> Option<&NvList> {
    let all = labels.iter().filter_map(|l| l.config.as_ref());
    let txg = |c: &NvList| c.u64("txg").unwrap_or(0);
    // Of equals the first.
    all.filter(|c| txg(c) <= max).rev().max_by_key(|c| txg(c))
}

/// Every valid uberblock of the labels.
pub fn uberblocks(labels: &[Label], ashift: u32) -> Vec<FoundUberblock> {
    let mut out = Vec::new();
    for (i, label) in labels.iter().enumerate() {
        let Some(parts) = VdevLabel::split(&label.raw) else { continue };
        for (at, slot) in parts.slots(ashift) {
            let offset = label.offset + at;
            let Ok((ub, order)) = Uberblock::decode_slot(slot) else { continue };
            if !is_supported_version(ub.version) {
                continue;
            }
            let verifier = embedded::label_verifier(offset);
            if embedded::verify(Checksum::Label, slot, &verifier).is_ok_and(|o| o == codec(order)) {
                out.push(FoundUberblock { ub, order, label: i, offset });
            }
        }
    }
    out
}

fn codec(order: ByteOrder) -> zilla_codec::checksum::ByteOrder {
    match order {
        ByteOrder::Little => zilla_codec::checksum::ByteOrder::Little,
        ByteOrder::Big => zilla_codec::checksum::ByteOrder::Big,
    }
}

/// The active one of a set: highest txg not above `max`, then timestamp, then multihost sequence.
pub fn best_uberblock(found: &[FoundUberblock], max: u64) -> Option<&FoundUberblock> {
    found.iter().filter(|f| f.ub.txg <= max).max_by_key(|f| f.ub.rank())
}

/// The best uberblock of a device whose newest configuration this is.
fn newest(labels: &[Label], config: &NvList) -> Option<FoundUberblock> {
    let ashift = config.list("vdev_tree").and_then(|v| v.u64("ashift")).unwrap_or(0);
    let ashift = u32::try_from(ashift).unwrap_or(UBERBLOCK_SHIFT);
    best_uberblock(&uberblocks(labels, ashift), u64::MAX).cloned()
}

/// The configuration that goes with an uberblock, if it names another pool than the newest does.
fn settled(labels: &[Label], newest: &NvList, ub: Option<&FoundUberblock>) -> Option<NvList> {
    let settled = best_config(labels, ub?.ub.txg)?;
    (settled.u64("pool_guid") != newest.u64("pool_guid")).then(|| settled.clone())
}

/// The configuration of the newest uberblock, if that names another pool than the newest
/// configuration does.
pub fn before(labels: &[Label]) -> Option<NvList> {
    let config = best_config(labels, u64::MAX)?;
    settled(labels, config, newest(labels, config).as_ref())
}

/// Puts together what an import wants to know of a device.
pub fn info(labels: &[Label], size: u64) -> Option<LabelInfo> {
    let config = best_config(labels, u64::MAX)?.clone();
    let uberblock = newest(labels, &config);
    let before = settled(labels, &config, uberblock.as_ref());
    let valid = labels.iter().filter(|l| l.config.is_some()).count();
    Some(LabelInfo { config, before, valid, uberblock, size })
}

/// What one pass over the labels of a pool's readable leaves found.
#[derive(Clone, Debug, Default)]
pub struct PoolLabels {
    /// All valid uberblocks that count, the best first, each txg once.
    pub uberblocks: Vec<FoundUberblock>,
    /// The last txg number that is not to be used again: uberblocks have it, whether they count or
    /// not, or may have it.
    pub newest: u64,
    /// Txgs whose uberblocks do not count ([`super::went_on`]).
    pub void: Vec<u64>,
    /// The newest txg that the pool went on from with a device and whose uberblock is not here.
    pub away: Option<u64>,
    /// By leaf index.
    pub labels: Vec<(usize, Vec<Label>)>,
}

impl PoolLabels {
    /// Of leaves: index, sector size and labels of each.
    fn of(read: Vec<(usize, u32, Vec<Label>)>) -> PoolLabels {
        let mut out = PoolLabels::default();
        for (index, ashift, labels) in read {
            out.uberblocks.extend(uberblocks(&labels, ashift));
            out.labels.push((index, labels));
        }
        out.uberblocks.sort_by_key(|f| std::cmp::Reverse(f.ub.rank()));
        out.uberblocks.dedup_by_key(|f| f.ub.txg);
        out.newest = out.uberblocks.first().map_or(0, |f| f.ub.txg);
        out
    }

    pub(super) fn of_leaf(&self, index: usize) -> Option<&Vec<Label>> {
        self.labels.iter().find(|(i, _)| *i == index).map(|(_, labels)| labels)
    }

    /// The configuration to be used with an uberblock: the newest that is not newer.
    pub fn config(&self, ub: &Uberblock) -> Option<&NvList> {
        let all = self.labels.iter().filter_map(|(_, l)| best_config(l, ub.txg));
        all.max_by_key(|c| c.u64("txg").unwrap_or(0))
    }
}

impl super::VdevTree {
    /// Reads the labels of all leaves of the pool that answer.
    #[crate::boxed]
    pub async fn read_labels(&self) -> PoolLabels {
        let reads = self.labelled().into_iter().map(|(leaf, ashift, device)| async move {
            let labels = self.in_time(leaf, read_labels(&device)).await?;
            Some((leaf.index, ashift, labels))
        });
        let read = futures_util::future::join_all(reads).await;
        self.without_void(PoolLabels::of(read.into_iter().flatten().collect()))
    }

    /// The same for who must know all of them: an error that names the devices, if some do not
    /// answer, or did not when they were to be opened.
    #[crate::boxed]
    pub async fn read_labels_within(&self, env: &Env, limit: Duration) -> Result<PoolLabels> {
        let reads = self.labelled().into_iter().map(|(leaf, ashift, device)| async move {
            match env.timeout(limit, read_labels(&device)).await {
                Ok(labels) => Ok((leaf.index, ashift, labels)),
                Err(_) => Err(leaf.path()),
            }
        });
        let read = futures_util::future::join_all(reads).await;
        let mut silent = self.silent();
        silent.extend(read.iter().filter_map(|r| r.as_ref().err().cloned()));
        if !silent.is_empty() {
            let what = format!(
                "whether another host uses the pool cannot be seen: no answer within {} s from {}; try again when it \
                 answers, or has been taken away",
                limit.as_secs(),
                silent.join(", ")
            );
            return Err(Error::os(Errno::Io, what));
        }
        Ok(self.without_void(PoolLabels::of(read.into_iter().flatten().collect())))
    }

    /// What was read of the labels of leaves, by their index, as far as they are readable still.
    pub(super) fn labels_of(&self, mut read: HashMap<usize, Vec<Label>>) -> PoolLabels {
        let leaves = self.labelled().into_iter();
        let known = leaves.filter_map(|(leaf, ashift, _)| {
            let labels = read.remove(&leaf.index)?;
            Some((leaf.index, ashift, labels))
        });
        self.without_void(PoolLabels::of(known.collect()))
    }

    /// Who has labels, with the sector size of its vdev.
    fn labelled(&self) -> Vec<(&Arc<Leaf>, u32, Arc<dyn Device>)> {
        let mut all = Vec::new();
        for top in &self.tops {
            let readable = top.devices().filter(|l| l.readable());
            all.extend(readable.filter_map(|l| Some((l, top.ashift(), l.device()?))));
        }
        all
    }
}
