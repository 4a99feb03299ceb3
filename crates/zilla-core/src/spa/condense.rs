//! Shortening the mappings of removed vdevs: runs to which nothing points any more leave a mapping,
//! so that it takes less memory. OpenZFS's word for it is condensing.
//!
//! ```text
//!   enough is obsolete --> [begin] --> [append] ... [append] --> [complete]
//! ```
//!
//! Each step in brackets is a part of one txg's sync. The first sets the vdev's map of what is
//! obsolete aside and makes the object of a new mapping; what becomes obsolete from then on goes to
//! a new map and counts the next time. The last puts the new object in the old one's place.
//!
//! **Invariants.** Until the last step the old mapping is the vdev's. A run leaves only when the
//! old mapping's counts and the map that was set aside say that all of its bytes are obsolete: no
//! block pointer leads there, and none ever will. Of the others the new mapping has the sums as
//! counts.
//!
//! **On disk** (OpenZFS's format): `com.delphix:condensing_indirect` in the pool's directory names
//! the vdev, the map and the new object. **Crash:** the new object says up to where it was made,
//! and an import goes on there, also with one that OpenZFS began. It is read and compared first.
//!
//! One vdev at a time, as in OpenZFS. One that is still being emptied is left alone: its mapping
//! grows.

use super::Spa;
use super::indirect::Entries;
use super::open::DIRECTORY;
use super::vdev_objects::top_zap;
use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::metaslab::{MapType, SpaceMap};
use crate::tunables;
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::vdev::{Indirect, Run, Top, VdevKind};
use crate::zap::{Value, Zap};
use event_listener::Event;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla_ondisk::removal::{
    CondensingIndirectPhys, DMU_POOL_CONDENSING_INDIRECT, IndirectMappingEntryPhys,
    VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM, ZPOOL_CONFIG_INDIRECT_OBJECT,
};
use zilla_ondisk::{ByteOrder, Field, Phys};

/// Runs that are looked at for a txg, if none of them is to be waited for.
const BATCH: usize = 16 << 10;
/// How often one that is held looks whether it may go on.
const HELD: Duration = Duration::from_millis(50);

/// What is being shortened, and the task that does it.
#[derive(Default)]
pub(super) struct Condenser {
    /// As the directory has it.
    phys: Mutex<Option<CondensingIndirectPhys>>,
    running: AtomicBool,
    stop: AtomicBool,
    held: AtomicBool,
    /// It cannot go on: what is on disk is damaged. It is tried again at the next import.
    failed: AtomicBool,
    changed: Event,
}

impl Condenser {
    /// What the directory of a pool that is being opened says.
    pub(super) async fn load(directory: &Zap) -> Result<Condenser> {
        let Some(value) = directory.try_get(DMU_POOL_CONDENSING_INDIRECT).await? else {
            return Ok(Condenser::default());
        };
        let words = value.as_u64s().unwrap_or_default();
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let phys = CondensingIndirectPhys::decode(&bytes, ByteOrder::NATIVE);
        let phys = phys.map_err(|e| Error::corrupt(None, "MOS", e.to_string()))?;
        Ok(Condenser { phys: Mutex::new(Some(phys)), ..Condenser::default() })
    }
}

/// The runs that stay, with the bytes of each that are obsolete.
type Kept = Vec<(Run, u32)>;

/// Of the runs of a mapping those of which something is in use.
async fn kept(runs: &[Run], counts: Vec<u32>, obsolete: &SpaceMap) -> Result<Kept> {
    let bad = |what: String| Error::corrupt(None, "mapping of a removed device", what);
    let mut counts: Vec<u64> = counts.into_iter().map(u64::from).collect();
    let note = |kind, _, start: u64, size: u64| {
        if kind != MapType::Alloc {
            return Err(bad(format!("{start:#x} is not obsolete any more")));
        }
        let end = start.saturating_add(size);
        let first = runs.partition_point(|r| r.src + r.len <= start);
        for (r, count) in runs.iter().zip(&mut counts).skip(first).take_while(|(r, _)| r.src < end) {
            *count += end.min(r.src + r.len) - start.max(r.src);
            if *count > r.len {
                return Err(bad(format!("more than {:#x} bytes at {:#x} are obsolete", r.len, r.src)));
            }
        }
        Ok(())
    };
    obsolete.reader().for_each(obsolete.length(), note).await?;
    let mut out = Vec::new();
    for (r, count) in runs.iter().zip(counts) {
        let in_range = u32::try_from(count).ok().filter(|_| count <= r.len);
        let count = in_range.ok_or_else(|| bad(format!("{count} of {} bytes are obsolete", r.len)))?;
        if u64::from(count) < r.len {
            out.push((*r, count));
        }
    }
    Ok(out)
}

impl Spa {
    /// Shortens what there is to be shortened, in a task of its own, unless one is at it. To be
    /// called when the pool is open, and when more has become obsolete.
    pub(super) fn condense_on(self: &Arc<Self>) {
        let c = &self.condenser;
        let idle = self.tree().indirect().next().is_none() || c.failed.load(Ordering::Acquire);
        if idle || self.ctx.readonly || c.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let spa = self.clone();
        self.ctx.env.spawn(async move {
            let done = spa.condense_all().await;
            let c = &spa.condenser;
            // What failed for another reason, as that devices are away, is tried again when the
            // pool is resumed, or when more has become obsolete.
            if let Err(e @ Error::Corrupt(_)) = done {
                c.failed.store(true, Ordering::Release);
                tracing::warn!(pool = %spa.name(), "the mapping of a removed device stays as long as it is: {e}");
            }
            c.running.store(false, Ordering::Release);
            c.changed.notify(usize::MAX);
        });
    }

    /// The pool is closed: nothing more is shortened.
    pub(super) async fn pause_condensing(&self) {
        let c = &self.condenser;
        c.stop.store(true, Ordering::Release);
        c.changed.notify(usize::MAX);
        loop {
            let listener = c.changed.listen();
            if !c.running.load(Ordering::Acquire) {
                return;
            }
            listener.await;
        }
    }

    /// Holds it where it is, or lets it go on.
    pub fn hold_condensing(&self, held: bool) {
        self.condenser.held.store(held, Ordering::Release);
    }

    /// Whether a mapping is being shortened.
    pub fn is_condensing(&self) -> bool {
        self.condenser.phys.lock().is_some()
    }

    fn must_stop_condensing(&self) -> bool {
        self.ctx.txgs.is_stopped() || self.condenser.stop.load(Ordering::Acquire)
    }

    async fn condense_all(self: &Arc<Self>) -> Result<()> {
        while !self.must_stop_condensing() {
            let under_way = *self.condenser.phys.lock();
            let phys = match under_way {
                Some(phys) => phys,
                None => match self.worth_condensing().await? {
                    Some(top) => self.begin_condensing(&top).await?,
                    None => return Ok(()),
                },
            };
            if let Some(mapping) = self.copy_kept(&phys).await? {
                self.complete_condensing(phys, mapping).await?;
            }
        }
        Ok(())
    }

    /// A vdev whose mapping would become shorter by as much as OpenZFS asks for.
    async fn worth_condensing(&self) -> Result<Option<Top>> {
        // A pool that has such maps without the feature is damaged, but for nothing else.
        let counts = self.ctx.features.is_enabled("obsolete_counts");
        if tunables::CONDENSE_INDIRECT_VDEVS_ENABLE.get() == 0 || !counts {
            return Ok(None);
        }
        let mos = self.ctx.mos();
        for top in self.tree().indirect() {
            let Some(obsolete) = obsolete_of(mos, top).await? else { continue };
            let phys = Entries::open(mos, mapping_object(top)?).await?.phys()?;
            let gone = u64::try_from(obsolete.allocated()).unwrap_or(0);
            let size = phys.num_entries.saturating_mul(IndirectMappingEntryPhys::SIZE as u64);
            let percent = u128::from(gone) * 100 / u128::from(phys.bytes_mapped.max(1));
            let much = percent >= tunables::CONDENSE_INDIRECT_OBSOLETE_PCT.get().into()
                && size > tunables::CONDENSE_MIN_MAPPING_BYTES.get();
            if much || obsolete.length() >= tunables::CONDENSE_MAX_OBSOLETE_BYTES.get() {
                return Ok(Some(top.clone()));
            }
        }
        Ok(None)
    }

    async fn begin_condensing(self: &Arc<Self>, top: &Top) -> Result<CondensingIndirectPhys> {
        let (spa, top) = (self.clone(), top.clone());
        let task = move |tx: Tx| -> BoxFuture<'static, Result<CondensingIndirectPhys>> {
            Box::pin(async move {
                let mos = spa.ctx.mos();
                // All that can fail for want of reading comes first.
                let directory = Zap::open(mos, DIRECTORY).await?;
                directory.try_get(DMU_POOL_CONDENSING_INDIRECT).await?;
                let zap = Zap::open(mos, top_zap(&top.vdev).0).await?;
                let map = zap.try_get_u64(VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM).await?.unwrap_or(0);
                let next = Entries::create(mos, &tx, true).await?;
                spa.ctx.features.add(mos, &tx, "obsolete_counts", 1).await?;
                // The object goes on being counted as a feature's until it is freed.
                zap.delete(&tx, VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM).await?;
                let phys = CondensingIndirectPhys {
                    vdev: top.id.into(),
                    prev_obsolete_sm_object: map,
                    next_mapping_object: next.object().0,
                };
                let words: Vec<u64> =
                    phys.encode().as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
                directory.set(&tx, DMU_POOL_CONDENSING_INDIRECT, &Value::u64s(&words)).await?;
                *spa.condenser.phys.lock() = Some(phys);
                Ok(phys)
            })
        };
        self.ctx.sync_task(task).await
    }

    /// The vdev that is being shortened, as the tree has it now.
    fn condensed(&self, phys: &CondensingIndirectPhys) -> Result<(Top, Arc<Indirect>)> {
        let tree = self.tree();
        let top = u32::try_from(phys.vdev).ok().and_then(|id| tree.top(id).ok());
        let top = top.filter(|t| t.vdev.kind == VdevKind::Indirect);
        let found = top.and_then(|t| Some((t.clone(), t.vdev.indirect()?)));
        found.ok_or_else(|| Error::corrupt(None, format!("vdev {}", phys.vdev), "it was not removed"))
    }

    /// Writes the new mapping to its end, and gives it. None: it was told to stop.
    async fn copy_kept(self: &Arc<Self>, phys: &CondensingIndirectPhys) -> Result<Option<Indirect>> {
        let (top, old) = self.condensed(phys)?;
        let mos = self.ctx.mos();
        let from = Entries::open(mos, mapping_object(&top)?).await?;
        let counts = from.read_counts(old.runs().len()).await?;
        let dn = mos.hold_wait(ObjectId(phys.prev_obsolete_sm_object)).await?;
        let obsolete = SpaceMap::open(dn, 0, top.vdev.asize(), 0)?;
        let kept = Arc::new(kept(old.runs(), counts, &obsolete).await?);
        let next = Arc::new(Entries::open(mos, ObjectId(phys.next_mapping_object)).await?);
        // What is gone on with is not believed before it was read.
        let bad = || {
            let what = "the shorter mapping of it that was begun is not what it should be";
            Error::corrupt(None, format!("vdev {}", top.id), what)
        };
        if next.object() == from.object() {
            return Err(bad());
        }
        let (done, mapped) = (next.read(&top, &self.tree()).await?, next.phys()?.bytes_mapped);
        let mut at = done.len();
        let as_kept = kept.get(..at).is_some_and(|k| k.iter().map(|(r, _)| r).eq(&done));
        if !as_kept || mapped != done.iter().map(|r| r.len).sum::<u64>() {
            return Err(bad());
        }
        while at < kept.len() {
            while self.condenser.held.load(Ordering::Acquire) && !self.must_stop_condensing() {
                self.ctx.env.sleep(HELD).await;
            }
            let each = Duration::from_millis(tunables::CONDENSE_INDIRECT_COMMIT_ENTRY_DELAY_MS.get());
            let end = kept.len().min(at + if each.is_zero() { BATCH } else { 1 });
            if self.must_stop_condensing() {
                return Ok(None);
            }
            let (next, all) = (next.clone(), kept.clone());
            let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
                Box::pin(async move { next.append(&tx, all.get(at..end).unwrap_or_default()).map(drop) })
            };
            self.ctx.sync_task(task).await?;
            let told = self.condenser.changed.listen();
            if !self.must_stop_condensing() {
                let _ = self.ctx.env.timeout(each, told).await;
            }
            at = end;
        }
        Ok(Some(old.with_runs(kept.iter().map(|(r, _)| *r).collect())))
    }

    async fn complete_condensing(
        self: &Arc<Self>,
        phys: CondensingIndirectPhys,
        mapping: Indirect,
    ) -> Result<()> {
        // Whoever makes another tree takes the configuration of this one with it.
        let _changing = self.changing.lock().await;
        let (spa, mapping) = (self.clone(), Arc::new(mapping));
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let (top, old) = spa.condensed(&phys)?;
                let (mos, features) = (spa.ctx.mos(), &spa.ctx.features);
                // All that can fail for want of reading comes first.
                let from = Entries::open(mos, mapping_object(&top)?).await?;
                let directory = Zap::open(mos, DIRECTORY).await?;
                directory.try_get(DMU_POOL_CONDENSING_INDIRECT).await?;
                let map = ObjectId(phys.prev_obsolete_sm_object);
                mos.hold_wait(map).await?;
                let gone = if from.has_counts() { -2 } else { -1 };
                features.add(mos, &tx, "obsolete_counts", gone).await?;
                from.free(mos, &tx);
                spa.metaslabs.free_map(mos, &tx, map).await?;
                directory.delete(&tx, DMU_POOL_CONDENSING_INDIRECT).await?;
                top.vdev.set_config_u64(ZPOOL_CONFIG_INDIRECT_OBJECT, phys.next_mapping_object);
                top.vdev.set_indirect(Some(mapping.clone()));
                spa.metaslabs.set_mapping(top.id, mapping.clone());
                spa.config_dirty.store(true, Ordering::Release);
                *spa.condenser.phys.lock() = None;
                let (before, after) = (old.runs().len(), mapping.runs().len());
                tracing::info!(pool = %spa.name(), vdev = top.id, before, after, "the mapping was shortened");
                Ok(())
            })
        };
        self.ctx.sync_task(task).await
    }
}

fn mapping_object(top: &Top) -> Result<ObjectId> {
    let id = top.vdev.config_u64(ZPOOL_CONFIG_INDIRECT_OBJECT).filter(|id| *id != 0);
    id.map(ObjectId).ok_or_else(|| Error::corrupt(None, format!("vdev {}", top.id), "it has no mapping"))
}

/// The map of what became obsolete since the mapping was made or shortened.
async fn obsolete_of(mos: &Arc<Objset>, top: &Top) -> Result<Option<SpaceMap>> {
    let zap = top_zap(&top.vdev);
    if zap == ObjectId(0) {
        return Ok(None);
    }
    let zap = Zap::open(mos, zap.0).await?;
    let Some(id) = zap.try_get_u64(VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM).await? else { return Ok(None) };
    let dn = mos.hold_wait(ObjectId(id)).await?;
    SpaceMap::open(dn, 0, top.vdev.asize(), 0).map(Some)
}
