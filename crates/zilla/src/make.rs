//! Making file systems and volumes: what is settled once, at the beginning, and what is stored.
//!
//! Each is one sync task, so it is there whole with all its properties or not at all. Who may make
//! one is judged by whoever serves the pool to others, but for the limits, which the task holds.

use crate::access::Who;
use crate::pool::Pool;
use std::sync::Arc;
use zilla_core::dsl::{DslDataset, Limit, NewCrypt, Setting};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::zap::{Value, Zap};
use zilla_core::zpl::{self, MASTER_NODE_OBJ, Time, ZplProps};
use zilla_core::zvol::{NewVolume, check_size, create_volume_with};
use zilla_ondisk::dsl::DS_FLAG_CI_DATASET;
use zilla_ondisk::enums::ObjsetType;

/// Settled when a file system is made, and kept in it rather than among the properties.
pub const FIXED: [&str; 4] = ["version", "utf8only", "normalization", "casesensitivity"];

/// Of `casesensitivity`. Source: zfs_case_t in zfs_znode.h.
const CASE_INSENSITIVE: u64 = 1;

/// Properties as they are to be stored.
pub type Settings = Vec<(String, Setting)>;

/// The number that a property is to have, where it is among these.
pub fn number(all: &Settings, name: &str) -> Option<u64> {
    all.iter().find(|(n, _)| n == name).and_then(|(_, s)| match s {
        Setting::Local(v) => v.as_u64(),
        _ => None,
    })
}

/// Whose a new dataset is.
#[derive(Debug, Clone)]
pub struct Maker {
    /// Owner and group of a file system's root directory.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Whom limits bind, and whom not.
    pub who: Who,
}

impl Maker {
    /// The pool's owner, whom no limit binds.
    pub fn owner(uid: u32, gid: u32) -> Maker {
        Maker { uid, gid, who: Who::Admin }
    }
}

/// What a new volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeShape {
    /// Bytes.
    pub size: u64,
    /// Bytes; None: `volblocksize` among the settings, else what is usual.
    pub block_size: Option<u64>,
    /// Without a reservation: it may find the pool full.
    pub sparse: bool,
}

/// No file system that is empty takes so many bytes.
const SMALL: u64 = 4 << 20;

/// Whether a quota is so small that an empty file system may be over it.
pub(crate) fn is_small(settings: &Settings) -> bool {
    let small = |name: &str| number(settings, name).is_some_and(|limit| (1..SMALL).contains(&limit));
    small("quota") || small("refquota")
}

/// `refreservation=auto`
pub fn auto() -> Setting {
    Setting::Local(Value::u64(u64::MAX))
}

impl Pool {
    /// Makes a file system. What it does not say of names (`normalization` and the like) it takes
    /// over from the one above it.
    pub async fn make_filesystem(
        &self,
        name: &str,
        maker: &Maker,
        settings: Settings,
        crypt: NewCrypt,
    ) -> Result<()> {
        let spa = self.spa();
        let dsl = &spa.dsl;
        let parent_dir = dsl.create_check(name).await?;
        let parent = dsl.head(&parent_dir).await?;
        dsl.new_crypt_check(Some(&parent_dir), &crypt).await?;
        let wall = spa.ctx.env.wall();
        let now = Time { sec: i64::try_from(wall.as_secs()).unwrap_or(i64::MAX), nsec: wall.subsec_nanos() };
        let mut zpl = ZplProps::new(maker.uid, maker.gid, now);
        let above = dsl.objset(&parent).await?;
        // One that is made in the clear below what is locked inherits what is usual.
        let above = match above.is_locked() {
            true => None,
            false => Some(Zap::open(&above, MASTER_NODE_OBJ).await?),
        };
        let inherited = async |name: &str| {
            let Some(above) = &above else { return Ok::<u64, Error>(0) };
            Ok(above.try_get_u64(name).await?.unwrap_or(0))
        };
        zpl.normalization = match number(&settings, "normalization") {
            Some(n) => n,
            // What need not be UTF-8 cannot be normalized, whatever is so above.
            None if number(&settings, "utf8only") == Some(0) => 0,
            None => inherited("normalization").await?,
        };
        zpl.utf8only = match number(&settings, "utf8only") {
            Some(n) => n != 0,
            // What is to be normalized must be UTF-8.
            None => zpl.normalization != 0 || inherited("utf8only").await? != 0,
        };
        zpl.casesensitivity = match number(&settings, "casesensitivity") {
            Some(n) => n,
            None => inherited("casesensitivity").await?,
        };
        zpl.version = zpl::version_for(spa.version());
        if let Some(version) = number(&settings, "version").filter(|v| *v != 0) {
            if version > zpl.version {
                return Err(Error::os(Errno::NotSup, "pool must be upgraded to set this property or value"));
            }
            zpl.version = version;
        }
        zpl.project_quota = dsl.feature_enabled("project_quota");
        let stored: Settings = settings.into_iter().filter(|(n, _)| !FIXED.contains(&n.as_str())).collect();
        let small = is_small(&stored);
        // Names of its snapshots are not told apart by case either.
        let flags = if zpl.casesensitivity == CASE_INSENSITIVE { DS_FLAG_CI_DATASET } else { 0 };
        let (dsl, made, maker) = (dsl.clone(), name.to_owned(), maker.clone());
        let task = spa.ctx.sync_task(move |tx| {
            let name = made;
            Box::pin(async move {
                dsl.new_props_check(&parent_dir, &name, &stored, 0)?;
                dsl.limit_check(&parent_dir, 1, Limit::Filesystems, &maker.who, None).await?;
                let ds = dsl.create_fs_with(&tx, &name, ObjsetType::Zfs, flags, &crypt).await?;
                dsl.grant_to_creator(&tx, &ds.dir(), maker.uid).await?;
                zpl::create_fs(&dsl.objset(&ds).await?, &tx, &zpl).await?;
                dsl.set_props(&tx, &ds, &stored).await
            })
        });
        task.await?;
        if small { self.check_fits(name).await } else { Ok(()) }
    }

    /// Takes a file system away again that uses more than its quotas from its beginning, which is
    /// known when its first txg is synced.
    pub(crate) async fn check_fits(&self, name: &str) -> Result<()> {
        let ds = self.dsl().by_name(name).await?;
        if self.dsl().is_within_quotas(&ds) {
            return Ok(());
        }
        drop(ds);
        let gone = name.to_owned();
        self.task(move |dsl, tx| Box::pin(async move { dsl.destroy_head(&tx, &gone).await })).await?;
        Err(Error::os(Errno::NoSpc, format!("cannot create '{name}': it would be over its quota")))
    }

    /// Makes a volume. `refreservation=auto` among the settings is what it can take at most, and so
    /// is no word of it where it is not sparse.
    pub async fn make_volume(
        &self,
        name: &str,
        maker: &Maker,
        shape: VolumeShape,
        mut settings: Settings,
        crypt: NewCrypt,
    ) -> Result<()> {
        let block_size = shape.block_size.or(number(&settings, "volblocksize"));
        let block_size = block_size.unwrap_or_else(|| self.volume_block_size());
        let size = shape.size;
        check_size(size, block_size)?;
        let own = self.volume_reservation(size, block_size, number(&settings, "copies").unwrap_or(1));
        settings.retain(|(n, _)| n != "volsize" && n != "volblocksize");
        let given = settings.iter_mut().find(|(n, _)| n == "refreservation");
        match given {
            Some((_, value)) if *value == auto() => *value = Setting::Local(Value::u64(own)),
            None if !shape.sparse => {
                let name = self.volume_reserved_by().to_owned();
                settings.push((name, Setting::Local(Value::u64(own))));
            }
            _ => {}
        }
        let (dsl, name, maker) = (self.dsl().clone(), name.to_owned(), maker.clone());
        let task = self.spa().ctx.sync_task(move |tx| {
            Box::pin(async move {
                let parent = dsl.create_check(&name).await?;
                dsl.new_props_check(&parent, &name, &settings, 0)?;
                dsl.limit_check(&parent, 1, Limit::Filesystems, &maker.who, None).await?;
                let new = NewVolume { size, block_size };
                let ds: Arc<DslDataset> =
                    create_volume_with(&dsl, &tx, &name, new, &settings, &crypt).await?;
                dsl.grant_to_creator(&tx, &ds.dir(), maker.uid).await
            })
        });
        task.await
    }
}

/// Why a volume cannot have a size, or blocks of one, bytes.
pub fn volume_size_check(size: u64, block_size: u64) -> Result<()> {
    check_size(size, block_size)
}
