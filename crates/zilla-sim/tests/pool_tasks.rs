//! What is done to a pool as a whole meets blocks that cannot be read for a while: it is refused,
//! or done, or the pool is suspended for good, as its txg could not be made. Nothing that was
//! stable is lost, and the next import has the pool as it was, or with the change.

use futures_util::future::{BoxFuture, Either, select};
use parking_lot::Mutex;
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zilla_core::error::Result;
use zilla_core::spa::{Attach, Spa, SpareSpec};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, UpkeepKind, UpkeepState, VdevKind};
use zilla_env::Env;
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule, When};
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::files::Files;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim, Survivors};

const IN_IT: Files = Files(1100);
const FILES: u32 = 30;
const LONG: Duration = Duration::from_secs(600);
/// Room for what is removed, beside what a pool keeps for itself.
const LARGE: u64 = 400 << 20;
/// The pool's own devices, and one that is none's.
const OWN: [usize; 2] = [0, 1];
const OTHER: usize = 2;

fn leaf(i: usize) -> LeafSpec {
    LeafSpec { path: Layout::path(i), disk: true }
}

fn top(i: usize) -> PoolSpec {
    let top =
        TopSpec { kind: VdevKind::Disk, leaves: vec![leaf(i)], is_log: false, bias: None, ashift: Some(9) };
    PoolSpec { tops: vec![top], ..PoolSpec::default() }
}

fn guid(spa: &Spa, i: usize) -> u64 {
    spa.tree().pool_leaves().find(|l| l.path() == Layout::path(i)).unwrap().guid()
}

/// Two devices side by side with files on them, and a third, exported.
fn before() -> Survivors {
    let sim = Sim::new(7);
    Layout::Single.add_disks(&sim);
    (1..3).for_each(|i| drop(sim.add_disk(Layout::path(i), LARGE)));
    let env = sim.env();
    sim.block_on(async {
        let spa = Layout::Single.create(&env).await.unwrap();
        IN_IT.put(&env, &spa, 0..FILES / 2).await.unwrap();
        spa.add_vdevs(&top(1)).await.unwrap();
        IN_IT.put(&env, &spa, FILES / 2..FILES).await.unwrap();
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    sim.power_off(CrashPolicy::KeepAll, 1)
}

/// What is done first, while all can be read, and what then.
type Change = for<'a> fn(&'a Arc<Spa>) -> BoxFuture<'a, Result<()>>;

const CHANGES: [(&str, Change, Change); 14] = [
    ("attach", nothing, attach),
    ("detach", attach, |spa| Box::pin(async { spa.detach(guid(spa, OTHER)).await.map(drop) })),
    ("add", nothing, |spa| Box::pin(async { spa.add_vdevs(&top(OTHER)).await })),
    ("add a cache", nothing, |spa| Box::pin(async { spa.add_cache(&[leaf(OTHER)]).await })),
    ("add a spare", nothing, spare),
    ("remove a spare", spare, |spa| Box::pin(async { spa.remove_vdev(spa.tree().spares[0].guid).await })),
    ("remove", nothing, |spa| Box::pin(async { spa.remove_vdev(guid(spa, 0)).await })),
    ("take a checkpoint", nothing, |spa| Box::pin(spa.take_checkpoint())),
    ("discard a checkpoint", |spa| Box::pin(spa.take_checkpoint()), |spa| Box::pin(spa.discard_checkpoint())),
    ("reguid", nothing, |spa| Box::pin(async { spa.reguid(None).await.map(drop) })),
    ("initialize", nothing, initialize),
    (
        "uninitialize",
        |spa| {
            Box::pin(async {
                initialize(spa).await?;
                spa.stop_upkeep(guid(spa, 1), UpkeepKind::Initialize, UpkeepState::Canceled).await
            })
        },
        |spa| Box::pin(async { spa.uninitialize(guid(spa, 1)).await }),
    ),
    ("scrub", nothing, |spa| Box::pin(async { spa.scan()?.start().await })),
    ("synchronize", nothing, |spa| Box::pin(spa.sync_anyway())),
];

fn nothing(_: &Arc<Spa>) -> BoxFuture<'_, Result<()>> {
    Box::pin(async { Ok(()) })
}

fn attach(spa: &Arc<Spa>) -> BoxFuture<'_, Result<()>> {
    Box::pin(async { spa.attach(guid(spa, 0), &leaf(OTHER), Attach::default()).await })
}

fn spare(spa: &Arc<Spa>) -> BoxFuture<'_, Result<()>> {
    Box::pin(async { spa.add_spares(&[SpareSpec { leaf: leaf(OTHER), shared: None }]).await })
}

fn initialize(spa: &Arc<Spa>) -> BoxFuture<'_, Result<()>> {
    Box::pin(async { spa.start_upkeep(guid(spa, 1), UpkeepKind::Initialize, None).await })
}

/// Makes the change while all reads of the pool's devices from number `from` on give wrong bytes.
/// Whether any did.
async fn changed(
    env: &Env,
    what: &str,
    first: Change,
    change: Change,
    from: u64,
    count: &Cell<Outcomes>,
) -> bool {
    let opened: Arc<Mutex<Vec<Arc<FaultyDevice>>>> = Arc::default();
    let faulty = env.wrap_devices({
        let (opened, env) = (opened.clone(), env.clone());
        move |path: &Path, device| {
            let device = Arc::new(FaultyDevice::new(device, &env));
            if OWN.iter().any(|i| path == Layout::path(*i)) {
                opened.lock().push(device.clone());
            }
            device
        }
    });
    let found = find(&faulty).await.unwrap().unwrap();
    let spa = import(&faulty, &found, false).await.unwrap();
    first(&spa).await.unwrap();
    settled(env, &spa, what).await;
    spa.drop_caches();
    let devices = opened.lock().clone();
    for device in &devices {
        device.add(Rule::new(Ops::Reads, Fault::FlipBits { count: 9 }).when(When::From(from)));
    }
    let mend = || {
        let met = devices.iter().any(|d| d.hits(0) > 0);
        devices.iter().for_each(|d| d.clear());
        met
    };
    let mut met = false;
    let done = match select(change(&spa), Box::pin(spa.until_suspended())).await {
        Either::Left((done, _)) => Some(done),
        Either::Right((why, changing)) => {
            met |= mend();
            match spa.clear(None).await {
                Ok(()) => Some(env.timeout(LONG, changing).await.unwrap_or_else(|_| panic!("{what}: hangs"))),
                // The txg could not be made.
                Err(e) => {
                    assert_eq!(e.to_string(), why.to_string(), "{what}");
                    None
                }
            }
        }
    };
    met |= mend();
    let done = if spa.clear(None).await.is_ok() { done } else { None };
    let mut outcomes = count.get();
    match &done {
        Some(Ok(())) => outcomes.done += 1,
        Some(Err(_)) => outcomes.refused += 1,
        None => outcomes.suspended += 1,
    }
    count.set(outcomes);
    assert!(matches!(done, Some(Ok(()))) || met, "{what}: {done:?}");
    let mut files = FILES;
    if done.is_some() {
        settled(env, &spa, what).await;
        IN_IT.put(env, &spa, FILES..FILES + 2).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        files += 2;
    }
    let closed = spa.close(Some(PoolState::Exported)).await;
    assert!(closed.is_ok() || done.is_none(), "{what}: {closed:?}");
    drop((spa, devices));
    opened.lock().clear();
    let found = find(env).await.unwrap().unwrap();
    let spa = import(env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    settled(env, &spa, what).await;
    IN_IT.check(env, &spa, files, what).await;
    audit(&spa, true, true).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    spa.close(Some(PoolState::Exported)).await.unwrap();
    met
}

/// What goes on in the background comes to its end.
async fn settled(env: &Env, spa: &Arc<Spa>, what: &str) {
    for _ in 0..3000 {
        let busy = spa.is_removing() || spa.scan().unwrap().is_scanning() || spa.tree().wants_resilver();
        if !busy {
            return;
        }
        env.sleep(Duration::from_millis(200)).await;
    }
    panic!("{what}: it does not come to an end");
}

#[derive(Clone, Copy, Debug, Default)]
struct Outcomes {
    done: usize,
    refused: usize,
    suspended: usize,
}

#[test]
fn what_is_done_to_a_pool_that_cannot_be_read_for_a_while_loses_nothing() {
    let pool = before();
    let all = Cell::new(Outcomes::default());
    for (name, first, change) in CHANGES {
        for from in 1..40 {
            let sim = pool.boot(1000 + from);
            let env = sim.env();
            let what = format!("{name}, reads from {from} on");
            if !sim.block_on(changed(&env, &what, first, change, from, &all)) {
                break;
            }
        }
    }
    let all = all.get();
    assert!(all.done > CHANGES.len() && all.suspended > 0, "{all:?}");
}
