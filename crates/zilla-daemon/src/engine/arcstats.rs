//! What the caches of pools did: memory's and the cache devices'.

use super::Engine;
use super::errors::Answer;
use super::pool::Pool;
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

/// The sum of all pools'. Without any, all are 0, as scripts that look between an export and an
/// import expect.
pub fn sum(pools: &[Arc<Pool>]) -> Vec<(&'static str, u64)> {
    if pools.is_empty() {
        return zilla::stats::arc_counts_of_none();
    }
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
