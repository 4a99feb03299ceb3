//! One handler: what goes wrong, where, and how often.

use super::{BlockRead, DeviceIo};
use crate::error::{Errno, Error, Result};
use crate::types::Bookmark;
use std::collections::VecDeque;
use std::time::Duration;
use zilla_env::Rng;
use zilla_ondisk::label::{
    UBERBLOCK_RING_OFFSET, VDEV_LABEL_END_SIZE, VDEV_LABEL_SIZE, VDEV_LABEL_START_SIZE, VDEV_PAD_SIZE,
    VDEV_PHYS_OFFSET, VDEV_PHYS_SIZE, VDEV_UBERBLOCK_RING,
};

/// Lanes that a delay may have.
pub const MOST_LANES: u16 = u16::MAX - 1;
/// Longer than this nothing is delayed: an hour.
const LONGEST: Duration = Duration::from_secs(3600);

/// How often a handler strikes where it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    Always,
    /// In this many of 2^32 cases; the greatest number: in all.
    Of(u32),
}

impl Frequency {
    fn hits(self, rng: &dyn Rng) -> bool {
        match self {
            Frequency::Always | Frequency::Of(u32::MAX) => true,
            Frequency::Of(n) => ((rng.u64() >> 32) as u32) < n,
        }
    }
}

/// Which I/O a handler looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoType {
    Read,
    Write,
    /// Of no device: freeing and claiming touch none.
    Free,
    Claim,
    Flush,
    Trim,
    All,
    /// The pool looks whether the device works at all.
    Probe,
}

impl IoType {
    /// A probe is nobody else's I/O.
    fn takes(self, kind: IoType) -> bool {
        self == kind || (self == IoType::All && kind != IoType::Probe)
    }
}

/// How something fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The device says no (EIO).
    Io,
    /// The device is not there any more (ENXIO), and cannot be opened either.
    Gone,
    /// The bytes are not the block (ECKSUM).
    Checksum,
    /// They cannot be decompressed (EINVAL).
    Decompress,
    /// They cannot be decrypted (EACCES).
    Decrypt,
    /// A bit of what was read is another (EILSEQ).
    Corrupt,
    /// The pool believes that it cannot do without the device (ECHILD).
    Required,
    /// It is called done without being done (ENOSYS).
    Noop,
}

impl Failure {
    /// The number that a device answers with.
    pub fn errno(self) -> i32 {
        match self {
            Failure::Io | Failure::Corrupt | Failure::Noop => 5,
            Failure::Gone => 6,
            Failure::Required => 10,
            Failure::Decrypt => 13,
            Failure::Decompress => 22,
            Failure::Checksum => 52,
        }
    }
}

/// A part of each label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    Pad1,
    Pad2,
    Nvlist,
    Uber,
}

impl Region {
    fn holds(self, within_label: u64) -> bool {
        let (start, len) = match self {
            Region::Pad1 => (0, VDEV_PAD_SIZE),
            Region::Pad2 => (VDEV_PAD_SIZE, VDEV_PAD_SIZE),
            Region::Nvlist => (VDEV_PHYS_OFFSET, VDEV_PHYS_SIZE),
            Region::Uber => (UBERBLOCK_RING_OFFSET, VDEV_UBERBLOCK_RING),
        };
        (start..start + len).contains(&within_label)
    }
}

/// Where on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Between the labels.
    Data,
    Label(Region),
}

impl Place {
    fn holds(self, io: &DeviceIo) -> bool {
        // A flush is of no place, and a probe of one that does not matter.
        let end = io.psize.saturating_sub(VDEV_LABEL_END_SIZE);
        let data = (VDEV_LABEL_START_SIZE..end).contains(&io.offset);
        let anywhere = matches!(io.kind, IoType::Flush | IoType::Probe);
        match self {
            Place::Data => anywhere || data,
            Place::Label(_) if anywhere || data => false,
            Place::Label(region) if io.offset >= end => region.holds((io.offset - end) % VDEV_LABEL_SIZE),
            Place::Label(region) => {
                io.offset < 2 * VDEV_LABEL_SIZE && region.holds(io.offset % VDEV_LABEL_SIZE)
            }
        }
    }
}

/// Which of a block's copies: a bit each; none: all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies(pub u32);

impl Copies {
    fn has(self, copy: Option<usize>) -> bool {
        self.0 == 0 || copy.is_some_and(|c| c < 32 && self.0 & (1 << c) != 0)
    }
}

/// Which blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlace {
    /// Blocks `first` to `last` of a level of an object.
    Blocks { objset: u64, object: u64, level: i64, first: u64, last: u64 },
    /// The pool's own objects: those of this type, or all.
    Mos { object_type: Option<u8> },
}

impl DataPlace {
    fn holds(&self, read: &BlockRead) -> bool {
        let at = &read.at;
        match *self {
            DataPlace::Mos { object_type } => {
                at.objset == Bookmark::MOS && object_type.is_none_or(|t| t == read.object_type)
            }
            DataPlace::Blocks { objset, object, level, first, last } => {
                (at.objset, at.object, at.level) == (objset, object, level)
                    && (first..=last).contains(&at.blkid)
            }
        }
    }
}

/// What a handler does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// I/O of a device fails. With `fail_fast` it may be tried again, which then goes well.
    Device { vdev: u64, place: Place, failure: Failure, on: IoType, fail_fast: bool },
    /// I/O of a device takes at least so long, in so many lanes.
    Delay { vdev: u64, latency: Duration, lanes: u16, on: IoType },
    /// Blocks cannot be read.
    Data { at: DataPlace, failure: Failure, copies: Copies },
    /// The next import or export takes at least so long.
    Pause { import: bool, lasts: Duration },
}

impl Fault {
    pub(super) fn check(&self) -> Result<()> {
        let bad = |what: &'static str| Err(Error::os(Errno::Inval, what));
        match self {
            Fault::Delay { latency, lanes, .. } if latency.is_zero() || *lanes == 0 => {
                bad("a delay needs a time and a lane")
            }
            Fault::Delay { lanes, .. } if *lanes > MOST_LANES => bad("a delay has 65534 lanes at most"),
            Fault::Delay { latency: time, .. } | Fault::Pause { lasts: time, .. } if *time > LONGEST => {
                bad("nothing is delayed for more than an hour")
            }
            Fault::Pause { lasts, .. } if lasts.is_zero() => bad("a pause needs a time"),
            Fault::Device { failure: Failure::Corrupt, on, .. } if *on != IoType::Read => {
                bad("only what is read can come with another bit")
            }
            Fault::Device { on: IoType::Free | IoType::Claim, .. }
            | Fault::Delay { on: IoType::Free | IoType::Claim, .. } => {
                bad("no device takes part in freeing and claiming")
            }
            Fault::Data { failure, copies, .. } => match failure {
                Failure::Io | Failure::Checksum => Ok(()),
                Failure::Decompress | Failure::Decrypt if copies.0 == 0 => Ok(()),
                Failure::Decompress | Failure::Decrypt => bad("of such an error no copy is any different"),
                _ => bad("data do not fail so"),
            },
            _ => Ok(()),
        }
    }
}

/// A handler as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    pub id: u64,
    /// The pool's name when it was asked for.
    pub pool: String,
    pub pool_guid: u64,
    pub fault: Fault,
    pub frequency: Frequency,
}

/// A handler at work.
pub(super) struct Active {
    pub handler: Handler,
    /// When lanes that are busy will be free, in this order. Each takes equally long, so who came
    /// last is free last.
    lanes: VecDeque<Duration>,
}

impl Active {
    pub fn new(handler: Handler) -> Active {
        Active { handler, lanes: VecDeque::new() }
    }

    pub fn strikes(&mut self, io: &DeviceIo, rng: &dyn Rng) -> Option<(Failure, bool)> {
        let Fault::Device { vdev, place, failure, on, fail_fast } = self.handler.fault else { return None };
        let is_answer = !matches!(failure, Failure::Noop | Failure::Required);
        let fits = vdev == io.vdev && is_answer && on.takes(io.kind) && place.holds(io);
        let strikes = fits && !(fail_fast && io.retry) && self.handler.frequency.hits(rng);
        strikes.then_some((failure, fail_fast))
    }

    pub fn swallows(&mut self, io: &DeviceIo, rng: &dyn Rng) -> bool {
        let Fault::Device { vdev, place, failure: Failure::Noop, on, .. } = self.handler.fault else {
            return false;
        };
        vdev == io.vdev && on.takes(io.kind) && place.holds(io) && self.handler.frequency.hits(rng)
    }

    pub fn delays(&self, io: &DeviceIo, rng: &dyn Rng) -> bool {
        let Fault::Delay { vdev, on, .. } = self.handler.fault else { return false };
        vdev == io.vdev && on.takes(io.kind) && self.handler.frequency.hits(rng)
    }

    /// When an I/O that comes now would be done.
    pub fn earliest(&mut self, now: Duration) -> Option<Duration> {
        let Fault::Delay { latency, lanes, .. } = self.handler.fault else { return None };
        while self.lanes.front().is_some_and(|free| *free <= now) {
            self.lanes.pop_front();
        }
        let free = match self.lanes.front() {
            Some(first) if self.lanes.len() >= usize::from(lanes) => *first,
            _ => now,
        };
        Some(free.max(now) + latency)
    }

    /// It is given to this handler, and done then.
    pub fn take_lane(&mut self, now: Duration, done: Duration) {
        let Fault::Delay { latency, .. } = self.handler.fault else { return };
        // It had to wait for the lane that is free first.
        if done > now + latency {
            self.lanes.pop_front();
        }
        self.lanes.push_back(done);
    }

    pub fn spoils(&self, failure: Failure, read: &BlockRead, rng: &dyn Rng) -> bool {
        let Fault::Data { at, failure: ours, copies } = self.handler.fault else { return false };
        self.handler.pool_guid == read.pool
            && ours == failure
            && copies.has(read.copy)
            && at.holds(read)
            && self.handler.frequency.hits(rng)
    }
}
