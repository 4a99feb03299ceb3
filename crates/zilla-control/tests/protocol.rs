//! Client and server against each other, and the server against peers that mean no good.
#![cfg(feature = "server")]

use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zilla_control::types::*;
use zilla_control::{ApiError, Backend, Caller, Client, ClientError, ErrorCode, StateDir, dispatch, server};

#[derive(Default)]
struct Fake {
    synced: Arc<AtomicU64>,
}

impl Backend for Fake {
    async fn hello(&self, caller: &Caller, _: Hello) -> Result<HelloReply, ApiError> {
        Ok(HelloReply { version: format!("for {}", caller.uid), ..HelloReply::default() })
    }

    async fn pool_sync(&self, _: &Caller, request: PoolSync) -> Result<(), ApiError> {
        if request.name == "boom" {
            panic!("a bug in an operation");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.synced.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn pool_destroy(&self, caller: &Caller, request: PoolDestroy) -> Result<(), ApiError> {
        let line = caller.command.clone().unwrap_or_default();
        Err(ApiError::with(ErrorCode::Busy, "pool is busy").subject(request.name).details(vec![line]))
    }
}

struct World {
    dir: tempfile::TempDir,
    synced: Arc<AtomicU64>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let fake = Fake::default();
        let synced = fake.synced.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = server::listen(&state.socket()).unwrap();
                ready.send(()).unwrap();
                let shutdown = async { drop(stopped.await) };
                server::serve(listener, Arc::new(fake), shutdown).await.unwrap();
            });
        });
        is_ready.recv().unwrap();
        World { dir, synced, stop: Some(stop), thread: Some(thread) }
    }

    fn socket(&self) -> PathBuf {
        StateDir::new(self.dir.path()).socket()
    }

    fn client(&self) -> Client {
        Client::connect(&StateDir::new(self.dir.path())).unwrap()
    }

    /// Sends bytes and gives back what came until the server hung up.
    fn raw(&self, bytes: &[u8]) -> String {
        self.talk(bytes, false)
    }

    fn talk(&self, bytes: &[u8], hang_up: bool) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let _ = stream.write_all(bytes);
        if hang_up {
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        String::from_utf8_lossy(&reply).into_owned()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn answers_and_errors_arrive_whole_on_one_connection() {
    let world = World::new();
    let mut client = world.client();
    client.set_command(Some("zpool destroy tank".to_owned()));
    let uid = rustix::process::geteuid().as_raw();
    for _ in 0..3 {
        assert_eq!(client.call(&Hello {}).unwrap().version, format!("for {uid}"));
    }
    match client.call(&PoolDestroy { name: "tank".into(), force: false }) {
        Err(ClientError::Api(e)) => {
            assert_eq!((e.code, e.description()), (ErrorCode::Busy, "pool is busy"));
            assert_eq!(e.subject.as_deref(), Some("tank"));
            assert_eq!(e.details, ["zpool destroy tank"]);
        }
        other => panic!("{other:?}"),
    }
    match client.call(&PoolScrub::default()) {
        Err(ClientError::Api(e)) => assert_eq!(e.code, ErrorCode::Unsupported),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_socket_is_its_owner_s_alone() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let mode = std::fs::metadata(world.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn an_operation_ends_even_where_its_client_is_gone() {
    let world = World::new();
    let body = br#"{"protocol":1,"request":{"name":"tank"}}"#;
    let mut stream = UnixStream::connect(world.socket()).unwrap();
    let head = format!("POST /v1/pool_sync HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    drop(stream);
    for _ in 0..100 {
        if world.synced.load(Ordering::SeqCst) == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the operation was dropped with its client");
}

#[test]
fn a_bug_in_one_operation_does_not_end_the_daemon() {
    let world = World::new();
    match world.client().call(&PoolSync { name: "boom".into(), force: false }) {
        Err(ClientError::Api(e)) => assert_eq!(e.code, ErrorCode::Internal),
        other => panic!("{other:?}"),
    }
    assert!(world.client().call(&Hello {}).is_ok());
}

#[test]
fn what_is_malformed_too_large_or_too_deep_is_refused() {
    let world = World::new();
    let post = |path: &str, body: &str| {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        world.raw(request.as_bytes())
    };
    assert!(post("/v1/hello", r#"{"protocol":1,"request":{}}"#).contains("for "));
    assert!(post("/v1/hello", r#"{"protocol":2,"request":{}}"#).contains("protocol_mismatch"));
    assert!(post("/v1/hello", "{").contains("bad_request"));
    assert!(post("/v1/nonsense", "{}").contains("no such operation"));
    assert!(post("/elsewhere", "{}").contains("404"));
    assert!(world.raw(b"GET /v1/hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").contains("405"));
    let deep = format!(r#"{{"protocol":1,"request":{}}}"#, "[".repeat(100_000));
    assert!(post("/v1/hello", &deep).contains("bad_request"));
    let large = format!(r#"{{"protocol":1,"request":{{"x":"{}"}}}}"#, "x".repeat(server::REQUEST_LIMIT));
    assert!(post("/v1/hello", &large).contains("413"));
    let headers = format!("POST /v1/hello HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    assert!(!world.raw(headers.as_bytes()).contains("200 OK"));
    assert!(world.client().call(&Hello {}).is_ok());
}

#[test]
fn without_a_daemon_the_client_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::new(dir.path());
    assert!(matches!(Client::connect(&state), Err(ClientError::NotRunning(_))));
    // A socket whose daemon died is as good as none.
    drop(std::os::unix::net::UnixListener::bind(state.socket()).unwrap());
    assert!(matches!(Client::connect(&state), Err(ClientError::NotRunning(_))));
}

#[test]
fn a_state_folder_that_others_can_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(StateDir::new(dir.path()).open().unwrap_err().contains("can be written by others"));
    assert!(StateDir::new(dir.path().join("a/b")).open().is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn dispatch_survives_any_body(op in 0..zilla_control::OPERATIONS.len(), body in ".{0,200}") {
        let name = zilla_control::OPERATIONS[op];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let reply = runtime.block_on(dispatch(&Fake::default(), Caller::default(), name, body.as_bytes()));
        prop_assert!(serde_json::from_slice::<serde_json::Value>(&reply).is_ok());
        let framed = format!(r#"{{"protocol":1,"request":{body}}}"#);
        let reply = runtime.block_on(dispatch(&Fake::default(), Caller::default(), name, framed.as_bytes()));
        prop_assert!(serde_json::from_slice::<serde_json::Value>(&reply).is_ok());
    }
}

#[test]
fn the_server_survives_noise() {
    let world = World::new();
    let mut seed = 1u64;
    for round in 0..100 {
        let mut bytes = b"POST /v1/hello HTTP/1.1\r\nhost: x\r\ncontent-length: 27\r\n\r\n".to_vec();
        bytes.extend_from_slice(br#"{"protocol":1,"request":{}}"#);
        for _ in 0..=round % 7 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (seed >> 33) as usize % bytes.len();
            bytes[at] = (seed >> 20) as u8;
        }
        world.talk(&bytes, true);
    }
    assert!(world.client().call(&Hello {}).is_ok());
}
