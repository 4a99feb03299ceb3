//! Properties in people's words: `recordsize=1M`, `compression=zstd`, `org:owner=me`.
//!
//! The table of them is that of the commands (`zilla_control::props`), so a word means the same
//! here, and is refused with the same sentence.

use crate::make::{Settings, number};
use std::collections::BTreeMap;
use zilla_control::props::{self, PropKind, PropType, TypedValue, Types};
use zilla_control::{ApiError, ErrorCode};
use zilla_core::dsl::{DslDataset, DslPool, PropSource, Setting};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::zap::Value;

/// Where a property's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nobody has set it.
    Default,
    /// Set on the dataset itself.
    Local,
    /// Set on the dataset of this name, above it.
    Inherited(String),
    /// Came with a stream.
    Received,
}

/// A property's value, in the words that set it, and where it comes from. Numbers are plain:
/// `1048576` rather than `1M`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// The value.
    pub value: String,
    /// Who set it.
    pub source: Source,
}

/// Settings that would have to be heeded and are not: better refused than quietly ignored.
fn supported(name: &str, value: &TypedValue) -> bool {
    match (name, value) {
        ("encryption" | "keyformat", value) => {
            matches!(value, TypedValue::Num(0)) || matches!(value, TypedValue::Str(s) if s == "none")
        }
        ("context" | "fscontext" | "defcontext" | "rootcontext" | "mlslabel", TypedValue::Str(text)) => {
            text == "none"
        }
        _ => true,
    }
}

/// Words as they lie on disk. `types`: what the dataset is; `creating`: what is settled once may be
/// among them.
pub fn settings(
    words: &BTreeMap<String, String>,
    types: Types,
    creating: bool,
) -> std::result::Result<Settings, ApiError> {
    let mut all = Vec::new();
    for (name, text) in words {
        let (kind, value) = props::parse_dataset_prop(name, text, types, creating, None)?;
        let name = match kind {
            PropType::Native(desc) => desc.name.to_owned(),
            // Kept in a file system, and taken out of the words where one is set or made.
            PropType::UserQuota => {
                let what = format!("'{name}' cannot be set here");
                return Err(ApiError::with(ErrorCode::PropType, what));
            }
            _ => name.clone(),
        };
        if !supported(&name, &value) {
            let what = format!("'{name}={text}' is not supported by zilla yet");
            return Err(ApiError::with(ErrorCode::Unsupported, what));
        }
        let value = match value {
            TypedValue::Num(n) => Value::u64(n),
            TypedValue::Str(text) => Value::string(&text),
        };
        all.push((name, Setting::Local(value)));
    }
    // What is to be normalized must be UTF-8.
    if number(&all, "normalization").is_some_and(|n| n != 0) && number(&all, "utf8only") == Some(0) {
        let what = "'utf8only' must be set 'on' if normalization chosen";
        return Err(ApiError::with(ErrorCode::BadProp, what));
    }
    Ok(all)
}

/// The same for those who know only this crate's errors.
pub(crate) fn parsed(words: &[(&str, &str)], types: Types, creating: bool) -> Result<Settings> {
    let words = words.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    settings(&words, types, creating).map_err(refused)
}

pub(crate) fn refused(e: ApiError) -> Error {
    let errno = match e.code {
        ErrorCode::Unsupported => Errno::NotSup,
        _ => Errno::Inval,
    };
    Error::os(errno, e.to_string())
}

/// A property of a dataset; None if there is none of that name, or if it is a figure that nobody
/// sets.
pub(crate) async fn property(dsl: &DslPool, ds: &DslDataset, name: &str) -> Result<Option<Property>> {
    let desc = props::dataset_prop(name);
    let name = desc.map_or(name, |d| d.name);
    if let Some(set) = dsl.prop(ds, name).await? {
        let source = match set.source {
            PropSource::Local => Source::Local,
            PropSource::Received => Source::Received,
            PropSource::Inherited(from) => Source::Inherited(from),
        };
        let word = |n: u64| match desc.filter(|d| d.kind == PropKind::Index) {
            Some(desc) => desc.word_of(n).map_or_else(|| n.to_string(), str::to_owned),
            None => n.to_string(),
        };
        let value = match set.value.as_u64() {
            Some(n) => word(n),
            None => set.value.as_str().unwrap_or_default().to_owned(),
        };
        return Ok(Some(Property { value, source }));
    }
    let default = desc.filter(|d| !d.readonly() || d.setonce()).and_then(props::PropDesc::default_value);
    Ok(default.map(|value| Property { value, source: Source::Default }))
}
