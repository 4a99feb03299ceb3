//! Trees of files: making one with a little of everything, copying with the host's own `cp`,
//! comparing.

use crate::manifest::{differences, scan};
use crate::random::Random;
use crate::world::finish;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

/// A few hundred files of every kind that an ordinary user can make, some 3 MB of data.
pub fn sample(dir: &Path, seed: u64) {
    let mut random = Random::new(seed);
    fs::create_dir_all(dir).expect("folder");
    let put =
        |name: &str, bytes: &[u8]| fs::write(dir.join(name), bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    put("empty", b"");
    for size in [1usize, 112, 511, 512, 513, 4095, 4096, 4097, 131_071, 131_072, 131_073, 700_000] {
        put(&format!("text{size}"), &random.text(size));
    }
    for size in [113usize, 40_000, 200_000] {
        put(&format!("random{size}"), &random.bytes(size));
    }
    put("zeros", &vec![0; 300_000]);
    put("name with spaces, and \u{e9}\u{4e16}", b"unicode");
    put(&"long".repeat(60), b"a name of 240 bytes");
    let sparse = fs::File::create(dir.join("sparse")).expect("sparse");
    sparse.set_len(10 << 20).and_then(|()| sparse.write_all_at(b"middle", 5_000_000)).expect("sparse");
    fs::File::create(dir.join("hole")).and_then(|f| f.set_len(3 << 20)).expect("hole");
    fs::create_dir_all(dir.join("sub/a/b/c")).expect("folders");
    fs::write(dir.join("sub/a/b/c/deep"), "deep").expect("deep");
    for i in 0..200 {
        fs::write(dir.join(format!("sub/f{i}")), format!("file {i} of seed {seed}\n")).expect("file");
    }
    symlink("text112", dir.join("soft")).expect("link");
    symlink("long/".repeat(80), dir.join("longsoft")).expect("link");
    fs::hard_link(dir.join("text112"), dir.join("sub/hard")).expect("link");
    for (name, mode) in [("text513", 0o600), ("text4095", 0o750), ("sub/a", 0o1777), ("sub/a/b", 0o2750)] {
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).expect("mode");
    }
    host("mkfifo", &[dir.join("fifo").as_os_str()]);
    let old = dir.join("text4097");
    host("touch", &["-d".as_ref(), "2001-09-09 01:46:40.123456789 UTC".as_ref(), old.as_os_str()]);
    for (name, value) in [("user.note", "short".to_owned()), ("user.long", "x".repeat(2000))] {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(dir.join("text112"), name, value.as_bytes(), flags)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// `cp -a`, sparse files staying sparse.
#[track_caller]
pub fn copy(from: &Path, to: &Path) {
    host("cp", &["-a".as_ref(), "--sparse=always".as_ref(), from.as_os_str(), to.as_os_str()]);
}

/// A panic unless every file is what it is in the other tree: kind, mode, owner, size, links,
/// modification time, target, contents and attributes.
#[track_caller]
pub fn same(expected: &Path, found: &Path) {
    let (before, after) = (scan(expected), scan(found));
    let lines = differences(&before, &after, &|path, key| {
        // What a file system decides for itself.
        let own = matches!(key, "ino" | "blocks" | "atime" | "ctime" | "btime")
            || key.starts_with("xattr security.");
        let folder = before.get(path).is_some_and(|facts| facts.get("type").is_some_and(|t| t == "d"));
        own || (folder && matches!(key, "size" | "nlink"))
            || (path.is_empty() && matches!(key, "mtime" | "mode"))
    });
    assert!(
        lines.is_empty(),
        "{} differs from {}:\n{}",
        found.display(),
        expected.display(),
        lines.join("\n")
    );
}

/// Runs a program of the host; a panic if it fails.
#[track_caller]
pub fn host(program: &str, args: &[&std::ffi::OsStr]) -> String {
    let mut command = Command::new(program);
    command.args(args);
    finish(command).ok()
}
