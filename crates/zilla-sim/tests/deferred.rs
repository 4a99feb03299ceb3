//! Deferred copy-on-write faults, all orders of events: three txgs change one record, one of them
//! truncates or trims, while the reads that their changes put off, a reader's, and the syncs are
//! under way.
//!
//! A script is one change a txg. Events are: the next change (whose txg is closed behind it, and
//! its resolver begins), the start of the oldest closed txg's sync, the start of a reader, and the
//! completion of any read that the store has under way. Every order of events is run from the
//! beginning, against plain bytes: what a reader gets is what is there when it gets it, and what
//! each sync leaves on disk is what its txg ended with. The record lies below an indirect block
//! that is not in memory either.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use zilla_core::dmu::{DbufCache, Dnode, NewObject, Objset, Resolver, resident};
use zilla_core::error::Result;
use zilla_core::txg::Tx;
use zilla_core::types::{Bookmark, ObjectId, Txg};
use zilla_core::zio::{BlockStore, EarlyWrites, Priority, WriteReq};
use zilla_env::block_on;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::object_type::DMU_OT_PLAIN_FILE_CONTENTS;
use zilla_testkit::memory::{MemStore, props};

const BLK: u64 = 512;
/// Indirect blocks of 32 pointers.
const IBS: u8 = 12;
/// The record that all changes meet in. Another one follows it.
const RECORD: u64 = 40;
const AT: u64 = RECORD * BLK;
const END: u64 = AT + 2 * BLK;

/// A read under way.
#[derive(Default)]
struct Gate {
    at: BlkPtr,
    open: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

/// A store in memory whose reads take until they are let go.
#[derive(Default)]
struct Gated {
    inner: MemStore,
    shut: AtomicBool,
    waiting: Mutex<Vec<Arc<Gate>>>,
}

impl Gated {
    fn let_go(&self, i: usize) {
        let gate = self.waiting.lock().remove(i);
        gate.open.store(true, Ordering::Relaxed);
        gate.wakers.lock().drain(..).for_each(Waker::wake);
    }
}

impl Gated {
    /// Level and offset of the reads under way, in the order in which they were asked for.
    fn under_way(&self) -> Vec<(u8, u64)> {
        self.waiting.lock().iter().map(|g| (g.at.level(), g.at.dva(0).offset)).collect()
    }

    fn let_all_go(&self) {
        while !self.waiting.lock().is_empty() {
            self.let_go(0);
        }
    }
}

impl BlockStore for Gated {
    fn cached(&self, _: &BlkPtr, _: u64) -> Option<Bytes> {
        None
    }

    fn read(&self, bp: BlkPtr, bookmark: Bookmark, prio: Priority) -> BoxFuture<'_, Result<Bytes>> {
        // What is on disk when the read begins: its space is given to nobody else while it lasts.
        let data = block_on(self.inner.read(bp, bookmark, prio));
        if !self.shut.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(data));
        }
        let mut waiting = self.waiting.lock();
        // Reads of one block share one I/O, as a pool's do.
        let shared = waiting.iter().find(|g| g.at == bp).cloned();
        let gate = shared.unwrap_or_else(|| {
            let gate = Arc::new(Gate { at: bp, ..Gate::default() });
            waiting.push(gate.clone());
            gate
        });
        Box::pin(async move {
            std::future::poll_fn(|cx| {
                if gate.open.load(Ordering::Relaxed) {
                    return Poll::Ready(());
                }
                gate.wakers.lock().push(cx.waker().clone());
                Poll::Pending
            })
            .await;
            data
        })
    }

    fn write(&self, txg: Txg, reqs: Vec<WriteReq>) -> BoxFuture<'_, Result<Vec<BlkPtr>>> {
        self.inner.write(txg, reqs)
    }

    fn write_ahead(
        &self,
        txg: Txg,
        reqs: Vec<WriteReq>,
    ) -> BoxFuture<'_, (Vec<Option<BlkPtr>>, EarlyWrites)> {
        self.inner.write_ahead(txg, reqs)
    }

    fn dsize(&self, bp: &BlkPtr) -> u64 {
        self.inner.dsize(bp)
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls until it waits for a read.
fn advance<T>(task: &mut BoxFuture<'_, T>) -> Option<T> {
    let flag = Arc::new(Flag(AtomicBool::new(true)));
    let waker = Waker::from(flag.clone());
    while flag.0.swap(false, Ordering::Relaxed) {
        if let Poll::Ready(out) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(out);
        }
    }
    None
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Nothing,
    Write(u64, u64),
    All,
    /// All that lies behind, in the record.
    Truncate(u64),
    /// So much from there on.
    Free(u64, u64),
}
use Change::*;

const FIRST: [Change; 3] = [Write(0, 100), Write(300, 212), All];
const SECOND: [Change; 6] = [Truncate(200), Truncate(0), Free(0, BLK), Free(150, 50), Write(120, 60), All];
const THIRD: [Change; 5] = [Write(0, 100), Write(300, 212), All, Truncate(50), Nothing];

struct World {
    store: Arc<Gated>,
    cache: Arc<DbufCache>,
    objset: Arc<Objset>,
    dn: Arc<Dnode>,
    root: BlkPtr,
    txg: Txg,
    script: VecDeque<Change>,
    now: Vec<u8>,
    closed: VecDeque<(Txg, Vec<u8>)>,
    sync: Option<(BoxFuture<'static, Result<zilla_core::dmu::ObjsetSync>>, Vec<u8>)>,
    resolvers: Vec<BoxFuture<'static, ()>>,
    reader: Option<BoxFuture<'static, Vec<u8>>>,
    has_read: bool,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Change,
    Sync,
    Read,
    Done(usize),
}

impl World {
    fn new(script: &[Change]) -> World {
        let (store, cache) = (Arc::new(Gated::default()), DbufCache::new(64 << 20));
        let objset = Objset::create(1, 2, store.clone(), cache.clone(), props());
        let tx = Tx::syncing(Txg(10));
        let spec = NewObject { indblkshift: IBS, ..NewObject::new(DMU_OT_PLAIN_FILE_CONTENTS, BLK as u32) };
        let dn = block_on(resident(|| objset.alloc(&tx, spec))).unwrap();
        let mut now = vec![0; END as usize];
        now[AT as usize..].fill(b'0');
        dn.write(&tx, AT, &now[AT as usize..]);
        let id = dn.id();
        let out = block_on(objset.sync(Txg(10), BlkPtr::ZERO)).unwrap();
        drop((dn, objset));
        let (objset, dn) = World::open(&store, &cache, &out.root, id);
        store.shut.store(true, Ordering::Relaxed);
        World {
            store,
            cache,
            objset,
            dn,
            root: out.root,
            txg: Txg(11),
            script: script.iter().copied().collect(),
            now,
            closed: VecDeque::new(),
            sync: None,
            resolvers: Vec::new(),
            reader: None,
            has_read: false,
        }
    }

    fn open(
        store: &Arc<Gated>,
        cache: &Arc<DbufCache>,
        root: &BlkPtr,
        id: ObjectId,
    ) -> (Arc<Objset>, Arc<Dnode>) {
        let os = block_on(Objset::open(1, root, store.clone(), cache.clone(), props())).unwrap();
        let dn = block_on(resident(|| os.hold(id))).unwrap();
        (os, dn)
    }

    /// What may happen next.
    fn events(&self) -> Vec<Event> {
        let mut out = Vec::new();
        if !self.script.is_empty() && self.closed.len() + usize::from(self.sync.is_some()) < 2 {
            out.push(Event::Change);
        }
        if self.sync.is_none() && !self.closed.is_empty() {
            out.push(Event::Sync);
        }
        if !self.has_read {
            out.push(Event::Read);
        }
        out.extend((0..self.store.waiting.lock().len()).map(Event::Done));
        out
    }

    fn change(&mut self, change: Change) {
        let (dn, tx) = (&self.dn, Tx::syncing(self.txg));
        let at = AT as usize;
        // Each txg writes bytes of its own.
        let byte = b'a' + (self.txg.0 - 11) as u8;
        match change {
            Nothing => {}
            Write(off, len) => {
                dn.write(&tx, AT + off, &vec![byte; len as usize]);
                self.now[at + off as usize..at + (off + len) as usize].fill(byte);
            }
            All => {
                dn.write_block(&tx, RECORD, vec![byte; BLK as usize].into());
                self.now[at..at + BLK as usize].fill(byte);
            }
            Truncate(off) => {
                dn.free_range(&tx, AT + off, u64::MAX);
                self.now[at + off as usize..].fill(0);
            }
            Free(off, len) => {
                dn.free_range(&tx, AT + off, len);
                self.now[at + off as usize..at + (off + len) as usize].fill(0);
            }
        }
        self.close();
    }

    /// Closes the open txg.
    fn close(&mut self) {
        let mut resolver = Resolver::new(self.txg);
        resolver.gather(&self.objset);
        self.resolvers.push(Box::pin(resolver.run()));
        self.closed.push_back((self.txg, self.now.clone()));
        self.txg = self.txg.next();
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Change => {
                let change = self.script.pop_front().unwrap();
                self.change(change);
            }
            Event::Sync => {
                let (txg, contents) = self.closed.pop_front().unwrap();
                let (os, root) = (self.objset.clone(), self.root);
                self.sync = Some((Box::pin(async move { os.sync(txg, root).await }), contents));
            }
            Event::Read => {
                self.has_read = true;
                let dn = self.dn.clone();
                self.reader = Some(Box::pin(async move {
                    let mut out = vec![0xee; (END - AT) as usize];
                    dn.read_wait(AT, &mut out).await.unwrap();
                    out
                }));
            }
            Event::Done(i) => self.store.let_go(i),
        }
        self.settle();
    }

    /// Lets everything go on that does not wait for a read.
    fn settle(&mut self) {
        self.resolvers.retain_mut(|r| advance(r).is_none());
        if let Some(out) = self.reader.as_mut().and_then(advance) {
            self.reader = None;
            assert_eq!(out, self.now[AT as usize..], "what a reader gets");
        }
        let Some((sync, _)) = &mut self.sync else { return };
        let Some(out) = advance(sync) else { return };
        let (_, contents) = self.sync.take().unwrap();
        let out = out.unwrap();
        self.store.inner.free(&out.killed);
        self.root = out.root;
        self.check_disk(&contents);
    }

    fn check_disk(&self, contents: &[u8]) {
        let shut = self.store.shut.swap(false, Ordering::Relaxed);
        let (_os, dn) = World::open(&self.store, &DbufCache::new(1 << 20), &self.root, self.dn.id());
        let mut out = vec![0xee; contents.len()];
        block_on(dn.read_wait(0, &mut out)).unwrap();
        assert!(out == contents, "what a sync leaves on disk");
        self.store.shut.store(shut, Ordering::Relaxed);
    }

    fn check_end(&self) {
        let mut out = vec![0xee; self.now.len() - AT as usize];
        self.store.shut.store(false, Ordering::Relaxed);
        block_on(self.dn.read_wait(AT, &mut out)).unwrap();
        assert_eq!(out, self.now[AT as usize..], "what is there at the end");
        let c = self.cache.faults.get();
        let all = c.avoided + c.resolved_early + c.resolved_by_sync + c.failed;
        assert_eq!((c.deferred, c.failed), (all, 0), "each fault has one fate: {c:?}");
    }
}

/// Runs all orders of a script's events; how many there are.
fn explore(script: &[Change]) -> u64 {
    let mut path: Vec<(usize, usize)> = Vec::new();
    let mut runs = 0;
    loop {
        let mut world = World::new(script);
        let mut taken = Vec::new();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut at = 0;
            loop {
                let events = world.events();
                if events.is_empty() {
                    break;
                }
                if at == path.len() {
                    path.push((0, events.len()));
                }
                let event = events[path[at].0];
                taken.push(event);
                world.step(event);
                at += 1;
            }
            assert!(world.sync.is_none() && world.reader.is_none(), "somebody waits for nothing");
            world.check_end();
        }));
        if let Err(panic) = outcome {
            eprintln!("script {script:?}, events {taken:?}");
            std::panic::resume_unwind(panic);
        }
        runs += 1;
        while let Some((choice, of)) = path.last_mut() {
            *choice += 1;
            if choice < of {
                break;
            }
            path.pop();
        }
        if path.is_empty() {
            return runs;
        }
    }
}

#[test]
fn in_every_order_of_events_three_txgs_leave_what_they_wrote() {
    // All scripts take minutes; a few are enough for every change, and each change is in one of
    // them.
    let all = std::env::var_os("ZILLA_DEFERRED_ALL").is_some();
    let (mut runs, mut at) = (0, 0u32);
    for first in FIRST {
        for second in SECOND {
            for third in THIRD {
                at += 1;
                if all || at.is_multiple_of(13) {
                    runs += explore(&[first, second, third]);
                }
            }
        }
    }
    println!("{runs} orders of events");
    assert!(runs > if all { 10_000 } else { 100 }, "only {runs} orders");
}

/// Records of an object that lie on disk in another order than in the object, under two indirect
/// blocks.
const SCATTERED: [u64; 6] = [70, 72, 40, 44, 71, 41];

impl World {
    /// The same, with [`SCATTERED`] written in this order, one a txg, and nothing of it in memory.
    fn scattered() -> World {
        let mut w = World::new(&[]);
        w.store.shut.store(false, Ordering::Relaxed);
        for blkid in SCATTERED {
            w.write(blkid, 0, BLK, b'1');
            w.close();
            w.sync_all();
        }
        let id = w.dn.id();
        w.cache = DbufCache::new(64 << 20);
        (w.objset, w.dn) = World::open(&w.store, &w.cache, &w.root, id);
        w.store.shut.store(true, Ordering::Relaxed);
        w
    }

    fn write(&mut self, blkid: u64, off: u64, len: u64, byte: u8) {
        let at = (blkid * BLK + off) as usize;
        self.now.resize(self.now.len().max((blkid + 1) as usize * BLK as usize), 0);
        self.dn.write(&Tx::syncing(self.txg), at as u64, &vec![byte; len as usize]);
        self.now[at..at + len as usize].fill(byte);
    }

    /// Syncs what is closed, with all reads done at once.
    fn sync_all(&mut self) {
        while self.sync.is_some() || !self.closed.is_empty() {
            if self.sync.is_none() {
                self.step(Event::Sync);
            }
            self.store.let_all_go();
            self.settle();
        }
    }
}

#[test]
fn what_a_closed_txg_lacks_is_read_at_once_in_the_order_of_the_disk() {
    let mut w = World::scattered();
    let mut sorted = SCATTERED;
    sorted.sort_unstable();
    for blkid in sorted {
        w.write(blkid, 100, 50, b'2');
    }
    assert!(w.store.under_way().is_empty(), "a write reads nothing");
    w.close();
    w.settle();
    let levels: Vec<u8> = w.store.under_way().iter().map(|r| r.0).collect();
    assert_eq!(levels, [1, 1], "first what leads to them, both at once");
    w.store.let_all_go();
    w.settle();
    let reads = w.store.under_way();
    assert_eq!(reads.len(), SCATTERED.len(), "then all records at once: {reads:?}");
    assert!(reads.iter().all(|r| r.0 == 0) && reads.is_sorted(), "in the order of the disk: {reads:?}");
    w.store.let_all_go();
    w.settle();
    w.step(Event::Sync);
    assert!(w.sync.is_none(), "the sync waits for nothing");
    let c = w.cache.faults.get();
    assert_eq!((c.deferred, c.resolved_early), (6, 6), "{c:?}");
    w.check_end();
}

#[test]
fn a_sync_writes_what_is_complete_while_others_are_read() {
    let mut w = World::scattered();
    w.write(40, 0, 10, b'2');
    w.write(41, 0, 256, b'3');
    w.write(41, 256, 256, b'4');
    w.write(44, 0, BLK, b'5');
    w.close();
    w.settle();
    w.store.let_all_go();
    w.settle();
    assert_eq!(w.store.under_way().len(), 1, "one record lacks something");
    let before = w.store.inner.writes.load(Ordering::Relaxed);
    w.step(Event::Sync);
    let written = w.store.inner.writes.load(Ordering::Relaxed) - before;
    assert!(w.sync.is_some() && written == 2, "{written} records are written");
    w.sync_all();
    let c = w.cache.faults.get();
    assert_eq!((c.deferred, c.avoided, c.resolved_by_sync), (2, 1, 1), "{c:?}");
    assert_eq!(c.bytes_not_read, BLK);
    w.check_end();
}

#[test]
fn a_record_that_an_older_txg_brings_is_not_read_again() {
    let mut w = World::scattered();
    w.write(40, 0, 10, b'2');
    w.close();
    w.write(40, 20, 10, b'3');
    w.close();
    w.settle();
    w.store.let_all_go();
    w.settle();
    assert_eq!(w.store.under_way().len(), 1, "the older txg's fault is the only one");
    w.sync_all();
    let c = w.cache.faults.get();
    assert_eq!((c.deferred, c.resolved_by_sync + c.resolved_early), (1, 1), "{c:?}");
    w.check_end();
}
