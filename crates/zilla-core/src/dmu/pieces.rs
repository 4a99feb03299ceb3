//! Reading an object without copying, and finding its holes.

use super::dnode::{Dnode, Inner};
use super::fault::{Need, Now, Stop};
use super::tree::{self, Lookup};
use bytes::Bytes;
use std::sync::Arc;
use zilla_env::IoBuf;

static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// `len` zero bytes, none of them copied.
fn zeroes(mut len: usize, out: &mut impl Extend<Bytes>) {
    while len > 0 {
        let n = len.min(ZEROES.len());
        out.extend([Bytes::from_static(&ZEROES[..n])]);
        len -= n;
    }
}

impl Inner {
    /// Whether a block's newest contents are a hole, and the first block after it of which that is not known to be true too.
    fn extent(&self, blkid: u64) -> Result<(bool, u64), (u8, u64)> {
        if let Some(db) = self.dbufs.get(&blkid)
            && (!db.is_clean() || db.base_known())
        {
            return Ok((db.is_hole(), blkid + 1));
        }
        // Up to the next block in memory only the synced state and the freed ranges count.
        let limit = self.dbufs.range(blkid + 1..).next().map_or(u64::MAX, |(b, _)| *b);
        for p in &self.pending {
            if let Some((_, end)) = p.frees.iter().find(|(s, e)| (*s..*e).contains(&blkid)) {
                return Ok((true, end.min(limit)));
            }
        }
        if self.phys.nlevels == 0 || blkid > self.phys.maxblkid {
            return Ok((true, limit));
        }
        match tree::lookup(&self.phys, &self.indirects, 0, blkid) {
            Lookup::Bp(bp) => Ok((bp.is_hole(), blkid + 1)),
            Lookup::NeedIndirect { level, blkid } => Err((level, blkid)),
            Lookup::Hole => {
                let epbs = tree::epbs(self.phys.indblkshift);
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

impl Dnode {
    /// The bytes at `off` as pieces of shared buffers. Only what is being changed, or is smaller than a block, is copied.
    pub fn read_shared(self: &Arc<Self>, off: u64, len: usize, out: &mut impl Extend<Bytes>) -> Now<()> {
        let mut inner = self.inner.lock();
        let blksz = u64::from(inner.head.blksz.max(1));
        let mut done = 0;
        while done < len {
            let at = off + done as u64;
            let (blkid, within) = (at / blksz, (at % blksz) as usize);
            let n = (blksz as usize - within).min(len - done);
            done += n;
            if blkid > inner.head.maxblkid {
                zeroes(n, out);
                continue;
            }
            let db = inner.dbuf(blkid);
            db.touched = true;
            if let Some(b) = db.shared(blksz as usize) {
                out.extend([b.slice(within..within + n)]);
            } else if db.is_hole() {
                zeroes(n, out);
            } else {
                let mut buf = IoBuf::scratch(n);
                if !db.read(within, &mut buf) {
                    return Err(Stop::Need(Need::Block { dnode: self.clone(), level: 0, blkid }));
                }
                out.extend([buf.into_bytes()]);
            }
        }
        Ok(())
    }

    /// The first block from `from` on that holds data, or that is a hole (as everything behind the last block is).
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
