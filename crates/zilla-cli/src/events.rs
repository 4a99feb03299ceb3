//! `zilla events`: what happened to pools and devices, an object of JSON a line, for programs that
//! do something about it.
//!
//! The same events as `zpool events`, whose output is OpenZFS's and made for people. With `-f` it
//! goes on as they come. What came while nobody could read it, and is kept no more, is told by a
//! line with `dropped`. Numbers are numbers: guids do not fit into a double, so a reader must take
//! 64 bits.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::json::{Json, Obj};
use zilla_control::props::naming;
use zilla_control::types::{EventInfo, EventQuery, EventValue};

const USAGE: &str = "usage:\n\tzilla events [-f] [pool]\n";
/// So long the daemon is to wait for an event, each time it is asked.
const WAIT_MS: u64 = 30_000;

/// Runs `zilla events` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla events", args, |cx, requested| cx.put_usage(USAGE, requested), run)
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "fh", &[("help", false, 'h')]);
    let mut follow = false;
    for option in options {
        match option {
            Opt::Flag('f', _) => follow = true,
            Opt::Flag('h', _) => {
                (cx.usage)(cx, true);
                return Ok(0);
            }
            other => return cx.bad_option(other),
        }
    }
    let pool = match operands.as_slice() {
        [] => None,
        [name] => Some(name.as_str()),
        _ => return cx.bad_usage("too many arguments"),
    };
    if let Some(name) = pool
        && naming::check_pool_name(name, true).is_err()
    {
        return cx.bad_usage(format!("invalid pool name '{name}'"));
    }
    let mut after = 0;
    loop {
        let request = EventQuery { after, wait_ms: if follow { WAIT_MS } else { 0 } };
        let Some(reply) = cx.ask("cannot get event", &request)? else { return Ok(1) };
        if reply.dropped > 0 {
            let mut lost = Obj::new();
            lost.set("dropped", Json::Num(reply.dropped));
            cx.out.line(lost.render());
        }
        for event in &reply.events {
            after = event.eid;
            if pool.is_none_or(|pool| is_of(event, pool)) {
                cx.out.line(line(event));
            }
        }
        cx.out.flush();
        if !follow {
            return Ok(0);
        }
    }
}

fn is_of(event: &EventInfo, pool: &str) -> bool {
    event.fields.iter().any(|(n, v)| n == "pool" && *v == EventValue::Text(pool.to_owned()))
}

fn line(event: &EventInfo) -> String {
    let value = |value: &EventValue| match value {
        EventValue::Number(n) => Json::Num(*n),
        EventValue::Numbers(all) => Json::Arr(all.iter().map(|n| Json::Num(*n)).collect()),
        EventValue::Text(text) => Json::Str(text.clone()),
        EventValue::Texts(all) => Json::Arr(all.iter().map(|text| Json::Str(text.clone())).collect()),
    };
    let mut out = Obj::new();
    out.set("eid", Json::Num(event.eid));
    out.str("class", event.class.as_str());
    out.set("seconds", Json::Num(event.seconds));
    out.set("nanoseconds", Json::Num(u64::from(event.nanoseconds)));
    // The event's own, which say the same in another form.
    let bare = |name: &str| matches!(name, "class" | "time" | "eid");
    for (name, v) in event.fields.iter().filter(|(name, _)| !bare(name)) {
        out.set(name.as_str(), value(v));
    }
    out.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_that_any_reader_takes() {
        let fields = vec![
            ("class".to_owned(), EventValue::Text("sysevent.fs.zfs.scrub_finish".into())),
            ("pool".to_owned(), EventValue::Text("ta\nnk".into())),
            ("pool_guid".to_owned(), EventValue::Number(u64::MAX)),
            ("time".to_owned(), EventValue::Numbers(vec![5, 7])),
            ("words".to_owned(), EventValue::Texts(vec!["a".into()])),
        ];
        let class = "sysevent.fs.zfs.scrub_finish".to_owned();
        let event = EventInfo { eid: 9, class, seconds: 5, nanoseconds: 7, fields };
        let text = line(&event);
        assert!(!text.contains('\n'), "{text}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        let wanted = serde_json::json!({
            "eid": 9, "class": "sysevent.fs.zfs.scrub_finish", "seconds": 5, "nanoseconds": 7,
            "pool": "ta\nnk", "pool_guid": u64::MAX, "words": ["a"],
        });
        assert_eq!(read, wanted);
        assert!(is_of(&event, "ta\nnk") && !is_of(&event, "tank"));
    }
}
