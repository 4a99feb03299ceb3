//! What lies on a device that is about to become part of a pool: file systems, swap, RAID,
//! encryption, volume managers and partition tables of others, known by the marks that they leave.
//!
//! No crate does this: those there are bind libblkid, which is neither Rust nor permissive. A mark
//! is a few bytes at a fixed place, and the places and the types' names are libblkid's, because
//! OpenZFS prints those. The beginning and the end of the device are read once. The daemon reads
//! from the descriptor that the pool will then use, so nothing can be put there in between; who
//! makes a pool by the library alone must keep others away from its devices. Whatever is read is
//! only compared; nothing of it decides how much is read. A mark found in vain costs a `-f`; one
//! that is missed costs somebody's data, so short marks count too, with one more check.

use std::io;
use std::sync::Arc;
use zilla_core::vdev::gpt;
use zilla_env::{Device, IoBuf};

/// Whole pages are read, which direct I/O takes with any sector size.
const PAGE: u64 = 4096;
/// The farthest mark from the beginning but VMFS's is within: those at 64K.
const HEAD: u64 = 256 << 10;
/// The farthest mark from the end is within: that of old md arrays, at most 128K before it.
const TAIL: u64 = 192 << 10;
const VMFS_VOLUME: u64 = 1 << 20;
const VMFS: u64 = 2 << 20;

/// Partition types (GUIDs as they lie on disk) of ZFS, and of the small one that OpenZFS puts
/// behind it.
const GPT_ZFS: [u8; 16] = *b"\xc3\x8c\x89\x6a\xd2\x1d\xb2\x11\x99\xa6\x08\x00\x20\x73\x66\x31";
const GPT_RESERVED: [u8; 16] = *b"\x3b\x5b\x94\x6a\xd2\x1d\xb2\x11\x99\xa6\x08\x00\x20\x73\x66\x31";

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Foreign {
    /// A file system or something that stands in its place, by libblkid's name.
    FileSystem(&'static str),
    /// A disk image of a virtual machine.
    Image(&'static str),
    /// A partition table, by its name.
    Partitions(&'static str),
}

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Foreign::FileSystem(name) => write!(f, "contains a filesystem of type '{name}'"),
            Foreign::Image(name) => write!(f, "contains a disk image of type '{name}'"),
            Foreign::Partitions(name) => write!(f, "contains a partition table of type '{name}'"),
        }
    }
}

/// The parts of a device that were read.
struct View {
    size: u64,
    parts: Vec<(u64, IoBuf)>,
}

impl View {
    async fn of(device: &Arc<dyn Device>) -> io::Result<View> {
        let size = device.size();
        let mut view = View { size, parts: Vec::new() };
        let tail = size.saturating_sub(TAIL) & !(PAGE - 1);
        for (at, len) in [(0, HEAD), (VMFS_VOLUME, PAGE), (VMFS, PAGE), (tail, size - tail)] {
            let len = len.min(size.saturating_sub(at));
            if len > 0 {
                view.parts.push((at, device.read(at, len as usize).await?));
            }
        }
        Ok(view)
    }

    fn bytes(&self, at: u64, len: usize) -> Option<&[u8]> {
        self.parts.iter().find_map(|(start, part)| {
            let from = usize::try_from(at.checked_sub(*start)?).ok()?;
            part.get(from..from.checked_add(len)?)
        })
    }

    fn is(&self, at: u64, mark: &[u8]) -> bool {
        self.bytes(at, mark.len()) == Some(mark)
    }

    fn u32(&self, at: u64) -> u32 {
        self.bytes(at, 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
    }

    fn u16(&self, at: u64) -> u16 {
        self.bytes(at, 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
    }
}

/// A mark at one of several places.
struct Mark {
    name: &'static str,
    at: &'static [u64],
    bytes: &'static [u8],
}

const fn mark(name: &'static str, at: &'static [u64], bytes: &'static [u8]) -> Mark {
    Mark { name, at, bytes }
}

/// The superblock of ext2, ext3 and ext4.
const EXT: u64 = 1024;
/// A sector's end in a master boot record and in FAT.
const BOOT_MARK: u64 = 510;
/// Where the last bytes of the first page lie for pages of 4K to 64K, ten before its end.
const SWAP: &[u64] = &[0xff6, 0x1ff6, 0x3ff6, 0x7ff6, 0xfff6];

/// Those that say enough by themselves. What holds others (RAID, encryption, volumes) comes first.
const MARKS: &[Mark] = &[
    mark("crypto_LUKS", &[0], b"LUKS\xba\xbe"),
    // The second header, where the first was overwritten.
    mark("crypto_LUKS", &[0x4000, 0x8000, 0x10000, 0x20000], b"SKUL\xba\xbe"),
    mark("LVM2_member", &[24, 536, 1048, 1560], b"LVM2 001"),
    mark("linux_raid_member", &[0, 4096], b"\xfc\x4e\x2b\xa9"),
    mark("bcache", &[4120], b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    mark("bcachefs", &[4120], b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    mark("stratis", &[516, 4612], b"!Stra0tis\x86\xff\x02^\x41rh"),
    mark("vdo", &[0], b"dmvdo001"),
    mark("ceph_bluestore", &[0], b"bluestore block device"),
    mark("oracleasm", &[32], b"ORCLDISK"),
    mark("VMFS_volume_member", &[VMFS_VOLUME], b"\x0d\xd0\x01\xc0"),
    mark("VMFS", &[VMFS], b"\x5e\xf1\xab\x2f"),
    mark("BitLocker", &[3], b"-FVE-FS-"),
    mark("xfs", &[0], b"XFSB"),
    mark("btrfs", &[0x10040], b"_BHRfS_M"),
    mark("swap", SWAP, b"SWAPSPACE2"),
    mark("swap", SWAP, b"SWAP-SPACE"),
    mark("swsuspend", SWAP, b"S1SUSPEND"),
    mark("swsuspend", SWAP, b"S2SUSPEND"),
    mark("swsuspend", &[0], b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c"),
    mark("ntfs", &[3], b"NTFS    "),
    mark("exfat", &[3], b"EXFAT   "),
    mark("udf", &[0x8801, 0x9001, 0x9801, 0xa001], b"NSR02"),
    mark("udf", &[0x8801, 0x9001, 0x9801, 0xa001], b"NSR03"),
    mark("iso9660", &[0x8001], b"CD001"),
    mark("hfsplus", &[1024], b"H+\x00\x04"),
    mark("hfsplus", &[1024], b"HX\x00\x05"),
    mark("apfs", &[32], b"NXSB"),
    mark("f2fs", &[1024], b"\x10\x20\xf5\xf2"),
    mark("erofs", &[1024], b"\xe2\xe1\xf5\xe0"),
    mark("ocfs2", &[1024, 2048, 4096, 8192], b"OCFSV2"),
    mark("gfs2", &[0x10000], b"\x01\x16\x19\x70\x00\x00\x00\x01"),
    mark("jfs", &[0x8000], b"JFS1"),
    mark("reiserfs", &[0x10034, 0x2034], b"ReIsEr"),
    mark("reiser4", &[0x10000], b"ReIsEr4"),
    mark("squashfs", &[0], b"hsqs"),
    mark("zonefs", &[0], b"SFOZ"),
    mark("ufs", &[0x1055c], b"\x19\x01\x54\x19"),
    mark("ufs", &[0x255c], b"\x54\x19\x01\x00"),
];

const IMAGES: &[Mark] = &[
    mark("qcow2", &[0], b"QFI\xfb"),
    mark("vmdk", &[0], b"KDMV"),
    mark("vhdx", &[0], b"vhdxfile"),
    mark("vdi", &[64], b"\x7f\x10\xda\xbe"),
];

const TABLES: &[Mark] = &[
    mark("mac", &[512], b"PM\x00\x00"),
    mark("bsd", &[0, 64, 512], b"\x57\x45\x56\x82"),
    mark("sun", &[508], b"\xda\xbe"),
    mark("sgi", &[0], b"\x0b\xe5\xa9\x41"),
    mark("amiga", &[0], b"RDSK"),
];

fn find(view: &View, marks: &[Mark]) -> Option<&'static str> {
    marks.iter().find(|m| m.at.iter().any(|at| view.is(*at, m.bytes))).map(|m| m.name)
}

/// RAID that keeps its superblock at the end.
fn raid_at_end(view: &View) -> Option<&'static str> {
    let sectors = view.size / 512;
    // Version 1.0: 8K before the end, on 4K; 0.90: the last whole 64K.
    let new = (sectors.saturating_sub(16) & !7) * 512;
    let old = (view.size & !0xffff).saturating_sub(0x10000);
    let md = b"\xfc\x4e\x2b\xa9";
    if view.is(new, md) || view.is(old, md) || view.is(old, b"\xa9\x2b\x4e\xfc") {
        return Some("linux_raid_member");
    }
    let from_end = |n: u64| (sectors * 512).saturating_sub(n);
    if view.is(from_end(1024), b"Intel Raid ISM Cfg Sig. ") {
        return Some("isw_raid_member");
    }
    if view.is(from_end(512), b"\xde\x11\xde\x11") {
        return Some("ddf_raid_member");
    }
    view.is(from_end(4096) + 60, b"\x83\x74\x02").then_some("drbd")
}

/// The second, third and fourth extended file system differ by what they use.
fn ext(view: &View) -> Option<&'static str> {
    const JOURNAL: u32 = 0x4;
    const JOURNAL_DEVICE: u32 = 0x8;
    /// What ext3 knows: file types, recovery, meta block groups; sparse superblocks, large files,
    /// trees of directories.
    const EXT3_INCOMPAT: u32 = 0x2 | 0x4 | 0x10;
    const EXT3_RO_COMPAT: u32 = 0x1 | 0x2 | 0x4;
    // A block is 1K << n, up to 64K.
    if !view.is(EXT + 0x38, b"\x53\xef") || view.u32(EXT + 0x18) > 6 {
        return None;
    }
    let (compat, incompat, ro) = (view.u32(EXT + 0x5c), view.u32(EXT + 0x60), view.u32(EXT + 0x64));
    Some(match () {
        () if incompat & JOURNAL_DEVICE != 0 => "jbd",
        () if incompat & !EXT3_INCOMPAT != 0 || ro & !EXT3_RO_COMPAT != 0 => "ext4",
        () if compat & JOURNAL != 0 => "ext3",
        () => "ext2",
    })
}

fn fat(view: &View) -> bool {
    let name = |at, mark: &[u8]| view.is(at, mark);
    view.is(BOOT_MARK, b"\x55\xaa")
        && (name(54, b"FAT12   ") || name(54, b"FAT16   ") || name(54, b"FAT     ") || name(82, b"FAT32   "))
}

fn nilfs(view: &View) -> bool {
    // Magic, revision and the length of the superblock.
    view.is(EXT + 6, b"\x34\x34")
        && matches!(view.u32(EXT), 1 | 2)
        && (1..=1024).contains(&view.u16(EXT + 16))
}

fn hfs(view: &View) -> bool {
    let block = view.bytes(EXT + 20, 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes);
    view.is(EXT, b"BD") && block != 0 && block.is_multiple_of(512)
}

/// A master boot record with at least one partition; `gpt` if that is the one that only guards a
/// GPT.
fn boot_record(view: &View) -> Option<&'static str> {
    const GUARDS_GPT: u8 = 0xee;
    let table = view.bytes(446, 64)?;
    let mut used = None;
    for entry in table.chunks_exact(16) {
        let (flag, kind) = (*entry.first()?, *entry.get(4)?);
        if !matches!(flag, 0 | 0x80) {
            return None;
        }
        if kind != 0 && entry.get(12..16)? != [0; 4] {
            used = Some(if kind == GUARDS_GPT { "gpt" } else { "dos" });
        }
    }
    used.filter(|_| view.is(BOOT_MARK, b"\x55\xaa"))
}

fn contents(view: &View) -> Option<Foreign> {
    let found = find(view, MARKS)
        .or_else(|| raid_at_end(view))
        .or_else(|| ext(view))
        .or_else(|| fat(view).then_some("vfat"))
        .or_else(|| nilfs(view).then_some("nilfs2"))
        .or_else(|| hfs(view).then_some("hfs"));
    found.map(Foreign::FileSystem).or_else(|| find(view, IMAGES).map(Foreign::Image))
}

/// What a device holds that is not a pool's.
pub async fn look(device: &Arc<dyn Device>) -> io::Result<Option<Foreign>> {
    let view = View::of(device).await?;
    if let Some(found) = contents(&view) {
        return Ok(Some(found));
    }
    // OpenZFS gives whole disks a table of its own; what lies in its partitions is a pool's, which
    // labels tell, or nobody's.
    if let Some(entries) = gpt::entries(device).await {
        for entry in entries {
            if entry.kind != GPT_ZFS && entry.kind != GPT_RESERVED {
                return Ok(Some(Foreign::Partitions("gpt")));
            }
            let part: Arc<dyn Device> = Arc::new(entry.partition);
            if let Some(found) = contents(&View::of(&part).await?) {
                return Ok(Some(found));
            }
        }
        return Ok(None);
    }
    Ok(boot_record(&view).or_else(|| find(&view, TABLES)).map(Foreign::Partitions))
}

/// Whether there is nothing at all where marks could be: neither a known one nor an unknown one.
pub async fn is_blank(device: &Arc<dyn Device>) -> io::Result<bool> {
    let view = View::of(device).await?;
    Ok(view.parts.iter().all(|(_, part)| part.iter().all(|byte| *byte == 0)))
}

#[cfg(test)]
mod tests;
