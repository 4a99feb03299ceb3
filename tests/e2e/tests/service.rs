//! `zilla status`, `stop` and `doctor`, and how a daemon ends while files are open.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};
use zilla_e2e::{Kind, Need, Pool, World, can};

fn zilla(world: &World, words: &[&str]) -> zilla_e2e::Done {
    world.run("zilla", words)
}

#[test]
fn status_and_stop_tell_of_a_daemon_and_never_start_one() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let stopped = zilla(&world, &["status"]);
    assert_eq!(stopped.code, 3, "{stopped}");
    assert!(stopped.stdout.contains("not running"), "{stopped}");
    assert!(zilla(&world, &["stop"]).ok().contains("no daemon is running"));
    assert!(world.pid().is_none());

    let pool = Pool::create(&world, "tank", Kind::Mirror, 128 << 20, &[]);
    let text = zilla(&world, &["status"]).ok();
    assert!(text.contains("pool: tank ONLINE, 1 file system mounted"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&zilla(&world, &["status", "-j"]).ok()).unwrap();
    assert_eq!(json["state"], "running");
    assert_eq!(json["pools"]["tank"]["state"], "ONLINE");
    world.zpool(&format!("offline tank {}", pool.disks[0].display())).ok();
    assert_eq!(zilla(&world, &["status"]).code, 1, "a degraded pool shows");

    assert!(zilla(&world, &["stop"]).ok().contains("stopped: its pools are closed"));
    assert!(world.pid().is_none() && world.mounts().is_empty());
    // The next command opens them again.
    assert!(world.zpool("list -H -o name").ok().contains("tank"));
    assert_eq!(zilla(&world, &["stop", "now"]).code, 2);
}

#[test]
fn an_end_waits_for_open_files_says_for_which_and_then_goes_without_losing_what_was_written() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let mut file = File::create(pool.root().join("open")).unwrap();
    file.write_all(b"written").unwrap();
    let begin = Instant::now();
    let done = zilla(&world, &["stop"]);
    let took = begin.elapsed();
    assert_eq!(done.code, 0, "{done}");
    let told = format!("process {} (", std::process::id());
    assert!(done.stderr.contains(&told) && done.stderr.contains("/open'"), "{done}");
    assert!(done.stderr.contains("unmounted lazily"), "{done}");
    assert!(took > Duration::from_secs(9) && took < Duration::from_secs(16), "{took:?}");
    drop(file);
    world.zpool("list").ok();
    assert_eq!(std::fs::read(pool.root().join("open")).unwrap(), b"written");
    // Nobody has anything open: at once.
    let begin = Instant::now();
    zilla(&world, &["stop"]).ok();
    assert!(begin.elapsed() < Duration::from_secs(9), "{:?}", begin.elapsed());
}

#[test]
fn doctor_names_what_is_missing_with_an_exit_code() {
    let world = World::new();
    let done = zilla(&world, &["doctor", "-j"]);
    assert!(done.code <= 1, "{done}");
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let findings = json["findings"].as_array().unwrap();
    let lacks = findings.iter().any(|f| f["grade"] == "lacks");
    assert_eq!(done.code, i32::from(lacks), "{done}");
    assert!(findings.iter().all(|f| f["grade"] == "fine" || f["mend"].is_string()), "{done}");
    assert!(findings.iter().any(|f| f["subject"] == "fuse"), "{done}");

    let mut shell = std::process::Command::new("sh");
    let program = world.command("zilla").get_program().to_owned();
    shell.args(["-c", "ulimit -n 200; exec \"$0\" doctor"]).arg(program).env("ZILLA_DIR", world.state());
    let done = zilla_e2e::world::finish(shell);
    assert_eq!(done.code, 1, "{done}");
    assert!(done.stdout.contains("mend: ulimit -n 4096"), "{done}");
}

/// One request on a TCP connection; all of the answer.
fn ask(at: &str, path: &str, token: &str) -> String {
    use std::io::Read;
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    let token = if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n{token}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_come_from_the_socket_and_the_page_from_a_port_only_if_it_is_asked_for() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let _pool = Pool::create(&world, "tank", Kind::Mirror, 128 << 20, &[]);
    let mut socket = std::os::unix::net::UnixStream::connect(world.state().join("zillad.sock")).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: zilla\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut socket, &mut text).unwrap();
    assert!(text.contains("zilla_pool_state{pool=\"tank\",state=\"ONLINE\"} 1"), "{text}");
    assert!(text.contains("vdev=\"mirror-0\""), "{text}");
    assert_eq!(zilla(&world, &["page"]).code, 1, "nothing is served unless it is asked for");
    assert!(!world.state().join("page.tokens").exists());
    zilla(&world, &["stop"]).ok();

    let mut open = world.command("zpool");
    open.arg("list").env("ZILLA_HTTP", "127.0.0.1:0");
    zilla_e2e::world::finish(open).ok();
    let address = zilla(&world, &["page"]).ok();
    let (at, token) = address.trim().strip_prefix("http://").and_then(|a| a.split_once("/#")).unwrap();
    assert!(ask(at, "/", "").contains("<title>zilla</title>"));
    assert!(ask(at, "/metrics", "").starts_with("HTTP/1.1 401"));
    assert!(ask(at, "/metrics", token).contains("zilla_pool_state{pool=\"tank\",state=\"ONLINE\"} 1"));
    assert!(ask(at, "/role", token).ends_with("viewer"));
    let operator = zilla(&world, &["page", "-o"]).ok();
    assert!(ask(at, "/role", operator.trim().split('#').nth(1).unwrap()).ends_with("operator"));
    let elsewhere = zilla_e2e::world::finish({
        let mut c = world.command("zillad");
        c.args(["--http", "0.0.0.0:8420"]);
        c
    });
    assert!(elsewhere.code == 2 && elsewhere.stderr.contains("no TLS"), "{elsewhere}");
}

#[test]
fn other_machines_see_the_page_by_tls_and_by_the_certificate_s_name() {
    if !can(&[Need::Fuse, Need::Tls]) {
        return;
    }
    let run = |program: &str, words: &[&str]| {
        let mut command = std::process::Command::new(program);
        command.args(words);
        zilla_e2e::world::finish(command)
    };
    let world = World::new();
    let (cert, key) = (world.path().join("cert.pem"), world.path().join("key.pem"));
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=nas.test";
    let mut words: Vec<&str> = request.split(' ').collect();
    words.extend(["-addext", "subjectAltName=DNS:nas.test", "-keyout", key, "-out", cert]);
    run("/usr/bin/openssl", &words).ok();
    let daemon = |environment: &[(&str, &str)], words: &[&str]| {
        let mut command = world.command("zillad");
        command.args(words).envs(environment.iter().copied());
        command
    };
    // What makes no sense ends it before anything is opened.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(key, PermissionsExt::from_mode(0o644)).unwrap();
    for (words, why) in [
        (&["--http", "0.0.0.0:0", "--http-tls", cert, key][..], "everybody may read it"),
        (&["--http", "0.0.0.0:0", "--http-tls", cert], "needs a certificate's file and its key's"),
        (&["--http", "0.0.0.0:0", "--http-tls", "/none", key], "'/none'"),
        (&["--http-tls", cert, key], "needs an address"),
    ] {
        let done = zilla_e2e::world::finish(daemon(&[], words));
        assert!(done.code == 2 && done.stderr.contains(why), "{done}");
    }
    std::fs::set_permissions(key, PermissionsExt::from_mode(0o600)).unwrap();
    let both = format!("{cert}:{key}");
    let mut command = world.command("zpool");
    command.arg("list").env("ZILLA_HTTP", "0.0.0.0:0").env("ZILLA_HTTP_TLS", &both);
    zilla_e2e::world::finish(command).ok();
    let address = zilla(&world, &["page"]).ok();
    let (at, token) = address.trim().split_once("/#").unwrap();
    let port = at.strip_prefix("https://nas.test:").expect("the certificate's name");
    let resolve = format!("nas.test:{port}:127.0.0.1");
    let bearer = format!("Authorization: Bearer {token}");
    let url = format!("{at}/role");
    let usual = ["-sS", "--resolve", &resolve, "-H", &bearer];
    let curl = |more: &[&str]| run("/usr/bin/curl", &[&usual[..], more].concat());
    assert_eq!(curl(&["--cacert", cert, &url]).ok(), "viewer");
    assert_ne!(curl(&[&url]).code, 0, "nobody trusts a certificate by itself");
    let rebound =
        curl(&["--cacert", cert, "-o", "/dev/null", "-w", "%{http_code}", "-H", "Host: evil.test", &url]);
    assert_eq!(rebound.ok(), "403");
    assert_ne!(curl(&[&format!("http://nas.test:{port}/role")]).code, 0, "nothing is said in the clear");
    assert_ne!(curl(&["--cacert", cert, "--tls-max", "1.2", &url]).code, 0);
}
