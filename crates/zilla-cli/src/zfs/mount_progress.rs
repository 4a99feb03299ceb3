//! How far `zfs mount -a -v` has come: `Mounting ZFS filesystems: (120/1000)`.
//!
//! One request mounts all, so what has been mounted meanwhile is asked for on a second connection,
//! once a second. As in OpenZFS nothing is printed of what is over within two seconds, and the
//! number of the line is overwritten in place. A daemon that does not answer costs the line only.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use zilla_control::Client;
use zilla_control::types::MountList;

/// Source: PROGRESS_DELAY of zfs_main.c.
const DELAY: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_secs(1);

/// Prints until it is ended.
pub struct Progress {
    over: Sender<()>,
    printer: JoinHandle<()>,
}

impl Progress {
    /// `wanted`: the file systems that are to be mounted.
    pub fn begin(client: Client, wanted: BTreeSet<String>) -> Option<Progress> {
        let (over, ended) = channel();
        let print = move || {
            let mut line = Line { client, wanted, shown: None };
            let mut wait = DELAY;
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = EVERY;
                line.update();
            }
            line.finish();
        };
        let printer = std::thread::Builder::new().spawn(print).ok()?;
        Some(Progress { over, printer })
    }

    /// Ends the line, if one was begun.
    pub fn end(self) {
        drop(self.over);
        let _ = self.printer.join();
    }
}

struct Line {
    client: Client,
    wanted: BTreeSet<String>,
    /// The number that is on the terminal.
    shown: Option<String>,
}

impl Line {
    fn count(&mut self) -> Option<usize> {
        let mounts = self.client.call(&MountList {}).ok()?;
        Some(mounts.iter().filter(|m| self.wanted.contains(&m.dataset)).count())
    }

    fn update(&mut self) {
        let Some(count) = self.count() else { return };
        let number = format!("({count}/{})", self.wanted.len());
        match &self.shown {
            None => print("Mounting ZFS filesystems: "),
            Some(old) => print(&"\u{8}".repeat(old.len())),
        }
        print(&number);
        self.shown = Some(number);
    }

    fn finish(&mut self) {
        if self.shown.is_some() {
            self.update();
            print("\n");
        }
    }
}

/// The line is for a person: one that cannot be written is nobody's loss.
fn print(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
