//! Deduplication: blocks that are the same are kept once, and counted.
//!
//! **Floor 10.** It stands on the pool and its ZAPs; block writes ask it through [`DedupTables`].
//!
//! For each kind of checksum there is a table, from a block's checksum and sizes to where its
//! copies are and how many pointers lead there. Pointers to such blocks have a bit (D) set. On disk
//! ([`zilla_ondisk::ddt`]):
//!
//! ```text
//!   MOS directory -> DDT-statistics                         sums of each table, by references
//!                 -> DDT-sha256-zap-{duplicate,unique,ditto} older pools
//!                 -> DDT-sha256 -> version, flags            fast_dedup
//!                               -> DDT-sha256-zap-{duplicate,unique}
//!                               -> DDT-log-sha256-{0,1}
//! ```
//!
//! In a txg:
//!
//! ```text
//!   block writes: load -> claim -> placed \                      / append to the log   -- later, sorted --> tables
//!                                          live entries -> sync {
//!   frees:        load -> release        /                      \ older pools: straight to the tables
//! ```
//!
//! **Invariants.** An entry counts the pointers to its block in trees and in lists of what is to be
//! freed. A block whose count comes to nothing is freed in that txg's sync. What a live entry says
//! replaces the logs, what the active log says the flushing one, and that the tables. An entry is
//! in one table only, by its count (class). A block with the bit set that no entry is about
//! (OpenZFS may prune) has one pointer.
//!
//! **Crash.** Tables, logs and sums are objects of the MOS, changed in the syncing context only, in
//! the txg of the pointers that they count.
//!
//! **Damage.** An entry that cannot be read is not shared any more, and its block not given back:
//! nothing is lost but space.
//!
//! **Lock order.** A table's state, then a dnode of the MOS. Nothing waits under it.
//!
//! **Deliberately absent.** Ditto copies (OpenZFS makes none any more; those that are there are
//! freed). Gang blocks are not shared, and those that the intent log places are not written ahead.

mod live;
mod log;
mod prune;
mod report;
mod sync;
mod table;

pub use prune::Prune;
pub use report::{Known, LogReport, StoredReport, TableReport};
pub use table::DedupStats;

use crate::error::{Error, Result};
use crate::pool::PoolCtx;
use crate::zap::Zap;
use crate::zio::{Claim, DedupTables, Leave, Zio};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use live::Live;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use table::{Key, Table};
use zilla_codec::checksum::Checksum;
use zilla_ondisk::blkptr::{BlkPtr, Dva};
use zilla_ondisk::ddt::DdtKeyPhys;
use zilla_ondisk::dsl::DMU_POOL_DDT_STATS;

/// Checksums that there can be tables of. Source: `DDT_CHECKSUM_VALID` of ddt.c.
const KINDS: [Checksum; 5] =
    [Checksum::Sha256, Checksum::Sha512, Checksum::Skein, Checksum::Edonr, Checksum::Blake3];
/// Entries being looked up at a time.
const LOOKUPS: usize = 64;

/// `dedup_table_quota=auto`: what vdevs have that are for tables, if there are any.
pub const AUTO: u64 = u64::MAX;

/// How much of those vdevs that is. Source: ddt_special_over_quota of ddt.c.
const AUTO_PERCENT: u64 = 85;

/// A pool's tables.
pub struct Ddt {
    ctx: Arc<PoolCtx>,
    zio: Zio,
    tables: Vec<Table>,
    /// The object with the sums; 0: there is none.
    statistics: AtomicU64,
    /// Bytes that they may take (`dedup_table_quota`); 0: as many as there are; [`AUTO`].
    quota: AtomicU64,
    /// No new entries: what the tables may take is taken.
    full: AtomicBool,
    /// Entries are being taken out by age.
    pruning: AtomicBool,
}

fn key_of(bp: &BlkPtr) -> Key {
    DdtKeyPhys::of(bp).words()
}

impl Ddt {
    /// Those of a new pool.
    pub(crate) fn new(ctx: &Arc<PoolCtx>, zio: &Zio) -> Arc<Ddt> {
        Arc::new(Ddt {
            ctx: ctx.clone(),
            zio: zio.clone(),
            tables: KINDS.into_iter().map(Table::new).collect(),
            statistics: AtomicU64::new(0),
            quota: AtomicU64::new(AUTO),
            full: AtomicBool::new(false),
            pruning: AtomicBool::new(false),
        })
    }

    /// Reads all but the entries, and the logs.
    pub(crate) async fn load(ctx: &Arc<PoolCtx>, zio: &Zio, directory: &Zap) -> Result<Arc<Ddt>> {
        let ddt = Ddt::new(ctx, zio);
        let Some(statistics) = directory.try_get_u64(DMU_POOL_DDT_STATS).await? else { return Ok(ddt) };
        ddt.statistics.store(statistics, Ordering::Relaxed);
        let sums = Zap::open(ctx.mos(), statistics).await?;
        let tree = zio.tree();
        for table in &ddt.tables {
            table.load(ctx, directory, &sums, &tree).await?;
        }
        Ok(ddt)
    }

    /// Whether any block was ever deduplicated.
    pub(crate) fn is_used(&self) -> bool {
        self.statistics.load(Ordering::Relaxed) != 0
    }

    /// Blocks of all tables.
    pub(crate) fn blocks(&self) -> u64 {
        self.tables.iter().map(Table::blocks).fold(0, u64::saturating_add)
    }

    /// How many of so many entries may be changed in one txg: there must be room for the blocks
    /// they are in.
    fn at_once(&self, most: usize) -> usize {
        let (txgs, store) = (&self.ctx.txgs, &self.ctx.store);
        let mut n = most;
        while n > 1 && !store.has_room(txgs.worst_of_dedup(n as u64), Leave::Task) {
            n /= 2;
        }
        n
    }

    /// What deduplication saves.
    pub fn stats(&self) -> DedupStats {
        self.tables.iter().fold(DedupStats::default(), |sum, t| sum + t.stats())
    }

    /// Changes `dedup_table_quota`; counts from the next txg on.
    pub fn set_quota(&self, quota: u64) {
        self.quota.store(quota, Ordering::Relaxed);
    }

    /// Whether there may be new entries in the txgs to come. `vdevs`: the space of those that are
    /// for tables, and how much of it is used; no space: there are none.
    pub(crate) fn note_room(&self, vdevs: (u64, u64)) {
        let full = match self.quota.load(Ordering::Relaxed) {
            0 => false,
            AUTO => {
                // What is in the logs takes its place there when it is flushed, txgs later.
                let (space, used) = vdevs;
                let to_come = self.tables.iter().map(Table::to_come).fold(used, u64::saturating_add);
                space > 0 && to_come / AUTO_PERCENT >= space / 100
            }
            quota => self.stats().table_size > quota,
        };
        self.full.store(full, Ordering::Relaxed);
    }

    fn table(&self, bp: &BlkPtr) -> Option<&Table> {
        self.tables.iter().find(|t| t.kind as u8 == bp.checksum_kind())
    }

    async fn load_one(&self, bp: &BlkPtr) -> Result<()> {
        let (Some(table), key) = (self.table(bp), key_of(bp)) else { return Ok(()) };
        if table.state.lock().live.contains_key(&key) {
            return Ok(());
        }
        let found = table.find(&key).await?;
        let mut st = table.state.lock();
        let layout = st.layout(&self.ctx);
        st.live.entry(key).or_insert_with(|| match found {
            Some((origin, entry)) => Live::new(origin, entry),
            None => Live::fresh(layout.flat, self.ctx.env.clock.wall().as_secs()),
        });
        Ok(())
    }

    /// Takes a reference off each of these blocks; gives those that are to be freed now because no
    /// entry is about them. Those that others still refer to are told.
    pub(crate) async fn release(&self, bps: &[BlkPtr], outlives: impl Fn(&BlkPtr)) -> Vec<BlkPtr> {
        self.load(bps).await;
        let mut out = Vec::new();
        for bp in bps {
            let Some(table) = self.table(bp) else { continue };
            let mut st = table.state.lock();
            // What could not be read is kept.
            let Some(live) = st.live.get_mut(&key_of(bp)) else { continue };
            let left = live.release(bp);
            if left.is_some_and(|refs| refs > 0) {
                outlives(bp);
            }
            if left.is_none() {
                let mut own = *bp;
                own.set_dedup(false);
                out.push(own);
            }
        }
        out
    }

    /// A pointer to all copies that a block has, of which a pointer may know fewer; for checks.
    pub(crate) async fn whole(&self, bp: &BlkPtr) -> Result<BlkPtr> {
        let Some(table) = self.table(bp).filter(|_| bp.dedup()) else { return Ok(*bp) };
        let found = table.find(&key_of(bp)).await?;
        Ok(found.and_then(|(_, entry)| live::whole(&entry, bp)).unwrap_or(*bp))
    }
}

impl DedupTables for Ddt {
    fn load<'a>(&'a self, bps: &'a [BlkPtr]) -> BoxFuture<'a, ()> {
        let load = move |bp: &'a BlkPtr| async move {
            if let Err(e) = self.load_one(bp).await {
                tracing::error!(block = %bp, error = %e, "the deduplication table cannot be read");
            }
        };
        Box::pin(futures_util::stream::iter(bps).for_each_concurrent(LOOKUPS, load))
    }

    fn claim(&self, bp: &BlkPtr, copies: u8) -> Claim {
        let Some(table) = self.table(bp) else { return Claim::Alone };
        let full = self.full.load(Ordering::Relaxed);
        let as_wide = |birth| self.zio.tree().is_as_wide(birth, bp.phys_birth());
        match table.state.lock().live.get_mut(&key_of(bp)) {
            Some(live) => live.claim(bp, copies, full, as_wide),
            None => Claim::Alone,
        }
    }

    fn placed(&self, bp: &BlkPtr, copies: u8, dvas: &[Dva]) -> Option<BlkPtr> {
        self.table(bp)?.state.lock().live.get_mut(&key_of(bp))?.placed(bp, copies, dvas)
    }

    fn abandon(&self, bp: &BlkPtr) {
        if let Some(table) = self.table(bp)
            && let Some(live) = table.state.lock().live.get_mut(&key_of(bp))
        {
            live.abandon();
        }
    }

    fn differs(&self, shared: &BlkPtr) {
        if let Some(table) = self.table(shared)
            && let Some(live) = table.state.lock().live.get_mut(&key_of(shared))
        {
            live.release(shared);
        }
    }
}

/// What a table should not hold.
fn corrupt(what: impl Into<String>) -> Error {
    Error::corrupt(None, "deduplication table", what)
}
