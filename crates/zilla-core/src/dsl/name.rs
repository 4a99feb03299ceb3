//! Names of datasets and snapshots.

use crate::error::{Errno, Error, Result};

/// Longest name of a dataset, with its NUL.
pub const ZFS_MAX_DATASET_NAME_LEN: usize = 256;

/// A name in its parts.
pub(super) struct Parts<'a> {
    pub fs: &'a str,
    pub snap: Option<&'a str>,
}

pub(super) fn split(name: &str) -> Parts<'_> {
    match name.split_once('@') {
        Some((fs, snap)) => Parts { fs, snap: Some(snap) },
        None => Parts { fs: name, snap: None },
    }
}

/// The parent's name and the last part.
pub(super) fn parent(fs: &str) -> Option<(&str, &str)> {
    fs.rsplit_once('/')
}

fn valid_char(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.' | b':' | b' ')
}

/// Checks one part of a name, between slashes or behind the at sign.
pub(super) fn check_component(part: &str) -> Result<()> {
    if part.is_empty() {
        return Err(Error::inval("empty component in name"));
    }
    if part == "." || part == ".." {
        return Err(Error::inval("self reference, '.' or '..', is found in name"));
    }
    match part.bytes().find(|c| !valid_char(*c)) {
        Some(c) => Err(Error::inval(format!("invalid character '{}' in name", c.escape_ascii()))),
        None => Ok(()),
    }
}

/// How deep a dataset lies.
pub(super) fn depth(fs: &str) -> u64 {
    fs.split('/').count() as u64
}

/// Checks a whole name.
pub(super) fn check(name: &str) -> Result<()> {
    if name.len() >= ZFS_MAX_DATASET_NAME_LEN {
        return Err(Error::os(Errno::NameTooLong, "name is too long"));
    }
    let p = split(name);
    p.fs.split('/').try_for_each(check_component)?;
    p.snap.map_or(Ok(()), check_component)
}
