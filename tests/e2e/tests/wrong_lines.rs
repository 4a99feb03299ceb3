//! Wrong command lines: each ends with the exit code and the words of OpenZFS 2.3.2's own programs.
//!
//! `wrong_lines.tsv` has what those programs answered where there were no pools: command line, exit
//! code, whether the usage follows, and what comes before it, with `\n` between lines. Nothing in
//! it was written by hand. Where zilla answers otherwise on purpose the line is not in it.

use zilla_e2e::{Need, World, can};

const TABLE: &str = include_str!("wrong_lines.tsv");

#[test]
fn who_does_not_listen_gets_the_exit_code_all_the_same() {
    let world = World::new();
    for (program, words, code) in [
        ("zfs", &["get"][..], 2),
        ("zpool", &["frob"], 2),
        ("zilla", &["frob"], 2),
        ("zstream", &["dump", "x"], 1),
    ] {
        let (reader, writer) = std::io::pipe().expect("pipe");
        drop(reader);
        let mut command = world.command(program);
        let status = command.args(words).stdout(writer.try_clone().expect("pipe")).stderr(writer).status();
        assert_eq!(status.expect("run").code(), Some(code), "{program} {words:?}");
    }
}

#[test]
fn wrong_lines_are_answered_as_openzfs_answers_them() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let mut wrong = Vec::new();
    for row in TABLE.lines() {
        let [line, code, usage, words] = row.split('\t').collect::<Vec<_>>()[..] else {
            panic!("not four columns: {row}")
        };
        let mut parts = line.split(' ');
        let program = parts.next().unwrap();
        let done = world.run(program, &parts.collect::<Vec<_>>());
        let said = done.stderr.split("usage:").next().unwrap();
        let found =
            (done.code.to_string(), done.stderr.contains("usage:").to_string(), said.replace('\n', "\\n"));
        if found != (code.to_owned(), usage.to_owned(), words.to_owned()) {
            wrong.push(format!("{line}\n  wanted {code} {usage} {words}\n  found  {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), TABLE.lines().count(), wrong.join("\n"));
}
