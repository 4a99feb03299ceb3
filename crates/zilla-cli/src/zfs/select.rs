//! Which datasets a command is about: names and paths, `-r`, `-d`, `-t`, and the order they come
//! in.

use crate::cx::{Cx, Exit};
use crate::fmt::proplist::Entry;
use std::cmp::Ordering;
use zilla_control::props::naming::check_dataset_name;
use zilla_control::props::{self, PropKind, Types, types_of};
use zilla_control::types::{DatasetByPath, DatasetInfo, DatasetKind, DatasetQuery};

pub const KINDS: &[DatasetKind] =
    &[DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot, DatasetKind::Bookmark];

/// `-s` or `-S`: a property and whether it sorts backwards.
pub type SortKey = (String, bool);

/// What to look for.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    pub operands: Vec<String>,
    pub recursive: bool,
    pub depth: Option<u32>,
    pub kinds: Vec<DatasetKind>,
    /// No `-t`: the pool's `listsnapshots` says whether snapshots are listed.
    pub pool_lists_snapshots: bool,
    pub paths: bool,
    /// What streams brought is shown, too.
    pub received: bool,
    pub sort: Vec<SortKey>,
}

/// `-t fs,snap`
pub fn parse_kinds(cx: &mut Cx, text: &str) -> Result<Vec<DatasetKind>, Exit> {
    let mut kinds = Vec::new();
    for word in text.split(',') {
        match word {
            "filesystem" | "fs" => kinds.push(DatasetKind::Filesystem),
            "volume" | "vol" => kinds.push(DatasetKind::Volume),
            "snapshot" | "snap" => kinds.push(DatasetKind::Snapshot),
            "bookmark" => kinds.push(DatasetKind::Bookmark),
            "all" => kinds.extend(KINDS),
            _ => return cx.bad_usage(format!("invalid type '{word}'")),
        }
    }
    kinds.sort();
    kinds.dedup();
    Ok(kinds)
}

/// `-d 2`
pub fn parse_depth(cx: &mut Cx, text: &str) -> Result<u32, Exit> {
    match text.parse::<i64>() {
        Err(_) => cx.bad_usage(format!("{text} is not an integer")),
        Ok(depth) if depth < 0 => cx.bad_usage("Depth can not be negative."),
        Ok(depth) => Ok(u32::try_from(depth).unwrap_or(u32::MAX)),
    }
}

/// Whether an operand is a path and no dataset's name.
pub fn is_path(operand: &str) -> bool {
    operand.starts_with('/') || operand.starts_with("./")
}

/// The dataset that a path lies in. None: there is none, which has been said.
pub fn dataset_of_path(cx: &mut Cx, operand: &str) -> Result<Option<String>, Exit> {
    let absolute = std::path::absolute(operand)
        .map_or_else(|_| operand.to_owned(), |p| p.to_string_lossy().into_owned());
    match cx.call(&DatasetByPath { path: absolute })? {
        Ok(name) => Ok(Some(name)),
        Err(e) => {
            cx.err(format!("'{operand}': {}", e.description()));
            Ok(None)
        }
    }
}

impl Selection {
    /// `zfs list -t snapshot fs` means the snapshots of fs.
    pub fn imply_depth(&mut self) {
        let only = [vec![DatasetKind::Snapshot], vec![DatasetKind::Bookmark]];
        let alone = only.contains(&self.kinds);
        let unlimited = self.depth.is_none_or(|d| d == 0);
        if alone && !self.operands.is_empty() && !self.recursive && unlimited {
            self.recursive = true;
            self.depth = Some(1);
        }
    }

    /// Finds them, in order. `properties`: which to fetch. The second value: something was not
    /// found.
    pub fn find(&self, cx: &mut Cx, properties: Vec<String>) -> Result<(Vec<DatasetInfo>, bool), Exit> {
        let mut failed = false;
        let mut roots = Vec::new();
        for operand in &self.operands {
            match self.root(cx, operand)? {
                Some(root) => roots.push(root),
                None => failed = true,
            }
        }
        if roots.is_empty() && !self.operands.is_empty() {
            return Ok((Vec::new(), true));
        }
        failed |= self.check_types(cx, &mut roots)?;
        if roots.is_empty() && !self.operands.is_empty() {
            return Ok((Vec::new(), true));
        }
        let mut wanted = properties;
        wanted.extend(self.sort.iter().map(|(name, _)| name.clone()));
        wanted.sort();
        wanted.dedup();
        let recursive = self.recursive || self.operands.is_empty();
        let request = DatasetQuery {
            roots,
            depth: if recursive { self.depth } else { Some(0) },
            kinds: self.kinds.clone(),
            pool_lists_snapshots: self.pool_lists_snapshots,
            properties: wanted,
            received: self.received,
        };
        let Some(reply) = cx.ask("cannot list datasets", &request)? else { return Err(Exit(1)) };
        for error in &reply.errors {
            let subject = error.subject.clone().unwrap_or_default();
            cx.refused(&format!("cannot open '{subject}'"), error);
            failed = true;
        }
        let mut datasets = reply.datasets;
        datasets.sort_by(|a, b| self.compare(a, b));
        // One dataset may be below two of the roots.
        datasets.dedup_by(|a, b| a.name == b.name);
        Ok((datasets, failed))
    }

    /// The kinds that may be named.
    fn argument_types(&self) -> Types {
        let mut types: Types = self.kinds.iter().map(|&k| types_of(k)).fold(0, |a, b| a | b);
        if self.recursive {
            types |= props::FS;
            if types & (props::SNAP | props::BOOK) != 0 {
                types |= props::VOL;
            }
        }
        types
    }

    fn root(&self, cx: &mut Cx, operand: &str) -> Result<Option<String>, Exit> {
        if self.paths && is_path(operand) {
            if let Err(e) = std::fs::metadata(operand) {
                cx.err(format!("cannot open '{operand}': {}", zilla_env::strerror(&e)));
                return Ok(None);
            }
            return dataset_of_path(cx, operand);
        }
        if let Err(e) = check_dataset_name(operand, self.argument_types(), false) {
            cx.refused(&format!("cannot open '{operand}'"), &e);
            return Ok(None);
        }
        Ok(Some(operand.to_owned()))
    }

    /// Where only filesystems, or only volumes, may be named, others are complained about.
    fn check_types(&self, cx: &mut Cx, roots: &mut Vec<String>) -> Result<bool, Exit> {
        let types = self.argument_types();
        let heads = props::FS | props::VOL;
        let head = |name: &String| !name.contains(['@', '#']);
        if types & heads == heads || !roots.iter().any(head) {
            return Ok(false);
        }
        let request = DatasetQuery {
            roots: roots.clone(),
            depth: Some(0),
            kinds: KINDS.to_vec(),
            ..DatasetQuery::default()
        };
        let Some(reply) = cx.ask("cannot list datasets", &request)? else { return Err(Exit(1)) };
        let mut failed = false;
        for dataset in reply.datasets.iter().filter(|d| types & types_of(d.kind) == 0) {
            let text = zilla_control::ErrorCode::BadType.description();
            cx.err(format!("cannot open '{}': {text}", dataset.name));
            roots.retain(|r| *r != dataset.name);
            failed = true;
        }
        Ok(failed)
    }

    fn compare(&self, a: &DatasetInfo, b: &DatasetInfo) -> Ordering {
        for (name, reverse) in &self.sort {
            let order = match (sort_value(a, name), sort_value(b, name)) {
                (None, None) => continue,
                // What has no such property goes last, whichever way the rest is sorted.
                (None, Some(_)) => return Ordering::Greater,
                (Some(_), None) => return Ordering::Less,
                (Some(a), Some(b)) => a.cmp(&b),
            };
            if order != Ordering::Equal {
                return if *reverse { order.reverse() } else { order };
            }
        }
        by_name(a, b)
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum SortValue {
    Number(u64),
    Text(String),
}

fn sort_value(dataset: &DatasetInfo, name: &str) -> Option<SortValue> {
    let desc = props::dataset_prop(name);
    let value = super::value::get(dataset, desc.map_or(name, |d| d.name), true)?.value;
    match desc {
        Some(desc) if desc.kind == PropKind::Index => {
            Some(SortValue::Number(desc.index_of(&value).unwrap_or(0)))
        }
        Some(desc) if desc.kind == PropKind::Number => {
            // A ratio is a number with a point.
            let number = value.replace('.', "").parse().unwrap_or(if value == "none" { u64::MAX } else { 0 });
            Some(SortValue::Number(number))
        }
        _ => Some(SortValue::Text(value)),
    }
}

/// By name; a dataset before its snapshots, these by age.
fn by_name(a: &DatasetInfo, b: &DatasetInfo) -> Ordering {
    let split = |d: &DatasetInfo| match d.name.split_once('@') {
        Some((head, snap)) => (head.to_owned(), Some(snap.to_owned())),
        None => (d.name.clone(), None),
    };
    let ((head_a, snap_a), (head_b, snap_b)) = (split(a), split(b));
    head_a.cmp(&head_b).then_with(|| match (snap_a, snap_b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (Some(x), Some(y)) => a.createtxg.cmp(&b.createtxg).then_with(|| x.cmp(&y)),
    })
}

/// What must be fetched for a list of columns; None is everything.
pub fn names(entries: Option<&[Entry]>) -> Vec<String> {
    match entries {
        None => vec!["all".to_owned()],
        Some(entries) => entries.iter().map(|e| e.name.clone()).collect(),
    }
}

/// User properties of these datasets, each once, for `all`.
pub fn user_properties(datasets: &[DatasetInfo]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in datasets.iter().flat_map(|d| d.properties.keys()) {
        if props::is_user_prop(name) && props::dataset_prop(name).is_none() && !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}
