//! What a stretch of work cost this process and how busy the machine was meanwhile.

use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// Counters at one moment.
pub struct Mark {
    at: Instant,
    cpu: f64,
    system: f64,
    switches: u64,
    faults: u64,
    machine: (f64, f64),
}

/// The difference of two.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    pub seconds: f64,
    /// CPU seconds of this process, and those of them in the kernel.
    pub cpu: f64,
    pub system: f64,
    pub switches: u64,
    pub faults: u64,
    /// The share of the machine's CPU time that others had.
    pub foreign: f64,
}

/// Linux's USER_HZ, the unit of /proc's times on every platform that matters.
const TICKS: f64 = 100.0;

impl Mark {
    pub fn now() -> Mark {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The program's name, in brackets, may contain anything; fields count from behind it.
        let fields: Vec<f64> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .map(|f| f.parse().unwrap_or(0.0))
            .collect();
        let field = |i: usize| fields.get(i).copied().unwrap_or(0.0);
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Mark {
            at: Instant::now(),
            cpu: cpu.tv_sec as f64 + cpu.tv_nsec as f64 * 1e-9,
            system: field(12) / TICKS,
            switches: switches(),
            faults: (field(7) + field(9)) as u64,
            machine: machine(),
        }
    }

    pub fn spent(&self) -> Spent {
        let end = Mark::now();
        let cpu = end.cpu - self.cpu;
        let (busy, total) = (end.machine.0 - self.machine.0, end.machine.1 - self.machine.1);
        Spent {
            seconds: (end.at - self.at).as_secs_f64(),
            cpu,
            system: end.system - self.system,
            switches: end.switches.saturating_sub(self.switches),
            faults: end.faults.saturating_sub(self.faults),
            foreign: if total > 0.0 { ((busy - cpu * TICKS) / total).max(0.0) } else { 0.0 },
        }
    }
}

/// Context switches of all threads that live.
fn switches() -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let count = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let lines = text.lines().filter(|l| l.contains("ctxt_switches"));
        lines.filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>()
    };
    tasks.flatten().map(|t| count(t.path())).sum()
}

/// Busy and total ticks of all cores.
fn machine() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let v: Vec<f64> = line.split_whitespace().skip(1).take(8).map(|f| f.parse().unwrap_or(0.0)).collect();
    let total: f64 = v.iter().sum();
    let idle: f64 = v.iter().skip(3).take(2).sum();
    (total - idle, total)
}
