//! Changing attributes: chmod, chown, truncate, utimens, project and flags, with what POSIX ties to
//! them.

use super::attrs::encode_time;
use super::fs::Zfs;
use super::log::{ATTR_ATIME, ATTR_GID, ATTR_MODE, ATTR_MTIME, ATTR_SIZE, ATTR_UID};
use super::posix_acl;
use super::types::*;
use super::znode::{Locked, State, Znode, is_regular, stale};
use super::{SETTABLE_FLAGS, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZPL_VERSION_FUID, acl, err, fuid_to_id};
use crate::dmu::{Now, resident};
use crate::error::{Errno, Result};
use crate::txg::Tx;
use crate::zio::Leave;
use std::sync::Arc;

/// What an immutable or append-only file still takes, as on Linux's own file systems: its flags may
/// be changed, and who may write to an append-only one may also touch it. Nothing but the flags
/// themselves is changed of a file that stays immutable.
fn check_flags_allow(pflags: u64, set: &SetAttr) -> Result<()> {
    let to = |t: Option<SetTime>| matches!(t, Some(SetTime::To(_)));
    let touches = set.atime.is_some() || set.mtime.is_some();
    let sets_times = to(set.atime) || to(set.mtime) || set.ctime.is_some();
    let others = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some();
    if pflags & ZFS_IMMUTABLE != 0 {
        let after = set.flags.map_or(pflags, |(on, off)| pflags & !off | on);
        let stays = after & ZFS_IMMUTABLE != 0;
        if others || touches || sets_times || stays && (after != pflags || set.projid.is_some()) {
            return err(Errno::Perm, "the file is immutable");
        }
    }
    if pflags & ZFS_APPENDONLY != 0 && (others || sets_times) {
        return err(Errno::Perm, "the file is append-only");
    }
    Ok(())
}

impl Zfs {
    /// Changes attributes; returns them all as they are then.
    pub async fn setattr(&self, id: u64, set: SetAttr) -> Result<Attr> {
        if set.mode.is_some() && self.props().posix_acl {
            let zn = resident(|| self.znode(id)).await?;
            if zn.state.lock().attrs.xattr_obj != 0 {
                self.adopt_access_acl(&zn).await?;
            }
        }
        if let Some(size) = set.size {
            let zn = resident(|| self.znode(id)).await?;
            self.check_setattr(&zn, &zn.state.lock(), &set)?;
            self.cut_in_parts(id, size, &set).await?;
        }
        let change = self.change(|tx| {
            let zn = self.znode(id)?;
            let xattr_obj = zn.state.lock().attrs.xattr_obj;
            let owner = set.uid.is_some() || set.gid.is_some() || set.projid.is_some();
            // The directory of extended attributes belongs to the same owner, for the accounting's
            // sake.
            let xattr_dir = if owner && xattr_obj != 0 { Some(self.znode(xattr_obj)?) } else { None };
            self.setattr_now(tx, &zn, xattr_dir.as_ref(), &set)
        });
        let attr = change.await?;
        self.ended().await?;
        Ok(attr)
    }

    fn check_setattr(&self, zn: &Znode, state: &State, set: &SetAttr) -> Result<()> {
        if state.gone {
            return Err(stale(zn.id()));
        }
        let owner = (fuid_to_id(state.attrs.uid), fuid_to_id(state.attrs.gid));
        if set.judged.is_some_and(|judged| judged != owner) {
            return err(Errno::Stale, "the file's owner is another than the one that was judged by");
        }
        let pflags = state.attrs.pflags;
        // A record of a change that was made once is not to be refused.
        if !self.is_replaying() {
            check_flags_allow(pflags, set)?;
        }
        if let Some(size) = set.size {
            if state.attrs.is_dir() {
                return err(Errno::IsDir, "is a directory");
            }
            if !is_regular(&state.attrs) {
                return err(Errno::Inval, "not a regular file");
            }
            Zfs::check_size(size)?;
        }
        if set.flags.is_some_and(|(on, off)| (on | off) & !SETTABLE_FLAGS != 0) && !self.is_replaying() {
            return err(Errno::NotSup, "no such file flag");
        }
        if set.projid.is_some() && (state.attrs.legacy || !self.props().project_quota) {
            return err(Errno::NotSup, "the file system has no projects");
        }
        Ok(())
    }

    pub(super) fn setattr_now(
        &self,
        tx: &Tx,
        zn: &Arc<Znode>,
        xattr_dir: Option<&Arc<Znode>>,
        set: &SetAttr,
    ) -> Now<Attr> {
        let mut all = vec![zn];
        all.extend(xattr_dir);
        let mut locked = Locked::new(&all);
        let state = locked.get(zn);
        self.check_setattr(zn, state, set)?;
        let old = state.attrs.size;
        if set.size.is_some_and(|s| s > old) {
            self.check_quotas(&state.attrs, false)?;
        }
        self.admit(tx, 0, set.size.is_some_and(|s| s < old))?;
        match set.size {
            Some(size) if size < old => {
                self.hold_room(tx, zn.dnode().free_cost(tx, size, old), Leave::Quarter)?
            }
            Some(size) => self.hold_room(tx, self.growth_cost(tx, zn, old, size), Leave::Half)?,
            None => {}
        }
        let now = self.now();
        let mut attrs = state.attrs.clone();
        self.change_owner(&mut attrs, set);
        let owner_changed = attrs.uid != state.attrs.uid || attrs.gid != state.attrs.gid;
        if owner_changed || attrs.projid != state.attrs.projid {
            self.check_quotas(&attrs, true)?;
        }
        if let Some(mode) = set.mode {
            attrs.mode = u64::from(attrs.fmt() | mode & !S_IFMT);
        }
        if set.kill_suidgid {
            attrs.mode = super::file::without_suid(attrs.mode);
        }
        if set.kill_sgid {
            attrs.mode &= !u64::from(S_ISGID);
        }
        if set.mode.is_some() {
            attrs.set_trivial_acl(&self.sa, self.version >= ZPL_VERSION_FUID);
            // The ACL that goes with the mode has a record of its own.
            if !self.is_replaying() {
                self.chmod_posix_acl(&mut attrs)?;
            }
        } else if owner_changed && !self.props().posix_acl && !attrs.legacy && !attrs.aces.is_empty() {
            attrs.mode = acl::mode_of(attrs.mode, &attrs.aces, attrs.uid, attrs.gid);
        }
        let pick = |t: SetTime| encode_time(if let SetTime::To(t) = t { t } else { now });
        if let Some(size) = set.size {
            Zfs::resized(&mut attrs, size);
            self.content_modified(&mut attrs, now);
        }
        // Only reading the clock's changes of times leave the rest alone; every other change is one
        // of the file's state.
        self.state_changed(&mut attrs, now);
        if let Some(t) = set.atime {
            attrs.atime = pick(t);
        }
        if let Some(t) = set.mtime {
            attrs.mtime = pick(t);
        }
        if let Some(t) = set.ctime {
            attrs.ctime = encode_time(t);
        }
        if let Some((on, off)) = set.flags {
            attrs.pflags = attrs.pflags & !off | on;
        }
        let (uid, gid, projid) = (attrs.uid, attrs.gid, attrs.projid);
        let has_projid = set.projid.is_some();
        let keeps_xattrs = Arc::ptr_eq(&attrs.dxattr, &state.attrs.dxattr);
        // The ACL of the mode has room in the file itself.
        let freed_acl = if set.mode.is_some() { self.extern_acl(tx, &state.attrs)? } else { None };
        let plan = self.pack(tx, zn, attrs)?;
        let x_plan = match xattr_dir {
            Some(x) => Some((
                x,
                self.plan(tx, x, locked.get(x), |a| {
                    (a.uid, a.gid) = (uid, gid);
                    if has_projid {
                        a.add_projid(&self.sa);
                        a.projid = projid;
                    }
                    self.state_changed(a, now);
                })?,
            )),
            None => None,
        };
        if let Some(size) = set.size {
            self.resize(tx, zn, old, size)?;
        }
        let state = locked.get_mut(zn);
        let mode = state.attrs.mode;
        plan.apply(tx, zn, state);
        if let Some(acl) = freed_acl {
            self.objset.free(tx, &acl);
        }
        self.log_changes(tx, zn.id(), &state.attrs, mode, set, keeps_xattrs)?;
        if !keeps_xattrs {
            state.set_xattrs(None);
        }
        let attr = self.attr_of(zn, state);
        if let Some((x, plan)) = x_plan {
            plan.apply(tx, x, locked.get_mut(x));
        }
        tx.dirtied(512);
        Ok(attr)
    }

    /// Leaves the records of a change that was made.
    fn log_changes(
        &self,
        tx: &Tx,
        id: u64,
        attrs: &super::attrs::Attrs,
        old_mode: u64,
        set: &SetAttr,
        keeps_xattrs: bool,
    ) -> Result<()> {
        let bit = |on: bool, bit: u64| if on { bit } else { 0 };
        let mask = bit(set.mode.is_some() || attrs.mode != old_mode, ATTR_MODE)
            | bit(set.uid.is_some(), ATTR_UID)
            | bit(set.gid.is_some(), ATTR_GID)
            | bit(set.size.is_some(), ATTR_SIZE)
            | bit(set.atime.is_some(), ATTR_ATIME)
            | bit(set.mtime.is_some(), ATTR_MTIME);
        self.log_setattr(tx, id, attrs, mask, Zfs::xvattr_of(set, attrs));
        if !keeps_xattrs && attrs.links > 0 {
            let list = super::xattr::unpack(&attrs.dxattr)?;
            let acl = super::xattr::list_get(&list, posix_acl::ACCESS);
            self.log_xattr(tx, crate::zil::When::With(id), id, posix_acl::ACCESS, acl);
        }
        Ok(())
    }

    fn change_owner(&self, attrs: &mut super::attrs::Attrs, set: &SetAttr) {
        if let Some(uid) = set.uid {
            attrs.uid = u64::from(uid);
        }
        if let Some(gid) = set.gid {
            attrs.gid = u64::from(gid);
        }
        if let Some(projid) = set.projid {
            attrs.add_projid(&self.sa);
            attrs.projid = u64::from(projid);
        }
    }

    /// A chmod of a file with a POSIX ACL changes the ACL's mask, as `posix_acl_chmod` does.
    fn chmod_posix_acl(&self, attrs: &mut super::attrs::Attrs) -> Result<()> {
        if !self.props().posix_acl || attrs.dxattr.is_empty() {
            return Ok(());
        }
        let mut list = super::xattr::unpack(&attrs.dxattr)?;
        let Some(mut acl) =
            super::xattr::list_get(&list, posix_acl::ACCESS).and_then(posix_acl::PosixAcl::decode)
        else {
            return Ok(());
        };
        acl.chmod(attrs.mode as u32);
        super::xattr::list_set(&mut list, posix_acl::ACCESS, &acl.encode());
        attrs.dxattr = list.pack().into();
        Ok(())
    }
}
