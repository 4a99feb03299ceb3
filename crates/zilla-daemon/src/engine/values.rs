//! Properties of datasets: from what lies on disk to what the commands print.
//!
//! Most are settings, found on the dataset or above it; the rest is counted, or fixed in the file
//! system's master node.

use super::errors::{Answer, of};
use super::names::Names;
use super::pool::Pool;
use std::collections::BTreeMap;
use zilla::Value;
use zilla::error::Result;
use zilla::stored::{self, PropSource, Setting};
use zilla::tree::{self, DatasetRef};
use zilla_control::props::{self, DATASET_PROPS, PropDesc, PropKind};
use zilla_control::types::{DatasetInfo, DatasetKind, PropValue, Source};
use zilla_ondisk::enums::ObjsetType;

/// Why what is a container's is not mounted.
pub const ZONED: &str = "dataset is exported to a local zone";

/// What was set on a dataset or above it.
pub struct Settings {
    name: String,
    all: BTreeMap<String, stored::PropValue>,
}

/// Where a file system is to be mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mountpoint {
    None,
    Legacy,
    At(String),
}

impl Settings {
    pub async fn of(ds: &DatasetRef) -> Result<Settings> {
        Ok(Settings { name: ds.name(), all: ds.properties().await? })
    }

    /// A number or word, or its default.
    pub fn num(&self, name: &str) -> u64 {
        let default = || match props::dataset_prop(name).map(|d| d.default) {
            Some(props::PropDefault::Num(n)) => n,
            _ => 0,
        };
        self.all.get(name).and_then(|v| v.value.as_u64()).unwrap_or_else(default)
    }

    /// `canmount`, as far as another property does not say more.
    pub fn canmount(&self) -> u64 {
        if self.is_zoned() { 0 } else { self.num("canmount") }
    }

    /// Whether a file system is a container's to mount, and not this machine's.
    pub fn is_zoned(&self) -> bool {
        self.num("zoned") != 0
    }

    /// A text that was set.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.all.get(name)?.value.as_str()
    }

    /// Set on the dataset itself.
    pub fn is_own(&self, name: &str) -> bool {
        self.all.get(name).is_some_and(|v| !matches!(v.source, PropSource::Inherited(_)))
    }

    /// What makes a setting again as it is now.
    pub fn again(&self, name: &str) -> Setting {
        match self.all.get(name) {
            Some(stored::PropValue { value, source: PropSource::Local }) => Setting::Local(value.clone()),
            Some(stored::PropValue { source: PropSource::Received, .. }) => Setting::Revert,
            _ => Setting::Inherit,
        }
    }

    /// The setting as it is printed, with its source.
    fn get(&self, desc: &PropDesc) -> Option<PropValue> {
        let set = self.all.get(desc.name)?;
        Some(shown(text(desc, &set.value), &set.source))
    }

    /// Inherited from above, the way from there is added.
    pub fn mountpoint(&self) -> (Mountpoint, Source) {
        let set = self.all.get("mountpoint");
        let Some((value, from)) = set.and_then(|v| Some((v.value.as_str()?, &v.source))) else {
            return (Mountpoint::At(format!("/{}", self.name)), Source::Default);
        };
        let point = match (value, from) {
            ("none", _) => Mountpoint::None,
            ("legacy", _) => Mountpoint::Legacy,
            (path, PropSource::Inherited(above)) => {
                let rest = self.name.strip_prefix(above.as_str()).unwrap_or_default();
                Mountpoint::At(format!("{}{rest}", path.trim_end_matches('/')))
            }
            (path, _) => Mountpoint::At(path.to_owned()),
        };
        (point, source(from))
    }

    /// The mountpoint below the pool's alternate root.
    pub fn place(&self, pool: &Pool) -> Mountpoint {
        match (self.mountpoint().0, &pool.altroot) {
            (Mountpoint::At(path), Some(root)) if root != "/" => {
                let path = if path == "/" { "" } else { &path };
                Mountpoint::At(format!("{}{path}", root.trim_end_matches('/')))
            }
            (point, _) => point,
        }
    }
}

/// A setting as it is printed. What was received and counts is also what was received.
fn shown(words: String, from: &PropSource) -> PropValue {
    let received = matches!(from, PropSource::Received).then(|| words.clone());
    PropValue { received, ..PropValue::new(words, source(from)) }
}

fn source(from: &PropSource) -> Source {
    match from {
        PropSource::Local => Source::Local,
        PropSource::Received => Source::Received,
        PropSource::Inherited(name) => Source::Inherited(name.clone()),
    }
}

/// A stored value in words.
fn text(desc: &PropDesc, value: &Value) -> String {
    match (desc.kind, value.as_u64()) {
        (PropKind::Index, Some(n)) => desc.word_of(n).map_or_else(|| n.to_string(), str::to_owned),
        (_, Some(n)) => number(desc, n),
        (_, None) => value.as_str().unwrap_or_default().to_owned(),
    }
}

/// Adds what streams brought of the properties `wanted`: where something else counts it has a row
/// for what does, and where nothing does one that says so.
pub(super) async fn received(ds: &DatasetRef, wanted: &[String], shown: &mut DatasetInfo) -> Result<()> {
    for (name, value) in ds.received_properties().await? {
        let words = match props::dataset_prop(&name) {
            Some(desc) => text(desc, &value),
            None => value.as_str().unwrap_or_default().to_owned(),
        };
        match shown.properties.get_mut(&name) {
            Some(known) => known.received = Some(words),
            None if wanted.contains(&name) => {
                let known = PropValue { received: Some(words), ..PropValue::new("-", Source::None) };
                shown.properties.insert(name, known);
            }
            None => {}
        }
    }
    Ok(())
}

fn number(desc: &PropDesc, n: u64) -> String {
    let limit =
        matches!(desc.name, "filesystem_limit" | "snapshot_limit" | "filesystem_count" | "snapshot_count");
    if limit && n == u64::MAX { "none".to_owned() } else { n.to_string() }
}

pub(super) fn ratio(hundredths: u64) -> String {
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// What is known of a dataset's key.
fn encrypted(desc: &PropDesc, of: &tree::Encryption) -> Option<PropValue> {
    let word = |n: u64| desc.word_of(n).map_or_else(|| n.to_string(), str::to_owned);
    let shown = match desc.name {
        "encryption" => word(of.suite),
        "keyformat" => word(of.keyformat),
        "encryptionroot" => of.root.clone(),
        "keystatus" => if of.loaded { "available" } else { "unavailable" }.to_owned(),
        "pbkdf2salt" => of.pbkdf2salt.to_string(),
        "keyguid" => of.keyguid.to_string(),
        _ => of.pbkdf2iters.to_string(),
    };
    Some(PropValue::new(shown, Source::None))
}

/// What was settled when a file system or volume was made.
type Fixed = BTreeMap<&'static str, u64>;

impl Pool {
    /// What a file system's `version` is.
    pub(super) async fn zpl_version(&self, ds: &DatasetRef) -> Result<Option<u64>> {
        Ok(ds.fixed_properties().await?.get("version").copied())
    }
}

/// The kind of a dataset that has contents.
pub fn kind_of(info: &tree::DatasetInfo) -> DatasetKind {
    match (info.snapshot, ObjsetType::from_number(info.os_type)) {
        (true, _) => DatasetKind::Snapshot,
        (false, Some(ObjsetType::Zvol)) => DatasetKind::Volume,
        _ => DatasetKind::Filesystem,
    }
}

impl Pool {
    /// A dataset with the properties of `wanted`; `all` stands for every one.
    pub async fn describe(&self, ds: &DatasetRef, wanted: &[String], names: &Names) -> Answer<DatasetInfo> {
        let name = ds.name();
        self.describe_now(ds, wanted, names).await.map_err(of(&name))
    }

    async fn describe_now(&self, ds: &DatasetRef, wanted: &[String], names: &Names) -> Result<DatasetInfo> {
        let i = ds.info().await?;
        let kind = kind_of(&i);
        let mut out = DatasetInfo {
            name: i.name.clone(),
            kind,
            guid: i.guid,
            createtxg: i.createtxg,
            creation: i.creation,
            properties: BTreeMap::new(),
        };
        if wanted.is_empty() {
            return Ok(out);
        }
        let all = wanted.iter().any(|w| w == "all");
        let settings = Settings::of(ds).await?;
        let fixed = match ds.is_locked().await {
            // The contents of an encrypted dataset are closed to us; what the pool says of it is
            // not.
            Ok(false) => ds.fixed_properties().await?,
            _ => Fixed::default(),
        };
        let is_volume = fixed.contains_key("volsize");
        for desc in DATASET_PROPS.iter().filter(|d| d.applies_to(props::types_of(kind))) {
            if !(all && desc.visible || wanted.iter().any(|w| w == desc.name)) {
                continue;
            }
            // A snapshot of a volume has neither files nor their properties.
            let of_files = desc.applies_to(props::FS) && !desc.applies_to(props::VOL);
            if i.snapshot && (is_volume && of_files || !is_volume && desc.name == "volsize") {
                continue;
            }
            if let Some(value) = self.value(desc, &i, &settings, &fixed).await? {
                out.properties.insert(desc.name.to_owned(), value);
            }
        }
        for (name, set) in &settings.all {
            if props::is_user_prop(name) && (all || wanted.contains(name)) {
                let value = set.value.as_str().unwrap_or_default();
                out.properties.insert(name.clone(), shown(value.to_owned(), &set.source));
            }
        }
        for name in wanted.iter().filter(|w| w.starts_with("written@") || w.starts_with("written#")) {
            if let Some(n) = self.written_since_name(ds, name).await? {
                out.properties.insert(name.clone(), PropValue::new(n.to_string(), Source::Local));
            }
        }
        out.properties.extend(self.account_properties(ds, wanted, names).await?);
        Ok(out)
    }

    /// What a mount's own option says instead of a property.
    fn temporary(&self, dataset: &str, property: &str, settings: &Settings) -> Option<bool> {
        let mounts = self.mounts();
        let on = mounts.get(dataset).filter(|m| !m.mount.is_going())?.temporary.get(property)?;
        (on != (settings.num(property) != 0)).then_some(on)
    }

    async fn value(
        &self,
        desc: &PropDesc,
        i: &tree::DatasetInfo,
        settings: &Settings,
        fixed: &Fixed,
    ) -> Result<Option<PropValue>> {
        let stat = |n: u64| Some(PropValue::new(n.to_string(), Source::None));
        let word = |w: &str| Some(PropValue::new(w, Source::None));
        // These are kept where they are counted too, and old pools have some only there.
        let own = |n: u64| {
            let unsaid = if n == 0 { Source::Default } else { Source::Local };
            let said = settings.get(desc).unwrap_or_else(|| PropValue::new("", unsaid));
            Some(PropValue { value: n.to_string(), ..said })
        };
        if let Some(on) = self.temporary(&i.name, desc.name, settings) {
            return Ok(Some(PropValue::new(if on { "on" } else { "off" }, Source::Temporary)));
        }
        Ok(match desc.name {
            "type" => word(kind_of(i).as_str()),
            "name" => word(&i.name),
            "creation" => stat(i.creation),
            "createtxg" => stat(i.createtxg),
            "guid" => stat(i.guid),
            "objsetid" => stat(i.id),
            "used" => stat(i.used),
            "available" => stat(i.available),
            "referenced" => stat(i.referenced),
            "compressratio" => word(&ratio(i.compressratio)),
            "refcompressratio" => word(&ratio(i.refcompressratio)),
            "usedbysnapshots" => stat(i.used_by_snapshots),
            "usedbydataset" => stat(i.used_by_dataset),
            "usedbychildren" => stat(i.used_by_children),
            "usedbyrefreservation" => stat(i.used_by_refreservation),
            "written" => stat(i.written),
            "logicalused" => stat(i.logical_used),
            "logicalreferenced" => stat(i.logical_referenced),
            "unique" => stat(i.unique),
            "userrefs" => stat(i.userrefs),
            "numclones" => stat(i.clones.len() as u64),
            "inconsistent" => stat(u64::from(i.inconsistent)),
            "useraccounting" => stat(1),
            "defer_destroy" => word(if i.defer_destroy { "on" } else { "off" }),
            "clones" => (!i.clones.is_empty()).then(|| PropValue::new(i.clones.join(","), Source::None)),
            "origin" => i.origin.as_deref().and_then(word),
            "mounted" => word(if self.mounted_at(&i.name).is_some() { "yes" } else { "no" }),
            "snapshots_changed" => i.snapshots_changed.and_then(|(seconds, _)| stat(seconds)),
            "filesystem_count" | "snapshot_count" => {
                let count =
                    if desc.name == "filesystem_count" { i.filesystem_count } else { i.snapshot_count };
                Some(match count {
                    Some(n) => PropValue::new(n.to_string(), Source::Local),
                    None => PropValue::new("none", Source::Default),
                })
            }
            "quota" => own(i.quota),
            "reservation" => own(i.reservation),
            "refquota" => own(i.refquota),
            "refreservation" => own(i.refreservation),
            "mountpoint" => {
                // What is set, also where it is mounted at another place, as in OpenZFS.
                let (point, from) = settings.mountpoint();
                let shown = match (point, settings.place(self)) {
                    (Mountpoint::None, _) => "none".to_owned(),
                    (Mountpoint::Legacy, _) => "legacy".to_owned(),
                    (_, Mountpoint::At(path)) => path,
                    (Mountpoint::At(path), _) => path,
                };
                Some(PropValue::new(shown, from))
            }
            "volsize" => fixed.get("volsize").map(|n| PropValue::new(n.to_string(), Source::Local)),
            "volblocksize" => fixed.get("volblocksize").map(|n| {
                let default = desc.default == props::PropDefault::Num(*n);
                PropValue::new(n.to_string(), if default { Source::Default } else { Source::None })
            }),
            "version" | "utf8only" | "normalization" | "casesensitivity" => {
                fixed.get(desc.name).and_then(|n| {
                    let text = desc.word_of(*n).map_or_else(|| n.to_string(), str::to_owned);
                    word(&text)
                })
            }
            "receive_resume_token" => match i.snapshot {
                true => None,
                false => self.zilla.resume_token(&i.name).await.as_deref().and_then(word),
            },
            "redact_snaps" => self.redact_snaps(&i.name).await.as_deref().and_then(word),
            "prevsnap" | "iscsioptions" | "stmf_sbd_lu" => settings.get(desc),
            "encryption" | "keyformat" | "pbkdf2iters" | "encryptionroot" | "keystatus" | "pbkdf2salt"
            | "keyguid"
                if i.encryption.is_some() =>
            {
                i.encryption.as_ref().and_then(|e| encrypted(desc, e))
            }
            "encryption" => Some(PropValue::new("off", Source::Default)),
            "ivsetguid" => {
                let guid = i.encryption.as_ref().and_then(|e| e.ivset);
                guid.map(|guid| PropValue::new(guid.to_string(), Source::None))
            }
            _ => match settings.get(desc) {
                Some(value) => Some(value),
                None if desc.attr == props::PropAttr::ReadOnly && desc.visible => None,
                None => match desc.default {
                    props::PropDefault::Num(n) if desc.kind == PropKind::Number => {
                        Some(PropValue::new(number(desc, n), Source::Default))
                    }
                    _ => desc.default_value().map(|text| PropValue::new(text, Source::Default)),
                },
            },
        })
    }
}
