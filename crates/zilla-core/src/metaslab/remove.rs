//! Taking a vdev out of the pool's space, once nothing is on it.

use super::alloc::Metaslabs;
use crate::dmu::{Dnode, Objset};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::Txg;
use std::sync::Arc;

impl Metaslabs {
    /// Whether nothing of a vdev is allocated, on its way to be, or freed too lately to be forgotten.
    pub fn is_empty(&self, vdev: u32) -> Result<bool> {
        let v = self.vdev(vdev)?;
        Ok(v.all.iter().all(|ms| {
            let st = ms.state();
            st.allocated == 0 && st.is_idle()
        }))
    }

    /// Forgets a new vdev that did not become part of the pool after all.
    pub fn forget_vdev(&self, vdev: u32) {
        for list in &self.dirty {
            list.lock().retain(|(v, _)| *v != vdev);
        }
        self.synced.lock().retain(|(v, _)| *v != vdev);
        self.drop_vdev(vdev);
        self.rebalance();
    }

    /// Removes a vdev on which nothing is: its maps, and what the logs know of it.
    pub async fn remove_vdev(&self, mos: &Arc<Objset>, tx: &Tx, vdev: u32) -> Result<()> {
        let v = self.vdev(vdev)?;
        if !self.is_empty(vdev)? {
            return Err(Error::os(Errno::Busy, format!("vdev {vdev} still holds blocks")));
        }
        let maps: Vec<Arc<Dnode>> =
            v.all.iter().filter_map(|ms| Some(ms.state().sm.as_ref()?.dnode().clone())).collect();
        let array = v.array_object(mos).await?;
        let unflushed = self.unflushed_if_there(mos, &v).await?;

        self.leave_logs(&v);
        for dn in maps {
            self.count_map(&dn, -1);
            mos.free(tx, &dn);
        }
        for dn in array.into_iter().chain(unflushed) {
            mos.free(tx, &dn);
        }
        self.forget_vdev(vdev);
        Ok(())
    }

    /// From now on no log concerns the vdev's metaslabs.
    fn leave_logs(&self, v: &super::vdev::VdevSpace) {
        let mut log = self.log.lock();
        for ms in &v.all {
            let mut st = ms.state();
            log.left(v.spec.id, ms, &mut st);
            st.unflushed_allocs.clear();
            st.unflushed_frees.clear();
            st.unflushed_txg = Txg(0);
            st.unflushed_dirty = false;
        }
    }
}
