//! The memory of a pool goes back to the system when the pool is closed.
//!
//! Three things would keep it: the caches, as long as anybody holds the pool; the free buffers,
//! which an open pool looks after (the engine's budget of memory) and a closed one no more; and
//! what the C library has freed but keeps for the next request. So who closes a pool empties its
//! caches, and when the last user has let go the other two are emptied. Nothing is lost by it:
//! whatever is needed again is asked for again.
//!
//! The C library's heap is kept small from the beginning ([`bound_heap`]).

#[cfg(target_env = "gnu")]
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use zilla::manage::Remains;

/// How often it is looked whether somebody still uses a closed pool, and how many times.
const LOOK: Duration = Duration::from_millis(100);
const LOOKS: usize = 300;

/// Gives back what a closed pool leaves, as soon as nobody uses it any more.
pub fn reclaim(name: String, pool: Remains) {
    tokio::spawn(async move {
        let mut looks = 0;
        while pool.is_in_use() && looks < LOOKS {
            tokio::time::sleep(LOOK).await;
            looks += 1;
        }
        if pool.is_in_use() {
            tracing::warn!("pool '{name}' is closed, but something still holds its memory");
        }
        let given = tokio::task::spawn_blocking(|| {
            zilla_env::trim_pool();
            zilla_env::trim_heap();
        });
        if let Err(e) = given.await {
            tracing::error!("giving memory back: {e}");
        }
    });
}

/// With less memory than this the heap is kept small at some cost.
const LITTLE: u64 = 1 << 30;

/// Has glibc's heap two arenas for each core where there is little memory, unless who starts the
/// daemon says how many (`MALLOC_ARENA_MAX`): it makes eight, and each keeps what is freed there
/// for the next who asks there. Under the load of `scripts/bounds.py`, with an ARC of 64 MiB and
/// two cores, 45 MiB of the resident set were heap (40 where free pages go back now and then), and
/// are 18. Where there is memory it stays as it is: with fewer arenas making small files took 3 to
/// 4 % more of a core. To be called before there is a second thread.
#[cfg(target_env = "gnu")]
pub fn bound_heap() {
    let said = std::env::var("GLIBC_TUNABLES").is_ok_and(|said| said.contains("arena_max"))
        || std::env::var_os("MALLOC_ARENA_MAX").is_some();
    if said || most(Path::new("/")) >= LITTLE {
        return;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let arenas = libc::c_int::try_from(cores.saturating_mul(2)).unwrap_or(libc::c_int::MAX);
    // SAFETY: may be called at any time; it changes a number that later threads look at.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
}

#[cfg(not(target_env = "gnu"))]
pub fn bound_heap() {}

/// The most memory that the daemon may have: the machine's, what `ulimit -m` says, or what its
/// control group and those above it may have, whichever is least.
#[cfg(target_env = "gnu")]
fn most(root: &Path) -> u64 {
    let number = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let ulimit = rustix::process::getrlimit(rustix::process::Resource::Rss).current;
    let meminfo = std::fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let mut most = ulimit.unwrap_or(u64::MAX).min(total.map_or(u64::MAX, |kib| kib.saturating_mul(1024)));
    let groups = root.join("sys/fs/cgroup");
    let own = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    // The name is relative and of plain components, or it is none of the kernel's.
    let is_plain = Path::new(own).components().all(|c| matches!(c, Component::Normal(_)));
    for group in Path::new(if is_plain { own } else { "" }).ancestors() {
        for name in ["memory.max", "memory.high"] {
            most = most.min(number(groups.join(group).join(name)).unwrap_or(u64::MAX));
        }
    }
    most
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_the_limits_is_the_most_there_may_be() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        // (No test is run with less by `ulimit -m`.)
        write("proc/meminfo", "MemTotal:        1048576 kB\nMemFree: 5 kB\n");
        assert_eq!(most(root.path()), 1 << 30);
        write("proc/self/cgroup", "0::/people/zilla\n");
        write("sys/fs/cgroup/people/zilla/memory.max", "max\n");
        assert_eq!(most(root.path()), 1 << 30);
        write("sys/fs/cgroup/people/memory.high", "536870912\n");
        assert_eq!(most(root.path()), 512 << 20);
        write("sys/fs/cgroup/people/zilla/memory.max", "268435456\n");
        assert_eq!(most(root.path()), 256 << 20);
        write("proc/self/cgroup", "0::/../zilla\n");
        assert_eq!(most(root.path()), 1 << 30);
        write("proc/meminfo", "garbage");
        assert!(most(root.path()) > 1 << 30, "nothing is known");
    }
}
