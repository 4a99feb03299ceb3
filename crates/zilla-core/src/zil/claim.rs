//! Claiming what a crash left in the logs of all datasets, in the first txg of an import.

use crate::dsl::{DslDataset, DslPool};
use crate::error::{Error, Result};
use crate::metaslab::Metaslabs;
use crate::types::{Bookmark, Txg};
use crate::zio::{BlockStore, Priority};
use std::collections::BTreeSet;
use std::sync::Arc;
use zilla_codec::checksum::Checksum;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::zil::{
    LogBlock, RecordBody, ZIL_CLAIM_LR_SEQ_VALID, ZIL_REPLAY_NEEDED, ZIL_ZC_SEQ, ZilHeader,
};

/// What walking a chain found.
#[derive(Default)]
struct Walked {
    blocks: u64,
    records: u64,
    last_block: u64,
    last_record: u64,
    /// Everything the log refers to that is not allocated yet: its own blocks, and data that was written in place.
    claims: Vec<BlkPtr>,
}

/// Claims the logs of all datasets of a pool that is being opened for writing; `txg` is its first.
pub async fn claim_all(dsl: &Arc<DslPool>, metaslabs: &Metaslabs, txg: Txg) -> Result<()> {
    let mut todo = vec![dsl.root_dir()];
    while let Some(dir) = todo.pop() {
        todo.extend(dsl.child_dirs(&dir).await?);
        let head = dsl.head(&dir).await?;
        if !head.phys().bp.is_hole() {
            claim(dsl, metaslabs, &head, txg).await?;
        }
    }
    Ok(())
}

async fn claim(dsl: &Arc<DslPool>, metaslabs: &Metaslabs, ds: &Arc<DslDataset>, txg: Txg) -> Result<()> {
    let objset = dsl.objset(ds).await?;
    let header = objset.phys().zil_header;
    if header.log.is_hole() || header.claim_txg != 0 {
        return Ok(());
    }
    if objset.is_encrypted() && header.log.birth() < txg.0 {
        // The empty beginning of a log that was closed well: nothing of it is unallocated.
        return Ok(());
    }
    if objset.is_encrypted() {
        let what = format!(
            "{}: the intent log of an encrypted dataset cannot be claimed; import read-only",
            ds.name()
        );
        return Err(Error::os(crate::error::Errno::NotSup, what));
    }
    let found = walk(&**objset.store(), &header, ds.id(), txg).await;
    for bp in &found.claims {
        for dva in bp.dvas() {
            metaslabs.claim_wait(txg, &dva).await?;
        }
    }
    objset.with_phys(|p| {
        let h = &mut p.zil_header;
        h.claim_txg = txg.0;
        h.claim_blk_seq = found.last_block;
        h.claim_lr_seq = found.last_record;
        h.flags |= ZIL_CLAIM_LR_SEQ_VALID;
        if found.records > 0 || found.blocks > 1 {
            h.flags |= ZIL_REPLAY_NEEDED;
        }
    });
    dsl.rewrite_root(ds);
    tracing::info!(dataset = %ds.name(), blocks = found.blocks, records = found.records, "intent log claimed");
    Ok(())
}

/// All blocks that a log consists of or refers to, allocated or not.
pub(crate) async fn chain(store: &dyn BlockStore, header: &ZilHeader, objset: u64) -> Vec<BlkPtr> {
    walk(store, header, objset, Txg(0)).await.claims
}

/// Follows a chain to its end. What cannot be read or does not continue the chain is the end: it was never acknowledged.
async fn walk(store: &dyn BlockStore, header: &ZilHeader, objset: u64, first: Txg) -> Walked {
    let mut out = Walked::default();
    let mut seen = BTreeSet::new();
    let mut bp = header.log;
    while !bp.is_hole() {
        let seq = bp.cksum()[ZIL_ZC_SEQ];
        // A chain that comes back to itself is no chain.
        if !seen.insert(bp.dva(0).to_words()) {
            break;
        }
        // The last block counts too, though nothing is in it: its space was allocated ahead, and is freed with the log.
        out.blocks += 1;
        out.last_block = seq;
        if bp.birth() >= first.0 {
            out.claims.push(bp);
        }
        let bookmark = Bookmark { objset, object: 0, level: -2, blkid: seq };
        let Ok(data) = store.read(bp, bookmark, Priority::SyncRead).await else { break };
        let zilog2 = bp.checksum_kind() == Checksum::Zilog2 as u8;
        let Ok(block) = LogBlock::parse(&data, bp.byteorder(), zilog2) else { break };
        if !records(store, &block, objset, first, &mut seen, &mut out).await {
            break;
        }
        let next = block.chain.next_blk;
        let (mut continues, cksum) = (bp.cksum(), next.cksum());
        continues[ZIL_ZC_SEQ] = continues[ZIL_ZC_SEQ].wrapping_add(1);
        if continues != cksum {
            break;
        }
        bp = next;
    }
    out
}

/// Notes the data blocks that records point to. False where the log ends within the block.
async fn records(
    store: &dyn BlockStore,
    block: &LogBlock<'_>,
    objset: u64,
    first: Txg,
    seen: &mut BTreeSet<[u64; 2]>,
    out: &mut Walked,
) -> bool {
    for record in block.records() {
        let Ok(record) = record else { return false };
        if let RecordBody::Write { object, blkptr, .. } = &record.body
            && !blkptr.is_hole()
            && !blkptr.is_embedded()
            && blkptr.birth() >= first.0
        {
            let bookmark = Bookmark { objset, object: *object, level: 0, blkid: 0 };
            // Written before the block it names: nobody was told that it is stable.
            if store.read(*blkptr, bookmark, Priority::SyncRead).await.is_err() {
                return false;
            }
            if seen.insert(blkptr.dva(0).to_words()) {
                out.claims.push(*blkptr);
            }
        }
        out.records += 1;
        out.last_record = record.header.seq;
    }
    true
}

/// Refuses what would make a log's records wrong when they are replayed later.
pub(crate) fn refuse_unreplayed(header: &ZilHeader, name: &str) -> Result<()> {
    if !super::needs_replay(header) {
        return Ok(());
    }
    Err(Error::os(
        crate::error::Errno::NotSup,
        format!(
            "{name} was in use when its machine stopped, and its intent log holds changes that zilla cannot replay yet; \
             import the pool with -o readonly=on to read the state before them, or mount it once with OpenZFS"
        ),
    ))
}
