//! The pool's configuration: the nvlist that says what the pool is called and which devices it is
//! made of.
//!
//! It stands in three places: in the MOS (object `config`, the one to be trusted), in every label
//! (each device's own top-level vdev only), and in the cache file. The MOS's copy is written in the
//! txg that changes it; labels around that txg's uberblock (see `vdev/label_write.rs` for why a
//! crash in between is safe).

use super::PoolCtx;
use crate::dmu::{NewObject, Objset, resident};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::{ObjectId, Txg};
use crate::vdev::{ConfigFor, VdevTree};
use std::sync::Arc;
use zilla_ondisk::NvList;
use zilla_ondisk::enums::PoolState;
use zilla_ondisk::object_type::{DMU_OT_PACKED_NVLIST, DMU_OT_PACKED_NVLIST_SIZE};

/// The pool's version since feature flags count changes.
pub const SPA_VERSION: u64 = 5000;
/// The last version that was counted. Source: SPA_VERSION_BEFORE_FEATURES in sys/fs/zfs.h.
pub const SPA_VERSION_BEFORE_FEATURES: u64 = 28;
/// What the configuration says of a split under way: the devices that are to go, by guid.
pub const SPLIT: &str = "splitcfg";
pub const SPLIT_LIST: &str = "guid_list";
/// In the labels of a pool that was split off: the guid of the pool that it was a part of.
pub use crate::vdev::SPLIT_GUID;
const CONFIG_BLKSZ: u32 = 16 << 10;
/// No configuration is larger; a size that says so is damage.
const MAX_PACKED: u64 = 64 << 20;

/// Who we are, for the host check of imports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    pub id: u64,
    pub name: String,
}

/// What the configuration says besides the devices.
#[derive(Clone, Debug)]
pub struct Identity {
    pub name: String,
    pub version: u64,
    pub state: PoolState,
    pub txg: Txg,
    pub guid: u64,
    /// [`crate::dsl::DslPool::errata`]
    pub errata: u64,
    pub host: Host,
    pub comment: Option<String>,
    pub compatibility: Option<String>,
    /// Devices that are being split off, by guid.
    pub splitting: Vec<u64>,
    /// The guid of the pool that it has just been split off from.
    pub split_from: Option<u64>,
}

/// The pool-wide part, without devices.
pub fn pool_part(id: &Identity, features: &[&'static str]) -> NvList {
    let mut nv = NvList::new();
    nv.add("version", id.version).add("name", id.name.as_str()).add("state", id.state.number());
    nv.add("txg", id.txg.0).add("pool_guid", id.guid).add("errata", id.errata);
    if let Some(c) = &id.comment {
        nv.add("comment", c.as_str());
    }
    if let Some(c) = &id.compatibility {
        nv.add("compatibility", c.as_str());
    }
    if id.host.id != 0 {
        nv.add("hostid", id.host.id);
    }
    nv.add("hostname", id.host.name.as_str());
    if let Some(guid) = id.split_from {
        nv.add(SPLIT_GUID, guid);
    }
    if id.version >= SPA_VERSION {
        let mut list = NvList::new();
        for f in features {
            list.add_flag(*f);
        }
        nv.add("features_for_read", list);
    }
    nv
}

/// The whole configuration.
pub fn generate(id: &Identity, ctx: &PoolCtx, tree: &VdevTree, what: ConfigFor, has_zaps: bool) -> NvList {
    let mut nv = pool_part(id, &ctx.features.for_labels());
    let features = nv.remove("features_for_read");
    if has_zaps && what == ConfigFor::Mos {
        nv.add_flag("com.delphix:has_per_vdev_zaps");
    }
    if !id.splitting.is_empty() && what == ConfigFor::Mos {
        nv.add(SPLIT, NvList::new().with(SPLIT_LIST, id.splitting.clone()));
    }
    nv.add("vdev_children", tree.tops.len() as u64);
    nv.add("vdev_tree", tree.generate_config(what));
    if let Some(f) = features {
        nv.add("features_for_read", f);
    }
    nv
}

/// Makes an object for a packed nvlist.
#[crate::boxed]
pub async fn create_packed(mos: &Arc<Objset>, tx: &Tx) -> Result<ObjectId> {
    let spec = NewObject::new(DMU_OT_PACKED_NVLIST, CONFIG_BLKSZ).bonus(DMU_OT_PACKED_NVLIST_SIZE, 8);
    Ok(resident(|| mos.alloc(tx, spec)).await?.id())
}

/// Reads an nvlist object.
#[crate::boxed]
pub async fn read_packed(mos: &Arc<Objset>, id: u64) -> Result<NvList> {
    let dn = mos.hold_wait(ObjectId(id)).await?;
    let bonus = dn.bonus();
    let size = bonus.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_ne_bytes).unwrap_or(0);
    if size > MAX_PACKED {
        return Err(Error::corrupt(None, format!("MOS object {id}"), format!("an nvlist of {size} bytes")));
    }
    let mut buf = vec![0; size as usize];
    dn.read_wait(0, &mut buf).await?;
    NvList::unpack(&buf).map_err(|e| Error::corrupt(None, format!("MOS object {id}"), e.to_string()))
}

/// Replaces an nvlist object's contents.
#[crate::boxed]
pub async fn write_packed(mos: &Arc<Objset>, tx: &Tx, id: u64, nv: &NvList) -> Result<()> {
    let dn = mos.hold_wait(ObjectId(id)).await?;
    let packed = nv.pack();
    let blksz = dn.blksz() as usize;
    // Whole blocks, so that nothing of the old contents need be read.
    let mut padded = packed.clone();
    padded.resize(packed.len().next_multiple_of(blksz), 0);
    dn.free_range(tx, padded.len() as u64, u64::MAX);
    dn.write(tx, 0, &padded);
    dn.set_bonus(tx, &(packed.len() as u64).to_ne_bytes());
    Ok(())
}

/// Refuses a pool that another machine used last.
pub fn check_host(config: &NvList, us: &Host) -> Result<()> {
    let (Some(id), state) = (config.u64("hostid"), config.u64("state")) else { return Ok(()) };
    if id == 0 || id == us.id || state == Some(PoolState::Exported.number()) {
        return Ok(());
    }
    let host = config.str("hostname").unwrap_or("another system");
    Err(Error::os(
        Errno::Busy,
        format!(
            "pool was previously in use from another system ({host}, hostid {id:x}); use '-f' to import anyway"
        ),
    ))
}
