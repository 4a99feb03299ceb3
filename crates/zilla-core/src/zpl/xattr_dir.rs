//! Extended attributes as files in a hidden directory: `xattr=dir`, and what is too large for the
//! system attributes.
//!
//! The file's attribute ZPL_XATTR is the directory's object; each attribute is a regular file in
//! it, flagged as one.

use super::fs::Zfs;
use super::sa::Kind;
use super::types::*;
use super::xattr::XATTR_SIZE_MAX;
use super::znode::{Locked, Znode, stale};
use super::{PFLAG_XATTR, dirent, dirent_obj, err};
use crate::dmu::{Now, resident};
use crate::error::{Errno, Result};
use crate::txg::Tx;
use crate::zap::{END, Zap};
use crate::zil::When;
use std::sync::Arc;

impl Zfs {
    /// The directory of a file's attributes, if it has one.
    fn xattr_dir(&self, zn: &Znode) -> Now<Option<Arc<Znode>>> {
        match zn.state.lock().attrs.xattr_obj {
            0 => Ok(None),
            id => Ok(Some(self.znode(id)?)),
        }
    }

    /// The file of one attribute.
    pub(super) fn dir_xattr_find(&self, zn: &Znode, name: &str) -> Now<Option<Arc<Znode>>> {
        let Some(dir) = self.xattr_dir(zn)? else { return Ok(None) };
        match self.dir_zap(&dir).lookup_u64(name.as_bytes())? {
            Some(v) => Ok(Some(self.znode(dirent_obj(v))?)),
            None => Ok(None),
        }
    }

    pub(super) fn dir_xattr_get(&self, zn: &Znode, name: &str) -> Now<Option<Vec<u8>>> {
        let Some(file) = self.dir_xattr_find(zn, name)? else { return Ok(None) };
        let size = file.state.lock().attrs.size;
        if size > XATTR_SIZE_MAX as u64 {
            return Ok(err(Errno::TooBig, "the attribute's value is larger than Linux allows")?);
        }
        let mut out = vec![0; size as usize];
        file.dnode().read(0, &mut out)?;
        Ok(Some(out))
    }

    pub(super) async fn dir_xattr_names(&self, zn: &Arc<Znode>) -> Result<Vec<Vec<u8>>> {
        let Some(dir) = resident(|| self.xattr_dir(zn)).await? else { return Ok(Vec::new()) };
        let (zap, mut at, mut out) = (self.dir_zap(&dir), 0, Vec::new());
        while at != END {
            let batch = resident(|| zap.read_on(&mut at, 64)).await?;
            at = batch.next;
            out.extend(batch.entries.into_iter().map(|e| e.name));
        }
        Ok(out)
    }

    /// The directory of a file's attributes, made if there is none.
    fn make_xattr_dir(&self, tx: &Tx, zn: &Arc<Znode>) -> Now<Arc<Znode>> {
        let mut state = zn.state.lock();
        if state.gone {
            return Err(stale(zn.id()).into());
        }
        if state.attrs.xattr_obj != 0 {
            let id = state.attrs.xattr_obj;
            drop(state);
            return self.znode(id);
        }
        let cred = Cred { uid: state.attrs.uid as u32, gid: state.attrs.gid as u32 };
        let new = NewFile::new(S_IFDIR | S_ISVTX | 0o777, cred);
        // Its owner and project are the file's, and so is its parent; nothing else of the file is
        // inherited.
        let mut parent = state.attrs.clone();
        parent.pflags |= PFLAG_XATTR;
        parent.mode &= !u64::from(S_ISGID);
        let attrs = self.new_attrs(tx, zn.id(), &parent, None, &new)?;
        self.check_quotas(&attrs, true)?;
        self.admit(tx, 16 << 10, false)?;
        let packed = self.pack_new(tx, &attrs)?;
        // The file's plan needs the number, which only the allocation gives; a layout with
        // ZPL_XATTR is made sure of before it.
        let plan = |id: u64| {
            self.plan(tx, zn, &state, |a| {
                a.xattr_obj = id;
                a.add(&self.sa, Kind::Xattr);
            })
        };
        plan(1)?;
        let normflags = self.normflags()?;
        let dn = self.alloc_file(tx, &attrs, packed, normflags, None)?;
        let plan = plan(dn.id().0)?;
        plan.apply(tx, zn, &mut state);
        if state.attrs.links > 0 {
            self.log_mkxattr(tx, zn.id(), &dn, &attrs);
        }
        Ok(self.adopt(dn, attrs))
    }

    /// Writes an attribute's file, making directory and file as need be.
    pub(super) async fn dir_xattr_set(&self, zn: &Arc<Znode>, name: &str, value: &[u8]) -> Result<()> {
        let dir = self.change(|tx| self.make_xattr_dir(tx, zn)).await?;
        self.change(|tx| match self.dir_xattr_find(zn, name)? {
            Some(file) => self.rewrite_xattr(tx, zn, &dir, &file, name, value),
            None => self.create_xattr(tx, zn, &dir, name, value),
        })
        .await
    }

    fn rewrite_xattr(
        &self,
        tx: &Tx,
        zn: &Arc<Znode>,
        dir: &Arc<Znode>,
        file: &Arc<Znode>,
        name: &str,
        value: &[u8],
    ) -> Now<()> {
        let mut locked = Locked::new(&[zn, dir, file]);
        if self.dir_zap(dir).lookup_u64(name.as_bytes())?.map(dirent_obj) != Some(file.id()) {
            // Another thread was faster: it is to be made anew.
            drop(locked);
            return self.create_xattr(tx, zn, dir, name, value);
        }
        let now = self.now();
        let owner = self.plan(tx, zn, locked.get(zn), |a| self.state_changed(a, now))?;
        self.admit(tx, value.len() as u64, false)?;
        let plan = self.plan(tx, file, locked.get(file), |a| {
            a.size = value.len() as u64;
            self.content_modified(a, now);
        })?;
        file.dnode().free_range(tx, 0, u64::MAX);
        self.put_value(tx, file, value)?;
        plan.apply(tx, file, locked.get_mut(file));
        owner.apply(tx, zn, locked.get_mut(zn));
        if locked.get(zn).attrs.links > 0 {
            self.log_in_order(zn.id());
            // Nobody commits an attribute's file: its records go with the next commit.
            self.log_truncate(tx, When::Next, file.id(), &locked.get(file).attrs, 0, 0);
            self.log_value(tx, file.id(), value);
        }
        Ok(())
    }

    fn create_xattr(&self, tx: &Tx, zn: &Arc<Znode>, dir: &Arc<Znode>, name: &str, value: &[u8]) -> Now<()> {
        let mut locked = Locked::new(&[zn, dir]);
        let (owner, state) = (locked.get(zn), locked.get(dir));
        if owner.gone || state.gone {
            return Err(stale(zn.id()).into());
        }
        let now = self.now();
        let cred = Cred { uid: owner.attrs.uid as u32, gid: owner.attrs.gid as u32 };
        let mut attrs =
            self.new_attrs(tx, dir.id(), &state.attrs, None, &NewFile::new(S_IFREG | 0o644, cred))?;
        attrs.size = value.len() as u64;
        self.check_quotas(&attrs, true)?;
        self.admit(tx, value.len() as u64, false)?;
        let packed = self.pack_new(tx, &attrs)?;
        let owner_plan = self.plan(tx, zn, owner, |a| self.state_changed(a, now))?;
        let dir_plan = self.plan_dir(tx, dir, state, 1, 0)?;
        let dn = self.alloc_file(tx, &attrs, packed, 0, None)?;
        let entry = dirent(self.version, dn.id().0, S_IFREG);
        if let Err(stop) = self.dir_zap(dir).add_u64(tx, name.as_bytes(), entry) {
            self.objset.free(tx, &dn);
            return Err(stop);
        }
        let logged = attrs.clone();
        let file = self.adopt(dn, attrs);
        self.put_value(tx, &file, value)?;
        dir_plan.apply(tx, dir, locked.get_mut(dir));
        owner_plan.apply(tx, zn, locked.get_mut(zn));
        if locked.get(zn).attrs.links > 0 {
            self.log_in_order(zn.id());
            self.log_create(tx, dir.id(), file.dnode(), &logged, name.as_bytes());
            self.log_value(tx, file.id(), value);
        }
        Ok(())
    }

    fn put_value(&self, tx: &Tx, file: &Znode, value: &[u8]) -> Result<()> {
        if value.is_empty() {
            return Ok(());
        }
        let dn = file.dnode();
        let want = value.len().next_multiple_of(512).min(self.props().recordsize as usize) as u32;
        if dn.maxblkid() == 0 && want > dn.blksz() {
            dn.set_blksz(tx, want, 0)?;
        }
        dn.write(tx, 0, value);
        Ok(())
    }

    pub(super) async fn dir_xattr_remove(&self, zn: &Arc<Znode>, name: &str) -> Result<()> {
        self.change(|tx| {
            let (Some(dir), Some(file)) = (self.xattr_dir(zn)?, self.dir_xattr_find(zn, name)?) else {
                return Ok(());
            };
            let mut locked = Locked::new(&[zn, &dir, &file]);
            let now = self.now();
            let plan = self.plan(tx, zn, locked.get(zn), |a| self.state_changed(a, now))?;
            let dir_plan = self.plan_dir(tx, &dir, locked.get(&dir), -1, 0)?;
            file.dnode().in_order(tx)?;
            Zap::new(dir.dnode()).remove(tx, name.as_bytes())?;
            // No one else can have it open: there is no other way to it than its name.
            locked.get_mut(&file).gone = true;
            self.objset.free(tx, file.dnode());
            plan.apply(tx, zn, locked.get_mut(zn));
            dir_plan.apply(tx, &dir, locked.get_mut(&dir));
            if locked.get(zn).attrs.links > 0 {
                self.log_in_order(zn.id());
                self.log_remove(tx, dir.id(), name.as_bytes(), file.id(), false, true);
            }
            drop(locked);
            self.znodes.forget(file.id());
            Ok(())
        })
        .await
    }
}
