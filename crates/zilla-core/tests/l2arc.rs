//! Cache devices: they are fed, read, known again after an import, and cost nothing but time
//! whatever they hold.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use zilla_codec::checksum::{ByteOrder, Checksum, embedded, fletcher4};
use zilla_codec::compress::{self, Compress, CompressSpec};
use zilla_core::dsl::Setting;
use zilla_core::error::Error;
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevAux, VdevKind, VdevState};
use zilla_core::zap::Value;
use zilla_core::zpl::{Cred, FsProps, NewFile, Unlimited, Zfs};
use zilla_env::{Env, real_env};
use zilla_ondisk::enums::PoolState;
use zilla_ondisk::l2arc::{L2DevHdrPhys, L2LogBlk, L2Prop};
use zilla_ondisk::{Field, Writer};
use zilla_testkit::{zdb_clean, zdb_says};

/// Devices of the pool, and cache devices that are large enough for a log.
const SIZE: u64 = 256 << 20;
const CACHE: u64 = 1100 << 20;
const FILES: u32 = 40;
const FILE: usize = 1 << 20;
/// Where the cached blocks begin.
const START: u64 = (4 << 20) + 512;

struct World {
    env: Env,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        World { env: real_env(2), dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn leaf(&self, name: &str, size: u64) -> LeafSpec {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        LeafSpec { path, disk: false }
    }

    async fn create(&self, caches: &[&str]) -> Arc<Spa> {
        let leaves = vec![self.leaf("disk", SIZE)];
        let top = TopSpec { kind: VdevKind::File, leaves, is_log: false, bias: None, ashift: Some(9) };
        let opts = CreateOpts {
            name: "tank".into(),
            host: Host { id: 0x1234, name: "here".into() },
            comment: None,
            owner: (0, 0),
            features: None,
            dbuf_cache: 1 << 20,
            arc_max: 256 << 20,
        };
        let cache = caches.iter().map(|n| self.leaf(n, CACHE)).collect();
        let spec = PoolSpec { tops: vec![top], cache };
        Spa::create(&self.env, &spec, opts).await.unwrap()
    }

    async fn import(&self) -> Result<Arc<Spa>, Error> {
        let found = discover(&self.env, &[self.dir.path().to_owned()]).await?;
        let opts = OpenOpts {
            host: Host { id: 0x1234, name: "here".into() },
            dbuf_cache: 1 << 20,
            arc_max: 256 << 20,
            ..OpenOpts::default()
        };
        Spa::open(&self.env, &found[0], opts).await
    }

    async fn export(&self, spa: Arc<Spa>) {
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(self.dir.path(), "tank");
    }

    async fn zfs(&self, spa: &Arc<Spa>) -> Arc<Zfs> {
        self.zfs_of(spa, FsProps::default()).await
    }

    async fn zfs_of(&self, spa: &Arc<Spa>, props: FsProps) -> Arc<Zfs> {
        let ds = spa.dsl.by_name("tank").await.unwrap();
        let os = spa.dsl.objset(&ds).await.unwrap();
        let txgs = (!spa.ctx.readonly).then(|| spa.ctx.txgs.clone());
        Zfs::open(self.env.clone(), os, txgs, Arc::new(Unlimited), props).await.unwrap()
    }

    async fn put(&self, spa: &Arc<Spa>, files: std::ops::Range<u32>) {
        self.put_in(spa, files, 128 << 10).await;
    }

    /// Files whose blocks have `recordsize` bytes.
    async fn put_in(&self, spa: &Arc<Spa>, files: std::ops::Range<u32>, recordsize: u32) {
        let zfs = self.zfs_of(spa, FsProps { recordsize, ..FsProps::default() }).await;
        for i in files {
            let new = NewFile::new(0o100644, Cred::default());
            let (h, _) = zfs.create(zfs.root(), format!("f{i}").as_bytes(), new).await.unwrap();
            zfs.write(h.id(), 0, &contents(i).into(), false).await.unwrap();
        }
        spa.sync().await.unwrap();
    }

    /// Reads all files past what is in memory.
    async fn check(&self, spa: &Arc<Spa>, files: std::ops::Range<u32>) {
        spa.zio.cache().clear();
        let zfs = self.zfs(spa).await;
        for i in files {
            let (h, a) = zfs.lookup(zfs.root(), format!("f{i}").as_bytes()).await.unwrap();
            let data = zfs.read(h.id(), 0, a.size as usize).await.unwrap();
            assert!(data.concat() == contents(i), "f{i}");
        }
    }

    async fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        for _ in 0..600 {
            if done() {
                return;
            }
            self.env.sleep(Duration::from_millis(50)).await;
        }
        panic!("never: {what}");
    }

    /// Waits until all that is in the ARC is on a cache device.
    async fn fed(&self, spa: &Arc<Spa>, bytes: u64) {
        self.until("fed", || stat(spa, "l2_size") >= bytes).await;
        // One more turn, so that nothing is being written.
        let feeds = stat(spa, "l2_feeds");
        self.until("idle", || stat(spa, "l2_feeds") > feeds + 1).await;
    }
}

fn contents(i: u32) -> Vec<u8> {
    let mut x = u64::from(i) + 1;
    let mut out = Vec::with_capacity(FILE);
    while out.len() < FILE {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(x >> 11).to_le_bytes());
    }
    out
}

fn stat(spa: &Arc<Spa>, name: &str) -> u64 {
    spa.zio.l2().arcstats().into_iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name}")).1
}

/// The number behind a word of what zdb says.
fn number(text: &str, word: &str) -> u64 {
    let line =
        text.lines().find(|l| l.trim_start().starts_with(word)).unwrap_or_else(|| panic!("{word}: {text}"));
    line.split_whitespace().find_map(|w| w.parse().ok()).unwrap()
}

async fn filled(w: &World) -> Arc<Spa> {
    let spa = w.create(&["cache"]).await;
    w.put(&spa, 0..FILES).await;
    w.fed(&spa, u64::from(FILES) * FILE as u64).await;
    spa
}

#[test]
fn what_is_fed_is_read_from_there_and_known_again_after_an_import() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = filled(&w).await;
        let cache = spa.tree().cache[0].clone();
        let space = spa.cache_space(cache.guid).unwrap();
        assert!(space.alloc > u64::from(FILES) * FILE as u64 && space.space > CACHE - (8 << 20));
        let disk_reads =
            |spa: &Arc<Spa>| spa.tree().root.stats().bytes[zilla_core::vdev::IoKind::Read as usize];
        let before = disk_reads(&spa);
        w.check(&spa, 0..FILES).await;
        assert!(stat(&spa, "l2_hits") >= u64::from(FILES) * 8, "{}", stat(&spa, "l2_hits"));
        assert!(disk_reads(&spa) - before < 1 << 20, "the pool's disk was read");
        assert_eq!(stat(&spa, "l2_cksum_bad"), 0);
        let logs = stat(&spa, "l2_log_blk_count");
        assert!(logs > 3);
        w.export(spa).await;

        // OpenZFS's zdb reads header and log.
        if let Some(text) = zdb_says(&["-lll", &w.path("cache").to_string_lossy()]) {
            assert_eq!(number(&text, "log_blk_count:"), logs, "{text}");
            assert!(text.contains("0 with invalid cksum"), "{text}");
            assert_eq!(number(&text, "lb_count_refcount:"), logs);
        }
        // Wherever it lies now.
        std::fs::rename(w.path("cache"), w.path("cache-moved")).unwrap();
        let spa = w.import().await.unwrap();
        w.until("rebuilt", || !spa.zio.l2().is_rebuilding()).await;
        assert_eq!((stat(&spa, "l2_rebuild_success"), stat(&spa, "l2_rebuild_log_blks")), (1, logs));
        let before = disk_reads(&spa);
        w.check(&spa, 0..FILES).await;
        assert!(stat(&spa, "l2_hits") >= u64::from(FILES) * 6, "{}", stat(&spa, "l2_hits"));
        assert!(disk_reads(&spa) - before < u64::from(FILES) * FILE as u64 / 2);
        assert_eq!((stat(&spa, "l2_cksum_bad"), stat(&spa, "l2_io_error")), (0, 0));
        w.export(spa).await;
    });
}

/// A round of feeding makes many log blocks where blocks are small. All of them are found again.
#[test]
fn small_blocks_are_all_known_again() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(&["cache"]).await;
        w.put_in(&spa, 0..8, 4096).await;
        w.fed(&spa, 8 << 20).await;
        let (logs, blocks) = (stat(&spa, "l2_log_blk_count"), stat(&spa, "l2_size") >> 12);
        assert!(logs > 25, "{logs} log blocks for {blocks} blocks");
        w.export(spa).await;
        if let Some(text) = zdb_says(&["-lll", &w.path("cache").to_string_lossy()]) {
            assert_eq!(number(&text, "log_blk_count:"), logs, "{text}");
            assert!(text.contains("0 with invalid cksum"), "{text}");
        }
        let spa = w.import().await.unwrap();
        w.until("rebuilt", || !spa.zio.l2().is_rebuilding()).await;
        assert_eq!(stat(&spa, "l2_rebuild_log_blks"), logs);
        w.check(&spa, 0..8).await;
        assert_eq!((stat(&spa, "l2_cksum_bad"), stat(&spa, "l2_io_error")), (0, 0));
        w.export(spa).await;
    });
}

#[test]
fn a_device_that_lies_costs_time_only() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = filled(&w).await;
        // Everything on it is something else now.
        let file = std::fs::File::options().write(true).open(w.path("cache")).unwrap();
        let spoil = || {
            let junk = vec![0x5a; 1 << 20];
            for at in (START..(CACHE - (1 << 20)).min(200 << 20)).step_by(1 << 20) {
                file.write_all_at(&junk, at).unwrap();
            }
        };
        spoil();
        w.check(&spa, 0..FILES).await;
        assert!(stat(&spa, "l2_cksum_bad") > 0);
        assert_eq!(spa.tree().root.stats().checksum_errors, 0, "the pool's own devices are not blamed");
        w.export(spa).await;
        spoil();
        // Its log is junk too.
        let spa = w.import().await.unwrap();
        w.until("rebuilt", || !spa.zio.l2().is_rebuilding()).await;
        assert_eq!(stat(&spa, "l2_rebuild_success"), 0);
        w.check(&spa, 0..FILES).await;
        w.fed(&spa, u64::from(FILES) * FILE as u64).await;
        w.export(spa).await;
        assert!(
            zdb_says(&["-l", &w.path("cache").to_string_lossy()])
                .is_none_or(|t| t.contains("0 with invalid cksum"))
        );
    });
}

#[test]
fn devices_come_and_go() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(&[]).await;
        w.put(&spa, 0..FILES).await;
        assert!(spa.add_cache(&[w.leaf("small", 32 << 20)]).await.is_err());
        spa.add_cache(&[w.leaf("one", CACHE), w.leaf("two", 128 << 20)]).await.unwrap();
        w.fed(&spa, 36 << 20).await;
        let guids: Vec<u64> = spa.tree().cache.iter().map(|v| v.guid).collect();
        assert!(guids.iter().all(|g| spa.cache_space(*g).unwrap().alloc > 1 << 20), "both are fed");
        w.check(&spa, 0..FILES).await;
        spa.offline(guids[0], false, false).await.unwrap();
        assert_eq!(spa.tree().cache[0].state().0, VdevState::Offline);
        let space = spa.cache_space(guids[0]);
        assert!(space.is_some_and(|s| s.alloc > 1 << 20), "what it holds is still known: {space:?}");
        w.check(&spa, 0..FILES).await;
        w.export(spa).await;
        let spa = w.import().await.unwrap();
        assert_eq!(spa.tree().cache[0].state().0, VdevState::Offline, "it stays so");
        assert_eq!(spa.online(guids[0], false).await.unwrap().0, VdevState::Healthy);
        w.until("rebuilt", || !spa.zio.l2().is_rebuilding()).await;
        assert!(stat(&spa, "l2_rebuild_bufs") > 0, "it knows what it held");
        w.check(&spa, 0..FILES).await;
        spa.remove_vdev(guids[0]).await.unwrap();
        spa.remove_vdev(guids[1]).await.unwrap();
        assert!(spa.tree().cache.is_empty() && stat(&spa, "l2_ndev") == 0 && stat(&spa, "l2_hdr_size") == 0);
        w.check(&spa, 0..FILES).await;
        w.export(spa).await;
        let spa = w.import().await.unwrap();
        assert!(spa.tree().cache.is_empty());
        w.export(spa).await;
    });
}

#[test]
fn a_device_that_is_missing_or_somebody_elses_is_no_reason_not_to_import() {
    let (w, aside) = (World::new(), tempfile::tempdir().unwrap());
    w.env.clone().block_on(async {
        let spa = filled(&w).await;
        w.export(spa).await;
        std::fs::rename(w.path("cache"), aside.path().join("away")).unwrap();
        let spa = w.import().await.unwrap();
        assert_eq!(spa.tree().cache[0].state(), (VdevState::CantOpen, VdevAux::OpenFailed));
        w.check(&spa, 0..FILES).await;
        w.export(spa).await;
        // Another pool's in its place.
        let other = World::new();
        let spa = filled(&other).await;
        other.export(spa).await;
        std::fs::copy(other.path("cache"), w.path("cache")).unwrap();
        let spa = w.import().await.unwrap();
        assert_eq!(spa.tree().cache[0].state(), (VdevState::CantOpen, VdevAux::CorruptData));
        w.check(&spa, 0..FILES).await;
        assert_eq!(stat(&spa, "l2_ndev"), 0);
        w.export(spa).await;
        // Its own again, but the other's contents behind its label.
        std::fs::rename(aside.path().join("away"), w.path("cache")).unwrap();
        let (from, to) = (std::fs::File::open(other.path("cache")).unwrap(), std::fs::File::options());
        let to = to.clone().write(true).open(w.path("cache")).unwrap();
        let mut buf = vec![0; 1 << 20];
        for at in ((4 << 20)..(64 << 20)).step_by(1 << 20) {
            from.read_exact_at(&mut buf, at).unwrap();
            to.write_all_at(&buf, at).unwrap();
        }
        let spa = w.import().await.unwrap();
        w.until("rebuilt", || !spa.zio.l2().is_rebuilding()).await;
        assert_eq!((stat(&spa, "l2_rebuild_success"), stat(&spa, "l2_rebuild_unsupported")), (0, 1));
        w.check(&spa, 0..FILES).await;
        w.export(spa).await;
    });
}

#[test]
fn properties_say_what_is_cached() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(&["cache"]).await;
        let set = async |name: &str, value: u64| {
            let (name, spa2) = (name.to_owned(), spa.clone());
            let ds = spa.dsl.by_name("tank").await.unwrap();
            let task = move |tx| -> futures_util::future::BoxFuture<'static, Result<(), Error>> {
                Box::pin(async move {
                    spa2.dsl.set_props(&tx, &ds, &[(name, Setting::Local(Value::u64(value)))]).await
                })
            };
            spa.ctx.sync_task(task).await.unwrap();
        };
        let zfs = w.zfs(&spa).await;
        set("secondarycache", 1).await;
        w.put(&spa, 0..8).await;
        w.until("metadata is fed", || stat(&spa, "l2_bufc_metadata_asize") > 0).await;
        let feeds = stat(&spa, "l2_feeds");
        w.until("three turns", || stat(&spa, "l2_feeds") > feeds + 2).await;
        assert!(stat(&spa, "l2_bufc_data_asize") < 1 << 20, "data is not");
        // Without a checksum nobody could tell what comes back.
        set("checksum", 2).await;
        set("secondarycache", 2).await;
        w.put(&spa, 8..16).await;
        let feeds = stat(&spa, "l2_feeds");
        w.until("three turns more", || stat(&spa, "l2_feeds") > feeds + 2).await;
        assert!(stat(&spa, "l2_bufc_data_asize") < 1 << 20, "data without checksums is not");
        w.check(&spa, 0..8).await;
        w.until("data is fed", || stat(&spa, "l2_bufc_data_asize") > 7 << 20).await;
        // Nothing of the data stays in the ARC.
        set("primarycache", 1).await;
        w.check(&spa, 0..8).await;
        let data = spa.zio.cache().arcstats().into_iter().find(|(n, _)| *n == "data_size").unwrap().1;
        assert!(data < 1 << 20, "{data}");
        drop(zfs);
        w.export(spa).await;
    });
}

/// A stream of a file: what is read ahead of it is counted as such, and is fed to the cache device
/// when it was asked for.
#[test]
fn what_is_only_read_ahead_is_not_fed() {
    const RECORD: usize = 128 << 10;
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(&[]).await;
        // What no compression makes smaller; and no more than is read ahead at first.
        let word = |i: u64| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(i as u32 % 61);
        let all: Vec<u8> = (0..10u64 << 14).flat_map(|i| (word(i) ^ word(i >> 3)).to_le_bytes()).collect();
        let records = (all.len() / RECORD) as u64;
        let zfs = w.zfs_of(&spa, FsProps { recordsize: RECORD as u32, ..FsProps::default() }).await;
        let new = NewFile::new(0o100644, Cred::default());
        let (h, _) = zfs.create(zfs.root(), b"stream", new).await.unwrap();
        zfs.write(h.id(), 0, &all.clone().into(), false).await.unwrap();
        spa.sync().await.unwrap();
        drop((h, zfs));
        w.export(spa).await;
        let spa = w.import().await.unwrap();
        spa.add_cache(&[w.leaf("cache", CACHE)]).await.unwrap();
        let zfs = w.zfs(&spa).await;
        let (h, _) = zfs.lookup(zfs.root(), b"stream").await.unwrap();
        let arc = |name: &str| {
            spa.zio.cache().arcstats().into_iter().find(|(n, _)| *n == name).map(|(_, v)| v).unwrap()
        };
        let before = ["demand", "prefetch"]
            .map(|kind| ["hits", "iohits", "misses"].map(|what| arc(&format!("{kind}_data_{what}"))));
        let held = arc("data_size");
        let data = |kind: &str| {
            let [demand, prefetch] = before;
            let all =
                ["hits", "iohits", "misses"].iter().zip(if kind == "demand" { demand } else { prefetch });
            all.map(|(what, old)| arc(&format!("{kind}_data_{what}")) - old).collect::<Vec<_>>()
        };
        let read = async |record: u64| {
            let at = record as usize * RECORD;
            let got = zfs.read(h.id(), at as u64, RECORD).await.unwrap();
            assert!(got.concat() == all[at..at + RECORD], "record {record}");
        };
        // The second goes on where the first ended: the rest is read ahead.
        read(0).await;
        read(1).await;
        w.until("all is read ahead", || arc("data_size") == held + all.len() as u64).await;
        assert_eq!(data("prefetch"), [0, 0, records - 2]);
        assert_eq!(data("demand"), [0, 0, 2]);
        assert_eq!((arc("predictive_prefetch"), arc("demand_hit_predictive_prefetch")), (records - 2, 0));
        let turns = async || {
            let feeds = stat(&spa, "l2_feeds");
            w.until("three turns", || stat(&spa, "l2_feeds") > feeds + 2).await;
        };
        turns().await;
        assert_eq!(stat(&spa, "l2_bufc_data_asize"), 2 * RECORD as u64, "nobody has asked for the others");
        for record in 2..records / 2 {
            read(record).await;
        }
        assert_eq!(data("prefetch"), [0, 0, records - 2]);
        assert_eq!(data("demand"), [records / 2 - 2, 0, 2]);
        assert_eq!(arc("demand_hit_predictive_prefetch"), records / 2 - 2);
        assert_eq!(arc("mfu_data"), 0, "each was used once");
        turns().await;
        assert_eq!(stat(&spa, "l2_bufc_data_asize"), (all.len() / 2) as u64);
        drop((h, zfs));
        w.export(spa).await;
    });
}

#[test]
fn a_small_device_goes_round_and_round() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.create(&[]).await;
        spa.add_cache(&[w.leaf("small", 64 << 20)]).await.unwrap();
        let guid = spa.tree().cache[0].guid;
        w.put(&spa, 0..100).await;
        w.until("it is full", || stat(&spa, "l2_write_bytes") > 50 << 20).await;
        // What was read before pushes out what only came.
        for _ in 0..3 {
            w.check(&spa, 0..100).await;
            let feeds = stat(&spa, "l2_feeds");
            w.until("two turns", || stat(&spa, "l2_feeds") > feeds + 1).await;
        }
        w.until("it went round", || stat(&spa, "l2_write_bytes") > 90 << 20).await;
        let space = spa.cache_space(guid).unwrap();
        assert!(space.alloc <= space.space && space.alloc > space.space / 2, "{space:?}");
        w.check(&spa, 0..100).await;
        assert_eq!(stat(&spa, "l2_cksum_bad"), 0);
        w.export(spa).await;
        assert!(Path::new(&w.path("small")).exists());
    });
}

type Forgery = dyn Fn(&mut L2DevHdrPhys, &mut L2LogBlk) + Sync;

/// Changes header and newest log block of a cache device, and seals both again.
fn forge(path: &Path, change: impl Fn(&mut L2DevHdrPhys, &mut L2LogBlk)) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut raw = vec![0; 512];
    file.read_exact_at(&mut raw, 4 << 20).unwrap();
    let (mut header, _) = L2DevHdrPhys::parse(&raw).unwrap();
    let ptr = header.start_lbps[0];
    let mut packed = vec![0; ptr.prop.psize() as usize];
    file.read_exact_at(&mut packed, ptr.daddr).unwrap();
    let mut whole = vec![0; 64 << 10];
    compress::decompress(Compress::Lz4, &packed, &mut whole).unwrap();
    let mut block = L2LogBlk::parse(&whole, header.log_entries as usize).unwrap();
    let before = block.clone();
    change(&mut header, &mut block);
    if block != before {
        // In place, with what room it has.
        let raw = block.encode().unwrap();
        let n = compress::compress(CompressSpec::new(Compress::Lz4), &raw, &mut packed).unwrap();
        packed[n..].fill(0);
        file.write_all_at(&packed, ptr.daddr).unwrap();
        header.start_lbps[0].cksum = fletcher4(&packed, false);
    }
    let mut w = Writer::native(512);
    header.write(&mut w);
    let mut raw = w.finish();
    let verifier = embedded::label_verifier(4 << 20);
    embedded::seal(Checksum::Label, &mut raw, &verifier, ByteOrder::NATIVE).unwrap();
    file.write_all_at(&raw, 4 << 20).unwrap();
}

#[test]
fn a_forged_log_is_passed_over() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = filled(&w).await;
        w.export(spa).await;
        let (cache, aside) = (w.path("cache"), tempfile::tempdir().unwrap());
        let kept = aside.path().join("kept");
        std::fs::copy(&cache, &kept).unwrap();
        let forgeries: [&Forgery; 9] = [
            // In circles.
            &|h, _| h.start_lbps[1] = h.start_lbps[0],
            &|h, b| b.prev_lbp = h.start_lbps[1],
            // Nowhere.
            &|h, _| h.start_lbps[0].daddr = u64::MAX - 511,
            &|h, _| h.start_lbps[1].daddr = 0x1001,
            &|h, _| h.start_lbps[0].payload_start = 0,
            &|h, _| h.evict = u64::MAX,
            &|h, _| h.start_lbps[0].prop = L2Prop(u64::MAX),
            // Blocks that lie outside, are too large, or are another's.
            &|_, b| b.entries.iter_mut().step_by(2).for_each(|e| e.daddr = u64::MAX - 511),
            &|_, b| {
                let daddr = b.entries[0].daddr;
                b.entries.iter_mut().for_each(|e| (e.daddr, e.prop) = (daddr, L2Prop(u64::MAX)));
            },
        ];
        for forgery in forgeries {
            std::fs::copy(&kept, &cache).unwrap();
            forge(&cache, forgery);
            let spa = w.import().await.unwrap();
            w.until("rebuilt", || !spa.zio.l2().is_rebuilding()).await;
            let space = spa.cache_space(spa.tree().cache[0].guid).unwrap();
            assert!(space.alloc <= space.space, "{space:?}");
            w.check(&spa, 0..FILES).await;
            spa.close(Some(PoolState::Exported)).await.unwrap();
        }
        zdb_clean(w.dir.path(), "tank");
    });
}
