//! What the caches of pools did: memory's and the cache devices'.

use super::Engine;
use super::errors::Answer;
use super::pool::Pool;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_control::types::{ArcStat, ArcStatQuery};

impl Engine {
    /// Takes a pool out of those that are there.
    pub(super) fn drop_pool(&self, pool: &Pool) {
        let mut pools = self.pools.write();
        if pools.remove(&pool.name()).is_some() {
            self.past.add(pool);
        }
    }

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

/// The pools and their past, as they are at one moment.
pub fn sum(pools: &RwLock<BTreeMap<String, Arc<Pool>>>, past: &Past) -> Vec<(&'static str, u64)> {
    let (pools, past) = {
        let pools = pools.read();
        (pools.values().cloned().collect::<Vec<_>>(), past.0.lock().clone())
    };
    let mut at = BTreeMap::new();
    let mut out: Vec<(&'static str, u64)> = Vec::new();
    // Names are there without any pool, too.
    let none = zilla::stats::arc_counts_of_none();
    for (name, n) in none.into_iter().chain(past).chain(pools.iter().flat_map(counts)) {
        match at.get(name).and_then(|i: &usize| out.get_mut(*i)) {
            Some((_, sum)) => *sum += n,
            None => {
                at.insert(name, out.len());
                out.push((name, n));
            }
        }
    }
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
