//! What the caches of pools did: memory's and the cache devices'.

use super::Engine;
use super::errors::Answer;
use super::pool::Pool;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_control::types::{ArcStat, ArcStatQuery};

impl Engine {
    pub(super) fn arc_statistics(&self, r: &ArcStatQuery) -> Answer<Vec<ArcStat>> {
        let pools = match &r.name {
            Some(name) => vec![self.pool(name)?],
            None => self.all_pools(),
        };
        let stat = |pool: &Arc<Pool>| {
            let counts = counts(pool).into_iter().map(|(name, n)| (name.to_owned(), n));
            ArcStat { pool: pool.name(), counts: counts.collect() }
        };
        Ok(pools.iter().map(stat).collect())
    }
}

/// One pool's, under OpenZFS's names.
fn counts(pool: &Arc<Pool>) -> Vec<(&'static str, u64)> {
    pool.zilla.arc_counts()
}

/// The names of the last pools that there were: without any, all of them are 0, as scripts that
/// look between an export and an import expect.
static NAMES: Mutex<Vec<&str>> = Mutex::new(Vec::new());

/// The sum of all pools'.
pub fn sum(pools: &[Arc<Pool>]) -> Vec<(&'static str, u64)> {
    if pools.is_empty() {
        return NAMES.lock().iter().map(|name| (*name, 0)).collect();
    }
    let out = sum_of(pools);
    *NAMES.lock() = out.iter().map(|(name, _)| *name).collect();
    out
}

fn sum_of(pools: &[Arc<Pool>]) -> Vec<(&'static str, u64)> {
    let mut at = BTreeMap::new();
    let mut out: Vec<(&'static str, u64)> = Vec::new();
    for (name, n) in pools.iter().flat_map(counts) {
        match at.get(name).and_then(|i: &usize| out.get_mut(*i)) {
            Some((_, sum)) => *sum += n,
            None => {
                at.insert(name, out.len());
                out.push((name, n));
            }
        }
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
