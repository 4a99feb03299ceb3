//! Trains that are divided among several rotational log disks.
//!
//! One disk has its next block best where the last one ended, for its head is there, and not half a
//! rotation away; so to send each train to another disk gains nothing. But if each train is divided
//! among all of them, each head is where it was left when the next comes, and writes a part of it.
//! The train then waits for the slowest of them, and is more commands. Whether that is faster
//! depends on what else a train takes: so some are sent each way from time to time, and the others
//! as was faster ([`Worth`]).
//!
//! Measured with Perrin's test on modelled 7200 rpm disks, in virtual time: with 32 writers one log
//! disk 100.0 MB/s, two 166.7, four 249.6; with 128 writers 118, 216 and 395 (four main disks). The
//! command and the flush, which each has to do whatever it writes, are a tenth of the time of one
//! and a third of that of four. Through FUSE on two cores, where waking the writers takes most of
//! the time, 49.1 with one, 47.9 with four; divided always, 42.8.

use std::time::Duration;

/// What each disk gets at least.
const LEAST: u64 = 32 << 10;

/// Where a block goes, seen from the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::zil) struct Step {
    /// The disk has written nothing for a while when it comes, not even the one before.
    pub pause: bool,
    /// On this vdev, if that can be.
    pub on: Option<u32>,
}

/// How a train is divided.
pub(in crate::zil) struct Stripes {
    /// The vdevs, that of the first block first; none: it is not divided.
    vdevs: Vec<u32>,
    /// Of its records, if it is divided.
    lens: Vec<usize>,
    /// Blocks for each, one behind the other.
    blocks: usize,
    /// Bytes of records in each block at most.
    pub most: usize,
}

impl Stripes {
    /// For one that is not divided.
    pub(in crate::zil) fn whole(most: usize) -> Stripes {
        Stripes { vdevs: Vec::new(), lens: Vec::new(), blocks: 1, most }
    }

    /// For a train of records of these lengths, whose first block lies on the vdev `first`; a block
    /// holds `most` at most. `usual`: what trains of late had at least.
    pub(super) fn new(on: (Vec<u32>, u32), lens: Vec<usize>, usual: u64, most: usize) -> Stripes {
        let (mut vdevs, first) = on;
        let whole: usize = lens.iter().sum();
        let largest = lens.iter().copied().max().unwrap_or(0);
        let disks = vdevs.len().min((usual.min(whole as u64) / LEAST) as usize);
        match vdevs.iter().position(|v| *v == first) {
            Some(at) if disks > 1 && largest <= most / 2 => vdevs.rotate_left(at),
            _ => return Stripes::whole(most),
        }
        vdevs.truncate(disks);
        let blocks = whole.div_ceil(disks).div_ceil(most - largest);
        // No record is cut: with this the last block has as many as the others, or fewer.
        let most = whole.div_ceil(disks * blocks) + largest.saturating_sub(1);
        Stripes { vdevs, lens, blocks, most }
    }

    /// Where block number `n` of the train goes.
    pub(in crate::zil) fn step(&self, n: usize) -> Step {
        let on = self.vdevs.get(n / self.blocks % self.vdevs.len().max(1)).copied();
        Step { pause: on.is_some() && n.is_multiple_of(self.blocks), on }
    }

    /// Where the next train begins.
    pub(in crate::zil) fn after(&self) -> Step {
        Step { pause: true, on: self.vdevs.first().copied() }
    }

    /// Bytes of the records from number `n` on that come into the next block, if the train is
    /// divided.
    pub(in crate::zil) fn next(&self, n: usize) -> Option<u64> {
        let sums = self.lens.get(n..)?.iter().scan(0, |sum, len| {
            *sum += len;
            Some(*sum)
        });
        sums.take_while(|sum| *sum <= self.most).last().map(|sum| sum as u64)
    }
}

/// Whether it is worth it: how much went how fast, without and with.
#[derive(Default)]
pub(super) struct Worth {
    n: u32,
    /// The last train: when it left, whether it was divided, and its bytes.
    last: Option<(Duration, bool, u64)>,
    sums: [(u64, Duration); 2],
}

impl Worth {
    /// Of so many trains the first few are not divided, and as many then are; of these the first do
    /// not count.
    const ROUND: u32 = 16384;
    const FEW: u32 = 128;
    const FIRST: u32 = 64;
    /// Who comes later than this was not waited for.
    const IDLE: Duration = Duration::from_millis(50);

    /// A train of so many bytes leaves. Whether to divide it.
    pub(super) fn leaves(&mut self, now: Duration, bytes: u64) -> bool {
        if let Some((then, divided, bytes)) = self.last
            && now.saturating_sub(then) < Worth::IDLE
            && self.n < 2 * Worth::FEW
            && self.n % Worth::FEW > Worth::FIRST
        {
            let (sum, time) = &mut self.sums[usize::from(divided)];
            *sum += bytes;
            *time += now.saturating_sub(then);
        }
        let divided = match self.n {
            n if n < 2 * Worth::FEW => n >= Worth::FEW,
            _ => {
                let [(without, t0), (with, t1)] = self.sums;
                // With a tenth more it is worth the commands.
                u128::from(with) * t0.as_nanos() * 10 > u128::from(without) * t1.as_nanos() * 11
            }
        };
        self.last = Some((now, divided, bytes));
        self.n += 1;
        if self.n == Worth::ROUND {
            *self = Worth { last: self.last, ..Worth::default() };
        }
        divided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `pack` does it: the records of each block, and where it goes.
    fn blocks(s: &Stripes, lens: &[usize]) -> Vec<(usize, Step)> {
        let mut out = vec![(0, Step::default())];
        let mut used = 0;
        for (n, len) in lens.iter().enumerate() {
            if used + len > s.most {
                used = 0;
                let will = s.next(n);
                out.push((0, s.step(out.len())));
                assert!(will.is_none_or(|w| w >= *len as u64));
            }
            used += len;
            out.last_mut().unwrap().0 += 1;
        }
        out
    }

    #[test]
    fn all_disks_get_the_same_and_the_first_is_where_it_was_left() {
        let lens = [8400; 32];
        let s = Stripes::new((vec![4, 5, 6, 7], 6), lens.to_vec(), 1 << 20, 128 << 10);
        let at = |pause, on| Step { pause, on: Some(on) };
        let got = blocks(&s, &lens);
        let of: Vec<usize> = got.iter().map(|b| b.0).collect();
        assert_eq!(of, [8; 4]);
        assert_eq!(got[1..].iter().map(|b| b.1).collect::<Vec<_>>(), [at(true, 7), at(true, 4), at(true, 5)]);
        assert_eq!((s.next(0), s.after()), (Some(8 * 8400), at(true, 6)));
        // More than a block for each.
        let s = Stripes::new((vec![4, 5], 5), lens.to_vec(), 1 << 20, 80 << 10);
        let got = blocks(&s, &lens);
        assert_eq!(got.iter().map(|b| b.0).collect::<Vec<_>>(), [8; 4]);
        assert_eq!(
            got[1..].iter().map(|b| b.1).collect::<Vec<_>>(),
            [at(false, 5), at(true, 4), at(false, 4)]
        );
    }

    #[test]
    fn what_is_small_or_in_large_records_is_not_divided() {
        for (lens, usual, first) in [
            (vec![8400; 5], 1 << 20, 4),
            (vec![8400; 32], 40 << 10, 4),
            (vec![100 << 10; 8], 1 << 20, 4),
            (vec![8400; 32], 1 << 20, 9),
            (vec![], 1 << 20, 4),
        ] {
            let s = Stripes::new((vec![4, 5, 6, 7], first), lens, usual, 128 << 10);
            assert_eq!((s.step(1), s.next(0), s.most), (Step::default(), None, 128 << 10));
            assert_eq!(s.after(), Step { pause: true, on: None });
        }
    }

    #[test]
    fn it_is_done_where_more_gets_through() {
        for (without, with, worth) in [(2600, 1000, true), (1000, 950, false), (1000, 2000, false)] {
            let (mut w, mut now, mut divided) = (Worth::default(), Duration::ZERO, 0);
            for _ in 0..Worth::ROUND {
                let this = w.leaves(now, 256 << 10);
                divided += u32::from(this);
                now += Duration::from_micros(if this { with } else { without });
            }
            let few = Worth::FEW;
            assert_eq!(divided, if worth { Worth::ROUND - few } else { few }, "{without} and {with} us");
        }
    }
}
