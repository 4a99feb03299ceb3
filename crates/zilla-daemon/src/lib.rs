//! zillad: the process that owns imported pools and serves the control API.
//!
//! This library is the process around the pools: [`instance`] claims a state folder so that two
//! daemons never share one, [`log`] keeps what the daemon has to say, and [`run`] brings a backend
//! up, serves it and takes it down again. The pools themselves are behind [`Pools`], which the
//! program implements on the facade.
//!
//! What it keeps true: at most one daemon lives in a state folder, for as long as it holds the lock
//! on `zillad.lock`, which the kernel gives back however the daemon ends; the socket is open only
//! while there is a backend to answer; on SIGTERM and SIGINT no new request is taken, those under
//! way finish, and then the pools are closed. While pools are still being opened those signals are
//! heeded as well: what is open by then is closed, and a device that does not answer holds up
//! nobody. A crash at any point leaves files that the next start cleans up: a socket nobody listens
//! on, a pid that is nobody's. Absent on purpose: forking into the background, which whoever starts
//! the daemon does better.

pub mod command;
pub mod engine;
pub mod instance;
pub mod keeper;
pub mod log;
mod memory;
pub mod nbd;
pub mod page;
mod supervisor;

use instance::Instance;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use zilla_control::share::Share;
use zilla_control::types::HelloReply;
use zilla_control::{Backend, PROTOCOL, StateDir, server};

/// How long calls that were begun are waited for when all pools are closed.
const LAST_CALLS: Duration = Duration::from_secs(1);

/// A backend that holds pools open.
pub trait Pools: Backend {
    /// Unmounts what is mounted and closes every pool, without exporting it: the next start opens
    /// it again. Called once, after the last request.
    fn close(&self) -> impl Future<Output = ()> + Send;

    /// Begins what the backend does unasked. It must not keep the backend alive.
    fn attend(self: &Arc<Self>) {}

    /// Comes back if the backend still does its work: what a service manager's watchdog asks.
    fn lives(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("{0}")]
    StateDir(String),
    #[error("another zillad{} already uses the state folder '{dir}'", pid.map(|p| format!(" (pid {p})")).unwrap_or_default())]
    Running { dir: String, pid: Option<u32> },
    #[error("{what}: {error}")]
    Io { what: String, error: std::io::Error },
    #[error("{0}")]
    Backend(String),
}

/// How the daemon was called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Started by a command rather than at a terminal: standard error is the log, and the
    /// terminal's end is not the daemon's.
    pub background: bool,
    /// Who besides the owner may ask.
    pub share: Share,
    /// Where to serve the page for browsers; nowhere unless it is asked for.
    pub http: Option<SocketAddr>,
}

/// The daemon's side of what a backend may ask of it.
#[derive(Debug, Clone)]
pub struct Handle {
    dir: StateDir,
    stop: Arc<watch::Sender<bool>>,
    page: Arc<OnceLock<SocketAddr>>,
    page_guard: Option<Arc<page::Guarded>>,
    nbd: Option<Arc<nbd::Tcp>>,
    nfs: Option<Arc<std::net::TcpListener>>,
    devices: Option<Arc<Path>>,
    share: Share,
}

impl Handle {
    pub fn new(dir: StateDir) -> Handle {
        let stop = Arc::new(watch::channel(false).0);
        let (page, share) = (Arc::default(), Share::Nobody);
        Handle { dir, stop, page, page_guard: None, nbd: None, nfs: None, devices: None, share }
    }

    /// Others may ask too.
    pub fn shared_with(self, share: Share) -> Handle {
        Handle { share, ..self }
    }

    /// Who besides the owner may ask.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Volumes are served there too.
    pub fn with_nbd(self, tcp: Option<nbd::Tcp>) -> Handle {
        Handle { nbd: tcp.map(Arc::new), ..self }
    }

    /// The page is served by TLS.
    pub fn with_page_guard(self, guard: Option<page::Guarded>) -> Handle {
        Handle { page_guard: guard.map(Arc::new), ..self }
    }

    /// File systems are shared there.
    pub fn with_nfs(self, listener: Option<std::net::TcpListener>) -> Handle {
        Handle { nfs: listener.map(Arc::new), ..self }
    }

    /// Volumes have block devices, with links in this folder.
    pub fn with_devices(self, links: Option<&Path>) -> Handle {
        Handle { devices: links.map(Arc::from), ..self }
    }

    pub fn devices(&self) -> Option<&Path> {
        self.devices.as_deref()
    }

    /// The socket that NFS's clients come to.
    pub fn nfs(&self) -> Option<std::net::TcpListener> {
        let cloned = self.nfs.as_ref()?.try_clone();
        cloned.inspect_err(|e| tracing::error!("file systems cannot be shared over NFS: {e}")).ok()
    }

    pub fn nbd(&self) -> Option<&nbd::Tcp> {
        self.nbd.as_deref()
    }

    pub fn state_dir(&self) -> &StateDir {
        &self.dir
    }

    /// Ends the daemon as SIGTERM does.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Whether the daemon is to end.
    pub fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// What the operation `hello` answers.
    pub fn hello(&self) -> HelloReply {
        HelloReply {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            state_dir: self.dir.path().to_string_lossy().into_owned(),
            page: self.page.get().copied(),
            page_name: self.page_guard.as_ref().map(|g| g.name.clone()),
        }
    }

    /// Ends when the daemon is to end.
    pub async fn stopped(&self) {
        let mut stop = self.stop.subscribe();
        // The sender lives as long as this handle.
        let _ = stop.wait_for(|stop| *stop).await;
    }
}

/// Claims the state folder, brings the backend up, serves it until a signal or [`Handle::stop`],
/// and takes it down. `open` gets the handle; what it does first (import the pools of the cache
/// file, clear stale mounts) happens before the socket is there, so that who connects finds the
/// pools. If it is told to end meanwhile ([`Handle::stopped`]) it comes back with what there is.
pub fn run<B, F>(options: Options, handle: Handle, open: impl FnOnce(Handle) -> F) -> Result<(), DaemonError>
where
    B: Pools,
    F: Future<Output = Result<B, DaemonError>>,
{
    memory::bound_heap();
    let dir = handle.dir.clone();
    // Nothing the daemon makes is for others, whatever the umask of whoever started it.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    if options.share != Share::Nobody && !rustix::process::geteuid().is_root() {
        let why = "only a daemon of root's can be shared: commands trust nobody but root and their own user";
        return Err(DaemonError::Backend(why.to_owned()));
    }
    raise_descriptors();
    let handed = supervisor::listener(&dir.socket()).map_err(DaemonError::Backend)?;
    let mut instance = Instance::claim(&dir, options.background)?;
    log::start(instance.folder(), options.background)?;
    let io = |what: &str| {
        let what = what.to_owned();
        move |error| DaemonError::Io { what, error }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(io("cannot start threads"))?;
    if handed.is_some() {
        instance.leave_socket();
    }
    let done = runtime.block_on(async {
        // Signals first: one that comes while pools are being imported must not be lost.
        let mut signals = Signals::new().map_err(io("cannot watch for signals"))?;
        tracing::info!("zillad {} starts in '{}'", env!("CARGO_PKG_VERSION"), dir.path().display());
        let manager = supervisor::Manager::from_environment();
        manager.tell("STATUS=Opening pools");
        let opening = open(handle.clone());
        tokio::pin!(opening);
        let opened = tokio::select! {
            opened = &mut opening => opened,
            name = signals.wait(options.background) => {
                tracing::info!("{name}: shutting down before all pools are open");
                handle.stop();
                opening.await
            }
        };
        let backend = Arc::new(opened?);
        let alive = || manager.watch(|| backend.lives());
        const STOPPING: &str = "STOPPING=1\nSTATUS=Closing pools";
        if handle.is_stopped() {
            manager.tell(STOPPING);
            tokio::select! {
                () = backend.close() => {}
                () = alive() => {}
            }
            return Ok(());
        }
        backend.attend();
        // In the folder that was claimed; its path is only for people.
        let socket = instance.folder().by_descriptor(zilla_control::paths::SOCKET);
        let named = format!("'{}'", dir.socket().display());
        let listener = match handed {
            Some(listener) => tokio::net::UnixListener::from_std(listener),
            None => server::listen(&socket),
        };
        let listener = listener.map_err(io(&named))?;
        if options.share != Share::Nobody {
            instance.folder().open_to(options.share).map_err(io(&named))?;
            server::open_to(&socket, options.share).map_err(io(&named))?;
            tracing::info!("others may ask: {:?}", options.share);
        }
        let page = open_page(options.http, &instance, &handle).await;
        let shutdown = async {
            tokio::select! {
                name = signals.wait(options.background) => tracing::info!("{name}: shutting down"),
                () = handle.stopped() => tracing::info!("asked to shut down"),
            }
            // What goes on until the daemon ends, such as a trace, ends now.
            handle.stop();
        };
        manager.tell("READY=1\nSTATUS=Serving pools");
        let (leave, leaving) = watch::channel(false);
        let page = serve_page(page, backend.clone(), leaving);
        tokio::pin!(page);
        let served = tokio::select! {
            served = server::serve_to(options.share, listener, backend.clone(), shutdown) => served,
            () = alive() => Ok(()),
            () = &mut page => Ok(()),
        };
        manager.tell(STOPPING);
        leave.send_replace(true);
        tokio::select! {
            () = async { page.await; backend.close().await } => {}
            () = alive() => {}
        }
        served.map_err(io("cannot serve"))
    });
    // What some thread still waits for, such as a mountpoint that does not answer, nobody needs.
    runtime.shutdown_timeout(LAST_CALLS);
    done?;
    tracing::info!("all pools are closed");
    drop(instance);
    Ok(())
}

/// Clients, disks and files all take descriptors; what a login has as its soft limit is little for
/// a server. Where it cannot be raised it stays.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!("the limit of open files stays: {e}");
    }
}

type Door = (tokio::net::TcpListener, zilla_web::Tokens, zilla_web::server::Guard);

/// Opens the browser's door, if that is asked for. What stands in its way is said, and the pools
/// are served all the same.
async fn open_page(at: Option<SocketAddr>, instance: &Instance, handle: &Handle) -> Option<Door> {
    let opened = async {
        let guard = handle.page_guard.as_ref().map(|g| (g.acceptor.clone(), g.names.clone()));
        let listener = zilla_web::server::listen(at?, &guard).await;
        let tokens = zilla_web::Tokens::of(instance.folder()).map_err(|e| format!("its tokens: {e}"));
        Some(listener.and_then(|listener| Ok((listener, tokens?, guard))))
    };
    match opened.await? {
        Ok(door) => {
            if let Ok(at) = door.0.local_addr() {
                let _ = handle.page.set(at);
                tracing::info!("the page is served at {at} ('zilla page' prints its address)");
            }
            Some(door)
        }
        Err(why) => {
            tracing::error!("the page is not served: {why}");
            None
        }
    }
}

/// Comes back when the daemon ends, and what the page had under way is done; never before.
async fn serve_page<B: Backend>(door: Option<Door>, backend: Arc<B>, leaving: watch::Receiver<bool>) {
    let ends = |mut leaving: watch::Receiver<bool>| async move {
        // (The sender lives as long as the daemon.)
        let _ = leaving.wait_for(|leave| *leave).await;
    };
    if let Some((listener, tokens, guard)) = door
        && let Err(e) =
            zilla_web::server::serve(listener, backend, tokens, guard, ends(leaving.clone())).await
    {
        tracing::error!("the page is not served any more: {e}");
    }
    ends(leaving).await;
}

struct Signals {
    term: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The name of the signal that ends the daemon. A terminal that goes away ends only a daemon
    /// that ran in it.
    async fn wait(&mut self, background: bool) -> &'static str {
        loop {
            tokio::select! {
                _ = self.term.recv() => return "SIGTERM",
                _ = self.int.recv() => return "SIGINT",
                _ = self.hangup.recv() => {
                    if !background {
                        return "SIGHUP";
                    }
                }
            }
        }
    }
}
