//! A block volume for servers and embedders.
//!
//! All requests may come at the same time and from several threads; those that overlap while they
//! are under way have no order among them, as on a disk. What a request that has returned did is
//! seen by all that begin later, and is on stable storage when a [`Volume::flush`] that began later
//! has returned, or at once if it was to be (`fua`).
//!
//! A rollback puts other contents in the place of a volume's: [`Volume::suspend`] waits for the
//! requests that are under way and keeps new ones waiting; [`Suspended::resume`] opens what is
//! there then. A volume that is closed answers ENXIO.

use crate::dataset::{DatasetSpace, held};
use crate::tree::DatasetRef;
use bytes::Bytes;
use event_listener::Event;
use parking_lot::Mutex;
use std::sync::Arc;
use zilla_core::dmu::Stop;
use zilla_core::dsl::{DslDataset, DslPool};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::zpl::{ReadData, SyncMode};
use zilla_core::zvol::{VolumeProps, Zvol};
use zilla_env::{Env, IoBuf};
use zilla_ondisk::enums::ObjsetType;

/// OpenZFS's numbers of `sync` and `logbias`.
const ZFS_SYNC_ALWAYS: u64 = 1;
const ZFS_SYNC_DISABLED: u64 = 2;
const ZFS_LOGBIAS_THROUGHPUT: u64 = 1;
/// Zeroes that are to be written, not left out, are written in pieces of so many bytes at most.
const ZEROES_MAX: u64 = 4 << 20;
/// So much is brought into memory by one call that only asks for that, in such pieces.
const CACHE_MAX: u64 = 32 << 20;
const CACHE_STEP: u64 = 1 << 20;

/// An open volume, or a snapshot of one.
///
/// ```no_run
/// # async fn example(pool: &zilla::Pool) -> zilla::Result<()> {
/// let volume = pool.dataset("tank/disk").await?.volume().await?;
/// volume.write(4096, &[bytes::Bytes::from_static(b"hello")], true).await?;
/// assert_eq!(volume.read(4096, 5).await?.concat(), b"hello");
/// volume.trim(0, volume.size()?).await?;
/// volume.flush().await?;
/// # Ok(())
/// # }
/// ```
pub struct Volume {
    env: Env,
    dsl: Arc<DslPool>,
    dataset: Arc<DslDataset>,
    readonly: bool,
    state: Mutex<State>,
    /// A request ended, or the volume was suspended, resumed or closed.
    changed: Event,
    /// Held by whoever reads properties until they are heeded: of two the slower would leave what
    /// it read before the other.
    heeding: futures_util::lock::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// None when it is closed.
    zvol: Option<Arc<Zvol>>,
    /// Requests under way.
    users: usize,
    suspended: bool,
}

/// A request under way.
struct Use<'v> {
    volume: &'v Volume,
    zvol: Arc<Zvol>,
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        let mut st = self.volume.state.lock();
        st.users -= 1;
        let last = st.users == 0 && st.suspended;
        drop(st);
        if last {
            self.volume.changed.notify(usize::MAX);
        }
    }
}

/// A run of a volume's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many bytes.
    pub len: u64,
    /// Nothing is stored for them; they read as zeroes.
    pub hole: bool,
}

fn closed() -> Error {
    Error::os(Errno::NxIo, "the volume is closed")
}

/// Reads a volume's properties as requests feel them.
async fn volume_props(dsl: &DslPool, ds: &DslDataset, readonly: bool) -> Result<VolumeProps> {
    let sync = match dsl.prop_u64(ds, "sync", 0).await? {
        ZFS_SYNC_ALWAYS => SyncMode::Always,
        ZFS_SYNC_DISABLED => SyncMode::Disabled,
        _ => SyncMode::Standard,
    };
    Ok(VolumeProps {
        readonly: readonly || ds.is_snapshot() || dsl.prop_u64(ds, "readonly", 0).await? != 0,
        sync,
        throughput: dsl.prop_u64(ds, "logbias", 0).await? == ZFS_LOGBIAS_THROUGHPUT,
    })
}

async fn open_zvol(env: &Env, dsl: &Arc<DslPool>, ds: &Arc<DslDataset>, readonly: bool) -> Result<Arc<Zvol>> {
    let hold = held(ds)?;
    if ds.is_held_alone() {
        return Err(Error::os(Errno::Busy, format!("{}: dataset is busy", ds.name())));
    }
    if ds.is_inconsistent() {
        return Err(Error::os(Errno::Busy, format!("{}: a receive into it is not finished", ds.name())));
    }
    let os = dsl.objset(ds).await?;
    if os.os_type() != ObjsetType::Zvol.number() {
        return Err(Error::inval(format!("{} is not a volume", ds.name())));
    }
    let ctx = dsl.ctx();
    let writes = !ctx.readonly && !ds.is_snapshot() && !dsl.has_old_key(&ds.dir()).await?;
    let txgs = writes.then(|| ctx.txgs.clone());
    if txgs.is_some() && !os.is_locked() {
        dsl.open_log(ds).await?;
    }
    let props = volume_props(dsl, ds, readonly).await?;
    let space = Arc::new(DatasetSpace::new(dsl, None, hold));
    Zvol::open(env.clone(), os, txgs, space, props).await
}

/// Opens a volume, or a snapshot of one. Two that are open for writing must not be of the same
/// dataset.
pub(crate) async fn open_volume(
    env: &Env,
    dsl: &Arc<DslPool>,
    dataset: Arc<DslDataset>,
    readonly: bool,
) -> Result<Arc<Volume>> {
    let zvol = open_zvol(env, dsl, &dataset, readonly).await?;
    Ok(Arc::new(Volume {
        env: env.clone(),
        dsl: dsl.clone(),
        dataset,
        readonly,
        state: Mutex::new(State { zvol: Some(zvol), ..State::default() }),
        changed: Event::new(),
        heeding: futures_util::lock::Mutex::new(()),
    }))
}

impl DatasetRef {
    /// Opens a volume, or a snapshot of one. Two that are open for writing must not be of the same
    /// dataset: [`Dataset::volume`](crate::Dataset::volume) sees to that.
    pub async fn open_volume(&self, readonly: bool) -> Result<Arc<Volume>> {
        open_volume(&self.dsl.ctx().env, &self.dsl, self.ds.clone(), readonly).await
    }
}

impl Volume {
    /// The dataset's full name.
    pub fn name(&self) -> String {
        self.dataset.name()
    }

    fn zvol(&self) -> Result<Arc<Zvol>> {
        self.state.lock().zvol.clone().ok_or_else(closed)
    }

    /// Bytes.
    pub fn size(&self) -> Result<u64> {
        Ok(self.zvol()?.size())
    }

    /// `volblocksize`, in bytes: what is written in whole blocks of this size costs least.
    pub fn block_size(&self) -> Result<u64> {
        Ok(self.zvol()?.block_size())
    }

    /// Changes are refused: a snapshot, a pool imported read-only, or the property `readonly`.
    pub fn is_readonly(&self) -> Result<bool> {
        Ok(self.zvol()?.is_readonly())
    }

    /// Begins a request, if that is possible at once.
    fn try_begin(&self) -> Result<Option<Use<'_>>> {
        let mut st = self.state.lock();
        let zvol = st.zvol.clone().ok_or_else(closed)?;
        if st.suspended {
            return Ok(None);
        }
        st.users += 1;
        Ok(Some(Use { volume: self, zvol }))
    }

    async fn begin(&self) -> Result<Use<'_>> {
        loop {
            let listener = self.changed.listen();
            if let Some(request) = self.try_begin()? {
                return Ok(request);
            }
            listener.await;
        }
    }

    /// Bytes that are in memory; None if they are not, or the volume is suspended. EINVAL if not
    /// all are within the volume.
    pub fn try_read(&self, off: u64, len: usize) -> Result<Option<ReadData>> {
        let Some(request) = self.try_begin()? else { return Ok(None) };
        match request.zvol.try_read(off, len) {
            Ok(data) => Ok(Some(data)),
            Err(Stop::Err(e)) => Err(e),
            Err(Stop::Need(_)) => Ok(None),
        }
    }

    /// Bytes. EINVAL if not all are within the volume.
    pub async fn read(&self, off: u64, len: usize) -> Result<ReadData> {
        self.begin().await?.zvol.read(off, len).await
    }

    /// Writes buffers, one behind the other; whole blocks are taken over where one buffer holds all
    /// of one. With `fua` they are on stable storage when it returns. ENOSPC if not all is within
    /// the volume, or the pool has no room.
    pub async fn write(&self, off: u64, data: &[Bytes], fua: bool) -> Result<()> {
        let request = self.begin().await?;
        request.zvol.write(off, data).await?;
        if fua { request.zvol.commit().await } else { Ok(()) }
    }

    /// Waits until everything that was done before is on stable storage.
    pub async fn flush(&self) -> Result<()> {
        self.begin().await?.zvol.flush().await
    }

    /// The same for who asks about a change of his own: one elsewhere that cannot leave the log is
    /// no error of his.
    pub async fn commit(&self) -> Result<()> {
        self.begin().await?.zvol.commit().await
    }

    /// Says that a range is not needed any more: its whole blocks read as zeroes from now on and
    /// give their space back.
    pub async fn trim(&self, off: u64, len: u64) -> Result<()> {
        self.begin().await?.zvol.trim(off, len).await
    }

    /// Makes a range zeroes. Its whole blocks give their space back, unless it is `allocated` as if
    /// zeroes had been written (which compression may undo).
    pub async fn write_zeroes(&self, off: u64, len: u64, allocated: bool, fua: bool) -> Result<()> {
        let request = self.begin().await?;
        if allocated {
            // All or nothing of a range that is not within the volume.
            if off.checked_add(len).is_none_or(|end| end > request.zvol.size()) {
                return Err(Error::os(
                    Errno::NoSpc,
                    format!("{len} bytes at {off} are beyond the volume's end"),
                ));
            }
            let block = request.zvol.block_size();
            let mut buf = IoBuf::scratch(block as usize);
            buf.fill(0);
            let zeroes = buf.into_bytes();
            let mut at = off;
            while at < off + len {
                let mut pieces = Vec::new();
                let (from, upto) = (at, (off + len).min(at + ZEROES_MAX.max(block)));
                while at < upto {
                    let n = (block - at % block).min(upto - at);
                    pieces.push(zeroes.slice(..n as usize));
                    at += n;
                }
                request.zvol.write(from, &pieces).await?;
            }
        } else {
            request.zvol.free(off, len).await?;
        }
        if fua { request.zvol.commit().await } else { Ok(()) }
    }

    /// What a range consists of, from its beginning on; it may be told of a part only.
    pub async fn extents(&self, off: u64, len: u64) -> Result<Vec<Extent>> {
        let all = self.begin().await?.zvol.extents(off, len).await?;
        Ok(all.into_iter().map(|(len, hole)| Extent { len, hole }).collect())
    }

    /// Brings the beginning of a range into memory, 32 MiB of it at most.
    pub async fn cache(&self, off: u64, len: u64) -> Result<()> {
        let request = self.begin().await?;
        let len = len.min(CACHE_MAX);
        let mut done = 0;
        while done < len {
            // Only the cache keeps what was read.
            let n = CACHE_STEP.min(len - done);
            request.zvol.read(off.saturating_add(done), n as usize).await?;
            done += n;
        }
        Ok(())
    }

    /// Changes the size. What is beyond a smaller one is lost. It is on stable storage when this
    /// returns.
    pub async fn set_size(&self, size: u64) -> Result<()> {
        self.begin().await?.zvol.set_size(size).await
    }

    /// Heeds properties that were changed.
    pub async fn refresh(&self) -> Result<()> {
        let _one = self.heeding.lock().await;
        let props = volume_props(&self.dsl, &self.dataset, self.readonly).await?;
        self.zvol()?.set_props(props);
        Ok(())
    }

    /// Keeps new requests waiting, and waits for those under way.
    pub async fn suspend(self: &Arc<Self>) -> Result<Suspended> {
        let mut waiting = Waiting(None);
        loop {
            let listener = self.changed.listen();
            {
                let mut st = self.state.lock();
                if st.zvol.is_none() {
                    return Err(closed());
                }
                // Another suspension comes to its end first.
                if waiting.0.is_some() || !st.suspended {
                    st.suspended = true;
                    waiting.0 = Some(self.clone());
                    if st.users == 0 {
                        // Others may put something else in its place: it is opened anew.
                        if let Some(zvol) = &st.zvol {
                            zvol.let_go();
                        }
                        break;
                    }
                }
            }
            listener.await;
        }
        waiting.0 = None;
        Ok(Suspended { volume: self.clone(), next: None })
    }

    /// Ends the use of the volume: requests under way end, and later ones get ENXIO.
    pub async fn close(self: &Arc<Self>) {
        if let Ok(suspended) = self.suspend().await {
            drop(suspended);
        }
    }

    fn settle(&self, zvol: Option<Arc<Zvol>>) {
        let mut st = self.state.lock();
        (st.suspended, st.zvol) = (false, zvol);
        drop(st);
        self.changed.notify(usize::MAX);
    }
}

/// Someone waits for requests to end. Let go before they have, the volume goes on as before.
struct Waiting(Option<Arc<Volume>>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(volume) = self.0.take() {
            let zvol = volume.state.lock().zvol.clone();
            volume.settle(zvol);
        }
    }
}

/// A volume that no request is under way in. It is closed if it is not resumed: nobody knows what
/// has become of its contents.
pub struct Suspended {
    volume: Arc<Volume>,
    /// What requests go on with.
    next: Option<Arc<Zvol>>,
}

impl Suspended {
    /// Opens what the dataset has now, and lets requests go on.
    pub async fn resume(mut self) -> Result<()> {
        let v = self.volume.clone();
        // Until the new one is there: what is told to the old one reaches nobody.
        let _one = v.heeding.lock().await;
        self.next = Some(open_zvol(&v.env, &v.dsl, &v.dataset, v.readonly).await?);
        drop(self);
        Ok(())
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        self.volume.settle(self.next.take());
    }
}
