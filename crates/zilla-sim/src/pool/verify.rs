//! What is on the disks against what was recorded.

use super::layout::{POOL, find, import};
use super::model::{self, Contents, Model, Seen, View};
use super::op::{Fill, Op};
use super::run::{ActorLog, Journal, actor_dir, fill_fs, open_fs, open_with_quotas};
use crate::Sim;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use zilla_core::check::{CheckOpts, check_pool};
use zilla_core::error::Result;
use zilla_core::spa::Spa;
use zilla_core::zpl::Zfs;
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;

/// How much to do with a pool that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Import, compare, check.
    Look,
    /// And read every copy of every block; then change things, export, import and check again.
    Live,
}

/// What is known of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// The last txg that is of the workload, where imports that were cut short have added others
    /// since.
    pub worked: Option<u64>,
    /// Disks have failed: copies may be bad as long as all is there.
    pub faults: bool,
}

impl Expect {
    pub const SOUND: Expect = Expect { worked: None, faults: false };
}

/// The txg that the pool on this world's disks is at.
pub fn txg_of(sim: &Sim) -> Result<u64, String> {
    let env = sim.env();
    let found = sim.try_block_on(find(&env)).map_err(|stuck| stuck.to_string())?;
    Ok(found.map_err(|e| format!("looking for pools: {e}"))?.ok_or("there is no pool")?.txg)
}

/// The pool in this world must import, and be what the journal allows.
pub fn verify(sim: &Sim, journal: &Journal, expect: Expect, depth: Depth) -> Result<u64, String> {
    sim.try_block_on(verify_in(sim, journal, expect, depth)).map_err(|stuck| stuck.to_string())?
}

async fn verify_in(sim: &Sim, journal: &Journal, expect: Expect, depth: Depth) -> Result<u64, String> {
    let env = &sim.env();
    let found = find(env).await.map_err(|e| format!("looking for pools: {e}"))?.ok_or("there is no pool")?;
    let spa = import(env, &found, false).await.map_err(|e| format!("import at txg {}: {e}", found.txg))?;
    let txg = expect.worked.unwrap_or(found.txg);
    let mut compared = compare(env, &spa, journal, txg).await;
    if compared.is_err() && expect.faults && compare(env, &spa, journal, txg - 1).await.is_ok() {
        // The uberblock that was found was the only one of its txg, so nobody was told of it, and
        // could not be read the second time.
        compared = Ok(());
    }
    compared.map_err(|e| format!("at txg {}: {e}", found.txg))?;
    spa.sync().await.map_err(|e| format!("after the replay: {e}"))?;
    // Disks that fail now and then were to be borne so far; what they did must be mended when they
    // do not.
    sim.calm();
    let every_copy = depth >= Depth::Live;
    audit(&spa, every_copy, expect.faults).await.map_err(|e| format!("at txg {}: {e}", found.txg))?;
    if depth >= Depth::Live {
        live_on(env, spa, expect.faults)
            .await
            .map_err(|e| format!("living on after txg {}: {e}", found.txg))?;
    }
    Ok(found.txg)
}

/// How long, and how often, it is waited for a resilver that is about to begin or under way.
const REST: Duration = Duration::from_millis(200);
const REST_TRIES: u32 = 600;
/// Longer than it takes to notice that a disk is back.
const SETTLED: Duration = Duration::from_secs(10);

/// The whole-pool check.
pub async fn audit(spa: &Arc<Spa>, every_copy: bool, may_repair: bool) -> Result<(), String> {
    // An import resilvers a disk that a cut left without the last uberblock, or that was away. The
    // check is of a pool at rest.
    let scanning = || spa.scan().is_ok_and(|scan| scan.is_scanning());
    let mut busy = false;
    for _ in 0..REST_TRIES {
        if !scanning() && !spa.tree().wants_resilver() {
            break;
        }
        busy = true;
        spa.ctx.env.sleep(REST).await;
    }
    if busy {
        for _ in 0..3 {
            spa.sync().await.map_err(|e| format!("after the resilver: {e}"))?;
        }
    }
    let check = async || check_pool(spa, CheckOpts { every_copy }).await.map_err(|e| format!("check: {e}"));
    let mut report = check().await?;
    if !report.findings.is_empty() {
        // Something may have moved meanwhile, as when a disk that is back is written down. What is
        // wrong stays wrong.
        let repaired = report.repaired;
        spa.ctx.env.sleep(SETTLED).await;
        for _ in 0..3 {
            spa.sync().await.map_err(|e| format!("before a second check: {e}"))?;
        }
        report = check().await?;
        report.repaired += repaired;
    }
    match report.findings.first() {
        None if report.repaired > 0 && !may_repair => {
            Err(format!("check: {} blocks had bad copies, and no disk has failed", report.repaired))
        }
        None => Ok(()),
        Some(first) => {
            let rest = report.findings.len() as u64 - 1 + report.more;
            Err(format!(
                "check: {first} (and {rest} more){}",
                report.findings[1..].iter().take(5).map(|f| format!("\n    {f}")).collect::<String>()
            ))
        }
    }
}

/// The state a pool came back in goes on being a pool.
async fn live_on(env: &Env, spa: Arc<Spa>, faults: bool) -> Result<(), String> {
    let text = |e: zilla_core::error::Error| e.to_string();
    let zfs = open_fs(env, &spa, POOL).await.map_err(text)?;
    zfs.drain_unlinked().await.map_err(text)?;
    for i in 0..6 {
        fill_fs(env, &spa, POOL, Fill { seed: i * 77 + 1, len: 40_000 }).await.map_err(text)?;
        if i % 2 == 0 {
            spa.sync().await.map_err(text)?;
        }
    }
    for _ in 0..3 {
        spa.sync().await.map_err(text)?;
    }
    audit(&spa, true, faults).await?;
    drop(zfs);
    spa.close(Some(PoolState::Exported)).await.map_err(|e| format!("export: {e}"))?;
    let found = find(env).await.map_err(text)?.ok_or("the exported pool is not found")?;
    let spa = import(env, &found, true).await.map_err(|e| format!("import after export: {e}"))?;
    audit(&spa, false, faults).await
}

async fn compare(env: &Env, spa: &Arc<Spa>, journal: &Journal, txg: u64) -> Result<(), String> {
    let text = |e: zilla_core::error::Error| e.to_string();
    // No quota refuses what was logged.
    let zfs = open_with_quotas(env, spa, POOL, [1; 3]).await.map_err(text)?;
    let head = spa.dsl.by_name(POOL).await.map_err(text)?;
    let mut snapshots = BTreeMap::new();
    for s in spa.dsl.snapshots(&head).await.map_err(text)? {
        snapshots.insert(s.snapshot_name(), s.phys().creation_txg);
    }
    let mut datasets = Vec::new();
    for c in spa.dsl.children(&spa.dsl.root_dir()).await.map_err(text)? {
        datasets.push(c.name);
    }
    for (a, log) in journal.actors.iter().enumerate() {
        let (least, most) = log.bounds(txg);
        super::durable::fits(log, least, &view(&zfs, a).await?).map_err(|e| format!("actor {a}: {e}"))?;
        let others = if a == 0 { contents(env, spa, &datasets).await? } else { BTreeMap::new() };
        fits(log, least, most, |n, m| {
            if a == 0 {
                if !m.snapshots.keys().eq(snapshots.keys()) {
                    let want: Vec<_> = m.snapshots.keys().collect();
                    return Some(format!("snapshots {:?}, should be {want:?}", snapshots.keys()));
                }
                if !m.datasets.keys().eq(datasets.iter()) {
                    let want: Vec<_> = m.datasets.keys().collect();
                    return Some(format!("datasets {datasets:?}, should be {want:?}"));
                }
                if let Some(name) = others.keys().find(|name| !holds(&others[*name], m, log.ops.get(n), name))
                {
                    return Some(format!("the files of {name} are not as they should be"));
                }
            }
            None
        })
        .map_err(|e| format!("actor {a}: {e}"))?;
    }
    for (name, created) in &snapshots {
        let snap = open_fs(env, spa, &format!("{POOL}@{name}")).await.map_err(text)?;
        for (a, log) in journal.actors.iter().enumerate() {
            let view = view(&snap, a).await?;
            let (least, most) = log.range(*created);
            fits(log, least, most, |_, m| model::difference(&view, &m.view()))
                .map_err(|e| format!("snapshot {name} of txg {created}, actor {a}: {e}"))?;
        }
    }
    Ok(())
}

/// What is in the root of each of these datasets and of their snapshots.
async fn contents(
    env: &Env,
    spa: &Arc<Spa>,
    datasets: &[String],
) -> Result<BTreeMap<String, Vec<Contents>>, String> {
    let text = |e: zilla_core::error::Error| format!("reading a dataset: {e}");
    let mut out = BTreeMap::new();
    for name in datasets {
        let full = format!("{POOL}/{name}");
        let head = spa.dsl.by_name(&full).await.map_err(text)?;
        let mut names = vec![full.clone()];
        let snapshots = spa.dsl.snapshots(&head).await.map_err(text)?;
        names.extend(snapshots.iter().map(|s| format!("{full}@{}", s.snapshot_name())));
        let mut all = Vec::new();
        for name in names {
            let zfs = open_fs(env, spa, &name).await.map_err(text)?;
            let mut files = Contents::new();
            for n in 0..5 {
                let file = format!("f{n}");
                let Ok((held, attr)) = zfs.lookup(zfs.root(), file.as_bytes()).await else { continue };
                let data = zfs.read(held.id(), 0, attr.size as usize).await.map_err(text)?;
                files.insert(file, data.concat());
            }
            all.push(files);
        }
        out.insert(name.clone(), all);
    }
    Ok(out)
}

/// Whether a dataset and its snapshots have these contents. An operation that fills a file may have
/// made it already.
fn holds(have: &[Contents], m: &Model, next: Option<&Op>, name: &str) -> bool {
    let Some(want) = m.datasets.get(name) else { return false };
    let [head, snapshots @ ..] = have else { return false };
    let mut made = want.files.clone();
    if let Some(Op::FillFs { name: of, fill }) = next
        && of == name
    {
        made.entry(fill.place().0).or_default();
    }
    (*head == want.files || *head == made)
        && snapshots.iter().eq(want.snapshots.iter().map(|(_, files)| files))
}

/// Some state between `least` and `most` operations must be the one that is there.
fn fits(
    log: &ActorLog,
    least: usize,
    most: usize,
    differs: impl Fn(usize, &Model) -> Option<String>,
) -> Result<(), String> {
    let mut m = log.model(least);
    let mut first = None;
    let mut n = least;
    loop {
        match differs(n, &m) {
            None => return Ok(()),
            Some(d) => drop(first.get_or_insert(d)),
        }
        let Some(op) = log.ops.get(n).filter(|_| n < most) else { break };
        op.apply(&mut m);
        n += 1;
    }
    let around = least.saturating_sub(4)..(most + 1).min(log.ops.len());
    let last: String = around
        .map(|i| {
            let op: String = format!("{:?}", log.ops[i]).chars().take(100).collect();
            format!("\n    {i}: txgs {:?}: {op}", log.done.get(i))
        })
        .collect();
    Err(format!(
        "no state of {least} to {most} operations ({} promised, {} done) fits; after {least}: {}{last}",
        log.promised,
        log.done.len(),
        first.unwrap_or_else(|| "more is promised than can be there".into())
    ))
}

/// What is in an actor's directory.
async fn view(zfs: &Arc<Zfs>, actor: usize) -> Result<View, String> {
    let name = actor_dir(actor);
    let text = |e: zilla_core::error::Error| format!("reading {name}: {e}");
    let (held, _) = zfs.lookup(zfs.root(), name.as_bytes()).await.map_err(text)?;
    let mut out = View::new();
    visit(zfs, held.id(), String::new(), &mut BTreeMap::new(), &mut out).await.map_err(text)?;
    Ok(out)
}

fn visit<'a>(
    zfs: &'a Arc<Zfs>,
    id: u64,
    path: String,
    first: &'a mut BTreeMap<u64, String>,
    out: &'a mut View,
) -> BoxFuture<'a, Result<()>> {
    Box::pin(async move {
        let a = zfs.getattr(id).await?;
        let first_path = first.entry(id).or_insert_with(|| path.clone()).clone();
        let data = if a.is_file() {
            zfs.read(id, 0, a.size as usize).await?.concat()
        } else if a.is_symlink() {
            zfs.readlink(id).await?.to_vec()
        } else {
            Vec::new()
        };
        let mut xattrs = BTreeMap::new();
        if !a.is_symlink() {
            for name in zfs.listxattr(id).await? {
                let value = zfs.getxattr(id, &name).await?;
                xattrs.insert(String::from_utf8_lossy(&name).into_owned(), value);
            }
        }
        let seen = Seen {
            kind: a.mode & 0o170000,
            mode: a.mode & 0o7777,
            uid: a.uid,
            gid: a.gid,
            nlink: a.nlink,
            size: a.size,
            data,
            xattrs,
            flags: a.flags & model::FLAGS.iter().fold(0, |all, f| all | f),
            mtime: Some(a.mtime.sec),
            first: first_path,
        };
        out.insert(path.clone(), seen);
        if !a.is_dir() {
            return Ok(());
        }
        let mut children = BTreeMap::new();
        let mut cookie = 0;
        loop {
            let batch = zfs.readdir(id, cookie).await?;
            let Some(last) = batch.last() else { break };
            cookie = last.cookie;
            for e in batch.into_iter().filter(|e| !matches!(&e.name[..], b"." | b"..")) {
                children.insert(String::from_utf8_lossy(&e.name).into_owned(), e.ino);
            }
        }
        for (name, child) in children {
            visit(zfs, child, format!("{path}/{name}"), first, out).await?;
        }
        Ok(())
    })
}
