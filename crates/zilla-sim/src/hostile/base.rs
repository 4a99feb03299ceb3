//! A small real pool, taken apart once; all its mutants are made of it.

use super::image::Image;
use super::mutate::{self, Target};
use super::tree::Tree;
use crate::pool::{Layout, Workload};
use crate::{CrashPolicy, Sim, Survivors};
use std::path::{Path, PathBuf};
use zilla_env::SparseImage;
use zilla_ondisk::Uberblock;

/// Operations of the workload that fills a base.
const OPS: usize = 240;
const ACTORS: usize = 2;

/// A pool and what it is made of.
pub struct Base {
    pub name: String,
    pub(super) image: Image,
    pub(super) tree: Tree,
    pub(super) uberblock: Uberblock,
    pub(super) targets: Vec<(String, Vec<Target>)>,
}

impl Base {
    /// None if the disks hold no pool that can be taken apart.
    pub fn open(name: &str, disks: Survivors) -> Option<Base> {
        let image = Image::open(disks)?;
        let uberblock = image.uberblock()?;
        let tree = Tree::walk(&image, uberblock.rootbp);
        let (name, targets) = (name.to_owned(), Vec::new());
        let mut base = Base { name, image, tree, uberblock, targets };
        base.targets = mutate::targets(&base);
        (!base.tree.nodes.is_empty()).then_some(base)
    }

    /// A pool that worked for a while, with snapshots, clones and extended attributes, and then
    /// lost its power: so it has an intent log too.
    pub fn worked(layout: Layout, seed: u64) -> Option<Base> {
        let sim = Sim::new(seed);
        layout.add_disks(&sim);
        let work = Workload::start(&sim.env(), layout, seed, ACTORS, OPS);
        sim.run_until(&work.done).ok()?;
        let disks = sim.survivors(CrashPolicy::KeepAll, seed);
        Base::open(&format!("{}-{seed}", layout.name()), disks)
    }

    /// The images of a folder.
    pub fn of_folder(folder: &Path) -> std::io::Result<Option<Base>> {
        let mut disks = Survivors { disks: Default::default(), files: Default::default() };
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "img") {
                continue;
            }
            let bytes = std::fs::read(&path)?;
            let mut image = SparseImage::new();
            for (i, part) in bytes.chunks(4096).enumerate().filter(|(_, p)| p.iter().any(|b| *b != 0)) {
                image.write(i as u64 * 4096, part);
            }
            let name = path.file_name().unwrap_or_default();
            disks.disks.insert(PathBuf::from("/disks").join(name), (bytes.len() as u64, image));
        }
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Base::open(&name, disks))
    }

    /// The images in an archive of the interop tests' corpus, which OpenZFS made.
    pub fn of_archive(archive: &Path) -> std::io::Result<Option<Base>> {
        let to = tempfile::tempdir()?;
        let tar =
            ["--zstd".as_ref(), "-xf".as_ref(), archive.as_os_str(), "-C".as_ref(), to.path().as_os_str()];
        let status = std::process::Command::new("tar").args(tar).status()?;
        let name = archive.file_name().unwrap_or_default().to_string_lossy().replace(".tar.zst", "");
        if !status.success() {
            return Err(std::io::Error::other(format!("{}: tar failed", archive.display())));
        }
        Base::of_folder(&to.path().join(name))
    }

    /// Its disks, as they are.
    pub fn disks(&self) -> &Survivors {
        &self.image.disks
    }

    /// How many structures of which kind there are to change.
    pub fn census(&self) -> Vec<(&str, usize)> {
        self.targets.iter().map(|(kind, all)| (kind.as_str(), all.len())).collect()
    }
}
