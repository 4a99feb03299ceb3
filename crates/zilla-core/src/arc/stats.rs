//! The cache's counters, under the names OpenZFS's `arcstats` has for them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::shard::{Ghost, Sizes};

#[derive(Default)]
pub struct ArcStats {
    demand_data_hits: AtomicU64,
    demand_data_misses: AtomicU64,
    demand_metadata_hits: AtomicU64,
    demand_metadata_misses: AtomicU64,
    prefetch_data_hits: AtomicU64,
    prefetch_data_misses: AtomicU64,
    prefetch_metadata_hits: AtomicU64,
    prefetch_metadata_misses: AtomicU64,
    mru_hits: AtomicU64,
    mfu_hits: AtomicU64,
    mru_ghost_hits: AtomicU64,
    mfu_ghost_hits: AtomicU64,
    deleted: AtomicU64,
}

impl ArcStats {
    pub(super) fn hit(&self, metadata: bool, prefetch: bool, frequent: bool) {
        let kind = match (prefetch, metadata) {
            (false, false) => &self.demand_data_hits,
            (false, true) => &self.demand_metadata_hits,
            (true, false) => &self.prefetch_data_hits,
            (true, true) => &self.prefetch_metadata_hits,
        };
        kind.fetch_add(1, Ordering::Relaxed);
        let list = if frequent { &self.mfu_hits } else { &self.mru_hits };
        list.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn miss(&self, metadata: bool, prefetch: bool) {
        let kind = match (prefetch, metadata) {
            (false, false) => &self.demand_data_misses,
            (false, true) => &self.demand_metadata_misses,
            (true, false) => &self.prefetch_data_misses,
            (true, true) => &self.prefetch_metadata_misses,
        };
        kind.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn inserted(&self, ghost: Ghost, evicted: usize) {
        match ghost {
            Ghost::None => {}
            Ghost::Mru => {
                self.mru_ghost_hits.fetch_add(1, Ordering::Relaxed);
            }
            Ghost::Mfu => {
                self.mfu_ghost_hits.fetch_add(1, Ordering::Relaxed);
            }
        }
        if evicted > 0 {
            self.deleted.fetch_add(evicted as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn list(&self, s: &Sizes, c: u64, c_max: u64) -> Vec<(&'static str, u64)> {
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let hits = [
            ("demand_data_hits", get(&self.demand_data_hits)),
            ("demand_metadata_hits", get(&self.demand_metadata_hits)),
            ("prefetch_data_hits", get(&self.prefetch_data_hits)),
            ("prefetch_metadata_hits", get(&self.prefetch_metadata_hits)),
        ];
        let misses = [
            ("demand_data_misses", get(&self.demand_data_misses)),
            ("demand_metadata_misses", get(&self.demand_metadata_misses)),
            ("prefetch_data_misses", get(&self.prefetch_data_misses)),
            ("prefetch_metadata_misses", get(&self.prefetch_metadata_misses)),
        ];
        let mut out =
            vec![("hits", hits.iter().map(|h| h.1).sum()), ("misses", misses.iter().map(|m| m.1).sum())];
        out.extend(hits);
        out.extend(misses);
        out.extend([
            ("mru_hits", get(&self.mru_hits)),
            ("mru_ghost_hits", get(&self.mru_ghost_hits)),
            ("mfu_hits", get(&self.mfu_hits)),
            ("mfu_ghost_hits", get(&self.mfu_ghost_hits)),
            ("deleted", get(&self.deleted)),
            ("hash_elements", s.entries),
            ("p", s.p),
            ("c", c),
            ("c_min", super::MIN_LIMIT),
            ("c_max", c_max),
            ("size", s.mru + s.mfu),
            ("compressed_size", s.data + s.metadata),
            ("uncompressed_size", s.uncompressed),
            ("data_size", s.data),
            ("metadata_size", s.metadata),
            ("mru_size", s.mru),
            ("mru_ghost_size", s.mru_ghost),
            ("mfu_size", s.mfu),
            ("mfu_ghost_size", s.mfu_ghost),
        ]);
        out
    }
}
