//! The two logs of a table: entries that changed, until they are put into the ZAPs in order.
//!
//! Records are appended to the active log, a txg's in whole blocks of their own. When that is old
//! or large enough it becomes the flushing one, whose entries go to the ZAPs in the order of their
//! keys, some in each txg; how far they are is its checkpoint. A log that is emptied is cut off.
//!
//! **Invariant.** What is in memory is what reading the logs again would give. But records of keys
//! that are gone, which this program appended since the import, are on disk only.

use super::corrupt;
use super::report::LogReport;
use super::sync::stat_of;
use super::table::Key;
use crate::dmu::{Dnode, NewObject, resident};
use crate::error::{Errno, Error, Result};
use crate::pool::PoolCtx;
use crate::tunables;
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::vdev::VdevTree;
use crate::zap::Zap;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_ondisk::ddt::{
    DDL_FLAG_CHECKPOINT, DDL_FLAG_FLUSHING, DdtHistogram, DdtLogPhys, DdtLogged, log_name, log_record_size,
    make_log_block, read_log_block,
};
use zilla_ondisk::object_type::DMU_OTN_UINT64_METADATA;
use zilla_ondisk::{ByteOrder, Field, Phys};

/// Source: SPA_OLD_MAXBLOCKSIZE, as ddt_log.c makes its objects.
const LOG_BLOCK: u32 = 128 << 10;
/// A larger block than this cannot be a log's.
const MAX_LOG_BLOCK: u32 = 16 << 20;
/// A log is not longer than this: OpenZFS lets its records take one hundredth of the machine's
/// memory.
const MAX_LENGTH: u64 = 16 << 30;
/// The entries of the logs may take one part in so many of this process's memory when they are
/// read.
const MEMORY_SHARE: u64 = 4;
/// Entries that may be read where nothing is known of the memory: some 250 MB.
const ENTRIES_ANYWAY: u64 = 1_000_000;
/// The active log is flushed when it has so many entries: some 25 MB in memory.
const MAX_ENTRIES: usize = 100_000;
/// At least so many entries go to the ZAPs in a txg. Source: zfs_dedup_log_flush_entries_min of
/// ddt.c.
const MIN_FLUSH: usize = 1000;

/// One of the two.
#[derive(Default)]
pub(super) struct Log {
    object: Option<Arc<Dnode>>,
    length: u64,
    first_txg: u64,
    checkpoint: Option<Key>,
    entries: BTreeMap<Key, DdtLogged>,
}

#[derive(Default)]
pub(super) struct Logs {
    active: Log,
    flushing: Log,
    /// Entries of either that no ZAP has yet.
    fresh: u64,
    /// Sums of what is in either.
    pub histogram: DdtHistogram,
}

/// Whether no ZAP has the entry.
fn is_fresh(logged: &DdtLogged) -> bool {
    logged.class.is_none() && logged.entry.refcnt() > 0
}

/// How many entries of logs there is memory for.
async fn most_entries(ctx: &PoolCtx) -> u64 {
    // A tree's nodes are full to two thirds or so.
    let bytes = size_of::<(Key, DdtLogged)>() as u64 * 3 / 2;
    let memory = crate::memory::read(&*ctx.env.opener).await;
    memory.map_or(ENTRIES_ANYWAY, |m| (m.total / MEMORY_SHARE / bytes).max(ENTRIES_ANYWAY))
}

impl Log {
    /// Reads one that has no more entries than `most`.
    async fn load(ctx: &PoolCtx, id: u64, flat: bool, most: u64) -> Result<(Log, bool)> {
        let object = ctx.mos().hold_wait(ObjectId(id)).await?;
        let phys = DdtLogPhys::decode(&object.bonus(), ByteOrder::NATIVE);
        let phys = phys.map_err(|e| corrupt(e.to_string()))?;
        let blksz = object.blksz();
        let there = object.maxblkid().saturating_add(1).saturating_mul(blksz.into());
        let whole = phys.length.is_multiple_of(blksz.into());
        if !phys.is_known() || blksz > MAX_LOG_BLOCK || !whole || phys.length > there.min(MAX_LENGTH) {
            return Err(corrupt(format!("object {id} is not a log")));
        }
        let checkpoint = (phys.flags() & DDL_FLAG_CHECKPOINT != 0).then_some(phys.checkpoint);
        let mut entries = BTreeMap::new();
        let mut block = vec![0; blksz as usize];
        for at in (0..phys.length).step_by(blksz as usize) {
            object.read_wait(at, &mut block).await?;
            for (key, logged) in read_log_block(&block).map_err(|e| corrupt(e.to_string()))? {
                if logged.entry.is_flat() != flat {
                    return Err(corrupt("a log's entry is of the other kind"));
                }
                if checkpoint.is_none_or(|done| key > done) {
                    entries.insert(key, logged);
                }
            }
            if entries.len() as u64 > most {
                let what = format!(
                    "the log of the pool's deduplication table has more than {most} entries: to read them \
                     takes more memory than there is"
                );
                return Err(Error::os(Errno::NoMem, what));
            }
        }
        let DdtLogPhys { length, first_txg, .. } = phys;
        let flushing = phys.flags() & DDL_FLAG_FLUSHING != 0;
        Ok((Log { object: Some(object), length, first_txg, checkpoint, entries }, flushing))
    }

    fn write_header(&self, tx: &Tx, flushing: bool) {
        let Some(object) = &self.object else { return };
        let flags = match self.checkpoint {
            _ if !flushing => 0,
            None => DDL_FLAG_FLUSHING,
            Some(_) => DDL_FLAG_FLUSHING | DDL_FLAG_CHECKPOINT,
        };
        let phys = DdtLogPhys::new(flags, self.length, self.first_txg, self.checkpoint.unwrap_or_default());
        object.set_bonus(tx, &phys.encode());
    }

    async fn make(&mut self, ctx: &PoolCtx, tx: &Tx, directory: &Zap, name: &str) -> Result<()> {
        let spec = NewObject::new(DMU_OTN_UINT64_METADATA, LOG_BLOCK)
            .bonus(DMU_OTN_UINT64_METADATA, DdtLogPhys::SIZE);
        let object = resident(|| ctx.mos().alloc(tx, spec)).await?;
        directory.insert_u64(tx, name, object.id().0).await?;
        *self = Log { object: Some(object), first_txg: tx.txg().0, ..Log::default() };
        Ok(())
    }
}

impl Logs {
    pub async fn load(
        ctx: &PoolCtx,
        directory: &Zap,
        kind: &str,
        flat: bool,
        tree: &VdevTree,
    ) -> Result<Logs> {
        let mut logs = Logs::default();
        let most = most_entries(ctx).await;
        for n in 0..2 {
            let Some(id) = directory.try_get_u64(&log_name(kind, n)).await? else { continue };
            let (log, flushing) = Log::load(ctx, id, flat, most).await?;
            let place = if flushing { &mut logs.flushing } else { &mut logs.active };
            if place.object.is_some() {
                return Err(corrupt("both logs have one part"));
            }
            *place = log;
        }
        if logs.active.object.is_some() != logs.flushing.object.is_some() {
            return Err(corrupt("one log is without the other"));
        }
        // A key that is in both was changed while its older entry was to be flushed.
        for key in logs.active.entries.keys() {
            logs.flushing.entries.remove(key);
        }
        for (key, logged) in logs.active.entries.iter().chain(&logs.flushing.entries) {
            logs.histogram.count(&stat_of(tree, key, &logged.entry), true);
            logs.fresh += u64::from(is_fresh(logged));
        }
        Ok(logs)
    }

    pub fn find(&self, key: &Key) -> Option<&DdtLogged> {
        self.active.entries.get(key).or_else(|| self.flushing.entries.get(key))
    }

    fn log_of(&self, object: u64) -> Option<&Log> {
        let is = |log: &&Log| log.object.as_ref().is_some_and(|o| o.id().0 == object);
        [&self.active, &self.flushing].into_iter().find(is)
    }

    /// What there is to say of the log that is this object.
    pub fn report(&self, object: u64) -> Option<LogReport> {
        let log = self.log_of(object)?;
        Some(LogReport {
            object,
            flushing: std::ptr::eq(log, &self.flushing),
            checkpoint: log.checkpoint,
            length: log.length,
            first_txg: log.first_txg,
            entries: log.entries.len() as u64,
        })
    }

    pub fn entries_of(&self, object: u64) -> impl Iterator<Item = (&Key, &DdtLogged)> {
        self.log_of(object).into_iter().flat_map(|log| &log.entries)
    }

    pub fn is_empty(&self) -> bool {
        self.active.entries.is_empty() && self.flushing.entries.is_empty()
    }

    /// Entries, and the bytes that they take in memory.
    pub fn size(&self) -> (u64, u64) {
        let entries = (self.active.entries.len() + self.flushing.entries.len()) as u64;
        (entries, entries * size_of::<(Key, DdtLogged)>() as u64)
    }

    pub fn used(&self) -> u64 {
        let objects = [&self.active, &self.flushing].into_iter().filter_map(|l| l.object.as_ref());
        objects.map(|o| o.used()).fold(0, u64::saturating_add)
    }

    /// A key's last record stops to count.
    pub fn forget(&mut self, key: &Key) {
        for log in [&mut self.active, &mut self.flushing] {
            if log.entries.remove(key).is_some_and(|logged| is_fresh(&logged)) {
                self.fresh -= 1;
            }
        }
    }

    /// Entries that the ZAPs are going to grow by.
    pub fn fresh(&self) -> u64 {
        self.fresh
    }

    pub fn is_made(&self) -> bool {
        self.active.object.is_some()
    }

    pub async fn make(&mut self, ctx: &PoolCtx, tx: &Tx, directory: &Zap, kind: &str) -> Result<()> {
        if !self.is_made() {
            self.active.make(ctx, tx, directory, &log_name(kind, 0)).await?;
            self.flushing.make(ctx, tx, directory, &log_name(kind, 1)).await?;
            self.active.write_header(tx, false);
            self.flushing.write_header(tx, true);
        }
        Ok(())
    }

    /// Writes records behind those of the txgs before. The entries of keys that are gone are not
    /// kept.
    pub fn append(&mut self, tx: &Tx, records: Vec<(Key, DdtLogged)>) {
        let (Some(object), Some((_, first))) = (self.active.object.clone(), records.first()) else { return };
        let blksz = object.blksz();
        let most = (blksz as usize / log_record_size(first.entry.is_flat())).max(1);
        for part in records.chunks(most) {
            let block = make_log_block(blksz as usize, part.iter().map(|(k, l)| (k, l)));
            object.write_block(tx, self.active.length / u64::from(blksz), Bytes::from(block));
            self.active.length += u64::from(blksz);
        }
        self.active.write_header(tx, false);
        for (key, logged) in records {
            self.forget(&key);
            if logged.entry.refcnt() > 0 {
                self.fresh += u64::from(is_fresh(&logged));
                self.active.entries.insert(key, logged);
            }
        }
    }

    fn is_due(&self, tx: &Tx) -> bool {
        let (active, txg) = (&self.active, tx.txg().0);
        let due = txg >= active.first_txg.saturating_add(tunables::DEDUP_LOG_TXG_MAX.get())
            || active.entries.len() >= MAX_ENTRIES;
        due && active.length > 0
    }

    /// Whether entries are to go to the ZAPs.
    pub fn has_work(&self, tx: &Tx) -> bool {
        !self.flushing.entries.is_empty() || self.flushing.length > 0 || self.is_due(tx)
    }

    /// How many entries' turn it is to go to the ZAPs. So the logs change places about every eighth
    /// txg, whatever comes.
    pub fn due(&self) -> usize {
        MIN_FLUSH.max(self.active.entries.len() / 4).min(self.flushing.entries.len())
    }

    /// So many entries that are to go to the ZAPs, in order.
    pub fn take_some(&mut self, n: usize) -> Vec<(Key, DdtLogged)> {
        let some: Vec<_> = std::iter::from_fn(|| self.flushing.entries.pop_first()).take(n).collect();
        self.fresh -= some.iter().filter(|(_, logged)| is_fresh(logged)).count() as u64;
        some
    }

    /// After that: notes how far it is, and begins with the active log when it is time.
    pub fn flushed(&mut self, tx: &Tx, last: Option<Key>) {
        if let Some(last) = last {
            self.flushing.checkpoint = Some(last);
            self.flushing.write_header(tx, true);
        }
        if !self.flushing.entries.is_empty() {
            return;
        }
        if self.flushing.length > 0 {
            if let Some(object) = &self.flushing.object {
                object.free_range(tx, 0, u64::MAX);
            }
            (self.flushing.length, self.flushing.checkpoint) = (0, None);
            self.flushing.write_header(tx, true);
            // Its blocks are gone before others take their place.
            return;
        }
        if self.is_due(tx) {
            std::mem::swap(&mut self.active, &mut self.flushing);
            self.active.first_txg = tx.txg().0;
            self.active.write_header(tx, false);
            self.flushing.write_header(tx, true);
        }
    }

    /// The table has no entries any more.
    pub async fn destroy(&mut self, ctx: &PoolCtx, tx: &Tx, directory: &Zap, kind: &str) -> Result<()> {
        for n in 0..2 {
            directory.delete_if_there(tx, &log_name(kind, n)).await?;
        }
        for log in [&self.active, &self.flushing] {
            if let Some(object) = &log.object {
                ctx.mos().free(tx, object);
            }
        }
        *self = Logs::default();
        Ok(())
    }
}
