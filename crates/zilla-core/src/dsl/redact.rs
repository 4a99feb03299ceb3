//! Redaction: lists of blocks that a stream leaves out, and datasets that were received from such a
//! stream.
//!
//! A *redaction bookmark* has, beside what a bookmark has, an object with the runs of blocks of its
//! snapshot that are not to be told, sorted by object and block, and in its bonus the guids of the
//! snapshots they were found by ([`RedactionListPhys`]; in a spill block where the bonus has no
//! room, with the feature `redaction_list_spill`). A list is complete when its last place is the
//! last there can be; one that is not is what an interrupted `zfs redact` of OpenZFS left, and is
//! used for nothing but to be made anew.
//!
//! A *redacted dataset* lacks such blocks. It says so by the feature `redacted_datasets`, whose
//! entry in its ZAP is the list of those guids. Its snapshots and clones are redacted as it is,
//! until a receive onto them says otherwise.
//!
//! **Crash.** zilla computes a list before it writes one, in one txg with its bookmark.

use super::bookmark::DslBookmark;
use super::dataset::DslDataset;
use super::{DslPool, Refusal};
use crate::dmu::{Dnode, NewObject, resident};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId};
use crate::zap::Value;
use std::sync::Arc;
use zilla_ondisk::dsl::{RedactBlockPhys, RedactionListPhys, ZfsBookmarkPhys};
use zilla_ondisk::object_type::DMU_OTN_UINT64_METADATA;
use zilla_ondisk::{ByteOrder, Field, Phys, SPA_MAXBLOCKSIZE, SPA_OLD_MAXBLOCKSIZE, feature};

/// The feature of redacted datasets.
pub(super) const REDACTED: &str = "redacted_datasets";
const LISTS: &str = "redaction_bookmarks";
const SPILLED: &str = "redaction_list_spill";
/// What a bonus takes. Source: DN_OLD_MAX_BONUSLEN in sys/dnode.h.
const MAX_BONUS: usize = 320;
/// As many blocks as a run can have. Source: REDACT_BLOCK_MAX_COUNT in sys/dmu_redact.h.
const MAX_COUNT: u64 = (1 << 48) - 1;
/// Bytes of a list that are read at once.
const CHUNK: u64 = 4 << 20;

/// Blocks of one object, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedactedRun {
    pub object: u64,
    pub blkid: u64,
    pub count: u64,
    /// Bytes of a block.
    pub blksz: u64,
}

/// Which blocks of a snapshot are left out, and by which snapshots they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedactionList {
    pub snaps: Vec<u64>,
    /// By object and block; none overlaps another.
    pub runs: Vec<RedactedRun>,
}

impl RedactionList {
    pub fn contains(&self, object: u64, blkid: u64) -> bool {
        let after = self.runs.partition_point(|r| (r.object, r.blkid) <= (object, blkid));
        let run = after.checked_sub(1).and_then(|i| self.runs.get(i));
        run.is_some_and(|r| r.object == object && blkid - r.blkid < r.count)
    }
}

/// Whether both have the same snapshots.
pub fn same_snaps(a: &[u64], b: &[u64]) -> bool {
    a.iter().all(|g| b.contains(g)) && b.iter().all(|g| a.contains(g))
}

impl DslDataset {
    /// The guids of the snapshots by which its contents are redacted; None: they are whole.
    pub fn redact_snaps(&self) -> Option<Arc<[u64]>> {
        self.redacted.lock().clone()
    }
}

impl DslPool {
    /// Says that a dataset is redacted, or that it is not.
    pub(super) async fn set_redacted(
        &self,
        tx: &Tx,
        ds: &DslDataset,
        snaps: Option<Arc<[u64]>>,
    ) -> Result<()> {
        if ds.redact_snaps() == snaps {
            return Ok(());
        }
        if ds.feature_is_active(REDACTED) {
            self.deactivate_feature(tx, ds, REDACTED).await?;
        }
        let (Some(snaps), Some(f)) = (snaps, feature::by_name(REDACTED)) else { return Ok(()) };
        self.zapify(tx, &ds.dn).await?.insert(tx, f.guid, &Value::u64s(&snaps)).await?;
        self.feature_incr(tx, REDACTED).await?;
        ds.features.lock().insert(f.name);
        *ds.redacted.lock() = Some(snaps);
        Ok(())
    }

    /// A dataset whose contents are another's needs the features they need.
    pub(super) async fn copy_features(&self, tx: &Tx, from: &DslDataset, to: &DslDataset) -> Result<()> {
        let active: Vec<_> = from.features.lock().iter().copied().collect();
        for f in active.into_iter().filter(|f| *f != REDACTED) {
            self.activate_feature(tx, to, f).await?;
        }
        self.set_redacted(tx, to, from.redact_snaps()).await
    }

    async fn list_head(&self, obj: u64) -> Result<(Arc<Dnode>, RedactionListPhys)> {
        let bad = |what: String| Error::corrupt(Some(Bookmark::new(0, ObjectId(obj), 0, 0)), "", what);
        let dn = self.mos().hold_wait(ObjectId(obj)).await?;
        let bonus = dn.bonus();
        let spill = if bonus.is_empty() { resident(|| dn.spill()).await? } else { None };
        let head = spill.as_deref().unwrap_or(&bonus);
        let phys = RedactionListPhys::decode(head, ByteOrder::NATIVE).map_err(|e| bad(e.to_string()))?;
        let room = (dn.maxblkid() + 1).saturating_mul(u64::from(dn.blksz())) / RedactBlockPhys::SIZE as u64;
        if dn.otype() != DMU_OTN_UINT64_METADATA || phys.num_entries > room {
            return Err(bad(format!("no list of {} runs", phys.num_entries)));
        }
        Ok((dn, phys))
    }

    /// The snapshots that a redaction bookmark is for; None: it is a plain one.
    #[crate::boxed]
    pub async fn redaction_snaps(&self, mark: &ZfsBookmarkPhys) -> Result<Option<Vec<u64>>> {
        match mark.redaction_obj {
            0 => Ok(None),
            obj => Ok(Some(self.list_head(obj).await?.1.snaps)),
        }
    }

    /// The list of a redaction bookmark. `EINVAL`: it is not complete.
    #[crate::boxed]
    pub async fn redaction_list(&self, mark: &ZfsBookmarkPhys) -> Result<RedactionList> {
        let obj = mark.redaction_obj;
        let bad =
            |what: &str| Error::corrupt(Some(Bookmark::new(0, ObjectId(obj), 0, 0)), "", what.to_owned());
        let (dn, phys) = self.list_head(obj).await?;
        if !phys.is_complete() {
            return Err(Error::inval("incomplete redaction bookmark provided"));
        }
        let mut runs: Vec<RedactedRun> = Vec::new();
        let (mut at, end) = (0, phys.num_entries * RedactBlockPhys::SIZE as u64);
        while at < end {
            let mut raw = vec![0; usize::try_from((end - at).min(CHUNK)).unwrap_or(0)];
            dn.read_wait(at, &mut raw).await?;
            at += raw.len() as u64;
            for one in raw.chunks_exact(RedactBlockPhys::SIZE) {
                let b = RedactBlockPhys::decode(one, ByteOrder::NATIVE).map_err(|e| bad(&e.to_string()))?;
                let (object, blkid) = (b.object, b.blkid);
                let run = RedactedRun { object, blkid, count: b.count(), blksz: b.blksz() };
                let after = runs.last().map_or((0, 0), |r| (r.object, r.blkid + (r.count - 1)));
                let fits = run.count > 0 && blkid.checked_add(run.count).is_some();
                if !fits || (!runs.is_empty() && (object, blkid) <= after) {
                    return Err(bad("its runs are not in order"));
                }
                runs.push(run);
            }
        }
        Ok(RedactionList { snaps: phys.snaps, runs })
    }

    /// Writes a list into a new object, or a new list into one that is there.
    async fn put_list(&self, tx: &Tx, obj: u64, list: &RedactionList) -> Result<u64> {
        let phys = RedactionListPhys {
            last_object: u64::MAX,
            last_blkid: u64::MAX,
            num_entries: list.runs.len() as u64,
            snaps: list.snaps.clone(),
        };
        let head = phys.encode();
        let dn = match obj {
            0 => {
                let len = if head.len() > MAX_BONUS { 0 } else { head.len() };
                let spec = NewObject::new(DMU_OTN_UINT64_METADATA, SPA_OLD_MAXBLOCKSIZE as u32)
                    .bonus(DMU_OTN_UINT64_METADATA, len);
                // A spill pointer lies where the second block pointer would end.
                let spec = if len == 0 { NewObject { nblkptr: 1, ..spec } } else { spec };
                let dn = resident(|| self.mos().alloc(tx, spec)).await?;
                self.feature_incr(tx, LISTS).await?;
                if len == 0 {
                    self.feature_incr(tx, SPILLED).await?;
                }
                dn
            }
            obj => self.mos().hold_wait(ObjectId(obj)).await?,
        };
        if dn.bonus().is_empty() {
            let mut spill = head;
            spill.resize(spill.len().next_multiple_of(512), 0);
            dn.set_spill(tx, Some(spill.into()));
        } else {
            dn.set_bonus(tx, &head);
        }
        let mut data = Vec::with_capacity(list.runs.len() * RedactBlockPhys::SIZE);
        for r in &list.runs {
            data.extend(RedactBlockPhys::new(r.object, r.blkid, r.count, r.blksz).encode());
        }
        for (i, part) in data.chunks(SPA_OLD_MAXBLOCKSIZE as usize).enumerate() {
            dn.write(tx, i as u64 * SPA_OLD_MAXBLOCKSIZE, part);
        }
        Ok(dn.id().0)
    }

    /// A redaction list goes with its bookmark.
    pub(super) async fn free_list(&self, tx: &Tx, mark: &ZfsBookmarkPhys) -> Result<()> {
        if mark.redaction_obj == 0 {
            return Ok(());
        }
        let dn = self.mos().hold_wait(ObjectId(mark.redaction_obj)).await?;
        if dn.bonus().is_empty() {
            self.feature_decr(tx, SPILLED).await?;
        }
        self.mos().free(tx, &dn);
        self.feature_decr(tx, LISTS).await
    }

    /// The list that a bookmark of a redacted snapshot has: nothing is left out of it that was not
    /// before.
    pub(super) async fn list_of_redacted(&self, tx: &Tx, snap: &DslDataset) -> Result<u64> {
        match snap.redact_snaps().filter(|_| self.feature_enabled(LISTS)) {
            Some(snaps) => self.put_list(tx, 0, &RedactionList { snaps: snaps.to_vec(), runs: vec![] }).await,
            None => Ok(0),
        }
    }

    /// Why no list of so many snapshots can be kept, if it cannot.
    pub fn redact_check(&self, snaps: usize) -> Result<()> {
        if !self.feature_enabled(LISTS) {
            return Err(Refusal::FeatureDisabled(LISTS).into());
        }
        let most = match self.feature_enabled(SPILLED) {
            true if self.feature_enabled("large_blocks") => SPA_MAXBLOCKSIZE as usize,
            true => SPA_OLD_MAXBLOCKSIZE as usize,
            false => MAX_BONUS,
        };
        let most = (most - RedactionListPhys::HEAD) / 8;
        match snaps > most {
            true => Err(Error::os(Errno::TooBig, "too many redaction snapshots specified")),
            false => Ok(()),
        }
    }

    /// The incomplete list that may be made anew under a bookmark's name: 0 if there is no such
    /// bookmark.
    #[crate::boxed]
    pub async fn redact_again(&self, name: &str, snaps: &[u64]) -> Result<u64> {
        let mark = match self.bookmark_by_name(name).await {
            Ok((_, mark)) => mark,
            Err(e) if e.is(Errno::NoEnt) => return Ok(0),
            Err(e) => return Err(e),
        };
        if mark.phys.redaction_obj == 0 {
            return Err(Refusal::BookmarkExists(name.to_owned()).into());
        }
        let (_, phys) = self.list_head(mark.phys.redaction_obj).await?;
        if !same_snaps(&phys.snaps, snaps) {
            return Err(Refusal::OtherRedaction.into());
        }
        match phys.is_complete() {
            true => Err(Refusal::BookmarkExists(name.to_owned()).into()),
            false => Ok(mark.phys.redaction_obj),
        }
    }

    /// Makes a redaction bookmark of a snapshot. In syncing context.
    #[crate::boxed]
    pub async fn redact(
        &self,
        tx: &Tx,
        snap: &Arc<DslDataset>,
        name: &str,
        list: &RedactionList,
    ) -> Result<()> {
        self.redact_check(list.snaps.len())?;
        self.check_space(super::SpaceCheck::Normal)?;
        let old = self.redact_again(name, &list.snaps).await?;
        if old != 0 {
            self.put_list(tx, old, list).await?;
            return Ok(());
        }
        self.bookmark_check(&snap.name(), name).await?;
        let head = self.head(&snap.dir()).await?;
        self.read_dataset(&head).await?;
        let phys = self.bookmark_phys(snap).await?;
        self.read_pool().await?;
        let redaction_obj = self.put_list(tx, 0, list).await?;
        let mark = name.split_once('#').map_or(name, |(_, m)| m).to_owned();
        let text = format!("name={mark} creation_txg={} redact_obj={redaction_obj}", phys.creation_txg);
        let phys = ZfsBookmarkPhys { redaction_obj, ..phys };
        self.bookmark_add(tx, &head, DslBookmark { name: mark, phys }).await?;
        self.note(tx, &head, "bookmark", &text);
        Ok(())
    }
}

/// Cuts a run to what an entry holds.
pub fn runs_of(object: u64, blkid: u64, count: u64, blksz: u64) -> impl Iterator<Item = RedactedRun> {
    let parts = count.div_ceil(MAX_COUNT);
    (0..parts).map(move |i| {
        let done = i * MAX_COUNT;
        RedactedRun { object, blkid: blkid + done, count: (count - done).min(MAX_COUNT), blksz }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_snapshots_are_the_same_whatever_their_order() {
        assert!(same_snaps(&[1, 2], &[2, 1]) && same_snaps(&[], &[]));
        assert!(!same_snaps(&[1, 1], &[1, 2]) && !same_snaps(&[1, 2], &[1, 1]) && !same_snaps(&[1], &[]));
    }

    #[test]
    fn a_list_knows_its_blocks() {
        let run = |object, blkid, count| RedactedRun { object, blkid, count, blksz: 512 };
        let runs = vec![run(2, 0, 1), run(2, 5, 3), run(7, 1, 1)];
        let list = RedactionList { snaps: vec![], runs };
        for (object, blkid, there) in [
            (2, 0, true),
            (2, 1, false),
            (2, 4, false),
            (2, 7, true),
            (2, 8, false),
            (7, 0, false),
            (7, 1, true),
        ] {
            assert_eq!(list.contains(object, blkid), there, "{object} {blkid}");
        }
        assert!(!list.contains(1, 0) && !list.contains(8, 1) && !RedactionList::default().contains(0, 0));
        assert_eq!(runs_of(1, 3, MAX_COUNT + 2, 512).last().unwrap(), run(1, 3 + MAX_COUNT, 2));
    }
}
