//! What the kernel asks of the directory of volumes.

use super::{OpenVolume, Session};
use crate::abi::{O_ACCMODE, O_DSYNC, O_RDONLY, Short, fattr, fopen, op};
use crate::reply::{Out, Reply};
use crate::request::Request;
use crate::tree::{self, Kind};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla::{Errno, Error, StatFs};

/// Operations that only this directory answers by hand.
const RELEASEDIR: u32 = 29;
const ACCESS: u32 = 34;
const FLUSH: u32 = 25;
const OPENDIR: u32 = 27;

/// Modes of fallocate: what is done, always within the size.
const KEEP_SIZE: u32 = 0x1;
const PUNCH_HOLE: u32 = 0x2;
const ZERO_RANGE: u32 = 0x10;
/// `whence` of lseek.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

type Answer = std::result::Result<Reply, Short>;

fn or_errno(r: zilla::Result<Reply>) -> Reply {
    r.unwrap_or_else(|e| Reply::err(&e))
}

impl Session {
    pub(super) async fn perform(&self, request: &Request) -> Answer {
        let mut a = request.args();
        let node = request.header.node;
        Ok(match request.header.opcode {
            op::LOOKUP => {
                let name = a.string()?;
                or_errno(self.lookup(node, name).await)
            }
            op::GETATTR => or_errno(self.getattr(node).await),
            op::SETATTR => {
                let valid = a.u32()?;
                a.skip(12)?;
                let size = a.u64()?;
                or_errno(self.setattr(node, valid, size).await)
            }
            op::OPEN => {
                let flags = a.u32()?;
                or_errno(self.open(node, flags).await)
            }
            op::RELEASE => {
                let closed = self.files.lock().remove(&a.u64()?);
                drop(closed);
                Reply::ok()
            }
            op::READ => {
                let (file, off, size) = (a.u64()?, a.u64()?, a.u32()?);
                or_errno(self.read(file, off, size as usize).await)
            }
            op::WRITE => {
                let (file, off, size) = (a.u64()?, a.u64()?, a.u32()?);
                a.skip(12)?;
                let flags = a.u32()?;
                a.skip(4)?;
                let data = match request.data.is_empty() {
                    true => vec![Bytes::copy_from_slice(a.bytes(size as usize)?)],
                    false => request.data.clone(),
                };
                or_errno(self.write(file, off, data, flags & O_DSYNC != 0).await)
            }
            op::FSYNC => {
                let file = a.u64()?;
                or_errno(self.flush(file).await)
            }
            op::FALLOCATE => {
                let (file, off, len, mode) = (a.u64()?, a.u64()?, a.u64()?, a.u32()?);
                or_errno(self.fallocate(file, off, len, mode).await)
            }
            op::LSEEK => {
                let (file, off, whence) = (a.u64()?, a.u64()?, a.u32()?);
                or_errno(self.seek(file, off, whence).await)
            }
            op::READDIR => {
                a.skip(8)?;
                let (cookie, room) = (a.u64()?, a.u32()?);
                or_errno(self.readdir(node, cookie, room as usize).await)
            }
            op::STATFS => Reply::statfs(
                &StatFs {
                    bytes_total: 0,
                    bytes_free: 0,
                    files_total: 0,
                    files_free: 0,
                    name_max: 255,
                    fsid: 0,
                },
                4096,
            ),
            op::FSYNCDIR => Reply::ok(),
            // Who opens directories unasked keeps what he read in them, and volumes come and go.
            OPENDIR => Reply::head(vec![0; 16]),
            RELEASEDIR => Reply::ok(),
            // The kernel does without these.
            FLUSH | ACCESS | op::IOCTL => Reply::errno(38),
            // Nothing is made, renamed or removed here.
            op::MKNOD | op::MKDIR | op::CREATE | op::SYMLINK | op::LINK => Reply::errno(1),
            op::UNLINK | op::RMDIR | op::RENAME | op::RENAME2 | op::SETXATTR | op::REMOVEXATTR => {
                Reply::errno(1)
            }
            op::GETXATTR | op::LISTXATTR => Reply::errno(95),
            _ => Reply::errno(38),
        })
    }

    fn path(&self, node: u64) -> zilla::Result<String> {
        self.tree.lock().path(node).ok_or_else(|| Error::os(Errno::Stale, "the name is forgotten"))
    }

    fn file(&self, file: u64) -> zilla::Result<Arc<OpenVolume>> {
        self.files.lock().get(&file).cloned().ok_or_else(|| Error::os(Errno::BadF, "the file is not open"))
    }

    /// Attributes as the protocol has them.
    async fn attr(&self, path: &str, node: u64, kind: Kind) -> zilla::Result<Out> {
        let (size, mode, nlink) = match kind {
            Kind::Directory => (0, S_IFDIR | 0o500, 2),
            Kind::File => {
                let open = self.shelf.open(path).await?;
                let mode = if open.volume.is_readonly()? { 0o400 } else { 0o600 };
                (open.volume.size()?, S_IFREG | mode, 1)
            }
        };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mut out = Out::with(88);
        out.u64(node).u64(size).u64(0).u64(0).u64(0).u64(0).u32(0).u32(0).u32(0);
        out.u32(mode).u32(nlink).u32(uid).u32(gid).u32(0).u32(4096).u32(0);
        Ok(out)
    }

    async fn lookup(&self, dir: u64, name: &[u8]) -> zilla::Result<Reply> {
        let none = || Error::no_ent("no such volume");
        let (above, name) = (self.path(dir)?, std::str::from_utf8(name).map_err(|_| none())?);
        let path = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
        let kind = tree::kind(&path, &self.shelf.list().await).ok_or_else(none)?;
        // Numbered only when nothing can fail any more: what the kernel is not told of it does not
        // forget.
        let attr = self.attr(&path, 0, kind).await?;
        let node = self.tree.lock().told(&path);
        let mut out = Out::with(128);
        out.u64(node).u64(0).u64(0).u64(0).u32(0).u32(0);
        out.0.extend_from_slice(&attr.0);
        if let Some(ino) = out.0.get_mut(40..48) {
            ino.copy_from_slice(&node.to_ne_bytes());
        }
        Ok(Reply::head(out.0))
    }

    async fn getattr(&self, node: u64) -> zilla::Result<Reply> {
        let path = self.path(node)?;
        let names = self.shelf.list().await;
        let kind = tree::kind(&path, &names).ok_or_else(|| Error::os(Errno::Stale, "the volume is gone"))?;
        let mut out = Out::with(104);
        out.u64(0).u32(0).u32(0);
        out.0.extend_from_slice(&self.attr(&path, node, kind).await?.0);
        Ok(Reply::head(out.0))
    }

    /// A file's size is its volume's. Times mean nothing here, so who sets them (as `touch` does)
    /// is refused like all others.
    async fn setattr(&self, node: u64, valid: u32, size: u64) -> zilla::Result<Reply> {
        let path = self.path(node)?;
        let what = "a volume's size is set by 'zfs set volsize'";
        if valid & fattr::SIZE == 0 || self.shelf.open(&path).await?.volume.size()? != size {
            return Err(Error::os(Errno::Perm, what));
        }
        self.getattr(node).await
    }

    async fn open(&self, node: u64, flags: u32) -> zilla::Result<Reply> {
        let open = self.shelf.open(&self.path(node)?).await?;
        if flags & O_ACCMODE != O_RDONLY && open.volume.is_readonly()? {
            return Err(Error::os(Errno::ROFs, "the volume is read-only"));
        }
        let file = self.next_file.fetch_add(1, Ordering::Relaxed);
        self.files.lock().insert(file, Arc::new(open));
        let mut out = Out::with(16);
        out.u64(file).u32(fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES | fopen::NOFLUSH).u32(0);
        Ok(Reply::head(out.0))
    }

    async fn read(&self, file: u64, off: u64, len: usize) -> zilla::Result<Reply> {
        let open = self.file(file)?;
        let len = (len as u64).min(open.volume.size()?.saturating_sub(off)) as usize;
        if len == 0 {
            return Ok(Reply::ok());
        }
        if let Some(data) = open.volume.try_read(off, len)? {
            return Ok(Reply::data(data));
        }
        open.volume.read(off, len).await.map(Reply::data)
    }

    async fn write(&self, file: u64, off: u64, data: Vec<Bytes>, stable: bool) -> zilla::Result<Reply> {
        let open = self.file(file)?;
        let len: usize = data.iter().map(Bytes::len).sum();
        open.volume.write(off, &data, stable).await?;
        let mut out = Out::with(8);
        out.u32(len as u32).u32(0);
        Ok(Reply::head(out.0))
    }

    async fn flush(&self, file: u64) -> zilla::Result<Reply> {
        self.file(file)?.volume.flush().await?;
        Ok(Reply::ok())
    }

    async fn fallocate(&self, file: u64, off: u64, len: u64, mode: u32) -> zilla::Result<Reply> {
        let volume = &self.file(file)?.volume;
        match mode {
            _ if mode == PUNCH_HOLE | KEEP_SIZE => volume.write_zeroes(off, len, false, false).await?,
            _ if mode & !KEEP_SIZE == ZERO_RANGE => volume.write_zeroes(off, len, false, false).await?,
            _ => return Err(Error::os(Errno::NotSup, "only holes can be punched, and ranges zeroed")),
        }
        Ok(Reply::ok())
    }

    async fn seek(&self, file: u64, off: u64, whence: u32) -> zilla::Result<Reply> {
        let volume = &self.file(file)?.volume;
        let hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return Err(Error::inval("seek to data or holes")),
        };
        let (mut at, size) = (off, volume.size()?);
        let beyond = || Error::os(Errno::NxIo, "nothing there before the end of the volume");
        if at >= size {
            return Err(beyond());
        }
        while at < size {
            for extent in volume.extents(at, size - at).await? {
                if extent.hole == hole {
                    return Ok(Reply::head(at.to_ne_bytes().to_vec()));
                }
                at += extent.len;
            }
        }
        if hole { Ok(Reply::head(size.to_ne_bytes().to_vec())) } else { Err(beyond()) }
    }

    async fn readdir(&self, node: u64, cookie: u64, room: usize) -> zilla::Result<Reply> {
        Ok(tree::listing(&self.path(node)?, &self.shelf.list().await, cookie, room))
    }
}
