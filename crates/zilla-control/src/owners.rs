//! Names of users and groups, and their numbers, as the host knows them.
//!
//! The C library is asked, not `/etc/passwd`, because names may come from a directory service. Both
//! the daemon (`userquota@name`) and the commands (`zfs userspace`, `zfs allow`) need this.

use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Whose name it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    User,
    Group,
}

/// Room for one entry's strings; doubled while the C library says it is too small.
const FIRST: usize = 1 << 10;
/// A group of very many members needs much; more than this no host has.
const MOST: usize = 16 << 20;

/// Asks with a buffer that grows until it is large enough.
fn ask<T>(mut call: impl FnMut(&mut [libc::c_char]) -> (libc::c_int, Option<T>)) -> Option<T> {
    let mut room = FIRST;
    while room <= MOST {
        let mut buf = vec![0; room];
        match call(&mut buf) {
            (libc::ERANGE, _) => room *= 2,
            (_, found) => return found,
        }
    }
    None
}

/// The number of a user or group of this name.
pub fn id_of(kind: Kind, name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    match kind {
        Kind::User => ask(|buf| {
            let (mut entry, mut found) = (std::mem::MaybeUninit::uninit(), std::ptr::null_mut());
            // SAFETY: all pointers are valid for the call; `entry` is read only where `found` says
            // that it was filled.
            unsafe {
                let rc = libc::getpwnam_r(
                    name.as_ptr(),
                    entry.as_mut_ptr(),
                    buf.as_mut_ptr(),
                    buf.len(),
                    &raw mut found,
                );
                (rc, found.as_ref().map(|p: &libc::passwd| p.pw_uid))
            }
        }),
        Kind::Group => ask(|buf| {
            let (mut entry, mut found) = (std::mem::MaybeUninit::uninit(), std::ptr::null_mut());
            // SAFETY: as above.
            unsafe {
                let rc = libc::getgrnam_r(
                    name.as_ptr(),
                    entry.as_mut_ptr(),
                    buf.as_mut_ptr(),
                    buf.len(),
                    &raw mut found,
                );
                (rc, found.as_ref().map(|g: &libc::group| g.gr_gid))
            }
        }),
    }
}

/// The name of a user or group of this number.
pub fn name_of(kind: Kind, id: u32) -> Option<String> {
    // SAFETY: of the callers: a string of the entry that was just filled, in `buf`.
    let text = |s: *const libc::c_char| unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned();
    match kind {
        Kind::User => ask(|buf| {
            let (mut entry, mut found) = (std::mem::MaybeUninit::uninit(), std::ptr::null_mut());
            // SAFETY: as in `id_of`.
            unsafe {
                let rc =
                    libc::getpwuid_r(id, entry.as_mut_ptr(), buf.as_mut_ptr(), buf.len(), &raw mut found);
                (rc, found.as_ref().map(|p: &libc::passwd| text(p.pw_name)))
            }
        }),
        Kind::Group => ask(|buf| {
            let (mut entry, mut found) = (std::mem::MaybeUninit::uninit(), std::ptr::null_mut());
            // SAFETY: as in `id_of`.
            unsafe {
                let rc =
                    libc::getgrgid_r(id, entry.as_mut_ptr(), buf.as_mut_ptr(), buf.len(), &raw mut found);
                (rc, found.as_ref().map(|g: &libc::group| text(g.gr_name)))
            }
        }),
    }
}

/// The home of the user of this number.
pub fn home_of(uid: u32) -> Option<PathBuf> {
    ask(|buf| {
        let (mut entry, mut found) = (std::mem::MaybeUninit::uninit(), std::ptr::null_mut());
        // SAFETY: as in `id_of`; the entry's strings lie in `buf`.
        unsafe {
            let rc = libc::getpwuid_r(uid, entry.as_mut_ptr(), buf.as_mut_ptr(), buf.len(), &raw mut found);
            let home = found.as_ref().map(|p: &libc::passwd| CStr::from_ptr(p.pw_dir).to_bytes().to_vec());
            (rc, home.map(|home| PathBuf::from(OsString::from_vec(home))))
        }
    })
}

/// A name, or a number in digits.
pub fn parse(kind: Kind, text: &str) -> Option<u32> {
    id_of(kind, text).or_else(|| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_zero_both_ways() {
        assert_eq!(id_of(Kind::User, "root"), Some(0));
        assert_eq!(name_of(Kind::User, 0).as_deref(), Some("root"));
        assert_eq!(name_of(Kind::Group, 0).as_deref(), Some("root"));
        assert_eq!(parse(Kind::Group, "4711"), Some(4711));
        assert_eq!(parse(Kind::User, "no such user"), None);
        assert_eq!(parse(Kind::User, "nul\0"), None);
        assert_eq!(name_of(Kind::User, 0xfff0_1234), None);
    }
}
