//! Where bytes from disk are parsed, `unwrap` and indexing are denied.
//!
//! clippy holds the denial; this holds that the denial is there.

use super::Finding;
use super::tree::Source;

/// File and lints that it has to deny.
const PARSERS: &[(&str, &[&str])] = &[
    ("crates/zilla-ondisk/src/lib.rs", &["clippy::unwrap_used", "clippy::indexing_slicing"]),
    ("crates/zilla-core/src/zap/mod.rs", &["clippy::unwrap_used", "clippy::indexing_slicing"]),
    ("crates/zilla-core/src/dmu/mod.rs", &["clippy::unwrap_used", "clippy::indexing_slicing"]),
    ("crates/zilla-core/src/dsl/mod.rs", &["clippy::unwrap_used", "clippy::indexing_slicing"]),
    ("crates/zilla-core/src/vdev/read.rs", &["clippy::unwrap_used", "clippy::indexing_slicing"]),
    ("crates/zilla-core/src/vdev/read_split.rs", &["clippy::unwrap_used", "clippy::indexing_slicing"]),
    ("crates/zilla-codec/src/lib.rs", &["clippy::unwrap_used"]),
    ("crates/zilla-codec/src/compress/mod.rs", &["clippy::indexing_slicing"]),
];

pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, lints) in PARSERS {
        let code = sources.iter().find(|s| s.path == *path).map_or("", |s| s.code.as_str());
        for lint in lints.iter().filter(|lint| !denies(code, lint)) {
            findings.push(Finding::error(*path, format!("parses bytes from disk and does not deny {lint}")));
        }
    }
    findings
}

/// Does an inner attribute (`#![deny(..)]`, or `deny(..)` in a `cfg_attr`) name the lint?
fn denies(code: &str, lint: &str) -> bool {
    code.split("deny(").skip(1).filter_map(|rest| rest.split(')').next()).any(|list| list.contains(lint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wants_the_denial() {
        let attribute = "#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]\n";
        assert!(denies(attribute, "clippy::indexing_slicing"));
        assert!(!denies("#![allow(clippy::indexing_slicing)]\n", "clippy::indexing_slicing"));
        let sources = [Source::new("crates/zilla-ondisk/src/lib.rs", attribute)];
        assert!(check(&sources).iter().all(|f| f.place != "crates/zilla-ondisk/src/lib.rs"));
    }
}
