//! Events as they come, as server-sent events: `GET /events`, with a token.
//!
//! Source: WHATWG HTML, "Server-sent events". Each event is a message whose `id` is its number and
//! whose data is a line of JSON, the same as `zilla events` prints. Who comes back says the last
//! number he has (`Last-Event-ID`) and gets what came since, as far as it is kept; what is lost is
//! told by a message `dropped` with how many. A first-time listener gets what comes from now on.
//!
//! Bounded: so many listeners ([`LISTENERS`]), and each has one batch under way: the next is asked
//! for when the connection has taken it. A comment line every [`QUIET`] finds out listeners that
//! are gone. The stream ends with the page, and a browser then comes back by itself.

use bytes::Bytes;
use http_body_util::channel::Channel;
use hyper::header::HeaderName;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use zilla_control::types::{EventQuery, EventReply};
use zilla_control::{Backend, Caller};

pub const CONTENT_TYPE: &str = "text/event-stream";
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Connections that follow the events, of those that the page has in all.
pub const LISTENERS: usize = 16;
/// Proxies take a connection for dead after a minute, most of them.
const QUIET: Duration = Duration::from_secs(15);
/// A connection that takes nothing for so long is given up.
const STALLED: Duration = Duration::from_secs(60);

/// The stream of events.
pub type Body = Channel<Bytes>;

/// Sends the events after the one of number `after`, or those from now on, until the listener is
/// gone or the page ends.
pub fn follow<B: Backend>(
    backend: Arc<B>,
    caller: Caller,
    after: Option<u64>,
    mut ending: watch::Receiver<bool>,
    slot: OwnedSemaphorePermit,
) -> Body {
    let (mut sender, body) = Channel::new(1);
    tokio::spawn(async move {
        let _slot = slot;
        let mut last = after;
        // Numbers begin anew with the daemon: one from before it says nothing.
        if let Some(number) = after {
            let all = backend.event_query(&caller, EventQuery { after: 0, wait_ms: 0 }).await;
            let newest = all.ok().and_then(|r| r.events.last().map(|e| e.eid)).unwrap_or(0);
            if number > newest {
                last = Some(0);
            }
        }
        // The head of the answer goes out with the first bytes.
        let mut text = ": events\n\n".to_owned();
        loop {
            match tokio::time::timeout(STALLED, sender.send_data(Bytes::from(text))).await {
                Ok(Ok(())) => {}
                _ => return,
            }
            // Without a number: all that there is, whose last number tells where now is.
            let wait_ms = if last.is_some() { QUIET.as_millis() as u64 } else { 0 };
            let query = EventQuery { after: last.unwrap_or(0), wait_ms };
            let reply = tokio::select! {
                reply = backend.event_query(&caller, query) => reply,
                _ = ending.wait_for(|stop| *stop) => return,
            };
            let Ok(reply) = reply else { return };
            text = match last {
                Some(_) => messages(&reply),
                None => ": from now on\n\n".to_owned(),
            };
            last = reply.events.last().map(|e| e.eid).or(last).or(Some(0));
        }
    });
    body
}

/// The messages of a reply, or a comment where there is none.
fn messages(reply: &EventReply) -> String {
    let mut text = String::new();
    if reply.dropped > 0 {
        let _ = write!(text, "event: dropped\ndata: {}\n\n", reply.dropped);
    }
    for event in &reply.events {
        // JSON has no line breaks of its own, so one line of data holds it.
        let _ = write!(text, "id: {}\ndata: {}\n\n", event.eid, event.json());
    }
    if text.is_empty() {
        text.push_str(": quiet\n\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla_control::types::{EventInfo, EventValue};

    #[test]
    fn what_an_event_says_cannot_end_its_message() {
        let fields = vec![("pool".to_owned(), EventValue::Text("a\n\nid: 99\r".into()))];
        let event = EventInfo { eid: 7, class: "c".into(), fields, ..EventInfo::default() };
        let text = messages(&EventReply { events: vec![event], dropped: 2 });
        let lines: Vec<&str> = text.split('\n').collect();
        assert_eq!(&lines[..4], ["event: dropped", "data: 2", "", "id: 7"]);
        assert!(lines[4].starts_with("data: {") && !text.contains('\r'), "{text}");
        assert_eq!(&lines[5..], ["", ""]);
        assert_eq!(messages(&EventReply::default()), ": quiet\n\n");
    }
}
