//! The same operations for code that may wait: the sync task and whoever looks at the pool's own
//! objects.

use super::{CreateOpts, Entry, Value, Zap};
use crate::dmu::{Objset, resident};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::ObjectId;
use std::sync::Arc;

impl Zap {
    /// The ZAP that is object `id`.
    #[crate::boxed]
    pub async fn open(os: &Arc<Objset>, id: u64) -> Result<Zap> {
        Ok(Zap::new(&os.hold_wait(ObjectId(id)).await?))
    }

    /// A new ZAP; its number is `dnode().id()`.
    #[crate::boxed]
    pub async fn make(os: &Arc<Objset>, tx: &Tx, otype: u8, opts: &CreateOpts) -> Result<Zap> {
        Ok(Zap::new(&resident(|| Zap::create(os, tx, otype, opts)).await?))
    }

    pub fn id(&self) -> u64 {
        self.dnode().id().0
    }

    #[crate::boxed]
    pub async fn try_get(&self, name: &str) -> Result<Option<Value>> {
        resident(|| self.lookup(name.as_bytes())).await
    }

    #[crate::boxed]
    pub async fn get(&self, name: &str) -> Result<Value> {
        self.try_get(name).await?.ok_or_else(|| self.lacks(name))
    }

    #[crate::boxed]
    pub async fn try_get_u64(&self, name: &str) -> Result<Option<u64>> {
        resident(|| self.lookup_u64(name.as_bytes())).await
    }

    /// A number that must be there.
    #[crate::boxed]
    pub async fn get_u64(&self, name: &str) -> Result<u64> {
        self.try_get_u64(name).await?.ok_or_else(|| self.lacks(name))
    }

    fn lacks(&self, name: &str) -> Error {
        Error::no_ent(format!(
            "object {} of objset {} has no entry {name:?}",
            self.id(),
            self.dnode().objset_id()
        ))
    }

    #[crate::boxed]
    pub async fn try_get_str(&self, name: &str) -> Result<Option<String>> {
        Ok(self.try_get(name).await?.as_ref().and_then(Value::as_str).map(str::to_owned))
    }

    #[crate::boxed]
    pub async fn insert(&self, tx: &Tx, name: &str, value: &Value) -> Result<()> {
        resident(|| self.add(tx, name.as_bytes(), value)).await
    }

    #[crate::boxed]
    pub async fn insert_u64(&self, tx: &Tx, name: &str, value: u64) -> Result<()> {
        resident(|| self.add_u64(tx, name.as_bytes(), value)).await
    }

    #[crate::boxed]
    pub async fn set(&self, tx: &Tx, name: &str, value: &Value) -> Result<()> {
        resident(|| self.update(tx, name.as_bytes(), value)).await
    }

    #[crate::boxed]
    pub async fn set_u64(&self, tx: &Tx, name: &str, value: u64) -> Result<()> {
        resident(|| self.update_u64(tx, name.as_bytes(), value)).await
    }

    #[crate::boxed]
    pub async fn set_str(&self, tx: &Tx, name: &str, value: &str) -> Result<()> {
        self.set(tx, name, &Value::string(value)).await
    }

    #[crate::boxed]
    pub async fn delete(&self, tx: &Tx, name: &str) -> Result<()> {
        resident(|| self.remove(tx, name.as_bytes())).await
    }

    /// Removes an entry if it is there; says whether it was.
    #[crate::boxed]
    pub async fn delete_if_there(&self, tx: &Tx, name: &str) -> Result<bool> {
        match self.delete(tx, name).await {
            Ok(()) => Ok(true),
            Err(e) if e.is(crate::error::Errno::NoEnt) => Ok(false),
            Err(e) => Err(e),
        }
    }

    #[crate::boxed]
    pub async fn bump(&self, tx: &Tx, name: &str, delta: i64) -> Result<()> {
        resident(|| self.increment(tx, name.as_bytes(), delta)).await
    }

    #[crate::boxed]
    pub async fn len(&self) -> Result<u64> {
        resident(|| self.count()).await
    }

    #[crate::boxed]
    pub async fn is_empty(&self) -> Result<bool> {
        Ok(self.len().await? == 0)
    }

    /// All entries, by hash.
    #[crate::boxed]
    pub async fn entries(&self) -> Result<Vec<Entry>> {
        let mut out = Vec::new();
        let mut at = 0;
        while at != super::END {
            let batch = resident(|| self.read_on(&mut at, 4096)).await?;
            out.extend(batch.entries);
            at = batch.next;
        }
        Ok(out)
    }

    // Sets of numbers (clones, next clones, child objects): the name is the number in hexadecimal.

    #[crate::boxed]
    pub async fn add_int(&self, tx: &Tx, value: u64) -> Result<()> {
        self.insert_u64(tx, &format!("{value:x}"), value).await
    }

    #[crate::boxed]
    pub async fn remove_int(&self, tx: &Tx, value: u64) -> Result<()> {
        self.delete(tx, &format!("{value:x}")).await
    }

    /// The same, if it is there.
    #[crate::boxed]
    pub async fn remove_int_if_there(&self, tx: &Tx, value: u64) -> Result<bool> {
        self.delete_if_there(tx, &format!("{value:x}")).await
    }

    #[crate::boxed]
    pub async fn contains_int(&self, value: u64) -> Result<bool> {
        Ok(self.try_get(&format!("{value:x}")).await?.is_some())
    }

    /// The numbers of a set.
    #[crate::boxed]
    pub async fn ints(&self) -> Result<Vec<u64>> {
        Ok(self.entries().await?.iter().filter_map(|e| e.value.as_u64()).collect())
    }

    /// The name of the entry that holds `value`.
    #[crate::boxed]
    pub async fn find_value(&self, value: u64) -> Result<Option<String>> {
        let all = self.entries().await?;
        Ok(all.iter().find(|e| e.value.as_u64() == Some(value)).map(|e| e.name_str().into_owned()))
    }
}
