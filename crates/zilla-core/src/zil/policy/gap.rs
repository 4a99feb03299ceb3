//! How far behind the last log block the next one goes on a rotational disk.
//!
//! Were it right behind, the disk would have passed its place by the time it comes, and a whole
//! rotation would go by. So it goes a little farther on: over what passes under the head while the
//! last block's flush is told, those who waited for it are woken, the next block is filled and its
//! command is sent. Too little costs a rotation, too much only the time until its place comes. The
//! part of the computer depends on who waits: next to nothing for threads of this process, half a
//! millisecond where many processes are woken through the kernel. So the pauses from a flush to the
//! next block are counted, and the gap is the one that would have cost least; or for what the pause
//! was, if the place is looked for when it is over. The part that the disk takes is always about
//! the same, and found by trying, where the disk has nothing else to do: less and less until a
//! rotation is lost, then a little more, and a little less again from time to time.
//!
//! Measured with Perrin's test on the modelled 7200 rpm disk, two versions of the rest of the log
//! ago: in virtual time, where computing takes none, 60.9 MB/s with 96 KiB and 37.5 with 192;
//! through FUSE on two cores 20.3 with 96 KiB, 40.5 with 192, 34.8 with 288. What the disk takes
//! being found rather than 96 KiB: 94.6 -> 100.0 MB/s in virtual time.
//!
//! Limits: the rotation, the rate and the bus are those of one kind of disk, and what the disk
//! takes is learned for all as one. Learning all of it for each vdev was tried. Its rate is easy:
//! between two moments at which all is stable the head came from the end of one block to the end of
//! the other, so that it shows to a thousandth unless a rotation was lost. What a disk takes is
//! not: to find it loses a rotation, for which a whole train waits, and each disk has to lose its
//! own while [`super::stripes`] measures whether it is of use. Perrin's test had 11.4, 100.2, 165.6
//! and 241.1 MB/s with no, one, two and four log disks, hardly less than here; but with a search
//! half as fast two and four had 97 to 99. And in the simulator's test of disks that share each
//! train two were slower than one with the third seed (266 and 325 rounds a second), for a reason
//! that was not found.

use std::collections::BTreeMap;
use std::time::Duration;

/// What the disk takes, as long as nothing else is known, besides the block's way to it: 64 KiB are
/// 0.3 to 0.5 ms of its rate. And what it takes at most.
const DISK: u64 = 64 << 10;
const DISK_MOST: u64 = 256 << 10;
/// So much slower than its bus is its rate.
const BUS: u64 = 4;
/// Bytes that pass under the head in a microsecond; and at least.
const RATE: u64 = 150;
const RATE_LEAST: u64 = 60;
/// Of what came with more bytes than this it cannot be told whether a turn was lost.
const SHORT: u64 = 384 << 10;
/// Gaps are multiples of this.
const STEP: u64 = 4 << 10;
/// So many are looked at, for so many pauses; a turn is so many bytes.
const STEPS: usize = 112;
const REMEMBERED: u16 = 32;
const A_TURN: Duration = Duration::from_micros(8333);
const TURN: u64 = A_TURN.as_micros() as u64 * RATE;
/// So many blocks in time make what the disk takes a step less, before and after it turned in vain
/// for the first time.
const IN_TIME: [u32; 2] = [16, 1024];
/// Longer pauses say that nobody waited, or are not worth a gap. And what takes longer by as much
/// was a turn in vain.
const MOST: Duration = Duration::from_millis(3);

/// Gaps between log blocks.
#[derive(Default)]
pub(super) struct Gap {
    heads: BTreeMap<u32, Head>,
    pauses: Pauses,
    disk: Disk,
}

/// A vdev's blocks.
#[derive(Default)]
struct Head {
    /// Where the last ends.
    end: u64,
    /// When the last flush was over, if no block has come since.
    idle: Option<Duration>,
    /// The pause after that was known when the next place was looked for.
    told: bool,
    /// The first since: when it came, and what its gap had for the disk.
    first: Option<(Duration, u64)>,
    /// What came since.
    bytes: u64,
}

/// How long it took of late until the next block came.
struct Pauses {
    /// How often so many steps, and no fewer, would have made up for it.
    counts: [u16; STEPS],
    counted: u16,
    /// The steps that would have been best for all of them.
    best: u64,
}

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses { counts: [0; STEPS], counted: 0, best: 0 }
    }
}

impl Pauses {
    fn add(&mut self, pause: Duration) {
        let Some(n) = self.counts.get_mut(bytes(pause).div_ceil(STEP) as usize) else { return };
        *n += 1;
        self.counted += 1;
        if self.counted == REMEMBERED {
            self.counts.iter_mut().for_each(|n| *n /= 2);
            self.counted = self.counts.iter().sum();
        }
        // Each step takes its time every time, and whoever is late takes a turn.
        let all = u64::from(self.counted);
        let mut late = all;
        let costs = (0..).zip(&self.counts).map(|(steps, n)| {
            late -= u64::from(*n);
            (steps * STEP * all + late * TURN, steps)
        });
        self.best = costs.min().map_or(0, |(_, steps)| steps);
    }
}

/// What the disks take, in bytes.
struct Disk {
    takes: u64,
    /// Blocks that came in time since it was last changed.
    in_time: u32,
    /// So many of the next are watched closely, for one was late.
    watched: u32,
    /// Two were late.
    found: bool,
}

impl Default for Disk {
    fn default() -> Disk {
        Disk { takes: DISK, in_time: 0, watched: 0, found: false }
    }
}

impl Disk {
    /// A gap that had so much for it was enough, or not.
    fn tried(&mut self, had: u64, late: bool) {
        let watched = self.watched > 0;
        self.watched = self.watched.saturating_sub(1);
        // That one is late that had less than is given says nothing, nor that one is in time that
        // had more.
        if late && had + STEP >= self.takes && had <= DISK_MOST {
            if watched {
                let takes = (self.takes + 2 * STEP).min(DISK_MOST);
                *self = Disk { takes, in_time: 0, watched: 0, found: true };
            } else {
                self.watched = 8;
            }
        } else if !late && had <= self.takes + 3 * STEP {
            self.in_time += 1;
            if self.in_time == IN_TIME[usize::from(self.found)] {
                self.takes = self.takes.saturating_sub(STEP).max(STEP);
                self.in_time = 0;
            }
        }
    }
}

/// What passes under the head until the disk has a block.
fn way(size: u64) -> u64 {
    (size / BUS).next_multiple_of(STEP)
}

fn bytes(pause: Duration) -> u64 {
    pause.as_micros() as u64 * RATE
}

impl Gap {
    /// A block of `size` bytes is about to be written.
    pub(super) fn block(&mut self, vdev: u32, (offset, size): (u64, u64), now: Duration) {
        let head = self.heads.entry(vdev).or_default();
        let follows = offset == head.end;
        if let Some(idle) = head.idle.take() {
            let pause = now.saturating_sub(idle);
            let rest = bytes(pause) + way(size);
            let gap = offset.checked_sub(head.end).filter(|_| pause <= MOST);
            head.first = gap.map(|gap| (now, gap.saturating_sub(rest)));
            head.bytes = 0;
            if !std::mem::take(&mut head.told) && pause <= MOST {
                self.pauses.add(pause);
            }
        } else if !follows {
            head.first = None;
        }
        head.end = offset + size;
        head.bytes += size;
    }

    /// It is stable. `alone`: the disk has nothing else to do.
    pub(super) fn stable(&mut self, vdev: u32, now: Duration, alone: bool) {
        let Some(head) = self.heads.get_mut(&vdev) else { return };
        head.idle = Some(now);
        let first = head.first.take().filter(|_| alone && head.bytes <= SHORT);
        if let Some((came, had)) = first {
            let most = MOST + Duration::from_micros(head.bytes / RATE_LEAST);
            self.disk.tried(had, now.saturating_sub(came) > most);
        }
    }

    /// In bytes, for a block on any vdev, or on this one, to which it will be sent at once if
    /// nothing is on its way there.
    pub(super) fn get(&mut self, vdev: Option<u32>, size: u64, now: Duration) -> u64 {
        let needs = self.disk.takes + way(size);
        let head = vdev.and_then(|v| self.heads.get_mut(&v));
        match head.and_then(|h| h.idle.map(|idle| (h, idle))) {
            Some((head, idle)) => {
                head.told = true;
                let pause = now.saturating_sub(idle);
                let rest = Duration::from_nanos((pause.as_nanos() % A_TURN.as_nanos()) as u64);
                let gap = needs + bytes(rest).next_multiple_of(STEP);
                // Beyond, it is sooner there by itself. And where it is after several turns cannot
                // be told so exactly.
                if gap > TURN * 3 / 4 || pause > 4 * A_TURN { needs } else { gap }
            }
            // The others are not expected to be there before the first.
            None if vdev.is_some() => needs + self.pauses.best.max(2) * STEP,
            None => needs + self.pauses.best * STEP,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 64 << 10;

    /// A disk that takes so many bytes of its rate from a command until it can write, and is told
    /// to write after pauses.
    struct Test {
        gap: Gap,
        now: Duration,
        end: u64,
        takes: u64,
        block: u64,
        late: u32,
    }

    impl Test {
        fn new(takes: u64) -> Test {
            Test { gap: Gap::default(), now: Duration::from_secs(1), end: 0, takes, block: SIZE, late: 0 }
        }
        /// After pauses of so many microseconds, of which the gap knows or not. The last gap,
        /// without the block's way.
        fn pauses(&mut self, micros: &[u64], known: bool) -> u64 {
            let mut gap = 0;
            for &us in micros {
                let pause = Duration::from_micros(us);
                let asked = if known { self.now + pause } else { self.now };
                gap = self.gap.get(known.then_some(1), SIZE, asked);
                self.now += pause;
                let late = gap < self.takes + way(SIZE) + bytes(pause);
                self.late += u32::from(late);
                self.gap.block(1, (self.end + gap, SIZE), self.now);
                self.end += gap + SIZE;
                // One that follows at once.
                self.gap.block(1, (self.end, self.block), self.now);
                self.end += self.block;
                self.now += Duration::from_millis(if late { 10 } else { 2 });
                self.gap.stable(1, self.now, true);
            }
            gap - way(SIZE)
        }
    }

    #[test]
    fn what_costs_least_for_pauses_that_are_not_known() {
        let mut t = Test::new(0);
        t.gap.disk.found = true;
        assert_eq!(t.pauses(&[0; 10], false), DISK);
        assert_eq!(t.pauses(&[400; 600], false), DISK + 60 * 1024);
        // One in eight is longer: it goes by that one; one in a hundred does not count.
        let mixed: Vec<u64> = (0..1000).map(|i| if i % 8 == 0 { 800 } else { 100 }).collect();
        assert_eq!(t.pauses(&mixed, false), DISK + 120 * 1024);
        let rare: Vec<u64> = (0..2500).map(|i| if i % 100 == 0 { 800 } else { 100 }).collect();
        let gap = t.pauses(&rare, false);
        assert!(gap <= DISK + 16 * 1024, "{gap}");
        assert_eq!(t.pauses(&[5000; 100], false), gap, "nobody waited");
        let gap = t.pauses(&[0; 1000], false);
        assert_eq!(gap, t.gap.disk.takes, "and what is over is forgotten");
    }

    #[test]
    fn as_much_as_passed_where_the_pause_is_known() {
        let mut t = Test::new(0);
        t.gap.disk.found = true;
        assert_eq!(t.pauses(&[0, 400], true), DISK + 60 * 1024);
        assert_eq!(t.pauses(&[0, 4000], true), DISK + 588 * 1024);
        assert_eq!(t.pauses(&[0, 8000], true), DISK, "soon it is there by itself");
        assert_eq!(t.pauses(&[0, 8333 + 400], true), DISK + 60 * 1024, "a turn later");
        assert_eq!(t.pauses(&[0, 50_000], true), DISK);
    }

    #[test]
    fn what_the_disk_takes_is_found_by_trying() {
        for takes in [20 << 10, 43 << 10, 110 << 10] {
            let mut t = Test::new(takes);
            t.pauses(&[0; 1000], true);
            t.late = 0;
            let gap = t.pauses(&[0; 8000], true);
            assert!((takes..takes + 3 * STEP).contains(&(gap + STEP)), "{takes}: {gap}");
            assert!((1..20).contains(&t.late), "{takes}: {} times late", t.late);
        }
        // What takes long anyway says nothing.
        let mut t = Test { block: 512 << 10, ..Test::new(110 << 10) };
        t.pauses(&[0; 100], true);
        assert_eq!(t.gap.disk.takes, DISK);
        // Where it turns in vain now and then for other reasons, nothing is learned of it.
        let mut t = Test::new(0);
        t.gap.disk.found = true;
        for _ in 0..20 {
            t.pauses(&[0; 20], true);
            t.takes = 1 << 20;
            t.pauses(&[0], true);
            t.takes = 0;
        }
        assert!(t.pauses(&[0], true) <= DISK);
    }
}
