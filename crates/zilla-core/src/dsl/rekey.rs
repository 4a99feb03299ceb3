//! New keys for dirs, and other keys for them.
//!
//! Whatever changes key objects does so in one txg, all of a root's objects together: after a crash
//! either the old key opens all or the new one does. A data key never changes; only what it is
//! wrapped under does.

use super::DslPool;
use super::dataset::DslDataset;
use super::dir::DslDir;
use crate::crypt::{DataKey, WrappingKey};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zap::{CreateOpts, Value, Zap};
use std::sync::Arc;
use zilla_codec::crypt::Suite;
use zilla_ondisk::dsl::{
    DD_FIELD_CRYPTO_KEY_OBJ, DSL_CRYPTO_KEY_CRYPTO_SUITE, DSL_CRYPTO_KEY_GUID, DSL_CRYPTO_KEY_HMAC_KEY,
    DSL_CRYPTO_KEY_IV, DSL_CRYPTO_KEY_KEYFORMAT, DSL_CRYPTO_KEY_MAC, DSL_CRYPTO_KEY_MASTER_KEY,
    DSL_CRYPTO_KEY_PBKDF2ITERS, DSL_CRYPTO_KEY_PBKDF2SALT, DSL_CRYPTO_KEY_REFCOUNT,
    DSL_CRYPTO_KEY_ROOT_DDOBJ, DSL_CRYPTO_KEY_VERSION,
};
use zilla_ondisk::object_type::DMU_OTN_ZAP_METADATA;

/// What a new dataset is encrypted with.
#[derive(Clone, Debug, Default)]
pub struct NewCrypt {
    pub suite: NewSuite,
    /// A key of its own makes it an encryption root; else it has its parent's root's.
    pub key: Option<Arc<WrappingKey>>,
    /// Where a root's key is to be looked for.
    pub location: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewSuite {
    #[default]
    Inherit,
    Off,
    Of(Suite),
}

/// How a key is to be changed.
#[derive(Clone, Debug)]
pub enum Rekey {
    /// A new key, which makes the dir an encryption root if it is none.
    New { key: Arc<WrappingKey>, location: Option<String> },
    /// The parent's root's.
    Inherit,
}

/// What a dataset that is about to be made will be encrypted with.
pub struct Crypting {
    suite: Suite,
    wrapping: Arc<WrappingKey>,
    /// The encryption root; None: the dataset itself.
    root: Option<u64>,
}

impl DslPool {
    /// What a dataset to be made under `parent` will be encrypted with, if that can be.
    #[crate::boxed]
    pub async fn new_crypt_check(&self, parent: Option<&DslDir>, new: &NewCrypt) -> Result<Option<Crypting>> {
        let above = match parent {
            Some(dir) => match self.key_object(dir).await? {
                Some(object) => Suite::from_number(self.key_phys(object).await?.suite),
                None => None,
            },
            None => None,
        };
        let suite = match new.suite {
            NewSuite::Inherit => above,
            NewSuite::Off => None,
            NewSuite::Of(suite) => Some(suite),
        };
        let Some(suite) = suite else {
            let given = new.key.is_some() || new.location.as_ref().is_some_and(|l| l != "none");
            return match given {
                true => Err(Error::inval("encryption must be on to set a key")),
                false => Ok(None),
            };
        };
        if !self.feature_enabled("encryption") || !self.feature_enabled("bookmark_v2") {
            return Err(Error::os(Errno::NotSup, "Encryption feature not enabled."));
        }
        if let Some(key) = &new.key {
            return Ok(Some(Crypting { suite, wrapping: key.clone(), root: None }));
        }
        let root = match parent {
            Some(parent) if above.is_some() && new.location.is_none() => self.encryption_root(parent).await?,
            _ => None,
        };
        let root = root.ok_or_else(|| Error::inval("Keyformat required for new encryption root."))?;
        let wrapping = self.wrapping_of(&root).await?;
        let locked = || Error::os(Errno::Access, format!("the key of {} is not loaded", root.name()));
        Ok(Some(Crypting { suite, wrapping: wrapping.ok_or_else(locked)?, root: Some(root.id) }))
    }

    /// Gives a new dir its key, before anything is written into its dataset.
    pub(super) async fn create_key(
        &self,
        tx: &Tx,
        dir: &Arc<DslDir>,
        ds: &DslDataset,
        Crypting { suite, wrapping, root }: Crypting,
        new: &NewCrypt,
    ) -> Result<()> {
        let root = root.unwrap_or(dir.id);
        let key = DataKey::generate(&*self.ctx.env.rng, suite)?;
        let zap = Zap::make(self.mos(), tx, DMU_OTN_ZAP_METADATA, &CreateOpts::default()).await?;
        self.put_key(tx, &zap, &key, &wrapping, root).await?;
        zap.set_u64(tx, DSL_CRYPTO_KEY_REFCOUNT, 1).await?;
        zap.set_u64(tx, DSL_CRYPTO_KEY_VERSION, zilla_ondisk::crypt::KEY_VERSION).await?;
        self.zapify(tx, &dir.dn).await?.insert_u64(tx, DD_FIELD_CRYPTO_KEY_OBJ, zap.id()).await?;
        self.activate_feature(tx, ds, "encryption").await?;
        if new.key.is_some() {
            let location = new.location.as_deref().unwrap_or("prompt");
            self.set_key_location(tx, dir, Some(location)).await?;
            self.keys.insert(root, wrapping.clone());
        }
        self.keys.know(root, &wrapping, zap.id(), Arc::new(key));
        Ok(())
    }

    /// Where a root's key is to be looked for is a property of the dir.
    pub(super) async fn set_key_location(&self, tx: &Tx, dir: &DslDir, location: Option<&str>) -> Result<()> {
        let props = Zap::open(self.mos(), dir.phys().props_zapobj).await?;
        match location {
            Some(location) => props.set_str(tx, "keylocation", location).await,
            None => props.delete_if_there(tx, "keylocation").await.map(drop),
        }
    }

    async fn put_key(&self, tx: &Tx, zap: &Zap, key: &DataKey, with: &WrappingKey, root: u64) -> Result<()> {
        let phys = key.wrap(&*self.ctx.env.rng, with)?;
        for (name, value) in [
            (DSL_CRYPTO_KEY_CRYPTO_SUITE, Value::u64(phys.suite)),
            (DSL_CRYPTO_KEY_ROOT_DDOBJ, Value::u64(root)),
            (DSL_CRYPTO_KEY_GUID, Value::u64(phys.guid)),
            (DSL_CRYPTO_KEY_IV, Value::bytes(&phys.iv)),
            (DSL_CRYPTO_KEY_MAC, Value::bytes(&phys.mac)),
            (DSL_CRYPTO_KEY_MASTER_KEY, Value::bytes(&phys.master)),
            (DSL_CRYPTO_KEY_HMAC_KEY, Value::bytes(&phys.hmac)),
            (DSL_CRYPTO_KEY_KEYFORMAT, Value::u64(with.format.number())),
            (DSL_CRYPTO_KEY_PBKDF2SALT, Value::u64(with.salt)),
            (DSL_CRYPTO_KEY_PBKDF2ITERS, Value::u64(with.iterations)),
        ] {
            zap.set(tx, name, &value).await?;
        }
        Ok(())
    }

    /// A clone's dir shares the key of its origin's.
    pub(super) async fn clone_key(&self, tx: &Tx, dir: &DslDir, origin: &DslDir) -> Result<()> {
        let Some(object) = self.key_object(origin).await? else { return Ok(()) };
        Zap::open(self.mos(), object).await?.bump(tx, DSL_CRYPTO_KEY_REFCOUNT, 1).await?;
        self.zapify(tx, &dir.dn).await?.insert_u64(tx, DD_FIELD_CRYPTO_KEY_OBJ, object).await
    }

    /// A dir goes, and with it its share of its key.
    pub(super) async fn destroy_key(&self, tx: &Tx, dir: &DslDir) -> Result<()> {
        let Some(object) = self.key_object(dir).await? else { return Ok(()) };
        let zap = Zap::open(self.mos(), object).await?;
        if zap.get_u64(DSL_CRYPTO_KEY_REFCOUNT).await? > 1 {
            return zap.bump(tx, DSL_CRYPTO_KEY_REFCOUNT, -1).await;
        }
        self.keys.forget(object);
        self.keys.remove(dir.id);
        self.free_object(tx, object).await
    }

    /// Why a dir's key cannot be changed so, if it cannot.
    #[crate::boxed]
    pub async fn rekey_check(&self, name: &str, how: &Rekey) -> Result<Arc<DslDir>> {
        let dir = self.dir_by_name(name).await?;
        let Some(root) = self.encryption_root(&dir).await? else {
            return Err(Error::inval(format!("{name} is not encrypted")));
        };
        if self.is_clone(&dir) {
            return Err(Error::inval(format!("{name} is a clone, which has its origin's key")));
        }
        let locked = |d: &DslDir| Error::os(Errno::Access, format!("the key of {} is not loaded", d.name()));
        if !self.key_loaded(&dir).await? {
            return Err(locked(&dir));
        }
        match how {
            Rekey::New { location, .. } => {
                if root.id != dir.id && location.is_none() {
                    return Err(Error::inval("a new encryption root needs a keylocation"));
                }
            }
            Rekey::Inherit => {
                if root.id != dir.id {
                    return Err(Error::inval(format!("{name} is not an encryption root")));
                }
                let parent = dir.parent();
                let above = match &parent {
                    Some(p) => self.encryption_root(p).await?,
                    None => None,
                };
                let above = above.ok_or_else(|| Error::inval("the parent is not encrypted"))?;
                if self.wrapping_of(&above).await?.is_none() {
                    return Err(locked(&above));
                }
            }
        }
        Ok(dir)
    }

    /// Changes a dir's key, and that of all below it that use the same.
    #[crate::boxed]
    pub async fn rekey(&self, tx: &Tx, name: &str, how: &Rekey) -> Result<()> {
        let dir = self.rekey_check(name, how).await?;
        let gone = || Error::inval("the encryption root is gone");
        let old = self.encryption_root(&dir).await?.ok_or_else(gone)?.id;
        let (new, wrapping) = match how {
            Rekey::New { key, .. } => (dir.id, key.clone()),
            Rekey::Inherit => {
                let parent = dir.parent().ok_or_else(gone)?;
                let root = self.encryption_root(&parent).await?.ok_or_else(gone)?;
                (root.id, self.wrapping_of(&root).await?.ok_or_else(gone)?)
            }
        };
        // All is read and opened before the first change.
        let mut keys = Vec::new();
        for d in self.sharing(&dir, old).await? {
            let object = self.key_object(&d).await?.ok_or_else(gone)?;
            let key = self.data_key(&d).await?;
            keys.push((object, key.ok_or_else(|| Error::os(Errno::Access, "the key is not loaded"))?));
        }
        for (object, key) in keys {
            let zap = Zap::open(self.mos(), object).await?;
            self.put_key(tx, &zap, &key, &wrapping, new).await?;
        }
        match how {
            Rekey::New { location, .. } => {
                if let Some(location) = location {
                    self.set_key_location(tx, &dir, Some(location)).await?;
                }
                self.keys.insert(dir.id, wrapping);
            }
            Rekey::Inherit => {
                self.set_key_location(tx, &dir, None).await?;
                self.keys.remove(dir.id);
            }
        }
        Ok(())
    }

    /// A dir and those below that are opened by the key of root `root`. Clones are left out: their
    /// keys are their origins'; what is below them is not.
    pub(super) async fn sharing(&self, dir: &Arc<DslDir>, root: u64) -> Result<Vec<Arc<DslDir>>> {
        let mut out = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        let mut todo = vec![(dir.clone(), false)];
        while let Some((d, through)) = todo.pop() {
            if !through {
                let own = self.encryption_root(&d).await?;
                if own.is_none_or(|r| r.id != root) || self.is_clone(&d) {
                    continue;
                }
            }
            if !seen.insert((d.id, through)) {
                continue;
            }
            if !through {
                out.push(d.clone());
            }
            todo.extend(self.child_dirs(&d).await?.into_iter().map(|c| (c, false)));
            let clones = d.phys().clones;
            if clones != 0 {
                for id in Zap::open(self.mos(), clones).await?.ints().await? {
                    todo.push((self.dataset(id).await?.dir(), true));
                }
            }
        }
        Ok(out)
    }

    /// Whether a dir may get another parent: not if it would be another's key that opens it.
    pub(super) async fn rename_key_check(&self, dir: &DslDir, to: &DslDir) -> Result<()> {
        let Some(root) = self.encryption_root(dir).await? else { return Ok(()) };
        if root.id == dir.id {
            return Ok(());
        }
        match self.encryption_root(to).await? {
            Some(above) if above.id == root.id => Ok(()),
            _ => Err(Error::os(Errno::Access, "cannot move encrypted child outside of its encryption root")),
        }
    }

    /// Whether a clone may take its origin's place.
    pub(super) async fn promote_key_check(&self, clone: &DslDir, origin: &DslDir) -> Result<()> {
        let Some(root) = self.encryption_root(origin).await? else { return Ok(()) };
        if self.is_clone(origin) || root.id == origin.id {
            return Ok(());
        }
        let refused = || Error::os(Errno::Access, "cannot promote dataset outside its encryption root");
        let (Some(from), Some(to)) = (origin.parent(), clone.parent()) else { return Err(refused()) };
        let from = self.encryption_root(&from).await?.map(|d| d.id);
        let to = self.encryption_root(&to).await?.map(|d| d.id);
        if from.is_some() && from == to { Ok(()) } else { Err(refused()) }
    }

    /// A clone that takes the place of an encryption root becomes it.
    pub(super) async fn promote_key(&self, tx: &Tx, clone: &DslDir, origin: &Arc<DslDir>) -> Result<()> {
        let Some(root) = self.encryption_root(origin).await? else { return Ok(()) };
        if self.is_clone(origin) || root.id != origin.id {
            return Ok(());
        }
        let props = Zap::open(self.mos(), origin.phys().props_zapobj).await?;
        let location = props.try_get_str("keylocation").await?.unwrap_or_else(|| "prompt".into());
        let mut objects = Vec::new();
        for d in self.sharing(origin, root.id).await? {
            objects.extend(self.key_object(&d).await?);
        }
        self.set_key_location(tx, clone, Some(&location)).await?;
        self.set_key_location(tx, origin, None).await?;
        for object in objects {
            Zap::open(self.mos(), object).await?.set_u64(tx, DSL_CRYPTO_KEY_ROOT_DDOBJ, clone.id).await?;
        }
        if let Some(key) = self.keys.remove(origin.id) {
            self.keys.insert(clone.id, key);
        }
        Ok(())
    }
}
