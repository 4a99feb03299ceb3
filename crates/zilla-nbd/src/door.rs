//! Where clients come from: a Unix socket in the clear, or TCP with TLS.

use crate::export::Exports;
use crate::{serve_client, serve_tls_client, tls};
use std::io;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

pub enum Door {
    /// Whoever may open the socket may use the volumes.
    Unix(UnixListener),
    /// Whoever has a certificate may.
    Tls(TcpListener, tls::Acceptor),
}

pub(crate) enum Guest {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Door {
    pub(crate) async fn accept(&self) -> io::Result<Guest> {
        match self {
            Door::Unix(listener) => Ok(Guest::Unix(listener.accept().await?.0)),
            Door::Tls(listener, _) => {
                let (stream, _) = listener.accept().await?;
                // Replies are small and waited for.
                stream.set_nodelay(true)?;
                Ok(Guest::Tcp(stream))
            }
        }
    }

    pub(crate) async fn serve<E: Exports>(&self, guest: Guest, exports: Arc<E>) -> io::Result<()> {
        match (self, guest) {
            (_, Guest::Unix(stream)) => {
                let (reader, writer) = stream.into_split();
                serve_client(reader, writer, exports).await
            }
            (Door::Tls(_, acceptor), Guest::Tcp(stream)) => serve_tls_client(stream, exports, acceptor).await,
            (Door::Unix(_), Guest::Tcp(_)) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}
