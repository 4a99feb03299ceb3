//! `zpool get` and `zpool set`.

use super::{compat, list, status_json};
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::json::{self, Obj};
use crate::fmt::one_line;
use crate::fmt::poolprop;
use crate::fmt::proplist::{self, Column, Entry, GetRow, GetTable, Of};
use crate::fmt::vdev::{self, NameFlags};
use std::collections::BTreeMap;
use zilla_control::props;
use zilla_control::status::Compatibility;
use zilla_control::types::{
    FeatureState, PoolInfo, PoolQuery, PoolSet, PropValue, Source, VdevNode, vdev_state_word,
};

struct Options {
    scripted: bool,
    literal: bool,
    json: bool,
    json_int: bool,
    key_guid: bool,
    columns: Vec<Column>,
}

pub fn get(cx: &mut Cx, args: Vec<String>) -> Run {
    const LONG: &[args::Long] =
        &[("json", false, 'j'), ("json-int", false, '\u{1}'), ("json-pool-key-guid", false, '\u{2}')];
    let (options, mut operands) = args::parse(&args, ":jHpo:", LONG);
    let mut opts = Options {
        scripted: false,
        literal: false,
        json: false,
        json_int: false,
        key_guid: false,
        columns: Column::DEFAULT.to_vec(),
    };
    for option in options {
        match option {
            Opt::Flag('H', _) => opts.scripted = true,
            Opt::Flag('p', _) => opts.literal = true,
            Opt::Flag('j', _) => opts.json = true,
            Opt::Flag('\u{1}', _) => (opts.json_int, opts.literal) = (true, true),
            Opt::Flag('\u{2}', _) => opts.key_guid = true,
            Opt::Flag('o', text) => opts.columns = columns(cx, &text)?,
            Opt::Missing(_) => return cx.bad_usage("missing property argument"),
            other => return cx.bad_option(other),
        }
    }
    if !opts.json && opts.json_int {
        return cx.bad_usage("'--json-int' only works with '-j' option");
    }
    if !opts.json && opts.key_guid {
        return cx.bad_usage("'json-pool-key-guid' only works with '-j' option");
    }
    if operands.is_empty() {
        return cx.bad_usage("missing property argument");
    }
    let wanted = operands.remove(0);
    let query = || PoolQuery { properties: true, vdev_properties: true, ..PoolQuery::default() };
    let all = cx.ask("cannot list pools", &query())?.ok_or(Exit(1))?;
    let known = |name: &String| all.iter().any(|p| p.name == *name);
    if let Some(first) = operands.first()
        && !known(first)
    {
        cx.err(format!("Cannot get properties of {first}: no such pool available."));
        return Ok(1);
    }
    if operands.iter().all(known) {
        let (pools, failed) = cx.pools(&operands, query())?;
        let entries = match proplist::parse(&wanted, Of::Pools) {
            Ok(entries) => entries,
            Err(e) => return cx.bad_usage(format!("bad property list: {}", e.description())),
        };
        let entries = list::expand(entries.as_deref(), &pools, opts.literal);
        show_pools(cx, &pools, entries, wanted == "all", &opts);
        return Ok(u8::from(failed));
    }
    match all.iter().find(|p| p.name == operands[0]) {
        Some(pool) => vdevs(cx, pool, &operands[1..], &wanted, &opts),
        None => Ok(1),
    }
}

/// `-o name,value` of `get`; `all` is every column.
pub fn columns(cx: &mut Cx, text: &str) -> Result<Vec<Column>, Exit> {
    let mut columns = Vec::new();
    let all = if cx.program == "zpool" { Column::DEFAULT } else { Column::ALL };
    for word in text.split(',') {
        if columns.len() == all.len() {
            return cx.bad_usage("too many fields given to -o option");
        }
        match Column::parse(word) {
            // Pools receive nothing.
            Some(Column::Received) if cx.program == "zpool" => {
                return cx.bad_usage(format!("invalid column name '{word}'"));
            }
            Some(column) => columns.push(column),
            None if word == "all" && columns.is_empty() => {
                columns = all.to_vec();
            }
            None if word == "all" => {
                return cx.bad_usage("\"all\" conflicts with specific fields given to -o option");
            }
            None => return cx.bad_usage(format!("invalid column name '{word}'")),
        }
    }
    Ok(columns)
}

fn show_pools(cx: &mut Cx, pools: &[PoolInfo], entries: Vec<Entry>, all: bool, opts: &Options) {
    // `all` begins with the name, which is not among its rows.
    let entries: Vec<Entry> = entries.into_iter().skip(usize::from(all)).collect();
    if opts.json {
        let mut members = Obj::new();
        for pool in pools {
            let mut item = status_json::pool_info(pool, true, opts.json_int);
            let mut properties = Obj::new();
            for entry in &entries {
                if let Some(value) = poolprop::get(pool, &entry.name, opts.literal) {
                    properties.obj(entry.name.as_str(), json::property(&value.value, &value, opts.json_int));
                }
            }
            item.obj("properties", properties);
            let key = if opts.key_guid { pool.guid.to_string() } else { pool.name.clone() };
            members.obj(key, item);
        }
        let mut root = json::schema("zpool", "get");
        root.obj("pools", members);
        cx.out.line(root.render());
        return;
    }
    cx.out.put(print_pools(pools, &entries, opts.literal, opts.scripted, &opts.columns));
}

/// The table for pools.
pub fn print_pools(
    pools: &[PoolInfo],
    entries: &[Entry],
    literal: bool,
    scripted: bool,
    columns: &[Column],
) -> String {
    let mut rows = Vec::new();
    for pool in pools {
        for entry in entries {
            if let Some(value) = poolprop::get(pool, &entry.name, literal) {
                rows.push(GetRow { name: pool.name.clone(), property: entry.name.clone(), value });
            } else if !entry.from_all && zilla_control::props::is_user_prop(&entry.name) {
                let value = zilla_control::types::PropValue::new("-", zilla_control::types::Source::Default);
                rows.push(GetRow { name: pool.name.clone(), property: entry.name.clone(), value });
            }
        }
    }
    // Of a feature that a pool does not know there is no row, and no heading of none.
    if rows.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = pools.iter().map(|p| p.name.as_str()).collect();
    table(&rows, &names, entries, scripted, columns)
}

/// Rows under a header, with the widths of every object and property asked for.
pub fn table(
    rows: &[GetRow],
    names: &[&str],
    entries: &[Entry],
    scripted: bool,
    columns: &[Column],
) -> String {
    let table = GetTable {
        columns,
        scripted,
        name_width: names.iter().map(|n| n.chars().count()).max().unwrap_or(0),
        property_width: entries.iter().map(|e| e.name.chars().count()).max().unwrap_or(0),
        value_width: entries.iter().map(|e| e.width).max().unwrap_or(0),
        received_width: rows
            .iter()
            .filter_map(|r| r.value.received.as_ref())
            .map(|v| one_line(v).chars().count())
            .max()
            .unwrap_or(0),
        alone: scripted && columns.len() == 1 && rows.len() == 1,
    };
    let mut text = String::new();
    if !scripted && !rows.is_empty() {
        text.push_str(&table.header());
    }
    for row in rows {
        text.push_str(&table.row(row));
    }
    text
}

/// A vdev, and what it is called.
struct Named<'a> {
    name: String,
    vdev: &'a VdevNode,
    parent: Option<&'a VdevNode>,
}

/// All vdevs of a pool, in the order in which they are shown.
fn all_vdevs(pool: &PoolInfo) -> Vec<Named<'_>> {
    fn walk<'a>(vdev: &'a VdevNode, parent: Option<&'a VdevNode>, out: &mut Vec<Named<'a>>) {
        out.push(Named { name: named(vdev), vdev, parent });
        vdev.children.iter().for_each(|c| walk(c, Some(vdev), out));
    }
    let mut out = Vec::new();
    walk(&pool.root, None, &mut out);
    pool.l2cache.iter().for_each(|v| walk(v, None, &mut out));
    out
}

fn named(vdev: &VdevNode) -> String {
    vdev::name(vdev, NameFlags::default(), true)
}

/// The vdev that a word names: as it is shown, by its path or its guid.
fn find_vdev<'a, 'b>(all: &'b [Named<'a>], word: &str) -> Option<&'b Named<'a>> {
    let word = if word == "root" { "root-0" } else { word };
    let by_path =
        |n: &Named<'_>| n.vdev.path.as_deref().is_some_and(|p| p == word || p.ends_with(&format!("/{word}")));
    let exactly = all.iter().find(|n| n.name == word || n.vdev.guid.to_string() == word);
    exactly.or_else(|| all.iter().find(|n| by_path(n)))
}

fn vdevs(cx: &mut Cx, pool: &PoolInfo, names: &[String], wanted: &str, opts: &Options) -> Run {
    let mut chosen: Vec<(String, BTreeMap<String, PropValue>)> = Vec::new();
    let everything = names.len() == 1 && names.iter().all(|n| n == "all-vdevs");
    let all = all_vdevs(pool);
    let mut unknown = Vec::new();
    let mut take = |n: &Named<'_>| {
        let mut properties = pool.vdev_properties.get(&n.vdev.guid.to_string()).cloned().unwrap_or_default();
        let children: Vec<String> = n.vdev.children.iter().map(named).collect();
        let children = (!children.is_empty()).then(|| children.join(","));
        for (property, value) in
            [("name", Some(n.name.clone())), ("parent", n.parent.map(named)), ("children", children)]
        {
            let value = match value {
                Some(value) => PropValue::new(value, Source::None),
                None => PropValue::new("-", Source::Default),
            };
            properties.insert(property.to_owned(), value);
        }
        chosen.push((n.name.clone(), properties));
    };
    if everything {
        all.iter().for_each(&mut take);
    } else {
        for name in names {
            match find_vdev(&all, name) {
                Some(found) => take(found),
                None => unknown.push(name.to_owned()),
            }
        }
    }
    if !unknown.is_empty() {
        cx.err(format!("Expected a list of vdevs in \"{}\", but got:", pool.name));
        for name in unknown {
            cx.err(format!("\t{name}"));
        }
        cx.err("");
        return cx.print_usage();
    }
    let entries = match proplist::parse(wanted, Of::Vdevs) {
        Ok(entries) => entries,
        Err(e) => return cx.bad_usage(format!("bad property list: {}", e.description())),
    };
    let mut entries = entries.unwrap_or_else(|| {
        let mut entries = proplist::all(Of::Vdevs);
        let own = chosen.iter().flat_map(|(_, properties)| properties.keys()).filter(|n| n.contains(':'));
        let own: std::collections::BTreeSet<&String> = own.collect();
        let own = own.into_iter().filter_map(|name| proplist::parse(name, Of::Vdevs).ok().flatten());
        entries.extend(own.flatten());
        entries
    });
    let mut rows = Vec::new();
    for (name, properties) in &chosen {
        for entry in &mut entries {
            let absent = || {
                let own = props::is_user_prop(&entry.name);
                own.then(|| PropValue::new("-", Source::Default))
            };
            if let Some(mut value) = properties.get(&entry.name).cloned().or_else(absent) {
                if !opts.literal {
                    value.value = nice_vdev(&entry.name, &value.value);
                }
                entry.widen(&value.value);
                rows.push(GetRow { name: name.clone(), property: entry.name.clone(), value });
            }
        }
    }
    if opts.json {
        let mut members = Obj::new();
        for (name, _) in &chosen {
            let mut properties = Obj::new();
            for row in rows.iter().filter(|r| r.name == *name) {
                let value = json::property(&row.value.value, &row.value, opts.json_int);
                properties.obj(row.property.as_str(), value);
            }
            let mut item = Obj::new();
            item.str("name", name.as_str());
            item.str("type", "VDEV");
            item.obj("properties", properties);
            members.obj(name.as_str(), item);
        }
        let mut root = json::schema("zpool", "get");
        root.obj("vdevs", members);
        cx.out.line(root.render());
        return Ok(0);
    }
    let names: Vec<&str> = chosen.iter().map(|(name, _)| name.as_str()).collect();
    cx.out.put(table(&rows, &names, &entries, opts.scripted, &opts.columns));
    Ok(0)
}

/// A vdev's value for the eye.
fn nice_vdev(name: &str, raw: &str) -> String {
    use zilla_control::props::nicenum::{nicebytes, nicenum};
    let Ok(number) = raw.parse::<u64>() else { return raw.to_owned() };
    match name {
        "capacity" | "fragmentation" => format!("{number}%"),
        "state" => vdev_state_word(number).to_owned(),
        "guid" | "ashift" | "parity" | "numchildren" => raw.to_owned(),
        "expandsize" if number == 0 => "-".to_owned(),
        "asize" | "psize" | "size" | "bootsize" | "allocated" | "free" | "expandsize" => nicebytes(number),
        _ => nicenum(number),
    }
}

pub fn set(cx: &mut Cx, args: Vec<String>) -> Run {
    if let Some(letter) = args.first().and_then(|a| a.strip_prefix('-')) {
        return cx.bad_usage(format!("invalid option '{}'", letter.chars().next().unwrap_or('-')));
    }
    let (assignment, name, vdev) = match args.as_slice() {
        [] => return cx.bad_usage("missing property=value argument"),
        [_] => return cx.bad_usage("missing pool name"),
        [assignment, name] => (assignment, name, None),
        [assignment, name, vdev] => (assignment, name, Some(vdev.clone())),
        _ => return cx.bad_usage("too many pool names"),
    };
    let Some((property, value)) = assignment.split_once('=') else {
        return cx.bad_usage("missing value in property=value argument");
    };
    let query = PoolQuery { names: vec![name.clone()], properties: true, ..PoolQuery::default() };
    let pools = cx.ask("cannot list pools", &query)?.unwrap_or_default();
    let Some(pool) = pools.first() else {
        cx.err(format!("cannot open '{name}': is not a pool"));
        return Ok(22);
    };
    if vdev.is_none() {
        check_compatibility(cx, pool, property, value)?;
    }
    let refused = match &vdev {
        Some(vdev) => format!("cannot set property {property} for {vdev} on {name}"),
        None => format!("cannot set property for '{name}'"),
    };
    let vdev = match vdev {
        Some(word) => match find_vdev(&all_vdevs(pool), &word) {
            Some(found) => Some(found.vdev.guid.to_string()),
            None => {
                cx.err(format!("cannot find '{word}' in '{name}': device not in pool"));
                return Ok(22);
            }
        },
        None => None,
    };
    let request =
        PoolSet { name: name.clone(), vdev, property: property.to_owned(), value: value.to_owned() };
    if cx.ask(&refused, &request)?.is_none() {
        return Ok(1);
    }
    if request.vdev.is_none() {
        super::create::note_on(cx, property);
    }
    cx.log_history(name)?;
    Ok(0)
}

/// What the property `compatibility` has to say of itself, and of a feature that is to be enabled.
fn check_compatibility(cx: &mut Cx, pool: &PoolInfo, property: &str, value: &str) -> Result<(), Exit> {
    let name = &pool.name;
    if let Some(feature) = property.strip_prefix("feature@").filter(|_| value == "enabled") {
        match compat::of(pool) {
            Compatibility::Broken => {
                cx.err(format!("Error: cannot enable feature '{feature}' on pool '{name}'"));
                cx.err("because the pool's 'compatibility' property cannot be parsed.");
                return Err(Exit(1));
            }
            Compatibility::Listed(names) if !names.iter().any(|n| n == feature) => {
                cx.err(format!("Error: cannot enable feature '{feature}' on pool '{name}'"));
                cx.err("as it is not specified in this pool's current compatibility set.");
                cx.err("Consider setting 'compatibility' to a less restrictive set, or to 'off'.");
                return Err(Exit(1));
            }
            _ => {}
        }
    }
    if property != "compatibility" {
        return Ok(());
    }
    let sets = compat::load(value);
    if let Some(what) = &sets.complaint {
        let broken = sets.features == Compatibility::Broken;
        cx.err(format!("{}: {what}", if broken { "Error" } else { "Warning" }));
        if broken {
            return Err(Exit(1));
        }
    }
    let names = match &sets.features {
        Compatibility::Listed(names) => Some(names.as_slice()),
        Compatibility::Legacy => Some(&[][..]),
        _ => None,
    };
    if let Some(names) = names {
        let on = pool.features.iter().filter(|f| f.state != FeatureState::Disabled);
        if on.into_iter().any(|f| !names.contains(&f.name)) {
            cx.err(format!("Warning: one or more features already enabled on pool '{name}'"));
            cx.err("are not present in this compatibility set.");
        }
    }
    Ok(())
}
