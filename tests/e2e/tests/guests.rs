//! What guests of a shared daemon can make of streams, keys and sockets, if they mean harm.

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use zilla_e2e::{Kind, Need, Pool, Shared, can};

/// A user that no machine has.
const JOE: u32 = 4_294_900_001;
/// Longer than anything may take here.
const LIMIT: Duration = Duration::from_secs(60);

/// A file that he may write, too.
fn file(shared: &Shared, name: &str) -> String {
    let path = shared.world.path().join(name);
    fs::write(&path, "").expect("file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("mode");
    path.display().to_string()
}

/// Files of a stream can be root's and setuid: what he received is mounted by name only, in
/// whatever dataset it comes to lie, and never in the place of what root mounts.
#[test]
fn what_a_guest_received_is_not_mounted_by_itself() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let world = &shared.world;
    shared.start();
    let pool = Pool::create(world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create tank/joe").ok();
    world.zfs(&format!("allow -u {JOE} send,receive,create,mount,snapshot,clone,destroy tank/joe")).ok();
    let stream = file(&shared, "stream");
    let joe = |line: &str| shared.line(JOE, line);
    let canmount = |name: &str| world.zfs(&format!("get -Ho value,source canmount tank/joe/{name}")).ok();

    // A dataset of his own, as he would have it mounted at the next start.
    joe("Z create -u tank/joe/own").ok();
    joe("Z snapshot tank/joe/own@a && Z snapshot tank/joe/own@b").ok();
    joe(&format!("Z send -i @a tank/joe/own@b > {stream} && Z destroy tank/joe/own@b")).ok();
    assert_eq!(canmount("own"), "on\tdefault\n");
    joe(&format!("Z receive tank/joe/own < {stream}")).ok();
    assert_eq!(canmount("own"), "noauto\tlocal\n");
    joe("Z clone tank/joe/own@b tank/joe/twin").ok();
    assert_eq!(canmount("twin"), "noauto\tlocal\n");
    joe("Z snapshot tank/joe@x").ok();
    assert_eq!(joe("Z clone tank/joe@x tank/joe/plain").code, 1, "root mounts it");
    assert_eq!(canmount("plain"), "on\tdefault\n");

    // He begins, and root mounts it before he comes to the end.
    joe(&format!("Z snapshot tank/joe/own@c && Z send -i @b tank/joe/own@c > {stream}")).ok();
    joe("Z destroy tank/joe/own@c").ok();
    let go = world.path().join("go");
    let slow = format!(
        "{{ head -c 400 {stream}; while [ ! -e {} ]; do sleep 0.1; done; tail -c +401 {stream}; }} | Z receive \
         -s tank/joe/own",
        go.display()
    );
    std::thread::scope(|scope| {
        let receives = scope.spawn(|| joe(&slow));
        let begun = Instant::now();
        while world.zfs("get -Ho value receive_resume_token tank/joe/own").ok() == "-\n" {
            assert!(begun.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(50));
        }
        world.zfs("mount tank/joe/own").ok();
        fs::write(&go, "").expect("go");
        let done = receives.join().expect("thread");
        assert!(done.code != 0 && done.stderr.contains("permission denied: it is mounted"), "{done}");
    });
    assert_eq!(
        world.zfs("list -H -o name -t snapshot tank/joe/own").ok(),
        "tank/joe/own@a\ntank/joe/own@b\n"
    );
    world.zfs("unmount tank/joe/own").ok();
    world.zfs("receive -A tank/joe/own").ok();

    world.stop();
    shared.start();
    let mounted = world.zfs("get -Ho value mounted tank/joe/own tank/joe/plain tank/joe/twin").ok();
    assert_eq!(mounted, "no\nyes\nno\n");
    pool.judge();
}

#[test]
fn limits_hold_for_what_a_guest_receives_and_creators_get_theirs() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let world = &shared.world;
    shared.start();
    let pool = Pool::create(world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create tank/from").ok();
    world.zfs("create -o canmount=off -o filesystem_limit=1 -o snapshot_limit=2 tank/to").ok();
    world.zfs(&format!("allow -u {JOE} send tank/from")).ok();
    world.zfs(&format!("allow -u {JOE} receive,create,mount tank/to")).ok();
    world.zfs("allow -c quota tank/to").ok();
    for name in ["a", "b", "c"] {
        world.zfs(&format!("snapshot tank/from@{name}")).ok();
    }
    let joe = |line: &str| shared.line(JOE, line);
    joe("Z send tank/from@a | Z receive tank/to/one").ok();
    joe("Z set quota=64M tank/to/one").ok();
    joe("Z send -i @a tank/from@b | Z receive tank/to/one").ok();
    let over = "Z send -i @b tank/from@c | Z receive tank/to/one";
    for line in [over, "Z send tank/from@a | Z receive tank/to/two"] {
        let done = joe(line);
        assert!(done.code != 0, "{done}");
    }
    let found = world.zfs("list -H -o name -r -t all tank/to").ok();
    assert_eq!(found, "tank/to\ntank/to/one\ntank/to/one@a\ntank/to/one@b\n");
    world.zfs("set snapshot_limit=3 tank/to").ok();
    joe(over).ok();
    pool.judge();
}

/// Without a key nobody can tell whether what a stream brings is one: who may not change a
/// dataset's key could take from its owner what he has in it.
#[test]
fn a_guest_s_stream_brings_no_other_key_unless_he_may_change_it() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let world = &shared.world;
    shared.start();
    let pool = Pool::create(world, "tank", Kind::Single, 256 << 20, &[]);
    let key = |name: &str, phrase: &str| {
        let path = world.path().join(name);
        fs::write(&path, phrase).expect("key");
        format!("file://{}", path.display())
    };
    let (one, two) = (key("one", "the first passphrase\n"), key("two", "another passphrase\n"));
    let crypt = "-o encryption=on -o keyformat=passphrase -o pbkdf2iters=100000";
    world.zfs(&format!("create {crypt} -o keylocation={one} tank/from")).ok();
    world.zfs("create -o canmount=off tank/to").ok();
    world.zfs(&format!("allow -u {JOE} send tank/from")).ok();
    world.zfs(&format!("allow -u {JOE} receive,create,mount tank/to")).ok();
    let joe = |line: &str| shared.line(JOE, line).ok();
    let opens = |key: &str| world.zfs(&format!("load-key -n -L {key} tank/to/sealed")).code == 0;
    world.zfs("snapshot tank/from@a").ok();
    joe("Z send -w tank/from@a | Z receive tank/to/sealed");
    world.zfs(&format!("change-key -o pbkdf2iters=100000 -o keylocation={two} tank/from")).ok();
    world.zfs("snapshot tank/from@b").ok();
    joe("Z send -w -i @a tank/from@b | Z receive tank/to/sealed");
    assert!(opens(&one) && !opens(&two));
    world.zfs(&format!("allow -u {JOE} change-key tank/to")).ok();
    world.zfs("snapshot tank/from@c").ok();
    joe("Z send -w -i @b tank/from@c | Z receive tank/to/sealed");
    assert!(opens(&two) && !opens(&one));
    pool.judge();
}

/// A guest's file or server would be read by the daemon when it starts, and by `load-key -a` of
/// root's.
#[test]
fn a_guest_names_no_place_where_root_would_look_for_a_key() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let world = &shared.world;
    shared.start();
    let pool = Pool::create(world, "tank", Kind::Single, 128 << 20, &[]);
    fs::write(world.path().join("key"), "a passphrase\n").expect("key");
    fs::set_permissions(world.path().join("key"), fs::Permissions::from_mode(0o644)).expect("mode");
    let place = format!("file://{}", world.path().join("key").display());
    let crypt = "create,mount,clone,encryption,keyformat,keylocation,change-key,load-key";
    world.zfs("create tank/a").ok();
    world.zfs(&format!("allow -u {JOE} {crypt} tank/a")).ok();
    let new = "encryption=on -o keyformat=passphrase";
    let joe = |line: &str| shared.line(JOE, line);
    joe(&format!("echo a passphrase | Z create -u -o {new} tank/a/own")).ok();
    for line in [
        format!("Z create -u -o {new} -o keylocation={place} tank/a/other"),
        format!("Z set keylocation={place} tank/a/own"),
        "Z set keylocation=https://127.0.0.1:1/key tank/a/own".to_owned(),
        format!("Z change-key -o keylocation={place} tank/a/own"),
    ] {
        let refused = joe(&line);
        let why = "only the owner of the daemon names a file or server as a keylocation";
        assert!(refused.code != 0 && refused.stderr.contains(why), "{refused}");
    }
    let location = || world.zfs("get -Ho value keylocation tank/a/own").ok();
    assert_eq!(location(), "prompt\n");
    joe("Z set keylocation=prompt tank/a/own").ok();
    // His own command reads what he has.
    joe("Z unload-key tank/a/own").ok();
    joe(&format!("Z load-key -L {place} tank/a/own")).ok();
    // What the owner has said stays when he changes the key, and the owner says what he likes.
    world.zfs(&format!("set keylocation={place} tank/a/own")).ok();
    joe("Z change-key -o pbkdf2iters=100000 tank/a/own").ok();
    assert_eq!(location(), format!("{place}\n"));
    pool.judge();
}

/// What he has on a dataset alone he does not give himself on those below it.
#[test]
fn nobody_gives_on_below_a_dataset_what_he_has_on_it_alone() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let world = &shared.world;
    shared.start();
    let pool = Pool::create(world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create tank/a").ok();
    world.zfs("create tank/a/b").ok();
    world.zfs(&format!("allow -lu {JOE} allow,snapshot,send tank/a")).ok();
    for place in ["-du", "-u"] {
        let done = shared.line(JOE, &format!("Z allow {place} {JOE} snapshot tank/a"));
        assert!(done.code == 1 && done.stderr.contains("permission denied"), "{done}");
    }
    assert_eq!(shared.line(JOE, "Z allow -c snapshot tank/a").code, 1);
    shared.line(JOE, &format!("Z allow -lu {JOE} snapshot tank/a")).ok();
    // A snapshot is below its dataset.
    shared.line(JOE, "Z snapshot tank/a@s").ok();
    assert_ne!(shared.line(JOE, "Z send tank/a@s > /dev/null").code, 0);
    assert_eq!(shared.line(JOE, "Z snapshot tank/a/b@s").code, 1);
    world.zfs(&format!("allow -du {JOE} send tank/a")).ok();
    shared.line(JOE, "Z send tank/a@s > /dev/null").ok();
    pool.judge();
}

/// Sends a few bytes, and along with them a socket whose close waits for its other end, which is
/// returned.
fn send_along(to: &UnixStream, bytes: &[u8]) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let mut lingers = TcpStream::connect(listener.local_addr().expect("address")).expect("connection");
    let (other, _) = listener.accept().expect("connection");
    set_socket_linger(&lingers, Some(LIMIT * 10)).expect("linger");
    lingers.set_nonblocking(true).expect("socket");
    while lingers.write(&[0; 1 << 16]).is_ok() {}
    let fds = [lingers.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    use rustix::io::Errno;
    match sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()) {
        Ok(_) => {}
        // Newer kernels refuse it; and he may have been refused by then.
        Err(Errno::PERM | Errno::PIPE | Errno::CONNRESET) => {
            set_socket_linger(&lingers, None).expect("linger");
        }
        Err(e) => panic!("{e}"),
    }
    // Where the daemon has closed it already it is this one that waits.
    std::thread::spawn(move || drop(lingers));
    other
}

#[test]
fn what_a_guest_sends_along_with_his_words_stops_nobody() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let world = &shared.world;
    shared.start();
    // Who asks is there before: a program that was begun beside the sockets would have them, too,
    // and wait for them when it gives them up.
    let zpool = world.command("zpool");
    let mut asks = Command::new("sh");
    asks.args(["-c", "read go; exec \"$0\" list"]).arg(zpool.get_program());
    asks.envs(zpool.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut asks = asks.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("sh");
    let mut kept = Vec::new();
    for socket in ["zillad.sock", "streams.sock", "streams.sock", "zillad.sock"] {
        for _ in 0..2 {
            let stream = shared.connect(JOE, world.state().join(socket));
            let other = send_along(&stream, b"GET /metrics HTT");
            // As if it were the next message.
            kept.push((send_along(&stream, b"P/1.1"), other, stream));
        }
    }
    let begun = Instant::now();
    let (done, is_done) = std::sync::mpsc::channel();
    drop(asks.stdin.take().map(|mut go| go.write_all(b"go\n")));
    std::thread::spawn(move || done.send(asks.wait()));
    let status = is_done.recv_timeout(LIMIT).expect("the daemon waits for what a guest sent along");
    assert!(status.expect("zpool").success());
    // And when he goes.
    let others: Vec<_> = kept.into_iter().map(|(a, b, _)| (a, b)).collect();
    shared.ask(JOE, "hello", "{}");
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    drop(others);
}
