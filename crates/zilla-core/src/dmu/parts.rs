//! Where to cut a large object that is to be freed a part at a time.
//!
//! A txg that frees keeps the pointer of every block that it frees until it is synced: of 1 TB in
//! records of 128K that is 1 GB. So who frees much frees it from its end on, a part a txg, and a
//! part has no more than [`PART`] pointers. Only what the indirect blocks above level 1 say is
//! looked at; holes are passed over, however large they are.

use super::dnode::{Dnode, Inner};
use super::fault::{Need, Now, Stop, in_tx};
use super::tree::{self, Lookup};
use crate::error::Result;
use crate::txg::{Tx, TxgState};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Pointers that are freed at once: 8 MiB of memory, and 8 GiB of 128K records.
pub(crate) const PART: u64 = 1 << 16;

impl Inner {
    /// Whether nothing lies below a block of pointers, as far as that can be known.
    fn is_empty_below(
        &self,
        level: u8,
        blkid: u64,
        unreadable: &BTreeSet<(u8, u64)>,
    ) -> std::result::Result<bool, (u8, u64)> {
        match tree::lookup(&self.phys, &self.indirects, level, blkid) {
            Lookup::Bp(bp) => Ok(bp.is_hole()),
            Lookup::Hole => Ok(true),
            Lookup::NeedIndirect { level, blkid } if unreadable.contains(&(level, blkid)) => Ok(true),
            Lookup::NeedIndirect { level, blkid } => Err((level, blkid)),
        }
    }
}

impl Dnode {
    /// Where the last part, of `most` blocks or so, of the blocks `first..end` begins; None if they
    /// are all in one.
    fn part(
        self: &Arc<Self>,
        (first, end): (u64, u64),
        most: u64,
        unreadable: &BTreeSet<(u8, u64)>,
    ) -> Now<Option<u64>> {
        let inner = self.inner.lock();
        let end = end.min(inner.head.maxblkid.min(inner.phys.maxblkid).saturating_add(1));
        if inner.phys.nlevels < 2 || first >= end {
            return Ok(None);
        }
        let e = tree::epbs(inner.phys.indblkshift);
        let most = (most >> e).max(1);
        let (lowest, mut at, mut met) = (first >> e, (end - 1) >> e, 0);
        let empty = |level: u8, blkid: u64| {
            inner
                .is_empty_below(level, blkid, unreadable)
                .map_err(|(level, blkid)| Stop::Need(Need::Block { dnode: self.clone(), level, blkid }))
        };
        while at > lowest {
            if !empty(1, at)? {
                if met == most {
                    return Ok(Some((at + 1) << e));
                }
                met += 1;
                at -= 1;
                continue;
            }
            // The largest block of pointers around it that is empty too.
            let mut lo = at;
            for level in 2..inner.phys.nlevels {
                let above = tree::ancestor(at, level - 1, e);
                if !empty(level, above)? {
                    break;
                }
                lo = above.checked_shl(e * u32::from(level - 1)).unwrap_or(0);
            }
            match lo.checked_sub(1) {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok((at == lowest && met == most).then_some((at + 1) << e))
    }

    /// Where the last part, of `most` blocks or so, of the bytes from `off` to `end` begins, at a
    /// block; None if they are all in one. What cannot be read is passed over: who frees it finds
    /// that out.
    #[crate::boxed]
    pub(crate) async fn last_part(self: &Arc<Self>, off: u64, end: u64, most: u64) -> Result<Option<u64>> {
        let blksz = u64::from(self.blksz().max(1));
        let (first, end) = (off.div_ceil(blksz), end.div_ceil(blksz));
        let mut unreadable = BTreeSet::new();
        loop {
            match self.part((first, end), most, &unreadable) {
                Ok(found) => return Ok(found.map(|b| b.saturating_mul(blksz))),
                Err(Stop::Err(e)) => return Err(e),
                Err(Stop::Need(need)) => {
                    let at = match &need {
                        Need::Block { level, blkid, .. } => Some((*level, *blkid)),
                        _ => None,
                    };
                    match (need.load().await, at) {
                        (Err(_), Some(at)) => {
                            unreadable.insert(at);
                        }
                        (done, _) => done?,
                    }
                }
            }
        }
    }

    /// Frees what lies between two places but for one part, from the end on, and returns where that
    /// part ends. `free` frees from a place to another; each call's txg is synced before the next.
    /// `most`: of how many blocks a part is.
    pub(crate) async fn all_but_a_part(
        self: &Arc<Self>,
        txgs: &Arc<TxgState>,
        (off, end): (u64, u64),
        most: impl Fn() -> u64,
        mut free: impl FnMut(&Tx, u64, u64) -> Now<()>,
    ) -> Result<u64> {
        let mut end = end;
        while let Some(at) = self.last_part(off, end, most()).await?.filter(|at| *at > off && *at < end) {
            let change = in_tx(txgs, |tx| {
                free(tx, at, end)?;
                Ok(tx.txg())
            });
            let txg = change.await?;
            txgs.wait_synced(txg).await?;
            end = at;
        }
        Ok(end)
    }
}
