//! The engine's errors in the words of the commands.
//!
//! An engine's error is a number and what it is about. The number decides the class; where OpenZFS
//! has a fixed sentence for it, that is said, because scripts look for it; else the engine's own
//! words are the clearer ones.

use zilla_control::{ApiError, ErrorCode};
use zilla_core::dsl::Refusal;
use zilla_core::error::{Errno, Error};
use zilla_core::spa;

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

fn of_pool_refusal(why: &spa::Refusal) -> ApiError {
    match why {
        spa::Refusal::NoDevice(_) => ErrorCode::NoDevice.into(),
        spa::Refusal::NoReplicas => ErrorCode::NoReplicas.into(),
        spa::Refusal::CheckpointExists => ErrorCode::CheckpointExists.into(),
        spa::Refusal::DiscardingCheckpoint => ErrorCode::DiscardingCheckpoint.into(),
        spa::Refusal::NoCheckpoint => ErrorCode::NoCheckpoint.into(),
        spa::Refusal::CannotRemove => ErrorCode::PoolNotSup.into(),
        spa::Refusal::AlreadyRemoving | spa::Refusal::RemovalBusy => {
            ApiError::with(ErrorCode::Busy, why.to_string())
        }
        spa::Refusal::CannotEvacuate | spa::Refusal::RaidzBesideRemoved | spa::Refusal::OnlyMirrors => {
            ApiError::with(ErrorCode::InvalConfig, why.to_string())
        }
        spa::Refusal::NoRemoval => ErrorCode::NoPending.into(),
        spa::Refusal::Removing => ErrorCode::DevrmInProgress.into(),
        spa::Refusal::Expanding => ErrorCode::RaidzExpandInProgress.into(),
        spa::Refusal::NoExpansion
        | spa::Refusal::OtherDraid
        | spa::Refusal::NoRebuild
        | spa::Refusal::RebuildDisabled => ApiError::with(ErrorCode::BadTarget, why.to_string()),
        spa::Refusal::Resilvering => ErrorCode::Resilvering.into(),
        spa::Refusal::Rebuilding => ErrorCode::Rebuilding.into(),
        spa::Refusal::ExpandNotHealthy => ApiError::with(ErrorCode::BadDev, why.to_string()),
        spa::Refusal::NoUpkeep => ErrorCode::BadDev.into(),
        spa::Refusal::NoTrim => ErrorCode::TrimNotSup.into(),
        spa::Refusal::Initializing => ErrorCode::Initializing.into(),
        spa::Refusal::NoInitialize => ErrorCode::NoInitialize.into(),
        spa::Refusal::Trimming => ErrorCode::Trimming.into(),
        spa::Refusal::NoActiveTrim => ErrorCode::NoTrim.into(),
        spa::Refusal::NotHealthy => ApiError::with(ErrorCode::BadDev, why.to_string()),
        spa::Refusal::ActiveElsewhere { .. } | spa::Refusal::NoHostid => {
            ApiError::with(ErrorCode::ActivePool, why.to_string())
        }
        spa::Refusal::MissingLogs(_) => {
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
mod tests {
    use super::*;

    #[track_caller]
    fn says(told: &ApiError, code: ErrorCode, words: &str) {
        assert_eq!((told.code, told.description()), (code, words));
    }

    /// A new refusal does not compile until it is named here; then it belongs in the table below,
    /// with its code and words.
    fn is_in_the_table(why: &Refusal) -> bool {
        use Refusal::*;
        match why {
            NotBookmark(_) | NoBookmark(_) | BookmarkExists(_) | NotSnapshot(_) | NotAncestor => true,
            LaterBookmarks(_) | OtherRedaction | AlreadyRedacted | NotDescendant | NoAccounts(_)
            | FeatureDisabled(_) | OverLimit(..) => true,
            NotAllowed | NameTooLong(_) | NoParent | ParentNotFilesystem | BelowUsed(_)
            | BeyondAvailable(_) => true,
        }
    }

    /// The same of those on pools.
    fn is_in_the_pools_table(why: &spa::Refusal) -> bool {
        use spa::Refusal::*;
        match why {
            NoDevice(_) | NoReplicas | NotHealthy | MissingLogs(_) | CannotRemove | AlreadyRemoving => true,
            RemovalBusy | CannotEvacuate | RaidzBesideRemoved | NoRemoval | Removing | OnlyMirrors => true,
            Expanding | NoExpansion | ExpandNotHealthy | OtherDraid => true,
            NoRebuild | RebuildDisabled | Resilvering | Rebuilding => true,
            CheckpointExists | DiscardingCheckpoint | NoCheckpoint => true,
            NoUpkeep | NoTrim | Initializing | NoInitialize | Trimming | NoActiveTrim => true,
            ActiveElsewhere { .. } | NoHostid => true,
        }
    }

    #[test]
    fn refusals_on_datasets_have_these_codes_and_words() {
        use Refusal::*;
        let x = || "x".to_owned();
        for (why, code, words) in [
            (NotBookmark(x()), ErrorCode::BadType, "'x' is not the name of a bookmark"),
            (NoBookmark(x()), ErrorCode::NoEnt, "dataset does not exist"),
            (BookmarkExists(x()), ErrorCode::Exists, "dataset already exists"),
            (NotSnapshot(x()), ErrorCode::BadType, "x is not a snapshot"),
            (NotAncestor, ErrorCode::BadType, "source is not an ancestor of the new bookmark's dataset"),
            (LaterBookmarks(x()), ErrorCode::Exists, "dataset already exists"),
            (OtherRedaction, ErrorCode::NoEnt, "dataset does not exist"),
            (AlreadyRedacted, ErrorCode::Busy, "dataset is busy"),
            (
                NotDescendant,
                ErrorCode::BadType,
                "redaction snapshot must be descendent of snapshot being redacted",
            ),
            (NoAccounts("userused"), ErrorCode::BadVersion, "userused is not kept in this file system"),
            (FeatureDisabled("f"), ErrorCode::BadVersion, "feature f is not enabled in this pool"),
            (OverLimit(x(), "snapshot_limit"), ErrorCode::NoSpc, "out of space"),
            (NotAllowed, ErrorCode::Perm, "permission denied"),
            (NameTooLong(x()), ErrorCode::NameTooLong, "x: name is too long"),
            (NoParent, ErrorCode::NoParent, "parent does not exist"),
            (ParentNotFilesystem, ErrorCode::WrongParent, "parent is not a filesystem"),
            (BelowUsed(x()), ErrorCode::NoSpc, "out of space"),
            (BeyondAvailable(x()), ErrorCode::NoSpc, "out of space"),
        ] {
            assert!(is_in_the_table(&why));
            says(&of_dataset(why.into()), code, words);
        }
    }

    #[test]
    fn refusals_on_pools_have_these_codes_and_words() {
        use spa::Refusal::*;
        let missing = MissingLogs(vec!["\t    log [log]".to_owned()]);
        for (why, code, words) in [
            (NoDevice(7), ErrorCode::NoDevice, "no such device in pool"),
            (
                ActiveElsewhere { host: "h".to_owned(), id: 10 },
                ErrorCode::ActivePool,
                "pool is imported on host 'h' (hostid=a).\nExport the pool on the other system, then run 'zpool \
                 import'.",
            ),
            (
                NoHostid,
                ErrorCode::ActivePool,
                "pool has the multihost property on and the\nsystem's hostid is not set. Set a unique system hostid \
                 with the zgenhostid(8) command.\n",
            ),
            (NoReplicas, ErrorCode::NoReplicas, "no valid replicas"),
            (NotHealthy, ErrorCode::BadDev, "one or more devices is currently unavailable"),
            (CheckpointExists, ErrorCode::CheckpointExists, "checkpoint exists"),
            (DiscardingCheckpoint, ErrorCode::DiscardingCheckpoint, "currently discarding checkpoint"),
            (NoCheckpoint, ErrorCode::NoCheckpoint, "checkpoint does not exist"),
            (CannotRemove, ErrorCode::PoolNotSup, "operation not supported on this type of pool"),
            (AlreadyRemoving, ErrorCode::Busy, "removal for this vdev is already in progress."),
            (RemovalBusy, ErrorCode::Busy, "Pool busy; removal may already be in progress"),
            (
                CannotEvacuate,
                ErrorCode::InvalConfig,
                "invalid config; all top-level vdevs must have the same sector size and not be raidz.",
            ),
            (
                RaidzBesideRemoved,
                ErrorCode::InvalConfig,
                "invalid config; a pool with removing/removed vdevs does not support adding raidz or dRAID vdevs",
            ),
            (OnlyMirrors, ErrorCode::InvalConfig, "Source pool must be composed only of mirrors\n"),
            (NoRemoval, ErrorCode::NoPending, "operation is not in progress"),
            (Removing, ErrorCode::DevrmInProgress, "device removal in progress"),
            (Expanding, ErrorCode::RaidzExpandInProgress, "raidz expansion in progress"),
            (
                NoExpansion,
                ErrorCode::BadTarget,
                "raidz_expansion feature must be enabled in order to attach a device to raidz",
            ),
            (
                OtherDraid,
                ErrorCode::BadTarget,
                "dRAID spares can only replace child devices in their parent's dRAID vdev",
            ),
            (
                ExpandNotHealthy,
                ErrorCode::BadDev,
                "raidz vdev has devices that are are offline or being replaced",
            ),
            (
                NoRebuild,
                ErrorCode::BadTarget,
                "only mirror and dRAID vdevs support sequential reconstruction",
            ),
            (
                RebuildDisabled,
                ErrorCode::BadTarget,
                "device_rebuild feature must be enabled in order to use sequential reconstruction",
            ),
            (Resilvering, ErrorCode::Resilvering, "currently resilvering"),
            (Rebuilding, ErrorCode::Rebuilding, "currently sequentially resilvering"),
            (NoUpkeep, ErrorCode::BadDev, "invalid device"),
            (NoTrim, ErrorCode::TrimNotSup, "trim operations are not supported by this device"),
            (Initializing, ErrorCode::Initializing, "currently initializing"),
            (NoInitialize, ErrorCode::NoInitialize, "there is no active initialization"),
            (Trimming, ErrorCode::Trimming, "currently trimming"),
            (NoActiveTrim, ErrorCode::NoTrim, "there is no active trim"),
            (missing.clone(), ErrorCode::BadDev, "one or more devices is currently unavailable"),
        ] {
            assert!(is_in_the_pools_table(&why));
            says(&of_pool(why.clone().into()), code, words);
            says(&of_vdev(why.into()), code, words);
        }
        assert_eq!(
            of_pool(missing.into()).details,
            [
                "The devices below are missing or corrupted, use '-m' to import the pool anyway:",
                "\t    log [log]"
            ]
        );
    }
}
