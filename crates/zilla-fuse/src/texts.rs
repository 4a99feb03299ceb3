//! Texts as files: a directory whose files say what is true at the moment they are opened, as those
//! of procfs do.
//!
//! A file has no size that could be told beforehand; the kernel keeps nothing of it. Its text is
//! made at the first read after it was opened, and stays until it is closed, so that who reads in
//! small parts gets parts of one text. One text is made at a time, and those of all open files
//! of one user take no more than [`MOST_OF_ONE`] bytes, those of all users but this process's and
//! root [`MOST`]: beyond that who reads is told that there is no memory.
//!
//! **A crash** of this process leaves a mount that [`clear_stale`](crate::clear_stale) takes away.

use crate::abi::{O_ACCMODE, O_RDONLY, Short, fopen, op};
use crate::crew::{Served, Turn, begin, crew};
use crate::dev::Dev;
use crate::mount::{Attached, attach, detach, open_dir};
use crate::reply::{Out, Reply};
use crate::request::Request;
use crate::session::Options;
use crate::tree::{self, Kind, Tree};
use crate::volumes::greet;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zilla::{Errno, Error, StatFs};
use zilla_env::Env;

/// Bytes of the texts of files that are open: of all that others have, and of one of them. Root
/// and who runs this process have as many as all others.
const MOST: usize = 64 << 20;
const MOST_OF_ONE: usize = 32 << 20;
/// Requests have no data.
const RECORD: usize = 4096;
const RELEASEDIR: u32 = 29;
const ACCESS: u32 = 34;
const FLUSH: u32 = 25;
const OPENDIR: u32 = 27;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// What the directory shows.
pub trait Texts: Send + Sync + 'static {
    /// The paths of all files.
    fn list(&self) -> BoxFuture<'_, Vec<String>>;
    /// What one says now; None: it is gone.
    fn text<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Option<Vec<u8>>>;
}

/// A file that is open: its path, who has it, and its text once somebody has read.
struct Open {
    path: String,
    user: u32,
    text: Option<Bytes>,
}

impl Open {
    /// Keeps what was made for one of some files, if there is room for it.
    fn keep(files: &mut HashMap<u64, Open>, file: u64, made: Bytes, owner: u32) -> zilla::Result<Bytes> {
        let closed = || Error::os(Errno::BadF, "the file is not open");
        let user = files.get(&file).ok_or_else(closed)?.user;
        let taken = |of: &dyn Fn(u32) -> bool| -> usize {
            files.values().filter(|f| of(f.user)).filter_map(|f| f.text.as_ref()).map(Bytes::len).sum()
        };
        let other = |user: u32| user != 0 && user != owner;
        let room = |taken: usize, most: usize| taken + made.len() <= most;
        // Whose machine it is looks at it whatever others have open.
        let own = if other(user) { MOST_OF_ONE } else { MOST };
        if !room(taken(&|u| u == user), own) || other(user) && !room(taken(&other), MOST) {
            return Err(Error::os(Errno::NoMem, "too much is being read at once"));
        }
        files.get_mut(&file).ok_or_else(closed)?.text = Some(made.clone());
        Ok(made)
    }
}

struct Session {
    texts: Arc<dyn Texts>,
    env: Env,
    dev: Arc<Dev>,
    tree: Mutex<Tree>,
    files: Mutex<HashMap<u64, Open>>,
    /// Held while a text is made, which nobody counts until it is there.
    making: futures_util::lock::Mutex<()>,
    next_file: AtomicU64,
    gone: AtomicBool,
}

/// The mounted directory. Dropping it leaves the mount standing.
pub struct TextMount {
    session: Arc<Session>,
    mountpoint: PathBuf,
    device: u64,
}

/// Mounts such a directory, shown as of type `fuse.<kind>`, and serves it until it is unmounted.
pub fn mount_texts(
    texts: Arc<dyn Texts>,
    env: Env,
    mountpoint: &Path,
    kind: &'static str,
) -> io::Result<TextMount> {
    let opts =
        Options { kind, readonly: true, setuid: false, devices: false, exec: false, ..Options::new(kind) };
    let Attached { path: mountpoint, device, fd } = attach(open_dir(mountpoint, OFlags::NOFOLLOW)?, &opts)?;
    let session = Arc::new(Session {
        texts,
        env,
        dev: Arc::new(Dev::new(fd)),
        tree: Mutex::default(),
        files: Mutex::default(),
        making: futures_util::lock::Mutex::new(()),
        next_file: AtomicU64::new(1),
        gone: false.into(),
    });
    if let Err(e) = session.clone().start() {
        let _ = detach(&mountpoint, device, true);
        return Err(e);
    }
    Ok(TextMount { session, mountpoint, device })
}

impl TextMount {
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Unmounts, whoever has files open.
    pub fn unmount(&self) -> io::Result<()> {
        match self.session.gone.load(Ordering::Acquire) {
            true => Ok(()),
            false => detach(&self.mountpoint, self.device, true).map(drop),
        }
    }
}

fn or_errno(r: zilla::Result<Reply>) -> Reply {
    r.unwrap_or_else(|e| Reply::err(&e))
}

fn attr(node: u64, kind: Kind) -> Out {
    let (mode, nlink) = match kind {
        Kind::Directory => (S_IFDIR | 0o555, 2),
        Kind::File => (S_IFREG | 0o444, 1),
    };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut out = Out::with(88);
    out.u64(node).u64(0).u64(0).u64(0).u64(0).u64(0).u32(0).u32(0).u32(0);
    out.u32(mode).u32(nlink).u32(uid).u32(gid).u32(0).u32(4096).u32(0);
    out
}

impl Session {
    fn start(self: Arc<Self>) -> io::Result<()> {
        greet(&self.dev)?;
        self.dev.unblock()?;
        crew()?.add(self)
    }

    fn answer(&self, unique: u64, reply: &Reply) {
        if let Err(e) = self.dev.reply(unique, reply) {
            tracing::error!("answering the kernel: {e}");
        }
    }

    async fn perform(&self, request: &Request) -> Result<Reply, Short> {
        let mut a = request.args();
        let node = request.header.node;
        Ok(match request.header.opcode {
            op::LOOKUP => or_errno(self.lookup(node, a.string()?).await),
            op::GETATTR => or_errno(self.getattr(node).await),
            op::OPEN => or_errno(self.open(node, request.header.uid, a.u32()?)),
            op::RELEASE => {
                let closed = self.files.lock().remove(&a.u64()?);
                drop(closed);
                Reply::ok()
            }
            op::READ => {
                let (file, off, size) = (a.u64()?, a.u64()?, a.u32()?);
                or_errno(self.read(file, off, size as usize).await)
            }
            op::READDIR => {
                a.skip(8)?;
                let (cookie, room) = (a.u64()?, a.u32()?);
                let names = self.texts.list().await;
                or_errno(self.path(node).map(|path| tree::listing(&path, &names, cookie, room as usize)))
            }
            op::STATFS => {
                let none = StatFs {
                    bytes_total: 0,
                    bytes_free: 0,
                    files_total: 0,
                    files_free: 0,
                    name_max: 255,
                    fsid: 0,
                };
                Reply::statfs(&none, 4096)
            }
            op::FSYNC | op::FSYNCDIR => Reply::ok(),
            op::GETXATTR | op::LISTXATTR => Reply::errno(95),
            // Who opens directories unasked keeps what he read in them.
            OPENDIR => Reply::head(vec![0; 16]),
            RELEASEDIR => Reply::ok(),
            // The kernel does without these.
            FLUSH | ACCESS => Reply::errno(38),
            // Nothing is changed here.
            op::SETATTR | op::MKNOD | op::MKDIR | op::CREATE | op::SYMLINK | op::LINK | op::UNLINK => {
                Reply::errno(1)
            }
            op::RMDIR | op::RENAME | op::RENAME2 | op::SETXATTR | op::REMOVEXATTR => Reply::errno(1),
            _ => Reply::errno(38),
        })
    }

    fn path(&self, node: u64) -> zilla::Result<String> {
        self.tree.lock().path(node).ok_or_else(|| Error::os(Errno::Stale, "the name is forgotten"))
    }

    async fn lookup(&self, dir: u64, name: &[u8]) -> zilla::Result<Reply> {
        let none = || Error::no_ent("there is no such file");
        let (above, name) = (self.path(dir)?, std::str::from_utf8(name).map_err(|_| none())?);
        let path = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
        let kind = tree::kind(&path, &self.texts.list().await).ok_or_else(none)?;
        let node = self.tree.lock().told(&path);
        let mut out = Out::with(128);
        out.u64(node).u64(0).u64(0).u64(0).u32(0).u32(0);
        out.0.extend_from_slice(&attr(node, kind).0);
        Ok(Reply::head(out.0))
    }

    async fn getattr(&self, node: u64) -> zilla::Result<Reply> {
        let path = self.path(node)?;
        let gone = || Error::os(Errno::Stale, "the file is gone");
        let kind = tree::kind(&path, &self.texts.list().await).ok_or_else(gone)?;
        let mut out = Out::with(104);
        out.u64(0).u32(0).u32(0);
        out.0.extend_from_slice(&attr(node, kind).0);
        Ok(Reply::head(out.0))
    }

    fn open(&self, node: u64, user: u32, flags: u32) -> zilla::Result<Reply> {
        let path = self.path(node)?;
        if flags & O_ACCMODE != O_RDONLY {
            return Err(Error::os(Errno::ROFs, "it can only be read"));
        }
        let file = self.next_file.fetch_add(1, Ordering::Relaxed);
        self.files.lock().insert(file, Open { path, user, text: None });
        let mut out = Out::with(16);
        out.u64(file).u32(fopen::DIRECT_IO | fopen::NOFLUSH).u32(0);
        Ok(Reply::head(out.0))
    }

    async fn read(&self, file: u64, off: u64, len: usize) -> zilla::Result<Reply> {
        let text = self.text(file).await?;
        let from = usize::try_from(off).unwrap_or(usize::MAX).min(text.len());
        let to = from.saturating_add(len).min(text.len());
        Ok(Reply::bytes(text.slice(from..to)))
    }

    async fn text(&self, file: u64) -> zilla::Result<Bytes> {
        let closed = || Error::os(Errno::BadF, "the file is not open");
        let _one = self.making.lock().await;
        let path = {
            let files = self.files.lock();
            let open = files.get(&file).ok_or_else(closed)?;
            match &open.text {
                Some(text) => return Ok(text.clone()),
                None => open.path.clone(),
            }
        };
        let made = self.texts.text(&path).await;
        let made = Bytes::from(made.ok_or_else(|| Error::os(Errno::Stale, "the file is gone"))?);
        let owner = rustix::process::geteuid().as_raw();
        Open::keep(&mut self.files.lock(), file, made, owner)
    }
}

impl Served for Session {
    fn dev(&self) -> &Arc<Dev> {
        &self.dev
    }

    fn record(&self) -> usize {
        RECORD
    }

    fn handle(self: Arc<Self>, request: Request, turn: &mut Turn<'_>) {
        let unique = request.header.unique;
        if matches!(request.header.opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::DESTROY) {
            // These are not answered.
            let _ = self.tree.lock().forgets(&request);
            return;
        }
        if request.header.opcode == op::READ {
            // It may take a while to say it.
            turn.pass();
        }
        let session = self.clone();
        begin(&self.env, async move {
            let reply = session.perform(&request).await.unwrap_or_else(|Short| Reply::errno(22));
            session.answer(unique, &reply);
        });
    }

    fn end(self: Arc<Self>) {
        self.files.lock().clear();
        self.gone.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_opens_much_keeps_nobody_from_reading() {
        let (joe, ann, owner) = (1000, 1001, 7);
        let mut files = HashMap::new();
        let mut read = |user: u32, bytes: usize| {
            let file = files.len() as u64;
            files.insert(file, Open { path: "dbufs".to_owned(), user, text: None });
            Open::keep(&mut files, file, vec![0; bytes].into(), owner).is_ok()
        };
        let piece = MOST_OF_ONE / 4;
        assert_eq!((0..20).filter(|_| read(joe, piece)).count(), 4);
        assert!(read(ann, piece));
        // With as many users as he likes.
        let many = (2000..2100).filter(|user| read(*user, piece)).count();
        assert_eq!(many, MOST / piece - 5);
        assert!(!read(ann, piece) && read(0, piece) && read(owner, piece));
        assert!(!read(0, MOST));
    }
}
