//! Which dataset's key opens which, after a raw package: encryption roots follow their sender's.
//!
//! A raw stream brings its dataset's key as it is wrapped at the sender. Where a tree has got other
//! roots there (`zfs change-key`), or its root another key, no single stream says so of all that it
//! concerns; the package does, and when all its streams are received the keys of the whole tree are
//! exchanged in one txg.
//!
//! ```text
//! sender   a [key 1]             a [key 2]
//!          a/b  by a       -->   a/b [key 3]      the streams bring a's key under 2, b's under 3, c's under 2
//!          a/c [key 4]           a/c  by a
//! ```
//!
//! What is kept true: every key object opens by the key of the root that it names. Those of one
//! root at the sender are wrapped under one key there, so they go over together or stay together: a
//! *group*. It stays
//! - where that would take away the root, or the key, of a dataset that is not among those that go
//!   over: one that was made here;
//! - where a key is loaded here that would not open it any more;
//! - where a root of it lies above what was received: that is its owner's doing.
//!
//! Where a root's key is looked for only its receiver says (`keylocation`): one that is new asks a
//! person. Else a sender would choose what URL is fetched here, or what file is read, at each
//! start. OpenZFS takes the sender's.
//!
//! A clone has its origin's key object and is left out. OpenZFS takes each stream's wrapping at
//! once, and sets roots afterwards.
//!
//! **Crash.** Until the txg of the exchange each dataset opens as before the package, or, if it is
//! a root that opens only itself, by its sender's key.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::DslPool;
use super::dir::DslDir;
use super::rawkey::RawKey;
use crate::crypt::{DataKey, PhysKey, WrappingKey};
use crate::error::{Errno, Result};
use crate::txg::Tx;
use crate::zap::Zap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zilla_ondisk::dsl::DSL_CRYPTO_KEY_ROOT_DDOBJ;

/// A dataset of a raw package, as its sender has it.
#[derive(Clone, Debug)]
pub struct RawMember {
    /// What it is called here.
    pub name: String,
    /// What the dataset is called here whose key opens it.
    pub root: String,
    /// What its stream said of its key.
    pub key: Arc<RawKey>,
}

/// A dataset that is to be opened as its sender's.
struct Going {
    dir: Arc<DslDir>,
    object: u64,
    /// Its root so far.
    root: u64,
    phys: PhysKey,
    key: Arc<RawKey>,
}

/// Those of one root.
struct Group {
    root: Arc<DslDir>,
    members: Vec<Going>,
}

impl Group {
    fn is_there(&self) -> bool {
        self.members.iter().all(|m| m.root == self.root.id && m.phys == m.key.phys)
    }

    /// Those that lose their being a root, or get another key as one.
    fn roots_changed(&self) -> impl Iterator<Item = &Going> {
        let stays = |m: &Going| m.dir.id == self.root.id && m.phys == m.key.phys;
        self.members.iter().filter(move |m| m.root == m.dir.id && !stays(m))
    }
}

fn is_within(name: &str, top: &str) -> bool {
    name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl DslPool {
    /// Gives the datasets of a raw package below `top` the roots and the wrappings that they have
    /// at the sender. Says which could not be given theirs, and why. In syncing context.
    #[crate::boxed]
    pub async fn recv_raw_roots(
        &self,
        tx: &Tx,
        top: &str,
        members: &[RawMember],
    ) -> Result<Vec<(String, &'static str)>> {
        let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
        for m in members {
            let Some(root) = self.raw_dir(&m.root).await? else { continue };
            let Some(going) = self.going(top, m).await? else { continue };
            groups.entry(root.id).or_insert_with(|| Group { root, members: Vec::new() }).members.push(going);
        }
        groups.retain(|_, g| !g.is_there());
        let mut kept = Vec::new();
        loop {
            let going: BTreeSet<u64> = groups.values().flat_map(|g| &g.members).map(|m| m.dir.id).collect();
            let mut stays = None;
            for (id, group) in &groups {
                if let Some(why) = self.stays(group, &going).await? {
                    stays = Some((*id, why));
                    break;
                }
            }
            let Some((id, why)) = stays else { break };
            kept.extend(groups.remove(&id).map(|g| (g.root.name(), why)));
        }
        for group in groups.values() {
            self.take_group(tx, group).await?;
        }
        Ok(kept)
    }

    /// A dataset that has a key object of its own.
    async fn raw_dir(&self, name: &str) -> Result<Option<Arc<DslDir>>> {
        let dir = match self.dir_by_name(name).await {
            Err(e) if e.is(Errno::NoEnt) => return Ok(None),
            other => other?,
        };
        let own = !self.is_clone(&dir) && self.is_encrypted(&dir).await?;
        Ok(own.then_some(dir))
    }

    async fn going(&self, top: &str, m: &RawMember) -> Result<Option<Going>> {
        let Some(dir) = self.raw_dir(&m.name).await? else { return Ok(None) };
        let (Some(object), Some(root)) = (self.key_object(&dir).await?, self.encryption_root(&dir).await?)
        else {
            return Ok(None);
        };
        let phys = self.key_phys(object).await?;
        let is_it = phys.guid == m.key.phys.guid && phys.suite == m.key.phys.suite;
        if !is_it || !is_within(&root.name(), top) {
            return Ok(None);
        }
        Ok(Some(Going { dir, object, root: root.id, phys, key: m.key.clone() }))
    }

    /// Why a group cannot go over, if it cannot, where these datasets do.
    async fn stays(&self, group: &Group, going: &BTreeSet<u64>) -> Result<Option<&'static str>> {
        if !group.members.iter().any(|m| m.dir.id == group.root.id) {
            return Ok(Some("its root is not in the stream"));
        }
        let opens =
            |with: &WrappingKey, m: &Going| DataKey::unwrap(&*self.ctx.env.rng, &m.key.phys, with).is_ok();
        let loaded = self.keys.wrapping(group.root.id);
        for m in &group.members {
            let fits = match &loaded {
                Some(with) => opens(with, m),
                None => m.root == group.root.id || self.keys.wrapping(m.root).is_none(),
            };
            if !fits {
                return Ok(Some("a key is loaded that would not open it any more"));
            }
        }
        for m in group.roots_changed() {
            if self.sharing(&m.dir, m.dir.id).await?.iter().any(|d| !going.contains(&d.id)) {
                return Ok(Some("it opens a dataset that was not received"));
            }
        }
        Ok(None)
    }

    async fn take_group(&self, tx: &Tx, group: &Group) -> Result<()> {
        for m in &group.members {
            let zap = Zap::open(self.mos(), m.object).await?;
            self.put_raw_key(tx, &zap, &m.key, group.root.id).await?;
            if m.dir.id != group.root.id {
                self.set_key_location(tx, &m.dir, None).await?;
                self.keys.remove(m.dir.id);
            } else if m.root != m.dir.id {
                self.set_key_location(tx, &m.dir, Some("prompt")).await?;
            }
        }
        Ok(())
    }

    /// The dataset that must be an encryption root before a clone can be promoted, if it is none
    /// and that is what forbids it.
    #[crate::boxed]
    pub async fn root_before_promotion(&self, clone: &str) -> Result<Option<String>> {
        let clone = self.dir_by_name(clone).await?;
        let origin = self.dataset(clone.phys().origin_obj).await?.dir();
        match self.promote_key_check(&clone, &origin).await {
            Err(e) if e.is(Errno::Access) => Ok(Some(origin.name())),
            other => other.map(|()| None),
        }
    }

    /// Makes a dataset an encryption root whose key is its root's so far, and so for all below it
    /// that are opened by the same.
    #[crate::boxed]
    pub async fn make_root(&self, tx: &Tx, name: &str) -> Result<()> {
        let dir = self.dir_by_name(name).await?;
        let Some(root) = self.encryption_root(&dir).await?.filter(|r| r.id != dir.id) else { return Ok(()) };
        for d in self.sharing(&dir, root.id).await? {
            if let Some(object) = self.key_object(&d).await? {
                let zap = Zap::open(self.mos(), object).await?;
                zap.set_u64(tx, DSL_CRYPTO_KEY_ROOT_DDOBJ, dir.id).await?;
            }
        }
        self.set_key_location(tx, &dir, Some("prompt")).await?;
        if let Some(key) = self.keys.wrapping(root.id) {
            self.keys.insert(dir.id, key);
        }
        Ok(())
    }
}
