//! A file system in memory: what its master node says, its properties, and the loop all operations
//! run in.

use super::sa::SaTable;
use super::types::{StatFs, Time};
use super::znode::Znodes;
use super::{MASTER_NODE_OBJ, ZPL_VERSION, ZPL_VERSION_SA, err};
use crate::dmu::objects::Table;
use crate::dmu::{Now, Objset, in_tx, resident};
use crate::error::{Errno, Error, Result};
use crate::txg::{Tx, TxgState};
use crate::types::{ObjectId, Txg};
use crate::zap::{Match, U8_TEXTPREP_TOUPPER, Zap};
use crate::zil::Zilog;
use crate::zio::Leave;
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use zilla_env::Env;

/// When reading updates the access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    Off,
    /// Only if it is older than the last change, or than a day.
    #[default]
    Relative,
    On,
}

/// What fsync means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    #[default]
    Standard,
    /// Every operation returns when it is stable.
    Always,
    /// Nothing is waited for.
    Disabled,
}

/// A file system's changeable properties, as far as files feel them.
#[derive(Clone, Copy, Debug)]
pub struct FsProps {
    /// Largest block of new files, a power of two from 512 to 16M.
    pub recordsize: u32,
    pub readonly: bool,
    pub atime: Atime,
    /// Times of reading count for directories too.
    pub dir_atime: bool,
    /// Extended attributes go beside the other attributes while they fit (`xattr=sa`), or into a
    /// directory (`xattr=dir`).
    pub xattr_sa: bool,
    pub xattr: bool,
    /// POSIX ACLs are kept and inherited (`acltype=posix`).
    pub posix_acl: bool,
    /// Dnode size of new files in bytes.
    pub dnodesize: usize,
    /// Names may have up to 1023 bytes (`longname=on`).
    pub long_names: bool,
    /// The pool accounts for projects.
    pub project_quota: bool,
    pub sync: SyncMode,
    /// `logbias=throughput`.
    pub throughput: bool,
    /// Who goes past the caches.
    pub direct: Direct,
    /// Quotas that hold where a user, group or project has none of its own: bytes, or 0.
    pub default_quotas: [u64; 3],
}

impl Default for FsProps {
    fn default() -> FsProps {
        FsProps {
            recordsize: 128 << 10,
            readonly: false,
            atime: Atime::default(),
            dir_atime: true,
            xattr_sa: true,
            xattr: true,
            posix_acl: false,
            dnodesize: 512,
            long_names: false,
            project_quota: true,
            sync: SyncMode::Standard,
            throughput: false,
            direct: Direct::Standard,
            default_quotas: [0; 3],
        }
    }
}

/// Who goes past the caches (`direct`). Only whole pages do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    Disabled,
    /// Who asks for it (`O_DIRECT`), and is refused if it cannot be.
    Standard,
    /// All for whom it can be: reads, and writes of at least a block.
    Always,
}

/// What a file system asks of the dataset it lies in.
pub trait Space: Send + Sync {
    /// Bytes referenced by the dataset, and bytes still to be had.
    fn usage(&self) -> (u64, u64);
    /// Refuses with ENOSPC or EDQUOT if about `bytes` more cannot be promised. An operation that
    /// ends up with less space in use says so (`frees`), and is let through until almost nothing is
    /// left.
    fn admit(&self, tx: &Tx, bytes: u64, frees: bool) -> Result<()>;
    /// Refuses if there is no room for `space` bytes on the devices, which the operation may make
    /// the sync write at worst.
    fn hold_room(&self, tx: &Tx, space: u64, leave: Leave) -> Result<()>;
    /// How many of so many blocks may be freed in one txg: what the pool writes down about them
    /// takes room too.
    fn frees_at_once(&self, most: u64) -> u64 {
        most
    }
    /// Something is about to be written that only pools with a feature can have.
    fn need_feature(&self, name: &'static str);
    /// Whether the pool can have what needs a feature.
    fn has_feature(&self, _: &'static str) -> bool {
        true
    }
    /// Up to which txg's blocks may come to have several owners; None: none may.
    fn clones(&self) -> Option<Txg> {
        None
    }
    /// The file system is used no more, though somebody may still have it: what it kept from being
    /// destroyed or opened by another is free.
    fn let_go(&self) {}
}

/// A dataset without bounds.
pub struct Unlimited;

impl Space for Unlimited {
    fn usage(&self) -> (u64, u64) {
        (0, u64::MAX >> 2)
    }
    fn admit(&self, _: &Tx, _: u64, _: bool) -> Result<()> {
        Ok(())
    }
    fn hold_room(&self, _: &Tx, _: u64, _: Leave) -> Result<()> {
        Ok(())
    }
    fn need_feature(&self, _: &'static str) {}
}

/// An open file system.
pub struct Zfs {
    pub(super) env: Env,
    /// For tasks that a mere reader begins.
    pub(super) myself: OnceLock<Weak<Zfs>>,
    pub(super) objset: Arc<Objset>,
    /// None for a snapshot or a pool that is imported read-only: nothing can be changed.
    txgs: Option<Arc<TxgState>>,
    /// The intent log, where the dataset has one.
    pub(super) log: Option<Arc<Zilog>>,
    /// The log is being replayed: nothing is logged, and nothing refused.
    pub(super) replaying: AtomicBool,
    /// Nothing is read or changed any more: see [`Zfs::revoke`].
    revoked: AtomicBool,
    /// Why the log could not be replayed to its end. It is kept, and until then nothing is changed.
    pub(super) kept_log: OnceLock<String>,
    pub(super) space: Arc<dyn Space>,
    pub(super) master: Zap,
    pub(super) unlinked: Option<Zap>,
    root: u64,
    pub(super) version: u64,
    pub(super) utf8_only: bool,
    /// Names are compared by their normalized form.
    pub(super) name_match: Match,
    /// `casesensitivity=insensitive`
    ignores_case: bool,
    pub(super) sa: SaTable,
    props: RwLock<FsProps>,
    pub(super) znodes: Arc<Znodes>,
    /// Directories change their parents one at a time, so that none becomes its own ancestor.
    pub(super) rename: Mutex<()>,
    /// Held while the delete queue is changed and the change may yet be taken back.
    pub(super) queue: Mutex<()>,
    /// Quota objects of the master node, looked up once; [`Zfs::quotas_changed`] makes them be
    /// looked up again.
    pub(super) quotas: Mutex<super::quota::Known>,
}

impl Zfs {
    /// Opens the file system in `objset`.
    #[crate::boxed]
    pub async fn open(
        env: Env,
        objset: Arc<Objset>,
        txgs: Option<Arc<TxgState>>,
        space: Arc<dyn Space>,
        props: FsProps,
    ) -> Result<Arc<Zfs>> {
        if objset.is_locked() {
            let what = "encryption key not loaded";
            return Err(Error::os(Errno::Access, what));
        }
        if txgs.is_some() && objset.log().is_none() && crate::zil::needs_replay(&objset.phys().zil_header) {
            let what = "the intent log holds changes, and was not opened to be replayed";
            return Err(Error::os(Errno::NotSup, what));
        }
        let zfs = Arc::new(resident(|| Zfs::open_now(&env, &objset, &txgs, &space, props)).await?);
        let first = zfs.myself.set(Arc::downgrade(&zfs));
        debug_assert!(first.is_ok(), "it was just made");
        zfs.start_log().await?;
        Ok(zfs)
    }

    fn open_now(
        env: &Env,
        objset: &Arc<Objset>,
        txgs: &Option<Arc<TxgState>>,
        space: &Arc<dyn Space>,
        props: FsProps,
    ) -> Now<Zfs> {
        let damaged =
            |what: &str| Error::corrupt(None, format!("master node of objset {}", objset.id()), what);
        let master = Zap::new(&objset.hold(ObjectId(MASTER_NODE_OBJ))?);
        let number = |name: &str| master.lookup_u64(name.as_bytes());
        let version = number("VERSION")?.ok_or_else(|| damaged("no VERSION"))?;
        if version == 0 || version > ZPL_VERSION {
            return Err(
                Error::os(Errno::NotSup, format!("file system version {version} is not known")).into()
            );
        }
        let root = number("ROOT")?.ok_or_else(|| damaged("no ROOT"))?;
        let sa_obj = if version >= ZPL_VERSION_SA { number("SA_ATTRS")?.unwrap_or(0) } else { 0 };
        let unlinked = match number("DELETE_QUEUE")? {
            Some(o) => Some(Zap::new(&objset.hold(ObjectId(o))?)),
            None => None,
        };
        let case = number("casesensitivity")?.unwrap_or(0);
        let mut norm = number("normalization")?.unwrap_or(0);
        if case != 0 {
            norm |= U8_TEXTPREP_TOUPPER;
        }
        // Mixed means: stored for both, compared with case unless a Windows client asks otherwise.
        let name_match = match (norm, case) {
            (0, _) => Match::Exact,
            (_, 1) => Match::Normalized,
            (_, 0) => Match::Normalized,
            _ => Match::NormalizedCase,
        };
        let log = objset.log().filter(|_| txgs.is_some()).cloned();
        let znodes = Arc::new(Znodes::default());
        let table: Arc<dyn Table> = znodes.clone();
        objset.cache().objects.register(Arc::downgrade(&table));
        if let Some(log) = &log {
            log.set_disabled(props.sync == SyncMode::Disabled);
            log.set_throughput(props.throughput);
        }
        Ok(Zfs {
            env: env.clone(),
            myself: OnceLock::new(),
            objset: objset.clone(),
            txgs: txgs.clone(),
            log,
            replaying: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            kept_log: OnceLock::new(),
            space: space.clone(),
            unlinked,
            root,
            version,
            utf8_only: number("utf8only")?.unwrap_or(0) != 0,
            name_match,
            ignores_case: case == 1,
            sa: SaTable::open(objset, sa_obj)?,
            props: RwLock::new(props),
            znodes,
            rename: Mutex::new(()),
            queue: Mutex::new(()),
            quotas: Mutex::default(),
            master,
        })
    }

    pub fn objset(&self) -> &Arc<Objset> {
        &self.objset
    }
    pub fn env(&self) -> &Env {
        &self.env
    }
    /// The root directory's number.
    pub fn root(&self) -> u64 {
        self.root
    }
    pub fn version(&self) -> u64 {
        self.version
    }
    pub fn props(&self) -> FsProps {
        *self.props.read()
    }
    pub fn set_props(&self, props: FsProps) {
        *self.props.write() = props;
        if let Some(log) = &self.log {
            log.set_disabled(props.sync == SyncMode::Disabled);
            log.set_throughput(props.throughput);
        }
    }
    pub fn is_readonly(&self) -> bool {
        self.txgs.is_none() || !self.is_replaying() && (self.props().readonly || self.kept_log().is_some())
    }
    /// Why the intent log was not replayed to its end, if it was not: then it is kept, and nothing
    /// can be changed.
    pub fn kept_log(&self) -> Option<&str> {
        self.kept_log.get().map(String::as_str)
    }

    /// A number that the master node has under a name.
    pub(super) async fn number(&self, name: &str) -> Result<Option<u64>> {
        resident(|| self.master.lookup_u64(name.as_bytes())).await
    }

    /// Files without a name that are not freed yet.
    #[crate::boxed]
    pub async fn files_to_free(&self) -> Result<u64> {
        match &self.unlinked {
            Some(zap) => resident(|| zap.count()).await,
            None => Ok(0),
        }
    }

    /// Whether a file may be found under several spellings of its name.
    pub fn names_vary(&self) -> bool {
        self.name_match != Match::Exact
    }

    /// Whether a file is found under its name in any case.
    pub fn ignores_case(&self) -> bool {
        self.ignores_case
    }

    pub(super) fn normflags(&self) -> Now<u64> {
        Zap::new(&self.objset.hold(ObjectId(self.root))?).normflags()
    }

    pub(super) fn now(&self) -> Time {
        Time::from_wall(self.env.wall())
    }

    /// The txgs of the pool, whatever the properties say; None where nothing can be changed.
    pub(super) fn txgs_any(&self) -> Option<&Arc<TxgState>> {
        self.txgs.as_ref()
    }

    /// Refuses, where the pool is suspended, what would wait until it is not: with EIO if it
    /// refuses changes, and else with EAGAIN.
    pub fn unless_suspended(&self) -> Result<()> {
        let why = "the pool is suspended until it is cleared";
        match self.txgs.as_ref().and_then(|txgs| txgs.gate_refuses()) {
            None => Ok(()),
            Some(true) => err(Errno::Io, why),
            Some(false) => err(Errno::Again, why),
        }
    }

    pub(super) fn has_fuids(&self) -> bool {
        self.version >= super::ZPL_VERSION_FUID
    }

    pub(super) fn txgs(&self) -> Result<&Arc<TxgState>> {
        match (&self.txgs, self.kept_log()) {
            (Some(t), _) if self.is_replaying() => Ok(t),
            (_, Some(why)) => {
                let what = format!("the intent log could not be replayed, so nothing is changed: {why}");
                Err(Error::os(Errno::ROFs, what))
            }
            (Some(t), None) if !self.props().readonly => Ok(t),
            _ => err(Errno::ROFs, "the file system is read-only"),
        }
    }

    /// Asks for room for what the operation will have written of records. What was acknowledged
    /// before a crash may take nearly the last.
    pub(super) fn hold_room(&self, tx: &Tx, space: u64, leave: Leave) -> Result<()> {
        self.space.hold_room(tx, space, if self.is_replaying() { Leave::Eighth } else { leave })
    }

    /// Runs `op` in a transaction until all it needs is in memory.
    pub(super) async fn change<T>(&self, op: impl FnMut(&Tx) -> Now<T>) -> Result<T> {
        self.change_in(self.txgs()?, op).await
    }

    pub(super) async fn change_in<T>(
        &self,
        txgs: &Arc<TxgState>,
        mut op: impl FnMut(&Tx) -> Now<T>,
    ) -> Result<T> {
        in_tx(txgs, |tx| {
            self.check_lives()?;
            op(tx)
        })
        .await
    }

    /// Refuses everything after [`Zfs::revoke`].
    pub fn check_lives(&self) -> Result<()> {
        match self.revoked.load(Ordering::Acquire) {
            true => super::err(Errno::Io, "the file system was unmounted"),
            false => Ok(()),
        }
    }

    /// Takes the file system from whoever still has it: it was unmounted by force under open files,
    /// or frees files in the background. From now on all is refused with EIO, as OpenZFS does; what
    /// is under way in a transaction is done with when this returns, unless the pool is suspended.
    /// What was changed stays, and whoever opens the dataset next frees the files that have no name
    /// any more. Whoever calls this then lets go of the dataset ([`Zfs::let_go`]).
    #[crate::boxed]
    pub async fn revoke(&self) -> Result<()> {
        self.revoke_now();
        match &self.txgs {
            Some(txgs) => txgs.wait_synced(txgs.open()).await,
            None => Ok(()),
        }
    }

    /// The same where nobody can be in a transaction but what frees files in the background.
    pub fn revoke_now(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    /// After [`Zfs::revoke`]: others may open the dataset, or destroy it.
    pub fn let_go(&self) {
        self.space.let_go();
    }

    /// Refuses what the dataset has no room for. What is replayed was admitted once: no quota
    /// judges it again, and it may go as far into the slop as a removal.
    pub(super) fn admit(&self, tx: &Tx, bytes: u64, frees: bool) -> Result<()> {
        match self.space.admit(tx, bytes, frees || self.is_replaying()) {
            Err(e) if e.is(Errno::NoSpc) && self.is_replaying() => Ok(()),
            admitted => admitted,
        }
    }

    /// Waits until all that was done so far is on stable storage.
    #[crate::boxed]
    pub async fn sync(&self) -> Result<()> {
        let Some(txgs) = &self.txgs else { return Ok(()) };
        self.flush_atimes().await?;
        let open: Txg = txgs.open();
        txgs.wait_synced(open).await
    }

    /// Refuses to set aside more than could be written now, with a tenth more for what is written
    /// along with it. Nothing is kept free for it, as in OpenZFS. Source of the tenth:
    /// zfs_fallocate_reserve_percent.
    pub fn check_allocation(&self, len: u64) -> Result<()> {
        let (_, free) = self.space.usage();
        if len.saturating_add(len / 10) > free {
            return super::err(Errno::NoSpc, "there is not so much space");
        }
        Ok(())
    }

    pub fn statfs(&self) -> StatFs {
        let (used, free) = self.space.usage();
        // Objects are limited by space alone; OpenZFS reports one for each 512 bytes left.
        let files_free = (free >> 9).min(1 << 48);
        StatFs {
            bytes_total: used.saturating_add(free),
            bytes_free: free,
            files_total: files_free
                .saturating_add(self.objset.phys().meta_dnode.maxblkid.saturating_add(1) * 32),
            files_free,
            name_max: self.name_max() as u32,
            fsid: self.objset.id(),
        }
    }
}
