//! What a new pool's vdevs are to be, as the creator says it.

use std::path::PathBuf;

use zilla_ondisk::NvList;

use super::draid::Shape;
use super::node::VdevKind;
use crate::error::{Error, Result};
use zilla_env::Rng;

/// A device of a new pool.
#[derive(Clone, Debug)]
pub struct LeafSpec {
    pub path: PathBuf,
    /// A block device rather than a file.
    pub disk: bool,
}

/// A top-level vdev: one leaf without redundancy, or several.
#[derive(Clone, Debug)]
pub struct TopSpec {
    /// `Disk` or `File` for a lone leaf; `Mirror`, `Raidz` or `Draid`.
    pub kind: VdevKind,
    pub leaves: Vec<LeafSpec>,
    pub is_log: bool,
    /// `special` or `dedup`: what the vdev is reserved for.
    pub bias: Option<&'static str>,
    /// Asked for with `-o ashift`; otherwise it is found out.
    pub ashift: Option<u32>,
}

/// All vdevs of a new pool.
#[derive(Clone, Debug, Default)]
pub struct PoolSpec {
    pub tops: Vec<TopSpec>,
    pub cache: Vec<LeafSpec>,
}

/// A guid of a vdev or pool: any number but 0.
pub fn new_guid(rng: &dyn Rng) -> u64 {
    loop {
        let guid = rng.u64();
        if guid != 0 {
            return guid;
        }
    }
}

impl LeafSpec {
    pub fn config(&self, id: u64, rng: &dyn Rng) -> NvList {
        let kind = if self.disk { "disk" } else { "file" };
        let mut nv = NvList::new();
        nv.add("type", kind).add("id", id).add("guid", new_guid(rng));
        nv.add("path", self.path.to_string_lossy().into_owned());
        if self.disk {
            nv.add("whole_disk", 0u64);
        }
        nv
    }
}

impl TopSpec {
    pub fn config(&self, id: u64, rng: &dyn Rng) -> Result<NvList> {
        let mut nv = match (self.kind, &self.leaves[..]) {
            (VdevKind::Disk | VdevKind::File, [leaf]) => leaf.config(id, rng),
            (VdevKind::Mirror | VdevKind::Raidz { .. } | VdevKind::Draid { .. }, [_, _, ..]) => {
                let mut nv = NvList::new();
                nv.add("type", self.kind.type_name()).add("id", id).add("guid", new_guid(rng));
                if let VdevKind::Raidz { nparity } = self.kind {
                    if self.leaves.len() <= usize::from(nparity) {
                        return Err(Error::inval(format!(
                            "raidz{nparity} needs at least {} devices",
                            nparity + 1
                        )));
                    }
                    nv.add("nparity", u64::from(nparity));
                }
                if let VdevKind::Draid { nparity, ndata, nspares } = self.kind {
                    let (nparity, ndata, nspares) = (nparity.into(), ndata.into(), nspares.into());
                    let shape = Shape { nparity, ndata, nspares, children: self.leaves.len() as u64 };
                    shape.check().map_err(|what| Error::inval(format!("there can be no {what}")))?;
                    nv.add("nparity", nparity).add("draid_ndata", ndata).add("draid_nspares", nspares);
                    nv.add("draid_ngroups", shape.groups());
                }
                nv
            }
            _ => return Err(Error::inval("a mirror, raidz or draid needs at least two devices")),
        };
        nv.add("ashift", u64::from(self.ashift.unwrap_or(0)));
        nv.add("is_log", u64::from(self.is_log));
        if let Some(bias) = self.bias {
            nv.add("alloc_bias", bias);
        }
        if !matches!(self.kind, VdevKind::Disk | VdevKind::File) {
            let children: Vec<NvList> =
                self.leaves.iter().enumerate().map(|(i, l)| l.config(i as u64, rng)).collect();
            nv.add("children", children);
        }
        Ok(nv)
    }
}

impl PoolSpec {
    /// The configuration a tree is made from, with fresh guids. `root_guid` becomes the pool's guid
    /// too.
    pub fn config(&self, root_guid: u64, rng: &dyn Rng) -> Result<NvList> {
        if !self.tops.iter().any(|t| !t.is_log) {
            return Err(Error::inval("a pool needs a device that is not a log"));
        }
        let tops = self.tops.iter().enumerate();
        let children = tops.map(|(i, t)| t.config(i as u64, rng)).collect::<Result<Vec<_>>>()?;
        let mut nv = NvList::new();
        nv.add("type", "root").add("id", 0u64).add("guid", root_guid).add("children", children);
        let aux = |leaves: &[LeafSpec]| -> Vec<NvList> {
            leaves.iter().enumerate().map(|(i, l)| l.config(i as u64, rng)).collect()
        };
        if !self.cache.is_empty() {
            nv.add("l2cache", aux(&self.cache));
        }
        Ok(nv)
    }
}
