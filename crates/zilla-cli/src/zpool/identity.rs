//! `zpool reguid`, `checkpoint` and `upgrade`.

use super::compat;
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use zilla_control::status::{Compatibility, SPA_VERSION};
use zilla_control::types::{
    Activity, FeatureState, PoolCheckpoint, PoolInfo, PoolQuery, PoolReguid, PoolUpgrade,
};
use zilla_core::spa::features::SUPPORTED;
use zilla_ondisk::feature::FEATURES;

/// What each counted version brought.
const VERSIONS: &str = include_str!("versions.txt");
/// The last counted version.
const LAST_COUNTED: u64 = 28;

pub fn reguid(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "g:", &[]);
    let mut guid = None;
    for option in options {
        match option {
            Opt::Flag('g', text) => match strtoull(&text) {
                Some(number) => guid = Some(number),
                None => return cx.bad_usage(format!("invalid GUID: {text}")),
            },
            other => return cx.bad_option(other),
        }
    }
    let name = cx.only(&operands, "missing pool name")?;
    let (pools, _) = cx.pools(&operands, PoolQuery::default())?;
    if pools.is_empty() {
        return Ok(1);
    }
    if cx.ask(&format!("cannot reguid '{name}'"), &PoolReguid { name: name.clone(), guid })?.is_none() {
        return Ok(255);
    }
    cx.log_history(name)?;
    Ok(0)
}

/// As the C library reads a number of base 10: blanks, a sign, digits, nothing else.
fn strtoull(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(if negative { number.wrapping_neg() } else { number })
}

pub fn checkpoint(cx: &mut Cx, args: Vec<String>) -> Run {
    const LONG: &[args::Long] = &[("discard", false, 'd'), ("wait", false, 'w')];
    let (options, operands) = args::parse(&args, ":dw", LONG);
    let (mut discard, mut wait) = (false, false);
    for option in options {
        match option {
            Opt::Flag('d', _) => discard = true,
            Opt::Flag('w', _) => wait = true,
            other => return cx.bad_option(other),
        }
    }
    if wait && !discard {
        return cx.bad_usage("--wait only valid when --discard also specified");
    }
    let name = cx.only(&operands, "missing pool argument")?;
    let (pools, _) = cx.pools(&operands, PoolQuery::default())?;
    if pools.is_empty() {
        if name.contains('/') {
            cx.err(
                "'zpool checkpoint' doesn't work on datasets. To save the state of a dataset from a specific \
                 point in time please use 'zfs snapshot'",
            );
        }
        return Ok(1);
    }
    let action = match discard {
        false => format!("cannot checkpoint '{name}'"),
        true => format!("cannot discard checkpoint in '{name}'"),
    };
    if cx.ask(&action, &PoolCheckpoint { name: name.clone(), discard })?.is_none() {
        return Ok(1);
    }
    cx.log_history(name)?;
    if wait {
        super::wait::until_done(cx, name, &[Activity::Discard])?;
    }
    Ok(0)
}

pub fn upgrade(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, ":avV:", &[]);
    let (mut all, mut versions, mut version) = (false, false, SPA_VERSION);
    for option in options {
        match option {
            Opt::Flag('a', _) => all = true,
            Opt::Flag('v', _) => versions = true,
            Opt::Flag('V', text) => match text.parse::<u64>() {
                Ok(n) if (1..=LAST_COUNTED).contains(&n) || n == SPA_VERSION => version = n,
                _ => return cx.bad_usage(format!("invalid version '{text}'")),
            },
            other => return cx.bad_option(other),
        }
    }
    if versions && (all || version != SPA_VERSION || !operands.is_empty()) {
        return cx.bad_usage("-v option is incompatible with other arguments");
    }
    if version != SPA_VERSION && !all && operands.is_empty() {
        return cx.bad_usage("-V option is incompatible with other arguments");
    }
    if all && !operands.is_empty() {
        return cx.bad_usage("-a option should not be used along with a pool name");
    }
    cx.out.put("This system supports ZFS pool feature flags.\n\n");
    if versions {
        show_versions(cx);
        return Ok(0);
    }
    let query = PoolQuery { properties: true, ..PoolQuery::default() };
    let (pools, mut failed) = cx.pools(&operands, query)?;
    if !all && operands.is_empty() {
        return show_pools(cx, &pools);
    }
    let mut changed = false;
    for pool in &pools {
        match upgrade_one(cx, pool, version, !all)? {
            Upgraded::Changed => changed = true,
            Upgraded::Nothing => {}
            Upgraded::Failed => failed = true,
        }
    }
    if all && !changed && !failed {
        if version < SPA_VERSION {
            cx.out.put(format!("All pools are already formatted with version {version} or higher.\n"));
        } else {
            cx.out.put("All pools are already formatted using feature flags.\n\n");
            cx.out
                .put("Every feature flags pool already has all supported and requested features enabled.\n");
        }
    }
    Ok(u8::from(failed))
}

enum Upgraded {
    Changed,
    Nothing,
    Failed,
}

fn upgrade_one(cx: &mut Cx, pool: &PoolInfo, version: u64, say: bool) -> Result<Upgraded, Exit> {
    let name = &pool.name;
    if pool.version > version {
        if say {
            cx.out.put(format!(
                "Pool '{name}' is already formatted using more current version '{}'.\n\n",
                pool.version
            ));
        }
        return Ok(if say { Upgraded::Failed } else { Upgraded::Nothing });
    }
    if version != SPA_VERSION && pool.version == version {
        if say {
            cx.out.put(format!("Pool '{name}' is already formatted using version {version}.\n\n"));
        }
        return Ok(Upgraded::Nothing);
    }
    let sets = compat::load(pool.properties.get("compatibility").map_or("off", |p| p.value.as_str()));
    if sets.features == Compatibility::Legacy && pool.version < version {
        cx.out.put("Upgrade not performed because 'compatibility' property set to 'legacy'.\n");
        return Ok(Upgraded::Failed);
    }
    let features = match version {
        SPA_VERSION => disabled(pool, &sets.features),
        _ => Vec::new(),
    };
    if features.is_empty() && pool.version == version {
        if say {
            cx.out.put(format!("Pool '{name}' already has all supported and requested features enabled.\n"));
        }
        return Ok(Upgraded::Nothing);
    }
    let raised = (pool.version < version).then_some(version);
    let request = PoolUpgrade { name: name.clone(), version: raised, features: features.clone() };
    if cx.ask(&format!("cannot set property for '{name}'"), &request)?.is_none() {
        return Ok(Upgraded::Failed);
    }
    match raised {
        Some(SPA_VERSION) => cx
            .out
            .put(format!("Successfully upgraded '{name}' from version {} to feature flags.\n", pool.version)),
        Some(to) => cx
            .out
            .put(format!("Successfully upgraded '{name}' from version {} to version {to}.\n", pool.version)),
        None => {}
    }
    if !features.is_empty() {
        cx.out.put(format!("Enabled the following features on '{name}':\n"));
        features.iter().for_each(|f| cx.out.put(format!("  {f}\n")));
    }
    cx.out.put("\n");
    cx.log_history(name)?;
    Ok(Upgraded::Changed)
}

/// Supported features that a pool is to have and has not.
fn disabled(pool: &PoolInfo, wanted: &Compatibility) -> Vec<String> {
    let asked_for = |name: &String| match wanted {
        Compatibility::All => true,
        Compatibility::Legacy | Compatibility::Broken => false,
        Compatibility::Listed(names) => names.contains(name),
    };
    let lacking = pool.features.iter().filter(|f| f.supported && f.state == FeatureState::Disabled);
    lacking.map(|f| f.name.clone()).filter(asked_for).collect()
}

/// Without operands: what could be upgraded.
fn show_pools(cx: &mut Cx, pools: &[PoolInfo]) -> Run {
    let old: Vec<&PoolInfo> = pools.iter().filter(|p| p.version < SPA_VERSION).collect();
    if old.is_empty() {
        cx.out.put("All pools are formatted using feature flags.\n\n");
    } else {
        cx.out.put(
            "The following pools are formatted with legacy version numbers and can\nbe upgraded to use feature \
             flags.  After being upgraded, these pools\nwill no longer be accessible by software that does not \
             support feature\nflags.\n\nNote that setting a pool's 'compatibility' feature to 'legacy' \
             will\ninhibit upgrades.\n\nVER  POOL\n---  ------------\n",
        );
        old.iter().for_each(|p| cx.out.put(format!("{:2}   {}\n", p.version, p.name)));
        cx.out.put("\nUse 'zpool upgrade -v' for a list of available legacy versions.\n");
    }
    let mut first = true;
    for pool in pools.iter().filter(|p| p.version == SPA_VERSION) {
        let features = disabled(pool, &compat::of(pool));
        if features.is_empty() {
            continue;
        }
        if std::mem::take(&mut first) {
            cx.out.put(
                "\nSome supported features are not enabled on the following pools. Once a\nfeature is enabled \
                 the pool may become incompatible with software\nthat does not support the feature. See \
                 zpool-features(7) for details.\n\nNote that the pool 'compatibility' feature can be used to \
                 inhibit\nfeature upgrades.\n\nPOOL  FEATURE\n---------------\n",
            );
        }
        cx.out.put(format!("{}\n", pool.name));
        features.iter().for_each(|f| cx.out.put(format!("      {f}\n")));
    }
    if first {
        cx.out.put("Every feature flags pool has all supported and requested features enabled.\n");
    } else {
        cx.out.put("\n");
    }
    Ok(0)
}

fn show_versions(cx: &mut Cx) {
    cx.out.put("The following features are supported:\n\nFEAT DESCRIPTION\n");
    cx.out.put("-------------------------------------------------------------\n");
    for feature in FEATURES.iter().filter(|f| SUPPORTED.contains(&f.name)) {
        let note = if feature.readonly_compat() { " (read-only compatible)" } else { "" };
        cx.out.put(format!("{:<37}{note}\n     {}\n", feature.name, feature.description));
    }
    cx.out.put("\nThe following legacy versions are also supported:\n\nVER  DESCRIPTION\n");
    cx.out.put("---  --------------------------------------------------------\n");
    cx.out.put(VERSIONS);
    cx.out.put(
        "\nFor more information on a particular version, including supported releases,\nsee the ZFS \
         Administration Guide.\n\n",
    );
}

#[cfg(test)]
mod tests {
    use super::strtoull;

    #[test]
    fn guids_are_read_as_the_c_library_reads_them() {
        for (text, number) in [
            ("18446744073709551615", Some(u64::MAX)),
            ("-1", Some(u64::MAX)),
            ("0123", Some(123)),
            (" +7", Some(7)),
            ("18446744073709551616", None),
            ("0xA", None),
            ("", None),
            ("-", None),
        ] {
            assert_eq!(strtoull(text), number, "{text:?}");
        }
    }
}
