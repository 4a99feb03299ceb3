//! Keys of encrypted datasets: the objects they lie in, and those that are loaded.
//!
//! Each encrypted dir has a *key object* (a ZAP in the MOS, named in the dir's own ZAP): suite,
//! guid, version, and the data key, wrapped under the key of its *encryption root*, the dir that
//! the user gave a key for. A clone shares its origin's key object, which counts its users; a child
//! has an object of its own, wrapped under its parent's root's key.
//!
//! Loading a key keeps the root's wrapping key in memory, after it has opened the root's key
//! object; other dirs' are opened with it when they are used. A wrapping key in memory is the one
//! that its root's key object is wrapped under, but for moments between two changes. So nothing is
//! wrapped under one before it has opened its root once more ([`DslPool::wrapping_of`]): else a
//! child could not be opened after a restart. An objset is opened with its key or without
//! ([`crate::zio::SealedStore`]); when a key is loaded or unloaded those that are open, and not in
//! use, are let go of between two txgs, so that the next user opens them anew.
//!
//! A crash forgets which keys were loaded, and nothing else.

use super::DslPool;
use super::dataset::DslDataset;
use super::dir::DslDir;
use crate::crypt::{DataKey, KeyFormat, PhysKey, WrappingKey};
use crate::dmu::Objset;
use crate::error::{Errno, Error, Result};
use crate::types::{Bookmark, ObjectId, TXG_SIZE, Txg};
use crate::zap::Zap;
use crate::zio::BlockStore;
use crate::zio::{KeyedStore, SealedStore};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::dsl::{
    DD_FIELD_CRYPTO_KEY_OBJ, DSL_CRYPTO_KEY_CRYPTO_SUITE, DSL_CRYPTO_KEY_GUID, DSL_CRYPTO_KEY_HMAC_KEY,
    DSL_CRYPTO_KEY_IV, DSL_CRYPTO_KEY_KEYFORMAT, DSL_CRYPTO_KEY_MAC, DSL_CRYPTO_KEY_MASTER_KEY,
    DSL_CRYPTO_KEY_PBKDF2ITERS, DSL_CRYPTO_KEY_PBKDF2SALT, DSL_CRYPTO_KEY_ROOT_DDOBJ, DSL_CRYPTO_KEY_VERSION,
};

/// How often it is tried to find a moment at which no objset is dirty.
const TRIES: usize = 8;

/// The keys that are loaded.
#[derive(Default)]
pub(super) struct Keystore {
    /// By the object of their encryption root.
    wrapping: Mutex<HashMap<u64, Arc<WrappingKey>>>,
    /// Data keys that were opened, by their key object.
    data: Mutex<HashMap<u64, Arc<DataKey>>>,
}

impl Keystore {
    pub(super) fn wrapping(&self, root: u64) -> Option<Arc<WrappingKey>> {
        self.wrapping.lock().get(&root).cloned()
    }

    pub(super) fn insert(&self, root: u64, key: Arc<WrappingKey>) {
        self.wrapping.lock().insert(root, key);
    }

    /// The same unless there is one: false then.
    fn insert_first(&self, root: u64, key: Arc<WrappingKey>) -> bool {
        match self.wrapping.lock().entry(root) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(key);
                true
            }
        }
    }

    fn has(&self, root: u64, key: &Arc<WrappingKey>) -> bool {
        self.wrapping(root).is_some_and(|w| Arc::ptr_eq(&w, key))
    }

    pub(super) fn remove(&self, root: u64) -> Option<Arc<WrappingKey>> {
        self.wrapping.lock().remove(&root)
    }

    /// Keeps a data key that was opened with a root's key; false if that is loaded no more: what it
    /// opened must not outlive it.
    pub(super) fn know(&self, root: u64, with: &Arc<WrappingKey>, object: u64, key: Arc<DataKey>) -> bool {
        let wrapping = self.wrapping.lock();
        let loaded = wrapping.get(&root).is_some_and(|w| Arc::ptr_eq(w, with));
        if loaded {
            self.data.lock().insert(object, key);
        }
        loaded
    }

    pub(super) fn forget(&self, object: u64) {
        self.data.lock().remove(&object);
    }
}

/// What a user needs to know to give a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyShape {
    pub format: KeyFormat,
    /// Of a passphrase; else 0.
    pub salt: u64,
    pub iterations: u64,
}

impl DslPool {
    /// The number of a dir's key object, if it is encrypted.
    pub(super) async fn key_object(&self, dir: &DslDir) -> Result<Option<u64>> {
        match dir.zap() {
            Some(zap) => zap.try_get_u64(DD_FIELD_CRYPTO_KEY_OBJ).await,
            None => Ok(None),
        }
    }

    #[crate::boxed]
    pub async fn is_encrypted(&self, dir: &DslDir) -> Result<bool> {
        Ok(self.key_object(dir).await?.is_some())
    }

    /// The dir whose key opens this one, if it is encrypted.
    #[crate::boxed]
    pub async fn encryption_root(&self, dir: &DslDir) -> Result<Option<Arc<DslDir>>> {
        let Some(object) = self.key_object(dir).await? else { return Ok(None) };
        self.key_version(object).await?;
        let root = Zap::open(self.mos(), object).await?.get_u64(DSL_CRYPTO_KEY_ROOT_DDOBJ).await?;
        self.dir(root).await.map(Some)
    }

    /// The version of a key object; those of the first do not say theirs.
    pub(super) async fn key_version(&self, object: u64) -> Result<u64> {
        let zap = Zap::open(self.mos(), object).await?;
        let version = zap.try_get_u64(DSL_CRYPTO_KEY_VERSION).await?.unwrap_or(0);
        self.note_key_version(version);
        Ok(version)
    }

    /// The key object of a dir that must be an encryption root: `EINVAL` else.
    pub(super) async fn root_object(&self, dir: &DslDir) -> Result<u64> {
        let object = self.key_object(dir).await?;
        let object = object.ok_or_else(|| Error::inval(format!("{} is not encrypted", dir.name())))?;
        let root = Zap::open(self.mos(), object).await?.get_u64(DSL_CRYPTO_KEY_ROOT_DDOBJ).await?;
        if root != dir.id {
            return Err(Error::inval(format!("{} is not an encryption root", dir.name())));
        }
        Ok(object)
    }

    /// In what form the key of a dir's root is given.
    #[crate::boxed]
    pub async fn key_shape(&self, dir: &DslDir) -> Result<KeyShape> {
        let Some(root) = self.encryption_root(dir).await? else {
            return Err(Error::inval(format!("{} is not encrypted", dir.name())));
        };
        let zap = Zap::open(self.mos(), self.root_object(&root).await?).await?;
        let format = zap.get_u64(DSL_CRYPTO_KEY_KEYFORMAT).await?;
        let format = KeyFormat::from_number(format)
            .ok_or_else(|| Error::os(Errno::NotSup, format!("keyformat {format} does not exist")))?;
        Ok(KeyShape {
            format,
            salt: zap.try_get_u64(DSL_CRYPTO_KEY_PBKDF2SALT).await?.unwrap_or(0),
            iterations: zap.try_get_u64(DSL_CRYPTO_KEY_PBKDF2ITERS).await?.unwrap_or(0),
        })
    }

    /// A wrapped key as its object has it.
    pub(super) async fn key_phys(&self, object: u64) -> Result<PhysKey> {
        let zap = Zap::open(self.mos(), object).await?;
        Ok(PhysKey {
            suite: zap.get_u64(DSL_CRYPTO_KEY_CRYPTO_SUITE).await?,
            guid: zap.get_u64(DSL_CRYPTO_KEY_GUID).await?,
            version: self.key_version(object).await?,
            iv: bytes(&zap, DSL_CRYPTO_KEY_IV).await?,
            mac: bytes(&zap, DSL_CRYPTO_KEY_MAC).await?,
            master: bytes(&zap, DSL_CRYPTO_KEY_MASTER_KEY).await?,
            hmac: bytes(&zap, DSL_CRYPTO_KEY_HMAC_KEY).await?,
        })
    }

    /// Opens a key object, which tells whether the key is the right one (`EACCES`).
    pub(super) async fn open_key(&self, object: u64, with: &WrappingKey) -> Result<Arc<DataKey>> {
        let phys = self.key_phys(object).await?;
        let key = DataKey::unwrap(&*self.ctx.env.rng, &phys, with)?;
        if !key.may_write() && !self.ctx.readonly {
            let what = "the key is of an old version: import the pool read-only to read the dataset";
            return Err(Error::os(Errno::NotSup, what));
        }
        Ok(Arc::new(key))
    }

    /// The key of an encryption root for others to be wrapped under, if it is loaded. `EACCES` if
    /// it does not open the root itself: its object has been wrapped anew since.
    pub(super) async fn wrapping_of(&self, root: &DslDir) -> Result<Option<Arc<WrappingKey>>> {
        let Some(wrapping) = self.keys.wrapping(root.id) else { return Ok(None) };
        let phys = self.key_phys(self.root_object(root).await?).await?;
        DataKey::unwrap(&*self.ctx.env.rng, &phys, &wrapping)?;
        Ok(Some(wrapping))
    }

    /// A dir's data key, if its root's key is loaded.
    pub(super) async fn data_key(&self, dir: &DslDir) -> Result<Option<Arc<DataKey>>> {
        let Some(object) = self.key_object(dir).await? else { return Ok(None) };
        let root = Zap::open(self.mos(), object).await?.get_u64(DSL_CRYPTO_KEY_ROOT_DDOBJ).await?;
        let Some(wrapping) = self.keys.wrapping(root) else { return Ok(None) };
        if let Some(key) = self.keys.data.lock().get(&object) {
            return Ok(Some(key.clone()));
        }
        let key = self.open_key(object, &wrapping).await?;
        Ok(self.keys.know(root, &wrapping, object, key.clone()).then_some(key))
    }

    /// The largest record that can be written into a dataset: CCM takes messages of less than 2^24
    /// bytes.
    #[crate::boxed]
    pub async fn largest_record(&self, ds: &DslDataset) -> Result<u64> {
        let ccm = self.data_key(&ds.dir()).await?.is_some_and(|k| k.suite().is_ccm());
        Ok(if ccm { zilla_ondisk::SPA_MAXBLOCKSIZE / 2 } else { zilla_ondisk::SPA_MAXBLOCKSIZE })
    }

    /// Whether the key of a dir's root is loaded; true for what is not encrypted.
    #[crate::boxed]
    pub async fn key_loaded(&self, dir: &DslDir) -> Result<bool> {
        match self.encryption_root(dir).await? {
            Some(root) => Ok(self.keys.wrapping(root.id).is_some()),
            None => Ok(true),
        }
    }

    /// The store that a dataset's objset stands on; `encrypted`: what its root pointer says.
    pub(super) async fn store_of(&self, ds: &DslDataset, encrypted: bool) -> Result<Arc<dyn BlockStore>> {
        let pool = self.ctx.store.clone();
        if !encrypted {
            return Ok(pool);
        }
        Ok(match self.data_key(&ds.dir()).await? {
            Some(key) => KeyedStore::new(pool, key, &self.ctx.env),
            None => SealedStore::new(pool),
        })
    }

    /// Loads the key of an encryption root. `EACCES`: it is not the right one; `EEXIST`: one is
    /// loaded. With `only_check` it is not kept.
    #[crate::boxed]
    pub async fn load_key(self: &Arc<Self>, name: &str, key: WrappingKey, only_check: bool) -> Result<()> {
        let dir = self.dir_by_name(name).await?;
        let object = self.root_object(&dir).await?;
        let data = self.open_key(object, &key).await?;
        if only_check {
            return Ok(());
        }
        let key = Arc::new(key);
        if !self.keys.insert_first(dir.id, key.clone()) {
            return Err(Error::os(Errno::Exist, format!("the key of {name} is already loaded")));
        }
        self.keys.know(dir.id, &key, object, data);
        let mut result = self.reopen_below(&dir).await;
        if result.is_ok() && self.keys.has(dir.id, &key) {
            // A raw receive that did not see this key may have wrapped the object under another
            // since. None can any more: there was a txg since the key is here.
            result = self.open_key(object, &key).await.map(drop);
        }
        if result.is_err() && self.keys.has(dir.id, &key) {
            let (dsl, root, failed) = (self.clone(), dir.clone(), key.clone());
            let dropped = async move {
                // By then another may be loaded.
                if dsl.keys.has(root.id, &failed) {
                    dsl.drop_keys(&root).await;
                }
                Ok(())
            };
            // As it is unloaded. A pool that takes no more tasks writes nothing either.
            if (self.ctx.readonly || self.ctx.sync_task(move |_| Box::pin(dropped)).await.is_err())
                && self.keys.has(dir.id, &key)
            {
                self.drop_keys(&dir).await;
            }
        }
        result
    }

    /// Forgets the key of an encryption root. `EACCES`: none is loaded; `EBUSY`: a dataset that it
    /// opens is in use.
    #[crate::boxed]
    pub async fn unload_key(self: &Arc<Self>, name: &str) -> Result<()> {
        let dir = self.dir_by_name(name).await?;
        self.root_object(&dir).await?;
        self.until_let_go(&dir, |dsl, root| Box::pin(dsl.unload(root))).await
    }

    /// Forgets a root's key, if no dataset that it opens is in use or dirty. In syncing context,
    /// where creates and receives look at the key and then open what they write to: in between it
    /// must stay, or they would have what cannot be written.
    async fn unload(self: Arc<Self>, root: Arc<DslDir>) -> Result<bool> {
        let Some(key) = self.keys.wrapping(root.id) else {
            return Err(Error::os(Errno::Access, format!("the key of {} is not loaded", root.name())));
        };
        // First no dataset can be opened with it any more; who is in use then has it, and is found.
        self.drop_keys(&root).await;
        let done = self.let_go(&root).await;
        if !matches!(done, Ok(true)) {
            self.put_back(&root, key).await;
            // What was opened meanwhile is opened again, with the key.
            for ds in self.open_datasets() {
                let locked = |os: Arc<Objset>| os.is_locked() && os.store().raw().is_none();
                let of = self.encryption_root(&ds.dir()).await;
                if of.is_ok_and(|r| r.is_some_and(|r| r.id == root.id))
                    && ds.open_objset().is_some_and(locked)
                {
                    ds.drop_objset();
                }
            }
        }
        done
    }

    /// A root's key cannot be unloaded: it is loaded again, unless there is another by now, on disk
    /// or in memory.
    pub(super) async fn put_back(&self, root: &DslDir, key: Arc<WrappingKey>) {
        if self.keys.insert_first(root.id, key.clone())
            && self.wrapping_of(root).await.is_err()
            && self.keys.has(root.id, &key)
        {
            self.keys.remove(root.id);
        }
    }

    /// Forgets a root's wrapping key and the data keys that it opened, and those of which it cannot
    /// be said any more what opened them.
    async fn drop_keys(&self, root: &DslDir) {
        self.keys.remove(root.id);
        let opened: BTreeSet<u64> = self.keys.data.lock().keys().copied().collect();
        for object in opened {
            let of = match Zap::open(self.mos(), object).await {
                Ok(zap) => zap.try_get_u64(DSL_CRYPTO_KEY_ROOT_DDOBJ).await.unwrap_or_default(),
                Err(_) => None,
            };
            if of.is_none_or(|r| r == root.id) {
                self.keys.forget(object);
            }
        }
    }

    /// Lets go of the objsets that are open of an encryption root's datasets. Between two txgs, for
    /// one that is dirty must be written first by whom it belongs to.
    async fn reopen_below(self: &Arc<Self>, root: &Arc<DslDir>) -> Result<()> {
        let once = |dsl: Arc<Self>, root: Arc<DslDir>| -> BoxFuture<'static, Result<bool>> {
            Box::pin(async move { dsl.let_go(&root).await })
        };
        self.until_let_go(root, once).await
    }

    /// Runs a task between two txgs until it says that all was let go of.
    async fn until_let_go(
        self: &Arc<Self>,
        root: &Arc<DslDir>,
        once: fn(Arc<Self>, Arc<DslDir>) -> BoxFuture<'static, Result<bool>>,
    ) -> Result<()> {
        for _ in 0..TRIES {
            let one = once(self.clone(), root.clone());
            let done = match self.ctx.readonly {
                true => one.await?,
                false => self.ctx.sync_task(move |_| one).await?,
            };
            if done {
                return Ok(());
            }
        }
        Err(Error::os(Errno::Busy, "dataset is busy"))
    }

    /// Whether all could be let go of.
    async fn let_go(&self, root: &Arc<DslDir>) -> Result<bool> {
        let mut all = Vec::new();
        for ds in self.open_datasets() {
            if self.encryption_root(&ds.dir()).await?.is_none_or(|r| r.id != root.id) {
                continue;
            }
            // What is received raw has no use for a key.
            if ds.open_objset().is_some_and(|os| os.store().raw().is_some()) {
                continue;
            }
            // Nobody begins to use it until all are let go of.
            let Some(alone) = ds.hold_alone() else {
                return Err(Error::os(Errno::Busy, format!("{} is busy", ds.name())));
            };
            let dirty = |os: &Arc<Objset>| {
                (0..TXG_SIZE as u64).any(|slot| os.is_dirty(Txg(slot)))
                    || os.log().is_some_and(|l| l.has_to_sync())
            };
            if ds.rewrite_root.load(Ordering::Relaxed) || ds.open_objset().is_some_and(|os| dirty(&os)) {
                return Ok(false);
            }
            // That is in memory and in the log alone, and logs are replayed after an import only.
            if ds.open_objset().is_some_and(|os| os.holds()) {
                let what = format!("{} has changes that cannot be written over damaged blocks", ds.name());
                return Err(Error::os(Errno::Busy, what));
            }
            all.push(alone);
        }
        all.iter().for_each(|alone| alone.dataset().drop_objset());
        Ok(true)
    }
}

async fn bytes<const N: usize>(zap: &Zap, name: &str) -> Result<[u8; N]> {
    let value = zap.get(name).await?;
    let found = <[u8; N]>::try_from(value.stored()).ok().filter(|_| value.intlen() == 1);
    found.ok_or_else(|| {
        let at = Bookmark::new(0, ObjectId(zap.id()), 0, 0);
        Error::corrupt(Some(at), "", format!("{name} of a key is not {N} bytes"))
    })
}
