//! Which attributes stay in the bonus, and which go to the spill block.
//!
//! OpenZFS decides the same way; where it would not spill we must not either, since it sizes the
//! bonus anew from the attributes whenever it changes one.

use super::SA_HDR_SIZE;
use crate::blkptr::BLKPTR_SIZE;

/// Where attributes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Bytes of this buffer's header.
    pub hdrsize: usize,
    /// Bytes of all attributes, those that spill included.
    pub total: usize,
    /// The first that goes to the spill block.
    pub spill_at: Option<usize>,
}

impl Placement {
    /// The length the bonus is given: with a spill block, up to the spill pointer.
    pub fn bonus_len(&self, space: usize) -> usize {
        let whole = self.total + self.hdrsize;
        if self.spill_at.is_some() { whole.min(space.saturating_sub(BLKPTR_SIZE)) } else { whole }
    }
}

/// Places attributes, given as length and whether that varies, into a bonus with `space` bytes
/// (those of a spill pointer included), or with `is_spill` into a spill block, which grows as
/// needed.
pub fn place(attrs: &[(usize, bool)], space: usize, is_spill: bool) -> Placement {
    let round = |n: usize| n.next_multiple_of(8);
    let mut header = SA_HDR_SIZE;
    // Lengths in the header that belong to attributes behind the place where a spill would begin.
    let mut beyond = 0;
    let mut variable = 0;
    let mut total = 0;
    // The first attribute that a spill pointer would push out, should there have to be one.
    let mut first_out = None;
    let mut spills = false;
    for (i, &(len, varies)) in attrs.iter().enumerate() {
        total = round(total) + len;
        if spills {
            continue;
        }
        variable += usize::from(varies);
        // The first variable length has its room in the smallest header.
        let more = if varies && variable > 1 { 2 } else { 0 };
        let pushed_out = !is_spill
            && first_out.is_none()
            && total + round(header + more) > space.saturating_sub(BLKPTR_SIZE);
        if more > 0 && !is_spill && header + more + total >= space {
            first_out.get_or_insert(i);
            spills = true;
            continue;
        }
        header += more;
        if first_out.is_some() || pushed_out {
            beyond += more;
        }
        if pushed_out {
            first_out = Some(i);
        }
        spills = !is_spill && total + round(header) > space;
    }
    if spills {
        header -= beyond;
    }
    Placement { hdrsize: round(header), total, spill_at: first_out.filter(|_| spills) }
}
