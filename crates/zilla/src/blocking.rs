//! Pools for programs without async code: each call returns when it is done.
//!
//! [`Pool`] and what comes from it wait on the calling thread; the engine's own threads do the
//! work. They must not be called from a task of the same `Env`, which would wait for itself.
//!
//! ```
//! use zilla::blocking::Pool;
//! use zilla::{Import, NewPool, NewVdev};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let folder = tempfile::tempdir()?;
//! let disk = folder.path().join("tank.img");
//! std::fs::File::create(&disk)?.set_len(128 << 20)?;
//! let env = zilla_env::real_env(2);
//!
//! let pool = Pool::create(&env, NewPool::new("tank").vdev(NewVdev::single(&disk)))?;
//! let home = pool.create_filesystem("tank/home", &[("compression", "zstd")])?;
//! let files = home.files()?;
//! files.write("/greeting", b"hello")?;
//! let monday = home.snapshot("monday")?;
//! files.write("/greeting", b"goodbye")?;
//! assert_eq!(monday.files()?.read("/greeting")?, b"hello");
//! drop(files);
//! pool.export()?;
//!
//! let pool = Pool::import(&env, &[folder.path()], "tank", Import::default())?;
//! assert_eq!(pool.dataset("tank/home")?.files()?.read("/greeting")?, b"goodbye");
//! pool.export()?;
//! # Ok(())
//! # }
//! ```

use crate::{Attr, Cred, DatasetInfo, DatasetKind, DirEntry, Import, NewPool, Property, Result, ScrubResult};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use zilla_env::Env;

/// Methods that wait for those of the same name of what they wrap.
macro_rules! waits {
    ($outer:ident { $($(#[$m:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)* }) => {
        impl $outer {
            $($(#[$m])*
            pub fn $name(&self $(, $arg: $ty)*) -> Result<$ret> {
                self.env.block_on(self.inner.$name($($arg),*))
            })*
        }
    };
    ($outer:ident gives { $($(#[$m:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ident;)* }) => {
        impl $outer {
            $($(#[$m])*
            pub fn $name(&self $(, $arg: $ty)*) -> Result<$ret> {
                let inner = self.env.block_on(self.inner.$name($($arg),*))?;
                Ok($ret { env: self.env.clone(), inner })
            })*
        }
    };
}

/// An imported pool: see [`crate::Pool`].
#[derive(Clone)]
pub struct Pool {
    env: Env,
    inner: crate::Pool,
}

/// A file system or volume: see [`crate::Dataset`].
#[derive(Clone)]
pub struct Dataset {
    env: Env,
    inner: crate::Dataset,
}

/// A snapshot: see [`crate::Snapshot`].
#[derive(Clone)]
pub struct Snapshot {
    env: Env,
    inner: crate::Snapshot,
}

/// Files by path: see [`crate::Files`].
#[derive(Clone)]
pub struct Files {
    env: Env,
    inner: crate::Files,
}

/// An open file: see [`crate::File`].
pub struct File {
    env: Env,
    inner: crate::File,
}

/// A volume's bytes: see [`crate::Volume`].
#[derive(Clone)]
pub struct Volume {
    env: Env,
    inner: Arc<crate::Volume>,
}

impl Pool {
    /// Makes a pool, and imports it.
    pub fn create(env: &Env, new: NewPool) -> Result<Pool> {
        let inner = env.block_on(crate::Pool::create(env, new))?;
        Ok(Pool { env: env.clone(), inner })
    }

    /// Imports the pool of a name or guid whose devices are in these places.
    pub fn import<P: AsRef<Path> + Sync>(env: &Env, places: &[P], which: &str, how: Import) -> Result<Pool> {
        let inner = env.block_on(crate::Pool::import(env, places, which, how))?;
        Ok(Pool { env: env.clone(), inner })
    }

    /// The same pool for async code.
    pub fn inner(&self) -> &crate::Pool {
        &self.inner
    }

    /// The pool's name.
    pub fn name(&self) -> String {
        self.inner.name()
    }

    /// All file systems and volumes, those above before those below.
    pub fn datasets(&self) -> Result<Vec<Dataset>> {
        let all = self.env.block_on(self.inner.datasets())?;
        Ok(all.into_iter().map(|inner| Dataset { env: self.env.clone(), inner }).collect())
    }
}

waits!(Pool gives {
    /// A file system or volume by its whole name.
    fn dataset(name: &str) -> Dataset;
    /// Makes a file system with some properties.
    fn create_filesystem(name: &str, properties: &[(&str, &str)]) -> Dataset;
    /// Makes a volume of so many bytes with some properties.
    fn create_volume(name: &str, size: u64, properties: &[(&str, &str)]) -> Dataset;
});

waits!(Pool {
    /// Takes snapshots of several datasets at the same moment.
    fn snapshot(names: &[&str]) -> ();
    /// Waits until all that was changed so far is on disk.
    fn sync() -> ();
    /// Reads all that is in use and mends what can be mended.
    fn scrub() -> ScrubResult;
    /// Closes the pool and says so on its devices. EBUSY: a file system or volume is still open.
    fn export() -> ();
});

impl Dataset {
    /// The whole name.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// A file system or a volume.
    pub fn kind(&self) -> DatasetKind {
        self.inner.kind()
    }

    /// Its snapshots, the oldest first.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let all = self.env.block_on(self.inner.snapshots())?;
        Ok(all.into_iter().map(|inner| Snapshot { env: self.env.clone(), inner }).collect())
    }

    /// Gives it another name in the same pool.
    pub fn rename(&mut self, to: &str) -> Result<()> {
        self.env.block_on(self.inner.rename(to))
    }

    /// Destroys it.
    pub fn destroy(self) -> Result<()> {
        self.env.block_on(self.inner.destroy())
    }
}

waits!(Dataset gives {
    /// Its files, in root's name.
    fn files() -> Files;
    /// Its files; what is made is this owner's.
    fn files_as(cred: Cred) -> Files;
    /// A volume's bytes.
    fn volume() -> Volume;
    /// Takes a snapshot.
    fn snapshot(name: &str) -> Snapshot;
});

waits!(Dataset {
    /// Sizes and numbers of it.
    fn info() -> DatasetInfo;
    /// A property that can be set; None if there is none of that name.
    fn get(name: &str) -> Option<Property>;
    /// Sets properties, all or none; what is open feels them.
    fn set(properties: &[(&str, &str)]) -> ();
    /// Takes back what was set.
    fn inherit(name: &str) -> ();
    /// Goes back to its newest snapshot.
    fn rollback(to: &str) -> ();
});

impl Snapshot {
    /// The whole name.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Destroys it.
    pub fn destroy(self) -> Result<()> {
        self.env.block_on(self.inner.destroy())
    }
}

waits!(Snapshot gives {
    /// The files as they were.
    fn files() -> Files;
    /// The volume's bytes as they were.
    fn volume() -> Volume;
    /// Makes a dataset that begins with what the snapshot has.
    fn clone_to(name: &str, properties: &[(&str, &str)]) -> Dataset;
});

waits!(Snapshot {
    /// Sizes and numbers of it.
    fn info() -> DatasetInfo;
});

impl Files {
    /// A whole file's contents, put in the place of what was there.
    pub fn write(&self, path: &str, data: &[u8]) -> Result<()> {
        self.env.block_on(self.inner.write(path, Bytes::copy_from_slice(data)))
    }
}

waits!(Files gives {
    /// An existing file.
    fn open(path: &str) -> File;
    /// A file that is made where there is none.
    fn create(path: &str) -> File;
    /// A file that is made. EEXIST: there is something of that name.
    fn create_new(path: &str) -> File;
});

waits!(Files {
    /// What `stat` says.
    fn metadata(path: &str) -> Attr;
    /// What `lstat` says.
    fn symlink_metadata(path: &str) -> Attr;
    /// A whole file's contents.
    fn read(path: &str) -> Vec<u8>;
    /// Makes a directory.
    fn create_dir(path: &str) -> ();
    /// Makes a symbolic link.
    fn symlink(target: &str, path: &str) -> ();
    /// Where a symbolic link leads to.
    fn read_link(path: &str) -> Bytes;
    /// What is in a directory.
    fn read_dir(path: &str) -> Vec<DirEntry>;
    /// Removes a file or link.
    fn remove_file(path: &str) -> ();
    /// Removes an empty directory.
    fn remove_dir(path: &str) -> ();
    /// Gives a file or directory another name.
    fn rename(from: &str, to: &str) -> ();
});

impl File {
    /// Writes at an offset.
    pub fn write_at(&self, off: u64, data: &[u8]) -> Result<()> {
        self.env.block_on(self.inner.write_at(off, Bytes::copy_from_slice(data)))
    }
}

waits!(File {
    /// What `fstat` says.
    fn attr() -> Attr;
    /// Up to so many bytes from an offset; fewer at the end.
    fn read_at(off: u64, len: usize) -> Vec<u8>;
    /// Cuts it, or makes it longer by zeroes.
    fn set_len(len: u64) -> ();
    /// Returns when all that was written to it is stable.
    fn sync() -> ();
});

impl Volume {
    /// Bytes.
    pub fn size(&self) -> Result<u64> {
        self.inner.size()
    }

    /// Reads so many bytes at an offset.
    pub fn read(&self, off: u64, len: usize) -> Result<Vec<u8>> {
        Ok(self.env.block_on(self.inner.read(off, len))?.concat())
    }

    /// Writes at an offset; `stable`: it is on stable storage when this returns.
    pub fn write(&self, off: u64, data: &[u8], stable: bool) -> Result<()> {
        self.env.block_on(self.inner.write(off, &[Bytes::copy_from_slice(data)], stable))
    }

    /// Gives up what lies in a range: it reads as zeroes.
    pub fn trim(&self, off: u64, len: u64) -> Result<()> {
        self.env.block_on(self.inner.trim(off, len))
    }
}

waits!(Volume {
    /// Returns when all that was written is stable.
    fn flush() -> ();
});
