//! Files as a check of the whole pool sees them: what is on disk, without any of the state of an
//! open file system.

use super::attrs::Attrs;
use super::sa::SaTable;
use super::types::{S_IFDIR, S_IFMT, S_IFREG};
use super::{DIRENT_OBJ_MASK, MASTER_NODE_OBJ, PFLAG_XATTR, ZPL_VERSION_SA, acl};
use crate::dmu::{Dnode, Objset, resident};
use crate::error::{Error, Result};
use crate::types::ObjectId;
use crate::zap::Zap;
use std::sync::Arc;

/// What a file's attributes say that other places say too.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileFacts {
    pub is_root: bool,
    pub is_dir: bool,
    pub regular: bool,
    pub is_xattr_dir: bool,
    /// The type as directory entries have it.
    pub dtype: u8,
    pub links: u64,
    pub size: u64,
    pub parent: u64,
    pub xattr_dir: u64,
    acl: u64,
}

impl FileFacts {
    pub fn leads_to(&self, object: u64) -> bool {
        object != 0 && (self.acl == object || self.xattr_dir == object)
    }
}

pub(crate) struct FileReader {
    os: Arc<Objset>,
    sa: SaTable,
    root: u64,
    queue: u64,
}

impl FileReader {
    #[crate::boxed]
    pub async fn open(os: &Arc<Objset>) -> Result<FileReader> {
        let master = Zap::open(os, MASTER_NODE_OBJ).await?;
        let version = master.get_u64("VERSION").await?;
        let sa_obj = match version {
            ZPL_VERSION_SA.. => master.try_get_u64("SA_ATTRS").await?.unwrap_or(0),
            _ => 0,
        };
        Ok(FileReader {
            os: os.clone(),
            sa: resident(|| SaTable::open(os, sa_obj)).await?,
            root: master.get_u64("ROOT").await?,
            queue: master.try_get_u64("DELETE_QUEUE").await?.unwrap_or(0),
        })
    }

    /// The files in the delete queue.
    #[crate::boxed]
    pub async fn queued(&self) -> Result<Vec<u64>> {
        match self.queue {
            0 => Ok(Vec::new()),
            id => Zap::open(&self.os, id).await?.ints().await,
        }
    }

    #[crate::boxed]
    pub async fn facts(&self, dn: &Arc<Dnode>) -> Result<FileFacts> {
        let a = resident(|| Attrs::load(&self.sa, dn)).await?;
        let fmt = a.mode as u32 & S_IFMT;
        Ok(FileFacts {
            is_root: dn.id() == ObjectId(self.root),
            is_dir: fmt == S_IFDIR,
            regular: fmt == S_IFREG,
            is_xattr_dir: fmt == S_IFDIR && a.pflags & PFLAG_XATTR != 0,
            dtype: (fmt >> 12) as u8,
            links: a.links,
            size: a.size,
            parent: a.parent,
            xattr_dir: a.xattr_obj,
            acl: a.legacy_acl().map_or(0, acl::legacy_extern),
        })
    }

    /// A directory's entries: name, object and type.
    #[crate::boxed]
    pub async fn entries(&self, dn: &Arc<Dnode>) -> Result<Vec<(Vec<u8>, u64, u8)>> {
        let mut out = Vec::new();
        for e in Zap::new(dn).entries().await? {
            let v = e.value.as_u64().ok_or_else(|| {
                Error::corrupt(None, format!("directory {}", dn.id()), "an entry that is no number")
            })?;
            out.push((e.name.to_vec(), v & DIRENT_OBJ_MASK, (v >> 60) as u8));
        }
        Ok(out)
    }
}
