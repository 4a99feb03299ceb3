//! The one error of this crate: which structure, which field, at which byte, and what is wrong with
//! it.

use thiserror::Error;

pub type Result<T, E = FormatError> = std::result::Result<T, E>;

/// What is wrong with a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Problem {
    #[error("{need} bytes needed, {have} there")]
    Truncated { need: usize, have: usize },
    #[error("value {value:#x} is impossible ({why})")]
    Impossible { value: u64, why: &'static str },
    #[error("magic is {found:#x}, not {wanted:#x}")]
    Magic { found: u64, wanted: u64 },
    #[error("not a NUL-terminated UTF-8 string")]
    String,
    #[error("nested deeper than {limit}")]
    TooDeep { limit: usize },
    #[error("no room: {need} needed, {have} free")]
    NoSpace { need: usize, have: usize },
    #[error("does not exist")]
    Missing,
    #[error("is of another type")]
    WrongType,
    #[error("exists already")]
    Exists,
}

/// Bytes that are not what they should be. Small and `Copy`, since it travels through every read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{structure}.{field} at byte {offset}: {problem}")]
pub struct FormatError {
    pub structure: &'static str,
    pub field: &'static str,
    pub offset: usize,
    pub problem: Problem,
}

impl FormatError {
    pub const fn new(
        structure: &'static str,
        field: &'static str,
        offset: usize,
        problem: Problem,
    ) -> FormatError {
        FormatError { structure, field, offset, problem }
    }

    /// The value of a field cannot be.
    pub const fn impossible(
        structure: &'static str,
        field: &'static str,
        offset: usize,
        value: u64,
        why: &'static str,
    ) -> FormatError {
        FormatError::new(structure, field, offset, Problem::Impossible { value, why })
    }

    /// Refuses counters of bytes that are larger than any pool; each with its name.
    pub fn counters(structure: &'static str, all: &[(&'static str, u64)]) -> Result<()> {
        match all.iter().find(|(_, n)| *n > crate::MAX_COUNTED_BYTES) {
            Some(&(field, n)) => Err(FormatError::impossible(structure, field, 0, n, "larger than any pool")),
            None => Ok(()),
        }
    }

    /// True when a structure had no room for what was to be added: not damage, the caller splits or
    /// grows.
    pub const fn is_no_space(&self) -> bool {
        matches!(self.problem, Problem::NoSpace { .. })
    }
}
