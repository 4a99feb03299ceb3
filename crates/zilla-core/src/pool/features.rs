//! Feature flags: which are enabled, how many things use each, and whether a pool's can be served.
//!
//! On disk they are ZAPs in the MOS, guid to count: `features_for_read` (software that lacks one
//! cannot read the pool) and `features_for_write` (it can read but not write). A feature that is
//! absent is disabled, 0 is enabled, more is active. An uncounted change would let older software
//! corrupt the pool, so counts change only in the syncing context, in the txg that makes them true.

use crate::dmu::Objset;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zap::{CreateOpts, Value, Zap};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_ondisk::feature::{self, FEATURES, Feature};
use zilla_ondisk::object_type::DMU_OTN_ZAP_METADATA;

/// The features zilla implements, by short name: what a pool it creates enables.
pub const SUPPORTED: &[&str] = &[
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    // As in OpenZFS on Linux nothing ever uses it, and pools are expected to have it.
    "multi_vdev_crash_dump",
    "spacemap_histogram",
    "enabled_txg",
    "hole_birth",
    "spacemap_v2",
    "extensible_dataset",
    "bookmarks",
    "bookmark_v2",
    "bookmark_written",
    "filesystem_limits",
    "embedded_data",
    "log_spacemap",
    "large_blocks",
    "large_dnode",
    "sha512",
    "skein",
    "edonr",
    "userobj_accounting",
    "project_quota",
    "allocation_classes",
    "zstd_compress",
    "head_errlog",
    "blake3",
    "vdev_zaps_v2",
    "zilsaxattr",
    "encryption",
    "block_cloning",
    "zpool_checkpoint",
    "fast_dedup",
    "device_removal",
    "obsolete_counts",
    "draid",
    "longname",
    "redaction_bookmarks",
    "redacted_datasets",
    "redaction_list_spill",
    "raidz_expansion",
    "large_microzap",
    "livelist",
    "device_rebuild",
    "resilver_defer",
];

const FOR_READ: &str = "features_for_read";
const FOR_WRITE: &str = "features_for_write";
const DESCRIPTIONS: &str = "feature_descriptions";
const ENABLED_TXG: &str = "feature_enabled_txg";

#[derive(Default)]
struct State {
    /// Guid to count, of everything either ZAP lists (unknown features too).
    counts: BTreeMap<String, u64>,
    for_read: u64,
    for_write: u64,
    descriptions: u64,
    enabled_txg: u64,
}

#[derive(Default)]
pub struct Features {
    state: Mutex<State>,
}

fn known(name: &str) -> &'static Feature {
    match feature::by_name(name) {
        Some(f) => f,
        None => unreachable!("{name} is not a feature's name"),
    }
}

impl Features {
    pub fn is_enabled(&self, name: &str) -> bool {
        self.state.lock().counts.contains_key(known(name).guid)
    }

    pub fn is_active(&self, name: &str) -> bool {
        self.count(name) > 0
    }

    pub fn count(&self, name: &str) -> u64 {
        self.state.lock().counts.get(known(name).guid).copied().unwrap_or(0)
    }

    /// All listed features: guid and count.
    pub fn list(&self) -> Vec<(String, u64)> {
        self.state.lock().counts.iter().map(|(g, c)| (g.clone(), *c)).collect()
    }

    /// Guids that labels must name: active ones without which the MOS cannot be read.
    pub fn for_labels(&self) -> Vec<&'static str> {
        FEATURES.iter().filter(|f| f.mos() && self.is_active(f.name)).map(|f| f.guid).collect()
    }

    /// Makes the feature ZAPs of a new pool.
    pub async fn create(&self, mos: &Arc<Objset>, directory: &Zap, tx: &Tx) -> Result<()> {
        let opts = CreateOpts::default();
        for name in [FOR_READ, FOR_WRITE, DESCRIPTIONS] {
            let zap = Zap::make(mos, tx, DMU_OTN_ZAP_METADATA, &opts).await?;
            directory.insert_u64(tx, name, zap.id()).await?;
            let mut st = self.state.lock();
            match name {
                FOR_READ => st.for_read = zap.id(),
                FOR_WRITE => st.for_write = zap.id(),
                _ => st.descriptions = zap.id(),
            }
        }
        Ok(())
    }

    /// Reads an existing pool's features. Pools before version 5000 have none.
    pub async fn load(&self, mos: &Arc<Objset>, directory: &Zap) -> Result<()> {
        let mut st = State::default();
        for name in [FOR_READ, FOR_WRITE] {
            let Some(id) = directory.try_get_u64(name).await? else { continue };
            let zap = Zap::open(mos, id).await?;
            for e in zap.entries().await? {
                st.counts.insert(e.name_str().into_owned(), e.value.as_u64().unwrap_or(0));
            }
            if name == FOR_READ { st.for_read = id } else { st.for_write = id }
        }
        st.descriptions = directory.try_get_u64(DESCRIPTIONS).await?.unwrap_or(0);
        st.enabled_txg = directory.try_get_u64(ENABLED_TXG).await?.unwrap_or(0);
        *self.state.lock() = st;
        Ok(())
    }

    /// Why the pool cannot be opened as asked for, if it cannot.
    pub async fn check(&self, mos: &Arc<Objset>, write: bool) -> Result<()> {
        let (for_read, for_write) = {
            let st = self.state.lock();
            (st.for_read, st.for_write)
        };
        let mut lacking = (Vec::new(), Vec::new());
        for (id, only_write) in [(for_read, false), (for_write, true)] {
            if id == 0 {
                continue;
            }
            for e in Zap::open(mos, id).await?.entries().await? {
                let guid = e.name_str().into_owned();
                if e.value.as_u64().unwrap_or(0) == 0 || can_serve(&guid) {
                    continue;
                }
                let name = feature::by_guid(&guid).map_or(guid.clone(), |f| format!("{guid} ({})", f.name));
                if only_write { lacking.1.push(name) } else { lacking.0.push(name) }
            }
        }
        if !lacking.0.is_empty() {
            let what =
                format!("the pool uses features that zilla does not support: {}", lacking.0.join(", "));
            return Err(Error::os(Errno::NotSup, what));
        }
        if write && !lacking.1.is_empty() {
            let what = format!(
                "the pool uses features that zilla can only read: {}; import it with -o readonly=on",
                lacking.1.join(", ")
            );
            return Err(Error::os(Errno::NotSup, what));
        }
        Ok(())
    }

    /// Enables a feature (and what it depends on).
    pub async fn enable(&self, mos: &Arc<Objset>, directory: &Zap, tx: &Tx, name: &str) -> Result<()> {
        let f = known(name);
        if self.is_enabled(name) {
            return Ok(());
        }
        for dep in f.depends {
            Box::pin(self.enable(mos, directory, tx, dep)).await?;
        }
        let descriptions = self.state.lock().descriptions;
        if descriptions != 0 {
            let mut text = f.description.as_bytes().to_vec();
            text.push(0);
            Zap::open(mos, descriptions).await?.set(tx, f.guid, &Value::bytes(&text)).await?;
        }
        self.write(mos, tx, f, u64::from(f.activate_on_enable())).await?;
        if self.is_enabled("enabled_txg") {
            let mut id = self.state.lock().enabled_txg;
            if id == 0 {
                let zap = Zap::make(mos, tx, DMU_OTN_ZAP_METADATA, &CreateOpts::default()).await?;
                id = zap.id();
                directory.insert_u64(tx, ENABLED_TXG, id).await?;
                self.state.lock().enabled_txg = id;
            }
            self.add(mos, tx, "enabled_txg", 1).await?;
            Zap::open(mos, id).await?.set_u64(tx, f.guid, tx.txg().0).await?;
        }
        Ok(())
    }

    /// The objects in the MOS that count the uses.
    pub(crate) fn objects(&self) -> [u64; 2] {
        let st = self.state.lock();
        [st.for_read, st.for_write]
    }

    /// Counts one use more, or one less.
    pub async fn add(&self, mos: &Arc<Objset>, tx: &Tx, name: &str, delta: i64) -> Result<()> {
        let f = known(name);
        let Some(now) = self.state.lock().counts.get(f.guid).copied() else {
            return Err(Error::os(Errno::NotSup, format!("feature {name} is not enabled in this pool")));
        };
        let Some(next) = now.checked_add_signed(delta) else {
            return Err(Error::corrupt(
                None,
                "features",
                format!("{name} would be used by {now}{delta:+} things"),
            ));
        };
        self.write(mos, tx, f, next).await
    }

    async fn write(&self, mos: &Arc<Objset>, tx: &Tx, f: &'static Feature, count: u64) -> Result<()> {
        let id = {
            let st = self.state.lock();
            if f.readonly_compat() { st.for_write } else { st.for_read }
        };
        if id == 0 {
            return Err(Error::os(Errno::NotSup, "the pool's version has no feature flags"));
        }
        Zap::open(mos, id).await?.set_u64(tx, f.guid, count).await?;
        self.state.lock().counts.insert(f.guid.to_string(), count);
        Ok(())
    }
}

/// Whether a pool that uses this feature can be opened.
pub fn can_serve(guid: &str) -> bool {
    feature::by_guid(guid).is_some_and(|f| SUPPORTED.contains(&f.name))
}
