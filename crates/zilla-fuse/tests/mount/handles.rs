//! File handles, whose files the kernel may have forgotten meanwhile; and files whose flags say
//! what may be done with them.

use crate::common::Mounted;
use crate::privileges::may_test;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use zilla::FsProps;

/// `struct file_handle` with the longest handle there is.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

fn handle_of(path: &Path) -> io::Result<Handle> {
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let (mut handle, mut mount) = (Handle { bytes: 128, kind: 0, handle: [0; 128] }, 0);
    let at = (&raw mut handle).cast::<libc::file_handle>();
    // SAFETY: the name ends in a NUL; the handle has room for as many bytes as it says.
    match unsafe { libc::name_to_handle_at(libc::AT_FDCWD, name.as_ptr(), at, &mut mount, 0) } {
        0 => Ok(handle),
        _ => Err(io::Error::last_os_error()),
    }
}

fn open_handle(mount: &File, handle: &mut Handle) -> io::Result<File> {
    let at = (&raw mut *handle).cast::<libc::file_handle>();
    // SAFETY: the handle is one that the kernel gave, in the form it gave it.
    match unsafe { libc::open_by_handle_at(mount.as_raw_fd(), at, libc::O_RDONLY) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: a new descriptor, which is nobody else's.
        fd => Ok(unsafe { File::from_raw_fd(fd) }),
    }
}

/// The kernel forgets what nobody uses.
fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

#[test]
fn a_handle_outlives_what_the_kernel_remembers() {
    if !may_test() {
        return;
    }
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    let root = File::open(m.path()).unwrap();
    fs::create_dir(m.path().join("d")).unwrap();
    let (file, dir) = (m.path().join("d/file"), m.path().join("d"));
    fs::write(&file, "contents").unwrap();
    let mut handles = [handle_of(&file).unwrap(), handle_of(&dir).unwrap()];
    forget();
    let mut text = String::new();
    open_handle(&root, &mut handles[0]).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "contents");
    assert!(open_handle(&root, &mut handles[1]).unwrap().metadata().unwrap().is_dir());
    // A number that another file has by then, or none, or one that was never a file.
    fs::remove_file(&file).unwrap();
    forget();
    let error = |h: &mut Handle| open_handle(&root, h).unwrap_err().raw_os_error();
    assert_eq!(error(&mut handles[0]), Some(libc::ESTALE));
    for node in [1u64 << 40, 2, 3, u64::MAX, 0xffff << 48 | 77] {
        let mut made = handle_of(&dir).unwrap();
        // FILEID_INO64_GEN: the number's upper half, its lower half, the generation.
        made.handle[..4].copy_from_slice(&((node >> 32) as u32).to_ne_bytes());
        made.handle[4..8].copy_from_slice(&(node as u32).to_ne_bytes());
        assert_eq!(error(&mut made), Some(libc::ESTALE), "node {node:x}");
    }
}

const SETFLAGS: u64 = 0x4008_6602;
const FSSETXATTR: u64 = 0x401c_5820;

fn ioctl(file: &File, cmd: u64, arg: &mut [u32; 7]) -> Result<(), i32> {
    // SAFETY: both read no more than 28 bytes.
    match unsafe { libc::ioctl(file.as_raw_fd(), cmd as _, arg.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

fn chattr(path: &Path, bits: u32) {
    ioctl(&File::open(path).unwrap(), SETFLAGS, &mut [bits, 0, 0, 0, 0, 0, 0]).unwrap();
}

/// Whether each of a list of changes is refused with EPERM; other errors are not to be.
fn refused(path: &Path) -> Vec<bool> {
    let open = |o: &mut OpenOptions| o.open(path).map(drop);
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    let set_times = || File::open(path).and_then(|f| f.set_times(times));
    let xattr = |name: &str| {
        rustix::fs::setxattr(path, name, b"x", rustix::fs::XattrFlags::empty()).map_err(io::Error::from)
    };
    let all = [
        fs::set_permissions(path, Permissions::from_mode(0o640)),
        std::os::unix::fs::chown(path, Some(7), None),
        set_times(),
        xattr("user.a"),
        open(OpenOptions::new().write(true)),
        open(OpenOptions::new().write(true).truncate(true)),
        open(OpenOptions::new().append(true).custom_flags(libc::O_TRUNC)),
        OpenOptions::new().append(true).open(path).and_then(|mut f| f.write_all(b"more")),
        rustix::fs::removexattr(path, "user.b").map_err(io::Error::from),
    ];
    let is = |r: io::Result<()>| match r {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => true,
        Ok(()) => false,
        Err(e) => panic!("{e}"),
    };
    all.into_iter().map(is).collect()
}

#[test]
fn locked_files_take_what_they_take_elsewhere() {
    if !may_test() {
        return;
    }
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    let path = m.path().join("f");
    let make = || {
        fs::write(&path, "text").unwrap();
        rustix::fs::setxattr(&path, "user.b", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    };
    for (bits, appends) in [(0x10, false), (0x20, true)] {
        make();
        chattr(&path, bits);
        let mut want = vec![true; 9];
        want[7] = !appends;
        assert_eq!(refused(&path), want, "flags {bits:#x}");
        chattr(&path, bits);
        chattr(&path, 0);
        assert_eq!(fs::read_to_string(&path).unwrap(), if appends { "textmore" } else { "text" });
        fs::remove_file(&path).unwrap();
    }
    make();
    assert_eq!(refused(&path), [false; 9]);
}

#[test]
fn flags_that_are_not_known_are_refused() {
    if !may_test() {
        return;
    }
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    let path = m.path().join("f");
    fs::write(&path, "text").unwrap();
    let file = File::open(&path).unwrap();
    let set = |bits, extent| ioctl(&file, FSSETXATTR, &mut [bits, extent, 0, 0, 0, 0, 0]);
    assert_eq!(set(0x80, 0), Ok(()), "no dump");
    // Synchronous updates, no access times, filestreams, DAX: what ext4 or XFS has.
    for bits in [0x20, 0x40, 0x4000, 0x8000] {
        assert!(
            matches!(set(bits, 0), Err(libc::EOPNOTSUPP | libc::EINVAL)),
            "{bits:#x}: {:?}",
            set(bits, 0)
        );
    }
}
