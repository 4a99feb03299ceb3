//! Disks that go bad under a pool at work: sectors that rot or hold what they held before, writes
//! that fail everywhere for a while, at random, over several imports that end in an export or a
//! power cut.
//!
//! Whatever is spoiled is forgotten in memory at once, so that the next who needs it meets it on
//! the disk: reads, syncs that need a base, frees, scrubs, snapshots, replay, import.
//!
//! What must be true: the pool is never suspended but by writes that fail everywhere, and is
//! resumed with nothing lost. With redundancy left nothing is lost or refused. Without it exactly
//! the records that were hurt may say EIO; no read gives other bytes than were written; what is
//! written into a hurt record can be read, also after a crash; and all else that was synced, or
//! logged by an fsync, is there after it.

use super::layout::{Layout, POOL, find, import};
use super::run::open_fs;
use super::verify::audit;
use crate::{CrashPolicy, DiskFaults, Sim, SimRng, Survivors};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla_core::dmu::resident;
use zilla_core::dsl::DslPool;
use zilla_core::error::Result;
use zilla_core::spa::Spa;
use zilla_core::txg::Tx;
use zilla_core::types::ObjectId;
use zilla_core::zpl::{Cred, NewFile, SetAttr, Zfs};
use zilla_env::BoxFuture;
use zilla_ondisk::enums::PoolState;

/// As the workloads' file systems have it.
pub(super) const RECORD: u64 = 16 << 10;
const FILES: u64 = 6;
const RECORDS: u64 = 6;
/// Where data begin on a disk: after two labels and the boot area.
pub(super) const DATA: u64 = 4 << 20;
/// How far into a disk there is anything.
const REACH: u64 = 8 << 20;
/// Imports of one pool.
const LIVES: u32 = 3;
const SNAPSHOTS: usize = 3;

#[derive(Clone, Default)]
pub(super) struct File {
    pub(super) id: u64,
    pub(super) bytes: Vec<u8>,
    /// Records whose block on the only disk was damaged and not written whole since.
    hurt: BTreeSet<u64>,
    /// Its block of pointers was, and the file not emptied since: nothing of it need be readable.
    rootless: bool,
    /// What was written into hurt records since.
    written: BTreeMap<u64, (u64, u64)>,
}

impl File {
    fn is_hurt(&self, record: u64) -> bool {
        self.rootless || self.hurt.contains(&record)
    }

    fn is_whole(&self) -> bool {
        !self.rootless && self.hurt.is_empty()
    }

    /// Bytes `from..to` became zeroes, and whole records of them holes.
    fn cleared(&mut self, from: u64, to: u64) {
        let (first, last) = (from.div_ceil(RECORD), to / RECORD);
        self.hurt.retain(|r| !(first..last).contains(r));
        self.written.retain(|_, (at, len)| *at + *len <= from || *at >= to);
    }
}

type Files = BTreeMap<u64, File>;

pub(super) struct Hurt<'a> {
    sim: &'a Sim,
    rng: SimRng,
    layout: Layout,
    pub(super) spa: Arc<Spa>,
    pub(super) zfs: Arc<Zfs>,
    pub(super) files: Files,
    snapshots: BTreeMap<String, Files>,
    /// The first of the disks that go bad. Others follow once a scrub has repaired these.
    victim: usize,
    serial: u64,
    /// Not all of the pool's own objects are in memory: what the sync of a suspended pool needs of
    /// them may not be read, and a sync that cannot read it gives its txg up.
    cold: bool,
}

/// What outlives an import.
#[derive(Default)]
struct Known {
    files: Files,
    snapshots: BTreeMap<String, Files>,
    victim: usize,
    serial: u64,
}

pub(super) type Outcome<T = ()> = Result<T, String>;

pub(super) fn text(what: &str) -> impl Fn(zilla_core::error::Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

/// One pool, so many steps in several imports, and what comes back each time.
pub fn hurt_run(seed: u64, layout: Layout, steps: u32) -> Outcome {
    let mut rng = SimRng::new(seed, "lives");
    let mut known = Known::default();
    let mut left: Option<Survivors> = None;
    for life in 0..=LIVES {
        let sim = match left.take() {
            Some(left) => left.boot(seed + 1000 * u64::from(life)),
            None => {
                let sim = Sim::new(seed);
                layout.add_disks(&sim);
                sim
            }
        };
        let lived = sim.try_block_on(async {
            let mut w =
                Hurt::open(&sim, layout, known, SimRng::new(seed + 77 * u64::from(life), "hurt")).await?;
            if life == LIVES {
                w.spa.sync().await.map_err(text("the last sync"))?;
                w.check_all().await?;
                if layout.redundancy() > 0 {
                    audit(&w.spa, true, true).await?;
                }
                return Ok(w.known());
            }
            for _ in 0..steps / LIVES {
                w.step().await?;
                if let Some(e) = w.spa.suspended() {
                    return Err(format!("the pool is suspended: {e}"));
                }
            }
            w.end(rng.one_in(2)).await?;
            Ok::<_, String>(w.known())
        });
        known = lived.map_err(|stuck| stuck.to_string())?.map_err(|e| format!("import {life}: {e}"))?;
        left = Some(sim.power_off(CrashPolicy::LoseAll, seed));
    }
    Ok(())
}

impl<'a> Hurt<'a> {
    /// What was held is in the log, of which the replay holds it again.
    async fn open(sim: &'a Sim, layout: Layout, known: Known, rng: SimRng) -> Outcome<Hurt<'a>> {
        let env = sim.env();
        let Known { files, snapshots, victim, serial } = known;
        let fresh = files.is_empty();
        let spa = if fresh {
            layout.create(&env).await.map_err(text("create"))?
        } else {
            let found = find(&env).await.map_err(text("looking for pools"))?.ok_or("there is no pool")?;
            import(&env, &found, false).await.map_err(text("import"))?
        };
        let zfs = open_fs(&env, &spa, POOL).await.map_err(text("open"))?;
        let mut w = Hurt { sim, rng, layout, spa, zfs, files, snapshots, victim, serial, cold: !fresh };
        if fresh {
            for n in 0..FILES {
                w.make(n, RECORDS).await?;
            }
        }
        if let Some(why) = w.zfs.kept_log() {
            return Err(format!("the log was not replayed: {why}"));
        }
        w.check_all().await?;
        Ok(w)
    }

    fn known(self) -> Known {
        Known { files: self.files, snapshots: self.snapshots, victim: self.victim, serial: self.serial }
    }

    /// A pool of which every disk is `sim`'s, with nothing done yet.
    pub(super) async fn fresh(
        sim: &'a Sim,
        env: &zilla_env::Env,
        layout: Layout,
        rng: SimRng,
    ) -> Outcome<Hurt<'a>> {
        let spa = layout.create(env).await.map_err(text("create"))?;
        let zfs = open_fs(env, &spa, POOL).await.map_err(text("open"))?;
        let (files, snapshots) = (Files::new(), BTreeMap::new());
        Ok(Hurt { sim, rng, layout, spa, zfs, files, snapshots, victim: 0, serial: 0, cold: false })
    }

    pub(super) fn noise(&mut self, len: u64) -> Vec<u8> {
        let mut out = vec![0; len as usize];
        self.rng.fill(&mut out);
        out
    }

    pub(super) async fn make(&mut self, n: u64, records: u64) -> Outcome {
        let new = NewFile::new(0o100644, Cred::default());
        let made = self.zfs.create(self.zfs.root(), format!("f{n}").as_bytes(), new).await;
        let id = made.map_err(text("create a file"))?.0.id();
        let bytes = self.noise(RECORD * records);
        self.zfs.write(id, 0, &bytes.clone().into(), false).await.map_err(text("fill a file"))?;
        self.files.insert(n, File { id, bytes, ..File::default() });
        Ok(())
    }

    async fn step(&mut self) -> Outcome {
        let n = self.rng.below(FILES);
        match self.rng.below(24) {
            0..5 => self.damage(n).await,
            5..10 => self.write(n).await,
            10 => self.fsync(n).await,
            11 | 12 => {
                self.spa.sync().await.map_err(text("sync"))?;
                self.check_file(n).await
            }
            13 => self.check_file(n).await,
            14 => {
                let name = format!("f{n}");
                self.zfs.unlink(self.zfs.root(), name.as_bytes()).await.map_err(text("unlink"))?;
                self.make(n, RECORDS).await
            }
            15 if !self.cold => self.outage().await,
            16 | 17 => self.truncate(n).await,
            18 => self.punch(n).await,
            19 => self.rename(n).await,
            20 => self.snapshot().await,
            21 => self.scrub().await,
            22 => self.check_all().await,
            _ => {
                self.sim.env().sleep(Duration::from_secs(self.rng.below(40))).await;
                Ok(())
            }
        }
    }

    /// Spoils a block of a file on the only disk, or anything on as many disks as may be spoiled.
    async fn damage(&mut self, n: u64) -> Outcome {
        if self.layout.redundancy() > 0 {
            for _ in 0..1 + self.rng.below(20) {
                let which = self.rng.below(self.layout.redundancy() as u64) as usize;
                let disk = (self.victim + which) % self.layout.disks();
                let (at, len) = (DATA + self.rng.below(REACH), 512 + self.rng.below(40_000));
                self.spoil(disk, at, len);
            }
            self.forget();
            return Ok(());
        }
        // As of the disk: a block that is not there yet cannot be hurt.
        self.spa.sync().await.map_err(text("sync before damage"))?;
        self.damage_synced(n).await
    }

    /// Spoils a block as of the last txg.
    async fn damage_synced(&mut self, n: u64) -> Outcome {
        let records = (self.files[&n].bytes.len() as u64).div_ceil(RECORD);
        if records == 0 {
            return Ok(());
        }
        let (record, root) = (self.rng.below(records), self.rng.one_in(6));
        let id = ObjectId(self.files[&n].id);
        let found = async {
            let ds = self.spa.dsl.by_name(POOL).await?;
            let dn = self.spa.dsl.objset(&ds).await?.hold_wait(id).await?;
            let phys = dn.phys();
            if root {
                return Ok(phys.blkptr.first().copied().filter(|_| phys.nlevels == 2));
            }
            resident(|| dn.block_pointer(record)).await
        };
        let found = match found.await {
            // Its pointers were hurt before.
            Err(_) if self.files[&n].rootless => return Ok(()),
            found => found.map_err(text("looking for a block"))?,
        };
        let Some(bp) = found.filter(|bp| !bp.is_hole() && !bp.is_embedded()) else { return Ok(()) };
        let sector = self.rng.below(bp.psize() / 512);
        for dva in bp.dvas() {
            self.spoil(0, DATA + dva.offset + 512 * sector, 512);
        }
        let all = self.snapshots.values_mut().filter_map(|s| s.values_mut().find(|f| f.id == id.0));
        for f in self.files.get_mut(&n).into_iter().chain(all) {
            if root {
                f.rootless = true;
            } else {
                f.hurt.insert(record);
            }
        }
        self.forget();
        Ok(())
    }

    fn forget(&mut self) {
        self.spa.drop_caches();
        self.cold = true;
    }

    /// Noise, or what stands elsewhere on the disk: a write that was lost, or went astray.
    fn spoil(&mut self, disk: usize, at: u64, len: u64) {
        let Some(disk) = self.sim.disk(Layout::path(disk)) else { return };
        let mut bytes = self.noise(len);
        if self.rng.one_in(2) {
            disk.snapshot().read(DATA + self.rng.below(2 << 20), &mut bytes);
        }
        disk.damage(at, &bytes);
    }

    async fn write(&mut self, n: u64) -> Outcome {
        let whole = self.rng.one_in(3);
        let record = self.rng.below(RECORDS);
        let (off, len) = if whole {
            (0, RECORD)
        } else {
            let off = self.rng.below(RECORD - 1);
            (off, 1 + self.rng.below((RECORD - off).min(3000)))
        };
        let data = self.noise(len);
        let Some(f) = self.files.get_mut(&n) else { return Ok(()) };
        let at = record * RECORD + off;
        let end = (at + len) as usize;
        let size = f.bytes.len().max(end);
        f.bytes.resize(size, 0);
        f.bytes[at as usize..end].copy_from_slice(&data);
        if len == RECORD && !f.rootless {
            f.hurt.remove(&record);
            f.written.remove(&record);
        } else if f.is_hurt(record) {
            f.written.insert(record, (at, len));
        }
        self.zfs.write(f.id, at, &Bytes::from(data), false).await.map(drop).map_err(text("write"))
    }

    async fn fsync(&mut self, n: u64) -> Outcome {
        let f = &self.files[&n];
        match self.zfs.fsync(f.id).await {
            Err(e) if f.is_whole() => Err(format!("fsync of f{n}, which is whole: {e}")),
            _ => Ok(()),
        }
    }

    async fn truncate(&mut self, n: u64) -> Outcome {
        let most = RECORDS * RECORD;
        let size = if self.rng.one_in(4) { 0 } else { self.rng.below(most) };
        let Some(f) = self.files.get_mut(&n) else { return Ok(()) };
        let old = f.bytes.len() as u64;
        f.bytes.resize(size as usize, 0);
        if size < old {
            f.cleared(size, u64::MAX);
        }
        f.rootless &= size > 0;
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.zfs.setattr(f.id, set).await.map(drop).map_err(text("truncate"))
    }

    async fn punch(&mut self, n: u64) -> Outcome {
        let (from, len) = (self.rng.below(RECORDS * RECORD), 1 + self.rng.below(3 * RECORD));
        let Some(f) = self.files.get_mut(&n) else { return Ok(()) };
        let to = (from + len).min(f.bytes.len() as u64);
        if from < to {
            f.bytes[from as usize..to as usize].fill(0);
            f.cleared(from, to);
        }
        self.zfs.punch(f.id, from, len, false, false).await.map_err(text("punch"))
    }

    /// Two files change names: a directory's block is read and written.
    async fn rename(&mut self, n: u64) -> Outcome {
        let other = (n + 1 + self.rng.below(FILES - 1)) % FILES;
        let (zfs, root) = (self.zfs.clone(), self.zfs.root());
        let [a, b] = [n, other].map(|n| format!("f{n}"));
        let flags = zilla_core::zpl::RenameFlags { exchange: true, ..Default::default() };
        let done = zfs.rename(root, a.as_bytes(), root, b.as_bytes(), flags, Cred::default()).await;
        done.map_err(text("rename"))?;
        if let (Some(x), Some(y)) = (self.files.remove(&n), self.files.remove(&other)) {
            self.files.insert(n, y);
            self.files.insert(other, x);
        }
        Ok(())
    }

    async fn task<F>(&self, f: F) -> Result<()>
    where
        F: FnOnce(Arc<DslPool>, Tx) -> BoxFuture<'static, Result<()>> + Send + 'static,
    {
        let dsl = self.spa.dsl.clone();
        self.spa.ctx.sync_task(move |tx| f(dsl, tx)).await
    }

    async fn snapshot(&mut self) -> Outcome {
        if self.snapshots.len() == SNAPSHOTS {
            let Some((name, _)) = self.snapshots.pop_first() else { return Ok(()) };
            let names = [format!("{POOL}@{name}")];
            let gone = self
                .task(move |d, tx| Box::pin(async move { d.destroy_snapshots(&tx, &names, false).await }));
            return gone.await.map_err(text("destroy a snapshot"));
        }
        self.serial += 1;
        let name = format!("s{:04}", self.serial);
        let names = [format!("{POOL}@{name}")];
        let made = self.task(move |d, tx| Box::pin(async move { d.snapshot(&tx, &names).await.map(drop) }));
        made.await.map_err(text("snapshot"))?;
        let mut files = self.files.clone();
        // What is held is in memory only.
        files.values_mut().for_each(|f| f.written.clear());
        self.snapshots.insert(name, files);
        Ok(())
    }

    /// A scrub goes through to its end. With redundancy it repairs all there is, so that other
    /// disks may go bad.
    async fn scrub(&mut self) -> Outcome {
        self.spa.sync().await.map_err(text("sync before a scrub"))?;
        let scan = self.spa.scan().map_err(text("scan"))?.clone();
        if scan.is_scanning() {
            return Ok(());
        }
        scan.start().await.map_err(text("scrub"))?;
        scan.wait().await;
        self.spa.sync().await.map_err(text("sync after a scrub"))?;
        if self.layout.redundancy() == 0 {
            return self.check_all().await;
        }
        audit(&self.spa, true, false).await.map_err(|e| format!("after a scrub: {e}"))?;
        self.victim = self.rng.below(self.layout.disks() as u64) as usize;
        Ok(())
    }

    /// All writes fail for a while, with something on its way; then the pool is cleared.
    async fn outage(&mut self) -> Outcome {
        self.write(0).await?;
        let disks: Vec<_> = (0..self.layout.disks()).filter_map(|i| self.sim.disk(Layout::path(i))).collect();
        disks.iter().for_each(|d| d.set_faults(DiskFaults { write: 1, ..DiskFaults::default() }));
        let (env, spa, over) = (self.sim.env(), self.spa.clone(), Arc::new(AtomicBool::new(false)));
        let flag = over.clone();
        let sync = env.spawn_with_result(async move {
            let result = spa.sync().await;
            flag.store(true, Ordering::Relaxed);
            result
        });
        let mut waited = 0;
        while self.spa.suspended().is_none() && waited < 100 && !over.load(Ordering::Relaxed) {
            env.sleep(Duration::from_millis(100)).await;
            waited += 1;
        }
        disks.iter().for_each(|d| d.set_faults(DiskFaults::default()));
        self.spa.clear(None).await.map_err(text("clear"))?;
        sync.await.map_err(text("the sync that had to wait"))?;
        self.forget();
        self.check_all().await
    }

    /// The pool is exported, or loses power with something in its log and blocks gone bad that the
    /// log is about.
    async fn end(&mut self, export: bool) -> Outcome {
        self.spa.sync().await.map_err(text("the last sync"))?;
        self.check_all().await?;
        if export {
            return self.spa.close(Some(PoolState::Exported)).await.map_err(text("export"));
        }
        for _ in 0..4 {
            let n = self.rng.below(FILES);
            self.write(n).await?;
            let f = &self.files[&n];
            match self.zfs.fsync(f.id).await {
                Ok(()) => {}
                Err(e) if f.is_whole() => return Err(format!("fsync of f{n}, which is whole: {e}")),
                // Then nobody was told that any of it is there.
                Err(_) => {
                    if let Some(f) = self.files.get_mut(&n) {
                        f.rootless = true;
                        f.written.clear();
                    }
                }
            }
            if self.layout.redundancy() == 0 && self.rng.one_in(2) {
                self.damage_synced(n).await?;
            }
        }
        Ok(())
    }

    async fn check_all(&mut self) -> Outcome {
        for n in 0..FILES {
            self.check_file(n).await?;
        }
        for (name, files) in &self.snapshots {
            let zfs = open_fs(&self.sim.env(), &self.spa, &format!("{POOL}@{name}")).await;
            let zfs = zfs.map_err(text("open a snapshot"))?;
            for (n, f) in files {
                compare(&zfs, f).await.map_err(|e| format!("f{n} of snapshot {name}{e}"))?;
            }
        }
        Ok(())
    }

    pub(super) async fn check_file(&mut self, n: u64) -> Outcome {
        compare(&self.zfs, &self.files[&n]).await.map_err(|e| format!("f{n}{e}"))
    }
}

async fn compare(zfs: &Arc<Zfs>, f: &File) -> Outcome {
    let size = zfs.getattr(f.id).await.map_err(text(": getattr"))?.size;
    if size != f.bytes.len() as u64 {
        return Err(format!(" has {size} bytes, should have {}", f.bytes.len()));
    }
    for record in 0..size.div_ceil(RECORD) {
        let at = record * RECORD;
        let end = (at + RECORD).min(size) as usize;
        match zfs.read(f.id, at, RECORD as usize).await {
            Ok(data) if data.concat() == f.bytes[at as usize..end] => {}
            Ok(_) => return Err(format!(" record {record}: other bytes than were written")),
            Err(_) if f.is_hurt(record) => {}
            Err(e) => return Err(format!(" record {record}, which is whole: {e}")),
        }
        let Some(&(at, len)) = f.written.get(&record) else { continue };
        match zfs.read(f.id, at, len as usize).await {
            Ok(data) if data.concat() == f.bytes[at as usize..(at + len) as usize] => {}
            Ok(_) => return Err(format!(" record {record}: what was written is not there")),
            Err(e) => return Err(format!(" record {record}: what was written is lost: {e}")),
        }
    }
    Ok(())
}
