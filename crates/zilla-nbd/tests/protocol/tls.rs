//! TLS: nothing is told before it, nothing said before it counts, and nobody without a certificate
//! comes in.

use super::*;
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, KeyPair};
use std::path::Path;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, version};
use zilla_nbd::tls::{Acceptor, Shares};
use zilla_nbd::{Door, Known, Memory, serve, serve_tls_client};

const STARTTLS: u32 = 5;
const TLS_REQD: u32 = (1 << 31) + 5;

/// An authority.
struct Authority(Certificate, KeyPair);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Authority(params.self_signed(&key).unwrap(), key)
    }

    fn sign(&self, name: &str) -> (Certificate, KeyPair) {
        let (params, key) =
            (CertificateParams::new(vec![name.into()]).unwrap(), KeyPair::generate().unwrap());
        (params.signed_by(&key, &self.0, &self.1).unwrap(), key)
    }

    /// The folder of a server.
    fn folder(&self) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = self.sign("localhost");
        let put = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
        put("ca-cert.pem", self.0.pem());
        put("server-cert.pem", cert.pem());
        put("server-key.pem", key.serialize_pem());
        allow(dir.path(), 0o600);
        dir
    }

    /// How a client connects that trusts this authority, and shows a certificate that `by` has
    /// signed.
    fn connector(&self, by: Option<&Authority>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let config = match by {
            None => config.with_no_client_auth(),
            Some(by) => {
                let (cert, key) = by.sign("client");
                let chain: Vec<CertificateDer<'static>> = vec![cert.der().clone()];
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        TlsConnector::from(Arc::new(config))
    }
}

/// Who may read the server's key.
fn allow(dir: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    let key = dir.join("server-key.pem");
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn acceptor(dir: &Path) -> Acceptor {
    Acceptor::with_clients(dir).unwrap()
}

impl Client {
    /// To a server that demands TLS.
    fn connect_guarded(authority: &Authority) -> Client {
        Client::connect_among(authority, &Shares::new(1))
    }

    /// The same beside others.
    fn connect_among(authority: &Authority, known: &Known) -> Client {
        let known = known.clone();
        let (disk, tls) = (Disk::new(false), acceptor(authority.folder().path()));
        let (io, theirs) = tokio::io::duplex(64 << 10);
        let shelf = Arc::new(Shelf(disk.clone()));
        let server =
            tokio::spawn(
                async move { serve_tls_client(theirs, shelf, &tls, &Memory::of(0), &known, ()).await },
            );
        Client { io, disk, server }
    }

    async fn start_tls(
        mut self,
        connector: TlsConnector,
    ) -> std::io::Result<Client<TlsStream<DuplexStream>>> {
        self.ask(STARTTLS, b"").await;
        assert_eq!(self.told(STARTTLS).await, (1, Bytes::new()));
        let name = "localhost".try_into().unwrap();
        let io = connector.connect(name, self.io).await?;
        Ok(Client { io, disk: self.disk, server: self.server })
    }
}

#[tokio::test]
async fn a_client_with_a_certificate_reads_and_writes() {
    let authority = Authority::new();
    let mut c = Client::connect_guarded(&authority);
    c.hello(3).await;
    let mut c = c.start_tls(authority.connector(Some(&authority))).await.unwrap();
    c.ask(STARTTLS, b"").await;
    assert_eq!(c.told(STARTTLS).await.0, INVALID, "once is enough");
    c.choose().await;
    // More than any buffer between the two holds.
    let data: Vec<u8> = (0..3 << 20).map(|i: u32| (i * 7 + i / 251) as u8).collect();
    c.send(1, 0, 1, 4096, data.len() as u32, &data).await;
    assert_eq!(c.simple().await, (1, 0));
    c.send(0, 0, 2, 4096, data.len() as u32, b"").await;
    let (cookie, kind, mut read) = c.chunk().await;
    assert_eq!((cookie, kind, read.get_u64()), (2, 1, 4096));
    assert!(read == data);
    // A small reply is sent, though nothing comes behind it.
    c.send(3, 0, 3, 0, 0, b"").await;
    assert_eq!(c.simple().await, (3, 0));
    c.send(2, 0, 4, 0, 0, b"").await;
    c.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn nothing_is_told_before_tls() {
    let authority = Authority::new();
    let mut c = Client::connect_guarded(&authority);
    c.hello(3).await;
    let questions = [(3, Vec::new()), (8, Vec::new()), (6, go("tank/a", &[])), (7, go("tank/a", &[]))];
    let contexts =
        [(9, context("tank/a", &[])), (10, context("tank/a", &["base:allocation"])), (99, vec![1])];
    for (option, data) in questions.into_iter().chain(contexts) {
        c.ask(option, &data).await;
        assert_eq!(c.told(option).await.0, TLS_REQD, "option {option}");
    }
    c.ask(STARTTLS, b"x").await;
    assert_eq!(c.told(STARTTLS).await.0, INVALID);
    c.ask(1, b"tank/a").await;
    c.hung_up().await;
}

#[tokio::test]
async fn what_is_sent_behind_starttls_in_the_clear_ends_the_connection() {
    let authority = Authority::new();
    let mut c = Client::connect_guarded(&authority);
    c.hello(3).await;
    let mut both = BytesMut::new();
    for option in [STARTTLS, 3] {
        both.put_u64(OPTION);
        both.put_u32(option);
        both.put_u32(0);
    }
    c.io.write_all(&both).await.unwrap();
    c.hung_up().await;
}

#[tokio::test]
async fn nobody_without_a_certificate_of_the_authority_comes_in() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    for by in [None, Some(&stranger)] {
        let mut c = Client::connect_guarded(&authority);
        c.hello(3).await;
        // In TLS 1.3 a client learns that it is refused when it reads.
        if let Ok(mut c) = c.start_tls(authority.connector(by)).await {
            let _ = c.io.write_all(b"IHAVEOPT\0\0\0\x03\0\0\0\0").await;
            let mut rest = Vec::new();
            let read =
                tokio::time::timeout(Duration::from_secs(10), c.io.read_to_end(&mut rest)).await.unwrap();
            assert!(read.is_err() && rest.is_empty(), "{rest:?}");
            assert!(c.server.await.unwrap().is_err());
        }
    }
    // Nor who speaks no TLS.
    let mut c = Client::connect_guarded(&authority);
    c.hello(3).await;
    c.ask(STARTTLS, b"").await;
    assert_eq!(c.told(STARTTLS).await.0, 1);
    c.ask(3, b"").await;
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), c.io.read_to_end(&mut rest)).await;
    read.unwrap().unwrap();
    assert!(!rest.windows(6).any(|w| w == b"tank/a"), "{rest:?}");
    assert!(c.server.await.unwrap().is_err());
}

#[tokio::test]
async fn one_certificate_does_not_take_every_place() {
    let (authority, known) = (Authority::new(), Shares::new(1));
    let one = authority.connector(Some(&authority));
    let begin = async |connector: &TlsConnector| {
        let mut c = Client::connect_among(&authority, &known);
        c.hello(3).await;
        c.start_tls(connector.clone()).await
    };
    let mut first = begin(&one).await.unwrap();
    first.choose().await;
    // In TLS 1.3 a client learns of it when it reads.
    if let Ok(mut second) = begin(&one).await {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(10), second.io.read_to_end(&mut rest)).await;
        assert!(read.is_ok() && rest.is_empty(), "{rest:?}");
        let why = second.server.await.unwrap().unwrap_err().to_string();
        assert!(why.contains("too many connections"), "{why}");
    }
    let mut other = begin(&authority.connector(Some(&authority))).await.unwrap();
    other.choose().await;
    first.send(2, 0, 1, 0, 0, b"").await;
    first.server.await.unwrap().unwrap();
    begin(&one).await.unwrap().choose().await;
}

#[tokio::test]
async fn on_the_unix_socket_there_is_no_tls() {
    let mut c = Client::connect(false);
    c.hello(3).await;
    c.ask(STARTTLS, b"").await;
    assert_eq!(c.told(STARTTLS).await.0, UNSUP);
}

#[test]
fn a_folder_that_guards_nothing_is_refused() {
    let authority = Authority::new();
    for (name, text) in [
        ("ca-cert.pem", ""),
        ("server-key.pem", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
        ("server-cert.pem", "no certificate"),
        ("ca-crl.pem", "no list"),
    ] {
        let dir = authority.folder();
        std::fs::write(dir.path().join(name), text).unwrap();
        assert!(Acceptor::with_clients(dir.path()).is_err(), "{name}");
    }
    // A key that everybody may read.
    let dir = authority.folder();
    allow(dir.path(), 0o644);
    let why = Acceptor::with_clients(dir.path()).unwrap_err().to_string();
    assert!(why.contains("server-key.pem") && why.contains("chmod"), "{why}");
    // A key of somebody else.
    let dir = authority.folder();
    std::fs::write(dir.path().join("server-key.pem"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(Acceptor::with_clients(dir.path()).is_err());
}

/// More than the server lets in of one address before they have shown a certificate.
const SILENT: usize = 100;

#[tokio::test]
async fn those_who_say_nothing_keep_nobody_out() {
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let disk = Disk::new(false);
    let door = Door::Tls(listener, acceptor(authority.folder().path()));
    let shelf = Arc::new(Shelf(disk.clone()));
    let server =
        tokio::spawn(serve(door, shelf, Memory::of_machine(), async move { stopped.await.unwrap() }));
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(TcpStream::connect(at).await.unwrap());
    }
    // Those whom the server talks to.
    let greeted = async |all: &mut Vec<TcpStream>| {
        let mut count = 0;
        for stream in all {
            let mut hello = [0; 18];
            let read = stream.read_exact(&mut hello);
            let read = tokio::time::timeout(Duration::from_millis(20), read).await;
            count += usize::from(read.is_ok_and(|read| read.is_ok()));
        }
        count
    };
    assert!(greeted(&mut silent).await < SILENT);
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut io = socket.connect(at).await.unwrap();
    let mut hello = [0; 18];
    // Before those of the other address have had their time.
    let came = tokio::time::timeout(Duration::from_secs(5), io.read_exact(&mut hello)).await;
    came.unwrap().unwrap();
    io.write_all(&3u32.to_be_bytes()).await.unwrap();
    let mut c = Client { io, disk, server: tokio::spawn(async { Ok(()) }) };
    c.ask(STARTTLS, b"").await;
    assert_eq!(c.told(STARTTLS).await.0, 1);
    let name = "localhost".try_into().unwrap();
    let io = authority.connector(Some(&authority)).connect(name, c.io).await.unwrap();
    let mut c = Client { io, disk: c.disk, server: c.server };
    c.choose().await;
    stop.send(()).unwrap();
    server.await.unwrap();
}
