//! `zilla replicate`: keeps a copy of a dataset up to date, here or on another machine.
//!
//! ```text
//! look at both ends -> resume what was cut off -> plan: what to send from where
//!   -> send | receive -> holds, bookmark, pruning
//! ```
//!
//! It is a client of the commands alone: each end is a `zfs` that is run ([`end`]), zilla's or
//! OpenZFS's, here or through ssh, and what it answers to `-H -p` is all that is known of it. What
//! is common to both ends is found by guid ([`plan`]), whatever the snapshots are called. No
//! decision is taken by the words of an error.
//!
//! **What is kept true.** But for `-F`, only snapshots and bookmarks that this command made, which
//! their prefix tells, are ever destroyed, and only those that are older than what both ends have
//! in common. The last common snapshot is held on both sides, so nobody destroys it by accident.
//!
//! **What the target says** is believed of itself alone. It asks for the rest of a stream in its
//! own words, and would get by them whatever the source can read: so those are looked at
//! ([`plan::may_resume`]).
//!
//! **Interrupted** at any point: a receive that was cut off is resumed by the next run, which
//! repeats every other step that was not complete.

mod end;
mod plan;

use crate::args::{self, Long, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::json::{Json, Obj};
use crate::terminal::for_output;
use end::{End, Failed, Point};
use plan::{Base, Plan};
use std::io::Write;

/// Exit codes beside 0 and, for a wrong line, 2.
const FAILED: u8 = 1;
/// The ends have nothing in common, so that nothing can be added to the target.
const NOTHING_COMMON: u8 = 3;
/// A stream was cut off; the next run goes on from there.
const INTERRUPTED: u8 = 4;
/// Bytes of a hold's tag, well below OpenZFS's MAXNAMELEN (256).
const TAG_MAX: usize = 200;

pub const USAGE_WORDS: &str =
    "[-BFHIjnvw] [-k keep] [-K keep] [-p prefix] [-t tag] [--no-snapshot] source target";

const USAGE: &str = "usage:
\treplicate [-BFHIjnvw] [-k keep] [-K keep] [-p prefix] [-t tag] [--no-snapshot] source target

\tAn end is a dataset, or ssh:[user@]host:dataset.
";

const LONGS: &[Long] = &[
    ("bookmark", false, 'B'),
    ("force", false, 'F'),
    ("no-hold", false, 'H'),
    ("intermediates", false, 'I'),
    ("json", false, 'j'),
    ("dry-run", false, 'n'),
    ("raw", false, 'w'),
    ("keep", true, 'k'),
    ("keep-source", true, 'K'),
    ("prefix", true, 'p'),
    ("tag", true, 't'),
    ("no-snapshot", false, 'S'),
];

struct Options {
    bookmark: bool,
    force: bool,
    hold: bool,
    intermediates: bool,
    json: bool,
    dry_run: bool,
    raw: bool,
    verbose: bool,
    snapshot: bool,
    keep: Option<usize>,
    keep_source: Option<usize>,
    prefix: String,
    tag: Option<String>,
}

fn usage(cx: &mut Cx, requested: bool) {
    cx.put_usage(USAGE, requested);
}

pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla replicate", args, usage, run)
}

fn parse(cx: &mut Cx, args: &[String]) -> Result<(Options, End, End), Exit> {
    let (options, operands) = args::parse(args, ":BFHIjnvwk:K:p:t:", LONGS);
    let mut o = Options {
        bookmark: false,
        force: false,
        hold: true,
        intermediates: false,
        json: false,
        dry_run: false,
        raw: false,
        verbose: false,
        snapshot: true,
        keep: None,
        keep_source: None,
        prefix: "replicate-".into(),
        tag: None,
    };
    for option in options {
        match option {
            Opt::Flag('B', _) => o.bookmark = true,
            Opt::Flag('F', _) => o.force = true,
            Opt::Flag('H', _) => o.hold = false,
            Opt::Flag('I', _) => o.intermediates = true,
            Opt::Flag('j', _) => o.json = true,
            Opt::Flag('n', _) => o.dry_run = true,
            Opt::Flag('v', _) => o.verbose = true,
            Opt::Flag('w', _) => o.raw = true,
            Opt::Flag('S', _) => o.snapshot = false,
            Opt::Flag(letter @ ('k' | 'K'), v) => {
                let Some(n) = v.parse().ok().filter(|n| *n > 0) else {
                    return cx.bad_usage(format!("'{v}' is not a number of snapshots: at least 1 is kept"));
                };
                match letter {
                    'k' => o.keep = Some(n),
                    _ => o.keep_source = Some(n),
                }
            }
            Opt::Flag('p', v) => o.prefix = v,
            Opt::Flag('t', v) => o.tag = Some(v),
            other => return cx.bad_option(other),
        }
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    if o.prefix.is_empty() || o.prefix.len() > 64 || !o.prefix.chars().all(plain) {
        return cx.bad_usage(format!("'{}' cannot begin a snapshot's name", o.prefix));
    }
    let tag = |t: &String| t.is_empty() || t.len() > TAG_MAX || t.chars().any(char::is_control);
    if let Some(tag) = o.tag.as_ref().filter(|t| tag(t)) {
        return cx.bad_usage(format!("'{tag}' cannot be a hold's tag"));
    }
    let [source, target] = operands.as_slice() else {
        return cx.bad_usage(if operands.len() < 2 { "missing argument" } else { "too many arguments" });
    };
    match (End::parse(source), End::parse(target)) {
        (Ok(s), Ok(t)) if s == t => cx.bad_usage("source and target are the same dataset"),
        (Ok(s), Ok(t)) => Ok((o, s, t)),
        (Err(why), _) | (_, Err(why)) => cx.bad_usage(why),
    }
}

/// What is done, told as it is done.
struct Told {
    json: bool,
    dry_run: bool,
    steps: Vec<Json>,
}

impl Told {
    fn step(&mut self, action: &str, what: &str, more: &str) {
        if self.json {
            let mut step = Obj::new();
            step.str("action", action);
            step.str("what", what);
            if !more.is_empty() {
                step.str("with", more);
            }
            return self.steps.push(Json::Obj(step));
        }
        let would = if self.dry_run { "would " } else { "" };
        let space = if more.is_empty() { "" } else { " " };
        // Where nobody reads any more the work goes on.
        let line = format!("{would}{action} {what}{space}{more}\n");
        let _ = std::io::stdout().write_all(for_output(&line).as_bytes());
    }
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (o, source, target) = parse(cx, &args)?;
    let mut told = Told { json: o.json, dry_run: o.dry_run, steps: Vec::new() };
    let mut work = Work { o: &o, source: &source, target: &target, told: &mut told };
    let (code, why) = match work.all() {
        Ok(()) => (0, None),
        Err(Failed { code, why }) => (code, Some(why)),
    };
    if o.json {
        let mut out = Obj::new();
        out.str("source", source.to_string());
        out.str("target", target.to_string());
        out.set("dry_run", Json::Bool(o.dry_run));
        out.set("steps", Json::Arr(told.steps));
        out.set("code", Json::Num(code.into()));
        if let Some(why) = &why {
            out.str("error", why.clone());
        }
        let _ = writeln!(std::io::stdout(), "{}", out.render());
    }
    if let Some(why) = why {
        cx.err(format!("cannot replicate '{source}' to '{target}': {why}"));
    }
    Ok(code)
}

struct Work<'a> {
    o: &'a Options,
    source: &'a End,
    target: &'a End,
    told: &'a mut Told,
}

impl Work<'_> {
    fn tag(&self) -> String {
        let tag = self.o.tag.clone().unwrap_or_else(|| format!("{}{}", self.o.prefix, self.target));
        // The end of the name tells targets apart.
        let mut from = tag.len().saturating_sub(TAG_MAX);
        while !tag.is_char_boundary(from) {
            from += 1;
        }
        tag[from..].to_owned()
    }

    fn all(&mut self) -> Result<(), Failed> {
        let there = self.target.exists()?;
        if there && let Some(token) = self.target.token()? {
            self.told.step("resume", &self.target.to_string(), "");
            let sealed = self.o.raw && self.source.is_encrypted()?;
            plan::may_resume(&token, self.source.dataset(), sealed).map_err(|why| {
                let shown = &self.target;
                Failed::plain(format!(
                    "{shown} {why}. 'zfs receive -A' there gives up what it has of a stream"
                ))
            })?;
            if self.o.dry_run {
                return Ok(());
            }
            self.stream(&["send".into(), "-t".into(), token], self.o.force)?;
        }
        let mut points = self.source.snapshots()?;
        if self.o.snapshot {
            let name = format!("{}{}", self.o.prefix, chrono::Utc::now().format("%Y-%m-%dT%H:%M:%S.%3fZ"));
            self.told.step("snapshot", &format!("{}@{name}", self.source), "");
            if self.o.dry_run {
                points.push(Point { name: name.clone(), guid: 0 });
            } else {
                self.source.done(&["snapshot", &self.source.at(&name)])?;
                points = self.source.snapshots()?;
            }
        }
        if points.is_empty() {
            return Err(Failed::plain("the source has no snapshot"));
        }
        let marks = self.source.bookmarks()?;
        let have = if there { self.target.snapshots()? } else { Vec::new() };
        let plan = Plan::make(&points, &marks, &have, there && !have.is_empty()).map_err(|why| Failed {
            code: NOTHING_COMMON,
            why: format!(
                "{why}: the target's snapshots are another dataset's. Choose another target, or destroy this one"
            ),
        })?;
        if let Some(newest) = &plan.send {
            self.send(newest, &plan.base)?;
        } else {
            self.told.step("keep", &self.target.to_string(), "(up to date)");
        }
        let Some(common) = plan.send.clone().or(plan.common()) else { return Ok(()) };
        if self.o.hold {
            self.hold(&common)?;
        }
        if self.o.bookmark {
            self.bookmark(&common, &marks)?;
        }
        for (end, keep) in [(self.source, self.o.keep_source), (self.target, self.o.keep)] {
            if let Some(keep) = keep {
                self.prune(end, keep, &common)?;
            }
        }
        Ok(())
    }

    /// What leads from the base to the newest snapshot.
    fn send(&mut self, newest: &Point, base: &Base) -> Result<(), Failed> {
        let mut words = vec!["send".to_owned()];
        words.extend(if self.o.raw {
            vec!["-w".to_owned()]
        } else {
            vec!["-L".into(), "-e".into(), "-c".into()]
        });
        let from = match base {
            Base::Nothing => String::new(),
            Base::Snapshot(p) => {
                words.push(if self.o.intermediates { "-I" } else { "-i" }.into());
                format!("@{}", p.name)
            }
            Base::Bookmark(p) => {
                words.push("-i".into());
                format!("#{}", p.name)
            }
        };
        if !from.is_empty() {
            words.push(from.clone());
        }
        words.push(self.source.at(&newest.name));
        let more = if from.is_empty() { "(all of it)".to_owned() } else { format!("from {from}") };
        self.told.step("send", &format!("{}@{}", self.source, newest.name), &more);
        if self.o.dry_run {
            return Ok(());
        }
        self.stream(&words, self.o.force)
    }

    fn stream(&mut self, words: &[String], force: bool) -> Result<(), Failed> {
        let mut receive = vec!["receive", "-s", "-u"];
        if force {
            receive.push("-F");
        }
        receive.push(self.target.dataset());
        let done = end::pipe(self.source, words, self.target, &receive, self.o.verbose);
        done.map_err(|e| match self.target.exists() {
            // The same token again: nothing came, and another run would end as this one did.
            Ok(true) if matches!(self.target.token(), Ok(Some(now)) if !words.contains(&now)) => {
                Failed { code: INTERRUPTED, why: format!("{}; run it again to go on from there", e.why) }
            }
            _ => e,
        })
    }

    /// Holds what both ends have, and lets go of what they had before.
    fn hold(&mut self, common: &Point) -> Result<(), Failed> {
        let tag = self.tag();
        for end in [self.source, self.target] {
            if self.o.dry_run {
                self.told.step("hold", &format!("{end}@{}", common.name), &tag);
                continue;
            }
            let name = end.at(&common.name_on(end, self.target)?);
            let all: Vec<String> = end.snapshots()?.iter().map(|p| end.at(&p.name)).collect();
            let held = end.held(&all, &tag)?;
            if !held.contains(&name) {
                self.told.step("hold", &end.shown(&name), &tag);
                end.done(&["hold", "--", &tag, &name])?;
            }
            for old in held.iter().filter(|h| **h != name) {
                self.told.step("release", &end.shown(old), &tag);
                end.done(&["release", "--", &tag, old])?;
            }
        }
        Ok(())
    }

    /// What an increment can begin at when the source's snapshot is gone.
    fn bookmark(&mut self, common: &Point, marks: &[Point]) -> Result<(), Failed> {
        let name = format!("{}#{}", self.source.dataset(), common.name);
        if marks.iter().all(|m| m.guid != common.guid) {
            self.told.step("bookmark", &self.source.shown(&name), "");
            if !self.o.dry_run {
                self.source.done(&["bookmark", &self.source.at(&common.name), &name])?;
            }
        }
        for old in marks.iter().filter(|m| m.guid != common.guid && m.name.starts_with(&self.o.prefix)) {
            let name = format!("{}#{}", self.source.dataset(), old.name);
            self.told.step("destroy", &self.source.shown(&name), "");
            if !self.o.dry_run {
                self.source.done(&["destroy", &name])?;
            }
        }
        Ok(())
    }

    /// Leaves the newest of the snapshots that this command made.
    fn prune(&mut self, end: &End, keep: usize, common: &Point) -> Result<(), Failed> {
        let mut all = if self.o.dry_run && !end.exists()? { Vec::new() } else { end.snapshots()? };
        // A dry run has neither taken nor sent the snapshot that would be the newest.
        if self.o.dry_run && all.iter().all(|p| p.guid != common.guid) {
            all.push(common.clone());
        }
        for old in plan::to_prune(&all, &self.o.prefix, keep, common.guid) {
            let name = end.at(&old.name);
            self.told.step("destroy", &end.shown(&name), "");
            if !self.o.dry_run {
                end.done(&["destroy", &name])?;
            }
        }
        Ok(())
    }
}

impl Failed {
    fn plain(why: impl Into<String>) -> Failed {
        Failed { code: FAILED, why: why.into() }
    }
}
