//! Deduplication tables, as OpenZFS leaves them: they are read for what they tell, and not kept up.
//!
//! So a pool that has any is not written to. Tables older than the feature `fast_dedup` have no feature flag, but who frees a block without
//! counting takes it from its other owners.

use crate::dmu::{Objset, resident};
use crate::error::{Errno, Error, Result};
use crate::zap::Zap;
use std::sync::Arc;
use zilla_ondisk::ddt::{DDT_PREFIX, DDT_STAT_DSIZE, DDT_STAT_REF_DSIZE, DDT_STAT_WORDS};
use zilla_ondisk::dsl::DMU_POOL_DDT_STATS;

/// Within a table's name, between the checksum and the class.
const TABLE: &str = "-zap-";

/// What the tables tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct DedupStats {
    /// Bytes of the tables, without logs that wait to be added to them (`dedup_table_size`).
    pub table_size: u64,
    /// Space of the blocks in them, each counted once.
    pub dsize: u64,
    /// The same, as often as they are referred to.
    pub ref_dsize: u64,
}

/// Reads the tables' sizes. An error if the pool is to be written to and one has entries.
pub(super) async fn load(mos: &Arc<Objset>, directory: &Zap, write: bool) -> Result<DedupStats> {
    let mut stats = DedupStats::default();
    let mut todo = vec![directory.clone()];
    while let Some(zap) = todo.pop() {
        for entry in zap.entries().await? {
            let name = entry.name_str();
            let Some(id) = entry.value.as_u64().filter(|_| name.starts_with(DDT_PREFIX)) else { continue };
            if name == DMU_POOL_DDT_STATS {
                for sums in Zap::open(mos, id).await?.entries().await? {
                    // A histogram: the same sums for each power of two of references.
                    for bucket in sums.value.as_u64s().unwrap_or_default().chunks_exact(DDT_STAT_WORDS) {
                        stats.dsize += bucket.get(DDT_STAT_DSIZE).unwrap_or(&0);
                        stats.ref_dsize += bucket.get(DDT_STAT_REF_DSIZE).unwrap_or(&0);
                    }
                }
            } else if name.contains(TABLE) {
                let table = Zap::open(mos, id).await?;
                stats.table_size += table.dnode().used();
                if write && resident(|| table.count()).await? > 0 {
                    let what = "the pool has deduplicated blocks, which zilla can only read; import it with -o readonly=on";
                    return Err(Error::os(Errno::NotSup, what));
                }
            } else if zap.id() == directory.id() {
                // Since `fast_dedup` a checksum's tables have a directory of their own.
                todo.push(Zap::open(mos, id).await?);
            }
        }
    }
    Ok(stats)
}
