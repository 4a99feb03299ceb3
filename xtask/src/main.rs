//! The project's own tools, so that nobody needs to know a command line by heart: `cargo xtask tidy
//! | test | fuzz | sim | soak | hostile | bench | sbom`.
//!
//! A tool that needs the engine is a program of the crate it belongs to and is only called from
//! here, so that the house style can be checked in seconds on a tree that does not build.

mod bench;
mod fuzz;
mod sbom;
mod sim;
mod test;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy               check the house style
       cargo xtask test                run every test, a test program a core
       cargo xtask fuzz [--seconds N]  run every fuzz target, N seconds each (default 60)
       cargo xtask bench [options]     zilla beside its peers, by turns (--runs N, --only TEXT, --no-peers, --part P)
       cargo xtask sim [--seed N] [--layout single|mirror|raidz1|raidz2] [--ops N] [--cut K | --step K --first K | --runs M | --full M]
                                       cut the power of simulated pools, or do it again
       cargo xtask soak --hours N      random runs of the simulator, other ones each time
       cargo xtask hostile [--seed N] [--runs M] [--jobs J] [--only BASE]
                                       give the engine pools that an attacker changed, all checksums right
       cargo xtask sbom                what the program is made of, as CycloneDX
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tidy"] => tidy::main(&root()),
        ["test"] => test::main(&root()),
        ["fuzz"] => fuzz::main(&root(), 60),
        ["fuzz", "--seconds", n] => match n.parse() {
            Ok(seconds) => fuzz::main(&root(), seconds),
            Err(_) => usage(),
        },
        ["sbom"] => sbom::main(&root()),
        ["sim", args @ ..] => sim::main(&root(), "zilla-sim", args),
        ["soak", "--hours", hours] => {
            // Other runs each time: what is wrong for one seed in a million is found in the end.
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let seed = now.map_or(0, |t| t.as_secs()).to_string();
            sim::main(&root(), "zilla-sim", &["--hours", hours, "--seed", &seed])
        }
        ["hostile", args @ ..] => sim::main(&root(), "hostile", args),
        ["bench", args @ ..] => bench::main(&root(), args),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprint!("{USAGE}");
    ExitCode::from(2)
}

/// The workspace's folder: the parent of this package's.
fn root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}
