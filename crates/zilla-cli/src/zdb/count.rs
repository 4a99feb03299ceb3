//! What `-b` adds up as the census goes through the blocks, and what it says meanwhile.

use crate::cx::Out;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use zilla_control::props::nicenum::nicebytes;
use zilla_core::check::{Observer, Sharing, Use};
use zilla_core::error::Error;
use zilla_core::spa::Spa;
use zilla_core::types::Bookmark;
use zilla_env::Env;
use zilla_ondisk::BlkPtr;
use zilla_ondisk::object_type::{DMU_OT_NEWTYPE, DMU_OT_NUMTYPES};

/// Rows behind those of the object types.
pub const DEFERRED: u8 = DMU_OT_NUMTYPES;
pub const DITTO: u8 = DEFERRED + 1;
pub const OTHER: u8 = DEFERRED + 2;
pub const TOTAL: u8 = DEFERRED + 3;
/// The row of all levels together.
pub const LEVELS: u8 = 32;
/// Sizes in sectors that are counted one by one; larger ones are one.
const SECTORS: u64 = 257;
const ECKSUM: u32 = 52;

#[derive(Clone, Default)]
pub struct Stat {
    pub count: u64,
    pub lsize: u64,
    pub psize: u64,
    pub asize: u64,
    pub gangs: u64,
    pub same_vdev: u64,
    pub same_metaslab: u64,
    pub sectors: Vec<u64>,
}

/// Sizes by powers of two: how many, and how much.
pub type Bins = [(u64, u64); 64];

pub struct Counting<'a> {
    out: &'a mut Out,
    env: &'a Env,
    begun: Duration,
    shown: Duration,
    pub terminal: bool,
    /// Bytes in use, to say how long it will take.
    expected: u64,
    metaslab_shift: BTreeMap<u32, u32>,
    pub rows: BTreeMap<(u8, u8), Stat>,
    pub embedded: BTreeMap<u8, (u64, Vec<u64>)>,
    pub bins: [Bins; 3],
    pub dedup: (u64, u64),
    pub clones: (u64, u64),
    pub errors: BTreeMap<u32, u64>,
    pub damaged: u64,
}

fn errno(e: &Error) -> u32 {
    match e {
        Error::Corrupt(_) => ECKSUM,
        e => e.errno() as u32,
    }
}

impl<'a> Counting<'a> {
    pub fn new(spa: &Spa, out: &'a mut Out, env: &'a Env) -> Counting<'a> {
        let tree = spa.tree();
        let stats = tree.tops.iter().filter_map(|t| spa.metaslabs.vdev_stat(t.id).ok());
        Counting {
            expected: stats.map(|s| s.alloc).sum(),
            metaslab_shift: tree.tops.iter().map(|t| (t.id, t.vdev.metaslab_shift())).collect(),
            out,
            env,
            begun: env.now(),
            shown: env.now(),
            terminal: std::io::stderr().is_terminal(),
            rows: BTreeMap::new(),
            embedded: BTreeMap::new(),
            bins: [[(0, 0); 64]; 3],
            dedup: (0, 0),
            clones: (0, 0),
            errors: BTreeMap::new(),
            damaged: 0,
        }
    }

    fn same_metaslab(&self, bp: &BlkPtr, a: usize, b: usize) -> bool {
        let (a, b) = (bp.dva(a), bp.dva(b));
        let shift = self.metaslab_shift.get(&a.vdev).copied().unwrap_or(0).min(63);
        a.vdev == b.vdev && a.offset >> shift == b.offset >> shift
    }

    fn ditto(&self, bp: &BlkPtr) -> (bool, bool) {
        let same = |a: usize, b: usize| bp.dva(a).vdev == bp.dva(b).vdev;
        match bp.ndvas() {
            2 => (same(0, 1), self.same_metaslab(bp, 0, 1)),
            3 => {
                let pairs = [(0, 1), (0, 2), (1, 2)];
                let any = pairs.iter().any(|(a, b)| same(*a, *b));
                (any, pairs.iter().any(|(a, b)| self.same_metaslab(bp, *a, *b)))
            }
            _ => (false, false),
        }
    }

    fn say(&mut self, line: String) {
        self.out.put(line);
    }
}

impl Observer for Counting<'_> {
    fn block(&mut self, bp: &BlkPtr, _: &Bookmark, what: Use) {
        let otype = match what {
            Use::DeferredFree => DEFERRED,
            _ if bp.otype() & DMU_OT_NEWTYPE != 0 => OTHER,
            _ => bp.otype(),
        };
        let (asize, lsize, psize) = (bp.asize(), bp.lsize(), bp.psize());
        let (same_vdev, same_metaslab) = self.ditto(bp);
        for key in [(bp.level(), TOTAL), (bp.level(), otype), (LEVELS, TOTAL), (LEVELS, otype)] {
            let s = self.rows.entry(key).or_default();
            s.count += 1;
            s.asize += asize;
            s.lsize += lsize;
            s.psize += psize;
            s.gangs += bp.count_gang() as u64;
            s.same_vdev += u64::from(same_vdev);
            s.same_metaslab += u64::from(same_metaslab);
            let sectors = (psize >> 9).min(SECTORS) as usize;
            if s.sectors.len() <= sectors {
                s.sectors.resize(sectors + 1, 0);
            }
            if let Some(n) = s.sectors.get_mut(sectors) {
                *n += 1;
            }
        }
        if bp.is_embedded() {
            let (count, sizes) = self.embedded.entry(bp.embedded_type()).or_default();
            *count += 1;
            let size = bp.embedded_psize();
            sizes.resize(sizes.len().max(size + 1), 0);
            if let Some(n) = sizes.get_mut(size) {
                *n += 1;
            }
            return;
        }
        for (bins, size) in self.bins.iter_mut().zip([psize, lsize, asize]) {
            if let Some(bin) = bins.get_mut(size.max(1).ilog2() as usize) {
                bin.0 += 1;
                bin.1 += size;
            }
        }
    }

    fn shared(&mut self, bp: &BlkPtr, how: Sharing) {
        let (size, count) = match how {
            Sharing::Dedup => (&mut self.dedup.0, &mut self.dedup.1),
            Sharing::Clone => (&mut self.clones.0, &mut self.clones.1),
        };
        *size += bp.asize();
        *count += 1;
    }

    fn not_claimed(&mut self, bp: &BlkPtr, why: &str) {
        self.say(format!("block claim error 2: {bp} ({why})\n"));
        *self.errors.entry(2).or_default() += 1;
    }

    fn unreadable(&mut self, bp: &BlkPtr, at: &Bookmark, e: &Error) {
        let n = errno(e);
        let Bookmark { objset, object, level, blkid } = at;
        self.say(format!(
            "zdb_blkptr_cb: Got error {n} reading <{objset}, {object}, {level}, {blkid:x}> {bp} ({e}) -- skipping\n"
        ));
        *self.errors.entry(n).or_default() += 1;
    }

    fn damaged(&mut self, _: &BlkPtr, at: &Bookmark, bad: usize) {
        self.damaged += bad as u64;
        self.say(format!("block {at}: {bad} of its copies or columns are damaged, the others are good\n"));
    }

    fn progress(&mut self) {
        let now = self.env.now();
        if !self.terminal || now.saturating_sub(self.shown) < Duration::from_secs(1) {
            return;
        }
        self.shown = now;
        let bytes = self.rows.get(&(LEVELS, TOTAL)).map_or(0, |s| s.asize);
        let millis = now.saturating_sub(self.begun).as_millis() as u64;
        let kb_per_sec = 1 + bytes / (1 + millis);
        let left = self.expected.saturating_sub(bytes) / 1024 / kb_per_sec;
        let (hours, minutes, seconds) = (left / 3600, left / 60 % 60, left % 60);
        let done = nicebytes(bytes);
        let rate = kb_per_sec / 1024;
        // Nobody misses a progress line that cannot be written.
        let _ = write!(
            std::io::stderr(),
            "\r{done:>5} completed ({rate:4}MB/s) estimated time remaining: {hours}hr {minutes:02}min {seconds:02}sec        "
        );
    }
}
