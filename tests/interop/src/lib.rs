//! Pools that OpenZFS's kernel module made, with lists of everything in them, and what must be true
//! of them here.
//!
//! A *set* is an archive with disk images (`d1.img` ...), the script that made them (`spec.sh`) and
//! what OpenZFS showed of the pool (`desc/manifest/DATASET.jsonl`, a line a file). A few small sets
//! are kept in `corpus/`; `ZILLA_CORPUS`, or the folder of the judges beside the checkout, has
//! more. `recipes/` has scripts for sets of other kinds, which the corpus's `make` runs in
//! OpenZFS's virtual machine when they lie among its own: what they make is tested when
//! `ZILLA_CORPUS` names the folder (and fails with the reason where zilla refuses it).
//!
//! [`read_only`] imports a set without writing and compares every file of every file system and
//! snapshot. [`read_write`] imports a copy, writes, scrubs, exports, asks OpenZFS's `zdb`, imports
//! again and compares once more.

pub mod check;
pub mod gpt;
pub mod set;

pub use check::{read_only, read_write};
pub use set::{Set, find, folders};
