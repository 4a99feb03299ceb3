//! The house style, held by a program so that reviews can be about ideas.
//!
//! Each rule is a file: [`essays`] (every file says why it exists), [`sizes`] (one idea a file),
//! [`layers`] (a dependency points down), [`floors`] (inside the engine too), [`facade`] (where the
//! engine ends), [`seam`] (only `zilla-env` touches the world), [`unsafety`] (`unsafe` only in
//! listed files), [`parsers`] (no `unwrap` where bytes from disk are read), [`licenses`] (what may
//! be linked), [`words`] (nothing unfinished, nothing of somebody's machine), [`columns`] (lines of
//! prose are short). They look at the text of the tree ([`tree`]) and at `cargo metadata`, never at
//! compiled code: a rule must hold on a tree that does not build.
//!
//! A finding names file, line and rule. Errors fail the run; warnings are things to look at.

mod columns;
mod essays;
mod facade;
mod floors;
mod layers;
mod licenses;
mod parsers;
mod seam;
mod sizes;
mod tree;
mod unsafety;
mod words;

use serde_json::Value;
use std::path::Path;
use std::process::{Command, ExitCode};

/// What a rule has to say about a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub place: String,
    pub message: String,
    pub fatal: bool,
}

impl Finding {
    fn error(place: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { place: place.into(), message: message.into(), fatal: true }
    }

    fn warning(place: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { place: place.into(), message: message.into(), fatal: false }
    }
}

pub fn main(root: &Path) -> ExitCode {
    let findings = match check(root) {
        Ok(findings) => findings,
        Err(e) => {
            eprintln!("tidy: {e}");
            return ExitCode::FAILURE;
        }
    };
    for finding in &findings {
        let word = if finding.fatal { "error" } else { "warning" };
        println!("{word}: {}: {}", finding.place, finding.message);
    }
    let errors = findings.iter().filter(|f| f.fatal).count();
    println!("tidy: {errors} errors, {} warnings", findings.len() - errors);
    if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let sources = tree::sources(root)?;
    let metadata = metadata(root)?;
    let mut findings = Vec::new();
    for source in &sources {
        findings.extend(essays::check(source));
        findings.extend(sizes::check(source));
        findings.extend(seam::check(source));
    }
    findings.extend(floors::check(&sources));
    findings.extend(facade::check(&sources));
    findings.extend(unsafety::check(&sources));
    findings.extend(parsers::check(&sources));
    let texts = tree::texts(root)?;
    findings.extend(words::check(&texts));
    findings.extend(columns::check(&texts));
    findings.extend(layers::check(&metadata)?);
    let deny = root.join("deny.toml");
    let deny = std::fs::read_to_string(&deny).map_err(|e| format!("{}: {e}", deny.display()))?;
    findings.extend(licenses::check(&metadata, &deny)?);
    findings.extend(formatting(root)?);
    findings.sort_by(|a, b| (b.fatal, &a.place).cmp(&(a.fatal, &b.place)));
    Ok(findings)
}

fn metadata(root: &Path) -> Result<Value, String> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

fn formatting(root: &Path) -> Result<Option<Finding>, String> {
    let output = Command::new("cargo")
        .args(["fmt", "--all", "--", "--check", "-l"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo fmt: {e}"))?;
    if output.status.success() {
        return Ok(None);
    }
    let files = String::from_utf8_lossy(&output.stdout).trim().replace('\n', ", ");
    Ok(Some(Finding::error("cargo fmt", format!("not formatted: {files}"))))
}
