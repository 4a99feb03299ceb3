//! What is on a disk after the power was cut.
//!
//! Guaranteed is what a completed flush covers. Of the writes after it, acknowledged or in flight,
//! each sector is either old or new; disks promise nothing about order, and a write of several
//! sectors may end anywhere in the middle.

use zilla_env::SparseImage;

use crate::rng::SimRng;

/// The unit a disk writes wholly or not at all.
pub const SECTOR: u64 = 512;

/// Which of the writes that no flush covers are on the disk after the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CrashPolicy {
    /// None: a cache that is lost whole.
    LoseAll,
    /// All, also those in flight: a cut just after everything arrived.
    KeepAll,
    /// The first of them in order of completion, the last of these torn: a disk without reordering.
    Prefix,
    /// Any of them, in any order, some torn anywhere.
    Shuffle,
    /// One of the above for each disk, drawn from the seed.
    #[default]
    Random,
}

/// A write no completed flush covers.
#[derive(Clone)]
pub(crate) struct Unstable {
    /// Its number among all writes and flushes of the world.
    pub op: u64,
    pub offset: u64,
    pub data: Payload,
}

#[derive(Clone)]
pub(crate) enum Payload {
    Bytes(bytes::Bytes),
    Zeroes(u64),
}

impl Unstable {
    pub(crate) fn len(&self) -> u64 {
        match &self.data {
            Payload::Bytes(data) => data.len() as u64,
            Payload::Zeroes(len) => *len,
        }
    }

    pub(crate) fn apply(&self, image: &mut SparseImage) {
        self.apply_part(image, 0, self.len());
    }

    fn apply_part(&self, image: &mut SparseImage, from: u64, to: u64) {
        match &self.data {
            Payload::Bytes(data) => image.write(self.offset + from, &data[from as usize..to as usize]),
            Payload::Zeroes(_) => image.zero(self.offset + from, to - from),
        }
    }

    /// The parts between sector borders of the disk.
    fn sectors(&self) -> impl Iterator<Item = (u64, u64)> {
        let (offset, len) = (self.offset, self.len());
        let mut from = 0;
        std::iter::from_fn(move || {
            (from < len).then(|| {
                let to = (from + SECTOR - (offset + from) % SECTOR).min(len);
                let part = (from, to);
                from = to;
                part
            })
        })
    }
}

/// Applies to `image` what survives of `writes`, which are in order of completion with those in
/// flight last.
pub(crate) fn survive(image: &mut SparseImage, writes: &[Unstable], policy: CrashPolicy, rng: &mut SimRng) {
    match policy {
        CrashPolicy::LoseAll => {}
        CrashPolicy::KeepAll => writes.iter().for_each(|w| w.apply(image)),
        CrashPolicy::Prefix => {
            let kept = rng.below(writes.len() as u64 + 1) as usize;
            writes[..kept].iter().for_each(|w| w.apply(image));
            if let Some(torn) = writes.get(kept) {
                let sectors: Vec<_> = torn.sectors().collect();
                let some = rng.below(sectors.len() as u64 + 1) as usize;
                sectors[..some].iter().for_each(|&(from, to)| torn.apply_part(image, from, to));
            }
        }
        CrashPolicy::Shuffle => {
            let mut order: Vec<&Unstable> = writes.iter().collect();
            rng.shuffle(&mut order);
            // The share of survivors varies from crash to crash, so that "nearly all" and "nearly
            // none" both occur.
            let share = rng.below(101);
            for write in order {
                if rng.below(100) >= share {
                    continue;
                }
                if !rng.one_in(4) {
                    write.apply(image);
                } else {
                    let keep = rng.below(101);
                    write
                        .sectors()
                        .filter(|_| rng.below(100) < keep)
                        .for_each(|(a, b)| write.apply_part(image, a, b));
                }
            }
        }
        CrashPolicy::Random => {
            let all = [
                CrashPolicy::LoseAll,
                CrashPolicy::KeepAll,
                CrashPolicy::Prefix,
                CrashPolicy::Shuffle,
                CrashPolicy::Shuffle,
            ];
            survive(image, writes, all[rng.below(all.len() as u64) as usize], rng);
        }
    }
}
