//! Pools of every kind, and OpenZFS's opinion of them.

use crate::world::{World, finish};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Single,
    Mirror,
    Raidz1,
    Raidz2,
    Raidz3,
    /// A mirror and a raidz1 side by side.
    Mixed,
}

impl Kind {
    pub const ALL: [Kind; 6] =
        [Kind::Single, Kind::Mirror, Kind::Raidz1, Kind::Raidz2, Kind::Raidz3, Kind::Mixed];

    fn disks(self) -> usize {
        match self {
            Kind::Single => 1,
            Kind::Mirror => 2,
            Kind::Raidz1 => 3,
            Kind::Raidz2 => 4,
            Kind::Raidz3 | Kind::Mixed => 5,
        }
    }

    /// The words of `zpool create` after the pool's name.
    fn words(self, disks: &[PathBuf]) -> Vec<String> {
        let name = |p: &PathBuf| p.to_string_lossy().into_owned();
        let group = |word: &str, disks: &[PathBuf]| {
            std::iter::once(word.to_owned()).chain(disks.iter().map(name)).collect()
        };
        match self {
            Kind::Single => disks.iter().map(name).collect(),
            Kind::Mirror => group("mirror", disks),
            Kind::Raidz1 => group("raidz1", disks),
            Kind::Raidz2 => group("raidz2", disks),
            Kind::Raidz3 => group("raidz3", disks),
            Kind::Mixed => [group("mirror", &disks[..2]), group("raidz1", &disks[2..])].concat(),
        }
    }
}

/// A pool in image files, mounted below the world's `mnt`.
pub struct Pool<'a> {
    pub world: &'a World,
    pub name: String,
    pub disks: Vec<PathBuf>,
}

impl<'a> Pool<'a> {
    /// Makes a pool of images of `size` bytes; `options` go before its name.
    #[track_caller]
    pub fn create(world: &'a World, name: &str, kind: Kind, size: u64, options: &[&str]) -> Pool<'a> {
        let disks = world.images(name, kind.disks(), size);
        let mount = world.mnt().join(name).to_string_lossy().into_owned();
        let mut words = vec!["create".to_owned(), "-m".to_owned(), mount];
        // Mixed redundancy is something OpenZFS wants to be told twice.
        words.extend((kind == Kind::Mixed).then(|| "-f".to_owned()));
        words.extend(options.iter().map(|o| (*o).to_owned()));
        words.push(name.to_owned());
        words.extend(kind.words(&disks));
        world.run("zpool", &words).ok();
        Pool { world, name: name.to_owned(), disks }
    }

    /// Where the pool's root file system is mounted.
    pub fn root(&self) -> PathBuf {
        self.world.mnt().join(&self.name)
    }

    #[track_caller]
    pub fn sync(&self) {
        self.world.zpool(&format!("sync {}", self.name)).ok();
    }

    #[track_caller]
    pub fn export(&self) {
        self.world.zpool(&format!("export {}", self.name)).ok();
    }

    #[track_caller]
    pub fn import(&self) {
        self.world.zpool(&format!("import -d {} {}", self.world.disks().display(), self.name)).ok();
    }

    /// Has it back after its daemon ended: the next one takes the pools of its cache file by
    /// itself; one that was exported is imported.
    #[track_caller]
    pub fn again(&self) {
        if self.world.zpool(&format!("list -H -o name {}", self.name)).code != 0 {
            self.import();
        }
    }

    /// Scrubs to the end; a panic if it found an error.
    #[track_caller]
    pub fn scrub(&self) {
        scrub(self.world, &self.name);
    }

    /// Exports the pool and asks OpenZFS what it thinks of it.
    #[track_caller]
    pub fn judge(&self) {
        self.export();
        zdb_clean(&self.world.disks(), &self.name);
    }
}

#[track_caller]
pub fn scrub(world: &World, pool: &str) {
    loop {
        let done = world.zpool(&format!("scrub -w {pool}"));
        // One that began by itself, as after an expansion, ends first.
        if done.code == 0 || !done.stderr.contains("currently scrubbing") {
            done.ok();
            break;
        }
        world.zpool(&format!("wait -t scrub {pool}")).ok();
    }
    let status = world.zpool(&format!("status {pool}")).ok();
    assert!(status.contains("with 0 errors"), "{status}");
    assert!(status.contains("errors: No known data errors"), "{status}");
}

/// `zdb -bcc -e`: every block accounted for, every checksum. The pool must be exported.
#[track_caller]
pub fn zdb_clean(dir: &Path, pool: &str) {
    zdb_clean_with(dir, pool, &[]);
}

/// The same with further options.
#[track_caller]
pub fn zdb_clean_with(dir: &Path, pool: &str, options: &[&str]) {
    let Some(mut command) = zilla_testkit::zdb() else { return };
    command.args(options).args(["-e", "-p"]).arg(dir).args(["-bcc", pool]);
    let done = finish(command);
    let bad = ["leaked space", "double", "errors encountered", "error counts", "checksum mismatch"];
    let output = done.stdout.to_lowercase();
    let clean =
        done.code == 0 && output.contains("no leaks") && !bad.iter().any(|words| output.contains(words));
    assert!(clean, "OpenZFS finds errors: {done}");
}
