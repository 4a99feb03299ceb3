//! Finding the peers, or building them. They live outside the product and are only ever run as programs.
//!
//! `dmubench` drives OpenZFS's own engine in userspace. Its source and build script are the judges' (`peers/` of the folder named by
//! `ZILLA_JUDGES`, by default `../shared/judges` beside the checkout); the engine's source is fetched from the distribution. A release
//! build matters: the distribution's library has all assertions on and needs twice the CPU.

use super::Options;
use crate::engine::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = "2.3.2";
const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";

pub fn judges(o: &Options) -> Result<PathBuf> {
    let places = std::env::var_os("ZILLA_JUDGES").map(PathBuf::from);
    let places = places.into_iter().chain([o.root.join("../shared/judges")]);
    let found = places.map(|p| p.join("peers")).find(|p| p.join("build.sh").exists());
    found.ok_or_else(|| "the peers' drivers are missing: set ZILLA_JUDGES, or use --no-peers".into())
}

/// The path of `dmubench`, built if need be (some minutes, once).
pub fn dmubench(o: &Options) -> Result<PathBuf> {
    let program = o.peers.join("dmubench");
    if program.exists() {
        return Ok(program);
    }
    let script = judges(o)?.join("build.sh");
    std::fs::create_dir_all(&o.peers)?;
    let source = source(&o.peers)?;
    eprintln!("building OpenZFS {VERSION}'s engine in {} (once)", o.peers.display());
    let status = Command::new("bash").arg(script).env("ZSRC", source).env("OUT", &o.peers).status()?;
    if program.exists() {
        return Ok(program);
    }
    Err(format!("dmubench could not be built ({status}); use --no-peers to do without").into())
}

fn source(peers: &Path) -> Result<PathBuf> {
    let folder = peers.join(format!("zfs-{VERSION}"));
    if folder.exists() {
        return Ok(folder);
    }
    let tarball = peers.join(format!("zfs-linux_{VERSION}.orig.tar.gz"));
    if !tarball.exists() {
        Command::new("apt-get")
            .args(["source", "--download-only", "zfs-linux"])
            .current_dir(peers)
            .status()?;
    }
    Command::new("tar").arg("xf").arg(&tarball).current_dir(peers).status()?;
    if folder.exists() {
        return Ok(folder);
    }
    Err(format!("OpenZFS {VERSION}'s source is missing: put {} there", tarball.display()).into())
}

/// OpenZFS's engine takes and gives back its buffers all the time; with an allocator that keeps pages it is up to twice as
/// fast, and only that comparison is worth making.
pub fn quiet_allocator(mut command: Command) -> Command {
    if Path::new(JEMALLOC).exists() {
        command.env("LD_PRELOAD", JEMALLOC);
        command.env("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0");
    }
    command
}
