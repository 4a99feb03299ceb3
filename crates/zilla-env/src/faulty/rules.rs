//! Rules: which operations go wrong, when, and how.

use std::ops::Range;
use std::time::Duration;

use crate::IoOp;

/// What happens to an operation that a rule picks.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// Fails with this errno, without being done.
    Error(i32),
    /// Bits flip in the data: of a read on its way up (the disk is sound), of a write on its way
    /// down (and stay).
    FlipBits {
        count: usize,
    },
    /// The data is noise, or zeroes.
    Garbage,
    Zeroes,
    /// Never completes, until [`super::FaultyDevice::release_hung`].
    Hang,
    Delay(Duration),
    /// Acknowledged and not done (a write, a flush: a phantom write, a lying disk).
    Ignore,
    /// Only the first sectors of a write are done, and it is acknowledged.
    Tear {
        sectors: u64,
    },
    /// A write or read lands this many bytes further on.
    Misdirect(u64),
}

/// Which kinds of operation a rule looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ops {
    All,
    Reads,
    /// Writes, discards and write-zeroes.
    Writes,
    Flushes,
}

impl Ops {
    fn holds(self, op: &IoOp) -> bool {
        match self {
            Ops::All => true,
            Ops::Reads => matches!(op, IoOp::Read { .. }),
            Ops::Writes => op.modifies(),
            Ops::Flushes => matches!(op, IoOp::Flush),
        }
    }
}

/// Which of the operations that match, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum When {
    Always,
    Nth(u64),
    From(u64),
    Every(u64),
    /// With this probability, by the world's randomness.
    Chance(f64),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    pub ops: Ops,
    /// Operations that touch these bytes; all if none. A flush touches none.
    pub range: Option<Range<u64>>,
    pub when: When,
    pub fault: Fault,
}

impl Rule {
    pub fn new(ops: Ops, fault: Fault) -> Rule {
        Rule { ops, range: None, when: When::Always, fault }
    }

    pub fn within(mut self, range: Range<u64>) -> Rule {
        self.range = Some(range);
        self
    }

    pub fn when(mut self, when: When) -> Rule {
        self.when = when;
        self
    }
}

/// A rule at work: how often it was looked at and how often it struck.
pub(super) struct Active {
    pub rule: Rule,
    pub seen: u64,
    pub hits: u64,
}

impl Active {
    /// Whether the rule strikes this operation; `chance` is uniform in 0..1.
    pub(super) fn strikes(&mut self, op: &IoOp, chance: impl FnOnce() -> f64) -> bool {
        let (offset, len) = op.range();
        let touches = |r: &Range<u64>| offset < r.end && offset.saturating_add(len) > r.start;
        if !self.rule.ops.holds(op) || !self.rule.range.as_ref().is_none_or(touches) {
            return false;
        }
        self.seen += 1;
        let strikes = match self.rule.when {
            When::Always => true,
            When::Nth(n) => self.seen == n,
            When::From(n) => self.seen >= n,
            When::Every(n) => self.seen.is_multiple_of(n.max(1)),
            When::Chance(p) => chance() < p,
        };
        self.hits += strikes as u64;
        strikes
    }
}
