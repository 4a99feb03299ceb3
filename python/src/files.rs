//! Files by path, and the bytes of one file.
//!
//! A file's position, modes and buffers are Python's matter (`zilla/_io.py`).

use crate::call::{Held, engine, text};
use crate::info::stat;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use zilla::{Errno, Error, blocking};

/// Bytes that are read or written in one call of the engine's.
const STEP: usize = 16 << 20;

/// The files of a dataset or snapshot, by path from its root. Links are followed, and nothing is
/// refused to whoever has this.
///
/// It is a context manager that closes it at its end; the pool cannot be exported before.
#[pyclass(frozen, module = "zilla")]
pub(crate) struct Files(Held<blocking::Files>);

impl Files {
    pub(crate) fn new(files: blocking::Files) -> Files {
        Files(Held::new(files, "the files were closed"))
    }
}

#[pymethods]
impl Files {
    /// Opens a file as the built-in `open` does: `files.open("/note", "w")`.
    #[pyo3(signature = (path, *args, **kwargs))]
    fn open<'py>(
        this: &Bound<'py, Self>,
        path: PathBuf,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let open = this.py().import("zilla._io")?.getattr("open")?;
        let mut all = vec![this.clone().into_any(), text(path)?.into_pyobject(this.py())?.into_any()];
        all.extend(args);
        open.call(PyTuple::new(this.py(), all)?, kwargs)
    }

    /// A file's bytes, for `zilla.File`; `how` is the letter of a mode: r, w, a or x.
    fn open_raw(&self, py: Python<'_>, path: PathBuf, how: &str) -> PyResult<RawFile> {
        let (files, path) = (self.0.get()?, text(path)?);
        let file = engine(py, || {
            let file = match how {
                "r" => files.open(&path),
                "w" => files.create(&path),
                "x" => files.create_new(&path),
                "a" => match files.create_new(&path) {
                    Err(e) if e.is(Errno::Exist) => files.open(&path),
                    made => made,
                },
                _ => Err(Error::inval(format!("there is no mode '{how}'"))),
            }?;
            match file.attr()?.is_dir() {
                true => Err(Error::os(Errno::IsDir, format!("{path} is a directory"))),
                false => Ok(file),
            }
        })?;
        Ok(RawFile(Held::new(file, "I/O operation on closed file")))
    }

    /// The whole contents of a file.
    fn read_bytes<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
        let (files, path) = (self.0.get()?, text(path)?);
        Ok(PyBytes::new(py, &engine(py, || files.read(&path))?))
    }

    /// Makes a file of these contents, in the place of one of the name.
    fn write_bytes(&self, py: Python<'_>, path: PathBuf, data: &[u8]) -> PyResult<()> {
        let (files, path) = (self.0.get()?, text(path)?);
        engine(py, || files.write(&path, data))
    }

    /// What `os.stat` says.
    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (files, path) = (self.0.get()?, text(path)?);
        let attr = engine(py, || match follow_symlinks {
            true => files.metadata(&path),
            false => files.symlink_metadata(&path),
        })?;
        stat(py, &attr)
    }

    /// Whether there is something at a path; what a symbolic link leads to counts.
    fn exists(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        let (files, path) = (self.0.get()?, text(path)?);
        engine(py, || match files.metadata(&path) {
            Err(e) if e.is(Errno::NoEnt) || e.is(Errno::NotDir) => Ok(false),
            found => found.map(|_| true),
        })
    }

    /// The names in a directory, in no order.
    #[pyo3(signature = (path = PathBuf::from("/")), text_signature = "($self, path='/')")]
    fn listdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        let (files, path) = (self.0.get()?, text(path)?);
        let all = engine(py, || files.read_dir(&path))?;
        Ok(all.into_iter().map(|entry| OsString::from_vec(entry.name)).collect())
    }

    /// Makes a directory. The one above it must be there.
    fn mkdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let (files, path) = (self.0.get()?, text(path)?);
        engine(py, || files.create_dir(&path))
    }

    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let (files, path) = (self.0.get()?, text(path)?);
        engine(py, || files.remove_dir(&path))
    }

    /// Removes a file or symbolic link.
    fn unlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let (files, path) = (self.0.get()?, text(path)?);
        engine(py, || files.remove_file(&path))
    }

    /// Gives a file or directory another name, in the place of what has it.
    fn rename(&self, py: Python<'_>, source: PathBuf, target: PathBuf) -> PyResult<()> {
        let (files, source, target) = (self.0.get()?, text(source)?, text(target)?);
        engine(py, || files.rename(&source, &target))
    }

    /// Makes a symbolic link at `path` that leads to `target`.
    fn symlink(&self, py: Python<'_>, target: PathBuf, path: PathBuf) -> PyResult<()> {
        let (files, target, path) = (self.0.get()?, text(target)?, text(path)?);
        engine(py, || files.symlink(&target, &path))
    }

    /// Where a symbolic link leads.
    fn readlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<OsString> {
        let (files, path) = (self.0.get()?, text(path)?);
        Ok(OsString::from_vec(engine(py, || files.read_link(&path))?.to_vec()))
    }

    /// Cuts a file off at so many bytes, or makes it longer by a hole.
    fn truncate(&self, py: Python<'_>, path: PathBuf, length: u64) -> PyResult<()> {
        let (files, path) = (self.0.get()?, text(path)?);
        engine(py, || files.open(&path)?.set_len(length))
    }

    /// Gives it back. Files that are open stay so.
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

/// An open file's bytes by their offsets; `zilla.File` stands on it.
#[pyclass(frozen, module = "zilla")]
pub(crate) struct RawFile(Held<blocking::File>);

#[pymethods]
impl RawFile {
    /// Up to `length` bytes at `offset`; fewer at the end of the file.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.0.get()?;
        let bytes = engine(py, || {
            let mut all = file.read_at(offset, length.min(STEP))?;
            // Fewer bytes than were asked for are the last.
            let mut whole = all.len() == length.min(STEP);
            while whole && all.len() < length {
                let step = (length - all.len()).min(STEP);
                let part = file.read_at(offset.saturating_add(all.len() as u64), step)?;
                whole = part.len() == step;
                all.extend_from_slice(&part);
            }
            Ok(all)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Writes all of `data` at `offset`.
    fn write_at(&self, py: Python<'_>, offset: u64, data: &[u8]) -> PyResult<()> {
        let file = self.0.get()?;
        engine(py, || {
            let mut at = offset;
            for part in data.chunks(STEP) {
                file.write_at(at, part)?;
                at = at.saturating_add(part.len() as u64);
            }
            Ok(())
        })
    }

    /// Bytes in the file.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.0.get()?;
        Ok(engine(py, || file.attr())?.size)
    }

    /// What `os.fstat` says.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let file = self.0.get()?;
        let attr = engine(py, || file.attr())?;
        stat(py, &attr)
    }

    /// Cuts it off at so many bytes, or makes it longer by a hole.
    fn truncate(&self, py: Python<'_>, length: u64) -> PyResult<()> {
        let file = self.0.get()?;
        engine(py, || file.set_len(length))
    }

    /// Returns when all that was written to it is on stable storage.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.0.get()?;
        engine(py, || file.sync())
    }

    /// Gives it back.
    fn close(&self) {
        self.0.close();
    }
}
