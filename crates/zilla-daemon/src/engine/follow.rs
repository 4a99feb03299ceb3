//! What an incremental package (`zfs send -R -i`, `-I`) says beside its streams: which datasets and
//! snapshots there are at the sender now, and what they are called.
//!
//! What was promoted there is promoted here, and what got another name gets it. With `-F` what is
//! not there any more is destroyed here, and so is what never was: snapshots, and datasets below
//! the one that is received into. Which dataset is which is told by its snapshots' guids, and by
//! its name only where it has none of the sender's. What the sender was told to leave out is spared
//! (`leftout.rs`). A snapshot that is held, or has clones, goes when nothing holds it any more, and
//! until then has another name, as in OpenZFS. What cannot be renamed or destroyed stays, and the
//! receiver is told.
//!
//! **Crash:** each step is whole or not done, and the next package begins with what is left.

use super::Engine;
use super::datasets::Settled;
use super::errors::{Answer, of_dataset};
use super::leftout::LeftOut;
use super::pool::Pool;
use super::receive::{members, target_of};
use super::received::received;
use super::streams::Told;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zilla::error::Errno;
use zilla::stored::{PropSource, Setting};
use zilla::tree::DatasetRef;
use zilla_control::Caller;
use zilla_control::types::{DatasetDestroy, DatasetPromote, DatasetRename, StreamReceive};
use zilla_ondisk::stream::Begin;
use zilla_ondisk::{NvList, NvValue};

/// A dataset of the package.
struct Member<'a> {
    /// What it is to be called here.
    target: String,
    snaps: &'a NvList,
    /// Properties of these, where the package has any.
    snapprops: Option<&'a NvList>,
    /// The guid of the snapshot it is a clone of; 0: of none.
    origin: u64,
}

/// What is where at the sender.
struct Package<'a> {
    members: Vec<Member<'a>>,
    /// By the guid of a snapshot its dataset.
    by_snapshot: BTreeMap<u64, usize>,
    left_out: LeftOut,
}

impl<'a> Package<'a> {
    fn read(r: &StreamReceive, first: &Begin, list: &'a NvList) -> Answer<Package<'a>> {
        let top = first.toname.split('@').next();
        let (mut found, mut by_snapshot) = (Vec::new(), BTreeMap::new());
        for member in members(list) {
            let (Some(name), Some(snaps)) = (member.str("name"), member.list("snaps")) else { continue };
            let target = target_of(r, &format!("{name}@x"), top)?;
            let target = target.split('@').next().unwrap_or_default().to_owned();
            by_snapshot.extend(snapshots_of(member).map(|(_, guid)| (guid, found.len())));
            let (origin, snapprops) = (member.u64("origin").unwrap_or(0), member.list("snapprops"));
            found.push(Member { target, snaps, snapprops, origin });
        }
        let left_out = LeftOut::read(r, top, list)?;
        Ok(Package { members: found, by_snapshot, left_out })
    }

    /// The member that a dataset here is, by its newest snapshot that the sender has.
    fn member_of(&self, snapshots: &[DatasetRef]) -> Option<&Member<'a>> {
        let known = snapshots.iter().filter(|s| self.by_snapshot.contains_key(&s.guid()));
        let newest = known.max_by_key(|s| s.created_txg())?;
        self.members.get(*self.by_snapshot.get(&newest.guid())?)
    }

    /// Whether the dataset that is received into is the package's. One that was sent to the wrong
    /// place must not cost what lies there.
    async fn is_for(&self, pool: &Pool, top: &str) -> Answer<bool> {
        let Ok(head) = pool.zilla.by_name(top).await else { return Ok(false) };
        let snapshots = head.snapshots().await.map_err(of_dataset)?;
        Ok(self.member_of(&snapshots).is_some_and(|m| m.target == top))
    }

    fn has(&self, target: &str) -> bool {
        self.members.iter().any(|m| m.target == target)
    }
}

/// The snapshots of a package's dataset, and their guids.
pub(super) fn snapshots_of(member: &NvList) -> impl Iterator<Item = (&str, u64)> {
    member.list("snaps").into_iter().flat_map(snapshots_in)
}

/// Those of a list of them.
pub(super) fn snapshots_in(list: &NvList) -> impl Iterator<Item = (&str, u64)> {
    list.iter().filter_map(|(name, value)| match value {
        NvValue::Uint64(guid) => Some((name, *guid)),
        _ => None,
    })
}

pub(super) fn is_below(name: &str, above: &str) -> bool {
    name.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

impl Engine {
    pub(super) async fn follow(
        &self,
        pool: &Arc<Pool>,
        caller: &Caller,
        r: &StreamReceive,
        first: &Begin,
        list: &NvList,
        told: &Told,
    ) -> Answer<()> {
        let package = Package::read(r, first, list)?;
        let top = target_of(r, &first.toname, first.toname.split('@').next())?;
        let top = top.split('@').next().unwrap_or_default().to_owned();
        if !package.is_for(pool, &top).await? {
            return Ok(());
        }
        self.follow_origins(pool, caller, r, &package, &top, told).await?;
        self.follow_names(pool, caller, r, &package, &top, told).await?;
        // Among what goes may be clones of snapshots that go.
        if r.force {
            self.follow_ends(pool, r, &package, &top, told).await?;
        }
        for member in &package.members {
            self.follow_snapshots(pool, r, member, told).await?;
        }
        Ok(())
    }

    /// Promotes clones whose origin is an earlier snapshot at the sender by now, or none.
    async fn follow_origins(
        &self,
        pool: &Arc<Pool>,
        caller: &Caller,
        r: &StreamReceive,
        package: &Package<'_>,
        top: &str,
        told: &Told,
    ) -> Answer<()> {
        // Clones of what lies elsewhere are left as their owners made them.
        let inside = |name: &str| {
            name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        };
        for _ in 0..=package.members.len() {
            let mut promoted = false;
            let mut names = vec![top.to_owned()];
            names.extend(pool.heads_below(top).await?);
            for name in names {
                let Ok(head) = pool.zilla.by_name(&name).await else { continue };
                if !head.dir().is_clone() {
                    continue;
                }
                let snapshots = head.snapshots().await.map_err(of_dataset)?;
                let Some(theirs) = package.member_of(&snapshots).map(|m| m.origin) else { continue };
                let ours = head.dir().origin().await.map_err(of_dataset)?;
                if !inside(&ours.name()) {
                    continue;
                }
                let earlier = match theirs {
                    0 => true,
                    guid if guid == ours.guid() => false,
                    guid => match pool
                        .zilla
                        .by_guid(guid, &name)
                        .await
                        .map_err(of_dataset)?
                        .filter(|snap| inside(snap))
                    {
                        Some(snap) => {
                            let snap = pool.zilla.by_name(&snap).await.map_err(of_dataset)?;
                            snap.created_txg() < ours.created_txg()
                        }
                        None => false,
                    },
                };
                if !earlier {
                    continue;
                }
                if r.verbose {
                    told.out(format!("promoting {name}"));
                }
                if let Err(e) = self.root_for_promotion(pool, &name).await {
                    told.err(format!("cannot promote '{name}': {}", e.description()));
                    continue;
                }
                match self.promote(caller, DatasetPromote { name: name.clone() }).await {
                    // Others have other origins now.
                    Ok(()) => {
                        promoted = true;
                        break;
                    }
                    Err(e) => told.err(format!("cannot promote '{name}': {}", e.description())),
                }
            }
            if !promoted {
                break;
            }
        }
        Ok(())
    }

    /// Where a clone would take its origin's place outside of the encryption root that both have,
    /// the origin becomes a root first, of the same key, and the clone then is it instead. So does
    /// OpenZFS; at the sender the origin has been one.
    async fn root_for_promotion(&self, pool: &Arc<Pool>, clone: &str) -> Answer<()> {
        let Some(origin) = pool.zilla.root_before_promotion(clone).await.map_err(of_dataset)? else {
            return Ok(());
        };
        pool.zilla.make_root(&origin).await.map_err(of_dataset)
    }

    /// Gives datasets below `top` the names of their members, those above first.
    async fn follow_names(
        &self,
        pool: &Arc<Pool>,
        caller: &Caller,
        r: &StreamReceive,
        package: &Package<'_>,
        top: &str,
        told: &Told,
    ) -> Answer<()> {
        // With one another's names more than one may be in the way of another.
        for _ in 0..=package.members.len() {
            let mut renamed = false;
            for name in pool.heads_below(top).await? {
                let Ok(head) = pool.zilla.by_name(&name).await else { continue };
                let snapshots = head.snapshots().await.map_err(of_dataset)?;
                let Some(target) = package.member_of(&snapshots).map(|m| m.target.clone()) else { continue };
                if target == name || !is_below(&target, top) || is_below(&target, &name) {
                    continue;
                }
                let is_free = pool.zilla.by_name(&target).await.is_err_and(|e| e.is(Errno::NoEnt));
                let parent = target.rsplit_once('/').map_or("", |(parent, _)| parent);
                if !is_free || pool.zilla.by_name(parent).await.is_err() {
                    continue;
                }
                if r.verbose {
                    told.out(format!("attempting rename {name} to {target}"));
                }
                let request = DatasetRename {
                    name: name.clone(),
                    target: target.clone(),
                    force: true,
                    ..DatasetRename::default()
                };
                match self.rename(caller, request).await {
                    // What is below has other names now.
                    Ok(_) => {
                        renamed = true;
                        break;
                    }
                    Err(e) => told.err(format!("cannot rename '{name}' to '{target}': {}", e.description())),
                }
            }
            if !renamed {
                break;
            }
        }
        Ok(())
    }

    /// The same for the snapshots of one, which get the properties that they have at the sender by
    /// now; with `-F` those that are no longer there go.
    async fn follow_snapshots(
        &self,
        pool: &Arc<Pool>,
        r: &StreamReceive,
        member: &Member<'_>,
        told: &Told,
    ) -> Answer<()> {
        let fs = &member.target;
        let Ok(head) = pool.zilla.by_name(fs).await else { return Ok(()) };
        let (mut gone, mut renamed, mut said) = (Vec::new(), Vec::new(), Vec::new());
        for s in head.snapshots().await.map_err(of_dataset)? {
            let (guid, old) = (s.guid(), s.snapshot_name());
            let now = member.snaps.iter().find(|(_, v)| **v == NvValue::Uint64(guid));
            let Some((new, _)) = now else {
                if r.force {
                    gone.push(old);
                }
                continue;
            };
            if new != old {
                renamed.push((old, new.to_owned()));
            }
            if let Some(sent) = member.snapprops.and_then(|all| all.list(new)) {
                said.push((format!("{fs}@{new}"), sent));
            }
        }
        // First, for others may get their names.
        self.follow_destroyed(pool, r, &head, gone, told).await;
        follow_snapshot_names(pool, r.verbose, &head, renamed, told).await?;
        for (name, sent) in said {
            if let Err(e) = self.follow_properties(pool, &name, sent).await {
                told.err(format!("cannot receive properties of {name}: {}", e.description()));
            }
        }
        Ok(())
    }

    /// Destroys snapshots that are no longer at the sender: all at once, or as many as can go. One
    /// that is held, or has clones, is marked to go later, and put aside.
    async fn follow_destroyed(
        &self,
        pool: &Arc<Pool>,
        r: &StreamReceive,
        head: &DatasetRef,
        gone: Vec<String>,
        told: &Told,
    ) {
        let fs = head.name();
        let request = |names: &[String]| DatasetDestroy {
            target: format!("{fs}@{}", names.join(",")),
            force: true,
            defer: true,
            ..DatasetDestroy::default()
        };
        if gone.is_empty() {
            return;
        }
        if r.verbose {
            gone.iter().for_each(|name| told.out(format!("attempting destroy {fs}@{name}")));
        }
        let mut staying = Vec::new();
        match self.destroy(request(&gone), true).await {
            Ok(reply) => staying.extend(reply.deferred),
            Err(_) => {
                for name in &gone {
                    match self.destroy(request(std::slice::from_ref(name)), true).await {
                        Ok(reply) => staying.extend(reply.deferred),
                        // The stream may fail that cannot do with it.
                        Err(e) => told.err(format!("cannot destroy '{fs}@{name}': {}", e.description())),
                    }
                }
            }
        }
        for full in staying {
            let old = full.split_once('@').map_or("", |(_, name)| name);
            // It is aside already.
            if old.starts_with(ASIDE) {
                continue;
            }
            let Some(new) = free_name(head).await else { continue };
            if r.verbose {
                told.out(format!("attempting rename {full} to {fs}@{new}"));
            }
            rename_snapshot(pool, &fs, old, &new, told).await;
        }
    }

    /// A snapshot that is here gets the properties that were sent. One that has them already costs
    /// no txg.
    async fn follow_properties(&self, pool: &Arc<Pool>, name: &str, sent: &NvList) -> Answer<()> {
        let snap = pool.zilla.by_name(name).await.map_err(of_dataset)?;
        let have = pool.props_to_send(&snap, false).await?;
        let value = |list: &NvList, name: &str| list.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
        let mut changes = received(Some(sent));
        changes.retain(|(name, _)| value(&have, name) != value(sent, name));
        let mut changes: Settled = changes.into_iter().map(|(n, v)| (n, Setting::Received(v))).collect();
        for (name, p) in snap.properties().await.map_err(of_dataset)? {
            if p.source == PropSource::Received && have.contains(&name) && !sent.contains(&name) {
                changes.push((name, Setting::NotReceived));
            }
        }
        if !changes.is_empty() {
            pool.change_props(name, changes).await?;
        }
        Ok(())
    }

    /// Destroys the datasets below `top` that are none of the package's.
    async fn follow_ends(
        &self,
        pool: &Arc<Pool>,
        r: &StreamReceive,
        package: &Package<'_>,
        top: &str,
        told: &Told,
    ) -> Answer<()> {
        let (mut gone, mut kept, mut spared) = (Vec::new(), Vec::new(), Vec::<String>::new());
        for name in pool.heads_below(top).await? {
            let Ok(head) = pool.zilla.by_name(&name).await else { continue };
            let snapshots = head.snapshots().await.map_err(of_dataset)?;
            let is_spared =
                package.left_out.has(&name, &snapshots) || spared.iter().any(|s| is_below(&name, s));
            if is_spared {
                spared.push(name.clone());
            }
            match is_spared || package.has(&name) || package.member_of(&snapshots).is_some() {
                true => kept.push(name),
                false => gone.push(name),
            }
        }
        // Those below first. A clone is in its origin's way, wherever that lies.
        gone.retain(|name| !kept.iter().any(|k| is_below(k, name)));
        gone.reverse();
        let mut failed: BTreeMap<String, String> = BTreeMap::new();
        let mut left: BTreeSet<String> = gone.iter().cloned().collect();
        loop {
            let before = left.len();
            for name in &gone {
                if !left.contains(name) {
                    continue;
                }
                if r.verbose {
                    told.out(format!("attempting destroy {name}"));
                }
                let request = DatasetDestroy {
                    target: name.clone(),
                    recursive: true,
                    force: true,
                    ..DatasetDestroy::default()
                };
                match self.destroy_whole(request, true).await {
                    Ok(_) => drop(left.remove(name)),
                    Err(e) => drop(failed.insert(name.clone(), e.description().to_owned())),
                }
            }
            if left.is_empty() || left.len() == before {
                break;
            }
        }
        for name in left {
            let why = failed.remove(&name).unwrap_or_default();
            told.err(format!("cannot destroy '{name}': {why}"));
        }
        Ok(())
    }
}

/// How names begin of what is out of the way, as OpenZFS's do.
const ASIDE: &str = "recv-";

/// A name that no snapshot has.
async fn free_name(head: &DatasetRef) -> Option<String> {
    let own = std::process::id();
    for n in 1..=u64::from(u16::MAX) {
        let name = format!("{ASIDE}{own}-{n}");
        if head.snapshot(&name).await.ok()?.is_none() {
            return Some(name);
        }
    }
    None
}

/// Gives snapshots their new names. At a sender that moves them on (`daily.1` becomes `daily.2`)
/// one is in the way of another, and is renamed before it; where they go round in a circle one goes
/// aside for a moment.
async fn follow_snapshot_names(
    pool: &Pool,
    verbose: bool,
    head: &DatasetRef,
    mut renamed: Vec<(String, String)>,
    told: &Told,
) -> Answer<()> {
    let fs = head.name();
    while !renamed.is_empty() {
        let (mut waiting, mut stuck) = (Vec::new(), true);
        for (old, new) in std::mem::take(&mut renamed) {
            if head.snapshot(&new).await.map_err(of_dataset)?.is_some() {
                waiting.push((old, new));
                continue;
            }
            stuck = false;
            if verbose {
                told.out(format!("attempting rename {fs}@{old} to {fs}@{new}"));
            }
            rename_snapshot(pool, &fs, &old, &new, told).await;
        }
        if stuck {
            // Whoever waits for one that stays where it is waits in vain.
            let moves: BTreeSet<String> = waiting.iter().map(|(old, _)| old.clone()).collect();
            let (round, vain): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|(_, new)| moves.contains(new));
            for (old, new) in &vain {
                told.err(format!("cannot rename '{fs}@{old}' to '{fs}@{new}': dataset already exists"));
            }
            waiting = round;
            if let Some((old, _)) = waiting.first_mut().filter(|_| vain.is_empty()) {
                let Some(place) = free_name(head).await else { break };
                match rename_snapshot(pool, &fs, old, &place, told).await {
                    true => *old = place,
                    false => drop(waiting.remove(0)),
                }
            }
        }
        renamed = waiting;
    }
    Ok(())
}

/// Whether it could be done.
async fn rename_snapshot(pool: &Pool, fs: &str, old: &str, new: &str, told: &Told) -> bool {
    let done = pool.zilla.rename_snapshot(fs, old, new, false).await;
    pool.forget_snapshot(&format!("{fs}@{old}"));
    if let Err(e) = &done {
        told.err(format!("cannot rename '{fs}@{old}' to '{fs}@{new}': {e}"));
    }
    done.is_ok()
}

impl Pool {
    /// The datasets below one, those above first; not what a receive has come to so far.
    async fn heads_below(&self, top: &str) -> Answer<Vec<String>> {
        let Ok(dir) = self.zilla.dir_by_name(top).await else { return Ok(Vec::new()) };
        let (mut found, mut todo) = (Vec::new(), vec![dir]);
        while let Some(dir) = todo.pop() {
            for child in dir.children().await.map_err(of_dataset)? {
                let name = child.name();
                if !child.has_head() || name.contains(['%', '$']) {
                    continue;
                }
                found.push(name);
                todo.push(child);
            }
        }
        found.sort();
        Ok(found)
    }
}
