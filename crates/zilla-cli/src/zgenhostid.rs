//! `zgenhostid`: gives the machine the number by which others know its pools.
//!
//! What it writes are four bytes in the machine's order, as gethostid(3) reads them. A file that is
//! there is overwritten by `-f` only: pools say which number they were last used with.

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use std::io::Read;
use std::path::Path;

const DEFAULT: &str = "/etc/hostid";
/// Digits of a number.
const DIGITS: usize = 8;
pub const WORDS: &str = "[-fh] [-o file] [hostid]";

fn usage(cx: &mut Cx, requested: bool) {
    let text = format!(
        "usage: zgenhostid {WORDS}\n\n\
         \x20 -f\t\t overwrite the file\n\
         \x20 -h\t\t print this\n\
         \x20 -o file\t write to this file instead of {DEFAULT}\n\n\
         The hostid has {DIGITS} hexadecimal digits; without one, or of 0, a random one is made.\n\
         No two of your systems may have the same.\n"
    );
    cx.put_usage(&text, requested);
}

/// Runs `zgenhostid` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zgenhostid", args, usage, run)
}

/// As OpenZFS's ends for whatever reason.
fn wrong<T>(cx: &mut Cx) -> Result<T, Exit> {
    usage(cx, false);
    Err(Exit(1))
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "fo:h", &[]);
    let (mut force, mut path) = (false, DEFAULT.to_owned());
    for option in options {
        match option {
            Opt::Flag('f', _) => force = true,
            Opt::Flag('o', file) => path = file,
            Opt::Flag(..) => return wrong(cx),
            Opt::Missing(letter) => {
                cx.err(format!("zgenhostid: option requires an argument -- '{letter}'"));
                return wrong(cx);
            }
            Opt::Unknown('\0', word) => {
                cx.err(format!("zgenhostid: unrecognized option '{word}'"));
                return wrong(cx);
            }
            Opt::Unknown(letter, _) => {
                cx.err(format!("zgenhostid: invalid option -- '{letter}'"));
                return wrong(cx);
            }
        }
    }
    let given = match operands.first() {
        None => 0,
        Some(text) => match number(text) {
            Some(n) => n,
            None => {
                cx.err("Numerical result out of range");
                return wrong(cx);
            }
        },
    };
    if !force && Path::new(&path).is_file() {
        cx.err(format!("{path}: File exists"));
        return Ok(1);
    }
    let written = random(given).and_then(|id| std::fs::write(&path, id.to_ne_bytes()));
    if let Err(e) = written {
        cx.err(format!("zgenhostid: cannot write '{path}': {e}"));
        return Ok(1);
    }
    Ok(0)
}

fn number(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let right = digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit());
    right.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

/// The number, or another than 0 in place of it.
fn random(mut id: u32) -> std::io::Result<u32> {
    while id == 0 {
        let mut bytes = [0; 4];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        id = u32::from_ne_bytes(bytes);
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> u8 {
        main(words.iter().map(|w| (*w).to_owned()).collect())
    }

    #[test]
    fn a_number_is_written_once_and_again_only_by_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hostid");
        let file = path.to_str().unwrap();
        let now = || u32::from_ne_bytes(std::fs::read(&path).unwrap().try_into().unwrap());
        assert_eq!(words(&["-o", file, "0x0123abCD"]), 0);
        assert_eq!(now(), 0x0123_abcd);
        assert_eq!((words(&["-o", file, "deadbeef"]), now()), (1, 0x0123_abcd));
        assert_eq!((words(&["-fo", file, "deadbeef"]), now()), (0, 0xdead_beef));
        for text in ["1", "0x123456789", "0123456g", "+1234567", ""] {
            assert_eq!((words(&["-fo", file, text]), now()), (1, 0xdead_beef), "{text}");
        }
        assert_eq!(words(&["-fo", file, "00000000"]), 0);
        assert!(now() != 0 && now() != 0xdead_beef);
        for wrong in [&["-h"][..], &["-o"], &["-x"]] {
            assert_eq!(words(wrong), 1);
        }
    }
}
