//! Who may depend on whom: a dependency only points down.
//!
//! The floors of the house, from the ground: leaves that know nothing of each other, the engine,
//! the facade, the servers that stand on it, the daemon, the commands, and above all what only
//! tests or measures. A crate may use any floor below its own. What a dev-dependency pulls in does
//! not reach the product, so it may point to the simulator as well, but not further up.

use super::Finding;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Crate and floor. A crate that is not listed has no place yet: that is an error, to be mended
/// here.
const FLOORS: &[(&str, u8)] = &[
    ("zilla-codec", 0),
    ("zilla-ondisk", 0),
    ("zilla-env", 0),
    ("zilla-macros", 0),
    ("zilla-tls", 0),
    ("zilla-control", 1),
    ("zilla-advise", 1),
    ("zilla-core", 1),
    ("zilla-testkit", 2),
    ("zilla", 2),
    ("zilla-sim", 3),
    ("zilla-fuse", 3),
    ("zilla-nbd", 3),
    ("zilla-nfs", 3),
    ("zilla-web", 3),
    ("zilla-python", 3),
    ("zilla-daemon", 4),
    ("zilla-cli", 5),
    ("zilla-e2e", 6),
    ("zilla-interop", 7),
    ("zilla-bench", 7),
    ("xtask", 7),
];

/// The simulator's floor: what tests of lower floors may reach for.
const SIMULATOR: u8 = 3;

/// The engine and what it stands on know no runtime, no socket and no kernel protocol.
const RUNTIMES: &[&str] = &["tokio", "async-std", "smol", "hyper", "axum", "fuser"];
const RUNTIME_FREE: &[&str] =
    &["zilla-codec", "zilla-ondisk", "zilla-env", "zilla-advise", "zilla-core", "zilla"];

/// What stands on the facade alone: a protocol that went past it would know pools, and what the
/// daemon can do a program that embeds the library could not.
pub(super) const ON_THE_FACADE: &[&str] =
    &["zilla-fuse", "zilla-nbd", "zilla-nfs", "zilla-web", "zilla-python", "zilla-daemon"];
const ENGINE: &str = "zilla-core";
/// The facade, and its feature for tests of the engine.
const FACADE: &str = "zilla";
const ENGINE_FEATURE: &str = "engine";

/// Only the seam talks to the kernel's I/O rings.
const RINGS: &str = "io-uring";

pub fn check(metadata: &Value) -> Result<Vec<Finding>, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let members: BTreeSet<&str> =
        metadata["workspace_members"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let floors: BTreeMap<&str, u8> = FLOORS.iter().copied().collect();
    let mut findings = Vec::new();
    for package in packages.iter().filter(|p| p["id"].as_str().is_some_and(|id| members.contains(id))) {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(&floor) = floors.get(name) else {
            findings.push(Finding::error(name, "has no floor: give it one in xtask/src/tidy/layers.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            let dev = dependency["kind"].as_str() == Some("dev");
            if to == RINGS && name != "zilla-env" && !dev {
                findings.push(Finding::error(name, format!("depends on {to}, which is zilla-env's alone")));
            }
            if to == ENGINE && ON_THE_FACADE.contains(&name) && !dev {
                findings
                    .push(Finding::error(name, format!("depends on {to}: it stands on the facade, zilla")));
            }
            let asked = dependency["features"].as_array().into_iter().flatten();
            if to == FACADE
                && ON_THE_FACADE.contains(&name)
                && !dev
                && asked.into_iter().any(|f| f == ENGINE_FEATURE)
            {
                let what =
                    format!("asks for {to}'s feature {ENGINE_FEATURE}, which is for tests of the engine");
                findings.push(Finding::error(name, what));
            }
            let Some(&below) = floors.get(to) else { continue };
            let ceiling = if dev { floor.max(SIMULATOR + 1) } else { floor };
            if to != name && below >= ceiling {
                findings
                    .push(Finding::error(name, format!("depends on {to}: a dependency only points down")));
            }
        }
    }
    findings.extend(runtimes(metadata, packages));
    Ok(findings)
}

/// What of a member's dependencies comes with a feature alone, and of which it asks for features.
struct Declared<'a> {
    optional: BTreeSet<&'a str>,
    featured: BTreeSet<&'a str>,
}

impl Declared<'_> {
    fn of(package: &Value) -> Declared<'_> {
        let all = || package["dependencies"].as_array().into_iter().flatten();
        let featured = |d: &&Value| d["features"].as_array().is_some_and(|f| !f.is_empty());
        Declared {
            optional: all().filter(|d| d["optional"] == true).filter_map(|d| d["name"].as_str()).collect(),
            featured: all().filter(featured).filter_map(|d| d["name"].as_str()).collect(),
        }
    }
}

/// Follows normal dependencies as they are resolved. The workspace is resolved with the features
/// that any member asks for: what a feature of a member brings counts for those who ask for it.
fn runtimes(metadata: &Value, packages: &[Value]) -> Vec<Finding> {
    let names: BTreeMap<&str, &str> =
        packages.iter().filter_map(|p| Some((p["id"].as_str()?, p["name"].as_str()?))).collect();
    let floors: BTreeMap<&str, u8> = FLOORS.iter().copied().collect();
    let members = packages.iter().filter(|p| p["name"].as_str().is_some_and(|n| floors.contains_key(n)));
    let declared: BTreeMap<&str, Declared<'_>> =
        members.filter_map(|p| Some((p["id"].as_str()?, Declared::of(p)))).collect();
    let mut uses: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in metadata["resolve"]["nodes"].as_array().into_iter().flatten() {
        let normal = node["deps"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|d| d["dep_kinds"].as_array().into_iter().flatten().any(|k| k["kind"].is_null()));
        if let Some(id) = node["id"].as_str() {
            uses.insert(id, normal.filter_map(|d| d["pkg"].as_str()).collect());
        }
    }
    let mut findings = Vec::new();
    for (&id, &name) in names.iter().filter(|(_, name)| RUNTIME_FREE.contains(name)) {
        let (mut seen, mut stack) = (BTreeSet::new(), vec![(id, true)]);
        while let Some((next, with_features)) = stack.pop() {
            if !seen.insert((next, with_features)) {
                continue;
            }
            if let Some(&found) = names.get(next)
                && RUNTIMES.contains(&found)
            {
                findings.push(Finding::error(name, format!("reaches {found}: the engine knows no runtime")));
            }
            let known = declared.get(next);
            for &to in uses.get(next).into_iter().flatten() {
                let called = names.get(to).copied().unwrap_or_default();
                if with_features || known.is_none_or(|d| !d.optional.contains(called)) {
                    stack.push((to, known.is_none_or(|d| d.featured.contains(called))));
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let list: Vec<Value> = dependencies.iter().map(|(n, k)| json!({"name": n, "kind": k})).collect();
        json!({"id": name, "name": name, "dependencies": list})
    }

    fn messages(packages: Vec<Value>, nodes: Value) -> Vec<String> {
        let members: Vec<Value> = packages.iter().map(|p| p["id"].clone()).collect();
        let metadata =
            json!({"packages": packages, "workspace_members": members, "resolve": {"nodes": nodes}});
        check(&metadata).unwrap().into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn dependencies_point_down() {
        assert!(messages(vec![package("zilla-core", &[("zilla-codec", None)])], json!([])).is_empty());
        assert_eq!(messages(vec![package("zilla-codec", &[("zilla-core", None)])], json!([])).len(), 1);
        assert_eq!(messages(vec![package("zilla-codec", &[("zilla-ondisk", None)])], json!([])).len(), 1);
        assert!(messages(vec![package("zilla-core", &[("zilla-sim", Some("dev"))])], json!([])).is_empty());
        assert_eq!(
            messages(vec![package("zilla-core", &[("zilla-daemon", Some("dev"))])], json!([])).len(),
            1
        );
        assert_eq!(messages(vec![package("zilla-new", &[])], json!([])).len(), 1);
        assert_eq!(messages(vec![package("zilla-nbd", &[("zilla-core", None)])], json!([])).len(), 1);
        assert!(messages(vec![package("zilla-nbd", &[("zilla-core", Some("dev"))])], json!([])).is_empty());
        for name in ["zilla-daemon", "zilla-fuse"] {
            assert_eq!(messages(vec![package(name, &[("zilla-core", None)])], json!([])).len(), 1, "{name}");
            assert!(messages(vec![package(name, &[("zilla", None)])], json!([])).is_empty(), "{name}");
            let asks = json!([{"name": "zilla", "kind": null, "features": ["engine"]}]);
            let asking = json!({"id": name, "name": name, "dependencies": asks});
            assert_eq!(messages(vec![asking], json!([])).len(), 1, "{name}");
        }
    }

    #[test]
    fn the_engine_knows_no_runtime() {
        let dep = |to: &str| json!({"pkg": to, "dep_kinds": [{"kind": null}]});
        let nodes = json!([{"id": "zilla-core", "deps": [dep("x")]}, {"id": "x", "deps": [dep("tokio")]}]);
        let mut metadata = json!({"packages": [package("zilla-core", &[])], "workspace_members": ["zilla-core"],
            "resolve": {"nodes": nodes}});
        for name in ["x", "tokio"] {
            metadata["packages"].as_array_mut().unwrap().push(package(name, &[]));
        }
        assert_eq!(check(&metadata).unwrap().len(), 1);
    }

    #[test]
    fn what_a_feature_brings_counts_for_those_who_ask_for_it() {
        let reaches = |features: &[&str]| {
            let dep = |to: &str| json!({"pkg": to, "dep_kinds": [{"kind": null}]});
            let nodes = json!([
                {"id": "zilla", "deps": [dep("zilla-control")]},
                {"id": "zilla-control", "deps": [dep("tokio")]},
            ]);
            let asks = json!([{"name": "zilla-control", "kind": null, "features": features}]);
            let offers = json!([{"name": "tokio", "kind": null, "optional": true}]);
            let packages = vec![
                json!({"id": "zilla", "name": "zilla", "dependencies": asks}),
                json!({"id": "zilla-control", "name": "zilla-control", "dependencies": offers}),
                package("tokio", &[]),
            ];
            messages(packages, nodes).iter().filter(|m| m.contains("no runtime")).count()
        };
        assert_eq!(reaches(&[]), 0);
        assert_eq!(reaches(&["server"]), 1);
    }
}
