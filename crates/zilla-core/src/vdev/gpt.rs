//! The partitions of a disk image.
//!
//! Whole disks given to OpenZFS get a partition table (GPT) with the pool in the first partition.
//! The kernel shows that as a device of its own; in an image file we must look ourselves. Only the
//! primary table is used: a device whose table is damaged can still be given by the partition's
//! path.
//!
//! ```text
//! sector 1: "EFI PART", ..., header size @12, header CRC @16, LBA of entries @72, number @80, entry size @84
//! entry:    type guid, own guid, first LBA @32, last LBA @40
//! ```

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::io;
use std::sync::Arc;

use zilla_env::{Device, DeviceInfo, Io, IoOp, check_bounds};

/// A range of another device.
pub struct Partition {
    inner: Arc<dyn Device>,
    start: u64,
    len: u64,
}

impl Partition {
    pub fn new(inner: Arc<dyn Device>, start: u64, len: u64) -> Partition {
        Partition { inner, start, len }
    }
}

impl Device for Partition {
    fn submit(&self, batch: Vec<Io>) {
        let mut inside = Vec::with_capacity(batch.len());
        for mut io in batch {
            if let Err(e) = check_bounds(&io.op, self.len) {
                io.done.complete(Err(e));
                continue;
            }
            match &mut io.op {
                IoOp::Read { offset, .. }
                | IoOp::Write { offset, .. }
                | IoOp::Discard { offset, .. }
                | IoOp::WriteZeroes { offset, .. } => *offset += self.start,
                IoOp::Flush => {}
            }
            inside.push(io);
        }
        self.inner.submit(inside);
    }

    fn size(&self) -> u64 {
        self.len
    }

    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn refresh_size(&self) -> io::Result<u64> {
        self.inner.refresh_size()?;
        Ok(self.len)
    }
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..)?.first_chunk().map(|c| u32::from_le_bytes(*c))
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    b.get(at..)?.first_chunk().map(|c| u64::from_le_bytes(*c))
}

pub(super) fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg()))
    })
}

/// Entries that a table has at most, as every tool makes it; more are not looked at.
const MAX_ENTRIES: u32 = 128;

/// Where the table's header is looked for, whatever the sectors.
const HEAD: u64 = 8192;

/// A used entry of a table.
pub struct Entry {
    /// From 1 on, as the kernel counts.
    pub number: u32,
    /// What it is for: the type's guid as it lies on the disk.
    pub kind: [u8; 16],
    pub partition: Partition,
}

/// The used entries of a device that begins with a valid table; None where there is no such table.
#[crate::boxed]
pub async fn entries(device: &Arc<dyn Device>) -> Option<Vec<Entry>> {
    if device.size() < HEAD {
        return None;
    }
    // Whole pages, so that direct I/O with any sector size takes it.
    let head = device.read(0, HEAD as usize).await.ok()?;
    for sector in [512u64, 4096] {
        if device.size() < 4 * sector {
            return None;
        }
        let header = head.get(sector as usize..)?;
        let Some(table) = table(header, sector) else { continue };
        let at = table.entry_lba.checked_mul(sector)?;
        let aligned = at & !4095;
        let bytes = u64::from(table.count) * u64::from(table.entry_size);
        let len = (at - aligned + bytes).next_multiple_of(4096).min(device.size().checked_sub(aligned)?);
        let buf = device.read(aligned, len as usize).await.ok()?;
        let all = buf.get((at - aligned) as usize..)?.chunks_exact(table.entry_size as usize);
        let read = |(number, entry): (u32, &[u8])| {
            let kind = *entry.first_chunk::<16>()?;
            let (first, last) = (u64_at(entry, 32)?, u64_at(entry, 40)?);
            let start = first.checked_mul(sector)?;
            let end = last.checked_add(1)?.checked_mul(sector)?;
            let used = kind != [0; 16] && first > 1 && start < end && end <= device.size();
            used.then(|| Entry {
                number,
                kind,
                partition: Partition::new(device.clone(), start, end - start),
            })
        };
        return Some((1..=table.count).zip(all).filter_map(read).collect());
    }
    None
}

/// The first partition, where the device begins with a valid table.
#[crate::boxed]
pub async fn first_partition(device: &Arc<dyn Device>) -> Option<Partition> {
    let first = entries(device).await?.into_iter().next()?;
    (first.number == 1).then_some(first.partition)
}

/// Where the entries begin, how many there are and how long each is.
struct Table {
    entry_lba: u64,
    count: u32,
    entry_size: u32,
}

fn table(header: &[u8], sector: u64) -> Option<Table> {
    if header.get(..8)? != b"EFI PART" {
        return None;
    }
    let size = u32_at(header, 12)? as usize;
    if !(92..=sector as usize).contains(&size) {
        return None;
    }
    let mut copy = header.get(..size)?.to_vec();
    copy.get_mut(16..20)?.fill(0);
    let entry_size = u32_at(header, 84)?;
    let valid = crc32(&copy) == u32_at(header, 16)? && (128..=4096).contains(&entry_size);
    let (entry_lba, count) = (u64_at(header, 72)?, u32_at(header, 80)?.min(MAX_ENTRIES));
    valid.then_some(Table { entry_lba, count, entry_size })
}
