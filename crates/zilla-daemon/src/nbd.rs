//! NBD over TCP, where whoever starts the daemon asks for it.
//!
//! It is off unless an address is given, and an address is served only with a folder of
//! certificates: there is no way to say otherwise. What is wrong with either ends the daemon before
//! it opens a pool, so that nobody believes in a door that is not there.

use std::net::TcpListener;
use std::path::Path;
use zilla_nbd::Door;
use zilla_nbd::tls::Acceptor;

/// An address that is bound, and what guards it.
#[derive(Debug)]
pub struct Tcp {
    listener: TcpListener,
    tls: Acceptor,
}

impl Tcp {
    /// Takes an address, such as `[::]:10809`. Without one there is nothing to guard.
    pub fn open(address: Option<&str>, certificates: Option<&str>) -> Result<Option<Tcp>, String> {
        let (address, dir) = match (address, certificates) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err("--nbd-tls needs an address to guard: --nbd-listen".to_owned()),
            (Some(_), None) => {
                return Err(
                    "NBD over TCP is served with TLS only: --nbd-tls names its certificates".to_owned()
                );
            }
            (Some(address), Some(dir)) => (address, dir),
        };
        let tls = Acceptor::with_clients(Path::new(dir)).map_err(|e| e.to_string())?;
        let listener = TcpListener::bind(address).map_err(|e| format!("'{address}': {e}"))?;
        Ok(Some(Tcp { listener, tls }))
    }

    /// To be called within a runtime.
    pub fn door(&self) -> std::io::Result<Door> {
        let listener = self.listener.try_clone()?;
        listener.set_nonblocking(true)?;
        Ok(Door::Tls(tokio::net::TcpListener::from_std(listener)?, self.tls.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_served_over_tcp_unless_all_of_it_is_said() {
        assert!(Tcp::open(None, None).unwrap().is_none());
        assert!(Tcp::open(Some("127.0.0.1:0"), None).unwrap_err().contains("TLS only"));
        assert!(Tcp::open(None, Some("/")).unwrap_err().contains("--nbd-listen"));
        let empty = tempfile::tempdir().unwrap();
        let why = Tcp::open(Some("127.0.0.1:0"), empty.path().to_str()).unwrap_err();
        assert!(why.contains("ca-cert.pem"), "{why}");
    }
}
