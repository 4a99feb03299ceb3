//! A volume's bytes.

use crate::call::{Held, engine};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use zilla::blocking;

/// A volume's bytes. It is a context manager that closes it at its end; the pool cannot be exported
/// before.
#[pyclass(frozen, module = "zilla")]
pub(crate) struct Volume(Held<blocking::Volume>);

impl Volume {
    pub(crate) fn new(volume: blocking::Volume) -> Volume {
        Volume(Held::new(volume, "the volume was closed"))
    }
}

#[pymethods]
impl Volume {
    /// Bytes that it has.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let volume = self.0.get()?;
        engine(py, || volume.size())
    }

    /// So many bytes at an offset.
    fn read<'py>(&self, py: Python<'py>, offset: u64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        let volume = self.0.get()?;
        Ok(PyBytes::new(py, &engine(py, || volume.read(offset, length))?))
    }

    /// Writes at an offset; with `stable` it is on stable storage when this returns.
    #[pyo3(signature = (offset, data, *, stable = false))]
    fn write(&self, py: Python<'_>, offset: u64, data: &[u8], stable: bool) -> PyResult<()> {
        let volume = self.0.get()?;
        engine(py, || volume.write(offset, data, stable))
    }

    /// Gives up what lies in a range: it reads as zeroes.
    fn trim(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        let volume = self.0.get()?;
        engine(py, || volume.trim(offset, length))
    }

    /// Returns when all that was written is stable.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let volume = self.0.get()?;
        engine(py, || volume.flush())
    }

    /// Gives it back.
    fn close(&self) {
        self.0.close();
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        self.close();
    }
}
