//! What `.zfs` says of snapshots, and what becomes of it when a file system is taken from whoever
//! has it: with it go the snapshots that were looked into, so that they can be destroyed though the
//! old one is still there.

use zilla::{Asker, Errno, Filesystem, Import, NewPool, NewVdev, NodeId, Pool, Result};
use zilla_env::real_env;

async fn at(fs: &Filesystem, path: &[&str]) -> Result<NodeId> {
    let mut node = fs.root();
    for name in path {
        node = fs.lookup(node, name.as_bytes()).await?.node;
    }
    Ok(node)
}

fn errno<T>(r: Result<T>) -> Option<Errno> {
    r.err().map(|e| e.errno())
}

#[test]
fn what_was_looked_into_of_snapshots_is_let_go_of() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("d.img");
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async move {
        let pool = Pool::create(&run, NewPool::new("tank").vdev(NewVdev::single(&disk))).await.unwrap();
        let made = pool.create_filesystem("tank/fs", &[]).await.unwrap();
        made.files().await.unwrap().write("/f", "of the snapshot").await.unwrap();
        pool.snapshot(&["tank/fs@a"]).await.unwrap();
        pool.snapshot(&["tank/fs@b"]).await.unwrap();
        let head = pool.by_name("tank/fs").await.unwrap();
        let fs = head.open_filesystem(false).await.unwrap();
        fs.set_snapshot_manager(0);
        let dir = at(&fs, &[".zfs", "snapshot"]).await.unwrap();
        let file = at(&fs, &[".zfs", "snapshot", "b", "f"]).await.unwrap();
        let guid = fs.lasting_name(file).unwrap();
        assert_eq!(fs.read(file, 0, 100).await.unwrap().concat(), b"of the snapshot");
        let busy = pool.destroy_named(vec!["tank/fs@b".into()], false).await;
        assert_eq!(errno(busy), Some(Errno::Busy));

        // Somebody has it still, as an open file keeps a mount that was taken away.
        fs.revoke().await.unwrap();
        fs.zfs().let_go();
        let root = || Asker { uid: 0, gids: vec![0], is_able: true };
        for found in [
            errno(fs.read(file, 0, 100).await),
            errno(fs.getattr(file).await),
            errno(fs.getattr(dir).await),
            errno(fs.readdir(dir, 0).await),
            errno(fs.lookup(dir, b"a").await),
            errno(fs.handle(file).await),
            errno(fs.node_of(guid.0, guid.1).await),
            errno(fs.take_snapshot(b"c", root()).await),
            errno(fs.rename_snapshot(b"a", b"d", root()).await),
            errno(fs.destroy_snapshot(b"a", root()).await),
        ] {
            assert_eq!(found, Some(Errno::Io));
        }
        pool.destroy_named(vec!["tank/fs@b".into()], false).await.unwrap();
        pool.roll_back("tank/fs", "tank/fs@a").await.unwrap();
        let again = pool.by_name("tank/fs").await.unwrap().open_filesystem(false).await.unwrap();
        assert!(at(&again, &[".zfs", "snapshot", "a", "f"]).await.is_ok());
        assert_eq!(errno(at(&again, &[".zfs", "snapshot", "b"]).await), Some(Errno::NoEnt));
        drop((fs, again, head, made));
        pool.export().await.unwrap();
    });
}

/// Who follows what snapshots there are looks at the directory's times.
#[test]
fn the_directory_of_snapshots_is_as_old_as_their_last_change() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("d.img");
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async move {
        let pool = Pool::create(&run, NewPool::new("tank").vdev(NewVdev::single(&disk))).await.unwrap();
        pool.create_filesystem("tank/fs", &[]).await.unwrap();
        let head = pool.by_name("tank/fs").await.unwrap();
        let (fs, made) =
            (head.open_filesystem(false).await.unwrap(), head.info().await.unwrap().creation as i64);
        let pause = || run.sleep(std::time::Duration::from_millis(20));
        let times = async |fs: &Filesystem| {
            let all = [&[".zfs"][..], &[".zfs", "snapshot"]];
            let mut mtimes = Vec::new();
            for path in all {
                let attr = fs.getattr(at(fs, path).await.unwrap()).await.unwrap();
                assert_eq!((attr.crtime.sec, attr.ctime), (made, attr.mtime));
                mtimes.push(attr.mtime);
            }
            (mtimes[0], mtimes[1])
        };
        let first = times(&fs).await;
        assert_eq!((first.0.sec, first.1.sec), (made, made));
        pause().await;
        assert_eq!(times(&fs).await, first, "nothing has changed");
        let mut last = first.1;
        for turn in 0..2 {
            match turn {
                0 => pool.snapshot(&["tank/fs@a"]).await.unwrap(),
                _ => pool.destroy_named(vec!["tank/fs@a".into()], false).await.unwrap(),
            };
            let now = times(&fs).await;
            assert_eq!(now.0, first.0);
            assert!(now.1 > last, "{now:?}");
            pause().await;
            assert_eq!(times(&fs).await, now);
            last = now.1;
        }
        drop((fs, head));
        pool.export().await.unwrap();
        let pool = Pool::import(&run, &[folder.path()], "tank", Import::default()).await.unwrap();
        let again = pool.by_name("tank/fs").await.unwrap().open_filesystem(false).await.unwrap();
        assert_eq!(times(&again).await, (first.0, last), "it is kept");
        drop(again);
        pool.export().await.unwrap();
    });
}
