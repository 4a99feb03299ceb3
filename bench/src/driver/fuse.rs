//! The FUSE part: files through a mount, beside zfs-fuse, btrfs and a passthrough that only shows what FUSE costs.
//!
//! The judges' driver (`fs_peers.py`) does the measuring, in a mount namespace of its own; `bench/fs_zilla.py` adds zilla to its
//! peers. It needs root (loop devices, mounts) and fio.

use super::{Options, peers};
use crate::engine::Result;
use serde_json::Value;
use std::process::Command;

pub fn run(o: &Options) -> Result<Value> {
    let judges = peers::judges(o)?;
    let mut names = vec!["zilla"];
    let zfs_fuse = o.peers.join("zfs-fuse");
    if zfs_fuse.join("zfs-fuse").exists() {
        names.push("zfsfuse");
    }
    let pass = o.peers.join("passthrough_ll");
    if pass.exists() {
        names.push("fusepass");
    }
    names.push("btrfs");
    let records = o.peers.join("fs_mem.jsonl");
    let status = Command::new("unshare")
        .args(["-m", "--propagation", "private", "python3"])
        .arg(o.root.join("bench/fs_zilla.py"))
        .args(["--judges".as_ref(), judges.as_os_str()])
        .args(["--commands".as_ref(), o.root.join("target/release").as_os_str()])
        .args(["--dir".as_ref(), o.dir.join("fs").as_os_str()])
        .args(["--build".as_ref(), o.peers.as_os_str()])
        .args(["--zfsfuse".as_ref(), zfs_fuse.as_os_str()])
        .arg("--fusepass")
        .arg(format!("{} -f -o source={{src}},timeout=1 {{mnt}}", pass.display()))
        .args(["--tarball".as_ref(), o.peers.join("zfs-linux_2.3.2.orig.tar.gz").as_os_str()])
        .args(["--peers", &names.join(","), "--runs", &o.runs.to_string()])
        .args(["--seconds", &o.seconds.to_string(), "--only", &o.only])
        .args(["--out".as_ref(), records.as_os_str()])
        .status()?;
    if !status.success() {
        return Err(format!("the file system driver: {status}").into());
    }
    let text = std::fs::read_to_string(&records)?;
    Ok(text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok()).collect())
}
