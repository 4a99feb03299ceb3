//! Each request of the kernel, as an operation of the file system.

use crate::abi::{self, Args, Header, Short, fattr, fopen, op};
use crate::caller::Caller;
use crate::older;
use crate::opens::{CACHED, Opened, STABLE};
use crate::reply::{Out, Reply, from_kernel, put_dirent};
use crate::request::Request;
use crate::session::Session;
use bytes::Bytes;
use zilla::zpl::{Atime, Direct, S_IFDIR, S_IFLNK, S_IFMT, S_ISGID, S_ISUID};
use zilla::{
    Attr, Cred, DirEntry, Entry, Errno, NewFile, Now, RenameFlags, SetAttr, SetTime, Stop, Time, Whence,
    XattrMode, ZFS_APPENDONLY, ZFS_IMMUTABLE,
};

const ENOSYS: i32 = 38;
pub(crate) const EINVAL: i32 = 22;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
const FALLOC_KEEP_SIZE: u32 = 1;
const FALLOC_PUNCH_HOLE: u32 = 2;
const FALLOC_ZERO_RANGE: u32 = 0x10;
/// The group may execute the file.
const S_IXGRP: u32 = 0o010;

/// What is to be read.
struct ReadArgs {
    off: u64,
    size: usize,
    direct: bool,
}

impl ReadArgs {
    fn of(a: &mut Args<'_>) -> Result<ReadArgs, Short> {
        a.skip(8)?;
        let (off, size) = (a.u64()?, a.u32()? as usize);
        // Flags of reading and the lock's owner come between.
        a.skip(12)?;
        Ok(ReadArgs { off, size, direct: a.u32()? & abi::O_DIRECT != 0 })
    }
}

pub(crate) type Done = Result<Reply, Short>;

/// An answer, `None` for requests that get none; or not at once, because something must be read
/// first.
pub(crate) type AtOnce = Option<Result<Option<Reply>, Short>>;

fn now<T>(r: Now<T>, reply: impl FnOnce(T) -> Reply) -> AtOnce {
    match r {
        Ok(v) => Some(Ok(Some(reply(v)))),
        Err(Stop::Err(e)) => Some(Ok(Some(Reply::err(&e)))),
        Err(Stop::Need(_)) => None,
    }
}

fn sized(value: &[u8], size: u32) -> Reply {
    if size == 0 {
        let mut out = Out::with(8);
        out.u32(value.len() as u32).u32(0);
        return Reply::head(out.0);
    }
    if value.len() > size as usize { Errno::Range.into() } else { Reply::head(value.to_vec()) }
}

fn put_opened(out: &mut Out, opened: Opened) {
    out.u64(opened.handle).u32(opened.flags).u32(0);
}

impl Session {
    fn entry(&self, e: Entry) -> Reply {
        let lasting = e.lasting && !self.fs.names_vary();
        let reply = Reply::entry(e.node, &e.attr, lasting, self.root());
        self.guard(&e.attr);
        e.leak();
        reply
    }

    /// If a file is one that may not just be opened, the kernel is to go on asking.
    pub(crate) fn guard(&self, attr: &Attr) {
        if attr.flags & (ZFS_IMMUTABLE | ZFS_APPENDONLY) != 0 {
            self.opens.always();
        }
    }

    /// The frequent requests, answered without a future where everything is in memory.
    pub(crate) fn at_once(&self, r: &Request) -> AtOnce {
        let (node, mut a) = (r.header.node, r.args());
        match r.header.opcode {
            op::LOOKUP => {
                let name = match a.string() {
                    Ok(n) => n,
                    Err(short) => return Some(Err(short)),
                };
                if name == b"." {
                    return None;
                }
                match self.fs.try_lookup(node, name) {
                    Ok(Some(e)) => Some(Ok(Some(self.entry(e)))),
                    Err(Stop::Err(e)) if e.is(Errno::NoEnt) && !self.fs.names_vary() => {
                        Some(Ok(Some(Reply::negative())))
                    }
                    Err(Stop::Err(e)) => Some(Ok(Some(Reply::err(&e)))),
                    Ok(None) | Err(Stop::Need(_)) => None,
                }
            }
            op::GETATTR => now(self.fs.try_getattr(node), |attr| Reply::attr(&attr)),
            op::READ => {
                let Ok(ReadArgs { off, size, direct }) = ReadArgs::of(&mut a) else {
                    return Some(Err(Short));
                };
                now(self.fs.try_read(node, off, size, direct), Reply::data)
            }
            op::READLINK => now(self.fs.try_readlink(node), Reply::bytes),
            op::OPEN => match a.u32() {
                Ok(flags) if writes(flags) => {
                    now(self.fs.try_getattr(node), |attr| self.open_to_write(node, flags, &attr))
                }
                flags => Some(flags.map(|flags| Some(self.open(node, flags)))),
            },
            op::RELEASE => {
                self.opens.release(node);
                Some(Ok(Some(Reply::ok())))
            }
            op::STATFS => Some(Ok(Some(self.statfs()))),
            op::FORGET => Some(self.forget(node, &mut a).map(|()| None)),
            op::BATCH_FORGET => Some(self.batch_forget(&mut a).map(|()| None)),
            // What is interrupted finishes all the same: nothing waits for anything but the disk.
            op::INTERRUPT => Some(Ok(None)),
            _ => None,
        }
    }

    fn open(&self, node: u64, flags: u32) -> Reply {
        // What the kernel has of a file it gives out without a word. Where each reading counts it
        // must come here, so it has to ask, and to forget what it has.
        let counts = flags & abi::O_ACCMODE != abi::O_WRONLY && self.fs.zfs().props().atime == Atime::On;
        if counts {
            self.opens.always();
        }
        self.opens.open(node, flags, self.past_cache()).map_or(Reply::errno(ENOSYS), |mut opened| {
            if counts {
                opened.flags &= !fopen::KEEP_CACHE;
            }
            let mut out = Out::with(16);
            put_opened(&mut out, opened);
            Reply::head(out.0)
        })
    }

    fn past_cache(&self) -> bool {
        self.fs.zfs().props().direct == Direct::Always
    }

    fn open_to_write(&self, node: u64, flags: u32, attr: &Attr) -> Reply {
        let appends = flags & abi::O_APPEND != 0 && flags & abi::O_TRUNC == 0;
        if attr.flags & ZFS_IMMUTABLE != 0 || attr.flags & ZFS_APPENDONLY != 0 && !appends {
            return Errno::Perm.into();
        }
        self.open(node, flags)
    }

    fn forget(&self, node: u64, a: &mut Args<'_>) -> Result<(), Short> {
        self.fs.forget(node, a.u64()?);
        Ok(())
    }

    fn batch_forget(&self, a: &mut Args<'_>) -> Result<(), Short> {
        let count = a.u32()?;
        a.skip(4)?;
        for _ in 0..count {
            let (node, n) = (a.u64()?, a.u64()?);
            self.fs.forget(from_kernel(node, self.root()), n);
        }
        Ok(())
    }

    fn statfs(&self) -> Reply {
        Reply::statfs(&self.fs.statfs(), self.fs.zfs().props().recordsize)
    }

    /// Any request.
    pub(crate) async fn perform(&self, r: &Request) -> Done {
        let (node, mut a) = (r.header.node, r.args());
        let a = &mut a;
        match r.header.opcode {
            op::LOOKUP => self.lookup(node, a.string()?).await,
            op::OPEN => {
                let flags = a.u32()?;
                let attr = self.fs.getattr(node).await;
                Ok(attr.map_or_else(Reply::from, |attr| self.open_to_write(node, flags, &attr)))
            }
            op::GETATTR => Ok(self.fs.getattr(node).await.map_or_else(Reply::from, |at| Reply::attr(&at))),
            op::SETATTR => self.setattr(r, a).await,
            op::READLINK => Ok(self.fs.readlink(node).await.map_or_else(Reply::from, Reply::bytes)),
            op::SYMLINK | op::MKNOD | op::MKDIR => self.make(r, a).await,
            op::CREATE if self.opens.asked_for_new() => self.create(r, a).await,
            // Without a name it cannot be made in another way, so this is answered always.
            op::TMPFILE => self.create(r, a).await,
            op::UNLINK => done(self.fs.unlink(node, a.string()?).await),
            op::RMDIR if node == self.fs.snapdir_node() => {
                let by = Caller::of(&r.header).asker();
                done(self.fs.destroy_snapshot(a.string()?, by).await)
            }
            op::RMDIR => done(self.fs.rmdir(node, a.string()?).await),
            op::RENAME | op::RENAME2 => self.rename(r, a).await,
            op::LINK => {
                let old = from_kernel(a.u64()?, self.root());
                Ok(self.fs.link(old, node, a.string()?).await.map_or_else(Reply::from, |e| self.entry(e)))
            }
            op::READ => {
                let ReadArgs { off, size, direct } = ReadArgs::of(a)?;
                let data = match direct {
                    false => self.fs.read(node, off, size).await,
                    true => self.fs.read_direct(node, off, size).await,
                };
                Ok(data.map_or_else(Reply::from, Reply::data))
            }
            op::WRITE => self.write(r, a).await,
            op::STATFS => Ok(self.statfs()),
            op::FSYNC | op::FSYNCDIR => done(self.fs.fsync(node).await),
            // Linux sends it to servers behind virtio only, so far.
            op::SYNCFS => done(self.fs.commit().await),
            op::SETXATTR => self.setxattr(node, a).await,
            op::GETXATTR => {
                let size = a.u32()?;
                a.skip(4)?;
                let value = self.fs.getxattr(node, a.string()?).await;
                Ok(value.map_or_else(Reply::from, |v| sized(&v, size)))
            }
            op::LISTXATTR => {
                let size = a.u32()?;
                let names = self.fs.listxattr(node).await;
                Ok(names.map_or_else(Reply::from, |n| {
                    sized(&n.into_iter().flat_map(|n| n.into_iter().chain([0])).collect::<Vec<u8>>(), size)
                }))
            }
            op::REMOVEXATTR => done(self.fs.removexattr(node, a.string()?).await),
            op::READDIR => self.readdir(node, a, false).await,
            op::READDIRPLUS => self.readdir(node, a, true).await,
            op::FALLOCATE => self.fallocate(r, a).await,
            op::LSEEK => self.lseek(node, a).await,
            op::COPY_FILE_RANGE => self.copy(r, a).await,
            op::IOCTL => self.ioctl(&r.header, a).await,
            op::DESTROY => Ok(Reply::ok()),
            // Opening, closing, access checks, locks: the kernel does them by itself once it has
            // been told.
            _ => Ok(Reply::errno(ENOSYS)),
        }
    }

    async fn lookup(&self, dir: u64, name: &[u8]) -> Done {
        // Asked by number, when a file handle comes back whose file the kernel has forgotten.
        if name == b"." {
            return Ok(self.fs.handle(dir).await.map_or_else(Reply::from, |e| self.entry(e)));
        }
        Ok(match self.fs.lookup(dir, name).await {
            Ok(e) => self.entry(e),
            // In the control directory a name can come to be without the kernel's help, and its
            // own, by a property.
            Err(e) if e.is(Errno::NoEnt) && dir >> 48 == 0 && name != b".zfs" && !self.fs.names_vary() => {
                Reply::negative()
            }
            Err(e) => e.into(),
        })
    }

    /// Before the contents of a file are changed: takes its capabilities away, and the set-group-id
    /// bit if only that of a stranger to the group. Returns whether the set-id bits go with the
    /// change, which has to be told to the kernel ([`Session::forget_attributes`]) before it is
    /// answered. `unprivileged`: what the kernel says of the caller, if it does.
    async fn disarm(&self, caller: &Header, node: u64, unprivileged: Option<bool>) -> zilla::Result<bool> {
        self.fs.kill_capabilities(node).await?;
        if unprivileged == Some(false) {
            return Ok(false);
        }
        let attr = self.fs.getattr(node).await?;
        if !attr.is_file() || attr.mode & (S_ISUID | S_ISGID) == 0 {
            return Ok(false);
        }
        let caller = Caller::of(caller);
        if unprivileged.is_none() && caller.keeps_ids() {
            return Ok(false);
        }
        if is_strangers(&attr, &caller) {
            self.fs.setattr(node, SetAttr { kill_sgid: true, ..SetAttr::default() }).await?;
        }
        Ok(true)
    }

    /// After a change: the kernel learns that the mode may be another, before whoever made it goes
    /// on.
    fn disarmed(&self, node: u64, kill: bool) {
        if kill {
            self.forget_attributes(node);
        }
    }

    async fn setattr(&self, r: &Request, a: &mut Args<'_>) -> Done {
        let node = r.header.node;
        let valid = a.u32()?;
        a.skip(12)?;
        let size = a.u64()?;
        a.skip(8)?;
        let secs = [a.u64()?, a.u64()?, a.u64()?];
        let nsecs = [a.u32()?, a.u32()?, a.u32()?];
        let mode = a.u32()?;
        a.skip(4)?;
        let (uid, gid) = (a.u32()?, a.u32()?);
        let on = |bit: u32| valid & bit != 0;
        let time = |i: usize| Time { sec: secs[i] as i64, nsec: nsecs[i] };
        let set_time = |set: u32, current: u32, i: usize| match (on(set), on(current)) {
            (_, true) => Some(SetTime::Now),
            (true, _) => Some(SetTime::To(time(i))),
            _ => None,
        };
        // Without anything to set: the kernel wants the set-id bits gone (before a write or a copy,
        // or by a chown that names no owner), which it does not say.
        let mut kill = on(fattr::KILL_SUIDGID) || valid == 0;
        let mut kill_sgid = false;
        if kill || valid & (fattr::SIZE | fattr::UID | fattr::GID) != 0 {
            let attr = match self.fs.getattr(node).await {
                Ok(attr) => attr,
                Err(e) => return Ok(e.into()),
            };
            if attr.is_file() {
                if let Err(e) = self.fs.kill_capabilities(node).await {
                    return Ok(e.into());
                }
                let caller = Caller::of(&r.header);
                let armed = attr.mode & (S_ISUID | S_ISGID) != 0;
                kill = kill && (valid != 0 || armed && !caller.keeps_ids());
                kill_sgid = kill && is_strangers(&attr, &caller) && !caller.keeps_ids();
            }
            kill = kill && !attr.is_dir();
        }
        let set = SetAttr {
            mode: on(fattr::MODE).then_some(mode),
            uid: on(fattr::UID).then_some(uid),
            gid: on(fattr::GID).then_some(gid),
            size: on(fattr::SIZE).then_some(size),
            atime: set_time(fattr::ATIME, fattr::ATIME_NOW, 0),
            mtime: set_time(fattr::MTIME, fattr::MTIME_NOW, 1),
            ctime: on(fattr::CTIME).then(|| time(2)),
            kill_suidgid: kill,
            kill_sgid,
            ..SetAttr::default()
        };
        Ok(self.fs.setattr(node, set).await.map_or_else(Reply::from, |at| Reply::attr(&at)))
    }

    async fn make(&self, r: &Request, a: &mut Args<'_>) -> Done {
        let cred = Cred { uid: r.header.uid, gid: r.header.gid };
        let mut new = NewFile::new(S_IFLNK | 0o777, cred);
        let name = match r.header.opcode {
            op::MKNOD => {
                (new.mode, new.rdev, new.umask) = (a.u32()?, a.u32()?, a.u32()?);
                a.skip(4)?;
                a.string()?
            }
            op::MKDIR => {
                (new.mode, new.umask) = (a.u32()? | S_IFDIR, a.u32()?);
                a.string()?
            }
            _ => {
                let name = a.string()?;
                new.target = a.string()?;
                name
            }
        };
        let made = match new.mode & S_IFMT == S_IFDIR && r.header.node == self.fs.snapdir_node() {
            true => self.fs.take_snapshot(name, Caller::of(&r.header).asker()).await,
            false => {
                if let Err(e) = self.strip(r, &mut new).await {
                    return Ok(e.into());
                }
                self.fs.create(r.header.node, name, new).await
            }
        };
        Ok(made.map_or_else(Reply::from, |e| self.entry(e)))
    }

    /// What an older kernel does not take from the mode of a file to be made.
    async fn strip(&self, r: &Request, new: &mut NewFile<'_>) -> zilla::Result<()> {
        if !self.kernel_strips && older::is_armed(new.mode) {
            let dir = self.fs.getattr(r.header.node).await?;
            new.mode = older::stripped(new.mode, &dir, &Caller::of(&r.header));
        }
        Ok(())
    }

    /// Makes a file and opens it. The kernel asks for this where it knows of no file of the name.
    async fn create(&self, r: &Request, a: &mut Args<'_>) -> Done {
        let cred = Cred { uid: r.header.uid, gid: r.header.gid };
        let flags = a.u32()?;
        let mut new = NewFile::new(a.u32()?, cred);
        new.umask = a.u32()?;
        a.skip(4)?;
        if let Err(e) = self.strip(r, &mut new).await {
            return Ok(e.into());
        }
        let made = match r.header.opcode {
            op::TMPFILE => self.fs.create_unnamed(r.header.node, new).await,
            _ => self.fs.create(r.header.node, a.string()?, new).await,
        };
        Ok(made.map_or_else(Reply::from, |e| {
            let opened = self.opens.create(e.node, flags, self.past_cache());
            let mut out = Out(self.entry(e).head);
            put_opened(&mut out, opened);
            Reply::head(out.0)
        }))
    }

    async fn rename(&self, r: &Request, a: &mut Args<'_>) -> Done {
        let to = from_kernel(a.u64()?, self.root());
        let mut flags = 0;
        if r.header.opcode == op::RENAME2 {
            flags = a.u32()?;
            a.skip(4)?;
        }
        if flags & !7 != 0 {
            return Ok(Reply::errno(EINVAL));
        }
        let flags =
            RenameFlags { no_replace: flags & 1 != 0, exchange: flags & 2 != 0, whiteout: flags & 4 != 0 };
        let (old, new) = (a.string()?, a.string()?);
        let snapdir = self.fs.snapdir_node();
        if r.header.node == snapdir && to == snapdir && !flags.exchange && !flags.whiteout {
            let by = Caller::of(&r.header).asker();
            return done(self.fs.rename_snapshot(old, new, by).await);
        }
        let cred = Cred { uid: r.header.uid, gid: r.header.gid };
        done(self.fs.rename(r.header.node, old, to, new, flags, cred).await)
    }

    async fn write(&self, r: &Request, a: &mut Args<'_>) -> Done {
        let (handle, off, size, flags) = (a.u64()?, a.u64()?, a.u32()?, a.u32()?);
        a.skip(8)?;
        let file_flags = a.u32()?;
        let (sync, direct) = (file_flags & abi::O_DSYNC != 0, file_flags & abi::O_DIRECT != 0);
        let behind = [r.all.slice(abi::WRITE_HEADER.min(r.all.len())..)];
        let data = if r.data.is_empty() { &behind } else { &r.data[..] };
        if data.iter().map(Bytes::len).sum::<usize>() != size as usize {
            return Err(Short);
        }
        let node = r.header.node;
        // Through its cache the kernel takes capabilities away itself, and writes what was mapped
        // in nobody's name.
        let unprivileged = flags & abi::WRITE_KILL_SUIDGID != 0;
        let mut kill = false;
        if unprivileged || handle != CACHED {
            match self.disarm(&r.header, node, Some(unprivileged)).await {
                Ok(k) => kill = k,
                Err(e) => return Ok(e.into()),
            }
        }
        let mut written = match direct {
            true => self.fs.write_direct(node, off, data, kill).await.map(drop),
            false => self.fs.write_vectored(node, off, data, kill).await.map(drop),
        };
        self.disarmed(node, kill);
        // A write can ask for it itself (RWF_DSYNC). The kernel sees to that only where it goes
        // through the cache.
        let stable = handle == STABLE || sync && !(self.kernel_syncs && handle == CACHED);
        if stable && written.is_ok() {
            written = self.fs.fsync(node).await;
        }
        Ok(match written {
            Ok(()) => {
                let mut out = Out::with(8);
                out.u32(size).u32(0);
                Reply::head(out.0)
            }
            Err(e) => e.into(),
        })
    }

    async fn setxattr(&self, node: u64, a: &mut Args<'_>) -> Done {
        let (size, flags, more) = (a.u32()?, a.u32()?, a.u32()?);
        a.skip(4)?;
        let name = a.string()?;
        let value = a.bytes(size as usize)?;
        let mode = match flags {
            0 => XattrMode::Any,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return Ok(Reply::errno(EINVAL)),
        };
        if let Err(e) = self.fs.setxattr(node, name, value, mode).await {
            return Ok(e.into());
        }
        if more & abi::SETXATTR_ACL_KILL_SGID != 0 {
            let set = SetAttr { kill_sgid: true, ..SetAttr::default() };
            return done(self.fs.setattr(node, set).await.map(drop));
        }
        Ok(Reply::ok())
    }

    async fn readdir(&self, dir: u64, a: &mut Args<'_>, plus: bool) -> Done {
        a.skip(8)?;
        let (mut cookie, room) = (a.u64()?, (a.u32()? as usize).min(1 << 20));
        let mut out = Out::with(room.min(64 << 10));
        loop {
            let batch = match self.fs.readdir(dir, cookie).await {
                Ok(b) => b,
                // What was read so far is good; the error will come again.
                Err(_) if !out.0.is_empty() => break,
                Err(e) => return Ok(e.into()),
            };
            let Some(last) = batch.last() else { break };
            let before = cookie;
            cookie = last.cookie;
            let full = if plus {
                match self.put_plus(dir, &batch, &mut out, room).await {
                    Ok(full) => full,
                    Err(e) => return Ok(e.into()),
                }
            } else {
                !batch.iter().all(|e| put_dirent(&mut out, room, e, self.root(), None))
            };
            if full || cookie == before {
                break;
            }
        }
        Ok(Reply::head(out.0))
    }

    /// Entries with their files' attributes; true if they did not all fit. The kernel counts a use
    /// of each file it is told of.
    async fn put_plus(
        &self,
        dir: u64,
        batch: &[DirEntry],
        out: &mut Out,
        room: usize,
    ) -> zilla::Result<bool> {
        // What certainly does not fit is not looked up.
        let mut left = room.saturating_sub(out.0.len());
        let fits = batch
            .iter()
            .take_while(|e| {
                let len = 152 + e.name.len().next_multiple_of(8);
                let fits = left >= len;
                left = left.saturating_sub(len);
                fits
            })
            .count();
        let (batch, rest) = batch.split_at(fits);
        let (files, vary) = (self.fs.entries(dir, batch).await?, self.fs.names_vary());
        for (e, file) in batch.iter().zip(files) {
            // The dots are not looked up: the kernel has them, and does not count them.
            let file = file.filter(|_| !matches!(&e.name[..], b"." | b".."));
            let about = file.as_ref().map(|f| (f.node, &f.attr, f.lasting && !vary));
            if !put_dirent(out, room, e, self.root(), Some(about)) {
                return Ok(true);
            }
            if let Some(f) = file {
                self.guard(&f.attr);
                f.leak();
            }
        }
        Ok(!rest.is_empty())
    }

    async fn fallocate(&self, r: &Request, a: &mut Args<'_>) -> Done {
        let node = r.header.node;
        a.skip(8)?;
        let (off, len, mode) = (a.u64()?, a.u64()?, a.u32()?);
        if off.checked_add(len).is_none() {
            return Ok(Errno::FBig.into());
        }
        let keep = mode & FALLOC_KEEP_SIZE != 0;
        let how = mode & !FALLOC_KEEP_SIZE;
        if !(how == FALLOC_PUNCH_HOLE && keep || how == FALLOC_ZERO_RANGE || how == 0) {
            return Ok(Errno::NotSup.into());
        }
        let kill = match self.disarm(&r.header, node, None).await {
            Ok(kill) => kill,
            Err(e) => return Ok(e.into()),
        };
        let changed = match how {
            FALLOC_PUNCH_HOLE => self.fs.punch(node, off, len, false, kill).await,
            FALLOC_ZERO_RANGE => self.fs.punch(node, off, len, !keep, kill).await,
            // Space cannot be set aside for what will be written elsewhere anyway; what remains of
            // it is the size.
            _ if keep => self.fs.reserve(node, off, len, kill).await,
            _ => self.fs.allocate(node, off, len, kill).await,
        };
        self.disarmed(node, kill);
        done(changed)
    }

    async fn lseek(&self, node: u64, a: &mut Args<'_>) -> Done {
        a.skip(8)?;
        let (off, whence) = (a.u64()?, a.u32()?);
        let whence = match whence {
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            _ => return Ok(Reply::errno(EINVAL)),
        };
        Ok(match self.fs.seek(node, off, whence).await {
            Ok(at) => {
                let mut out = Out::with(8);
                out.u64(at);
                Reply::head(out.0)
            }
            Err(e) => e.into(),
        })
    }

    async fn copy(&self, r: &Request, a: &mut Args<'_>) -> Done {
        let node = r.header.node;
        a.skip(8)?;
        let (off, to) = (a.u64()?, from_kernel(a.u64()?, self.root()));
        a.skip(8)?;
        let (to_off, len) = (a.u64()?, a.u64()?);
        let kill = match self.disarm(&r.header, to, None).await {
            Ok(kill) => kill,
            Err(e) => return Ok(e.into()),
        };
        let copied = self.fs.copy_range((node, off), (to, to_off), len, kill).await;
        self.disarmed(to, kill);
        Ok(match copied {
            Ok(n) => {
                let mut out = Out::with(8);
                out.u32(n as u32).u32(0);
                Reply::head(out.0)
            }
            Err(e) => e.into(),
        })
    }
}

fn writes(flags: u32) -> bool {
    flags & abi::O_ACCMODE != abi::O_RDONLY || flags & abi::O_TRUNC != 0
}

/// Whether a file's set-group-id bit is one that only members of the group leave.
fn is_strangers(attr: &Attr, caller: &Caller) -> bool {
    attr.mode & (S_ISGID | S_IXGRP) == S_ISGID && !caller.is_in_group(attr.gid)
}

fn done(r: zilla::Result<()>) -> Done {
    Ok(r.map_or_else(Reply::from, |()| Reply::ok()))
}
