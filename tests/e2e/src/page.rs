//! Pages of the documentation whose commands are run as they stand there.
//!
//! A block after `<!-- run -->` is run. One of `sh` is a script. One of `console` is a session: a
//! line that begins with `$ ` is a command, and so are the lines after it that begin with `> `;
//! what stands below is what must be printed.

use crate::world::{Done, World, finish};
use std::process::Command;

/// What stands for a world's folder in the output on a page.
const FOLDER: &str = "$PWD";
/// What stands for anything: alone on a line for lines, else for a part of its line.
const ANYTHING: &str = "...";

/// The blocks of a kind that are to be run, joined.
pub fn blocks(page: &str, kind: &str) -> String {
    let begin = format!("<!-- run -->\n```{kind}\n");
    page.split(begin.as_str()).skip(1).map(|b| b.split("```").next().unwrap_or_default()).collect()
}

/// Runs a script in a world's folder, with our commands first on the path. The first command that
/// fails ends it.
#[track_caller]
pub fn run(world: &World, script: &str) -> Done {
    let ours = std::path::PathBuf::from(world.command("zpool").get_program());
    let folder = ours.parent().map(|p| p.display().to_string()).unwrap_or_default();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", script]).current_dir(world.path());
    bash.env("PATH", path).env("ZILLA_DIR", world.state()).env("LC_ALL", "C").env("TZ", "UTC");
    finish(bash)
}

/// A command of a session, and the lines that it must print.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    pub command: String,
    pub printed: Vec<String>,
}

pub fn steps(session: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in session.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), printed: Vec::new() });
        } else if let Some(step) = steps.last_mut() {
            match line.strip_prefix("> ") {
                Some(more) if step.printed.is_empty() => step.command += &format!("\n{more}"),
                _ => step.printed.push(line.to_owned()),
            }
        }
    }
    for step in &mut steps {
        while step.printed.last().is_some_and(String::is_empty) {
            step.printed.pop();
        }
    }
    steps
}

/// Runs a command of a session; a panic unless it succeeds and prints what it must.
#[track_caller]
pub fn follow(world: &World, step: &Step) {
    let done = run(world, &step.command);
    assert_eq!(done.code, 0, "{done}");
    let printed = (done.stdout + &done.stderr).replace(&world.path().display().to_string(), FOLDER);
    let (wanted, found) = (plain(&step.printed.join("\n")), plain(&printed));
    assert!(
        agrees(&wanted, &found),
        "$ {}\n-- should print\n{}\n-- but printed\n{}\n--",
        step.command,
        wanted.join("\n"),
        found.join("\n")
    );
}

/// Lines without what depends on how long a folder's name is: a column's width is one blank; the
/// indentation stays.
fn plain(text: &str) -> Vec<String> {
    let line = |l: &str| {
        let depth = l.len() - l.trim_start().len();
        let words: Vec<&str> = l.split_whitespace().collect();
        l[..depth].replace('\t', "        ") + &words.join(" ")
    };
    let mut lines: Vec<String> = text.lines().map(line).collect();
    while lines.last().is_some_and(|l| l.trim().is_empty()) {
        lines.pop();
    }
    lines
}

fn agrees(wanted: &[String], found: &[String]) -> bool {
    match wanted.split_first() {
        None => found.is_empty(),
        Some((first, rest)) if first.trim() == ANYTHING => {
            (0..=found.len()).any(|n| agrees(rest, &found[n..]))
        }
        Some((first, rest)) => {
            found.split_first().is_some_and(|(line, after)| fits(first, line) && agrees(rest, after))
        }
    }
}

/// Whether a line is as a page has it.
fn fits(wanted: &str, line: &str) -> bool {
    let Some((head, mut rest)) = wanted.split_once(ANYTHING) else { return wanted == line };
    let Some(mut line) = line.strip_prefix(head) else { return false };
    while let Some((part, more)) = rest.split_once(ANYTHING) {
        let Some(at) = line.find(part) else { return false };
        line = &line[at + part.len()..];
        rest = more;
    }
    line.ends_with(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_commands_and_what_they_print() {
        let page = "text\n<!-- run -->\n```console\n$ one\n> more\nout\n  > put\n\n$ two\n```\n```console\n$ no\n```\n";
        let step = |command: &str, printed: &[&str]| Step {
            command: command.into(),
            printed: printed.iter().map(|l| (*l).to_owned()).collect(),
        };
        let found = steps(&blocks(page, "console"));
        assert_eq!(found, [step("one\nmore", &["out", "  > put"]), step("two", &[])]);
        assert_eq!(blocks(page, "sh"), "");
    }

    #[test]
    fn what_varies_may_be_left_out_and_nothing_else() {
        let same = |wanted: &str, found: &str| agrees(&plain(wanted), &plain(found));
        assert!(same("\ta  b\n", "\ta b\n\n"));
        assert!(!same("\ta  b\n", "  a b\n"), "the indentation");
        assert!(same("x ... y ... z", "x 1 y 22 z"));
        assert!(!same("x ... y ... z", "x 1 z"));
        assert!(!same("x ... y", "x 1 y 2"));
        assert!(same("a\n...\nd", "a\nb\nc\nd") && same("a\n...\nd", "a\nd"));
        assert!(!same("a\n...\nd", "a\nb\nc") && !same("a", "a\nb") && !same("a\nb", "a"));
    }
}
