//! What is mounted where, from the kernel's own table. Reading it asks no server of a file system,
//! so it never waits for one.
//!
//! A path alone does not tell: a directory above a mountpoint may have been renamed, and something
//! else may be mounted over it. The table names file systems by their numbers. Other processes may
//! have mount namespaces of their own, with copies of what is mounted here.

use rustix::fs::makedev;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedAt {
    /// No other mount has its number, in any namespace.
    id: u64,
    /// The one that it is mounted on.
    parent: u64,
    /// What happens in it happens in all of this group.
    group: Option<u64>,
    /// What happens in a group happens in it.
    follows: bool,
    /// The number of the file system.
    pub device: u64,
    pub path: PathBuf,
    /// What it is mounted from: of a pool's file system, its name.
    pub source: OsString,
}

/// What this process sees mounted, what is mounted over others behind them.
pub fn mounted() -> io::Result<Vec<MountedAt>> {
    Ok(rows(&std::fs::read("/proc/self/mountinfo")?))
}

/// The same from the text of a table, as any process has one (`/proc/PID/mountinfo`, proc(5)).
pub fn rows(table: &[u8]) -> Vec<MountedAt> {
    table.split(|b| *b == b'\n').filter_map(row).collect()
}

fn row(line: &[u8]) -> Option<MountedAt> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let (major, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    let device = makedev(major.parse().ok()?, minor.parse().ok()?);
    // Optional fields come before the dash.
    let dash = fields.iter().skip(6).position(|f| *f == b"-")? + 6;
    let text = |at: usize| fields.get(at).map(|f| unescaped(f));
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
    let options = fields.get(6..dash)?;
    Some(MountedAt {
        id: number(fields.first()?)?,
        parent: number(fields.get(1)?)?,
        group: options.iter().find_map(|o| number(o.strip_prefix(b"shared:")?)),
        follows: options.iter().any(|o| o.starts_with(b"master:")),
        device,
        path: text(4)?.into(),
        source: text(dash + 2)?,
    })
}

/// Whether a file system is surely mounted at other places that stay when it is unmounted here:
/// what `mount --bind` made, or what another mount namespace has, such as a container's. (Where
/// mounts follow those of this namespace, as services' do, they go with its own.)
pub fn has_copies(device: u64) -> bool {
    let own = mounted().unwrap_or_default();
    let Some(here) = own.iter().find(|m| m.device == device) else { return false };
    if stays(here, &own, &own) {
        return true;
    }
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut seen: BTreeSet<PathBuf> = namespace("self").into_iter().collect();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().filter(|n| n.bytes().all(|b| b.is_ascii_digit())) else { continue };
        if !namespace(pid).is_some_and(|ns| seen.insert(ns)) {
            continue;
        }
        // It may have ended.
        let table = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        if stays(here, &own, &rows(&table)) {
            return true;
        }
    }
    false
}

/// Whether a table has the file system that is mounted `here` at a place where it stays.
fn stays(here: &MountedAt, own: &[MountedAt], table: &[MountedAt]) -> bool {
    let group = own.iter().find(|m| m.id == here.parent).and_then(|above| above.group);
    let mut copies = table.iter().filter(|m| m.device == here.device && m.id != here.id);
    copies.any(|copy| {
        // What a process sees of its table may end at its root.
        let Some(above) = table.iter().find(|m| m.id == copy.parent) else { return false };
        let goes = above.id != here.parent && group.is_some() && (above.group == group || above.follows);
        !goes
    })
}

/// The table writes blanks and backslashes as three octal digits.
fn unescaped(text: &[u8]) -> OsString {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.first_chunk::<3>().filter(|_| byte == b'\\');
        let value = octal.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        out.push(value.unwrap_or(byte));
        rest = if value.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn copies_that_follow_go_and_others_stay() {
        let own = rows(
            b"\
22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /tank rw shared:2 - fuse.zfs tank rw
",
        );
        let here = own[1].clone();
        let has = |table: &str| stays(&here, &own, &rows(table.as_bytes()));
        assert!(!stays(&here, &own, &own));
        let bind = "\
22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
31 22 0:40 / /mnt rw shared:2 - fuse.zfs tank rw
";
        assert!(has(bind), "in the same directory tree");
        let service = "\
50 1 8:1 / / rw master:1 - ext4 /dev/sda1 rw
51 50 0:40 / /tank rw master:2 - fuse.zfs tank rw
";
        assert!(!has(service));
        let container = "\
50 1 8:2 / / rw - overlay o rw
51 50 0:40 / /data rw - fuse.zfs tank rw
";
        assert!(has(container));
        assert!(!has(&container.replace("0:40", "0:41")), "another file system");
    }

    #[test]
    fn rows_are_read_as_the_kernel_writes_them() {
        let table = b"\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /a\\040b\\134c rw shared:2 master:3 - fuse.zfs tank/a\\040b rw,user_id=0
31 30 0:41 /sub /a\\040b/c rw - fuse.zfs tank/c rw
cut off
";
        let found = rows(table);
        assert_eq!(found.len(), 3);
        assert_eq!(found[1].path, Path::new("/a b\\c"));
        assert_eq!((found[1].device, found[1].source.to_str()), (makedev(0, 40), Some("tank/a b")));
        assert_eq!((found[2].device, found[2].source.to_str()), (makedev(0, 41), Some("tank/c")));
        assert!(mounted().unwrap().iter().any(|m| m.path == Path::new("/")));
    }
}
