//! `zfs list`.

use super::select::{self, Selection};
use super::value;
use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::color::bold;
use crate::fmt::json::{self, Json, Obj};
use crate::fmt::proplist::{self, Entry, Of};
use crate::fmt::{left, one_line, right};
use zilla_control::props::{self, naming::pool_of};
use zilla_control::types::{DatasetInfo, DatasetKind, PropValue, Source};

const DEFAULT: &str = "name,used,available,referenced,mountpoint";

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    const LONG: &[args::Long] = &[("json", false, 'j'), ("json-int", false, '\u{1}')];
    let (options, operands) = args::parse(&args, "jHS:d:o:prs:t:", LONG);
    let (mut literal, mut as_json, mut as_int, mut scripted) = (false, false, false, false);
    let mut fields = DEFAULT.to_owned();
    let mut typed = false;
    let mut selection = Selection {
        operands,
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot],
        pool_lists_snapshots: true,
        paths: true,
        ..Selection::default()
    };
    for option in options {
        match option {
            Opt::Flag('o', list) => fields = list,
            Opt::Flag('p', _) => literal = true,
            Opt::Flag('d', text) => {
                selection.depth = Some(select::parse_depth(cx, &text)?);
                selection.recursive = true;
            }
            Opt::Flag('r', _) => selection.recursive = true,
            Opt::Flag('j', _) => as_json = true,
            Opt::Flag('\u{1}', _) => (as_int, literal) = (true, true),
            Opt::Flag('H', _) => scripted = true,
            Opt::Flag(letter @ ('s' | 'S'), name) => {
                if props::dataset_prop(&name).is_none() && !props::is_user_prop(&name) {
                    return cx.bad_usage(format!("invalid property '{name}'"));
                }
                let proper = props::dataset_prop(&name).map_or(name.as_str(), |d| d.name);
                selection.sort.push((proper.to_owned(), letter == 'S'));
            }
            Opt::Flag('t', text) => {
                selection.kinds = select::parse_kinds(cx, &text)?;
                selection.pool_lists_snapshots = false;
                typed = true;
            }
            other => return cx.bad_option(other),
        }
    }
    if !as_json && as_int {
        return cx.bad_usage("'--json-int' only works with '-j' option");
    }
    if fields == "space" && !typed {
        selection.kinds.retain(|k| *k != DatasetKind::Snapshot);
    }
    selection.imply_depth();
    let entries = match proplist::parse(&fields, Of::Datasets) {
        Ok(entries) => entries,
        Err(e) => return cx.bad_usage(format!("bad property list: {}", e.description())),
    };
    let (datasets, failed) = selection.find(cx, select::names(entries.as_deref()))?;
    let entries = expand(entries, &datasets, literal);
    if as_json {
        if !failed {
            cx.out.line(render_json(cx.command, &datasets, &entries, literal, as_int));
        }
    } else if !datasets.is_empty() {
        cx.out.put(print(&datasets, &entries, literal, scripted));
    }
    if datasets.is_empty() && !failed && !scripted {
        cx.err("no datasets available");
    }
    Ok(u8::from(failed))
}

/// The columns with the widths their values need.
pub fn expand(entries: Option<Vec<Entry>>, datasets: &[DatasetInfo], literal: bool) -> Vec<Entry> {
    let mut entries = entries.unwrap_or_else(|| {
        let mut all = match proplist::parse("name", Of::Datasets) {
            Ok(Some(name)) => name,
            _ => Vec::new(),
        };
        all.extend(proplist::all(Of::Datasets));
        all.extend(select::user_properties(datasets).into_iter().map(proplist::named));
        all
    });
    for entry in &mut entries {
        if entry.fixed() && !literal {
            continue;
        }
        for dataset in datasets {
            if let Some(found) = value::get(dataset, &entry.name, literal) {
                entry.widen(&found.value);
            }
        }
    }
    entries
}

fn right_align(entry: &Entry) -> bool {
    // Per-user and per-snapshot properties are numbers without a row in the table.
    entry.right_align() || props::is_userquota_prop(&entry.name) || props::is_written_prop(&entry.name)
}

/// The table.
pub fn print(datasets: &[DatasetInfo], entries: &[Entry], literal: bool, scripted: bool) -> String {
    let mut text = String::new();
    if !scripted {
        text.push_str(&bold(&row(entries, false, |e| (e.header(), e.right_align()))));
        text.push('\n');
    }
    for dataset in datasets {
        let line = row(entries, scripted, |entry| {
            let found = value::get(dataset, &entry.name, literal);
            (found.map_or_else(|| "-".to_owned(), |v| v.value), right_align(entry))
        });
        text.push_str(&line);
        text.push('\n');
    }
    text
}

fn row(entries: &[Entry], tabs: bool, cell: impl Fn(&Entry) -> (String, bool)) -> String {
    let mut line = String::new();
    for (i, entry) in entries.iter().enumerate() {
        if i > 0 {
            line.push_str(if tabs { "\t" } else { "  " });
        }
        let (text, to_the_right) = cell(entry);
        let text = one_line(&text);
        if tabs || (i + 1 == entries.len() && !to_the_right) {
            line.push_str(&text);
        } else if to_the_right {
            line.push_str(&right(&text, entry.width));
        } else {
            line.push_str(&left(&text, entry.width));
        }
    }
    line
}

/// Name, type, pool and txg of a dataset.
pub fn info(dataset: &DatasetInfo, as_int: bool) -> Obj {
    let mut object = Obj::new();
    object.str("name", dataset.name.as_str());
    object.str("type", dataset.kind.as_str().to_uppercase());
    object.str("pool", pool_of(&dataset.name));
    object.num("createtxg", dataset.createtxg, as_int);
    if dataset.kind == DatasetKind::Snapshot
        && let Some((head, snapshot)) = dataset.name.split_once('@')
    {
        object.str("dataset", head);
        object.str("snapshot_name", snapshot);
    }
    object
}

fn render_json(
    command: &str,
    datasets: &[DatasetInfo],
    entries: &[Entry],
    literal: bool,
    as_int: bool,
) -> String {
    let mut members = Obj::new();
    for dataset in datasets {
        let mut item = info(dataset, as_int);
        let mut properties = Obj::new();
        for entry in entries.iter().filter(|e| e.name != "name") {
            let found = value::get(dataset, &entry.name, literal)
                .unwrap_or_else(|| PropValue::new("-", Source::None));
            properties.obj(entry.name.as_str(), json::property(&found.value, &found, as_int));
        }
        item.obj("properties", properties);
        members.obj(dataset.name.as_str(), item);
    }
    let mut root = json::schema("zfs", command);
    root.set("datasets", Json::Obj(members));
    root.render()
}
