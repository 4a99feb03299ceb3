//! The cache's counters, under the names OpenZFS's `arcstats` has for them, in its order.
//!
//! They live in the shards, under the lock a lookup holds anyway, so that counting is no meeting
//! point of all cores. What is OpenZFS's and cannot happen here is 0: a block that is locked is
//! waited for and never passed over, and what is in a list can be evicted. It is only passed by
//! while it was read ahead a moment ago.

use super::Access;
use super::lists::List;
use super::shard::{Kinds, Sizes};

#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// By [`Access`](super::Access) and kind (0 data, 1 metadata).
    pub hits: [Kinds; 3],
    /// Those that found the block on its way here.
    pub iohits: [Kinds; 3],
    pub misses: [Kinds; 3],
    pub mru_hits: u64,
    pub mfu_hits: u64,
    pub mru_ghost_hits: u64,
    pub mfu_ghost_hits: u64,
    /// Hits on what is let go as soon as it was asked for.
    pub uncached_hits: u64,
    /// First uses of what was read ahead, by how it was: when it was here, and when it was on its
    /// way.
    pub demanded_hits: [u64; 3],
    pub demanded_iohits: [u64; 3],
    pub deleted: u64,
    /// What was read ahead a moment before, and passed by.
    pub evict_skip: u64,
    /// Bytes that were evicted, uncompressed, by whether a second level would have them: those that
    /// had been written to a cache device or came from one; those that might have been, by list;
    /// the others.
    evicted_cached: u64,
    evicted_eligible: [u64; 2],
    evicted_ineligible: u64,
}

impl Counters {
    pub fn add(&mut self, o: &Counters) {
        for (to, more) in
            [(&mut self.hits, &o.hits), (&mut self.iohits, &o.iohits), (&mut self.misses, &o.misses)]
        {
            to.iter_mut().flatten().zip(more.iter().flatten()).for_each(|(a, b)| *a += b);
        }
        self.mru_hits += o.mru_hits;
        self.mfu_hits += o.mfu_hits;
        self.mru_ghost_hits += o.mru_ghost_hits;
        self.mfu_ghost_hits += o.mfu_ghost_hits;
        self.uncached_hits += o.uncached_hits;
        self.demanded_hits.iter_mut().zip(o.demanded_hits).for_each(|(a, b)| *a += b);
        self.demanded_iohits.iter_mut().zip(o.demanded_iohits).for_each(|(a, b)| *a += b);
        self.deleted += o.deleted;
        self.evict_skip += o.evict_skip;
        self.evicted_cached += o.evicted_cached;
        self.evicted_eligible.iter_mut().zip(o.evicted_eligible).for_each(|(a, b)| *a += b);
        self.evicted_ineligible += o.evicted_ineligible;
    }

    /// A block of `lsize` bytes made room for others.
    pub fn evicted(&mut self, list: List, lsize: u64, second: Second) {
        self.deleted += 1;
        *match second {
            Second::Had => &mut self.evicted_cached,
            Second::Wanted => &mut self.evicted_eligible[list as usize],
            Second::Unwanted => &mut self.evicted_ineligible,
        } += lsize;
    }
}

/// What a second level has to do with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Second {
    /// It was written to a cache device, or came from one.
    Had,
    Wanted,
    Unwanted,
}

/// What only grows.
pub fn counted(n: &Counters) -> Vec<(&'static str, u64)> {
    let sum = |by: &[Kinds; 3]| by.iter().flatten().sum::<u64>();
    let both = |by: &[Kinds; 3]| [by[0], [by[1][0] + by[2][0], by[1][1] + by[2][1]]];
    let ([[ddh, dmh], [pdh, pmh]], [[ddi, dmi], [pdi, pmi]]) = (both(&n.hits), both(&n.iohits));
    let [[ddm, dmm], [pdm, pmm]] = both(&n.misses);
    let of = |access: Access| -> u64 {
        [n.hits, n.iohits, n.misses].iter().flat_map(|by| by[access as usize]).sum()
    };
    let [[_, hit_predicted, hit_prescient], [_, iohit_predicted, iohit_prescient]] =
        [n.demanded_hits, n.demanded_iohits];
    let [mru_eligible, mfu_eligible] = n.evicted_eligible;
    vec![
        ("hits", sum(&n.hits)),
        ("iohits", sum(&n.iohits)),
        ("misses", sum(&n.misses)),
        ("demand_data_hits", ddh),
        ("demand_data_iohits", ddi),
        ("demand_data_misses", ddm),
        ("demand_metadata_hits", dmh),
        ("demand_metadata_iohits", dmi),
        ("demand_metadata_misses", dmm),
        ("prefetch_data_hits", pdh),
        ("prefetch_data_iohits", pdi),
        ("prefetch_data_misses", pdm),
        ("prefetch_metadata_hits", pmh),
        ("prefetch_metadata_iohits", pmi),
        ("prefetch_metadata_misses", pmm),
        ("mru_hits", n.mru_hits),
        ("mru_ghost_hits", n.mru_ghost_hits),
        ("mfu_hits", n.mfu_hits),
        ("mfu_ghost_hits", n.mfu_ghost_hits),
        ("uncached_hits", n.uncached_hits),
        ("deleted", n.deleted),
        ("mutex_miss", 0),
        ("access_skip", 0),
        ("evict_skip", n.evict_skip),
        ("evict_not_enough", 0),
        ("evict_l2_cached", n.evicted_cached),
        ("evict_l2_eligible", mru_eligible + mfu_eligible),
        ("evict_l2_eligible_mfu", mfu_eligible),
        ("evict_l2_eligible_mru", mru_eligible),
        ("evict_l2_ineligible", n.evicted_ineligible),
        ("evict_l2_skip", 0),
        ("predictive_prefetch", of(Access::Predictive)),
        ("demand_hit_predictive_prefetch", hit_predicted),
        ("demand_iohit_predictive_prefetch", iohit_predicted),
        ("prescient_prefetch", of(Access::Prescient)),
        ("demand_hit_prescient_prefetch", hit_prescient),
        ("demand_iohit_prescient_prefetch", iohit_prescient),
    ]
}

pub fn list(n: &Counters, s: &Sizes, [c, c_min, c_max]: [u64; 3]) -> Vec<(&'static str, u64)> {
    let [mru, mfu] = s.lists;
    let [[mru_data, mru_metadata], [mfu_data, mfu_metadata]] = s.held;
    let [[mru_ghost_data, mru_ghost_metadata], [mfu_ghost_data, mfu_ghost_metadata]] = s.ghosts_held;
    let (data, metadata) = (mru_data + mfu_data, mru_metadata + mfu_metadata);
    let [uncached_data, uncached_metadata] = s.uncached;
    let mut all = counted(n);
    all.extend([
        ("hash_elements", s.entries),
        ("hash_elements_max", s.entries_max),
        // The tables have no chains.
        ("hash_collisions", 0),
        ("hash_chains", 0),
        ("hash_chain_max", 0),
        ("p", s.p),
        ("c", c),
        ("c_min", c_min),
        ("c_max", c_max),
        ("size", mru + mfu),
        ("compressed_size", data + metadata),
        ("uncompressed_size", s.uncompressed),
        ("hdr_size", s.headers),
        ("data_size", data),
        ("metadata_size", metadata),
        ("mru_size", mru),
        ("mru_data", mru_data),
        ("mru_metadata", mru_metadata),
        ("mru_evictable_data", mru_data),
        ("mru_evictable_metadata", mru_metadata),
        ("mru_ghost_size", s.ghosts[List::Mru as usize]),
        ("mru_ghost_data", mru_ghost_data),
        ("mru_ghost_metadata", mru_ghost_metadata),
        ("mru_ghost_evictable_data", mru_ghost_data),
        ("mru_ghost_evictable_metadata", mru_ghost_metadata),
        ("mfu_size", mfu),
        ("mfu_data", mfu_data),
        ("mfu_metadata", mfu_metadata),
        ("mfu_evictable_data", mfu_data),
        ("mfu_evictable_metadata", mfu_metadata),
        ("mfu_ghost_size", s.ghosts[List::Mfu as usize]),
        ("mfu_ghost_data", mfu_ghost_data),
        ("mfu_ghost_metadata", mfu_ghost_metadata),
        ("mfu_ghost_evictable_data", mfu_ghost_data),
        ("mfu_ghost_evictable_metadata", mfu_ghost_metadata),
        ("uncached_size", uncached_data + uncached_metadata),
        ("uncached_data", uncached_data),
        ("uncached_metadata", uncached_metadata),
        ("uncached_evictable_data", uncached_data),
        ("uncached_evictable_metadata", uncached_metadata),
    ]);
    all
}
