//! Blocks of a txg that are written before its sync, because the intent log is to point to them.
//!
//! They are blocks like those that a sync writes ([`super::write`]): born in their txg, in memory
//! for readers, waited for by the txg's end. Two things differ. They are waited for by somebody
//! now, so they go out in the queue's class for that, and are flushed. And there is a way out, to
//! write them into the log instead: so what finds no single place, or needs none, is left to the
//! caller, and nothing here is an error.

use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;

use super::track::Batch;
use super::write::{
    Place, Placement, Prepared, checksum_of, class_of, copies_of, pointer, prepare, stretches,
};
use super::{AllocReq, Leave, Priority, WriteReq, Zio};
use crate::arc::{Block, Key};
use crate::crypt::Seal;
use crate::error::{Errno, Error, Result};
use crate::types::Txg;
use crate::vdev::Leaf;

/// Blocks on their way. While this is there their txg is not finished: a flush of them that fails
/// must be known to it.
#[derive(Default)]
pub struct EarlyWrites(Vec<Under>);

struct Under {
    zio: Zio,
    txg: Txg,
    batches: Vec<Arc<Batch>>,
    /// The leaves of all vdevs concerned, with the flush failures there had been before.
    leaves: Vec<(Arc<Leaf>, u64)>,
    vdevs: BTreeSet<u32>,
    missed: Vec<usize>,
}

impl Drop for Under {
    fn drop(&mut self) {
        self.zio.0.track.leave(self.txg, &self.missed);
    }
}

/// What became of a stretch of blocks.
#[derive(Default)]
struct Done {
    bps: Vec<Option<BlkPtr>>,
    placements: Vec<Placement>,
    blocks: Vec<(Key, Block)>,
}

impl Zio {
    pub(super) async fn write_early(
        &self,
        txg: Txg,
        reqs: Vec<WriteReq>,
        seal: Option<Seal>,
    ) -> (Vec<Option<BlkPtr>>, EarlyWrites) {
        // The same data may have to be written once more, by a replay, while these blocks are still
        // held by the log.
        let bytes: u64 = reqs.iter().map(|r| r.data.len() as u64 * u64::from(r.copies.clamp(1, 3))).sum();
        if reqs.is_empty() || !self.allocator().is_ok_and(|a| a.has_room(bytes, Leave::Half)) {
            return (vec![None; reqs.len()], EarlyWrites::default());
        }
        self.0.env.interlude().await;
        let tasks: Vec<_> = stretches(&reqs)
            .into_iter()
            .map(|range| {
                let (zio, part) = (self.clone(), reqs.get(range.clone()).unwrap_or_default().to_vec());
                let seal = seal.clone();
                let prepared = async move { prepare(&zio, txg, &part, zio.salt().as_deref(), seal.as_ref()) };
                (range, self.0.env.spawn_with_result(prepared))
            })
            .collect();
        let mut bps = Vec::with_capacity(reqs.len());
        self.0.track.enter(txg);
        let mut under = Under {
            zio: self.clone(),
            txg,
            batches: Vec::new(),
            leaves: Vec::new(),
            vdevs: BTreeSet::new(),
            missed: Vec::new(),
        };
        for (turn, (range, task)) in tasks.into_iter().enumerate() {
            let prepared = task.await;
            let done =
                self.place_early(txg, reqs.get(range).unwrap_or_default(), prepared, seal.as_ref()).await;
            bps.extend(done.bps);
            under.send(turn, done.placements, done.blocks).await;
        }
        (bps, EarlyWrites(vec![under]))
    }

    /// One stretch after the other: whichever core was done with its own first, neighbours in a
    /// file are neighbours on the disk, and the disk gets them in its order.
    async fn place_early(
        &self,
        txg: Txg,
        reqs: &[WriteReq],
        prepared: Vec<Result<Prepared>>,
        seal: Option<&Seal>,
    ) -> Done {
        let mut out = Done::default();
        for (req, prepared) in reqs.iter().zip(prepared) {
            let Ok(Prepared::Block { data, compress, cksum, sealed }) = prepared else {
                out.bps.push(None);
                continue;
            };
            let psize = data.len() as u64;
            let what = AllocReq::new(class_of(req, psize), psize, copies_of(req, seal));
            let Ok(Place::At(dvas)) = self.place_one(txg, what).await else {
                out.bps.push(None);
                continue;
            };
            let bp = pointer(txg, req, &dvas, psize, compress, checksum_of(req), cksum, sealed);
            if let Some(key) = Key::of(&bp) {
                let lsize = req.data.len() as u32;
                out.blocks.push((key, self.written(&bp, &req.bookmark, data.clone(), compress, lsize)));
            }
            out.placements.push(Placement { dvas: dvas.to_vec(), data });
            out.bps.push(Some(bp));
        }
        out
    }
}

impl Under {
    async fn send(&mut self, turn: usize, placements: Vec<Placement>, blocks: Vec<(Key, Block)>) {
        let tree = self.zio.tree();
        for vdev in placements.iter().flat_map(|p| p.dvas.iter().map(|d| d.vdev)) {
            if self.vdevs.insert(vdev)
                && let Ok(top) = tree.top(vdev)
            {
                self.leaves.extend(top.leaves().filter(|l| l.writable()).map(|l| (l.clone(), l.mark())));
            }
        }
        if !placements.is_empty() {
            let batch = self.zio.submit_blocks(self.txg, turn, placements, blocks, Priority::SyncWrite).await;
            self.batches.push(batch);
        }
    }

    async fn stable(&mut self) -> Result<()> {
        let mut missed: BTreeSet<usize> = self.batches.iter().flat_map(|b| b.missed()).collect();
        self.leaves.retain(|(l, _)| !missed.contains(&l.index));
        let flushes = self.leaves.iter().map(|(l, mark)| l.flush(*mark));
        let results = join_all(flushes).await;
        let failed = self.leaves.iter().zip(results).filter(|(_, r)| r.is_err());
        missed.extend(failed.map(|((l, _), _)| l.index));
        if missed.is_empty() {
            return Ok(());
        }
        self.leaves.retain(|(l, _)| !missed.contains(&l.index));
        self.missed = missed.into_iter().collect();
        let tree = self.zio.tree();
        for leaf in self.missed.iter().filter_map(|i| tree.leaves.get(*i)) {
            leaf.dtl.add(self.txg.0, self.txg.0 + 1);
        }
        tree.check_suspects().await;
        for vdev in &self.vdevs {
            if !tree.top(*vdev)?.survives(|l| self.leaves.iter().any(|(has, _)| has.index == l.index)) {
                let what = format!("vdev {vdev}: too few devices took blocks that the intent log points to");
                return Err(Error::os(Errno::Io, what));
            }
        }
        Ok(())
    }
}

impl EarlyWrites {
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|u| u.batches.is_empty())
    }

    /// Waits until the leaves have the blocks, though perhaps only in their caches.
    pub(super) async fn written(&self) {
        for batch in self.0.iter().flat_map(|u| &u.batches) {
            batch.wait().await;
        }
    }

    /// After that: makes them stable. An error if some could then not be read back.
    pub(super) async fn stable(mut self) -> Result<()> {
        let results = join_all(self.0.iter_mut().map(Under::stable)).await;
        results.into_iter().collect()
    }

    /// Waits for others as well.
    pub fn join(&mut self, mut other: EarlyWrites) {
        self.0.append(&mut other.0);
    }
}
