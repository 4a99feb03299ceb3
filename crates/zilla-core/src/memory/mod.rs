//! How much memory this process may have, and what is left of it: what the machine and the cgroup
//! say.
//!
//! **Floor 8.** It stands on the caches that it divides the memory among.
//!
//! What the process may have is the machine's memory, or what its control group or `ulimit -m`
//! allow (no kernel enforces the latter any more: it is there to say what a program is to make do
//! with).
//!
//! Each pool's cache has a task ([`watch`]) that reads this once a second. What follows from it for
//! the pools' caches, dirty data and objects is divided in one place ([`budget`]); what an
//! administrator chose instead is judged in another ([`Chosen`]).
//!
//! **Invariants.** What all pools together may take is what one pool alone might. Where nothing is
//! known of the memory (a simulated world) nothing is changed. A crash concerns none of this.
//!
//! **Locks.** The list of open pools is locked before any other lock.

mod budget;
mod chosen;

pub use budget::{chosen, shortages};
pub use chosen::Chosen;

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

    /// What is to be left of it for everyone else, a sixteenth: caches give way where it is not.
    pub fn reserve(&self) -> u64 {
        reserve_of(self.total)
    }

    /// Whether caches may grow.
    pub fn is_ample(&self) -> bool {
        self.available > 2 * self.reserve()
    }
}

async fn number(opener: &dyn Opener, path: PathBuf) -> Option<u64> {
    let text = opener.read_file(&path).await.ok()?;
    // "max" says that there is no limit.
    std::str::from_utf8(&text).ok()?.trim().parse().ok()
}

async fn text(opener: &dyn Opener, path: &Path) -> String {
    let text = opener.read_file(path).await.unwrap_or_default();
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

/// Bytes of the page cache of a control group that the kernel takes back before it lets anyone
/// wait, from its `memory.stat`. A pool on files fills what its group may have with such pages:
/// they are no reason to shrink the ARC.
fn reclaimable(stat: &str) -> u64 {
    let of = |name: &str| {
        let line = stat.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    of("inactive_file").saturating_add(of("slab_reclaimable"))
}

/// In how many of a hundred of the last ten seconds somebody waited for memory (pressure stall
/// information, PSI).
fn waited(pressure: &str) -> Option<f64> {
    let some = pressure.lines().find_map(|l| l.strip_prefix("some "))?;
    some.split_whitespace().find_map(|w| w.strip_prefix("avg10="))?.parse().ok()
}

/// Reads what the kernel says; `None` where there is no kernel to ask (a simulated world).
pub async fn read(opener: &dyn Opener) -> Option<Memory> {
    read_below(opener, Path::new("/")).await
}

/// The same of the kernel's files below `root`.
async fn read_below(opener: &dyn Opener, root: &Path) -> Option<Memory> {
    let meminfo = opener.read_file(&root.join("proc/meminfo")).await.ok()?;
    let meminfo = String::from_utf8_lossy(&meminfo);
    let mut total = field(&meminfo, "MemTotal:")?;
    let mut available = field(&meminfo, "MemAvailable:")?;
    // The limits of our cgroup and of all above it count (version 2; its root has none). Beyond
    // `memory.high` the kernel slows the group down, so it is as much a limit as `memory.max`.
    let groups = root.join("sys/fs/cgroup");
    let own = text(opener, &root.join("proc/self/cgroup")).await;
    let own = own.lines().find_map(|l| l.strip_prefix("0::/")).unwrap_or_default();
    // The name is relative and of plain components, or it is none of the kernel's.
    let plain = Path::new(own).components().all(|c| matches!(c, std::path::Component::Normal(_)));
    let mut dir = if plain { groups.join(own) } else { groups.clone() };
    // The own group's, where it is told: another group that lives at its own limit is no reason for
    // this one to give way.
    let stalled = match waited(&text(opener, &dir.join("memory.pressure")).await) {
        None => waited(&text(opener, &root.join("proc/pressure/memory")).await),
        own => own,
    };
    loop {
        let mut limit = None;
        for name in ["memory.max", "memory.high"] {
            if let Some(most) = number(opener, dir.join(name)).await {
                limit = Some(limit.unwrap_or(most).min(most));
            }
        }
        if let Some(limit) = limit {
            let used = number(opener, dir.join("memory.current")).await.unwrap_or(0);
            let kept = used.saturating_sub(reclaimable(&text(opener, &dir.join("memory.stat")).await));
            total = total.min(limit);
            available = available.min(limit.saturating_sub(kept));
        }
        if dir == groups || !dir.pop() {
            break;
        }
    }
    if let Some(max) = resident_limit(&text(opener, &root.join("proc/self/limits")).await) {
        let used = field(&text(opener, &root.join("proc/self/status")).await, "VmRSS:").unwrap_or(0);
        total = total.min(max);
        available = available.min(max.saturating_sub(used));
    }
    if stalled.is_some_and(|share| share >= STALLED) {
        available = available.min(reserve_of(total) / 2);
    }
    Some(Memory { total, available })
}

/// Percent of ten seconds. When programs wait this long for memory, there is too little of it,
/// whatever the counters of free pages say: the kernel reads back what it has just thrown away. A
/// tenth is where systemd-oomd's and Meta's guides begin to act on `some`.
const STALLED: f64 = 10.0;

fn reserve_of(total: u64) -> u64 {
    total / 16
}

/// How often free buffers that nobody used in between go back to the system, in seconds: much
/// longer than from one txg to the next, whose syncs need and free the same ones again.
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

/// Looks after a cache's limit, after the free buffers and what the heap has free, until the cache
/// is gone. To be spawned.
pub async fn watch(arc: Weak<Cache>, env: Env) {
    watch_below(arc, env, Path::new("/")).await;
}

async fn watch_below(arc: Weak<Cache>, env: Env, root: &Path) {
    // Where there is nothing to be known about memory this ends before it waits for anything.
    let mut said = read_below(&*env.opener, root).await;
    if said.is_none() {
        return;
    }
    let mut seconds = 0;
    loop {
        let Some(arc) = arc.upgrade() else {
            // What it left is nobody's working set.
            zilla_env::trim_pool();
            return;
        };
        // (It may not be told once, when a process has no file descriptor left.)
        if let Some(memory) = said {
            budget::adjust(&arc, &memory);
            if memory.available < memory.reserve() {
                zilla_env::trim_pool();
            } else if seconds % AGING == 0 {
                zilla_env::age_pool();
            }
            zilla_env::age_heap();
        }
        drop(arc);
        seconds = seconds.wrapping_add(1);
        env.sleep(Duration::from_secs(1)).await;
        said = read_below(&*env.opener, root).await;
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

    const MIB: u64 = 1 << 20;

    /// What is read of a kernel that says this. `group`: the files of the process's control group.
    fn said(pressure: &str, group: &[(&str, &str)]) -> Memory {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n");
        write("proc/pressure/memory", pressure);
        write("proc/self/cgroup", "0::/people/zilla\n");
        for (name, text) in group {
            write(&format!("sys/fs/cgroup/people/zilla/{name}"), text);
        }
        let env = zilla_env::real_env(1);
        let found = zilla_env::block_on(read_below(&*env.opener, root.path()));
        found.unwrap()
    }

    #[test]
    fn the_least_of_the_limits_counts_and_cached_pages_are_no_use_of_it() {
        let quiet = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(said(quiet, &[]), Memory { total: 1024 * MIB, available: 512 * MIB });
        let (max, high, none) = ((256 * MIB).to_string(), (128 * MIB).to_string(), "max\n");
        let used = (120 * MIB).to_string();
        let stat = format!("anon {}\ninactive_file {}\nslab_reclaimable 0\n", 20 * MIB, 100 * MIB);
        let of = |max: &str, high: &str, stat: &str| {
            let files = [("memory.max", max), ("memory.high", high), ("memory.current", &used)];
            said(quiet, &[files.as_slice(), &[("memory.stat", stat)]].concat())
        };
        assert_eq!(of(&max, none, ""), Memory { total: 256 * MIB, available: 136 * MIB });
        assert_eq!(of(&max, &high, ""), Memory { total: 128 * MIB, available: 8 * MIB });
        assert_eq!(of(&max, &high, &stat), Memory { total: 128 * MIB, available: 108 * MIB });
        assert_eq!(of(none, none, &stat), Memory { total: 1024 * MIB, available: 512 * MIB });
    }

    /// The ARC gives way while programs wait for memory, also where pages are said to be free.
    #[test]
    fn waiting_for_memory_takes_from_the_arc() {
        let line = |share: &str| format!("some avg10={share} avg60=0.00 avg300=0.00 total=9\nfull avg10=0\n");
        let calm = said(&line("9.99"), &[]);
        assert_eq!(calm.available, 512 * MIB);
        for stalled in [said(&line("10.00"), &[]), said("", &[("memory.pressure", &line("55.50"))])] {
            assert!(stalled.available < stalled.reserve(), "{stalled:?}");
        }
        assert_eq!(said("garbage", &[("memory.pressure", "some avg10=x")]).available, 512 * MIB);
        // Others wait at a limit of their own.
        assert_eq!(said(&line("80.00"), &[("memory.pressure", &line("0.00"))]).available, 512 * MIB);
    }

    /// A clock on which a second is over at once, and something happens in it.
    struct Seconds(parking_lot::Mutex<std::vec::IntoIter<Box<dyn FnOnce() + Send>>>);

    impl zilla_env::Clock for Seconds {
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn wall(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep(&self, _: Duration) -> zilla_env::BoxFuture<'static, ()> {
            if let Some(happens) = self.0.lock().next() {
                happens();
            }
            Box::pin(async {})
        }
    }

    /// What cannot be read for a second is read in the next.
    #[test]
    fn memory_is_looked_after_also_when_it_was_not_told_once() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        let file = root.path().join("proc/meminfo");
        let say = move |text: &str| std::fs::write(&file, text).unwrap();
        say("MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n");
        let (arc, say) = (Arc::new(Cache::new(256 * MIB)), Arc::new(say));
        let (watched, say2, (limit, seen)) = (Arc::downgrade(&arc), say.clone(), std::sync::mpsc::channel());
        let happens: Vec<Box<dyn FnOnce() + Send>> = vec![
            Box::new(move || say("")),
            Box::new(move || say2("MemTotal: 1048576 kB\nMemAvailable: 0 kB\n")),
            // With the last to hold it the cache is gone.
            Box::new(move || limit.send(arc.limit()).unwrap()),
        ];
        let clock = Arc::new(Seconds(parking_lot::Mutex::new(happens.into_iter())));
        let env = Env { clock, ..zilla_env::real_env(1) };
        zilla_env::block_on(watch_below(watched, env, root.path()));
        assert!(seen.recv().is_ok_and(|limit| limit < 256 * MIB));
    }
}
