//! `zfs userspace`, `groupspace` and `projectspace`.
//!
//! The daemon knows numbers; names are the host's. Columns are as wide as their widest value, of
//! all rows that were asked for.

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::{left, one_line, right};
use crate::zfs::select::{dataset_of_path, is_path};
use std::cmp::Ordering;
use zilla_control::owners;
use zilla_control::props::naming::check_dataset_name;
use zilla_control::props::nicenum::{nicebytes, nicenum};
use zilla_control::props::{self};
use zilla_control::types::{Account, DatasetAccounts, Owners};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Type,
    Name,
    Used,
    Quota,
    ObjUsed,
    ObjQuota,
}

const FIELDS: [(Field, &str, &str); 6] = [
    (Field::Type, "type", "TYPE"),
    (Field::Name, "name", "NAME"),
    (Field::Used, "used", "USED"),
    (Field::Quota, "quota", "QUOTA"),
    (Field::ObjUsed, "objused", "OBJUSED"),
    (Field::ObjQuota, "objquota", "OBJQUOTA"),
];

fn field(name: &str) -> Option<Field> {
    FIELDS.iter().find(|f| f.1 == name).map(|f| f.0)
}

/// One line to be.
struct Row {
    owners: Owners,
    id: u64,
    /// None: it goes by its number.
    name: Option<String>,
    account: Account,
}

struct Options {
    numbers: bool,
    scripted: bool,
    literal: bool,
    fields: Vec<Field>,
    /// Fields to sort by, and whether backwards.
    sort: Vec<(Field, bool)>,
    owners: Vec<Owners>,
}

pub fn users(cx: &mut Cx, args: Vec<String>) -> Run {
    run(cx, &args, Owners::User)
}

pub fn groups(cx: &mut Cx, args: Vec<String>) -> Run {
    run(cx, &args, Owners::Group)
}

pub fn projects(cx: &mut Cx, args: Vec<String>) -> Run {
    run(cx, &args, Owners::Project)
}

fn run(cx: &mut Cx, args: &[String], whose: Owners) -> Run {
    let (options, operands) = args::parse(args, "nHpo:s:S:t:i", &[]);
    let project = whose == Owners::Project;
    let mut o = Options {
        numbers: project,
        scripted: false,
        literal: false,
        fields: FIELDS.iter().map(|f| f.0).collect(),
        sort: Vec::new(),
        owners: vec![whose],
    };
    let (mut fields, mut types) = (None, None);
    for option in options {
        match option {
            Opt::Flag(letter @ ('n' | 't' | 'i'), _) if project => {
                return cx.bad_usage(format!("invalid option '{letter}'"));
            }
            Opt::Flag('n', _) => o.numbers = true,
            Opt::Flag('H', _) => o.scripted = true,
            Opt::Flag('p', _) => o.literal = true,
            // What has no POSIX id would be shown by it: no file system of Linux holds such owners.
            Opt::Flag('i', _) => {}
            Opt::Flag('o', text) => fields = Some(text),
            Opt::Flag('t', text) => types = Some(text),
            Opt::Flag(letter @ ('s' | 'S'), text) => match sort_field(&text) {
                Some(sort) => o.sort.extend(sort.map(|f| (f, letter == 'S'))),
                None => return cx.bad_usage(format!("invalid field '{text}'")),
            },
            other => return cx.bad_option(other),
        }
    }
    let name = match operands.as_slice() {
        [] => return cx.print_usage(),
        [name] => name.clone(),
        _ => return cx.bad_usage("too many arguments"),
    };
    if let Some(text) = fields {
        o.fields.clear();
        for word in text.split(',') {
            let Some(found) = field(word) else {
                cx.err(format!("invalid type '{word}' for -o option"));
                return Ok(255);
            };
            o.fields.push(found);
        }
    }
    if let Some(text) = types {
        match parse_types(&text) {
            Ok(owners) => o.owners = owners,
            Err(word) => {
                cx.err(format!("invalid type '{word}' for -t option"));
                return Ok(255);
            }
        }
    }
    let Some(name) = dataset(cx, &name)? else { return Ok(1) };
    let mut rows = Vec::new();
    for owners in &o.owners {
        match cx.call(&DatasetAccounts { name: name.clone(), owners: *owners })? {
            Ok(all) => rows.extend(all.into_iter().map(|a| row(*owners, a, o.numbers))),
            Err(e) if e.code == zilla_control::ErrorCode::NoEnt => {
                cx.refused(&format!("cannot open '{name}'"), &e);
                return Ok(1);
            }
            Err(e) if e.code == zilla_control::ErrorCode::BadType => {
                cx.err("operation is only applicable to filesystems and their snapshots");
                return Ok(1);
            }
            Err(e) => {
                cx.refused(&format!("cannot get used/quota for {name}"), &e);
                return Ok(255);
            }
        }
    }
    rows.sort_by(|a, b| compare(a, b, &o));
    if !rows.is_empty() {
        cx.out.put(print(&rows, &o));
    }
    Ok(0)
}

/// A property by which zfs(8) sorts; those that are no columns here sort nothing.
fn sort_field(text: &str) -> Option<Option<Field>> {
    match field(text) {
        Some(f) => Some(Some(f)),
        None => props::dataset_prop(text).map(|_| None),
    }
}

fn parse_types(text: &str) -> Result<Vec<Owners>, String> {
    let mut users = (false, false);
    for word in text.split(',') {
        match word {
            "posixuser" | "smbuser" => users.0 = true,
            "posixgroup" | "smbgroup" => users.1 = true,
            "all" => users = (true, true),
            _ => return Err(word.to_owned()),
        }
    }
    let both = [(users.0, Owners::User), (users.1, Owners::Group)];
    Ok(both.into_iter().filter(|b| b.0).map(|b| b.1).collect())
}

/// The dataset that is named, or that a path lies in.
fn dataset(cx: &mut Cx, operand: &str) -> Result<Option<String>, Exit> {
    if is_path(operand) {
        return dataset_of_path(cx, operand);
    }
    if let Err(e) = check_dataset_name(operand, props::FS | props::SNAP, false) {
        cx.refused(&format!("cannot open '{operand}'"), &e);
        return Ok(None);
    }
    Ok(Some(operand.to_owned()))
}

fn row(owners: Owners, account: Account, numbers: bool) -> Row {
    let kind = match owners {
        Owners::User => Some(owners::Kind::User),
        Owners::Group => Some(owners::Kind::Group),
        Owners::Project => None,
    };
    let id = account.id;
    let name = kind.filter(|_| !numbers).and_then(|kind| owners::name_of(kind, u32::try_from(id).ok()?));
    Row { owners, id, name, account }
}

fn compare(a: &Row, b: &Row, o: &Options) -> Ordering {
    let by_name = || match (&a.name, &b.name) {
        (Some(x), Some(y)) => x.cmp(y),
        _ => a.id.cmp(&b.id),
    };
    let default = [(Field::Type, false), (Field::Name, false)];
    for (field, backwards) in o.sort.iter().chain(&default) {
        let order = match field {
            Field::Type => a.owners.cmp(&b.owners),
            Field::Name => by_name(),
            Field::Used => a.account.used.cmp(&b.account.used),
            Field::Quota => a.account.quota.cmp(&b.account.quota),
            Field::ObjUsed => a.account.objects_used.cmp(&b.account.objects_used),
            Field::ObjQuota => a.account.objects_quota.cmp(&b.account.objects_quota),
        };
        if order != Ordering::Equal {
            return if *backwards { order.reverse() } else { order };
        }
    }
    Ordering::Equal
}

fn cell(row: &Row, field: Field, literal: bool) -> String {
    let number = |value: Option<u64>, is_quota: bool, bytes: bool| match value {
        None => "-".to_owned(),
        Some(n) if literal => n.to_string(),
        Some(0) if is_quota => "none".to_owned(),
        Some(n) if bytes => nicebytes(n),
        Some(n) => nicenum(n),
    };
    match field {
        Field::Type => match row.owners {
            Owners::User => "POSIX User".to_owned(),
            Owners::Group => "POSIX Group".to_owned(),
            Owners::Project => "Project".to_owned(),
        },
        Field::Name => match &row.name {
            Some(name) => one_line(name).into_owned(),
            None => row.id.to_string(),
        },
        Field::Used => number(row.account.used, false, true),
        Field::Quota => number(row.account.quota, true, true),
        Field::ObjUsed => number(row.account.objects_used, false, false),
        Field::ObjQuota => number(row.account.objects_quota, true, false),
    }
}

fn header(field: Field) -> &'static str {
    FIELDS.iter().find(|f| f.0 == field).map_or("", |f| f.2)
}

/// Names are wider than the number that stands for them only where they are printed; numbers count
/// as what they are.
fn print(rows: &[Row], o: &Options) -> String {
    let width = |f: Field| {
        let widest = rows.iter().map(|r| cell(r, f, o.literal).chars().count()).max().unwrap_or(0);
        widest.max(header(f).len())
    };
    let widths: Vec<usize> = o.fields.iter().map(|f| width(*f)).collect();
    let line = |texts: Vec<String>| {
        let mut out = String::new();
        for (n, ((text, f), width)) in texts.iter().zip(&o.fields).zip(&widths).enumerate() {
            if n > 0 {
                out.push_str(if o.scripted { "\t" } else { "  " });
            }
            match f {
                _ if o.scripted => out.push_str(text),
                Field::Type | Field::Name => out.push_str(&left(text, *width)),
                _ => out.push_str(&right(text, *width)),
            }
        }
        out + "\n"
    };
    let mut text = String::new();
    if !o.scripted {
        text.push_str(&line(o.fields.iter().map(|f| header(*f).to_owned()).collect()));
    }
    for r in rows {
        text.push_str(&line(o.fields.iter().map(|f| cell(r, *f, o.literal)).collect()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_printed() {
        let row = |id: u64, name: &str| Row {
            owners: Owners::User,
            id,
            name: Some(name.to_owned()),
            account: Account { id, used: Some(512), ..Account::default() },
        };
        let mut o = Options {
            numbers: false,
            scripted: false,
            literal: true,
            fields: vec![Field::Name, Field::Used],
            sort: Vec::new(),
            owners: vec![Owners::User],
        };
        let rows = [row(1, "a\u{1b}b"), row(2, "joe")];
        let escaped = one_line("a\u{1b}b").into_owned();
        assert_eq!(
            print(&rows, &o),
            format!(
                "NAME{}  USED\n{escaped}   512\njoe{}   512\n",
                " ".repeat(escaped.len() - 4),
                " ".repeat(escaped.len() - 3)
            )
        );
        o.scripted = true;
        assert_eq!(print(&rows, &o), format!("{escaped}\t512\njoe\t512\n"));
    }
}
