//! What must be true of a set here.

use crate::set::Set;
use std::fs;
use std::path::{Path, PathBuf};
use zilla_e2e::manifest::{Manifest, differences, encode, read, scan};
use zilla_e2e::{Random, World, needs, pool};

const POOL: &str = "tank";
/// What [`write`] makes lies below this name.
const OURS: &str = "written by zilla";

/// A file system to be looked at, with its manifest, and its snapshots with theirs.
struct FileSystem {
    name: String,
    manifest: PathBuf,
    snapshots: Vec<(String, PathBuf)>,
}

/// A set in a world of its own: unpacked, and imported below the world's `mnt`.
struct Imported {
    world: World,
    set: Set,
}

impl Imported {
    #[track_caller]
    fn unpacked(archive: &Path, name: &str) -> Imported {
        let world = World::new();
        let set = Set::unpack(archive, name, world.path());
        Imported { world, set }
    }

    /// None where the set has no pool, only streams.
    #[track_caller]
    fn new(archive: &Path, name: &str, options: &str) -> Option<Imported> {
        let imported = Imported::unpacked(archive, name);
        if !imported.set.has_pool() {
            eprintln!("{name}: has no pool");
            return None;
        }
        // Of a machine that did not say goodbye.
        let force = if imported.set.crashed() { "-f " } else { "" };
        imported.import(&format!("{force}{options}"));
        Some(imported)
    }

    #[track_caller]
    fn import(&self, options: &str) {
        self.world.zpool(&self.import_command(options)).ok();
        for (root, key) in self.set.keys() {
            let file = self.world.path().join("key");
            // The right key with something changed is refused, and nothing is loaded.
            fs::write(&file, format!("{}\n", key.replace(['a', 'e', 'o', '0', '1'], "7"))).expect("key");
            let load = format!("load-key -L file://{} {root}", file.display());
            let said = self.world.zfs(&load).fails();
            assert!(said.contains(&format!("Incorrect key provided for '{root}'.")), "{said}");
            let locked = self.world.zfs(&format!("mount {root}")).fails();
            assert!(locked.contains("encryption key not loaded"), "{locked}");
            fs::write(&file, format!("{key}\n")).expect("key");
            self.world.zfs(&load).ok();
        }
    }

    fn import_command(&self, options: &str) -> String {
        let (disks, mnt) = (self.set.disks.display(), self.world.mnt());
        format!("import {options} -N -d {disks} -R {} {POOL}", mnt.display())
    }

    /// File systems to be looked at: those with no mountpoint aside.
    fn file_systems(&self) -> Vec<FileSystem> {
        let described = self.set.described();
        let mut found = Vec::new();
        for (name, manifest) in described.iter().filter(|(n, _)| !n.contains('@')) {
            if self.set.property(name, "mountpoint").is_some_and(|m| m == "legacy" || m == "none") {
                continue;
            }
            let of = |n: &str| n.strip_prefix(&format!("{name}@")).map(str::to_owned);
            let snapshots = described.iter().filter_map(|(n, m)| Some((of(n)?, m.clone()))).collect();
            found.push(FileSystem { name: name.clone(), manifest: manifest.clone(), snapshots });
        }
        found
    }

    /// Mounts one file system alone (a read-only parent has no room for a child's mountpoint),
    /// works on it, and unmounts it.
    #[track_caller]
    fn mounted<T>(&self, name: &str, work: impl FnOnce(&Path) -> T) -> T {
        self.world.zfs(&format!("mount {name}")).ok();
        let place =
            PathBuf::from(self.world.zfs(&format!("get -H -o value mountpoint {name}")).ok().trim_end());
        assert!(self.world.mounts().contains(&place), "{name} is not mounted on {}", place.display());
        let result = work(&place);
        self.world.zfs(&format!("unmount {name}")).ok();
        // The next one may be its parent, whose mountpoint has to be empty.
        let mut folder = place.as_path();
        while folder != self.world.mnt() && fs::remove_dir(folder).is_ok() {
            folder = folder.parent().unwrap_or(folder);
        }
        result
    }
}

/// Facts that are not compared: those only an ioctl tells, those FUSE does not pass on, and those
/// an ordinary user may not see.
fn never(key: &str) -> bool {
    matches!(key, "attributes" | "xflags" | "projid" | "data" | "blocks" | "btime")
        || (!needs::is_root() && (key.starts_with("xattr trusted.") || key == "sha256" || key == "error"))
}

/// Imports the set without writing, and compares everything. A panic names what is different.
#[track_caller]
pub fn read_only(archive: &Path, name: &str) {
    let Some(it) = Imported::new(archive, name, "-o readonly=on") else { return };
    let mut wrong = tables(&it);
    let mut files = 0;
    for FileSystem { name: dataset, manifest, snapshots } in it.file_systems() {
        it.mounted(&dataset, |place| {
            let found = scan(place);
            files += found.len();
            if it.set.crashed() {
                // Its intent log is not replayed on a read-only pool, so the description is of
                // another time.
                wrong.extend(
                    found
                        .iter()
                        .filter(|(_, f)| f.contains_key("error"))
                        .map(|(p, f)| format!("{dataset} '{p}': {f:?}")),
                );
                return;
            }
            wrong.extend(compare(&dataset, &read(&manifest), &found, &|_, key| never(key)));
            for (snapshot, manifest) in snapshots {
                let found = scan_snapshot(place, &snapshot);
                files += found.len();
                wrong.extend(compare(
                    &format!("{dataset}@{snapshot}"),
                    &read(&manifest),
                    &found,
                    &|_, key| never(key),
                ));
            }
        });
    }
    assert!(wrong.is_empty(), "{name}: {} differences\n{}", wrong.len(), wrong.join("\n"));
    assert!(files > 0, "{name}: nothing was compared");
    eprintln!("{name}: {files} files as described");
    it.world.zpool(&format!("export {POOL}")).ok();
}

/// What our commands print of the pool beside what OpenZFS's printed, line by line.
fn tables(it: &Imported) -> Vec<String> {
    // The description of a crashed pool is of after the replay.
    if it.set.crashed() {
        return Vec::new();
    }
    let columns = "name,type,used,referenced,logicalreferenced,origin,creation,guid,createtxg";
    let kinds = "filesystem,volume,snapshot,bookmark";
    let mut wrong = Vec::new();
    for (file, ours) in [
        ("zfs-get-all.tsv", it.world.zfs(&format!("get -r -pH -t {kinds} all {POOL}")).ok()),
        ("zfs-list.tsv", it.world.zfs(&format!("list -r -t all -pH -o {columns} {POOL}")).ok()),
        ("zpool-get-all.tsv", it.world.zpool(&format!("get -pH all {POOL}")).ok()),
        ("zpool-history.txt", it.world.zpool(&format!("history -il {POOL}")).ok()),
    ] {
        let lines = |text: &str| -> Vec<String> {
            let of_pool = |l: &&str| file != "zpool-get-all.tsv" || is_kept_in_the_pool(l);
            let lines = text.lines().filter(of_pool).filter(|l| !depends_on_the_host(l));
            lines.map(str::to_owned).collect()
        };
        let (theirs, ours) = (lines(&it.set.table(file)), lines(&ours));
        wrong.extend(theirs.iter().filter(|l| !ours.contains(l)).map(|l| format!("{file}: not here: {l}")));
        wrong.extend(ours.iter().filter(|l| !theirs.contains(l)).map(|l| format!("{file}: only here: {l}")));
    }
    wrong
}

/// Of a pool's properties those that are the same wherever it is imported.
fn is_kept_in_the_pool(line: &str) -> bool {
    let property = line.split('\t').nth(1).unwrap_or_default();
    ["feature@", "bclone", "dedup", "guid", "freeing", "leaked"].iter().any(|p| property.starts_with(p))
}

/// Where the pool is mounted, and how it was imported.
fn depends_on_the_host(line: &str) -> bool {
    let property = line.split('\t').nth(1).unwrap_or_default();
    ["mountpoint", "mounted", "available", "readonly"].contains(&property)
}

fn scan_snapshot(place: &Path, snapshot: &str) -> Manifest {
    scan(&place.join(".zfs/snapshot").join(snapshot))
}

fn compare(
    of: &str,
    expected: &Manifest,
    found: &Manifest,
    leave_out: &dyn Fn(&str, &str) -> bool,
) -> Vec<String> {
    differences(expected, found, leave_out).into_iter().map(|l| format!("{of} {l}")).collect()
}

/// Imports a copy of the set, writes to every file system, scrubs, exports, lets OpenZFS check it,
/// imports it again and compares. Then removes all it can, and lets OpenZFS check what is left.
#[track_caller]
pub fn read_write(archive: &Path, name: &str) {
    let Some(it) = Imported::new(archive, name, "") else { return };
    let systems: Vec<_> = it.file_systems().into_iter().filter(|f| writable(&it.set, &f.name)).collect();
    assert!(!systems.is_empty(), "{name}: nothing to write to");
    let mut written: Vec<Manifest> = Vec::new();
    for (i, system) in systems.iter().enumerate() {
        written.push(it.mounted(&system.name, |place| {
            write(&place.join(OURS), i as u64);
            scan(&place.join(OURS))
        }));
    }
    pool::scrub(&it.world, POOL);
    it.world.zpool(&format!("export {POOL}")).ok();
    pool::zdb_clean(&it.set.disks, POOL);
    it.world.stop();

    it.import("");
    let mut wrong = Vec::new();
    for (FileSystem { name: dataset, manifest, snapshots }, ours) in systems.iter().zip(&written) {
        it.mounted(dataset, |place| {
            let found = scan(place);
            let prefix = encode(OURS.as_bytes());
            let is_ours = |path: &str| path == prefix || path.starts_with(&format!("{prefix}/"));
            let (mine, theirs): (Manifest, Manifest) = found.into_iter().partition(|(path, _)| is_ours(path));
            let mine: Manifest = mine
                .into_iter()
                .map(|(path, facts)| (path[prefix.len()..].trim_start_matches('/').to_owned(), facts))
                .collect();
            wrong.extend(compare(dataset, ours, &mine, &|_, key| {
                never(key) || key == "atime" || key == "blocks"
            }));
            {
                // The root directory got an entry; reading may have moved access times; and what a
                // replay writes has its time.
                let crashed = it.set.crashed();
                let leave_out = |path: &str, key: &str| {
                    never(key)
                        || key == "atime"
                        || path.is_empty()
                        || (crashed && matches!(key, "mtime" | "ctime" | "blocks"))
                };
                wrong.extend(compare(dataset, &read(manifest), &theirs, &leave_out));
                for (snapshot, manifest) in snapshots {
                    let found = scan_snapshot(place, snapshot);
                    let of = format!("{dataset}@{snapshot}");
                    wrong.extend(compare(&of, &read(manifest), &found, &|_, key| never(key)));
                }
            }
            // What OpenZFS wrote can be given back, whatever shares it.
            wrong.extend(remove_all(place).err().map(|e| format!("{dataset}: remove: {e}")));
        });
    }
    for snapshot in systems.iter().flat_map(|s| s.snapshots.iter().map(|(n, _)| format!("{}@{n}", s.name))) {
        // Not one that is held, or has clones.
        it.world.zfs(&format!("destroy {snapshot}"));
    }
    assert!(wrong.is_empty(), "{name}: {} differences\n{}", wrong.len(), wrong.join("\n"));
    it.world.zpool(&format!("wait -t free {POOL}")).ok();
    it.world.zpool(&format!("export {POOL}")).ok();
    pool::zdb_clean(&it.set.disks, POOL);
}

fn remove_all(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?
        } else {
            fs::remove_file(entry.path())?
        }
    }
    Ok(())
}

/// May we write to it? OpenZFS's own list says.
fn writable(set: &Set, dataset: &str) -> bool {
    set.property(dataset, "readonly").is_none_or(|v| v == "off")
}

/// New files of several sizes and shapes, changed over two steps: what a pool made elsewhere has to
/// take.
fn write(dir: &Path, seed: u64) {
    let mut random = Random::new(seed);
    fs::create_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let path = |name: &str| dir.join(name);
    for size in [0usize, 1, 100, 5_000, 131_072, 300_000] {
        fs::write(path(&format!("text{size}")), random.text(size)).expect("write");
    }
    fs::write(path("random"), random.bytes(70_000)).expect("write");
    for i in 0..100 {
        fs::write(path(&format!("n{i}")), format!("{i}")).expect("write");
    }
    fs::create_dir(path("sub")).expect("folder");
    fs::rename(path("n1"), path("sub/moved")).expect("rename");
    fs::hard_link(path("n2"), path("sub/linked")).expect("link");
    std::os::unix::fs::symlink("text100", path("soft")).expect("link");
    fs::remove_file(path("n3")).expect("remove");
    let file = fs::File::options().write(true).open(path("text300000")).expect("open");
    file.set_len(200_001).expect("truncate");
    std::os::unix::fs::FileExt::write_all_at(&file, b"over", 1000).expect("overwrite");
    file.sync_all().expect("fsync");
    let sparse = fs::File::create(path("sparse")).expect("create");
    sparse.set_len(5 << 20).expect("truncate");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", (5 << 20) - 3).expect("write");
}
