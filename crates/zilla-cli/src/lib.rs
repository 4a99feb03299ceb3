//! The commands: `zpool`, `zfs` and `zdb` as OpenZFS has them, and `zilla` that is all of them.
//!
//! A command parses its arguments ([`args`]), asks the daemon for facts ([`cx`]) and prints them
//! ([`fmt`]). Nothing here knows how a pool works but [`zdb`], which looks into pools that no
//! daemon has; everything here knows what OpenZFS prints: options, columns, sentences and exit
//! codes are its, so that habits, scripts and its test suite go on working. Exit codes: 0 done, 1
//! failed, 2 wrong usage or not supported by zilla yet.
//!
//! All commands and the daemon are one program, `zilla`, which goes by the name it was called by;
//! `zilla pool list` and `zilla zpool list` work where no links were made. A command has no async
//! runtime: it starts, talks to the daemon over one socket and ends.

// Before all others: its macros are theirs too.
#[macro_use]
mod stderr;

mod advise;
mod api;
pub mod arcstat;
mod arcsummary;
pub mod args;
mod clonefile;
mod complete;
pub mod cx;
pub mod doctor;
mod events;
mod fmt;
pub mod manual;
mod material;
pub mod mount_helper;
mod replicate;
pub mod service;
mod terminal;
mod top;
mod trace;
pub mod zdb;
pub mod zed;
pub mod zfs;
pub mod zgenhostid;
pub mod zilstat;
pub mod zinject;
pub mod zpool;
pub mod zstream;
pub mod zvol;

use std::process::ExitCode;

/// What a program does with its arguments; gives its exit code.
type Tool = fn(Vec<String>) -> u8;

fn words() -> Result<Vec<String>, ExitCode> {
    let mut words = Vec::new();
    for word in std::env::args_os() {
        match word.into_string() {
            Ok(word) => words.push(word),
            Err(word) => {
                eprintln!("argument '{}' is not UTF-8", word.to_string_lossy());
                return Err(ExitCode::from(2));
            }
        }
    }
    Ok(words)
}

/// Names that the program itself may have.
const PROGRAMS: &[&str] = &[
    "zpool",
    "zfs",
    "zdb",
    "zstream",
    "zinject",
    "zillad",
    "arcstat",
    "zilstat",
    "zgenhostid",
    "zed",
    "mount.zfs",
    "mount.fuse.zfs",
];

/// Runs the command that the program was called by, or that its first argument names.
pub fn main() -> ExitCode {
    let words = match words() {
        Ok(words) => words,
        Err(code) => return code,
    };
    if let Some((_, typed)) =
        words.split_first().filter(|(_, rest)| rest.first().is_some_and(|w| w == complete::WORD))
    {
        return ExitCode::from(complete::answer(&typed[1..]));
    }
    let called = words.first().map(String::as_str).unwrap_or("zilla");
    let called = called.rsplit('/').next().unwrap_or(called);
    if let Some(tool) = PROGRAMS.contains(&called).then(|| tool(called)).flatten() {
        return ExitCode::from(tool(words.into_iter().skip(1).collect()));
    }
    let first = words.get(1).map(String::as_str);
    match first.and_then(tool) {
        Some(tool) => ExitCode::from(tool(words.into_iter().skip(2).collect())),
        None => zilla(first),
    }
}

/// What `zilla` can be asked for: the word, what follows it, what does it.
pub(crate) const TOOLS: &[(&str, &str, Tool)] = &[
    ("zpool", "command args ...", zpool::main),
    ("zfs", "command args ...", zfs::main),
    ("zdb", "[options] pool ...", zdb::main),
    ("zstream", "command args ...", zstream::main),
    ("zinject", zinject::WORDS, zinject::main),
    ("zillad", "[options]", zilla_daemon::command::main),
    ("arcstat", "[-ahpvxz] [-f fields] [-o file] [-s separator] [pool] [interval [count]]", arcstat::main),
    ("arcsummary", "[-gr] [-s section] [pool]", arcsummary::main),
    ("zilstat", "[-dHpl] [pool|dataset] [interval [count]]", zilstat::main),
    ("zgenhostid", zgenhostid::WORDS, zgenhostid::main),
    ("zed", zed::WORDS, zed::main),
    ("events", "[-f] [pool]", events::main),
    ("advise", "[-j] [-c size] ... [-d disks] [-g file] [-t seconds] pool | -T trace", advise::main),
    ("trace", "record [-f] [-t seconds] pool file", trace::main),
    ("top", "[-n frames] [interval]", top::main),
    ("replicate", replicate::USAGE_WORDS, replicate::main),
    ("clone-file", "file new-file", clonefile::main),
    ("zvol", "files | attach [-r] volume | detach volume", zvol::main),
    ("status", "[-j]", service::status_main),
    ("stop", "", service::stop_main),
    ("doctor", "[-j]", doctor::main),
    ("page", "[-o]", service::page_main),
    ("api", "", api::main),
    ("complete", "bash | zsh | fish", complete::main),
];

/// A program or command by its name or another that it has.
fn tool(name: &str) -> Option<Tool> {
    let name = match name {
        "pool" => "zpool",
        "fs" => "zfs",
        // What mount(8) calls, and people do not.
        "mount.zfs" | "mount.fuse.zfs" => return Some(mount_helper::main),
        other => other,
    };
    TOOLS.iter().find(|(tool, ..)| *tool == name).map(|(.., run)| *run)
}

/// `zilla` by its own name.
fn zilla(word: Option<&str>) -> ExitCode {
    match word {
        Some("version" | "-V" | "--version") => {
            cx::Out::new().say(format!("{}\n", fmt::version()));
            ExitCode::SUCCESS
        }
        Some("help" | "-?" | "-h" | "--help") => {
            cx::Out::new().say(usage());
            ExitCode::SUCCESS
        }
        _ => {
            if let Some(word) = word {
                eprintln!("unrecognized command '{word}'");
            } else {
                eprintln!("missing command");
            }
            eprint!("{}", usage());
            ExitCode::from(2)
        }
    }
}

fn usage() -> String {
    let lines = TOOLS.iter().map(|(name, words, _)| format!("zilla {name} {words}").trim_end().to_owned());
    let lines: Vec<String> = lines.chain(["zilla version".to_owned()]).collect();
    format!("usage: {}\n{FOLDER}", lines.join("\n       "))
}

const FOLDER: &str = "
The daemon that owns the pools is started when it is needed. Its socket, log and list of pools lie in one folder:
ZILLA_DIR, else /var/lib/zilla for root and ~/.local/state/zilla for others, whoever starts it and however (sudo, cron).
";
