//! The commands: `zpool`, `zfs` and `zdb` as OpenZFS has them, and `zilla` that is all of them.
//!
//! A command parses its arguments ([`args`]), asks the daemon for facts ([`cx`]) and prints them ([`fmt`]).
//! Nothing here knows how a pool works but [`zdb`], which looks into pools that no daemon has; everything here knows what OpenZFS
//! prints: options, columns, sentences and exit codes are its, so that habits, scripts and its test suite go on working. Exit codes: 0
//! done, 1 failed, 2 wrong usage or not supported by zilla yet.
//!
//! All commands and the daemon are one program, `zilla`, which goes by the name it was called by; `zilla pool list` and
//! `zilla zpool list` work where no links were made. A command has no async runtime: it starts,
//! talks to the daemon over one socket and ends.

pub mod arcstat;
pub mod args;
pub mod cx;
pub mod fmt;
pub mod manual;
mod material;
pub mod mount_helper;
pub mod zdb;
pub mod zfs;
pub mod zilstat;
pub mod zpool;
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

/// Runs the command that the program was called by, or that its first argument names.
pub fn main() -> ExitCode {
    let words = match words() {
        Ok(words) => words,
        Err(code) => return code,
    };
    let called = words.first().map(String::as_str).unwrap_or("zilla");
    let called = called.rsplit('/').next().unwrap_or(called);
    if let Some(tool) = tool(called) {
        return ExitCode::from(tool(words.into_iter().skip(1).collect()));
    }
    let first = words.get(1).map(String::as_str);
    match first.and_then(tool) {
        Some(tool) => ExitCode::from(tool(words.into_iter().skip(2).collect())),
        None => zilla(first),
    }
}

fn tool(name: &str) -> Option<Tool> {
    match name {
        "zpool" | "pool" => Some(zpool::main),
        "zfs" | "fs" => Some(zfs::main),
        "zdb" => Some(zdb::main),
        "zillad" => Some(zilla_daemon::command::main),
        "arcstat" => Some(arcstat::main),
        "zilstat" => Some(zilstat::main),
        "zvol" => Some(zvol::main),
        "mount.zfs" => Some(mount_helper::main),
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
       zilla zdb [options] pool ...
       zilla arcstat [-hpv] [-f fields] [-s separator] [pool] [interval [count]]
       zilla zilstat [-dHpl] [pool|dataset] [interval [count]]
       zilla zvol files | attach [-r] volume | detach volume
       zilla version
";
