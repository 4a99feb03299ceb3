//! What a trace says, as it goes by: counts by time, how many read at once, and the sample.

use crate::advice::{Advice, Options};
use crate::sample::{Access, MOST, Sample, hash};
use std::collections::VecDeque;
use zilla_ondisk::trace::{Event, Found, Item, Record, TraceHeader};

/// Counts of a stretch of time. Those of `found` are by [`Found`]: memory, on its way, cache
/// device, pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub reads: [u64; 4],
    pub micros: [u64; 4],
    pub bytes: u64,
    pub stored: u64,
    pub prefetches: u64,
    pub commits: u64,
    pub commit_micros: u64,
    pub log_blocks: u64,
    pub log_bytes: u64,
    pub log_micros: u64,
    pub txgs: u64,
    pub txg_bytes: u64,
}

impl Counts {
    fn add(&mut self, o: &Counts) {
        for (sum, n) in self.reads.iter_mut().chain(&mut self.micros).zip(o.reads.iter().chain(&o.micros)) {
            *sum = sum.saturating_add(*n);
        }
        for (sum, n) in [
            (&mut self.bytes, o.bytes),
            (&mut self.stored, o.stored),
            (&mut self.prefetches, o.prefetches),
            (&mut self.commits, o.commits),
            (&mut self.commit_micros, o.commit_micros),
            (&mut self.log_blocks, o.log_blocks),
            (&mut self.log_bytes, o.log_bytes),
            (&mut self.log_micros, o.log_micros),
            (&mut self.txgs, o.txgs),
            (&mut self.txg_bytes, o.txg_bytes),
        ] {
            *sum = sum.saturating_add(n);
        }
    }

    pub fn all_reads(&self) -> u64 {
        self.reads.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    pub fn of(&self, found: Found) -> (u64, u64) {
        let i = found as usize;
        (self.reads.get(i).copied().unwrap_or(0), self.micros.get(i).copied().unwrap_or(0))
    }

    fn note(&mut self, event: &Event) {
        let mut one = Counts::default();
        match *event {
            Event::Read { prefetch: true, .. } => one.prefetches = 1,
            Event::Read { lsize, psize, found, micros, .. } => {
                let i = found as usize;
                if let (Some(n), Some(sum)) = (one.reads.get_mut(i), one.micros.get_mut(i)) {
                    (*n, *sum) = (1, micros);
                }
                (one.bytes, one.stored) = (lsize.into(), psize.into());
            }
            Event::Commit { micros, .. } => (one.commits, one.commit_micros) = (1, micros),
            Event::LogBlock { bytes, micros, .. } => {
                (one.log_blocks, one.log_bytes, one.log_micros) = (1, bytes, micros);
            }
            Event::Txg { bytes, .. } => (one.txgs, one.txg_bytes) = (1, bytes),
        }
        self.add(&one);
    }
}

/// Counts by time, in a fixed number of slices that become wider as the trace becomes longer.
#[derive(Default)]
struct Slices {
    /// Milliseconds of one.
    width: u64,
    all: Vec<Counts>,
}

const SLICES: usize = 512;

impl Slices {
    fn note(&mut self, at: u64, event: &Event) {
        self.width = self.width.max(1);
        while at / self.width >= SLICES as u64 {
            let mut wider = vec![Counts::default(); SLICES / 2];
            for (i, c) in self.all.iter().enumerate() {
                if let Some(w) = wider.get_mut(i / 2) {
                    w.add(c);
                }
            }
            self.all = wider;
            self.width *= 2;
        }
        self.all.resize(SLICES, Counts::default());
        if let Some(slice) = self.all.get_mut((at / self.width) as usize) {
            slice.note(event);
        }
    }

    /// From the slice on that begins after so many milliseconds, and when that is.
    fn since(&self, at: u64) -> (Counts, u64) {
        let first = at.div_ceil(self.width.max(1));
        let mut sum = Counts::default();
        self.all.iter().skip(first as usize).for_each(|c| sum.add(c));
        (sum, first * self.width)
    }
}

/// How many wait for the pool at once, seen at some of the moments when one of them ends.
#[derive(Default)]
struct Crowd {
    /// When the last of them began and ended, in microseconds.
    last: VecDeque<(u64, u64)>,
    seen: Vec<u32>,
    turn: u64,
}

/// Those who are looked through for who was waiting too.
const WINDOW: usize = 512;
/// One in so many is asked.
const ASKED: u64 = 16;
const SEEN: usize = 4096;

impl Crowd {
    fn note(&mut self, begun: u64, ended: u64) {
        self.last.push_back((begun, ended));
        if self.last.len() <= WINDOW {
            return;
        }
        let Some((_, then)) = self.last.pop_front() else { return };
        self.turn += 1;
        if self.turn.is_multiple_of(ASKED) {
            self.ask(then);
        }
    }

    fn ask(&mut self, then: u64) {
        let others = self.last.iter().filter(|(begun, ended)| *begun < then && *ended >= then).count();
        // The latest that were seen stand for all of a long trace.
        if self.seen.len() == SEEN {
            self.seen.drain(..SEEN / 2);
        }
        self.seen.push(others as u32 + 1);
    }

    /// As many as there are most of the time when it is busy.
    fn size(&mut self) -> u64 {
        while let Some((_, then)) = self.last.pop_front() {
            self.ask(then);
        }
        self.seen.sort_unstable();
        self.seen.get(self.seen.len() * 9 / 10).copied().unwrap_or(1).into()
    }
}

/// What a trace says so far.
pub struct Analysis {
    header: Option<TraceHeader>,
    slices: Slices,
    crowd: Crowd,
    sample: Sample,
    records: u64,
    lost: u64,
    /// The latest time of a record, and the end's, in microseconds.
    last: u64,
}

/// What advice is made of.
pub(crate) struct Facts {
    pub header: TraceHeader,
    pub records: u64,
    pub lost: u64,
    pub seconds: f64,
    /// The part that is counted: what happened, how long it is, and the millisecond when it begins.
    pub counted: Counts,
    pub counted_seconds: f64,
    pub from: u32,
    pub readers: u64,
    pub part: f64,
    pub accesses: Vec<Access>,
}

impl Default for Analysis {
    fn default() -> Analysis {
        Analysis {
            header: None,
            slices: Slices::default(),
            crowd: Crowd::default(),
            sample: Sample::new(MOST),
            records: 0,
            lost: 0,
            last: 0,
        }
    }
}

impl Analysis {
    pub fn item(&mut self, item: Item) {
        match item {
            Item::Header(header) => self.header = Some(header),
            Item::Lost(n) => self.lost = self.lost.saturating_add(n),
            Item::End(end) => self.last = self.last.max(end.micros),
            Item::Record(record) => self.record(&record),
        }
    }

    pub fn records(&self) -> u64 {
        self.records
    }

    fn record(&mut self, r: &Record) {
        self.records += 1;
        self.last = self.last.max(r.at);
        let at = r.at / 1000;
        self.slices.note(at, &r.event);
        if let Event::Read { block, psize, prefetch, found, micros, .. } = r.event {
            if !prefetch && found != Found::Memory {
                self.crowd.note(r.at.saturating_sub(micros), r.at);
            }
            let at = u32::try_from(at).unwrap_or(u32::MAX);
            self.sample.add(Access { key: hash(&block), size: psize, at, prefetch, found });
        }
    }

    /// Advice, if there was a header.
    pub fn advice(self, options: &Options) -> Option<Advice> {
        let mut this = self;
        let (counted, from) = this.slices.since(this.last / 2000);
        let counted_seconds = (this.last as f64 / 1e6 - from as f64 / 1e3).max(1e-3);
        // Who waits on the average is there (Little's law), also where it is a file's read-ahead,
        // which goes on beside the reader that it is for.
        let waited = counted.of(Found::Pool).1.saturating_add(counted.of(Found::OnItsWay).1);
        let at_once = waited as f64 / 1e6 / counted_seconds;
        let readers = this.crowd.size().max(at_once.round() as u64);
        let part = this.sample.part();
        let mut accesses = this.sample.all;
        // Those of one moment may have come in another order.
        accesses.sort_by_key(|a| a.at);
        let facts = Facts {
            header: this.header?,
            records: this.records,
            lost: this.lost,
            seconds: this.last as f64 / 1e6,
            counted,
            counted_seconds,
            from: u32::try_from(from).unwrap_or(u32::MAX),
            readers,
            part,
            accesses,
        };
        Some(crate::advice::advise(&facts, options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_grow_and_nothing_is_lost() {
        let mut s = Slices::default();
        let commit = Event::Commit { objset: 1, micros: 3 };
        for at in [0, 5, 511, 512, 100_000, 99_999_999] {
            s.note(at, &commit);
        }
        assert_eq!(s.since(0).0.commits, 6);
        let (half, from) = s.since(50_000_000);
        assert_eq!((half.commits, half.commit_micros), (1, 3));
        assert!((50_000_000..51_000_000).contains(&from));
        s.note(1 << 40, &commit);
        assert_eq!(s.since(0).0.commits, 7);
    }

    #[test]
    fn a_crowd_is_counted() {
        for readers in [1u64, 7, 64] {
            let mut c = Crowd::default();
            // Each waits ten milliseconds and begins again at once; they end one after the other.
            for i in 0..5000u64 {
                let ended = 10_000 + i * 10_000 / readers;
                c.note(ended - 10_000, ended);
            }
            let size = c.size();
            assert!((readers..=readers + 1).contains(&size), "{readers}: {size}");
        }
    }
}
