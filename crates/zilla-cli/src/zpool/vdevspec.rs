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
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Files {
            let dir = tempfile::tempdir().unwrap();
            for name in ["a", "b", "c", "d", "e", "f"] {
                std::fs::File::create(dir.path().join(name)).unwrap().set_len(64 << 20).unwrap();
            }
            std::fs::File::create(dir.path().join("big")).unwrap().set_len(128 << 20).unwrap();
            Files(dir)
        }

        /// `@a` stands for the file `a`.
        fn words(&self, text: &str) -> Vec<String> {
            let path = |w: &str| match w.strip_prefix('@') {
                Some(name) => self.0.path().join(name).to_str().unwrap().to_owned(),
                None => w.to_owned(),
            };
            text.split_whitespace().map(path).collect()
        }

        fn shape(&self, text: &str) -> String {
            match parse(&self.words(text)) {
                Ok(spec) => {
                    let tops =
                        spec.tops.iter().map(|t| format!("{:?}/{:?}*{}", t.kind, t.class, t.leaves.len()));
                    let tops: Vec<_> = tops.collect();
                    format!("{} spares {} cache {}", tops.join(" "), spec.spares.len(), spec.l2cache.len())
                }
                Err(SpecError::Invalid(lines) | SpecError::Overridable(lines)) => lines.join("|"),
            }
        }
    }

    #[test]
    fn grammar() {
        let f = Files::new();
        for (text, shape) in [
            ("@a @b", "Single/Normal*1 Single/Normal*1 spares 0 cache 0"),
            ("mirror @a @b mirror @c @d", "Mirror/Normal*2 Mirror/Normal*2 spares 0 cache 0"),
            ("raidz2 @a @b @c spare @d", "Raidz { parity: 2 }/Normal*3 spares 1 cache 0"),
            ("@a log mirror @b @c cache @d @e", "Single/Normal*1 Mirror/Log*2 spares 0 cache 2"),
            (
                "@a special mirror @b @c dedup @d",
                "Single/Normal*1 Mirror/Special*2 Single/Dedup*1 spares 0 cache 0",
            ),
            ("log @b mirror @c @d", "Single/Log*1 Mirror/Log*2 spares 0 cache 0"),
            ("mirror @a", "invalid vdev specification: mirror requires at least 2 devices"),
            ("raidz3 @a @b @c", "invalid vdev specification: raidz3 requires at least 4 devices"),
            ("@a log", "invalid vdev specification: log requires at least 1 device"),
            ("@a log @b log @c", "invalid vdev specification: 'log' can be specified only once"),
            ("@a spare @b spare @c", "invalid vdev specification: 'spare' can be specified only once"),
            ("@a log raidz @b @c", "invalid vdev specification: unsupported 'log' device: raidz"),
            ("spare @a", " spares 1 cache 0"),
            ("cache @a @b", " spares 0 cache 2"),
            (
                "nosuchdevice",
                "cannot open 'nosuchdevice': no such device in /dev|must be a full path or shorthand device name",
            ),
            (
                "@a spare draid1-0-0",
                "cannot open 'draid1-0-0': dRAID spares can only be used to replace primary vdevs",
            ),
            ("draid:1d:1s @a @b @c", "Draid { parity: 1, data: 1, spares: 1 }/Normal*3 spares 0 cache 0"),
            ("/no/such", "cannot resolve path '/no/such'"),
            ("/", "cannot use '/': must be a block device or regular file"),
            (
                "raidz4",
                "cannot open 'raidz4': no such device in /dev|must be a full path or shorthand device name",
            ),
        ] {
            assert_eq!(f.shape(text), shape, "{text}");
        }
    }

    #[test]
    fn replication() {
        let f = Files::new();
        for (text, doubt) in [
            ("mirror @a @b mirror @c @d", ""),
            ("raidz @a @b @c mirror @d @e", ""),
            ("@a mirror @b @c", "mismatched replication level: both file and mirror vdevs are present"),
            (
                "raidz2 @a @b @c mirror @d @e",
                "mismatched replication level: raidz and mirror vdevs with different redundancy, 2 vs. 1 (2-way) are present",
            ),
            (
                "mirror @a @b mirror @c @d @e",
                "mismatched replication level: both 2-way and 3-way mirror vdevs are present",
            ),
            (
                "raidz @a @b @c raidz2 @d @e @f",
                "mismatched replication level: raidz and raidz vdevs with different redundancy, 1 vs. 2 are present",
            ),
            ("draid:1d @a @b draid:1d @c @d @e", ""),
            ("raidz @a @b @c raidz @d @e", ""),
            ("mirror @a @big", "mirror contains devices of different sizes"),
            ("@a log mirror @b @c", ""),
            ("@a log mirror @b @big", ""),
        ] {
            let spec = parse(&f.words(text)).unwrap();
            let found = match check_replication(&spec) {
                Ok(()) => String::new(),
                Err(SpecError::Overridable(lines) | SpecError::Invalid(lines)) => lines.join("|"),
            };
            assert_eq!(found, doubt, "{text}");
        }
    }

    /// A pool of these vdevs: `raidz2*4`, `mirror*2 special`, `file log`.
    fn pool(tops: &str) -> PoolInfo {
        let mut pool = PoolInfo::default();
        for words in tops.split(',') {
            let (shape, class) = words.trim().split_once(' ').unwrap_or((words.trim(), ""));
            let (kind, children) = shape.split_once('*').unwrap_or((shape, "0"));
            let parity = kind.trim_start_matches(char::is_alphabetic).parse().unwrap_or(0);
            let kind = match kind.trim_end_matches(char::is_numeric) {
                "file" => VdevKind::File,
                "mirror" => VdevKind::Mirror,
                "raidz" => VdevKind::Raidz,
                "draid" => VdevKind::Draid,
                "hole" => VdevKind::Hole,
                "indirect" => VdevKind::Indirect,
                other => panic!("{other}"),
            };
            let class = match class {
                "log" => AllocClass::Log,
                "special" => AllocClass::Special,
                _ => AllocClass::Normal,
            };
            let children = vec![VdevNode::default(); children.parse().unwrap()];
            pool.root.children.push(VdevNode {
                kind,
                class,
                nparity: parity,
                children,
                ..VdevNode::default()
            });
        }
        pool
    }

    #[test]
    fn what_is_added_is_like_the_last_vdev_of_a_pool_of_one_kind() {
        let f = Files::new();
        let head = "mismatched replication level: pool";
        for (tops, text, doubt) in [
            ("mirror*2", "mirror @a @b", String::new()),
            (
                "mirror*2",
                "mirror @a @b @c",
                format!("{head} uses 2-way mirror and new vdev uses 3-way mirror"),
            ),
            ("mirror*2", "@a", format!("{head} uses mirror and new vdev is file")),
            ("mirror*2, file log, hole, indirect", "mirror @a @b", String::new()),
            ("mirror*2", "log @a", String::new()),
            ("mirror*2", "@a @b log @c", format!("{head} uses mirror and new vdev is file")),
            ("mirror*2, file", "raidz @a @b @c", String::new()),
            ("raidz1*3, mirror*2 special", "mirror @a @b", String::new()),
            ("raidz1*3, mirror*2 special", "raidz @a @b", String::new()),
            (
                "file, file special",
                "special mirror @a @b",
                format!("{head} uses file and new vdev is mirror"),
            ),
            ("raidz1*3", "raidz2 @a @b @c", format!("{head} uses 1 device parity and new vdev uses 2")),
            (
                "raidz1*3",
                "raidz @a @b @c @d",
                format!("{head} uses 3-way raidz and new vdev uses 4-way raidz"),
            ),
            ("raidz1*3", "mirror @a @b", String::new()),
            (
                "raidz2*4",
                "mirror @a @b",
                format!(
                    "{head} and new vdev with different redundancy, raidz and mirror vdevs, 2 vs. 1 (2-way)"
                ),
            ),
            (
                "mirror*3",
                "draid @a @b @c",
                format!(
                    "{head} and new vdev with different redundancy, draid and mirror vdevs, 1 vs. 2 (3-way)"
                ),
            ),
        ] {
            let spec = parse(&f.words(text)).unwrap();
            let found = match check_added(&pool(tops), &spec) {
                Ok(()) => String::new(),
                Err(SpecError::Overridable(lines) | SpecError::Invalid(lines)) => lines.join("|"),
            };
            assert_eq!(found, doubt, "{tops}: {text}");
        }
    }

    proptest! {
        #[test]
        fn survives_anything(words in proptest::collection::vec("(mirror|raidz[0-9]{0,2}|log|spare|cache|special|dedup|draid[:0-9]{0,3}|/|/dev/null|[a-z]{1,3})", 0..10)) {
            let _ = parse(&words);
        }
    }
}
