//! `zpool create`.

use super::compat;
use super::vdevspec::{self, SpecError};
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use std::collections::BTreeMap;
use zilla_control::error::{ApiError, ErrorCode};
use zilla_control::props;
use zilla_control::props::naming::check_pool_name;
use zilla_control::status::Compatibility;
use zilla_control::types::{AllocClass, LeafSpec, PoolCreate, TopKind, TopSpec, VdevSpec, VdevsCheck};
use zilla_env::strerror;

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, ":fndR:m:o:O:t:", &[]);
    let mut request = PoolCreate::default();
    let (mut dry_run, mut mountpoint) = (false, None);
    for option in options {
        match option {
            Opt::Flag('f', _) => request.force = true,
            Opt::Flag('n', _) => dry_run = true,
            Opt::Flag('d', _) => request.disable_features = true,
            Opt::Flag('R', root) => {
                add_pool_prop(cx, &mut request.properties, "altroot", &root)?;
                request.properties.entry("cachefile".to_owned()).or_insert_with(|| "none".to_owned());
            }
            Opt::Flag('m', path) => mountpoint = Some(path),
            Opt::Flag('o', text) => {
                let (name, value) = assignment(cx, &text, 'o')?;
                add_pool_prop(cx, &mut request.properties, name, value)?;
                let old = value.parse::<u64>().is_ok_and(|v| v < zilla_control::status::SPA_VERSION);
                if name == "version" && old {
                    request.disable_features = true;
                }
            }
            Opt::Flag('O', text) => {
                let (name, value) = assignment(cx, &text, 'O')?;
                if name == "mountpoint" {
                    mountpoint = Some(value.to_owned());
                } else {
                    add_fs_prop(cx, &mut request.fs_properties, name, value)?;
                }
            }
            Opt::Flag('t', name) => {
                if name.contains('/') {
                    cx.err(format!("cannot create '{name}': invalid character '/' in temporary name"));
                    cx.err("use 'zfs create' to create a dataset");
                    return Ok(1);
                }
                request.properties.entry("cachefile".to_owned()).or_insert_with(|| "none".to_owned());
                request.temporary_name = Some(name);
            }
            other => return cx.bad_option(other),
        }
    }
    let Some((name, words)) = operands.split_first() else {
        return cx.bad_usage("missing pool name argument");
    };
    if words.is_empty() {
        return cx.bad_usage("missing vdev specification");
    }
    if name.contains('/') {
        cx.err(format!("cannot create '{name}': invalid character '/' in pool name"));
        cx.err("use 'zfs create' to create a dataset");
        return Ok(1);
    }
    request.name = name.clone();
    choose_features(cx, &mut request)?;
    request.vdevs = spec(cx, words, &request)?;
    // The altroot travels on its own: it is not written to the pool.
    request.altroot = request.properties.remove("altroot");
    if let Err(why) = judge(&request, mountpoint.as_deref()) {
        let PoolCreate { vdevs, force, .. } = request;
        let name = request.temporary_name.unwrap_or(request.name);
        in_use_first(cx, &VdevsCheck { name, new: true, vdevs, force, ..VdevsCheck::default() })?;
        return Ok(tell(cx, why, force));
    }
    if let Some(path) = mountpoint {
        request.fs_properties.insert("mountpoint".to_owned(), path);
    }
    if dry_run {
        if let Err(e) = check_pool_name(name, false) {
            return Ok(refused(cx, name, &e));
        }
        let (shown, taken) = (name, request.temporary_name.as_ref().unwrap_or(name).clone());
        let PoolCreate { vdevs, force, .. } = request;
        let text = layout(shown, &vdevs);
        let check = VdevsCheck { name: taken, new: true, vdevs, force, ..VdevsCheck::default() };
        return match cx.call(&check)? {
            Ok(()) => {
                cx.out.put(text);
                Ok(0)
            }
            Err(e) => Ok(refused(cx, name, &e)),
        };
    }
    request.key = crate::zfs::keys::of_new(cx, &request.fs_properties, crate::zfs::keys::CREATE_ERROR)?;
    match cx.call(&request)? {
        Ok(reply) => {
            let name = request.temporary_name.as_ref().unwrap_or(&request.name).clone();
            cx.log_history(&name)?;
            if let Some(e) = &reply.mount_error {
                cx.refused(&format!("cannot mount '{name}'"), e);
            }
            Ok(u8::from(reply.mount_error.is_some()))
        }
        Err(e) => Ok(refused(cx, name, &e)),
    }
}

/// Says why a pool cannot be created.
fn refused(cx: &mut Cx, name: &str, e: &ApiError) -> u8 {
    if matches!(e.code, ErrorCode::VdevOverridable | ErrorCode::VdevInvalid) {
        print_refusal(cx, &e.details, e.code == ErrorCode::VdevOverridable);
        return 1;
    }
    let action = crate::zfs::keys::create_action(e.code, format!("cannot create '{name}'"));
    cx.refused(&action, e);
    if e.code == ErrorCode::InvalidName {
        cx.err("pool name may have been omitted");
    }
    1
}

/// What `-o compatibility` says of the features that are enabled.
fn choose_features(cx: &mut Cx, request: &mut PoolCreate) -> Result<(), Exit> {
    let Some(value) = request.properties.get("compatibility") else { return Ok(()) };
    let sets = compat::load(value);
    let names = match sets.features {
        Compatibility::All => return Ok(()),
        Compatibility::Legacy => Vec::new(),
        Compatibility::Listed(names) => names,
        Compatibility::Broken => {
            cx.err(format!("Error: {}", sets.complaint.unwrap_or_default()));
            return Err(Exit(1));
        }
    };
    if let Some(what) = sets.complaint {
        cx.err(format!("Warning: {what}"));
    }
    let on = request.properties.iter().filter(|(_, value)| *value == "enabled");
    let on: Vec<&str> = on.filter_map(|(name, _)| name.strip_prefix("feature@")).collect();
    for name in on.into_iter().filter(|name| !names.iter().any(|n| n == name)) {
        cx.err(format!(
            "Warning: feature \"{name}\" enabled but is not in specified 'compatibility' feature set."
        ));
    }
    request.feature_set = Some(names);
    Ok(())
}

fn spec(cx: &mut Cx, words: &[String], request: &PoolCreate) -> Result<VdevSpec, Exit> {
    if let Some(ashift) = request.properties.get("ashift") {
        match props::parse_size(ashift) {
            Err(_) => {
                cx.err("ashift must be a number.");
                return Err(Exit(1));
            }
            Ok(n) if n != 0 && !(9..=16).contains(&n) => {
                cx.err(format!("invalid 'ashift={n}' property: only values between 9 and 16 are allowed."));
                return Err(Exit(1));
            }
            Ok(_) => {}
        }
    }
    vdevspec::parse(words).map_err(|why| Exit(tell(cx, why, request.force)))
}

/// What is wrong with a new pool beside its words and devices.
fn judge(request: &PoolCreate, mountpoint: Option<&str>) -> Result<(), SpecError> {
    if !request.force {
        vdevspec::check_replication(&request.vdevs)?;
    }
    if request.vdevs.tops.iter().all(|t| t.class != AllocClass::Normal) {
        let what = "at least one general top-level vdev must be specified";
        return Err(SpecError::Overridable(vec![what.to_owned()]));
    }
    if let Some(root) = request.altroot.as_ref().filter(|r| !r.starts_with('/')) {
        let what = format!("invalid alternate root '{root}': must be an absolute path");
        return Err(SpecError::Invalid(vec![what]));
    }
    check_mountpoint(request, mountpoint)
}

/// Ends the command where devices are in use, which is told before anything else that is wrong.
pub fn in_use_first(cx: &mut Cx, check: &VdevsCheck) -> Result<(), Exit> {
    match cx.call(check)? {
        Err(e) if matches!(e.code, ErrorCode::VdevOverridable | ErrorCode::VdevInvalid) => {
            print_refusal(cx, &e.details, e.code == ErrorCode::VdevOverridable);
            Err(Exit(1))
        }
        _ => Ok(()),
    }
}

/// Says what is wrong with a specification; the result is the exit code.
pub fn tell(cx: &mut Cx, why: SpecError, force: bool) -> u8 {
    match why {
        SpecError::Invalid(lines) => lines.iter().for_each(|line| cx.err(line)),
        SpecError::Overridable(lines) => print_refusal(cx, &lines, !force),
    }
    1
}

/// Doubts about devices, with what to do about them.
pub fn print_refusal(cx: &mut Cx, lines: &[String], overridable: bool) {
    cx.err("invalid vdev specification");
    cx.err(if overridable {
        "use '-f' to override the following errors:"
    } else {
        "the following errors must be manually repaired:"
    });
    for line in lines {
        cx.err(line);
    }
}

/// `name=value` of an option.
fn assignment<'a>(cx: &mut Cx, text: &'a str, letter: char) -> Result<(&'a str, &'a str), Exit> {
    match text.split_once('=') {
        Some(pair) => Ok(pair),
        None => {
            cx.err(format!("missing '=' for -{letter} option"));
            Err(Exit(1))
        }
    }
}

/// Says of a property that is taken and has no effect that it is so.
pub fn note_on(cx: &mut Cx, property: &str) {
    if property == "dedupditto" {
        cx.out.line("Note: property 'dedupditto' no longer has any effect");
    }
}

/// A pool property of the command line, under its proper name.
pub fn add_pool_prop(
    cx: &mut Cx,
    props: &mut BTreeMap<String, String>,
    name: &str,
    value: &str,
) -> Result<(), Exit> {
    let proper = match props::pool_prop(name) {
        Some(desc) => desc.name,
        None if props::is_feature_prop(name) => name,
        None => {
            cx.err(format!("property '{name}' is not a valid pool or vdev property"));
            return Err(Exit(1));
        }
    };
    note_on(cx, proper);
    let feature = props.keys().any(|k| props::is_feature_prop(k));
    if (props::is_feature_prop(name) && props.contains_key("version")) || (proper == "version" && feature) {
        cx.err("'feature@' and 'version' properties cannot be specified together");
        return Err(Exit(1));
    }
    let other = |props: &BTreeMap<String, String>| props.get("compatibility").is_some_and(|c| c != "legacy");
    let clash = (proper == "compatibility" && value != "legacy" && props.contains_key("version"))
        || (proper == "version" && other(props));
    if clash {
        cx.err("when 'version' is specified, the 'compatibility' feature may only be set to 'legacy'");
        return Err(Exit(1));
    }
    if props.contains_key(proper) && proper != "cachefile" {
        cx.err(format!("property '{name}' specified multiple times"));
        return Err(Exit(1));
    }
    props.insert(proper.to_owned(), value.to_owned());
    Ok(())
}

/// A property of the pool's root filesystem.
fn add_fs_prop(
    cx: &mut Cx,
    props: &mut BTreeMap<String, String>,
    name: &str,
    value: &str,
) -> Result<(), Exit> {
    let proper = match props::dataset_prop(name) {
        Some(desc) if desc.applies_to(props::FS) => desc.name,
        _ if props::is_user_prop(name) || props::is_userquota_prop(name) => name,
        _ => {
            cx.err(format!("property '{name}' is not a valid filesystem property"));
            return Err(Exit(1));
        }
    };
    if props.contains_key(proper) {
        cx.err(format!("property '{name}' specified multiple times"));
        return Err(Exit(1));
    }
    props.insert(proper.to_owned(), value.to_owned());
    Ok(())
}

/// The mountpoint must be a path, and nothing may be hidden below it.
fn check_mountpoint(request: &PoolCreate, mountpoint: Option<&str>) -> Result<(), SpecError> {
    let hint = "use '-m' option to provide a different default".to_owned();
    if matches!(mountpoint, Some("legacy" | "none")) {
        return Ok(());
    }
    if let Some(path) = mountpoint.filter(|p| !p.starts_with('/')) {
        let what = format!("invalid mountpoint '{path}': must be an absolute path, 'legacy', or 'none'");
        return Err(SpecError::Invalid(vec![what]));
    }
    let root = request.altroot.as_deref().unwrap_or("");
    let path = match mountpoint {
        Some(path) => format!("{root}{path}"),
        None => format!("{root}/{}", request.name),
    };
    match std::fs::read_dir(&path) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                let what = format!("mountpoint '{path}' exists and is not empty");
                return Err(SpecError::Invalid(vec![what, hint]));
            }
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => {
            let what = format!("mountpoint '{path}' : {}", strerror(&e));
            return Err(SpecError::Invalid(vec![what, hint]));
        }
    }
    Ok(())
}

/// What `-n` prints.
pub fn layout(name: &str, spec: &VdevSpec) -> String {
    let mut text = format!("would create '{name}' with the following layout:\n\n");
    let classes = [
        (name, AllocClass::Normal),
        ("dedup", AllocClass::Dedup),
        ("special", AllocClass::Special),
        ("logs", AllocClass::Log),
    ];
    for (title, class) in classes {
        let mut titled = false;
        for top in spec.tops.iter().filter(|t| t.class == class) {
            if !titled {
                text.push_str(&format!("\t{title}\n"));
                titled = true;
            }
            print_new(&mut text, top);
        }
    }
    for (title, list) in [("cache", &spec.l2cache), ("spares", &spec.spares)] {
        if !list.is_empty() {
            text.push_str(&format!("\t{title}\n"));
            print_leaves(&mut text, list, 2);
        }
    }
    text
}

/// A top-level vdev that is to be.
pub fn print_new(text: &mut String, top: &TopSpec) {
    let group = match top.kind {
        TopKind::Single => return print_leaves(text, &top.leaves, 2),
        TopKind::Mirror => "mirror".to_owned(),
        TopKind::Raidz { parity } => format!("raidz{parity}"),
        TopKind::Draid { parity, data, spares } => {
            format!("draid{parity}:{data}d:{}c:{spares}s", top.leaves.len())
        }
    };
    text.push_str(&format!("\t  {group}\n"));
    print_leaves(text, &top.leaves, 4);
}

pub fn print_leaves(text: &mut String, leaves: &[LeafSpec], indent: usize) {
    for leaf in leaves {
        let name = leaf.path.strip_prefix("/dev/").unwrap_or(&leaf.path);
        text.push_str(&format!("\t{:indent$}{name}\n", ""));
    }
}
