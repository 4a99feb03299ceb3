//! Nothing unfinished and nothing of somebody's own machine.
//!
//! A repository is read by people who never saw the machine it was written on: a path below a home
//! folder helps none of them. What a word marks as unfinished belongs in the book's list of what
//! works (`what-works.md`) or in an issue.

use super::Finding;

/// Folders that exist on one machine.
const MACHINES: &[&str] = &["/home/", "/root/", "/Users/", "/work/", "/tmp/corp"];

/// Words that mark something unfinished. As whole words, in source files.
const UNFINISHED: &[&str] = &["FIXME", "XXX", "HACK", "TODO"];

pub fn check(texts: &[(String, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    // This file has to name what it looks for.
    for (path, text) in texts.iter().filter(|(p, _)| !p.ends_with("tidy/words.rs")) {
        for (n, line) in text.lines().enumerate() {
            for word in MACHINES.iter().filter(|w| line.contains(**w)) {
                findings.push(Finding::error(
                    format!("{path}:{}", n + 1),
                    format!("`{word}` is a place on one machine"),
                ));
            }
            if path.ends_with(".rs") {
                for word in
                    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| UNFINISHED.contains(w))
                {
                    findings.push(Finding::error(
                        format!("{path}:{}", n + 1),
                        format!("`{word}` marks something unfinished"),
                    ));
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_words() {
        let texts = |path: &str, text: &str| vec![(path.to_owned(), text.to_owned())];
        assert_eq!(check(&texts("a.md", "see /root/x and TODO")).len(), 1);
        assert_eq!(check(&texts("a.rs", "// TODO\n// XXXX\n")).len(), 1);
        assert_eq!(check(&texts("a.rs", "fine\n")).len(), 0);
    }
}
