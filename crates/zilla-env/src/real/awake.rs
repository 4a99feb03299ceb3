//! Keeping a core awake while a thread waits on it for a fast disk.
//!
//! A thread that does its own I/O ([`crate::patience`]) leaves its core with nothing to do, and an idle core sleeps. To wake it for the disk's
//! interrupt costs microseconds on bare metal, and on a virtual machine, where the core is given back to the host, 20 to 40 us: as long again as
//! fast flash takes for a write. So meanwhile a thread of the policy SCHED_IDLE runs on that core and does nothing. Whoever else wants the core gets
//! it at once; what is spent is the core's idle time, and the power that it takes.
//!
//! Where that gains nothing it is not done: of two thousand waits a few are made without, and compared. And as a core other than the one that takes
//! the disk's interrupts would have to be woken by that one, a thread that waits long enough goes there ([`Interrupts`]).
//!
//! One thread at a time is served: where several wait for disks, somebody is awake. And only one that waits for nothing else: those that serve
//! the kernel's FUSE requests share their core with their client by yielding it, and would yield it to the keeper.
//!
//! Measured on a virtual machine of two cores, one thread that writes 8 KiB and waits until they are stable, four times by turns:
//! 6,010, 6,040, 6,170 and 5,560 a second without, 6,870, 7,240, 7,460 and 6,940 with; fio's plain write and fdatasync 6,610 to 7,300. The process is
//! charged 100 to 109 us of CPU time for each then, and 76 to 81 without.

use std::fs::read_to_string;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// A disk that takes longer is not what one stays awake for.
const FAST: Duration = Duration::from_micros(300);

struct Keeper {
    state: Mutex<State>,
    /// Somebody waits, on this core.
    wanted: AtomicBool,
    core: AtomicUsize,
    thread: Thread,
}

#[derive(Default)]
struct State {
    trial: Trial,
    interrupts: Interrupts,
}

/// Runs `wait`, which sleeps until a disk has done something that takes about so long.
pub(super) fn awake<T>(expected: Duration, wait: impl FnOnce() -> T) -> T {
    static KEEPER: OnceLock<Option<&'static Keeper>> = OnceLock::new();
    let keeper = if expected < FAST { *KEEPER.get_or_init(Keeper::start) } else { None };
    let Some((keeper, mut state)) = keeper.and_then(|k| Some((k, k.state.try_lock()?))) else {
        return wait();
    };
    let (kept, core) = (state.trial.next(), sched_getcpu());
    let begin = Instant::now();
    let out = if kept { keeper.keep(core, wait) } else { wait() };
    state.trial.took(kept, begin.elapsed());
    if kept && let Some(to) = state.interrupts.waited(core) {
        go_to(to);
    }
    out
}

impl Keeper {
    /// None: it is not wanted, this process has one core, or can start no thread.
    fn start() -> Option<&'static Keeper> {
        let off = std::env::var_os("ZILLA_AWAKE").is_some_and(|v| v == "0");
        if off || thread::available_parallelism().map_or(1, usize::from) < 2 {
            return None;
        }
        let (tell, told) = std::sync::mpsc::channel::<&'static Keeper>();
        let spinner = thread::Builder::new().name("zilla-awake".into());
        let spinner = spinner.spawn(move || told.recv().into_iter().for_each(Keeper::spin)).ok()?;
        // One for the life of the process.
        let keeper = Box::leak(Box::new(Keeper {
            state: Mutex::default(),
            wanted: AtomicBool::new(false),
            core: AtomicUsize::new(0),
            thread: spinner.thread().clone(),
        }));
        tell.send(keeper).ok()?;
        Some(keeper)
    }

    fn keep<T>(&self, core: usize, wait: impl FnOnce() -> T) -> T {
        self.core.store(core, Ordering::Relaxed);
        self.wanted.store(true, Ordering::Release);
        self.thread.unpark();
        let out = wait();
        self.wanted.store(false, Ordering::Release);
        out
    }

    fn spin(&'static self) {
        if !schedule_as(libc::SCHED_IDLE) {
            return;
        }
        let mut at = usize::MAX;
        loop {
            if !self.wanted.load(Ordering::Acquire) {
                thread::park();
                continue;
            }
            let core = self.core.load(Ordering::Relaxed);
            if core != at {
                let _ = sched_setaffinity(None, &only(core));
                at = core;
            }
            std::hint::spin_loop();
        }
    }
}

/// Gives the calling thread one of the policies that have no priorities (`SCHED_OTHER`, `SCHED_IDLE`). Whether it has it now.
pub fn schedule_as(policy: i32) -> bool {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads one `sched_param`, which lives until it returns; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &param) == 0 }
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        set.set(core);
    }
    set
}

/// Moves the calling thread to a core that it may run on. It may be moved on later.
pub fn go_to(core: usize) {
    let Ok(all) = sched_getaffinity(None) else { return };
    if core == sched_getcpu() || core >= CpuSet::MAX_CPU || !all.is_set(core) {
        return;
    }
    for cores in [only(core), all] {
        let _ = sched_setaffinity(None, &cores);
    }
}

/// Whether it gains anything: how long waits take with and without.
#[derive(Default)]
struct Trial {
    n: u32,
    /// Nanoseconds, without and with.
    usual: [u64; 2],
}

impl Trial {
    /// Of so many waits the first few are without, and as many with.
    const ROUND: u32 = 2048;
    const FEW: u32 = 32;

    fn next(&mut self) -> bool {
        let n = self.n;
        self.n = (n + 1) % Trial::ROUND;
        let [without, with] = self.usual;
        // A tenth of the wait is worth it.
        n >= Trial::FEW && (n < 2 * Trial::FEW || with < without - without / 10)
    }

    fn took(&mut self, kept: bool, wait: Duration) {
        let wait = wait.as_nanos().min(1_000_000) as u64;
        let usual = &mut self.usual[usize::from(kept)];
        *usual = if *usual == 0 { wait } else { *usual - *usual / 16 + wait / 16 };
    }
}

/// Which core the disk's interrupts come to, as far as it is always the same: what /proc/interrupts counts while somebody waits.
#[derive(Default)]
struct Interrupts {
    waits: u32,
    /// Of these on the core they came to.
    there: u32,
    before: Vec<Vec<u64>>,
    core: Option<usize>,
}

impl Interrupts {
    /// Waits that are watched.
    const WATCHED: u32 = 512;
    /// After so many it is looked anew.
    const ANEW: u32 = 1 << 16;
    /// How often a thread that has gone elsewhere is called back.
    const CALL: u32 = 256;

    /// Somebody has waited on this core. Where he should go.
    fn waited(&mut self, core: usize) -> Option<usize> {
        self.waits += 1;
        self.there += u32::from(self.core == Some(core));
        match self.waits {
            Interrupts::CALL => self.before = counts(&read_to_string("/proc/interrupts").unwrap_or_default()),
            n if n == Interrupts::CALL + Interrupts::WATCHED => {
                let after = counts(&read_to_string("/proc/interrupts").unwrap_or_default());
                self.core = most(&std::mem::take(&mut self.before), &after, u64::from(Interrupts::WATCHED));
            }
            Interrupts::ANEW => self.waits = 0,
            _ => {}
        }
        if !self.waits.is_multiple_of(Interrupts::CALL) {
            return None;
        }
        let there = std::mem::take(&mut self.there);
        self.core.filter(|_| there < Interrupts::CALL / 2)
    }
}

/// The counters of each line, one for each core.
fn counts(text: &str) -> Vec<Vec<u64>> {
    // Those of devices have numbers for names; the others are timers, and how cores wake each other.
    let devices = text.lines().filter(|l| l.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    devices.map(|l| l.split_ascii_whitespace().skip(1).map_while(|n| n.parse().ok()).collect()).collect()
}

/// The core of the counter that grew most, if by so much.
fn most(before: &[Vec<u64>], after: &[Vec<u64>], least: u64) -> Option<usize> {
    let grown = before
        .iter()
        .zip(after)
        .flat_map(|(b, a)| b.iter().zip(a).map(|(b, a)| a.saturating_sub(*b)).enumerate());
    grown.filter(|(_, n)| *n >= least).max_by_key(|(_, n)| *n).map(|(core, _)| core)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_done_where_it_gains_something() {
        for (without, with, worth) in [(150, 100, true), (100, 99, false), (100, 130, false)] {
            let mut trial = Trial::default();
            let mut kept = 0;
            for _ in 0..Trial::ROUND {
                let now = trial.next();
                kept += u32::from(now);
                trial.took(now, Duration::from_micros(if now { with } else { without }));
            }
            let all = Trial::ROUND - Trial::FEW;
            assert_eq!(kept, if worth { all } else { Trial::FEW }, "{without} us without, {with} with");
        }
    }

    #[test]
    fn the_core_that_takes_the_disks_interrupts() {
        let text = |disk: u64, timer: u64| {
            format!(
                "           CPU0       CPU1\n 35:  7 {timer}  PCI-MSIX-0000:00:02.0   0-edge      net\n 36:  \
                 9 {disk}  PCI-MSIX\n LOC:  {} 900000   Local timer interrupts\n",
                timer * 10
            )
        };
        let (before, after) = (counts(&text(100, 100)), counts(&text(700, 110)));
        assert_eq!(before, [[7, 100], [9, 100]]);
        assert_eq!(most(&before, &after, 512), Some(1));
        assert_eq!(most(&before, &counts(&text(300, 110)), 512), None, "several cores take them");
        assert_eq!(most(&before, &counts("nothing"), 512), None);
    }

    #[test]
    fn who_is_elsewhere_is_called_now_and_then() {
        let mut i = Interrupts {
            core: Some(1),
            waits: Interrupts::CALL + Interrupts::WATCHED,
            ..Interrupts::default()
        };
        let mut called =
            |core: usize| (0..Interrupts::CALL * 10).filter(|_| i.waited(core) == Some(1)).count();
        assert_eq!((called(0), called(1)), (10, 0));
    }

    #[test]
    fn the_keeper_sleeps_when_nobody_waits() {
        let Some(keeper) = Keeper::start() else {
            assert_eq!(
                thread::available_parallelism().map_or(1, usize::from),
                1,
                "ZILLA_AWAKE=0, or no thread"
            );
            eprintln!("not tested: this process has one core, and nobody is kept awake");
            return;
        };
        let done = keeper.keep(sched_getcpu(), || {
            thread::sleep(Duration::from_millis(20));
            7
        });
        assert_eq!(done, 7);
        // It may have to be given a core to see that it is not wanted.
        let spent = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|t| Some(t.ok()?.path()));
            let of = |t: std::path::PathBuf| {
                let name = read_to_string(t.join("comm")).ok()?;
                (name.trim() == "zilla-awake").then(|| read_to_string(t.join("schedstat")).ok())?
            };
            tasks.filter_map(of).collect::<Vec<_>>()
        };
        let asleep = (0..200).any(|_| {
            let before = spent();
            thread::sleep(Duration::from_millis(50));
            spent() == before
        });
        assert!(asleep, "{:?}", spent());
    }
}
