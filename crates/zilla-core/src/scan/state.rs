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

use crate::dmu::Objset;
use crate::error::{Error, PoolRefusal as Refusal, Result};
use crate::txg::Tx;
use crate::types::Bookmark;
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

/// A place in the scan, and what was counted on the way there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) phys: DslScanPhys,
    /// Datasets to visit: object, and the txg whose blocks and older ones are known already.
    pub(super) queue: BTreeMap<u64, u64>,
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
                None => self.phys.bookmark = ZbookmarkPhys::new(ZB_DESTROYED_OBJSET, 0, 0, 0),
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
        let mut out = Position { phys, queue: BTreeMap::new() };
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
        directory.set(tx, DMU_POOL_SCAN, &Value::u64s(&self.phys.to_words())).await
    }
}
