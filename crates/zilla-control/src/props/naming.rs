//! Which names pools and datasets may have, with OpenZFS's complaints.

use crate::error::{ApiError, ErrorCode};
use crate::props::{BOOK, SNAP, Types};

/// Longest name of a dataset, terminator included.
pub const ZFS_MAX_DATASET_NAME_LEN: usize = 256;
/// A pool's name must leave room for `/$ORIGIN@$ORIGIN`.
const POOL_NAME_LIMIT: usize = ZFS_MAX_DATASET_NAME_LEN - 2 - 2 * "$ORIGIN".len();

fn valid_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ')
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::with(ErrorCode::InvalidName, message)
}

/// A pool's name. `existing`: pools made before some names were reserved may keep them.
pub fn check_pool_name(name: &str, existing: bool) -> Result<(), ApiError> {
    if name.len() >= POOL_NAME_LIMIT {
        return Err(invalid("name is too long"));
    }
    if let Some(c) = name.chars().find(|&c| !valid_char(c)) {
        return Err(invalid(format!("invalid character '{c}' in pool name")));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(invalid("name must begin with a letter"));
    }
    let reserved = if existing {
        matches!(name, "mirror" | "raidz" | "draid")
    } else {
        ["mirror", "raidz", "draid", "spare"].iter().any(|p| name.starts_with(p)) || name == "log"
    };
    if reserved {
        return Err(invalid("name is reserved"));
    }
    Ok(())
}

/// Whether it is the name of a distributed spare of a dRAID (`draid2-0-1`), which is no device.
pub fn is_draid_spare(name: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let rest = name.strip_prefix("draid").unwrap_or_default();
    rest.split('-').count() == 3 && rest.split('-').all(number)
}

/// A dataset's name. `types`: which kinds the caller expects; `modifying`: about to create or
/// change it, where `%` is not allowed.
pub fn check_dataset_name(name: &str, types: Types, modifying: bool) -> Result<(), ApiError> {
    if types & SNAP == 0 && name.contains('@') {
        return Err(invalid("snapshot delimiter '@' is not expected here"));
    }
    if types == SNAP && !name.contains('@') {
        return Err(invalid("missing '@' delimiter in snapshot name"));
    }
    if types & BOOK == 0 && name.contains('#') {
        return Err(invalid("bookmark delimiter '#' is not expected here"));
    }
    if types == BOOK && !name.contains('#') {
        return Err(invalid("missing '#' delimiter in bookmark name"));
    }
    if modifying && name.contains('%') {
        return Err(invalid("invalid character % in name"));
    }
    check_entity(name)
}

/// Any dataset, snapshot or bookmark name.
pub fn check_entity(name: &str) -> Result<(), ApiError> {
    if name.len() >= ZFS_MAX_DATASET_NAME_LEN {
        return Err(invalid("name is too long"));
    }
    if name.starts_with('/') {
        return Err(invalid("leading slash in name"));
    }
    if name.ends_with('/') {
        return Err(invalid("trailing slash in name"));
    }
    let empty = || invalid("empty component or misplaced '@' or '#' delimiter in name");
    let mut rest = name;
    let mut delimited = false;
    loop {
        let end = rest.find(['/', '@', '#']).unwrap_or(rest.len());
        let (component, tail) = rest.split_at(end);
        if let Some(c) = component.chars().find(|&c| !valid_char(c) && c != '%') {
            return Err(invalid(format!("invalid character '{c}' in name")));
        }
        let delimiter = tail.chars().next();
        if matches!(delimiter, None | Some('/')) {
            match component {
                "." => return Err(invalid("self reference, '.' is found in name")),
                ".." => return Err(invalid("parent reference, '..' is found in name")),
                _ => {}
            }
        }
        if matches!(delimiter, Some('@' | '#')) {
            if delimited {
                return Err(invalid("multiple '@' and/or '#' delimiters in name"));
            }
            delimited = true;
        }
        if component.is_empty() {
            return Err(empty());
        }
        match delimiter {
            None => return Ok(()),
            Some('/') if delimited => return Err(invalid("trailing slash in name")),
            Some(_) => rest = tail.get(1..).unwrap_or_default(),
        }
    }
}

/// A place to mount: an absolute path that says where it is without looking at what is on the way.
pub fn check_mountpoint(path: &str) -> Result<(), ApiError> {
    let bad = |what: String| Err(ApiError::with(ErrorCode::BadProp, what));
    if !path.starts_with('/') {
        return bad("'mountpoint' must be an absolute path, 'none', or 'legacy'".to_owned());
    }
    if let Some(dots) = path.split('/').find(|c| matches!(*c, "." | "..")) {
        return bad(format!("'mountpoint' must not have '{dots}' in it"));
    }
    if path.contains('\0') {
        return bad("'mountpoint' must not have a NUL in it".to_owned());
    }
    if path.split('/').any(|c| c.len() >= ZFS_MAX_DATASET_NAME_LEN) {
        return bad("component of 'mountpoint' is too long".to_owned());
    }
    Ok(())
}

/// The number of `/` before a snapshot or bookmark delimiter is below the limit
/// (`zfs_max_dataset_nesting`).
pub fn check_nesting(name: &str, limit: u64) -> Result<(), ApiError> {
    let head = name.split(['@', '#']).next().unwrap_or(name);
    if (head.bytes().filter(|&b| b == b'/').count() as u64) < limit {
        Ok(())
    } else {
        Err(ApiError::with(ErrorCode::NameTooLong, "max nesting depth exceeded"))
    }
}

/// The pool a dataset, snapshot or bookmark belongs to.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}
