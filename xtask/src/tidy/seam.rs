//! Only `zilla-env` touches the world: the engine and the leaves below it use no files, sockets,
//! clocks or threads of their own.
//!
//! The simulator can cut the power and replay a seed only because nothing goes past the seam. One
//! `Instant::now` in the engine would make two runs of a seed differ.

use super::Finding;
use super::tree::Source;

const INSIDE: &[&str] =
    &["crates/zilla-codec/src/", "crates/zilla-ondisk/src/", "crates/zilla-core/src/", "crates/zilla/src/"];

const OUTSIDE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::os::unix",
    "std::process",
    "std::thread::spawn",
    "std::thread::sleep",
    "Instant::now",
    "SystemTime::now",
    "rustix::",
    "libc::",
];

pub fn check(source: &Source) -> Vec<Finding> {
    if !INSIDE.iter().any(|p| source.path.starts_with(p)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in source.product_lines() {
        for word in OUTSIDE.iter().filter(|w| line.contains(**w)) {
            findings.push(Finding::error(
                format!("{}:{number}", source.path),
                format!("`{word}` goes past the seam: use zilla-env"),
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_goes_past() {
        let text =
            "//! Uses std::fs in words.\nuse std::fs;\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        let found = check(&Source::new("crates/zilla-core/src/a.rs", text));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "crates/zilla-core/src/a.rs:2");
        assert_eq!(check(&Source::new("crates/zilla-env/src/a.rs", text)), vec![]);
    }
}
