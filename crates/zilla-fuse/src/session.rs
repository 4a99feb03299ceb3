//! A mounted file system: its threads, and how a request gets from one of them to an answer.

use crate::abi::{self, Short, cap, op};
use crate::dev::{Dev, Read};
use crate::mount::{attach, change, clear_stale, detach, others_allowed, path_of};
use crate::near::{self, Near};
use crate::notify::Notifier;
use crate::opens::{Opens, new_directly};
use crate::reply::{Out, Reply, from_kernel};
use crate::request::{Buffer, Request};
use crate::watch::{Patience, Watch};
use event_listener::Event;
use futures_util::FutureExt;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use zilla::{Filesystem, NodeId};
use zilla_env::Env;

/// The most data in one request.
pub(crate) const MAX_WRITE: usize = 1 << 20;

/// How to mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// What /proc/mounts shows: the dataset's name.
    pub source: String,
    pub readonly: bool,
    pub setuid: bool,
    pub devices: bool,
    pub exec: bool,
    pub atime: bool,
    /// What is shown of it; when times of reading change, the engine knows.
    pub relatime: bool,
    /// Others than the mounting user may look in; `fusermount3` too, which is another for the kernel, so that only then an ordinary
    /// user's file system can have a mount point in another. Root only, unless /etc/fuse.conf says otherwise.
    pub allow_other: bool,
    /// Let the kernel gather writes (see the crate's head for why not).
    pub writeback: bool,
    pub threads: usize,
}

impl Options {
    pub fn new(source: impl Into<String>) -> Options {
        Options {
            source: source.into(),
            readonly: false,
            setuid: true,
            devices: true,
            exec: true,
            atime: true,
            relatime: true,
            allow_other: others_allowed(),
            writeback: false,
            threads: std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8)),
        }
    }
}

/// I/O that usually takes no longer is waited for by the thread that has the request in hand: handing it over would take as long.
const QUICK: Duration = Duration::from_micros(500);
/// A thread that was kept for so long needs another one beside it.
const KEPT: Duration = Duration::from_millis(20);

pub(crate) struct Session {
    pub(crate) fs: Arc<Filesystem>,
    pub(crate) dev: Arc<Dev>,
    pub(crate) env: Env,
    pub(crate) writeback: bool,
    /// The kernel sends an fsync after each write through its cache that is to be stable.
    pub(crate) kernel_syncs: bool,
    pub(crate) opens: Opens,
    /// The root's number, which a rollback does not change.
    root: NodeId,
    watch: Watch,
    /// Threads may answer under another policy (`near.rs`).
    nearing: bool,
    cores: usize,
    threads: AtomicUsize,
    gone: AtomicBool,
    ended: Event,
}

/// A mounted file system. Dropping it leaves the mount standing as long as its threads run.
pub struct Mount {
    session: Arc<Session>,
    mountpoint: PathBuf,
    /// The number the kernel gave the file system.
    device: u64,
}

/// Mounts `fs` at a directory and serves it on threads of its own until it is unmounted.
pub fn mount(fs: Arc<Filesystem>, env: Env, mountpoint: &Path, opts: &Options) -> io::Result<Mount> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    mount_on(fs, env, rustix::fs::open(mountpoint, how, Mode::empty())?, opts)
}

/// The same at a directory that is open, whatever its path has come to mean.
pub fn mount_on(fs: Arc<Filesystem>, env: Env, dir: OwnedFd, opts: &Options) -> io::Result<Mount> {
    let mountpoint = path_of(dir.as_fd())?;
    let dev = Arc::new(Dev::new(attach(dir.as_fd(), opts)?));
    drop(dir);
    let session = Arc::new(Session::new(fs, dev, env, opts));
    let started = session.clone().start(opts.threads.max(1));
    if let Err(e) = started {
        let _ = detach(&mountpoint, true);
        return Err(e);
    }
    let device = rustix::fs::stat(&mountpoint).map_or(0, |st| st.st_dev);
    read_ahead_more(device);
    Ok(Mount { session, mountpoint, device })
}

/// The kernel follows a write to be made stable with an fsync, and has the file locked during each. So a commit in the write would keep all others
/// out; the fsyncs come after the writes of all who waited for the lock, and the first makes them all stable. Seen in the
/// sources of Linux 6.1 and in what 6.18 sends; older ones are not trusted.
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
    pub fn notifier(&self) -> Notifier {
        Notifier(self.session.clone())
    }
    /// Unmounts. Without `force`, files in use make it fail. [`Mount::gone`] tells when the last request is through.
    pub fn unmount(&self, force: bool) -> io::Result<()> {
        if self.is_going() {
            // Nothing may be left of it but the mount, if the connection broke off.
            return clear_stale(&self.mountpoint).map(drop);
        }
        detach(&self.mountpoint, force)
    }
    /// Whether someone unmounted it.
    pub fn is_gone(&self) -> bool {
        self.session.gone.load(Ordering::Acquire)
    }
    /// Whether someone unmounted it, even if the last of it still runs: the kernel knows at once, its threads a moment later.
    pub fn is_going(&self) -> bool {
        self.is_gone() || self.session.dev.is_cut()
    }
    /// Changes what the kernel heeds of the options while it is mounted. Refused with `PermissionDenied` to who is not root.
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
            opens: Opens::new(new_directly(linux())),
            root,
            watch: Watch::default(),
            nearing: near::able(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            threads: opts.threads.max(1).into(),
            gone: false.into(),
            ended: Event::new(),
        }
    }

    pub(crate) fn root(&self) -> NodeId {
        self.root
    }

    fn start(self: Arc<Self>, threads: usize) -> io::Result<()> {
        self.init()?;
        for i in 0..threads {
            let session = self.clone();
            let run = move || {
                // What a panic leaves half done nobody may go on with, and a mount that nobody
                // serves would hang its users: as with the engine's own threads, dying is the safe
                // way out.
                if catch_unwind(AssertUnwindSafe(|| session.serve())).is_err() {
                    std::process::abort();
                }
                if session.threads.fetch_sub(1, Ordering::AcqRel) == 1 {
                    session.end();
                }
            };
            std::thread::Builder::new().name(format!("fuse-{i}")).spawn(run)?;
        }
        Ok(())
    }

    /// The last thread is through.
    fn end(self: Arc<Self>) {
        let env = self.env.clone();
        env.spawn(async move {
            // Times of reading that wait to be written have no other occasion.
            if let Err(e) = self.fs.zfs().flush_atimes().await {
                tracing::warn!("writing access times: {e}");
            }
            self.gone.store(true, Ordering::Release);
            self.ended.notify(usize::MAX);
        });
    }

    /// The first request, which settles what both sides can do.
    fn init(&self) -> io::Result<()> {
        let strange = |_| io::Error::other("the kernel's first request is not INIT");
        let mut buf = Buffer::new(MAX_WRITE);
        let request = loop {
            match self.dev.read(&mut buf, || self.record())? {
                Read::Request(n) => break buf.take(n).map_err(strange)?,
                Read::Again => {}
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
        // Requests in flight for readahead and write-back; the default of 12 starves a pool of several disks.
        out.u16(128).u16(96).u32(MAX_WRITE as u32).u32(1);
        out.u16((MAX_WRITE / 4096) as u16).u16(0).u32((agreed >> 32) as u32);
        out.0.resize(64, 0);
        Ok(Reply::head(out.0))
    }

    /// The length of a full record of what is written.
    pub(crate) fn record(&self) -> usize {
        self.fs.zfs().props().recordsize as usize
    }

    /// A thread's life.
    fn serve(self: &Arc<Self>) {
        // An answer must go through the door its request came in by.
        let dev = self.dev.another().map_or_else(|_| self.dev.clone(), Arc::new);
        let mut buf = Buffer::new(MAX_WRITE);
        let mut patience = Patience::new(self.cores);
        let mut near = Near::new(self.nearing);
        let mut many = false;
        while self.watch.go(many) {
            // Where several are at work someone is awake, and looking would take time from who will ask.
            if !many && let Some(at_once) = patience.look(&dev) {
                near.next(at_once);
            }
            let read = dev.read(&mut buf, || self.record());
            if let Ok(Read::Request(n)) = read {
                many = match buf.take(n) {
                    Ok(request) => self.handle(&dev, &mut near, request),
                    Err(Short) => {
                        tracing::error!("a request of the kernel is cut short");
                        self.watch.back(true);
                        false
                    }
                };
                continue;
            }
            self.watch.back(true);
            match read {
                Ok(Read::Gone) => self.watch.over(),
                Err(e) => {
                    tracing::error!("reading from /dev/fuse: {e}");
                    return;
                }
                Ok(_) => {}
            }
        }
    }

    /// Answers a request, or sees to it that it is answered. Returns whether more than one thread is of use.
    fn handle(self: &Arc<Self>, dev: &Arc<Dev>, near: &mut Near, mut request: Request) -> bool {
        request.header.node = from_kernel(request.header.node, self.root);
        let header = request.header;
        // Who has forgotten or closed something goes on, and asks for something else meanwhile.
        let farewell = request.is_farewell();
        // Where there is no core for another thread beside the client's, one after the other is soonest done; but those that wait for a
        // disk wait together.
        let together = self.cores > 2 || request.waits();
        let more = !farewell && (request.is_long() || together && dev.has_request());
        self.watch.back(more);
        match self.at_once(&request) {
            Some(Ok(Some(reply))) if farewell => self.answer(dev, header.unique, &reply),
            Some(Ok(Some(reply))) => {
                near.answer(header.pid, !more && self.cores_idle(), || {
                    self.answer(dev, header.unique, &reply)
                });
            }
            Some(Ok(None)) => {}
            Some(Err(Short)) => self.answer(dev, header.unique, &Reply::errno(22)),
            None => self.later(dev, near, request, more),
        }
        more
    }

    /// Whether the engine leaves a core idle beside this thread's.
    fn cores_idle(&self) -> bool {
        self.env.spawner.busy() + 1 < self.cores
    }

    /// Runs the operation here as far as it goes; if it has to wait, the rest becomes a task.
    fn later(self: &Arc<Self>, dev: &Arc<Dev>, near: &mut Near, request: Request, more: bool) {
        let (unique, client) = (request.header.unique, request.header.pid);
        // Who waits in line may want to be made stable too: who comes last does it for all.
        let waits = !more && request.waits();
        let session = self.clone();
        let mut work = Box::pin(async move {
            let reply = session.perform(&request).await.unwrap_or_else(|Short| Reply::errno(22));
            (session, reply)
        });
        let now = if waits {
            self.relieve_who_is_kept();
            zilla_env::block_for(QUICK, &mut work)
        } else {
            (&mut work).now_or_never()
        };
        if let Some((_, reply)) = now {
            near.answer(client, !more && !waits && self.cores_idle(), || self.answer(dev, unique, &reply));
            return;
        }
        let dev = dev.clone();
        self.env.spawn(async move {
            let (session, reply) = work.await;
            session.answer(&dev, unique, &reply);
        });
    }

    /// A thread that does I/O itself may be kept longer than it should, and the others sleep: someone looks.
    fn relieve_who_is_kept(self: &Arc<Self>) {
        if self.watch.keep() {
            let session = self.clone();
            self.env.spawn(async move {
                while session.watch.relieve() {
                    session.env.sleep(KEPT).await;
                }
            });
        }
    }

    pub(crate) fn answer(&self, dev: &Dev, unique: u64, reply: &Reply) {
        if let Err(e) = dev.reply(unique, reply) {
            tracing::error!("answering the kernel: {e}");
        }
    }
}
