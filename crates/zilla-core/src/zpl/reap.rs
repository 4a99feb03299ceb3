//! Freeing files that have neither a name nor a user any more.
//!
//! Until then they stand in the delete queue, so that a crash (or an unmount with files open) only
//! puts the freeing off to the next mount. A large file is freed from its end on, a part a txg
//! ([`crate::dmu::PART`]), and stays in the queue meanwhile; a crash between two parts leaves the
//! rest to the next mount. The end is one transaction: out of the queue, and the object with the
//! blocks that are left.

use super::attrs::Attrs;
use super::fs::Zfs;
use super::znode::{Locked, State, Znode};
use super::{PFLAG_XATTR, acl, dirent_obj};
use crate::dmu::{Dnode, Now, PART, Stop, count, resident};
use crate::error::{Errno, Result};
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::zap::{END, Zap};
use futures_util::FutureExt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long one rests that found no room.
const CROWDED: Duration = Duration::from_secs(5);

impl Zfs {
    /// Frees a file that lost its last user, if it has no name. At once if all it takes is in
    /// memory; else a task does it.
    pub(super) fn reap_if_unlinked(self: &Arc<Self>, id: u64) {
        if self.is_readonly() {
            return;
        }
        // A file without a name is in memory as long as it is used.
        let Ok(zn) = self.znode(id) else { return };
        let unlinked = {
            let state = zn.state.lock();
            state.attrs.links == 0 && !state.gone
        };
        drop(zn);
        if !unlinked {
            return;
        }
        let zfs = self.clone();
        let mut task = Box::pin(async move {
            // Failing (the pool is suspended or closing) leaves the file in the queue for the next
            // mount.
            let _ = Zfs::reap(zfs, id).await;
        });
        if (&mut task).now_or_never().is_none() {
            self.env.spawner.spawn(task);
        }
    }

    /// Frees a file, and then the directory of its extended attributes, which the same transaction
    /// put into the queue. While a part's txg is waited for, or room in a pool that is too full
    /// even for that, the file system is not held, so that who destroys or unmounts it need not
    /// wait; if it is gone then, the next mount goes on.
    pub(super) async fn reap(self: Arc<Self>, id: u64) -> Result<()> {
        let (weak, txgs) = (Arc::downgrade(&self), self.txgs()?.clone());
        let (mut zfs, mut next) = (self, id);
        while next != 0 {
            let id = next;
            let zn = resident(|| zfs.znode(id)).await?;
            let (is_xattr_dir, xattr_obj) = {
                let a = &zn.state.lock().attrs;
                (a.is_dir() && a.pflags & PFLAG_XATTR != 0, a.xattr_obj)
            };
            if is_xattr_dir {
                zfs.purge_xattr_dir(id).await?;
            }
            let mut begun = false;
            let freed = loop {
                let part = zn.dnode().last_part(0, u64::MAX, zfs.part()).await?;
                let done = match part {
                    Some(at) => zfs.change(|tx| Ok((zfs.reap_part(tx, &zn, at, begun)?, tx.txg()))).await,
                    None => zfs.change(|tx| Ok((zfs.reap_now(tx, id, xattr_obj, begun)?, tx.txg()))).await,
                };
                let synced = match done {
                    Ok((ours, _)) if part.is_none() || !ours => break ours,
                    Ok((_, txg)) => {
                        begun = true;
                        Some(txg)
                    }
                    Err(e) if e.is(Errno::NoSpc) => None,
                    Err(e) => return Err(e),
                };
                let env = zfs.env.clone();
                drop(zfs);
                match synced {
                    Some(txg) => txgs.wait_synced(txg).await?,
                    None => env.sleep(CROWDED).await,
                }
                let Some(again) = weak.upgrade() else { return Ok(()) };
                zfs = again;
            };
            // Until here the file in memory says that it is going.
            drop(zn);
            next = if freed { xattr_obj } else { 0 };
        }
        Ok(())
    }

    /// Whether nobody else frees the file or has come to use it again. From the first part on
    /// nobody may.
    fn is_ours(&self, zn: &Znode, state: &State, begun: bool) -> bool {
        begun || !(state.gone || state.attrs.links != 0 || self.znodes.in_use(zn.id()))
    }

    /// Frees what lies behind a place of the file; false if someone has come to use it again.
    fn reap_part(&self, tx: &Tx, zn: &Arc<Znode>, at: u64, begun: bool) -> Now<bool> {
        let mut state = zn.state.lock();
        if !self.is_ours(zn, &state, begun) {
            return Ok(false);
        }
        self.admit(tx, 0, true)?;
        zn.dnode().in_order(tx)?;
        state.gone = true;
        zn.dnode().free_some(tx, at, u64::MAX, PART);
        Ok(true)
    }

    /// The object that holds an old file's ACL, if it is outside, to be freed with the file or when
    /// it gets another ACL.
    pub(super) fn extern_acl(&self, tx: &Tx, attrs: &Attrs) -> Now<Option<Arc<Dnode>>> {
        let id = attrs.legacy_acl().map_or(0, acl::legacy_extern);
        if id == 0 {
            return Ok(None);
        }
        let dn = self.objset.hold(ObjectId(id))?;
        dn.in_order(tx)?;
        Ok(Some(dn))
    }

    /// Frees the file, or what is left of it; false if someone has come to use it again.
    fn reap_now(&self, tx: &Tx, id: u64, xattr_obj: u64, begun: bool) -> Now<bool> {
        let zn = self.znode(id)?;
        let xattr_dir = if xattr_obj == 0 { None } else { self.znode_if_any(xattr_obj)? };
        let mut locked = match &xattr_dir {
            Some(x) => Locked::new(&[&zn, x]),
            None => Locked::new(&[&zn]),
        };
        let state = locked.get(&zn);
        if !self.is_ours(&zn, state, begun) {
            return Ok(false);
        }
        let acl_obj = self.extern_acl(tx, &state.attrs)?;
        let plan = match &xattr_dir {
            Some(x) => Some(self.plan(tx, x, locked.get(x), |a| a.links = 0)?),
            None => None,
        };
        self.admit(tx, 0, true)?;
        zn.dnode().in_order(tx)?;
        let _queue = match &xattr_dir {
            Some(_) => self.enqueue(tx, xattr_obj)?,
            None => self.queue.lock(),
        };
        match self.delete_queue()?.remove(tx, Zfs::queue_key(id).as_bytes()) {
            // After a rollback it may not be in the queue.
            Err(Stop::Err(e)) if e.is(Errno::NoEnt) => {}
            Ok(()) => {}
            Err(stop) => {
                if xattr_dir.is_some() {
                    self.dequeue(tx, xattr_obj);
                }
                return Err(stop);
            }
        }
        if let (Some(x), Some(plan)) = (&xattr_dir, plan) {
            plan.apply(tx, x, locked.get_mut(x));
        }
        if let Some(dn) = acl_obj {
            self.objset.free(tx, &dn);
        }
        locked.get_mut(&zn).gone = true;
        self.objset.free(tx, zn.dnode());
        count(&self.objset.stats.unlinked, 1);
        drop(locked);
        self.znodes.forget(id);
        Ok(true)
    }

    fn znode_if_any(&self, id: u64) -> Now<Option<Arc<super::Znode>>> {
        match self.znode(id) {
            Ok(zn) => Ok(Some(zn)),
            Err(Stop::Err(e)) if e.is(Errno::NoEnt) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Frees the files in a directory of extended attributes. Nobody else can reach them: the
    /// directory's file is gone.
    async fn purge_xattr_dir(self: &Arc<Self>, id: u64) -> Result<()> {
        // Nothing is added any more, so what lies before the first entry stays empty.
        let mut at = 0;
        loop {
            let left = self
                .change(|tx| {
                    let dir = self.znode(id)?;
                    let zap = Zap::new(dir.dnode());
                    let batch = zap.read_on(&mut at, 1)?;
                    let Some(e) = batch.entries.into_iter().next() else { return Ok(false) };
                    let child = match e.value.as_u64() {
                        Some(v) => self.znode_if_any(dirent_obj(v))?,
                        None => None,
                    };
                    if let Some(child) = &child {
                        child.dnode().in_order(tx)?;
                    }
                    zap.remove(tx, &e.name)?;
                    if let Some(child) = child {
                        child.state.lock().gone = true;
                        self.objset.free(tx, child.dnode());
                        self.znodes.forget(child.id());
                    }
                    Ok(true)
                })
                .await?;
            if !left {
                return Ok(());
            }
        }
    }

    /// Frees everything in the delete queue that nobody uses: what a crash or an unmount left. Run
    /// once after a mount.
    #[crate::boxed]
    pub async fn drain_unlinked(self: &Arc<Self>) -> Result<u64> {
        Zfs::drain(Arc::downgrade(self)).await
    }

    /// The same beside the users of a mount; ends early when there are no others any more, for the
    /// next mount to go on.
    #[crate::boxed]
    pub async fn drain_unlinked_behind(self: Arc<Self>) -> Result<u64> {
        let weak = Arc::downgrade(&self);
        drop(self);
        Zfs::drain(weak).await
    }

    async fn drain(weak: Weak<Self>) -> Result<u64> {
        let (mut at, mut done) = (0, 0);
        while at != END {
            let Some(zfs) = weak.upgrade().filter(|z| !z.is_readonly()) else { return Ok(done) };
            let Some(queue) = &zfs.unlinked else { return Ok(done) };
            let batch = resident(|| queue.read_on(&mut at, 64)).await?;
            drop(zfs);
            at = batch.next;
            for id in batch.entries.into_iter().filter_map(|e| e.value.as_u64()) {
                let Some(zfs) = weak.upgrade() else { return Ok(done) };
                match Zfs::drain_one(zfs, id).await {
                    Ok(()) => done += 1,
                    // One damaged file must not keep the others.
                    Err(e) => tracing::warn!("cannot free unlinked file {id}: {e}"),
                }
            }
        }
        Ok(done)
    }

    pub(super) async fn drain_one(self: Arc<Self>, id: u64) -> Result<()> {
        let zn = resident(|| self.znode_if_any(id)).await?;
        let Some(zn) = zn else {
            // Queued, but its object is gone: only the entry is left to take away.
            let forget = |tx: &Tx| {
                let _queue = self.queue.lock();
                // Unless the number was given out again meanwhile.
                if !self.is_queued(id)? || self.znode_if_any(id)?.is_some() {
                    return Ok(());
                }
                self.delete_queue()?.remove(tx, Zfs::queue_key(id).as_bytes())
            };
            return self.change(forget).await;
        };
        // The queue is what decides, as in OpenZFS: a file in it has no name whatever its link
        // count says. But it was read a while ago. Since then a user may have given the file a
        // name; or its last user has freed it, and its number is another file's.
        let unlinked = resident(|| {
            let mut state = zn.state.lock();
            let _queue = self.queue.lock();
            let queued = !state.gone && self.is_queued(id)?;
            if queued {
                state.attrs.links = 0;
            }
            Ok(queued)
        });
        let unlinked = unlinked.await?;
        drop(zn);
        if unlinked { self.reap(id).await } else { Ok(()) }
    }

    /// Whether a file is in the delete queue, which the caller has locked.
    fn is_queued(&self, id: u64) -> Now<bool> {
        self.delete_queue()?.contains(Zfs::queue_key(id).as_bytes())
    }
}
