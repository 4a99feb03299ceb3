//! Files in memory: one [`Znode`] for each object in use, found by its number.
//!
//! A change of attributes is prepared first ([`Zfs::plan`]: new attributes and their bytes, nothing
//! changed) and applied last ([`Plan::apply`], which cannot fail). The table forgets files nobody
//! uses when the pool has too many in memory; what the kernel's inode cache remembers is only
//! counted, so that a client's `find` over a million files costs a counter each.

use super::attrs::{Attrs, decode_time, encode_time};
use super::fs::{Atime, Zfs};
use super::sa::Packed;
use super::types::{Attr, S_IFREG, Time};
use super::{ZFS_ARCHIVE, ZFS_AV_MODIFIED, ZPL_VERSION_FUID};
use crate::dmu::objects::{Extra, Table};
use crate::dmu::{Dnode, Now, Zfetch, resident};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::ObjectId;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap};
use std::ops::Deref;
use std::sync::{Arc, Weak};
use zilla_ondisk::nvlist::NvList;

const SHARDS: usize = 64;

/// A file in memory.
pub struct Znode {
    id: u64,
    dnode: Arc<Dnode>,
    pub(super) state: Mutex<State>,
    pub(super) zfetch: Zfetch,
}

pub(super) struct State {
    pub(super) attrs: Attrs,
    /// The extended attributes in `attrs.dxattr`, once they were looked at.
    xattrs: Option<Arc<NvList>>,
    extra: Extra,
    /// The access time in memory is newer than the one on disk.
    pub(super) atime_dirty: bool,
    /// The object is being freed.
    pub(super) gone: bool,
    /// Made without a name, and may still get one.
    pub(super) unnamed: bool,
}

impl Znode {
    pub(super) fn new(dnode: Arc<Dnode>, attrs: Attrs) -> Arc<Znode> {
        let extra = Extra::new(dnode.shared.cache.clone());
        let mut state = State { attrs, xattrs: None, extra, atime_dirty: false, gone: false, unnamed: false };
        state.recount();
        let (id, state) = (dnode.id().0, Mutex::new(state));
        Arc::new(Znode { id, dnode, state, zfetch: Zfetch::default() })
    }
    pub fn id(&self) -> u64 {
        self.id
    }
    pub(super) fn dnode(&self) -> &Arc<Dnode> {
        &self.dnode
    }
}

impl State {
    pub(super) fn xattrs(&self) -> Option<&Arc<NvList>> {
        self.xattrs.as_ref()
    }

    pub(super) fn set_xattrs(&mut self, list: Option<Arc<NvList>>) {
        self.xattrs = list;
        self.recount();
    }

    /// Counts what the file has in memory.
    fn recount(&mut self) {
        // (An unpacked list takes more than what it is packed as.)
        let list = if self.xattrs.is_some() { 2 * self.attrs.dxattr.len() } else { 0 };
        self.extra.set((self.attrs.len() + list) as u64);
    }
}

impl std::fmt::Debug for Znode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Znode({})", self.id)
    }
}

#[derive(Default)]
struct Shard {
    znodes: HashMap<u64, Arc<Znode>>,
    /// Who uses a file, by its number: [`Held`]s, and references that clients have.
    users: HashMap<u64, u64>,
    /// How often files have left `znodes`. Attributes that were read meanwhile may be old: the file
    /// may have come, been changed and gone again.
    left: u64,
}

pub(super) struct Znodes {
    shards: [Mutex<Shard>; SHARDS],
    /// Files whose access time is to be written some time.
    pub(super) atimes: Mutex<Atimes>,
}

/// Each keeps its file in memory until it is written, so that they are not left to the next sync
/// where many files are only read.
#[derive(Default)]
pub(super) struct Atimes {
    ids: BTreeSet<u64>,
    /// So many could not be written when it was last tried.
    failed: usize,
    /// A task writes them.
    flushing: bool,
}

/// With so many more access times in memory than could not be written they are written.
const ATIMES: usize = 4096;

impl Default for Znodes {
    fn default() -> Self {
        Znodes { shards: std::array::from_fn(|_| Mutex::default()), atimes: Mutex::default() }
    }
}

impl Table for Znodes {
    /// Lets go of half of what nobody uses. Hash order is as good as any.
    fn trim(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let mut spare = shard.znodes.len().div_ceil(2);
            shard.znodes.retain(|_, z| {
                let unused = spare > 0 && Arc::strong_count(z) == 1;
                // One without a name is freed when its last user goes, who does not wait for it to
                // be read again to learn that ([`Zfs::forget`]).
                let named = |s: &State| s.attrs.links != 0;
                let idle = unused && z.state.try_lock().is_some_and(|s| !s.atime_dirty && named(&s));
                spare -= usize::from(idle);
                !idle
            });
            shard.left += 1;
        }
    }
}

impl Znodes {
    fn shard(&self, id: u64) -> MutexGuard<'_, Shard> {
        self.shards[(id as usize).wrapping_mul(0x9E37_79B1) >> 8 & (SHARDS - 1)].lock()
    }

    fn get(&self, id: u64) -> Option<Arc<Znode>> {
        self.find(id).ok()
    }

    /// A file of the table, or how many have left so far, which is for who reads it now.
    pub(super) fn find(&self, id: u64) -> Result<Arc<Znode>, u64> {
        let shard = self.shard(id);
        shard.znodes.get(&id).cloned().ok_or(shard.left)
    }

    /// Puts a file in the table, unless another thread was faster: then that one's is taken. `left`
    /// is what there was before its attributes were read; None where there is no other way to it
    /// yet. Comes to nothing if they may be old.
    pub(super) fn insert(&self, zn: Arc<Znode>, left: Option<u64>) -> Option<Arc<Znode>> {
        let mut shard = self.shard(zn.id);
        // Who looked an object up just before it was freed, and comes here just after, must not put
        // it back: the number may come to mean another file.
        if zn.dnode.is_freed() {
            zn.state.lock().gone = true;
            return Some(zn);
        }
        match shard.znodes.get(&zn.id) {
            Some(old) if Arc::ptr_eq(&old.dnode, &zn.dnode) => Some(old.clone()),
            _ if left.is_some_and(|left| left != shard.left) => None,
            _ => {
                shard.znodes.insert(zn.id, zn.clone());
                Some(zn)
            }
        }
    }

    pub(super) fn forget(&self, id: u64) {
        let mut shard = self.shard(id);
        shard.znodes.remove(&id);
        shard.left += 1;
    }

    pub(super) fn use_more(&self, id: u64, n: u64) {
        *self.shard(id).users.entry(id).or_insert(0) += n;
    }

    /// Takes `n` uses back; true if that were the last.
    fn use_less(&self, id: u64, n: u64) -> bool {
        let mut shard = self.shard(id);
        let Some(count) = shard.users.get_mut(&id) else { return false };
        *count = count.saturating_sub(n);
        if *count > 0 {
            return false;
        }
        shard.users.remove(&id);
        true
    }

    /// Who is used by anybody.
    fn used(&self) -> Vec<u64> {
        self.shards.iter().flat_map(|s| s.lock().users.keys().copied().collect::<Vec<_>>()).collect()
    }

    pub(super) fn in_use(&self, id: u64) -> bool {
        self.shard(id).users.contains_key(&id)
    }
}

/// A file that someone uses: while there is one, the file is not freed even if its last name goes.
pub struct Held {
    zfs: Arc<Zfs>,
    zn: Arc<Znode>,
}

impl Held {
    /// Leaves the use standing, for a client that will give it back by number with [`Zfs::forget`].
    pub fn leak(self) -> u64 {
        let id = self.zn.id;
        self.zfs.znodes.use_more(id, 1);
        id
    }
    pub fn zfs(&self) -> &Arc<Zfs> {
        &self.zfs
    }
}

impl Deref for Held {
    type Target = Arc<Znode>;
    fn deref(&self) -> &Arc<Znode> {
        &self.zn
    }
}

impl Clone for Held {
    fn clone(&self) -> Held {
        self.zfs.held(self.zn.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.zfs.forget(self.zn.id, 1);
    }
}

/// New attributes of a file, ready to be written.
pub(super) struct Plan {
    pub(super) attrs: Attrs,
    packed: Packed,
}

impl Plan {
    /// Makes the planned attributes the file's.
    pub(super) fn apply(self, tx: &Tx, zn: &Znode, state: &mut State) {
        zn.dnode.set_bonus(tx, &self.packed.bonus);
        let had_spill = !matches!(zn.dnode.spill(), Ok(None));
        if self.packed.spill.is_some() || had_spill {
            zn.dnode.set_spill(tx, self.packed.spill.map(Into::into));
        }
        let before = state.extra.bytes();
        state.attrs = self.attrs;
        state.atime_dirty = false;
        state.recount();
        // It cannot go before it is synced.
        tx.holds(state.extra.bytes().saturating_sub(before));
    }
}

/// Locks of several files, taken in ascending order.
pub(super) struct Locked<'a> {
    guards: SmallVec<[(u64, MutexGuard<'a, State>); 4]>,
}

impl<'a> Locked<'a> {
    pub(super) fn new(znodes: &[&'a Arc<Znode>]) -> Locked<'a> {
        let mut sorted: SmallVec<[&'a Arc<Znode>; 4]> = znodes.iter().copied().collect();
        sorted.sort_by_key(|z| z.id);
        sorted.dedup_by_key(|z| z.id);
        Locked { guards: sorted.iter().map(|z| (z.id, z.state.lock())).collect() }
    }

    pub(super) fn get(&self, zn: &Znode) -> &State {
        &self.guards.iter().find(|(id, _)| *id == zn.id).expect("locked together").1
    }

    pub(super) fn get_mut(&mut self, zn: &Znode) -> &mut State {
        &mut self.guards.iter_mut().find(|(id, _)| *id == zn.id).expect("locked together").1
    }
}

impl Zfs {
    /// Files that clients or operations know.
    pub fn files_in_use(&self) -> Vec<u64> {
        self.znodes.used()
    }

    /// The file of this number.
    pub(super) fn znode(&self, id: u64) -> Now<Arc<Znode>> {
        loop {
            let left = match self.znodes.find(id) {
                Ok(zn) => return Ok(zn),
                Err(left) => left,
            };
            let dnode = self.objset.hold(ObjectId(id))?;
            let attrs = Attrs::load(&self.sa, &dnode)?;
            if let Some(zn) = self.znodes.insert(Znode::new(dnode, attrs), Some(left)) {
                zn.dnode.spill_used();
                return Ok(zn);
            }
        }
    }

    /// Puts an object that was just made into the table.
    pub(super) fn adopt(&self, dnode: Arc<Dnode>, attrs: Attrs) -> Arc<Znode> {
        self.znodes.insert(Znode::new(dnode, attrs), None).expect("nobody has changed it before")
    }

    pub(super) fn held(self: &Arc<Self>, zn: Arc<Znode>) -> Held {
        self.znodes.use_more(zn.id, 1);
        Held { zfs: self.clone(), zn }
    }

    /// The file of this number, in use.
    pub async fn hold(self: &Arc<Self>, id: u64) -> Result<Held> {
        let held = resident(|| Ok(self.held(self.znode(id)?))).await?;
        if held.state.lock().gone {
            return Err(stale(id));
        }
        Ok(held)
    }

    /// Gives back `n` uses of a file; its space is freed if they were the last and it has no name.
    pub fn forget(self: &Arc<Self>, id: u64, n: u64) {
        if self.znodes.use_less(id, n) {
            self.reap_if_unlinked(id);
        }
    }

    /// Prepares a change of attributes: `f` makes it on a copy.
    pub(super) fn plan(&self, tx: &Tx, zn: &Znode, state: &State, f: impl FnOnce(&mut Attrs)) -> Now<Plan> {
        let mut attrs = state.attrs.clone();
        f(&mut attrs);
        self.pack(tx, zn, attrs)
    }

    pub(super) fn pack(&self, tx: &Tx, zn: &Znode, attrs: Attrs) -> Now<Plan> {
        zn.dnode.in_order(tx)?;
        let packed = attrs.pack(&self.sa, tx, bonus_room(&zn.dnode))?;
        Ok(Plan { attrs, packed })
    }

    /// Notes that contents were changed, as OpenZFS does: both times, and the flags backup programs
    /// look at.
    pub(super) fn content_modified(&self, attrs: &mut Attrs, now: Time) {
        attrs.mtime = encode_time(now);
        attrs.ctime = encode_time(now);
        if self.version >= ZPL_VERSION_FUID {
            attrs.pflags |= ZFS_ARCHIVE | ZFS_AV_MODIFIED;
        }
    }

    /// Notes that attributes were changed.
    pub(super) fn state_changed(&self, attrs: &mut Attrs, now: Time) {
        attrs.ctime = encode_time(now);
        if self.version >= ZPL_VERSION_FUID {
            attrs.pflags |= ZFS_ARCHIVE;
        }
    }

    pub(super) fn attr_of(&self, zn: &Znode, state: &State) -> Attr {
        state.attrs.attr(zn.id, &zn.dnode, self.props().recordsize)
    }

    pub(super) fn attr(&self, zn: &Znode) -> Attr {
        self.attr_of(zn, &zn.state.lock())
    }

    /// A file's attributes, if they are in memory.
    pub fn try_getattr(&self, id: u64) -> Now<Attr> {
        let zn = self.znode(id)?;
        let state = zn.state.lock();
        if state.gone {
            return Err(stale(id).into());
        }
        Ok(self.attr_of(&zn, &state))
    }

    pub async fn getattr(&self, id: u64) -> Result<Attr> {
        resident(|| self.try_getattr(id)).await
    }

    /// Notes that a file was read.
    pub(super) fn accessed(&self, zn: &Znode) {
        let mode = self.props().atime;
        if mode == Atime::Off || self.is_readonly() {
            return;
        }
        let now = self.now();
        let mut state = zn.state.lock();
        let a = &mut state.attrs;
        let old = decode_time(a.atime);
        let due = mode == Atime::On
            || old <= decode_time(a.mtime)
            || old <= decode_time(a.ctime)
            || now.sec.saturating_sub(old.sec) >= 24 * 3600;
        // A second is fine enough for a time that costs a write.
        if !due || (mode == Atime::On && old.sec == now.sec) {
            return;
        }
        a.atime = encode_time(now);
        if state.atime_dirty {
            return;
        }
        state.atime_dirty = true;
        drop(state);
        let mut atimes = self.znodes.atimes.lock();
        atimes.ids.insert(zn.id);
        let most = if zn.dnode.shared.cache.objects.is_full() { ATIMES / 64 } else { ATIMES };
        let many = atimes.ids.len() >= atimes.failed + most && !atimes.flushing;
        if let Some(zfs) = self.myself.get().filter(|_| many).and_then(Weak::upgrade) {
            atimes.flushing = true;
            drop(atimes);
            let task = async move {
                if let Err(e) = zfs.flush_atimes().await {
                    tracing::warn!("writing access times: {e}");
                }
                zfs.znodes.atimes.lock().flushing = false;
            };
            self.env.spawn(task);
        }
    }

    /// Writes access times that are only in memory. Those that cannot be written stay for the next
    /// time, as do all that are left when this is dropped.
    pub async fn flush_atimes(&self) -> Result<()> {
        let (mut at, mut failed, mut result) = (0, 0, Ok(()));
        while !self.is_readonly() && self.check_lives().is_ok() {
            let Some((id, zn)) = self.next_atime(at) else { break };
            at = id + 1;
            let written = self.change(|tx| {
                let mut state = zn.state.lock();
                if state.atime_dirty && !state.gone {
                    let plan = self.plan(tx, &zn, &state, |_| ())?;
                    plan.apply(tx, &zn, &mut state);
                    tx.dirtied(512);
                }
                // Before anyone can read it again.
                self.znodes.atimes.lock().ids.remove(&id);
                Ok(())
            });
            if let Err(e) = written.await {
                failed += 1;
                result = result.and(Err(e));
            }
        }
        self.znodes.atimes.lock().failed = failed;
        result
    }

    /// The next file from `at` on whose access time is only in memory.
    fn next_atime(&self, at: u64) -> Option<(u64, Arc<Znode>)> {
        let mut atimes = self.znodes.atimes.lock();
        loop {
            let id = *atimes.ids.range(at..).next()?;
            match self.znodes.get(id) {
                Some(zn) => return Some((id, zn)),
                // It was freed.
                None => atimes.ids.remove(&id),
            };
        }
    }

    /// How many access times are only in memory.
    #[cfg(test)]
    pub(super) fn atimes_waiting(&self) -> usize {
        self.znodes.atimes.lock().ids.len()
    }

    /// Reads the attributes of every file in memory anew: after a rollback nothing of it is true
    /// any more.
    pub fn forget_all(&self) {
        self.znodes.atimes.lock().ids.clear();
        for shard in &self.znodes.shards {
            let mut shard = shard.lock();
            shard.znodes.clear();
            shard.left += 1;
        }
    }
}

pub(super) fn stale(id: u64) -> Error {
    Error::os(crate::error::Errno::Stale, format!("file {id} is gone"))
}

/// Room for a file's bonus when it has no spill pointer.
pub(super) fn bonus_room(dnode: &Dnode) -> usize {
    dnode.max_bonus_len()
}

/// Whether a file has contents of its own, and not a meaning.
pub(super) fn is_regular(attrs: &Attrs) -> bool {
    attrs.fmt() == S_IFREG
}
