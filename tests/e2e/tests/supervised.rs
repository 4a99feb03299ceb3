//! The daemon under a service manager: the socket is handed over, and the manager is told how it
//! goes.

use rustix::process::{Signal, kill_process};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use zilla_e2e::World;

fn heard(manager: &UnixDatagram) -> String {
    let mut buf = [0; 256];
    let n = manager.recv(&mut buf).expect("a word from the daemon");
    String::from_utf8_lossy(&buf[..n]).into_owned()
}

/// Words until one that contains this.
fn until(manager: &UnixDatagram, wanted: &str) -> String {
    let begin = Instant::now();
    loop {
        let words = heard(manager);
        if words.contains(wanted) {
            return words;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "no {wanted}, but {words}");
    }
}

#[test]
fn a_socket_that_is_handed_over_is_served_and_left() {
    let activate = Path::new("/usr/bin/systemd-socket-activate");
    if !activate.exists() {
        eprintln!("not run: needs systemd-socket-activate");
        return;
    }
    let world = World::new();
    let notify = world.path().join("notify");
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let socket = world.state().join("zillad.sock");
    let daemon = PathBuf::from(world.command("zillad").get_program());
    let set = |name: &str, value: &Path| format!("{name}={}", value.display());
    let mut child = Command::new(activate)
        .arg("-l")
        .arg(&socket)
        .args(["-E", &set("ZILLA_DIR", &world.state()), "-E", &set("NOTIFY_SOCKET", &notify)])
        .args(["-E", "WATCHDOG_USEC=400000"])
        .arg(daemon)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while !socket.exists() {
        assert!(begin.elapsed() < Duration::from_secs(20), "no socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The first question starts it.
    let status = world.run("zilla", &["status"]);
    assert_eq!(status.code, 0, "{status}");
    assert!(status.stdout.contains(&format!("process {}", child.id())), "{status}");
    until(&manager, "READY=1");
    until(&manager, "WATCHDOG=1");
    kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    until(&manager, "STOPPING=1");
    assert!(child.wait().unwrap().success());
    assert!(socket.exists(), "it is the manager's");
    assert!(!world.state().join("zillad.pid").exists());
}

#[test]
fn a_socket_where_nobody_asks_is_refused() {
    let activate = Path::new("/usr/bin/systemd-socket-activate");
    if !activate.exists() {
        eprintln!("not run: needs systemd-socket-activate");
        return;
    }
    let world = World::new();
    let socket = world.path().join("elsewhere.sock");
    let errors = world.path().join("errors");
    let daemon = PathBuf::from(world.command("zillad").get_program());
    let mut child = Command::new(activate)
        .arg("-l")
        .arg(&socket)
        .args(["-E", &format!("ZILLA_DIR={}", world.state().display())])
        .arg(daemon)
        .stderr(std::fs::File::create(&errors).unwrap())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(20), "no socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let said = std::fs::read_to_string(errors).unwrap();
    assert!(said.contains("commands look for"), "{said}");
}
