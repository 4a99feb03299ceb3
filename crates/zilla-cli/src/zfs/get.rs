//! `zfs get`.

use super::select::{self, Selection};
use super::{list, value};
use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::json::{self, Obj};
use crate::fmt::proplist::{self, Column, Entry, GetRow, Of};
use crate::zpool;
use zilla_control::types::{DatasetInfo, PropValue, Source};

/// `-s`: which sources to print.
const SOURCES: &[&str] = &["local", "default", "inherited", "received", "temporary", "none"];

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    const LONG: &[args::Long] = &[("json", false, 'j'), ("json-int", false, '\u{1}')];
    let (options, mut operands) = args::parse(&args, ":d:o:s:jrt:Hp", LONG);
    let (mut literal, mut as_json, mut as_int, mut scripted) = (false, false, false, false);
    let mut columns = Column::DEFAULT.to_vec();
    let mut sources: Vec<&str> = SOURCES.to_vec();
    let mut selection = Selection { kinds: select::KINDS.to_vec(), paths: true, ..Selection::default() };
    for option in options {
        match option {
            Opt::Flag('p', _) => literal = true,
            Opt::Flag('d', text) => {
                selection.depth = Some(select::parse_depth(cx, &text)?);
                selection.recursive = true;
            }
            Opt::Flag('r', _) => selection.recursive = true,
            Opt::Flag('H', _) => scripted = true,
            Opt::Flag('j', _) => as_json = true,
            Opt::Flag('\u{1}', _) => (as_int, literal) = (true, true),
            Opt::Flag('o', text) => columns = zpool::get_columns(cx, &text)?,
            Opt::Flag('s', text) => {
                sources.clear();
                for word in text.split(',') {
                    match SOURCES.iter().find(|s| **s == word) {
                        Some(source) => sources.push(source),
                        None => return cx.bad_usage(format!("invalid source '{word}'")),
                    }
                }
            }
            Opt::Flag('t', text) => selection.kinds = select::parse_kinds(cx, &text)?,
            other => return cx.bad_option(other),
        }
    }
    if operands.is_empty() {
        return cx.bad_usage("missing property argument");
    }
    if !as_json && as_int {
        return cx.bad_usage("'--json-int' only works with '-j' option");
    }
    let fields = operands.remove(0);
    selection.operands = operands;
    selection.imply_depth();
    selection.received = columns.contains(&Column::Received);
    let entries = match proplist::parse(&fields, Of::Datasets) {
        Ok(entries) => entries,
        Err(e) => return cx.bad_usage(format!("bad property list: {}", e.description())),
    };
    let all = entries.is_none();
    let (datasets, failed) = selection.find(cx, select::names(entries.as_deref()))?;
    let mut entries = list::expand(entries, &datasets, literal);
    if all {
        // `all` begins with the name, which is not among its rows.
        entries.remove(0);
    }
    if as_json {
        let mut members = Obj::new();
        for dataset in &datasets {
            let mut properties = Obj::new();
            for row in rows(std::slice::from_ref(dataset), &entries, literal, &sources) {
                properties.obj(row.property.as_str(), json::property(&row.value.value, &row.value, as_int));
            }
            if !properties.is_empty() {
                let mut item = list::info(dataset, as_int);
                item.obj("properties", properties);
                members.obj(dataset.name.as_str(), item);
            }
        }
        let mut root = json::schema("zfs", "get");
        root.obj("datasets", members);
        if !failed {
            cx.out.line(root.render());
        }
        return Ok(u8::from(failed));
    }
    cx.out.put(print(&datasets, &entries, literal, scripted, &columns, &sources));
    Ok(u8::from(failed))
}

fn rows(datasets: &[DatasetInfo], entries: &[Entry], literal: bool, sources: &[&str]) -> Vec<GetRow> {
    let mut rows = Vec::new();
    for dataset in datasets {
        for entry in entries {
            let found = match value::get(dataset, &entry.name, literal) {
                Some(found) => found,
                None if entry.from_all => continue,
                None => PropValue::new("-", Source::None),
            };
            let source = match found.source {
                Source::None => "none",
                Source::Default => "default",
                Source::Local => "local",
                Source::Temporary => "temporary",
                Source::Inherited(_) => "inherited",
                Source::Received => "received",
            };
            if sources.contains(&source) {
                rows.push(GetRow { name: dataset.name.clone(), property: entry.name.clone(), value: found });
            }
        }
    }
    rows
}

/// The table.
pub fn print(
    datasets: &[DatasetInfo],
    entries: &[Entry],
    literal: bool,
    scripted: bool,
    columns: &[Column],
    sources: &[&str],
) -> String {
    let rows = rows(datasets, entries, literal, sources);
    let names: Vec<&str> = datasets.iter().map(|d| d.name.as_str()).collect();
    zpool::get_table(&rows, &names, entries, scripted, columns)
}
