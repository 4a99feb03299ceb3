//! Snapshots that are looked into through `.zfs`: their numbers, and when they are let go.
//!
//! One stays open as long as somebody has a file of it, and a while longer, as OpenZFS's stay
//! mounted: who looks into a snapshot looks again. Its number is then free, and comes again only
//! after all others. A number whose snapshot was destroyed under a client that has files of it is
//! not given out any more, for he would find other files under it.

use crate::ctldir::CONTROL;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use zilla_core::error::{Errno, Error, Result};
use zilla_core::zpl::Zfs;
use zilla_env::Env;

/// So long a snapshot stays open that nobody uses. Source: zfs_expire_snapshot.
const IDLE: Duration = Duration::from_secs(300);

/// Names that are kept of one snapshot, where case does not matter: they are asked for by anybody.
const SPELLINGS: usize = 16;

#[derive(Default)]
pub(crate) struct Opened {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_name: HashMap<String, u64>,
    by_number: HashMap<u64, Snapshot>,
    /// Numbers that lead nowhere, and may be known to clients.
    spent: HashSet<u64>,
    last: u64,
    /// How often a name has gone: what was opened before may be what it no longer means.
    removals: u64,
    /// A task looks for those that nobody uses.
    watched: bool,
    /// None are looked into any more.
    ended: bool,
}

struct Snapshot {
    name: String,
    guid: u64,
    zfs: Arc<Zfs>,
    /// When it was last asked for.
    used: Duration,
}

impl Snapshot {
    /// Whether anybody has a file of it.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.zfs) > 1 || !self.zfs.files_in_use().is_empty()
    }
}

impl Inner {
    fn touch(&mut self, number: u64) -> Option<&Snapshot> {
        let snapshot = self.by_number.get_mut(&number)?;
        snapshot.used = snapshot.zfs.env().now();
        Some(snapshot)
    }

    /// The number that was free for the longest time.
    fn free_number(&self) -> Option<u64> {
        let all = (self.last + 1..CONTROL).chain(1..=self.last.min(CONTROL - 1));
        let free = |n: &u64| !self.by_number.contains_key(n) && !self.spent.contains(n);
        all.into_iter().find(free)
    }

    fn close(&mut self, number: u64) -> Option<Snapshot> {
        let snapshot = self.by_number.remove(&number)?;
        self.by_name.retain(|_, n| *n != number);
        if snapshot.is_in_use() {
            self.spent.insert(number);
        }
        Some(snapshot)
    }
}

impl Opened {
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        let mut inner = self.inner.lock();
        let n = inner.by_name.get(name).copied()?;
        inner.touch(n).map(|_| n)
    }

    pub(crate) fn removals(&self) -> u64 {
        self.inner.lock().removals
    }

    /// Gives a number to one that was opened when there were so many removals. None: a name has
    /// gone since, and it is to be opened anew.
    pub(crate) fn add(
        self: &Arc<Self>,
        name: &str,
        (guid, zfs): (u64, Arc<Zfs>),
        removals: u64,
    ) -> Result<Option<u64>> {
        let mut inner = self.inner.lock();
        if inner.ended {
            return Err(Error::os(Errno::Io, "the file system was unmounted"));
        }
        if inner.removals != removals {
            return Ok(None);
        }
        // (By the name it had before it was renamed it may be here as well, and goes.)
        if let Some((n, _)) = inner.by_number.iter().find(|(_, s)| s.guid == guid && s.name == name) {
            return Ok(Some(*n));
        }
        let Some(n) = inner.free_number() else {
            return Err(Error::os(Errno::NoMem, "too many snapshots are looked into"));
        };
        let env = zfs.env().clone();
        inner.last = n;
        inner.by_name.insert(name.to_owned(), n);
        let snapshot = Snapshot { name: name.to_owned(), guid, zfs, used: env.now() };
        inner.by_number.insert(n, snapshot);
        if !std::mem::replace(&mut inner.watched, true) {
            env.spawn(watch(Arc::downgrade(self), env.clone()));
        }
        Ok(Some(n))
    }

    /// It was asked for by this name, which may be another spelling. A name of some length has more
    /// of them than can be kept.
    pub(crate) fn also(&self, name: &str, number: u64) {
        let mut inner = self.inner.lock();
        let kept = inner.by_name.values().filter(|n| **n == number).count();
        if inner.by_number.contains_key(&number) && kept < SPELLINGS {
            inner.by_name.entry(name.to_owned()).or_insert(number);
        }
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<Zfs>> {
        self.inner.lock().touch(number).map(|s| s.zfs.clone())
    }

    pub(crate) fn guid(&self, number: u64) -> Option<u64> {
        self.inner.lock().touch(number).map(|s| s.guid)
    }

    pub(crate) fn with_guid(&self, guid: u64) -> Option<u64> {
        let mut inner = self.inner.lock();
        let n = inner.by_number.iter().find(|(_, s)| s.guid == guid).map(|(n, _)| *n)?;
        inner.touch(n).map(|_| n)
    }

    pub(crate) fn remove(&self, name: &str) -> Option<u64> {
        let mut inner = self.inner.lock();
        inner.removals += 1;
        let n = inner.by_name.get(name).copied()?;
        let closed = inner.close(n);
        drop(inner);
        closed.map(|_| n)
    }

    pub(crate) fn clear(&self) {
        let mut inner = self.inner.lock();
        let all: Vec<u64> = inner.by_number.keys().copied().collect();
        let closed: Vec<Snapshot> = all.into_iter().filter_map(|n| inner.close(n)).collect();
        drop(inner);
        drop(closed);
    }

    /// Lets go of all for good: who is about to look into one is refused.
    pub(crate) fn close(&self) {
        let all: Vec<Snapshot> = {
            let mut inner = self.inner.lock();
            inner.ended = true;
            inner.by_name.clear();
            inner.by_number.drain().map(|(_, snapshot)| snapshot).collect()
        };
        for snapshot in all {
            // Whoever is in the middle of a read has it a moment longer.
            snapshot.zfs.revoke_now();
            snapshot.zfs.let_go();
        }
    }

    /// Closes what nobody uses and nobody has asked for since a time; whether anything is left to
    /// look at again.
    fn close_idle(&self, since: Duration) -> bool {
        let mut inner = self.inner.lock();
        let idle = |s: &Snapshot| s.used <= since && !s.is_in_use();
        let all: Vec<u64> = inner.by_number.iter().filter(|(_, s)| idle(s)).map(|(n, _)| *n).collect();
        let closed: Vec<Snapshot> = all.into_iter().filter_map(|n| inner.close(n)).collect();
        inner.watched = !inner.by_number.is_empty();
        let left = inner.watched;
        drop(inner);
        drop(closed);
        left
    }
}

async fn watch(opened: Weak<Opened>, env: Env) {
    loop {
        env.sleep(IDLE).await;
        let Some(opened) = opened.upgrade() else { return };
        if !opened.close_idle(env.now().saturating_sub(IDLE)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla_core::dmu::{DbufCache, Objset};
    use zilla_core::txg::TxgState;
    use zilla_core::types::Txg;
    use zilla_core::zpl::{FsProps, Time, Unlimited, ZplProps, create_fs};
    use zilla_env::{block_on, real_env};
    use zilla_testkit::memory::{MemStore, props};

    /// A file system that stands for a snapshot.
    fn snapshot(env: &Env) -> Arc<Zfs> {
        let objset = Objset::create(1, 2, Arc::new(MemStore::default()), DbufCache::new(1 << 20), props());
        let txgs = TxgState::new(env.clone(), Txg(9));
        let tx = block_on(txgs.assign()).unwrap();
        block_on(create_fs(&objset, &tx, &ZplProps::new(0, 0, Time::default()))).unwrap();
        drop(tx);
        block_on(Zfs::open(env.clone(), objset, None, Arc::new(Unlimited), FsProps::default())).unwrap()
    }

    #[test]
    fn only_so_many_spellings_of_a_name_are_kept() {
        let env = real_env(1);
        let opened = Arc::new(Opened::default());
        let n = opened.add("a", (7, snapshot(&env)), 0).unwrap().unwrap();
        (0..1000).for_each(|i| opened.also(&format!("a{i}"), n));
        assert_eq!(opened.inner.lock().by_name.len(), SPELLINGS);
        assert_eq!((opened.number("a"), opened.number("a3")), (Some(n), Some(n)));
    }

    #[test]
    fn a_snapshot_is_let_go_when_nobody_uses_it() {
        let env = real_env(1);
        let opened = Arc::new(Opened::default());
        let n = opened.add("a", (7, snapshot(&env)), 0).unwrap().unwrap();
        assert!(opened.close_idle(Duration::ZERO), "it was just asked for");
        assert_eq!(opened.number("a"), Some(n));

        let zfs = opened.get(n).unwrap();
        let root = zfs.root();
        let entry = block_on(zfs.hold(root)).unwrap();
        drop(zfs);
        assert!(opened.close_idle(Duration::MAX), "a file is open");
        entry.leak();
        assert!(opened.close_idle(Duration::MAX), "a client has one by its number");
        opened.get(n).unwrap().forget(root, 1);
        assert!(!opened.close_idle(Duration::MAX));
        assert_eq!((opened.number("a"), opened.with_guid(7)), (None, None));
        assert!(opened.get(n).is_none());
    }

    #[test]
    fn a_number_comes_again_after_all_others_and_not_under_who_knows_it() {
        let env = real_env(1);
        let opened = Arc::new(Opened::default());
        let zfs = snapshot(&env);
        let first = opened.add("a", (1, zfs.clone()), 0).unwrap().unwrap();
        assert_eq!(opened.remove("a"), Some(first), "destroyed, and open");
        assert_eq!(opened.add("a", (1, zfs.clone()), 0).unwrap(), None, "it was opened before that");
        let other = snapshot(&env);
        let mut last = 0;
        for _ in 0..CONTROL {
            last = opened.add("b", (2, other.clone()), 1).unwrap().unwrap();
            let mut inner = opened.inner.lock();
            let closed = inner.close(last);
            inner.spent.remove(&last);
            assert!(closed.is_some() && last != first);
        }
        assert!(last < CONTROL, "they went round");
        opened.inner.lock().spent.extend(1..CONTROL);
        assert!(opened.add("c", (3, other), 1).unwrap_err().is(Errno::NoMem));
    }
}
