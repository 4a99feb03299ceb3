//! A daemon of one's own and the commands that talk to it.
//!
//! Output goes to files, not to pipes: a daemon that a command starts may keep its parent's
//! descriptors, and whoever reads a pipe to its end would then wait for the daemon.

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// No command takes longer in a test.
const LIMIT: Duration = Duration::from_secs(300);

/// What a command did.
#[derive(Debug)]
pub struct Done {
    pub line: String,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    /// Its output; a panic unless it exited with 0.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.code == 0, "{self}");
        self.stdout
    }

    /// Its complaint; a panic if it exited with 0.
    #[track_caller]
    pub fn fails(self) -> String {
        assert!(self.code != 0, "should have failed: {self}");
        assert!(!self.stderr.contains("panicked"), "{self}");
        self.stderr
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` exited with {}\n{}{}", self.line, self.code, self.stdout, self.stderr)
    }
}

/// A state folder, a folder for disks and mounts, and the commands.
pub struct World {
    dir: TempDir,
    bin: PathBuf,
    /// What all commands get, and the daemon that one of them starts.
    env: Vec<(&'static str, OsString)>,
}

impl Default for World {
    fn default() -> Self {
        World::new()
    }
}

impl World {
    pub fn new() -> World {
        let dir = tempfile::Builder::new().prefix("zilla-").tempdir().expect("temporary folder");
        for name in ["state", "disks", "mnt"] {
            std::fs::create_dir(dir.path().join(name)).expect("temporary folder");
        }
        // Others could otherwise write to what the daemon trusts.
        use std::os::unix::fs::PermissionsExt;
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(dir.path().join("state"), private).expect("temporary folder");
        World { dir, bin: binaries(), env: Vec::new() }
    }

    /// The same with a variable of the environment set for all its commands.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<OsString>) -> World {
        self.env.push((name, value.into()));
        self
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    pub fn disks(&self) -> PathBuf {
        self.path().join("disks")
    }

    pub fn mnt(&self) -> PathBuf {
        self.path().join("mnt")
    }

    /// `n` new sparse images of `size` bytes, named `prefix` and a number.
    pub fn images(&self, prefix: &str, n: usize, size: u64) -> Vec<PathBuf> {
        let make = |i: usize| {
            let path = self.disks().join(format!("{prefix}{i}.img"));
            File::create(&path).and_then(|f| f.set_len(size)).expect("image");
            path
        };
        (1..=n).map(make).collect()
    }

    /// A command of ours, not yet run.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        command.env("ZILLA_DIR", self.state()).env("LC_ALL", "C").env("TZ", "UTC").current_dir(self.path());
        // Worlds beside each other have pools of one name, and one /dev.
        command.env("ZILLA_ZVOL_DEVICES", "off");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, name: &str, args: &[S]) -> Done {
        let mut patience = 20;
        loop {
            let mut command = self.command(name);
            command.args(args);
            let done = finish(command);
            // A child that another test is starting holds our open files until it executes its
            // program: the kernel calls the mount busy. (What has a copy elsewhere stays so.)
            let told = &done.stderr;
            let busy = told.contains("cannot unmount") && told.contains("busy") && !told.contains("another");
            if !busy || patience == 0 {
                return done;
            }
            patience -= 1;
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// `zpool`, with its words in one string; words with spaces go through [`World::run`].
    pub fn zpool(&self, words: &str) -> Done {
        self.run("zpool", &words.split_whitespace().collect::<Vec<_>>())
    }

    pub fn zfs(&self, words: &str) -> Done {
        self.run("zfs", &words.split_whitespace().collect::<Vec<_>>())
    }

    /// Starts a daemon in the foreground.
    pub fn daemon(&self) -> Child {
        let log =
            File::options().create(true).append(true).open(self.state().join("zillad.log")).expect("log");
        let mut command = self.command("zillad");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("log")).stderr(log);
        command.spawn().expect("zillad")
    }

    /// The running daemon, if there is one.
    pub fn pid(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.state().join("zillad.pid")).ok()?;
        let pid = Pid::from_raw(text.trim().parse().ok()?)?;
        test_kill_process(pid).ok().map(|()| pid)
    }

    /// What SIGKILL leaves: no chance to say goodbye.
    #[track_caller]
    pub fn kill(&self) {
        let pid = self.pid().expect("a daemon to kill");
        kill_process(pid, Signal::KILL).expect("kill");
        assert!(gone(pid, Duration::from_secs(30)), "the daemon survives SIGKILL");
    }

    /// Ends the daemon as people end it, and waits for it.
    #[track_caller]
    pub fn stop(&self) {
        if let Some(pid) = self.pid() {
            kill_process(pid, Signal::TERM).expect("kill");
            assert!(
                gone(pid, Duration::from_secs(60)),
                "the daemon does not end on SIGTERM:\n{}",
                self.log()
            );
        }
    }

    pub fn log(&self) -> String {
        let text = std::fs::read(self.state().join("zillad.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Mounts below this world, deepest first.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let places =
            table.lines().filter_map(|l| l.split(' ').nth(4)).map(|p| PathBuf::from(p.replace("\\040", " ")));
        let mut found: Vec<PathBuf> = places.filter(|p| p.starts_with(self.path())).collect();
        found.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
        found
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("-- end of the daemon's log\n{}\n--", self.log());
        }
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::TERM);
            if !gone(pid, Duration::from_secs(20)) {
                let _ = kill_process(pid, Signal::KILL);
                gone(pid, Duration::from_secs(5));
            }
        }
        for mount in self.mounts() {
            let lazily = |program: &str, words: &[&str]| {
                Command::new(program)
                    .args(words)
                    .arg(&mount)
                    .stderr(Stdio::null())
                    .status()
                    .is_ok_and(|s| s.success())
            };
            if !lazily("umount", &["-l"]) {
                lazily("fusermount3", &["-u", "-z"]);
            }
        }
    }
}

/// Waits until a process is gone. A child of ours that nobody has waited for counts as gone: it is
/// a zombie.
fn gone(pid: Pid, limit: Duration) -> bool {
    let begin = Instant::now();
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    while begin.elapsed() < limit {
        match std::fs::read_to_string(&stat) {
            Err(_) => return true,
            Ok(text) if text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')) => {
                return true;
            }
            Ok(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    false
}

/// The folder of the built commands: `ZILLA_BIN`, else where this test was built.
fn binaries() -> PathBuf {
    let bin = match std::env::var_os("ZILLA_BIN") {
        Some(dir) => PathBuf::from(dir),
        None => {
            let exe = std::env::current_exe().expect("path of the test");
            // target/debug/deps/test-0123456789abcdef
            exe.ancestors().nth(2).expect("folder of the build").to_owned()
        }
    };
    for name in ["zpool", "zfs", "zillad"] {
        assert!(
            bin.join(name).is_file(),
            "{} is not built: cargo build --workspace --bins",
            bin.join(name).display()
        );
    }
    bin
}

/// Runs a command to its end, or to the limit.
#[track_caller]
pub fn finish(mut command: Command) -> Done {
    let words: Vec<String> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    let line = words.join(" ");
    let (out, err) = (tempfile::tempfile().expect("output"), tempfile::tempfile().expect("output"));
    command.stdin(Stdio::null());
    command.stdout(out.try_clone().expect("output")).stderr(err.try_clone().expect("output"));
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{line}: {e}"));
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait") {
            break status;
        }
        if begin.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("`{line}` hangs: no end after {} s\n{}{}", LIMIT.as_secs(), text(&out), text(&err));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    Done { line, code: status.code().unwrap_or(-1), stdout: text(&out), stderr: text(&err) }
}

fn text(file: &File) -> String {
    use std::os::unix::fs::FileExt;
    let size = file.metadata().map(|m| m.len()).unwrap_or(0);
    let mut bytes = vec![0; size as usize];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) => format!("(output is unreadable: {e})"),
    }
}
