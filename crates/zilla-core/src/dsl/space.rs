//! How much may still be written, and by whom.
//!
//! Each transaction says what it may use at most, and every dir from its own to the root is asked,
//! against quotas, reservations and, at the root, the pool's size less its slop. An estimate of
//! what open txgs may use is kept per dir until they are synced.
//!
//! That is what users are told of. Whether a sync will find room is another question: a small
//! change rewrites a whole record, the old one is free only when the txg is on disk, and the log
//! has blocks that nobody is charged for. So each transaction also holds room for the worst it can
//! need ([`DslPool::hold_room`]), of what is free at the moment beside what is dirty. Where there
//! is none it waits for what the txgs give back, and is refused when nothing is to come. What only
//! frees waits too, but is not refused: alone in its txg it needs less than the part of the slop
//! that is left for it, and it gives space back. Where a snapshot or the checkpoint may hold what
//! it kills it gives nothing back, and is refused as well, when next to nothing of the slop is
//! left.

use super::DslPool;
use super::dataset::DslDataset;
use super::dir::DslDir;
use crate::error::{Errno, Error, Result};
use crate::txg::{GANG_FACTOR, Tx};
use crate::types::TXG_INITIAL;
use crate::zio::Leave;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Even a change of a few bytes rewrites some blocks.
const MIN_COST: u64 = 4096;

/// What an operation on names and attributes makes the sync write: a few blocks of dnodes and of a
/// directory.
const OPERATION: u64 = 128 << 10;
/// The same of one that administers the pool, in its own objects.
const ADMINISTRATION: u64 = 512 << 10;
/// The same of one of many that are done together, as OpenZFS reckons with it: three blocks of 16K,
/// three times each.
const EACH: u64 = 9 * (16 << 10);

/// How far into the slop an operation may go: those that free space or administer go further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceCheck {
    Normal,
    Reserved,
    ExtraReserved,
}

impl DslPool {
    /// The pool's size as datasets may use it.
    pub fn adjusted_size(&self, check: SpaceCheck) -> u64 {
        let s = self.pool_space();
        let space = s.dspace.saturating_sub(s.deferred_frees).saturating_sub(s.checkpoint);
        let slop = match check {
            SpaceCheck::Normal => s.slop,
            SpaceCheck::Reserved => s.slop / 2,
            SpaceCheck::ExtraReserved => s.slop / 4,
        };
        space.saturating_sub(slop)
    }

    /// What the dir may still use; `on_disk_only` leaves open transactions out.
    pub fn available(&self, dir: &Arc<DslDir>, on_disk_only: bool) -> u64 {
        let mut avail = u64::MAX;
        // From the root down: each dir can use what its parent leaves it and what is reserved for
        // it.
        for d in dir.ancestry().iter().rev() {
            let p = d.phys();
            let used = p.used_bytes + if on_disk_only { 0 } else { d.towrite() };
            let mut quota = if p.quota != 0 { p.quota } else { u64::MAX };
            if d.parent().is_none() {
                quota = quota.min(self.adjusted_size(SpaceCheck::Normal));
            }
            if p.reserved > used && avail != u64::MAX {
                avail = avail.saturating_add(p.reserved - used);
            }
            avail = if used > quota { 0 } else { avail.min(quota - used) };
        }
        avail
    }

    /// Refuses to have `space` bytes that one dir uses be used by another, where a quota forbids
    /// that. For the dirs above both nothing changes, unless reservations below them are used less,
    /// or more, from then on: what these then use more must be there.
    pub(super) fn transfer_check(&self, from: &Arc<DslDir>, to: &Arc<DslDir>, space: u64) -> Result<()> {
        let (losing, gaining) = (from.ancestry(), to.ancestry());
        let Some(common) = gaining.iter().find(|d| losing.iter().any(|l| l.id == d.id)) else {
            return Err(Error::inval("the dirs are of two pools"));
        };
        let mut lost = i64::try_from(space).unwrap_or(i64::MAX);
        let mut gained = lost;
        for d in losing.iter().take_while(|d| d.id != common.id) {
            lost = -DslDir::parent_delta(&d.phys(), -lost);
        }
        for d in gaining.iter().take_while(|d| d.id != common.id) {
            let p = d.phys();
            if p.quota != 0 && p.used_bytes.saturating_add_signed(gained) > p.quota {
                return Err(Error::os(Errno::NoSpc, format!("{}: out of its quota", d.name())));
            }
            gained = DslDir::parent_delta(&p, gained);
        }
        match u64::try_from(gained.saturating_sub(lost)) {
            Ok(more) if more > 0 && more > self.available(common, false) => {
                Err(Error::os(Errno::NoSpc, format!("{}: out of space", common.name())))
            }
            _ => Ok(()),
        }
    }

    /// Asks for room for `bytes` more in a transaction of `tx`, and notes them. `frees`: the
    /// transaction will rather free space than use it, and is let through as long as it does.
    /// EAGAIN: what open transactions may use at most would be too much; after the next sync it is
    /// known what they did use.
    pub fn reserve(&self, ds: &Arc<DslDataset>, tx: &Tx, bytes: u64, frees: bool) -> Result<()> {
        let dir = ds.dir();
        let refquota = ds.refquota.load(Ordering::Relaxed);
        if refquota != 0 && !frees {
            let used = ds.phys().referenced_bytes;
            if used >= refquota {
                return Err(Error::os(Errno::DQuot, format!("{}: out of its refquota", ds.name())));
            }
            if used.saturating_add(dir.towrite()) >= refquota.saturating_add(refquota >> 5) {
                return Err(Error::os(Errno::Again, "close to the refquota"));
            }
        }
        let mut need = bytes.max(MIN_COST);
        // What is reserved for the dataset itself is counted as used from its dir to the root: this
        // it may still use.
        let own = ds.reserved.load(Ordering::Relaxed).saturating_sub(ds.phys().unique_bytes);
        for d in dir.ancestry() {
            let p = d.phys();
            let by_others = p.used_bytes.saturating_sub(own);
            let inflight = d.towrite();
            let mut errno = Errno::DQuot;
            let mut quota = if p.quota == 0 || frees { u64::MAX } else { p.quota };
            // What frees is stopped by nothing but want of room for its own sync: what is used,
            // with all that is reserved, may be more than there is since a vdev went, or where
            // others let it.
            if d.parent().is_none() && !frees {
                let avail = self.adjusted_size(SpaceCheck::Normal).saturating_sub(self.pool_space().deferred);
                if avail < quota {
                    (quota, errno) = (avail, Errno::NoSpc);
                }
            }
            // A quota may be overrun a little, as in OpenZFS. At the pool's end lies what is
            // reserved for others: what is in flight is waited for. (OpenZFS takes it for 24 times
            // as much.)
            let slack = if quota == u64::MAX || errno == Errno::NoSpc { 0 } else { quota >> 5 };
            if by_others >= quota {
                // What was freed in the last txgs, of files or of the intent log, comes back as
                // txgs pass, empty ones too.
                let soon = errno == Errno::NoSpc && by_others - quota < self.pool_space().deferred;
                let errno = if soon { Errno::Again } else { errno };
                return Err(Error::os(errno, format!("{}: no space left", d.name())));
            }
            if by_others.saturating_add(inflight) >= quota.saturating_add(slack) {
                return Err(Error::os(Errno::Again, format!("{}: close to its quota", d.name())));
            }
            d.add_towrite(tx, need);
            // The part that a reservation covers was charged to the parents already.
            let used = p.used_bytes.saturating_add(inflight);
            let before = used.max(p.reserved);
            need = used.saturating_add(need).max(p.reserved) - before;
            if need == 0 {
                break;
            }
        }
        let space = tx.worst(OPERATION, 1);
        match frees {
            false => self.hold_room(tx, space, Leave::Half),
            true => match self.hold_room(tx, space, Leave::Eighth) {
                Err(e) if e.is(Errno::NoSpc) && !self.may_free_nothing(ds) => Ok(()),
                held => held,
            },
        }
    }

    /// Whether blocks that are killed in a dataset may have others who hold them. Each of them only
    /// makes a list longer then. (The snapshot that all datasets begin with holds nothing.)
    fn may_free_nothing(&self, ds: &DslDataset) -> bool {
        ds.phys().prev_snap_txg >= TXG_INITIAL.0 || self.feature_active("zpool_checkpoint")
    }

    /// Holds room for what `tx` may make its sync write, `space` bytes at worst, of what is free
    /// now. EAGAIN: there may be after the next sync. ENOSPC: there will not.
    pub fn hold_room(&self, tx: &Tx, space: u64, leave: Leave) -> Result<()> {
        tx.promise(space);
        if self.ctx.store.has_room(0, leave) {
            return Ok(());
        }
        let to_come =
            self.ctx.txgs.others_dirty(tx) || self.pool_space().deferred > 0 || self.ctx.store.uncounted();
        if !to_come {
            // It is alone, and waiting would not help. That all its blocks fall into single sectors
            // is then left out; and what should not be refused may go further.
            let leave = if leave == Leave::Eighth { Leave::Sixteenth } else { leave };
            tx.unpromise(space - space / GANG_FACTOR);
            if self.ctx.store.has_room(0, leave) {
                return Ok(());
            }
        }
        let (errno, why) = match to_come {
            true => (Errno::Again, "too much is dirty for what is free"),
            false => (Errno::NoSpc, "no space left"),
        };
        Err(Error::os(errno, format!("{}: {why}", self.name())))
    }

    /// Refuses an operation on datasets for which too little is left. In the syncing context,
    /// before anything is changed.
    pub(super) fn check_space(&self, check: SpaceCheck) -> Result<()> {
        self.check_space_for(check, 1)
    }

    /// The same of one that does `many` things, each of which is a small one by itself.
    pub(super) fn check_space_for(&self, check: SpaceCheck, many: usize) -> Result<()> {
        let space = ADMINISTRATION.max(EACH.saturating_mul(many as u64));
        // Writers of the open txg may hold all down to half of the slop, and who frees goes
        // further; that must not stand in the way.
        let leave = match check {
            SpaceCheck::Normal => Leave::Task,
            SpaceCheck::Reserved | SpaceCheck::ExtraReserved => Leave::FreeingTask,
        };
        let used = self.root_dir().phys().used_bytes;
        if used.saturating_add(space) > self.adjusted_size(check) || !self.ctx.store.has_room(space, leave) {
            return Err(Error::os(Errno::NoSpc, format!("{}: out of space", self.name())));
        }
        Ok(())
    }

    /// Whether of many snapshots or datasets that are to be destroyed another one may be in the txg
    /// in which so many were. What frees is never refused, but what is freed is there two txgs
    /// later, and until then it takes room for what it changes: the rest waits for other txgs.
    pub fn may_destroy_more(&self, done: usize) -> bool {
        let space = ADMINISTRATION.saturating_add(EACH.saturating_mul(done as u64));
        done == 0 || self.ctx.store.has_room(space, Leave::Eighth)
    }

    /// Free space as statfs gives it: referenced and available bytes, objects in use.
    pub fn dataset_space(&self, ds: &DslDataset) -> (u64, u64, u64) {
        let p = ds.phys();
        let mut avail = self.available(&ds.dir(), true);
        avail = avail.saturating_add(ds.reserved.load(Ordering::Relaxed).saturating_sub(p.unique_bytes));
        let refquota = ds.refquota.load(Ordering::Relaxed);
        if refquota != 0 {
            avail = avail.min(refquota.saturating_sub(p.referenced_bytes));
        }
        let objects = if p.bp.is_hole() { 0 } else { p.bp.fill() };
        (p.referenced_bytes, avail, objects)
    }
}
