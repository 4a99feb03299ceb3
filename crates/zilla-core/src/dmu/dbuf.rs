//! A level-0 block in memory: what is on disk (the *base*) and one *layer* a txg that changed it.
//!
//! This is where writes learn not to read. A write into an uncached record lands in a partial layer
//! that knows which of its bytes are valid, and returns. Whoever needs the rest (a reader, or the
//! sync of that txg if nothing filled the record meanwhile) asks for the base; nobody else ever
//! does. Layers keep txgs apart: a write in the open txg puts a new, initially empty, layer above
//! the one being synced, so that nothing is copied and nobody waits.
//!
//! ```text
//!   layer txg 12 (open)       [....WWWW........]   partial: valid bytes W
//!   layer txg 11 (quiescing)  [hole]               freed: all zeroes
//!   layer txg 10 (syncing)    [WWWWWWWWWWWWWWWW]   full, frozen: the buffer itself goes to disk
//!     or, of a clone          [bp.....WWW......]   partial, over a block of another file instead of what is below
//!   base                      unknown | hole | bytes
//! ```
//!
//! Invariants: layers' txgs ascend; only the top layer is ever written to; the bottom layer is the
//! next to be synced, and once synced its contents become the base; a layer over a cloned block
//! hides all below it; where a layer was written ahead of its sync, and how it came compressed, is
//! known only while it does not change. A crash loses layers, which is what a txg that was not
//! synced means.
//!
//! A layer that its txg's sync could not put on disk, because what it lies on cannot be read,
//! becomes the *held* layer ([`HELD`]): below all others, until the base can be read or nothing of
//! it is needed any more (`held.rs`). Such a layer, and one that is postponed, has no cloned block
//! under it but that block's bytes: only the sync of the txg that cloned it may point to the block.

#![allow(
    clippy::indexing_slicing,
    reason = "offsets are of what was written here, not of what was read: a slip ends the process, and loses no byte"
)]

use super::range::RangeSet;
use crate::types::Txg;
use crate::zio::Packed;
use bytes::Bytes;
use smallvec::SmallVec;
use zilla_env::IoBuf;
use zilla_ondisk::blkptr::BlkPtr;

mod held;

/// The block as of the last synced txg.
#[derive(Clone, Debug, Default)]
pub(crate) enum Base {
    /// On disk; nobody has needed it yet.
    #[default]
    Unknown,
    Hole,
    /// May be shorter than the block (the block grew since): the rest is zeroes.
    Data(Bytes),
}

enum LayerData {
    Partial(Partial),
    Full(IoBuf),
    /// Shared: with the syncer, with the ARC, or with the caller who handed the buffer in.
    Frozen(Bytes),
    Hole,
}

impl LayerData {
    /// The memory that it takes.
    fn bytes(&self) -> usize {
        match self {
            LayerData::Partial(part) => part.buf.len(),
            LayerData::Full(buf) => buf.len(),
            LayerData::Frozen(b) => b.len(),
            LayerData::Hole => 0,
        }
    }

    /// Which bytes of the block were written.
    fn known(&self) -> SmallVec<[(u64, u64); 2]> {
        match self {
            LayerData::Partial(part) => part.valid.iter().collect(),
            LayerData::Full(buf) => smallvec::smallvec![(0, buf.len() as u64)],
            LayerData::Frozen(b) => smallvec::smallvec![(0, b.len() as u64)],
            LayerData::Hole => SmallVec::new(),
        }
    }
}

/// A write of no more than this part of its block is small.
const SMALL: usize = 16;

/// The bytes of a record that a txg has written. As long as they are one small write they have a
/// buffer of its size: to be given 128 KiB for 8 costs a small random write more page faults than
/// anything else it does.
struct Partial {
    /// Where in the block the buffer begins.
    start: usize,
    buf: IoBuf,
    /// Within the buffer, but counted from the block's start.
    valid: RangeSet,
    /// The block's length.
    len: usize,
}

impl Partial {
    /// For a first write of so many bytes at `off`.
    fn new(blksz: usize, off: usize, write: usize) -> Partial {
        let (start, size) = if write <= blksz / SMALL { (off, write) } else { (0, blksz) };
        Partial { start, buf: IoBuf::scratch(size), valid: RangeSet::default(), len: blksz }
    }

    /// What is valid of `from..to`, all of which must be.
    fn get(&self, from: u64, to: u64) -> &[u8] {
        &self.buf[from as usize - self.start..to as usize - self.start]
    }

    fn write(&mut self, off: usize, data: &[u8]) {
        if off < self.start || off + data.len() > self.start + self.buf.len() {
            let mut whole = IoBuf::scratch(self.len);
            whole[self.start..self.start + self.buf.len()].copy_from_slice(&self.buf);
            (self.start, self.buf) = (0, whole);
        }
        let at = off - self.start;
        self.buf[at..at + data.len()].copy_from_slice(data);
        self.valid.insert(off as u64, (off + data.len()) as u64);
    }

    /// The block has become longer. Beyond its old end it was zeroes only if nothing below is
    /// longer, so the new part is a gap.
    fn grow(&mut self, blksz: usize) {
        if self.buf.len() == self.len {
            self.buf = copied(&self.buf, blksz);
        }
        self.len = blksz;
    }

    fn is_full(&self) -> bool {
        self.buf.len() == self.len && self.valid.contains_range(0, self.len as u64)
    }
}

/// The txg of a layer that no sync could put on disk. No txg has this number.
const HELD: Txg = Txg(0);

struct Layer {
    txg: Txg,
    data: LayerData,
    /// Where these very contents are on disk already (`ahead.rs`). Forgotten when they change.
    ahead: Option<Box<BlkPtr>>,
    /// These very contents as they came compressed. Forgotten when they change.
    packed: Option<Box<Packed>>,
    /// What a partial layer lies on instead of the layers below.
    clone: Option<Box<ClonedBlock>>,
    fault: Fault,
}

impl Layer {
    fn new(txg: Txg, data: LayerData) -> Layer {
        Layer { txg, data, ahead: None, packed: None, clone: None, fault: Fault::None }
    }

    /// The cloned block below the bytes that were written since.
    fn under(&self) -> Option<&ClonedBlock> {
        self.clone.as_deref().filter(|_| matches!(self.data, LayerData::Partial(_)))
    }

    /// The cloned block, where it is all that the sync has to put on disk.
    fn only_clone(&self) -> Option<&ClonedBlock> {
        let LayerData::Partial(part) = &self.data else { return None };
        self.under().filter(|c| part.valid.is_empty() && c.bp.lsize() == part.len as u64)
    }

    fn was_read(&mut self) {
        if self.fault == Fault::Deferred {
            self.fault = Fault::Read;
        }
    }
}

/// A block that another file has too.
struct ClonedBlock {
    bp: BlkPtr,
    /// Once somebody has needed it.
    data: Option<Bytes>,
    /// It is not to be forgotten again.
    pinned: bool,
}

/// Whether a layer began as a write in part over a base that nobody had read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// It did, and the read was put off.
    Deferred,
    /// Its contents have come to depend on the base, which was read.
    Read,
}

/// What has become of a read that was put off, when its txg is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Later changes of the same txg left nothing to be read.
    Avoided,
    /// The base is in memory.
    Read,
    /// The sync has to read it.
    Due,
}

/// A block as a txg has made it so far, and where these very contents are already.
pub(crate) struct Ahead {
    pub data: Bytes,
    pub there: Option<BlkPtr>,
}

/// What the sync of one txg has to put on disk for one block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frozen {
    Data(Bytes),
    Hole,
    /// Nothing but this block, which another file has too, and its contents if they are in memory.
    Cloned(BlkPtr, Option<Bytes>),
    /// The layer has gaps and the base is not in memory: load it and ask again.
    NeedsBase,
}

#[derive(Default)]
pub(crate) struct Dbuf {
    base: Base,
    layers: SmallVec<[Layer; 1]>,
    /// For the dbuf cache's clock: used since the hand last passed.
    pub(crate) touched: bool,
    /// The base was read ahead, and nobody has used it yet.
    pub(crate) ahead: bool,
    /// As how long the dbuf cache's clock has it, if it is there.
    pub(crate) on_clock: Option<usize>,
}

/// Whether both are the very same bytes in memory.
pub(crate) fn is_same(a: &Bytes, b: &Bytes) -> bool {
    (a.as_ptr(), a.len()) == (b.as_ptr(), b.len())
}

/// Copies `src[off..]` into `out`, zeroes where `src` ends.
pub(crate) fn copy_extended(src: &[u8], off: usize, out: &mut [u8]) {
    let src = src.get(off..).unwrap_or_default();
    let have = src.len().min(out.len());
    let (here, beyond) = out.split_at_mut(have);
    here.copy_from_slice(src.split_at(have).0);
    beyond.fill(0);
}

impl Dbuf {
    pub(crate) fn with_base(base: Base) -> Dbuf {
        Dbuf { base, ..Dbuf::default() }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.layers.is_empty()
    }

    /// Has the dbuf cache's clock count so many bytes of the block: those that it does not count
    /// yet, if there are any. It has the block as shorter where this was a hole when it was read.
    /// (The block has two entries then, the first of which may push it out early.)
    pub(crate) fn count_as(&mut self, len: usize) -> Option<usize> {
        let more = match self.on_clock {
            None => len,
            Some(counted) if counted < len => len - counted,
            Some(_) => return None,
        };
        self.on_clock = Some(len);
        Some(more)
    }

    pub(crate) fn base_known(&self) -> bool {
        !matches!(self.base, Base::Unknown)
    }

    pub(crate) fn set_base(&mut self, base: Base) {
        (self.base, self.ahead) = (base, false);
    }

    /// Whether the newest contents of `off..off + len` can be had without the disk.
    pub(crate) fn resident(&self, off: usize, len: usize) -> bool {
        if self.base_known() && self.layers.iter().all(|l| l.clone.is_none()) {
            return true;
        }
        let mut missing: SmallVec<[(u64, u64); 2]> = smallvec::smallvec![(off as u64, (off + len) as u64)];
        for layer in self.layers.iter().rev() {
            let LayerData::Partial(part) = &layer.data else { return true };
            missing = missing.iter().flat_map(|&(s, e)| part.valid.gaps(s, e)).collect();
            if missing.is_empty() {
                return true;
            }
            if let Some(clone) = layer.under() {
                return clone.data.is_some();
            }
        }
        self.base_known()
    }

    /// Gives the layer of `txg` the bytes of the cloned block that it lies on, if it does; false if
    /// these were not read.
    #[must_use]
    pub(crate) fn detach(&mut self, txg: Txg) -> bool {
        let Some(layer) = self.layers.iter_mut().find(|l| l.txg == txg) else { return true };
        let Some(under) = layer.under() else { return true };
        let (Some(bytes), LayerData::Partial(part)) = (&under.data, &layer.data) else { return false };
        let whole = if part.valid.is_empty() && bytes.len() == part.len {
            LayerData::Frozen(bytes.clone())
        } else {
            let mut whole = copied(bytes, part.len);
            for (s, e) in part.valid.iter() {
                whole[s as usize..e as usize].copy_from_slice(part.get(s, e));
            }
            LayerData::Full(whole)
        };
        (layer.data, layer.clone) = (whole, None);
        true
    }

    /// The contents of a cloned block, where it is still needed.
    pub(crate) fn clone_read(&mut self, bp: &BlkPtr, data: &Bytes) {
        for layer in &mut self.layers {
            if let Some(clone) = layer.clone.as_mut().filter(|c| c.bp == *bp) {
                clone.data = Some(data.clone());
            }
        }
    }

    /// Whether nobody sees the base.
    pub(crate) fn hides_base(&self) -> bool {
        self.layers.first().is_some_and(|l| l.under().is_some())
    }

    /// Copies the newest contents out; false (`out` undefined) if the base is needed and absent.
    #[must_use]
    pub(crate) fn read(&self, off: usize, out: &mut [u8]) -> bool {
        self.read_below(self.layers.len(), off, out)
    }

    /// As [`Dbuf::read`], but seeing only the lowest `depth` layers.
    fn read_below(&self, depth: usize, off: usize, out: &mut [u8]) -> bool {
        let mut missing: SmallVec<[(u64, u64); 2]> =
            smallvec::smallvec![(off as u64, (off + out.len()) as u64)];
        let place = |s: u64, e: u64| (s as usize - off)..(e as usize - off);
        for layer in self.layers[..depth].iter().rev() {
            match &layer.data {
                LayerData::Partial(part) => {
                    let mut rest = SmallVec::new();
                    for &(s, e) in &missing {
                        let gaps = part.valid.gaps(s, e);
                        let mut at = s;
                        for &(gs, ge) in gaps.iter().chain(std::iter::once(&(e, e))) {
                            if at < gs {
                                out[place(at, gs)].copy_from_slice(part.get(at, gs));
                            }
                            at = ge;
                        }
                        rest.extend(gaps);
                    }
                    missing = rest;
                    if missing.is_empty() {
                        return true;
                    }
                    if let Some(clone) = layer.under() {
                        let Some(b) = &clone.data else { return false };
                        missing
                            .iter()
                            .for_each(|&(s, e)| copy_extended(b, s as usize, &mut out[place(s, e)]));
                        return true;
                    }
                }
                LayerData::Full(buf) => {
                    missing.iter().for_each(|&(s, e)| copy_extended(buf, s as usize, &mut out[place(s, e)]));
                    return true;
                }
                LayerData::Frozen(b) => {
                    missing.iter().for_each(|&(s, e)| copy_extended(b, s as usize, &mut out[place(s, e)]));
                    return true;
                }
                LayerData::Hole => {
                    missing.iter().for_each(|&(s, e)| out[place(s, e)].fill(0));
                    return true;
                }
            }
        }
        match &self.base {
            Base::Unknown => missing.is_empty(),
            Base::Hole => {
                missing.iter().for_each(|&(s, e)| out[place(s, e)].fill(0));
                true
            }
            Base::Data(b) => {
                missing.iter().for_each(|&(s, e)| copy_extended(b, s as usize, &mut out[place(s, e)]));
                true
            }
        }
    }

    /// The newest contents without a copy, if they are one shared buffer of `blksz` bytes.
    pub(crate) fn shared(&self, blksz: usize) -> Option<Bytes> {
        match self.layers.last() {
            Some(Layer { data: LayerData::Frozen(b), .. }) if b.len() == blksz => Some(b.clone()),
            Some(Layer { data: LayerData::Partial(part), clone: Some(c), .. }) if part.valid.is_empty() => {
                c.data.clone().filter(|b| b.len() == blksz)
            }
            None => match &self.base {
                Base::Data(b) if b.len() == blksz => Some(b.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    /// The newest contents by reference, where they are one whole buffer (as metadata usually is).
    pub(crate) fn slice(&self) -> Option<&[u8]> {
        match self.layers.last().map(|l| &l.data) {
            Some(LayerData::Full(buf)) => Some(buf),
            Some(LayerData::Frozen(b)) => Some(b),
            Some(LayerData::Partial(_) | LayerData::Hole) => None,
            None => {
                if let Base::Data(b) = &self.base {
                    Some(b)
                } else {
                    None
                }
            }
        }
    }

    /// Whether the newest contents are known to be all zeroes without looking at a byte.
    pub(crate) fn is_hole(&self) -> bool {
        match self.layers.last() {
            Some(l) => matches!(l.data, LayerData::Hole),
            None => matches!(self.base, Base::Hole),
        }
    }

    /// Writes into the block in `txg`. Never needs the base.
    pub(crate) fn write(&mut self, txg: Txg, blksz: usize, off: usize, data: &[u8]) {
        debug_assert!(off + data.len() <= blksz);
        let layer = self.top(txg, blksz, off, data.len());
        match &mut layer.data {
            LayerData::Partial(part) => part.write(off, data),
            LayerData::Full(buf) => buf[off..off + data.len()].copy_from_slice(data),
            LayerData::Frozen(_) | LayerData::Hole => unreachable!("top() gives a writable layer"),
        }
        if let LayerData::Partial(part) = &layer.data
            && part.is_full()
            && let LayerData::Partial(part) = std::mem::replace(&mut layer.data, LayerData::Hole)
        {
            layer.data = LayerData::Full(part.buf);
        }
    }

    /// Replaces the whole block by a buffer that is handed over, not copied.
    pub(crate) fn write_all(&mut self, txg: Txg, data: Bytes) {
        self.put(txg, LayerData::Frozen(data));
    }

    /// As [`Dbuf::write_all`]; `packed` is what is to be stored of it.
    pub(crate) fn write_packed(&mut self, txg: Txg, data: Bytes, packed: Packed) {
        self.write_all(txg, data);
        if let Some(l) = self.layers.last_mut() {
            l.packed = Some(Box::new(packed));
        }
    }

    /// What is to be stored of the contents that `txg` leaves, if they came compressed.
    pub(crate) fn packed(&self, txg: Txg) -> Option<&Packed> {
        self.layers.iter().find(|l| l.txg == txg)?.packed.as_deref()
    }

    /// Frees the block in `txg`: reads as zeroes from now on.
    pub(crate) fn free(&mut self, txg: Txg) {
        self.put(txg, LayerData::Hole);
    }

    fn put(&mut self, txg: Txg, data: LayerData) {
        match self.layers.last_mut() {
            Some(l) if l.txg == txg => *l = Layer { fault: l.fault, ..Layer::new(txg, data) },
            _ => self.layers.push(Layer::new(txg, data)),
        }
    }

    /// Changes the block in place, seeing all of it; None if the base is needed and not in memory.
    pub(crate) fn modify<R>(&mut self, txg: Txg, blksz: usize, f: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let ready = matches!(self.layers.last(),
            Some(Layer { txg: t, data: LayerData::Full(b), .. }) if *t == txg && b.len() == blksz);
        if !ready {
            let mut buf = IoBuf::scratch(blksz);
            if !self.read(0, &mut buf) {
                return None;
            }
            self.put(txg, LayerData::Full(buf));
            self.layers.last_mut().into_iter().for_each(Layer::was_read);
        }
        match self.layers.last_mut().map(|l| &mut l.data) {
            Some(LayerData::Full(buf)) => Some(f(buf)),
            _ => unreachable!("made so above"),
        }
    }

    /// The layer of `txg`, `blksz` long, made if need be for a write of so many bytes at `off`.
    fn top(&mut self, txg: Txg, blksz: usize, off: usize, write: usize) -> &mut Layer {
        debug_assert!(self.layers.last().is_none_or(|l| l.txg <= txg), "a write into an older txg");
        if self.layers.last().is_none_or(|l| l.txg < txg) {
            let mut layer = Layer::new(txg, LayerData::Partial(Partial::new(blksz, off, write)));
            if self.layers.is_empty() && !self.base_known() {
                layer.fault = Fault::Deferred;
            }
            self.layers.push(layer);
        }
        let at = self.layers.len() - 1;
        let layer = &mut self.layers[at];
        (layer.ahead, layer.packed) = (None, None);
        layer.data = match std::mem::replace(&mut layer.data, LayerData::Hole) {
            LayerData::Full(buf) if buf.len() >= blksz => LayerData::Full(buf),
            LayerData::Full(old) => LayerData::Full(copied(&old, blksz)),
            LayerData::Frozen(old) => LayerData::Full(copied(&old, blksz)),
            LayerData::Hole => LayerData::Full(IoBuf::zeroed(blksz)),
            LayerData::Partial(mut part) => {
                if part.len < blksz {
                    part.grow(blksz);
                }
                LayerData::Partial(part)
            }
        };
        layer
    }

    /// Hands out what `txg` leaves on disk. The layer stays, frozen, until [`Dbuf::synced`]. Where
    /// the txg changed nothing, it is the held layer that is to be tried again.
    pub(crate) fn freeze(&mut self, txg: Txg) -> Option<Frozen> {
        let at = self.layers.iter().position(|l| l.txg == txg).or_else(|| self.is_held().then_some(0))?;
        debug_assert!(self.layers[..at].iter().all(|l| l.txg == HELD), "older layers must have been synced");
        Some(self.freeze_at(at))
    }

    /// What has become of the read that was put off when `txg` first wrote into the block, if one
    /// was. To be asked before [`Dbuf::freeze`].
    pub(crate) fn fate(&self, txg: Txg) -> Option<Fate> {
        let layer = self.layers.iter().find(|l| l.txg == txg)?;
        match (layer.fault, &layer.data) {
            (Fault::None, _) => None,
            (Fault::Read, _) => Some(Fate::Read),
            // A cloned block has come between.
            (Fault::Deferred, _) if layer.under().is_some() => Some(Fate::Avoided),
            (Fault::Deferred, LayerData::Partial(_)) if self.base_known() => Some(Fate::Read),
            (Fault::Deferred, LayerData::Partial(_)) => Some(Fate::Due),
            (Fault::Deferred, _) => Some(Fate::Avoided),
        }
    }

    /// Whether the sync of `txg` must read the base. False as long as an older txg's layer is
    /// there: its sync brings the base.
    pub(crate) fn lacks_base(&self, txg: Txg) -> bool {
        let bottom = self.layers.first().filter(|l| l.txg == txg);
        let sees_it = |l: &Layer| matches!(l.data, LayerData::Partial(_)) && l.under().is_none();
        !self.base_known() && bottom.is_some_and(sees_it)
    }

    fn freeze_at(&mut self, at: usize) -> Frozen {
        if let LayerData::Partial(part) = &self.layers[at].data {
            if let Some(c) = self.layers[at].only_clone() {
                return Frozen::Cloned(c.bp, c.data.clone());
            }
            let mut whole = IoBuf::scratch(part.len);
            if !self.read_below(at + 1, 0, &mut whole) {
                return Frozen::NeedsBase;
            }
            self.layers[at].data = LayerData::Full(whole);
            self.layers[at].was_read();
        }
        let layer = &mut self.layers[at];
        let frozen = match std::mem::replace(&mut layer.data, LayerData::Hole) {
            LayerData::Full(buf) => buf.into_bytes(),
            LayerData::Frozen(b) => b,
            LayerData::Hole => return Frozen::Hole,
            LayerData::Partial(_) => unreachable!("made whole above"),
        };
        layer.data = LayerData::Frozen(frozen.clone());
        Frozen::Data(frozen)
    }

    /// What `txg` has made of the block so far, to be written now; None if there is nothing to
    /// write, or it would have to be read first.
    pub(crate) fn ahead(&mut self, txg: Txg) -> Option<Ahead> {
        let at = self.layers.iter().position(|l| l.txg == txg)?;
        match self.freeze_at(at) {
            Frozen::Data(data) => Some(Ahead { data, there: self.layers[at].ahead.as_deref().copied() }),
            Frozen::Hole | Frozen::NeedsBase | Frozen::Cloned(..) => None,
        }
    }

    /// What [`Dbuf::ahead`] gave out is on its way to where `bp` says. Of no interest if the
    /// contents have changed meanwhile. (The caller still has `data`, so no other buffer can be at
    /// its address.)
    pub(crate) fn set_ahead(&mut self, txg: Txg, data: &Bytes, bp: BlkPtr) {
        let layer = self.layers.iter_mut().find(|l| l.txg == txg);
        if let Some(l) = layer.filter(|l| matches!(&l.data, LayerData::Frozen(b) if is_same(b, data))) {
            l.ahead = Some(Box::new(bp));
        }
    }

    /// Where the contents that `txg` leaves are already.
    pub(crate) fn written_ahead(&self, txg: Txg) -> Option<BlkPtr> {
        self.layers.iter().find(|l| l.txg == txg)?.ahead.as_deref().copied()
    }

    /// The layer of `txg` is on its way to disk with these contents: it becomes the base.
    pub(crate) fn synced(&mut self, txg: Txg, base: Base) {
        self.layers.retain(|l| l.txg != txg && l.txg != HELD);
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::LayerLost) {
            self.layers.clear();
        } else if crate::planted::is(crate::planted::Bug::StaleBase) && self.base_known() {
            return;
        }
        self.set_base(base);
    }
}

/// What two layers, one upon the other, are together: one layer of the upper one's txg.
fn joined(lower: Layer, upper: Layer) -> Layer {
    if upper.under().is_some() {
        return upper;
    }
    debug_assert!(lower.under().is_none(), "it was detached");
    let fault = if upper.fault == Fault::None { lower.fault } else { upper.fault };
    let Layer { txg, ahead, packed, .. } = upper;
    Layer { txg, data: merged(lower.data, upper.data), ahead, packed, clone: None, fault }
}

/// What two layers' bytes are together.
fn merged(lower: LayerData, upper: LayerData) -> LayerData {
    let LayerData::Partial(upper) = upper else { return upper };
    let mut whole = match lower {
        LayerData::Partial(mut part) => {
            if part.len < upper.len {
                part.grow(upper.len);
            }
            for (s, e) in upper.valid.iter() {
                part.write(s as usize, upper.get(s, e));
            }
            return if part.is_full() { LayerData::Full(part.buf) } else { LayerData::Partial(part) };
        }
        LayerData::Full(buf) if buf.len() >= upper.len => buf,
        LayerData::Full(buf) => copied(&buf, upper.len),
        LayerData::Frozen(b) => copied(&b, upper.len.max(b.len())),
        LayerData::Hole => IoBuf::zeroed(upper.len),
    };
    for (s, e) in upper.valid.iter() {
        whole[s as usize..e as usize].copy_from_slice(upper.get(s, e));
    }
    LayerData::Full(whole)
}

fn copied(old: &[u8], len: usize) -> IoBuf {
    let mut buf = IoBuf::scratch(len);
    copy_extended(old, 0, &mut buf);
    buf
}

mod clone;
#[cfg(test)]
mod tests;
