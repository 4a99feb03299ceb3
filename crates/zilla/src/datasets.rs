//! Datasets and snapshots for programs that embed zilla, by their names.
//!
//! A [`Dataset`] or [`Snapshot`] is a name in a pool, looked up anew by each operation: it does not
//! keep the dataset from being destroyed or renamed, and finds none then (ENOENT). What is opened
//! through it does keep it. Each change is one sync task, there whole or not at all, and stable
//! when the call returns.

use crate::files::Files;
use crate::make::auto;
use crate::pool::Pool;
use crate::props::{Property, parsed, property, refused};
use crate::volume::Volume;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use zilla_control::props::{FS, SNAP, Types, VOL, naming};
use zilla_core::dsl::{DatasetInfo, DslDataset, DslPool, Setting};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::txg::Tx;
use zilla_core::zap::Value;
use zilla_core::zpl::Cred;
use zilla_ondisk::enums::ObjsetType;

/// A snapshot of this very txg may be in the way, or a file that is being closed.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// What a dataset is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatasetKind {
    /// Files.
    Filesystem,
    /// A block volume.
    Volume,
}

/// A file system or volume of a pool.
///
/// ```
/// use zilla::{NewPool, NewVdev, Pool, Source};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let folder = tempfile::tempdir()?;
/// # let disk = folder.path().join("a.img");
/// # std::fs::File::create(&disk)?.set_len(128 << 20)?;
/// # let env = zilla_env::real_env(2);
/// # let run = env.clone();
/// # env.block_on(async move {
/// # let pool = Pool::create(&run, NewPool::new("tank").vdev(NewVdev::single(&disk))).await?;
/// let home = pool.create_filesystem("tank/home", &[("recordsize", "1M")]).await?;
/// home.set(&[("compression", "zstd"), ("org.example:owner", "me")]).await?;
/// let compression = home.get("compression").await?.expect("a property");
/// assert_eq!((compression.value.as_str(), compression.source), ("zstd", Source::Local));
///
/// home.files().await?.write("/note", "first").await?;
/// let snapshot = home.snapshot("monday").await?;
/// home.files().await?.write("/note", "second").await?;
/// assert_eq!(snapshot.files().await?.read("/note").await?, b"first");
///
/// let copy = snapshot.clone_to("tank/copy", &[]).await?;
/// assert_eq!(copy.files().await?.read("/note").await?, b"first");
/// copy.destroy().await?;
/// home.rollback("monday").await?;
/// assert_eq!(home.files().await?.read("/note").await?, b"first");
/// # pool.export().await?;
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Clone)]
pub struct Dataset {
    pool: Pool,
    name: String,
    kind: DatasetKind,
}

/// A snapshot of a file system or volume.
///
/// ```
/// use bytes::Bytes;
/// use zilla::streams::{ReceiveOpts, RecordReader, SendOpts, Special};
/// use zilla::{NewPool, NewVdev, Pool};
/// use zilla_ondisk::stream::Record;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let folder = tempfile::tempdir()?;
/// # let disk = folder.path().join("a.img");
/// # std::fs::File::create(&disk)?.set_len(128 << 20)?;
/// # let env = zilla_env::real_env(2);
/// # let run = env.clone();
/// # env.block_on(async move {
/// # let pool = Pool::create(&run, NewPool::new("tank").vdev(NewVdev::single(&disk))).await?;
/// let home = pool.create_filesystem("tank/home", &[]).await?;
/// home.files().await?.write("/note", "first").await?;
/// let monday = home.snapshot("monday").await?;
/// home.files().await?.write("/note", "second").await?;
/// assert_eq!(monday.files().await?.read("/note").await?, b"first");
///
/// // As a stream, which may go anywhere, and back.
/// let mut stream = Vec::new();
/// let sent = pool.by_name("tank/home@monday").await?;
/// sent.send(&SendOpts::default(), &Special::default(), &mut stream).await?;
/// let mut source = Bytes::from(stream);
/// let mut reader = RecordReader::new(&mut source);
/// let Some((Record::Begin(begin), payload)) = reader.begin().await? else { panic!("no stream") };
/// let to = ReceiveOpts { fs: "tank/copy".into(), snap: "monday".into(), ..ReceiveOpts::default() };
/// let mut receiving = pool.receive(begin, &payload, to).await?;
/// receiving.records(&mut reader).await?;
/// receiving.end().await?;
/// let copy = pool.dataset("tank/copy").await?;
/// assert_eq!(copy.files().await?.read("/note").await?, b"first");
/// # pool.export().await?;
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Clone)]
pub struct Snapshot {
    pool: Pool,
    name: String,
    kind: DatasetKind,
}

impl DatasetKind {
    fn types(self) -> Types {
        match self {
            DatasetKind::Filesystem => FS,
            DatasetKind::Volume => VOL,
        }
    }
}

/// Runs a change, again if what stands in its way is about to go.
pub(crate) async fn change<F>(pool: &Pool, passing: &[Errno], op: F) -> Result<()>
where
    F: Fn(Arc<DslPool>, Tx) -> BoxFuture<'static, Result<()>> + Clone + Send + Sync + 'static,
{
    let mut tries = TRIES;
    loop {
        let op = op.clone();
        match pool.task(op).await {
            Err(e) if passing.iter().any(|errno| e.is(*errno)) && tries > 0 => tries -= 1,
            done => return done,
        }
        pool.env().sleep(PAUSE).await;
    }
}

async fn kind_of(pool: &Pool, ds: &DslDataset) -> Result<DatasetKind> {
    match pool.dsl().os_type(ds).await? {
        n if n == ObjsetType::Zvol.number() => Ok(DatasetKind::Volume),
        _ => Ok(DatasetKind::Filesystem),
    }
}

impl Dataset {
    pub(crate) async fn open(pool: &Pool, name: &str) -> Result<Dataset> {
        naming::check_dataset_name(name, FS | VOL, false).map_err(refused)?;
        let ds = pool.dsl().by_name(name).await?;
        let kind = kind_of(pool, &ds).await?;
        Ok(Dataset { pool: pool.clone(), name: name.to_owned(), kind })
    }

    /// The whole name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A file system or a volume.
    pub fn kind(&self) -> DatasetKind {
        self.kind
    }

    async fn ds(&self) -> Result<Arc<DslDataset>> {
        self.pool.dsl().by_name(&self.name).await
    }

    /// Sizes and numbers of it.
    pub async fn info(&self) -> Result<DatasetInfo> {
        self.pool.dsl().info(&self.ds().await?).await
    }

    /// A property that can be set; None if there is none of that name.
    pub async fn get(&self, name: &str) -> Result<Option<Property>> {
        property(self.pool.dsl(), &*self.ds().await?, name).await
    }

    /// Sets properties, all or none. What is open of this dataset, or of one that inherits them,
    /// feels them when this returns.
    pub async fn set(&self, properties: &[(&str, &str)]) -> Result<()> {
        let mut settings = parsed(properties, self.kind.types(), false)?;
        if settings.iter().any(|(name, _)| matches!(name.as_str(), "volsize" | "version" | "keylocation")) {
            return Err(Error::os(Errno::NotSup, "that is not a matter of properties alone"));
        }
        for (_, value) in settings.iter_mut().filter(|(n, v)| n == "refreservation" && *v == auto()) {
            let volume = self.volume().await?;
            let all = self.pool.volume_reservation(volume.size()?, volume.block_size()?, 1);
            *value = Setting::Local(Value::u64(all));
        }
        self.settle(settings).await
    }

    /// Takes back what was set, so that it has what the dataset above it has.
    pub async fn inherit(&self, name: &str) -> Result<()> {
        zilla_control::props::check_inherit(name, false).map_err(refused)?;
        self.settle(vec![(name.to_owned(), Setting::Inherit)]).await
    }

    async fn settle(&self, settings: crate::make::Settings) -> Result<()> {
        let (pool, name) = (self.pool.clone(), self.name.clone());
        // In a task, so that what is set is also felt where nobody waits any more.
        let settled = self.pool.env().spawn_with_result(async move {
            pool.task(move |dsl, tx| {
                Box::pin(async move { dsl.set_props(&tx, &dsl.by_name(&name).await?, &settings).await })
            })
            .await?;
            pool.heed().await
        });
        settled.await
    }

    /// Its files, in root's name.
    pub async fn files(&self) -> Result<Files> {
        self.files_as(Cred { uid: 0, gid: 0 }).await
    }

    /// Its files; what is made is this owner's.
    pub async fn files_as(&self, cred: Cred) -> Result<Files> {
        Ok(Files::new(self.pool.open_files(&self.name).await?, cred))
    }

    /// A volume's bytes.
    pub async fn volume(&self) -> Result<Arc<Volume>> {
        self.pool.open_volume(&self.name).await
    }

    /// Takes a snapshot.
    pub async fn snapshot(&self, name: &str) -> Result<Snapshot> {
        let full = format!("{}@{name}", self.name);
        self.pool.snapshot(&[&full]).await?;
        Snapshot::open(&self.pool, &full).await
    }

    /// Its snapshots, the oldest first.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let all = self.pool.dsl().snapshots(&*self.ds().await?).await?;
        let one = |s: &Arc<DslDataset>| Snapshot { pool: self.pool.clone(), name: s.name(), kind: self.kind };
        Ok(all.iter().map(one).collect())
    }

    /// Goes back to its newest snapshot, whose name is said so that nothing else is lost. EBUSY: it
    /// is open; EEXIST: there is a later one. Once begun it goes to its end, also if this future is
    /// dropped.
    pub async fn rollback(&self, to: &str) -> Result<()> {
        let (fs, to) = (self.name.clone(), format!("{}@{to}", self.name));
        let turn = self.pool.turn().await?;
        turn.run(move |pool| async move {
            let id = pool.dsl().by_name(&fs).await?.id();
            pool.unused(Some(id)).await?;
            change(&pool, &[Errno::Again, Errno::Busy], move |dsl, tx| {
                let (fs, to) = (fs.clone(), to.clone());
                Box::pin(async move { dsl.rollback(&tx, &fs, Some(&to)).await })
            })
            .await
        })
        .await
    }

    /// Gives it another name in the same pool, with all that is below it.
    pub async fn rename(&mut self, to: &str) -> Result<()> {
        naming::check_dataset_name(to, self.kind.types(), true).map_err(refused)?;
        let (from, new) = (self.name.clone(), to.to_owned());
        self.pool.task(move |dsl, tx| Box::pin(async move { dsl.rename(&tx, &from, &new).await })).await?;
        to.clone_into(&mut self.name);
        Ok(())
    }

    /// Destroys it. EBUSY: it is open; EEXIST: it has snapshots, or datasets below it. Once begun
    /// it goes to its end, also if this future is dropped.
    pub async fn destroy(self) -> Result<()> {
        let name = self.name.clone();
        let turn = self.pool.turn().await?;
        turn.run(move |pool| async move {
            let id = pool.dsl().by_name(&name).await?.id();
            pool.unused(Some(id)).await?;
            change(&pool, &[Errno::Busy], move |dsl, tx| {
                let name = name.clone();
                Box::pin(async move {
                    // To the engine that is EBUSY too, but waiting does not help.
                    let ds = dsl.by_name(&name).await?;
                    if !dsl.snapshots(&ds).await?.is_empty() {
                        return Err(Error::os(Errno::Exist, format!("'{name}' has snapshots")));
                    }
                    dsl.destroy_head(&tx, &name).await
                })
            })
            .await
        })
        .await
    }
}

impl Snapshot {
    pub(crate) async fn open(pool: &Pool, name: &str) -> Result<Snapshot> {
        naming::check_dataset_name(name, SNAP, false).map_err(refused)?;
        let ds = pool.dsl().by_name(name).await?;
        Ok(Snapshot { pool: pool.clone(), name: name.to_owned(), kind: kind_of(pool, &ds).await? })
    }

    /// The whole name, `tank/home@monday`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sizes and numbers of it.
    pub async fn info(&self) -> Result<DatasetInfo> {
        let ds = self.pool.dsl().by_name(&self.name).await?;
        self.pool.dsl().info(&ds).await
    }

    /// The files as they were.
    pub async fn files(&self) -> Result<Files> {
        Ok(Files::new(self.pool.open_files(&self.name).await?, Cred { uid: 0, gid: 0 }))
    }

    /// The volume's bytes as they were.
    pub async fn volume(&self) -> Result<Arc<Volume>> {
        self.pool.open_volume(&self.name).await
    }

    /// Makes a dataset that begins with what the snapshot has, and shares its blocks.
    pub async fn clone_to(&self, name: &str, properties: &[(&str, &str)]) -> Result<Dataset> {
        naming::check_dataset_name(name, self.kind.types(), true).map_err(refused)?;
        let settings = parsed(properties, self.kind.types(), false)?;
        self.pool.make_clone(&self.name, name, &self.pool.owner(), settings).await?;
        Dataset::open(&self.pool, name).await
    }

    /// Destroys it. EEXIST: it has clones; EBUSY: it is held, or open. Once begun it goes to its
    /// end, also if this future is dropped.
    pub async fn destroy(self) -> Result<()> {
        let names = vec![self.name.clone()];
        let turn = self.pool.turn().await?;
        turn.run(move |pool| async move {
            change(&pool, &[Errno::Busy], move |dsl, tx| {
                let names = names.clone();
                Box::pin(async move { dsl.destroy_snapshots(&tx, &names, false).await })
            })
            .await
        })
        .await
    }
}
