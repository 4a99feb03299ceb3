//! A new file system in an empty objset.

use super::attrs::{Attrs, encode_time, legacy_order, new_file_order};
use super::sa::{Kind, SaTable};
use super::types::{S_IFDIR, Time};
use super::{
    MASTER_NODE_OBJ, PFLAG_ACL_AUTO_INHERIT, PFLAG_PROJID, ZFS_ARCHIVE, ZFS_AV_MODIFIED, ZPL_VERSION,
    ZPL_VERSION_FUID, ZPL_VERSION_SA,
};
use crate::dmu::{Now, Objset, resident};
use crate::error::Result;
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::zap::{CreateOpts, U8_TEXTPREP_TOUPPER, Zap};
use std::sync::Arc;
use zilla_ondisk::object_type::{
    DMU_OT_DIRECTORY_CONTENTS, DMU_OT_MASTER_NODE, DMU_OT_SA, DMU_OT_SA_MASTER_NODE, DMU_OT_UNLINKED_SET,
    DMU_OT_ZNODE,
};

/// What is settled when a file system is made.
#[derive(Clone, Copy, Debug)]
pub struct ZplProps {
    pub version: u64,
    /// Flags of u8_textprep: names are compared in this form.
    pub normalization: u64,
    pub utf8only: bool,
    /// 0 sensitive, 1 insensitive, 2 mixed.
    pub casesensitivity: u64,
    /// Owner of the root directory.
    pub uid: u32,
    pub gid: u32,
    pub now: Time,
    pub dnodesize: usize,
    pub project_quota: bool,
}

impl ZplProps {
    pub fn new(uid: u32, gid: u32, now: Time) -> ZplProps {
        ZplProps {
            version: ZPL_VERSION,
            normalization: 0,
            utf8only: false,
            casesensitivity: 0,
            uid,
            gid,
            now,
            dnodesize: 512,
            project_quota: true,
        }
    }
}

/// Makes master node, delete queue, attribute tables and the root directory. The objset must be
/// empty (and so there is nothing that could be missing from memory half-way).
#[crate::boxed]
pub async fn create_fs(objset: &Arc<Objset>, tx: &Tx, props: &ZplProps) -> Result<()> {
    resident(|| create_fs_now(objset, tx, props)).await
}

fn create_fs_now(objset: &Arc<Objset>, tx: &Tx, props: &ZplProps) -> Now<()> {
    let plain = CreateOpts::default();
    let master = Zap::create_claim(objset, tx, ObjectId(MASTER_NODE_OBJ), DMU_OT_MASTER_NODE, &plain)?;
    let master = Zap::new(&master);
    let set = |name: &str, v: u64| master.update_u64(tx, name.as_bytes(), v);
    set("version", props.version)?;
    set("utf8only", u64::from(props.utf8only))?;
    set("normalization", props.normalization)?;
    set("casesensitivity", props.casesensitivity)?;
    set("VERSION", props.version)?;
    let sa = props.version >= ZPL_VERSION_SA;
    let mut sa_obj = 0;
    if sa {
        sa_obj = Zap::create(objset, tx, DMU_OT_SA_MASTER_NODE, &plain)?.id().0;
        set("SA_ATTRS", sa_obj)?;
    }
    let queue = Zap::create(objset, tx, DMU_OT_UNLINKED_SET, &plain)?.id().0;
    set("DELETE_QUEUE", queue)?;

    let table = SaTable::open(objset, sa_obj)?;
    let mut normflags = props.normalization;
    if props.casesensitivity != 0 {
        normflags |= U8_TEXTPREP_TOUPPER;
    }
    let (bonustype, bonuslen, dnodesize) =
        if sa { (DMU_OT_SA, 0, props.dnodesize) } else { (DMU_OT_ZNODE, 264, 512) };
    let opts = CreateOpts { normflags, dnodesize, ..CreateOpts::bonus(bonustype, bonuslen) };
    let root = Zap::create(objset, tx, DMU_OT_DIRECTORY_CONTENTS, &opts)?;
    let fuids = props.version >= ZPL_VERSION_FUID;
    let time = encode_time(props.now);
    let mut attrs = Attrs {
        mode: u64::from(S_IFDIR | 0o755),
        size: 2,
        generation: tx.txg().0,
        uid: u64::from(props.uid),
        gid: u64::from(props.gid),
        parent: root.id().0,
        pflags: PFLAG_ACL_AUTO_INHERIT | if fuids { ZFS_ARCHIVE | ZFS_AV_MODIFIED } else { 0 },
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        links: 2,
        legacy: !sa,
        ..Attrs::default()
    };
    if sa {
        attrs.order = new_file_order(&table).into();
        if props.project_quota {
            attrs.pflags |= PFLAG_PROJID;
            attrs.add(&table, Kind::Projid);
        }
    } else {
        attrs.order = legacy_order();
        attrs.rest = Attrs::legacy_rest(Vec::new());
    }
    attrs.set_trivial_acl(&table, fuids);
    let packed = attrs.pack(&table, tx, root.max_bonus_len())?;
    root.set_bonus(tx, &packed.bonus);
    set("ROOT", root.id().0)
}
