//! Opens files and block devices, and handles the few small files of the engine.
//!
//! A path may lead into a file system that this process serves itself, so all of it is done apart
//! (`apart.rs`): what opens a device looks at it there too, and the open descriptors are passed on.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, StatxFlags, flock, fstat, fstatfs,
    ioctl_blkpbszget, ioctl_blksszget, major, minor, open, statx,
};
use rustix::io::Errno;

use super::apart::{apart, apart_with};
use super::file::{Align, BlockingDevice, FileCore, end_of};
use super::served::{FUSE_MAGIC, ServedDevice, server_below};
use super::threads::ThreadPool;
use super::uring::{Ring, UringDevice};
use super::{IoBackend, RealConfig};
use crate::{BoxFuture, Device, DeviceInfo, DirEntry, EntryKind, OpenMode, Opener};

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

pub(super) struct RealOpener(Arc<Shared>);

struct Shared {
    config: RealConfig,
    ring: OnceLock<Result<Arc<Ring>, io::ErrorKind>>,
}

impl RealOpener {
    pub(super) fn new(config: RealConfig) -> RealOpener {
        RealOpener(Arc::new(Shared { config, ring: OnceLock::new() }))
    }
}

impl Shared {
    async fn open(&self, path: PathBuf, mode: OpenMode) -> io::Result<Arc<dyn Device>> {
        let direct = self.config.direct;
        let opened = apart_with(Vec::new(), move |_| {
            let found = Found::open(&path, mode, direct)?;
            Ok(((found.size, found.align, found.in_memory, found.info), found.fds))
        });
        let ((size, align, in_memory, info), fds) = opened.await?;
        let mut fds = fds.into_iter();
        let plain = fds.next().ok_or(io::ErrorKind::UnexpectedEof)?;
        let (direct, crew) = (fds.next().zip(align), ThreadPool::default());
        let mut core = FileCore { plain, direct, size: size.into(), info, in_memory, crew };
        if core.info.fuse.is_some() {
            core.info.backend = "threads apart";
            return Ok(Arc::new(ServedDevice::new(core)?));
        }
        let ring = match self.config.io {
            IoBackend::Inline | IoBackend::Threads => None,
            IoBackend::Auto if core.in_memory => None,
            IoBackend::Auto => self.ring().ok(),
            IoBackend::Uring => Some(self.ring()?),
        };
        if let Some(ring) = ring {
            core.info.backend = "io_uring";
            return Ok(Arc::new(UringDevice { core: Arc::new(core), ring }));
        }
        let inline = match self.config.io {
            IoBackend::Auto => core.in_memory,
            io => io == IoBackend::Inline,
        };
        core.info.backend = if inline { "inline" } else { "threads" };
        Ok(Arc::new(BlockingDevice { core: Arc::new(core), inline }))
    }

    /// The ring, made when the first device wants one. Who is refused once is not asked again.
    fn ring(&self) -> io::Result<Arc<Ring>> {
        let ring = self.ring.get_or_init(|| {
            let ring = Ring::new().map(Arc::new);
            if let Err(e) = &ring {
                tracing::info!(%e, "io_uring is not available, disk I/O uses threads");
            }
            ring.map_err(|e| e.kind())
        });
        ring.clone().map_err(|kind| io::Error::new(kind, "io_uring is not available here"))
    }
}

/// What is open at a path, with all that is to be known of it.
struct Found {
    size: u64,
    align: Option<Align>,
    in_memory: bool,
    info: DeviceInfo,
    /// The plain descriptor, and the direct one if `align` says what that demands.
    fds: Vec<OwnedFd>,
}

impl Found {
    fn open(path: &Path, mode: OpenMode, want_direct: bool) -> io::Result<Found> {
        let kind = fs::metadata(path)?.file_type();
        let is_block_dev = kind.is_block_device();
        if !is_block_dev && !kind.is_file() {
            let what = format!("{} is neither a file nor a block device", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let access = if mode.write { OFlags::RDWR } else { OFlags::RDONLY } | OFlags::CLOEXEC;
        // On a block device O_EXCL keeps out mounts and other exclusive users; on a file it would
        // mean something else.
        let excl = if is_block_dev && mode.exclusive { OFlags::EXCL } else { OFlags::empty() };
        let plain = match open(path, access | excl, Mode::empty()) {
            Err(Errno::BUSY) => return Err(busy(path, block_holder(path))),
            other => other?,
        };
        let stat = fstat(&plain)?;
        if FileType::from_raw_mode(stat.st_mode)
            != if is_block_dev { FileType::BlockDevice } else { FileType::RegularFile }
        {
            return Err(io::Error::other(format!("{} changed while it was opened", path.display())));
        }
        if mode.exclusive {
            lock(&plain, path, &stat)?;
        }
        let magic = fstatfs(&plain)?.f_type as i64;
        let in_memory = !is_block_dev && (magic == TMPFS_MAGIC || magic == RAMFS_MAGIC);
        let fuse = match is_block_dev {
            true => server_below(stat.st_rdev),
            false => (magic == FUSE_MAGIC).then_some(stat.st_dev),
        };
        let sector = if is_block_dev { ioctl_blksszget(&plain)? } else { 512 };
        // For a file in memory there is no cache to bypass.
        let direct = if want_direct && !in_memory { open_direct(&plain, access, sector) } else { None };
        let queue = Queue::of(if is_block_dev { stat.st_rdev } else { stat.st_dev });
        let info = DeviceInfo {
            path: path.to_owned(),
            logical_block: sector,
            physical_block: if is_block_dev { ioctl_blkpbszget(&plain)? } else { sector },
            rotational: if in_memory { Some(false) } else { queue.number("rotational").map(|n| n != 0) },
            writable: mode.write,
            direct: direct.is_some(),
            can_discard: !is_block_dev || queue.number("discard_max_bytes").is_some_and(|n| n > 0),
            can_write_zeroes: !is_block_dev || queue.number("write_zeroes_max_bytes").is_some_and(|n| n > 0),
            is_block_dev,
            fuse,
            backend: "",
        };
        let size = end_of(&plain)?;
        let (direct, align) = direct.unzip();
        let fds = std::iter::once(plain).chain(direct).collect();
        Ok(Found { size, align, in_memory, info, fds })
    }
}

/// A second descriptor of the same file for direct I/O, where its file system has that in units of
/// a sector.
fn open_direct(plain: &OwnedFd, access: OFlags, sector: u32) -> Option<(OwnedFd, Align)> {
    const DIOALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);
    let stat = statx(plain, "", AtFlags::EMPTY_PATH, DIOALIGN).ok()?;
    let told = stat.stx_mask & DIOALIGN.bits() != 0;
    let align = if told {
        Align { memory: stat.stx_dio_mem_align as usize, offset: stat.stx_dio_offset_align as u64 }
    } else {
        // Kernels before 6.1 do not tell. A sector of its own is what a block device takes; of a
        // file it is unknown.
        Align { memory: crate::PAGE, offset: sector as u64 }
    };
    let usable = align.offset.is_power_of_two()
        && align.memory.is_power_of_two()
        && align.memory <= crate::PAGE
        && align.offset <= sector as u64;
    if !usable {
        return None;
    }
    // By descriptor and not by path, which may name another file by now.
    let same = format!("/proc/thread-self/fd/{}", plain.as_raw_fd());
    let direct = open(same, access | OFlags::DIRECT, Mode::empty()).ok()?;
    if !told {
        let mut probe = crate::IoBuf::scratch(sector as usize);
        rustix::io::pread(&direct, &mut probe[..], 0).ok()?;
    }
    Some((direct, align))
}

fn busy(path: &Path, holder: Option<String>) -> io::Error {
    let by = holder.unwrap_or_else(|| "another process".into());
    io::Error::new(io::ErrorKind::ResourceBusy, format!("{} is in use by {by}", path.display()))
}

/// A process that was killed with I/O under way keeps its locks until that is done, a moment longer
/// than it lives. Within a container the table does not name it any more, nor one of another
/// container.
const LAST_IO: Duration = Duration::from_secs(5);
/// What this process has closed may be locked a moment longer: a child has a copy of its parent's
/// files between fork and exec.
const LAST_CHILD: Duration = Duration::from_millis(200);

fn lock(file: &OwnedFd, path: &Path, stat: &Stat) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {}
            other => return Ok(other?),
        }
        let holder = lock_holder(stat);
        let patience = match &holder {
            Some(pid) if *pid == std::process::id().to_string() => LAST_CHILD,
            Some(pid) if is_alive(pid) => Duration::ZERO,
            _ => LAST_IO,
        };
        if begin.elapsed() >= patience {
            let name = |pid: String| {
                let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                format!("process {pid} ({})", comm.trim())
            };
            return Err(busy(path, holder.map(name)));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The number of the process that took the lock on this file, from the kernel's table.
fn lock_holder(stat: &Stat) -> Option<String> {
    let file = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let line = locks.lines().find(|l| l.split_whitespace().nth(5) == Some(&file) && l.contains("FLOCK"))?;
    line.split_whitespace().nth(4).map(str::to_owned)
}

/// Whether a process runs still, not only waits to be buried.
fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may have anything in it.
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// What a block device is used for: a mount, or a device stacked on it.
fn block_holder(path: &Path) -> Option<String> {
    let real = fs::canonicalize(path).ok()?;
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mounted = mounts.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (from, at) = (fields.next()?, fields.next()?);
        (fs::canonicalize(from).ok()? == real).then(|| format!("the file system mounted on {at}"))
    });
    let stat = rustix::fs::stat(&real).ok()?;
    let holders = format!("/sys/dev/block/{}:{}/holders", major(stat.st_rdev), minor(stat.st_rdev));
    mounted.or_else(|| {
        let first = fs::read_dir(holders).ok()?.next()?.ok()?;
        Some(first.file_name().to_string_lossy().into_owned())
    })
}

/// The request queue's figures in sysfs; a partition's are its disk's.
struct Queue(PathBuf);

impl Queue {
    fn of(dev: u64) -> Queue {
        let base = PathBuf::from(format!("/sys/dev/block/{}:{}", major(dev), minor(dev)));
        let own = base.join("queue");
        Queue(if own.exists() { own } else { base.join("../queue") })
    }

    fn number(&self, name: &str) -> Option<u64> {
        fs::read_to_string(self.0.join(name)).ok()?.trim().parse().ok()
    }
}

/// What the kernel itself has to say is nobody's to serve.
fn is_kernels(path: &Path) -> bool {
    path.starts_with("/proc") || path.starts_with("/sys")
}

/// Makes a call by path.
async fn by_path<T: Send + 'static>(
    path: &Path,
    call: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let path = path.to_owned();
    apart(move || call(&path)).await?
}

impl Opener for RealOpener {
    fn open(&self, path: &Path, mode: OpenMode) -> BoxFuture<'static, io::Result<Arc<dyn Device>>> {
        let (shared, path) = (self.0.clone(), path.to_owned());
        Box::pin(async move { shared.open(path, mode).await })
    }

    fn list(&self, dir: &Path) -> BoxFuture<'static, io::Result<Vec<DirEntry>>> {
        let dir = dir.to_owned();
        Box::pin(async move { by_path(&dir, list).await })
    }

    fn read_file(&self, path: &Path) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        let path = path.to_owned();
        Box::pin(async move {
            if is_kernels(&path) { fs::read(path) } else { by_path(&path, |p| fs::read(p)).await }
        })
    }

    fn write_file(&self, path: &Path, data: Vec<u8>) -> BoxFuture<'static, io::Result<()>> {
        let path = path.to_owned();
        Box::pin(async move { by_path(&path, move |p| replace(p, &data)).await })
    }

    fn remove_file(&self, path: &Path) -> BoxFuture<'static, io::Result<()>> {
        let path = path.to_owned();
        Box::pin(async move { by_path(&path, |p| fs::remove_file(p)).await })
    }

    fn create_file(&self, path: &Path, size: u64) -> BoxFuture<'static, io::Result<()>> {
        let path = path.to_owned();
        Box::pin(async move { by_path(&path, move |p| fs::File::create_new(p)?.set_len(size)).await })
    }

    fn canonical(&self, path: &Path) -> BoxFuture<'static, io::Result<PathBuf>> {
        let path = path.to_owned();
        Box::pin(async move { by_path(&path, |p| fs::canonicalize(p)).await })
    }
}

fn list(dir: &Path) -> io::Result<Vec<DirEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let kind = match fs::metadata(&path).map(|m| m.file_type()) {
            Ok(t) if t.is_dir() => EntryKind::Directory,
            Ok(t) if t.is_file() => EntryKind::File,
            Ok(t) if t.is_block_device() => EntryKind::BlockDevice,
            _ => EntryKind::Other,
        };
        entries.push(DirEntry { path, kind });
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

/// Writes beside the file, makes that stable, and renames it over: a crash leaves the old file or
/// the new one. In a folder that others can write to the file beside it may lead elsewhere: it is
/// made anew.
fn replace(path: &Path, data: &[u8]) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|m| !m.is_file() && !m.is_symlink()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    let beside = PathBuf::from(beside);
    match fs::remove_file(&beside) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&beside)?;
    let written =
        file.write_all(data).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // The error that counts is the first one; a leftover only takes space.
        let _ = fs::remove_file(&beside);
        return written;
    }
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(dir)?.sync_all()
}
