//! The protocol from a client's side, against an export in memory.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use zilla::Result;
use zilla_nbd::{Export, Exports, Extent, Facts, Memory, ReadData, Refused, serve_client};

#[path = "protocol/abuse.rs"]
mod abuse;
#[path = "protocol/tls.rs"]
mod tls;

const SIZE: u64 = 64 << 20;
const OPTION: u64 = 0x4948_4156_454f_5054;
const REPLY: u64 = 0x0003_e889_0455_65a9;

/// A disk of zeroes and what was written, whose reads of the first block wait until they are let
/// go.
struct Disk {
    data: Mutex<Vec<u8>>,
    readonly: bool,
    gate: Semaphore,
    flushes: AtomicUsize,
    read_bytes: AtomicU64,
    closed: watch::Sender<bool>,
}

#[derive(Clone)]
struct Handle(Arc<Disk>);

struct Shelf(Arc<Disk>);

impl Exports for Shelf {
    type Export = Handle;
    async fn list(&self) -> Vec<String> {
        vec!["tank/a".into(), "tank/a@s".into()]
    }
    async fn open(&self, name: &str) -> std::result::Result<Handle, Refused> {
        if name == "tank/a" { Ok(Handle(self.0.clone())) } else { Err(Refused) }
    }
}

impl Export for Handle {
    fn facts(&self) -> Result<Facts> {
        Ok(Facts { size: SIZE, block_size: 16384, readonly: self.0.readonly, concurrent: true })
    }
    async fn closed(&self) {
        let _ = self.0.closed.subscribe().wait_for(|c| *c).await;
    }
    fn try_read(&self, off: u64, len: usize) -> Result<Option<ReadData>> {
        if off < 512 {
            return Ok(None);
        }
        self.0.read_bytes.fetch_add(len as u64, Ordering::SeqCst);
        let data = self.0.data.lock();
        Ok(Some([Bytes::copy_from_slice(&data[off as usize..off as usize + len])].into_iter().collect()))
    }
    async fn read(&self, off: u64, len: usize) -> Result<ReadData> {
        self.0.gate.acquire().await.unwrap().forget();
        let data = self.0.data.lock();
        Ok([Bytes::copy_from_slice(&data[off as usize..off as usize + len])].into_iter().collect())
    }
    async fn write(&self, off: u64, data: Vec<Bytes>, fua: bool) -> Result<()> {
        self.0.flushes.fetch_add(fua.into(), Ordering::SeqCst);
        let data = data.concat();
        self.0.data.lock()[off as usize..off as usize + data.len()].copy_from_slice(&data);
        Ok(())
    }
    async fn flush(&self) -> Result<()> {
        self.0.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    async fn trim(&self, _: u64, _: u64, _: bool) -> Result<()> {
        Ok(())
    }
    async fn write_zeroes(&self, off: u64, len: u64, _: bool, _: bool) -> Result<()> {
        self.0.data.lock()[off as usize..(off + len) as usize].fill(0);
        Ok(())
    }
    async fn extents(&self, _: u64, len: u64) -> Result<Vec<Extent>> {
        let half = len / 2;
        Ok(vec![Extent { len: half, hole: true }, Extent { len: len - half, hole: false }])
    }
    async fn cache(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

struct Client<S = DuplexStream> {
    io: S,
    disk: Arc<Disk>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Disk {
    fn new(readonly: bool) -> Arc<Disk> {
        Arc::new(Disk {
            data: Mutex::new(vec![0; SIZE as usize]),
            readonly,
            gate: Semaphore::new(0),
            flushes: AtomicUsize::new(0),
            read_bytes: AtomicU64::new(0),
            closed: watch::channel(false).0,
        })
    }
}

impl Client {
    fn connect(readonly: bool) -> Client {
        Client::with_memory(readonly, Memory::of(0))
    }

    fn with_memory(readonly: bool, memory: Memory) -> Client {
        let disk = Disk::new(readonly);
        let (io, theirs) = tokio::io::duplex(64 << 10);
        let (r, w) = tokio::io::split(theirs);
        let shelf = Arc::new(Shelf(disk.clone()));
        let server = tokio::spawn(async move { serve_client(r, w, shelf, &memory).await });
        Client { io, disk, server }
    }

    /// A client with structured replies and block status, where requests begin.
    async fn ready(readonly: bool) -> Client {
        let mut c = Client::connect(readonly);
        c.hello(3).await;
        c.choose().await;
        c
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn take(&mut self, n: usize) -> Bytes {
        let mut buf = vec![0; n];
        tokio::time::timeout(Duration::from_secs(10), self.io.read_exact(&mut buf)).await.unwrap().unwrap();
        buf.into()
    }

    async fn hello(&mut self, flags: u32) {
        let mut hello = self.take(18).await;
        assert_eq!(hello.get_u64(), 0x4e42_444d_4147_4943);
        assert_eq!(hello.get_u64(), OPTION);
        assert_eq!(hello.get_u16(), 3);
        self.io.write_all(&flags.to_be_bytes()).await.unwrap();
    }

    async fn ask(&mut self, option: u32, data: &[u8]) {
        let mut out = BytesMut::new();
        out.put_u64(OPTION);
        out.put_u32(option);
        out.put_u32(data.len() as u32);
        out.put_slice(data);
        self.io.write_all(&out).await.unwrap();
        self.io.flush().await.unwrap();
    }

    /// The kind and data of an option's reply.
    async fn told(&mut self, option: u32) -> (u32, Bytes) {
        let mut head = self.take(20).await;
        assert_eq!((head.get_u64(), head.get_u32()), (REPLY, option));
        let (kind, len) = (head.get_u32(), head.get_u32());
        (kind, self.take(len as usize).await)
    }

    /// Asks for structured replies and block status, and begins.
    async fn choose(&mut self) {
        self.ask(8, b"").await;
        assert_eq!(self.told(8).await.0, 1);
        self.ask(10, &context("tank/a", &["base:allocation"])).await;
        assert_eq!(self.told(10).await, (4, Bytes::from_static(b"\0\0\0\x01base:allocation")));
        assert_eq!(self.told(10).await.0, 1);
        self.ask(7, &go("tank/a", &[])).await;
        assert_eq!(self.told(7).await.0, 3);
        assert_eq!(self.told(7).await.0, 1);
    }

    async fn send(&mut self, command: u16, flags: u16, cookie: u64, off: u64, len: u32, data: &[u8]) {
        let mut out = BytesMut::new();
        out.put_u32(0x2560_9513);
        out.put_u16(flags);
        out.put_u16(command);
        out.put_u64(cookie);
        out.put_u64(off);
        out.put_u32(len);
        out.put_slice(data);
        self.io.write_all(&out).await.unwrap();
        self.io.flush().await.unwrap();
    }

    /// A simple reply: cookie and error.
    async fn simple(&mut self) -> (u64, u32) {
        let mut r = self.take(16).await;
        assert_eq!(r.get_u32(), 0x6744_6698);
        let error = r.get_u32();
        (r.get_u64(), error)
    }

    /// A structured reply of one chunk: cookie, kind, data.
    async fn chunk(&mut self) -> (u64, u16, Bytes) {
        let mut r = self.take(20).await;
        assert_eq!((r.get_u32(), r.get_u16()), (0x668e_33ef, 1), "one chunk, the last");
        let (kind, cookie, len) = (r.get_u16(), r.get_u64(), r.get_u32());
        (cookie, kind, self.take(len as usize).await)
    }

    async fn hung_up(mut self) {
        let mut rest = Vec::new();
        tokio::time::timeout(Duration::from_secs(10), self.io.read_to_end(&mut rest)).await.unwrap().unwrap();
        assert!(rest.is_empty(), "{rest:?}");
        let _ = self.server.await.unwrap();
    }
}

fn text(out: &mut BytesMut, s: &str) {
    out.put_u32(s.len() as u32);
    out.put_slice(s.as_bytes());
}

fn go(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut out = BytesMut::new();
    text(&mut out, name);
    out.put_u16(infos.len() as u16);
    infos.iter().for_each(|i| out.put_u16(*i));
    out.to_vec()
}

fn context(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut out = BytesMut::new();
    text(&mut out, name);
    out.put_u32(queries.len() as u32);
    queries.iter().for_each(|q| text(&mut out, q));
    out.to_vec()
}

const UNSUP: u32 = (1 << 31) + 1;
const INVALID: u32 = (1 << 31) + 3;
const UNKNOWN: u32 = (1 << 31) + 6;
const TOO_BIG: u32 = (1 << 31) + 9;

#[tokio::test]
async fn a_client_finds_out_what_there_is() {
    let mut c = Client::connect(false);
    c.hello(3).await;
    c.ask(3, b"").await;
    for name in ["tank/a", "tank/a@s"] {
        let mut want = BytesMut::new();
        text(&mut want, name);
        assert_eq!(c.told(3).await, (2, want.freeze()));
    }
    assert_eq!(c.told(3).await.0, 1);
    c.ask(6, &go("tank/a", &[1, 2, 3, 77])).await;
    let mut export = c.told(6).await.1;
    assert_eq!((export.get_u16(), export.get_u64()), (0, SIZE));
    assert_eq!(export.get_u16(), 0b1101_0110_1101, "all but DF, rotational, resize and read-only");
    assert_eq!(c.told(6).await, (3, Bytes::from_static(b"\0\x01tank/a")));
    assert_eq!(c.told(6).await, (3, Bytes::from_static(b"\0\x02ZFS volume")));
    let mut sizes = c.told(6).await.1;
    assert_eq!((sizes.get_u16(), sizes.get_u32(), sizes.get_u32(), sizes.get_u32()), (3, 1, 16384, 32 << 20));
    assert_eq!(c.told(6).await.0, 1);
    // What is wrong is refused, and the next option is heard.
    for (option, data, error) in [
        (3, b"x".to_vec(), INVALID),
        (5, b"".to_vec(), UNSUP),
        (11, b"".to_vec(), UNSUP),
        (99, b"abc".to_vec(), UNSUP),
        (8, b"x".to_vec(), INVALID),
        (6, go("tank/none", &[]), UNKNOWN),
        (7, go("", &[]), UNKNOWN),
        (6, b"\0\0\0\x09short".to_vec(), INVALID),
        (6, [go("tank/a", &[1]), vec![0]].concat(), INVALID),
        (6, [&[0, 0, 0, 1, 0xff][..], &[0, 0]].concat(), INVALID),
        (10, context("tank/a", &["base:allocation"]), INVALID),
        (9, context("tank/none", &[]), UNKNOWN),
        (9, [&context("tank/a", &[])[..10], &[0xff; 4]].concat(), INVALID),
        (99, vec![0; 70_000], TOO_BIG),
    ] {
        c.ask(option, &data).await;
        assert_eq!(c.told(option).await.0, error, "option {option}");
    }
    for (queries, count) in [(&[][..], 1), (&["base:"][..], 1), (&["qemu:dirty-bitmap:x"][..], 0)] {
        c.ask(9, &context("tank/a", queries)).await;
        for _ in 0..count {
            assert_eq!(c.told(9).await.0, 4);
        }
        assert_eq!(c.told(9).await.0, 1);
    }
    c.ask(2, b"").await;
    assert_eq!(c.told(2).await.0, 1);
    c.hung_up().await;
}

#[tokio::test]
async fn the_old_way_in_works_with_and_without_zeroes() {
    for (flags, more) in [(1, 124), (3, 0)] {
        let mut c = Client::connect(false);
        c.hello(flags).await;
        c.ask(1, b"tank/a").await;
        let mut r = c.take(10 + more).await;
        assert_eq!(r.get_u64(), SIZE);
        c.send(0, 0, 5, 4096, 16, b"").await;
        assert_eq!(c.simple().await, (5, 0));
        assert_eq!(c.take(16).await, vec![0; 16]);
        c.send(0, 0, 6, SIZE, 16, b"").await;
        assert_eq!(c.simple().await, (6, 22));
        c.send(7, 0, 7, 0, 16, b"").await;
        assert_eq!(c.simple().await, (7, 22), "block status was not agreed on");
    }
    let mut c = Client::connect(false);
    c.hello(3).await;
    c.ask(1, b"tank/none").await;
    c.hung_up().await;
}

#[tokio::test]
async fn requests_are_answered_as_they_finish() {
    let mut c = Client::ready(false).await;
    c.send(0, 0, 1, 0, 512, b"").await;
    c.send(1, 1, 2, 4096, 20_000, &[9; 20_000]).await;
    assert_eq!(c.simple().await, (2, 0), "the read still waits");
    c.send(0, 4, 3, 4096, 20_000, b"").await;
    let (cookie, kind, mut data) = c.chunk().await;
    assert_eq!((cookie, kind, data.get_u64()), (3, 1, 4096));
    assert_eq!(data, vec![9; 20_000]);
    c.send(3, 0, 4, 0, 0, b"").await;
    assert_eq!(c.simple().await, (4, 0));
    assert_eq!(c.disk.flushes.load(Ordering::SeqCst), 2);
    c.send(6, 2, 5, 4096, 10_000, b"").await;
    assert_eq!(c.simple().await, (5, 0));
    c.send(6, 2 | 16, 6, 4096, 10_000, b"").await;
    assert_eq!(c.simple().await, (6, 95), "zeroes that are stored are not fast");
    c.send(7, 0, 7, 0, 1 << 20, b"").await;
    let (cookie, kind, mut data) = c.chunk().await;
    assert_eq!((cookie, kind, data.get_u32(), data.len()), (7, 5, 1, 16));
    assert_eq!((data.get_u32(), data.get_u32(), data.get_u32(), data.get_u32()), (1 << 19, 3, 1 << 19, 0));
    c.send(7, 8, 8, 0, 1 << 20, b"").await;
    assert_eq!(c.chunk().await.2.len(), 12, "one extent");
    c.disk.gate.add_permits(1);
    assert_eq!(c.chunk().await.0, 1);
    // What is under way when a client leaves is still answered.
    c.send(0, 0, 9, 0, 512, b"").await;
    c.send(2, 0, 10, 0, 0, b"").await;
    c.disk.gate.add_permits(1);
    assert_eq!(c.chunk().await.0, 9);
    c.hung_up().await;
}

/// Other requests come to their ends while the data of a write are still on their way.
#[tokio::test]
async fn data_that_come_slowly_stay_whole() {
    let mut c = Client::ready(false).await;
    let data: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    for cookie in 0..6 {
        c.send(0, 0, cookie, 0, 512, b"").await;
    }
    c.send(1, 0, 99, 1 << 20, data.len() as u32, b"").await;
    for (i, part) in data.chunks(20_000).enumerate() {
        // A read ends before each part but the first.
        if i > 0 {
            c.disk.gate.add_permits(1);
            assert_eq!(c.chunk().await.0, i as u64 - 1);
        }
        c.io.write_all(part).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(c.simple().await, (99, 0));
    c.send(0, 0, 100, 1 << 20, data.len() as u32, b"").await;
    assert!(c.chunk().await.2[8..] == data);
}

#[tokio::test]
async fn what_is_wrong_gets_its_error_and_the_connection_goes_on() {
    let mut c = Client::ready(false).await;
    for (command, flags, off, len, error) in [
        (1, 0, SIZE - 100, 200, 28),
        (1, 0x40, 0, 200, 22),
        (4, 0, SIZE, 1, 22),
        (6, 0, SIZE, 1, 28),
        (5, 0, u64::MAX, 9, 22),
        (3, 0, 0, 1, 22),
        (42, 0, 0, 0, 22),
        // RESIZE, which is an extension.
        (8, 0, 2 * SIZE, 0, 22),
    ] {
        let data = if command == 1 { vec![1; len as usize] } else { Vec::new() };
        c.send(command, flags, 77, off, len, &data).await;
        assert_eq!(c.simple().await, (77, error), "command {command}");
    }
    c.send(0, 0, 78, SIZE, 1, b"").await;
    assert_eq!(c.chunk().await, (78, 0x8001, Bytes::from_static(b"\0\0\0\x16\0\0")));
    c.send(0, 4, 79, 0, (32 << 20) + 1, b"").await;
    assert_eq!(c.chunk().await, (79, 0x8001, Bytes::from_static(b"\0\0\0\x4b\0\0")));
    let mut c = Client::ready(true).await;
    c.send(1, 0, 80, 4096, 3, b"abc").await;
    assert_eq!(c.simple().await, (80, 1));
    // What breaks the framing ends the connection.
    c.send(1, 0, 81, 0, (32 << 20) + 1, b"").await;
    c.hung_up().await;
    let mut c = Client::ready(false).await;
    c.io.write_all(&[7; 28]).await.unwrap();
    c.hung_up().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_costs_a_bounded_amount() {
    let mut c = Client::ready(false).await;
    let asked = async {
        for cookie in 0..1000 {
            c.send(0, 0, cookie, 1 << 20, 1 << 20, b"").await;
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_millis(700), asked).await.is_ok(),
        "small requests find room"
    );
    tokio::time::sleep(Duration::from_millis(300)).await;
    let read = c.disk.read_bytes.load(Ordering::SeqCst);
    assert!((16 << 20..=34 << 20).contains(&read), "{read} bytes were read for replies that nobody takes");
    for cookie in 0..1000 {
        assert_eq!(c.chunk().await.0, cookie);
    }
}

#[tokio::test]
async fn an_export_that_is_closed_lets_requests_end_and_hangs_up() {
    let mut c = Client::ready(false).await;
    c.send(0, 0, 1, 0, 512, b"").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    c.disk.closed.send_replace(true);
    tokio::time::sleep(Duration::from_millis(50)).await;
    c.disk.gate.add_permits(1);
    assert_eq!(c.chunk().await.0, 1);
    c.hung_up().await;
}

/// Bytes of no sense, and requests of little: every connection comes to its end.
#[tokio::test]
async fn nonsense_ends() {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    for round in 0..400 {
        let c = if round % 2 == 0 { Client::connect(false) } else { Client::ready(false).await };
        c.disk.gate.add_permits(1000);
        let mut bytes = BytesMut::new();
        if round % 2 == 0 {
            bytes.put_u32(random() as u32 & 3);
        }
        for _ in 0..random() % 20 {
            if round % 2 == 0 {
                bytes.put_u64(OPTION);
                bytes.put_u32(random() as u32 % 13);
                let len = random() as u32 % 40;
                bytes.put_u32(len);
                (0..len).for_each(|_| bytes.put_u8(random() as u8 % 4));
            } else {
                bytes.put_u32(0x2560_9513);
                bytes.put_u16(random() as u16 & 31);
                bytes.put_u16(random() as u16 % 9);
                bytes.put_u64(random());
                bytes.put_u64(random() % (SIZE + 4096));
                bytes.put_u32(random() as u32 % 5000);
                (0..random() % 5000).for_each(|_| bytes.put_u8(0));
            }
        }
        let (mut from, mut to) = tokio::io::split(c.io);
        let sent = tokio::spawn(async move {
            let _ = to.write_all(&bytes).await;
            let _ = to.shutdown().await;
        });
        let mut rest = Vec::new();
        tokio::time::timeout(Duration::from_secs(10), from.read_to_end(&mut rest)).await.unwrap().unwrap();
        sent.await.unwrap();
        let _ = c.server.await.unwrap();
    }
}

/// A client with requests for 32 MiB, whose replies it takes none of.
async fn greedy(memory: &Memory) -> Client {
    let mut c = Client::with_memory(false, memory.clone());
    c.hello(3).await;
    c.choose().await;
    for cookie in 0..32 {
        c.send(0, 0, cookie, 1 << 20, 1 << 20, b"").await;
    }
    c
}

#[tokio::test(start_paused = true)]
async fn all_clients_have_a_bounded_memory_and_nobody_keeps_it_for_ever() {
    let memory = Memory::of(0);
    let mut first = greedy(&memory).await;
    let second = greedy(&memory).await;
    let mut third = Client::with_memory(false, memory.clone());
    third.hello(3).await;
    third.choose().await;
    third.send(0, 0, 1, 1 << 20, 4096, b"").await;
    third.send(1, 0, 2, 4096, 4, b"data").await;
    let waits = tokio::time::timeout(Duration::from_secs(5), third.io.read_u8()).await;
    assert!(waits.is_err() && third.disk.read_bytes.load(Ordering::SeqCst) == 0, "there is no room");
    // What one takes is for the others.
    for cookie in 0..2 {
        assert_eq!(first.chunk().await.0, cookie);
    }
    assert_eq!(third.chunk().await.0, 1);
    assert_eq!(third.simple().await, (2, 0));
    // Memory is short still: who takes nothing goes, and who takes some does not.
    for cookie in 2..12 {
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(first.chunk().await.0, cookie);
    }
    assert_eq!(second.server.await.unwrap().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    for cookie in 12..32 {
        assert_eq!(first.chunk().await.0, cookie);
    }
    // Where nobody waits, nobody has to go.
    let idle = greedy(&memory).await;
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    assert!(!idle.server.is_finished());
}
