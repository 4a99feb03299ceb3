//! A dir: a node of the tree of datasets, and what it and those below it use.
//!
//! `used` is split into what the head, its snapshots, the children and two kinds of reservation
//! use. A change travels up to the root; a reservation that was charged to the parents beforehand
//! absorbs its part on the way.

use super::bpobj::{Delta, Space};
use crate::dmu::Dnode;
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, PerTxg, Txg};
use crate::zap::Zap;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zilla_ondisk::dsl::{DD_FLAG_USED_BREAKDOWN, DD_USED_CHILD, DD_USED_CHILD_RSRV, DslDirPhys};
use zilla_ondisk::object_type::{DMU_OT_DSL_DIR, DMU_OTN_ZAP_METADATA};
use zilla_ondisk::{ByteOrder, Phys};

pub struct DslDir {
    pub(super) id: u64,
    pub(super) dn: Arc<Dnode>,
    phys: RwLock<DslDirPhys>,
    parent: Mutex<Option<Arc<DslDir>>>,
    name: Mutex<String>,
    /// The txg of the snapshot this is a clone of; blocks born before it are not ours.
    pub(crate) origin_txg: AtomicU64,
    /// Space that transactions of open txgs may still use.
    towrite: PerTxg<AtomicU64>,
    pub(super) gone: AtomicBool,
    /// When its snapshots last changed, as far as that was looked up: seconds, nanoseconds.
    snaps_changed: Mutex<Option<[u64; 2]>>,
}

/// What stands in a counter came from the disk, so that it may be too small is no bug:
/// [`crate::check`] tells.
fn add(v: &mut u64, delta: i64) {
    *v = v.saturating_add_signed(delta);
}

/// The same of one kind (`DD_USED_*`).
fn add_kind(p: &mut DslDirPhys, kind: usize, delta: i64) {
    if let Some(used) = p.used_breakdown.get_mut(kind) {
        add(used, delta);
    }
}

impl DslDir {
    pub(super) fn decode(dn: &Arc<Dnode>) -> Result<DslDirPhys> {
        let b = Some(Bookmark::new(0, dn.id(), 0, 0));
        if dn.bonus_type() != DMU_OT_DSL_DIR {
            return Err(Error::corrupt(b, "", format!("object {} is not a dir", dn.id())));
        }
        DslDirPhys::from_bonus(&dn.bonus(), ByteOrder::NATIVE)
            .map_err(|e| Error::corrupt(b, "", e.to_string()))
    }

    pub(super) fn new(
        dn: Arc<Dnode>,
        phys: DslDirPhys,
        parent: Option<Arc<DslDir>>,
        name: String,
        origin_txg: u64,
    ) -> Arc<DslDir> {
        Arc::new(DslDir {
            id: dn.id().0,
            dn,
            phys: RwLock::new(phys),
            parent: Mutex::new(parent),
            name: Mutex::new(name),
            origin_txg: origin_txg.into(),
            towrite: Default::default(),
            gone: false.into(),
            snaps_changed: Mutex::default(),
        })
    }

    /// When its snapshots last changed, if that is known
    /// ([`super::DslPool::look_up_snaps_changed`]).
    pub fn snaps_changed(&self) -> Option<[u64; 2]> {
        *self.snaps_changed.lock()
    }

    /// The same if nothing later is known.
    pub(super) fn note_snaps_changed(&self, at: [u64; 2]) {
        self.snaps_changed.lock().get_or_insert(at);
    }

    pub(super) fn set_snaps_changed(&self, to: [u64; 2]) {
        *self.snaps_changed.lock() = Some(to);
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn phys(&self) -> DslDirPhys {
        *self.phys.read()
    }

    pub fn parent(&self) -> Option<Arc<DslDir>> {
        self.parent.lock().clone()
    }

    pub(super) fn set_place(&self, parent: Option<Arc<DslDir>>, name: String) {
        *self.parent.lock() = parent;
        *self.name.lock() = name;
    }

    /// The last part of the name.
    pub fn short_name(&self) -> String {
        self.name.lock().clone()
    }

    pub(super) fn set_short_name(&self, name: &str) {
        *self.name.lock() = name.to_owned();
    }

    /// The whole name, from the pool's on.
    pub fn name(&self) -> String {
        match self.parent() {
            Some(p) => format!("{}/{}", p.name(), self.short_name()),
            None => self.short_name(),
        }
    }

    /// Itself and its ancestors, the root last.
    pub fn ancestry(self: &Arc<Self>) -> Vec<Arc<DslDir>> {
        let mut out = vec![self.clone()];
        let mut at = self.parent();
        while let Some(d) = at {
            at = d.parent();
            out.push(d);
        }
        out
    }

    pub fn is_zapified(&self) -> bool {
        self.dn.otype() == DMU_OTN_ZAP_METADATA
    }

    /// The ZAP it is where features need more fields.
    pub fn zap(&self) -> Option<Zap> {
        self.is_zapified().then(|| Zap::new(&self.dn))
    }

    pub(super) fn change<R>(&self, tx: &Tx, f: impl FnOnce(&mut DslDirPhys) -> R) -> R {
        let mut p = self.phys.write();
        let r = f(&mut p);
        self.dn.set_bonus(tx, &p.encode());
        r
    }

    /// What of a change the parent has to know, given a reservation it was charged for already.
    pub(super) fn parent_delta(p: &DslDirPhys, delta: i64) -> i64 {
        let old = p.used_bytes.max(p.reserved);
        let new = p.used_bytes.saturating_add_signed(delta).max(p.reserved);
        new.wrapping_sub(old) as i64
    }

    /// Counts a change of kind `kind` (`DD_USED_*`), here and above.
    pub(super) fn diduse(self: &Arc<Self>, tx: &Tx, kind: usize, d: impl Into<Delta>) {
        let d = d.into();
        let accounted = self.change(tx, |p| {
            let accounted = DslDir::parent_delta(p, d.used);
            DslDir::count(p, d);
            if p.flags & DD_FLAG_USED_BREAKDOWN != 0 {
                add_kind(p, kind, d.used);
            }
            accounted
        });
        if let Some(parent) = self.parent() {
            let up = Delta { used: accounted, ..d };
            parent.diduse_transfer(tx, up, d.used, DD_USED_CHILD_RSRV, DD_USED_CHILD);
        }
    }

    fn count(p: &mut DslDirPhys, d: Delta) {
        add(&mut p.used_bytes, d.used);
        add(&mut p.compressed_bytes, d.comp);
        add(&mut p.uncompressed_bytes, d.uncomp);
    }

    /// Counts `d`, while `to_new` of kind `new` came to be, of which what is not in `d` was kind
    /// `old` before.
    pub(super) fn diduse_transfer(self: &Arc<Self>, tx: &Tx, d: Delta, to_new: i64, old: usize, new: usize) {
        let accounted = self.change(tx, |p| {
            let accounted = DslDir::parent_delta(p, d.used);
            DslDir::count(p, d);
            if p.flags & DD_FLAG_USED_BREAKDOWN != 0 {
                add_kind(p, old, d.used - to_new);
                add_kind(p, new, to_new);
            }
            accounted
        });
        if let Some(parent) = self.parent() {
            let up = Delta { used: accounted, ..d };
            parent.diduse_transfer(tx, up, d.used, DD_USED_CHILD_RSRV, DD_USED_CHILD);
        }
    }

    /// Moves space between kinds.
    pub(super) fn transfer(&self, tx: &Tx, delta: i64, old: usize, new: usize) {
        if delta == 0 || self.phys().flags & DD_FLAG_USED_BREAKDOWN == 0 {
            return;
        }
        self.change(tx, |p| {
            add_kind(p, old, -delta);
            add_kind(p, new, delta);
        });
    }

    /// Sets the reservation, charging the parents for what is not used of it yet.
    pub(super) fn set_reservation(self: &Arc<Self>, tx: &Tx, value: u64) {
        let delta = self.change(tx, |p| {
            let delta = p.used_bytes.max(value).wrapping_sub(p.used_bytes.max(p.reserved)) as i64;
            p.reserved = value;
            delta
        });
        if let Some(parent) = self.parent() {
            parent.diduse(tx, DD_USED_CHILD_RSRV, Delta { used: delta, ..Delta::default() });
        }
    }

    pub(super) fn space(&self) -> Space {
        let p = self.phys();
        Space { used: p.used_bytes, comp: p.compressed_bytes, uncomp: p.uncompressed_bytes }
    }

    pub(super) fn towrite(&self) -> u64 {
        self.towrite.iter().map(|t| t.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn add_towrite(&self, tx: &Tx, bytes: u64) {
        self.towrite[tx.txg()].fetch_add(bytes, Ordering::Relaxed);
    }

    /// The txg is synced: what it might use it has used.
    pub(super) fn clear_towrite(&self, txg: Txg) {
        self.towrite[txg].store(0, Ordering::Relaxed);
    }
}
