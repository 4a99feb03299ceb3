//! `zfs allow` and `unallow`: what is given to whom, checked and kept.
//!
//! All of a request is done in one txg, so nobody ever has half of what he was given, nor half of
//! what was taken from him.

use super::errors::{Answer, of, of_dataset};
use super::pool::Pool;
use super::{Engine, Serves};
use std::sync::Arc;
use zilla::access::Grantee;
use zilla::tree::DatasetDir;
use zilla_control::props::{self, naming, permissions};
use zilla_control::types::{Grant, GrantChange, GrantList, GrantQuery};
use zilla_control::{Caller, ErrorCode};

/// Of one request; a terminal's line holds far fewer.
const MOST: usize = 4096;

impl Serves<GrantQuery> for Engine {
    /// What is given on a dataset and on each above it, the dataset itself first.
    async fn serve(&self, _: &Caller, r: GrantQuery) -> Answer<Vec<GrantList>> {
        let (_, dir) = self.head_dir(&r.name).await?;
        let mut all = Vec::new();
        for d in dir.ancestry() {
            let grants = d.grants().await.map_err(of_dataset)?;
            if grants.is_empty() {
                continue;
            }
            let grants = grants.into_iter();
            let grants =
                grants.map(|(who, permissions)| Grant { whom: who.as_str().to_owned(), permissions });
            all.push(GrantList { name: d.name(), grants: grants.collect() });
        }
        Ok(all)
    }
}

impl Serves<GrantChange> for Engine {
    async fn serve(&self, _: &Caller, r: GrantChange) -> Answer<()> {
        self.check_running(&r.name)?;
        let (pool, dir) = self.head_dir(&r.name).await?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        let grants = checked(&r)?;
        let mut names = vec![r.name.clone()];
        if r.recursive {
            let mut todo = vec![dir];
            while let Some(d) = todo.pop() {
                for child in d.children().await.map_err(of_dataset)? {
                    names.push(child.name());
                    todo.push(child);
                }
            }
        }
        pool.zilla.change_grants(names, grants, r.take).await.map_err(of_dataset)
    }
}

impl Engine {
    /// The dir of a file system or volume.
    async fn head_dir(&self, name: &str) -> Answer<(Arc<Pool>, DatasetDir)> {
        naming::check_dataset_name(name, props::HEADS, false)?;
        let pool = self.pool_of(name)?;
        let dir = pool.zilla.by_name(name).await.map_err(of(name))?.dir();
        Ok((pool, dir))
    }
}

/// A request's grants in the form in which they are kept: sets apart from permissions.
fn checked(r: &GrantChange) -> Answer<Vec<(Grantee, Vec<String>)>> {
    let bad = || ErrorCode::BadPerm.into();
    let count: usize = r.grants.iter().map(|g| g.permissions.len().max(1)).sum();
    if count > MOST || r.recursive && !r.take {
        return Err(bad());
    }
    let mut all = Vec::new();
    for grant in &r.grants {
        let whom = Grantee::parse(&grant.whom).ok_or_else(bad)?;
        let set = whom.as_str().get(3..).filter(|rest| rest.starts_with('@'));
        if set.is_some_and(|name| !permissions::is_set_name(name))
            || (grant.permissions.is_empty() && !r.take)
        {
            return Err(bad());
        }
        let of_sets = whom.as_str().starts_with(|c: char| c.is_ascii_uppercase());
        let mut names = Vec::new();
        for name in &grant.permissions {
            let name = permissions::canonical(name).ok_or_else(bad)?;
            if name.starts_with('@') != of_sets {
                return Err(bad());
            }
            names.push(name.to_owned());
        }
        all.push((whom, names));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(take: bool, whom: &str, permissions: &[&str]) -> GrantChange {
        let permissions = permissions.iter().map(|p| (*p).to_owned()).collect();
        let grants = vec![Grant { whom: whom.to_owned(), permissions }];
        GrantChange { name: "tank".into(), take, recursive: false, grants }
    }

    #[test]
    fn only_what_openzfs_could_have_written_is_kept() {
        let kept = checked(&change(false, "ul$1000", &["compress", "snapshot"])).unwrap();
        assert_eq!(kept[0].1, ["compression", "snapshot"]);
        assert!(checked(&change(true, "U-$1", &[])).is_err());
        assert!(checked(&change(true, "Ul$1", &[])).is_ok());
        for (whom, perms) in [
            ("ul$1000", &["created"][..]),
            ("ul$1000", &["@set"]),
            ("Ul$1000", &["snapshot"]),
            ("ul$staff", &["snapshot"]),
            ("s-$set", &["snapshot"]),
            ("s-$@a/b", &["snapshot"]),
            ("xl$1", &["snapshot"]),
            ("ul$1", &[]),
        ] {
            let refused = checked(&change(false, whom, perms)).unwrap_err();
            assert_eq!(refused.code, ErrorCode::BadPerm, "{whom} {perms:?}");
        }
    }
}
