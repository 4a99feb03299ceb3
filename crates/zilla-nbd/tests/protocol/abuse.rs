//! What a client must not do: the connection ends, and the server and the data go on.

use super::*;
use std::io::ErrorKind;
use tokio::net::{UnixListener, UnixStream};
use zilla_nbd::{Door, Memory, serve};

/// Longer than the server lets requests go on that are under way when it ends.
const LONG: Duration = Duration::from_secs(10);

impl Client {
    /// The client says no more; why its server ended, which answered nothing.
    async fn ended(mut self) -> ErrorKind {
        self.io.shutdown().await.unwrap();
        let mut rest = Vec::new();
        tokio::time::timeout(LONG, self.io.read_to_end(&mut rest)).await.unwrap().unwrap();
        assert!(rest.is_empty(), "{rest:?}");
        self.server.await.unwrap().unwrap_err().kind()
    }
}

#[tokio::test]
async fn a_write_that_is_cut_short_changes_nothing() {
    for sent in [0, 1, 4096, 19_999] {
        let mut c = Client::ready(false).await;
        let disk = c.disk.clone();
        c.send(1, 0, 1, 4096, 20_000, &vec![9; sent]).await;
        assert_eq!(c.ended().await, ErrorKind::UnexpectedEof);
        assert!(disk.data.lock().iter().all(|b| *b == 0), "{sent} bytes of 20,000 were written");
    }
    // Nor does a request of which the head is cut.
    let mut c = Client::ready(false).await;
    c.io.write_all(&0x2560_9513u32.to_be_bytes()).await.unwrap();
    assert_eq!(c.ended().await, ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn an_abused_handshake_ends() {
    // Flags that nobody has.
    let mut c = Client::connect(false);
    c.hello(3 | 1 << 9).await;
    assert_eq!(c.ended().await, ErrorKind::InvalidData);
    // An option without its magic number, one that is too long to be read over, and a name of such
    // a length.
    for (magic, option, len) in [(OPTION ^ 1, 3, 0), (OPTION, 99, (1 << 20) + 1), (OPTION, 1, 70_000)] {
        let mut c = Client::connect(false);
        c.hello(3).await;
        let mut out = BytesMut::new();
        out.put_u64(magic);
        out.put_u32(option);
        out.put_u32(len);
        c.io.write_all(&out).await.unwrap();
        assert_eq!(c.ended().await, ErrorKind::InvalidData, "option {option}");
    }
    // One that is cut, and a name that is no text.
    let mut c = Client::connect(false);
    c.hello(3).await;
    c.io.write_all(&OPTION.to_be_bytes()).await.unwrap();
    assert_eq!(c.ended().await, ErrorKind::UnexpectedEof);
    let mut c = Client::connect(false);
    c.hello(3).await;
    c.ask(1, b"tank/\xff").await;
    assert_eq!(c.ended().await, ErrorKind::InvalidData);
}

#[tokio::test]
async fn a_client_that_asks_for_ever_is_sent_away() {
    let mut c = Client::connect(false);
    c.hello(3).await;
    let mut asked = 0;
    let list = [&OPTION.to_be_bytes()[..], &3u32.to_be_bytes(), &0u32.to_be_bytes()].concat();
    // The names of the list and its end are the answer, until the server hangs up.
    while c.io.write_all(&list).await.is_ok() {
        let mut head = [0; 20];
        for _ in 0..3 {
            if c.io.read_exact(&mut head).await.is_err() {
                break;
            }
            let mut name = vec![0; u32::from_be_bytes(head[16..].try_into().unwrap()) as usize];
            c.io.read_exact(&mut name).await.unwrap();
        }
        asked += 1;
        assert!(asked < 1000, "it is answered for ever");
    }
    assert!(asked > 100, "it is sent away after {asked}");
    assert_eq!(c.server.await.unwrap().unwrap_err().kind(), ErrorKind::InvalidData);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_sent_away() {
    let c = Client::connect(false);
    assert_eq!(c.server.await.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
    // One that has begun is not: it may have nothing to ask for days.
    let c = Client::ready(false).await;
    tokio::time::sleep(Duration::from_secs(3 * 86_400)).await;
    assert!(!c.server.is_finished());
}

#[tokio::test]
async fn a_server_that_ends_lets_requests_end_and_waits_for_no_client() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let disk = Disk::new(false);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let door = Door::Unix(UnixListener::bind(&path).unwrap());
    let shelf = Arc::new(Shelf(disk.clone()));
    let server =
        tokio::spawn(serve(door, shelf, Memory::of_machine(), async move { stopped.await.unwrap() }));
    let begin = async |path| {
        let io = UnixStream::connect(path).await.unwrap();
        let mut c = Client { io, disk: disk.clone(), server: tokio::spawn(async { Ok(()) }) };
        c.hello(3).await;
        c.choose().await;
        c
    };
    let (mut quick, mut slow, mut idle) = (begin(&path).await, begin(&path).await, begin(&path).await);
    quick.send(0, 0, 1, 0, 512, b"").await;
    // This one is let go of by nobody.
    tokio::time::sleep(Duration::from_millis(50)).await;
    slow.send(0, 0, 2, 0, 512, b"").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    stop.send(()).unwrap();
    disk.gate.add_permits(1);
    assert_eq!(quick.chunk().await.0, 1);
    tokio::time::timeout(LONG, server).await.expect("it waits for its clients").unwrap();
    for c in [&mut quick, &mut slow, &mut idle] {
        let mut rest = Vec::new();
        tokio::time::timeout(LONG, c.io.read_to_end(&mut rest)).await.unwrap().unwrap();
        assert!(rest.is_empty());
    }
}
