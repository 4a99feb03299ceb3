//! Moving sectors of a RAID-Z to where they are with one more child. Who calls sees to it that
//! nobody else does I/O there (`reflow.rs`).

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use zilla_env::IoBuf;
use zilla_ondisk::label::{VDEV_BOOT_OFFSET, VDEV_BOOT_SIZE, VDEV_LABEL_START_SIZE};

use super::leaf::Leaf;
use super::priority::Priority;
use super::tree::Top;

/// The children as they are now, and how many there were.
pub struct Move {
    leaves: Vec<Arc<Leaf>>,
    ashift: u32,
    pub old: u64,
    new: u64,
}

/// What a child has of a stretch of sectors: from this row on.
struct Part {
    row: u64,
    data: Bytes,
}

impl Move {
    /// Of a vdev of which every child is one device.
    pub fn new(top: &Top) -> Move {
        let leaves: Vec<Arc<Leaf>> = top.leaves().cloned().collect();
        let new = leaves.len() as u64;
        Move { leaves, ashift: top.ashift(), old: new.saturating_sub(1).max(1), new: new.max(1) }
    }

    /// Bytes of the vdev that the scratch areas hold.
    pub fn first(&self) -> u64 {
        (VDEV_BOOT_SIZE >> self.ashift << self.ashift) * self.new
    }

    /// Moves the sectors from one offset of the vdev's space to another.
    pub async fn sectors(&self, from: u64, to: u64) -> io::Result<()> {
        let parts = self.read(from >> self.ashift, to >> self.ashift).await?;
        self.write(parts, VDEV_LABEL_START_SIZE).await
    }

    /// Copies the first rows, as they are to be, to the scratch area; how many bytes. What is not
    /// in use need not be readable.
    pub async fn to_scratch(&self, used: &[(u64, u64)]) -> io::Result<u64> {
        let parts = match self.read(0, self.first() >> self.ashift).await {
            Ok(parts) => parts,
            Err(_) => self.read_used(used).await?,
        };
        let marks: Vec<u64> = self.leaves.iter().map(|l| l.mark()).collect();
        self.write(parts, VDEV_BOOT_OFFSET).await?;
        self.flush(&marks).await?;
        Ok(self.first())
    }

    /// Writes what is in the scratch area, `first` bytes of the vdev, to its places.
    pub async fn from_scratch(&self, first: u64) -> io::Result<()> {
        let len = first / self.new;
        if len == 0 || len > VDEV_BOOT_SIZE || !len.is_multiple_of(1 << self.ashift) {
            return Err(io::Error::other("the scratch area has an impossible size"));
        }
        let reads = self.leaves.iter().map(|l| l.read_at(VDEV_BOOT_OFFSET, len, Priority::Removal));
        let parts = try_join_all(reads).await?.into_iter().map(|data| Some(Part { row: 0, data }));
        let marks: Vec<u64> = self.leaves.iter().map(|l| l.mark()).collect();
        self.write(parts.collect(), VDEV_LABEL_START_SIZE).await?;
        self.flush(&marks).await
    }

    /// The first rows with nothing in them but what is in use.
    async fn read_used(&self, used: &[(u64, u64)]) -> io::Result<Vec<Option<Part>>> {
        let mut rows: Vec<_> = (0..self.new).map(|_| IoBuf::zeroed(VDEV_BOOT_SIZE as usize)).collect();
        for (from, to) in used {
            let parts = self.read(from >> self.ashift, to.min(&self.first()) >> self.ashift).await?;
            for (row, part) in rows.iter_mut().zip(parts) {
                let Some(Part { row: at, data }) = part else { continue };
                let at = (at << self.ashift) as usize;
                let place = row.get_mut(at..at + data.len());
                place
                    .ok_or_else(|| io::Error::other("a sector beyond the first rows"))?
                    .copy_from_slice(&data);
            }
        }
        let len = (VDEV_BOOT_SIZE >> self.ashift << self.ashift) as usize;
        Ok(rows.into_iter().map(|row| Some(Part { row: 0, data: row.into_bytes().slice(..len) })).collect())
    }

    /// Reads sectors from their old places: what each child is to have of them.
    async fn read(&self, from: u64, to: u64) -> io::Result<Vec<Option<Part>>> {
        let reads = (0..self.old).zip(&self.leaves).map(async |(child, leaf)| {
            let Some((row, rows)) = rows(child, self.old, from, to) else { return Ok((0, Bytes::new())) };
            let at = VDEV_LABEL_START_SIZE + (row << self.ashift);
            leaf.read_at(at, rows << self.ashift, Priority::Removal).await.map(|data| (row, data))
        });
        let have = try_join_all(reads).await?;
        let sector = |n: u64| {
            let (row, data) = have.get((n % self.old) as usize)?;
            let at = ((n / self.old).checked_sub(*row)? << self.ashift) as usize;
            data.get(at..at + (1 << self.ashift))
        };
        let part = |child| {
            let Some((row, rows)) = rows(child, self.new, from, to) else { return Ok(None) };
            let mut buf = IoBuf::scratch((rows << self.ashift) as usize);
            for (i, place) in buf.chunks_exact_mut(1 << self.ashift).enumerate() {
                let from = sector((row + i as u64) * self.new + child);
                place.copy_from_slice(from.ok_or_else(|| io::Error::other("a sector was not read"))?);
            }
            Ok(Some(Part { row, data: buf.into_bytes() }))
        };
        (0..self.new).map(part).collect()
    }

    async fn write(&self, parts: Vec<Option<Part>>, base: u64) -> io::Result<()> {
        let writes = self.leaves.iter().zip(parts).filter_map(|(leaf, part)| Some((leaf, part?)));
        let writes = writes.map(|(leaf, part)| {
            leaf.write_at(base + (part.row << self.ashift), part.data, Priority::Removal)
        });
        // None may be under way when others are let in again, also if one has failed.
        join_all(writes).await.into_iter().collect()
    }

    async fn flush(&self, marks: &[u64]) -> io::Result<()> {
        try_join_all(self.leaves.iter().zip(marks).map(|(l, mark)| l.flush(*mark))).await.map(drop)
    }
}

/// The first row that a child has of sectors `from..to`, and how many rows.
fn rows(child: u64, width: u64, from: u64, to: u64) -> Option<(u64, u64)> {
    let row = |n: u64| n.saturating_sub(child).div_ceil(width);
    let (first, end) = (row(from), row(to));
    (end > first).then_some((first, end - first))
}
