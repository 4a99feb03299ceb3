//! Faults that a layout's redundancy covers: as many disks as it can do without go wrong, all in
//! one way.

use super::layout::Layout;
use crate::{DiskFaults, Sim, SimRng, Survivors};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    None,
    /// The disks fail some of their reads and writes, before the power cut and after.
    Flaky(DiskFaults),
    /// The disks die in the middle of the work, and stay dead or come back with the power.
    Dies {
        back: bool,
    },
    /// The disks are gone when the power comes back.
    Gone,
    /// Parts of the disks are garbage when the power comes back.
    Rot,
}

/// Which disks of a run go wrong, and how.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    kind: Kind,
    victims: Vec<usize>,
}

impl Faults {
    pub fn draw(layout: Layout, rng: &mut SimRng) -> Faults {
        let mut disks: Vec<usize> = (0..layout.disks()).collect();
        rng.shuffle(&mut disks);
        disks.truncate(layout.redundancy());
        let mut rate = || [0, 4, 20, 100][rng.below(4) as usize];
        let flaky = DiskFaults { read: rate(), write: rate(), flip: rate() };
        let kind = match rng.below(10) {
            _ if disks.is_empty() => Kind::None,
            0..5 => Kind::None,
            5 => Kind::Flaky(flaky),
            6 => Kind::Dies { back: false },
            7 => Kind::Dies { back: true },
            8 => Kind::Gone,
            _ => Kind::Rot,
        };
        Faults { kind, victims: disks }
    }

    pub fn any(&self) -> bool {
        self.kind != Kind::None
    }

    /// When the world is to be held: to make the disks fail, and at the cut.
    pub fn moments(&self, from: u64, cut: u64) -> Vec<u64> {
        match self.kind {
            Kind::Flaky(_) => vec![from + 1, cut],
            Kind::Dies { .. } => vec![from + 1 + (cut - from) / 3, cut],
            Kind::None | Kind::Gone | Kind::Rot => vec![cut],
        }
    }

    pub fn strike(&self, sim: &Sim) {
        for disk in self.victims.iter().filter_map(|i| sim.disk(Layout::path(*i))) {
            match self.kind {
                Kind::Flaky(faults) => disk.set_faults(faults),
                Kind::Dies { .. } => disk.set_offline(true),
                Kind::None | Kind::Gone | Kind::Rot => {}
            }
        }
    }

    pub fn at_boot(&self, left: &mut Survivors, rng: &mut SimRng) {
        for path in self.victims.iter().map(|i| Layout::path(*i)) {
            match self.kind {
                Kind::Dies { back: false } | Kind::Gone => drop(left.disks.remove(&path)),
                Kind::Rot => {
                    let Some((size, image)) = left.disks.get_mut(&path) else { continue };
                    for _ in 0..1 + rng.below(200) {
                        // Where something is likely to be: the front of the disk, now and then
                        // anywhere.
                        let reach = if rng.one_in(4) { *size } else { 24 << 20 };
                        let at = rng.below(reach);
                        let len = (1 + rng.below(9000)).min(*size - at);
                        let mut noise = vec![0; len as usize];
                        rng.fill(&mut noise);
                        image.write(at, &noise);
                    }
                }
                Kind::None | Kind::Flaky(_) | Kind::Dies { back: true } => {}
            }
        }
    }

    /// Disks that fail now and then go on doing so.
    pub fn while_verifying(&self, sim: &Sim) {
        if matches!(self.kind, Kind::Flaky(_)) {
            self.strike(sim);
        }
    }
}
