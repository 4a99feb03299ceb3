//! `zfs list` and `zfs get`: walking the tree.
//!
//! The owner gets what there is. What others get is bounded while it is gathered ([`Room`]), also
//! where the same is asked for again and again under the names of those above it.

use super::errors::{Answer, no_dataset, of, of_dataset};
use super::names::Names;
use super::pool::Pool;
use super::values::{kind_of, received};
use super::{Engine, Serves};
use futures_util::future::BoxFuture;
use std::collections::HashSet;
use std::path::Path;
use zilla::tree::{DatasetDir, DatasetRef};
use zilla_control::types::{
    DatasetByPath, DatasetInfo, DatasetKind, DatasetQuery, DatasetQueryReply, PropValue, Source,
};
use zilla_control::{ApiError, Caller, ErrorCode, GUEST_REPLY_LIMIT, reply_too_long};

/// Bytes that the rest of an answer may take.
pub(super) struct Room(Option<usize>);

/// What a dataset and a property take as JSON beside their words.
const OF_DATASET: usize = 64;
const OF_PROPERTY: usize = 32;

impl Room {
    /// The owner's.
    pub(super) fn endless() -> Room {
        Room(None)
    }

    /// Of who does not own the daemon.
    pub(super) fn of_guest() -> Room {
        Room(Some(GUEST_REPLY_LIMIT))
    }

    fn take(&mut self, info: &DatasetInfo) -> Answer<()> {
        let Some(left) = &mut self.0 else { return Ok(()) };
        let of_property = |(name, p): (&String, &PropValue)| {
            let from = if let Source::Inherited(from) = &p.source { from.len() } else { 0 };
            OF_PROPERTY + name.len() + p.value.len() + from + p.received.as_ref().map_or(0, String::len)
        };
        let size: usize = info.properties.iter().map(of_property).sum();
        *left = left.checked_sub(OF_DATASET + info.name.len() + size).ok_or_else(reply_too_long)?;
        Ok(())
    }
}

/// One walk through a pool.
struct Walk<'a> {
    pool: &'a Pool,
    room: &'a mut Room,
    r: &'a DatasetQuery,
    names: &'a Names,
    snapshots: bool,
    bookmarks: bool,
    out: Vec<DatasetInfo>,
}

impl Engine {
    /// What somebody is told: others than the owner nothing of each other's accounts.
    pub(super) async fn answer_query(&self, caller: &Caller, r: DatasetQuery) -> Answer<DatasetQueryReply> {
        let names = Names::of(caller, &r.properties).await?;
        if caller.owner {
            return self.query_datasets(r, Room::endless(), &names).await;
        }
        let wanted = r.properties.clone();
        let mut reply = self.query_datasets(r, Room::of_guest(), &names).await?;
        self.hide_accounts(caller, &wanted, &names, &mut reply).await?;
        Ok(reply)
    }

    pub(super) async fn query_datasets(
        &self,
        r: DatasetQuery,
        mut room: Room,
        names: &Names,
    ) -> Answer<DatasetQueryReply> {
        let mut reply = DatasetQueryReply::default();
        let mut roots: Vec<String> = if r.roots.is_empty() {
            self.all_pools().iter().map(|p| p.name()).collect()
        } else {
            r.roots.clone()
        };
        let (mut asked, mut told) = (HashSet::new(), HashSet::new());
        roots.retain(|root| asked.insert(root.clone()));
        for root in &roots {
            let walked = match self.pool_of(root) {
                Ok(pool) => query_root(&pool, &r, root, &mut room, names).await,
                Err(e) => Err(e),
            };
            match walked {
                Ok(list) => {
                    let new = list.into_iter().filter(|info| told.insert(info.name.clone()));
                    reply.datasets.extend(new);
                }
                Err(e) if e == reply_too_long() => return Err(e),
                Err(e) => reply.errors.push(if e.subject.is_some() { e } else { e.subject(root.as_str()) }),
            }
        }
        Ok(reply)
    }
}

impl Serves<DatasetQuery> for Engine {
    async fn serve(&self, caller: &Caller, r: DatasetQuery) -> Answer<DatasetQueryReply> {
        self.answer_query(caller, r).await
    }
}

impl Serves<DatasetByPath> for Engine {
    async fn serve(&self, _: &Caller, r: DatasetByPath) -> Answer<String> {
        let path = Path::new(&r.path);
        let mut best: Option<(usize, String)> = None;
        for pool in self.all_pools() {
            for (name, mounted) in pool.mounts().iter() {
                let at = mounted.path();
                let depth = at.components().count();
                if path.starts_with(at) && best.as_ref().is_none_or(|(d, _)| depth > *d) {
                    best = Some((depth, name.clone()));
                }
            }
        }
        best.map(|(_, name)| name).ok_or_else(|| {
            ApiError::with(ErrorCode::NoEnt, "not a ZFS filesystem").subject(path.to_string_lossy())
        })
    }
}

async fn query_root(
    pool: &Pool,
    r: &DatasetQuery,
    root: &str,
    room: &mut Room,
    names: &Names,
) -> Answer<Vec<DatasetInfo>> {
    let wants = |kind| r.kinds.is_empty() || r.kinds.contains(&kind);
    let lists = !r.pool_lists_snapshots || pool.lists_snapshots().await.map_err(of(root))?;
    let mut walk = Walk {
        pool,
        room,
        r,
        names,
        snapshots: wants(DatasetKind::Snapshot) && lists,
        bookmarks: wants(DatasetKind::Bookmark),
        out: Vec::new(),
    };
    if let Some((fs, mark)) = root.split_once('#') {
        let head = pool.zilla.by_name(fs).await.map_err(of(root))?;
        let found = pool.bookmarks_shown(&head).await.into_iter().find(|b| b.name == format!("{fs}#{mark}"));
        return Ok(vec![found.ok_or_else(|| no_dataset(root))?]);
    }
    let ds = pool.zilla.by_name(root).await.map_err(of(root))?;
    if ds.is_snapshot() {
        walk.show(&ds).await?;
    } else {
        walk.head(&ds.dir(), 0).await?;
    }
    Ok(walk.out)
}

impl Walk<'_> {
    fn wants(&self, kind: DatasetKind) -> bool {
        self.r.kinds.is_empty() || self.r.kinds.contains(&kind)
    }

    async fn show(&mut self, ds: &DatasetRef) -> Answer<()> {
        let mut shown = self.pool.describe(ds, &self.r.properties, self.names).await?;
        if self.r.received {
            received(ds, &self.r.properties, &mut shown).await.map_err(of(&shown.name))?;
        }
        self.tell(shown)
    }

    fn tell(&mut self, shown: DatasetInfo) -> Answer<()> {
        self.room.take(&shown)?;
        self.out.push(shown);
        Ok(())
    }

    fn head<'a>(&'a mut self, dir: &'a DatasetDir, depth: u32) -> BoxFuture<'a, Answer<()>> {
        Box::pin(async move {
            // With everything in memory nothing else waits, and others' requests are to go on.
            tokio::task::yield_now().await;
            let below = self.r.depth.is_none_or(|max| depth < max);
            if dir.has_head() {
                let ds = dir.head().await.map_err(of_dataset)?;
                let kind = kind_of(&ds.info().await.map_err(of(&ds.name()))?);
                if self.wants(kind) {
                    self.show(&ds).await?;
                }
                if below && self.snapshots {
                    for snap in ds.snapshots().await.map_err(of(&ds.name()))? {
                        self.show(&snap).await?;
                    }
                }
                if below && self.bookmarks {
                    for mark in self.pool.bookmarks_shown(&ds).await {
                        self.tell(mark)?;
                    }
                }
            }
            if below {
                for child in dir.children().await.map_err(of(&dir.name()))? {
                    self.head(&child, depth + 1).await?;
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_s_room_ends_and_the_owner_s_does_not() {
        let value = PropValue::new("x".repeat(1000), Source::Inherited("tank".repeat(50)));
        let properties = (0..10).map(|i| (format!("a:{i}"), value.clone())).collect();
        let info = DatasetInfo { name: "tank/a@b".into(), properties, ..DatasetInfo::default() };
        let words = info.name.len() + 10 * (3 + 1000 + 200);
        let (mut guest, mut owner) = (Room::of_guest(), Room::endless());
        let taken = (0..GUEST_REPLY_LIMIT).take_while(|_| guest.take(&info).is_ok()).count();
        let most = GUEST_REPLY_LIMIT / words;
        assert!((most / 10 * 9..=most).contains(&taken), "{taken} of {most}");
        assert_eq!(guest.take(&info), Err(reply_too_long()));
        assert!((0..2 * most).all(|_| owner.take(&info).is_ok()));
    }
}
