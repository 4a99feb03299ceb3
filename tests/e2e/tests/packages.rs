//! Packages of several datasets whose sender has less than its receiver expects: nothing of the
//! receiver's goes for it, and names that move on are followed.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use zilla_e2e::{Done, Kind, Pool, World};

/// `zfs send WORDS > file`
fn send(world: &World, words: &str, file: &str) -> Vec<u8> {
    let path = world.path().join(file);
    let out = fs::File::create(&path).expect("stream");
    let done = world.command("zfs").arg("send").args(words.split(' ')).stdout(out).output().expect("zfs");
    assert!(done.status.success(), "zfs send {words}: {}", String::from_utf8_lossy(&done.stderr));
    fs::read(path).expect("stream")
}

/// `zfs receive WORDS < stream`
fn receive(world: &World, words: &str, stream: &[u8]) -> Done {
    let path = world.path().join("in.zsend");
    fs::write(&path, stream).expect("stream");
    let mut command = world.command("zfs");
    command.arg("receive").args(words.split(' ')).stdin(fs::File::open(&path).expect("stream"));
    let out = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("zfs");
    let said = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    Done {
        line: format!("zfs receive {words}"),
        code: out.status.code().unwrap_or(-1),
        stdout: said(&out.stdout),
        stderr: said(&out.stderr),
    }
}

fn guids(world: &World, fs: &str) -> Vec<(String, String)> {
    let words = format!("list -H -o name,guid -t snapshot -s createtxg -d 1 {fs}");
    let line = |l: &str| {
        let (name, guid) = l.split_once('\t').expect("two words");
        (name.split_once('@').expect("a snapshot").1.to_owned(), guid.to_owned())
    };
    world.zfs(&words).ok().lines().map(line).collect()
}

/// As OpenZFS: a tree of which one dataset lacks the snapshot is not sent, because a receiver with
/// -F would take that one for destroyed.
#[test]
fn a_tree_that_lacks_a_snapshot_is_not_sent() {
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -o mountpoint=none tank/a").ok();
    world.zfs("create tank/a/child").ok();
    world.zfs("snapshot -r tank/a@one").ok();
    receive(&world, "-u tank/b", &send(&world, "-R tank/a@one", "one")).ok();
    world.zfs("snapshot tank/a@two").ok();
    let out = world.zfs("send -R -i @one tank/a@two");
    assert_eq!(out.code, 1, "{out}");
    let want = "cannot send tank/a@two recursively: snapshot tank/a/child@two does not exist";
    assert!(out.stderr.contains(want) && out.stdout.is_empty(), "{out}");
    // One that was not there yet is no part of it.
    world.zfs("create tank/a/late").ok();
    world.zfs("snapshot tank/a/child@two").ok();
    receive(&world, "-u -F tank/b", &send(&world, "-R -i @one tank/a@two", "two")).ok();
    assert_eq!(guids(&world, "tank/a/child"), guids(&world, "tank/b/child"));
    pool.judge();
}

/// As OpenZFS: the names of snapshots go with them, also where one gets another's.
#[test]
fn names_of_snapshots_that_move_on_are_followed() {
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -o mountpoint=none tank/a").ok();
    for name in ["daily.2", "daily.1", "daily.0", "x", "y", "z"] {
        world.zfs(&format!("snapshot tank/a@{name}")).ok();
    }
    for to in ["tank/b", "tank/c"] {
        receive(&world, &format!("-u {to}"), &send(&world, "-R tank/a@z", "all")).ok();
    }
    // The oldest goes, the others get the next one's name; and some go round in a circle.
    world.zfs("destroy tank/a@daily.2").ok();
    for (old, new) in
        [("daily.1", "daily.2"), ("daily.0", "daily.1"), ("x", "t"), ("y", "x"), ("z", "y"), ("t", "z")]
    {
        world.zfs(&format!("rename tank/a@{old} tank/a@{new}")).ok();
    }
    world.zfs("snapshot tank/a@daily.0").ok();
    let step = send(&world, "-R -i @y tank/a@daily.0", "step");
    receive(&world, "-u -F tank/b", &step).ok();
    assert_eq!(guids(&world, "tank/b"), guids(&world, "tank/a"));
    // Without force the oldest stays, and with it the name that the next would have; what is in
    // nobody's way is followed all the same.
    let done = receive(&world, "-u tank/c", &step);
    let want = "cannot rename 'tank/c@daily.1' to 'tank/c@daily.2': dataset already exists";
    assert!(done.stderr.contains(want), "{done}");
    let names: Vec<String> = guids(&world, "tank/c").into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[3..6], ["z", "x", "y"].map(str::to_owned));
    pool.judge();
}

/// Unlike OpenZFS: -F destroys what the sender has no more, and nothing that he was told to leave
/// out.
#[test]
fn what_a_sender_leaves_out_is_not_destroyed_at_its_receiver() {
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -o mountpoint=none tank/a").ok();
    for name in ["keep", "keep/below", "lacks", "lacks/below", "gone", "gone/below"] {
        world.zfs(&format!("create tank/a/{name}")).ok();
    }
    world.zfs("snapshot -r tank/a@one").ok();
    receive(&world, "-u tank/b", &send(&world, "-R tank/a@one", "one")).ok();
    world.zfs("destroy -r tank/a/gone").ok();
    // It is known by its snapshots, whatever its name is by now.
    world.zfs("rename tank/a/keep tank/a/kept").ok();
    world.zfs("snapshot -r tank/a@two").ok();
    world.zfs("destroy -r tank/a/lacks@two").ok();
    let step = send(&world, "-R -s -X tank/a/kept -i @one tank/a@two", "step");
    receive(&world, "-u -F tank/b", &step).ok();
    let names = world.zfs("list -H -o name -r tank/b").ok();
    let want = ["", "/keep", "/keep/below", "/lacks", "/lacks/below"].map(|name| format!("tank/b{name}\n"));
    assert_eq!(names, want.concat());
    // What is in the package again is followed again.
    world.zfs("snapshot -r tank/a@three").ok();
    world.zfs("destroy -r tank/a/lacks").ok();
    let step = send(&world, "-R -i @two tank/a@three", "next");
    receive(&world, "-u -F tank/b", &step);
    let names = world.zfs("list -H -o name -r tank/b").ok();
    assert!(!names.contains("lacks") && names.contains("tank/b/kept/below\n"), "{names}");
    pool.judge();
}

/// As OpenZFS: what is being received at the sender lacks the snapshot like any other that does,
/// and its receiver's copy does not go for it.
#[test]
fn what_is_being_received_at_the_sender_is_not_destroyed_at_its_receiver() {
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -o mountpoint=none tank/a").ok();
    for name in ["old", "new"] {
        world.zfs(&format!("create -V 8m tank/a/{name}")).ok();
    }
    world.zfs("snapshot -r tank/a@one").ok();
    receive(&world, "-u tank/b", &send(&world, "-R tank/a@one", "one")).ok();
    let again = |name: &str| {
        let full = send(&world, &format!("tank/a/{name}@one"), "full");
        world.zfs(&format!("destroy -r tank/a/{name}")).ok();
        assert_eq!(receive(&world, &format!("-s tank/a/{name}"), &full[..full.len() - 100]).code, 1);
    };
    again("old");
    world.zfs("snapshot -r tank/a@two").ok();
    again("new");
    let out = world.zfs("send -R -i @one tank/a@two");
    let want = "cannot send tank/a@two recursively: snapshot tank/a/old@two does not exist";
    assert!(out.code == 1 && out.stderr.contains(want) && out.stdout.is_empty(), "{out}");
    receive(&world, "-u -F tank/b", &send(&world, "-R -s -i @one tank/a@two", "two")).ok();
    for name in ["old", "new"] {
        assert_eq!(guids(&world, &format!("tank/b/{name}")).len(), 1, "{name}");
    }
    pool.judge();
}

/// As OpenZFS: of snapshots that are gone at the sender one that is held keeps no other, and is out
/// of the way of one that has its name now.
#[test]
fn a_held_snapshot_goes_later_and_the_others_now() {
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -o mountpoint=none tank/a").ok();
    for name in ["one", "two", "three", "four"] {
        world.zfs(&format!("snapshot tank/a@{name}")).ok();
    }
    receive(&world, "-u tank/b", &send(&world, "-R tank/a@four", "all")).ok();
    world.zfs("hold keep tank/b@two").ok();
    let held = world.zfs("get -H -o value guid tank/b@two").ok();
    world.zfs("destroy tank/a@one,two,three").ok();
    world.zfs("snapshot tank/a@two").ok();
    receive(&world, "-u -F tank/b", &send(&world, "-R -i @four tank/a@two", "step")).ok();
    let (ours, theirs) = (guids(&world, "tank/b"), guids(&world, "tank/a"));
    assert_eq!(ours[1..], theirs[..]);
    let (name, guid) = &ours[0];
    assert!(name.starts_with("recv-") && guid == held.trim(), "{ours:?}");
    world.zfs(&format!("release keep tank/b@{name}")).ok();
    assert_eq!(guids(&world, "tank/b"), theirs, "it waited for its hold only");
    pool.judge();
}

/// Who made a package says how many tags its snapshots have.
#[test]
fn tags_of_a_package_s_snapshot_are_put_on_it_together() {
    const TAGS: usize = 24;
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -o mountpoint=none tank/a").ok();
    world.zfs("snapshot tank/a@s").ok();
    (0..TAGS).for_each(|n| drop(world.zfs(&format!("hold tag{n} tank/a@s")).ok()));
    receive(&world, "-u tank/b", &send(&world, "-h tank/a@s", "held")).ok();
    assert_eq!(world.zfs("holds -H tank/b@s").ok().lines().count(), TAGS);
    let history = world.zpool("history -i tank").ok();
    let held = history.lines().filter(|l| l.contains(" hold tank/b@s "));
    let txgs: Vec<&str> = held.filter_map(|l| l.split_once("[txg:")?.1.split(']').next()).collect();
    assert_eq!(txgs.len(), TAGS, "{history}");
    let different: BTreeSet<&str> = txgs.into_iter().collect();
    assert!(different.len() <= 2, "{different:?}");
    pool.judge();
}

/// As OpenZFS: what is being received has no snapshots yet, and is in the way of none.
#[test]
fn snapshots_of_a_tree_are_taken_beside_a_receive_that_was_cut() {
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -V 8m tank/v").ok();
    world.zfs("snapshot tank/v@one").ok();
    let full = send(&world, "tank/v@one", "full");
    assert_eq!(receive(&world, "-s tank/cut", &full[..full.len() - 100]).code, 1);
    assert!(world.zfs("get -H -o value receive_resume_token tank/cut").ok().len() > 20);
    world.zfs("snapshot -r tank@all").ok();
    let names = world.zfs("list -H -o name -t snapshot -r tank").ok();
    assert!(["tank@all\n", "tank/v@all\n"].iter().all(|name| names.contains(name)), "{names}");
    assert!(!names.contains("tank/cut"), "{names}");
    let busy = world.zfs("snapshot tank/cut@all");
    assert_eq!(busy.code, 1, "{busy}");
    pool.judge();
}

/// What a target asks for it says itself: of what is to be sent raw it gets nothing in the clear.
#[test]
fn a_target_cannot_ask_in_the_clear_for_what_is_sent_raw() {
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    let key = world.path().join("key");
    fs::write(&key, "7".repeat(64)).expect("key");
    let how = format!("-o encryption=on -o keyformat=hex -o keylocation=file://{}", key.display());
    world.zfs(&format!("create {how} -V 8m tank/secret")).ok();
    world.zfs("snapshot tank/secret@one").ok();
    let plain = send(&world, "tank/secret@one", "plain");
    assert_eq!(receive(&world, "-s tank/copy", &plain[..plain.len() - 100]).code, 1);
    let replicate = || {
        let words = ["replicate", "-w", "tank/secret", "tank/copy"];
        world.command("zilla").args(words).output().expect("zilla")
    };
    let refused = replicate();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("in the clear"), "{said}");
    world.zfs("receive -A tank/copy").ok();
    let done = replicate();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(world.zfs("get -H -o value encryptionroot tank/copy").ok(), "tank/copy\n");
    pool.judge();
}
