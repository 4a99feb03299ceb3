//! Log devices come, go, fail and come back, and the pool is whole for OpenZFS at every stage.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use zilla_core::check::{CheckOpts, check_pool};
use zilla_core::error::{Errno, Error};
use zilla_core::metaslab::SpaceClass;
use zilla_core::spa::{Attach, CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::types::ObjectId;
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind, VdevState};
use zilla_core::zio::{At, BlockStore};
use zilla_core::zpl::{Cred, FsProps, NewFile, Unlimited, Zfs};
use zilla_core::zvol::{NewVolume, VolumeProps, Zvol, create_volume};
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};
use zilla_env::{Env, real_env};
use zilla_ondisk::BlkPtr;
use zilla_ondisk::enums::PoolState;
use zilla_testkit::zdb_clean;

struct World {
    env: Env,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        World { env: real_env(2), dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn leaf(&self, name: &str) -> LeafSpec {
        let path = self.path(name);
        if !path.exists() {
            std::fs::File::create(&path).unwrap().set_len(80 << 20).unwrap();
        }
        LeafSpec { path, disk: false }
    }

    fn top(&self, names: &[&str], is_log: bool) -> TopSpec {
        let kind = if names.len() > 1 { VdevKind::Mirror } else { VdevKind::File };
        let leaves = names.iter().map(|n| self.leaf(n)).collect();
        TopSpec { kind, leaves, is_log, bias: None, ashift: None }
    }

    fn logs(&self, tops: &[&[&str]]) -> PoolSpec {
        PoolSpec { tops: tops.iter().map(|t| self.top(t, true)).collect(), ..PoolSpec::default() }
    }

    async fn create(&self, logs: &[&[&str]]) -> Arc<Spa> {
        let mut spec = self.logs(logs);
        spec.tops.insert(0, self.top(&["a", "b"], false));
        let opts = CreateOpts {
            name: "tank".into(),
            host: Host { id: 0x1234, name: "here".into() },
            comment: None,
            owner: (0, 0),
            features: None,
            dbuf_cache: 32 << 20,
            arc_max: 64 << 20,
        };
        Spa::create(&self.env, &spec, opts).await.unwrap()
    }

    async fn import(&self, missing_log: bool) -> Result<Arc<Spa>, Error> {
        self.import_in(&self.env, missing_log).await
    }

    async fn import_in(&self, env: &Env, missing_log: bool) -> Result<Arc<Spa>, Error> {
        let found = discover(env, &[self.dir.path().to_owned()]).await.unwrap();
        let opts = OpenOpts {
            missing_log,
            host: Host { id: 0x1234, name: "here".into() },
            dbuf_cache: 32 << 20,
            arc_max: 64 << 20,
            ..OpenOpts::default()
        };
        Spa::open(env, &found[0], opts).await
    }

    async fn export(&self, spa: Arc<Spa>) {
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(self.dir.path(), "tank");
    }

    /// Exports, checks, imports.
    async fn turn(&self, spa: Arc<Spa>) -> Arc<Spa> {
        self.export(spa).await;
        self.import(false).await.unwrap()
    }
}

fn guid(spa: &Spa, path: &Path) -> u64 {
    let walk = spa.tree().root.walk();
    let found = walk.iter().find(|v| v.leaf.as_ref().is_some_and(|l| Path::new(&l.path()) == path));
    found.unwrap_or_else(|| panic!("{} is not in the pool", path.display())).guid
}

/// The top-levels: names of their leaves, with their state.
fn shape(spa: &Spa) -> String {
    let tree = spa.tree();
    let tops = tree.tops.iter().map(|t| {
        let leaves: Vec<String> = t
            .leaves()
            .map(|l| {
                let name = Path::new(&l.path()).file_name().unwrap().to_string_lossy().into_owned();
                let state = if l.state().0 == VdevState::Healthy { "" } else { "!" };
                format!("{name}{state}")
            })
            .collect();
        format!("{}:{}", t.vdev.kind.type_name(), leaves.join(","))
    });
    tops.collect::<Vec<_>>().join(" ")
}

/// Writes a log block and frees it again in a later txg, as a log does.
async fn log_block(spa: &Arc<Spa>, best: Option<(u32, At)>) -> Result<BlkPtr, Error> {
    let data = Bytes::from(vec![7; 4096]);
    let (bp, txg) = {
        let tx = spa.ctx.txgs.assign().await?;
        (spa.zio.log().alloc(tx.txg(), 4096, [best, None]).await?, tx.txg())
    };
    let written = match spa.zio.write_log(txg, &bp.dva(0), &data).await {
        Ok(write) => write.stable().await,
        Err(e) => Err(e),
    };
    let zio = spa.zio.clone();
    let free = async move |txg| zio.free(txg, &[bp]).await;
    spa.ctx.sync_task(move |tx| Box::pin(async move { free(tx.txg()).await })).await?;
    written.map(|()| bp)
}

/// Whether one goes to a log device.
async fn has_slog(spa: &Arc<Spa>) -> bool {
    let bp = log_block(spa, None).await.unwrap();
    spa.zio.log().vdevs(true).iter().any(|v| v.id == bp.dva(0).vdev)
}

/// The log devices, each of which takes a block.
async fn used(spa: &Arc<Spa>) -> Vec<u32> {
    let mut out = Vec::new();
    for v in spa.zio.log().vdevs(true) {
        let bp = log_block(spa, Some((v.id, At::Lowest))).await.unwrap();
        assert_eq!(bp.dva(0).vdev, v.id);
        out.push(v.id);
    }
    out
}

#[test]
fn logs_are_added_used_and_removed() {
    let w = World::new();
    w.env.block_on(async {
        let spa = w.create(&[]).await;
        assert!(!has_slog(&spa).await);
        spa.add_vdevs(&w.logs(&[&["l1"], &["l2", "l3"]])).await.unwrap();
        assert_eq!(shape(&spa), "mirror:a,b file:l1 mirror:l2,l3");
        assert_eq!(used(&spa).await, [1, 2]);
        let normal = spa.metaslabs.class_stat(SpaceClass::Normal).space;
        let spa = w.turn(spa).await;
        assert_eq!(spa.metaslabs.class_stat(SpaceClass::Normal).space, normal, "logs are no space for data");
        assert_eq!(used(&spa).await, [1, 2]);

        spa.remove_vdev(guid(&spa, &w.path("l1"))).await.unwrap();
        assert_eq!(shape(&spa), "mirror:a,b hole: mirror:l2,l3");
        assert_eq!(used(&spa).await, [2]);
        let spa = w.turn(spa).await;
        assert_eq!(shape(&spa), "mirror:a,b hole: mirror:l2,l3");
        // The device is free for others, and the number for another vdev.
        spa.add_vdevs(&w.logs(&[&["l1"]])).await.unwrap();
        assert_eq!(shape(&spa), "mirror:a,b file:l1 mirror:l2,l3");
        let mirror = spa.tree().top(2).unwrap().vdev.guid;
        spa.remove_vdev(mirror).await.unwrap();
        assert_eq!(used(&spa).await, [1]);
        let spa = w.turn(spa).await;
        assert_eq!(shape(&spa), "mirror:a,b file:l1 hole:");
        let data = guid(&spa, &w.path("a"));
        assert!(spa.remove_vdev(data).await.unwrap_err().is(Errno::NotSup));
        w.export(spa).await;
    });
}

#[test]
fn sides_of_a_log_come_and_go() {
    let w = World::new();
    w.env.block_on(async {
        let spa = w.create(&[&["l1"]]).await;
        spa.attach(guid(&spa, &w.path("l1")), &w.leaf("l2"), Attach::default()).await.unwrap();
        assert_eq!(shape(&spa), "mirror:a,b mirror:l1,l2");
        assert!(spa.tree().pool_leaves().all(|l| l.dtl.is_empty()), "nothing is needed on the new side");
        let spa = w.turn(spa).await;
        spa.attach(guid(&spa, &w.path("l2")), &w.leaf("l3"), Attach::default()).await.unwrap();
        assert_eq!(shape(&spa), "mirror:a,b mirror:l1,l2,l3");
        spa.attach(guid(&spa, &w.path("l1")), &w.leaf("l4"), Attach { replace: true, ..Attach::default() })
            .await
            .unwrap();
        assert_eq!(shape(&spa), "mirror:a,b mirror:l4,l2,l3");
        assert!(has_slog(&spa).await);
        let spa = w.turn(spa).await;
        for name in ["l2", "l3"] {
            spa.detach(guid(&spa, &w.path(name))).await.unwrap();
        }
        assert_eq!(shape(&spa), "mirror:a,b file:l4");
        assert!(spa.detach(guid(&spa, &w.path("l4"))).await.unwrap_err().is(Errno::NotSup));
        // A log without redundancy is replaced whole.
        spa.attach(guid(&spa, &w.path("l4")), &w.leaf("l1"), Attach { replace: true, ..Attach::default() })
            .await
            .unwrap();
        assert_eq!(shape(&spa), "mirror:a,b file:l1");
        let small = w.path("small");
        std::fs::File::create(&small).unwrap().set_len(65 << 20).unwrap();
        let target = guid(&spa, &w.path("l1"));
        assert!(
            spa.attach(target, &w.leaf("small"), Attach::default()).await.unwrap_err().is(Errno::Overflow)
        );
        let spa = w.turn(spa).await;
        assert_eq!(shape(&spa), "mirror:a,b file:l1");
        w.export(spa).await;
    });
}

#[test]
fn a_log_goes_offline_and_comes_back() {
    let w = World::new();
    w.env.block_on(async {
        let spa = w.create(&[&["l1"]]).await;
        let l1 = guid(&spa, &w.path("l1"));
        assert!(has_slog(&spa).await);
        spa.offline(l1, false, false).await.unwrap();
        assert_eq!(shape(&spa), "mirror:a,b file:l1!");
        assert_eq!(spa.tree().root.state().0, VdevState::Degraded);
        assert!(!has_slog(&spa).await);
        let spa = w.turn(spa).await;
        assert_eq!(spa.tree().find(l1).unwrap().state().0, VdevState::Offline, "it stays so");
        assert_eq!(spa.online(l1, false).await.unwrap().0, VdevState::Healthy);
        assert!(has_slog(&spa).await);
        spa.offline(l1, true, false).await.unwrap();
        let spa = w.turn(spa).await;
        assert_eq!(shape(&spa), "mirror:a,b file:l1", "that was for a time");
        // One side of data goes, the other must stay.
        spa.offline(guid(&spa, &w.path("a")), false, false).await.unwrap();
        assert!(spa.offline(guid(&spa, &w.path("b")), false, false).await.unwrap_err().is(Errno::Busy));
        spa.log_history(zilla_ondisk::NvList::new().with("history command", "missed")).await.unwrap();
        assert!(!spa.tree().find(guid(&spa, &w.path("a"))).unwrap().leaf.clone().unwrap().dtl.is_empty());
        spa.online(guid(&spa, &w.path("a")), false).await.unwrap();
        spa.scan().unwrap().wait().await;
        assert!(spa.tree().pool_leaves().all(|l| l.dtl.is_empty()), "a resilver gave it what it missed");
        w.export(spa).await;
    });
}

/// The log was emptied before its last side was taken: nothing is missed.
#[test]
fn a_log_that_is_offline_on_all_sides_is_not_missed_by_an_import() {
    let w = World::new();
    w.env.block_on(async {
        let mut spa = w.create(&[&["l1", "l2"]]).await;
        let [l1, l2] = ["l1", "l2"].map(|name| guid(&spa, &w.path(name)));
        assert!(has_slog(&spa).await);
        spa.offline(l1, false, false).await.unwrap();
        spa.offline(l2, false, true).await.unwrap();
        spa = w.turn(spa).await;
        assert!(!has_slog(&spa).await);
        spa.clear(None).await.unwrap();
        spa.online(l1, false).await.unwrap();
        assert!(has_slog(&spa).await);
        spa = w.turn(spa).await;
        assert_eq!(shape(&spa), "mirror:a,b mirror:l1,l2");
        w.export(spa).await;
    });
}

#[test]
fn a_missing_log_stands_in_the_way_of_an_import() {
    let w = World::new();
    w.env.block_on(async {
        let spa = w.create(&[&["l1"], &["l2", "l3"]]).await;
        w.export(spa).await;
        let hidden = tempfile::tempdir().unwrap();
        let away = ["l1", "l2", "l3"].map(|n| (w.path(n), hidden.path().join(n)));
        for (here, there) in &away {
            std::fs::copy(here, there).unwrap();
            std::fs::remove_file(here).unwrap();
        }
        let e = w.import(false).await.err().unwrap();
        let text = e.to_string();
        assert!(e.is(Errno::NxIo) && text.contains("use '-m'"), "{text}");
        assert!(text.contains(&format!("\t    {} [log]", w.path("l1").display())), "{text}");
        assert!(text.contains("\t    mirror-2 [log]\n"), "{text}");
        let spa = w.import(true).await.unwrap();
        assert_eq!(shape(&spa), "mirror:a,b file:l1! mirror:l2!,l3!");
        assert!(!has_slog(&spa).await);
        // One is removed for good, the other comes back.
        let gone = spa.tree().top(2).unwrap().vdev.guid;
        spa.remove_vdev(gone).await.unwrap();
        std::fs::copy(&away[0].1, &away[0].0).unwrap();
        spa.clear(None).await.unwrap();
        assert_eq!(shape(&spa), "mirror:a,b file:l1 hole:");
        assert_eq!(used(&spa).await, [1]);
        w.export(spa).await;
    });
}

/// A flush of the open txg while the sync of the one before rolls the volume back: its log's blocks
/// of the open txg are freed in that, for a space map that has a block freed before it was
/// allocated makes its metaslab unusable.
#[test]
fn a_volume_that_is_rolled_back_under_a_flush_leaves_its_space_maps_whole() {
    let w = World::new();
    w.env.block_on(async {
        let spa = w.create(&[]).await;
        let dsl = spa.dsl.clone();
        let made = spa.ctx.sync_task(move |tx| {
            Box::pin(async move {
                let new = NewVolume { size: 16 << 20, block_size: 16 << 10 };
                create_volume(&dsl, &tx, "tank/v", new, &[]).await.map(drop)
            })
        });
        made.await.unwrap();
        let dsl = spa.dsl.clone();
        let taken = spa
            .ctx
            .sync_task(move |tx| Box::pin(async move { dsl.snapshot(&tx, &["tank/v@s".to_owned()]).await }));
        taken.await.unwrap();
        let zvol = {
            let ds = spa.dsl.by_name("tank/v").await.unwrap();
            let os = spa.dsl.objset(&ds).await.unwrap();
            spa.dsl.open_log(&ds).await.unwrap();
            let (txgs, space) = (Some(spa.ctx.txgs.clone()), Arc::new(Unlimited));
            Zvol::open(w.env.clone(), os, txgs, space, VolumeProps::default()).await.unwrap()
        };
        // The log has a chain then, and waits for no txg to begin one.
        zvol.write(0, &[Bytes::from(vec![7; 4096])]).await.unwrap();
        zvol.flush().await.unwrap();
        spa.sync().await.unwrap();
        let dsl = spa.dsl.clone();
        let back = spa.ctx.sync_task(move |tx| {
            Box::pin(async move {
                for n in 0..4 {
                    zvol.write(n << 16, &[Bytes::from(vec![8; 65536])]).await?;
                    zvol.flush().await?;
                }
                drop(zvol);
                dsl.rollback(&tx, "tank/v", None).await
            })
        });
        back.await.unwrap();
        let spa = w.turn(spa).await;
        let report = check_pool(&spa, CheckOpts::default()).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
        w.export(spa).await;
    });
}

/// Whoever asks for it may go away: the log is used on.
/// Who embeds the engine may keep the future of an fsync and poll it no more.
#[test]
fn an_fsync_that_nobody_polls_any_more_stops_no_txg() {
    let w = World::new();
    w.env.block_on(async {
        let spa = w.create(&[]).await;
        let fs = logged_fs(&w.env, &spa).await;
        let cred = Cred { uid: 0, gid: 0 };
        let (file, _) = fs.create(fs.root(), b"f", NewFile::new(0o100644, cred)).await.unwrap();
        fs.fsync(file.id()).await.unwrap();
        let mut kept = Vec::new();
        for i in 0..20u64 {
            fs.write(file.id(), i * 5000, &Bytes::from(vec![i as u8; 5000]), false).await.unwrap();
            let mut fsync = Box::pin(fs.fsync(file.id()));
            // As far as it comes, once and then some more.
            for _ in 0..=i % 3 {
                if fsync.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                    break;
                }
            }
            kept.push(fsync);
            let (synced, nap) = (pin!(spa.sync()), pin!(w.env.sleep(Duration::from_secs(60))));
            match select(synced, nap).await {
                Either::Left((synced, _)) => synced.unwrap(),
                Either::Right(_) => panic!("fsync {i} has stopped the pool"),
            }
            // Who comes later is not kept from the log either.
            fs.write(file.id(), 1 << 20, &Bytes::from(vec![i as u8; 100]), false).await.unwrap();
            fs.fsync(file.id()).await.unwrap();
        }
        drop(kept);
        drop(fs);
        w.export(spa).await;
    });
    zdb_clean(w.dir.path(), "tank");
}

#[test]
fn a_removal_that_nobody_waits_for_leaves_the_log_in_use() {
    let w = World::new();
    w.env.block_on(async {
        let spa = w.create(&[&["l"]]).await;
        let log = guid(&spa, &w.path("l"));
        assert_eq!(used(&spa).await, [1]);
        {
            let mut removal = std::pin::pin!(spa.remove_vdev(log));
            assert!(futures_util::poll!(&mut removal).is_pending());
        }
        assert_eq!(used(&spa).await, [1], "the log is not used any more");
        spa.remove_vdev(log).await.unwrap();
        w.export(spa).await;
    });
}

async fn logged_fs(env: &Env, spa: &Arc<Spa>) -> Arc<Zfs> {
    let ds = spa.dsl.by_name("tank").await.unwrap();
    spa.dsl.open_log(&ds).await.unwrap();
    let os = spa.dsl.objset(&ds).await.unwrap();
    let (txgs, props) = (Some(spa.ctx.txgs.clone()), FsProps::default());
    Zfs::open(env.clone(), os, txgs, Arc::new(Unlimited), props).await.unwrap()
}

/// Has the space maps of a vdev contradict themselves, or be so long that they have blocks of their
/// own: these are where they are on the mirror.
async fn spoil_maps(spa: &Arc<Spa>, vdev: u32, contradict: bool) -> Vec<u64> {
    let array = ObjectId(spa.tree().top(vdev).unwrap().vdev.metaslab_array());
    let mos = spa.ctx.mos().clone();
    let mut ids = vec![0; 8 * 64];
    mos.hold_wait(array).await.unwrap().read_wait(0, &mut ids).await.unwrap();
    let ids = ids.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b)).filter(|id| *id != 0);
    let mut maps = Vec::new();
    for id in ids {
        maps.push(mos.hold_wait(ObjectId(id)).await.unwrap());
    }
    assert!(!maps.is_empty());
    let all = maps.clone();
    let task = move |tx| -> futures_util::future::BoxFuture<'static, Result<(), Error>> {
        for map in &maps {
            if contradict {
                // Frees the first sector of what is free.
                map.write(&tx, 0, &(1u64 << 15).to_ne_bytes());
            } else {
                let noise: Vec<u8> = (0..32_768u64).map(|i| (i * i * i / 7919) as u8).collect();
                map.write(&tx, 65_536, &noise);
            }
        }
        Box::pin(std::future::ready(Ok(())))
    };
    spa.ctx.sync_task(task).await.unwrap();
    let mut places = Vec::new();
    for map in all {
        let bp = zilla_core::dmu::resident(|| map.block_pointer(0)).await.unwrap().unwrap();
        assert!(contradict || !bp.is_embedded() && bp.psize() > 16_384, "{bp:?}");
        places.extend(bp.dvas().filter(|_| !contradict).map(|d| d.offset + (4 << 20)));
    }
    places
}

/// A pool that crashed with records in the log, on a log device whose maps are long or contradict
/// themselves, and where these are.
fn crashed_with_maps(contradict: bool) -> (World, Vec<u64>) {
    let w = World::new();
    let crashed = World::new();
    let places = w.env.block_on(async {
        let spa = w.create(&[&["l"]]).await;
        let zfs = logged_fs(&w.env, &spa).await;
        let (file, _) = zfs.create(zfs.root(), b"f", NewFile::new(0o100644, Cred::default())).await.unwrap();
        zfs.write(file.id(), 0, &vec![1; 9000].into(), false).await.unwrap();
        zfs.fsync(file.id()).await.unwrap();
        drop((file, zfs));
        // Maps that tell all, and no log maps beside them.
        let spa = w.turn(spa).await;
        let zfs = logged_fs(&w.env, &spa).await;
        let (file, _) = zfs.lookup(zfs.root(), b"f").await.unwrap();
        zfs.write(file.id(), 0, &vec![2; 9000].into(), false).await.unwrap();
        zfs.fsync(file.id()).await.unwrap();
        // All places where logs lie have maps from then on.
        for i in 0..40 {
            zfs.write(file.id(), i * 100, &vec![2; 9000].into(), false).await.unwrap();
            zfs.fsync(file.id()).await.unwrap();
            spa.sync().await.unwrap();
        }
        let places = spoil_maps(&spa, 1, contradict).await;
        zfs.write(file.id(), 0, &vec![3; 9000].into(), false).await.unwrap();
        zfs.fsync(file.id()).await.unwrap();
        for name in ["a", "b", "l"] {
            std::fs::copy(w.path(name), crashed.path(name)).unwrap();
        }
        drop((file, zfs));
        // What it knows it has from before.
        spa.close(Some(PoolState::Exported)).await.unwrap();
        places
    });
    (crashed, places)
}

/// The log's blocks lie where nobody can say what is free: what was acknowledged is there all the
/// same, and nothing else is put there.
fn claimed_where_maps_are_damaged(contradict: bool) {
    let (crashed, places) = crashed_with_maps(contradict);
    for name in ["a", "b"] {
        let file = std::fs::File::options().write(true).open(crashed.path(name)).unwrap();
        for at in &places {
            file.write_all_at(&[0x5a; 64], at + 1000).unwrap();
        }
    }
    crashed.env.block_on(async {
        for (turn, said) in [(1, 3), (2, 4), (3, 4)] {
            let spa = crashed.import(false).await.expect("damage of one vdev's maps refuses no import");
            let loaded = |n: u64| spa.metaslabs.free_ranges(1, n).is_ok_and(|r| r.is_some());
            let used: Vec<u64> = (0..8).filter(|n| loaded(*n)).collect();
            assert!(turn > 1 || used.is_empty(), "what is damaged is not used: {used:?} {places:?}");
            let zfs = logged_fs(&crashed.env, &spa).await;
            assert_eq!(zfs.kept_log(), None);
            let (file, _) = zfs.lookup(zfs.root(), b"f").await.unwrap();
            assert_eq!(zfs.read(file.id(), 0, 9000).await.unwrap().concat(), vec![said; 9000]);
            assert_eq!(spa.ctx.log.kept.list(), []);
            zfs.write(file.id(), 0, &vec![4; 9000].into(), false).await.unwrap();
            zfs.fsync(file.id()).await.unwrap();
            for _ in 0..5 {
                spa.sync().await.unwrap();
            }
            assert!(spa.suspended().is_none());
            drop((file, zfs));
            spa.close(Some(PoolState::Exported)).await.unwrap();
        }
    });
}

#[test]
fn a_log_where_space_maps_contradict_themselves_is_claimed_and_replayed() {
    claimed_where_maps_are_damaged(true);
}

#[test]
fn a_log_where_space_maps_cannot_be_read_is_claimed_and_replayed() {
    claimed_where_maps_are_damaged(false);
}

/// The devices do not give the maps when the log is claimed, and do afterwards.
#[test]
fn a_metaslab_that_could_not_be_read_at_import_is_used_when_it_can_be() {
    let (crashed, places) = crashed_with_maps(false);
    let devices = Arc::new(Mutex::new(Vec::<Weak<FaultyDevice>>::new()));
    let (opened, inner) = (devices.clone(), crashed.env.clone());
    let env = crashed.env.wrap_devices(move |_, device| {
        let device = Arc::new(FaultyDevice::new(device, &inner));
        for at in &places {
            device.add(Rule::new(Ops::Reads, Fault::Error(5)).within(*at..at + 4096));
        }
        opened.lock().unwrap().push(Arc::downgrade(&device));
        device
    });
    env.block_on(async {
        let spa = crashed.import_in(&env, false).await.unwrap();
        let loaded = |n: u64| spa.metaslabs.free_ranges(1, n).is_ok_and(|r| r.is_some());
        let is_used = || (0..8).any(loaded);
        let zfs = logged_fs(&env, &spa).await;
        assert!(!is_used(), "its map cannot be read");
        devices.lock().unwrap().iter().filter_map(Weak::upgrade).for_each(|d| d.clear());
        for _ in 0..200 {
            if is_used() {
                break;
            }
            spa.sync().await.unwrap();
            env.sleep(Duration::from_millis(10)).await;
        }
        assert!(is_used(), "its map can be read");
        let (file, _) = zfs.lookup(zfs.root(), b"f").await.unwrap();
        assert_eq!(zfs.read(file.id(), 0, 9000).await.unwrap().concat(), vec![3; 9000]);
        zfs.write(file.id(), 0, &vec![4; 9000].into(), false).await.unwrap();
        zfs.fsync(file.id()).await.unwrap();
        let report = {
            spa.sync().await.unwrap();
            check_pool(&spa, CheckOpts::default()).await.unwrap()
        };
        assert!(report.is_clean(), "{:#?}", report.findings);
        drop((file, zfs));
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    zdb_clean(crashed.dir.path(), "tank");
}
