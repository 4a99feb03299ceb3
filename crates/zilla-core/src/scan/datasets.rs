//! Datasets as the MOS has them, whichever MOS it is: the live one, or that of an uberblock that is being checked.

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

/// The snapshot that every dataset descends from.
pub(super) async fn origin_snapshot(mos: &Arc<Objset>) -> Result<u64> {
    let root = root_dir(mos).await?;
    let origin = Zap::open(mos, root.child_dir_zapobj).await?.get_u64("$ORIGIN").await?;
    let head = dir(mos, origin).await?.head_dataset_obj;
    Ok(dataset(mos, head).await?.prev_snap_obj)
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
