//! An entry that a txg has looked at, and perhaps changed: counts, and who is writing the block.

use crate::zio::Claim;
use event_listener::Event;
use zilla_ondisk::blkptr::{BlkPtr, Dva};
use zilla_ondisk::ddt::{DdtEntry, DdtTradPhys};

/// Words of a pointer that hold its places.
const PLACES: usize = 6;

/// Where an entry was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Nowhere.
    New,
    /// In the table of this class.
    Stored(usize),
    /// In a log; and the table of this class, if any, has an older one.
    Logged(Option<usize>),
}

impl Origin {
    pub fn class(self) -> Option<usize> {
        match self {
            Origin::New => None,
            Origin::Stored(class) => Some(class),
            Origin::Logged(class) => class,
        }
    }
}

#[derive(Debug)]
pub(super) struct Live {
    pub origin: Origin,
    /// As it was found, and counted in the sums.
    pub before: DdtEntry,
    pub entry: DdtEntry,
    /// Somebody is placing the block.
    placing: Option<Event>,
}

fn same_place(p: &DdtTradPhys, bp: &BlkPtr) -> bool {
    p.phys_birth != 0 && p.phys_birth == bp.phys_birth() && p.dva[..2] == bp.0[..2]
}

/// The pointer with the places of a variant.
fn filled(p: &DdtTradPhys, bp: &BlkPtr) -> BlkPtr {
    let mut out = *bp;
    out.0[..PLACES].copy_from_slice(&p.dva);
    out.set_births(bp.birth(), p.phys_birth);
    out
}

/// The pointer with all places that the entry has for it, if it is about it.
pub(super) fn whole(entry: &DdtEntry, bp: &BlkPtr) -> Option<BlkPtr> {
    let own = (0..entry.variants()).map(|v| entry.variant(v)).find(|p| same_place(p, bp))?;
    Some(filled(&own, bp))
}

impl Live {
    pub fn new(origin: Origin, entry: DdtEntry) -> Live {
        Live { origin, before: entry.clone(), entry, placing: None }
    }

    pub fn fresh(flat: bool, now: u64) -> Live {
        Live::new(Origin::New, DdtEntry::new(flat, now))
    }

    pub fn is_changed(&self) -> bool {
        self.entry != self.before
    }

    /// What is to be done with a block of this key. `full`: there are to be no new entries.
    /// `as_wide`: what is written now is laid out like what was born in that txg.
    pub fn claim(&mut self, bp: &BlkPtr, copies: u8, full: bool, as_wide: impl Fn(u64) -> bool) -> Claim {
        if let Some(placing) = &self.placing {
            return Claim::Wait(placing.listen());
        }
        let v = self.entry.variant_for(copies);
        let p = self.entry.variant(v);
        let encrypted = bp.is_encrypted();
        let have = p.copies(encrypted).count() as u8;
        if p.phys_birth == 0 || have == 0 {
            if full && self.entry.refcnt() == 0 {
                return Claim::Alone;
            }
            self.placing = Some(Event::new());
            return Claim::Write(copies);
        }
        // Salt and IV follow from the contents; under another pair the same bytes are other
        // contents.
        if encrypted && p.dva[4..] != bp.0[4..PLACES] {
            return Claim::Alone;
        }
        // With a gap among the copies the pointer could be taken for a hole.
        if !p.dvas().iter().take(have.into()).all(Dva::is_valid) {
            return Claim::Alone;
        }
        if have < copies {
            // [`Live::placed`] must be able to take more copies, for there may be no room for them.
            // All copies are read as they were laid out when the first one was written.
            let fixed = !self.entry.is_flat() || p.refcnt == u64::MAX || !as_wide(p.phys_birth);
            if fixed || p.copies(encrypted).any(|d| d.gang) {
                return Claim::Alone;
            }
            self.placing = Some(Event::new());
            return Claim::Write(copies - have);
        }
        match p.refcnt.checked_add(1) {
            Some(refcnt) => {
                self.entry.set_variant(v, DdtTradPhys { refcnt, ..p });
                Claim::Share(filled(&p, bp))
            }
            None => Claim::Alone,
        }
    }

    /// Takes over the places that were found for a block that [`Live::claim`] had written.
    pub fn placed(&mut self, bp: &BlkPtr, copies: u8, dvas: &[Dva]) -> Option<BlkPtr> {
        let v = self.entry.variant_for(copies);
        let mut p = self.entry.variant(v);
        let encrypted = bp.is_encrypted();
        let places = if encrypted { 2 } else { 3 };
        let have = p.copies(encrypted).count();
        // (OpenZFS finds a traditional entry by how many copies the pointer has.)
        let whole = self.entry.is_flat() || dvas.len() == usize::from(copies);
        if dvas.iter().any(|d| d.gang) || have + dvas.len() > places || have + dvas.len() == 0 || !whole {
            return None;
        }
        for (i, dva) in dvas.iter().enumerate() {
            let at = 2 * (have + i);
            p.dva[at..at + 2].copy_from_slice(&dva.to_words());
        }
        if encrypted {
            p.dva[4..].copy_from_slice(&bp.0[4..PLACES]);
        }
        if p.phys_birth == 0 {
            p.phys_birth = bp.birth();
        }
        p.refcnt = p.refcnt.checked_add(1)?;
        self.entry.set_variant(v, p);
        Some(filled(&p, bp))
    }

    /// The writer who was placing the block has sent it off, or has given it up: those who wait ask
    /// again.
    pub fn abandon(&mut self) {
        if let Some(placing) = self.placing.take() {
            placing.notify(usize::MAX);
        }
    }

    /// Takes a reference off, and says how many there are left; None if the entry is not about this
    /// pointer's block.
    pub fn release(&mut self, bp: &BlkPtr) -> Option<u64> {
        let v = (0..self.entry.variants()).find(|v| same_place(&self.entry.variant(*v), bp))?;
        let p = self.entry.variant(v);
        match p.refcnt.checked_sub(1) {
            Some(refcnt) => self.entry.set_variant(v, DdtTradPhys { refcnt, ..p }),
            // Its space is given back once only, by the one who was the last.
            None => tracing::error!(block = %bp, "a deduplicated block has more pointers than were counted"),
        }
        Some(p.refcnt.saturating_sub(1))
    }
}
