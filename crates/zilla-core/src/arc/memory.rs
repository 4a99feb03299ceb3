//! How much memory the cache may take: what the machine and the cgroup leave.
//!
//! The most it may ever take is half of the memory this process can have. While it runs it looks once a second how much is
//! left; when that gets short it shrinks at once by what is missing, and when there is plenty it grows back in small steps.

use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;

use zilla_env::{Env, Opener};

use super::Cache;
use crate::spa::txg::DirtyLimits;

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
    let own = opener.read_file(Path::new("/proc/self/cgroup")).await.unwrap_or_default();
    let own = String::from_utf8_lossy(&own).into_owned();
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
    Some(Memory { total, available })
}

/// A sixteenth of the memory is kept free for everyone else.
fn reserve(memory: &Memory) -> u64 {
    memory.total / 16
}

/// What the limit should become with this much memory left.
pub fn adjusted(limit: u64, used: u64, memory: &Memory) -> u64 {
    let reserve = reserve(memory);
    if memory.available < reserve {
        used.min(limit).saturating_sub(reserve - memory.available)
    } else if memory.available > 2 * reserve {
        limit.saturating_add((memory.available - 2 * reserve) / 16)
    } else {
        limit
    }
}

/// How often free buffers that nobody used in between go back to the system, in seconds: much longer than from one txg to the next,
/// whose syncs need and free the same ones again.
const AGING: u32 = 30;

/// How much of this process's memory dirty data may take, and free buffers with it: what one txg's sync frees the next one's needs.
pub async fn dirty_limits(env: &Env) -> DirtyLimits {
    let Some(memory) = read(&*env.opener).await else { return DirtyLimits::default() };
    let limits = DirtyLimits::of_memory(memory.total);
    zilla_env::set_pool_limit(limits.max as usize);
    limits
}

/// Looks after the limit, and after the free buffers, until the cache is gone. To be spawned.
pub async fn watch(arc: Weak<Cache>, env: Env) {
    let mut seconds = 0;
    // Where there is nothing to be known about memory this ends before it waits for anything.
    while let Some(memory) = read(&*env.opener).await {
        match arc.upgrade() {
            Some(arc) => arc.set_limit(adjusted(arc.limit(), arc.size(), &memory)),
            None => return,
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
