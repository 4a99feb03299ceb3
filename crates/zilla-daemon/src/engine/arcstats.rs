//! What the caches of pools did: memory's and the cache devices'.

use super::errors::Answer;
use super::pool::Pool;
use super::{Engine, Serves};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla::stats::Memory;
use zilla_control::Caller;
use zilla_control::types::{ArcStat, ArcStatQuery};

impl Engine {
    /// Takes a pool out of those that are there.
    pub(super) fn drop_pool(&self, pool: &Pool) {
        let mut pools = self.pools.write();
        if pools.remove(&pool.name()).is_some() {
            self.past.add(pool);
        }
    }
}

impl Serves<ArcStatQuery> for Engine {
    async fn serve(&self, _: &Caller, r: ArcStatQuery) -> Answer<Vec<ArcStat>> {
        let pools = match &r.name {
            Some(name) => vec![self.pool(name)?],
            None => self.all_pools(),
        };
        let machine = zilla::stats::memory(&*self.env.opener).await.map(|m| of_machine(&m));
        let stat = |pool: &Arc<Pool>| {
            let streams = super::kstats::stream_names(&pool.zilla.stream_counts());
            let streams = streams.into_iter().map(|(name, n)| (format!("zfetch_{name}"), n));
            let logs = super::kstats::named(&pool.zilla.log_counts());
            let caches = pool.zilla.arc_counts();
            let parts = ArcStat::parts(|name| caches.iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n));
            let all = caches.into_iter().chain(parts).chain(machine.into_iter().flatten()).chain(logs);
            let all = all.map(|(name, n)| (name.to_owned(), n));
            ArcStat { pool: pool.name(), counts: all.chain(streams).collect() }
        };
        Ok(pools.iter().map(stat).collect())
    }
}

/// What pools that are not here any more have counted: scripts compare counters before an export
/// with those after the import, and OpenZFS's grow as long as its module is loaded.
#[derive(Clone, Default)]
pub struct Past(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Past {
    fn add(&self, pool: &Pool) {
        let mut past = self.0.lock();
        pool.zilla.arc_totals().into_iter().for_each(|(name, n)| *past.entry(name).or_default() += n);
    }
}

/// What OpenZFS's say of the machine's memory, which all pools have together, and what the process
/// has of it.
fn of_machine(memory: &Memory) -> [(&'static str, u64); 13] {
    let (reserve, process) = (memory.reserve(), zilla::stats::process());
    [
        // Writers wait for their txg, and nobody waits until a cache has given way.
        ("memory_throttle_count", 0),
        ("memory_direct_count", 0),
        ("memory_indirect_count", zilla::stats::shortages()),
        ("memory_all_bytes", memory.total),
        ("memory_free_bytes", memory.available),
        ("memory_available_bytes", memory.available.saturating_sub(reserve)),
        ("arc_no_grow", u64::from(!memory.is_ample())),
        ("arc_need_free", reserve.saturating_sub(memory.available)),
        ("arc_sys_free", reserve),
        ("abd_chunk_waste_size", process.waste),
        ("free_buffers_size", process.free_buffers),
        ("buffers_size", process.buffers),
        ("heap_size", process.heap),
    ]
}

/// The pools and their past, as they are at one moment, and the machine.
pub fn sum(
    pools: &RwLock<BTreeMap<String, Arc<Pool>>>,
    past: &Past,
    memory: &Memory,
) -> Vec<(&'static str, u64)> {
    let (pools, past) = {
        let pools = pools.read();
        (pools.values().cloned().collect::<Vec<_>>(), past.0.lock().clone())
    };
    let mut at = BTreeMap::new();
    let mut out: Vec<(&'static str, u64)> = Vec::new();
    // Names are there without any pool, too.
    let none = zilla::stats::arc_counts_of_none();
    for (name, n) in none.into_iter().chain(past).chain(pools.iter().flat_map(|p| p.zilla.arc_counts())) {
        match at.get(name).and_then(|i: &usize| out.get_mut(*i)) {
            Some((_, sum)) if ArcStat::MEANS.contains(&name) => *sum = n.max(*sum),
            Some((_, sum)) => *sum += n,
            None => {
                at.insert(name, out.len());
                out.push((name, n));
            }
        }
    }
    out.extend(of_machine(memory));
    let of = |name: &str| out.iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
    let parts = ArcStat::parts(of);
    out.extend(parts);
    if pools.is_empty() {
        return out;
    }
    // These are all pools' together, not each one's.
    let chosen = zilla::stats::chosen();
    for (name, n) in &mut out {
        let said = match *name {
            "c_min" => chosen.arc_min,
            "c_max" => chosen.arc_max,
            _ => None,
        };
        *n = said.unwrap_or(*n);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// OpenZFS 2.3's names (`arc_stats_t` in its `sys/arc_impl.h`, and its manual of the kstats).
    const NAMES: &str = "
        hits iohits misses demand_data_hits demand_data_iohits demand_data_misses
        demand_metadata_hits demand_metadata_iohits demand_metadata_misses
        prefetch_data_hits prefetch_data_iohits prefetch_data_misses prefetch_metadata_hits
        prefetch_metadata_iohits prefetch_metadata_misses mru_hits mru_ghost_hits mfu_hits
        mfu_ghost_hits uncached_hits deleted mutex_miss access_skip evict_skip
        evict_not_enough evict_l2_cached evict_l2_eligible evict_l2_eligible_mfu
        evict_l2_eligible_mru evict_l2_ineligible evict_l2_skip hash_elements
        hash_elements_max hash_collisions hash_chains hash_chain_max meta pd pm c c_min
        c_max size compressed_size uncompressed_size overhead_size hdr_size data_size
        metadata_size dbuf_size dnode_size bonus_size anon_size anon_data anon_metadata
        anon_evictable_data anon_evictable_metadata mru_size mru_data mru_metadata
        mru_evictable_data mru_evictable_metadata mru_ghost_size mru_ghost_data
        mru_ghost_metadata mru_ghost_evictable_data mru_ghost_evictable_metadata mfu_size
        mfu_data mfu_metadata mfu_evictable_data mfu_evictable_metadata mfu_ghost_size
        mfu_ghost_data mfu_ghost_metadata mfu_ghost_evictable_data
        mfu_ghost_evictable_metadata uncached_size uncached_data uncached_metadata
        uncached_evictable_data uncached_evictable_metadata l2_hits l2_misses
        l2_prefetch_asize l2_mru_asize l2_mfu_asize l2_bufc_data_asize
        l2_bufc_metadata_asize l2_feeds l2_rw_clash l2_read_bytes l2_write_bytes
        l2_writes_sent l2_writes_done l2_writes_error l2_writes_lock_retry
        l2_evict_lock_retry l2_evict_reading l2_evict_l1cached l2_free_on_write
        l2_abort_lowmem l2_cksum_bad l2_io_error l2_size l2_asize l2_hdr_size
        l2_log_blk_writes l2_log_blk_avg_asize l2_log_blk_asize l2_log_blk_count
        l2_data_to_meta_ratio l2_rebuild_success l2_rebuild_unsupported l2_rebuild_io_errors
        l2_rebuild_dh_errors l2_rebuild_cksum_lb_errors l2_rebuild_lowmem l2_rebuild_size
        l2_rebuild_asize l2_rebuild_bufs l2_rebuild_bufs_precached l2_rebuild_log_blks
        memory_throttle_count memory_direct_count memory_indirect_count memory_all_bytes
        memory_free_bytes memory_available_bytes arc_no_grow arc_tempreserve
        arc_loaned_bytes arc_prune arc_meta_used arc_dnode_limit async_upgrade_sync
        predictive_prefetch demand_hit_predictive_prefetch demand_iohit_predictive_prefetch
        prescient_prefetch demand_hit_prescient_prefetch demand_iohit_prescient_prefetch
        arc_need_free arc_sys_free arc_raw_size cached_only_in_progress abd_chunk_waste_size";

    #[test]
    fn all_of_openzfs_s_are_there_once() {
        let memory = Memory { total: 1 << 30, available: 1 << 20 };
        let all = sum(&RwLock::default(), &Past::default(), &memory);
        let here: BTreeSet<&str> = all.iter().map(|(name, _)| *name).collect();
        assert_eq!(here.len(), all.len(), "one is told twice");
        let lacking: Vec<&str> = NAMES.split_whitespace().filter(|name| !here.contains(name)).collect();
        assert!(lacking.is_empty(), "{lacking:?}");
        let of = |name: &str| all.iter().find(|(n, _)| *n == name).unwrap().1;
        assert_eq!((of("arc_no_grow"), of("arc_need_free")), (1, (1 << 26) - (1 << 20)));
        // What no other name tells of buffers and heap is `other_size`.
        let told = ["size", "overhead_size", "dbuf_size", "dnode_size", "anon_size", "l2_hdr_size"];
        let told = told.iter().map(|name| of(name)).sum::<u64>() + of("abd_chunk_waste_size");
        assert_eq!(told + of("other_size"), of("buffers_size") + of("heap_size"));
        assert!(of("heap_size") > 0 && of("other_size") > 0);
        let machine: BTreeSet<&str> = of_machine(&memory).iter().map(|(name, _)| *name).collect();
        assert_eq!(machine, ArcStat::OF_MACHINE.into_iter().collect());
    }
}
