//! `zfs send` and `zfs receive` through real pipes: trees, properties, packages, and streams that are cut.

use std::fs;
use std::process::{Command, Stdio};
use zilla_e2e::{Kind, Need, Pool, World, can, tree};

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
    world.zfs("set compression=lz4 tank/b/child").ok();
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
        assert!(receive(&world, "tank/gone", cut).unwrap_err().contains("incomplete stream"));
        world.zfs("list tank/gone").fails();
        let mut flipped = full.clone();
        flipped[full.len() * part / 100] ^= 1;
        assert!(receive(&world, "tank/gone", &flipped).unwrap_err().contains("invalid stream"));
        world.zfs("list tank/gone").fails();
        let fs = format!("tank/r{n}");
        let said = receive(&world, &format!("-s {fs}"), cut).unwrap_err();
        assert!(said.contains("Partially received snapshot is saved."), "{said}");
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
    receive(&world, "-s tank/left", &full[..full.len() / 2]).unwrap_err();
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
