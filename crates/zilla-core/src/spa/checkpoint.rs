//! The pool's checkpoint: its whole state at one moment, to which an import may go back.
//!
//! On disk it is an uberblock in the MOS's directory (`com.delphix:zpool_checkpoint`), the last one
//! before the txg that takes it. What it leads to stays, because blocks that were there then are
//! kept when they are freed (`metaslab/checkpoint.rs`).
//!
//! *Going back* is an import as of that uberblock, which is written to the labels as the newest
//! before anything else is: from then on there is no other state. What was done since is gone
//! without being freed, for the space maps go back too. Intent logs end there: what they went on
//! with was not kept ([`crate::zil::Claim`]).
//!
//! *Discarding* takes the uberblock out of the directory, so that nothing can go back any more, and
//! then frees what was kept, a part in each txg. The feature stays active until the end; so an
//! import knows that there is something left to do.
//!
//! **Crash.** Taking it, and each step of discarding, is one txg. Going back is one write of an
//! uberblock: before it the pool is what it was.

use super::open::DIRECTORY;
use super::vdev_objects::top_zap;
use super::{PoolCtx, Refusal, Spa, config};
use crate::dsl::Space;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::{ObjectId, Txg};
use crate::vdev::Top;
use crate::zap::{Value, Zap};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use zilla_ondisk::dsl::DMU_POOL_ZPOOL_CHECKPOINT;
use zilla_ondisk::{Field, Phys, Uberblock};

const FEATURE: &str = "zpool_checkpoint";
/// Uberblocks of software that knows no RAID-Z expansion lack the last number.
const WORDS_WITHOUT_REFLOW: usize = Uberblock::SIZE / 8 - 1;
/// A step that failed is tried again after a while.
const AGAIN: Duration = Duration::from_secs(5);
/// So long, if its list cannot be read: a device that is away may come back with a good copy. Then
/// what cannot be read of it is given up, from there on. As long as trees that are destroyed are
/// waited for (`dsl/bptree.rs`).
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// What is known of it.
#[derive(Clone, Copy, Default)]
pub(super) enum Checkpoint {
    #[default]
    None,
    Exists {
        txg: Txg,
        time: u64,
    },
    Discarding,
}

/// What is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointStat {
    /// When it was taken; None: it is being discarded.
    pub taken: Option<u64>,
    /// Bytes that only it has.
    pub space: u64,
}

/// The uberblock that is kept, if there is one.
pub(super) async fn read(directory: &Zap) -> Result<Option<Uberblock>> {
    let Some(value) = directory.try_get(DMU_POOL_ZPOOL_CHECKPOINT).await? else { return Ok(None) };
    let bad = |what: String| Error::corrupt(None, "the pool's checkpoint", what);
    let mut words = value.as_u64s().unwrap_or_default();
    if words.len() < WORDS_WITHOUT_REFLOW {
        return Err(bad(format!("{} numbers are no uberblock", words.len())));
    }
    words.resize(Uberblock::SIZE / 8, 0);
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    let (ub, _) = Uberblock::decode_slot(&bytes).map_err(|e| bad(e.to_string()))?;
    if ub.txg == 0 || ub.checkpoint_txg != ub.txg {
        return Err(bad(format!("txg {}, kept as of txg {}", ub.txg, ub.checkpoint_txg)));
    }
    Ok(Some(ub))
}

impl Checkpoint {
    pub(super) async fn load(ctx: &PoolCtx, directory: &Zap) -> Result<Checkpoint> {
        Ok(match read(directory).await? {
            Some(ub) => Checkpoint::Exists { txg: Txg(ub.txg), time: ub.timestamp },
            None if ctx.features.is_active(FEATURE) => Checkpoint::Discarding,
            None => Checkpoint::None,
        })
    }

    /// What was born later is not kept.
    pub(super) fn txg(self) -> Txg {
        match self {
            Checkpoint::Exists { txg, .. } => txg,
            _ => Txg(0),
        }
    }
}

/// Bits of a space map's old entries for an offset, in sectors. Source: SM_OFFSET_BITS in
/// sys/space_map.h.
const OLD_OFFSET_BITS: u32 = 47;

impl Spa {
    pub fn checkpoint_stat(&self) -> Option<CheckpointStat> {
        let taken = match *self.checkpoint.lock() {
            Checkpoint::None => return None,
            Checkpoint::Exists { time, .. } => Some(time),
            Checkpoint::Discarding => None,
        };
        Some(CheckpointStat { taken, space: self.metaslabs.checkpoint_space() })
    }

    /// Whether there is one, or some of one that was.
    pub(super) fn has_checkpoint(&self) -> bool {
        !matches!(*self.checkpoint.lock(), Checkpoint::None)
    }

    /// Refuses what could not be undone by going back.
    pub(super) fn check_no_checkpoint(&self) -> Result<()> {
        match *self.checkpoint.lock() {
            Checkpoint::None => Ok(()),
            Checkpoint::Exists { .. } => Err(Refusal::CheckpointExists.into()),
            Checkpoint::Discarding => Err(Refusal::DiscardingCheckpoint.into()),
        }
    }

    /// Takes a checkpoint, with everything that was done so far.
    #[crate::boxed]
    pub async fn take_checkpoint(self: &Arc<Self>) -> Result<()> {
        self.check_writable()?;
        if !self.ctx.features.is_enabled(FEATURE) {
            return Err(Error::os(Errno::NotSup, format!("feature {FEATURE} is not enabled in this pool")));
        }
        let _changing = self.changing.lock().await;
        self.check_no_checkpoint()?;
        if self.is_removing() {
            return Err(Refusal::Removing.into());
        }
        if self.is_expanding() {
            return Err(Refusal::Expanding.into());
        }
        let concrete = |t: &&Top| t.vdev.is_concrete();
        if self.tree().tops.iter().filter(concrete).any(|t| top_zap(&t.vdev) == ObjectId(0)) {
            let what = "the pool's vdevs have no ZAPs, which checkpoints need";
            return Err(Error::os(Errno::NotSup, what));
        }
        let addressable =
            |t: &Top| t.vdev.asize().checked_shr(t.vdev.ashift() + OLD_OFFSET_BITS).unwrap_or(0) == 0;
        if !self.ctx.features.is_enabled("spacemap_v2") && !self.tree().tops.iter().all(addressable) {
            return Err(Error::os(
                Errno::Overflow,
                "a vdev has more than space maps of the old form can tell of",
            ));
        }
        // The uberblock that is kept is the one before the txg that keeps it.
        self.sync().await?;
        let spa = self.clone();
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                spa.check_no_checkpoint()?;
                let mut ub = spa.uberblock();
                (ub.checkpoint_txg, ub.timestamp) = (ub.txg, spa.ctx.env.clock.wall().as_secs());
                let words: Vec<u64> =
                    ub.encode().as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
                let mos = spa.ctx.mos();
                let directory = Zap::open(mos, DIRECTORY).await?;
                directory.insert(&tx, DMU_POOL_ZPOOL_CHECKPOINT, &Value::u64s(&words)).await?;
                spa.ctx.features.add(mos, &tx, FEATURE, 1).await?;
                let txg = Txg(ub.txg);
                spa.metaslabs.set_checkpoint(txg);
                *spa.checkpoint.lock() = Checkpoint::Exists { txg, time: ub.timestamp };
                spa.ctx.note_internal(
                    tx.txg(),
                    "spa checkpoint",
                    format!("checkpointed uberblock txg={txg}"),
                );
                Ok(())
            })
        };
        self.ctx.sync_task(task).await
    }

    /// Gives the checkpoint up. Returns when nothing can go back to it any more; what it kept is
    /// freed in the background.
    #[crate::boxed]
    pub async fn discard_checkpoint(self: &Arc<Self>) -> Result<()> {
        self.check_writable()?;
        let spa = self.clone();
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                match *spa.checkpoint.lock() {
                    Checkpoint::None => return Err(Refusal::NoCheckpoint.into()),
                    Checkpoint::Discarding => return Err(Refusal::DiscardingCheckpoint.into()),
                    Checkpoint::Exists { .. } => {}
                }
                let directory = Zap::open(spa.ctx.mos(), DIRECTORY).await?;
                directory.delete(&tx, DMU_POOL_ZPOOL_CHECKPOINT).await?;
                spa.metaslabs.set_checkpoint(Txg(0));
                *spa.checkpoint.lock() = Checkpoint::Discarding;
                let what = "started discarding checkpointed state from the pool";
                spa.ctx.note_internal(tx.txg(), "spa discard checkpoint", what);
                Ok(())
            })
        };
        self.ctx.sync_task(task).await?;
        self.go_on_discarding();
        Ok(())
    }

    /// Frees, in the background, what a checkpoint kept that was discarded.
    pub(super) fn go_on_discarding(self: &Arc<Self>) {
        if !matches!(*self.checkpoint.lock(), Checkpoint::Discarding) {
            return;
        }
        let (weak, env) = (Arc::downgrade(self), self.ctx.env.clone());
        self.ctx.env.spawn(async move {
            let (mut since, mut give_up) = (None, false);
            loop {
                let Some(spa) = weak.upgrade().filter(|s| !s.ctx.txgs.is_stopped()) else { return };
                match spa.discard_step(give_up).await {
                    Ok(true) => since = None,
                    Ok(false) => {
                        // What only it had was not resilvered.
                        if let Err(e) = spa.catch_up().await {
                            tracing::warn!(pool = %spa.name(), "devices that are behind: {e}");
                        }
                        return;
                    }
                    Err(e) => {
                        if since.is_none() {
                            tracing::warn!(pool = %spa.name(), "discarding the checkpoint: {e}");
                        }
                        let now = env.now();
                        let waited = now.saturating_sub(*since.get_or_insert(now));
                        give_up |= matches!(e, Error::Corrupt(_)) && waited >= PATIENCE;
                        drop(spa);
                        env.sleep(AGAIN).await;
                    }
                }
            }
        });
    }

    /// Whether there is more to do.
    async fn discard_step(self: &Arc<Self>, give_up: bool) -> Result<bool> {
        let spa = self.clone();
        let task = move |tx: Tx| -> BoxFuture<'static, Result<bool>> {
            Box::pin(async move {
                let mos = spa.ctx.mos();
                // What is lost is counted there, when it is too late to fail.
                spa.dsl.leaked().await?;
                let step = spa.metaslabs.discard_checkpoint(mos, &tx, give_up).await?;
                if step.lost > 0 {
                    spa.dsl.count_lost(&tx, Space { used: step.lost, ..Space::default() }).await?;
                    let what = format!("{} bytes stay allocated, as their list is damaged", step.lost);
                    spa.ctx.note_internal(tx.txg(), "spa discard checkpoint", what);
                }
                if step.more {
                    return Ok(true);
                }
                spa.ctx.features.add(mos, &tx, FEATURE, -1).await?;
                *spa.checkpoint.lock() = Checkpoint::None;
                let what = "finished discarding checkpointed state from the pool";
                spa.ctx.note_internal(tx.txg(), "spa discard checkpoint", what);
                Ok(false)
            })
        };
        self.ctx.sync_task(task).await
    }

    /// Makes the checkpoint that the pool goes back to its newest state, before anything is
    /// written.
    pub(super) async fn make_newest(&self, ub: &Uberblock) -> Result<()> {
        let pool = config::pool_part(&self.identity(Txg(ub.txg)), &self.ctx.features.for_labels());
        let mut ub = *ub;
        self.heart.mark(&mut ub);
        let trying = || self.heart.trying(&ub);
        let beats = self.heart.is_on().then_some(&trying as &(dyn Fn() + Send + Sync));
        self.tree().sync_labels(&ub, Some(&pool), beats).await?;
        self.heart.synced(&ub, true);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uberblock_is_so_many_numbers() {
        // sizeof (uberblock_t) / sizeof (uint64_t) in OpenZFS 2.3.
        assert_eq!((Uberblock::SIZE / 8, WORDS_WITHOUT_REFLOW), (27, 26));
        let ub =
            Uberblock { magic: zilla_ondisk::uberblock::UBERBLOCK_MAGIC, txg: 7, ..Uberblock::default() };
        assert_eq!(Uberblock::decode_slot(&ub.encode()).unwrap().0, ub);
    }
}
