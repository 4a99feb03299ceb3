//! A node of the vdev tree: what the configuration says of it.
//!
//! The configuration it came from is kept whole, so that what this version does not know (or does
//! not act on) is written back as it was; what the engine itself decides (path, sizes, state) is
//! put over it when the configuration is generated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use zilla_ondisk::NvList;
use zilla_ondisk::enums::{VdevAux, VdevState};

use super::draid::Draid;
use super::indirect::Indirect;
use super::leaf::Leaf;
use super::state::StateCell;
use super::stats::StatSnapshot;
use super::widths::Widths;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VdevKind {
    Root,
    Mirror,
    Replacing,
    Spare,
    Raidz {
        nparity: u8,
    },
    /// RAID-Z over more disks than a group has; so many data disks in a group, and room for so many
    /// spares.
    Draid {
        nparity: u8,
        ndata: u8,
        nspares: u8,
    },
    /// Room on a dRAID that can stand in for one of its children.
    Dspare,
    Disk,
    File,
    /// A device no configuration was found for.
    Missing,
    /// A number that a removed log device left free.
    Hole,
    /// What a removed vdev leaves: the mapping to where its blocks went.
    Indirect,
}

impl VdevKind {
    pub const fn type_name(self) -> &'static str {
        match self {
            VdevKind::Root => "root",
            VdevKind::Mirror => "mirror",
            VdevKind::Replacing => "replacing",
            VdevKind::Spare => "spare",
            VdevKind::Raidz { .. } => "raidz",
            VdevKind::Draid { .. } => "draid",
            VdevKind::Dspare => "dspare",
            VdevKind::Disk => "disk",
            VdevKind::File => "file",
            VdevKind::Missing => "missing",
            VdevKind::Hole => "hole",
            VdevKind::Indirect => "indirect",
        }
    }

    /// Parity columns of a group whose children share blocks among them.
    pub const fn nparity(self) -> Option<usize> {
        match self {
            VdevKind::Raidz { nparity } | VdevKind::Draid { nparity, .. } => Some(nparity as usize),
            _ => None,
        }
    }

    /// Children hold the same bytes.
    pub const fn is_mirror(self) -> bool {
        matches!(self, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare)
    }
}

pub struct Vdev {
    /// Place among its siblings.
    pub id: u64,
    pub guid: u64,
    pub kind: VdevKind,
    pub children: Vec<Arc<Vdev>>,
    /// What the configuration says, children left out.
    pub(super) config: Mutex<NvList>,
    /// How a dRAID is laid out.
    pub(super) draid: Option<Arc<Draid>>,
    /// How wide a RAID-Z's blocks are.
    pub(super) widths: Option<Arc<Widths>>,
    /// There for disks and files.
    pub leaf: Option<Arc<Leaf>>,
    /// Of a node that is not a leaf.
    pub(super) state: StateCell,
    /// Of a top-level: log2 of its sector size. 0 until found out.
    pub(super) ashift: AtomicU64,
    /// Allocatable bytes: of a top-level what the pool counts on, of others what they could give.
    pub(super) asize: AtomicU64,
    pub(super) ms_array: AtomicU64,
    pub(super) ms_shift: AtomicU64,
    /// Of a removed top-level, once it was read.
    pub(super) indirect: RwLock<Option<Arc<Indirect>>>,
    pub is_log: bool,
    /// Of a top-level: whether it can take new blocks. Shared with its metaslabs, so that these
    /// leave a device that fails at once and use one that comes back.
    pub(super) allocatable: RwLock<Arc<AtomicBool>>,
    /// Errors that redundancy below this node could not cover.
    pub read_errors: AtomicU64,
    pub write_errors: AtomicU64,
    pub checksum_errors: AtomicU64,
}

impl Vdev {
    pub fn is_leaf(&self) -> bool {
        self.leaf.is_some()
    }

    pub fn state(&self) -> (VdevState, VdevAux) {
        self.leaf.as_ref().map_or_else(|| self.state.get(), |l| l.state())
    }

    pub(super) fn set_state(&self, state: VdevState, aux: VdevAux) {
        match &self.leaf {
            Some(l) => l.state.set(state, aux),
            None => self.state.set(state, aux),
        }
    }

    pub fn ashift(&self) -> u32 {
        self.ashift.load(Ordering::Acquire) as u32
    }

    pub fn asize(&self) -> u64 {
        self.asize.load(Ordering::Acquire)
    }

    /// It has grown.
    pub(crate) fn set_asize(&self, asize: u64) {
        self.asize.store(asize, Ordering::Release);
    }

    pub fn metaslab_array(&self) -> u64 {
        self.ms_array.load(Ordering::Acquire)
    }

    pub fn metaslab_shift(&self) -> u32 {
        self.ms_shift.load(Ordering::Acquire) as u32
    }

    /// Sets what the metaslabs decide for a new top-level.
    pub fn set_metaslabs(&self, array: u64, shift: u32) {
        self.ms_array.store(array, Ordering::Release);
        self.ms_shift.store(u64::from(shift), Ordering::Release);
    }

    /// How a dRAID is laid out.
    pub fn draid(&self) -> Option<&Arc<Draid>> {
        self.draid.as_ref()
    }

    /// Disks whose bandwidth adds up, without those that hold parity.
    pub fn data_disks(&self) -> u64 {
        let columns = self.draid.as_ref().map_or(self.children.len() as u64, |d| d.shape.ndisks());
        self.kind.nparity().map_or(1, |n| columns.saturating_sub(n as u64).max(1))
    }

    /// Holds blocks: neither a hole nor missing nor removed.
    pub fn is_concrete(&self) -> bool {
        !matches!(self.kind, VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect)
    }

    /// Where the blocks of a removed vdev went.
    pub fn indirect(&self) -> Option<Arc<Indirect>> {
        self.indirect.read().clone()
    }

    pub fn set_indirect(&self, mapping: Option<Arc<Indirect>>) {
        *self.indirect.write() = mapping;
    }

    /// Whether it can take new blocks, in a form to be kept and asked at every allocation.
    pub fn allocatable(&self) -> Arc<AtomicBool> {
        self.allocatable.read().clone()
    }

    pub(super) fn set_allocatable(&self, yes: bool) {
        self.allocatable.read().store(yes, Ordering::Release);
    }

    /// Takes the place of another node, whose flag somebody keeps.
    pub(super) fn share_flag(&self, other: &Vdev) {
        *self.allocatable.write() = other.allocatable();
    }

    /// A hot spare, in use or not.
    pub fn is_spare(&self) -> bool {
        self.config_u64("is_spare") == Some(1)
    }

    /// Of a group in which a hot spare stands in for others: the spare that stays for good if this
    /// child is taken out.
    pub fn replaced_by_spare(&self, guid: u64) -> Option<u64> {
        match &self.children[..] {
            // A distributed one stays what it is.
            [first, .., last]
                if self.kind == VdevKind::Spare
                    && first.guid == guid
                    && last.is_spare()
                    && last.kind != VdevKind::Dspare =>
            {
                Some(last.guid)
            }
            _ => None,
        }
    }

    /// The child of a replacement, or of a spare's group, that has had its time: another has
    /// everything in its place.
    pub fn to_leave(&self) -> Option<u64> {
        let whole =
            |v: &Arc<Vdev>| v.leaf.as_ref().is_some_and(|l| l.readable() && l.writable() && l.dtl.is_empty());
        let wanted = |v: &Arc<Vdev>| v.leaf.as_ref().is_some_and(|l| l.unspare.load(Ordering::Relaxed));
        match (self.kind, &self.children[..]) {
            (VdevKind::Replacing, [first, .., last]) if whole(last) => Some(first.guid),
            (VdevKind::Spare, [first, .., last]) if wanted(first) && whole(first) => Some(last.guid),
            // Of several spares for one device the last that works will do.
            (VdevKind::Spare, [_, second, .., last]) if second.guid != last.guid && whole(last) => {
                Some(second.guid)
            }
            _ => None,
        }
    }

    /// A number of the configuration that this crate does not use itself.
    pub fn config_u64(&self, name: &str) -> Option<u64> {
        self.config.lock().u64(name)
    }

    pub fn config_str(&self, name: &str) -> Option<String> {
        self.config.lock().str(name).map(str::to_owned)
    }

    /// Changes the part of the configuration that is kept as it is (`DTL`, ZAP object numbers,
    /// `create_txg`, ...).
    pub fn set_config_u64(&self, name: &str, value: u64) {
        self.config.lock().set(name, value);
    }

    /// What a top-level was made for, if not for everything: `special` or `dedup`.
    pub fn bias(&self) -> Option<String> {
        self.config_str("alloc_bias")
    }

    /// Puts a name without a value there, or takes it away; whether that changed anything.
    pub(super) fn set_config_flag(&self, name: &str, there: bool) -> bool {
        let mut config = self.config.lock();
        let was = config.contains(name);
        if was && !there {
            config.remove(name);
        } else if there && !was {
            config.add_flag(name);
        }
        was != there
    }

    pub fn set_config_str(&self, name: &str, value: &str) {
        self.config.lock().set(name, value);
    }

    pub fn remove_config(&self, name: &str) {
        self.config.lock().remove(name);
    }

    /// The node and everything below it, parents first.
    pub fn walk(self: &Arc<Self>) -> Vec<Arc<Vdev>> {
        let mut out = vec![self.clone()];
        let mut i = 0;
        while let Some(v) = out.get(i).cloned() {
            let at = i + 1;
            out.splice(at..at, v.children.iter().cloned());
            i += 1;
        }
        out
    }

    /// What its leaves did, and the errors counted at the node itself.
    pub fn stats(self: &Arc<Self>) -> StatSnapshot {
        let mut sum = StatSnapshot::default();
        for v in self.walk() {
            if let Some(l) = &v.leaf {
                sum.add(&l.stats.snapshot());
            }
        }
        let load = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let of = |own: &AtomicU64, leaf: fn(&Leaf) -> &AtomicU64| {
            self.leaf.as_ref().map_or_else(|| load(own), |l| load(leaf(l)))
        };
        sum.read_errors = of(&self.read_errors, |l| &l.read_errors);
        sum.write_errors = of(&self.write_errors, |l| &l.write_errors);
        sum.checksum_errors = of(&self.checksum_errors, |l| &l.checksum_errors);
        sum
    }

    /// Its configuration, for another place in the tree.
    pub(crate) fn as_config(&self) -> NvList {
        let mut nv = self.generate(super::ConfigFor::Label, None);
        nv.set("id", 0u64);
        nv
    }

    /// Sets the error counts of the node back, as `zpool clear` does.
    pub fn clear_errors(self: &Arc<Self>) {
        for v in self.walk() {
            let own = [&v.read_errors, &v.write_errors, &v.checksum_errors];
            own.iter().for_each(|a| a.store(0, Ordering::Relaxed));
            if let Some(l) = &v.leaf {
                let leaf = [&l.read_errors, &l.write_errors, &l.checksum_errors];
                leaf.iter().for_each(|a| a.store(0, Ordering::Relaxed));
                l.stats.slow.store(0, Ordering::Relaxed);
            }
        }
    }
}
