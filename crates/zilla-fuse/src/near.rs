//! Keeping a lone client and the thread that serves it on one core.
//!
//! A program that works on small files asks, sleeps, and is woken by the answer. If any other core is idle the kernel wakes it there, because
//! the one at hand is busy: with the thread that answers. On a virtual machine, where an idle core is woken through the hypervisor, that
//! takes 25 to 125 us, several times what the request does. So a thread answers under the policy SCHED_IDLE. A core on which only such run
//! counts as idle; the client is woken on the spot and goes on at once, and the thread, which is its usual self again as soon as it runs on,
//! finds the next request waiting when the client sleeps: nobody was woken by anybody.
//!
//! For that the client must have been on this core before. If it is on another, which shows by its requests never being there at once, the thread
//! goes where it is.
//!
//! A thread that was interrupted in that moment stays away while others keep the core busy. It then holds no lock and has no request in hand, but
//! whoever asks next waits for it. So only answers to one client's stream of short requests are given so, none while the engine's workers
//! leave no core idle (nothing lures the client away then), and for some time none after one that the thread came back from late.
//!
//! Returning from SCHED_IDLE takes CAP_SYS_NICE or `RLIMIT_NICE` of 20 or more (sched(7)), so for ordinary users all stays as it is unless they are granted that.
//!
//! Measured on two virtual cores, one process: 2.5 times as many files of 4K created (5,400 -> 13,800 a second), twice as many removed
//! (13,000 -> 27,000); four processes as before.

use std::time::{Duration, Instant};
use zilla_env::Backoff;
use zilla_env::schedule_as;

/// So many answers to the same client are a stream.
const STREAM: u32 = 16;
/// So many requests in a row that were not there at once: the client is elsewhere.
const ELSEWHERE: u32 = 4;
/// Whoever comes back later was not waited for by this client alone.
const LATE: Duration = Duration::from_millis(2);
/// So many timely answers make up for a late one.
const TIMELY: u32 = 1000;

/// One thread's part in it.
pub(crate) struct Near {
    able: bool,
    /// The thread of the last request, by its number.
    client: u32,
    /// How many of its requests were answered one after the other.
    stream: u32,
    /// The last answer was given to be interrupted, and nothing was read since.
    answered: bool,
    elsewhere: u32,
    moves: Backoff,
    timely: u32,
    late: Backoff,
}

impl Near {
    pub(crate) fn new(able: bool) -> Near {
        let (moves, late) = (Backoff::new(3, 12), Backoff::new(6, 13));
        Near { able, client: 0, stream: 0, answered: false, elsewhere: 0, moves, timely: 0, late }
    }

    /// Answers a request of this client; `apt`: a short one with none waiting behind it, while a core is idle.
    pub(crate) fn answer(&mut self, client: u32, apt: bool, answer: impl FnOnce()) {
        self.stream = if client == self.client { self.stream.saturating_add(1) } else { 0 };
        self.client = client;
        if !self.able || !apt || self.stream < STREAM || !self.late.ready() {
            return answer();
        }
        let from = Instant::now();
        if !schedule_as(libc::SCHED_IDLE) {
            return answer();
        }
        answer();
        self.able = schedule_as(libc::SCHED_OTHER);
        if !self.able {
            tracing::error!(
                "a thread may not return from SCHED_IDLE, and will be slow while others are busy"
            );
        }
        self.answered = true;
        if from.elapsed() > LATE {
            self.late.in_vain();
            self.timely = 0;
        } else {
            self.timely += 1;
            if self.timely == TIMELY {
                self.late.was_of_use();
                self.timely = 0;
            }
        }
    }

    /// Whether the next request was there at once.
    pub(crate) fn next(&mut self, at_once: bool) {
        if !std::mem::take(&mut self.answered) {
            return;
        }
        if at_once {
            self.elsewhere = 0;
            self.moves.was_of_use();
            return;
        }
        self.elsewhere += 1;
        if self.elsewhere >= ELSEWHERE && self.moves.ready() {
            self.elsewhere = 0;
            self.moves.in_vain();
            follow(self.client);
        }
    }
}

/// Goes to the core where a thread ran last.
fn follow(thread: u32) {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    if let Some(core) = core(&stat) {
        zilla_env::go_to_core(core);
    }
}

/// The 39th field of a thread's `stat`. The second is its name, in parentheses, and may have anything in it.
fn core(stat: &str) -> Option<usize> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// Whether threads may go to SCHED_IDLE and come back. Tried by one that ends with it.
pub(crate) fn able() -> bool {
    let usual = || policy_now() == libc::SCHED_OTHER;
    let tried = move || usual() && schedule_as(libc::SCHED_IDLE) && schedule_as(libc::SCHED_OTHER) && usual();
    std::thread::spawn(tried).join().unwrap_or(false)
}

fn policy_now() -> i32 {
    // SAFETY: takes and returns numbers; 0 is the calling thread.
    unsafe { libc::sched_getscheduler(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_is_read_past_any_name() {
        let rest: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let stat = format!("7 (a) R 1 2) {}", rest.join(" "));
        assert_eq!(core(&stat), Some(39));
        assert_eq!(core("7 (a) R"), None);
        assert_eq!(core(""), None);
        let own = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        assert!(core(&own).unwrap() < rustix::thread::CpuSet::MAX_CPU);
    }

    #[test]
    fn the_thread_is_its_usual_self_after_each_answer() {
        let able = able();
        let mut near = Near::new(able);
        let mut idle = 0;
        for _ in 0..3 * STREAM {
            near.answer(7, true, || idle += u32::from(policy_now() == libc::SCHED_IDLE));
            assert_eq!(policy_now(), libc::SCHED_OTHER);
        }
        // One that came back late ends it for a while.
        assert_eq!(idle > 0, able, "of a stream");
        for client in 0..3 * STREAM {
            near.answer(client, true, || assert_eq!(policy_now(), libc::SCHED_OTHER, "of several clients"));
        }
        (0..2 * STREAM).for_each(|_| near.answer(7, false, || ()));
        near.answer(7, false, || assert_eq!(policy_now(), libc::SCHED_OTHER, "others wait"));
    }

    #[test]
    fn who_is_late_does_not_do_it_again_soon() {
        let mut near = Near::new(able());
        let mut idle = Vec::new();
        for i in 0..500 {
            near.answer(7, true, || {
                if policy_now() == libc::SCHED_IDLE {
                    idle.push(i);
                    std::thread::sleep(2 * LATE);
                }
            });
        }
        assert!(idle.windows(2).all(|w| w[1] - w[0] >= 64), "{idle:?}");
        assert_eq!(idle.len() > 1, able(), "it is tried again");
    }
}
