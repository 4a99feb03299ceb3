//! `zstream`: looks into send streams and changes them, without a daemon and without a pool.
//!
//! Words, output and exit codes are OpenZFS 2.3's, but where that would spoil a stream: one that is
//! cut off, or whose checksums do not fit, is refused instead of being written out with checksums
//! that do. A stream comes from anywhere: a record's head bounds its payload before that is read
//! ([`records`]), so no stream makes this take more than a block and a package's list.

mod dump;
mod list;
mod records;
mod redup;
mod rewrite;

use crate::args::{self, Opt};
use crate::terminal::for_output;
use std::io::IsTerminal;
use zilla_env::strerror;

const USAGE: &str = "usage: zstream command args ...
Available commands are:

\tzstream dump [-vCd] FILE
\t... | zstream dump [-vCd]

\tzstream decompress [-v] [OBJECT,OFFSET[,TYPE]] ...

\tzstream recompress [ -l level] TYPE

\tzstream token resume_token

\tzstream redup [-v] FILE | ...
";

/// Why a command ends early: its exit code. What there is to say has been said.
type Done = Result<(), u8>;

pub fn main(words: Vec<String>) -> u8 {
    let Some((command, rest)) = words.split_first() else { return usage() };
    let done = match command.as_str() {
        "dump" => dump::run(rest),
        "decompress" => rewrite::decompress(rest),
        "recompress" => rewrite::recompress(rest),
        "redup" => redup::run(rest),
        "token" => token(rest),
        _ => Err(usage()),
    };
    done.err().unwrap_or(0)
}

fn usage() -> u8 {
    eprint!("{USAGE}");
    1
}

/// Says why, and what else.
fn failed(why: impl std::fmt::Display) -> u8 {
    eprintln!("{why}");
    1
}

/// Options with their values, and the words after them.
type Parsed = (Vec<(char, String)>, Vec<String>);

/// Takes options apart; `shorts` as getopt has it.
fn options(command: &str, words: &[String], shorts: &str) -> Result<Parsed, u8> {
    let (found, rest) = args::parse(words, shorts, &[]);
    let mut options = Vec::new();
    for option in found {
        match option {
            Opt::Flag(letter, value) => options.push((letter, value)),
            Opt::Missing(letter) => {
                eprintln!("missing argument for '{letter}' option");
                return Err(usage());
            }
            Opt::Unknown(letter, _) => {
                // getopt(3)'s own words, which a colon in front of the letters silences.
                if !shorts.starts_with(':') {
                    let what = if shorts.contains(letter) {
                        "option requires an argument"
                    } else {
                        "invalid option"
                    };
                    eprintln!("{command}: {what} -- '{letter}'");
                }
                eprintln!("invalid option '{letter}'");
                return Err(usage());
            }
        }
    }
    Ok((options, rest))
}

/// Standard input, which a command reads that was given no file.
fn stdin(or_file: bool) -> Result<std::io::StdinLock<'static>, u8> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        let or = if or_file { ", or a file must be\nspecified as a command-line argument." } else { "." };
        return Err(failed(format_args!(
            "Error: The send stream is a binary format and can not be read from a\n\
             terminal.  Standard input must be redirected{or}"
        )));
    }
    Ok(stdin.lock())
}

fn open(file: &str) -> Result<std::fs::File, u8> {
    let opened = std::fs::File::open(file);
    opened.map_err(|e| failed(format_args!("Error while opening file '{file}': {}", strerror(&e))))
}

fn token(words: &[String]) -> Done {
    let Some(text) = words.first() else {
        eprintln!("Need to pass the resume token");
        return Err(usage());
    };
    match zilla_core::send::parse_token_list(text) {
        Ok(list) => {
            let mut out = String::new();
            // Writing to a string does not fail.
            let _ = list.print(&mut out, 5);
            let _ = std::io::Write::write_all(&mut std::io::stdout(), for_output(&out).as_bytes());
            Ok(())
        }
        Err(e) => Err(failed(format_args!("Unable to parse resume token: {e}"))),
    }
}
