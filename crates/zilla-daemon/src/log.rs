//! Where the daemon's words go.
//!
//! Always to `zillad.log` in the state folder; in the foreground to standard error as well.
//! `ZILLA_LOG` chooses how much: a level, or levels by module (`info,zilla_core::spa=debug`). The
//! log is kept to two files of a few megabytes: a daemon that complains about a dying disk for a
//! year must not fill the one that works.
//!
//! **A line is one event.** What it says may be a name, or a word of a client's: whatever would
//! begin another line, or tell a terminal something, is written as an escape, here where all lines
//! pass, those of panics too.
//!
//! **Nobody writes it full.** Strangers and guests can have the daemon say the same again and again
//! (that they are refused, for one), and two files hold only so much: of each sentence [`AT_ONCE`]
//! are written, and then one a second. How many were left out is told.

use crate::DaemonError;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::prelude::*;
use zilla_control::Folder;
use zilla_control::paths::{Access, LOG_FILE};

/// Bytes of a file.
const LIMIT: u64 = 8 << 20;
/// The file before.
const OLD_LOG_FILE: &str = "zillad.log.old";
/// Lines that one place in the code may write one after the other: some for each of many disks.
const AT_ONCE: u32 = 1000;
/// How often it may write one more.
const EACH: Duration = Duration::from_secs(1);

/// Starts logging for the whole process. A second call in one process (tests) changes nothing.
pub fn start(folder: &Folder, background: bool) -> Result<(), DaemonError> {
    let what = format!("'{}'", folder.path().join(LOG_FILE).display());
    let moderate = Moderate::default();
    let left_out = moderate.left_out.clone();
    let log = Log::open(folder.clone(), !background, left_out);
    let log = log.map_err(|error| DaemonError::Io { what, error })?;
    let asked = std::env::var("ZILLA_LOG").ok().and_then(|words| words.parse().ok());
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines =
        tracing_subscriber::fmt::layer().with_ansi(false).with_target(false).with_writer(Mutex::new(log));
    let _ = tracing_subscriber::registry().with(filter).with(lines).with(moderate).try_init();
    std::panic::set_hook(Box::new(tell_panic));
    Ok(())
}

/// What a panic has to say.
fn tell_panic(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    tracing::error!("thread '{}' {info}", thread.name().unwrap_or_default());
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        tracing::error!("{trace}");
    }
}

/// A file and line.
type Place = (&'static str, u32);

/// Lets no sentence be said too often.
#[derive(Default)]
struct Moderate {
    /// By the place in the code: how many more it may write, and as of when.
    left: Mutex<HashMap<Place, (u32, Instant)>>,
    left_out: Arc<AtomicU64>,
}

impl Moderate {
    fn admits(&self, place: Place, now: Instant) -> bool {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, since) = left.entry(place).or_insert((AT_ONCE, now));
        let more = now.saturating_duration_since(*since).as_secs() / EACH.as_secs();
        if more > 0 {
            (*left, *since) =
                (left.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(AT_ONCE), now);
        }
        let admitted = *left > 0;
        *left = left.saturating_sub(1);
        admitted
    }
}

impl<S: Subscriber> Layer<S> for Moderate {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let about = event.metadata();
        let place = (about.file().unwrap_or_default(), about.line().unwrap_or_default());
        // Who asks for more than that wants all of it.
        let admitted = *about.level() > Level::INFO || self.admits(place, Instant::now());
        if !admitted {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    }
}

/// A file that starts anew when it is full, keeping the one before.
struct Log {
    folder: Folder,
    file: File,
    size: u64,
    echo: bool,
    /// Lines since the last one.
    left_out: Arc<AtomicU64>,
}

impl Log {
    fn open(folder: Folder, echo: bool, left_out: Arc<AtomicU64>) -> std::io::Result<Log> {
        let file = folder.file(LOG_FILE, Access::Append)?;
        let size = file.metadata()?.len();
        Ok(Log { folder, file, size, echo, left_out })
    }

    fn turn_over(&mut self) -> std::io::Result<()> {
        self.folder.rename(LOG_FILE, OLD_LOG_FILE)?;
        *self = Log::open(self.folder.clone(), self.echo, self.left_out.clone())?;
        Ok(())
    }

    fn put(&mut self, line: &str) {
        // What cannot be logged must not stop what is being logged.
        if self.size >= LIMIT {
            let _ = self.turn_over();
        }
        if self.echo {
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        let _ = self.file.write_all(line.as_bytes());
        self.size = self.size.saturating_add(line.len() as u64);
    }
}

/// A line without control characters but its end.
fn escaped(line: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(line);
    let body = text.strip_suffix('\n').unwrap_or(&text);
    // The two separators are no control characters, and end lines all the same.
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    if !body.contains(breaks) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in body.chars() {
        match breaks(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out.push_str(&text[body.len()..]);
    Cow::Owned(out)
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            self.put(&format!("({left_out} lines were left out: there were too many of their kind)\n"));
        }
        // The subscriber hands over whole lines.
        self.put(&escaped(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is logged meanwhile.
    fn logged(act: impl FnOnce()) -> String {
        let dir = tempfile::tempdir().unwrap();
        let state = zilla_control::StateDir::new(dir.path().join("state"));
        let moderate = Moderate::default();
        let log = Log::open(state.open().unwrap(), false, moderate.left_out.clone()).unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_target(false)
            .without_time()
            .with_writer(Mutex::new(log))
            .finish()
            .with(moderate);
        tracing::subscriber::with_default(subscriber, act);
        std::fs::read_to_string(state.path().join(LOG_FILE)).unwrap()
    }

    #[test]
    fn nobody_s_name_begins_a_line_of_its_own() {
        let name = "a\n2026-01-01 ERROR all is lost\r\t\u{1b}[2J\u{9b}\u{2028}ü";
        let usual = std::panic::take_hook();
        let text = logged(|| {
            tracing::info!("no device at {name}");
            tracing::warn!(%name, "again");
            std::panic::set_hook(Box::new(tell_panic));
            let _ = std::panic::catch_unwind(|| panic!("at {name}"));
        });
        std::panic::set_hook(usual);
        let lines: Vec<&str> = text.lines().filter(|l| !l.contains("log::tell_panic")).collect();
        assert!(
            lines.len() >= 3 && lines.iter().all(|l| l.contains("at a\\n2026") || l.contains("again")),
            "{text}"
        );
        assert!(
            !text.contains(|c: char| c.is_control() && c != '\n') && !text.contains('\u{2028}'),
            "{text:?}"
        );
        assert!(text.contains("at a\\n2026-01-01 ERROR") && text.contains('ü'), "{text}");
        assert!(lines[2].contains("ERROR") && lines[2].contains("panicked at"), "{text}");
        // What is no text is none in the log either.
        assert_eq!(escaped(b"a\xffb\n"), "a\u{fffd}b\n");
    }

    #[test]
    fn who_is_refused_again_and_again_does_not_push_out_the_rest() {
        let text = logged(|| {
            tracing::error!("a disk fails");
            (0..AT_ONCE * 50).for_each(|n| tracing::warn!("refused {n}"));
            tracing::error!("another disk fails");
        });
        assert!(text.contains("a disk fails") && text.contains("another disk fails"), "{text}");
        let refused = text.lines().filter(|l| l.contains("refused")).count() as u32;
        assert!((AT_ONCE..AT_ONCE * 2).contains(&refused), "{refused}");
        assert!(text.contains(" lines were left out"), "{text}");
        let (moderate, now) = (Moderate::default(), Instant::now());
        let said = |at| (0..AT_ONCE * 2).filter(|_| moderate.admits(("x", 1), at)).count();
        assert_eq!((said(now), said(now)), (AT_ONCE as usize, 0));
        assert_eq!(said(now + EACH * 3), 3);
    }

    #[test]
    fn a_full_log_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let state = zilla_control::StateDir::new(dir.path().join("state"));
        let path = state.path().join(LOG_FILE);
        let mut log = Log::open(state.open().unwrap(), false, Arc::default()).unwrap();
        let line = vec![b'x'; 1 << 20];
        for _ in 0..20 {
            log.write_all(&line).unwrap();
        }
        let size = |p: std::path::PathBuf| std::fs::metadata(p).unwrap().len();
        assert!(size(path.clone()) <= LIMIT);
        assert_eq!(size(state.path().join(OLD_LOG_FILE)), LIMIT);
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 2);
    }
}
