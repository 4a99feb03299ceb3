//! Taking names away.

use super::dir::check_name;
use super::fs::Zfs;
use super::znode::{Locked, Plan, State, Znode};
use super::{ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_NOUNLINK, dirent_obj, err};
use crate::dmu::{Now, Stop, count};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zap::{Match, Zap};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Refuses what was judged by another file than the name leads to.
pub(super) fn check_judged(judged: Option<Option<u64>>, found: Option<u64>) -> Result<()> {
    match judged.is_some_and(|judged| judged != found) {
        true => err(Errno::Stale, "the name has come to mean another file"),
        false => Ok(()),
    }
}

impl Zfs {
    pub(super) fn remove_entry(&self, tx: &Tx, dir: &Znode, name: &[u8]) -> Now<()> {
        self.remove_as(tx, dir, name, self.name_match)
    }

    /// The same by a way of comparing names.
    fn remove_as(&self, tx: &Tx, dir: &Znode, name: &[u8], how: Match) -> Now<()> {
        let zap = self.dir_zap(dir);
        match how {
            Match::Exact => zap.remove(tx, name),
            how => zap.remove_norm(tx, name, how),
        }
    }

    /// A file's attributes once it has lost a name, and whether that was its last.
    pub(super) fn plan_unlink(&self, tx: &Tx, zn: &Znode, state: &State) -> Now<(Plan, bool)> {
        let now = self.now();
        let last = state.attrs.is_dir() || state.attrs.links <= 1;
        let plan = self.plan(tx, zn, state, |a| {
            if last {
                a.links = 0;
            } else {
                a.links -= 1;
                self.state_changed(a, now);
            }
        })?;
        Ok((plan, last))
    }

    pub(super) fn delete_queue(&self) -> Result<&Zap> {
        self.unlinked.as_ref().ok_or_else(|| Error::os(Errno::ROFs, "the file system has no delete queue"))
    }

    /// The key of an object in the delete queue.
    pub(super) fn queue_key(id: u64) -> String {
        format!("{id:x}")
    }

    /// Puts a file that loses its last name into the delete queue. As long as the result is kept
    /// nobody else changes the queue, so that [`Zfs::dequeue`] can take it back.
    pub(super) fn enqueue(&self, tx: &Tx, id: u64) -> Now<MutexGuard<'_, ()>> {
        let alone = self.queue.lock();
        match self.delete_queue()?.add_u64(tx, Zfs::queue_key(id).as_bytes(), id) {
            // A crash between two txgs cannot leave it there, but damage can; what matters is that
            // it is there.
            Err(Stop::Err(e)) if e.is(Errno::Exist) => Ok(alone),
            Err(stop) => Err(stop),
            Ok(()) => {
                count(&self.objset.stats.unlinks, 1);
                Ok(alone)
            }
        }
    }

    /// Undoes [`Zfs::enqueue`] in the same txg.
    pub(super) fn dequeue(&self, tx: &Tx, id: u64) {
        let undone = self.delete_queue().map(|q| q.remove(tx, Zfs::queue_key(id).as_bytes()));
        debug_assert!(matches!(undone, Ok(Ok(()))), "what a held txg dirtied is in memory");
        self.objset.stats.unlinks.fetch_sub(1, Ordering::Relaxed);
    }

    /// Refuses to take the name of a file that its flags protect.
    pub(super) fn check_unlink(&self, state: &State) -> Result<()> {
        let protects = ZFS_IMMUTABLE | ZFS_APPENDONLY | ZFS_NOUNLINK;
        if state.attrs.pflags & protects != 0 && !self.is_replaying() {
            return err(Errno::Perm, "the file is immutable, append-only or may not be unlinked");
        }
        Ok(())
    }

    pub(super) fn remove_now(
        &self,
        tx: &Tx,
        dir: &Arc<Znode>,
        name: &[u8],
        want_dir: bool,
        judged: Option<u64>,
    ) -> Now<Arc<Znode>> {
        self.check_dir(dir)?;
        let missing = || Stop::Err(Error::os(Errno::NoEnt, "no such file or directory"));
        let pflags = dir.state.lock().attrs.pflags;
        let find = || {
            let how = self.match_in(dir, pflags, name)?;
            Ok::<_, Stop>(self.find_as(dir, name, how)?.map(|v| (dirent_obj(v), how)))
        };
        let found = find()?;
        let (id, how) = found.ok_or_else(missing)?;
        check_judged(judged.map(Some), Some(id))?;
        let zn = self.znode(id)?;
        let mut locked = Locked::new(&[dir, &zn]);
        // Before the locks were taken another file may have come to have the name.
        if find()? != found {
            drop(locked);
            return self.remove_now(tx, dir, name, want_dir, judged);
        }
        self.check_dir_change(dir, locked.get(dir), false)?;
        let state = locked.get(&zn);
        self.check_unlink(state)?;
        let is_dir = state.attrs.is_dir();
        match (want_dir, is_dir) {
            (true, false) => return Err(Error::os(Errno::NotDir, "not a directory").into()),
            (false, true) => return Err(Error::os(Errno::IsDir, "is a directory").into()),
            (true, true) if self.dir_zap(&zn).count()? != 0 => {
                return Err(Error::os(Errno::NotEmpty, "the directory is not empty").into());
            }
            _ => {}
        }
        self.admit(tx, 0, true)?;
        let (file, last) = self.plan_unlink(tx, &zn, state)?;
        let parent = self.plan_dir(tx, dir, locked.get(dir), -1, -i64::from(is_dir))?;
        let _queue = if last { Some(self.enqueue(tx, id)?) } else { None };
        if let Err(stop) = self.remove_as(tx, dir, name, how) {
            if last {
                self.dequeue(tx, id);
            }
            return Err(stop);
        }
        file.apply(tx, &zn, locked.get_mut(&zn));
        parent.apply(tx, dir, locked.get_mut(dir));
        self.log_remove(tx, dir.id(), name, id, is_dir, last);
        drop(locked);
        Ok(zn)
    }

    async fn remove(
        self: &Arc<Self>,
        dir: u64,
        name: &[u8],
        want_dir: bool,
        judged: Option<u64>,
    ) -> Result<()> {
        check_name(self, name)?;
        // Held, so that the file is freed here and now if nobody else uses it.
        let held = self
            .change(|tx| {
                let dzn = self.znode(dir)?;
                Ok(self.held(self.remove_now(tx, &dzn, name, want_dir, judged)?))
            })
            .await?;
        drop(held);
        self.ended().await
    }

    /// Takes a file's name away; the file goes with its last name and last user.
    pub async fn unlink(self: &Arc<Self>, dir: u64, name: &[u8]) -> Result<()> {
        if matches!(name, b"." | b"..") {
            return err(Errno::IsDir, "is a directory");
        }
        self.remove(dir, name, false, None).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(self: &Arc<Self>, dir: u64, name: &[u8]) -> Result<()> {
        match name {
            b"." => err(Errno::Inval, "a directory cannot be removed from within"),
            b".." => err(Errno::NotEmpty, "the directory is not empty"),
            _ => self.remove(dir, name, true, None).await,
        }
    }

    /// [`Zfs::unlink`], or [`Zfs::rmdir`] of a directory, for who has looked at the file that the
    /// name led to and means that one: refused with ESTALE if it leads to another by now.
    pub async fn remove_judged(
        self: &Arc<Self>,
        dir: u64,
        name: &[u8],
        is_dir: bool,
        file: u64,
    ) -> Result<()> {
        self.remove(dir, name, is_dir, Some(file)).await
    }
}
