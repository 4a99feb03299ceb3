//! Tunables that an administrator has set for every start: `parameters.conf`.
//!
//! What `/etc/modprobe.d` is to OpenZFS's module. Lines of `name=value`, and comments after a `#`.
//! Root's daemon reads `/etc/zilla/parameters.conf`, and after it `parameters.conf` in its state
//! folder; any other daemon only the latter: the machine's numbers are not a user's. They are read
//! once, before any pool is opened. A line that says nothing is told in the log, with what to do,
//! and no other line suffers from it.

use super::parameters;
use std::io::Read;
use std::path::{Path, PathBuf};
use zilla::tunables;

/// The file's name, in whichever folder.
const NAME: &str = "parameters.conf";
/// Where the machine's lies.
const OF_MACHINE: &str = "/etc/zilla";
/// No file is longer, in bytes: a line for each tunable takes a tenth of it.
const LONGEST: u64 = 64 << 10;

/// Takes over what the files say.
pub fn apply(state: &Path) {
    let of_machine = rustix::process::geteuid().is_root().then(|| PathBuf::from(OF_MACHINE));
    for dir in of_machine.iter().map(PathBuf::as_path).chain([state]) {
        let path = dir.join(NAME);
        let wrong = match read(&path) {
            Ok(text) => take(&text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => {
                tracing::error!("'{}': {e}; none of its lines counts", path.display());
                continue;
            }
        };
        for (line, why) in wrong {
            tracing::error!("'{}', line {line}: {why}", path.display());
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    if file.take(LONGEST + 1).read_to_string(&mut text)? as u64 > LONGEST {
        return Err(std::io::Error::other(format!("the file is longer than {LONGEST} bytes")));
    }
    Ok(text)
}

/// Sets what the lines say; which lines say nothing, and why.
fn take(text: &str) -> Vec<(usize, String)> {
    let mut wrong = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if let Err(why) = take_line(line) {
            wrong.push((i + 1, why));
        }
    }
    wrong
}

fn take_line(line: &str) -> Result<(), String> {
    let (name, value) = line
        .split_once('=')
        .ok_or_else(|| format!("'{line}' is not name=value; write one tunable a line"))?;
    let (name, value) = (name.trim(), value.trim());
    let tunable = tunables::ALL.iter().find(|t| t.name == name).ok_or_else(|| {
        format!("there is no tunable '{name}'; take the line out, zillad(8) says where all names are listed")
    })?;
    let number = parameters::read(tunable, value).ok_or_else(|| match tunable.words() {
        [] => format!("'{value}' is no number for {name}; write one such as 4096, 64K, 2G or 0x1000"),
        words => format!("'{value}' is not for {name}; write one of {}", words.join(", ")),
    })?;
    tunable.set(number);
    tracing::info!("{name} is {}", tunable.text());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_count_one_by_one_and_wrong_ones_are_told() {
        let text = "# of this machine\n\
                    zfs_txg_history = 0x20   # hexadecimal, as OpenZFS's module takes it\n\
                    \n\
                    zfs_no_such_thing=1\n\
                    zfs_slow_io_events_per_second=many\n\
                    options zfs\n\
                    zfs_rebuild_max_segment=2M\n";
        let named = |name: &str| *tunables::ALL.iter().find(|t| t.name == name).unwrap();
        let largest = named("zfs_rebuild_max_segment");
        let wrong = take(text);
        assert_eq!((tunables::TXG_HISTORY.get(), largest.get()), (32, 2 << 20));
        assert_eq!(wrong.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4, 5, 6]);
        for ((_, why), part) in
            wrong.iter().zip(["no tunable 'zfs_no_such_thing'", "'many' is no number", "not name=value"])
        {
            assert!(why.contains(part), "{why}");
        }
        assert!(take("zfs_deadman_failmode=perhaps")[0].1.ends_with("write one of wait, continue, panic"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        std::fs::write(&path, "#".repeat(LONGEST as usize + 1)).unwrap();
        assert!(read(&path).is_err());
        for t in [&tunables::TXG_HISTORY, largest] {
            t.set(t.default);
        }
    }
}
