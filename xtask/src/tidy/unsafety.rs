//! `unsafe` only in listed files, each with its reason, and no file listed that has none.
//!
//! What may be unsafe: SIMD kernels, buffers, system calls. A new entry in this list is a decision
//! that a reviewer sees.

use super::Finding;
use super::tree::Source;

const LISTED: &[(&str, &str)] = &[
    ("crates/zilla-codec/src/checksum/fletcher.rs", "calls its SIMD twin"),
    ("crates/zilla-codec/src/checksum/fletcher_x86.rs", "SIMD kernel"),
    ("crates/zilla-codec/src/checksum/sha2.rs", "calls its SIMD twin"),
    ("crates/zilla-codec/src/checksum/sha256_x86.rs", "SIMD kernel"),
    ("crates/zilla-codec/src/compress/lz4.rs", "C library"),
    ("crates/zilla-codec/src/raidz/x86.rs", "SIMD kernel"),
    ("crates/zilla-cli/src/fmt/zone.rs", "a call of the C library"),
    ("crates/zilla-cli/src/zed.rs", "system calls"),
    ("crates/zilla-cli/src/zfs/project/fsx.rs", "system calls"),
    ("crates/zilla-cli/src/zfs/rewrite.rs", "a system call"),
    ("crates/zilla-control/src/owners.rs", "calls of the C library"),
    ("crates/zilla-control/src/share.rs", "a system call"),
    ("crates/zilla-control/src/wary.rs", "system calls"),
    ("crates/zilla-control/src/whose.rs", "system calls"),
    ("crates/zilla-daemon/src/memory.rs", "a call of the C library"),
    ("crates/zilla-daemon/src/supervisor.rs", "a descriptor that is handed over"),
    ("crates/zilla-env/src/buf.rs", "aligned buffers"),
    ("crates/zilla-env/src/copy.rs", "streaming stores"),
    ("crates/zilla-env/src/heap.rs", "calls of the C library"),
    ("crates/zilla-env/src/locked.rs", "system calls"),
    ("crates/zilla-env/src/real/apart.rs", "a system call"),
    ("crates/zilla-env/src/real/file.rs", "system calls"),
    ("crates/zilla-env/src/real/uring.rs", "system calls"),
];

pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|s| s.path.starts_with("crates/") && !s.is_test()) {
        let line = source.code.lines().position(has_unsafe);
        let listed = LISTED.iter().any(|(path, _)| *path == source.path);
        match line {
            Some(n) if !listed => findings.push(Finding::error(
                format!("{}:{}", source.path, n + 1),
                "`unsafe` in a file that xtask/src/tidy/unsafety.rs does not list",
            )),
            None if listed => {
                findings.push(Finding::error(&source.path, "listed for `unsafe`, but has none"))
            }
            _ => {}
        }
    }
    for (path, _) in LISTED.iter().filter(|(p, _)| !sources.iter().any(|s| s.path == *p)) {
        findings.push(Finding::error(*path, "listed for `unsafe`, but is not there"));
    }
    findings
}

/// `unsafe` as a word of code; attributes that only name it (`unsafe_op_in_unsafe_fn`) are other
/// words.
fn has_unsafe(line: &str) -> bool {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "unsafe")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wants_it_listed() {
        let found = check(&[Source::new("crates/a/src/b.rs", "//! unsafe\nfn a() { unsafe { b() } }\n")]);
        assert_eq!(found[0].place, "crates/a/src/b.rs:2");
        assert!(!has_unsafe("#![deny(unsafe_op_in_unsafe_fn)]"));
        // The list itself must not rot: every file of it is missing in this tree.
        assert_eq!(found.len(), 1 + LISTED.len());
    }
}
