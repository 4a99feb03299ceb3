//! The daemon as a process: claims, signals, clean ends and unclean ones.
//!
//! The child is this test program called again; its backend keeps no pools, it only notes that it
//! was closed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use zilla_control::types::{Hello, HelloReply, PoolSync, Shutdown};
use zilla_control::{ApiError, Backend, Caller, Client, StateDir};
use zilla_daemon::{Handle, Options, Pools};

struct Notes {
    handle: Handle,
}

impl Notes {
    fn note(&self, name: &str) {
        std::fs::write(self.handle.state_dir().path().join(name), "").unwrap();
    }
}

impl Backend for Notes {
    async fn hello(&self, _: &Caller, _: Hello) -> Result<HelloReply, ApiError> {
        Ok(self.handle.hello())
    }

    async fn shutdown(&self, _: &Caller, _: Shutdown) -> Result<(), ApiError> {
        self.handle.stop();
        Ok(())
    }

    async fn pool_sync(&self, _: &Caller, _: PoolSync) -> Result<(), ApiError> {
        self.note("sync-began");
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.note("sync-ended");
        Ok(())
    }
}

impl Pools for Notes {
    async fn close(&self) {
        self.note("closed");
    }
}

/// Not a test: the child's main. Without the variable it does nothing.
#[test]
fn child() {
    if std::env::var_os("ZILLA_TEST_CHILD").is_none() {
        return;
    }
    let handle = Handle::new(StateDir::from_env().unwrap());
    let open = |handle: Handle| async {
        let notes = Notes { handle };
        if std::env::var_os("ZILLA_TEST_SLOW").is_some() {
            notes.note("opening");
            notes.handle.stopped().await;
        }
        Ok(notes)
    };
    let outcome = zilla_daemon::run(Options::default(), handle, open);
    if let Err(e) = outcome {
        eprintln!("zillad: {e}");
        std::process::exit(7);
    }
}

fn start(dir: &Path) -> Child {
    start_with(dir, "ZILLA_TEST_CHILD")
}

fn start_with(dir: &Path, variable: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env("ZILLA_TEST_CHILD", "1")
        .env(variable, "1")
        .env("ZILLA_DIR", dir)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !ready() {
        assert!(begin.elapsed() < Duration::from_secs(20), "waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn connect(dir: &Path) -> Client {
    let state = StateDir::new(dir);
    wait_for("the socket", || Client::connect(&state).is_ok_and(|mut c| c.call(&Hello {}).is_ok()));
    Client::connect(&state).unwrap()
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

fn said(mut child: Child) -> (Option<i32>, String) {
    let mut text = String::new();
    if let Some(mut err) = child.stderr.take() {
        std::io::Read::read_to_string(&mut err, &mut text).unwrap();
    }
    (child.wait().unwrap().code(), text)
}

fn home() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    (dir, path)
}

#[test]
fn sigterm_finishes_what_is_under_way_and_cleans_up() {
    let (_keep, dir) = home();
    let child = start(&dir);
    let mut client = connect(&dir);
    let hello = client.call(&Hello {}).unwrap();
    assert_eq!(hello.pid, child.id());
    let pid = std::fs::read_to_string(dir.join("zillad.pid")).unwrap();
    assert_eq!(pid.trim(), child.id().to_string());
    let busy = std::thread::spawn(move || client.call(&PoolSync::default()).is_ok());
    wait_for("the operation", || dir.join("sync-began").exists());
    signal(&child, rustix::process::Signal::TERM);
    let (code, text) = said(child);
    assert_eq!(code, Some(0), "{text}");
    assert!(busy.join().unwrap(), "the answer arrived");
    assert!(dir.join("sync-ended").exists() && dir.join("closed").exists());
    assert!(!dir.join("zillad.sock").exists() && !dir.join("zillad.pid").exists());
    let log = std::fs::read_to_string(dir.join("zillad.log")).unwrap();
    assert!(log.contains("SIGTERM: shutting down"), "{log}");
    assert!(text.contains("SIGTERM: shutting down"), "the foreground shows the log: {text}");
}

#[test]
fn sigterm_is_heeded_while_pools_are_opened() {
    let (_keep, dir) = home();
    let child = start_with(&dir, "ZILLA_TEST_SLOW");
    wait_for("the opening", || dir.join("opening").exists());
    assert!(!dir.join("zillad.sock").exists(), "nobody is served yet");
    signal(&child, rustix::process::Signal::TERM);
    let (code, text) = said(child);
    assert_eq!(code, Some(0), "{text}");
    assert!(dir.join("closed").exists() && !dir.join("zillad.pid").exists());
    assert!(text.contains("SIGTERM: shutting down before all pools are open"), "{text}");
}

#[test]
fn a_client_can_end_it() {
    let (_keep, dir) = home();
    let child = start(&dir);
    connect(&dir).call(&Shutdown {}).unwrap();
    assert_eq!(said(child).0, Some(0));
    assert!(dir.join("closed").exists());
}

#[test]
fn two_daemons_do_not_share_a_folder() {
    let (_keep, dir) = home();
    let first = start(&dir);
    connect(&dir);
    let (code, text) = said(start(&dir));
    assert_eq!(code, Some(7));
    let wanted =
        format!("another zillad (pid {}) already uses the state folder '{}'", first.id(), dir.display());
    assert!(text.contains(&wanted), "{text}");
    // The one that was refused took nothing away.
    assert!(connect(&dir).call(&Hello {}).is_ok());
    signal(&first, rustix::process::Signal::INT);
    assert_eq!(said(first).0, Some(0));
}

#[test]
fn a_killed_daemon_stands_in_nobody_s_way() {
    let (_keep, dir) = home();
    let mut first = start(&dir);
    connect(&dir);
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(dir.join("zillad.sock").exists(), "a crash leaves the socket");
    let second = start(&dir);
    assert_eq!(connect(&dir).call(&Hello {}).unwrap().pid, second.id());
    signal(&second, rustix::process::Signal::TERM);
    assert_eq!(said(second).0, Some(0));
}

#[test]
fn a_daemon_may_have_as_many_files_open_as_the_hard_limit_says() {
    let (_keep, dir) = home();
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -Sn 128 && exec \"$0\" child --exact --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env("ZILLA_TEST_CHILD", "1")
        .env("ZILLA_DIR", &dir)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    connect(&dir);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    let line = limits.lines().find(|l| l.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = line.split_whitespace().filter(|w| w.parse::<u64>().is_ok()).collect();
    assert!(numbers.len() == 2 && numbers[0] == numbers[1] && numbers[0] != "128", "{line}");
    connect(&dir).call(&Shutdown {}).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
