//! What a raw package says of keys beside its streams: which dataset's key opens which at the
//! sender.
//!
//! A dataset has its own key (`is_encroot`), or its origin's root's, or that of the dataset above
//! it. What of that can be so here as well the engine knows
//! ([`zilla::Pool::follow_raw_roots`]).

use super::Engine;
use super::errors::{Answer, of_dataset};
use super::follow::snapshots_of;
use super::pool::Pool;
use super::receive::{members, target_of};
use super::streams::Told;
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla::keys::{RawKey, RawMember};
use zilla_control::types::StreamReceive;
use zilla_ondisk::NvList;
use zilla_ondisk::stream::Begin;

/// What the streams of a package say of their keys, by the names of their datasets in it.
pub(super) type RawKeys = BTreeMap<String, Arc<RawKey>>;

/// The datasets of a package by their names in it, and which snapshot is whose.
struct Tree<'a> {
    top: &'a str,
    members: BTreeMap<&'a str, &'a NvList>,
    by_snapshot: BTreeMap<u64, &'a str>,
}

impl<'a> Tree<'a> {
    fn read(top: &'a str, list: &'a NvList) -> Tree<'a> {
        let (mut named, mut by_snapshot) = (BTreeMap::new(), BTreeMap::new());
        for member in members(list) {
            let Some(name) = member.str("name") else { continue };
            named.insert(name, member);
            by_snapshot.extend(snapshots_of(member).map(|(_, guid)| (guid, name)));
        }
        Tree { top, members: named, by_snapshot }
    }

    /// The dataset whose key opens one at the sender, if it is in the package.
    fn root_of(&self, name: &'a str) -> Option<&'a str> {
        let mut at = name;
        // No way is longer, unless it leads in a circle.
        for _ in 0..=self.members.len() {
            let member = self.members.get(at)?;
            if member.contains("is_encroot") || at == self.top {
                return Some(at);
            }
            at = match member.u64("origin").filter(|guid| *guid != 0) {
                Some(guid) => self.by_snapshot.get(&guid)?,
                None => at.rsplit_once('/')?.0,
            };
        }
        None
    }
}

impl Engine {
    /// Gives the datasets of a raw package the encryption roots, and those the keys, that they have
    /// at the sender.
    pub(super) async fn follow_roots(
        &self,
        pool: &Arc<Pool>,
        r: &StreamReceive,
        first: &Begin,
        list: &NvList,
        keys: &RawKeys,
        told: &Told,
    ) -> Answer<()> {
        let Some(top) = first.toname.split('@').next() else { return Ok(()) };
        let tree = Tree::read(top, list);
        let here = |name: &str| -> Answer<String> {
            let target = target_of(r, &format!("{name}@x"), Some(top))?;
            Ok(target.split('@').next().unwrap_or_default().to_owned())
        };
        let mut all = Vec::new();
        for (name, key) in keys {
            let Some((name, _)) = tree.members.get_key_value(name.as_str()) else { continue };
            let Some(root) = tree.root_of(name) else { continue };
            let (name, root) = (here(name)?, here(root)?);
            all.push(RawMember { name, root, key: key.clone() });
        }
        let followed = pool.zilla.follow_raw_roots(&here(top)?, all).await;
        // All is received, and opens as it did before.
        for (fs, why) in followed.map_err(of_dataset)? {
            told.err(format!("cannot follow the sender's encryption root '{fs}': {why}"));
        }
        Ok(())
    }
}
