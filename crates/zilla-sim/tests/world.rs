//! The world keeps its promises: same seed, same history; nothing flushed is lost; what is lost is
//! lost by sectors.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use zilla_env::{Device, Env, OpenMode};
use zilla_sim::{CrashPolicy, SECTOR, Sim, SimConfig, SimRng, Stuck};

const SIZE: u64 = 4 << 20;
const RW: OpenMode = OpenMode { write: true, exclusive: true };

fn fill(byte: u8, len: usize) -> Bytes {
    Bytes::from(vec![byte; len])
}

/// Several tasks that write, read, sleep and flush, with randomness from the world.
async fn busy(env: Env) -> Vec<u64> {
    let disk = env.open("/d0".as_ref(), RW).await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..6u64)
        .map(|t| {
            let (e, disk, order) = (env.clone(), disk.clone(), order.clone());
            env.spawn_with_result(async move {
                for i in 0..10 {
                    let at = e.random_below(SIZE / 4096) * 4096;
                    disk.write(at, fill(t as u8, 4096)).await.unwrap();
                    e.sleep(Duration::from_micros(e.random_below(300))).await;
                    disk.read(at, 4096).await.unwrap();
                    order.lock().push(t * 100 + i);
                    if i % 4 == 0 {
                        disk.flush().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    Arc::try_unwrap(order).unwrap().into_inner()
}

#[test]
fn one_seed_has_one_history() {
    let run = |seed| {
        let sim = Sim::new(seed);
        sim.add_disk("/d0", SIZE);
        let order = sim.block_on(busy(sim.env()));
        (order, sim.trace_hash(), sim.now(), sim.counters())
    };
    let first = run(7);
    assert_eq!(first, run(7));
    assert_eq!(first.3.writes, 60);
    let others: BTreeSet<u64> = (0..10).map(|seed| run(seed).1).collect();
    assert_eq!(others.len(), 10, "different seeds must take different paths");
}

#[test]
fn time_is_virtual_and_ordered() {
    let sim = Sim::new(1);
    let env = sim.env();
    let wall = env.wall();
    let woken = Arc::new(Mutex::new(Vec::new()));
    for hours in [5u64, 1, 3] {
        let (e, woken) = (env.clone(), woken.clone());
        env.spawn(async move {
            e.sleep(Duration::from_secs(hours * 3600)).await;
            woken.lock().push(hours);
        });
    }
    sim.run_for(Duration::from_secs(6 * 3600)).unwrap();
    assert_eq!(*woken.lock(), [1, 3, 5]);
    assert_eq!(env.wall() - wall, Duration::from_secs(6 * 3600));
    let timed_out = sim.block_on(env.timeout(Duration::from_secs(9), std::future::pending::<()>()));
    assert!(timed_out.is_err());
}

#[test]
fn worlds_without_a_future_are_reported() {
    let sim = Sim::new(1);
    let stuck = sim.try_block_on(std::future::pending::<()>()).unwrap_err();
    assert!(matches!(stuck, Stuck::Deadlock { .. }), "{stuck}");

    let config = SimConfig { max_polls: 1000, ..SimConfig::default() };
    let sim = Sim::with_config(1, config);
    let env = sim.env();
    let stuck = sim.try_block_on(async {
        loop {
            env.sleep(Duration::from_secs(1)).await;
        }
    });
    assert!(matches!(stuck, Err::<(), _>(Stuck::PollLimit { .. })));
}

#[test]
fn a_panic_in_a_task_reaches_the_test() {
    let sim = Sim::new(1);
    sim.env().spawn(async { panic!("planted") });
    let caught =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.run_for(Duration::from_secs(1))));
    assert!(caught.is_err());
    // The world itself is still usable.
    sim.run_for(Duration::from_secs(1)).unwrap();
}

#[test]
fn a_flush_saves_what_completed_before_it() {
    for seed in 0..50 {
        let sim = Sim::new(seed);
        let disk = sim.add_disk("/d0", SIZE);
        sim.block_on(async {
            disk.write(0, fill(1, 8192)).await.unwrap();
            disk.flush().await.unwrap();
            disk.write(0, fill(2, 4096)).await.unwrap();
            disk.write(65_536, fill(3, 4096)).await.unwrap();
        });
        assert_eq!(disk.unflushed(), 2);
        for policy in [
            CrashPolicy::LoseAll,
            CrashPolicy::KeepAll,
            CrashPolicy::Prefix,
            CrashPolicy::Shuffle,
            CrashPolicy::Random,
        ] {
            let mut out = vec![0; 69_632];
            disk.after_crash(policy, seed, u64::MAX).read(0, &mut out);
            assert!(out[4096..8192].iter().all(|&b| b == 1), "flushed data lost");
            assert!(out[..4096].iter().all(|&b| b == 1 || b == 2));
            assert!(out[65_536..].iter().all(|&b| b == 0 || b == 3));
            match policy {
                CrashPolicy::LoseAll => assert!(out[0] == 1 && out[65_536] == 0),
                CrashPolicy::KeepAll => assert!(out[0] == 2 && out[65_536] == 3),
                // The second write cannot be there without the first.
                CrashPolicy::Prefix => assert!(out[65_536] == 0 || out[..4096].iter().all(|&b| b == 2)),
                _ => {}
            }
        }
    }
}

#[test]
fn writes_tear_only_between_sectors_and_do_get_reordered() {
    let (mut torn, mut reordered) = (false, false);
    for seed in 0..200 {
        let sim = Sim::new(seed);
        let disk = sim.add_disk("/d0", SIZE);
        sim.block_on(async {
            disk.write(0, fill(1, 8192)).await.unwrap();
            disk.write(100_000, fill(2, 3000)).await.unwrap();
        });
        let mut out = vec![0; 103_000];
        disk.after_crash(CrashPolicy::Shuffle, seed, u64::MAX).read(0, &mut out);
        for start in (0..out.len()).step_by(SECTOR as usize) {
            let sector = &out[start..(start + SECTOR as usize).min(out.len())];
            let (lo, hi) =
                (100_000.max(start) - start, 103_000.min(start + sector.len()).saturating_sub(start));
            let part = if start < 8192 { sector } else { sector.get(lo..hi.max(lo)).unwrap_or(&[]) };
            assert!(part.iter().all(|b| *b == part[0]), "seed {seed}: a sector at {start} is torn");
        }
        let ones = out[..8192].iter().filter(|&&b| b == 1).count();
        torn |= ones > 0 && ones < 8192;
        reordered |= ones == 0 && out[100_000..].iter().all(|&b| b == 2);
    }
    assert!(torn && reordered);
}

#[test]
fn the_power_goes_at_every_write_and_the_world_boots_again() {
    let run = |seed, cut| {
        let sim = Sim::new(seed);
        sim.add_disk("/d0", SIZE);
        if cut > 0 {
            sim.cut_power_at(cut);
        }
        let acked = Arc::new(Mutex::new(0u8));
        let (seen, env) = (acked.clone(), sim.env());
        let result = sim.try_block_on(async move {
            let disk = env.open("/d0".as_ref(), RW).await.unwrap();
            for n in 1..=10u8 {
                disk.write(n as u64 * 4096, fill(n, 4096)).await.unwrap();
                disk.flush().await.unwrap();
                *seen.lock() = n;
            }
        });
        let acked = *acked.lock();
        (sim, result, acked)
    };
    let (whole, result, acked) = run(3, 0);
    assert!(result.is_ok() && acked == 10);
    let ops = whole.counters().ops;
    assert_eq!(ops, 20);
    for cut in 1..=ops {
        let (sim, result, acked) = run(3, cut);
        assert_eq!(result, Err(Stuck::PowerCut { op: cut }));
        assert_eq!(acked as u64, (cut - 1) / 2);
        let survivors = sim.power_off(CrashPolicy::Random, cut);
        let sim = survivors.boot(3);
        let env = sim.env();
        sim.block_on(async {
            let disk = env.open("/d0".as_ref(), RW).await.unwrap();
            for n in 1..=acked {
                assert_eq!(disk.read(n as u64 * 4096, 4096).await.unwrap()[..], fill(n, 4096)[..]);
            }
            let later = disk.read((acked as u64 + 2) * 4096, 4096).await.unwrap();
            assert!(later.iter().all(|&b| b == 0), "a write from the future");
        });
    }
}

#[test]
fn failing_disks_leave_the_world_running() {
    let sim = Sim::new(1);
    let disk = sim.add_disk("/d0", SIZE);
    sim.fail_disks_at(2);
    sim.block_on(async {
        disk.write(0, fill(1, 512)).await.unwrap();
        assert!(disk.flush().await.is_err());
        assert!(disk.read(0, 512).await.is_err());
    });
}

#[test]
fn owners_files_and_plugs() {
    let sim = Sim::new(1);
    let disk = sim.add_disk("/pool/d0", SIZE);
    let env = sim.env();
    sim.block_on(async {
        let open = env.open("/pool/d0".as_ref(), RW).await.unwrap();
        assert!(env.open("/pool/d0".as_ref(), RW).await.is_err());
        disk.set_offline(true);
        assert_eq!(open.read(0, 512).await.unwrap_err().raw_os_error(), Some(6));
        disk.set_offline(false);
        drop(open);
        let reader = env.open("/pool/d0".as_ref(), OpenMode::default()).await.unwrap();
        assert!(reader.write(0, fill(1, 512)).await.is_err());
        env.opener.write_file("/etc/cache".as_ref(), b"x".to_vec()).await.unwrap();
        assert_eq!(env.opener.list("/".as_ref()).await.unwrap().len(), 2);
        assert_eq!(
            env.opener.list("/pool".as_ref()).await.unwrap()[0].path,
            std::path::Path::new("/pool/d0")
        );
    });
    let sim = sim.power_off(CrashPolicy::LoseAll, 0).boot(2);
    assert_eq!(sim.block_on(sim.env().opener.read_file("/etc/cache".as_ref())).unwrap(), b"x");
}

#[test]
fn a_disk_agrees_with_a_plain_array() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let disk = sim.add_disk("/d0", SIZE);
        let mut model = vec![0u8; SIZE as usize];
        let mut rng = SimRng::new(seed, "test");
        sim.block_on(async {
            for _ in 0..100 {
                let (at, len) = (rng.below(SIZE / 512 - 100) * 512, (1 + rng.below(99)) * 512);
                let range = at as usize..(at + len) as usize;
                match rng.below(4) {
                    0 => assert!(disk.read(at, len as usize).await.unwrap()[..] == model[range]),
                    1 => {
                        disk.write_zeroes(at, len).await.unwrap();
                        model[range].fill(0);
                    }
                    2 => disk.flush().await.unwrap(),
                    _ => {
                        let byte = rng.u64() as u8;
                        disk.write(at, fill(byte, len as usize)).await.unwrap();
                        model[range].fill(byte);
                    }
                }
            }
        });
        let mut out = vec![0; SIZE as usize];
        disk.after_crash(CrashPolicy::KeepAll, 0, u64::MAX).read(0, &mut out);
        assert!(out == model, "seed {seed}");
    }
}
