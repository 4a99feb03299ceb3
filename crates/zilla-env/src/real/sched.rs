//! The kernel's scheduler, as far as a thread chooses for itself: its policy, and its core.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

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
