//! Renaming: within and across directories, over an existing name, by exchange, and leaving a
//! whiteout behind.

use super::dir::check_name;
use super::fs::Zfs;
use super::remove::check_judged;
use super::types::*;
use super::znode::{Held, Locked, Znode};
use super::{PFLAG_XATTR, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_PROJINHERIT, dirent, dirent_obj, err};
use crate::dmu::{Now, Stop};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zap::Match;
use std::sync::Arc;
use zilla_ondisk::zil::{CreateBody, Foid, RecordBody};

/// Deeper trees than this are taken for a loop.
const MAX_DEPTH: usize = 1 << 16;
const RENAME_COST: u64 = 16 << 10;

/// The two names of a rename.
pub(super) struct Names<'a> {
    pub(super) from: &'a Arc<Znode>,
    pub(super) old: &'a [u8],
    pub(super) to: &'a Arc<Znode>,
    pub(super) new: &'a [u8],
    /// What the caller has found under them, if he means that and nothing else.
    pub(super) judged: Option<Judged>,
}

/// The file to be renamed, and the one to be replaced.
pub type Judged = (u64, Option<u64>);

fn refuse<T>(errno: Errno, what: &'static str) -> Now<T> {
    Err(Error::os(errno, what).into())
}

impl Zfs {
    /// Renames `old` in `from` to `new` in `to`. What stood under the new name loses it.
    pub async fn rename(
        self: &Arc<Self>,
        from: u64,
        old: &[u8],
        to: u64,
        new: &[u8],
        flags: RenameFlags,
        cred: Cred,
    ) -> Result<()> {
        self.rename_names(from, old, to, new, flags, cred, None).await
    }

    /// The same for who has looked at the files that the names led to, and means those: refused
    /// with ESTALE if one leads to another by now.
    pub async fn rename_judged(
        self: &Arc<Self>,
        from: u64,
        old: &[u8],
        to: u64,
        new: &[u8],
        cred: Cred,
        judged: Judged,
    ) -> Result<()> {
        self.rename_names(from, old, to, new, RenameFlags::default(), cred, Some(judged)).await
    }

    #[expect(clippy::too_many_arguments, reason = "each is another fact of one rename")]
    async fn rename_names(
        self: &Arc<Self>,
        from: u64,
        old: &[u8],
        to: u64,
        new: &[u8],
        flags: RenameFlags,
        cred: Cred,
        judged: Option<Judged>,
    ) -> Result<()> {
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return err(Errno::Inval, "an exchange always replaces");
        }
        for name in [old, new] {
            if matches!(name, b"." | b"..") {
                return err(Errno::Busy, "a directory's own names cannot be renamed");
            }
            check_name(self, name)?;
        }
        let gone: Option<Held> = self
            .change(|tx| {
                let _one_at_a_time = self.rename.lock();
                let (from, to) = (self.znode(from)?, self.znode(to)?);
                let names = Names { from: &from, old, to: &to, new, judged };
                Ok(self.rename_now(tx, &names, flags, cred, None)?.map(|zn| self.held(zn)))
            })
            .await?;
        // Frees the replaced file if that was its last name and nobody uses it.
        drop(gone);
        self.ended().await
    }

    /// Refuses to move a directory below itself.
    fn check_ancestry(&self, tx: &Tx, moved: &Znode, to: &Znode) -> Now<()> {
        let mut at = to.id();
        for _ in 0..MAX_DEPTH {
            if at == moved.id() {
                return refuse(Errno::Inval, "a directory cannot be moved into itself");
            }
            if at == self.root() {
                return Ok(());
            }
            let zn = self.znode(at)?;
            // What a later txg has moved this change must not come before, on disk or in the log:
            // it would be a loop there.
            zn.dnode().in_order(tx)?;
            let parent = zn.state.lock().attrs.parent;
            if parent == at {
                return Ok(());
            }
            at = parent;
        }
        refuse(Errno::Loop, "the directories form a loop")
    }

    /// Does it; `white` is the whiteout to be left behind, where that is known from before.
    pub(super) fn rename_now(
        self: &Arc<Self>,
        tx: &Tx,
        names: &Names<'_>,
        flags: RenameFlags,
        cred: Cred,
        white: Option<&CreateBody<'_>>,
    ) -> Now<Option<Arc<Znode>>> {
        self.check_dir(names.from)?;
        self.check_dir(names.to)?;
        let entry = |dir: &Znode, name: &[u8]| Ok::<_, Stop>(self.find_entry(dir, name)?.map(dirent_obj));
        let Some(source) = entry(names.from, names.old)? else {
            return refuse(Errno::NoEnt, "no such file or directory");
        };
        let src = self.znode(source)?;
        let target = entry(names.to, names.new)?;
        check_judged(names.judged.map(|j| Some(j.0)), Some(source))?;
        check_judged(names.judged.map(|j| j.1), target)?;
        let tgt = match target {
            Some(id) => Some(self.znode(id)?),
            None => None,
        };
        if src.state.lock().attrs.is_dir() {
            self.check_ancestry(tx, &src, names.to)?;
        }
        if let Some(t) = tgt.as_ref().filter(|t| flags.exchange && t.state.lock().attrs.is_dir()) {
            self.check_ancestry(tx, t, names.from)?;
        }
        let mut all = vec![names.from, names.to, &src];
        all.extend(tgt.as_ref());
        let locked = Locked::new(&all);
        if entry(names.from, names.old)? != Some(source) || entry(names.to, names.new)? != target {
            // Another thread was faster; look again.
            drop(locked);
            return self.rename_now(tx, names, flags, cred, white);
        }
        self.check_rename(names, &locked, &src, tgt.as_ref(), flags)?;
        let spelled = self.only_spelling(names)?;
        if tgt.as_ref().is_some_and(|t| t.id() == src.id()) && spelled.is_none() {
            return Ok(None);
        }
        self.admit(tx, RENAME_COST, tgt.is_some() && !flags.exchange)?;
        match &tgt {
            Some(t) if flags.exchange => self.exchange(tx, names, locked, &src, t).map(|()| None),
            Some(t) if t.id() != src.id() => {
                self.move_entry(tx, names, locked, (&src, None), Some(t), flags, cred, white)
            }
            _ => {
                let src = (&src, spelled.as_deref());
                self.move_entry(tx, names, locked, src, None, flags, cred, white)
            }
        }
    }

    /// If both names are one entry, of a directory that ignores case or form, which is to be
    /// spelled anew: how it is spelled.
    fn only_spelling(&self, names: &Names<'_>) -> Now<Option<Vec<u8>>> {
        if names.from.id() != names.to.id() || names.old == names.new || self.name_match == Match::Exact {
            return Ok(None);
        }
        let zap = self.dir_zap(names.from);
        let spelled = |name| Ok::<_, Stop>(zap.lookup_norm(name, self.name_match)?.map(|found| found.name));
        let (old, new) = (spelled(names.old)?, spelled(names.new)?);
        Ok(if old == new { old } else { None })
    }

    fn check_rename(
        &self,
        names: &Names<'_>,
        locked: &Locked<'_>,
        src: &Arc<Znode>,
        tgt: Option<&Arc<Znode>>,
        flags: RenameFlags,
    ) -> Now<()> {
        let (from, to, s) = (locked.get(names.from), locked.get(names.to), locked.get(src));
        if (from.attrs.pflags ^ to.attrs.pflags) & PFLAG_XATTR != 0 {
            return refuse(Errno::Inval, "extended attributes cannot be moved");
        }
        self.check_dir_change(names.from, from, false)?;
        self.check_dir_change(names.to, to, true)?;
        self.check_unlink(s)?;
        let same_dir = names.from.id() == names.to.id();
        let judged = !self.is_replaying();
        if judged && !same_dir && to.attrs.pflags & ZFS_PROJINHERIT != 0 && to.attrs.projid != s.attrs.projid
        {
            return refuse(Errno::XDev, "the directory belongs to another project");
        }
        let Some(tgt) = tgt else {
            return if flags.exchange { refuse(Errno::NoEnt, "nothing to exchange with") } else { Ok(()) };
        };
        let t = locked.get(tgt);
        if flags.no_replace {
            return refuse(Errno::Exist, "the file exists");
        }
        if src.id() == tgt.id() {
            return Ok(());
        }
        if judged && t.attrs.pflags & (ZFS_IMMUTABLE | ZFS_APPENDONLY) != 0 {
            return refuse(Errno::Perm, "the file is immutable or append-only");
        }
        if judged
            && !same_dir
            && flags.exchange
            && from.attrs.pflags & ZFS_PROJINHERIT != 0
            && from.attrs.projid != t.attrs.projid
        {
            return refuse(Errno::XDev, "the directory belongs to another project");
        }
        self.check_dir_change(names.to, to, false)?;
        self.check_unlink(t)?;
        if flags.exchange {
            return Ok(());
        }
        match (s.attrs.is_dir(), t.attrs.is_dir()) {
            (true, false) => refuse(Errno::NotDir, "the target is not a directory"),
            (false, true) => refuse(Errno::IsDir, "the target is a directory"),
            (true, true) if self.dir_zap(tgt).count()? != 0 => {
                refuse(Errno::NotEmpty, "the target is not empty")
            }
            _ => Ok(()),
        }
    }

    /// Changes what an entry holds. The name is the directory's own spelling where spelling does
    /// not matter.
    fn set_entry(&self, tx: &Tx, dir: &Znode, name: &[u8], value: u64) -> Now<()> {
        let zap = self.dir_zap(dir);
        if self.name_match == Match::Exact {
            return zap.update_u64(tx, name, value);
        }
        match zap.lookup_norm(name, self.name_match)? {
            Some(found) => zap.update_u64(tx, &found.name, value),
            None => zap.update_u64(tx, name, value),
        }
    }

    /// Swaps what two names mean.
    fn exchange(
        &self,
        tx: &Tx,
        names: &Names<'_>,
        mut locked: Locked<'_>,
        src: &Arc<Znode>,
        tgt: &Arc<Znode>,
    ) -> Now<()> {
        let now = self.now();
        let moved = |a: &mut super::attrs::Attrs, to: u64| {
            a.parent = to;
            self.state_changed(a, now);
        };
        let (s, t) = (locked.get(src), locked.get(tgt));
        let values =
            [dirent(self.version, src.id(), s.attrs.fmt()), dirent(self.version, tgt.id(), t.attrs.fmt())];
        let dirs = i64::from(t.attrs.is_dir()) - i64::from(s.attrs.is_dir());
        let s_plan = self.plan(tx, src, s, |a| moved(a, names.to.id()))?;
        let t_plan = self.plan(tx, tgt, t, |a| moved(a, names.from.id()))?;
        let same_dir = names.from.id() == names.to.id();
        let from_plan =
            self.plan_dir(tx, names.from, locked.get(names.from), 0, if same_dir { 0 } else { dirs })?;
        let to_plan = match same_dir {
            true => None,
            false => Some(self.plan_dir(tx, names.to, locked.get(names.to), 0, -dirs)?),
        };
        self.set_entry(tx, names.to, names.new, values[0])?;
        if let Err(stop) = self.set_entry(tx, names.from, names.old, values[1]) {
            let undone = self.set_entry(tx, names.to, names.new, values[1]);
            debug_assert!(undone.is_ok(), "what a held txg dirtied is in memory");
            return Err(stop);
        }
        s_plan.apply(tx, src, locked.get_mut(src));
        t_plan.apply(tx, tgt, locked.get_mut(tgt));
        from_plan.apply(tx, names.from, locked.get_mut(names.from));
        if let Some(p) = to_plan {
            p.apply(tx, names.to, locked.get_mut(names.to));
        }
        let body = RecordBody::RenameExchange {
            source_dir: names.from.id(),
            target_dir: names.to.id(),
            source: names.old,
            target: names.new,
        };
        self.log_rename(tx, &[names.from.id(), names.to.id(), src.id(), tgt.id()], body);
        Ok(())
    }

    /// Moves a name, over `tgt` if there is one; returns that. Where the name is only spelled anew
    /// the source comes with its spelling.
    #[expect(clippy::too_many_arguments, reason = "each is another fact of one rename")]
    fn move_entry(
        self: &Arc<Self>,
        tx: &Tx,
        names: &Names<'_>,
        mut locked: Locked<'_>,
        (src, spelled): (&Arc<Znode>, Option<&[u8]>),
        tgt: Option<&Arc<Znode>>,
        flags: RenameFlags,
        cred: Cred,
        logged: Option<&CreateBody<'_>>,
    ) -> Now<Option<Arc<Znode>>> {
        let now = self.now();
        let s = locked.get(src);
        let is_dir = i64::from(s.attrs.is_dir());
        let value = dirent(self.version, src.id(), s.attrs.fmt());
        let s_plan = self.plan(tx, src, s, |a| {
            a.parent = names.to.id();
            self.state_changed(a, now);
        })?;
        let t_plan = match tgt {
            Some(t) => Some((t, self.plan_unlink(tx, t, locked.get(t))?)),
            None => None,
        };
        let replaced = i64::from(tgt.is_some());
        // A directory over a directory: one comes, one goes. What leaves `from` counts there.
        let whiteout = i64::from(flags.whiteout);
        let same_dir = names.from.id() == names.to.id();
        let dirs_to = is_dir - if tgt.is_some() { is_dir } else { 0 };
        let (from_by, from_dirs) = (whiteout - 1, -is_dir);
        let (to_by, to_dirs) = (1 - replaced, dirs_to);
        let (from_plan, to_plan) = if same_dir {
            (
                self.plan_dir(tx, names.from, locked.get(names.from), from_by + to_by, from_dirs + to_dirs)?,
                None,
            )
        } else {
            let to = self.plan_dir(tx, names.to, locked.get(names.to), to_by, to_dirs)?;
            (self.plan_dir(tx, names.from, locked.get(names.from), from_by, from_dirs)?, Some(to))
        };
        let white = match flags.whiteout {
            true => {
                let parent = &locked.get(names.from).attrs;
                Some(match logged {
                    Some(c) => self.logged_whiteout(tx, names.from, parent, c)?,
                    None => self.alloc_whiteout(tx, names.from, parent, cred)?,
                })
            }
            false => None,
        };
        let back = |stop: Stop| {
            if let Some((dn, _)) = &white {
                self.objset.free(tx, dn);
            }
            Err(stop)
        };
        let last = matches!(&t_plan, Some((_, (_, true))));
        let queue = match tgt.filter(|_| last).map(|t| self.enqueue(tx, t.id())) {
            Some(Err(stop)) => return back(stop),
            Some(Ok(queue)) => Some(queue),
            None => None,
        };
        let old_value = tgt.map(|t| dirent(self.version, t.id(), locked.get(t).attrs.fmt()));
        let mut changed = match old_value {
            Some(_) => self.set_entry(tx, names.to, names.new, value),
            None if spelled.is_some() => Ok(()),
            None => self.add_entry(tx, names.to, names.new, value),
        };
        if changed.is_ok() {
            changed = match &white {
                Some((dn, _)) => {
                    self.set_entry(tx, names.from, names.old, dirent(self.version, dn.id().0, S_IFCHR))
                }
                None => self.remove_entry(tx, names.from, names.old),
            };
            let undone = match (old_value, spelled) {
                (None, Some(spelled)) if changed.is_ok() => {
                    // The one entry was just taken away; in its place comes the new spelling.
                    changed = self.add_entry(tx, names.to, names.new, value);
                    match (&changed, &white) {
                        (Ok(()), _) => Ok(()),
                        (Err(_), Some(_)) => self.set_entry(tx, names.from, names.old, value),
                        (Err(_), None) => self.add_entry(tx, names.from, spelled, value),
                    }
                }
                _ if changed.is_ok() => Ok(()),
                (Some(v), _) => self.set_entry(tx, names.to, names.new, v),
                (None, Some(_)) => Ok(()),
                (None, None) => self.dir_zap(names.to).remove(tx, names.new),
            };
            debug_assert!(undone.is_ok(), "what a held txg dirtied is in memory");
        }
        if let Err(stop) = changed {
            if let Some(t) = tgt.filter(|_| last) {
                self.dequeue(tx, t.id());
            }
            return back(stop);
        }
        drop(queue);
        s_plan.apply(tx, src, locked.get_mut(src));
        if let Some((t, (plan, _))) = t_plan {
            plan.apply(tx, t, locked.get_mut(t));
        }
        from_plan.apply(tx, names.from, locked.get_mut(names.from));
        if let Some(p) = to_plan {
            p.apply(tx, names.to, locked.get_mut(names.to));
        }
        let (source_dir, target_dir) = (names.from.id(), names.to.id());
        let (source, target) = (names.old, names.new);
        if let (Some(t), Some(log)) = (tgt, self.zil()) {
            log.unlinked(t.id(), last);
        }
        let body = match white {
            None => RecordBody::Rename { source_dir, target_dir, source, target },
            Some((dn, attrs)) => {
                let whiteout = Foid { object: dn.id().0, slots: dn.slots() };
                let (mode, uid, gid) = (attrs.mode, attrs.uid, attrs.gid);
                let (generation, crtime, rdev) = (attrs.generation, attrs.crtime, attrs.rdev);
                self.adopt(dn, attrs);
                RecordBody::RenameWhiteout {
                    source_dir,
                    target_dir,
                    source,
                    target,
                    whiteout,
                    mode,
                    uid,
                    gid,
                    generation,
                    crtime,
                    rdev,
                }
            }
        };
        self.log_rename(tx, &[source_dir, target_dir, src.id()], body);
        Ok(tgt.cloned())
    }

    /// The character device 0:0 that overlay file systems take for "removed".
    fn alloc_whiteout(
        &self,
        tx: &Tx,
        dir: &Znode,
        parent: &super::attrs::Attrs,
        cred: Cred,
    ) -> Now<(Arc<crate::dmu::Dnode>, super::attrs::Attrs)> {
        let attrs = self.new_attrs(tx, dir.id(), parent, None, &NewFile::new(S_IFCHR, cred))?;
        let packed = self.pack_new(tx, &attrs)?;
        Ok((self.alloc_file(tx, &attrs, packed, 0, None)?, attrs))
    }
}
