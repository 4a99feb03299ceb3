//! `zpool events`: the process's events for those who ask.

use super::errors::Answer;
use super::pool::Pool;
use super::{Engine, Serves};
use std::time::Duration;
use zilla::events::{Event, events};
use zilla_control::Caller;
use zilla_control::types::{EventClear, EventInfo, EventQuery, EventReply, EventValue};
use zilla_ondisk::NvValue;

/// No client is kept waiting longer.
const LONGEST: Duration = Duration::from_secs(30);

impl Serves<EventQuery> for Engine {
    async fn serve(&self, _: &Caller, r: EventQuery) -> Answer<EventReply> {
        let limit = Duration::from_millis(r.wait_ms).min(LONGEST);
        // What has gone wrong at devices up to now belongs to the answer.
        if r.wait_ms == 0 {
            for pool in self.all_pools() {
                pool.zilla.diagnose();
            }
        }
        let bell = events().listen();
        let (mut found, mut dropped) = events().after(r.after);
        if found.is_empty() && !limit.is_zero() {
            let _ = tokio::time::timeout(limit, bell).await;
            (found, dropped) = events().after(r.after);
        }
        Ok(EventReply { events: found.iter().map(|e| info(e)).collect(), dropped })
    }
}

impl Serves<EventClear> for Engine {
    async fn serve(&self, _: &Caller, _: EventClear) -> Answer<u64> {
        Ok(events().clear() as u64)
    }
}

/// What a command did to a pool, which changed its configuration.
pub(super) fn notify(pool: &Pool, name: &str) {
    pool.zilla.notify("config_sync", None);
    pool.zilla.notify(name, None);
}

/// An event as it is told to others.
pub(super) fn info(event: &Event) -> EventInfo {
    EventInfo {
        eid: event.eid,
        class: event.class.clone(),
        seconds: event.time.as_secs(),
        nanoseconds: event.time.subsec_nanos(),
        fields: event.payload.iter().filter_map(|(n, v)| Some((n.to_owned(), value(v)?))).collect(),
    }
}

/// Of the kinds that events have.
fn value(v: &NvValue) -> Option<EventValue> {
    Some(match v {
        NvValue::Uint8(n) => EventValue::Number(u64::from(*n)),
        NvValue::Int32(n) => EventValue::Number(u64::from(*n as u32)),
        NvValue::Uint64(n) => EventValue::Number(*n),
        NvValue::Int64(n) => EventValue::Number(*n as u64),
        NvValue::Int64Array(all) => EventValue::Numbers(all.iter().map(|n| *n as u64).collect()),
        NvValue::String(text) => EventValue::Text(text.clone()),
        NvValue::StringArray(all) => EventValue::Texts(all.clone()),
        _ => return None,
    })
}
