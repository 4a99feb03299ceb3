//! Moving what is on a vdev that is being removed, without knowing what blocks it is.
//!
//! Nobody can say which of a mirror's sides is right where they differ, for no checksum is at hand.
//! So all of them are read, and where they differ each is kept, on a side of its own of the mirror
//! that it goes to: a reader, who has the checksum, will find the right one. Where there are not
//! enough sides the removal is given up, and a scrub makes the sides equal.

use bytes::Bytes;
use futures_util::future::join_all;
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;

use super::track::OwnSide;
use super::write::{Place, Placement};
use super::{AllocClass, AllocReq, Priority, Zio};
use crate::error::{Errno, Error, Result};
use crate::types::Txg;
use crate::vdev::{Layout, Leaf, Run, Top};

/// Contents of a run as its sides have it; mostly they agree, and then there is one.
pub struct Sides {
    pub offset: u64,
    pub len: u64,
    pub versions: Vec<Bytes>,
}

impl Zio {
    /// Reads a run from every side that should have it.
    pub async fn read_sides(&self, top: &Top, offset: u64, len: u64) -> Result<Sides> {
        let Layout::Plain(unit) = &top.layout else {
            return Err(Error::os(Errno::NotSup, "only single disks and mirrors can be emptied"));
        };
        let whole = unit.leaves.iter().filter(|l| l.readable() && l.dtl.is_empty());
        let at = offset + VDEV_LABEL_START_SIZE;
        let reads = join_all(whole.map(|l| l.read_at(at, len, Priority::Removal))).await;
        let (mut versions, mut failed): (Vec<Bytes>, _) = (Vec::new(), None);
        for read in reads {
            match read {
                Ok(data) if versions.contains(&data) => {}
                Ok(data) => versions.push(data),
                Err(e) => failed = Some(e),
            }
        }
        if versions.is_empty() {
            let why = failed.map_or_else(|| "no device has all of it".to_owned(), |e| e.to_string());
            return Err(Error::corrupt(None, format!("vdev {} at {offset:#x}", top.id), why));
        }
        Ok(Sides { offset, len, versions })
    }

    /// Writes the part of a run from `from` to `to` to other vdevs, in as many pieces as need be,
    /// which are added to `runs` also if it fails. It is stable with the txg.
    pub async fn write_sides(
        &self,
        txg: Txg,
        class: AllocClass,
        sides: &Sides,
        (from, to): (u64, u64),
        runs: &mut Vec<Run>,
    ) -> Result<()> {
        let tree = self.tree();
        let unit = 1u64 << tree.max_ashift();
        let mut placements = Vec::new();
        let mut todo = vec![(from, to)];
        while let Some((start, end)) = todo.pop() {
            let len = end - start;
            let req = AllocReq { must: len <= unit, ..AllocReq::new(class, len, 1) };
            let Place::At(dvas) = self.place_one(txg, req).await? else {
                if self.lacks_vdevs() {
                    self.await_vdevs().await?;
                    todo.push((start, end));
                    continue;
                }
                if len <= unit {
                    return Err(Error::os(Errno::NoSpc, "there is no room for what is on the device"));
                }
                let middle = start + (len / 2).next_multiple_of(unit);
                todo.extend([(middle, end), (start, middle)]);
                continue;
            };
            let Some(dva) = dvas.first().copied() else { continue };
            runs.push(Run { src: start, len, vdev: dva.vdev, dst: dva.offset });
            let part = |v: &Bytes| v.slice((start - sides.offset) as usize..(end - sides.offset) as usize);
            let mut versions: Vec<Bytes> = sides.versions.iter().map(part).collect();
            versions.sort();
            versions.dedup();
            if let [data] = &versions[..] {
                placements.push(Placement { dvas: dvas.to_vec(), data: data.clone() });
            } else {
                // Whoever copies what lies there waits until all of it was written.
                let _entry = tree.enter_to_write(&[(dva.vdev, dva.offset, len)]).await;
                self.write_versions(txg, tree.top(dva.vdev)?, dva.offset, &versions).await?;
            }
        }
        if !placements.is_empty() {
            self.submit_blocks(txg, 0, placements, Vec::new(), Priority::Removal).await;
        }
        Ok(())
    }

    /// Writes what sides have of their own once more, each to its side.
    pub(super) async fn resend_sides(&self, txg: Txg) {
        let tree = self.tree();
        for side in self.0.track.own_sides(txg) {
            let Some(leaf) = tree.leaves.get(side.leaf) else { continue };
            let written =
                leaf.writable() && leaf.write_at(side.offset, side.data, Priority::AsyncWrite).await.is_ok();
            if !written {
                leaf.dtl.add(txg.0, txg.0 + 1);
            }
        }
    }

    /// Writes what differs to different sides.
    async fn write_versions(&self, txg: Txg, top: &Top, offset: u64, versions: &[Bytes]) -> Result<()> {
        let differ = || {
            let what =
                "the sides of the mirror differ, and which is right is not known; scrub the pool first";
            Error::corrupt(None, format!("vdev {}", top.id), what)
        };
        let Layout::Plain(unit) = &top.layout else { return Err(differ()) };
        let (able, away): (Vec<_>, Vec<_>) = unit.leaves.iter().partition(|l| l.writable());
        if able.len() < versions.len() {
            return Err(differ());
        }
        let at = offset + VDEV_LABEL_START_SIZE;
        let own = |leaf: &Leaf, data: &Bytes| OwnSide { leaf: leaf.index, offset: at, data: data.clone() };
        // A side that takes no writes misses them, unless it does when the txg is sent again.
        for (leaf, data) in away.into_iter().zip(versions.iter().cycle()) {
            leaf.dtl.add(txg.0, txg.0 + 1);
            self.0.track.keep_side(txg, own(leaf, data));
        }
        for (leaf, data) in able.into_iter().zip(versions.iter().cycle()) {
            // What each side gets of its own is sent again to it alone.
            self.0.track.keep_side(txg, own(leaf, data));
            if leaf.write_at(at, data.clone(), Priority::Removal).await.is_err() {
                leaf.dtl.add(txg.0, txg.0 + 1);
                return Err(differ());
            }
        }
        Ok(())
    }
}
