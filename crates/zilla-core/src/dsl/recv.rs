//! Where a stream is received to, and what becomes of it: the part of `zfs receive` that lies in
//! the MOS.
//!
//! A stream for a name that does not exist makes the dataset under that name, one for an existing
//! dataset a clone `%recv` below it (of the snapshot the stream starts from, or of nothing for a
//! whole one). Either is marked inconsistent until [`DslPool::recv_end`] has, in one txg, put the
//! contents in their place, made the snapshot, and given it the sender's guid and time.
//!
//! What a resumable receive has come to is kept in the dataset's ZAP ([`super::resume`]).
//!
//! **Crash.** Before the end's txg there is an inconsistent dataset, which the next import destroys
//! unless it can be resumed ([`DslPool::destroy_inconsistent`]); after it, the snapshot.

use super::DslPool;
use super::Refusal;
use super::dataset::DslDataset;
use super::deleg::Who;
use super::dir::DslDir;
use super::limits::binds;
use super::name;
use super::props::Setting;
use super::rawkey::RawKey;
use super::redact::REDACTED;
use super::rekey::{NewCrypt, NewSuite};
use super::space::SpaceCheck;
use crate::dmu::Objset;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zap::Zap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::dsl::{DS_FLAG_CI_DATASET, DS_FLAG_INCONSISTENT};
use zilla_ondisk::enums::ObjsetType;
use zilla_ondisk::objset::ObjsetPhys;
use zilla_ondisk::stream::{
    Begin, DRR_FLAG_CI_DATA, DRR_FLAG_CLONE, DRR_FLAG_FREERECORDS, DRR_FLAG_SPILL_BLOCK, feature,
};
use zilla_ondisk::zil::ZIL_REPLAY_NEEDED;

/// The name of the clone that an existing dataset's stream goes into. Source: recv_clone_name in
/// OpenZFS.
pub const RECV_NAME: &str = "%recv";

/// Properties that say how the received blocks are written.
pub(super) const OF_BLOCKS: &[&str] = &["checksum", "compression", "copies", "redundant_metadata"];

/// What is to be received, and how.
#[derive(Clone, Debug, Default)]
pub struct RecvOpts {
    /// The file system or volume.
    pub fs: String,
    pub snap: String,
    /// `-F`: what the target has beyond the snapshot the stream starts from is destroyed.
    pub force: bool,
    /// `-s`
    pub resumable: bool,
    /// The snapshot to make a clone of, if the target does not exist.
    pub origin: Option<String>,
    /// Properties that come with the stream, or with `-o`.
    pub settings: Vec<(String, Setting)>,
    /// What a new dataset is encrypted with; raw streams and clones say it themselves.
    pub crypt: NewCrypt,
    /// Of a raw stream.
    pub raw: Option<Arc<RawKey>>,
    /// An increment's wrapping is not taken over.
    pub keep_key: bool,
    /// Whom limits bind, and who gets what is given to whoever creates a dataset.
    pub who: Who,
    /// Of a redacted stream: the snapshots by which it is.
    pub redact: Option<Arc<[u64]>>,
    /// Those by which what the stream starts from is redacted.
    pub redact_from: Option<Arc<[u64]>>,
}

/// By how much the contents of a stream may be beyond the refquota of where it goes: what one
/// transaction takes at most. Source: DMU_MAX_ACCESS and spa_asize_inflation.
const BEYOND_REFQUOTA: u64 = (64 << 20) * 24;

/// Where the records go.
#[derive(Clone)]
pub struct RecvTarget {
    pub ds: Arc<DslDataset>,
    pub os: Arc<Objset>,
    /// The name did not exist.
    pub new: bool,
    /// Bytes of an earlier part of the stream.
    pub bytes: u64,
    pub resume: Option<(u64, u64)>,
}

pub(super) fn refuse<T>(errno: Errno, what: impl Into<String>) -> Result<T> {
    Err(Error::os(errno, what.into()))
}

/// What is received on a snapshot of the open txg waits for the next one: its root would be written
/// again in the snapshot's place.
fn not_of(snap: &DslDataset, tx: &Tx) -> Result<()> {
    match snap.phys().creation_txg >= tx.txg().0 {
        true => refuse(Errno::Again, format!("{}: the snapshot is of this txg", snap.name())),
        false => Ok(()),
    }
}

fn not_received(ds: &DslDataset, property: &str, why: &Error) {
    tracing::warn!(dataset = %ds.name(), %property, "not received: {why}");
}

/// What did not come with the stream.
pub(super) fn asked_for(settings: &[(String, Setting)]) -> Vec<(String, Setting)> {
    settings.iter().filter(|(_, s)| matches!(s, Setting::Local(_))).cloned().collect()
}

impl DslPool {
    /// Whether a head has changed since a snapshot. What stands in its intent log alone counts: it
    /// was acknowledged, and its files have it as soon as somebody opens them.
    #[crate::boxed]
    pub async fn modified_since(&self, head: &Arc<DslDataset>, snap: &DslDataset) -> Result<bool> {
        let (hp, sp) = (head.phys(), snap.phys());
        if hp.bp.birth() <= sp.creation_txg {
            return Ok(false);
        }
        let meta = async |ds: &DslDataset| -> Result<ObjsetPhys> {
            let at = crate::types::Bookmark::root(ds.id);
            let bp = ds.phys().bp;
            let data = self.ctx.store.read(bp, at, crate::zio::Priority::SyncRead).await?;
            ObjsetPhys::decode(&data, zilla_ondisk::ByteOrder::NATIVE)
                .map_err(|e| Error::corrupt(Some(at), "", e.to_string()))
        };
        if sp.bp.is_hole() {
            return Ok(!hp.bp.is_hole());
        }
        let now = meta(head).await?;
        // A log that waits to be replayed was claimed, which changed the head's root.
        let log = head.open_objset().map_or(now.zil_header, |os| os.phys().zil_header);
        if !log.log.is_hole() && log.flags & ZIL_REPLAY_NEEDED != 0 {
            return Ok(true);
        }
        Ok(now.meta_dnode != meta(snap).await?.meta_dnode)
    }

    pub(super) async fn recv_child(&self, dir: &DslDir) -> Result<Option<Arc<DslDataset>>> {
        let children = Zap::open(self.mos(), dir.phys().child_dir_zapobj).await?;
        match children.try_get_u64(RECV_NAME).await? {
            None => Ok(None),
            Some(id) => Ok(Some(self.head(&*self.dir(id).await?).await?)),
        }
    }

    /// The dataset that holds what was received of a stream for `fs` so far.
    #[crate::boxed]
    pub async fn recv_partial(&self, fs: &str) -> Result<Option<Arc<DslDataset>>> {
        let head = self.by_name(fs).await?;
        if let Some(ds) = self.recv_child(&head.dir()).await? {
            return Ok(Some(ds));
        }
        Ok(Some(head).filter(|h| h.is_inconsistent()))
    }

    /// What a stream asks of the pool.
    pub(crate) fn recv_features(&self, b: &Begin) -> Result<()> {
        for (flag, name) in [
            (feature::LARGE_BLOCKS, "large_blocks"),
            (feature::EMBED_DATA, "embedded_data"),
            (feature::LZ4, "lz4_compress"),
            (feature::LARGE_DNODE, "large_dnode"),
            (feature::ZSTD, "zstd_compress"),
            (feature::LONGNAME, "longname"),
            (feature::LARGE_MICROZAP, "large_microzap"),
            (feature::RAW, "encryption"),
            (feature::REDACTED, REDACTED),
        ] {
            if b.features() & flag != 0 && !self.feature_enabled(name) {
                return refuse(Errno::NotSup, "pool must be upgraded to receive this stream.");
            }
        }
        if b.features() & feature::RAW == 0 {
            return Ok(());
        }
        if b.features() & feature::EMBED_DATA != 0 {
            return refuse(Errno::Inval, "invalid stream (a raw stream has no embedded blocks)");
        }
        match b.flags & DRR_FLAG_SPILL_BLOCK != 0 {
            true => Ok(()),
            false => refuse(
                Errno::Inval,
                "Spill block flag missing for raw send.\nThe zfs software on the sending system must be updated.",
            ),
        }
    }

    /// Refuses what would need a feature that the pool does not have: its sync could not put it
    /// down.
    pub(crate) fn recv_needs(&self, features: impl IntoIterator<Item = &'static str>) -> Result<()> {
        match features.into_iter().find(|f| !self.feature_enabled(f)) {
            None => Ok(()),
            Some(lacks) => Err(Refusal::StreamNeedsFeature(lacks).into()),
        }
    }

    /// The snapshot of a head that a stream starts from.
    async fn recv_from(&self, head: &Arc<DslDataset>, guid: u64) -> Result<Option<Arc<DslDataset>>> {
        let mut at = self.prev(head).await?;
        let dir = head.dir().id();
        while let Some(s) = at.filter(|s| s.dir().id() == dir) {
            if s.guid() == guid {
                return Ok(Some(s));
            }
            at = self.prev(&s).await?;
        }
        Ok(None)
    }

    /// Refuses what was sent without `-L` onto what was sent with it. A file of large blocks would
    /// be taken for another one with smaller blocks, and lose all that the stream does not bring.
    pub(super) fn recv_large_blocks_check(&self, on: &DslDataset, b: &Begin) -> Result<()> {
        match b.features() & feature::LARGE_BLOCKS == 0 && on.feature_is_active("large_blocks") {
            true => refuse(
                Errno::Inval,
                "incremental send stream requires -L (--large-block), to match previous receive.",
            ),
            false => Ok(()),
        }
    }

    /// Why a stream cannot go on top of a snapshot that is redacted, if it cannot: it would leave
    /// something out for which nobody could say why. It may have been sent from that snapshot, or
    /// from a redaction bookmark, by some of the same snapshots; be redacted by some of them
    /// itself; or be of one of them, which has all that was left out.
    fn recv_redact_check(&self, from: &DslDataset, b: &Begin, o: &RecvOpts) -> Result<()> {
        let Some(have) = from.redact_snaps().filter(|_| b.fromguid != 0) else { return Ok(()) };
        let some_of = |snaps: &[u64]| snaps.len() <= have.len() && snaps.iter().all(|s| have.contains(s));
        let fits = match (&o.redact_from, &o.redact) {
            (Some(from), _) => some_of(from),
            (None, Some(by)) => some_of(by),
            (None, None) => have.contains(&b.toguid),
        };
        match fits {
            true => Ok(()),
            false => refuse(
                Errno::Inval,
                "invalid backup stream (it does not fit what the destination is redacted by)",
            ),
        }
    }

    /// Plain contents of an encrypted dataset need its key.
    pub(super) async fn recv_key_check(&self, dir: &DslDir) -> Result<()> {
        match self.key_loaded(dir).await? {
            true => Ok(()),
            false => refuse(Errno::Access, "inherited key must be loaded"),
        }
    }

    /// The same, where it is the dataset's own key that they are written with.
    async fn recv_own_key_check(&self, dir: &DslDir) -> Result<()> {
        self.recv_key_check(dir).await?;
        self.writable_key_check(dir).await
    }

    /// Why a stream cannot go into a dataset, by its key, if it cannot.
    async fn recv_onto_check(&self, dir: &DslDir, b: &Begin, o: &RecvOpts) -> Result<()> {
        let (encrypted, raw, whole) = (self.is_encrypted(dir).await?, o.raw.is_some(), b.fromguid == 0);
        if !whole && !encrypted && raw {
            return refuse(Errno::Inval, "cannot perform raw receive on top of existing unencrypted dataset");
        }
        // A dir would have to have two keys at once, or a key and none.
        if whole && o.force && (encrypted || raw) {
            let what = "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an \
                        unencrypted one with an encrypted one";
            return refuse(Errno::Inval, what);
        }
        if raw { Ok(()) } else { self.recv_own_key_check(dir).await }
    }

    /// Begins to receive. In syncing context.
    #[crate::boxed]
    pub async fn recv_begin(&self, tx: &Tx, b: &Begin, o: &RecvOpts) -> Result<RecvTarget> {
        name::check(&format!("{}@{}", o.fs, o.snap))?;
        self.recv_features(b)?;
        if let Some(raw) = &o.raw {
            self.recv_raw_needs(raw)?;
        }
        let os_type = match ObjsetType::from_number(b.objset_type.into()) {
            Some(t @ (ObjsetType::Zfs | ObjsetType::Zvol)) => t,
            _ => {
                return refuse(
                    Errno::Inval,
                    "invalid stream (it is neither of a file system nor of a volume)",
                );
            }
        };
        let mut flags = DS_FLAG_INCONSISTENT;
        if b.flags & DRR_FLAG_CI_DATA != 0 {
            flags |= DS_FLAG_CI_DATASET;
        }
        // What is needed to go on later lies in the dataset's own object, which is a ZAP then. Half
        // of it, in a pool that does not have that, would keep the pool from being imported.
        if o.resumable && !self.feature_enabled("extensible_dataset") {
            return refuse(Errno::NotSup, "resumable receives (-s) need the feature extensible_dataset");
        }
        let target = match self.by_name(&o.fs).await {
            Ok(head) => self.recv_begin_existing(tx, &head, b, o, os_type, flags).await?,
            Err(e) if e.is(Errno::NoEnt) => self.recv_begin_new(tx, b, o, os_type, flags).await?,
            Err(e) => return Err(e),
        };
        // Other than a clone's of what is redacted.
        self.set_redacted(tx, &target.ds, o.redact.clone()).await?;
        for (flag, name) in [(feature::LONGNAME, "longname"), (feature::LARGE_MICROZAP, "large_microzap")] {
            if b.features() & flag != 0 {
                self.activate_feature(tx, &target.ds, name).await?;
            }
        }
        if o.resumable {
            self.note_resume(tx, &target.ds, b, o.redact_from.as_deref()).await?;
        }
        Ok(target)
    }

    async fn recv_begin_new(
        &self,
        tx: &Tx,
        b: &Begin,
        o: &RecvOpts,
        os_type: ObjsetType,
        flags: u64,
    ) -> Result<RecvTarget> {
        if b.fromguid != 0 && o.origin.is_none() && b.flags & DRR_FLAG_CLONE == 0 {
            return refuse(Errno::NoEnt, format!("destination '{}' does not exist", o.fs));
        }
        let parent = self.create_check(&o.fs).await?;
        self.recv_limit_check(&parent, true, &o.who).await?;
        let origin = match &o.origin {
            None if b.fromguid != 0 => return refuse(Errno::NoDev, "local origin for clone does not exist"),
            None => None,
            Some(name) => {
                let origin = self.by_name(name).await?;
                if !origin.is_snapshot() || (b.fromguid == 0 && b.flags & DRR_FLAG_FREERECORDS == 0) {
                    return refuse(Errno::Inval, "invalid stream (it cannot be received as a clone)");
                }
                if b.fromguid != 0 && origin.guid() != b.fromguid {
                    let what = format!("most recent snapshot of {} does not\nmatch incremental source", o.fs);
                    return refuse(Errno::NoDev, what);
                }
                not_of(&origin, tx)?;
                self.recv_redact_check(&origin, b, o)?;
                if b.fromguid != 0 {
                    self.recv_large_blocks_check(&origin, b)?;
                }
                match &o.raw {
                    Some(raw) => self.recv_raw_check(&origin, raw).await?,
                    None => self.recv_own_key_check(&origin.dir()).await?,
                }
                Some(origin)
            }
        };
        let crypting = match origin.is_none() && o.raw.is_none() {
            true => {
                if o.crypt.suite != NewSuite::Off && o.crypt.key.is_none() {
                    self.recv_key_check(&parent).await?;
                }
                self.new_crypt_check(Some(&parent), &o.crypt).await?
            }
            false => None,
        };
        self.new_props_check(&parent, &o.fs, &o.settings, 0)?;
        self.check_space(SpaceCheck::Normal)?;
        self.read_for_new(&parent, origin.as_ref()).await?;
        self.read_for_creator(&parent).await?;
        if let Some(origin) = &origin {
            self.objset(origin).await?;
        }
        let last = name::parent(&o.fs).map_or(&*o.fs, |p| p.1);
        let ds = self.create_dataset_sync(tx, &parent, last, origin.as_ref(), flags).await?;
        if let Who::User { uid, .. } = o.who {
            self.grant_to_creator(tx, &ds.dir(), uid).await?;
        }
        if let Some(crypting) = crypting {
            self.create_key(tx, &ds.dir(), &ds, crypting, &o.crypt).await?;
        }
        if let Some(raw) = o.raw.as_ref().filter(|_| origin.is_none()) {
            self.recv_raw_new(tx, &ds, raw).await?;
        }
        let os = self.recv_objset(tx, &ds, os_type, o).await?;
        let settings: Vec<_> = o
            .settings
            .iter()
            .filter(|(name, s)| {
                self.binding_check(name, s).inspect_err(|e| not_received(&ds, name, e)).is_ok()
            })
            .collect();
        if settings.iter().any(|(name, s)| binds(name, s)) {
            self.limits_begin(tx, &ds.dir()).await?;
        }
        for (name, s) in settings {
            self.set_prop_sync(tx, &ds, name, s).await?;
        }
        os.set_props(self.write_props(&ds).await?);
        Ok(RecvTarget { ds, os, new: true, bytes: 0, resume: None })
    }

    /// The objset that records go into: a clone's is its origin's at first.
    async fn recv_objset(
        &self,
        tx: &Tx,
        ds: &Arc<DslDataset>,
        os_type: ObjsetType,
        o: &RecvOpts,
    ) -> Result<Arc<Objset>> {
        if let Some(raw) = &o.raw {
            return self.raw_objset(ds, os_type, raw).await;
        }
        if ds.phys().bp.is_hole() {
            return self.new_objset(tx, ds, os_type).await;
        }
        self.zero_zil(ds).await?;
        self.objset(ds).await
    }

    async fn recv_begin_existing(
        &self,
        tx: &Tx,
        head: &Arc<DslDataset>,
        b: &Begin,
        o: &RecvOpts,
        os_type: ObjsetType,
        flags: u64,
    ) -> Result<RecvTarget> {
        let dir = head.dir();
        self.recv_limit_check(&dir, false, &o.who).await?;
        self.recv_onto_check(&dir, b, o).await?;
        self.settings_check(&asked_for(&o.settings))?;
        if head.is_inconsistent() || self.recv_child(&dir).await?.is_some() {
            let what =
                format!("destination {} contains partially-complete state from \"zfs receive -s\".", o.fs);
            return refuse(Errno::Busy, what);
        }
        if self.snap_lookup(head, &o.snap).await?.is_some() {
            return refuse(Errno::Exist, "destination already exists");
        }
        if self.os_type(head).await? != os_type.number() {
            return refuse(Errno::Inval, "invalid stream (it is of another type than the destination)");
        }
        let from = match b.fromguid {
            0 if !o.force => {
                let what = format!("destination '{}' exists\nmust specify -F to overwrite it", o.fs);
                return refuse(Errno::Exist, what);
            }
            0 => None,
            guid => {
                let Some(from) = self.recv_from(head, guid).await? else {
                    let what = format!("most recent snapshot of {} does not\nmatch incremental source", o.fs);
                    return refuse(Errno::NoDev, what);
                };
                self.recv_redact_check(&from, b, o)?;
                self.recv_large_blocks_check(&from, b)?;
                if o.force {
                    Some(from)
                } else {
                    if self.modified_since(head, &from).await? {
                        let what =
                            format!("destination {} has been modified\nsince most recent snapshot", o.fs);
                        return refuse(Errno::TxtBsy, what);
                    }
                    self.prev(head).await?
                }
            }
        };
        if let Some(from) = &from {
            not_of(from, tx)?;
        }
        if let (Some(raw), Some(from)) = (&o.raw, &from) {
            self.recv_raw_check(from, raw).await?;
        }
        self.check_space(SpaceCheck::Normal)?;
        self.read_dataset(head).await?;
        self.read_for_new(&dir, from.as_ref()).await?;
        if let Some(from) = &from {
            self.objset(from).await?;
        }
        let ds = self.create_dataset_sync(tx, &dir, RECV_NAME, from.as_ref(), flags).await?;
        let os = self.recv_objset(tx, &ds, os_type, o).await?;
        for (name, s) in o.settings.iter().filter(|(n, _)| OF_BLOCKS.contains(&n.as_str())) {
            self.set_prop_sync(tx, &ds, name, s).await?;
        }
        os.set_props(self.write_props(&ds).await?);
        Ok(RecvTarget { ds, os, new: false, bytes: 0, resume: None })
    }

    /// What the end of a forced receive takes away: the head's snapshots after the one that was
    /// received on.
    async fn recv_later(&self, head: &Arc<DslDataset>, from: u64) -> Result<Vec<Arc<DslDataset>>> {
        let mut out = Vec::new();
        let mut at = self.prev(head).await?;
        while let Some(s) = at.filter(|s| s.id != from) {
            if s.dir().id() != head.dir().id() {
                return refuse(
                    Errno::Inval,
                    format!("{} does not descend from what was received", head.name()),
                );
            }
            at = self.prev(&s).await?;
            out.push(s);
        }
        Ok(out)
    }

    /// Makes what was received the dataset's contents, and its snapshot. In syncing context. Nobody
    /// may use the old objset any more.
    #[crate::boxed]
    pub async fn recv_end(
        &self,
        tx: &Tx,
        t: &RecvTarget,
        b: &Begin,
        o: &RecvOpts,
    ) -> Result<Arc<DslDataset>> {
        let now = self.ctx.env.wall().as_secs();
        // Who goes on with an interrupted receive, too, holds it alone, and looks whether it is
        // gone.
        let Some(_alone) = t.ds.hold_alone().filter(|_| !t.ds.is_gone()) else {
            return refuse(Errno::Busy, format!("{}: dataset is busy", o.fs));
        };
        if t.ds.phys().prev_snap_txg >= tx.txg().0 {
            return refuse(Errno::Again, "a snapshot of this txg exists");
        }
        // What a sync could not put down over damage is in memory only, and would be missing.
        t.os.check_held()?;
        let head = if t.new { t.ds.clone() } else { self.by_name(&o.fs).await? };
        // One that was renamed meanwhile may have left its name to another, whose contents these
        // would replace.
        if !t.new && t.ds.dir().parent().is_none_or(|p| p.id() != head.dir().id()) {
            return refuse(Errno::Busy, format!("{}: dataset was renamed while it was received to", o.fs));
        }
        if t.new && self.snap_lookup(&head, &o.snap).await?.is_some() {
            return refuse(Errno::Exist, "destination already exists");
        }
        self.check_space(SpaceCheck::Normal)?;
        // By the swap and the snapshot what the head alone has now is charged beside all that is
        // reserved for it.
        self.refreservation_check(&head)?;
        self.read_dataset(&head).await?;
        if let Some(prev) = self.prev(&head).await? {
            self.read_dataset(&prev).await?;
        }
        self.read_pool().await?;
        // That of a new dataset differs where the sender's was changed before the rest came.
        let rewrapped = match &o.raw {
            Some(raw) => self.recv_raw_rewraps(&head.dir(), raw, o.keep_key).await?,
            None => None,
        };
        if !t.new {
            self.recv_swap(tx, t, &head, o).await?;
        }
        let snap = self.snapshot_sync(tx, &head, &o.snap, now).await?;
        snap.change(tx, |p| {
            p.creation_time = b.creation_time;
            p.guid = b.toguid;
            p.flags &= !DS_FLAG_INCONSISTENT;
        });
        head.change(tx, |p| p.flags &= !DS_FLAG_INCONSISTENT);
        if let Some(raw) = &o.raw {
            self.recv_raw_ivset(tx, &snap, raw).await?;
            if let Some(key) = rewrapped {
                self.put_raw_key(tx, &key, raw, head.dir().id()).await?;
            }
            // Whoever opens it now does so with its key, or as one that has none.
            head.drop_objset();
        }
        if t.new {
            self.forget_resume(tx, &head).await?;
        }
        Ok(snap)
    }

    /// Exchanges the contents of a head and its `%recv`, and destroys the latter.
    async fn recv_swap(&self, tx: &Tx, t: &RecvTarget, head: &Arc<DslDataset>, o: &RecvOpts) -> Result<()> {
        let from = t.ds.phys().prev_snap_obj;
        let later = self.recv_later(head, from).await?;
        // Who would open it meanwhile would have what is discarded.
        let Some(_alone) = head.hold_alone() else {
            return refuse(Errno::Busy, format!("{}: dataset is busy", o.fs));
        };
        if self.snap_lookup(head, &o.snap).await?.is_some_and(|id| !later.iter().any(|s| s.id == id)) {
            return refuse(Errno::Exist, "destination already exists");
        }
        let origin = self.dataset(from).await?;
        // Nobody opens what goes from now on.
        let mut alone = Vec::new();
        if o.force {
            for s in &later {
                self.destroy_snapshot_check(s, false).await?;
                alone.push(s.hold_alone().ok_or_else(|| super::busy(&s.name()))?);
            }
        } else if !later.is_empty() || self.modified_since(head, &origin).await? {
            let what = format!("destination {} has been modified\nsince most recent snapshot", o.fs);
            return refuse(Errno::TxtBsy, what);
        }
        let refquota = head.refquota.load(Ordering::Relaxed);
        // A last transaction may have gone beyond it where the stream was made.
        if refquota != 0 && t.ds.phys().referenced_bytes > refquota.saturating_add(BEYOND_REFQUOTA) {
            return refuse(Errno::DQuot, format!("destination {} space quota exceeded.", o.fs));
        }
        // What was asked for is refused before anything is changed.
        let asked = asked_for(&o.settings);
        for (name, s) in &asked {
            self.set_prop_check(head, name, s, &asked).await?;
        }
        for s in &later {
            self.read_for_destroyed(s).await?;
        }
        if o.settings.iter().any(|(name, s)| binds(name, s)) {
            self.read_for_counts(&head.dir()).await?;
        }
        self.read_dataset(&t.ds).await?;
        self.read_livelist(&t.ds.dir()).await?;
        self.read_livelist(&head.dir()).await?;
        self.read_for_new(&head.dir(), Some(&origin)).await?;
        let _origin_alone = self.hold_origin(&t.ds).await?;
        for s in &later {
            self.destroy_snapshot_sync(tx, s, false).await?;
        }
        self.discard_log(head, &t.ds).await;
        self.clone_swap(tx, &t.ds, head, &origin).await?;
        self.destroy_head_sync(tx, &t.ds).await?;
        self.set_receivable(tx, head, &o.settings).await
    }

    pub(super) async fn set_receivable(
        &self,
        tx: &Tx,
        head: &Arc<DslDataset>,
        settings: &[(String, Setting)],
    ) -> Result<()> {
        let settings = self.receivable(head, settings).await;
        if settings.iter().any(|(name, s)| binds(name, s)) {
            self.limits_begin(tx, &head.dir()).await?;
        }
        for (name, s) in &settings {
            self.set_prop_sync(tx, head, name, s).await?;
        }
        self.props_changed(&head.dir()).await
    }

    /// The properties without those of the stream that cannot be set. The contents are in: that is
    /// no reason to go back. A limit is held against those that are set with it, and not against
    /// one that is refused.
    async fn receivable(&self, head: &Arc<DslDataset>, all: &[(String, Setting)]) -> Vec<(String, Setting)> {
        let mut set = all.to_vec();
        'anew: loop {
            for (i, (name, s)) in set.iter().enumerate() {
                if !matches!(s, Setting::Local(_))
                    && let Err(e) = self.set_prop_check(head, name, s, &set).await
                {
                    not_received(head, name, &e);
                    set.remove(i);
                    continue 'anew;
                }
            }
            return set;
        }
    }
}
