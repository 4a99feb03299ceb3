//! The files that the pool property `compatibility` names: which features a pool is kept to.
//!
//! They lie in three folders, and hold names of features, apart by blanks, commas and lines; `#`
//! begins a comment. The administrator's folder comes first, then that of the distribution's
//! OpenZFS, then the one that is installed with this program, so that the usual sets are there
//! without OpenZFS. Several files mean what all of them have. A file of the administrator's that
//! names a feature nobody knows is an error, one of the distribution's may be from a later version.

use std::path::{Path, PathBuf};
use zilla_control::props::feature_by_name;
use zilla_control::status::Compatibility;
use zilla_control::types::PoolInfo;

const LOCAL: &str = "/etc/zfs/compatibility.d";
const DISTRIBUTION: &str = "/usr/share/zfs/compatibility.d";
/// Below the prefix of the installation.
const INSTALLED: &str = "share/zilla/compatibility.d";
/// No set is longer; there are some fifty features. Source: ZFS_MAXPROPLEN.
const MOST: u64 = 16 << 10;

/// What a value of the property stands for, and what is to be said about it.
pub struct Sets {
    pub features: Compatibility,
    /// An error if `features` is `Broken`, else a warning.
    pub complaint: Option<String>,
}

/// Those of a pool.
pub fn of(pool: &PoolInfo) -> Compatibility {
    load(pool.properties.get("compatibility").map_or("off", |p| p.value.as_str())).features
}

/// Reads the sets that a value of the property names.
pub fn load(value: &str) -> Sets {
    let others: Vec<PathBuf> = [DISTRIBUTION.into()].into_iter().chain(installed()).collect();
    load_from(value, Path::new(LOCAL), &others)
}

/// The folder that is installed beside this program's.
fn installed() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.parent()?.join(INSTALLED))
}

fn load_from(value: &str, local: &Path, others: &[PathBuf]) -> Sets {
    let plain = |features| Sets { features, complaint: None };
    match value {
        "" | "off" | "-" => return plain(Compatibility::All),
        "legacy" => return plain(Compatibility::Legacy),
        _ => {}
    }
    let (mut listed, mut unknown_local, mut unknown) = (None::<Vec<String>>, Vec::new(), Vec::new());
    for file in value.split(',') {
        let of_others = || others.iter().find_map(|folder| read(file, folder));
        let own = read(file, local).map(|text| (text, true));
        let Some((text, own)) = own.or_else(|| Some((of_others()?, false))) else {
            let why = "no valid compatibility files specified".to_owned();
            return Sets { features: Compatibility::Broken, complaint: Some(why) };
        };
        let mut names = Vec::new();
        let words =
            text.lines().flat_map(|line| line.split('#').next().unwrap_or("").split([' ', '\t', ',']));
        for word in words.filter(|word| !word.is_empty()) {
            match feature_by_name(word) {
                Some(_) => names.push(word.to_owned()),
                None if own => unknown_local.push(file),
                None => unknown.push(file),
            }
        }
        listed = Some(match listed {
            None => names,
            Some(before) => before.into_iter().filter(|n| names.contains(n)).collect(),
        });
    }
    let told = |what: &str, files: &mut Vec<&str>| {
        files.dedup();
        Some(format!("{what}: {}", files.join(" ")))
    };
    if !unknown_local.is_empty() {
        let complaint = told("invalid feature name(s) in local compatibility files", &mut unknown_local);
        return Sets { features: Compatibility::Broken, complaint };
    }
    let features = Compatibility::Listed(listed.unwrap_or_default());
    match unknown.is_empty() {
        true => plain(features),
        false => {
            let what = "unrecognized feature name(s) in distribution compatibility files";
            Sets { features, complaint: told(what, &mut unknown) }
        }
    }
}

/// A set's text, if there is such a file in the folder.
fn read(file: &str, folder: &Path) -> Option<String> {
    if file.is_empty() || file.contains('/') || file.starts_with('.') {
        return None;
    }
    let path = folder.join(file);
    std::fs::metadata(&path).ok().filter(|m| m.is_file() && m.len() <= MOST)?;
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_intersected_and_complained_about() {
        let dir = tempfile::tempdir().unwrap();
        let [local, dist, own] = ["etc", "usr", "own"].map(|name| dir.path().join(name));
        [&local, &dist, &own].into_iter().for_each(|d| std::fs::create_dir_all(d).unwrap());
        std::fs::write(local.join("a"), "# all\nasync_destroy, lz4_compress\tbookmarks\n").unwrap();
        std::fs::write(local.join("bad"), "nonsense\n").unwrap();
        std::fs::write(dist.join("b"), "lz4_compress\nlater_one # not yet\n").unwrap();
        std::fs::write(dist.join("a"), "sha512\n").unwrap();
        std::fs::write(own.join("b"), "sha512\n").unwrap();
        std::fs::write(own.join("c"), "skein\n").unwrap();
        let load = |value: &str| load_from(value, &local, &[dist.clone(), own.clone()]);
        let listed = |names: &[&str]| Compatibility::Listed(names.iter().map(|n| (*n).to_owned()).collect());
        assert_eq!(load("off").features, Compatibility::All);
        assert_eq!(load("legacy").features, Compatibility::Legacy);
        assert_eq!(load("a").features, listed(&["async_destroy", "lz4_compress", "bookmarks"]));
        assert_eq!(load("c").features, listed(&["skein"]));
        let both = load("a,b");
        assert_eq!(both.features, listed(&["lz4_compress"]));
        let said = "unrecognized feature name(s) in distribution compatibility files: b";
        assert_eq!(both.complaint.as_deref(), Some(said));
        for value in ["none", "../etc/a", "a,", "bad"] {
            assert_eq!(load(value).features, Compatibility::Broken, "{value}");
            assert!(load(value).complaint.is_some(), "{value}");
        }
    }

    #[test]
    fn every_set_that_is_installed_names_features_and_no_others() {
        let sets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/compatibility.d");
        let none = Path::new("/nowhere");
        let mut n = 0;
        for entry in std::fs::read_dir(&sets).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let set = load_from(&name, none, std::slice::from_ref(&sets));
            assert!(set.complaint.is_none(), "{name}: {:?}", set.complaint);
            let Compatibility::Listed(features) = set.features else { panic!("{name}") };
            assert!(features.iter().any(|f| f == "lz4_compress"), "{name}");
            n += 1;
        }
        assert!(n > 40, "{n}");
    }
}
