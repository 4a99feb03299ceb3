//! Doing what log records say.
//!
//! Each record is one transaction, which also says in the log's header that it was done. New files
//! get the numbers, generations and times they had; what OpenZFS does not log (times of contents
//! and of directories) is as of the replay. Nothing is logged meanwhile.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use super::attrs::{Attrs, decode_time};
use super::fs::Zfs;
use super::log::*;
use super::rename::Names;
use super::sa::Kind;
use super::types::*;
use super::znode::Znode;
use super::{PFLAG_ACL_TRIVIAL, PFLAG_XATTR, dirent};
use crate::dmu::{Now, PART, resident};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId};
use crate::zap::Match;
use crate::zil::{Replay, Replayed};
use crate::zio::Leave;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::zil::{CreateBody, Foid, LogRecord, LrAcl, RecordBody, Xvattr};
use zilla_ondisk::znode::encode_aces;

/// Objects whose numbers are so far beyond all there are were not made by a log of this file
/// system.
const MAX_AHEAD: u64 = 1 << 24;

/// An object to be made where it was.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) id: ObjectId,
    pub(super) dnodesize: usize,
}

struct Replayer(Arc<Zfs>);

impl Replay for Replayer {
    fn replay<'a>(&'a self, record: &'a LogRecord<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.0.replay_record(record))
    }
    fn again<'a>(&'a self, record: &'a LogRecord<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { unless_gone(self.0.replay_again(record).await) })
    }
}

/// Changes of a file that was removed since are dropped: they may have been logged out of order
/// with it.
fn unless_gone(result: Result<()>) -> Result<()> {
    match result {
        Err(e) if e.is(Errno::NoEnt) || e.is(Errno::Stale) => Ok(()),
        other => other,
    }
}

fn own_id(what: &str, id: u64) -> Result<u64> {
    if id >> 32 != 0 {
        let what =
            format!("{what} {id:#x} is of a domain of Windows identities, which zilla does not support");
        return Err(Error::os(Errno::NotSup, what));
    }
    Ok(id)
}

impl Zfs {
    /// Brings the file system to where its log says it was, and begins to log. Once, when it is
    /// opened for writing.
    pub(super) async fn start_log(self: &Arc<Self>) -> Result<Replayed> {
        let Some(log) = self.log.clone() else { return Ok(Replayed::default()) };
        if log.is_started() {
            return Ok(Replayed::default());
        }
        self.replaying.store(true, Ordering::Release);
        let result = self.start_log_replaying(&log).await;
        self.replaying.store(false, Ordering::Release);
        let done = result?;
        let (objset, records) = (self.objset.id(), done.records);
        match &done.stopped {
            Some(why) => {
                tracing::error!(objset, records, "intent log replayed in part, and kept: {why}");
                let first = self.kept_log.set(why.clone());
                debug_assert!(first.is_ok(), "a log is started once");
            }
            None if records > 0 => tracing::info!(objset, records, "intent log replayed"),
            None => {}
        }
        Ok(done)
    }

    async fn start_log_replaying(self: &Arc<Self>, log: &Arc<crate::zil::Zilog>) -> Result<Replayed> {
        if crate::zil::needs_replay(&self.objset.phys().zil_header) {
            // Files that were removed before the crash give their numbers back first.
            self.drain_unlinked().await?;
        }
        log.start(&self.objset, &Replayer(self.clone())).await
    }

    /// Runs `op` in a transaction that says that the record is done.
    async fn redo<T>(&self, seq: u64, mut op: impl FnMut(&Tx) -> Now<T>) -> Result<T> {
        self.change(|tx| {
            let done = op(tx)?;
            if let Some(log) = &self.log {
                log.replayed(tx, seq);
            }
            Ok(done)
        })
        .await
    }

    pub(super) async fn replay_record(self: &Arc<Self>, record: &LogRecord<'_>) -> Result<()> {
        let seq = record.header.seq;
        match &record.body {
            RecordBody::Commit => Ok(()),
            RecordBody::Create(c) | RecordBody::Mkdir(c) | RecordBody::Symlink(c) => {
                let is_dir = matches!(record.body, RecordBody::Mkdir(_));
                if (c.mode as u32 & S_IFMT == S_IFDIR) != is_dir {
                    return Err(Error::inval("the record's type and the file's differ"));
                }
                self.check_foid(&c.file)?;
                self.redo(seq, |tx| self.replay_create(tx, c).map(drop)).await
            }
            RecordBody::Mkxattr(c) => {
                self.check_foid(&c.file)?;
                self.redo(seq, |tx| self.replay_mkxattr(tx, c)).await
            }
            RecordBody::Remove { dir, name } => self.replay_remove(seq, *dir, name, false).await,
            RecordBody::Rmdir { dir, name } => self.replay_remove(seq, *dir, name, true).await,
            RecordBody::Link { dir, object, name } => {
                self.redo(seq, |tx| {
                    let (dzn, zn) = (self.znode(*dir)?, self.znode(*object)?);
                    self.link_now(tx, &dzn, name, &zn)
                })
                .await
            }
            RecordBody::Rename { source_dir, target_dir, source, target } => {
                let flags = RenameFlags::default();
                self.replay_rename(seq, (*source_dir, source), (*target_dir, target), flags, None).await
            }
            RecordBody::RenameExchange { source_dir, target_dir, source, target } => {
                let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
                self.replay_rename(seq, (*source_dir, source), (*target_dir, target), flags, None).await
            }
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
            } => {
                self.check_foid(whiteout)?;
                let white = CreateBody {
                    dir: *source_dir,
                    file: *whiteout,
                    mode: *mode,
                    uid: *uid,
                    gid: *gid,
                    generation: *generation,
                    crtime: *crtime,
                    rdev: *rdev,
                    name: source,
                    link: None,
                    xvattr: None,
                    acl: None,
                };
                let flags = RenameFlags { whiteout: true, ..RenameFlags::default() };
                let (from, to) = ((*source_dir, *source), (*target_dir, *target));
                self.replay_rename(seq, from, to, flags, Some(&white)).await
            }
            RecordBody::Write { object, offset, length, blkptr, data } => {
                unless_gone(self.replay_write(seq, *object, *offset, *length, blkptr, data).await)
            }
            RecordBody::Write2 { object, offset, length, .. } => {
                let end = offset.saturating_add(*length);
                unless_gone(self.redo(seq, |tx| self.replay_size(tx, *object, end)).await)
            }
            RecordBody::Truncate { object, offset, length } => {
                let end = offset.saturating_add(*length);
                let freed = match length {
                    0 => self.cut_in_parts(*object, *offset, &SetAttr::default()).await,
                    _ => self.punch_in_parts(*object, *offset, end, false).await.map(drop),
                };
                let redo = self.redo(seq, |tx| self.replay_truncate(tx, *object, *offset, *length));
                unless_gone(match freed {
                    Ok(()) => redo.await,
                    Err(e) => Err(e),
                })
            }
            RecordBody::Setattr { object, mask, mode, uid, gid, size, atime, mtime, xvattr } => {
                let on = |bit: u64| mask & bit != 0;
                let time = |t: [u64; 2]| SetTime::To(decode_time(t));
                let set = SetAttr {
                    mode: on(ATTR_MODE).then_some(*mode as u32),
                    uid: if on(ATTR_UID) { Some(own_id("the owner", *uid)? as u32) } else { None },
                    gid: if on(ATTR_GID) { Some(own_id("the group", *gid)? as u32) } else { None },
                    size: on(ATTR_SIZE).then_some(*size),
                    atime: on(ATTR_ATIME).then(|| time(*atime)),
                    mtime: on(ATTR_MTIME).then(|| time(*mtime)),
                    ..SetAttr::default()
                };
                unless_gone(self.replay_setattr(seq, *object, set, xvattr.as_ref()).await)
            }
            RecordBody::Acl { object, acl } => {
                unless_gone(self.redo(seq, |tx| self.replay_acl(tx, *object, acl)).await)
            }
            RecordBody::Setsaxattr { object, name, value } => {
                let name = std::str::from_utf8(name)
                    .map_err(|_| Error::inval("the extended attribute's name is not UTF-8"))?;
                let value = Some(*value).filter(|v| !v.is_empty());
                let done = self
                    .redo(seq, |tx| {
                        let zn = self.znode(*object)?;
                        self.sa_xattr_set(tx, &zn, name, value, |_| Ok(()))
                    })
                    .await;
                unless_gone(done)
            }
            RecordBody::CloneRange { object, offset, length, blksz, bps } => {
                unless_gone(self.replay_clone(seq, *object, *offset, *length, *blksz, bps).await)
            }
        }
    }

    /// Refuses an object that cannot have been made.
    fn check_foid(&self, file: &Foid) -> Result<()> {
        let end = (self.objset.phys().meta_dnode.maxblkid + 1) * 32;
        if file.slots == 0 || file.slots > 32 || file.object > end.saturating_add(MAX_AHEAD) {
            let what = format!("object {} of {} slots cannot be", file.object, file.slots);
            return Err(Error::inval(what));
        }
        Ok(())
    }

    /// The attributes of a file as a record has them.
    fn logged_attrs(&self, tx: &Tx, dir: u64, parent: &Attrs, c: &CreateBody<'_>) -> Now<(Attrs, Place)> {
        let cred = Cred { uid: own_id("the owner", c.uid)? as u32, gid: own_id("the group", c.gid)? as u32 };
        let target = c.link.unwrap_or_default();
        let new = NewFile { target, ..NewFile::new(c.mode as u32, cred) };
        let mut attrs = self.new_attrs(tx, dir, parent, None, &new)?;
        if attrs.mode != c.mode {
            attrs.mode = c.mode;
            attrs.set_trivial_acl(&self.sa, self.has_fuids());
        }
        (attrs.uid, attrs.gid) = (c.uid, c.gid);
        attrs.generation = c.generation;
        (attrs.crtime, attrs.atime, attrs.mtime, attrs.ctime) = (c.crtime, c.crtime, c.crtime, c.crtime);
        if matches!(attrs.fmt(), S_IFBLK | S_IFCHR) {
            attrs.rdev = c.rdev;
        }
        if let Some(x) = &c.xvattr {
            self.apply_xvattr(&mut attrs, x);
        }
        if let Some(acl) = &c.acl {
            self.apply_acl(&mut attrs, acl)?;
        }
        let dnodesize = if attrs.legacy { 512 } else { usize::from(c.file.slots) << 9 };
        Ok((attrs, Place { id: ObjectId(c.file.object), dnodesize }))
    }

    fn replay_create(self: &Arc<Self>, tx: &Tx, c: &CreateBody<'_>) -> Now<Arc<Znode>> {
        let dir = self.znode(c.dir)?;
        let mut state = dir.state.lock();
        // Extended attributes have names of their own kind: with slashes, and each spelling is
        // another.
        let is_xattr = state.attrs.pflags & PFLAG_XATTR != 0;
        let how = if is_xattr { Match::Exact } else { self.name_match };
        if !is_xattr {
            super::dir::check_name(self, c.name)?;
        }
        self.check_dir_change(&dir, &state, true)?;
        if self.find_as(&dir, c.name, how)?.is_some() {
            return Err(Error::os(Errno::Exist, "the file exists").into());
        }
        let (attrs, place) = self.logged_attrs(tx, dir.id(), &state.attrs, c)?;
        let is_dir = attrs.is_dir();
        self.admit(tx, 0, true)?;
        let packed = self.pack_at(tx, &attrs, place.dnodesize)?;
        let parent = self.plan_dir(tx, &dir, &state, 1, i64::from(is_dir))?;
        let normflags = if is_dir { self.normflags()? } else { 0 };
        let dn = self.alloc_file(tx, &attrs, packed, normflags, Some(place))?;
        let value = dirent(self.version, dn.id().0, attrs.fmt());
        if let Err(stop) = self.add_entry(tx, &dir, c.name, value) {
            self.objset.free(tx, &dn);
            return Err(stop);
        }
        parent.apply(tx, &dir, &mut state);
        drop(state);
        Ok(self.adopt(dn, attrs))
    }

    /// The directory of a file's extended attributes.
    fn replay_mkxattr(&self, tx: &Tx, c: &CreateBody<'_>) -> Now<()> {
        let zn = self.znode(c.dir)?;
        let mut state = zn.state.lock();
        if state.attrs.xattr_obj != 0 {
            return Err(Error::os(Errno::Exist, "the file has a directory of attributes").into());
        }
        let mut parent = state.attrs.clone();
        parent.pflags |= PFLAG_XATTR;
        parent.mode &= !u64::from(S_ISGID);
        let (attrs, place) = self.logged_attrs(tx, zn.id(), &parent, c)?;
        let packed = self.pack_at(tx, &attrs, place.dnodesize)?;
        let plan = self.plan(tx, &zn, &state, |a| {
            a.xattr_obj = c.file.object;
            a.add(&self.sa, Kind::Xattr);
        })?;
        let normflags = self.normflags()?;
        let dn = self.alloc_file(tx, &attrs, packed, normflags, Some(place))?;
        plan.apply(tx, &zn, &mut state);
        drop(state);
        self.adopt(dn, attrs);
        Ok(())
    }

    async fn replay_remove(self: &Arc<Self>, seq: u64, dir: u64, name: &[u8], is_dir: bool) -> Result<()> {
        let zn = self
            .redo(seq, |tx| {
                let dzn = self.znode(dir)?;
                self.remove_now(tx, &dzn, name, is_dir, None)
            })
            .await?;
        self.reap_replayed(&zn).await
    }

    /// Frees a file that has lost its last name, now: its number may come again.
    async fn reap_replayed(self: &Arc<Self>, zn: &Arc<Znode>) -> Result<()> {
        let unlinked = zn.state.lock().attrs.links == 0;
        if unlinked { self.clone().reap(zn.id()).await } else { Ok(()) }
    }

    async fn replay_rename(
        self: &Arc<Self>,
        seq: u64,
        (from, old): (u64, &[u8]),
        (to, new): (u64, &[u8]),
        flags: RenameFlags,
        white: Option<&CreateBody<'_>>,
    ) -> Result<()> {
        for name in [old, new] {
            super::dir::check_name(self, name)?;
        }
        let gone = self
            .redo(seq, |tx| {
                let _one_at_a_time = self.rename.lock();
                let (from, to) = (self.znode(from)?, self.znode(to)?);
                let names = Names { from: &from, old, to: &to, new, judged: None };
                self.rename_now(tx, &names, flags, Cred::default(), white)
            })
            .await?;
        match gone {
            Some(zn) => self.reap_replayed(&zn).await,
            None => Ok(()),
        }
    }

    /// The whiteout that a rename left behind.
    pub(super) fn logged_whiteout(
        &self,
        tx: &Tx,
        dir: &Znode,
        parent: &Attrs,
        c: &CreateBody<'_>,
    ) -> Now<(Arc<crate::dmu::Dnode>, Attrs)> {
        let (attrs, place) = self.logged_attrs(tx, dir.id(), parent, c)?;
        let packed = self.pack_at(tx, &attrs, place.dnodesize)?;
        Ok((self.alloc_file(tx, &attrs, packed, 0, Some(place))?, attrs))
    }

    async fn replay_write(
        &self,
        seq: u64,
        object: u64,
        offset: u64,
        length: u64,
        bp: &BlkPtr,
        data: &[u8],
    ) -> Result<()> {
        let end = offset.checked_add(length).filter(|e| *e <= i64::MAX as u64);
        let end = end.ok_or_else(|| Error::inval(format!("a write of {length} bytes at {offset}")))?;
        if !data.is_empty() {
            let data = Bytes::copy_from_slice(data);
            return self.redo(seq, |tx| self.replay_data(tx, object, offset, &data, end)).await;
        }
        // The file may be gone; then it does not matter whether the data can still be read.
        resident(|| self.znode(object)).await?;
        let (at, block) = crate::zil::logged_block(&self.objset, object, offset, length, bp).await?;
        self.redo(seq, |tx| self.replay_data(tx, object, at, &block, end)).await
    }

    /// Puts bytes into a file, whose end is then at `end` at least.
    fn replay_data(&self, tx: &Tx, object: u64, at: u64, data: &Bytes, end: u64) -> Now<()> {
        let zn = self.znode(object)?;
        let mut state = zn.state.lock();
        Zfs::check_file(&zn, &state)?;
        let now = self.now();
        let size = state.attrs.size.max(end);
        let plan = self.plan(tx, &zn, &state, |a| {
            a.size = size;
            self.content_modified(a, now);
        })?;
        // A block of the log's may go on where no file does, and the object could not be written.
        let room = (i64::MAX as u64).saturating_sub(at).min(data.len() as u64);
        let data = data.slice(..room as usize);
        self.grow(tx, zn.dnode(), state.attrs.size, at.saturating_add(room))?;
        zn.dnode().write_records(tx, at, &data);
        plan.apply(tx, &zn, &mut state);
        Ok(())
    }

    /// Of a change that was replayed before: what lies in blocks that cannot be read. The size is
    /// already what it came to be.
    async fn replay_again(&self, record: &LogRecord<'_>) -> Result<()> {
        let (object, at, data, parts) = match &record.body {
            RecordBody::Write { object, offset, length, blkptr, data } => {
                let zn = resident(|| self.znode(*object)).await?;
                let parts = zn.dnode().unreadable(*offset, *length).await;
                if parts.is_empty() {
                    return Ok(());
                }
                let (at, data) = if data.is_empty() {
                    crate::zil::logged_block(&self.objset, *object, *offset, *length, blkptr).await?
                } else {
                    (*offset, Bytes::copy_from_slice(data))
                };
                (*object, at, Some(data), parts)
            }
            RecordBody::Truncate { object, offset, length } => {
                let zn = resident(|| self.znode(*object)).await?;
                let length = if *length == 0 { u64::MAX } else { *length };
                (*object, *offset, None, zn.dnode().unsynced(*offset, length))
            }
            _ => return Ok(()),
        };
        for (from, to) in parts {
            self.change(|tx| {
                let zn = self.znode(object)?;
                let state = zn.state.lock();
                Zfs::check_file(&zn, &state)?;
                let to = to.min(state.attrs.size);
                let part = match &data {
                    Some(data) => {
                        let (skip, end) = (from.saturating_sub(at), to.saturating_sub(at));
                        let (skip, end) = (skip.min(data.len() as u64), end.min(data.len() as u64));
                        data.slice(skip.min(end) as usize..end as usize)
                    }
                    None => vec![0; to.saturating_sub(from) as usize].into(),
                };
                zn.dnode().write_records(tx, from, &part);
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    fn replay_size(&self, tx: &Tx, object: u64, end: u64) -> Now<()> {
        Zfs::check_size(end)?;
        let zn = self.znode(object)?;
        let mut state = zn.state.lock();
        Zfs::check_file(&zn, &state)?;
        let plan = self.plan(tx, &zn, &state, |a| a.size = a.size.max(end))?;
        plan.apply(tx, &zn, &mut state);
        Ok(())
    }

    /// Frees a range, or cuts; what lies beyond the end extends the file, as OpenZFS's `F_FREESP`
    /// does.
    pub(super) fn replay_truncate(&self, tx: &Tx, object: u64, offset: u64, length: u64) -> Now<()> {
        let end = offset.checked_add(length).ok_or_else(|| Error::inval("a range beyond all files"))?;
        Zfs::check_size(end)?;
        let zn = self.znode(object)?;
        let mut state = zn.state.lock();
        Zfs::check_file(&zn, &state)?;
        let (now, old) = (self.now(), state.attrs.size);
        let size = match length {
            0 => offset,
            _ => old.max(end),
        };
        self.admit(tx, 0, true)?;
        let (from, to) = if length == 0 { (offset, old) } else { (offset, end) };
        self.hold_room(tx, zn.dnode().free_cost(tx, from.min(old), to.min(old)), Leave::Eighth)?;
        self.hold_room(tx, self.growth_cost(tx, &zn, old, size), Leave::Eighth)?;
        let plan = self.plan(tx, &zn, &state, |a| {
            Zfs::resized(a, size);
            self.content_modified(a, now);
        })?;
        if length > 0 && offset < old {
            zn.dnode().free_some(tx, offset, length.min(old - offset), PART);
        }
        self.resize(tx, &zn, old, size)?;
        plan.apply(tx, &zn, &mut state);
        Ok(())
    }

    async fn replay_setattr(
        &self,
        seq: u64,
        object: u64,
        mut set: SetAttr,
        x: Option<&Xvattr>,
    ) -> Result<()> {
        if let Some(x) = x {
            let (on, off, projid) = self.xvattr_changes(x);
            set.flags = Some((on, off)).filter(|f| *f != (0, 0));
            set.projid = projid.filter(|_| self.props().project_quota);
        }
        if let Some(size) = set.size {
            self.cut_in_parts(object, size, &set).await?;
        }
        self.redo(seq, |tx| {
            let zn = self.znode(object)?;
            let (xattr_obj, legacy) = {
                let a = &zn.state.lock().attrs;
                (a.xattr_obj, a.legacy)
            };
            // Files of old file systems have no project to change.
            set.projid = set.projid.filter(|_| !legacy);
            let owner = set.uid.is_some() || set.gid.is_some() || set.projid.is_some();
            let xattr_dir = if owner && xattr_obj != 0 { Some(self.znode(xattr_obj)?) } else { None };
            self.setattr_now(tx, &zn, xattr_dir.as_ref(), &set).map(drop)
        })
        .await
    }

    /// Flags to set and to clear, and the project, that a record's extended attributes mean.
    fn xvattr_changes(&self, x: &Xvattr) -> (u64, u64, Option<u32>) {
        let bits = x.bitmap.first().copied().unwrap_or(0);
        let (mut on, mut off) = (0, 0);
        for (bit, flag) in XAT_FLAGS.iter().filter(|(b, _)| bits & b != 0) {
            if x.attrs & u64::from(*bit) != 0 {
                on |= flag;
            } else {
                off |= flag;
            }
        }
        let projid = x.scanstamp.first_chunk::<8>().map(|b| u64::from_ne_bytes(*b) as u32);
        (on, off, projid.filter(|_| bits & XAT_PROJID != 0))
    }

    fn apply_xvattr(&self, attrs: &mut Attrs, x: &Xvattr) {
        let (on, off, projid) = self.xvattr_changes(x);
        attrs.pflags = attrs.pflags & !off | on;
        if x.bitmap.first().is_some_and(|b| b & XAT_CREATETIME != 0) {
            attrs.crtime = x.crtime;
        }
        if let Some(projid) = projid.filter(|_| self.props().project_quota) {
            attrs.add_projid(&self.sa);
            attrs.projid = u64::from(projid);
        }
    }

    /// Gives a file the ACL of a record.
    fn apply_acl(&self, attrs: &mut Attrs, acl: &LrAcl) -> Result<()> {
        if !acl.fuids.is_empty() || acl.aces.iter().any(|a| a.who >> 32 != 0) {
            let what = "an ACL names Windows identities, which zilla does not support";
            return Err(Error::os(Errno::NotSup, what));
        }
        if attrs.legacy {
            // Old znodes are only made by pools that no log of theirs can be newer than.
            return Err(Error::os(Errno::NotSup, "an ACL of a file of an old file system"));
        }
        attrs.aces = encode_aces(&acl.aces).into();
        attrs.ace_count = acl.aces.len() as u64;
        attrs.add(&self.sa, Kind::DaclCount);
        attrs.add(&self.sa, Kind::DaclAces);
        attrs.pflags = attrs.pflags & !PFLAG_ACL_TRIVIAL | acl.flags & 0x70;
        Ok(())
    }

    fn replay_acl(&self, tx: &Tx, object: u64, acl: &LrAcl) -> Now<()> {
        let zn = self.znode(object)?;
        let mut state = zn.state.lock();
        if state.gone {
            return Err(super::znode::stale(object).into());
        }
        let mut attrs = state.attrs.clone();
        self.apply_acl(&mut attrs, acl)?;
        attrs.mode = super::acl::mode_of(attrs.mode, &attrs.aces, attrs.uid, attrs.gid);
        self.state_changed(&mut attrs, self.now());
        let plan = self.pack(tx, &zn, attrs)?;
        plan.apply(tx, &zn, &mut state);
        Ok(())
    }

    /// Shares the blocks that were cloned, which the log has held since it was claimed; where the
    /// file cannot take them as they are they are copied, and read the same.
    async fn replay_clone(
        &self,
        seq: u64,
        object: u64,
        offset: u64,
        length: u64,
        blksz: u64,
        bps: &[BlkPtr],
    ) -> Result<()> {
        let bad = |what: &str| Error::inval(format!("a clone of {length} bytes at {offset}: {what}"));
        if blksz == 0 || !offset.is_multiple_of(blksz) || blksz > zilla_ondisk::SPA_MAXBLOCKSIZE {
            return Err(bad("not of whole blocks"));
        }
        let blocks = bps.len() as u64;
        let end = offset.checked_add(length).filter(|e| *e <= i64::MAX as u64);
        let end = end.ok_or_else(|| bad("beyond all files"))?;
        if length > blocks.saturating_mul(blksz) || offset.checked_add(blocks.saturating_mul(blksz)).is_none()
        {
            return Err(bad("longer than its blocks"));
        }
        resident(|| self.znode(object)).await?;
        let shared = self.change(|tx| {
            let shared = self.replay_shared(tx, object, (offset, end), blksz, bps)?;
            if let Some(log) = self.log.as_ref().filter(|_| shared) {
                log.replayed(tx, seq);
            }
            Ok(shared)
        });
        if shared.await? {
            return Ok(());
        }
        let last = bps.len().saturating_sub(1);
        for (i, bp) in bps.iter().enumerate() {
            let at = offset + i as u64 * blksz;
            let upto = (at + blksz).min(end);
            // Only the last part says that the record is done; the others can be done twice.
            let seq = if i == last { seq } else { 0 };
            if bp.is_hole() {
                self.redo(seq, |tx| self.replay_hole(tx, object, at, blksz, upto)).await?;
                continue;
            }
            if bp.lsize() != blksz && !bp.is_embedded() {
                return Err(bad("a block of another size"));
            }
            let bookmark = Bookmark::new(self.objset.id(), ObjectId(object), 0, at / blksz);
            let data = crate::zil::read_logged(&**self.objset.store(), bp, bookmark).await?;
            self.redo(seq, |tx| self.replay_data(tx, object, at, &data, upto)).await?;
        }
        Ok(())
    }

    fn replay_hole(&self, tx: &Tx, object: u64, at: u64, len: u64, end: u64) -> Now<()> {
        let zn = self.znode(object)?;
        let mut state = zn.state.lock();
        Zfs::check_file(&zn, &state)?;
        let (now, old) = (self.now(), state.attrs.size);
        let plan = self.plan(tx, &zn, &state, |a| {
            a.size = old.max(end);
            self.content_modified(a, now);
        })?;
        if at < old {
            zn.dnode().free_range(tx, at, len.min(old - at));
        }
        self.resize(tx, &zn, old, old.max(end))?;
        plan.apply(tx, &zn, &mut state);
        Ok(())
    }
}
