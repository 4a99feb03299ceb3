//! The commands as processes against a daemon whose pools are made of paper.
//!
//! The backend below keeps names and properties in memory and knows nothing of storage, so what is
//! tested is all between the user and the engine: arguments, requests, printing, exit codes.

mod fake;

use fake::World;

#[test]
fn a_pool_s_life() {
    let w = World::new();
    let (a, b) = (w.file("a"), w.file("b"));
    assert_eq!(w.zpool("list"), (0, "no pools available\n".into(), String::new()));
    assert_eq!(w.zpool("status"), (0, String::new(), "no pools available\n".into()));
    let root = w.path("root");
    let (code, out, err) = w.zpool(&format!("create -R {root} tank mirror {a} {b}"));
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    assert_eq!(w.zpool("list -Ho name,health").1, "tank\tONLINE\n");
    let (code, out, _) = w.zpool("status tank");
    assert_eq!(code, 0);
    assert!(out.starts_with("  pool: tank\n state: ONLINE\nconfig:\n\n\tNAME"), "{out}");
    assert!(out.contains("\t  mirror-0  ") && out.contains(&a), "{out}");
    let (code, _, err) = w.zpool(&format!("create -R {root} tank {a}"));
    assert_eq!((code, err.as_str()), (1, "cannot create 'tank': pool already exists\n"));
    assert_eq!(w.zpool("history").1.lines().nth(1).map(|l| l[20..].to_owned()), {
        Some(format!("zpool create -R {root} tank mirror {a} {b}"))
    });
    assert_eq!(w.zpool("set comment=hi tank"), (0, String::new(), String::new()));
    assert_eq!(w.zpool("get -Ho value,source comment tank").1, "hi\tlocal\n");
    assert_eq!(w.zpool("scrub tank"), (0, String::new(), String::new()));
    assert_eq!(w.zpool("wait -t scrub tank").0, 0);
    assert!(w.zpool("status").1.contains("  scan: scrub repaired 0B in 00:00:00 with 0 errors on "));
    assert_eq!(w.zpool("scrub -s tank").2, "cannot cancel scrubbing tank: there is no active scrub\n");
    assert_eq!(w.zpool("export tank"), (0, String::new(), String::new()));
    assert_eq!(w.zpool("list tank").2, "cannot open 'tank': no such pool\n");
    let (code, out, _) = w.zpool(&format!("import -d {root}"));
    assert_eq!(code, 0);
    assert!(
        out.starts_with("  pool: tank\n    id: 1\n state: ONLINE\naction: The pool can be imported using"),
        "{out}"
    );
    assert_eq!(w.zpool("import nosuch").2, "cannot import 'nosuch': no such pool available\n");
    assert_eq!(w.zpool("import tank pond"), (0, String::new(), String::new()));
    assert_eq!(w.zpool("destroy pond"), (0, String::new(), String::new()));
    assert_eq!(w.zpool("destroy pond").2, "cannot open 'pond': no such pool\n");
    assert_eq!(w.zpool("destroy a/b").2.lines().last(), Some("use 'zfs destroy' to destroy a dataset"));
}

#[test]
fn create_judges_its_arguments() {
    let w = World::new();
    let (a, b) = (w.file("a"), w.file("b"));
    for (args, code, first) in [
        ("create", 2, "missing pool name argument"),
        ("create tank", 2, "missing vdev specification"),
        ("create -o", 2, "missing argument for 'o' option"),
        ("create -z tank x", 2, "invalid option 'z'"),
        ("create a/b x", 1, "cannot create 'a/b': invalid character '/' in pool name"),
        ("create -o bogus=1 tank x", 1, "property 'bogus' is not a valid pool or vdev property"),
        ("create -O bogus=1 tank x", 1, "property 'bogus' is not a valid filesystem property"),
        (
            "create -o ashift=99 tank x",
            1,
            "invalid 'ashift=99' property: only values between 9 and 16 are allowed.",
        ),
        ("create -o comment tank x", 1, "missing '=' for -o option"),
        ("create -m x tank A", 1, "invalid mountpoint 'x': must be an absolute path, 'legacy', or 'none'"),
        ("create -R x tank A", 1, "invalid alternate root 'x': must be an absolute path"),
        ("create tank mirror A", 1, "invalid vdev specification: mirror requires at least 2 devices"),
        ("create tank A mirror A B", 1, "invalid vdev specification"),
    ] {
        // Word by word: the folder's name is random and may have these letters in it.
        let word = |w| match w {
            "A" => a.as_str(),
            "B" => b.as_str(),
            w => w,
        };
        let args = args.split(' ').map(word).collect::<Vec<_>>().join(" ");
        let (found, out, err) = w.zpool(&args);
        assert_eq!((found, err.lines().next().unwrap_or("")), (code, first), "{args}\n{err}");
        assert_eq!(out, "");
    }
    let (code, out, _) = w.zpool(&format!("create -n tank mirror {a} {b} log {a} spare {b}"));
    assert_eq!(code, 0);
    assert_eq!(
        out,
        format!(
            "would create 'tank' with the following layout:\n\n\ttank\n\t  mirror\n\t    {a}\n\t    {b}\n\tlogs\n\t  \
             {a}\n\tspares\n\t  {b}\n"
        )
    );
    let err = w.zpool(&format!("create tank {a} mirror {a} {b}")).2;
    assert_eq!(
        err,
        "invalid vdev specification\nuse '-f' to override the following errors:\nmismatched replication level: \
         both file and mirror vdevs are present\n"
    );
}

#[test]
fn unknown_and_unsupported_commands_end_with_2() {
    let w = World::new();
    let (code, _, err) = w.zpool("frobnicate");
    assert_eq!((code, err.lines().next()), (2, Some("unrecognized command 'frobnicate'")));
    assert_eq!(w.zfs("zone ns tank").2, "zfs: 'zone' is not supported by zilla yet\n");
    let (code, _, err) = w.zpool("");
    assert_eq!((code, err.lines().next()), (2, Some("missing command")));
    let (code, out, _) = w.zpool("--help");
    assert_eq!((code, out.lines().next()), (0, Some("usage: zpool command args ...")));
    let (code, _, err) = w.zpool("list -o bogus");
    assert_eq!((code, err.lines().next()), (2, Some("bad property list: invalid property 'bogus'")));
    assert!(err.contains("\nthe following properties are supported:\n"), "{err}");
}

#[test]
fn datasets() {
    let w = World::new();
    let a = w.file("a");
    assert_eq!(w.zpool(&format!("create -m none tank {a}")).0, 0);
    let silent = (0, String::new(), String::new());
    assert_eq!(w.zfs("create -o compression=lz4 tank/fs"), silent);
    assert_eq!(w.zfs("create -p tank/x/y/z"), silent);
    assert_eq!(w.zfs("list -Hro name tank").1, "tank\ntank/fs\ntank/x\ntank/x/y\ntank/x/y/z\n");
    assert_eq!(w.zfs("list -Ho name -d 1 tank").1, "tank\ntank/fs\ntank/x\n");
    assert_eq!(w.zfs("list -Ho name -S name").1, "tank/x/y/z\ntank/x/y\ntank/x\ntank/fs\ntank\n");
    assert_eq!(w.zfs("get -Ho value,source compression tank/fs").1, "lz4\tlocal\n");
    assert_eq!(w.zfs("create tank/fs").2, "cannot create 'tank/fs': dataset already exists\n");
    assert_eq!(w.zfs("create tank/fs@x").0, 1);
    assert_eq!(w.zfs("list nosuch/x").2, "cannot open 'nosuch/x': dataset does not exist\n");
    assert_eq!(
        w.zfs("list tank//x").2,
        "cannot open 'tank//x': empty component or misplaced '@' or '#' delimiter in name\n"
    );
    assert_eq!(w.zfs("snapshot -r tank/x@one"), silent);
    assert_eq!(w.zfs("snapshot tank/x@two tank/fs@two"), silent);
    assert_eq!(w.zfs("list -Ho name -t snapshot tank/x").1, "tank/x@one\ntank/x@two\n");
    assert_eq!(w.zfs("list -Ho name -t snap -r tank/x/y").1, "tank/x/y@one\ntank/x/y/z@one\n");
    assert_eq!(w.zfs("clone tank/fs@two tank/copy"), silent);
    assert_eq!(w.zfs("get -Ho value origin tank/copy").1, "tank/fs@two\n");
    assert_eq!(
        w.zfs("clone tank/fs tank/copy2").2,
        "cannot open 'tank/fs': missing '@' delimiter in snapshot name\n"
    );
    assert_eq!(
        w.zfs("destroy tank/x").2,
        "cannot destroy 'tank/x': filesystem has children\nuse '-r' to destroy the following \
         datasets:\ntank/x@one\ntank/x@two\ntank/x/y\ntank/x/y@one\ntank/x/y/z\ntank/x/y/z@one\n"
    );
    assert_eq!(
        w.zfs("destroy tank").2,
        "cannot destroy 'tank': operation does not apply to pools\nuse 'zfs destroy -r tank' to destroy all \
         datasets in the pool\nuse 'zpool destroy tank' to destroy the pool itself\n"
    );
    assert_eq!(w.zfs("destroy -nv tank/x@two").1, "would destroy tank/x@two\nwould reclaim 0B\n");
    assert_eq!(w.zfs("destroy tank/x@two"), silent);
    assert_eq!(w.zfs("destroy -r tank/x"), silent);
    assert_eq!(w.zfs("list -Hro name tank").1, "tank\ntank/copy\ntank/fs\n");
    assert_eq!(w.zfs("set quota=1g atime=off tank/fs"), silent);
    assert_eq!(w.zfs("get -Ho property,value quota,atime tank/fs").1, "quota\t1G\natime\toff\n");
    assert_eq!(w.zfs("get -Hpo value quota tank/fs").1, "1073741824\n");
    assert_eq!(w.zfs("inherit atime tank/fs"), silent);
    assert_eq!(w.zfs("set used=1 tank/fs").2, "cannot set property for 'tank/fs': 'used' is readonly\n");
    assert_eq!(w.zfs("set atime=off").2.lines().next(), Some("missing dataset name(s)"));
    assert_eq!(
        w.zfs("inherit quota tank/fs"),
        (
            1,
            String::new(),
            "'quota' property cannot be inherited\nuse 'zfs set quota=none' to clear\nuse 'zfs inherit -S quota' \
             to revert to received value\n"
                .into()
        )
    );
    let json = w.zfs("list -j --json-int -o name,quota tank/fs").1;
    assert_eq!(
        json,
        "{\"output_version\":{\"command\":\"zfs list\",\"vers_major\":0,\"vers_minor\":1},\"datasets\":{\"tank/fs\":{\
         \"name\":\"tank/fs\",\"type\":\"FILESYSTEM\",\"pool\":\"tank\",\"createtxg\":2,\"properties\":{\"quota\":{\
         \"value\":1073741824,\"source\":{\"type\":\"LOCAL\",\"data\":\"-\"}}}}}}\n"
    );
    let history = w.zpool("history tank").1;
    assert!(history.contains(" zfs set quota=1g atime=off tank/fs\n"), "{history}");
    assert!(!history.contains("zfs set used"), "{history}");
}

#[test]
fn a_daemon_that_cannot_start_is_told_with_its_last_words() {
    let w = World::empty();
    w.script("zillad", "#!/bin/sh\necho one >&2\necho 'cannot lock the state folder' >&2\nexit 3\n");
    let (code, _, err) = w.zpool("list");
    assert_eq!(code, 1);
    assert!(err.starts_with("zpool: cannot start zillad: it ended with exit status: 3\n"), "{err}");
    assert!(err.ends_with("  one\n  cannot lock the state folder\n"), "{err}");
}

#[test]
fn many_clients_start_one_daemon() {
    let w = World::empty();
    // The daemon of this test only counts how often it was started.
    w.script("zillad", "#!/bin/sh\necho started >> \"$ZILLA_DIR/starts\"\nsleep 0.2\nexit 1\n");
    let failed: Vec<_> = std::thread::scope(|scope| {
        let run = || w.zpool("list").0;
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(failed, [1, 1, 1, 1]);
    // One at a time: never two daemons at once, so every start saw the end of the one before.
    assert_eq!(w.read("starts").lines().count(), 4);
}
