//! The engine's errors in the words of the commands.
//!
//! An engine's error is a number and what it is about. The number decides the class; where OpenZFS
//! has a fixed sentence for it, that is said, because scripts look for it; else the engine's own
//! words are the clearer ones.

use zilla::error::DatasetRefusal as Refusal;
use zilla::error::PoolRefusal;
use zilla::error::{Errno, Error};
use zilla_control::{ApiError, ErrorCode};

pub type Answer<T> = Result<T, ApiError>;

pub fn no_pool() -> ApiError {
    ApiError::with(ErrorCode::NoEnt, "no such pool")
}

pub fn no_dataset(name: &str) -> ApiError {
    ApiError::with(ErrorCode::NoEnt, "dataset does not exist").subject(name)
}

/// The number that an operation's error comes down to; damage has none but EIO.
fn number(e: &Error) -> Option<Errno> {
    (!matches!(e, Error::Corrupt(_))).then(|| e.errno())
}

/// Of an operation on a pool.
pub fn of_pool(e: Error) -> ApiError {
    let what = e.to_string();
    if let Error::Pool(why) = &e {
        return of_pool_refusal(why);
    }
    let Some(errno) = number(&e) else { return ApiError::with(ErrorCode::Io, what) };
    match errno {
        Errno::Exist => ApiError::with(ErrorCode::Exists, "pool already exists"),
        Errno::NoSpc => ErrorCode::NoSpc.into(),
        Errno::ROFs => ErrorCode::PoolReadonly.into(),
        Errno::Perm | Errno::Access => ApiError::with(ErrorCode::Perm, what),
        Errno::Busy => ApiError::with(ErrorCode::Busy, what),
        Errno::NoEnt => ApiError::with(ErrorCode::NoEnt, what),
        Errno::NxIo | Errno::NoDev => ApiError::with(ErrorCode::BadDev, what),
        Errno::NotSup => ApiError::with(ErrorCode::BadVersion, what),
        Errno::Inval => ApiError::with(ErrorCode::PoolInvalArg, what),
        Errno::Overflow => ApiError::with(ErrorCode::VdevTooBig, what),
        _ => ApiError::with(ErrorCode::Io, what),
    }
}

fn of_pool_refusal(why: &PoolRefusal) -> ApiError {
    match why {
        PoolRefusal::NoDevice(_) => ErrorCode::NoDevice.into(),
        PoolRefusal::NoReplicas => ErrorCode::NoReplicas.into(),
        PoolRefusal::CheckpointExists => ErrorCode::CheckpointExists.into(),
        PoolRefusal::DiscardingCheckpoint => ErrorCode::DiscardingCheckpoint.into(),
        PoolRefusal::NoCheckpoint => ErrorCode::NoCheckpoint.into(),
        PoolRefusal::CannotRemove => ErrorCode::PoolNotSup.into(),
        PoolRefusal::AlreadyRemoving | PoolRefusal::RemovalBusy => {
            ApiError::with(ErrorCode::Busy, why.to_string())
        }
        PoolRefusal::CannotEvacuate | PoolRefusal::RaidzBesideRemoved | PoolRefusal::OnlyMirrors => {
            ApiError::with(ErrorCode::InvalConfig, why.to_string())
        }
        PoolRefusal::UnknownSpace => ApiError::with(ErrorCode::Io, why.to_string()),
        PoolRefusal::OtherSectors => ErrorCode::AshiftMismatch.into(),
        PoolRefusal::NoRemoval => ErrorCode::NoPending.into(),
        PoolRefusal::Removing => ErrorCode::DevrmInProgress.into(),
        PoolRefusal::Expanding => ErrorCode::RaidzExpandInProgress.into(),
        PoolRefusal::NoExpansion
        | PoolRefusal::OtherDraid
        | PoolRefusal::NoRebuild
        | PoolRefusal::RebuildDisabled => ApiError::with(ErrorCode::BadTarget, why.to_string()),
        PoolRefusal::Resilvering => ErrorCode::Resilvering.into(),
        PoolRefusal::Rebuilding => ErrorCode::Rebuilding.into(),
        PoolRefusal::Scrubbing => ErrorCode::Scrubbing.into(),
        PoolRefusal::ScrubPaused => ErrorCode::ScrubPaused.into(),
        PoolRefusal::ScrubPausedToCancel => ErrorCode::ScrubPausedToCancel.into(),
        PoolRefusal::ErrorScrubbing => ErrorCode::ErrorScrubbing.into(),
        PoolRefusal::ErrorScrubPaused => ErrorCode::ErrorScrubPaused.into(),
        PoolRefusal::ExpandNotHealthy => ApiError::with(ErrorCode::BadDev, why.to_string()),
        PoolRefusal::NoUpkeep => ErrorCode::BadDev.into(),
        PoolRefusal::NoTrim => ErrorCode::TrimNotSup.into(),
        PoolRefusal::Initializing => ErrorCode::Initializing.into(),
        PoolRefusal::NoInitialize => ErrorCode::NoInitialize.into(),
        PoolRefusal::Trimming => ErrorCode::Trimming.into(),
        PoolRefusal::NoActiveTrim => ErrorCode::NoTrim.into(),
        PoolRefusal::NotHealthy => ApiError::with(ErrorCode::BadDev, why.to_string()),
        PoolRefusal::ActiveElsewhere { .. } | PoolRefusal::NoHostid => {
            ApiError::with(ErrorCode::ActivePool, why.to_string())
        }
        PoolRefusal::MissingLogs(_) => {
            let lines = why.to_string().lines().map(str::to_owned).collect();
            ApiError::with(ErrorCode::BadDev, "one or more devices is currently unavailable").details(lines)
        }
    }
}

/// Of an operation on a pool's devices.
pub fn of_vdev(e: Error) -> ApiError {
    let what = e.to_string();
    let Some(errno) = number(&e) else { return of_pool(e) };
    match errno {
        _ if matches!(e, Error::Pool(_)) => of_pool(e),
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
    let Some(errno) = number(&e) else { return ApiError::with(ErrorCode::Io, what) };
    if let Error::Refused(why) = &e {
        match &**why {
            Refusal::NoParent => return ErrorCode::NoParent.into(),
            Refusal::ParentNotFilesystem => return ApiError::with(ErrorCode::WrongParent, what),
            _ => {}
        }
    }
    match errno {
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

#[cfg(test)]
mod tests;
