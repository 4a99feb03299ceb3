//! Clones: whole records of one file that another comes to share, instead of a copy of them.
//!
//! The new file's pointers are those of the old one's blocks ([`Dnode::clone_block`]), and the pool
//! counts that there is one more (`spa/brt.rs`). What can be shared are OpenZFS's rules: records of
//! one size, from boundary to boundary, but for the end of both files; on disk and not changed
//! since; under one key, which here means of one file system where it is encrypted. All else is the
//! caller's to copy.
//!
//! **What is kept true.** Nobody frees a block of the old file before the txg that counts the
//! clone: the old file counts as changed in it, so who holds an earlier txg and would change that
//! file must join a later one. Only blocks are shared that the last uberblock leads to, so that a
//! record in the intent log speaks of what will be there.
//!
//! **Crash.** The log has the pointers (TX_CLONE_RANGE). Claiming it refers to what they lead to
//! (`zil/claim.rs`), so that it is there whichever file system's log is replayed first; the replay
//! shares it again.

use super::file::without_suid;
use super::fs::Zfs;
use super::log::ATTR_MODE;
use super::types::Time;
use crate::dmu::{Dnode, Now};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::Txg;
use crate::zil::When;
use crate::zio::Leave;
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::zil::RecordBody;

/// Records of one transaction: what their pointers take of a log block is a half at most.
const BLOCKS: u64 = 512;

/// What became of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloned {
    /// So many bytes; the rest is to be asked for again.
    Bytes(u64),
    /// Not yet: the source is not on disk as it is.
    Dirty,
    /// Never so.
    Refused(&'static str),
}

/// A place in a file.
#[derive(Clone, Copy, Debug)]
pub struct FilePlace {
    pub object: u64,
    pub offset: u64,
}

impl Zfs {
    /// Makes a range of a file share the records of another's, or of another range of its own.
    #[crate::boxed]
    pub async fn clone_range(
        &self,
        src: &Zfs,
        from: FilePlace,
        to: FilePlace,
        len: u64,
        kill_suidgid: bool,
    ) -> Result<Cloned> {
        let txgs = self.txgs()?;
        if !src.txgs().is_ok_and(|t| Arc::ptr_eq(t, txgs)) {
            return Ok(Cloned::Refused("the files are not of one pool, or one is a snapshot's"));
        }
        let one = Arc::ptr_eq(&src.objset, &self.objset);
        if !one && (src.objset.is_encrypted() || self.objset.is_encrypted()) {
            return Ok(Cloned::Refused("the files are encrypted with different keys"));
        }
        let done = self.change(|tx| self.clone_now(tx, src, from, to, len, kill_suidgid)).await?;
        if matches!(done, Cloned::Bytes(1..)) {
            self.ended().await?;
        }
        Ok(done)
    }

    fn clone_now(
        &self,
        tx: &Tx,
        src: &Zfs,
        from: FilePlace,
        to: FilePlace,
        len: u64,
        kill_suidgid: bool,
    ) -> Now<Cloned> {
        // Who takes the source's blocks away has it revoked first, so that none is shared after
        // that.
        src.check_lives()?;
        let Some(last) = self.space.clones() else {
            return Ok(Cloned::Refused("the pool's feature block_cloning is not enabled"));
        };
        if crate::tunables::BCLONE_ENABLED.get() == 0 {
            return Ok(Cloned::Refused("zfs_bclone_enabled is 0"));
        }
        let (zn_from, zn) = (src.znode(from.object)?, self.znode(to.object)?);
        let key = |z: &Zfs, at: FilePlace| (z.objset.id(), at.object);
        let (a, b) = (key(src, from), key(self, to));
        let before = (a < b).then(|| zn_from.state.lock());
        let mut state = zn.state.lock();
        let after = (a > b).then(|| zn_from.state.lock());
        let size_from = {
            let other = before.as_deref().or(after.as_deref()).unwrap_or(&state);
            Zfs::check_file(&zn_from, other)?;
            other.attrs.size
        };
        Zfs::check_write(&zn, &state, to.offset)?;
        let (dn_from, dn) = (zn_from.dnode(), zn.dnode());
        let (blksz, old) = (u64::from(dn_from.blksz()), state.attrs.size);
        let len = match span(blksz, size_from, old, from.offset, to.offset, len) {
            Ok(0) => return Ok(Cloned::Bytes(0)),
            Ok(len) => len,
            Err(why) => return Ok(Cloned::Refused(why)),
        };
        let end = match to.offset.checked_add(len) {
            Some(end) if end <= i64::MAX as u64 => end,
            _ => return Err(Error::os(Errno::FBig, "the file would be too large").into()),
        };
        if a == b && from.offset < end && to.offset < from.offset + len {
            return Ok(Cloned::Refused("the ranges overlap"));
        }
        let Some(resize) = takes_records_of(dn, old, blksz) else {
            return Ok(Cloned::Refused("the files' records are not of one size"));
        };
        let first = from.offset / blksz;
        let Some(bps) = dn_from.cloned_from(tx, first..first + len.div_ceil(blksz))? else {
            return Ok(Cloned::Dirty);
        };
        match self.shareable(&bps, blksz, last)? {
            Cloned::Bytes(_) => {}
            other => return Ok(other),
        }
        self.check_quotas(&state.attrs, false)?;
        self.admit(tx, len, false)?;
        let grows = if resize { dn.cost(tx, 0, 1, blksz) } else { 0 };
        self.hold_room(tx, dn.clone_cost(tx, to.offset, end, blksz) + grows, Leave::Half)?;
        let now: Time = self.now();
        let plan = self.plan(tx, &zn, &state, |a| {
            a.size = old.max(end);
            self.content_modified(a, now);
            if kill_suidgid {
                a.mode = without_suid(a.mode);
            }
        })?;
        if resize {
            dn.set_blksz(tx, blksz as u32, 0)?;
        }
        share(tx, dn, to.offset / blksz, &bps);
        let mode = state.attrs.mode;
        plan.apply(tx, &zn, &mut state);
        if state.attrs.mode != mode {
            self.log_setattr(tx, to.object, &state.attrs, ATTR_MODE, None);
        }
        if let Some(log) = self.zil().filter(|_| state.attrs.links > 0) {
            let FilePlace { object, offset } = to;
            let record = RecordBody::CloneRange { object, offset, length: len, blksz, bps };
            log.push(tx, When::With(object), record);
        }
        Ok(Cloned::Bytes(len))
    }

    /// Does again what a log's record says, if the file can take the blocks as they are.
    pub(super) fn replay_shared(
        &self,
        tx: &Tx,
        object: u64,
        (offset, end): (u64, u64),
        blksz: u64,
        bps: &[BlkPtr],
    ) -> Now<bool> {
        let zn = self.znode(object)?;
        let mut state = zn.state.lock();
        Zfs::check_file(&zn, &state)?;
        let (dn, old) = (zn.dnode(), state.attrs.size);
        let whole = offset == 0 || blksz.is_power_of_two();
        let unlike = |bp: &BlkPtr| !bp.is_hole() && (bp.is_metadata() || bp.lsize() != blksz);
        let last = self.space.clones().filter(|_| whole && !bps.iter().any(unlike));
        let (Some(resize), Some(last)) = (takes_records_of(dn, old, blksz), last) else { return Ok(false) };
        if !matches!(self.shareable(bps, blksz, last)?, Cloned::Bytes(_)) {
            return Ok(false);
        }
        let grows = if resize { dn.cost(tx, 0, 1, blksz) } else { 0 };
        self.hold_room(tx, dn.clone_cost(tx, offset, end, blksz) + grows, Leave::Half)?;
        let now = self.now();
        let plan = self.plan(tx, &zn, &state, |a| {
            a.size = old.max(end);
            self.content_modified(a, now);
        })?;
        if resize {
            dn.set_blksz(tx, blksz as u32, 0)?;
        }
        share(tx, dn, offset / blksz, bps);
        plan.apply(tx, &zn, &mut state);
        Ok(true)
    }

    /// Whether blocks may be another file's as well; those of txgs after `last` never are.
    fn shareable(&self, bps: &[BlkPtr], blksz: u64, last: Txg) -> Result<Cloned> {
        let synced = self.txgs()?.synced().min(last).0;
        for bp in bps.iter().filter(|bp| !bp.is_hole()) {
            if bp.is_redacted() || bp.dedup() || bp.lsize() != blksz {
                return Ok(Cloned::Refused("a record is of a kind that is not shared"));
            }
            if bp.birth() > synced || bp.phys_birth() > synced {
                return Ok(Cloned::Dirty);
            }
        }
        Ok(Cloned::Bytes(0))
    }
}

/// Whether a file of `size` bytes can have records of `blksz`: yes if it has them, or has one alone
/// that can grow to it (`Some(true)`).
fn takes_records_of(dn: &Dnode, size: u64, blksz: u64) -> Option<bool> {
    let own = u64::from(dn.blksz());
    let fixed = dn.maxblkid() > 0 || size > own || own > blksz;
    (own == blksz || !fixed).then_some(own != blksz)
}

fn share(tx: &Tx, dn: &Arc<Dnode>, first: u64, bps: &[BlkPtr]) {
    let blksz = u64::from(dn.blksz());
    for (blkid, bp) in (first..).zip(bps) {
        match bp.is_hole() {
            true => dn.free_range(tx, blkid * blksz, blksz),
            false => dn.clone_block(tx, blkid, *bp),
        }
    }
}

/// How many bytes from `off` on can be shared at `to`: whole records, but for the end of both
/// files.
fn span(blksz: u64, size: u64, to_size: u64, off: u64, to: u64, len: u64) -> Result<u64, &'static str> {
    let len = len.min(size.saturating_sub(off));
    if len == 0 || blksz == 0 {
        return Ok(0);
    }
    if !off.is_multiple_of(blksz) || !to.is_multiple_of(blksz) {
        return Err("the range does not begin with a record");
    }
    if to != 0 && !blksz.is_power_of_two() {
        return Err("a file of one short record has no second one");
    }
    let most = BLOCKS * blksz;
    let whole = len.min(most) / blksz * blksz;
    // The last record may be short where both files end.
    if len <= most && len == size - off && to.checked_add(len).is_some_and(|end| end >= to_size) {
        return Ok(len);
    }
    if whole == 0 { Err("the range ends within a record") } else { Ok(whole) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;

    #[test]
    fn only_whole_records_are_shared_but_at_the_end() {
        let span = |off, to, len| span(128 * K, 300 * K, 600 * K, off, to, len);
        assert_eq!(span(0, 0, 128 * K), Ok(128 * K));
        assert_eq!(span(0, 128 * K, 200 * K), Ok(128 * K), "the rest is copied");
        assert!(span(0, 0, 100 * K).is_err() && span(1, 0, 128 * K).is_err() && span(0, 1, 128 * K).is_err());
        assert!(span(256 * K, 0, 44 * K).is_err(), "the target goes on behind it");
        assert_eq!(span(256 * K, 640 * K, 1 << 40), Ok(44 * K), "both end there");
        assert_eq!(span(300 * K, 0, 5), Ok(0));
        assert_eq!(super::span(128 * K, 1 << 40, 0, 0, 0, u64::MAX), Ok(BLOCKS * 128 * K));
        assert_eq!(super::span(1536, 1500, 0, 0, 0, 9000), Ok(1500));
        assert!(super::span(1536, 1500, 1536, 0, 1536, 9000).is_err());
    }
}
