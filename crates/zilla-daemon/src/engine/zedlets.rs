//! A user's commands for events, as OpenZFS's event daemon runs its zedlets.
//!
//! In the folder `zed.d` of the state folder, the programs whose names begin with `all-`, or with
//! an event's class or the last part of it and a dash (`statechange-mail`, `scrub_finish-mail`),
//! are run for each event, in the order of their names. What is known of the event is in their
//! environment, under the names that zedlets know (`ZEVENT_POOL`, `ZEVENT_VDEV_PATH`, ...).
//!
//! One runs at a time, and none longer than [`LONGEST`]: then it is ended, with what it has begun.
//! Events that come meanwhile wait in the ring, which is bounded, so a flood of events costs the
//! oldest of them and nothing else. The daemon runs what only its own user could have put there.

use super::Engine;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::VecDeque;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use zilla::events::{Event, events};
use zilla_ondisk::NvValue;

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

/// Whether only the daemon's user or root can have written this.
pub(super) fn own(path: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    std::fs::metadata(path).is_ok_and(|m| (m.uid() == uid || m.uid() == 0) && m.mode() & 0o022 == 0)
}

/// Runs what there is for an event; whether there was anything.
async fn handle(dir: &Path, event: &Event) -> bool {
    let programs = programs(dir, &event.class);
    for program in &programs {
        let mut command = tokio::process::Command::new(program);
        command.env_clear().envs(environment(event)).current_dir("/").kill_on_drop(true);
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

/// The programs for a class, in the order of their names.
fn programs(dir: &Path, class: &str) -> Vec<PathBuf> {
    if !own(dir) {
        return Vec::new();
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let subclass = class.rsplit('.').next().unwrap_or(class);
    let wanted = |name: &str| {
        ["all", class, subclass].iter().any(|p| name.strip_prefix(p).is_some_and(|r| r.starts_with('-')))
    };
    let runs = |path: &PathBuf| {
        own(path) && std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o100 != 0)
    };
    let named = entries.flatten().filter(|e| e.file_name().to_str().is_some_and(wanted));
    let mut found: Vec<PathBuf> = named.map(|e| e.path()).filter(runs).collect();
    found.sort();
    found
}

/// What a program is told, by the names that zedlets know.
fn environment(event: &Event) -> Vec<(String, String)> {
    let subclass = event.class.rsplit('.').next().unwrap_or(&event.class);
    let mut all = vec![
        ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("ZED_PID".to_owned(), std::process::id().to_string()),
        ("ZEVENT_EID".to_owned(), event.eid.to_string()),
        ("ZEVENT_CLASS".to_owned(), event.class.clone()),
        ("ZEVENT_SUBCLASS".to_owned(), subclass.to_owned()),
        ("ZEVENT_TIME_SECS".to_owned(), event.time.as_secs().to_string()),
        ("ZEVENT_TIME_NSECS".to_owned(), event.time.subsec_nanos().to_string()),
    ];
    let bare = |name: &str| matches!(name, "class" | "time" | "eid");
    for (name, value) in event.payload.iter().filter(|(name, _)| !bare(name)) {
        let text = match value {
            NvValue::Uint8(n) => n.to_string(),
            NvValue::Int32(n) => n.to_string(),
            NvValue::Int64(n) => n.to_string(),
            // Guids and the like are written as OpenZFS's tools take them.
            NvValue::Uint64(n) => format!("{n:#x}"),
            NvValue::String(text) => text.replace('\0', ""),
            _ => continue,
        };
        let name: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
            .collect();
        if name == "VDEV_STATE"
            && let Some(n) = event.payload.u64("vdev_state")
        {
            let words = zilla_ondisk::enums::VdevState::from_number(n).map(zilla::status::vdev_state);
            let words = words.map(|s| format!("{s:?}").to_uppercase()).unwrap_or_default();
            let words = if words == "HEALTHY" { "ONLINE".to_owned() } else { words };
            all.push(("ZEVENT_VDEV_STATE_STR".to_owned(), words));
        }
        all.push((format!("ZEVENT_{name}"), text));
    }
    all
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn programs_are_chosen_by_name_and_must_be_ours() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for (name, mode) in [
            ("all-log", 0o700),
            ("statechange-mail", 0o755),
            ("statechange", 0o755),
            ("scrub_finish-mail", 0o755),
            ("all-open", 0o777),
            ("all-text", 0o600),
            ("resource.fs.zfs.statechange-x", 0o755),
        ] {
            std::fs::write(dir.path().join(name), "").unwrap();
            std::fs::set_permissions(dir.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        let names: Vec<String> = programs(dir.path(), "resource.fs.zfs.statechange")
            .iter()
            .map(|p| p.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["all-log", "resource.fs.zfs.statechange-x", "statechange-mail"]);
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(programs(dir.path(), "resource.fs.zfs.statechange").is_empty());
    }

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
