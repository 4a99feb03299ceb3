//! Freeing much of a file, a part a txg.
//!
//! Each part is a change of its own: a file that is cut is cut to where the part begins, and one
//! that gets a hole gets a hole. So a crash between two of them leaves a file that is cut less, and
//! the log's records say the same as what was done. The next part waits for the txg of the last, so
//! that no txg frees more than [`crate::dmu::PART`] blocks for one caller. (What several callers
//! free together is held against the memory that a txg may take.) What a change by this caller
//! takes away of a program's set-id bits goes with the first.

use super::fs::Zfs;
use super::types::SetAttr;
use crate::dmu::{PART, resident};
use crate::error::Result;

impl Zfs {
    /// Of how many blocks a part may be now.
    pub(super) fn part(&self) -> u64 {
        self.space.frees_at_once(PART)
    }

    /// Cuts a file until what lies behind `size` is one part; `set` is all that is to be changed.
    pub(super) async fn cut_in_parts(&self, id: u64, size: u64, set: &SetAttr) -> Result<()> {
        let zn = resident(|| self.znode(id)).await?;
        loop {
            let old = zn.state.lock().attrs.size;
            let part = zn.dnode().last_part(size, old, self.part()).await?;
            let Some(at) = part.filter(|at| *at > size && *at < old) else { return Ok(()) };
            let SetAttr { kill_suidgid, kill_sgid, judged, .. } = *set;
            let size = Some(at);
            let cut = SetAttr { size, kill_suidgid, kill_sgid, judged, ..SetAttr::default() };
            let change = self.change(|tx| {
                match self.is_replaying() {
                    true => self.replay_truncate(tx, id, at, 0)?,
                    // Somebody else has cut it shorter meanwhile: it must not grow again.
                    false if zn.state.lock().attrs.size <= at => {}
                    false => drop(self.setattr_now(tx, &zn, None, &cut)?),
                }
                Ok(tx.txg())
            });
            let txg = change.await?;
            self.txgs()?.wait_synced(txg).await?;
        }
    }

    /// Frees what lies between two places of a file until it is one part; where that ends.
    pub(super) async fn punch_in_parts(
        &self,
        id: u64,
        off: u64,
        end: u64,
        kill_suidgid: bool,
    ) -> Result<u64> {
        let zn = resident(|| self.znode(id)).await?;
        let mut end = end;
        loop {
            let upto = end.min(zn.state.lock().attrs.size);
            let part = zn.dnode().last_part(off, upto, self.part()).await?;
            let Some(at) = part.filter(|at| *at > off && *at < upto) else { return Ok(end) };
            let change = self.change(|tx| {
                // What was done once is not refused when it is done again.
                match self.is_replaying() {
                    true => self.replay_truncate(tx, id, at, upto - at)?,
                    false => self.punch_now(tx, id, at, upto - at, None, kill_suidgid)?,
                }
                Ok(tx.txg())
            });
            let txg = change.await?;
            self.txgs()?.wait_synced(txg).await?;
            end = at;
        }
    }
}
