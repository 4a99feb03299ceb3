//! Gang blocks: a block in pieces, for when no run of its size is free.
//!
//! The pointer's DVAs (gang bit set) lead to a header of 512 bytes: three block pointers and a
//! checksum that is seeded with the first DVA and the birth. The children together are the block; a
//! child that found no run either is a gang itself. A gang's DVA counts the space of all below it
//! in its asize, while its header alone lies at its offset.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use bytes::Bytes;
use futures_util::future::BoxFuture;
use zilla_codec::checksum::{self, ByteOrder, Checksum, embedded};
use zilla_env::IoBuf;
use zilla_ondisk::blkptr::{BLKPTR_SIZE, BlkPtr};
use zilla_ondisk::enums::ZIO_CHECKSUM_OFF;
use zilla_ondisk::object_type::{DMU_OT_NONE, DMU_OT_OBJSET};
use zilla_ondisk::{ByteOrder as DiskOrder, Dva};

use super::write::{Place, Placement};
use super::{AllocReq, AllocStop, Dvas, Priority, Zio, verify};
use crate::error::{Errno, Error, Result};
use crate::tunables::{METASLAB_FORCE_GANGING, METASLAB_FORCE_GANGING_PCT};
use crate::types::{Bookmark, GANG_HEADER_SIZE, Txg};
use crate::vdev::{Reader, VdevTree, unfenced};

const GANG_CHILDREN: usize = 3;
/// Each level divides by three, so sixteen megabytes in sectors of 512 bytes are ten levels.
pub(super) const MAX_DEPTH: usize = 12;
/// `ZIO_COMPRESS_OFF`.
const COMPRESS_OFF: u8 = 2;

impl Zio {
    /// Reads a gang header and checks what it says against its block pointer. `every_copy` reads
    /// all redundancy of it.
    pub(super) async fn gang_children(
        &self,
        tree: &VdevTree,
        bp: &BlkPtr,
        dva: &Dva,
        bookmark: Bookmark,
        class: Priority,
        every_copy: bool,
    ) -> Result<Vec<BlkPtr>> {
        let first = bp.dva(0);
        let birth = bp.phys_birth();
        let check = |data: &[u8]| verify::gang_header(bp, &first, birth, data).map(drop);
        let top = tree.check_dva(dva, GANG_HEADER_SIZE, birth)?;
        let fence = || if every_copy { unfenced() } else { self.repairing(bp, bookmark) };
        let reader = Reader {
            tree,
            top,
            offset: dva.offset,
            psize: GANG_HEADER_SIZE,
            birth,
            class,
            tickets: None,
            check: &check,
            every_copy,
            speculative: false,
            fence: &fence,
        };
        let (header, _) = reader.read().await.map_err(|f| Error::corrupt(Some(bookmark), f.place, f.what))?;
        let bad = |what: String| {
            let place = format!("gang header at vdev {} offset {}", dva.vdev, dva.offset);
            Error::corrupt(Some(bookmark), place, what)
        };
        let order = verify::gang_header(bp, &first, birth, &header).map_err(bad)?;
        let mut children = Vec::new();
        let mut sum = 0;
        for i in 0..GANG_CHILDREN {
            let child = BlkPtr::at(&header, i, order).map_err(|e| bad(e.to_string()))?;
            if child.is_hole() {
                continue;
            }
            child.validate().map_err(|e| bad(format!("child {i}: {e}")))?;
            if child.is_embedded() || child.psize() > bp.psize() {
                return Err(bad(format!("child {i} is impossible")));
            }
            sum += child.psize();
            children.push(child);
        }
        if sum != bp.psize() {
            return Err(bad(format!("children of {sum} bytes for a block of {}", bp.psize())));
        }
        Ok(children)
    }

    /// Every place a block takes: its own, and for a gang those of all its pieces.
    pub(crate) async fn extents(&self, bp: &BlkPtr, bookmark: Bookmark) -> Result<Vec<Dva>> {
        let tree = self.tree();
        let mut out = Vec::new();
        let mut todo = vec![(*bp, 0)];
        while let Some((bp, depth)) = todo.pop() {
            if depth > MAX_DEPTH {
                return Err(Error::corrupt(Some(bookmark), "gang block", "nested too deeply"));
            }
            for dva in bp.dvas() {
                let asize = match dva.gang {
                    true => tree.top(dva.vdev)?.psize_to_asize(GANG_HEADER_SIZE, bp.phys_birth()),
                    false => dva.asize,
                };
                out.extend(tree.now_at(&Dva { asize, ..dva })?);
            }
            if bp.is_gang() {
                // All copies of the header lead to the same pieces.
                let first = bp.dva(0);
                let pieces = self.gang_children(&tree, &bp, &first, bookmark, Priority::Scrub, false).await?;
                todo.extend(pieces.into_iter().map(|p| (p, depth + 1)));
            }
        }
        Ok(out)
    }

    /// Reads a gang block.
    pub(super) fn read_gang<'a>(
        &'a self,
        tree: &'a VdevTree,
        bp: &'a BlkPtr,
        dva: &'a Dva,
        bookmark: Bookmark,
        class: Priority,
        depth: usize,
    ) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            if depth > MAX_DEPTH {
                return Err(Error::corrupt(Some(bookmark), "gang block", "nested too deeply"));
            }
            let children = self.gang_children(tree, bp, dva, bookmark, class, false).await?;
            let mut out = IoBuf::scratch(bp.psize() as usize);
            let mut rest = &mut out[..];
            for child in &children {
                let data = self.read_child(tree, child, bookmark, class, depth).await?;
                let Some((front, back)) = rest.split_at_mut_checked(data.len()) else { break };
                front.copy_from_slice(&data);
                rest = back;
            }
            Ok(out.into_bytes())
        })
    }

    async fn read_child(
        &self,
        tree: &VdevTree,
        child: &BlkPtr,
        bookmark: Bookmark,
        class: Priority,
        depth: usize,
    ) -> Result<Bytes> {
        if !child.is_gang() {
            return Box::pin(self.read_copies(child, bookmark, class, None)).await;
        }
        let mut last = None;
        for dva in child.dvas() {
            match self.read_gang(tree, child, &dva, bookmark, class, depth + 1).await {
                Ok(data) => return Ok(data),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or_else(|| Error::corrupt(Some(bookmark), "gang block", "a child without copies")))
    }

    /// Places a block for which there is no run, however that can be done, because its txg is lost
    /// otherwise: when vdevs are back whose devices are away; in pieces; with what the last txgs
    /// freed, which is held back from others; with fewer copies. Headers and pieces are added to
    /// `places`, the DVAs for the block's pointer returned.
    pub(super) async fn place_anyhow(
        &self,
        txg: Txg,
        what: AllocReq,
        kind: Checksum,
        sum: HeaderSum,
        data: Bytes,
        places: &mut Vec<Placement>,
    ) -> Result<Vec<Dva>> {
        let known = places.len();
        loop {
            self.await_vdevs().await?;
            match self.place_somehow(txg, what, kind, sum, data.clone(), places).await {
                Err(e) if !matches!(e, Error::Corrupt(_)) && self.lacks_vdevs() => {
                    tracing::debug!("{e}; vdevs are away");
                    self.take_back(txg, places, known);
                }
                out => return out,
            }
        }
    }

    async fn place_somehow(
        &self,
        txg: Txg,
        what: AllocReq,
        kind: Checksum,
        sum: HeaderSum,
        data: Bytes,
        places: &mut Vec<Placement>,
    ) -> Result<Vec<Dva>> {
        let out_of_room = |e: &Error| e.is(Errno::NoSpc) && !matches!(e, Error::Corrupt(_));
        let known = places.len();
        let first = self.place_gang(txg, what, kind, sum, data.clone(), places, 0).await;
        let Err(e) = first else { return first };
        if !out_of_room(&e) {
            return Err(e);
        }
        self.take_back(txg, places, known);
        loop {
            let more = self.allocator()?.scrape_together()?;
            for copies in (1..=what.copies.clamp(1, 3)).rev() {
                let what = AllocReq { copies, must: true, ..what };
                if let Place::At(dvas) = self.place_one(txg, what).await? {
                    places.push(Placement { dvas: dvas.to_vec(), data });
                    return Ok(dvas.to_vec());
                }
                match self.place_gang(txg, what, kind, sum, data.clone(), places, 0).await {
                    Err(e) if out_of_room(&e) => self.take_back(txg, places, known),
                    out => return out,
                }
            }
            if !more {
                return Err(e);
            }
        }
    }

    /// Places many blocks; `None` for those that no run was found for.
    pub(super) async fn place_many(&self, txg: Txg, wanted: &[AllocReq]) -> Result<Vec<Option<Dvas>>> {
        let allocator = self.allocator()?;
        let mut out: Vec<Option<Dvas>> = Vec::with_capacity(wanted.len());
        let mut found = Vec::with_capacity(wanted.len());
        let mut forced = self.forced_gangs(wanted).into_iter().peekable();
        while out.len() < wanted.len() {
            if forced.next_if_eq(&out.len()).is_some() {
                out.push(None);
                continue;
            }
            let end = forced.peek().copied().unwrap_or(wanted.len());
            let rest = wanted.get(out.len()..end).unwrap_or_default();
            let stop = allocator.alloc(txg, rest, &mut found);
            out.extend(found.drain(..).map(Some));
            match stop {
                Ok(()) => {}
                Err(AllocStop::NoSpc) => out.push(None),
                Err(AllocStop::Load { vdev, metaslab }) => allocator.load(vdev, metaslab).await?,
                Err(AllocStop::Err(e)) => return Err(e),
            }
        }
        Ok(out)
    }

    /// Which of the blocks are to be gangs because `metaslab_force_ganging` says so.
    fn forced_gangs(&self, wanted: &[AllocReq]) -> Vec<usize> {
        let (least, percent) = (METASLAB_FORCE_GANGING.get(), METASLAB_FORCE_GANGING_PCT.get());
        let large = wanted.iter().enumerate().filter(|(_, w)| w.psize >= least);
        large.filter(|_| self.0.env.random_below(100) < percent).map(|(i, _)| i).collect()
    }

    /// Gives back places that nothing was written to.
    fn take_back(&self, txg: Txg, places: &mut Vec<Placement>, from: usize) {
        let Ok(allocator) = self.allocator() else { return };
        for p in places.drain(from..) {
            for dva in &p.dvas {
                allocator.unalloc(txg, &if dva.gang { self.header_dva(dva) } else { *dva });
            }
        }
    }

    /// The pieces of a gang. Every copy of its header leads to the same: one is enough.
    pub(super) async fn pieces(&self, bp: &BlkPtr) -> Result<Vec<BlkPtr>> {
        let at = Bookmark::default();
        let read = || async {
            let tree = self.tree();
            let mut last = None;
            for dva in bp.dvas() {
                match self.gang_children(&tree, bp, &dva, at, Priority::SyncRead, false).await {
                    Ok(pieces) => return Ok(pieces),
                    Err(e) => last = Some(e),
                }
            }
            Err(last.unwrap_or_else(|| Error::corrupt(Some(at), "gang block", "a header without copies")))
        };
        self.persist(bp, at.objset, read).await
    }

    /// A gang that this very txg wrote gets other contents of the same size where it is.
    pub(super) fn rewrite_gang<'a>(
        &'a self,
        txg: Txg,
        bp: &'a BlkPtr,
        kind: Checksum,
        data: Bytes,
        places: &'a mut Vec<Placement>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (first, old) = (bp.dva(0), self.pieces(bp).await?);
            let mut header = IoBuf::zeroed(GANG_HEADER_SIZE as usize);
            let mut at = 0;
            for (i, mut child) in old.into_iter().enumerate() {
                let end = at + child.psize() as usize;
                let piece = data.slice(at..end);
                at = end;
                child.set_cksum(checksum::compute(kind, &piece, false, self.salt().as_deref()));
                if child.is_gang() {
                    self.rewrite_gang(txg, &child, kind, piece, places).await?;
                } else {
                    places.push(Placement { dvas: child.dvas().collect(), data: piece });
                }
                if let Some(slot) = header.get_mut(i * BLKPTR_SIZE..(i + 1) * BLKPTR_SIZE) {
                    slot.copy_from_slice(&child.encode());
                }
            }
            seal(&mut header, &first, txg, HeaderSum::of(bp))?;
            places.push(Placement { dvas: bp.dvas().collect(), data: header.into_bytes() });
            Ok(())
        })
    }

    /// Places a block in pieces: headers and children are added to `places`, the DVAs for the
    /// block's pointer returned. `what` is the block's own placement request. After an error what
    /// was placed is in `places` all the same.
    #[expect(clippy::too_many_arguments, reason = "what a gang is made of")]
    pub(super) fn place_gang<'a>(
        &'a self,
        txg: Txg,
        what: AllocReq,
        kind: Checksum,
        sum: HeaderSum,
        data: Bytes,
        places: &'a mut Vec<Placement>,
        depth: usize,
    ) -> BoxFuture<'a, Result<Vec<Dva>>> {
        Box::pin(async move {
            let full = || Error::os(Errno::NoSpc, "no space left in the pool");
            let unit = 1u64 << self.tree().min_ashift();
            // Where not even one sector is free, pieces do not help.
            if depth > MAX_DEPTH || what.psize <= unit {
                return Err(full());
            }
            // The header is worth more than what it leads to: one copy more, if there is room.
            let copies = if what.must { what.copies } else { (what.copies + 1).min(what.most_copies) };
            let header_req = AllocReq { psize: GANG_HEADER_SIZE, copies, gang_header: true, ..what };
            let Place::At(mut dvas) = self.place_one(txg, header_req).await? else { return Err(full()) };
            dvas.iter_mut().for_each(|d| d.gang = true);
            // Listed at once, so that who gives up knows of it; its contents follow.
            let own = places.len();
            places.push(Placement { dvas: dvas.to_vec(), data: Bytes::new() });
            let mut header = IoBuf::zeroed(GANG_HEADER_SIZE as usize);
            let mut at = 0;
            for i in 0..GANG_CHILDREN {
                let rest = what.psize - at;
                if rest == 0 {
                    break;
                }
                let share = rest.div_ceil((GANG_CHILDREN - i) as u64);
                let size = share.next_multiple_of(unit).min(rest);
                let piece = data.slice(at as usize..(at + size) as usize);
                at += size;
                let req = AllocReq { psize: size, ..what };
                let child_dvas = match self.place_one(txg, req).await {
                    Ok(Place::At(dvas)) => {
                        places.push(Placement { dvas: dvas.to_vec(), data: piece.clone() });
                        dvas.to_vec()
                    }
                    Ok(Place::NoRun) => {
                        self.place_gang(txg, req, kind, HeaderSum::Whole, piece.clone(), places, depth + 1)
                            .await?
                    }
                    Err(e) => return Err(e),
                };
                let mut child = BlkPtr::ZERO;
                child_dvas.iter().enumerate().for_each(|(n, d)| child.set_dva(n, *d));
                child.set_lsize(size);
                child.set_psize(size);
                child.set_compress(COMPRESS_OFF);
                child.set_checksum_kind(if kind.is_embedded() { ZIO_CHECKSUM_OFF } else { kind as u8 });
                child.set_otype(DMU_OT_NONE);
                child.set_byteorder(DiskOrder::NATIVE);
                child.set_births(txg.0, txg.0);
                child.set_cksum(checksum::compute(kind, &piece, false, self.salt().as_deref()));
                if let Some(slot) = header.get_mut(i * BLKPTR_SIZE..(i + 1) * BLKPTR_SIZE) {
                    slot.copy_from_slice(&child.encode());
                }
                for (own, below) in dvas.iter_mut().zip(&child_dvas) {
                    own.asize += below.asize;
                }
            }
            seal(&mut header, &dvas.first().copied().unwrap_or_default(), txg, sum)?;
            if let Some(p) = places.get_mut(own) {
                *p = Placement { dvas: dvas.to_vec(), data: header.into_bytes() };
            }
            Ok(dvas.to_vec())
        })
    }
}

/// How a gang's header keeps its checksum. As with the checksum of the block itself, two words of
/// it give way to an authentication code where the pointer is an encrypted dataset's, though a
/// header has none: they are zero, and folded into the others. Headers within a gang are whole,
/// since the pointers in a gang's header say nothing of encryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderSum {
    Whole,
    Folded,
}

impl HeaderSum {
    /// Of the header that this pointer leads to.
    pub(super) fn of(bp: &BlkPtr) -> HeaderSum {
        HeaderSum::where_crypt(bp.uses_crypt(), bp.otype())
    }

    /// The same of a pointer that is not there yet.
    pub(super) fn where_crypt(crypt: bool, otype: u8) -> HeaderSum {
        if crypt && otype != DMU_OT_OBJSET { HeaderSum::Folded } else { HeaderSum::Whole }
    }
}

/// Ends a gang's header: a checksum that says for which pointer it is.
pub(super) fn seal(header: &mut [u8], first: &Dva, txg: Txg, sum: HeaderSum) -> Result<()> {
    let verifier = embedded::gang_verifier(u64::from(first.vdev), first.offset, txg.0);
    let sealed = match sum {
        HeaderSum::Whole => embedded::seal(Checksum::GangHeader, header, &verifier, ByteOrder::NATIVE),
        HeaderSum::Folded => {
            let none = [0; 16];
            embedded::seal_with_mac(Checksum::GangHeader, header, &verifier, ByteOrder::NATIVE, &none)
        }
    };
    sealed.map_err(|e| Error::inval(e.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// As in a gang that OpenZFS wrote in an encrypted dataset: two words, each of two folded, and
    /// two that are zero.
    #[test]
    fn the_header_s_checksum_is_folded_for_an_encrypted_pointer() {
        let first = Dva { vdev: 1, offset: 7 << 12, asize: 4096, gang: true };
        let (mut whole, mut folded) = (vec![5u8; GANG_HEADER_SIZE as usize], vec![5u8; 512]);
        seal(&mut whole, &first, Txg(9), HeaderSum::Whole).unwrap();
        seal(&mut folded, &first, Txg(9), HeaderSum::Folded).unwrap();
        let words = |b: &[u8]| {
            let word = |i: usize| u64::from_ne_bytes(b[480 + 8 * i..][..8].try_into().unwrap());
            [word(0), word(1), word(2), word(3)]
        };
        let [a, b, c, d] = words(&whole);
        assert_eq!(words(&folded), [a ^ c, b ^ d, 0, 0]);
        let mut bp = BlkPtr::ZERO;
        bp.set_otype(19);
        assert!(verify::gang_header(&bp, &first, 9, &whole).is_ok());
        assert!(verify::gang_header(&bp, &first, 9, &folded).is_err());
        bp.set_crypt(true);
        assert!(verify::gang_header(&bp, &first, 9, &folded).is_ok());
        // As zilla wrote them once.
        assert!(verify::gang_header(&bp, &first, 9, &whole).is_ok());
        folded[3] ^= 1;
        whole[3] ^= 1;
        assert!(verify::gang_header(&bp, &first, 9, &folded).is_err());
        assert!(verify::gang_header(&bp, &first, 9, &whole).is_err());
        bp.set_otype(DMU_OT_OBJSET);
        assert_eq!(HeaderSum::of(&bp), HeaderSum::Whole);
    }
}
