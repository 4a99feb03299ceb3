//! Disks that go bad under a pool at work: sectors that rot or hold what they held before, writes that fail everywhere for a while,
//! at random, with a power cut at the end.
//!
//! What must be true: the pool is never suspended but by writes that fail everywhere, and is resumed with nothing lost. With redundancy
//! left nothing is lost or refused. Without it exactly the records that were hurt may say EIO; no read gives other bytes than were written;
//! what is written into a hurt record can be read at least until the crash; and all else that was synced is there after it.

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
use zilla_core::spa::Spa;
use zilla_core::types::ObjectId;
use zilla_core::zpl::{Cred, NewFile, Zfs};

/// As the workloads' file systems have it.
const RECORD: u64 = 16 << 10;
const FILES: u64 = 6;
const RECORDS: u64 = 6;
/// Where data begin on a disk: after two labels and the boot area.
const DATA: u64 = 4 << 20;

#[derive(Default)]
struct File {
    id: u64,
    bytes: Vec<u8>,
    /// Records whose block on the only disk was damaged and not written whole since.
    hurt: BTreeSet<u64>,
    /// What was written into those since.
    written: BTreeMap<u64, (u64, u64)>,
}

struct Hurt<'a> {
    sim: &'a Sim,
    rng: SimRng,
    layout: Layout,
    spa: Arc<Spa>,
    zfs: Arc<Zfs>,
    files: BTreeMap<u64, File>,
}

type Outcome = Result<(), String>;

fn text(what: &str) -> impl Fn(zilla_core::error::Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

/// One pool, so many steps, a crash, and what comes back.
pub fn hurt_run(seed: u64, layout: Layout, steps: u32) -> Outcome {
    let sim = Sim::new(seed);
    layout.add_disks(&sim);
    let worked = sim.try_block_on(async {
        let env = sim.env();
        let spa = layout.create(&env).await.map_err(text("create"))?;
        let zfs = open_fs(&env, &spa, POOL).await.map_err(text("open"))?;
        let rng = SimRng::new(seed, "hurt");
        let mut w = Hurt { sim: &sim, rng, layout, spa, zfs, files: BTreeMap::new() };
        for n in 0..FILES {
            w.make(n).await?;
        }
        for _ in 0..steps {
            w.step().await?;
            if let Some(e) = w.spa.suspended() {
                return Err(format!("the pool is suspended: {e}"));
            }
        }
        w.spa.sync().await.map_err(text("the last sync"))?;
        w.check_all().await?;
        Ok::<_, String>(w.files)
    });
    let files = worked.map_err(|stuck| stuck.to_string())??;
    let left: Survivors = sim.power_off(CrashPolicy::LoseAll, seed);
    let sim = left.boot(seed + 1);
    let checked = sim.try_block_on(async {
        let env = sim.env();
        let found = find(&env).await.map_err(text("looking for pools"))?.ok_or("there is no pool")?;
        let spa = import(&env, &found, false).await.map_err(text("import"))?;
        let zfs = open_fs(&env, &spa, POOL).await.map_err(text("open after the crash"))?;
        let rng = SimRng::new(seed, "after");
        let mut w = Hurt { sim: &sim, rng, layout, spa: spa.clone(), zfs, files };
        // What was held is gone with the crash; what the record says is an error.
        w.files.values_mut().for_each(|f| f.written.clear());
        w.check_all().await?;
        spa.sync().await.map_err(text("a sync after the crash"))?;
        if layout.redundancy() > 0 { audit(&spa, true, true).await } else { Ok(()) }
    });
    checked.map_err(|stuck| stuck.to_string())?
}

impl Hurt<'_> {
    fn noise(&mut self, len: u64) -> Vec<u8> {
        let mut out = vec![0; len as usize];
        self.rng.fill(&mut out);
        out
    }

    async fn make(&mut self, n: u64) -> Outcome {
        let new = NewFile::new(0o100644, Cred::default());
        let made = self.zfs.create(self.zfs.root(), format!("f{n}").as_bytes(), new).await;
        let id = made.map_err(text("create a file"))?.0.id();
        let bytes = self.noise(RECORD * RECORDS);
        self.zfs.write(id, 0, &bytes.clone().into(), false).await.map_err(text("fill a file"))?;
        self.files.insert(n, File { id, bytes, ..File::default() });
        Ok(())
    }

    async fn step(&mut self) -> Outcome {
        let n = self.rng.below(FILES);
        match self.rng.below(16) {
            0..4 => self.damage(n).await,
            4..9 => self.write(n).await,
            9 => self.fsync(n).await,
            10 | 11 => {
                self.spa.sync().await.map_err(text("sync"))?;
                self.check_file(n).await
            }
            12 => self.check_file(n).await,
            13 => {
                let name = format!("f{n}");
                self.zfs.unlink(self.zfs.root(), name.as_bytes()).await.map_err(text("unlink"))?;
                self.make(n).await
            }
            14 => self.outage().await,
            _ => {
                self.sim.env().sleep(Duration::from_secs(self.rng.below(40))).await;
                Ok(())
            }
        }
    }

    /// Spoils the block of a record on the only disk, or anything on as many disks as may be spoiled.
    async fn damage(&mut self, n: u64) -> Outcome {
        if self.layout.redundancy() > 0 {
            for _ in 0..1 + self.rng.below(20) {
                let victim = self.rng.below(self.layout.redundancy() as u64) as usize;
                let (at, len) = (DATA + self.rng.below(4 << 20), 512 + self.rng.below(8000));
                self.spoil(victim, at, len);
            }
            return Ok(());
        }
        let record = self.rng.below(RECORDS);
        // As of the disk: a block that is not there yet cannot be hurt.
        self.spa.sync().await.map_err(text("sync before damage"))?;
        let id = ObjectId(self.files[&n].id);
        let found = async {
            let ds = self.spa.dsl.by_name(POOL).await?;
            let dn = self.spa.dsl.objset(&ds).await?.hold_wait(id).await?;
            resident(|| dn.block_pointer(record)).await
        };
        let Some(bp) = found.await.map_err(text("looking for a block"))? else { return Ok(()) };
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        let sector = self.rng.below(bp.psize() / 512);
        self.spoil(0, DATA + bp.dva(0).offset + 512 * sector, 512);
        if let Some(f) = self.files.get_mut(&n) {
            f.hurt.insert(record);
        }
        Ok(())
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
        f.bytes[at as usize..(at + len) as usize].copy_from_slice(&data);
        if len == RECORD {
            f.hurt.remove(&record);
            f.written.remove(&record);
        } else if f.hurt.contains(&record) {
            f.written.insert(record, (at, len));
        }
        self.zfs.write(f.id, at, &Bytes::from(data), false).await.map(drop).map_err(text("write"))
    }

    async fn fsync(&mut self, n: u64) -> Outcome {
        let f = &self.files[&n];
        match self.zfs.fsync(f.id).await {
            Err(e) if f.written.is_empty() => Err(format!("fsync of f{n}, which is whole: {e}")),
            _ => Ok(()),
        }
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
        self.check_all().await
    }

    async fn check_all(&mut self) -> Outcome {
        for n in 0..FILES {
            self.check_file(n).await?;
        }
        Ok(())
    }

    async fn check_file(&mut self, n: u64) -> Outcome {
        let f = &self.files[&n];
        let size = self.zfs.getattr(f.id).await.map_err(text("getattr"))?.size;
        if size != f.bytes.len() as u64 {
            return Err(format!("f{n} has {size} bytes"));
        }
        for record in 0..RECORDS {
            let at = record * RECORD;
            let hurt = f.hurt.contains(&record);
            match self.zfs.read(f.id, at, RECORD as usize).await {
                Ok(data) if data.concat() == f.bytes[at as usize..(at + RECORD) as usize] => {}
                Ok(_) => return Err(format!("f{n} record {record}: other bytes than were written")),
                Err(_) if hurt => {}
                Err(e) => return Err(format!("f{n} record {record}, which is whole: {e}")),
            }
            let Some(&(at, len)) = f.written.get(&record) else { continue };
            match self.zfs.read(f.id, at, len as usize).await {
                Ok(data) if data.concat() == f.bytes[at as usize..(at + len) as usize] => {}
                Ok(_) => return Err(format!("f{n} record {record}: what was written is not there")),
                Err(e) => return Err(format!("f{n} record {record}: what was written is lost: {e}")),
            }
        }
        Ok(())
    }
}
