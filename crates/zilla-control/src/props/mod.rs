//! The tables of properties: one source of truth for the daemon, which judges values, and the
//! commands, which print and explain them.
//!
//! A table is a list of [`PropDesc`] in OpenZFS's own numbering, because `get all` prints in that
//! order and scripts have come to depend on it. Enumerations carry the numbers that lie on disk
//! beside their names, so the engine and the printed history use the same list. [`parse`] turns a
//! user's word into a typed value with OpenZFS's complaints, [`parse_size`] reads sizes,
//! [`nicenum`] prints them, [`naming`] judges names of pools and datasets.
//!
//! What it keeps true: every property has exactly one row; every index property's default is in its
//! list.

mod datasets;
mod features;
pub mod naming;
pub mod nicenum;
mod parse;
pub mod permissions;
mod pools;
#[cfg(test)]
mod tests;
mod vdevs;

pub use datasets::DATASET_PROPS;
pub use features::{FEATURES, FeatureDesc, feature_by_guid, feature_by_name};
pub use parse::{
    HEADS, PoolPropContext, PropType, TypedValue, check_inherit, parse_dataset_prop, parse_pool_prop,
    parse_size, parse_value,
};
pub use pools::POOL_PROPS;
pub use vdevs::VDEV_PROPS;

use crate::types::DatasetKind;

/// Longest value of a string property, terminator included.
pub const ZFS_MAXPROPLEN: usize = 4096;
/// Longest name of a user property, terminator included.
pub const ZAP_MAXNAMELEN: usize = 256;

/// What a property applies to: a set of bits.
pub type Types = u32;
pub const FS: Types = 1;
pub const SNAP: Types = 2;
pub const VOL: Types = 4;
pub const POOL: Types = 8;
pub const BOOK: Types = 16;
pub const VDEV: Types = 32;
pub const DATASET: Types = FS | SNAP | VOL;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropKind {
    String,
    Number,
    /// One of a list of words, a number on disk.
    Index,
}

/// Who may set a property, and whether children take it over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropAttr {
    ReadOnly,
    /// Settable, not inherited.
    Default,
    Inherit,
    /// Settable at creation; children take the parent's value.
    SetOnce,
    /// Settable at creation; not inherited.
    SetOnceDefault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropDefault {
    Num(u64),
    Str(&'static str),
    None,
}

/// One property.
#[derive(Debug, Clone, Copy)]
pub struct PropDesc {
    pub name: &'static str,
    /// Column header; its lower case is an alias of the name.
    pub column: &'static str,
    pub kind: PropKind,
    pub attr: PropAttr,
    pub types: Types,
    /// What the usage message says about values; empty for hidden properties.
    pub values: &'static str,
    /// Words and their numbers on disk; several words may share a number, the first is printed.
    pub index: &'static [(&'static str, u64)],
    pub default: PropDefault,
    pub right_align: bool,
    /// Hidden properties are not listed, but can be asked for by name.
    pub visible: bool,
    /// The column grows with its contents.
    pub flexible: bool,
}

impl PropDesc {
    pub fn readonly(&self) -> bool {
        matches!(self.attr, PropAttr::ReadOnly | PropAttr::SetOnce | PropAttr::SetOnceDefault)
    }

    pub fn setonce(&self) -> bool {
        matches!(self.attr, PropAttr::SetOnce | PropAttr::SetOnceDefault)
    }

    pub fn inheritable(&self) -> bool {
        matches!(self.attr, PropAttr::Inherit | PropAttr::SetOnce)
    }

    pub fn applies_to(&self, types: Types) -> bool {
        self.types & types != 0
    }

    /// The number a word of an index property stands for.
    pub fn index_of(&self, word: &str) -> Option<u64> {
        self.index.iter().find(|(w, _)| *w == word).map(|&(_, n)| n)
    }

    /// The word printed for a number of an index property.
    pub fn word_of(&self, number: u64) -> Option<&'static str> {
        self.index.iter().find(|&&(_, n)| n == number).map(|&(w, _)| w)
    }

    /// The default as `-p` prints it; None for statistics and properties without one.
    pub fn default_value(&self) -> Option<String> {
        match (self.kind, self.default) {
            (PropKind::Index, PropDefault::Num(n)) => self.word_of(n).map(str::to_owned),
            (_, PropDefault::Num(n)) => Some(n.to_string()),
            (_, PropDefault::Str(s)) => Some(s.to_owned()),
            (_, PropDefault::None) => None,
        }
    }
}

const fn string(
    name: &'static str,
    column: &'static str,
    attr: PropAttr,
    types: Types,
    values: &'static str,
    default: Option<&'static str>,
) -> PropDesc {
    let default = match default {
        Some(s) => PropDefault::Str(s),
        None => PropDefault::None,
    };
    PropDesc {
        name,
        column,
        kind: PropKind::String,
        attr,
        types,
        values,
        index: &[],
        default,
        right_align: false,
        visible: true,
        flexible: true,
    }
}

const fn number(
    name: &'static str,
    column: &'static str,
    attr: PropAttr,
    types: Types,
    values: &'static str,
    default: u64,
    flexible: bool,
) -> PropDesc {
    PropDesc {
        name,
        column,
        kind: PropKind::Number,
        attr,
        types,
        values,
        index: &[],
        default: PropDefault::Num(default),
        right_align: true,
        visible: true,
        flexible,
    }
}

const fn index(
    name: &'static str,
    column: &'static str,
    attr: PropAttr,
    types: Types,
    values: &'static str,
    index: &'static [(&'static str, u64)],
    default: u64,
) -> PropDesc {
    PropDesc {
        name,
        column,
        kind: PropKind::Index,
        attr,
        types,
        values,
        index,
        default: PropDefault::Num(default),
        right_align: false,
        visible: true,
        flexible: true,
    }
}

/// A number printed as a date.
const fn date(
    name: &'static str,
    column: &'static str,
    attr: PropAttr,
    types: Types,
    values: &'static str,
) -> PropDesc {
    PropDesc { right_align: false, flexible: true, ..number(name, column, attr, types, values, 0, true) }
}

const fn hidden(
    name: &'static str,
    column: &'static str,
    kind: PropKind,
    attr: PropAttr,
    types: Types,
    flexible: bool,
) -> PropDesc {
    let is_number = matches!(kind, PropKind::Number);
    PropDesc {
        kind,
        visible: false,
        right_align: is_number,
        flexible,
        default: if is_number { PropDefault::Num(0) } else { PropDefault::None },
        ..string(name, column, attr, types, "", None)
    }
}

fn find(table: &'static [PropDesc], name: &str) -> Option<&'static PropDesc> {
    table.iter().find(|p| p.name == name || p.column.to_ascii_lowercase() == name)
}

/// A dataset property by its name or lower-case column header (`avail`).
pub fn dataset_prop(name: &str) -> Option<&'static PropDesc> {
    find(DATASET_PROPS, name)
}

/// A pool property by its name or lower-case column header (`cap`).
pub fn pool_prop(name: &str) -> Option<&'static PropDesc> {
    find(POOL_PROPS, name)
}

/// A vdev property by its name or lower-case column header.
pub fn vdev_prop(name: &str) -> Option<&'static PropDesc> {
    find(VDEV_PROPS, name)
}

/// The bit of a kind of dataset.
pub fn types_of(kind: DatasetKind) -> Types {
    match kind {
        DatasetKind::Filesystem => FS,
        DatasetKind::Volume => VOL,
        DatasetKind::Snapshot => SNAP,
        DatasetKind::Bookmark => BOOK,
    }
}

/// A user property: lower-case letters, digits and `-_.:`, with at least one colon.
pub fn is_user_prop(name: &str) -> bool {
    name.contains(':')
        && name
            .bytes()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'_' | b'.' | b':'))
}

/// The families of per-user properties; the part before the name, `@` included.
pub const USERQUOTA_PREFIXES: &[&str] = &[
    "userused@",
    "userquota@",
    "groupused@",
    "groupquota@",
    "userobjused@",
    "userobjquota@",
    "groupobjused@",
    "groupobjquota@",
    "projectused@",
    "projectquota@",
    "projectobjused@",
    "projectobjquota@",
];

/// `userquota@name` and its kin.
pub fn is_userquota_prop(name: &str) -> bool {
    USERQUOTA_PREFIXES.iter().any(|p| name.starts_with(p))
}

/// `written@snap` and `written#mark`.
pub fn is_written_prop(name: &str) -> bool {
    name.starts_with("written@") || name.starts_with("written#")
}

/// `feature@x` or `unsupported@guid`.
pub fn is_feature_prop(name: &str) -> bool {
    name.starts_with("feature@")
}
