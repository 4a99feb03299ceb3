//! What happens to pools and their devices, for those who watch: the events of `zpool events`.
//!
//! One ring a process, bounded: who does not read in time misses the oldest, and is told how many.
//! An event is a class (`sysevent.fs.zfs.*` for what was done, `ereport.fs.zfs.*` for what went
//! wrong, `resource.fs.zfs.*` for what has changed) and a list of names and values, as in OpenZFS.
//! Nothing of it is on disk, and no pool depends on it.

use crate::tunables::EVENTS_KEPT;
use event_listener::{Event as Bell, EventListener};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use zilla_ondisk::{NvList, NvValue};

/// More are never kept, whatever the tunable says.
const MOST_KEPT: usize = 100_000;

/// `FM_RSRC_VERSION` and `FM_EREPORT_VERSION`.
const VERSION: u8 = 0;

#[derive(Debug)]
pub struct Event {
    /// Counts up from 1.
    pub eid: u64,
    /// Since 1970.
    pub time: Duration,
    pub class: String,
    pub payload: NvList,
}

#[derive(Default)]
struct Ring {
    last: u64,
    events: VecDeque<Arc<Event>>,
}

pub struct Events {
    ring: Mutex<Ring>,
    posted: Bell,
}

static ALL: Events =
    Events { ring: Mutex::new(Ring { last: 0, events: VecDeque::new() }), posted: Bell::new() };

/// The process's events.
pub fn events() -> &'static Events {
    &ALL
}

impl Events {
    /// Adds an event; `about` is what it is about, between its class and its time.
    pub fn post(&self, time: Duration, class: &str, about: &NvList) {
        let mut payload = NvList::new();
        payload.add("version", NvValue::Uint8(VERSION)).add("class", class);
        for (name, value) in about {
            payload.add(name, value.clone());
        }
        let (seconds, nanos) = (time.as_secs() as i64, i64::from(time.subsec_nanos()));
        payload.add("time", NvValue::Int64Array(vec![seconds, nanos]));
        let mut ring = self.ring.lock();
        ring.last += 1;
        let eid = ring.last;
        payload.add("eid", eid);
        let kept = usize::try_from(EVENTS_KEPT.get()).unwrap_or(MOST_KEPT).clamp(1, MOST_KEPT);
        while ring.events.len() >= kept {
            ring.events.pop_front();
        }
        ring.events.push_back(Arc::new(Event { eid, time, class: class.to_owned(), payload }));
        drop(ring);
        self.posted.notify(usize::MAX);
    }

    /// Events after the one of this number, and how many of them are lost.
    pub fn after(&self, eid: u64) -> (Vec<Arc<Event>>, u64) {
        let ring = self.ring.lock();
        let kept: Vec<_> = ring.events.iter().filter(|e| e.eid > eid).cloned().collect();
        let first = kept.first().map_or(ring.last + 1, |e| e.eid);
        let lost = if eid == 0 { 0 } else { first.saturating_sub(eid + 1) };
        (kept, lost)
    }

    /// Forgets all of them; how many there were.
    pub fn clear(&self) -> usize {
        std::mem::take(&mut self.ring.lock().events).len()
    }

    /// Wakes when the next one is posted. To be asked for before [`Events::after`].
    pub fn listen(&self) -> EventListener {
        self.posted.listen()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_bounded_and_says_what_is_lost() {
        const KEPT: usize = 512;
        let events = Events { ring: Mutex::default(), posted: Bell::new() };
        let about = NvList::new().with("pool", "tank");
        for i in 0..KEPT as u64 + 10 {
            events.post(Duration::new(i, 7), "sysevent.fs.zfs.scrub_start", &about);
        }
        let (kept, lost) = events.after(0);
        assert_eq!((kept.len(), lost), (KEPT, 0));
        assert_eq!(kept[0].eid, 11);
        let names: Vec<&str> = kept[0].payload.iter().map(|(n, _)| n).collect();
        assert_eq!(names, ["version", "class", "pool", "time", "eid"]);
        let (kept, lost) = events.after(5);
        assert_eq!((kept.len(), lost), (KEPT, 5));
        assert_eq!(events.clear(), KEPT);
        let (kept, lost) = events.after(KEPT as u64 + 5);
        assert_eq!((kept.len(), lost), (0, 5));
    }
}
