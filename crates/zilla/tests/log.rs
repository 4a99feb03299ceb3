//! The intent log on real files: a machine stops right after an fsync, and what was promised is
//! there afterwards. OpenZFS's zdb, where it is installed, looks at the pool in between: it follows
//! the log and accounts for every block of it.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use zilla::{
    Cred, Entry, Filesystem, FsProps, NewFile, NodeId, RenameFlags, SetAttr, SetTime, Time, XattrMode,
    ZFS_NODUMP,
};
use zilla_core::check::{CheckOpts, check_pool};
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zpl::{S_IFBLK, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, SyncMode};
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};
use zilla_env::{Env, real_env};
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::enums::PoolState;
use zilla_testkit::{zdb_clean, zdb_of};

#[path = "log/replay.rs"]
mod replay;

const POOL: &str = "tank";

async fn create(env: &Env, dir: &Path) -> Arc<Spa> {
    let path = dir.join("d1.img");
    std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
    let leaves = vec![LeafSpec { path, disk: false }];
    let top = TopSpec { kind: VdevKind::File, leaves, is_log: false, bias: None, ashift: None };
    let opts = CreateOpts {
        name: POOL.into(),
        host: Host { id: 0x1234, name: "host".into() },
        comment: None,
        owner: (0, 0),
        features: None,
        dbuf_cache: 32 << 20,
        arc_max: 64 << 20,
    };
    Spa::create(env, &PoolSpec { tops: vec![top], ..PoolSpec::default() }, opts).await.unwrap()
}

async fn import(env: &Env, dir: &Path) -> Arc<Spa> {
    let found = discover(env, &[dir.to_owned()]).await.unwrap();
    let opts = OpenOpts { force: true, dbuf_cache: 32 << 20, arc_max: 64 << 20, ..OpenOpts::default() };
    Spa::open(env, &found[0], opts).await.unwrap()
}

async fn open(env: &Env, spa: &Arc<Spa>) -> Arc<Filesystem> {
    zilla::engine::open_filesystem(env, &spa.dsl, POOL, false).await.unwrap()
}

/// The disks as they are at this moment: what a machine that stops now would find again.
fn crash(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let from = dir.join("d1.img");
    let status = Command::new("cp").arg("--sparse=always").arg(from).arg(copy.path()).status();
    assert!(status.unwrap().success());
    copy
}

async fn check(spa: &Arc<Spa>) {
    spa.sync().await.unwrap();
    spa.sync().await.unwrap();
    let report = check_pool(spa, CheckOpts { every_copy: true }).await.unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// What is to survive of each file.
async fn describe(fs: &Filesystem) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut todo: Vec<(NodeId, String)> = vec![(fs.root(), String::new())];
    while let Some((node, path)) = todo.pop() {
        let a = fs.getattr(node).await.unwrap();
        let mut text = format!(
            "{:o} {}:{} size {} links {} rdev {:x} ino {} gen {} flags {:x} projid {}",
            a.mode,
            a.uid,
            a.gid,
            a.size,
            a.nlink,
            a.rdev,
            a.ino,
            a.generation,
            a.flags & ZFS_NODUMP,
            a.projid
        );
        if node != fs.root() {
            text += &format!(" born {}.{}", a.crtime.sec, a.crtime.nsec);
        }
        if a.is_symlink() {
            text += &format!(" -> {:?}", fs.readlink(node).await.unwrap());
        }
        if a.is_file() {
            let data = fs.read(node, 0, a.size as usize).await.unwrap().concat();
            text += &format!(" data {:x}", Sha256::digest(&data));
        }
        if path.contains("timed") {
            text += &format!(" mtime {:?} atime {:?}", a.mtime, a.atime);
        }
        for name in fs.listxattr(node).await.unwrap() {
            let value = fs.getxattr(node, &name).await.unwrap();
            text += &format!(" {}={:x}", String::from_utf8_lossy(&name), Sha256::digest(&value));
        }
        if a.is_dir() {
            let mut at = 0;
            loop {
                let batch = fs.readdir(node, at).await.unwrap();
                let Some(last) = batch.last() else { break };
                at = last.cookie;
                for e in batch.iter().filter(|e| !matches!(&e.name[..], b"." | b"..")) {
                    let name = String::from_utf8_lossy(&e.name);
                    todo.push((fs.lookup(node, &e.name).await.unwrap().node, format!("{path}/{name}")));
                }
            }
        }
        out.insert(path, text);
    }
    out
}

struct Dir<'a>(&'a Filesystem);

impl Dir<'_> {
    async fn make(&self, dir: NodeId, name: &str, mode: u32) -> Entry {
        let new = NewFile::new(mode, Cred { uid: 7, gid: 8 });
        self.0.create(dir, name.as_bytes(), new).await.unwrap()
    }
    async fn file(&self, name: &str, len: usize) -> Entry {
        let e = self.make(self.0.root(), name, S_IFREG | 0o644).await;
        self.0.write(e.node, 0, &bytes(len, len as u64), false).await.unwrap();
        e
    }
    async fn set(&self, node: NodeId, set: SetAttr) {
        self.0.setattr(node, set).await.unwrap();
    }
    async fn rename(&self, old: &str, new: &str, flags: RenameFlags) {
        let root = self.0.root();
        let (old, new) = (old.as_bytes(), new.as_bytes());
        self.0.rename(root, old, root, new, flags, Cred::default()).await.unwrap();
    }
}

fn bytes(len: usize, seed: u64) -> Bytes {
    let mut x = seed | 1;
    let next = || {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 33) as u8
    };
    std::iter::repeat_with(next).take(len).collect::<Vec<u8>>().into()
}

/// Things that are there before the crash, with their txg.
async fn before(fs: &Filesystem) {
    let d = Dir(fs);
    for i in 0..12 {
        d.file(&format!("old{i}"), 1000 * i + 10).await;
    }
    d.file("large", 700_000).await;
    d.make(fs.root(), "emptydir", S_IFDIR | 0o755).await;
}

/// One of everything.
async fn change(fs: &Filesystem) {
    let d = Dir(fs);
    let root = fs.root();
    let none = RenameFlags::default();
    let (any, set) = (XattrMode::Any, SetAttr::default());
    let node = async |name: &str| fs.lookup(root, name.as_bytes()).await.unwrap();
    let dir = d.make(root, "dir", S_IFDIR | 0o2755).await;
    let inner = d.make(dir.node, "inner", S_IFREG | 0o600).await;
    fs.write(inner.node, 0, &bytes(5000, 1), false).await.unwrap();
    fs.write(inner.node, 300_000, &bytes(400_000, 2), false).await.unwrap();
    d.make(root, "fifo", S_IFIFO | 0o600).await;
    let block = NewFile { rdev: 0x1234_5607, ..NewFile::new(S_IFBLK | 0o640, Cred::default()) };
    fs.create(root, b"block", block).await.unwrap();
    let link = NewFile { target: b"some/where", ..NewFile::new(S_IFLNK | 0o777, Cred::default()) };
    fs.create(root, b"soft", link).await.unwrap();
    fs.link(node("old1").await.node, dir.node, b"hard").await.unwrap();
    fs.unlink(root, b"old2").await.unwrap();
    fs.rmdir(root, b"emptydir").await.unwrap();
    d.rename("old3", "moved", none).await;
    d.rename("old4", "old5", none).await;
    d.rename("old6", "old7", RenameFlags { exchange: true, ..none }).await;
    d.rename("old8", "under", RenameFlags { whiteout: true, ..none }).await;
    d.set(node("large").await.node, SetAttr { size: Some(400_001), ..set }).await;
    fs.punch(node("large").await.node, 130_000, 140_000, false, false).await.unwrap();
    let old0 = node("old0").await.node;
    // Promises of space are kept where they can be.
    fs.reserve(old0, 0, 50_000, false).await.unwrap();
    for refused in [fs.reserve(old0, 0, 1 << 50, false).await, fs.allocate(old0, 0, 1 << 50, false).await] {
        assert_eq!(refused.unwrap_err().errno(), zilla::Errno::NoSpc);
    }
    fs.extend(old0, 50_000, false).await.unwrap();
    let old9 = node("old9").await.node;
    d.set(old9, SetAttr { mode: Some(0o4751), uid: Some(55), gid: Some(66), ..set }).await;
    d.set(old9, SetAttr { flags: Some((ZFS_NODUMP, 0)), projid: Some(42), ..set }).await;
    let timed = d.file("timed", 10).await;
    let at = |sec| Some(SetTime::To(Time { sec, nsec: 123 }));
    d.set(timed.node, SetAttr { mtime: at(1_500_000_000), atime: at(1_400_000_000), ..set }).await;
    fs.setxattr(inner.node, b"user.small", b"value", any).await.unwrap();
    fs.setxattr(inner.node, b"user.gone", b"value", any).await.unwrap();
    fs.removexattr(inner.node, b"user.gone").await.unwrap();
    fs.setxattr(inner.node, b"user.larger", &bytes(20_000, 3), any).await.unwrap();
    // Too long for the system attributes: a file in a hidden directory, made, rewritten, and
    // another taken away.
    fs.setxattr(dir.node, b"user.huge", &bytes(40_000, 4), any).await.unwrap();
    fs.setxattr(dir.node, b"user.huge", &bytes(50_000, 5), any).await.unwrap();
    fs.setxattr(dir.node, b"user.huge2", &bytes(40_000, 6), any).await.unwrap();
    fs.removexattr(dir.node, b"user.huge2").await.unwrap();
    // A number that is freed and comes again.
    let short = d.file("short", 100).await;
    drop(short);
    fs.unlink(root, b"short").await.unwrap();
    d.file("again", 2000).await;
}

#[test]
fn everything_that_was_committed_is_there_after_a_crash() {
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let spa = create(&run, dir.path()).await;
        let fs = open(&run, &spa).await;
        before(&fs).await;
        // The log's first commit makes the chain, and waits for a txg.
        fs.commit().await.unwrap();
        spa.sync().await.unwrap();
        let stats = fs.zfs().intent_log().unwrap().stats().get();
        change(&fs).await;
        fs.commit().await.unwrap();
        let now = fs.zfs().intent_log().unwrap().stats().get();
        let want = describe(&fs).await;
        let crashed = crash(dir.path());
        assert!(now.records > stats.records + 40, "{now:?}");
        assert_eq!(now.commits_txg, stats.commits_txg, "a commit waited for a txg");
        // Small data in the log, large ones in place.
        let (copied, placed) =
            (now.copied_bytes - stats.copied_bytes, now.indirect_bytes - stats.indirect_bytes);
        assert!(copied > 100_000 && placed > 200_000 && copied + placed > 400_000, "{copied}, {placed}");
        zdb_clean(crashed.path(), POOL);
        if let Some(text) = zdb_of(crashed.path(), POOL, &["-iiiii"]) {
            for what in [
                "TX_MKDIR",
                "TX_SYMLINK",
                "TX_RENAME_EXCHANGE",
                "TX_RENAME_WHITEOUT",
                "TX_SETSAXATTR",
                "TX_WRITE",
            ] {
                assert!(text.contains(what), "no {what} in\n{text}");
            }
        }

        let again = import(&run, crashed.path()).await;
        let fs2 = open(&run, &again).await;
        let have = describe(&fs2).await;
        for (path, want) in &want {
            assert_eq!(have.get(path), Some(want), "{path}");
        }
        assert_eq!(have.len(), want.len());
        check(&again).await;
        // Replayed is replayed, and a new log begins.
        Dir(&fs2).file("after", 100).await;
        fs2.commit().await.unwrap();
        drop(fs2);
        again.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(crashed.path(), POOL);

        check(&spa).await;
        drop(fs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), POOL);
    });
}

#[test]
fn a_crash_during_replay_and_one_after_it_change_nothing() {
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let spa = create(&run, dir.path()).await;
        let fs = open(&run, &spa).await;
        before(&fs).await;
        fs.commit().await.unwrap();
        spa.sync().await.unwrap();
        change(&fs).await;
        fs.commit().await.unwrap();
        let want = describe(&fs).await;
        let first = crash(dir.path());
        // Claimed and not replayed; then replayed and not exported; each time the machine stops.
        let spa1 = import(&run, first.path()).await;
        let second = crash(first.path());
        zdb_clean(second.path(), POOL);
        let spa2 = import(&run, second.path()).await;
        let fs2 = open(&run, &spa2).await;
        assert_eq!(describe(&fs2).await, want);
        let third = crash(second.path());
        zdb_clean(third.path(), POOL);
        let spa3 = import(&run, third.path()).await;
        let fs3 = open(&run, &spa3).await;
        assert_eq!(describe(&fs3).await, want);
        check(&spa3).await;
        drop((fs, fs2, fs3));
        for spa in [spa, spa1, spa2, spa3] {
            spa.close(None).await.unwrap();
        }
    });
}

/// A pool whose machine stopped after ten commits of a file each: its disk, the blocks of its log,
/// the files' names.
async fn ten_commits(env: &Env) -> (tempfile::TempDir, Vec<BlkPtr>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let spa = create(env, dir.path()).await;
    let fs = open(env, &spa).await;
    fs.commit().await.unwrap();
    Dir(&fs).file("first", 10).await;
    fs.commit().await.unwrap();
    spa.sync().await.unwrap();
    let names: Vec<String> = (0..10).map(|i| format!("f{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        Dir(&fs).file(name, 100 + 3000 * i).await;
        fs.commit().await.unwrap();
    }
    let crashed = crash(dir.path());
    let blocks = {
        let os = spa.dsl.objset(&spa.dsl.by_name(POOL).await.unwrap()).await.unwrap();
        zilla_core::zil::chain(&**os.store(), &os.phys().zil_header, os.id()).await
    };
    drop(fs);
    spa.close(None).await.unwrap();
    (crashed, blocks, names)
}

#[test]
fn a_torn_chain_gives_back_what_was_before_the_tear() {
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async {
        let (crashed, blocks, names) = ten_commits(&run).await;
        assert!(blocks.len() > names.len(), "{}", blocks.len());
        let mut last = 0;
        for (n, bp) in blocks.iter().enumerate() {
            let torn = crash(crashed.path());
            // A byte of the part in use, a different one each time.
            let at = bp.dva(0).offset + (4 << 20) + [0, 8, 150, 190, 300][n % 5];
            flip(&torn.path().join("d1.img"), at);
            let spa = import(&run, torn.path()).await;
            let fs = open(&run, &spa).await;
            let there = describe(&fs).await;
            let count = names.iter().take_while(|n| there.contains_key(&format!("/{n}"))).count();
            assert_eq!(there.len(), count + 2, "not a beginning: {:?}", there.keys());
            for (i, name) in names.iter().take(count).enumerate() {
                let f = fs.lookup(fs.root(), name.as_bytes()).await.unwrap();
                let len = 100 + 3000 * i;
                let have = fs.read(f.node, 0, len + 1).await.unwrap().concat();
                // The tear may be between the record that made the last one and that of its
                // contents.
                let torn_off = i + 1 == count && have.is_empty();
                assert!(torn_off || have == bytes(len, len as u64), "block {n}: {name} is another");
            }
            assert!(count >= last, "block {n}");
            last = count;
            check(&spa).await;
            drop(fs);
            spa.close(Some(PoolState::Exported)).await.unwrap();
            zdb_clean(torn.path(), POOL);
        }
        assert_eq!(last, names.len(), "the last block was never written");
    });
}

/// A sector that cannot be read is no end of the log: what follows was promised.
#[test]
fn a_log_that_cannot_be_read_stands_in_the_way_of_an_import() {
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async {
        let (crashed, blocks, names) = ten_commits(&run).await;
        let at = blocks[5].dva(0).offset + (4 << 20);
        let faulty = run.wrap_devices({
            let env = run.clone();
            move |_, device| {
                let device = FaultyDevice::new(device, &env);
                device.add(Rule::new(Ops::Reads, Fault::Error(5)).within(at..at + 512));
                Arc::new(device)
            }
        });
        let found = discover(&faulty, &[crashed.path().to_owned()]).await.unwrap();
        let open_opts = |missing_log| OpenOpts { force: true, missing_log, ..OpenOpts::default() };
        let e = Spa::open(&faulty, &found[0], open_opts(false)).await.err().expect("refused").to_string();
        assert!(e.contains("the intent log of tank cannot be read") && e.contains("'-m'"), "{e}");
        // Another time it can be read.
        let again = crash(crashed.path());
        let spa = import(&run, again.path()).await;
        let fs = open(&run, &spa).await;
        assert_eq!(describe(&fs).await.len(), names.len() + 2, "all is there");
        drop(fs);
        spa.close(None).await.unwrap();
        // Who gives it up gets what was before.
        let spa = Spa::open(&faulty, &found[0], open_opts(true)).await.unwrap();
        let fs = open(&faulty, &spa).await;
        let there = describe(&fs).await;
        let count = names.iter().take_while(|n| there.contains_key(&format!("/{n}"))).count();
        assert!(there.len() == count + 2 && count < names.len(), "not a beginning: {:?}", there.keys());
        check(&spa).await;
        drop(fs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(crashed.path(), POOL);
    });
}

fn flip(path: &PathBuf, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
}

#[test]
fn a_lone_commit_is_one_write_and_one_flush_and_many_share_them() {
    let env = real_env(4);
    let run = env.clone();
    env.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let spa = create(&run, dir.path()).await;
        let fs = open(&run, &spa).await;
        let log = fs.zfs().intent_log().unwrap().clone();
        let file = Dir(&fs).file("a", 8192).await;
        fs.fsync(file.node).await.unwrap();
        // Nothing was done since: nothing is waited for, as soon as the log is done with the commit
        // before.
        let idle = log.stats().get();
        for _ in 0..100 {
            fs.fsync(file.node).await.unwrap();
            if log.stats().get().commits_idle > idle.commits_idle {
                break;
            }
            run.sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(log.stats().get().commits_idle, idle.commits_idle + 1);
        for i in 0..50 {
            fs.write(file.node, 0, &bytes(8192, i), false).await.unwrap();
            let before = log.stats().get();
            fs.fsync(file.node).await.unwrap();
            let after = log.stats().get();
            assert_eq!(after.trains, before.trains + 1);
            // While the log learns how much comes, one block may only lead to the next.
            let blocks = after.normal_blocks - before.normal_blocks;
            assert!(blocks == 1 || (i < 2 && blocks == 2), "commit {i} took {blocks} blocks");
        }
        let before = log.stats().get();
        let mut all = Vec::new();
        for i in 0..64u64 {
            let fs = fs.clone();
            all.push(run.spawn_with_result(async move {
                let f = Dir(&fs).file(&format!("many{i}"), 4096).await;
                fs.fsync(f.node).await.unwrap();
            }));
        }
        for t in all {
            t.await;
        }
        let after = log.stats().get();
        assert_eq!(after.commits - before.commits, 64);
        assert!(after.trains - before.trains < 48, "{} trains", after.trains - before.trains);
        // With sync=disabled nobody waits.
        let props = FsProps { sync: SyncMode::Disabled, ..fs.zfs().props() };
        fs.zfs().set_props(props);
        let before = log.stats().get();
        Dir(&fs).file("unsafe", 10).await;
        fs.commit().await.unwrap();
        assert_eq!(log.stats().get().commits, before.commits);
        // With sync=always every operation does.
        fs.zfs().set_props(FsProps { sync: SyncMode::Always, ..props });
        Dir(&fs).file("safe", 10).await;
        assert!(log.stats().get().commits >= before.commits + 2);
        drop(fs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), POOL);
    });
}

/// Blocks of the log and old records that are not free yet take what a small pool has; a txg must
/// find room for what is dirty all the same.
#[test]
fn a_small_pool_is_not_filled_by_its_log() {
    const FILE: u64 = 96 << 20;
    const WRITE: u64 = 8 << 10;
    let env = real_env(2);
    let dir = tempfile::tempdir().unwrap();
    let spa = env.block_on(create(&env, dir.path()));
    let fs = env.block_on(open(&env, &spa));
    let file = env.block_on(async { Dir(&fs).file("data", FILE as usize).await.node });
    let data = bytes(WRITE as usize, 7);
    std::thread::scope(|scope| {
        for id in 0..4 {
            let (fs, data) = (&fs, &data);
            scope.spawn(move || {
                zilla_env::block_on(async {
                    // Every record is dirty in every txg, and the log alone is many times the pool.
                    for i in 0..2_500u64 {
                        let at = (i * 4 + id).wrapping_mul(0x9E37_79B9) % (FILE / WRITE) * WRITE;
                        fs.write(file, at, data, false).await.unwrap();
                        fs.fsync(file).await.unwrap();
                    }
                });
            });
        }
    });
    env.block_on(async {
        check(&spa).await;
        drop(fs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), POOL);
    });
}

type Task = Box<
    dyn FnOnce(
            Arc<zilla_core::dsl::DslPool>,
            zilla_core::txg::Tx,
        ) -> futures_util::future::BoxFuture<'static, zilla::Result<()>>
        + Send,
>;

async fn task(spa: &Arc<Spa>, f: Task) {
    let dsl = spa.dsl.clone();
    spa.ctx.sync_task(move |tx| f(dsl, tx)).await.unwrap();
}

async fn new_fs(spa: &Arc<Spa>, name: &'static str) {
    let make: Task = Box::new(move |d, tx| {
        Box::pin(async move {
            let ds = d.create_fs(&tx, name, zilla_ondisk::enums::ObjsetType::Zfs, 0).await?;
            let props = zilla_core::zpl::ZplProps::new(0, 0, Time { sec: 1, nsec: 0 });
            zilla_core::zpl::create_fs(&d.objset(&ds).await?, &tx, &props).await
        })
    });
    task(spa, make).await;
}

async fn open_as(env: &Env, spa: &Arc<Spa>, name: &str) -> Arc<Filesystem> {
    zilla::engine::open_filesystem(env, &spa.dsl, name, false).await.unwrap()
}

/// Writes and commits, so that the log has live blocks.
async fn work(env: &Env, spa: &Arc<Spa>, name: &str, file: &str) {
    let fs = open_as(env, spa, name).await;
    fs.commit().await.unwrap();
    for i in 0..5 {
        let f = Dir(&fs).file(&format!("{file}{i}"), 20_000 * i + 1).await;
        fs.fsync(f.node).await.unwrap();
    }
}

async fn destroy(spa: &Arc<Spa>, name: &'static str) {
    spa.dsl.by_name(name).await.unwrap().unheld().await;
    task(spa, Box::new(move |d, tx| Box::pin(async move { d.destroy_head(&tx, name).await }))).await;
}

fn roll_back(name: &'static str, to: &'static str) -> Task {
    Box::new(move |d, tx| Box::pin(async move { d.rollback(&tx, name, Some(to)).await }))
}

/// Datasets go, or get other contents, with a log that is in use, that was left empty, or that was
/// never replayed: no block of it is lost or freed twice.
#[test]
fn logs_go_with_their_datasets() {
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let spa = create(&run, dir.path()).await;
        for name in ["tank/a", "tank/b", "tank/c", "tank/d"] {
            new_fs(&spa, name).await;
            work(&run, &spa, name, "first").await;
        }
        let snaps = vec!["tank/b@s".to_string(), "tank/d@s".to_string()];
        task(&spa, Box::new(move |d, tx| Box::pin(async move { d.snapshot(&tx, &snaps).await.map(drop) })))
            .await;
        work(&run, &spa, "tank/a", "more").await;
        work(&run, &spa, "tank/b", "more").await;
        work(&run, &spa, "tank/c", "more").await;
        work(&run, &spa, "tank/d", "more").await;
        // All four have logs that are not replayed here.
        let crashed = crash(dir.path());
        destroy(&spa, "tank/a").await;
        task(&spa, roll_back("tank/b", "tank/b@s")).await;
        let b = open_as(&run, &spa, "tank/b").await;
        assert!(b.lookup(b.root(), b"first0").await.is_ok() && b.lookup(b.root(), b"more0").await.is_err());
        drop(b);
        work(&run, &spa, "tank/b", "again").await;
        check(&spa).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), POOL);

        // Imported again: empty logs, used, destroyed and rolled back without ever being opened.
        let spa = import(&run, dir.path()).await;
        work(&run, &spa, "tank/c", "third").await;
        check(&spa).await;
        destroy(&spa, "tank/c").await;
        task(&spa, roll_back("tank/b", "tank/b@s")).await;
        check(&spa).await;
        work(&run, &spa, "tank/b", "at last").await;
        // A log device could leave now: no log has a block.
        zilla_core::zil::reset_all(&spa.dsl).await.unwrap();
        for name in ["tank", "tank/b", "tank/d"] {
            let os = spa.dsl.objset(&spa.dsl.by_name(name).await.unwrap()).await.unwrap();
            assert!(os.phys().zil_header.log.is_hole(), "{name}");
        }
        work(&run, &spa, "tank/b", "and on").await;
        check(&spa).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), POOL);

        // After the crash: destroyed and rolled back without a replay, and one replayed.
        zdb_clean(crashed.path(), POOL);
        let spa = import(&run, crashed.path()).await;
        destroy(&spa, "tank/a").await;
        task(&spa, roll_back("tank/b", "tank/b@s")).await;
        let c = open_as(&run, &spa, "tank/c").await;
        assert!(c.lookup(c.root(), b"more4").await.is_ok());
        drop(c);
        destroy(&spa, "tank/c").await;
        check(&spa).await;
        assert!(zilla_core::zil::reset_all(&spa.dsl).await.is_err(), "tank/d was not replayed");
        work(&run, &spa, "tank/d", "after").await;
        check(&spa).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(crashed.path(), POOL);
    });
}
