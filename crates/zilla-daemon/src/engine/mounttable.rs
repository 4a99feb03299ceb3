//! The table of what is mounted of a pool.
//!
//! What is mounted may get another name at any moment and from anyone: by `zfs rename`, by a
//! promotion, by `mv` in `.zfs/snapshot`, by a package that is received. So the table is kept by
//! the datasets' numbers, which stay, and its names are asked for anew when any name in the pool
//! has changed ([`zilla::Pool::renames`]).
//!
//! It may be unmounted by anyone, too, of which the kernel tells: then it leaves the table, and its
//! dataset is free. Only what somebody is about to unmount here ([`InHand`]) he takes out himself.

use super::mounts::Mounted;
use super::pool::Pool;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use zilla_fuse::Mount;

/// What stands in the table.
pub trait Named {
    /// Its dataset's number.
    fn number(&self) -> u64;
    /// What its dataset is called at the moment.
    fn name(&self) -> String;
}

pub struct Mounts<T = Mounted> {
    all: BTreeMap<u64, T>,
    numbers: BTreeMap<String, u64>,
    /// The pool's number of renames when the names were asked for.
    as_of: u64,
}

impl<T> Default for Mounts<T> {
    fn default() -> Mounts<T> {
        Mounts { all: BTreeMap::new(), numbers: BTreeMap::new(), as_of: 0 }
    }
}

impl<T: Named> Mounts<T> {
    /// Names have changed in the pool if `renames` has. (It is asked for before the names are: what
    /// changes meanwhile is seen the next time.)
    pub(super) fn heed(&mut self, renames: u64) {
        if self.as_of != renames {
            self.as_of = renames;
            self.numbers = self.all.values().map(|m| (m.name(), m.number())).collect();
        }
    }

    pub fn insert(&mut self, mounted: T) {
        self.numbers.insert(mounted.name(), mounted.number());
        self.all.insert(mounted.number(), mounted);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let mounted = self.all.remove(&number)?;
        // (Where it had another name when they were asked for, they are asked for again.)
        self.numbers.remove(&mounted.name());
        Some(mounted)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub fn get(&self, name: &str) -> Option<&T> {
        self.all.get(self.numbers.get(name)?)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        self.all.get_mut(self.numbers.get(name)?)
    }

    pub(super) fn numbered(&mut self, number: u64) -> Option<&mut T> {
        self.all.get_mut(&number)
    }

    /// In the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &T)> {
        self.numbers.iter().filter_map(|(name, number)| Some((name, self.all.get(number)?)))
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.all.values()
    }
}

impl Mounts {
    /// Takes out what somebody else has unmounted, and leaves its dataset to others. Whether it
    /// was.
    pub(super) fn let_go_if_gone(&mut self, number: u64) -> bool {
        let gone = self.all.get(&number).is_some_and(|m| m.mount.is_gone() && !m.in_hand);
        if let Some(m) = gone.then(|| self.remove(number)).flatten() {
            // What it frees in the background is freed by the next who mounts it.
            m.fs.revoke_now();
            m.fs.zfs().let_go();
        }
        gone
    }
}

/// Waits until something is unmounted, and sees to it that it does not stay in the table.
pub(super) async fn watch(mounts: Weak<Mutex<Mounts>>, number: u64, mount: Arc<Mount>) {
    mount.gone().await;
    let Some(mounts) = mounts.upgrade() else { return };
    let mut mounts = mounts.lock();
    // Another may be mounted of the dataset by now.
    if mounts.numbered(number).is_some_and(|m| Arc::ptr_eq(&m.mount, &mount)) {
        mounts.let_go_if_gone(number);
    }
}

/// A mount that is being unmounted, until this is dropped.
pub(super) struct InHand<'p> {
    pool: &'p Pool,
    number: u64,
    mount: Arc<Mount>,
}

impl<'p> InHand<'p> {
    pub(super) fn take(pool: &'p Pool, number: u64, mount: &Arc<Mount>) -> InHand<'p> {
        let taken = InHand { pool, number, mount: mount.clone() };
        taken.with(|m| m.in_hand = true);
        taken
    }

    /// Does something with its row, if it still has one: another may be mounted of the dataset.
    pub(super) fn with(&self, change: impl FnOnce(&mut Mounted)) {
        let mut mounts = self.pool.mounts();
        if let Some(m) = mounts.numbered(self.number).filter(|m| Arc::ptr_eq(&m.mount, &self.mount)) {
            change(m);
        }
    }

    /// It is gone.
    pub(super) fn forget(&self) {
        let mut mounts = self.pool.mounts();
        if mounts.numbered(self.number).is_some_and(|m| Arc::ptr_eq(&m.mount, &self.mount)) {
            mounts.remove(self.number);
        }
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.with(|m| m.in_hand = false);
        self.pool.mounts().let_go_if_gone(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(u64, &'static Mutex<&'static str>);

    impl Named for Fake {
        fn number(&self) -> u64 {
            self.0
        }
        fn name(&self) -> String {
            self.1.lock().to_owned()
        }
    }

    #[test]
    fn names_are_the_datasets_own() {
        static A: Mutex<&str> = Mutex::new("tank/a");
        static B: Mutex<&str> = Mutex::new("tank/b@s");
        let mut mounts = Mounts::default();
        mounts.insert(Fake(1, &A));
        mounts.insert(Fake(2, &B));
        let names = |mounts: &Mounts<Fake>| mounts.iter().map(|(n, m)| (n.clone(), m.0)).collect::<Vec<_>>();
        // Each gets the other's.
        (*A.lock(), *B.lock()) = ("tank/b@s", "tank/a");
        assert_eq!(mounts.get("tank/a").map(|m| m.0), Some(1), "nobody has said so yet");
        mounts.heed(1);
        assert_eq!(names(&mounts), [("tank/a".to_owned(), 2), ("tank/b@s".to_owned(), 1)]);
        // One is seen before its name has gone to the other, and none is lost by that.
        *A.lock() = "tank/a";
        mounts.heed(2);
        assert_eq!(mounts.iter().count(), 1);
        *B.lock() = "tank/c";
        mounts.heed(3);
        assert_eq!(names(&mounts), [("tank/a".to_owned(), 1), ("tank/c".to_owned(), 2)]);
        assert_eq!(mounts.remove(1).map(|m| m.0), Some(1));
        assert!(!mounts.contains("tank/a") && mounts.contains("tank/c"));
    }
}
