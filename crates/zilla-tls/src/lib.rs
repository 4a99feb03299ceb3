//! TLS for what is served over TCP: certificates and keys from files, and whom a server lets in.
//!
//! Volumes are for whoever has a certificate of his own ([`Acceptor::with_clients`]), the page for
//! whoever has a token, so that TLS only has to say whom he gives it to
//! ([`Acceptor::for_anyone`]). Of either no client gets more than his share ([`Shares`]).
//!
//! **What it keeps true.** TLS 1.3 and nothing older. What cannot be read or makes no sense is an
//! error at the start, never a weaker server.
//!
//! **Deliberately absent.** Pre-shared keys: rustls has no external ones for TLS 1.3. Certificates
//! that change are read at the next start.

mod names;
mod shares;

pub use names::Names;
pub use shares::{Share, Shares, client_at};

use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier, version};
pub use tokio_rustls::server::TlsStream;

const AUTHORITIES: &str = "ca-cert.pem";
const REVOKED: &str = "ca-crl.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";

/// What makes a connection a guarded one.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor")
    }
}

/// Whom a client has shown to be: the public key of its certificate. The certificate itself would
/// not do, for whoever has one can make its signature look different.
pub fn client_key<S>(stream: &TlsStream<S>) -> Option<Vec<u8>> {
    let certificate = stream.get_ref().1.peer_certificates()?.first()?;
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    Some(parsed.subject_public_key_info().to_vec())
}

/// Everything in a file that is of one kind.
fn all<T: PemObject>(path: &Path) -> io::Result<Vec<T>> {
    let bad = |e: pem::Error| invalid(path, &e);
    let found: Vec<T> = T::pem_file_iter(path).map_err(bad)?.collect::<Result<_, _>>().map_err(bad)?;
    if found.is_empty() {
        return Err(invalid(path, &"nothing of the kind is in it"));
    }
    Ok(found)
}

/// The key that a server shows who it is with, which must not be for everybody to read.
fn guarded_key(path: &Path) -> io::Result<PrivateKeyDer<'static>> {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata(path).map_err(|e| invalid(path, &e))?.mode() & 0o007 != 0 {
        return Err(invalid(path, &"everybody may read it: chmod o-rwx"));
    }
    PrivateKeyDer::from_pem_file(path).map_err(|e| invalid(path, &e))
}

fn invalid(path: &Path, what: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("'{}': {what}", path.display()))
}

/// A server, before it is said whom it lets in; `at` is named where that makes no sense.
fn server(at: &Path) -> io::Result<ConfigBuilder<ServerConfig, WantsVerifier>> {
    let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    server.with_protocol_versions(&[&version::TLS13]).map_err(|e| invalid(at, &e))
}

impl Acceptor {
    /// Lets in who shows a certificate that an authority has signed. A folder has what qemu and
    /// nbdkit look for in theirs: `ca-cert.pem`, the authorities; `server-cert.pem` with the
    /// server's certificate and what leads from it to its authority, and `server-key.pem`, which
    /// must not be for everybody to read.
    /// `ca-crl.pem`, if it is there, says which certificates count no more.
    pub fn with_clients(dir: &Path) -> io::Result<Acceptor> {
        let authorities = dir.join(AUTHORITIES);
        let mut roots = RootCertStore::empty();
        for cert in all::<CertificateDer<'static>>(&authorities)? {
            roots.add(cert).map_err(|e| invalid(&authorities, &e))?;
        }
        let revoked: Vec<CertificateRevocationListDer<'static>> = match dir.join(REVOKED).try_exists()? {
            true => all(&dir.join(REVOKED))?,
            false => Vec::new(),
        };
        let chain = all::<CertificateDer<'static>>(&dir.join(CERTIFICATE))?;
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .with_crls(revoked)
            .build()
            .map_err(|e| invalid(dir, &e))?;
        let config = server(dir)?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, guarded_key(&dir.join(KEY))?)
            .map_err(|e| invalid(dir, &e))?;
        Ok(Acceptor(TlsAcceptor::from(Arc::new(config))))
    }

    /// Lets in anybody: a file with the server's certificate and what leads from it to its
    /// authority, and one with its key, which must not be for everybody to read. Also says by which
    /// names it may be called.
    pub fn for_anyone(certificate: &Path, secret: &Path) -> io::Result<(Acceptor, Names)> {
        let chain = all::<CertificateDer<'static>>(certificate)?;
        let names = chain.first().map(|own| Names::of(own.clone())).transpose();
        let names = names.map_err(|e| invalid(certificate, &e))?.unwrap_or_default();
        let config = server(certificate)?
            .with_no_client_auth()
            .with_single_cert(chain, guarded_key(secret)?)
            .map_err(|e| invalid(certificate, &e))?;
        Ok((Acceptor(TlsAcceptor::from(Arc::new(config))), names))
    }

    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        self.0.accept(stream).await
    }
}
