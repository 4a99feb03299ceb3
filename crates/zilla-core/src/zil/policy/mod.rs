//! How a log uses the devices that it is on.
//!
//! A log asks three questions: *when* the next train leaves, *where* its data go, and *how large* a
//! block is. Who answers them is a [`Policy`]: the plain one knows how many devices there are, the
//! measured one learns what they do.
//!
//! | | plain | measured |
//! |---|---|---|
//! | when | one train for each log device may be under way, or two | where disks turn one may be, and it is delayed a moment for those who come again ([`delay`]) |
//! | where | into the log, on the device that was given least | large data in the log or in place, as was quicker ([`route`]). Where disks turn: as far behind the last block as has passed under the head ([`gap`]), and divided among them if that was faster ([`stripes`]) |
//! | how large | what half of the last trains had; for a lone committer what the largest had | where disks turn always what the largest had |
//!
//! What the devices are is asked for each train ([`site`]). With modelled devices, in virtual time,
//! Perrin's test on one 7200 rpm disk has 18.4 MB/s with the plain policy and 100.1 with the
//! measured one where another such disk has the log, 19.9 and 164.8 where two have; a copy with
//! sync 15.5 and 25.1 with mirrored USB sticks, 29.2 and 27.1 with four of them, 37.5 and 35.5 with
//! an SSD.

mod delay;
mod gap;
mod route;
mod site;
mod stripes;

pub(super) use route::{Route, Routes, Sample};
pub(super) use site::{Devices, Site};
pub(super) use stripes::{Step, Stripes};

use super::itx::Itx;
use crate::pool::PoolCtx;
use crate::zio::Spot;
use delay::GroupDelay;
use site::On;
use std::sync::Arc;
use std::time::Duration;
use stripes::Worth;

/// How many trains' sizes are remembered to guess the next.
const SIZES: usize = 8;
/// A log stays on a disk that turns until that was given so many bytes more than the others: to
/// change costs half of a rotation.
const STAY: u64 = 32 << 20;

/// What a log has learned of its trains.
#[derive(Default)]
pub(super) struct Pace {
    pub delay: GroupDelay,
    worth: Worth,
    sizes: [u64; SIZES],
    size_at: usize,
}

impl Pace {
    /// A train of so many bytes was packed.
    pub(super) fn packed(&mut self, bytes: u64) {
        if let Some(size) = self.sizes.get_mut(self.size_at) {
            *size = bytes;
        }
        self.size_at = (self.size_at + 1) % SIZES;
    }
}

/// A train: the vdev of its first block, its records, and how many bytes of them a block holds.
type Train<'a> = (u32, &'a [Itx], usize);

/// The three questions.
pub(super) trait Policy: Send + Sync {
    /// When: how many trains are best under way at once. Where it is one, it is delayed a moment
    /// for those who come again.
    fn at_once(&self, site: &Site) -> usize {
        site.devices().max(2)
    }

    /// Where: the way of the `large` of a train's bytes, where there is a log device. None: into
    /// the log.
    fn route(&self, _: &Arc<PoolCtx>, _all: u64, _large: u64) -> Option<Sample> {
        None
    }

    /// Where: among which vdevs a train is divided.
    fn divide(&self, _: &Site, _: &mut Pace, _now: Duration, (.., most): Train<'_>) -> Stripes {
        Stripes::whole(most)
    }

    /// Where: the best place for a block of `size` bytes on these vdevs.
    fn spot(&self, known: &mut Devices, on: &[On], _: Step, size: u64, _now: Duration) -> Option<Spot> {
        Some(known.next(on, size, 0)?.spot(0))
    }

    /// How large: the room that the next train gets in its first block; 0: that is not known yet.
    /// Who commits `alone` waits for one write, and on a disk a second block costs more than room
    /// that is not used. Else it is written beside the first, and the room is missed: the log is
    /// the sooner full, and wider.
    fn size(&self, pace: &Pace, alone: bool) -> u64 {
        let mut sizes = pace.sizes;
        sizes.sort_unstable();
        let known = &sizes[sizes.partition_point(|s| *s == 0)..];
        let size = if alone { known.last() } else { known.get(known.len() / 2) };
        size.copied().unwrap_or(0)
    }
}

/// Knows how many devices there are.
struct Plain;

impl Policy for Plain {}

/// Learns what they do.
struct Measured;

impl Policy for Measured {
    /// A disk cannot begin with a second train while it ends the first: it turns once more for each
    /// flush, so who comes meanwhile had better share the next.
    fn at_once(&self, site: &Site) -> usize {
        if site.turns() { 1 } else { Plain.at_once(site) }
    }

    fn route(&self, ctx: &Arc<PoolCtx>, all: u64, large: u64) -> Option<Sample> {
        Some(Sample::new(ctx, all, large))
    }

    fn divide(&self, site: &Site, pace: &mut Pace, now: Duration, (first, itxs, most): Train<'_>) -> Stripes {
        let lens = || itxs.iter().map(Itx::len);
        if !site.turns() || site.devices() < 2 || !pace.worth.leaves(now, lens().sum::<usize>() as u64) {
            return Stripes::whole(most);
        }
        let usual = pace.sizes.iter().copied().min().unwrap_or(0);
        Stripes::new((site.ids(), first), lens().collect(), usual, most)
    }

    fn spot(&self, known: &mut Devices, on: &[On], step: Step, size: u64, now: Duration) -> Option<Spot> {
        if !on.iter().any(|o| o.vdev.turns) {
            return Plain.spot(known, on, step, size, now);
        }
        // A disk that others had their turn before may be anywhere in its own, and half of one is
        // longer than the block; the disk that has just written is where it was left.
        let asked = step.on.and_then(|id| on.iter().find(|o| o.vdev.id == id));
        let o = asked.or_else(|| known.next(on, size, STAY))?;
        Some(o.spot(if step.pause && o.vdev.turns { known.gap.get(step.on, size, now) } else { 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_block_has_room_for_most_trains_or_for_all() {
        let guess = |sizes, alone| Plain.size(&Pace { sizes, ..Pace::default() }, alone);
        let sizes = [8, 8, 100, 8, 12, 8, 16, 8];
        assert_eq!((guess(sizes, true), guess(sizes, false)), (100, 8));
        assert_eq!(guess([8, 16, 8, 16, 8, 16, 8, 16], false), 16);
        assert_eq!((guess([0, 12, 0, 0, 0, 0, 0, 0], false), guess([0; SIZES], false)), (12, 0));
    }
}
