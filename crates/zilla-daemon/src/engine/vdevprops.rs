//! Properties of vdevs: what they are, and `zpool set ... POOL VDEV`.
//!
//! The engine keeps those that are set. Names of vdevs are the commands' to make: here a vdev is
//! its guid.

use super::Engine;
use super::errors::{Answer, of_pool};
use super::pool::Pool;
use std::collections::BTreeMap;
use zilla::Value;
use zilla::devices::{VdevView, Vdevs};
use zilla::error::Result;
use zilla::stored::is_pools_own;
use zilla_control::props::{self, PropAttr, TypedValue, VDEV_PROPS};
use zilla_control::types::{PoolInfo, PoolSet, PropValue, Source, VdevNode, VdevState};
use zilla_control::{ApiError, ErrorCode};

/// Names and values are as long as those of other properties. Source: ZAP_MAXNAMELEN,
/// ZAP_MAXVALUELEN.
const LONGEST_NAME: usize = 256;
const LONGEST_VALUE: usize = 8192;

/// A property that is the user's to name.
fn is_users(name: &str) -> bool {
    props::is_user_prop(name) && !is_pools_own(name)
}

/// The state's number, as OpenZFS counts them.
fn state_number(state: VdevState) -> u64 {
    match state {
        VdevState::Unknown => 0,
        VdevState::Closed => 1,
        VdevState::Offline => 2,
        VdevState::Removed => 3,
        VdevState::CantOpen => 4,
        VdevState::Faulted => 5,
        VdevState::Degraded => 6,
        VdevState::Healthy => 7,
    }
}

/// What is counted; nothing: it is not the vdev's to have.
fn counted(name: &str, v: &VdevNode, vdev: &VdevView) -> Option<String> {
    let s = &v.stats;
    let percent = |part: u64, whole: u64| u128::from(part) * 100 / u128::from(whole.max(1));
    let on_off = |on: bool| if on { "on" } else { "off" }.to_owned();
    let number = match name {
        "capacity" => percent(s.alloc, s.dspace) as u64,
        "state" => state_number(s.state),
        "guid" => v.guid,
        "asize" => v.asize,
        "psize" => s.pspace,
        "ashift" => v.ashift,
        "size" => s.dspace,
        "free" => s.dspace.saturating_sub(s.alloc),
        "allocated" => s.alloc,
        "expandsize" => s.esize,
        "parity" => v.nparity,
        "numchildren" => v.children.len() as u64,
        "read_errors" => s.read_errors,
        "write_errors" => s.write_errors,
        "checksum_errors" => s.checksum_errors,
        "read_ops" => s.read_ops,
        "write_ops" => s.write_ops,
        "read_bytes" => s.read_bytes,
        "write_bytes" => s.write_bytes,
        "slow_ios" => s.slow_ios,
        "initialize_errors" | "trim_errors" | "null_ops" | "free_ops" | "claim_ops" | "null_bytes"
        | "free_bytes" | "claim_bytes" => 0,
        "trim_ops" | "trim_bytes" => {
            let (ops, bytes) = vdev.trims.unwrap_or_default();
            if name == "trim_ops" { ops } else { bytes }
        }
        "fragmentation" => return Some(s.fragmentation.map_or_else(|| "-".to_owned(), |f| f.to_string())),
        "path" => return v.path.clone(),
        "devid" => return v.devid.clone(),
        "physpath" => return v.phys_path.clone(),
        "removing" => return Some(on_off(v.removing)),
        "raidz_expanding" => {
            return vdev.parity.map(|_| on_off(vdev.is_expanding));
        }
        "trim_support" => return vdev.can_trim.map(on_off),
        _ => return None,
    };
    Some(number.to_string())
}

impl Pool {
    /// All properties of all vdevs, by guid.
    pub(super) async fn vdev_props(
        &self,
        info: &PoolInfo,
    ) -> Result<BTreeMap<String, BTreeMap<String, PropValue>>> {
        let vdevs = self.zilla.vdevs();
        let mut all = BTreeMap::new();
        let mut left: Vec<&VdevNode> = vec![&info.root];
        left.extend(&info.l2cache);
        while let Some(v) = left.pop() {
            left.extend(&v.children);
            if let Some(vdev) = vdevs.find(v.guid) {
                all.insert(v.guid.to_string(), self.props_of(&vdevs, v, &vdev).await);
            }
        }
        Ok(all)
    }

    /// What was set of a vdev, as it is stored.
    async fn stored_with(&self, guid: u64) -> Result<BTreeMap<String, String>> {
        let mut stored = BTreeMap::new();
        for (name, value) in self.zilla.vdev_entries(guid).await? {
            // What else lies there is no property: a bias, space, how far a trim has come.
            let known = props::vdev_prop(&name).is_some_and(|d| d.attr == PropAttr::Default);
            match (value.as_u64(), value.as_str()) {
                (Some(n), _) if known => drop(stored.insert(name, n.to_string())),
                (None, Some(text)) if known || is_users(&name) => {
                    stored.insert(name, text.to_owned());
                }
                _ => {}
            }
        }
        Ok(stored)
    }

    async fn props_of(&self, vdevs: &Vdevs, v: &VdevNode, vdev: &VdevView) -> BTreeMap<String, PropValue> {
        // What is counted is known without it, and of the other vdevs everything.
        let stored = self.stored_with(vdev.guid).await.unwrap_or_else(|e| {
            tracing::warn!(pool = %self.name(), vdev = vdev.guid, "its properties cannot be read: {e}");
            BTreeMap::new()
        });
        // A leaf in a vdev allocates nothing itself.
        let allocates = vdev.guid == vdevs.root_guid() || vdevs.tops().iter().any(|t| t.guid == vdev.guid);
        let mut all = BTreeMap::new();
        for desc in VDEV_PROPS {
            if let Some(value) = counted(desc.name, v, vdev) {
                all.insert(desc.name.to_owned(), PropValue::new(value, Source::None));
                continue;
            }
            let value = match (desc.name, stored.get(desc.name)) {
                // The commands say these.
                ("name" | "parent" | "children", _) => continue,
                ("allocating", _) if !allocates => PropValue::new("-", Source::None),
                ("trim_support", _) => PropValue::new("-", Source::Default),
                ("raidz_expanding", _) => continue,
                (_, Some(text)) => {
                    let word = text.parse().ok().and_then(|n| desc.word_of(n)).unwrap_or(text);
                    PropValue::new(word, Source::Local)
                }
                _ => {
                    let text = desc.default_value().filter(|t| !t.is_empty() && t != &u64::MAX.to_string());
                    PropValue::new(text.unwrap_or_else(|| "-".to_owned()), Source::Default)
                }
            };
            all.insert(desc.name.to_owned(), value);
        }
        for (name, text) in stored.into_iter().filter(|(name, _)| is_users(name)) {
            all.insert(name, PropValue::new(text, Source::Local));
        }
        all
    }
}

/// What a vdev's property is to be; an empty text takes it away.
fn typed(name: &str, text: &str) -> Answer<TypedValue> {
    let bad = |what: String| Err(ApiError::with(ErrorCode::BadProp, what));
    if text.len() >= LONGEST_VALUE {
        return bad(format!("property value of '{name}' is too long"));
    }
    let Some(desc) = props::vdev_prop(name) else {
        if !props::is_user_prop(name) {
            return bad(format!("invalid property: '{name}'"));
        }
        if is_pools_own(name) {
            return bad(format!("invalid property: '{name}': such names are the pool's own"));
        }
        if name.len() >= LONGEST_NAME {
            return bad(format!("property name '{name}' is too long"));
        }
        return Ok(TypedValue::Str(text.to_owned()));
    };
    if desc.attr == PropAttr::ReadOnly {
        return Err(ApiError::with(ErrorCode::PropReadonly, format!("'{name}' is readonly")));
    }
    // Better refused than quietly ignored.
    let unheeded = match desc.name {
        "failfast" => Some("nothing below zilla takes such a hint"),
        "path" => Some("import the pool with '-d', or 'zpool online' the device, where it is found"),
        _ => None,
    };
    if let Some(why) = unheeded {
        let what = format!("'{}' of a vdev cannot be set: {why}", desc.name);
        return Err(ApiError::with(ErrorCode::Unsupported, what));
    }
    props::parse_value(desc, props::VDEV, text)
}

impl Engine {
    /// `r.vdev` is its guid.
    pub(super) async fn set_vdev(&self, pool: &Pool, r: &PoolSet) -> Answer<()> {
        let value = typed(&r.property, &r.value)?;
        pool.check_running()?;
        let guid: Option<u64> = r.vdev.as_deref().and_then(|g| g.parse().ok());
        let guid = guid.ok_or_else(|| ApiError::from(ErrorCode::NoDevice))?;
        let set = match value {
            TypedValue::Num(n) if r.property == "allocating" => pool.zilla.set_allocating(guid, n != 0).await,
            // `none`: the usual limit.
            TypedValue::Num(u64::MAX) => pool.zilla.set_vdev_property(guid, &r.property, None).await,
            TypedValue::Num(n) => pool.zilla.set_vdev_property(guid, &r.property, Some(Value::u64(n))).await,
            TypedValue::Str(text) => {
                let value = (!text.is_empty()).then(|| Value::string(&text));
                pool.zilla.set_vdev_property(guid, &r.property, value).await
            }
        };
        set.map_err(of_pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_pool_keeps_there_is_nobodys_to_set() {
        assert!(typed("org.example:rack", "7").is_ok());
        assert!(typed("com.delphixes:rack", "7").is_ok());
        let own = [
            "com.delphix:ms_unflushed_phys_txgs",
            "com.klarasystems:vdev_zap_root",
            "org.openzfs:raidz_expand_state",
            "org.zfsonlinux:allocation_bias",
            "org.illumos:x",
            "org.open-zfs:x",
        ];
        for name in own {
            assert!(typed(name, "1").is_err() && typed(name, "").is_err(), "{name}");
            assert!(!is_users(name), "{name}");
        }
    }
}
