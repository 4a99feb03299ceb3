//! A mounted file system on a store in memory, used as programs use one. Where /dev/fuse is not to
//! be had there is nothing to test.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use zilla::FsProps;

mod common;
mod handles;
mod hostile;
mod places;
mod privileges;
use common::Mounted;

#[test]
fn a_tree_of_files() {
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    let p = m.path();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|l| l.contains(p.to_str().unwrap())).unwrap();
    assert!(line.starts_with("tank/test ") && line.contains(" fuse.zfs "), "{line}");

    fs::create_dir(p.join("d")).unwrap();
    for i in 0..500 {
        fs::write(p.join(format!("d/{i}")), format!("file {i}")).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(p.join("d")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 500);
    for i in 0..500 {
        assert_eq!(fs::read_to_string(p.join(format!("d/{i}"))).unwrap(), format!("file {i}"));
    }
    assert!(fs::remove_dir(p.join("d")).is_err());
    fs::rename(p.join("d/7"), p.join("seven")).unwrap();
    fs::hard_link(p.join("seven"), p.join("sept")).unwrap();
    assert_eq!(fs::metadata(p.join("sept")).unwrap().nlink(), 2);
    symlink("sept", p.join("sieben")).unwrap();
    assert_eq!(fs::read_to_string(p.join("sieben")).unwrap(), "file 7");
    fs::set_permissions(p.join("seven"), Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(p.join("sept")).unwrap().mode(), 0o100640);
    fs::remove_dir_all(p.join("d")).unwrap();
    assert!(!p.join("d").exists());
    assert_eq!(fs::metadata(p).unwrap().nlink(), 2);
}

#[test]
fn contents_large_and_small() {
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    let path = m.path().join("f");
    let data: Vec<u8> = (0..9_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut f = OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
    f.write_all(&data).unwrap();
    f.write_all_at(b"patched", 1_000_003).unwrap();
    let mut want = data;
    want[1_000_003..1_000_010].copy_from_slice(b"patched");
    let mut got = Vec::new();
    f.seek(SeekFrom::Start(0)).unwrap();
    f.read_to_end(&mut got).unwrap();
    assert!(got == want);
    // Not from the page cache.
    let other = m.path().join("g");
    fs::copy(&path, &other).unwrap();
    assert!(fs::read(&other).unwrap() == want);
    f.set_len(10).unwrap();
    f.set_len(300_000).unwrap();
    want.truncate(10);
    want.resize(300_000, 0);
    assert!(fs::read(&path).unwrap() == want);
    // Appending, and unlinked but open.
    let mut a = OpenOptions::new().append(true).open(&path).unwrap();
    a.write_all(b"the end").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(a.metadata().unwrap().len(), 300_007);
    let mut tail = [0; 7];
    f.read_exact_at(&mut tail, 300_000).unwrap();
    assert_eq!(&tail, b"the end");
    assert!(File::open(&path).is_err());
}

#[test]
fn what_is_written_directly_is_read_through_the_cache() {
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    // First they grow, then they are written over: in between the kernel is told that it need not
    // ask who opens what.
    let files: Vec<(PathBuf, File)> = (0..2)
        .map(|i| {
            let path = m.path().join(format!("f{i}"));
            // Made only to be written.
            let file = File::create(&path).unwrap();
            (path, file)
        })
        .collect();
    for asked in [true, false] {
        if !asked {
            let path = m.path().join("other");
            File::create(&path).unwrap();
            (0..1100).for_each(|_| drop(File::open(&path).unwrap()));
        }
        let old = std::thread::scope(|scope| {
            let all: Vec<_> = files.iter().map(|(path, file)| scope.spawn(|| rewrite(path, file))).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(old, [None, None], "where a page is old; the kernel asks: {asked}");
    }
}

/// Writes over the same megabytes while another reads pages of them, and looks each time whether
/// all are new. The kernel forgets them all before it sends the first one. Returns where one was
/// not.
fn rewrite(path: &Path, file: &File) -> Option<(u8, usize)> {
    const LEN: usize = 8 << 20;
    let beside = File::open(path).unwrap();
    let (mut page, mut got) = ([0; 4096], vec![0; LEN]);
    (1..30u8).find_map(|round| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                file.write_all_at(&vec![round; LEN], 0).unwrap();
                done.store(true, Ordering::Release);
            });
            let mut at = u64::from(round);
            while !done.load(Ordering::Acquire) {
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let _ = beside.read_at(&mut page, (at >> 33) % (LEN as u64 / 4096) * 4096).unwrap();
            }
        });
        beside.read_exact_at(&mut got, 0).unwrap();
        Some(round).zip(got.iter().position(|b| *b != round))
    })
}

#[test]
fn a_write_takes_capabilities_away() {
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    // Version 2 of the attribute, with CAP_NET_RAW permitted (linux/capability.h).
    let mut caps = [0; 20];
    caps[..8].copy_from_slice(&[1, 0, 0, 2, 0, 0x20, 0, 0]);
    let name = "security.capability";
    let has = |f: &File| rustix::fs::fgetxattr(f, name, &mut [0u8; 64]).is_ok();
    let path = m.path().join("f");
    let new = File::create(&path).unwrap();
    new.write_all_at(b"1", 0).unwrap();
    let cached = OpenOptions::new().write(true).open(&path).unwrap();
    for f in [&new, &cached] {
        if let Err(e) = rustix::fs::fsetxattr(f, name, &caps, rustix::fs::XattrFlags::empty()) {
            assert!(std::env::var_os("CI").is_none(), "this test needs root: {e}");
            eprintln!("nothing tested, which takes root: {e}");
            return;
        }
        assert!(has(f));
        f.write_all_at(b"2", 0).unwrap();
        assert!(!has(f));
    }
}

#[test]
fn files_without_a_name_get_one() {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    let p = m.path();
    let make = |more| File::from(open(p, OFlags::TMPFILE | OFlags::RDWR | more, Mode::from(0o640)).unwrap());
    let name = |f: &File, as_: &str| {
        let fd = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(f));
        linkat(CWD, fd, CWD, p.join(as_), AtFlags::SYMLINK_FOLLOW)
    };
    let f = make(OFlags::empty());
    f.write_all_at(b"late", 0).unwrap();
    let meta = f.metadata().unwrap();
    assert_eq!((meta.nlink(), meta.mode(), meta.len()), (0, 0o100640, 4));
    assert_eq!(fs::read_dir(p).unwrap().count(), 0);
    name(&f, "late").unwrap();
    assert_eq!(f.metadata().unwrap().nlink(), 1);
    name(&f, "later").unwrap();
    drop(f);
    assert_eq!(fs::read(p.join("late")).unwrap(), b"late");
    assert_eq!(fs::metadata(p.join("later")).unwrap().nlink(), 2);
    fs::remove_file(p.join("later")).unwrap();
    // Another one's name is refused, and who said O_EXCL keeps it without.
    let g = make(OFlags::EXCL);
    assert_eq!(name(&g, "g").unwrap_err(), rustix::io::Errno::NOENT);
    let h = make(OFlags::empty());
    assert_eq!(name(&h, "late").unwrap_err(), rustix::io::Errno::EXIST);
    name(&h, "h").unwrap();
    // What had its name and lost it gets no other one.
    fs::remove_file(p.join("h")).unwrap();
    assert_eq!(name(&h, "h").unwrap_err(), rustix::io::Errno::NOENT);
}

#[test]
fn each_reading_counts_where_it_shall() {
    let props = FsProps { atime: zilla::zpl::Atime::On, ..FsProps::default() };
    let Some(m) = Mounted::new(props) else { return };
    let path = m.path().join("f");
    fs::write(&path, "text").unwrap();
    let read = || {
        assert_eq!(fs::read(&path).unwrap(), b"text");
        fs::metadata(&path).unwrap().atime()
    };
    // More often than the kernel is asked for files that nobody opens for stable writes.
    let first = (0..1100).fold(0, |_, _| read());
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(read() > first);
}

#[test]
fn what_is_set_aside_must_be_there() {
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    let f = File::create(m.path().join("f")).unwrap();
    let free = rustix::fs::fstatvfs(&f).unwrap();
    let free = free.f_bavail * free.f_frsize;
    let set_aside = |len| rustix::fs::fallocate(&f, rustix::fs::FallocateFlags::empty(), 0, len);
    assert_eq!(set_aside(free / 10 * 11).unwrap_err(), rustix::io::Errno::NOSPC);
    set_aside(1 << 20).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 1 << 20);
}
