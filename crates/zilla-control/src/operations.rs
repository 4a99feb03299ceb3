//! The table of operations: name on the wire, request, reply, and the backend's method.
//!
//! Everything that must agree - the trait the daemon implements, the dispatch of the server, the
//! path a client posts to, what other programs are told of it - is generated from this one list.

use crate::error::{ApiError, ErrorCode};
use crate::openapi::Paths;
use crate::types::*;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Raised when a request or reply changes its meaning.
pub const PROTOCOL: u32 = 1;

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
    pub gone: Gone,
}

/// Whether the caller waits for the answer no more. What he began is finished all the same, but for
/// what may be left half done.
#[derive(Debug, Clone, Default)]
pub struct Gone(Arc<AtomicBool>);

impl Gone {
    pub fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// He has gone when what is returned is dropped.
    #[must_use]
    pub fn when_dropped(&self) -> impl Drop + use<> {
        struct Leaves(Gone);
        impl Drop for Leaves {
            fn drop(&mut self) {
                self.0.0.store(true, Ordering::Relaxed);
            }
        }
        Leaves(self.clone())
    }
}

/// It says nothing of who the caller is.
impl PartialEq for Gone {
    fn eq(&self, _: &Gone) -> bool {
        true
    }
}

impl Eq for Gone {}

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
pub trait Operation: Serialize + DeserializeOwned + JsonSchema + Send + 'static {
    /// Last part of the path: `/v1/<NAME>`.
    const NAME: &'static str;
    type Reply: Serialize + DeserializeOwned + JsonSchema + Send + 'static;
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
                asked: Asked<'_>,
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
        pub enum Asked<'a> {
            $($request(&'a $request)),*
        }

        /// Every operation's name.
        pub const OPERATIONS: &[&str] = &[$(stringify!($method)),*];

        /// The document of OpenAPI: see [`crate::openapi`].
        pub fn openapi() -> serde_json::Value {
            let mut paths = Paths::new();
            $(paths.add::<$request>();)*
            paths.document()
        }

        /// Runs the operation `name` with the JSON envelope `body` and gives the JSON outcome.
        pub async fn dispatch<B: Backend>(
            backend: &B,
            caller: Caller,
            name: &str,
            body: &[u8],
        ) -> Vec<u8> {
            match name {
                $(stringify!($method) => {
                    let outcome = match open::<$request>(body) {
                        Ok(envelope) => {
                            let caller = Caller { command: envelope.command, ..caller };
                            backend.prepare().await;
                            let may = match caller.owner {
                                true => Ok(()),
                                false => backend.judge(&caller, Asked::$request(&envelope.request)).await,
                            };
                            match may {
                                Err(e) => Outcome::Err(e),
                                Ok(()) => match backend.$method(&caller, envelope.request).await {
                                    Ok(reply) => Outcome::Ok(reply),
                                    Err(e) => Outcome::Err(e),
                                },
                            }
                        }
                        Err(e) => Outcome::Err(e),
                    };
                    seal(&outcome)
                })*
                _ => seal(&Outcome::<()>::Err(ApiError::with(
                    ErrorCode::BadRequest,
                    format!("no such operation '{}'", name.chars().take(64).collect::<String>()),
                ))),
            }
        }
    };
}

operations! {
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

/// Only the version is read first: a request of another version may have another shape.
#[derive(Deserialize)]
struct VersionOnly {
    protocol: u32,
}

fn open<T: DeserializeOwned>(body: &[u8]) -> Result<Envelope<T>, ApiError> {
    let bad = |e: serde_json::Error| ApiError::with(ErrorCode::BadRequest, format!("malformed request: {e}"));
    let version: VersionOnly = serde_json::from_slice(body).map_err(bad)?;
    if version.protocol != PROTOCOL {
        return Err(ApiError::with(
            ErrorCode::ProtocolMismatch,
            format!("the daemon speaks protocol {PROTOCOL}, the command {}", version.protocol),
        ));
    }
    serde_json::from_slice(body).map_err(bad)
}

fn seal<T: Serialize>(outcome: &Outcome<T>) -> Vec<u8> {
    serde_json::to_vec(outcome).unwrap_or_else(|e| {
        let error = ApiError::with(ErrorCode::Internal, format!("reply cannot be written: {e}"));
        serde_json::to_vec(&Outcome::<()>::Err(error)).unwrap_or_default()
    })
}
