//! Many mounts of one daemon cost little and all are served, also beside busy ones.

use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zilla_e2e::{Kind, Need, Pool, World, can};

const MOUNTS: usize = 200;
/// With the engine's workers, io_uring's, and what serves the commands.
const MOST_THREADS: u64 = 48;
/// In KiB: the engine's own and less than a MiB a mount.
const MOST_MEMORY: u64 = 256 << 10;

fn of_process(pid: rustix::process::Pid, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).expect("status");
    let line = status.lines().find_map(|l| l.strip_prefix(field)).expect(field);
    line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn two_hundred_mounts_take_few_threads_and_all_are_served() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 512 << 20, &[]);
    for i in 0..MOUNTS {
        world.zfs(&format!("create tank/f{i}")).ok();
    }
    let pid = world.pid().expect("a daemon");
    let stop = AtomicBool::new(false);
    let slowest = std::thread::scope(|threads| {
        // More busy mounts than the crew has threads.
        for i in 0..20 {
            let (dir, stop) = (pool.root().join(format!("f{i}")), &stop);
            threads.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    fs::write(dir.join("busy"), "busy").expect("write");
                    assert_eq!(fs::read(dir.join("busy")).expect("read"), b"busy");
                }
            });
        }
        let mut slowest = Duration::ZERO;
        for i in 20..MOUNTS {
            let (path, begin) = (pool.root().join(format!("f{i}/file")), Instant::now());
            let mut file = fs::File::create(&path).expect("create");
            file.write_all(path.as_os_str().as_encoded_bytes()).expect("write");
            slowest = slowest.max(begin.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        slowest
    });
    let (count, memory) = (of_process(pid, "Threads:"), of_process(pid, "VmRSS:"));
    eprintln!("{count} threads, {memory} KiB, slowest {slowest:?}");
    assert!(count <= MOST_THREADS, "{count} threads");
    assert!(memory <= MOST_MEMORY, "{memory} KiB");
    assert!(slowest < Duration::from_secs(5), "a mount waited {slowest:?} beside busy ones");
    for i in 20..MOUNTS {
        let path = pool.root().join(format!("f{i}/file"));
        assert_eq!(fs::read(&path).expect("read"), path.as_os_str().as_encoded_bytes());
    }
    pool.judge();
}
