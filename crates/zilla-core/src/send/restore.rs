//! What a stream tells beside its changes where it starts from a redaction bookmark: the blocks
//! that were left out then.
//!
//! They are told in their place among the others, for a receiver relies on the order, as they are
//! in the snapshot that is sent: a block, or a hole. One that has changed meanwhile is told once;
//! one whose object is gone is told by the object's end. What the new stream is to leave out as
//! well stays out, without a word: the receiver lacks it.
//!
//! And what a stream leaves out of blocks that have not changed, for what it starts from has them
//! at the receiver: they are told as left out, in their place.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::objects::{Item, Objects, Resume};
use super::walk::{Source, TreePath, damaged, dnode_at};
use crate::dsl::RedactionList;
use crate::error::Result;
use crate::types::Bookmark;
use std::sync::Arc;
use zilla_ondisk::dnode::{DNODES_PER_BLOCK, DnodePhys};

/// What is redacted of a stream, and of what it starts from.
#[derive(Clone, Debug, Default)]
pub struct Redaction {
    /// Of the stream.
    pub list: Option<Arc<RedactionList>>,
    /// Of the bookmark that the stream starts from.
    pub from: Option<Arc<RedactionList>>,
    /// Of the snapshot that it starts from, which is of a redacted dataset.
    pub from_snaps: Option<Arc<[u64]>>,
}

type Pos = (u64, u64);
/// An object, and the way to its blocks.
type Opened = (Arc<DnodePhys>, TreePath);

/// Everything of a snapshot that a redacted stream, or one from a redaction bookmark, has to tell.
pub(super) struct Told {
    objects: Objects,
    /// What comes next of what has changed.
    next: Option<Option<Item>>,
    restore: Option<Restore>,
    /// What is left out though nothing changed there.
    left_out: Option<Restore>,
    list: Option<Arc<RedactionList>>,
}

struct Restore {
    src: Source,
    objset: u64,
    resume: Resume,
    list: Arc<RedactionList>,
    /// The next block: of which run, and how many blocks of it are behind.
    run: usize,
    done: u64,
    meta: TreePath,
    object: Option<(u64, Option<Opened>)>,
}

impl Told {
    pub(super) fn new(
        objects: Objects,
        src: Source,
        (objset, meta): (u64, &DnodePhys),
        resume: Option<Resume>,
        redaction: &Redaction,
    ) -> Told {
        let resume = resume.unwrap_or(Resume { object: 0, offset: 0 });
        let blocks_of = |list: &Option<Arc<RedactionList>>| {
            let (src, list, meta) = (src.clone(), list.clone()?, TreePath::new(objset, 0, meta));
            let mut all = Restore { src, objset, resume, list, run: 0, done: 0, meta, object: None };
            all.pass((resume.object, 0));
            Some(all)
        };
        let (restore, left_out) = (blocks_of(&redaction.from), blocks_of(&redaction.list));
        Told { objects, next: None, restore, left_out, list: redaction.list.clone() }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Item>> {
        let item = match (&self.restore, &self.left_out) {
            (None, None) => self.objects.next().await?,
            _ => {
                let next = match self.next.take() {
                    Some(next) => next,
                    None => self.objects.next().await?,
                };
                let until = next.as_ref().map_or((u64::MAX, u64::MAX), place);
                if let Some(item) = self.unchanged(until).await? {
                    self.next = Some(next);
                    return Ok(Some(item));
                }
                if let Some(end) = next.as_ref().map(end) {
                    self.restore.iter_mut().chain(&mut self.left_out).for_each(|r| r.pass(end));
                }
                next
            }
        };
        Ok(item.map(|item| match (item, &self.list) {
            (Item::Block { id, dn, blkid, .. }, Some(list)) if list.contains(id, blkid) => {
                Item::Redacted { id, dn, blkid }
            }
            (item, _) => item,
        }))
    }
}

impl Told {
    /// The next block before a place that has not changed and is told all the same.
    async fn unchanged(&mut self, until: Pos) -> Result<Option<Item>> {
        loop {
            let left = self.left_out.as_ref().and_then(Restore::at).filter(|at| *at < until);
            if let Some(restore) = &mut self.restore
                && let Some(item) = restore.before(left.unwrap_or(until), self.list.as_deref()).await?
            {
                return Ok(Some(item));
            }
            let (Some(left), Some(left_out)) = (left, &mut self.left_out) else { return Ok(None) };
            let other = self.restore.as_ref().and_then(Restore::at).unwrap_or(until);
            let limit = other.max((left.0, left.1.saturating_add(1))).min(until);
            if let Some(Item::Block { id, dn, blkid, .. }) = left_out.before(limit, None).await?
                && !self.restore.as_ref().is_some_and(|r| r.list.contains(id, blkid))
            {
                return Ok(Some(Item::Redacted { id, dn, blkid }));
            }
        }
    }
}

/// Where an item comes among blocks.
fn place(item: &Item) -> Pos {
    match item {
        Item::FreeObjects { first, .. } | Item::Range { first, .. } => (*first, 0),
        Item::Object { id, .. } => (*id, 0),
        Item::Hole { id, first, .. } => (*id, *first),
        Item::Block { id, blkid, .. } | Item::Redacted { id, blkid, .. } => (*id, *blkid),
        Item::Spill { id, .. } => (*id, u64::MAX),
    }
}

/// Up to where an item tells all there is.
fn end(item: &Item) -> Pos {
    match item {
        Item::FreeObjects { first, count } => (first.saturating_add(*count), 0),
        Item::Hole { id, first, count, .. } => (*id, first.saturating_add(*count)),
        Item::Block { id, blkid, .. } | Item::Redacted { id, blkid, .. } => (*id, blkid.saturating_add(1)),
        other => place(other),
    }
}

impl Restore {
    /// Where the next block is.
    fn at(&self) -> Option<Pos> {
        self.list.runs.get(self.run).map(|r| (r.object, r.blkid + self.done))
    }

    /// Leaves out what lies before a place.
    fn pass(&mut self, end: Pos) {
        while let Some(r) = self.list.runs.get(self.run).filter(|r| (r.object, r.blkid + self.done) < end) {
            match end.0 == r.object && end.1 < r.blkid + r.count {
                true => self.done = end.1 - r.blkid,
                false => (self.run, self.done) = (self.run + 1, 0),
            }
        }
    }

    /// The next block before a place, as it is now.
    async fn before(&mut self, until: Pos, left_out: Option<&RedactionList>) -> Result<Option<Item>> {
        while let Some((id, blkid)) = self.at().filter(|at| *at < until) {
            if self.object.as_ref().is_none_or(|(of, _)| *of != id) {
                self.object = Some((id, self.open(id).await?));
                if let Some((_, Some((dn, _)))) = &self.object
                    && id == self.resume.object
                {
                    self.pass((id, self.resume.offset / (u64::from(dn.datablkszsec.max(1)) << 9)));
                    continue;
                }
            }
            let there = self.object.as_mut().and_then(|(_, o)| o.as_mut());
            let Some((dn, path)) = there.filter(|(dn, _)| blkid <= dn.maxblkid) else {
                // Nothing more of this object, or of this run of it.
                self.pass((id, u64::MAX).min(until));
                continue;
            };
            let dn = dn.clone();
            let next = match path.find(&self.src, blkid).await? {
                Ok(bp) => {
                    self.pass((id, blkid + 1));
                    if left_out.is_some_and(|l| l.contains(id, blkid)) {
                        continue;
                    }
                    Item::Block { id, dn, blkid, bp }
                }
                Err(behind) => {
                    let run = self.list.runs.get(self.run).map_or(0, |r| r.blkid + r.count);
                    let limit = if until.0 == id { until.1 } else { u64::MAX };
                    let end = behind.min(run).min(limit).min(dn.maxblkid.saturating_add(1)).max(blkid + 1);
                    self.pass((id, end));
                    Item::Hole { id, dn, first: blkid, count: end - blkid }
                }
            };
            return Ok(Some(next));
        }
        Ok(None)
    }

    async fn open(&mut self, id: u64) -> Result<Option<Opened>> {
        let blkid = id / DNODES_PER_BLOCK;
        let Some(bp) = self.meta.pointer(&self.src, blkid).await? else { return Ok(None) };
        let data =
            self.src.read_tree(bp, Bookmark { objset: self.objset, object: 0, level: 0, blkid }).await?;
        let dn =
            dnode_at(&data, id % DNODES_PER_BLOCK).map_err(|e| damaged(self.objset, id, e.to_string()))?;
        let Some(dn) = dn else { return Ok(None) };
        let path = TreePath::new(self.objset, id, &dn);
        Ok(Some((Arc::new(dn), path)).filter(|(dn, _)| !dn.is_free()))
    }
}
