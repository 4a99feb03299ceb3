//! One end of a replication: a dataset, and the `zfs` that is asked about it.
//!
//! Here that is this program; on another machine whatever its shell finds as `zfs`, run by ssh.
//! Words go through that shell, so each is quoted. Answers are asked for in the form that is for
//! scripts (`-H -p`) and read strictly.

use std::fmt;
use std::process::{Command, Stdio};

/// Names in one line: an argument of ssh is at most 128 KiB (MAX_ARG_STRLEN), and a name 256 bytes.
const ASKED_AT_ONCE: usize = 256;

/// Why a replication ends, and with which code.
#[derive(Debug)]
pub struct Failed {
    pub code: u8,
    pub why: String,
}

/// A snapshot or bookmark: its name behind the `@` or `#`, and its guid, which stays when it is
/// renamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    pub name: String,
    pub guid: u64,
}

impl Point {
    /// Its name at an end: the target's may have been renamed since.
    pub fn name_on(&self, end: &End, target: &End) -> Result<String, Failed> {
        if end != target || self.guid == 0 {
            return Ok(self.name.clone());
        }
        let found = end.snapshots()?.into_iter().find(|p| p.guid == self.guid);
        found
            .map(|p| p.name)
            .ok_or_else(|| Failed::plain(format!("{end} has no snapshot of guid {}", self.guid)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    host: Option<String>,
    dataset: String,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) => write!(f, "{host}:{}", self.dataset),
            None => f.write_str(&self.dataset),
        }
    }
}

/// A word as a POSIX shell takes it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

impl End {
    /// `dataset`, or `ssh:[user@]host:dataset`.
    pub fn parse(text: &str) -> Result<End, String> {
        let (host, dataset) = match text.strip_prefix("ssh:") {
            None => (None, text),
            Some(rest) => {
                let (host, dataset) =
                    rest.split_once(':').ok_or_else(|| format!("'{text}': ssh:host:dataset is expected"))?;
                // A host that begins with a dash would be ssh's option.
                if host.is_empty() || host.starts_with('-') {
                    return Err(format!("'{host}' is no host's name"));
                }
                (Some(host.to_owned()), dataset)
            }
        };
        let plain = |c: char| !c.is_control() && !"@#%".contains(c);
        if dataset.is_empty() || dataset.starts_with(['-', '/']) || !dataset.chars().all(plain) {
            return Err(format!("'{dataset}' is no dataset's name"));
        }
        Ok(End { host, dataset: dataset.to_owned() })
    }

    pub fn dataset(&self) -> &str {
        &self.dataset
    }

    pub fn at(&self, snapshot: &str) -> String {
        format!("{}@{snapshot}", self.dataset)
    }

    /// A name of this end for people.
    pub fn shown(&self, name: &str) -> String {
        match &self.host {
            Some(host) => format!("{host}:{name}"),
            None => name.to_owned(),
        }
    }

    fn command(&self, words: &[&str]) -> Result<Command, Failed> {
        let Some(host) = &self.host else {
            let program = std::env::current_exe().map_err(|e| Failed::plain(format!("this program: {e}")))?;
            let mut command = Command::new(program);
            command.arg("zfs").args(words);
            return Ok(command);
        };
        let line: Vec<String> = ["zfs"].iter().chain(words).map(|w| quoted(w)).collect();
        let mut command = Command::new("ssh");
        command.args(["-o", "BatchMode=yes", "--", host.as_str()]).arg(line.join(" "));
        Ok(command)
    }

    fn failed(&self, words: &[&str], what: &str) -> Failed {
        let told = what.trim().replace('\n', "; ");
        Failed::plain(format!("{}: {}", self.shown(&format!("zfs {}", words.join(" "))), told))
    }

    /// Runs a command; what it printed.
    pub fn done(&self, words: &[&str]) -> Result<String, Failed> {
        let run = self.command(words)?.stdin(Stdio::null()).output();
        let run = run.map_err(|e| self.failed(words, &e.to_string()))?;
        if !run.status.success() {
            let err = String::from_utf8_lossy(&run.stderr);
            let told = if err.trim().is_empty() { run.status.to_string() } else { err.into_owned() };
            return Err(self.failed(words, &told));
        }
        Ok(String::from_utf8_lossy(&run.stdout).into_owned())
    }

    /// Whether there is such a dataset: its parent, which there must be, is asked.
    pub fn exists(&self) -> Result<bool, Failed> {
        let parent = self.dataset.rsplit_once('/').map_or(self.dataset.as_str(), |(parent, _)| parent);
        let all = self.done(&["list", "-H", "-o", "name", "-d", "1", "-t", "filesystem,volume", parent])?;
        Ok(all.lines().any(|l| l == self.dataset))
    }

    /// What an interrupted receive goes on from.
    pub fn token(&self) -> Result<Option<String>, Failed> {
        let said = self.done(&["get", "-H", "-p", "-o", "value", "receive_resume_token", &self.dataset])?;
        Ok(Some(said.trim().to_owned()).filter(|t| t.len() > 1))
    }

    /// Whether its contents are encrypted.
    pub fn is_encrypted(&self) -> Result<bool, Failed> {
        let said = self.done(&["get", "-H", "-p", "-o", "value", "encryption", &self.dataset])?;
        Ok(!matches!(said.trim(), "off" | "-"))
    }

    fn points(&self, kind: &str, mark: char) -> Result<Vec<Point>, Failed> {
        let words =
            ["list", "-H", "-p", "-o", "name,guid", "-s", "createtxg", "-d", "1", "-t", kind, &self.dataset];
        let mut points = Vec::new();
        for line in self.done(&words)?.lines() {
            let parts = line.split_once('\t');
            let point = parts.and_then(|(name, guid)| {
                let (of, name) = name.split_once(mark)?;
                (of == self.dataset).then_some(Point { name: name.to_owned(), guid: guid.parse().ok()? })
            });
            points.push(point.ok_or_else(|| self.failed(&words, &format!("it said '{line}'")))?);
        }
        Ok(points)
    }

    /// Its snapshots, the oldest first.
    pub fn snapshots(&self) -> Result<Vec<Point>, Failed> {
        self.points("snapshot", '@')
    }

    pub fn bookmarks(&self) -> Result<Vec<Point>, Failed> {
        self.points("bookmark", '#')
    }

    /// Those of some snapshots that have a tag.
    pub fn held(&self, snapshots: &[String], tag: &str) -> Result<Vec<String>, Failed> {
        let mut held = Vec::new();
        for part in snapshots.chunks(ASKED_AT_ONCE) {
            let mut words = vec!["holds", "-H"];
            words.extend(part.iter().map(String::as_str));
            held.extend(self.done(&words)?.lines().filter_map(|l| {
                let mut parts = l.split('\t');
                let name = parts.next()?;
                (parts.next()? == tag).then(|| name.to_owned())
            }));
        }
        Ok(held)
    }
}

/// Runs a send at one end into a receive at the other.
pub fn pipe(
    source: &End,
    send: &[String],
    target: &End,
    receive: &[&str],
    verbose: bool,
) -> Result<(), Failed> {
    let mut send: Vec<&str> = send.iter().map(String::as_str).collect();
    if verbose {
        send.insert(1, "-v");
    }
    let mut from = source.command(&send)?;
    let mut sender = from.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
    let sender = sender.as_mut().map_err(|e| source.failed(&send, &e.to_string()))?;
    let stream = sender.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let received = target.command(receive).and_then(|mut command| {
        let run = command.stdin(stream).stdout(Stdio::null()).stderr(Stdio::inherit()).status();
        run.map_err(|e| target.failed(receive, &e.to_string()))
    });
    // The sender ends when nobody reads its stream any more.
    let sent = sender.wait().map_err(|e| source.failed(&send, &e.to_string()))?;
    let received = received?;
    match (sent.success(), received.success()) {
        (true, true) => Ok(()),
        (_, false) => Err(target.failed(receive, &received.to_string())),
        (false, true) => Err(source.failed(&send, &sent.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read() {
        let e = End::parse("ssh:me@box:pool/a b").unwrap();
        assert_eq!((e.to_string().as_str(), e.dataset()), ("me@box:pool/a b", "pool/a b"));
        assert_eq!(e.shown("pool/a@x"), "me@box:pool/a@x");
        assert_eq!(End::parse("tank/a").unwrap().at("x"), "tank/a@x");
        for bad in [
            "",
            "ssh:host",
            "ssh::tank",
            "ssh:-oProxyCommand=x:tank",
            "tank@a",
            "tank#a",
            "-r",
            "/tank",
            "a\nb",
        ] {
            assert!(End::parse(bad).is_err(), "{bad}");
        }
        // Colons are a dataset's too.
        assert_eq!(End::parse("tank/a:b").unwrap().dataset(), "tank/a:b");
    }

    #[test]
    fn a_remote_shell_takes_words_as_they_are() {
        let end = End::parse("ssh:box:pool/it's; rm -rf $HOME").unwrap();
        let command = end.command(&["list", end.dataset()]).unwrap();
        let last = command.get_args().last().unwrap().to_str().unwrap();
        let shown = Command::new("sh").arg("-c").arg(format!("printf '%s|' {last}")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&shown.stdout), "zfs|list|pool/it's; rm -rf $HOME|");
    }
}
