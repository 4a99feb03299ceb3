//! Devices whose I/O waits for a FUSE server: files in a file system that is mounted by FUSE, and
//! block devices that lead to one.
//!
//! The server may be this very process. Then a write here ends only after a pool below has taken
//! it, with the threads and devices that it needs for that; so nothing they need may wait here
//! ([`super::apart`] has the whole of it). Such a device neither uses io_uring, of whose few
//! workers the pool below may need one, nor is its I/O ever done by the thread that submits it. It
//! has a few threads of its own: of its own, because a third pool may lie on the second, and what
//! waits for the second's device must not keep those from the third; a few, because each waits for
//! one answer.
//!
//! A block device leads to FUSE through a loop device, or a mapped one that stands on it. Network
//! block devices (NBD) count too: their server is a process, which may be this one, with its
//! volumes.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use rustix::fs::{AtFlags, StatxFlags, major, makedev, minor, statx};

use super::apart::{Delivery, deliveries, no_core_dump};
use super::file::FileCore;
use super::threads::ThreadPool;
use crate::fence::{Fence, refused};
use crate::{Device, DeviceInfo, Io, patience};

/// As many requests wait for the server at once. One may be a flush, and a pool's queues give a
/// device up to ten of a kind.
const THREADS: usize = 8;

/// `statfs` says so of what FUSE serves (`FUSE_SUPER_MAGIC`, linux/magic.h).
pub(super) const FUSE_MAGIC: i64 = 0x6573_5546;
/// Network block devices (`NBD_MAJOR`, linux/major.h).
const NBD_MAJOR: u32 = 43;
/// Devices that stand on devices are looked into so deep.
const DEPTH: usize = 8;

pub(super) struct ServedDevice {
    core: Arc<FileCore>,
    crew: ThreadPool,
    answers: Sender<Delivery>,
}

impl ServedDevice {
    pub(super) fn new(core: FileCore) -> io::Result<ServedDevice> {
        no_core_dump();
        let direct = core.direct.as_ref().map(|(fd, _)| fd.as_raw_fd());
        let fds = std::iter::once(core.plain.as_raw_fd()).chain(direct).collect();
        let answers = deliveries()?;
        Ok(ServedDevice { core: Arc::new(core), crew: ThreadPool::apart(THREADS, fds), answers })
    }

    fn start(&self, batch: Vec<Io>, fence: Option<&Arc<dyn Fence>>) {
        // However patient the thread: it may be one that the server needs.
        patience::take();
        self.crew.submit(batch.into_iter().map(|io| {
            let (core, answers, fence) = (self.core.clone(), self.answers.clone(), fence.cloned());
            let job = move || {
                let Io { op, done } = io;
                let result = match &fence {
                    Some(fence) if op.modifies() && !fence.allows() => Err(refused()),
                    _ => core.prepare(op).and_then(|op| core.run(op)),
                };
                // The last who knows the file closes it, and must have the process's table for
                // that.
                let delivery = move || {
                    drop(core);
                    done.complete(result);
                };
                let _ = answers.send(Box::new(delivery));
            };
            Box::new(job) as Box<dyn FnOnce() + Send>
        }));
    }
}

impl Device for ServedDevice {
    fn submit(&self, batch: Vec<Io>) {
        self.start(batch, None);
    }

    fn submit_fenced(&self, batch: Vec<Io>, fence: &Arc<dyn Fence>) {
        self.start(batch, Some(fence));
    }

    fn size(&self) -> u64 {
        self.core.size()
    }

    fn info(&self) -> DeviceInfo {
        self.core.info.clone()
    }

    fn refresh_size(&self) -> io::Result<u64> {
        if self.core.info.is_block_dev {
            return self.core.measure();
        }
        // What the kernel knows by itself: asking the server would mean to wait for it.
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        Ok(self.core.resized(statx(&self.core.plain, "", how, StatxFlags::SIZE)?.stx_size))
    }
}

impl Drop for ServedDevice {
    /// Whoever exports a pool may unmount next what its devices lie on: then nothing may hold them
    /// any more.
    fn drop(&mut self) {
        self.crew.stop();
    }
}

/// The file system (or the network block device) whose server a block device waits for, by its
/// number.
pub(super) fn server_below(device: u64) -> Option<u64> {
    below(device, &Mounts::now(), DEPTH)
}

fn below(device: u64, mounts: &Mounts, depth: usize) -> Option<u64> {
    if depth == 0 {
        return None;
    }
    if major(device) == NBD_MAJOR {
        return Some(device);
    }
    let own = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
    // A partition's disk is the folder above it.
    let disk = if own.join("partition").exists() { own.join("..") } else { own };
    if let Ok(file) = fs::read(disk.join("loop/backing_file")) {
        use std::os::unix::ffi::OsStrExt;
        let file = Path::new(std::ffi::OsStr::from_bytes(file.trim_ascii_end()));
        return mounts.server_of(file);
    }
    let slaves = fs::read_dir(disk.join("slaves")).ok()?;
    slaves.flatten().find_map(|slave| {
        let text = fs::read_to_string(slave.path().join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        below(makedev(major.parse().ok()?, minor.parse().ok()?), mounts, depth - 1)
    })
}

/// What is mounted, from the kernel's table: reading it waits for no server.
struct Mounts(Vec<Mounted>);

struct Mounted {
    at: PathBuf,
    device: u64,
    is_fuse: bool,
}

impl Mounts {
    fn now() -> Mounts {
        Mounts::parse(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    fn parse(table: &str) -> Mounts {
        let line = |line: &str| {
            let mut fields = line.split(' ');
            let (major, minor) = fields.nth(2)?.split_once(':')?;
            let device = makedev(major.parse().ok()?, minor.parse().ok()?);
            let at = unescaped(fields.nth(1)?);
            let kind = line.split_once(" - ")?.1.split(' ').next()?;
            let is_fuse = matches!(kind, "fuse" | "fuseblk") || kind.starts_with("fuse.");
            Some(Mounted { at, device, is_fuse })
        };
        Mounts(table.lines().filter_map(line).collect())
    }

    /// The last of those mounted deepest above a path is the one it leads to.
    fn server_of(&self, path: &Path) -> Option<u64> {
        let above = self.0.iter().filter(|m| path.starts_with(&m.at));
        above.max_by_key(|m| m.at.components().count()).filter(|m| m.is_fuse).map(|m| m.device)
    }
}

/// The table writes blanks and backslashes as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let octal = bytes.get(at + 1..at + 4).filter(|_| byte == b'\\');
        let value = octal.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        out.push(value.unwrap_or(byte));
        at += if value.is_some() { 4 } else { 1 };
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /a\\040b rw shared:2 - fuse.zfs a rw,user_id=0
31 30 0:41 / /a\\040b/c rw - fuse.zfs a/c rw
32 22 0:42 / /ctl rw - fusectl none rw
33 30 0:43 / /a\\040b/c/tmp rw - tmpfs none rw
";

    #[test]
    fn the_deepest_mount_above_a_file_serves_it() {
        let mounts = Mounts::parse(TABLE);
        let on = |path: &str| mounts.server_of(Path::new(path));
        assert_eq!(on("/a b/disk"), Some(makedev(0, 40)));
        assert_eq!(on("/a b/c/disk"), Some(makedev(0, 41)));
        assert_eq!(on("/a b/cd"), Some(makedev(0, 40)), "a name that begins alike");
        for other in ["/a/disk", "/ctl/1", "/a b/c/tmp/disk", "disk"] {
            assert_eq!(on(other), None, "{other}");
        }
    }

    #[test]
    fn a_network_block_device_has_a_server() {
        assert_eq!(server_below(makedev(43, 7)), Some(makedev(43, 7)));
        assert_eq!(server_below(makedev(1, 1)), None);
    }
}
