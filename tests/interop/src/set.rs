//! Sets: where they are, what is in one.

use std::path::{Path, PathBuf};
use zilla_e2e::tree::host;

/// Where sets are: the repository's own, then what `ZILLA_CORPUS` or the judges beside the checkout
/// have.
pub fn folders() -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![here.join("corpus")];
    match std::env::var_os("ZILLA_CORPUS") {
        Some(dir) => folders.push(PathBuf::from(dir)),
        None => folders.push(here.join("../../../shared/judges/oracle/corpus/given")),
    }
    folders.retain(|f| f.is_dir());
    folders
}

/// A set's archive, if this machine has it.
pub fn find(name: &str) -> Option<PathBuf> {
    folders().into_iter().map(|f| f.join(format!("{name}.tar.zst"))).find(|p| p.is_file())
}

/// A set, unpacked.
pub struct Set {
    pub name: String,
    /// Folder of the images, and of nothing else that could be taken for one.
    pub disks: PathBuf,
    desc: PathBuf,
    spec: String,
    keys: String,
}

impl Set {
    #[track_caller]
    pub fn unpack(archive: &Path, name: &str, to: &Path) -> Set {
        host("tar", &["--zstd".as_ref(), "-xf".as_ref(), archive.as_os_str(), "-C".as_ref(), to.as_os_str()]);
        let dir = to.join(name);
        let read = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap_or_default();
        let set = Set {
            name: name.to_owned(),
            disks: dir.join("disks"),
            desc: dir.join("desc"),
            spec: read("spec.sh"),
            keys: read("keys"),
        };
        std::fs::create_dir(&set.disks).expect("folder");
        for entry in std::fs::read_dir(&dir).expect("set") {
            let path = entry.expect("set").path();
            if path.extension().is_some_and(|e| e == "img") {
                let target = set.disks.join(path.file_name().unwrap_or_default());
                // A whole disk has a partition table; the vdev is its first partition.
                match crate::gpt::first_partition(&path) {
                    Some(range) => crate::gpt::cut(&path, range, &target),
                    None => std::fs::rename(&path, &target).expect("image"),
                }
            }
        }
        set
    }

    /// Has it a pool? Some sets are of send streams alone.
    pub fn has_pool(&self) -> bool {
        std::fs::read_dir(&self.disks).is_ok_and(|mut d| d.next().is_some())
    }

    /// Was the pool left by a crash, with changes only its intent log knows? Its description is of
    /// after the replay.
    pub fn crashed(&self) -> bool {
        self.spec.lines().any(|l| l.starts_with("#: crash"))
    }

    /// File systems and snapshots that OpenZFS described, parents first: name and manifest.
    pub fn described(&self) -> Vec<(String, PathBuf)> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.desc.join("manifest")).expect("manifests") {
            let path = entry.expect("manifest").path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().replace("%2f", "/");
            found.push((stem, path));
        }
        found.sort();
        found
    }

    /// Encryption roots with their keys, in the form that each is given in.
    pub fn keys(&self) -> Vec<(&str, &str)> {
        let line = |l| -> Option<(&str, &str)> {
            let (name, rest): (&str, &str) = str::split_once(l, ' ')?;
            Some((name, rest.split_once(' ')?.1))
        };
        self.keys.lines().filter_map(line).collect()
    }

    /// What a command of OpenZFS printed of the pool.
    pub fn table(&self, file: &str) -> String {
        std::fs::read_to_string(self.desc.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
    }

    /// A property as OpenZFS printed it.
    pub fn property(&self, dataset: &str, property: &str) -> Option<String> {
        let table = self.table("zfs-get-all.tsv");
        table.lines().find_map(|line| {
            let mut words = line.split('\t');
            (words.next() == Some(dataset) && words.next() == Some(property))
                .then(|| words.next().map(str::to_owned))?
        })
    }
}
