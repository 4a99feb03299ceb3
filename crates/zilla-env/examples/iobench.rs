//! What a device's I/O costs the host: CPU seconds per GiB and thread switches per operation, by backend.
//!
//! `cargo run --release -p zilla-env --example iobench -- [DIR...]` (default: /dev/shm and the temporary directory)

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{RUsage, getrusage};
use zilla_env::{Env, IoBackend, IoBuf, IoOp, OpenMode, RealConfig, real_env_with};

const BLOCK: usize = 128 << 10;
const SIZE: u64 = 256 << 20;
const BATCH: usize = 16;

mod rusage {
    use std::fs;
    use std::time::Duration;

    /// CPU time and context switches of the whole process so far.
    pub fn now() -> (Duration, u64) {
        let mut switches = 0;
        for task in fs::read_dir("/proc/self/task").unwrap() {
            let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
            for line in status.lines().filter(|l| l.contains("ctxt_switches")) {
                switches += line.split_whitespace().last().unwrap().parse::<u64>().unwrap();
            }
        }
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        (Duration::from_millis(ticks * 10), switches)
    }
}
