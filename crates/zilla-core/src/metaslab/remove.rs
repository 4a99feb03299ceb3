//! Taking a vdev out of the pool's space, once nothing is on it.

use super::alloc::Metaslabs;
use super::range_tree::RangeTree;
use super::slab::Metaslab;
use crate::dmu::{Dnode, Objset};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::Txg;
use std::sync::Arc;

impl Metaslabs {
    /// Whether nothing of a vdev is allocated, on its way to be, or freed too lately to be
    /// forgotten.
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
        if !self.is_empty(vdev)? {
            return Err(Error::os(Errno::Busy, format!("vdev {vdev} still holds blocks")));
        }
        self.remove_copied(mos, tx, vdev).await
    }

    /// The same of one whose blocks are elsewhere now, though they are not freed here.
    pub async fn remove_copied(&self, mos: &Arc<Objset>, tx: &Tx, vdev: u32) -> Result<()> {
        let v = self.vdev(vdev)?;
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
        self.forget_unflushed(mos, tx, &v).await?;
        self.forget_vdev(vdev);
        Ok(())
    }

    /// Reads all space maps, as an import does that is asked to.
    pub async fn load_all(&self) -> Result<()> {
        for v in self.vdevs() {
            for ms in &v.all {
                ms.load().await?;
            }
        }
        Ok(())
    }

    /// Loads a metaslab that is in use, so that it is known what of it is.
    pub async fn load_used(&self, vdev: u32, id: u64) -> Result<()> {
        let v = self.vdev(vdev)?;
        match v.all.get(id as usize).filter(|ms| ms.state().allocated > 0) {
            Some(ms) => ms.load().await,
            None => Ok(()),
        }
    }

    /// What of a stretch of a metaslab is not free at this moment, in order; None if that is not in
    /// memory.
    pub fn used_now(&self, vdev: u32, id: u64, from: u64, to: u64) -> Option<Vec<(u64, u64)>> {
        let v = self.vdev(vdev).ok()?;
        let ms = v.all.get(id as usize)?;
        let st = ms.state();
        if st.broken {
            return Some(vec![(from, to)]);
        }
        if !st.loaded {
            return (st.allocated == 0).then(Vec::new);
        }
        let mut used = RangeTree::new();
        used.add(from, to.checked_sub(from)?).ok()?;
        for free in [&st.free, &st.lent.ranges] {
            free.iter().for_each(|(start, end)| drop(used.subtract(start, end)));
        }
        Some(used.iter().collect())
    }

    /// What of a vdev is in use at or behind `from`, in order, so many bytes of it. In the syncing
    /// context it is exact: what this txg has freed by now is not in use.
    pub async fn in_use(&self, vdev: u32, from: u64, most: u64) -> Result<Vec<(u64, u64)>> {
        let v = self.vdev(vdev)?;
        let (mut out, mut found): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
        for ms in v.all.iter().filter(|ms| ms.start + ms.size > from) {
            let Some(used) = ms.in_use().await? else {
                let place = format!("metaslab {} at {:#x}", ms.id, ms.start);
                return Err(Error::corrupt(None, place, "what it holds is not known"));
            };
            for (start, end) in used.iter().filter(|(_, end)| *end > from) {
                let start = start.max(from);
                let end = end.min(start.saturating_add(most - found));
                found += end - start;
                match out.last_mut() {
                    Some(last) if last.1 == start => last.1 = end,
                    _ => out.push((start, end)),
                }
                if found >= most {
                    return Ok(out);
                }
            }
        }
        Ok(out)
    }

    /// All that is known to be in use on a vdev, in order; and the metaslabs of which it is not
    /// known what is: where they begin and end, and how many bytes are in use there.
    pub async fn known_in_use(&self, vdev: u32) -> Result<(Vec<(u64, u64)>, Vec<(u64, u64, u64)>)> {
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for ms in &self.vdev(vdev)?.all {
            match ms.in_use().await? {
                Some(used) => known.extend(used.iter()),
                None => unknown.push((ms.start, ms.start + ms.size, ms.bytes_in_use())),
            }
        }
        Ok((known, unknown))
    }

    /// Bytes in use on a vdev, in the syncing context.
    pub fn bytes_in_use(&self, vdev: u32) -> Result<u64> {
        Ok(self.vdev(vdev)?.all.iter().map(|ms| ms.bytes_in_use()).sum())
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

impl Metaslab {
    fn bytes_in_use(&self) -> u64 {
        let st = self.state();
        st.allocated.saturating_sub(st.freeing.space())
    }

    /// What is in use; None if its map cannot be read.
    async fn in_use(&self) -> Result<Option<RangeTree>> {
        let mut used = RangeTree::new();
        if self.state().allocated == 0 {
            return Ok(Some(used));
        }
        loop {
            self.load().await?;
            let st = self.state();
            if st.broken {
                return Ok(None);
            }
            if st.loaded {
                used.add(self.start, self.size).map_err(|e| self.corrupt(e))?;
                let known = [&st.free, &st.lent.ranges, &st.freeing, &st.freed];
                for not in known.into_iter().chain(&st.defer) {
                    not.iter().for_each(|(start, end)| drop(used.subtract(start, end)));
                }
                return Ok(Some(used));
            }
        }
    }
}
