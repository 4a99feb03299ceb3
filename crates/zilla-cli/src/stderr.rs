//! Standard error.
//!
//! The standard library's `eprint!` and `eprintln!` panic where nobody reads any more
//! (`zfs get 2>&1 | true`). The two of these names here take their place in the whole crate: what
//! cannot be said is lost, and the command goes on to its own exit code, so that a warning that
//! nobody reads does not end an import half-way.

use crate::terminal::tame;
use std::fmt::Arguments;
use std::io::{IsTerminal, Write};

pub fn put(text: Arguments<'_>) {
    let mut err = std::io::stderr().lock();
    // There is nobody to tell.
    let _ = match err.is_terminal() {
        true => err.write_all(tame(&text.to_string()).as_bytes()),
        false => err.write_fmt(text),
    };
}

macro_rules! eprint {
    ($($text:tt)*) => { $crate::stderr::put(format_args!($($text)*)) };
}

macro_rules! eprintln {
    () => { $crate::stderr::put(format_args!("\n")) };
    ($($text:tt)*) => { $crate::stderr::put(format_args!("{}\n", format_args!($($text)*))) };
}
