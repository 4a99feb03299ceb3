//! Values of dataset properties for the eye.

use crate::fmt::time;
use zilla_control::props::nicenum::{nicebytes, nicenum};
use zilla_control::props::{self, PropKind};
use zilla_control::types::{DatasetInfo, PropValue, Source};

/// A dataset's property as printed; `literal` is `-p`. None: it has no such property.
pub fn get(dataset: &DatasetInfo, name: &str, literal: bool) -> Option<PropValue> {
    match name {
        "name" => return Some(PropValue::new(dataset.name.clone(), Source::None)),
        "type" => return Some(PropValue::new(dataset.kind.as_str(), Source::None)),
        _ => {}
    }
    let found = dataset.properties.get(name).cloned();
    let fixed = |n: u64| Some(PropValue::new(n.to_string(), Source::None));
    let mut prop = match name {
        // Always there, asked for or not.
        "guid" => found.or_else(|| fixed(dataset.guid))?,
        "createtxg" => found.or_else(|| fixed(dataset.createtxg))?,
        "creation" => found.or_else(|| fixed(dataset.creation))?,
        _ => found?,
    };
    if name == "snapshots_changed" && prop.value == "0" {
        return None;
    }
    let show = if literal { as_literal } else { nice };
    prop.value = show(name, &prop.value);
    prop.received = prop.received.as_deref().map(|raw| show(name, raw));
    Some(prop)
}

fn unlimited(name: &str) -> bool {
    matches!(name, "filesystem_limit" | "snapshot_limit" | "filesystem_count" | "snapshot_count")
}

fn as_literal(name: &str, raw: &str) -> String {
    // Without a limit there is no number to print, not even for scripts.
    if unlimited(name) && raw == u64::MAX.to_string() { "none".to_owned() } else { raw.to_owned() }
}

/// A raw value for the eye.
pub fn nice(name: &str, raw: &str) -> String {
    let Ok(number) = raw.parse::<u64>() else {
        return match name {
            "compressratio" | "refcompressratio" if raw != "-" => format!("{raw}x"),
            _ => raw.to_owned(),
        };
    };
    if props::is_userquota_prop(name) {
        let family = name.split('@').next().unwrap_or(name);
        return match number {
            0 if family.ends_with("quota") => "none".to_owned(),
            _ if family.contains("obj") => nicenum(number),
            _ => nicebytes(number),
        };
    }
    if props::is_written_prop(name) {
        return nicebytes(number);
    }
    match name {
        "creation" => time::creation(number),
        "snapshots_changed" => time::snapshots_changed(number),
        "quota" | "refquota" | "reservation" | "refreservation" => match number {
            0 => "none".to_owned(),
            _ => nicebytes(number),
        },
        _ if unlimited(name) => match number {
            u64::MAX => "none".to_owned(),
            _ => nicenum(number),
        },
        "compressratio" | "refcompressratio" => format!("{raw}x"),
        "guid" | "keyguid" | "ivsetguid" | "createtxg" | "objsetid" | "pbkdf2iters" => raw.to_owned(),
        "referenced"
        | "available"
        | "used"
        | "usedbysnapshots"
        | "usedbydataset"
        | "usedbyrefreservation"
        | "usedbychildren" => nicebytes(number),
        _ => match props::dataset_prop(name) {
            Some(desc) if desc.kind == PropKind::Number => nicenum(number),
            _ => raw.to_owned(),
        },
    }
}
