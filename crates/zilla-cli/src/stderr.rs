//! Standard error.
//!
//! The standard library's `eprint!` and `eprintln!` panic where nobody reads any more
//! (`zfs get 2>&1 | true`). The two of these names here take their place in the whole crate: what
//! cannot be said is lost, and the command goes on to its own exit code, so that a warning that
//! nobody reads does not end an import half-way.

use std::fmt::Arguments;
use std::io::Write;

pub fn put(text: Arguments<'_>) {
    // There is nobody to tell.
    let _ = std::io::stderr().lock().write_fmt(text);
}

macro_rules! eprint {
    ($($text:tt)*) => { $crate::stderr::put(format_args!($($text)*)) };
}

macro_rules! eprintln {
    () => { $crate::stderr::put(format_args!("\n")) };
    ($($text:tt)*) => { $crate::stderr::put(format_args!("{}\n", format_args!($($text)*))) };
}
