//! Writing labels and uberblocks: the moment a txg becomes the pool.
//!
//! The order, each step stable before the next begins:
//!
//! 1. every block of the txg;
//! 2. if the configuration changed, labels 0 and 2 of every leaf;
//! 3. the uberblock, in the slot its txg chooses, in all four labels;
//! 4. if the configuration changed, labels 1 and 3.
//!
//! A crash during 2 leaves labels 1 and 3 as they were; the new ones carry a txg newer than any
//! uberblock and do not count. A leaf that missed something of the txg, which the DTLs in it say,
//! does not get its uberblock either (see `resilver.rs`); its siblings always get it then. During
//! 3, either no new uberblock arrived, and the old one with labels 1 and 3 is the pool; or one did,
//! and it with labels 0 and 2 is. During 4 the uberblock and labels 0 and 2 are there. A slot of
//! the ring is written again only after a whole lap, so a torn uberblock costs nothing but itself.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use zilla_codec::checksum::{ByteOrder, Checksum, embedded};
use zilla_env::{Device, IoBuf};
use zilla_ondisk::enums::PoolState;
use zilla_ondisk::label::{
    BOOTENV_OFFSET, MMP_BLOCKS_PER_LABEL, UBERBLOCK_RING_OFFSET, VDEV_LABELS, VDEV_PAD_SIZE,
    VDEV_PHYS_OFFSET, VDEV_UBERBLOCK_RING, encode_vdev_phys, label_offset, uberblock_count, uberblock_offset,
    uberblock_size, uberblock_slot,
};
use zilla_ondisk::{NvList, Uberblock};

use super::config::ConfigFor;
use super::leaf::Leaf;
use super::node::Vdev;
use super::priority::Priority;
use super::tree::{Top, VdevTree};
use super::within::{OPEN_TIMEOUT, within};
use crate::error::{Errno, Error, Result};

const EVEN: [usize; 2] = [0, 2];
const ODD: [usize; 2] = [1, 3];
/// An uberblock goes to this many top-level vdevs when the configuration did not change.
const SYNC_MIN_VDEVS: usize = 3;

fn seal(kind_of: &str, buf: &mut [u8], offset: u64) -> Result<()> {
    let verifier = embedded::label_verifier(offset);
    embedded::seal(Checksum::Label, buf, &verifier, ByteOrder::NATIVE)
        .map_err(|e| Error::inval(format!("{kind_of}: {e}")))
}

/// The label's configuration as it stands on the device at label `l` of a leaf.
fn config_bytes(packed: &[u8], offset: u64) -> Result<Bytes> {
    let mut buf = encode_vdev_phys(packed)
        .ok_or_else(|| Error::os(Errno::NameTooLong, "the configuration does not fit into a label"))?;
    seal("label", &mut buf, offset)?;
    Ok(IoBuf::from_slice(&buf).into_bytes())
}

fn slot_bytes(ub: &Uberblock, ashift: u32, offset: u64) -> Result<Bytes> {
    let mut slot = IoBuf::zeroed(uberblock_size(ashift) as usize);
    ub.encode_slot(&mut slot).map_err(|e| Error::inval(e.to_string()))?;
    seal("uberblock", &mut slot, offset)?;
    Ok(slot.into_bytes())
}

impl VdevTree {
    /// The label of one leaf: what is common to the pool (`pool`: version, name, state, txg, guid,
    /// hostid, ...) and what is the leaf's own.
    pub fn label_config(&self, pool: &NvList, top: &Top, leaf_guid: u64) -> NvList {
        let mut nv = pool.clone();
        let features = nv.remove("features_for_read");
        nv.add("top_guid", top.vdev.guid).add("guid", leaf_guid);
        if top.vdev.is_log {
            nv.add("is_log", 1u64);
        }
        let holes = self.hole_array();
        if !holes.is_empty() {
            nv.add("hole_array", holes);
        }
        nv.add("vdev_children", self.tops.len() as u64);
        nv.add("vdev_tree", self.generate_top(top));
        if let Some(f) = features {
            nv.add("features_for_read", f);
        }
        nv
    }

    /// Writes the first labels of a pool's devices: all four, with an empty ring. `pool` says txg
    /// 0: until the first txg is synced these devices belong to no pool.
    pub async fn init_labels(&self, pool: &NvList, ub: &Uberblock) -> Result<()> {
        let mut work = self.pool_labels(pool, |_| true);
        work.extend(self.cache.iter().filter_map(|v| aux_label(pool, v, PoolState::L2cache)));
        init_leaves(&work, ub).await
    }

    /// Writes the first labels of cache devices.
    pub async fn init_cache_labels(&self, pool: &NvList, ub: &Uberblock, new: &[Arc<Vdev>]) -> Result<()> {
        let work: Vec<_> = new.iter().filter_map(|v| aux_label(pool, v, PoolState::L2cache)).collect();
        init_leaves(&work, ub).await
    }

    /// Writes the labels of a hot spare, which is nobody's data.
    pub async fn init_spare_label(&self, pool: &NvList, ub: &Uberblock, spare: &Arc<Vdev>) -> Result<()> {
        let work: Vec<_> = aux_label(pool, spare, PoolState::Spare).into_iter().collect();
        init_leaves(&work, ub).await
    }

    fn pool_labels(&self, pool: &NvList, which: impl Fn(&Leaf) -> bool) -> Vec<(Arc<Leaf>, NvList, u32)> {
        let mut work = Vec::new();
        for top in &self.tops {
            for leaf in top.devices().filter(|l| which(l)) {
                work.push((leaf.clone(), self.label_config(pool, top, leaf.guid()), top.ashift()));
            }
        }
        work
    }

    /// The same for devices that `old` does not have.
    pub async fn init_new_labels(&self, pool: &NvList, ub: &Uberblock, old: &VdevTree) -> Result<()> {
        let labels = self.pool_labels(pool, |l| l.index >= old.leaves.len());
        let done = within(&self.env, OPEN_TIMEOUT, init_leaves(&labels, ub)).await;
        done.unwrap_or_else(|| {
            self.new_leaves(old).for_each(|l| l.give_up());
            let what = format!("the labels were not written within {} s", OPEN_TIMEOUT.as_secs());
            Err(Error::os(Errno::TimedOut, what))
        })
    }

    /// Takes a device out of the pool: its labels are as those of a device that was never part of
    /// it.
    pub async fn disown(&self, pool: &NvList, ub: &Uberblock, top: &Top, leaf: &Arc<Leaf>) -> Result<()> {
        let label = self.label_config(pool, top, leaf.guid());
        let done = within(&self.env, OPEN_TIMEOUT, init_leaf(leaf, &label, ub, top.ashift())).await;
        done.unwrap_or_else(|| {
            leaf.give_up();
            let what = format!("{}: no answer within {} s", leaf.path(), OPEN_TIMEOUT.as_secs());
            Err(Error::os(Errno::TimedOut, what))
        })
    }

    /// Makes `ub` the pool: see the head of this file. Blocks of its txg must have been written;
    /// they are made stable here. `labels` is the pool's part of the configuration if that changed
    /// in this txg. `multihost`: the last slots of the rings are heartbeats', and who writes those
    /// is told when the first uberblock is about to be on its way.
    pub async fn sync_labels(
        &self,
        ub: &Uberblock,
        labels: Option<&NvList>,
        multihost: Option<&(dyn Fn() + Send + Sync)>,
    ) -> Result<()> {
        self.flush_all(ub.txg).await?;
        if let Some(pool) = labels {
            self.write_labels(pool, EVEN).await?;
        }
        if let Some(about_to) = multihost {
            about_to();
        }
        self.write_uberblocks(ub, labels.is_some(), multihost.is_some()).await?;
        if let Some(pool) = labels {
            self.write_labels(pool, ODD).await?;
        }
        Ok(())
    }

    /// Changes the configurations without an uberblock. The leaves (by index) that have it.
    pub async fn write_all_labels(&self, pool: &NvList) -> Result<Vec<usize>> {
        let mut written = self.write_labels(pool, EVEN).await?;
        written.extend(self.write_labels(pool, ODD).await?);
        Ok(written)
    }

    async fn write_labels(&self, pool: &NvList, which: [usize; 2]) -> Result<Vec<usize>> {
        let (mut writes, marks) = (Vec::new(), self.marks());
        for top in self.tops.iter().filter(|t| t.vdev.is_concrete()) {
            for leaf in top.devices().filter(|l| l.writable()) {
                let packed = self.label_config(pool, top, leaf.guid()).pack();
                for l in which {
                    let Some(at) = label_offset(leaf.psize(), l) else { continue };
                    let offset = at + VDEV_PHYS_OFFSET;
                    let data = config_bytes(&packed, offset)?;
                    writes.push(async move {
                        leaf.write_at(offset, data, Priority::SyncWrite).await.map(|()| leaf.index)
                    });
                }
            }
        }
        let results = join_all(writes).await;
        let stable = self.flush_each(&marks).await;
        // One that was written, and not only one that had nothing to be made stable.
        let written: Vec<usize> =
            results.into_iter().flatten().filter(|index| stable.contains(index)).collect();
        for top in self.tops.iter().filter(|t| t.vdev.is_concrete() && !t.vdev.is_log) {
            if !top.devices().any(|l| written.contains(&l.index)) {
                let what = format!("no label of {}-{} could be written", top.vdev.kind.type_name(), top.id);
                return Err(Error::os(Errno::Io, what));
            }
        }
        Ok(written)
    }

    fn marks(&self) -> Vec<(&Arc<Leaf>, u64)> {
        self.pool_leaves().filter(|l| l.writable()).map(|l| (l, l.mark())).collect()
    }

    /// Flushes leaves that were writable; the indices of those that are stable.
    async fn flush_each(&self, leaves: &[(&Arc<Leaf>, u64)]) -> Vec<usize> {
        let results = join_all(leaves.iter().map(|(l, mark)| l.flush(*mark))).await;
        leaves.iter().zip(results).filter(|(_, r)| r.is_ok()).map(|((l, _), _)| l.index).collect()
    }

    async fn write_uberblocks(&self, ub: &Uberblock, everywhere: bool, multihost: bool) -> Result<()> {
        let usable: Vec<&Top> = self.tops.iter().filter(|t| t.vdev.is_concrete() && t.writable()).collect();
        let ordinary = usable.iter().filter(|t| !t.vdev.is_log);
        let chosen: Vec<&Top> = if everywhere {
            usable.clone()
        } else {
            // Which ones, changes with the txg, so that all rings stay young.
            let n = ordinary.clone().count().max(1);
            let some = ordinary.clone().cycle().skip(ub.txg as usize % n).take(n.min(SYNC_MIN_VDEVS));
            let mut chosen: Vec<&Top> = some.copied().collect();
            let missed = |t: &Top| t.devices().any(|l| !l.holds(ub.txg));
            let known = chosen.len();
            for top in ordinary.filter(|t| missed(t)) {
                if !chosen.iter().take(known).any(|c| c.id == top.id) {
                    chosen.push(top);
                }
            }
            chosen
        };
        let (mut writes, marks) = (Vec::new(), self.marks());
        for top in chosen {
            let ashift = top.ashift();
            for leaf in top.devices().filter(|l| l.writable() && l.holds(ub.txg)) {
                for l in 0..VDEV_LABELS {
                    let Some(at) = label_offset(leaf.psize(), l) else { continue };
                    let offset = at + uberblock_offset(ashift, uberblock_slot(ashift, ub.txg, multihost));
                    let data = slot_bytes(ub, ashift, offset)?;
                    writes.push(async move {
                        leaf.write_at(offset, data, Priority::SyncWrite).await.map(|()| leaf.index)
                    });
                }
            }
        }
        let written = join_all(writes).await;
        let stable = self.flush_each(&marks).await;
        let good = written.iter().any(|w| w.as_ref().is_ok_and(|i| stable.contains(i)));
        if good { Ok(()) } else { Err(Error::os(Errno::Io, "no uberblock could be written")) }
    }
}

/// A heartbeat of a pool that several hosts can reach: the last uberblock again, a moment later, in
/// the slot of the ring that is kept for it.
pub struct Beat {
    pub ub: Uberblock,
    /// Of the device's top-level vdev.
    pub ashift: u32,
}

impl Beat {
    /// Where it stands in one of a leaf's labels, and its bytes.
    fn slot(&self, leaf: &Leaf, label: usize) -> io::Result<(u64, Bytes)> {
        let at =
            label_offset(leaf.psize(), label).ok_or_else(|| io::Error::other("the device is too small"))?;
        let slot = uberblock_count(self.ashift) - MMP_BLOCKS_PER_LABEL;
        let offset = at + uberblock_offset(self.ashift, slot);
        Ok((offset, slot_bytes(&self.ub, self.ashift, offset).map_err(|e| io::Error::other(e.to_string()))?))
    }

    /// Writes it to one label, and makes it stable.
    pub async fn write(&self, leaf: &Arc<Leaf>, label: usize) -> io::Result<()> {
        let (offset, data) = self.slot(leaf, label)?;
        let mark = leaf.mark();
        leaf.write_at(offset, data, Priority::SyncWrite).await?;
        leaf.flush(mark).await
    }

    /// Writes it to all labels of a leaf, past the leaf's queue, and makes it stable.
    pub async fn write_everywhere(&self, leaf: &Leaf, device: &Arc<dyn Device>) -> io::Result<()> {
        let mut writes = Vec::new();
        for label in 0..VDEV_LABELS {
            let (offset, data) = self.slot(leaf, label)?;
            writes.push(device.write(offset, data));
        }
        for write in writes {
            write.await?;
        }
        device.flush().await
    }
}

/// The label of a spare or cache device, which names no pool.
fn aux_label(pool: &NvList, v: &Arc<Vdev>, state: PoolState) -> Option<(Arc<Leaf>, NvList, u32)> {
    let version = pool.u64("version").unwrap_or(0);
    let mut nv = NvList::new();
    nv.add("version", version).add("state", state.number()).add("guid", v.guid);
    if state == PoolState::L2cache {
        nv.add("ashift", u64::from(v.ashift()));
    }
    let own = v.generate(ConfigFor::Label, None);
    for name in ["path", "devid", "phys_path"] {
        if let Some(value) = own.get(name) {
            nv.add(name, value.clone());
        }
    }
    v.leaf.clone().map(|l| (l, nv, v.ashift()))
}

async fn init_leaves(work: &[(Arc<Leaf>, NvList, u32)], ub: &Uberblock) -> Result<()> {
    let results = join_all(work.iter().map(|(l, nv, ashift)| init_leaf(l, nv, ub, *ashift))).await;
    for (result, (leaf, ..)) in results.into_iter().zip(work) {
        result.map_err(|e| Error::os(e.errno(), format!("{}: {e}", leaf.path())))?;
    }
    Ok(())
}

async fn init_leaf(leaf: &Arc<Leaf>, label: &NvList, ub: &Uberblock, ashift: u32) -> Result<()> {
    let packed = label.pack();
    let template = Uberblock { txg: 0, ..*ub };
    let mark = leaf.mark();
    let mut writes = Vec::new();
    for l in 0..VDEV_LABELS {
        let at = label_offset(leaf.psize(), l).ok_or_else(|| Error::os(Errno::Overflow, "too small"))?;
        let config = config_bytes(&packed, at + VDEV_PHYS_OFFSET)?;
        // A cleared ring: uberblocks of a pool that was here before must not be taken for this
        // one's.
        let mut ring = IoBuf::zeroed(VDEV_UBERBLOCK_RING as usize);
        let first = slot_bytes(&template, ashift, at + UBERBLOCK_RING_OFFSET)?;
        ring.get_mut(..first.len()).unwrap_or_default().copy_from_slice(&first);
        writes.push((at + VDEV_PHYS_OFFSET, config));
        // What was here before must not be found any more: a superblock or a partition table lies
        // in the blank space in front.
        let blank = BOOTENV_OFFSET + VDEV_PAD_SIZE;
        writes.push((at, IoBuf::zeroed(blank as usize).into_bytes()));
        writes.push((at + UBERBLOCK_RING_OFFSET, ring.into_bytes()));
    }
    let all = writes.into_iter().map(|(offset, data)| leaf.write_at(offset, data, Priority::SyncWrite));
    for result in join_all(all).await {
        result?;
    }
    leaf.flush(mark).await?;
    Ok(())
}
