//! Quotas of users, groups and projects.
//!
//! A quota is an entry of a ZAP that the master node names (`userquota@` and so on), what is used
//! an entry of the objset's accounting objects; both by id in hexadecimal, the count of objects
//! under `obj-` and the id. Usage is as of the last synced txg, so a quota can be overrun by what a
//! few seconds write, as in OpenZFS.

use super::attrs::Attrs;
use super::err;
use super::fs::Zfs;
use crate::dmu::Now;
use crate::dsl::{Quota, Refusal};
use crate::error::{Errno, Result};
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::zap::{CreateOpts, Zap};
use zilla_ondisk::object_type::DMU_OT_USERGROUP_QUOTA;

/// Names in the master node: bytes and objects, of users, groups and projects.
const NAMES: [[&str; 2]; 3] = [
    ["userquota@", "userobjquota@"],
    ["groupquota@", "groupobjquota@"],
    ["projectquota@", "projectobjquota@"],
];

/// The name in the master node of a kind of quota, of bytes or of objects.
pub fn quota_name(whose: Quota, objects: bool) -> &'static str {
    let [bytes, count] = match whose {
        Quota::User => NAMES[0],
        Quota::Group => NAMES[1],
        Quota::Project => NAMES[2],
    };
    if objects { count } else { bytes }
}
const USED: [ObjectId; 3] = [ObjectId::USERUSED, ObjectId::GROUPUSED, ObjectId::PROJECTUSED];

/// The ZAPs of quotas that are set.
#[derive(Clone, Default)]
pub(super) struct QuotaObjs(pub(super) [[Option<Zap>; 2]; 3]);

/// What is known of them.
#[derive(Default)]
pub(super) struct Known {
    objs: Option<QuotaObjs>,
    /// How often somebody has set a quota: what was looked up meanwhile may lack it.
    pub(super) changes: u64,
}

impl Zfs {
    /// Someone set a quota: look for the quota objects again.
    pub fn quotas_changed(&self) {
        let mut known = self.quotas.lock();
        known.objs = None;
        known.changes += 1;
    }

    /// Sets the quota of a user, group or project; 0 takes it away. It counts at once, whatever the
    /// property `readonly` says.
    #[crate::boxed]
    pub async fn set_quota(&self, whose: Quota, objects: bool, id: u64, quota: u64) -> Result<()> {
        let name = quota_name(whose, objects);
        if self.version < super::ZPL_VERSION_USERSPACE {
            return Err(Refusal::NoAccounts(name).into());
        }
        if whose == Quota::Project && !self.props().project_quota {
            return Err(Refusal::NoAccounts(name).into());
        }
        let Some(txgs) = self.txgs_any().filter(|_| self.kept_log().is_none()) else {
            return err(Errno::ROFs, "nothing can be changed in the file system");
        };
        self.change_in(txgs, |tx| self.set_quota_now(tx, name, &format!("{id:x}"), quota)).await?;
        self.quotas_changed();
        Ok(())
    }

    fn set_quota_now(&self, tx: &Tx, name: &str, id: &str, quota: u64) -> Now<()> {
        self.admit(tx, 16 << 10, quota == 0)?;
        let known = self.master.lookup_u64(name.as_bytes())?;
        let zap = match known {
            Some(o) => Zap::new(&self.objset.hold(ObjectId(o))?),
            None if quota == 0 => return Ok(()),
            None => {
                let dn = Zap::create(&self.objset, tx, DMU_OT_USERGROUP_QUOTA, &CreateOpts::default())?;
                if let Err(stop) = self.master.add_u64(tx, name.as_bytes(), dn.id().0) {
                    self.objset.free(tx, &dn);
                    return Err(stop);
                }
                Zap::new(&dn)
            }
        };
        let id = id.as_bytes();
        match quota {
            0 if zap.lookup_u64(id)?.is_none() => Ok(()),
            0 => zap.remove(tx, id),
            _ => zap.update_u64(tx, id, quota),
        }
    }

    pub(super) fn quota_objs(&self) -> Now<QuotaObjs> {
        let changes = {
            let known = self.quotas.lock();
            if let Some(objs) = &known.objs {
                return Ok(objs.clone());
            }
            known.changes
        };
        let objs = self.look_up_quota_objs()?;
        self.remember_quota_objs(&objs, changes);
        Ok(objs)
    }

    pub(super) fn remember_quota_objs(&self, objs: &QuotaObjs, changes: u64) {
        let mut known = self.quotas.lock();
        if known.changes == changes {
            known.objs = Some(objs.clone());
        }
    }

    pub(super) fn look_up_quota_objs(&self) -> Now<QuotaObjs> {
        let mut objs = QuotaObjs::default();
        for (kinds, names) in objs.0.iter_mut().zip(NAMES) {
            for (slot, name) in kinds.iter_mut().zip(names) {
                if let Some(o) = self.master.lookup_u64(name.as_bytes())? {
                    *slot = Some(Zap::new(&self.objset.hold(ObjectId(o))?));
                }
            }
        }
        Ok(objs)
    }

    /// Refuses with EDQUOT what would add to a user, group or project over its quota; `new_object`
    /// also counts objects.
    pub(super) fn check_quotas(&self, attrs: &Attrs, new_object: bool) -> Now<()> {
        if self.is_replaying() {
            return Ok(());
        }
        let objs = self.quota_objs()?;
        let defaults = self.props().default_quotas;
        let ids = [attrs.uid, attrs.gid, attrs.projid];
        for (i, ((kinds, id), default)) in objs.0.iter().zip(ids).zip(defaults).enumerate() {
            if i == 2 && (attrs.projid == super::DEFAULT_PROJID || !self.props().project_quota) {
                continue;
            }
            let Some(used) = USED.get(i).and_then(|o| self.objset.special(*o)).map(|dn| Zap::new(&dn)) else {
                continue;
            };
            let [bytes, objects] = kinds;
            self.check_quota(bytes.as_ref(), default, &used, &format!("{id:x}"), "")?;
            if new_object {
                self.check_quota(objects.as_ref(), 0, &used, &format!("{id:x}"), "obj-")?;
            }
        }
        Ok(())
    }

    fn check_quota(&self, quotas: Option<&Zap>, default: u64, used: &Zap, id: &str, prefix: &str) -> Now<()> {
        let own = match quotas {
            Some(q) => q.lookup_u64(id.as_bytes())?,
            None => None,
        };
        let quota = own.unwrap_or(default);
        if quota == 0 {
            return Ok(());
        }
        let used = used.lookup_u64(format!("{prefix}{id}").as_bytes())?.unwrap_or(0);
        if used >= quota {
            err(Errno::DQuot, "over quota")?;
        }
        Ok(())
    }
}
