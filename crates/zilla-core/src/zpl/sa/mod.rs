//! System attributes: how a file's attributes are packed into its dnode's bonus.
//!
//! A file system names its attributes once, in a registry (name -> number, length, byte order), and
//! each combination of attributes in use once, in a table of *layouts* (number -> list of attribute
//! numbers). A bonus is then a small header with a layout number, the lengths of the variable
//! attributes, and the values one after the other, each on 8 bytes:
//!
//! ```text
//!   | magic u32 | header size/8 : 6, layout : 10 | len0 u16 | len1 ... | pad to 8 | value | value | ...
//! ```
//!
//! What does not fit goes to a *spill block*, which has the same shape and a layout of its own.
//!
//! **Invariants.** Layouts are only added, never changed: a bonus can be read however old it is. A
//! layout is in the table on disk in the same txg as, or an earlier one than, the first bonus that
//! names it, so a crash never leaves a bonus without its layout. At worst it leaves a layout that
//! nothing uses. Attributes this program does not know are kept as they are.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

mod codec;
mod table;

pub(crate) use codec::{Packed, SA_ATTR_MAX_LEN, SA_MAX_SPILL, Values, decode, pack};
pub(crate) use table::{Kind, SaTable};
