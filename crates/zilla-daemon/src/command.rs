//! `zillad`, the command: its arguments, and what it says when it cannot start.

use crate::engine::Engine;
use crate::{DaemonError, Handle, Options};
use zilla_control::StateDir;
use zilla_control::share::Share;

const USAGE: &str = "usage: zillad [--background] [--share nobody|everyone|<group>] [--http address:port]

Owns imported pools and serves zpool and zfs, in the foreground until SIGTERM.
ZILLA_DIR names its state folder, ZILLA_LOG what it logs (error, warn, info, debug), ZILLA_CACHE_FILE the list
of pools to open at the next start (zpool.cache), ZILLA_PARAMETERS a folder for tunables, ZILLA_KSTATS one for statistics of
intent logs. ZILLA_SHARE says what --share does: who besides root may ask root's daemon. They may look, and change what zfs allow
gives them. ZILLA_HTTP says what --http does: where to serve a page for browsers, on this machine only ('zilla page' prints its
address, with a token in it).
";

/// Runs `zillad` with its arguments until it ends; gives its exit code.
pub fn main(words: Vec<String>) -> u8 {
    // The program is called `zilla`; people look for the daemon by its own name.
    let _ = rustix::thread::set_name(c"zillad");
    let mut options = Options::default();
    let mut share = std::env::var("ZILLA_SHARE").unwrap_or_default();
    let mut http = std::env::var("ZILLA_HTTP").unwrap_or_default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--background" => options.background = true,
            "--share" | "--http" => match words.next() {
                Some(what) if word == "--share" => share = what,
                Some(what) => http = what,
                None => {
                    eprint!("missing argument for '{word}' option\n{USAGE}");
                    return 2;
                }
            },
            "--version" | "-V" => {
                println!("zillad-{}", env!("CARGO_PKG_VERSION"));
                return 0;
            }
            "--help" | "-h" | "-?" => {
                print!("{USAGE}");
                return 0;
            }
            _ => {
                eprint!("invalid argument '{word}'\n{USAGE}");
                return 2;
            }
        }
    }
    if !share.is_empty() {
        options.share = match Share::parse(&share) {
            Ok(share) => share,
            Err(why) => {
                eprint!("cannot share the daemon: {why}\n{USAGE}");
                return 2;
            }
        };
    }
    if !http.is_empty() {
        match http.parse::<std::net::SocketAddr>() {
            Ok(at) if at.ip().is_loopback() => options.http = Some(at),
            Ok(_) => {
                eprintln!(
                    "'{http}' can be reached from elsewhere, and there is no TLS: use 127.0.0.1 with 'ssh -L' or a proxy"
                );
                return 2;
            }
            Err(_) => {
                eprint!("'{http}' is no address with a port, like 127.0.0.1:8420\n{USAGE}");
                return 2;
            }
        }
    }
    let dir = StateDir::from_env().map_err(DaemonError::StateDir);
    let outcome = dir.and_then(|dir| {
        crate::run(options, Handle::new(dir), |handle| async { Ok(Engine::open(handle).await) })
    });
    match outcome {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("zillad: {e}");
            1
        }
    }
}
