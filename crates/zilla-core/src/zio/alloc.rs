//! The seam between block writes and space: who says where a block goes.
//!
//! Writing asks for many blocks at a time, so that neighbours in an object become neighbours on
//! disk and the allocator's locks are taken once a run. Allocation never waits: what it needs from
//! disk (a metaslab's space map) it names, the writer loads that and goes on with the requests that
//! are left.
//!
//! The writer, not the allocator, makes gang blocks: [`AllocStop::NoSpc`] says that no run of the
//! size is left, not that the pool is full.

use crate::error::{Errno, Error, Result};
use crate::types::Txg;
use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use zilla_ondisk::blkptr::Dva;

/// The copies of one block. Their `asize` includes parity and padding.
pub type Dvas = SmallVec<[Dva; 3]>;

/// How much of the slop an allocation, or a promise of one, leaves untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// New data, and the intent log: half of it.
    Half,
    /// What will rather free space, but rewrites some first: a quarter.
    Quarter,
    /// What was acknowledged before a crash and is done again; what only frees: an eighth.
    Eighth,
    /// The same when nothing else is being done and no space will come back.
    Sixteenth,
    /// Administration, in a sync: a quarter, whatever later txgs free. That frees go further than
    /// other changes must not have it refused.
    Task,
    /// The same that frees: an eighth.
    FreeingTask,
}

/// Which vdevs a block may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllocClass {
    Normal,
    /// Intent log blocks: log devices first, the normal ones when they are full or missing.
    Log,
    Special,
    /// A file's small block: special vdevs first, while what metadata may need of them is left.
    SmallBlock,
    Dedup,
}

/// A place on a vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// So many bytes behind the last one; if that is not right behind it, where much is free.
    After(u64),
    /// As low as there is room: what has become free is used again first.
    Lowest,
}

/// A vdev, and a place there.
pub type Spot = (u32, At);

/// The best first.
pub type Spots = [Option<Spot>; 2];

/// One block to be placed.
#[derive(Clone, Copy, Debug)]
pub struct AllocReq {
    pub class: AllocClass,
    /// Bytes to be written; a multiple of 512.
    pub psize: u64,
    /// How many copies (1 to 3), on different top-level vdevs as far as there are any.
    pub copies: u8,
    /// As many as a pointer can have: two where its third place holds salt and IV.
    pub most_copies: u8,
    /// The block is a gang's header: of 512 bytes, and worth space that is held back from others.
    pub gang_header: bool,
    /// Where it is best, of each class on the first of these that is of it; if there is no room, as
    /// that says on the next vdev of the class. Where nothing is said, it is the vdevs' turn.
    pub spots: Spots,
    /// A txg is lost without it: look everywhere, whatever is known of the metaslabs that are not
    /// loaded.
    pub must: bool,
}

impl AllocReq {
    /// Wherever it is its class' turn.
    pub fn new(class: AllocClass, psize: u64, copies: u8) -> AllocReq {
        AllocReq { class, psize, copies, most_copies: 3, gang_header: false, spots: [None; 2], must: false }
    }
}

/// Why allocation stopped before the last request.
#[derive(Debug)]
pub enum AllocStop {
    /// No contiguous run for the next request.
    NoSpc,
    /// The metaslab must be loaded ([`Allocator::load`]) to go on.
    Load {
        vdev: u32,
        metaslab: u64,
    },
    Err(Error),
}

/// What the writer needs of the metaslabs.
pub trait Allocator: Send + Sync {
    /// Places `reqs[out.len()..]` in order and appends to `out`. All of a request's copies are
    /// placed or none.
    fn alloc(&self, txg: Txg, reqs: &[AllocReq], out: &mut Vec<Dvas>) -> Result<(), AllocStop>;

    fn load(&self, vdev: u32, metaslab: u64) -> BoxFuture<'_, Result<()>>;

    /// Gives space back. A block that was `born` in this very txg was never reachable from an
    /// uberblock and may be used again at once; others when it is certain that no import goes back
    /// to them.
    fn free(&self, txg: Txg, dva: &Dva, born: Txg);

    /// Takes back an allocation of this txg to which nothing was written.
    fn unalloc(&self, txg: Txg, dva: &Dva) {
        self.free(txg, dva, txg);
    }

    /// Whether so many bytes more, as users see them, may be given out for what is not needed to
    /// finish a txg: what is left is then still as much as that needs, and the part of the slop
    /// that is to be left.
    fn has_room(&self, _bytes: u64, _leave: Leave) -> bool {
        true
    }

    /// Whether more was given out, since it was last counted what is left, than the txgs to come
    /// may have taken.
    fn uncounted(&self) -> bool {
        false
    }

    /// Whether there are vdevs of the pool's classes that would take blocks if their devices were
    /// there.
    fn lacks_vdevs(&self) -> bool {
        false
    }

    /// The sync finds no room: gives out again what was freed in txgs that are on disk, though an
    /// import that goes back to an older uberblock then finds less. Whether there was any; then
    /// there may be more, to be asked for again.
    fn scrape_together(&self) -> Result<bool> {
        Ok(false)
    }

    /// How much of the log devices' space is taken, from 0 to 1; None: there are none that take
    /// blocks.
    fn log_fullness(&self) -> Option<f64> {
        None
    }

    /// Takes a given place out of the free space: blocks that an intent log reaches after a crash.
    fn claim(&self, txg: Txg, dva: &Dva) -> Result<()>;
}

/// Why a block can be neither written nor read now.
pub fn devices_away() -> Error {
    Error::os(Errno::Io, "all devices of a vdev are away")
}

/// Whether this is no fault of a block, but of devices that are away or a pool that is suspended.
pub fn is_away(e: &Error) -> bool {
    e.is(Errno::Io)
}

/// Who holds a txg's sync up while devices are away.
pub trait DeviceWaiter: Send + Sync {
    /// Waits, if devices are lacking, until they are to be tried again. An error if nobody will.
    fn wait<'a>(&'a self, lacking: &'a (dyn Fn() -> bool + Sync)) -> BoxFuture<'a, Result<()>>;
}
