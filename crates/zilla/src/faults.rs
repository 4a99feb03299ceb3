//! What has become of the reads that writes in part put off, of pools.

use std::sync::Arc;
use zilla_core::dmu::FaultCounts;
use zilla_core::spa::Spa;

/// The sum of some pools' counts, since each was opened. They grow when a txg is synced.
pub fn fault_counts<'p>(pools: impl Iterator<Item = &'p Arc<Spa>>) -> FaultCounts {
    pools.map(|spa| spa.ctx.cache.faults.get()).sum()
}
