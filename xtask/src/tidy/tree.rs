//! The tree as the rules see it: source files, with their code told apart from comments, strings
//! and tests.

use std::ops::Range;
use std::path::Path;

/// A Rust file of the tree.
pub struct Source {
    /// From the workspace's root, with `/`.
    pub path: String,
    pub text: String,
    /// `text` with comments and the insides of literals blanked; lines stay where they are.
    pub code: String,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned(), code: blank(text) }
    }

    /// Is the whole file a test, an example or a helper of tests?
    pub fn is_test(&self) -> bool {
        ["/tests/", "/examples/", "/benches/"].iter().any(|p| self.path.contains(p))
            || ["tests/", "fuzz/"].iter().any(|p| self.path.starts_with(p))
            || ["/tests.rs", "/testing.rs"].iter().any(|p| self.path.ends_with(p))
    }

    /// The lines (from 0) of each `#[cfg(test)] mod name { .. }`.
    pub fn test_modules(&self) -> Vec<Range<usize>> {
        let lines: Vec<&str> = self.code.lines().collect();
        let mut found = Vec::new();
        let mut i = 0;
        while i < lines.len() {
            if lines[i].trim() != "#[cfg(test)]" {
                i += 1;
                continue;
            }
            let start = i;
            // Other attributes may stand between; a `mod tests;` in another file ends at its
            // semicolon.
            let (mut depth, mut opened) = (0i64, false);
            while i < lines.len() {
                let line = lines[i];
                i += 1;
                opened |= line.contains('{');
                depth += line.matches('{').count() as i64 - line.matches('}').count() as i64;
                if (opened && depth <= 0) || (!opened && line.trim_end().ends_with(';')) {
                    break;
                }
            }
            found.push(start..i);
        }
        found
    }

    /// The lines of code outside test modules, counted from 1; none where the whole file is a test.
    pub fn product_lines(&self) -> Vec<(usize, &str)> {
        if self.is_test() {
            return Vec::new();
        }
        let tests = self.test_modules();
        let inside = |n: &usize| tests.iter().any(|r| r.contains(n));
        self.code.lines().enumerate().filter(|(n, _)| !inside(n)).map(|(n, l)| (n + 1, l)).collect()
    }
}

/// Every Rust file of the tree.
pub fn sources(root: &Path) -> Result<Vec<Source>, String> {
    Ok(texts(root)?
        .into_iter()
        .filter(|(p, _)| p.ends_with(".rs"))
        .map(|(p, t)| Source::new(&p, &t))
        .collect())
}

/// Every text file of the tree that people write, with its path from the root.
pub fn texts(root: &Path) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    walk(root, "", &mut found)?;
    found.sort();
    Ok(found)
}

fn walk(folder: &Path, prefix: &str, found: &mut Vec<(String, String)>) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("{}: {e}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        let kind = entry.file_type().map_err(fail)?;
        if kind.is_dir() {
            // Build outputs, git's own files and sets of foreign pools are not written by us.
            if !["target", ".git", "corpus", "artifacts"].contains(&name.as_str()) {
                walk(&entry.path(), &path, found)?;
            }
        } else if kind.is_file() && is_text(&name) {
            found.push((path, std::fs::read_to_string(entry.path()).map_err(|e| format!("{name}: {e}"))?));
        }
    }
    Ok(())
}

fn is_text(name: &str) -> bool {
    name == "Makefile"
        || name == "run"
        || [".rs", ".md", ".toml", ".sh", ".py", ".c", ".profile"].iter().any(|e| name.ends_with(e))
}

/// Blanks comments and the insides of string and character literals.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut i = 0;
    while i < bytes.len() {
        let rest = &bytes[i..];
        let end = if rest.starts_with(b"//") {
            i + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            i + block_comment(rest)
        } else if let Some(n) = raw_string(bytes, i) {
            i + n
        } else if rest[0] == b'"' {
            i + string(rest)
        } else if rest[0] == b'\'' {
            i + character(rest)
        } else {
            i += 1;
            continue;
        };
        for b in &mut out[i..end] {
            if *b != b'\n' {
                *b = b' ';
            }
        }
        i = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut i) = (0, 0);
    while i < rest.len() {
        if rest[i..].starts_with(b"/*") {
            depth += 1;
            i += 2;
        } else if rest[i..].starts_with(b"*/") {
            depth -= 1;
            i += 2;
            if depth == 0 {
                return i;
            }
        } else {
            i += 1;
        }
    }
    rest.len()
}

/// Length of a raw string that starts here (`r"`, `r#"`, `br"`), if one does.
fn raw_string(bytes: &[u8], at: usize) -> Option<usize> {
    if at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_') {
        return None;
    }
    let rest = &bytes[at..];
    let letters = if rest.starts_with(b"br") || rest.starts_with(b"cr") { 2 } else { 1 };
    if letters == 1 && !rest.starts_with(b"r") {
        return None;
    }
    let hashes = rest[letters..].iter().take_while(|&&b| b == b'#').count();
    let open = letters + hashes;
    if rest.get(open) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let body = &rest[open + 1..];
    let n = body.windows(close.len()).position(|w| w == close)?;
    Some(open + 1 + n + close.len())
}

fn string(rest: &[u8]) -> usize {
    let mut i = 1;
    while i < rest.len() {
        match rest[i] {
            b'\\' => i += 2,
            b'"' => return i + 1,
            _ => i += 1,
        }
    }
    rest.len()
}

/// A character literal, or just the quote of a lifetime.
fn character(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        return rest[2..].iter().skip(1).position(|&b| b == b'\'').map_or(1, |n| n + 4);
    }
    match rest.iter().skip(2).take(4).position(|&b| b == b'\'') {
        // `'a'` is a literal, `'a: 'b` is not: a literal holds one character.
        Some(n) if std::str::from_utf8(&rest[1..n + 2]).is_ok_and(|s| s.chars().count() == 1) => n + 3,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_comments_and_literals() {
        let code = blank(
            "let a = \"unsafe // \\\" x\"; // unsafe\nlet b = r#\"unsafe\"#; /* unsafe /* */ unsafe */ c",
        );
        assert!(!code.contains("unsafe"), "{code}");
        assert!(code.contains("let a =") && code.contains("let b =") && code.ends_with(" c"));
        assert_eq!(code.lines().count(), 2);
    }

    #[test]
    fn tells_characters_from_lifetimes() {
        let code = blank(
            "fn f<'a>(x: &'a str, c: char) { match c { '\"' => 1, '\\'' => 2, '{' => unsafe_(), _ => 3 } }",
        );
        assert!(code.contains("unsafe_()"), "{code}");
        assert_eq!(code.matches('{').count(), 2);
        assert!(code.contains("&'a str") || code.contains("& a str"), "{code}");
    }

    #[test]
    fn finds_test_modules() {
        let source = Source::new(
            "crates/a/src/b.rs",
            "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { }\n}\nfn c() {}\n#[cfg(test)]\nmod other;\n",
        );
        assert_eq!(source.test_modules(), vec![1..5, 6..8]);
        let lines: Vec<usize> = source.product_lines().iter().map(|l| l.0).collect();
        assert_eq!(lines, vec![1, 6]);
    }
}
