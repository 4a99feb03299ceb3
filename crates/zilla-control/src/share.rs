//! Who besides the daemon's owner and root may ask it.
//!
//! Nobody, unless its owner says otherwise: a group, or everyone on the machine. Who is let in may
//! look, as OpenZFS lets everyone look, and may change what `zfs allow` gives him; the backend
//! judges that ([`crate::Backend::judge`]), by the user and the groups that the kernel names for
//! the other end of the socket. Only a daemon of root's is shared: a client trusts nobody but root
//! and himself (`client.rs`).

use crate::owners::{Kind, id_of};
use std::os::fd::AsRawFd;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Share {
    #[default]
    Nobody,
    /// Who is in the group of this number.
    Group(u32),
    Everyone,
}

impl Share {
    /// `nobody`, `everyone`, or a group by name or number.
    pub fn parse(text: &str) -> Result<Share, String> {
        match text {
            "nobody" => Ok(Share::Nobody),
            "everyone" => Ok(Share::Everyone),
            name => match id_of(Kind::Group, name).or_else(|| name.parse().ok()) {
                Some(gid) => Ok(Share::Group(gid)),
                None => Err(format!("'{name}' is neither 'nobody' nor 'everyone' nor a group")),
            },
        }
    }

    /// Whether someone of these groups is let in.
    pub fn admits(self, groups: &[u32]) -> bool {
        match self {
            Share::Nobody => false,
            Share::Group(gid) => groups.contains(&gid),
            Share::Everyone => true,
        }
    }

    /// The socket's mode.
    pub fn socket_mode(self) -> u32 {
        match self {
            Share::Nobody => 0o600,
            Share::Group(_) => 0o660,
            Share::Everyone => 0o666,
        }
    }

    /// What the state folder's mode gains, for the socket to be reached; its files stay their
    /// owner's alone.
    pub fn folder_mode(self) -> u32 {
        match self {
            Share::Nobody => 0o700,
            Share::Group(_) => 0o710,
            Share::Everyone => 0o711,
        }
    }

    pub fn group(self) -> Option<u32> {
        match self {
            Share::Group(gid) => Some(gid),
            _ => None,
        }
    }
}

/// The groups that the other end of a socket had when it connected, beside its first one.
pub fn peer_groups(socket: &impl AsRawFd) -> std::io::Result<Vec<u32>> {
    /// NGROUPS_MAX of Linux.
    const MOST: usize = 65536;
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let room = groups.len() * size_of::<libc::gid_t>();
        let mut length = room as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, which is what `groups` has, and says
        // how many.
        let rc = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<libc::gid_t>();
        if rc == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > MOST {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_let_in_follows_from_one_word() {
        assert_eq!(Share::parse("nobody"), Ok(Share::Nobody));
        assert_eq!(Share::parse("everyone"), Ok(Share::Everyone));
        assert_eq!(Share::parse("root"), Ok(Share::Group(0)));
        assert_eq!(Share::parse("4711"), Ok(Share::Group(4711)));
        assert!(Share::parse("no such group").unwrap_err().contains("'no such group' is neither"));
        assert!(!Share::Nobody.admits(&[0]) && Share::Everyone.admits(&[]));
        assert!(Share::Group(7).admits(&[1, 7]) && !Share::Group(7).admits(&[1, 8]));
    }

    #[test]
    fn the_kernel_names_the_other_end_s_groups() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let mine: Vec<u32> = rustix::process::getgroups().unwrap().into_iter().map(|g| g.as_raw()).collect();
        let mut found = peer_groups(&one).unwrap();
        let mut mine = mine;
        found.sort_unstable();
        mine.sort_unstable();
        assert_eq!(found, mine);
    }
}
