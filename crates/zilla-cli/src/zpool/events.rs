//! `zpool events`: what happened to the pools and their devices.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::{one_line, time, vdev};
use zilla_control::props::naming;
use zilla_control::types::{EventClear, EventInfo, EventQuery, EventValue, VdevAux, VdevState};

/// So long the daemon is to wait for an event, each time it is asked.
const WAIT_MS: u64 = 30_000;

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "vHfc", &[]);
    let (mut verbose, mut scripted, mut follow, mut clear) = (false, false, false, false);
    for option in options {
        match option {
            Opt::Flag('v', _) => verbose = true,
            Opt::Flag('H', _) => scripted = true,
            Opt::Flag('f', _) => follow = true,
            Opt::Flag('c', _) => clear = true,
            other => return cx.bad_option(other),
        }
    }
    let pool = match operands.as_slice() {
        [] => None,
        [name] => Some(name.clone()),
        _ => return cx.bad_usage("too many arguments"),
    };
    if let Some(name) = &pool
        && naming::check_pool_name(name, true).is_err()
    {
        return cx.bad_usage(format!("invalid pool name '{name}'"));
    }
    if clear && (pool.is_some() || verbose || scripted || follow) {
        return cx.bad_usage("invalid options combined with -c");
    }
    if clear {
        let Some(count) = cx.ask("cannot clear events", &EventClear {})? else { return Ok(1) };
        cx.out.line(format!("cleared {count} events"));
        return Ok(0);
    }
    if !scripted {
        cx.out.line(format!("{:<30} CLASS", "TIME"));
    }
    let mut after = 0;
    loop {
        let request = EventQuery { after, wait_ms: if follow { WAIT_MS } else { 0 } };
        let Some(reply) = cx.ask("cannot get event", &request)? else { return Ok(1) };
        if reply.dropped > 0 {
            cx.out.line(format!("dropped {} events", reply.dropped));
        }
        for event in &reply.events {
            after = event.eid;
            if pool.is_none() || pool.as_deref() == text(event, "pool") {
                cx.out.put(show(event, scripted, verbose));
            }
        }
        cx.out.flush();
        if !follow {
            return Ok(0);
        }
    }
}

fn text<'a>(event: &'a EventInfo, name: &str) -> Option<&'a str> {
    event.fields.iter().find_map(|(n, v)| match v {
        EventValue::Text(text) if n == name => Some(text.as_str()),
        _ => None,
    })
}

/// An event's line, and with `verbose` all that is known of it.
fn show(event: &EventInfo, scripted: bool, verbose: bool) -> String {
    let stamp = format!("{}.{:09}", time::event(event.seconds), event.nanoseconds);
    let mut out = format!("{stamp}{}{}\n", if scripted { '\t' } else { ' ' }, event.class);
    if verbose {
        for (name, value) in &event.fields {
            out.push_str(&format!("{:8}{name} = {}\n", "", value_text(name, value)));
        }
        out.push('\n');
    }
    out
}

fn value_text(name: &str, value: &EventValue) -> String {
    match value {
        EventValue::Number(n) if matches!(name, "vdev_state" | "vdev_laststate") => {
            format!("\"{}\" ({n:#x})", vdev::state_name(state(*n), VdevAux::None))
        }
        EventValue::Number(n) => format!("{n:#x}"),
        EventValue::Numbers(all) => all.iter().map(|n| format!("{n:#x} ")).collect(),
        EventValue::Text(text) => format!("\"{}\"", one_line(text)),
        EventValue::Texts(all) => all.iter().map(|text| format!("\"{}\" ", one_line(text))).collect(),
    }
}

/// `vdev_state_t`
fn state(number: u64) -> VdevState {
    match number {
        1 => VdevState::Closed,
        2 => VdevState::Offline,
        3 => VdevState::Removed,
        4 => VdevState::CantOpen,
        5 => VdevState::Faulted,
        6 => VdevState::Degraded,
        7 => VdevState::Healthy,
        _ => VdevState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_as_openzfs_prints_them() {
        let fields = vec![
            ("version".to_owned(), EventValue::Number(0)),
            ("class".to_owned(), EventValue::Text("resource.fs.zfs.statechange".into())),
            ("vdev_state".to_owned(), EventValue::Number(5)),
            ("time".to_owned(), EventValue::Numbers(vec![0x5f, 7])),
            ("history_internal_str".to_owned(), EventValue::Text("tag=x\n        vdev_state = 7".into())),
        ];
        let event = EventInfo {
            eid: 1,
            class: "resource.fs.zfs.statechange".into(),
            seconds: 1_000_000_000,
            nanoseconds: 7,
            fields,
        };
        let line = show(&event, false, false);
        assert!(line.ends_with(".000000007 resource.fs.zfs.statechange\n"), "{line}");
        assert_eq!(line.find("resource"), Some(31), "{line}");
        let long = show(&event, true, true);
        let rest = long.split_once('\n').map(|(_, rest)| rest);
        let wanted = "        version = 0x0\n        class = \"resource.fs.zfs.statechange\"\n        \
                      vdev_state = \"FAULTED\" (0x5)\n        time = 0x5f 0x7 \n        history_internal_str = \
                      \"tag=x\\0012        vdev_state = 7\"\n\n";
        assert_eq!(rest, Some(wanted));
    }
}
