//! The browser's door, knocked at by a browser, by others, and by nonsense.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};
use zilla_control::types::{
    ArcStat, ArcStatQuery, EventInfo, EventQuery, EventReply, LogStat, LogStatQuery, PoolClear, PoolInfo,
    PoolQuery, PoolScrub,
};
use zilla_control::{ApiError, Backend, Caller};
use zilla_web::Tokens;
use zilla_web::access::Role;

struct Fake;

impl Backend for Fake {
    async fn pool_query(&self, _: &Caller, _: PoolQuery) -> Result<Vec<PoolInfo>, ApiError> {
        Ok(vec![PoolInfo { name: "tank".to_owned(), ..PoolInfo::default() }])
    }
    async fn arc_stats(&self, _: &Caller, _: ArcStatQuery) -> Result<Vec<ArcStat>, ApiError> {
        Ok(Vec::new())
    }
    async fn log_stats(&self, _: &Caller, _: LogStatQuery) -> Result<Vec<LogStat>, ApiError> {
        Ok(Vec::new())
    }
    /// There are seven events, and the next comes after a while, as often as it is waited for.
    async fn event_query(&self, _: &Caller, r: EventQuery) -> Result<EventReply, ApiError> {
        let event = |eid| EventInfo { eid, class: format!("class{eid}"), ..EventInfo::default() };
        if r.after >= 7 {
            tokio::time::sleep(Duration::from_millis(r.wait_ms.min(100))).await;
            return Ok(EventReply { events: vec![event(r.after + 1)], dropped: 0 });
        }
        let first = (r.after + 1).max(3);
        let dropped = if r.after == 0 { 0 } else { first - r.after - 1 };
        Ok(EventReply { events: (first..=7).map(event).collect(), dropped })
    }
    /// Takes a while.
    async fn pool_clear(&self, _: &Caller, _: PoolClear) -> Result<(), ApiError> {
        tokio::time::sleep(Duration::from_millis(1000)).await;
        Ok(())
    }
    async fn pool_scrub(&self, caller: &Caller, r: PoolScrub) -> Result<(), ApiError> {
        assert_eq!((r.name.as_str(), caller.command.as_deref()), ("tank", Some("zpool scrub tank")));
        Ok(())
    }
}

struct World {
    at: SocketAddr,
    tokens: Tokens,
    runtime: tokio::runtime::Runtime,
    stop: Arc<tokio::sync::Notify>,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
}

fn world() -> World {
    guarded(None)
}

fn guarded(guard: zilla_web::server::Guard) -> World {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let tokens = Tokens::parse(&format!("viewer {}\noperator {}\n", "a".repeat(64), "b".repeat(64))).unwrap();
    let listener =
        runtime.block_on(zilla_web::server::listen("127.0.0.1:0".parse().unwrap(), &guard)).unwrap();
    let at = listener.local_addr().unwrap();
    let stop = Arc::new(tokio::sync::Notify::new());
    let stopped = stop.clone();
    let shutdown = async move { stopped.notified().await };
    let served =
        runtime.spawn(zilla_web::server::serve(listener, Arc::new(Fake), tokens.clone(), guard, shutdown));
    World { at, tokens, runtime, stop, served }
}

impl World {
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.at).unwrap();
        // Shorter than the server waits for the rest of a head.
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A request with these further headers; the status and all of the answer.
    fn ask(&self, line: &str, headers: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let text = format!(
            "{line} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}",
            self.at
        );
        let answer = self.raw(text.as_bytes());
        let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        (status, answer)
    }

    fn bearer(&self, role: Role) -> String {
        format!("authorization: Bearer {}\r\n", self.tokens.get(role))
    }
}

const SCRUB: &str = r#"{"protocol":1,"command":"zpool scrub tank","request":{"name":"tank"}}"#;
const JSON: &str = "content-type: application/json\r\n";

#[test]
fn the_page_is_for_all_and_what_it_shows_for_who_has_a_token() {
    let w = world();
    let (status, page) = w.ask("GET /", "", "");
    assert_eq!(status, 200);
    assert!(page.contains("content-security-policy: default-src 'none'"), "{page}");
    assert!(page.contains("cache-control: no-store"), "{page}");
    for path in ["GET /metrics", "GET /role", "POST /v1/pool_query"] {
        assert_eq!(w.ask(path, JSON, "{}").0, 401, "{path}");
        assert_eq!(w.ask(path, "authorization: Bearer cccc\r\n", "").0, 401, "{path}");
    }
    let viewer = w.bearer(Role::Viewer);
    assert!(w.ask("GET /role", &viewer, "").1.ends_with("viewer"));
    let (status, text) = w.ask("GET /metrics", &viewer, "");
    assert!(status == 200 && text.contains("zilla_pool_state{pool=\"tank\",state=\"ONLINE\"} 1"), "{text}");
    let (status, text) =
        w.ask("POST /v1/pool_query", &format!("{viewer}{JSON}"), r#"{"protocol":1,"request":{}}"#);
    assert!(status == 200 && text.contains("\"tank\""), "{text}");
}

#[test]
fn a_role_does_what_it_may_and_nothing_else() {
    let w = world();
    let (viewer, operator) = (w.bearer(Role::Viewer) + JSON, w.bearer(Role::Operator) + JSON);
    assert_eq!(w.ask("POST /v1/pool_scrub", &viewer, SCRUB).0, 403);
    let (status, text) = w.ask("POST /v1/pool_scrub", &operator, SCRUB);
    assert!(status == 200 && text.contains("ok"), "{text}");
    for name in
        ["pool_destroy", "dataset_destroy", "shutdown", "key_load", "nonsense", "", "../v1/pool_query"]
    {
        assert_eq!(w.ask(&format!("POST /v1/{name}"), &operator, SCRUB).0, 403, "{name}");
    }
    assert_eq!(w.ask("GET /v1/pool_scrub", &operator, "").0, 405);
    for path in [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/page.js/../page.tokens",
        "/page.tokens",
    ] {
        assert_eq!(w.ask(&format!("GET {path}"), &operator, "").0, 404, "{path}");
    }
}

#[test]
fn other_sites_get_nothing_even_with_a_token() {
    let w = world();
    let operator = w.bearer(Role::Operator) + JSON;
    for foreign in ["origin: http://evil.example\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"] {
        assert_eq!(w.ask("POST /v1/pool_scrub", &format!("{operator}{foreign}"), SCRUB).0, 403, "{foreign}");
    }
    // What a form of another site can send: no token, no JSON.
    let form = "content-type: text/plain\r\n";
    assert_eq!(w.ask("POST /v1/pool_scrub", form, SCRUB).0, 401);
    assert_eq!(w.ask("POST /v1/pool_scrub", &format!("{}{form}", w.bearer(Role::Operator)), SCRUB).0, 415);
    // Another name that leads here.
    let rebound =
        format!("GET /metrics HTTP/1.1\r\nhost: evil.example\r\n{operator}connection: close\r\n\r\n");
    assert!(w.raw(rebound.as_bytes()).starts_with("HTTP/1.1 403"));
    assert!(!w.raw(b"OPTIONS /v1/pool_scrub HTTP/1.1\r\nhost: x\r\n\r\n").contains("access-control-allow"));
}

#[test]
fn nonsense_is_refused_and_the_next_is_served() {
    let w = world();
    let operator = w.bearer(Role::Operator) + JSON;
    // 0: the connection was cut before all was sent.
    assert!(matches!(w.ask("POST /v1/pool_query", &operator, &"x".repeat(100 << 10)).0, 413 | 0));
    let long = format!("GET /{} HTTP/1.1\r\nhost: {}\r\n\r\n", "a".repeat(64 << 10), w.at);
    assert!(!w.raw(long.as_bytes()).contains("200 OK"));
    for bytes in [
        &b"\0\0\0\0"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        &[0xff; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        assert!(!w.raw(bytes).contains(" 200 "), "{bytes:?}");
    }
    assert_eq!(
        w.ask("POST /v1/pool_query", &operator, "not json").0,
        200,
        "the outcome is an error of the API"
    );
    // More connections than there are places, all silent: those that come later wait, and are
    // served when some go.
    let silent: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(w.at).unwrap()).collect();
    drop(silent);
    assert_eq!(w.ask("GET /", "", "").0, 200);
}

/// Opens a stream of events, and reads until it holds `until`.
fn events(w: &World, headers: &str, until: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(w.at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let head = format!("GET /events HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", w.at);
    stream.write_all(head.as_bytes()).unwrap();
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while !text.contains(until) {
        let n = stream.read(&mut bytes).unwrap();
        assert!(n > 0, "ended after {text}");
        text.push_str(std::str::from_utf8(&bytes[..n]).unwrap());
    }
    (stream, text)
}

#[test]
fn events_are_sent_as_they_come_until_the_page_ends() {
    let w = world();
    let viewer = w.bearer(Role::Viewer);
    assert_eq!(w.ask("GET /events", "", "").0, 401);
    // The first time: what comes from now on.
    let (_first, text) = events(&w, &viewer, "class9");
    assert!(text.contains("content-type: text/event-stream") && text.contains("id: 8\ndata: {\"eid\":8,"));
    assert!(!text.contains("class7"), "{text}");
    // Back again: what is kept of what came since, and how much is not.
    let (_back, text) = events(&w, &format!("{viewer}last-event-id: 1\r\n"), "class8");
    assert!(text.contains("event: dropped\ndata: 1\n") && text.contains("id: 3\n"), "{text}");
    // So many listeners and no more; a place is free again when one is gone.
    let mut held: Vec<TcpStream> = (0..14).map(|_| events(&w, &viewer, ": events").0).collect();
    assert_eq!(w.ask("GET /events", &viewer, "").0, 503);
    held.pop();
    let begun = std::time::Instant::now();
    let mut again = loop {
        let mut stream = TcpStream::connect(w.at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let head = format!("GET /events HTTP/1.1\r\nhost: {}\r\n{viewer}\r\n", w.at);
        stream.write_all(head.as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        if status.ends_with(b"200") {
            break stream;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "no place becomes free");
        std::thread::sleep(Duration::from_millis(50));
    };
    w.stop.notify_one();
    let ended = w.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), w.served).await });
    ended.unwrap().unwrap().unwrap();
    let _ = again.read_to_end(&mut Vec::new());
}

#[test]
fn an_address_of_the_network_is_refused() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let why = runtime.block_on(zilla_web::server::listen("0.0.0.0:0".parse().unwrap(), &None)).unwrap_err();
    assert!(why.contains("no TLS"), "{why}");
}

#[test]
fn what_is_under_way_when_the_page_ends_is_answered() {
    let w = world();
    let idle = TcpStream::connect(w.at).unwrap();
    let asked = {
        let (at, bearer) = (w.at, w.bearer(Role::Operator));
        std::thread::spawn(move || {
            let body = r#"{"protocol":1,"command":"zpool clear tank","request":{"name":"tank"}}"#;
            let mut stream = TcpStream::connect(at).unwrap();
            let head = format!(
                "POST /v1/pool_clear HTTP/1.1\r\nhost: {at}\r\ncontent-length: {}\r\n{bearer}{JSON}\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).unwrap();
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer
        })
    };
    std::thread::sleep(Duration::from_millis(300));
    w.stop.notify_one();
    // Nothing that is idle is waited for.
    let ended = w.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), w.served).await });
    ended.unwrap().unwrap().unwrap();
    assert!(asked.join().unwrap().starts_with("HTTP/1.1 200"));
    assert!(TcpStream::connect(w.at).is_err(), "the door is closed");
    drop(idle);
}

/// A door behind a certificate for these names, and who trusts it.
fn behind_tls(names: &[&str]) -> (World, Arc<ClientConfig>) {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
    let made = made.unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.key_pair.serialize_pem()).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let world = guarded(Some(zilla_tls::Acceptor::for_anyone(&cert, &key).unwrap()));
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (world, Arc::new(config))
}

/// What a request gets that is encrypted; an error where no connection comes about.
fn ask_tls(w: &World, config: &Arc<ClientConfig>, host: &str, rest: &str) -> std::io::Result<String> {
    ask_tls_by(TcpStream::connect(w.at)?, config, host, rest)
}

fn ask_tls_by(
    mut stream: TcpStream,
    config: &Arc<ClientConfig>,
    host: &str,
    rest: &str,
) -> std::io::Result<String> {
    let name = ServerName::try_from("nas.example").unwrap();
    let mut client = ClientConnection::new(config.clone(), name).map_err(std::io::Error::other)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut tls = Stream::new(&mut client, &mut stream);
    let (line, headers) = rest.split_once('\n').unwrap_or((rest, ""));
    let text = format!("{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}\r\n");
    tls.write_all(text.as_bytes())?;
    let mut answer = Vec::new();
    // (The server may end without a word of farewell.)
    match tls.read_to_end(&mut answer) {
        Err(e) if answer.is_empty() => Err(e),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

#[test]
fn behind_tls_only_the_certificate_s_names_and_who_has_a_token() {
    let (w, config) = behind_tls(&["nas.example"]);
    let port = w.at.port();
    let ours = format!("nas.example:{port}");
    assert!(ask_tls(&w, &config, &ours, "GET /").unwrap().starts_with("HTTP/1.1 200"));
    assert!(ask_tls(&w, &config, &ours, "GET /metrics").unwrap().starts_with("HTTP/1.1 401"));
    let viewer = w.bearer(Role::Viewer);
    let metrics = ask_tls(&w, &config, &ours, &format!("GET /metrics\n{viewer}")).unwrap();
    assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains("zilla_pool_state"), "{metrics}");
    // Names that lead here and are not ours, and pages of others.
    for foreign in [format!("evil.example:{port}"), w.at.to_string(), "nas.example".to_owned()] {
        let answer = ask_tls(&w, &config, &foreign, &format!("GET /metrics\n{viewer}")).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403"), "{foreign}");
    }
    for origin in ["https://evil.example", "http://nas.example"] {
        let asked = format!("GET /metrics\norigin: {origin}:{port}\r\n{viewer}");
        assert!(ask_tls(&w, &config, &ours, &asked).unwrap().starts_with("HTTP/1.1 403"), "{origin}");
    }
    // Nothing in the clear, and no client who does not trust it.
    assert!(!w.ask("GET /", "", "").1.contains("HTTP"));
    let stranger = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    assert!(ask_tls(&w, &Arc::new(stranger), &ours, "GET /").is_err());
    // Those who say nothing are sent away, and others served meanwhile.
    let begun = std::time::Instant::now();
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(w.at).unwrap()).collect();
    let elsewhere = w.runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        socket.connect(w.at).await.unwrap().into_std().unwrap()
    });
    elsewhere.set_nonblocking(false).unwrap();
    assert!(ask_tls_by(elsewhere, &config, &ours, "GET /").unwrap().starts_with("HTTP/1.1 200"));
    assert!(begun.elapsed() < Duration::from_secs(5), "he waits for those who say nothing");
    let mut first = &silent[0];
    first.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(matches!(first.read(&mut [0; 16]), Ok(0)), "a handshake that does not come is waited for");
}
