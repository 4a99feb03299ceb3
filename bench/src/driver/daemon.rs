//! A daemon of the release build, for the parts that measure what goes through it.

use crate::engine::Result;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A daemon of its own, ended when it goes.
pub struct Daemon {
    child: Child,
    commands: PathBuf,
    state: PathBuf,
}

impl Daemon {
    pub fn start(commands: &Path, dir: &Path) -> Result<Daemon> {
        let state = dir.join("state");
        std::fs::create_dir_all(&state)?;
        let mut command = Command::new(commands.join("zillad"));
        command
            .env("ZILLA_DIR", &state)
            .env("ZILLA_ZVOL_DEVICES", "off")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().map_err(|e| format!("zillad: {e}"))?;
        let daemon = Daemon { child, commands: commands.to_owned(), state };
        for _ in 0..100 {
            if daemon.state.join("zillad.sock").exists() {
                return Ok(daemon);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("zillad does not start".into())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Runs `zpool` or `zfs`.
    pub fn ask(&self, command: &str, args: &[&str]) -> Result<()> {
        let done =
            Command::new(self.commands.join(command)).args(args).env("ZILLA_DIR", &self.state).output()?;
        if done.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        Err(format!("{command} {}: {why}", args.join(" ")).into())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
