//! Operations on datasets that meet blocks they cannot read: each is done whole or not at all, and
//! the pool goes on.

use parking_lot::Mutex;
use std::sync::Arc;
use zilla_core::dsl::DslPool;
use zilla_core::error::Result;
use zilla_core::spa::{Spa, discover};
use zilla_core::txg::Tx;
use zilla_core::types::{Bookmark, ObjectId};
use zilla_core::zap::Zap;
use zilla_core::zpl::{self, Time, ZplProps};
use zilla_env::Env;
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule, When};
use zilla_ondisk::dsl::DMU_POOL_ERRLOG_LAST;
use zilla_ondisk::enums::ObjsetType;
use zilla_sim::pool::Layout;
use zilla_sim::pool::layout::import;
use zilla_sim::pool::op::Fill;
use zilla_sim::pool::run::{fill_fs, task};
use zilla_sim::{CrashPolicy, Sim, Survivors};

const OPERATIONS: [&str; 2] = ["snapshot", "create"];

async fn perform(dsl: &Arc<DslPool>, tx: &Tx, what: &str) -> Result<()> {
    match what {
        "snapshot" => dsl.snapshot(tx, &["tank/a@c".to_owned()]).await.map(drop),
        _ => dsl.create_fs(tx, "tank/new", ObjsetType::Zvol, 0).await.map(drop),
    }
}

/// A file system with two snapshots between which it changed, and a clone of the first.
fn prepared() -> Survivors {
    let sim = Sim::new(8);
    Layout::Single.add_disks(&sim);
    let env = sim.env();
    sim.block_on(async {
        let spa = Layout::Single.create(&env).await.unwrap();
        task(&spa, |d, tx| {
            Box::pin(async move {
                let ds = d.create_fs(&tx, "tank/a", ObjsetType::Zfs, 0).await?;
                let props = ZplProps::new(0, 0, Time { sec: 1, nsec: 0 });
                zpl::create_fs(&d.objset(&ds).await?, &tx, &props).await
            })
        })
        .await
        .unwrap();
        for (seed, snapshot) in [(1, "tank/a@a"), (6, "tank/a@b")] {
            fill_fs(&env, &spa, "tank/a", Fill { seed, len: 90_000 }).await.unwrap();
            task(&spa, move |d, tx| {
                Box::pin(async move { d.snapshot(&tx, &[snapshot.to_owned()]).await.map(drop) })
            })
            .await
            .unwrap();
        }
        fill_fs(&env, &spa, "tank/a", Fill { seed: 11, len: 90_000 }).await.unwrap();
        task(&spa, |d, tx| {
            Box::pin(async move { d.clone_ds(&tx, "tank/clone", "tank/a@a").await.map(drop) })
        })
        .await
        .unwrap();
        fill_fs(&env, &spa, "tank/clone", Fill { seed: 2, len: 9000 }).await.unwrap();
        spa.close(None).await.unwrap();
    });
    sim.power_off(CrashPolicy::LoseAll, 8)
}

async fn names(spa: &Spa) -> Vec<String> {
    let (mut out, mut todo) = (Vec::new(), vec![spa.dsl.root_dir()]);
    while let Some(dir) = todo.pop() {
        todo.extend(spa.dsl.child_dirs(&dir).await.unwrap());
        let head = spa.dsl.head(&dir).await.unwrap();
        out.push(format!("{} {:?}", dir.name(), head.phys()));
        out.extend(
            spa.dsl.snapshots(&head).await.unwrap().iter().map(|s| format!("{} {:?}", s.name(), s.phys())),
        );
    }
    out.sort();
    out
}

/// Does the operation while reads from number `from` on give wrong bytes. Whether it met one.
async fn with_damage(env: &Env, what: &'static str, from: u64) -> bool {
    let opened: Arc<Mutex<Vec<Arc<FaultyDevice>>>> = Arc::default();
    let faulty = env.wrap_devices({
        let (opened, env) = (opened.clone(), env.clone());
        move |_, device| {
            let device = Arc::new(FaultyDevice::new(device, &env));
            opened.lock().push(device.clone());
            device
        }
    });
    let found = discover(&faulty, &["/disks".into()]).await.unwrap();
    let spa = import(&faulty, &found[0], false).await.unwrap();
    let devices = opened.lock().clone();
    let hits = Arc::new(Mutex::new(0));
    let (met, seen) = (hits.clone(), devices.clone());
    let done = task(&spa, move |dsl, tx| {
        Box::pin(async move {
            let rules: Vec<_> = seen
                .iter()
                .map(|d| d.add(Rule::new(Ops::Reads, Fault::FlipBits { count: 9 }).when(When::From(from))))
                .collect();
            let done = perform(&dsl, &tx, what).await;
            *met.lock() = seen.iter().zip(rules).map(|(d, rule)| d.hits(rule)).sum::<u64>();
            seen.iter().for_each(|d| d.clear());
            done
        })
    })
    .await;
    let damaged = *hits.lock() > 0;
    assert!(spa.suspended().is_none(), "{what}, reads from {from} on: {:?}", spa.suspended());
    assert_eq!(done.is_ok(), !damaged, "{what}, reads from {from} on: {done:?}");
    if damaged {
        let now = names(&spa).await;
        spa.close(None).await.unwrap();
        drop((spa, devices));
        opened.lock().clear();
        let found = discover(env, &["/disks".into()]).await.unwrap();
        let spa = import(env, &found[0], false).await.unwrap();
        assert_eq!(now, names(&spa).await, "{what}: memory and disk differ");
        let report = spa.check_space().await.unwrap();
        assert!(report.is_clean(), "{what}, reads from {from} on: {report:?}");
        task(&spa, move |dsl, tx| Box::pin(async move { perform(&dsl, &tx, what).await })).await.unwrap();
        spa.close(None).await.unwrap();
    }
    damaged
}

#[test]
fn what_cannot_be_read_leaves_nothing_half_done() {
    let pool = prepared();
    for what in OPERATIONS {
        let mut from = 1;
        loop {
            let sim = pool.boot(from);
            let env = sim.env();
            if !sim.block_on(with_damage(&env, what, from)) {
                break;
            }
            from += 1;
        }
        assert!(from > 1, "{what} reads something");
    }
}

/// The log of errors is a list for people: nothing else needs it to be readable.
#[test]
fn a_log_of_errors_that_cannot_be_read_is_in_nobodys_way() {
    const NO_OBJECT: u64 = 0xfff0;
    let sim = prepared().boot(1);
    let env = sim.env();
    let imported = async || {
        let found = discover(&env, &["/disks".into()]).await.unwrap();
        import(&env, &found[0], false).await.unwrap()
    };
    sim.block_on(async {
        let spa = imported().await;
        let ctx = spa.ctx.clone();
        task(&spa, move |_, tx| {
            Box::pin(async move {
                Zap::open(ctx.mos(), 1).await?.set_u64(&tx, DMU_POOL_ERRLOG_LAST, NO_OBJECT).await
            })
        })
        .await
        .unwrap();
        spa.close(None).await.unwrap();
        drop(spa);
        let spa = imported().await;
        task(&spa, |d, tx| Box::pin(async move { d.promote(&tx, "tank/clone").await })).await.unwrap();
        task(&spa, |d, tx| Box::pin(async move { perform(&d, &tx, "create").await })).await.unwrap();
        task(&spa, |d, tx| Box::pin(async move { d.destroy_head(&tx, "tank/new").await })).await.unwrap();
        let scan = spa.scan().unwrap().clone();
        scan.errors.log(Bookmark::new(54, ObjectId(1), 0, 0), Some(5));
        task(&spa, move |_, tx| Box::pin(async move { scan.errors.sync(&tx).await })).await.unwrap();
        assert!(spa.suspended().is_none(), "{:?}", spa.suspended());
        assert_eq!(spa.scan().unwrap().errors.count().await.unwrap(), 1);
        spa.close(None).await.unwrap();
    });
}
