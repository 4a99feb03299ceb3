//! `cargo xtask sbom`: what the program is made of, as CycloneDX 1.5.
//!
//! Of the lock file, so that it is what is built; only what is linked into `zilla`, not what tests
//! and tools use. The output has no time and no random number in it: two runs on one commit give
//! the same bytes, as two builds should.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, ExitCode};

/// The package that becomes the program.
const PROGRAM: &str = "zilla-cli";

pub fn main(root: &Path) -> ExitCode {
    match metadata(root).and_then(|m| sbom(&m)) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("sbom: {why}");
            ExitCode::FAILURE
        }
    }
}

fn metadata(root: &Path) -> Result<Value, String> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut cargo = Command::new("cargo");
    cargo
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &target])
        .current_dir(root);
    let done = cargo.output().map_err(|e| format!("cargo metadata: {e}"))?;
    if !done.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&done.stderr)));
    }
    serde_json::from_slice(&done.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

fn sbom(metadata: &Value) -> Result<String, String> {
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .filter_map(|p| Some((p["id"].as_str()?.to_owned(), p)))
        .collect();
    let mut uses: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let linked = list(&node["deps"]).into_iter().filter(|d| {
            // A build script's own dependencies are not linked either.
            list(&d["dep_kinds"]).iter().any(|k| k["kind"].is_null())
        });
        let id = node["id"].as_str().unwrap_or_default().to_owned();
        uses.insert(id, linked.filter_map(|d| d["pkg"].as_str().map(str::to_owned)).collect());
    }
    let start = packages.iter().find(|(_, p)| p["name"] == PROGRAM).ok_or("no package of the program")?;
    let (mut seen, mut todo) = (BTreeSet::new(), vec![start.0.clone()]);
    while let Some(id) = todo.pop() {
        if seen.insert(id.clone()) {
            todo.extend(uses.get(&id).into_iter().flatten().cloned());
        }
    }
    let name = |id: &String| {
        let p = &packages[id];
        format!(
            "pkg:cargo/{}@{}",
            p["name"].as_str().unwrap_or_default(),
            p["version"].as_str().unwrap_or_default()
        )
    };
    let component = |id: &String| {
        let p = &packages[id];
        json!({ "type": "library", "bom-ref": name(id), "name": p["name"], "version": p["version"], "purl": name(id),
            "licenses": [{ "expression": p["license"].as_str().unwrap_or("NOASSERTION").replace('/', " OR ") }] })
    };
    let mut components: Vec<(String, Value)> =
        seen.iter().filter(|id| *id != start.0).map(|id| (name(id), component(id))).collect();
    components.sort_by(|a, b| a.0.cmp(&b.0));
    let mut dependencies: Vec<(String, Value)> = Vec::new();
    for id in &seen {
        let mut on: Vec<String> = uses.get(id).into_iter().flatten().map(name).collect();
        on.sort();
        on.dedup();
        dependencies.push((name(id), json!({ "ref": name(id), "dependsOn": on })));
    }
    dependencies.sort_by(|a, b| a.0.cmp(&b.0));
    let whole = json!({ "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": { "component": { "type": "application", "bom-ref": name(start.0), "name": "zilla",
            "version": start.1["version"], "purl": name(start.0) } },
        "components": components.into_iter().map(|c| c.1).collect::<Vec<_>>(),
        "dependencies": dependencies.into_iter().map(|d| d.1).collect::<Vec<_>>() });
    serde_json::to_string_pretty(&whole).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_listed_and_nothing_else() {
        let package =
            |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let dep = |to: &str, kind: Value| json!({"pkg": to, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package(PROGRAM), package("a"), package("b"), package("tool")],
            "resolve": {"nodes": [
                {"id": PROGRAM, "deps": [dep("a", Value::Null), dep("tool", json!("dev"))]},
                {"id": "a", "deps": [dep("b", Value::Null), dep("tool", json!("build"))]},
                {"id": "b", "deps": []}]}});
        let bom: Value = serde_json::from_str(&sbom(&metadata).unwrap()).unwrap();
        let names: Vec<&str> =
            bom["components"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(bom["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(sbom(&metadata), sbom(&metadata));
        assert!(sbom(&json!({"packages": []})).is_err());
    }
}
