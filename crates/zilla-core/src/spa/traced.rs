//! What of a pool belongs to a trace of it.

use super::Spa;
use crate::tunables::{L2ARC_FEED_SECS, L2ARC_WRITE_MAX};
use zilla_ondisk::trace::TraceHeader;

impl Spa {
    /// The facts at this moment.
    pub fn trace_header(&self) -> TraceHeader {
        let (tree, cache, l2) = (self.tree(), self.zio.cache(), self.zio.l2());
        let leaves = || tree.tops_for(false).flat_map(|t| t.leaves());
        let devices = l2.spaces();
        TraceHeader {
            pool: self.name(),
            guid: self.ctx.guid(),
            started: self.ctx.env.wall().as_secs(),
            arc_max: cache.max(),
            arc_limit: cache.limit(),
            arc_size: cache.size(),
            cache_bytes: devices.iter().sum(),
            cache_devices: devices.len() as u64,
            log_devices: tree.tops_for(true).count() as u64,
            disks: leaves().filter(|l| l.readable()).count() as u64,
            rotational: leaves().any(|l| l.turns()),
            feed_rate: L2ARC_WRITE_MAX.get() / L2ARC_FEED_SECS.get().max(1),
        }
    }
}
