//! `zilla trace record`: what a pool is asked for, block by block, into a file for `zilla advise`.
//!
//! The file is made here, as its user's and readable by nobody else; the daemon writes into it.
//! When this is interrupted, so is the daemon, and the file is worth what was written until then.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use std::fs::{File, OpenOptions};
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use zilla_control::handover;
use zilla_control::props::naming;
use zilla_control::types::{TraceRecord, TraceReply};

const USAGE: &str = "usage:\n\tzilla trace record [-f] [-t seconds] pool file\n";
/// A week: more than that is a mistake, and a very large file.
pub const LONGEST: u64 = 7 * 24 * 3600;

/// Runs `zilla trace` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla trace", args, |cx, requested| cx.put_usage(USAGE, requested), run)
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let Some((word, args)) = args.split_first() else { return cx.bad_usage("missing command") };
    match word.as_str() {
        "record" => record(cx, args),
        "-h" | "--help" => {
            (cx.usage)(cx, true);
            Ok(0)
        }
        other => cx.bad_usage(format!("unrecognized command '{other}'")),
    }
}

/// `-t`: whole seconds.
pub fn seconds(cx: &mut Cx, text: &str) -> Result<u64, crate::cx::Exit> {
    match text.parse::<u64>() {
        Ok(n) if (1..=LONGEST).contains(&n) => Ok(n),
        _ => cx.bad_usage(format!("invalid time '{text}': 1 to {LONGEST} seconds")),
    }
}

/// Has the daemon record into a descriptor, until the time is over.
pub fn into(
    cx: &mut Cx,
    pool: &str,
    seconds: Option<u64>,
    fd: &impl AsFd,
) -> Result<Option<TraceReply>, crate::cx::Exit> {
    let dir = cx.client()?.state_dir().clone();
    let handed = match handover::hand_over(&dir, fd.as_fd()) {
        Ok(handed) => handed,
        Err(e) => {
            cx.err(format!("{}: {e}", cx.program));
            return Ok(None);
        }
    };
    let request = TraceRecord { stream: handed.key.clone(), name: pool.to_owned(), seconds };
    let reply = cx.ask(&format!("cannot trace '{pool}'"), &request);
    handed.end();
    reply
}

fn record(cx: &mut Cx, args: &[String]) -> Run {
    let (options, operands) = args::parse(args, ":fht:", &[("force", false, 'f'), ("help", false, 'h')]);
    let (mut force, mut limit) = (false, None);
    for option in options {
        match option {
            Opt::Flag('f', _) => force = true,
            Opt::Flag('t', text) => limit = Some(seconds(cx, &text)?),
            Opt::Flag('h', _) => {
                (cx.usage)(cx, true);
                return Ok(0);
            }
            other => return cx.bad_option(other),
        }
    }
    let [pool, path] = operands.as_slice() else {
        let what = match operands.len() {
            0 => "missing pool argument",
            1 => "missing file argument",
            _ => "too many arguments",
        };
        return cx.bad_usage(what);
    };
    if naming::check_pool_name(pool, true).is_err() {
        return cx.bad_usage(format!("invalid pool name '{pool}'"));
    }
    let file = match path.as_str() {
        "-" if std::io::stdout().is_terminal() => {
            cx.err("zilla trace: a trace is not written to a terminal");
            return Ok(1);
        }
        "-" => None,
        path => match create(path, force) {
            Ok(file) => Some(file),
            Err(e) => {
                let hint = match e.kind() {
                    std::io::ErrorKind::AlreadyExists => " (-f writes over it)",
                    _ => "",
                };
                cx.err(format!("cannot create '{path}': {}{hint}", zilla_env::strerror(&e)));
                return Ok(1);
            }
        },
    };
    let reply = match &file {
        Some(file) => into(cx, pool, limit, file),
        None => into(cx, pool, limit, &std::io::stdout()),
    };
    let Ok(Some(reply)) = reply else {
        // What nothing was written to is of no use to anybody.
        if let Some(Ok(0)) = file.map(|f| f.metadata().map(|m| m.len())) {
            let _ = std::fs::remove_file(path);
        }
        return reply.map(|_| 1);
    };
    let time = reply.micros as f64 / 1e6;
    let mut line = format!("recorded {} events in {time:.1} seconds", reply.records);
    if reply.lost > 0 {
        line.push_str(&format!("; {} were lost for want of room", reply.lost));
    }
    cx.err(line);
    Ok(0)
}

fn create(path: &str, force: bool) -> std::io::Result<File> {
    let mut how = OpenOptions::new();
    how.write(true).mode(0o600);
    match force {
        true => how.create(true).truncate(true),
        false => how.create_new(true),
    };
    how.open(path)
}
