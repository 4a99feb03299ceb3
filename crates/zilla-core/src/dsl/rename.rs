//! Renaming dirs and snapshots.

use super::DslPool;
use super::Refusal;
use super::bpobj::{Delta, Space};
use super::name;
use super::space::SpaceCheck;
use crate::error::{Errno, Error, Result};
use crate::tunables;
use crate::txg::Tx;
use crate::zap::Zap;
use std::sync::Arc;
use zilla_ondisk::dsl::{
    DD_FIELD_FILESYSTEM_COUNT, DD_FIELD_SNAPSHOT_COUNT, DD_USED_CHILD, DD_USED_CHILD_RSRV,
};
use zilla_ondisk::enums::ObjsetType;

impl DslPool {
    /// Renames a file system or volume with all below it, moving it to another parent if the name
    /// says so.
    #[crate::boxed]
    pub async fn rename(&self, tx: &Tx, old: &str, new: &str) -> Result<()> {
        name::check(new)?;
        let dir = self.dir_by_name(old).await?;
        let Some(parent) = dir.parent() else {
            return Err(Error::inval("the root dataset cannot be renamed"));
        };
        let Some((up, last)) = name::parent(new) else {
            return Err(Error::os(Errno::XDev, "datasets must be within same pool"));
        };
        if new.split('/').next() != Some(&*self.name()) {
            return Err(Error::os(Errno::XDev, "datasets must be within same pool"));
        }
        let to = self.dir_by_name(up).await.map_err(|e| match e.is(Errno::NoEnt) {
            true => Refusal::NoParent.into(),
            false => e,
        })?;
        if to.ancestry().iter().any(|d| d.id == dir.id) {
            return Err(Error::inval("New dataset name cannot be a descendant of current dataset name"));
        }
        let above = self.head(&to).await?;
        if self.os_type(&above).await? == ObjsetType::Zvol.number() {
            return Err(Refusal::ParentNotFilesystem.into());
        }
        let children = Zap::open(self.mos(), to.phys().child_dir_zapobj).await?;
        if children.try_get_u64(last).await?.is_some() {
            return Err(Error::os(Errno::Exist, format!("dataset '{new}' already exists")));
        }
        self.check_name_lengths(&dir, new).await?;
        self.check_space(SpaceCheck::Reserved)?;
        for d in [&parent, &to, &dir] {
            self.read_dir(d).await?;
        }
        if to.id != parent.id {
            self.rename_key_check(&dir, &to).await?;
            if self.feature_active("filesystem_limits") {
                self.read_for_counts(&dir).await?;
            }
            self.move_space(tx, &dir, &parent, &to)?;
            if self.feature_active("filesystem_limits") {
                // Those above the new place may count.
                self.limits_count(tx, &dir).await?;
            }
            for (field, itself) in [(DD_FIELD_FILESYSTEM_COUNT, 1), (DD_FIELD_SNAPSHOT_COUNT, 0)] {
                let below = match dir.zap() {
                    Some(zap) => zap.try_get_u64(field).await?.unwrap_or(0) as i64,
                    None => 0,
                };
                self.count_adjust(tx, &parent, -below - itself, field).await?;
                self.count_adjust(tx, &to, below + itself, field).await?;
            }
        }
        self.note_dir(tx, &dir, "rename", &format!("-> {new}"));
        let old_children = Zap::open(self.mos(), parent.phys().child_dir_zapobj).await?;
        old_children.delete(tx, &dir.short_name()).await?;
        children.insert_u64(tx, last, dir.id).await?;
        dir.change(tx, |d| d.parent_obj = to.id);
        dir.set_place(Some(to), last.to_owned());
        self.note_renamed();
        self.props_changed(&dir).await
    }

    /// No dataset or snapshot below may get a name that is too long.
    async fn check_name_lengths(&self, dir: &Arc<super::DslDir>, new: &str) -> Result<()> {
        let old_len = dir.name().len();
        let mut todo = vec![dir.clone()];
        while let Some(d) = todo.pop() {
            let mut longest = d.name().len();
            if d.phys().head_dataset_obj != 0 {
                for s in self.snapshots(&*self.head(&d).await?).await? {
                    longest = longest.max(s.name().len());
                }
            }
            // (What lies too deep already may be moved up.)
            let now = name::depth(&d.name());
            let then = now.saturating_sub(name::depth(&dir.name())) + name::depth(new);
            if longest - old_len + new.len() >= name::ZFS_MAX_DATASET_NAME_LEN
                || then > tunables::MAX_DATASET_NESTING.get() && then > now
            {
                return Err(Error::os(Errno::NameTooLong, "New dataset name is too long"));
            }
            todo.extend(self.child_dirs(&d).await?);
        }
        Ok(())
    }

    fn move_space(
        &self,
        tx: &Tx,
        dir: &Arc<super::DslDir>,
        from: &Arc<super::DslDir>,
        to: &Arc<super::DslDir>,
    ) -> Result<()> {
        let p = dir.phys();
        self.transfer_check(from, to, p.used_bytes.max(p.reserved))?;
        let s =
            Delta::from(Space { used: p.used_bytes, comp: p.compressed_bytes, uncomp: p.uncompressed_bytes });
        from.diduse(tx, DD_USED_CHILD, -s);
        to.diduse(tx, DD_USED_CHILD, s);
        if p.reserved > p.used_bytes {
            let unused = Delta { used: (p.reserved - p.used_bytes) as i64, ..Delta::default() };
            from.diduse(tx, DD_USED_CHILD_RSRV, -unused);
            to.diduse(tx, DD_USED_CHILD_RSRV, unused);
        }
        Ok(())
    }

    /// Renames snapshot `old` of a file system to `new`; with `recursive`, that of all below it
    /// that have one.
    #[crate::boxed]
    pub async fn rename_snapshot(
        &self,
        tx: &Tx,
        fs: &str,
        old: &str,
        new: &str,
        recursive: bool,
    ) -> Result<()> {
        name::check_component(new)?;
        let mut found = Vec::new();
        let mut todo = vec![self.dir_by_name(fs).await?];
        while let Some(dir) = todo.pop() {
            let head = self.head(&dir).await?;
            if let Some(id) = self.snap_lookup(&head, old).await? {
                if self.snap_lookup(&head, new).await?.is_some() {
                    let what = format!("dataset '{}@{new}' already exists", dir.name());
                    return Err(Error::os(Errno::Exist, what));
                }
                if dir.name().len() + 1 + new.len() >= name::ZFS_MAX_DATASET_NAME_LEN {
                    return Err(Error::os(Errno::NameTooLong, "New dataset name is too long"));
                }
                self.read_for_renamed(&head).await?;
                found.push((head, self.dataset(id).await?));
            } else if !recursive {
                return Err(Error::no_ent("dataset does not exist"));
            }
            if recursive {
                todo.extend(self.child_dirs(&dir).await?);
            }
        }
        for (head, snap) in found {
            self.note(tx, &snap, "rename", &format!("-> @{new}"));
            self.snap_remove(tx, &head, old, false).await?;
            Zap::open(self.mos(), head.phys().snapnames_zapobj).await?.insert_u64(tx, new, snap.id).await?;
            *snap.snapname.lock() = new.to_owned();
            self.note_renamed();
        }
        Ok(())
    }
}
