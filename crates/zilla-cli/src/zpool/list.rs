//! `zpool list`.

use super::status_json;
use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::interval::{Interval, Stamp};
use crate::fmt::json::{self, Obj};
use crate::fmt::proplist::{self, Entry, Of};
use crate::fmt::vdev::{self, NameFlags};
use crate::fmt::{left, one_line, poolprop, right};
use zilla_control::props::nicenum::{Nice, format};
use zilla_control::types::{AllocClass, PoolInfo, PoolQuery, PropValue, Source, VdevNode};

const DEFAULT: &str =
    "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

/// What to show.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub names: NameFlags,
    pub scripted: bool,
    pub literal: bool,
    pub verbose: bool,
    pub json: bool,
    pub json_int: bool,
    pub key_guid: bool,
}

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    const LONG: &[args::Long] =
        &[("json", false, 'j'), ("json-int", false, '\u{1}'), ("json-pool-key-guid", false, '\u{2}')];
    let (options, mut operands) = args::parse(&args, ":gjHLo:pPT:v", LONG);
    let mut opts = Options { names: NameFlags::from_env(), ..Options::default() };
    let mut wanted = DEFAULT.to_owned();
    let mut stamp = None;
    for option in options {
        match option {
            Opt::Flag('g', _) => opts.names.guid = true,
            Opt::Flag('H', _) => opts.scripted = true,
            Opt::Flag('L', _) => opts.names.follow_links = true,
            Opt::Flag('o', list) => wanted = list,
            Opt::Flag('P', _) => opts.names.path = true,
            Opt::Flag('p', _) => opts.literal = true,
            Opt::Flag('j', _) => opts.json = true,
            Opt::Flag('\u{1}', _) => (opts.json_int, opts.literal) = (true, true),
            Opt::Flag('\u{2}', _) => opts.key_guid = true,
            Opt::Flag('T', text) => stamp = Some(Stamp::parse(cx, &text)?),
            Opt::Flag('v', _) => opts.verbose = true,
            other => return cx.bad_option(other),
        }
    }
    if !opts.json && opts.json_int {
        return cx.bad_usage("'--json-int' only works with '-j' option");
    }
    if !opts.json && opts.key_guid {
        return cx.bad_usage("'json-pool-key-guid' only works with '-j' option");
    }
    let mut interval = Interval::take(cx, &mut operands)?;
    let entries = match proplist::parse(&wanted, Of::Pools) {
        Ok(entries) => entries,
        Err(e) => return cx.bad_usage(format!("bad property list: {}", e.description())),
    };
    let mut first = true;
    loop {
        let (pools, failed) = cx.pools(&operands, PoolQuery { properties: true, ..PoolQuery::default() })?;
        if pools.is_empty() {
            if operands.is_empty() && !opts.scripted && !opts.json {
                cx.out.line("no pools available");
            }
            return Ok(u8::from(failed));
        }
        let entries = expand(entries.as_deref(), &pools, opts.literal);
        if opts.json {
            let mut root = json::schema("zpool", "list");
            if let Some(stamp) = stamp {
                let status = super::status::Options {
                    json_int: opts.json_int,
                    now: crate::fmt::time::now(),
                    ..super::status::Options::default()
                };
                status_json::stamp(&mut root, stamp, &status);
            }
            root.obj("pools", as_json(&pools, &entries, &opts));
            cx.out.line(root.render());
        } else {
            if let Some(stamp) = stamp {
                cx.out.line(stamp.now());
            }
            let header = !opts.scripted && (first || opts.verbose);
            cx.out.put(print(&pools, &entries, &opts, header));
        }
        first = false;
        if !interval.next(cx) {
            return Ok(u8::from(failed));
        }
    }
}

/// The list with the widths its values need; `all` becomes everything these pools have.
pub fn expand(entries: Option<&[Entry]>, pools: &[PoolInfo], literal: bool) -> Vec<Entry> {
    let mut entries = match entries {
        Some(entries) => entries.to_vec(),
        None => all(pools),
    };
    for entry in &mut entries {
        if entry.fixed() && !literal {
            continue;
        }
        for pool in pools {
            if let Some(value) = poolprop::get(pool, &entry.name, literal) {
                entry.widen(&value.value);
            }
        }
    }
    entries
}

/// Every property of these pools, `name` first, features last.
pub fn all(pools: &[PoolInfo]) -> Vec<Entry> {
    let mut entries = vec![proplist::named("name".to_owned())];
    if let Ok(Some(name)) = proplist::parse("name", Of::Pools) {
        entries = name;
    }
    entries.extend(proplist::all(Of::Pools));
    if let Some(pool) = pools.first() {
        let user = pool.properties.keys().filter(|name| zilla_control::props::is_user_prop(name));
        entries.extend(user.map(|name| proplist::named(name.clone())));
    }
    entries.extend(
        zilla_control::props::FEATURES.iter().map(|f| proplist::named(format!("feature@{}", f.name))),
    );
    for pool in pools {
        for feature in pool.features.iter().filter(|f| !f.supported) {
            let known = zilla_control::props::feature_by_guid(&feature.guid).is_some();
            let name = format!("unsupported@{}", feature.guid);
            if !known && !entries.iter().any(|e| e.name == name) {
                entries.push(proplist::named(name));
            }
        }
    }
    entries
}

/// Width of the name column of `-v`.
fn name_width(pools: &[PoolInfo], opts: &Options) -> usize {
    let width = |pool: &PoolInfo| {
        if opts.verbose { vdev::max_width(pool, opts.names, true) } else { pool.name.len() }
    };
    pools.iter().map(width).fold(9, usize::max)
}

/// The table.
pub fn print(pools: &[PoolInfo], entries: &[Entry], opts: &Options, header: bool) -> String {
    let names = name_width(pools, opts);
    let mut text = String::new();
    if header {
        text.push_str(&row(entries, names, opts.verbose, false, Entry::header));
    }
    for pool in pools {
        text.push_str(&row(entries, names, opts.verbose, opts.scripted, |entry| {
            poolprop::get(pool, &entry.name, opts.literal).map_or_else(|| "-".to_owned(), |v| v.value)
        }));
        if opts.verbose {
            verbose(&mut text, pool, names, opts);
        }
    }
    text
}

fn row(
    entries: &[Entry],
    names: usize,
    verbose: bool,
    tabs: bool,
    cell: impl Fn(&Entry) -> String,
) -> String {
    let mut line = String::new();
    for (i, entry) in entries.iter().enumerate() {
        if i > 0 {
            line.push_str(if tabs { "\t" } else { "  " });
        }
        let width = if i == 0 && verbose { names } else { entry.width };
        let text = cell(entry);
        let text = one_line(&text);
        if tabs || (i + 1 == entries.len() && !entry.right_align()) {
            line.push_str(&text);
        } else if entry.right_align() {
            line.push_str(&right(&text, width));
        } else {
            line.push_str(&left(&text, width));
        }
    }
    line.push('\n');
    line
}

/// Columns of vdevs: the pool property that names the column, and the value.
fn columns(vdev: &VdevNode, spare: bool, literal: bool) -> Vec<(&'static str, String)> {
    let s = &vdev.stats;
    let how = if literal { Nice::Raw } else { Nice::Num };
    let top = s.space != 0;
    let or_dash = |valid: bool, text: String| if valid { text } else { "-".to_owned() };
    let nonzero = |n: u64| or_dash(n != 0, format(n, how));
    let size = if s.pspace != 0 { nonzero(s.pspace) } else { or_dash(top, nonzero(s.space)) };
    let fragmentation = match s.fragmentation {
        Some(f) if top => {
            if literal {
                f.to_string()
            } else {
                format!("{f}%")
            }
        }
        _ => "-".to_owned(),
    };
    // Ten-thousandths, so that small fractions can be told.
    let share = u128::from(s.alloc) * 10_000 / u128::from(s.space.max(1));
    let share = u64::try_from(share).unwrap_or(u64::MAX);
    let percent = share as f64 / 100.0;
    let capacity = match share {
        _ if literal => (share / 100).to_string(),
        0..1000 => format!("{percent:.2}%"),
        1000..10_000 => format!("{percent:.1}%"),
        _ => format!("{percent:3.0}%"),
    };
    let state = if spare { vdev::spare_state_name(vdev) } else { vdev::state_name(s.state, s.aux) };
    vec![
        ("size", size),
        ("allocated", or_dash(top, format(s.alloc, how))),
        ("free", or_dash(top, format(s.space.saturating_sub(s.alloc), how))),
        ("checkpoint", or_dash(top, nonzero(s.checkpoint_space))),
        ("expandsize", nonzero(s.esize)),
        ("fragmentation", fragmentation),
        ("capacity", or_dash(top, capacity)),
        ("dedupratio", "-".to_owned()),
        ("health", state.to_owned()),
    ]
}

fn verbose(text: &mut String, pool: &PoolInfo, names: usize, opts: &Options) {
    const DASHES: &str = "      -      -      -        -         -      -      -      -         -\n";
    for vdev in vdev::normal_children(&pool.root) {
        lines(text, vdev, &vdev::name(vdev, opts.names, true), 2, names, false, opts);
    }
    for &(class, title) in vdev::CLASSES {
        let mut members = vdev::class_children(&pool.root, class).peekable();
        if members.peek().is_some() {
            text.push_str(&format!("{title:<names$}{DASHES}"));
        }
        for vdev in members {
            lines(text, vdev, &vdev::name(vdev, opts.names, true), 2, names, false, opts);
        }
    }
    for (list, title, spare) in [(&pool.l2cache, "cache", false), (&pool.spares, "spare", true)] {
        if !list.is_empty() {
            text.push_str(&format!("{title:<names$}{DASHES}"));
        }
        for vdev in list {
            lines(text, vdev, &vdev::name(vdev, opts.names, false), 2, names, spare, opts);
        }
    }
}

fn lines(
    text: &mut String,
    vdev: &VdevNode,
    name: &str,
    depth: usize,
    names: usize,
    spare: bool,
    opts: &Options,
) {
    if opts.scripted {
        text.push_str(&format!("\t{name}"));
    } else {
        text.push_str(&format!("{:depth$}{}", "", left(name, names.saturating_sub(depth))));
    }
    for (property, value) in columns(vdev, spare, opts.literal) {
        if opts.scripted {
            text.push_str(&format!("\t{value}"));
        } else {
            text.push_str(&format!("  {}", right(&value, proplist::pool_column_width(property))));
        }
    }
    text.push('\n');
    for child in vdev::normal_children(vdev) {
        lines(text, child, &vdev::name(child, opts.names, true), depth + 2, names, spare, opts);
    }
}

fn as_json(pools: &[PoolInfo], entries: &[Entry], opts: &Options) -> Obj {
    let mut all = Obj::new();
    for pool in pools {
        let mut item = status_json::pool_info(pool, true, opts.json_int);
        let mut properties = Obj::new();
        for entry in entries.iter().filter(|e| e.name != "name") {
            let value = poolprop::get(pool, &entry.name, opts.literal)
                .unwrap_or_else(|| PropValue::new("-", Source::None));
            properties.obj(entry.name.as_str(), json::property(&value.value, &value, opts.json_int));
        }
        item.obj("properties", properties);
        if opts.verbose {
            let mut vdevs = Obj::new();
            for vdev in vdev::normal_children(&pool.root) {
                let name = vdev::name(vdev, opts.names, true);
                json_vdev(&mut vdevs, vdev, &name, AllocClass::Normal, opts);
            }
            for &(class, title) in vdev::CLASSES {
                let mut members = Obj::new();
                for vdev in vdev::class_children(&pool.root, class) {
                    json_vdev(&mut members, vdev, &vdev::name(vdev, opts.names, true), class, opts);
                }
                if !members.is_empty() {
                    vdevs.obj(title, members);
                }
            }
            let lists =
                [(&pool.l2cache, "l2cache", AllocClass::Cache), (&pool.spares, "spares", AllocClass::Spare)];
            for (list, title, class) in lists {
                let mut members = Obj::new();
                for vdev in list {
                    json_vdev(&mut members, vdev, &vdev::name(vdev, opts.names, false), class, opts);
                }
                if !members.is_empty() {
                    vdevs.obj(title, members);
                }
            }
            item.obj("vdevs", vdevs);
        }
        let key = if opts.key_guid { pool.guid.to_string() } else { pool.name.clone() };
        all.obj(key, item);
    }
    all
}

fn json_vdev(into: &mut Obj, vdev: &VdevNode, name: &str, class: AllocClass, opts: &Options) {
    let mut object = status_json::vdev_info(vdev, name, class, false, opts.json_int);
    let mut properties = Obj::new();
    for (property, value) in columns(vdev, class == AllocClass::Spare, opts.literal) {
        let none = PropValue::default();
        properties.obj(property, json::property(&value, &none, opts.json_int));
    }
    object.obj("properties", properties);
    let mut below = Obj::new();
    for child in vdev::normal_children(vdev) {
        json_vdev(&mut below, child, &vdev::name(child, opts.names, true), class, opts);
    }
    if !below.is_empty() {
        object.obj("vdevs", below);
    }
    into.obj(name, object);
}
