//! From a user's word to a property's typed value, with OpenZFS's complaints.

use super::{
    DATASET, FS, PropDesc, PropKind, SNAP, Types, VOL, ZAP_MAXNAMELEN, ZFS_MAXPROPLEN, dataset_prop,
    feature_by_name, is_feature_prop, is_user_prop, is_userquota_prop, is_written_prop, naming, nicenum,
    pool_prop,
};
use crate::error::{ApiError, ErrorCode};

/// Smallest and largest block.
const SPA_MINBLOCKSIZE: u64 = 512;
const SPA_MAXBLOCKSIZE: u64 = 16 << 20;
const ASHIFT_MIN: u64 = 9;
const ASHIFT_MAX: u64 = 16;
const ZPROP_MAX_COMMENT: usize = 32;
const MIN_PBKDF2_ITERATIONS: u64 = 100_000;

/// A property's value as it lies on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypedValue {
    Num(u64),
    Str(String),
}

/// What sort of property a name is.
#[derive(Debug, Clone, Copy)]
pub enum PropType {
    Native(&'static PropDesc),
    /// `module:name`
    User,
    /// `userquota@name` and its kin, settable
    UserQuota,
    /// `feature@name`
    Feature,
}

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::with(ErrorCode::BadProp, message)
}

/// `10G`, `1.5TiB`, `512`: a size with OpenZFS's suffixes.
pub fn parse_size(text: &str) -> Result<u64, ApiError> {
    let too_large = || bad("numeric value is too large");
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(bad(format!("bad numeric value '{text}'")));
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, rest) = text.split_at(digits);
    if let Some(fraction) = rest.strip_prefix('.') {
        let end = fraction.find(|c: char| !c.is_ascii_digit()).unwrap_or(fraction.len());
        let (fraction, suffix) = fraction.split_at(end);
        let shift = suffix_shift(suffix)?;
        let value: f64 = format!("0{whole}.{fraction}0").parse().map_err(|_| too_large())?;
        let value = value * 2f64.powi(shift);
        // 2^64 is the nearest double to the largest number that fits.
        if value >= u64::MAX as f64 {
            return Err(too_large());
        }
        return Ok(value as u64);
    }
    let number: u64 = whole.parse().map_err(|_| too_large())?;
    let shift = suffix_shift(rest)?;
    let shifted = if shift < 64 { number << shift } else { 0 };
    if shift >= 64 || shifted >> shift != number {
        return Err(too_large());
    }
    Ok(shifted)
}

/// `G`, `GB` and `GiB` are the same, in any case.
fn suffix_shift(suffix: &str) -> Result<i32, ApiError> {
    let upper = suffix.to_ascii_uppercase();
    let invalid = || bad(format!("invalid numeric suffix '{suffix}'"));
    let mut chars = upper.chars();
    let Some(first) = chars.next() else { return Ok(0) };
    let index = "BKMGTPEZ".find(first).ok_or_else(invalid)?;
    match chars.as_str() {
        "" => Ok(10 * index as i32),
        "B" | "IB" if first != 'B' => Ok(10 * index as i32),
        _ => Err(invalid()),
    }
}

/// A value for `desc` on an object of `types`: type, words and the special `none` and `auto`,
/// nothing that needs to know the pool.
pub fn parse_value(desc: &PropDesc, types: Types, text: &str) -> Result<TypedValue, ApiError> {
    match desc.kind {
        PropKind::String => {
            if text.len() >= ZFS_MAXPROPLEN {
                return Err(bad(format!("'{}' is too long", desc.name)));
            }
            Ok(TypedValue::Str(text.to_owned()))
        }
        PropKind::Index => match desc.index_of(text) {
            Some(n) => Ok(TypedValue::Num(n)),
            None => Err(bad(format!("'{}' must be one of '{}'", desc.name, desc.values))),
        },
        PropKind::Number => parse_number(desc, types, text).map(TypedValue::Num),
    }
}

fn parse_number(desc: &PropDesc, types: Types, text: &str) -> Result<u64, ApiError> {
    match text {
        "none" => Ok(match desc.name {
            "filesystem_limit" | "snapshot_limit" | "checksum_n" | "checksum_t" | "io_n" | "io_t"
            | "slow_io_n" | "slow_io_t" => u64::MAX,
            _ => 0,
        }),
        "auto" => match desc.name {
            "refreservation" if types & VOL != 0 => Ok(u64::MAX),
            "refreservation" => Err(bad(format!("'{}=auto' only allowed on volumes", desc.name))),
            "dedup_table_quota" => Ok(u64::MAX),
            _ => Err(bad(format!("'auto' is invalid value for '{}'", desc.name))),
        },
        _ => {
            let number = parse_size(text)?;
            match desc.name {
                "quota" | "refquota" if number == 0 && types & DATASET != 0 => {
                    Err(bad("use 'none' to disable quota/refquota"))
                }
                "dedup_table_quota" if number == 0 => Err(bad("use 'none' to disable ddt table quota")),
                _ => Ok(number),
            }
        }
    }
}

/// A dataset property to be set on a dataset of `types`. `creating`: set-once properties are still
/// open. `max_block`: the largest block of the pool (1 MiB without `large_blocks`), where it is
/// known.
pub fn parse_dataset_prop(
    name: &str,
    text: &str,
    types: Types,
    creating: bool,
    max_block: Option<u64>,
) -> Result<(PropType, TypedValue), ApiError> {
    let native = dataset_prop(name);
    if native.is_none() && is_user_prop(name) {
        if name.len() >= ZAP_MAXNAMELEN {
            return Err(bad(format!("property name '{name}' is too long")));
        }
        if text.len() >= ZFS_MAXPROPLEN * 2 {
            return Err(bad("property value too long"));
        }
        return Ok((PropType::User, TypedValue::Str(text.to_owned())));
    }
    if types == SNAP {
        return Err(ApiError::with(ErrorCode::PropType, "this property can not be modified for snapshots"));
    }
    let readonly = |name: &str| ApiError::with(ErrorCode::PropReadonly, format!("'{name}' is readonly"));
    if native.is_none() && is_userquota_prop(name) {
        let (family, who) = name.split_once('@').unwrap_or((name, ""));
        if who.is_empty() {
            return Err(bad(format!("'{name}' has an invalid user/group name")));
        }
        if !family.ends_with("quota") {
            return Err(readonly(name));
        }
        let number = if text == "none" { 0 } else { parse_size(text)? };
        return Ok((PropType::UserQuota, TypedValue::Num(number)));
    }
    if native.is_none() && is_written_prop(name) {
        return Err(readonly(name));
    }
    let Some(desc) = native else { return Err(bad(format!("invalid property '{name}'"))) };
    if !desc.applies_to(types) {
        return Err(ApiError::with(
            ErrorCode::PropType,
            format!("'{name}' does not apply to datasets of this type"),
        ));
    }
    if desc.readonly() && !(desc.setonce() && creating) {
        return Err(readonly(name));
    }
    let value = parse_value(desc, types, text)?;
    check_dataset_value(desc, &value, max_block)?;
    Ok((PropType::Native(desc), value))
}

fn check_dataset_value(desc: &PropDesc, value: &TypedValue, max_block: Option<u64>) -> Result<(), ApiError> {
    let name = desc.name;
    match (name, value) {
        ("volblocksize" | "recordsize", TypedValue::Num(n)) => {
            let max = max_block.unwrap_or(SPA_MAXBLOCKSIZE);
            if *n < SPA_MINBLOCKSIZE || *n > max || !n.is_power_of_two() {
                let max = nicenum::nicebytes(max);
                return Err(bad(format!("'{name}' must be power of 2 from 512B to {max}")));
            }
        }
        ("special_small_blocks", TypedValue::Num(n)) => {
            let max = max_block.unwrap_or(SPA_MAXBLOCKSIZE);
            if *n != 0 && (*n < SPA_MINBLOCKSIZE || *n > max || !n.is_power_of_two()) {
                let max = nicenum::nicebytes(max);
                return Err(bad(format!(
                    "invalid '{name}={n}' property: must be zero or a power of 2 from 512B to {max}"
                )));
            }
        }
        ("mlslabel", _) => return Err(bad("mlslabels are unsupported")),
        ("mountpoint", TypedValue::Str(path)) if path != "none" && path != "legacy" => {
            naming::check_mountpoint(path)?;
        }
        ("keylocation", TypedValue::Str(location)) => {
            let known = ["file:///", "https://", "http://"].iter().any(|p| location.starts_with(p));
            if !known && location != "none" && location != "prompt" {
                return Err(bad("invalid keylocation"));
            }
        }
        ("pbkdf2iters", TypedValue::Num(n)) if *n < MIN_PBKDF2_ITERATIONS => {
            return Err(bad(format!("minimum pbkdf2 iterations is {MIN_PBKDF2_ITERATIONS}")));
        }
        _ => {}
    }
    Ok(())
}

/// When a pool property is being set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolPropContext {
    Create,
    Import,
    Set,
}

/// A pool property to be set. `version`: the pool's, 1 where it is being made.
pub fn parse_pool_prop(
    name: &str,
    text: &str,
    context: PoolPropContext,
    version: u64,
) -> Result<(PropType, TypedValue), ApiError> {
    let native = pool_prop(name);
    if native.is_none() && is_feature_prop(name) {
        return parse_feature(name, text, context);
    }
    if native.is_none() && is_user_prop(name) {
        if name.len() >= ZAP_MAXNAMELEN {
            return Err(bad(format!("property name '{name}' is too long")));
        }
        if text.len() >= ZFS_MAXPROPLEN * 2 {
            return Err(bad(format!("property value '{text}' is too long")));
        }
        return Ok((PropType::User, TypedValue::Str(text.to_owned())));
    }
    let Some(desc) = native else { return Err(bad(format!("invalid property '{name}'"))) };
    if desc.attr == super::PropAttr::ReadOnly {
        return Err(ApiError::with(ErrorCode::PropReadonly, format!("'{name}' is readonly")));
    }
    if context != PoolPropContext::Create && desc.setonce() {
        return Err(bad(format!("property '{name}' can only be set at creation time")));
    }
    let value = parse_value(desc, super::POOL, text)?;
    check_pool_value(desc, &value, context, version)?;
    Ok((PropType::Native(desc), value))
}

fn parse_feature(
    name: &str,
    text: &str,
    context: PoolPropContext,
) -> Result<(PropType, TypedValue), ApiError> {
    let feature = name.split_once('@').map_or("", |(_, f)| f);
    if feature_by_name(feature).is_none() {
        return Err(bad(format!("feature '{feature}' unsupported by kernel")));
    }
    if text != "enabled" && text != "disabled" {
        return Err(bad(format!("property '{name}' can only be set to 'enabled' or 'disabled'")));
    }
    if context != PoolPropContext::Create && text == "disabled" {
        return Err(bad(format!("property '{name}' can only be set to 'disabled' at creation time")));
    }
    Ok((PropType::Feature, TypedValue::Str(text.to_owned())))
}

fn check_pool_value(
    desc: &PropDesc,
    value: &TypedValue,
    context: PoolPropContext,
    version: u64,
) -> Result<(), ApiError> {
    let name = desc.name;
    let bad_path = |message: String| Err(ApiError::with(ErrorCode::BadPath, message));
    match (name, value) {
        ("version", TypedValue::Num(n)) if *n < version || !((1..=28).contains(n) || *n == 5000) => {
            return Err(ApiError::with(
                ErrorCode::BadVersion,
                format!("property '{name}' number {n} is invalid."),
            ));
        }
        ("ashift", TypedValue::Num(n)) if *n != 0 && !(ASHIFT_MIN..=ASHIFT_MAX).contains(n) => {
            return Err(bad(format!(
                "property '{name}' number {n} is invalid, only values between {ASHIFT_MIN} and {ASHIFT_MAX} \
                 are allowed."
            )));
        }
        ("bootfs", _) if context != PoolPropContext::Set => {
            return Err(bad(format!("property '{name}' cannot be set at creation or import time")));
        }
        ("altroot", TypedValue::Str(path)) => {
            if context == PoolPropContext::Set {
                return Err(bad(format!("property '{name}' can only be set during pool creation or import")));
            }
            if !path.starts_with('/') {
                return bad_path(format!("bad alternate root '{path}'"));
            }
        }
        ("cachefile", TypedValue::Str(path)) if !path.is_empty() && path != "none" => {
            if !path.starts_with('/') {
                return bad_path(format!("property '{name}' must be empty, an absolute path, or 'none'"));
            }
            if path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..") {
                return bad_path(format!("'{path}' is not a valid file"));
            }
        }
        ("comment", TypedValue::Str(text)) => {
            if !text.bytes().all(|b| (b' '..=b'~').contains(&b)) {
                return Err(bad("comment may only have printable characters"));
            }
            if text.len() > ZPROP_MAX_COMMENT {
                return Err(bad(format!("comment must not exceed {ZPROP_MAX_COMMENT} characters")));
            }
        }
        ("readonly", _) if context != PoolPropContext::Import => {
            return Err(bad(format!("property '{name}' can only be set at import time")));
        }
        ("tname", _) if context != PoolPropContext::Create => {
            return Err(bad(format!("property '{name}' can only be set at creation time")));
        }
        _ => {}
    }
    Ok(())
}

/// Whether a property name can be inherited at all, for `zfs inherit`.
pub fn check_inherit(name: &str, received: bool) -> Result<(), ApiError> {
    match dataset_prop(name) {
        Some(desc) if desc.attr == super::PropAttr::ReadOnly => {
            Err(ApiError::with(ErrorCode::PropReadonly, format!("{name} property is read-only")))
        }
        Some(desc) if !desc.inheritable() && !received => {
            Err(ApiError::with(ErrorCode::PropNonInherit, format!("'{name}' property cannot be inherited")))
        }
        Some(_) => Ok(()),
        None if is_user_prop(name) => Ok(()),
        None => Err(bad(format!("invalid property '{name}'"))),
    }
}

/// Filesystems and volumes.
pub const HEADS: Types = FS | VOL;
