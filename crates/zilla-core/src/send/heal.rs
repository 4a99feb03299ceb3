//! Corrective receive (`receive -c`): mending damaged blocks of a snapshot from a stream of that
//! same snapshot.
//!
//! ```text
//! WRITE -> pointer in the snapshot -> all copies bad?
//!   -> its bytes as they were stored -> checksum right? -> put in place
//! ```
//!
//! Nothing else of a stream counts: no object is made, changed or freed, and no txg has a part in
//! it. A block that can be read stays as it is, so a stream that lies changes nothing, for bytes
//! are put in place only where the block pointer's checksum says that they are the block. They are
//! the sender's as they come from a raw stream, or from a compressed one of the same compression;
//! else they are compressed here as the block was, and encrypted under its own salt and IV.
//!
//! **Crash.** A block that was bad is bad or mended.
//!
//! **Deliberately absent.** Blocks that a stream without `-L` has in parts; blocks of metadata,
//! which streams do not have.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::apply::contents;
use super::frame::{RecordReader, bad_stream};
use super::receive::check_features;
use super::walk::{Source, TreePath, damaged, dnode_at};
use crate::dsl::{DslPool, LongHold};
use crate::error::{Errno, Error, Result};
use crate::types::Bookmark;
use crate::zio::{BlockStore, squeeze};
use bytes::Bytes;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use zilla_codec::compress::{Compress, CompressSpec};
use zilla_env::IoBuf;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dnode::DNODES_PER_BLOCK;
use zilla_ondisk::stream::{Begin, Record, Write, feature};
use zilla_ondisk::{ByteOrder, SPA_MAXBLOCKSIZE};

/// Blocks that are looked at together, in bytes of the stream and in number.
const AHEAD_BYTES: usize = 16 << 20;
const AHEAD: usize = 64;

/// What came of it.
#[derive(Debug, Default)]
pub struct Healed {
    /// Blocks that were mended.
    pub blocks: u64,
    /// Blocks that are as damaged as before, and why the first of them is. `ENOTSUP`: what the
    /// stream has of it is no whole block.
    pub failed: u64,
    pub why: Option<Error>,
}

type Mending = Pin<Box<dyn Future<Output = Result<bool>> + Send>>;

pub struct Heal {
    src: Source,
    objset: u64,
    raw: bool,
    order: ByteOrder,
    begin: Begin,
    spec: CompressSpec,
    /// The way to the blocks of dnodes, and to those of the object whose records come.
    meta: TreePath,
    object: Option<(u64, TreePath)>,
    queue: VecDeque<(Mending, usize)>,
    ahead: usize,
    healed: Healed,
    dsl: Arc<DslPool>,
    held: LongHold,
}

/// One block, and what a stream has of it.
struct Patient {
    pool: Arc<dyn BlockStore>,
    /// Knows the dataset's key, if it is needed.
    store: Arc<dyn BlockStore>,
    bp: BlkPtr,
    at: Bookmark,
    blksz: u64,
    write: Write,
    payload: Bytes,
    raw: bool,
    order: ByteOrder,
    spec: CompressSpec,
    /// It goes on where nobody waits for it any more, and its block must stay in use until it ends.
    _held: LongHold,
}

impl Heal {
    /// Finds the snapshot, whose contents the stream must have.
    #[crate::boxed]
    pub async fn begin(dsl: &Arc<DslPool>, begin: Begin, order: ByteOrder, name: &str) -> Result<Heal> {
        check_features(&begin)?;
        dsl.recv_features(&begin)?;
        let refuse = |errno, what: &str| Err(Error::os(errno, what.to_owned()));
        if dsl.ctx().readonly {
            return refuse(Errno::ROFs, "the pool is imported read-only");
        }
        let (raw, f) = (begin.features() & feature::RAW != 0, begin.features());
        // Held in a sync, as a destroy is one: neither is in the midst of the other.
        let (d, of) = (dsl.clone(), name.to_owned());
        let task = dsl.ctx().sync_task(move |_| Box::pin(async move { Ok(d.by_name(&of).await?.hold()) }));
        let held = task.await?;
        let snap = held.dataset().clone();
        if !snap.is_snapshot() || snap.guid() != begin.toguid || f & feature::RESUMING != 0 {
            return refuse(Errno::NotSup, "stream is not compatible with the data in the pool.");
        }
        let dir = snap.dir();
        if dsl.recv_partial(&dir.name()).await?.is_some() {
            return refuse(
                Errno::Busy,
                "destination contains partially-complete state from \"zfs receive -s\".",
            );
        }
        let encrypted = dsl.is_encrypted(&dir).await?;
        if encrypted && f & feature::EMBED_DATA != 0 {
            return refuse(Errno::Inval, "incompatible embedded data stream feature with encrypted receive.");
        }
        if encrypted && !raw && !dsl.key_loaded(&dir).await? {
            let what = "key must be loaded to do a non-raw corrective recv on an encrypted dataset.";
            return refuse(Errno::Access, what);
        }
        if raw && !encrypted {
            return refuse(Errno::NotSup, "stream is not compatible with the data in the pool.");
        }
        Self::of(dsl, held, begin, order, raw).await
    }

    async fn of(
        dsl: &Arc<DslPool>,
        held: LongHold,
        begin: Begin,
        order: ByteOrder,
        raw: bool,
    ) -> Result<Heal> {
        let snap = held.dataset().clone();
        let os = if raw { dsl.sealed_objset(&snap).await? } else { dsl.objset(&snap).await? };
        let ctx = dsl.ctx().clone();
        let store = if raw { ctx.store.clone() } else { os.store().clone() };
        Ok(Heal {
            src: Source { ctx, store },
            objset: snap.id(),
            raw,
            order,
            begin,
            spec: os.props().compress,
            meta: TreePath::new(snap.id(), 0, &os.phys().meta_dnode),
            object: None,
            queue: VecDeque::new(),
            ahead: 0,
            healed: Healed::default(),
            dsl: dsl.clone(),
            held,
        })
    }

    /// Takes all records to END.
    #[crate::boxed]
    pub async fn records(mut self, reader: &mut RecordReader<'_>) -> Result<Healed> {
        loop {
            let (record, payload) = reader.next().await?;
            match record {
                Record::Write(w) => self.write(w, payload).await?,
                Record::End(e) if e.toguid == self.begin.toguid => break,
                Record::End(_) => return Err(bad_stream("its end is another's")),
                _ => {}
            }
        }
        while self.one().await {}
        // What was written is stable with the next txg.
        let txgs = &self.dsl.ctx().txgs;
        txgs.wait_synced(txgs.open()).await?;
        Ok(self.healed)
    }

    /// Waits for the oldest of those under way.
    async fn one(&mut self) -> bool {
        let Some((task, bytes)) = self.queue.pop_front() else { return false };
        self.ahead -= bytes;
        match task.await {
            Ok(true) => self.healed.blocks += 1,
            Ok(false) => {}
            Err(e) => self.failed(e),
        }
        true
    }

    fn failed(&mut self, e: Error) {
        self.healed.failed += 1;
        self.healed.why.get_or_insert(e);
    }

    async fn write(&mut self, write: Write, payload: Bytes) -> Result<()> {
        let found = match self.find(write.object, write.offset).await {
            Ok(found) => found,
            // What leads to the block is damaged, which no stream has.
            Err(e) => {
                self.failed(e);
                return Ok(());
            }
        };
        let Some((bp, blkid, blksz)) = found else { return Ok(()) };
        let at = Bookmark { objset: self.objset, object: write.object, level: 0, blkid };
        // Each is expanded.
        let bytes = payload.len().max(usize::try_from(blksz.min(SPA_MAXBLOCKSIZE)).unwrap_or(usize::MAX));
        let patient = Patient {
            pool: self.src.ctx.store.clone(),
            store: self.src.store.clone(),
            bp,
            at,
            blksz,
            write,
            payload,
            raw: self.raw,
            order: self.order,
            spec: self.spec,
            _held: self.held.dataset().hold(),
        };
        let task = self.src.ctx.env.spawn_with_result(patient.treat());
        self.queue.push_back((Box::pin(task), bytes));
        self.ahead += bytes;
        while self.queue.len() > AHEAD || self.ahead > AHEAD_BYTES {
            self.one().await;
        }
        Ok(())
    }

    /// The block at an offset of an object, its number, and the size of its object's blocks. None:
    /// nothing can be damaged there.
    async fn find(&mut self, object: u64, offset: u64) -> Result<Option<(BlkPtr, u64, u64)>> {
        if self.object.as_ref().is_none_or(|(id, _)| *id != object) {
            self.object = None;
            let blkid = object / DNODES_PER_BLOCK;
            let Some(bp) = self.meta.pointer(&self.src, blkid).await? else { return Ok(None) };
            let at = Bookmark { objset: self.objset, object: 0, level: 0, blkid };
            let data = self.src.read_tree(bp, at).await?;
            let dn = dnode_at(&data, object % DNODES_PER_BLOCK)
                .map_err(|e| damaged(self.objset, object, e.to_string()))?;
            let Some(dn) = dn else { return Ok(None) };
            self.object = Some((object, TreePath::new(self.objset, object, &dn)));
        }
        let Some((_, path)) = &mut self.object else { return Ok(None) };
        let Some(blksz) = path.blksz() else { return Ok(None) };
        let blkid = offset / blksz;
        let bp = path.pointer(&self.src, blkid).await?;
        Ok(bp.filter(|bp| !bp.is_embedded() && !bp.is_redacted()).map(|bp| (bp, blkid, blksz)))
    }
}

impl Patient {
    /// Whether it was damaged, and is not any more.
    async fn treat(self) -> Result<bool> {
        if self.pool.check(self.bp, self.at).await.is_ok() {
            return Ok(false);
        }
        let whole = self.write.offset.is_multiple_of(self.blksz) && self.write.logical_size == self.blksz;
        if !whole || self.bp.lsize() != self.blksz {
            let what = format!("block {} is no whole block of the stream", self.at);
            return Err(Error::os(Errno::NotSup, what));
        }
        let mut why = None;
        for stored in self.candidates()? {
            match self.pool.mend(self.bp, self.at, stored).await {
                Ok(()) => return Ok(true),
                Err(e) if e.is(Errno::Cksum) => why = Some(e),
                Err(e) => return Err(e),
            }
        }
        let none = || Error::os(Errno::Cksum, format!("the stream has nothing of block {}", self.at));
        Err(why.unwrap_or_else(none))
    }

    /// What may have been stored of the block.
    fn candidates(&self) -> Result<Vec<Bytes>> {
        let (bp, w) = (&self.bp, &self.write);
        let psize = usize::try_from(bp.psize()).unwrap_or(0);
        if self.raw {
            return Ok(vec![self.payload.clone()]);
        }
        let mut plain: Vec<Bytes> = Vec::new();
        if w.compressiontype != 0 && w.compressiontype == bp.compress() {
            plain.extend(padded(&self.payload, psize));
        }
        let data = contents(w, self.payload.clone(), self.order, SPA_MAXBLOCKSIZE)?;
        match Compress::from_u8(bp.compress()) {
            Some(Compress::Off) => plain.push(data),
            Some(kind) => {
                // The level is the dataset's, if that was not changed since.
                let of_kind = CompressSpec::new(kind);
                let specs = [self.spec, of_kind];
                let specs = specs.iter().filter(|s| s.kind == kind);
                plain.extend(specs.filter_map(|s| padded(&squeeze(*s, &data)?, psize)));
            }
            None => {}
        }
        plain.dedup();
        plain.into_iter().map(|data| self.store.reseal(bp, data)).collect()
    }
}

/// As it fills its sectors.
fn padded(data: &[u8], psize: usize) -> Option<Bytes> {
    let mut buf = IoBuf::zeroed(psize);
    buf.get_mut(..data.len())?.copy_from_slice(data);
    Some(buf.into_bytes())
}
