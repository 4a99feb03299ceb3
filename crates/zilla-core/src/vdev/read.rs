//! Reading one copy of a block from a top-level vdev: from whichever leaf is best, from another if
//! that is damaged, from parity if need be; and writing what was damaged again.
//!
//! The caller's check says whether bytes are the block. What fails it is counted as a checksum
//! error of its leaf once it is known which leaf that was: in a mirror at once; in a RAID-Z, where
//! one sum covers all columns, when a combination of columns was found that passes, by comparing
//! each column read with what it should be.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::future::join_all;
use smallvec::SmallVec;
use zilla_env::{IoBuf, Whole};
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;

use super::distributed::Side;
use super::gather::{Gather, Results};
use super::leaf::{Leaf, LeafIo};
use super::priority::Priority;
use super::queue::QOp;
use super::raidz::{Map, on_device};
use super::tickets::Tickets;
use super::tree::{Layout, Top, Unit, VdevTree};
use super::widths::Entry;

/// How many combinations of columns are tried before a RAID-Z block is given up.
const MAX_COMBINATIONS: usize = 20_000;

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
    fn spoilt(&mut self, leaf: &Leaf) {
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

/// The columns of a RAID-Z block as they come in.
struct Row {
    cols: SmallVec<[Option<Bytes>; 8]>,
    asked: SmallVec<[bool; 8]>,
    failed: SmallVec<[usize; 4]>,
    /// What the last failure was.
    why: String,
}

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

    async fn read_raidz(&self) -> Outcome {
        let entry = self.tree.enter(&[(self.top.id, self.offset, self.sectors())]).await;
        let Some(map) = self.top.map(self.offset, self.sectors(), self.birth, &entry) else {
            return Err(DvaFailure {
                place: format!("vdev {}", self.top.id),
                what: "the vdev has no columns".into(),
                checksum: false,
                device: true,
            });
        };
        let n = map.cols.len();
        // Per column: the leaf to ask, and what came.
        let leaf_of = |i: usize| -> Option<&Arc<Leaf>> {
            let col = &map.cols[i];
            let sides = self.top.sides(col.child, col.offset).into_iter();
            let ok = sides.filter(|s| s.readable() && s.holds(self.birth));
            ok.min_by_key(|s| s.leaf.read_cost(col.on_device(), self.class)).map(|s| s.leaf)
        };
        let leaves: SmallVec<[Option<&Arc<Leaf>>; 8]> = (0..n).map(leaf_of).collect();
        let mut row = Row {
            cols: (0..n).map(|_| None).collect(),
            asked: (0..n).map(|_| false).collect(),
            failed: SmallVec::new(),
            why: "too few devices can be read".into(),
        };

        let all: SmallVec<[usize; 8]> = (0..n).collect();
        // Columns that hold nothing are known.
        let holds = |i: usize| map.cols[i].size > 0;
        for i in (0..n).filter(|&i| !holds(i)) {
            (row.cols[i], row.asked[i]) = (Some(Bytes::new()), true);
        }
        let data: SmallVec<[usize; 8]> = map.data().filter(|&i| holds(i)).collect();
        let only_data = data.iter().all(|&i| leaves[i].is_some()) && !self.every_copy;
        // The data columns are read into one buffer: if they come well, they are the block. Not so
        // where rows lie across more children than they are wide: there each child is read in one
        // go, the parity between with it.
        let (whole, parts) = match map.is_scattered() {
            true => (None, Vec::new()),
            false => {
                let ranges = map.ranges().filter(|range| !range.is_empty());
                let (whole, parts) = Whole::lend(IoBuf::scratch(self.sectors() as usize), ranges);
                (Some(whole), parts)
            }
        };
        let first = if only_data && !map.is_scattered() { &data } else { &all };
        self.read_cols(&map, first, parts, &leaves, &mut row).await;
        if only_data && data.iter().any(|&i| row.cols[i].is_none()) {
            self.read_cols(&map, &all, Vec::new(), &leaves, &mut row).await;
        }
        let place = || format!("{}-{} at {}", self.top.vdev.kind.type_name(), self.top.id, self.offset);
        let mut good = None;
        let mut checksum = false;
        let there = data.iter().filter_map(|&i| row.cols[i].as_ref());
        let block = whole.and_then(|whole| whole.join(there));
        let block = block.or_else(|| map.assemble(&row.cols).map(IoBuf::into_bytes));
        if let Some(block) = block {
            match self.passes(block) {
                Ok(block) => good = Some(block),
                Err(what) => (row.why, checksum) = (what, true),
            }
        }
        if good.is_none() && checksum {
            self.read_cols(&map, &all, Vec::new(), &leaves, &mut row).await;
            good = self.combinations(&map, &row.cols);
        }
        if good.is_none() {
            // As a last resort also the leaves that should not have it: a DTL may say more than is
            // true.
            let doubtful = |i: usize| match leaves[i] {
                None => {
                    let sides = self.top.sides(map.cols[i].child, map.cols[i].offset);
                    sides.into_iter().find(Side::readable).map(|s| s.leaf)
                }
                Some(_) => None,
            };
            let doubtful: SmallVec<[Option<&Arc<Leaf>>; 8]> = (0..n).map(doubtful).collect();
            self.read_cols(&map, &all, Vec::new(), &leaves, &mut row).await;
            self.read_cols(&map, &all, Vec::new(), &doubtful, &mut row).await;
            match map.assemble(&row.cols).map(|block| self.passes(block.into_bytes())) {
                Some(Ok(block)) => good = Some(block),
                Some(Err(what)) => {
                    (row.why, checksum) = (what, true);
                    good = self.combinations(&map, &row.cols);
                }
                None => {}
            }
        }
        let Row { cols, failed, why, .. } = row;
        let device = !failed.is_empty() || !checksum;
        let Some(block) = good else {
            if checksum && self.speculative {
                return Err(DvaFailure { place: place(), what: why, checksum, device });
            }
            if checksum {
                self.top.vdev.checksum_errors.fetch_add(1, Ordering::Relaxed);
                // Nobody can say which of them it was.
                for (i, leaf) in leaves.iter().enumerate().filter(|(i, _)| holds(*i) && cols[*i].is_some()) {
                    leaf.iter().for_each(|l| l.lied(map.cols[i].on_device(), map.cols[i].size));
                }
            } else {
                self.top.vdev.read_errors.fetch_add(1, Ordering::Relaxed);
            }
            return Err(DvaFailure { place: place(), what: why, checksum, device });
        };
        let mut healing = Healing::default();
        let suspicious =
            checksum || self.every_copy || !failed.is_empty() || leaves.iter().any(Option::is_none);
        if suspicious {
            healing = self.heal_raidz(&map, &leaves, (&cols, &failed), &block, entry).await;
        }
        Ok((block.slice(..self.psize as usize), healing))
    }

    fn passes(&self, block: Bytes) -> Result<Bytes, String> {
        (self.check)(block.get(..self.psize as usize).unwrap_or_default())?;
        Ok(block)
    }

    /// Reads what was not asked for yet. `parts` are the buffers of the data columns, or none.
    async fn read_cols(
        &self,
        map: &Map,
        asked: &[usize],
        parts: Vec<IoBuf>,
        leaves: &[Option<&Arc<Leaf>>],
        row: &mut Row,
    ) {
        let wanted: SmallVec<[usize; 8]> =
            asked.iter().copied().filter(|&i| !row.asked[i] && leaves[i].is_some()).collect();
        if wanted.is_empty() {
            return;
        }
        let data = map.data().filter(|&i| map.cols[i].size > 0);
        let mut parts: SmallVec<[(usize, Option<IoBuf>); 8]> =
            data.zip(parts.into_iter().map(Some)).collect();
        let mut runs = match map.is_scattered() {
            true => runs(map, wanted, leaves),
            false => wanted.iter().map(|i| alone(*i)).collect(),
        };
        while !runs.is_empty() {
            let gather = Gather::new(runs.len());
            for (slot, run) in runs.iter().enumerate() {
                run.iter().for_each(|&i| row.asked[i] = true);
                let Some(i) = run.first().copied() else { continue };
                let part = parts.iter_mut().find(|(col, _)| *col == i).and_then(|(_, part)| part.take());
                let offset = map.cols[i].on_device();
                let len = run.iter().map(|&i| map.cols[i].size).sum();
                let (class, done) = (self.class, gather.clone());
                if let Some(leaf) = leaves[i] {
                    let op = QOp::Read(part);
                    leaf.submit([LeafIo { op, offset, len, class, done, slot }], self.tickets);
                }
            }
            let mut again = Vec::new();
            for (run, result) in runs.iter().zip(gather.wait().await) {
                if run.len() > 1 && matches!(result, Some(Err(_))) {
                    // One sector may be the reason, and each row has a parity of its own.
                    again.extend(run.iter().map(|i| alone(*i)));
                    continue;
                }
                let mut at = 0;
                for &i in run {
                    let size = map.cols[i].size as usize;
                    match &result {
                        Some(Ok(data)) => row.cols[i] = Some(data.slice(at..at + size)),
                        Some(Err(e)) => {
                            row.why = format!("{}: {e}", leaves[i].map(|l| l.path()).unwrap_or_default());
                            row.failed.push(i);
                        }
                        None => row.failed.push(i),
                    }
                    at += size;
                }
            }
            runs = again;
        }
    }

    /// Bytes came from enough columns, but some lie: leaves out one, then two, then three, until
    /// the rest agrees.
    fn combinations(&self, map: &Map, cols: &[Option<Bytes>]) -> Option<Bytes> {
        let sets = map.suspects(|i| cols[i].is_some());
        let spare = match map.is_scattered() {
            true => map.nparity(),
            false => sets.len().saturating_sub(map.data().count()),
        };
        let whole = cols.iter().all(Option::is_some);
        let mut tries = 0;
        for leave_out in 1..=spare.min(sets.len()) {
            let mut pick: SmallVec<[usize; 3]> = (0..leave_out).collect();
            loop {
                tries += 1;
                if tries > MAX_COMBINATIONS {
                    return None;
                }
                let mut out = pick.iter().flat_map(|&p| sets[p].iter().copied());
                // Leaving out parity alone changes nothing unless data is missing too.
                if !whole || out.clone().any(|i| !map.is_parity(i)) {
                    let mut some: SmallVec<[Option<Bytes>; 8]> = cols.iter().cloned().collect();
                    out.by_ref().for_each(|i| some[i] = None);
                    if let Some(block) = map.assemble(&some)
                        && let Ok(block) = self.passes(block.into_bytes())
                    {
                        return Some(block);
                    }
                }
                // The next combination in lexical order.
                let Some(i) = (0..leave_out).rev().find(|&i| pick[i] < sets.len() - leave_out + i) else {
                    break;
                };
                pick[i] += 1;
                for j in i + 1..leave_out {
                    pick[j] = pick[j - 1] + 1;
                }
            }
        }
        None
    }

    /// Compares each column with what it should be, counts the leaves that lied, and writes theirs
    /// and the failed ones again.
    async fn heal_raidz(
        &self,
        map: &Map,
        leaves: &[Option<&Arc<Leaf>>],
        (cols, failed): (&[Option<Bytes>], &[usize]),
        block: &Bytes,
        entry: Entry,
    ) -> Healing {
        let right = map.columns(block);
        let mut healing = Healing::default();
        let mut writes: SmallVec<[Mend; 4]> = SmallVec::new();
        for (i, right) in right.into_iter().enumerate() {
            let (col, before) = (&map.cols[i], writes.len());
            let at = col.on_device();
            let sides = self.top.sides(col.child, col.offset);
            // By which spares the leaf that was asked has it.
            let own = |leaf| match sides.iter().find(|s| Arc::ptr_eq(s.leaf, leaf)) {
                Some(side) => Mend::new(side, at, right.clone()),
                None => Mend::new(&Side::own(leaf), at, right.clone()),
            };
            if let (Some(leaf), Some(read)) = (leaves[i], &cols[i])
                // A column that was read into the block is the block.
                && read.as_ptr() != right.as_ptr()
                && *read != right
            {
                if !self.speculative {
                    leaf.lied(at, right.len() as u64);
                }
                healing.spoilt(leaf);
                writes.push(own(leaf));
            }
            if let (Some(leaf), true) = (leaves[i], failed.contains(&i)) {
                healing.spoilt(leaf);
                writes.push(own(leaf));
            }
            if self.class == Priority::Scrub {
                sides.iter().for_each(|s| s.note_absent(self.birth));
            }
            let lacking = |s: &&Side<'_>| s.writable() && !s.holds(self.birth);
            for side in sides.iter().filter(|_| col.size > 0).filter(lacking) {
                writes.push(Mend::new(side, at, right.clone()));
            }
            // What is wrong at one of its places may have been copied to the others.
            let wrong = writes.len() > before;
            for &(child, offset) in map.extra(i) {
                let sides = self.top.sides(child, offset);
                for side in sides.iter().filter(|s| s.writable() && (wrong || !s.holds(self.birth))) {
                    writes.push(Mend::new(side, on_device(offset), right.clone()));
                }
            }
        }
        for skip in map.skips.iter().filter(|_| map.zeroed) {
            let at = skip.on_device();
            let sides = self.top.sides(skip.child, skip.offset);
            for side in sides.iter().filter(|s| s.writable() && !s.holds(self.birth)) {
                writes.push(Mend::new(side, at, IoBuf::zeroed(skip.size as usize).into_bytes()));
            }
        }
        healing.count(self.repair(writes, entry).await);
        healing
    }

    /// Writes again what was bad, if the block still is the place's owner.
    pub(super) async fn repair(&self, writes: SmallVec<[Mend; 4]>, entry: Entry) -> Vec<Option<u64>> {
        if writes.is_empty() || !self.tree.is_writable() {
            return Vec::new();
        }
        let Some(guard) = (self.fence)() else { return Vec::new() };
        let writer = self.tree.enter_gates(&[(self.top.id, self.offset, self.psize)]).await;
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

fn alone(col: usize) -> SmallVec<[usize; 1]> {
    SmallVec::from_slice(&[col])
}

/// Columns that follow each other on their leaf, to be read as one.
fn runs(
    map: &Map,
    mut wanted: SmallVec<[usize; 8]>,
    leaves: &[Option<&Arc<Leaf>>],
) -> Vec<SmallVec<[usize; 1]>> {
    let leaf = |i: usize| leaves[i].map(|l| l.index);
    wanted.sort_unstable_by_key(|&i| (map.cols[i].child, map.cols[i].offset));
    let mut runs: Vec<SmallVec<[usize; 1]>> = Vec::new();
    for i in wanted {
        let col = &map.cols[i];
        match runs.last_mut() {
            Some(run)
                if run.last().is_some_and(|&l| {
                    let last = &map.cols[l];
                    let follows = last.offset + last.size == col.offset;
                    last.child == col.child && leaf(l) == leaf(i) && follows
                }) =>
            {
                run.push(i);
            }
            _ => runs.push(alone(i)),
        }
    }
    runs
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

    /// Writes them, and says how many. Whether that worked is the disk's problem, not the reader's.
    async fn write(self, birth: u64, scan: bool) -> Option<u64> {
        let Mend { leaf, via, at, data } = self;
        if !leaf.writable() {
            return None;
        }
        let len = data.len() as u64;
        let written = leaf.write_at(at, data, Priority::AsyncWrite).await.is_ok();
        for l in via.iter().chain([&leaf]) {
            if !written && !l.holds(birth) {
                l.refused.store(true, Ordering::Relaxed);
            }
            if written && scan {
                l.scan_processed.fetch_add(len, Ordering::Relaxed);
            }
        }
        if !written {
            return None;
        }
        leaf.stats.self_healed.fetch_add(len, Ordering::Relaxed);
        Some(len)
    }
}
