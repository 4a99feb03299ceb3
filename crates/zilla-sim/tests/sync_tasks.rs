//! Operations on datasets that meet blocks they cannot read: each is done whole or not at all, and
//! the pool goes on.

use futures_util::future::{Either, select};
use parking_lot::Mutex;
use std::sync::Arc;
use zilla::{Import, Pool};
use zilla_codec::crypt::Suite;
use zilla_core::crypt::{KeyFormat, WrappingKey};
use zilla_core::dsl::{DslPool, Grantee, NewCrypt, NewSuite, RedactionList, Setting};
use zilla_core::error::Result;
use zilla_core::spa::{Spa, discover};
use zilla_core::txg::Tx;
use zilla_core::types::{Bookmark, ObjectId};
use zilla_core::zap::{Value, Zap};
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

/// What administrators do, each in one sync task.
const OPERATIONS: [&str; 23] = [
    "snapshot",
    "create",
    "create and grant",
    "clone",
    "promote",
    "rename",
    "rename to another parent",
    "rename a snapshot",
    "rename snapshots",
    "roll back",
    "bookmark",
    "destroy a bookmark",
    "destroy a bookmark of clones",
    "hold",
    "release",
    "release and destroy",
    "set",
    "inherit",
    "destroy a snapshot",
    "destroy a clone",
    "destroy what has grants and a list",
    "destroy what is encrypted",
    "allow",
];

async fn perform(d: &Arc<DslPool>, tx: &Tx, what: &str) -> Result<()> {
    let one = |name: &str| [name.to_owned()];
    match what {
        "snapshot" => d.snapshot(tx, &one("tank/a@c")).await.map(drop),
        "create" => d.create_fs(tx, "tank/new", ObjsetType::Zvol, 0).await.map(drop),
        "create and grant" => {
            let ds = d.create_fs(tx, "tank/granting/new", ObjsetType::Zvol, 0).await?;
            d.grant_to_creator(tx, &ds.dir(), 1000).await
        }
        "clone" => d.clone_ds(tx, "tank/second", "tank/a@b").await.map(drop),
        "promote" => d.promote(tx, "tank/clone").await,
        "rename" => d.rename(tx, "tank/clone", "tank/renamed").await,
        "rename to another parent" => d.rename(tx, "tank/clone", "tank/a/clone").await,
        "rename a snapshot" => d.rename_snapshot(tx, "tank/a", "b", "z", false).await,
        "rename snapshots" => d.rename_snapshot(tx, "tank/marked", "same", "other", true).await,
        "roll back" => d.rollback(tx, "tank/a", None).await,
        "bookmark" => d.bookmark(tx, &[("tank/a@b".to_owned(), "tank/a#b".to_owned())]).await,
        "destroy a bookmark" => d.destroy_bookmarks(tx, &one("tank/a#a")).await,
        "destroy a bookmark of clones" => d.destroy_bookmarks(tx, &one("tank/marked#gone")).await,
        "hold" => d.hold_snapshot(tx, "tank/a@b", "second").await,
        "release" => d.release_snapshots(tx, &one("tank/a@b"), "first").await,
        "release and destroy" => d.release_snapshots(tx, &one("tank/clone@left"), "last").await,
        "set" => {
            let values = [("quota", Value::u64(1 << 30)), ("user:word", Value::string("x"))]
                .map(|(name, value)| (name.to_owned(), Setting::Local(value)));
            d.set_props(tx, &d.by_name("tank/a").await?, &values).await
        }
        "inherit" => {
            let values = [("user:kept".to_owned(), Setting::Inherit)];
            d.set_props(tx, &d.by_name("tank/a").await?, &values).await
        }
        "destroy a snapshot" => d.destroy_snapshots(tx, &one("tank/a@mid"), false).await,
        "destroy a clone" => d.destroy_head(tx, "tank/spare").await,
        "destroy what has grants and a list" => d.destroy_head(tx, "tank/granting").await,
        "destroy what is encrypted" => d.destroy_head(tx, "tank/locked").await,
        _ => d.allow(tx, "tank/a", &[(Grantee::parse("el$").unwrap(), one("snapshot").to_vec())]).await,
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
        let snapshot = async |name: &'static str| {
            task(&spa, move |d, tx| {
                Box::pin(async move { d.snapshot(&tx, &[name.to_owned()]).await.map(drop) })
            })
            .await
            .unwrap();
        };
        let clone = async |name: &'static str, origin: &'static str| {
            task(&spa, move |d, tx| Box::pin(async move { d.clone_ds(&tx, name, origin).await.map(drop) }))
                .await
                .unwrap();
        };
        let fill = async |name, seed, len| fill_fs(&env, &spa, name, Fill { seed, len }).await.unwrap();
        for (seed, name) in [(1, "tank/a@a"), (6, "tank/a@mid"), (9, "tank/a@b")] {
            fill("tank/a", seed, 90_000).await;
            snapshot(name).await;
        }
        fill("tank/a", 11, 90_000).await;
        for name in ["tank/clone", "tank/spare"] {
            clone(name, "tank/a@a").await;
            fill(name, 2, 9000).await;
        }
        for name in ["tank/clone@left", "tank/clone@right"] {
            snapshot(name).await;
            fill("tank/clone", 3, 20_000).await;
        }
        task(&spa, |d, tx| {
            Box::pin(async move {
                d.create_fs(&tx, "tank/granting", ObjsetType::Other, 0).await?;
                for name in ["tank/marked", "tank/marked/below"] {
                    d.create_fs(&tx, name, ObjsetType::Other, 0).await?;
                }
                let key = WrappingKey::raw(KeyFormat::Raw, &[7; 32])?;
                let suite = NewSuite::Of(Suite::Aes256Gcm);
                let crypt = NewCrypt { suite, key: Some(Arc::new(key)), location: None };
                d.create_fs_with(&tx, "tank/locked", ObjsetType::Zvol, 0, &crypt).await?;
                let given =
                    ["ul$1000", "c-$"].map(|to| (Grantee::parse(to).unwrap(), vec!["snapshot".into()]));
                d.allow(&tx, "tank/granting", &given).await
            })
        })
        .await
        .unwrap();
        for name in ["tank/granting@s", "tank/marked@gone", "tank/marked@same", "tank/marked/below@same"] {
            snapshot(name).await;
        }
        for name in ["tank/its", "tank/other"] {
            clone(name, "tank/marked@same").await;
        }
        task(&spa, |d, tx| {
            Box::pin(async move {
                let list = RedactionList { snaps: vec![1], runs: vec![] };
                d.redact(&tx, &d.by_name("tank/granting@s").await?, "tank/granting#list", &list).await?;
                d.bookmark(&tx, &[("tank/marked@gone".to_owned(), "tank/marked#gone".to_owned())]).await?;
                let gone = ["tank/granting@s", "tank/marked@gone"].map(str::to_owned);
                d.destroy_snapshots(&tx, &gone, false).await?;
                d.hold_snapshot(&tx, "tank/marked@same", "kept").await?;
                d.bookmark(&tx, &[("tank/a@a".to_owned(), "tank/a#a".to_owned())]).await?;
                d.hold_snapshot(&tx, "tank/a@b", "first").await?;
                d.hold_snapshot(&tx, "tank/clone@left", "last").await?;
                d.destroy_snapshots(&tx, &["tank/clone@left".to_owned()], true).await?;
                let kept = [("user:kept".to_owned(), Setting::Local(Value::string("y")))];
                d.set_props(&tx, &d.by_name("tank/a").await?, &kept).await
            })
        })
        .await
        .unwrap();
        spa.close(None).await.unwrap();
    });
    sim.power_off(CrashPolicy::LoseAll, 8)
}

async fn names(spa: &Spa) -> Vec<String> {
    let (mut out, mut todo) = (Vec::new(), vec![spa.dsl.root_dir()]);
    while let Some(dir) = todo.pop() {
        todo.extend(spa.dsl.child_dirs(&dir).await.unwrap());
        let head = spa.dsl.head(&dir).await.unwrap();
        out.push(format!("{} {:?} {:?}", dir.name(), head.phys(), dir.phys()));
        out.push(format!("{} {:?}", dir.name(), spa.dsl.all_props(&head).await.unwrap()));
        out.push(format!("{} {:?}", dir.name(), head.bookmarks()));
        out.extend(
            spa.dsl.snapshots(&head).await.unwrap().iter().map(|s| format!("{} {:?}", s.name(), s.phys())),
        );
    }
    out.sort();
    out
}

/// Which reads give wrong bytes, counted from the operation's beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Damaged {
    /// All from this one on, until the operation is over.
    From(u64),
    /// So many that one block has no good copy, until the operation is over.
    OneBlock(u64),
    /// The same, until its txg is on disk or the pool is suspended.
    InTxg(u64),
}

impl Damaged {
    fn rules(self) -> Vec<When> {
        match self {
            Damaged::From(n) => vec![When::From(n)],
            Damaged::OneBlock(n) | Damaged::InTxg(n) => (n..n + 3).map(When::Nth).collect(),
        }
    }
}

/// Does the operation while reads give wrong bytes. Whether it met one.
async fn with_damage(env: &Env, what: &'static str, which: Damaged) -> bool {
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
    spa.drop_caches();
    let mend = move |devices: &[Arc<FaultyDevice>]| {
        let struck = |d: &Arc<FaultyDevice>| (0..which.rules().len()).map(|i| d.hits(i)).sum::<u64>();
        *met.lock() += devices.iter().map(struck).sum::<u64>();
        devices.iter().for_each(|d| d.clear());
    };
    let mended = mend.clone();
    let operation = task(&spa, move |dsl, tx| {
        Box::pin(async move {
            for device in &seen {
                for when in which.rules() {
                    device.add(Rule::new(Ops::Reads, Fault::FlipBits { count: 9 }).when(when));
                }
            }
            let done = perform(&dsl, &tx, what).await;
            if !matches!(which, Damaged::InTxg(_)) {
                mended(&seen);
            }
            done
        })
    });
    let suspended = Box::pin(spa.until_suspended());
    let done = match select(Box::pin(operation), suspended).await {
        Either::Left((done, _)) => done,
        Either::Right((why, operation)) => {
            assert!(matches!(which, Damaged::InTxg(_)), "{what}, {which:?}: {why}");
            mend(&devices);
            spa.clear(None).await.unwrap_or_else(|e| panic!("{what}, {which:?}: {e}, after {why}"));
            operation.await
        }
    };
    mend(&devices);
    let met = *hits.lock() > 0;
    assert!(spa.suspended().is_none(), "{what}, {which:?}: {:?}", spa.suspended());
    assert!(done.is_ok() || met, "{what}, {which:?}: {done:?}");
    if met {
        let now = names(&spa).await;
        spa.close(None).await.unwrap();
        drop((spa, devices));
        opened.lock().clear();
        let found = discover(env, &["/disks".into()]).await.unwrap();
        let spa = import(env, &found[0], false).await.unwrap();
        assert_eq!(now, names(&spa).await, "{what}: memory and disk differ");
        let report = spa.check_space().await.unwrap();
        assert!(report.is_clean(), "{what}, {which:?}: {report:?}");
        if done.is_err() {
            let again = task(&spa, move |dsl, tx| Box::pin(async move { perform(&dsl, &tx, what).await }));
            again.await.unwrap_or_else(|e| panic!("{what}, {which:?}: {done:?}, and again: {e}"));
        }
        spa.close(None).await.unwrap();
    }
    met
}

#[test]
fn what_cannot_be_read_leaves_nothing_half_done() {
    let pool = prepared();
    let mut read = 0;
    for what in OPERATIONS {
        for n in 1.. {
            let met = |which| {
                let sim = pool.boot(n);
                let env = sim.env();
                sim.block_on(with_damage(&env, what, which))
            };
            let within = [Damaged::From(n), Damaged::OneBlock(n)].map(met);
            read += usize::from(within[0]);
            if !met(Damaged::InTxg(n)) && !within.contains(&true) {
                break;
            }
        }
    }
    assert!(read > 3 * OPERATIONS.len(), "{read} reads");
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

/// Of a list that is destroyed what comes before a damaged member is gone, and the pool goes on.
#[test]
fn a_damaged_member_of_a_list_is_refused_alone() {
    let sim = prepared().boot(1);
    let env = sim.env();
    sim.block_on(async {
        let found = discover(&env, &["/disks".into()]).await.unwrap();
        let spa = import(&env, &found[0], false).await.unwrap();
        task(&spa, |d, tx| {
            Box::pin(async move {
                let names = d.by_name("tank/a").await?.phys().snapnames_zapobj;
                // The object directory is no snapshot.
                Zap::open(d.mos(), names).await?.insert_u64(&tx, "bad", 1).await
            })
        })
        .await
        .unwrap();
        spa.close(None).await.unwrap();
        drop(spa);
        let pool = Pool::import(&env, &["/disks"], "tank", Import { force: true, ..Import::default() })
            .await
            .unwrap();
        let destroy = async |names: &[&str]| {
            pool.destroy_named(names.iter().map(|n| (*n).to_owned()).collect(), false).await
        };
        destroy(&["tank/a@mid", "tank/a@bad", "tank/clone@right"]).await.unwrap_err();
        destroy(&["tank/a@mid", "tank/clone@right"]).await.unwrap();
        pool.export().await.unwrap();
    });
}
