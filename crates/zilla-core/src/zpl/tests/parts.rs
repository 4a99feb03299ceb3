//! Large files are freed in parts: no txg frees more pointers than a part has, whatever is done to
//! the file.

use super::super::*;
use super::world::CRED;
use crate::dmu::testing::{MemStore, props};
use crate::dmu::{DbufCache, Objset, PART};
use crate::txg::TxgState;
use crate::types::Txg;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use zilla_env::{Env, block_on, real_env};
use zilla_ondisk::BlkPtr;

const RECORD: u64 = 4096;
/// Bytes under an indirect block of level 1.
const STRETCH: u64 = RECORD << 10;
/// Such blocks in a part, and in the files of the tests.
const IN_PART: u64 = PART >> 10;
const STRETCHES: u64 = 5 * IN_PART / 2;
/// What a sync replaces besides: the levels above, the objects' own block, the root.
const BESIDES: u64 = 24;

#[derive(Default)]
struct Seen {
    /// The most blocks that a txg freed.
    most: AtomicU64,
    /// Whether all ends with the first txg that frees a part.
    crash: AtomicBool,
}

struct World {
    env: Env,
    store: Arc<MemStore>,
    cache: Arc<DbufCache>,
    txgs: Arc<TxgState>,
    zfs: Arc<Zfs>,
    seen: Arc<Seen>,
    root: Arc<parking_lot::Mutex<BlkPtr>>,
}

async fn keep_synced(
    os: Arc<Objset>,
    store: Arc<MemStore>,
    txgs: Arc<TxgState>,
    seen: Arc<Seen>,
    root: Arc<parking_lot::Mutex<BlkPtr>>,
) {
    while !txgs.is_stopped() {
        txgs.wait_for_work(Duration::from_secs(1)).await;
        let txg = txgs.quiesce().await;
        let before = *root.lock();
        let out = os.sync(txg, before).await.unwrap();
        store.free(&out.killed);
        let freed = out.killed.len() as u64;
        seen.most.fetch_max(freed, Ordering::Relaxed);
        *root.lock() = out.root;
        txgs.done(txg);
        if freed >= IN_PART && seen.crash.load(Ordering::Relaxed) {
            txgs.stop();
        }
    }
}

fn fs_props() -> FsProps {
    FsProps { recordsize: RECORD as u32, ..FsProps::default() }
}

impl World {
    fn new() -> World {
        let env = real_env(2);
        let store = Arc::new(MemStore::default());
        let cache = DbufCache::new(64 << 20);
        let objset = Objset::create(1, 2, store.clone(), cache.clone(), props());
        let txgs = TxgState::new(env.clone(), Txg(9));
        {
            let tx = block_on(txgs.assign()).unwrap();
            let zpl = ZplProps::new(CRED.uid, CRED.gid, Time::from_wall(env.wall()));
            block_on(create_fs(&objset, &tx, &zpl)).unwrap();
        }
        let zfs = Zfs::open(env.clone(), objset.clone(), Some(txgs.clone()), Arc::new(Unlimited), fs_props());
        let zfs = block_on(zfs).unwrap();
        let w =
            World { env, store, cache, txgs, zfs, seen: Arc::default(), root: Arc::new(BlkPtr::ZERO.into()) };
        w.start(&objset);
        w
    }

    fn start(&self, objset: &Arc<Objset>) {
        let (store, txgs) = (self.store.clone(), self.txgs.clone());
        self.env.spawn(keep_synced(objset.clone(), store, txgs, self.seen.clone(), self.root.clone()));
    }

    /// What a crash leaves, mounted again.
    fn reopen(self) -> World {
        self.txgs.stop();
        // Until the task that syncs has ended.
        while Arc::strong_count(&self.root) > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let World { env, store, cache, txgs, zfs, root, .. } = self;
        drop(zfs);
        let at = *root.lock();
        let objset = block_on(Objset::open(1, &at, store.clone(), cache.clone(), props())).unwrap();
        let txgs = TxgState::new(env.clone(), txgs.synced());
        let zfs = Zfs::open(env.clone(), objset.clone(), Some(txgs.clone()), Arc::new(Unlimited), fs_props());
        let zfs = block_on(zfs).unwrap();
        let w = World { env, store, cache, txgs, zfs, seen: Arc::default(), root };
        w.start(&objset);
        w
    }

    /// A file with a record in each of many stretches.
    fn large(&self, name: &str) -> u64 {
        block_on(async {
            let new = NewFile::new(S_IFREG | 0o644, CRED);
            let id = self.zfs.create(self.zfs.root(), name.as_bytes(), new).await.unwrap().0.id();
            for i in 0..STRETCHES {
                let byte = Bytes::from(vec![i as u8 | 1; 1]);
                self.zfs.write(id, i * STRETCH + STRETCH / 2, &byte, false).await.unwrap();
            }
            self.zfs.sync().await.unwrap();
            self.seen.most.store(0, Ordering::Relaxed);
            id
        })
    }

    fn freed_in_parts(&self) {
        let most = self.seen.most.load(Ordering::Relaxed);
        assert!(most <= 2 * IN_PART + BESIDES, "{most} blocks freed in a txg");
        assert!(most >= IN_PART, "{most} blocks freed in a txg");
    }
}

/// Waits until something is so.
fn until(mut so: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it never came to that");
}

#[test]
fn a_large_file_is_cut_and_punched_in_parts() {
    let w = World::new();
    let id = w.large("f");
    let whole = w.store.count();
    let end = STRETCHES * STRETCH;
    block_on(w.zfs.punch(id, STRETCH + 7, end, false, false)).unwrap();
    block_on(w.zfs.sync()).unwrap();
    w.freed_in_parts();
    let size = block_on(w.zfs.getattr(id)).unwrap().size;
    assert_eq!(size, (STRETCHES - 1) * STRETCH + STRETCH / 2 + 1, "a hole leaves the size");
    assert!(w.store.count() < whole - (2 * STRETCHES - 8) as usize, "one stretch is left");
    let id = w.large("g");
    let cut = SetAttr { size: Some(STRETCH / 2 + 1), ..SetAttr::default() };
    assert_eq!(block_on(w.zfs.setattr(id, cut)).unwrap().size, STRETCH / 2 + 1);
    block_on(w.zfs.sync()).unwrap();
    w.freed_in_parts();
    let tail = block_on(w.zfs.read(id, STRETCH / 2, 9)).unwrap();
    assert_eq!(tail.iter().flat_map(|b| b.to_vec()).collect::<Vec<_>>(), [1]);
}

/// What is written into a part that is freed already comes after it, and stays.
#[test]
fn a_write_between_two_parts_of_a_hole_stays() {
    let w = World::new();
    let id = w.large("f");
    let (at, data) = ((STRETCHES - 1) * STRETCH + STRETCH / 2, Bytes::from_static(&[9]));
    let first_part_is_gone = || block_on(w.zfs.read(id, at, 1)).unwrap().concat() == [0];
    // The second part waits for the txg of the first, which waits for this.
    let tx = block_on(w.txgs.assign()).unwrap();
    let zfs = w.zfs.clone();
    let punch = std::thread::spawn(move || {
        block_on(zfs.punch(id, STRETCH + 7, STRETCHES * STRETCH, false, false)).unwrap();
    });
    until(first_part_is_gone);
    block_on(w.zfs.write(id, at, &data, false)).unwrap();
    drop(tx);
    punch.join().unwrap();
    assert_eq!(block_on(w.zfs.read(id, at, 1)).unwrap().concat(), [9]);
}

/// Whoever runs the file while it is cut, or after a crash between two parts, runs it as himself.
#[test]
fn the_set_id_bits_go_with_the_first_part() {
    let w = World::new();
    for (name, cut) in [("f", true), ("g", false)] {
        let id = w.large(name);
        let chmod = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
        let old = block_on(w.zfs.setattr(id, chmod)).unwrap().size;
        // The second part waits for the txg of the first, which waits for this.
        let tx = block_on(w.txgs.assign()).unwrap();
        let zfs = w.zfs.clone();
        let change = std::thread::spawn(move || match cut {
            true => {
                let cut = SetAttr { size: Some(1), kill_suidgid: true, ..SetAttr::default() };
                block_on(zfs.setattr(id, cut)).map(drop).unwrap();
            }
            false => block_on(zfs.punch(id, STRETCH + 7, old, false, true)).unwrap(),
        });
        until(|| match cut {
            true => block_on(w.zfs.getattr(id)).unwrap().size < old,
            false => block_on(w.zfs.read(id, old - 1, 1)).unwrap().concat() == [0],
        });
        let between = block_on(w.zfs.getattr(id)).unwrap();
        drop(tx);
        change.join().unwrap();
        assert!(!cut || between.size > 1, "it was cut at once");
        assert_eq!(between.mode & 0o7777, 0o755, "{name}");
    }
}

#[test]
fn a_large_file_without_a_name_is_freed_in_parts_and_after_a_crash_from_there_on() {
    let mut w = World::new();
    for crash in [false, true] {
        block_on(w.zfs.sync()).unwrap();
        let before = w.store.count();
        w.large("f");
        w.seen.crash.store(crash, Ordering::Relaxed);
        block_on(w.zfs.unlink(w.zfs.root(), b"f")).unwrap();
        if crash {
            until(|| w.txgs.is_stopped());
            w = w.reopen();
            assert!(w.store.count() > before + IN_PART as usize, "some of it is left");
            assert_eq!(block_on(w.zfs.drain_unlinked()).unwrap(), 1);
        }
        until(|| {
            block_on(w.zfs.sync()).unwrap();
            w.store.count() <= before + 8
        });
        w.freed_in_parts();
        assert_eq!(block_on(w.zfs.drain_unlinked()).unwrap(), 0, "nothing is queued any more");
    }
}

#[test]
fn a_file_system_is_not_held_while_a_large_file_is_freed() {
    let w = World::new();
    w.large("f");
    let before = w.store.count();
    block_on(w.zfs.unlink(w.zfs.root(), b"f")).unwrap();
    let World { zfs, txgs, seen, store, .. } = w;
    let weak = Arc::downgrade(&zfs);
    drop(zfs);
    until(|| weak.upgrade().is_none());
    assert!(store.count() > before / 3, "it was held until all was freed");
    assert!(seen.most.load(Ordering::Relaxed) <= 2 * IN_PART + BESIDES);
    txgs.stop();
}
