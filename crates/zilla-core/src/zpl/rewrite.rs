//! Writing a file's blocks anew without changing the file (`zfs rewrite`): they then lie where new
//! blocks do, compressed, checksummed and copied as properties now say.
//!
//! Each step is one transaction: under the file's lock, so that no write comes in between, records
//! are read and made dirty as they are. Holes stay holes, times stay, and the record size of a file
//! stays what it is, for it is the file's. Nothing goes into the intent log: whether a crash comes
//! before or after a step, the file reads the same.

use super::err;
use super::fs::Zfs;
use crate::dmu::{Now, resident};
use crate::error::{Errno, Result};
use crate::txg::Tx;
use crate::zio::Leave;

/// How much a transaction takes at most; at least a record.
const STEP: u64 = 1 << 20;

impl Zfs {
    /// Writes what has data of a range anew; `len` 0 is to the end of the file.
    pub async fn rewrite(&self, id: u64, off: u64, len: u64) -> Result<()> {
        if self.is_readonly() {
            return err(Errno::ROFs, "the file system is read-only");
        }
        let end = if len == 0 { u64::MAX } else { off.saturating_add(len) };
        let mut at = off;
        loop {
            let zn = resident(|| self.znode(id)).await?;
            let size = zn.state.lock().attrs.size;
            if at >= size.min(end) {
                return Ok(());
            }
            zn.dnode().load_range(at, STEP.min(size.min(end) - at)).await?;
            match self.change(|tx| self.rewrite_some(tx, id, at, end)).await? {
                Some(next) => at = next,
                None => return Ok(()),
            }
        }
    }

    /// A step from `at` on; returns where the next begins, if there is one.
    fn rewrite_some(&self, tx: &Tx, id: u64, at: u64, end: u64) -> Now<Option<u64>> {
        let zn = self.znode(id)?;
        let state = zn.state.lock();
        Zfs::check_file(&zn, &state)?;
        let dn = zn.dnode();
        let blksz = u64::from(dn.blksz().max(1));
        let end = end.min(state.attrs.size);
        // A file of one odd block is all data.
        let first = match blksz.is_power_of_two() {
            true => dn.next_block(at / blksz, false)?,
            false => Some(at / blksz),
        };
        let Some(first) = first.filter(|b| b.saturating_mul(blksz) < end) else { return Ok(None) };
        let last = (first + (STEP / blksz).max(1)).min(end.div_ceil(blksz));
        self.check_quotas(&state.attrs, false)?;
        self.admit(tx, (last - first) * blksz, false)?;
        self.hold_room(tx, dn.cost(tx, first * blksz, last * blksz, blksz), Leave::Half)?;
        dn.in_order(tx)?;
        let mut blocks = Vec::new();
        for blkid in first..last {
            let data = match blksz.is_power_of_two() {
                true => dn.next_block(blkid, false)? == Some(blkid),
                false => true,
            };
            if data {
                blocks.push((blkid, dn.block(blkid)?));
            }
        }
        for (blkid, data) in blocks {
            dn.write_anew(tx, blkid, data);
        }
        Ok(Some(last * blksz))
    }
}
