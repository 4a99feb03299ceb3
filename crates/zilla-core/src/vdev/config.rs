//! The tree from its configuration, and back.
//!
//! Configurations come from labels, cache files and the MOS: hostile bytes. Depth, number of
//! children and numbers used as indices are bounded here; what is not supported is refused by name.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use zilla_env::Env;
use zilla_ondisk::NvList;
use zilla_ondisk::enums::{VdevAux, VdevState};

use super::distributed::Room;
use super::draid::Draid;
use super::leaf::Leaf;
use super::node::{Vdev, VdevKind};
use super::state::StateCell;
use super::widths::Widths;
use crate::error::{Errno, Error, Result};

/// root / top-level / replacing or spare / spare / leaf.
const MAX_DEPTH: usize = 5;
const MAX_CHILDREN: usize = 4096;
/// Vdevs of a pool, of which each leaf has queues of its own. The largest pools that people tell of
/// have some hundred disks; where each vdev has the most that a RAID-Z may have, 255, this is
/// enough for sixty of them.
const MAX_VDEVS: usize = 16 << 10;
pub const ASHIFT_MIN: u32 = 9;
pub const ASHIFT_MAX: u32 = 16;

/// Whom the configuration is generated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigFor {
    /// The pool's own copy, in the MOS: everything.
    Mos,
    /// Labels and cache files: without the numbers of ZAP objects.
    Label,
}

/// Numbers only the MOS's copy has.
const MOS_ONLY: [&str; 3] =
    ["com.delphix:vdev_zap_leaf", "com.delphix:vdev_zap_top", "com.klarasystems:vdev_zap_root"];

/// What is written of a device's state; of what was read nothing is kept.
const DIAGNOSES: [&str; 4] = ["faulted", "degraded", "removed", "aux_state"];

pub struct Parser {
    pub env: Env,
    pub leaves: Vec<Arc<Leaf>>,
    /// Leaves that are there already, by guid.
    pub known: HashMap<u64, Arc<Leaf>>,
    /// The widths of RAID-Zs that are there already, by guid.
    pub widths: HashMap<u64, Arc<Widths>>,
    /// How many vdevs were parsed.
    pub vdevs: usize,
}

impl Parser {
    pub fn new(env: Env, leaves: Vec<Arc<Leaf>>) -> Parser {
        Parser { env, leaves, known: HashMap::new(), widths: HashMap::new(), vdevs: 0 }
    }

    pub fn vdev(&mut self, nv: &NvList, id: u64, depth: usize) -> Result<Arc<Vdev>> {
        let bad = |what: String| Error::corrupt(None, "vdev configuration", what);
        if depth > MAX_DEPTH {
            return Err(bad(format!("nested deeper than {MAX_DEPTH}")));
        }
        self.vdevs += 1;
        if self.vdevs > MAX_VDEVS {
            return Err(bad(format!("child {id} at depth {depth} is more than {MAX_VDEVS} vdevs")));
        }
        let kind = kind(nv)?;
        let draid = match kind {
            VdevKind::Draid { .. } => Some(Arc::new(Draid::parse(nv)?)),
            _ => None,
        };
        if nv.u64("id").is_some_and(|n| n != id) {
            return Err(bad(format!("child {id} says it is child {}", nv.u64("id").unwrap_or(0))));
        }
        let guid = nv.u64("guid").unwrap_or(0);
        if guid == 0 && !matches!(kind, VdevKind::Hole | VdevKind::Missing) {
            return Err(bad(format!("{} has no guid", kind.type_name())));
        }
        let children = nv.lists("children").unwrap_or_default();
        let is_leaf = matches!(kind, VdevKind::Disk | VdevKind::File | VdevKind::Dspare);
        let alone = is_leaf || kind == VdevKind::Indirect;
        if children.len() > MAX_CHILDREN || (alone && !children.is_empty()) {
            return Err(bad(format!("{} with {} children", kind.type_name(), children.len())));
        }
        match kind {
            VdevKind::Raidz { nparity } if children.len() <= usize::from(nparity) || children.len() > 255 => {
                return Err(bad(format!("raidz{nparity} with {} children", children.len())));
            }
            k if k.is_mirror() && children.is_empty() => {
                return Err(bad(format!("{} without children", kind.type_name())));
            }
            _ => {}
        }
        if depth == 0 && kind != VdevKind::Root || depth > 0 && kind == VdevKind::Root {
            return Err(bad("the root is not where it belongs".into()));
        }
        let only_top = matches!(kind, VdevKind::Hole | VdevKind::Indirect) || kind.nparity().is_some();
        if depth > 1 && only_top {
            return Err(bad(format!("{} below a top-level vdev", kind.type_name())));
        }
        let top = depth == 1;
        let number = |name: &str| if top { nv.u64(name).unwrap_or(0) } else { 0 };
        let ashift = number("ashift");
        if ashift != 0 && !(u64::from(ASHIFT_MIN)..=u64::from(ASHIFT_MAX)).contains(&ashift) {
            return Err(bad(format!("ashift {ashift} is not between {ASHIFT_MIN} and {ASHIFT_MAX}")));
        }
        let ms_shift = number("metaslab_shift");
        if ms_shift >= 64 || (ms_shift != 0 && ms_shift < ashift) {
            return Err(bad(format!("metaslab_shift {ms_shift} with ashift {ashift}")));
        }
        let widths = match kind {
            VdevKind::Raidz { nparity } => match self.widths.get(&guid) {
                Some(known) => Some(known.clone()),
                None => Some(Arc::new(Widths::parse(nv, children.len(), nparity.into())?)),
            },
            _ => None,
        };
        let leaf = if is_leaf { Some(self.leaf(nv, guid, kind)?) } else { None };
        let children = children
            .iter()
            .enumerate()
            .map(|(i, c)| self.vdev(c, i as u64, depth + 1))
            .collect::<Result<Vec<_>>>()?;
        let mut kept = nv.clone();
        kept.remove("children");
        let aux_of_root = ["spares", "l2cache"];
        kept.retain(|name, _| !aux_of_root.contains(&name));
        Ok(Arc::new(Vdev {
            id,
            guid,
            kind,
            children,
            draid,
            widths,
            config: Mutex::new(kept),
            leaf,
            state: StateCell::new(VdevState::Closed, VdevAux::None),
            ashift: AtomicU64::new(ashift),
            asize: AtomicU64::new(number("asize")),
            ms_array: AtomicU64::new(number("metaslab_array")),
            ms_shift: AtomicU64::new(ms_shift),
            indirect: RwLock::default(),
            is_log: top && nv.u64("is_log").unwrap_or(0) != 0,
            allocatable: RwLock::new(Arc::new(AtomicBool::new(true))),
            read_errors: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            checksum_errors: AtomicU64::new(0),
        }))
    }

    fn leaf(&mut self, nv: &NvList, guid: u64, kind: VdevKind) -> Result<Arc<Leaf>> {
        let known = self.known.get(&guid).or_else(|| self.known.get(&nv.u64("orig_guid")?));
        if let Some(leaf) = known {
            return Ok(leaf.clone());
        }
        let path = nv.str("path").unwrap_or_default().to_owned();
        let room = if kind == VdevKind::Dspare { Some(Room::parse(nv)?) } else { None };
        let leaf = Leaf::new(guid, self.leaves.len(), path, room, self.env.clone());
        leaf.offline.store(nv.u64("offline").unwrap_or(0) != 0, Ordering::Relaxed);
        // A diagnosis of another machine does not matter here; what the administrator said does.
        leaf.external_fault.store(nv.str("aux_state") == Some("external"), Ordering::Relaxed);
        self.leaves.push(leaf.clone());
        Ok(leaf)
    }

    /// A spare or cache device: a leaf that belongs to no top-level.
    pub fn aux(&mut self, nv: &NvList, id: usize) -> Result<Arc<Vdev>> {
        // Their configuration has no id, so one that a hostile label put there must not matter.
        let mut nv = nv.clone();
        nv.remove("id");
        let v = self.vdev(&nv, id as u64, MAX_DEPTH)?;
        match v.is_leaf() {
            true => Ok(v),
            false => {
                Err(Error::corrupt(None, "vdev configuration", "a spare or cache device that is no device"))
            }
        }
    }
}

fn refused(what: &str) -> Error {
    Error::os(Errno::NotSup, format!("the pool has {what}, which this version does not support"))
}

fn kind(nv: &NvList) -> Result<VdevKind> {
    Ok(match nv.str("type") {
        Some("root") => VdevKind::Root,
        Some("mirror") => VdevKind::Mirror,
        Some("replacing") => VdevKind::Replacing,
        Some("spare") => VdevKind::Spare,
        Some("raidz") => match nv.u64("nparity") {
            // Before raidz2 there was no number.
            None => VdevKind::Raidz { nparity: 1 },
            Some(n @ 1..=3) => VdevKind::Raidz { nparity: n as u8 },
            Some(n) => {
                return Err(Error::corrupt(None, "vdev configuration", format!("raidz with parity {n}")));
            }
        },
        Some("draid") => {
            let number = |name: &str| u8::try_from(nv.u64(name).unwrap_or(0)).unwrap_or(0);
            let (nparity, ndata) = (number("nparity"), number("draid_ndata"));
            VdevKind::Draid { nparity, ndata, nspares: number("draid_nspares") }
        }
        Some("disk") => VdevKind::Disk,
        Some("file") => VdevKind::File,
        Some("missing") => VdevKind::Missing,
        Some("hole") => VdevKind::Hole,
        Some("indirect") => VdevKind::Indirect,
        Some("dspare") => VdevKind::Dspare,
        Some(other) => return Err(refused(&format!("a vdev of type '{other}'"))),
        None => return Err(Error::corrupt(None, "vdev configuration", "a vdev without a type")),
    })
}

impl Vdev {
    /// The configuration as it is now. `top_guid` names the top-level the node belongs to (none for
    /// root and aux devices).
    pub(super) fn generate(&self, what: ConfigFor, top_guid: Option<u64>) -> NvList {
        let kept = self.config.lock().clone();
        let is_top = top_guid == Some(self.guid);
        let mut nv = NvList::new();
        nv.add("type", self.kind.type_name());
        if kept.contains("id") {
            nv.add("id", self.id);
        }
        nv.add("guid", self.guid);
        // What is known to come in OpenZFS's order, then the rest as it was.
        if let Some(l) = &self.leaf {
            nv.add("path", l.path());
        }
        for name in ["devid", "phys_path", "vdev_enc_sysfs_path", "fru"] {
            if let Some(v) = kept.get(name) {
                nv.add(name, v.clone());
            }
        }
        if let Some(nparity) = self.kind.nparity() {
            nv.add("nparity", nparity as u64);
        }
        if let Some(widths) = &self.widths {
            widths.generate(&mut nv);
        }
        for name in ["whole_disk", "not_present", "is_spare"] {
            if let Some(v) = kept.get(name) {
                nv.add(name, v.clone());
            }
        }
        if is_top {
            nv.add("metaslab_array", self.metaslab_array());
            nv.add("metaslab_shift", u64::from(self.metaslab_shift()));
            nv.add("ashift", u64::from(self.ashift()));
            nv.add("asize", self.asize());
            nv.add("is_log", u64::from(self.is_log));
        }
        for (name, value) in &kept {
            // The bias lies in the vdev's own ZAP; in the configuration it is only a creator's
            // request.
            let skip = name == "alloc_bias"
                || name == "offline"
                || self.leaf.is_some() && DIAGNOSES.contains(&name)
                || name == "ashift" && top_guid.is_some()
                || what == ConfigFor::Label && MOS_ONLY.contains(&name);
            if !skip && !nv.contains(name) {
                nv.add(name, value.clone());
            }
        }
        if let Some(l) = &self.leaf {
            if l.offline.load(Ordering::Relaxed) && !l.offline_until_import.load(Ordering::Relaxed) {
                nv.add("offline", 1u64);
            }
            match l.state() {
                (VdevState::Faulted, VdevAux::ErrExceeded) => {
                    nv.add("faulted", 1u64).add("aux_state", "err_exceeded");
                }
                _ if l.external_fault.load(Ordering::Relaxed)
                    && !l.offline_until_import.load(Ordering::Relaxed) =>
                {
                    nv.add("faulted", 1u64).add("aux_state", "external");
                }
                (VdevState::Degraded, VdevAux::ErrExceeded) => {
                    nv.add("degraded", 1u64).add("aux_state", "err_exceeded");
                }
                _ => {}
            }
        }
        if !self.is_leaf() && (self.is_concrete() || self.kind == VdevKind::Root) {
            let children: Vec<NvList> =
                self.children.iter().map(|c| c.generate(what, Some(top_guid.unwrap_or(c.guid)))).collect();
            nv.add("children", children);
        }
        nv
    }
}
