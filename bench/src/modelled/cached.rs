//! What cache devices are worth, on modelled devices in virtual time: disks of 7200 rpm, and flash
//! behind NVMe in front of them.
//!
//! The published story had memory, a cached set and a second-level cache of sizes as 0.5 : 1.2 :
//! 1.6, so that the set fits into the cache devices and not into memory. Here these ratios are kept
//! and the sizes are as small as a figure allows. Rates are not scaled: those of the devices and of
//! feeding are what they are, so what takes a time that grows with the sizes (filling a device, a
//! scan) takes the same share of it here as there.
//!
//! In virtual time computing takes none, so beside a rate stands, where it matters, what the
//! machine's CPU needed for it. And all tasks run on one thread: what cores that meet at a lock
//! would cost is not seen here.
//!
//! Each figure stands beside its limit, which is computed from the devices' profiles: no program
//! could do better with such devices.

mod feeding;
mod hits;
mod limits;
mod restart;
mod scanned;
mod stage;

use crate::engine::Result;
use serde_json::{Value, json};

/// The parts of the table.
const ROWS: [&str; 5] = ["random", "streams", "feeding", "scan", "restart"];

/// A figure of the table.
pub struct Figure {
    pub what: String,
    pub unit: &'static str,
    pub value: f64,
    /// What is promised, and whether it is the most rather than the least.
    pub wanted: f64,
    pub at_most: bool,
    /// What the devices allow.
    pub limit: f64,
    /// How the limit was computed, or what else is to be known.
    pub note: String,
}

impl Figure {
    fn is_kept(&self) -> bool {
        if self.at_most { self.value <= self.wanted } else { self.value >= self.wanted }
    }

    fn is_allowed(&self) -> bool {
        if self.at_most { self.limit <= self.wanted } else { self.limit >= self.wanted }
    }

    fn shown(&self) -> Value {
        let Figure { what, unit, value, wanted, limit, note, .. } = self;
        let (kept, allowed) = (self.is_kept(), self.is_allowed());
        let verdict = match (kept, allowed) {
            (true, _) => "kept",
            (false, true) => "MISSED",
            (false, false) => "MISSED, the limit forbids it",
        };
        let most = if self.at_most { "at most" } else { "at least" };
        println!("  {what:44} {value:9.3} {unit} ({most} {wanted}: {verdict}); limit {limit:.3}; {note}");
        json!({ "what": what, "unit": unit, "value": value, "wanted": wanted, "at_most": self.at_most,
            "limit": limit, "note": note, "kept": kept, "allowed": allowed })
    }
}

/// The parts with `rows` in their name; of the scans those with `cases` in theirs. All sizes are
/// divided by `shrink`: what the devices do not do in proportion, such as reading ahead, counts for
/// more then.
pub fn run(rows: &str, cases: &str, shrink: u64) -> Result<Value> {
    stage::Size::shrink(shrink);
    println!(
        "{} disks of 7200 rpm, NVMe in front of them; memory : set : L2ARC as {} : {} : {}",
        stage::DISKS,
        stage::MEMORY,
        stage::SET,
        stage::FLASH
    );
    let mut out = json!({});
    for part in ROWS.into_iter().filter(|part| part.contains(rows)) {
        println!("{part}");
        let (figures, more) = match part {
            "random" => hits::random()?,
            "streams" => hits::streams()?,
            "feeding" => feeding::run()?,
            "scan" => scanned::run(cases)?,
            _ => restart::run()?,
        };
        let figures: Vec<Value> = figures.iter().map(Figure::shown).collect();
        out[part] = json!({ "figures": figures, "measured": more });
    }
    Ok(out)
}
