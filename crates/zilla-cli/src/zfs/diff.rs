//! `zfs diff`.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::color;
use std::io::{IsTerminal, Write};
use zilla_control::props;
use zilla_control::props::naming::check_dataset_name;
use zilla_control::types::{DatasetDiff, DatasetKind, DatasetQuery, DiffChange, DiffEntry};

#[derive(Default, Clone, Copy)]
struct Style {
    /// `-F`
    classify: bool,
    /// `-H`
    scripted: bool,
    /// `-t`
    times: bool,
    /// `-h`: names as they are.
    plain: bool,
    color: bool,
    /// Names must not give it commands.
    terminal: bool,
}

const FAILED: &str = "Unable to determine which snapshots to compare: invalid name";

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "FHth", &[]);
    let terminal = std::io::stdout().is_terminal();
    let mut style = Style { color: color::wanted(), terminal, ..Style::default() };
    for option in options {
        match option {
            Opt::Flag('F', _) => style.classify = true,
            Opt::Flag('H', _) => style.scripted = true,
            Opt::Flag('t', _) => style.times = true,
            Opt::Flag('h', _) => style.plain = true,
            other => return cx.bad_option(other),
        }
    }
    let (from, to) = match operands.as_slice() {
        [] => return cx.bad_usage("must provide at least one snapshot name"),
        [from] => (from.clone(), None),
        [from, to] => (from.clone(), Some(to.clone())),
        _ => return cx.bad_usage("too many arguments"),
    };
    let whole = if from.starts_with('@') { to.clone() } else { Some(from.clone()) };
    let Some(whole) = whole else { return cx.print_usage() };
    let fs = whole.split('@').next().unwrap_or_default().to_owned();
    let action = format!("cannot open '{fs}'");
    if let Err(e) = check_dataset_name(&fs, props::FS, false) {
        cx.refused(&action, &e);
        return Ok(1);
    }
    let query = DatasetQuery {
        roots: vec![fs],
        depth: Some(0),
        kinds: vec![DatasetKind::Filesystem],
        ..DatasetQuery::default()
    };
    let Some(reply) = cx.ask(&action, &query)? else { return Ok(1) };
    if let Some(e) = reply.errors.first() {
        cx.refused(&action, e);
        return Ok(1);
    }
    if reply.datasets.is_empty() {
        cx.err(format!("{action}: {}", zilla_control::ErrorCode::BadType.description()));
        return Ok(1);
    }
    let (from, to) = match names(&from, to.as_deref()) {
        Ok(both) => both,
        Err(why) => {
            cx.err(why);
            return Ok(1);
        }
    };
    let mut request = DatasetDiff { from, to, at: 0 };
    loop {
        let reply = match cx.call(&request)? {
            Ok(reply) => reply,
            Err(e) => {
                match e.code {
                    zilla_control::ErrorCode::MountFailed => cx.err(format!(
                        "{}: {}",
                        e.description(),
                        zilla_control::ErrorCode::BadType.description()
                    )),
                    zilla_control::ErrorCode::CrossTarget => {
                        cx.err(format!("Unable to obtain diffs: \n   {}", e.description()));
                    }
                    _ => cx.refused("Unable to obtain diffs", &e),
                }
                return Ok(1);
            }
        };
        cx.out.flush();
        let mut text = Vec::new();
        for entry in &reply.entries {
            line(&mut text, &reply.mountpoint, entry, style);
        }
        if std::io::stdout().write_all(&text).is_err() {
            return Ok(1);
        }
        match reply.next {
            Some(next) => request.at = next,
            None => return Ok(0),
        }
    }
}

/// Whole names of what is compared: one of the two may go without its dataset.
fn names(from: &str, to: Option<&str>) -> Result<(String, String), String> {
    let Some(to) = to else {
        return match from.split_once('@') {
            Some((fs, snap)) if !fs.is_empty() && !snap.is_empty() => Ok((from.to_owned(), fs.to_owned())),
            _ => Err(format!("Badly formed snapshot name {from}: invalid name")),
        };
    };
    let Some((fs, snap)) = from.split_once('@') else { return Err(FAILED.to_owned()) };
    let (to_fs, to_snap) = match to.split_once('@') {
        Some((fs, snap)) => (fs, Some(snap)),
        None => (to, None),
    };
    if snap.is_empty() || to_snap == Some("") || (fs.is_empty() && to_fs.is_empty()) {
        return Err(FAILED.to_owned());
    }
    let first = if fs.is_empty() { to_fs } else { fs };
    let second = if to_fs.is_empty() { fs } else { to_fs };
    let second = to_snap.map_or_else(|| second.to_owned(), |s| format!("{second}@{s}"));
    Ok((format!("{first}@{snap}"), second))
}

fn line(out: &mut Vec<u8>, mountpoint: &str, entry: &DiffEntry, style: Style) {
    let (mark, paint) = match entry.change {
        DiffChange::Added => ('+', color::GREEN),
        DiffChange::Removed => ('-', color::RED),
        DiffChange::Renamed(_) => ('R', color::BOLD_BLUE),
        DiffChange::Modified | DiffChange::Links(_) => ('M', color::YELLOW),
    };
    if style.color {
        out.extend(paint.bytes());
    }
    if style.times {
        out.extend(format!("{:10}.{:09}\t", entry.ctime.0, entry.ctime.1).bytes());
    }
    out.extend(format!("{mark}\t").bytes());
    if style.classify {
        out.extend(format!("{}\t", what(entry.mode)).bytes());
    }
    path(out, mountpoint, &entry.path, style);
    match &entry.change {
        DiffChange::Renamed(to) => {
            out.extend_from_slice(if style.scripted { b"\t" } else { b" -> " });
            path(out, mountpoint, to, style);
        }
        DiffChange::Links(n) => out.extend(format!("\t({n:+})").bytes()),
        _ => {}
    }
    out.push(b'\n');
    if style.color {
        out.extend(color::RESET.bytes());
    }
}

/// What is not plain ASCII is shown in octal, so that a line stays a line; or, in plain style, only
/// what a terminal would take for a command.
fn path(out: &mut Vec<u8>, mountpoint: &str, path: &[u8], style: Style) {
    for &b in mountpoint.as_bytes().iter().chain(path) {
        let plain = style.plain && !(style.terminal && b.is_ascii_control());
        if plain || (b > b' ' && b != b'\\' && b < 0x7f) {
            out.push(b);
        } else {
            out.extend(format!("\\{b:04o}").bytes());
        }
    }
}

fn what(mode: u32) -> char {
    match mode & 0o170_000 {
        0o060_000 => 'B',
        0o020_000 => 'C',
        0o040_000 => '/',
        0o010_000 => '|',
        0o120_000 => '@',
        0o140_000 => '=',
        0o100_000 => 'F',
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_from_each_other() {
        let ok = |from: &str, to: Option<&str>| names(from, to).unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(ok("p/f@a", None), pair("p/f@a", "p/f"));
        assert_eq!(ok("p/f@a", Some("@b")), pair("p/f@a", "p/f@b"));
        assert_eq!(ok("@a", Some("p/f@b")), pair("p/f@a", "p/f@b"));
        assert_eq!(ok("@a", Some("p/f")), pair("p/f@a", "p/f"));
        assert_eq!(ok("p/f@a", Some("p/clone@b")), pair("p/f@a", "p/clone@b"));
        for (from, to) in
            [("p/f", Some("p/f@b")), ("p/f@", Some("p/f")), ("p/f@a", Some("p/f@")), ("p/f", None)]
        {
            assert!(names(from, to).is_err(), "{from} {to:?}");
        }
    }

    #[test]
    fn odd_bytes_are_shown_in_octal() {
        let mut out = Vec::new();
        path(&mut out, "/m", b"/a b\\\n\xff", Style::default());
        assert_eq!(out, b"/m/a\\0040b\\0134\\0012\\0377");
        let plain = |terminal| {
            let mut out = Vec::new();
            path(&mut out, "/m", b"/a b\\\x1b]\xff", Style { plain: true, terminal, ..Style::default() });
            out
        };
        assert_eq!(plain(false), b"/m/a b\\\x1b]\xff");
        assert_eq!(plain(true), b"/m/a b\\\\0033]\xff");
    }
}
