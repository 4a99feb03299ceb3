//! Changes to datasets by their names: snapshots, clones, renames, promotions, rollbacks, and the
//! end of datasets.
//!
//! Each is one txg's, and stable when the call returns. What is refused has changed nothing, but
//! for what has several names ([`Pool::destroy_named`]), which may take several txgs, too. None
//! looks whether what it changes is open somewhere beyond what the engine refuses; who serves
//! datasets to others sees to that first. [`Dataset`](crate::Dataset) and
//! [`Snapshot`](crate::Snapshot) do.

use crate::access::Who;
use crate::dataset::held;
use crate::error::{Errno, Error, Result};
use crate::make::{Maker, Settings, is_small};
use crate::pool::Pool;
use crate::tree::DatasetRef;
use zilla_core::dsl::{Limit, RECV_NAME};

impl Pool {
    /// Why a snapshot of this name cannot be taken.
    pub async fn snapshot_check(&self, name: &str) -> Result<()> {
        self.dsl().snapshot_check(name, None).await.map(drop)
    }

    /// Takes snapshots at the same moment, with properties. EAGAIN: there is one of this very txg;
    /// the next will do.
    pub async fn take_snapshots(&self, names: Vec<String>, settings: Settings, who: Who) -> Result<()> {
        self.task(move |dsl, tx| {
            Box::pin(async move {
                dsl.snapshot_limit_check(&names, &who).await?;
                dsl.settings_check(&settings)?;
                for snap in dsl.snapshot(&tx, &names).await? {
                    if !settings.is_empty() {
                        dsl.set_props(&tx, &snap, &settings).await?;
                    }
                }
                Ok(())
            })
        })
        .await
    }

    /// Makes a dataset that begins with what a snapshot has.
    pub async fn make_clone(
        &self,
        origin: &str,
        name: &str,
        maker: &Maker,
        settings: Settings,
    ) -> Result<()> {
        let (origin, made, maker, small) =
            (origin.to_owned(), name.to_owned(), maker.clone(), is_small(&settings));
        self.task(move |dsl, tx| {
            let name = made;
            Box::pin(async move {
                let parent = dsl.create_check(&name).await?;
                let referenced = dsl.by_name(&origin).await?.phys().referenced_bytes;
                dsl.new_props_check(&parent, &name, &settings, referenced)?;
                dsl.limit_check(&parent, 1, Limit::Filesystems, &maker.who, None).await?;
                let ds = dsl.clone_ds(&tx, &name, &origin).await?;
                dsl.grant_to_creator(&tx, &ds.dir(), maker.uid).await?;
                dsl.set_props(&tx, &ds, &settings).await
            })
        })
        .await?;
        if small { self.check_fits(name).await } else { Ok(()) }
    }

    /// Gives a file system or volume another name, with all that is below it.
    pub async fn rename_dataset(&self, old: &str, new: &str, who: Who) -> Result<()> {
        let (old, new) = (old.to_owned(), new.to_owned());
        self.task(move |dsl, tx| {
            Box::pin(async move {
                // Where there is none it is refused for that.
                if who != Who::Admin
                    && let Some((above, _)) = new.rsplit_once('/')
                    && let (Ok(dir), Ok(to)) = (dsl.dir_by_name(&old).await, dsl.dir_by_name(above).await)
                {
                    dsl.move_limit_check(&dir, &to, &who).await?;
                }
                dsl.rename(&tx, &old, &new).await
            })
        })
        .await
    }

    /// Gives a dataset's snapshot another name; `recursive`: those of the name below it too.
    pub async fn rename_snapshot(&self, fs: &str, old: &str, new: &str, recursive: bool) -> Result<()> {
        let (fs, old, new) = (fs.to_owned(), old.to_owned(), new.to_owned());
        self.task(move |dsl, tx| {
            Box::pin(async move { dsl.rename_snapshot(&tx, &fs, &old, &new, recursive).await })
        })
        .await
    }

    /// The names of snapshots that a clone has and would get once more by its promotion.
    pub async fn promote_conflicts(&self, clone: &str) -> Result<Vec<String>> {
        self.dsl().promote_conflicts(clone).await
    }

    /// Makes a clone what its origin's dataset is, and that a clone of it; so many snapshots
    /// (`count`) become the clone's, which may be beyond somebody's limit.
    pub async fn promote(&self, clone: &str, count: u64, who: Who) -> Result<()> {
        let name = clone.to_owned();
        self.task(move |dsl, tx| {
            Box::pin(async move {
                let clone = dsl.by_name(&name).await?.dir();
                dsl.promote_limit_check(&clone, count, &who).await?;
                dsl.promote(&tx, &name).await
            })
        })
        .await
    }

    /// Goes back to a dataset's newest snapshot. Whoever serves its files or its volume takes them
    /// away first. EAGAIN: try again in the next txg; EBUSY: somebody has it open.
    pub async fn roll_back(&self, fs: &str, to: &str) -> Result<()> {
        let (fs, to) = (fs.to_owned(), to.to_owned());
        self.task(move |dsl, tx| Box::pin(async move { dsl.rollback(&tx, &fs, Some(&to)).await })).await
    }

    /// Destroys datasets and snapshots in the order of their names here. Where one is refused,
    /// those before it are gone. It can be called again: datasets that are gone are passed over.
    /// `defer`: snapshots that are held or have clones go with the last hold or clone.
    pub async fn destroy_named(&self, names: Vec<String>, defer: bool) -> Result<()> {
        let mut left = names;
        while !left.is_empty() {
            let done = self.destroy_some(left.clone(), defer).await?;
            left.drain(..done);
        }
        Ok(())
    }

    /// Destroys the first of these, as many as a txg has room for, and says how many. What fails
    /// begins the next call, so that it is in a txg of its own, and nothing else half done with it.
    async fn destroy_some(&self, names: Vec<String>, defer: bool) -> Result<usize> {
        self.abort_left(&names).await?;
        self.task(move |dsl, tx| {
            Box::pin(async move {
                for (done, name) in names.iter().cloned().enumerate() {
                    if !dsl.may_destroy_more(done) {
                        return Ok(done);
                    }
                    // A try before this one may have come that far.
                    if let Err(e) = dsl.by_name(&name).await
                        && e.is(Errno::NoEnt)
                    {
                        continue;
                    }
                    let before = dsl.mos().changes();
                    let destroyed = match name.contains('@') {
                        true => dsl.destroy_snapshots(&tx, &[name], defer).await,
                        false => dsl.destroy_head(&tx, &name).await,
                    };
                    match destroyed {
                        Ok(()) => {}
                        Err(_) if done > 0 && dsl.mos().changes() == before => return Ok(done),
                        Err(e) => return Err(e),
                    }
                }
                Ok(names.len())
            })
        })
        .await
    }

    /// Takes away what interrupted receives have left below datasets that are to be destroyed.
    /// Nobody is shown it, and it is a clone of what goes.
    async fn abort_left(&self, names: &[String]) -> Result<()> {
        let mut left = Vec::new();
        for name in names.iter().filter(|n| !n.contains('@')) {
            match self.dsl().by_name(&format!("{name}/{RECV_NAME}")).await {
                Ok(found) => left.push(found),
                Err(e) if e.is(Errno::NoEnt) => {}
                Err(e) => return Err(e),
            }
        }
        for found in left {
            let names = names.to_vec();
            self.task(move |dsl, tx| {
                Box::pin(async move {
                    // It could still go on where what it is of cannot be destroyed.
                    for name in &names {
                        if dsl.by_name(name).await.is_ok_and(|ds| ds.is_long_held()) {
                            return Err(Error::os(Errno::Busy, format!("{name}: dataset is busy")));
                        }
                    }
                    dsl.recv_abort(&tx, &found).await
                })
            })
            .await?;
        }
        Ok(())
    }

    /// Releases the holds that were to end with the import before this one, as senders of OpenZFS
    /// make them.
    pub async fn release_temporary_holds(&self) -> Result<()> {
        self.dsl().release_temporary_holds().await
    }

    /// Destroys what interrupted receives that cannot go on have left, and says what that was.
    pub async fn destroy_inconsistent(&self) -> Result<Vec<String>> {
        self.dsl().destroy_inconsistent().await
    }
}

impl DatasetRef {
    /// Sets properties, all or none. What is open of the dataset does not feel them:
    /// [`Dataset::set`](crate::Dataset::set) sees to that.
    pub async fn set_properties(&self, settings: Settings) -> Result<()> {
        let (dsl, ds) = (self.dsl.clone(), self.ds.clone());
        let task = move |tx| -> futures_util::future::BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let _hold = held(&ds)?;
                dsl.set_props(&tx, &ds, &settings).await
            })
        };
        self.dsl.ctx().sync_task(task).await
    }
}
