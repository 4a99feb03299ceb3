//! What is done with a mutant: everything people do with a pool they were handed.
//!
//! Imported read-only and looked at (every dataset, snapshot, file, attribute; the pool's histories
//! and error log; the check that goes through all blocks); then imported for writing, written to,
//! snapshots and datasets made and destroyed, rolled back, scrubbed, exported. Errors are answers.
//! An operation that no longer ends because the pool was suspended is one too; one that does not
//! end for another reason is a finding.

use crate::pool::{find, import};
use crate::{SimConfig, Stuck, Survivors};
use bytes::Bytes;
use futures_util::future::{BoxFuture, Either, select};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use zilla_core::check::{CheckOpts, check_pool};
use zilla_core::dsl::{DslDataset, DslPool, Quota, Setting};
use zilla_core::error::{Error, Result};
use zilla_core::spa::Spa;
use zilla_core::txg::Tx;
use zilla_core::zap::Value;
use zilla_core::zpl::{Cred, NewFile, RenameFlags, S_IFDIR, S_IFLNK, S_IFREG, SetAttr, XattrMode, Zfs};
use zilla_env::Env;
use zilla_ondisk::enums::{ObjsetType, PoolState};

/// How much of a mutant is looked at, so that one that only looks large does not take long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tasks that may be run.
    pub polls: u64,
    /// Entries looked at in one file system.
    pub entries: usize,
    /// Bytes read of one file.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { polls: 4_000_000, entries: 600, bytes: 1 << 20 }
    }
}

/// Longer than anything that ends takes, in the pool's time.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Lives with a mutant. An error is a finding: something that does not end. (A panic is one too,
/// and is the caller's to catch.)
pub fn live(disks: &Survivors, seed: u64, limits: Limits) -> std::result::Result<(), String> {
    for readonly in [true, false] {
        let config = SimConfig { max_polls: limits.polls, punctual: true, ..SimConfig::default() };
        let sim = disks.boot_with(seed, config);
        let env = sim.env();
        let how = if readonly { "read-only" } else { "for writing" };
        let ended = sim.try_block_on(import_and_use(&env, readonly, limits));
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(what)) => return Err(format!("imported {how}: {what}")),
            Err(stuck @ (Stuck::PollLimit { .. } | Stuck::Deadlock { .. } | Stuck::TimeLimit { .. })) => {
                return Err(format!("imported {how}: {stuck}"));
            }
            Err(other) => return Err(other.to_string()),
        }
    }
    Ok(())
}

/// How many files a base has, every one of which can be read: that what is refused of its mutants
/// is the attacker's doing.
pub fn files_of(disks: &Survivors) -> Result<usize> {
    let sim = disks.boot_with(0, SimConfig { punctual: true, ..SimConfig::default() });
    let env = sim.env();
    sim.block_on(async {
        let found = find(&env).await?.ok_or_else(|| Error::no_ent("no pool on these disks"))?;
        let spa = import(&env, &found, true).await?;
        let live = Live { env: &env, spa: &spa, limits: Limits::default() };
        let mut files = 0;
        for head in live.heads().await {
            let mut all = spa.dsl.snapshots(&head).await?;
            all.push(head);
            for ds in all {
                if spa.dsl.os_type(&ds).await? == ObjsetType::Zfs.number() {
                    let zfs = zilla::engine::open_zfs(&env, &spa.dsl, &ds, true).await?;
                    files += live.readable(&zfs).await?;
                }
            }
        }
        spa.close(None).await?;
        Ok(files)
    })
}

/// None if it takes longer than anything does.
async fn within<T>(env: &Env, work: impl Future<Output = T>) -> Option<T> {
    match select(pin!(work), pin!(env.sleep(PATIENCE))).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

async fn import_and_use(env: &Env, readonly: bool, limits: Limits) -> std::result::Result<(), String> {
    let Ok(Some(found)) = find(env).await else { return Ok(()) };
    let opened = within(env, import(env, &found, readonly)).await;
    // An import whose first sync suspends the pool waits for somebody to clear it.
    let Some(Ok(spa)) = opened else { return Ok(()) };
    let live = Live { env, spa: &spa, limits };
    let steps: [(&str, BoxFuture<'_, Result<()>>); 4] = [
        ("looking", Box::pin(live.look())),
        ("checking", Box::pin(async { check_pool(&spa, CheckOpts::default()).await.map(drop) })),
        ("changing", Box::pin(live.change())),
        ("scrubbing", Box::pin(live.scrub())),
    ];
    for (what, step) in steps {
        if readonly && matches!(what, "changing" | "scrubbing") {
            continue;
        }
        if within(env, step).await.is_none() && spa.suspended().is_none() {
            return Err(format!("{what} does not end"));
        }
    }
    let state = (!readonly).then_some(PoolState::Exported);
    if within(env, spa.close(state)).await.is_none() && spa.suspended().is_none() {
        return Err("export does not end".into());
    }
    Ok(())
}

struct Live<'a> {
    env: &'a Env,
    spa: &'a Arc<Spa>,
    limits: Limits,
}

impl Live<'_> {
    fn dsl(&self) -> &Arc<DslPool> {
        &self.spa.dsl
    }

    /// Every head, parents first; a tree that comes back to itself is walked once.
    async fn heads(&self) -> Vec<Arc<DslDataset>> {
        let (mut out, mut todo, mut seen) = (Vec::new(), vec![self.dsl().root_dir()], BTreeSet::new());
        while let Some(dir) = todo.pop() {
            if !seen.insert(dir.id()) || seen.len() > 100 {
                continue;
            }
            if let Ok(head) = self.dsl().head(&dir).await {
                out.push(head);
            }
            todo.extend(self.dsl().child_dirs(&dir).await.unwrap_or_default());
        }
        out
    }

    async fn look(&self) -> Result<()> {
        let _ = (self.spa.history().await, self.spa.cloned_space(), self.dsl().freeing().await);
        if let Ok(scan) = self.spa.scan() {
            let _ = (scan.status(), scan.errors.entries().await, scan.errors.count().await);
        }
        for head in self.heads().await {
            let mut all = self.dsl().snapshots(&head).await.unwrap_or_default();
            all.truncate(20);
            all.push(head);
            for ds in all {
                let _ = (self.dsl().info(&ds).await, self.dsl().all_props(&ds).await);
                let _ = (self.dsl().holds(&ds).await, self.dsl().written(&ds).await);
                for kind in [Quota::User, Quota::Group, Quota::Project] {
                    let _ = self.dsl().userspace(&ds, kind).await;
                }
                if let Ok(zfs) = zilla::engine::open_zfs(self.env, self.dsl(), &ds, true).await {
                    self.files(&zfs).await;
                }
            }
        }
        Ok(())
    }

    /// Looks at every file, through every directory; an attacker's may lead in circles.
    async fn files(&self, zfs: &Arc<Zfs>) {
        let (mut todo, mut seen) = (vec![zfs.root()], BTreeSet::new());
        while let Some(id) = todo.pop() {
            if !seen.insert(id) || seen.len() > self.limits.entries {
                continue;
            }
            let Ok(attr) = zfs.getattr(id).await else { continue };
            let _ = zfs.path_of(id).await;
            let _ = zfs.readlink(id).await;
            for from in [0, attr.size.saturating_sub(self.limits.bytes)] {
                let _ = zfs.read(id, from, self.limits.bytes as usize).await;
            }
            for name in zfs.listxattr(id).await.unwrap_or_default().into_iter().take(50) {
                let _ = zfs.getxattr(id, &name).await;
            }
            let mut cookie = 0;
            let mut entries = 0;
            while let Ok(batch) = zfs.readdir(id, cookie).await {
                let Some(last) = batch.last() else { break };
                // Positions rise, or a reader would never come to the end.
                assert!(last.cookie > cookie, "directory {id} goes from {cookie:#x} to {:#x}", last.cookie);
                cookie = last.cookie;
                entries += batch.len();
                let _ = zfs.entries(&batch).await;
                todo.extend(batch.iter().map(|e| e.ino));
                if entries > self.limits.entries {
                    break;
                }
            }
        }
    }

    /// Reads every file whole.
    async fn readable(&self, zfs: &Arc<Zfs>) -> Result<usize> {
        let (mut todo, mut seen) = (vec![zfs.root()], BTreeSet::new());
        while let Some(id) = todo.pop() {
            if !seen.insert(id) {
                continue;
            }
            let attr = zfs.getattr(id).await?;
            if attr.is_file() {
                zfs.read(id, 0, attr.size.min(1 << 26) as usize).await?;
            }
            let mut cookie = 0;
            while attr.is_dir() {
                let batch = zfs.readdir(id, cookie).await?;
                let Some(last) = batch.last() else { break };
                cookie = last.cookie;
                todo.extend(batch.iter().filter(|e| e.name != b"..").map(|e| e.ino));
            }
        }
        Ok(seen.len())
    }

    async fn task<F>(&self, f: F) -> Result<()>
    where
        F: FnOnce(Arc<DslPool>, Tx) -> BoxFuture<'static, Result<()>> + Send + 'static,
    {
        let dsl = self.dsl().clone();
        self.spa.ctx.sync_task(move |tx| f(dsl, tx)).await
    }

    /// What goes wrong is skipped, what comes after is tried all the same; until the pool takes no
    /// more.
    async fn change(&self) -> Result<()> {
        for head in self.heads().await.into_iter().take(6) {
            let name = head.name();
            if let Ok(zfs) = zilla::engine::open_zfs(self.env, self.dsl(), &head, false).await {
                let _ = zfs.drain_unlinked().await;
                let _ = self.write_files(&zfs).await;
            }
            self.spa.sync().await?;
            let full = format!("{name}@hostile");
            let snap = vec![full.clone()];
            let _ =
                self.task(move |d, tx| Box::pin(async move { d.snapshot(&tx, &snap).await.map(drop) })).await;
            let clone = format!("{name}/hostile");
            let (c, origin) = (clone.clone(), full.clone());
            let _ = self
                .task(move |d, tx| Box::pin(async move { d.clone_ds(&tx, &c, &origin).await.map(drop) }))
                .await;
            let c = clone.clone();
            let _ = self.task(move |d, tx| Box::pin(async move { d.promote(&tx, &c).await })).await;
            let c = name.clone();
            let _ = self.task(move |d, tx| Box::pin(async move { d.promote(&tx, &c).await })).await;
            let (set, ds) = ([("quota".to_owned(), Setting::Local(Value::u64(1 << 40)))], head.clone());
            let _ = self.task(move |d, tx| Box::pin(async move { d.set_props(&tx, &ds, &set).await })).await;
            let n = name.clone();
            let _ = self
                .task(move |d, tx| Box::pin(async move { d.rollback(&tx, &n, Some("hostile")).await }))
                .await;
            let _ = self.task(move |d, tx| Box::pin(async move { d.destroy_head(&tx, &clone).await })).await;
            for s in self.dsl().snapshots(&head).await.unwrap_or_default().into_iter().take(4) {
                let names = vec![s.name()];
                let _ = self
                    .task(move |d, tx| Box::pin(async move { d.destroy_snapshots(&tx, &names, false).await }))
                    .await;
            }
            self.spa.sync().await?;
        }
        for head in self.heads().await.into_iter().skip(1).take(3) {
            let name = head.name();
            let _ = self.task(move |d, tx| Box::pin(async move { d.destroy_head(&tx, &name).await })).await;
        }
        for _ in 0..3 {
            self.spa.sync().await?;
        }
        Ok(())
    }

    async fn write_files(&self, zfs: &Arc<Zfs>) -> Result<()> {
        let (root, cred) = (zfs.root(), Cred::default());
        let data = Bytes::from(vec![7; 20_000]);
        let mut known = Vec::new();
        let mut dirs = vec![root];
        while let Some(dir) = dirs.pop() {
            for e in zfs.readdir(dir, 0).await.unwrap_or_default() {
                if matches!(&e.name[..], b"." | b"..") || known.len() > 40 {
                    continue;
                }
                if e.dtype == (S_IFDIR >> 12) as u8 && dirs.len() < 8 {
                    dirs.push(e.ino);
                }
                known.push((dir, e));
            }
        }
        for (i, (dir, e)) in known.iter().enumerate() {
            let _ = match i % 8 {
                0 => zfs.write(e.ino, 3000, &data, false).await.map(drop),
                1 => zfs.append(e.ino, &data).await.map(drop),
                2 => zfs.setattr(e.ino, SetAttr { size: Some(1000), ..SetAttr::default() }).await.map(drop),
                3 => zfs.setxattr(e.ino, b"user.hostile", &data[..300], XattrMode::Any).await,
                4 => zfs.unlink(*dir, &e.name).await,
                5 => {
                    let new = format!("moved{i}");
                    let flags = RenameFlags::default();
                    zfs.rename(*dir, &e.name, root, new.as_bytes(), flags, cred).await
                }
                6 => zfs.punch(e.ino, 0, u64::MAX >> 1, false, false).await,
                _ => zfs.setattr(e.ino, SetAttr { uid: Some(7), ..SetAttr::default() }).await.map(drop),
            };
            let _ = zfs.fsync(e.ino).await;
        }
        for i in 0..40 {
            let kind = [S_IFREG | 0o644, S_IFDIR | 0o755, S_IFLNK | 0o777][i % 3];
            let new = NewFile { target: b"target", ..NewFile::new(kind, cred) };
            let name = format!("hostile-{i}-{}", "n".repeat(i * 4));
            let (held, _) = zfs.create(root, name.as_bytes(), new).await?;
            if i % 3 == 0 {
                zfs.write(held.id(), i as u64 * 9000, &data, false).await?;
                let _ = zfs.link(held.id(), root, format!("link{i}").as_bytes()).await;
            }
        }
        zfs.commit().await?;
        zfs.sync().await
    }

    async fn scrub(&self) -> Result<()> {
        let scan = self.spa.scan()?.clone();
        scan.start().await?;
        scan.wait().await;
        self.spa.sync().await
    }
}
