//! Who may do what through the browser's door: tokens, roles, and whom an answer is for.
//!
//! There are two tokens, made at random when they are first needed and kept in the state folder,
//! which is the owner's alone; who can read them could ask the daemon's socket anyway. A *viewer*
//! looks. An *operator* also does what harms nobody's data and can be undone: scrub, clear, offline
//! and online, snapshots. All else needs the commands. A token comes in a header that no other site
//! can set without being asked first (CORS), and never in an address, which ends up in logs and
//! histories.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::SocketAddr;
use zilla_control::Folder;
use zilla_control::paths::{Access, TOKEN_FILE};
use zilla_tls::Names;

/// 256 bits.
const TOKEN_BYTES: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Viewer,
    Operator,
}

impl Role {
    pub fn word(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
        }
    }

    /// Whether it may have an operation of the control API done. What is not named here nobody may.
    pub fn may(self, operation: &str) -> bool {
        const LOOK: &[&str] = &[
            "hello",
            "pool_query",
            "pool_history",
            "arc_stats",
            "log_stats",
            "dataset_query",
            "mount_list",
            "snapshot_holds",
        ];
        const CARE: &[&str] =
            &["pool_scrub", "pool_clear", "vdev_offline", "vdev_online", "dataset_snapshot", "pool_log"];
        LOOK.contains(&operation) || (self == Role::Operator && CARE.contains(&operation))
    }
}

/// The secrets of both roles, in hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct Tokens {
    viewer: String,
    operator: String,
}

impl Tokens {
    /// Those of the state folder; new ones where there are none.
    pub fn of(folder: &Folder) -> std::io::Result<Tokens> {
        match folder.read(TOKEN_FILE) {
            Ok(text) => match Tokens::parse(&text) {
                Some(tokens) => return Ok(tokens),
                None => tracing::warn!("'{TOKEN_FILE}' makes no sense: new tokens are made"),
            },
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let tokens = Tokens { viewer: random()?, operator: random()? };
        let mut file = folder.file(TOKEN_FILE, Access::Anew)?;
        writeln!(file, "viewer {}\noperator {}", tokens.viewer, tokens.operator)?;
        file.sync_all()?;
        Ok(tokens)
    }

    pub fn parse(text: &str) -> Option<Tokens> {
        let of = |role: &str| {
            let token = text.lines().find_map(|l| l.strip_prefix(role)?.strip_prefix(' '))?;
            let right = token.len() == 2 * TOKEN_BYTES && token.bytes().all(|b| b.is_ascii_hexdigit());
            right.then(|| token.to_owned())
        };
        Some(Tokens { viewer: of("viewer")?, operator: of("operator")? })
    }

    pub fn get(&self, role: Role) -> &str {
        match role {
            Role::Viewer => &self.viewer,
            Role::Operator => &self.operator,
        }
    }

    /// The role of who sends this `Authorization` header.
    pub fn role(&self, header: Option<&[u8]>) -> Option<Role> {
        let header = header?;
        let (scheme, token) = header.split_at_checked(7)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return None;
        }
        // Both are always compared, so that the time tells nothing.
        let (operator, viewer) = (same(token, self.operator.as_bytes()), same(token, self.viewer.as_bytes()));
        match (operator, viewer) {
            (true, _) => Some(Role::Operator),
            (_, true) => Some(Role::Viewer),
            _ => None,
        }
    }
}

/// Takes as long for any two of one length.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y))) == 0
}

fn random() -> std::io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold(String::new(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    }))
}

/// The names under which the door is reached. A page of another site that was made to point here
/// has another one (DNS rebinding).
pub enum Hosts {
    /// Those of the machine itself.
    Here(Vec<String>),
    /// Those of the certificate, at this port.
    Certified(Names, u16),
}

/// What a port need not be said of: HTTPS's own.
const HTTPS: u16 = 443;

/// A name, and the port behind it.
fn split(host: &str) -> Option<(&str, Option<u16>)> {
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => host.find(':').unwrap_or(host.len()),
    };
    let (name, rest) = host.split_at_checked(bare)?;
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Some((name, None)),
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => Some((name, Some(port.parse().ok()?))),
        _ => None,
    }
}

impl Hosts {
    pub fn of(at: SocketAddr, names: Option<Names>) -> Hosts {
        let port = at.port();
        if let Some(names) = names {
            return Hosts::Certified(names, port);
        }
        let mut all = vec![at.to_string(), format!("localhost:{port}"), format!("127.0.0.1:{port}")];
        all.push(format!("[::1]:{port}"));
        Hosts::Here(all)
    }

    fn ours(&self, host: &str) -> bool {
        match self {
            Hosts::Here(all) => all.iter().any(|h| h.eq_ignore_ascii_case(host)),
            Hosts::Certified(names, port) => {
                split(host).is_some_and(|(name, p)| p.unwrap_or(HTTPS) == *port && names.admit(name))
            }
        }
    }

    /// Whether a request with these headers was meant for us, and by a page of ours if by a page.
    pub fn admit(&self, host: Option<&str>, origin: Option<&str>, site: Option<&str>) -> bool {
        let scheme = match self {
            Hosts::Here(_) => "http://",
            Hosts::Certified(..) => "https://",
        };
        let Some(host) = host.filter(|h| self.ours(h)) else { return false };
        let same = |o: &str| o.strip_prefix(scheme).is_some_and(|o| o.eq_ignore_ascii_case(host));
        origin.is_none_or(same) && site.is_none_or(|s| matches!(s, "same-origin" | "none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_name_operations_that_there_are_and_nothing_that_destroys() {
        let named = |role: Role| zilla_control::OPERATIONS.iter().filter(move |o| role.may(o)).count();
        assert_eq!((named(Role::Viewer), named(Role::Operator)), (8, 14));
        for bad in
            ["pool_destroy", "pool_create", "dataset_destroy", "key_load", "stream_send", "shutdown", "", "x"]
        {
            assert!(!Role::Operator.may(bad), "{bad}");
        }
        assert!(!Role::Viewer.may("pool_scrub"));
    }

    #[test]
    fn tokens_are_kept_and_tell_roles_apart() {
        let dir = tempfile::tempdir().unwrap();
        let folder = zilla_control::StateDir::new(dir.path().join("state")).open().unwrap();
        let tokens = Tokens::of(&folder).unwrap();
        assert!(tokens == Tokens::of(&folder).unwrap());
        let header = |role| format!("Bearer {}", tokens.get(role)).into_bytes();
        assert_eq!(tokens.role(Some(&header(Role::Viewer))), Some(Role::Viewer));
        assert_eq!(tokens.role(Some(&header(Role::Operator))), Some(Role::Operator));
        let cut = &header(Role::Viewer)[..40];
        for bad in [&b""[..], b"Bearer ", b"Bearer x", b"Basic abc", cut, &[0xff; 90]] {
            assert_eq!(tokens.role(Some(bad)), None);
        }
        assert_eq!(tokens.role(None), None);
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(dir.path().join("state").join(TOKEN_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for bad in ["", "viewer 1\noperator 2\n", "viewer \noperator \n"] {
            assert!(Tokens::parse(bad).is_none());
        }
    }

    #[test]
    fn requests_for_others_and_from_others_are_not_ours() {
        let hosts = Hosts::of("127.0.0.1:8420".parse().unwrap(), None);
        let ours = Some("localhost:8420");
        assert!(hosts.admit(ours, None, None) && hosts.admit(Some("127.0.0.1:8420"), None, Some("none")));
        assert!(hosts.admit(ours, Some("http://localhost:8420"), Some("same-origin")));
        for bad in [None, Some(""), Some("evil.example:8420"), Some("localhost"), Some("localhost:84200")] {
            assert!(!hosts.admit(bad, None, None), "{bad:?}");
        }
        assert!(!hosts.admit(ours, Some("http://evil.example"), None));
        assert!(
            !hosts.admit(ours, Some("null"), None)
                && !hosts.admit(ours, Some("https://localhost:8420"), None)
        );
        assert!(!hosts.admit(ours, None, Some("cross-site")));
    }

    #[test]
    fn behind_a_certificate_its_names_are_ours_and_no_others() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(
            ["nas.example", "192.0.2.7", "2001:db8::7"].map(str::to_owned),
        );
        let made = made.unwrap();
        let (cert, key) = (dir.path().join("cert"), dir.path().join("key"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.key_pair.serialize_pem()).unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        let (_, names) = zilla_tls::Acceptor::for_anyone(&cert, &key).unwrap();
        let hosts = Hosts::of("0.0.0.0:8420".parse().unwrap(), Some(names.clone()));
        for good in ["nas.example:8420", "NAS.example:8420", "192.0.2.7:8420", "[2001:db8::7]:8420"] {
            assert!(hosts.admit(Some(good), Some(&format!("https://{good}")), Some("same-origin")), "{good}");
            assert!(!hosts.admit(Some(good), Some(&format!("http://{good}")), None), "{good}");
        }
        for bad in [
            "evil.example:8420",
            "localhost:8420",
            "127.0.0.1:8420",
            "0.0.0.0:8420",
            "nas.example",
            "nas.example:443",
            "nas.example:",
            "nas.example:+8420",
            "nas.example:8420:8420",
            "[2001:db8::7:8420",
            "[2001:db8::7]x",
            "[]:8420",
            "[\u{e9}",
            ":8420",
            "",
        ] {
            assert!(!hosts.admit(Some(bad), None, None), "{bad}");
        }
        for other in ["https://evil.example:8420", "https://192.0.2.7:8420", "null"] {
            assert!(!hosts.admit(Some("nas.example:8420"), Some(other), None), "{other}");
        }
        let usual = Hosts::of("0.0.0.0:443".parse().unwrap(), Some(names));
        assert!(usual.admit(Some("nas.example"), Some("https://nas.example"), None));
        assert!(
            usual.admit(Some("nas.example:443"), None, None)
                && !usual.admit(Some("nas.example:80"), None, None)
        );
    }
}
