//! The slots of a block of dnodes: which are in use, on disk and in memory, and what begins there.

use super::dnode::Dnode;
use crate::types::ObjectId;
use std::collections::HashMap;
use std::sync::Arc;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::dnode::{DNODE_SHIFT, DNODES_PER_BLOCK, DnodePhys};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    Free,
    Head,
    /// Belongs to the large dnode before it.
    Tail,
}

/// Which slots of a dnode block are in use.
pub(super) fn used_slots(block: &[u8]) -> [Slot; DNODES_PER_BLOCK as usize] {
    let mut out = [Slot::Free; DNODES_PER_BLOCK as usize];
    let mut slots = out.iter_mut().zip(block.chunks_exact(1 << DNODE_SHIFT));
    while let Some((slot, dnode)) = slots.next() {
        // dn_type and dn_extra_slots.
        let (Some(&otype), Some(&extra)) = (dnode.first(), dnode.get(12)) else { break };
        if otype == 0 {
            continue;
        }
        *slot = Slot::Head;
        slots.by_ref().take(usize::from(extra)).for_each(|(slot, _)| *slot = Slot::Tail);
    }
    out
}

/// The dnode that begins in a slot; None if none does.
pub(super) fn decode_slot(block: &[u8], at: usize, sealed: bool) -> Result<Option<DnodePhys>, String> {
    if used_slots(block).get(at) != Some(&Slot::Head) {
        return Ok(None);
    }
    let decode = if sealed { DnodePhys::decode_sealed } else { DnodePhys::decode };
    decode(block.get(at << DNODE_SHIFT..).unwrap_or_default(), ByteOrder::NATIVE)
        .map(Some)
        .map_err(|e| e.to_string())
}

/// The first run of so many free slots of a block, from an object on.
pub(super) fn free_run(
    used: [Slot; DNODES_PER_BLOCK as usize],
    table: &HashMap<ObjectId, Arc<Dnode>>,
    base: u64,
    from: u64,
    slots: u64,
) -> Option<u64> {
    let taken = taken_slots(used, table, base);
    let free = |i: &u64| taken.iter().skip(*i as usize).take(slots as usize).all(|t| !t);
    (from - base..=DNODES_PER_BLOCK - slots).find(free).map(|i| base + i)
}

/// The slots of a block that are in use, on disk or in memory.
pub(super) fn taken_slots(
    used: [Slot; DNODES_PER_BLOCK as usize],
    table: &HashMap<ObjectId, Arc<Dnode>>,
    base: u64,
) -> [bool; DNODES_PER_BLOCK as usize] {
    let mut taken = used.map(|s| s != Slot::Free);
    for i in 0..DNODES_PER_BLOCK {
        if let Some(dn) = table.get(&ObjectId(base + i)) {
            for t in taken.iter_mut().skip(i as usize).take(usize::from(dn.slots().max(1))) {
                *t = true;
            }
        }
    }
    if base == 0 {
        taken.iter_mut().take(1).for_each(|t| *t = true);
    }
    taken
}
