//! What each user, group and project uses in a file system: the accounting objects.
//!
//! Three ZAPs of negative number: id in hexadecimal to bytes, and `obj-` and the id to objects.

use super::DslPool;
use super::dataset::DslDataset;
use crate::dmu::{NewObject, Objset, Usage};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::zap::{CreateOpts, Zap};
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_ondisk::object_type::DMU_OT_USERGROUP_USED;
use zilla_ondisk::objset::{
    OBJSET_FLAG_PROJECTQUOTA_COMPLETE, OBJSET_FLAG_USERACCOUNTING_COMPLETE,
    OBJSET_FLAG_USEROBJACCOUNTING_COMPLETE,
};

/// Whose account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quota {
    User,
    Group,
    Project,
}

impl Quota {
    pub(crate) fn object(self) -> ObjectId {
        match self {
            Quota::User => ObjectId::USERUSED,
            Quota::Group => ObjectId::GROUPUSED,
            Quota::Project => ObjectId::PROJECTUSED,
        }
    }
}

/// One account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserSpace {
    pub id: u64,
    pub bytes: u64,
    pub objects: u64,
}

const OBJECTS: &str = "obj-";

/// Charges owners with what a sync changed. An account that cannot be read or written is wrong from
/// now on, the others are not: the first error is told when all are done.
pub(super) async fn update(tx: &Tx, os: &Arc<Objset>, usage: &[Usage]) -> Result<()> {
    let flags = os.phys().flags;
    let mut sums: BTreeMap<(Quota, String), i64> = BTreeMap::new();
    for u in usage {
        let project = u.owner.projid.filter(|_| flags & OBJSET_FLAG_PROJECTQUOTA_COMPLETE != 0);
        let whose =
            [(Quota::User, Some(u.owner.uid)), (Quota::Group, Some(u.owner.gid)), (Quota::Project, project)];
        for (kind, id) in whose {
            let Some(id) = id else { continue };
            // Of what was there before, only what the disk says is known.
            let n = sums.entry((kind, format!("{id:x}"))).or_default();
            *n = n.saturating_add(u.bytes);
            if flags & OBJSET_FLAG_USEROBJACCOUNTING_COMPLETE != 0 {
                let n = sums.entry((kind, format!("{OBJECTS}{id:x}"))).or_default();
                *n = n.saturating_add(u.objects);
            }
        }
    }
    let mut result = Ok(());
    for ((kind, key), delta) in sums {
        if delta != 0 {
            result = result.and(charge(tx, os, kind, &key, delta).await);
        }
    }
    result
}

async fn charge(tx: &Tx, os: &Arc<Objset>, kind: Quota, key: &str, delta: i64) -> Result<()> {
    let zap = match os.special(kind.object()) {
        Some(dn) => Zap::new(&dn),
        None => {
            let spec = NewObject::new(DMU_OT_USERGROUP_USED, 512);
            let dn = os
                .create_special(tx, kind.object(), spec)
                .ok_or_else(|| Error::inval("no such accounting object"))?;
            crate::dmu::resident(|| Zap::init(&dn, tx, &CreateOpts::default())).await?;
            Zap::new(&dn)
        }
    };
    zap.bump(tx, key, delta).await
}

impl DslPool {
    /// The quotas of a kind, of bytes or of objects, that are set: id and quota.
    #[crate::boxed]
    pub async fn quotas(&self, ds: &Arc<DslDataset>, kind: Quota, objects: bool) -> Result<Vec<(u64, u64)>> {
        let os = self.objset(ds).await?;
        let master = Zap::open(&os, crate::zpl::MASTER_NODE_OBJ).await?;
        let Some(id) = master.try_get_u64(crate::zpl::quota_name(kind, objects)).await? else {
            return Ok(Vec::new());
        };
        let all = Zap::open(&os, id).await?.entries().await?;
        let pair =
            |e: &crate::zap::Entry| Some((u64::from_str_radix(&e.name_str(), 16).ok()?, e.value.as_u64()?));
        Ok(all.iter().filter_map(pair).collect())
    }

    /// Which accounts the file system keeps: of bytes at all, of objects, of projects.
    #[crate::boxed]
    pub async fn accounts_kept(&self, ds: &Arc<DslDataset>) -> Result<[bool; 3]> {
        let flags = self.objset(ds).await?.phys().flags;
        Ok([
            flags & OBJSET_FLAG_USERACCOUNTING_COMPLETE != 0,
            flags & OBJSET_FLAG_USEROBJACCOUNTING_COMPLETE != 0,
            flags & OBJSET_FLAG_PROJECTQUOTA_COMPLETE != 0,
        ])
    }

    /// All accounts of a kind.
    #[crate::boxed]
    pub async fn userspace(&self, ds: &Arc<DslDataset>, kind: Quota) -> Result<Vec<UserSpace>> {
        let os = self.objset(ds).await?;
        let Some(dn) = os.special(kind.object()) else { return Ok(Vec::new()) };
        let mut all: BTreeMap<u64, UserSpace> = BTreeMap::new();
        for e in Zap::new(&dn).entries().await? {
            let name = e.name_str();
            let (hex, objects) = match name.strip_prefix(OBJECTS) {
                Some(hex) => (hex, true),
                None => (&*name, false),
            };
            let Ok(id) = u64::from_str_radix(hex, 16) else { continue };
            let account = all.entry(id).or_insert(UserSpace { id, ..UserSpace::default() });
            let v = e.value.as_u64().unwrap_or(0);
            if objects { account.objects = v } else { account.bytes = v }
        }
        Ok(all.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dmu::Owner;
    use crate::dmu::testing::Harness;
    use zilla_env::block_on;

    const USERS: u64 = 3000;

    fn usage(bytes: i64) -> Vec<Usage> {
        let owner = |uid| Owner { uid, gid: 0, projid: None };
        (0..USERS).map(|uid| Usage { owner: owner(uid), bytes, objects: 0 }).collect()
    }

    fn used(h: &Harness, uid: u64) -> Result<u64> {
        let zap = Zap::new(&h.objset.special(ObjectId::USERUSED).unwrap());
        block_on(zap.try_get_u64(&format!("{uid:x}"))).map(|n| n.unwrap_or(0))
    }

    /// Those whose accounts lie elsewhere are charged.
    #[test]
    fn a_damaged_leaf_leaves_the_other_accounts_alone() {
        let mut h = Harness::new(2);
        block_on(update(&h.tx(), &h.objset, &usage(1000))).unwrap();
        block_on(h.sync_open());
        let accounts = h.objset.special(ObjectId::USERUSED).unwrap();
        let Ok(Some(leaf)) = accounts.block_pointer(accounts.maxblkid()) else { panic!("no leaves") };
        h.store.set_unreadable(leaf.dva(0).offset, true);
        block_on(h.reopen());
        let told = block_on(update(&h.tx(), &h.objset, &usage(24)));
        assert!(told.is_err());
        let found: Vec<_> = (0..USERS).map(|uid| used(&h, uid)).collect();
        let lost = found.iter().filter(|n| n.is_err()).count();
        assert!((1..USERS as usize / 2).contains(&lost), "{lost}");
        assert!(found.iter().flatten().all(|n| *n == 1024));
        // What an account says at most and at least.
        let (all, nobody) = ([i64::MAX; 3], -1 << 50);
        let uid = (0..USERS).find(|uid| used(&h, *uid).is_ok()).unwrap();
        let charge = |bytes| {
            let of = Usage { owner: Owner { uid, gid: 0, projid: None }, bytes, objects: 0 };
            block_on(update(&h.tx(), &h.objset, &[of])).unwrap();
            used(&h, uid).unwrap()
        };
        assert_eq!(charge(nobody), 0);
        all.into_iter().for_each(|bytes| _ = charge(bytes));
        assert_eq!(used(&h, uid).unwrap(), u64::MAX);
    }
}
