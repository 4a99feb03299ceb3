//! Making file systems and volumes: what is settled once, at the beginning, and what is stored.
//!
//! Each is one sync task, so it is there whole with all its properties or not at all. Who may make
//! one is judged by whoever serves the pool to others, but for the limits, which the task holds.

use crate::access::Who;
use crate::pool::Pool;
use std::sync::Arc;
use zilla_core::dsl::{DslDataset, Limit, NewCrypt, Setting};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::vdev::Top;
use zilla_core::zap::{Value, Zap};
use zilla_core::zpl::{self, MASTER_NODE_OBJ, Time, ZplProps};
use zilla_core::zvol::{
    NewVolume, Resv, ZVOL_DEFAULT_BLOCKSIZE, check_size, create_volume_with, volsize_to_reservation,
};
use zilla_ondisk::SPA_OLD_MAXBLOCKSIZE;
use zilla_ondisk::enums::ObjsetType;

/// Settled when a file system is made, and kept in it rather than among the properties.
pub const FIXED: [&str; 4] = ["version", "utf8only", "normalization", "casesensitivity"];

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

/// From this version of the pool on there is that. Source: SPA_VERSION_REFRESERVATION in
/// sys/fs/zfs.h.
const REFRESERVATION: u64 = 9;

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
        let (dsl, name, maker) = (dsl.clone(), name.to_owned(), maker.clone());
        let task = spa.ctx.sync_task(move |tx| {
            Box::pin(async move {
                dsl.new_props_check(&parent_dir, &name, &stored)?;
                dsl.limit_check(&parent_dir, 1, Limit::Filesystems, &maker.who, None).await?;
                let ds = dsl.create_fs_with(&tx, &name, ObjsetType::Zfs, 0, &crypt).await?;
                dsl.grant_to_creator(&tx, &ds.dir(), maker.uid).await?;
                zpl::create_fs(&dsl.objset(&ds).await?, &tx, &zpl).await?;
                dsl.set_props(&tx, &ds, &stored).await
            })
        });
        task.await
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
        let block_size = block_size.unwrap_or(ZVOL_DEFAULT_BLOCKSIZE);
        let size = shape.size;
        check_size(size, block_size)?;
        let own = self.volume_reservation(size, block_size, number(&settings, "copies").unwrap_or(1));
        settings.retain(|(n, _)| n != "volsize" && n != "volblocksize");
        let given = settings.iter_mut().find(|(n, _)| n == "refreservation");
        match given {
            Some((_, value)) if *value == auto() => *value = Setting::Local(Value::u64(own)),
            None if !shape.sparse => {
                let old = self.spa().version() < REFRESERVATION;
                let name = if old { "reservation" } else { "refreservation" };
                settings.push((name.to_owned(), Setting::Local(Value::u64(own))));
            }
            _ => {}
        }
        let (dsl, name, maker) = (self.dsl().clone(), name.to_owned(), maker.clone());
        let task = self.spa().ctx.sync_task(move |tx| {
            Box::pin(async move {
                let parent = dsl.create_check(&name).await?;
                dsl.new_props_check(&parent, &name, &settings)?;
                dsl.limit_check(&parent, 1, Limit::Filesystems, &maker.who, None).await?;
                let new = NewVolume { size, block_size };
                let ds: Arc<DslDataset> =
                    create_volume_with(&dsl, &tx, &name, new, &settings, &crypt).await?;
                dsl.grant_to_creator(&tx, &ds.dir(), maker.uid).await
            })
        });
        task.await
    }

    /// What a volume can take at most on the pool as it is now, bytes.
    pub fn volume_reservation(&self, size: u64, block_size: u64, copies: u64) -> u64 {
        // By the width that new blocks have.
        let asize = |t: &Top, size| t.psize_to_asize(size, u64::MAX);
        let asizes =
            |t: &Top| t.vdev.kind.nparity().map(|_| (asize(t, block_size), asize(t, SPA_OLD_MAXBLOCKSIZE)));
        let asizes = self.spa().tree().tops.iter().filter_map(asizes).collect();
        volsize_to_reservation(&Resv { size, block_size, copies, asizes })
    }
}

/// Why a volume cannot have a size, bytes; `block_size`: None is what is usual.
pub fn volume_size_check(size: u64, block_size: Option<u64>) -> Result<()> {
    check_size(size, block_size.unwrap_or(ZVOL_DEFAULT_BLOCKSIZE))
}
