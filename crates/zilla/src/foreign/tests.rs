use super::*;
use std::path::Path;
use std::process::Command;
use zilla_env::{MemDevice, block_on};

const SIZE: u64 = 64 << 20;

fn device(marks: &[(u64, &[u8])]) -> Arc<dyn Device> {
    let mut image = vec![0; SIZE as usize];
    for (at, bytes) in marks {
        image[*at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(SIZE));
    for (i, piece) in image.chunks(1 << 20).enumerate() {
        if piece.iter().any(|b| *b != 0) {
            block_on(device.write((i as u64) << 20, IoBuf::from_slice(piece).into_bytes())).expect("written");
        }
    }
    device
}

fn found(marks: &[(u64, &[u8])]) -> Option<Foreign> {
    block_on(look(&device(marks))).expect("readable")
}

#[test]
fn every_mark_is_found_at_each_of_its_places() {
    assert_eq!(found(&[]), None);
    for mark in MARKS {
        for at in mark.at {
            let is = found(&[(*at, mark.bytes)]);
            assert_eq!(is, Some(Foreign::FileSystem(mark.name)), "{} at {at}", mark.name);
        }
    }
    for mark in IMAGES {
        assert_eq!(found(&[(mark.at[0], mark.bytes)]), Some(Foreign::Image(mark.name)));
    }
    for mark in TABLES {
        assert_eq!(found(&[(mark.at[0], mark.bytes)]), Some(Foreign::Partitions(mark.name)));
    }
}

#[test]
fn blank_is_what_has_nothing_where_marks_could_be() {
    let blank = |marks: &[(u64, &[u8])]| block_on(is_blank(&device(marks))).expect("readable");
    assert!(blank(&[]));
    assert!(!blank(&[(0, b"x")]));
    assert!(!blank(&[(HEAD - 1, b"x")]));
    assert!(!blank(&[(SIZE - TAIL, b"x")]));
    assert!(!blank(&[(SIZE - 1, b"x")]));
    assert!(blank(&[(SIZE / 2, b"x")]));
}

/// Fixtures of the marks that need more than a comparison, at the places that the formats'
/// documents give.
#[test]
fn marks_with_conditions() {
    let fs = |name| Some(Foreign::FileSystem(name));
    let ext: (u64, &[u8]) = (1080, b"\x53\xef");
    assert_eq!(found(&[ext]), fs("ext2"));
    assert_eq!(found(&[ext, (1116, b"\x04")]), fs("ext3"));
    assert_eq!(found(&[ext, (1116, b"\x04"), (1120, b"\x42")]), fs("ext4"));
    assert_eq!(found(&[ext, (1120, b"\x08")]), fs("jbd"));
    assert_eq!(found(&[ext, (1048, b"\x07")]), None, "no such block size");
    assert_eq!(found(&[(54, b"FAT16   "), (510, b"\x55\xaa")]), fs("vfat"));
    assert_eq!(found(&[(82, b"FAT32   "), (510, b"\x55\xaa")]), fs("vfat"));
    assert_eq!(found(&[(1024, b"\x02\0\0\0\0\0\x34\x34"), (1040, b"\x18\x01")]), fs("nilfs2"));
    assert_eq!(found(&[(1024, b"BD"), (1044, b"\0\0\x10\0")]), fs("hfs"));
    let md = b"\xfc\x4e\x2b\xa9";
    assert_eq!(found(&[(SIZE - (64 << 10), md)]), fs("linux_raid_member"));
    assert_eq!(found(&[(SIZE - (8 << 10), md)]), fs("linux_raid_member"));
    assert_eq!(found(&[(SIZE - 1024, b"Intel Raid ISM Cfg Sig. ")]), fs("isw_raid_member"));
    assert_eq!(found(&[(SIZE - 512, b"\xde\x11\xde\x11")]), fs("ddf_raid_member"));
    assert_eq!(found(&[(SIZE - 4096 + 60, b"\x83\x74\x02\x6b")]), fs("drbd"));
}

#[test]
fn boot_records() {
    let entry = b"\x80\0\0\0\x83\0\0\0\0\x08\0\0\0\0\x01\0";
    let end: (u64, &[u8]) = (510, b"\x55\xaa");
    assert_eq!(found(&[end]), None, "a table without a partition holds nothing");
    assert_eq!(found(&[end, (446, entry)]), Some(Foreign::Partitions("dos")));
    assert_eq!(found(&[(446, entry)]), None);
    // Its GPT is gone, but there was one.
    let guard = b"\0\0\x02\0\xee\xff\xff\xff\x01\0\0\0\xff\xff\x01\0";
    assert_eq!(found(&[end, (446, guard)]), Some(Foreign::Partitions("gpt")));
}

/// What the programs themselves leave, where they are installed.
#[test]
fn what_real_programs_make() {
    let cases: &[(&str, &[&str], Foreign)] = &[
        ("mkfs.ext2", &["-q", "-F"], Foreign::FileSystem("ext2")),
        ("mkfs.ext3", &["-q", "-F"], Foreign::FileSystem("ext3")),
        ("mkfs.ext4", &["-q", "-F"], Foreign::FileSystem("ext4")),
        ("mkfs.btrfs", &["-q", "-f"], Foreign::FileSystem("btrfs")),
        ("mkfs.xfs", &["-q", "-f"], Foreign::FileSystem("xfs")),
        ("mkfs.vfat", &[], Foreign::FileSystem("vfat")),
        ("mkfs.ntfs", &["-q", "-F", "-f"], Foreign::FileSystem("ntfs")),
        ("mkfs.f2fs", &["-q", "-f"], Foreign::FileSystem("f2fs")),
        ("mkswap", &[], Foreign::FileSystem("swap")),
    ];
    let dir = tempfile::tempdir().expect("temporary folder");
    let env = zilla_env::real_env(1);
    let mut tried = 0;
    for (program, options, wanted) in cases {
        let Some(program) = ["/usr/sbin", "/sbin", "/usr/bin"]
            .iter()
            .map(|d| Path::new(d).join(program))
            .find(|p| p.exists())
        else {
            eprintln!("not tried: {program} is not installed");
            continue;
        };
        let image = dir.path().join("image");
        let file = std::fs::File::create(&image).expect("image");
        file.set_len(320 << 20).expect("image");
        let done = Command::new(&program).args(*options).arg(&image).output().expect("program");
        assert!(done.status.success(), "{program:?}: {}", String::from_utf8_lossy(&done.stderr));
        let is = block_on(async {
            let device = env.open(&image, zilla_env::OpenMode::default()).await?;
            look(&device).await
        });
        assert_eq!(is.expect("readable"), Some(wanted.clone()), "{program:?}");
        tried += 1;
    }
    assert!(tried >= 3 || std::env::var_os("CI").is_none(), "CI has e2fsprogs and util-linux");
}

#[test]
fn tables_of_parted() {
    let parted = Path::new("/usr/sbin/parted");
    if !parted.exists() {
        eprintln!("not run: parted is not installed");
        return;
    }
    let dir = tempfile::tempdir().expect("temporary folder");
    let image = dir.path().join("image");
    let env = zilla_env::real_env(1);
    for (label, wanted) in [("gpt", "gpt"), ("msdos", "dos")] {
        for used in [false, true] {
            std::fs::File::create(&image).and_then(|f| f.set_len(SIZE)).expect("image");
            let mut words = vec!["-s", "mklabel", label];
            if used {
                words.extend(["mkpart", "primary", "1MiB", "32MiB"]);
            }
            let done =
                Command::new(parted).arg(words[0]).arg(&image).args(&words[1..]).output().expect("parted");
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            let is = block_on(async {
                let device = env.open(&image, zilla_env::OpenMode::default()).await?;
                look(&device).await
            });
            // An empty table holds nothing that could be lost.
            assert_eq!(is.expect("readable"), used.then_some(Foreign::Partitions(wanted)), "{label}");
        }
    }
}
