//! What the intent logs of pools and datasets did.

use super::errors::{Answer, of_dataset};
use super::pool::Pool;
use super::{Engine, Serves};
use std::sync::Arc;
use zilla::stats::LogCounts;
use zilla_control::Caller;
use zilla_control::types::{LogStat, LogStatQuery};

fn stat(name: String, counts: LogCounts) -> LogStat {
    LogStat {
        name,
        counts: counts.named().into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
        latencies: [
            ("commit".to_owned(), counts.commit_latency),
            ("write".to_owned(), counts.write_latency),
            ("flush".to_owned(), counts.flush_latency),
        ]
        .into(),
    }
}

impl Serves<LogStatQuery> for Engine {
    async fn serve(&self, _: &Caller, r: LogStatQuery) -> Answer<Vec<LogStat>> {
        let pools = match &r.name {
            Some(name) => vec![self.pool_of(name)?],
            None => self.all_pools(),
        };
        let mut out = Vec::new();
        for pool in pools {
            let wanted = r.name.as_ref().filter(|n| **n != pool.name());
            if wanted.is_none() {
                out.push(stat(pool.name(), pool.zilla.log_counts()));
            }
            if r.datasets || wanted.is_some() {
                out.extend(datasets(&pool, wanted).await?);
            }
        }
        Ok(out)
    }
}

async fn datasets(pool: &Arc<Pool>, wanted: Option<&String>) -> Answer<Vec<LogStat>> {
    // (A snapshot that is mounted has no log.)
    let mut names: Vec<String> =
        pool.mounts().iter().map(|(name, _)| name).filter(|n| !n.contains('@')).cloned().collect();
    if let Some(name) = wanted {
        names = vec![name.clone()];
    }
    let mut out = Vec::new();
    for name in names {
        let ds = pool.zilla.by_name(&name).await.map_err(|e| of_dataset(e).subject(name.as_str()))?;
        out.push(stat(name, ds.log_counts()));
    }
    Ok(out)
}
