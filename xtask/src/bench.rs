//! Runs the benchmarks. They are a program of their own (`bench/`), which needs the engine; this
//! only builds it in release, with the daemon and the commands that it measures, and calls it.

use std::path::Path;
use std::process::{Command, ExitCode};

pub fn main(root: &Path, args: &[&str]) -> ExitCode {
    let cargo = |args: &[&str]| {
        let status = Command::new("cargo").args(args).current_dir(root).status();
        match status {
            Ok(s) => s.success(),
            Err(e) => {
                eprintln!("cargo: {e}");
                false
            }
        }
    };
    let packages = ["-p", "zilla-bench", "-p", "zilla-daemon", "-p", "zilla-cli"];
    let run = ["run", "--release", "--quiet", "-p", "zilla-bench", "--", "run"];
    if cargo(&[&["build", "--release", "--quiet"], &packages[..]].concat())
        && cargo(&[&run[..], args].concat())
    {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
