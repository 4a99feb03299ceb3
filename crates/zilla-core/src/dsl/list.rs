//! Looking at the tree: children, snapshots, and the numbers `zfs list` and `zfs get` show.

use super::DslPool;
use super::bpobj::Space;
use super::dataset::DslDataset;
use super::dir::DslDir;
use crate::error::{Error, Result};
use crate::types::{Bookmark, ObjectId};
use crate::zap::Zap;
use crate::zio::Priority;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::dsl::{
    BOOKMARK_WORDS_V1, DD_FIELD_CRYPTO_KEY_OBJ, DD_FIELD_FILESYSTEM_COUNT, DD_FIELD_SNAPSHOT_COUNT,
    DD_FIELD_SNAPSHOTS_CHANGED, DD_USED_CHILD, DD_USED_CHILD_RSRV, DD_USED_HEAD, DD_USED_REFRSRV,
    DD_USED_SNAP, DS_FIELD_BOOKMARK_NAMES, DS_FIELD_IVSET_GUID, DSL_CRYPTO_KEY_CRYPTO_SUITE,
    DSL_CRYPTO_KEY_GUID, DSL_CRYPTO_KEY_KEYFORMAT, DSL_CRYPTO_KEY_PBKDF2ITERS, DSL_CRYPTO_KEY_PBKDF2SALT,
    DSL_CRYPTO_KEY_ROOT_DDOBJ, WordsPhys, ZfsBookmarkPhys,
};
use zilla_ondisk::{ByteOrder, ObjsetPhys};

/// A name and its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    pub name: String,
    pub id: u64,
}

fn not_a_child(dir: &DslDir, id: u64) -> Error {
    let what = format!("dir {id} is not a child of dir {}, or twice", dir.id);
    Error::corrupt(Some(Bookmark::new(0, ObjectId(id), 0, 0)), "", what)
}

/// What a dataset's structures say of it. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetInfo {
    pub name: String,
    pub id: u64,
    pub snapshot: bool,
    /// `ObjsetType`'s number; 0 where there are no contents yet.
    pub os_type: u64,
    pub guid: u64,
    pub creation: u64,
    pub createtxg: u64,
    pub used: u64,
    pub available: u64,
    pub referenced: u64,
    pub logical_used: u64,
    pub logical_referenced: u64,
    /// In hundredths.
    pub compressratio: u64,
    pub refcompressratio: u64,
    pub used_by_dataset: u64,
    pub used_by_snapshots: u64,
    pub used_by_children: u64,
    pub used_by_refreservation: u64,
    /// Written since the latest snapshot.
    pub written: u64,
    pub unique: u64,
    pub quota: u64,
    pub reservation: u64,
    pub refquota: u64,
    pub refreservation: u64,
    /// The snapshot a clone was made from.
    pub origin: Option<String>,
    /// Clones of a snapshot.
    pub clones: Vec<String>,
    pub userrefs: u64,
    pub defer_destroy: bool,
    pub inconsistent: bool,
    /// Seconds and nanoseconds; when a snapshot was last taken or destroyed.
    pub snapshots_changed: Option<(u64, u64)>,
    /// How many there are below, counted since a limit was set on the dataset or one above it.
    pub filesystem_count: Option<u64>,
    pub snapshot_count: Option<u64>,
    pub encryption: Option<Encryption>,
}

/// What an encrypted dataset's key object tells without the key. Numbers are those of the
/// properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    pub suite: u64,
    /// The dataset whose key opens it.
    pub root: String,
    pub keyformat: u64,
    pub pbkdf2iters: u64,
    pub pbkdf2salt: u64,
    pub keyguid: u64,
    /// The number of a snapshot's set of IVs.
    pub ivset: Option<u64>,
    /// The root's key is loaded.
    pub loaded: bool,
}

fn ratio(uncomp: u64, comp: u64) -> u64 {
    if comp == 0 { 100 } else { (u128::from(uncomp) * 100 / u128::from(comp)) as u64 }
}

impl DslPool {
    /// Dirs right below a dir, by name, without the pool's own.
    #[crate::boxed]
    pub async fn children(&self, dir: &DslDir) -> Result<Vec<Child>> {
        self.names(dir.phys().child_dir_zapobj, |n| !n.starts_with(['$', '%'])).await
    }

    async fn names(&self, zapobj: u64, wanted: impl Fn(&str) -> bool) -> Result<Vec<Child>> {
        let mut out = Vec::new();
        for e in Zap::open(self.mos(), zapobj).await?.entries().await? {
            let name = e.name_str().into_owned();
            if let Some(id) = e.value.as_u64().filter(|_| wanted(&name)) {
                out.push(Child { name, id });
            }
        }
        out.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }

    /// The dirs right below a dir. Each has this one as its parent and is there once: so whoever
    /// goes down the tree comes to each dir once, and to an end.
    #[crate::boxed]
    pub async fn child_dirs(&self, dir: &DslDir) -> Result<Vec<Arc<DslDir>>> {
        let (mut out, mut seen) = (Vec::new(), BTreeSet::new());
        for c in self.children(dir).await? {
            if !seen.insert(c.id) {
                return Err(not_a_child(dir, c.id));
            }
            out.push(self.child_dir(dir, c.id).await?);
        }
        Ok(out)
    }

    /// The dir right below a dir that is object `id`.
    pub(crate) async fn child_dir(&self, dir: &DslDir, id: u64) -> Result<Arc<DslDir>> {
        let child = self.dir(id).await?;
        match child.parent().is_some_and(|p| p.id == dir.id) {
            true => Ok(child),
            false => Err(not_a_child(dir, id)),
        }
    }

    /// A head's snapshots, oldest first.
    #[crate::boxed]
    pub async fn snapshots(&self, head: &DslDataset) -> Result<Vec<Arc<DslDataset>>> {
        let zapobj = head.phys().snapnames_zapobj;
        if zapobj == 0 {
            return Ok(Vec::new());
        }
        let mut out = Vec::new();
        for c in self.names(zapobj, |_| true).await? {
            out.push(self.dataset(c.id).await?);
        }
        out.sort_by_key(|s| (s.phys().creation_txg, s.id));
        Ok(out)
    }

    /// Names of the clones of a snapshot, in the order of their ZAP: it is also OpenZFS's.
    #[crate::boxed]
    pub async fn clones(&self, snap: &DslDataset) -> Result<Vec<String>> {
        let id = snap.phys().next_clones_obj;
        if id == 0 {
            return Ok(Vec::new());
        }
        let mut out = Vec::new();
        for id in Zap::open(self.mos(), id).await?.ints().await? {
            out.push(self.dataset(id).await?.dir().name());
        }
        Ok(out)
    }

    /// The kind of a dataset's contents, an `ObjsetType`'s number; 0 where there are none yet. Does
    /// not keep the objset open.
    #[crate::boxed]
    pub async fn os_type(&self, ds: &DslDataset) -> Result<u64> {
        if let Some(os) = ds.open_objset() {
            return Ok(os.os_type());
        }
        let (known, bp) = (ds.os_type.load(Ordering::Relaxed), ds.phys().bp);
        if known != 0 || bp.is_hole() {
            return Ok(known);
        }
        let at = Bookmark::root(ds.id);
        let data = match self.ctx.store.cached(&bp, ds.id) {
            Some(data) => data,
            None => self.ctx.store.read(bp, at, Priority::SyncRead).await?,
        };
        let phys = ObjsetPhys::decode(&data, ByteOrder::NATIVE)
            .map_err(|e| Error::corrupt(Some(at), "", e.to_string()))?;
        ds.os_type.store(phys.os_type, Ordering::Relaxed);
        Ok(phys.os_type)
    }

    #[crate::boxed]
    pub async fn info(&self, ds: &Arc<DslDataset>) -> Result<DatasetInfo> {
        let p = ds.phys();
        let dir = ds.dir();
        let mut i = DatasetInfo {
            name: ds.name(),
            id: ds.id,
            snapshot: ds.is_snapshot(),
            guid: p.guid,
            creation: p.creation_time,
            createtxg: p.creation_txg,
            referenced: p.referenced_bytes,
            logical_referenced: p.uncompressed_bytes,
            unique: p.unique_bytes,
            refcompressratio: ratio(p.uncompressed_bytes, p.compressed_bytes),
            userrefs: ds.userrefs(),
            defer_destroy: ds.is_defer_destroy(),
            inconsistent: ds.is_inconsistent(),
            ..DatasetInfo::default()
        };
        i.encryption = self.encryption(&dir, ds).await?;
        i.os_type = self.os_type(ds).await?;
        i.written = self.written(ds).await?;
        if i.snapshot {
            i.used = p.unique_bytes;
            i.compressratio = i.refcompressratio;
            i.clones = self.clones(ds).await?;
            return Ok(i);
        }
        let d = dir.phys();
        let kinds = d.used_breakdown;
        i.used = d.used_bytes;
        i.available = self.dataset_space(ds).1;
        i.logical_used = d.uncompressed_bytes;
        i.compressratio = ratio(d.uncompressed_bytes, d.compressed_bytes);
        i.used_by_dataset = kinds[DD_USED_HEAD];
        i.used_by_snapshots = kinds[DD_USED_SNAP];
        i.used_by_children = kinds[DD_USED_CHILD].saturating_add(kinds[DD_USED_CHILD_RSRV]);
        i.used_by_refreservation = kinds[DD_USED_REFRSRV];
        i.quota = d.quota;
        i.reservation = d.reserved;
        i.refquota = ds.refquota.load(Ordering::Relaxed);
        i.refreservation = ds.reserved.load(Ordering::Relaxed);
        if self.is_clone(&dir) {
            i.origin = Some(self.dataset(d.origin_obj).await?.name());
        }
        if let Some(zap) = dir.zap() {
            let at = zap.try_get(DD_FIELD_SNAPSHOTS_CHANGED).await?.and_then(|v| v.as_u64s());
            i.snapshots_changed = at.and_then(|v| Some((*v.first()?, *v.get(1)?)));
            i.filesystem_count = zap.try_get_u64(DD_FIELD_FILESYSTEM_COUNT).await?;
            i.snapshot_count = zap.try_get_u64(DD_FIELD_SNAPSHOT_COUNT).await?;
        }
        Ok(i)
    }

    async fn encryption(&self, dir: &DslDir, ds: &DslDataset) -> Result<Option<Encryption>> {
        let Some(zap) = dir.zap() else { return Ok(None) };
        let Some(id) = zap.try_get_u64(DD_FIELD_CRYPTO_KEY_OBJ).await? else { return Ok(None) };
        let key = Zap::open(self.mos(), id).await?;
        self.key_version(id).await?;
        let ivset = match ds.zap() {
            Some(zap) => zap.try_get_u64(DS_FIELD_IVSET_GUID).await?,
            None => None,
        };
        let root = key.get_u64(DSL_CRYPTO_KEY_ROOT_DDOBJ).await?;
        Ok(Some(Encryption {
            ivset,
            pbkdf2salt: key.try_get_u64(DSL_CRYPTO_KEY_PBKDF2SALT).await?.unwrap_or(0),
            keyguid: key.get_u64(DSL_CRYPTO_KEY_GUID).await?,
            loaded: self.keys.wrapping(root).is_some(),
            suite: key.get_u64(DSL_CRYPTO_KEY_CRYPTO_SUITE).await?,
            root: self.dir(root).await?.name(),
            keyformat: key.get_u64(DSL_CRYPTO_KEY_KEYFORMAT).await?,
            pbkdf2iters: key.try_get_u64(DSL_CRYPTO_KEY_PBKDF2ITERS).await?.unwrap_or(0),
        }))
    }

    /// Space written since the snapshot before: what is referenced now less what was, plus what was
    /// dropped since.
    #[crate::boxed]
    pub async fn written(&self, ds: &DslDataset) -> Result<u64> {
        let p = ds.phys();
        let Some(prev) = self.prev(ds).await? else { return Ok(p.referenced_bytes) };
        let dead = self.deadlist_open(p.deadlist_obj).await?.space()?.used;
        Ok(p.referenced_bytes.saturating_add(dead).saturating_sub(prev.phys().referenced_bytes))
    }

    /// What a snapshot, or head, has that an earlier snapshot of it, or its origin, had not; None
    /// if it is no earlier one.
    #[crate::boxed]
    pub async fn written_between(&self, from: &DslDataset, to: &Arc<DslDataset>) -> Result<Option<Space>> {
        let of = |ds: &DslDataset| {
            let p = ds.phys();
            Space { used: p.referenced_bytes, comp: p.compressed_bytes, uncomp: p.uncompressed_bytes }
        };
        let mut sum = of(to);
        let mut at = to.clone();
        while at.id != from.id {
            let dead = self.deadlist_open(at.phys().deadlist_obj).await?;
            sum.add(self.deadlist_space_range(&dead, 0, from.phys().creation_txg).await?);
            match self.prev(&at).await? {
                Some(prev) => at = prev,
                None => return Ok(None),
            }
        }
        let old = of(from);
        let less = |a: u64, b: u64| a.saturating_sub(b);
        Ok(Some(Space {
            used: less(sum.used, old.used),
            comp: less(sum.comp, old.comp),
            uncomp: less(sum.uncomp, old.uncomp),
        }))
    }

    /// The bookmarks of a dataset, by name.
    #[crate::boxed]
    pub async fn bookmarks_of(&self, head: &DslDataset) -> Result<Vec<(String, ZfsBookmarkPhys)>> {
        let Some(zap) = head.zap() else { return Ok(Vec::new()) };
        let Some(id) = zap.try_get_u64(DS_FIELD_BOOKMARK_NAMES).await? else { return Ok(Vec::new()) };
        let mut out = Vec::new();
        for e in Zap::open(self.mos(), id).await?.entries().await? {
            let words = e.value.as_u64s().unwrap_or_default();
            let phys = ZfsBookmarkPhys::from_words(&words, BOOKMARK_WORDS_V1).map_err(|err| {
                Error::corrupt(Some(Bookmark::new(0, ObjectId(id), 0, 0)), "", err.to_string())
            })?;
            out.push((e.name_str().into_owned(), phys));
        }
        Ok(out)
    }

    /// What streams brought of a dataset's properties, whether it counts or not.
    #[crate::boxed]
    pub async fn received_props(&self, ds: &DslDataset) -> Result<Vec<(String, crate::zap::Value)>> {
        let id = if ds.is_snapshot() { ds.phys().props_obj } else { ds.dir().phys().props_zapobj };
        if id == 0 {
            return Ok(Vec::new());
        }
        let all = Zap::open(self.mos(), id).await?.entries().await?;
        let received = all.into_iter().filter_map(|e| {
            let name = e.name_str().strip_suffix("$recvd")?.to_owned();
            Some((name, e.value))
        });
        Ok(received.collect())
    }
}
