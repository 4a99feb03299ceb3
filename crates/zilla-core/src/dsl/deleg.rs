//! Delegation: what users who do not administer the pool may do with a dataset, as `zfs allow`
//! says.
//!
//! A dir's permissions are a ZAP of ZAPs: the outer names *whom* (`ul$1000`), the inner one *what*
//! (names of permissions, each 0). The first letter of whom is who it is: `u` a user, `g` a group,
//! `e` everyone, `c` who creates a dataset below, `s` a named set; as a capital letter the same
//! with sets among its permissions, which begin with `@`. The second says where it holds: `l` on
//! the dataset itself, `d` on those below, `-` where that has no meaning.
//!
//! A snapshot is below its dataset in this: what was given with `l` alone does not hold for it.

use super::DslPool;
use super::Refusal;
use super::dataset::DslDataset;
use super::dir::DslDir;
use crate::error::Result;
use crate::txg::Tx;
use crate::zap::{CreateOpts, Zap};
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_ondisk::dsl::DMU_POOL_PROPS;
use zilla_ondisk::enums::SPA_VERSION_DELEGATED_PERMS;
use zilla_ondisk::object_type::DMU_OT_DSL_PERMS;

/// Who asks for something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Who {
    /// Whoever owns the pool: everything is allowed.
    #[default]
    Admin,
    User {
        uid: u32,
        /// The first is the user's own.
        gids: Vec<u32>,
    },
}

/// Longest name of whom. Source: ZFS_MAX_DELEG_NAME in zfs_deleg.h.
const MAX_WHO: usize = 128;

/// Whom permissions are given to, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grantee(String);

impl Grantee {
    /// From the stored form; None if it is none.
    pub fn parse(stored: &str) -> Option<Grantee> {
        let mut chars = stored.chars();
        let (kind, place, mark) = (chars.next()?, chars.next()?, chars.next()?);
        let rest = chars.as_str();
        let number =
            !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()) && rest.parse::<u32>().is_ok();
        let fits = match (kind.to_ascii_lowercase(), place) {
            ('u' | 'g', 'l' | 'd') => number,
            ('e', 'l' | 'd') | ('c', '-') => rest.is_empty(),
            ('s', '-') => rest.len() > 1 && rest.starts_with('@'),
            _ => false,
        };
        (fits && mark == '$' && stored.len() < MAX_WHO).then(|| Grantee(stored.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The user it is, if it is one.
    pub fn user(&self) -> Option<u32> {
        match self.0.get(..1) {
            Some("u" | "U") => self.0.get(3..)?.parse().ok(),
            _ => None,
        }
    }
}

/// Permissions of one dir: whom, and what.
pub type Grants = Vec<(Grantee, Vec<String>)>;

/// How the history says it.
fn said(who: &Grantee, perm: &str) -> String {
    format!("{} {perm}", who.as_str())
}

impl DslPool {
    /// What was given at this dir, without what was given above it.
    #[crate::boxed]
    pub async fn grants(&self, dir: &DslDir) -> Result<Grants> {
        let id = dir.phys().deleg_zapobj;
        if id == 0 {
            return Ok(Vec::new());
        }
        let mut out = Vec::new();
        for e in Zap::open(self.mos(), id).await?.entries().await? {
            let (Some(who), Some(inner)) = (Grantee::parse(&e.name_str()), e.value.as_u64()) else {
                continue;
            };
            let perms = Zap::open(self.mos(), inner).await?.entries().await?;
            let mut perms: Vec<String> = perms.iter().map(|p| p.name_str().into_owned()).collect();
            perms.sort();
            out.push((who, perms));
        }
        out.sort();
        Ok(out)
    }

    /// Gives permissions, all in this txg or none.
    #[crate::boxed]
    pub async fn allow(&self, tx: &Tx, name: &str, grants: &[(Grantee, Vec<String>)]) -> Result<()> {
        self.needs_version(SPA_VERSION_DELEGATED_PERMS)?;
        let dir = self.dir_by_name(name).await?;
        self.read_dir(&dir).await?;
        self.read_pool().await?;
        self.read_grants(&dir).await?;
        for (who, perms) in grants {
            self.grant(tx, &dir, who, perms).await?;
            perms.iter().for_each(|perm| self.note_dir(tx, &dir, "permission update", &said(who, perm)));
        }
        Ok(())
    }

    pub(super) async fn read_grants(&self, dir: &DslDir) -> Result<()> {
        self.grants(dir).await.map(drop)
    }

    /// Before a dataset is made below a dir: what may be given to who makes it.
    pub(super) async fn read_for_creator(&self, parent: &Arc<DslDir>) -> Result<()> {
        for dir in parent.ancestry() {
            self.read_grants(&dir).await?;
        }
        Ok(())
    }

    async fn grant(&self, tx: &Tx, dir: &DslDir, who: &Grantee, perms: &[String]) -> Result<()> {
        let none = CreateOpts::default();
        let outer = match dir.phys().deleg_zapobj {
            0 => {
                let zap = Zap::make(self.mos(), tx, DMU_OT_DSL_PERMS, &none).await?;
                dir.change(tx, |d| d.deleg_zapobj = zap.id());
                zap
            }
            id => Zap::open(self.mos(), id).await?,
        };
        let inner = match outer.try_get_u64(&who.0).await? {
            Some(id) => Zap::open(self.mos(), id).await?,
            None => {
                let zap = Zap::make(self.mos(), tx, DMU_OT_DSL_PERMS, &none).await?;
                outer.insert_u64(tx, &who.0, zap.id()).await?;
                zap
            }
        };
        for perm in perms {
            inner.set_u64(tx, perm, 0).await?;
        }
        Ok(())
    }

    /// Takes permissions away: those named, or where none is named all that someone has.
    #[crate::boxed]
    pub async fn unallow(&self, tx: &Tx, name: &str, grants: &[(Grantee, Vec<String>)]) -> Result<()> {
        let dir = self.dir_by_name(name).await?;
        let id = dir.phys().deleg_zapobj;
        if id == 0 {
            return Ok(());
        }
        self.read_dir(&dir).await?;
        self.read_pool().await?;
        self.read_grants(&dir).await?;
        let outer = Zap::open(self.mos(), id).await?;
        for (who, perms) in grants {
            let Some(inner) = outer.try_get_u64(&who.0).await? else { continue };
            let zap = Zap::open(self.mos(), inner).await?;
            for perm in perms {
                zap.delete_if_there(tx, perm).await?;
                self.note_dir(tx, &dir, "permission remove", &said(who, perm));
            }
            if perms.is_empty() {
                self.note_dir(tx, &dir, "permission who remove", who.as_str());
            }
            if perms.is_empty() || zap.is_empty().await? {
                outer.delete(tx, &who.0).await?;
                self.free_object(tx, inner).await?;
            }
        }
        Ok(())
    }

    /// A dataset was made by a user: it gets what those above it give to who creates one.
    #[crate::boxed]
    pub async fn grant_to_creator(&self, tx: &Tx, dir: &Arc<DslDir>, uid: u32) -> Result<()> {
        for above in dir.ancestry().iter().skip(1) {
            for (who, perms) in self.grants(above).await? {
                let kind = match who.as_str() {
                    "c-$" => 'u',
                    "C-$" => 'U',
                    _ => continue,
                };
                self.grant(tx, dir, &Grantee(format!("{kind}l${uid}")), &perms).await?;
            }
        }
        Ok(())
    }

    /// Whether the pool lets permissions count (its property `delegation`).
    #[crate::boxed]
    pub async fn delegates(&self) -> Result<bool> {
        let Some(id) = self.directory().await?.try_get_u64(DMU_POOL_PROPS).await? else { return Ok(true) };
        Ok(Zap::open(self.mos(), id).await?.try_get_u64("delegation").await?.is_none_or(|on| on != 0))
    }

    /// Whether someone may do something with a dataset.
    #[crate::boxed]
    pub async fn may(&self, ds: &DslDataset, perm: &str, who: &Who) -> Result<bool> {
        self.may_at(&ds.dir(), ds.is_snapshot(), perm, who).await
    }

    /// Whether someone may do something with what is below a dir: a snapshot of it, or a dataset
    /// that he is about to make there, of which he has what is given to who creates one.
    #[crate::boxed]
    pub async fn may_below(&self, dir: &Arc<DslDir>, perm: &str, who: &Who, new: bool) -> Result<bool> {
        if self.may_at(dir, true, perm, who).await? {
            return Ok(true);
        }
        let mut sets = Sets::new();
        for d in dir.ancestry().iter().filter(|_| new) {
            let grants = self.grants(d).await?;
            let of = |key: &str| {
                grants.iter().filter(|(w, _)| w.0 == key).flat_map(|(_, p)| p.clone()).collect::<Vec<_>>()
            };
            add_sets(&mut sets, of("C-$"));
            if of("c-$").iter().any(|p| p == perm) || set_gives(&grants, &mut sets, perm) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn may_at(&self, dir: &Arc<DslDir>, below: bool, perm: &str, who: &Who) -> Result<bool> {
        let Who::User { uid, gids } = who else { return Ok(true) };
        let mut sets = Sets::new();
        for d in dir.ancestry() {
            let place = if d.id == dir.id && !below { 'l' } else { 'd' };
            let grants = self.grants(&d).await?;
            let mut theirs = vec![('u', uid.to_string()), ('e', String::new())];
            theirs.extend(gids.iter().map(|g| ('g', g.to_string())));
            for (kind, rest) in &theirs {
                let key = format!("{kind}{place}${rest}");
                if grants.iter().any(|(w, perms)| w.0 == key && perms.iter().any(|p| p == perm)) {
                    return Ok(true);
                }
                let key = format!("{}{place}${rest}", kind.to_ascii_uppercase());
                let given = grants.iter().filter(|(w, _)| w.0 == key);
                add_sets(&mut sets, given.flat_map(|(_, p)| p.clone()));
            }
            if set_gives(&grants, &mut sets, perm) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Refuses what someone may not do.
    #[crate::boxed]
    pub async fn must_be_allowed(&self, ds: &DslDataset, perm: &str, who: &Who) -> Result<()> {
        match self.may(ds, perm, who).await? {
            true => Ok(()),
            false => Err(Refusal::NotAllowed.into()),
        }
    }
}

/// Sets that someone has, and whether a dir defined one: the dirs above say nothing of it then.
type Sets = BTreeMap<String, bool>;

fn add_sets(sets: &mut Sets, names: impl IntoIterator<Item = String>) {
    for name in names {
        sets.entry(name).or_insert(false);
    }
}

/// Whether one of these sets, as a dir defines them, holds a permission; sets that they are said to
/// hold are added.
fn set_gives(grants: &Grants, sets: &mut Sets, perm: &str) -> bool {
    let of = |key: String| grants.iter().find(|(w, _)| w.0 == key).map(|(_, perms)| perms);
    // Each is looked at once, so this ends.
    let mut todo: Vec<String> = sets.iter().filter(|(_, known)| !**known).map(|(s, _)| s.clone()).collect();
    while let Some(set) = todo.pop() {
        let (plain, nested) = (of(format!("s-${set}")), of(format!("S-${set}")));
        if plain.is_some_and(|perms| perms.iter().any(|p| p == perm)) {
            return true;
        }
        for more in nested.into_iter().flatten().filter(|more| !sets.contains_key(*more)) {
            todo.push(more.clone());
        }
        add_sets(sets, todo.iter().cloned());
        let known = plain.is_some() || nested.is_some();
        sets.insert(set, known);
    }
    false
}
