//! What stands in the way of a replay: nothing that stood in no one's way when the change was made.
//! And what is done where it cannot go on.

use super::*;
use zilla::{Errno, ZFS_APPENDONLY, ZFS_IMMUTABLE};
use zilla_core::dsl::Setting;
use zilla_core::zap::Value;
use zilla_core::zpl::ZFS_NOUNLINK;

/// The files of a directory that is made, with its flags, before the crash, and what is done there:
/// `d/f`, `d/g`, `d/sub`, `e/t`.
struct Case<'a> {
    fs: &'a Filesystem,
    d: NodeId,
    e: NodeId,
    f: NodeId,
}

const CALLS: [&str; 14] = [
    "create",
    "mkdir",
    "symlink",
    "link",
    "unlink",
    "unlink a link",
    "rmdir",
    "rename",
    "rename over",
    "exchange",
    "whiteout",
    "write",
    "truncate",
    "xattr",
];

impl Case<'_> {
    async fn call(&self, call: &str) {
        let (fs, d, e, f, cred) = (self.fs, self.d, self.e, self.f, Cred::default());
        let new = |mode| NewFile::new(mode, cred);
        let rename = async |flags: RenameFlags, to: &[u8]| fs.rename(d, b"f", e, to, flags, cred).await;
        let plain = RenameFlags::default();
        match call {
            "create" => drop(fs.create(d, b"n", new(S_IFREG | 0o600)).await.unwrap()),
            "mkdir" => drop(fs.create(d, b"n", new(S_IFDIR | 0o700)).await.unwrap()),
            "symlink" => {
                let link = NewFile { target: b"to", ..new(S_IFLNK | 0o777) };
                drop(fs.create(d, b"n", link).await.unwrap());
            }
            "link" => drop(fs.link(f, e, b"l").await.unwrap()),
            "unlink" => fs.unlink(d, b"f").await.unwrap(),
            "unlink a link" => fs.unlink(d, b"g").await.unwrap(),
            "rmdir" => fs.rmdir(d, b"sub").await.unwrap(),
            "rename" => rename(plain, b"n").await.unwrap(),
            "rename over" => rename(plain, b"t").await.unwrap(),
            "exchange" => rename(RenameFlags { exchange: true, ..plain }, b"t").await.unwrap(),
            "whiteout" => rename(RenameFlags { whiteout: true, ..plain }, b"n").await.unwrap(),
            "write" => drop(fs.write(f, 10, &bytes(50, 3), false).await.unwrap()),
            "truncate" => drop(fs.setattr(f, SetAttr { size: Some(5), ..SetAttr::default() }).await.unwrap()),
            _ => fs.setxattr(f, b"user.x", b"value", XattrMode::Any).await.unwrap(),
        }
    }
}

/// Where everything is, and which flags protect it.
async fn tree(fs: &Filesystem) -> BTreeMap<String, (u64, u64)> {
    let mut out = BTreeMap::new();
    for path in describe(fs).await.into_keys() {
        let mut node = fs.root();
        for name in path.split('/').filter(|n| !n.is_empty()) {
            node = fs.lookup(node, name.as_bytes()).await.unwrap().node;
        }
        let a = fs.getattr(node).await.unwrap();
        out.insert(path, (a.ino, a.flags & (ZFS_IMMUTABLE | ZFS_APPENDONLY | ZFS_NOUNLINK)));
    }
    out
}

async fn set_flags(fs: &Filesystem, nodes: &[NodeId], flags: (u64, u64)) {
    for node in nodes {
        fs.setattr(*node, SetAttr { flags: Some(flags), ..SetAttr::default() }).await.unwrap();
    }
}

/// `chattr -i d; create d/f; create g, fsync g`: nobody asked for the flags to be stable, but
/// without that change the others could not be made. So they come first in the log, also the flags
/// of a file that is removed next.
#[test]
fn flags_are_in_the_log_before_what_they_stood_in_the_way_of() {
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let spa = create(&run, dir.path()).await;
        let fs = open(&run, &spa).await;
        let d = Dir(&fs);
        let mut cases = Vec::new();
        for (i, flag) in [ZFS_IMMUTABLE, ZFS_APPENDONLY, ZFS_NOUNLINK].into_iter().enumerate() {
            for call in CALLS {
                let top = d.make(fs.root(), &format!("{i} {call}"), S_IFDIR | 0o755).await;
                let (one, two) = (
                    d.make(top.node, "d", S_IFDIR | 0o755).await,
                    d.make(top.node, "e", S_IFDIR | 0o755).await,
                );
                let f = d.make(one.node, "f", S_IFREG | 0o644).await;
                let sub = d.make(one.node, "sub", S_IFDIR | 0o755).await;
                let t = d.make(two.node, "t", S_IFREG | 0o644).await;
                let (g, other) = (d.make(two.node, "g", S_IFREG | 0o644).await, one.node);
                fs.link(g.node, other, b"g").await.unwrap();
                let nodes = [one.node, two.node, f.node, sub.node, t.node, g.node];
                set_flags(&fs, &nodes, (flag, 0)).await;
                cases.push((call, flag, nodes));
            }
        }
        fs.commit().await.unwrap();
        spa.sync().await.unwrap();
        for (call, flag, nodes) in &cases {
            set_flags(&fs, nodes, (0, *flag)).await;
            Case { fs: &fs, d: nodes[0], e: nodes[1], f: nodes[2] }.call(call).await;
        }
        let last = d.file("last", 10).await;
        let records = fs.zfs().intent_log().unwrap().stats().get().records;
        fs.fsync(last.node).await.unwrap();
        let want = tree(&fs).await;
        let crashed = crash(dir.path());
        let now = fs.zfs().intent_log().unwrap().stats().get();
        assert!(now.records > records, "it was not in the log: {now:?}");
        zdb_clean(crashed.path(), POOL);

        let again = import(&run, crashed.path()).await;
        let fs2 = open(&run, &again).await;
        assert_eq!(fs2.zfs().kept_log(), None);
        let have = tree(&fs2).await;
        for (path, (ino, flags)) in &want {
            let top = path.split('/').nth(1).unwrap_or_default();
            let (found, left) = have.get(path).unwrap_or_else(|| panic!("{path} is lost"));
            assert_eq!(ino, found, "{path} is another file");
            // What only concerns the contents of a file waits for who asks for it; a link changes
            // the directory that it is made in.
            let call = top.get(2..).unwrap_or_default();
            let asked = match call {
                "write" | "truncate" | "xattr" => false,
                "link" => path.ends_with("/e"),
                _ => path.ends_with("/d"),
            };
            assert!(!asked || left == flags, "{path}: flags {left:x}");
        }
        assert_eq!(have.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
        drop((fs, fs2));
        for spa in [spa, again] {
            spa.close(None).await.unwrap();
        }
    });
}

async fn set_prop(spa: &Arc<Spa>, name: &'static str, prop: &'static str, value: u64) {
    let set: Task = Box::new(move |d, tx| {
        Box::pin(async move {
            let ds = d.by_name(name).await?;
            let value = match (prop, value) {
                ("refquota", _) => ds.phys().referenced_bytes,
                ("quota", _) => ds.dir().phys().used_bytes,
                _ => value,
            };
            d.set_props(&tx, &ds, &[(prop.into(), Setting::Local(Value::u64(value)))]).await
        })
    });
    task(spa, set).await;
}

/// Limits that were set between the crash and the mount do not take back what was acknowledged.
#[test]
fn limits_that_came_later_do_not_judge_a_replay() {
    const LIMITS: [(&str, &str); 6] = [
        ("tank/refquota", "refquota"),
        ("tank/quota", "quota"),
        ("tank/readonly", "readonly"),
        ("tank/user", "defaultuserquota"),
        ("tank/group", "defaultgroupquota"),
        ("tank/project", "defaultprojectquota"),
    ];
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let spa = create(&run, dir.path()).await;
        for (name, _) in LIMITS {
            new_fs(&spa, name).await;
            let fs = open_as(&run, &spa, name).await;
            before(&fs).await;
            fs.commit().await.unwrap();
        }
        spa.sync().await.unwrap();
        let mut want = Vec::new();
        for (name, _) in LIMITS {
            let fs = open_as(&run, &spa, name).await;
            change(&fs).await;
            fs.commit().await.unwrap();
            want.push(describe(&fs).await);
        }
        let crashed = crash(dir.path());
        let again = import(&run, crashed.path()).await;
        for ((name, prop), want) in LIMITS.into_iter().zip(want) {
            set_prop(&again, name, prop, 1).await;
            let fs = open_as(&run, &again, name).await;
            assert_eq!(fs.zfs().kept_log(), None, "{name}");
            assert_eq!(describe(&fs).await, want, "{name}");
            let new = NewFile::new(S_IFREG | 0o600, Cred { uid: 7, gid: 8 });
            let refused = fs.create(fs.root(), b"more", new).await.err();
            // New files belong to no project here, and so to none that has a limit.
            let limited = refused.is_some_and(|e| e.is(Errno::DQuot) || e.is(Errno::ROFs));
            assert!(limited || prop == "defaultprojectquota", "{name} has no limit");
        }
        for spa in [spa, again] {
            spa.close(None).await.unwrap();
        }
    });
}

/// A replay that cannot go on, because a block of the log was damaged after it was claimed, keeps
/// what it holds: the file system is read-only, and another try finds all of it.
#[test]
fn a_log_whose_replay_stops_is_kept_until_it_can_go_on() {
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async {
        let (crashed, blocks, names) = ten_commits(&run).await;
        let image = crashed.path().join("d1.img");
        let at = blocks[5].dva(0).offset + (4 << 20) + 300;
        let there = async |fs: &Filesystem| {
            let there = describe(fs).await;
            names.iter().take_while(|n| there.contains_key(&format!("/{n}"))).count()
        };
        import(&run, crashed.path()).await.close(None).await.unwrap();
        flip(&image, at);
        let mut done = 0;
        // Each import tries, and each leaves it as it is.
        for _ in 0..2 {
            let spa = import(&run, crashed.path()).await;
            let fs = open(&run, &spa).await;
            let why = fs.zfs().kept_log().expect("damaged").to_owned();
            assert!(why.contains("which was claimed, cannot be read"), "{why}");
            let kept = spa.ctx.log.kept.list();
            assert!(kept.len() == 1 && kept[0].1 == why, "{kept:?}");
            done = there(&fs).await;
            assert!((1..names.len()).contains(&done), "{done}");
            assert!(fs.zfs().is_readonly());
            let file = fs.lookup(fs.root(), b"f0").await.unwrap();
            let refused = fs.write(file.node, 0, &bytes(10, 1), false).await.expect_err("refused");
            assert!(refused.is(Errno::ROFs) && refused.to_string().contains(&why), "{refused}");
            fs.commit().await.unwrap();
            drop(fs);
            spa.close(Some(PoolState::Exported)).await.unwrap();
        }
        let given_up = crash(crashed.path());
        let rolled_back = crash(crashed.path());

        // The block can be read again.
        flip(&image, at);
        let spa = import(&run, crashed.path()).await;
        let fs = open(&run, &spa).await;
        assert_eq!((fs.zfs().kept_log(), spa.ctx.log.kept.list().len()), (None, 0));
        assert_eq!(there(&fs).await, names.len(), "all is there");
        for (i, name) in names.iter().enumerate() {
            let (file, len) = (fs.lookup(fs.root(), name.as_bytes()).await.unwrap(), 100 + 3000 * i);
            assert!(
                fs.read(file.node, 0, len + 1).await.unwrap().concat() == bytes(len, len as u64),
                "{name}"
            );
        }
        Dir(&fs).file("more", 10).await;
        fs.commit().await.unwrap();
        check(&spa).await;
        drop(fs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(crashed.path(), POOL);

        // Or it goes back to a snapshot.
        let spa = import(&run, rolled_back.path()).await;
        drop(open(&run, &spa).await);
        assert_eq!(spa.ctx.log.kept.list().len(), 1);
        for back in [false, true] {
            let dsl = spa.dsl.clone();
            let task = spa.ctx.sync_task(move |tx| {
                Box::pin(async move {
                    match back {
                        true => dsl.rollback(&tx, POOL, None).await,
                        false => dsl.snapshot(&tx, &[format!("{POOL}@now")]).await.map(drop),
                    }
                })
            });
            task.await.unwrap();
        }
        assert_eq!(spa.ctx.log.kept.list(), []);
        spa.close(None).await.unwrap();

        // Or whoever owns it does without the rest.
        let spa = import(&run, given_up.path()).await;
        let fs = open(&run, &spa).await;
        assert!(fs.zfs().is_readonly());
        drop(fs);
        zilla::engine::give_up_log(&spa.dsl, POOL).await.unwrap();
        let fs = open(&run, &spa).await;
        assert_eq!((fs.zfs().kept_log(), spa.ctx.log.kept.list().len()), (None, 0));
        assert_eq!(there(&fs).await, done);
        Dir(&fs).file("more", 10).await;
        fs.commit().await.unwrap();
        // (What the damaged block led to is lost, with the space it has.)
        drop(fs);
        spa.close(None).await.unwrap();
    });
}

#[test]
fn a_file_that_got_its_name_late_is_there_after_a_crash_and_one_without_is_not() {
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let spa = create(&run, dir.path()).await;
        let fs = open(&run, &spa).await;
        let root = fs.root();
        // The chain of the log is there.
        Dir(&fs).file("first", 10).await;
        fs.commit().await.unwrap();
        spa.sync().await.unwrap();
        let unnamed = || fs.create_unnamed(root, NewFile::new(S_IFREG | 0o640, Cred { uid: 7, gid: 8 }));
        let (late, never) = (unnamed().await.unwrap(), unnamed().await.unwrap());
        for file in [&late, &never] {
            fs.write(file.node, 0, &bytes(200_000, 5), false).await.unwrap();
            fs.setxattr(file.node, b"user.x", b"value", XattrMode::Any).await.unwrap();
        }
        drop(fs.link(late.node, root, b"late").await.unwrap());
        fs.write(late.node, 10, &bytes(50, 6), false).await.unwrap();
        fs.fsync(late.node).await.unwrap();
        let (want, crashed) = (describe(&fs).await, crash(dir.path()));
        zdb_clean(crashed.path(), POOL);
        let again = import(&run, crashed.path()).await;
        let fs2 = open(&run, &again).await;
        assert_eq!(describe(&fs2).await, want);
        fs2.zfs().drain_unlinked().await.unwrap();
        assert_eq!(fs2.zfs().files_to_free().await.unwrap(), 0);
        let gone = fs2.getattr(never.node).await.unwrap_err();
        assert!(gone.is(Errno::NoEnt) || gone.is(Errno::Stale), "{gone}");
        check(&again).await;
        drop(fs2);
        again.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(crashed.path(), POOL);
        // The one without a name goes with its last use.
        assert_eq!(fs.zfs().files_to_free().await.unwrap(), 1);
        drop((late, never));
        check(&spa).await;
        assert_eq!(fs.zfs().files_to_free().await.unwrap(), 0);
        drop(fs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), POOL);
    });
}

/// Who may write a file may give it attributes of any name. A large one lies in a directory, where
/// files' names have no slash.
#[test]
fn an_attribute_with_a_slash_in_its_name_stops_no_replay() {
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let spa = create(&run, dir.path()).await;
        let fs = open(&run, &spa).await;
        let file = Dir(&fs).file("first", 10).await;
        fs.commit().await.unwrap();
        spa.sync().await.unwrap();
        let value = bytes(40_000, 9);
        for name in [&b"user.a/b"[..], b"user.a/c"] {
            fs.setxattr(file.node, name, &value, XattrMode::Any).await.unwrap();
        }
        fs.removexattr(file.node, b"user.a/c").await.unwrap();
        let later = Dir(&fs).file("later", 10).await;
        fs.fsync(later.node).await.unwrap();
        let (want, crashed) = (describe(&fs).await, crash(dir.path()));
        let again = import(&run, crashed.path()).await;
        let fs2 = open(&run, &again).await;
        assert_eq!(fs2.zfs().kept_log(), None);
        assert_eq!(describe(&fs2).await, want);
        let first = fs2.lookup(fs2.root(), b"first").await.unwrap();
        assert_eq!(fs2.getxattr(first.node, b"user.a/b").await.unwrap(), value);
        assert_eq!(fs2.listxattr(first.node).await.unwrap(), [b"user.a/b"]);
        check(&again).await;
        drop((fs2, first));
        again.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(crashed.path(), POOL);
        drop((fs, file, later));
        spa.close(None).await.unwrap();
    });
}
