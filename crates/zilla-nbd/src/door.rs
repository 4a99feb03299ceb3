//! Where clients come from: a Unix socket in the clear, or TCP with TLS.

use crate::export::Exports;
use crate::{Known, Memory, serve_client, serve_tls_client, tls};
use rustix::net::sockopt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A connection on which nothing comes is tried after this, and so often at such distances: a
/// client whose machine is gone would keep its volume in use for ever.
const QUIET: Duration = Duration::from_secs(60);
const PROBES: u32 = 6;
const PROBE: Duration = Duration::from_secs(10);

pub enum Door {
    /// Whoever may open the socket may use the volumes.
    Unix(UnixListener),
    /// Whoever has a certificate may.
    Tls(TcpListener, tls::Acceptor),
}

pub(crate) enum Guest {
    Unix(UnixStream),
    Tcp(TcpStream, IpAddr),
}

impl Guest {
    /// Where he comes from, if he must first show who he is.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Guest::Unix(_) => None,
            Guest::Tcp(_, ip) => Some(*ip),
        }
    }
}

impl Door {
    pub(crate) async fn accept(&self) -> io::Result<Guest> {
        match self {
            Door::Unix(listener) => Ok(Guest::Unix(listener.accept().await?.0)),
            Door::Tls(listener, _) => {
                let (stream, at) = listener.accept().await?;
                Ok(Guest::Tcp(stream, at.ip()))
            }
        }
    }

    /// `stranger` is dropped when it is known who the guest is.
    pub(crate) async fn serve<E: Exports>(
        &self,
        guest: Guest,
        exports: Arc<E>,
        memory: &Memory,
        known: &Known,
        stranger: impl Send,
    ) -> io::Result<()> {
        match (self, guest) {
            (_, Guest::Unix(stream)) => {
                let (reader, writer) = stream.into_split();
                serve_client(reader, writer, exports, memory).await
            }
            (Door::Tls(_, acceptor), Guest::Tcp(stream, _)) => {
                look_after(&stream)?;
                serve_tls_client(stream, exports, acceptor, memory, known, stranger).await
            }
            (Door::Unix(_), Guest::Tcp(..)) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// How the kernel is to treat a connection.
fn look_after(stream: &TcpStream) -> io::Result<()> {
    // Replies are small and waited for.
    stream.set_nodelay(true)?;
    sockopt::set_tcp_keepidle(stream, QUIET)?;
    sockopt::set_tcp_keepintvl(stream, PROBE)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_on_which_nothing_comes_is_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        look_after(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap() && stream.nodelay().unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), QUIET);
    }
}
