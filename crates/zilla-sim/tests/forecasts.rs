//! What `zilla advise` forecasts, and what then happens: on modelled devices in virtual time a load
//! runs without a cache device and is recorded; from the trace follows what one would bring; then
//! it runs with one.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use zilla_advise::{Advice, Analysis, Options};
use zilla_core::spa::{CreateOpts, Host, Spa};
use zilla_core::trace::{Event, Found, Record};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zpl::{Cred, FsProps, NewFile, Unlimited, Zfs};
use zilla_env::model::{ModelDevice, Profile};
use zilla_env::{Device, Env, MemDevice};
use zilla_ondisk::trace::{Item, TraceHeader};
use zilla_sim::{Sim, SimConfig, SimRng};

const DISK: &str = "/disks/d0";
const CACHE: &str = "/disks/c0";
/// The smallest there is.
const ARC: u64 = 32 << 20;
const READERS: usize = 4;

/// A load: what is written before, and what each reader then reads, by file, offset and length.
struct Load {
    recordsize: u32,
    files: Vec<u64>,
    reads: Vec<Vec<(usize, u64, usize)>>,
    /// Bytes of the cache device.
    cache: u64,
}

/// A table of 80 MiB whose rows are used unevenly.
fn database() -> Load {
    const BLOCKS: u64 = 5120;
    let mut rng = SimRng::new(11, "database");
    let mut sums = Vec::new();
    let mut sum = 0.0;
    for i in 1..=BLOCKS {
        sum += 1.0 / (i as f64).powf(0.8);
        sums.push(sum);
    }
    let mut one = || {
        let u = rng.below(1 << 40) as f64 / (1u64 << 40) as f64 * sum;
        let rank = sums.partition_point(|s| *s < u) as u64;
        (0, (rank * 2477 % BLOCKS) << 14, 16384)
    };
    let reads = (0..READERS).map(|_| (0..7000).map(|_| one()).collect()).collect();
    Load { recordsize: 16384, files: vec![BLOCKS << 14], reads, cache: 112 << 20 }
}

/// Many small files, read again and again in an order that changes a little: sources and headers of
/// a build.
fn build() -> Load {
    let mut rng = SimRng::new(12, "build");
    let files: Vec<u64> = (0..3600).map(|_| 2000 + rng.below(30_000)).collect();
    let mut one = |headers: bool| {
        // A third of what is read are the headers that everybody includes.
        let most = if headers { 400 } else { files.len() as u64 };
        let file = rng.below(most) as usize;
        (file, 0, files[file] as usize)
    };
    let reads = (0..READERS).map(|_| (0..4500).map(|i| one(i % 3 == 0)).collect()).collect();
    Load { recordsize: 128 << 10, files, reads, cache: 96 << 20 }
}

/// Large files, each read once from its beginning to its end.
fn media() -> Load {
    const FILE: u64 = 32 << 20;
    let stream = |reader: usize| {
        let of = |file: usize| (0..FILE / (128 << 10)).map(move |i| (file, i * (128 << 10), 128 << 10));
        [reader * 3, reader * 3 + 1, reader * 3 + 2].into_iter().flat_map(of).collect()
    };
    Load { recordsize: 128 << 10, files: vec![FILE; 6], reads: (0..2).map(stream).collect(), cache: 96 << 20 }
}

fn random(seed: u64, len: usize) -> Bytes {
    let mut x = seed | 1;
    let mut data = Vec::with_capacity(len + 8);
    while data.len() < len {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        data.extend((x >> 16).to_le_bytes());
    }
    data.truncate(len);
    data.into()
}

fn modelled(env: &Env, sizes: &[(&'static str, &str, u64)]) -> Env {
    let mut disks: BTreeMap<PathBuf, (Arc<dyn Device>, Profile)> = BTreeMap::new();
    for (path, kind, size) in sizes {
        disks.insert(path.into(), (Arc::new(MemDevice::new(*size)), Profile::named(kind).unwrap()));
    }
    let inner = env.clone();
    env.wrap_devices(move |path: &Path, device| match disks.get(path) {
        Some((disk, profile)) => Arc::new(ModelDevice::new(disk.clone(), profile.clone(), &inner)),
        None => device,
    })
}

/// A run of the load, and the trace of it.
fn run(load: &Load, with_cache: bool) -> (TraceHeader, Vec<Record>, Duration) {
    let sim = Sim::with_config(3, SimConfig { punctual: true, ..SimConfig::default() });
    let sizes = [(DISK, "7200rpm-sata", 2 << 30), (CACHE, "nvme", load.cache)];
    sizes.iter().for_each(|(path, _, size)| drop(sim.add_disk(path, *size)));
    let env = modelled(&sim.env(), &sizes);
    sim.block_on(async {
        let leaf = |path: &str| LeafSpec { path: path.into(), disk: true };
        let top = TopSpec {
            kind: VdevKind::Disk,
            leaves: vec![leaf(DISK)],
            is_log: false,
            bias: None,
            ashift: Some(12),
        };
        let opts = CreateOpts {
            name: "tank".into(),
            host: Host { id: 0x51e, name: "simulated".into() },
            comment: None,
            owner: (0, 0),
            features: None,
            dbuf_cache: 128 << 10,
            arc_max: ARC,
        };
        let spa =
            Spa::create(&env, &PoolSpec { tops: vec![top], ..PoolSpec::default() }, opts).await.unwrap();
        let ds = spa.dsl.by_name("tank").await.unwrap();
        let os = spa.dsl.objset(&ds).await.unwrap();
        spa.dsl.open_log(&ds).await.unwrap();
        let props = FsProps { recordsize: load.recordsize, ..FsProps::default() };
        let zfs =
            Zfs::open(env.clone(), os, Some(spa.ctx.txgs.clone()), Arc::new(Unlimited), props).await.unwrap();
        let mut ids = Vec::new();
        for (i, len) in load.files.iter().enumerate() {
            let name = format!("f{i}");
            let new = NewFile::new(0o100644, Cred::default());
            let (h, _) = zfs.create(zfs.root(), name.as_bytes(), new).await.unwrap();
            for at in (0..*len).step_by(1 << 20) {
                let n = (*len - at).min(1 << 20) as usize;
                zfs.write(h.id(), at, &random(i as u64 * 1000 + at, n), false).await.unwrap();
            }
            ids.push(h);
        }
        spa.sync().await.unwrap();
        spa.zio.cache().clear();
        if with_cache {
            spa.add_cache(&[leaf(CACHE)]).await.unwrap();
        }
        // Nothing else goes on any more.
        env.sleep(Duration::from_secs(30)).await;
        let header = spa.trace_header();
        let mut recording = spa.zio.tracer().start().unwrap();
        let begun = env.now();
        let ids = Arc::new(ids);
        let mut readers = Vec::new();
        for list in load.reads.clone() {
            let (zfs, ids) = (zfs.clone(), ids.clone());
            readers.push(env.spawn_with_result(async move {
                for (file, at, len) in list {
                    let data = zfs.read(ids[file].id(), at, len).await.unwrap();
                    assert_eq!(data.concat().len(), len);
                }
            }));
        }
        let all = futures_util::future::join_all(readers);
        let mut all = std::pin::pin!(all);
        let (mut records, mut lost) = (Vec::new(), 0);
        loop {
            let tick = env.sleep(Duration::from_millis(200));
            let over = futures_util::future::select(all.as_mut(), tick).await;
            let (some, missing) = recording.take();
            records.extend(some);
            lost += missing;
            if matches!(over, futures_util::future::Either::Left(_)) {
                break;
            }
        }
        assert_eq!(lost, 0);
        let took = env.now() - begun;
        drop(recording);
        spa.close(None).await.unwrap();
        (header, records, took)
    })
}

fn advice(header: &TraceHeader, records: &[Record], cache: u64) -> Advice {
    let mut analysis = Analysis::default();
    analysis.item(Item::Header(header.clone()));
    records.iter().for_each(|r| analysis.item(Item::Record(*r)));
    analysis.advice(&Options { sizes: vec![cache], ..Options::default() }).unwrap()
}

/// Hit rate and rate of the second half of the reads.
fn second_half(records: &[Record]) -> (f64, f64) {
    let demand = |r: &&Record| matches!(r.event, Event::Read { prefetch: false, .. });
    let mut reads: Vec<&Record> = records.iter().filter(demand).collect();
    reads.sort_by_key(|r| r.at);
    let half = &reads[reads.len() / 2..];
    let hit = |r: &&&Record| matches!(r.event, Event::Read { found: Found::Memory | Found::CacheDevice, .. });
    let micros = half[half.len() - 1].at - half[0].at;
    let n = half.len() as f64;
    (half.iter().filter(hit).count() as f64 / n, n / (micros as f64 / 1e6))
}

#[track_caller]
fn forecast_comes_true(name: &str, load: &Load) -> (f64, f64) {
    let (header, records, before) = run(load, false);
    assert_eq!((header.cache_devices, header.disks), (0, 1));
    let (with, then, after) = run(load, true);
    let a = advice(&header, &records, with.cache_bytes);
    let nvme = a.caches.iter().find(|c| c.profile == "nvme").unwrap();
    let (hits, rate) = second_half(&then);
    let (old_hits, old_rate) = second_half(&records);
    println!(
        "{name}: {} and {} records; took {before:?} and {after:?}\n  hits {:.3}, forecast {:.3}, then {hits:.3}; \
         reads/s {:.1}, forecast {:.1}, then {rate:.1}; {} readers",
        records.len(),
        then.len(),
        old_hits,
        nvme.reads.hits,
        old_rate,
        nvme.reads.per_second,
        a.readers
    );
    a.notes.iter().for_each(|n| println!("  {n}"));
    assert!(
        (nvme.reads.hits - hits).abs() < 0.05,
        "{name}: hit rate {:.3}, forecast {:.3}",
        hits,
        nvme.reads.hits
    );
    let off = nvme.reads.per_second / rate;
    assert!((0.8..1.2).contains(&off), "{name}: {rate:.1} reads/s, forecast {:.1}", nvme.reads.per_second);
    (hits - old_hits, rate / old_rate)
}

#[test]
fn a_database_s_forecast_comes_true() {
    let (more, faster) = forecast_comes_true("database", &database());
    assert!(more > 0.15 && faster > 2.0, "the device brought {more:.2} and {faster:.2}: nothing to forecast");
}

#[test]
fn a_build_s_forecast_comes_true() {
    let (more, faster) = forecast_comes_true("build", &build());
    assert!(more > 0.1 && faster > 1.5, "the device brought {more:.2} and {faster:.2}: nothing to forecast");
}

#[test]
fn a_media_copy_s_forecast_is_that_nothing_helps() {
    let (more, faster) = forecast_comes_true("media", &media());
    assert!(more.abs() < 0.05 && (0.9..1.1).contains(&faster));
}

#[test]
fn commits_and_txgs_are_recorded() {
    let sim = Sim::with_config(5, SimConfig { punctual: true, ..SimConfig::default() });
    let layout = zilla_sim::pool::layout::Layout::Single;
    layout.add_disks(&sim);
    let env = sim.env();
    sim.block_on(async {
        let spa = layout.create(&env).await.unwrap();
        let zfs = zilla_sim::pool::run::open_fs(&env, &spa, "tank").await.unwrap();
        let mut recording = spa.zio.tracer().start().unwrap();
        assert!(spa.zio.tracer().start().is_none());
        let (h, _) = zfs.create(zfs.root(), b"f", NewFile::new(0o100644, Cred::default())).await.unwrap();
        // The first begins the log, which takes a txg; the second finds it there.
        for seed in [1, 2] {
            zfs.write(h.id(), 0, &random(seed, 20_000), false).await.unwrap();
            zfs.fsync(h.id()).await.unwrap();
        }
        spa.sync().await.unwrap();
        let (records, lost) = recording.take();
        let count = |f: fn(&Event) -> bool| records.iter().filter(|r| f(&r.event)).count();
        assert_eq!(lost, 0);
        assert!(count(|e| matches!(e, Event::Commit { .. })) == 2, "{records:?}");
        assert!(count(|e| matches!(e, Event::LogBlock { bytes: 1.., .. })) > 0);
        // The file, and what leads to it.
        assert!(count(|e| matches!(e, Event::Txg { bytes: 20_000.., .. })) > 0, "{records:?}");
        drop(recording);
        spa.close(None).await.unwrap();
    });
}
