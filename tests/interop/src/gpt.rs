//! Whole disks: finding the partition that holds the vdev, and cutting it out, so that no loop
//! device and no root is needed.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

const SECTOR: u64 = 512;

/// The bytes of the first partition, if the image has a GPT.
pub fn first_partition(image: &Path) -> Option<Range<u64>> {
    let file = File::open(image).ok()?;
    let mut header = [0u8; 92];
    file.read_exact_at(&mut header, SECTOR).ok()?;
    if &header[..8] != b"EFI PART" {
        return None;
    }
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    let mut entry = [0u8; 128];
    file.read_exact_at(&mut entry, word(&header, 72) * SECTOR).ok()?;
    Some(word(&entry, 32) * SECTOR..(word(&entry, 40) + 1) * SECTOR)
}

/// Copies a range of an image to a file of its own, holes staying holes.
pub fn cut(image: &Path, range: Range<u64>, target: &Path) {
    let (from, to) = (File::open(image).expect("image"), File::create(target).expect("partition"));
    to.set_len(range.end - range.start).expect("partition");
    let mut buffer = vec![0u8; 64 << 10];
    let mut at = range.start;
    while at < range.end {
        let n = buffer.len().min((range.end - at) as usize);
        from.read_exact_at(&mut buffer[..n], at).expect("image");
        if buffer[..n].iter().any(|&b| b != 0) {
            to.write_all_at(&buffer[..n], at - range.start).expect("partition");
        }
        at += n as u64;
    }
}
