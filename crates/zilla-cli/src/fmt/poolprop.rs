//! Values of pool properties for the eye.

use super::vdev;
use zilla_control::props::nicenum::{nicebytes, nicenum};
use zilla_control::types::{PoolInfo, PropValue, Source};

/// A pool's property as printed; `literal` is `-p`. None: the pool has no such property.
pub fn get(pool: &PoolInfo, name: &str, literal: bool) -> Option<PropValue> {
    if name == "name" {
        return Some(PropValue::new(pool.name.clone(), Source::None));
    }
    if name == "health" {
        return Some(PropValue::new(vdev::pool_state(pool), Source::None));
    }
    if let Some(feature) = name.strip_prefix("feature@") {
        let found = pool.features.iter().find(|f| f.name == feature || f.guid == feature)?;
        return Some(PropValue::new(found.state.as_str(), Source::Local));
    }
    if let Some(guid) = name.strip_prefix("unsupported@") {
        let found = pool.features.iter().find(|f| f.guid == guid && !f.supported)?;
        let readonly = found.readonly_compatible;
        return Some(PropValue::new(if readonly { "readonly" } else { "inactive" }, Source::Local));
    }
    let prop = pool.properties.get(name)?;
    if literal {
        return Some(prop.clone());
    }
    Some(PropValue { value: nice(name, &prop.value), ..prop.clone() })
}

/// A raw value for the eye.
pub fn nice(name: &str, raw: &str) -> String {
    let Ok(number) = raw.parse::<u64>() else {
        return match name {
            "dedupratio" | "bcloneratio" if raw != "-" => format!("{raw}x"),
            _ => raw.to_owned(),
        };
    };
    match name {
        "size" | "allocated" | "free" | "freeing" | "leaked" | "ashift" | "maxblocksize" | "maxdnodesize"
        | "bclonesaved" | "bcloneused" | "dedup_table_size" | "dedupcached" => nicenum(number),
        "dedup_table_quota" => match number {
            0 => "none".to_owned(),
            u64::MAX => "auto".to_owned(),
            _ => nicenum(number),
        },
        "expandsize" | "checkpoint" => match number {
            0 => "-".to_owned(),
            _ => nicebytes(number),
        },
        "capacity" | "fragmentation" => format!("{number}%"),
        "dedupratio" | "bcloneratio" => format!("{raw}x"),
        _ => raw.to_owned(),
    }
}
