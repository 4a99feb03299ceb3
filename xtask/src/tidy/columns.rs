//! Comments and pages have lines of at most 100 columns: two of them stand beside each other on a
//! screen.
//!
//! What loses by being cut is left alone: tables, headings, and what is shown as it is (fenced or
//! indented).

use super::Finding;

const MOST: usize = 100;

pub fn check(texts: &[(String, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in texts {
        let page = path.ends_with(".md");
        if !page && !path.ends_with(".rs") {
            continue;
        }
        let mut fenced = false;
        for (n, line) in text.lines().enumerate() {
            let Some(words) = (if page { Some(line) } else { comment(line) }) else {
                fenced = false;
                continue;
            };
            if words.trim_start().starts_with("```") {
                fenced = !fenced;
            }
            let as_it_is = fenced || ["|", "#", "    "].iter().any(|start| words.starts_with(start));
            let columns = line.chars().count();
            if columns > MOST && !as_it_is {
                findings.push(Finding::error(
                    format!("{path}:{}", n + 1),
                    format!("{columns} columns, more than {MOST}"),
                ));
            }
        }
    }
    findings
}

/// What a line that is a comment says.
fn comment(line: &str) -> Option<&str> {
    let after = line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']);
    Some(after.strip_prefix(' ').unwrap_or(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_long_lines_of_prose() {
        let long = "word ".repeat(30);
        let found = |path: &str, text: String| check(&[(path.to_owned(), text)]).len();
        assert_eq!(found("a.md", format!("{long}\n- {long}\n")), 2);
        assert_eq!(found("a.md", format!("| {long} |\n# {long}\n    {long}\n```\n{long}\n```\n")), 0);
        assert_eq!(found("a.rs", format!("//! {long}\nfn a() {{}}\n    // {long}\n")), 2);
        assert_eq!(found("a.rs", format!("let a = \"{long}\";\n/// ```text\n/// {long}\n/// ```\n")), 0);
        // A fence that nobody closed ends with its comment.
        assert_eq!(found("a.rs", format!("//! ```\n\n/// {long}\n")), 1);
        assert_eq!(found("a.sh", format!("# {long}\n")), 0);
    }
}
