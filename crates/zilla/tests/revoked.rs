//! A file system that was taken from whoever has it: with it go the snapshots that were looked into
//! through its `.zfs`, so that they can be destroyed though the old one is still there.

use zilla::{Asker, Errno, Filesystem, NewPool, NewVdev, NodeId, Pool, Result};
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
