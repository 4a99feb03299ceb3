//! What goes wrong at a leaf, kept until the pool looks: the ground of a diagnosis, and of what is
//! reported.
//!
//! The I/O path only notes; who judges is the pool ([`crate::spa`]'s diagnosis), a moment later and
//! in one place. The list is bounded: what is beyond it has been counted all the same. Of some
//! kinds only so many a second are told of, as OpenZFS's tunables say; all are judged.

use std::time::Duration;

use parking_lot::Mutex;

use crate::tunables::{CHECKSUM_EVENTS, DEADMAN_EVENTS, SLOW_IO_EVENTS};

/// Kept between two looks.
const KEPT: usize = 2048;
/// What limits of events are by.
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TroubleKind {
    /// The device said no, with this errno.
    Io { write: bool, errno: i32 },
    /// What it gave is not what was written.
    Checksum,
    /// It took so long.
    Slow(Duration),
    /// It has not answered for so long that it may never.
    Hung(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// On the pool's clock.
    pub at: Duration,
    pub kind: TroubleKind,
    /// Of the device, in bytes.
    pub offset: u64,
    pub len: u64,
    /// To be told of, and not only to be judged.
    pub told: bool,
    /// What reads, writes and checksums had failed there by then.
    pub errors: [u64; 3],
}

/// Events of one kind within a second.
#[derive(Default)]
struct Rate {
    since: Duration,
    told: u64,
}

impl Rate {
    fn may_tell(&mut self, now: Duration, most: u64) -> bool {
        if now.saturating_sub(self.since) >= SECOND {
            *self = Rate { since: now, told: 0 };
        }
        self.told += 1;
        self.told <= most
    }
}

#[derive(Default)]
struct Noted {
    list: Vec<Trouble>,
    checksum: Rate,
    slow: Rate,
    hung: Rate,
}

#[derive(Default)]
pub struct Troubles(Mutex<Noted>);

impl Troubles {
    pub(super) fn note(&self, at: Duration, kind: TroubleKind, (offset, len): (u64, u64), errors: [u64; 3]) {
        let noted = &mut *self.0.lock();
        if noted.list.len() >= KEPT {
            return;
        }
        let told = match kind {
            TroubleKind::Io { .. } => true,
            TroubleKind::Checksum => noted.checksum.may_tell(at, CHECKSUM_EVENTS.get()),
            TroubleKind::Slow(_) => noted.slow.may_tell(at, SLOW_IO_EVENTS.get()),
            TroubleKind::Hung(_) => noted.hung.may_tell(at, DEADMAN_EVENTS.get()),
        };
        noted.list.push(Trouble { at, kind, offset, len, told, errors });
    }

    /// What was noted since this was last asked.
    pub fn take(&self) -> Vec<Trouble> {
        std::mem::take(&mut self.0.lock().list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_judged_and_some_are_told() {
        let troubles = Troubles::default();
        let ms = Duration::from_millis;
        for i in 0..100 {
            troubles.note(ms(i), TroubleKind::Checksum, (i, 512), [0; 3]);
            troubles.note(ms(i), TroubleKind::Hung(SECOND), (i, 512), [0; 3]);
            troubles.note(ms(i), TroubleKind::Io { write: false, errno: 5 }, (i, 512), [0; 3]);
        }
        troubles.note(ms(1500), TroubleKind::Hung(SECOND), (7, 512), [0; 3]);
        let told = |kind: fn(&TroubleKind) -> bool, all: &[Trouble]| {
            all.iter().filter(|t| t.told && kind(&t.kind)).count()
        };
        let all = troubles.take();
        assert_eq!(all.len(), 301);
        assert_eq!(told(|k| matches!(k, TroubleKind::Checksum), &all), 20);
        assert_eq!(told(|k| matches!(k, TroubleKind::Hung(_)), &all), 2);
        assert_eq!(told(|k| matches!(k, TroubleKind::Io { .. }), &all), 100);
        assert!(troubles.take().is_empty());
        (0..3000).for_each(|i| troubles.note(ms(i), TroubleKind::Checksum, (i, 512), [0; 3]));
        assert_eq!(troubles.take().len(), KEPT);
    }
}
