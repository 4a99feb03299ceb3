//! A space map as an object of the MOS: a header in the bonus, entries in its blocks, appended to
//! by the sync task alone.
//!
//! Appending is a write that never reads, so it is a plain function. Reading waits for the disk, is
//! done without any lock, and stops at the length it was asked for: what is appended meanwhile is
//! not seen.

use super::range_tree::RangeTree;
use crate::dmu::{Dnode, NewObject, Objset, resident};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::Bookmark;
use std::sync::Arc;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::object_type::{DMU_OT_SPACE_MAP, DMU_OT_SPACE_MAP_HEADER};
use zilla_ondisk::spacemap::{
    SPACE_MAP_HISTOGRAM_SIZE, SPACE_MAP_SIZE_V0, SpaceMapEntry, SpaceMapPhys, SpaceMapReader, SpaceMapWriter,
};
use zilla_ondisk::{Field, FormatError};

pub use zilla_ondisk::spacemap::MapType;

/// The longest run that takes one word, in units.
const RUN_MAX: u64 = 1 << 15;

/// Space maps' indirect blocks are small: most maps need one, hardly filled.
const INDIRECT_SHIFT: u8 = 14;
/// How much of a map is read at a time.
const READ_AHEAD: u64 = 1 << 20;
/// So many bytes of zeroes are no entries: they would say the same more than once.
const HOLE: usize = 16;

/// Which of the format's features the pool has enabled, as far as space maps care.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceFeatures {
    pub spacemap_histogram: bool,
    pub spacemap_v2: bool,
    pub log_spacemap: bool,
    pub obsolete_counts: bool,
}

/// A map whose object is open.
pub struct SpaceMap {
    dnode: Arc<Dnode>,
    start: u64,
    size: u64,
    shift: u8,
    phys: SpaceMapPhys,
    /// Of the header: maps from before `spacemap_histogram` have a shorter one.
    bonuslen: usize,
}

/// What is written where and when, for all the appends of one sync pass.
#[derive(Clone, Copy)]
pub struct Append<'a> {
    pub tx: &'a Tx,
    pub pass: u64,
    /// Two-word entries may be written.
    pub v2: bool,
}

/// Makes the object of an empty map.
pub async fn create_object(mos: &Arc<Objset>, tx: &Tx, blksz: u32, histogram: bool) -> Result<Arc<Dnode>> {
    let bonuslen = if histogram { SpaceMapPhys::SIZE } else { SPACE_MAP_SIZE_V0 };
    let spec = NewObject { indblkshift: INDIRECT_SHIFT, ..NewObject::new(DMU_OT_SPACE_MAP, blksz) }
        .bonus(DMU_OT_SPACE_MAP_HEADER, bonuslen);
    resident(|| mos.alloc(tx, spec)).await
}

impl SpaceMap {
    /// Opens the map of `size` bytes from `start` on, in units of `1 << shift`.
    pub fn open(dnode: Arc<Dnode>, start: u64, size: u64, shift: u8) -> Result<SpaceMap> {
        let bonus = dnode.bonus();
        let phys = SpaceMapPhys::from_bonus(&bonus, ByteOrder::NATIVE)
            .map_err(|e| Error::corrupt(Some(place(&dnode)), "", e.to_string()))?;
        let room = (dnode.maxblkid() + 1).saturating_mul(u64::from(dnode.blksz()));
        if dnode.otype() != DMU_OT_SPACE_MAP || phys.length > room || !phys.length.is_multiple_of(8) {
            let what = format!("object {} is not a space map of {} bytes", dnode.id(), phys.length);
            return Err(Error::corrupt(Some(place(&dnode)), "", what));
        }
        Ok(SpaceMap { dnode, start, size, shift, phys, bonuslen: bonus.len() })
    }

    pub fn dnode(&self) -> &Arc<Dnode> {
        &self.dnode
    }
    /// Bytes of entries.
    pub fn length(&self) -> u64 {
        self.phys.length
    }
    /// Allocated minus freed bytes.
    pub fn allocated(&self) -> i64 {
        self.phys.allocated()
    }
    pub fn shift(&self) -> u8 {
        self.shift
    }
    pub fn blksz(&self) -> u32 {
        self.dnode.blksz()
    }
    pub fn histogram(&self) -> Option<&[u64; SPACE_MAP_HISTOGRAM_SIZE]> {
        self.has_histogram().then_some(&self.phys.histogram)
    }
    fn has_histogram(&self) -> bool {
        self.bonuslen >= SpaceMapPhys::SIZE
    }
    /// Whether the object has the shape that a new one would get.
    pub fn is_current(&self, blksz: u32, histogram: bool) -> bool {
        self.dnode.blksz() == blksz
            && self.dnode.indblkshift() == INDIRECT_SHIFT
            && self.has_histogram() == histogram
    }

    /// Blocks that hold entries.
    pub fn blocks(&self) -> u64 {
        self.phys.length.div_ceil(u64::from(self.dnode.blksz()))
    }

    /// Its object and last byte, if another entry goes into the block of the last.
    pub fn end(&self) -> Option<(Arc<Dnode>, u64)> {
        let length = self.phys.length;
        (!length.is_multiple_of(u64::from(self.dnode.blksz()))).then(|| (self.dnode.clone(), length - 1))
    }

    fn save(&self, tx: &Tx) {
        self.dnode.set_bonus(tx, &self.phys.to_bonus(self.bonuslen));
    }

    /// Appends all ranges of a tree.
    pub fn append(
        &mut self,
        how: Append<'_>,
        tree: &RangeTree,
        kind: MapType,
        vdev: Option<u32>,
    ) -> Result<()> {
        self.phys.object = self.dnode.id().0;
        if !tree.is_empty() {
            let blksz = u64::from(self.dnode.blksz());
            let shift = u32::from(self.shift);
            let mut w = SpaceMapWriter::new(self.phys.length, blksz, self.start, shift, how.v2);
            w.debug(kind, how.pass as u32, how.tx.txg().0);
            let bad = |e: FormatError| Error::corrupt(Some(place(&self.dnode)), "", e.to_string());
            tree.iter().try_for_each(|(s, e)| w.push(kind, s, e - s, vdev)).map_err(bad)?;
            let bytes = w.finish();
            self.dnode.write(how.tx, self.phys.length, &bytes);
            self.phys.length += bytes.len() as u64;
            self.phys.alloc = match kind {
                MapType::Alloc => self.phys.alloc.wrapping_add(tree.space()),
                MapType::Free => self.phys.alloc.wrapping_sub(tree.space()),
            };
        }
        self.save(how.tx);
        Ok(())
    }

    /// Forgets all entries. The caller has seen to it that the object is in its current shape.
    pub fn truncate(&mut self, tx: &Tx) {
        self.dnode.free_range(tx, 0, u64::MAX);
        self.phys = SpaceMapPhys::default();
        self.save(tx);
    }

    /// Forgets all entries from `length` on, which said that `space` bytes are free.
    pub fn shorten(&mut self, tx: &Tx, length: u64, space: u64) {
        self.phys.length = length;
        self.phys.alloc = self.phys.alloc.wrapping_add(space);
        self.save(tx);
    }

    /// Goes on in another, empty object.
    pub fn replace_object(&mut self, dnode: Arc<Dnode>) -> Result<()> {
        *self = self.elsewhere(dnode)?;
        Ok(())
    }

    /// The map of the same place in another object.
    pub fn elsewhere(&self, dnode: Arc<Dnode>) -> Result<SpaceMap> {
        SpaceMap::open(dnode, self.start, self.size, self.shift)
    }

    pub fn clear_histogram(&mut self) {
        self.phys.histogram.fill(0);
    }

    /// Counts the free ranges of a tree. Ranges larger than the last class count as so many of that
    /// class.
    pub fn add_to_histogram(&mut self, tx: &Tx, tree: &RangeTree) {
        self.phys.histogram_add(tree.histogram(), u32::from(self.shift));
        self.save(tx);
    }

    /// What a reader needs; reading goes on without the metaslab's lock.
    pub fn reader(&self) -> Reader {
        Reader { dnode: self.dnode.clone(), start: self.start, size: self.size, shift: self.shift }
    }

    /// An upper bound of the bytes that a map of just these ranges takes.
    pub fn optimal_size(&self, tree: &RangeTree, v2: bool) -> u64 {
        let shift = u32::from(self.shift);
        let mut words = 0u64;
        for (i, n) in tree.histogram().iter().enumerate() {
            let units = 2u64.checked_shl((i as u32).saturating_sub(shift)).unwrap_or(u64::MAX);
            let each = match (units <= RUN_MAX, v2) {
                (true, _) => 1,
                (false, true) => 2 * units.div_ceil(1 << 36),
                (false, false) => units.div_ceil(RUN_MAX),
            };
            words = words.saturating_add(n.saturating_mul(each));
        }
        let padding = words.saturating_mul(8) / u64::from(self.dnode.blksz().max(8)) + 1;
        words.saturating_add(padding).saturating_mul(8)
    }
}

fn place(dnode: &Dnode) -> Bookmark {
    Bookmark::new(dnode.objset_id(), dnode.id(), 0, 0)
}

/// Reads a map's entries.
pub struct Reader {
    pub(super) dnode: Arc<Dnode>,
    start: u64,
    size: u64,
    shift: u8,
}

/// Why it is not known what is free.
#[derive(Debug)]
pub struct Unloadable {
    pub error: Error,
    /// All could be read, and entries contradict each other.
    pub contradicts: bool,
}

impl From<Unloadable> for Error {
    fn from(why: Unloadable) -> Error {
        why.error
    }
}

impl Reader {
    fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        Error::corrupt(Some(place(&self.dnode)), "", format!("space map {}: {what}", self.dnode.id()))
    }

    /// Calls `f` for every entry of the first `length` bytes, as (kind, vdev, start, size) in bytes
    /// of the device.
    pub async fn for_each(
        &self,
        length: u64,
        f: impl FnMut(MapType, Option<u32>, u64, u64) -> Result<()>,
    ) -> Result<()> {
        self.for_each_from(0, length, f).await
    }

    /// The same without what stands before `at`, where a block begins.
    pub async fn for_each_from(
        &self,
        mut at: u64,
        length: u64,
        mut f: impl FnMut(MapType, Option<u32>, u64, u64) -> Result<()>,
    ) -> Result<()> {
        let blksz = u64::from(self.dnode.blksz());
        let chunk = (READ_AHEAD / blksz).max(1) * blksz;
        while at < length {
            let n = chunk.min(length - at) as usize;
            let mut buf = vec![0; n];
            self.dnode.read_wait(at, &mut buf).await?;
            for block in buf.chunks(blksz as usize) {
                // A hole reads as the same allocation again and again; a map that is only said to
                // be long would never end.
                if block.len() >= HOLE && zilla_codec::compress::is_zero(block) {
                    return Err(self.corrupt(format_args!("no entries at {at}")));
                }
                for entry in SpaceMapReader::new(block, ByteOrder::NATIVE, self.start, u32::from(self.shift))
                {
                    let entry = entry.map_err(|e| self.corrupt(e))?;
                    self.check(&entry)?;
                    f(entry.kind, entry.vdev, entry.offset, entry.run)?;
                }
            }
            at += n as u64;
        }
        Ok(())
    }

    fn check(&self, e: &SpaceMapEntry) -> Result<()> {
        if e.offset < self.start
            || e.offset - self.start > self.size
            || e.run > self.size - (e.offset - self.start)
        {
            return Err(
                self.corrupt(format_args!("entry of {:#x} bytes at {:#x} is outside", e.run, e.offset))
            );
        }
        Ok(())
    }

    /// What is free according to the first `length` bytes.
    pub async fn load_free(&self, length: u64) -> Result<RangeTree, Unloadable> {
        // Ranges by size are only kept once the tree is complete: replaying touches most of them
        // several times.
        let (mut free, mut contradicts) = (RangeTree::new(), false);
        let whole = free.add(self.start, self.size).map_err(|e| self.corrupt(e));
        whole.map_err(|error| Unloadable { error, contradicts: true })?;
        let read = self.for_each(length, |kind, _, start, size| {
            let fits = match kind {
                MapType::Alloc => free.remove(start, size),
                MapType::Free => free.add(start, size),
            };
            fits.map_err(|e| {
                contradicts = true;
                self.corrupt(e)
            })
        });
        read.await.map_err(|error| Unloadable { error, contradicts })?;
        free.index_by_size();
        Ok(free)
    }
}
