//! The mappings of removed vdevs, as they are in the MOS.
//!
//! ```text
//!   directory: com.delphix:removing -> spa_removing_phys: the vdev removed last, and the removal under way, if there is one
//!   configuration of each removed vdev: indirect_object (bonus + entries), indirect_births (bonus + entries), prev_indirect_vdev
//!   a mapping's object may lead to one of counts: of each entry, the bytes to which nothing points
//! ```
//!
//! What is needed to read the mapping of the vdev removed last lies on vdevs that are there, for it
//! was written when that vdev took nothing any more. The mapping of the one before may lie on it.
//! So they are read from the last on, before anything else of the pool is.
//!
//! They change in the syncing context only, so a crash leaves those of the last txg.

use super::Spa;
use super::vdev_objects::top_zap;
use crate::dmu::{Dnode, NewObject, Objset, resident};
use crate::error::{Errno, Error, Result};
use crate::metaslab::Metaslabs;
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId};
use crate::vdev::{Indirect, Run, Top, Vdev, VdevKind, VdevTree};
use crate::zap::Zap;
use std::sync::Arc;
use zilla_env::Env;
use zilla_ondisk::object_type::{DMU_OTN_UINT32_METADATA, DMU_OTN_UINT64_METADATA};
use zilla_ondisk::removal::{
    DMU_POOL_REMOVING, IndirectBirthEntryPhys, IndirectBirthPhys, IndirectMappingEntryPhys,
    IndirectMappingPhys, SpaRemovingPhys, VDEV_INDIRECT_MAPPING_SIZE_V0, ZPOOL_CONFIG_INDIRECT_BIRTHS,
    ZPOOL_CONFIG_INDIRECT_OBJECT, ZPOOL_CONFIG_PREV_INDIRECT_VDEV,
};
use zilla_ondisk::{ByteOrder, Dva, Field, Phys};

/// No vdev.
pub(super) const NONE: u64 = u64::MAX;
/// Blocks of a mapping. Source: SPA_OLD_MAXBLOCKSIZE in sys/fs/zfs.h.
const MAPPING_BLKSZ: u32 = 128 << 10;
/// How much of a mapping is read at a time.
const CHUNK: usize = 1 << 20;
/// Runs, and so many births, that may be in memory of all removed vdevs however little of it there
/// is: 2 GiB, which is enough for half a terabyte in pieces of 8K.
const RUNS: usize = if cfg!(test) { 1 << 14 } else { 1 << 26 };
/// Beyond that they may take a part of the machine's memory, a quarter.
const PART: u64 = 4;

/// Of a pool from which nothing was removed.
pub(super) fn nothing_removed() -> SpaRemovingPhys {
    SpaRemovingPhys { removing_vdev: NONE, prev_indirect_vdev: NONE, ..SpaRemovingPhys::default() }
}

/// Reads the mappings of all removed vdevs into the tree, and says what the directory says of
/// removals.
pub(super) async fn load(mos: &Arc<Objset>, directory: &Zap, tree: &VdevTree) -> Result<SpaRemovingPhys> {
    let Some(value) = directory.try_get(DMU_POOL_REMOVING).await? else {
        return match tree.indirect().next() {
            None => Ok(nothing_removed()),
            Some(top) => Err(bad(top.id, "it was removed, but the directory knows of no removal")),
        };
    };
    let bytes: Vec<u8> = value.as_u64s().unwrap_or_default().iter().flat_map(|w| w.to_ne_bytes()).collect();
    let phys = SpaRemovingPhys::decode(&bytes, ByteOrder::NATIVE);
    let phys = phys.map_err(|e| Error::corrupt(None, "MOS", e.to_string()))?;
    let (mut next, mut left) = (phys.prev_indirect_vdev, tree.indirect().count());
    while next != NONE {
        let top = u32::try_from(next).ok().and_then(|id| tree.top(id).ok());
        let top = top.filter(|t| t.vdev.kind == VdevKind::Indirect && t.vdev.indirect().is_none());
        let Some(top) = top.filter(|_| left > 0) else {
            return Err(Error::corrupt(None, format!("vdev {next}"), "the list of removed vdevs is damaged"));
        };
        left -= 1;
        top.vdev.set_indirect(Some(Arc::new(read(mos, top, tree).await?)));
        next = top.vdev.config_u64(ZPOOL_CONFIG_PREV_INDIRECT_VDEV).unwrap_or(NONE);
    }
    match tree.indirect().find(|t| t.vdev.indirect().is_none()) {
        Some(top) => Err(bad(top.id, "it was removed, but is not in the list of removed vdevs")),
        None => Ok(phys),
    }
}

/// So many runs are in memory at most.
pub(super) async fn most_runs(env: &Env) -> usize {
    let memory = crate::memory::read(&*env.opener).await.filter(|_| !cfg!(test));
    let part = memory.map_or(0, |m| m.total / PART / size_of::<Run>() as u64);
    RUNS.max(usize::try_from(part).unwrap_or(usize::MAX))
}

fn bad(vdev: u32, what: impl std::fmt::Display) -> Error {
    Error::corrupt(None, format!("vdev {vdev}"), what.to_string())
}

/// The mapping of one vdev, removed or being removed, as far as it is on disk.
pub(super) async fn read(mos: &Arc<Objset>, top: &Top, tree: &VdevTree) -> Result<Indirect> {
    let object = |name: &str| {
        let id = top.vdev.config_u64(name).filter(|id| *id != 0);
        id.map(ObjectId).ok_or_else(|| bad(top.id, format!("its configuration lacks {name}")))
    };
    let dn = mos.hold_wait(object(ZPOOL_CONFIG_INDIRECT_OBJECT)?).await?;
    let most = most_runs(&tree.env).await;
    let runs = read_runs(&dn, top, tree, most).await?;
    let dn = mos.hold_wait(object(ZPOOL_CONFIG_INDIRECT_BIRTHS)?).await?;
    let births = read_births(&dn, top.id, most).await?;
    Indirect::new(runs, births).map_err(|e| bad(top.id, format!("its mapping: {e}")))
}

/// The runs of a vdev, each of which leads to a place that there is.
async fn read_runs(dn: &Arc<Dnode>, top: &Top, tree: &VdevTree, most: usize) -> Result<Vec<Run>> {
    let others = tree.indirect().filter(|t| t.id != top.id).filter_map(|t| t.vdev.indirect());
    let room = most.saturating_sub(others.map(|m| m.runs().len()).sum());
    let (mut runs, mut end) = (Vec::new(), 0);
    let take = |e: IndirectMappingEntryPhys| {
        let (src, dst) = (e.src_offset(), e.dst());
        // Each maps more than those before, so blocks that an object has many times are not read
        // for long.
        let upto = src.checked_add(dst.asize).filter(|_| src >= end && dst.asize > 0);
        end = upto.ok_or_else(|| {
            bad(top.id, format!("its mapping: entry {} maps {:#x} bytes at {src:#x}", runs.len(), dst.asize))
        })?;
        if runs.len() >= room {
            return Err(too_long(top.id, most));
        }
        // Removal is only for pools of single disks and mirrors.
        let to = tree.top(dst.vdev)?;
        let plain =
            to.vdev.kind.nparity().is_none() && !matches!(to.vdev.kind, VdevKind::Hole | VdevKind::Missing);
        // A vdev is copied to such that are removed later, if at all, and those were read before.
        let read = to.vdev.kind != VdevKind::Indirect || to.vdev.indirect().is_some();
        if !plain
            || !read
            || dst.vdev == top.id
            || dst.offset.checked_add(dst.asize).is_none_or(|e| e > to.vdev.asize())
        {
            return Err(bad(top.id, format!("its mapping leads to {dst:?}")));
        }
        runs.push(Run { src, len: dst.asize, vdev: dst.vdev, dst: dst.offset });
        Ok(())
    };
    read_entries(dn, phys_of(dn)?.num_entries, take).await?;
    Ok(runs)
}

/// Up to where a vdev was copied in which txgs.
async fn read_births(dn: &Arc<Dnode>, vdev: u32, most: usize) -> Result<Vec<(u64, u64)>> {
    let mut births: Vec<(u64, u64)> = Vec::new();
    let take = |b: IndirectBirthEntryPhys| {
        if births.last().is_some_and(|(end, txg)| b.offset <= *end || b.phys_birth_txg < *txg) {
            return Err(bad(vdev, "the txgs in which it was copied are out of order"));
        }
        if births.len() >= most {
            return Err(too_long(vdev, most));
        }
        births.push((b.offset, b.phys_birth_txg));
        Ok(())
    };
    read_entries(dn, births_of(dn)?, take).await?;
    Ok(births)
}

fn too_long(vdev: u32, most: usize) -> Error {
    let what = format!("vdev {vdev}: the mappings of removed devices have over {most} entries");
    Error::os(Errno::NoMem, format!("{what}, for which there is no memory"))
}

/// The entries of a mapping, and the counts beside them.
pub(super) struct Entries {
    entries: Arc<Dnode>,
    counts: Option<Arc<Dnode>>,
}

impl Entries {
    pub(super) async fn create(mos: &Arc<Objset>, tx: &Tx, with_counts: bool) -> Result<Entries> {
        let len = if with_counts { IndirectMappingPhys::SIZE } else { VDEV_INDIRECT_MAPPING_SIZE_V0 };
        let entries = make(mos, tx, DMU_OTN_UINT64_METADATA, len).await?;
        let counts = match with_counts {
            true => Some(make(mos, tx, DMU_OTN_UINT32_METADATA, 0).await?),
            false => None,
        };
        let counts_object = counts.as_ref().map_or(0, |c| c.id().0);
        let phys = IndirectMappingPhys { counts_object, ..IndirectMappingPhys::default() };
        entries.set_bonus(tx, phys.encode().get(..len).unwrap_or_default());
        Ok(Entries { entries, counts })
    }

    pub(super) async fn open(mos: &Arc<Objset>, object: ObjectId) -> Result<Entries> {
        let entries = mos.hold_wait(object).await?;
        let counts = match phys_of(&entries)?.counts_object {
            0 => None,
            id => Some(mos.hold_wait(ObjectId(id)).await?),
        };
        Ok(Entries { entries, counts })
    }

    pub(super) fn object(&self) -> ObjectId {
        self.entries.id()
    }

    pub(super) fn phys(&self) -> Result<IndirectMappingPhys> {
        phys_of(&self.entries)
    }

    pub(super) async fn read(&self, top: &Top, tree: &VdevTree) -> Result<Vec<Run>> {
        read_runs(&self.entries, top, tree, most_runs(&tree.env).await).await
    }

    /// Of each of `len` runs, how many of its bytes are obsolete.
    pub(super) async fn read_counts(&self, len: usize) -> Result<Vec<u32>> {
        let Some(counts) = &self.counts else { return Ok(vec![0; len]) };
        let mut raw = vec![0; len * size_of::<u32>()];
        counts.read_wait(0, &mut raw).await?;
        Ok(raw.as_chunks().0.iter().map(|c| u32::from_ne_bytes(*c)).collect())
    }

    /// Goes on with runs, in order, and how many bytes of each are obsolete.
    pub(super) fn append(&self, tx: &Tx, runs: &[(Run, u32)]) -> Result<IndirectMappingPhys> {
        let mut phys = self.phys()?;
        let mut raw = Vec::with_capacity(runs.len() * IndirectMappingEntryPhys::SIZE);
        for (r, _) in runs {
            let dst = Dva { vdev: r.vdev, offset: r.dst, asize: r.len, gang: false };
            raw.extend(IndirectMappingEntryPhys::new(r.src, dst).encode());
            phys.bytes_mapped += r.len;
            phys.max_offset = r.src + r.len;
        }
        self.entries.write(tx, phys.num_entries * IndirectMappingEntryPhys::SIZE as u64, &raw);
        if let Some(counts) = &self.counts {
            let raw: Vec<u8> = runs.iter().flat_map(|(_, count)| count.to_ne_bytes()).collect();
            counts.write(tx, phys.num_entries * size_of::<u32>() as u64, &raw);
        }
        phys.num_entries += runs.len() as u64;
        let len = self.entries.bonus().len();
        self.entries.set_bonus(tx, phys.encode().get(..len).unwrap_or_default());
        Ok(phys)
    }

    pub(super) fn has_counts(&self) -> bool {
        self.counts.is_some()
    }

    pub(super) fn free(self, mos: &Arc<Objset>, tx: &Tx) {
        mos.free(tx, &self.entries);
        self.counts.iter().for_each(|dn| mos.free(tx, dn));
    }
}

/// The objects of a mapping that is being made.
pub(super) struct Mapping {
    entries: Entries,
    births: Arc<Dnode>,
}

impl Mapping {
    pub(super) async fn create(mos: &Arc<Objset>, tx: &Tx, with_counts: bool) -> Result<Mapping> {
        let entries = Entries::create(mos, tx, with_counts).await?;
        let births = make(mos, tx, DMU_OTN_UINT64_METADATA, IndirectBirthPhys::SIZE).await?;
        births.set_bonus(tx, &IndirectBirthPhys::default().encode());
        Ok(Mapping { entries, births })
    }

    pub(super) async fn open(mos: &Arc<Objset>, vdev: &Vdev) -> Result<Mapping> {
        let id = |name: &str| ObjectId(vdev.config_u64(name).unwrap_or(0));
        let entries = Entries::open(mos, id(ZPOOL_CONFIG_INDIRECT_OBJECT)).await?;
        let births = mos.hold_wait(id(ZPOOL_CONFIG_INDIRECT_BIRTHS)).await?;
        Ok(Mapping { births, entries })
    }

    pub(super) fn object(&self) -> ObjectId {
        self.entries.object()
    }

    pub(super) fn births(&self) -> ObjectId {
        self.births.id()
    }

    /// Goes on with runs, in order, all of which were copied in this txg.
    pub(super) fn append(&self, tx: &Tx, runs: &[Run]) -> Result<()> {
        // Nothing of them is obsolete yet.
        let runs: Vec<_> = runs.iter().map(|r| (*r, 0)).collect();
        let phys = self.entries.append(tx, &runs)?;
        let count = births_of(&self.births)?;
        let birth = IndirectBirthEntryPhys { offset: phys.max_offset, phys_birth_txg: tx.txg().0 };
        self.births.write(tx, count * IndirectBirthEntryPhys::SIZE as u64, &birth.encode());
        self.births.set_bonus(tx, &IndirectBirthPhys { count: count + 1 }.encode());
        Ok(())
    }

    /// Says whether it had counts.
    pub(super) fn free(self, mos: &Arc<Objset>, tx: &Tx) -> bool {
        let counts = self.entries.has_counts();
        mos.free(tx, &self.births);
        self.entries.free(mos, tx);
        counts
    }
}

async fn make(mos: &Arc<Objset>, tx: &Tx, otype: u8, bonus: usize) -> Result<Arc<Dnode>> {
    let mut spec = NewObject::new(otype, MAPPING_BLKSZ);
    if bonus > 0 {
        spec = spec.bonus(DMU_OTN_UINT64_METADATA, bonus);
    }
    resident(|| mos.alloc(tx, spec)).await
}

fn phys_of(dn: &Dnode) -> Result<IndirectMappingPhys> {
    let bad = |e: zilla_ondisk::FormatError| {
        Error::corrupt(Some(Bookmark::new(0, dn.id(), 0, 0)), "mapping of a removed device", e.to_string())
    };
    IndirectMappingPhys::from_bonus(&dn.bonus(), ByteOrder::NATIVE).map_err(bad)
}

fn births_of(dn: &Dnode) -> Result<u64> {
    let bad = |e: zilla_ondisk::FormatError| {
        Error::corrupt(Some(Bookmark::new(0, dn.id(), 0, 0)), "mapping of a removed device", e.to_string())
    };
    Ok(IndirectBirthPhys::decode(&dn.bonus(), ByteOrder::NATIVE).map_err(bad)?.count)
}

/// Reads entries until one is refused.
async fn read_entries<T: Phys>(
    dn: &Arc<Dnode>,
    count: u64,
    mut take: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let what = |what: String| {
        let place = Bookmark::new(dn.objset_id(), dn.id(), 0, 0);
        Error::corrupt(Some(place), "mapping of a removed device", what)
    };
    let room = dn.maxblkid().saturating_add(1).saturating_mul(u64::from(dn.blksz()));
    let len = count.checked_mul(T::SIZE as u64).filter(|len| *len <= room);
    let len = len.ok_or_else(|| what(format!("{count} entries in {room} bytes")))?;
    let (mut at, step) = (0, CHUNK / T::SIZE * T::SIZE);
    while at < len {
        let mut buf = vec![0; step.min((len - at) as usize)];
        dn.read_wait(at, &mut buf).await?;
        for raw in buf.chunks(T::SIZE) {
            take(T::decode(raw, ByteOrder::NATIVE).map_err(|e| what(e.to_string()))?)?;
        }
        at += buf.len() as u64;
    }
    Ok(())
}

/// Lets blocks on removed vdevs be freed.
pub(super) fn tell_metaslabs(tree: &VdevTree, metaslabs: &Metaslabs) {
    for top in tree.indirect() {
        if let Some(mapping) = top.vdev.indirect() {
            let zap = top_zap(&top.vdev);
            metaslabs.set_removed(top.id, mapping, zap, top.vdev.asize());
        }
    }
}

impl Spa {
    /// What the pool's directory says of removals.
    pub fn removing(&self) -> SpaRemovingPhys {
        *self.removing.lock()
    }

    /// Bytes of memory that the mappings of removed vdevs take.
    pub fn mapping_memory(&self) -> u64 {
        self.tree().indirect().filter_map(|t| t.vdev.indirect()).map(|m| m.memory()).sum()
    }
}

#[cfg(test)]
mod tests;
