//! A dataset: the head of a dir, or a snapshot.

use super::dir::DslDir;
use crate::dmu::{Dnode, Objset};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, PerTxg};
use crate::zap::Zap;
use event_listener::Event;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dsl::{DS_FLAG_DEFER_DESTROY, DS_FLAG_INCONSISTENT, DslDatasetPhys};
use zilla_ondisk::object_type::{DMU_OT_DSL_DATASET, DMU_OTN_ZAP_METADATA};
use zilla_ondisk::{ByteOrder, Phys};

/// The objset that everybody shares, where one is open.
#[derive(Default)]
struct Opened {
    objset: Option<Arc<Objset>>,
    /// How often it was let go of. What was being opened before that is not shared: it has other
    /// contents, or a key that was unloaded.
    gone: u64,
}

pub struct DslDataset {
    pub(super) id: u64,
    pub(super) dn: Arc<Dnode>,
    phys: RwLock<DslDatasetPhys>,
    dir: Mutex<Arc<DslDir>>,
    /// Of a snapshot.
    pub(super) snapname: Mutex<String>,
    objset: Mutex<Opened>,
    /// Feature flags (short names) that its contents need.
    pub(super) features: Mutex<BTreeSet<&'static str>>,
    /// The entry of the feature `redacted_datasets`.
    pub(super) redacted: Mutex<Option<Arc<[u64]>>>,
    /// Those that data of a txg not yet synced needs.
    pub(super) activating: Mutex<BTreeSet<&'static str>>,
    /// The properties refquota and refreservation, which are looked at for every transaction.
    pub(super) refquota: AtomicU64,
    pub(super) reserved: AtomicU64,
    pub(super) userrefs: AtomicU64,
    /// Of a head, by txg; and the ZAP they lie in, or 0.
    pub(super) bookmarks: Mutex<Vec<super::DslBookmark>>,
    pub(super) bookmarks_obj: AtomicU64,
    /// Long holds: mounts, sends. What is held is not destroyed.
    pub(super) long_holds: AtomicU64,
    /// Somebody has its files open for writing ([`Writer`]).
    written: AtomicBool,
    /// The last long hold went.
    unheld: Event,
    pub(super) gone: AtomicBool,
    /// The kind of its contents, once that is known; 0 until then.
    pub(super) os_type: AtomicU64,
    /// Its intent log was freed, or was not claimed, whatever the header says.
    pub(crate) log_freed: AtomicBool,
    /// The objset's root changed without any object of it.
    pub(super) rewrite_root: AtomicBool,
    /// The last txg that its livelist tells of.
    pub(super) noted_txg: AtomicU64,
    /// How far a receive has come, by the txg that has it.
    pub(super) reached: Mutex<PerTxg<Option<super::resume::Reached>>>,
}

impl DslDataset {
    pub(super) fn decode(dn: &Arc<Dnode>) -> Result<DslDatasetPhys> {
        let b = Some(Bookmark::new(0, dn.id(), 0, 0));
        if dn.bonus_type() != DMU_OT_DSL_DATASET {
            return Err(Error::corrupt(b, "", format!("object {} is not a dataset", dn.id())));
        }
        DslDatasetPhys::from_bonus(&dn.bonus(), ByteOrder::NATIVE)
            .map_err(|e| Error::corrupt(b, "", e.to_string()))
    }

    pub(super) fn new(dn: Arc<Dnode>, phys: DslDatasetPhys, dir: Arc<DslDir>) -> Arc<DslDataset> {
        Arc::new(DslDataset {
            id: dn.id().0,
            dn,
            phys: RwLock::new(phys),
            dir: Mutex::new(dir),
            snapname: Mutex::default(),
            objset: Mutex::default(),
            features: Mutex::default(),
            redacted: Mutex::default(),
            activating: Mutex::default(),
            refquota: 0.into(),
            reserved: 0.into(),
            userrefs: 0.into(),
            bookmarks: Mutex::default(),
            bookmarks_obj: 0.into(),
            long_holds: 0.into(),
            written: false.into(),
            unheld: Event::new(),
            gone: false.into(),
            os_type: 0.into(),
            log_freed: false.into(),
            rewrite_root: false.into(),
            noted_txg: AtomicU64::new(0),
            reached: Mutex::default(),
        })
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn phys(&self) -> DslDatasetPhys {
        *self.phys.read()
    }

    pub fn dir(&self) -> Arc<DslDir> {
        self.dir.lock().clone()
    }

    pub(super) fn set_dir(&self, dir: Arc<DslDir>) {
        *self.dir.lock() = dir;
    }

    pub(super) fn change<R>(&self, tx: &Tx, f: impl FnOnce(&mut DslDatasetPhys) -> R) -> R {
        let mut p = self.phys.write();
        let r = f(&mut p);
        self.dn.set_bonus(tx, &p.encode());
        r
    }

    pub fn is_snapshot(&self) -> bool {
        self.phys().snapnames_zapobj == 0
    }

    pub fn name(&self) -> String {
        let dir = self.dir().name();
        if self.is_snapshot() { format!("{dir}@{}", self.snapname.lock()) } else { dir }
    }

    pub fn snapshot_name(&self) -> String {
        self.snapname.lock().clone()
    }

    pub fn guid(&self) -> u64 {
        self.phys().guid
    }

    pub fn is_inconsistent(&self) -> bool {
        self.phys().flags & DS_FLAG_INCONSISTENT != 0
    }

    pub fn is_defer_destroy(&self) -> bool {
        self.phys().flags & DS_FLAG_DEFER_DESTROY != 0
    }

    pub fn is_zapified(&self) -> bool {
        self.dn.otype() == DMU_OTN_ZAP_METADATA
    }

    pub fn zap(&self) -> Option<Zap> {
        self.is_zapified().then(|| Zap::new(&self.dn))
    }

    pub fn feature_is_active(&self, name: &str) -> bool {
        self.features.lock().contains(name)
    }

    /// Notes that data written in the open txg needs a feature; it is counted when that txg is
    /// synced.
    pub fn will_need_feature(&self, name: &'static str) {
        if !self.feature_is_active(name) {
            self.activating.lock().insert(name);
        }
    }

    pub fn userrefs(&self) -> u64 {
        self.userrefs.load(Ordering::Relaxed)
    }

    /// Of a head, the oldest first.
    pub fn bookmarks(&self) -> Vec<super::DslBookmark> {
        self.bookmarks.lock().clone()
    }

    pub(super) fn bookmarks_where(
        &self,
        wanted: impl Fn(&super::DslBookmark) -> bool,
    ) -> Vec<super::DslBookmark> {
        self.bookmarks.lock().iter().filter(|b| wanted(b)).cloned().collect()
    }

    /// The objset, if it is open.
    pub fn open_objset(&self) -> Option<Arc<Objset>> {
        self.objset.lock().objset.clone()
    }

    /// The same; or else a number, by which what is opened from now on can be shared.
    pub(super) fn objset_or_turn(&self) -> std::result::Result<Arc<Objset>, u64> {
        let st = self.objset.lock();
        st.objset.clone().ok_or(st.gone)
    }

    /// Has everybody use an objset that was opened at `bp`, unless another has been opened
    /// meanwhile, which is used then. None: what it was opened as is no more.
    pub(super) fn share_objset(&self, turn: u64, bp: &BlkPtr, os: Arc<Objset>) -> Option<Arc<Objset>> {
        let mut st = self.objset.lock();
        if st.objset.is_none() && (st.gone != turn || self.phys.read().bp != *bp) {
            return None;
        }
        Some(st.objset.get_or_insert(os).clone())
    }

    /// A new objset, which nobody knows yet.
    pub(super) fn set_objset(&self, os: Arc<Objset>) {
        self.objset.lock().objset = Some(os);
    }

    /// The next user opens it anew.
    pub(super) fn drop_objset(&self) {
        let mut st = self.objset.lock();
        st.gone += 1;
        st.objset = None;
    }

    /// Keeps the dataset from being destroyed, until the hold is dropped.
    pub fn hold(self: &Arc<Self>) -> LongHold {
        self.long_holds.fetch_add(1, Ordering::AcqRel);
        LongHold { dataset: self.clone(), weight: 1 }
    }

    /// Keeps a head as it is, if nobody holds it: who opens it meanwhile is refused.
    pub fn hold_alone(self: &Arc<Self>) -> Option<LongHold> {
        let weight = ALONE + 1;
        self.long_holds.compare_exchange(0, weight, Ordering::AcqRel, Ordering::Acquire).ok()?;
        Some(LongHold { dataset: self.clone(), weight })
    }

    /// Whether somebody needs it to stay as it is. Who opens it asks this after he has taken his
    /// own hold.
    pub fn is_held_alone(&self) -> bool {
        self.long_holds.load(Ordering::Acquire) & ALONE != 0
    }

    /// Makes the caller the one who may change its files. Two would each have their own idea of
    /// what is in them: the sizes of one would be put over those of the other, and what one frees
    /// the other would write to.
    pub fn writer(self: &Arc<Self>) -> Option<Writer> {
        let free = self.written.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire);
        free.is_ok().then(|| Writer(self.clone()))
    }

    pub fn is_long_held(&self) -> bool {
        self.long_holds.load(Ordering::Acquire) > 0
    }

    /// Waits until nobody holds it: what was begun in the background for a mount ends a little
    /// after it.
    #[crate::boxed]
    pub async fn unheld(&self) {
        loop {
            let listener = self.unheld.listen();
            if !self.is_long_held() {
                return;
            }
            listener.await;
        }
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// The one who may change a dataset's files, until it is dropped.
pub struct Writer(Arc<DslDataset>);

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.written.store(false, Ordering::Release);
    }
}

/// A bit of the number of holds that no number of them reaches: one of them is to be the only one.
const ALONE: u64 = 1 << 63;

/// Someone uses the dataset.
pub struct LongHold {
    dataset: Arc<DslDataset>,
    weight: u64,
}

impl LongHold {
    pub fn dataset(&self) -> &Arc<DslDataset> {
        &self.dataset
    }
}

impl Drop for LongHold {
    fn drop(&mut self) {
        if self.dataset.long_holds.fetch_sub(self.weight, Ordering::AcqRel) == self.weight {
            self.dataset.unheld.notify(usize::MAX);
        }
    }
}
