//! `zillad`: see the library.

use std::process::ExitCode;
use zilla_control::StateDir;
use zilla_daemon::engine::Engine;
use zilla_daemon::{DaemonError, Handle, Options};

const USAGE: &str = "usage: zillad [--background]

Owns imported pools and serves zpool and zfs, in the foreground until SIGTERM.
ZILLA_DIR names its state folder, ZILLA_LOG what it logs (error, warn, info, debug), ZILLA_CACHE_FILE the list
of pools to open at the next start (zpool.cache), ZILLA_PARAMETERS a folder for tunables, ZILLA_KSTATS one for statistics of
intent logs.
";

fn main() -> ExitCode {
    let mut options = Options::default();
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "--background" => options.background = true,
            "--version" | "-V" => {
                println!("zillad-{}", env!("CARGO_PKG_VERSION"));
                return ExitCode::SUCCESS;
            }
            "--help" | "-h" | "-?" => {
                print!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            _ => {
                eprint!("invalid argument '{word}'\n{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    let dir = StateDir::from_env().map_err(DaemonError::StateDir);
    let outcome = dir.and_then(|dir| {
        zilla_daemon::run(options, Handle::new(dir), |handle| async { Ok(Engine::open(handle).await) })
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("zillad: {e}");
            ExitCode::FAILURE
        }
    }
}
