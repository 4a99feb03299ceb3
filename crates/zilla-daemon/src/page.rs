//! The browser's door, as whoever starts the daemon asks for it.
//!
//! It is closed unless an address is given. One that can be reached from elsewhere is served only
//! with a certificate, and only under the names in it. What is wrong with either ends the daemon
//! before it opens a pool, so that nobody believes in a door that is not there.

use std::net::SocketAddr;
use std::path::Path;
use zilla_tls::{Acceptor, Names};

/// What guards the door, and how the server is called.
#[derive(Debug)]
pub struct Guarded {
    pub(crate) acceptor: Acceptor,
    pub(crate) names: Names,
    pub(crate) name: String,
}

/// Where the page is to be served, and what guards it. `certificate` is the certificate's file and
/// its key's.
pub fn door(
    at: Option<&str>,
    certificate: Option<(&str, &str)>,
) -> Result<(Option<SocketAddr>, Option<Guarded>), String> {
    let Some(at) = at else {
        return match certificate {
            None => Ok((None, None)),
            Some(_) => Err("--http-tls needs an address to guard: --http".to_owned()),
        };
    };
    let Ok(address) = at.parse::<SocketAddr>() else {
        return Err(format!("'{at}' is no address with a port, like 127.0.0.1:8420"));
    };
    let Some((certificate, key)) = certificate else {
        if address.ip().is_loopback() {
            return Ok((Some(address), None));
        }
        return Err(format!(
            "'{at}' can be reached from elsewhere, and there is no TLS: name a certificate and its key \
             (--http-tls), or use 127.0.0.1 with 'ssh -L' or a proxy"
        ));
    };
    let opened = Acceptor::for_anyone(Path::new(certificate), Path::new(key));
    let (acceptor, names) = opened.map_err(|e| format!("--http-tls: {e}"))?;
    let ip = address.ip().to_string();
    let shown = if address.is_ipv6() { format!("[{ip}]") } else { ip.clone() };
    let name = match names.first() {
        Some(name) => name,
        None if names.admit(&ip) => shown,
        None => {
            return Err(format!(
                "--http-tls: '{certificate}' is for no name, and not for {ip}: nobody could be sent there"
            ));
        }
    };
    Ok((Some(address), Some(Guarded { acceptor, names, name })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_reached_from_elsewhere_needs_a_certificate() {
        assert!(door(None, None).unwrap().0.is_none());
        assert!(door(Some("127.0.0.1:1"), None).unwrap().0.is_some());
        assert!(door(Some("[::1]:1"), None).unwrap().0.is_some());
        for elsewhere in ["0.0.0.0:1", "192.0.2.7:1", "[::]:1", "[2001:db8::7]:1"] {
            assert!(door(Some(elsewhere), None).unwrap_err().contains("no TLS"), "{elsewhere}");
        }
        assert!(door(Some("localhost:1"), None).unwrap_err().contains("no address"));
        assert!(door(None, Some(("a", "b"))).unwrap_err().contains("--http"));
        let none = door(Some("0.0.0.0:1"), Some(("no-such-cert", "no-such-key"))).unwrap_err();
        assert!(none.contains("no-such-cert"), "{none}");
    }
}
