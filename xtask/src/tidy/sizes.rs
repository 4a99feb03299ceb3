//! One idea a file: 100 to 400 lines, a look at why above that, never more than 700.
//!
//! Tests do not count; where they are longer than 150 lines they have a file of their own.

use super::Finding;
use super::tree::Source;

const LOOK: usize = 400;
const MOST: usize = 700;
const TESTS: usize = 150;

pub fn check(source: &Source) -> Vec<Finding> {
    if source.is_test() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let modules = source.test_modules();
    let tests: usize = modules.iter().map(|m| m.len()).sum();
    let lines = source.text.lines().count() - tests;
    if lines > MOST {
        findings.push(Finding::error(
            &source.path,
            format!("{lines} lines, more than {MOST}: more than one idea"),
        ));
    } else if lines > LOOK {
        findings.push(Finding::warning(
            &source.path,
            format!("{lines} lines, more than {LOOK}: still one idea?"),
        ));
    }
    if let Some(module) = modules.iter().find(|m| m.len() > TESTS) {
        findings.push(Finding::error(
            format!("{}:{}", source.path, module.start + 1),
            format!("{} lines of tests, more than {TESTS}: give them their own tests.rs", module.len()),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_without_tests() {
        let body = "fn a() {}\n".repeat(390);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "    fn b() {}\n".repeat(100));
        assert_eq!(check(&Source::new("crates/a/src/b.rs", &format!("{body}{tests}"))), vec![]);
        let long = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "    fn b() {}\n".repeat(200));
        assert!(check(&Source::new("crates/a/src/b.rs", &long))[0].fatal);
        assert!(!check(&Source::new("crates/a/src/b.rs", &"x\n".repeat(401)))[0].fatal);
        assert!(check(&Source::new("crates/a/src/b.rs", &"x\n".repeat(701)))[0].fatal);
        assert_eq!(check(&Source::new("crates/a/src/b/tests.rs", &"x\n".repeat(701))), vec![]);
    }
}
