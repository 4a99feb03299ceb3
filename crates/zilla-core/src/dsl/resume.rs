//! What a resumable receive keeps of how far it came: fields of the dataset's ZAP, from which the
//! token is made that a sender goes on by; and how it goes on.
//!
//! They are written by the sync that writes the data they speak of, so after a crash both are of
//! one moment.

use super::DslPool;
use super::dataset::{DslDataset, LongHold};
use super::recv::{OF_BLOCKS, RECV_NAME, RecvOpts, RecvTarget, asked_for, refuse};
use super::redact::same_snaps;
use super::space::SpaceCheck;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::Txg;
use crate::zap::Value;
use std::sync::Arc;
use zilla_ondisk::enums::ObjsetType;
use zilla_ondisk::stream::{Begin, feature};

// What a resumable receive keeps. Source: DS_FIELD_RESUME_* in sys/dsl_dataset.h.
const RESUME_FROMGUID: &str = "com.delphix:resume_fromguid";
const RESUME_TONAME: &str = "com.delphix:resume_toname";
const RESUME_TOGUID: &str = "com.delphix:resume_toguid";
const RESUME_OBJECT: &str = "com.delphix:resume_object";
const RESUME_OFFSET: &str = "com.delphix:resume_offset";
const RESUME_BYTES: &str = "com.delphix:resume_bytes";
const RESUME_LARGEBLOCK: &str = "com.delphix:resume_largeblockok";
const RESUME_EMBEDOK: &str = "com.delphix:resume_embedok";
const RESUME_COMPRESSOK: &str = "com.delphix:resume_compressok";
const RESUME_RAWOK: &str = "com.datto:resume_rawok";
const RESUME_REDACT_BOOKMARK_SNAPS: &str = "com.delphix:resume_redact_book_snaps";
const RESUME_FIELDS: &[&str] = &[
    RESUME_FROMGUID,
    RESUME_TONAME,
    RESUME_TOGUID,
    RESUME_OBJECT,
    RESUME_OFFSET,
    RESUME_BYTES,
    RESUME_LARGEBLOCK,
    RESUME_EMBEDOK,
    RESUME_COMPRESSOK,
    RESUME_RAWOK,
    RESUME_REDACT_BOOKMARK_SNAPS,
];

/// How far a receive has come, as of a txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    pub txg: Txg,
    pub object: u64,
    pub offset: u64,
    pub bytes: u64,
}

/// What is known of a receive that was interrupted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeState {
    pub fromguid: Option<u64>,
    pub toguid: u64,
    pub toname: String,
    pub object: u64,
    pub offset: u64,
    pub bytes: u64,
    pub largeblock: bool,
    pub embed: bool,
    pub compress: bool,
    pub raw: bool,
    /// The stream is redacted by these snapshots.
    pub redact_snaps: Option<Vec<u64>>,
    /// So is what it starts from.
    pub book_redact_snaps: Option<Vec<u64>>,
}

impl DslPool {
    /// What an incremental stream whose receive was interrupted starts from: what it was received
    /// on, and whether that is another dataset's.
    #[crate::boxed]
    pub async fn recv_source(&self, ds: &Arc<DslDataset>, guid: u64) -> Result<(Arc<DslDataset>, bool)> {
        let dir = ds.dir();
        let home = dir.parent().filter(|_| dir.short_name() == RECV_NAME).unwrap_or(dir);
        let mut at = self.prev(ds).await?;
        while let Some(s) = at {
            if s.guid() == guid {
                let is_clone = s.dir().id() != home.id();
                return Ok((s, is_clone));
            }
            at = self.prev(&s).await?;
        }
        Err(Error::os(Errno::NoEnt, format!("incremental source {guid:#x} no longer exists")))
    }

    /// Goes on with a receive that was interrupted, alone.
    #[crate::boxed]
    pub async fn recv_resume(&self, b: &Begin, o: &RecvOpts) -> Result<(RecvTarget, LongHold)> {
        self.recv_features(b)?;
        if let Some(raw) = &o.raw {
            self.recv_raw_needs(raw)?;
        }
        let (ds, new) = match self.by_name(&o.fs).await {
            Ok(head) => match self.recv_child(&head.dir()).await? {
                Some(ds) => (ds, false),
                None => (head, true),
            },
            Err(e) => return Err(e),
        };
        // Held before it is looked at: what is looked at would be another's, or gone, by then.
        let Some(alone) = ds.hold_alone() else {
            return refuse(Errno::Busy, format!("destination {} is being received to", o.fs));
        };
        let bad = |what: &str| Error::inval(format!("invalid stream ({what})"));
        if !ds.is_inconsistent() || ds.is_gone() {
            return Err(bad("there is nothing to be resumed"));
        }
        let Some(state) = self.resume_state(&ds).await? else {
            return Err(bad("what is there cannot be resumed"));
        };
        if state.toguid != b.toguid || state.fromguid.unwrap_or(0) != b.fromguid {
            return Err(bad("it is not the rest of what was received"));
        }
        if state.largeblock && b.features() & feature::LARGE_BLOCKS == 0 {
            return Err(bad("what was received has large blocks, which it would split"));
        }
        if b.fromguid != 0 {
            self.recv_large_blocks_check(&ds, b)?;
        }
        let by = (state.redact_snaps.as_deref().unwrap_or_default(), o.redact.as_deref().unwrap_or_default());
        if !same_snaps(by.0, by.1) {
            return Err(bad("it is not redacted by the same snapshots"));
        }
        if state.raw != o.raw.is_some() {
            return Err(bad("what was received is raw, or the stream is, and not both"));
        }
        let os = match &o.raw {
            Some(raw) => {
                let object = self.key_object(&ds.dir()).await?.ok_or_else(|| bad("there is no key"))?;
                let ours = self.key_phys(object).await?;
                if (ours.guid, ours.suite) != (raw.phys.guid, raw.phys.suite) {
                    return refuse(Errno::Access, "encryption key does not match existing key");
                }
                let os_type =
                    ObjsetType::from_number(b.objset_type.into()).ok_or_else(|| bad("no such type"))?;
                let os = self.raw_objset(&ds, os_type, raw).await?;
                os.set_props(self.write_props(&ds).await?);
                os
            }
            None => {
                self.recv_key_check(&ds.dir()).await?;
                let os = self.objset(&ds).await?;
                if os.is_locked() {
                    // The key has just been unloaded. Whoever opens it next looks again.
                    ds.drop_objset();
                    return refuse(Errno::Access, "inherited key must be loaded");
                }
                os
            }
        };
        let resume = Some((state.object, state.offset));
        Ok((RecvTarget { ds, os, new, bytes: state.bytes, resume }, alone))
    }

    /// Gives a receive that goes on the properties that come with the rest, which is written by
    /// them. A dataset that exists has the others when it has the contents.
    #[crate::boxed]
    pub async fn recv_resume_props(&self, tx: &Tx, t: &RecvTarget, o: &RecvOpts) -> Result<()> {
        let asked = asked_for(&o.settings);
        if !t.new {
            self.settings_check(&asked)?;
            for (name, s) in o.settings.iter().filter(|(n, _)| OF_BLOCKS.contains(&n.as_str())) {
                self.set_prop_sync(tx, &t.ds, name, s).await?;
            }
            t.os.set_props(self.write_props(&t.ds).await?);
            return Ok(());
        }
        for (name, s) in &asked {
            self.set_prop_check(&t.ds, name, s, &asked).await?;
        }
        self.check_space(SpaceCheck::Reserved)?;
        self.read_dir(&t.ds.dir()).await?;
        self.read_pool().await?;
        self.set_receivable(tx, &t.ds, &o.settings).await
    }

    /// What an interrupted receive into a dataset has noted.
    #[crate::boxed]
    pub async fn resume_state(&self, ds: &DslDataset) -> Result<Option<ResumeState>> {
        let Some(zap) = ds.zap() else { return Ok(None) };
        let Some(toguid) = zap.try_get_u64(RESUME_TOGUID).await? else { return Ok(None) };
        let number = async |name: &str| Ok::<u64, Error>(zap.try_get_u64(name).await?.unwrap_or(0));
        let flag = async |name: &str| Ok::<bool, Error>(zap.try_get(name).await?.is_some());
        let toname =
            zap.try_get(RESUME_TONAME).await?.and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
        Ok(Some(ResumeState {
            fromguid: zap.try_get_u64(RESUME_FROMGUID).await?,
            toguid,
            toname,
            object: number(RESUME_OBJECT).await?,
            offset: number(RESUME_OFFSET).await?,
            bytes: number(RESUME_BYTES).await?,
            largeblock: flag(RESUME_LARGEBLOCK).await?,
            embed: flag(RESUME_EMBEDOK).await?,
            compress: flag(RESUME_COMPRESSOK).await?,
            raw: flag(RESUME_RAWOK).await?,
            redact_snaps: ds.redact_snaps().map(|s| s.to_vec()),
            book_redact_snaps: zap.try_get(RESUME_REDACT_BOOKMARK_SNAPS).await?.and_then(|v| v.as_u64s()),
        }))
    }

    pub(super) async fn note_resume(
        &self,
        tx: &Tx,
        ds: &DslDataset,
        b: &Begin,
        from: Option<&[u64]>,
    ) -> Result<()> {
        let zap = self.zapify(tx, &ds.dn).await?;
        if b.fromguid != 0 {
            zap.set_u64(tx, RESUME_FROMGUID, b.fromguid).await?;
        }
        zap.set_u64(tx, RESUME_TOGUID, b.toguid).await?;
        zap.set(tx, RESUME_TONAME, &Value::string(&b.toname)).await?;
        zap.set_u64(tx, RESUME_OBJECT, 1).await?;
        zap.set_u64(tx, RESUME_OFFSET, 0).await?;
        zap.set_u64(tx, RESUME_BYTES, 0).await?;
        if let Some(snaps) = from {
            zap.set(tx, RESUME_REDACT_BOOKMARK_SNAPS, &Value::u64s(snaps)).await?;
        }
        for (feature, name) in [
            (feature::LARGE_BLOCKS, RESUME_LARGEBLOCK),
            (feature::EMBED_DATA, RESUME_EMBEDOK),
            (feature::COMPRESSED, RESUME_COMPRESSOK),
            (feature::RAW, RESUME_RAWOK),
        ] {
            if b.features() & feature != 0 {
                zap.set_u64(tx, name, 1).await?;
            }
        }
        Ok(())
    }

    /// Writes how far a receive has come with the txg it belongs to. Where something of it could
    /// not be put on disk it goes on from before that: who resumes it must be told that again.
    pub(super) async fn sync_resume(&self, tx: &Tx, ds: &DslDataset) -> Result<()> {
        let reached = ds.reached.lock()[tx.txg()].take().filter(|r| r.txg == tx.txg());
        let (Some(r), Some(zap)) = (reached, ds.zap()) else { return Ok(()) };
        if ds.open_objset().is_some_and(|os| os.check_held().is_err()) {
            return Ok(());
        }
        if zap.try_get_u64(RESUME_TOGUID).await?.is_none() {
            return Ok(());
        }
        zap.set_u64(tx, RESUME_OBJECT, r.object).await?;
        zap.set_u64(tx, RESUME_OFFSET, r.offset).await?;
        zap.set_u64(tx, RESUME_BYTES, r.bytes).await
    }

    pub(super) async fn forget_resume(&self, tx: &Tx, ds: &DslDataset) -> Result<()> {
        let Some(zap) = ds.zap() else { return Ok(()) };
        for name in RESUME_FIELDS {
            zap.delete_if_there(tx, name).await?;
        }
        Ok(())
    }
}

impl DslDataset {
    /// Notes how far a receive has come, to be written with the data of that txg.
    pub fn reached(&self, r: Reached) {
        self.reached.lock()[r.txg] = Some(r);
    }
}
