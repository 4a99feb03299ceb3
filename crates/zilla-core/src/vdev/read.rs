//! Reading one copy of a block from a top-level vdev: from whichever leaf is best, from another if
//! that is damaged, from parity if need be; and writing what was damaged again.
//!
//! The caller's check says whether bytes are the block. What fails it is counted as a checksum
//! error of its leaf once it is known which leaf that was: in a mirror at once; in a RAID-Z, where
//! one sum covers all columns, when the block was found (`read_columns.rs`).

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::future::join_all;
use smallvec::SmallVec;
use zilla_env::IoBuf;
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;

use super::distributed::Side;
use super::gather::{Gather, Results};
use super::leaf::{Leaf, LeafIo};
use super::priority::Priority;
use super::queue::QOp;
use super::tickets::Tickets;
use super::tree::{Layout, Top, Unit, VdevTree};
use super::widths::Entry;

/// Why a copy could not be read.
#[derive(Clone, Debug)]
pub struct DvaFailure {
    /// "path at offset", of the last attempt.
    pub place: String,
    pub what: String,
    /// Bytes came, but not the right ones.
    pub checksum: bool,
    /// A device that should hold it gave nothing; it may another time.
    pub device: bool,
}

/// Says what is wrong with bytes that should be a block.
pub type Check<'a> = &'a (dyn Fn(&[u8]) -> Result<(), String> + Sync);

/// Held while a block is repaired.
pub type Guard = Box<dyn Send>;

/// Asked before a block is repaired; None: it must not be, its place may be somebody else's by now.
pub type Fence<'a> = &'a (dyn Fn() -> Option<Guard> + Sync);

/// For readers that see themselves to it that the block stays.
pub fn unfenced() -> Option<Guard> {
    Some(Box::new(()))
}

/// A read of one copy.
pub struct Reader<'a> {
    pub tree: &'a VdevTree,
    pub top: &'a Top,
    /// In the top-level's address space.
    pub offset: u64,
    pub psize: u64,
    /// The block's physical birth: leaves that missed this txg are not asked.
    pub birth: u64,
    pub class: Priority,
    pub tickets: Option<&'a Tickets>,
    pub check: Check<'a>,
    /// Read and check every copy and all parity (scrub).
    pub every_copy: bool,
    /// Nobody knows whether the block was ever written, or to all its places: no device is to blame
    /// for what is bad.
    pub speculative: bool,
    pub fence: Fence<'a>,
}

/// What happened on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Healing {
    /// Leaves (by index) whose bytes were wrong, or could not be read.
    pub bad: SmallVec<[usize; 2]>,
    pub repaired: usize,
    /// Bytes written again.
    pub bytes: u64,
}

impl Healing {
    /// A leaf is one, however many of a block's columns it has.
    pub(super) fn spoilt(&mut self, leaf: &Leaf) {
        if !self.bad.contains(&leaf.index) {
            self.bad.push(leaf.index);
        }
    }

    pub(super) fn count(&mut self, repairs: Vec<Option<u64>>) {
        self.repaired = repairs.iter().flatten().count();
        self.bytes = repairs.iter().flatten().sum();
    }
}

pub(super) type Outcome = Result<(Bytes, Healing), DvaFailure>;

impl Reader<'_> {
    pub async fn read(&self) -> Outcome {
        match &self.top.layout {
            Layout::Plain(unit) => self.read_unit(unit).await,
            Layout::Raidz { .. } | Layout::Draid { .. } => self.read_raidz().await,
            Layout::Indirect => self.read_indirect().await,
            Layout::Nothing => Err(DvaFailure {
                place: format!("vdev {}", self.top.id),
                what: "the device is not there".into(),
                checksum: false,
                device: true,
            }),
        }
    }

    pub(super) fn sectors(&self) -> u64 {
        self.psize.next_multiple_of(1 << self.top.ashift())
    }

    async fn read_unit(&self, unit: &Unit) -> Outcome {
        let at = self.offset + VDEV_LABEL_START_SIZE;
        let size = self.sectors();
        let mut order: SmallVec<[&Arc<Leaf>; 4]> =
            unit.leaves.iter().filter(|l| l.readable() && l.holds(self.birth)).collect();
        if order.len() > 1 {
            // Whoever queues least; of equals, the one whose turn the offset says, so that readers
            // spread.
            let turn = (at >> 20) as usize % order.len();
            order.rotate_left(turn);
            let cost = |l: &&Arc<Leaf>| l.read_cost(at, self.class);
            order.sort_by_cached_key(|l| (l.state().0 < super::VdevState::Healthy, cost(l)));
        }
        // All at once, so that each device reads in the order in which blocks are asked for.
        let mut sides = match self.every_copy {
            true => self.read_sides(&order, at, size).await,
            false => Results::new(),
        };
        // As a last resort also the leaves that should not have it: a DTL may say more than is
        // true.
        let doubtful = unit.leaves.iter().filter(|l| l.readable() && !l.holds(self.birth));
        order.extend(doubtful);
        let mut last = DvaFailure {
            place: unit.leaves.first().map(|l| l.path()).unwrap_or_default(),
            what: "no device that should hold it can be read".into(),
            checksum: false,
            device: true,
        };
        let mut device = false;
        let mut good: Option<Bytes> = None;
        let mut bad: SmallVec<[&Arc<Leaf>; 2]> = SmallVec::new();
        let mut lied: SmallVec<[&Arc<Leaf>; 2]> = SmallVec::new();
        let mut healing = Healing::default();
        for (i, leaf) in order.into_iter().enumerate() {
            if good.is_some() && !self.every_copy {
                break;
            }
            if good.is_some() && !leaf.holds(self.birth) {
                continue;
            }
            let place = || format!("{} at {at}", leaf.path());
            let read = match sides.get_mut(i).and_then(Option::take) {
                Some(read) => read,
                None => self.leaf_read(leaf, at, size).await,
            };
            match read {
                Ok(data) => {
                    let data = data.slice(..self.psize as usize);
                    match (self.check)(&data) {
                        Ok(()) => {
                            good.get_or_insert(data);
                        }
                        Err(what) => {
                            if leaf.holds(self.birth) {
                                lied.push(leaf);
                                bad.push(leaf);
                            }
                            last = DvaFailure { place: place(), what, checksum: true, device };
                        }
                    }
                }
                Err(e) => {
                    bad.push(leaf);
                    device = true;
                    last = DvaFailure { place: place(), what: e.to_string(), checksum: false, device };
                }
            }
        }
        if !self.speculative {
            for leaf in lied {
                leaf.lied(at, size);
            }
        }
        let Some(data) = good else { return Err(DvaFailure { device: device || last.device, ..last }) };
        healing.bad = bad.iter().map(|l| l.index).collect();
        // Leaves that missed the block get it now that it is at hand.
        bad.extend(unit.leaves.iter().filter(|l| l.writable() && !l.holds(self.birth)));
        if !bad.is_empty() {
            let padded = pad(&data, size);
            let writes = bad.into_iter().map(|l| Mend::new(&Side::own(l), at, padded.clone()));
            healing.count(self.repair(writes.collect(), Entry::default()).await);
        }
        Ok((data, healing))
    }

    pub(super) async fn leaf_read(&self, leaf: &Arc<Leaf>, at: u64, len: u64) -> io::Result<Bytes> {
        let missing = || Err(io::Error::from_raw_os_error(6));
        self.read_sides(&[leaf], at, len).await.pop().flatten().unwrap_or_else(missing)
    }

    /// The same place of several leaves.
    async fn read_sides(&self, leaves: &[&Arc<Leaf>], at: u64, len: u64) -> Results {
        let gather = Gather::new(leaves.len());
        for (slot, leaf) in leaves.iter().enumerate() {
            let (class, done) = (self.class, gather.clone());
            let io = LeafIo { op: QOp::Read(None), offset: at, len, class, done, slot };
            leaf.submit([io], self.tickets);
        }
        gather.wait().await
    }

    /// Writes again what was bad, if the block still is the place's owner.
    pub(super) async fn repair(&self, writes: SmallVec<[Mend; 4]>, entry: Entry) -> Vec<Option<u64>> {
        self.repair_at(&[(self.top.id, self.offset, self.psize)], writes, entry).await
    }

    /// The same where that is elsewhere (vdev, offset and bytes of each piece).
    pub(super) async fn repair_at(
        &self,
        places: &[(u32, u64, u64)],
        writes: SmallVec<[Mend; 4]>,
        entry: Entry,
    ) -> Vec<Option<u64>> {
        if writes.is_empty() || !self.tree.is_writable() {
            return Vec::new();
        }
        let Some(guard) = (self.fence)() else { return Vec::new() };
        let writer = self.tree.enter_gates(places).await;
        let (birth, scan) = (self.birth, self.class == Priority::Scrub);
        let task = async move {
            let one = |mend: Mend| mend.write(birth, scan);
            let done = join_all(writes.into_iter().map(one)).await;
            drop((guard, entry, writer));
            done
        };
        self.tree.env.spawn_with_result(task).await
    }
}

/// Bytes padded with zeros to whole sectors.
pub(super) fn pad(data: &Bytes, size: u64) -> Bytes {
    if data.len() as u64 == size {
        return data.clone();
    }
    let mut buf = IoBuf::zeroed(size as usize);
    if let Some(front) = buf.get_mut(..data.len()) {
        front.copy_from_slice(data);
    }
    buf.into_bytes()
}

/// Good bytes for a device that has bad ones, or none.
pub(super) struct Mend {
    leaf: Arc<Leaf>,
    via: SmallVec<[Arc<Leaf>; 1]>,
    at: u64,
    data: Bytes,
}

impl Mend {
    pub(super) fn new(side: &Side<'_>, at: u64, data: Bytes) -> Mend {
        let via = side.via.iter().map(|l| Arc::clone(l)).collect();
        Mend { leaf: side.leaf.clone(), via, at, data }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Writes them, and says how many. Whether that worked is the disk's problem, not the reader's.
    pub(super) async fn write(self, birth: u64, scan: bool) -> Option<u64> {
        let Mend { leaf, via, at, data } = self;
        if !leaf.writable() {
            // It went this moment. Its own DTL need not say so: it may come back before a txg ends.
            let lacking = via.iter().filter(|l| !l.holds(birth));
            lacking.for_each(|l| l.refused.store(true, Ordering::Relaxed));
            return None;
        }
        let (len, mark) = (data.len() as u64, leaf.mark());
        let written = leaf.write_at(at, data, Priority::AsyncWrite).await.is_ok();
        if written {
            leaf.flushes.repaired(birth, mark);
        }
        for l in via.iter().chain([&leaf]) {
            if !written && !l.holds(birth) {
                l.refused.store(true, Ordering::Relaxed);
            }
            if written && scan {
                l.scan_processed.fetch_add(len, Ordering::Relaxed);
            }
        }
        if !written {
            // What it has there is bad.
            if leaf.writable() {
                leaf.lacks_again([(birth, birth.saturating_add(1))], u64::MAX);
            }
            return None;
        }
        leaf.stats.self_healed.fetch_add(len, Ordering::Relaxed);
        Some(len)
    }
}
