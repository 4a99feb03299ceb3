//! This machine, as far as zilla depends on it. Everything is read or tried out, nothing is
//! changed.

use rustix::process::{Resource, getrlimit};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Whether something can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usable {
    Yes,
    Missing,
    Denied,
}

#[derive(Debug, Clone)]
pub struct Machine {
    pub root: bool,
    /// In a container: what is missing is the business of whoever starts it.
    pub container: bool,
    pub fuse: Usable,
    /// `fusermount3`, with the set-user-id bit that it needs.
    pub helper: Option<bool>,
    pub allows_others: bool,
    /// Why io_uring does not work.
    pub io_uring: Result<(), String>,
    /// `kernel.io_uring_disabled`
    pub io_uring_disabled: u32,
    /// Open files of one process.
    pub files: u64,
    /// Bytes of memory that the machine or its control group leaves.
    pub memory: Option<u64>,
    pub loop_devices: Usable,
    /// The `zpool` that a shell would run, if it is not of this installation.
    pub other_zpool: Option<PathBuf>,
    /// OpenZFS's kernel module is loaded.
    pub module: bool,
    /// `zillad` beside this program.
    pub daemon: bool,
    /// The state folder, or why there is none.
    pub state: Result<PathBuf, String>,
    /// `man` and our pages.
    pub manual: bool,
}

pub fn look() -> Machine {
    let program = std::env::current_exe().and_then(|p| p.canonicalize()).unwrap_or_default();
    let beside = program.parent().map(Path::to_owned).unwrap_or_default();
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    Machine {
        root: rustix::process::geteuid().is_root(),
        container: Path::new("/.dockerenv").exists()
            || Path::new("/run/.containerenv").exists()
            || std::env::var_os("container").is_some(),
        fuse: usable("/dev/fuse"),
        helper: on_path("fusermount3").and_then(|p| p.metadata().ok()).map(|m| m.mode() & 0o4000 != 0),
        allows_others: text("/etc/fuse.conf").lines().any(|l| l.trim() == "user_allow_other"),
        io_uring: zilla_env::real::io_uring_works().map_err(|e| e.to_string()),
        io_uring_disabled: text("/proc/sys/kernel/io_uring_disabled").trim().parse().unwrap_or(0),
        files,
        memory: memory(),
        loop_devices: usable("/dev/loop-control"),
        other_zpool: on_path("zpool").filter(|p| is_other(p, &beside)),
        module: Path::new("/sys/module/zfs").exists(),
        daemon: beside.join("zillad").is_file(),
        state: state(),
        manual: on_path("man").is_some()
            && ["share/man/man8/zilla.8", "share/man/man8/zilla.8.gz"]
                .iter()
                .any(|page| beside.parent().is_some_and(|prefix| prefix.join(page).is_file())),
    }
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn usable(device: &str) -> Usable {
    match OpenOptions::new().read(true).write(true).open(device) {
        Ok(_) => Usable::Yes,
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Usable::Denied,
        Err(_) => Usable::Missing,
    }
}

/// The program that a shell would run.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file())
}

fn is_other(found: &Path, beside: &Path) -> bool {
    found.canonicalize().is_ok_and(|real| real.parent() != Some(beside))
}

/// The least of what the machine has and its control groups allow.
fn memory() -> Option<u64> {
    let total = text("/proc/meminfo")
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .map(|kib| kib << 10);
    let group = text("/proc/self/cgroup").lines().find_map(|l| l.strip_prefix("0::").map(str::to_owned));
    let limit = group.and_then(|g| text(&format!("/sys/fs/cgroup{g}/memory.max")).trim().parse().ok());
    [total, limit].into_iter().flatten().min()
}

/// The folder is not made: the daemon does that.
fn state() -> Result<PathBuf, String> {
    let dir = zilla_control::StateDir::from_env()?;
    if dir.path().exists() {
        dir.open()?;
        return Ok(dir.path().to_owned());
    }
    let above = dir.path().ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::access(above, rustix::fs::Access::WRITE_OK) {
        Ok(()) => Ok(dir.path().to_owned()),
        Err(e) => Err(format!("'{}' cannot be made in '{}': {e}", dir.path().display(), above.display())),
    }
}
