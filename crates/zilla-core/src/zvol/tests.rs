//! A volume against a plain byte array, on a store in memory, with syncs between and in the middle
//! of its operations.

use super::*;
use crate::dmu::testing::{MemStore, props};
use crate::dmu::{DbufCache, Objset, ObjsetSync};
use crate::error::{Errno, Result};
use crate::txg::TxgState;
use crate::types::Txg;
use crate::zpl::Unlimited;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use proptest::prelude::*;
use std::sync::Arc;
use zilla_env::{Env, block_on, real_env};
use zilla_ondisk::BlkPtr;
use zilla_ondisk::enums::ObjsetType;

const BLK: u64 = 4096;
/// The largest size a volume gets here, in blocks.
const BLOCKS: u64 = 24;

struct World {
    env: Env,
    store: Arc<MemStore>,
    cache: Arc<DbufCache>,
    root: BlkPtr,
    txgs: Arc<TxgState>,
    zvol: Arc<Zvol>,
    syncing: Option<(Txg, BoxFuture<'static, Result<ObjsetSync>>)>,
    /// The most blocks that a txg freed.
    most: usize,
}

fn env() -> Env {
    static ENV: std::sync::OnceLock<Env> = std::sync::OnceLock::new();
    ENV.get_or_init(|| real_env(1)).clone()
}

impl World {
    fn new(size: u64) -> World {
        let (env, store, cache) = (env(), Arc::new(MemStore::default()), DbufCache::new(64 << 20));
        let objset = Objset::create(1, ObjsetType::Zvol.number(), store.clone(), cache.clone(), props());
        let txgs = TxgState::new(env.clone(), Txg(9));
        let tx = block_on(txgs.assign()).unwrap();
        block_on(super::create::fill(&objset, &tx, size, BLK as u32)).unwrap();
        drop(tx);
        let zvol = World::open(&env, &objset, &txgs);
        let mut w = World { env, store, cache, root: BlkPtr::ZERO, txgs, zvol, syncing: None, most: 0 };
        w.sync();
        w
    }

    fn open(env: &Env, objset: &Arc<Objset>, txgs: &Arc<TxgState>) -> Arc<Zvol> {
        let (space, props) = (Arc::new(Unlimited), VolumeProps::default());
        block_on(Zvol::open(env.clone(), objset.clone(), Some(txgs.clone()), space, props)).unwrap()
    }

    fn start_sync(&mut self) {
        if self.syncing.is_none() {
            let txg = block_on(self.txgs.quiesce());
            let (objset, root) = (self.zvol.objset().clone(), self.root);
            self.syncing = Some((txg, async move { objset.sync(txg, root).await }.boxed()));
        }
    }

    fn step(&mut self) {
        let Some((txg, sync)) = &mut self.syncing else { return };
        let Some(out) = sync.now_or_never() else { return };
        let (txg, out) = (*txg, out.unwrap());
        self.syncing = None;
        self.store.free(&out.killed);
        self.most = self.most.max(out.killed.len());
        self.root = out.root;
        self.txgs.done(txg);
    }

    fn finish_sync(&mut self) {
        while self.syncing.is_some() {
            self.step();
        }
    }

    fn sync(&mut self) {
        self.finish_sync();
        self.start_sync();
        self.finish_sync();
    }

    /// Opens what the last sync left, from disk.
    fn reopen(&mut self) {
        self.sync();
        let store: Arc<dyn crate::zio::BlockStore> = self.store.clone();
        let objset = block_on(Objset::open(1, &self.root, store, self.cache.clone(), props())).unwrap();
        self.zvol = World::open(&self.env, &objset, &self.txgs);
    }

    fn read(&self, off: u64, len: u64) -> Vec<u8> {
        block_on(self.zvol.read(off, len as usize)).unwrap().concat()
    }

    /// While a change waits for its txg, syncs go on.
    fn driven(&mut self, mut change: BoxFuture<'_, Result<()>>) -> Result<()> {
        self.finish_sync();
        loop {
            if let Some(done) = (&mut change).now_or_never() {
                return done;
            }
            self.sync();
        }
    }

    fn set_size(&mut self, size: u64) {
        let zvol = self.zvol.clone();
        self.driven(async move { zvol.set_size(size).await }.boxed()).unwrap();
    }

    fn flush(&mut self) -> Result<()> {
        let zvol = self.zvol.clone();
        self.driven(async move { zvol.flush().await }.boxed())
    }

    fn commit(&mut self) -> Result<()> {
        let zvol = self.zvol.clone();
        self.driven(async move { zvol.commit().await }.boxed())
    }

    /// Makes blocks unreadable where they are now; nothing of them is in memory then.
    fn damage(&mut self, blocks: std::ops::Range<u64>) {
        for b in blocks {
            let bp = block_on(crate::dmu::resident(|| self.zvol.data.block_pointer(b))).unwrap().unwrap();
            self.store.set_unreadable(bp.dva(0).offset, true);
        }
        self.reopen();
    }

    /// A block in each of many stretches.
    fn scatter(&mut self) {
        for i in 0..STRETCHES {
            let data = [Bytes::from_static(&[7; BLK as usize])];
            block_on(self.zvol.write(i * STRETCH + BLK, &data)).unwrap();
        }
        self.sync();
        self.most = 0;
    }
}

/// Bytes under an indirect block of level 1, such blocks in a part, and in a test's volume.
const STRETCH: u64 = BLK << 10;
const IN_PART: u64 = crate::dmu::PART >> 10;
const STRETCHES: u64 = 5 * IN_PART / 2;

/// No txg frees more pointers than a part has, whatever is done to the volume.
#[test]
fn a_large_volume_is_freed_in_parts() {
    let size = STRETCHES * STRETCH;
    let mut w = World::new(size);
    // What a sync replaces besides: the levels above, the objects' own block, the root.
    let in_part = IN_PART as usize..2 * IN_PART as usize + 24;
    w.scatter();
    let (before, zvol) = (w.store.count(), w.zvol.clone());
    w.driven(async move { zvol.trim(0, size).await }.boxed()).unwrap();
    w.sync();
    assert!(in_part.contains(&w.most), "{} blocks freed in a txg", w.most);
    assert!(w.store.count() < before - 2 * STRETCHES as usize + 16);

    w.scatter();
    w.set_size(STRETCH);
    w.sync();
    assert!(in_part.contains(&w.most), "{} blocks freed in a txg", w.most);
    assert!(w.store.count() < before - 2 * STRETCHES as usize + 32);
    assert_eq!(w.read(BLK, BLK), [7; BLK as usize]);
    w.set_size(size);
    assert_eq!(w.read(2 * STRETCH + BLK, BLK), [0; BLK as usize]);
}

#[test]
fn a_volume_that_was_cut_in_part_before_a_crash_grows_by_zeroes() {
    let size = STRETCHES * STRETCH;
    let mut w = World::new(size);
    w.scatter();
    let zvol = w.zvol.clone();
    let mut change = async move { zvol.set_size(STRETCH).await }.boxed();
    while w.most < IN_PART as usize {
        assert!((&mut change).now_or_never().is_none(), "all of it is freed at once");
        w.sync();
    }
    drop(change);
    let root = w.root;
    let store: Arc<dyn crate::zio::BlockStore> = w.store.clone();
    let objset = block_on(Objset::open(1, &root, store, w.cache.clone(), props())).unwrap();
    w.zvol = World::open(&w.env, &objset, &w.txgs);
    assert_eq!(w.zvol.size(), STRETCH);
    let left = w.store.count();
    w.set_size(size);
    w.sync();
    assert!(w.store.count() < left, "what was left is freed");
    for i in 1..STRETCHES {
        assert_eq!(w.read(i * STRETCH + BLK, BLK), [0; BLK as usize], "stretch {i}");
    }
    assert_eq!(w.read(BLK, BLK), [7; BLK as usize]);
}

/// A write into a block that cannot be read: whoever flushes is told that it is not on disk, also
/// where it is lost for good.
#[test]
fn a_flush_says_what_cannot_be_put_on_disk() {
    // Twice as much as is held of an objset in memory.
    let blocks = (16 << 20) / BLK;
    let mut w = World::new(blocks * BLK);
    let all = [Bytes::from(vec![7; (blocks * BLK) as usize])];
    block_on(w.zvol.write(0, &all)).unwrap();
    w.sync();
    w.damage(3..4);
    block_on(w.zvol.write(3 * BLK + 100, &[Bytes::from_static(&[8; 10])])).unwrap();
    assert!(w.flush().unwrap_err().is(Errno::Io));
    assert_eq!(w.read(3 * BLK + 100, 10), [8; 10]);
    assert!(w.flush().unwrap_err().is(Errno::Io), "it is held still");
    // It is none of those who made something else stable.
    block_on(w.zvol.write(9 * BLK, &[Bytes::from_static(&[6; 10])])).unwrap();
    w.commit().unwrap();
    block_on(w.zvol.write(3 * BLK, &[Bytes::from(vec![9; BLK as usize])])).unwrap();
    w.flush().unwrap();

    w.damage(0..blocks);
    let half = [Bytes::from(vec![8; BLK as usize / 2])];
    for b in 0..blocks {
        block_on(w.zvol.write(b * BLK, &half)).unwrap();
    }
    assert!(w.flush().unwrap_err().is(Errno::Io));
    // All that is held is written whole, and what is lost not yet.
    block_on(w.zvol.write(BLK, &[all[0].slice(BLK as usize..)])).unwrap();
    assert!(w.flush().unwrap_err().is(Errno::Io), "the first block is neither");
    block_on(w.zvol.write(0, &[all[0].slice(..BLK as usize)])).unwrap();
    w.flush().unwrap();
}

/// One grows and waits for its txg, the other shrinks meanwhile: the size in memory is that on
/// disk.
#[test]
fn two_changes_of_the_size_at_once_leave_one_size() {
    let mut w = World::new(4 * BLK);
    let (a, b) = (w.zvol.clone(), w.zvol.clone());
    let both = async move {
        let (grown, cut) = futures_util::future::join(a.set_size(8 * BLK), b.set_size(2 * BLK)).await;
        grown.and(cut)
    };
    w.driven(both.boxed()).unwrap();
    let size = w.zvol.size();
    w.reopen();
    assert_eq!(size, w.zvol.size(), "in memory and on disk");
    assert_eq!(size, 2 * BLK, "the last one counts");
}

#[derive(Clone, Debug)]
enum Op {
    /// In so many buffers.
    Write(u64, u64, u8, usize),
    Free(u64, u64),
    Trim(u64, u64),
    Resize(u64),
    Read(u64, u64),
    StartSync,
    Step,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0..BLOCKS * BLK, 1..5 * BLK);
    let aligned = || (0..BLOCKS, 1..4u64).prop_map(|(b, n)| (b * BLK, n * BLK));
    prop_oneof![
        4 => (range(), 1..255u8, 1..4usize).prop_map(|((o, l), v, n)| Op::Write(o, l, v, n)),
        3 => (aligned(), 1..255u8, 1..4usize).prop_map(|((o, l), v, n)| Op::Write(o, l, v, n)),
        3 => range().prop_map(|(o, l)| Op::Free(o, l)),
        1 => range().prop_map(|(o, l)| Op::Trim(o, l)),
        1 => (1..=BLOCKS).prop_map(|b| Op::Resize(b * BLK)),
        4 => range().prop_map(|(o, l)| Op::Read(o, l)),
        3 => Just(Op::StartSync),
        6 => Just(Op::Step),
        1 => Just(Op::Reopen),
    ]
}

/// A buffer cut into about `n` parts.
fn cut(data: Vec<u8>, n: usize) -> Vec<Bytes> {
    let (data, part) = (Bytes::from(data), 700 * n);
    (0..data.len()).step_by(part).map(|i| data.slice(i..(i + part).min(data.len()))).collect()
}

fn check(ops: Vec<Op>) {
    let mut w = World::new(BLOCKS / 2 * BLK);
    let mut model = vec![0u8; (BLOCKS / 2 * BLK) as usize];
    for (i, op) in ops.into_iter().enumerate() {
        let size = model.len() as u64;
        let within = |off: u64, len: u64| (off.min(size), len.min(size - off.min(size)));
        match op {
            Op::Write(off, len, v, n) => {
                let (off, len) = within(off, len);
                let data: Vec<u8> = (0..len).map(|k| v ^ k as u8 ^ i as u8).collect();
                model[off as usize..(off + len) as usize].copy_from_slice(&data);
                block_on(w.zvol.write(off, &cut(data, n))).unwrap();
            }
            Op::Free(off, len) => {
                let (off, len) = within(off, len);
                model[off as usize..(off + len) as usize].fill(0);
                block_on(w.zvol.free(off, len)).unwrap();
            }
            Op::Trim(off, len) => {
                let (off, len) = within(off, len);
                let (from, to) = (off.next_multiple_of(BLK), (off + len) / BLK * BLK);
                if from < to {
                    model[from as usize..to as usize].fill(0);
                }
                block_on(w.zvol.trim(off, len)).unwrap();
            }
            Op::Resize(to) => {
                model.resize(to as usize, 0);
                w.set_size(to);
                assert_eq!(w.zvol.size(), to);
            }
            Op::Read(off, len) => {
                let (off, len) = within(off, len);
                let got = w.read(off, len);
                assert!(got == model[off as usize..(off + len) as usize], "{len} bytes at {off}");
            }
            Op::StartSync => w.start_sync(),
            Op::Step => w.step(),
            Op::Reopen => w.reopen(),
        }
    }
    w.reopen();
    assert_eq!(w.zvol.size(), model.len() as u64);
    let got = w.read(0, model.len() as u64);
    assert!(got == model, "after the last sync");
    // A hole reads as zeroes, and extents are all of the volume.
    let (mut at, all) = (0, block_on(w.zvol.extents(0, model.len() as u64)).unwrap());
    for (len, hole) in all {
        let part = &model[at as usize..(at + len) as usize];
        assert!(!hole || part.iter().all(|b| *b == 0), "{len} bytes at {at} are no hole");
        at += len;
    }
    assert_eq!(at, model.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn behaves_as_an_array_of_bytes(ops in prop::collection::vec(op(), 1..60)) {
        check(ops);
    }
}

#[test]
fn nothing_beyond_the_end_is_read_or_written() {
    let mut w = World::new(4 * BLK);
    let data = [Bytes::from(vec![1; 512])];
    let errno = |r: Result<()>| match r {
        Err(crate::error::Error::Os { errno, .. }) => Some(errno),
        _ => None,
    };
    for off in [4 * BLK, 4 * BLK - 511, u64::MAX - 100] {
        assert_eq!(errno(block_on(w.zvol.write(off, &data))), Some(Errno::NoSpc));
        assert_eq!(errno(block_on(w.zvol.free(off, 512))), Some(Errno::NoSpc));
        assert_eq!(errno(block_on(w.zvol.trim(off, 512))), Some(Errno::NoSpc));
        assert_eq!(errno(block_on(w.zvol.read(off, 512)).map(drop)), Some(Errno::Inval));
        assert_eq!(errno(block_on(w.zvol.extents(off, 512)).map(drop)), Some(Errno::Inval));
    }
    for bad in [0, BLK / 2, BLK + 1, 1 << 63] {
        assert!(block_on(w.zvol.set_size(bad)).is_err(), "{bad}");
    }
    block_on(w.zvol.write(4 * BLK - 512, &data)).unwrap();
    w.set_size(3 * BLK);
    w.set_size(4 * BLK);
    assert!(w.read(0, 4 * BLK).iter().all(|b| *b == 0), "what was cut off is gone");
}

#[test]
fn a_read_only_volume_refuses_changes() {
    let w = World::new(4 * BLK);
    w.zvol.set_props(VolumeProps { readonly: true, ..VolumeProps::default() });
    assert!(w.zvol.is_readonly());
    let refused = |r: Result<()>| assert!(r.is_err_and(|e| e.is(Errno::ROFs)));
    refused(block_on(w.zvol.write(0, &[Bytes::from_static(b"x")])));
    refused(block_on(w.zvol.free(0, BLK)));
    refused(block_on(w.zvol.trim(0, BLK)));
    refused(block_on(w.zvol.set_size(8 * BLK)));
    assert_eq!(w.read(0, 4).len(), 4);
}

#[test]
fn a_trim_of_much_reads_nothing() {
    let mut w = World::new(BLOCKS * BLK);
    block_on(w.zvol.write(0, &[Bytes::from(vec![7; (BLOCKS * BLK) as usize])])).unwrap();
    w.reopen();
    let before = w.store.reads.load(std::sync::atomic::Ordering::Relaxed);
    block_on(w.zvol.trim(0, BLOCKS * BLK)).unwrap();
    let reads = w.store.reads.load(std::sync::atomic::Ordering::Relaxed) - before;
    assert_eq!(reads, 0);
    w.sync();
    assert!(w.read(0, BLOCKS * BLK).iter().all(|b| *b == 0));
}

#[test]
fn reservations_are_those_of_openzfs() {
    // A RAID-Z: disks, how many of them hold parity, log2 of the sector size.
    let resv = |size, block_size, copies, raidz: &[(u64, u64, u32)]| {
        let asize = |psize, &(disks, parity, shift): &(u64, u64, u32)| {
            crate::vdev::raidz::psize_to_asize(psize, shift, disks, parity)
        };
        let asizes = raidz.iter().map(|v| (asize(block_size, v), asize(128 << 10, v))).collect();
        volsize_to_reservation(&Resv { size, block_size, copies, asizes })
    };
    // Whoever asks what a volume would take may say any numbers.
    assert_eq!(resv(u64::MAX, 512, u64::MAX, &[]), u64::MAX);
    // What `zfs create -V 6m` reserved on a pool of one disk (OpenZFS 2.3.9).
    assert_eq!(resv(6 << 20, 16 << 10, 1, &[]), 8_388_608);
    // Two levels of indirect blocks, twice each, and seven of the meta-dnode: 64 + 1 + 7.
    assert_eq!(resv(1 << 30, 16 << 10, 1, &[]), (1 << 30) + 72 * 2 * (128 << 10));
    assert_eq!(resv(1 << 30, 16 << 10, 3, &[]), (3 << 30) + 72 * 3 * (128 << 10));
    // RAID-Z1 of 3 disks of 4K sectors: 8K takes 16K (2 of data, 1 of parity, 1 of padding), 128K
    // takes 192K.
    assert_eq!(resv(1 << 30, 8 << 10, 1, &[(3, 1, 12)]), (1 << 30) / 3 * 4 + 1 + 136 * 2 * (128 << 10));
}
