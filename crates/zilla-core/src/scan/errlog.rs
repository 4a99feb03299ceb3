//! The pool's error log: blocks of which no copy is good, so that `zpool status -v` can name the
//! files.
//!
//! There are two logs, ZAPs named in the pool's directory: *last* is what is known; during a scrub
//! new errors go to *scrub*, and the scrub's end makes that the last one, so that what was repaired
//! or overwritten goes. The end of one that has not looked at everything adds it to the last. With
//! the feature `head_errlog` a log is a ZAP of ZAPs, by head dataset; before, one of places.
//!
//! Errors are noted in memory at once and written by the sync task. A crash loses what was noted in
//! the last txg; the next read finds it again.

use super::{datasets, traverse};
use crate::dmu::resident;
use crate::error::{Error, Result};
use crate::pool::PoolCtx;
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId, Txg};
use crate::zap::{CreateOpts, Entry, Zap};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use zilla_ondisk::dsl::{DMU_POOL_DIRECTORY_OBJECT, DMU_POOL_ERRLOG_LAST, DMU_POOL_ERRLOG_SCRUB};
use zilla_ondisk::errlog::{ErrPhys, bookmark_name, parse_bookmark};
use zilla_ondisk::object_type::DMU_OT_ERROR_LOG;
use zilla_ondisk::zbookmark::ZbookmarkPhys;

/// Errors noted and not written yet; a pool that is broken all over does not need them one by one.
const MAX_PENDING: usize = 10_000;

/// A damaged block, as the log knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoggedError {
    /// With the feature `head_errlog`: the head of the dataset that has it, or had it.
    pub objset: u64,
    pub object: u64,
    pub level: i64,
    pub blkid: u64,
    /// 0 where the log does not say.
    pub birth: u64,
}

#[derive(Default)]
struct State {
    last: u64,
    scrub: u64,
    scrubbing: bool,
    /// (objset, object, level, blkid), birth.
    pending: BTreeSet<((u64, u64, i64, u64), u64)>,
}

pub struct ErrLog {
    pub(super) ctx: Arc<PoolCtx>,
    state: Mutex<State>,
}

/// A list made for people is no reason to stop a txg.
fn unreadable(e: &Error) {
    tracing::warn!(error = %e, "a part of the log of errors cannot be read");
}

impl ErrLog {
    #[crate::boxed]
    pub async fn open(ctx: &Arc<PoolCtx>) -> Result<Arc<ErrLog>> {
        let directory = Zap::open(ctx.mos(), DMU_POOL_DIRECTORY_OBJECT).await?;
        let last = directory.try_get_u64(DMU_POOL_ERRLOG_LAST).await?.unwrap_or(0);
        let scrub = directory.try_get_u64(DMU_POOL_ERRLOG_SCRUB).await?.unwrap_or(0);
        ctx.store.set_damaged(last != 0 || scrub != 0);
        let state = State { last, scrub, scrubbing: scrub != 0, ..State::default() };
        Ok(Arc::new(ErrLog { ctx: ctx.clone(), state: Mutex::new(state) }))
    }

    /// Notes a block that cannot be read. Its birth is looked up where it is not known.
    pub fn log(&self, at: Bookmark, birth: Option<u64>) {
        self.ctx.store.set_damaged(true);
        let mut st = self.state.lock();
        if st.pending.len() < MAX_PENDING {
            st.pending.insert(((at.objset, at.object, at.level, at.blkid), birth.unwrap_or(0)));
        }
    }

    pub(super) fn begin_scrub(&self) {
        self.state.lock().scrubbing = true;
    }

    fn by_head(&self) -> bool {
        self.ctx.features.is_enabled("head_errlog")
    }

    async fn make(&self, tx: &Tx) -> Result<Zap> {
        let opts = CreateOpts::default();
        Ok(Zap::new(&resident(|| Zap::create(self.ctx.mos(), tx, DMU_OT_ERROR_LOG, &opts)).await?))
    }

    /// Writes what was noted; part of any txg.
    #[crate::boxed]
    pub async fn sync(&self, tx: &Tx) -> Result<()> {
        let (pending, scrubbing, known) = {
            let mut st = self.state.lock();
            let known = if st.scrubbing { st.scrub } else { st.last };
            (std::mem::take(&mut st.pending), st.scrubbing, known)
        };
        if pending.is_empty() {
            return Ok(());
        }
        let mos = self.ctx.mos();
        let opened = match known {
            0 => None,
            id => Zap::open(mos, id).await.inspect_err(unreadable).ok(),
        };
        let log = if let Some(log) = opened {
            log
        } else {
            let log = self.make(tx).await?;
            let name = if scrubbing { DMU_POOL_ERRLOG_SCRUB } else { DMU_POOL_ERRLOG_LAST };
            Zap::open(mos, DMU_POOL_DIRECTORY_OBJECT).await?.set_u64(tx, name, log.id()).await?;
            let mut st = self.state.lock();
            *(if scrubbing { &mut st.scrub } else { &mut st.last }) = log.id();
            log
        };
        for ((objset, object, level, blkid), birth) in pending {
            let entered = self.enter(tx, &log, Bookmark { objset, object, level, blkid }, birth).await;
            entered.unwrap_or_else(|e| unreadable(&e));
        }
        Ok(())
    }

    /// Writes one error into a log.
    async fn enter(&self, tx: &Tx, log: &Zap, at: Bookmark, birth: u64) -> Result<()> {
        let Bookmark { objset, object, level, blkid } = at;
        if !self.by_head() {
            let name = bookmark_name(&ZbookmarkPhys::new(objset, object, level, blkid));
            return log.set_str(tx, &name, "").await;
        }
        let birth = if birth != 0 { birth } else { self.birth_of(at).await };
        let head = self.head_of(objset).await.unwrap_or(objset);
        let list = self.list_of(tx, log, &format!("{head:x}")).await?;
        list.set_str(tx, &ErrPhys { object, level, blkid, birth }.name(), "").await
    }

    pub(super) async fn head_of(&self, ds: u64) -> Result<u64> {
        let mos = self.ctx.mos();
        Ok(datasets::dir(mos, datasets::dataset(mos, ds).await?.dir_obj).await?.head_dataset_obj)
    }

    /// When a block was born; 0 when that cannot be found out, which matches no snapshot's version
    /// in particular.
    async fn birth_of(&self, at: Bookmark) -> u64 {
        let Ok(ds) = datasets::dataset(self.ctx.mos(), at.objset).await else { return 0 };
        let found = traverse::find(&self.ctx.store, ds.bp, at).await;
        found.ok().flatten().map_or(0, |bp| bp.birth())
    }

    /// A scrub of everything is over: what it found is what is known now.
    pub(super) async fn end_scrub(&self, tx: &Tx) -> Result<()> {
        self.sync(tx).await?;
        let (last, scrub) = {
            let mut st = self.state.lock();
            st.scrubbing = false;
            (st.last, st.scrub)
        };
        let mos = self.ctx.mos();
        let directory = Zap::open(mos, DMU_POOL_DIRECTORY_OBJECT).await?;
        self.free_log(tx, last).await;
        if scrub != 0 {
            directory.delete(tx, DMU_POOL_ERRLOG_SCRUB).await?;
            directory.set_u64(tx, DMU_POOL_ERRLOG_LAST, scrub).await?;
        } else {
            directory.delete_if_there(tx, DMU_POOL_ERRLOG_LAST).await?;
        }
        let mut st = self.state.lock();
        (st.last, st.scrub) = (scrub, 0);
        self.ctx.store.set_damaged(scrub != 0 || !st.pending.is_empty());
        Ok(())
    }

    /// What ends has not looked at everything: what it found is known beside what was known before.
    pub(super) async fn abandon_scrub(&self, tx: &Tx) -> Result<()> {
        self.sync(tx).await?;
        let (last, scrub) = {
            let mut st = self.state.lock();
            st.scrubbing = false;
            (st.last, st.scrub)
        };
        if scrub == 0 {
            return Ok(());
        }
        let directory = Zap::open(self.ctx.mos(), DMU_POOL_DIRECTORY_OBJECT).await?;
        let known = match last {
            0 => None,
            id => Zap::open(self.ctx.mos(), id).await.inspect_err(unreadable).ok(),
        };
        let kept = match known {
            Some(known) => {
                self.add_log(tx, &known, scrub).await.unwrap_or_else(|e| unreadable(&e));
                self.free_log(tx, scrub).await;
                last
            }
            None => {
                directory.set_u64(tx, DMU_POOL_ERRLOG_LAST, scrub).await?;
                scrub
            }
        };
        directory.delete(tx, DMU_POOL_ERRLOG_SCRUB).await?;
        let mut st = self.state.lock();
        (st.last, st.scrub) = (kept, 0);
        Ok(())
    }

    /// Adds to a log what is in another.
    async fn add_log(&self, tx: &Tx, to: &Zap, from: u64) -> Result<()> {
        let mos = self.ctx.mos();
        for e in Zap::open(mos, from).await?.entries().await? {
            let name = e.name_str().into_owned();
            let Some(found) = e.value.as_u64() else {
                to.set_str(tx, &name, "").await?;
                continue;
            };
            let list = self.list_of(tx, to, &name).await?;
            for e in Zap::open(mos, found).await?.entries().await? {
                list.set_str(tx, &e.name_str(), "").await?;
            }
        }
        Ok(())
    }

    /// A log's list of one head dataset.
    async fn list_of(&self, tx: &Tx, log: &Zap, key: &str) -> Result<Zap> {
        if let Some(id) = log.try_get_u64(key).await? {
            return Zap::open(self.ctx.mos(), id).await;
        }
        let list = self.make(tx).await?;
        log.set_u64(tx, key, list.id()).await?;
        Ok(list)
    }

    /// What of it cannot be read is not freed.
    async fn free_log(&self, tx: &Tx, id: u64) {
        if id == 0 {
            return;
        }
        let mos = self.ctx.mos();
        let (log, entries) = match self.read_log(id).await {
            Ok(read) => read,
            Err(e) => return unreadable(&e),
        };
        for e in entries {
            if let (true, Some(list)) = (self.by_head(), e.value.as_u64()) {
                match mos.hold_wait(ObjectId(list)).await {
                    Ok(list) => mos.free(tx, &list),
                    Err(e) => unreadable(&e),
                }
            }
        }
        mos.free(tx, log.dnode());
    }

    /// A dataset is destroyed: its errors are nobody's any more.
    #[crate::boxed]
    pub async fn forget_dataset(&self, tx: &Tx, head: u64) {
        for id in self.logs().into_iter().filter(|_| self.by_head()) {
            if let Err(e) = self.forget_in(tx, id, head).await {
                tracing::warn!(error = %e, head, "a log of errors still has those of a dataset that is gone");
            }
        }
    }

    async fn forget_in(&self, tx: &Tx, log: u64, head: u64) -> Result<()> {
        let mos = self.ctx.mos();
        let log = Zap::open(mos, log).await?;
        let key = format!("{head:x}");
        if let Some(list) = log.try_get_u64(&key).await? {
            let list = mos.hold_wait(ObjectId(list)).await?;
            log.delete(tx, &key).await?;
            mos.free(tx, &list);
        }
        Ok(())
    }

    /// A clone is promoted: what it shares with the dataset that it was made from is filed under it
    /// from now on, so that it is not forgotten when that dataset is destroyed. `until` is the txg
    /// of the youngest snapshot that goes over.
    #[crate::boxed]
    pub async fn promoted(&self, tx: &Tx, clone: u64, origin: u64, until: Txg) {
        for id in self.logs().into_iter().filter(|_| self.by_head()) {
            if let Err(e) = self.promoted_in(tx, id, (clone, origin), until).await {
                tracing::warn!(error = %e, clone, origin, "a log of errors does not know of a promotion");
            }
        }
    }

    async fn promoted_in(&self, tx: &Tx, log: u64, (clone, origin): (u64, u64), until: Txg) -> Result<()> {
        let mos = self.ctx.mos();
        let log = Zap::open(mos, log).await?;
        let Some(list) = log.try_get_u64(&format!("{origin:x}")).await? else { return Ok(()) };
        let list = Zap::open(mos, list).await?;
        for e in list.entries().await? {
            if ErrPhys::parse(&e.name).is_ok_and(|p| p.birth != 0 && p.birth <= until.0) {
                let name = e.name_str();
                self.list_of(tx, &log, &format!("{clone:x}")).await?.set_str(tx, &name, "").await?;
                list.delete(tx, &name).await?;
            }
        }
        Ok(())
    }

    /// The feature `head_errlog` was just enabled: the logs get its form. As in OpenZFS, places
    /// that hold no block any more are left out.
    #[crate::boxed]
    pub async fn file_by_head(&self, tx: &Tx) -> Result<()> {
        let (last, scrub) = {
            let st = self.state.lock();
            (st.last, st.scrub)
        };
        let mos = self.ctx.mos();
        let mut new = [0; 2];
        let names = [(last, DMU_POOL_ERRLOG_LAST), (scrub, DMU_POOL_ERRLOG_SCRUB)];
        for (new, (id, name)) in new.iter_mut().zip(names) {
            if id == 0 {
                continue;
            }
            let log = self.make(tx).await?;
            let (old, entries) = match self.read_log(id).await {
                Ok((old, entries)) => (Some(old), entries),
                Err(e) => {
                    tracing::warn!(error = %e, name, "a log of errors cannot be read: it begins anew");
                    (None, Vec::new())
                }
            };
            for e in entries {
                let Ok(zb) = parse_bookmark(&e.name) else { continue };
                let (objset, object, level, blkid) = (zb.objset, zb.object, zb.level(), zb.blkid);
                // (The pool's own objects have no versions.)
                let birth = match objset {
                    Bookmark::MOS => 0,
                    _ => self.birth_of(Bookmark { objset, object, level, blkid }).await,
                };
                if birth == 0 && objset != Bookmark::MOS {
                    continue;
                }
                let head = self.head_of(objset).await.unwrap_or(objset);
                let list = self.list_of(tx, &log, &format!("{head:x}")).await?;
                list.set_str(tx, &ErrPhys { object, level, blkid, birth }.name(), "").await?;
            }
            old.iter().for_each(|old| mos.free(tx, old.dnode()));
            Zap::open(mos, DMU_POOL_DIRECTORY_OBJECT).await?.set_u64(tx, name, log.id()).await?;
            *new = log.id();
        }
        let mut st = self.state.lock();
        [st.last, st.scrub] = new;
        Ok(())
    }

    async fn read_log(&self, id: u64) -> Result<(Zap, Vec<Entry>)> {
        let log = Zap::open(self.ctx.mos(), id).await?;
        let entries = log.entries().await?;
        Ok((log, entries))
    }

    fn logs(&self) -> Vec<u64> {
        let st = self.state.lock();
        [st.last, st.scrub].into_iter().filter(|id| *id != 0).collect()
    }

    /// How many errors the scrub under way has written down.
    pub(super) async fn scrubbed(&self) -> Result<u64> {
        let scrub = self.state.lock().scrub;
        match scrub {
            0 => Ok(0),
            id => Ok(self.written(id).await?.len() as u64),
        }
    }

    /// What a log has.
    async fn written(&self, id: u64) -> Result<Vec<LoggedError>> {
        let mos = self.ctx.mos();
        let bad = |e: zilla_ondisk::FormatError| Error::corrupt(None, "error log", e.to_string());
        let mut out = Vec::new();
        for e in Zap::open(mos, id).await?.entries().await? {
            // Logs from before the feature was enabled hold places themselves.
            if let Ok(zb) = parse_bookmark(&e.name) {
                let (object, level, blkid) = (zb.object, zb.level(), zb.blkid);
                out.push(LoggedError { objset: zb.objset, object, level, blkid, birth: 0 });
                continue;
            }
            let name = e.name_str().into_owned();
            let (Ok(head), Some(list)) = (u64::from_str_radix(&name, 16), e.value.as_u64()) else {
                continue;
            };
            for e in Zap::open(mos, list).await?.entries().await? {
                let p = ErrPhys::parse(&e.name).map_err(bad)?;
                let (object, level, blkid, birth) = (p.object, p.level, p.blkid, p.birth);
                out.push(LoggedError { objset: head, object, level, blkid, birth });
            }
        }
        Ok(out)
    }

    /// All errors in the log, and those not yet written.
    #[crate::boxed]
    pub async fn entries(&self) -> Result<Vec<LoggedError>> {
        let (mut out, mut seen) = (Vec::new(), HashSet::new());
        let mut add = |e: LoggedError| {
            if seen.insert(e) {
                out.push(e);
            }
        };
        for id in self.logs() {
            self.written(id).await?.into_iter().for_each(&mut add);
        }
        let pending: Vec<_> = self.state.lock().pending.iter().copied().collect();
        for ((ds, object, level, blkid), birth) in pending {
            if !self.by_head() {
                add(LoggedError { objset: ds, object, level, blkid, birth: 0 });
                continue;
            }
            let at = Bookmark { objset: ds, object, level, blkid };
            let birth = if birth != 0 { birth } else { self.birth_of(at).await };
            let objset = self.head_of(ds).await.unwrap_or(ds);
            add(LoggedError { objset, object, level, blkid, birth });
        }
        Ok(out)
    }

    /// How many errors there are, for `zpool status`.
    #[crate::boxed]
    pub async fn count(&self) -> Result<u64> {
        Ok(self.entries().await?.len() as u64)
    }
}
