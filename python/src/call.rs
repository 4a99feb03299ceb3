//! Calls from Python into the engine: without the interpreter's lock, and what they fail with.
//!
//! The engine's threads are started by the first call and last as long as the process. A fork takes
//! none of them along, so a child would wait for ever: it is refused at its first call, and what it
//! has inherited is never given back (that would need the engine too).

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use zilla_env::{Env, real_env};

static ENGINE: OnceLock<(u32, Env)> = OnceLock::new();

fn forked() -> bool {
    ENGINE.get().is_some_and(|(process, _)| *process != std::process::id())
}

/// The engine's threads and devices.
pub(crate) fn env() -> PyResult<&'static Env> {
    if forked() {
        let what = "the engine does not survive a fork: start processes with multiprocessing's 'spawn'";
        return Err(PyRuntimeError::new_err(what));
    }
    Ok(&ENGINE.get_or_init(|| (std::process::id(), real_env(0))).1)
}

/// An exception of `zilla._errors`, by its errno.
fn raised(py: Python<'_>, e: &zilla::Error) -> PyErr {
    let errors = py.import("zilla._errors");
    let made = errors.and_then(|m| m.call_method1("error_of", (e.errno() as i32, e.to_string())));
    made.map_or_else(|e| e, PyErr::from_value)
}

/// Calls the engine; other threads of Python run meanwhile.
pub(crate) fn engine<T: Send>(py: Python<'_>, call: impl FnOnce() -> zilla::Result<T> + Send) -> PyResult<T> {
    env()?;
    py.detach(call).map_err(|e| raised(py, &e))
}

/// Something of the engine's that Python has until it closes it.
pub(crate) struct Held<T> {
    inner: Mutex<Option<Arc<T>>>,
    /// What somebody is told who uses it after that.
    closed: &'static str,
}

impl<T> Held<T> {
    pub(crate) fn new(inner: T, closed: &'static str) -> Held<T> {
        Held { inner: Mutex::new(Some(Arc::new(inner))), closed }
    }

    pub(crate) fn get(&self) -> PyResult<Arc<T>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone();
        inner.ok_or_else(|| PyValueError::new_err(self.closed))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Puts another in its place.
    pub(crate) fn replace(&self, inner: T) {
        *self.inner.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(inner));
    }

    /// Gives it back; a call that is under way keeps it until it ends.
    pub(crate) fn close(&self) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        if forked() {
            std::mem::forget(inner);
        }
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// A path in a file system of ours, whose names are text here.
pub(crate) fn text(path: PathBuf) -> PyResult<String> {
    let wrong = |_| PyValueError::new_err("a path that is not UTF-8");
    path.into_os_string().into_string().map_err(wrong)
}

/// Properties as people write them: True and False are on and off, numbers their digits.
pub(crate) fn words(
    mapping: Option<&Bound<'_, PyAny>>,
    more: Option<&Bound<'_, PyDict>>,
) -> PyResult<Vec<(String, String)>> {
    let mut out = Vec::new();
    let mut add = |name: Bound<'_, PyAny>, value: Bound<'_, PyAny>| -> PyResult<()> {
        let value = match value.extract::<bool>() {
            Ok(on) => if on { "on" } else { "off" }.to_owned(),
            Err(_) => value.str()?.to_string(),
        };
        out.push((name.extract()?, value));
        Ok(())
    };
    if let Some(mapping) = mapping {
        for name in mapping.call_method0("keys")?.try_iter()? {
            let name = name?;
            let value = mapping.get_item(&name)?;
            add(name, value)?;
        }
    }
    for (name, value) in more.into_iter().flatten() {
        add(name, value)?;
    }
    Ok(out)
}

/// The same as the engine takes them.
pub(crate) fn borrowed(words: &[(String, String)]) -> Vec<(&str, &str)> {
    words.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}
