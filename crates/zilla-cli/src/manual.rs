//! `help TOPIC`: the manual page of a command or concept, or the command's usage where no manual is
//! installed.
//!
//! The pages are `docs/man`. Pages that lie beside an installed program (`PREFIX/share/man`) are
//! found without any setting.

use std::process::{Command, Stdio};

/// Shows the page of a command of `program` (`zpool`, `zfs`), or of a concept. Whether there is
/// one.
pub fn show(program: &str, topic: &str) -> bool {
    let is_word = topic.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') && !topic.starts_with('-');
    // Not the page of the bare word: other programs have commands called `set` or `list`.
    let whole = if topic.starts_with(program) { topic.to_owned() } else { format!("{program}{topic}") };
    is_word && [format!("{program}-{topic}"), whole].iter().any(|page| man(page))
}

fn man(page: &str) -> bool {
    let mut man = Command::new("man");
    let exe = std::env::current_exe().and_then(|exe| exe.canonicalize()).unwrap_or_default();
    let beside = exe.ancestors().nth(2).map(|prefix| prefix.join("share/man"));
    if let Some(pages) = beside.filter(|dir| dir.join("man8").is_dir()) {
        // An empty part stands for the places that man knows itself.
        man.env("MANPATH", format!("{}:", pages.display()));
    }
    man.arg(page).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn page(name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// The letters of options in a usage text.
    fn letters_of_usage(usage: &str) -> BTreeSet<char> {
        let words = usage.split([' ', '[', ']', '|', '<', '>', '(', ')', '\n', '\t']);
        let options = words.filter_map(|w| w.strip_prefix('-')).filter(|w| !w.starts_with('-'));
        options.flat_map(str::chars).filter(char::is_ascii_alphanumeric).collect()
    }

    /// The letters of options that a page has entries for.
    fn letters_of_page(page: &str) -> BTreeSet<char> {
        let mut letters = BTreeSet::new();
        for line in page.lines().filter_map(|l| l.strip_prefix(".It ")) {
            let mut flag = false;
            for word in line.split_whitespace() {
                match word {
                    "Fl" => flag = true,
                    "Ar" | "Cm" | "Ns" | "Op" => flag = false,
                    _ if flag && !word.starts_with('-') => letters.extend(word.chars()),
                    _ => {}
                }
            }
        }
        letters.retain(char::is_ascii_alphanumeric);
        letters
    }

    #[test]
    fn every_command_has_a_page_with_each_of_its_options() {
        for (program, commands) in [("zpool", crate::zpool::COMMANDS), ("zfs", crate::zfs::COMMANDS)] {
            for command in commands.iter().flatten().filter(|c| c.run.is_some()) {
                let name = format!("{program}-{}.8", command.name);
                let page = page(&name);
                assert!(page.contains("\n.Nd "), "{name} has no heading");
                let wanted = letters_of_usage(command.usage);
                let has = letters_of_page(&page);
                let missing: Vec<_> = wanted.difference(&has).collect();
                assert!(missing.is_empty(), "{name} says nothing of {missing:?}");
            }
        }
    }

    #[test]
    fn the_debugger_has_a_page_with_each_of_its_options() {
        let (wanted, has) = (letters_of_usage(crate::zdb::USAGE), letters_of_page(&page("zdb.8")));
        let missing: Vec<_> = wanted.difference(&has).collect();
        assert!(missing.is_empty(), "zdb.8 says nothing of {missing:?}");
    }

    #[test]
    fn every_page_that_is_referred_to_is_there() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            for line in page(&name).lines().filter_map(|l| l.strip_prefix(".Xr ")) {
                let mut words = line.split_whitespace();
                let (to, section) = (words.next().unwrap(), words.next().unwrap());
                if to.starts_with('z') {
                    page(&format!("{to}.{section}"));
                }
            }
        }
    }

    #[test]
    fn a_topic_that_is_no_word_is_never_given_to_man() {
        for topic in ["", "-k", "--pager=sh", "../x", "a b", "a;b"] {
            assert!(!show("zpool", topic) || topic.is_empty(), "{topic}");
        }
        assert!(!show("zpool", "there-is-no-such-topic"));
    }

    #[test]
    fn letters_are_read() {
        let usage = "\tlist [-gH] [-o property[,...]] [-j [--json-int]] [-T d|u] <a|-b> [interval]\n";
        assert_eq!(letters_of_usage(usage), BTreeSet::from(['g', 'H', 'o', 'j', 'T', 'b']));
        let page = ".Op Fl z\n.It Fl g , H\n.It Fl o Ar x\n.It Fl T Cm d | u\n.It Fl -json-int\n";
        assert_eq!(letters_of_page(page), BTreeSet::from(['g', 'H', 'o', 'T']));
    }
}
