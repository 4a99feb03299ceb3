//! Blocks on memory devices: every layout, every damage that redundancy should bear, gangs,
//! rewriting in place.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::{Compress, CompressSpec};
use zilla_env::{Device, MemDevice, real_env};
use zilla_ondisk::{BlkPtr, Dva};

use super::*;
use crate::vdev::{
    Indirect, LeafSpec, OpenArgs, PoolSpec, Run, TopSpec, VdevAux, VdevKind, VdevState, change,
};

const DEV: u64 = 80 << 20;

/// Hands out space from the front of each top-level in turn; what is freed in a txg is only written
/// down.
struct Bump {
    tree: Arc<VdevTree>,
    next: Vec<AtomicU64>,
    /// Larger blocks find no run.
    largest: AtomicU64,
    /// There is no room for more copies.
    copies: AtomicU64,
    freed: Mutex<Vec<(Dva, Txg)>>,
    given: AtomicU64,
}

impl Allocator for Bump {
    fn alloc(&self, _: Txg, reqs: &[AllocReq], out: &mut Vec<Dvas>) -> Result<(), AllocStop> {
        for req in &reqs[out.len()..] {
            if req.psize > self.largest.load(Ordering::Relaxed)
                || u64::from(req.copies) > self.copies.load(Ordering::Relaxed)
            {
                return Err(AllocStop::NoSpc);
            }
            let mut dvas = Dvas::new();
            for copy in 0..req.copies {
                let id = copy as usize % self.tree.tops.len();
                let asize = self.tree.tops[id].psize_to_asize(req.psize, 0);
                let offset = self.next[id].fetch_add(asize, Ordering::Relaxed);
                if offset + asize > self.tree.tops[id].vdev.asize() {
                    return Err(AllocStop::NoSpc);
                }
                self.given.fetch_add(asize, Ordering::Relaxed);
                dvas.push(Dva { vdev: id as u32, offset, asize, gang: false });
            }
            out.push(dvas);
        }
        Ok(())
    }
    fn load(&self, _: u32, _: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
    fn free(&self, _: Txg, dva: &Dva, born: Txg) {
        self.freed.lock().push((*dva, born));
    }
    fn claim(&self, _: Txg, _: &Dva) -> Result<()> {
        Ok(())
    }
}

struct World {
    env: Env,
    devices: Vec<Arc<MemDevice>>,
    tree: Arc<VdevTree>,
    zio: Zio,
    bump: Arc<Bump>,
}

fn spec(kind: VdevKind, n: usize, ashift: u32) -> TopSpec {
    let leaves = (0..n).map(|i| LeafSpec { path: PathBuf::from(format!("/mem/{i}")), disk: false }).collect();
    TopSpec { kind, leaves, is_log: false, bias: None, ashift: Some(ashift) }
}

fn world(kind: VdevKind, n: usize, ashift: u32) -> World {
    let env = real_env(2);
    let spec = PoolSpec { tops: vec![spec(kind, n, ashift)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    let devices: Vec<Arc<MemDevice>> = (0..n).map(|_| Arc::new(MemDevice::new(DEV))).collect();
    let all: Vec<usize> = (0..n).collect();
    open(env, &config, devices, &all)
}

/// Opens a pool with only some of its devices there.
fn open(env: Env, config: &zilla_ondisk::NvList, devices: Vec<Arc<MemDevice>>, there: &[usize]) -> World {
    let tree = VdevTree::from_config(&env, config).unwrap();
    let mut args = OpenArgs { write: true, ..OpenArgs::default() };
    let map: HashMap<u64, Arc<dyn Device>> =
        there.iter().map(|&i| (tree.leaves[i].guid(), devices[i].clone() as Arc<dyn Device>)).collect();
    args.devices = map;
    env.block_on(tree.open(&args)).unwrap();
    let tree = Arc::new(tree);
    let zio = Zio::new(&env, tree.clone(), Arc::new(Cache::new(64 << 20)));
    let bump = Arc::new(Bump {
        tree: tree.clone(),
        next: tree.tops.iter().map(|_| AtomicU64::new(0)).collect(),
        largest: AtomicU64::new(u64::MAX),
        copies: AtomicU64::new(3),
        freed: Mutex::default(),
        given: AtomicU64::new(0),
    });
    zio.set_allocator(&(bump.clone() as Arc<dyn Allocator>));
    zio.set_salt(&[9; 32]);
    World { env, devices, tree, zio, bump }
}

fn noise(seed: u64, len: usize) -> Bytes {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out.truncate(len);
    Bytes::from(out)
}

fn text(seed: u64, len: usize) -> Bytes {
    let line = format!("line {seed} of a text that compresses well; ");
    Bytes::from(line.bytes().cycle().take(len).collect::<Vec<u8>>())
}

fn req(data: Bytes, blkid: u64) -> WriteReq {
    WriteReq {
        data,
        bookmark: Bookmark { objset: 1, object: 2, level: 0, blkid },
        otype: 19,
        level: 0,
        checksum: Checksum::On,
        compress: CompressSpec::new(Compress::Lz4),
        copies: 1,
        fill: 1,
        prev: BlkPtr::ZERO,
        may_embed: false,
        special_upto: 0,
        dedup: None,
        may_stay: false,
        packed: None,
    }
}

/// Blocks of many sizes and kinds.
fn mixture() -> Vec<WriteReq> {
    let sizes = [512, 1024, 1536, 4096, 5120, 8192, 12_800, 65_536, 131_072, 1 << 20];
    let kinds = [Checksum::Fletcher4, Checksum::Sha256, Checksum::Blake3, Checksum::Skein, Checksum::Edonr];
    let mut out = Vec::new();
    for (i, size) in sizes.iter().enumerate() {
        let mut plain = req(noise(i as u64 + 1, *size), out.len() as u64);
        plain.checksum = kinds[i % kinds.len()];
        out.push(plain);
        out.push(req(text(i as u64, *size), out.len() as u64));
    }
    out
}

impl World {
    fn write(&self, txg: u64, reqs: Vec<WriteReq>) -> Vec<BlkPtr> {
        self.env.block_on(self.zio.write(Txg(txg), reqs)).unwrap()
    }
    fn stable(&self, txg: u64) {
        self.env.block_on(self.zio.wait_txg(Txg(txg))).unwrap();
        self.zio.settle_txg(Txg(txg));
    }
    fn read(&self, bp: &BlkPtr) -> Result<Bytes> {
        self.env.block_on(self.zio.read(*bp, Bookmark::default(), Priority::SyncRead))
    }
    fn check(&self, reqs: &[WriteReq], bps: &[BlkPtr]) {
        self.zio.cache().clear();
        for (r, bp) in reqs.iter().zip(bps) {
            assert!(self.read(bp).unwrap() == r.data, "{bp}");
        }
    }
    /// Fills a device's data with garbage.
    fn ruin(&self, device: usize, seed: u64) {
        let used = self.bump.next[0].load(Ordering::Relaxed) + (1 << 20);
        let data = noise(seed, used as usize);
        self.env.block_on(self.devices[device].write(4 << 20, data)).unwrap();
    }
    fn errors(&self) -> Vec<u64> {
        self.tree.leaves.iter().map(|l| l.checksum_errors.load(Ordering::Relaxed)).collect()
    }
}

fn subsets(n: usize, most: usize) -> Vec<Vec<usize>> {
    let all = (1u32..1 << n).filter(|m| m.count_ones() as usize <= most);
    all.map(|m| (0..n).filter(|i| m >> i & 1 == 1).collect()).collect()
}

#[test]
fn what_is_written_is_read() {
    for ashift in [9, 12] {
        for (kind, n) in [
            (VdevKind::File, 1),
            (VdevKind::Mirror, 3),
            (VdevKind::Raidz { nparity: 1 }, 3),
            (VdevKind::Raidz { nparity: 2 }, 4),
            (VdevKind::Raidz { nparity: 3 }, 7),
        ] {
            let w = world(kind, n, ashift);
            let reqs = mixture();
            let bps = w.write(5, reqs.clone());
            // From memory at once.
            for (r, bp) in reqs.iter().zip(&bps) {
                assert!(w.zio.cached(bp, 0).unwrap() == r.data);
            }
            w.stable(5);
            w.check(&reqs, &bps);
            assert!(bps.iter().any(|bp| bp.compress() == 15) && bps.iter().any(|bp| bp.compress() == 2));
            assert_eq!(w.errors(), vec![0; n]);
            let s = w.env.block_on(w.zio.scrub(bps[18], Bookmark::default())).unwrap();
            assert_eq!((s.bad, s.bytes), (0, bps[18].asize()));
        }
    }
}

#[test]
fn any_damage_within_redundancy_is_healed() {
    for (kind, n, bear) in [
        (VdevKind::Mirror, 3, 2),
        (VdevKind::Raidz { nparity: 1 }, 3, 1),
        (VdevKind::Raidz { nparity: 2 }, 4, 2),
        (VdevKind::Raidz { nparity: 2 }, 5, 2),
        (VdevKind::Raidz { nparity: 3 }, 6, 3),
    ] {
        let w = world(kind, n, 9);
        let reqs = mixture();
        let bps = w.write(5, reqs.clone());
        w.stable(5);
        for (i, broken) in subsets(n, bear).into_iter().enumerate() {
            broken.iter().for_each(|d| w.ruin(*d, i as u64 * 10 + *d as u64 + 1));
            // A scrub finds and repairs all of it ...
            w.zio.cache().clear();
            let mut bad = 0;
            for bp in &bps {
                let s = w.env.block_on(w.zio.scrub(*bp, Bookmark::default())).unwrap();
                assert_eq!(s.bad, s.repaired);
                bad += s.bad;
            }
            assert!(bad > 0, "{broken:?}");
            // ... so that nothing is wrong after.
            let before = w.errors();
            for bp in &bps {
                let s = w.env.block_on(w.zio.scrub(*bp, Bookmark::default())).unwrap();
                assert_eq!(s.bad, 0);
            }
            assert_eq!(w.errors(), before);
            let counted: Vec<usize> = (0..n).filter(|i| before[*i] > 0).collect();
            assert!(broken.iter().all(|b| counted.contains(b)));
            w.check(&reqs, &bps);
        }
        // A plain read heals what it meets.
        w.ruin(0, 99);
        w.check(&reqs, &bps);
        assert!(w.tree.leaves[0].stats.self_healed.load(Ordering::Relaxed) > 0);
        // One more than it bears is an error that names the block, and never wrong bytes.
        (0..=bear).for_each(|d| w.ruin(d, 1000 + d as u64));
        w.zio.cache().clear();
        let failed = reqs.iter().zip(&bps).filter(|(r, bp)| match w.read(bp) {
            Ok(data) => {
                assert!(data == r.data);
                false
            }
            Err(e) => {
                assert!(matches!(e, Error::Corrupt(_)));
                true
            }
        });
        assert!(failed.count() > 0);
        assert!(!w.zio.take_damaged().is_empty());
    }
}

#[test]
fn devices_may_be_missing() {
    for (kind, n, bear) in [(VdevKind::Mirror, 2, 1), (VdevKind::Raidz { nparity: 2 }, 5, 2)] {
        let w = world(kind, n, 12);
        let reqs = mixture();
        let bps = w.write(5, reqs.clone());
        w.stable(5);
        let config = w.tree.generate_config(crate::vdev::ConfigFor::Mos);
        for gone in subsets(n, bear) {
            let there: Vec<usize> = (0..n).filter(|i| !gone.contains(i)).collect();
            let d = open(w.env.clone(), &config, w.devices.clone(), &there);
            assert_eq!(d.tree.root.state().0, crate::vdev::VdevState::Degraded);
            d.check(&reqs, &bps);
            // Writes go on; the missing leaves' DTLs know.
            d.bump.next[0].store(40 << 20, Ordering::Relaxed);
            let more: Vec<WriteReq> = (0..4).map(|i| req(noise(500 + i, 131_072), i)).collect();
            let new = d.write(6, more.clone());
            d.stable(6);
            d.check(&more, &new);
            for (i, leaf) in d.tree.leaves.iter().enumerate() {
                assert_eq!(leaf.dtl.contains(6), gone.contains(&i));
            }
        }
        let too_many: Vec<usize> = (bear + 1..n).collect();
        let d = open(w.env.clone(), &config, w.devices.clone(), &too_many);
        assert_eq!(d.tree.root.state().0, crate::vdev::VdevState::CantOpen);
        assert!(d.env.block_on(d.zio.write(Txg(7), vec![req(noise(1, 4096), 0)])).is_ok());
        assert!(
            d.env.block_on(d.zio.wait_txg(Txg(7))).is_err(),
            "a txg that reached too few leaves is not stable"
        );
    }
}

#[test]
fn blocks_without_a_run_become_gangs() {
    for (kind, n) in [(VdevKind::File, 1), (VdevKind::Raidz { nparity: 1 }, 3)] {
        let w = world(kind, n, 9);
        w.bump.largest.store(4096, Ordering::Relaxed);
        let reqs: Vec<WriteReq> =
            (0..3).map(|i| req(noise(i, 131_072), i)).chain([req(noise(9, 4608), 9)]).collect();
        let bps = w.write(5, reqs.clone());
        w.stable(5);
        assert!(bps.iter().all(BlkPtr::is_gang));
        w.check(&reqs, &bps);
        let s = w.env.block_on(w.zio.scrub(bps[0], Bookmark::default())).unwrap();
        assert_eq!(s.bad, 0);
        // Freeing gives back exactly what was taken; each DVA of the gang counts all below it.
        let given = w.bump.given.load(Ordering::Relaxed);
        w.env.block_on(w.zio.free(Txg(6), &bps)).unwrap();
        let back: u64 = w.bump.freed.lock().iter().map(|(d, _)| d.asize).sum();
        assert_eq!(back, given);
        // No room even for a header.
        w.bump.largest.store(0, Ordering::Relaxed);
        let e = w.env.block_on(w.zio.write(Txg(6), vec![req(noise(1, 8192), 0)])).unwrap_err();
        assert!(e.is(Errno::NoSpc));
    }
}

#[test]
fn large_blocks_are_forced_to_be_gangs() {
    use crate::tunables::{METASLAB_FORCE_GANGING, METASLAB_FORCE_GANGING_PCT};
    // No other test of this program has blocks as large.
    let large = 3 << 20;
    let w = world(VdevKind::File, 1, 9);
    let reqs: Vec<WriteReq> =
        [4096, large, large, 8192, large].iter().zip(0..).map(|(len, i)| req(noise(i, *len), i)).collect();
    METASLAB_FORCE_GANGING.set(large as u64);
    METASLAB_FORCE_GANGING_PCT.set(100);
    let bps = w.write(5, reqs.clone());
    METASLAB_FORCE_GANGING.set(METASLAB_FORCE_GANGING.default);
    METASLAB_FORCE_GANGING_PCT.set(METASLAB_FORCE_GANGING_PCT.default);
    w.stable(5);
    let gangs: Vec<bool> = bps.iter().map(BlkPtr::is_gang).collect();
    assert_eq!(gangs, [false, true, true, false, true]);
    w.check(&reqs, &bps);
    let bps = w.write(6, reqs.clone());
    assert!(!bps.iter().any(BlkPtr::is_gang), "there is a run for each");
}

#[test]
fn a_txg_rewrites_its_gangs_in_place() {
    for (kind, n) in [(VdevKind::File, 1), (VdevKind::Raidz { nparity: 1 }, 3)] {
        let w = world(kind, n, 9);
        w.bump.largest.store(4096, Ordering::Relaxed);
        // So large that its pieces are gangs too.
        let mut r = req(noise(1, 131_072), 0);
        let first = w.write(5, vec![r.clone()])[0];
        assert!(first.is_gang());
        let given = w.bump.given.load(Ordering::Relaxed);
        for pass in 2..6 {
            r.data = noise(pass, 131_072);
            r.prev = first;
            let again = w.write(5, vec![r.clone()])[0];
            assert_eq!(again.dvas().collect::<Vec<_>>(), first.dvas().collect::<Vec<_>>());
            assert_eq!(w.bump.given.load(Ordering::Relaxed), given, "it takes nothing more");
            r.prev = again;
        }
        w.stable(5);
        w.check(&[r.clone()], &[r.prev]);
        let s = w.env.block_on(w.zio.scrub(r.prev, Bookmark::default())).unwrap();
        assert_eq!(s.bad, 0);
    }
}

#[test]
fn where_no_room_is_for_all_copies_a_txg_does_with_fewer() {
    let w = world(VdevKind::File, 1, 9);
    w.bump.copies.store(1, Ordering::Relaxed);
    for largest in [u64::MAX, 2048] {
        w.bump.largest.store(largest, Ordering::Relaxed);
        let mut r = req(noise(1, 16_384), 0);
        r.copies = 3;
        let first = w.write(5, vec![r.clone()])[0];
        assert_eq!((first.ndvas(), first.is_gang()), (1, largest == 2048));
        // The next pass finds it where it is, though it has not the copies it should.
        r.data = noise(2, 16_384);
        r.prev = first;
        let again = w.write(5, vec![r.clone()])[0];
        assert_eq!((again.ndvas(), again.dva(0)), (1, first.dva(0)));
        w.stable(5);
        w.check(&[r.clone()], &[again]);
    }
}

#[test]
fn holes_and_embedded_blocks_take_no_space() {
    let w = world(VdevKind::File, 1, 9);
    w.zio.set_embedded_data(true);
    let mut tiny = req(text(1, 4096), 0);
    tiny.data = Bytes::from([b"x".repeat(20), vec![0; 4076]].concat());
    tiny.may_embed = true;
    let zeros = req(Bytes::from(vec![0; 8192]), 1);
    let mut kept = zeros.clone();
    kept.compress = CompressSpec::OFF;
    let bps = w.write(5, vec![tiny.clone(), zeros.clone(), kept]);
    assert!(bps[0].is_embedded() && bps[1] == BlkPtr::ZERO && !bps[2].is_hole());
    assert!(w.read(&bps[0]).unwrap() == tiny.data && w.zio.cached(&bps[0], 0).unwrap() == tiny.data);
    // A hole made of something remembers when, once the pool has the feature.
    w.zio.set_hole_birth(true);
    let mut punched = zeros;
    punched.prev = bps[2];
    punched.data = Bytes::new();
    let hole = w.write(6, vec![punched])[0];
    assert!(hole.is_hole() && hole.birth() == 6 && hole.lsize() == 8192 && hole.otype() == 19);
    w.stable(5);
    w.stable(6);
    assert!(w.bump.freed.lock().is_empty(), "blocks of older txgs are the caller's to free");
}

#[test]
fn a_txg_rewrites_its_own_blocks_in_place() {
    let w = world(VdevKind::Mirror, 2, 9);
    let mut r = req(noise(1, 16_384), 0);
    r.copies = 2;
    let first = w.write(5, vec![r.clone()])[0];
    for pass in 2..20 {
        r.data = noise(pass, 16_384);
        r.prev = first;
        let again = w.write(5, vec![r.clone()])[0];
        assert_eq!((again.dva(0), again.dva(1)), (first.dva(0), first.dva(1)));
        assert!(w.zio.cached(&again, 0).unwrap() == r.data);
        if pass == 19 {
            w.stable(5);
            w.check(&[r.clone()], &[again]);
        }
    }
    // Another size goes elsewhere; the old place is the caller's to give back.
    r.data = noise(77, 4096);
    r.prev = w.write(5, vec![r.clone()])[0];
    let freed = w.bump.freed.lock().len();
    r.data = noise(78, 8192);
    w.write(5, vec![r.clone()]);
    assert_eq!(w.bump.freed.lock().len(), freed);
    w.stable(5);
}

#[test]
fn readers_of_one_block_share_its_io() {
    let w = world(VdevKind::File, 1, 9);
    let r = req(noise(1, 131_072), 0);
    let bp = w.write(5, vec![r.clone()])[0];
    w.stable(5);
    w.zio.cache().clear();
    let before = w.tree.root.stats().ops[crate::vdev::IoKind::Read as usize];
    w.env.block_on(async {
        let reads = (0..16).map(|i| {
            let class = if i == 0 { Priority::AsyncRead } else { Priority::SyncRead };
            w.zio.read(bp, Bookmark::default(), class)
        });
        for data in join_all(reads).await {
            assert!(data.unwrap() == r.data);
        }
    });
    assert_eq!(w.tree.root.stats().ops[crate::vdev::IoKind::Read as usize], before + 1);
}

/// What is read ahead is no use of a block, until there is one.
#[test]
fn the_cache_knows_what_is_read_ahead() {
    let w = world(VdevKind::File, 1, 9);
    let reqs: Vec<WriteReq> = (0..4).map(|i| req(noise(i, 131_072), i)).collect();
    let bps = w.write(5, reqs.clone());
    w.stable(5);
    w.zio.cache().clear();
    let stats = |names: &[&str]| {
        let all = w.zio.cache().arcstats();
        let of = |name: &&str| all.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
        names.iter().map(|n| of(n).unwrap()).collect::<Vec<u64>>()
    };
    let data = ["demand_data", "prefetch_data"]
        .map(|kind| ["hits", "iohits", "misses"].map(|what| format!("{kind}_{what}")));
    let data: Vec<&str> = data.iter().flatten().map(String::as_str).collect();
    let used = [
        "predictive_prefetch",
        "demand_hit_predictive_prefetch",
        "demand_iohit_predictive_prefetch",
        "prescient_prefetch",
        "demand_hit_prescient_prefetch",
    ];
    let before = stats(&data);
    let now = || stats(&data).iter().zip(&before).map(|(a, b)| a - b).collect::<Vec<_>>();
    let (sync, at) = (Priority::SyncRead, Bookmark::default());
    w.env.block_on(async {
        for bp in &bps[..2] {
            w.zio.read_ahead(*bp, at, sync).await.unwrap();
        }
        assert!(w.zio.cached_ahead(&bps[0], 0).unwrap() == reqs[0].data);
        w.zio.read_ahead(bps[2], at, sync).await.unwrap();
        assert!(w.zio.read(bps[2], at, sync).await.unwrap() == reqs[2].data);
        w.zio.read(bps[3], at, Priority::AsyncRead).await.unwrap();
    });
    assert_eq!(now(), [1, 0, 0, 1, 0, 4]);
    assert_eq!(stats(&used), [4, 1, 0, 1, 0]);
    // One finds it, another is told of it by who had its contents.
    assert!(w.read(&bps[0]).unwrap() == reqs[0].data);
    w.zio.demanded(&bps[1], false);
    w.zio.demanded(&bps[3], false);
    for _ in 0..2 {
        assert!(w.read(&bps[2]).unwrap() == reqs[2].data);
    }
    assert_eq!(now(), [6, 0, 0, 1, 0, 4]);
    assert_eq!(stats(&used), [4, 3, 0, 1, 1]);
}

#[test]
fn second_copies_serve_and_heal_the_first() {
    let env = real_env(2);
    let spec = PoolSpec {
        tops: vec![spec(VdevKind::File, 1, 9), spec(VdevKind::File, 1, 9)],
        ..PoolSpec::default()
    };
    let config = spec.config(77, &*env.rng).unwrap();
    let devices: Vec<Arc<MemDevice>> = (0..2).map(|_| Arc::new(MemDevice::new(DEV))).collect();
    let w = open(env, &config, devices, &[0, 1]);
    let mut r = req(noise(3, 131_072), 0);
    r.copies = 2;
    let bp = w.write(5, vec![r.clone()])[0];
    assert_eq!((bp.ndvas(), bp.dva(0).vdev, bp.dva(1).vdev), (2, 0, 1));
    w.stable(5);
    w.ruin(0, 4);
    w.check(&[r.clone()], &[bp]);
    w.ruin(1, 5);
    w.check(&[r.clone()], &[bp]);
    assert!(w.errors()[0] > 0);
    let s = w.env.block_on(w.zio.scrub(bp, Bookmark::default())).unwrap();
    assert_eq!((s.bad, s.repaired), (1, 1), "the first copy was healed, the second not yet read");
    let s = w.env.block_on(w.zio.scrub(bp, Bookmark::default())).unwrap();
    assert_eq!(s.bad, 0);
}

#[test]
fn hostile_pointers_are_errors() {
    let w = world(VdevKind::Raidz { nparity: 1 }, 3, 9);
    let good = w.write(5, vec![req(noise(1, 8192), 0)])[0];
    w.stable(5);
    let mut bad: Vec<BlkPtr> = (0..16 * 64)
        .map(|i| {
            let mut bp = good;
            bp.0[i / 64] ^= 1 << (i % 64);
            bp
        })
        .collect();
    bad.push(BlkPtr([u64::MAX; 16]));
    bad.push(BlkPtr([0x5555_5555_5555_5555; 16]));
    for bp in bad {
        if let Ok(data) = w.read(&bp) {
            // Bits that do not matter to reading: birth, fill, pads.
            assert!(bp.is_embedded() || data == w.read(&good).unwrap());
        }
        let _ = w.env.block_on(w.zio.scrub(bp, Bookmark::default()));
        w.zio.dsize(&bp);
    }
}

/// What is said of all pointers.
struct Says(bool);

impl Pointers for Says {
    fn is_current(&self, _: Bookmark, _: &BlkPtr) -> bool {
        self.0
    }
}

#[test]
fn a_block_whose_pointer_is_gone_is_not_repaired() {
    for current in [false, true] {
        for (kind, n) in [(VdevKind::Mirror, 2), (VdevKind::Raidz { nparity: 2 }, 4)] {
            let w = world(kind, n, 9);
            let known: Arc<dyn Pointers> = Arc::new(Says(current));
            w.zio.set_pointers(Arc::downgrade(&known));
            let reqs = mixture();
            let bps = w.write(5, reqs.clone());
            w.stable(5);
            w.ruin(0, 7);
            w.check(&reqs, &bps);
            let healed = w.tree.leaves[0].stats.self_healed.load(Ordering::Relaxed);
            assert_eq!(healed > 0, current, "{kind:?}");
        }
    }
}

#[test]
fn a_free_waits_for_a_repair() {
    let w = world(VdevKind::Mirror, 2, 9);
    let bps = w.write(5, vec![req(noise(1, 8192), 0), req(noise(2, 8192), 1)]);
    w.stable(5);
    w.env.block_on(async {
        let guard = w.zio.repairing(&bps[0], Bookmark::default()).unwrap();
        w.zio.free(Txg(6), &bps[1..]).await.unwrap();
        let mut free = Box::pin(w.zio.free(Txg(6), &bps[..1]));
        assert!(futures_util::poll!(&mut free).is_pending());
        drop(guard);
        free.await.unwrap();
    });
}

/// Sent again are a txg's blocks, which are kept. Blocks of the intent log are not.
#[test]
fn a_leaf_that_lacks_a_log_block_goes_on_lacking_its_txg() {
    let w = world(VdevKind::Mirror, 2, 9);
    let reqs = vec![req(noise(1, 4096), 0)];
    let bps = w.write(5, reqs.clone());
    for leaf in &w.tree.leaves {
        leaf.dtl.add(5, 6);
    }
    w.zio.0.track.lacks_log(Txg(5), 0);
    w.env.block_on(w.zio.resend_txg(Txg(5)));
    let lacking = |txg: u64| -> Vec<bool> { w.tree.leaves.iter().map(|l| l.dtl.contains(txg)).collect() };
    assert_eq!(lacking(5), [true, false]);
    w.stable(5);
    w.check(&reqs, &bps);
    // The next of the slot's txgs has nothing of it.
    w.tree.leaves[0].dtl.add(9, 10);
    w.env.block_on(w.zio.resend_txg(Txg(9)));
    assert_eq!(lacking(9), [false, false]);
    // Where each lacks one, one of them must get the uberblock.
    for leaf in &w.tree.leaves {
        leaf.dtl.add(9, 10);
        w.zio.0.track.lacks_log(Txg(9), leaf.index);
    }
    w.env.block_on(w.zio.resend_txg(Txg(9)));
    assert_eq!(lacking(9), [false, false]);
}

/// Pointers of a damaged pool may agree in the place only: each gets what it would get from disk.
#[test]
fn a_hit_is_of_the_pointer_that_asks() {
    let w = world(VdevKind::File, 1, 12);
    let reqs = [req(noise(1, 8192), 0), req(text(2, 65_536), 1)];
    let bps = w.write(5, reqs.to_vec());
    w.stable(5);
    let [mut half, mut raw] = [bps[0], bps[1]];
    half.set_lsize(4096);
    half.set_psize(4096);
    raw.set_compress(Compress::Off as u8);
    raw.set_lsize(raw.psize());
    for forged in [half, raw] {
        w.check(&reqs, &bps);
        let warm = w.read(&forged).ok();
        w.zio.cache().clear();
        assert!(warm == w.read(&forged).ok(), "{forged}");
        for (r, bp) in reqs.iter().zip(&bps) {
            assert!(w.read(bp).unwrap() == r.data, "{bp} after {forged}");
        }
    }
}

/// What has reached its leaves is sent again as long as the pool's uberblock does not lead to it.
#[test]
fn a_txg_is_kept_until_it_is_settled() {
    let w = world(VdevKind::Mirror, 2, 9);
    let reqs = vec![req(noise(1, 4096), 0)];
    let bps = w.write(5, reqs.clone());
    w.env.block_on(w.zio.wait_txg(Txg(5))).unwrap();
    let place = bps[0].dva(0).offset + zilla_ondisk::label::VDEV_LABEL_START_SIZE;
    let lost = Bytes::from(vec![0; 4096]);
    w.env.block_on(w.devices[1].write(place, lost.clone())).unwrap();
    w.env.block_on(w.zio.resend_txg(Txg(5)));
    w.stable(5);
    let at = |i: usize| w.env.block_on(w.devices[i].read(place, 4096)).unwrap();
    assert!(at(0)[..] == at(1)[..] && at(1)[..] != lost[..]);
    w.env.block_on(w.devices[1].write(place, lost.clone())).unwrap();
    w.env.block_on(w.zio.resend_txg(Txg(5)));
    w.stable(5);
    assert!(at(1)[..] == lost[..], "it is not kept for ever");
}

/// Sides that are to differ are sent again what each has of its own, until their txg is settled.
#[test]
fn a_side_of_its_own_is_sent_again_to_it_alone() {
    let w = world(VdevKind::Mirror, 2, 9);
    let versions = vec![noise(1, 4096), noise(2, 4096)];
    let sides = crate::zio::Sides { offset: 0, len: 4096, versions };
    let mut runs = Vec::new();
    let moved = w.zio.write_sides(Txg(5), AllocClass::Normal, &sides, (0, 4096), &mut runs);
    w.env.block_on(moved).unwrap();
    let place = runs[0].dst + zilla_ondisk::label::VDEV_LABEL_START_SIZE;
    let at = |i: usize| w.env.block_on(w.devices[i].read(place, 4096)).unwrap();
    let (first, second) = (at(0), at(1));
    assert!(first[..] != second[..]);
    // Caches whose flush failed may have lost what they had taken.
    let lost = Bytes::from(vec![0; 4096]);
    for i in 0..2 {
        w.env.block_on(w.devices[i].write(place, lost.clone())).unwrap();
        w.tree.leaves[i].dtl.add(5, 6);
    }
    w.env.block_on(w.zio.resend_txg(Txg(5)));
    assert!(at(0)[..] == first[..] && at(1)[..] == second[..]);
    assert!(w.tree.leaves.iter().all(|l| !l.dtl.contains(5)), "they lack nothing");
    w.stable(5);
    w.env.block_on(w.devices[1].write(place, lost.clone())).unwrap();
    w.env.block_on(w.zio.resend_txg(Txg(5)));
    assert!(at(1)[..] == lost[..], "it is not kept for ever");
    w.stable(5);
}

/// It takes none when they are written, and by the time their txg is sent again it does.
#[test]
fn a_side_that_was_away_is_sent_one_of_those_that_differ() {
    let w = world(VdevKind::Mirror, 3, 9);
    let sides = crate::zio::Sides { offset: 0, len: 4096, versions: vec![noise(1, 4096), noise(2, 4096)] };
    let away = &w.tree.leaves[1];
    away.set_unusable(VdevState::CantOpen, VdevAux::None);
    let mut runs = Vec::new();
    let moved = w.zio.write_sides(Txg(5), AllocClass::Normal, &sides, (0, 4096), &mut runs);
    w.env.block_on(moved).unwrap();
    assert!(away.dtl.contains(5));
    w.env.block_on(w.zio.resend_txg(Txg(5)));
    assert!(away.dtl.contains(5), "it is still away");
    away.set_usable(true);
    w.env.block_on(w.zio.resend_txg(Txg(5)));
    let place = runs[0].dst + zilla_ondisk::label::VDEV_LABEL_START_SIZE;
    let at = |i: usize| w.env.block_on(w.devices[i].read(place, 4096)).unwrap();
    assert!(at(1)[..] == at(0)[..] || at(1)[..] == at(2)[..], "it is said to have it");
    assert!(!away.dtl.contains(5) && at(0)[..] != at(2)[..]);
    w.stable(5);
}

/// A header whose first child is itself, as no honest pool has one.
#[test]
fn a_gang_that_leads_to_itself_is_freed_in_the_end() {
    let w = world(VdevKind::File, 1, 9);
    let dva = Dva { vdev: 0, offset: 1 << 20, asize: 1024, gang: true };
    let mut bp = BlkPtr::ZERO;
    bp.set_dva(0, dva);
    bp.set_lsize(512);
    bp.set_psize(512);
    bp.set_compress(Compress::Off as u8);
    bp.set_checksum_kind(Checksum::Fletcher4 as u8);
    bp.set_byteorder(zilla_ondisk::ByteOrder::NATIVE);
    bp.set_births(5, 5);
    let mut header = vec![0; crate::types::GANG_HEADER_SIZE as usize];
    let own = bp.encode();
    header[..own.len()].copy_from_slice(&own);
    gang::seal(&mut header, &dva, Txg(5), gang::HeaderSum::Whole).unwrap();
    let place = dva.offset + zilla_ondisk::label::VDEV_LABEL_START_SIZE;
    w.env.block_on(w.devices[0].write(place, header.into())).unwrap();
    assert_eq!(w.env.block_on(w.zio.pieces(&bp)).unwrap(), [bp]);
    w.env.block_on(w.zio.free(Txg(6), &[bp])).unwrap();
    assert_eq!(w.bump.freed.lock().len(), gang::MAX_DEPTH + 2);
    assert!(w.env.block_on(w.zio.places(&bp)).is_err());
}

impl World {
    /// The pieces of a gang.
    fn pieces(&self, gang: &BlkPtr) -> Vec<BlkPtr> {
        let (dva, at) = (gang.dva(0), Bookmark::default());
        let found = self.zio.gang_children(&self.tree, gang, &dva, at, Priority::SyncRead, false);
        self.env.block_on(found).unwrap()
    }
}

#[test]
fn a_piece_of_a_gang_that_is_lost_is_the_block_s_loss_and_the_others_are_mended() {
    let w = world(VdevKind::Mirror, 2, 9);
    w.bump.largest.store(4096, Ordering::Relaxed);
    let mut r = req(noise(1, 8192), 0);
    r.copies = 2;
    let gang = w.write(5, vec![r])[0];
    w.stable(5);
    assert!(gang.is_gang() && gang.ndvas() > 1);
    let pieces = w.pieces(&gang);
    assert!(pieces.len() > 1);
    let spoil = |device: usize, piece: &BlkPtr| {
        for dva in piece.dvas() {
            let at = (4 << 20) + dva.offset;
            w.env.block_on(w.devices[device].write(at, noise(77, 512))).unwrap();
        }
    };
    // Each header leads to it, and it is counted once.
    let copies = pieces[1].ndvas();
    spoil(1, &pieces[1]);
    let s = w.env.block_on(w.zio.scrub(gang, Bookmark::default())).unwrap();
    assert_eq!((s.bad, s.repaired), (copies, copies));
    (0..2).for_each(|device| spoil(device, &pieces[0]));
    spoil(1, &pieces[1]);
    let e = w.env.block_on(w.zio.scrub(gang, Bookmark::default())).unwrap_err();
    assert!(matches!(e, Error::Corrupt(_)), "{e}");
    let s = w.env.block_on(w.zio.scrub(pieces[1], Bookmark::default())).unwrap();
    assert_eq!(s.bad, 0, "the other piece was mended");
}

#[test]
fn a_resilver_reads_gangs_whose_pieces_may_have_been_moved() {
    let gang = {
        let w = world(VdevKind::File, 1, 9);
        w.bump.largest.store(4096, Ordering::Relaxed);
        w.write(5, vec![req(noise(1, 8192), 0)])[0]
    };
    assert!(gang.is_gang());
    let env = real_env(2);
    let tops = vec![spec(VdevKind::File, 1, 9), spec(VdevKind::Mirror, 2, 9)];
    let config = PoolSpec { tops, ..PoolSpec::default() }.config(77, &*env.rng).unwrap();
    let devices: Vec<Arc<MemDevice>> = (0..3).map(|_| Arc::new(MemDevice::new(DEV))).collect();
    let w = open(env.clone(), &config, devices, &[0, 1, 2]);
    let mut nv = w.tree.to_edit();
    change::make_indirect(&mut nv, w.tree.tops[0].vdev.guid, 99, |_| {}).unwrap();
    let tree = w.tree.changed(&env, &nv).unwrap();
    // The header was moved in txg 6, before a device was away.
    let (from, len) = (gang.dva(0).offset, 512);
    let runs = vec![Run { src: from, len, vdev: 1, dst: 0 }];
    tree.tops[0].vdev.set_indirect(Some(Arc::new(Indirect::new(runs, vec![(from + len, 6)]).unwrap())));
    let leaf = tree.tops[1].leaves().next().unwrap();
    leaf.dtl.add(7, 8);
    tree.begin_resilver(10);
    assert!(leaf.resilvering.load(Ordering::Relaxed));
    assert!(tree.lacks(&gang));
    tree.not_resilvered(Some(&gang));
    assert!(leaf.refused.load(Ordering::Relaxed));
}
