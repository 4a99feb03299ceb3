//! Datasets and snapshots: names in a pool, looked up anew by each call.

use crate::call::{Held, borrowed, engine, words};
use crate::files::Files;
use crate::info::{Info, Property};
use crate::volume::Volume;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use zilla::{Cred, DatasetKind, blocking};

/// A file system or volume of a pool.
#[pyclass(frozen, module = "zilla")]
pub(crate) struct Dataset {
    pool: Arc<Held<blocking::Pool>>,
    held: Held<blocking::Dataset>,
}

impl Dataset {
    pub(crate) fn new(pool: Arc<Held<blocking::Pool>>, dataset: blocking::Dataset) -> Dataset {
        Dataset { pool, held: Held::new(dataset, "the dataset was destroyed") }
    }

    fn get_inner(&self) -> PyResult<Arc<blocking::Dataset>> {
        self.pool.get()?;
        self.held.get()
    }

    fn snapshot_of(&self, snapshot: blocking::Snapshot) -> Snapshot {
        Snapshot { pool: self.pool.clone(), held: Held::new(snapshot, "the snapshot was destroyed") }
    }
}

#[pymethods]
impl Dataset {
    /// The whole name.
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.held.get()?.name().to_owned())
    }

    /// `filesystem` or `volume`.
    #[getter]
    fn kind(&self) -> PyResult<&'static str> {
        Ok(match self.held.get()?.kind() {
            DatasetKind::Filesystem => "filesystem",
            DatasetKind::Volume => "volume",
        })
    }

    /// Its files. What is made is the owner's: root's, unless another is said.
    #[pyo3(signature = (uid = 0, gid = 0))]
    fn files(&self, py: Python<'_>, uid: u32, gid: u32) -> PyResult<Files> {
        let dataset = self.get_inner()?;
        Ok(Files::new(engine(py, || dataset.files_as(Cred { uid, gid }))?))
    }

    /// A volume's bytes.
    fn volume(&self, py: Python<'_>) -> PyResult<Volume> {
        let dataset = self.get_inner()?;
        Ok(Volume::new(engine(py, || dataset.volume())?))
    }

    /// Sizes and numbers of it.
    fn info(&self, py: Python<'_>) -> PyResult<Info> {
        let dataset = self.get_inner()?;
        Ok(engine(py, || dataset.info())?.into())
    }

    /// A property that can be set, with who set it; None if there is none of that name.
    fn get(&self, py: Python<'_>, name: &str) -> PyResult<Option<Property>> {
        let dataset = self.get_inner()?;
        Ok(engine(py, || dataset.get(name))?.map(Property::from))
    }

    /// Sets properties, all or none: `home.set(compression="zstd")`, or
    /// `home.set({"org.example:by": "me"})`.
    #[pyo3(signature = (properties = None, **more))]
    fn set(
        &self,
        py: Python<'_>,
        properties: Option<&Bound<'_, PyAny>>,
        more: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let (dataset, words) = (self.get_inner()?, words(properties, more)?);
        engine(py, || dataset.set(&borrowed(&words)))
    }

    /// Takes back what was set of a property, so that it has what the dataset above has.
    fn inherit(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let dataset = self.get_inner()?;
        engine(py, || dataset.inherit(name))
    }

    /// Takes a snapshot of this name (what stands behind the `@`).
    fn snapshot(&self, py: Python<'_>, name: &str) -> PyResult<Snapshot> {
        let dataset = self.get_inner()?;
        Ok(self.snapshot_of(engine(py, || dataset.snapshot(name))?))
    }

    /// Its snapshots, the oldest first.
    fn snapshots(&self, py: Python<'_>) -> PyResult<Vec<Snapshot>> {
        let dataset = self.get_inner()?;
        let all = engine(py, || dataset.snapshots())?;
        Ok(all.into_iter().map(|snapshot| self.snapshot_of(snapshot)).collect())
    }

    /// Goes back to its newest snapshot, whose name is said so that nothing else is lost.
    /// `zilla.Busy`: it is open; `zilla.Exists`: there is a later one.
    fn rollback(&self, py: Python<'_>, to: &str) -> PyResult<()> {
        let dataset = self.get_inner()?;
        engine(py, || dataset.rollback(to))
    }

    /// Gives it another name in the same pool, with all that is below it.
    fn rename(&self, py: Python<'_>, to: &str) -> PyResult<()> {
        let mut dataset = blocking::Dataset::clone(&*self.get_inner()?);
        let renamed = engine(py, || dataset.rename(to).map(|()| dataset))?;
        self.held.replace(renamed);
        Ok(())
    }

    /// Destroys it. `zilla.Busy`: it is open; `zilla.Exists`: it has snapshots, or datasets below
    /// it.
    fn destroy(&self, py: Python<'_>) -> PyResult<()> {
        let dataset = blocking::Dataset::clone(&*self.get_inner()?);
        engine(py, || dataset.destroy())?;
        self.held.close();
        Ok(())
    }

    fn __repr__(&self) -> String {
        self.name()
            .map_or("<zilla.Dataset, destroyed>".to_owned(), |name| format!("<zilla.Dataset {name:?}>"))
    }
}

/// A snapshot of a file system or volume.
#[pyclass(frozen, module = "zilla")]
pub(crate) struct Snapshot {
    pool: Arc<Held<blocking::Pool>>,
    held: Held<blocking::Snapshot>,
}

impl Snapshot {
    fn get_inner(&self) -> PyResult<Arc<blocking::Snapshot>> {
        self.pool.get()?;
        self.held.get()
    }
}

#[pymethods]
impl Snapshot {
    /// The whole name, `tank/home@monday`.
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.held.get()?.name().to_owned())
    }

    /// The files as they were.
    fn files(&self, py: Python<'_>) -> PyResult<Files> {
        let snapshot = self.get_inner()?;
        Ok(Files::new(engine(py, || snapshot.files())?))
    }

    /// The volume's bytes as they were.
    fn volume(&self, py: Python<'_>) -> PyResult<Volume> {
        let snapshot = self.get_inner()?;
        Ok(Volume::new(engine(py, || snapshot.volume())?))
    }

    /// Sizes and numbers of it.
    fn info(&self, py: Python<'_>) -> PyResult<Info> {
        let snapshot = self.get_inner()?;
        Ok(engine(py, || snapshot.info())?.into())
    }

    /// Makes a dataset that begins with what the snapshot has, and shares its blocks.
    #[pyo3(signature = (name, properties = None))]
    fn clone_to(
        &self,
        py: Python<'_>,
        name: &str,
        properties: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Dataset> {
        let (snapshot, words) = (self.get_inner()?, words(properties, None)?);
        let dataset = engine(py, || snapshot.clone_to(name, &borrowed(&words)))?;
        Ok(Dataset::new(self.pool.clone(), dataset))
    }

    /// Destroys it. `zilla.Exists`: it has clones; `zilla.Busy`: it is held, or open.
    fn destroy(&self, py: Python<'_>) -> PyResult<()> {
        let snapshot = blocking::Snapshot::clone(&*self.get_inner()?);
        engine(py, || snapshot.destroy())?;
        self.held.close();
        Ok(())
    }

    fn __repr__(&self) -> String {
        self.name()
            .map_or("<zilla.Snapshot, destroyed>".to_owned(), |name| format!("<zilla.Snapshot {name:?}>"))
    }
}
