//! `zfs userspace` and its kin, and the properties `userused@...`, `userquota@...`.

use super::errors::{Answer, of, of_dataset};
use super::names::Names;
use super::pool::Pool;
use super::{Engine, Serves};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use zilla::accounts::Quota;
use zilla::error::{Errno, Result};
use zilla::tree::DatasetRef;
use zilla_control::owners::Kind;
use zilla_control::props::{self, TypedValue};
use zilla_control::types::{Account, DatasetAccounts, Owners, PropValue, Source};
use zilla_control::{ApiError, Caller, ErrorCode};

/// Whom `userused@joe` or `groupquota@staff` names.
pub(super) fn owner_named(property: &str) -> Option<(Kind, &str)> {
    let (family, who) = property.split_once('@').filter(|_| props::is_userquota_prop(property))?;
    match family {
        family if family.starts_with("user") => Some((Kind::User, who)),
        family if family.starts_with("group") => Some((Kind::Group, who)),
        _ => None,
    }
}

/// What `userobjquota@joe` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    whose: Quota,
    objects: bool,
    quota: bool,
    id: u64,
}

impl Named {
    /// None: it is no such property, or nobody of this name is known.
    pub fn parse(property: &str, names: &Names) -> Option<Named> {
        let (family, who) = property.split_once('@')?;
        let (family, quota) = match family.strip_suffix("quota") {
            Some(rest) => (rest, true),
            None => (family.strip_suffix("used")?, false),
        };
        let (family, objects) = match family.strip_suffix("obj") {
            Some(rest) => (rest, true),
            None => (family, false),
        };
        let (whose, id) = match family {
            "user" => (Quota::User, names.id(Kind::User, who)),
            "group" => (Quota::Group, names.id(Kind::Group, who)),
            // The highest number stands for no project.
            "project" => (Quota::Project, who.parse().ok().filter(|id| *id != u32::MAX)),
            _ => return None,
        };
        Some(Named { whose, objects, quota, id: u64::from(id?) })
    }
}

/// Quotas to be set.
pub type Quotas = Vec<(Named, u64)>;

/// Settings of a request that are quotas of users, groups and projects, apart from the rest.
pub async fn split_quotas(
    caller: &Caller,
    words: &BTreeMap<String, String>,
) -> Answer<(BTreeMap<String, String>, Quotas)> {
    let names = Names::of(caller, words.keys()).await?;
    let mut rest = words.clone();
    let mut quotas = Vec::new();
    for (name, text) in words.iter().filter(|(n, _)| props::is_userquota_prop(n)) {
        rest.remove(name);
        let (_, value) = props::parse_dataset_prop(name, text, props::FS, false, None)?;
        let TypedValue::Num(quota) = value else { continue };
        let Some(named) = Named::parse(name, &names) else {
            let what = format!("'{name}' has an invalid user/group name");
            return Err(ApiError::with(ErrorCode::BadProp, what));
        };
        quotas.push((named, quota));
    }
    Ok((rest, quotas))
}

fn unsupported(e: zilla::error::Error) -> ApiError {
    match e.is(Errno::NotSup) {
        true => ApiError::with(ErrorCode::BadVersion, "pool must be upgraded to set this property or value"),
        false => of_dataset(e),
    }
}

impl Pool {
    async fn accounts(&self, ds: &DatasetRef, whose: Quota) -> Result<Vec<Account>> {
        let [_, objects, projects] = ds.accounts_kept().await?;
        let mut all: BTreeMap<u64, Account> = BTreeMap::new();
        if whose == Quota::Project && !projects {
            return Ok(Vec::new());
        }
        for u in ds.accounts(whose).await? {
            let a = all.entry(u.id).or_default();
            (a.used, a.quota) = (Some(u.bytes), Some(0));
            if objects {
                (a.objects_used, a.objects_quota) = (Some(u.objects), Some(0));
            }
        }
        for (id, quota) in ds.quotas(whose, false).await? {
            let a = all.entry(id).or_default();
            a.quota = Some(quota);
            a.used.get_or_insert(0);
        }
        if objects {
            for (id, quota) in ds.quotas(whose, true).await? {
                let a = all.entry(id).or_default();
                a.objects_quota = Some(quota);
                a.objects_used.get_or_insert(0);
            }
        }
        Ok(all.into_iter().map(|(id, a)| Account { id, ..a }).collect())
    }

    /// The values of `userused@...`, `userquota@...` and their kin among some properties; those
    /// that the dataset keeps no account of are left out. However many are asked for, what users
    /// or groups have is read once.
    pub async fn account_properties(
        &self,
        ds: &DatasetRef,
        wanted: &[String],
        names: &Names,
    ) -> Result<Vec<(String, PropValue)>> {
        let named = wanted.iter().filter_map(|name| Some((name, Named::parse(name, names)?)));
        let named: Vec<(&String, Named)> = named.collect();
        let mut out = Vec::new();
        if named.is_empty() || !ds.is_filesystem().await? {
            return Ok(out);
        }
        let [bytes, objects, projects] = ds.accounts_kept().await?;
        let (mut used, mut quotas) = (BTreeMap::new(), BTreeMap::new());
        for (name, n) in named {
            if !bytes || n.objects && !objects || n.whose == Quota::Project && !projects {
                continue;
            }
            let value = if n.quota {
                let all = match quotas.entry((n.whose, n.objects)) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        let read = ds.quotas(n.whose, n.objects).await?;
                        new.insert(read.into_iter().collect::<BTreeMap<u64, u64>>())
                    }
                };
                all.get(&n.id).copied().unwrap_or(0)
            } else {
                let all = match used.entry(n.whose) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        let read = ds.accounts(n.whose).await?;
                        new.insert(read.into_iter().map(|u| (u.id, u)).collect::<BTreeMap<_, _>>())
                    }
                };
                let found = all.get(&n.id).copied().unwrap_or_default();
                if n.objects { found.objects } else { found.bytes }
            };
            out.push((name.clone(), PropValue::new(value.to_string(), Source::Local)));
        }
        Ok(out)
    }
}

impl Serves<DatasetAccounts> for Engine {
    async fn serve(&self, _: &Caller, r: DatasetAccounts) -> Answer<Vec<Account>> {
        let pool = self.pool_of(&r.name)?;
        let ds = pool.zilla.by_name(&r.name).await.map_err(of(&r.name))?;
        if !ds.is_filesystem().await.map_err(of(&r.name))? {
            return Err(ApiError::new(ErrorCode::BadType).subject(r.name));
        }
        let whose = match r.owners {
            Owners::User => Quota::User,
            Owners::Group => Quota::Group,
            Owners::Project => Quota::Project,
        };
        let [bytes, ..] = ds.accounts_kept().await.map_err(of(&r.name))?;
        if !bytes {
            return Err(unsupported(zilla::error::DatasetRefusal::NoAccounts("userused").into()));
        }
        pool.accounts(&ds, whose).await.map_err(of(&r.name))
    }
}

impl Engine {
    /// Sets quotas of users, groups and projects in a file system, mounted or not.
    pub(super) async fn set_quotas(&self, pool: &Pool, name: &str, quotas: &[(Named, u64)]) -> Answer<()> {
        if quotas.is_empty() {
            return Ok(());
        }
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        // Nobody mounts it while it is open here.
        let _one = pool.mounting.lock().await;
        pool.settle(name).await?;
        let mounted = pool.mounts().get(name).filter(|m| !m.mount.is_going()).map(|m| m.fs.clone());
        let zfs = match &mounted {
            Some(fs) => fs.zfs(),
            None => {
                let ds = pool.zilla.by_name(name).await.map_err(of(name))?;
                if ds.is_snapshot() || !ds.is_filesystem().await.map_err(of(name))? {
                    return Err(ErrorCode::PropType.into());
                }
                ds.open_zfs(false).await.map_err(of(name))?
            }
        };
        for (n, quota) in quotas {
            zfs.set_quota(n.whose, n.objects, n.id, *quota).await.map_err(unsupported)?;
        }
        zfs.sync().await.map_err(of(name))
    }

    /// The same for a dataset that was just made: where it cannot have them it is refused whole.
    pub(super) async fn quotas_of_new(&self, pool: &Pool, name: &str, quotas: &[(Named, u64)]) -> Answer<()> {
        let Err(why) = self.set_quotas(pool, name, quotas).await else { return Ok(()) };
        super::destroy::carry_out(pool, &[name.to_owned()], false).await?;
        Err(why)
    }
}
