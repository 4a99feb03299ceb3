//! The daemon's end of the socket.
//!
//! A connection is served to the daemon's owner and to root, and to those with whom the owner
//! shares it ([`crate::share`]): the socket's mode keeps others out, and the peer's credentials are
//! asked of the kernel all the same, because folders and modes get copied. What the others ask the
//! backend judges; they have connections of their own, so that they cannot take the owner's, a
//! part of them each ([`crate::whose`]), and what they send along with their words stops nobody
//! ([`crate::wary`]).
//! Everything a client sends is bounded: the headers, the body and the time to send it, the number
//! of connections, and the time in which it takes nothing of its answer. An operation runs in a
//! task of its own and to its end even where the client dies half-way, so a pool is never left
//! between two states because somebody pressed ^C. What only looks or waits ([`LOOKING`]) ends with
//! its client, and what has steps may ask whether he is still there ([`Caller::presence`]). A guest
//! who hangs up has his place until his operation has ended: else he could have as many done at a
//! time as he can make connections.

use crate::error::{ApiError, ErrorCode};
use crate::operations::{Backend, Caller, LOOKING, dispatch, refusal};
use crate::presence::Presence;
use crate::share::{Share, peer_groups};
use crate::wary::{Wary, refuse_descriptors, watched};
use crate::whose::Whose;
use crate::write_timeout::{PATIENCE, WriteTimeout};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use zeroize::Zeroize;

/// Longest request: a `zfs snapshot` of some ten thousand names.
pub const REQUEST_LIMIT: usize = 4 << 20;
const CONNECTIONS: usize = 256;
/// Of those who do not own the daemon, all together.
const GUESTS: usize = 64;
/// Of them, of one.
const GUESTS_OF_ONE: usize = 16;
/// Bytes of a guest's request: what one may ask, and be told of what was wrong with it, is bounded
/// by that.
const GUEST_REQUEST_LIMIT: usize = 16 << 10;
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a shutdown waits for operations that are under way.
const DRAIN: Duration = Duration::from_secs(30);

/// Makes the socket, for its owner alone until [`open_to`] says otherwise. A socket left by a
/// daemon that died is removed: the caller holds the folder's lock, so no living daemon listens on
/// it.
pub fn listen(path: &Path) -> std::io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    // Between bind and chmod the socket has the mode of the umask; the folder is closed to others
    // already.
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

/// Lets others connect to the socket.
pub fn open_to(path: &Path, share: Share) -> std::io::Result<()> {
    if let Some(gid) = share.group() {
        std::os::unix::fs::chown(path, None, Some(gid))?;
    }
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(share.socket_mode()))
}

/// Serves the daemon's owner and root until `shutdown` completes, then lets operations under way
/// finish.
pub async fn serve<B: Backend>(
    listener: UnixListener,
    backend: Arc<B>,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    serve_to(Share::Nobody, listener, backend, shutdown).await
}

/// The same, for others too.
pub async fn serve_to<B: Backend>(
    share: Share,
    listener: UnixListener,
    backend: Arc<B>,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    refuse_descriptors(&listener);
    let guests = Arc::new(Guests::new(GUESTS, GUESTS_OF_ONE));
    let owner = rustix::process::geteuid().as_raw();
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let (stop, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        // A slot first: with none free, clients wait in the kernel's queue.
        let slot = tokio::select! {
            slot = slots.clone().acquire_owned() => slot,
            () = &mut shutdown => break,
        };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(e) => {
                    // Out of descriptors, or the peer is gone already: neither ends the daemon.
                    tracing::warn!("accept: {e}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        while connections.try_join_next().is_some() {}
        let Some(caller) = admit(&stream, owner, share) else {
            watched(|| drop(stream));
            continue;
        };
        let stream = Wary::new(stream, !caller.owner);
        let guest = match caller.owner {
            true => None,
            false => match guests.admit(&*stream, &caller) {
                Ok(place) => Some(place),
                Err(why) => {
                    tracing::warn!("refused a connection of uid {}: {why}", caller.uid);
                    continue;
                }
            },
        };
        let backend = backend.clone();
        let stopped = stopped.clone();
        connections.spawn(async move {
            let _slot = slot;
            connection(stream, backend, caller, guest.map(Arc::new), stopped).await;
        });
    }
    drop(listener);
    let _ = stop.send(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        tracing::warn!("operations are still under way after {} s", DRAIN.as_secs());
    }
    Ok(())
}

/// How many places each has taken who does not own the daemon, and how many there are.
pub struct Guests {
    taken: Mutex<HashMap<Whose, usize>>,
    most: usize,
    of_one: usize,
}

/// A guest's place: that of a connection is counted as long as it lives or what was asked for on it
/// is done.
pub struct Place(Arc<Guests>, Whose);

impl Guests {
    /// So many places, and so many of them for one. Those of whom one person may be several have
    /// half of them together, however many they are.
    pub fn new(most: usize, of_one: usize) -> Guests {
        Guests { taken: Mutex::default(), most, of_one }
    }

    /// No one leaves it half changed.
    fn all(&self) -> MutexGuard<'_, HashMap<Whose, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for the caller at the other end of this, or why he gets none.
    pub fn admit(self: &Arc<Guests>, socket: &impl AsFd, caller: &Caller) -> Result<Place, &'static str> {
        let whose = Whose::of(socket, caller.uid, caller.pid).ok_or("who made it has ended")?;
        self.place(whose).ok_or("there are too many")
    }

    /// None if there is none left for him.
    pub fn place(self: &Arc<Guests>, whose: Whose) -> Option<Place> {
        let mut all = self.all();
        let (sum, own) = (all.values().sum::<usize>(), all.get(&whose).copied().unwrap_or(0));
        if sum >= self.most || own >= self.of_one {
            return None;
        }
        let vague = || all.iter().filter(|(w, _)| w.is_vague()).map(|(_, taken)| taken).sum::<usize>();
        if whose.is_vague() && vague() >= self.most / 2 {
            return None;
        }
        all.insert(whose, own + 1);
        Some(Place(self.clone(), whose))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.0.all();
        if let Some(own) = all.get_mut(&self.1) {
            *own -= 1;
            if *own == 0 {
                all.remove(&self.1);
            }
        }
    }
}

/// Who is at the other end of a connection, if he is let in.
pub fn admit(stream: &UnixStream, owner: u32, share: Share) -> Option<Caller> {
    // The owner needs none, so he depends on nothing that a kernel might not tell.
    let is_owner = |uid| uid == owner || uid == 0;
    let asked = stream.peer_cred().and_then(|cred| {
        let groups = if is_owner(cred.uid()) { Vec::new() } else { peer_groups(stream)? };
        Ok((cred, groups))
    });
    match asked {
        Ok((cred, groups)) => {
            let caller = Caller {
                uid: cred.uid(),
                gid: cred.gid(),
                groups,
                owner: is_owner(cred.uid()),
                pid: cred.pid(),
                ..Caller::default()
            };
            if caller.owner || share.admits(&caller.gids()) {
                return Some(caller);
            }
            tracing::warn!("refused a connection of uid {}", caller.uid);
            None
        }
        Err(e) => {
            tracing::warn!("refused a connection of unknown origin: {e}");
            None
        }
    }
}

async fn connection<B: Backend>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    backend: Arc<B>,
    caller: Caller,
    place: Option<Arc<Place>>,
    mut stopped: watch::Receiver<bool>,
) {
    let service = service_fn(move |request| {
        let backend = backend.clone();
        let (caller, place) = (caller.clone(), place.clone());
        async move { Ok::<_, Infallible>(answer(backend, caller, place, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None::<Duration>)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(WriteTimeout::new(stream, PATIENCE)), service);
    tokio::pin!(served);
    let outcome = tokio::select! {
        outcome = &mut served => outcome,
        () = async { drop(stopped.wait_for(|stop| *stop).await) } => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(e) = outcome {
        tracing::debug!("connection: {e}");
    }
}

async fn answer<B: Backend>(
    backend: Arc<B>,
    caller: Caller,
    place: Option<Arc<Place>>,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let Some(name) = request.uri().path().strip_prefix("/v1/").map(str::to_owned) else {
        if request.method() != Method::GET {
            return refuse(StatusCode::NOT_FOUND, "no such path");
        }
        if request.uri().path() == crate::openapi::PATH {
            return respond(StatusCode::OK, JSON, crate::openapi::DOCUMENT);
        }
        return match backend.page(&caller, request.uri().path()).await {
            Some(Ok((kind, text))) => respond(StatusCode::OK, kind, text.into_bytes()),
            Some(Err(e)) => failure(StatusCode::FORBIDDEN, e),
            None => refuse(StatusCode::NOT_FOUND, "no such path"),
        };
    };
    if request.method() != Method::POST {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "operations are posted");
    }
    let limit = if caller.owner { REQUEST_LIMIT } else { GUEST_REQUEST_LIMIT };
    let body = Limited::new(request.into_body(), limit).collect();
    let body = match tokio::time::timeout(READ_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return refuse(StatusCode::PAYLOAD_TOO_LARGE, "the request is too long or cut short"),
        Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT, "the request takes too long"),
    };
    let operation = name.clone();
    // Dropped with this future, and that with the connection.
    let waits = Arc::new(());
    let caller = Caller { presence: Presence::of(&waits), ..caller };
    let task = tokio::spawn(async move {
        let _place = place;
        let outcome = dispatch(&*backend, caller, &name, &body).await;
        // There may have been a key in it.
        if let Ok(mut body) = body.try_into_mut() {
            body.zeroize();
        }
        outcome
    });
    let _looking = LOOKING.contains(&operation.as_str()).then(|| EndsWith(task.abort_handle()));
    match task.await {
        Ok(outcome) => respond(StatusCode::OK, JSON, outcome),
        Err(e) => {
            tracing::error!("operation '{operation}' died: {e}");
            let error = ApiError::with(ErrorCode::Internal, "internal error: the daemon's log says more");
            failure(StatusCode::INTERNAL_SERVER_ERROR, error)
        }
    }
}

/// A task that is dropped with this.
struct EndsWith(AbortHandle);

impl Drop for EndsWith {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn refuse(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    failure(status, ApiError::with(ErrorCode::BadRequest, message))
}

fn failure(status: StatusCode, error: ApiError) -> Response<Full<Bytes>> {
    respond(status, JSON, refusal(error))
}

const JSON: &str = "application/json";

fn respond(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::<Bytes>::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests;
