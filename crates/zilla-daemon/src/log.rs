//! Where the daemon's words go.
//!
//! Always to `zillad.log` in the state folder; in the foreground to standard error as well. `ZILLA_LOG` chooses
//! how much, as `RUST_LOG` does elsewhere. The log is kept to two files of a few megabytes: a daemon that
//! complains about a dying disk for a year must not fill the one that works.

use crate::DaemonError;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Mutex;
use tracing_subscriber::EnvFilter;
use zilla_control::StateDir;

const LIMIT: u64 = 8 << 20;

/// Starts logging for the whole process. A second call in one process (tests) changes nothing.
pub fn start(dir: &StateDir, background: bool) -> Result<(), DaemonError> {
    let path = dir.log_file();
    let log = Log::open(path.clone(), !background)
        .map_err(|error| DaemonError::Io { what: format!("'{}'", path.display()), error })?;
    let filter = EnvFilter::try_from_env("ZILLA_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_target(false)
        .with_writer(Mutex::new(log))
        .try_init();
    Ok(())
}

/// A file that starts anew when it is full, keeping the one before.
struct Log {
    path: PathBuf,
    file: File,
    size: u64,
    echo: bool,
}

impl Log {
    fn open(path: PathBuf, echo: bool) -> std::io::Result<Log> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
        let size = file.metadata()?.len();
        Ok(Log { path, file, size, echo })
    }

    fn turn_over(&mut self) -> std::io::Result<()> {
        std::fs::rename(&self.path, self.path.with_extension("log.old"))?;
        *self = Log::open(self.path.clone(), self.echo)?;
        Ok(())
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        // The subscriber hands over whole lines. What cannot be logged must not stop what is being logged.
        if self.size >= LIMIT {
            let _ = self.turn_over();
        }
        if self.echo {
            let _ = std::io::stderr().write_all(line);
        }
        let _ = self.file.write_all(line);
        self.size = self.size.saturating_add(line.len() as u64);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zillad.log");
        let mut log = Log::open(path.clone(), false).unwrap();
        let line = vec![b'x'; 1 << 20];
        for _ in 0..20 {
            log.write_all(&line).unwrap();
        }
        let size = |p: PathBuf| std::fs::metadata(p).unwrap().len();
        assert!(size(path.clone()) <= LIMIT);
        assert_eq!(size(path.with_extension("log.old")), LIMIT);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
