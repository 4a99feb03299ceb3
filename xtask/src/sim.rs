//! The simulator's programs, built for speed: a thousand power cuts, or attacks, are a thousand
//! imports.

use std::path::Path;
use std::process::{Command, ExitCode};

pub fn main(root: &Path, program: &str, words: &[&str]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut run = Command::new(cargo);
    run.args(["run", "--quiet", "--profile", "sim", "-p", "zilla-sim", "--bin", program, "--"]);
    run.args(words).current_dir(root);
    match run.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("cargo cannot be run: {e}");
            ExitCode::FAILURE
        }
    }
}
