//! The pool as its scrub sees it, and the pool's part in the scrub.

use super::open::{space_features, vdev_specs};
use super::{PoolCtx, Spa};
use crate::dmu::{DbufCache, Objset};
use crate::dsl::Waiting;
use crate::error::{Errno, Error, Result};
use crate::memory::{self, Memory};
use crate::metaslab::{Metaslabs, SpaceClass};
use crate::scan::{ErrLog, Scan, ScanPool, SpaceReport, check_space};
use crate::tunables::SCAN_MEM_LIM_FACT;
use crate::txg::Tx;
use crate::types::{Bookmark, Txg};
use crate::vdev::Tickets;
use crate::zap::Zap;
use futures_util::future::BoxFuture;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use zilla_ondisk::dsl::DMU_POOL_DIRECTORY_OBJECT;
use zilla_ondisk::enums::ScanState;
use zilla_ondisk::{BlkPtr, NvList};

/// A round has as much, however little memory there is: some thousands of blocks.
const LEAST_MEMORY: u64 = 1 << 20;

/// Weak, because the pool owns its scan.
struct Scanned(Weak<Spa>);

impl ScanPool for Scanned {
    fn mos_root(&self) -> BlkPtr {
        // That of the uberblock: passes of the txg being synced write over each other's blocks.
        self.0.upgrade().map_or(BlkPtr::ZERO, |spa| spa.uberblock().rootbp)
    }

    fn opened_at(&self) -> Txg {
        self.0.upgrade().map_or(Txg(0), |spa| Txg(spa.opened_at().txg))
    }

    fn allocated(&self) -> u64 {
        let Some(spa) = self.0.upgrade() else { return 0 };
        let tops = spa.tree();
        tops.tops.iter().filter_map(|t| spa.metaslabs.vdev_stat(t.id).ok()).map(|s| s.alloc).sum()
    }

    fn memory(&self) -> BoxFuture<'_, u64> {
        Box::pin(async move {
            let env = self.0.upgrade().map(|spa| spa.ctx.env.clone());
            let known = match env {
                Some(env) => memory::read(&*env.opener).await,
                None => None,
            };
            // Where nothing is known of it, as a small machine has.
            let m = known.unwrap_or(Memory { total: 8 << 30, available: 8 << 30 });
            (m.total / SCAN_MEM_LIM_FACT.get().max(1)).min(m.available / 4).max(LEAST_MEMORY)
        })
    }

    fn scrub(&self, bp: BlkPtr, at: Bookmark, tickets: Arc<Tickets>) -> BoxFuture<'_, Result<(u64, u64)>> {
        let spa = self.0.upgrade();
        Box::pin(async move {
            let spa = spa.ok_or_else(|| Error::os(Errno::Canceled, "the pool is closed"))?;
            let found = spa.zio.scrub_for(bp, at, &tickets).await?;
            Ok((found.bytes, found.repaired_bytes))
        })
    }

    fn missing(&self) -> Option<(Txg, Txg)> {
        self.0.upgrade()?.tree().missing().map(|(first, last)| (Txg(first), Txg(last)))
    }

    fn resilver_begins(&self, max_txg: Txg, resumed: bool) {
        let Some(spa) = self.0.upgrade() else { return };
        match resumed {
            false => spa.tree().begin_resilver(max_txg.0),
            true => spa.tree().resume_resilver(max_txg.0),
        }
    }

    fn lacks(&self, bp: &BlkPtr) -> bool {
        self.0.upgrade().is_some_and(|spa| spa.tree().lacks(bp))
    }

    fn unreadable(&self, bp: Option<&BlkPtr>) {
        if let Some(spa) = self.0.upgrade() {
            spa.tree().not_resilvered(bp);
        }
    }

    fn resilver_ends(&self, complete: bool, max_txg: Txg) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(spa) = self.0.upgrade() else { return };
            // What only the checkpoint has was not given to them; nor were copies of a vdev that is
            // being emptied, which are read from there as long as it is there.
            if spa.has_checkpoint() || spa.removing().state == ScanState::Scanning as u64 {
                spa.tree().not_resilvered(None);
            }
            if spa.tree().end_resilver(complete, max_txg.0).await {
                spa.config_dirty.store(true, Ordering::Release);
            }
        })
    }

    fn is_suspended(&self) -> bool {
        self.0.upgrade().is_some_and(|spa| spa.suspended().is_some())
    }

    fn shares_blocks(&self) -> bool {
        self.0.upgrade().is_some_and(|spa| spa.brt.is_used() || spa.ddt.is_used())
    }

    fn waiting(&self) -> BoxFuture<'_, Result<Waiting>> {
        Box::pin(async move {
            match self.0.upgrade() {
                Some(spa) => spa.dsl.waiting().await,
                None => Err(Error::os(Errno::Canceled, "the pool is closed")),
            }
        })
    }

    fn is_rebuilding(&self) -> bool {
        self.0.upgrade().is_some_and(|spa| spa.is_rebuilding())
    }

    fn notify(&self, what: &str) {
        let Some(spa) = self.0.upgrade() else { return };
        let mut more = NvList::new();
        if what.starts_with("resilver") {
            more.add("resilver_type", "healing");
        }
        spa.post(&format!("sysevent.fs.zfs.{what}"), None, &more);
    }

    fn resilvered(&self) {
        let Some(spa) = self.0.upgrade() else { return };
        let env = spa.ctx.env.clone();
        env.spawn(async move { spa.resilvered().await });
    }
}

impl Spa {
    /// Opens the pool's scan; one that was under way goes on.
    pub(super) async fn open_scan(self: &Arc<Self>) -> Result<()> {
        let scan = Scan::open(&self.ctx, Arc::new(Scanned(Arc::downgrade(self)))).await?;
        self.ctx.set_scan(&scan);
        let fresh = self.scan.set(scan).is_ok();
        debug_assert!(fresh, "a pool has one scan");
        Ok(())
    }

    /// The pool's scrub.
    pub fn scan(&self) -> Result<&Arc<Scan>> {
        self.scan.get().ok_or_else(|| Error::os(Errno::Again, "the pool is still being opened"))
    }

    /// The scan's part in every txg: who drops out of a resilver is noted, or comes to lack
    /// something while it is under way, and what reads found damaged goes into the error log.
    pub(super) async fn sync_scan(&self, tx: &Tx) -> Result<()> {
        self.tree().note_dropouts(tx.txg().0);
        let Some(scan) = self.scan.get() else { return Ok(()) };
        if let Some(max_txg) = scan.resilvers_up_to() {
            self.tree().note_latecomers(max_txg, tx.txg().0);
        }
        self.sync_deferred(tx, scan).await?;
        self.note_damage(scan);
        scan.errors.sync(tx).await
    }

    /// While devices wait for another resilver the feature `resilver_defer` is active.
    async fn sync_deferred(&self, tx: &Tx, scan: &Scan) -> Result<()> {
        const FEATURE: &str = "resilver_defer";
        let features = &self.ctx.features;
        let under_way = scan.is_resilvering() && features.is_enabled(FEATURE);
        let (changed, any) = self.tree().mark_deferred(under_way);
        if changed {
            self.config_dirty.store(true, Ordering::Release);
        }
        let (is, was) = (i64::from(any), features.count(FEATURE));
        let was = i64::try_from(was).unwrap_or(i64::MAX);
        if features.is_enabled(FEATURE) && is != was {
            features.add(self.ctx.mos(), tx, FEATURE, is - was).await?;
        }
        Ok(())
    }

    fn note_damage(&self, scan: &Scan) {
        for (at, birth) in self.zio.take_damaged() {
            scan.errors.log(at, Some(birth.0));
        }
    }

    /// The error log, with what was found this very moment.
    pub fn errors(&self) -> Result<&ErrLog> {
        let scan = self.scan()?;
        self.note_damage(scan);
        Ok(&scan.errors)
    }

    /// Before space that was freed may be used again: nobody may be reading, and perhaps repairing,
    /// it.
    pub(super) async fn settle_scan(&self) {
        if let Some(scan) = self.scan.get() {
            scan.settle().await;
        }
    }

    /// Checks that what the pool refers to and what is allocated are the same, as of the last
    /// synced txg, with nothing from memory. No txg is synced meanwhile.
    #[crate::boxed]
    pub async fn check_space(self: &Arc<Self>) -> Result<SpaceReport> {
        if self.ctx.readonly {
            return self.check_root(self.uberblock().rootbp).await;
        }
        let me = self.clone();
        self.ctx.sync_task(move |_| Box::pin(async move { me.check_root(me.uberblock().rootbp).await })).await
    }

    async fn check_root(&self, root: BlkPtr) -> Result<SpaceReport> {
        let (live, tree) = (&self.ctx, self.tree());
        let cache = DbufCache::new(64 << 20);
        let ctx = PoolCtx::new(
            live.env.clone(),
            live.store.clone(),
            cache.clone(),
            live.txgs.clone(),
            live.guid(),
            true,
        );
        ctx.set_version(live.version());
        let mos = Objset::open(0, &root, live.store.clone(), cache, live.mos().props()).await?;
        ctx.set_mos(mos.clone());
        let directory = Zap::open(&mos, DMU_POOL_DIRECTORY_OBJECT).await?;
        ctx.features.load(&mos, &directory).await?;
        let metaslabs = Metaslabs::new(space_features(&ctx));
        let specs = vdev_specs(&tree);
        let ids: Vec<u32> = specs.iter().map(|s| s.id).collect();
        for spec in specs {
            metaslabs.open_vdev(&mos, spec).await?;
        }
        metaslabs.load_logs(&mos).await?;
        metaslabs.load_checkpoints(&mos).await?;
        check_space(&ctx, &self.zio, &metaslabs, &ids, root).await
    }

    /// Bytes in use in all classes that hold data.
    pub fn allocated(&self) -> u64 {
        [SpaceClass::Normal, SpaceClass::EmbeddedLog, SpaceClass::Special, SpaceClass::Dedup]
            .into_iter()
            .map(|c| self.metaslabs.class_stat(c).alloc)
            .sum()
    }
}
