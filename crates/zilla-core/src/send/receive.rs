//! Receiving the stream of one snapshot, from its BEGIN to its END.
//!
//! ```text
//! Receive::begin  -- sync task: a dataset marked inconsistent
//!        .records -- objects, in ordinary transactions
//!        .end     -- sync task: contents in place, snapshot, guid
//! ```
//!
//! Between `records` and `end` the caller takes away whoever uses the dataset. An error of either
//! leads to `abort`, which destroys what is there or, of a resumable receive, leaves it with its
//! note. A client that vanishes is an error of the source.

use super::apply::Apply;
use super::frame::{RecordReader, bad_stream};
use crate::dsl::{DslDataset, DslPool, LongHold, RawKey, RecvOpts, RecvTarget};
use crate::error::{Errno, Error, Result};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use zilla_ondisk::stream::{Begin, DRR_FLAG_SPILL_BLOCK, Record, feature};
use zilla_ondisk::{NvList, NvValue};

/// What a receive can do with. Source: DMU_BACKUP_FEATURE_MASK of OpenZFS.
const SUPPORTED: u64 = feature::SA_SPILL
    | feature::EMBED_DATA
    | feature::LZ4
    | feature::LARGE_BLOCKS
    | feature::RESUMING
    | feature::REDACTED
    | feature::COMPRESSED
    | feature::LARGE_DNODE
    | feature::RAW
    | feature::ZSTD
    | feature::HOLDS
    | feature::SWITCH_TO_LARGE_BLOCKS
    | feature::LONGNAME
    | feature::LARGE_MICROZAP;

/// As many snapshots as a dataset can say that it is redacted by: an entry of a ZAP takes no more.
const MAX_SNAPS: usize = crate::zap::ZAP_MAXVALUELEN / 8;

/// A snapshot of this very txg is in the way, or somebody who has opened the dataset for a moment:
/// the next txg will do.
const TRIES: usize = 8;
/// Between two tries: a txg may be synced in no time, and who has the dataset open needs some.
const PAUSE: Duration = Duration::from_millis(10);

/// Refuses what zilla cannot receive, by name.
pub fn check_features(b: &Begin) -> Result<()> {
    let f = b.features();
    if f & (feature::DEDUP | feature::DEDUPPROPS) != 0 {
        let what = "\"zfs receive\" no longer supports deduplicated send streams.  Use\nthe \"zstream redup\" command to \
                    convert this stream to a regular,\nnon-deduplicated stream.";
        return Err(Error::os(Errno::NotSup, what));
    }
    let unknown = f & !SUPPORTED;
    if unknown != 0 {
        let what =
            format!("stream has unsupported feature, feature flags = {f:x} (unknown flags = {unknown:x})");
        return Err(bad_stream(what));
    }
    Ok(())
}

/// What a raw stream says of its key.
pub fn raw_key(b: &Begin, payload: &Bytes) -> Result<Option<Arc<RawKey>>> {
    if b.features() & feature::RAW == 0 {
        return Ok(None);
    }
    let list = NvList::unpack(payload).map_err(|e| bad_stream(e.to_string()))?;
    let keydata = list.list("crypt_keydata").ok_or_else(|| bad_stream("a raw stream without its key"))?;
    RawKey::parse(keydata).map(|raw| Some(Arc::new(raw)))
}

/// A list of guids in BEGIN, of snapshots by which something is redacted.
fn guids(list: &NvList, name: &str) -> Result<Option<Arc<[u64]>>> {
    match list.get(name) {
        None => Ok(None),
        Some(NvValue::Uint64Array(v)) if (1..=MAX_SNAPS).contains(&v.len()) => Ok(Some(v.as_slice().into())),
        Some(_) => Err(bad_stream(format!("its {name} is no list of snapshots"))),
    }
}

pub struct Receive {
    dsl: Arc<DslPool>,
    begin: Begin,
    opts: RecvOpts,
    target: RecvTarget,
    hold: Option<LongHold>,
}

impl Receive {
    /// Makes what the stream goes into. `payload` is BEGIN's.
    #[crate::boxed]
    pub async fn begin(dsl: &Arc<DslPool>, begin: Begin, payload: &Bytes, opts: RecvOpts) -> Result<Receive> {
        check_features(&begin)?;
        if dsl.ctx().readonly {
            return Err(Error::os(Errno::ROFs, "the pool is imported read-only"));
        }
        let resuming = begin.features() & feature::RESUMING != 0;
        let list = match payload.is_empty() {
            true => NvList::new(),
            false => NvList::unpack(payload).map_err(|e| bad_stream(e.to_string()))?,
        };
        let redact = guids(&list, "redact_snaps")?.filter(|_| begin.features() & feature::REDACTED != 0);
        if redact.is_none() && begin.features() & feature::REDACTED != 0 {
            return Err(bad_stream("a redacted stream that does not say by which snapshots"));
        }
        let redact_from = guids(&list, "redact_from_snaps")?;
        let opts = RecvOpts { raw: raw_key(&begin, payload)?, redact, redact_from, ..opts };
        let (target, hold) = match resuming {
            true => {
                let (target, hold) = dsl.recv_resume(&begin, &opts).await?;
                let told = (list.u64("resume_object"), list.u64("resume_offset"));
                if target.resume.map(|(o, f)| (Some(o), Some(f))) != Some(told) {
                    return Err(bad_stream("it does not go on where the receive was interrupted"));
                }
                if !opts.settings.is_empty() {
                    let (d, t, o) = (dsl.clone(), target.clone(), opts.clone());
                    let task = dsl
                        .ctx()
                        .sync_task(move |tx| Box::pin(async move { d.recv_resume_props(&tx, &t, &o).await }));
                    task.await?;
                }
                (target, hold)
            }
            false => {
                let mut tries = TRIES;
                loop {
                    let (d, b, o) = (dsl.clone(), begin.clone(), opts.clone());
                    // Held within the task: right behind it others may let go of what it has
                    // opened.
                    let task = dsl.ctx().sync_task(move |tx| {
                        Box::pin(async move {
                            let target = d.recv_begin(&tx, &b, &o).await?;
                            let hold = target.ds.hold();
                            Ok((target, hold))
                        })
                    });
                    match task.await {
                        Err(e) if e.is(Errno::Again) && tries > 0 => tries -= 1,
                        begun => break begun?,
                    }
                    dsl.ctx().env.sleep(PAUSE).await;
                }
            }
        };
        Ok(Receive { dsl: dsl.clone(), begin, opts, target, hold: Some(hold) })
    }

    pub fn is_new(&self) -> bool {
        self.target.new
    }

    pub fn begin_record(&self) -> &Begin {
        &self.begin
    }

    fn is_resumable(&self) -> bool {
        self.opts.resumable || self.target.resume.is_some()
    }

    /// Takes all records to END.
    #[crate::boxed]
    pub async fn records(&mut self, reader: &mut RecordReader<'_>) -> Result<()> {
        let encrypted = self.dsl.is_encrypted(&self.target.ds.dir()).await?;
        let mut apply = Apply {
            dsl: self.dsl.clone(),
            target: self.target.clone(),
            order: reader.order(),
            tells_spills: self.begin.flags & DRR_FLAG_SPILL_BLOCK != 0,
            resumable: self.is_resumable(),
            embeds: !encrypted && self.dsl.feature_enabled("embedded_data"),
            raw: self.opts.raw.as_ref().map(|raw| super::raw::Raw::new(raw)),
            last: None,
            highest: self.target.resume.map_or(0, |(object, _)| object),
        };
        // A whole stream ends with its last object, whatever its origin has behind that.
        let has_rest = self.begin.fromguid == 0 && self.dsl.is_clone(&self.target.ds.dir());
        loop {
            let (record, payload) = reader.next().await?;
            if let Record::End(e) = &record {
                if e.toguid != self.begin.toguid {
                    return Err(bad_stream("its end is another's"));
                }
                return if has_rest { apply.free_the_rest().await } else { Ok(()) };
            }
            apply.record(&record, payload, self.target.bytes + reader.bytes_read()).await?;
        }
    }

    /// Makes the snapshot. Nobody may use the dataset's old contents any more. Who only looks at
    /// what is there, or has just let go of it, is waited for.
    #[crate::boxed]
    pub async fn end(&mut self) -> Result<Arc<DslDataset>> {
        self.hold = None;
        let mut tries = TRIES;
        loop {
            let (d, t) = (self.dsl.clone(), self.target.clone());
            let (b, o) = (self.begin.clone(), self.opts.clone());
            let task = self
                .dsl
                .ctx()
                .sync_task(move |tx| Box::pin(async move { d.recv_end(&tx, &t, &b, &o).await }));
            match task.await {
                Err(e) if (e.is(Errno::Again) || e.is(Errno::Busy)) && tries > 0 => tries -= 1,
                other => return other,
            }
            self.dsl.ctx().env.sleep(PAUSE).await;
        }
    }

    /// After an error: destroys what was received, or keeps it to be resumed. Says whether it was
    /// kept.
    #[crate::boxed]
    pub async fn abort(mut self) -> Result<bool> {
        self.hold = None;
        if self.is_resumable() {
            return Ok(true);
        }
        let mut tries = TRIES;
        loop {
            let (d, ds) = (self.dsl.clone(), self.target.ds.clone());
            let task =
                self.dsl.ctx().sync_task(move |tx| Box::pin(async move { d.recv_abort(&tx, &ds).await }));
            match task.await {
                Err(e) if e.is(Errno::Busy) && tries > 0 => tries -= 1,
                done => return done.map(|()| false),
            }
            self.dsl.ctx().env.sleep(PAUSE).await;
        }
    }
}
