//! Runs the benchmarks. They are a program of their own (`bench/`), which needs the engine; this only calls it, in a release build.

use std::path::Path;
use std::process::{Command, ExitCode};

pub fn main(root: &Path, args: &[&str]) -> ExitCode {
    let status = Command::new("cargo")
        .args(["run", "--release", "--quiet", "-p", "zilla-bench", "--", "run"])
        .args(args)
        .current_dir(root)
        .status();
    match status {
        Ok(s) if s.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("cargo: {e}");
            ExitCode::FAILURE
        }
    }
}
