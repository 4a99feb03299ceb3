//! `zpool history`.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::{one_line, time};
use zilla_control::types::{HistoryRecord, HistoryWhat, PoolHistory, PoolQuery};

/// Events of pools made before events had names, by number.
const LEGACY_EVENTS: &[&str] = &[
    "invalid event",
    "pool create",
    "vdev add",
    "pool remove",
    "pool destroy",
    "pool export",
    "pool import",
    "vdev attach",
    "vdev replace",
    "vdev detach",
    "vdev online",
    "vdev offline",
    "vdev upgrade",
    "pool clear",
    "pool scrub",
    "pool property set",
    "create",
    "clone",
    "destroy",
    "destroy_begin_sync",
    "inherit",
    "property set",
    "quota set",
    "permission update",
    "permission remove",
    "permission who remove",
    "promote",
    "receive",
    "rename",
    "reservation set",
    "replay_inc_sync",
    "replay_full_sync",
    "rollback",
    "snapshot",
    "filesystem version upgrade",
    "refquota set",
    "refreservation set",
    "pool scrub done",
    "user hold",
    "user release",
    "pool split",
];

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "li", &[]);
    let (mut long, mut internal) = (false, false);
    for option in options {
        match option {
            Opt::Flag('l', _) => long = true,
            Opt::Flag('i', _) => internal = true,
            other => return cx.bad_option(other),
        }
    }
    let (pools, mut failed) = cx.pools(&operands, PoolQuery::default())?;
    if pools.is_empty() && operands.is_empty() {
        cx.err("no pools available");
        return Ok(0);
    }
    for pool in pools {
        cx.out.line(format!("History for '{}':", pool.name));
        let mut offset = Some(0);
        while let Some(from) = offset {
            let request = PoolHistory { name: pool.name.clone(), internal, offset: from };
            let action = format!("cannot get history for '{}'", pool.name);
            match cx.ask(&action, &request)? {
                Some(reply) => {
                    for record in &reply.records {
                        cx.out.put(print(record, internal, long));
                    }
                    // A position that does not move on would never end.
                    offset = reply.next.filter(|&next| next > from);
                }
                None => {
                    failed = true;
                    break;
                }
            }
        }
        cx.out.line("");
    }
    Ok(u8::from(failed))
}

/// One record, with its line end; nothing where it is internal and those are not wanted.
pub fn print(record: &HistoryRecord, internal: bool, long: bool) -> String {
    let at = time::history(record.time);
    let mut text = match &record.what {
        HistoryWhat::Command { line } => format!("{at} {}", one_line(line)),
        _ if !internal => return String::new(),
        HistoryWhat::Legacy { event, txg, text } => {
            let name = usize::try_from(*event).ok().and_then(|e| LEGACY_EVENTS.get(e));
            match name {
                Some(name) => format!("{at} [internal {name} txg:{txg}] {}", one_line(text)),
                None => return format!("{at} unrecognized record:\n    history internal event: {event}\n"),
            }
        }
        HistoryWhat::Internal { txg, name, dataset, text } => {
            let dataset = dataset.as_ref().map(|(name, id)| format!(" {} ({id})", one_line(name)));
            let dataset = dataset.unwrap_or_default();
            format!("{at} [txg:{txg}] {}{dataset} {}", one_line(name), one_line(text))
        }
        HistoryWhat::Call { name, input, output, elapsed_ns, errno } => {
            let mut lines = format!("{at} ({}ms) ioctl {}\n", elapsed_ns / 1_000_000, one_line(name));
            for (title, list) in [("input", input), ("output", output)] {
                if !list.is_empty() || title == "input" {
                    lines.push_str(&format!("    {title}:\n"));
                }
                for line in list {
                    lines.push_str(&format!("        {}\n", one_line(line)));
                }
            }
            if let Some(errno) = errno {
                lines.push_str(&format!("    errno: {errno}\n"));
            }
            lines
        }
    };
    if long {
        text.push_str(" [");
        if let Some(uid) = record.uid {
            text.push_str(&format!("user {uid} "));
            if let Some(user) = &record.user {
                text.push_str(&format!("({}) ", one_line(user)));
            }
        }
        if let Some(host) = &record.host {
            text.push_str(&format!("on {}", one_line(host)));
        }
        if let Some(zone) = &record.zone {
            text.push_str(&format!(":{}", one_line(zone)));
        }
        text.push(']');
    }
    text.push('\n');
    text
}
