//! Labels as OpenZFS reads them, power cuts between their writes, queues, partitions, failing
//! devices.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use zilla_env::{Device, DeviceInfo, Env, Io, IoOp, MemDevice, OpenMode, SparseImage, real_env};
use zilla_ondisk::{NvList, Uberblock};

use super::priority::Priority;
use super::*;

const DEV: u64 = 80 << 20;

fn top(kind: VdevKind, paths: &[PathBuf], ashift: u32) -> TopSpec {
    let leaves = paths.iter().map(|p| LeafSpec { path: p.clone(), disk: false }).collect();
    TopSpec { kind, leaves, is_log: false, bias: None, ashift: Some(ashift) }
}

fn pool_part(txg: u64) -> NvList {
    NvList::new()
        .with("version", 5000u64)
        .with("name", "tank")
        .with("state", 0u64)
        .with("txg", txg)
        .with("pool_guid", 77u64)
        .with("hostname", "here")
        .with("features_for_read", NvList::new())
}

fn uberblock(tree: &VdevTree, txg: u64) -> Uberblock {
    Uberblock {
        magic: zilla_ondisk::uberblock::UBERBLOCK_MAGIC,
        version: 5000,
        txg,
        guid_sum: tree.guid_sum(),
        timestamp: 1000 + txg,
        ..Uberblock::default()
    }
}

fn devices(tree: &VdevTree, all: &[Arc<dyn Device>]) -> HashMap<u64, Arc<dyn Device>> {
    tree.leaves.iter().zip(all).map(|(l, d)| (l.guid(), d.clone())).collect()
}

async fn opened(env: &Env, config: &NvList, all: &[Arc<dyn Device>], write: bool) -> Arc<VdevTree> {
    let tree = VdevTree::from_config(env, config).unwrap();
    tree.open(&OpenArgs { write, devices: devices(&tree, all), pool_guid: None, newest: 0 }).await.unwrap();
    Arc::new(tree)
}

#[test]
fn openzfs_reads_our_labels() {
    let env = real_env(1);
    let dir = std::env::temp_dir().join(format!("zilla-labels-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let paths: Vec<PathBuf> = (0..3).map(|i| dir.join(format!("d{i}.img"))).collect();
    for p in &paths {
        std::fs::File::create(p).unwrap().set_len(DEV + 12_345).unwrap();
    }
    let spec =
        PoolSpec { tops: vec![top(VdevKind::Raidz { nparity: 1 }, &paths, 12)], ..PoolSpec::default() };
    env.block_on(async {
        let config = spec.config(77, &*env.rng).unwrap();
        let tree = VdevTree::from_config(&env, &config).unwrap();
        tree.open(&OpenArgs { write: true, ..OpenArgs::default() }).await.unwrap();
        // The device's odd end is not used.
        assert_eq!(tree.tops[0].vdev.asize(), 3 * ((DEV & !0x3ffff) - (9 << 19)));
        tree.init_labels(&pool_part(0), &uberblock(&tree, 4)).await.unwrap();
        let fresh = tree.read_labels().await;
        assert!(fresh.uberblocks.iter().all(|u| u.ub.txg == 0));
        for txg in 4..8 {
            let labels = (txg == 4).then(|| pool_part(txg));
            tree.sync_labels(&uberblock(&tree, txg), labels.as_ref(), None).await.unwrap();
        }
        let found = tree.read_labels().await;
        assert_eq!(found.uberblocks[0].ub.txg, 7);
        assert_eq!(found.config(&found.uberblocks[0].ub).unwrap().u64("txg"), Some(4));
        let (_, info) = probe_path(&env, &paths[1]).await.unwrap().unwrap();
        assert_eq!(
            (info.pool_name(), info.valid, info.guid()),
            (Some("tank"), 4, Some(tree.leaves[1].guid()))
        );
        tree.close().await;
    });
    // The opinion that counts, where it is to be had.
    if let Ok(out) = std::process::Command::new("zdb").arg("-lu").arg(&paths[2]).output() {
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && text.contains("labels = 0 1 2 3"), "{text}");
        assert!(text.contains("nparity: 1") && text.contains("txg = 7"), "{text}");
        assert!(!text.contains("failed") && !text.contains("(Bad label cksum)"), "{text}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Lets a number of writes through to all devices together, and loses the rest.
struct Cut {
    inner: MemDevice,
    left: Arc<AtomicUsize>,
}

impl Device for Cut {
    fn submit(&self, batch: Vec<Io>) {
        for io in batch {
            let lost = io.op.modifies()
                && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_err();
            if lost { io.done.complete(Ok(None)) } else { self.inner.submit(vec![io]) }
        }
    }
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }
    fn refresh_size(&self) -> io::Result<u64> {
        Ok(self.size())
    }
}

#[test]
fn the_power_may_go_between_any_two_label_writes() {
    let env = real_env(1);
    let paths: Vec<PathBuf> = (0..2).map(|i| PathBuf::from(format!("/mem/{i}"))).collect();
    let spec = PoolSpec { tops: vec![top(VdevKind::Mirror, &paths, 9)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    env.block_on(async {
        let base: Vec<MemDevice> = (0..2).map(|_| MemDevice::new(DEV)).collect();
        let base: Vec<Arc<MemDevice>> = base.into_iter().map(Arc::new).collect();
        let all: Vec<Arc<dyn Device>> = base.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let tree = opened(&env, &config, &all, true).await;
        tree.init_labels(&pool_part(0), &uberblock(&tree, 10)).await.unwrap();
        tree.sync_labels(&uberblock(&tree, 10), Some(&pool_part(10)), None).await.unwrap();
        let images: Vec<SparseImage> = base.iter().map(|d| d.snapshot()).collect();
        let mut outcomes = Vec::new();
        for n in 0.. {
            let left = Arc::new(AtomicUsize::new(n));
            let cut: Vec<Arc<dyn Device>> = images
                .iter()
                .map(|i| {
                    Arc::new(Cut { inner: MemDevice::from_image(i.clone(), DEV), left: left.clone() })
                        as Arc<dyn Device>
                })
                .collect();
            let tree = opened(&env, &config, &cut, true).await;
            tree.sync_labels(&uberblock(&tree, 11), Some(&pool_part(11)), None).await.unwrap();
            // The machine comes back.
            let after = opened(&env, &config, &cut, false).await;
            let found = after.read_labels().await;
            let ub = &found.uberblocks[0].ub;
            assert!(ub.txg == 10 || ub.txg == 11);
            assert_eq!(found.config(ub).unwrap().u64("txg"), Some(ub.txg), "after {n} writes");
            outcomes.push(ub.txg);
            if left.load(Ordering::SeqCst) > 0 {
                break;
            }
        }
        assert!(outcomes.is_sorted() && outcomes.contains(&10) && outcomes.contains(&11));
        assert_eq!(
            outcomes.len(),
            2 * 4 + 2 * 4 + 2,
            "labels and uberblocks of two leaves, and one run that needs no cut"
        );
    });
}

/// Fails what it is told to fail.
struct Failing {
    inner: MemDevice,
    reads: AtomicBool,
    writes: AtomicBool,
    asked: AtomicUsize,
}

impl Device for Failing {
    fn submit(&self, batch: Vec<Io>) {
        for io in batch {
            let fail = match io.op {
                IoOp::Read { .. } => &self.reads,
                _ => &self.writes,
            };
            self.asked.fetch_add(1, Ordering::Relaxed);
            if fail.load(Ordering::Relaxed) {
                io.done.complete(Err(io::Error::from_raw_os_error(5)));
            } else {
                self.inner.submit(vec![io]);
            }
        }
    }
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }
    fn refresh_size(&self) -> io::Result<u64> {
        Ok(self.size())
    }
}

#[test]
fn a_failing_device_is_counted_retried_and_taken_out() {
    let env = real_env(1);
    // There is something at the first one's path: it has not vanished.
    let paths = [std::env::current_exe().unwrap(), PathBuf::from("/mem/1")];
    let spec = PoolSpec { tops: vec![top(VdevKind::Mirror, &paths, 9)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    let failing = Arc::new(Failing {
        inner: MemDevice::new(DEV),
        reads: AtomicBool::new(false),
        writes: AtomicBool::new(false),
        asked: AtomicUsize::new(0),
    });
    let all: Vec<Arc<dyn Device>> = vec![failing.clone(), Arc::new(MemDevice::new(DEV))];
    env.block_on(async {
        let tree = opened(&env, &config, &all, true).await;
        let leaf = tree.leaves[0].clone();
        failing.writes.store(true, Ordering::Relaxed);
        let before = failing.asked.load(Ordering::Relaxed);
        assert!(leaf.write_at(8 << 20, Bytes::from(vec![1; 512]), Priority::SyncWrite).await.is_err());
        assert_eq!(failing.asked.load(Ordering::Relaxed) - before, 2, "tried twice");
        assert_eq!(leaf.write_errors.load(Ordering::Relaxed), 1);
        tree.missed(9, &[0]).unwrap();
        assert!(leaf.dtl.contains(9));
        tree.check_suspects().await;
        assert_eq!(leaf.state(), (VdevState::Faulted, VdevAux::ErrExceeded));
        assert_eq!(tree.root.state().0, VdevState::Degraded);
        let kept = tree.generate_config(ConfigFor::Mos);
        let child = &kept.lists("children").unwrap()[0].lists("children").unwrap()[0];
        assert_eq!((child.u64("faulted"), child.str("aux_state")), (Some(1), Some("err_exceeded")));
        // Both sides gone: the txg cannot be finished.
        assert!(tree.missed(10, &[0, 1]).is_err());
    });
}

#[test]
fn a_pool_in_the_first_partition_is_found() {
    let env = real_env(1);
    let dir = std::env::temp_dir().join(format!("zilla-gpt-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("disk.img");
    let (first, sectors) = (2048u64, DEV / 512);
    let mut header = vec![0u8; 512];
    header[..8].copy_from_slice(b"EFI PART");
    header[12..16].copy_from_slice(&92u32.to_le_bytes());
    header[72..80].copy_from_slice(&2u64.to_le_bytes());
    header[80..84].copy_from_slice(&128u32.to_le_bytes());
    header[84..88].copy_from_slice(&128u32.to_le_bytes());
    let crc = gpt::crc32(&header[..92]);
    header[16..20].copy_from_slice(&crc.to_le_bytes());
    let mut entry = vec![0u8; 128];
    entry[..16].fill(7);
    entry[32..40].copy_from_slice(&first.to_le_bytes());
    entry[40..48].copy_from_slice(&(first + sectors - 1).to_le_bytes());
    let mut image = vec![0u8; 2048];
    image[512..1024].copy_from_slice(&header);
    image[1024..1152].copy_from_slice(&entry);
    std::fs::write(&path, &image).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(DEV + (2 << 20)).unwrap();
    let spec =
        PoolSpec { tops: vec![top(VdevKind::File, std::slice::from_ref(&path), 9)], ..PoolSpec::default() };
    env.block_on(async {
        assert!(probe_path(&env, &path).await.unwrap().is_none());
        let whole = env.open(&path, OpenMode { write: true, exclusive: false }).await.unwrap();
        let part: Arc<dyn Device> = Arc::new(gpt::first_partition(&whole).await.unwrap());
        assert_eq!(part.size(), DEV);
        assert!(part.read(DEV - 512, 1024).await.is_err(), "nothing leaves the partition");
        let config = spec.config(77, &*env.rng).unwrap();
        let tree = opened(&env, &config, &[part], true).await;
        tree.init_labels(&pool_part(0), &uberblock(&tree, 4)).await.unwrap();
        let (device, info) = probe_path(&env, &path).await.unwrap().unwrap();
        assert_eq!((device.size(), info.pool_name()), (DEV, Some("tank")));
        // A damaged table is no table.
        whole.write(512 + 80, Bytes::from_static(&[9])).await.unwrap();
        assert!(probe_path(&env, &path).await.unwrap().is_none());
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_new_vdev_needs_all_its_devices() {
    let env = real_env(1);
    let dir = std::env::temp_dir().join(format!("zilla-new-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let paths: Vec<PathBuf> = (0..2).map(|i| dir.join(format!("d{i}"))).collect();
    std::fs::File::create(&paths[0]).unwrap().set_len(DEV).unwrap();
    let spec = PoolSpec { tops: vec![top(VdevKind::Mirror, &paths, 9)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    let open = || {
        let tree = VdevTree::from_config(&env, &config).unwrap();
        let opened = env.block_on(tree.open(&OpenArgs { write: true, ..OpenArgs::default() }));
        env.block_on(tree.close());
        opened
    };
    let e = open().unwrap_err();
    assert!(e.is(crate::error::Errno::NoEnt) && e.to_string().contains("d1: No such file"), "{e}");
    std::fs::File::create(&paths[1]).unwrap().set_len(63 << 20).unwrap();
    let e = open().unwrap_err();
    assert!(e.is(crate::error::Errno::NoDev) && e.to_string().contains("minimum size"), "{e}");
    let keep = env.block_on(env.open(&paths[1], OpenMode { write: true, exclusive: true })).unwrap();
    std::fs::File::options().write(true).open(&paths[1]).unwrap().set_len(DEV).unwrap();
    let e = open().unwrap_err();
    assert!(e.is(crate::error::Errno::Busy) && e.to_string().contains("d1"), "{e}");
    drop(keep);
    std::fs::File::options().write(true).open(&paths[1]).unwrap().set_len(DEV).unwrap();
    assert!(open().is_ok());
    std::fs::remove_dir_all(&dir).unwrap();
}

/// What was said of a device when its configuration was read is not said for ever.
#[test]
fn a_fault_that_was_cleared_is_in_no_configuration() {
    let env = real_env(1);
    let leaf = |id: u64| NvList::new().with("type", "file").with("id", id).with("guid", id + 1);
    let faulted = leaf(1).with("path", "/y").with("faulted", 1u64).with("aux_state", "external");
    let children = vec![leaf(0).with("path", "/x"), faulted];
    let top = NvList::new().with("type", "mirror").with("id", 0u64).with("guid", 8u64);
    let root = NvList::new().with("type", "root").with("id", 0u64).with("guid", 9u64);
    let root = root.with("children", vec![top.with("children", children)]);
    let tree = VdevTree::from_config(&env, &root).unwrap();
    let says = || {
        let config = tree.find(2).unwrap().generate(ConfigFor::Mos, None);
        ["faulted", "aux_state"].map(|name| config.contains(name))
    };
    assert_eq!(says(), [true, true]);
    let faulty = tree.find(2).unwrap().leaf.clone().unwrap();
    faulty.external_fault.store(false, Ordering::Relaxed);
    for state in [VdevState::Healthy, VdevState::Offline, VdevState::CantOpen] {
        faulty.set_unusable(state, VdevAux::None);
        assert_eq!(says(), [false, false], "{state:?}");
    }
}

#[test]
fn hostile_configurations_are_refused() {
    let env = real_env(1);
    let leaf =
        |id: u64| NvList::new().with("type", "file").with("id", id).with("guid", id + 1).with("path", "/x");
    let root = |top: NvList| {
        NvList::new().with("type", "root").with("id", 0u64).with("guid", 9u64).with("children", vec![top])
    };
    let parse = |nv: &NvList| VdevTree::from_config(&env, nv);
    assert!(parse(&root(leaf(0))).is_ok());
    for (name, value) in [("ashift", 3u64), ("ashift", 60), ("metaslab_shift", 70), ("id", 5), ("guid", 0)] {
        assert!(parse(&root(leaf(0).with(name, value))).is_err(), "{name} {value}");
    }
    let raidz = |n: u64, parity: u64| {
        let children: Vec<NvList> = (0..n).map(leaf).collect();
        let top =
            NvList::new().with("type", "raidz").with("id", 0u64).with("guid", 8u64).with("nparity", parity);
        root(top.with("children", children))
    };
    assert!(parse(&raidz(3, 2)).is_ok());
    // A device that is presented twice would be written as two.
    let twice = |second: NvList| {
        let top = NvList::new().with("type", "mirror").with("id", 0u64).with("guid", 8u64);
        root(top.with("children", vec![leaf(0), second]))
    };
    assert!(parse(&twice(leaf(1))).is_ok());
    for guid in [1u64, 8, 9] {
        let second = leaf(1).with("guid", guid).with("path", "/y");
        let Err(e) = parse(&twice(second)) else { panic!("two vdevs of guid {guid}") };
        assert!(e.to_string().contains(&format!("two vdevs of guid {guid}")), "{e}");
    }
    for (n, parity) in [(2, 2), (0, 1), (3, 0), (3, 4), (300, 1)] {
        assert!(parse(&raidz(n, parity)).is_err(), "raidz{parity} of {n}");
    }
    assert!(parse(&root(leaf(0).with("type", "dspare"))).is_err());
    let Err(e) = parse(&root(leaf(0).with("type", "nonsense"))) else { panic!("nonsense was accepted") };
    assert!(e.is(crate::error::Errno::NotSup), "{e}");
    let mut deep = leaf(0);
    for _ in 0..20 {
        deep = NvList::new()
            .with("type", "mirror")
            .with("id", 0u64)
            .with("guid", 3u64)
            .with("children", vec![deep]);
    }
    assert!(parse(&root(deep)).is_err());
    // Of each kind no more than there may be, and too many.
    let wide = |mirrors: u64, each: u64| {
        let mirror = |m: u64| {
            let leaves: Vec<_> =
                (0..each).map(|n| leaf(n).with("guid", 100 + m * (each + 1) + n + 1)).collect();
            let mirror = NvList::new().with("type", "mirror").with("id", m);
            mirror.with("guid", 100 + m * (each + 1)).with("children", leaves)
        };
        let root = NvList::new().with("type", "root").with("id", 0u64).with("guid", 9u64);
        root.with("children", (0..mirrors).map(mirror).collect::<Vec<_>>())
    };
    assert!(parse(&wide(16, 1000)).is_ok());
    let Err(e) = parse(&wide(17, 1000)) else { panic!("17000 devices") };
    assert!(e.to_string().contains("more than 16384 vdevs"), "{e}");
    let draid = |n: u64, ndata: u64, ngroups: u64| {
        let children: Vec<NvList> = (0..n).map(leaf).collect();
        let top =
            NvList::new().with("type", "draid").with("id", 0u64).with("guid", 8u64).with("nparity", 1u64);
        let top = top.with("draid_ndata", ndata).with("draid_nspares", 0u64).with("draid_ngroups", ngroups);
        root(top.with("children", children))
    };
    assert!(parse(&draid(5, 2, 5)).is_ok());
    for (n, ndata, ngroups) in
        [(5, 5, 1), (5, 0, 5), (5, 2, 4), (5, 2, 0), (5, 2, 300), (5, u64::MAX, 5), (0, 2, 5)]
    {
        assert!(parse(&draid(n, ndata, ngroups)).is_err(), "draid of {n}: {ndata} {ngroups}");
    }
    assert!(parse(&leaf(0)).is_err() && parse(&NvList::new()).is_err());
}

mod columns;
mod injected;
mod labels;
mod moving;
mod went_on;

#[test]
fn a_pool_lacks_no_more_tops_than_it_may_and_never_all() {
    let of = |lost: usize, spared: usize| {
        let child = |usable: bool, is_log: bool| state::ChildState {
            state: if usable { VdevState::Healthy } else { VdevState::CantOpen },
            aux: VdevAux::None,
            usable,
            is_log,
        };
        let mut children: Vec<_> = (0..3).map(|i| child(i >= lost, false)).collect();
        children.push(child(true, true));
        state::root(&children, 3, spared).0
    };
    assert_eq!(of(0, 0), VdevState::Healthy);
    assert_eq!(of(1, 0), VdevState::CantOpen);
    assert_eq!(of(1, 1), VdevState::Degraded);
    assert_eq!(of(2, 1), VdevState::CantOpen);
    assert_eq!(of(2, 5), VdevState::Degraded);
    assert_eq!(of(3, 5), VdevState::CantOpen);
}
