//! The daemon's end while files are open: wait a little, say for whom, then go.
//!
//! A mount whose files are in use cannot be taken away without somebody losing his file. So the end
//! waits, and says who has what open, that people can close it; but a service manager, or a machine
//! that shuts down, does not wait for ever, and what is written is safe in any case. After
//! [`PATIENCE`] the mount is taken out of the tree: whoever still has a file open gets an error
//! from it. All pools share that time. A crash here is like any other: the next start replays the
//! logs and clears the mounts.

use super::pool::Pool;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zilla_control::ErrorCode;

/// Well below the 90 s that systemd gives a service by default, and the 60 s of a container's end
/// at its most patient.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is tried again.
const AGAIN: Duration = Duration::from_millis(200);
/// So long are requests waited for that a mount has under way when it is taken away.
const MOMENT: Duration = Duration::from_millis(200);
/// How many users of a mount are named.
const NAMED: usize = 3;
/// Processes and descriptors that are looked at: a host with more is told less.
const LOOKED_AT: usize = 100_000;

/// The time that all mounts together have.
pub struct Patience {
    until: Instant,
}

impl Patience {
    pub fn begin() -> Patience {
        Patience { until: Instant::now() + PATIENCE }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

impl Pool {
    /// Unmounts everything: at once what nobody uses, in the end whatever it takes.
    pub async fn take_leave(&self, patience: &Patience) {
        for name in self.all_mounted() {
            let mut said = false;
            while let Err(e) = self.unmount_one(&name, false).await {
                let at = self.mounted_at(&name).unwrap_or_default();
                if patience.is_over() || e.code != ErrorCode::UmountFailed {
                    let shown = at.display();
                    tracing::warn!("'{name}' is unmounted lazily: files in '{shown}' are still open");
                    // Its users had their time: they keep their files open until this process ends.
                    if let Err(e) = self.unmount_within(&name, true, MOMENT).await {
                        tracing::error!("'{name}': {}", e.description());
                    }
                    break;
                }
                if !said {
                    said = true;
                    let looked_at = at.clone();
                    let users =
                        tokio::task::spawn_blocking(move || users(&looked_at)).await.unwrap_or_default();
                    let seconds = PATIENCE.as_secs();
                    tracing::warn!("waiting up to {seconds} s for '{}' {}", at.display(), sentence(&users));
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Somebody who uses a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
struct User {
    pid: u32,
    program: String,
    path: PathBuf,
}

fn sentence(users: &[User]) -> String {
    if users.is_empty() {
        return "to be left: a mount, a loop device or another user's process uses it".to_owned();
    }
    let each = |u: &User| format!("process {} ({}) has '{}'", u.pid, u.program, u.path.display());
    format!("to be left: {}", users.iter().map(each).collect::<Vec<_>>().join(", "))
}

/// Who has something at `mount` or below open, or stands there. Only links of /proc are read:
/// nothing here asks the file system, which is this very process.
fn users(mount: &Path) -> Vec<User> {
    let mut found: Vec<User> = Vec::new();
    let mut looked_at = 0;
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let dir = process.path();
        let open = std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten().map(|e| e.path());
        let links = ["cwd", "root", "exe"].map(|n| dir.join(n)).into_iter().chain(open);
        let used = links.take(LOOKED_AT - looked_at).find_map(|link| {
            looked_at += 1;
            std::fs::read_link(link).ok().filter(|to| to.starts_with(mount))
        });
        if let Some(path) = used.filter(|_| pid != std::process::id()) {
            let program = std::fs::read_to_string(dir.join("comm")).unwrap_or_default();
            found.push(User { pid, program: program.trim_end().to_owned(), path });
        }
        if found.len() == NAMED || looked_at >= LOOKED_AT {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_file_open_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = std::fs::canonicalize(dir.path()).unwrap().join("open");
        assert_eq!(users(path.parent().unwrap()), []);
        std::fs::write(&path, "").unwrap();
        let input = std::fs::File::open(&path).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").stdin(input).spawn().unwrap();
        // Between fork and exec the child is still called like its parent.
        let mut all = users(path.parent().unwrap());
        for _ in 0..200 {
            if all.first().is_some_and(|u| u.program == "sleep") {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            all = users(path.parent().unwrap());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(all, [User { pid: child.id(), program: "sleep".to_owned(), path: path.clone() }]);
        let text = sentence(&all);
        assert!(text.contains("(sleep) has '") && text.contains("open'"), "{text}");
    }
}
