//! Properties: values set on a dir (or snapshot), inherited by those below.
//!
//! A dir's properties are a ZAP: `name` is what was set here, `name$recvd` what a stream brought,
//! and `name$inherit` says that a received value does not count. Numbers are numbers; everything
//! else is a string with its NUL. What nobody set has its default, which is known further up; only
//! those that this layer itself obeys are known here.

use super::DslPool;
use super::Refusal;
use super::bpobj::Delta;
use super::dataset::DslDataset;
use super::dir::DslDir;
use super::limits::binds;
use super::space::SpaceCheck;
use crate::arc::Caching;
use crate::dmu::{Prefetch, WriteProps};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zap::{CreateOpts, Value, Zap};
use crate::zio::{CachePolicy, Dedup};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::{Compress, CompressSpec};
use zilla_ondisk::dsl::DD_USED_REFRSRV;
use zilla_ondisk::enums::{
    SPA_VERSION_DEDUP, SPA_VERSION_DITTO_BLOCKS, SPA_VERSION_GZIP_COMPRESSION, SPA_VERSION_INITIAL,
    SPA_VERSION_RECVD_PROPS, SPA_VERSION_REFQUOTA, SPA_VERSION_SNAP_PROPS, SPA_VERSION_ZLE_COMPRESSION,
};
use zilla_ondisk::object_type::{self, DMU_OT_DSL_PROPS};

/// `direct`: data go past the cache if that is asked for, or always. Source: ZFS_DIRECT_STANDARD
/// and ZFS_DIRECT_ALWAYS in OpenZFS's include/sys/fs/zfs.h.
const DIRECT_STANDARD: u64 = 1;
const DIRECT_ALWAYS: u64 = 2;
/// `primarycache=all`, `secondarycache=all`.
const CACHE_ALL: u64 = 2;
const INHERIT: &str = "$inherit";
const RECVD: &str = "$recvd";
/// What bounds a dataset, and is held against what there is when it is set.
const LIMITS: [&str; 4] = ["quota", "reservation", "refquota", "refreservation"];
/// Set where any property was ever received.
const HAS_RECVD: &str = "$hasrecvd";

/// Blocks are compared before they are shared. Source: ZIO_CHECKSUM_VERIFY in sys/zio.h.
const DEDUP_VERIFY: u64 = 1 << 8;

/// What a value of the property `dedup` asks for.
fn dedup_of(value: u64) -> Option<Dedup> {
    let checksum = match Checksum::from_u8(value as u8)? {
        Checksum::On => Checksum::Sha256,
        kind => kind,
    };
    // A weaker one does not tell blocks apart.
    let verify = value & DEDUP_VERIFY != 0 || !checksum.is_dedup();
    checksum.is_nopwrite().then_some(Dedup { checksum, verify })
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropSource {
    Local,
    Received,
    /// From the dir of this name.
    Inherited(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropValue {
    pub value: Value,
    pub source: PropSource,
}

/// How a property is to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    Local(Value),
    /// `zfs inherit`.
    Inherit,
    /// `zfs inherit -S`: back to the received value.
    Revert,
    Received(Value),
    /// What was received before is not any more.
    NotReceived,
}

/// The feature without which a property cannot have a value.
fn feature_of(name: &str, value: u64) -> Option<&'static str> {
    match name {
        "compression" => compress_feature(CompressSpec::from_prop(value)?.kind as u8),
        "checksum" | "dedup" => checksum_feature(value as u8),
        "recordsize" if value > zilla_ondisk::SPA_OLD_MAXBLOCKSIZE => Some("large_blocks"),
        "dnodesize" if value != 0 => Some("large_dnode"),
        "longname" if value != 0 => Some("longname"),
        _ => None,
    }
}

/// Whether an object can be said to be checksummed and compressed so. Its blocks are written by
/// these: kinds that no property can name have other uses.
pub fn are_codecs(checksum: u8, compress: u8) -> bool {
    Checksum::from_u8(checksum).is_some_and(|c| c == Checksum::Inherit || c.is_property())
        && Compress::from_u8(compress).is_some_and(|c| c != Compress::Empty)
}

/// The feature without which nothing is compressed so, as on disk.
pub fn compress_feature(kind: u8) -> Option<&'static str> {
    match Compress::from_u8(kind)? {
        Compress::Lz4 => Some("lz4_compress"),
        Compress::Zstd => Some("zstd_compress"),
        _ => None,
    }
}

/// The feature without which nothing has such a checksum, as on disk.
pub fn checksum_feature(kind: u8) -> Option<&'static str> {
    match Checksum::from_u8(kind)? {
        Checksum::Sha512 => Some("sha512"),
        Checksum::Skein => Some("skein"),
        Checksum::Edonr => Some("edonr"),
        Checksum::Blake3 => Some("blake3"),
        _ => None,
    }
}

/// The features without which there is no block of a size, or of a type of that size.
pub fn size_features(lsize: u64, otype: u8) -> impl Iterator<Item = &'static str> + use<> {
    let is_large = lsize > zilla_ondisk::SPA_OLD_MAXBLOCKSIZE;
    let large = is_large.then_some("large_blocks");
    // Blocks of fat ZAPs are never as large.
    let microzap = (is_large && object_type::is_zap(otype)).then_some("large_microzap");
    [large, microzap].into_iter().flatten()
}

/// Properties that hold for one dataset only.
const NOT_INHERITABLE: &[&str] = &[
    "quota",
    "reservation",
    "refquota",
    "refreservation",
    "volsize",
    "volblocksize",
    "canmount",
    "filesystem_limit",
    "snapshot_limit",
    "version",
    "normalization",
    "utf8only",
    "casesensitivity",
    "encryption",
    "keyformat",
    "keylocation",
    "pbkdf2iters",
    "redact_snaps",
    "defaultuserquota",
    "defaultgroupquota",
    "defaultprojectquota",
    "defaultuserobjquota",
    "defaultgroupobjquota",
    "defaultprojectobjquota",
];

pub fn is_inheritable(name: &str) -> bool {
    !NOT_INHERITABLE.contains(&name)
}

/// The pool version that a value of a property takes.
fn version_of(name: &str, value: u64) -> u64 {
    let gzip = Compress::Gzip1 as u64..=Compress::Gzip9 as u64;
    match name {
        "refquota" | "refreservation" => SPA_VERSION_REFQUOTA,
        "copies" if value > 1 => SPA_VERSION_DITTO_BLOCKS,
        "compression" if gzip.contains(&value) => SPA_VERSION_GZIP_COMPRESSION,
        "compression" if value == Compress::Zle as u64 => SPA_VERSION_ZLE_COMPRESSION,
        "dedup" if value != Checksum::Off as u64 => SPA_VERSION_DEDUP,
        _ => SPA_VERSION_INITIAL,
    }
}

impl DslPool {
    /// The value a dataset has of a property, if anyone set it.
    #[crate::boxed]
    pub async fn prop(&self, ds: &DslDataset, name: &str) -> Result<Option<PropValue>> {
        let snapshot = ds.is_snapshot();
        if snapshot && ds.phys().props_obj != 0 {
            let zap = Zap::open(self.mos(), ds.phys().props_obj).await?;
            for (key, source) in
                [(name.to_owned(), PropSource::Local), (format!("{name}{RECVD}"), PropSource::Received)]
            {
                if let Some(value) = zap.try_get(&key).await? {
                    return Ok(Some(PropValue { value, source }));
                }
            }
        }
        self.dir_prop(&ds.dir(), name, snapshot).await
    }

    async fn dir_prop(&self, dir: &Arc<DslDir>, name: &str, snapshot: bool) -> Result<Option<PropValue>> {
        for d in dir.ancestry() {
            let inherited = d.id != dir.id || snapshot;
            if inherited && !is_inheritable(name) {
                break;
            }
            let source = |own| if inherited { PropSource::Inherited(d.name()) } else { own };
            let zap = Zap::open(self.mos(), d.phys().props_zapobj).await?;
            if let Some(value) = zap.try_get(name).await? {
                return Ok(Some(PropValue { value, source: source(PropSource::Local) }));
            }
            if zap.try_get(&format!("{name}{INHERIT}")).await?.is_some() {
                continue;
            }
            if let Some(value) = zap.try_get(&format!("{name}{RECVD}")).await? {
                return Ok(Some(PropValue { value, source: source(PropSource::Received) }));
            }
        }
        Ok(None)
    }

    /// All properties that someone set, native and of users.
    #[crate::boxed]
    pub async fn all_props(&self, ds: &DslDataset) -> Result<BTreeMap<String, PropValue>> {
        let mut out = BTreeMap::new();
        let snapshot = ds.is_snapshot();
        if snapshot && ds.phys().props_obj != 0 {
            let zap = Zap::open(self.mos(), ds.phys().props_obj).await?;
            collect(&zap, &mut out, |_| true, |s| s).await?;
        }
        let dir = ds.dir();
        for d in dir.ancestry() {
            let zap = Zap::open(self.mos(), d.phys().props_zapobj).await?;
            if d.id == dir.id && !snapshot {
                collect(&zap, &mut out, |_| true, |s| s).await?;
            } else {
                let name = d.name();
                collect(&zap, &mut out, is_inheritable, |_| PropSource::Inherited(name.clone())).await?;
            }
        }
        Ok(out)
    }

    /// A number, or the default.
    #[crate::boxed]
    pub async fn prop_u64(&self, ds: &DslDataset, name: &str, default: u64) -> Result<u64> {
        Ok(self.prop(ds, name).await?.and_then(|p| p.value.as_u64()).unwrap_or(default))
    }

    /// Whether the pool has what a property needs to have this value.
    fn has_feature_of(&self, name: &str, value: u64) -> bool {
        feature_of(name, value).is_none_or(|feature| self.feature_enabled(feature))
    }

    /// How the dataset's blocks are to be written. The caches learn which of them they are to take.
    #[crate::boxed]
    pub async fn write_props(&self, ds: &DslDataset) -> Result<WriteProps> {
        let checksum = self.prop_u64(ds, "checksum", Checksum::On as u64).await? & 0xff;
        // What was received may ask for more than the pool has.
        let checksum = if self.has_feature_of("checksum", checksum) { checksum } else { Checksum::On as u64 };
        let checksum = match Checksum::ALL.iter().find(|c| **c as u64 == checksum) {
            None | Some(Checksum::On | Checksum::Inherit) => Checksum::Fletcher4,
            Some(c) => *c,
        };
        let lz4 = self.feature_active("lz4_compress");
        let on = if lz4 { CompressSpec::ON_VALUE } else { CompressSpec::new(Compress::Lzjb) };
        let compress = self.prop_u64(ds, "compression", Compress::On as u64).await?;
        let compress = match CompressSpec::from_prop(compress) {
            None => on,
            Some(c) if matches!(c.kind, Compress::On | Compress::Inherit) => on,
            // It came with a stream, from a pool that has more features.
            Some(_) if !self.has_feature_of("compression", compress) => on,
            Some(c) => c,
        };
        let most = if self.ctx.version() < SPA_VERSION_DITTO_BLOCKS { 1 } else { 3 };
        let copies = self.prop_u64(ds, "copies", 1).await?.clamp(1, most) as u8;
        let mut primary = Caching::from_prop(self.prop_u64(ds, "primarycache", CACHE_ALL).await?);
        let past = self.prop_u64(ds, "direct", DIRECT_STANDARD).await? == DIRECT_ALWAYS;
        if past && primary == Caching::All {
            primary = Caching::Metadata;
        }
        let secondary = Caching::from_prop(self.prop_u64(ds, "secondarycache", CACHE_ALL).await?);
        self.ctx.store.set_caching(ds.id(), CachePolicy { primary, secondary });
        let special = self.prop_u64(ds, "special_small_blocks", 0).await?;
        let dedup = self.prop_u64(ds, "dedup", Checksum::Off as u64).await?;
        let dedup = if self.has_feature_of("dedup", dedup) { dedup } else { Checksum::Off as u64 };
        // all, most: one more of metadata; some, none: not.
        let redundant = self.prop_u64(ds, "redundant_metadata", 0).await? <= 1;
        let prefetch = Prefetch::from_prop(self.prop_u64(ds, "prefetch", Prefetch::All as u64).await?);
        Ok(WriteProps {
            checksum,
            compress,
            copies,
            metadata_copies: (copies + u8::from(redundant)).min(most as u8),
            metadata_compress: on,
            hole_birth: self.feature_active("hole_birth"),
            embed: self.feature_active("embedded_data"),
            large_microzap: self.feature_enabled("large_microzap"),
            special_upto: special.min(zilla_ondisk::SPA_MAXBLOCKSIZE) as u32,
            dedup: dedup_of(dedup),
            prefetch,
            keep: primary.takes(false),
        })
    }

    /// Changes properties of a file system, volume or snapshot, all in this txg or none.
    #[crate::boxed]
    pub async fn set_props(&self, tx: &Tx, ds: &Arc<DslDataset>, props: &[(String, Setting)]) -> Result<()> {
        for (name, s) in props {
            self.set_prop_check(ds, name, s, props).await?;
        }
        let limits = ["quota", "reservation", "refquota", "refreservation"];
        let check = match props.iter().all(|(name, _)| limits.contains(&name.as_str())) {
            true => SpaceCheck::ExtraReserved,
            false => SpaceCheck::Reserved,
        };
        self.check_space(check)?;
        self.read_dir(&ds.dir()).await?;
        if !ds.is_snapshot() && props.iter().any(|(name, s)| binds(name, s)) {
            self.read_pool().await?;
            self.limits_begin(tx, &ds.dir()).await?;
        }
        for (name, s) in props {
            self.set_prop_sync(tx, ds, name, s).await?;
            let (operation, value) = match s {
                Setting::Local(v) | Setting::Received(v) => (
                    "set",
                    v.as_u64().map_or_else(|| v.as_str().unwrap_or_default().to_owned(), |n| n.to_string()),
                ),
                Setting::Inherit | Setting::Revert | Setting::NotReceived => ("inherit", String::new()),
            };
            self.note(tx, ds, operation, &format!("{name}={value}"));
        }
        if !ds.is_snapshot() {
            self.props_changed(&ds.dir()).await?;
        }
        Ok(())
    }

    /// Why a dataset that is to be made below `parent` could not have these properties: asked
    /// before it is made, so that what is refused leaves nothing behind. `referenced`: what it
    /// begins with.
    pub fn new_props_check(
        &self,
        parent: &Arc<DslDir>,
        name: &str,
        props: &[(String, Setting)],
        referenced: u64,
    ) -> Result<()> {
        self.settings_check(props)?;
        let number = |wanted: &str| {
            let value = props.iter().rev().find(|(n, _)| n == wanted).map(|(_, s)| s);
            match value {
                Some(Setting::Local(v) | Setting::Received(v)) => v.as_u64().unwrap_or(0),
                _ => 0,
            }
        };
        let limit = |name: &str| match number(name) {
            0 => u64::MAX,
            limit => limit,
        };
        // What the dataset reserves for itself counts toward what is reserved for it and its
        // children.
        let reserved = number("reservation").max(number("refreservation"));
        if reserved > 0 && reserved > self.available(parent, false).min(limit("quota")) {
            let what = format!("cannot create '{name}': size is greater than available space");
            return Err(Error::os(Errno::NoSpc, what));
        }
        if number("refreservation").max(referenced) > limit("refquota") {
            let what = format!("cannot create '{name}': it would be over its refquota");
            return Err(Error::os(Errno::NoSpc, what));
        }
        Ok(())
    }

    /// Whether a file system uses no more than its own quotas let it.
    pub fn is_within_quotas(&self, ds: &DslDataset) -> bool {
        let (dir, own) = (ds.dir().phys(), ds.refquota.load(Ordering::Relaxed));
        let within = |used: u64, limit: u64| limit == 0 || used <= limit;
        within(dir.used_bytes, dir.quota) && within(ds.phys().referenced_bytes, own)
    }

    /// Why nothing could have these properties.
    pub fn settings_check(&self, props: &[(String, Setting)]) -> Result<()> {
        for (prop, s) in props {
            name_length_check(prop, s)?;
            if let Setting::Local(v) = s {
                let value = v.as_u64().unwrap_or(0);
                self.needs_version(version_of(prop, value))?;
                self.feature_check(prop, value)?;
                self.binding_check(prop, s)?;
            }
            if let Setting::Local(v) | Setting::Received(v) = s
                && v.stored().len() > crate::zap::ZAP_MAXVALUELEN
            {
                return Err(Error::os(Errno::TooBig, format!("property value of '{prop}' is too long")));
            }
        }
        Ok(())
    }

    /// Why a property cannot be set, if it cannot. `with`: what is set together with it; a
    /// reservation is held against the quota that comes with it, and the other way round.
    #[crate::boxed]
    pub async fn set_prop_check(
        &self,
        ds: &Arc<DslDataset>,
        name: &str,
        s: &Setting,
        with: &[(String, Setting)],
    ) -> Result<()> {
        let or_now = |name: &str, now: u64| {
            let set = with.iter().rev().find(|(n, _)| n == name).map(|(_, s)| s);
            match set {
                Some(Setting::Local(v) | Setting::Received(v)) => v.as_u64().unwrap_or(now),
                // None of the limits is inherited: what is taken back is 0.
                Some(Setting::Inherit) => 0,
                _ => now,
            }
        };
        name_length_check(name, s)?;
        let (dir, p) = (ds.dir(), ds.phys());
        if ds.is_snapshot() {
            self.needs_version(SPA_VERSION_SNAP_PROPS)?;
        }
        let value = match s {
            Setting::Local(v) | Setting::Received(v) => {
                if v.stored().len() > crate::zap::ZAP_MAXVALUELEN {
                    return Err(Error::os(Errno::TooBig, format!("property value of '{name}' is too long")));
                }
                v.as_u64().unwrap_or(0)
            }
            // What was received counts from then on.
            Setting::Revert
                if !ds.is_snapshot() && LIMITS.contains(&name) && dir.phys().props_zapobj != 0 =>
            {
                let props = Zap::open(self.mos(), dir.phys().props_zapobj).await?;
                props.try_get_u64(&format!("{name}{RECVD}")).await?.unwrap_or(0)
            }
            Setting::Inherit | Setting::Revert | Setting::NotReceived => 0,
        };
        self.needs_version(version_of(name, value))?;
        self.feature_check(name, value)?;
        self.binding_check(name, s)?;
        let d = dir.phys();
        match name {
            "quota" if value != 0 && value < d.used_bytes.max(or_now("reservation", d.reserved)) => {
                Err(Refusal::BelowUsed(ds.name()).into())
            }
            "reservation" => {
                let delta = d.used_bytes.max(value).saturating_sub(d.used_bytes.max(d.reserved));
                let avail = match dir.parent() {
                    Some(parent) => self.available(&parent, false),
                    None => self.adjusted_size(SpaceCheck::Normal).saturating_sub(d.used_bytes),
                };
                let quota = or_now("quota", d.quota);
                if delta > 0 && (delta > avail || (quota != 0 && value > quota)) {
                    return Err(Refusal::BeyondAvailable(ds.name()).into());
                }
                Ok(())
            }
            "refquota" if value != 0 => {
                let reserved = or_now("refreservation", ds.reserved.load(Ordering::Relaxed));
                if value < p.referenced_bytes || value < reserved {
                    return Err(Refusal::BelowUsed(ds.name()).into());
                }
                Ok(())
            }
            "refreservation" => {
                let old = ds.reserved.load(Ordering::Relaxed);
                let delta = p.unique_bytes.max(value).saturating_sub(p.unique_bytes.max(old));
                let quota = or_now("quota", d.quota);
                let own = or_now("refquota", ds.refquota.load(Ordering::Relaxed));
                let over = |limit: u64| limit != 0 && value > limit;
                if delta > 0 && (delta > self.available(&dir, false) || over(quota) || over(own)) {
                    return Err(Refusal::BeyondAvailable(ds.name()).into());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether the pool has what a value asks for.
    pub fn feature_check(&self, name: &str, value: u64) -> Result<()> {
        match feature_of(name, value).is_none_or(|feature| self.feature_enabled(feature)) {
            true => Ok(()),
            false => Err(Error::os(Errno::NotSup, "pool must be upgraded to set this property or value")),
        }
    }

    /// The properties of which a dataset has values that were received.
    pub async fn received_names(&self, ds: &DslDataset) -> Result<Vec<String>> {
        let entries = Zap::open(self.mos(), ds.dir().phys().props_zapobj).await?.entries().await?;
        let names = entries.iter().filter_map(|e| Some(e.name_str().strip_suffix(RECVD)?.to_owned()));
        Ok(names.filter(|name| !name.is_empty()).collect())
    }

    /// Which of its own properties a dataset has, received ones left out.
    #[crate::boxed]
    pub async fn local_names(&self, ds: &DslDataset) -> Result<Vec<String>> {
        let entries = Zap::open(self.mos(), ds.dir().phys().props_zapobj).await?.entries().await?;
        Ok(entries.iter().map(|e| e.name_str().into_owned()).filter(|name| !name.contains('$')).collect())
    }

    async fn props_zap(&self, tx: &Tx, ds: &DslDataset, make: bool) -> Result<Option<Zap>> {
        let id = if ds.is_snapshot() { ds.phys().props_obj } else { ds.dir().phys().props_zapobj };
        if id != 0 {
            return Ok(Some(Zap::open(self.mos(), id).await?));
        }
        if !make {
            return Ok(None);
        }
        let zap = Zap::make(self.mos(), tx, DMU_OT_DSL_PROPS, &CreateOpts::default()).await?;
        ds.change(tx, |p| p.props_obj = zap.id());
        Ok(Some(zap))
    }

    pub(super) async fn set_prop_sync(
        &self,
        tx: &Tx,
        ds: &Arc<DslDataset>,
        name: &str,
        s: &Setting,
    ) -> Result<()> {
        let make = !matches!(s, Setting::Revert | Setting::NotReceived);
        let Some(zap) = self.props_zap(tx, ds, make).await? else { return Ok(()) };
        let (inherit, recvd) = (format!("{name}{INHERIT}"), format!("{name}{RECVD}"));
        match s {
            Setting::Local(v) => {
                zap.delete_if_there(tx, &inherit).await?;
                zap.set(tx, name, v).await?;
            }
            Setting::Inherit => {
                zap.delete_if_there(tx, name).await?;
                // Nothing is received under a longer name.
                if inherit.len() < crate::zap::ZAP_MAXNAMELEN && zap.try_get(HAS_RECVD).await?.is_some() {
                    zap.set_u64(tx, &inherit, 0).await?;
                }
            }
            Setting::Revert => {
                zap.delete_if_there(tx, name).await?;
                zap.delete_if_there(tx, &inherit).await?;
            }
            // Older pools do not tell what was received from what was set.
            Setting::Received(v) if self.ctx.version() < SPA_VERSION_RECVD_PROPS => {
                zap.set(tx, name, v).await?;
            }
            Setting::NotReceived => drop(zap.delete_if_there(tx, &recvd).await?),
            Setting::Received(v) => {
                zap.set_u64(tx, HAS_RECVD, 0).await?;
                zap.set(tx, &recvd, v).await?;
            }
        }
        if ds.is_snapshot() {
            if zap.is_empty().await? {
                self.mos().free(tx, zap.dnode());
                ds.change(tx, |p| p.props_obj = 0);
            }
            return Ok(());
        }
        let now = self.dir_prop(&ds.dir(), name, false).await?.and_then(|p| p.value.as_u64()).unwrap_or(0);
        match name {
            "quota" => ds.dir().change(tx, |d| d.quota = now),
            "reservation" => ds.dir().set_reservation(tx, now),
            "refquota" => ds.refquota.store(now, Ordering::Relaxed),
            "refreservation" => self.set_refreservation(tx, ds, now),
            _ => {}
        }
        // As in OpenZFS this one counts from when it is asked for, not from the first block.
        if let ("compression", Setting::Local(v) | Setting::Received(v)) = (name, s)
            && v.as_u64().and_then(|v| feature_of(name, v)) == Some("zstd_compress")
            // What was received may ask for more than the pool has.
            && self.feature_enabled("zstd_compress")
        {
            self.activate_feature(tx, ds, "zstd_compress").await?;
        }
        Ok(())
    }

    pub(super) fn set_refreservation(&self, tx: &Tx, ds: &Arc<DslDataset>, new: u64) {
        let unique = ds.phys().unique_bytes;
        let old = ds.reserved.swap(new, Ordering::Relaxed);
        let used = unique.max(new).wrapping_sub(unique.max(old)) as i64;
        ds.dir().diduse(tx, DD_USED_REFRSRV, Delta { used, ..Delta::default() });
    }

    /// Tells the open objsets of a dir and below how to write from now on.
    pub(super) async fn props_changed(&self, dir: &Arc<DslDir>) -> Result<()> {
        for ds in self.open_datasets() {
            let Some(os) = ds.open_objset() else { continue };
            if ds.dir().ancestry().iter().any(|d| d.id == dir.id) {
                // This comes behind changes. That something of another dataset cannot be read is no
                // reason to stop the pool.
                match self.write_props(&ds).await {
                    Ok(props) => os.set_props(props),
                    Err(e) => {
                        tracing::warn!(dataset = %ds.name(), error = %e, "it is written as before");
                    }
                }
            }
        }
        Ok(())
    }
}

/// A ZAP has room for a property's name, with what is put behind that of a received one.
fn name_length_check(name: &str, s: &Setting) -> Result<()> {
    let more = if matches!(s, Setting::Received(_)) { RECVD.len() } else { 0 };
    match name.len() + more >= crate::zap::ZAP_MAXNAMELEN {
        true => Err(Error::os(Errno::NameTooLong, format!("property name '{name}' is too long"))),
        false => Ok(()),
    }
}

async fn collect(
    zap: &Zap,
    out: &mut BTreeMap<String, PropValue>,
    wanted: impl Fn(&str) -> bool,
    source: impl Fn(PropSource) -> PropSource,
) -> Result<()> {
    let all = zap.entries().await?;
    let local = all.iter().filter(|e| !e.name.contains(&b'$'));
    let mut found: Vec<(String, PropValue)> = local
        .map(|e| {
            (
                e.name_str().into_owned(),
                PropValue { value: e.value.clone(), source: source(PropSource::Local) },
            )
        })
        .collect();
    for e in &all {
        let name = e.name_str();
        let Some(base) = name.strip_suffix(RECVD) else { continue };
        let inherit = format!("{base}{INHERIT}");
        if !all.iter().any(|o| o.name_str() == inherit) && !found.iter().any(|(n, _)| n == base) {
            let v = PropValue { value: e.value.clone(), source: source(PropSource::Received) };
            found.push((base.to_owned(), v));
        }
    }
    for (name, v) in found {
        if wanted(&name) {
            out.entry(name).or_insert(v);
        }
    }
    Ok(())
}
