//! The second level's counters, under the names OpenZFS's `arcstats` has for them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::index::Amounts;

macro_rules! counters {
    ($($name:ident,)*) => {
        /// What happened, since the pool was opened.
        #[derive(Default)]
        pub struct Counters {
            $(pub $name: AtomicU64,)*
        }

        impl Counters {
            fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((concat!("l2_", stringify!($name)), self.$name.load(Ordering::Relaxed)),)*]
            }

            /// Those that only grow: not the running means.
            pub fn counted(&self) -> Vec<(&'static str, u64)> {
                let mut all = self.named();
                all.retain(|(name, _)| !["l2_log_blk_avg_asize", "l2_data_to_meta_ratio"].contains(name));
                all
            }
        }
    };
}

counters! {
    hits,
    misses,
    feeds,
    rw_clash,
    read_bytes,
    write_bytes,
    writes_sent,
    writes_done,
    writes_error,
    evict_reading,
    evict_l1cached,
    abort_lowmem,
    cksum_bad,
    io_error,
    log_blk_writes,
    log_blk_avg_asize,
    data_to_meta_ratio,
    rebuild_success,
    rebuild_unsupported,
    rebuild_io_errors,
    rebuild_dh_errors,
    rebuild_cksum_lb_errors,
    rebuild_lowmem,
    rebuild_size,
    rebuild_asize,
    rebuild_bufs,
    rebuild_bufs_precached,
    rebuild_log_blks,
}

pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// A running mean, of which each value is an eighth.
pub fn mean(counter: &AtomicU64, value: u64) {
    let old = counter.load(Ordering::Relaxed);
    let new = if old == 0 { value } else { old - old / 8 + value / 8 };
    counter.store(new, Ordering::Relaxed);
}

/// What there is at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    pub devices: u64,
    pub amounts: Amounts,
    pub header_bytes: u64,
    pub log_blocks: u64,
    pub log_bytes: u64,
}

pub fn list(counters: &Counters, g: &Gauges) -> Vec<(&'static str, u64)> {
    let mut out = vec![("l2_ndev", g.devices)];
    out.extend(counters.named());
    out.extend([
        ("l2_prefetch_asize", g.amounts.prefetch),
        ("l2_mru_asize", g.amounts.mru),
        ("l2_mfu_asize", g.amounts.mfu),
        ("l2_bufc_data_asize", g.amounts.data),
        ("l2_bufc_metadata_asize", g.amounts.metadata),
        ("l2_size", g.amounts.lsize),
        ("l2_asize", g.amounts.psize),
        ("l2_hdr_size", g.header_bytes),
        // An index is locked for a moment, and what is freed while it is written is forgotten.
        ("l2_writes_lock_retry", 0),
        ("l2_evict_lock_retry", 0),
        ("l2_free_on_write", 0),
        ("l2_log_blk_asize", g.log_bytes),
        ("l2_log_blk_count", g.log_blocks),
    ]);
    out
}
