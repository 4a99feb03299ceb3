//! `zfs load-key`, `unload-key` and `change-key`, and the key that a new dataset needs.

use super::change::parse_prop;
use super::select::Selection;
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::material::Wanted;
use std::collections::BTreeMap;
use zilla_control::error::ErrorCode;
use zilla_control::props::naming::pool_of;
use zilla_control::types::{DatasetInfo, DatasetKind, KeyChange, KeyLoad, KeyMaterial, KeyUnload};

/// How often a person may try. Source: MAX_KEY_PROMPT_ATTEMPTS of libzfs_crypto.c.
const ATTEMPTS: usize = 3;
/// What OpenZFS's commands return as -1.
const FAILED: u8 = 255;

const PROPERTIES: [&str; 6] =
    ["encryption", "encryptionroot", "keystatus", "keyformat", "keylocation", "origin"];

/// A dataset as this file sees it.
pub(super) struct Keyed(DatasetInfo);

impl Keyed {
    fn get(&self, name: &str) -> &str {
        self.0.properties.get(name).map_or("", |v| v.value.as_str())
    }
    fn name(&self) -> &str {
        &self.0.name
    }
    pub(super) fn is_encrypted(&self) -> bool {
        !matches!(self.get("encryption"), "off" | "")
    }
    fn is_root(&self) -> bool {
        self.get("encryptionroot") == self.name()
    }
    pub(super) fn is_loaded(&self) -> bool {
        self.get("keystatus") == "available"
    }
    pub(super) fn root(&self) -> &str {
        self.get("encryptionroot")
    }
}

/// Datasets with what concerns their keys; true if some do not exist.
pub(super) fn find(cx: &mut Cx, operands: &[String], recursive: bool) -> Result<(Vec<Keyed>, bool), Exit> {
    let selection = Selection {
        operands: operands.to_vec(),
        recursive,
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
        ..Selection::default()
    };
    let wanted = PROPERTIES.iter().map(|p| (*p).to_owned()).collect();
    let (found, failed) = selection.find(cx, wanted)?;
    Ok((found.into_iter().map(Keyed).collect(), failed))
}

/// `Key load error: ...`, as libzfs says it.
fn refuse(cx: &mut Cx, action: &str, why: &str) -> bool {
    cx.err(format!("Key {action} error: {why}"));
    false
}

/// Loads the key of an encryption root, asking again where a person is asked. Whether it is loaded.
pub(super) fn load(cx: &mut Cx, ds: &Keyed, check: bool, location: Option<&str>) -> Result<bool, Exit> {
    let name = ds.name().to_owned();
    if !ds.is_encrypted() {
        return Ok(refuse(cx, "load", &format!("'{name}' is not encrypted.")));
    }
    if !ds.is_root() {
        let what = format!("Keys must be loaded for encryption root of '{name}' ({}).", ds.root());
        return Ok(refuse(cx, "load", &what));
    }
    if !check && ds.is_loaded() {
        return Ok(refuse(cx, "load", &format!("Key already loaded for '{name}'.")));
    }
    let wanted = Wanted {
        format: ds.get("keyformat"),
        location: location.unwrap_or_else(|| ds.get("keylocation")),
        name: Some(&name),
        new: false,
    };
    for attempt in 1..=ATTEMPTS {
        let again = wanted.can_retry() && attempt < ATTEMPTS;
        let key = match wanted.get(cx) {
            Ok(key) => key,
            Err(why) => {
                refuse(cx, "load", &why);
                if again {
                    continue;
                }
                return Ok(false);
            }
        };
        match cx.call(&KeyLoad { name: name.clone(), key, check })? {
            Ok(()) => return Ok(true),
            Err(e) => {
                refuse(cx, "load", e.description());
                if !again || e.code != ErrorCode::WrongKey {
                    return Ok(false);
                }
            }
        }
    }
    Ok(false)
}

fn unload(cx: &mut Cx, ds: &Keyed) -> Result<bool, Exit> {
    let name = ds.name();
    if !ds.is_encrypted() {
        return Ok(refuse(cx, "unload", &format!("'{name}' is not encrypted.")));
    }
    if !ds.is_root() {
        let what = format!("Keys must be unloaded for encryption root of '{name}' ({}).", ds.root());
        return Ok(refuse(cx, "unload", &what));
    }
    if !ds.is_loaded() {
        return Ok(refuse(cx, "unload", &format!("Key already unloaded for '{name}'.")));
    }
    match cx.call(&KeyUnload { name: name.to_owned() })? {
        Ok(()) => Ok(true),
        Err(e) => Ok(refuse(cx, "unload", e.description())),
    }
}

pub fn load_key(cx: &mut Cx, args: Vec<String>) -> Run {
    load_or_unload(cx, args, true)
}

pub fn unload_key(cx: &mut Cx, args: Vec<String>) -> Run {
    load_or_unload(cx, args, false)
}

fn load_or_unload(cx: &mut Cx, args: Vec<String>, loads: bool) -> Run {
    let (options, operands) = args::parse(&args, if loads { "anrL:" } else { "ar" }, &[]);
    let (mut all, mut recursive, mut check, mut location) = (false, false, false, None);
    for option in options {
        match option {
            Opt::Flag('a', _) => all = true,
            Opt::Flag('r', _) => recursive = true,
            Opt::Flag('n', _) => check = true,
            Opt::Flag('L', text) => location = Some(text),
            other => return cx.bad_option(other),
        }
    }
    if !all && operands.is_empty() {
        return cx.bad_usage("Missing dataset argument or -a option");
    }
    if all && !operands.is_empty() {
        return cx.bad_usage("Cannot specify dataset with -a option");
    }
    let many = all || recursive;
    if many && location.as_ref().is_some_and(|l| l != "prompt") {
        return cx.bad_usage("alternate keylocation may only be 'prompt' with -r or -a");
    }
    let (found, missing) = find(cx, &operands, many)?;
    let (mut attempted, mut done) = (0, 0);
    for ds in found {
        // Of many only those count that are to be changed.
        if many && (!ds.is_root() || ds.is_loaded() == loads) {
            continue;
        }
        attempted += 1;
        done +=
            usize::from(if loads { load(cx, &ds, check, location.as_deref())? } else { unload(cx, &ds)? });
    }
    if check || many && attempted != 0 {
        let verb = match (loads, check) {
            (true, true) => "verified",
            (true, false) => "loaded",
            _ => "unloaded",
        };
        cx.out.line(format!("{done} / {attempted} key(s) successfully {verb}"));
    }
    Ok(if done != attempted { FAILED } else { u8::from(missing) })
}

pub fn change_key(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "lio:", &[]);
    let (mut first_load, mut inherit, mut properties) = (false, false, BTreeMap::new());
    for option in options {
        match option {
            Opt::Flag('l', _) => first_load = true,
            Opt::Flag('i', _) => inherit = true,
            Opt::Flag('o', text) => parse_prop(cx, &mut properties, &text)?,
            other => return cx.bad_option(other),
        }
    }
    match operands.as_slice() {
        [_] => {}
        [] => return cx.bad_usage("Missing dataset argument"),
        _ => return cx.bad_usage("Too many arguments"),
    }
    if inherit && !properties.is_empty() {
        return cx.bad_usage("Properties not allowed for inheriting");
    }
    let (found, _) = find(cx, &operands, false)?;
    let Some(ds) = found.into_iter().next() else { return cx.print_usage() };
    if first_load && !ds.is_loaded() && !load(cx, &ds, false, None)? {
        return Ok(FAILED);
    }
    let Some(request) = changed(cx, &ds, inherit, properties, first_load)? else { return Ok(FAILED) };
    match cx.call(&request)? {
        Ok(()) => {
            cx.log_history(pool_of(&request.name))?;
            Ok(0)
        }
        Err(e) => {
            refuse(cx, "change", e.description());
            Ok(FAILED)
        }
    }
}

/// What to ask the daemon for, if that can be.
fn changed(
    cx: &mut Cx,
    ds: &Keyed,
    inherit: bool,
    mut properties: BTreeMap<String, String>,
    loaded: bool,
) -> Result<Option<KeyChange>, Exit> {
    let name = ds.name().to_owned();
    let mut why = None;
    if !ds.is_encrypted() {
        why = Some("Dataset not encrypted.");
    } else if !ds.get("origin").is_empty() && ds.get("origin") != "-" {
        why = Some("Keys cannot be changed on clones.");
    } else if inherit && !properties.is_empty() {
        why = Some("Only user properties may be set with 'zfs change-key -i'");
    } else if inherit && !ds.is_root() {
        why = Some("Key inheritting can only be performed on encryption roots.");
    }
    if let (None, true) = (why, inherit) {
        match name.rsplit_once('/') {
            None => why = Some("Root dataset cannot inherit key."),
            Some((parent, _)) => {
                let (above, _) = find(cx, &[parent.to_owned()], false)?;
                match above.first() {
                    None => why = Some("Failed to lookup parent."),
                    Some(p) if !p.is_encrypted() => why = Some("Parent must be encrypted."),
                    Some(p) if !p.is_loaded() => why = Some("Parent key must be loaded."),
                    Some(_) => {}
                }
            }
        }
    }
    if let Some(why) = why {
        refuse(cx, "change", why);
        return Ok(None);
    }
    let mut request = KeyChange { name: name.clone(), inherit, ..KeyChange::default() };
    if !inherit {
        request.keyformat = properties.remove("keyformat");
        request.keylocation = properties.remove("keylocation");
        request.pbkdf2iters = properties.remove("pbkdf2iters");
        if !properties.is_empty() {
            let what =
                "Only keyformat, keylocation, pbkdf2iters, and user properties may be set with this command.";
            let user = properties.keys().all(|k| k.contains(':'));
            refuse(
                cx,
                "change",
                if user { "user properties with change-key are not supported by zilla yet" } else { what },
            );
            return Ok(None);
        }
        let format = request.keyformat.clone().filter(|f| f != "none");
        let format = match format {
            Some(format) => format,
            None if ds.is_root() => ds.get("keyformat").to_owned(),
            None => {
                refuse(cx, "change", "Keyformat required for new encryption root.");
                return Ok(None);
            }
        };
        if !ds.is_root() && request.keylocation.is_none() {
            request.keylocation = Some("prompt".to_owned());
        }
        let location = request.keylocation.clone().unwrap_or_else(|| ds.get("keylocation").to_owned());
        let wanted = Wanted { format: &format, location: &location, name: Some(&name), new: true };
        match wanted.get(cx) {
            Ok(key) => request.key = Some(key),
            Err(why) => {
                refuse(cx, "change", &why);
                return Ok(None);
            }
        }
    }
    if !ds.is_loaded() && !loaded {
        refuse(cx, "change", "Key must be loaded.");
        return Ok(None);
    }
    Ok(Some(request))
}

/// The key of a new dataset, if its properties ask for one. The outer error ends the command, which
/// says what cannot be done.
pub(crate) fn of_new(
    cx: &mut Cx,
    properties: &BTreeMap<String, String>,
    action: &str,
) -> Result<Option<KeyMaterial>, Exit> {
    let Some(format) = properties.get("keyformat").filter(|f| *f != "none") else { return Ok(None) };
    if properties.get("encryption").is_some_and(|e| e == "off") {
        // The daemon says what is wrong.
        return Ok(None);
    }
    if !matches!(format.as_str(), "raw" | "hex" | "passphrase") {
        return Ok(None);
    }
    let location = properties.get("keylocation").map_or("prompt", String::as_str);
    let wanted = Wanted { format, location, name: None, new: true };
    match wanted.get(cx) {
        Ok(key) => Ok(Some(key)),
        Err(why) => {
            cx.err(format!("{action}: {why}"));
            Err(Exit(1))
        }
    }
}

/// What libzfs calls it when there is no key for a new dataset.
pub(crate) const CREATE_ERROR: &str = "Encryption create error";

/// What a refusal to make a dataset is called.
pub(crate) fn create_action(code: ErrorCode, otherwise: String) -> String {
    if code == ErrorCode::CryptoFailed { CREATE_ERROR.to_owned() } else { otherwise }
}
