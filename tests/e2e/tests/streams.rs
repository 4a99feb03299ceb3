//! `zfs send` and `zfs receive` through real pipes: trees, properties, packages, and streams that
//! are cut.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use zilla_e2e::{Kind, Need, Pool, Random, World, can, tree};

/// `zfs send WORDS > file`
fn send(world: &World, words: &str, file: &str) -> Vec<u8> {
    let path = world.path().join(file);
    let out = fs::File::create(&path).expect("stream");
    let status = world.command("zfs").arg("send").args(words.split(' ')).stdout(out).status().expect("zfs");
    assert!(status.success(), "zfs send {words}");
    fs::read(path).expect("stream")
}

/// `zfs receive WORDS < stream`; what it said where it failed.
fn receive(world: &World, words: &str, stream: &[u8]) -> Result<String, String> {
    let path = world.path().join("in.zsend");
    fs::write(&path, stream).expect("stream");
    let input = fs::File::open(&path).expect("stream");
    let mut command = world.command("zfs");
    command.arg("receive").args(words.split(' ')).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = command.output().expect("zfs");
    let said = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    if done.status.success() { Ok(said(&done.stdout)) } else { Err(said(&done.stderr)) }
}

/// What OpenZFS 2.3.9 says of each.
#[test]
fn an_origin_is_said_of_what_does_not_exist() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let _pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    for words in ["create tank/a", "snapshot tank/a@1", "snapshot tank/a@2", "create tank/e"] {
        world.zfs(words).ok();
    }
    let full = send(&world, "tank/a@1", "full");
    let step = send(&world, "-i @1 tank/a@2", "step");
    let package = send(&world, "-p tank/a@1", "package");
    receive(&world, "tank/b", &full).expect("received");
    world.zfs("clone tank/b@1 tank/c").ok();
    world.zfs("snapshot tank/c@c").ok();
    let clone = send(&world, "-i tank/b@1 tank/c@c", "clone");
    let exists = |fs: &str| format!("destination '{fs}' exists\nmust specify -F to overwrite it");
    let snapshots = "destination has snapshots (eg. tank/b@1)\nmust destroy them to overwrite it";
    for (words, stream, why) in [
        ("-o origin=tank/b@1 tank/b", &step, &*exists("tank/b")),
        ("-F -o origin=tank/b@1 tank/b", &step, snapshots),
        ("tank/b", &clone, &*exists("tank/b")),
        ("-o origin=tank/b@1 tank/e", &full, &*exists("tank/e")),
        ("-F -o origin=tank/b@1 tank/e", &full, "invalid backup stream"),
        ("-F -o origin=tank/b@1 tank/e", &step, "invalid backup stream"),
        ("-F tank/e", &clone, "invalid backup stream"),
        ("-F tank/c", &full, "destination has snapshots (eg. tank/c@c)\nmust destroy them to overwrite it"),
    ] {
        let said = receive(&world, words, stream).unwrap_err();
        assert!(said.starts_with(&format!("cannot receive new filesystem stream: {why}")), "{words}: {said}");
    }
    world.zfs("clone tank/b@1 tank/d").ok();
    let said = receive(&world, "-F tank/d", &full).unwrap_err();
    assert!(said.contains("destination 'tank/d' is a clone\nmust destroy it to overwrite it"), "{said}");
    let said = receive(&world, "-o origin=tank/no@1 tank/f", &step).unwrap_err();
    assert_eq!(said, "cannot receive: specified origin fs (tank/no@1) does not exist\n");
    let said = receive(&world, "-v -o origin=tank/b@1 tank/f", &step).expect("a clone");
    assert!(said.starts_with("using provided clone origin tank/b@1\nreceiving incremental stream"), "{said}");
    let said = receive(&world, "-v tank/g", &clone).expect("a clone");
    assert!(said.starts_with("found clone origin tank/b@1\n"), "{said}");
    let said = receive(&world, "-o origin=tank/c@c tank/h", &step).unwrap_err();
    assert!(said.contains("most recent snapshot of tank/h does not\nmatch incremental source"), "{said}");
    receive(&world, "-o origin=tank/c@c tank/i", &full).expect("any snapshot will do");
    receive(&world, "-o origin=tank/b@1 tank/j", &package).expect("a clone");
    let origins = world.zfs("get -H -o value origin tank/f tank/g tank/i tank/j").ok();
    assert_eq!(origins, "tank/b@1\ntank/b@1\ntank/c@c\ntank/b@1\n");
    assert!(world.zfs("list tank/h").code == 1, "what was refused made nothing");
    let volume = {
        world.zfs("create -s -V 8M tank/v").ok();
        world.zfs("snapshot tank/v@v").ok();
        send(&world, "tank/v@v", "volume")
    };
    world.zfs("create -p tank/k/below").ok();
    let said = receive(&world, "-F tank/k", &volume).unwrap_err();
    assert!(said.contains("destination has children (eg. tank/k/below)\ncannot overwrite with"), "{said}");
    let said = receive(&world, "-F tank", &volume).unwrap_err();
    assert!(said.contains("destination tank is the root dataset\ncannot overwrite with a ZVOL"), "{said}");
}

#[test]
fn trees_travel() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 256 << 20, &[]);
    world.zfs("create tank/a").ok();
    let a = pool.root().join("a");
    tree::sample(&a, 1);
    world.zfs("snapshot tank/a@one").ok();
    fs::write(a.join("more"), vec![7; 300_000]).expect("write");
    world.zfs("snapshot tank/a@two").ok();
    world.zfs("create -o compression=gzip -o user:p=1 tank/a/child").ok();
    fs::write(a.join("child/x"), "x").expect("write");
    world.zfs("snapshot -r tank/a@three").ok();
    // Through a pipe, at the same time.
    let mut from = world
        .command("zfs")
        .args(["send", "-R", "tank/a@three"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("send");
    let pipe = from.stdout.take().expect("pipe");
    let to = world.command("zfs").args(["receive", "-v", "tank/b"]).stdin(pipe).output().expect("receive");
    assert!(from.wait().expect("send").success() && to.status.success(), "{to:?}");
    tree::same(&a, &pool.root().join("b"));
    tree::same(&a.join(".zfs/snapshot/one"), &pool.root().join("b/.zfs/snapshot/one"));
    let got = world.zfs("get -H -o value,source compression,user:p tank/b/child").ok();
    assert_eq!(got, "gzip\treceived\n1\treceived\n");
    let shown = |what: &str| world.zfs(&format!("get -H -o value,received,source {what} tank/b/child")).ok();
    assert_eq!(shown("compression"), "gzip\tgzip\treceived\n");
    world.zfs("set compression=lz4 tank/b/child").ok();
    assert_eq!(shown("compression"), "lz4\tgzip\tlocal\n");
    world.zfs("set user:p=2 tank/b/child").ok();
    assert_eq!(shown("user:p,copies"), "2\t1\tlocal\n1\t-\tdefault\n");
    world.zfs("inherit -S user:p tank/b/child").ok();
    world.zfs("inherit -S compression tank/b/child").ok();
    assert_eq!(world.zfs("get -H -o value,source compression tank/b/child").ok(), "gzip\treceived\n");
    // What came before is passed over, what is new goes on top.
    fs::write(a.join("after"), "after").expect("write");
    world.zfs("snapshot -r tank/a@four").ok();
    let step = send(&world, "-R -I @two tank/a@four", "step");
    receive(&world, "-F tank/b", &step).expect("received");
    tree::same(&a, &pool.root().join("b"));
    // A package's holds and new names come along, and with -F what is gone goes.
    world.zfs("hold keep tank/a@four").ok();
    world.zfs("rename tank/a@three tank/a@drei").ok();
    world.zfs("destroy tank/a@one").ok();
    world.zfs("snapshot -r tank/a@five").ok();
    world.zfs("hold keep tank/a@five").ok();
    receive(&world, "-F tank/b", &send(&world, "-R -h -i @four tank/a@five", "holds")).expect("received");
    let names = world.zfs("list -H -o name -t snapshot -d 1 tank/b").ok();
    assert_eq!(names, "tank/b@two\ntank/b@drei\ntank/b@four\ntank/b@five\n");
    assert!(world.zfs("holds -H tank/b@five").ok().starts_with("tank/b@five\tkeep\t"));
    world.zfs("release keep tank/b@five").ok();
    let alone = send(&world, "-c -L -e -i @two tank/a@four", "alone");
    assert!(receive(&world, "tank/nowhere", &alone).unwrap_err().contains("does not exist"));
    assert!(
        receive(&world, "tank/b", &send(&world, "tank/a@two", "full"))
            .unwrap_err()
            .contains("must specify -F")
    );
    let dry = world.zfs("send -nvP -i @two tank/a@four").ok();
    assert!(dry.starts_with("incremental\ttwo\ttank/a@four\t") && dry.contains("\nsize\t"), "{dry}");
    assert!(
        world.zfs("send -i @four tank/a@two").fails().contains("not an earlier snapshot from the same fs")
    );
    if let Ok(dump) = Command::new("zstream").arg("dump").arg(world.path().join("step")).output() {
        assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    }
    pool.judge();
}

/// As OpenZFS: which dataset is which is told by its snapshots.
#[test]
fn a_package_takes_along_new_names_and_with_force_what_is_gone() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 256 << 20, &[]);
    world.zfs("create -o mountpoint=none tank/a").ok();
    for name in ["old", "x", "x/deep", "y", "y/z"] {
        world.zfs(&format!("create tank/a/{name}")).ok();
    }
    world.zfs("snapshot -r tank/a@one").ok();
    // A clone, in the way of the one that it is of.
    world.zfs("clone tank/a/y@one tank/a/ac").ok();
    world.zfs("snapshot tank/a/ac@one").ok();
    receive(&world, "tank/b", &send(&world, "-R tank/a@one", "full")).expect("received");
    let names = || world.zfs("list -H -o name -r tank/b").ok().replace("tank/b", "b").replace('\n', " ");
    assert_eq!(names(), "b b/ac b/old b/x b/x/deep b/y b/y/z ");
    world.zfs("rename tank/a/x tank/a/neu").ok();
    world.zfs("rename tank/a/neu/deep tank/a/deep").ok();
    world.zfs("destroy -R tank/a/y").ok();
    world.zfs("create tank/a/fresh").ok();
    world.zfs("create tank/b/mine").ok();
    world.zfs("snapshot -r tank/a@two").ok();
    receive(&world, "tank/b", &send(&world, "-R -I @one tank/a@two", "two")).expect("received");
    assert_eq!(names(), "b b/ac b/deep b/fresh b/mine b/neu b/old b/y b/y/z ", "nothing goes unasked");
    world.zfs("destroy -r tank/a/old").ok();
    world.zfs("snapshot -r tank/a@three").ok();
    receive(&world, "-F tank/b", &send(&world, "-R -i @two tank/a@three", "three")).expect("received");
    assert_eq!(names(), "b b/deep b/fresh b/neu ");
    // What was sent to the wrong place costs nothing there.
    world.zfs("create -p tank/other/precious").ok();
    world.zfs("snapshot -r tank/other@three").ok();
    let wrong = receive(&world, "-F tank/other", &send(&world, "-R -i @two tank/a@three", "again"));
    wrong.expect_err("it does not begin there");
    world.zfs("list tank/other@three tank/other/precious tank/other/precious@three").ok();
    let guids = |fs: &str| {
        let found = ["", "/deep", "/fresh", "/neu"]
            .map(|below| world.zfs(&format!("get -H -o value guid {fs}{below}@three")).ok());
        found.concat()
    };
    assert_eq!(guids("tank/a"), guids("tank/b"));
    pool.judge();
}

/// As OpenZFS. The other way round it is received.
#[test]
fn what_was_sent_with_large_blocks_is_not_gone_on_with_without_them() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 256 << 20, &[]);
    world.zfs("create -o recordsize=1M tank/a").ok();
    let file = pool.root().join("a/file");
    let words = |n: u32| -> Vec<u8> {
        (0..n).flat_map(|i| i.wrapping_mul(0x9e37_79b9).rotate_left(n % 32).to_le_bytes()).collect()
    };
    fs::write(&file, words(700_000)).expect("write");
    world.zfs("snapshot tank/a@one").ok();
    let mut changed = words(700_000);
    changed[2_000_000..2_000_100].fill(0);
    fs::write(&file, &changed).expect("write");
    world.zfs("snapshot tank/a@two").ok();
    receive(&world, "tank/large", &send(&world, "-L tank/a@one", "large")).expect("received");
    for how in ["", "-c "] {
        let said = receive(&world, "tank/large", &send(&world, &format!("{how}-i @one tank/a@two"), "small"));
        assert!(said.expect_err("refused").contains("requires -L (--large-block)"));
    }
    receive(&world, "tank/large", &send(&world, "-L -i @one tank/a@two", "step")).expect("received");
    receive(&world, "tank/small", &send(&world, "tank/a@one", "small")).expect("received");
    receive(&world, "tank/small", &send(&world, "-L -i @one tank/a@two", "step")).expect("received");
    for fs_name in ["large", "small"] {
        assert!(fs::read(pool.root().join(fs_name).join("file")).expect("read") == changed, "{fs_name}");
    }
    pool.judge();
}

#[test]
fn a_dataset_goes_with_what_an_interrupted_receive_left_in_it() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 256 << 20, &[]);
    world.zfs("create tank/a").ok();
    world.zfs("snapshot tank/a@one").ok();
    let words: Vec<u8> = (0..1_000_000_u32).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    fs::write(pool.root().join("a/file"), words).expect("write");
    world.zfs("snapshot tank/a@two").ok();
    receive(&world, "tank/up/b", &send(&world, "tank/a@one", "full")).unwrap_err();
    world.zfs("create tank/up").ok();
    receive(&world, "tank/up/b", &send(&world, "tank/a@one", "full")).expect("received");
    let step = send(&world, "-i @one tank/a@two", "step");
    receive(&world, "-s -F tank/up/b", &step[..step.len() / 2]).unwrap_err();
    let token = world.zfs("get -H -o value receive_resume_token tank/up/b").ok();
    assert!(token.len() > 20, "{token}");
    world.zfs("destroy -r tank/up").ok();
    assert_eq!(world.zfs("list -H -o name -t all").ok(), "tank\ntank/a\ntank/a@one\ntank/a@two\n");
    pool.judge();
}

#[test]
fn a_stream_that_is_cut_leaves_nothing_or_goes_on() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 256 << 20, &[]);
    world.zfs("create tank/a").ok();
    tree::sample(&pool.root().join("a"), 2);
    world.zfs("snapshot tank/a@one").ok();
    let full = send(&world, "tank/a@one", "full");
    for (n, part) in [10, 45, 90].into_iter().enumerate() {
        let cut = &full[..full.len() * part / 100];
        let said = receive(&world, "tank/gone", cut).unwrap_err();
        assert_eq!(said, "cannot receive new filesystem stream: incomplete stream\n");
        let said = receive(&world, "-n tank/gone", cut).unwrap_err();
        assert_eq!(said, "cannot receive: failed to read from stream\n");
        world.zfs("list tank/gone").fails();
        let mut flipped = full.clone();
        flipped[full.len() * part / 100] ^= 1;
        let said = receive(&world, "tank/gone", &flipped).unwrap_err();
        assert_eq!(said, "cannot receive new filesystem stream: checksum mismatch\n");
        world.zfs("list tank/gone").fails();
        let fs = format!("tank/r{n}");
        let said = receive(&world, &format!("-s {fs}"), cut).unwrap_err();
        let text = "cannot receive new filesystem stream: checksum mismatch or incomplete stream.\nPartially \
                    received snapshot is saved.\n";
        assert!(said.starts_with(text), "{said}");
        // It is nobody's to look into, and lasts.
        world.zfs(&format!("mount {fs}")).fails();
        world.zfs(&format!("snapshot {fs}@x")).fails();
        if n == 1 {
            pool.again();
        }
        if n == 2 {
            world.kill();
        }
        let token = world.zfs(&format!("get -H -o value receive_resume_token {fs}")).ok();
        let rest = send(&world, &format!("-t {}", token.trim()), "rest");
        receive(&world, &format!("-s {fs}"), &rest).expect("the rest");
        tree::same(&pool.root().join("a"), &pool.root().join(format!("r{n}")));
        assert_eq!(world.zfs(&format!("get -H -o value receive_resume_token {fs}")).ok(), "-\n");
    }
    // A stream's beginning, and what a package has around its streams.
    world.zfs("snapshot tank/a@two").ok();
    let package = send(&world, "-R tank/a@two", "package");
    let end = package.len();
    for (stream, len) in
        [(&full, 0), (&full, 100), (&package, 100), (&package, end - 312), (&package, end - 1)]
    {
        let said = receive(&world, "tank/gone", &stream[..len]).unwrap_err();
        assert_eq!(said, "cannot receive: failed to read from stream\n", "{len}");
        let _ = world.zfs("destroy -r tank/gone");
    }
    let mut flipped = package.clone();
    let own = u32::from_le_bytes(package[4..8].try_into().expect("4 bytes")) as usize;
    flipped[312 + own + 8] ^= 1;
    let said = receive(&world, "tank/gone", &flipped).unwrap_err();
    assert_eq!(said, "cannot receive: incorrect header checksum\n");
    // What it goes on from may be another's by then, or nobody's.
    receive(&world, "-s tank/left", &full[..full.len() / 2]).unwrap_err();
    let token = world.zfs("get -H -o value receive_resume_token tank/left").ok();
    let resume = |what: &str| {
        let done = world.zfs(&format!("send -nv -t {}", token.trim()));
        let text = format!("cannot resume send: 'tank/a@one' {what}\n");
        assert!(done.code == 255 && done.stderr.ends_with(&text), "{done}");
    };
    world.zfs("destroy tank/a@one").ok();
    resume("used in the initial send no longer exists");
    world.zfs("snapshot tank/a@one").ok();
    resume("is no longer the same snapshot used in the initial send");
    world.zfs("rename tank/a tank/z").ok();
    resume("used in the initial send no longer exists");
    let done = world.zfs("send -t 1-x-x-x");
    assert!(done.code == 255 && done.stderr.starts_with("cannot resume send: "), "{done}");
    world.zfs("receive -A tank/left").ok();
    world.zfs("list tank/left").fails();
    pool.judge();
}

#[test]
fn who_dies_while_receiving_leaves_nothing() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 256 << 20, &[]);
    world.zfs("create tank/a").ok();
    tree::sample(&pool.root().join("a"), 3);
    world.zfs("snapshot tank/a@one").ok();
    let full = send(&world, "tank/a@one", "full");
    let half = |fs: &str| {
        use std::io::Write;
        let mut client =
            world.command("zfs").args(["receive", fs]).stdin(Stdio::piped()).spawn().expect("receive");
        let mut pipe = client.stdin.take().expect("pipe");
        pipe.write_all(&full[..full.len() / 2]).expect("write");
        (client, pipe)
    };
    let (mut client, _pipe) = half("tank/b");
    client.kill().expect("kill");
    client.wait().expect("wait");
    let gone = || world.zfs("list tank/b").code != 0;
    assert!((0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        gone()
    }));
    let (mut client, _pipe) = half("tank/c");
    std::thread::sleep(std::time::Duration::from_secs(1));
    world.kill();
    client.wait().expect("wait");
    world.zfs("list tank/c").fails();
    receive(&world, "tank/c", &full).expect("received");
    tree::same(&pool.root().join("a"), &pool.root().join("c"));
    pool.judge();
}

/// An `ssh` that runs what it is told with another daemon; the folder it lies in. While there is a
/// file `cut` beside it, only so many bytes get there.
fn fake_ssh(world: &World, other: &World) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let dir = world.path().join("bin");
    fs::create_dir(&dir).expect("folder");
    let (ssh, cut) = (dir.join("ssh"), dir.join("cut"));
    let script = format!(
        "#!/bin/sh\n[ \"$1 $2 $3 $4\" = '-o BatchMode=yes -- box' ] || exit 255\nshift 4\nexport ZILLA_DIR='{}'\n\
         if [ -e '{1}' ]; then head -c \"$(cat '{1}')\" | sh -c \"$*\"; else exec sh -c \"$*\"; fi\n",
        other.state().display(),
        cut.display()
    );
    fs::write(&ssh, script).expect("script");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("script");
    dir
}

#[test]
fn a_copy_on_another_machine_is_kept_up_to_date() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let (world, other) = (World::new(), World::new());
    let pool = Pool::create(&world, "tank", Kind::Mirror, 256 << 20, &[]);
    let vault = Pool::create(&other, "vault", Kind::Mirror, 256 << 20, &[]);
    let bin = fake_ssh(&world, &other);
    let zilla = world.command("zpool").get_program().to_owned();
    let built = std::path::Path::new(&zilla).parent().expect("folder").display().to_string();
    let path = format!("{}:{built}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let replicate = |words: &str| {
        let mut command = world.command("zilla");
        command.env("PATH", &path).arg("replicate").args(words.split(' '));
        zilla_e2e::world::finish(command)
    };
    let names = |of: &World, what: &str| of.zfs(&format!("list -H -o name -s createtxg -t {what}")).ok();
    let holds = |of: &World, snap: &str| of.zfs(&format!("holds -H {snap}")).ok().lines().count();
    let last = |of: &World| names(of, "snapshot").lines().last().unwrap_or_default().to_owned();
    world.zfs("create -V 32M tank/v").ok();
    world.zfs("snapshot tank/v@mine").ok();
    let to = "tank/v ssh:box:vault/copy";
    // Nothing is done.
    let said = replicate(&format!("-n {to}")).ok();
    assert!(said.contains("would snapshot tank/v@replicate-") && said.contains("(all of it)"), "{said}");
    assert_eq!(names(&world, "snapshot"), "tank/v@mine\n");
    // The first run, and one that adds to it.
    let said = replicate(&format!("-B {to}")).ok();
    assert!(said.contains("hold box:vault/copy@replicate-"), "{said}");
    let first = last(&world);
    assert_eq!((holds(&world, &first), holds(&other, &last(&other))), (1, 1));
    let said = replicate(&format!("-B -j -k 1 -K 1 {to}")).ok();
    assert!(
        said.starts_with('{') && said.contains("\"code\":0") && said.contains("\"action\":\"destroy\""),
        "{said}"
    );
    let second = last(&world);
    assert_eq!(names(&world, "snapshot"), format!("tank/v@mine\n{second}\n"), "mine stays");
    assert_eq!(names(&other, "snapshot").lines().count(), 1);
    assert_eq!((holds(&world, &second), holds(&other, &last(&other))), (1, 1));
    // The source's snapshot is gone: its bookmark will do.
    let tag = world.zfs(&format!("holds -H {second}")).ok();
    let tag = tag.split('\t').nth(1).expect("a tag");
    world.zfs(&format!("release {tag} {second}")).ok();
    world.zfs(&format!("destroy {second}")).ok();
    let said = replicate(to).ok();
    assert!(said.contains("from #replicate-"), "{said}");
    let said = replicate(&format!("--no-snapshot {to}")).ok();
    assert!(said.contains("up to date"), "{said}");
    // Cut off, and gone on from.
    fs::write(bin.join("cut"), "900000").expect("cut");
    world.zfs("create tank/w").ok();
    let noise = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(n).to_le_bytes();
    let data: Vec<u8> = (1..400_000).flat_map(noise).collect();
    fs::write(pool.root().join("w/file"), &data).expect("write");
    world.zfs("snapshot tank/w@s").ok();
    let done = replicate("--no-snapshot tank/w ssh:box:vault/w");
    assert_eq!(done.code, 4, "{done}");
    fs::remove_file(bin.join("cut")).expect("cut");
    let said = replicate("--no-snapshot tank/w ssh:box:vault/w").ok();
    assert!(said.starts_with("resume box:vault/w\n") && said.contains("up to date"), "{said}");
    other.zfs("mount vault/w").ok();
    assert!(fs::read(vault.root().join("w/file")).expect("read") == data);
    // Nothing in common.
    other.zfs("create -V 8M vault/x").ok();
    other.zfs("snapshot vault/x@a").ok();
    assert_eq!(replicate("tank/v ssh:box:vault/x").code, 3);
    for wrong in
        ["tank/v", "tank/v tank/v", "-k 0 tank/v tank/y", "tank/v@mine tank/y", "tank/v ssh:-x:y", "-Q a b"]
    {
        assert_eq!(replicate(wrong).code, 2, "{wrong}");
    }
    assert_eq!(replicate("tank/v nopool/x").code, 1);
}

#[test]
fn what_a_cut_stream_has_left_is_sent_on() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 256 << 20, &[]);
    world.zfs("create tank/a").ok();
    tree::sample(&pool.root().join("a"), 3);
    world.zfs("snapshot tank/a@one").ok();
    fs::write(pool.root().join("a/more"), vec![9; 500_000]).expect("write");
    world.zfs("snapshot tank/a@two").ok();
    let full = send(&world, "tank/a@one", "full");
    let step = send(&world, "-i @one tank/a@two", "step");
    let token = |fs: &str| world.zfs(&format!("get -H -o value receive_resume_token {fs}")).ok();
    for (n, stream) in [&full, &step].into_iter().enumerate() {
        receive(&world, "-s tank/b", &stream[..stream.len() * 60 / 100]).unwrap_err();
        let size = world.zfs("send -nvP --saved tank/b").ok();
        assert!(size.contains("\nsize\t"), "{size}");
        let saved = send(&world, "-S tank/b", "saved");
        assert!(saved.len() < stream.len());
        let said = receive(&world, "-s tank/c", &saved).unwrap_err();
        assert!(said.contains("incomplete stream") && said.contains("zfs send -t"), "{said}");
        for fs in ["tank/b", "tank/c"] {
            let rest = send(&world, &format!("-t {}", token(fs).trim()), "rest");
            receive(&world, &format!("-s {fs}"), &rest).expect("the rest");
        }
        let snap = ["one", "two"][n];
        let of = |fs: &str| pool.root().join(format!("{fs}/.zfs/snapshot/{snap}"));
        tree::same(&of("a"), &of("b"));
        tree::same(&of("a"), &of("c"));
    }
    let said = world.zfs("send -S tank/b").fails();
    assert!(said.contains("no partially received state"), "{said}");
    let refused = |words: &str, what: &str| {
        let done = world.zfs(words);
        assert!(done.code == 2 && done.stderr.contains(what), "{done}");
    };
    for words in ["-c", "-w", "-p", "-h", "-R", "-i @one"] {
        refused(&format!("send -S {words} tank/b"), "incompatible flags combined with saved send flag");
    }
    refused("send -S tank/b@one", "saved send must specify the dataset with partially-received state");
    refused("send -S", "missing snapshot argument");
    refused("send -S -t 1-x-x-x", "invalid flags combined with -t");
    pool.judge();
}

#[test]
fn what_is_sensitive_is_left_out_and_comes_back() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create tank/a").ok();
    let a = pool.root().join("a");
    tree::sample(&a, 4);
    fs::write(a.join("passwords"), b"secret-secret-".repeat(40_000)).expect("write");
    fs::write(a.join("prices"), b"price-".repeat(40_000)).expect("write");
    world.zfs("snapshot tank/a@s").ok();
    world.zfs("clone tank/a@s tank/c").ok();
    fs::remove_file(pool.root().join("c/passwords")).expect("remove");
    world.zfs("snapshot tank/c@c").ok();
    world.zfs("bookmark tank/a@s tank/a#plain").ok();
    let refused = |words: &str, code: i32, what: &str| {
        let done = world.zfs(words);
        assert!(done.code == code && done.stderr.contains(what), "{done}");
    };
    refused("redact tank/a@s", 2, "too few arguments");
    refused("redact tank/a@s book", 2, "too few arguments");
    refused("redact tank/a@x book tank/c@c", 2, "provided snapshot tank/a@x does not exist");
    refused("redact tank/a@s book tank/c@x", 2, "provided snapshot tank/c@x does not exist");
    refused("redact tank/a@s plain tank/c@c", 17, "(plain) provided already exists");
    refused("redact tank/a@s book tank/a@s", 22, "must be descendent of snapshot being redacted");
    refused("redact tank/a@s #book tank/c@c", 22, "must not contain '#'");
    refused("redact tank/a@s book @c", 18, "full dataset names required");
    world.zfs("redact tank/a@s book tank/c@c").ok();
    refused("redact tank/a@s book tank/c@c", 17, "(book) provided already exists");
    refused("redact tank/a@s book tank/a@s", 22, "must be descendent of snapshot being redacted");
    let get = |what: &str, name: &str| world.zfs(&format!("get -H -p -o value {what} {name}")).ok();
    let by = get("guid", "tank/c@c");
    assert_eq!(get("redact_snaps", "tank/a#book"), by);
    assert_eq!(get("redact_snaps", "tank/a@s"), "-\n");
    refused("send -w --redact book tank/a@s", 1, "raw sends may not be redacted");
    refused("send -R --redact book tank/a@s", 1, "multiple snapshots cannot be sent redacted");
    refused("send --redact plain tank/a@s", 1, "not a redaction bookmark");
    refused("send --redact none tank/a@s", 1, "cannot open 'tank/a#none'");
    refused("send --redact book tank/a", 1, "cannot do a redacted send to a filesystem");
    refused("send -S --redact book tank/a", 2, "incompatible flags combined with saved send flag");
    let red = send(&world, "--redact book tank/a@s", "red");
    let has = |stream: &[u8], what: &[u8]| stream.windows(what.len()).any(|w| w == what);
    assert!(!has(&red, b"secret-") && has(&red, b"price-"));
    let as_long = |words: &str, stream: &[u8]| {
        let told = world.zfs(&format!("send -nP {words}")).ok();
        assert!(told.ends_with(&format!("\nsize\t{}\n", stream.len())), "{words}: {told}");
    };
    as_long("--redact book tank/a@s", &red);
    if let Ok(dump) =
        Command::new("/usr/sbin/zstream").args(["dump", "-v"]).arg(world.path().join("red")).output()
    {
        let text = String::from_utf8_lossy(&dump.stdout).into_owned();
        assert!(dump.status.success(), "{text}");
        assert!(text.lines().any(|l| l.starts_with("REDACT object = ")), "{text}");
    }
    receive(&world, "tank/r", &red).expect("received");
    for name in ["tank/r", "tank/r@s"] {
        assert_eq!(get("redact_snaps", name), by);
    }
    // It is nobody's to look into but with force, and stays so.
    let mounted = |fs: &str| get("mounted", fs) == "yes\n";
    assert!(!mounted("tank/r"));
    refused(
        "mount tank/r",
        1,
        "Dataset is not complete, was created by receiving a redacted zfs send stream.",
    );
    pool.again();
    assert!(!mounted("tank/r"));
    world.zfs("mount -f tank/r").ok();
    assert!(fs::read(pool.root().join("r/prices")).expect("read") == b"price-".repeat(40_000));
    assert!(!has(&fs::read(pool.root().join("r/passwords")).expect("read"), b"secret"));
    // Who had it mounted so finds it mounted.
    for (from, to) in [("tank/r", "tank/r2"), ("tank/r2", "tank/r")] {
        world.zfs(&format!("rename {from} {to}")).ok();
        assert!(mounted(to));
    }
    world.zfs("unmount tank/r").ok();
    // What is whole goes on top of it: the clone, or what comes from the bookmark on.
    receive(&world, "-o origin=tank/r@s tank/rc", &send(&world, "-i tank/a@s tank/c@c", "clone"))
        .expect("clone");
    tree::same(&pool.root().join("c"), &pool.root().join("rc"));
    fs::write(a.join("more"), "more").expect("write");
    world.zfs("snapshot tank/a@t").ok();
    let said = receive(&world, "tank/r", &send(&world, "-i @s tank/a@t", "plain")).unwrap_err();
    assert!(said.contains("invalid backup stream"), "{said}");
    // What it leaves out is of another snapshot.
    refused("send --redact book tank/a@t", 1, "'tank/a#book' is not a redaction bookmark of tank/a@t");
    let step = send(&world, "-i tank/a#book tank/a@t", "step");
    assert!(has(&step, b"secret-"));
    as_long("-i tank/a#book tank/a@t", &step);
    // Cut, and gone on with. (Reading has changed it.)
    receive(&world, "-F -s tank/r", &step[..step.len() / 2]).unwrap_err();
    let token = get("receive_resume_token", "tank/r");
    receive(&world, "-F -s tank/r", &send(&world, &format!("-t {}", token.trim()), "rest"))
        .expect("the rest");
    assert_eq!(get("redact_snaps", "tank/r"), "-\n");
    world.zfs("mount tank/r").ok();
    tree::same(&a, &pool.root().join("r"));
    world.zfs("destroy tank/a#book").ok();
    refused("send -i tank/a#book tank/a@t", 1, "book");
    // A volume, too.
    world.zfs("create -V 8M tank/v").ok();
    world.zfs("snapshot tank/v@s").ok();
    world.zfs("clone tank/v@s tank/vc").ok();
    world.zfs("snapshot tank/vc@c").ok();
    world.zfs("redact tank/v@s book tank/vc@c").ok();
    receive(&world, "tank/rv", &send(&world, "--redact book tank/v@s", "volume")).expect("received");
    assert_eq!(get("redact_snaps", "tank/rv"), get("guid", "tank/vc@c"));
    pool.judge();
}

#[test]
fn properties_follow_their_sender() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create -o user:p=1 -o compression=gzip tank/a").ok();
    world.zfs("snapshot tank/a@one").ok();
    let one = send(&world, "-p tank/a@one", "one");
    receive(&world, "tank/b", &one).unwrap();
    let of = |what: &str| world.zfs(&format!("get -H -o value,source {what}")).ok();
    assert_eq!(of("user:p,compression tank/b"), "1\treceived\ngzip\treceived\n");
    world.zfs("set compression=zle tank/b").ok();
    world.zfs("inherit user:p tank/a").ok();
    world.zfs("inherit compression tank/a").ok();
    for (snap, word) in [("two", "2"), ("three", "3")] {
        world.zfs(&format!("snapshot tank/a@{snap}")).ok();
        world.zfs(&format!("set user:of={word} tank/a@{snap}")).ok();
    }
    let more = send(&world, "-p -I tank/a@one tank/a@three", "more");
    receive(&world, "tank/b", &more).unwrap();
    // What was set there stays; what is not sent any more is not received any more.
    assert_eq!(of("user:p,compression tank/b"), "-\t-\nzle\tlocal\n");
    assert_eq!(of("user:of tank/b@two"), "2\treceived\n");
    assert_eq!(of("user:of tank/b@three"), "3\treceived\n");
    // A package brings what its sender has said of older snapshots since then.
    receive(&world, "tank/r", &send(&world, "-R tank/a@three", "whole")).unwrap();
    world.zfs("set user:of=22 tank/a@two").ok();
    world.zfs("inherit user:of tank/a@three").ok();
    world.zfs("set user:mine=x tank/r@two").ok();
    world.zfs("snapshot tank/a@four").ok();
    receive(&world, "tank/r", &send(&world, "-R -I tank/a@three tank/a@four", "step")).unwrap();
    assert_eq!(of("user:of,user:mine tank/r@two"), "22\treceived\nx\tlocal\n");
    assert_eq!(of("user:of tank/r@three"), "-\t-\n");
    // By every name that a property has, once.
    for words in ["-o compress=off -x compression tank/c", "-x atime -o atime=off tank/c"] {
        let refused = receive(&world, words, &one).unwrap_err();
        assert!(refused.contains("specified multiple times"), "{refused}");
    }
    for words in ["-o version=1", "-x volsize", "-o casesensitivity=mixed", "-o used=1", "-x nosuch"] {
        let refused = receive(&world, &format!("{words} tank/c"), &one).unwrap_err();
        assert!(refused.contains("cannot receive: invalid property '"), "{words}: {refused}");
    }
    for how in ["-d", "-e"] {
        let refused = receive(&world, &format!("{how} tank/none"), &one).unwrap_err();
        assert!(refused.contains("cannot receive: specified fs (tank/none) does not exist"), "{refused}");
    }
    world.zfs("create tank/a/late").ok();
    let skipped = world.command("zfs").args(["send", "-Rs", "tank/a@three"]).output().expect("send");
    let said = String::from_utf8_lossy(&skipped.stderr).into_owned();
    let warning = "WARNING: skipping dataset tank/a/late and its children: snapshot three does not exist";
    assert!(skipped.status.success() && said.contains(warning), "{said}");
    pool.judge();
}

/// As OpenZFS: a package goes on after a clone has taken its origin's place.
#[test]
fn a_package_takes_promotions_along() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -o mountpoint=none tank/a").ok();
    world.zfs("create tank/a/x").ok();
    world.zfs("snapshot tank/a/x@base").ok();
    world.zfs("clone tank/a/x@base tank/a/y").ok();
    world.zfs("snapshot -r tank/a@one").ok();
    receive(&world, "tank/b", &send(&world, "-R tank/a@one", "one")).expect("received");
    let origins = |fs: &str| world.zfs(&format!("get -H -o value origin {fs}/x {fs}/y")).ok();
    assert_eq!(origins("tank/b"), "-\ntank/b/x@base\n");
    world.zfs("promote tank/a/y").ok();
    world.zfs("snapshot -r tank/a@two").ok();
    receive(&world, "-v tank/b", &send(&world, "-R -i @one tank/a@two", "two")).expect("received");
    assert_eq!(origins("tank/b"), "tank/b/y@base\n-\n");
    world.zfs("list tank/b/x@two tank/b/y@two tank/b/y@base").ok();
    let done = world.zfs("send -R -i @two tank/a@one");
    assert_eq!(done.code, 1);
    for fs in ["a", "a/x", "a/y"] {
        let warning = format!(
            "WARNING: could not send tank/{fs}@one:\nincremental source (tank/{fs}@two) is not earlier than it"
        );
        assert!(done.stderr.contains(&warning), "{}", done.stderr);
    }
    pool.judge();
}

#[test]
fn a_stream_is_encrypted_as_its_receiver_asks() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    let pass = world.path().join("pass");
    fs::write(&pass, "a passphrase\n").expect("key");
    world.zfs("create tank/a").ok();
    world.zfs("create tank/a/c").ok();
    fs::write(pool.root().join("a/f"), "contents").expect("write");
    world.zfs("snapshot -r tank/a@one").ok();
    fs::write(pool.root().join("a/g"), "more").expect("write");
    world.zfs("snapshot -r tank/a@two").ok();
    let (bare, with) = (send(&world, "tank/a@one", "bare"), send(&world, "-p tank/a@one", "with"));
    let (all, step) = (send(&world, "-R tank/a@two", "all"), send(&world, "-i @one tank/a@two", "step"));
    let place = format!("-o keylocation=file://{}", pass.display());
    let as_root = format!("-o encryption=on -o keyformat=passphrase {place}");
    let of = |name: &str| {
        let words = format!("get -H -o value encryption,encryptionroot,keyformat,mounted {name}");
        world.zfs(&words).ok().replace('\n', " ")
    };
    for (fs, stream) in [("tank/r", &bare), ("tank/p", &with), ("tank/t", &all)] {
        receive(&world, &format!("{as_root} {fs}"), stream).unwrap();
        assert_eq!(of(fs), format!("aes-256-gcm {fs} passphrase yes "));
        let shown = world.zfs(&format!("get -H -o value keylocation {fs}")).ok();
        assert_eq!(shown.trim(), format!("file://{}", pass.display()));
        assert_eq!(fs::read(world.mnt().join(fs).join("f")).expect("read"), b"contents");
    }
    assert_eq!(of("tank/t/c"), "aes-256-gcm tank/t passphrase yes ");
    // The key is kept for the next time, too.
    world.zfs("unmount tank/r").ok();
    world.zfs("unload-key tank/r").ok();
    world.zfs("load-key tank/r").ok();
    world.zfs("mount tank/r").ok();
    let refused = |words: &str, stream: &[u8], what: &str| {
        let said = receive(&world, words, stream).expect_err(words);
        assert!(said.contains(what), "{words}: {said}");
    };
    let changed = "cannot receive incremental stream: encryption property 'keyformat' cannot be set for \
                   incremental streams.";
    refused("-o keyformat=hex tank/r", &step, changed);
    refused("-o pbkdf2iters=100k tank/r", &step, "encryption property 'pbkdf2iters' cannot be set");
    receive(&world, "-F -x encryption tank/r", &step).unwrap();
    assert_eq!(fs::read(pool.root().join("r/g")).expect("read"), b"more");
    let stdin =
        "cannot receive new filesystem stream: Cannot use 'prompt' keylocation because stdin is in use.";
    refused("-o encryption=on -o keyformat=passphrase tank/x", &bare, stdin);
    refused("-o encryption=on -o keyformat=raw -o keylocation=prompt tank/x", &bare, stdin);
    refused("-o encryption=on tank/x", &bare, "Keyformat required for new encryption root.");
    let off = "Encryption must be turned on to set encryption properties.";
    refused(&format!("-o encryption=off -o keyformat=passphrase {place} tank/x"), &bare, off);
    refused(&format!("-o keyformat=passphrase {place} tank/x"), &bare, off);
    let nowhere = "-o encryption=on -o keyformat=passphrase -o keylocation=file:///nowhere tank/x";
    refused(nowhere, &bare, "Failed to open key material file");
    world.zfs("create tank/there").ok();
    let over = "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one \
                with an encrypted one";
    refused(&format!("-F {as_root} tank/there"), &bare, over);
    assert!(world.zfs("list tank/x").fails().contains("does not exist"));
    let raw = send(&world, "-w tank/r@one", "raw");
    for words in ["-x encryption", "-x pbkdf2iters", "-o keyformat=hex", "-o keylocation=prompt"] {
        refused(&format!("{words} tank/x"), &raw, "cannot be set or excluded for raw streams.");
    }
    // Out of the encrypted one, into plain ones.
    let out = send(&world, "tank/r@one", "out");
    receive(&world, "-x encryption tank/out", &out).unwrap();
    receive(&world, "-o encryption=off tank/r/out", &out).unwrap();
    receive(&world, "tank/r/in", &out).unwrap();
    assert_eq!(of("tank/out"), "off - none yes ");
    assert_eq!(of("tank/r/out"), "off - none yes ");
    assert_eq!(of("tank/r/in"), "aes-256-gcm tank/r passphrase yes ");
    pool.judge();
}

#[test]
fn a_plain_tree_stays_plain_where_it_is_received() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let key = world.path().join("key");
    fs::write(&key, [7; 32]).expect("key");
    world.zfs("create tank/a").ok();
    fs::write(pool.root().join("a/f"), "plain").expect("write");
    world.zfs("snapshot tank/a@one").ok();
    let (bare, with) = (send(&world, "tank/a@one", "bare"), send(&world, "-p tank/a@one", "with"));
    let location = format!("keylocation=file://{}", key.display());
    world.zfs(&format!("create -o encryption=on -o keyformat=raw -o {location} tank/e")).ok();
    receive(&world, "tank/e/in", &bare).unwrap();
    receive(&world, "-x encryption tank/e/told", &with).unwrap();
    world.zfs("unmount tank/e").ok();
    world.zfs("unload-key -r tank/e").ok();
    // Its properties say that it is not encrypted, so no key is needed.
    receive(&world, "tank/e/out", &with).unwrap();
    let of = |name: &str| world.zfs(&format!("get -H -o value encryption {name}")).ok();
    assert_eq!(of("tank/e/out"), "off\n");
    assert_eq!((of("tank/e/in"), of("tank/e/told")), ("aes-256-gcm\n".into(), "aes-256-gcm\n".into()));
    let refused = receive(&world, "tank/e/bare", &bare).unwrap_err();
    assert!(refused.contains("inherited key must be loaded"), "{refused}");
    pool.judge();
}

#[test]
fn a_file_system_is_sent_without_a_snapshot_as_long_as_nobody_uses_it() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 512 << 20, &[]);
    world.zfs("create tank/a").ok();
    let a = pool.root().join("a");
    tree::sample(&a, 6);
    world.zfs("snapshot tank/a@one").ok();
    world.zfs("bookmark tank/a@one tank/a#one").ok();
    // More than a pipe holds.
    fs::write(a.join("more"), Random::new(7).bytes(8 << 20)).expect("write");
    let refused = |words: &str, code: i32, what: &str| {
        let done = world.zfs(words);
        assert!(done.code == code && done.stderr.contains(what), "{done}");
    };
    let busy = "warning: cannot send 'tank/a': target is busy; if a filesystem, it must not be mounted";
    refused("send tank/a", 1, busy);
    world.zfs("unmount tank/a").ok();
    for words in ["-R", "-I @one", "-p", "-b", "-h"] {
        refused(&format!("send {words} tank/a"), 1, "Error: Unsupported flag with filesystem or bookmark.");
    }
    refused("send -R -i #one tank/a", 1, "Error: multiple snapshots cannot be sent from a bookmark.");
    refused("send -s tank/a", 2, "skip-missing flag can only be used in conjunction with replicate");
    refused("send -i @none tank/a", 1, "incremental source does not exist");
    let size = world.zfs("send -nvP tank/a").ok();
    assert!(size.starts_with("full\ttank/a\t") && size.contains("\nsize\t"), "{size}");
    let size = world.zfs("send -nv -i @one tank/a").ok();
    assert!(size.starts_with("send from @one to tank/a estimated size is "), "{size}");
    let full = send(&world, "tank/a", "full");
    let cut = receive(&world, "-s tank/cut", &full[..full.len() / 2]).unwrap_err();
    assert!(cut.contains("zfs send -t"), "{cut}");
    let token = world.zfs("get -H -o value receive_resume_token tank/cut").ok();
    receive(&world, "tank/cut", &send(&world, &format!("-t {}", token.trim()), "rest")).expect("the rest");
    receive(&world, "tank/b", &full).expect("received");
    receive(&world, "tank/c", &send(&world, "tank/a@one", "one")).expect("received");
    receive(&world, "tank/c", &send(&world, "-i @one tank/a", "step")).expect("received");
    receive(&world, "tank/d", &send(&world, "tank/a@one", "one")).expect("received");
    receive(&world, "tank/d", &send(&world, "-i #one tank/a", "mark")).expect("received");
    // While it is being sent it stays as it is.
    let mut sending =
        world.command("zfs").args(["send", "-V", "tank/a"]).stdout(Stdio::piped()).spawn().expect("send");
    let mut pipe = sending.stdout.take().expect("pipe");
    let mut begun = vec![0; 64 << 10];
    pipe.read_exact(&mut begun).expect("the stream");
    let comm = format!("/proc/{}/comm", sending.id());
    let title = || std::fs::read_to_string(&comm).expect("the name of a process");
    let told = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        title().contains("% ")
    });
    assert!(told, "its name says how far it is: {}", title());
    for words in ["mount tank/a", "rollback tank/a@one", "destroy -r tank/a"] {
        let said = world.zfs(words).fails();
        assert!(said.contains("busy"), "{words}: {said}");
    }
    pipe.read_to_end(&mut begun).expect("the stream");
    assert!(sending.wait().expect("send").success());
    assert_eq!(begun.len(), full.len());
    world.zfs("mount tank/a").ok();
    for fs in ["b", "c", "d", "cut"] {
        tree::same(&a, &pool.root().join(fs));
        world.zfs(&format!("list -t snapshot tank/{fs}@--head--")).ok();
    }
    let rest = world.zfs(&format!("send -t {}", token.trim())).fails();
    assert!(rest.contains("it must not be mounted"), "{rest}");
    // Where nothing can change nobody is in the way.
    pool.export();
    world.zpool(&format!("import -o readonly=on -d {} tank", world.disks().display())).ok();
    assert_eq!(send(&world, "tank/a", "again").len(), full.len());
    pool.export();
    pool.import();
    pool.judge();
}

#[test]
fn what_a_pool_cannot_heed_of_a_stream_is_told_and_left_out() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let tank = Pool::create(&world, "tank", Kind::Single, 256 << 20, &["-O", "recordsize=1M"]);
    let old = Pool::create(&world, "old", Kind::Single, 256 << 20, &["-d"]);
    world.zfs("create tank/a").ok();
    fs::write(tank.root().join("a/f"), Random::new(8).bytes(3 << 20)).expect("write");
    world.zfs("set recordsize=1M compression=gzip tank/a").ok();
    world.zfs("snapshot tank/a@one").ok();
    let input = send(&world, "-p tank/a@one", "with");
    fs::write(world.path().join("in.zsend"), &input).expect("stream");
    let stream = fs::File::open(world.path().join("in.zsend")).expect("stream");
    let mut command = world.command("zfs");
    let done = command.args(["receive", "old/a"]).stdin(stream).output().expect("zfs");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    assert!(said.contains("cannot receive recordsize property on old/a: "), "{said}");
    let of = |words: &str| world.zfs(&format!("get -H -p -o value,source {words}")).ok();
    assert_eq!(of("recordsize,compression old/a"), "131072\tdefault\ngzip\treceived\n");
    tree::same(&tank.root().join("a"), &old.root().join("a"));
    let refused = receive(&world, "old/b", &send(&world, "-L tank/a@one", "large")).unwrap_err();
    assert!(refused.contains("pool must be upgraded to receive this stream"), "{refused}");
    old.export();
    tank.judge();
}

/// As OpenZFS: `-o` is said of a package's first dataset, and those below inherit from it, whatever
/// they have or came with; `-x` leaves alone what was set here.
#[test]
fn what_is_said_of_a_package_is_inherited_below() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -o atime=off -o user:p=top tank/a").ok();
    world.zfs("create -o compression=gzip -o user:p=child -o quota=64M tank/a/c").ok();
    world.zfs("create -V 4M -o compression=zle tank/a/v").ok();
    world.zfs("snapshot -r tank/a@one").ok();
    let all = send(&world, "-R tank/a@one", "all");
    let of = |what: &str| world.zfs(&format!("get -H -p -o value,source {what}")).ok();
    receive(&world, "-o compression=zstd -o user:p=mine -o quota=32M -x atime tank/b", &all).unwrap();
    assert_eq!(of("compression,user:p tank/b"), "zstd\tlocal\nmine\tlocal\n");
    assert_eq!(of("atime tank/b"), "on\tdefault\n");
    let quota = |fs: &str| world.zfs(&format!("get -H -p -o value quota {fs}")).ok();
    let inherited = "zstd\tinherited from tank/b\nmine\tinherited from tank/b\n";
    assert_eq!(of("compression,user:p tank/b/c"), inherited);
    // What nobody inherits stays as it came.
    assert_eq!((quota("tank/b"), quota("tank/b/c")), ("33554432\n".into(), "67108864\n".into()));
    // A volume has no quota, which is no reason to refuse the package.
    assert_eq!(of("compression tank/b/v"), "zstd\tinherited from tank/b\n");
    // What it was sent with is still known.
    world.zfs("inherit -S compression tank/b/c").ok();
    assert_eq!(of("compression tank/b/c"), "gzip\treceived\n");
    world.zfs("set compression=lz4 tank/b/c").ok();
    world.zfs("set user:p=here tank/b/c").ok();
    world.zfs("set user:q=sent tank/a").ok();
    world.zfs("snapshot -r tank/a@two").ok();
    let step = send(&world, "-R -i @one tank/a@two", "step");
    receive(&world, "-x user:p -o compression=zle -x user:q tank/b", &step).unwrap();
    assert_eq!(of("compression,user:p tank/b"), "zle\tlocal\nmine\tlocal\n");
    assert_eq!(of("user:q tank/b"), "-\t-\n");
    assert_eq!(of("compression,user:p tank/b/c"), "zle\tinherited from tank/b\nhere\tlocal\n");
    let one = send(&world, "-p tank/a/v@one", "volume");
    let refused = receive(&world, "-o quota=32M tank/v", &one).unwrap_err();
    assert!(refused.contains("property 'quota' does not apply to datasets of this type"), "{refused}");
    let kept = receive(&world, "-x quota tank/v", &one);
    assert!(kept.is_ok(), "{kept:?}");
    pool.judge();
}

/// Of several datasets that were received from the same one, a package's clones are those of the
/// package's own.
#[test]
fn a_clone_is_made_of_what_is_nearest() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create tank/a").ok();
    world.zfs("create tank/a/x").ok();
    world.zfs("snapshot tank/a/x@base").ok();
    world.zfs("clone tank/a/x@base tank/a/y").ok();
    world.zfs("snapshot -r tank/a@one").ok();
    let base = send(&world, "tank/a/x@base", "base");
    for fs in ["tank/aa", "tank/zz", "tank/b"] {
        receive(&world, fs, &base).unwrap();
    }
    let all = send(&world, "-R tank/a@one", "all");
    for fs in ["tank/k", "tank/zz/k"] {
        receive(&world, fs, &all).unwrap();
        let origin = world.zfs(&format!("get -H -o value origin {fs}/y")).ok();
        assert_eq!(origin.trim(), format!("{fs}/x@base"));
    }
    pool.judge();
}

/// Encryption roots move with their sender's, also where a clone takes its origin's place beyond
/// them; and stay where that would take a key away.
#[test]
fn a_raw_package_takes_its_keys_along() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    let place = |n: u8| {
        let path = world.path().join(format!("key{n}"));
        fs::write(&path, format!("{n:064}")).expect("key");
        format!("file://{}", path.display())
    };
    let keys: Vec<String> = (0..5).map(place).collect();
    let with = |n: usize| format!("-o keyformat=hex -o keylocation={}", keys[n]);
    world.zfs(&format!("create -o encryption=on {} tank/a", with(0))).ok();
    for (fs, more) in [("child", String::new()), ("own", format!("-o encryption=on {}", with(1)))] {
        world.zfs(&format!("create {more} tank/a/{fs}")).ok();
        fs::write(pool.root().join(format!("a/{fs}/f")), fs).expect("write");
    }
    world.zfs("create tank/a/fs").ok();
    world.zfs("snapshot -r tank/a@one").ok();
    world.zfs("clone tank/a/fs@one tank/a/own/clone").ok();
    world.zfs("snapshot -r tank/a@two").ok();
    let whole = send(&world, "-w -R tank/a@two", "whole");
    for fs in ["tank/b", "tank/kept", "tank/mine"] {
        receive(&world, fs, &whole).unwrap();
    }
    let root = |fs: &str| world.zfs(&format!("get -H -o value encryptionroot {fs}")).ok().trim().to_owned();
    let roots = |top: &str| ["child", "own", "fs", "own/clone"].map(|fs| root(&format!("{top}/{fs}")));
    let named = |top: &str, names: [&str; 4]| names.map(|n| format!("{top}{n}"));
    assert_eq!(roots("tank/b"), named("tank/b", ["", "/own", "", ""]));
    // The sender's roots move, one gets another key, and a clone becomes what its origin was.
    world.zfs("change-key -i tank/a/own").ok();
    world.zfs(&format!("change-key {} tank/a/child", with(2))).ok();
    world.zfs(&format!("change-key {} tank/a/fs", with(4))).ok();
    world.zfs("promote tank/a/own/clone").ok();
    world.zfs(&format!("change-key {} tank/a", with(3))).ok();
    for fs in ["child", "own"] {
        fs::write(pool.root().join(format!("a/{fs}/g")), fs).expect("write");
    }
    world.zfs("snapshot -r tank/a@three").ok();
    let step = send(&world, "-w -R -i @two tank/a@three", "step");
    receive(&world, "tank/b", &step).unwrap();
    assert_eq!(roots("tank/b"), named("tank/b", ["/child", "", "/own/clone", "/own/clone"]));
    let origin = |fs: &str| world.zfs(&format!("get -H -o value origin {fs}")).ok().trim().to_owned();
    assert_eq!(
        (origin("tank/b/fs"), origin("tank/b/own/clone")),
        ("tank/b/own/clone@one".into(), "-".into())
    );
    let at = |fs: &str| world.zfs(&format!("get -H -o value keylocation {fs}")).ok().trim().to_owned();
    // What URL is fetched here, or what file read, no sender says.
    for (fs, place) in [("b", "prompt"), ("b/child", "prompt"), ("b/own", "none"), ("b/own/clone", "prompt")]
    {
        assert_eq!(at(&format!("tank/{fs}")), place, "{fs}");
    }
    assert_eq!(at("tank/kept"), "prompt");
    let load = |fs: &str, n: usize| world.zfs(&format!("load-key -L {} {fs}", keys[n]));
    assert!(load("tank/b", 0).fails().contains("Incorrect key"));
    for (fs, n) in [("tank/b", 3), ("tank/b/child", 2), ("tank/b/own/clone", 4)] {
        load(fs, n).ok();
    }
    world.zfs("mount -a").ok();
    for fs in ["child", "own"] {
        assert_eq!(fs::read(pool.root().join(format!("b/{fs}/g"))).expect("read"), fs.as_bytes());
    }
    // A key that is loaded stays the key, of all that it opens.
    load("tank/kept", 0).ok();
    world.zfs("mount -a").ok();
    receive(&world, "-F tank/kept", &step).unwrap();
    assert_eq!(root("tank/kept/child"), "tank/kept");
    assert_eq!(fs::read(pool.root().join("kept/child/g")).expect("read"), b"child");
    world.zfs("unmount tank/kept").ok();
    world.zfs("unload-key -r tank/kept").ok();
    load("tank/kept", 0).ok();
    world.zfs("mount tank/kept/child").ok();
    assert_eq!(fs::read(pool.root().join("kept/child/g")).expect("read"), b"child");
    // So does one that opens what was made here.
    load("tank/mine", 0).ok();
    world.zfs("create tank/mine/here").ok();
    fs::write(pool.root().join("mine/here/f"), "here").expect("write");
    world.zfs("unmount tank/mine/here").ok();
    world.zfs("unload-key -r tank/mine").ok();
    receive(&world, "tank/mine", &step).unwrap();
    load("tank/mine", 0).ok();
    world.zfs("mount tank/mine/here").ok();
    assert_eq!(fs::read(pool.root().join("mine/here/f")).expect("read"), b"here");
    pool.judge();
}
