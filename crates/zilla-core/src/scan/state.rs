//! How far a scan has come, in memory and on disk.
//!
//! On disk it is OpenZFS's: 24 words in the pool's directory, and a ZAP of the datasets still to be
//! visited with the birth from which on their blocks are not known from an earlier one. Either
//! program goes on where the other stopped.
//!
//! The order of datasets follows from whose blocks are whose: the MOS, then the empty snapshot from
//! which all datasets descend, then, after each dataset, the next snapshot (or head) and the clones
//! that begin with it. So a block is visited in the first dataset that has it, which its birth
//! tells.
//!
//! **Later walks.** Where a scan may have missed blocks that changed places (`outlived.rs`) it
//! walks once more through what was given a place since its walk began, with the same words and
//! queue. In a dataset whose blocks are known up to the scan's own txg there is nothing for a first
//! walk, nor for OpenZFS, which has no later ones: it finds no work in what is left of one, and
//! ends the scan. When a later walk began is the one thing that OpenZFS's words have no room for.
//! It stands beside them in the directory, under a name of ours that others pass by. So does, while
//! the pool is closed, that no later walk is needed: no block has lost a place that is not known.
//! It counts if nobody has written the pool since.

use crate::dmu::Objset;
use crate::error::{Error, PoolRefusal as Refusal, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, Txg};
use crate::zap::{Value, Zap};
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_ondisk::dsl::{
    DMU_POOL_DIRECTORY_OBJECT, DMU_POOL_SCAN, DSF_SCRUB_PAUSED, DSF_VISIT_DS_AGAIN, DslScanPhys, WordsPhys,
};
use zilla_ondisk::enums::{ScanFunc, ScanState};
use zilla_ondisk::zbookmark::{ZB_DESTROYED_OBJSET, ZbookmarkPhys};

/// The words there were before flags were added.
const LEAST_WORDS: usize = 23;

/// An entry of the pool's directory, for us alone: two of the scan's words that tell it from
/// others, and the txg in which the walk that is under way began.
const AGAIN: &str = "zilla:scan_again";

/// Another: the same two words, and the last txg of who closed the pool and knew all blocks that
/// have lost places.
const KNOWN: &str = "zilla:scan_known";

/// A place in the scan, and what was counted on the way there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) phys: DslScanPhys,
    /// Datasets to visit: object, and the txg whose blocks and older ones are known already.
    pub(super) queue: BTreeMap<u64, u64>,
    /// The txg in which the walk that is under way began, the first one with the scan: what is
    /// given a place later is not its concern.
    pub(super) until: u64,
}

impl Position {
    pub(super) fn is_scanning(&self) -> bool {
        self.phys.state == ScanState::Scanning as u64
    }
    pub(super) fn is_resilver(&self) -> bool {
        self.phys.func == ScanFunc::Resilver as u64
    }
    pub(super) fn is_paused(&self) -> bool {
        self.phys.flags & DSF_SCRUB_PAUSED != 0
    }

    /// A walk that is not the scan's first one.
    pub(super) fn is_later(&self) -> bool {
        self.until > self.phys.max_txg
    }

    /// Nothing is left of a walk.
    pub(super) fn is_walked(&self) -> bool {
        self.is_scanning() && self.phys.bookmark.objset == ZB_DESTROYED_OBJSET && self.queue.is_empty()
    }

    pub(super) fn set_walked(&mut self) {
        self.set_between();
        self.queue.clear();
    }

    /// In no dataset, and before all those of the queue. (On disk as behind one that was
    /// destroyed.)
    pub(super) fn set_between(&mut self) {
        self.phys.bookmark = ZbookmarkPhys::new(ZB_DESTROYED_OBJSET, 0, 0, 0);
    }

    /// Begins another walk, in txg `now` and at these datasets.
    pub(super) fn walk_again(&mut self, first: BTreeMap<u64, u64>, now: u64) {
        self.set_walked();
        self.queue = first;
        self.phys.flags &= DSF_SCRUB_PAUSED;
        self.until = now;
    }

    /// Why nothing else may begin while this is under way.
    pub(super) fn refusal(&self) -> Refusal {
        match (self.is_resilver(), self.is_paused()) {
            (true, _) => Refusal::Resilvering,
            (false, false) => Refusal::Scrubbing,
            (false, true) => Refusal::ScrubPaused,
        }
    }

    pub(super) fn set_bookmark(&mut self, at: Option<Bookmark>) {
        self.phys.bookmark =
            at.map(|b| ZbookmarkPhys::new(b.objset, b.object, b.level, b.blkid)).unwrap_or_default();
    }

    /// Where to go on within the dataset that the scan stopped in.
    pub(super) fn resume(&self) -> Option<Bookmark> {
        let b = &self.phys.bookmark;
        let at = Bookmark { objset: b.objset, object: b.object, level: b.level(), blkid: b.blkid };
        (at.object != 0 || at.blkid != 0).then_some(at)
    }

    /// A dataset is destroyed. What is left of a snapshot's blocks is found in the next one.
    pub(super) fn destroyed(&mut self, ds: u64, next_snap: Option<u64>) {
        if self.phys.bookmark.objset == ds {
            match next_snap {
                Some(next) => {
                    self.phys.bookmark.objset = next;
                    self.phys.flags |= DSF_VISIT_DS_AGAIN;
                }
                None => self.set_between(),
            }
        }
        if let (Some(min), Some(next)) = (self.queue.remove(&ds), next_snap) {
            self.queue.insert(next, min);
        }
    }

    /// A head's blocks belong to its new snapshot now.
    pub(super) fn snapshotted(&mut self, head: u64, snap: u64) {
        if self.phys.bookmark.objset == head {
            self.phys.bookmark.objset = snap;
        }
        if let Some(min) = self.queue.remove(&head) {
            self.queue.insert(snap, min);
        }
    }

    /// Two datasets exchange their contents.
    pub(super) fn swapped(&mut self, a: u64, b: u64) {
        let o = &mut self.phys.bookmark.objset;
        *o = if *o == a {
            b
        } else if *o == b {
            a
        } else {
            *o
        };
        match (self.queue.remove(&a), self.queue.remove(&b)) {
            (Some(x), Some(y)) => self.queue.extend([(a, x), (b, y)]),
            (Some(x), None) => self.queue.extend([(b, x)]),
            (None, Some(y)) => self.queue.extend([(a, y)]),
            (None, None) => {}
        }
    }

    pub(super) async fn load(mos: &Arc<Objset>) -> Result<Position> {
        let directory = Zap::open(mos, DMU_POOL_DIRECTORY_OBJECT).await?;
        let Some(value) = directory.try_get(DMU_POOL_SCAN).await? else { return Ok(Position::default()) };
        let bad = |what: String| Error::corrupt(None, "the pool's scan state", what);
        let words = value.as_u64s().ok_or_else(|| bad("is not an array of words".into()))?;
        let phys = DslScanPhys::from_words(&words, LEAST_WORDS).map_err(|e| bad(e.to_string()))?;
        let mut out = Position { phys, queue: BTreeMap::new(), until: phys.max_txg };
        if let Some(again) = directory.try_get(AGAIN).await?.and_then(|v| v.as_u64s())
            && let [max_txg, start_time, until] = again[..]
            && (max_txg, start_time) == (phys.max_txg, phys.start_time)
        {
            out.until = until.max(phys.max_txg);
        }
        if out.is_scanning() && phys.queue_obj != 0 {
            for e in Zap::open(mos, phys.queue_obj).await?.entries().await? {
                let name = e.name_str();
                let ds = u64::from_str_radix(&name, 16).map_err(|_| bad(format!("queue entry {name:?}")))?;
                out.queue.insert(ds, e.value.as_u64().unwrap_or(0));
            }
        }
        Ok(out)
    }

    pub(super) async fn save(&self, mos: &Arc<Objset>, tx: &Tx) -> Result<()> {
        if self.phys.queue_obj != 0 {
            let zap = Zap::open(mos, self.phys.queue_obj).await?;
            let mut missing = self.queue.clone();
            for e in zap.entries().await? {
                let name = e.name_str().into_owned();
                let ds = u64::from_str_radix(&name, 16).ok();
                match ds.filter(|ds| missing.get(ds).copied() == e.value.as_u64()) {
                    Some(ds) => drop(missing.remove(&ds)),
                    None => zap.delete(tx, &name).await?,
                }
            }
            for (ds, min) in missing {
                zap.set_u64(tx, &format!("{ds:x}"), min).await?;
            }
        }
        let directory = Zap::open(mos, DMU_POOL_DIRECTORY_OBJECT).await?;
        match self.is_scanning() && self.is_later() {
            true => {
                let again = [self.phys.max_txg, self.phys.start_time, self.until];
                directory.set(tx, AGAIN, &Value::u64s(&again)).await?;
            }
            false => drop(directory.delete_if_there(tx, AGAIN).await?),
        }
        if !self.is_scanning() {
            directory.delete_if_there(tx, KNOWN).await?;
        }
        directory.set(tx, DMU_POOL_SCAN, &Value::u64s(&self.phys.to_words())).await
    }

    /// Says that nothing but what is on disk need be known to go on after `tx`, or that more is.
    pub(super) async fn save_known(&self, mos: &Arc<Objset>, tx: &Tx, all: bool) -> Result<()> {
        let directory = Zap::open(mos, DMU_POOL_DIRECTORY_OBJECT).await?;
        match all && self.is_scanning() {
            true => {
                let known = [self.phys.max_txg, self.phys.start_time, tx.txg().0];
                directory.set(tx, KNOWN, &Value::u64s(&known)).await
            }
            false => directory.delete_if_there(tx, KNOWN).await.map(drop),
        }
    }

    /// Whether that was said in the last txg that was written, which is `last`.
    pub(super) async fn is_known(&self, mos: &Arc<Objset>, last: Txg) -> Result<bool> {
        let known = Zap::open(mos, DMU_POOL_DIRECTORY_OBJECT).await?.try_get(KNOWN).await?;
        Ok(known.and_then(|v| v.as_u64s()) == Some(vec![self.phys.max_txg, self.phys.start_time, last.0]))
    }
}
