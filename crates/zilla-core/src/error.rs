//! What can go wrong, in the three kinds that are never mixed.
//!
//! *Corruption* says which bytes on disk are not what they should be, and feeds self-healing.
//! *Operating* errors are the ones a correct pool gives a correct caller (no space, no such file,
//! read-only) and become an errno once, at the protocol's edge. *Bugs* are assertions: the process
//! may die of them, because the txg model makes that safe.

mod dataset;
mod pool;

pub use dataset::Refusal as DatasetRefusal;
pub use pool::Refusal as PoolRefusal;

use crate::types::Bookmark;
use std::borrow::Cow;
use std::sync::Arc;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Bytes on disk that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// Which block of which object, where known.
    pub bookmark: Option<Bookmark>,
    /// The device and its byte offset, where known ("/dev/sdb at 4194304").
    pub place: String,
    /// What is wrong ("checksum is ..., should be ...").
    pub what: String,
}

impl std::fmt::Display for Corruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "damaged data")?;
        if let Some(b) = &self.bookmark {
            write!(f, " in block {b}")?;
        }
        if !self.place.is_empty() {
            write!(f, " ({})", self.place)?;
        }
        write!(f, ": {}", self.what)
    }
}

/// The operating errors' numbers: Linux's errno values, which is what OpenZFS returns and FUSE
/// wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Errno {
    Perm = 1,
    NoEnt = 2,
    Intr = 4,
    Io = 5,
    NxIo = 6,
    TooBig = 7,
    BadF = 9,
    Again = 11,
    NoMem = 12,
    Access = 13,
    Busy = 16,
    Exist = 17,
    XDev = 18,
    NoDev = 19,
    NotDir = 20,
    IsDir = 21,
    Inval = 22,
    TxtBsy = 26,
    FBig = 27,
    NoSpc = 28,
    ROFs = 30,
    MLink = 31,
    Dom = 33,
    Range = 34,
    NameTooLong = 36,
    NotEmpty = 39,
    Loop = 40,
    /// OpenZFS's ECKSUM: Linux's EBADE.
    Cksum = 52,
    NoData = 61,
    Overflow = 75,
    IlSeq = 84,
    NotSup = 95,
    TimedOut = 110,
    Stale = 116,
    DQuot = 122,
    Canceled = 125,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Corrupt(Arc<Corruption>),
    /// Of an operation on datasets.
    #[error("{0}")]
    Refused(Arc<DatasetRefusal>),
    /// Of an operation on a pool or its devices.
    #[error("{0}")]
    Pool(Arc<PoolRefusal>),
    #[error("{what}")]
    Os { errno: Errno, what: Cow<'static, str> },
}

impl Error {
    pub fn os(errno: Errno, what: impl Into<Cow<'static, str>>) -> Error {
        Error::Os { errno, what: what.into() }
    }
    pub fn corrupt(bookmark: Option<Bookmark>, place: impl Into<String>, what: impl Into<String>) -> Error {
        Error::Corrupt(Arc::new(Corruption { bookmark, place: place.into(), what: what.into() }))
    }
    /// The number a protocol's edge answers with. Corruption that could not be healed is EIO there.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Corrupt(_) => Errno::Io,
            Error::Refused(why) => why.errno(),
            Error::Pool(why) => why.errno(),
            Error::Os { errno, .. } => *errno,
        }
    }
    pub fn is(&self, errno: Errno) -> bool {
        match self {
            Error::Corrupt(_) => false,
            other => other.errno() == errno,
        }
    }
    pub fn no_ent(what: impl Into<Cow<'static, str>>) -> Error {
        Error::os(Errno::NoEnt, what)
    }
    pub fn inval(what: impl Into<Cow<'static, str>>) -> Error {
        Error::os(Errno::Inval, what)
    }
}

impl From<DatasetRefusal> for Error {
    fn from(why: DatasetRefusal) -> Error {
        Error::Refused(Arc::new(why))
    }
}

impl From<PoolRefusal> for Error {
    fn from(why: PoolRefusal) -> Error {
        Error::Pool(Arc::new(why))
    }
}

impl From<std::io::Error> for Error {
    /// Device errors keep the two numbers that mean something to a caller; all others are EIO.
    fn from(e: std::io::Error) -> Error {
        let errno = match e.raw_os_error() {
            Some(28) => Errno::NoSpc,
            Some(6) => Errno::NxIo,
            Some(16) => Errno::Busy,
            Some(2) => Errno::NoEnt,
            Some(13) => Errno::Access,
            Some(30) => Errno::ROFs,
            // A backend that says more than a number says the kind.
            _ if e.kind() == std::io::ErrorKind::ResourceBusy => Errno::Busy,
            _ => Errno::Io,
        };
        Error::os(errno, e.to_string())
    }
}
