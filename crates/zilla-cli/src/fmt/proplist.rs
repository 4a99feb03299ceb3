//! Lists of properties: `-o name,used,...`, the columns they make, and the table `get` prints.

use zilla_control::ApiError;
use zilla_control::error::ErrorCode;
use zilla_control::props::{self, PropDesc, PropKind};
use zilla_control::types::{PropValue, Source};

/// Which table a list refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    Pools,
    Vdevs,
    Datasets,
}

impl Of {
    pub fn table(self) -> &'static [PropDesc] {
        match self {
            Of::Pools => props::POOL_PROPS,
            Of::Vdevs => props::VDEV_PROPS,
            Of::Datasets => props::DATASET_PROPS,
        }
    }

    fn find(self, name: &str) -> Option<&'static PropDesc> {
        match self {
            Of::Pools => props::pool_prop(name),
            Of::Vdevs => props::vdev_prop(name),
            Of::Datasets => props::dataset_prop(name),
        }
    }

    /// Names outside the table that may be asked for.
    fn extra(self, name: &str) -> bool {
        match self {
            Of::Pools => {
                props::is_user_prop(name) || name.starts_with("feature@") || name.starts_with("unsupported@")
            }
            Of::Vdevs => props::is_user_prop(name),
            Of::Datasets => {
                props::is_user_prop(name) || props::is_userquota_prop(name) || props::is_written_prop(name)
            }
        }
    }
}

/// One property of a list: a row of the table, or a name outside it.
#[derive(Debug, Clone)]
pub struct Entry {
    pub name: String,
    pub desc: Option<&'static PropDesc>,
    pub width: usize,
    /// From `all`: properties that a dataset does not have are left out rather than printed as `-`.
    pub from_all: bool,
}

impl Entry {
    fn new(name: &str, of: Of) -> Result<Entry, ApiError> {
        if let Some(desc) = of.find(name) {
            return Ok(Entry {
                name: desc.name.to_owned(),
                desc: Some(desc),
                width: width_of(desc, of),
                from_all: false,
            });
        }
        if !of.extra(name) {
            return Err(ApiError::with(ErrorCode::BadProp, format!("invalid property '{name}'")));
        }
        Ok(Entry { name: name.to_owned(), desc: None, width: name.len(), from_all: false })
    }

    pub fn right_align(&self) -> bool {
        self.desc.is_some_and(|d| d.right_align)
    }

    /// A column that keeps its width whatever is in it.
    pub fn fixed(&self) -> bool {
        self.desc.is_some_and(|d| !d.flexible)
    }

    pub fn header(&self) -> String {
        self.desc.map_or_else(|| self.name.to_ascii_uppercase(), |d| d.column.to_owned())
    }

    pub fn widen(&mut self, value: &str) {
        self.width = self.width.max(super::one_line(value).chars().count());
    }
}

fn width_of(desc: &PropDesc, of: Of) -> usize {
    let header = desc.column.len();
    match desc.kind {
        PropKind::Number if of == Of::Pools && desc.name == "health" => 8,
        PropKind::Number if desc.name == "creation" => header.max(5),
        PropKind::Number => header.max(5),
        PropKind::Index => desc.index.iter().map(|(word, _)| word.len()).fold(header, usize::max),
        PropKind::String => header,
    }
}

/// The width of a column of `zpool list -v` for a pool property.
pub fn pool_column_width(name: &str) -> usize {
    props::pool_prop(name).map_or(0, |d| width_of(d, Of::Pools))
}

/// Reads `name,used,...`; None stands for `all`.
pub fn parse(text: &str, of: Of) -> Result<Option<Vec<Entry>>, ApiError> {
    if text == "all" {
        return Ok(None);
    }
    if text.is_empty() {
        return Err(ApiError::with(ErrorCode::BadProp, "no properties specified"));
    }
    let mut entries = Vec::new();
    for word in text.split(',') {
        if word == "space" {
            const SPACE: &[&str] = &[
                "name",
                "avail",
                "used",
                "usedbysnapshots",
                "usedbydataset",
                "usedbyrefreservation",
                "usedbychildren",
            ];
            for name in SPACE {
                entries.push(Entry::new(name, of)?);
            }
        } else {
            entries.push(Entry::new(word, of)?);
        }
    }
    Ok(Some(entries))
}

/// Everything visible, in the table's order.
pub fn all(of: Of) -> Vec<Entry> {
    of.table()
        .iter()
        .filter(|d| d.visible)
        .map(|d| Entry { name: d.name.to_owned(), desc: Some(d), width: width_of(d, of), from_all: true })
        .collect()
}

/// An entry outside the table.
pub fn named(name: String) -> Entry {
    Entry { width: name.len(), name, desc: None, from_all: true }
}

/// A column of `get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Name,
    Property,
    Value,
    Received,
    Source,
}

impl Column {
    pub const ALL: &'static [Column] =
        &[Column::Name, Column::Property, Column::Value, Column::Received, Column::Source];
    pub const DEFAULT: &'static [Column] = &[Column::Name, Column::Property, Column::Value, Column::Source];

    pub fn parse(word: &str) -> Option<Column> {
        Some(match word {
            "name" => Column::Name,
            "property" => Column::Property,
            "value" => Column::Value,
            "received" => Column::Received,
            "source" => Column::Source,
            _ => return None,
        })
    }

    fn title(self) -> &'static str {
        match self {
            Column::Name => "NAME",
            Column::Property => "PROPERTY",
            Column::Value => "VALUE",
            Column::Received => "RECEIVED",
            Column::Source => "SOURCE",
        }
    }
}

/// One line of `get`.
#[derive(Debug, Clone)]
pub struct GetRow {
    pub name: String,
    pub property: String,
    pub value: PropValue,
}

/// What a source is called.
pub fn source_text(source: &Source) -> String {
    match source {
        Source::None => "-".to_owned(),
        Source::Default => "default".to_owned(),
        Source::Local => "local".to_owned(),
        Source::Temporary => "temporary".to_owned(),
        Source::Inherited(from) => format!("inherited from {from}"),
        Source::Received => "received".to_owned(),
    }
}

/// The table of `get`. `name_width` and `value_widths` come from all objects asked for, printed or
/// not: that is how OpenZFS lays it out.
pub struct GetTable<'a> {
    pub columns: &'a [Column],
    pub scripted: bool,
    pub name_width: usize,
    pub property_width: usize,
    pub value_width: usize,
    pub received_width: usize,
    /// There is but one cell: it is printed as it is, since nothing else can be meant by a line of
    /// it, and who keeps several lines in a property has them back.
    pub alone: bool,
}

impl GetTable<'_> {
    fn width(&self, column: Column) -> usize {
        let needed = match column {
            Column::Name => self.name_width,
            Column::Property => self.property_width,
            Column::Value => self.value_width,
            Column::Received => self.received_width,
            Column::Source if self.name_width > "NAME".len() => self.name_width + "inherited from".len(),
            Column::Source => 0,
        };
        needed.max(column.title().len())
    }

    pub fn header(&self) -> String {
        self.line(|column| column.title().to_owned(), false)
    }

    pub fn row(&self, row: &GetRow) -> String {
        self.line(
            |column| match column {
                Column::Name => row.name.clone(),
                Column::Property => row.property.clone(),
                Column::Value => row.value.value.clone(),
                Column::Received => row.value.received.clone().unwrap_or_else(|| "-".to_owned()),
                Column::Source => source_text(&row.value.source),
            },
            self.scripted,
        )
    }

    fn line(&self, text: impl Fn(Column) -> String, tabs: bool) -> String {
        let mut line = String::new();
        for (i, &column) in self.columns.iter().enumerate() {
            let cell = text(column);
            let cell = if self.alone { cell.into() } else { super::one_line(&cell) };
            if i + 1 == self.columns.len() {
                line.push_str(&cell);
            } else if tabs {
                line.push_str(&cell);
                line.push('\t');
            } else {
                line.push_str(&super::left(&cell, self.width(column)));
                line.push_str("  ");
            }
        }
        line.push('\n');
        line
    }
}
