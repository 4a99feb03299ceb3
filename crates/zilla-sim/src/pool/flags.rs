//! Directories whose flags forbid changes, and then allow them: what was done while they allowed it
//! is there after a crash, though the last txg says that they forbid it. Replay must not be judged
//! by flags, and a flag's change comes before what depends on it.

use super::layout::{Layout, POOL, find, import};
use super::run::open_fs;
use crate::{CrashPolicy, Sim, SimRng};
use std::collections::BTreeSet;
use zilla_core::zpl::{Cred, NewFile, SetAttr, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_NOUNLINK};

const DIRS: u64 = 3;

pub fn flags_run(seed: u64) -> Result<(), String> {
    let sim = Sim::new(seed);
    Layout::Single.add_disks(&sim);
    let text = |e: zilla_core::error::Error| e.to_string();
    let mut rng = SimRng::new(seed, "flags");
    let worked = sim.try_block_on(async {
        let env = sim.env();
        let spa = Layout::Single.create(&env).await.map_err(text)?;
        let zfs = open_fs(&env, &spa, POOL).await.map_err(text)?;
        let mut dirs = Vec::new();
        for d in 0..DIRS {
            let new = NewFile::new(0o040755, Cred::default());
            dirs.push(zfs.create(zfs.root(), format!("d{d}").as_bytes(), new).await.map_err(text)?.0.id());
        }
        let all = ZFS_IMMUTABLE | ZFS_APPENDONLY | ZFS_NOUNLINK;
        let flags = |on: u64| SetAttr { flags: Some((on, all & !on)), ..SetAttr::default() };
        for dir in &dirs {
            let on = [ZFS_IMMUTABLE, ZFS_APPENDONLY, ZFS_NOUNLINK][rng.below(3) as usize];
            zfs.setattr(*dir, flags(if *dir == dirs[0] { ZFS_IMMUTABLE } else { on })).await.map_err(text)?;
        }
        // The log's chain is made before, so that no fsync waits for a txg.
        zfs.fsync(dirs[0]).await.map_err(text)?;
        spa.sync().await.map_err(text)?;
        let mut there = BTreeSet::new();
        for n in 0..6 + rng.below(6) {
            // In each of them something.
            let d = if n < DIRS { n } else { rng.below(DIRS) };
            let dir = dirs[d as usize];
            zfs.setattr(dir, flags(0)).await.map_err(text)?;
            let new = NewFile::new(0o100644, Cred::default());
            let file = zfs.create(dir, format!("f{n}").as_bytes(), new).await.map_err(text)?.0.id();
            zfs.fsync(file).await.map_err(text)?;
            there.insert((d, format!("f{n}")));
            if rng.one_in(4) {
                zfs.unlink(dir, format!("f{n}").as_bytes()).await.map_err(text)?;
                there.remove(&(d, format!("f{n}")));
                zfs.commit().await.map_err(text)?;
            }
            if rng.one_in(3) {
                zfs.setattr(dir, flags(ZFS_IMMUTABLE)).await.map_err(text)?;
            }
        }
        Ok::<_, String>(there)
    });
    let there = worked.map_err(|stuck| stuck.to_string())??;
    let sim = sim.power_off(CrashPolicy::LoseAll, seed).boot(seed + 1);
    let checked = sim.try_block_on(async {
        let env = sim.env();
        let found = find(&env).await.map_err(text)?.ok_or("there is no pool")?;
        let spa = import(&env, &found, false).await.map_err(text)?;
        let zfs = open_fs(&env, &spa, POOL).await.map_err(text)?;
        if let Some(why) = zfs.kept_log() {
            return Err(format!("the log was not replayed: {why}"));
        }
        let mut have = BTreeSet::new();
        for d in 0..DIRS {
            let (dir, _) = zfs.lookup(zfs.root(), format!("d{d}").as_bytes()).await.map_err(text)?;
            for n in 0..12 {
                let name = format!("f{n}");
                if zfs.lookup(dir.id(), name.as_bytes()).await.is_ok() {
                    have.insert((d, name));
                }
            }
        }
        if have != there {
            return Err(format!("there is {have:?}, there should be {there:?}"));
        }
        Ok(())
    });
    checked.map_err(|stuck| stuck.to_string())?
}
