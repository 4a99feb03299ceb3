//! Claiming what a crash left in the logs of all datasets, in the first txg of an import.
//!
//! Blocks that the log alone leads to are taken out of what is free. Blocks that a record clones
//! are other files', whose own logs may free them before this one is replayed; so each gets a
//! reference of the log's, which goes when the log does: by its replay or with its dataset. (A
//! record whose txg is synced is not done again, and what it cloned may be free by now. The log's
//! destruction, ours or OpenZFS's, knows nothing of that and gives it back like any other, so it is
//! taken.)
//!
//! Where a space map is damaged nobody sees what is free. A log's own blocks count as free there,
//! for they carry the log's checksums, and are written down as taken: else what was acknowledged
//! would be lost with the map. The metaslab is not used, so no other gets their places.

use super::chain::{self, Walk};
use crate::dmu::Objset;
use crate::dsl::{DslDataset, DslPool};
use crate::error::{Error, Result};
use crate::metaslab::Metaslabs;
use crate::types::{Bookmark, Txg};
use crate::zio::{BlockStore, Priority, Zio};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::zil::{
    LogRecord, RecordBody, ZIL_CLAIM_LR_SEQ_VALID, ZIL_REPLAY_NEEDED, ZIL_ZC_SEQ, ZilHeader,
};

const BLOCK_CLONING: &str = "block_cloning";

/// How logs are claimed.
#[derive(Clone, Copy)]
pub struct Claim {
    /// The txg after the one that the pool is opened as of: from it on nothing in the logs is
    /// synced. Where the pool goes back others have had this number and those that follow.
    pub first: Txg,
    /// The pool's first txg, in which the logs are claimed.
    pub open: Txg,
    /// The pool goes back to a checkpoint of this txg. Its logs ended there for those who used it
    /// on: what followed is not kept.
    pub kept: Option<Txg>,
    /// A log that cannot be read because devices fail is an error, unless it may be lost: it may
    /// hold what someone was told is stable.
    pub lost: bool,
}

/// Claims the logs of all datasets of a pool that is being opened for writing. What is damaged has
/// none that could be read, and keeps nobody from the others.
#[crate::boxed]
pub async fn claim_all(dsl: &Arc<DslPool>, (metaslabs, zio): (&Metaslabs, &Zio), how: Claim) -> Result<()> {
    let (mut todo, mut seen, mut all) = (vec![dsl.root_dir()], BTreeSet::new(), true);
    while let Some(dir) = todo.pop() {
        let children = unless_damaged(&dir.name(), dsl.children(&dir).await)?;
        all &= children.is_some();
        for child in children.into_iter().flatten().filter(|c| seen.insert(c.id)) {
            let name = format!("{}/{}", dir.name(), child.name);
            match unless_damaged(&name, dsl.child_dir(&dir, child.id).await)? {
                Some(dir) => todo.push(dir),
                None => all = false,
            }
        }
        // What older versions left of a dataset that they could not destroy.
        if dir.phys().head_dataset_obj == 0 {
            continue;
        }
        match unless_damaged(&dir.name(), dsl.head(&dir).await)? {
            Some(head) if !head.phys().bp.is_hole() => claim(dsl, (metaslabs, zio), &head, how).await?,
            Some(_) => {}
            None => all = false,
        }
    }
    if !all {
        dsl.ctx().log.pass_over(how.open);
    }
    Ok(())
}

/// None where something is damaged, which no later try would mend. Devices that fail are an error.
fn unless_damaged<T>(name: &str, result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(Error::Corrupt(c)) => {
            tracing::warn!(dataset = %name, error = %c, "its intent log, or that of those below, is not claimed");
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

async fn claim(
    dsl: &Arc<DslPool>,
    (metaslabs, zio): (&Metaslabs, &Zio),
    ds: &Arc<DslDataset>,
    Claim { first, open, kept, lost }: Claim,
) -> Result<()> {
    let Some(objset) = unless_damaged(&ds.name(), dsl.objset(ds).await)? else {
        // Others are given its blocks. Should a copy of the header come up later, they are not
        // freed.
        ds.log_freed.store(true, Ordering::Relaxed);
        return Ok(());
    };
    let header = objset.phys().zil_header;
    if header.log.is_hole() || header.claim_txg != 0 {
        return Ok(());
    }
    let store = &**objset.store();
    if let Some(kept) = kept {
        give_up(dsl, ds, &objset, kept).await;
        return Ok(());
    }
    let mut walk = Walk::new(store, &header, ds.id());
    let (objset_id, seen) = (ds.id(), BTreeSet::new());
    let mut claims =
        Claims { dsl, metaslabs, zio, store, objset: objset_id, first, open, seen, failed: None };
    let (mut blocks, mut records, mut last_block, mut last_record) = (0u64, 0u64, 0, 0);
    while let Some(block) = walk.next().await {
        if let Err(why) = claims.block(&block.bp).await? {
            walk.stop(format!("block {}: {why}", block.seq));
            break;
        }
        // The last block counts too, though nothing is in it: its space was allocated ahead, and is
        // freed with the log.
        blocks += 1;
        last_block = block.seq;
        let Some(data) = &block.data else { continue };
        for record in walk.records(&block.bp, data) {
            if let Err(why) = claims.record(&record).await? {
                // Written before the block it names: nobody was told that it is stable.
                walk.stop(format!("record {}: {why}", record.header.seq));
                break;
            }
            records += 1;
            last_record = record.header.seq;
        }
    }
    if let Some(e) = walk.failed.take().or(claims.failed).filter(|_| !lost) {
        let what = format!(
            "the intent log of {} cannot be read: {e}; try again, or import with '-m' and lose what it holds",
            ds.name()
        );
        return Err(Error::os(e.errno(), what));
    }
    objset.with_phys(|p| {
        let h = &mut p.zil_header;
        h.claim_txg = first.0;
        h.claim_blk_seq = last_block;
        h.claim_lr_seq = last_record;
        h.flags |= ZIL_CLAIM_LR_SEQ_VALID;
        if records > 0 || blocks > 1 {
            h.flags |= ZIL_REPLAY_NEEDED;
        }
    });
    dsl.rewrite_root(ds);
    let end = walk.ended.as_deref().unwrap_or("");
    tracing::info!(dataset = %ds.name(), blocks, records, end, "intent log claimed");
    Ok(())
}

/// A log that was in use when the checkpoint was taken: the blocks that were allocated then are
/// freed, and it begins anew.
async fn give_up(dsl: &Arc<DslPool>, ds: &Arc<DslDataset>, objset: &Arc<Objset>, kept: Txg) {
    let header = objset.phys().zil_header;
    let mut walk = Walk::new(&**objset.store(), &header, ds.id());
    while walk.leads_to().is_some_and(|bp| bp.birth() <= kept.0) {
        let Some(block) = walk.next().await else { break };
        dsl.ctx().free(&block.bp);
    }
    objset.with_phys(|p| p.zil_header = ZilHeader::default());
    dsl.rewrite_root(ds);
    tracing::info!(dataset = %ds.name(), "the intent log ends with the checkpoint");
}

/// What came of taking a block's space.
enum Taken {
    All,
    InUse(String),
    /// The maps that would say so cannot be read: nothing was taken.
    Unseen,
}

struct Claims<'a> {
    dsl: &'a Arc<DslPool>,
    metaslabs: &'a Metaslabs,
    zio: &'a Zio,
    store: &'a dyn BlockStore,
    objset: u64,
    first: Txg,
    open: Txg,
    seen: BTreeSet<[u64; 2]>,
    failed: Option<Error>,
}

impl Claims<'_> {
    /// Takes a block's space out of what is free. `Ok(Err(why))`: it is not free, so the block
    /// cannot be what the log says.
    async fn block(&mut self, bp: &BlkPtr) -> Result<Result<(), String>> {
        let embedded_or_hole = bp.is_hole() || bp.is_embedded();
        if embedded_or_hole || bp.birth() < self.first.0 || !self.seen.insert(bp.dva(0).to_words()) {
            return Ok(Ok(()));
        }
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::ClaimForgotten) {
            return Ok(Ok(()));
        }
        Ok(match self.take(bp, true).await? {
            Taken::InUse(why) => Err(why),
            Taken::All | Taken::Unseen => Ok(()),
        })
    }

    /// Takes the space of all copies, or of none; `blindly`: also where nobody can see whether it
    /// is free.
    async fn take(&self, bp: &BlkPtr, blindly: bool) -> Result<Taken> {
        let mut done = Vec::new();
        // What OpenZFS wrote in place may be a gang, all of which is freed with the log.
        let places = match blindly && bp.is_gang() {
            true => match self.zio.places(bp).await {
                Err(Error::Corrupt(c)) => return Ok(Taken::InUse(c.to_string())),
                places => places?,
            },
            false => bp.dvas().collect(),
        };
        for dva in places {
            let claimed = match self.metaslabs.claim_wait(self.open, &dva).await {
                Ok(false) if blindly => self.metaslabs.claim_unseen(self.open, &dva).map(|()| true),
                claimed => claimed,
            };
            let not = match claimed {
                Ok(true) => {
                    done.push(dva);
                    continue;
                }
                Ok(false) => Taken::Unseen,
                Err(Error::Corrupt(c)) => Taken::InUse(c.to_string()),
                Err(e) => return Err(e),
            };
            for dva in done {
                self.metaslabs.unalloc(self.open, &dva)?;
            }
            return Ok(not);
        }
        Ok(Taken::All)
    }

    /// Refers to what a record clones, all of it or nothing; `synced`: the record is not done
    /// again.
    async fn clones(&mut self, bps: &[BlkPtr], synced: bool) -> Result<Result<(), String>> {
        let counted = |bp: &&BlkPtr| !bp.is_hole() && !bp.is_embedded();
        if bps.iter().any(|bp| counted(&bp)) && !self.dsl.ctx().features.is_enabled(BLOCK_CLONING) {
            return Ok(Err(format!("it clones, and the pool's feature {BLOCK_CLONING} is not enabled")));
        }
        let (mut references, mut taken, mut wrong) = (Vec::new(), Vec::new(), None);
        for bp in bps.iter().filter(counted) {
            if bp.phys_birth() >= self.first.0 {
                wrong = Some("it clones a block that was never synced");
            } else if bp.is_metadata() || bp.is_redacted() {
                wrong = Some("it clones what is not a file's data");
            } else if bp.dvas().any(|d| !self.metaslabs.holds(&d)) {
                wrong = Some("it clones a block that is on none of the pool's vdevs");
            } else if let Err(e @ Error::Corrupt(_)) = self.store.check_counts(bp).await {
                // Somebody may have been told that this record, and those behind it, are stable.
                self.failed = Some(e);
                wrong = Some("it clones a block that cannot be counted, as the table is damaged");
            } else {
                match self.take(bp, false).await? {
                    Taken::InUse(_) => references.push(*bp),
                    // As if it were in use. If it is not, nobody is given its place, and all that
                    // the log's end takes back is the reference.
                    Taken::Unseen => references.push(*bp),
                    Taken::All => {
                        taken.push(*bp);
                        wrong = (!synced || bp.is_gang()).then_some("it clones a block that is free");
                    }
                }
            }
            if wrong.is_some() {
                break;
            }
        }
        if let Some(why) = wrong {
            for dva in taken.iter().flat_map(BlkPtr::dvas) {
                self.metaslabs.unalloc(self.open, &dva)?;
            }
            return Ok(Err(why.into()));
        }
        self.dsl.ctx().cloned(references);
        Ok(Ok(()))
    }

    /// The same for the data that a record points to, which must be readable.
    async fn record(&mut self, record: &LogRecord<'_>) -> Result<Result<(), String>> {
        match &record.body {
            RecordBody::Write { object, blkptr, .. } => {
                let new = !blkptr.is_hole() && !blkptr.is_embedded() && blkptr.birth() >= self.first.0;
                let bookmark = Bookmark { objset: self.objset, object: *object, level: -2, blkid: 0 };
                if new && let Err(e) = chain::read(self.store, *blkptr, bookmark).await {
                    self.failed = Some(e.clone()).filter(|e| !matches!(e, Error::Corrupt(_)));
                    return Ok(Err(e.to_string()));
                }
                self.block(blkptr).await
            }
            RecordBody::CloneRange { bps, .. } => self.clones(bps, record.header.txg < self.first.0).await,
            _ => Ok(Ok(())),
        }
    }
}

/// All blocks that a log consists of or refers to beyond the synced state, allocated or not.
#[crate::boxed]
pub async fn chain(store: &dyn BlockStore, header: &ZilHeader, objset: u64) -> Vec<BlkPtr> {
    let mut out = Vec::new();
    let mut seen = BTreeSet::new();
    let mut walk = Walk::new(store, header, objset);
    while let Some(block) = walk.next().await {
        seen.insert(block.bp.dva(0).to_words());
        out.push(block.bp);
        let Some(data) = &block.data else { continue };
        for record in walk.records(&block.bp, data) {
            own_blocks(header, &record, &mut seen, &mut out);
        }
    }
    out
}

/// What a log that was claimed and not replayed yet leads to and can be read: its blocks, the data
/// that its records point to and what they clone. False with it where not all that was claimed
/// comes up.
#[crate::boxed]
pub(crate) async fn claimed(store: &dyn BlockStore, header: &ZilHeader, objset: u64) -> (Vec<BlkPtr>, bool) {
    let (mut out, mut seen) = (Vec::new(), BTreeSet::new());
    let mut walk = Walk::new(store, header, objset);
    while let Some(block) = walk.next().await {
        // The last one was allocated ahead, and nothing is in it.
        let Some(data) = &block.data else { continue };
        seen.insert(block.bp.dva(0).to_words());
        out.push(block.bp);
        for record in walk.records(&block.bp, data) {
            own_blocks(header, &record, &mut seen, &mut out);
        }
    }
    (out, walk.is_complete())
}

/// Adds the blocks that a record gives back when its log goes: its data, and the references to what
/// it clones.
pub(super) fn own_blocks(
    header: &ZilHeader,
    record: &LogRecord<'_>,
    seen: &mut BTreeSet<[u64; 2]>,
    out: &mut Vec<BlkPtr>,
) {
    match &record.body {
        RecordBody::Write { blkptr, .. }
            if own_data(header, blkptr) && seen.insert(blkptr.dva(0).to_words()) =>
        {
            out.push(*blkptr);
        }
        // One for each time that a block is cloned.
        RecordBody::CloneRange { bps, .. } if header.claim_txg != 0 => {
            out.extend(bps.iter().filter(|bp| !bp.is_hole() && !bp.is_embedded()));
        }
        _ => {}
    }
}

/// Whether a record's data belongs to the log and not to the tree of blocks: it was claimed.
fn own_data(header: &ZilHeader, bp: &BlkPtr) -> bool {
    header.claim_txg != 0 && !bp.is_hole() && !bp.is_embedded() && bp.birth() >= header.claim_txg
}

/// The number of a block in its chain.
pub(super) fn seq_of(bp: &BlkPtr) -> u64 {
    bp.cksum()[ZIL_ZC_SEQ]
}

/// Reads the block that a record's data was written to.
pub(crate) async fn read_logged(
    store: &dyn BlockStore,
    bp: &BlkPtr,
    bookmark: Bookmark,
) -> Result<bytes::Bytes> {
    store.read(*bp, bookmark, Priority::SyncRead).await
}
