//! Pools for Python: the extension module `zilla._zilla`.
//!
//! ```text
//!   zilla/__init__.py   what people import: this module, errors, files as Python's io
//!   zilla/_errors.py    exceptions by errno                  zilla/_io.py    io.RawIOBase on RawFile
//!   zilla/_zilla.pyi    the types of this module
//! ```
//!
//! Each class wraps one of `zilla::blocking`. The engine runs on threads of its own, one set for
//! the process (`call.rs`), and each call into it is made without the interpreter's lock, so other
//! threads of Python go on.
//!
//! **What is kept true.** The engine never calls into Python, and of Python's objects it sees only
//! the bytes of a write, which nobody can change. An object that was closed, or whose pool was
//! exported, says so (`ValueError`) and reaches nothing. What the engine refuses is a `zilla.Error`
//! with its errno.
//!
//! **A crash,** or an interpreter that ends without `Pool.export`, leaves a pool as a machine does
//! that loses power: what was synced is there at the next import.
//!
//! **Deliberately absent:** what the facade lacks too (mounts, shares, encryption, streams), and
//! asyncio: a program with an event loop calls from a thread (`asyncio.to_thread`).

mod call;
mod dataset;
mod files;
mod info;
mod pool;
mod volume;

use pyo3::prelude::*;

/// The engine of zilla. Use the package `zilla`, which has all of it.
#[pymodule]
mod _zilla {
    #[pymodule_export]
    use crate::dataset::{Dataset, Snapshot};
    #[pymodule_export]
    use crate::files::{Files, RawFile};
    #[pymodule_export]
    use crate::info::{Info, Property};
    #[pymodule_export]
    use crate::pool::{Found, Pool, ScrubResult, Vdev, find};
    #[pymodule_export]
    use crate::volume::Volume;
}
