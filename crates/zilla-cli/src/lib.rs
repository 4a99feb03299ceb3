//! The commands: `zpool` and `zfs` as OpenZFS has them, and `zilla` that is all of them.
//!
//! A command parses its arguments ([`args`]), asks the daemon for facts ([`cx`]) and prints them ([`fmt`]).
//! Nothing here knows how a pool works; everything here knows what OpenZFS prints: options, columns, sentences
//! and exit codes are its, so that habits, scripts and its test suite go on working. Exit codes: 0 done,
//! 1 failed, 2 wrong usage or not supported by zilla yet.
//!
//! One program with several names: the name it was called by chooses; `zilla pool list` and `zilla zpool list`
//! work where no links were made. There is no async runtime here: a command starts, talks to the daemon over
//! one socket and ends.

pub mod args;
pub mod cx;
pub mod fmt;
pub mod zfs;
pub mod zpool;

use std::process::ExitCode;

/// Runs the command of the given name, or the one the program was called by.
pub fn main(name: Option<&'static str>) -> ExitCode {
    let mut words = Vec::new();
    for word in std::env::args_os() {
        match word.into_string() {
            Ok(word) => words.push(word),
            Err(word) => {
                eprintln!("argument '{}' is not UTF-8", word.to_string_lossy());
                return ExitCode::from(2);
            }
        }
    }
    let called = words.first().map(String::as_str).unwrap_or("zilla");
    let called = called.rsplit('/').next().unwrap_or(called).to_owned();
    let mut rest: Vec<String> = words.into_iter().skip(1).collect();
    let name = match name {
        Some(name) => name,
        None => match tool(&called) {
            Some(name) => name,
            None => match rest.first().map(String::as_str) {
                Some("pool" | "zpool") => {
                    rest.remove(0);
                    "zpool"
                }
                Some("fs" | "zfs") => {
                    rest.remove(0);
                    "zfs"
                }
                other => return zilla(other),
            },
        },
    };
    let code = match name {
        "zpool" => zpool::main(rest),
        _ => zfs::main(rest),
    };
    ExitCode::from(code)
}

fn tool(name: &str) -> Option<&'static str> {
    match name {
        "zpool" => Some("zpool"),
        "zfs" => Some("zfs"),
        _ => None,
    }
}

/// `zilla` by its own name.
fn zilla(word: Option<&str>) -> ExitCode {
    match word {
        Some("version" | "-V" | "--version") => {
            println!("{}", fmt::version());
            ExitCode::SUCCESS
        }
        Some("help" | "-?" | "-h" | "--help") => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            if let Some(word) = word {
                eprintln!("unrecognized command '{word}'");
            } else {
                eprintln!("missing command");
            }
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

const USAGE: &str = "usage: zilla zpool command args ...
       zilla zfs command args ...
       zilla version
";
