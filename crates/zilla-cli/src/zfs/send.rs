//! `zfs send`.

use super::stream::{Pipe, hand_over, told};
use crate::args::{self, Long, Opt};
use crate::cx::{Cx, Run};
use std::io::IsTerminal;
use zilla_control::ErrorCode;
use zilla_control::props;
use zilla_control::props::naming::check_dataset_name;
use zilla_control::types::StreamSend;

const LONGS: &[Long] = &[
    ("replicate", false, 'R'),
    ("skip-missing", false, 's'),
    ("redact", true, 'd'),
    ("props", false, 'p'),
    ("parsable", false, 'P'),
    ("dedup", false, 'D'),
    ("proctitle", false, 'V'),
    ("verbose", false, 'v'),
    ("dryrun", false, 'n'),
    ("large-block", false, 'L'),
    ("embed", false, 'e'),
    ("resume", true, 't'),
    ("compressed", false, 'c'),
    ("raw", false, 'w'),
    ("backup", false, 'b'),
    ("holds", false, 'h'),
    ("saved", false, 'S'),
    ("exclude", true, 'X'),
];

/// A source as the user gave it: `@snap` and `#mark` are of the sent dataset.
fn whole(fs: &str, from: &str) -> String {
    match from.starts_with(['@', '#']) {
        true => format!("{fs}{from}"),
        false if from.contains(['@', '#']) => from.to_owned(),
        false => format!("{fs}@{from}"),
    }
}

pub fn send(cx: &mut Cx, words: Vec<String>) -> Run {
    let (options, operands) = args::parse(&words, ":i:I:RsDpVvnPLeht:cwbd:SX:", LONGS);
    let mut r = StreamSend::default();
    let mut from = None;
    for option in options {
        match option {
            Opt::Flag('i', v) | Opt::Flag('I', v) if from.is_some() => {
                let _ = v;
                return cx.print_usage();
            }
            Opt::Flag('i', v) => from = Some(v),
            Opt::Flag('I', v) => {
                from = Some(v);
                r.intermediates = true;
            }
            Opt::Flag('R', _) => r.replicate = true,
            Opt::Flag('s', _) => r.skip_missing = true,
            Opt::Flag('p', _) => r.properties = true,
            Opt::Flag('b', _) => r.backup = true,
            Opt::Flag('h', _) => r.holds = true,
            Opt::Flag('P', _) => r.parsable = true,
            Opt::Flag('v', _) => r.verbose = r.verbose.saturating_add(1),
            Opt::Flag('V', _) => r.title = true,
            Opt::Flag('n', _) => r.dry_run = true,
            Opt::Flag('L', _) => r.large_blocks = true,
            Opt::Flag('e', _) => r.embed = true,
            Opt::Flag('c', _) => r.compressed = true,
            Opt::Flag('t', v) => r.token = Some(v),
            Opt::Flag('X', v) => {
                for name in v.split(',') {
                    if !name.contains('/')
                        || check_dataset_name(name, props::HEADS | props::SNAP, false).is_err()
                    {
                        return cx.bad_usage(format!("-X {name}: not a valid non-root dataset name."));
                    }
                    r.exclude.push(name.to_owned());
                }
            }
            Opt::Flag('D', _) => {
                cx.err("WARNING: deduplicated send is no longer supported.  A regular,\nnon-deduplicated stream will be generated.\n");
            }
            Opt::Flag('w', _) => r.raw = true,
            Opt::Flag('S', _) => r.saved = true,
            Opt::Flag('d', v) => r.redact = Some(v),
            other => return cx.bad_option(other),
        }
    }
    if r.parsable && r.verbose == 0 {
        r.verbose = 1;
    }
    if !r.exclude.is_empty() && !r.replicate {
        cx.err("Cannot specify dataset exclusion (-X) on a non-recursive send.");
        return Ok(1);
    }
    if r.token.is_some() {
        if r.saved
            || r.redact.is_some()
            || from.is_some()
            || r.replicate
            || r.properties
            || r.backup
            || r.holds
        {
            cx.err("invalid flags combined with -t");
            return cx.print_usage();
        }
        if !operands.is_empty() {
            return cx.bad_usage("too many arguments");
        }
    } else {
        let [snapshot] = operands.as_slice() else {
            return match operands.is_empty() {
                true => cx.bad_usage("missing snapshot argument"),
                false => cx.bad_usage("too many arguments"),
            };
        };
        if r.saved {
            let how = r.large_blocks || r.embed || r.compressed || r.raw || r.redact.is_some();
            if how || from.is_some() || r.replicate || r.properties || r.backup || r.holds {
                return cx.bad_usage("incompatible flags combined with saved send flag");
            }
            if snapshot.contains(['@', '#']) {
                return cx.bad_usage("saved send must specify the dataset with partially-received state");
            }
        }
        if r.skip_missing && !r.replicate {
            return cx.bad_usage("skip-missing flag can only be used in conjunction with replicate");
        }
        let several = r.replicate || r.intermediates;
        if several && from.as_ref().is_some_and(|f| f.contains('#')) {
            cx.err("Error: multiple snapshots cannot be sent from a bookmark.");
            return Ok(1);
        }
        let packaged = several || r.properties || r.backup || r.holds;
        if packaged && !snapshot.contains('@') {
            cx.err("Error: Unsupported flag with filesystem or bookmark.");
            return Ok(1);
        }
        if !several && from.as_ref().is_some_and(|f| !f.contains(['@', '#'])) {
            cx.err(
                "Warning: incremental source didn't specify type, assuming snapshot. Use '@' or '#' prefix to \
                 avoid ambiguity.",
            );
        }
        let fs = snapshot.split('@').next().unwrap_or_default();
        r.from = from.map(|f| whole(fs, &f));
        r.snapshot.clone_from(snapshot);
    }
    if r.raw && r.redact.is_some() {
        cx.err("Error: raw sends may not be redacted.");
        return Ok(1);
    }
    if !r.dry_run && std::io::stdout().is_terminal() {
        cx.err("Error: Stream can not be written to a terminal.\nYou must redirect standard output.");
        return Ok(1);
    }
    if r.redact.is_some() && (r.replicate || r.intermediates) {
        cx.err("Error: multiple snapshots cannot be sent redacted.");
        return Ok(1);
    }
    let handed = hand_over(cx, Pipe::Output)?;
    r.stream = handed.key().to_owned();
    let answer = told(cx, handed, &r)?;
    match answer {
        Ok(()) => Ok(0),
        Err(e) => {
            let subject = e.subject.clone().unwrap_or_else(|| r.snapshot.clone());
            if r.token.is_some() {
                match e.code {
                    ErrorCode::NoEnt | ErrorCode::Stream | ErrorCode::BadTarget => {
                        cx.refused("cannot resume send", &e);
                    }
                    _ if subject.is_empty() => cx.refused("cannot resume send", &e),
                    _ => cx.refused(&format!("warning: cannot send '{subject}'"), &e),
                }
                return Ok(255);
            }
            match e.code {
                ErrorCode::NoEnt => cx.refused(&format!("cannot open '{subject}'"), &e),
                ErrorCode::Stream | ErrorCode::BadTarget => {
                    cx.err(e.description());
                    e.details.iter().for_each(|l| cx.err(l));
                }
                _ => cx.refused(&format!("warning: cannot send '{subject}'"), &e),
            }
            Ok(1)
        }
    }
}
