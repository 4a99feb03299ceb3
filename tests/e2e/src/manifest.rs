//! What is true of every file of a tree, from a mounted tree or from a list, and how two such
//! differ.
//!
//! A file is a set of facts by name, in the words of OpenZFS's own manifests (one JSON object a
//! line): type, mode, owner, size, links, object number, times, device, target, sum of the
//! contents, each xattr. Paths are percent-encoded bytes, because names need not be UTF-8.
//! Comparing facts by name keeps the comparison as small as a list of names to leave out.

use rustix::fs::{AtFlags, CWD, StatxFlags, lgetxattr, llistxattr, statx};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub type Facts = BTreeMap<String, String>;

/// Facts by path; the root is "".
pub type Manifest = BTreeMap<String, Facts>;

/// Object numbers have 48 bits; what stands above may tell snapshots apart.
const INO_MASK: u64 = (1 << 48) - 1;

/// Everything below `root`, itself included, not crossing into other mounts.
pub fn scan(root: &Path) -> Manifest {
    let mut found = Manifest::new();
    let device = statx(CWD, root, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::ALL)
        .map(|s| (s.stx_dev_major, s.stx_dev_minor))
        .unwrap_or_else(|e| panic!("{}: {e}", root.display()));
    visit(root, "", device, &mut found);
    found
}

fn visit(path: &Path, name: &str, device: (u32, u32), found: &mut Manifest) {
    let mut facts = Facts::new();
    let fact = |facts: &mut Facts, key: &str, value: String| facts.insert(key.to_owned(), value);
    let stat = match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::ALL) {
        Ok(stat) => stat,
        Err(e) => {
            fact(&mut facts, "error", format!("stat: {e}"));
            found.insert(name.to_owned(), facts);
            return;
        }
    };
    if (stat.stx_dev_major, stat.stx_dev_minor) != device {
        return;
    }
    let kind = match u32::from(stat.stx_mode) & 0o170_000 {
        0o100_000 => "f",
        0o040_000 => "d",
        0o120_000 => "l",
        0o060_000 => "b",
        0o020_000 => "c",
        0o010_000 => "p",
        _ => "s",
    };
    fact(&mut facts, "type", kind.to_owned());
    fact(&mut facts, "mode", format!("{:04o}", stat.stx_mode & 0o7777));
    fact(&mut facts, "uid", stat.stx_uid.to_string());
    fact(&mut facts, "gid", stat.stx_gid.to_string());
    fact(&mut facts, "size", stat.stx_size.to_string());
    fact(&mut facts, "nlink", stat.stx_nlink.to_string());
    fact(&mut facts, "ino", (stat.stx_ino & INO_MASK).to_string());
    fact(&mut facts, "blocks", stat.stx_blocks.to_string());
    for (key, time) in [("mtime", stat.stx_mtime), ("atime", stat.stx_atime), ("ctime", stat.stx_ctime)] {
        fact(&mut facts, key, format!("{}.{:09}", time.tv_sec, time.tv_nsec));
    }
    if stat.stx_mask & StatxFlags::BTIME.bits() != 0 {
        fact(&mut facts, "btime", format!("{}.{:09}", stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec));
    }
    match kind {
        "b" | "c" => {
            fact(&mut facts, "rdev", format!("{}:{}", stat.stx_rdev_major, stat.stx_rdev_minor));
        }
        "l" => {
            let target = std::fs::read_link(path).map(|t| encode(t.as_os_str().as_bytes()));
            fact(&mut facts, "target", target.unwrap_or_else(|e| format!("!{e}")));
        }
        "f" => match sum(path) {
            Ok(sum) => {
                fact(&mut facts, "sha256", sum);
            }
            Err(e) => {
                fact(&mut facts, "error", format!("read: {e}"));
            }
        },
        _ => {}
    }
    xattrs(path, &mut facts);
    if kind == "d" {
        match std::fs::read_dir(path).and_then(|d| d.collect::<Result<Vec<_>, _>>()) {
            Ok(entries) => {
                for entry in entries {
                    let below = encode(entry.file_name().as_bytes());
                    let below = if name.is_empty() { below } else { format!("{name}/{below}") };
                    visit(&entry.path(), &below, device, found);
                }
            }
            Err(e) => {
                fact(&mut facts, "error", format!("read: {e}"));
            }
        }
    }
    found.insert(name.to_owned(), facts);
}

fn sum(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&buffer[..n]),
        }
    }
}

fn xattrs(path: &Path, facts: &mut Facts) {
    let mut names = Vec::with_capacity(1 << 16);
    match llistxattr(path, rustix::buffer::spare_capacity(&mut names)) {
        Ok(_) => {}
        Err(rustix::io::Errno::OPNOTSUPP) => return,
        Err(e) => {
            facts.insert("error".to_owned(), format!("listxattr: {e}"));
            return;
        }
    }
    for name in names.split(|&b| b == 0).filter(|n| !n.is_empty()) {
        let mut value = Vec::with_capacity(1 << 16);
        let value = match lgetxattr(path, name, rustix::buffer::spare_capacity(&mut value)) {
            Ok(_) => hex(&value),
            Err(e) => format!("!{e}"),
        };
        facts.insert(format!("xattr {}", encode(name)), value);
    }
}

/// Reads a manifest that `zmanifest` made.
pub fn read(path: &Path) -> Manifest {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut found = Manifest::new();
    for line in text.lines() {
        let value: Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{}: {e}: {line}", path.display()));
        let mut facts = Facts::new();
        let mut name = String::new();
        for (key, value) in value.as_object().into_iter().flatten() {
            match (key.as_str(), value) {
                ("path", value) => value.as_str().unwrap_or_default().clone_into(&mut name),
                ("xattr", Value::Object(map)) => {
                    for (attribute, bytes) in map {
                        facts.insert(
                            format!("xattr {attribute}"),
                            bytes.as_str().unwrap_or_default().to_owned(),
                        );
                    }
                }
                (key, Value::String(text)) => {
                    facts.insert(key.to_owned(), text.clone());
                }
                (key, other) => {
                    facts.insert(key.to_owned(), other.to_string());
                }
            }
        }
        found.insert(name, facts);
    }
    found
}

/// The manifest as `zmanifest` writes it.
pub fn write(manifest: &Manifest) -> String {
    let mut out = String::new();
    for (path, facts) in manifest {
        let text = |key: &str| facts.get(key).map(|v| format!(",\"{key}\":\"{v}\""));
        let number = |key: &str| facts.get(key).map(|v| format!(",\"{key}\":{v}"));
        let _ = write!(out, "{{\"path\":\"{path}\"");
        let (words, numbers) =
            (["type", "mode"].map(text), ["uid", "gid", "size", "nlink", "ino", "blocks"].map(number));
        let times = ["mtime", "atime", "ctime", "btime", "rdev", "target", "sha256"].map(text);
        out.extend(words.into_iter().chain(numbers).chain(times).flatten());
        let xattrs =
            facts.iter().filter_map(|(k, v)| Some(format!("\"{}\":\"{v}\"", k.strip_prefix("xattr ")?)));
        let xattrs: Vec<String> = xattrs.collect();
        if !xattrs.is_empty() {
            let _ = write!(out, ",\"xattr\":{{{}}}", xattrs.join(","));
        }
        out.push_str("}\n");
    }
    out
}

/// What differs, one line each, the first few hundred. `leave_out` says which facts are not
/// compared, by path and name.
pub fn differences(
    expected: &Manifest,
    found: &Manifest,
    leave_out: &dyn Fn(&str, &str) -> bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (path, facts) in expected {
        let Some(other) = found.get(path) else {
            lines.push(format!("'{path}' is missing"));
            continue;
        };
        for (key, value) in facts.iter().filter(|(key, _)| !leave_out(path, key)) {
            match other.get(key) {
                Some(is) if is == value => {}
                Some(is) => lines.push(format!("'{path}': {key} is {}, not {}", short(is), short(value))),
                None => lines.push(format!("'{path}': {key} is missing, should be {}", short(value))),
            }
        }
        for (key, value) in other.iter().filter(|(key, _)| !facts.contains_key(*key) && !leave_out(path, key))
        {
            lines.push(format!("'{path}': has {key} {}, should have none", short(value)));
        }
    }
    lines.extend(
        found.keys().filter(|p| !expected.contains_key(*p)).map(|p| format!("'{p}' should not be there")),
    );
    if lines.len() > 200 {
        let more = lines.len() - 200;
        lines.truncate(200);
        lines.push(format!("and {more} more"));
    }
    lines
}

fn short(text: &str) -> String {
    if text.len() <= 80 { text.to_owned() } else { format!("{}... ({} characters)", &text[..80], text.len()) }
}

/// As `zmanifest` writes names: everything outside 0x21..0x7e, and `%`, `"`, `\`.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = String::new();
    for &b in bytes {
        if (0x21..=0x7e).contains(&b) && !b"%\"\\".contains(&b) {
            out.push(b as char);
        } else {
            let _ = write!(out, "%{b:02x}");
        }
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        let _ = write!(out, "{b:02x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn sees_what_is_there_and_what_differs() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a b"), "x").unwrap();
        symlink("to%where", dir.path().join("l")).unwrap();
        let one = scan(dir.path());
        assert_eq!(one["a%20b"]["size"], "1");
        assert_eq!(
            one["a%20b"]["sha256"],
            "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
        );
        assert_eq!(one["l"]["target"], "to%25where");
        assert!(differences(&one, &one, &|_, _| false).is_empty());
        let list = dir.path().with_extension("jsonl");
        std::fs::write(&list, write(&one)).unwrap();
        assert_eq!(read(&list), one);
        std::fs::remove_file(&list).unwrap();
        std::fs::write(dir.path().join("a b"), "y").unwrap();
        std::fs::write(dir.path().join("c"), "").unwrap();
        let two = scan(dir.path());
        let lines = differences(&one, &two, &|path, key| path.is_empty() || key.ends_with("time"));
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("sha256") && lines[1].contains("'c' should not be there"));
    }

    #[test]
    fn reads_what_zmanifest_writes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = r#"{"path":"d/%c3","type":"f","uid":7,"xattr":{"user.x":"0102"},"data":[[0,9]]}"#;
        std::fs::write(file.path(), format!("{line}\n")).unwrap();
        let read = read(file.path());
        let facts = &read["d/%c3"];
        assert_eq!((facts["uid"].as_str(), facts["xattr user.x"].as_str()), ("7", "0102"));
        assert_eq!(facts["data"], "[[0,9]]");
    }
}
