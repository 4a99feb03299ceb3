//! Datasets as the MOS has them, whichever MOS it is: the live one, or that of an uberblock that is
//! being checked.

use crate::dmu::{Dnode, Objset};
use crate::error::{Error, Result};
use crate::types::{Bookmark, ObjectId};
use crate::zap::Zap;
use std::collections::BTreeSet;
use std::sync::Arc;
use zilla_ondisk::dsl::{DMU_POOL_DIRECTORY_OBJECT, DMU_POOL_ROOT_DATASET, DslDatasetPhys, DslDirPhys};
use zilla_ondisk::{ByteOrder, Phys};

fn decode<P: Phys>(dn: &Dnode) -> Result<P> {
    P::decode(&dn.bonus(), ByteOrder::NATIVE)
        .map_err(|e| Error::corrupt(Some(Bookmark::new(0, dn.id(), 0, 0)), "", e.to_string()))
}

pub(super) async fn dataset(mos: &Arc<Objset>, id: u64) -> Result<DslDatasetPhys> {
    decode(&*mos.hold_wait(ObjectId(id)).await?)
}

pub(super) async fn dir(mos: &Arc<Objset>, id: u64) -> Result<DslDirPhys> {
    decode(&*mos.hold_wait(ObjectId(id)).await?)
}

/// The snapshot that every dataset descends from; 0 in pools that have none.
pub(super) async fn origin_snapshot(mos: &Arc<Objset>) -> Result<u64> {
    let root = root_dir(mos).await?;
    let Some(origin) = Zap::open(mos, root.child_dir_zapobj).await?.try_get_u64("$ORIGIN").await? else {
        return Ok(0);
    };
    let head = dir(mos, origin).await?.head_dataset_obj;
    Ok(dataset(mos, head).await?.prev_snap_obj)
}

/// The first of the chain of snapshots that a head ends: the one whose predecessor is `end`.
pub(super) async fn first_after(mos: &Arc<Objset>, head: u64, end: u64) -> Result<(u64, DslDatasetPhys)> {
    let (mut at, mut seen) = (head, BTreeSet::new());
    let mut d = dataset(mos, at).await?;
    while d.prev_snap_obj != end && d.prev_snap_obj != 0 {
        if !seen.insert(d.prev_snap_obj) {
            let what = format!("the snapshots of dataset {head} form a loop");
            return Err(Error::corrupt(None, "MOS", what));
        }
        at = d.prev_snap_obj;
        d = dataset(mos, at).await?;
    }
    Ok((at, d))
}

async fn root_dir(mos: &Arc<Objset>) -> Result<DslDirPhys> {
    let root = Zap::open(mos, DMU_POOL_DIRECTORY_OBJECT).await?.get_u64(DMU_POOL_ROOT_DATASET).await?;
    dir(mos, root).await
}

/// Every dir of the pool, the special ones included.
pub(super) async fn all_dirs(mos: &Arc<Objset>) -> Result<Vec<DslDirPhys>> {
    let mut todo = vec![root_dir(mos).await?];
    let (mut out, mut seen) = (Vec::new(), BTreeSet::new());
    while let Some(d) = todo.pop() {
        if d.child_dir_zapobj != 0 {
            for e in Zap::open(mos, d.child_dir_zapobj).await?.entries().await? {
                if let Some(id) = e.value.as_u64() {
                    if !seen.insert(id) {
                        let b = Bookmark::new(0, ObjectId(id), 0, 0);
                        return Err(Error::corrupt(Some(b), "", format!("dir {id} is in the tree twice")));
                    }
                    todo.push(dir(mos, id).await?);
                }
            }
        }
        out.push(d);
    }
    Ok(out)
}
