//! What a pool has in forms that OpenZFS has given up since ("errata"), as far as it was come
//! across.
//!
//! Early encrypted datasets have keys of version 0: what their codes cover differs between
//! machines, so nothing is written with them any more. And snapshots from before the sets of IVs
//! had numbers lack theirs: raw streams could be received on top of the wrong ones.
//!
//! It is noted where keys and snapshots are looked at anyhow, and forgotten with the pool: one that
//! still has them finds them again. Nothing on disk is changed for it, but for the number in the
//! pool's configuration.

use super::DslPool;
use super::dataset::DslDataset;
use super::dir::DslDir;
use crate::error::{Errno, Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use zilla_ondisk::crypt::KEY_VERSION;
use zilla_ondisk::dsl::DS_FIELD_IVSET_GUID;

/// Source: zpool_errata_t in sys/fs/zfs.h.
const ERRATA_ZOL_6845_ENCRYPTION: u64 = 3;
const ERRATA_ZOL_8308_ENCRYPTION: u64 = 4;

/// What was seen.
#[derive(Default)]
pub(super) struct Errata {
    old_keys: AtomicBool,
    unnumbered: AtomicBool,
}

impl DslPool {
    /// The number of what is wrong with the pool; 0: nothing.
    pub fn errata(&self) -> u64 {
        if self.errata.old_keys.load(Ordering::Relaxed) {
            return ERRATA_ZOL_6845_ENCRYPTION;
        }
        // Encryption is older than the bookmarks that know sets of IVs.
        let enabled = |name| self.feature_enabled(name);
        let bookmarks = enabled("encryption") && !enabled("bookmark_v2");
        match bookmarks || self.errata.unnumbered.load(Ordering::Relaxed) {
            true => ERRATA_ZOL_8308_ENCRYPTION,
            false => 0,
        }
    }

    /// Notes a key's version.
    pub(super) fn note_key_version(&self, version: u64) {
        if version < KEY_VERSION {
            self.errata.old_keys.store(true, Ordering::Relaxed);
        }
    }

    /// Notes whether an encrypted snapshot's set of IVs has a number.
    pub(super) async fn note_ivset(&self, snap: &DslDataset) -> Result<()> {
        if !self.feature_active("encryption") || self.key_object(&snap.dir()).await?.is_none() {
            return Ok(());
        }
        let numbered = match snap.zap() {
            Some(zap) => zap.try_get_u64(DS_FIELD_IVSET_GUID).await?.is_some(),
            None => false,
        };
        if !numbered {
            self.errata.unnumbered.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether a dir's key is one with which nothing is written.
    #[crate::boxed]
    pub async fn has_old_key(&self, dir: &DslDir) -> Result<bool> {
        match self.key_object(dir).await? {
            Some(object) => Ok(self.key_version(object).await? < KEY_VERSION),
            None => Ok(false),
        }
    }

    /// Refuses to change the contents of a dataset with such a key.
    pub(super) async fn writable_key_check(&self, dir: &DslDir) -> Result<()> {
        match self.has_old_key(dir).await? {
            true => Err(old_key(&dir.name())),
            false => Ok(()),
        }
    }
}

/// Of a dataset that can only be read: the remedy is in `zpool status`.
pub fn old_key(name: &str) -> Error {
    let what = "its key is of an old version: the dataset can only be mounted and used read-only";
    Error::os(Errno::ROFs, format!("{name}: {what}"))
}
