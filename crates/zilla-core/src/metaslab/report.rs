//! What a debugger shows of metaslabs: the space maps as they are on disk.

use super::alloc::Metaslabs;
use super::space_map::SpaceMap;
use super::vdev::SpaceClass;
use crate::error::Result;
use zilla_ondisk::spacemap::SPACE_MAP_HISTOGRAM_SIZE;

/// One metaslab.
#[derive(Clone, Debug)]
pub struct MetaslabReport {
    pub id: u64,
    pub start: u64,
    pub size: u64,
    pub class: SpaceClass,
    /// The space map's object; 0 where nothing was ever allocated.
    pub object: u64,
    /// Bytes of entries in it.
    pub length: u64,
    /// Bytes allocated as the map alone has it, without what is only logged.
    pub allocated: i64,
    pub histogram: Option<[u64; SPACE_MAP_HISTOGRAM_SIZE]>,
    /// Percent.
    pub fragmentation: Option<u64>,
    /// Log space maps from this txg on concern it; 0: none.
    pub unflushed_txg: u64,
    /// Allocations less frees that are only logged.
    pub unflushed: i64,
}

/// A top-level vdev's metaslabs.
#[derive(Clone, Debug)]
pub struct VdevReport {
    /// The object that says from which txg each metaslab needs the logs.
    pub unflushed_object: Option<u64>,
    pub metaslabs: Vec<MetaslabReport>,
}

impl Metaslabs {
    pub fn report(&self, vdev: u32) -> Result<VdevReport> {
        let v = self.vdev(vdev)?;
        let mut metaslabs = Vec::with_capacity(v.all.len());
        for ms in &v.all {
            let class = v.groups.iter().find(|g| g.metaslabs.iter().any(|m| m.id == ms.id));
            let st = ms.state();
            let sm = st.sm.as_ref();
            metaslabs.push(MetaslabReport {
                id: ms.id,
                start: ms.start,
                size: ms.size,
                class: class.map_or(v.spec.class, |g| g.class),
                object: sm.map_or(0, |s| s.dnode().id().0),
                length: sm.map_or(0, SpaceMap::length),
                allocated: sm.map_or(0, SpaceMap::allocated),
                histogram: sm.and_then(SpaceMap::histogram).copied(),
                fragmentation: ms.fragmentation(&st),
                unflushed_txg: st.unflushed_txg.0,
                unflushed: st.unflushed_allocs.space() as i64 - st.unflushed_frees.space() as i64,
            });
        }
        let unflushed_object = v.unflushed.lock().as_ref().map(|d| d.id().0);
        Ok(VdevReport { unflushed_object, metaslabs })
    }
}
