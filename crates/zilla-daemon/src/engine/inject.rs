//! `zinject`: what is asked of [`zilla::inject`], in the engine's terms, and told again.
//!
//! Only the daemon's owner and root get here. Each handler that comes or goes is told in the log,
//! so that nobody looks for a broken disk.

use super::errors::{Answer, of_dataset, of_pool, of_vdev};
use super::pool::Pool;
use super::{Engine, Serves};
use std::time::Duration;
use zilla::error::{Errno, Error};
use zilla::inject::{
    Copies, DataPlace, Failure, Fault, Frequency, Handler, IoType, Place, Region, injections,
};
use zilla::tree::BlockRange;
use zilla_control::types::{
    InjectAdd, InjectBlocks, InjectClear, InjectFailure, InjectFault, InjectFlush, InjectHandler, InjectIo,
    InjectLabel, InjectList, InjectMos, InjectState,
};
use zilla_control::{ApiError, Caller, ErrorCode};
use zilla_ondisk::enums::VdevState;
use zilla_ondisk::object_type::{
    DMU_OT_BPOBJ, DMU_OT_ERROR_LOG, DMU_OT_OBJECT_ARRAY, DMU_OT_OBJECT_DIRECTORY, DMU_OT_PACKED_NVLIST,
    DMU_OT_SPACE_MAP,
};

/// So long it is waited for what was written to be on disk.
const SETTLE: Duration = Duration::from_secs(5);

impl Serves<InjectAdd> for Engine {
    async fn serve(&self, caller: &Caller, r: InjectAdd) -> Answer<InjectHandler> {
        let refused = |e: Error| match e {
            e if e.is(Errno::Exist) => ApiError::with(ErrorCode::Exists, e.to_string()),
            e if e.is(Errno::NoSpc) => ApiError::with(ErrorCode::TooMany, e.to_string()),
            e => ApiError::with(ErrorCode::BadRequest, e.to_string()),
        };
        let (guid, fault) = match r.fault {
            InjectFault::Pause { import, seconds } => {
                let open = self.pool(&r.pool).is_ok();
                if import && open {
                    return Err(ApiError::with(ErrorCode::Exists, "pool already imported"));
                }
                if !import && !open {
                    return Err(super::errors::no_pool());
                }
                (0, Fault::Pause { import, lasts: Duration::from_secs(seconds) })
            }
            asked => {
                let pool = self.pool(&r.pool)?;
                if matches!(asked, InjectFault::Device { io: InjectIo::Read, .. })
                    && pool.zilla.suspended().is_none()
                {
                    // What was just written would be read from memory, where nothing fails.
                    drop(self.env.timeout(SETTLE, pool.zilla.sync()).await);
                }
                (pool.zilla.vdevs().root_guid(), fault(&pool, asked).await?)
            }
        };
        if r.flush {
            // What the above has brought to disk, too.
            self.forget_blocks().await;
        }
        let frequency = r.frequency.map_or(Frequency::Always, Frequency::Of);
        let id = injections().add(&r.pool, guid, fault.clone(), frequency).map_err(refused)?;
        tracing::warn!(pool = %r.pool, id, ?fault, uid = caller.uid, "errors are injected from now on");
        Ok(told(Handler { id, pool: r.pool, pool_guid: guid, fault, frequency }))
    }
}

impl Serves<InjectState> for Engine {
    async fn serve(&self, _: &Caller, r: InjectState) -> Answer<()> {
        let pool = self.pool(&r.pool)?;
        let verdict = if r.fault { VdevState::Faulted } else { VdevState::Degraded };
        tracing::warn!(pool = %r.pool, guid = r.guid, ?verdict, "a device is declared to have failed");
        pool.zilla.declare(r.guid, verdict).map_err(of_vdev)
    }
}

impl Engine {
    /// What is in memory of blocks is forgotten, and the kernel's pages of files with it.
    async fn forget_blocks(&self) {
        let pools = self.all_pools();
        let mut known = Vec::new();
        for pool in &pools {
            for mounted in pool.mounts().values() {
                known.push((mounted.mount.notifier(), mounted.fs.zfs().files_in_use()));
            }
        }
        // (Not by a thread that serves a mount: it would wait for itself.)
        let told = tokio::task::spawn_blocking(move || {
            for (notifier, files) in known {
                for node in files {
                    if let Err(e) = notifier.inode(node) {
                        tracing::warn!("telling the kernel to forget a file's pages: {e}");
                    }
                }
            }
        });
        if let Err(e) = told.await {
            tracing::error!("telling the kernel to forget files' pages: {e}");
        }
        pools.iter().for_each(|pool| pool.zilla.drop_caches());
    }

    /// Waits if a handler wants the import or export that began then to take longer.
    pub(super) async fn injected_pause(&self, pool: &str, import: bool, begun: Duration) {
        if let Some(lasts) = injections().take_pause(pool, import) {
            let taken = self.env.clock.now().saturating_sub(begun);
            let left = lasts.saturating_sub(taken);
            tracing::warn!(pool, ?left, import, "an import or export is delayed on purpose");
            self.env.sleep(left).await;
        }
    }
}

impl Serves<InjectList> for Engine {
    async fn serve(&self, _: &Caller, _: InjectList) -> Answer<Vec<InjectHandler>> {
        Ok(injections().list().into_iter().map(told).collect())
    }
}

impl Serves<InjectClear> for Engine {
    async fn serve(&self, _: &Caller, r: InjectClear) -> Answer<Vec<u64>> {
        let gone = injections().clear(r.id);
        gone.iter().for_each(|id| tracing::warn!(id, "errors are injected no more"));
        Ok(gone)
    }
}

impl Serves<InjectFlush> for Engine {
    async fn serve(&self, _: &Caller, _: InjectFlush) -> Answer<()> {
        self.forget_blocks().await;
        Ok(())
    }
}

async fn fault(pool: &Pool, asked: InjectFault) -> Answer<Fault> {
    let data =
        |at, copies, failure| Fault::Data { at, failure: engine_failure(failure), copies: Copies(copies) };
    Ok(match asked {
        InjectFault::Device { guid, label, failure, io, fail_fast } => Fault::Device {
            vdev: leaf(&pool.zilla, guid)?,
            place: label.map_or(Place::Data, |l| Place::Label(region(l))),
            failure: engine_failure(failure),
            on: io_type(io),
            fail_fast,
        },
        InjectFault::Delay { guid, nanoseconds, lanes, io } => Fault::Delay {
            vdev: leaf(&pool.zilla, guid)?,
            latency: Duration::from_nanos(nanoseconds),
            lanes: u16::try_from(lanes).unwrap_or(u16::MAX),
            on: io_type(io),
        },
        InjectFault::Blocks { at, copies, failure } => data(place(&at), copies, failure),
        InjectFault::Mos { kind, failure } => {
            data(DataPlace::Mos { object_type: mos_type(kind) }, 0, failure)
        }
        InjectFault::File { dataset, object, dnode, level, range, copies, failure } => {
            let at = file_blocks(pool, &dataset, (object, dnode), level, range).await?;
            data(place(&at), copies, failure)
        }
        InjectFault::Pause { .. } => return Err(ErrorCode::BadRequest.into()),
    })
}

fn place(at: &InjectBlocks) -> DataPlace {
    let InjectBlocks { objset, object, level, first, last } = *at;
    DataPlace::Blocks { objset, object, level: i64::from(level), first, last }
}

/// Only leaves do I/O; a mirror's or RAID-Z's sides are named one by one.
fn leaf(pool: &zilla::Pool, guid: u64) -> Answer<u64> {
    match pool.vdevs().find(guid) {
        Some(vdev) if vdev.is_leaf => Ok(guid),
        Some(_) => {
            Err(ApiError::with(ErrorCode::BadDev, "the vdev does no I/O of its own: name one of its devices"))
        }
        None => Err(ErrorCode::NoDevice.into()),
    }
}

/// Which blocks of a level hold a range of bytes of a file, or its dnode.
async fn file_blocks(
    pool: &Pool,
    dataset: &str,
    (object, dnode): (u64, bool),
    level: u32,
    range: Option<(u64, u64)>,
) -> Answer<InjectBlocks> {
    // Blocks are those on disk: what was just written is to be there.
    if pool.zilla.suspended().is_none() {
        pool.zilla.sync().await.map_err(of_pool)?;
    }
    let ds = pool.zilla.by_name(dataset).await.map_err(of_dataset)?;
    let found = ds.blocks_of(object, dnode, level, range).await.map_err(|e| match e.is(Errno::Dom) {
        true => ApiError::with(ErrorCode::BadRequest, "block level exceeds max level of object"),
        false => of_dataset(e),
    })?;
    let BlockRange { object, first, last } = found;
    Ok(InjectBlocks { objset: ds.id(), object, level, first, last })
}

/// A handler as the command knows it.
fn told(h: Handler) -> InjectHandler {
    let fault = match h.fault {
        Fault::Device { vdev, place, failure, on, fail_fast } => InjectFault::Device {
            guid: vdev,
            label: match place {
                Place::Data => None,
                Place::Label(Region::Nvlist) => Some(InjectLabel::Nvlist),
                Place::Label(Region::Uber) => Some(InjectLabel::Uber),
                Place::Label(Region::Pad1) => Some(InjectLabel::Pad1),
                Place::Label(Region::Pad2) => Some(InjectLabel::Pad2),
            },
            failure: told_failure(failure),
            io: told_io(on),
            fail_fast,
        },
        Fault::Delay { vdev, latency, lanes, on } => InjectFault::Delay {
            guid: vdev,
            nanoseconds: u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX),
            lanes: u64::from(lanes),
            io: told_io(on),
        },
        Fault::Data { at: DataPlace::Mos { object_type }, failure, .. } => {
            let kinds = [
                InjectMos::Mosdir,
                InjectMos::Metaslab,
                InjectMos::Config,
                InjectMos::Bpobj,
                InjectMos::Spacemap,
                InjectMos::Errlog,
            ];
            let kind = object_type.and_then(|t| kinds.into_iter().find(|k| mos_type(*k) == Some(t)));
            InjectFault::Mos { kind: kind.unwrap_or(InjectMos::Mos), failure: told_failure(failure) }
        }
        Fault::Data { at: DataPlace::Blocks { objset, object, level, first, last }, failure, copies } => {
            let level = u32::try_from(level).unwrap_or_default();
            let at = InjectBlocks { objset, object, level, first, last };
            InjectFault::Blocks { at, copies: copies.0, failure: told_failure(failure) }
        }
        Fault::Pause { import, lasts } => InjectFault::Pause { import, seconds: lasts.as_secs() },
    };
    let frequency = match h.frequency {
        Frequency::Always => None,
        Frequency::Of(n) => Some(n),
    };
    InjectHandler { id: h.id, pool: h.pool, fault, frequency }
}

fn mos_type(kind: InjectMos) -> Option<u8> {
    Some(match kind {
        InjectMos::Mos => return None,
        InjectMos::Mosdir => DMU_OT_OBJECT_DIRECTORY,
        InjectMos::Metaslab => DMU_OT_OBJECT_ARRAY,
        InjectMos::Config => DMU_OT_PACKED_NVLIST,
        InjectMos::Bpobj => DMU_OT_BPOBJ,
        InjectMos::Spacemap => DMU_OT_SPACE_MAP,
        InjectMos::Errlog => DMU_OT_ERROR_LOG,
    })
}

fn region(label: InjectLabel) -> Region {
    match label {
        InjectLabel::Nvlist => Region::Nvlist,
        InjectLabel::Uber => Region::Uber,
        InjectLabel::Pad1 => Region::Pad1,
        InjectLabel::Pad2 => Region::Pad2,
    }
}

/// Names on both sides, pair by pair.
macro_rules! twins {
    ($there:ident($theirs:ident) <-> $here:ident($ours:ident): $($a:ident = $b:ident),*) => {
        fn $here(x: $theirs) -> $ours {
            match x { $($theirs::$a => $ours::$b),* }
        }
        fn $there(x: $ours) -> $theirs {
            match x { $($ours::$b => $theirs::$a),* }
        }
    };
}

twins!(told_failure(InjectFailure) <-> engine_failure(Failure):
    Io = Io, Nxio = Gone, Checksum = Checksum, Decompress = Decompress, Decrypt = Decrypt, Corrupt = Corrupt,
    Dtl = Required, Noop = Noop);
twins!(told_io(InjectIo) <-> io_type(IoType):
    Read = Read, Write = Write, Free = Free, Claim = Claim, Flush = Flush, Trim = Trim, All = All, Probe = Probe);
