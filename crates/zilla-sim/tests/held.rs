//! Bytes that were acknowledged and lie in a record that cannot be read: they are there after a
//! power cut at any write, and after a second one, and come to be on disk when the record can be
//! read again. Nothing else is lost, and the pool stays up.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla_core::dmu::resident;
use zilla_core::spa::Spa;
use zilla_core::types::ObjectId;
use zilla_core::zpl::{Cred, NewFile, Zfs};
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::layout::{POOL, find, import};
use zilla_sim::pool::run::open_fs;
use zilla_sim::pool::{Layout, campaign::POLICIES, verify::audit};
use zilla_sim::{CrashPolicy, Sim, Stuck, Survivors};

const RECORD: u64 = 16 << 10;
const RECORDS: u64 = 4;
/// The record that is damaged.
const BAD: u64 = 1;
/// Where data begin on a disk: after two labels and the boot area.
const DATA: u64 = 4 << 20;

/// What must be true of a byte.
#[derive(Clone, Copy, Default)]
struct Byte {
    /// It was promised.
    promised: Option<u8>,
    /// It is being written.
    newer: Option<u8>,
}

#[derive(Clone, Default)]
struct Journal {
    /// Of the damaged record.
    held: Vec<Byte>,
    /// Bytes of the other file that were promised, each this high.
    other: u8,
    other_newer: u8,
    id: u64,
    other_id: u64,
    /// Where the damage is, and what stood there.
    hurt: (u64, Vec<u8>),
    ready: bool,
}

impl Journal {
    fn writes(&mut self, at: usize, data: &[u8]) {
        self.held[at..].iter_mut().zip(data).for_each(|(b, d)| b.newer = Some(*d));
    }
    fn promise(&mut self) {
        self.held.iter_mut().for_each(|b| b.promised = b.newer.or(b.promised));
    }
}

fn old(record: u64) -> Vec<u8> {
    (0..RECORD).map(|i| (i / 7) as u8 ^ (record * 31) as u8 | 1).collect()
}

async fn mount(env: &Env) -> (Arc<Spa>, Arc<Zfs>) {
    let found = find(env).await.unwrap().unwrap();
    let spa = import(env, &found, false).await.unwrap();
    let zfs = open_fs(env, &spa, POOL).await.unwrap();
    (spa, zfs)
}

/// Makes the pool, damages a record of it, and works with what lies around it.
async fn work(
    sim_env: Env,
    spoil: impl Fn(u64) -> Vec<u8>,
    journal: Arc<Mutex<Journal>>,
    ready: Arc<AtomicBool>,
) {
    let env = sim_env;
    let spa = Layout::Single.create(&env).await.unwrap();
    let zfs = open_fs(&env, &spa, POOL).await.unwrap();
    let new = NewFile::new(0o100644, Cred::default());
    let id = zfs.create(zfs.root(), b"hurt", new).await.unwrap().0.id();
    let other = zfs.create(zfs.root(), b"other", new).await.unwrap().0.id();
    for record in 0..RECORDS {
        zfs.write(id, record * RECORD, &Bytes::from(old(record)), false).await.unwrap();
    }
    spa.sync().await.unwrap();
    let bp = {
        let ds = spa.dsl.by_name(POOL).await.unwrap();
        let dn = spa.dsl.objset(&ds).await.unwrap().hold_wait(ObjectId(id)).await.unwrap();
        resident(|| dn.block_pointer(BAD)).await.unwrap().unwrap()
    };
    drop(zfs);
    spa.close(Some(PoolState::Exported)).await.unwrap();
    drop(spa);
    let at = DATA + bp.dva(0).offset + 1024;
    let was = spoil(at);
    let (spa, zfs) = mount(&env).await;
    let write_other = async |n: u8| {
        journal.lock().other_newer = n;
        zfs.write(other, 0, &Bytes::from(vec![n; 40_000]), false).await.unwrap();
        zfs.fsync(other).await.unwrap();
        journal.lock().other = n;
    };
    let write_held = async |at: usize, len: usize, n: u8| {
        let data = vec![n; len];
        journal.lock().writes(at, &data);
        zfs.write(id, BAD * RECORD + at as u64, &Bytes::from(data), false).await.unwrap();
    };
    *journal.lock() = Journal {
        held: vec![Byte::default(); RECORD as usize],
        id,
        other_id: other,
        hurt: (at, was),
        ..Journal::default()
    };
    // The log has a chain then.
    write_other(1).await;
    spa.sync().await.unwrap();
    ready.store(true, Ordering::Release);
    journal.lock().ready = true;
    write_held(100, 300, 0xa1).await;
    zfs.fsync(id).await.expect("it is in the log before anybody knows");
    journal.lock().promise();
    write_other(2).await;
    spa.sync().await.unwrap();
    zfs.fsync(id).await.expect_err("the record cannot be written");
    // Over the first one's end, and somewhere else.
    write_held(350, 100, 0xa2).await;
    write_held(9000, 1, 0xa3).await;
    write_other(3).await;
    spa.sync().await.unwrap();
    journal.lock().promise();
    // What comes with a txg of its own, and an idle time in which it is tried again.
    write_held(200, 30, 0xa4).await;
    zfs.fsync(id).await.expect_err("what was before is still there");
    write_other(4).await;
    env.sleep(Duration::from_secs(45)).await;
    journal.lock().promise();
    for n in 5..9 {
        write_other(n).await;
        spa.sync().await.unwrap();
    }
    assert!(spa.suspended().is_none());
    drop(zfs);
    spa.close(Some(PoolState::Exported)).await.unwrap();
}

async fn look(zfs: &Arc<Zfs>, j: &Journal, mended: bool) -> Result<(), String> {
    for record in 0..RECORDS {
        let read = zfs.read(j.id, record * RECORD, RECORD as usize).await;
        match read {
            Ok(data) if record != BAD && data.concat() == old(record) => {}
            Ok(data) if record == BAD && mended => {
                let (data, old) = (data.concat(), old(BAD));
                for (i, b) in j.held.iter().enumerate() {
                    let fits = match b.promised {
                        Some(p) => data[i] == p || b.newer == Some(data[i]),
                        None => data[i] == old[i] || b.newer == Some(data[i]),
                    };
                    if !fits {
                        return Err(format!("byte {i} of the record that was damaged is {:#x}", data[i]));
                    }
                }
            }
            Err(_) if record == BAD && !mended => {}
            Ok(_) => return Err(format!("record {record} reads wrong")),
            Err(e) => return Err(format!("record {record}: {e}")),
        }
    }
    let mut from = 0;
    for part in j.held.chunk_by(|a, b| a.promised.is_some() == b.promised.is_some()) {
        let at = from;
        from += part.len();
        if part[0].promised.is_none() {
            continue;
        }
        let read = zfs.read(j.id, BAD * RECORD + at as u64, part.len()).await;
        let data = read.map_err(|e| format!("{} promised bytes at {at}: {e}", part.len()))?.concat();
        for (i, (b, d)) in part.iter().zip(data.iter()).enumerate() {
            if b.promised != Some(*d) && b.newer != Some(*d) {
                return Err(format!("byte {} is {d:#x}, and {:#x?} was promised", at + i, b.promised));
            }
        }
    }
    let other = zfs.read(j.other_id, 0, 40_000).await.map_err(|e| format!("the other file: {e}"))?.concat();
    let fits = |n: u8| other.len() == 40_000 && other.iter().all(|d| *d == n);
    match fits(j.other) || fits(j.other_newer) {
        true => Ok(()),
        false => Err(format!("the other file is neither {} nor {}", j.other, j.other_newer)),
    }
}

/// Boots what a cut has left, looks, goes on a little; what a second cut then leaves.
fn boot(left: &Survivors, j: &Journal, seed: u64) -> Result<Survivors, String> {
    let sim = left.boot(seed);
    let looked = sim.try_block_on(async {
        let (spa, zfs) = mount(&sim.env()).await;
        look(&zfs, j, false).await.map_err(|e| format!("after the replay: {e}"))?;
        spa.sync().await.map_err(|e| e.to_string())?;
        look(&zfs, j, false).await.map_err(|e| format!("after a sync: {e}"))?;
        match spa.suspended() {
            Some(e) => Err(format!("suspended: {e}")),
            None => Ok(()),
        }
    });
    looked.map_err(|stuck| stuck.to_string())??;
    Ok(sim.power_off(CrashPolicy::LoseAll, seed))
}

/// The record can be read again: everything is there, and the space adds up.
fn mend(left: &Survivors, j: &Journal, seed: u64) -> Result<(), String> {
    let sim = left.boot(seed);
    sim.disk(Layout::path(0)).unwrap().damage(j.hurt.0, &j.hurt.1);
    let mended = sim.try_block_on(async {
        let env = sim.env();
        let (spa, zfs) = mount(&env).await;
        env.sleep(Duration::from_secs(31)).await;
        spa.sync().await.map_err(|e| e.to_string())?;
        zfs.fsync(j.id).await.map_err(|e| format!("fsync of the mended file: {e}"))?;
        look(&zfs, j, true).await.map_err(|e| format!("mended: {e}"))?;
        audit(&spa, true, true).await?;
        drop(zfs);
        spa.close(Some(PoolState::Exported)).await.map_err(|e| e.to_string())?;
        drop(spa);
        let (spa, zfs) = mount(&env).await;
        look(&zfs, j, true).await.map_err(|e| format!("mended and imported: {e}"))?;
        audit(&spa, true, true).await
    });
    mended.map_err(|stuck| stuck.to_string())?
}

/// Cuts at every `step`-th write and flush. How many cuts there were.
pub fn cuts(step: u64) -> Result<u64, String> {
    let sim = Sim::new(21);
    Layout::Single.add_disks(&sim);
    let (journal, ready, done) = <(Arc<Mutex<Journal>>, Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let disk = sim.disk(Layout::path(0)).unwrap();
    let spoil = move |at: u64| {
        let mut was = vec![0; 512];
        disk.snapshot().read(at, &mut was);
        disk.damage(at, &was.iter().map(|b| !b).collect::<Vec<_>>());
        was
    };
    let env = sim.env();
    let (j, r, d) = (journal.clone(), ready.clone(), done.clone());
    let task = work(env.clone(), spoil, j, r);
    env.spawn(Box::pin(async move {
        task.await;
        d.store(true, Ordering::Release);
    }));
    sim.run_until(&ready).map_err(|s| s.to_string())?;
    let (mut last, mut cuts) = (sim.counters().ops, 0);
    loop {
        sim.pause_at(last + 1);
        let went = sim.run_until(&done);
        let now = sim.counters().ops;
        let j = journal.lock().clone();
        for cut in (last + 1..=now).filter(|cut| cut.is_multiple_of(step)) {
            for policy in POLICIES {
                let left = sim.survivors_of(cut, policy, cut);
                let again = boot(&left, &j, cut).map_err(|e| format!("cut {cut}, {policy:?}: {e}"))?;
                cuts += 1;
                if (cut / step).is_multiple_of(4) {
                    let third =
                        boot(&again, &j, cut + 1).map_err(|e| format!("second cut after {cut}: {e}"))?;
                    mend(&third, &j, cut + 2).map_err(|e| format!("cut {cut}, {policy:?}: {e}"))?;
                }
            }
        }
        last = now;
        match went {
            Ok(()) => break,
            Err(Stuck::Paused { .. }) => sim.resume(),
            Err(stuck) => return Err(stuck.to_string()),
        }
    }
    // The pool was exported; what is held is in its log.
    let left = sim.survivors(CrashPolicy::LoseAll, 0);
    let j = journal.lock().clone();
    let again = boot(&left, &j, 1).map_err(|e| format!("after the export: {e}"))?;
    mend(&again, &j, 2).map_err(|e| format!("after the export: {e}"))?;
    Ok(cuts)
}

#[test]
fn what_was_acknowledged_outlives_power_cuts() {
    let step = std::env::var("ZILLA_STEP").ok().and_then(|n| n.parse().ok()).unwrap_or(17);
    let cuts = cuts(step).unwrap_or_else(|e| panic!("{e}"));
    assert!(cuts > 40, "only {cuts} cuts");
    println!("{cuts} cuts");
}
