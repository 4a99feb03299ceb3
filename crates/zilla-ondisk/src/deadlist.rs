//! Deadlists: the blocks a dataset no longer references but its snapshots may, by the txg they were
//! born after.
//!
//! A deadlist is a ZAP whose names are txgs in hex and whose values are bpobjs; a block born in txg
//! t belongs to the entry of the greatest name below t. Before pool version 26 it was one bpobj,
//! and the object's type says so. Livelists of clones have the same shape, keyed by the birth of
//! the first block.

use crate::bytes::{Phys, phys};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

phys! {
    /// The bonus of a deadlist's ZAP.
    pub struct DeadlistPhys("dsl_deadlist_phys") {
        used: u64,
        comp: u64,
        uncomp: u64,
        pad: [u64; 37],
    }
}

impl DeadlistPhys {
    /// Reads the bonus, whose counters are then small enough to be added up.
    pub fn from_bonus(bonus: &[u8], order: ByteOrder) -> Result<DeadlistPhys> {
        let p = DeadlistPhys::decode(bonus, order)?;
        let all = [("dl_used", p.used), ("dl_comp", p.comp), ("dl_uncomp", p.uncomp)];
        FormatError::counters("dsl_deadlist_phys", &all)?;
        Ok(p)
    }
}

/// The name of a number in a ZAP that is keyed by numbers, as OpenZFS's `zap_*_int` functions make
/// it.
pub fn int_key(n: u64) -> String {
    format!("{n:x}")
}

/// The number of such a name.
pub fn parse_int_key(name: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(name).ok().filter(|t| !t.starts_with('+'));
    text.and_then(|t| u64::from_str_radix(t, 16).ok()).ok_or(FormatError::new(
        "zap integer key",
        "name",
        0,
        Problem::String,
    ))
}
