//! The keeper of volumes' block devices: a process of its own beside the daemon.
//!
//! A volume is a file in a file system that the daemon serves (`zvol/` of the state folder); a loop
//! device on it is a block device. Whoever attaches, detaches or closes such a device waits for the
//! daemon, perhaps in the kernel, where no signal reaches him. So it is never the daemon, which
//! could then wait for itself, or not die when it is killed: it starts this process, tells it over
//! a pipe what to attach and to detach, and the keeper does that with losetup(8) and makes the
//! links (`/dev/zvol/POOL/VOLUME`).
//!
//! What it keeps true: a device has a link while it is attached here, and each goes when the daemon
//! ends, in whatever way, for then the pipe ends. The keeper holds no device open: whoever is the
//! last to close one has the kernel write out what is cached for it, as with OpenZFS's own. A link
//! that leads to somebody else's living device is left alone.
//!
//! **A crash** of the daemon ends the pipe. If the keeper is killed too its devices stay, and fail
//! every request; the next keeper of the same state folder finds them by their file's path and
//! detaches them. They have that path only while the dead file system of volumes is still mounted,
//! so it does so before anything else, and says when it is done.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How the daemon calls it; what follows is the folder for links and the folder of the files.
pub const WORD: &str = "--keep-volume-devices";
/// So long somebody who just looks at a device (as udev does) is waited for.
const GRACE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);
/// How often a device that was in use is looked at again.
const AGAIN: Duration = Duration::from_millis(500);
/// What it says first: what an earlier keeper left is gone.
pub const READY: &str = "ready";
/// Longer words do not come from the daemon.
const LONGEST: u64 = 8192;

/// What the daemon asks for, a field after the other, each with a zero byte behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Name, file, read-only, with partitions.
    Attach(String, String, bool, bool),
    /// Name; whether the link goes though the device is in use.
    Detach(String, bool),
    /// The device is in use and stays, under another name.
    Move(String, String),
    /// The file has another size.
    Resize(String),
}

impl Order {
    pub fn bytes(&self) -> Vec<u8> {
        let flag = |on: &bool| if *on { "1" } else { "0" };
        let words = match self {
            Order::Attach(name, file, readonly, scan) => {
                vec!["attach", name, file, flag(readonly), flag(scan)]
            }
            Order::Detach(name, force) => vec!["detach", name, flag(force)],
            Order::Move(from, to) => vec!["move", from, to],
            Order::Resize(name) => vec!["resize", name],
        };
        words.iter().flat_map(|w| w.bytes().chain([0])).collect()
    }

    /// None: there is no more, or it is no order.
    fn read(from: &mut impl BufRead) -> Option<Order> {
        let mut word = || {
            let mut bytes = Vec::new();
            from.by_ref().take(LONGEST).read_until(0, &mut bytes).ok()?;
            (bytes.pop() == Some(0)).then(|| String::from_utf8(bytes).ok()).flatten()
        };
        Some(match word()?.as_str() {
            "attach" => Order::Attach(word()?, word()?, word()? == "1", word()? == "1"),
            "detach" => Order::Detach(word()?, word()? == "1"),
            "move" => Order::Move(word()?, word()?),
            "resize" => Order::Resize(word()?),
            _ => return None,
        })
    }
}

/// A device that is attached.
struct Kept {
    device: PathBuf,
    file: String,
    /// The file of the name that it has now, to which it is attached when it comes back.
    again: String,
    readonly: bool,
    scan: bool,
    /// It was to be detached while in use: the kernel does that as soon as it is not.
    leaves: bool,
}

struct Keeper {
    links: PathBuf,
    kept: BTreeMap<String, Kept>,
}

/// Runs the keeper until the daemon ends; gives the exit code.
pub fn main(words: &[String]) -> u8 {
    let [links, files] = words else {
        eprintln!("zillad: {WORD} is how the daemon calls itself");
        return 2;
    };
    // Who ends the daemon's whole group ends the daemon; this ends after it.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return 1 };
    let _caught = runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(|kind| signal(kind).ok())
    });
    // Others may look at the links, as in /dev.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let mut keeper = Keeper { links: PathBuf::from(links), kept: BTreeMap::new() };
    clear_stale(Path::new(files));
    if say(READY).is_err() {
        return 1;
    }
    let (send, orders) = channel();
    let reader = move || {
        let mut from = BufReader::new(std::io::stdin());
        while let Some(order) = Order::read(&mut from) {
            if send.send(order).is_err() {
                return;
            }
        }
    };
    if std::thread::Builder::new().spawn(reader).is_err() {
        return 1;
    }
    loop {
        match orders.recv_timeout(AGAIN) {
            Ok(order) => {
                let answer = keeper.carry_out(order).unwrap_or_else(|why| format!("error {why}"));
                if say(&answer.replace('\n', " ")).is_err() {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => keeper.bring_back(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    keeper.let_go();
    0
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    out.write_all(format!("{line}\n").as_bytes())?;
    out.flush()
}

fn losetup(args: &[&str]) -> Result<String, String> {
    let out =
        Command::new("losetup").args(args).output().map_err(|e| format!("cannot run 'losetup': {e}"))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned()),
        false => Err(String::from_utf8_lossy(&out.stderr).trim().to_owned()),
    }
}

/// The file that a loop device lies on, as the kernel names it; reading it waits for nobody.
fn file_below(device: &Path) -> Option<String> {
    let name = device.file_name()?.to_str()?;
    let text = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

impl Kept {
    fn is_attached(&self) -> bool {
        // The kernel adds a remark to a name that is gone.
        let ours = |f: &str| f.strip_prefix(&self.file).is_some_and(|r| matches!(r, "" | " (deleted)"));
        file_below(&self.device).is_some_and(|f| ours(&f))
    }

    /// Whether it is gone, which it is not while somebody has it open.
    fn detach(&self) -> bool {
        // Its number may be another's by now.
        if !self.is_attached() {
            return true;
        }
        let until = Instant::now() + GRACE;
        let _ = losetup(&["--detach", &self.device.to_string_lossy()]);
        while self.is_attached() {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }
}

impl Keeper {
    fn carry_out(&mut self, order: Order) -> Result<String, String> {
        match order {
            Order::Attach(name, file, readonly, scan) => self.attach(&name, file, readonly, scan),
            Order::Detach(name, force) => {
                let Some(kept) = self.kept.get_mut(&name) else { return Ok("ok".to_owned()) };
                let gone = kept.detach();
                if gone || force {
                    self.unlink(&name);
                    self.kept.remove(&name);
                } else {
                    kept.leaves = true;
                }
                Ok(if gone { "ok" } else { "busy" }.to_owned())
            }
            Order::Move(from, to) => {
                self.unlink(&from);
                let Some(mut kept) = self.kept.remove(&from) else { return Ok("ok".to_owned()) };
                let linked = check_name(&to).and_then(|()| self.link(&to, &kept.device));
                // Once it is not in use it is detached: under the new name the file is another.
                if let Some(dir) = kept.again.strip_suffix(from.as_str()) {
                    kept.again = format!("{dir}{to}");
                }
                self.kept.insert(to, kept);
                linked.map(|()| "ok".to_owned())
            }
            Order::Resize(name) => {
                let attached = self.kept.get(&name).filter(|k| k.is_attached());
                let Some(kept) = attached else { return Ok("ok".to_owned()) };
                losetup(&["--set-capacity", &kept.device.to_string_lossy()]).map(|_| "ok".to_owned())
            }
        }
    }

    fn attach(&mut self, name: &str, file: String, readonly: bool, scan: bool) -> Result<String, String> {
        check_name(name)?;
        // The daemon asks again where it did not wait for the answer.
        if let Some(kept) = self.kept.get(name).filter(|k| k.is_attached()) {
            let same = (&kept.again, kept.readonly, kept.scan) == (&file, readonly, scan);
            // One that was to go may lie on a volume that is gone.
            if same && !kept.leaves {
                // The file may have got another size since.
                losetup(&["--set-capacity", &kept.device.to_string_lossy()])?;
                return Ok(format!("ok {}", kept.device.display()));
            }
            if !kept.detach() {
                return Err(format!("'{}' is in use", kept.device.display()));
            }
        }
        let mut args = vec!["--find", "--show", "--direct-io=on"];
        args.extend(scan.then_some("--partscan"));
        args.extend(readonly.then_some("--read-only"));
        args.push(&file);
        let device = PathBuf::from(losetup(&args)?);
        let again = file.clone();
        let kept = Kept { device, file, again, readonly, scan, leaves: false };
        if let Err(why) = self.link(name, &kept.device) {
            kept.detach();
            return Err(why);
        }
        let device = kept.device.display().to_string();
        self.kept.insert(name.to_owned(), kept);
        Ok(format!("ok {device}"))
    }

    fn link(&self, name: &str, device: &Path) -> Result<(), String> {
        let link = self.links.join(name);
        let failed = |e: std::io::Error| format!("'{}': {e}", link.display());
        if let Some(above) = link.parent() {
            std::fs::create_dir_all(above).map_err(failed)?;
        }
        match std::fs::read_link(&link) {
            Ok(to) if file_below(&to).is_some() && to != device && answers(&to) => {
                return Err(format!("'{}' is another's: it leads to '{}'", link.display(), to.display()));
            }
            Ok(_) => std::fs::remove_file(&link).map_err(failed)?,
            Err(_) => {}
        }
        std::os::unix::fs::symlink(device, &link).map_err(failed)
    }

    /// Takes a link away, and the folders that were made for it.
    fn unlink(&self, name: &str) {
        let link = self.links.join(name);
        let own =
            self.kept.get(name).is_some_and(|k| std::fs::read_link(&link).is_ok_and(|to| to == k.device));
        if own && std::fs::remove_file(&link).is_ok() {
            for dir in link.ancestors().skip(1).take_while(|d| *d != self.links) {
                if std::fs::remove_dir(dir).is_err() {
                    break;
                }
            }
        }
    }

    /// A device that was to go while it was in use, and then stayed wanted, is gone now: it comes
    /// back.
    fn bring_back(&mut self) {
        let gone = |k: &&Kept| k.leaves && !k.is_attached();
        let names: Vec<String> =
            self.kept.iter().filter(|(_, k)| gone(k)).map(|(name, _)| name.clone()).collect();
        for name in names {
            self.unlink(&name);
            if let Some(kept) = self.kept.remove(&name) {
                let _ = self.attach(&name, kept.again, kept.readonly, kept.scan);
            }
        }
    }

    fn let_go(&mut self) {
        let names: Vec<String> = self.kept.keys().cloned().collect();
        for name in &names {
            self.unlink(name);
        }
        for kept in self.kept.values().filter(|k| k.is_attached()) {
            let _ = losetup(&["--detach", &kept.device.to_string_lossy()]);
        }
    }
}

/// Detaches the devices that lie on the files of a daemon that was killed: on those below a folder
/// whose file system is dead. To be called before another is mounted there.
pub fn clear_stale(files: &Path) {
    if !matches!(rustix::fs::statfs(files), Err(rustix::io::Errno::NOTCONN)) {
        return;
    }
    for entry in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let device = Path::new("/dev").join(entry.file_name());
        if file_below(&device).is_some_and(|f| Path::new(&f).starts_with(files)) {
            let _ = losetup(&["--detach", &device.to_string_lossy()]);
        }
    }
}

/// A name becomes a path below a folder of root's: it must not lead out of it, whatever the daemon
/// was told by a disk.
fn check_name(name: &str) -> Result<(), String> {
    let plain = |c| matches!(c, std::path::Component::Normal(_));
    match !name.is_empty() && Path::new(name).components().all(plain) {
        true => Ok(()),
        false => Err(format!("{name:?} is no name of a volume")),
    }
}

/// Whether a device can be read at all. What a living daemon serves is not this one's to detach.
fn answers(device: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    let direct = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(device);
    // Some device without direct reads is asked for a byte.
    let Ok(mut file) = direct.or_else(|_| std::fs::File::open(device)) else { return false };
    let mut page = vec![0u8; 3 * 4096];
    let at = page.as_ptr().align_offset(4096).min(4096);
    page.get_mut(at..at + 4096).is_some_and(|buf| file.read(buf).is_ok())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_that_leads_elsewhere_is_none() {
        assert!(super::check_name("tank/a/v@s").is_ok());
        for name in ["", "/tank/v", "tank/../../etc/v", "..", "./v"] {
            assert!(super::check_name(name).is_err(), "{name}");
        }
    }

    use super::*;

    #[test]
    fn orders_are_read_as_they_were_given() {
        let all = [
            Order::Attach("a/v".into(), "/x y/\n/v".into(), true, false),
            Order::Detach("a/v".into(), true),
            Order::Move("a".into(), "b".into()),
            Order::Resize("a".into()),
        ];
        let bytes: Vec<u8> = all.iter().flat_map(Order::bytes).collect();
        let mut from = &bytes[..];
        let back: Vec<Order> = std::iter::from_fn(|| Order::read(&mut from)).collect();
        assert_eq!(back, all);
        assert_eq!(Order::read(&mut &b"attach\0a\0"[..]), None);
        assert_eq!(Order::read(&mut &b"format\0"[..]), None);
        assert_eq!(Order::read(&mut &vec![b'x'; 2 * LONGEST as usize][..]), None);
    }

    #[test]
    fn links_come_and_go_with_their_folders() {
        let dir = tempfile::tempdir().unwrap();
        let links = dir.path().join("zvol");
        let mut keeper = Keeper { links: links.clone(), kept: BTreeMap::new() };
        let device = PathBuf::from("/dev/zilla-no-such-device");
        keeper.link("a/b/v", &device).unwrap();
        assert_eq!(std::fs::read_link(links.join("a/b/v")).unwrap(), device);
        // Nobody's any more: it is replaced.
        keeper.link("a/b/v", &device).unwrap();
        keeper.unlink("a/b/v");
        assert!(links.join("a/b/v").is_symlink(), "not what this keeper made");
        let (file, again) = ("/f".to_owned(), "/f".to_owned());
        let kept = Kept { device, file, again, readonly: false, scan: false, leaves: false };
        keeper.kept.insert("a/b/v".into(), kept);
        keeper.unlink("a/b/v");
        assert!(links.is_dir() && !links.join("a").exists());
    }
}
