//! The cache's counters, under the names OpenZFS's `arcstats` has for them.
//!
//! They live in the shards, under the lock a lookup holds anyway, so that counting is no meeting
//! point of all cores.

use super::shard::Sizes;

#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// By prefetch (0 demand, 1 prefetch) and kind (0 data, 1 metadata).
    pub hits: [[u64; 2]; 2],
    pub misses: [[u64; 2]; 2],
    pub mru_hits: u64,
    pub mfu_hits: u64,
    pub mru_ghost_hits: u64,
    pub mfu_ghost_hits: u64,
    pub deleted: u64,
}

impl Counters {
    pub fn add(&mut self, o: &Counters) {
        for (a, b) in self.hits.iter_mut().flatten().zip(o.hits.iter().flatten()) {
            *a += b;
        }
        for (a, b) in self.misses.iter_mut().flatten().zip(o.misses.iter().flatten()) {
            *a += b;
        }
        self.mru_hits += o.mru_hits;
        self.mfu_hits += o.mfu_hits;
        self.mru_ghost_hits += o.mru_ghost_hits;
        self.mfu_ghost_hits += o.mfu_ghost_hits;
        self.deleted += o.deleted;
    }
}

/// What only grows.
pub fn counted(n: &Counters) -> Vec<(&'static str, u64)> {
    let [[ddh, dmh], [pdh, pmh]] = n.hits;
    let [[ddm, dmm], [pdm, pmm]] = n.misses;
    vec![
        ("hits", ddh + dmh + pdh + pmh),
        ("misses", ddm + dmm + pdm + pmm),
        ("demand_data_hits", ddh),
        ("demand_data_misses", ddm),
        ("demand_metadata_hits", dmh),
        ("demand_metadata_misses", dmm),
        ("prefetch_data_hits", pdh),
        ("prefetch_data_misses", pdm),
        ("prefetch_metadata_hits", pmh),
        ("prefetch_metadata_misses", pmm),
        ("mru_hits", n.mru_hits),
        ("mru_ghost_hits", n.mru_ghost_hits),
        ("mfu_hits", n.mfu_hits),
        ("mfu_ghost_hits", n.mfu_ghost_hits),
        ("deleted", n.deleted),
    ]
}

pub fn list(n: &Counters, s: &Sizes, [c, c_min, c_max]: [u64; 3]) -> Vec<(&'static str, u64)> {
    let mut all = counted(n);
    all.extend([
        ("hash_elements", s.entries),
        ("p", s.p),
        ("c", c),
        ("c_min", c_min),
        ("c_max", c_max),
        ("hdr_size", s.headers),
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
    all
}
