//! A file system that is mounted, mounted at one place more.
//!
//! The kernel's file systems can be mounted at several places; with FUSE that is a bind of the mount
//! that is there: the same files, with one cache. Where it is mounted is what the kernel's table says,
//! not the daemon: somebody may have taken the first mount away and left others.

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a mount may do less than its file system. Source: mount(8).
const WORDS: &[(&str, MountFlags)] = &[
    ("ro", MountFlags::RDONLY),
    ("nosuid", MountFlags::NOSUID),
    ("nosetuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("nodevices", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("relatime", MountFlags::RELATIME),
];

fn flags<'a>(words: impl Iterator<Item = &'a str>) -> MountFlags {
    let flag = |word: &str| WORDS.iter().find(|(w, _)| *w == word).map(|(_, flag)| *flag);
    words.filter_map(flag).fold(MountFlags::empty(), |all, one| all | one)
}

/// A mount of a dataset, as the kernel's table has it.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    at: PathBuf,
    device: (u32, u32),
    options: String,
}

/// The mounts of a dataset, the last first: it covers those before it.
fn mounts_of(name: &str, table: &str) -> Vec<Mounted> {
    let line = |line: &str| {
        let (own, rest) = line.split_once(" - ")?;
        let mut rest = rest.split(' ');
        if rest.next()? != "fuse.zfs" || unescaped(rest.next()?).as_os_str() != name {
            return None;
        }
        let mut own = own.split(' ').skip(2);
        let (major, minor) = own.next()?.split_once(':')?;
        // Of a mount that shows but a part of it there is nothing to be had.
        if own.next()? != "/" {
            return None;
        }
        let at = unescaped(own.next()?);
        let options = own.next()?.to_owned();
        Some(Mounted { at, device: (major.parse().ok()?, minor.parse().ok()?), options })
    };
    let mut all: Vec<Mounted> = table.lines().filter_map(line).collect();
    all.reverse();
    all
}

/// The table writes blanks and backslashes as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let octal = bytes.get(at + 1..at + 4).filter(|_| byte == b'\\');
        let value = octal.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        out.push(value.unwrap_or(byte));
        at += if value.is_some() { 4 } else { 1 };
    }
    PathBuf::from(OsString::from_vec(out))
}

/// Whether a path leads to the mount, and to nothing that lies over it.
fn is_there(m: &Mounted) -> bool {
    let device = fs::metadata(&m.at).map(|found| found.dev());
    device.is_ok_and(|d| (rustix::fs::major(d), rustix::fs::minor(d)) == m.device)
}

/// Mounts a dataset that is mounted at another place too. None: it is mounted nowhere, or there already.
pub fn mount_again(name: &str, place: &Path, words: &[String]) -> Option<Result<(), Errno>> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = mounts_of(name, &table);
    if found.iter().any(|m| m.at == place) {
        return None;
    }
    let first = found.iter().find(|m| is_there(m))?;
    let asked = flags(words.iter().map(String::as_str));
    let bound = mount_bind(&first.at, place).and_then(|()| match asked.is_empty() {
        true => Ok(()),
        // All flags are told anew.
        false => {
            let all = asked | flags(first.options.split(',')) | MountFlags::BIND;
            mount_remount(place, all, "").inspect_err(|_| {
                let _ = unmount(place, UnmountFlags::DETACH);
            })
        }
    });
    Some(bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
30 22 0:40 / /a\\040b rw,nosuid,relatime shared:2 - fuse.zfs tank/x rw,user_id=0
31 30 0:41 / /c rw - fuse.zfs tank/y rw
32 22 0:40 /sub /part rw - fuse.zfs tank/x rw
33 22 0:40 / /later ro - fuse.zfs tank/x rw
34 22 8:1 / /d rw - ext4 tank/x rw
broken
";

    #[test]
    fn mounts_of_a_dataset_are_told_by_the_table() {
        let of = |name: &str| mounts_of(name, TABLE);
        let places: Vec<PathBuf> = of("tank/x").into_iter().map(|m| m.at).collect();
        assert_eq!(places, [PathBuf::from("/later"), PathBuf::from("/a b")]);
        assert_eq!(
            of("tank/x").last().map(|m| (m.device, &*m.options)),
            Some(((0, 40), "rw,nosuid,relatime"))
        );
        assert!(of("tank").is_empty());
        let all = flags("rw,nosuid,relatime,ro".split(','));
        assert_eq!(all, MountFlags::NOSUID | MountFlags::RELATIME | MountFlags::RDONLY);
    }
}
