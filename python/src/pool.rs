//! Pools: made, found, opened, exported.

use crate::call::{Held, borrowed, engine, env, words};
use crate::dataset::Dataset;
use pyo3::exceptions::{PyResourceWarning, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ffi::{CString, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use zilla::{Import, NewPool, NewVdev, blocking};
use zilla_ondisk::enums::PoolState;

/// A top-level vdev of a new pool: `Vdev.mirror("a.img", "b.img")`.
#[pyclass(frozen, module = "zilla")]
pub(crate) struct Vdev(NewVdev);

#[pymethods]
impl Vdev {
    /// One device or image file, without redundancy.
    #[staticmethod]
    fn single(device: PathBuf) -> Vdev {
        Vdev(NewVdev::single(device))
    }

    /// Devices that all hold the same.
    #[staticmethod]
    #[pyo3(signature = (*devices))]
    fn mirror(devices: Vec<PathBuf>) -> Vdev {
        Vdev(NewVdev::mirror(devices))
    }

    /// Devices of which `parity` (1 to 3) may be lost.
    #[staticmethod]
    #[pyo3(signature = (parity, *devices))]
    fn raidz(parity: u8, devices: Vec<PathBuf>) -> Vdev {
        Vdev(NewVdev::raidz(parity, devices))
    }

    /// The same for the intent log alone.
    fn for_log(&self) -> Vdev {
        Vdev(self.0.clone().for_log())
    }
}

/// A pool that was found on devices.
#[pyclass(frozen, get_all, module = "zilla")]
pub(crate) struct Found {
    /// Its name.
    name: String,
    /// A number that it keeps whatever it is called.
    guid: u64,
    /// `exported`, `destroyed`, or `active`: in use, or not exported by whoever had it last.
    state: &'static str,
    /// Where its devices were found.
    devices: Vec<OsString>,
}

#[pymethods]
impl Found {
    fn __repr__(&self) -> String {
        format!("Found(name={:?}, guid={}, state={:?})", self.name, self.guid, self.state)
    }
}

/// The pools on the devices in some places. Of a directory its files are looked at; anything else
/// is a device or image file itself.
#[pyfunction]
#[pyo3(signature = (*places))]
pub(crate) fn find(py: Python<'_>, places: Vec<PathBuf>) -> PyResult<Vec<Found>> {
    let env = env()?;
    let found = engine(py, || env.block_on(zilla::Pool::find(env, &places)))?;
    let state = |state| match state {
        PoolState::Exported => "exported",
        PoolState::Destroyed => "destroyed",
        _ => "active",
    };
    let one = |p: zilla::FoundPool| Found {
        name: p.name,
        guid: p.guid,
        state: state(p.state),
        devices: p.paths.into_values().map(PathBuf::into_os_string).collect(),
    };
    Ok(found.into_iter().map(one).collect())
}

/// How a scrub ended.
#[pyclass(frozen, get_all, module = "zilla")]
pub(crate) struct ScrubResult {
    /// Bytes that were read and compared with their checksums.
    examined: u64,
    /// Bytes that were mended.
    repaired: u64,
    /// Blocks that could not be.
    errors: u64,
}

#[pymethods]
impl ScrubResult {
    fn __repr__(&self) -> String {
        let ScrubResult { examined, repaired, errors } = self;
        format!("ScrubResult(examined={examined}, repaired={repaired}, errors={errors})")
    }
}

/// An imported pool: make one with `Pool.create`, open one with `Pool.open`.
///
/// It is a context manager that exports the pool at its end. All files and volumes of it must be
/// closed by then: use them in `with`, too.
#[pyclass(frozen, module = "zilla")]
pub(crate) struct Pool {
    held: Arc<Held<blocking::Pool>>,
    /// The pool's name.
    #[pyo3(get)]
    name: String,
    /// A number that it keeps whatever it is called.
    #[pyo3(get)]
    guid: u64,
}

impl Pool {
    fn new(pool: blocking::Pool) -> Pool {
        let (name, guid) = (pool.name(), pool.inner().guid());
        Pool { held: Arc::new(Held::new(pool, "the pool was exported")), name, guid }
    }

    fn dataset_of(&self, dataset: blocking::Dataset) -> Dataset {
        Dataset::new(self.held.clone(), dataset)
    }
}

#[pymethods]
impl Pool {
    /// Makes a pool of devices or image files, and imports it.
    ///
    /// Each of `vdevs` is a path or a `Vdev`. `cache` are cache devices, `owner` (uid, gid) of the
    /// root directory. A device on which something lies is refused (`zilla.Exists`) unless
    /// `overwrite`. `memory` is how many bytes of blocks may be kept in memory; 64 MiB otherwise.
    #[staticmethod]
    #[pyo3(signature = (name, *vdevs, cache = Vec::new(), owner = None, overwrite = false, memory = None))]
    fn create(
        py: Python<'_>,
        name: &str,
        vdevs: &Bound<'_, PyTuple>,
        cache: Vec<PathBuf>,
        owner: Option<(u32, u32)>,
        overwrite: bool,
        memory: Option<u64>,
    ) -> PyResult<Pool> {
        let mut new = NewPool::new(name);
        for vdev in vdevs {
            new = match (vdev.cast::<Vdev>(), vdev.extract::<PathBuf>()) {
                (Ok(vdev), _) => new.vdev(vdev.get().0.clone()),
                (_, Ok(path)) => new.vdev(NewVdev::single(path)),
                _ => return Err(PyTypeError::new_err("a vdev is a path or a zilla.Vdev")),
            };
        }
        new = cache.into_iter().fold(new, NewPool::cache);
        if let Some((uid, gid)) = owner {
            new = new.owner(uid, gid);
        }
        if let Some(bytes) = memory {
            new = new.memory(bytes);
        }
        if overwrite {
            new = new.overwrite();
        }
        let env = env()?;
        Ok(Pool::new(engine(py, || blocking::Pool::create(env, new))?))
    }

    /// Imports the pool of a name, or of a guid in digits, whose devices are in `places`: image
    /// files, devices, or directories of them.
    ///
    /// `force` takes a pool that another host had last and did not export; that host must not have
    /// it any more. `memory` as for `create`.
    #[staticmethod]
    #[pyo3(signature = (name, *places, readonly = false, force = false, memory = 0))]
    fn open(
        py: Python<'_>,
        name: &str,
        places: Vec<PathBuf>,
        readonly: bool,
        force: bool,
        memory: u64,
    ) -> PyResult<Pool> {
        let env = env()?;
        let how = Import { readonly, force, memory };
        Ok(Pool::new(engine(py, || blocking::Pool::import(env, &places, name, how))?))
    }

    /// A file system or volume by its whole name.
    fn dataset(&self, py: Python<'_>, name: &str) -> PyResult<Dataset> {
        let pool = self.held.get()?;
        Ok(self.dataset_of(engine(py, || pool.dataset(name))?))
    }

    /// All file systems and volumes, those above before those below.
    fn datasets(&self, py: Python<'_>) -> PyResult<Vec<Dataset>> {
        let pool = self.held.get()?;
        let all = engine(py, || pool.datasets())?;
        Ok(all.into_iter().map(|dataset| self.dataset_of(dataset)).collect())
    }

    /// Makes a file system, with properties: `{"compression": "zstd"}`. The one above it must be
    /// there.
    #[pyo3(signature = (name, properties = None))]
    fn create_filesystem(
        &self,
        py: Python<'_>,
        name: &str,
        properties: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Dataset> {
        let (pool, words) = (self.held.get()?, words(properties, None)?);
        Ok(self.dataset_of(engine(py, || pool.create_filesystem(name, &borrowed(&words)))?))
    }

    /// Makes a volume of `size` bytes, with properties. All that it can take is reserved for it;
    /// `{"refreservation": "none"}` makes it sparse.
    #[pyo3(signature = (name, size, properties = None))]
    fn create_volume(
        &self,
        py: Python<'_>,
        name: &str,
        size: u64,
        properties: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Dataset> {
        let (pool, words) = (self.held.get()?, words(properties, None)?);
        Ok(self.dataset_of(engine(py, || pool.create_volume(name, size, &borrowed(&words)))?))
    }

    /// Takes snapshots of several datasets at the same moment: `"tank@now", "tank/home@now"`.
    #[pyo3(signature = (*names))]
    fn snapshot(&self, py: Python<'_>, names: Vec<String>) -> PyResult<()> {
        let pool = self.held.get()?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        engine(py, || pool.snapshot(&names))
    }

    /// Waits until all that was changed so far is on disk.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.held.get()?;
        engine(py, || pool.sync())
    }

    /// Reads all that is in use and mends what can be mended; returns when it is done.
    fn scrub(&self, py: Python<'_>) -> PyResult<ScrubResult> {
        let pool = self.held.get()?;
        let zilla::ScrubResult { examined, repaired, errors } = engine(py, || pool.scrub())?;
        Ok(ScrubResult { examined, repaired, errors })
    }

    /// Closes the pool and says so on its devices. `zilla.Busy`: files or a volume of it are open,
    /// and the pool goes on as before.
    fn export(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.held.get()?;
        engine(py, || pool.export())?;
        self.held.close();
        Ok(())
    }

    /// Whether it was exported.
    #[getter]
    fn exported(&self) -> bool {
        self.held.is_closed()
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (kind, _error, _trace))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _error: Option<Bound<'_, PyAny>>,
        _trace: Option<Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        if self.exported() {
            return Ok(false);
        }
        match (self.export(py), kind) {
            // What went wrong first is what people have to see; its frames may still hold files.
            (Err(e), Some(_)) => {
                let what = CString::new(format!("'{}' was not exported: {e}", self.name)).unwrap_or_default();
                PyErr::warn(py, &py.get_type::<PyResourceWarning>(), &what, 1)?;
            }
            (exported, _) => exported?,
        }
        Ok(false)
    }

    fn __repr__(&self) -> String {
        format!("<zilla.Pool {:?}{}>", self.name, if self.exported() { ", exported" } else { "" })
    }
}
