//! What the intent log is told of each change, and waiting for it.
//!
//! A record is left where the change is made: under the same locks, after the last thing that can
//! fail. So records of changes that depend on each other are in the order of the changes. What
//! concerns a name waits for nobody's commit in particular; what concerns a file alone waits with
//! the file ([`When`]).

use super::attrs::Attrs;
use super::fs::{SyncMode, Zfs};
use super::types::*;
use super::{
    SETTABLE_FLAGS, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_NODUMP, ZFS_NOUNLINK, ZFS_PROJINHERIT, ZFS_READONLY,
};
use crate::dmu::{Dnode, Written};
use crate::error::Result;
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::zil::{When, Zilog};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::zil::{ATTR_XVATTR, CreateBody, Foid, RecordBody, XVA_MAPSIZE, Xvattr};

/// Bits of a setattr's mask (Linux's `ATTR_*`).
pub(super) const ATTR_MODE: u64 = 1;
pub(super) const ATTR_UID: u64 = 2;
pub(super) const ATTR_GID: u64 = 4;
pub(super) const ATTR_SIZE: u64 = 8;
pub(super) const ATTR_ATIME: u64 = 16;
pub(super) const ATTR_MTIME: u64 = 32;

/// Bits of extended attributes: whether one is meant, and (for flags) whether it is set.
pub(super) const XAT_CREATETIME: u32 = 0x1;
pub(super) const XAT_PROJID: u32 = 0x4_0000;
/// Attributes that are file flags.
pub(super) const XAT_FLAGS: [(u32, u64); 14] = [
    (0x2, super::ZFS_ARCHIVE),
    (0x4, zilla_ondisk::znode::ZFS_SYSTEM),
    (0x8, ZFS_READONLY),
    (0x10, zilla_ondisk::znode::ZFS_HIDDEN),
    (0x20, ZFS_NOUNLINK),
    (0x40, ZFS_IMMUTABLE),
    (0x80, ZFS_APPENDONLY),
    (0x100, ZFS_NODUMP),
    (0x200, zilla_ondisk::znode::ZFS_OPAQUE),
    (0x400, zilla_ondisk::znode::ZFS_AV_QUARANTINED),
    (0x800, super::ZFS_AV_MODIFIED),
    (0x2000, zilla_ondisk::znode::ZFS_REPARSE),
    (0x8000, zilla_ondisk::znode::ZFS_OFFLINE),
    (0x2_0000, ZFS_PROJINHERIT),
];

/// Small writes are copied, so that a large buffer is not kept for them.
const COPY_BELOW: usize = 4096;

impl Zfs {
    /// The log, if what is done now is to be noted there.
    pub(super) fn zil(&self) -> Option<&Arc<Zilog>> {
        self.log.as_ref().filter(|_| !self.is_replaying())
    }

    pub(super) fn is_replaying(&self) -> bool {
        self.replaying.load(Ordering::Relaxed)
    }

    /// The file system's intent log.
    pub fn intent_log(&self) -> Option<&Arc<Zilog>> {
        self.log.as_ref()
    }

    /// Waits until what was done to a file, and what leads to it, is on stable storage.
    #[crate::boxed]
    pub async fn fsync(&self, id: u64) -> Result<()> {
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::FsyncLies) {
            return Ok(());
        }
        match &self.log {
            Some(log) => log.commit(Some(id)).await?,
            None => self.wait_all().await?,
        }
        // Stable in the log is not enough where it is known that it cannot get from there into the
        // file.
        match self.objset.in_memory(ObjectId(id)) {
            Some(dn) => dn.check_held(),
            None => Ok(()),
        }
    }

    /// Waits until everything done so far is on stable storage, access times aside. `EIO` if
    /// something of any file is known not to get from the log to where it belongs.
    #[crate::boxed]
    pub async fn commit(&self) -> Result<()> {
        self.commit_all().await?;
        self.objset.check_held()
    }

    async fn commit_all(&self) -> Result<()> {
        match &self.log {
            Some(log) => log.commit(None).await,
            None => self.wait_all().await,
        }
    }

    async fn wait_all(&self) -> Result<()> {
        match self.txgs_any() {
            Some(txgs) => txgs.wait_synced(txgs.open()).await,
            None => Ok(()),
        }
    }

    /// After an operation: with `sync=always` it returns only when it is stable.
    pub(super) async fn ended(&self) -> Result<()> {
        if self.props().sync == SyncMode::Always { self.commit_all().await } else { Ok(()) }
    }

    fn create_body<'a>(
        dir: u64,
        dn: &Dnode,
        attrs: &Attrs,
        name: &'a [u8],
        link: Option<&'a [u8]>,
    ) -> CreateBody<'a> {
        CreateBody {
            dir,
            file: Foid { object: dn.id().0, slots: dn.slots() },
            mode: attrs.mode,
            uid: attrs.uid,
            gid: attrs.gid,
            generation: attrs.generation,
            crtime: attrs.crtime,
            rdev: attrs.rdev,
            name,
            link,
            xvattr: None,
            acl: None,
        }
    }

    /// A new file, directory, device or link, with the ACLs it inherits.
    pub(super) fn log_create(&self, tx: &Tx, dir: u64, dn: &Dnode, attrs: &Attrs, name: &[u8]) {
        let Some(log) = self.zil() else { return };
        #[cfg(feature = "planted")]
        let judged = crate::planted::is(crate::planted::Bug::ReplayRefusesByFlag);
        #[cfg(not(feature = "planted"))]
        let judged = false;
        // A file inherits from its directory what the record does not hold: its project, and flags.
        if !judged {
            log.bring_forward(dir);
        }
        let target: &[u8] = &attrs.symlink;
        let body = match attrs.fmt() {
            S_IFDIR => RecordBody::Mkdir(Zfs::create_body(dir, dn, attrs, name, None)),
            S_IFLNK => RecordBody::Symlink(Zfs::create_body(dir, dn, attrs, name, Some(target))),
            _ => RecordBody::Create(Zfs::create_body(dir, dn, attrs, name, None)),
        };
        log.push(tx, When::Next, body);
        if attrs.dxattr.is_empty() {
            return;
        }
        let Ok(list) = super::xattr::unpack(&attrs.dxattr) else { return };
        for (n, _) in list.iter() {
            self.log_xattr(tx, When::Next, dn.id().0, n, super::xattr::list_get(&list, n));
        }
    }

    /// The directory of a file's extended attributes.
    pub(super) fn log_mkxattr(&self, tx: &Tx, owner: u64, dn: &Dnode, attrs: &Attrs) {
        if let Some(log) = self.zil() {
            log.bring_forward(owner);
            let body = RecordBody::Mkxattr(Zfs::create_body(owner, dn, attrs, b"", None));
            log.push(tx, When::Next, body);
        }
    }

    pub(super) fn log_link(&self, tx: &Tx, dir: u64, object: u64, name: &[u8]) {
        if let Some(log) = self.zil() {
            log.bring_forward(dir);
            log.bring_forward(object);
            log.push(tx, When::Next, RecordBody::Link { dir, object, name });
        }
    }

    /// A file that was made without a name has got one. Nothing of it is in the log so far, so who
    /// commits it waits for its txg.
    pub(super) fn log_named(&self, tx: &Tx) {
        if let Some(log) = self.zil() {
            log.push_barrier(tx, When::Next);
        }
    }

    /// A name is gone; `last`: the file's last one.
    pub(super) fn log_remove(&self, tx: &Tx, dir: u64, name: &[u8], object: u64, is_dir: bool, last: bool) {
        let Some(log) = self.zil() else { return };
        log.bring_forward(dir);
        log.unlinked(object, last);
        let body = if is_dir { RecordBody::Rmdir { dir, name } } else { RecordBody::Remove { dir, name } };
        log.push(tx, When::Next, body);
    }

    /// A rename. What was written to the files is stable before their names change.
    pub(super) fn log_rename(&self, tx: &Tx, objects: &[u64], body: RecordBody<'_>) {
        if let Some(log) = self.zil() {
            objects.iter().for_each(|o| log.bring_forward(*o));
            #[cfg(feature = "planted")]
            if crate::planted::is(crate::planted::Bug::RenameRecordLost) {
                return;
            }
            log.push(tx, When::Next, body);
        }
    }

    pub(super) fn log_write(&self, tx: &Tx, id: u64, attrs: &Attrs, w: &Written) {
        let Some(log) = self.zil().filter(|_| attrs.links > 0 && !w.data.is_empty()) else { return };
        let data = if w.data.len() < COPY_BELOW { Bytes::copy_from_slice(&w.data) } else { w.data.clone() };
        log.push_write(tx, When::With(id), id, w.at, data, w.shared);
    }

    /// Before records of a file's attributes that lie in their own directory: those records wait
    /// for nobody's commit, and must not overtake what was done to the file before.
    pub(super) fn log_in_order(&self, owner: u64) {
        if let Some(log) = self.zil() {
            log.bring_forward(owner);
        }
    }

    /// The value of a new extended attribute's file, which nobody would ask for by its number.
    pub(super) fn log_value(&self, tx: &Tx, id: u64, value: &[u8]) {
        if let Some(log) = self.zil().filter(|_| !value.is_empty()) {
            log.push_write(tx, When::Next, id, 0, Bytes::copy_from_slice(value), 0);
        }
    }

    /// A range was freed, or (`length` 0) the file ends at `offset`.
    pub(super) fn log_truncate(&self, tx: &Tx, when: When, id: u64, attrs: &Attrs, offset: u64, length: u64) {
        if let Some(log) = self.zil().filter(|_| attrs.links > 0) {
            log.push(tx, when, RecordBody::Truncate { object: id, offset, length });
        }
    }

    /// Attributes were changed: those of `mask` to what they are in `attrs`.
    pub(super) fn log_setattr(&self, tx: &Tx, id: u64, attrs: &Attrs, mask: u64, xvattr: Option<Xvattr>) {
        let nothing = mask == 0 && xvattr.is_none();
        let Some(log) = self.zil().filter(|_| attrs.links > 0 && !nothing) else { return };
        let mask = mask | if xvattr.is_some() { ATTR_XVATTR } else { 0 };
        let body = RecordBody::Setattr {
            object: id,
            mask,
            mode: attrs.mode,
            uid: attrs.uid,
            gid: attrs.gid,
            size: attrs.size,
            atime: attrs.atime,
            mtime: attrs.mtime,
            xvattr,
        };
        log.push(tx, When::With(id), body);
    }

    /// The record's part for file flags and the project, where a change sets them.
    pub(super) fn xvattr_of(set: &SetAttr, attrs: &Attrs) -> Option<Xvattr> {
        let changed = set.flags.map_or(0, |(on, off)| (on | off) & SETTABLE_FLAGS);
        let mut x = Xvattr { bitmap: vec![0; XVA_MAPSIZE], attrs: 0, crtime: [0; 2], scanstamp: [0; 32] };
        let mut bits = 0;
        for (bit, flag) in XAT_FLAGS.iter().filter(|(_, f)| changed & f != 0) {
            bits |= bit;
            if attrs.pflags & flag != 0 {
                x.attrs |= u64::from(*bit);
            }
        }
        if set.projid.is_some() {
            bits |= XAT_PROJID;
            if let Some(first) = x.scanstamp.first_chunk_mut::<8>() {
                *first = attrs.projid.to_ne_bytes();
            }
        }
        if let Some(first) = x.bitmap.first_mut() {
            *first = bits;
        }
        (bits != 0).then_some(x)
    }

    /// An extended attribute among the file's own; None: it was taken away.
    pub(super) fn log_xattr(&self, tx: &Tx, when: When, id: u64, name: &str, value: Option<&[u8]>) {
        let Some(log) = self.zil() else { return };
        // A record without a value takes the attribute away, so there is none for an empty value.
        if value.is_some_and(<[u8]>::is_empty) || !log.logs_xattrs() {
            return log.push_barrier(tx, when);
        }
        let (name, value) = (name.as_bytes(), value.unwrap_or_default());
        log.push(tx, when, RecordBody::Setsaxattr { object: id, name, value });
    }
}
