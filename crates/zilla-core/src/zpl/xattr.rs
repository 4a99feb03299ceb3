//! Extended attributes: one name space over two homes.
//!
//! With `xattr=sa` they lie as a packed name-value list in the file's own attributes (DXATTR),
//! where they cost no object and no directory; what does not fit there, and everything with
//! `xattr=dir`, is a file in a hidden directory (`xattr_dir`). Reading looks in both, and setting
//! one takes the other away, so that a name has one value whatever the property was when it was
//! set.

use super::attrs::Attrs;
use super::fs::Zfs;
use super::posix_acl::{self, PosixAcl};
use super::sa::Kind;
use super::types::*;
use super::znode::{Plan, State, Znode, stale};
use super::{ZFS_APPENDONLY, ZFS_IMMUTABLE, ZPL_VERSION_FUID, err};
use crate::dmu::{Now, resident};
use crate::error::{Errno, Error, Result};
use crate::tunables;
use crate::txg::Tx;
use crate::zil::When;
use std::sync::Arc;
use zilla_ondisk::nvlist::{NvList, NvValue};

/// Largest value and list that may lie in the system attributes.
const DXATTR_MAX_ENTRY_SIZE: usize = 32768;
const DXATTR_MAX_SA_SIZE: usize = super::sa::SA_MAX_SPILL >> 1;
/// Linux's limits.
const XATTR_NAME_MAX: usize = 255;
pub(super) const XATTR_SIZE_MAX: usize = 65536;

/// What a program may do whoever runs it.
const CAPABILITIES: &str = "security.capability";

pub(super) fn list_get<'a>(list: &'a NvList, name: &str) -> Option<&'a [u8]> {
    list.bytes(name)
}

pub(super) fn list_set(list: &mut NvList, name: &str, value: &[u8]) {
    list.add(name, NvValue::ByteArray(value.to_vec()));
}

/// The packed list of a new file's attributes.
pub(super) fn pack_new(values: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut list = NvList::new();
    values.iter().for_each(|(n, v)| list_set(&mut list, n, v));
    list.pack()
}

pub(super) fn unpack(dxattr: &[u8]) -> Result<NvList> {
    if dxattr.is_empty() {
        return Ok(NvList::new());
    }
    NvList::unpack(dxattr).map_err(|e| Error::corrupt(None, "extended attributes", e.to_string()))
}

fn no_data<T>() -> Result<T> {
    err(Errno::NoData, "no such extended attribute")
}

/// What a name in the user's name space may not begin with. Source: ZFS_XA_NS_PREFIX_FORBIDDEN in
/// OpenZFS's include/sys/zfs_znode.h.
const NAME_SPACES: [&str; 5] = ["user.", "trusted.", "security.", "system.", "freebsd:"];

/// Attribute names are Linux's with their name space; the ones in the user's may have been stored
/// without it by other systems, and are with `zfs_xattr_compat`. A name that would then be one of
/// another name space has no such form: the kernel lets whoever may write the file use the user's
/// names, and does not the others.
fn bare_name(name: &str) -> Option<&str> {
    name.strip_prefix("user.").filter(|bare| !NAME_SPACES.iter().any(|space| bare.starts_with(space)))
}

/// The name under which an attribute is stored, and the other one under which it may be.
pub(super) fn stored_names(name: &str, without_space: bool) -> (&str, Option<&str>) {
    match bare_name(name) {
        Some(bare) if without_space => (bare, Some(name)),
        bare => (name, bare),
    }
}

fn name_str(name: &[u8]) -> Result<&str> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return err(Errno::Range, "the attribute's name is empty or too long");
    }
    std::str::from_utf8(name).map_err(|_| Error::inval("the attribute's name is not UTF-8"))
}

impl Zfs {
    /// The list in the file's own attributes, unpacked once.
    pub(super) fn sa_xattrs(&self, zn: &Znode) -> Result<Arc<NvList>> {
        let mut state = zn.state.lock();
        if state.gone {
            return Err(stale(zn.id()));
        }
        if let Some(list) = state.xattrs() {
            return Ok(list.clone());
        }
        let list = Arc::new(unpack(&state.attrs.dxattr)?);
        state.set_xattrs(Some(list.clone()));
        drop(state);
        self.objset.make_room();
        Ok(list)
    }

    /// The default ACL of a directory. Asked without the directory's lock: who changes it while
    /// files are being made in it gets either answer.
    pub(super) fn default_acl(&self, dir: &Znode) -> Now<Option<PosixAcl>> {
        if !self.props().posix_acl {
            return Ok(None);
        }
        let (empty, xattr_obj) = {
            let a = &dir.state.lock().attrs;
            (a.dxattr.is_empty(), a.xattr_obj)
        };
        let mut value = None;
        if !empty {
            value = list_get(&*self.sa_xattrs(dir)?, posix_acl::DEFAULT).map(<[u8]>::to_vec);
        }
        if value.is_none() && xattr_obj != 0 {
            value = self.dir_xattr_get(dir, posix_acl::DEFAULT)?;
        }
        Ok(value.as_deref().and_then(PosixAcl::decode).filter(|a| !a.is_empty()))
    }

    /// Brings the access ACL of a file into its own attributes, where a chmod can change it
    /// together with the mode.
    pub(super) async fn adopt_access_acl(&self, zn: &Arc<Znode>) -> Result<()> {
        if !self.props().posix_acl || zn.state.lock().attrs.legacy {
            return Ok(());
        }
        let Some(value) = resident(|| self.dir_xattr_get(zn, posix_acl::ACCESS)).await? else {
            return Ok(());
        };
        self.change(|tx| self.sa_xattr_set(tx, zn, posix_acl::ACCESS, Some(&value), |_| Ok(()))).await?;
        self.dir_xattr_remove(zn, posix_acl::ACCESS).await
    }

    fn check_xattrs(&self, name: &str) -> Result<()> {
        let props = self.props();
        // As in OpenZFS only those of users: the kernel asks for ACLs whatever the property says.
        if !props.xattr && name.starts_with("user.") {
            return err(Errno::NotSup, "the property xattr is off");
        }
        if name.starts_with("system.posix_acl_") {
            if !props.posix_acl {
                return err(Errno::NotSup, "the property acltype is not posix");
            }
        } else if !["user.", "trusted.", "security."]
            .iter()
            .any(|p| name.starts_with(p) && name.len() > p.len())
        {
            return err(Errno::NotSup, "no such name space of extended attributes");
        } else if name.starts_with("user.") && bare_name(name).is_none() && !self.is_replaying() {
            return Err(Error::inval("the attribute's name has two name spaces"));
        }
        Ok(())
    }

    /// The value of an extended attribute, if it is in memory.
    pub fn try_getxattr(&self, id: u64, name: &[u8]) -> Now<Vec<u8>> {
        let name = name_str(name)?;
        self.check_xattrs(name)?;
        let zn = self.znode(id)?;
        for name in [Some(name), bare_name(name)].into_iter().flatten() {
            if let Some(v) = list_get(&*self.sa_xattrs(&zn)?, name) {
                return Ok(v.to_vec());
            }
            if let Some(v) = self.dir_xattr_get(&zn, name)? {
                return Ok(v);
            }
        }
        Ok(no_data()?)
    }

    #[crate::boxed]
    pub async fn getxattr(&self, id: u64, name: &[u8]) -> Result<Vec<u8>> {
        resident(|| self.try_getxattr(id, name)).await
    }

    /// The names of a file's extended attributes.
    #[crate::boxed]
    pub async fn listxattr(&self, id: u64) -> Result<Vec<Vec<u8>>> {
        let zn = resident(|| self.znode(id)).await?;
        let mut names: Vec<Vec<u8>> =
            self.sa_xattrs(&zn)?.iter().map(|(n, _)| n.as_bytes().to_vec()).collect();
        names.extend(self.dir_xattr_names(&zn).await?);
        let known = |n: &[u8]| {
            [&b"user."[..], b"trusted.", b"security.", b"system."].iter().any(|p| n.starts_with(p))
        };
        let props = self.props();
        names.retain(|n| props.posix_acl || !n.starts_with(b"system.posix_acl_"));
        for n in &mut names {
            if !known(n) {
                n.splice(..0, *b"user.");
            }
        }
        names.retain(|n| props.xattr || !n.starts_with(b"user."));
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Sets an extended attribute.
    #[crate::boxed]
    pub async fn setxattr(&self, id: u64, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.set_xattr(id, name, value, mode).await?;
        self.ended().await
    }

    async fn set_xattr(&self, id: u64, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let name = name_str(name)?;
        self.check_xattrs(name)?;
        if value.len() > XATTR_SIZE_MAX {
            return err(Errno::TooBig, "the value is too long");
        }
        let zn = resident(|| self.znode(id)).await?;
        self.check_xattr_change(&zn)?;
        if name == posix_acl::ACCESS || name == posix_acl::DEFAULT {
            return self.set_posix_acl(id, name, value).await;
        }
        let (name, other) = stored_names(name, tunables::XATTR_COMPAT.get() != 0);
        let (in_sa, in_dir) = self.homes(&zn, name).await?;
        let elsewhere = match other {
            Some(other) => self.homes(&zn, other).await? != (false, false),
            None => false,
        };
        let exists = in_sa || in_dir || elsewhere;
        match mode {
            XattrMode::Create if exists => return err(Errno::Exist, "the attribute exists"),
            XattrMode::Replace if !exists => return no_data(),
            _ => {}
        }
        let legacy = zn.state.lock().attrs.legacy;
        if self.props().xattr_sa && !legacy && value.len() <= DXATTR_MAX_ENTRY_SIZE {
            match self.change(|tx| self.sa_xattr_set(tx, &zn, name, Some(value), |_| Ok(()))).await {
                Ok(()) => {
                    if in_dir {
                        self.dir_xattr_remove(&zn, name).await?;
                    }
                    return self.remove_other(&zn, other).await;
                }
                Err(e) if e.is(Errno::FBig) => {}
                Err(e) => return Err(e),
            }
        }
        self.dir_xattr_set(&zn, name, value).await?;
        if in_sa {
            self.change(|tx| self.sa_xattr_set(tx, &zn, name, None, |_| Ok(()))).await?;
        }
        self.remove_other(&zn, other).await
    }

    /// Whether a name is in the file's own attributes, and whether in the directory.
    async fn homes(&self, zn: &Arc<Znode>, name: &str) -> Result<(bool, bool)> {
        let in_sa = list_get(&*self.sa_xattrs(zn)?, name).is_some();
        Ok((in_sa, resident(|| self.dir_xattr_find(zn, name)).await?.is_some()))
    }

    /// Takes away the same attribute as it was stored under its other name.
    async fn remove_other(&self, zn: &Arc<Znode>, other: Option<&str>) -> Result<()> {
        let Some(other) = other else { return Ok(()) };
        let (in_sa, in_dir) = self.homes(zn, other).await?;
        if in_sa {
            self.change(|tx| self.sa_xattr_set(tx, zn, other, None, |_| Ok(()))).await?;
        }
        if in_dir {
            self.dir_xattr_remove(zn, other).await?;
        }
        Ok(())
    }

    /// Takes an extended attribute away.
    #[crate::boxed]
    pub async fn removexattr(&self, id: u64, name: &[u8]) -> Result<()> {
        let name = name_str(name)?;
        self.check_xattrs(name)?;
        let zn = resident(|| self.znode(id)).await?;
        // Linux takes capabilities away before it appends to an append-only file.
        if name != CAPABILITIES {
            self.check_xattr_change(&zn)?;
        }
        if self.take_xattr(&zn, name).await? { self.ended().await } else { no_data() }
    }

    /// Takes away what lets a program do more than who runs it: before someone changes the file.
    /// Costs a look at the file's attributes where there is nothing to take, and does not ask for
    /// the property `xattr`, which may be turned on again.
    #[crate::boxed]
    pub async fn kill_capabilities(&self, id: u64) -> Result<()> {
        let zn = resident(|| self.znode(id)).await?;
        let none = {
            let a = &zn.state.lock().attrs;
            a.dxattr.is_empty() && a.xattr_obj == 0
        };
        if none || !self.take_xattr(&zn, CAPABILITIES).await? { Ok(()) } else { self.ended().await }
    }

    fn check_xattr_change(&self, zn: &Znode) -> Result<()> {
        let locked = zn.state.lock().attrs.pflags & (ZFS_IMMUTABLE | ZFS_APPENDONLY) != 0;
        if locked && !self.is_replaying() {
            return err(Errno::Perm, "the file is immutable or append-only");
        }
        Ok(())
    }

    /// Takes an attribute away wherever it lies; false if there is none.
    async fn take_xattr(&self, zn: &Arc<Znode>, name: &str) -> Result<bool> {
        let mut found = false;
        for name in [Some(name), bare_name(name)].into_iter().flatten() {
            if list_get(&*self.sa_xattrs(zn)?, name).is_some() {
                self.change(|tx| self.sa_xattr_set(tx, zn, name, None, |_| Ok(()))).await?;
                found = true;
            }
            if resident(|| self.dir_xattr_find(zn, name)).await?.is_some() {
                self.dir_xattr_remove(zn, name).await?;
                found = true;
            }
        }
        Ok(found)
    }

    /// Sets (or takes away) one attribute of the list, and with it whatever `also` changes.
    pub(super) fn sa_xattr_set(
        &self,
        tx: &Tx,
        zn: &Arc<Znode>,
        name: &str,
        value: Option<&[u8]>,
        also: impl FnOnce(&mut Attrs) -> Result<()>,
    ) -> Now<()> {
        let mut state = zn.state.lock();
        let (plan, list) = self.plan_xattr(tx, zn, &state, name, value, also)?;
        if let Some(v) = value {
            self.admit(tx, v.len() as u64, false)?;
        }
        let mode = state.attrs.mode;
        plan.apply(tx, zn, &mut state);
        if state.attrs.links > 0 {
            self.log_xattr(tx, When::With(zn.id()), zn.id(), name, value);
            if state.attrs.mode != mode {
                self.log_setattr(tx, zn.id(), &state.attrs, super::log::ATTR_MODE, None);
            }
        }
        state.set_xattrs(Some(Arc::new(list)));
        tx.dirtied(value.map_or(0, <[u8]>::len) as u64 + 512);
        Ok(())
    }

    fn plan_xattr(
        &self,
        tx: &Tx,
        zn: &Znode,
        state: &State,
        name: &str,
        value: Option<&[u8]>,
        also: impl FnOnce(&mut Attrs) -> Result<()>,
    ) -> Now<(Plan, NvList)> {
        if state.gone {
            return Err(stale(zn.id()).into());
        }
        if state.attrs.pflags & ZFS_IMMUTABLE != 0 && !self.is_replaying() {
            return Err(Error::os(Errno::Perm, "the file is immutable").into());
        }
        let mut list = match state.xattrs() {
            Some(l) => NvList::clone(l),
            None => unpack(&state.attrs.dxattr)?,
        };
        match value {
            Some(v) => list_set(&mut list, name, v),
            None => drop(list.remove(name)),
        }
        let packed = list.pack();
        if packed.len() > DXATTR_MAX_SA_SIZE.min(super::sa::SA_ATTR_MAX_LEN) {
            return Err(
                Error::os(Errno::FBig, "too many extended attributes for the system attributes").into()
            );
        }
        let mut attrs = state.attrs.clone();
        attrs.dxattr = packed.into();
        attrs.add(&self.sa, Kind::Dxattr);
        also(&mut attrs)?;
        self.state_changed(&mut attrs, self.now());
        Ok((self.pack(tx, zn, attrs)?, list))
    }

    /// Setting the access list changes the mode to match; a list that says no more than a mode is
    /// not kept.
    async fn set_posix_acl(&self, id: u64, name: &str, value: &[u8]) -> Result<()> {
        let acl = PosixAcl::decode(value).ok_or_else(|| Error::inval("not a POSIX ACL"))?;
        let zn = resident(|| self.znode(id)).await?;
        let (is_dir, is_link, legacy) = {
            let a = &zn.state.lock().attrs;
            (a.is_dir(), a.is_symlink(), a.legacy)
        };
        if is_link || legacy {
            return err(Errno::NotSup, "no ACLs on symbolic links or files of old file systems");
        }
        if name == posix_acl::DEFAULT && !is_dir {
            return err(Errno::Access, "only directories have default ACLs");
        }
        let (mode, plain) = acl.equiv_mode();
        let access = name == posix_acl::ACCESS;
        let drop_it = acl.is_empty() || (access && plain);
        let stored = (!drop_it).then(|| acl.encode());
        self.change(|tx| {
            self.sa_xattr_set(tx, &zn, name, stored.as_deref(), |a| {
                if access && !acl.is_empty() {
                    a.mode = a.mode & !0o777 | u64::from(mode);
                    a.set_trivial_acl(&self.sa, self.version >= ZPL_VERSION_FUID);
                }
                Ok(())
            })
        })
        .await?;
        // One that an earlier xattr=dir left must not be found instead.
        if resident(|| self.dir_xattr_find(&zn, name)).await?.is_some() {
            self.dir_xattr_remove(&zn, name).await?;
        }
        Ok(())
    }
}
