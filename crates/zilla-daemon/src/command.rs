//! `zillad`, the command: its arguments, and what it says when it cannot start.

use crate::engine::Engine;
use crate::nbd::Tcp;
use crate::{DaemonError, Handle, Options};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::path::Path;
use zilla_control::StateDir;
use zilla_control::share::Share;

/// Where OpenZFS has volumes' devices.
const DEV_ZVOL: &str = "/dev/zvol";

const USAGE: &str = "usage: zillad [--background] [--share nobody|everyone|<group>] [--http address:port [--http-tls <certificate> <key>]]
       [--nbd-listen <address>:<port> --nbd-tls <folder>] [--nfs <address>:<port>] [--zvol-devices <folder>|off]

Owns imported pools and serves zpool and zfs, in the foreground until SIGTERM.
ZILLA_DIR names its state folder, ZILLA_LOG what it logs (error, warn, info, debug), ZILLA_CACHE_FILE the list
of pools to open at the next start (zpool.cache), ZILLA_PARAMETERS a folder for tunables, ZILLA_KSTATS one for statistics of
intent logs. ZILLA_HOSTID is the number that other hosts know this one by, instead of the one in /etc/hostid (hexadecimal). ZILLA_SHARE says what --share does: who besides root may ask root's daemon. They may look, and change what zfs allow
gives them. ZILLA_HTTP says what --http does: where to serve a page for browsers ('zilla page' prints its address, with a token in
it). ZILLA_HTTP_TLS (<certificate>:<key>) says what --http-tls does: the files without which it is served on this machine only.
ZILLA_NBD_LISTEN and ZILLA_NBD_TLS say what --nbd-listen and --nbd-tls do: where volumes are served over TCP as well, and
the folder of the certificates without which they are not. Clients show one too.
ZILLA_NFS says what --nfs does: where file systems are shared as their property sharenfs says; nowhere unless it is given.
ZILLA_ZVOL_DEVICES says what --zvol-devices does: where root's daemon links volumes' block devices, which are loop devices; in
/dev/zvol unless another folder or off is given.
";

/// Where volumes' devices are linked: only root may make any.
fn zvol_devices(given: Option<&str>) -> Result<Option<&Path>, String> {
    match given {
        Some("off") => Ok(None),
        None => Ok(rustix::process::geteuid().is_root().then_some(Path::new(DEV_ZVOL))),
        Some(folder) if !folder.starts_with('/') => {
            Err(format!("--zvol-devices: '{folder}' is neither a folder's full path nor 'off'"))
        }
        Some(_) if !rustix::process::geteuid().is_root() => {
            Err("--zvol-devices: only root's daemon can make block devices".to_owned())
        }
        Some(folder) => Ok(Some(Path::new(folder))),
    }
}

/// Takes the address for NFS before any pool is opened, so that nobody believes that a share is
/// served when it is not.
fn listen_to(at: &str) -> Result<std::net::TcpListener, String> {
    let address: std::net::SocketAddr =
        at.parse().map_err(|_| format!("--nfs: '{at}' is no address with a port, like 127.0.0.1:2049"))?;
    std::net::TcpListener::bind(address).map_err(|e| format!("--nfs: '{at}': {e}"))
}

/// Runs `zillad` with its arguments until it ends; gives its exit code.
pub fn main(words: Vec<String>) -> u8 {
    // The program is called `zilla`; people look for the daemon by its own name.
    let _ = rustix::thread::set_name(c"zillad");
    // A core dump would have keys in it. (Where it is piped to a program 0 does not prevent it, and
    // 1 does. Source: `coredump_pipe` in Linux's fs/coredump.c.)
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: Some(1) });
    let mut options = Options::default();
    let mut share = std::env::var("ZILLA_SHARE").unwrap_or_default();
    let given = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let mut http = given("ZILLA_HTTP");
    let (mut listen, mut certificates) = (given("ZILLA_NBD_LISTEN"), given("ZILLA_NBD_TLS"));
    let mut http_tls = match given("ZILLA_HTTP_TLS") {
        None => None,
        Some(both) => match both.split_once(':') {
            Some((certificate, key)) => Some((certificate.to_owned(), key.to_owned())),
            None => {
                eprintln!("zillad: ZILLA_HTTP_TLS: '{both}' is not <certificate>:<key>");
                return 2;
            }
        },
    };
    let mut nfs = given("ZILLA_NFS");
    let mut devices = given("ZILLA_ZVOL_DEVICES");
    if let Some((word, rest)) = words.split_first()
        && word == crate::keeper::WORD
    {
        return crate::keeper::main(rest);
    }
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--background" => options.background = true,
            "--http-tls" => {
                let (Some(certificate), Some(key)) = (words.next(), words.next()) else {
                    eprint!("'{word}' needs a certificate's file and its key's\n{USAGE}");
                    return 2;
                };
                http_tls = Some((certificate, key));
            }
            "--share" | "--http" | "--nbd-listen" | "--nbd-tls" | "--nfs" | "--zvol-devices" => {
                let Some(value) = words.next() else {
                    eprint!("missing argument for '{word}' option\n{USAGE}");
                    return 2;
                };
                match word.as_str() {
                    "--share" => share = value,
                    "--http" => http = Some(value),
                    "--nbd-listen" => listen = Some(value),
                    "--nfs" => nfs = Some(value),
                    "--zvol-devices" => devices = Some(value),
                    _ => certificates = Some(value),
                }
            }
            "--nbd-tls-psk" => {
                eprintln!("zillad: pre-shared keys are not supported for NBD: use certificates (--nbd-tls)");
                return 2;
            }
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
    let certificate = http_tls.as_ref().map(|(certificate, key)| (certificate.as_str(), key.as_str()));
    let page_guard = match crate::page::door(http.as_deref(), certificate) {
        Ok((at, guard)) => {
            options.http = at;
            guard
        }
        Err(why) => {
            eprintln!("zillad: {why}");
            return 2;
        }
    };
    let tcp = match Tcp::open(listen.as_deref(), certificates.as_deref()) {
        Ok(tcp) => tcp,
        Err(why) => {
            eprintln!("zillad: {why}");
            return 2;
        }
    };
    let nfs = match nfs.as_deref().map(listen_to).transpose() {
        Ok(nfs) => nfs,
        Err(why) => {
            eprintln!("zillad: {why}");
            return 2;
        }
    };
    let devices = match zvol_devices(devices.as_deref()) {
        Ok(devices) => devices,
        Err(why) => {
            eprintln!("zillad: {why}");
            return 2;
        }
    };
    let dir = StateDir::from_env().map_err(DaemonError::StateDir);
    let outcome = dir.and_then(|dir| {
        let handle = Handle::new(dir).shared_with(options.share).with_page_guard(page_guard);
        let handle = handle.with_nbd(tcp).with_nfs(nfs).with_devices(devices);
        crate::run(options, handle, |handle| async { Ok(Engine::open(handle).await) })
    });
    match outcome {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("zillad: {e}");
            1
        }
    }
}
