//! Reading an object, without copying where that can be, and finding its holes.

use super::dbuf::{Dbuf, copy_extended};
use super::dnode::{Dnode, Inner};
use super::fault::{Need, Now, Stop};
use super::tree::{self, Lookup};
use bytes::Bytes;
use std::sync::{Arc, LazyLock};
use zilla_codec::compress::Compress;
use zilla_env::IoBuf;

/// (Made when it is first needed: zeroes are no part of the program's file.)
static ZEROES: LazyLock<Bytes> = LazyLock::new(|| vec![0; 64 << 10].into());

/// `len` zero bytes, none of them copied.
fn zeroes(mut len: usize, out: &mut impl Extend<Bytes>) {
    while len > 0 {
        let n = len.min(ZEROES.len());
        out.extend([ZEROES.slice(..n)]);
        len -= n;
    }
}

impl Inner {
    /// Whether a block's newest contents are a hole, and the first block after it of which that is
    /// not known to be true too.
    fn extent(&self, blkid: u64) -> Result<(bool, u64), (u8, u64)> {
        if let Some(db) = self.dbufs.get(&blkid)
            && (!db.is_clean() || db.base_known())
        {
            return Ok((db.is_hole(), blkid + 1));
        }
        // Up to the next block in memory only the synced state and the freed ranges count.
        let limit = self.dbufs.range(blkid + 1..).next().map_or(u64::MAX, |(b, _)| *b);
        for p in self.pending.iter() {
            if let Some((_, end)) = p.frees.iter().find(|(s, e)| (*s..*e).contains(&blkid)) {
                return Ok((true, end.min(limit)));
            }
        }
        if self.phys.nlevels == 0 || blkid > self.phys.maxblkid {
            return Ok((true, limit));
        }
        let epbs = tree::epbs(self.phys.indblkshift);
        // Beyond what its tree can hold an object has no blocks, whatever number its last is said
        // to have.
        let top = tree::ancestor(blkid, self.phys.nlevels - 1, epbs);
        if top >= u64::from(self.phys.nblkptr) {
            return Ok((true, limit));
        }
        match tree::lookup(&self.phys, &self.indirects, 0, blkid) {
            Lookup::Bp(bp) => Ok((bp.is_hole(), blkid + 1)),
            Lookup::NeedIndirect { level, blkid } => Err((level, blkid)),
            Lookup::Hole => {
                let mut next = blkid + 1;
                for level in 1..self.phys.nlevels {
                    let above = tree::ancestor(blkid, level, epbs);
                    match tree::lookup(&self.phys, &self.indirects, level, above) {
                        Lookup::Hole => {}
                        Lookup::Bp(bp) if bp.is_hole() => {}
                        _ => break,
                    }
                    next = (above + 1).checked_shl(epbs * u32::from(level)).unwrap_or(u64::MAX);
                }
                Ok((true, next.clamp(blkid + 1, limit)))
            }
        }
    }
}

/// The next bytes of a read.
enum Piece {
    /// So many zeroes.
    Zeroes(usize),
    /// So many bytes from this place of a buffer on; zeroes where it ends.
    Shared(Bytes, usize, usize),
    /// So many bytes, copied already.
    Copied(usize),
}

impl Dnode {
    /// What is at `off`, up to `len` bytes or the end of its block. What no single buffer holds
    /// `copy` takes, from a place in the block on.
    ///
    /// A block that only the block cache has is read there. It gets no dbuf unless it must be
    /// decompressed: a reader of small pieces here and there would only drive others out, at
    /// several times the cost of the read itself.
    fn piece(
        self: &Arc<Self>,
        off: u64,
        len: usize,
        copy: impl FnOnce(&Dbuf, usize, usize) -> bool,
    ) -> Now<Piece> {
        let mut inner = self.inner.lock();
        let blksz = u64::from(inner.head.blksz.max(1));
        let (blkid, within) = (off / blksz, (off % blksz) as usize);
        let n = (blksz as usize - within).min(len);
        if blkid > inner.head.maxblkid {
            return Ok(Piece::Zeroes(n));
        }
        let need = || Err(Stop::Need(Need::Block { dnode: self.clone(), level: 0, blkid }));
        let bp = match inner.on_disk(blkid) {
            Some(Lookup::Bp(bp)) if !bp.is_hole() => bp,
            Some(Lookup::Bp(_) | Lookup::Hole) => return Ok(Piece::Zeroes(n)),
            Some(Lookup::NeedIndirect { .. }) => return need(),
            None => {
                let db = inner.dbuf(blkid);
                db.touched = true;
                let ahead = std::mem::take(&mut db.ahead);
                let piece = if let Some(b) = db.shared(blksz as usize) {
                    Ok(Piece::Shared(b, within, n))
                } else if db.is_hole() {
                    Ok(Piece::Zeroes(n))
                } else if copy(db, within, n) {
                    Ok(Piece::Copied(n))
                } else {
                    need()
                };
                drop(inner);
                if ahead {
                    self.demanded(blkid, false);
                }
                return piece;
            }
        };
        let generation = inner.generation;
        drop(inner);
        let Some(data) = self.shared.store.cached(&bp, self.shared.objset) else { return need() };
        if bp.compress() != Compress::Off as u8 {
            // If a newer version was published since, this one was still the newest when the read
            // began.
            let _ = self.install(0, blkid, Some(data.clone()), generation);
        }
        Ok(Piece::Shared(data, within, n))
    }

    /// Copies out what is at `off`. Beyond the last block there are zeroes.
    pub fn read(self: &Arc<Self>, off: u64, out: &mut [u8]) -> Now<()> {
        let (mut at, mut rest) = (off, out);
        while !rest.is_empty() {
            let len = rest.len();
            let piece = self.piece(at, len, |db, within, n| db.read(within, rest.split_at_mut(n).0))?;
            let (Piece::Copied(n) | Piece::Zeroes(n) | Piece::Shared(_, _, n)) = &piece;
            let (here, behind) = rest.split_at_mut(*n);
            at += *n as u64;
            match piece {
                Piece::Copied(_) => {}
                Piece::Zeroes(_) => here.fill(0),
                Piece::Shared(b, within, _) => copy_extended(&b, within, here),
            }
            rest = behind;
        }
        Ok(())
    }

    /// The bytes at `off` as pieces of shared buffers. Only what is being changed is copied.
    pub fn read_shared(self: &Arc<Self>, off: u64, len: usize, out: &mut impl Extend<Bytes>) -> Now<()> {
        let mut done = 0;
        while done < len {
            let mut copied = Bytes::new();
            let piece = self.piece(off + done as u64, len - done, |db, within, n| {
                let mut buf = IoBuf::scratch(n);
                let there = db.read(within, &mut buf);
                copied = buf.into_bytes();
                there
            })?;
            done += match piece {
                Piece::Copied(n) => {
                    out.extend([copied]);
                    n
                }
                Piece::Zeroes(n) => {
                    zeroes(n, out);
                    n
                }
                Piece::Shared(b, within, n) => {
                    let end = (within + n).min(b.len());
                    let start = within.min(end);
                    out.extend([b.slice(start..end)]);
                    zeroes(n - (end - start), out);
                    n
                }
            };
        }
        Ok(())
    }

    /// The blocks from `from` up to `to` as runs: where each ends, and whether it is a hole (as
    /// everything behind the last block is).
    pub fn runs(self: &Arc<Self>, from: u64, to: u64) -> Now<Vec<(u64, bool)>> {
        let inner = self.inner.lock();
        let mut out: Vec<(u64, bool)> = Vec::new();
        let mut at = from;
        while at < to {
            let found = if at > inner.head.maxblkid { Ok((true, to)) } else { inner.extent(at) };
            let (hole, next) = found
                .map_err(|(level, blkid)| Stop::Need(Need::Block { dnode: self.clone(), level, blkid }))?;
            at = next.min(to);
            match out.last_mut() {
                Some((end, same)) if *same == hole => *end = at,
                _ => out.push((at, hole)),
            }
        }
        Ok(out)
    }

    /// The first block from `from` on that holds data, or that is a hole (as everything behind the
    /// last block is).
    pub fn next_block(self: &Arc<Self>, from: u64, hole: bool) -> Now<Option<u64>> {
        let inner = self.inner.lock();
        let max = inner.head.maxblkid;
        let mut at = from;
        while at <= max {
            match inner.extent(at) {
                Ok((is_hole, _)) if is_hole == hole => return Ok(Some(at)),
                Ok((_, next)) => at = next,
                Err((level, blkid)) => {
                    return Err(Stop::Need(Need::Block { dnode: self.clone(), level, blkid }));
                }
            }
        }
        Ok(hole.then_some(at))
    }
}
