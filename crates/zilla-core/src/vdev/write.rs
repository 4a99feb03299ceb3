//! Which bytes go to which leaf for a block, and handing many blocks' bytes to the leaves as few
//! large writes.
//!
//! Nothing is copied: a mirror's leaves get the same buffer, a RAID-Z's data columns are slices of
//! the block. Sectors that a RAID-Z block only reserves are written (as zeros) where that joins two
//! blocks into one write, and left alone elsewhere.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
#[cfg(feature = "planted")]
use smallvec::SmallVec;
use zilla_env::{IoBuf, IoVec};

use super::distributed::Side;
use super::gather::{Gather, IoDone};
use super::leaf::{Leaf, LeafIo};
use super::priority::Priority;
use super::queue::QOp;
use super::raidz::on_device;
use super::read::pad;
use super::tree::{Layout, Top, VdevTree};
use super::widths::Entry;

/// Writes are joined up to this size and number of pieces (the system's limit on pieces is 1024).
const MAX_WRITE: u64 = 1 << 20;
const MAX_PIECES: usize = 512;

/// Bytes for one leaf.
pub struct PlannedWrite {
    pub leaf: usize,
    /// On the device.
    pub offset: u64,
    pub data: Bytes,
    /// Only worth writing between two others.
    pub filler: bool,
}

/// What a set of blocks means for the leaves.
#[derive(Default)]
pub struct Plan {
    pub writes: Vec<PlannedWrite>,
    /// Leaves that should have got something but take no writes.
    pub missed: Vec<usize>,
    zeros: Option<Bytes>,
}

impl Plan {
    /// Adds a block born in txg `birth` at `offset` of a top-level's address space.
    pub(crate) fn block(&mut self, top: &Top, offset: u64, data: &Bytes, birth: u64, entry: &Entry) {
        let data = pad(data, (data.len() as u64).next_multiple_of(1 << top.ashift()));
        match &top.layout {
            Layout::Plain(unit) => {
                for leaf in &unit.leaves {
                    self.put(&Side::own(leaf), offset, data.clone(), false);
                    #[cfg(feature = "planted")]
                    if crate::planted::is(crate::planted::Bug::MirrorOneSide) {
                        break;
                    }
                }
            }
            Layout::Raidz { .. } | Layout::Draid { .. } => {
                let Some(map) = top.map(offset, data.len() as u64, birth, entry) else { return };
                let columns = map.columns(&data);
                #[cfg(feature = "planted")]
                let columns = with_wrong_parity(&map, columns);
                let columns = map.cols.iter().zip(columns).enumerate();
                for (i, (col, bytes)) in columns.filter(|(_, (col, _))| col.size > 0) {
                    let extra = map.extra(i).iter().copied();
                    for (child, offset) in std::iter::once((col.child, col.offset)).chain(extra) {
                        for side in top.sides(child, offset) {
                            self.put(&side, offset, bytes.clone(), false);
                        }
                    }
                }
                for skip in &map.skips {
                    let size = skip.size as usize;
                    let zeros = self.zeros.get_or_insert_with(|| IoBuf::zeroed(size).into_bytes());
                    let zeros =
                        if zeros.len() == size { zeros.clone() } else { IoBuf::zeroed(size).into_bytes() };
                    for side in top.sides(skip.child, skip.offset) {
                        self.put(&side, skip.offset, zeros.clone(), !map.zeroed);
                    }
                }
            }
            Layout::Indirect | Layout::Nothing => {}
        }
    }

    fn put(&mut self, side: &Side<'_>, offset: u64, data: Bytes, filler: bool) {
        match side.unwritable() {
            None => {
                let offset = on_device(offset);
                self.writes.push(PlannedWrite { leaf: side.leaf.index, offset, data, filler });
            }
            Some(leaf) if !self.missed.contains(&leaf.index) => self.missed.push(leaf.index),
            Some(_) => {}
        }
    }

    /// Sorts and joins: per leaf, the writes it gets.
    pub fn join(mut self) -> Vec<(usize, Vec<JoinedWrite>)> {
        self.writes.sort_by_key(|w| (w.leaf, w.offset));
        let mut out: Vec<(usize, Vec<JoinedWrite>)> = Vec::new();
        for w in self.writes {
            if out.last().is_none_or(|(leaf, _)| *leaf != w.leaf) {
                finish(&mut out);
                out.push((w.leaf, Vec::new()));
            }
            let Some((_, list)) = out.last_mut() else { continue };
            let len = w.data.len() as u64;
            if let Some(last) = list.last_mut()
                && last.offset + last.len == w.offset
                && last.len + len <= MAX_WRITE
                && last.data.len() < MAX_PIECES
            {
                last.data.push(w.data);
                last.len += len;
                last.filler_tail = if w.filler { last.filler_tail + 1 } else { 0 };
                continue;
            }
            if let Some(last) = list.last_mut() {
                last.trim();
            }
            if !w.filler {
                list.push(JoinedWrite {
                    offset: w.offset,
                    len,
                    data: IoVec::from_iter([w.data]),
                    filler_tail: 0,
                });
            }
        }
        finish(&mut out);
        out
    }
}

fn finish(out: &mut [(usize, Vec<JoinedWrite>)]) {
    if let Some(last) = out.last_mut().and_then(|(_, list)| list.last_mut()) {
        last.trim();
    }
}

#[cfg(feature = "planted")]
fn with_wrong_parity(map: &super::raidz::Map, mut columns: SmallVec<[Bytes; 8]>) -> SmallVec<[Bytes; 8]> {
    let last = (0..columns.len()).find(|i| !map.is_parity(i + 1));
    if let Some(last) = last.filter(|_| crate::planted::is(crate::planted::Bug::ParityWrong))
        && let Some(bytes) = columns.get_mut(last)
    {
        *bytes = Bytes::from(vec![0x5a; bytes.len()]);
    }
    columns
}

/// I/Os that end before their entry does.
pub(crate) struct Entered {
    #[expect(dead_code, reason = "held")]
    pub(crate) entry: Entry,
    pub(crate) done: Arc<dyn IoDone>,
    /// Whose the I/O of each slot is, and the txg that he lacks if it fails. He must be known to
    /// lack it before the entry ends: a rebuild may read what lies there right afterwards.
    pub(crate) lacking: Option<(Vec<Arc<Leaf>>, u64)>,
}

impl IoDone for Entered {
    fn done(&self, slot: usize, result: std::io::Result<Bytes>) {
        if result.is_err()
            && let Some((leaves, birth)) = &self.lacking
            && let Some(leaf) = leaves.get(slot)
        {
            leaf.dtl.add(*birth, *birth + 1);
        }
        self.done.done(slot, result);
    }
}

pub struct JoinedWrite {
    pub offset: u64,
    pub len: u64,
    pub data: IoVec,
    /// How many of the last pieces are only filler.
    filler_tail: usize,
}

impl JoinedWrite {
    fn trim(&mut self) {
        for _ in 0..std::mem::take(&mut self.filler_tail) {
            if let Some(piece) = self.data.pop() {
                self.len -= piece.len() as u64;
            }
        }
    }
}

impl VdevTree {
    /// Hands joined writes to their leaves. `done` is called once a write, with the leaf's index as
    /// slot.
    pub fn submit_writes(
        &self,
        joined: Vec<(usize, Vec<JoinedWrite>)>,
        class: Priority,
        done: &Arc<dyn IoDone>,
    ) {
        for (index, list) in joined {
            let Some(leaf) = self.leaves.get(index) else { continue };
            let ios = list.into_iter().map(|w| LeafIo {
                op: QOp::Write(w.data),
                offset: w.offset,
                len: w.len,
                class,
                done: done.clone(),
                slot: index,
            });
            leaf.submit(ios, None);
        }
    }

    /// Writes a block born in txg `birth` again over a damaged copy; whether all of it was
    /// taken.
    pub async fn rewrite(&self, top: &Top, offset: u64, data: &Bytes, birth: u64) -> bool {
        let len = (data.len() as u64).next_multiple_of(1 << top.ashift());
        let data = pad(data, len);
        let (mut at, mut taken) = (0, true);
        for piece in self.resolve(top.id, offset, len, birth).unwrap_or_default() {
            let Ok(top) = self.top(piece.vdev) else { return false };
            let data = data.slice(at..at + piece.len as usize);
            at += piece.len as usize;
            let marks: Vec<_> = top.devices().map(|l| (l, l.mark())).collect();
            let missed = self.write_now(top, piece.offset, &data, piece.birth, Priority::AsyncWrite).await;
            for (leaf, mark) in marks.into_iter().filter(|(l, _)| !missed.contains(&l.index)) {
                leaf.flushes.repaired(piece.birth, mark);
            }
            for i in missed {
                taken = false;
                if let Some(leaf) = self.leaves.get(i) {
                    leaf.refused.store(true, Ordering::Relaxed);
                }
            }
        }
        taken && at as u64 == len
    }

    /// Writes one block, born in txg `birth`, to the leaves of its vdev; the indices of those that
    /// did not take it, which lack the txg from now on. A synchronous write has a waiter, whose
    /// thread may do the last leaf's I/O itself.
    pub async fn write_now(
        &self,
        top: &Top,
        offset: u64,
        data: &Bytes,
        birth: u64,
        class: Priority,
    ) -> Vec<usize> {
        let entry = self.enter_to_write(&[(top.id, offset, data.len() as u64)]).await;
        let mut plan = Plan::default();
        plan.block(top, offset, data, birth, &entry);
        let mut missed = std::mem::take(&mut plan.missed);
        // Also those that are not even sent it, while the entry is there.
        missed.iter().filter_map(|i| self.leaves.get(*i)).for_each(|l| l.dtl.add(birth, birth + 1));
        let mut joined = plan.join();
        let total: usize = joined.iter().map(|(_, list)| list.len()).sum();
        if total == 0 {
            return missed;
        }
        let gather = Gather::new(total);
        let mut owners = Vec::with_capacity(total);
        for (index, list) in &joined {
            if let Some(leaf) = self.leaves.get(*index) {
                owners.extend(list.iter().map(|_| leaf.clone()));
            }
        }
        let lacking = Some((owners, birth));
        // Also if nobody waits for them any more.
        let done: Arc<dyn IoDone> = Arc::new(Entered { entry, done: gather.clone(), lacking });
        let mut sent = Vec::with_capacity(total);
        for (index, list) in joined.drain(..) {
            let Some(leaf) = self.leaves.get(index) else { continue };
            for w in list {
                let (offset, len, done) = (w.offset, w.len, done.clone());
                let slot = sent.len();
                sent.push(index);
                let io = LeafIo { op: QOp::Write(w.data), offset, len, class, done, slot };
                if sent.len() == total && class == Priority::SyncWrite {
                    zilla_env::waiting_here(leaf.write_time(), || leaf.submit([io], None));
                } else {
                    leaf.submit([io], None);
                }
            }
        }
        drop(done);
        for (index, result) in sent.into_iter().zip(gather.wait().await) {
            if !matches!(result, Some(Ok(_))) && !missed.contains(&index) {
                missed.push(index);
            }
        }
        missed
    }
}
