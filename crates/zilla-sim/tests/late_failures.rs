//! What goes wrong, or is asked for, when a txg's blocks are written already: its labels fail, or
//! nothing of it is to be written at all.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zilla_core::vdev::Leaf;
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::files::Files;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim};

const EIO: i32 = 5;
const IN_IT: Files = Files(1100);
const LABELS: u64 = 512 << 10;

/// One side of a mirror takes no blocks of a txg and the other no labels: the pool is suspended.
/// When it goes on the first is given all blocks.
#[test]
fn a_side_that_missed_a_txg_has_it_when_the_labels_failed_as_well() {
    let sim = Sim::new(5);
    Layout::Mirror.add_disks(&sim);
    let devices: Arc<Mutex<BTreeMap<PathBuf, Arc<FaultyDevice>>>> = Arc::default();
    let (opened, inner) = (devices.clone(), sim.env());
    let env = sim.env().wrap_devices(move |path, device| {
        let device = Arc::new(FaultyDevice::new(device, &inner));
        opened.lock().insert(path.to_owned(), device.clone());
        device
    });
    sim.block_on(async {
        let spa = Layout::Mirror.create(&env).await.unwrap();
        IN_IT.put(&env, &spa, 0..10).await.unwrap();
        let of = |i: usize| {
            let is = |l: &&Arc<Leaf>| PathBuf::from(l.path()) == Layout::path(i);
            spa.tree().pool_leaves().find(is).unwrap().clone()
        };
        let size = of(0).psize();
        let device = |i: usize| devices.lock()[&Layout::path(i)].clone();
        let (takes_blocks, takes_none) = (device(0), device(1));
        takes_none.add(Rule::new(Ops::Writes, Fault::Error(EIO)));
        for labels in [0..LABELS, size - LABELS..size] {
            takes_blocks.add(Rule::new(Ops::Writes, Fault::Error(EIO)).within(labels));
        }
        let written = env.spawn_with_result({
            let (env, spa) = (env.clone(), spa.clone());
            async move { IN_IT.put(&env, &spa, 10..20).await }
        });
        env.sleep(Duration::from_secs(20)).await;
        assert!(spa.suspended().is_some());
        devices.lock().values().for_each(|d| d.clear());
        spa.clear(None).await.unwrap();
        written.await.unwrap();
        let whole = async || {
            let lacks = || spa.tree().pool_leaves().any(|l| !l.dtl.is_empty());
            for _ in 0..3000 {
                if !lacks() && !spa.scan().unwrap().is_scanning() {
                    return;
                }
                env.sleep(Duration::from_millis(200)).await;
            }
            let lacking: Vec<_> = spa.tree().pool_leaves().map(|l| (l.path(), l.dtl.ranges())).collect();
            panic!("a side still lacks something: {lacking:?}");
        };
        whole().await;
        for i in 0..2 {
            let leaf = of(i);
            spa.offline(leaf.guid(), false, false).await.unwrap();
            spa.drop_caches();
            IN_IT.check(&env, &spa, 20, &format!("without disk {i}")).await;
            spa.online(leaf.guid(), false).await.unwrap();
            whole().await;
        }
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// Who closes a pool asks for a flush of all metaslabs, and then that there is a txg to be written:
/// a txg that has nothing to write may come between.
#[test]
fn a_flush_that_is_asked_for_waits_for_a_txg_that_is_written() {
    let sim = Sim::new(6);
    Layout::Mirror.add_disks(&sim);
    let env = sim.env();
    sim.block_on(async {
        let spa = Layout::Mirror.create(&env).await.unwrap();
        for i in 0..6 {
            IN_IT.put(&env, &spa, i..i + 1).await.unwrap();
        }
        // What a mount leaves behind is written.
        for _ in 0..6 {
            spa.sync().await.unwrap();
        }
        let before = spa.uberblock().txg;
        spa.metaslabs.request_flush_all();
        spa.sync().await.unwrap();
        assert_eq!(spa.uberblock().txg, before, "there was nothing to write");
        IN_IT.put(&env, &spa, 6..7).await.unwrap();
    });
    let sim = sim.power_off(CrashPolicy::LoseAll, 6).boot(7);
    let env = sim.env();
    sim.block_on(async {
        let found = find(&env).await.unwrap().unwrap();
        let spa = import(&env, &found, false).await.unwrap();
        IN_IT.check(&env, &spa, 7, "after the power cut").await;
        audit(&spa, true, false).await.unwrap();
        spa.close(None).await.unwrap();
    });
}
