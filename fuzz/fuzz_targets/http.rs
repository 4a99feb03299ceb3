//! A client of the browser's door that sends anything: heads and bodies of requests, with a
//! viewer's token and without.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zilla_control::types::{
    DatasetDestroy, DatasetSnapshot, DestroyReply, EventQuery, EventReply, PoolClear, PoolDestroy, PoolInfo, PoolQuery,
    PoolScrub, VdevOffline,
};
use zilla_control::{ApiError, Backend, Caller};
use zilla_web::Tokens;

/// Nobody who comes here may change anything.
struct Shown;

fn changed<T>(what: &str) -> Result<T, ApiError> {
    panic!("a viewer had {what} done")
}

impl Backend for Shown {
    async fn pool_query(&self, _: &Caller, _: PoolQuery) -> Result<Vec<PoolInfo>, ApiError> {
        Ok(vec![PoolInfo { name: "tank".to_owned(), ..PoolInfo::default() }])
    }
    /// No event is ever there: a listener hears nothing, and goes.
    async fn event_query(&self, _: &Caller, _: EventQuery) -> Result<EventReply, ApiError> {
        std::future::pending().await
    }
    async fn pool_scrub(&self, _: &Caller, _: PoolScrub) -> Result<(), ApiError> {
        changed("a scrub")
    }
    async fn pool_clear(&self, _: &Caller, _: PoolClear) -> Result<(), ApiError> {
        changed("a clear")
    }
    async fn pool_destroy(&self, _: &Caller, _: PoolDestroy) -> Result<(), ApiError> {
        changed("a destroy")
    }
    async fn vdev_offline(&self, _: &Caller, _: VdevOffline) -> Result<(), ApiError> {
        changed("an offline")
    }
    async fn dataset_snapshot(&self, _: &Caller, _: DatasetSnapshot) -> Result<(), ApiError> {
        changed("a snapshot")
    }
    async fn dataset_destroy(&self, _: &Caller, _: DatasetDestroy) -> Result<DestroyReply, ApiError> {
        changed("a dataset's destroy")
    }
}

/// A runtime, and where the door is.
fn door() -> &'static (tokio::runtime::Runtime, SocketAddr) {
    static DOOR: OnceLock<(tokio::runtime::Runtime, SocketAddr)> = OnceLock::new();
    DOOR.get_or_init(|| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
        let tokens = format!("viewer {}\noperator {}\n", "a".repeat(64), "b".repeat(64));
        let tokens = Tokens::parse(&tokens).expect("tokens");
        let address = "127.0.0.1:0".parse().expect("an address");
        let listener = runtime.block_on(zilla_web::server::listen(address, &None)).expect("listen");
        let at = listener.local_addr().expect("an address");
        let never = std::future::pending();
        runtime.spawn(zilla_web::server::serve(listener, Arc::new(Shown), tokens, None, never));
        (runtime, at)
    })
}

/// The first byte says how much of the request is ours: nothing, the host, or all but path and
/// body.
fn request(first: u8, rest: &[u8], at: SocketAddr) -> Vec<u8> {
    let token = format!("authorization: Bearer {}\r\n", "a".repeat(64));
    let (path, body) = match rest.iter().position(|&b| b == 0) {
        Some(end) => (&rest[..end], &rest[end + 1..]),
        None => (rest, &rest[rest.len()..]),
    };
    let length = body.len();
    match first % 4 {
        0 => rest.to_vec(),
        1 => [b"GET /", path, format!(" HTTP/1.1\r\nhost: {at}\r\n{token}").as_bytes(), body].concat(),
        2 => {
            let head = format!(
                " HTTP/1.1\r\nhost: {at}\r\n{token}content-type: application/json\r\n\
                 content-length: {length}\r\n\r\n"
            );
            [b"POST /v1/", path, head.as_bytes(), body].concat()
        }
        _ => {
            let head = format!(
                " HTTP/1.1\r\nhost: {at}\r\n{token}content-type: application/json\r\n\
                 transfer-encoding: chunked\r\n\r\n"
            );
            [b"POST /v1/", path, head.as_bytes(), body].concat()
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else { return };
    let (runtime, at) = door();
    let sent = request(first, rest, *at);
    runtime.block_on(async {
        let Ok(mut stream) = TcpStream::connect(at).await else { return };
        let _ = stream.write_all(&sent).await;
        let _ = stream.shutdown().await;
        let mut out = Vec::new();
        let _ = stream.read_to_end(&mut out).await;
        // What is answered is HTTP, and says that nothing else is to be made of it.
        if !out.is_empty() {
            assert!(out.starts_with(b"HTTP/1."), "an answer of another kind");
        }
    });
});
