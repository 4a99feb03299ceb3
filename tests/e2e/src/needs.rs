//! What a test needs of the machine.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// `/dev/fuse`, and `fusermount3` for those who are not root.
    Fuse,
    /// OpenZFS's own `zdb`.
    Zdb,
    Root,
    /// libnfs's programs (`nfs-cp`, `nfs-cat`, `nfs-ls`; Debian: libnfs-utils).
    Libnfs,
    /// Samba's server and client (Debian: samba, samba-vfs-modules, smbclient).
    Samba,
    /// `python3`, 3.9 or later.
    Python,
    /// `curl` and `openssl`.
    Tls,
    /// File systems inside file systems: for an ordinary user only where /etc/fuse.conf allows it.
    Nested,
}

pub use zilla_testkit::ZDB;

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn has(need: Need) -> bool {
    match need {
        Need::Fuse => {
            let open = OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
            open && (is_root() || Path::new("/usr/bin/fusermount3").exists())
        }
        Need::Zdb => Path::new(ZDB).exists(),
        Need::Root => is_root(),
        Need::Libnfs => Path::new("/usr/bin/nfs-cp").exists(),
        Need::Samba => {
            ["/usr/sbin/smbd", "/usr/bin/net", "/usr/bin/smbclient"].iter().all(|p| Path::new(p).exists())
        }
        Need::Python => {
            let version = ["-c", "import sys; sys.exit(sys.version_info < (3, 9))"];
            Command::new("python3").args(version).status().is_ok_and(|status| status.success())
        }
        Need::Tls => ["/usr/bin/curl", "/usr/bin/openssl"].iter().all(|p| Path::new(p).exists()),
        Need::Nested => {
            let conf = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
            is_root() || conf.lines().any(|l| l.trim() == "user_allow_other")
        }
    }
}

/// Whether this machine has all of it. Where `CI` is set a test must not pass by doing nothing:
/// then what is missing is a panic.
pub fn can(needs: &[Need]) -> bool {
    let missing: Vec<Need> = needs.iter().copied().filter(|&n| !has(n)).collect();
    if missing.is_empty() {
        return true;
    }
    // These are properties of who runs the tests, not of the machine: CI may run them as an
    // ordinary user as well.
    let excused = missing.iter().all(|&n| matches!(n, Need::Root | Need::Nested));
    assert!(excused || std::env::var_os("CI").is_none(), "this test needs {missing:?}");
    eprintln!("not run: needs {missing:?}");
    false
}
