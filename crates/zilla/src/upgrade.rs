//! A file system gets a newer version of its format.
//!
//! The master node's `VERSION` says what is *made* from then on: whether directory entries tell the
//! kind of a file (2), owners and ACLs are FUIDs (3), attributes are system attributes (5). What is
//! there stays as it is; every file says by the type of its bonus buffer what its attributes are,
//! so old ones are read beside new ones, as OpenZFS reads them. Version 5 needs the object that
//! lists system attributes, which is empty until the first file is made.
//!
//! Who has a file system open makes files by the version that it was opened with. So nobody may
//! have it open meanwhile.
//!
//! **Crash:** one txg has all of it.
//!
//! Not here: accounts of users in file systems that were made without them. They stay without.

use crate::dataset::open_zfs;
use crate::tree::DatasetRef;
use std::sync::Arc;
use zilla_core::dmu::{Now, Objset, in_tx};

use zilla_core::error::{Errno, Error, Result};
use zilla_core::txg::Tx;
use zilla_core::types::ObjectId;
use zilla_core::zap::{CreateOpts, Zap};
use zilla_core::zpl::{MASTER_NODE_OBJ, ZPL_VERSION};

use zilla_ondisk::object_type::DMU_OT_SA_MASTER_NODE;

/// The first version with system attributes. Source: ZPL_VERSION_SA in sys/fs/zfs.h.
const WITH_ATTRIBUTES: u64 = 5;
/// Where their tables are. Source: ZFS_SA_ATTRS in sys/zfs_znode.h.
const ATTRIBUTES: &[u8] = b"SA_ATTRS";
/// Bytes that two entries of the master node and the new object may take.
const ROOM: u64 = 16 << 10;

impl DatasetRef {
    /// Gives a file system that nobody has open a newer version, on disk.
    pub async fn upgrade_filesystem(&self, version: u64) -> Result<()> {
        let (dsl, ds) = (&self.dsl, &self.ds);
        let zfs = open_zfs(&dsl.ctx().env, dsl, ds, false).await?;
        if version <= zfs.version() || version > ZPL_VERSION || ds.is_snapshot() {
            let what =
                format!("version {version} is none that a file system of version {} gets", zfs.version());
            return Err(Error::inval(what));
        }
        if let Some(why) = zfs.kept_log() {
            let what = format!("the intent log could not be replayed, so nothing is changed: {why}");
            return Err(Error::os(Errno::ROFs, what));
        }
        let ctx = dsl.ctx();
        if ctx.readonly {
            return Err(Error::os(Errno::ROFs, "the pool is read-only"));
        }
        in_tx(&ctx.txgs, |tx| {
            dsl.reserve(ds, tx, ROOM, false)?;
            change(zfs.objset(), tx, version)
        })
        .await?;
        zfs.sync().await
    }
}

fn change(os: &Arc<Objset>, tx: &Tx, version: u64) -> Now<()> {
    let master = Zap::new(&os.hold(ObjectId(MASTER_NODE_OBJ))?);
    // The object first: should the version have to wait, then the next try finds it.
    if version >= WITH_ATTRIBUTES && master.lookup_u64(ATTRIBUTES)?.is_none() {
        let made = Zap::create(os, tx, DMU_OT_SA_MASTER_NODE, &CreateOpts::default())?;
        if let Err(stop) = master.add_u64(tx, ATTRIBUTES, made.id().0) {
            os.free(tx, &made);
            return Err(stop);
        }
    }
    master.update_u64(tx, b"VERSION", version)
}
