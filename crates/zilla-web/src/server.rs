//! The door for browsers: HTTP on one address.
//!
//! In the clear only on loopback addresses, which nobody else hears; on all others with TLS, since
//! a token that is read is a token that is used. Everything is bounded: connections, the head and
//! the body of a request, the time for each, and the time in which a client takes nothing of an
//! answer. Who has shown no token is a stranger: he is let go after [`STRANGER`], and where the
//! door is open to other machines, strangers have three quarters of the connections, and those of
//! one address a quarter. A request passes, in this order: is it meant for us ([`Hosts`]), is it a
//! file of the page, has its sender a token, may his role do this. An operation then runs as one
//! from the daemon's own socket would, in a task of its own and to its end, with the command line
//! that the page shows; what only looks ends with its connection, and a connection counts until
//! what was asked for on it has ended. No HSTS: a browser would demand TLS of whatever else this
//! machine serves.

use crate::access::{Hosts, Role, Tokens};
use crate::assets::{ASSETS, POLICY};
use crate::{metrics, sse};
use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use zilla_control::write_timeout::{PATIENCE, WriteTimeout};
use zilla_control::{Backend, Caller, LOOKING, dispatch};
use zilla_tls::{Acceptor, Names, Share, Shares, client_at};

const CONNECTIONS: usize = 64;
/// Of them those whose clients have shown no token, and those of one address.
const STRANGERS: usize = CONNECTIONS / 4 * 3;
const STRANGERS_OF_ONE: usize = CONNECTIONS / 4;
/// So long may a connection last on which no token is shown: the page shows his with its first
/// question.
const STRANGER: Duration = Duration::from_secs(60);
/// A browser's head is a few kilobytes.
const HEAD_LIMIT: usize = 16 << 10;
/// The longest request of the page names a few snapshots.
const BODY_LIMIT: usize = 64 << 10;
/// Shorter than [`DRAIN`]: who is at it when the page ends is waited for.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// So long may operations that are under way take when the page ends.
const DRAIN: Duration = Duration::from_secs(10);
/// As often as it is worth to say that somebody tries tokens.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(200);

/// What the door has besides its address, where it is reached from elsewhere.
pub type Guard = Option<(Acceptor, Names)>;

/// Listens, if the address is of this machine alone or the door is guarded.
pub async fn listen(at: SocketAddr, guard: &Guard) -> Result<TcpListener, String> {
    if guard.is_none() && !at.ip().is_loopback() {
        return Err(format!("{at} can be reached from elsewhere, and there is no TLS"));
    }
    TcpListener::bind(at).await.map_err(|e| format!("{at}: {e}"))
}

/// What is answered: whole, or events as they come.
pub(crate) type Body = Either<Full<Bytes>, sse::Body>;

struct Door<B> {
    backend: Arc<B>,
    tokens: Tokens,
    hosts: Hosts,
    listeners: Arc<Semaphore>,
}

/// What a stranger has of the connections.
type Places = (OwnedSemaphorePermit, Share<IpAddr>);

/// Strangers that there are, on a door that other machines can reach.
struct Strangers {
    all: Arc<Semaphore>,
    of_one: Arc<Shares<IpAddr>>,
}

impl Strangers {
    fn new() -> Strangers {
        Strangers { all: Arc::new(Semaphore::new(STRANGERS)), of_one: Shares::new(STRANGERS_OF_ONE) }
    }

    /// None: there are enough of them.
    fn admit(&self, ip: IpAddr) -> Option<Places> {
        let own = self.of_one.take(client_at(ip))?;
        Some((self.all.clone().try_acquire_owned().ok()?, own))
    }
}

/// Who is at the other end of a connection.
struct Guest {
    known: AtomicBool,
    places: Mutex<Option<Places>>,
    /// One of all connections: as long as it lives, or what was asked for on it is done.
    _slot: OwnedSemaphorePermit,
}

impl Guest {
    fn new(slot: OwnedSemaphorePermit, places: Option<Places>) -> Arc<Guest> {
        Arc::new(Guest { known: AtomicBool::new(false), places: Mutex::new(places), _slot: slot })
    }

    /// He has shown a token.
    fn introduce(&self) {
        if !self.known.swap(true, Ordering::Relaxed) {
            drop(self.places.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    /// Comes back when he has been a stranger for too long.
    async fn wears_out(&self) {
        tokio::time::sleep(STRANGER).await;
        if self.known.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

/// Serves until `shutdown` completes, then lets operations under way finish.
pub async fn serve<B: Backend>(
    listener: TcpListener,
    backend: Arc<B>,
    tokens: Tokens,
    guard: Guard,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let (acceptor, names) = guard.unzip();
    let hosts = Hosts::of(listener.local_addr()?, names);
    let listeners = Arc::new(Semaphore::new(sse::LISTENERS));
    let door = Arc::new(Door { backend, tokens, hosts, listeners });
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let strangers = Strangers::new();
    // Dropped with this future, and its connections with it.
    let mut connections = tokio::task::JoinSet::new();
    let (stop, stopped) = watch::channel(false);
    tokio::pin!(shutdown);
    loop {
        let (slot, accepted) = tokio::select! {
            guest = async { (slots.clone().acquire_owned().await, listener.accept().await) } => guest,
            () = &mut shutdown => break,
        };
        let slot = slot.map_err(std::io::Error::other)?;
        let (stream, at) = match accepted {
            Ok(accepted) => accepted,
            Err(e) => {
                tracing::warn!("page: accept: {e}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let places = match acceptor.as_ref().map(|_| strangers.admit(at.ip())) {
            Some(None) => {
                tracing::debug!("page: {at} is one of too many without a token");
                continue;
            }
            Some(places) => places,
            None => None,
        };
        let guest = Guest::new(slot, places);
        let (door, stopped, acceptor) = (door.clone(), stopped.clone(), acceptor.clone());
        connections.spawn(async move {
            let Some(acceptor) = acceptor else { return connection(stream, door, guest, stopped).await };
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => connection(stream, door, guest, stopped).await,
                Ok(Err(e)) => tracing::debug!("page: TLS: {e}"),
                Err(_) => tracing::debug!("page: TLS: it takes too long"),
            }
        });
    }
    drop(listener);
    stop.send_replace(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        tracing::warn!("page: operations are still under way after {} s", DRAIN.as_secs());
    }
    Ok(())
}

async fn connection<B: Backend>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    door: Arc<Door<B>>,
    guest: Arc<Guest>,
    mut stopped: watch::Receiver<bool>,
) {
    let ending = stopped.clone();
    let asker = guest.clone();
    let service = service_fn(move |request| {
        let (door, asker, ending) = (door.clone(), asker.clone(), ending.clone());
        async move { Ok::<_, Infallible>(answer(&door, &asker, request, ending).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_LIMIT)
        .serve_connection(TokioIo::new(WriteTimeout::new(stream, PATIENCE)), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = told_to_stop(&mut stopped) => {
            // What is asked is answered, and what is idle closed.
            served.as_mut().graceful_shutdown();
            served.await
        }
        () = guest.wears_out() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!("page: {e}");
    }
}

async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    // Who would tell is there as long as the connection.
    let _ = stopped.wait_for(|stop| *stop).await;
}

async fn answer<B: Backend>(
    door: &Door<B>,
    guest: &Arc<Guest>,
    request: Request<Incoming>,
    ending: watch::Receiver<bool>,
) -> Response<Body> {
    let text = |name: HeaderName| request.headers().get(name).map(|v| v.to_str().unwrap_or(""));
    let (host, origin) = (text(header::HOST), text(header::ORIGIN));
    if !door.hosts.admit(host, origin, text(HeaderName::from_static("sec-fetch-site"))) {
        return refuse(StatusCode::FORBIDDEN, "this is not the address that the page is served at");
    }
    let path = request.uri().path();
    if let Some((_, kind, bytes)) = ASSETS.iter().find(|(p, ..)| *p == path) {
        return match *request.method() {
            Method::GET | Method::HEAD => respond(StatusCode::OK, kind, Bytes::from_static(bytes)),
            _ => refuse(StatusCode::METHOD_NOT_ALLOWED, "files are only read"),
        };
    }
    let token = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let Some(role) = door.tokens.role(token) else {
        tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
        let mut response =
            refuse(StatusCode::UNAUTHORIZED, "a token is needed: 'zilla page' prints the address with it");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return response;
    };
    guest.introduce();
    match (request.method(), path) {
        (&Method::GET, "/role") => {
            respond(StatusCode::OK, "text/plain", Bytes::from_static(role.word().as_bytes()))
        }
        (&Method::GET, "/metrics") => match metrics::collect(&*door.backend, &owner()).await {
            Ok(text) => respond(StatusCode::OK, metrics::CONTENT_TYPE, Bytes::from(text)),
            Err(e) => refuse(StatusCode::INTERNAL_SERVER_ERROR, e.description()),
        },
        (&Method::GET, "/events") => {
            let after = text(sse::LAST_EVENT_ID).and_then(|n| n.parse().ok());
            match door.listeners.clone().try_acquire_owned() {
                Ok(slot) => {
                    let stream = sse::follow(door.backend.clone(), owner(), after, ending, slot);
                    answered(StatusCode::OK, sse::CONTENT_TYPE, Either::Right(stream))
                }
                Err(_) => refuse(StatusCode::SERVICE_UNAVAILABLE, "too many follow the events already"),
            }
        }
        (&Method::POST, path) => match path.strip_prefix("/v1/").map(str::to_owned) {
            Some(name) => operate(door, guest.clone(), role, name, request).await,
            None => refuse(StatusCode::NOT_FOUND, "no such path"),
        },
        (_, path) if path.starts_with("/v1/") => {
            refuse(StatusCode::METHOD_NOT_ALLOWED, "operations are posted")
        }
        _ => refuse(StatusCode::NOT_FOUND, "no such path"),
    }
}

/// The daemon's owner: who has a token could read it only as him.
fn owner() -> Caller {
    Caller { owner: true, ..Caller::of_process() }
}

async fn operate<B: Backend>(
    door: &Door<B>,
    guest: Arc<Guest>,
    role: Role,
    name: String,
    request: Request<Incoming>,
) -> Response<Body> {
    if !role.may(&name) {
        let why = format!("a {} may not do this here: use the commands", role.word());
        return refuse(StatusCode::FORBIDDEN, &why);
    }
    let json = request.headers().get(header::CONTENT_TYPE).is_some_and(|v| v == "application/json");
    if !json {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "requests are JSON");
    }
    let body = Limited::new(request.into_body(), BODY_LIMIT).collect();
    let body = match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return refuse(StatusCode::PAYLOAD_TOO_LARGE, "the request is too long or cut short"),
        Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT, "the request takes too long"),
    };
    let backend = door.backend.clone();
    // What only looks ends with the connection; while all else goes on the connection counts.
    let looks = LOOKING.contains(&name.as_str());
    let operation = async move {
        let _guest = guest;
        dispatch(&*backend, owner(), &name, &body).await
    };
    let done = if looks { Ok(operation.await) } else { tokio::spawn(operation).await };
    match done {
        Ok(outcome) => respond(StatusCode::OK, "application/json", Bytes::from(outcome)),
        Err(e) => {
            tracing::error!("page: an operation died: {e}");
            refuse(StatusCode::INTERNAL_SERVER_ERROR, "internal error: the daemon's log says more")
        }
    }
}

fn refuse(status: StatusCode, why: &str) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", Bytes::from(format!("{why}\n")))
}

fn respond(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Body> {
    answered(status, kind, Either::Left(Full::new(body)))
}

fn answered(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt, duplex};
    use tokio::time::Instant;
    use zilla_control::ApiError;
    use zilla_control::types::{DatasetQuery, DatasetQueryReply, PoolInfo, PoolQuery};

    struct Nobody;
    impl Backend for Nobody {}

    /// He never comes to an end with what he is asked for.
    struct Slow;
    impl Backend for Slow {
        async fn pool_query(&self, _: &Caller, _: PoolQuery) -> Result<Vec<PoolInfo>, ApiError> {
            std::future::pending().await
        }
        async fn dataset_query(&self, _: &Caller, _: DatasetQuery) -> Result<DatasetQueryReply, ApiError> {
            std::future::pending().await
        }
    }

    fn door() -> Arc<Door<Nobody>> {
        door_to(Nobody)
    }

    fn slot() -> OwnedSemaphorePermit {
        Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap()
    }

    fn door_to<B: Backend>(backend: B) -> Arc<Door<B>> {
        let tokens = format!("viewer {}\noperator {}\n", "a".repeat(64), "b".repeat(64));
        let tokens = Tokens::parse(&tokens).unwrap();
        let hosts = Hosts::of("127.0.0.1:80".parse().unwrap(), None);
        let listeners = Arc::new(Semaphore::new(1));
        Arc::new(Door { backend: Arc::new(backend), tokens, hosts, listeners })
    }

    /// A viewer who hangs up would have as many done at a time as he can make connections.
    #[tokio::test(start_paused = true)]
    async fn what_only_looks_ends_with_its_connection_and_all_else_has_its_place() {
        let door = door_to(Slow);
        for (operation, places) in [("dataset_query", 1), ("pool_query", 0)] {
            let slots = Arc::new(Semaphore::new(1));
            let (_stop, stopped) = watch::channel(false);
            let (ours, mut theirs) = duplex(4096);
            let guest = Guest::new(slots.clone().try_acquire_owned().unwrap(), None);
            let served = tokio::spawn(connection(ours, door.clone(), guest, stopped));
            let body = r#"{"protocol":1,"request":{}}"#;
            let (token, length) = ("a".repeat(64), body.len());
            let asked = format!(
                "POST /v1/{operation} HTTP/1.1\r\nhost: localhost:80\r\nauthorization: Bearer {token}\r\n\
                 content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            theirs.write_all(asked.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(!served.is_finished());
            drop(theirs);
            served.await.unwrap();
            assert_eq!(slots.available_permits(), places, "{operation}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_and_never_reads_loses_his_place() {
        let (_stop, stopped) = watch::channel(false);
        let (ours, mut theirs) = duplex(4096);
        // More than one, so that the door is busy with answers and waits for no head.
        let asked = "GET / HTTP/1.1\r\nhost: localhost:80\r\n\r\n".repeat(50);
        theirs.write_all(asked.as_bytes()).await.unwrap();
        let begun = Instant::now();
        let limit = PATIENCE * 10;
        let served = connection(ours, door(), Guest::new(slot(), None), stopped);
        tokio::time::timeout(limit, served).await.expect("it is held for ever");
        assert!(begun.elapsed() >= PATIENCE, "{:?}", begun.elapsed());
    }

    /// Asks again and again, and never waits so long that he would be idle; how long he can.
    async fn asks_on(token: &str, guest: Arc<Guest>) -> Duration {
        let (_stop, stopped) = watch::channel(false);
        let (ours, theirs) = duplex(64 << 10);
        let served = tokio::spawn(connection(ours, door(), guest, stopped));
        let (mut reader, mut writer) = tokio::io::split(theirs);
        tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
        let begun = Instant::now();
        while !served.is_finished() && begun.elapsed() < STRANGER * 3 {
            let asked = format!("GET /role HTTP/1.1\r\nhost: localhost:80\r\n{token}\r\n");
            let _ = writer.write_all(asked.as_bytes()).await;
            tokio::time::sleep(HEAD_TIMEOUT / 4).await;
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn who_shows_no_token_is_let_go_and_who_does_stays_and_makes_room() {
        let strangers = Strangers::new();
        let places = |ip: &str| strangers.admit(ip.parse().unwrap());
        let took = asks_on("", Guest::new(slot(), places("192.0.2.1"))).await;
        assert!(took >= STRANGER && took <= STRANGER * 2, "{took:?}");
        let known = Guest::new(slot(), places("192.0.2.1"));
        let took = asks_on(&format!("authorization: Bearer {}\r\n", "a".repeat(64)), known.clone()).await;
        assert!(took >= STRANGER * 3, "{took:?}");
        assert!(known.places.lock().unwrap().is_none());
        let of_one: Vec<_> = (0..STRANGERS_OF_ONE).map(|_| places("192.0.2.1").unwrap()).collect();
        assert!(places("192.0.2.1").is_none());
        let others: Vec<_> = (2..200).map_while(|n| places(&format!("192.0.2.{n}"))).collect();
        assert_eq!(others.len() + of_one.len(), STRANGERS);
        drop(of_one);
        assert!(places("192.0.2.1").is_some());
    }
}
