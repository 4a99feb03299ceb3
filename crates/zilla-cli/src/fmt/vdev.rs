//! Names and states of vdevs, and walks through their tree in printing order.

use zilla_control::types::{AllocClass, PoolInfo, VdevAux, VdevKind, VdevNode, VdevState};

/// How to name vdevs: `-g`, `-L`, `-P`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NameFlags {
    pub guid: bool,
    pub follow_links: bool,
    pub path: bool,
}

impl NameFlags {
    /// Some of the names may be asked for by the environment.
    pub fn from_env() -> NameFlags {
        let set = |name: &str| {
            std::env::var(name).is_ok_and(|v| {
                v.parse::<u64>().is_ok_and(|n| n > 0)
                    || ["YES", "ON"].iter().any(|w| v.eq_ignore_ascii_case(w))
            })
        };
        NameFlags {
            guid: set("ZPOOL_VDEV_NAME_GUID"),
            follow_links: set("ZPOOL_VDEV_NAME_FOLLOW_LINKS"),
            path: set("ZPOOL_VDEV_NAME_PATH"),
        }
    }
}

/// A vdev's name; `type_id` gives groups their number (`mirror-0`).
pub fn name(vdev: &VdevNode, flags: NameFlags, type_id: bool) -> String {
    if vdev.not_present || flags.guid {
        return vdev.guid.to_string();
    }
    if let Some(path) = &vdev.path {
        let mut path = path.clone();
        if flags.follow_links
            && let Ok(real) = std::fs::canonicalize(&path)
        {
            path = real.to_string_lossy().into_owned();
        }
        if vdev.kind == VdevKind::Disk && !flags.path {
            path = strip_path(&path).to_owned();
        }
        if vdev.whole_disk && !flags.path {
            path = strip_partition(&path);
        }
        // (It is what the pool says, which may be a stranger's.)
        return super::one_line(&path).into_owned();
    }
    let mut name = vdev.kind.type_name().to_owned();
    match vdev.kind {
        VdevKind::Raidz => name.push_str(&vdev.nparity.to_string()),
        VdevKind::Draid => {
            name = format!(
                "draid{}:{}d:{}c:{}s",
                vdev.nparity,
                vdev.draid_ndata,
                vdev.children.len(),
                vdev.draid_nspares
            );
        }
        _ => {}
    }
    if type_id {
        name.push_str(&format!("-{}", vdev.id));
    }
    name
}

/// `/dev/disk/by-id/x` is `x`, `/dev/x` is `x`; other paths stay whole.
fn strip_path(path: &str) -> &str {
    const ROOTS: &[&str] = &[
        "/dev/disk/by-vdev/",
        "/dev/mapper/",
        "/dev/disk/by-partlabel/",
        "/dev/disk/by-partuuid/",
        "/dev/disk/by-label/",
        "/dev/disk/by-uuid/",
        "/dev/disk/by-id/",
        "/dev/disk/by-path/",
        "/dev/",
    ];
    ROOTS.iter().find_map(|root| path.strip_prefix(root).filter(|rest| !rest.is_empty())).unwrap_or(path)
}

/// `sda1` is `sda`, `nvme0n1p1` is `nvme0n1`, `wwn-x-part1` is `wwn-x`; names without a partition
/// stay.
fn strip_partition(name: &str) -> String {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (head, _) = name.split_at(name.len() - digits);
    if digits == 0 {
        return name.to_owned();
    }
    if let Some(disk) = head.strip_suffix("-part") {
        return disk.to_owned();
    }
    if let Some(disk) = head.strip_suffix('p')
        && disk.ends_with(|c: char| c.is_ascii_digit())
    {
        return disk.to_owned();
    }
    let base = head.rsplit('/').next().unwrap_or(head);
    let letters = base.strip_prefix("sd").or(base.strip_prefix("hd")).or(base.strip_prefix("vd"));
    let letters = letters.or(base.strip_prefix("xvd"));
    match letters {
        Some(l) if !l.is_empty() && l.bytes().all(|b| b.is_ascii_lowercase()) => head.to_owned(),
        _ => name.to_owned(),
    }
}

/// The word for a state.
pub fn state_name(state: VdevState, aux: VdevAux) -> &'static str {
    match state {
        VdevState::Closed | VdevState::Offline => "OFFLINE",
        VdevState::Removed => "REMOVED",
        VdevState::CantOpen => match aux {
            VdevAux::CorruptData | VdevAux::BadLog => "FAULTED",
            VdevAux::SplitPool => "SPLIT",
            _ => "UNAVAIL",
        },
        VdevState::Faulted => "FAULTED",
        VdevState::Degraded => "DEGRADED",
        VdevState::Healthy => "ONLINE",
        VdevState::Unknown => "UNKNOWN",
    }
}

/// The same with a spare's own words.
pub fn spare_state_name(vdev: &VdevNode) -> &'static str {
    if vdev.stats.aux == VdevAux::Spared {
        "INUSE"
    } else if vdev.stats.state == VdevState::Healthy {
        "AVAIL"
    } else {
        state_name(vdev.stats.state, vdev.stats.aux)
    }
}

/// A pool's state in a word.
pub fn pool_state(pool: &PoolInfo) -> &'static str {
    if pool.suspended.is_some() {
        "SUSPENDED"
    } else {
        state_name(pool.root.stats.state, pool.root.stats.aux)
    }
}

/// The classes printed after the normal vdevs, with their headings.
pub const CLASSES: &[(AllocClass, &str)] =
    &[(AllocClass::Dedup, "dedup"), (AllocClass::Special, "special"), (AllocClass::Log, "logs")];

/// Children that are printed below their parent: no holes, no logs, no special classes.
pub fn normal_children(vdev: &VdevNode) -> impl Iterator<Item = &VdevNode> {
    vdev.children.iter().filter(|c| c.kind != VdevKind::Hole && !is_classed(c))
}

/// Top-level vdevs of one class.
pub fn class_children(root: &VdevNode, class: AllocClass) -> impl Iterator<Item = &VdevNode> {
    root.children.iter().filter(move |c| {
        c.class == class
            && c.kind != VdevKind::Hole
            && (class == AllocClass::Log || c.kind != VdevKind::Indirect)
    })
}

fn is_classed(vdev: &VdevNode) -> bool {
    matches!(vdev.class, AllocClass::Log | AllocClass::Special | AllocClass::Dedup)
}

/// The vdev that a word on the command line names: by guid, by path or its last part, or by the
/// name that is printed. With it `Spare` or `Cache` where it is such a device, else `Normal`.
pub fn find<'a>(pool: &'a PoolInfo, word: &str) -> Option<(&'a VdevNode, AllocClass)> {
    let lists = [
        (&pool.root.children, AllocClass::Normal),
        (&pool.spares, AllocClass::Spare),
        (&pool.l2cache, AllocClass::Cache),
    ];
    lists.into_iter().find_map(|(list, class)| Some((list.iter().find_map(|v| below(v, word))?, class)))
}

fn below<'a>(v: &'a VdevNode, word: &str) -> Option<&'a VdevNode> {
    let real = |path: &str| std::fs::canonicalize(path).ok();
    let path = v.path.as_deref().unwrap_or_default();
    let same = v.kind != VdevKind::Hole
        && (word.parse() == Ok(v.guid)
            || word == path
            || word == name(v, NameFlags::default(), true)
            || (!path.is_empty() && path.strip_prefix("/dev/") == Some(word))
            || (word.starts_with('/') && real(word).is_some_and(|r| real(path) == Some(r))));
    if same { Some(v) } else { v.children.iter().find_map(|c| below(c, word)) }
}

/// The width that the names of a pool's vdevs need, indented two for each level.
pub fn max_width(pool: &PoolInfo, flags: NameFlags, type_id: bool) -> usize {
    let mut max = pool.name.len();
    let lists = pool.root.children.iter().chain(&pool.l2cache).chain(&pool.spares);
    for vdev in lists {
        max = max.max(width(vdev, 2, flags, type_id));
    }
    max
}

fn width(vdev: &VdevNode, depth: usize, flags: NameFlags, type_id: bool) -> usize {
    let own = name(vdev, flags, type_id).chars().count() + depth;
    vdev.children.iter().map(|c| width(c, depth + 2, flags, type_id)).fold(own, usize::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let flags = NameFlags::default();
        let mut disk = VdevNode { path: Some("/dev/disk/by-id/wwn-5-part1".into()), ..VdevNode::default() };
        assert_eq!(name(&disk, flags, true), "wwn-5-part1");
        disk.whole_disk = true;
        assert_eq!(name(&disk, flags, true), "wwn-5");
        assert_eq!(name(&disk, NameFlags { path: true, ..flags }, true), "/dev/disk/by-id/wwn-5-part1");
        for (path, short) in [("/dev/sda1", "sda"), ("/dev/nvme0n1p1", "nvme0n1"), ("/dev/md0", "md0")] {
            disk.path = Some(path.into());
            assert_eq!(name(&disk, flags, true), short);
        }
        let file = VdevNode { kind: VdevKind::File, path: Some("/tmp/a1".into()), ..VdevNode::default() };
        assert_eq!(name(&file, flags, true), "/tmp/a1");
        let raidz = VdevNode { kind: VdevKind::Raidz, nparity: 2, id: 3, ..VdevNode::default() };
        assert_eq!(name(&raidz, flags, true), "raidz2-3");
        assert_eq!(name(&raidz, flags, false), "raidz2");
    }
}
