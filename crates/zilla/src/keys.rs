//! Encryption: keys of users, which open datasets, and what new datasets are encrypted with.
//!
//! A [`WrappingKey`] is made of a user's bytes; a passphrase is hashed for it, which takes a good
//! part of a second, so [`Hashing`] does it in pieces. Keys are in memory only, and are wiped when
//! they are dropped.

use crate::error::Result;
use crate::pool::Pool;
use crate::tree::DatasetDir;

pub use zilla_core::crypt::{Hashing, KeyFormat, Suite, WrappingKey};
pub use zilla_core::dsl::{KeyShape, NewCrypt, NewSuite, RawKey, RawMember, Rekey};

impl Pool {
    /// Loads the key of an encryption root, which opens it and all that inherits it; `check`: it is
    /// only looked whether it fits. EEXIST: it is loaded; EACCES: it does not fit.
    pub async fn load_key(&self, name: &str, key: WrappingKey, check: bool) -> Result<()> {
        self.dsl().load_key(name, key, check).await
    }

    /// Forgets the key of an encryption root. EBUSY: something of it is open.
    pub async fn unload_key(&self, name: &str) -> Result<()> {
        self.dsl().unload_key(name).await
    }

    /// Gives a dataset another key, or its parent's.
    pub async fn change_key(&self, name: &str, how: Rekey) -> Result<()> {
        let name = name.to_owned();
        self.task(move |dsl, tx| Box::pin(async move { dsl.rekey(&tx, &name, &how).await })).await
    }

    /// Where a clone would take its origin's place outside of the encryption root that both have:
    /// the name of the origin's dataset, which is to become a root first.
    pub async fn root_before_promotion(&self, clone: &str) -> Result<Option<String>> {
        self.dsl().root_before_promotion(clone).await
    }

    /// Makes a dataset an encryption root, with the key that it inherits.
    pub async fn make_root(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.task(move |dsl, tx| Box::pin(async move { dsl.make_root(&tx, &name).await })).await
    }

    /// Gives the datasets of a raw package the encryption roots that they have at the sender; says
    /// which cannot have theirs, and why.
    pub async fn follow_raw_roots(
        &self,
        top: &str,
        members: Vec<RawMember>,
    ) -> Result<Vec<(String, &'static str)>> {
        let top = top.to_owned();
        self.task(move |dsl, tx| Box::pin(async move { dsl.recv_raw_roots(&tx, &top, &members).await })).await
    }
}

impl DatasetDir {
    /// Whether what lies there is encrypted.
    pub async fn is_encrypted(&self) -> Result<bool> {
        self.dsl.is_encrypted(&self.dir).await
    }

    /// The place of the dataset whose key opens it; None: it is not encrypted.
    pub async fn encryption_root(&self) -> Result<Option<DatasetDir>> {
        let root = self.dsl.encryption_root(&self.dir).await?;
        Ok(root.map(|dir| DatasetDir { dsl: self.dsl.clone(), dir }))
    }

    /// What key opens it.
    pub async fn key_shape(&self) -> Result<KeyShape> {
        self.dsl.key_shape(&self.dir).await
    }

    /// Whether it can be read: its key is loaded, or it has none.
    pub async fn key_loaded(&self) -> Result<bool> {
        self.dsl.key_loaded(&self.dir).await
    }

    /// Its key is of a version that only lets it be read.
    pub async fn has_old_key(&self) -> Result<bool> {
        self.dsl.has_old_key(&self.dir).await
    }
}
