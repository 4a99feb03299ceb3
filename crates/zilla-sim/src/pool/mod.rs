//! Whole pools in the simulated world: a recorded workload, a reference model, power cuts at every
//! write, faults, planted bugs.
//!
//! A workload ([`op`]) is generated from a seed, together with the states it goes through
//! ([`model`]): several *actors* work side by side, each in a directory of its own, each knowing
//! what its directory must look like after each of its operations. While it runs ([`run`]) each
//! operation notes the txgs it can have fallen into, and each `fsync` and `sync` that returned,
//! what is promised from then on.
//!
//! At any write or flush the world can be held ([`campaign`]), and a new world booted on what would
//! be left of the disks if the power went just then. There the pool must import by itself; what it
//! holds must be, for every actor, the state after some operation that fits the txg of the
//! uberblock ([`verify`]): everything promised is there, and the rest is a prefix in the order of
//! txgs. The same holds for each snapshot and the txg it was made in. Then `zilla_core::check` goes
//! through the whole pool.
//!
//! Between txgs there is the intent log. An `fsync` that returned promises all changes of names
//! before it, of everybody, and all changes of its file; what of the rest is there as well is, of
//! names, a prefix, and of each file, the state after some operation on it.
//!
//! Disks that rot under the work, and writes that fail everywhere for a while, have a workload of
//! their own ([`hurt`]), which knows what is hurt and so what may be refused. So have repairs that
//! come late ([`late`]), scrubs of known errors ([`known`]), disks that leave and return
//! ([`returning`]), and disks that stand still while someone writes ([`stalled`]). Where space runs
//! out other rules hold, so that is done apart ([`full`]).
//!
//! What is kept true: a run depends on nothing but its seed, layout and size, so any finding is a
//! line that runs it again.

mod acl;
pub mod campaign;
mod durable;
mod faults;
pub mod files;
mod flags;
pub mod full;
pub mod generate;
mod hurt;
mod known;
mod late;
pub mod layout;
pub mod model;
pub mod op;
mod returning;
pub mod run;
mod stalled;
pub mod verify;

pub use campaign::{Campaign, Finding, Tally, random_run};
pub use flags::flags_run;
pub use hurt::hurt_run;
pub use known::known_errors_cut;
pub use late::late_repair;
pub use layout::Layout;
pub use returning::returning_run;
pub use run::{Workload, find, import};
pub use stalled::stalled_run;
