//! The table of operations: name on the wire, request, reply, and the backend's method.
//!
//! Everything that must agree - the trait the daemon implements, the dispatch of the server, the
//! path a client posts to, what other programs are told of it - is generated from this one list.
//!
//! What reads requests and writes answers ([`Asked`], `Answered`) knows no backend, so it is
//! compiled here, once, and to be small. Envelopes are opened before what is in them
//! ([`RawValue`]), so that the code for an envelope is not repeated for each operation.

use crate::error::{ApiError, ErrorCode};
use crate::presence::Presence;
use crate::types::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::future::Future;
use std::io;

/// Raised when a request or reply changes its meaning.
pub const PROTOCOL: u32 = 1;

/// Bytes of a reply to whoever does not own the daemon: a list of some ten thousand datasets. His
/// connections can hold as many replies that he does not read.
pub const GUEST_REPLY_LIMIT: usize = 8 << 20;

/// Operations that change nothing and may take long: nobody needs them when their client is gone.
pub const LOOKING: &[&str] = &[
    "pool_history",
    "pool_wait",
    "import_search",
    "event_query",
    "dataset_query",
    "dataset_accounts",
    "dataset_diff",
    "dataset_wait",
];

/// Who asks, as the kernel tells it, and with which command line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Further groups of the caller's.
    pub groups: Vec<u32>,
    /// The daemon's owner or root, who may do everything.
    pub owner: bool,
    pub pid: Option<i32>,
    /// The command line, for the pool's history.
    pub command: Option<String>,
    /// Whether he still waits.
    pub presence: Presence,
}

/// A text that is not an operation's answer: what it is, and what it says.
pub type Page = (&'static str, String);

impl Caller {
    /// The user of this process.
    pub fn of_process() -> Caller {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Caller { uid, gid, pid: i32::try_from(std::process::id()).ok(), ..Caller::default() }
    }

    /// All groups, the user's own first.
    pub fn gids(&self) -> Vec<u32> {
        let mut all = vec![self.gid];
        all.extend(self.groups.iter().filter(|gid| **gid != self.gid));
        all
    }
}

/// A request on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope<T> {
    pub protocol: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    pub request: T,
}

/// A reply on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    Ok(T),
    Err(ApiError),
}

/// A request and what it is answered with.
pub trait Operation: Serialize + DeserializeOwned + Send + 'static {
    /// Last part of the path: `/v1/<NAME>`.
    const NAME: &'static str;
    type Reply: Serialize + DeserializeOwned + Send + 'static;
}

macro_rules! operations {
    ($($(#[$m:meta])* $method:ident($request:ident) -> $reply:ty;)*) => {
        $(impl Operation for $request {
            const NAME: &'static str = stringify!($method);
            type Reply = $reply;
        })*

        /// What the daemon does for its clients. Methods run concurrently; the server runs each to
        /// its end even where the client is gone, so none may wait for ever. An operation that is
        /// left out is refused.
        pub trait Backend: Send + Sync + 'static {
            /// Whether a caller who does not own the daemon may have this done. Nobody may, unless
            /// the backend says so.
            fn judge(
                &self,
                caller: &Caller,
                asked: &Asked,
            ) -> impl Future<Output = Result<(), ApiError>> + Send {
                let _ = (caller, asked);
                std::future::ready(Err(ErrorCode::Perm.into()))
            }
            /// What has to be settled before anything that is asked for is done.
            fn prepare(&self) -> impl Future<Output = ()> + Send {
                std::future::ready(())
            }
            /// What `GET <path>` on the socket gives; None where there is no such thing. Who may
            /// have it is judged here.
            fn page(
                &self,
                caller: &Caller,
                path: &str,
            ) -> impl Future<Output = Option<Result<Page, ApiError>>> + Send {
                let _ = (caller, path);
                std::future::ready(None)
            }
            $($(#[$m])* fn $method(
                &self,
                caller: &Caller,
                request: $request,
            ) -> impl Future<Output = Result<$reply, ApiError>> + Send {
                let _ = (caller, request);
                std::future::ready(Err(ApiError::with(
                    ErrorCode::Unsupported,
                    concat!("'", stringify!($method), "' is not supported by this daemon"),
                )))
            })*
        }

        /// What somebody asks for.
        pub enum Asked {
            $($request($request)),*
        }

        impl Asked {
            /// The operation `name` with the JSON envelope `body`, and the command line in it.
            fn read(name: &str, body: &[u8]) -> Result<(Option<String>, Asked), ApiError> {
                Ok(match name {
                    $(stringify!($method) => {
                        let (command, request) = open(body)?;
                        (command, Asked::$request(request))
                    })*
                    _ => return Err(ApiError::with(
                        ErrorCode::BadRequest,
                        format!("no such operation '{}'", name.chars().take(64).collect::<String>()),
                    )),
                })
            }
        }

        /// What an operation is answered with.
        enum Answered {
            $($request($reply)),*
        }

        impl Answered {
            fn seal(&self, limit: usize) -> Result<Vec<u8>, ApiError> {
                match self {
                    $(Answered::$request(reply) => seal(reply, limit)),*
                }
            }
        }

        /// Every operation's name.
        pub const OPERATIONS: &[&str] = &[$(stringify!($method)),*];

        /// What is said of every operation.
        #[cfg(test)]
        pub(crate) fn describe(paths: &mut crate::openapi::made::Paths) {
            $(paths.add::<$request>();)*
        }

        async fn perform<B: Backend>(
            backend: &B,
            caller: Caller,
            name: &str,
            body: &[u8],
        ) -> Result<Answered, ApiError> {
            let (command, asked) = Asked::read(name, body)?;
            let caller = Caller { command, ..caller };
            backend.prepare().await;
            if !caller.owner {
                backend.judge(&caller, &asked).await?;
            }
            Ok(match asked {
                $(Asked::$request(r) => Answered::$request(backend.$method(&caller, r).await?)),*
            })
        }
    };
}

/// Runs the operation `name` with the JSON envelope `body` and gives the JSON outcome.
pub async fn dispatch<B: Backend>(backend: &B, caller: Caller, name: &str, body: &[u8]) -> Vec<u8> {
    let limit = if caller.owner { usize::MAX } else { GUEST_REPLY_LIMIT };
    let answer = perform(backend, caller, name, body).await;
    answer.and_then(|answered| answered.seal(limit)).unwrap_or_else(refusal)
}

/// The table of operations, handed to the macro that is named: on each line a method, its request
/// and its reply.
#[macro_export]
macro_rules! each_operation {
    ($with:ident) => {
        $with! {
            hello(Hello) -> HelloReply;
            shutdown(Shutdown) -> ();
            pool_create(PoolCreate) -> MountedReply;
            pool_destroy(PoolDestroy) -> ();
            pool_export(PoolExport) -> ();
            pool_query(PoolQuery) -> Vec<PoolInfo>;
            pool_set(PoolSet) -> ();
            pool_scrub(PoolScrub) -> ();
            pool_sync(PoolSync) -> ();
            pool_history(PoolHistory) -> PoolHistoryReply;
            pool_log(PoolLog) -> ();
            import_search(ImportSearch) -> Vec<ImportCandidate>;
            pool_import(PoolImport) -> ImportReply;
            pool_add(PoolAdd) -> ();
            vdevs_check(VdevsCheck) -> ();
            pool_clear(PoolClear) -> ();
            pool_reopen(PoolReopen) -> ();
            pool_resilver(PoolResilver) -> ();
            pool_freeze(PoolFreeze) -> ();
            pool_checkpoint(PoolCheckpoint) -> ();
            pool_reguid(PoolReguid) -> ();
            dedup_prune(DedupPrune) -> ();
            dedup_prefetch(DedupPrefetch) -> ();
            pool_upgrade(PoolUpgrade) -> ();
            label_clear(LabelClear) -> ();
            vdev_attach(VdevAttach) -> ();
            pool_split(PoolSplit) -> SplitReply;
            vdev_detach(VdevDetach) -> ();
            vdev_remove(VdevRemove) -> VdevRemoveReply;
            vdev_offline(VdevOffline) -> ();
            vdev_online(VdevOnline) -> VdevOnlineReply;
            vdev_upkeep(VdevUpkeep) -> VdevUpkeepReply;
            pool_wait(PoolWait) -> PoolWaitReply;
            inject_add(InjectAdd) -> InjectHandler;
            inject_list(InjectList) -> Vec<InjectHandler>;
            inject_clear(InjectClear) -> Vec<u64>;
            inject_state(InjectState) -> ();
            inject_flush(InjectFlush) -> ();
            event_query(EventQuery) -> EventReply;
            event_clear(EventClear) -> u64;
            log_stats(LogStatQuery) -> Vec<LogStat>;
            arc_stats(ArcStatQuery) -> Vec<ArcStat>;
            trace_record(TraceRecord) -> TraceReply;
            dataset_create(DatasetCreate) -> MountedReply;
            dataset_destroy(DatasetDestroy) -> DestroyReply;
            dataset_query(DatasetQuery) -> DatasetQueryReply;
            dataset_by_path(DatasetByPath) -> String;
            file_clone(FileClone) -> u64;
            dataset_set(DatasetSet) -> MountedReply;
            dataset_inherit(DatasetInherit) -> MountedReply;
            dataset_mount(DatasetMount) -> ManyReply;
            dataset_unmount(DatasetUnmount) -> ManyReply;
            dataset_share(DatasetShare) -> ManyReply;
            dataset_unshare(DatasetUnshare) -> ManyReply;
            mount_list(MountList) -> Vec<MountEntry>;
            dataset_snapshot(DatasetSnapshot) -> ();
            dataset_clone(DatasetClone) -> MountedReply;
            dataset_rollback(DatasetRollback) -> ();
            volume_plan(VolumePlan) -> VolumePlanReply;
            /// The directory in which volumes are files.
            volume_files(VolumeFiles) -> String;
            dataset_rename(DatasetRename) -> MountedReply;
            dataset_promote(DatasetPromote) -> ();
            dataset_bookmark(DatasetBookmark) -> ();
            dataset_redact(DatasetRedact) -> ();
            dataset_accounts(DatasetAccounts) -> Vec<Account>;
            dataset_diff(DatasetDiff) -> DatasetDiffReply;
            dataset_wait(DatasetWait) -> bool;
            snapshot_hold(SnapshotHold) -> ();
            snapshot_release(SnapshotRelease) -> ();
            snapshot_holds(SnapshotHolds) -> Vec<HoldInfo>;
            grant_query(GrantQuery) -> Vec<GrantList>;
            grant_change(GrantChange) -> ();
            program_run(ProgramRun) -> ProgramReply;
            stream_send(StreamSend) -> ();
            stream_receive(StreamReceive) -> ();
            receive_abort(ReceiveAbort) -> ();
            key_load(KeyLoad) -> ();
            key_unload(KeyUnload) -> ();
            key_change(KeyChange) -> ();
        }
    };
}

each_operation!(operations);

/// Only the version is read first: a request of another version may have another shape.
#[derive(Deserialize)]
struct VersionOnly {
    protocol: u32,
}

fn malformed(e: serde_json::Error) -> ApiError {
    ApiError::with(ErrorCode::BadRequest, format!("malformed request: {e}"))
}

fn open_envelope(body: &[u8]) -> Result<Envelope<&RawValue>, ApiError> {
    let version: VersionOnly = serde_json::from_slice(body).map_err(malformed)?;
    if version.protocol != PROTOCOL {
        return Err(ApiError::with(
            ErrorCode::ProtocolMismatch,
            format!("the daemon speaks protocol {PROTOCOL}, the command {}", version.protocol),
        ));
    }
    serde_json::from_slice(body).map_err(malformed)
}

fn open<T: DeserializeOwned>(body: &[u8]) -> Result<(Option<String>, T), ApiError> {
    let envelope = open_envelope(body)?;
    let request = serde_json::from_str(envelope.request.get()).map_err(malformed)?;
    Ok((envelope.command, request))
}

/// An answer, while it becomes bytes.
struct Sealed {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
}

impl io::Write for Sealed {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        self.full = more.len() > self.limit - self.bytes.len();
        if self.full {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a guest is told instead of a longer answer.
pub fn reply_too_long() -> ApiError {
    let most = GUEST_REPLY_LIMIT >> 20;
    let text = format!(
        "the answer would be longer than the {most} MiB that others than the owner get: ask for less at a time, \
         by names of datasets, a depth, a type or fewer properties"
    );
    ApiError::with(ErrorCode::BadRequest, text)
}

fn seal<T: Serialize>(reply: &T, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut sealed = Sealed { bytes: Vec::new(), limit, full: false };
    match serde_json::to_writer(&mut sealed, &Outcome::Ok(reply)) {
        Ok(()) => Ok(sealed.bytes),
        Err(_) if sealed.full => Err(reply_too_long()),
        Err(e) => Err(ApiError::with(ErrorCode::Internal, format!("reply cannot be written: {e}"))),
    }
}

/// The JSON outcome of what was refused.
pub(crate) fn refusal(error: ApiError) -> Vec<u8> {
    serde_json::to_vec(&Outcome::<()>::Err(error)).unwrap_or_default()
}
