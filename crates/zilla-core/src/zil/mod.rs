//! The intent log: what makes fsync return before its txg is synced, and what a crash gives back.
//!
//! **Floor 10.** It stands on the pool and on objects; files and volumes put records in from above.
//!
//! A dataset's log is a chain of blocks that begins in its objset's header. Each block names the
//! next, which was allocated ahead, and knows the number that the next must have; so a block can be
//! written without changing anything else, and the chain ends at the first block whose checksum,
//! which contains that number, does not fit.
//!
//! ```text
//!   objset: zil_header.log -> [chain | records...] -> [chain | records...] -> a block that was never written
//! ```
//!
//! **Writing.** Every change of a file leaves a record in memory ([`itx`]), in the same critical
//! section as the change, so that the order of records is the order of dependence. A commit
//! ([`commit`]) writes those that matter to it: one write and one flush. [`states`] has the table
//! of what a train, a block and a chain go through, and [`policy`] says how they use the devices.
//! Records whose txg is synced are forgotten, and so, at each sync, are blocks that hold nothing
//! else ([`log`]): the header moves on with the uberblock, and always points to a block that is
//! allocated, so that only a log's very first block costs a wait for a txg.
//!
//! Large data are copied into the log, several blocks at a time, or written in place, so that the
//! log holds only a pointer and the sync has nothing left to write: whichever is cheaper
//! ([`place`], which has the rule, and [`policy`], which finds out). Data in place are on their way
//! together with the block that points to them, and it counts as written when they are stable too.
//! A log device that fills up is given time ([`throttle`]).
//!
//! What a sync cannot put on disk, since what it lies on cannot be read, is logged again by that
//! sync ([`keep`]).
//!
//! **After a crash** blocks that were written since the last txg are in no space map. The first
//! thing a writer does is to *claim* them ([`claim`]), so that nobody else is given their space;
//! mounting a dataset *replays* its records ([`replay`]), each in a txg that also says in the
//! header how far it has come. Then the log is given back; one whose replay stops is kept. No flag,
//! quota or limit refuses what is replayed: it was admitted when it was done.
//!
//! **Invariants.** A commit returns when everything it waits for is in blocks that are stable, as
//! are all blocks before them, or in synced txgs. The header on disk leads to every acknowledged
//! record of an unsynced txg. A block is freed in a txg not before its own allocation's and its
//! records', and a txg is not finished while a block that points to what it allocated is on its
//! way: so space maps and chain agree at every uberblock. A record is replayed once, in order, or
//! not at all. A block written in place is its file's from the sync of its txg on, or freed by that
//! sync; before, only the log leads to it.
//!
//! **Crash.** Between a block's write and its flush: the chain ends before it, or not; nobody was
//! told. If data in place were not written, which their checksum tells, it ends before the record
//! that points to them. During a claim: claims and header are of one txg. During replay: as much is
//! done as the header says.
//!
//! **Lock order.** The log's state, then one of: the groups of waiting records, what is known of
//! the pool's ways (`Routes`, which comes before the txgs' state), what is known of its devices
//! (`Devices`, a leaf). Work that waits ([`driven`]) has a lock of its own, and one for each piece;
//! neither is held while it is polled. All are under the file system's locks.
//!
//! **Encrypted datasets.** Their log blocks are encrypted but for what claiming takes: the chain,
//! the records' heads, and the pointers of data in place. So a log is claimed without the key, and
//! waits for it to be replayed. A block's IV is chosen with its place, and is used once: such a log
//! never begins again in the block that an earlier one left empty.

mod blocks;
mod chain;
mod claim;
mod commit;
mod driven;
mod itx;
mod keep;
mod log;
mod pack;
mod place;
mod policy;
mod replay;
mod reset;
mod states;
mod stats;
mod throttle;

pub use claim::chain;
pub(crate) use claim::claimed;
pub(crate) use claim::read_logged;
pub use claim::{Claim, claim_all};
pub use itx::When;
pub use log::Zilog;
pub(crate) use replay::logged_block;
pub use replay::{KeptLogs, Replay, Replayed};
pub(crate) use reset::push_out_all;
pub use reset::reset_all;
pub use stats::{LATENCY_BUCKETS, LogCounts, LogStats};

use crate::types::Txg;
use driven::Hurry;
use parking_lot::Mutex;
use policy::{Devices, Routes};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use throttle::Throttle;
use zilla_ondisk::zil::{ZIL_REPLAY_NEEDED, ZilHeader};

/// What the logs of all datasets of a pool have in common: they share its devices.
#[derive(Default)]
pub struct PoolLog {
    /// What they did.
    pub stats: LogStats,
    /// Which of them could not be replayed.
    pub kept: KeptLogs,
    /// Which way their large data go, and what they know of the pool's vdevs.
    routes: Routes,
    devices: Mutex<Devices>,
    /// How they spare log devices that fill up.
    throttle: Throttle,
    /// Work of commits that waits.
    parked: Mutex<Vec<Arc<driven::Parked>>>,
    /// The first txg of the pool, if not all logs could be looked at then; otherwise 0. Those of
    /// older datasets that come up later were claimed by nobody.
    passed_over: AtomicU64,
    /// How many syncs wait for what such work holds.
    hurry: Hurry,
}

impl PoolLog {
    /// Some logs could not be looked at when those of the pool were claimed, in its first txg.
    fn pass_over(&self, open: Txg) {
        self.passed_over.store(open.0, Ordering::Relaxed);
    }

    /// Whether a dataset that comes up now, of this creation, may have a log that was not claimed.
    pub(crate) fn is_passed_over(&self, creation: u64) -> bool {
        creation < self.passed_over.load(Ordering::Relaxed)
    }
}

/// Whether a log holds records that no file system has seen yet.
pub fn needs_replay(header: &ZilHeader) -> bool {
    !header.log.is_hole() && (header.flags & ZIL_REPLAY_NEEDED != 0 || header.claim_txg == 0)
}
