//! What may be linked: permissive licenses, from the registry.
//!
//! `cargo deny` says the same and more; this half of it needs nothing installed, so no build goes
//! without. Both read the one list in `deny.toml`.

use super::Finding;
use serde_json::Value;
use std::collections::BTreeSet;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub fn check(metadata: &Value, deny: &str) -> Result<Vec<Finding>, String> {
    let allowed = allowed(deny)?;
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let place = format!(
            "{} {}",
            package["name"].as_str().unwrap_or_default(),
            package["version"].as_str().unwrap_or_default()
        );
        match package["license"].as_str() {
            Some(license) if satisfied(license, &allowed) => {}
            Some(license) => {
                findings.push(Finding::error(&place, format!("license `{license}` is not allowed")))
            }
            None => findings.push(Finding::error(&place, "has no license")),
        }
        // Packages of the workspace have no source.
        if let Some(source) = package["source"].as_str()
            && source != REGISTRY
        {
            findings.push(Finding::error(&place, format!("comes from {source}, not from the registry")));
        }
    }
    Ok(findings)
}

/// The strings of `allow = [ .. ]` under `[licenses]`.
fn allowed(deny: &str) -> Result<BTreeSet<String>, String> {
    let section = deny.split("[licenses]").nth(1).ok_or("deny.toml: no [licenses]")?;
    let list = section.split("allow = [").nth(1).and_then(|s| s.split(']').next());
    let list = list.ok_or("deny.toml: no `allow` under [licenses]")?;
    Ok(list.split(',').map(|w| w.trim().trim_matches('"').to_owned()).filter(|w| !w.is_empty()).collect())
}

/// An SPDX expression of AND, OR, WITH and parentheses; `/` is the old way to write OR.
fn satisfied(license: &str, allowed: &BTreeSet<String>) -> bool {
    let text = license.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut rest = words.as_slice();
    let value = either(&mut rest, allowed);
    value && rest.is_empty()
}

fn either(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut value = both(words, allowed);
    while words.first() == Some(&"OR") {
        *words = &words[1..];
        value |= both(words, allowed);
    }
    value
}

fn both(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut value = one(words, allowed);
    while words.first() == Some(&"AND") {
        *words = &words[1..];
        value &= one(words, allowed);
    }
    value
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let Some((&word, rest)) = words.split_first() else { return false };
    *words = rest;
    if word == "(" {
        let value = either(words, allowed);
        if words.first() == Some(&")") {
            *words = &words[1..];
        }
        return value;
    }
    let mut name = word.to_owned();
    if let [with, exception, rest @ ..] = *words
        && *with == "WITH"
    {
        name = format!("{word} WITH {exception}");
        *words = rest;
    }
    allowed.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_expressions() {
        let deny = "[graph]\n[licenses]\nallow = [\n  \"MIT\",\n  \"Apache-2.0\",\n]\n";
        let allowed = allowed(deny).unwrap();
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "MIT/Apache-2.0",
            "(MIT OR GPL-3.0) AND Apache-2.0",
            "MIT AND Apache-2.0",
        ] {
            assert!(satisfied(good, &allowed), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "", "Apache-2.0 WITH LLVM-exception", "MIT )"] {
            assert!(!satisfied(bad, &allowed), "{bad}");
        }
    }
}
