//! Reading a block that lies in columns: of a RAID-Z or a dRAID.
//!
//! A column is one device's, or that of several *sides* while a device is being replaced or a spare
//! stands in for it (`distributed.rs`). The best of those that should hold it is asked; one that
//! gives nothing is passed over for the next. One checksum covers all columns: if what came does
//! not fit, one, two or three of them are left out and worked out from parity; then what the other
//! sides have is tried. Who lied is known when the block is, by comparing.
//!
//! A dRAID's parity covers its *tails* as well, sectors behind a column that hold nothing, and a
//! sequential rebuild computes from them. Nothing else reads them, so who checks every copy sees to
//! it that they are zeros.
//!
//! Columns are known by their numbers in the block's [`Map`], and all that is kept of them is as
//! long as that; no number that was read indexes anything.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use smallvec::SmallVec;
use zilla_codec::compress::is_zero;
use zilla_env::{IoBuf, Whole};

use super::distributed::Side;
use super::gather::Gather;
use super::leaf::{Leaf, LeafIo};
use super::priority::Priority;
use super::queue::QOp;
use super::raidz::{Map, on_device};
use super::read::{DvaFailure, Healing, Mend, Outcome, Reader};
use super::widths::Entry;

/// How many combinations of columns are tried before a block is given up.
const MAX_COMBINATIONS: usize = 20_000;

type Leaves<'a> = SmallVec<[&'a Arc<Leaf>; 1]>;

/// The columns of a block as they come in.
struct Row<'a> {
    cols: SmallVec<[Option<Bytes>; 8]>,
    /// Who is, or was, asked.
    leaves: SmallVec<[Option<&'a Arc<Leaf>>; 8]>,
    /// Who else should hold it, the best first.
    others: SmallVec<[Leaves<'a>; 8]>,
    asked: SmallVec<[bool; 8]>,
    failed: SmallVec<[usize; 4]>,
    /// Bytes behind a column that are read with it, and those of which that are no zeros.
    tails: SmallVec<[u64; 8]>,
    dirty: SmallVec<[usize; 2]>,
    /// Sides that gave nothing, or what does not count.
    passed: Vec<(usize, &'a Arc<Leaf>, Option<Bytes>)>,
    /// What the last failure was.
    why: String,
}

impl Row<'_> {
    /// Of the columns that failed those that others have, who are to be asked now.
    fn turn_to_others(&mut self) -> SmallVec<[usize; 4]> {
        let has_more = |i: &usize| !self.others[*i].is_empty();
        let (turned, failed): (SmallVec<[usize; 4]>, _) = self.failed.iter().copied().partition(has_more);
        self.failed = failed;
        for &i in &turned {
            let next = self.others[i].remove(0);
            if let Some(leaf) = self.leaves[i].replace(next) {
                self.passed.push((i, leaf, None));
            }
            self.asked[i] = false;
        }
        turned
    }
}

impl<'a> Reader<'a> {
    pub(super) async fn read_raidz(&self) -> Outcome {
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
        let looks_behind = self.every_copy && !self.speculative;
        let mut row = Row {
            cols: (0..n).map(|_| None).collect(),
            leaves: SmallVec::new(),
            others: SmallVec::new(),
            asked: (0..n).map(|_| false).collect(),
            failed: SmallVec::new(),
            tails: if looks_behind { map.tails() } else { SmallVec::from_elem(0, n) },
            dirty: SmallVec::new(),
            passed: Vec::new(),
            why: "too few devices can be read".into(),
        };
        for i in 0..n {
            let mut sides = self.readable(&map, i, true);
            row.leaves.push(if sides.is_empty() { None } else { Some(sides.remove(0)) });
            row.others.push(sides);
        }

        let all: SmallVec<[usize; 8]> = (0..n).collect();
        // Columns that hold nothing are known.
        let holds = |i: usize| map.cols[i].size > 0;
        for i in (0..n).filter(|&i| !holds(i)) {
            (row.cols[i], row.asked[i]) = (Some(Bytes::new()), row.tails[i] == 0);
        }
        let data: SmallVec<[usize; 8]> = map.data().filter(|&i| holds(i)).collect();
        let only_data = data.iter().all(|&i| row.leaves[i].is_some()) && !self.every_copy;
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
        self.read_cols(&map, first, parts, &mut row).await;
        if only_data && data.iter().any(|&i| row.cols[i].is_none()) {
            self.read_cols(&map, &all, Vec::new(), &mut row).await;
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
            self.read_cols(&map, &all, Vec::new(), &mut row).await;
            good = self.combinations(&map, &row.cols);
            if good.is_none() {
                good = self.by_other_sides(&map, &mut row).await;
            }
        }
        if good.is_none() {
            self.read_cols(&map, &all, Vec::new(), &mut row).await;
            self.read_doubtful(&map, &mut row).await;
            match map.assemble(&row.cols).map(|block| self.passes(block.into_bytes())) {
                Some(Ok(block)) => good = Some(block),
                Some(Err(what)) => {
                    (row.why, checksum) = (what, true);
                    good = self.combinations(&map, &row.cols);
                }
                None => {}
            }
        }
        let device = !row.failed.is_empty() || !row.passed.is_empty() || !checksum;
        let Some(block) = good else {
            if checksum && self.speculative {
                return Err(DvaFailure { place: place(), what: row.why, checksum, device });
            }
            if checksum {
                self.top.vdev.checksum_errors.fetch_add(1, Ordering::Relaxed);
                // Nobody can say which of them it was.
                for i in (0..n).filter(|&i| holds(i) && row.cols[i].is_some()) {
                    let col = &map.cols[i];
                    row.leaves[i].iter().for_each(|l| l.lied(col.on_device(), col.size));
                }
            } else {
                self.top.vdev.read_errors.fetch_add(1, Ordering::Relaxed);
            }
            return Err(DvaFailure { place: place(), what: row.why, checksum, device });
        };
        let mut healing = Healing::default();
        let failed = !row.failed.is_empty() || !row.passed.is_empty();
        let lacking = || row.leaves.iter().any(Option::is_none) && self.is_worth_comparing(&map, &row);
        if checksum || self.every_copy || failed || lacking() {
            healing = self.heal_raidz(&map, &row, &block, entry).await;
        }
        Ok((block.slice(..self.psize as usize), healing))
    }

    /// The devices that can be read and should hold a column, or should not; the best first.
    fn readable(&self, map: &Map, i: usize, should: bool) -> Leaves<'a> {
        let col = &map.cols[i];
        let sides = self.top.sides(col.child, col.offset).into_iter();
        let ok = sides.filter(|s| s.readable() && s.holds(self.birth) == should);
        let mut leaves: Leaves<'a> = ok.map(|s| s.leaf).collect();
        if leaves.len() > 1 {
            let cost = |l: &&Arc<Leaf>| l.read_cost(col.on_device(), self.class);
            leaves.sort_by_cached_key(|l| (l.state().0 < super::VdevState::Healthy, cost(l)));
        }
        leaves
    }

    /// Of a block that came well, without columns of some devices: whether somebody can be given
    /// what he lacks of it, or more parity came than was used, which may be wrong. Else all parity
    /// would be worked out for nobody, at every read of a vdev that lacks a device.
    fn is_worth_comparing(&self, map: &Map, row: &Row<'a>) -> bool {
        let takes = |child: usize, offset: u64| {
            self.top.sides(child, offset).iter().any(|s| s.writable() && !s.holds(self.birth))
        };
        let mut cols = map.cols.iter().enumerate();
        self.class == Priority::Scrub
            || map.has_parity_left(&row.cols)
            || cols.any(|(i, c)| takes(c.child, c.offset) || map.extra(i).iter().any(|e| takes(e.0, e.1)))
    }

    fn passes(&self, block: Bytes) -> Result<Bytes, String> {
        (self.check)(block.get(..self.psize as usize).unwrap_or_default())?;
        Ok(block)
    }

    /// Reads what was not asked for yet, from whoever gives it. `parts` are the buffers of the data
    /// columns, or none.
    async fn read_cols(&self, map: &Map, asked: &[usize], parts: Vec<IoBuf>, row: &mut Row<'a>) {
        self.read_once(map, asked, parts, row).await;
        loop {
            let turned = row.turn_to_others();
            if turned.is_empty() {
                return;
            }
            self.read_once(map, &turned, Vec::new(), row).await;
        }
    }

    async fn read_once(&self, map: &Map, asked: &[usize], parts: Vec<IoBuf>, row: &mut Row<'a>) {
        let wanted: SmallVec<[usize; 8]> =
            asked.iter().copied().filter(|&i| !row.asked[i] && row.leaves[i].is_some()).collect();
        if wanted.is_empty() {
            return;
        }
        let data = map.data().filter(|&i| map.cols[i].size > 0);
        let mut parts: SmallVec<[(usize, Option<IoBuf>); 8]> =
            data.zip(parts.into_iter().map(Some)).collect();
        let mut runs = match map.is_scattered() {
            true => runs(map, wanted, &row.leaves),
            false => wanted.iter().map(|i| alone(*i)).collect(),
        };
        while !runs.is_empty() {
            let gather = Gather::new(runs.len());
            for (slot, run) in runs.iter().enumerate() {
                run.iter().for_each(|&i| row.asked[i] = true);
                let Some(i) = run.first().copied() else { continue };
                let part = parts.iter_mut().find(|(col, _)| *col == i && row.tails[i] == 0);
                let part = part.and_then(|(_, part)| part.take());
                let offset = map.cols[i].on_device();
                let len = run.iter().map(|&i| map.cols[i].size + row.tails[i]).sum();
                let (class, done) = (self.class, gather.clone());
                if let Some(leaf) = row.leaves[i] {
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
                    let (size, tail) = (map.cols[i].size as usize, row.tails[i] as usize);
                    match &result {
                        Some(Ok(data)) if data.len() >= at + size + tail => {
                            let mut own = data.slice(at..at + size + tail);
                            let behind = own.split_off(size);
                            row.cols[i] = Some(own);
                            if !is_zero(&behind) {
                                row.dirty.push(i);
                            }
                        }
                        Some(Err(e)) => {
                            let path = row.leaves[i].map(|l| l.path()).unwrap_or_default();
                            row.why = format!("{path}: {e}");
                            row.failed.push(i);
                        }
                        Some(Ok(_)) | None => row.failed.push(i),
                    }
                    at += size + tail;
                }
            }
            runs = again;
        }
    }

    /// As a last resort also the leaves that should not have it: a DTL may say more than is true.
    async fn read_doubtful(&self, map: &Map, row: &mut Row<'a>) {
        let missing = (0..map.cols.len()).filter(|&i| row.cols[i].is_none());
        let mut doubtful: SmallVec<[(usize, Leaves<'a>); 4]> =
            missing.map(|i| (i, self.readable(map, i, false))).filter(|(_, l)| !l.is_empty()).collect();
        for (i, leaves) in &mut doubtful {
            let (first, i) = (leaves.remove(0), *i);
            if let Some(failed) = row.leaves[i].replace(first) {
                row.passed.push((i, failed, None));
            }
            (row.others[i], row.asked[i]) = (std::mem::take(leaves), false);
            row.failed.retain(|f| *f != i);
        }
        let known = row.passed.len();
        let asked: SmallVec<[usize; 4]> = doubtful.iter().map(|(i, _)| *i).collect();
        self.read_cols(map, &asked, Vec::new(), row).await;
        // They are not to blame.
        row.passed.truncate(known);
        asked.into_iter().for_each(|i| row.leaves[i] = None);
    }

    /// No combination of the columns that came is the block: perhaps it is with what others have of
    /// them, one at a time, or all.
    async fn by_other_sides(&self, map: &Map, row: &mut Row<'a>) -> Option<Bytes> {
        let mut found = Vec::new();
        for i in (0..map.cols.len()).filter(|&i| map.cols[i].size > 0) {
            let col = &map.cols[i];
            for leaf in std::mem::take(&mut row.others[i]) {
                match self.leaf_read(leaf, col.on_device(), col.size).await {
                    Ok(data) if row.cols[i].as_ref() == Some(&data) => {}
                    Ok(data) => found.push((i, leaf, data)),
                    Err(_) => row.passed.push((i, leaf, None)),
                }
            }
        }
        let all = found.len();
        for pick in 0..all + usize::from(all > 1) {
            let is_picked = |k: usize| pick == k || pick == all;
            let mut cols = row.cols.clone();
            for (_, (i, _, data)) in found.iter().enumerate().filter(|(k, _)| is_picked(*k)) {
                cols[*i] = Some(data.clone());
            }
            let block = map.assemble(&cols).and_then(|b| self.passes(b.into_bytes()).ok());
            let Some(block) = block.or_else(|| self.combinations(map, &cols)) else { continue };
            for (k, (i, leaf, data)) in found.into_iter().enumerate() {
                if !is_picked(k) {
                    row.passed.push((i, leaf, Some(data)));
                } else if let Some(before) = row.leaves[i].replace(leaf) {
                    row.passed.push((i, before, row.cols[i].replace(data)));
                    // What is behind the column was another's.
                    row.dirty.retain(|d| *d != i);
                }
            }
            return Some(block);
        }
        None
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
    async fn heal_raidz(&self, map: &Map, row: &Row<'a>, block: &Bytes, entry: Entry) -> Healing {
        let right = map.columns(block);
        let mut healing = Healing::default();
        let mut writes: SmallVec<[Mend; 4]> = SmallVec::new();
        for (i, (right, tail)) in right.into_iter().zip(map.tails()).enumerate() {
            let (col, before) = (&map.cols[i], writes.len());
            let at = col.on_device();
            let sides = self.top.sides(col.child, col.offset);
            let zeros = if tail > 0 { IoBuf::zeroed(tail as usize).into_bytes() } else { Bytes::new() };
            let behind = at.wrapping_add(col.size);
            // By which spares the leaf that was asked has it.
            let mend = |leaf: &Arc<Leaf>, at: u64, data: &Bytes| match sides
                .iter()
                .find(|s| Arc::ptr_eq(s.leaf, leaf))
            {
                Some(side) => Mend::new(side, at, data.clone()),
                None => Mend::new(&Side::own(leaf), at, data.clone()),
            };
            let passed = row.passed.iter().filter(|p| p.0 == i).map(|p| (p.1, p.2.as_ref()));
            let asked = row.leaves[i].filter(|_| row.asked[i]);
            let asked = asked.map(|l| (l, row.cols[i].as_ref().filter(|_| !row.failed.contains(&i))));
            for (leaf, read) in passed.chain(asked) {
                // A column that was read into the block is the block.
                let lies = read.is_some_and(|r| r.as_ptr() != right.as_ptr() && *r != right);
                if lies || read.is_none() {
                    if lies && !self.speculative {
                        leaf.lied(at, right.len() as u64);
                    }
                    healing.spoilt(leaf);
                    writes.push(mend(leaf, at, &right));
                }
                if read.is_none() {
                    writes.push(mend(leaf, behind, &zeros));
                }
            }
            if let Some(leaf) = row.leaves[i].filter(|_| row.dirty.contains(&i)) {
                leaf.lied(behind, tail);
                healing.spoilt(leaf);
                writes.push(mend(leaf, behind, &zeros));
            }
            if self.class == Priority::Scrub {
                sides.iter().for_each(|s| s.note_absent(self.birth));
            }
            for side in sides.iter().filter(|s| s.writable() && !s.holds(self.birth)) {
                writes.push(Mend::new(side, at, right.clone()));
                writes.push(Mend::new(side, behind, zeros.clone()));
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
        writes.retain(|mend| !mend.is_empty());
        healing.count(self.repair(writes, entry).await);
        healing
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
