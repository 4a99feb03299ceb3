//! A file system on a store in memory, synced step by step between the operations.

use super::super::*;
use crate::dmu::testing::{MemStore, props};
use crate::dmu::{DbufCache, Objset, ObjsetSync, resident};
use crate::error::Result;
use crate::txg::TxgState;
use crate::types::{ObjectId, Txg};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use zilla_env::{Env, block_on, real_env};
use zilla_ondisk::BlkPtr;

pub(super) struct World {
    pub(super) env: Env,
    store: Arc<MemStore>,
    pub(super) cache: Arc<DbufCache>,
    pub(super) objset: Arc<Objset>,
    pub(super) root: BlkPtr,
    pub(super) txgs: Arc<TxgState>,
    pub(super) zfs: Arc<Zfs>,
    pub(super) props: FsProps,
    syncing: Option<(Txg, BoxFuture<'static, Result<ObjsetSync>>)>,
}

pub(super) const CRED: Cred = Cred { uid: 1000, gid: 100 };

/// One environment for all cases: its threads are only there for what an operation leaves to a
/// task.
fn env() -> Env {
    static ENV: std::sync::OnceLock<Env> = std::sync::OnceLock::new();
    ENV.get_or_init(|| real_env(1)).clone()
}

impl World {
    pub(super) fn new(version: u64, props_of_fs: FsProps) -> World {
        World::within(version, props_of_fs, Arc::new(Unlimited))
    }

    /// One whose dataset has so much room.
    pub(super) fn within(version: u64, props_of_fs: FsProps, space: Arc<dyn Space>) -> World {
        World::made(&|zpl| ZplProps { version, ..zpl }, props_of_fs, space)
    }

    /// One whose names are compared without their case.
    pub(super) fn insensitive() -> World {
        World::insensitive_within(FsProps::default(), Arc::new(Unlimited))
    }

    pub(super) fn insensitive_within(props_of_fs: FsProps, space: Arc<dyn Space>) -> World {
        World::made(&|zpl| ZplProps { casesensitivity: 1, ..zpl }, props_of_fs, space)
    }

    fn made(settle: &dyn Fn(ZplProps) -> ZplProps, props_of_fs: FsProps, space: Arc<dyn Space>) -> World {
        let env = env();
        let store = Arc::new(MemStore::default());
        let cache = DbufCache::new(64 << 20);
        let objset = Objset::create(1, 2, store.clone(), cache.clone(), props());
        let txgs = TxgState::new(env.clone(), Txg(9));
        {
            let tx = block_on(txgs.assign()).unwrap();
            let zpl = settle(ZplProps::new(CRED.uid, CRED.gid, Time::from_wall(env.wall())));
            block_on(create_fs(&objset, &tx, &zpl)).unwrap();
        }
        let zfs =
            block_on(Zfs::open(env.clone(), objset.clone(), Some(txgs.clone()), space, props_of_fs)).unwrap();
        let mut w = World {
            env,
            store,
            cache,
            objset,
            root: BlkPtr::ZERO,
            txgs,
            zfs,
            props: props_of_fs,
            syncing: None,
        };
        w.sync();
        w
    }

    /// Closes the open txg and begins to sync it. False if one is being synced still.
    pub(super) fn start_sync(&mut self) -> bool {
        if self.syncing.is_some() {
            return false;
        }
        let txg = block_on(self.txgs.quiesce());
        let (objset, root) = (self.objset.clone(), self.root);
        self.syncing = Some((txg, async move { objset.sync(txg, root).await }.boxed()));
        true
    }

    /// Goes one step on with the sync; true if that was the last.
    pub(super) fn step(&mut self) -> bool {
        let Some((txg, sync)) = &mut self.syncing else { return false };
        let Some(out) = sync.now_or_never() else { return false };
        let (txg, out) = (*txg, out.unwrap());
        self.syncing = None;
        self.store.free(&out.killed);
        self.root = out.root;
        self.txgs.done(txg);
        true
    }

    pub(super) fn finish_sync(&mut self) {
        while self.syncing.is_some() {
            self.step();
        }
    }

    pub(super) fn sync(&mut self) {
        self.finish_sync();
        self.start_sync();
        self.finish_sync();
    }

    /// Forgets everything that is not synced and opens the file system again.
    pub(super) fn crash(&mut self) {
        self.syncing = None;
        let store: Arc<dyn crate::zio::BlockStore> = self.store.clone();
        self.objset = block_on(Objset::open(1, &self.root, store, self.cache.clone(), props())).unwrap();
        self.txgs = TxgState::new(self.env.clone(), self.txgs.synced());
        self.zfs = block_on(Zfs::open(
            self.env.clone(),
            self.objset.clone(),
            Some(self.txgs.clone()),
            Arc::new(Unlimited),
            self.props,
        ))
        .unwrap();
    }

    pub(super) fn drop_caches(&self) {
        self.cache.set_limit(0);
        for id in [1, 2] {
            if let Ok(dn) = block_on(self.objset.hold_wait(ObjectId(id))) {
                let _ = block_on(dn.load(0, 0));
            }
        }
        self.cache.set_limit(64 << 20);
    }

    /// Every object there is, once all is synced.
    pub(super) fn objects(&self) -> BTreeSet<u64> {
        let (mut at, mut out) = (ObjectId(0), BTreeSet::new());
        while let Some(id) = block_on(resident(|| self.objset.next_object(at))).unwrap() {
            out.insert(id.0);
            at = id;
        }
        out
    }

    pub(super) fn read(&self, id: u64) -> Vec<u8> {
        let size = block_on(self.zfs.getattr(id)).unwrap().size as usize;
        let data = block_on(self.zfs.read(id, 0, size + 100)).unwrap();
        data.iter().flat_map(|b| b.to_vec()).collect()
    }

    pub(super) fn names(&self, dir: u64) -> Vec<DirEntry> {
        let (mut at, mut out) = (0, Vec::new());
        loop {
            let batch = block_on(self.zfs.readdir(dir, at)).unwrap();
            let Some(last) = batch.last() else { return out };
            at = last.cookie;
            out.extend(batch.into_iter().filter(|e| e.name != b"." && e.name != b".."));
        }
    }
}
