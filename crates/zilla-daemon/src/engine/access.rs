//! What those may do who do not own the daemon, where its owner lets them in (`zillad --share`).
//!
//! They may look at pools and datasets, as OpenZFS lets everyone, and do to a dataset what
//! `zfs allow` gave them, by the user and groups that the kernel names for them. Every operation is
//! judged in this one place, before its method is called, and **what is not named here is
//! refused**. The permissions that an operation takes are OpenZFS's (zfs-allow.8). One answer is
//! judged, too: of what users and groups use and may use, everyone is told his own
//! ([`Engine::hide_accounts`]).
//!
//! **What stays the owner's alone,** whatever was given: all that changes where and how something
//! is mounted, for the daemon mounts with root's powers (OpenZFS on Linux keeps `mount`,
//! `mountpoint`, `canmount`, `rename` and `share` from being delegated for the same reason: there
//! `mount(8)` refuses); so a dataset that is mounted is not renamed, destroyed or rolled back, for
//! which it would be unmounted and mounted again, and a new one is not mounted. Whatever concerns a
//! whole pool. Where a key lies (`keylocation`), but that it is asked for: the next start of the
//! daemon, and `zfs load-key -a` of the owner's, would read what file, or ask what server, a guest
//! has named, with the owner's rights and from the owner's place in the network; whether the key in
//! it fits, of which he may choose what it should be, would tell him what a file holds that is not
//! his. What is given to `load-key -L` his own command reads.
//!
//! **Streams.** `send` is of snapshots, `receive` of what is not mounted, without `-c`, keys, and
//! packages that rename or promote; `-F` takes `rollback` and `destroy` of what is there. Which
//! datasets a package is received into is known only when it is read: each is judged then
//! ([`Engine::judge_part`]). A stream can make itself a clone of any snapshot and so read it, and
//! its files can belong to root and be setuid: it takes `clone` of the origin, and a file system
//! that one of them received into is not mounted but by name from then on (`canmount=noauto`), nor
//! is what he makes of its snapshots. One that was mounted meanwhile keeps what it has. The key of
//! a raw stream takes the place of ours with `change-key` only: ours may be the one that opens it.
//!
//! **Between the judgement and the deed** the owner may change his mind; who was judged before has
//! acted before, as in OpenZFS.

use super::Engine;
use super::accounts::owner_named;
use super::datasets::{CANMOUNT_ON, CRYPTO, Settled};
use super::errors::{Answer, of, of_dataset};
use super::names::Names;
use super::pool::Pool;
use super::streams::Told;
use super::values::Settings;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use zilla::Value;
use zilla::access::Who;
use zilla::stored::Setting;
use zilla::streams::{HEAD_NAME, parse_token};
use zilla::tree::{DatasetDir, DatasetRef};
use zilla_control::owners::Kind;
use zilla_control::props::{self, naming};
use zilla_control::types::*;
use zilla_control::{ApiError, Asked, Caller, ErrorCode};

/// Clients that changed something and have not yet written the pool's history.
const LINES: usize = 256;

/// Who may write one line to which pool's history, because he has just changed it.
#[derive(Default)]
pub struct Lines(Mutex<VecDeque<(u32, Option<i32>, String)>>);

impl Lines {
    fn grant(&self, caller: &Caller, pool: &str) {
        let mut all = self.0.lock();
        let line = (caller.uid, caller.pid, pool.to_owned());
        if !all.contains(&line) {
            if all.len() >= LINES {
                all.pop_front();
            }
            all.push_back(line);
        }
    }

    fn take(&self, caller: &Caller, pool: &str) -> bool {
        let mut all = self.0.lock();
        let at = all.iter().position(|(u, p, n)| *u == caller.uid && *p == caller.pid && n == pool);
        at.and_then(|at| all.remove(at)).is_some()
    }
}

/// The caller as the engine's permissions know him.
pub fn who(caller: &Caller) -> Who {
    match caller.owner {
        true => Who::Admin,
        false => Who::User { uid: caller.uid, gids: caller.gids() },
    }
}

/// As many names others than the owner may put into one question.
const GUEST_NAMES: usize = 256;

fn denied<T>() -> Answer<T> {
    Err(ErrorCode::Perm.into())
}

/// One caller and one pool.
struct Judge {
    pool: Arc<Pool>,
    who: Who,
}

impl Engine {
    pub(super) async fn judge_guest(&self, caller: &Caller, asked: &Asked) -> Answer<()> {
        let of_token;
        let name = match asked {
            Asked::Hello(_)
            | Asked::PoolQuery(_)
            | Asked::PoolSync(_)
            | Asked::PoolWait(_)
            | Asked::DatasetByPath(_)
            | Asked::VolumePlan(_)
            | Asked::DatasetWait(_)
            | Asked::MountList(_)
            | Asked::SnapshotHolds(_)
            | Asked::GrantQuery(_)
            | Asked::LogStatQuery(_)
            | Asked::ArcStatQuery(_) => return Ok(()),
            // Each name costs a walk through a pool, or through its accounts.
            Asked::DatasetQuery(r) if r.roots.len().max(r.properties.len()) > GUEST_NAMES => {
                let text = format!("others than the owner may ask for {GUEST_NAMES} names at a time");
                return Err(ApiError::with(ErrorCode::BadRequest, text));
            }
            Asked::DatasetQuery(_) => return Ok(()),
            Asked::PoolLog(r) => return if self.lines.take(caller, &r.name) { Ok(()) } else { denied() },
            Asked::DatasetCreate(r) => &r.name,
            Asked::DatasetDestroy(r) => &r.target,
            Asked::DatasetSet(r) => &r.name,
            Asked::DatasetInherit(r) => &r.name,
            Asked::DatasetSnapshot(r) => r.names.first().ok_or(ErrorCode::Perm)?,
            Asked::DatasetClone(r) => &r.target,
            Asked::DatasetRollback(r) => &r.snapshot,
            Asked::DatasetRename(r) => &r.name,
            Asked::DatasetPromote(r) => &r.name,
            Asked::DatasetBookmark(r) => &r.target,
            Asked::DatasetAccounts(r) => &r.name,
            Asked::DatasetDiff(r) => &r.from,
            Asked::SnapshotHold(r) => &r.snapshot,
            Asked::SnapshotRelease(r) => &r.snapshot,
            Asked::KeyLoad(r) => &r.name,
            Asked::KeyUnload(r) => &r.name,
            Asked::KeyChange(r) => &r.name,
            Asked::GrantChange(r) => &r.name,
            Asked::StreamSend(r) => {
                of_token = sent(r)?;
                &of_token
            }
            Asked::StreamReceive(r) => &r.target,
            Asked::ReceiveAbort(r) => &r.name,
            _ => return denied(),
        };
        let pool = self.pool_of(name)?;
        if !pool.delegates().await.map_err(of_dataset)? {
            return Err(ErrorCode::NoDelegation.into());
        }
        let judge = Judge { pool: pool.clone(), who: who(caller) };
        judge.change(caller, asked).await?;
        // Who only looks has nothing to write down, and what streams did is written with them.
        if !matches!(
            asked,
            Asked::DatasetAccounts(_)
                | Asked::DatasetDiff(_)
                | Asked::StreamSend(_)
                | Asked::StreamReceive(_)
        ) {
            self.lines.grant(caller, &pool.name());
        }
        Ok(())
    }

    /// Whether somebody may receive into one dataset of a stream, with `-F` or without.
    pub(super) async fn judge_part(
        &self,
        caller: &Caller,
        pool: &Arc<Pool>,
        fs: &str,
        force: bool,
    ) -> Answer<()> {
        if caller.owner {
            return Ok(());
        }
        let judge = Judge { pool: pool.clone(), who: who(caller) };
        judge.receive(fs).await?;
        if force && pool.zilla.by_name(fs).await.is_ok() {
            judge.all(fs, &["rollback", "destroy"]).await?;
        }
        if pool.mounted_at(fs).is_none() { Ok(()) } else { Err(is_mounted()) }
    }

    /// Whether a stream of somebody's may bring another key for what is there.
    pub(super) async fn may_change_key(&self, caller: &Caller, head: Option<&DatasetRef>) -> Answer<bool> {
        match head.filter(|_| !caller.owner) {
            None => Ok(true),
            Some(head) => head.may("change-key", &who(caller)).await.map_err(of_dataset),
        }
    }

    /// Whether a stream of somebody's may make a clone of a snapshot.
    pub(super) async fn judge_origin(&self, caller: &Caller, pool: &Arc<Pool>, origin: &str) -> Answer<()> {
        let judge = Judge { pool: pool.clone(), who: who(caller) };
        if caller.owner { Ok(()) } else { judge.on(origin, "clone").await }
    }

    /// Takes out of what a stream brings, or is given, what its receiver may not set; he is told.
    pub(super) async fn leave_out(
        &self,
        caller: &Caller,
        pool: &Arc<Pool>,
        fs: &str,
        settings: &mut Settled,
        told: &Told,
    ) -> Answer<()> {
        if caller.owner {
            return Ok(());
        }
        let judge = Judge { pool: pool.clone(), who: who(caller) };
        for (name, setting) in std::mem::take(settings) {
            // A stream may name any number, and each is judged without a wait.
            tokio::task::yield_now().await;
            if judge.may_set(fs, &name).await? {
                settings.push((name, setting));
            } else {
                told.err(format!("cannot receive {name} property on {fs}: permission denied"));
            }
        }
        Ok(())
    }

    /// Whether somebody may put a received snapshot's holds on it.
    pub(super) async fn judge_holds(&self, caller: &Caller, pool: &Arc<Pool>, fs: &str) -> Answer<()> {
        let judge = Judge { pool: pool.clone(), who: who(caller) };
        if caller.owner { Ok(()) } else { judge.on(fs, "hold").await }
    }

    /// Takes out of an answer what a guest may not know of others' accounts.
    pub(super) async fn hide_accounts(
        &self,
        caller: &Caller,
        wanted: &[String],
        names: &Names,
        reply: &mut DatasetQueryReply,
    ) -> Answer<()> {
        let of_others =
            |name: &&String| props::is_userquota_prop(name) && !is_own_account(caller, name, names);
        for name in wanted.iter().filter(of_others) {
            let permission = permission_of(name)?;
            for info in reply.datasets.iter_mut().filter(|info| info.properties.contains_key(name)) {
                let pool = self.pool_of(&info.name)?;
                let judge = Judge { pool, who: who(caller) };
                if !judge.pool.delegates().await.map_err(of_dataset)?
                    || judge.on(&info.name, permission).await.is_err()
                {
                    info.properties.remove(name);
                }
            }
        }
        Ok(())
    }
}

impl Judge {
    async fn change(&self, caller: &Caller, asked: &Asked) -> Answer<()> {
        match asked {
            Asked::DatasetCreate(r) => self.create(r).await,
            Asked::DatasetDestroy(r) => self.destroy(r).await,
            // To set nothing nobody was allowed.
            Asked::DatasetSet(r) if r.properties.is_empty() => denied(),
            Asked::DatasetSet(r) => {
                for name in r.properties.keys() {
                    self.set(&r.name, name).await?;
                }
                no_place_of_a_key(r.properties.get(KEYLOCATION))
            }
            Asked::DatasetInherit(r) => self.set(&r.name, &r.property).await,
            Asked::DatasetSnapshot(r) => {
                for name in &r.names {
                    self.named(name, r.recursive, "snapshot").await?;
                    if !r.properties.is_empty() {
                        self.named(name, r.recursive, "userprop").await?;
                    }
                }
                Ok(())
            }
            Asked::DatasetClone(r) => {
                self.on(&r.snapshot, "clone").await?;
                self.make(&r.target, r.properties.keys()).await?;
                no_place_of_a_key(r.properties.get(KEYLOCATION))
            }
            Asked::DatasetRollback(r) => {
                let fs = head_of(&r.snapshot);
                self.on(fs, "rollback").await?;
                if r.destroy_clones {
                    return denied();
                }
                if r.destroy_later {
                    self.all(&r.snapshot, &["destroy", "mount"]).await?;
                }
                self.unmounted(fs)
            }
            Asked::DatasetRename(r) => self.rename(r).await,
            Asked::DatasetPromote(r) => self.promote(&r.name).await,
            Asked::DatasetBookmark(r) => self.on(head_of(&r.target), "bookmark").await,
            Asked::DatasetAccounts(r) => {
                let both: [&str; 2] = match r.owners {
                    Owners::User => ["userused", "userquota"],
                    Owners::Group => ["groupused", "groupquota"],
                    Owners::Project => ["projectused", "projectquota"],
                };
                self.all(&r.name, &both).await
            }
            Asked::DatasetDiff(r) => {
                self.on(head_of(&r.from), "diff").await?;
                self.on(head_of(&r.to), "diff").await
            }
            Asked::SnapshotHold(r) => self.named(&r.snapshot, r.recursive, "hold").await,
            Asked::SnapshotRelease(r) => self.named(&r.snapshot, r.recursive, "release").await,
            Asked::KeyLoad(r) => self.on(&r.name, "load-key").await,
            Asked::KeyUnload(r) => self.on(&r.name, "load-key").await,
            Asked::KeyChange(r) => {
                self.on(&r.name, "change-key").await?;
                no_place_of_a_key(r.keylocation.as_ref())
            }
            Asked::GrantChange(r) => self.grants(caller, r).await,
            Asked::StreamSend(r) => self.send(r).await,
            Asked::StreamReceive(r) => {
                let crypt = r.key.is_some() || r.set.keys().any(|name| CRYPTO.contains(&name.as_str()));
                if r.heal || r.force_unmount || crypt {
                    return denied();
                }
                for name in r.set.keys() {
                    permission_of(name)?;
                }
                self.receive(head_of(&r.target)).await
            }
            Asked::ReceiveAbort(r) => self.all(&r.name, &["destroy", "mount"]).await,
            _ => denied(),
        }
    }

    /// A permission on a dataset that is there; below it, if it is a snapshot.
    async fn on(&self, name: &str, permission: &str) -> Answer<()> {
        // A name of another pool would be judged by a stranger's permissions.
        if naming::pool_of(name) != self.pool.name() {
            return Err(ApiError::with(ErrorCode::CrossTarget, "datasets must be within same pool"));
        }
        let ds = self.pool.zilla.by_name(name).await.map_err(of(name))?;
        match ds.may(permission, &self.who).await.map_err(of_dataset)? {
            true => Ok(()),
            false => denied(),
        }
    }

    /// To set or inherit a property.
    async fn set(&self, name: &str, property: &str) -> Answer<()> {
        let permission = permission_of(property)?;
        self.on(name, permission).await?;
        // What is mounted is mounted anew for these.
        if matches!(permission, "acltype" | "version") { self.unmounted(name) } else { Ok(()) }
    }

    async fn all(&self, name: &str, permissions: &[&str]) -> Answer<()> {
        for permission in permissions {
            self.on(name, permission).await?;
        }
        Ok(())
    }

    /// A permission on the dataset of a snapshot that is named, and on those below if it is meant
    /// for them.
    async fn named(&self, snapshot: &str, recursive: bool, permission: &str) -> Answer<()> {
        let fs = head_of(snapshot);
        self.on(fs, permission).await?;
        for dir in self.below(fs, recursive).await? {
            self.on(&dir.name(), permission).await?;
        }
        Ok(())
    }

    /// The dirs below a dataset.
    async fn below(&self, fs: &str, recursive: bool) -> Answer<Vec<DatasetDir>> {
        let (mut all, mut todo) = (Vec::new(), Vec::new());
        if recursive {
            todo.push(self.pool.zilla.dir_by_name(fs).await.map_err(of(fs))?);
        }
        while let Some(dir) = todo.pop() {
            for child in dir.children().await.map_err(of_dataset)? {
                todo.push(child.clone());
                all.push(child);
            }
        }
        Ok(all)
    }

    /// What it takes to make a dataset: of what is there above it, and of the new one itself for
    /// its properties.
    async fn make(&self, name: &str, properties: impl Iterator<Item = &String>) -> Answer<()> {
        let dir = self.above(name).await?;
        self.all(&dir.name(), &["create", "mount"]).await?;
        for name in properties {
            let permission = permission_of(name)?;
            if !dir.may_below(permission, &self.who, true).await.map_err(of_dataset)? {
                return denied();
            }
        }
        Ok(())
    }

    /// The nearest that is there above a name.
    async fn above(&self, name: &str) -> Answer<DatasetDir> {
        let mut above = name.rsplit_once('/').map(|(up, _)| up);
        loop {
            let Some(at) = above else { return denied() };
            match self.pool.zilla.dir_by_name(at).await {
                Ok(dir) => return Ok(dir),
                Err(_) => above = at.rsplit_once('/').map(|(up, _)| up),
            }
        }
    }

    /// Of snapshots alone: while a head is sent nobody else may use it.
    async fn send(&self, r: &StreamSend) -> Answer<()> {
        let snapshot = sent(r)?;
        if r.saved || !snapshot.contains('@') || snapshot.ends_with(HEAD_NAME) {
            return denied();
        }
        let fs = head_of(&snapshot);
        let mut dirs = vec![self.pool.zilla.dir_by_name(fs).await.map_err(of(fs))?];
        dirs.extend(self.below(fs, r.replicate && r.token.is_none()).await?);
        for dir in dirs {
            if !dir.may_below("send", &self.who, false).await.map_err(of_dataset)? {
                return denied();
            }
        }
        Ok(())
    }

    /// `receive` of what is there, or of what is above it.
    async fn receive(&self, fs: &str) -> Answer<()> {
        let all = ["receive", "create", "mount"];
        match self.pool.zilla.by_name(fs).await {
            Ok(_) => self.all(fs, &all).await,
            Err(_) => self.all(&self.above(fs).await?.name(), &all).await,
        }
    }

    /// Whether a property may be set where something is received into.
    async fn may_set(&self, fs: &str, property: &str) -> Answer<bool> {
        let Ok(permission) = permission_of(property) else { return Ok(false) };
        match self.pool.zilla.by_name(fs).await {
            Ok(ds) => ds.may(permission, &self.who).await.map_err(of_dataset),
            Err(_) => self.above(fs).await?.may_below(permission, &self.who, true).await.map_err(of_dataset),
        }
    }

    async fn create(&self, r: &DatasetCreate) -> Answer<()> {
        let reserved = "refreservation".to_owned();
        let thick = r.volume.as_ref().is_some_and(|v| !v.sparse).then_some(&reserved);
        self.make(&r.name, r.properties.keys().chain(thick)).await?;
        no_place_of_a_key(r.properties.get(KEYLOCATION))
    }

    async fn destroy(&self, r: &DatasetDestroy) -> Answer<()> {
        // Clones may lie anywhere.
        if r.clones {
            return denied();
        }
        let (both, fs) = (["destroy", "mount"], head_of(&r.target));
        if r.target.contains('#') {
            return self.on(fs, "destroy").await;
        }
        let snapshots = r.target.contains('@');
        let mut dirs = vec![self.pool.zilla.dir_by_name(fs).await.map_err(of(fs))?];
        dirs.extend(self.below(fs, r.recursive).await?);
        for dir in dirs {
            for permission in both {
                let may = match snapshots {
                    true => dir.may_below(permission, &self.who, false).await.map_err(of_dataset)?,
                    false => {
                        let head = dir.head().await.map_err(of_dataset)?;
                        head.may(permission, &self.who).await.map_err(of_dataset)?
                    }
                };
                if !may {
                    return denied();
                }
            }
        }
        if snapshots { Ok(()) } else { self.unmounted(fs) }
    }

    async fn rename(&self, r: &DatasetRename) -> Answer<()> {
        let both = ["rename", "mount"];
        self.all(&r.name, &both).await?;
        if r.name.contains('@') {
            let fs = head_of(&r.name);
            self.all(fs, &["create", "mount"]).await?;
            for dir in self.below(fs, r.recursive).await? {
                self.all(&dir.name(), &["rename", "mount", "create"]).await?;
            }
            return Ok(());
        }
        self.make(&r.target, [].iter()).await?;
        self.unmounted(&r.name)
    }

    /// `promote` of the clone and of what it was made from, whose snapshots it takes.
    async fn promote(&self, name: &str) -> Answer<()> {
        self.all(name, &["promote", "mount"]).await?;
        let ds = self.pool.zilla.by_name(name).await.map_err(of(name))?;
        match ds.info().await.map_err(of_dataset)?.origin {
            Some(origin) => self.on(&origin, "promote").await,
            // It is refused for what it is.
            None => Ok(()),
        }
    }

    /// Only what he has himself, never `allow` itself; and nobody's permissions may he take but his
    /// own.
    async fn grants(&self, caller: &Caller, r: &GrantChange) -> Answer<()> {
        self.on(&r.name, "allow").await?;
        for dir in self.below(&r.name, r.recursive).await? {
            self.on(&dir.name(), "allow").await?;
        }
        for grant in &r.grants {
            if r.take {
                let whom = grant.whom.get(3..).and_then(|id| id.parse::<u32>().ok());
                if !grant.whom.starts_with(['u', 'U']) || whom != Some(caller.uid) {
                    return denied();
                }
                continue;
            }
            // What is for those below, or for whoever makes one, he must have there.
            let below = !matches!(grant.whom.as_bytes().get(1), Some(b'l'));
            let dir = self.pool.zilla.dir_by_name(&r.name).await.map_err(of(&r.name))?;
            for permission in &grant.permissions {
                let Some(permission) = props::permissions::canonical(permission) else {
                    return Err(ErrorCode::BadPerm.into());
                };
                if permission == "allow" {
                    return denied();
                }
                self.on(&r.name, permission).await?;
                if below && !dir.may_below(permission, &self.who, false).await.map_err(of_dataset)? {
                    return denied();
                }
            }
        }
        Ok(())
    }

    fn unmounted(&self, name: &str) -> Answer<()> {
        if self.pool.mounted_below(name).is_empty() { Ok(()) } else { Err(is_mounted()) }
    }
}

pub(super) fn is_mounted() -> ApiError {
    ApiError::with(ErrorCode::Perm, "permission denied: it is mounted")
}

const KEYLOCATION: &str = "keylocation";

/// Refuses a guest's file or server as the place of a key, whatever he was given.
fn no_place_of_a_key(location: Option<&String>) -> Answer<()> {
    if location.is_none_or(|text| matches!(text.as_str(), "prompt" | "none")) {
        return Ok(());
    }
    let what = "permission denied: only the owner of the daemon names a file or server as a keylocation";
    Err(ApiError::with(ErrorCode::Perm, what))
}

/// Whether a file system is mounted unasked; a new one is.
pub(super) async fn mounts_by_itself(head: Option<&DatasetRef>) -> Answer<bool> {
    let Some(head) = head else { return Ok(true) };
    Ok(Settings::of(head).await.map_err(of_dataset)?.canmount() == CANMOUNT_ON)
}

/// What is not mounted but by name.
pub(super) fn not_by_itself() -> (String, Setting) {
    /// `canmount=noauto`. Source: zfs_canmount_type_t.
    const NOAUTO: u64 = 2;
    ("canmount".to_owned(), Setting::Local(Value::u64(NOAUTO)))
}

/// The snapshot that is to be sent.
fn sent(r: &StreamSend) -> Answer<String> {
    match &r.token {
        None => Ok(r.snapshot.clone()),
        Some(text) => {
            parse_token(text).map(|t| t.toname).map_err(|e| ApiError::with(ErrorCode::Stream, e.to_string()))
        }
    }
}

fn head_of(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or(name)
}

/// Whether a property tells of a user himself, or of a group that he is in.
fn is_own_account(caller: &Caller, property: &str, names: &Names) -> bool {
    let Some((kind, whose)) = owner_named(property) else { return false };
    names.id(kind, whose).is_some_and(|id| match kind {
        Kind::User => id == caller.uid,
        Kind::Group => caller.gids().contains(&id),
    })
}

/// The permission that a property takes.
fn permission_of(property: &str) -> Answer<&'static str> {
    if props::is_user_prop(property) {
        return Ok("userprop");
    }
    if props::is_userquota_prop(property) {
        let family = property.split('@').next().unwrap_or_default();
        let known = props::permissions::PERMISSIONS.iter().find(|p| p.name == family);
        return known.map_or_else(denied, |p| Ok(p.name));
    }
    match props::dataset_prop(property).map(|p| p.name) {
        // What decides where and how root's daemon mounts or shares, and what it takes for another
        // zone's.
        Some("mountpoint" | "canmount" | "overlay" | "sharenfs" | "sharesmb" | "zoned" | "mlslabel")
        | None => denied(),
        Some(name) => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_takes_its_own_permission_or_its_family_s() {
        for (property, permission) in [
            ("compress", "compression"),
            ("volsize", "volsize"),
            ("com.example:x", "userprop"),
            ("userquota@joe", "userquota"),
            ("groupobjquota@7", "groupobjquota"),
        ] {
            assert_eq!(permission_of(property).unwrap(), permission, "{property}");
        }
        for never in ["mountpoint", "canmount", "sharenfs", "no such property", ""] {
            assert_eq!(permission_of(never).unwrap_err().code, ErrorCode::Perm, "{never}");
        }
    }

    #[test]
    fn one_change_is_one_line_of_history() {
        let lines = Lines::default();
        let joe = Caller { uid: 7, pid: Some(70), ..Caller::default() };
        let ann = Caller { uid: 8, pid: Some(70), ..Caller::default() };
        lines.grant(&joe, "tank");
        lines.grant(&joe, "tank");
        assert!(!lines.take(&ann, "tank") && !lines.take(&joe, "pool"));
        assert!(lines.take(&joe, "tank") && !lines.take(&joe, "tank"));
        (0..1000).for_each(|uid| lines.grant(&Caller { uid, ..Caller::default() }, "tank"));
        assert_eq!(lines.0.lock().len(), LINES);
    }
}
