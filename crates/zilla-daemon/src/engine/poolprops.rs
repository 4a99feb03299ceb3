//! Properties of pools: what they are, and `zpool set`.
//!
//! Those that are set lie in a ZAP of the MOS (`pool_props`), numbers as numbers, words as their
//! numbers, strings with their NUL. The rest is counted.

use super::errors::{Answer, of_pool};
use super::pool::Pool;
use super::values::ratio;
use super::{Engine, Serves};
use std::collections::BTreeMap;
use std::path::Path;
use zilla::Value;
use zilla::error::Result;
use zilla::manage::FailMode;
use zilla_control::props::{self, POOL_PROPS, PoolPropContext, PropAttr, PropKind, PropType, TypedValue};
use zilla_control::types::{PoolInfo, PoolSet, PropValue, Source};
use zilla_control::{ApiError, Caller, ErrorCode};

impl Engine {
    /// All properties, as `-p` prints them.
    pub(super) async fn pool_props(
        &self,
        pool: &Pool,
        info: &PoolInfo,
    ) -> Result<BTreeMap<String, PropValue>> {
        let stored = pool.stored_props().await?;
        let stats = &info.root.stats;
        let percent = |part: u64, whole: u64| u128::from(part) * 100 / u128::from(whole.max(1));
        let kept = pool.zilla.checkpoint_stat().map_or(0, |c| c.space);
        let (cloned, dedup) = (pool.zilla.cloned_space(), pool.zilla.dedup());
        let hundredths = |part: u64, whole: u64| match whole {
            0 => "1.00".to_owned(),
            _ => ratio((u128::from(part) * 100 / u128::from(whole)) as u64),
        };
        let mut all = BTreeMap::new();
        for desc in POOL_PROPS {
            let counted = match desc.name {
                "size" => stats.space.to_string(),
                "capacity" => percent(stats.alloc, stats.space).to_string(),
                "health" => info.health.as_str().to_owned(),
                "guid" => info.guid.to_string(),
                "load_guid" => pool.load_guid.to_string(),
                "free" => stats.space.saturating_sub(stats.alloc).to_string(),
                "allocated" => stats.alloc.to_string(),
                "readonly" => if pool.readonly() { "on" } else { "off" }.to_owned(),
                "fragmentation" => stats.fragmentation.map_or_else(|| "-".to_owned(), |f| f.to_string()),
                "freeing" => pool.zilla.freeing().await?.to_string(),
                "expandsize" if stats.esize > 0 => stats.esize.to_string(),
                "checkpoint" if kept > 0 => kept.to_string(),
                "expandsize" | "checkpoint" => "-".to_owned(),
                "last_scrubbed_txg" => pool.zilla.last_scrubbed_txg().await?.to_string(),
                "dedupratio" => hundredths(dedup.ref_dsize, dedup.dsize),
                "bcloneratio" => hundredths(cloned.0 + cloned.1, cloned.0),
                "bcloneused" => cloned.0.to_string(),
                "bclonesaved" => cloned.1.to_string(),
                "dedup_table_size" => dedup.table_size.to_string(),
                "leaked" => pool.zilla.leaked().await?.to_string(),
                _ => String::new(),
            };
            if !counted.is_empty() {
                all.insert(desc.name.to_owned(), PropValue::new(counted, Source::None));
                continue;
            }
            let value = match desc.name {
                "altroot" => match &pool.altroot {
                    Some(root) => PropValue::new(root.as_str(), Source::Local),
                    None => PropValue::new("-", Source::Default),
                },
                "cachefile" => match &*pool.cachefile.lock() {
                    Some(file) if Path::new(file) != self.handle.state_dir().cache_file() => {
                        PropValue::new(file.as_str(), Source::Local)
                    }
                    _ => PropValue::new("-", Source::Default),
                },
                "compatibility" => match pool.zilla.compatibility() {
                    Some(sets) => PropValue::new(sets, Source::Local),
                    None => PropValue::new("off", Source::Default),
                },
                "comment" => match pool.zilla.comment() {
                    Some(text) => PropValue::new(text, Source::Local),
                    None => PropValue::new("-", Source::Default),
                },
                "version" if info.version == zilla_control::status::SPA_VERSION => {
                    PropValue::new("-", Source::Default)
                }
                "version" => PropValue::new(info.version.to_string(), Source::Local),
                "dedup_table_quota" if !stored.contains_key(desc.name) => {
                    PropValue::new("auto", Source::Default)
                }
                _ if !desc.visible => continue,
                name => {
                    let default = desc.default_value().filter(|t| !t.is_empty());
                    match stored.get(name) {
                        // As in OpenZFS what is the default is told to be that, whoever said it.
                        Some(text) if default.as_ref() != Some(text) => {
                            PropValue::new(text.as_str(), Source::Local)
                        }
                        _ => PropValue::new(default.unwrap_or_else(|| "-".to_owned()), Source::Default),
                    }
                }
            };
            all.insert(desc.name.to_owned(), value);
        }
        for (name, text) in stored.into_iter().filter(|(name, _)| props::is_user_prop(name)) {
            all.insert(name, PropValue::new(text, Source::Local));
        }
        Ok(all)
    }
}

impl Serves<PoolSet> for Engine {
    async fn serve(&self, _: &Caller, r: PoolSet) -> Answer<()> {
        let pool = self.pool(&r.name)?;
        // (The cache file's place is kept beside the pool.)
        let beside = r.vdev.is_none() && r.property == "cachefile";
        if pool.readonly() && !beside {
            return Err(ErrorCode::PoolReadonly.into());
        }
        if r.vdev.is_some() {
            return self.set_vdev(&pool, &r).await;
        }
        let version = pool.zilla.version();
        let (kind, value) = props::parse_pool_prop(&r.property, &r.value, PoolPropContext::Set, version)?;
        heeded(&r.property)?;
        // These count at once.
        if !matches!(r.property.as_str(), "failmode" | "cachefile") {
            pool.check_running()?;
        }
        match (&kind, r.property.as_str()) {
            (PropType::Native(_), "cachefile") => {
                let _changes = self.changes.lock().await;
                *pool.cachefile.lock() = Some(r.value).filter(|file| !file.is_empty());
                self.save_cache().await;
                Ok(())
            }
            (PropType::Native(_), "bootfs") => self.set_bootfs(&pool, &r.value).await,
            (_, name) => {
                let cached = matches!(name, "comment" | "compatibility" | "version");
                pool.take_prop(&Given { name: r.property, text: r.value, kind, value }).await?;
                if cached {
                    let _changes = self.changes.lock().await;
                    self.save_cache().await;
                }
                Ok(())
            }
        }
    }
}

/// A property with its value, as it was given and as it is meant.
pub(super) struct Given {
    name: String,
    text: String,
    kind: PropType,
    value: TypedValue,
}

impl Given {
    /// Whether the pool keeps it, and it does not only say how it is opened.
    fn is_stored(&self) -> bool {
        !matches!(self.name.as_str(), "altroot" | "cachefile" | "readonly")
    }
}

/// A pool that is only read can be given nothing to keep. (OpenZFS forgets it without a word.)
pub(super) fn check_readonly(all: &[Given]) -> Answer<()> {
    match all.iter().find(|given| given.is_stored()) {
        None => Ok(()),
        Some(given) => {
            let what = format!("property '{}' cannot be set in a read-only pool", given.name);
            Err(ApiError::with(ErrorCode::BadProp, what))
        }
    }
}

/// Properties that a pool of a version is given as it comes: at its import, or when it is split
/// off.
pub(super) fn given(properties: &BTreeMap<String, String>, version: u64) -> Answer<Vec<Given>> {
    let mut all = Vec::new();
    for (name, text) in properties {
        let (kind, value) = props::parse_pool_prop(name, text, PoolPropContext::Import, version)?;
        heeded(name)?;
        all.push(Given { name: name.clone(), text: text.clone(), kind, value });
    }
    Ok(all)
}

/// Refuses what this host lacks something for.
pub(super) fn heeded(name: &str) -> Answer<()> {
    let name = props::pool_prop(name).map_or(name, |desc| desc.name);
    if name == "multihost" && super::host::set_id().is_none() {
        return Err(ApiError::with(ErrorCode::BadProp, "requires a non-zero system hostid"));
    }
    Ok(())
}

/// What `failmode` is set to.
pub(super) fn fail_mode(value: &TypedValue) -> Answer<FailMode> {
    match value {
        TypedValue::Num(0) => Ok(FailMode::Wait),
        TypedValue::Num(1) => Ok(FailMode::Continue),
        _ => {
            let what = "'failmode=panic' is not supported by zilla: it would end the service of all pools";
            Err(ApiError::with(ErrorCode::Unsupported, what))
        }
    }
}

fn suspended() -> ApiError {
    ApiError::with(ErrorCode::PoolUnavail, "pool I/O is currently suspended")
}

impl Pool {
    /// Gives it what it was to come with. What says how it is opened counts already.
    pub(super) async fn take_given(&self, all: &[Given]) -> Answer<()> {
        let taken = async {
            for given in all.iter().filter(|given| given.is_stored()) {
                self.take_prop(given).await?;
            }
            Ok(())
        };
        self.unless_suspended(taken).await.unwrap_or_else(|_| Err(suspended()))
    }

    /// Does something with a pool that may be suspended meanwhile, and is not waited for then:
    /// where it is not in the table yet, or nobody is served, nobody could clear it. The error
    /// says why it is suspended.
    pub(super) async fn unless_suspended<T>(&self, work: impl Future<Output = T>) -> zilla::error::Result<T> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            why = self.zilla.until_suspended() => Err(why),
        }
    }

    async fn take_prop(&self, given: &Given) -> Answer<()> {
        match (&given.kind, given.name.as_str()) {
            (PropType::Feature, name) => {
                let feature = name.trim_start_matches("feature@").to_owned();
                self.enable_features(vec![feature]).await
            }
            (PropType::Native(_), "comment") => {
                self.zilla.set_comment(&given.text);
                self.zilla.sync().await.map_err(of_pool)
            }
            (PropType::Native(_), "compatibility") => {
                self.zilla.set_compatibility(&given.text);
                self.zilla.sync().await.map_err(of_pool)
            }
            (PropType::Native(_), "version") => match given.value {
                TypedValue::Num(version) => self.zilla.upgrade(version).await.map_err(of_pool),
                TypedValue::Str(_) => Err(ErrorCode::BadVersion.into()),
            },
            (_, name) => self.store_prop(name, &given.value).await,
        }
    }

    /// Whether `zfs list` shows snapshots unasked.
    pub(super) async fn lists_snapshots(&self) -> Result<bool> {
        Ok(self.stored_props().await?.get("listsnapshots").is_some_and(|on| on == "on"))
    }

    /// What new vdevs' sectors are to be, if the pool's property says.
    pub(super) async fn ashift(&self) -> Result<Option<u32>> {
        let said = self.stored_props().await?.get("ashift").and_then(|text| text.parse().ok());
        Ok(said.filter(|shift| *shift != 0))
    }

    /// Whether a new device in a failed one's place replaces it by itself.
    pub(super) async fn replaces_by_itself(&self) -> Result<bool> {
        Ok(self.stored_props().await?.get("autoreplace").is_some_and(|on| on == "on"))
    }

    /// Whether `zfs allow` counts.
    pub(super) async fn delegates(&self) -> Result<bool> {
        self.zilla.delegates().await
    }

    /// What was set, as `-p` prints it.
    async fn stored_props(&self) -> Result<BTreeMap<String, String>> {
        let mut all = BTreeMap::new();
        for (name, value) in self.zilla.stored_properties().await? {
            let desc = props::pool_prop(&name);
            let text = match (value.as_u64(), desc) {
                (Some(n), Some(desc)) if desc.kind == PropKind::Index => {
                    desc.word_of(n).map_or_else(|| n.to_string(), str::to_owned)
                }
                // The dataset may be gone.
                (Some(n), Some(desc)) if desc.name == "bootfs" => match self.zilla.by_id(n).await {
                    Ok(fs) if n != 0 => fs.name(),
                    _ => continue,
                },
                (Some(n), _) => n.to_string(),
                (None, _) => value.as_str().map(str::to_owned).unwrap_or_default(),
            };
            all.insert(name, text);
        }
        Ok(all)
    }

    /// Refuses what would wait for ever while the pool is suspended.
    pub(super) fn check_running(&self) -> Answer<()> {
        match self.zilla.suspended() {
            None => Ok(()),
            Some(_) => Err(suspended()),
        }
    }

    /// Sets a property in the MOS.
    pub(super) async fn store_prop(&self, name: &str, value: &TypedValue) -> Answer<()> {
        let Some((proper, stored)) = in_store(name, value)? else { return Ok(()) };
        if proper == "failmode" {
            // At once, also where the pool is suspended and the property has to wait.
            self.zilla.set_fail_mode(fail_mode(value)?);
        }
        self.check_running()?;
        let multihost = (proper == "multihost").then(|| is_on(value));
        let was = self.zilla.multihost();
        if multihost == Some(true) {
            // The txg that says it is on has its mark already.
            self.zilla.set_multihost(true, Some(super::host::host()));
        }
        let stored = self.zilla.store_property(&proper, stored).await.map_err(of_pool);
        let back = multihost == Some(true) && !was && stored.is_err();
        if back || multihost == Some(false) && stored.is_ok() {
            self.zilla.set_multihost(false, None);
        }
        stored?;
        if multihost == Some(false) {
            self.zilla.sync().await.map_err(of_pool)?;
        }
        self.apply_prop(&proper, value).await
    }

    /// What the running pool does differently with a property that is stored.
    pub(super) async fn apply_prop(&self, proper: &str, value: &TypedValue) -> Answer<()> {
        match (proper, value) {
            ("failmode", value) => self.zilla.set_fail_mode(fail_mode(value)?),
            ("dedup_table_quota", TypedValue::Num(n)) => self.zilla.set_dedup_quota(*n),
            ("autotrim", value) => self.zilla.set_autotrim(is_on(value)),
            ("autoexpand", value) => self.zilla.set_autoexpand(is_on(value)).await.map_err(of_pool)?,
            _ => {}
        }
        Ok(())
    }
}

fn is_on(value: &TypedValue) -> bool {
    matches!(value, TypedValue::Num(n) if *n != 0)
}

/// Under which name, and how, a property is kept in the pool. `None` for the value: it is there no
/// more; `None` for all: nothing is kept of it.
pub(super) fn in_store(name: &str, value: &TypedValue) -> Answer<Option<(String, Option<Value>)>> {
    let proper = props::pool_prop(name).map_or(name, |d| d.name).to_owned();
    let settable = props::pool_prop(name).is_none_or(|d| d.attr == PropAttr::Default);
    if !settable {
        return Err(ApiError::with(ErrorCode::PropReadonly, format!("'{name}' is readonly")));
    }
    if proper == "dedupditto" {
        // OpenZFS takes it as well, and keeps nothing of it; the command says so.
        return Ok(None);
    }
    // A user property that is set to nothing is there no more.
    let removed = props::is_user_prop(&proper) && matches!(value, TypedValue::Str(text) if text.is_empty());
    let stored = match value {
        TypedValue::Num(n) => Value::u64(*n),
        TypedValue::Str(text) => Value::string(text),
    };
    Ok(Some((proper, (!removed).then_some(stored))))
}
