//! Where the daemon's words go.
//!
//! Always to `zillad.log` in the state folder; in the foreground to standard error as well.
//! `ZILLA_LOG` chooses how much: a level, or levels by module (`info,zilla_core::spa=debug`). The
//! log is kept to two files of a few megabytes: a daemon that complains about a dying disk for a
//! year must not fill the one that works.
//!
//! **A line is one event.** What it says may be a name, or a word of a client's: whatever would
//! begin another line, or tell a terminal something, is written as an escape, here where all lines
//! pass.

use crate::DaemonError;
use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::sync::Mutex;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;
use zilla_control::Folder;
use zilla_control::paths::{Access, LOG_FILE};

/// Bytes of a file.
const LIMIT: u64 = 8 << 20;
/// The file before.
const OLD_LOG_FILE: &str = "zillad.log.old";

/// Starts logging for the whole process. A second call in one process (tests) changes nothing.
pub fn start(folder: &Folder, background: bool) -> Result<(), DaemonError> {
    let what = format!("'{}'", folder.path().join(LOG_FILE).display());
    let log = Log::open(folder.clone(), !background).map_err(|error| DaemonError::Io { what, error })?;
    let asked = std::env::var("ZILLA_LOG").ok().and_then(|words| words.parse().ok());
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines =
        tracing_subscriber::fmt::layer().with_ansi(false).with_target(false).with_writer(Mutex::new(log));
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    Ok(())
}

/// A file that starts anew when it is full, keeping the one before.
struct Log {
    folder: Folder,
    file: File,
    size: u64,
    echo: bool,
}

impl Log {
    fn open(folder: Folder, echo: bool) -> std::io::Result<Log> {
        let file = folder.file(LOG_FILE, Access::Append)?;
        let size = file.metadata()?.len();
        Ok(Log { folder, file, size, echo })
    }

    fn turn_over(&mut self) -> std::io::Result<()> {
        self.folder.rename(LOG_FILE, OLD_LOG_FILE)?;
        *self = Log::open(self.folder.clone(), self.echo)?;
        Ok(())
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
        let length = line.len();
        let line = escaped(line);
        let line = line.as_bytes();
        // The subscriber hands over whole lines. What cannot be logged must not stop what is being
        // logged.
        if self.size >= LIMIT {
            let _ = self.turn_over();
        }
        if self.echo {
            let _ = std::io::stderr().write_all(line);
        }
        let _ = self.file.write_all(line);
        self.size = self.size.saturating_add(line.len() as u64);
        Ok(length)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_s_name_begins_a_line_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let state = zilla_control::StateDir::new(dir.path().join("state"));
        let log = Log::open(state.open().unwrap(), false).unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_target(false)
            .without_time()
            .with_writer(Mutex::new(log))
            .finish();
        let name = "a\n2026-01-01 ERROR all is lost\r\t\u{1b}[2J\u{9b}\u{2028}ü";
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("no device at {name}");
            tracing::warn!(%name, "again");
        });
        let text = std::fs::read_to_string(state.path().join(LOG_FILE)).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(
            !text.contains(|c: char| c.is_control() && c != '\n') && !text.contains('\u{2028}'),
            "{text:?}"
        );
        assert!(text.contains("at a\\n2026-01-01 ERROR") && text.contains('ü'), "{text}");
        // What is no text is none in the log either.
        assert_eq!(escaped(b"a\xffb\n"), "a\u{fffd}b\n");
    }

    #[test]
    fn a_full_log_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let state = zilla_control::StateDir::new(dir.path().join("state"));
        let path = state.path().join(LOG_FILE);
        let mut log = Log::open(state.open().unwrap(), false).unwrap();
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
