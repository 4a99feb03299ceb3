//! Floors inside the engine: a folder of zilla-core uses only what lies below it.
//!
//! Each folder's `mod.rs` says which floor it is on (`**Floor 7.**`), and that is where this rule
//! reads it. Files beside the folders (errors, types) are the ground, floor 0. What product code
//! names by `crate::`, in a `use` or in full, is an arrow between folders; it must point down. The
//! few that cannot are listed here, each with its reason; one that is not there any more is a
//! finding too. (Tests may look at anything: what they use does not reach the product.)

use super::Finding;
use super::tree::Source;
use std::collections::{BTreeMap, BTreeSet};

const ENGINE: &str = "crates/zilla-core/src/";

/// How many arrows may point up. Another one is a joint in the wrong place: move it.
const MOST_EXCEPTIONS: usize = 6;

/// From, to, and why it cannot be turned round.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "dmu",
        "zap",
        "a dnode keeps the ZAP that is parsed from its blocks, so that both are forgotten together",
    ),
    ("dmu", "zil", "an open objset keeps its log, which every change of a file must find without a lookup"),
    ("pool", "zil", "the logs of a pool share their counters and what they learn of its devices"),
    ("pool", "scan", "what is freed or snapshotted while a scan runs the scan must hear of"),
    ("zil", "dsl", "a log's header lies in its dataset's objset, and claiming walks all datasets"),
    ("dsl", "zpl", "a pool is created with a file system in it, and space is charged to who owns a file"),
];

pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let engine: Vec<(&str, &Source)> =
        sources.iter().filter_map(|s| Some((s.path.strip_prefix(ENGINE)?, s))).collect();
    let mut floors: BTreeMap<&str, u8> = BTreeMap::new();
    for (path, source) in &engine {
        match path.split_once('/') {
            None => drop(floors.entry(path.trim_end_matches(".rs")).or_insert(0)),
            Some((folder, "mod.rs")) => match floor(&source.text) {
                Some(floor) => drop(floors.insert(folder, floor)),
                None => findings.push(Finding::error(&source.path, "does not say its floor: `**Floor N.**`")),
            },
            Some(_) => {}
        }
    }
    let mut unused: BTreeSet<(&str, &str)> = EXCEPTIONS.iter().map(|(from, to, _)| (*from, *to)).collect();
    for (path, source) in &engine {
        let from = path.split_once('/').map_or(path.trim_end_matches(".rs"), |(folder, _)| folder);
        // The crate's root names what there is.
        let Some(&own) = floors.get(from).filter(|_| from != "lib") else { continue };
        for (line, to) in arrows(source) {
            let Some((&to, &other)) = floors.get_key_value(to.as_str()) else { continue };
            if to == from || other < own || (own == 0 && other == 0) || unused.remove(&(from, to)) {
                continue;
            }
            if !EXCEPTIONS.iter().any(|(f, t, _)| (*f, *t) == (from, to)) {
                let what =
                    format!("{from} (floor {own}) uses {to} (floor {other}): an arrow only points down");
                findings.push(Finding::error(format!("{}:{line}", source.path), what));
            }
        }
    }
    if !engine.is_empty() {
        let gone =
            |(from, to): (&str, &str)| format!("{from} does not use {to} any more: take it off the list");
        findings
            .extend(unused.into_iter().map(|arrow| Finding::error("xtask/src/tidy/floors.rs", gone(arrow))));
    }
    if EXCEPTIONS.len() > MOST_EXCEPTIONS {
        findings.push(Finding::error("xtask/src/tidy/floors.rs", "more exceptions than there may be"));
    }
    findings
}

/// What a folder's essay says.
fn floor(text: &str) -> Option<u8> {
    let (_, rest) = text.lines().filter(|l| l.starts_with("//!")).find_map(|l| l.split_once("**Floor "))?;
    rest.split_once(".**")?.0.parse().ok()
}

/// The line and the first name of each path of product code that begins with `crate::`.
fn arrows(source: &Source) -> Vec<(usize, String)> {
    let lines = source.product_lines();
    let mut found = Vec::new();
    for (i, (number, line)) in lines.iter().enumerate() {
        for (at, _) in line.match_indices("crate::") {
            // `pub(in crate::x)` says who may see something.
            if line[..at].ends_with("in ") {
                continue;
            }
            let rest = &line[at + "crate::".len()..];
            if let Some(group) = rest.strip_prefix('{') {
                let more = lines[i + 1..].iter().map(|(_, l)| *l);
                found.extend(first_names(std::iter::once(group).chain(more)).map(|name| (*number, name)));
            } else {
                found.push((*number, ident(rest)));
            }
        }
    }
    found
}

fn ident(text: &str) -> String {
    text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

/// The first names of the paths in a group, up to the brace that closes it.
fn first_names<'a>(lines: impl Iterator<Item = &'a str>) -> impl Iterator<Item = String> {
    let (mut depth, mut item, mut items) = (1, String::new(), Vec::new());
    'all: for line in lines {
        for c in line.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break 'all;
            }
            if c == ',' && depth == 1 {
                items.push(std::mem::take(&mut item));
            } else {
                item.push(c);
            }
        }
    }
    items.push(item);
    items.into_iter().map(|i| ident(i.trim())).filter(|i| !i.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUSE: &[(&str, &str)] = &[
        ("lib.rs", "pub mod a;"),
        ("error.rs", "use crate::types::X;"),
        ("types.rs", "use crate::error::Y;"),
        ("a/mod.rs", "//! A. **Floor 1.** More.\nuse crate::error::E;"),
        ("b/mod.rs", "//! B. **Floor 2.**\nuse crate::a::A;"),
    ];

    /// The findings of the house with one file more, but for exceptions that it lacks.
    fn messages(path: &str, text: &str) -> Vec<String> {
        let more = (path, text);
        let files = HOUSE.iter().chain([&more]);
        let sources: Vec<Source> = files.map(|(p, t)| Source::new(&format!("{ENGINE}{p}"), t)).collect();
        check(&sources).into_iter().map(|f| f.message).filter(|m| !m.contains("any more")).collect()
    }

    #[test]
    fn arrows_point_down() {
        assert_eq!(messages("b/x.rs", "use crate::{a::A, error::{E, F}};").len(), 0);
        assert_eq!(messages("a/x.rs", "use crate::b::B;").len(), 1);
        assert_eq!(messages("a/x.rs", "use crate::{\n    error::{E, b},\n    b::{B, C},\n};").len(), 1);
        assert_eq!(messages("a/x.rs", "fn f() { crate::b::f(); }").len(), 1);
        assert_eq!(messages("error.rs", "use crate::a::A;").len(), 1);
    }

    #[test]
    fn comments_tests_and_visibility_are_no_arrows() {
        assert_eq!(messages("a/x.rs", "//! [`crate::b`]\npub(in crate::b) fn f() {}\n").len(), 0);
        assert_eq!(messages("a/x.rs", "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n").len(), 0);
        assert_eq!(messages("a/tests.rs", "use crate::b::B;").len(), 0);
    }

    #[test]
    fn a_folder_says_its_floor() {
        assert_eq!(messages("c/mod.rs", "//! C.\n").len(), 1);
        assert_eq!(messages("c/mod.rs", "//! C. **Floor 1.**\nuse crate::a::A;\n").len(), 1, "same floor");
    }

    #[test]
    fn an_exception_that_is_over_is_found() {
        let sources: Vec<Source> =
            HOUSE.iter().map(|(p, t)| Source::new(&format!("{ENGINE}{p}"), t)).collect();
        assert_eq!(check(&sources).len(), EXCEPTIONS.len());
    }
}
