//! One imported pool, with what only the daemon knows of it.

use super::mounttable::Mounts;
use super::volumes::Volumes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Instant;

pub struct Pool {
    /// The pool itself.
    pub zilla: zilla::Pool,
    /// `-R`: before every mountpoint.
    pub altroot: Option<String>,
    /// What `cachefile` says: None is the daemon's own file.
    pub cachefile: Mutex<Option<String>>,
    pub opened: Instant,
    /// Differs at each opening.
    pub load_guid: u64,
    mounts: Arc<Mutex<Mounts>>,
    /// Mounts and unmounts come one at a time.
    pub mounting: tokio::sync::Mutex<()>,
    /// It is being closed, and nothing is mounted any more. Changes with `mounting` held.
    pub leaves: AtomicBool,
    /// Held by whoever finds out which of its volumes shall have block devices, and makes it so.
    pub showing: tokio::sync::Mutex<()>,
    pub volumes: Volumes,
    /// Held while its devices are looked at.
    pub watching: tokio::sync::Mutex<()>,
    /// Held while failed devices are replaced by what is in their places.
    pub replacing: tokio::sync::Mutex<()>,
    /// Guids of the failed devices whose places are being looked at.
    pub looking: Arc<Mutex<BTreeSet<u64>>>,
    /// Why what is in the places of failed devices was not taken, as it was last told, by their
    /// guids.
    pub refused: Mutex<BTreeMap<u64, String>>,
}

impl Pool {
    pub fn new(
        zilla: zilla::Pool,
        altroot: Option<String>,
        cachefile: Option<String>,
        load_guid: u64,
    ) -> Arc<Pool> {
        Arc::new(Pool {
            zilla,
            altroot,
            cachefile: Mutex::new(cachefile),
            opened: Instant::now(),
            load_guid,
            mounts: Arc::default(),
            mounting: tokio::sync::Mutex::default(),
            leaves: AtomicBool::new(false),
            showing: tokio::sync::Mutex::default(),
            volumes: Volumes::default(),
            watching: tokio::sync::Mutex::default(),
            replacing: tokio::sync::Mutex::default(),
            looking: Arc::default(),
            refused: Mutex::default(),
        })
    }

    /// What is mounted, by the names of this moment.
    pub fn mounts(&self) -> MutexGuard<'_, Mounts> {
        let mut mounts = self.mounts.lock();
        mounts.heed(self.zilla.renames());
        mounts
    }

    pub(super) fn watched_mounts(&self) -> Weak<Mutex<Mounts>> {
        Arc::downgrade(&self.mounts)
    }

    pub fn name(&self) -> String {
        self.zilla.name()
    }

    pub fn readonly(&self) -> bool {
        self.zilla.is_readonly()
    }
}
