//! The grammar of vdevs on the command line of `zpool create`.
//!
//! A word is a grouping (`mirror`, `raidz2`, `log`, ...) or a device. `mirror`, `raidz` and `draid`
//! (`draidspec.rs`) take the devices up to the next grouping; `log`, `special` and `dedup` say what
//! the vdevs after them are for; `spare` and `cache` collect devices. A device is an absolute path,
//! or a name to be looked up in `/dev`.

use super::draidspec;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use zilla_control::props::naming;
use zilla_control::types::{AllocClass, LeafSpec, PoolInfo, TopKind, TopSpec, VdevKind, VdevNode, VdevSpec};

const RAIDZ_MAXPARITY: u8 = 3;
const RAIDZ_MAXCHILDREN: usize = 255;
/// Sizes within a vdev may differ by so much before it is taken for a mistake.
const SIZE_FUZZ: u64 = 16 << 20;

/// What is wrong with a specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpecError {
    /// Lines to be printed as they are.
    Invalid(Vec<String>),
    /// Doubts that `-f` overrides.
    Overridable(Vec<String>),
}

fn invalid(message: impl AsRef<str>) -> SpecError {
    SpecError::Invalid(vec![format!("invalid vdev specification: {}", message.as_ref())])
}

/// A grouping word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Mirror,
    Raidz(u8),
    Draid(u8),
    Class(AllocClass),
}

fn group(word: &str) -> Option<Group> {
    Some(match word {
        "mirror" => Group::Mirror,
        "spare" => Group::Class(AllocClass::Spare),
        "log" => Group::Class(AllocClass::Log),
        "special" => Group::Class(AllocClass::Special),
        "dedup" => Group::Class(AllocClass::Dedup),
        "cache" => Group::Class(AllocClass::Cache),
        "raidz" => Group::Raidz(1),
        _ if word.starts_with("draid") => Group::Draid(draidspec::parity(word)?),
        _ => {
            // No leading zero, nothing behind the number: `raidz01` and `raidz1x` are names of
            // devices.
            let digits = word.strip_prefix("raidz").filter(|d| !d.starts_with('0') && !d.starts_with('+'))?;
            let parity = digits.parse().ok().filter(|p| (1..=RAIDZ_MAXPARITY).contains(p))?;
            Group::Raidz(parity)
        }
    })
}

/// Reads the words. Devices must exist.
pub fn parse(words: &[String]) -> Result<VdevSpec, SpecError> {
    let mut spec = VdevSpec::default();
    let mut class = AllocClass::Normal;
    let (mut seen_logs, mut logs) = (false, 0);
    let (mut seen_spares, mut seen_cache) = (false, false);
    let mut rest = words;
    while let Some((word, tail)) = rest.split_first() {
        let Some(found) = group(word) else {
            let leaves = vec![leaf(word)?];
            spec.tops.push(TopSpec { kind: TopKind::Single, class, leaves });
            logs += usize::from(class == AllocClass::Log);
            rest = tail;
            continue;
        };
        match found {
            Group::Class(AllocClass::Log) => {
                if seen_logs {
                    return Err(invalid("'log' can be specified only once"));
                }
                seen_logs = true;
                class = AllocClass::Log;
                rest = tail;
                continue;
            }
            Group::Class(c @ (AllocClass::Special | AllocClass::Dedup)) => {
                class = c;
                rest = tail;
                continue;
            }
            Group::Class(AllocClass::Spare) if seen_spares => {
                return Err(invalid("'spare' can be specified only once"));
            }
            Group::Class(AllocClass::Cache) if seen_cache => {
                return Err(invalid("'cache' can be specified only once"));
            }
            Group::Class(_) => class = AllocClass::Normal,
            Group::Raidz(_) | Group::Draid(_) if class != AllocClass::Normal => {
                let what = if class == AllocClass::Log { "log" } else { "special" };
                let kind = if matches!(found, Group::Raidz(_)) { "raidz" } else { "draid" };
                return Err(invalid(format!("unsupported '{what}' device: {kind}")));
            }
            Group::Mirror | Group::Raidz(_) | Group::Draid(_) => {}
        }
        let count = tail.iter().take_while(|w| group(w).is_none()).count();
        let (devices, tail) = tail.split_at(count);
        let leaves = devices.iter().map(|d| leaf(d)).collect::<Result<Vec<_>, _>>()?;
        let minimum = match found {
            Group::Mirror => 2,
            Group::Raidz(parity) | Group::Draid(parity) => usize::from(parity) + 1,
            _ => 1,
        };
        if leaves.len() < minimum {
            return Err(invalid(format!("{word} requires at least {minimum} devices")));
        }
        if matches!(found, Group::Raidz(_) | Group::Draid(_)) && leaves.len() > RAIDZ_MAXCHILDREN {
            return Err(invalid(format!("{word} supports no more than {RAIDZ_MAXCHILDREN} devices")));
        }
        match found {
            Group::Class(AllocClass::Spare) => (spec.spares, seen_spares) = (leaves, true),
            Group::Class(_) => (spec.l2cache, seen_cache) = (leaves, true),
            Group::Raidz(parity) => {
                spec.tops.push(TopSpec { kind: TopKind::Raidz { parity }, class, leaves });
            }
            Group::Draid(_) => {
                let kind = draidspec::kind(word, leaves.len() as u64)?;
                spec.tops.push(TopSpec { kind, class, leaves });
            }
            _ => {
                logs += usize::from(class == AllocClass::Log);
                spec.tops.push(TopSpec { kind: TopKind::Mirror, class, leaves });
            }
        }
        rest = tail;
    }
    if spec.tops.is_empty() && spec.spares.is_empty() && spec.l2cache.is_empty() {
        return Err(invalid("at least one toplevel vdev must be specified"));
    }
    if seen_logs && logs == 0 {
        return Err(invalid("log requires at least 1 device"));
    }
    Ok(spec)
}

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaf {
    Disk,
    File,
}

pub fn leaf(word: &str) -> Result<LeafSpec, SpecError> {
    if naming::is_draid_spare(word) {
        let what = format!("cannot open '{word}': dRAID spares can only be used to replace primary vdevs");
        return Err(SpecError::Invalid(vec![what]));
    }
    let path = if word.starts_with('/') {
        if Path::new(word).canonicalize().is_err() {
            return Err(SpecError::Invalid(vec![format!("cannot resolve path '{word}'")]));
        }
        word.to_owned()
    } else {
        let path = format!("/dev/{word}");
        if !Path::new(&path).exists() {
            return Err(SpecError::Invalid(vec![
                format!("cannot open '{word}': no such device in /dev"),
                "must be a full path or shorthand device name".to_owned(),
            ]));
        }
        path
    };
    match kind_of(&path) {
        Some(_) => Ok(LeafSpec { path }),
        None => Err(SpecError::Invalid(vec![format!(
            "cannot use '{path}': must be a block device or regular file"
        )])),
    }
}

fn kind_of(path: &str) -> Option<Leaf> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    if kind.is_block_device() {
        Some(Leaf::Disk)
    } else if kind.is_file() {
        Some(Leaf::File)
    } else {
        None
    }
}

/// The size of a file; a device's is the daemon's to find out.
fn size_of(path: &str) -> Option<u64> {
    std::fs::metadata(path).ok().map(|m| m.len()).filter(|&size| size != 0)
}

/// How much a top-level vdev can lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Replication {
    name: &'static str,
    parity: u64,
    children: u64,
}

/// Doubts about redundancy: mixed kinds, widths and sizes. Checked only without `-f`.
pub fn check_replication(spec: &VdevSpec) -> Result<(), SpecError> {
    let mut doubts = Vec::new();
    let mut last: Option<Replication> = None;
    for top in &spec.tops {
        // Logs need not be as redundant as the rest.
        if top.class == AllocClass::Log {
            continue;
        }
        let this = replication(top);
        if top.kind != TopKind::Single {
            leaf_doubts(top, this.name, &mut doubts);
        }
        if let Some(last) = last {
            doubts.extend(mismatch(last, this));
        }
        last = Some(this);
    }
    if doubts.is_empty() { Ok(()) } else { Err(SpecError::Overridable(doubts)) }
}

/// The same where vdevs are added to a pool that has some. Of a pool that is mixed itself nothing
/// is asked; of another its last vdev says what the new ones should be.
pub fn check_added(pool: &PoolInfo, spec: &VdevSpec) -> Result<(), SpecError> {
    let Some(old) = replication_of(pool) else { return Ok(()) };
    check_replication(spec)?;
    let new = spec.tops.iter().rfind(|t| t.class != AllocClass::Log).map(replication);
    let Some(new) = new else { return Ok(()) };
    // Of disks and files one is as good as the other.
    let single = |r: Replication| matches!(r.name, "disk" | "file");
    if single(old) && single(new) {
        return Ok(());
    }
    let head = "mismatched replication level:";
    let line = if let Some((raidz, mirror)) = raidz_and_mirror(old, new) {
        let spare = mirror.children.saturating_sub(1);
        (raidz.parity != spare).then(|| {
            format!(
                "{head} pool and new vdev with different redundancy, {} and mirror vdevs, {} vs. {spare} \
                 ({}-way)",
                raidz.name, raidz.parity, mirror.children
            )
        })
    } else if old.name != new.name {
        Some(format!("{head} pool uses {} and new vdev is {}", old.name, new.name))
    } else if old.parity != new.parity {
        Some(format!("{head} pool uses {} device parity and new vdev uses {}", old.parity, new.parity))
    } else {
        (old.children != new.children).then(|| {
            format!(
                "{head} pool uses {}-way {} and new vdev uses {}-way {}",
                old.children, old.name, new.children, new.name
            )
        })
    };
    line.map_or(Ok(()), |line| Err(SpecError::Overridable(vec![line])))
}

/// What a pool's last vdev can lose; None where its vdevs are not of one kind.
fn replication_of(pool: &PoolInfo) -> Option<Replication> {
    let mut last: Option<Replication> = None;
    for top in &pool.root.children {
        if top.class == AllocClass::Log || matches!(top.kind, VdevKind::Hole | VdevKind::Indirect) {
            continue;
        }
        let this = Replication {
            name: top.kind.type_name(),
            parity: if matches!(top.kind, VdevKind::Raidz | VdevKind::Draid) { top.nparity } else { 0 },
            children: top.children.len().max(1) as u64,
        };
        let mixed = last.is_some_and(|last| mismatch(last, this).is_some());
        if mixed || differ(&sizes_within(top, &pool.spares)) {
            return None;
        }
        last = Some(this);
    }
    last
}

/// The sizes of a vdev's devices without spares that stand in.
fn sizes_within(top: &VdevNode, spares: &[VdevNode]) -> Vec<u64> {
    let first = |mut v: &VdevNode| {
        while let (VdevKind::Replacing | VdevKind::Spare, Some(child)) = (v.kind, v.children.first()) {
            v = child;
        }
        if spares.iter().any(|s| s.path == v.path) {
            return None;
        }
        v.path.as_deref().and_then(size_of).or(Some(v.stats.pspace)).filter(|&size| size != 0)
    };
    top.children.iter().filter_map(first).collect()
}

fn differ(sizes: &[u64]) -> bool {
    sizes.windows(2).any(|pair| pair[0].abs_diff(pair[1]) > SIZE_FUZZ)
}

fn replication(top: &TopSpec) -> Replication {
    let children = top.leaves.len() as u64;
    match top.kind {
        TopKind::Single => {
            let disk = top.leaves.first().and_then(|l| kind_of(&l.path)) == Some(Leaf::Disk);
            Replication { name: if disk { "disk" } else { "file" }, parity: 0, children: 1 }
        }
        TopKind::Mirror => Replication { name: "mirror", parity: 0, children },
        TopKind::Raidz { parity } => Replication { name: "raidz", parity: u64::from(parity), children },
        TopKind::Draid { parity, .. } => Replication { name: "draid", parity: u64::from(parity), children },
    }
}

fn leaf_doubts(top: &TopSpec, name: &str, doubts: &mut Vec<String>) {
    let kinds: Vec<_> = top.leaves.iter().filter_map(|l| kind_of(&l.path)).collect();
    if kinds.windows(2).any(|pair| pair[0] != pair[1]) {
        doubts.push(format!("mismatched replication level: {name} contains both files and devices"));
        return;
    }
    let sizes: Vec<u64> = top.leaves.iter().filter_map(|l| size_of(&l.path)).collect();
    if differ(&sizes) {
        doubts.push(format!("{name} contains devices of different sizes"));
    }
}

/// Of a raidz or draid and a mirror the mirror last: they are alike if they can lose as many
/// devices.
fn raidz_and_mirror(a: Replication, b: Replication) -> Option<(Replication, Replication)> {
    match (a.name, b.name) {
        ("raidz" | "draid", "mirror") => Some((a, b)),
        ("mirror", "raidz" | "draid") => Some((b, a)),
        _ => None,
    }
}

fn mismatch(last: Replication, this: Replication) -> Option<String> {
    let head = "mismatched replication level:";
    if let Some((raidz, mirror)) = raidz_and_mirror(last, this) {
        let spare = mirror.children.saturating_sub(1);
        return (raidz.parity != spare).then(|| {
            format!(
                "{head} {} and mirror vdevs with different redundancy, {} vs. {spare} ({}-way) are present",
                raidz.name, raidz.parity, mirror.children
            )
        });
    }
    // As with OpenZFS their widths are not looked at.
    if matches!(last.name, "raidz" | "draid") && matches!(this.name, "raidz" | "draid") {
        return (last.parity != this.parity).then(|| {
            format!(
                "{head} {} and {} vdevs with different redundancy, {} vs. {} are present",
                last.name, this.name, last.parity, this.parity
            )
        });
    }
    if last.name != this.name {
        return Some(format!("{head} both {} and {} vdevs are present", last.name, this.name));
    }
    (last.children != this.children).then(|| {
        format!("{head} both {}-way and {}-way {} vdevs are present", last.children, this.children, this.name)
    })
}

#[cfg(test)]
mod tests;
