//! Pools that are being imported.
//!
//! An import may take long: it watches a pool that another host may have, then sees that nobody
//! takes it at the same time, and its devices may be slow. Others change the set of pools
//! meanwhile, so it does not hold `changes`. It takes the pool's name and guid instead, until the
//! pool is in the table or the import has failed. Its devices are held by whoever has opened them.

use super::Engine;
use super::errors::Answer;
use zilla_control::{ApiError, ErrorCode};

/// A name and a guid are an import's until this is dropped.
pub(super) struct Opening<'a> {
    engine: &'a Engine,
    name: String,
}

impl Engine {
    /// Takes a pool's name and guid for an import. Called with `changes` held.
    pub(super) fn begin_opening(&self, name: &str, guid: u64) -> Answer<Opening<'_>> {
        if self.closing() {
            return Err(ApiError::with(ErrorCode::Busy, "the daemon is being stopped"));
        }
        if self.all_pools().iter().any(|p| p.zilla.guid() == guid) {
            return Err(ApiError::with(ErrorCode::Exists, "the pool is imported already"));
        }
        if self.pools.read().contains_key(name) {
            return Err(ApiError::with(ErrorCode::Exists, "a pool with that name already exists"));
        }
        let mut opening = self.opening.lock();
        if opening.contains_key(name) || opening.values().any(|other| *other == guid) {
            return Err(ApiError::with(ErrorCode::Busy, "it, or a pool of that name, is being imported"));
        }
        opening.insert(name.to_owned(), guid);
        Ok(Opening { engine: self, name: name.to_owned() })
    }

    /// Whether a new pool may not have the name. Called with `changes` held.
    pub(super) fn is_name_taken(&self, name: &str) -> bool {
        self.pools.read().contains_key(name) || self.is_lost(name) || self.opening.lock().contains_key(name)
    }

    /// Whether a pool has the guid. Called with `changes` held.
    pub(super) fn is_guid_taken(&self, guid: u64) -> bool {
        self.all_pools().iter().any(|p| p.zilla.guid() == guid)
            || self.opening.lock().values().any(|other| *other == guid)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.engine.opening.lock().remove(&self.name);
    }
}
