//! File systems shared over SMB: `sharesmb`, by Samba's usershares.
//!
//! Samba takes shares at run time from whoever it permits, a file each in a folder of its own,
//! which its program `net` writes (`net usershare add | delete | info`). That program is run here,
//! with a vector of arguments and never by a shell. As in OpenZFS a share is named after its
//! dataset, with `_` for what may not stand in a share's name; it is everybody's whom Samba knows,
//! the modes and ACLs of the files decide the rest, and guests stay outside.
//!
//! What it keeps true: no name is taken from anybody, neither from another file system whose name
//! comes to the same nor from a usershare that somebody else made. A share is written to the state
//! folder before it is made, so that the next start takes back what a crash left behind
//! ([`Usershares::sweep`]): it would lead into the empty directory where nothing is mounted any
//! more. What Samba would not take literally (control characters, its own `%` words) never gets to
//! it.
//!
//! One `net` runs at a time. One that hangs is ended after [`LONGEST`], and none is tried for
//! [`PAUSE`] then, so that an import of a thousand shares is not a thousand times as long.
//!
//! **Deliberately absent.** Options other than `on` and `off`: OpenZFS has none on Linux either.
//! Who is connected when a share is taken back: Samba lets him finish, and files that he has open
//! keep the mount in use, as any others do.

use parking_lot::Mutex as Lock;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt};
use zilla_control::StateDir;
use zilla_control::paths::Access;

/// In the state folder: the names that are ours, each with its path.
const RECORD: &str = "usershares";
const RECORD_NEW: &str = "usershares.new";
/// Of the record, and of what `net` says, bytes.
const LIMIT: u64 = 1 << 20;
/// What takes longer does not end.
const LONGEST: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(60);
/// Everyone, by his number: looking the name up takes a server that runs, and file systems are
/// mounted before one does. Source: [MS-DTYP] 2.4.2.4.
const EVERYONE_FULLY: &str = "S-1-1-0:F";
/// Sections of smb.conf that mean something else than a share.
const RESERVED: [&str; 3] = ["global", "homes", "printers"];
/// A share is a file of its name.
const NAME_MAX: usize = 255;

/// Why there is no share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Samba's usershares are not to be had here.
    Absent(String),
    /// This share is not to be had.
    Refused(String),
}

impl Refusal {
    pub fn text(&self) -> &str {
        match self {
            Refusal::Absent(what) | Refusal::Refused(what) => what,
        }
    }
}

/// How a dataset's share is called.
fn share_name(dataset: &str) -> Result<String, Refusal> {
    let refuse = |why: &str| Err(Refusal::Refused(format!("'{dataset}' cannot be a share's name: {why}")));
    let mut name = String::new();
    for c in dataset.chars() {
        match c {
            '/' | '-' | ':' | ' ' => name.push('_'),
            c if c.is_ascii_alphanumeric() || matches!(c, '_' | '.') => name.push(c),
            _ => return refuse("it has characters that no dataset's name has"),
        }
    }
    match name {
        name if name.len() > NAME_MAX => refuse(&format!("it is longer than {NAME_MAX} characters")),
        name if name.starts_with('.') || name.is_empty() => refuse("it begins with a dot"),
        name if RESERVED.contains(&name.to_ascii_lowercase().as_str()) => {
            refuse("Samba means something else by it")
        }
        name => Ok(name),
    }
}

/// The path as Samba takes it literally.
fn share_path(path: &Path) -> Result<&str, Refusal> {
    let refuse = |why: &str| Err(Refusal::Refused(format!("'{}' cannot be shared: {why}", path.display())));
    match path.to_str() {
        None => refuse("it is not UTF-8"),
        Some(text) if text.chars().any(char::is_control) => refuse("it has control characters"),
        Some(text) if text.contains('%') || text.contains("$(") => {
            refuse("Samba would put something else in the place of '%' and '$('")
        }
        Some(text) if !text.starts_with('/') => refuse("it is no full path"),
        Some(text) => Ok(text),
    }
}

/// What `net usershare info` says of the path.
fn path_of(info: &str) -> Option<&str> {
    info.lines().find_map(|line| line.strip_prefix("path="))
}

/// All shares by their names, in lower case as Samba tells them apart.
#[derive(Clone)]
pub struct Usershares(Arc<Inner>);

struct Inner {
    state: StateDir,
    /// Held while `net` runs.
    one: tokio::sync::Mutex<()>,
    rows: Lock<BTreeMap<String, Row>>,
    /// Not before then: the last one hung.
    not_before: Lock<Option<Instant>>,
    turns: AtomicU64,
    /// Where shares are taken back that are dropped on other threads.
    runtime: Option<tokio::runtime::Handle>,
}

struct Row {
    /// None: it is nobody's any more, and could not be taken back.
    dataset: Option<String>,
    path: String,
    /// Tells the shares of one name apart that come one after the other.
    turn: u64,
}

/// A share, as long as it lives. [`Usershare::close`] takes it back and waits for that; where it is
/// dropped it is taken back a little later.
pub struct Usershare {
    of: Usershares,
    name: String,
    dataset: String,
    path: String,
    turn: u64,
    open: bool,
}

/// A share that was taken back.
pub struct Closed {
    of: Usershares,
    dataset: String,
    path: String,
}

impl Closed {
    /// Shares it as it was.
    pub async fn again(self) -> Result<Usershare, Refusal> {
        self.of.share(&self.dataset, Path::new(&self.path), None).await
    }
}

impl Usershare {
    /// Whether this is what a dataset's share would be.
    fn is(&self, dataset: &str, path: &Path) -> bool {
        self.dataset == dataset && Path::new(&self.path) == path
    }

    pub async fn close(mut self) -> Closed {
        self.of.take_back(&self.name, &self.path, self.turn).await;
        self.open = false;
        Closed { of: self.of.clone(), dataset: self.dataset.clone(), path: self.path.clone() }
    }
}

impl Drop for Usershare {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let (of, name, path, turn) = (self.of.clone(), self.name.clone(), self.path.clone(), self.turn);
        // Without a runtime the process ends, and the next start takes it back.
        if let Some(runtime) = self.of.0.runtime.clone() {
            runtime.spawn(async move { of.take_back(&name, &path, turn).await });
        }
    }
}

impl Usershares {
    pub fn new(state: &StateDir) -> Usershares {
        let runtime = tokio::runtime::Handle::try_current().ok();
        let (one, rows, not_before, turns) = Default::default();
        Usershares(Arc::new(Inner { state: state.clone(), one, rows, not_before, turns, runtime }))
    }

    /// Shares what is mounted there; `old` is its share so far, which is kept if it is the same and
    /// taken back otherwise.
    pub async fn share(
        &self,
        dataset: &str,
        path: &Path,
        old: Option<Usershare>,
    ) -> Result<Usershare, Refusal> {
        match old {
            Some(same) if same.is(dataset, path) => return Ok(same),
            Some(other) => drop(other.close().await),
            None => {}
        }
        let name = share_name(dataset)?;
        let path = share_path(path)?;
        let key = name.to_ascii_lowercase();
        let _one = self.0.one.lock().await;
        let whose = self.0.rows.lock().get(&key).and_then(|row| row.dataset.clone());
        if let Some(other) = whose.filter(|whose| whose != dataset) {
            return Err(Refusal::Refused(format!("its share's name, '{name}', is that of '{other}'")));
        }
        let info = self.net(&["info", &name]).await?;
        if let Some(other) = path_of(&info).filter(|other| *other != path) {
            return Err(Refusal::Refused(format!(
                "there is a usershare '{name}' already, of '{other}' (net usershare delete {name})"
            )));
        }
        let turn = self.0.turns.fetch_add(1, Relaxed);
        let row = Row { dataset: Some(dataset.to_owned()), path: path.to_owned(), turn };
        self.0.rows.lock().insert(key.clone(), row);
        if let Err(e) = self.record() {
            self.0.rows.lock().remove(&key);
            return Err(Refusal::Refused(format!("'{RECORD}' in the state folder: {e}")));
        }
        let comment = format!("Comment: {path}");
        if let Err(why) = self.net(&["add", &name, path, &comment, EVERYONE_FULLY, "guest_ok=n"]).await {
            // A `net` that was ended in its midst may have made the share.
            self.forget(&name, path).await;
            return Err(why);
        }
        let (dataset, path) = (dataset.to_owned(), path.to_owned());
        Ok(Usershare { of: self.clone(), name, dataset, path, turn, open: true })
    }

    /// What could not be done is in the log, and is done at the next start.
    async fn take_back(&self, name: &str, path: &str, turn: u64) {
        let _one = self.0.one.lock().await;
        let key = name.to_ascii_lowercase();
        // A later share of the name may have taken its place.
        if self.0.rows.lock().get(&key).is_none_or(|row| row.turn != turn) {
            return;
        }
        self.forget(name, path).await;
    }

    /// Deletes a share and its row. Where it cannot be deleted the row stays, as nobody's, so that
    /// the next start tries again.
    async fn forget(&self, name: &str, path: &str) {
        let key = name.to_ascii_lowercase();
        if self.delete(name, path).await {
            self.0.rows.lock().remove(&key);
            self.record_or_say();
        } else if let Some(row) = self.0.rows.lock().get_mut(&key) {
            row.dataset = None;
        }
    }

    /// Deletes a usershare that leads there; whether it is gone.
    async fn delete(&self, name: &str, path: &str) -> bool {
        let deleted = async {
            let info = self.net(&["info", name]).await?;
            match path_of(&info) {
                Some(found) if found == path => self.net(&["delete", name]).await.map(drop),
                // Somebody else's by now, or nobody's.
                _ => Ok(()),
            }
        };
        match deleted.await {
            // With Samba its shares are gone too.
            Ok(()) | Err(Refusal::Absent(_)) => true,
            Err(Refusal::Refused(why)) => {
                tracing::warn!("the usershare '{name}' of '{path}' cannot be taken back: {why}");
                false
            }
        }
    }

    /// Takes back what a crash left: nothing is mounted yet.
    pub async fn sweep(&self) {
        let text = match self.read_record() {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            Err(e) => return tracing::warn!("'{RECORD}' in the state folder: {e}"),
        };
        let _one = self.0.one.lock().await;
        for (name, path) in text.lines().filter_map(|line| line.split_once('\t')) {
            // Only what could have been written.
            let ours = share_name(name).is_ok_and(|n| n == name) && share_path(Path::new(path)).is_ok();
            if ours && !self.delete(name, path).await {
                let turn = self.0.turns.fetch_add(1, Relaxed);
                let row = Row { dataset: None, path: path.to_owned(), turn };
                self.0.rows.lock().insert(name.to_ascii_lowercase(), row);
            }
        }
        self.record_or_say();
    }

    fn read_record(&self) -> io::Result<String> {
        let folder = self.0.state.open().map_err(io::Error::other)?;
        // (Of a file that is longer only what is read is taken back.)
        folder.read_up_to(RECORD, LIMIT)
    }

    fn record(&self) -> io::Result<()> {
        let rows = self.0.rows.lock().iter().map(|(name, row)| (name.clone(), row.path.clone())).collect();
        self.write_record(&rows)
    }

    fn record_or_say(&self) {
        self.record().unwrap_or_else(|e| tracing::warn!("'{RECORD}' in the state folder: {e}"));
    }

    fn write_record(&self, rows: &BTreeMap<String, String>) -> io::Result<()> {
        let folder = self.0.state.open().map_err(io::Error::other)?;
        if rows.is_empty() {
            return folder.remove(RECORD);
        }
        let text: String = rows.iter().map(|(name, path)| format!("{name}\t{path}\n")).collect();
        folder.file(RECORD_NEW, Access::Anew)?.write_all(text.as_bytes())?;
        folder.rename(RECORD_NEW, RECORD)
    }

    /// Runs `net usershare` with these words and gives what it prints.
    async fn net(&self, words: &[&str]) -> Result<String, Refusal> {
        let hung = || {
            let seconds = LONGEST.as_secs();
            Refusal::Refused(format!("Samba's 'net usershare' does not end within {seconds} s"))
        };
        if self.0.not_before.lock().is_some_and(|then| Instant::now() < then) {
            return Err(hung());
        }
        match tokio::time::timeout(LONGEST, run(words)).await {
            Ok(done) => done,
            Err(_) => {
                *self.0.not_before.lock() = Some(Instant::now() + PAUSE);
                Err(hung())
            }
        }
    }
}

async fn run(words: &[&str]) -> Result<String, Refusal> {
    let child = tokio::process::Command::new("net")
        .arg("usershare")
        .args(words)
        .env("LC_ALL", "C")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let what = "SMB shares are Samba's usershares, and Samba is not installed: there is no program 'net' \
                        (Debian: apt-get install samba)";
            return Err(Refusal::Absent(what.to_owned()));
        }
        Err(e) => return Err(Refusal::Absent(format!("Samba's 'net' cannot be run: {e}"))),
    };
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (out, err, status) = tokio::join!(all(out), all(err), child.wait());
    match status {
        Ok(status) if status.success() => Ok(out),
        Ok(status) => Err(judge(words, &err, &status.to_string())),
        Err(e) => Err(Refusal::Refused(format!("Samba's 'net': {e}"))),
    }
}

async fn all(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // Who says more than that waits until his time is over.
        let _ = pipe.take(LIMIT).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Why `net` failed, and what helps.
fn judge(words: &[&str], said: &str, status: &str) -> Refusal {
    let said = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or(status);
    let has = |part: &str| said.contains(part);
    let remedy = if has("currently disabled") {
        "give 'usershare max shares' a number in smb.conf's [global]"
    } else if has("cannot open usershare directory") && has("ermission") {
        "the daemon's user must be in the group that owns Samba's folder of usershares (Debian: sambashare)"
    } else if has("cannot open usershare directory") || has("is not a directory") {
        "make the folder that smb.conf's 'usershare path' names (mode 1770), or remove that line"
    } else {
        let word = words.first().copied().unwrap_or_default();
        return Refusal::Refused(format!("Samba refuses 'net usershare {word}': {said}"));
    };
    Refusal::Absent(format!("Samba has no usershares here: {remedy} ({said})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_openzfs_s_and_nothing_else_gets_to_samba() {
        for (dataset, name) in [
            ("tank", "tank"),
            ("tank/data set-1:x", "tank_data_set_1_x"),
            ("tank/A.b_c", "tank_A.b_c"),
            ("tank/-rf", "tank__rf"),
        ] {
            assert_eq!(share_name(dataset).as_deref(), Ok(name));
        }
        for bad in [
            "global",
            "Homes",
            "printers",
            "",
            ".hidden",
            "tank/$(id)",
            "tank/a;b",
            "tank/a\nb",
            "tank/é",
            "tank@s",
        ] {
            assert!(matches!(share_name(bad), Err(Refusal::Refused(_))), "{bad:?}");
        }
        assert!(share_name(&"a".repeat(256)).is_err() && share_name(&"a".repeat(255)).is_ok());
        for bad in ["/a\nguest_ok=y", "/srv/%U", "/$(id)", "relative", "/a\u{7f}"] {
            assert!(share_path(Path::new(bad)).is_err(), "{bad:?}");
        }
        assert_eq!(share_path(Path::new("/mnt/a b;c")), Ok("/mnt/a b;c"));
    }

    #[test]
    fn what_is_missing_of_samba_is_told_with_what_helps() {
        let remedy = |said: &str| match judge(&["add"], said, "exit status: 255") {
            Refusal::Absent(text) => text,
            Refusal::Refused(text) => panic!("{text}"),
        };
        assert!(
            remedy("net usershare: usershares are currently disabled\n").contains("usershare max shares")
        );
        let no_folder =
            "net usershare: cannot open usershare directory /x. Error No such file or directory\nPlease ask";
        assert!(remedy(no_folder).contains("usershare path"));
        let closed = "net usershare: cannot open usershare directory /x. Error Permission denied\nYou do not";
        assert!(remedy(closed).contains("sambashare"));
        let user = "net usershare add: share name backup is already a valid system user name\n";
        assert!(
            matches!(judge(&["add"], user, ""), Refusal::Refused(why) if why.contains("system user name"))
        );
        assert_eq!(path_of("[x]\npath=/a b\ncomment=path=/c\n"), Some("/a b"));
        assert_eq!(path_of("\n"), None);
    }

    #[test]
    fn the_record_is_read_as_it_was_written_and_goes_with_the_last_share() {
        let dir = tempfile::tempdir().unwrap();
        let shares = Usershares::new(&StateDir::new(dir.path().join("state")));
        let rows = BTreeMap::from([("a".to_owned(), "/x y".to_owned()), ("b".to_owned(), "/z".to_owned())]);
        shares.write_record(&rows).unwrap();
        assert_eq!(shares.read_record().unwrap(), "a\t/x y\nb\t/z\n");
        shares.write_record(&BTreeMap::new()).unwrap();
        assert!(shares.read_record().is_err_and(|e| e.kind() == io::ErrorKind::NotFound));
    }
}
