//! What OpenZFS tells of each pool beside its statistics: `POOL/state` and `POOL/txgs` among the kstats.
//!
//! They are written where [`super::kstats`] writes its files, when they change, a moment later.

use super::pool::Pool;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zilla::tunables::TXG_HISTORY;
use zilla_ondisk::enums::VdevState;

/// Of so many txgs it is told at most.
const MOST_TXGS: u64 = 10_000;

/// How soon a change is there to be read.
const EVERY: Duration = Duration::from_millis(500);

/// Writes them as long as the process lives.
pub fn serve(pools: Arc<RwLock<BTreeMap<String, Arc<Pool>>>>) {
    let Some(dir) = std::env::var_os("ZILLA_KSTATS").filter(|d| !d.is_empty()).map(PathBuf::from) else {
        return;
    };
    tokio::spawn(async move {
        let mut written: BTreeMap<PathBuf, String> = BTreeMap::new();
        loop {
            let now: Vec<Arc<Pool>> = pools.read().values().cloned().collect();
            let texts: BTreeMap<PathBuf, String> = now.iter().flat_map(|p| of(p)).collect();
            written
                .retain(|file, _| texts.contains_key(file) || std::fs::remove_file(dir.join(file)).is_err());
            for (file, text) in texts {
                if written.get(&file) == Some(&text) {
                    continue;
                }
                let path = dir.join(&file);
                let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
                match made.and_then(|()| std::fs::write(&path, &text)) {
                    Ok(()) => drop(written.insert(file, text)),
                    Err(e) => tracing::warn!("'{}': {e}", path.display()),
                }
            }
            tokio::time::sleep(EVERY).await;
        }
    });
}

fn of(pool: &Pool) -> [(PathBuf, String); 2] {
    let folder = PathBuf::from(pool.name());
    let state = match pool.zilla.suspended() {
        Some(_) => "SUSPENDED",
        None => word(pool.zilla.vdevs().state()),
    };
    // The last ones that are on disk, and the one that is open; what they took is not kept.
    let (open, synced) = (pool.zilla.open_txg(), pool.zilla.synced_txg());
    let kept = TXG_HISTORY.get().min(MOST_TXGS);
    let mut txgs = "txg              state\n".to_owned();
    let known = (synced + 1).saturating_sub(kept).max(pool.opened_txg);
    txgs.extend((known..=synced).filter(|_| kept > 0).map(|txg| format!("{txg:<16} C\n")));
    txgs.push_str(&format!("{open:<16} O\n"));
    [(folder.join("state"), format!("{state}\n")), (folder.join("txgs"), txgs)]
}

fn word(state: VdevState) -> &'static str {
    match state {
        VdevState::Healthy => "ONLINE",
        VdevState::Degraded => "DEGRADED",
        VdevState::Faulted => "FAULTED",
        VdevState::Offline => "OFFLINE",
        VdevState::Removed => "REMOVED",
        _ => "UNAVAIL",
    }
}
