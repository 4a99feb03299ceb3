//! A daemon that is shared, and other users who ask it.

use crate::{Done, World};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Gid, Uid};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

/// A world that others may enter, and its program for those who cannot reach the folder it was
/// built in.
pub struct Shared {
    pub program: fs::File,
    pub world: World,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared::new()
    }
}

impl Shared {
    pub fn new() -> Shared {
        let world = World::new();
        let program = fs::File::open(world.command("zilla").get_program()).expect("zilla");
        fcntl_setfd(&program, FdFlags::empty()).expect("descriptor");
        fs::set_permissions(world.path(), fs::Permissions::from_mode(0o711)).expect("folder");
        Shared { program, world }
    }

    /// A command as another user runs it.
    pub fn run_as(&self, uid: u32, groups: &[u32], words: &[&str]) -> Done {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &uid.to_string(), "--regid", &uid.to_string()]);
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        match groups.is_empty() {
            true => command.arg("--clear-groups"),
            false => command.args(["--groups", &groups.join(",")]),
        };
        command.args(words).current_dir("/");
        let done = command.env("ZILLA_DIR", self.world.state()).env("LC_ALL", "C").output().expect("setpriv");
        Done {
            line: words.join(" "),
            code: done.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&done.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
        }
    }

    /// A daemon that everyone may ask.
    pub fn start(&self) {
        let mut start = self.world.command("zpool");
        let done = start.env("ZILLA_SHARE", "everyone").arg("list").output().expect("zpool");
        assert!(done.status.success());
    }

    /// A command as root runs it who has no power over the machine, as in a container.
    pub fn run_weak(&self, words: &[&str]) -> Done {
        let weak = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"];
        self.run_as(0, &[], &[&weak, words].concat())
    }

    /// What the daemon answers another user who asks it himself, and not by our commands.
    pub fn ask(&self, uid: u32, operation: &str, request: &str) -> String {
        let socket = self.world.state().join("zillad.sock");
        let body = format!(r#"{{"protocol":1,"request":{request}}}"#);
        let length = body.len();
        let head =
            format!("POST /v1/{operation} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n");
        let mut stream = self.connect(uid, socket);
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).expect("request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answer");
        answer
    }

    /// A socket of the daemon's as another user has it.
    pub fn connect(&self, uid: u32, socket: PathBuf) -> UnixStream {
        // These calls are of one thread only.
        let connects = move || {
            rustix::thread::set_thread_groups(&[]).expect("groups");
            rustix::thread::set_thread_gid(Gid::from_raw(uid)).expect("group");
            rustix::thread::set_thread_uid(Uid::from_raw(uid)).expect("user");
            UnixStream::connect(socket).expect("socket")
        };
        std::thread::spawn(connects).join().expect("thread")
    }

    /// A shell's line as another user runs it, in which `Z` is `zfs`.
    pub fn line(&self, uid: u32, line: &str) -> Done {
        let zfs = format!("/proc/self/fd/{} zfs ", self.program.as_raw_fd());
        self.run_as(uid, &[], &["sh", "-c", &line.replace("Z ", &zfs)])
    }

    /// `zfs` as another user does it.
    pub fn zfs(&self, uid: u32, groups: &[u32], words: &str) -> Done {
        let program = format!("/proc/self/fd/{}", self.program.as_raw_fd());
        let mut all = vec![program.as_str(), "zfs"];
        all.extend(words.split_whitespace());
        self.run_as(uid, groups, &all)
    }
}
