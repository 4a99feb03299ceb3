//! Runs the fuzz targets one after the other; a finding is a failure.
//!
//! `fuzz/` is a workspace of its own because its sanitizer flags must not leak into the product's
//! build. It needs `cargo-fuzz` and a nightly compiler; where they are missing this says so and
//! fails rather than passing by doing nothing.

use std::path::Path;
use std::process::{Command, ExitCode};

pub fn main(root: &Path, seconds: u64) -> ExitCode {
    let folder = root.join("fuzz/fuzz_targets");
    let targets = match targets(&folder) {
        Ok(targets) if !targets.is_empty() => targets,
        Ok(_) => return fail(&format!("no fuzz targets in {}", folder.display())),
        Err(e) => return fail(&format!("{}: {e}", folder.display())),
    };
    let found = Command::new("cargo").args(["fuzz", "--version"]).output().is_ok_and(|o| o.status.success());
    if !found {
        return fail(
            "cargo-fuzz is missing: cargo install cargo-fuzz (and rustup toolchain install nightly)",
        );
    }
    let mut failed = Vec::new();
    for target in &targets {
        println!("== {target}: {seconds} s");
        let mut args = vec![format!("-max_total_time={seconds}")];
        if target == "commands" {
            // Each run of it prints.
            args.push("-close_fd_mask=3".to_owned());
        }
        let status = Command::new("cargo")
            .args(["+nightly", "fuzz", "run", target, "--"])
            .args(args)
            .current_dir(root)
            .status();
        if !status.is_ok_and(|s| s.success()) {
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() {
        println!("fuzz: {} targets, no finding", targets.len());
        return ExitCode::SUCCESS;
    }
    fail(&format!("findings in {}: see fuzz/artifacts", failed.join(", ")))
}

fn targets(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs")
            && let Some(name) = path.file_stem()
        {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn fail(message: &str) -> ExitCode {
    eprintln!("fuzz: {message}");
    ExitCode::FAILURE
}
