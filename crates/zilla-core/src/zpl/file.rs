//! Contents of files: reading, writing, truncating, punching holes, and finding them.
//!
//! A file's block size is settled by its first block: it grows with the file, in steps of 512
//! bytes, until the recordsize is reached; with a second block it stays. A write that covers whole
//! records takes over the caller's buffer; no write reads.

use super::attrs::Attrs;
use super::fs::{Direct, Zfs};
use super::log::ATTR_MODE;
use super::types::{S_ISGID, S_ISUID, Time, Whence};
use super::znode::{State, Znode, is_regular, stale};
use super::{ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_SPARSE, err};
use crate::dmu::{Dnode, Need, Now, PART, ReadData, Stop, resident};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zil::When;
use crate::zio::Leave;
use bytes::Bytes;
use std::slice::from_ref;
use std::sync::Arc;

/// Nothing in a file lies beyond this offset.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// What goes past the caches is a multiple of this, and lies at one.
const PAGE: u64 = 4096;

/// What a write does besides.
#[derive(Clone, Copy, Default)]
struct How {
    kill_suidgid: bool,
    /// The cache does not keep what is written.
    direct: bool,
}

fn total(data: &[Bytes]) -> u64 {
    data.iter().map(|d| d.len() as u64).sum()
}

/// The mode a file keeps after an unprivileged write.
pub(super) fn without_suid(mode: u64) -> u64 {
    let mut out = mode & !u64::from(S_ISUID);
    if mode & 0o010 != 0 {
        out &= !u64::from(S_ISGID);
    }
    out
}

impl Zfs {
    pub(super) fn check_file(zn: &Znode, state: &State) -> Result<()> {
        if state.gone {
            return Err(stale(zn.id()));
        }
        if state.attrs.is_dir() {
            return err(Errno::IsDir, "is a directory");
        }
        if !is_regular(&state.attrs) {
            return err(Errno::Inval, "not a regular file");
        }
        Ok(())
    }

    /// The bytes of a file, if they are in memory; fewer at its end.
    pub fn try_read(&self, id: u64, off: u64, len: usize) -> Now<ReadData> {
        self.try_read_by(id, off, len, self.goes_past(false, off, len as u64)?, true)
    }

    /// The same by who goes past the caches (`O_DIRECT`), if the file system lets him.
    pub fn try_read_direct(&self, id: u64, off: u64, len: usize) -> Now<ReadData> {
        self.try_read_by(id, off, len, self.goes_past(true, off, len as u64)?, true)
    }

    /// `new`: nothing was read ahead for this read yet.
    fn try_read_by(&self, id: u64, off: u64, len: usize, direct: bool, new: bool) -> Now<ReadData> {
        let zn = self.znode(id)?;
        let size = {
            let state = zn.state.lock();
            Zfs::check_file(&zn, &state)?;
            state.attrs.size
        };
        let len = (len as u64).min(size.saturating_sub(off));
        let out = zn.dnode().read_at(off, len as usize, direct)?;
        if new && !direct {
            zn.dnode().read_ahead(&self.env, &zn.zfetch, off, len, size);
        }
        self.objset.stats.read(len as usize);
        self.accessed(&zn);
        Ok(out)
    }

    /// The bytes of a file; fewer at its end.
    pub async fn read(self: &Arc<Self>, id: u64, off: u64, len: usize) -> Result<ReadData> {
        self.read_by(id, off, len, self.goes_past(false, off, len as u64)?).await
    }

    /// Whether a request goes past the caches; an error if it was asked for and cannot be done.
    fn goes_past(&self, asked: bool, off: u64, len: u64) -> Result<bool> {
        let direct = self.props().direct;
        if direct == Direct::Disabled || crate::tunables::DIO_ENABLED.get() == 0 {
            return Ok(false);
        }
        let whole = off.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
        match direct {
            Direct::Always => Ok(whole && len > 0),
            _ if asked && !whole => err(Errno::Inval, "what goes past the caches must be whole pages"),
            _ => Ok(asked),
        }
    }

    /// The same by who goes past the caches (`O_DIRECT`), if the file system lets him.
    pub async fn read_direct(self: &Arc<Self>, id: u64, off: u64, len: usize) -> Result<ReadData> {
        self.read_by(id, off, len, self.goes_past(true, off, len as u64)?).await
    }

    async fn read_by(self: &Arc<Self>, id: u64, off: u64, len: usize, direct: bool) -> Result<ReadData> {
        let mut new = true;
        loop {
            match self.try_read_by(id, off, len, direct, new) {
                Ok(data) => return Ok(data),
                Err(Stop::Err(e)) => return Err(e),
                Err(Stop::Need(Need::Block { dnode, level: 0, .. })) if direct => {
                    dnode.load_range_once(off, len as u64).await?;
                }
                Err(Stop::Need(Need::Block { dnode, level: 0, .. })) => {
                    if std::mem::take(&mut new) {
                        let zn = resident(|| self.znode(id)).await?;
                        let size = zn.state.lock().attrs.size;
                        let len = (len as u64).min(size.saturating_sub(off));
                        dnode.read_ahead(&self.env, &zn.zfetch, off, len, size);
                    }
                    dnode.load_range(off, len as u64).await?;
                }
                Err(Stop::Need(need)) => need.load().await?,
            }
        }
    }

    /// The block size for a file that is about to reach `end`; None if it stays as it is.
    fn grown_blksz(&self, dn: &Dnode, size: u64, end: u64) -> Option<u32> {
        let (blksz, max) = (dn.blksz(), self.props().recordsize);
        if dn.maxblkid() > 0 || size > u64::from(blksz) || end <= u64::from(blksz) {
            return None;
        }
        let limit = if blksz > max && !blksz.is_power_of_two() { blksz.next_power_of_two() } else { max };
        let want = end.next_multiple_of(512).min(u64::from(limit)) as u32;
        (want > blksz).then_some(want)
    }

    pub(super) fn grow(&self, tx: &Tx, dn: &Arc<Dnode>, size: u64, end: u64) -> Result<()> {
        match self.grown_blksz(dn, size, end) {
            Some(blksz) => dn.set_blksz(tx, blksz, 0),
            None => Ok(()),
        }
    }

    /// What making a file larger may have written: a first block that grows.
    pub(super) fn growth_cost(&self, tx: &Tx, zn: &Znode, old: u64, new: u64) -> u64 {
        let grown = self.grown_blksz(zn.dnode(), old, new);
        grown.map_or(0, |blksz| zn.dnode().cost(tx, 0, 1, blksz.into()))
    }

    pub(super) fn check_write(zn: &Znode, state: &State, off: u64) -> Result<()> {
        Zfs::check_file(zn, state)?;
        let flags = state.attrs.pflags;
        if flags & ZFS_IMMUTABLE != 0 || (flags & ZFS_APPENDONLY != 0 && off < state.attrs.size) {
            return err(Errno::Perm, "the file is immutable or append-only");
        }
        Ok(())
    }

    /// Writes `data`, all at once for whoever reads. Returns the file's size after it.
    fn write_now(&self, tx: &Tx, id: u64, at: Option<u64>, data: &[Bytes], how: How) -> Now<u64> {
        let How { kill_suidgid, direct } = how;
        let zn = self.znode(id)?;
        let mut state = zn.state.lock();
        let off = at.unwrap_or(state.attrs.size);
        Zfs::check_write(&zn, &state, off)?;
        zn.dnode().check_waiting()?;
        let len = total(data);
        let end = match off.checked_add(len) {
            Some(end) if end <= OFFSET_MAX => end,
            _ => return Err(Error::os(Errno::FBig, "the file would be too large").into()),
        };
        self.check_quotas(&state.attrs, false)?;
        self.admit(tx, len, false)?;
        let grown = self.grown_blksz(zn.dnode(), state.attrs.size, end);
        let blksz = grown.unwrap_or(zn.dnode().blksz());
        self.hold_room(tx, zn.dnode().cost(tx, off, end, blksz.into()), Leave::Half)?;
        let now = self.now();
        let plan = self.plan(tx, &zn, &state, |a| {
            a.size = a.size.max(end);
            self.content_modified(a, now);
            if kill_suidgid {
                a.mode = without_suid(a.mode);
            }
        })?;
        let dn = zn.dnode();
        self.grow(tx, dn, state.attrs.size, end)?;
        // A first block that still grows will be written again soon, as with OpenZFS.
        let written = dn.write_pieces(tx, off, data, direct && grown.is_none());
        let mode = state.attrs.mode;
        plan.apply(tx, &zn, &mut state);
        if state.attrs.mode != mode {
            self.log_setattr(tx, id, &state.attrs, ATTR_MODE, None);
        }
        written.iter().for_each(|w| self.log_write(tx, id, &state.attrs, w));
        Ok(state.attrs.size)
    }

    /// Writes at `off`; returns the file's size then. Whole records are taken over from `data`, not
    /// copied; so a small slice of a large buffer, which would keep all of it in memory, should be
    /// copied by the caller first.
    pub async fn write(&self, id: u64, off: u64, data: &Bytes, kill_suidgid: bool) -> Result<u64> {
        self.write_vectored(id, off, from_ref(data), kill_suidgid).await
    }

    /// The same from several buffers, one behind the other. A whole record is taken over where one
    /// buffer holds all of it.
    pub async fn write_vectored(&self, id: u64, off: u64, data: &[Bytes], kill_suidgid: bool) -> Result<u64> {
        let direct = self.goes_past(false, off, total(data))?;
        self.write_by(id, off, data, How { kill_suidgid, direct }).await
    }

    /// The same by who goes past the caches (`O_DIRECT`), if the file system lets him.
    pub async fn write_direct(&self, id: u64, off: u64, data: &[Bytes], kill_suidgid: bool) -> Result<u64> {
        let direct = self.goes_past(true, off, total(data))?;
        self.write_by(id, off, data, How { kill_suidgid, direct }).await
    }

    async fn write_by(&self, id: u64, off: u64, data: &[Bytes], how: How) -> Result<u64> {
        if data.iter().all(Bytes::is_empty) {
            return Ok(self.getattr(id).await?.size);
        }
        let size = self.change(|tx| self.write_now(tx, id, Some(off), data, how)).await?;
        self.objset.stats.written(total(data));
        self.ended().await?;
        Ok(size)
    }

    /// Writes at the end of the file; returns its new size.
    pub async fn append(&self, id: u64, data: &Bytes) -> Result<u64> {
        let size = self.change(|tx| self.write_now(tx, id, None, from_ref(data), How::default())).await?;
        self.objset.stats.written(data.len() as u64);
        self.ended().await?;
        Ok(size)
    }

    /// Cuts or extends the contents; part of a setattr, after the checks.
    pub(super) fn resize(&self, tx: &Tx, zn: &Znode, old: u64, new: u64) -> Result<()> {
        let dn = zn.dnode();
        if new < old {
            dn.free_some(tx, new, u64::MAX, PART);
        } else if new > old {
            self.grow(tx, dn, old, new)?;
        }
        Ok(())
    }

    /// What a new size means for the attributes.
    pub(super) fn resized(attrs: &mut Attrs, size: u64) {
        if size == 0 {
            attrs.pflags &= !ZFS_SPARSE;
        }
        attrs.size = size;
    }

    pub(super) fn check_size(size: u64) -> Result<()> {
        if size > OFFSET_MAX { err(Errno::FBig, "the file would be too large") } else { Ok(()) }
    }

    /// Makes a range read as zeroes and gives its blocks back; with `extend` the file reaches its
    /// end afterwards at least.
    pub async fn punch(&self, id: u64, off: u64, len: u64, extend: bool, kill_suidgid: bool) -> Result<()> {
        let end = off.checked_add(len).ok_or_else(|| Error::os(Errno::FBig, "the range is too large"))?;
        Zfs::check_size(end)?;
        // What lies behind it is freed, and may be written again since.
        let left = self.punch_in_parts(id, off, end, kill_suidgid).await? - off;
        let extend = extend.then_some(end);
        self.change(|tx| self.punch_now(tx, id, off, left, extend, kill_suidgid)).await?;
        self.ended().await
    }

    /// The same in a transaction; the file reaches to `extend` afterwards at least.
    pub(super) fn punch_now(
        &self,
        tx: &Tx,
        id: u64,
        off: u64,
        len: u64,
        extend: Option<u64>,
        kill_suidgid: bool,
    ) -> Now<()> {
        let end = off.saturating_add(len);
        let zn = self.znode(id)?;
        let mut state = zn.state.lock();
        Zfs::check_write(&zn, &state, off)?;
        self.admit(tx, 0, true)?;
        let (now, old) = (self.now(), state.attrs.size);
        self.hold_room(tx, zn.dnode().free_cost(tx, off.min(old), end.min(old)), Leave::Quarter)?;
        let size = extend.map_or(old, |to| old.max(to));
        let plan = self.plan(tx, &zn, &state, |a| {
            a.size = size;
            self.content_modified(a, now);
            if kill_suidgid {
                a.mode = without_suid(a.mode);
            }
        })?;
        if off < old {
            zn.dnode().free_some(tx, off, len.min(old - off), PART);
        }
        self.resize(tx, &zn, old, size)?;
        let mode = state.attrs.mode;
        plan.apply(tx, &zn, &mut state);
        if state.attrs.mode != mode {
            self.log_setattr(tx, id, &state.attrs, ATTR_MODE, None);
        }
        // A record of a range makes the file reach to its end. Where the file is to reach beyond
        // what is freed here, another says so.
        let all = extend == Some(end);
        let len = if all { len } else { len.min(old.saturating_sub(off)) };
        if len > 0 {
            self.log_truncate(tx, When::With(id), id, &state.attrs, off, len);
        }
        if size > old && !all {
            self.log_truncate(tx, When::With(id), id, &state.attrs, size, 0);
        }
        Ok(())
    }

    /// What a promise of so many bytes beyond a file's size comes to: nothing is set aside, and
    /// nothing changes but the set-id bits. It is refused where there is not so much now.
    pub async fn reserve(&self, id: u64, off: u64, len: u64, kill_suidgid: bool) -> Result<()> {
        let end = off.checked_add(len).ok_or_else(|| Error::os(Errno::FBig, "the range is too large"))?;
        Zfs::check_size(end)?;
        self.change(|tx| {
            let zn = self.znode(id)?;
            let mut state = zn.state.lock();
            Zfs::check_write(&zn, &state, off)?;
            self.check_quotas(&state.attrs, false)?;
            // What is there already is rewritten elsewhere, and needs room as well.
            self.check_allocation(len)?;
            if !kill_suidgid {
                return Ok(());
            }
            self.admit(tx, 0, false)?;
            let now = self.now();
            let plan = self.plan(tx, &zn, &state, |a| {
                a.mode = without_suid(a.mode);
                self.state_changed(a, now);
            })?;
            let mode = state.attrs.mode;
            plan.apply(tx, &zn, &mut state);
            if state.attrs.mode != mode {
                self.log_setattr(tx, id, &state.attrs, ATTR_MODE, None);
            }
            Ok(())
        })
        .await?;
        self.ended().await
    }

    /// Makes the file reach to `end` at least; its space is not reserved, for a copy-on-write file
    /// system cannot keep such a promise.
    pub async fn extend(&self, id: u64, end: u64, kill_suidgid: bool) -> Result<()> {
        Zfs::check_size(end)?;
        self.change(|tx| {
            let zn = self.znode(id)?;
            let mut state = zn.state.lock();
            Zfs::check_write(&zn, &state, end)?;
            let (now, old) = (self.now(), state.attrs.size);
            self.check_quotas(&state.attrs, false)?;
            self.admit(tx, end.saturating_sub(old), false)?;
            self.hold_room(tx, self.growth_cost(tx, &zn, old, end), Leave::Half)?;
            let plan = self.plan(tx, &zn, &state, |a| {
                a.size = old.max(end);
                self.state_changed(a, now);
                if end > old {
                    self.content_modified(a, now);
                }
                if kill_suidgid {
                    a.mode = without_suid(a.mode);
                }
            })?;
            self.resize(tx, &zn, old, old.max(end))?;
            let mode = state.attrs.mode;
            plan.apply(tx, &zn, &mut state);
            if state.attrs.mode != mode {
                self.log_setattr(tx, id, &state.attrs, ATTR_MODE, None);
            }
            if end > old {
                self.log_truncate(tx, When::With(id), id, &state.attrs, end, 0);
            }
            Ok(())
        })
        .await?;
        self.ended().await
    }

    /// The next data or hole from `off` on; the end of the file counts as a hole.
    pub async fn seek(&self, id: u64, off: u64, whence: Whence) -> Result<u64> {
        resident(|| {
            let zn = self.znode(id)?;
            let size = {
                let state = zn.state.lock();
                Zfs::check_file(&zn, &state)?;
                state.attrs.size
            };
            let beyond = || Err(Error::os(Errno::NxIo, "nothing there before the end of the file").into());
            if off >= size {
                return beyond();
            }
            let blksz = u64::from(zn.dnode().blksz().max(1));
            if !blksz.is_power_of_two() {
                // A file of one odd block is all data to OpenZFS, and so it is here.
                return Ok(if whence == Whence::Hole { size } else { off });
            }
            let found = zn.dnode().next_block(off / blksz, whence == Whence::Hole)?;
            match (found.map(|b| b.saturating_mul(blksz).max(off)), whence) {
                (Some(at), _) if at < size => Ok(at),
                (_, Whence::Hole) => Ok(size),
                (_, Whence::Data) => beyond(),
            }
        })
        .await
    }

    /// What a symbolic link points to, if it is in memory.
    pub fn try_readlink(&self, id: u64) -> Now<Bytes> {
        let zn = self.znode(id)?;
        let state = zn.state.lock();
        if !state.attrs.is_symlink() {
            return Err(Error::os(Errno::Inval, "not a symbolic link").into());
        }
        let a = &state.attrs;
        if !a.symlink.is_empty() || a.size == 0 {
            return Ok(Bytes::copy_from_slice(&a.symlink));
        }
        // A long link of an old file system lies in the file's only block.
        let len = a.size.min(super::SYMLINK_MAX as u64 + 1) as usize;
        let mut out = vec![0; len];
        zn.dnode().read(0, &mut out)?;
        Ok(out.into())
    }

    pub async fn readlink(&self, id: u64) -> Result<Bytes> {
        resident(|| self.try_readlink(id)).await
    }

    /// The time now, as new files get it.
    pub fn time(&self) -> Time {
        self.now()
    }
}
