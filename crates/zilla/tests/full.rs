//! Pools that are full, on real files: a kept one that no import survived once, and small ones
//! under a stress of all operations. OpenZFS's zdb, where it is installed, accounts for every block
//! afterwards.

use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zilla::{Cred, Errno, Error, Filesystem, NewFile, NodeId, Result, SetAttr};
use zilla_core::dsl::{DslPool, Setting};
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::txg::Tx;
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zap::Value;
use zilla_core::zpl::S_IFREG;
use zilla_env::{BoxFuture, Env, real_env};
use zilla_ondisk::enums::PoolState;
use zilla_testkit::zdb_clean;

async fn import(env: &Env, dir: &Path) -> Arc<Spa> {
    let found = discover(env, &[dir.to_owned()]).await.unwrap();
    let opts = OpenOpts { force: true, dbuf_cache: 64 << 20, arc_max: 256 << 20, ..OpenOpts::default() };
    Spa::open(env, &found[0], opts).await.unwrap()
}

/// The names in a directory, without the two that all have.
async fn names(fs: &Filesystem, dir: NodeId) -> Vec<Vec<u8>> {
    let (mut out, mut at) = (Vec::new(), 0);
    loop {
        let batch = fs.readdir(dir, at).await.unwrap();
        let Some(last) = batch.last() else { return out };
        at = last.cookie;
        out.extend(batch.into_iter().map(|e| e.name).filter(|n| !matches!(&n[..], b"." | b"..")));
    }
}

/// Cases that once broke zilla lie beside the checkout, or where `ZILLA_CASES` says.
fn case(name: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = std::env::var_os("ZILLA_CASES").map(PathBuf::from);
    let path = dir.unwrap_or_else(|| here.join("../../../shared/judges/cases")).join(name);
    if !path.is_file() {
        eprintln!("not run: there is no {}", path.display());
        return None;
    }
    Some(path)
}

/// Two images of 2 GiB with hardly 2 % free, and a log whose replay cuts a few bytes out of dozens
/// of records of 16M: all of them at once, rewritten whole, would need many times that.
#[test]
fn a_full_pool_with_a_log_to_replay_comes_back() {
    let Some(archive) = case("full-pool.tar.zst") else { return };
    let dir = tempfile::tempdir().unwrap();
    let tar = Command::new("tar").args(["--zstd", "-xSf"]).arg(archive).arg("-C").arg(dir.path()).status();
    assert!(tar.unwrap().success());
    let env = real_env(2);
    env.block_on(Box::pin(async {
        let spa = import(&env, dir.path()).await;
        let fs = zilla::engine::open_filesystem(&env, &spa.dsl, "p8/s", false).await.unwrap();
        spa.sync().await.unwrap();
        assert!(spa.suspended().is_none());
        let ack = fs.lookup(fs.root(), b"ack").await.unwrap().leak();
        let files = names(&fs, ack).await;
        assert_eq!(files.len(), 53);
        for name in files {
            let file = fs.lookup(ack, &name).await.unwrap();
            let data = fs.read(file.node, 0, file.attr.size as usize).await.unwrap();
            assert_eq!(data.iter().map(|d| d.len() as u64).sum::<u64>(), file.attr.size);
        }
        let before = fs.statfs().bytes_free;
        let mut removed = 0;
        for name in names(&fs, fs.root()).await {
            let e = fs.lookup(fs.root(), &name).await.unwrap();
            if e.attr.is_file() {
                fs.unlink(fs.root(), &name).await.unwrap();
                removed += 1;
            }
        }
        for _ in 0..4 {
            spa.sync().await.unwrap();
        }
        assert!(
            removed == 0 || fs.statfs().bytes_free > before + (64 << 20),
            "{removed} files gave nothing back"
        );
        assert!(spa.suspended().is_none());
        drop(fs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    }));
    zdb_clean(dir.path(), "p8");
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
    fn bytes(&mut self, len: usize) -> Bytes {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            out.extend_from_slice(&(self.0 ^ self.0 >> 31).to_le_bytes()[1..]);
        }
        out.truncate(len);
        out.into()
    }
}

async fn task<F>(spa: &Arc<Spa>, f: F) -> Result<()>
where
    F: FnOnce(Arc<DslPool>, Tx) -> BoxFuture<'static, Result<()>> + Send + 'static,
{
    let dsl = spa.dsl.clone();
    spa.ctx.sync_task(move |tx| f(dsl, tx)).await
}

fn pool_on(dir: &Path, size: u64, log: bool) -> PoolSpec {
    let leaf = |name: &str, size| {
        let path = dir.join(name);
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        LeafSpec { path, disk: false }
    };
    let top =
        |leaf, is_log| TopSpec { kind: VdevKind::File, leaves: vec![leaf], is_log, bias: None, ashift: None };
    let mut tops = vec![top(leaf("d0.img", size), false)];
    if log {
        tops.push(top(leaf("log.img", 80 << 20), true));
    }
    PoolSpec { tops, ..PoolSpec::default() }
}

async fn create(env: &Env, spec: &PoolSpec) -> Arc<Spa> {
    let opts = CreateOpts {
        name: "full".into(),
        host: Host { id: 0x1234, name: "host".into() },
        comment: None,
        owner: (0, 0),
        features: None,
        dbuf_cache: 64 << 20,
        arc_max: 128 << 20,
    };
    Spa::create(env, spec, opts).await.unwrap()
}

/// Fills a pool of `size` bytes and works on it for a while: never suspended, nothing refused but
/// for want of space, everything removable, the space back, zdb content.
fn stress(size: u64, record: u64, seed: u64, time: Duration) {
    let dir = tempfile::tempdir().unwrap();
    let env = real_env(2);
    env.block_on(Box::pin(async {
        let spa = create(&env, &pool_on(dir.path(), size, seed.is_multiple_of(2))).await;
        task(&spa, move |dsl, tx| {
            Box::pin(async move {
                let ds = dsl.by_name("full").await?;
                dsl.set_props(&tx, &ds, &[("recordsize".to_owned(), Setting::Local(Value::u64(record)))])
                    .await
            })
        })
        .await
        .unwrap();
        let fs = zilla::engine::open_filesystem(&env, &spa.dsl, "full", false).await.unwrap();
        let refused = fill(&fs, record, seed).await;
        assert_eq!(refused, Errno::NoSpc);
        let end = Instant::now() + time;
        let workers: Vec<_> = (0..4)
            .map(|w| {
                let (spa, fs) = (spa.clone(), fs.clone());
                env.spawn_with_result(async move { work(&spa, &fs, record, seed * 4 + w, end).await })
            })
            .collect();
        for w in workers {
            w.await.unwrap();
        }
        assert!(spa.suspended().is_none());
        for name in names(&fs, fs.root()).await {
            fs.unlink(fs.root(), &name).await.unwrap();
        }
        let ds = spa.dsl.by_name("full").await.unwrap();
        let snaps: Vec<String> = spa.dsl.snapshots(&ds).await.unwrap().iter().map(|s| s.name()).collect();
        task(&spa, move |dsl, tx| Box::pin(async move { dsl.destroy_snapshots(&tx, &snaps, false).await }))
            .await
            .unwrap();
        for _ in 0..6 {
            spa.sync().await.unwrap();
        }
        let (used, dspace) = (spa.dsl.root_dir().phys().used_bytes, spa.dsl.pool_space().dspace);
        assert!(used < dspace / 8, "{used} of {dspace} bytes are in use after all was removed");
        drop(fs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    }));
    zdb_clean(dir.path(), "full");
}

async fn snapshot(spa: &Arc<Spa>, name: &'static str) {
    let names = [name.to_owned()];
    task(spa, move |d, tx| Box::pin(async move { d.snapshot(&tx, &names).await.map(drop) })).await.unwrap();
}

/// Removes all from a full pool. What a snapshot holds gives nothing back and makes lists longer:
/// that may be refused, but only before the pool has no room left for itself, and works when the
/// snapshot is gone. Without one nothing is refused.
fn empty_a_full_pool(dedup: bool, record: u64, size: u64) {
    let dir = tempfile::tempdir().unwrap();
    let env = real_env(2);
    env.block_on(Box::pin(async {
        let mut spec = pool_on(dir.path(), size, false);
        spec.tops[0].ashift = Some(9);
        let spa = create(&env, &spec).await;
        task(&spa, move |dsl, tx| {
            Box::pin(async move {
                let ds = dsl.by_name("full").await?;
                let mut props = vec![("recordsize".to_owned(), Setting::Local(Value::u64(record)))];
                if dedup {
                    props.push(("dedup".to_owned(), Setting::Local(Value::u64(1))));
                }
                dsl.set_props(&tx, &ds, &props).await
            })
        })
        .await
        .unwrap();
        let fs = zilla::engine::open_filesystem(&env, &spa.dsl, "full", false).await.unwrap();
        if !dedup {
            assert_eq!(fill_but(&fs, record, 7, size / 16).await, None);
            snapshot(&spa, "full@s").await;
        }
        assert_eq!(fill(&fs, record, 7).await, Errno::NoSpc);
        let mut refused = 0;
        for name in names(&fs, fs.root()).await {
            match fs.unlink(fs.root(), &name).await {
                Err(e) if e.is(Errno::NoSpc) && !dedup => refused += 1,
                done => done.unwrap(),
            }
        }
        for _ in 0..4 {
            spa.sync().await.unwrap();
        }
        assert!(spa.suspended().is_none());
        eprintln!("{refused} removals were refused");
        if !dedup {
            let snaps = ["full@s".to_owned()];
            task(&spa, move |d, tx| Box::pin(async move { d.destroy_snapshots(&tx, &snaps, false).await }))
                .await
                .unwrap();
        }
        let mut used = u64::MAX;
        for _ in 0..600 {
            spa.sync().await.unwrap();
            for name in names(&fs, fs.root()).await {
                let _ = fs.unlink(fs.root(), &name).await;
            }
            used = spa.dsl.root_dir().phys().used_bytes;
            if used < spa.dsl.pool_space().dspace / 8 {
                break;
            }
            env.sleep(Duration::from_millis(20)).await;
        }
        assert!(used < spa.dsl.pool_space().dspace / 8, "{used} bytes are in use after all was removed");
        drop(fs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    }));
    zdb_clean(dir.path(), "full");
}

#[test]
fn removing_what_a_snapshot_holds_does_not_take_the_pools_last_room() {
    empty_a_full_pool(false, 512, 400 << 20);
}

#[test]
fn a_full_pool_of_small_deduplicated_blocks_gives_them_back() {
    empty_a_full_pool(true, 4096, 300 << 20);
}

async fn fill(fs: &Filesystem, record: u64, seed: u64) -> Errno {
    fill_but(fs, record, seed, 0).await.unwrap()
}

/// Writes further files until no more than `leave` bytes are free; None, or what it ended with
/// before.
async fn fill_but(fs: &Filesystem, record: u64, seed: u64, leave: u64) -> Option<Errno> {
    let first = names(fs, fs.root()).await.len() as u64;
    for n in first.. {
        if leave > 0 && fs.statfs().bytes_free <= leave {
            return None;
        }
        let data = Random(seed + n).bytes((record as usize).clamp(1 << 20, 16 << 20));
        let name = format!("fill{n}");
        let new = NewFile::new(S_IFREG | 0o644, Cred::default());
        let wrote = match fs.create(fs.root(), name.as_bytes(), new).await {
            Ok(file) => fs.write(file.node, 0, &data, false).await.map(drop),
            Err(e) => Err(e),
        };
        if let Err(e) = wrote {
            return Some(e.errno());
        }
    }
    unreachable!("no limit")
}

async fn work(spa: &Arc<Spa>, fs: &Filesystem, record: u64, seed: u64, end: Instant) -> Result<()> {
    let mut rng = Random(seed);
    while Instant::now() < end {
        let name = match rng.below(2) {
            0 => format!("fill{}", rng.below(60)),
            _ => format!("f{}", rng.below(40)),
        };
        let (name, kind) = (name.as_bytes(), rng.below(16));
        let (off, len) = (rng.below(record * 10), 1 + rng.below(record.clamp(4096, 200 << 10)));
        let did = match kind {
            0..=4 => write(fs, name, off, rng.bytes(len as usize)).await,
            5..=8 => cut(fs, name, off, len, rng.below(3)).await,
            9..=11 => fs.unlink(fs.root(), name).await,
            12 => fs.sync().await,
            13 | 14 => {
                let names = [format!("full@s{}", rng.below(5))];
                task(spa, move |d, tx| Box::pin(async move { d.snapshot(&tx, &names).await.map(drop) })).await
            }
            _ => {
                let names = [format!("full@s{}", rng.below(5))];
                task(spa, move |d, tx| Box::pin(async move { d.destroy_snapshots(&tx, &names, false).await }))
                    .await
            }
        };
        let removes = matches!(kind, 9..=12 | 15);
        match did {
            Err(e) if e.is(Errno::NoSpc) && !removes => {}
            Err(e) if matches!(e.errno(), Errno::NoEnt | Errno::Exist | Errno::Stale | Errno::Again) => {}
            Err(e) => return Err(Error::os(e.errno(), format!("operation {kind}: {e}"))),
            Ok(()) => {}
        }
    }
    Ok(())
}

async fn write(fs: &Filesystem, name: &[u8], off: u64, data: Bytes) -> Result<()> {
    let node = match fs.lookup(fs.root(), name).await {
        Ok(e) => e,
        Err(_) => fs.create(fs.root(), name, NewFile::new(S_IFREG | 0o644, Cred::default())).await?,
    };
    fs.write(node.node, off, &data, false).await?;
    if off.is_multiple_of(3) { fs.fsync(node.node).await } else { Ok(()) }
}

async fn cut(fs: &Filesystem, name: &[u8], off: u64, len: u64, how: u64) -> Result<()> {
    let node = fs.lookup(fs.root(), name).await?;
    match how {
        0 => fs.setattr(node.node, SetAttr { size: Some(off), ..SetAttr::default() }).await.map(drop)?,
        _ => fs.punch(node.node, off, len, false, false).await?,
    }
    fs.fsync(node.node).await
}

#[test]
fn small_pools_run_full_and_go_on() {
    for (i, record) in [4 << 10, 128 << 10, 16 << 20].into_iter().enumerate() {
        stress(300 << 20, record, i as u64, Duration::from_secs(2));
    }
}

/// The same on pools of up to 3 GB, for as many seconds each as `ZILLA_FULL_SECONDS` says.
#[test]
fn larger_pools_run_full_and_go_on_for_long() {
    let Some(time) = std::env::var("ZILLA_FULL_SECONDS").ok().and_then(|s| s.parse().ok()) else { return };
    let sizes = [300, 500, 1000, 2000, 3000];
    for i in 0..20u64 {
        let (size, record) = (sizes[i as usize % 5] << 20, 512 << (i * 5 % 16));
        stress(size, record, i, Duration::from_secs(time));
        eprintln!("pool {i} of {} MiB, records of {record}: well", size >> 20);
    }
}
