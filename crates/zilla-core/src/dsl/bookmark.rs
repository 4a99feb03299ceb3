//! Bookmarks: what remains of a snapshot that an incremental stream may begin at.
//!
//! A bookmark is a name of a head (`fs#mark`) with the guid, txg and time of the snapshot it was
//! made from. It holds no block, and stays when the snapshot goes. All of a head's lie in one ZAP,
//! which the head's own ZAP leads to; a value is 3 words long, or 12 where the pool has
//! `bookmark_v2` and one of the later words is used.
//!
//! **Written since.** With the feature `bookmark_written` a bookmark also keeps the account from
//! which `written#mark` is told, when the snapshot is long gone: what the snapshot referred to, and
//! how much of that was freed before the next snapshot was taken (*FBN*, of
//! `freed_before_next_snap`). What was freed later lies on the deadlists of later snapshots, if
//! these have a key at the bookmark's txg. So three things are kept true:
//!
//! * a block that the head drops and that a bookmark after its latest snapshot knew is added to
//!   that bookmark's account ([`killed`](DslPool::bookmarks_killed));
//! * when a snapshot goes, what it held back is added to the accounts of the bookmarks before it,
//!   and its key stays in the deadlists if one of them is of its txg;
//! * when a snapshot is taken, the head's new deadlist gets the keys of the bookmarks since the
//!   last one.
//!
//! **In memory** each head keeps its bookmarks, sorted by txg. They are changed by the sync task
//! only, together with the ZAP.
//!
//! **Crash.** As with all of this layer: in the txg, or not at all.

use super::DslPool;
use super::Refusal;
use super::bpobj::Space;
use super::dataset::DslDataset;
use super::name;
use super::space::SpaceCheck;
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::Bookmark;
use crate::zap::{CreateOpts, Match, U8_TEXTPREP_TOUPPER, Value, Zap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dsl::{
    BOOKMARK_WORDS_V1, DS_FIELD_BOOKMARK_NAMES, DS_FIELD_IVSET_GUID, ZBM_FLAG_HAS_FBN,
    ZBM_FLAG_SNAPSHOT_EXISTS, ZfsBookmarkPhys,
};
use zilla_ondisk::dsl::{DS_FLAG_CI_DATASET, WordsPhys};
use zilla_ondisk::object_type::DMU_OTN_ZAP_METADATA;

/// One bookmark of a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DslBookmark {
    /// Without its head's name.
    pub name: String,
    pub phys: ZfsBookmarkPhys,
}

impl DslBookmark {
    /// It keeps an account of what was freed.
    pub fn has_fbn(&self) -> bool {
        self.phys.flags & ZBM_FLAG_HAS_FBN != 0
    }

    fn order(&self) -> (u64, bool, &str) {
        (self.phys.creation_txg, self.has_fbn(), &self.name)
    }

    fn add_freed(&mut self, s: Space) {
        let p = &mut self.phys;
        for (to, n) in [
            (&mut p.referenced_freed_before_next_snap, s.used),
            (&mut p.compressed_freed_before_next_snap, s.comp),
            (&mut p.uncompressed_freed_before_next_snap, s.uncomp),
        ] {
            *to = to.saturating_add(n);
        }
    }

    /// As it lies in the ZAP. Software that knows short bookmarks only should be able to read those
    /// that need no more.
    fn stored(&self, v2: bool) -> Value {
        let words = self.phys.to_words();
        match v2 {
            true => Value::u64s(&words),
            false => Value::u64s(words.get(..BOOKMARK_WORDS_V1).unwrap_or(&words)),
        }
    }
}

/// The head's name and the bookmark's.
pub(super) fn split(name: &str) -> Option<(&str, &str)> {
    name.split_once('#')
}

fn check_name(name: &str) -> Result<(&str, &str)> {
    let Some((fs, mark)) = split(name) else {
        return Err(Refusal::NotBookmark(name.to_owned()).into());
    };
    if name.len() >= name::ZFS_MAX_DATASET_NAME_LEN {
        return Err(Refusal::NameTooLong(name.to_owned()).into());
    }
    name::check(fs)?;
    name::check_component(mark)?;
    Ok((fs, mark))
}

impl DslPool {
    /// Reads a head's bookmarks, when it is opened.
    pub(super) async fn load_bookmarks(&self, ds: &DslDataset) -> Result<()> {
        let Some(zap) = ds.zap() else { return Ok(()) };
        let Some(id) = zap.try_get_u64(DS_FIELD_BOOKMARK_NAMES).await? else { return Ok(()) };
        let zap = Zap::open(self.mos(), id).await?;
        let mut all = Vec::new();
        for e in zap.entries().await? {
            let words = e.value.as_u64s().unwrap_or_default();
            let name = e.name_str().into_owned();
            let phys = ZfsBookmarkPhys::from_words(&words, BOOKMARK_WORDS_V1).map_err(|x| {
                let at = Bookmark::new(0, zap.dnode().id(), 0, 0);
                Error::corrupt(Some(at), "", format!("bookmark '{name}' of {}: {x}", ds.name()))
            })?;
            all.push(DslBookmark { name, phys });
        }
        all.sort_by(|a, b| a.order().cmp(&b.order()));
        *ds.bookmarks.lock() = all;
        ds.bookmarks_obj.store(id, Ordering::Relaxed);
        Ok(())
    }

    /// A head and one of its bookmarks.
    #[crate::boxed]
    pub async fn bookmark_by_name(&self, name: &str) -> Result<(Arc<DslDataset>, DslBookmark)> {
        let Some((fs, mark)) = split(name) else {
            return Err(Refusal::NotBookmark(name.to_owned()).into());
        };
        let head = self.by_name(fs).await?;
        match self.bookmark_of(&head, mark).await? {
            Some(found) => Ok((head, found)),
            None => Err(Refusal::NoBookmark(name.to_owned()).into()),
        }
    }

    async fn bookmark_of(&self, head: &DslDataset, mark: &str) -> Result<Option<DslBookmark>> {
        let id = head.bookmarks_obj.load(Ordering::Relaxed);
        let exact = |name: &str| head.bookmarks.lock().iter().find(|b| b.name == name).cloned();
        if id == 0 || head.phys().flags & DS_FLAG_CI_DATASET == 0 {
            return Ok(exact(mark));
        }
        let zap = Zap::open(self.mos(), id).await?;
        let found = crate::dmu::resident(|| zap.lookup_norm(mark.as_bytes(), Match::Normalized)).await?;
        Ok(found.and_then(|f| exact(&String::from_utf8_lossy(&f.name))))
    }

    /// Whether the state of `earlier` at `txg` (0: its own creation) is one that `later` has come
    /// from.
    #[crate::boxed]
    pub async fn is_before(&self, later: &Arc<DslDataset>, earlier: &DslDataset, txg: u64) -> Result<bool> {
        let txg = if txg == 0 { earlier.phys().creation_txg } else { txg };
        let earlier_dir = earlier.dir();
        let mut later = later.clone();
        // A clone's origin is older than the clone, so this ends; that it is is not believed.
        for _ in 0..=u16::MAX {
            if later.is_snapshot() && txg >= later.phys().creation_txg {
                return Ok(false);
            }
            let dir = later.dir();
            if dir.id == earlier_dir.id {
                return Ok(true);
            }
            let origin = dir.phys().origin_obj;
            if origin == 0 {
                return Ok(false);
            }
            let origin = self.dataset(origin).await?;
            if origin.phys().creation_txg == txg && origin.dir().id == earlier_dir.id {
                return Ok(true);
            }
            later = origin;
        }
        Err(Error::corrupt(None, "", format!("{} has endlessly many origins", later.name())))
    }

    /// Why a bookmark of this name cannot be made from this snapshot or bookmark, if it cannot.
    #[crate::boxed]
    pub async fn bookmark_check(&self, source: &str, new: &str) -> Result<()> {
        if !self.feature_enabled("bookmarks") {
            return Err(Refusal::FeatureDisabled("bookmarks").into());
        }
        let (fs, mark) = check_name(new)?;
        let head = self.by_name(fs).await?;
        if self.bookmark_of(&head, mark).await?.is_some() {
            return Err(Refusal::BookmarkExists(new.to_owned()).into());
        }
        let before = if split(source).is_some() {
            let (of, found) = self.bookmark_by_name(source).await?;
            self.is_before(&head, &of, found.phys.creation_txg).await?
        } else {
            let snap = self.by_name(source).await?;
            if !snap.is_snapshot() {
                return Err(Refusal::NotSnapshot(source.to_owned()).into());
            }
            self.is_before(&head, &snap, 0).await?
        };
        if before { Ok(()) } else { Err(Refusal::NotAncestor.into()) }
    }

    /// Makes bookmarks, all or none: pairs of a snapshot or bookmark, and the new name.
    #[crate::boxed]
    pub async fn bookmark(&self, tx: &Tx, pairs: &[(String, String)]) -> Result<()> {
        for (n, (source, new)) in pairs.iter().enumerate() {
            self.bookmark_check(source, new).await?;
            if pairs.iter().take(n).any(|(_, other)| other == new) {
                return Err(Refusal::BookmarkExists(new.clone()).into());
            }
        }
        self.check_space_for(SpaceCheck::Normal, pairs.len())?;
        let mut found = Vec::with_capacity(pairs.len());
        for (source, new) in pairs {
            let (fs, mark) = check_name(new)?;
            let head = self.by_name(fs).await?;
            self.read_dataset(&head).await?;
            let (phys, snap) = match split(source) {
                // The list of what is redacted belongs to the other.
                Some(_) => {
                    let phys = self.bookmark_by_name(source).await?.1.phys;
                    (ZfsBookmarkPhys { redaction_obj: 0, ..phys }, None)
                }
                None => {
                    let snap = self.by_name(source).await?;
                    (self.bookmark_phys(&snap).await?, Some(snap))
                }
            };
            found.push((head, DslBookmark { name: mark.to_owned(), phys }, snap));
        }
        self.read_pool().await?;
        for (head, mut mark, snap) in found {
            if let Some(snap) = snap {
                mark.phys.redaction_obj = self.list_of_redacted(tx, &snap).await?;
            }
            let text = format!("name={} creation_txg={}", mark.name, mark.phys.creation_txg);
            self.bookmark_add(tx, &head, mark).await?;
            self.note(tx, &head, "bookmark", &text);
        }
        Ok(())
    }

    /// What a bookmark of a snapshot says.
    pub(super) async fn bookmark_phys(&self, snap: &DslDataset) -> Result<ZfsBookmarkPhys> {
        let p = snap.phys();
        let mut out = ZfsBookmarkPhys {
            guid: p.guid,
            creation_txg: p.creation_txg,
            creation_time: p.creation_time,
            ..ZfsBookmarkPhys::default()
        };
        if self.feature_enabled("bookmark_v2")
            && let Some(zap) = snap.zap()
        {
            // For raw streams of an encrypted dataset; others have none.
            out.ivset_guid = zap.try_get_u64(DS_FIELD_IVSET_GUID).await?.unwrap_or(0);
        }
        if self.feature_enabled("bookmark_written") {
            out.flags = ZBM_FLAG_SNAPSHOT_EXISTS | ZBM_FLAG_HAS_FBN;
            out.referenced_bytes_refd = p.referenced_bytes;
            out.compressed_bytes_refd = p.compressed_bytes;
            out.uncompressed_bytes_refd = p.uncompressed_bytes;
            let next = self.dataset(p.next_snap_obj).await?;
            let dead = self.deadlist_open(next.phys().deadlist_obj).await?.space()?;
            out.referenced_freed_before_next_snap = dead.used;
            out.compressed_freed_before_next_snap = dead.comp;
            out.uncompressed_freed_before_next_snap = dead.uncomp;
        }
        Ok(out)
    }

    pub(super) async fn bookmark_add(&self, tx: &Tx, head: &DslDataset, mark: DslBookmark) -> Result<()> {
        let mut id = head.bookmarks_obj.load(Ordering::Relaxed);
        if id == 0 {
            let opts = CreateOpts { normflags: U8_TEXTPREP_TOUPPER, ..CreateOpts::default() };
            id = Zap::make(self.mos(), tx, DMU_OTN_ZAP_METADATA, &opts).await?.id();
            self.feature_incr(tx, "bookmarks").await?;
            self.zapify(tx, &head.dn).await?.insert_u64(tx, DS_FIELD_BOOKMARK_NAMES, id).await?;
            head.bookmarks_obj.store(id, Ordering::Relaxed);
        }
        let p = &mark.phys;
        let more = p.ivset_guid != 0 || p.redaction_obj != 0 || mark.has_fbn();
        let v2 = more && self.feature_enabled("bookmark_v2");
        if v2 {
            self.feature_incr(tx, "bookmark_v2").await?;
        }
        if mark.has_fbn() {
            self.feature_incr(tx, "bookmark_written").await?;
        }
        Zap::open(self.mos(), id).await?.insert(tx, &mark.name, &mark.stored(v2)).await?;
        let mut all = head.bookmarks.lock();
        let at = all.partition_point(|b| b.order() < mark.order());
        all.insert(at, mark);
        Ok(())
    }

    /// Takes a bookmark out of its head's ZAP, and the ZAP away when it was the last.
    async fn bookmark_take(&self, tx: &Tx, head: &DslDataset, mark: &DslBookmark) -> Result<()> {
        let id = head.bookmarks_obj.load(Ordering::Relaxed);
        let zap = Zap::open(self.mos(), id).await?;
        let words = zap.get(&mark.name).await?.as_u64s().map_or(0, |w| w.len());
        if words > BOOKMARK_WORDS_V1 {
            self.feature_decr(tx, "bookmark_v2").await?;
        }
        if mark.has_fbn() {
            self.feature_decr(tx, "bookmark_written").await?;
        }
        zap.delete(tx, &mark.name).await?;
        head.bookmarks.lock().retain(|b| b.name != mark.name);
        if zap.is_empty().await? {
            self.bookmarks_end(tx, head, id).await?;
        }
        Ok(())
    }

    async fn bookmarks_end(&self, tx: &Tx, head: &DslDataset, id: u64) -> Result<()> {
        if let Some(zap) = head.zap() {
            zap.delete(tx, DS_FIELD_BOOKMARK_NAMES).await?;
        }
        self.free_object(tx, id).await?;
        head.bookmarks_obj.store(0, Ordering::Relaxed);
        self.feature_decr(tx, "bookmarks").await
    }

    /// Destroys bookmarks. One that is not there has gone before, which is no error.
    #[crate::boxed]
    pub async fn destroy_bookmarks(&self, tx: &Tx, names: &[String]) -> Result<()> {
        let mut found: Vec<(Arc<DslDataset>, DslBookmark)> = Vec::new();
        for name in names {
            match self.bookmark_by_name(name).await {
                Ok((head, mark)) if !found.iter().any(|(h, m)| h.id == head.id && *m == mark) => {
                    self.read_dataset(&head).await?;
                    self.read_for_bookmark(&head, &mark.phys).await?;
                    found.push((head, mark));
                }
                Ok(_) => {}
                Err(e) if e.is(crate::error::Errno::NoEnt) => {}
                Err(e) => return Err(e),
            }
        }
        self.read_pool().await?;
        for (head, mark) in found {
            self.destroy_bookmark_sync(tx, &head, &mark).await?;
        }
        Ok(())
    }

    async fn destroy_bookmark_sync(&self, tx: &Tx, head: &Arc<DslDataset>, mark: &DslBookmark) -> Result<()> {
        let txg = mark.phys.creation_txg;
        if mark.has_fbn() {
            let others = |b: &DslBookmark| b.has_fbn() && b.phys.creation_txg == txg && b.name != mark.name;
            let last = !head.bookmarks.lock().iter().any(others);
            let snapshot = mark.phys.flags & ZBM_FLAG_SNAPSHOT_EXISTS != 0;
            // Nothing else needs the key of its txg in the deadlists of the head and of its clones.
            if last && !snapshot && txg < head.phys().prev_snap_txg {
                self.remove_clones_key(tx, &head.dir(), txg).await?;
                let mut dl = self.deadlist_open(head.phys().deadlist_obj).await?;
                self.deadlist_remove_key(tx, &mut dl, txg).await?;
            }
        }
        self.free_list(tx, &mark.phys).await?;
        self.bookmark_take(tx, head, mark).await?;
        self.note(tx, head, "remove bookmark", &format!("name={}", mark.name));
        Ok(())
    }

    /// All bookmarks of a head go with it.
    pub(super) async fn free_bookmarks(&self, tx: &Tx, head: &DslDataset) -> Result<()> {
        let all = head.bookmarks.lock().clone();
        for mark in all {
            self.free_list(tx, &mark.phys).await?;
            self.bookmark_take(tx, head, &mark).await?;
        }
        match head.bookmarks_obj.load(Ordering::Relaxed) {
            0 => Ok(()),
            // An empty one, as OpenZFS leaves after a promotion.
            id => self.bookmarks_end(tx, head, id).await,
        }
    }

    /// Writes down what changed of bookmarks with an account.
    async fn bookmarks_write(&self, tx: &Tx, head: &DslDataset, changed: Vec<DslBookmark>) -> Result<()> {
        if changed.is_empty() {
            return Ok(());
        }
        let zap = Zap::open(self.mos(), head.bookmarks_obj.load(Ordering::Relaxed)).await?;
        for mark in changed {
            zap.set(tx, &mark.name, &mark.stored(true)).await?;
            if let Some(b) = head.bookmarks.lock().iter_mut().find(|b| b.name == mark.name) {
                *b = mark;
            }
        }
        Ok(())
    }

    /// The head no longer refers to these blocks.
    pub(super) async fn bookmarks_killed(&self, tx: &Tx, head: &DslDataset, bps: &[BlkPtr]) -> Result<()> {
        let since = head.phys().prev_snap_txg;
        let mut marks = head.bookmarks_where(|b| b.has_fbn() && b.phys.creation_txg >= since);
        if marks.is_empty() {
            return Ok(());
        }
        let mut changed = vec![false; marks.len()];
        for bp in bps {
            let s = super::bp_space(&*self.ctx.store, bp);
            for (mark, changed) in marks.iter_mut().zip(&mut changed) {
                if bp.birth() <= mark.phys.creation_txg {
                    mark.add_freed(s);
                    *changed = true;
                }
            }
        }
        let changed = marks.into_iter().zip(changed).filter(|(_, c)| *c).map(|(m, _)| m).collect();
        self.bookmarks_write(tx, head, changed).await
    }

    /// A snapshot is being taken of a head whose latest was of `prev_txg`: its new deadlist has
    /// blocks before these bookmarks and after them.
    pub(super) async fn bookmarks_snapshotted(
        &self,
        tx: &Tx,
        head: &DslDataset,
        dl: &mut super::deadlist::Deadlist,
        prev_txg: u64,
    ) -> Result<()> {
        let mut keys: Vec<u64> = head
            .bookmarks
            .lock()
            .iter()
            .filter(|b| b.has_fbn() && b.phys.creation_txg > prev_txg)
            .map(|b| b.phys.creation_txg)
            .collect();
        keys.dedup();
        for key in keys {
            self.deadlist_add_key(tx, dl, key).await?;
        }
        Ok(())
    }

    /// A snapshot is being destroyed; its neighbours still know it. Says whether its txg's key must
    /// stay in the deadlists.
    pub(super) async fn bookmarks_destroyed(
        &self,
        tx: &Tx,
        head: &DslDataset,
        snap: &DslDataset,
    ) -> Result<bool> {
        let p = snap.phys();
        let mut changed = Vec::new();
        let mut keep = false;
        let between = |b: &DslBookmark| {
            (p.prev_snap_txg..=p.creation_txg).contains(&b.phys.creation_txg) && b.has_fbn()
        };
        let marks = head.bookmarks_where(between);
        if marks.is_empty() {
            return Ok(false);
        }
        let next = self.dataset(p.next_snap_obj).await?;
        let dead = self.deadlist_open(next.phys().deadlist_obj).await?;
        for mut mark in marks {
            if mark.phys.creation_txg < p.creation_txg {
                // What it knew, this snapshot held back, and the next did not.
                mark.add_freed(self.deadlist_space_range(&dead, 0, mark.phys.creation_txg).await?);
            } else {
                mark.phys.flags &= !ZBM_FLAG_SNAPSHOT_EXISTS;
                keep = true;
            }
            changed.push(mark);
        }
        self.bookmarks_write(tx, head, changed).await?;
        Ok(keep)
    }

    /// What comes after this snapshot of a head has changed, by a promotion or a rollback: the
    /// accounts at it begin anew.
    pub(super) async fn bookmarks_next_changed(
        &self,
        tx: &Tx,
        head: &DslDataset,
        origin: &DslDataset,
    ) -> Result<()> {
        let txg = origin.phys().creation_txg;
        let mut marks = head.bookmarks_where(|b| b.has_fbn() && b.phys.creation_txg == txg);
        if marks.is_empty() || !self.feature_enabled("bookmark_written") {
            return Ok(());
        }
        let phys = self.bookmark_phys(origin).await?;
        for mark in &mut marks {
            mark.phys = ZfsBookmarkPhys { redaction_obj: mark.phys.redaction_obj, ..phys };
        }
        self.bookmarks_write(tx, head, marks).await
    }

    /// Bookmarks up to a txg go from one head to another, which takes over the snapshots they were
    /// made from.
    pub(super) async fn bookmarks_move(
        &self,
        tx: &Tx,
        from: &DslDataset,
        to: &DslDataset,
        txg: u64,
    ) -> Result<()> {
        let marks = from.bookmarks_where(|b| b.phys.creation_txg <= txg);
        for mark in marks {
            self.bookmark_take(tx, from, &mark).await?;
            self.bookmark_add(tx, to, mark).await?;
        }
        Ok(())
    }

    /// Bookmarks of a head up to a txg whose names another head has, too.
    pub(super) async fn bookmark_conflicts(
        &self,
        from: &DslDataset,
        to: &DslDataset,
        txg: u64,
    ) -> Result<Vec<String>> {
        let marks = from.bookmarks_where(|b| b.phys.creation_txg <= txg);
        let mut out = Vec::new();
        for mark in marks {
            if self.bookmark_of(to, &mark.name).await?.is_some() {
                out.push(mark.name);
            }
        }
        Ok(out)
    }

    /// The space written between a bookmark and a later state; None where the bookmark keeps no
    /// account.
    #[crate::boxed]
    pub async fn written_since_bookmark(
        &self,
        ds: &Arc<DslDataset>,
        mark: &ZfsBookmarkPhys,
    ) -> Result<Option<u64>> {
        if mark.flags & ZBM_FLAG_HAS_FBN == 0 {
            return Ok(None);
        }
        let add = |n: u64, more: u64| n.saturating_add(more);
        let mut sum = add(ds.phys().referenced_bytes, mark.referenced_freed_before_next_snap);
        let mut at = ds.clone();
        while at.phys().prev_snap_txg > mark.creation_txg {
            let dead = self.deadlist_open(at.phys().deadlist_obj).await?;
            sum = add(sum, self.deadlist_space_range(&dead, 0, mark.creation_txg).await?.used);
            let Some(prev) = self.prev(&at).await? else { break };
            at = prev;
        }
        Ok(Some(sum.saturating_sub(mark.referenced_bytes_refd)))
    }
}
