//! `zpool status -c` and `zpool iostat -c`: scripts that say something of each device, in columns
//! of their own.
//!
//! A script is found by its name in `~/.zpool.d` and `/etc/zfs/zpool.d`, or in the folders that
//! `ZPOOL_SCRIPTS_PATH` names, and run once for each device, several at a time. Of its device it
//! knows what the environment says. A line `name=value` of its output is a cell of a column of that
//! name; the first line without a name is printed behind the columns, and ends what is read.
//!
//! What it keeps true: a script runs as who called the command, never as the daemon, and not for
//! root unless he says so, since the folders may be somebody else's. One that fails, takes longer
//! than [`PATIENCE`] or says too much has said nothing, or what it said until then; it ends with
//! its children.

use crate::cx::{Cx, Exit};
use crate::fmt::json::Obj;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use zilla_control::types::{PoolInfo, VdevNode};

/// Source: ZPOOL_SCRIPTS_DIR of OpenZFS's configure.
const SCRIPTS_DIR: &str = "/etc/zfs/zpool.d";
/// How long a script may take: a disk that sleeps must spin up to be asked.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a script's output.
const MOST: usize = 64 << 10;
/// Scripts that run at a time, for each processor.
const AT_ONCE: usize = 5;

/// Whether a variable of the environment says yes. Source: libzfs_envvar_is_set.
fn says_yes(value: Option<&OsStr>) -> bool {
    let Some(text) = value.map(OsStr::to_string_lossy) else { return false };
    let digits: String = text.trim_start().chars().take_while(char::is_ascii_digit).collect();
    let word = |w: &str| text.get(..w.len()).is_some_and(|t| t.eq_ignore_ascii_case(w));
    digits.parse::<u64>().is_ok_and(|n| n > 0) || word("YES") || word("ON")
}

/// Refuses `-c` where it may not be.
pub fn check(cx: &mut Cx, before: Option<&String>) -> Result<(), Exit> {
    let var = |name: &str| std::env::var_os(name);
    let why = if before.is_some() {
        "Can't set -c flag twice"
    } else if var("ZPOOL_SCRIPTS_ENABLED").is_some_and(|v| !says_yes(Some(&v))) {
        "Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED."
    } else if (rustix::process::getuid().is_root() || rustix::process::geteuid().is_root())
        && !says_yes(var("ZPOOL_SCRIPTS_AS_ROOT").as_deref())
    {
        "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set."
    } else {
        return Ok(());
    };
    cx.err(why);
    Err(Exit(1))
}

/// Where scripts are looked for.
fn folders() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("ZPOOL_SCRIPTS_PATH") {
        return std::env::split_paths(&path).filter(|p| !p.as_os_str().is_empty()).collect();
    }
    let own = std::env::var_os("HOME").map(|home| Path::new(&home).join(".zpool.d"));
    own.into_iter().chain([PathBuf::from(SCRIPTS_DIR)]).collect()
}

/// Where a script finds programs.
const PATH: &str = "/bin:/sbin:/usr/bin:/usr/sbin";

/// Prints what scripts there are, in their own words: they are run for that.
pub fn list(cx: &mut Cx, command: &str) -> Result<(), Exit> {
    check(cx, None)?;
    cx.out.line(format!("Available 'zpool {command} -c' commands:"));
    for folder in folders() {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        paths.sort();
        for path in paths.iter().filter(|p| is_script(p)) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let mut command = Command::new(path);
            command.arg("-h").env_clear().env("PATH", PATH);
            for line in output(command).unwrap_or_default().lines().filter(|l| !l.trim().is_empty()) {
                cx.out.line(format!("  {name:<14}  {line}"));
            }
        }
    }
    Ok(())
}

fn is_script(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o100 != 0)
}

/// What the scripts said of one device.
#[derive(Debug, Default)]
struct Said {
    cells: BTreeMap<String, String>,
    /// What stands in no column.
    rest: Vec<String>,
}

impl Said {
    /// Takes a script's output.
    fn take(&mut self, output: &str, order: &mut Vec<String>) {
        for line in output.lines() {
            match line.split_once('=') {
                Some((name, _)) if self.cells.contains_key(name) => {}
                Some((name, value)) => {
                    if !order.iter().any(|o| o == name) {
                        order.push(name.to_owned());
                    }
                    self.cells.insert(name.to_owned(), value.to_owned());
                }
                None => {
                    self.rest.push(line.to_owned());
                    return;
                }
            }
        }
    }

    fn cell(&self, name: &str) -> &str {
        self.cells.get(name).map(String::as_str).filter(|v| !v.trim().is_empty()).unwrap_or("-")
    }
}

/// What the scripts said of all devices.
#[derive(Debug, Default)]
pub struct Columns {
    /// Name and width of each.
    columns: Vec<(String, usize)>,
    /// By the devices' guids.
    said: BTreeMap<u64, Said>,
}

/// A device that scripts are run for.
struct Asked<'a> {
    pool: &'a str,
    guid: u64,
    path: &'a str,
}

impl Columns {
    /// Runs scripts (`words`: their names, with commas between them) for the devices of pools that
    /// are `wanted`.
    pub fn ask(words: &str, pools: &[PoolInfo], wanted: &dyn Fn(&VdevNode) -> bool) -> Columns {
        let mut devices: Vec<Asked<'_>> = Vec::new();
        for pool in pools {
            let mut todo: Vec<&VdevNode> = vec![&pool.root];
            todo.extend(pool.l2cache.iter().chain(&pool.spares));
            while let Some(vdev) = todo.pop() {
                todo.extend(&vdev.children);
                // A spare in use is in two places.
                let known = devices.iter().any(|d| d.guid == vdev.guid);
                if let Some(path) = vdev.path.as_deref().filter(|_| !known && wanted(vdev)) {
                    devices.push(Asked { pool: &pool.name, guid: vdev.guid, path });
                }
            }
        }
        let folders = folders();
        let find = |name: &str| folders.iter().map(|f| f.join(name)).find(|p| may_run(p));
        let names = words.split(',').filter(|w| !w.is_empty() && !w.contains('/'));
        let scripts: Vec<PathBuf> = names.filter_map(find).collect();
        Columns::of(outputs(&devices, &scripts))
    }

    fn of(outputs: Vec<(u64, Vec<String>)>) -> Columns {
        let (mut order, mut said) = (Vec::new(), BTreeMap::new());
        for (guid, texts) in outputs {
            let mut all = Said::default();
            texts.iter().for_each(|text| all.take(text, &mut order));
            said.insert(guid, all);
        }
        let width = |name: &String| {
            let values = said.values().filter_map(|s| s.cells.get(name)).map(String::len);
            values.chain([name.len()]).max().unwrap_or(0)
        };
        let columns = order.iter().map(|name| (name.clone(), width(name))).collect();
        Columns { columns, said }
    }

    /// The columns' names, as they are added to a heading.
    pub fn heading(&self) -> String {
        self.columns.iter().map(|(name, width)| format!("  {name:>width$}")).collect()
    }

    /// The same for a line of dashes.
    pub fn dashes(&self) -> String {
        self.columns.iter().map(|(_, width)| format!("  {}", "-".repeat(*width))).collect()
    }

    /// A device's cells, as they are added to its line.
    pub fn cells(&self, vdev: &VdevNode) -> String {
        if vdev.path.is_none() || self.said.is_empty() {
            return String::new();
        }
        let Some(said) = self.said.get(&vdev.guid) else { return "  ".to_owned() };
        let cells = self.columns.iter().map(|(name, width)| format!("{:>width$}", said.cell(name)));
        let all: Vec<String> = cells.chain(said.rest.iter().cloned()).collect();
        format!("  {}", all.join("  "))
    }

    /// The same in JSON.
    pub fn json(&self, object: &mut Obj, vdev: &VdevNode) {
        let Some(said) = self.said.get(&vdev.guid) else { return };
        for (name, _) in &self.columns {
            object.str(name.as_str(), said.cell(name));
        }
        for (i, text) in said.rest.iter().enumerate() {
            object.str(format!("extra_{}", i + 1), text.as_str());
        }
    }
}

fn may_run(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// What each script says of each device; the devices in their order.
fn outputs(devices: &[Asked<'_>], scripts: &[PathBuf]) -> Vec<(u64, Vec<String>)> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = Mutex::new(devices.iter().enumerate());
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|threads| {
        for _ in 0..devices.len().min(cores * AT_ONCE) {
            threads.spawn(|| {
                loop {
                    let Some((i, device)) = next.lock().ok().and_then(|mut n| n.next()) else { return };
                    let texts = scripts.iter().filter_map(|script| run(script, device)).collect();
                    if let Ok(mut done) = done.lock() {
                        done.insert(i, (device.guid, texts));
                    }
                }
            });
        }
    });
    done.into_inner().map(|all| all.into_values().collect()).unwrap_or_default()
}

fn run(script: &Path, device: &Asked<'_>) -> Option<String> {
    let under = underlying(Path::new(device.path));
    let mut command = Command::new(script);
    command
        .env_clear()
        .env("PATH", PATH)
        .env("POOL_NAME", device.pool)
        .env("VDEV_PATH", device.path)
        .env("VDEV_UPATH", &under)
        .env("VDEV_ENC_SYSFS_PATH", enclosure(&under).unwrap_or_default());
    output(command)
}

/// What a program prints, if it ends well and in time.
fn output(mut command: Command) -> Option<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().ok()?;
    let until = Instant::now() + PATIENCE;
    let bytes = read(&mut child, until);
    let ended = bytes.is_some() && ends(&mut child, until);
    if !ended {
        // With what it began.
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
    }
    let status = child.wait().ok()?;
    let text = String::from_utf8_lossy(&bytes?).into_owned();
    (ended && status.success()).then_some(text)
}

/// All that it prints; None if that takes too long or is too much.
fn read(child: &mut Child, until: Instant) -> Option<Vec<u8>> {
    let mut out = child.stdout.take()?;
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let left = Timespec::try_from(until.checked_duration_since(Instant::now())?).ok()?;
        match poll(&mut [PollFd::new(&out, PollFlags::IN)], Some(&left)) {
            Ok(0) => return None,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
            Ok(_) => {}
        }
        let n = out.read(&mut part).ok()?;
        if n == 0 {
            return Some(bytes);
        }
        bytes.extend_from_slice(part.get(..n)?);
        if bytes.len() > MOST {
            return None;
        }
    }
}

/// Whether a program that prints nothing more ends.
fn ends(child: &mut Child, until: Instant) -> bool {
    while Instant::now() < until {
        match child.try_wait() {
            Ok(Some(_)) => return true,
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => return false,
        }
    }
    false
}

/// The device that a path leads to; of one that the device mapper makes, the first below it.
fn underlying(path: &Path) -> PathBuf {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let Some(name) = real.file_name().filter(|n| n.to_string_lossy().starts_with("dm-")) else { return real };
    let below = std::fs::read_dir(Path::new("/sys/class/block").join(name).join("slaves"));
    let mut names: Vec<_> = below.into_iter().flatten().filter_map(|e| Some(e.ok()?.file_name())).collect();
    names.sort();
    names.first().map_or(real, |below| Path::new("/dev").join(below))
}

/// The slot of an enclosure that a disk is in, in sysfs.
fn enclosure(device: &Path) -> Option<PathBuf> {
    let mut dir = Path::new("/sys/class/block").join(device.file_name()?).canonicalize().ok()?;
    if dir.join("partition").exists() {
        dir.pop();
    }
    let entries = std::fs::read_dir(dir.join("device")).ok()?;
    let mut found = entries.filter_map(|e| Some(e.ok()?.path()));
    let is_slot =
        |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("enclosure_device"));
    found.find(is_slot)?.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vdev(guid: u64) -> VdevNode {
        VdevNode { guid, path: Some("/dev/x".into()), ..VdevNode::default() }
    }

    #[test]
    fn lines_become_cells_of_columns() {
        let texts = |all: &[&str]| all.iter().map(|t| (*t).to_owned()).collect();
        let columns = Columns::of(vec![
            (1, texts(&["size=1T\nmodel=A long one\n", "rest of it\nnot=read\n"])),
            (2, texts(&["model=B\nmodel=twice\nsize= \n"])),
            (3, texts(&[])),
        ]);
        assert_eq!(columns.heading(), "  size       model");
        assert_eq!(columns.dashes(), "  ----  ----------");
        assert_eq!(columns.cells(&vdev(1)), "    1T  A long one  rest of it");
        assert_eq!(columns.cells(&vdev(2)), "     -           B");
        assert_eq!(columns.cells(&vdev(3)), "     -           -");
        assert_eq!(columns.cells(&VdevNode::default()), "");
    }

    #[test]
    fn variables_are_read_as_openzfs_reads_them() {
        for (value, yes) in
            [("1", true), ("YES", true), ("on", true), ("0", false), ("no", false), ("", false), ("2x", true)]
        {
            assert_eq!(says_yes(Some(OsStr::new(value))), yes, "{value}");
        }
        assert!(!says_yes(None));
    }

    #[test]
    fn what_fails_has_said_nothing() {
        let shell = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            output(command)
        };
        assert_eq!(shell("echo a=b").as_deref(), Some("a=b\n"));
        assert_eq!(shell("echo a=b; exit 3"), None);
        assert_eq!(shell("while :; do echo endless; done"), None);
    }
}
