//! Every file says why it exists; every folder opens with an essay.
//!
//! A folder of the engine also says what it keeps true, why a crash is safe and in which order its
//! locks are taken: those three are what a reader cannot find out from the code.

use super::Finding;
use super::tree::Source;

/// Shorter than this is a title, not an essay.
const ESSAY_LINES: usize = 4;

pub fn check(source: &Source) -> Vec<Finding> {
    let head = head(&source.text);
    // A `tests.rs` belongs to the file it tests.
    if source.path.ends_with("/tests.rs") {
        return Vec::new();
    }
    if head.is_empty() {
        return vec![Finding::error(&source.path, "opens without `//!`: say why the file exists")];
    }
    let Some(rest) = source.path.strip_prefix("crates/") else { return Vec::new() };
    if !(rest.ends_with("/mod.rs") || rest.ends_with("/src/lib.rs")) || source.is_test() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if head.len() < ESSAY_LINES {
        findings.push(Finding::error(&source.path, "opens with a title: a folder opens with an essay"));
    }
    let engine = rest.strip_prefix("zilla-core/src/").filter(|r| r.matches('/').count() == 1);
    if engine.is_some() {
        let essay = head.join(" ").to_lowercase();
        for (what, any) in [
            ("what it keeps true (Invariants)", &["invariant", "keeps true", "kept true"][..]),
            ("why a crash at any point is safe (Crash)", &["crash"][..]),
            ("its lock order (Locks)", &["lock"][..]),
        ] {
            if !any.iter().any(|word| essay.contains(word)) {
                findings.push(Finding::error(&source.path, format!("its essay does not say {what}")));
            }
        }
    }
    findings
}

/// The lines of the opening `//!`, which may follow inner attributes.
fn head(text: &str) -> Vec<&str> {
    text.lines()
        .skip_while(|l| l.trim().is_empty() || l.starts_with("#!["))
        .take_while(|l| l.starts_with("//!"))
        .map(|l| l.trim_start_matches("//!").trim())
        .filter(|l| !l.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text)).into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn wants_a_head() {
        assert_eq!(messages("crates/a/src/b.rs", "//! Why.\nfn a() {}\n").len(), 0);
        assert_eq!(messages("crates/a/src/b.rs", "#![deny(x)]\n//! Why.\n").len(), 0);
        assert_eq!(messages("crates/a/src/b.rs", "use std::fs;\n//! Why.\n").len(), 1);
    }

    #[test]
    fn wants_an_essay_of_a_folder() {
        assert_eq!(messages("crates/a/src/b/mod.rs", "//! Title.\n").len(), 1);
        assert_eq!(messages("crates/a/src/b/mod.rs", "//! a\n//! b\n//! c\n//! d\n").len(), 0);
    }

    #[test]
    fn wants_crash_and_locks_of_the_engine() {
        let text = "//! a\n//! b\n//! What it keeps true: c\n//! d\n";
        assert_eq!(messages("crates/zilla-core/src/b/mod.rs", text).len(), 2);
        assert_eq!(messages("crates/zilla-core/src/b/c/mod.rs", text).len(), 0);
    }
}
