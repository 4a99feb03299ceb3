//! Making files, directories, symbolic links, devices, and further names of files.

use super::attrs::{Attrs, encode_rdev, encode_time, legacy_order, new_file_order};
use super::dir::check_name;
use super::fs::Zfs;
use super::posix_acl::{self, PosixAcl};
use super::replay::Place;
use super::sa::{Kind, Packed};
use super::types::*;
use super::znode::{Held, Plan, State, Znode, stale};
use super::{
    PFLAG_ACL_AUTO_INHERIT, PFLAG_PROJID, PFLAG_XATTR, SYMLINK_MAX, ZFS_APPENDONLY, ZFS_ARCHIVE,
    ZFS_AV_MODIFIED, ZFS_IMMUTABLE, ZFS_PROJINHERIT, ZPL_VERSION_FUID, ZPL_VERSION_SA, dirent, err,
    fuid_to_id,
};
use crate::dmu::{Dnode, NewObject, Now};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zap::{CreateOpts, Zap};
use std::sync::Arc;
use zilla_ondisk::object_type::{
    DMU_OT_DIRECTORY_CONTENTS, DMU_OT_PLAIN_FILE_CONTENTS, DMU_OT_SA, DMU_OT_ZNODE,
};

/// About what a new file takes of the pool, for the admission check: dnode, directory entry, and
/// their parents.
const CREATE_COST: u64 = 16 << 10;
/// What a file's link count may become.
const LINK_MAX: u64 = (1 << 31) - 1;

impl Zfs {
    /// Refuses changes of a directory's contents.
    pub(super) fn check_dir_change(&self, dir: &Znode, state: &State, adding: bool) -> Result<()> {
        if state.gone {
            return Err(stale(dir.id()));
        }
        if !state.attrs.is_dir() {
            return err(Errno::NotDir, "not a directory");
        }
        if state.attrs.links == 0 && adding {
            return err(Errno::NoEnt, "the directory was removed");
        }
        let protects = if adding { ZFS_IMMUTABLE } else { ZFS_IMMUTABLE | ZFS_APPENDONLY };
        let judged = !self.is_replaying();
        #[cfg(feature = "planted")]
        let judged = judged || crate::planted::is(crate::planted::Bug::ReplayRefusesByFlag);
        if state.attrs.pflags & protects != 0 && judged {
            return err(Errno::Perm, "the directory is immutable or append-only");
        }
        Ok(())
    }

    /// The attributes of a file to be made in `dir`, whose default ACL is `default`.
    pub(super) fn new_attrs(
        &self,
        tx: &Tx,
        dir: u64,
        parent: &Attrs,
        default: Option<PosixAcl>,
        new: &NewFile<'_>,
    ) -> Result<Attrs> {
        let props = self.props();
        let now = self.now();
        let fmt = new.mode & S_IFMT;
        let is_dir = fmt == S_IFDIR;
        let is_sa = self.version >= ZPL_VERSION_SA;
        let setgid = parent.mode as u32 & S_ISGID != 0;
        let mut mode = new.mode;
        if setgid && is_dir {
            mode |= S_ISGID;
        }
        let gid = if setgid { parent.gid } else { u64::from(new.cred.gid) };
        if !is_dir && new.judged.is_some_and(|judged| judged != fuid_to_id(gid)) {
            mode &= !S_ISGID;
        }
        // A default ACL takes the umask's place.
        let inherited = default.filter(|_| fmt != S_IFLNK && is_sa);
        let mut acls: Vec<(&str, Vec<u8>)> = Vec::new();
        match &inherited {
            None if fmt != S_IFLNK => mode &= !(new.umask & 0o777),
            None => {}
            Some(default) => {
                if is_dir {
                    acls.push((posix_acl::DEFAULT, default.encode()));
                }
                let mut access: PosixAcl = default.clone();
                if access.create_masq(&mut mode) {
                    acls.push((posix_acl::ACCESS, access.encode()));
                }
            }
        }
        let mut pflags = parent.pflags & PFLAG_XATTR;
        if self.version >= ZPL_VERSION_FUID {
            pflags |= ZFS_ARCHIVE | ZFS_AV_MODIFIED;
        }
        if is_dir {
            pflags |= PFLAG_ACL_AUTO_INHERIT;
        }
        let inherits = parent.pflags & ZFS_PROJINHERIT != 0;
        if inherits && (is_dir || fmt == S_IFREG) {
            pflags |= ZFS_PROJINHERIT;
        }
        let time = encode_time(now);
        let mut a = Attrs {
            mode: u64::from(mode),
            size: if is_dir { 2 } else { new.target.len() as u64 },
            generation: tx.txg().0,
            uid: u64::from(new.cred.uid),
            gid,
            parent: dir,
            pflags,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            links: if is_dir { 2 } else { 1 },
            rdev: if matches!(fmt, S_IFBLK | S_IFCHR) { encode_rdev(new.rdev) } else { 0 },
            projid: if inherits { parent.projid } else { super::DEFAULT_PROJID },
            symlink: new.target.into(),
            legacy: !is_sa,
            ..Attrs::default()
        };
        if is_sa {
            a.order = new_file_order(&self.sa).into();
            if props.project_quota {
                a.pflags |= PFLAG_PROJID;
                a.add(&self.sa, Kind::Projid);
            }
            if matches!(fmt, S_IFBLK | S_IFCHR) {
                a.add(&self.sa, Kind::Rdev);
            }
        } else {
            a.order = legacy_order();
            a.rest = Attrs::legacy_rest(Vec::new());
        }
        a.set_trivial_acl(&self.sa, self.version >= ZPL_VERSION_FUID);
        if is_sa && fmt == S_IFLNK {
            a.add(&self.sa, Kind::Symlink);
        }
        if !acls.is_empty() {
            a.dxattr = super::xattr::pack_new(&acls).into();
            a.add(&self.sa, Kind::Dxattr);
        }
        Ok(a)
    }

    /// Packs a new file's attributes, whose dnode does not exist yet.
    pub(super) fn pack_new(&self, tx: &Tx, attrs: &Attrs) -> Now<Packed> {
        self.pack_at(tx, attrs, self.new_dnodesize(attrs))
    }

    /// The same for a dnode of a given size.
    pub(super) fn pack_at(&self, tx: &Tx, attrs: &Attrs, dnodesize: usize) -> Now<Packed> {
        attrs.pack(&self.sa, tx, zilla_ondisk::dnode::slots_to_bonuslen(dnodesize >> 9))
    }

    fn new_dnodesize(&self, attrs: &Attrs) -> usize {
        if attrs.legacy { 512 } else { self.props().dnodesize.clamp(512, 16384) }
    }

    /// Makes the object of a new file, at `place` if there is a given one, and gives it its
    /// attributes.
    pub(super) fn alloc_file(
        &self,
        tx: &Tx,
        attrs: &Attrs,
        packed: Packed,
        normflags: u64,
        place: Option<Place>,
    ) -> Now<Arc<Dnode>> {
        let dnodesize = place.map_or_else(|| self.new_dnodesize(attrs), |p| p.dnodesize);
        let bonustype = if attrs.legacy { DMU_OT_ZNODE } else { DMU_OT_SA };
        let bonuslen = packed.bonus.len();
        if dnodesize > 512 {
            self.space.need_feature("large_dnode");
        }
        let dn = if attrs.is_dir() {
            let opts = CreateOpts { normflags, dnodesize, ..CreateOpts::bonus(bonustype, bonuslen) };
            match place {
                Some(p) => Zap::create_claim(&self.objset, tx, p.id, DMU_OT_DIRECTORY_CONTENTS, &opts)?,
                None => Zap::create(&self.objset, tx, DMU_OT_DIRECTORY_CONTENTS, &opts)?,
            }
        } else {
            let spec = NewObject { dnodesize, ..NewObject::new(DMU_OT_PLAIN_FILE_CONTENTS, 512) };
            let spec = spec.bonus(bonustype, bonuslen);
            match place {
                Some(p) => self.objset.claim(tx, p.id, spec)?,
                None => self.objset.alloc(tx, spec)?,
            }
        };
        dn.set_bonus(tx, &packed.bonus);
        if let Some(spill) = packed.spill {
            dn.set_spill(tx, Some(spill.into()));
        }
        if attrs.legacy
            && attrs.is_symlink()
            && super::attrs::ZNODE_PHYS_SIZE + attrs.symlink.len() > bonuslen
        {
            let blksz = attrs.symlink.len().next_multiple_of(512) as u32;
            dn.set_blksz(tx, blksz, 0)?;
            dn.write(tx, 0, &attrs.symlink);
        }
        Ok(dn)
    }

    /// A directory's attributes once it has `by` more entries, `dirs` of them directories.
    pub(super) fn plan_dir(&self, tx: &Tx, dir: &Znode, state: &State, by: i64, dirs: i64) -> Now<Plan> {
        let now = self.now();
        self.plan(tx, dir, state, |a| {
            a.size = a.size.saturating_add_signed(by);
            a.links = a.links.saturating_add_signed(dirs);
            self.content_modified(a, now);
        })
    }

    pub(super) fn create_now(
        self: &Arc<Self>,
        tx: &Tx,
        dir: &Arc<Znode>,
        name: &[u8],
        new: &NewFile<'_>,
    ) -> Now<Arc<Znode>> {
        let is_dir = new.mode & S_IFMT == S_IFDIR;
        let default = self.default_acl(dir)?;
        let mut state = dir.state.lock();
        self.check_dir_change(dir, &state, true)?;
        if self.find_entry(dir, name)?.is_some() {
            return Err(Error::os(Errno::Exist, "the file exists").into());
        }
        if is_dir && state.attrs.links >= LINK_MAX {
            return Err(Error::os(Errno::MLink, "too many subdirectories").into());
        }
        let attrs = self.new_attrs(tx, dir.id(), &state.attrs, default, new)?;
        self.check_quotas(&attrs, true)?;
        self.admit(tx, CREATE_COST, false)?;
        let packed = self.pack_new(tx, &attrs)?;
        let parent = self.plan_dir(tx, dir, &state, 1, i64::from(is_dir))?;
        let normflags = if is_dir { self.normflags()? } else { 0 };
        let dn = self.alloc_file(tx, &attrs, packed, normflags, None)?;
        let value = dirent(self.version, dn.id().0, new.mode);
        if let Err(stop) = self.add_entry(tx, dir, name, value) {
            self.objset.free(tx, &dn);
            return Err(stop);
        }
        parent.apply(tx, dir, &mut state);
        tx.dirtied(1024);
        self.log_create(tx, dir.id(), &dn, &attrs, name);
        let zn = self.adopt(dn, attrs);
        drop(state);
        Ok(zn)
    }

    /// Makes a file, directory, symbolic link (`new.target`), device, fifo or socket, as `new.mode`
    /// says.
    pub async fn create(self: &Arc<Self>, dir: u64, name: &[u8], new: NewFile<'_>) -> Result<(Held, Attr)> {
        if matches!(name, b"." | b"..") {
            return err(Errno::Exist, "the file exists");
        }
        check_name(self, name)?;
        if new.target.len() > SYMLINK_MAX {
            return err(Errno::NameTooLong, "the target is too long");
        }
        if new.mode & S_IFMT == S_IFLNK && new.target.is_empty() {
            return err(Errno::NoEnt, "the target is empty");
        }
        if !matches!(new.mode & S_IFMT, S_IFREG | S_IFDIR | S_IFLNK | S_IFBLK | S_IFCHR | S_IFIFO | S_IFSOCK)
        {
            return err(Errno::Inval, "no such type of file");
        }
        let made = self
            .change(|tx| {
                let dzn = self.znode(dir)?;
                let zn = self.held(self.create_now(tx, &dzn, name, &new)?);
                let attr = self.attr(&zn);
                Ok((zn, attr))
            })
            .await?;
        self.ended().await?;
        Ok(made)
    }

    /// Makes a file without a name (O_TMPFILE). It stands in the delete queue until [`Zfs::link`]
    /// gives it one, so that a crash frees it.
    pub async fn create_unnamed(self: &Arc<Self>, dir: u64, new: NewFile<'_>) -> Result<(Held, Attr)> {
        if new.mode & S_IFMT != S_IFREG {
            return err(Errno::Inval, "only regular files are made without a name");
        }
        let made = self
            .change(|tx| {
                let dzn = self.znode(dir)?;
                let zn = self.held(self.create_unnamed_now(tx, &dzn, &new)?);
                let attr = self.attr(&zn);
                Ok((zn, attr))
            })
            .await?;
        self.ended().await?;
        Ok(made)
    }

    fn create_unnamed_now(&self, tx: &Tx, dir: &Arc<Znode>, new: &NewFile<'_>) -> Now<Arc<Znode>> {
        let default = self.default_acl(dir)?;
        let state = dir.state.lock();
        self.check_dir_change(dir, &state, true)?;
        let attrs = Attrs { links: 0, ..self.new_attrs(tx, dir.id(), &state.attrs, default, new)? };
        self.check_quotas(&attrs, true)?;
        self.admit(tx, CREATE_COST, false)?;
        let packed = self.pack_new(tx, &attrs)?;
        let dn = self.alloc_file(tx, &attrs, packed, 0, None)?;
        if let Err(stop) = self.enqueue(tx, dn.id().0).map(drop) {
            self.objset.free(tx, &dn);
            return Err(stop);
        }
        tx.dirtied(1024);
        let zn = self.adopt(dn, attrs);
        zn.state.lock().unnamed = true;
        Ok(zn)
    }

    /// Gives a file one more name.
    pub async fn link(self: &Arc<Self>, id: u64, dir: u64, name: &[u8]) -> Result<(Held, Attr)> {
        if matches!(name, b"." | b"..") {
            return err(Errno::Exist, "the file exists");
        }
        check_name(self, name)?;
        let linked = self
            .change(|tx| {
                let (dzn, zn) = (self.znode(dir)?, self.znode(id)?);
                self.link_now(tx, &dzn, name, &zn)?;
                let attr = self.attr(&zn);
                Ok((self.held(zn), attr))
            })
            .await?;
        self.ended().await?;
        Ok(linked)
    }

    pub(super) fn link_now(&self, tx: &Tx, dir: &Arc<Znode>, name: &[u8], zn: &Arc<Znode>) -> Now<()> {
        if dir.id() == zn.id() {
            return Err(Error::os(Errno::Perm, "directories have one name").into());
        }
        let mut locked = super::znode::Locked::new(&[dir, zn]);
        let state = locked.get(zn);
        if state.gone {
            return Err(stale(zn.id()).into());
        }
        let refused = |errno, what| Err(Error::os(errno, what).into());
        if state.attrs.is_dir() {
            return refused(Errno::Perm, "directories have one name");
        }
        let unnamed = state.unnamed;
        if state.attrs.links == 0 && !unnamed {
            return refused(Errno::NoEnt, "the file was removed");
        }
        let (parent, judged) = (&locked.get(dir).attrs, !self.is_replaying());
        if judged && state.attrs.pflags & (ZFS_IMMUTABLE | ZFS_APPENDONLY) != 0 {
            return refused(Errno::Perm, "the file is immutable or append-only");
        }
        if judged && state.attrs.links >= LINK_MAX {
            return refused(Errno::MLink, "too many links");
        }
        // A file belongs to one project: that of the tree its names are in.
        if judged && parent.pflags & ZFS_PROJINHERIT != 0 && parent.projid != state.attrs.projid {
            return refused(Errno::XDev, "the directory belongs to another project");
        }
        if (parent.pflags ^ state.attrs.pflags) & PFLAG_XATTR != 0 {
            return refused(Errno::Inval, "extended attributes have no other names");
        }
        self.check_dir_change(dir, locked.get(dir), true)?;
        if self.find_entry(dir, name)?.is_some() {
            return refused(Errno::Exist, "the file exists");
        }
        self.admit(tx, CREATE_COST, false)?;
        let now = self.now();
        let file = self.plan(tx, zn, state, |a| {
            a.links += 1;
            a.parent = dir.id();
            self.state_changed(a, now);
        })?;
        let parent = self.plan_dir(tx, dir, locked.get(dir), 1, 0)?;
        let value = dirent(self.version, zn.id(), state.attrs.fmt());
        self.add_entry(tx, dir, name, value)?;
        if unnamed {
            let _queue = self.queue.lock();
            if let Err(stop) = self.delete_queue()?.remove(tx, Zfs::queue_key(zn.id()).as_bytes()) {
                let undone = self.remove_entry(tx, dir, name);
                debug_assert!(undone.is_ok(), "what a held txg dirtied is in memory");
                return Err(stop);
            }
        }
        file.apply(tx, zn, locked.get_mut(zn));
        parent.apply(tx, dir, locked.get_mut(dir));
        if unnamed {
            locked.get_mut(zn).unnamed = false;
            self.log_named(tx);
        } else {
            self.log_link(tx, dir.id(), zn.id(), name);
        }
        Ok(())
    }
}
