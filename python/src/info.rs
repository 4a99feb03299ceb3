//! What is told of datasets, properties and files: plain values.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use zilla::{Attr, DatasetInfo, Source, Time};

/// Sizes and numbers of a dataset or snapshot, in bytes.
#[pyclass(frozen, get_all, module = "zilla")]
pub(crate) struct Info {
    /// The whole name.
    name: String,
    /// A number that it keeps whatever it is called.
    guid: u64,
    /// When it was made, in seconds since 1970.
    creation: u64,
    /// The transaction group in which it was made.
    createtxg: u64,
    /// What it takes, with all that is below it.
    used: u64,
    /// What it may still take.
    available: u64,
    /// What can be reached from it, shared or not.
    referenced: u64,
    /// `used` before compression.
    logical_used: u64,
    /// `referenced` before compression.
    logical_referenced: u64,
    /// How many times as large it was before compression.
    compressratio: f64,
    /// Written since the latest snapshot.
    written: u64,
    /// What a destroy would free.
    unique: u64,
    /// The snapshot that a clone was made of.
    origin: Option<String>,
    /// Clones of a snapshot.
    clones: Vec<String>,
}

#[pymethods]
impl Info {
    fn __repr__(&self) -> String {
        format!("Info(name={:?}, used={}, available={})", self.name, self.used, self.available)
    }
}

impl From<DatasetInfo> for Info {
    fn from(info: DatasetInfo) -> Info {
        Info {
            name: info.name,
            guid: info.guid,
            creation: info.creation,
            createtxg: info.createtxg,
            used: info.used,
            available: info.available,
            referenced: info.referenced,
            logical_used: info.logical_used,
            logical_referenced: info.logical_referenced,
            compressratio: info.compressratio as f64 / 100.0,
            written: info.written,
            unique: info.unique,
            origin: info.origin,
            clones: info.clones,
        }
    }
}

/// A property's value, and who set it.
#[pyclass(frozen, get_all, eq, module = "zilla")]
#[derive(PartialEq)]
pub(crate) struct Property {
    /// The value in the words that set it; numbers are plain (`1048576` rather than `1M`).
    value: String,
    /// `default`, `local`, `inherited` or `received`.
    source: &'static str,
    /// The dataset that it is inherited from.
    inherited_from: Option<String>,
}

#[pymethods]
impl Property {
    fn __repr__(&self) -> String {
        let from = self.inherited_from.as_ref().map(|from| format!(", inherited_from={from:?}"));
        format!("Property({:?}, source={:?}{})", self.value, self.source, from.unwrap_or_default())
    }

    fn __str__(&self) -> &str {
        &self.value
    }
}

impl From<zilla::Property> for Property {
    fn from(property: zilla::Property) -> Property {
        let (source, inherited_from) = match property.source {
            Source::Default => ("default", None),
            Source::Local => ("local", None),
            Source::Received => ("received", None),
            Source::Inherited(from) => ("inherited", Some(from)),
        };
        Property { value: property.value, source, inherited_from }
    }
}

/// A file's attributes as `os.stat` gives them.
pub(crate) fn stat<'py>(py: Python<'py>, attr: &Attr) -> PyResult<Bound<'py, PyAny>> {
    let seconds = |t: Time| t.sec as f64 + f64::from(t.nsec) / 1e9;
    let nanoseconds = |t: Time| i128::from(t.sec) * 1_000_000_000 + i128::from(t.nsec);
    // Source: the order of os.stat_result.
    let words = (attr.mode, attr.ino, 0, attr.nlink, attr.uid, attr.gid, attr.size);
    let mut all: Vec<Bound<'py, PyAny>> = words.into_pyobject(py)?.iter().collect();
    let times = [("atime", attr.atime), ("mtime", attr.mtime), ("ctime", attr.ctime)];
    let more = PyDict::new(py);
    for (name, time) in times {
        all.push(time.sec.into_pyobject(py)?.into_any());
        more.set_item(format!("st_{name}"), seconds(time))?;
        more.set_item(format!("st_{name}_ns"), nanoseconds(time))?;
    }
    more.set_item("st_blocks", attr.blocks)?;
    more.set_item("st_blksize", attr.blksize)?;
    more.set_item("st_rdev", attr.rdev)?;
    py.import("os")?.getattr("stat_result")?.call1((all, more))
}
