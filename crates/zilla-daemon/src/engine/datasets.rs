//! Making datasets, and changing their properties.

use super::access::{mounts_by_itself, not_by_itself, who};
use super::accounts::split_quotas;
use super::errors::{Answer, of, of_dataset};
use super::keys::Turn;
use super::mounts::How;
use super::pool::Pool;
use super::values::{Mountpoint, Settings};
use super::{Engine, Serves};
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla::Value;
use zilla::error::DatasetRefusal as Refusal;
use zilla::error::Error;
use zilla::keys::NewCrypt;
use zilla::stored::Setting;
use zilla::tree::DatasetRef;
use zilla::{Maker, VolumeShape, auto, number, volume_size_check};
use zilla_control::props::{self, Types, naming};
use zilla_control::types::{
    DatasetClone, DatasetCreate, DatasetInherit, DatasetSet, MountedReply, ShareProtocol, VolumePlan,
    VolumePlanReply, VolumeSpec,
};
use zilla_control::{ApiError, Caller, ErrorCode};

/// Settled when a dataset is made, or by `zfs change-key`.
pub(super) const CRYPTO: [&str; 4] = ["encryption", "keyformat", "keylocation", "pbkdf2iters"];

/// Source: ZFS_CANMOUNT_ON in sys/fs/zfs.h.
pub(super) const CANMOUNT_ON: u64 = 1;

pub type Settled = zilla::Settings;

fn maker(caller: &Caller) -> Maker {
    Maker { uid: caller.uid, gid: caller.gid, who: who(caller) }
}

/// Words as they lie on disk.
pub fn typed(words: &BTreeMap<String, String>, types: Types, creating: bool) -> Answer<Settled> {
    let settings = zilla::settings(words, types, creating)?;
    if let Some(options) = words.get("sharenfs")
        && let Err(why) = zilla_nfs::Options::parse(options)
    {
        let what = format!("'sharenfs' cannot be set to invalid options: {why}");
        return Err(ApiError::with(ErrorCode::BadProp, what));
    }
    if let Some(options) = words.get("sharesmb").filter(|o| !matches!(o.as_str(), "on" | "off")) {
        let what = format!("'sharesmb' cannot be set to invalid options: '{options}' is neither on nor off");
        return Err(ApiError::with(ErrorCode::BadProp, what));
    }
    Ok(settings)
}

impl Serves<DatasetCreate> for Engine {
    async fn serve(&self, caller: &Caller, mut r: DatasetCreate) -> Answer<MountedReply> {
        self.check_running(&r.name)?;
        let mounts = !r.no_mount;
        r.no_mount |= !caller.owner;
        let types = if r.volume.is_some() { props::VOL } else { props::FS };
        naming::check_dataset_name(&r.name, types, true)?;
        let pool = self.pool_of(&r.name).map_err(|e| match e.code {
            ErrorCode::PoolUnavail => e,
            _ => no_such_pool(&r.name),
        })?;
        let mut properties = r.properties.clone();
        let above = pool.encrypted_above(&r.name).await;
        let crypt = self.new_crypt(&mut properties, r.key.as_ref(), above, Turn::of(caller)).await?;
        let (words, quotas) = match types {
            props::FS => split_quotas(caller, &properties).await?,
            _ => (properties, Vec::new()),
        };
        let settings = typed(&words, types, true)?;
        if let Some(bytes) = r.volume.as_ref().and_then(|v| v.block_size) {
            props::parse_dataset_prop("volblocksize", &bytes.to_string(), types, true, None)?;
        }
        if r.parents {
            self.create_parents(caller, &pool, &r.name, r.no_mount).await?;
        }
        if let Some(volume) = &r.volume {
            self.create_one_volume(caller, &pool, &r.name, volume, settings, crypt).await?;
            self.show_devices(&r.name).await;
            return Ok(MountedReply::default());
        }
        self.create_one(caller, &pool, &r.name, settings, crypt).await?;
        self.quotas_of_new(&pool, &r.name, &quotas).await?;
        let mount_error = match r.no_mount {
            true => pool.only_root_mounts(&r.name, mounts).await?,
            false => match pool.mount_one(self, &r.name, &[], false).await {
                Err(failed) => Some(failed),
                // Whoever asks for a share by name is told what the log would be otherwise.
                Ok(()) => pool.share_asked(self, &r.name, &words).await,
            },
        };
        Ok(MountedReply { mount_error })
    }
}

impl Engine {
    pub(super) async fn create_parents(
        &self,
        caller: &Caller,
        pool: &Pool,
        name: &str,
        no_mount: bool,
    ) -> Answer<()> {
        let mut at = pool.name().len();
        while let Some(next) = name.get(at + 1..).and_then(|rest| rest.find('/')) {
            at += 1 + next;
            let parent = name.get(..at).unwrap_or(name);
            if pool.zilla.dir_by_name(parent).await.is_err() {
                self.create_one(caller, pool, parent, Vec::new(), NewCrypt::default()).await?;
                if !no_mount {
                    pool.mount_one(self, parent, &[], false).await?;
                }
            }
        }
        Ok(())
    }

    async fn create_one(
        &self,
        caller: &Caller,
        pool: &Pool,
        name: &str,
        settings: Settled,
        crypt: NewCrypt,
    ) -> Answer<()> {
        let maker = maker(caller);
        pool.zilla.make_filesystem(name, &maker, settings, crypt).await.map_err(of_dataset)
    }

    async fn create_one_volume(
        &self,
        caller: &Caller,
        pool: &Pool,
        name: &str,
        volume: &VolumeSpec,
        settings: Settled,
        crypt: NewCrypt,
    ) -> Answer<()> {
        let block_size = volume.block_size.or(number(&settings, "volblocksize"));
        let block_size = block_size.unwrap_or_else(|| pool.zilla.volume_block_size());
        let bad = |e: Error| ApiError::with(ErrorCode::BadProp, e.to_string());
        volume_size_check(volume.size, block_size).map_err(bad)?;
        let shape = VolumeShape { size: volume.size, block_size: Some(block_size), sparse: volume.sparse };
        let maker = maker(caller);
        pool.zilla.make_volume(name, &maker, shape, settings, crypt).await.map_err(of_dataset)
    }
}

impl Serves<VolumePlan> for Engine {
    async fn serve(&self, _: &Caller, r: VolumePlan) -> Answer<VolumePlanReply> {
        let pool = self.pool_of(&r.pool)?;
        let fitting = pool.zilla.volume_block_size();
        let block_size = r.block_size.unwrap_or(fitting);
        props::parse_dataset_prop("volblocksize", &block_size.to_string(), props::VOL, true, None)?;
        let size = r.size.checked_next_multiple_of(block_size).ok_or_else(|| {
            let what = format!("bad volume size '{}': numeric value is too large", r.size);
            ApiError::with(ErrorCode::BadProp, what)
        })?;
        Ok(VolumePlanReply {
            size,
            block_size,
            reservation: pool.zilla.volume_reservation(size, block_size, r.copies.max(1)),
            reserved_by: pool.zilla.volume_reserved_by().to_owned(),
            fitting,
            least: pool.zilla.least_allocation(),
        })
    }
}

impl Serves<DatasetClone> for Engine {
    async fn serve(&self, caller: &Caller, mut r: DatasetClone) -> Answer<MountedReply> {
        self.check_running(&r.snapshot)?;
        let mounts = !r.no_mount;
        r.no_mount |= !caller.owner;
        naming::check_dataset_name(&r.snapshot, props::SNAP, false)?;
        naming::check_dataset_name(&r.target, props::FS, true)?;
        let pool = self.pool_of(&r.snapshot)?;
        if naming::pool_of(&r.target) != pool.name() {
            return Err(ApiError::with(ErrorCode::CrossTarget, "source and target pools differ"));
        }
        let snapshot = pool.zilla.by_name(&r.snapshot).await.map_err(of(&r.snapshot))?;
        let volume = snapshot.is_volume().await.map_err(of(&r.snapshot))?;
        if r.properties.keys().any(|k| CRYPTO.contains(&k.as_str())) {
            let what = "Encryption properties must inherit from origin dataset.";
            return Err(ApiError::with(ErrorCode::CryptoFailed, what));
        }
        let (words, quotas) = match volume {
            true => (r.properties.clone(), Vec::new()),
            false => split_quotas(caller, &r.properties).await?,
        };
        let mut settings = typed(&words, if volume { props::VOL } else { props::FS }, false)?;
        if !caller.owner && !volume {
            let of = snapshot.dir().head().await.map_err(of_dataset)?;
            if !mounts_by_itself(Some(&of)).await? {
                settings.push(not_by_itself());
            }
        }
        if r.parents {
            self.create_parents(caller, &pool, &r.target, r.no_mount).await?;
        }
        let maker = maker(caller);
        pool.zilla.make_clone(&r.snapshot, &r.target, &maker, settings).await.map_err(of_dataset)?;
        self.quotas_of_new(&pool, &r.target, &quotas).await?;
        self.show_devices(&r.target).await;
        let mount_error = match r.no_mount {
            true => pool.only_root_mounts(&r.target, mounts).await?,
            false => pool.mount_one(self, &r.target, &[], false).await.err(),
        };
        Ok(MountedReply { mount_error })
    }
}

impl Engine {
    pub(super) async fn set_properties(&self, caller: &Caller, r: DatasetSet) -> Answer<MountedReply> {
        let pool = self.pool_of(&r.name)?;
        let ds = pool.zilla.by_name(&r.name).await.map_err(of(&r.name))?;
        let types = pool.types(&ds).await?;
        let (words, quotas) = match types {
            props::FS => split_quotas(caller, &r.properties).await?,
            _ => (r.properties.clone(), Vec::new()),
        };
        let mut settings = typed(&words, types, false)?;
        if let Some(location) = r.properties.get("keylocation") {
            pool.key_location_check(&ds, location).await?;
        }
        if let Some(version) = number(&settings, "version") {
            settings.retain(|(name, _)| name != "version");
            let now = pool.zpl_version(&ds).await.map_err(of(&r.name))?.unwrap_or(0);
            let mut mount_error = None;
            if now != version {
                mount_error = self.upgrade_filesystem(&pool, &ds, now, version).await?;
            }
            if settings.is_empty() && quotas.is_empty() {
                return Ok(MountedReply { mount_error });
            }
        }
        if types == props::VOL {
            let size = self.volume_settings(&pool, &ds, &mut settings).await?;
            if let Some(size) = size {
                self.resize_volume(&pool, &ds, size).await?;
                self.show_devices(&r.name).await;
            }
            if settings.is_empty() {
                return Ok(MountedReply::default());
            }
        }
        self.set_quotas(&pool, &r.name, &quotas).await?;
        if settings.is_empty() {
            return Ok(MountedReply::default());
        }
        self.change_and_remount(&pool, &ds, settings, r.no_mount).await
    }

    /// What a volume's size decides of new properties; takes a new size out of them.
    async fn volume_settings(
        &self,
        pool: &Arc<Pool>,
        ds: &DatasetRef,
        settings: &mut Settled,
    ) -> Answer<Option<u64>> {
        if !["volsize", "reservation", "refreservation"].iter().any(|n| number(settings, n).is_some()) {
            return Ok(None);
        }
        let (now, block_size) = {
            let used = pool.use_volume(ds).await.map_err(of_dataset)?;
            let v = &used.volume;
            (v.size().map_err(of_dataset)?, v.block_size().map_err(of_dataset)?)
        };
        let bad = |what: String| Err(ApiError::with(ErrorCode::BadProp, what));
        let size = number(settings, "volsize");
        match size {
            Some(0) => return bad("'volsize' cannot be zero".into()),
            Some(size) if !size.is_multiple_of(block_size) => {
                let block = props::nicenum::nicebytes(block_size);
                return bad(format!("'volsize' must be a multiple of volume block size ({block})"));
            }
            _ => {}
        }
        for (_, value) in settings.iter_mut().filter(|(n, v)| n == "refreservation" && *v == auto()) {
            let wanted = pool.zilla.volume_reservation(size.unwrap_or(now), block_size, 1);
            *value = Setting::Local(Value::u64(wanted));
        }
        settings.retain(|(n, _)| n != "volsize");
        Ok(size)
    }

    pub(super) async fn inherit_property(&self, r: DatasetInherit) -> Answer<MountedReply> {
        props::check_inherit(&r.property, r.received)?;
        let pool = self.pool_of(&r.name)?;
        let ds = pool.zilla.by_name(&r.name).await.map_err(of(&r.name))?;
        let desc = props::dataset_prop(&r.property);
        let types = pool.types(&ds).await?;
        if desc.is_some_and(|desc| !desc.applies_to(types)) {
            return Err(ErrorCode::PropType.into());
        }
        let name = desc.map_or(r.property.as_str(), |d| d.name).to_owned();
        let setting = if r.received { Setting::Revert } else { Setting::Inherit };
        self.change_and_remount(&pool, &ds, vec![(name, setting)], false).await
    }

    /// Changes properties; what is then to be mounted elsewhere, or not at all, is.
    async fn change_and_remount(
        &self,
        pool: &Pool,
        ds: &DatasetRef,
        settings: Settled,
        no_mount: bool,
    ) -> Answer<MountedReply> {
        let name = ds.name();
        let shares = |p: &ShareProtocol| !no_mount && settings.iter().any(|(n, _)| n == p.property());
        let shares: Vec<ShareProtocol> = ShareProtocol::ALL.into_iter().filter(shares).collect();
        let shows = settings.iter().any(|(n, _)| super::devices::DECIDE.contains(&n.as_str()));
        let moves = !no_mount
            && settings.iter().any(|(n, _)| matches!(n.as_str(), "mountpoint" | "canmount" | "zoned"));
        if !moves {
            let left = pool.change_props(&name, settings).await?;
            if shows {
                self.show_devices(&name).await;
            }
            let mut mount_error = None;
            let mut done: Vec<&String> = Vec::new();
            // Those above first: what is below goes with them.
            for name in left.iter().rev() {
                if done.iter().any(|d| name.strip_prefix(d.as_str()).is_some_and(|r| r.starts_with('/'))) {
                    continue;
                }
                done.push(name);
                if let Err(e) = pool.mount_anew(self, name).await {
                    let why = format!("the change counts from the next mount on: {}", e.description());
                    mount_error.get_or_insert(ApiError::with(ErrorCode::MountFailed, why).subject(name));
                }
            }
            for protocol in shares {
                mount_error = mount_error.or(pool.share_below(self, &name, protocol).await);
            }
            return Ok(MountedReply { mount_error });
        }
        let placed = settings.iter().any(|(n, _)| n == "mountpoint");
        let mounted = pool.mounted_below(&name);
        let by_hand = pool.places_by_hand(&mounted).await;
        let before = Settings::of(ds).await.map_err(of(&name))?;
        let before: Settled = settings.iter().map(|(n, _)| (n.clone(), before.again(n))).collect();
        pool.change_props(&name, settings).await?;
        let after = Settings::of(ds).await.map_err(of(&name))?;
        let place = after.place(pool);
        let (mut moved, mut left) = (Vec::new(), Vec::new());
        for name in &mounted {
            let Ok(ds) = pool.zilla.by_name(name).await else { continue };
            let settings = Settings::of(&ds).await.map_err(of(name))?;
            let at = pool.mounted_at(name);
            // What somebody mounted at a place of his own moves when it is given another.
            if by_hand.get(name).is_some_and(|before| *before == settings.place(pool)) {
                continue;
            }
            let same = matches!((settings.place(pool), &at), (Mountpoint::At(p), Some(at)) if at.as_os_str() == p.as_str());
            if !same || settings.canmount() == 0 {
                moved.push(name.clone());
                left.extend(at);
            }
        }
        // What is mounted within them is in their way, and comes back.
        let is_within = |name: &String| {
            pool.mounted_at(name).is_some_and(|at| left.iter().any(|l| at != *l && at.starts_with(l)))
        };
        let leaving: Vec<String> =
            mounted.iter().filter(|name| moved.contains(name) || is_within(name)).cloned().collect();
        let (unmounted, stopped) = pool.unmount_each(&leaving, false).await;
        if let Some(e) = stopped {
            // Nothing is changed where something is in use.
            if let Err(e) = pool.change_props(&name, before).await {
                tracing::warn!("'{name}' keeps what was set: {}", e.description());
            }
            pool.mount_back(self, &unmounted).await;
            return Err(e);
        }
        // Who is given a place is mounted there, though he was not mounted before.
        let mut first = Vec::new();
        if placed && matches!(place, Mountpoint::At(_)) {
            first = pool.first_places(ds).await?;
            first.retain(|name| !mounted.contains(name));
        }
        let back = unmounted.into_iter().map(|(name, earlier)| match moved.contains(&name) {
            true => (name, earlier.in_its_place()),
            false => (name, earlier),
        });
        let back: Vec<_> = back.collect();
        let mut mount_error = pool.mount_back(self, &back).await;
        for name in first.iter().rev() {
            if let Err(e) = pool.mount(self, name, &How::default()).await {
                mount_error.get_or_insert(e);
            }
        }
        for protocol in shares {
            mount_error = mount_error.or(pool.share_below(self, &name, protocol).await);
        }
        Ok(MountedReply { mount_error })
    }
}

impl Serves<DatasetInherit> for Engine {
    async fn serve(&self, _: &Caller, r: DatasetInherit) -> Answer<MountedReply> {
        self.check_running(&r.name)?;
        self.inherit_property(r).await
    }
}

impl Serves<DatasetSet> for Engine {
    async fn serve(&self, caller: &Caller, r: DatasetSet) -> Answer<MountedReply> {
        self.check_running(&r.name)?;
        self.set_properties(caller, r).await
    }
}

fn no_such_pool(name: &str) -> ApiError {
    if !name.contains('/') {
        return ApiError::with(ErrorCode::NoEnt, "missing dataset name");
    }
    ApiError::with(ErrorCode::NoEnt, format!("no such pool '{}'", naming::pool_of(name)))
}

/// Only who sets a size is told which one does not fit; for all others there is no space.
pub(super) fn unsettable(e: Error) -> ApiError {
    let why = match &e {
        Error::Refused(why) => match **why {
            Refusal::BelowUsed(_) => "size is less than current used or reserved space",
            Refusal::BeyondAvailable(_) => "size is greater than available space",
            _ => return of_dataset(e),
        },
        _ => return of_dataset(e),
    };
    ApiError::with(ErrorCode::PropSpace, why)
}

impl Pool {
    /// What is said of a new dataset that was to be mounted, where who made it may not have that
    /// done.
    async fn only_root_mounts(&self, name: &str, wanted: bool) -> Answer<Option<ApiError>> {
        let ds = self.zilla.by_name(name).await.map_err(of(name))?;
        if !wanted || self.types(&ds).await? != props::FS {
            return Ok(None);
        }
        let settings = Settings::of(&ds).await.map_err(of(name))?;
        let mounts = matches!(settings.place(self), Mountpoint::At(_)) && settings.canmount() == CANMOUNT_ON;
        Ok(mounts.then(|| ErrorCode::Perm.into()))
    }

    /// What gets a place to be mounted at with a dataset that had none, deepest first: the dataset,
    /// and what is below it and inherits the place; not what is mounted only when somebody asks for
    /// it, and not what is locked.
    async fn first_places(&self, ds: &DatasetRef) -> Answer<Vec<String>> {
        let top = ds.dir();
        let (mut found, mut todo) = (Vec::new(), vec![top.clone()]);
        while let Some(dir) = todo.pop() {
            let head = dir.head().await.map_err(of_dataset)?;
            if self.types(&head).await? != props::FS {
                continue;
            }
            let settings = Settings::of(&head).await.map_err(of_dataset)?;
            if dir.id() != top.id() && settings.is_own("mountpoint") {
                continue;
            }
            let locked = head.is_locked().await.map_err(of_dataset)?;
            if settings.canmount() == CANMOUNT_ON && !locked {
                found.push(head.name());
            }
            todo.extend(dir.children().await.map_err(of_dataset)?);
        }
        found.reverse();
        Ok(found)
    }

    async fn types(&self, ds: &DatasetRef) -> Answer<Types> {
        if ds.is_snapshot() {
            return Ok(props::SNAP);
        }
        Ok(if ds.is_volume().await.map_err(of_dataset)? { props::VOL } else { props::FS })
    }

    /// Sets properties in one txg, and tells mounted file systems. Returns those that heed them
    /// only when they are mounted anew.
    pub async fn change_props(&self, name: &str, settings: Settled) -> Answer<Vec<String>> {
        let changed: Vec<String> = settings.iter().map(|(name, _)| name.clone()).collect();
        let ds = self.zilla.by_name(name).await.map_err(of(name))?;
        ds.set_properties(settings).await.map_err(unsettable)?;
        if ds.is_snapshot() {
            return Ok(Vec::new());
        }
        self.refresh_volumes().await.map_err(of_dataset)?;
        self.refresh_mounts(&ds.dir(), &changed).await.map_err(of_dataset)
    }
}

impl Pool {
    /// Whether what a new dataset would inherit from is encrypted.
    pub(super) async fn encrypted_above(&self, name: &str) -> bool {
        let Some((parent, _)) = name.rsplit_once('/') else { return false };
        // With `-p` the nearest that is there counts.
        let mut at = parent;
        loop {
            match self.zilla.dir_by_name(at).await {
                Ok(dir) => return dir.is_encrypted().await.unwrap_or(false),
                Err(_) => match at.rsplit_once('/') {
                    Some((up, _)) => at = up,
                    None => return false,
                },
            }
        }
    }

    /// Only an encryption root has a place where its key is looked for.
    async fn key_location_check(&self, ds: &DatasetRef, location: &str) -> Answer<()> {
        let bad = |what: &str| Err(ApiError::with(ErrorCode::BadProp, what));
        let dir = ds.dir();
        match dir.encryption_root().await.map_err(of_dataset)? {
            None if location != "none" => bad("keylocation must be 'none' for unencrypted datasets"),
            Some(_) if location == "none" => bad("keylocation must not be 'none' for encrypted datasets"),
            Some(root) if root.id() != dir.id() => bad("keylocation may only be set on encryption roots"),
            Some(_) => super::keys::check_location(Some(location)),
            None => Ok(()),
        }
    }
}
