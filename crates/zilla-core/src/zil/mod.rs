//! The intent log, as far as other software left one: finding its blocks and claiming them.
//!
//! A dataset's log is a chain of blocks that begins in its objset's header. The blocks are not in any space map when a
//! machine dies, because they were written outside of txgs; the first thing a writer does after a crash is to *claim* them,
//! so that nobody else is given their space. What they say is replayed when the dataset is mounted; as long as zilla cannot
//! replay, a dataset with records to be replayed is not mounted for writing ([`needs_replay`]).
//!
//! ```text
//!   objset: zil_header.log -> [chain | records...] -> [chain | records...] -> a block that was never written
//! ```
//!
//! **Invariants.** A chain ends at the first block whose checksum, which continues the chain's own numbering, does not fit: that is how
//! a torn tail is told from the log. Claiming twice does nothing, because the header says up to which block it was done.
//!
//! **Crash.** Claims and the header that says so are in one txg.
//!
//! **Deliberately absent.** Writing and replaying logs.

mod claim;
mod reset;

pub(crate) use claim::chain;
pub use claim::claim_all;
pub(crate) use claim::refuse_unreplayed;
pub use reset::reset_all;

use zilla_ondisk::zil::{ZIL_REPLAY_NEEDED, ZilHeader};

/// Whether a log holds records that no file system has seen yet.
pub fn needs_replay(header: &ZilHeader) -> bool {
    !header.log.is_hole() && (header.flags & ZIL_REPLAY_NEEDED != 0 || header.claim_txg == 0)
}
