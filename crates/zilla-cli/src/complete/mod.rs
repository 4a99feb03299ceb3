//! `zilla complete`: what a shell may put in place of the word before the cursor.
//!
//! A shell's script ([`SCRIPTS`]) is a few lines that ask this program with the words typed so far,
//! so that nothing in it can go stale: commands, options and operands come from the usage texts of
//! the tables of commands ([`usage`]), properties and their values from the tables that judge them,
//! names from the daemon ([`live`]). A shell that waits is worse than one that does not complete:
//! the daemon is never started for this, and is waited for two seconds at most.

mod live;
mod usage;

use crate::cx::{Command, Cx, Run};
use live::{Live, Names};
use usage::Usage;
use zilla_control::props::{DATASET_PROPS, POOL_PROPS, PropDesc};

/// By shell.
const SCRIPTS: &[(&str, &str)] = &[
    ("bash", include_str!("zilla.bash")),
    ("zsh", include_str!("zilla.zsh")),
    ("fish", include_str!("zilla.fish")),
];

/// Before the words that a shell's script hands over; any of the programs answers.
pub const WORD: &str = "_complete";

const USAGE: &str = "usage:\n\tzilla complete bash | zsh | fish\n";

/// Runs `zilla complete` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla complete", args, |cx, requested| cx.put_usage(USAGE, requested), run)
}

/// Prints what may stand in place of the last of these words.
pub fn answer(words: &[String]) -> u8 {
    let mut out = crate::cx::Out::new();
    // One in a line; what is no line by itself nobody could type either.
    let all = candidates(words, &Names);
    all.iter().filter(|c| !c.contains(char::is_control)).for_each(|candidate| out.line(candidate));
    out.flush();
    0
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let [shell] = args.as_slice() else { return cx.print_usage() };
    match SCRIPTS.iter().find(|(name, _)| name == shell) {
        Some((_, script)) => {
            cx.out.put(script);
            Ok(0)
        }
        None => cx.bad_usage(format!("there is no completion for '{shell}'")),
    }
}

/// What may stand in place of the last of `words`; the first is the program.
fn candidates(words: &[String], live: &impl Live) -> Vec<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some((program, rest)) = words.split_first() else { return Vec::new() };
    let (program, rest) = match (program.rsplit('/').next().unwrap_or_default(), rest) {
        ("zilla", [_]) | ("zilla", []) => {
            let all = crate::TOOLS.iter().map(|(name, ..)| *name).chain(["help", "version"]);
            return fitting(all, rest.first().copied().unwrap_or_default());
        }
        ("zilla", [program, rest @ ..]) => (*program, rest),
        (program, rest) => (program, rest),
    };
    let Some((current, before)) = rest.split_last() else { return Vec::new() };
    match program {
        "zpool" | "pool" => of_program(crate::zpool::COMMANDS, POOL_PROPS, before, current, live),
        "zfs" | "fs" => of_program(crate::zfs::COMMANDS, DATASET_PROPS, before, current, live),
        other => match crate::TOOLS.iter().find(|(name, ..)| *name == other) {
            Some((_, usage, _)) => of_command(&Usage::parse(usage), POOL_PROPS, before, current, live),
            None => Vec::new(),
        },
    }
}

fn of_program(
    commands: &[Option<Command>],
    props: &[PropDesc],
    before: &[&str],
    current: &str,
    live: &impl Live,
) -> Vec<String> {
    let working = || commands.iter().flatten().filter(|c| c.run.is_some());
    match before {
        [] => fitting(working().map(|c| c.name).chain(["help"]), current),
        ["help"] => fitting(working().map(|c| c.name), current),
        [name, before @ ..] => {
            let name = match *name {
                "umount" => "unmount",
                "recv" => "receive",
                "snap" => "snapshot",
                other => other,
            };
            let Some(command) = working().find(|c| c.name == name) else { return Vec::new() };
            let words = command.usage.split_once(name).map_or("", |(_, words)| words);
            of_command(&Usage::parse(words), props, before, current, live)
        }
    }
}

fn of_command(
    usage: &Usage,
    props: &[PropDesc],
    before: &[&str],
    current: &str,
    live: &impl Live,
) -> Vec<String> {
    let asked = usage.asks_for(before);
    if asked.option.is_none() && current.starts_with('-') {
        return fitting(usage.options(), current);
    }
    let mut all: Vec<String> = Vec::new();
    let kinds = match &asked.option {
        Some(argument) => vec![argument.as_str()],
        None => usage.operands.iter().map(String::as_str).collect(),
    };
    for kind in kinds {
        all.extend(of_kind(kind, props, &asked.operands, current, live));
    }
    all.sort();
    all.dedup();
    all
}

/// What a word of a usage text stands for.
fn of_kind(
    kind: &str,
    props: &[PropDesc],
    operands: &[&str],
    current: &str,
    live: &impl Live,
) -> Vec<String> {
    let visible = |p: &&PropDesc| p.visible;
    match kind {
        "pool" => fitting(live.pools(), current),
        "filesystem" | "volume" | "clone-filesystem" => fitting(live.datasets(kind == "volume"), current),
        // Snapshots are many: only those of the dataset that is typed already.
        "snapshot" | "snap" => match current.split_once('@') {
            Some((dataset, _)) => fitting(live.snapshots(dataset), current),
            None => {
                let all = [live.datasets(false), live.datasets(true)].concat();
                fitting(all.into_iter().map(|name| format!("{name}@")), current)
            }
        },
        "vdev" | "device" | "new-device" => {
            let known = operands.first().map(|pool| live.devices(pool)).unwrap_or_default();
            [fitting(known, current), live.files(current)].concat()
        }
        "dir" | "cachefile" | "directory" | "file" | "path" | "root" | "altroot" | "mountpoint" => {
            live.files(current)
        }
        "property" => {
            let (done, last) = current.rsplit_once(',').map_or(("", current), |(done, last)| (done, last));
            let names = fitting(props.iter().filter(visible).map(|p| p.name), last);
            let whole = |name| if done.is_empty() { name } else { format!("{done},{name}") };
            names.into_iter().map(whole).collect()
        }
        "property=value" => assignments(props, current),
        "file-system-property=value" => assignments(DATASET_PROPS, current),
        _ => Vec::new(),
    }
}

/// `name=`, and once it is there the words that the property takes.
fn assignments(props: &[PropDesc], current: &str) -> Vec<String> {
    let settable = props.iter().filter(|p| p.visible && (!p.readonly() || p.setonce()));
    match current.split_once('=') {
        None => fitting(settable.map(|p| format!("{}=", p.name)), current),
        Some((name, _)) => {
            let Some(found) = settable.into_iter().find(|p| p.name == name) else { return Vec::new() };
            fitting(found.index.iter().map(|(word, _)| format!("{name}={word}")), current)
        }
    }
}

fn fitting<T: Into<String>>(all: impl IntoIterator<Item = T>, current: &str) -> Vec<String> {
    all.into_iter().map(Into::into).filter(|word| word.starts_with(current)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Live for Fixed {
        fn pools(&self) -> Vec<String> {
            vec!["tank".into(), "top".into()]
        }
        fn datasets(&self, volumes: bool) -> Vec<String> {
            let names: &[&str] = if volumes { &["tank/v"] } else { &["tank", "tank/home"] };
            names.iter().map(|n| (*n).to_owned()).collect()
        }
        fn snapshots(&self, dataset: &str) -> Vec<String> {
            vec![format!("{dataset}@monday"), format!("{dataset}@tuesday")]
        }
        fn devices(&self, pool: &str) -> Vec<String> {
            vec![format!("/dev/{pool}-a")]
        }
        fn files(&self, current: &str) -> Vec<String> {
            fitting(["/dev/sdz"], current)
        }
    }

    /// What somebody calls a file or device is put on the line as a word, and nothing that is run.
    #[test]
    fn a_name_is_a_word_for_bash_whatever_it_says() {
        let dir = tempfile::tempdir().unwrap();
        let script = r#"
            source "$0"
            printf '%s\n' '#!/bin/sh' 'printf "%s\n" "\$(touch pwned);b c" "tank/a b@x=\`id\`" tank/home@m,n%' > zpool
            chmod 755 zpool; PATH=$PWD:$PATH
            ask() { COMP_LINE=$1; COMP_POINT=${#1}; COMPREPLY=(); _zilla; printf '%s\n' "${COMPREPLY[@]}"; }
            ask 'zpool x '; ask 'zpool x tank/a\ b@'
        "#;
        let file = dir.path().join("zilla.bash");
        std::fs::write(&file, SCRIPTS[0].1).unwrap();
        let mut bash = std::process::Command::new("bash");
        bash.args(["--norc", "-c", script]).arg(&file).current_dir(dir.path());
        let done = match bash.output() {
            Ok(done) => done,
            Err(e) => {
                assert!(std::env::var_os("CI").is_none(), "this test needs bash: {e}");
                return eprintln!("not run: no bash here");
            }
        };
        let text = String::from_utf8(done.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let quoted = [r"\$\(touch\ pwned\)\;b\ c", r"tank/a\ b@x=\`id\`", "tank/home@m,n%"];
        assert_eq!(lines[..3], quoted, "{text}");
        // Behind what bash takes for the end of a word.
        assert_eq!(lines[4], r"x=\`id\`", "{text}");
        assert!(!dir.path().join("pwned").exists());
    }

    fn complete(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        candidates(&words, &Fixed)
    }

    #[test]
    fn commands_are_those_that_work() {
        assert!(complete("zpool ").contains(&"scrub".to_owned()));
        assert!(complete("zpool ").contains(&"split".to_owned()));
        assert_eq!(complete("zpool scr"), ["scrub"]);
        assert_eq!(complete("zilla zpool scr"), ["scrub"]);
        assert_eq!(complete("/usr/bin/zfs help snap"), ["snapshot"]);
        assert_eq!(complete("zilla do"), ["doctor"]);
        assert_eq!(complete("zilla doctor -"), ["-j"]);
        assert!(complete("zilla nonsense x").is_empty() && complete("zpool nonsense x").is_empty());
    }

    #[test]
    fn operands_are_live_names_of_what_the_usage_asks_for() {
        assert_eq!(complete("zpool scrub "), ["tank", "top"]);
        assert_eq!(complete("zpool scrub -w to"), ["top"]);
        assert_eq!(complete("zpool offline tank /dev/t"), ["/dev/tank-a"]);
        assert_eq!(complete("zpool create new mirror /dev/s"), ["/dev/sdz"]);
        assert_eq!(complete("zfs destroy tank/"), ["tank/home", "tank/home@", "tank/v", "tank/v@"]);
        assert_eq!(complete("zfs rollback tank/home@m"), ["tank/home@monday"]);
        assert_eq!(complete("zfs snap tank/h"), ["tank/home", "tank/home@"]);
    }

    #[test]
    fn options_and_their_arguments_come_from_the_usage() {
        assert!(complete("zpool list -").contains(&"-H".to_owned()));
        assert!(complete("zpool status --js").contains(&"--json".to_owned()));
        assert_eq!(complete("zpool list -o alloc"), ["allocated"]);
        assert_eq!(complete("zfs list -o name,mountp"), ["name,mountpoint"]);
        assert_eq!(complete("zfs set compress"), ["compression="]);
        assert!(complete("zfs set compression=z").contains(&"compression=zstd".to_owned()));
        assert_eq!(complete("zfs create -o ati"), ["atime="]);
        assert!(complete("zpool create -O comp").contains(&"compression=".to_owned()));
        assert_eq!(complete("zpool import -d /dev/s"), ["/dev/sdz"]);
        assert!(complete("zfs set used").is_empty(), "nobody can set it");
    }

    #[test]
    fn every_command_that_works_completes_something() {
        for (program, commands) in [("zpool", crate::zpool::COMMANDS), ("zfs", crate::zfs::COMMANDS)] {
            for command in commands.iter().flatten().filter(|c| c.run.is_some()) {
                let after = |word: &str| complete(&format!("{program} {} {word}", command.name));
                assert!(!after("").is_empty() || !after("-").is_empty(), "{program} {}", command.name);
            }
        }
    }
}
