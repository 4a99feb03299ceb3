//! TLS for NBD over TCP: who may come in, and as whom the server is known.
//!
//! A folder has what qemu and nbdkit look for in theirs: `ca-cert.pem`, the authorities; `server-cert.pem` with the server's certificate and
//! what leads from it to its authority, and `server-key.pem`. `ca-crl.pem`, if it is there, says which certificates count no more.
//!
//! **What it keeps true.** TLS 1.3 and nothing older. A client must show a certificate that one of the authorities has signed: a volume is its
//! reader's and writer's without further question, so an encrypted connection to anybody would guard nothing. What cannot be read or
//! makes no sense is an error at the start, never a weaker server.
//!
//! **Deliberately absent.** Pre-shared keys: rustls has no external ones for TLS 1.3. Certificates that change are read at the next start.

use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, version};
use tokio_rustls::server::TlsStream;

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

/// Everything in a file that is of one kind.
fn all<T: PemObject>(dir: &Path, name: &str) -> io::Result<Vec<T>> {
    let path = dir.join(name);
    let bad = |e: pem::Error| invalid(&path, &e);
    let found: Vec<T> = T::pem_file_iter(&path).map_err(bad)?.collect::<Result<_, _>>().map_err(bad)?;
    if found.is_empty() {
        return Err(invalid(&path, &"nothing of the kind is in it"));
    }
    Ok(found)
}

fn invalid(path: &Path, what: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("'{}': {what}", path.display()))
}

impl Acceptor {
    /// Reads a folder of certificates.
    pub fn from_folder(dir: &Path) -> io::Result<Acceptor> {
        let mut roots = RootCertStore::empty();
        for cert in all::<CertificateDer<'static>>(dir, AUTHORITIES)? {
            roots.add(cert).map_err(|e| invalid(&dir.join(AUTHORITIES), &e))?;
        }
        let revoked: Vec<CertificateRevocationListDer<'static>> = match dir.join(REVOKED).try_exists()? {
            true => all(dir, REVOKED)?,
            false => Vec::new(),
        };
        let chain = all::<CertificateDer<'static>>(dir, CERTIFICATE)?;
        let key = dir.join(KEY);
        let secret = PrivateKeyDer::from_pem_file(&key).map_err(|e| invalid(&key, &e))?;
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .with_crls(revoked)
            .build()
            .map_err(|e| invalid(dir, &e))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|e| invalid(dir, &e))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, secret)
            .map_err(|e| invalid(dir, &e))?;
        Ok(Acceptor(TlsAcceptor::from(Arc::new(config))))
    }

    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        self.0.accept(stream).await
    }
}
