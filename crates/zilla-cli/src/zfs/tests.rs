//! The printers against what OpenZFS printed about the same datasets.

use super::{get, list};
use crate::fmt::proplist::{self, Column, Of};
use std::collections::BTreeMap;
use zilla_control::types::{DatasetInfo, DatasetKind, PropValue, Source};

const SOURCES: &[&str] = &["local", "default", "inherited", "received", "temporary", "none"];

fn source(word: &str) -> Source {
    match word {
        "-" => Source::None,
        "default" => Source::Default,
        "local" => Source::Local,
        "temporary" => Source::Temporary,
        "received" => Source::Received,
        other => Source::Inherited(other.trim_start_matches("inherited from ").to_owned()),
    }
}

/// Datasets from `zfs get -Hp all`, in its order.
fn datasets(text: &str) -> Vec<DatasetInfo> {
    let mut all: Vec<DatasetInfo> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, property, value, from] = fields[..] else { panic!("{line}") };
        if all.last().is_none_or(|d| d.name != name) {
            all.push(DatasetInfo { name: name.to_owned(), ..DatasetInfo::default() });
        }
        let dataset = all.last_mut().unwrap();
        let number = || value.parse().unwrap();
        match property {
            "type" => {
                dataset.kind = match value {
                    "volume" => DatasetKind::Volume,
                    "snapshot" => DatasetKind::Snapshot,
                    "bookmark" => DatasetKind::Bookmark,
                    _ => DatasetKind::Filesystem,
                };
            }
            "guid" => dataset.guid = number(),
            "createtxg" => dataset.createtxg = number(),
            "creation" => dataset.creation = number(),
            _ => {}
        }
        dataset.properties.insert(property.to_owned(), PropValue::new(value, source(from)));
    }
    all
}

#[test]
fn get_everything() {
    for text in [
        include_str!("../../tests/golden/snapshots/zfs-get-all.tsv"),
        include_str!("../../tests/golden/mirror-log-cache/zfs-get-all.tsv"),
    ] {
        let datasets = datasets(text);
        let entries = list::expand(None, &datasets, true).split_off(1);
        assert_eq!(get::print(&datasets, &entries, true, true, Column::DEFAULT, SOURCES), text);
    }
}

#[test]
fn list_every_kind() {
    let datasets = datasets(include_str!("../../tests/golden/snapshots/zfs-get-all.tsv"));
    let wanted = "name,type,used,referenced,logicalreferenced,origin,creation,guid,createtxg";
    let entries = list::expand(proplist::parse(wanted, Of::Datasets).unwrap(), &datasets, true);
    let text = list::print(&datasets, &entries, true, true);
    assert_eq!(text, include_str!("../../tests/golden/snapshots/zfs-list.tsv"));
}

fn dataset(name: &str, properties: &[(&str, &str)]) -> DatasetInfo {
    let properties: BTreeMap<_, _> = properties
        .iter()
        .map(|(name, value)| (name.to_string(), PropValue::new(*value, Source::Local)))
        .collect();
    DatasetInfo { name: name.to_owned(), properties, ..DatasetInfo::default() }
}

#[test]
fn list_for_the_eye() {
    let datasets = [
        dataset(
            "tank",
            &[
                ("used", "2205696"),
                ("available", "56514560"),
                ("referenced", "24576"),
                ("mountpoint", "/tank"),
            ],
        ),
        dataset(
            "tank/a-long-name",
            &[("used", "0"), ("available", "1"), ("referenced", "999"), ("mountpoint", "none")],
        ),
    ];
    let wanted = proplist::parse("name,used,available,referenced,mountpoint", Of::Datasets).unwrap();
    let entries = list::expand(wanted, &datasets, false);
    assert_eq!(
        list::print(&datasets, &entries, false, false),
        "NAME               USED  AVAIL  REFER  MOUNTPOINT\n\
         tank              2.10M  53.9M    24K  /tank\n\
         tank/a-long-name     0B     1B   999B  none\n"
    );
}

#[test]
fn values_for_the_eye() {
    use super::value::nice;
    for (name, raw, text) in [
        ("quota", "0", "none"),
        ("quota", "1073741824", "1G"),
        ("recordsize", "131072", "128K"),
        ("compressratio", "2.75", "2.75x"),
        ("filesystem_limit", "18446744073709551615", "none"),
        ("guid", "12345678", "12345678"),
        ("userquota@me", "0", "none"),
        ("userused@me", "2048", "2K"),
        ("userobjused@me", "20480", "20K"),
        ("written@a", "0", "0B"),
        ("copies", "1", "1"),
        ("mountpoint", "/1", "/1"),
        ("com.x:y", "1024", "1024"),
    ] {
        assert_eq!(nice(name, raw), text, "{name}={raw}");
    }
}

#[test]
fn sources_choose_rows() {
    let datasets = [dataset("tank", &[("quota", "0"), ("used", "5")])];
    let entries = list::expand(proplist::parse("quota,used,origin", Of::Datasets).unwrap(), &datasets, false);
    assert_eq!(
        get::print(&datasets, &entries, false, false, Column::DEFAULT, SOURCES),
        "NAME  PROPERTY  VALUE   SOURCE\n\
         tank  quota     none    local\n\
         tank  used      5B      local\n\
         tank  origin    -       -\n"
    );
    let text = get::print(&datasets, &entries, false, true, Column::DEFAULT, &["none"]);
    assert_eq!(text, "tank\torigin\t-\t-\n");
}
