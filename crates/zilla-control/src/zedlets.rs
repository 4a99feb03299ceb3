//! Programs that are run for events, as OpenZFS's event daemon runs its zedlets: which of a folder,
//! and what they are told.

use crate::types::{EventInfo, EventValue, vdev_state_word};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where programs look for others, if nothing else is said.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whether only this process's user or root can have written this.
pub fn own(path: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    std::fs::metadata(path).is_ok_and(|m| (m.uid() == uid || m.uid() == 0) && m.mode() & 0o022 == 0)
}

fn subclass(class: &str) -> &str {
    class.rsplit('.').next().unwrap_or(class)
}

/// The programs of a folder for a class, in the order of their names: those that begin with `all`,
/// the class or the last part of it, and then something that is no letter. Unless they are taken
/// for `anybodys`, nobody but this process's user or root may have been able to write them.
pub fn programs(dir: &Path, class: &str, anybodys: bool) -> Vec<PathBuf> {
    let own = |path: &Path| anybodys || own(path);
    if !own(dir) {
        return Vec::new();
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let ends = |rest: &str| rest.chars().next().is_some_and(|c| !c.is_ascii_alphabetic());
    let wanted = |name: &str| {
        ["all", class, subclass(class)].iter().any(|begin| name.strip_prefix(begin).is_some_and(ends))
    };
    let runs = |path: &PathBuf| {
        own(path) && std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o100 != 0)
    };
    let named = entries.flatten().filter(|e| e.file_name().to_str().is_some_and(wanted));
    let mut found: Vec<PathBuf> = named.map(|e| e.path()).filter(runs).collect();
    found.sort();
    found
}

/// What a program is told of an event, by the names that zedlets know.
pub fn environment(event: &EventInfo) -> Vec<(String, String)> {
    let mut all = vec![
        ("ZED_PID".to_owned(), std::process::id().to_string()),
        ("ZEVENT_EID".to_owned(), event.eid.to_string()),
        ("ZEVENT_CLASS".to_owned(), event.class.clone()),
        ("ZEVENT_SUBCLASS".to_owned(), subclass(&event.class).to_owned()),
        ("ZEVENT_TIME".to_owned(), format!("{} {}", event.seconds, event.nanoseconds)),
        ("ZEVENT_TIME_SECS".to_owned(), event.seconds.to_string()),
        ("ZEVENT_TIME_NSECS".to_owned(), event.nanoseconds.to_string()),
    ];
    let said = |name: &str| matches!(name, "class" | "time" | "eid");
    for (name, value) in event.fields.iter().filter(|(name, _)| !said(name)) {
        // As OpenZFS's tools take them.
        let number = |n: &u64| match name.ends_with("_guid") || name.ends_with("_guids") {
            true => format!("{n:#018x}"),
            false => n.to_string(),
        };
        let text = match value {
            EventValue::Number(n) => number(n),
            EventValue::Numbers(all) => all.iter().map(number).collect::<Vec<_>>().join(" "),
            EventValue::Text(text) => text.replace('\0', ""),
            EventValue::Texts(all) => all.join(" ").replace('\0', ""),
        };
        let variable = variable(name);
        if let (true, EventValue::Number(n)) =
            (matches!(name.as_str(), "vdev_state" | "vdev_laststate"), value)
        {
            all.push((format!("{variable}_STR"), vdev_state_word(*n).to_owned()));
        }
        all.push((variable, text));
    }
    all
}

fn variable(name: &str) -> String {
    let bare = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    "ZEVENT_".chars().chain(bare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_chosen_by_name_and_must_be_ours() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for (name, mode) in [
            ("all-log", 0o700),
            ("statechange-mail", 0o755),
            ("statechange", 0o755),
            ("statechanges-mail", 0o755),
            ("scrub_finish-mail", 0o755),
            ("all-open", 0o777),
            ("all-text", 0o600),
            ("all.more", 0o700),
            ("resource.fs.zfs.statechange-x", 0o755),
        ] {
            std::fs::write(dir.path().join(name), "").unwrap();
            std::fs::set_permissions(dir.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        let names: Vec<String> = programs(dir.path(), "resource.fs.zfs.statechange", false)
            .iter()
            .map(|p| p.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["all-log", "all.more", "resource.fs.zfs.statechange-x", "statechange-mail"]);
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(programs(dir.path(), "resource.fs.zfs.statechange", false).is_empty());
        let names = programs(dir.path(), "sysevent.fs.zfs.config_sync", true);
        assert_eq!(names, ["all-log", "all-open", "all.more"].map(|name| dir.path().join(name)));
    }

    #[test]
    fn what_is_known_of_an_event_is_told_as_openzfs_tells_it() {
        let number = |name: &str, n| (name.to_owned(), EventValue::Number(n));
        let fields = vec![
            ("class".to_owned(), EventValue::Text("x".into())),
            ("pool".to_owned(), EventValue::Text("tank".into())),
            number("pool_guid", 0xff),
            number("pool_state", 0),
            number("vdev_state", 5),
            number("vdev_cksum_errors", 1),
            ("vdev.spare-paths".to_owned(), EventValue::Texts(vec!["a".into(), "b".into()])),
        ];
        let class = "ereport.fs.zfs.checksum".to_owned();
        let told = environment(&EventInfo { eid: 3, class, seconds: 9, nanoseconds: 7, fields });
        let of = |name: &str| told.iter().find(|(n, _)| n == name).map(|(_, text)| text.as_str());
        assert_eq!(of("ZEVENT_CLASS"), Some("ereport.fs.zfs.checksum"));
        assert_eq!(of("ZEVENT_SUBCLASS"), Some("checksum"));
        assert_eq!(of("ZEVENT_TIME"), Some("9 7"));
        assert_eq!(of("ZEVENT_POOL"), Some("tank"));
        assert_eq!(of("ZEVENT_POOL_GUID"), Some("0x00000000000000ff"));
        assert_eq!((of("ZEVENT_VDEV_STATE"), of("ZEVENT_VDEV_STATE_STR")), (Some("5"), Some("FAULTED")));
        assert_eq!((of("ZEVENT_POOL_STATE"), of("ZEVENT_POOL_STATE_STR")), (Some("0"), None));
        assert_eq!(of("ZEVENT_VDEV_CKSUM_ERRORS"), Some("1"));
        assert_eq!(of("ZEVENT_VDEV_SPARE_PATHS"), Some("a b"));
        assert_eq!(told.iter().filter(|(n, _)| n == "ZEVENT_CLASS").count(), 1);
    }
}
