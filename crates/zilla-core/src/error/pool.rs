//! Why an operation on a pool or its devices is refused.
//!
//! One variant a reason that somebody further up answers in a way of its own; the commands'
//! sentences and codes are made of the variants at the edge. Reasons that are only ever printed
//! stay errors with words.

use super::Errno;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no such device in the pool: {0}")]
    NoDevice(u64),
    #[error("no valid replicas")]
    NoReplicas,
    #[error("one or more devices is currently unavailable")]
    NotHealthy,
    #[error("checkpoint exists")]
    CheckpointExists,
    #[error("currently discarding checkpoint")]
    DiscardingCheckpoint,
    #[error("checkpoint does not exist")]
    NoCheckpoint,
    /// A vdev that is no device of the pool any more, or a pool whose version lacks removal.
    #[error("operation not supported on this type of pool")]
    CannotRemove,
    #[error("removal for this vdev is already in progress.")]
    AlreadyRemoving,
    #[error("Pool busy; removal may already be in progress")]
    RemovalBusy,
    #[error("invalid config; all top-level vdevs must have the same sector size and not be raidz.")]
    CannotEvacuate,
    /// What is in use of a vdev is to be moved.
    #[error("a space map of the vdev cannot be read, so what is to be moved is not known")]
    UnknownSpace,
    #[error(
        "invalid config; a pool with removing/removed vdevs does not support adding raidz or dRAID vdevs"
    )]
    RaidzBesideRemoved,
    #[error("adding devices with different physical sector sizes is not allowed")]
    OtherSectors,
    #[error("operation is not in progress")]
    NoRemoval,
    /// Not a single device, or one that cannot be written to.
    #[error("invalid device")]
    NoUpkeep,
    #[error("trim operations are not supported by this device")]
    NoTrim,
    #[error("currently initializing")]
    Initializing,
    #[error("there is no active initialization")]
    NoInitialize,
    #[error("currently trimming")]
    Trimming,
    #[error("there is no active trim")]
    NoActiveTrim,
    #[error("raidz_expansion feature must be enabled in order to attach a device to raidz")]
    NoExpansion,
    #[error("raidz expansion in progress")]
    Expanding,
    #[error("raidz vdev has devices that are are offline or being replaced")]
    ExpandNotHealthy,
    /// What knows no blocks can give devices what they lack only where the place alone says what
    /// belongs there.
    #[error("only mirror and dRAID vdevs support sequential reconstruction")]
    NoRebuild,
    #[error("device_rebuild feature must be enabled in order to use sequential reconstruction")]
    RebuildDisabled,
    #[error("currently resilvering")]
    Resilvering,
    #[error("currently scrubbing")]
    Scrubbing,
    /// It is to be paused, and is already.
    #[error("scrub is paused")]
    ScrubPaused,
    /// One of known errors is to begin.
    #[error("a scrub is paused")]
    ScrubPausedToCancel,
    #[error("currently scrubbing known errors")]
    ErrorScrubbing,
    #[error("the scrub of known errors is paused")]
    ErrorScrubPaused,
    #[error("currently sequentially resilvering")]
    Rebuilding,
    /// Something else is refused while a vdev is being removed.
    #[error("device removal in progress")]
    Removing,
    /// A distributed spare is to stand in for another dRAID's disk, or one of no dRAID.
    #[error("dRAID spares can only replace child devices in their parent's dRAID vdev")]
    OtherDraid,
    /// Only sides of mirrors can be split off.
    #[error("Source pool must be composed only of mirrors\n")]
    OnlyMirrors,
    /// The log devices that an import lacks, a line each, the devices of a mirror below it.
    #[error("The devices below are missing or corrupted, use '-m' to import the pool anyway:\n{}", .0.join("\n"))]
    MissingLogs(Vec<String>),
    /// It is in use on another host, as far as its labels say which.
    #[error(
        "pool is imported on host '{}' (hostid={id:x}).\nExport the pool on the other system, then run 'zpool import'.",
        if host.is_empty() { "<unknown>" } else { host.as_str() }
    )]
    ActiveElsewhere { host: String, id: u64 },
    /// Hosts that may have the pool must be told apart.
    #[error(
        "pool has the multihost property on and the\nsystem's hostid is not set. Set a unique system hostid with the \
         zgenhostid(8) command.\n"
    )]
    NoHostid,
}

impl Refusal {
    pub fn errno(&self) -> Errno {
        match self {
            Refusal::NoDevice(_) => Errno::NoDev,
            Refusal::NoReplicas | Refusal::CheckpointExists | Refusal::DiscardingCheckpoint => Errno::Busy,
            Refusal::NoCheckpoint => Errno::NoEnt,
            Refusal::CannotRemove | Refusal::NoTrim | Refusal::NoExpansion | Refusal::OtherDraid => {
                Errno::NotSup
            }
            Refusal::NoRebuild | Refusal::RebuildDisabled => Errno::NotSup,
            Refusal::Resilvering | Refusal::Rebuilding => Errno::Busy,
            Refusal::Scrubbing | Refusal::ScrubPaused | Refusal::ScrubPausedToCancel => Errno::Busy,
            Refusal::ErrorScrubbing | Refusal::ErrorScrubPaused => Errno::Busy,
            Refusal::Initializing | Refusal::Trimming => Errno::Busy,
            Refusal::NoInitialize | Refusal::NoActiveTrim => Errno::NoEnt,
            Refusal::NoUpkeep | Refusal::OnlyMirrors => Errno::Inval,
            Refusal::CannotEvacuate | Refusal::RaidzBesideRemoved | Refusal::OtherSectors => Errno::Inval,
            Refusal::NoRemoval => Errno::Canceled,
            Refusal::UnknownSpace => Errno::Io,
            Refusal::Expanding | Refusal::AlreadyRemoving | Refusal::RemovalBusy | Refusal::Removing => {
                Errno::Busy
            }
            Refusal::ActiveElsewhere { .. } | Refusal::NoHostid => Errno::Busy,
            Refusal::MissingLogs(_) | Refusal::NotHealthy | Refusal::ExpandNotHealthy => Errno::NxIo,
        }
    }
}
