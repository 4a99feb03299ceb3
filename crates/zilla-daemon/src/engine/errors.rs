//! The engine's errors in the words of the commands.
//!
//! An engine's error is a number and what it is about. The number decides the class; where OpenZFS has a fixed
//! sentence for it, that is said, because scripts look for it; else the engine's own words are the clearer ones.

use zilla_control::{ApiError, ErrorCode};
use zilla_core::error::{Errno, Error};
use zilla_core::spa::MISSING_LOGS;

pub type Answer<T> = Result<T, ApiError>;

pub fn no_pool() -> ApiError {
    ApiError::with(ErrorCode::NoEnt, "no such pool")
}

pub fn no_dataset(name: &str) -> ApiError {
    ApiError::with(ErrorCode::NoEnt, "dataset does not exist").subject(name)
}

/// Of an operation on a pool.
pub fn of_pool(e: Error) -> ApiError {
    let what = e.to_string();
    let Error::Os { errno, .. } = &e else { return ApiError::with(ErrorCode::Io, what) };
    match errno {
        Errno::Exist => ApiError::with(ErrorCode::Exists, "pool already exists"),
        Errno::NoSpc => ErrorCode::NoSpc.into(),
        Errno::ROFs => ErrorCode::PoolReadonly.into(),
        Errno::Perm | Errno::Access => ApiError::with(ErrorCode::Perm, what),
        Errno::Busy => ApiError::with(ErrorCode::Busy, what),
        Errno::NoEnt => ApiError::with(ErrorCode::NoEnt, what),
        Errno::NxIo if what.starts_with(MISSING_LOGS) => {
            let lines = what.lines().map(str::to_owned).collect();
            ApiError::with(ErrorCode::BadDev, "one or more devices is currently unavailable").details(lines)
        }
        Errno::NxIo | Errno::NoDev => ApiError::with(ErrorCode::BadDev, what),
        Errno::NotSup => ApiError::with(ErrorCode::BadVersion, what),
        Errno::Inval => ApiError::with(ErrorCode::PoolInvalArg, what),
        Errno::Overflow => ApiError::with(ErrorCode::VdevTooBig, what),
        _ => ApiError::with(ErrorCode::Io, what),
    }
}

/// Of an operation on a pool's devices.
pub fn of_vdev(e: Error) -> ApiError {
    let what = e.to_string();
    let Error::Os { errno, .. } = &e else { return of_pool(e) };
    match errno {
        Errno::NoDev if what.starts_with("no such device") => ErrorCode::NoDevice.into(),
        Errno::Busy if what == "no valid replicas" => ErrorCode::NoReplicas.into(),
        Errno::Busy => ApiError::with(ErrorCode::Busy, what),
        Errno::Exist => ApiError::with(
            ErrorCode::UnplayedLogs,
            format!("{}: {what}", ErrorCode::UnplayedLogs.description()),
        ),
        Errno::Dom | Errno::Overflow => ApiError::with(ErrorCode::BadDev, what),
        Errno::NotSup => ApiError::with(ErrorCode::BadTarget, what),
        _ => of_pool(e),
    }
}

/// Of an operation on a dataset.
pub fn of_dataset(e: Error) -> ApiError {
    let what = e.to_string();
    let Error::Os { errno, .. } = &e else { return ApiError::with(ErrorCode::Io, what) };
    match errno {
        Errno::NoEnt if what == "parent does not exist" => ApiError::with(ErrorCode::NoEnt, what),
        Errno::NoEnt => ApiError::with(ErrorCode::NoEnt, "dataset does not exist"),
        Errno::Exist => ApiError::with(ErrorCode::Exists, "dataset already exists"),
        Errno::Busy => ApiError::with(ErrorCode::Busy, "dataset is busy"),
        Errno::NoSpc | Errno::DQuot => ErrorCode::NoSpc.into(),
        Errno::ROFs => ErrorCode::PoolReadonly.into(),
        Errno::Perm | Errno::Access => ApiError::with(ErrorCode::Perm, what),
        Errno::NameTooLong => ApiError::with(ErrorCode::NameTooLong, what),
        Errno::NotSup => ApiError::with(ErrorCode::BadVersion, what),
        Errno::XDev => ApiError::with(ErrorCode::CrossTarget, what),
        Errno::Inval => ApiError::with(ErrorCode::BadType, what),
        _ => ApiError::with(ErrorCode::Io, what),
    }
}

/// The same, saying which dataset of several it was.
pub fn of(name: &str) -> impl Fn(Error) -> ApiError {
    let name = name.to_owned();
    move |e| of_dataset(e).subject(name.as_str())
}
