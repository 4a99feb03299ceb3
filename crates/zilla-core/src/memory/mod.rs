//! How much memory this process may have, and what is left of it: what the machine and the cgroup say.
//!
//! **Floor 8.** It stands on the caches that it divides the memory among.
//!
//! What the process may have is the machine's memory, or what its control group or `ulimit -m` allow (no kernel enforces
//! the latter any more: it is there to say what a program is to make do with).
//!
//! Each pool's cache has a task ([`watch`]) that reads this once a second. What follows from it for the pools' caches,
//! dirty data and objects is divided in one place ([`budget`]).
//!
//! **Invariants.** What all pools together may take is what one pool alone might. Where nothing is known of the memory (a simulated
//! world) nothing is changed. A crash concerns none of this.
//!
//! **Locks.** The list of open pools is locked before any other lock.

mod budget;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use zilla_env::{Env, Opener};

use crate::arc::Cache;
use crate::dmu::DbufCache;
use crate::dmu::objects::OBJECT_BYTES;
use crate::txg::TxgState;

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What this process can have at most.
    pub total: u64,
    /// What is left of it now.
    pub available: u64,
}

impl Memory {
    /// The cache's largest size in this much memory.
    pub fn arc_max(&self) -> u64 {
        self.total / 2
    }
}

async fn number(opener: &dyn Opener, path: PathBuf) -> Option<u64> {
    let text = opener.read_file(&path).await.ok()?;
    // "max" says that there is no limit.
    std::str::from_utf8(&text).ok()?.trim().parse().ok()
}

async fn text(opener: &dyn Opener, path: &str) -> String {
    let text = opener.read_file(Path::new(path)).await.unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// `ulimit -m`, from `/proc/self/limits`; None: there is no limit.
fn resident_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|l| l.strip_prefix("Max resident set"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with(name))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Reads what the kernel says; `None` where there is no kernel to ask (a simulated world).
pub async fn read(opener: &dyn Opener) -> Option<Memory> {
    let meminfo = opener.read_file(Path::new("/proc/meminfo")).await.ok()?;
    let meminfo = String::from_utf8_lossy(&meminfo);
    let mut total = field(&meminfo, "MemTotal:")?;
    let mut available = field(&meminfo, "MemAvailable:")?;
    // The limits of our cgroup and of all above it count (version 2; its root has none).
    let own = text(opener, "/proc/self/cgroup").await;
    let path = own.lines().find_map(|l| l.strip_prefix("0::/")).unwrap_or_default().to_owned();
    let mut dir = Path::new("/sys/fs/cgroup").join(path);
    loop {
        if let Some(max) = number(opener, dir.join("memory.max")).await {
            let used = number(opener, dir.join("memory.current")).await.unwrap_or(0);
            total = total.min(max);
            available = available.min(max.saturating_sub(used));
        }
        if dir == Path::new("/sys/fs/cgroup") || !dir.pop() {
            break;
        }
    }
    if let Some(max) = resident_limit(&text(opener, "/proc/self/limits").await) {
        let used = field(&text(opener, "/proc/self/status").await, "VmRSS:").unwrap_or(0);
        total = total.min(max);
        available = available.min(max.saturating_sub(used));
    }
    Some(Memory { total, available })
}

/// A sixteenth of the memory is kept free for everyone else.
fn reserve(memory: &Memory) -> u64 {
    memory.total / 16
}

/// How often free buffers that nobody used in between go back to the system, in seconds: much longer than from one txg to the next,
/// whose syncs need and free the same ones again.
const AGING: u32 = 30;

/// A thirty-second of the memory is for objects that nobody uses.
fn idle_objects(memory: &Memory) -> usize {
    (memory.total / 32 / OBJECT_BYTES).max(1024) as usize
}

/// A pool is being opened: it gets its part of this process's memory ([`budget`]).
pub async fn join(env: &Env, arc: &Arc<Cache>, txgs: &Arc<TxgState>, dbufs: &Arc<DbufCache>) {
    if let Some(memory) = read(&*env.opener).await {
        budget::join(arc, txgs, dbufs, &memory);
    }
}

/// Looks after a cache's limit, and after the free buffers, until the cache is gone. To be spawned.
pub async fn watch(arc: Weak<Cache>, env: Env) {
    let mut seconds = 0;
    // Where there is nothing to be known about memory this ends before it waits for anything.
    while let Some(memory) = read(&*env.opener).await {
        match arc.upgrade() {
            Some(arc) => budget::adjust(&arc, &memory),
            None => {
                // What it left is nobody's working set.
                zilla_env::trim_pool();
                return;
            }
        }
        if memory.available < reserve(&memory) {
            zilla_env::trim_pool();
        } else if seconds % AGING == 0 {
            zilla_env::age_pool();
        }
        seconds += 1;
        env.sleep(Duration::from_secs(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_resident_set_is_found() {
        let limits = |soft: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max core file size        0                    unlimited            bytes     \n\
                 Max resident set          {soft:<20} unlimited            bytes     \n"
            )
        };
        assert_eq!(resident_limit(&limits("536870912")), Some(512 << 20));
        assert_eq!(resident_limit(&limits("unlimited")), None);
        assert_eq!(resident_limit(""), None);
    }
}
