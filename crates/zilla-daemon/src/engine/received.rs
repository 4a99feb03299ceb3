//! What `zfs receive` says of properties, and what becomes of those that a stream brings: `-o` and
//! `-x`, the package's own, and what a new dataset is encrypted with.
//!
//! What nobody can set is refused before a stream is read; what concerns keys is judged when it is
//! known what the stream is, and before anything is made.

use super::Engine;
use super::datasets::{CRYPTO, Settled, typed};
use super::errors::Answer;
use super::keys::Turn;
use super::onto::{is_resumed, makes_new};
use super::pool::Pool;
use super::receive::{Part, is_clone, refuse};
use super::streams::Told;
use std::collections::BTreeMap;
use zilla::Value;
use zilla::keys::{NewCrypt, NewSuite};
use zilla::stored::Setting;
use zilla_control::props;
use zilla_control::types::StreamReceive;
use zilla_control::{ApiError, ErrorCode};
use zilla_ondisk::stream::feature;
use zilla_ondisk::{NvList, NvValue};

/// Properties that a volume or its stream settles itself, or that say what its receiver must not be
/// told; and where a key is looked for, which a sender must not choose: it is a file that is read
/// or a URL that is fetched here.
const NOT_TAKEN: &[&str] =
    &["volsize", "volblocksize", "encryption", "keyformat", "keylocation", "pbkdf2iters"];

/// Refuses what `-o` and `-x` cannot name: what there is not, what nobody sets, and what a stream
/// settles. What concerns keys is judged when it is known what the stream is.
pub(super) fn check_names(r: &StreamReceive) -> Answer<()> {
    for name in r.set.keys().chain(&r.exclude) {
        let name = name.as_str();
        if props::is_user_prop(name) || CRYPTO.contains(&name) {
            continue;
        }
        let settable = |p: &props::PropDesc| !p.readonly() && !["version", "volsize"].contains(&p.name);
        if !props::dataset_prop(name).is_some_and(settable) {
            let what = format!("cannot receive: invalid property '{name}'");
            return Err(ApiError::with(ErrorCode::Stream, what));
        }
    }
    Ok(())
}

/// The name of a property itself, whatever it was called.
fn plain_name(name: &str) -> &str {
    props::dataset_prop(name).map_or(name, |p| p.name)
}

/// The properties in a list of a package.
pub(super) fn received(list: Option<&NvList>) -> Vec<(String, Value)> {
    let all = list.into_iter().flat_map(|l| l.iter());
    all.filter_map(|(name, v)| match v {
        NvValue::Uint64(n) => Some((name.to_owned(), Value::u64(*n))),
        NvValue::String(s) => Some((name.to_owned(), Value::string(s))),
        _ => None,
    })
    .collect()
}

/// Settings of a package, `-o` and `-x` together. `-o` is said of the first dataset of a package;
/// those below inherit from it, whatever they have of their own or came with. What a dataset of
/// another type cannot have is left out of a package. `-x` leaves alone what was set here
/// (`local`).
pub(super) fn settings(
    part: &Part<'_>,
    volume: bool,
    local: &[String],
    told: &Told,
) -> Answer<(Settled, Settled)> {
    let types = if volume { props::VOL } else { props::FS };
    let fs = part.fs_name();
    let applies = |name: &str| {
        props::is_user_prop(name) || props::dataset_prop(name).is_some_and(|p| p.applies_to(types))
    };
    // What nobody inherits cannot be taken from above either.
    let inherits =
        |name: &str| props::is_user_prop(name) || props::dataset_prop(name).is_some_and(|p| p.inheritable());
    let mut out: Settled = Vec::new();
    let taken = |name: &str| {
        !zilla::FIXED.contains(&name)
            && !NOT_TAKEN.contains(&name)
            && (props::is_user_prop(name)
                || props::dataset_prop(name).is_some_and(|p| !p.readonly() && p.applies_to(types)))
    };
    for (name, v) in received(part.fs.and_then(|f| f.list("props"))) {
        if taken(&name) {
            out.push((name, Setting::Received(v)));
        }
    }
    for name in part.r.exclude.iter().map(|name| plain_name(name)).filter(|name| !CRYPTO.contains(name)) {
        if !applies(name) {
            told.err(format!("Warning: {fs}: property '{name}' does not apply to datasets of this type"));
        } else if local.iter().any(|l| l == name) {
            continue;
        } else if inherits(name) {
            out.push((name.to_owned(), Setting::Inherit));
        } else {
            out.retain(|(received, _)| received != name);
        }
    }
    let mut set: BTreeMap<String, String> = part.r.set.clone();
    set.retain(|name, _| !CRYPTO.contains(&name.as_str()));
    if let Some(name) = set.keys().find(|name| !applies(name)).filter(|_| !part.recursive) {
        let what = format!("property '{name}' does not apply to datasets of this type");
        return Err(refuse(part, &what));
    }
    set.retain(|name, _| applies(name));
    match part.first {
        true => out.extend(typed(&set, types, true)?),
        false => {
            let names = set.keys().map(|name| plain_name(name)).filter(|name| inherits(name));
            out.extend(names.map(|name| (name.to_owned(), Setting::Inherit)));
        }
    }
    let snap = part.target.split_once('@').map_or("", |(_, s)| s);
    let sent_snap = part.begin.toname.split_once('@').map_or(snap, |(_, s)| s);
    let of_snap = part.fs.and_then(|f| f.list("snapprops")).and_then(|l| l.list(sent_snap));
    let of_snap = received(of_snap).into_iter().map(|(n, v)| (n, Setting::Received(v))).collect();
    Ok((out, of_snap))
}

impl Engine {
    /// What a stream's dataset is encrypted with, if it is new. Where nothing is said it is as its
    /// parent is, but for one that came with properties and not raw: that is of a plain dataset. Of
    /// a package `-o` is said of the first dataset, and those below inherit from it.
    pub(super) async fn received_crypt(&self, pool: &Pool, part: &Part<'_>) -> Answer<NewCrypt> {
        let (r, b, recursive) = (part.r, &part.begin, part.recursive);
        let whole = makes_new(b, part.origin) && !is_resumed(b);
        let raw = b.features() & feature::RAW != 0;
        let (mut said, mut asked) = (false, false);
        for name in CRYPTO {
            let (set, excluded) = (r.set.contains_key(name), r.exclude.iter().any(|x| x == name));
            said |= set || excluded;
            asked |= set && r.set.get(name).is_some_and(|value| value != "off");
            if raw && (set || excluded) {
                let what = format!("encryption property '{name}' cannot be set or excluded for raw streams.");
                return Err(refuse(part, &what));
            }
            if set && !whole && !recursive {
                let what = format!("encryption property '{name}' cannot be set for incremental streams.");
                return Err(refuse(part, &what));
            }
        }
        if raw || !whole {
            return Ok(NewCrypt::default());
        }
        if !said && part.fs.is_some_and(|f| f.contains("props")) {
            return Ok(NewCrypt { suite: NewSuite::Off, ..NewCrypt::default() });
        }
        if !part.first {
            return Ok(NewCrypt::default());
        }
        if asked && !part.new {
            let what = "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an \
                        unencrypted one with an encrypted one";
            return Err(refuse(part, what));
        }
        if asked && (is_clone(b) || part.origin.is_some()) {
            return Err(refuse(part, "Encryption properties must inherit from origin dataset."));
        }
        let words = r.set.iter().filter(|(name, _)| CRYPTO.contains(&name.as_str()));
        let mut words: BTreeMap<String, String> =
            words.map(|(name, value)| (name.clone(), value.clone())).collect();
        let fs = part.fs_name();
        let above = pool.encrypted_above(fs).await;
        let prompts =
            words.contains_key("keyformat") && words.get("keylocation").is_none_or(|l| l == "prompt");
        let off = words.get("encryption").map_or(!above, |e| e == "off");
        if prompts && !off && r.key.is_none() {
            return Err(refuse(part, "Cannot use 'prompt' keylocation because stdin is in use."));
        }
        let crypt = self.new_crypt(&mut words, r.key.as_ref(), above, Turn::OWNER).await;
        crypt.map_err(|e| refuse(part, e.description()))
    }
}
