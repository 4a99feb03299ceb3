//! Pools of an attacker: their structures are wrong, and every checksum is right.
//!
//! Damage by accident is caught by checksums, so a test that only flips bits never gets past them.
//! Whoever hands somebody an image chooses all of its bytes. Here a small real pool is taken, some
//! of its decoded structures are changed, and everything that seals them is made anew, up to the
//! uberblock and the labels ([`mutate`]). What the engine then does with it must end, within bounds
//! of time and memory, with an answer or with an error that names the place; never with a panic
//! ([`live`]).
//!
//! [`image`] is a pool's disks as bytes, [`tree`] finds every block that the uberblock leads to and
//! where the pointer to it stands, [`value`] says what numbers an attacker would try. They share
//! nothing with the engine but the format's structures and its checksums, so that they can write
//! what the engine never would.
//!
//! What is kept true: a mutant depends on the base image and on its bytes (a seed's random numbers,
//! or a fuzzer's) alone; the base is never changed. A mutant whose structure no longer fits the
//! place its block had lies in space that nobody uses, at the end of its device.
//!
//! Deliberately absent: RAID-Z (a block's columns; what is above them is the same on one disk),
//! encrypted blocks, salted checksums.

mod base;
mod dice;
mod image;
mod live;
mod mutate;
mod tree;
mod value;

pub use base::Base;
pub use dice::Dice;
pub use live::{Limits, files_of, live};
pub use mutate::Mutant;
