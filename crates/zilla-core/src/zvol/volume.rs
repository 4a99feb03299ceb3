//! An open volume.

use super::{SIZE, ZVOL_OBJ, ZVOL_ZAP_OBJ};
use crate::dmu::{Dnode, Now, Objset, Zfetch, resident};
use crate::error::{Errno, Error, Result};
use crate::txg::TxgState;
use crate::types::ObjectId;
use crate::zap::Zap;
use crate::zil::Zilog;
use crate::zpl::{Space, SyncMode};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use zilla_env::Env;
use zilla_ondisk::SPA_MAXBLOCKSIZE;
use zilla_ondisk::enums::ObjsetType;

/// A volume's changeable properties, as far as requests feel them.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeProps {
    pub readonly: bool,
    pub sync: SyncMode,
    /// `logbias=throughput`.
    pub throughput: bool,
}

/// An open volume.
pub struct Zvol {
    pub(super) env: Env,
    pub(super) objset: Arc<Objset>,
    /// None for a snapshot or a pool that is imported read-only: nothing can be changed.
    pub(super) txgs: Option<Arc<TxgState>>,
    /// The intent log, where the dataset has one.
    pub(super) log: Option<Arc<Zilog>>,
    /// The log is being replayed: nothing is logged, and nothing refused.
    pub(super) replaying: AtomicBool,
    /// Why the log could not be replayed to its end. It is kept, and until then nothing is changed.
    pub(super) kept_log: OnceLock<String>,
    pub(super) space: Arc<dyn Space>,
    pub(super) data: Arc<Dnode>,
    pub(super) zap: Zap,
    /// A power of two from 512 to 16M.
    pub(super) block_size: u64,
    /// Bytes that users see.
    pub(super) size: AtomicU64,
    props: RwLock<VolumeProps>,
    /// Held by who changes the volume.
    pub(super) order: Mutex<()>,
    /// Held by who changes its size, from the first txg to the last.
    pub(super) resize: futures_util::lock::Mutex<()>,
    pub(super) zfetch: Zfetch,
}

impl Zvol {
    /// Opens the volume in `objset`, and brings it to where its intent log says it was.
    #[crate::boxed]
    pub async fn open(
        env: Env,
        objset: Arc<Objset>,
        txgs: Option<Arc<TxgState>>,
        space: Arc<dyn Space>,
        props: VolumeProps,
    ) -> Result<Arc<Zvol>> {
        if objset.is_locked() {
            let what = "encryption key not loaded";
            return Err(Error::os(Errno::Access, what));
        }
        if txgs.is_some() && objset.log().is_none() && crate::zil::needs_replay(&objset.phys().zil_header) {
            let what = "the intent log holds changes, and was not opened to be replayed";
            return Err(Error::os(Errno::NotSup, what));
        }
        let zvol = Arc::new(resident(|| Zvol::open_now(&env, &objset, &txgs, &space, props)).await?);
        zvol.start_log().await?;
        Ok(zvol)
    }

    fn open_now(
        env: &Env,
        objset: &Arc<Objset>,
        txgs: &Option<Arc<TxgState>>,
        space: &Arc<dyn Space>,
        props: VolumeProps,
    ) -> Now<Zvol> {
        let damaged = |what: String| Error::corrupt(None, format!("volume of objset {}", objset.id()), what);
        if objset.os_type() != ObjsetType::Zvol.number() {
            return Err(Error::inval("the dataset is not a volume").into());
        }
        let data = objset.hold(ObjectId(ZVOL_OBJ))?;
        let block_size = u64::from(data.blksz());
        if !block_size.is_power_of_two() || !(512..=SPA_MAXBLOCKSIZE).contains(&block_size) {
            return Err(damaged(format!("blocks of {block_size} bytes")).into());
        }
        let zap = Zap::new(&objset.hold(ObjectId(ZVOL_ZAP_OBJ))?);
        let size = zap.lookup_u64(SIZE.as_bytes())?.ok_or_else(|| damaged("no size".into()))?;
        if size > i64::MAX as u64 {
            return Err(damaged(format!("a size of {size} bytes")).into());
        }
        let log = objset.log().filter(|_| txgs.is_some()).cloned();
        let zvol = Zvol {
            env: env.clone(),
            objset: objset.clone(),
            txgs: txgs.clone(),
            log,
            replaying: AtomicBool::new(false),
            kept_log: OnceLock::new(),
            space: space.clone(),
            data,
            zap,
            block_size,
            size: size.into(),
            props: RwLock::new(props),
            order: Mutex::new(()),
            resize: futures_util::lock::Mutex::new(()),
            zfetch: Zfetch::default(),
        };
        zvol.set_props(props);
        Ok(zvol)
    }

    /// Gives the dataset up: no request begins any more, and others may put something else in the
    /// place of its contents.
    pub fn let_go(&self) {
        self.space.let_go();
    }

    pub fn objset(&self) -> &Arc<Objset> {
        &self.objset
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// `volblocksize`, in bytes.
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    pub fn props(&self) -> VolumeProps {
        *self.props.read()
    }

    pub fn set_props(&self, props: VolumeProps) {
        *self.props.write() = props;
        if let Some(log) = &self.log {
            log.set_disabled(props.sync == SyncMode::Disabled);
            log.set_throughput(props.throughput);
        }
    }

    pub fn is_readonly(&self) -> bool {
        self.txgs.is_none() || self.props().readonly || self.kept_log.get().is_some()
    }

    /// The txgs to change the volume in.
    pub(super) fn txgs(&self) -> Result<&Arc<TxgState>> {
        let replaying = self.replaying.load(Ordering::Relaxed);
        let may = replaying || !self.props().readonly && self.kept_log.get().is_none();
        let refused = || match self.kept_log.get() {
            Some(why) => {
                let what = format!("the intent log could not be replayed, so nothing is changed: {why}");
                Error::os(Errno::ROFs, what)
            }
            None => Error::os(Errno::ROFs, "the volume is read-only"),
        };
        self.txgs.as_ref().filter(|_| may).ok_or_else(refused)
    }

    /// Refuses a range that is not all within the volume.
    pub(super) fn check_range(&self, off: u64, len: u64, errno: Errno) -> Result<()> {
        match off.checked_add(len) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(Error::os(errno, format!("{len} bytes at {off} are beyond the volume's end"))),
        }
    }

    /// Waits until all writes and freed ranges that were done before are on stable storage. `EIO`
    /// if some of them cannot get from the log to where they belong, since what lies there cannot
    /// be read.
    #[crate::boxed]
    pub async fn flush(&self) -> Result<()> {
        self.commit().await?;
        self.data.check_held()
    }

    /// The same for who asks about a change of his own: one elsewhere that stays in the log is none
    /// of his.
    #[crate::boxed]
    pub async fn commit(&self) -> Result<()> {
        match &self.log {
            Some(log) => log.commit(Some(ZVOL_OBJ)).await,
            None => self.sync().await,
        }
    }

    /// Waits until all that was done so far is in a synced txg.
    #[crate::boxed]
    pub async fn sync(&self) -> Result<()> {
        match &self.txgs {
            Some(txgs) => txgs.wait_synced(txgs.open()).await,
            None => Ok(()),
        }
    }
}
