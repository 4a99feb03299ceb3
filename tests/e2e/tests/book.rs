//! The book's commands work as they stand there, and its links lead somewhere.
//!
//! A block after `<!-- run -->` is run; those of a chapter one after the other, in one folder with
//! one daemon. Other blocks need what a test has not: another machine, QEMU, systemd.

use std::path::{Path, PathBuf};
use zilla_e2e::{Need, World, can, page};

fn book() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src")
}

fn chapters() -> Vec<(String, String)> {
    let summary = std::fs::read_to_string(book().join("SUMMARY.md")).unwrap();
    let names = summary.lines().filter_map(|l| l.split_once("](")?.1.strip_suffix(')'));
    let read = |name: &str| (name.to_owned(), std::fs::read_to_string(book().join(name)).unwrap());
    names.map(read).collect()
}

#[test]
fn what_the_book_says_works() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let mut ran = 0;
    for (name, text) in chapters() {
        let commands = page::blocks(&text, "sh");
        if commands.is_empty() {
            continue;
        }
        let world = World::new();
        let done = page::run(&world, &commands);
        assert_eq!(done.code, 0, "{name}\n{done}");
        ran += 1;
    }
    assert!(ran >= 5, "{ran} chapters");
}

#[test]
fn links_of_the_book_lead_somewhere() {
    let all = chapters();
    let files = std::fs::read_dir(book()).unwrap().count();
    assert_eq!(all.len() + 1, files, "every chapter is in the summary");
    for (name, text) in all {
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let inside = !target.contains("://") && !file.is_empty();
            assert!(!inside || book().join(file).is_file(), "{name}: {target}");
        }
    }
}
