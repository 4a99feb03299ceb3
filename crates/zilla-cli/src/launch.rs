//! A command's own file: it becomes `zilla`, called by the command's name.
//!
//! All commands are one program, so that one is linked instead of five. A file for each name lets
//! `target/release/zpool` work straight after `cargo build`; an installation puts links in their
//! place.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Executes the `zilla` that lies beside this program. Returns only when that fails.
pub fn launch(name: &str) -> ExitCode {
    let zilla = match std::env::current_exe().and_then(|exe| exe.canonicalize()) {
        Ok(exe) => exe.with_file_name("zilla"),
        Err(e) => {
            eprintln!("{name}: cannot tell where this program lies: {e}");
            return ExitCode::FAILURE;
        }
    };
    let error = Command::new(&zilla).arg0(name).args(std::env::args_os().skip(1)).exec();
    eprintln!("{name}: cannot run '{}', the program of all commands: {error}", zilla.display());
    ExitCode::FAILURE
}
