//! `zfs destroy`: file systems with what depends on them, and snapshots by lists and ranges.
//!
//! All that can go goes in one txg. Of a tree (`-r`, `-R`) what is in use stays, as in OpenZFS, and
//! with it what it is in or was made from; the rest goes, the snapshots of what stays as well. What
//! is held by a tag is known before, and then nothing goes.

use super::errors::{Answer, no_dataset, of, of_dataset};
use super::pool::Pool;
use super::values::kind_of;
use super::{Engine, Serves};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use zilla::error::Errno;
use zilla::tree::{DatasetDir, DatasetRef};
use zilla_control::types::{DatasetDestroy, DestroyReply};
use zilla_control::{ApiError, Caller, ErrorCode};

pub(super) const TRIES: usize = 20;
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// What a plan has still to look at.
enum Step {
    Head(DatasetDir),
    /// Of a snapshot.
    Clone(String),
    Snapshot {
        name: String,
        held: bool,
    },
    /// All that this one is needed for has been looked at.
    Left(String),
}

/// What goes, in the order in which it can go.
struct Plan<'a> {
    pool: &'a Pool,
    r: &'a DatasetDestroy,
    order: Vec<String>,
    /// Clones outside the tree that is destroyed.
    clones: Vec<String>,
    root: String,
    /// Those whose dependents are being looked for.
    within: Vec<String>,
}

/// What stays of a tree that was to go.
#[derive(Default)]
struct Staying {
    names: BTreeSet<String>,
    /// Of those that did not stay because of others.
    errors: Vec<ApiError>,
}

impl Staying {
    fn add(&mut self, name: &str, why: ApiError) {
        self.errors.push(if why.subject.is_some() { why } else { why.subject(name) });
        self.names.insert(name.to_owned());
    }

    /// Whether something that stays needs this; then it stays, too.
    async fn needs(&mut self, pool: &Pool, name: &str) -> Answer<bool> {
        if self.names.is_empty() {
            return Ok(false);
        }
        let is_in =
            |inner: &String| inner.strip_prefix(name).is_some_and(|rest| rest.starts_with(['/', '@']));
        let needed = match name.contains('@') {
            false => self.names.iter().any(is_in),
            true => {
                let clones = match pool.zilla.by_name(name).await {
                    Ok(snap) => snap.clones().await.map_err(of_dataset)?,
                    // It has gone by itself.
                    Err(_) => Vec::new(),
                };
                clones.iter().any(|clone| self.names.contains(clone))
            }
        };
        if needed {
            self.names.insert(name.to_owned());
        }
        Ok(needed)
    }
}

impl Engine {
    /// Says in its reply what of a tree stays. `owner`: who owns the daemon asks for it.
    pub(super) async fn destroy(&self, r: DatasetDestroy, owner: bool) -> Answer<DestroyReply> {
        if r.target.contains('#') {
            return self.destroy_bookmark(&r).await;
        }
        let pool = self.pool_of_head(&r.target)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        let mut reply = match r.target.split_once('@') {
            Some((fs, list)) => plan_snapshots(&pool, &r, fs, list).await?,
            None => plan_head(&pool, &r).await?,
        };
        if r.dry_run {
            return Ok(reply);
        }
        let done = self.destroy_planned(&pool, &r, owner, &mut reply).await;
        if (done.is_err() || !reply.errors.is_empty()) && self.devices.is_some() {
            // Those of what is still there come back.
            self.show_devices(r.target.split('@').next().unwrap_or_default()).await;
        }
        done.map(|()| reply)
    }

    /// The same for those who need all of it to be gone.
    pub(super) async fn destroy_whole(&self, r: DatasetDestroy, owner: bool) -> Answer<DestroyReply> {
        let mut reply = self.destroy(r, owner).await?;
        match reply.errors.is_empty() {
            true => Ok(reply),
            false => Err(reply.errors.swap_remove(0)),
        }
    }

    async fn destroy_planned(
        &self,
        pool: &Arc<Pool>,
        r: &DatasetDestroy,
        owner: bool,
        reply: &mut DestroyReply,
    ) -> Answer<()> {
        let tree = r.recursive || r.clones;
        let mut staying = Staying::default();
        for name in &reply.destroyed {
            if staying.needs(pool, name).await? {
                continue;
            }
            match self.take_out_of_use(pool, name, r.force, owner).await {
                Ok(()) => {}
                Err(e) if tree => staying.add(name, e),
                Err(e) => return Err(e),
            }
        }
        reply.destroyed.retain(|name| !staying.names.contains(name));
        match carry_out(pool, &reply.destroyed, false).await {
            // Somebody was faster: as much of it as can go.
            Err(e) if tree && e.code == ErrorCode::Busy => {
                destroy_singly(pool, &reply.destroyed, &mut staying).await?;
                reply.destroyed.retain(|name| !staying.names.contains(name));
            }
            done => done?,
        }
        reply.errors = staying.errors;
        if !reply.deferred.is_empty() {
            reply.deferred.iter().for_each(|name| pool.forget_snapshot(name));
            carry_out(pool, &reply.deferred, true).await?;
        }
        Ok(())
    }

    async fn take_out_of_use(&self, pool: &Arc<Pool>, name: &str, force: bool, owner: bool) -> Answer<()> {
        self.hide_devices(pool, &[name.to_owned()], force).await?;
        if let Ok(ds) = pool.zilla.by_name(name).await {
            pool.release_volume(&ds, force).await?;
        }
        if name.contains('@') {
            pool.check_not_mounted(name).await?;
            pool.forget_snapshot(name);
        } else {
            let was_mounted = pool.mounted_at(name).is_some();
            pool.unmount_one(name, force).await?;
            // Where it was not mounted, the directory of that name may be another's: who may only
            // make and destroy datasets has no right to it.
            if was_mounted || owner {
                pool.remove_mountpoint(name).await;
            }
        }
        Ok(())
    }
}

impl Serves<DatasetDestroy> for Engine {
    async fn serve(&self, caller: &Caller, mut r: DatasetDestroy) -> Answer<DestroyReply> {
        r.force &= caller.owner;
        self.check_running(&r.target)?;
        self.destroy(r, caller.owner).await
    }
}

async fn destroy_singly(pool: &Pool, names: &[String], staying: &mut Staying) -> Answer<()> {
    for name in names {
        if staying.needs(pool, name).await? {
            continue;
        }
        match carry_out(pool, std::slice::from_ref(name), false).await {
            Err(e) if e.code == ErrorCode::Busy => staying.add(name, e),
            done => done?,
        }
    }
    Ok(())
}

pub(super) async fn carry_out(pool: &Pool, names: &[String], defer: bool) -> Answer<()> {
    if names.is_empty() {
        return Ok(());
    }
    let mut tries = TRIES;
    loop {
        match pool.zilla.destroy_named(names.to_vec(), defer).await {
            // What was just unmounted may be let go of a moment later.
            Err(e) if e.is(Errno::Busy) && tries > 0 => tries -= 1,
            other => return other.map_err(of_dataset),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// `fs@a%b,c`: of each dataset those snapshots that it has.
async fn plan_snapshots(pool: &Arc<Pool>, r: &DatasetDestroy, fs: &str, list: &str) -> Answer<DestroyReply> {
    let mut reply = DestroyReply::default();
    let mut dirs = vec![pool.zilla.dir_by_name(fs).await.map_err(of(fs))?];
    let mut plan =
        Plan { pool, r, order: Vec::new(), clones: Vec::new(), root: fs.to_owned(), within: Vec::new() };
    while let Some(dir) = dirs.pop() {
        if r.recursive {
            let mut below = dir.children().await.map_err(of_dataset)?;
            below.reverse();
            dirs.extend(below);
        }
        if !dir.has_head() {
            continue;
        }
        let head = dir.head().await.map_err(of_dataset)?;
        let all = head.snapshots().await.map_err(of_dataset)?;
        let picked = chosen(&all, list);
        // Those that follow each other give back more than each by itself.
        for run in picked.chunk_by(|a, b| a.0 + 1 == b.0) {
            if let (Some((_, first)), Some((_, last))) = (run.first(), run.last()) {
                let freed = first.space_freed_to(last).await.map_err(of_dataset)?;
                reply.reclaimed = reply.reclaimed.saturating_add(freed);
            }
        }
        for (_, snap) in picked {
            let name = snap.name();
            let clones = snap.clones().await.map_err(of_dataset)?;
            if r.defer && (!clones.is_empty() && !r.clones || snap.userrefs() > 0) {
                reply.deferred.push(name);
                continue;
            }
            if !clones.is_empty() && !r.clones {
                return Err(dependents("snapshot has dependent clones", "-R", clones).subject(name));
            }
            for clone in clones {
                let dir = pool.zilla.dir_by_name(&clone).await.map_err(of(&clone))?;
                plan.head(dir).await?;
            }
            if snap.userrefs() > 0 {
                return Err(held(name));
            }
            if !plan.order.contains(&name) {
                plan.order.push(name);
            }
        }
    }
    reply.destroyed = plan.order;
    if reply.destroyed.is_empty() && reply.deferred.is_empty() {
        return Err(no_dataset(&r.target));
    }
    Ok(reply)
}

/// The snapshots that a list names, each once, oldest first, with their places among all.
fn chosen<'a>(all: &'a [DatasetRef], list: &str) -> Vec<(usize, &'a DatasetRef)> {
    let position = |name: &str| all.iter().position(|s| s.snapshot_name() == name);
    let mut picked = vec![false; all.len()];
    for item in list.split(',') {
        let range = match item.split_once('%') {
            None => position(item).map(|at| (at, at)),
            Some((first, last)) => {
                let first = if first.is_empty() { Some(0) } else { position(first) };
                let last = if last.is_empty() { all.len().checked_sub(1) } else { position(last) };
                first.zip(last)
            }
        };
        if let Some((first, last)) = range {
            picked.iter_mut().take(last + 1).skip(first).for_each(|p| *p = true);
        }
    }
    all.iter().enumerate().zip(picked).filter(|(_, picked)| *picked).map(|(found, _)| found).collect()
}

fn dependents(message: &str, option: &str, names: Vec<String>) -> ApiError {
    let mut details = vec![format!("use '{option}' to destroy the following datasets:")];
    details.extend(names);
    ApiError::with(ErrorCode::HasDependents, message).details(details)
}

fn held(name: String) -> ApiError {
    let what = format!("it's being held. Run 'zfs holds -r {name}' to see holders.");
    ApiError::with(ErrorCode::Busy, what).subject(name)
}

fn depends(what: String, root: &str) -> ApiError {
    ApiError::with(ErrorCode::HasDependents, what).subject(root)
}

async fn plan_head(pool: &Arc<Pool>, r: &DatasetDestroy) -> Answer<DestroyReply> {
    let name = &r.target;
    let ds = pool.zilla.by_name(name).await.map_err(of(name))?;
    let dir = ds.dir();
    let mut plan =
        Plan { pool, r, order: Vec::new(), clones: Vec::new(), root: name.clone(), within: Vec::new() };
    plan.head(dir).await?;
    let kind = kind_of(&ds.info().await.map_err(of(name))?).as_str();
    if !r.recursive {
        let mut below: Vec<String> = plan.order.iter().filter(|n| *n != name).cloned().collect();
        if !below.is_empty() {
            below.sort();
            return Err(dependents(&format!("{kind} has children"), "-r", below).subject(name.as_str()));
        }
    }
    if !plan.clones.is_empty() && !r.clones {
        return Err(
            dependents(&format!("{kind} has dependent clones"), "-R", plan.clones).subject(name.as_str())
        );
    }
    // The pool's own file system stays.
    let destroyed = plan.order.into_iter().filter(|n| n.contains(['/', '@'])).collect();
    Ok(DestroyReply { destroyed, ..DestroyReply::default() })
}

impl Plan<'_> {
    fn is_below(&self, name: &str) -> bool {
        name.strip_prefix(self.root.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// A dataset after everything that depends on it, however deep that goes.
    async fn head(&mut self, dir: DatasetDir) -> Answer<()> {
        let mut todo = vec![Step::Head(dir)];
        while let Some(step) = todo.pop() {
            match step {
                Step::Head(dir) => {
                    let mut steps = self.steps(&dir).await?;
                    steps.reverse();
                    todo.append(&mut steps);
                }
                Step::Clone(clone) => {
                    if !self.is_below(&clone) && !self.clones.contains(&clone) {
                        self.clones.push(clone.clone());
                    }
                    if self.is_below(&clone) || self.r.clones {
                        todo.push(Step::Head(self.pool.zilla.dir_by_name(&clone).await.map_err(of(&clone))?));
                    }
                }
                Step::Snapshot { name, held: true } => return Err(held(name)),
                Step::Snapshot { name, held: false } => self.destroy(name),
                Step::Left(name) => {
                    self.within.pop();
                    self.destroy(name);
                }
            }
        }
        Ok(())
    }

    fn destroy(&mut self, name: String) {
        if !self.order.contains(&name) {
            self.order.push(name);
        }
    }

    /// What comes before a dataset, and its own place behind that.
    async fn steps(&mut self, dir: &DatasetDir) -> Answer<Vec<Step>> {
        let name = dir.name();
        if self.order.contains(&name) {
            return Ok(Vec::new());
        }
        // After a promotion a dataset may live from a snapshot of one below it.
        if self.within.contains(&name) {
            return match self.r.recursive || self.r.clones {
                true => Err(depends(format!("recursive dependency at '{name}'"), &self.root)),
                false => Ok(Vec::new()),
            };
        }
        self.within.push(name.clone());
        let children = dir.children().await.map_err(of(&name))?;
        let mut steps: Vec<Step> = children.into_iter().map(Step::Head).collect();
        if dir.has_head() {
            let ds = dir.head().await.map_err(of(&name))?;
            for snap in ds.snapshots().await.map_err(of(&name))? {
                let full = snap.name();
                let clones = snap.clones().await.map_err(of(&full))?;
                steps.extend(clones.into_iter().map(Step::Clone));
                steps.push(Step::Snapshot { name: full, held: snap.userrefs() > 0 });
            }
        }
        steps.push(Step::Left(name));
        Ok(steps)
    }
}
