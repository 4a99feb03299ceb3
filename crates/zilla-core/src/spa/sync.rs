//! The sync task: one txg after another is made the pool.
//!
//! ```text
//!   reads that writes put off -> datasets' data -> sync tasks -> datasets again -> the log keeps what could not be written -> passes over the MOS until nothing changes -> wait for all writes
//!   -> passes again if a device's flush failed -> labels and uberblock -> what was deferred may be used again
//! ```
//!
//! The MOS describes the space that writing the MOS itself takes, hence the passes: each writes
//! down what the one before allocated. They end because from the second pass on a block born in
//! this txg is rewritten where it is, and what is freed goes to a list that the next txg frees
//! (`sync_bplist`); from the sixth pass on nothing is compressed, so that no block changes its size
//! any more.
//!
//! A crash anywhere before the uberblock leaves the last txg; the order of labels and uberblock is
//! `vdev/label_write.rs`'s. If devices fail the last steps these are taken again when the devices
//! are back (`suspend.rs`). An error before means that this txg can never be completed: the pool
//! stops taking changes and says so.

use super::Spa;
use super::config::{self, Identity};
use super::dtl::DtlFormat;
use crate::dsl::PoolSpace;
use crate::error::{Errno, Error, Result};
use crate::metaslab::SpaceClass;
use crate::tunables;
use crate::txg::{DeviceIo, Tx, history_is_kept, syncing};
use crate::types::Txg;
use crate::vdev::{ConfigFor, IoKind};
use futures_util::future::{Either, select};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zilla_codec::compress::CompressSpec;
use zilla_ondisk::enums::PoolState;
use zilla_ondisk::uberblock::{MMP_MAGIC, UBERBLOCK_MAGIC};
use zilla_ondisk::{BlkPtr, Uberblock};

/// The longest that a txg is left open, in seconds, whatever is set.
const LONGEST_TXG: u64 = 1 << 30;
/// How long a sync waits before it takes over work of commits that waits for its owners.
const PATIENCE: Duration = Duration::from_millis(100);
/// Room of its own that a block of the deduplication tables has to have if the other blocks' room
/// is not to be held for it: OpenZFS's 32K (`ddt_zap_default_bs`) in three copies.
const DEDUP_BLOCK_ROOM: u64 = 3 * (32 << 10);
const PASS_DEFERRED_FREE: u64 = 2;
const PASS_DONT_COMPRESS: u64 = 6;
/// Bytes that a table may be believed to save.
const MOST_SAVED: u64 = 1 << 60;
/// More passes than this mean that they do not converge.
const MAX_PASSES: u64 = 100;
/// After so many it is not written down any more whose flush failed.
const LAST_LATE_PASS: u64 = MAX_PASSES / 2;

/// Bytes that two tables say they save. They may say anything.
fn believed(deduplicated: u64, cloned: u64) -> u64 {
    deduplicated.min(MOST_SAVED) + cloned.min(MOST_SAVED)
}

impl Spa {
    /// Runs until the pool is closed or cannot be written any more.
    pub(super) async fn sync_loop(self: Arc<Self>) {
        loop {
            let most = Duration::from_secs(tunables::TXG_TIMEOUT.get().clamp(1, LONGEST_TXG));
            self.ctx.txgs.wait_for_work(most).await;
            let last = self.ctx.txgs.is_stopped();
            let hurried = self.ctx.log.take_over(&self.ctx.env);
            let txg = self.ctx.txgs.quiesce().await;
            drop(hurried);
            let begun = self.zio.tracer().begin();
            self.ctx.txgs.sync_begins(txg, self.device_io());
            match self.sync_to_the_end(txg).await {
                Ok(()) => {
                    self.zio.tracer().txg(txg.0, begun);
                    self.ctx.txgs.sync_ends(txg, self.device_io());
                    self.ctx.txgs.done(txg);
                }
                Err(e) => {
                    self.suspend_for_good(e);
                    break;
                }
            }
            if last {
                break;
            }
        }
        // Who waits behind work of a commit that nobody polls gets the error, too.
        drop(self.ctx.log.take_over(&self.ctx.env));
        self.sync_over.store(true, Ordering::Release);
        self.sync_ended.notify(usize::MAX);
    }

    /// Makes `txg` stable, however long that takes. What the sync waits for meanwhile may be work
    /// of a commit that nobody polls.
    async fn sync_to_the_end(self: &Arc<Self>, txg: Txg) -> Result<()> {
        let mut work = std::pin::pin!(syncing(self.sync_txg(txg)));
        loop {
            let patience = std::pin::pin!(self.ctx.env.sleep(PATIENCE));
            match select(work.as_mut(), patience).await {
                Either::Left((synced, _)) => return synced,
                Either::Right(_) => drop(self.ctx.log.take_over(&self.ctx.env)),
            }
        }
    }

    /// What all devices did so far, if the history of txgs is kept.
    fn device_io(&self) -> DeviceIo {
        if !history_is_kept() {
            return DeviceIo::default();
        }
        let stats = self.tree().root.stats();
        let of = |all: &[u64], kind: IoKind| all.get(kind as usize).copied().unwrap_or(0);
        DeviceIo {
            reads: of(&stats.ops, IoKind::Read),
            read_bytes: of(&stats.bytes, IoKind::Read),
            writes: of(&stats.ops, IoKind::Write),
            written_bytes: of(&stats.bytes, IoKind::Write),
        }
    }

    /// Makes `txg` stable.
    pub(super) async fn sync_txg(self: &Arc<Self>, txg: Txg) -> Result<()> {
        let tx = Tx::syncing(txg);
        let mos = self.ctx.mos();
        if self.ctx.is_frozen(txg) {
            crate::zil::push_out_all(&self.dsl).await?;
        }
        self.dsl.resolve_faults(txg);
        self.dsl.sync_datasets(&tx).await?;
        // What follows are the pool's own objects, for which the slop is left.
        self.ctx.txgs.placed(txg);
        let tasks = self.ctx.take_tasks(txg);
        if !tasks.is_empty() && !self.ctx.is_frozen(txg) {
            // A snapshot takes the dataset's root as it is: nothing may change it after that.
            self.dsl.keep_held(&tx).await?;
        }
        for task in tasks {
            let before = mos.changes();
            let failed = task(Tx::syncing(txg)).await;
            // What cannot be read was to be read first. Half of an operation must not be there with
            // this txg; all of the last one is.
            if let Some(e) = failed.filter(|e| matches!(e, Error::Corrupt(_)) && mos.changes() != before) {
                return Err(e);
            }
            self.dsl.sync_datasets(&tx).await?;
        }
        for event in self.ctx.take_events() {
            // A history that cannot be written is no reason to stop the pool.
            if let Err(e) = self.append_history(&tx, event).await {
                tracing::warn!(pool = %self.name(), error = %e, "what was done is not in the history");
            }
        }
        if self.dsl.process_async_frees(&tx).await? {
            self.ctx.txgs.hurry();
        }
        self.sync_hooks(&tx).await?;
        self.dsl.sync_dirs(&tx).await?;
        let config_dirty = self.config_dirty.swap(false, Ordering::AcqRel);
        let changed =
            config_dirty || mos.is_dirty(txg) || self.ctx.has_frees(txg) || self.metaslabs.is_dirty(txg);
        // (Entries of deduplication tables go from the logs to the ZAPs also alone.)
        if !changed && !self.ddt.has_work(&tx) {
            // Nothing happened: the last uberblock says it all. Deferred space still moves on.
            // (Who was turned away changed nothing, but left an estimate.)
            self.dsl.forget_estimates(txg);
            // It is no pass: what is asked to be flushed since goes into a MOS that is written.
            self.metaslabs.sync(mos, txg, 0).await?;
            // What a task has read may have waited for devices all the same.
            if self.resumed() {
                self.condense_on();
            }
            self.settle_scan().await;
            return self.space_done(txg);
        }
        let frozen = self.ctx.is_frozen(txg);
        if !frozen {
            self.dsl.keep_held(&tx).await?;
        }
        // Before anything is freed: what this txg clones may lose its first owner in it.
        let clones = self.ctx.take_clones();
        self.brt.reference(&self.ctx, &self.tree(), &tx, &clones).await?;
        if !frozen {
            self.free_deferred(&tx).await?;
        }
        self.tree().note_away(txg);
        let mut pass = self.passes(&tx, 1, config_dirty).await?;
        tracing::debug!(pool = %self.name(), %txg, passes = pass, "written");
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::UberblockEarly) {
            self.tree().sync_labels(&self.make_uberblock(txg), None, None).await?;
        }
        let mut once_more = self.suspension.take_resumed();
        if self.tree().may_lack(txg) {
            self.retreat_expansion();
            self.zio.resend_txg(txg).await;
        }
        let mut tried = false;
        loop {
            let stable = match self.zio.wait_txg(txg).await {
                // A flush failed: who misses something is written down before the uberblock is. Not
                // after one was tried: it may be on a device, and a txg has one root.
                Ok(()) if !tried && self.tree().is_untold(txg) && !frozen && pass < LAST_LATE_PASS => {
                    pass = self.passes(&tx, pass + 1, config_dirty).await?;
                    continue;
                }
                Ok(()) => {
                    tried = true;
                    self.make_stable(txg, config_dirty).await
                }
                Err(e) => Err(e),
            };
            let Err(e) = stable else { break };
            if !std::mem::take(&mut once_more) {
                self.suspend(e).await?;
            }
            // What was moved is not sent again.
            self.retreat_expansion();
            self.zio.resend_txg(txg).await;
        }
        self.zio.settle_txg(txg);
        if self.resumed() {
            self.condense_on();
        }
        self.dsl.sync_done(txg);
        self.settle_scan().await;
        self.space_done(txg)
    }

    /// The txg is on disk: what it and those before it freed may be given out when it is time.
    fn space_done(&self, txg: Txg) -> Result<()> {
        self.metaslabs.note_clones_logged(self.ctx.clones_logged());
        self.metaslabs.sync_done(txg)?;
        if let Some(task) = self.metaslabs.read_again(txg) {
            self.ctx.env.spawn(task);
        }
        self.update_space()
    }

    /// Makes a txg whose writes are stable the pool. May be done again if it fails.
    async fn make_stable(&self, txg: Txg, config_dirty: bool) -> Result<()> {
        // Who gave a suspended pool up meanwhile keeps the last txg that was whole.
        self.not_given_up()?;
        if self.heart.lease.is_lost() {
            return Err(super::suspend::lost_lease());
        }
        let mut ub = self.make_uberblock(txg);
        let expansion = match self.tree().expanding() {
            Some(_) if !self.ctx.is_frozen(txg) => {
                // What was moved must be there before the uberblock says so.
                let sampled = self.expansion_now();
                self.tree().flush_all(txg.0).await?;
                self.expansion_in(sampled, &mut ub)
            }
            _ => None,
        };
        let labels =
            config_dirty.then(|| config::pool_part(&self.identity(txg), &self.ctx.features.for_labels()));
        if self.ctx.is_frozen(txg) {
            self.tree().flush_all(txg.0).await?;
        } else {
            self.heart.mark(&mut ub);
            let trying = || self.heart.trying(&ub);
            let beats = self.heart.is_on().then_some(&trying as &(dyn Fn() + Send + Sync));
            self.tree().sync_labels(&ub, labels.as_ref(), beats).await?;
            self.heart.synced(&ub, labels.is_some());
        }
        if let Some((reflow, at)) = expansion {
            reflow.was_written(at);
        }
        *self.uberblock.lock() = ub;
        Ok(())
    }

    /// Tells the datasets how much space there is.
    pub(super) fn update_space(&self) -> Result<()> {
        let normal = self.metaslabs.class_stat(SpaceClass::Normal);
        let deferred_frees = match &self.deferred {
            Some(list) => list.space()?.used,
            None => 0,
        };
        // As in OpenZFS tables lie on special vdevs where there are none of their own.
        let of = |class| self.metaslabs.class_stat(class);
        let tables = [SpaceClass::Dedup, SpaceClass::Special].map(of).into_iter().find(|s| s.space > 0);
        self.ddt.note_room(tables.map_or((0, 0), |s| (s.space, s.alloc)));
        let dedup = self.ddt.blocks();
        let apart =
            tables.is_some_and(|s| s.space.saturating_sub(s.alloc) > dedup.saturating_mul(DEDUP_BLOCK_ROOM));
        self.ctx.txgs.set_tables(self.brt.blocks(), if apart { 0 } else { dedup });
        let saved = believed(self.ddt.stats().saved(), self.brt.used_and_saved().1);
        let dspace = normal.dspace.saturating_add(saved);
        self.dsl.set_pool_space(PoolSpace {
            // What clones and deduplication save counts as space: its owners count it as used.
            dspace: dspace.saturating_sub(self.to_be_moved()),
            slop: self.metaslabs.slop(),
            deferred: normal.ddeferred,
            deferred_frees,
            checkpoint: self.metaslabs.checkpoint_dspace(),
        });
        Ok(())
    }

    /// What lies on a vdev that is being emptied: it takes that much of the others' space.
    fn to_be_moved(&self) -> u64 {
        if !self.is_removing() {
            return 0;
        }
        let tree = self.tree();
        let id = u32::try_from(self.removing().removing_vdev);
        let top = id.ok().and_then(|id| tree.top(id).ok()).filter(|t| t.vdev.bias().is_none());
        top.and_then(|t| self.metaslabs.vdev_stat(t.id).ok()).map_or(0, |s| s.dalloc)
    }

    /// Passes over the MOS, the first of them the `first`, until one changes nothing: its number.
    async fn passes(self: &Arc<Self>, tx: &Tx, first: u64, config_dirty: bool) -> Result<u64> {
        let mos = self.ctx.mos();
        let (props, mut pass) = (mos.props(), first);
        loop {
            if pass == first.max(PASS_DONT_COMPRESS) {
                let mut plain = props;
                plain.metadata_compress = CompressSpec::OFF;
                plain.compress = CompressSpec::OFF;
                mos.set_props(plain);
            }
            // Also others than this txg's writes find out that a device lacks something, a resilver
            // again and again. The passes come to an end all the same: what is late is the next
            // txg's to write down, but for what this one's flushes have lost.
            let in_time = pass < PASS_DONT_COMPRESS || pass == first;
            let more = self.pass(tx, pass, config_dirty, in_time).await;
            if !matches!(more, Ok(true)) || pass == MAX_PASSES {
                mos.set_props(props);
            }
            if !more? {
                return Ok(pass);
            }
            if pass == MAX_PASSES {
                return Err(Error::os(Errno::Io, format!("txg {} does not converge", tx.txg())));
            }
            pass += 1;
        }
    }

    /// One pass over the MOS; whether another is needed. `in_time`: DTLs that changed are written.
    async fn pass(self: &Arc<Self>, tx: &Tx, pass: u64, config_dirty: bool, in_time: bool) -> Result<bool> {
        let (txg, mos) = (tx.txg(), self.ctx.mos());
        if pass == 1 && config_dirty {
            self.write_config(tx).await?;
        }
        let mut frees = self.ctx.take_frees(txg);
        if self.ctx.is_frozen(txg) {
            // What the uberblock on disk leads to stays as it is.
            frees.clear();
        }
        if pass < PASS_DEFERRED_FREE {
            self.free(tx, &frees).await?;
        } else if !frees.is_empty() {
            self.defer(tx, &frees).await?;
        }
        let gone = self.ddt.sync(tx, pass == 1).await?;
        self.free_unshared(tx, gone.into()).await?;
        let tree = self.tree();
        if in_time && tree.dtls_dirty() {
            let histogram = self.ctx.features.is_enabled("spacemap_histogram");
            let how = DtlFormat { v2: self.ctx.features.is_enabled("spacemap_v2"), histogram };
            let fresh = tree.sync_dtls(mos, tx, pass, how).await?;
            if fresh > 0 {
                if histogram {
                    self.ctx.features.add(mos, tx, "spacemap_histogram", fresh).await?;
                }
                // The labels say it too: those of this txg if it writes any, else of the next.
                self.write_config(tx).await?;
                self.config_dirty.fetch_or(!config_dirty, Ordering::AcqRel);
            }
        }
        if pass == 1
            && self.leaving.load(Ordering::Acquire)
            && let Some(scan) = self.scan.get()
        {
            scan.leaves(tx).await?;
        }
        self.ctx.take_obsolete().iter().for_each(|dva| self.metaslabs.now_obsolete(dva));
        if self.metaslabs.sync_obsolete(mos, tx, pass).await? {
            self.condense_on();
        }
        self.sync_removing(tx).await?;
        self.metaslabs.sync(mos, txg, pass).await?;
        let counts = self.metaslabs.take_feature_counts();
        for (name, delta) in [
            ("spacemap_histogram", counts.spacemap_histogram),
            ("log_spacemap", counts.log_spacemap),
            ("obsolete_counts", counts.obsolete_counts),
        ] {
            if delta != 0 {
                self.ctx.features.add(mos, tx, name, delta).await?;
            }
        }
        if mos.is_dirty(txg) {
            let root = *self.mos_root.lock();
            let out = mos.sync(txg, root).await?;
            *self.mos_root.lock() = out.root;
            self.dsl.mos_synced(&out);
            out.killed.iter().for_each(|bp| self.ctx.free(bp));
        }
        let missed = in_time && pass < PASS_DONT_COMPRESS && tree.dtls_dirty();
        Ok(self.ctx.has_frees(txg) || self.metaslabs.is_dirty(txg) || mos.is_dirty(txg) || missed)
    }

    async fn write_config(&self, tx: &Tx) -> Result<()> {
        let id = self.identity(tx.txg());
        let nv = config::generate(&id, &self.ctx, &self.tree(), ConfigFor::Mos, self.has_vdev_zaps());
        config::write_packed(self.ctx.mos(), tx, self.config_object, &nv).await
    }

    /// Frees what the txg before put off.
    async fn free_deferred(&self, tx: &Tx) -> Result<()> {
        if let Some(list) = &self.deferred {
            while !list.is_empty()? {
                let some = self.dsl.pop_bpobj(list, tx, 1 << 16).await?;
                self.free(tx, &some).await?;
            }
        }
        Ok(())
    }

    async fn defer(&self, tx: &Tx, frees: &[BlkPtr]) -> Result<()> {
        match &self.deferred {
            Some(list) => self.dsl.push_bpobj(list, tx, frees).await,
            None => self.free(tx, frees).await,
        }
    }

    /// Gives blocks back, as far as nothing else refers to them.
    async fn free(&self, tx: &Tx, bps: &[BlkPtr]) -> Result<()> {
        let mut unshared = self.brt.release(&self.ctx, &self.tree(), tx, bps).await?;
        let scan = self.ctx.scan();
        if let Some(scan) = scan.as_ref().filter(|_| unshared.len() < bps.len()) {
            // They are in the order of all.
            let mut gone = unshared.iter().peekable();
            let cloned = bps.iter().filter(|bp| gone.next_if(|g| g == bp).is_none());
            cloned.for_each(|bp| scan.outlives(bp));
        }
        let counted: Vec<BlkPtr> = unshared.iter().filter(|bp| bp.dedup()).copied().collect();
        if !counted.is_empty() {
            let own = self.ddt.release(&counted, |bp| scan.iter().for_each(|s| s.outlives(bp))).await;
            let rest = unshared.to_mut();
            rest.retain(|bp| !bp.dedup());
            rest.extend(own);
        }
        self.free_unshared(tx, unshared).await
    }

    /// Gives back blocks that nothing refers to any more.
    async fn free_unshared(&self, tx: &Tx, unshared: Cow<'_, [BlkPtr]>) -> Result<()> {
        #[cfg(feature = "planted")]
        let mut unshared = unshared;
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::FreedBlocksKept) {
            unshared.to_mut().retain(|bp| bp.dva(0).offset >> 12 & 7 != 3);
        }
        // What others still refer to is scanned on.
        if let Some(scan) = self.ctx.scan() {
            unshared.iter().for_each(|bp| scan.freed(bp));
        }
        self.zio.free(tx.txg(), &unshared).await
    }

    pub(super) fn identity(&self, txg: Txg) -> Identity {
        let st = self.state.lock();
        Identity {
            name: st.disk_name.as_ref().unwrap_or(&st.name).clone(),
            version: self.version(),
            state: st.state,
            txg,
            guid: self.ctx.guid(),
            errata: self.dsl.errata(),
            host: st.host.clone(),
            comment: st.comment.clone(),
            compatibility: st.compatibility.clone(),
            splitting: st.splitting.clone(),
            split_from: st.split_from,
        }
    }

    fn make_uberblock(&self, txg: Txg) -> Uberblock {
        Uberblock {
            magic: UBERBLOCK_MAGIC,
            version: self.version(),
            txg: txg.0,
            guid_sum: self.tree().guid_sum(),
            timestamp: self.ctx.env.clock.wall().as_secs(),
            rootbp: *self.mos_root.lock(),
            software_version: config::SPA_VERSION,
            mmp_magic: MMP_MAGIC,
            ..Uberblock::default()
        }
    }

    /// Closes the pool: everything is synced; with `state`, the labels say so (exported,
    /// destroyed).
    #[crate::boxed]
    pub async fn close(self: &Arc<Self>, state: Option<PoolState>) -> Result<()> {
        {
            let over = std::pin::pin!(async {
                self.pause_removal().await;
                self.pause_condensing().await;
                self.pause_upkeep().await;
                self.pause_rebuilds().await;
                self.pause_expansion().await;
            });
            let suspended = std::pin::pin!(self.suspension.happens());
            select(over, suspended).await;
        }
        if let Some(scan) = self.scan.get() {
            let over = std::pin::pin!(scan.shutdown());
            let suspended = std::pin::pin!(self.suspension.happens());
            if let Either::Right((_, over)) = select(over, suspended).await {
                // The txgs that it waits for will not come.
                self.abandon();
                over.await;
            }
        }
        self.leaving.store(true, Ordering::Release);
        if !self.ctx.readonly && self.suspended().is_none() {
            if let Some(s) = state {
                self.state.lock().state = s;
                if tunables::KEEP_LOG_SPACEMAPS_AT_EXPORT.get() == 0 {
                    self.metaslabs.request_flush_all();
                }
                self.config_dirty.store(true, Ordering::Release);
            }
            let txg = self.ctx.txgs.open();
            let synced = std::pin::pin!(self.ctx.txgs.wait_synced(txg));
            let suspended = std::pin::pin!(self.suspension.happens());
            // Who closes a pool whose devices fail is told, and not kept waiting.
            if let Either::Left((result, _)) = select(synced, suspended).await {
                result?;
            }
        }
        self.abandon();
        self.ctx.txgs.stop();
        if !self.ctx.readonly {
            loop {
                let listener = self.sync_ended.listen();
                if self.sync_over.load(Ordering::Acquire) {
                    break;
                }
                listener.await;
            }
        }
        self.heart.end().await;
        crate::inject::injections().forget_pool(self.tree().root.guid);
        self.closed.store(true, Ordering::Release);
        self.zio.forget_writes();
        self.zio.l2().shutdown().await;
        self.tree().close().await;
        match self.suspended() {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_SAVED, believed};

    #[test]
    fn tables_are_believed_within_reason() {
        assert_eq!(believed(5, 7), 12);
        assert_eq!(believed(u64::MAX, 1), MOST_SAVED + 1);
        assert_eq!(believed(u64::MAX, u64::MAX), 2 * MOST_SAVED);
    }
}
