//! One client who is slow, or wants all there is, and another beside him.

use super::*;
use std::net::Ipv4Addr;

const LIMIT: Duration = Duration::from_secs(60);

fn of_host(host: u8) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(192, 0, 2, host), 700))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A file of a megabyte, and READs of all of it.
fn large_file(exports: &One) -> Vec<u8> {
    let root = root_of(exports);
    let mut args = Out::default();
    args.opaque(&root).opaque(b"f").u32(0).u32(1).u32(0o600);
    (0..5).for_each(|_| {
        args.u32(0);
    });
    let mut made = done(exports, NFS, 8, &args);
    assert_eq!((made.u32(), made.u32()), (Ok(0), Ok(1)));
    let file = made.opaque(64).unwrap();
    let mut args = Out::default();
    args.opaque(&file).u64(0).u32(MAX_IO as u32).u32(0).opaque(&vec![7; MAX_IO]);
    assert_eq!(done(exports, NFS, 7, &args).u32(), Ok(0));
    let mut read = Out::default();
    read.opaque(&file).u64(0).u32(MAX_IO as u32);
    record_of(&call(NFS, 6, &read), true)
}

/// A connection of his on which this is sent.
async fn sends(shared: &Arc<Shared>, host: u8, bytes: Vec<u8>) -> tokio::io::DuplexStream {
    let (mut near, far) = tokio::io::duplex(1 << 16);
    tokio::spawn(client(far, of_host(host), shared.clone()));
    tokio::time::timeout(LIMIT, near.write_all(&bytes)).await.expect("it is taken").unwrap();
    near
}

async fn is_answered(mut near: tokio::io::DuplexStream) -> usize {
    let len =
        tokio::time::timeout(PATIENCE / 2, near.read_u32()).await.expect("others wait for him").unwrap();
    let mut reply = vec![0; (len & !LAST) as usize];
    tokio::time::timeout(LIMIT, near.read_exact(&mut reply)).await.expect("all of it").unwrap();
    reply.len()
}

#[test]
fn who_takes_no_replies_keeps_them_from_nobody_else() {
    let exports = shared("rw,no_root_squash");
    let read = large_file(&exports);
    runtime().block_on(async move {
        let shared = Shared::new(Arc::new(exports));
        let mut open = Vec::new();
        for _ in 0..2 * ROOM / MAX_IO / UNDER_WAY {
            open.push(sends(&shared, 1, read.repeat(UNDER_WAY)).await);
        }
        // He has his part, and waits for himself.
        let part = shared.parts.of(of_host(1).ip());
        while part.replies.available_permits() >= MAX_RECORD.div_ceil(UNIT) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(is_answered(sends(&shared, 2, read).await).await > MAX_IO);
    });
}

#[test]
fn who_does_not_send_what_he_began_keeps_nobody_else_from_sending() {
    let exports = shared("rw,no_root_squash");
    let whole = record_of(&[&call(NFS, 0, &Out::default())[..], &[0; MAX_IO]].concat(), true);
    runtime().block_on(async move {
        let shared = Shared::new(Arc::new(exports));
        let mut open = Vec::new();
        for _ in 0..2 * ROOM / MAX_IO {
            open.push(sends(&shared, 1, whole[..8].to_vec()).await);
        }
        let part = shared.parts.of(of_host(1).ip());
        while part.room.available_permits() >= MAX_RECORD.div_ceil(UNIT) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(is_answered(sends(&shared, 2, whole).await).await, 24);
    });
}

#[test]
fn one_client_does_not_take_all_connections() {
    let exports = shared("rw,insecure");
    let runtime = runtime();
    runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served = tokio::spawn(serve(listener, Arc::new(exports), async { drop(stopped.await) }));
        let null = record_of(&call(NFS, 0, &Out::default()), true);
        let ask = async |mut stream: tokio::net::TcpStream| {
            // Who is sent away may hear of it at either.
            let sent = stream.write_all(&null).await;
            (sent.is_ok() && stream.read_u32().await.is_ok()).then_some(stream)
        };
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS / 4 {
            open.push(ask(tokio::net::TcpStream::connect(at).await.unwrap()).await.expect("his part"));
        }
        assert!(ask(tokio::net::TcpStream::connect(at).await.unwrap()).await.is_none());
        // One that ends leaves its place.
        open.pop();
        let begun = tokio::time::Instant::now();
        while ask(tokio::net::TcpStream::connect(at).await.unwrap()).await.is_none() {
            assert!(begun.elapsed() < LIMIT, "the place is not given back");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop((open, stop));
        served.await.unwrap();
    });
}

/// What would wait for a suspended pool would keep its client's room and calls from other pools.
#[test]
fn what_a_suspended_pool_cannot_do_now_is_not_waited_for() {
    let (exports, txgs) = shared_of("rw,no_root_squash");
    let file = made(&exports);
    let [mut write, mut commit, mut look] = [const { Out(Vec::new()) }; 3];
    write.opaque(&file).u64(0).u32(4).u32(0).opaque(b"abcd");
    commit.opaque(&file).u64(0).u32(0);
    look.opaque(&file);
    let all = || [(7, &write), (21, &commit), (1, &look)].map(|(n, a)| done(&exports, NFS, n, a).u32());
    assert_eq!(all(), [Ok(0); 3]);
    txgs.close_gate(false);
    assert_eq!(all(), [Ok(10008), Ok(10008), Ok(0)]);
    // With `failmode=continue`.
    txgs.close_gate(true);
    assert_eq!(all(), [Ok(5), Ok(5), Ok(0)]);
}
