//! A mounted file system, and how a request gets from a thread of the crew to an answer.

use crate::abi::{self, Short, cap, op};
use crate::crew::{MAX_WRITE, Served, Turn, crew};
use crate::dev::{Dev, Read};
use crate::mount::{Attached, attach, change, clear_stale, detach, open_dir, others_allowed, write_back};
use crate::notify::Notifier;
use crate::older;
use crate::opens::{Opens, new_directly};
use crate::reply::{Out, Reply, from_kernel};
use crate::request::{Buffer, Request};
use event_listener::Event;
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla::{Filesystem, NodeId};
use zilla_env::Env;

/// How to mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// What /proc/mounts shows: the dataset's name.
    pub source: String,
    /// And the type, behind `fuse.`.
    pub kind: &'static str,
    pub readonly: bool,
    pub setuid: bool,
    pub devices: bool,
    pub exec: bool,
    pub atime: bool,
    /// What is shown of it; when times of reading change, the engine knows.
    pub relatime: bool,
    /// Others than the mounting user may look in; `fusermount3` too, which is another for the
    /// kernel, so that only then an ordinary user's file system can have a mount point in another.
    /// Root only, unless /etc/fuse.conf says otherwise.
    pub allow_other: bool,
    /// Let the kernel gather writes (see the crate's head for why not).
    pub writeback: bool,
}

impl Options {
    pub fn new(source: impl Into<String>) -> Options {
        Options {
            source: source.into(),
            kind: "zfs",
            readonly: false,
            setuid: true,
            devices: true,
            exec: true,
            atime: true,
            relatime: true,
            allow_other: others_allowed(),
            writeback: false,
        }
    }
}

/// I/O that usually takes no longer is waited for by the thread that has the request in hand:
/// handing it over would take as long.
const QUICK: Duration = Duration::from_micros(500);

/// So long is waited for times of reading to be written when the file system was unmounted: a
/// suspended pool writes nothing.
const FAREWELL: Duration = Duration::from_secs(5);

pub(crate) struct Session {
    pub(crate) fs: Arc<Filesystem>,
    pub(crate) dev: Arc<Dev>,
    pub(crate) env: Env,
    pub(crate) writeback: bool,
    /// The kernel sends an fsync after each write through its cache that is to be stable.
    pub(crate) kernel_syncs: bool,
    /// The kernel asks who wants to change file flags and projects before it passes that on.
    pub(crate) kernel_judges: bool,
    /// The kernel takes the set-group-id bit from files that strangers to the group make.
    pub(crate) kernel_strips: bool,
    pub(crate) opens: Opens,
    /// The root's number, which a rollback does not change.
    root: NodeId,
    cores: usize,
    gone: AtomicBool,
    ended: Event,
}

/// A mounted file system. Dropping it leaves the mount standing.
pub struct Mount {
    session: Arc<Session>,
    mountpoint: PathBuf,
    /// The number the kernel gave the file system.
    device: u64,
    /// It was unmounted by us. That it is gone comes later, or much later, if somebody else has it.
    detached: AtomicBool,
}

/// Mounts `fs` at a directory and serves it until it is unmounted.
pub fn mount(fs: Arc<Filesystem>, env: Env, mountpoint: &Path, opts: &Options) -> io::Result<Mount> {
    mount_on(fs, env, open_dir(mountpoint, OFlags::empty())?, opts)
}

/// The same at a directory that is open, whatever its path has come to mean.
pub fn mount_on(fs: Arc<Filesystem>, env: Env, dir: OwnedFd, opts: &Options) -> io::Result<Mount> {
    let Attached { path: mountpoint, device, fd } = attach(dir, opts)?;
    let dev = Arc::new(Dev::new(fd));
    let session = Arc::new(Session::new(fs, dev, env, opts));
    if let Err(e) = session.clone().start() {
        let _ = detach(&mountpoint, device, true);
        return Err(e);
    }
    read_ahead_more(device);
    Ok(Mount { session, mountpoint, device, detached: false.into() })
}

/// The kernel follows a write to be made stable with an fsync, and has the file locked during each.
/// So a commit in the write would keep all others out; the fsyncs come after the writes of all who
/// waited for the lock, and the first makes them all stable. Seen in the sources of Linux 6.1 and
/// in what 6.18 sends; older ones are not trusted.
fn kernel_syncs(linux: [u32; 3]) -> bool {
    linux >= [6, 1, 0]
}

fn linux() -> [u32; 3] {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

/// The kernel reads 128K ahead; a request may be larger, which only root may say.
fn read_ahead_more(device: u64) {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // Without the right to it all works, a little slower.
    let _ = std::fs::write(
        format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"),
        (MAX_WRITE / 1024).to_string(),
    );
}

impl Mount {
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
    /// The number that the kernel gave the file system.
    pub fn device(&self) -> u64 {
        self.device
    }
    pub fn notifier(&self) -> Notifier {
        Notifier(self.session.clone())
    }
    /// Has the kernel send what was changed in mapped files and not written yet, which is lost if
    /// the mount is taken away from who has it.
    pub fn write_back(&self) -> io::Result<()> {
        write_back(&self.mountpoint, self.device)
    }
    /// Unmounts. Without `force`, files in use make it fail. [`Mount::gone`] tells when the last
    /// request is through.
    pub fn unmount(&self, force: bool) -> io::Result<()> {
        if self.is_going() {
            // Nothing may be left of it but the mount, if the connection broke off.
            return clear_stale(&self.mountpoint).map(drop);
        }
        // Where somebody else has detached it and its files are still open, they can be taken from
        // whoever has them.
        if !detach(&self.mountpoint, self.device, force)? && !force {
            return Err(io::Error::other("it is not mounted any more, but its files are open"));
        }
        self.detached.store(true, Ordering::Release);
        Ok(())
    }
    /// Whether someone unmounted it.
    pub fn is_gone(&self) -> bool {
        self.session.gone.load(Ordering::Acquire)
    }
    /// Whether someone unmounted it, even if the last of it still runs: the kernel knows at once,
    /// its threads a moment later.
    pub fn is_going(&self) -> bool {
        self.is_gone() || self.detached.load(Ordering::Acquire) || self.session.dev.is_cut()
    }
    /// Whether it is in use somewhere though it was unmounted here: files are open in what was
    /// taken away by force, or another mount namespace (a container's, a service's) has a copy of
    /// the mount.
    pub fn lives_elsewhere(&self) -> bool {
        self.detached.load(Ordering::Acquire) && !self.is_gone() && !self.session.dev.is_cut()
    }
    /// Changes what the kernel heeds of the options while it is mounted. Refused with
    /// `PermissionDenied` to who is not root.
    pub fn change(&self, opts: &Options) -> io::Result<()> {
        change(&self.mountpoint, self.device, opts)
    }
    /// Waits until it is unmounted and nothing of it runs any more.
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
    pub(crate) fn new(fs: Arc<Filesystem>, dev: Arc<Dev>, env: Env, opts: &Options) -> Session {
        let root = fs.root();
        Session {
            fs,
            dev,
            env,
            writeback: opts.writeback,
            kernel_syncs: kernel_syncs(linux()),
            kernel_judges: older::judges_flags(linux()),
            kernel_strips: older::strips_modes(linux()),
            opens: Opens::new(new_directly(linux())),
            root,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            gone: false.into(),
            ended: Event::new(),
        }
    }

    pub(crate) fn root(&self) -> NodeId {
        self.root
    }

    fn start(self: Arc<Self>) -> io::Result<()> {
        self.init()?;
        self.dev.unblock()?;
        crew()?.add(self)
    }

    /// The first request, which settles what both sides can do.
    fn init(&self) -> io::Result<()> {
        let strange = |_| io::Error::other("the kernel's first request is not INIT");
        let mut buf = Buffer::new(MAX_WRITE);
        let request = loop {
            match self.dev.read(&mut buf, || self.record())? {
                Read::Request(n) => break buf.take(n).map_err(strange)?,
                Read::Again | Read::Empty => {}
                Read::Gone => return Err(io::Error::other("unmounted before it was ready")),
            }
        };
        let header = request.header;
        if header.opcode != op::INIT {
            return Err(strange(Short));
        }
        let reply = self.negotiate(&request).map_err(strange)?;
        let refused = reply.error;
        self.dev.reply(header.unique, &reply)?;
        if refused != 0 {
            return Err(io::Error::other("the kernel's FUSE is older than 7.23"));
        }
        Ok(())
    }

    fn negotiate(&self, request: &Request) -> Result<Reply, Short> {
        let mut a = request.args();
        let (major, minor, readahead, flags) = (a.u32()?, a.u32()?, a.u32()?, a.u32()?);
        if major != abi::MAJOR || minor < 23 {
            return Ok(Reply::errno(71));
        }
        let theirs = u64::from(flags)
            | if u64::from(flags) & cap::INIT_EXT != 0 { u64::from(a.u32()?) << 32 } else { 0 };
        let mut want = cap::ASYNC_READ
            | cap::EXPORT_SUPPORT
            | cap::BIG_WRITES
            | cap::DONT_MASK
            | cap::DO_READDIRPLUS
            | cap::READDIRPLUS_AUTO
            | cap::ASYNC_DIO
            | cap::NO_OPEN_SUPPORT
            | cap::DIRECT_IO_ALLOW_MMAP
            | cap::PARALLEL_DIROPS
            | cap::MAX_PAGES
            | cap::CACHE_SYMLINKS
            | cap::NO_OPENDIR_SUPPORT
            | cap::HANDLE_KILLPRIV_V2
            | cap::SETXATTR_EXT
            | cap::INIT_EXT;
        if self.fs.zfs().props().posix_acl {
            want |= cap::POSIX_ACL;
        }
        if self.writeback {
            want |= cap::WRITEBACK_CACHE;
        }
        let agreed = want & theirs;
        // A file that is not cached must still be one that can be mapped.
        if agreed & cap::DIRECT_IO_ALLOW_MMAP == 0 {
            self.opens.never();
        }
        let mut out = Out::with(64);
        out.u32(abi::MAJOR)
            .u32(abi::MINOR.min(minor))
            .u32(readahead.max(MAX_WRITE as u32))
            .u32(agreed as u32);
        // Requests in flight for readahead and write-back; the default of 12 starves a pool of
        // several disks.
        out.u16(128).u16(96).u32(MAX_WRITE as u32).u32(1);
        out.u16((MAX_WRITE / 4096) as u16).u16(0).u32((agreed >> 32) as u32);
        out.0.resize(64, 0);
        Ok(Reply::head(out.0))
    }

    /// Runs the operation here as far as it goes; if it has to wait, the rest becomes a task.
    fn later(self: &Arc<Self>, request: Request, more: bool, turn: &mut Turn<'_>) {
        let unique = request.header.unique;
        // Who waits in line may want to be made stable too: who comes last does it for all.
        let waits = !more && request.waits();
        let session = self.clone();
        let mut work = Box::pin(async move {
            let reply = session.perform(&request).await.unwrap_or_else(|Short| Reply::errno(22));
            (session, reply)
        });
        let now = if waits {
            turn.pass();
            zilla_env::block_for(QUICK, &mut work)
        } else {
            (&mut work).now_or_never()
        };
        match now {
            Some((_, reply)) => self.answer(unique, &reply),
            None => self.env.spawn(async move {
                let (session, reply) = work.await;
                session.answer(unique, &reply);
            }),
        }
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

    /// The length of a full record of what is written.
    fn record(&self) -> usize {
        self.fs.zfs().props().recordsize as usize
    }

    fn handle(self: Arc<Self>, mut request: Request, turn: &mut Turn<'_>) {
        request.header.node = from_kernel(request.header.node, self.root);
        let unique = request.header.unique;
        // Who has forgotten or closed something goes on, and asks for something else meanwhile.
        let farewell = request.is_farewell();
        // Where there is no core for another thread beside the client's, one after the other is
        // soonest done; but those that wait for a disk wait together.
        let together = self.cores > 2 || request.waits();
        let more = !farewell && (request.is_long() || together && self.dev.has_request());
        if more {
            turn.pass();
        }
        match self.at_once(&request) {
            Some(Ok(Some(reply))) => self.answer(unique, &reply),
            Some(Ok(None)) => {}
            Some(Err(Short)) => self.answer(unique, &Reply::errno(22)),
            None => self.later(request, more, turn),
        }
    }

    fn end(self: Arc<Self>) {
        let env = self.env.clone();
        env.spawn(async move {
            // Times of reading that wait to be written have no other occasion.
            let zfs = self.fs.zfs();
            let written = Box::pin(zfs.flush_atimes());
            match select(written, Box::pin(self.env.sleep(FAREWELL))).await {
                Either::Left((Ok(()), _)) => {}
                Either::Left((Err(e), _)) => tracing::warn!("writing access times: {e}"),
                Either::Right(_) => tracing::warn!("access times could not be written in time"),
            }
            self.gone.store(true, Ordering::Release);
            self.ended.notify(usize::MAX);
        });
    }
}
