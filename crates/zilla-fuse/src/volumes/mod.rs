//! Volumes as files: a directory in which the volume `tank/vm/disk` is the file `tank/vm/disk`.
//!
//! It is for machines without an NBD driver: `losetup --direct-io=on` makes a block device of such
//! a file. Reads and writes go past the kernel's page cache, so what one user of a volume writes
//! another sees at once, whatever way it came. Punching a hole is a trim, zeroing a range writes
//! zeroes, fsync is a flush.
//!
//! Names are looked up anew each time, because volumes come and go; a file that is open keeps its
//! volume open (and so from being destroyed). Files are neither made nor removed here, and their
//! size is their volume's.
//!
//! **A crash** of this process leaves a mount that [`clear_stale`](crate::clear_stale) takes away.

mod ops;

use crate::abi::{self, Short, cap, op};
use crate::crew::{MAX_WRITE, Served, Turn, begin, crew};
use crate::dev::{Dev, Read};
use crate::mount::{Attached, attach, detach, open_dir};
use crate::reply::{Out, Reply};
use crate::request::{Buffer, Request};
use crate::session::Options;
use crate::tree::Tree;
use event_listener::Event;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zilla::{Result, Volume};
use zilla_env::Env;

/// Data of a write come to lie in buffers of so many bytes: the usual block of a volume.
const RECORD: usize = 16 << 10;

/// A volume in use, and what keeps it open.
pub struct OpenVolume {
    pub volume: Arc<Volume>,
    pub hold: Box<dyn Any + Send + Sync>,
}

/// What the directory shows.
pub trait Shelf: Send + Sync + 'static {
    /// Full names of all volumes.
    fn list(&self) -> BoxFuture<'_, Vec<String>>;
    /// Begins to use one.
    fn open<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<OpenVolume>>;
}

struct Session {
    shelf: Arc<dyn Shelf>,
    env: Env,
    dev: Arc<Dev>,
    tree: Mutex<Tree>,
    files: Mutex<HashMap<u64, Arc<OpenVolume>>>,
    next_file: AtomicU64,
    gone: AtomicBool,
    ended: Event,
}

/// The mounted directory.
pub struct VolumeMount {
    session: Arc<Session>,
    mountpoint: PathBuf,
    device: u64,
}

/// Mounts the directory of volumes and serves it until it is unmounted.
pub fn mount_volumes(shelf: Arc<dyn Shelf>, env: Env, mountpoint: &Path) -> io::Result<VolumeMount> {
    let opts =
        Options { setuid: false, devices: false, exec: false, allow_other: false, ..Options::new("zvol") };
    let Attached { path: mountpoint, device, fd } = attach(open_dir(mountpoint, OFlags::NOFOLLOW)?, &opts)?;
    let dev = Arc::new(Dev::new(fd));
    let session = Arc::new(Session {
        shelf,
        env,
        dev,
        tree: Mutex::default(),
        files: Mutex::default(),
        next_file: AtomicU64::new(1),
        gone: false.into(),
        ended: Event::new(),
    });
    if let Err(e) = session.clone().start() {
        let _ = detach(&mountpoint, device, true);
        return Err(e);
    }
    Ok(VolumeMount { session, mountpoint, device })
}

impl VolumeMount {
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The number that the kernel gave the file system.
    pub fn device(&self) -> u64 {
        self.device
    }

    pub fn is_gone(&self) -> bool {
        self.session.gone.load(Ordering::Acquire)
    }

    /// Unmounts. With `force` even if files are open, whose volumes stay open until they are
    /// closed.
    pub fn unmount(&self, force: bool) -> io::Result<()> {
        if self.is_gone() { Ok(()) } else { detach(&self.mountpoint, self.device, force).map(drop) }
    }

    /// Waits until nothing of it runs any more.
    pub async fn gone(&self) {
        loop {
            let listener = self.session.ended.listen();
            if self.is_gone() {
                return;
            }
            listener.await;
        }
    }
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
}

impl Served for Session {
    fn dev(&self) -> &Arc<Dev> {
        &self.dev
    }

    fn record(&self) -> usize {
        RECORD
    }

    /// Runs a request here as far as it goes; if it has to wait, the rest becomes a task.
    fn handle(self: Arc<Self>, request: Request, turn: &mut Turn<'_>) {
        let unique = request.header.unique;
        if matches!(request.header.opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::DESTROY) {
            // These are not answered.
            let _ = self.tree.lock().forgets(&request);
            return;
        }
        // Several clients read and write a volume at once.
        if request.is_long() || self.dev.has_request() {
            turn.pass();
        }
        let session = self.clone();
        begin(&self.env, async move {
            let reply = session.perform(&request).await.unwrap_or_else(|Short| Reply::errno(22));
            session.answer(unique, &reply);
        });
    }

    fn end(self: Arc<Self>) {
        // What was open is closed: nobody can close it any more.
        self.files.lock().clear();
        self.gone.store(true, Ordering::Release);
        self.ended.notify(usize::MAX);
    }
}

/// Answers the first request, which settles what both sides can do.
pub(crate) fn greet(dev: &Dev) -> io::Result<()> {
    let strange = |_| io::Error::other("the kernel's first request is not INIT");
    let mut buf = Buffer::new(MAX_WRITE);
    let request = loop {
        match dev.read(&mut buf, || RECORD)? {
            Read::Request(n) => break buf.take(n).map_err(strange)?,
            Read::Again | Read::Empty => {}
            Read::Gone => return Err(io::Error::other("unmounted before it was ready")),
        }
    };
    if request.header.opcode != op::INIT {
        return Err(strange(Short));
    }
    let reply = negotiate(&request).map_err(strange)?;
    let refused = reply.error;
    dev.reply(request.header.unique, &reply)?;
    if refused != 0 {
        return Err(io::Error::other("the kernel's FUSE is older than 7.23"));
    }
    Ok(())
}

fn negotiate(request: &Request) -> std::result::Result<Reply, Short> {
    let mut a = request.args();
    let (major, minor, readahead, flags) = (a.u32()?, a.u32()?, a.u32()?, a.u32()?);
    if major != abi::MAJOR || minor < 23 {
        return Ok(Reply::errno(71));
    }
    let want = cap::ASYNC_READ | cap::BIG_WRITES | cap::ASYNC_DIO | cap::MAX_PAGES;
    let mut out = Out::with(64);
    out.u32(abi::MAJOR).u32(abi::MINOR.min(minor)).u32(readahead).u32((want & u64::from(flags)) as u32);
    // Requests in flight, of those that the kernel sends of its own accord.
    out.u16(64).u16(48).u32(MAX_WRITE as u32).u32(1);
    out.u16((MAX_WRITE / 4096) as u16).u16(0);
    out.0.resize(64, 0);
    Ok(Reply::head(out.0))
}
