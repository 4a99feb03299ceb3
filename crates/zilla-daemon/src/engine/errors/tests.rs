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
        LaterBookmarks(_)
        | OtherRedaction
        | AlreadyRedacted
        | NotDescendant
        | NoAccounts(_)
        | FeatureDisabled(_)
        | StreamNeedsFeature(_)
        | OverLimit(..) => true,
        NotAllowed | NameTooLong(_) | NoParent | ParentNotFilesystem | BelowUsed(_) | BeyondAvailable(_) => {
            true
        }
    }
}

/// The same of those on pools.
fn is_in_the_pools_table(why: &PoolRefusal) -> bool {
    use PoolRefusal::*;
    match why {
        NoDevice(_) | NoReplicas | NotHealthy | MissingLogs(_) | CannotRemove | AlreadyRemoving => true,
        RemovalBusy | CannotEvacuate | RaidzBesideRemoved | NoRemoval | Removing | OnlyMirrors => true,
        Expanding | NoExpansion | ExpandNotHealthy | OtherDraid => true,
        NoRebuild | RebuildDisabled | Resilvering | Rebuilding => true,
        Scrubbing | ScrubPaused | ScrubPausedToCancel | ErrorScrubbing | ErrorScrubPaused => true,
        CheckpointExists | DiscardingCheckpoint | NoCheckpoint => true,
        OtherSectors | UnknownSpace => true,
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
        (
            StreamNeedsFeature("f"),
            ErrorCode::BadVersion,
            "pool must be upgraded to receive this stream. (It lacks the feature 'f'.)",
        ),
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
    use PoolRefusal::*;
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
        (
            OtherSectors,
            ErrorCode::AshiftMismatch,
            "adding devices with different physical sector sizes is not allowed",
        ),
        (
            UnknownSpace,
            ErrorCode::Io,
            "a space map of the vdev cannot be read, so what is to be moved is not known",
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
        (NoRebuild, ErrorCode::BadTarget, "only mirror and dRAID vdevs support sequential reconstruction"),
        (
            RebuildDisabled,
            ErrorCode::BadTarget,
            "device_rebuild feature must be enabled in order to use sequential reconstruction",
        ),
        (Resilvering, ErrorCode::Resilvering, "currently resilvering"),
        (Rebuilding, ErrorCode::Rebuilding, "currently sequentially resilvering"),
        (Scrubbing, ErrorCode::Scrubbing, "currently scrubbing; use 'zpool scrub -s' to cancel scrub"),
        (ScrubPaused, ErrorCode::ScrubPaused, "scrub is paused; use 'zpool scrub' to resume scrub"),
        (
            ScrubPausedToCancel,
            ErrorCode::ScrubPausedToCancel,
            "scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to cancel scrub",
        ),
        (
            ErrorScrubbing,
            ErrorCode::ErrorScrubbing,
            "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub",
        ),
        (
            ErrorScrubPaused,
            ErrorCode::ErrorScrubPaused,
            "error scrub is paused; use 'zpool scrub -e' to resume error scrub",
        ),
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
