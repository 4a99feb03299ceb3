//! The queue of destroyed datasets whose blocks are still to be freed (bptree).
//!
//! Destroying a dataset puts its root pointer here, and the blocks are freed a few each txg, from
//! its tree. A bookmark in the entry says how far that has come, so that an import after a crash
//! goes on instead of beginning again.
//!
//! A tree with a damaged block stalls for [`PATIENCE`], as in OpenZFS: a device that is away may
//! come back with a good copy. Then what lies below the damage is given up (what OpenZFS does with
//! `zfs_free_leak_on_eio`): it stays allocated, is counted in the dir `$LEAK`, which `zpool get
//! leaked` shows, and the queue moves on. That something was given up is noted in `$LEAK` in the
//! same txg, and goes when the queue is empty and its space is counted: a restart in between does
//! not forget it.

use super::DslPool;
use super::bpobj::Space;
use super::traverse::Lenience;
use crate::dmu::{Dnode, NewObject, resident};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::bptree::{BptreeEntryPhys, BptreePhys};
use zilla_ondisk::object_type::{DMU_OT_OBJSET, DMU_OTN_UINT64_METADATA};
use zilla_ondisk::zbookmark::ZbookmarkPhys;
use zilla_ondisk::{ByteOrder, Field, Phys, SPA_OLD_MAXBLOCKSIZE};

/// How long a damaged tree is tried again before its damaged parts are given up.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// How the tree that is being freed is getting on, since the pool was opened.
pub(super) struct Destroying {
    pub patience: Duration,
    /// How many blocks are freed in a txg, if the tunable allows as many.
    pub batch: usize,
    /// Livelists of destroyed clones, or parts of them (their keys), that could not be read: since
    /// when.
    pub damaged: BTreeMap<(u64, Option<u64>), Duration>,
    /// Those whose space is not counted, as the log was told.
    pub unreadable: BTreeSet<u64>,
    lenience: Lenience,
    /// When damage was first met.
    stalled: Option<Duration>,
}

impl Default for Destroying {
    fn default() -> Destroying {
        Destroying {
            patience: PATIENCE,
            batch: usize::MAX,
            damaged: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            lenience: Lenience::default(),
            stalled: None,
        }
    }
}

/// What was taken off the queue.
#[derive(Default)]
pub(crate) struct Taken {
    pub bps: Vec<BlkPtr>,
    /// Whether parts of a tree were given up.
    pub gave_up: bool,
    /// What the queue, now empty, had counted and nobody freed: the space of its trees is counted
    /// together.
    pub left: Option<Space>,
}

/// What waits to be freed: trees, the first to be queued first, and blocks that are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The object that queues trees; 0: there is none.
    pub queue: u64,
    /// The numbers of its first tree, and of the one that is queued next.
    pub first: u64,
    pub next: u64,
    /// How far the first has come, if that can be read.
    pub at: Option<ZbookmarkPhys>,
    /// There are listed blocks.
    pub listed: bool,
    /// How often the lists were seen empty, and how many blocks were freed, since the pool was
    /// opened.
    pub emptied: u64,
    pub freed: u64,
    /// Bytes of all.
    pub used: u64,
}

impl Waiting {
    /// Whether trees wait still that waited then.
    pub fn has_trees_of(&self, then: &Waiting) -> bool {
        // A queue begins anew when it was empty.
        let same = self.queue != 0 && self.queue == then.queue && self.next >= then.next;
        same && self.first < then.next
    }

    /// Whether some of what was listed then may still be. (The lists are freed from their ends, so
    /// what is at their beginning stays as long as others come.)
    pub fn has_lists_of(&self, then: &Waiting) -> bool {
        self.listed && self.emptied == then.emptied
    }

    /// Whether trees have got on since `then`, as far as can be told; `then` goes on to the best
    /// that was seen. What else waits says nothing of them: who destroys snapshots all the time has
    /// the sum go up and down beside trees that nobody can free.
    pub fn trees_get_on_since(&self, then: &mut Waiting) -> bool {
        let trees = self.queue != then.queue || self.first != then.first;
        let within = self.at.is_some() && self.at != then.at;
        let at = if trees { self.at } else { self.at.or(then.at) };
        let gets_on = trees || (within && then.at.is_some());
        (then.queue, then.first, then.at) = (self.queue, self.first, at);
        gets_on
    }
}

impl DslPool {
    pub async fn waiting(&self) -> Result<Waiting> {
        let used = self.freeing().await?.used;
        let listed = match &self.special().freeing {
            Some(freeing) => !freeing.bpobj.is_empty()?,
            None => false,
        };
        let listed = listed || self.deleted_clones.load(Ordering::Relaxed) != 0;
        let queue = self.bptree_obj.load(Ordering::Relaxed);
        let (mut first, mut next, mut at) = (0, 0, None);
        if queue != 0 {
            let (dn, phys) = self.bptree(queue).await?;
            (first, next) = (phys.begin, phys.end);
            if first < next {
                at = bptree_entry(&dn, first).await.ok().map(|e| e.zb);
            }
        }
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (emptied, freed) = (of(&self.lists_emptied), of(&self.async_freed));
        Ok(Waiting { queue, first, next, at, listed, emptied, freed, used })
    }

    pub(crate) async fn bptree_alloc(&self, tx: &Tx) -> Result<u64> {
        let spec = NewObject::new(DMU_OTN_UINT64_METADATA, SPA_OLD_MAXBLOCKSIZE as u32)
            .bonus(DMU_OTN_UINT64_METADATA, BptreePhys::SIZE);
        Ok(resident(|| self.mos().alloc(tx, spec)).await?.id().0)
    }

    async fn bptree(&self, id: u64) -> Result<(Arc<Dnode>, BptreePhys)> {
        let dn = self.mos().hold_wait(ObjectId(id)).await?;
        let room = (dn.maxblkid() + 1) * u64::from(dn.blksz()) / BptreeEntryPhys::SIZE as u64;
        let phys = BptreePhys::from_bonus(&dn.bonus(), ByteOrder::NATIVE, room)
            .map_err(|e| Error::corrupt(Some(Bookmark::new(0, ObjectId(id), 0, 0)), "", e.to_string()))?;
        Ok((dn, phys))
    }

    /// Queues the tree under `bp`, of which the blocks born after `birth_txg` are to be freed.
    pub(crate) async fn bptree_add(
        &self,
        tx: &Tx,
        id: u64,
        bp: BlkPtr,
        birth_txg: u64,
        s: Space,
    ) -> Result<()> {
        let (dn, mut phys) = self.bptree(id).await?;
        let entry = BptreeEntryPhys { bp, birth_txg, zb: Default::default() };
        dn.write(tx, phys.end * BptreeEntryPhys::SIZE as u64, &entry.encode());
        phys.end += 1;
        phys.bytes += s.used;
        phys.comp += s.comp;
        phys.uncomp += s.uncomp;
        dn.set_bonus(tx, &phys.encode());
        Ok(())
    }

    /// Space that is still to be freed, and whether nothing is left.
    pub(crate) async fn bptree_state(&self, id: u64) -> Result<(Space, bool)> {
        let (_, p) = self.bptree(id).await?;
        Ok((Space { used: p.bytes, comp: p.comp, uncomp: p.uncomp }, p.begin == p.end))
    }

    /// Every block still to be freed, for checks.
    pub(crate) async fn bptree_all(&self, id: u64) -> Result<Vec<BlkPtr>> {
        let (dn, phys) = self.bptree(id).await?;
        let mut out = Vec::new();
        for i in phys.begin..phys.end {
            let entry = bptree_entry(&dn, i).await?;
            check_root(id, &entry.bp)?;
            let from = super::traverse::Position::from_phys(&entry.zb);
            let walk = super::traverse::collect(&self.ctx.store, entry.bp, entry.birth_txg, from, usize::MAX);
            out.extend(walk.await?.0);
        }
        Ok(out)
    }

    /// Takes up to about `max` blocks off the first tree. They are the caller's to free.
    pub(crate) async fn bptree_take(&self, tx: &Tx, id: u64, max: usize) -> Result<Taken> {
        let (dn, mut phys) = self.bptree(id).await?;
        if phys.begin >= phys.end {
            return Ok(Taken::default());
        }
        let at = phys.begin * BptreeEntryPhys::SIZE as u64;
        let mut entry = bptree_entry(&dn, phys.begin).await?;
        check_root(id, &entry.bp)?;
        let now = self.ctx.env.now();
        let mut state = std::mem::take(&mut *self.destroying.lock());
        state.lenience.leave_out = state.stalled.is_some_and(|since| now >= since + state.patience);
        let from = super::traverse::Position::from_phys(&entry.zb);
        let (store, lenience) = (&self.ctx.store, &mut state.lenience);
        let walked =
            super::traverse::collect_with(store, entry.bp, entry.birth_txg, from, max, lenience).await;
        let (bps, next) = match walked {
            Ok(found) => found,
            Err(e) => {
                state.stalled.get_or_insert(now);
                *self.destroying.lock() = state;
                return Err(e);
            }
        };
        let (mut gave_up, mut left) = (false, None);
        if let Some(e) = state.lenience.left_out.take() {
            tracing::error!(pool = %self.name(), error = %e, "space of a destroyed dataset is lost");
            gave_up = true;
            if let Some(scan) = self.ctx.scan() {
                scan.errors.log(Bookmark::new(0, ObjectId(id), 0, phys.begin), None);
            }
        }
        let mut gone = Space::default();
        for bp in &bps {
            gone.add(super::bp_space(&*self.ctx.store, bp));
        }
        phys.bytes = phys.bytes.saturating_sub(gone.used);
        phys.comp = phys.comp.saturating_sub(gone.comp);
        phys.uncomp = phys.uncomp.saturating_sub(gone.uncomp);
        match next {
            Some(next) => {
                entry.zb = next.to_phys();
                dn.write(tx, at, &entry.encode());
            }
            None => {
                phys.begin += 1;
                (state.lenience, state.stalled) = (Lenience::default(), None);
                if phys.begin == phys.end {
                    left = Some(Space { used: phys.bytes, comp: phys.comp, uncomp: phys.uncomp });
                    // What rounding or an embedded block left over goes with the last entry.
                    (phys.bytes, phys.comp, phys.uncomp) = (0, 0, 0);
                }
                dn.free_range(tx, at, BptreeEntryPhys::SIZE as u64);
            }
        }
        dn.set_bonus(tx, &phys.encode());
        *self.destroying.lock() = state;
        Ok(Taken { bps, gave_up, left })
    }
}

async fn bptree_entry(dn: &Arc<Dnode>, i: u64) -> Result<BptreeEntryPhys> {
    let mut raw = vec![0; BptreeEntryPhys::SIZE];
    dn.read_wait(i * BptreeEntryPhys::SIZE as u64, &mut raw).await?;
    BptreeEntryPhys::decode(&raw, ByteOrder::NATIVE)
        .map_err(|e| Error::corrupt(Some(Bookmark::new(0, dn.id(), 0, 0)), "", e.to_string()))
}

/// What is queued is the root of a dataset. An entry without one would only make the queue look
/// longer than it is.
fn check_root(id: u64, bp: &BlkPtr) -> Result<()> {
    if bp.is_hole() || bp.otype() != DMU_OT_OBJSET {
        let b = Bookmark::new(0, ObjectId(id), 0, 0);
        return Err(Error::corrupt(Some(b), "", format!("the queue of destroyed datasets has {bp}")));
    }
    Ok(())
}
