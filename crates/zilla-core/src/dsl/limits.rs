//! Limits on how many file systems and snapshots there may be below a dataset.
//!
//! A dir that has a limit, and every dir below it, counts what is below it in its own ZAP; a dir
//! without counts has no limit on it nor above it. Counts come to be when the first limit is set,
//! by going through the tree once, and are then changed with every dataset and snapshot
//! ([`DslPool::count_adjust`]). The feature `filesystem_limits` is active from the first count on,
//! for ever.
//!
//! **Whom a limit binds.** Not those who may change it: the administrator is bound by none, and who
//! was given the permission `snapshot_limit` on a dataset is bound by those above it.

use super::DslPool;
use super::Refusal;
use super::deleg::Who;
use super::dir::DslDir;
use super::name;
use super::props::Setting;
use crate::error::{Errno, Result};
use crate::txg::Tx;
use crate::zap::Zap;
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_ondisk::dsl::{DD_FIELD_FILESYSTEM_COUNT, DD_FIELD_SNAPSHOT_COUNT};

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Filesystems,
    Snapshots,
}

impl Limit {
    pub const BOTH: [Limit; 2] = [Limit::Filesystems, Limit::Snapshots];

    pub fn property(self) -> &'static str {
        match self {
            Limit::Filesystems => "filesystem_limit",
            Limit::Snapshots => "snapshot_limit",
        }
    }

    fn field(self) -> &'static str {
        match self {
            Limit::Filesystems => DD_FIELD_FILESYSTEM_COUNT,
            Limit::Snapshots => DD_FIELD_SNAPSHOT_COUNT,
        }
    }
}

/// Property value of a dataset without a limit.
pub const NO_LIMIT: u64 = u64::MAX;

/// Whether a property that is set so is a limit that binds.
pub(super) fn binds(name: &str, s: &Setting) -> bool {
    let is_limit = Limit::BOTH.iter().any(|l| l.property() == name);
    match s {
        Setting::Local(v) | Setting::Received(v) => is_limit && v.as_u64() != Some(NO_LIMIT),
        Setting::Inherit | Setting::Revert | Setting::NotReceived => false,
    }
}

impl DslPool {
    /// Refuses a limit in a pool that cannot count.
    pub(super) fn binding_check(&self, name: &str, s: &Setting) -> Result<()> {
        match binds(name, s) && !self.feature_enabled("filesystem_limits") {
            true => Err(Refusal::FeatureDisabled("filesystem_limits").into()),
            false => Ok(()),
        }
    }

    /// What a dir counts below it; None where it does not.
    pub(super) async fn counted(&self, dir: &DslDir, what: Limit) -> Result<Option<u64>> {
        match dir.zap() {
            Some(zap) => zap.try_get_u64(what.field()).await,
            None => Ok(None),
        }
    }

    /// A limit is about to be set on a dir: from now on it is counted.
    pub(super) async fn limits_begin(&self, tx: &Tx, dir: &Arc<DslDir>) -> Result<()> {
        self.read_for_counts(dir).await?;
        if !self.feature_active("filesystem_limits") {
            self.feature_incr(tx, "filesystem_limits").await?;
        }
        self.limits_count(tx, dir).await
    }

    /// Reads what counting below a dir needs, before anything is changed.
    pub(super) async fn read_for_counts(&self, top: &Arc<DslDir>) -> Result<()> {
        let mut todo = vec![top.clone()];
        while let Some(dir) = todo.pop() {
            if self.counted(&dir, Limit::Filesystems).await?.is_some() {
                continue;
            }
            if dir.phys().head_dataset_obj != 0 {
                let names = self.head(&dir).await?.phys().snapnames_zapobj;
                Zap::open(self.mos(), names).await?.entries().await?;
            }
            todo.extend(self.child_dirs(&dir).await?);
        }
        Ok(())
    }

    /// Counts what is below a dir, in it and in all below it that have no counts yet.
    pub(super) async fn limits_count(&self, tx: &Tx, top: &Arc<DslDir>) -> Result<()> {
        // Those above come first in this list, so backwards each finds its children counted.
        let mut dirs = vec![top.clone()];
        let mut at = 0;
        while let Some(dir) = dirs.get(at).cloned() {
            at += 1;
            if self.counted(&dir, Limit::Filesystems).await?.is_none() {
                dirs.extend(self.child_dirs(&dir).await?);
            }
        }
        for dir in dirs.iter().rev() {
            if self.counted(dir, Limit::Filesystems).await?.is_some() {
                continue;
            }
            let (mut filesystems, mut snapshots) = (0u64, 0u64);
            for child in self.child_dirs(dir).await? {
                let below = self.counted(&child, Limit::Filesystems).await?.unwrap_or(0);
                filesystems = filesystems.saturating_add(below).saturating_add(1);
                let below = self.counted(&child, Limit::Snapshots).await?.unwrap_or(0);
                snapshots = snapshots.saturating_add(below);
            }
            if dir.phys().head_dataset_obj != 0 {
                let names = self.head(dir).await?.phys().snapnames_zapobj;
                let all = Zap::open(self.mos(), names).await?.entries().await?;
                // Those that a command makes for itself are not counted.
                let own = all.iter().filter(|e| !e.name.starts_with(b"%")).count();
                snapshots = snapshots.saturating_add(own as u64);
            }
            let zap = self.zapify(tx, &dir.dn).await?;
            zap.insert_u64(tx, DD_FIELD_FILESYSTEM_COUNT, filesystems).await?;
            zap.insert_u64(tx, DD_FIELD_SNAPSHOT_COUNT, snapshots).await?;
        }
        Ok(())
    }

    /// Refuses what would put `more` of something below a dir where a limit forbids it. `common`: a
    /// dir above which nothing changes.
    #[crate::boxed]
    pub async fn limit_check(
        &self,
        dir: &Arc<DslDir>,
        more: u64,
        what: Limit,
        who: &Who,
        common: Option<u64>,
    ) -> Result<()> {
        if more == 0 || *who == Who::Admin {
            return Ok(());
        }
        for d in dir.ancestry() {
            if common == Some(d.id) {
                return Ok(());
            }
            let Some(count) = self.counted(&d, what).await? else { return Ok(()) };
            if d.phys().head_dataset_obj == 0 {
                continue;
            }
            let head = self.head(&d).await?;
            let limit = self.prop_u64(&head, what.property(), NO_LIMIT).await?;
            if count.saturating_add(more) > limit && !self.may(&head, what.property(), who).await? {
                return Err(Refusal::OverLimit(d.name(), what.property()).into());
            }
        }
        Ok(())
    }

    /// The same for snapshots of these names, which are taken together.
    #[crate::boxed]
    pub async fn snapshot_limit_check(&self, names: &[String], who: &Who) -> Result<()> {
        if *who == Who::Admin || !self.feature_active("filesystem_limits") {
            return Ok(());
        }
        let mut below: BTreeMap<u64, (Arc<DslDir>, u64)> = BTreeMap::new();
        for name in names {
            let dir = match self.dir_by_name(name::split(name).fs).await {
                Ok(dir) => dir,
                Err(e) if e.is(Errno::NoEnt) => continue,
                Err(e) => return Err(e),
            };
            for d in dir.ancestry() {
                below.entry(d.id).or_insert((d, 0)).1 += 1;
            }
        }
        for (dir, more) in below.values() {
            // Those above are in the table themselves, with as many or more.
            let above = dir.parent().map(|p| p.id);
            self.limit_check(dir, *more, Limit::Snapshots, who, above).await?;
        }
        Ok(())
    }

    /// The same for what a stream makes: a snapshot of a dir, or a dataset below it with one.
    #[crate::boxed]
    pub async fn recv_limit_check(&self, dir: &Arc<DslDir>, new: bool, who: &Who) -> Result<()> {
        if new {
            self.limit_check(dir, 1, Limit::Filesystems, who, None).await?;
        }
        self.limit_check(dir, 1, Limit::Snapshots, who, None).await
    }

    /// The same for a dir that is to go below another one with all that is below it.
    #[crate::boxed]
    pub async fn move_limit_check(&self, dir: &Arc<DslDir>, to: &Arc<DslDir>, who: &Who) -> Result<()> {
        let kept: Vec<u64> = dir.ancestry().iter().skip(1).map(|d| d.id).collect();
        let common = to.ancestry().iter().map(|d| d.id).find(|id| kept.contains(id));
        for what in Limit::BOTH {
            let itself = u64::from(what == Limit::Filesystems);
            let below = match self.counted(dir, what).await? {
                Some(n) => n,
                None => self.count_now(dir, what).await?,
            };
            self.limit_check(to, below.saturating_add(itself), what, who, common).await?;
        }
        Ok(())
    }

    /// The same for a clone that is to take over `count` snapshots of what it was made from.
    #[crate::boxed]
    pub async fn promote_limit_check(&self, clone: &Arc<DslDir>, count: u64, who: &Who) -> Result<()> {
        let origin = match clone.phys().origin_obj {
            0 => return Ok(()),
            id => self.dataset(id).await?.dir(),
        };
        let from: Vec<u64> = origin.ancestry().iter().map(|d| d.id).collect();
        let common = clone.ancestry().iter().map(|d| d.id).find(|id| from.contains(id));
        self.limit_check(clone, count, Limit::Snapshots, who, common).await
    }

    /// Counts what is below a dir that keeps no count.
    async fn count_now(&self, top: &Arc<DslDir>, what: Limit) -> Result<u64> {
        let mut sum = 0u64;
        let mut todo = vec![top.clone()];
        while let Some(dir) = todo.pop() {
            sum = sum.saturating_add(match what {
                Limit::Filesystems => u64::from(dir.id != top.id),
                Limit::Snapshots => match dir.phys().head_dataset_obj {
                    0 => 0,
                    _ => self.snapshots(&*self.head(&dir).await?).await?.len() as u64,
                },
            });
            todo.extend(self.child_dirs(&dir).await?);
        }
        Ok(sum)
    }
}
