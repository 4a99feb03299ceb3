//! What a device's I/O costs the host, by backend: CPU seconds per GiB and thread switches per
//! operation.
//!
//! `cargo run --release -p zilla-env --example iobench -- [DIR...]` (without a directory: /dev/shm
//! and the temporary directory). Each line is one backend, one operation and one way of asking: one
//! 128 KiB block at a time, or 16 of them in a batch, from two tasks at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use zilla_env::{Device, Env, IoBackend, IoBuf, IoOp, OpenMode, RealConfig, real_env_with};

const BLOCK: u64 = 128 << 10;
const SIZE: u64 = 256 << 20;
const TASKS: u64 = 2;
const ROUNDS: u64 = 4;

fn main() {
    let mut dirs: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if dirs.is_empty() {
        dirs = vec![PathBuf::from("/dev/shm"), std::env::temp_dir()];
    }
    println!(
        "{:<12}{:<10}{:<8}{:<7}{:>6}{:>10}{:>12}{:>12}",
        "dir", "backend", "direct", "op", "batch", "GiB/s", "CPU s/GiB", "switches/op"
    );
    for dir in &dirs {
        for io in [IoBackend::Inline, IoBackend::Uring, IoBackend::Threads] {
            for batch in [1, 16] {
                if let Err(e) = bench(dir, io, batch) {
                    println!("{:<12}{io:?}: {e}", dir.display());
                }
            }
        }
    }
}

fn bench(dir: &Path, io: IoBackend, batch: u64) -> std::io::Result<()> {
    let env = real_env_with(RealConfig { threads: 2, io, direct: true });
    let path = dir.join(format!("iobench-{}", std::process::id()));
    env.block_on(env.opener.create_file(&path, SIZE))?;
    let mode = OpenMode { write: true, exclusive: true };
    let device = env.block_on(env.open(&path, mode));
    // The name is no longer needed, and this way it is gone whatever happens.
    fs::remove_file(&path)?;
    let device = device?;
    // The first pass allocates the file's blocks; only later ones are measured.
    run(&env, &device, true, batch, 1);
    for write in [true, false] {
        let (cpu, switches, start) = (cpu_time(), switches(), Instant::now());
        run(&env, &device, write, batch, ROUNDS);
        let gib = (SIZE * ROUNDS) as f64 / (1u64 << 30) as f64;
        let ops = (SIZE * ROUNDS / BLOCK) as f64;
        let info = device.info();
        println!(
            "{:<12}{:<10}{:<8}{:<7}{:>6}{:>10.2}{:>12.3}{:>12.2}",
            dir.display(),
            info.backend,
            info.direct,
            if write { "write" } else { "read" },
            batch,
            gib / start.elapsed().as_secs_f64(),
            (cpu_time() - cpu).as_secs_f64() / gib,
            self::switches().saturating_sub(switches) as f64 / ops,
        );
    }
    Ok(())
}

fn run(env: &Env, device: &Arc<dyn Device>, write: bool, batch: u64, rounds: u64) {
    let tasks: Vec<_> = (0..TASKS)
        .map(|t| {
            let device = device.clone();
            env.spawn_with_result(async move {
                let data = IoBuf::zeroed(BLOCK as usize).into_bytes();
                let share = SIZE / TASKS;
                for _ in 0..rounds {
                    for first in (0..share / BLOCK).step_by(batch as usize) {
                        let offsets = (first..first + batch).map(|n| t * share + n * BLOCK);
                        let ops = offsets.map(|offset| match write {
                            true => IoOp::Write { offset, data: [data.clone()].into_iter().collect() },
                            false => IoOp::Read { offset, buf: IoBuf::scratch(BLOCK as usize) },
                        });
                        let results = device.batch(ops.collect()).await;
                        results.into_iter().for_each(|r| drop(r.expect("I/O failed")));
                    }
                }
            })
        })
        .collect();
    env.block_on(async {
        for task in tasks {
            task.await;
        }
    });
}

fn cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Context switches, voluntary or not, of all threads that still run (idle I/O threads end, and
/// take their count with them).
fn switches() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("no /proc");
    let status = tasks.flatten().filter_map(|t| fs::read_to_string(t.path().join("status")).ok());
    let counts = status.flat_map(|s| {
        let lines = s.lines().filter(|l| l.contains("ctxt_switches"));
        lines.filter_map(|l| l.split_whitespace().last()?.parse::<u64>().ok()).collect::<Vec<_>>()
    });
    counts.sum()
}
