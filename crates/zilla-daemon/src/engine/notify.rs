//! Mail and web hooks for what a person must know: a disk that fails, files that are damaged, a
//! pool that stands still.
//!
//! `zed.rc` in the folder `zed.d` of the state folder says where to, with the names and forms of
//! OpenZFS's `zed.rc`: lines `NAME="value"`. `ZED_EMAIL_ADDR` are addresses, to which `sendmail`
//! (or `ZED_EMAIL_PROG`, which is called as sendmail is) sends a letter. `ZED_WEBHOOK_URL` is
//! posted the event as JSON, the same object as `zilla events` prints; `curl` does it, which knows
//! the machine's certificates and proxies. Without `ZED_NOTIFY_VERBOSE=1` the end of a scrub or
//! resilver is told only of pools that are not ONLINE.
//!
//! Rate: the same about the same device or pool is told once in `ZED_NOTIFY_INTERVAL_SECS` (an
//! hour, as in OpenZFS), and the next letter says how many were not. A program that hangs is ended
//! after [`LONGEST`]; events that come meanwhile wait in their bounded ring. The file is read anew
//! for each notice, so a change of it needs no restart. As the programs for events it must be the
//! daemon's user's or root's and writable by nobody else: it names a program.

use super::Engine;
use super::zedlets::{Coming, end_group, own};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use zilla_control::types::{EventInfo, EventValue};
use zilla_ondisk::enums::VdevState;

/// A mail server or a web server that has not answered until then does not.
const LONGEST: Duration = Duration::from_secs(30);
/// OpenZFS's `ZED_NOTIFY_INTERVAL_SECS`.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Things that are remembered to have been told of. One more forgets those of the longest time ago.
const REMEMBERED: usize = 1024;
/// Of `zed.rc`, bytes.
const RC_LIMIT: u64 = 64 << 10;

/// What `zed.rc` says.
#[derive(Debug, PartialEq, Eq)]
struct Rc {
    mail_to: Vec<String>,
    mail_program: String,
    webhook: Option<String>,
    interval: Duration,
    verbose: bool,
}

impl Rc {
    /// The file in this folder, `None` where there is none, and what is wrong with it.
    fn read(dir: &Path) -> (Option<Rc>, Vec<String>) {
        let path = dir.join("zed.rc");
        let wrong = |why: &str| (None, vec![format!("{} is not read: {why}", path.display())]);
        let length = match std::fs::metadata(&path) {
            Ok(meta) => meta.len(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return (None, Vec::new()),
            Err(e) => return wrong(&e.to_string()),
        };
        if !own(dir) || !own(&path) {
            return wrong("others than the daemon's user and root can write it");
        }
        if length > RC_LIMIT {
            return wrong(&format!("it is longer than {RC_LIMIT} bytes"));
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let (rc, complaints) = Rc::parse(&text);
                (Some(rc), complaints)
            }
            Err(e) => wrong(&e.to_string()),
        }
    }

    fn parse(text: &str) -> (Rc, Vec<String>) {
        let mut rc = Rc {
            mail_to: Vec::new(),
            mail_program: "/usr/sbin/sendmail".to_owned(),
            webhook: None,
            interval: INTERVAL,
            verbose: false,
        };
        let mut complaints = Vec::new();
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let Some((name, value)) = line.split_once('=') else {
                complaints.push(format!("zed.rc: '{line}' is not NAME=\"value\""));
                continue;
            };
            let quoted = |q| value.strip_prefix(q).and_then(|v| v.strip_suffix(q));
            let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
            // These go into a command line, a letter's head, or curl's configuration.
            if value.chars().any(char::is_control) {
                complaints.push(format!("zed.rc: {name} has control characters: it is passed over"));
                continue;
            }
            match name {
                // An address that begins with a dash would be an option.
                "ZED_EMAIL_ADDR" => {
                    let all = value.split_whitespace().filter(|a| !a.starts_with('-'));
                    rc.mail_to = all.map(str::to_owned).collect();
                }
                "ZED_EMAIL_PROG" => value.clone_into(&mut rc.mail_program),
                "ZED_WEBHOOK_URL" if value.starts_with("https://") || value.starts_with("http://") => {
                    rc.webhook = Some(value.to_owned());
                }
                "ZED_WEBHOOK_URL" => {
                    complaints.push(format!("zed.rc: {name} is no address of http or https"));
                }
                "ZED_NOTIFY_INTERVAL_SECS" => match value.parse() {
                    Ok(seconds) => rc.interval = Duration::from_secs(seconds),
                    Err(_) => complaints.push(format!("zed.rc: {name} is no number of seconds")),
                },
                "ZED_NOTIFY_VERBOSE" => rc.verbose = value == "1",
                _ => complaints.push(format!("zed.rc: there is no {name} here: it is passed over")),
            }
        }
        (rc, complaints)
    }
}

/// Who told what when.
#[derive(Default)]
struct Told(HashMap<(String, u64, u64), (Instant, u64)>);

impl Told {
    /// Whether this is to be told now, and how many of its kind were passed over since the last.
    fn admit(&mut self, event: &EventInfo, interval: Duration, now: Instant) -> Option<u64> {
        let key = (subclass(event).to_owned(), number(event, "pool_guid"), number(event, "vdev_guid"));
        if let Some((last, passed)) = self.0.get_mut(&key)
            && now.duration_since(*last) < interval
        {
            *passed += 1;
            return None;
        }
        if self.0.len() >= REMEMBERED
            && !self.0.contains_key(&key)
            && let Some(oldest) = self.0.iter().min_by_key(|(_, (last, _))| *last).map(|(k, _)| k.clone())
        {
            self.0.remove(&oldest);
        }
        Some(self.0.insert(key, (now, 0)).map_or(0, |(_, passed)| passed))
    }
}

fn number(event: &EventInfo, name: &str) -> u64 {
    let found = event.fields.iter().find(|(n, _)| n == name);
    found.and_then(|(_, v)| if let EventValue::Number(n) = v { Some(*n) } else { None }).unwrap_or(0)
}

fn text<'a>(event: &'a EventInfo, name: &str) -> Option<&'a str> {
    let found = event.fields.iter().find(|(n, _)| n == name);
    found.and_then(|(_, v)| if let EventValue::Text(t) = v { Some(t.as_str()) } else { None })
}

fn subclass(event: &EventInfo) -> &str {
    event.class.rsplit('.').next().unwrap_or(&event.class)
}

/// One line that says what happened, of what a person must know; `None` of everything else.
/// `online`: the pool's health.
fn headline(event: &EventInfo, online: bool, verbose: bool) -> Option<String> {
    let pool = event.pool().unwrap_or("?");
    let vdev = text(event, "vdev_path").map_or_else(|| "a device".to_owned(), str::to_owned);
    let done = |what: &str| (verbose || !online).then(|| format!("pool {pool}: {what}"));
    match subclass(event) {
        "statechange" => match VdevState::from_number(number(event, "vdev_state"))? {
            VdevState::Degraded => Some(format!("pool {pool}: {vdev} is DEGRADED")),
            VdevState::Faulted => Some(format!("pool {pool}: {vdev} is FAULTED")),
            VdevState::Removed => Some(format!("pool {pool}: {vdev} is REMOVED")),
            VdevState::CantOpen => Some(format!("pool {pool}: {vdev} is UNAVAIL")),
            _ => None,
        },
        "io_failure" => Some(format!("pool {pool} is SUSPENDED: its devices do not answer")),
        "data" => Some(format!("pool {pool}: data is damaged beyond repair")),
        "checksum" => Some(format!("pool {pool}: {vdev} returns wrong data")),
        "io" => Some(format!("pool {pool}: {vdev} fails to read or write")),
        "scrub_finish" => done("the scrub has finished"),
        "resilver_finish" => done("the resilver has finished"),
        _ => None,
    }
}

impl Engine {
    /// Sends notices from now on, until the daemon ends.
    pub(super) fn run_notices(&self) {
        let dir = self.handle.state_dir().path().join("zed.d");
        let pools = self.pools.clone();
        let (mut told, mut coming) = (Told::default(), Coming::new("the notices of them"));
        let mut said = Vec::new();
        tokio::spawn(async move {
            loop {
                let event = super::events::info(&*coming.next().await);
                // Most events are nothing that anybody is told of.
                if headline(&event, false, true).is_none() {
                    continue;
                }
                let (rc, complaints) = Rc::read(&dir);
                if complaints != said {
                    complaints.iter().for_each(|c| tracing::warn!("{c}"));
                    said = complaints;
                }
                let Some(rc) = rc else { continue };
                let online = {
                    let pools = pools.read();
                    let pool = event.pool().and_then(|name| pools.get(name));
                    pool.is_some_and(|p| p.zilla.is_online())
                };
                let Some(line) = headline(&event, online, rc.verbose) else { continue };
                if let Some(passed) = told.admit(&event, rc.interval, Instant::now()) {
                    send(&rc, &line, &event, passed).await;
                }
            }
        });
    }
}

async fn send(rc: &Rc, line: &str, event: &EventInfo, passed: u64) {
    if !rc.mail_to.is_empty() {
        let letter = letter(rc, line, event, passed);
        tell(&rc.mail_program, &["-oi", "-t"], letter.as_bytes()).await;
    }
    if let Some(url) = &rc.webhook {
        let arguments = ["--disable", "--silent", "--show-error", "--fail", "--config", "-"];
        tell("curl", &arguments, request(url, event).as_bytes()).await;
    }
}

/// A letter as sendmail takes it, with its addresses in the head.
fn letter(rc: &Rc, line: &str, event: &EventInfo, passed: u64) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // What a pool or a path is called must not begin another line of the head.
    let subject: String = format!("zilla on {host}: {line}").replace(char::is_control, " ");
    let body: String = line.replace(char::is_control, " ");
    let pool = event.pool().unwrap_or_default().replace(char::is_control, " ");
    let more = match passed {
        0 => String::new(),
        n => format!("{n} more of these came since the last letter.\n"),
    };
    format!(
        "To: {}\nSubject: {subject}\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\n\
         {body}\n{more}\nWhat to do: zpool status -v {pool}\n\nThe event:\n{}\n",
        rc.mail_to.join(", "),
        event.json(),
    )
}

/// What curl is to do, as its configuration: a command line could be read by everyone, and an
/// address may hold a secret.
fn request(url: &str, event: &EventInfo) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    format!(
        "url = {}\nproto = \"=http,https\"\nheader = \"Content-Type: application/json\"\nmax-time = {}\n\
         output = \"/dev/null\"\ndata-raw = {}\n",
        quoted(url),
        LONGEST.as_secs(),
        quoted(&event.json()),
    )
}

/// Runs a program with this input, and says in the log what went wrong. One that does not come to
/// its end is ended with what it has begun.
async fn tell(program: &str, arguments: &[&str], input: &[u8]) {
    let begun = tokio::process::Command::new(program)
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child = match begun {
        Ok(child) => child,
        Err(e) => return tracing::warn!("a notice could not be sent: {program}: {e}"),
    };
    let group = child.id();
    let run = async {
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input).await?;
        }
        child.wait().await
    };
    let ended = tokio::time::timeout(LONGEST, run).await;
    if !matches!(ended, Ok(Ok(_))) {
        end_group(group);
    }
    match ended {
        Ok(Ok(status)) if status.success() => {}
        Ok(Ok(status)) => tracing::warn!("a notice could not be sent: {program}: {status}"),
        Ok(Err(e)) => tracing::warn!("a notice could not be sent: {program}: {e}"),
        Err(_) => tracing::warn!("{program} runs for more than {} s: it is ended", LONGEST.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::zedlets::tests::Hung;
    use super::*;

    fn event(class: &str, fields: &[(&str, EventValue)]) -> EventInfo {
        let fields = fields.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect();
        EventInfo { eid: 1, class: class.to_owned(), fields, ..EventInfo::default() }
    }

    fn faulted(vdev: u64) -> EventInfo {
        let state = VdevState::Faulted.number();
        event(
            "resource.fs.zfs.statechange",
            &[
                ("pool", EventValue::Text("tank".into())),
                ("vdev_guid", EventValue::Number(vdev)),
                ("vdev_path", EventValue::Text("/dev/sda\nBcc: all@example.org".into())),
                ("vdev_state", EventValue::Number(state)),
            ],
        )
    }

    #[test]
    fn the_file_is_read_as_openzfs_writes_it() {
        let (rc, complaints) = Rc::parse(
            "# zed.rc\nZED_EMAIL_ADDR=\"root -O admin@example.org\"\nZED_NOTIFY_INTERVAL_SECS=60\n\
             ZED_NOTIFY_VERBOSE=1\nZED_WEBHOOK_URL='https://example.org/a\"b'\nZED_ODD=1\nnonsense\n",
        );
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert_eq!(rc.mail_to, ["root", "admin@example.org"]);
        assert_eq!((rc.interval, rc.verbose), (Duration::from_secs(60), true));
        assert_eq!(rc.webhook.as_deref(), Some("https://example.org/a\"b"));
        let (none, _) = Rc::parse("ZED_WEBHOOK_URL=file:///etc/passwd\nZED_NOTIFY_INTERVAL_SECS=x\n");
        assert_eq!((none.webhook, none.interval), (None, INTERVAL));
    }

    #[test]
    fn only_what_a_person_must_know_is_told() {
        let pool = [("pool", EventValue::Text("tank".into()))];
        let scrubbed = event("sysevent.fs.zfs.scrub_finish", &pool);
        assert_eq!(headline(&scrubbed, true, false), None);
        assert!(headline(&scrubbed, false, false).is_some() && headline(&scrubbed, true, true).is_some());
        assert!(headline(&faulted(1), true, false).unwrap().ends_with(" is FAULTED"));
        assert!(headline(&event("ereport.fs.zfs.io_failure", &pool), true, false).is_some());
        assert_eq!(headline(&event("sysevent.fs.zfs.config_sync", &pool), true, true), None);
    }

    #[test]
    fn the_same_is_told_once_an_interval() {
        let (mut told, now) = (Told::default(), Instant::now());
        let later = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(told.admit(&faulted(1), INTERVAL, now), Some(0));
        assert_eq!(told.admit(&faulted(2), INTERVAL, now), Some(0));
        assert_eq!(told.admit(&faulted(1), INTERVAL, later(3599)), None);
        assert_eq!(told.admit(&faulted(1), INTERVAL, later(3600)), Some(1));
        for vdev in 0..2 * REMEMBERED as u64 {
            told.admit(&faulted(vdev), INTERVAL, later(4000 + vdev));
        }
        assert_eq!(told.0.len(), REMEMBERED);
    }

    #[test]
    fn a_name_ends_neither_a_line_of_a_letter_nor_a_value_of_curls() {
        let (rc, _) = Rc::parse("ZED_EMAIL_ADDR=root");
        let line = headline(&faulted(1), true, false).unwrap();
        let letter = letter(&rc, &line, &faulted(1), 3);
        let head = letter.split("\n\n").next().unwrap();
        assert_eq!(head.lines().count(), 4, "{letter}");
        assert!(!letter.lines().any(|l| l.starts_with("Bcc")) && letter.contains("3 more of these"));
        let request = request("https://x/\"a", &faulted(1));
        assert_eq!(request.lines().count(), 6, "{request}");
        assert!(request.starts_with("url = \"https://x/\\\"a\"\n"), "{request}");
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_ended_with_what_it_has_begun() {
        let dir = tempfile::tempdir().unwrap();
        let hung = Hung::in_folder(dir.path(), "mail");
        let passes = async {
            hung.has_begun().await;
            tokio::time::pause();
            tokio::time::advance(LONGEST).await;
            tokio::time::resume();
        };
        tokio::join!(tell(hung.program.to_str().unwrap(), &[], b"a letter"), passes);
        hung.ends();
    }
}
