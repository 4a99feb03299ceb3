//! Send and receive: datasets as streams of OpenZFS's format.
//!
//! **Floor 13.** It reads and makes datasets, of files or of volumes.
//!
//! ```text
//! snapshot -> objects (walk) -> sender -> frame ~~ pipe ~~ frame -> receive (begin, apply, end) -> snapshot
//! ```
//!
//! [`sender`](mod@self) tells what a snapshot has, or has more than an earlier one; [`Receive`]
//! makes a snapshot of it. A package of several datasets (`-R`, `-I`, `-p`) is a list of streams
//! with a description in front ([`package`]).
//!
//! **Invariants.** Contents of a receive go into a dataset that is marked inconsistent: a new one,
//! or a clone `%recv` below the one that is there, which nobody is shown. Only when the stream has
//! ended well, with its checksum, are they put in their place, snapshotted and named, in one txg.
//! Whatever stops it before that leaves the old state and something that is destroyed, at once or
//! when the pool is next opened; or, if that was asked for, kept with a note of how far it came,
//! written in the txg of the data it speaks of, so that a crash leaves both or neither.
//!
//! What is received in order to mend a snapshot (`receive -c`) makes nothing: [`Heal`].
//!
//! **Locks.** None of its own: what it changes, it changes through objects and sync tasks.
//!
//! **Bad input.** A record is believed when its checksum is right, and checked as if its writer
//! were an enemy all the same: a checksum is no signature.
//!
//! **Deliberately absent.** Deduplicated streams (which `zstream redup` turns into others): refused
//! by name.

mod apply;
mod estimate;
pub mod frame;
mod heal;
mod objects;
mod raw;
mod receive;
mod redact;
mod restore;
mod sender;
mod token;
mod walk;

pub use estimate::estimate;
pub use heal::{Heal, Healed};
pub use objects::Resume;
pub use receive::{Receive, check_features, raw_key};
pub use redact::{check_redaction, redaction};
pub use restore::Redaction;
pub use sender::{From, HEAD_NAME, SendOpts, Special, send, send_special};
pub use token::{Token, parse_token, parse_token_list, token};
