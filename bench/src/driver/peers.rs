//! Finding the peers, or building them. They live outside the product and are only ever run as
//! programs.
//!
//! `dmubench` drives OpenZFS's own engine in userspace. Its source and build script are the judges'
//! (`peers/` of the folder named by `ZILLA_JUDGES`, by default `../shared/judges` beside the
//! checkout); the engine's source is fetched from the distribution. A release build matters: the
//! distribution's library has all assertions on and needs twice the CPU.

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
    let source = source(o)?;
    eprintln!("building OpenZFS {VERSION}'s engine in {} (once)", o.peers.display());
    let status = Command::new("bash").arg(script).env("ZSRC", source).env("OUT", &o.peers).status()?;
    if program.exists() {
        return Ok(program);
    }
    Err(format!("dmubench could not be built ({status}); use --no-peers to do without").into())
}

/// OpenZFS's source as the distribution has it; also the tree of files that the FUSE part unpacks.
pub fn tarball(o: &Options) -> Result<PathBuf> {
    let tarball = o.peers.join(format!("zfs-linux_{VERSION}.orig.tar.gz"));
    if !tarball.exists() {
        std::fs::create_dir_all(&o.peers)?;
        let mut command = Command::new("apt-get");
        command.args(["source", "--download-only", "zfs-linux"]).current_dir(&o.peers).status()?;
    }
    if tarball.exists() {
        return Ok(tarball);
    }
    Err(format!("OpenZFS {VERSION}'s source is missing: put {} there", tarball.display()).into())
}

fn source(o: &Options) -> Result<PathBuf> {
    let folder = o.peers.join(format!("zfs-{VERSION}"));
    if !folder.exists() {
        Command::new("tar").arg("xf").arg(tarball(o)?).current_dir(&o.peers).status()?;
    }
    if folder.exists() { Ok(folder) } else { Err(format!("{} is missing", folder.display()).into()) }
}

/// Unpacks a package of the distribution beside the others, without installing it.
fn unpack(o: &Options, package: &str) -> Result<PathBuf> {
    let folder = o.peers.join("packages");
    std::fs::create_dir_all(&folder)?;
    Command::new("apt-get").args(["download", package]).current_dir(&folder).status()?;
    for entry in std::fs::read_dir(&folder)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&format!("{package}_")) {
            Command::new("dpkg").args(["-x", &name, "."]).current_dir(&folder).status()?;
            return Ok(folder);
        }
    }
    Err(format!("package {package} could not be fetched").into())
}

/// zfs-fuse with its commands and the library it needs, in the peers' folder.
pub fn zfs_fuse(o: &Options) -> Result<()> {
    let place = o.peers.join("zfs-fuse");
    if place.join("zfs-fuse").exists() {
        return Ok(());
    }
    std::fs::create_dir_all(place.join("lib"))?;
    let folder = unpack(o, "libfuse2")?;
    for lib in ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"] {
        let lib = folder.join(lib).join("libfuse.so.2");
        if lib.exists() {
            std::fs::copy(lib, place.join("lib/libfuse.so.2"))?;
        }
    }
    let folder = unpack(o, "zfs-fuse")?;
    for command in ["zpool", "zfs", "zfs-fuse"] {
        std::fs::copy(folder.join("sbin").join(command), place.join(command))?;
    }
    Ok(())
}

/// libfuse's example that passes everything through: what FUSE costs when the server does next to
/// nothing.
pub fn passthrough(o: &Options) -> Result<()> {
    const SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";
    let program = o.peers.join("passthrough_ll");
    if program.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(&o.peers)?;
    let build = format!("gcc -O2 {SOURCE} $(pkg-config --cflags --libs fuse3) -o \"$0\"");
    let status = Command::new("sh").arg("-c").arg(build).arg(&program).status()?;
    if status.success() { Ok(()) } else { Err("install libfuse3-dev and pkg-config to build it".into()) }
}

/// OpenZFS's engine takes and gives back its buffers all the time; with an allocator that keeps
/// pages it is up to twice as fast, and only that comparison is worth making.
pub fn quiet_allocator(mut command: Command) -> Command {
    if Path::new(JEMALLOC).exists() {
        command.env("LD_PRELOAD", JEMALLOC);
        command.env("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0");
    }
    command
}

/// Where zilla's commands are: built beside this program.
pub fn commands() -> Result<PathBuf> {
    let me = std::env::current_exe()?;
    let folder = me.parent().map(Path::to_path_buf).unwrap_or_default();
    match ["zillad", "zpool", "zfs"].iter().find(|c| !folder.join(c).exists()) {
        None => Ok(folder),
        Some(c) => {
            Err(format!("{c} is not in {}: build zilla-daemon and zilla-cli", folder.display()).into())
        }
    }
}
