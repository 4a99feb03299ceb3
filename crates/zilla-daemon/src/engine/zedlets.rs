//! A user's commands for events, as OpenZFS's event daemon runs its zedlets.
//!
//! In the folder `zed.d` of the state folder, the programs whose names begin with `all-`, or with
//! an event's class or the last part of it and a dash (`statechange-mail`, `scrub_finish-mail`),
//! are run for each event, in the order of their names (`zilla_control::zedlets`). What is known of
//! the event is in their environment, under the names that zedlets know (`ZEVENT_POOL`,
//! `ZEVENT_VDEV_PATH`, ...).
//!
//! One runs at a time, and none longer than [`LONGEST`]: then it is ended, with what it has begun.
//! Events that come meanwhile wait in the ring, which is bounded, so a flood of events costs the
//! oldest of them and nothing else. The daemon runs what only its own user could have put there.

use super::Engine;
use super::events::info;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::VecDeque;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use zilla::events::{Event, events};
pub(super) use zilla_control::zedlets::own;
use zilla_control::zedlets::{PATH, environment, programs};

/// OpenZFS's limit for a zedlet.
const LONGEST: Duration = Duration::from_secs(10);
/// Between two events that run something.
const PAUSE: Duration = Duration::from_millis(20);

impl Engine {
    /// Runs the commands from now on, until the daemon ends.
    pub(super) fn run_zedlets(&self) {
        let dir = self.handle.state_dir().path().join("zed.d");
        let mut coming = Coming::new("the commands for them");
        tokio::spawn(async move {
            loop {
                let event = coming.next().await;
                if handle(&dir, &event).await {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        });
    }
}

/// The events from the daemon's start on, one after the other.
pub(super) struct Coming {
    /// How the log calls what is done with them.
    what: &'static str,
    last: u64,
    found: VecDeque<Arc<Event>>,
}

impl Coming {
    pub(super) fn new(what: &'static str) -> Coming {
        Coming { what, last: 0, found: VecDeque::new() }
    }

    pub(super) async fn next(&mut self) -> Arc<Event> {
        loop {
            if let Some(event) = self.found.pop_front() {
                self.last = event.eid;
                return event;
            }
            let bell = events().listen();
            let (found, lost) = events().after(self.last);
            if lost > 0 {
                tracing::warn!("{lost} events came faster than {} could run", self.what);
            }
            self.found.extend(found);
            if self.found.is_empty() {
                bell.await;
            }
        }
    }
}

/// Runs what there is for an event; whether there was anything.
async fn handle(dir: &Path, event: &Event) -> bool {
    let programs = programs(dir, &event.class, false);
    for program in &programs {
        let mut command = tokio::process::Command::new(program);
        command.env_clear().env("PATH", PATH).envs(environment(&info(event)));
        command.env("ZED_ZEDLET_DIR", dir).current_dir("/").kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let ended = match command.spawn() {
            Ok(mut child) => {
                let group = child.id();
                let ended = tokio::time::timeout(LONGEST, child.wait()).await;
                if ended.is_err() {
                    end_group(group);
                }
                ended
            }
            Err(e) => {
                tracing::warn!("{}: {e}", program.display());
                continue;
            }
        };
        match ended {
            Ok(Ok(status)) if status.success() => {}
            Ok(Ok(status)) => tracing::warn!("{}: {status} on {}", program.display(), event.class),
            Ok(Err(e)) => tracing::warn!("{}: {e}", program.display()),
            Err(_) => {
                let limit = LONGEST.as_secs();
                tracing::warn!("{} runs for more than {limit} s: it is ended", program.display());
            }
        }
    }
    !programs.is_empty()
}

/// Ends a program that leads its group, and all of the group.
pub(super) fn end_group(leader: Option<u32>) {
    let group = leader.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(Err(e)) = group.map(|group| kill_process_group(group, Signal::KILL)) {
        tracing::debug!("ending a command: {e}");
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    /// A program that waits for another, which it has begun.
    pub(in super::super) struct Hung {
        pub program: PathBuf,
        pid: PathBuf,
    }

    impl Hung {
        pub fn in_folder(dir: &Path, name: &str) -> Hung {
            let (program, pid) = (dir.join(name), dir.join("pid"));
            let begins = "#!/bin/sh\nsleep 1000 &\necho $! >\"$(dirname \"$0\")/pid\"\nwait\n";
            // Written by another process: a child of ours that is being started would have it open.
            let writes = ["-c", "printf %s \"$1\" >\"$0\" && chmod 700 \"$0\""];
            let mut shell = std::process::Command::new("sh");
            assert!(shell.args(writes).arg(&program).arg(begins).status().unwrap().success());
            Hung { program, pid }
        }

        pub async fn has_begun(&self) {
            while !std::fs::read_to_string(&self.pid).is_ok_and(|text| text.ends_with('\n')) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }

        /// Waits until the other has ended.
        pub fn ends(&self) {
            let stat = format!("/proc/{}/stat", std::fs::read_to_string(&self.pid).unwrap().trim());
            let lives = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
            let until = std::time::Instant::now() + Duration::from_secs(20);
            while lives() {
                assert!(std::time::Instant::now() < until, "what it began goes on");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_ended_with_what_it_has_begun() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let hung = Hung::in_folder(dir.path(), "all-hang");
        let time = Duration::default();
        let event = Event { eid: 1, time, class: "c".to_owned(), payload: zilla_ondisk::NvList::new() };
        let passes = async {
            hung.has_begun().await;
            tokio::time::pause();
            tokio::time::advance(LONGEST).await;
            tokio::time::resume();
        };
        assert!(tokio::join!(handle(dir.path(), &event), passes).0);
        hung.ends();
    }
}
