//! Calls that are sent again over sockets, after their connections broke.

use super::*;
use crate::export::{Changed, Remembers};
use futures_util::future::BoxFuture;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::{TcpSocket, TcpStream};

const SETATTR: u32 = nfs::SETATTR;
const LOOKUP: u32 = 3;
const CREATE: u32 = nfs::CREATE;
const MKDIR: u32 = 9;
const SYMLINK: u32 = 10;
const REMOVE: u32 = 12;
const RMDIR: u32 = 13;
const RENAME: u32 = 14;
const LINK: u32 = nfs::LINK;

const OK: u32 = 0;
const NOENT: u32 = 2;
const EXIST: u32 = 17;

/// A server and where it listens.
struct Server {
    at: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    ended: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start(exports: Arc<One>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let ended = tokio::spawn(serve(listener, exports, async {
            let _ = stopped.await;
        }));
        Server { at, stop: Some(stop), ended }
    }

    async fn stop(mut self) {
        self.stop.take();
        self.ended.await.unwrap();
    }

    /// A connection from any port of an address.
    async fn connect(&self, host: [u8; 4]) -> Client {
        self.connect_from(SocketAddr::from((host, 0))).await
    }

    async fn connect_from(&self, from: SocketAddr) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        // A close is a reset, as when a connection breaks: nothing is left of it that holds its
        // port.
        socket.set_zero_linger().unwrap();
        socket.bind(from).unwrap();
        Client(socket.connect(self.at).await.unwrap())
    }
}

struct Client(TcpStream);

impl Client {
    async fn send(&mut self, xid: u32, procedure: u32, args: &Out) {
        let call = call_of(xid, NFS, procedure, args);
        let len = call.len() as u32 | LAST;
        self.0.write_all(&[&len.to_be_bytes()[..], &call].concat()).await.unwrap();
    }

    /// A reply: whose it is, and what follows the words of RPC.
    async fn receive(&mut self) -> (u32, Bytes) {
        let len = self.0.read_u32().await.unwrap() & !LAST;
        let mut reply = vec![0; len as usize];
        self.0.read_exact(&mut reply).await.unwrap();
        let mut words = In(reply.into());
        let head: Vec<u32> = (0..6).map(|_| words.u32().unwrap()).collect();
        assert_eq!(head[1..], [1, 0, 0, 0, 0]);
        (head[0], words.0)
    }

    async fn ask(&mut self, xid: u32, procedure: u32, args: &Out) -> Bytes {
        self.send(xid, procedure, args).await;
        let (of, reply) = self.receive().await;
        assert_eq!(of, xid);
        reply
    }

    /// Breaks the connection and comes back from the same port, as Linux's client does.
    async fn come_back(self, server: &Server) -> Client {
        let from = self.0.local_addr().unwrap();
        drop(self);
        server.connect_from(from).await
    }
}

fn status(reply: &Bytes) -> u32 {
    In(reply.clone()).u32().unwrap()
}

fn handle(reply: &Bytes) -> Bytes {
    let mut reply = In(reply.clone());
    assert_eq!((reply.u32(), reply.bool()), (Ok(OK), Ok(true)));
    reply.opaque(64).unwrap()
}

/// A directory's handle and a name, and what follows them.
fn place(dir: &[u8], name: &[u8], more: &[u32]) -> Out {
    let mut args = Out::default();
    args.opaque(dir).opaque(name);
    more.iter().for_each(|n| {
        args.u32(*n);
    });
    args
}

/// sattr3 of nothing, and of a mode.
const NOTHING: [u32; 6] = [0; 6];
const MODE: [u32; 7] = [1, 0o755, 0, 0, 0, 0, 0];

fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.unwrap() });
}

#[test]
fn what_was_done_gets_its_first_answer_again() {
    run(async {
        let exports = shared("rw,no_root_squash,insecure");
        let root = root_of(&exports);
        let server = Server::start(Arc::new(exports)).await;
        let mut client = server.connect([127, 0, 0, 1]).await;
        let guarded = |name: &[u8]| place(&root, name, &[&[1][..], &MODE].concat());
        let mut symlink = place(&root, b"s", &NOTHING);
        symlink.opaque(b"target");
        let mut rename = place(&root, b"f", &[]);
        rename.opaque(&root).opaque(b"g");
        let made = client.ask(1, CREATE, &guarded(b"f")).await;
        let file = handle(&made);
        let mut link = Out::default();
        link.opaque(&file).opaque(&root).opaque(b"l");
        // What it must not say the second time stands beside each.
        let calls = [
            (CREATE, guarded(b"new"), EXIST),
            (MKDIR, place(&root, b"d", &MODE), EXIST),
            (SYMLINK, symlink, EXIST),
            (LINK, link, EXIST),
            (RENAME, rename, NOENT),
            (REMOVE, place(&root, b"new", &[]), NOENT),
            (RMDIR, place(&root, b"d", &[]), NOENT),
        ];
        for (n, (procedure, args, wrong)) in calls.iter().enumerate() {
            let xid = 100 + n as u32;
            let first = client.ask(xid, *procedure, args).await;
            assert_eq!(status(&first), OK, "procedure {procedure}");
            assert_eq!(client.ask(xid, *procedure, args).await, first, "on the same connection");
            client = client.come_back(&server).await;
            assert_eq!(client.ask(xid, *procedure, args).await, first, "procedure {procedure}");
            let another = client.ask(xid + 1000, *procedure, args).await;
            assert_eq!(status(&another), *wrong, "procedure {procedure} under another number");
        }
        server.stop().await;
    });
}

#[test]
fn a_guard_that_was_met_is_not_asked_again() {
    run(async {
        let exports = shared("rw,no_root_squash,insecure");
        let root = root_of(&exports);
        let server = Server::start(Arc::new(exports)).await;
        let mut client = server.connect([127, 0, 0, 1]).await;
        let made = client.ask(1, CREATE, &place(&root, b"f", &[&[1][..], &MODE].concat())).await;
        let file = handle(&made);
        // Behind the handle: that attributes follow, and them; a time of change ends them.
        let at = 4 + 4 + 4 + file.len() + 4 + crate::attr::LEN;
        let mut ctime = In(made.slice(at - 8..at));
        let mut args = Out::default();
        args.opaque(&file);
        [1, 0o600, 0, 0, 0, 0, 0, 1, ctime.u32().unwrap(), ctime.u32().unwrap()].iter().for_each(|n| {
            args.u32(*n);
        });
        let first = client.ask(2, SETATTR, &args).await;
        assert_eq!(status(&first), OK);
        client = client.come_back(&server).await;
        assert_eq!(client.ask(2, SETATTR, &args).await, first);
        assert_eq!(status(&client.ask(3, SETATTR, &args).await), 10002, "the time of change is another");
        server.stop().await;
    });
}

#[test]
fn two_clients_with_one_number_do_not_meet() {
    run(async {
        let exports = shared("rw,no_root_squash,insecure");
        let root = root_of(&exports);
        let server = Server::start(Arc::new(exports)).await;
        let mut first = server.connect([127, 0, 0, 1]).await;
        let mut beside = server.connect([127, 0, 0, 1]).await;
        let mut elsewhere = server.connect([127, 0, 0, 2]).await;
        let lock = place(&root, b"lock", &[&[1][..], &MODE].concat());
        assert_eq!(status(&first.ask(7, CREATE, &lock).await), OK);
        assert_eq!(status(&beside.ask(7, CREATE, &lock).await), EXIST);
        assert_eq!(status(&elsewhere.ask(7, CREATE, &lock).await), EXIST);
        assert_eq!(status(&first.ask(7, CREATE, &lock).await), OK);
        server.stop().await;
    });
}

#[test]
fn another_server_remembers_nothing() {
    run(async {
        let exports = Arc::new(shared("rw,no_root_squash,insecure"));
        let root = root_of(&exports);
        let args = place(&root, b"d", &MODE);
        for wanted in [OK, EXIST] {
            let server = Server::start(exports.clone()).await;
            let mut client = server.connect([127, 0, 0, 3]).await;
            assert_eq!(status(&client.ask(7, MKDIR, &args).await), wanted);
            drop(client);
            server.stop().await;
        }
    });
}

/// Holds up whoever changes something until it is opened.
struct Gate {
    came: AtomicUsize,
    open: watch::Sender<bool>,
}

impl Remembers for Gate {
    fn forget(&self, _: Vec<Changed>) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.came.fetch_add(1, Ordering::SeqCst);
            self.open.subscribe().wait_for(|open| *open).await.unwrap();
        })
    }
}

#[test]
fn what_is_under_way_is_waited_for() {
    run(async {
        let gate = Arc::new(Gate { came: AtomicUsize::new(0), open: watch::channel(false).0 });
        let One(export) = shared("rw,no_root_squash,insecure");
        let Export { id, path, fs, options, verifier, .. } = Arc::into_inner(export).unwrap();
        let kernel: Option<Arc<dyn Remembers>> = Some(gate.clone());
        let exports = One(Arc::new(Export { id, path, fs, options, verifier, kernel }));
        let root = root_of(&exports);
        let server = Server::start(Arc::new(exports)).await;
        let mut client = server.connect([127, 0, 0, 4]).await;
        let args = place(&root, b"d", &MODE);
        client.send(7, MKDIR, &args).await;
        while gate.came.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        // The directory is there, and nobody has been told.
        client = client.come_back(&server).await;
        client.send(7, MKDIR, &args).await;
        assert_eq!(status(&client.ask(8, LOOKUP, &place(&root, b"d", &[])).await), OK);
        gate.open.send_replace(true);
        let (xid, reply) = client.receive().await;
        assert_eq!((xid, status(&reply)), (7, OK));
        assert_eq!(gate.came.load(Ordering::SeqCst), 1, "it was done once");
        server.stop().await;
    });
}
