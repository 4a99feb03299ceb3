//! `zfs allow` and `unallow`, and what others may do with a daemon that is shared with them.

use rustix::fs::{FileType, Mode};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use zilla_e2e::{Done, Kind, Need, Pool, Shared, World, can};

/// Users and a group that no machine has.
const JOE: u32 = 4_294_900_001;
const ANN: u32 = 4_294_900_002;
const STAFF: u32 = 4_294_900_003;

#[track_caller]
fn says(done: Done, code: i32, text: &str) {
    assert_eq!((done.code, done.stderr.lines().next().unwrap_or_default()), (code, text), "{done}");
}

/// mkdir, mv and rmdir in `.zfs/snapshot` are judged as `zfs snapshot`, `rename` and `destroy` are.
#[test]
fn snapshots_are_managed_through_their_directory_by_whom_it_was_allowed() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let world = &shared.world;
    let pool = Pool::create(world, "tank", Kind::Single, 128 << 20, &[]);
    fs::set_permissions(world.mnt(), fs::Permissions::from_mode(0o711)).expect("folder");
    let snaps = pool.root().join(".zfs/snapshot");
    let at = |name: &str| snaps.join(name).display().to_string();
    let [one, two, three] = ["one", "two", "three"].map(at);
    let joe = |words: &[&str]| shared.run_as(JOE, &[STAFF], words);
    let refused = |words: &[&str]| {
        let done = joe(words);
        assert!(done.code != 0 && done.stderr.contains("Operation not permitted"), "{done}");
    };
    let all = || world.zfs("list -H -o name -t snapshot").ok();
    fs::create_dir(&one).expect("by root");
    refused(&["mkdir", &two]);
    refused(&["mv", &one, &two]);
    refused(&["rmdir", &one]);
    world.zfs(&format!("allow -g {STAFF} snapshot tank")).ok();
    joe(&["mkdir", &two]).ok();
    assert_eq!(all(), "tank@one\ntank@two\n");
    assert_ne!(shared.run_as(ANN, &[], &["mkdir", &three]).code, 0);
    refused(&["rmdir", &two]);
    world.zfs(&format!("allow -u {JOE} destroy,mount,rename,create tank")).ok();
    joe(&["mv", &two, &three]).ok();
    assert_eq!(all(), "tank@one\ntank@three\n");
    joe(&["rmdir", &three]).ok();
    assert_eq!(all(), "tank@one\n");
    world.zfs("set snapshot_limit=1 tank").ok();
    let done = joe(&["mkdir", &two]);
    assert!(done.code != 0, "a limit binds him: {done}");
    world.zpool("set delegation=off tank").ok();
    refused(&["rmdir", &one]);
    pool.judge();
}

/// In a container root's number is not root's power: what he sees of `.zfs` is the machine's.
#[test]
fn root_without_root_s_powers_manages_no_snapshots() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let world = &shared.world;
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let own = status.lines().find_map(|l| l.strip_prefix("CapEff:")).expect("capabilities").trim();
    if u64::from_str_radix(own, 16).expect("a number") & 1 << 21 == 0 {
        eprintln!("not run: needs CAP_SYS_ADMIN");
        return;
    }
    let pool = Pool::create(world, "tank", Kind::Single, 128 << 20, &[]);
    let snaps = pool.root().join(".zfs/snapshot");
    let at = |name: &str| snaps.join(name).display().to_string();
    let [one, two] = ["one", "two"].map(at);
    shared.run_as(0, &[], &["mkdir", &one]).ok();
    for words in [&["mkdir", &two][..], &["mv", &one, &two], &["rmdir", &one]] {
        let done = shared.run_weak(words);
        assert!(done.code != 0 && done.stderr.contains("Operation not permitted"), "{done}");
    }
    assert_eq!(world.zfs("list -H -o name -t snapshot").ok(), "tank@one\n");
    // He may look, and do what he was allowed, as anybody.
    assert_eq!(shared.run_weak(&["ls", &snaps.display().to_string()]).ok(), "one\n");
    world.zfs("allow -u 0 snapshot tank").ok();
    shared.run_weak(&["mkdir", &two]).ok();
    assert_eq!(shared.run_weak(&["rmdir", &two]).code, 1);
    shared.run_as(0, &[], &["rmdir", &two]).ok();
    pool.judge();
}

#[test]
fn who_was_given_nothing_writes_nothing_down() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    shared.start();
    let pool = Pool::create(&shared.world, "tank", Kind::Single, 128 << 20, &[]);
    let asks = |operation: &str, request: &str| {
        let answer = shared.ask(JOE, operation, request);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        answer
    };
    let refused = |answer: String| assert!(answer.contains(r#"{"err":{"code":"perm"}}"#), "{answer}");
    assert!(asks("dataset_query", r#"{"roots":["tank"]}"#).contains(r#""name":"tank""#));
    refused(asks("pool_log", r#"{"name":"tank","line":"never 1"}"#));
    refused(asks("dataset_set", r#"{"name":"tank","properties":{}}"#));
    refused(asks("pool_log", r#"{"name":"tank","line":"never 2"}"#));
    // Who only looks has nothing to write down either.
    shared.world.zfs(&format!("allow -u {JOE} userused,userquota tank")).ok();
    assert!(asks("dataset_accounts", r#"{"name":"tank"}"#).contains(r#"{"ok":"#));
    refused(asks("pool_log", r#"{"name":"tank","line":"never 3"}"#));
    let history = shared.world.zpool("history tank").ok();
    assert!(history.contains("zpool create") && !history.contains("never"), "{history}");
    pool.judge();
}

/// What others use of a file system, and may use, is theirs to know, and whose who was told.
#[test]
fn accounts_of_others_are_not_for_everyone() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let world = &shared.world;
    shared.start();
    let pool = Pool::create(world, "tank", Kind::Single, 128 << 20, &[]);
    let file = pool.root().join("f");
    fs::write(&file, [7; 300_000]).expect("file");
    std::os::unix::fs::chown(&file, Some(JOE), Some(STAFF)).expect("owner");
    world.zfs(&format!("set userquota@{JOE}=10M groupquota@{STAFF}=20M tank")).ok();
    pool.sync();
    let names = [format!("userused@{JOE}"), format!("userquota@{JOE}"), format!("groupquota@{STAFF}")];
    let get = |uid: u32, groups: &[u32]| {
        let words = format!("get -Hpo value {} tank", names.join(","));
        shared.zfs(uid, groups, &words).ok().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let all =
        |of: &[String]| of[0].parse::<u64>().is_ok_and(|n| n > 0) && of[1..] == ["10485760", "20971520"];
    assert!(all(&get(JOE, &[STAFF])), "{:?}", get(JOE, &[STAFF]));
    assert_eq!(get(ANN, &[]), ["-", "-", "-"]);
    assert_eq!(get(ANN, &[STAFF]), ["-", "-", "20971520"]);
    world.zfs(&format!("allow -u {ANN} userquota tank")).ok();
    assert_eq!(get(ANN, &[]), ["-", "10485760", "-"]);
    world.zfs(&format!("allow -u {ANN} userused,groupquota tank")).ok();
    assert!(all(&get(ANN, &[])), "{:?}", get(ANN, &[]));
    assert!(all(&get(0, &[])));
    pool.judge();
}

#[test]
fn permissions_are_given_shown_and_taken_as_openzfs_does() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create tank/fs").ok();
    world.zfs("create tank/fs/below").ok();
    assert_eq!(world.zfs("allow tank/fs").ok(), "");
    world.zfs("allow -s @set create,compress,@other tank").ok();
    world.zfs("allow -c destroy,mount tank").ok();
    world.zfs("allow -lu 0 snapshot tank/fs").ok();
    world.zfs("allow -d root @set tank/fs").ok();
    world.zfs("allow everyone diff,send tank/fs").ok();
    world.zfs(&format!("allow -g {STAFF} hold tank/fs")).ok();
    let wanted = format!(
        "---- Permissions on tank/fs ------------------------------------------\n\
         Local permissions:\n\tuser root snapshot\n\
         Descendent permissions:\n\tuser root @set\n\
         Local+Descendent permissions:\n\tgroup (unknown: {STAFF}) hold\n\teveryone diff,send\n\
         ---- Permissions on tank ---------------------------------------------\n\
         Permission sets:\n\t@set @other,compression,create\n\
         Create time permissions:\n\tdestroy,mount\n"
    );
    assert_eq!(world.zfs("allow tank/fs").ok(), wanted);
    // Who makes a dataset gets what is given to creators.
    world.zfs("create tank/new").ok();
    let own = "---- Permissions on tank/new -----------------------------------------\nLocal permissions:\n\tuser \
               root destroy,mount\n";
    assert!(world.zfs("allow tank/new").ok().starts_with(own), "{}", world.zfs("allow tank/new").stdout);
    pool.export();
    pool.import();
    assert_eq!(world.zfs("allow tank/fs").ok(), wanted);

    world.zfs("allow everyone mount tank/fs/below").ok();
    world.zfs("unallow -r everyone tank/fs").ok();
    world.zfs("unallow -u root snapshot tank/fs").ok();
    world.zfs("unallow -d -u 0 tank/fs").ok();
    world.zfs(&format!("unallow -g {STAFF} hold tank/fs")).ok();
    world.zfs("unallow -c tank").ok();
    world.zfs("unallow -s @set tank").ok();
    world.zfs("unallow root create tank").ok();
    assert_eq!(world.zfs("allow tank/fs/below").ok(), "");

    says(world.zfs("allow root created tank"), 1, "cannot set permissions on 'tank': invalid permission");
    let long = "a".repeat(63);
    says(
        world.zfs(&format!("allow -s @{long} create tank")),
        1,
        "cannot set permissions on 'tank': invalid permission",
    );
    says(world.zfs("allow tank/no"), 255, "cannot open 'tank/no': dataset does not exist");
    for (words, why) in [
        ("allow", "wrong number of parameters"),
        ("unallow tank", "wrong number of parameters"),
        ("allow -u root -g root create tank", "-u, -g, and -e are mutually exclusive"),
        ("allow -s -c @a create tank", "invalid options combined with -s"),
        ("allow -c -l create tank", "invalid options combined with -c"),
        ("allow -s set create tank", "invalid set name: missing '@' prefix"),
        ("allow -s @set tank", "wrong number of parameters"),
        ("allow -c tank", "wrong number of parameters"),
        ("allow no-such-user create tank", "invalid user/group no-such-user"),
        ("unallow -g no-such-group tank", "invalid group no-such-group"),
    ] {
        let done = world.zfs(words);
        assert_eq!(done.code, 2, "{done}");
        assert!(done.stderr.ends_with(&format!("\nzfs: error: {why}\n")), "{done}");
        assert!(done.stderr.contains("\nsnapshot         subcommand    \t\n"), "{done}");
    }
    assert_eq!(world.zfs("allow -h tank").code, 2);
    assert!(world.zfs("allow -h").ok().starts_with("Usage: \tallow <filesystem|volume>\n"));
    pool.judge();
}

#[test]
fn a_daemon_is_its_owner_s_alone_until_he_shares_it() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let pool = Pool::create(&shared.world, "tank", Kind::Single, 128 << 20, &[]);
    fs::set_permissions(shared.world.state(), fs::Permissions::from_mode(0o711)).expect("folder");
    let refused = shared.zfs(JOE, &[], "list").fails();
    assert!(refused.contains("Permission denied"), "{refused}");
    let refused = shared.world.run("zillad", &["--share", "no such group"]);
    assert!(refused.code == 2 && refused.stderr.contains("neither 'nobody' nor 'everyone'"), "{refused}");
    shared.world.stop();

    // To a group.
    let share = |who: &str| {
        let mut command = shared.world.command("zpool");
        assert!(command.env("ZILLA_SHARE", who).arg("list").output().expect("zpool").status.success());
    };
    share(&STAFF.to_string());
    shared.zfs(JOE, &[], "list").fails();
    assert_eq!(shared.zfs(JOE, &[7, STAFF], "list -Ho name").ok(), "tank\n");
    assert_eq!(shared.zfs(STAFF, &[], "list -Ho name").ok(), "tank\n");
    shared.world.stop();
    share("everyone");
    assert_eq!(shared.zfs(JOE, &[], "get -Ho value type tank").ok(), "filesystem\n");
    for words in ["set atime=off tank", "snapshot tank@a", "mount tank", "unmount -a"] {
        let refused = shared.zfs(JOE, &[], words).fails();
        assert!(refused.contains("permission denied"), "{words}: {refused}");
    }
    pool.judge();
}

/// What one may hold of the daemon's memory who does not own it is bounded.
#[test]
fn others_get_no_endless_answers() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let world = &shared.world;
    shared.start();
    let pool = Pool::create(world, "tank", Kind::Single, 128 << 20, &[]);
    let value = "x".repeat(8000);
    let names: Vec<String> = (0..100).map(|n| format!("note:{n}={value}")).collect();
    let mut words = vec!["set"];
    words.extend(names.iter().map(String::as_str));
    words.push("tank");
    assert_eq!(world.run("zfs", &words).code, 0);
    for n in 0..12 {
        world.zfs(&format!("create tank/{n}")).ok();
    }
    assert!(world.zfs("get -r all tank").ok().len() > 10_000_000, "the owner gets what there is");
    let refused = shared.zfs(JOE, &[], "get -r all tank").fails();
    assert!(refused.contains("others than the owner get"), "{refused}");
    assert!(shared.zfs(JOE, &[], "get all tank/7").ok().contains(&value));
    assert_eq!(shared.zfs(JOE, &[], "list -H -o name -r tank").ok().lines().count(), 13);
    pool.judge();
}

#[test]
fn others_do_what_they_were_given_and_nothing_else() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let world = &shared.world;
    shared.start();
    let pool = Pool::create(world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create tank/joe").ok();
    world.zfs("create tank/joe/mounted").ok();
    let joe = |words: &str| shared.zfs(JOE, &[STAFF], words);
    let no = "permission denied";

    says(joe("snapshot tank/joe@a"), 1, &format!("cannot create snapshots : {no}"));
    world.zfs(&format!("allow -lu {JOE} snapshot,create,mount,userprop,allow tank/joe")).ok();
    joe("snapshot tank/joe@a").ok();
    assert_eq!(joe("snapshot -r tank/joe@b").code, 1, "it was given on the dataset alone");
    joe("set com.example:x=1 tank/joe").ok();
    says(joe("set atime=off tank/joe"), 255, &format!("cannot set property for 'tank/joe': {no}"));
    let refused = joe("destroy tank/joe@a");
    assert!(refused.code == 1 && refused.stderr.contains(no), "{refused}");
    says(joe("set mountpoint=/etc tank/joe"), 255, &format!("cannot set property for 'tank/joe': {no}"));

    // By group, and below.
    world.zfs(&format!("allow -g {STAFF} hold,release,destroy,mount tank/joe")).ok();
    joe("hold keep tank/joe@a").ok();
    joe("release keep tank/joe@a").ok();
    joe("destroy tank/joe@a").ok();
    assert_eq!(shared.zfs(ANN, &[], "destroy tank/joe").code, 1);
    assert_eq!(joe("destroy -r tank/joe").code, 1, "what is mounted only root unmounts");

    world.zfs(&format!("allow -g {STAFF} rollback,acltype,version tank/joe")).ok();
    world.zfs("snapshot tank/joe/mounted@back").ok();
    let words = [
        "rollback tank/joe/mounted@back",
        "set acltype=posix tank/joe/mounted",
        "set version=5 tank/joe/mounted",
    ];
    for words in words {
        let refused = joe(words);
        assert!(
            refused.code == if words.starts_with("set") { 255 } else { 1 }
                && refused.stderr.contains("permission denied: it is mounted"),
            "{refused}"
        );
    }
    // A new one is not mounted, belongs to him, and gives him what creators are given.
    world.zfs("allow -c rename,quota tank/joe").ok();
    says(
        joe("create -o quota=64M tank/joe/new"),
        1,
        "filesystem successfully created, but it may only be mounted by root",
    );
    assert_eq!(world.zfs("get -Ho value mounted tank/joe/new").ok(), "no\n");
    joe("set quota=32M tank/joe/new").ok();
    joe("rename tank/joe/new tank/joe/newer").ok();
    assert_eq!(joe("rename tank/joe/newer tank/out").code, 1);
    assert_eq!(joe("create -o atime=off tank/joe/other").code, 1);
    assert_eq!(joe("create -sV 8M tank/joe/thin").code, 0);
    assert_eq!(joe("create -V 8M tank/joe/thick").code, 1, "refreservation was not given");
    world.zfs("mount tank/joe/newer").ok();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(fs::metadata(pool.root().join("joe/newer")).expect("root").uid(), JOE);

    // He gives on what he has, and takes only from himself.
    joe(&format!("allow -lu {ANN} snapshot tank/joe")).ok();
    shared.zfs(ANN, &[], "snapshot tank/joe@ann").ok();
    let refused = format!("cannot set permissions on 'tank/joe': {no}");
    says(joe(&format!("allow -lu {ANN} atime tank/joe")), 1, &refused);
    says(joe(&format!("allow -lu {ANN} allow tank/joe")), 1, &refused);
    says(joe(&format!("unallow -u {ANN} tank/joe")), 1, &refused);
    joe(&format!("unallow -u {JOE} allow tank/joe")).ok();
    says(joe(&format!("allow -lu {ANN} snapshot tank/joe")), 1, &refused);

    // Limits bind him, not the owner.
    world.zfs("set snapshot_limit=1 tank/joe").ok();
    says(joe("snapshot tank/joe@over"), 1, "cannot create snapshots : out of space");
    world.zfs("snapshot tank/joe@over").ok();
    world.zfs("set filesystem_limit=3 tank/joe").ok();
    assert_eq!(joe("create -u tank/joe/over").code, 1);
    world.zfs("create -u tank/joe/over").ok();

    // Pools are the owner's; the history says who did what.
    let history = world.zpool("history tank").ok();
    assert!(history.contains("zfs hold keep tank/joe@a") && !history.contains("tank/out"), "{history}");
    world.zpool("set delegation=off tank").ok();
    let off = "delegated administration is disabled on pool";
    says(joe("snapshot tank/joe@off"), 1, &format!("cannot create snapshots : {off}"));
    pool.judge();
}

/// The snapshots of what was given him one sends, and one receives what he may make and root may
/// look at first.
#[test]
fn streams_are_sent_and_received_by_whom_they_were_allowed() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let shared = Shared::new();
    let world = &shared.world;
    shared.start();
    let pool = Pool::create(world, "tank", Kind::Single, 256 << 20, &[]);
    for fs in ["joe", "secret"] {
        world.zfs(&format!("create tank/{fs}")).ok();
        fs::write(pool.root().join(fs).join("f"), vec![7; 300_000]).expect("write");
        world.zfs(&format!("snapshot tank/{fs}@a")).ok();
    }
    let file = world.path().join("stream");
    fs::write(&file, "").expect("file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("mode");
    let file = file.display().to_string();
    let joe = |line: &str| shared.line(JOE, line);
    let refused = |line: &str, why: &str| {
        let done = joe(line);
        // (A line's code is its last command's.)
        assert!((done.code != 0) != line.ends_with("| cat"), "{done}");
        assert!(done.stderr.contains(why), "{done}");
    };
    let no = "permission denied";

    refused("Z send tank/joe@a | cat", no);
    world.zfs(&format!("allow -u {JOE} send tank/joe")).ok();
    // A pipe, one with a name, a device and a file.
    assert_eq!(joe("Z send tank/joe@a | wc -c").stdout, joe("Z send tank/joe@a | cat | wc -c").stdout);
    let named = world.path().join("pipe");
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, &named, FileType::Fifo, mode, 0).expect("pipe");
    fs::set_permissions(&named, fs::Permissions::from_mode(0o666)).expect("mode");
    let through = joe(&format!("Z send tank/joe@a > {0} & cat {0} | wc -c", named.display()));
    assert_eq!(through.stdout, joe("Z send tank/joe@a | wc -c").stdout, "{through}");
    joe("Z send tank/joe@a > /dev/null").ok();
    joe(&format!("Z send tank/joe@a > {file}")).ok();
    assert!(fs::metadata(&file).expect("file").len() > 300_000);
    refused("Z send tank/secret@a | cat", no);
    refused("Z send tank/joe | cat", no);
    refused("Z send -R tank@a | cat", no);

    refused(&format!("Z receive tank/joe/copy < {file}"), no);
    world.zfs(&format!("allow -u {JOE} receive,create,mount,snapshot tank/joe")).ok();
    joe(&format!("Z receive tank/joe/copy < {file}")).ok();
    refused(&format!("Z receive tank/copy < {file}"), no);
    refused(&format!("Z receive -o mountpoint=/etc tank/joe/other < {file}"), no);
    let told = world.zfs("get -Ho value,source mounted,canmount tank/joe/copy").ok();
    assert_eq!(told, "no\t-\nnoauto\tlocal\n");
    world.zfs("mount -o ro tank/joe/copy").ok();
    assert_eq!(fs::read(pool.root().join("joe/copy/f")).expect("read"), vec![7; 300_000]);

    joe("Z snapshot tank/joe@b").ok();
    let more = "Z send -i @a tank/joe@b | Z receive tank/joe/copy";
    refused(more, "permission denied: it is mounted");
    world.zfs("unmount tank/joe/copy").ok();
    joe(more).ok();
    joe("Z snapshot tank/joe@c").ok();
    refused("Z send -i @b tank/joe@c | Z receive -F tank/joe/copy", no);
    world.zfs(&format!("allow -u {JOE} rollback,destroy tank/joe/copy")).ok();
    joe("Z send -i @b tank/joe@c | Z receive -F tank/joe/copy").ok();
    joe("Z send -I @a tank/joe@b | Z receive -v tank/joe/copy").ok();

    // What he may not set is left out.
    world.zfs("set com.example:x=1 tank/joe").ok();
    world.zfs("set checksum=sha256 tank/joe").ok();
    world.zfs(&format!("allow -u {JOE} checksum tank/joe")).ok();
    let done = joe("Z send -p tank/joe@b | Z receive tank/joe/props");
    let left_out = "cannot receive com.example:x property on tank/joe/props: permission denied";
    assert!(done.code == 0 && done.stderr.contains(left_out), "{done}");
    assert!(!done.stderr.contains("checksum"), "{done}");
    assert_eq!(world.zfs("get -Ho source checksum tank/joe/props").ok(), "received\n");

    // A clone of what he cannot read is no way to it.
    world.zfs("clone tank/secret@a tank/clone").ok();
    world.zfs("snapshot tank/clone@c").ok();
    let out = fs::File::create(&file).expect("file");
    let mut send = world.command("zfs");
    assert!(
        send.args(["send", "-i", "tank/secret@a", "tank/clone@c"])
            .stdout(out)
            .status()
            .expect("zfs")
            .success()
    );
    let steal = format!("Z receive tank/joe/stolen < {file}");
    refused(&steal, no);
    world.zfs(&format!("allow -u {JOE} clone tank/secret")).ok();
    joe(&steal).ok();

    // Packages whole, but not what they would rename.
    joe("Z snapshot -r tank/joe@r").ok();
    joe("Z snapshot -r tank/joe@s").ok();
    world.zfs("create -o canmount=off tank/to").ok();
    world.zfs(&format!("allow -u {JOE} receive,create,mount tank/to")).ok();
    joe("Z send -R tank/joe/copy@r | Z receive -d tank/to").ok();
    refused("Z send -R -i @r tank/joe/copy@s | Z receive -d tank/to", "it may rename and promote datasets");
    let history = world.zpool("history tank").ok();
    assert!(history.contains("zfs receive tank/joe/copy"), "{history}");
    pool.judge();
}
