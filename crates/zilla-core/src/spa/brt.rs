//! The block reference table: how many references a cloned block has beside its first one.
//!
//! OpenZFS lets files share blocks (`cp --reflink`, `copy_file_range`). A block without an entry
//! has one reference; whoever frees a block that has one takes a reference off, and only the last
//! one gives the space back. On disk: [`zilla_ondisk::brt`].
//!
//! ```text
//! zpl (clone_range) -> dbuf layer of a txg -> its sync: pointer in the tree --> [reference] -> [release] of what the txg freed
//! ```
//!
//! **Invariant.** An entry says how many blocks in trees and in lists of what is to be freed point
//! to its block, less one. A reference is added by the sync that writes its pointer, before
//! anything of that txg is freed; so a clone that is overwritten before is none. Where the entry
//! cannot be read a reference cannot be added: that sync writes a copy instead of the pointer
//! ([`References`]).
//!
//! **Crash.** The table is part of the MOS and changes in the syncing context only, in the txg
//! whose frees it stands for.

use super::PoolCtx;
use crate::dmu::{Dnode, NewObject, resident};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::vdev::{Vdev, VdevTree};
use crate::zap::{CreateOpts, Value, Zap};
use crate::zio::References;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zilla_ondisk::brt::{BRT_NATIVE_BYTEORDER, BrtVdevPhys};
use zilla_ondisk::dsl::BRT_OBJECT_VDEV_PREFIX;
use zilla_ondisk::object_type::{DMU_OTN_UINT64_METADATA, DMU_OTN_ZAP_METADATA};
use zilla_ondisk::zap::{ZAP_FLAG_HASH64, ZAP_FLAG_UINT64_KEY};
use zilla_ondisk::{BlkPtr, ByteOrder, Field, Phys};

const FEATURE: &str = "block_cloning";
const COUNT: u64 = size_of::<u16>() as u64;
/// OpenZFS's ranges are of 16M. Much smaller ones would make the counts larger than a pool's
/// memory.
const MIN_RANGESIZE: u64 = 1 << 16;
/// Bytes of a vdev that share a count. Source: BRT_RANGESIZE in sys/brt_impl.h.
const BRT_RANGESIZE: u64 = 16 << 20;
/// Counts that are in memory at most, of those that are read: enough for clones in all of 4 PiB.
const MOST_COUNTS: u64 = if cfg!(test) { 1 << 20 } else { 1 << 28 };
/// Source: BRT_BLOCKSIZE of brt.c.
const BRT_BLOCKSIZE: u32 = 32 << 10;
/// Counts that are in memory together: a block of them.
const TOGETHER: u64 = BRT_BLOCKSIZE as u64 / COUNT;
/// log2 of the entries' blocks. Source: brt_zap_default_bs and brt_zap_default_ibs of brt.c.
const ENTRIES_SHIFT: u8 = 12;

/// The table of one top-level vdev.
struct Table {
    /// The counts, and in the bonus all else.
    object: Arc<Dnode>,
    entries: Zap,
    state: Mutex<State>,
}

struct State {
    phys: BrtVdevPhys,
    /// Entries of each range. Most blocks that are freed are in a range that has none, and are not
    /// looked up.
    counts: Counts,
}

/// The counts of a vdev's ranges. A vdev may be said to be of any size: only those are in memory
/// that have others beside them which are not 0.
#[derive(Default)]
struct Counts(BTreeMap<u64, Box<[u16]>>);

impl Counts {
    fn get(&self, range: u64) -> u16 {
        let block = self.0.get(&(range / TOGETHER));
        block.and_then(|b| b.get((range % TOGETHER) as usize)).copied().unwrap_or(0)
    }

    fn set(&mut self, range: u64, count: u16) {
        if count == 0 && !self.0.contains_key(&(range / TOGETHER)) {
            return;
        }
        let block = self.0.entry(range / TOGETHER).or_insert_with(|| vec![0; TOGETHER as usize].into());
        if let Some(place) = block.get_mut((range % TOGETHER) as usize) {
            *place = count;
        }
    }
}

/// A pool's tables, by vdev.
#[derive(Default)]
pub(crate) struct Brt {
    tables: Mutex<BTreeMap<u32, Arc<Table>>>,
}

impl Brt {
    /// Reads all but the entries.
    pub(super) async fn load(ctx: &PoolCtx, directory: &Zap, tree: &VdevTree) -> Result<Brt> {
        let brt = Brt::default();
        if !ctx.features.is_enabled(FEATURE) {
            return Ok(brt);
        }
        for entry in directory.entries().await? {
            let name = entry.name_str();
            let Some(vdev) = name.strip_prefix(BRT_OBJECT_VDEV_PREFIX) else { continue };
            let bad = |what: &str| Error::corrupt(None, format!("the pool directory's {name}"), what);
            let vdev = vdev.parse().map_err(|_| bad("not a vdev's number"))?;
            let object = entry.value.as_u64().ok_or_else(|| bad("not an object's number"))?;
            let object = ctx.mos().hold_wait(ObjectId(object)).await?;
            let phys =
                BrtVdevPhys::decode(&object.bonus(), ByteOrder::NATIVE).map_err(|e| bad(&e.to_string()))?;
            if phys.byteorder != BRT_NATIVE_BYTEORDER && !ctx.readonly {
                let what = "its clones were counted on a machine of the other byte order; import it with -o readonly=on";
                return Err(Error::os(Errno::NotSup, what));
            }
            let asize = tree.top(vdev).map_or(0, |t| t.vdev.asize());
            if phys.rangesize < MIN_RANGESIZE || phys.size > asize / phys.rangesize + 1 {
                return Err(bad("more counts than the vdev has room for"));
            }
            let counts = read_counts(&object, phys.size, &name).await?;
            let entries = Zap::open(ctx.mos(), phys.mos_entries).await?;
            let table = Table { object, entries, state: Mutex::new(State { phys, counts }) };
            brt.tables.lock().insert(vdev, Arc::new(table));
        }
        Ok(brt)
    }

    /// Adds a reference to each block.
    pub(super) async fn reference(
        &self,
        ctx: &PoolCtx,
        tree: &VdevTree,
        tx: &Tx,
        bps: &[BlkPtr],
    ) -> Result<()> {
        let mut changed = BTreeSet::new();
        // OpenZFS counts whole metaslabs, and takes a longer table for damaged.
        let whole = |v: &Vdev| v.asize() >> v.metaslab_shift() << v.metaslab_shift();
        for bp in bps {
            let vdev = bp.dva(0).vdev;
            let asize = tree.top(vdev).map_or(0, |t| whole(&t.vdev));
            // A pointer of a damaged pool may lead anywhere. What is nowhere is not given back
            // either, so nobody need count it.
            if bp.dva(0).offset >= asize {
                tracing::error!(block = %bp, "a cloned block is on none of the pool's vdevs");
                continue;
            }
            let found = self.tables.lock().get(&vdev).cloned();
            let table = match found {
                Some(table) => table,
                None => self.make(ctx, tx, vdev, asize.div_ceil(BRT_RANGESIZE)).await?,
            };
            table.reference(tx, bp, tree.dsize(bp)).await?;
            changed.insert(vdev);
        }
        for vdev in changed {
            self.update(ctx, tx, vdev).await?;
        }
        Ok(())
    }

    /// The table of a vdev that has had no clones.
    async fn make(&self, ctx: &PoolCtx, tx: &Tx, vdev: u32, ranges: u64) -> Result<Arc<Table>> {
        let mos = ctx.mos();
        let spec = NewObject::new(DMU_OTN_UINT64_METADATA, BRT_BLOCKSIZE)
            .bonus(DMU_OTN_UINT64_METADATA, BrtVdevPhys::SIZE);
        let object = resident(|| mos.alloc(tx, spec)).await?;
        let opts = CreateOpts {
            flags: ZAP_FLAG_HASH64 | ZAP_FLAG_UINT64_KEY,
            leaf_shift: ENTRIES_SHIFT.into(),
            indirect_shift: ENTRIES_SHIFT,
            ..CreateOpts::default()
        };
        let entries = Zap::make(mos, tx, DMU_OTN_ZAP_METADATA, &opts).await?;
        let phys = BrtVdevPhys {
            mos_entries: entries.id(),
            byteorder: BRT_NATIVE_BYTEORDER,
            rangesize: BRT_RANGESIZE,
            ..BrtVdevPhys::default()
        };
        let state = Mutex::new(State { phys, counts: Counts::default() });
        let table = Arc::new(Table { object, entries, state });
        table.reach(tx, ranges);
        let directory = Zap::open(mos, super::open::DIRECTORY).await?;
        directory.insert_u64(tx, &format!("{BRT_OBJECT_VDEV_PREFIX}{vdev}"), table.object.id().0).await?;
        ctx.features.add(mos, tx, FEATURE, 1).await?;
        self.tables.lock().insert(vdev, table.clone());
        Ok(table)
    }

    /// Whether any block is cloned.
    pub(super) fn is_used(&self) -> bool {
        !self.tables.lock().is_empty()
    }

    /// Blocks of all tables' entries.
    pub(super) fn blocks(&self) -> u64 {
        let of = |t: &Arc<Table>| t.entries.dnode().maxblkid().saturating_add(1);
        self.tables.lock().values().map(of).fold(0, u64::saturating_add)
    }

    /// Takes a reference off each block; those that had no other are to be freed.
    pub(super) async fn release<'a>(
        &self,
        ctx: &PoolCtx,
        tree: &VdevTree,
        tx: &Tx,
        bps: &'a [BlkPtr],
    ) -> Result<Cow<'a, [BlkPtr]>> {
        if self.tables.lock().is_empty() {
            return Ok(Cow::Borrowed(bps));
        }
        let (mut unshared, mut changed) = (Vec::with_capacity(bps.len()), BTreeSet::new());
        for bp in bps {
            let vdev = bp.dva(0).vdev;
            let table = self.tables.lock().get(&vdev).cloned().filter(|_| !bp.is_metadata());
            match table {
                Some(table) if table.release(tx, bp, tree.dsize(bp)).await? => drop(changed.insert(vdev)),
                _ => unshared.push(*bp),
            }
        }
        for vdev in changed {
            self.update(ctx, tx, vdev).await?;
        }
        Ok(Cow::Owned(unshared))
    }

    /// Writes a table's bonus, or takes a table away that has no entries any more.
    async fn update(&self, ctx: &PoolCtx, tx: &Tx, vdev: u32) -> Result<()> {
        let Some(table) = self.tables.lock().get(&vdev).cloned() else { return Ok(()) };
        let phys = table.state.lock().phys;
        if phys.totalcount > 0 {
            table.object.set_bonus(tx, &phys.encode());
            return Ok(());
        }
        let mos = ctx.mos();
        let directory = Zap::open(mos, super::open::DIRECTORY).await?;
        let name = format!("{BRT_OBJECT_VDEV_PREFIX}{vdev}");
        resident(|| directory.remove(tx, name.as_bytes())).await?;
        mos.free(tx, table.entries.dnode());
        mos.free(tx, &table.object);
        self.tables.lock().remove(&vdev);
        ctx.features.add(mos, tx, FEATURE, -1).await
    }

    /// How many references a block has beside the first one.
    pub(crate) async fn more_references(&self, bp: &BlkPtr) -> Result<u64> {
        let table = self.tables.lock().get(&bp.dva(0).vdev).cloned().filter(|_| !bp.is_metadata());
        match table {
            Some(table) => table.lookup(bp).await,
            None => Ok(0),
        }
    }

    /// Space of cloned blocks, and what their clones would take beside it.
    pub fn used_and_saved(&self) -> (u64, u64) {
        self.tables.lock().values().fold((0, 0), |(used, saved), t| {
            let phys = t.state.lock().phys;
            (phys.usedspace.saturating_add(used), phys.savedspace.saturating_add(saved))
        })
    }
}

impl References for Brt {
    fn check<'a>(&'a self, bp: &'a BlkPtr) -> BoxFuture<'a, Result<()>> {
        let table = self.tables.lock().get(&bp.dva(0).vdev).cloned();
        Box::pin(async move {
            match table {
                Some(table) => table.entry(bp.dva(0).offset).await.map(drop),
                None => Ok(()),
            }
        })
    }
}

/// Reads a table's counts, as far as there are any.
async fn read_counts(object: &Arc<Dnode>, size: u64, name: &str) -> Result<Counts> {
    let (mut counts, mut read) = (Counts::default(), 0u64);
    let blksz = u64::from(object.blksz()).max(COUNT);
    let mut bytes = vec![0; blksz as usize];
    let mut from = 0;
    while let Some(blkid) = resident(|| object.next_block(from, false)).await? {
        let first = blkid.saturating_mul(blksz / COUNT);
        if first >= size {
            break;
        }
        // OpenZFS's blocks are as long as what is in memory together. Of others each may be alone.
        read = read.saturating_add((blksz / COUNT).max(TOGETHER));
        if read > MOST_COUNTS {
            let what = format!(
                "the pool directory's {name} has too many of {size} counts, for which there is no memory"
            );
            return Err(Error::os(Errno::NoMem, what));
        }
        object.read_wait(blkid * blksz, &mut bytes).await?;
        let all = bytes.as_chunks().0.iter().map(|c| u16::from_ne_bytes(*c));
        (first..size).zip(all).filter(|(_, n)| *n != 0).for_each(|(range, n)| counts.set(range, n));
        from = blkid + 1;
    }
    Ok(counts)
}

impl Table {
    async fn lookup(&self, bp: &BlkPtr) -> Result<u64> {
        let offset = bp.dva(0).offset;
        let none = {
            let st = self.state.lock();
            st.counts.get(offset / st.phys.rangesize) == 0
        };
        if none { Ok(0) } else { self.entry(offset).await }
    }

    /// What the entry of a block says; also of one that must have none.
    async fn entry(&self, offset: u64) -> Result<u64> {
        let other_order = self.state.lock().phys.byteorder != BRT_NATIVE_BYTEORDER;
        let Some(value) = resident(|| self.entries.lookup_key(&[offset])).await? else { return Ok(0) };
        let bytes: Option<[u8; 8]> = value.as_bytes().and_then(|b| b.try_into().ok());
        let Some(bytes) = bytes else {
            let what = format!("the entry of offset {offset:#x} is not a count");
            return Err(Error::corrupt(None, "block reference table", what));
        };
        let count = u64::from_ne_bytes(bytes);
        Ok(if other_order { count.swap_bytes() } else { count })
    }

    /// Makes the counts reach so many ranges: the vdev may have grown.
    fn reach(&self, tx: &Tx, ranges: u64) {
        let mut st = self.state.lock();
        if ranges > st.phys.size {
            st.phys.size = ranges;
            // All before it, which is not written, reads as zeroes too.
            self.object.write(tx, (ranges - 1) * COUNT, &0u16.to_ne_bytes());
        }
    }

    /// Adds a reference to a block, of which a copy takes `dsize`.
    async fn reference(&self, tx: &Tx, bp: &BlkPtr, dsize: u64) -> Result<()> {
        let offset = bp.dva(0).offset;
        let count = self.lookup(bp).await?;
        let value = Value::bytes(&count.saturating_add(1).to_ne_bytes());
        resident(|| self.entries.update_key(tx, &[offset], &value)).await?;
        let range = offset / self.state.lock().phys.rangesize;
        self.reach(tx, range + 1);
        let mut st = self.state.lock();
        st.phys.savedspace = st.phys.savedspace.saturating_add(dsize);
        if count == 0 {
            st.phys.usedspace = st.phys.usedspace.saturating_add(dsize);
            st.phys.totalcount = st.phys.totalcount.saturating_add(1);
            let count = st.counts.get(range).saturating_add(1);
            st.counts.set(range, count);
            self.object.write(tx, range * COUNT, &count.to_ne_bytes());
        }
        Ok(())
    }

    /// Takes a reference off a block, of which a copy takes `dsize`; false if it has no other. If
    /// that cannot be read it may have others: the block stays, and nothing is lost but space.
    async fn release(&self, tx: &Tx, bp: &BlkPtr, dsize: u64) -> Result<bool> {
        let count = match self.lookup(bp).await {
            Err(Error::Corrupt(c)) => {
                tracing::error!(block = %bp, "a block stays, as its references cannot be read: {c}");
                return Ok(true);
            }
            count => count?,
        };
        let Some(left) = count.checked_sub(1) else { return Ok(false) };
        let offset = bp.dva(0).offset;
        if left > 0 {
            let value = Value::bytes(&left.to_ne_bytes());
            resident(|| self.entries.update_key(tx, &[offset], &value)).await?;
        } else {
            resident(|| self.entries.remove_key(tx, &[offset])).await?;
        }
        let mut st = self.state.lock();
        st.phys.savedspace = st.phys.savedspace.saturating_sub(dsize);
        if left == 0 {
            st.phys.usedspace = st.phys.usedspace.saturating_sub(dsize);
            st.phys.totalcount = st.phys.totalcount.saturating_sub(1);
            let range = offset / st.phys.rangesize;
            let count = st.counts.get(range).saturating_sub(1);
            st.counts.set(range, count);
            self.object.write(tx, range * COUNT, &count.to_ne_bytes());
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
