//! What a sender leaves out of a package because he was told to (`zfs send -R` with `-s` or
//! `-X`), or because it is being received itself, and what a receiver therefore spares.
//!
//! OpenZFS's package lists what is in it and nothing else, and its `zfs receive -F` takes all that
//! is missing for destroyed: a dataset that was left out this time, but not before, is destroyed
//! where it was received. Ours lists also what was left out, under a name that OpenZFS passes over,
//! so that `-F` means what it says: what is not there any more at the sender goes. Who receives a
//! package of OpenZFS's cannot know.

use super::errors::{Answer, of_dataset};
use super::follow::{is_below, snapshots_in};
use super::receive::target_of;
use std::collections::BTreeSet;
use zilla::tree::{DatasetDir, DatasetRef};
use zilla_control::types::StreamReceive;
use zilla_ondisk::NvList;
use zilla_ondisk::NvValue;

/// In a package: datasets by name, each with its snapshots and their guids.
const LIST: &str = "zilla:left_out";

/// Adds a dataset, and those below, to what a package says was left out.
pub(super) async fn note(dir: DatasetDir, list: &mut NvList) -> Answer<()> {
    let mut todo = vec![dir];
    while let Some(dir) = todo.pop() {
        if !dir.has_head() {
            continue;
        }
        let head = dir.head().await.map_err(of_dataset)?;
        let snapshots = head.snapshots().await.map_err(of_dataset)?;
        let snapshots: NvList =
            snapshots.iter().map(|s| (s.snapshot_name(), NvValue::from(s.guid()))).collect();
        list.add(dir.name(), snapshots);
        todo.extend(dir.children().await.map_err(of_dataset)?);
    }
    Ok(())
}

/// Writes it into the package, if there is anything.
pub(super) fn seal(list: NvList, package: &mut NvList) {
    if list.iter().len() > 0 {
        package.add(LIST, list);
    }
}

/// What a receiver spares.
#[derive(Default)]
pub(super) struct LeftOut {
    /// Names here.
    names: Vec<String>,
    /// Guids of their snapshots, by which they are known under any name.
    snapshots: BTreeSet<u64>,
}

impl LeftOut {
    /// `top`: the package's first dataset, by its name at the sender.
    pub(super) fn read(r: &StreamReceive, top: Option<&str>, package: &NvList) -> Answer<LeftOut> {
        let mut found = LeftOut::default();
        for (name, snapshots) in package.list(LIST).into_iter().flat_map(NvList::iter) {
            let target = target_of(r, &format!("{name}@x"), top)?;
            found.names.push(target.split('@').next().unwrap_or_default().to_owned());
            if let NvValue::List(snapshots) = snapshots {
                found.snapshots.extend(snapshots_in(snapshots).map(|(_, guid)| guid));
            }
        }
        Ok(found)
    }

    pub(super) fn has(&self, name: &str, snapshots: &[DatasetRef]) -> bool {
        self.names.iter().any(|left| left == name || is_below(name, left))
            || snapshots.iter().any(|s| self.snapshots.contains(&s.guid()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_known_by_its_name_here_and_a_stranger_is_refused() {
        let r = StreamReceive { target: "tank/back".into(), ..StreamReceive::default() };
        let package = |name: &str| {
            let (mut list, mut package) = (NvList::new(), NvList::new());
            list.add(name, NvList::new());
            seal(list, &mut package);
            LeftOut::read(&r, Some("X/a"), &package)
        };
        let found = package("X/a/b").unwrap();
        for (name, spared) in [
            ("tank/back/b", true),
            ("tank/back/b/c", true),
            ("tank/back/bc", false),
            ("tank/back", false),
            ("X/a/b", false),
        ] {
            assert_eq!(found.has(name, &[]), spared, "{name}");
        }
        assert!(package("Y/b").is_err());
        let mut nothing = NvList::new();
        seal(NvList::new(), &mut nothing);
        assert!(nothing == NvList::new());
        assert!(!LeftOut::read(&r, Some("X/a"), &nothing).unwrap().has("tank/back/b", &[]));
    }
}
